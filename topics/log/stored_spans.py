"""The stored spans of a topic: which slots are in segments, and how raw ones get there.

    raw -- capture_raw, written to a segment, store --> stored, loaded <-- detach, attach --> stored, not loaded

Between capture and `store` records may die. `store` takes what they are by then and notes which of them the file has
as live; `TopicLog.attach` brings what a file says into line with what the log knows, in either direction.

Nothing in here changes which records there are, or asks for columns.
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
        """The stored spans, ascending. To be read; besides the methods below, `TopicLog.attach` changes them, and what
        a `Span` offers to the storage layer."""
        return self._index.spans[: self._index.n_stored]

    def at(self, seq: int) -> Span | None:
        """The stored span that has a slot for `seq`, live or not; None if there is none (any more)."""
        slot = self._index.at(seq)
        return slot[0] if slot is not None and slot[0].stored else None

    def holds(self, span: Span) -> bool:
        """Whether the span is still one of these."""
        index = self._index
        k = index.span_at(span.first)
        return 0 <= k < index.n_stored and index.spans[k] is span

    def store(
        self, first: int, n: int, segment: object, offsets: array[int], frame_lens: array[int], *, was_dead: bytes
    ) -> None:
        """The raw slots `first` to `first + n - 1`, as they were captured, are now in `segment`.

        `offsets` and `frame_lens` (bytes) are their places in it, `was_dead` their states at capture; what has been
        deleted since goes to `Span.unflagged`. If the last stored span is of this very segment and ends before `first`
        it grows, else there is a new one, loaded. Slots that were dropped meanwhile still have their place in the span;
        if all of them were, there is none. To be called in ascending order, from the first raw slot on.
        """
        assert n == len(offsets) == len(frame_lens) == len(was_dead)
        index = self._index
        spans, k = index.spans, index.n_stored
        end = first + n
        # Not beyond what is raw, and what was dropped before it is in no span any more.
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
        """The spans that cover exactly `first` to `last` are one from now on, in `segment` and not loaded.

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
    """One span, not loaded, of stored ones that follow one another."""
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
