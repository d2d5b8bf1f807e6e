"""`PointerHome`: what damaged pointers to segments in a bucket have said (`docs/design/bucket.md` section 9).

A cold segment is of the generation that the newest base of this directory has, since it was moved only when a base had
it and has not changed since. In a directory that was restored it may be of the base that was restored, which a pin
keeps. So both are asked for the segment that begins at this seq, the directory's own base first.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.bucket.bases.own_segments import pointer_of
from topics.bucket.object_store import ObjectStore, StoreError
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.repair.bucket_home import BucketHome, segment_entry, unanswered
from topics.bucket.restored.restore_note import BadRestoreNote, read_restore_note
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs
from topics.storage.segments.segment_pointer import SegmentPointer
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class PointerHome:
    """Reads buckets. Methods block, as long as calls of the stores last, and may be called from several threads."""

    def __init__(
        self, fs: Fs, datadir: DataDir, home: BucketHome | None, url: str, open_at: Callable[[str], ObjectStore]
    ) -> None:
        """`home` is the directory's own bucket, at `url`; None without one. `open_at` opens another one."""
        self._fs = fs
        self._datadir = datadir
        self._home = home
        self._url = url
        self._open_at = open_at

    def pointer(self, topic_id: int, first: int) -> SegmentPointer | None:
        """Return the pointer to a cold segment; None if no base has it. Raises OSError if a bucket does not answer."""
        if self._home is not None:
            bucket, entry = self._home.entry(topic_id, first)
            if entry is not None:
                return pointer_of(bucket, self._url, entry)
        return self._of_source(topic_id, first)

    def _of_source(self, topic_id: int, first: int) -> SegmentPointer | None:
        try:
            note = read_restore_note(self._fs, self._datadir)
        except BadRestoreNote:
            return None
        if note is None:
            return None
        reader = BucketReader(self._open_at(note.url))
        try:
            if reader.bucket_id != note.bucket:
                return None
            entry = segment_entry(reader, reader.base(note.base), topic_id, first)
        except BucketDamaged as error:
            log.error("bucket_object_damaged", object=error.name, problem=error.problem)
            return None
        except StoreError as error:
            raise unanswered(error) from error
        return pointer_of(note.bucket, note.url, entry) if entry is not None else None
