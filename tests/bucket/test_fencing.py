"""The fencing round, and ceilings in the bucket: after the first the former owner can add none, and above the second it
gives out no seq."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from tests.bucket.archived import archived, bucket_settings
from tests.bucket.simulated_objects import SimFault, SimObjects
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from topics.bucket.object_names import round_name
from topics.bucket.object_store import ObjectExists
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_format import Owner
from topics.bucket.ownership.owner_object import Ownership
from topics.bucket.ownership.takeover import Takeover
from topics.bucket.place import Place
from topics.bucket.round_format import Round
from topics.bucket.settled_puts import SettledPuts
from topics.errors import ApiError, not_owner
from topics.log.bucket_ceiling import LEAST, BucketCeiling

pytestmark = pytest.mark.trio
CONFIG = bucket_settings(bucket_round_ms=1000)


async def test_a_fencing_round_is_behind_all_rounds_of_the_former_owner_and_takes_the_next_number(
    autojump_clock: Any,
) -> None:
    objects, clock, offload = SimObjects(), SimClock(), InlineOffload()
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock, clean=False) as life:
        await life.put("a", durability="fsync")
        for value in range(3):
            await life.append("a", value)
            last = await life.archived()
    reader = BucketReader(objects)
    place = Place(bucket=reader.bucket_id, epoch=0, number=0, hash=b"", wall_ms=0, positions=None)
    place.follow(reader.round(last - 2))
    held = Owner(epoch=9, node="b", dir="b", state="held", nonce="b", lease_ms=1000)
    takeover = Takeover(
        objects,
        SettledPuts(objects, offload, lambda state: None),
        cast(Ownership, SimpleNamespace(held=held, lease=None)),
        dir_id="b",
        url="",
        nonce="b",
        clock=clock,
        offload=offload,
    )
    followed: list[Round] = []

    async def follow(found: Round) -> None:
        followed.append(found)

    behind = await takeover.fence(place, follow)
    assert [found.head.number for found in followed] == [last - 1, last], "what came before it counts"
    assert behind.number == last + 1
    fence = reader.round(last + 1)
    assert (fence.head.epoch, fence.head.previous) == (9, followed[-1].hash)
    assert fence.head.positions == followed[-1].head.positions
    with pytest.raises(ObjectExists):
        objects.put_new(round_name(last + 1), b"a late round of the former owner")


async def test_no_fencing_round_goes_behind_a_round_of_a_later_epoch(autojump_clock: Any) -> None:
    """The process stood still between the put of `owner` and the look for the last round."""
    objects, clock, offload = SimObjects(), SimClock(), InlineOffload()
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock) as life:
        await life.put("a", durability="fsync")
        last = await life.archived()
    reader = BucketReader(objects)
    place = Place(bucket=reader.bucket_id, epoch=0, number=0, hash=b"", wall_ms=0, positions=None)
    place.follow(reader.round(last))
    held = Owner(epoch=0, node="b", dir="b", state="held", nonce="b", lease_ms=1000)
    lease = Lease(1000, clock.boottime_ms(), clock.boottime_ms)
    takeover = Takeover(
        objects,
        SettledPuts(objects, offload, lambda state: None),
        cast(Ownership, SimpleNamespace(held=held, lease=lease)),
        dir_id="b",
        url="",
        nonce="b",
        clock=clock,
        offload=offload,
    )
    before = set(objects.objects)

    async def follow(_found: Round) -> None:
        raise AssertionError("nothing is followed")

    with pytest.raises(ApiError, match=f"epoch 1 has written round {last}"):
        await takeover.fence(place, follow)
    assert not lease.is_held
    assert set(objects.objects) == before


class Held:
    """A lease that is held."""

    is_held = True
    refusal = not_owner("lost")


async def test_no_seq_is_given_out_above_a_ceiling_that_the_bucket_does_not_have(autojump_clock: Any) -> None:
    objects, clock = SimObjects(), SimClock()
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock, bases=True) as life:
        life.engine.store.right.lease = Held()
        await life.put("a", durability="disk")
        await trio.sleep(60)
        assert life.archive.is_restorable, "there is a base"
        objects.faults = lambda op, name: SimFault.BEFORE if op.startswith("put") else None
        with trio.fail_after(5):
            await life.append("a", *range(LEAST - 100))  # below the first ceiling: the bucket is not waited for
        with pytest.raises(ApiError, match="the bucket has not taken the change"):
            await life.append("a", *range(200))
        assert await life.seqs("a") == [*range(1, LEAST - 99)], (
            "the next ceiling is queued, and nobody sees what is above"
        )
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        assert len(await life.seqs("a", LEAST)) == 100


async def test_after_a_clean_restart_appends_go_on_when_the_bucket_goes_away(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop has lowered the ceilings to the heads. A start raises those of the topics that were written to last."""
    monkeypatch.setattr("topics.engine.ceilings.MOST_AT_START", 2)
    objects, clock, fs = SimObjects(), SimClock(), SimFs()
    async with archived(objects, CONFIG, fs=fs, clock=clock, bases=True) as life:
        life.engine.store.right.lease = Held()
        for name in ("idle", "a", "b"):
            await life.put(name, durability="fsync")
            await life.append(name, 1)
            await trio.sleep(1)
        life.engine.ceilings.lower_bucket_ceilings()
    async with archived(objects, CONFIG, fs=fs, clock=clock, bases=True) as life:
        life.engine.store.right.lease = Held()
        for topic in life.engine.registry.topics.values():
            topic.bucket_ceiling = BucketCeiling(topic.assigned)  # as recovery does it with a lease
        life.engine.ceilings.raise_at_start()
        await life.archived()
        await trio.sleep(60)
        objects.faults = lambda op, name: SimFault.BEFORE if op.startswith("put") else None
        with trio.fail_after(4):
            await life.append("a", *range(LEAST // 2))
            await life.append("b", 2)
        with pytest.raises(ApiError, match="has not taken the change"):
            await life.append("idle", 2)
        await trio.sleep(60)
        with pytest.raises(ApiError, match="reserved there for a takeover") as refused:
            await life.append("idle", 3)
        assert "remote" not in refused.value.message
        objects.faults = lambda op, name: None
        await trio.sleep(60)
        assert await life.seqs("idle") == [1, 2]
