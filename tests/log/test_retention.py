"""Caps and ttl: what has to go so that they hold, found at the least cost."""

from __future__ import annotations

from array import array

import pytest

from tests.log.logs import caps, extent, log_of, told
from tests.log.stored_logs import checkpoint, spans_asked_for
from topics.log.retention import eviction_watermark, expire, has_room, watermark_beside


def test_a_record_expires_when_it_is_older_than_the_ttl_and_not_when_as_old() -> None:
    log = log_of(2, ts=1000)
    log.extend(extent(3, 2, ts=1100))
    assert expire(log, 1500, 500) == 0
    assert expire(log, 1501, 0) == 0
    assert expire(log, 1501, 500) == 2
    assert told(log, 0) == (1, 2, "ttl", 2)
    assert expire(log, 9999, 500) == 2
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
    assert eviction_watermark(log_of(10), caps(cap_records, cap_bytes), batches) == watermark


def test_deleted_records_count_towards_no_cap() -> None:
    log = log_of(10)
    log.delete_seqs([2, 3, 4])
    assert eviction_watermark(log, caps(7, 70), []) == 0
    assert eviction_watermark(log, caps(6, 0), []) == 2
    assert eviction_watermark(log, caps(5, 0), []) == 6
    assert eviction_watermark(log, caps(0, 50), []) == 6
    assert has_room(log, caps(8, 80), 0, 0, 1, 10)
    assert not has_room(log, caps(8, 80), 1, 0, 1, 10)
    assert not has_room(log, caps(8, 80), 0, 1, 1, 10)


def test_a_cap_on_records_is_found_by_counting_and_one_on_bytes_by_loading() -> None:
    log = log_of(40)
    checkpoint(log, 10, 10, 10, 10)
    assert eviction_watermark(log, caps(25, 0), []) == 16
    assert spans_asked_for(lambda: eviction_watermark(log, caps(0, 255), [])) == [11]


def test_times_of_whole_segments_are_in_their_summaries() -> None:
    log = log_of(10, ts=1000)
    log.extend(extent(11, 10, ts=2000))
    log.extend(extent(21, 10, ts=3000))
    driven = checkpoint(log, 15, 15)
    assert expire(log, 1600, 600) == 0
    assert spans_asked_for(lambda: expire(log, 1700, 600)) == [1]
    assert driven.do(lambda log: expire(log, 1700, 600)) == 10
    assert (log.earliest_seq, log.stored.all()[0].first_ts) == (11, 2000)
    log.stored.all()[0].detach()
    assert expire(log, 2600, 600) == 0
    assert driven.asked == [1]


def test_records_that_have_died_since_they_were_to_be_taken_away_make_no_room() -> None:
    """A commit of stages decides in slices what it takes away, and about caps later."""
    log = log_of(10)
    taken, sizes = array("Q", [1, 2, 5, 11]), array("I", [10] * 4)
    new = array("I", [10] * 3)
    assert watermark_beside(log, caps(9, 0), new, taken, sizes) == 0
    assert watermark_beside(log, caps(6, 0), new, taken, sizes) == 7
    log.evict_below(3, "ttl")
    log.add_hole(5, 5, "corrupt")
    log.delete_seqs([8])
    assert log.count == 6
    for config in (caps(6, 0), caps(0, 60)):
        watermark = watermark_beside(log, config, new, taken, sizes)
        assert watermark == 5, "3 and 4 go; 6, 7, 9, 10 and two new ones stay"
    assert watermark_beside(log, caps(8, 0), new, taken, sizes) == 0
