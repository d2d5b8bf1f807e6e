"""What is remembered of what a topic lost, and which reason a reader is told (`docs/spec/semantics.md` section 3)."""

from __future__ import annotations

import pytest

from tests.log.logs import extent, log_of, told
from tests.log.stored_logs import checkpoint
from topics.log import losses
from topics.log.losses import Gap
from topics.log.record_index import RecordIndex


def test_an_eviction_is_announced_to_those_who_had_less() -> None:
    log = log_of(10)
    assert log.evict_below(5, "cap") == 4
    assert (log.earliest_seq, log.losses.evict_floor) == (5, 5)
    assert told(log, 0) == (1, 4, "cap", 4)
    assert told(log, 3) == (4, 4, "cap", 1)
    assert told(log, 4) is None


def test_deleted_slots_below_a_watermark_are_nobodys_loss() -> None:
    log = log_of(10)
    log.delete_seqs([4, 5, 6])
    assert log.evict_below(6, "cap") == 3
    assert (log.earliest_seq, log.losses.evict_floor) == (7, 4)
    assert told(log, 2) == (3, 6, "cap", 1)
    assert told(log, 3) is None


def test_an_eviction_below_which_everything_was_deleted_moves_no_floor() -> None:
    log = log_of(10)
    log.delete_below(5, 10)
    assert log.evict_below(5, "cap") == 0
    assert log.losses.evict_floor == 1


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
    assert (log.earliest_seq, log.losses.evict_floor) == (13, 10)
    assert told(log, 0) == (1, 12, "cap", 4)


def test_the_oldest_known_deletions_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_DELETED_RUNS", 2)
    log = log_of(20)
    log.delete_seqs([2, 4, 6, 8])
    log.evict_below(10, "cap")
    assert told(log, 0) == (1, 9, "cap", 7)
    assert told(log, 5) == (6, 9, "cap", 2)


def test_a_topic_that_lost_nothing_remembers_nothing() -> None:
    log = log_of(2000)
    log.delete_seqs(range(2, 2000, 2))
    log.delete_below(1900, 2000)
    assert log.losses._causes is None
    assert log.losses._deleted is None
    assert log.losses.holes is None
    assert log.tags.index is None


def test_deletions_in_a_segment_that_is_evicted_unloaded_may_count_as_missed() -> None:
    for unload, missed in ((False, 18), (True, 20)):
        log = log_of(30)
        log.delete_seqs([4, 5])
        driven = checkpoint(log, 10, 10, 10)
        if not unload:
            driven.load(log.stored.all())
        assert log.evict_below(21, "cap") == 18
        assert told(log, 0) == (1, 20, "cap", missed)


def test_an_eviction_over_a_hole_has_both_reasons() -> None:
    log = log_of(5)
    log.add_hole(6, 6, "corrupt")
    log.extend(extent(7, 5))
    log.evict_below(9, "cap")
    assert told(log, 0) == (1, 8, "mixed", 8)
    assert told(log, 6) == (7, 8, "cap", 2)


def test_holes_that_touch_are_one_if_they_have_one_reason() -> None:
    lost = losses.Losses(RecordIndex())
    assert lost.nothing
    lost.add_hole(5, 6, "lost")
    lost.add_hole(9, 9, "corrupt")
    lost.add_hole(7, 8, "lost")
    assert lost.holes == [(5, 8, "lost"), (9, 9, "corrupt")]
    assert lost.outside_holes(1, 12) == [(1, 4), (10, 12)]
    assert lost.inside_holes(6, 20) == [(6, 8), (9, 9)]
    assert lost.outside_holes(6, 9) == []
    assert not lost.nothing


def test_the_gap_at_a_hole_is_what_is_left_of_it() -> None:
    lost = losses.Losses(RecordIndex())
    lost.add_hole(5, 8, "lost")
    assert lost.gap_at(2, 3) is None
    assert lost.gap_at(4, 9) == Gap(5, 8, "lost", 4)
    assert lost.gap_at(7, None) == Gap(7, 8, "lost", 2)
    assert lost.gap_at(9, None) is None


def test_a_front_that_passes_holes_leaves_their_reasons_behind() -> None:
    lost = losses.Losses(RecordIndex())
    lost.add_hole(5, 8, "lost")
    lost.add_hole(12, 12, "corrupt")
    lost.move_front(1, 10, None, 0)
    assert (lost.evict_floor, lost.reason_from(3), lost.deleted_below(10, 1)) == (9, "lost", 5)
    lost.move_front(10, 15, "cap", 14)
    assert (lost.evict_floor, lost.holes) == (15, None)
    assert [lost.reason_from(first) for first in (8, 9, 13)] == ["mixed", "mixed", "cap"]
    assert losses.Losses.load(lost.dump() | {"evict_floor": 15}, RecordIndex()).dump() == lost.dump()


def test_each_missing_record_has_the_reason_why_it_is_missing() -> None:
    log = log_of(12)
    log.delete_seqs([2, 6, 9])
    log.add_hole(5, 7, "corrupt")
    log.add_hole(13, 14, "lost")
    reasons = [log.losses.why_missing(seq, log.earliest_seq) for seq in (2, 5, 6, 7, 9, 13, 14)]
    assert reasons == ["deleted", "corrupt", "deleted", "corrupt", "deleted", "lost", "lost"]
    log.evict_below(4, "ttl")
    log.evict_below(9, "cap")
    reasons = [log.losses.why_missing(seq, log.earliest_seq) for seq in range(1, 10)]
    assert reasons == ["ttl", "deleted", "ttl", "corrupt", "corrupt", "deleted", "corrupt", "cap", "deleted"]
