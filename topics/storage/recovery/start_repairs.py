"""Repairs from the bucket while the daemon starts: nobody else works on the files, and everything may block
(`docs/design/bucket.md` section 9).

A bucket that does not answer is asked once, for a bounded time. Then the start goes on as without a bucket.

Sealed segments are mended from their objects. A file of the log gets all that the rounds have of it, from the damage
on: they have the synced bytes of the log as they were.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from topics.log.span import Span
from topics.storage.files.fs import File, Fs, copy_bytes, write_all
from topics.storage.files.swapped_files import swap_in
from topics.storage.recovery.damage import BadRange
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

_BEYOND: Final = 1 << 62
"""Beyond every file."""


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
        self.vouched = dict(enumerate(home.log_positions()))
        """Up to where a sync has covered the log, by shard: the bucket would not have it otherwise."""
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
        if files.data is not None:
            segment.packed = None
        self.repaired += 1
        self.repaired_bytes += files.taken
        log_repaired(topic, segment, files)
        return True


# -- the log ----------------------------------------------------------------------------------------------------------


def repair_log(repairs: StartRepairs, fs: Fs, shard: int, where: BadRange) -> bool:
    """Give a damaged file of the log the bytes that the bucket has of it, and keep the damaged one aside. Return True
    if that has changed it: then the log has to be replayed again. Blocking. Raises OSError if the disk does not take
    the file."""
    start = 0 if where.head.problem is not None else where.start
    if repairs.away or (where.path, start) in repairs.tried:
        return False
    repairs.tried.add((where.path, start))
    copy_path = where.path + ".repaired.tmp"
    with fs.open(where.path, read_only=True) as handle, fs.open(copy_path, create=True) as copy:
        copy.truncate(0)
        copy_bytes(handle, 0, handle.size(), copy, 0)
        changed = _overlay(repairs, (shard, where.ordinal, start), handle, copy)
        if changed:
            copy.fdatasync()
    if not changed:
        fs.unlink(copy_path)
        return False
    swap_in(fs, where.path)
    repairs.log_files += 1
    repairs.repaired_bytes += changed
    log.warning("log_repaired", file=where.path, offset=start, bytes=changed)
    return True


def _overlay(repairs: StartRepairs, place: tuple[int, int, int], handle: File, copy: File) -> int:
    """Write what the bucket has from a place on (shard, ordinal of the file, offset) to the copy. Return the bytes of
    the pieces that differ; 0 also if the bucket stops answering."""
    shard, ordinal, start = place
    changed = 0
    pieces = repairs.home.log_bytes(shard, ordinal, start, _BEYOND)
    with closing(pieces):
        while True:
            try:
                piece = next(pieces, None)
            except OSError as error:
                repairs.no_answer(error)
                return 0
            if piece is None:
                return changed
            offset, data = piece
            if handle.pread(len(data), offset) != data:
                write_all(copy, data, offset)
                changed += len(data)
