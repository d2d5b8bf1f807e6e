"""Which columns a call on a `RecordIndex` is going to need, found out before it changes anything.

A caller that knows its next steps asks `missing_below` or `missing_to_delete` and loads all those spans at once. A
caller that does not ask gets `NotLoaded`. The functions here need no columns themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from topics.log.record_index import RecordIndex
from topics.log.span import LIVE, NotLoaded, Span


def missing_below(index: RecordIndex, seq: int) -> tuple[Span, ...]:
    """Return the spans to load so that neither `TopicLog.evict_below(seq)` nor `delete_below(seq, ...)` raises
    NotLoaded.

    Their columns tell the last live record below `seq`, the first live one from `seq` on, and the live records before
    that one in its span. The answer may have more spans than the call turns out to need.
    """
    if not index.n_stored or seq <= index.spans[0].first + index.spans[0].start:
        return ()
    missing = _missing_before(index, seq)
    for span in _missing_from(index, seq):
        if span not in missing:
            missing.append(span)
    return tuple(missing)


def _missing_before(index: RecordIndex, seq: int) -> list[Span]:
    """Return the spans to load to find the last live record below `seq`, ascending."""
    missing = []
    for k in range(index.span_at(seq - 1), -1, -1):
        span = index.spans[k]
        if not span.live or seq <= span.first + span.start:
            continue
        if span.loaded:
            if span.dead.find(LIVE, span.start, seq - span.first) < 0:
                continue
            break
        if not span.dense or seq < span.end:
            missing.append(span)
        if span.dense or span.live > span.end - seq:
            break
    missing.reverse()
    return missing


def _missing_from(index: RecordIndex, seq: int) -> list[Span]:
    """Return the spans to load to find the first live record from `seq` on and the live ones before it in its span,
    ascending."""
    missing = []
    for k in range(max(0, index.span_at(seq)), len(index.spans)):
        span = index.spans[k]
        a = max(span.start, seq - span.first)
        if not span.live or a >= span.n:
            continue
        if span.loaded:
            if span.dead.find(LIVE, a) < 0:
                continue
            break
        if not span.dense or a > span.start:
            missing.append(span)
        if span.dense or span.live > a - span.start:
            break
    return missing


def missing_to_delete(index: RecordIndex, seqs: Sequence[int]) -> tuple[Span, ...]:
    """Return the spans to load so that `TopicLog.delete_seqs(seqs)` (ascending) does not raise NotLoaded: to delete the
    seqs and then to find the first live record. The answer may have one span too many."""
    if not index.n_stored:
        return ()
    missing = []
    named: dict[Span, int] = {}
    for span, at, to in index.touched(seqs):
        named[span] = to - at
        if span.live and not span.loaded:
            missing.append(span)
    for span in index.spans if index.spans[0] in named else ():
        if not span.live:
            continue
        if span not in named:
            if not span.dense and not span.loaded:
                missing.append(span)
            break
        if span.live > named[span]:
            break
    return tuple(missing)


def missing_to_take_away(index: RecordIndex, seqs: Sequence[int]) -> tuple[Span, ...]:
    """Return the spans to load so that `TopicLog.take_away(seqs, ...)` (ascending, from the first live seq on) does not
    raise NotLoaded: to find the first live record, if the present one is among them."""
    if not index.n_stored or not seqs or seqs[0] > index.spans[0].first + index.spans[0].start:
        return ()
    named = {span: seqs[at:to] for span, at, to in index.touched(seqs)}
    for span in index.spans:
        dying: Sequence[int] = named.get(span, ())
        if span.loaded:
            dying = [seq for seq in dying if span.dead[seq - span.first] == LIVE]
        if span.live > len(dying):
            return () if span.loaded or (span.dense and not dying) else (span,)
    return ()


def need_to_drop(index: RecordIndex, seq: int) -> None:
    """Raise NotLoaded if `RecordIndex.drop_below(seq)` needs columns that are not loaded."""
    slot = index.at(seq)
    if slot is not None and slot[1] > slot[0].start:
        slot[0].need()


def need_to_lose(index: RecordIndex, ranges: Sequence[tuple[int, int]]) -> None:
    """Raise NotLoaded if `RecordIndex.lose` needs, for these ranges (half open), columns that are not loaded."""
    missing = {
        span: None
        for lo, hi in ranges
        for span, a, b in index.parts(lo, hi)
        if span.live and not span.loaded and (a > span.start or b < span.n)
    }
    if missing:
        raise NotLoaded(tuple(missing))
