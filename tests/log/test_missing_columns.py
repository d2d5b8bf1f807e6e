"""Few calls need the columns of a stored span, and which ones those need is known beforehand."""

from __future__ import annotations

from tests.log.logs import extent, log_of, steps, told
from tests.log.stored_logs import checkpoint, spans_asked_for, state_of
from topics.log.frame_ranges import locate
from topics.log.losses import Gap
from topics.log.missing_columns import missing_below, missing_to_delete
from topics.log.topic_log import SeqRun


def test_a_dense_segment_is_read_without_columns_up_to_the_places_of_its_frames() -> None:
    log = log_of(30)
    driven = checkpoint(log, 10, 10, 10)
    assert steps(log) == [SeqRun(1, 30)]
    assert log.is_live(17)
    assert log.step(12, 5) == SeqRun(13, 17)
    assert spans_asked_for(lambda: locate(log.index, 15, 25)) == [11, 21]
    found = driven.do(lambda log: locate(log.index, 15, 25))
    assert [(part.file, list(part.seqs)) for part in found] == [
        (0, [15, 16, 17, 18, 19, 20]),
        (0, [21, 22, 23, 24, 25]),
    ]
    assert [part.segment for part in found] == [span.segment for span in log.stored.all()[1:]]


def test_a_segment_with_dead_records_is_loaded_to_be_read() -> None:
    log = log_of(30)
    log.delete_seqs([15])
    driven = checkpoint(log, 10, 10, 10)
    assert log.step(0, 8) == SeqRun(1, 8)
    assert spans_asked_for(lambda: log.step(0, 15)) == [11]
    assert driven.step(0, 100) == SeqRun(1, 14)
    assert driven.asked == [11]


def test_evicting_whole_segments_needs_no_columns() -> None:
    log = log_of(40)
    checkpoint(log, 10, 10, 10, 10)
    assert missing_below(log.index, 21) == ()
    assert log.evict_below(21, "cap") == 20
    assert (log.earliest_seq, log.losses.evict_floor, log.count, log.bytes) == (21, 21, 20, 200)
    assert log.evict_below(41, "cap") == 20
    assert log.stored.all() == []
    log.check()


def test_evicting_a_part_of_a_segment_asks_for_that_one_and_has_changed_nothing() -> None:
    log = log_of(40)
    driven = checkpoint(log, 10, 10, 10, 10)
    before = state_of(log)
    assert spans_asked_for(lambda: log.evict_below(25, "cap")) == [21]
    assert [span.first for span in missing_below(log.index, 25)] == [21]
    assert state_of(log) == before
    assert driven.evict_below(25, "cap") == 24
    assert (log.earliest_seq, log.losses.evict_floor, log.bytes) == (25, 25, 160)
    assert log.stored.all()[0].summary() == (21, 10, 4, 6, 0, 60, 0, 1000, 1000)
    assert driven.asked == [21]
    log.check()


def test_a_deletion_in_the_middle_asks_for_that_segment_only() -> None:
    log = log_of(40)
    driven = checkpoint(log, 10, 10, 10, 10)
    assert spans_asked_for(lambda: log.delete_seqs([25])) == [21]
    assert [span.first for span in missing_to_delete(log.index, [25, 35])] == [21, 31]
    assert driven.delete_seqs([25]) == 1
    assert driven.asked == [21]
    assert list(log.stored.all()[2].unflagged or ()) == [25]
    log.check()


def test_deleting_the_whole_front_segment_asks_for_what_the_new_front_takes() -> None:
    log = log_of(30)
    log.delete_seqs([12])
    driven = checkpoint(log, 10, 10, 10)
    assert [span.first for span in missing_to_delete(log.index, range(1, 11))] == [1, 11]
    assert driven.delete_seqs(range(1, 11)) == 10
    assert (log.earliest_seq, log.losses.evict_floor) == (11, 1)
    log.check()


def test_deleting_below_a_hole_needs_no_columns_and_the_estimate_stays_exact() -> None:
    log = log_of(20)
    log.delete_seqs([4, 15])
    log.add_hole(21, 200, "lost")
    log.extend(extent(201, 20))
    checkpoint(log, 10, 10, 10, 10)
    assert log.delete_below(201, 999) == 18
    assert (log.earliest_seq, log.losses.evict_floor) == (201, 201)
    assert told(log, 0) == (1, 200, "lost", 180)
    log.check()


def test_damage_to_a_whole_dense_segment_needs_no_columns() -> None:
    log = log_of(30)
    driven = checkpoint(log, 10, 10, 10)
    log.add_hole(11, 20, "corrupt")
    assert steps(log) == [SeqRun(1, 10), Gap(11, 20, "corrupt", 10), SeqRun(21, 30)]
    driven.load([log.stored.all()[1]])
    assert log.count == 20
    log.check()
