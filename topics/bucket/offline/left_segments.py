"""The segments that a restore leaves in the bucket, as a cold store while the directory is made. Nothing is written."""

from __future__ import annotations

from typing import Final

from topics.bucket.bucket_segments import BucketSegments
from topics.bucket.object_names import SegmentName, segment_name
from topics.bucket.object_store import ObjectStore
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.storage.files.fs import Fs

WINDOW_BYTES: Final = 4 << 20
"""What is read in one call: neighbouring records are asked for one after another."""


class LeftSegments(BucketSegments):
    """Reads through the pointers in the directory. Used by one thread. Methods raise BucketDamaged, StoreError,
    OSError."""

    def __init__(self, fs: Fs, root: str, reader: BucketReader) -> None:
        super().__init__(fs, root, _refused)
        self._reader = reader
        self._window: tuple[str, int, bytes] = ("", 0, b"")
        """An object, a place in it, and the bytes from there on that were read last."""
        self._fronts: dict[str, bytes] = {}
        """The first bytes of objects, with their headers. As many as there are segments with sources of copies."""

    def read_stored(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        first, pointer, kind, file = self._file(topic_id, name)
        wanted = segment_name(SegmentName(topic_id, first, pointer.epoch, pointer.salt), kind)
        length = min(length, file.size - offset)
        if length <= 0:
            return b""
        if not offset:
            front = self._fronts.get(wanted, b"")
            if len(front) < length:
                front = self._fronts[wanted] = self._whole(wanted, 0, length)
            return front[:length]
        at, begin, data = self._window
        if at != wanted or not begin <= offset or offset + length > begin + len(data):
            data = self._whole(wanted, offset, min(max(length, WINDOW_BYTES), file.size - offset))
            self._window, begin = (wanted, offset, data), offset
        return data[offset - begin : offset - begin + length]

    def _whole(self, wanted: str, offset: int, length: int) -> bytes:
        found = self._reader.range(wanted, offset, length)
        if len(found) != length:
            raise BucketDamaged(wanted, f"it has less than {offset + length} bytes")
        return found


def _refused(url: str) -> ObjectStore:
    raise AssertionError(f"{url} is read by the reader of the restore")
