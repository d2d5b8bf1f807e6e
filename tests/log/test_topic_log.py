"""Floors, holes and tombstones, one story each (`docs/spec/semantics.md` sections 3 and 4)."""

from __future__ import annotations

import pytest

from tests.log.logs import caps, extent, log_of, steps, told
from topics.log.losses import Gap
from topics.log.retention import eviction_watermark, expire
from topics.log.topic_log import SeqRun, TopicLog
from topics.model import Tombstone


def test_an_empty_topic_has_nothing_and_misses_nothing() -> None:
    log = TopicLog()
    assert (log.head_seq, log.earliest_seq, log.losses.evict_floor, log.count, log.bytes) == (0, 1, 1, 0, 0)
    assert log.start(0, True) == (0, None)
    assert log.step(0, 10) is None
    assert expire(log, 10**12, 1) == 0
    assert log.delete_below(9, 9) == 0
    assert log.delete_seqs([1, 2]) == 0
    assert eviction_watermark(log, caps(1, 1), []) == 0


def test_a_reader_of_an_older_instance_is_told_that_it_is_recreated() -> None:
    empty = TopicLog()
    gap = Tombstone(gap_from=1, gap_to=0, reason="recreated", missed_estimate=0, earliest_seq=1, head_seq=0)
    assert empty.start(5, True) == (0, gap)
    log = log_of(10)
    log.delete_below(4, 10)
    log.delete_seqs([7])
    gap = Tombstone(gap_from=1, gap_to=10, reason="recreated", missed_estimate=6, earliest_seq=4, head_seq=10)
    assert log.start(0, False) == (3, gap)
    assert log.start(11, True) == (3, gap)
    assert log.start(10, True) == (10, None)


def test_a_deletion_is_silent() -> None:
    log = log_of(10)
    assert log.delete_below(5, 10) == 4
    assert log.delete_seqs([7]) == 1
    assert (log.earliest_seq, log.losses.evict_floor, log.count, log.bytes) == (5, 1, 5, 50)
    assert log.start(0, True) == (4, None)
    assert steps(log) == [SeqRun(5, 6), SeqRun(8, 10)]


def test_deletion_is_bounded_by_what_was_there_at_the_call() -> None:
    log = log_of(10)
    assert log.delete_below(100, 6) == 6
    assert log.earliest_seq == 7


def test_a_hole_is_met_in_its_place() -> None:
    log = log_of(3)
    log.add_hole(4, 100_000, "lost")
    log.extend(extent(100_001, 2))
    assert steps(log) == [SeqRun(1, 3), Gap(4, 100_000, "lost", 99_997), SeqRun(100_001, 100_002)]
    assert log.step(50, 10) == Gap(51, 100_000, "lost", 99_950)
    assert (log.count, log.bytes, log.losses.evict_floor) == (5, 50, 1)
    gap = log.step(3, 10)
    assert isinstance(gap, Gap)
    assert log.tombstone_of(gap) == Tombstone(
        gap_from=4, gap_to=100_000, reason="lost", missed_estimate=99_997, earliest_seq=1, head_seq=100_002
    )


def test_a_hole_at_the_end_waits_for_the_records_before_it() -> None:
    log = log_of(3)
    log.add_hole(4, 9, "lost")
    assert (log.head_seq, log.earliest_seq, log.losses.evict_floor) == (9, 1, 1)
    log.delete_below(100, 9)
    assert (log.head_seq, log.earliest_seq, log.losses.evict_floor) == (9, 10, 10)
    assert told(log, 0) == (1, 9, "lost", 6)


def test_a_hole_in_a_topic_without_records_is_passed_at_once() -> None:
    log = TopicLog()
    log.add_hole(1, 5, "lost")
    assert (log.head_seq, log.earliest_seq, log.losses.evict_floor) == (5, 6, 6)
    assert told(log, 0) == (1, 5, "lost", 5)
    log.extend(extent(6, 1))
    assert steps(log, 5) == [SeqRun(6, 6)]


def test_the_front_passes_a_hole_when_what_was_before_it_is_deleted() -> None:
    log = log_of(10)
    log.add_hole(11, 20, "source_trim")
    log.extend(extent(21, 10))
    log.delete_seqs([22])
    log.delete_below(22, 30)
    assert (log.earliest_seq, log.losses.evict_floor) == (23, 21)
    assert told(log, 0) == (1, 22, "source_trim", 10)
    assert told(log, 15) == (16, 22, "source_trim", 5)
    assert told(log, 20) is None


def test_damage_inside_takes_records_but_no_deletions() -> None:
    log = log_of(10)
    log.delete_seqs([3, 5, 8])
    log.add_hole(3, 8, "corrupt")
    assert steps(log) == [SeqRun(1, 2), Gap(4, 7, "corrupt", 3), SeqRun(9, 10)]
    assert (log.count, log.bytes) == (4, 40)
    log.add_hole(3, 8, "lost")
    assert steps(log) == [SeqRun(1, 2), Gap(4, 7, "corrupt", 3), SeqRun(9, 10)]
    log.check()


def test_damage_to_deleted_records_alone_is_no_hole() -> None:
    log = log_of(10)
    log.delete_seqs([3, 4, 5])
    log.add_hole(3, 5, "corrupt")
    assert steps(log) == [SeqRun(1, 2), SeqRun(6, 10)]


def test_an_ephemeral_restart_loses_everything() -> None:
    log = log_of(10)
    log.delete_below(3, 10)
    log.lose_all("lost")
    assert (log.head_seq, log.earliest_seq, log.losses.evict_floor, log.count) == (10, 11, 11, 0)
    assert told(log, 0) == (1, 10, "lost", 8)


@pytest.mark.parametrize(
    "change",
    [
        {"head_seq": 9},
        {"earliest_seq": 3},
        {"evict_floor": 2},
        {"evict_floor": 9, "causes": {"cap": 8}},
        {"causes": {"boredom": 3}},
        {"last_ts": 5},
        {"holes": []},
        {"holes": [[6, 10, "lost"]]},
        {"holes": [[11, 12, "boredom"]]},
        {"spans": []},
        {"spans": [[1, b"", b"", b"", b"", b"", b"", b""]]},
        {"spans": None},
        {"tags": {}},
        {"deleted": b"x"},
        {"deleted": bytes(8)},
        {"head_seq": "x"},
        {"head_seq": None},
    ],
)
def test_nonsense_does_not_load(change: dict[str, object]) -> None:
    log = log_of(10, tags=["a"] * 10)
    log.evict_below(4, "cap")
    log.add_hole(11, 12, "lost")
    dumped = log.dump()
    assert TopicLog.load(dumped).dump() == dumped
    with pytest.raises(ValueError):  # noqa: PT011
        TopicLog.load(dumped | change)


def test_a_dump_without_one_of_its_parts_does_not_load() -> None:
    dumped = log_of(3).dump()
    for key in dumped:
        with pytest.raises(ValueError, match="topic log"):
            TopicLog.load({k: v for k, v in dumped.items() if k != key})
