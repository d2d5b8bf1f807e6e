"""The dump of what is stored, made complete with what is being stored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.log.logs import extent, log_of
from tests.log.stored_logs import checkpoint
from topics.log.dumped_spans import grow_dump, set_unflagged, summary_first
from topics.log.span import SpanSummary
from topics.log.topic_log import TopicLog


def test_the_dump_of_what_is_stored_is_complete_with_what_is_being_stored() -> None:
    log = log_of(10)
    driven = checkpoint(log)
    driven.delete_seqs([4])
    log.extend(extent(11, 10, tags=["a"] * 10))
    log.delete_seqs([15])
    part = log.dump(raw=False)
    (run,) = log.index.capture_raw(20)
    grow_dump(part["spans"], run, 0, 3, new=False)
    grow_dump(part["spans"], run, 3, 10, new=True)
    assert [summary_first(dumped) for dumped in part["spans"]] == [1, 14]
    loaded = TopicLog.load(part)
    assert (loaded.count, loaded.bytes, loaded.tags.known_from, loaded.stored.last_seq) == (18, 180, 21, 20)
    assert [list(span.unflagged or ()) for span in loaded.stored.all()] == [[4], []]
    set_unflagged(part["spans"][0], [5, 6])
    assert list(TopicLog.load(part).stored.all()[0].unflagged or ()) == [5, 6]
    set_unflagged(part["spans"][0], [])
    assert TopicLog.load(part).stored.all()[0].unflagged is None


@pytest.mark.parametrize(
    "change",
    [
        {"n": 0},
        {"n": 11},
        {"start": 10},
        {"start": 1},
        {"live": 11},
        {"live": 0},
        {"lost": 3},
        {"lost": -1},
        {"tagged": 9},
        {"first_ts": 1001},
        {"last_ts": 2001},
        {"first": 2},
        {"first": "x"},
        {"unflagged": b"x"},
        {"unflagged": (11).to_bytes(8, "little")},
        {"unflagged": 2 * (3).to_bytes(8, "little")},
    ],
)
def test_a_stored_span_that_contradicts_itself_does_not_load(change: dict[str, Any]) -> None:
    log = log_of(10)
    log.delete_seqs([3, 4])
    checkpoint(log)
    log.extend(extent(11, 2, ts=2000))
    dumped = log.dump()
    mark, *values = dumped["spans"][0]
    names = [*SpanSummary._fields, "unflagged"]
    assert TopicLog.load(dumped).dump() == dumped
    damaged = dict(zip(names, values, strict=True)) | change
    with pytest.raises(ValueError):  # noqa: PT011
        TopicLog.load(dumped | {"spans": [[mark, *damaged.values()], *dumped["spans"][1:]]})
    with pytest.raises(ValueError, match="span"):
        TopicLog.load(dumped | {"spans": [*reversed(dumped["spans"])]})
