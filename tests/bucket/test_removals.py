"""`topics bucket gc` says what the owner's collector removes."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.bucket.archived import archived
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.test_collector import CONFIG, HOUR_MS, HOUR_S, RETAIN_MS, bases_for, collector_for
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.bucket.object_names import base_name, pin_name
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_removals import BucketRemovals, RemovalSearch
from topics.bucket.pin_format import Pin, encode_pin

pytestmark = pytest.mark.trio


def removals(objects: SimObjects, clock: SimClock, limit: int = 1 << 20) -> BucketRemovals:
    return RemovalSearch(BucketReader(objects), retain_ms=RETAIN_MS, now_ms=clock.now_ms(), limit=limit).find()


async def test_what_may_go_is_what_the_collector_removes(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    for epoch in range(1, 3):
        async with archived(objects, CONFIG, fs=fs, clock=clock, clean=False) as life:
            bases = bases_for(life)
            if epoch == 1:
                await life.put("a", durability="fsync", cap_records=40)
            for hour in range(14):
                await life.append("a", *range(5))
                assert await bases.try_take()
                if epoch == 1 and hour == 2:
                    pin = Pin(base=bases._newest, expires=clock.now_ms() + 100 * HOUR_MS)
                    objects.put_new(pin_name("p"), encode_pin(pin))
                    assert removals(objects, clock).reason.startswith("no base is old enough")
                await trio.sleep(HOUR_S)
            found = removals(objects, clock)
            assert found.reason == ""
            before = set(objects.objects)
            await collector_for(life, bases, wait_ms=0).pass_over()
            gone = before - set(objects.objects)
            assert set(found.names) == gone
            assert {name.partition("/")[0] for name in gone} >= {"bases", "rounds", "packs"}
            assert sum(one.may_go for one in found.kinds) == len(gone)
            assert found.epoch_beginnings == epoch
            kept = [one.base for one in found.bases]
            assert [base_name(number) for number in kept] == sorted(n for n in objects.objects if "bases/" in n)
            whys = [one.why for one in found.bases]
            assert whys[:2] == ["pins/p needs it", "the newest that is as old as the retention"]
            assert set(whys[2:]) == {"younger than the retention"}
            assert removals(objects, clock, limit=0).names == []
