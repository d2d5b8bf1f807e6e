"""A standby forgets what its owner forgets by the way, so it does not grow with all that was ever appended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from tests.bucket.archived import ArchivedLife, archived, bucket_settings
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.standby_lives import StandbyLife, following, live
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from topics.model import AppendRequest, Performance, RecordIn, TransactionRequest, UniqueIn
from topics.standby import key_expiry

CONFIG = bucket_settings(bucket_base_ms=600_000)
WINDOW_S = 5


async def add_keys(owner: ArchivedLife, number: int) -> None:
    """An append, a transaction and a job, each with a key that is remembered for `WINDOW_S`."""
    await owner.append("a", number, idempotency_key=f"a{number}")
    unique = UniqueIn(f"j{number}", "window", WINDOW_S * 1000)
    await owner.append("q", {"data": number, "unique": unique})
    data = msgspec.Raw(json.dumps(number).encode())
    appends = [AppendRequest(records=[RecordIn(data=data)]) for _ in range(2)]
    request = TransactionRequest(topics=["a", "b"], appends=appends, idempotency_key=f"t{number}")
    await owner.engine.transactions.append(request, Performance())


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[ArchivedLife, StandbyLife]]:
    objects, clock = SimObjects(), SimClock(BASE_MS)
    async with archived(objects, CONFIG, clock=clock, bases=True) as owner:
        for name in ("a", "b"):
            await owner.put(name, idempotency_window_ms=WINDOW_S * 1000)
        await owner.put("q", type="queue", idempotency_window_ms=WINDOW_S * 1000)
        await owner.archive.vouch_for([writer.synced_position()[0] for writer in owner.engine.store.writers])
        async with following(SimFs(), objects, CONFIG, SimClock(BASE_MS)) as standby:
            yield owner, standby


def remembered(life: Any) -> dict[str, int]:
    topics = life.engine.registry.topics
    unique = topics["q"].queue.leases.unique
    return {
        "appends": len(topics["a"].keys or ()),
        "transactions": len(topics["a"].transactions or ()),
        "jobs": len(unique) if unique is not None else 0,
    }


def test_keys_whose_window_is_over_are_forgotten() -> None:
    async def script() -> None:
        async with pair() as (owner, standby):
            most: dict[str, int] = {}
            for number in range(20):
                await add_keys(owner, number)
                await owner.delete("q", before_seq=owner.engine.registry.topics["q"].log.head_seq + 1)
                await trio.sleep(1)
                await owner.archived()
                await standby.follower.catch_up()
                await key_expiry(standby.engine).pass_over()
                most = {kind: max(count, most.get(kind, 0)) for kind, count in remembered(standby).items()}
                await owner.engine.keys.expire()
                await owner.engine.unique_jobs.expire()
                owner.engine.transactions.expire()
                owners = remembered(owner)
                assert all(count >= owners[kind] for kind, count in remembered(standby).items()), "not before the owner"
            assert all(WINDOW_S - 1 <= count <= WINDOW_S + 3 for count in most.values()), most
            found = remembered(standby)
            assert standby.engine.keys.count == found["appends"] + 2 * found["transactions"]
            assert standby.engine.unique_jobs.total.count == found["jobs"]

    live(script)
