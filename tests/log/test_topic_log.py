"""Floors, holes and tombstones, one story each (`docs/spec/semantics.md` sections 3 and 4)."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from topics.log import record_index, topic_log
from topics.log.tag_match import Match
from topics.log.topic_log import Extent, Gap, Run, TopicLog
from topics.model import Tombstone


def extent(first: int, n: int, ts: int = 1000, size: int = 10, tags: list[str | None] | None = None) -> Extent:
    flags = bytes(tag is not None for tag in tags) if tags else bytes(n)
    return Extent(first, ts, 1, range(n), array("I", [20]) * n, array("I", [size]) * n, flags, tags)


def log_of(n: int, **fields: Any) -> TopicLog:
    log = TopicLog()
    log.extend(extent(1, n, **fields))
    return log


def told(log: TopicLog, from_seq: int) -> tuple[int, int, str, int] | None:
    """The tombstone at the start of a read: gap, reason, missed."""
    tombstone = log.start(from_seq, True)[1]
    if tombstone is None:
        return None
    return tombstone.gap_from, tombstone.gap_to, tombstone.reason, tombstone.missed_estimate


def steps(log: TopicLog, from_seq: int = 0) -> list[Run | Gap]:
    found = []
    at = log.start(from_seq, True)[0]
    while (step := log.step(at, 1000)) is not None:
        found.append(step)
        at = step.last
    return found


def test_an_empty_topic_has_nothing_and_misses_nothing() -> None:
    log = TopicLog()
    assert (log.head_seq, log.earliest_seq, log.evict_floor, log.count, log.bytes) == (0, 1, 1, 0, 0)
    assert log.start(0, True) == (0, None)
    assert log.step(0, 10) is None
    assert log.expire(10**12, 1) == 0
    assert log.delete_below(9, 9) == 0
    assert log.delete_seqs([1, 2]) == 0
    assert log.eviction_watermark(1, 1, []) == 0


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


def test_an_eviction_is_announced_to_those_who_had_less() -> None:
    log = log_of(10)
    assert log.evict_below(5, "cap") == 4
    assert (log.earliest_seq, log.evict_floor) == (5, 5)
    assert told(log, 0) == (1, 4, "cap", 4)
    assert told(log, 3) == (4, 4, "cap", 1)
    assert told(log, 4) is None


def test_a_deletion_is_silent() -> None:
    log = log_of(10)
    assert log.delete_below(5, 10) == 4
    assert log.delete_seqs([7]) == 1
    assert (log.earliest_seq, log.evict_floor, log.count, log.bytes) == (5, 1, 5, 50)
    assert log.start(0, True) == (4, None)
    assert steps(log) == [Run(5, 6), Run(8, 10)]


def test_deletion_is_bounded_by_what_was_there_at_the_call() -> None:
    log = log_of(10)
    assert log.delete_below(100, 6) == 6
    assert log.earliest_seq == 7


def test_deleted_slots_below_a_watermark_are_nobodys_loss() -> None:
    log = log_of(10)
    log.delete_seqs([4, 5, 6])
    assert log.evict_below(6, "cap") == 3
    assert (log.earliest_seq, log.evict_floor) == (7, 4)
    assert told(log, 2) == (3, 6, "cap", 1)
    assert told(log, 3) is None


def test_an_eviction_below_which_everything_was_deleted_moves_no_floor() -> None:
    log = log_of(10)
    log.delete_below(5, 10)
    assert log.evict_below(5, "cap") == 0
    assert log.evict_floor == 1


def test_a_reason_is_of_exactly_the_seqs_in_the_gap() -> None:
    log = log_of(10)
    log.evict_below(4, "ttl")
    log.evict_below(6, "cap")
    assert told(log, 0) == (1, 5, "mixed", 5)
    assert told(log, 3) == (4, 5, "cap", 2)
    log.evict_below(8, "ttl")
    assert told(log, 4) == (5, 7, "mixed", 3)
    assert told(log, 5) == (6, 7, "ttl", 2)


def test_what_is_known_to_be_deleted_is_not_missed() -> None:
    log = log_of(20)
    log.delete_below(4, 20)
    log.delete_seqs([6, 7, 12])
    log.evict_below(10, "cap")
    assert told(log, 0) == (1, 9, "cap", 4)
    assert told(log, 6) == (7, 9, "cap", 2)
    log.delete_below(12, 20)
    assert (log.earliest_seq, log.evict_floor) == (13, 10)
    assert told(log, 0) == (1, 12, "cap", 4)


def test_the_oldest_known_deletions_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_log, "MAX_DELETED_RUNS", 2)
    log = log_of(20)
    log.delete_seqs([2, 4, 6, 8])
    log.evict_below(10, "cap")
    assert told(log, 0) == (1, 9, "cap", 7)
    assert told(log, 5) == (6, 9, "cap", 2)


def test_a_topic_that_lost_nothing_remembers_nothing() -> None:
    log = log_of(2000)
    log.delete_seqs(range(2, 2000, 2))
    log.delete_below(1900, 2000)
    assert log._causes is None
    assert log._deleted is None
    assert log._holes is None
    assert log._tags is None


def test_a_hole_is_met_in_its_place() -> None:
    log = log_of(3)
    log.add_hole(4, 100_000, "lost")
    log.extend(extent(100_001, 2))
    assert steps(log) == [Run(1, 3), Gap(4, 100_000, "lost", 99_997), Run(100_001, 100_002)]
    assert log.step(50, 10) == Gap(51, 100_000, "lost", 99_950)
    assert (log.count, log.bytes, log.evict_floor) == (5, 50, 1)
    gap = log.step(3, 10)
    assert isinstance(gap, Gap)
    assert log.tombstone_of(gap) == Tombstone(
        gap_from=4, gap_to=100_000, reason="lost", missed_estimate=99_997, earliest_seq=1, head_seq=100_002
    )


def test_a_hole_at_the_end_waits_for_the_records_before_it() -> None:
    log = log_of(3)
    log.add_hole(4, 9, "lost")
    assert (log.head_seq, log.earliest_seq, log.evict_floor) == (9, 1, 1)
    log.delete_below(100, 9)
    assert (log.head_seq, log.earliest_seq, log.evict_floor) == (9, 10, 10)
    assert told(log, 0) == (1, 9, "lost", 6)


def test_a_hole_in_a_topic_without_records_is_passed_at_once() -> None:
    log = TopicLog()
    log.add_hole(1, 5, "lost")
    assert (log.head_seq, log.earliest_seq, log.evict_floor) == (5, 6, 6)
    assert told(log, 0) == (1, 5, "lost", 5)
    log.extend(extent(6, 1))
    assert steps(log, 5) == [Run(6, 6)]


def test_the_front_passes_a_hole_when_what_was_before_it_is_deleted() -> None:
    log = log_of(10)
    log.add_hole(11, 20, "source_trim")
    log.extend(extent(21, 10))
    log.delete_seqs([22])
    log.delete_below(22, 30)
    assert (log.earliest_seq, log.evict_floor) == (23, 21)
    assert told(log, 0) == (1, 22, "source_trim", 10)
    assert told(log, 15) == (16, 22, "source_trim", 5)
    assert told(log, 20) is None


def test_an_eviction_over_a_hole_has_both_reasons() -> None:
    log = log_of(5)
    log.add_hole(6, 6, "corrupt")
    log.extend(extent(7, 5))
    log.evict_below(9, "cap")
    assert told(log, 0) == (1, 8, "mixed", 8)
    assert told(log, 6) == (7, 8, "cap", 2)


def test_damage_inside_takes_records_but_no_deletions() -> None:
    log = log_of(10)
    log.delete_seqs([3, 5, 8])
    log.add_hole(3, 8, "corrupt")
    assert steps(log) == [Run(1, 2), Gap(4, 7, "corrupt", 3), Run(9, 10)]
    assert (log.count, log.bytes) == (4, 40)
    log.add_hole(3, 8, "lost")
    assert steps(log) == [Run(1, 2), Gap(4, 7, "corrupt", 3), Run(9, 10)]
    log.check()


def test_damage_to_deleted_records_alone_is_no_hole() -> None:
    log = log_of(10)
    log.delete_seqs([3, 4, 5])
    log.add_hole(3, 5, "corrupt")
    assert steps(log) == [Run(1, 2), Run(6, 10)]


def test_an_ephemeral_restart_loses_everything() -> None:
    log = log_of(10)
    log.delete_below(3, 10)
    log.lose_all("lost")
    assert (log.head_seq, log.earliest_seq, log.evict_floor, log.count) == (10, 11, 11, 0)
    assert told(log, 0) == (1, 10, "lost", 8)


def test_a_record_expires_when_it_is_older_than_the_ttl_and_not_when_as_old() -> None:
    log = log_of(2, ts=1000)
    log.extend(extent(3, 2, ts=1100))
    assert log.expire(1500, 500) == 0
    assert log.expire(1501, 0) == 0
    assert log.expire(1501, 500) == 2
    assert told(log, 0) == (1, 2, "ttl", 2)
    assert log.expire(9999, 500) == 2
    assert log.earliest_seq == 5


@pytest.mark.parametrize(
    ("cap_records", "cap_bytes", "incoming", "watermark"),
    [
        (0, 0, [[10, 10]], 0),
        (10, 100, [], 0),
        (12, 0, [[1, 1]], 0),
        (10, 0, [[1, 1]], 3),
        (10, 0, [[1], [1, 1]], 4),
        (2, 0, [[1], [1, 1, 1]], 13),
        (1, 0, [[1, 1, 1, 1]], 14),
        (0, 100, [[10]], 2),
        (0, 100, [[1]], 2),
        (0, 100, [[11]], 3),
        (0, 15, [[10, 10], [10, 5]], 13),
        (0, 5, [[10, 10]], 13),
        (10, 95, [[10]], 3),
    ],
)
def test_the_watermark_is_what_makes_the_caps_hold_after_the_pending_are_published(
    cap_records: int, cap_bytes: int, incoming: list[list[int]], watermark: int
) -> None:
    batches = [array("I", sizes) for sizes in incoming]
    assert log_of(10).eviction_watermark(cap_records, cap_bytes, batches) == watermark


def test_deleted_records_count_towards_no_cap() -> None:
    log = log_of(10)
    log.delete_seqs([2, 3, 4])
    assert log.eviction_watermark(7, 70, []) == 0
    assert log.eviction_watermark(6, 0, []) == 2
    assert log.eviction_watermark(5, 0, []) == 6
    assert log.eviction_watermark(0, 50, []) == 6
    assert log.room(8, 80, 0, 0, 1, 10)
    assert not log.room(8, 80, 1, 0, 1, 10)
    assert not log.room(8, 80, 0, 1, 1, 10)


def test_frames_near_each_other_are_read_together() -> None:
    log = TopicLog()
    offsets = [0, 100, 4296, 8493, 9000]
    log.extend(Extent(1, 1, 3, offsets, array("I", [100] * 5), array("I", [9] * 5), bytes(5), None))
    found = [(part.file, part.offset, part.length, list(part.seqs), list(part.starts)) for part in log.locate(1, 5)]
    assert found == [(3, 0, 4396, [1, 2, 3], [0, 100, 4296]), (3, 8493, 607, [4, 5], [0, 507])]
    assert [part.length for part in log.locate(1, 2, max_range=150)] == [100, 100]
    log.delete_seqs([2])
    assert [list(part.seqs) for part in log.locate(1, 2)] == [[1]]


def test_what_has_no_place_is_located_once_it_has() -> None:
    log = TopicLog()
    log.extend(Extent(1, 1, 0, [0, 0], array("I", [7, 7]), array("I", [9, 9]), bytes(2), None))
    assert log.locate(1, 2) == []
    assert log.live_files() == set()
    log.evict_below(2, "cap")
    log.place(1, 4, [50, 57])
    assert [(part.file, part.offset, part.length) for part in log.locate(1, 2)] == [(4, 57, 7)]
    assert log.live_files() == {4}


def test_the_time_of_a_record_that_is_gone_is_a_key_error() -> None:
    log = log_of(3, ts=77)
    log.delete_seqs([2])
    assert log.ts_of(3) == 77
    for seq in (0, 2, 4):
        with pytest.raises(KeyError):
            log.ts_of(seq)


def test_matching_finds_live_records_within_its_bounds() -> None:
    log = log_of(6, tags=["a", "b", "ab", None, "a", "ab"])
    log.delete_seqs([3])
    assert list(log.matching(Match("a", prefix=True), before_seq=None, bound=6)) == [1, 5, 6]
    assert list(log.matching(Match("a", prefix=True), before_seq=6, bound=6)) == [1, 5]
    assert list(log.matching(Match("a", prefix=True), before_seq=None, bound=4)) == [1]
    assert list(log.matching(Match("a", prefix=True), before_seq=0, bound=6)) == []


def test_tags_of_gone_records_do_not_pile_up() -> None:
    log = TopicLog()
    for batch in range(200):
        log.extend(extent(batch * 50 + 1, 50, tags=[f"t{batch}-{i}" for i in range(50)]))
        log.evict_below(log.eviction_watermark(500, 0, []), "cap")
    assert log._tags is not None
    assert log._tags.postings <= 2 * 500
    log.check()


def test_a_large_deletion_is_tidied_up_in_slices() -> None:
    log = log_of(200_000, tags=[f"t{i}" for i in range(200_000)])
    log.delete_below(199_000, 200_000)
    slices = 0
    while log.tidy():
        slices += 1
    assert slices > 1
    assert log._tags is not None
    assert log._tags.postings < 2 * log.count
    log.check()


def test_no_more_than_32_bytes_of_index_a_record() -> None:
    columns = ("ts", "file", "offset", "frame_len", "size", "flags", "dead")
    for cap in (0, 60_000):
        log = TopicLog()
        for batch in range(100):
            log.extend(extent(batch * 1000 + 1, 1000))
            log.evict_below(log.eviction_watermark(cap, 0, []), "cap")
        total = sum(getattr(span, name).__sizeof__() for span in log._index.spans for name in columns)
        assert total <= 32 * log.count


def test_a_batch_larger_than_a_span_is_stored_whole() -> None:
    log = log_of(2 * record_index.SPAN_RECORDS + 5)
    assert log.step(0, 10**6) == Run(1, 2 * record_index.SPAN_RECORDS + 5)
    log.check()


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
