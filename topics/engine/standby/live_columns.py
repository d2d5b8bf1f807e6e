"""`LiveColumns`: the columns of stored records that replay needs in a running daemon. They go into the cache of the
daemon, which drops them when others need the room.

They are read on the loop, because a cut is applied in one step. They are small files of the data directory (`.idx`, 26
bytes a record), and only deletions of single records and of tags in sealed segments need them.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final, TypeVar

from topics.log.span import NotLoaded, Span
from topics.storage.cache.index_cache import IndexCache
from topics.storage.recovery.recovered_state import ColumnLoader, RecoveredTopic
from topics.storage.segments.segment_reader import NO_COLD, ColdNeeded, SegmentTiers, load_columns
from topics.storage.segments.topic_segments import Segment

T = TypeVar("T")

ATTEMPTS: Final = 1000
"""How many loads one operation may need. Each makes progress, so reaching the bound is an error in the program."""


class LiveColumns(ColumnLoader):
    """Made for each cut. Never asks the cold store."""

    def __init__(self, tiers: SegmentTiers, cache: IndexCache) -> None:
        super().__init__(tiers._replace(cold=NO_COLD if tiers.cold is not None else None))
        self._cache = cache

    def run(self, topic: RecoveredTopic, operation: Callable[[], T]) -> T:
        """Call `operation`, load the columns that it raises NotLoaded for, and repeat until it succeeds. Raises OSError
        if files cannot be read, or are damaged."""
        needed: dict[Span, None] = {}
        for _ in range(ATTEMPTS):
            try:
                return operation()
            except NotLoaded as missing:
                # Load all that it has needed so far, because loading some may drop others.
                needed.update(dict.fromkeys(missing.spans))
                spans = tuple(needed)
                with self._cache.gathering(spans):
                    for span in spans:
                        if span.loaded:
                            self._cache.use_columns(span)
                        elif topic.log.stored.holds(span):
                            self._load(topic, span)
        raise AssertionError("an operation needs more and more columns, without end")

    def _load(self, topic: RecoveredTopic, span: Span) -> None:
        segment = span.segment
        assert isinstance(segment, Segment)
        try:
            found = load_columns(self.tiers, segment, span.first, span.n)
        except ColdNeeded as error:
            raise OSError(errno.EIO, f"a cold segment of topic {topic.name!r} has no index here") from error
        if found.damaged:
            raise OSError(errno.EIO, f"a segment of topic {topic.name!r} is damaged at {found.damaged[0][0]}")
        topic.log.attach(span, found.columns)
        self._cache.add_columns(span)
