"""Repairs from the bucket while the daemon starts: nobody else works on the files, and everything may block
(`docs/design/bucket.md` section 9).

A bucket that does not answer is asked once, for a bounded time. Then the start goes on as without a bucket.
"""

from __future__ import annotations

from topics.log.span import Span
from topics.storage.segments.mended_files import (
    NotMendable,
    SecondHome,
    counted_slots,
    may_be_mended,
    mended,
    put_mended,
    read_local,
)
from topics.storage.segments.segment_repairs import log_repaired
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class StartRepairs:
    """The repairs of one start. Blocking."""

    def __init__(self, home: SecondHome, store: SegmentStore) -> None:
        self.home = home
        self.repaired = 0
        """Segments."""
        self.log_files = 0
        self.repaired_bytes = 0
        self.away = ""
        """Why the bucket cannot be asked; empty while it can be."""
        self._store = store
        self.tried: set[tuple[str, int]] = set()
        """Places of the log that were asked for: no place is repaired twice."""

    def no_answer(self, error: OSError) -> None:
        """The bucket does not answer. It is not asked again."""
        self.away = error.strerror or str(error)
        log.error(
            "bucket_not_asked",
            problem=self.away,
            consequence="damage cannot be repaired from the bucket at this start",
        )

    def repair(self, topic: str, span: Span) -> bool | None:
        """Repair the segment of a span, if the bucket can. Return False if it cannot, None if it does not answer.
        Raises OSError if the disk does not take the files."""
        segment = span.segment
        if not isinstance(segment, Segment) or not may_be_mended(segment):
            return False
        assert segment.salt is not None
        if self.away:
            return None
        try:
            copy = self.home.segment(segment.topic_id, segment.first, segment.salt)
        except OSError as error:
            self.no_answer(error)
            return None
        try:
            if copy is None:
                raise NotMendable("the bucket has no copy of it")
            files = mended(read_local(self._store, segment), copy, segment, counted_slots(span))
        except NotMendable as problem:
            log.error("segment_not_repaired", topic=topic, first=segment.first, problem=str(problem))
            return False
        put_mended(self._store, segment, files)
        self.repaired += 1
        self.repaired_bytes += files.taken
        log_repaired(topic, segment, files)
        return True
