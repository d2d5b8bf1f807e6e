"""Gives back the memory of deleted slots that are in memory only (`docs/design/latest.md` section 6).

Raw slots of an `ephemeral` topic never become stored ones, so the slots of a table would stay for as long as an older
record lives: 26 bytes for each overwritten record. A *bare* span stands for a run of such slots: raw, all of them
deleted, without columns. It takes some 300 bytes, and neighbours are joined.

A raw span is looked at when enough of its records were deleted, once it is not the last one any more. Long runs of
deleted slots are cut out of it. Shorter ones stay, so a live record keeps at most `LEAST_RUN` dead slots on each side.
"""

from __future__ import annotations

import re
from typing import Final

from topics.log.span import DELETED, Span

LEAST_RUN = 256
"""A run of fewer deleted slots stays: 6.6 KB, where the pieces around a run take 1.2 KB. Also after how many more
deletions a span is looked at again."""

MOST_JOINED = 1 << 20
"""Slots of a bare span, at most. Its columns take 26 bytes for each when they are made."""

_NO_FILE: Final = b"\0\0\0\0"


def is_due(span: Span) -> bool:
    """Return True if a raw span that is not the last one should be looked at."""
    return not span.stored and not span.is_bare and (not span.live or span.deleted - span.looked_at >= LEAST_RUN)


def cut_out(span: Span) -> list[Span] | None:
    """Return the spans that stand for a raw one without its long runs of deleted slots; None if it has none. Slots that
    the log has a place for stay."""
    span.looked_at = span.deleted
    if not span.live and not span.lost and _is_in_memory(span, span.start, span.n):
        return [_bare(span, span.start, span.n)]
    pieces, at = list[Span](), span.start
    for run in re.finditer(b"%c{%d,}" % (DELETED, LEAST_RUN), memoryview(span.dead)[span.start :]):
        a, b = run.start() + span.start, run.end() + span.start
        if not _is_in_memory(span, a, b):
            continue
        if at < a:
            pieces.append(span.piece(at, a))
        pieces.append(_bare(span, a, b))
        at = b
    if not pieces:
        return None
    if at < span.n:
        pieces.append(span.piece(at, span.n))
    return pieces


def joined(left: Span, right: Span) -> bool:
    """Join two bare spans that follow one another in the left one. Return False if they stay as they are."""
    if not left.is_bare or not right.is_bare or left.end != right.first or left.n + right.n > MOST_JOINED:
        return False
    left.n += right.n
    left.last_ts = right.last_ts
    return True


def _is_in_memory(span: Span, a: int, b: int) -> bool:
    """Return True if none of the slots `a` to `b` (exclusive) has a place in a file."""
    return span.file[a:b].tobytes() == _NO_FILE * (b - a)


def _bare(span: Span, a: int, b: int) -> Span:
    bare = Span(span.first + a)
    bare.n = b - a
    bare.first_ts, bare.last_ts = span.ts[a], span.ts[b - 1]
    bare.tags_from = span.tags_from
    bare.strip()
    return bare
