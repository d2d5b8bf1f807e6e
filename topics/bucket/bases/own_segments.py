"""Which segments the daemon's own bucket has: `OwnSegments`, for the cold store (`topics.bucket.bucket_segments`)."""

from __future__ import annotations

from topics.bucket.archive import ArchiveStopped
from topics.bucket.base_format import SealedFile, SegmentEntry
from topics.bucket.bases.base_writer import ArchivePlace, BaseWriter
from topics.bucket.bucket_segments import OwnBucket
from topics.storage.segments.segment_pointer import PointedFile, SegmentPointer


class OwnSegments:
    """Finds segments in the newest base: every later one names the same objects, for as long as the segments exist."""

    def __init__(self, archive: ArchivePlace, bases: BaseWriter, url: str) -> None:
        self._archive = archive
        self._bases = bases
        self._url = url

    def bucket(self) -> OwnBucket | None:
        """Return the bucket; None while it is not open."""
        try:
            return OwnBucket(self._archive.bucket_id, self._url, self._find, self._archive.objects)
        except ArchiveStopped:
            return None

    def _find(self, topic_id: int, first: int, salt: int) -> SegmentPointer | None:
        if not self._bases.has_base:
            return None
        entry = self._bases.known.sealed((topic_id, first, salt))
        if entry is None or entry.data is None or entry.idx is None or entry.tags is None:
            return None
        return pointer_of(self._archive.bucket_id, self._url, entry)


def pointer_of(bucket: str, url: str, entry: SegmentEntry) -> SegmentPointer | None:
    """Return the pointer to a segment that a base of a bucket has; None if it is not sealed."""
    if entry.data is None:
        return None
    idx, tags = (_pointed(file) if file is not None else None for file in (entry.idx, entry.tags))
    return SegmentPointer(bucket, url, entry.epoch, entry.salt, _pointed(entry.data), idx, tags)


def _pointed(file: SealedFile) -> PointedFile:
    return PointedFile(*file)
