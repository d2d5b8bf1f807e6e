"""The "spans" of `TopicLog.dump(raw=False)`: a checkpoint adds to them the raw records that it stores in segments."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from topics.log.dumped_values import little_endian
from topics.log.record_index import RawRun
from topics.log.span import STORED_MARK, Span, SpanSummary


def grow_dump(spans: list[Any], run: RawRun, a: int, b: int, *, new: bool) -> None:
    """Add the stored slots `a` to `b` (exclusive) of a captured run to the "spans" of `dump(raw=False)`.

    They extend the last span there if they follow it and are not in a `new` segment; otherwise they begin a span.
    """
    span = Span(run.first + a)
    span.n = b - a
    span.dead, span.flags, span.size = bytearray(run.dead[a:b]), bytearray(run.flags[a:b]), run.size[a:b]
    span.first_ts, span.last_ts = run.ts[a], run.ts[b - 1]
    span.recount()
    more = span.summary()
    if not new and spans:
        mark, *fields, unflagged = spans[-1]
        last = SpanSummary(*fields)
        if last.first + last.n == more.first:
            grown = last._replace(
                n=last.n + more.n,
                live=last.live + more.live,
                lost=last.lost + more.lost,
                bytes=last.bytes + more.bytes,
                tagged=last.tagged + more.tagged,
                last_ts=more.last_ts,
            )
            spans[-1] = [mark, *grown, unflagged]
            return
    spans.append([STORED_MARK, *more, b""])


def summary_first(dumped: Sequence[Any]) -> int:
    """Return the first seq of a dumped stored span."""
    return SpanSummary(*dumped[1:-1]).first


def set_unflagged(dumped: list[Any], seqs: Sequence[int]) -> None:
    """Set the unflagged deletions of a dumped stored span to `seqs`."""
    dumped[-1] = little_endian(array("Q", seqs)) if seqs else b""
