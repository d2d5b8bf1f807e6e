"""What a user has deleted is physically gone from the bucket within 1.5 times the retention, while an owner runs
(`docs/spec/bucket.md` 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from backports import zstd

from tests.bucket.archived import ArchivedLife, archived, bucket_settings
from tests.bucket.check_bucket import check_bucket
from tests.bucket.simulated_objects import SimObjects
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.bases.collector import BucketCollector
from topics.bucket.round_format import decode_round
from topics.storage.segments.topic_segments import Segment

pytestmark = pytest.mark.trio

RETAIN_S = 240
MARGIN_S = RETAIN_S // 8
CONFIG = bucket_settings(
    segment_max_events=8,
    segment_max_age_ms=0,
    bucket_base_ms=5_000,
    bucket_retain_ms=RETAIN_S * 1000,
    rewrite_live_ratio=0.0,
    reclaim_ms=1000,
    checkpoint_ms=3000,
)
SECRET = "deleted-bytes-of-a-user"


def contents(objects: SimObjects) -> Iterator[tuple[str, bytes]]:
    """All objects, inflated as far as they can be."""
    for name, data in sorted(objects.objects.items()):
        if name.startswith("rounds/"):
            yield name, decode_round(data).body
            continue
        yield name, data
        for at in range(len(data)):
            if data.startswith(b"\x28\xb5\x2f\xfd", at):
                try:
                    yield name, zstd.ZstdDecompressor().decompress(data[at:])
                except zstd.ZstdError:
                    continue


def holders(objects: SimObjects) -> list[str]:
    """The objects that have the deleted bytes."""
    return sorted({name for name, content in contents(objects) if SECRET.encode() in content})


async def run_all(life: ArchivedLife, nursery: trio.Nursery) -> BaseWriter:
    """The tasks of a daemon with a bucket."""
    engine = life.engine
    bases = BaseWriter(
        life.archive, engine.compactor, clock=life.clock, offload=engine.offload, interval_ms=CONFIG.bucket_base_ms
    )
    collector = BucketCollector(
        life.archive,
        bases,
        clock=life.clock,
        offload=engine.offload,
        retain_ms=CONFIG.bucket_retain_ms,
        wait_ms=CONFIG.bucket_retain_ms // 40,
    )
    for task in (engine.compactor.run, engine.reclaimer.run, bases.run, collector.run):
        nursery.start_soon(task)
    with trio.fail_after(60):
        await bases.ready.wait()
    return bases


async def keep_busy(life: ArchivedLife, seconds: int) -> None:
    """Something changes, so that there are bases and rounds."""
    for i in range(seconds // 5):
        await life.append("other", i)
        await trio.sleep(5)


async def test_a_topic_that_nobody_changes_after_a_start_is_looked_at(autojump_clock: Any) -> None:
    fs, clock, objects = SimFs(), SimClock(), SimObjects()
    async with archived(objects, CONFIG, fs=fs, clock=clock) as life:
        await life.put("a", durability="fsync")
        await life.append("a", *one_deleted(8))
        await life.compactor.checkpoint()
        await life.delete("a", match="x")
    async with archived(objects, CONFIG, fs=fs, clock=clock) as life:
        await life.compactor.checkpoint()
        reclaimer, topic = life.engine.reclaimer, life.engine.registry.topics["a"]
        life.engine.registry.attention.clear()
        for wait_s, frames in ((RETAIN_S / 3 + 61, 8), (0, 7)):
            await reclaimer.pass_over()
            segment = topic.log.stored.all()[0].segment
            assert isinstance(segment, Segment)
            assert segment.frames == frames
            await trio.sleep(wait_s)


def one_deleted(records: int) -> list[Any]:
    """Records of which the third one, with the tag x, is to be deleted."""
    made: list[Any] = [{"data": f"kept {i}"} for i in range(records)]
    made[2] = {"data": SECRET, "tag": "x"}
    return made


@pytest.mark.parametrize("records", [pytest.param(20, marks=pytest.mark.slow), 5], ids=["sealed", "active"])
async def test_deleted_bytes_are_gone_after_one_and_a_half_times_the_retention(
    records: int, autojump_clock: Any
) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, clean=False) as life, trio.open_nursery() as nursery:
        await life.put("other", durability="fsync", cap_records=40)
        await life.put("a", durability="fsync")
        await run_all(life, nursery)
        await life.append("a", *one_deleted(records))
        await keep_busy(life, 20)
        assert {name.partition("/")[0] for name in holders(objects)} >= {"rounds"}
        assert any(not name.startswith("rounds/") for name in holders(objects))
        await life.delete("a", match="x")
        await keep_busy(life, RETAIN_S)
        assert holders(objects), "a restore to the time before is possible"
        await keep_busy(life, RETAIN_S // 2)
        assert holders(objects) == []
        check_bucket(objects)
        assert len((await life.all("a"))[0]) == records - 1
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_evicted_bytes_go_like_deleted_ones(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, clean=False) as life, trio.open_nursery() as nursery:
        await life.put("other", durability="fsync", cap_records=40)
        await life.put("a", durability="fsync", cap_records=16)
        await run_all(life, nursery)
        await life.append("a", *one_deleted(16))
        await keep_busy(life, 20)
        await life.append("a", 1, 2, 3, 4)
        await keep_busy(life, RETAIN_S * 3 // 2)
        assert holders(objects) == []
        check_bucket(objects)
        nursery.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("records", [20, 5], ids=["sealed", "active"])
async def test_restarts_prolong_nothing(records: int, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    lives = 9
    for number in range(lives):
        async with (
            archived(objects, CONFIG, fs=fs, clock=clock, clean=number % 2 == 0) as life,
            trio.open_nursery() as nursery,
        ):
            if not number:
                await life.put("other", durability="fsync", cap_records=40)
                await life.put("a", durability="fsync")
            await run_all(life, nursery)
            if not number:
                await life.append("a", *one_deleted(records))
                await keep_busy(life, 20)
                await life.delete("a", match="x")
            await keep_busy(life, RETAIN_S * 3 // 2 // lives)
            nursery.cancel_scope.cancel()
    assert holders(objects) == []
    check_bucket(objects)
