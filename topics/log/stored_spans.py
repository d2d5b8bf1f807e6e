"""The stored spans of a topic: which slots are in segments, and how raw slots become stored ones.

    raw -- capture_raw, written to a segment, store --> stored, loaded <-- detach, attach --> stored, not loaded

Records may die between capture and `store`. `store` takes the current states and notes which records the file still has
as live; `TopicLog.attach` reconciles the states in a file with those in memory, in both directions.

Nothing here changes which records are live, and nothing needs columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from topics.log.record_index import RecordIndex
from topics.log.span import Span


class StoredSpans:
    """The first `n_stored` spans of a `RecordIndex`, one per segment."""

    __slots__ = ("_index",)

    def __init__(self, index: RecordIndex) -> None:
        self._index = index

    @property
    def last_seq(self) -> int:
        """The last seq of the last stored span, 0 without any. All raw slots are above it."""
        index = self._index
        return index.spans[index.n_stored - 1].end - 1 if index.n_stored else 0

    def all(self) -> list[Span]:
        """Return the stored spans, ascending. Callers only read them; `TopicLog.attach`, the methods below and the
        methods that a `Span` offers to the storage layer change them."""
        return self._index.spans[: self._index.n_stored]

    def at(self, seq: int) -> Span | None:
        """The stored span that has a slot for `seq`, live or not; None if there is none (any more)."""
        slot = self._index.at(seq)
        return slot[0] if slot is not None and slot[0].stored else None

    def holds(self, span: Span) -> bool:
        """Return True if the span is still one of these spans."""
        index = self._index
        k = index.span_at(span.first)
        return 0 <= k < index.n_stored and index.spans[k] is span

    def store(
        self, first: int, n: int, segment: object, offsets: array[int], frame_lens: array[int], *, was_dead: bytes
    ) -> None:
        """Turn the raw slots `first` to `first + n - 1`, as they were captured, into slots stored in `segment`.

        `offsets` and `frame_lens` (bytes) are their places in it, `was_dead` their states at capture; seqs deleted
        since are added to `Span.unflagged`. If the last stored span is of this segment and ends before `first`, it
        grows; otherwise a new, loaded span begins. Slots that were dropped since keep their places in the span; if all
        were, there is no span. Must be called in ascending order, from the first raw slot on.
        """
        assert n == len(offsets) == len(frame_lens) == len(was_dead)
        index = self._index
        spans, k = index.spans, index.n_stored
        end = first + n
        # Only slots that are still there: those dropped since capture are in no span any more.
        begin = spans[k].first + spans[k].start if k < len(spans) else end
        assert k == 0 or first > self.last_seq, (first, self.last_seq)
        if begin >= end:
            return
        assert begin == first or (begin > first and k == 0), "only the front is dropped"
        span = spans[k - 1] if k else None
        if span is None or span.segment is not segment or span.end != first:
            span = Span(first, stored=True)
            span.segment = segment
            dropped = max(0, begin - first)
            if dropped:
                raw = spans[k]
                span.pad(dropped, raw.ts[raw.start], offsets[:dropped], frame_lens[:dropped])
            spans.insert(k, span)
            index.n_stored = k = k + 1
        emptied = k
        while span.end < end:
            raw = spans[emptied]
            at, to = span.end - first, min(raw.end, end) - first
            assert raw.first + raw.start == span.end, "a segment is about contiguous seqs"
            span.take(raw, first + to - raw.first, offsets[at:to], frame_lens[at:to], was_dead[at:to])
            emptied += raw.end == span.end
        del spans[k:emptied]

    def replace(self, first: int, last: int, segment: object) -> Span:
        """Replace the spans that cover exactly `first` to `last` by one in `segment`, not loaded, and return it.

        Only the first of them may have dropped slots.
        """
        index = self._index
        k = index.span_at(first)
        to = index.span_at(last) + 1
        old = index.spans[k:to] if k >= 0 else []
        assert old, "no span there"
        assert to <= index.n_stored, "not stored"
        assert old[0].first == first, (old[0].first, first)
        assert old[-1].end == last + 1, (old[-1].end, last)
        assert all(a.end == b.first and b.start == 0 for a, b in pairwise(old))
        span = _joined(old)
        span.segment = segment
        index.spans[k:to] = [span]
        index.n_stored -= len(old) - 1
        return span


def _joined(parts: Sequence[Span]) -> Span:
    """Return one span, not loaded, in place of stored ones that follow one another."""
    first, last = parts[0], parts[-1]
    span = Span(first.first, stored=True)
    span.n = last.end - first.first
    span.start = first.start
    span.first_ts, span.last_ts = first.first_ts, last.last_ts
    span.live, span.lost = sum(part.live for part in parts), sum(part.lost for part in parts)
    span.bytes, span.tagged = sum(part.bytes for part in parts), sum(part.tagged for part in parts)
    span.unindexed = sum(part.unindexed for part in parts)
    span.tags_from = max(part.tags_from for part in parts)
    unflagged = array("Q")
    for part in parts:
        unflagged += part.unflagged or array("Q")
    span.unflagged = unflagged or None
    span.detach()
    return span
