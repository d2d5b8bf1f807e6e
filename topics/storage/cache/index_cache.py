"""Columns and tags of stored spans in memory: one LRU for all topics, bounded in bytes (`docs/spec/storage.md` section
5).

What is in here can be dropped between any two steps of the loop: whoever needs it asks, uses it in the same step, and
asks again later. The newest entry always stays, however large it is, and so does what is being gathered for an
operation that needs several spans at once (`gathering`): otherwise one would drop the other for ever.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from topics.log.span import Span
from topics.storage.segments.tags_format import SegmentTags
from topics.storage.segments.topic_segments import Segment

SHARE: Final = 8
LEAST_BYTES: Final = 4 << 20
"""An eighth of `TOPICS_CACHE_BYTES`, but at least 4 MiB: the columns of some 20 full segments."""


class IndexCache:
    """See the module."""

    def __init__(self, cache_bytes: int) -> None:
        self._max_bytes = max(cache_bytes // SHARE, LEAST_BYTES)
        self._columns: OrderedDict[Span, int] = OrderedDict()
        self._tags: OrderedDict[Segment, SegmentTags] = OrderedDict()
        self._gathered: Counter[Span] = Counter()
        self.bytes = 0

    @contextmanager
    def gathering(self, spans: Sequence[Span]) -> Iterator[None]:
        """None of these is dropped while they are loaded one after the other. What is too much goes with the next
        one that is added."""
        self._gathered.update(spans)
        try:
            yield
        finally:
            self._gathered.subtract(spans)
            self._gathered = +self._gathered

    def add_columns(self, span: Span) -> None:
        """A span is loaded, or has grown."""
        self.forget_columns(span)
        size = span.column_bytes
        self._columns[span] = size
        self.bytes += size
        kept = []
        while self.bytes > self._max_bytes and len(self._columns) > 1:
            oldest, freed = self._columns.popitem(last=False)
            if oldest in self._gathered:
                kept.append((oldest, freed))
                continue
            self.bytes -= freed
            oldest.detach()
        for oldest, size in reversed(kept):
            self._columns[oldest] = size
            self._columns.move_to_end(oldest, last=False)

    def use_columns(self, span: Span) -> None:
        """A loaded span was read."""
        if span in self._columns:
            self._columns.move_to_end(span)

    def forget_columns(self, span: Span) -> None:
        """The span is gone, or not loaded any more."""
        known = self._columns.pop(span, None)
        if known is not None:
            self.bytes -= known

    def tags(self, segment: Segment) -> SegmentTags | None:
        """The tags of a sealed segment, if they are here."""
        found = self._tags.get(segment)
        if found is not None:
            self._tags.move_to_end(segment)
        return found

    def add_tags(self, segment: Segment, tags: SegmentTags) -> None:
        """The tags of a sealed segment were loaded."""
        self.forget_tags(segment)
        self._tags[segment] = tags
        self.bytes += tags.nbytes
        while self.bytes > self._max_bytes and len(self._tags) > 1:
            _, freed = self._tags.popitem(last=False)
            self.bytes -= freed.nbytes

    def forget_tags(self, segment: Segment) -> None:
        """The segment is gone."""
        known = self._tags.pop(segment, None)
        if known is not None:
            self.bytes -= known.nbytes
