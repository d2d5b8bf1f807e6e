"""Columns and tags of stored spans in memory: one LRU for all topics, bounded in bytes (`docs/spec/storage.md` section
5).

An entry may be dropped between any two steps of the loop: callers ask for it, use it in the same step, and ask again
later. The newest entry always stays, however large it is. The spans that are loaded together for one operation stay too
(`gathering`); otherwise loading one of them would drop another, for ever.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from topics.log.span import Span
from topics.storage.segments.tag_directory import TagDirectory
from topics.storage.segments.tags_format import SegmentTags
from topics.storage.segments.topic_segments import Segment

SHARE: Final = 8
LEAST_BYTES: Final = 4 << 20
"""The bound is a `SHARE`th of `TOPICS_CACHE_BYTES`, but at least 4 MiB: the columns of some 20 full segments. Beyond it
the least recently used entries are dropped."""

DIRECTORY_SHARE: Final = 16
LEAST_DIRECTORY_BYTES: Final = 4 << 20
"""The least bound for directories of tags (bytes): enough for 150 full segments in which every record has a different
tag."""

FEW_NAMES: Final = 1000
"""For at most so many tags a directory is made at once, in less than a millisecond. A directory of more tags takes
three times as long as reading the file. So it is made only when the file is read again because the cache had no room
for the tags."""

ALL_NAMES: Final = 1 << 32

WHOLE_AFTER: Final = 32
"""Reading so many parts of a `.tags` file costs about as much as reading the whole file."""

SELDOM: Final = 8
"""If there is no room for more directories, only one of so many missing directories is made, in place of another. So if
too many segments are used in turn, most directories stay, and few are made in vain."""


class _CachedTags:
    """The tags of a segment, and when they were last used, as `IndexCache` counts."""

    __slots__ = ("tags", "used")

    def __init__(self, tags: SegmentTags, used: int) -> None:
        self.tags = tags
        self.used = used


class IndexCache:
    """The loaded columns and tags of all topics. Made once by the engine. Adding an entry may drop others, at once."""

    def __init__(self, cache_bytes: int) -> None:
        self._max_bytes = max(cache_bytes // SHARE, LEAST_BYTES)
        self._columns: OrderedDict[Span, int] = OrderedDict()
        self._tags: OrderedDict[Segment, _CachedTags] = OrderedDict()
        self._uses = 0
        """How often tags were used, in the cache or in files."""
        self._most_directory_bytes = max(cache_bytes // DIRECTORY_SHARE, LEAST_DIRECTORY_BYTES)
        self._directories: OrderedDict[Segment, TagDirectory] = OrderedDict()
        self.directory_bytes = 0
        self._missed = 0
        """How many directories were missing when there was hardly any room."""
        self._gathered: Counter[Span] = Counter()
        self.bytes = 0

    @contextmanager
    def gathering(self, spans: Sequence[Span]) -> Iterator[None]:
        """Keep these spans while they are loaded one after the other. Entries beyond the bound are dropped when the
        next entry is added."""
        self._gathered.update(spans)
        try:
            yield
        finally:
            self._gathered.subtract(spans)
            self._gathered = +self._gathered

    def add_columns(self, span: Span) -> None:
        """Add a span that was loaded, or count it again because it has grown."""
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
        """Forget a span that was removed or unloaded."""
        known = self._columns.pop(span, None)
        if known is not None:
            self.bytes -= known

    def tags(self, segment: Segment) -> SegmentTags | None:
        """Return the tags of a sealed segment if they are cached, else None."""
        found = self._tags.get(segment)
        if found is None:
            return None
        self._tags.move_to_end(segment)
        self._uses += 1
        found.used = self._uses
        return found.tags

    def add_tags(self, segment: Segment, tags: SegmentTags) -> None:
        """Cache the tags of a sealed segment."""
        self._drop_tags(segment)
        self._uses += 1
        self._tags[segment] = _CachedTags(tags, self._uses)
        self.bytes += tags.nbytes
        while self.bytes > self._max_bytes and len(self._tags) > 1:
            dropped, freed = self._tags.popitem(last=False)
            dropped.tags_dropped = True
            self.bytes -= freed.tags.nbytes

    def wants_whole(self, directory: TagDirectory, parts: int) -> bool:
        """Return True if the whole file of tags that are not cached should be read instead of so many parts of it. It
        should, if there is room for the tags, or if many parts were read since the last use of the tags that would be
        dropped for them."""
        self._uses += 1
        if self.bytes + directory.tags_bytes <= self._max_bytes:
            return True
        if not directory.parts_read:
            directory.parts_since = self._uses
        directory.parts_read += parts
        if directory.parts_read < WHOLE_AFTER:
            return False
        directory.parts_read = 0
        oldest = next(iter(self._tags.values()), None)
        return oldest is None or oldest.used < directory.parts_since

    def directory(self, segment: Segment) -> TagDirectory | None:
        """Return the directory of a sealed segment's tags if it is cached, else None."""
        found = self._directories.get(segment)
        if found is not None:
            self._directories.move_to_end(segment)
        return found

    def names_for_directory(self, segment: Segment) -> int:
        """Return the most tags for which a directory is made when the tags of a sealed segment are read."""
        if segment in self._directories:
            return 0
        if 8 * self.directory_bytes > 7 * self._most_directory_bytes:
            self._missed += 1
            if self._missed % SELDOM:
                return 0
        return ALL_NAMES if segment.tags_dropped else FEW_NAMES

    def add_directory(self, segment: Segment, directory: TagDirectory) -> None:
        """Cache the directory of a sealed segment's tags."""
        self._forget_directory(segment)
        self._directories[segment] = directory
        self.directory_bytes += directory.nbytes
        while self.directory_bytes > self._most_directory_bytes and len(self._directories) > 1:
            _, freed = self._directories.popitem(last=False)
            self.directory_bytes -= freed.nbytes

    def _forget_directory(self, segment: Segment) -> None:
        known = self._directories.pop(segment, None)
        if known is not None:
            self.directory_bytes -= known.nbytes

    def forget(self, span: Span, segment: Segment) -> None:
        """Forget a span that was removed or unloaded, and its segment, which was removed."""
        self.forget_columns(span)
        self.forget_tags(segment)

    def forget_tags(self, segment: Segment) -> None:
        """Forget the tags of a segment that was removed, or whose files have changed."""
        self._forget_directory(segment)
        self._drop_tags(segment)

    def _drop_tags(self, segment: Segment) -> None:
        known = self._tags.pop(segment, None)
        if known is not None:
            self.bytes -= known.tags.nbytes
