"""Columns and tags of stored spans in memory: one LRU for all topics, bounded in bytes (`docs/spec/storage.md` section
5).

An entry may be dropped between any two steps of the loop: callers ask for it, use it in the same step, and ask again
later. The newest entry always stays, however large it is, and so do the spans that are loaded together for one
operation (`gathering`): otherwise loading one would drop another for ever.
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
"""The bound is a `SHARE`th of `TOPICS_CACHE_BYTES`, but at least 4 MiB: the columns of some 20 full segments. Beyond it
the least recently used entries are dropped."""


class IndexCache:
    """The loaded columns and tags of all topics. Made once by the engine. Adding an entry may drop others, at once."""

    def __init__(self, cache_bytes: int) -> None:
        self._max_bytes = max(cache_bytes // SHARE, LEAST_BYTES)
        self._columns: OrderedDict[Span, int] = OrderedDict()
        self._tags: OrderedDict[Segment, SegmentTags] = OrderedDict()
        self._gathered: Counter[Span] = Counter()
        self.bytes = 0

    @contextmanager
    def gathering(self, spans: Sequence[Span]) -> Iterator[None]:
        """Keep these spans while they are loaded one after the other. Entries beyond the bound are dropped with the
        next one that is added."""
        self._gathered.update(spans)
        try:
            yield
        finally:
            self._gathered.subtract(spans)
            self._gathered = +self._gathered

    def add_columns(self, span: Span) -> None:
        """Count a span that was loaded, or has grown."""
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
        """Note that a loaded span was read."""
        if span in self._columns:
            self._columns.move_to_end(span)

    def forget_columns(self, span: Span) -> None:
        """Forget a span that is gone, or not loaded any more."""
        known = self._columns.pop(span, None)
        if known is not None:
            self.bytes -= known

    def tags(self, segment: Segment) -> SegmentTags | None:
        """Return the tags of a sealed segment if they are cached, else None."""
        found = self._tags.get(segment)
        if found is not None:
            self._tags.move_to_end(segment)
        return found

    def add_tags(self, segment: Segment, tags: SegmentTags) -> None:
        """Cache the tags of a sealed segment."""
        self.forget_tags(segment)
        self._tags[segment] = tags
        self.bytes += tags.nbytes
        while self.bytes > self._max_bytes and len(self._tags) > 1:
            _, freed = self._tags.popitem(last=False)
            self.bytes -= freed.nbytes

    def forget_tags(self, segment: Segment) -> None:
        """Forget a segment that is gone."""
        known = self._tags.pop(segment, None)
        if known is not None:
            self.bytes -= known.nbytes
