"""Which bytes are read for a run of records."""

from __future__ import annotations

from array import array

import pytest

from tests.log.logs import log_of
from tests.log.stored_logs import checkpoint
from topics.log.frame_ranges import locate
from topics.log.span import NotLoaded
from topics.log.topic_log import Extent, TopicLog


def test_frames_near_each_other_are_read_together() -> None:
    log = TopicLog()
    offsets = [0, 100, 4296, 8493, 9000]
    log.extend(Extent(1, 1, 3, offsets, array("I", [100] * 5), array("I", [9] * 5), bytes(5), None))
    found = [
        (part.file, part.offset, part.length, list(part.seqs), list(part.starts)) for part in locate(log.index, 1, 5)
    ]
    assert found == [(3, 0, 4396, [1, 2, 3], [0, 100, 4296]), (3, 8493, 607, [4, 5], [0, 507])]
    assert [part.length for part in locate(log.index, 1, 2, max_range=150)] == [100, 100]
    log.delete_seqs([2])
    assert [list(part.seqs) for part in locate(log.index, 1, 2)] == [[1]]


def test_what_has_no_place_is_located_once_it_has() -> None:
    log = TopicLog()
    log.extend(Extent(1, 1, 0, [0, 0], array("I", [7, 7]), array("I", [9, 9]), bytes(2), None))
    assert locate(log.index, 1, 2) == []
    log.evict_below(2, "cap")
    log.index.place(1, 4, [50, 57])
    assert [(part.file, part.offset, part.length) for part in locate(log.index, 1, 2)] == [(4, 57, 7)]


def test_a_call_that_asks_says_for_what() -> None:
    log = log_of(20)
    checkpoint(log, 10, 10)
    with pytest.raises(NotLoaded, match=r"columns of \[1, 10\], \[11, 20\]"):
        locate(log.index, 1, 20)
