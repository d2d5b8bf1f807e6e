"""The files of one segment as a checkpoint makes them and adds to them.

Nothing that is written here counts before a manifest names it. So what an interrupted attempt has left is cut off or
removed first.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple

from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.files.fs import Fs, join, write_all
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES
from topics.storage.segments.tags_format import encode_tags
from topics.storage.segments.topic_segments import Segment
from topics.storage.store import Store

WRITTEN: Final = ("data", "idx")
"""The files that records go to, in the order of writing."""


class SegmentTail(NamedTuple):
    """The next bytes of the files of a segment, and the offsets that they are written at."""

    data: bytes
    data_at: int
    entries: bytes
    """Of `.idx`."""
    entries_at: int


class SegmentFiles:
    """Makes, extends and clears the files of segments. Blocking but for `new_segment`: the rest is called in worker
    threads, and raises OSError."""

    def __init__(self, store: Store, fs: Fs) -> None:
        self._store = store
        self._fs = fs

    def new_salt(self) -> int:
        """The salt of a new `.data`."""
        return self._fs.salt()

    def new_segment(self, topic_id: int, first: int) -> Segment:
        """A segment without records. Its `.data` has yet to be made, and begins with a header."""
        return Segment(topic_id, first, data_bytes=FILE_HEADER_BYTES, salt=self.new_salt())

    def begin(self, segment: Segment, tail: SegmentTail, files: UnsyncedFiles, *, first: bool) -> None:
        """`append` for the first time in a checkpoint: make the files of a segment without records (the topic's `first`
        one), or cut off what an interrupted checkpoint has left behind those that it has."""
        if not segment.n:
            self._make_room(segment, first=first)
        for kind, length in zip(WRITTEN, _lengths(segment), strict=True):
            with files.writing(self._path(segment, kind), create=True) as handle:
                if handle.size() != length:
                    handle.truncate(length)
                if not segment.n and kind == "data":
                    write_all(handle, header_of(segment), 0)
        self.append(segment, tail, files)

    def append(self, segment: Segment, tail: SegmentTail, files: UnsyncedFiles) -> None:
        """Write what comes next."""
        for kind, blob, at in (("data", tail.data, tail.data_at), ("idx", tail.entries, tail.entries_at)):
            with files.writing(self._path(segment, kind)) as handle:
                write_all(handle, blob, at)

    def grow(
        self, segment: Segment, data: bytes, index: bytes, files: UnsyncedFiles, *, new: bool, first: bool
    ) -> None:
        """The same where there is one tail: each file is opened once. `new`: the segment has no files yet."""
        if new:
            self._make_room(segment, first=first)
        for kind, blob, start in zip(WRITTEN, (data, index), _lengths(segment), strict=True):
            with files.writing(self._path(segment, kind), create=True) as handle:
                if handle.size() != start:
                    handle.truncate(start)
                if new and kind == "data":
                    write_all(handle, header_of(segment), 0)
                write_all(handle, blob, start)

    def write_tags(self, segment: Segment, sizes: array[int], tags: Sequence[str | None], files: UnsyncedFiles) -> None:
        """Write the `.tags` of a segment: a file that nobody reads yet."""
        blob = encode_tags(segment.first, sizes, tags)
        with files.writing(self._path(segment, "tags"), create=True) as handle:
            handle.truncate(0)
            write_all(handle, blob, 0)

    def _make_room(self, segment: Segment, *, first: bool) -> None:
        """The directory of a new segment, without anything of the same name.

        What an earlier attempt has left goes, the directory too if this is the `first` segment: a sync that failed may
        have lost their names, and no later one would make them durable.
        """
        directory = self._store.datadir.topic_dir(segment.topic_id)
        if first and not self._fs.exists(self._store.manifests.path(segment.topic_id)):
            if self._fs.exists(directory):
                for name in self._fs.listdir(directory):
                    self._fs.unlink(join(directory, name))
                self._fs.rmdir(directory)
        else:
            for path in (self._path(segment, kind) for kind in WRITTEN):
                if self._fs.exists(path):
                    self._fs.unlink(path)
        self._fs.mkdir(directory)

    def _path(self, segment: Segment, kind: str) -> str:
        return self._store.datadir.segment_path(segment.topic_id, segment.first, kind)


def _lengths(segment: Segment) -> tuple[int, int]:
    """How much of `.data` and `.idx` counts."""
    return segment.data_bytes, INDEX_ENTRY_BYTES * segment.n


def header_of(segment: Segment) -> bytes:
    """Return the header of the `.data` of a new segment."""
    assert segment.salt is not None
    return encode_file_header(segment.salt, segment.first)
