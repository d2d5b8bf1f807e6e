"""How records get into segments, and what happens when files and log say different things of them."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from tests.log.logs import log_of, steps, told
from tests.log.stored_logs import Disk, Driven, Segment, checkpoint, spans_asked_for, state_of
from topics.log.frame_ranges import locate
from topics.log.losses import Gap
from topics.log.span import LOST
from topics.log.topic_log import SeqRun


def test_what_a_hole_took_stays_lost_when_the_columns_come_back() -> None:
    log = log_of(20)
    driven = checkpoint(log, 10, 10)
    driven.add_hole(4, 6, "corrupt")
    log.stored.all()[0].detach()
    assert driven.step(0, 100) == SeqRun(1, 3)
    assert log.stored.all()[0].columns().dead == bytes([0, 0, 0, LOST, LOST, LOST, 0, 0, 0, 0])
    log.check()


def test_a_deletion_on_disk_that_the_summary_does_not_know_is_reconciled() -> None:
    log = log_of(20, tags=["a"] * 20)
    driven = checkpoint(log, 10, 10)
    driven.disk.flag([1, 2, 5])
    span = log.stored.all()[0]
    assert log.attach(span, driven.disk.columns(span))
    assert (log.count, log.bytes, log.earliest_seq, log.losses.evict_floor) == (17, 170, 3, 1)
    assert steps(log) == [SeqRun(3, 4), SeqRun(6, 20)]
    assert not log.attach(span, driven.disk.columns(span)), "it is loaded"
    log.check()


def test_a_front_that_is_gone_on_disk_waits_for_the_segment_with_the_next_one() -> None:
    log = log_of(30)
    log.delete_seqs([12])
    driven = checkpoint(log, 10, 10, 10)
    driven.disk.flag([*range(1, 11), 11])
    first, second, _ = log.stored.all()
    before = state_of(log)
    assert spans_asked_for(lambda: log.attach(first, driven.disk.columns(first))) == [11]
    assert state_of(log) == before
    assert not first.loaded
    assert log.attach(second, driven.disk.columns(second))
    assert (log.count, log.earliest_seq) == (28, 1)
    assert log.attach(first, driven.disk.columns(first))
    assert (log.count, log.earliest_seq, log.losses.evict_floor) == (18, 13, 1)
    assert not log.stored.holds(first)
    assert not log.attach(first, driven.disk.columns(first)), "it is not of this log any more"
    log.check()


def test_what_is_lost_on_disk_without_a_hole_becomes_one() -> None:
    log = log_of(20)
    driven = checkpoint(log, 10, 10)
    for seq in (1, 15, 16):
        driven.disk.slots[seq] = driven.disk.slots[seq]._replace(dead=LOST)
    for span in log.stored.all():
        assert log.attach(span, driven.disk.columns(span))
    assert told(log, 0) == (1, 1, "corrupt", 1)
    assert steps(log) == [SeqRun(2, 14), Gap(15, 16, "corrupt", 2), SeqRun(17, 20)]
    log.check()


@pytest.mark.parametrize("change", [{"ts": array("Q", [1])}, {"dead": bytes([3] * 10)}, {"flags": b""}])
def test_columns_that_cannot_be_those_of_the_span_are_refused(change: dict[str, Any]) -> None:
    log = log_of(10)
    driven = checkpoint(log)
    span = log.stored.all()[0]
    with pytest.raises(ValueError, match="columns of span"):
        log.attach(span, driven.disk.columns(span)._replace(**change))
    assert not span.loaded


def test_what_died_between_capture_and_store_is_not_forgotten() -> None:
    log = log_of(10)
    log.delete_seqs([3])
    driven = Driven(log, Disk())
    (run,) = log.index.capture_raw(10)
    log.delete_seqs([5, 6])
    log.add_hole(8, 8, "corrupt")
    offsets, lens = driven.disk.write(run, 0, 10)
    log.stored.store(1, 10, Segment(), offsets, lens, was_dead=run.dead)
    span = log.stored.all()[0]
    assert list(span.unflagged or ()) == [5, 6]
    span.detach()
    driven.load([span])
    log.check()
    driven.disk.flag([5])
    span.flagged([5])
    assert list(span.unflagged or ()) == [6]
    span.flagged([6])
    assert span.unflagged is None


def test_what_was_dropped_between_capture_and_store_keeps_its_place_in_the_span() -> None:
    log = log_of(10)
    driven = Driven(log, Disk())
    (run,) = log.index.capture_raw(10)
    offsets, lens = driven.disk.write(run, 0, 10)
    log.evict_below(5, "cap")
    log.stored.store(1, 3, Segment(), offsets[:3], lens[:3], was_dead=run.dead[:3])
    assert log.stored.all() == []
    segment = Segment()
    log.stored.store(4, 4, segment, offsets[3:7], lens[3:7], was_dead=run.dead[3:7])
    (span,) = log.stored.all()
    assert span.summary() == (4, 4, 1, 3, 0, 30, 0, 1000, 1000)
    assert span.segment is segment
    log.check()
    span.detach()
    driven.load([span])
    assert [list(part.seqs) for part in locate(log.index, 1, 7)] == [[5, 6, 7]]
    log.check()


def test_an_unloaded_segment_grows_by_its_summary() -> None:
    log = log_of(10, tags=["a"] * 10)
    driven = Driven(log, Disk())
    segment = Segment()
    for run in [*log.index.capture_raw(4), *log.index.capture_raw(10)]:
        a = log.stored.last_seq + 1 - run.first
        n = len(run.dead) - a
        offsets, lens = driven.disk.write(run, a, a + n)
        log.stored.store(run.first + a, n, segment, offsets, lens, was_dead=run.dead[a:])
        log.stored.all()[0].detach()
    (span,) = log.stored.all()
    assert span.summary() == (1, 10, 0, 10, 0, 100, 10, 1000, 1000)
    driven.load([span])
    log.check()


def test_segments_that_become_one_are_one_span() -> None:
    log = log_of(30)
    driven = checkpoint(log, 10, 10, 10)
    driven.delete_seqs([3, 13])
    driven.evict_below(3, "cap")
    segment = Segment()
    span = log.stored.replace(1, 20, segment)
    assert span.summary() == (1, 20, 3, 16, 0, 160, 0, 1000, 1000)
    assert (span.segment, span.loaded, sorted(span.unflagged or ())) == (segment, False, [3, 13])
    log.check()
    driven.load([span])
    assert steps(log, 3) == [SeqRun(4, 12), SeqRun(14, 30)]
    log.check()
