"""Segments of which nothing is left: their number does not grow with everything that was ever appended."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.life import Life, living, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.storage.maintenance import reclaimer
from topics.storage.segments.topic_segments import Segment

pytestmark = pytest.mark.trio

CONFIG = settings(segment_max_events=8, wal_file_bytes=8 << 10, cache_bytes=0)


def tiers(life: Life) -> list[tuple[int, int, str]]:
    """First seq, slots and tier of each segment."""
    spans = life.engine.registry.topics["t"].log.stored.all()
    return [(s.first, s.n, s.tier) for s in (span.segment for span in spans) if isinstance(s, Segment)]


async def overwrite(life: Life, times: int) -> None:
    for _ in range(times):
        await life.append("t", *[{"data": 0, "tag": "hot"}] * 8)
        life.clock.advance(1000)


async def reclaimed(life: Life) -> None:
    for _ in range(3):
        await life.compactor.checkpoint()
        await life.engine.reclaimer.pass_over()
    await life.compactor.checkpoint()


async def test_what_stays_in_front_of_overwritten_records_does_not_make_the_part_grow(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(CONFIG, fs=fs, clock=clock, clean=False) as life:
        await life.put("t", keep_per_tag=1)
        await life.append("t", {"data": 1, "tag": "cold"})
        sizes = []
        for _ in range(4):
            await overwrite(life, 12)
            await reclaimed(life)
            sizes.append(len(life.engine.registry.topics["t"].on_disk.newest_part or b""))
            assert [tier for _, _, tier in tiers(life)].count("gone") == 1
        assert max(sizes) < sizes[0] + 20
        (_, first, slots), *_ = [(tier, first, n) for first, n, tier in tiers(life) if tier == "gone"]
        assert slots > 300
        before = [row["$seq"] for row in (await life.all("t"))[0]]
        topic = life.engine.registry.topics["t"]
        span = topic.log.stored.at(first)
        assert span is not None
        await life.engine.loader.columns(topic, (span,))
        assert not topic.log.is_live(first + slots - 1)
        await settle()
    for clean in (False, True):
        async with living(CONFIG, fs=fs, clock=clock, clean=clean) as life:
            assert [row["$seq"] for row in (await life.all("t"))[0]] == before
            assert [tier for _, _, tier in tiers(life)].count("gone") == 1
            log = life.engine.registry.topics["t"].log
            assert (log.count, log.earliest_seq) == (2, 1)
    async with living(CONFIG, fs=fs, clock=clock) as life:
        assert (await life.delete("t", before_ts=clock.now_ms() - 1)).deleted == 2
        log = life.engine.registry.topics["t"].log
        assert log.earliest_seq == log.head_seq + 1 == before[-1] + 1


async def test_one_segment_without_files_has_no_more_slots_than_the_largest_segment(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reclaimer, "MOST_GONE", 40)
    async with living(CONFIG) as life:
        await life.put("t", keep_per_tag=1)
        await life.append("t", {"data": 1, "tag": "cold"})
        for _ in range(6):
            await overwrite(life, 5)
            await reclaimed(life)
        gone = [n for _, n, tier in tiers(life) if tier == "gone"]
        assert max(gone) <= 40
        assert len(gone) <= 2 * sum(gone) / 40 + 1
        topic = life.engine.registry.topics["t"]
        topic.log.check()
        assert [row["data"] for row in (await life.all("t"))[0]] == [1, 0]
