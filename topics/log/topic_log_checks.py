"""The invariants of a `TopicLog` that cost a step per span, hole or run, and those of a span. Pure."""

from __future__ import annotations

from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

from topics.log.span import DELETED, Span

if TYPE_CHECKING:
    from topics.log.topic_log import TopicLog


def check_frame(log: TopicLog) -> None:
    """Assert the invariants that cost a step per span, hole or run."""
    if _is_plain(log):
        return
    spans = log.index.spans
    assert log.count == sum(span.live for span in spans), "count"
    assert log.bytes == sum(span.bytes for span in spans), "bytes"
    first = spans[0].first + spans[0].start if spans else log.head_seq + 1
    assert log.earliest_seq == first, "slots below the front, or none at it"
    assert not spans or not log.front_is_gone(), "earliest_seq is not live"
    assert not spans or (spans[-1].end <= log.head_seq + 1 and spans[-1].last_ts <= log.last_ts), "spans past the head"
    log.index.check()
    assert 1 <= log.tags.known_from <= max(log.stored.last_seq + 1, log.earliest_seq), "tags of raw records"
    log.losses.check(log.earliest_seq, log.head_seq)
    log.tags.check_counts()


def _is_plain(log: TopicLog) -> bool:
    """Return True if the invariants obviously hold: one stored span up to the head, or no span and no record, and
    nothing was ever lost or deleted. A start checks up to a hundred thousand such topics."""
    spans = log.index.spans
    if len(spans) > 1 or log.tags.index or not log.losses.nothing:
        return False
    if not spans:
        return log.head_seq == 0 and log.earliest_seq == 1 and log.count == 0 == log.bytes
    span = spans[0]
    return (
        span.stored
        and span.start == 0
        and span.live == span.n == log.count
        and span.bytes == log.bytes
        and span.first == 1 == log.earliest_seq
        and span.n == log.head_seq
        and span.last_ts <= log.last_ts
        and span.unindexed == span.tagged
        and log.tags.known_from == span.n + 1
    )


def check_span(span: Span) -> None:
    """Assert that the columns of a span, if they are loaded, agree with the summary and with one another."""
    unflagged = span.unflagged or array("Q")
    assert all(span.first <= seq < span.end for seq in unflagged), "unflagged seq of another span"
    assert len(set(unflagged)) == len(unflagged), "unflagged twice"
    assert span.stored or not unflagged, "raw and unflagged"
    if not span.loaded:
        assert not any((span.ts, span.offset, span.frame_len, span.size, span.flags, span.dead)), "half loaded"
        assert not span.file, "half loaded"
        assert span.stored or span.deleted == span.n, "bare, and not deleted"
        return
    columns = (span.ts, span.offset, span.frame_len, span.size, span.flags, span.dead)
    assert all(len(column) == span.n for column in columns), "columns differ in length"
    assert len(span.file) == (0 if span.stored else span.n), "file column"
    kept = (*span.summary(), span.unindexed)
    span.recount()
    assert kept == (*span.summary(), span.unindexed), kept
    assert all(a <= b for a, b in pairwise(span.ts)), "time goes back"
    assert (span.first_ts, span.last_ts) == (span.ts[span.start], span.ts[-1]), "times of the summary"
    assert not any(size for size, dead in zip(span.size, span.dead, strict=True) if dead and size)
    assert all(span.dead[seq - span.first] == DELETED for seq in unflagged), "unflagged and not deleted"
