"""Stand-ins: the bytes of copies whose sources are not where their recipes say (`docs/design/bucket.md` section 6).

A restored directory has the log of another one, but not every segment that Forwarded frames of that log name. The
restore finds the records by topic and seq, and writes each copy as its readers see it, once, into a segment of a topic
that does not exist: `stand_in_id` of the copy's topic. A frame there has the seq of the copy and the origin that the
recipe expects. Recovery makes copies from these frames if the frames in the recipe are missing. From then on they are
frames in a segment of a deleted topic: it stays as long as copies point to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from topics.log.copies import Origin, each_kind
from topics.storage.files.datadir import DataDir, parse_segment_name, segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.files.fs import Fs, write_all
from topics.storage.segments.copy_frames import CopyRecipe
from topics.storage.segments.segment_format import DataScan, encode_copies
from topics.storage.segments.segment_scan import frames_of, layout_of
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.frames import OpenedRecord, StoredRecord
from topics.storage.wal.wal_files import WalFiles

FULL_BYTES: Final = 1 << 30
"""A segment of stand-ins takes no more when it has so many; offsets are u32."""

_STAND_IN: Final = 1 << 62
"""No topic has an id with this bit."""


def stand_in_id(topic_id: int) -> int:
    """Return the id under which the directory of a topic's stand-ins is found."""
    return topic_id | _STAND_IN


class StandIns:
    """Reads stand-ins. The places of a topic's are in memory from its first missing copy on. Blocking; methods raise
    OSError if the disk does not answer."""

    def __init__(self, hot: SegmentStore, files: WalFiles) -> None:
        self._hot = hot
        self._files = files
        self._known: dict[int, dict[int, tuple[int, int, int]]] = {}
        """By topic id and seq: file, offset and length of the frame."""

    def use(self, recipe: CopyRecipe, topic_id: int, first: int, opened: Sequence[OpenedRecord | None]) -> bool:
        """Put the places of stand-ins into the recipe of copies from the seq `first` on, for those whose frame is not
        among `opened`, the frames of the recipe. Return True if there are any; then they have to be read again."""
        found = False
        for i in missing_in(recipe, opened):
            place = self._of(topic_id).get(first + i)
            if place is not None:
                recipe.files[i], recipe.offsets[i], recipe.frame_lens[i] = place
                found = True
        return found

    def _of(self, topic_id: int) -> dict[int, tuple[int, int, int]]:
        known = self._known.get(topic_id)
        if known is None:
            known = self._known[topic_id] = {}
            owner = stand_in_id(topic_id)
            for first in filter(None, map(parse_segment_name, self._hot.list(owner))):
                self._read(known, owner, first)
        return known

    def _read(self, known: dict[int, tuple[int, int, int]], owner: int, first: int) -> None:
        name = segment_name(first, "data")
        layout = layout_of(self._hot.read_range(owner, name, 0, FILE_HEADER_BYTES), first, None)
        file = self._files.file_of(("segment", owner, first), layout.salt)

        def read(offset: int, length: int) -> bytes:
            return self._hot.read_range(owner, name, offset, length)

        for part in frames_of(read, layout, self._hot.length(owner, name), range(first, 1 << 48)):
            if isinstance(part, DataScan):
                places = zip(part.offset, part.frame_len, strict=True)
                known.update((seq, (file, *place)) for seq, place in zip(part.seq, places, strict=True))


class StandInWriter:
    """Writes stand-ins; those of a topic in the order of their seqs. Nothing is synced. Blocking."""

    def __init__(self, fs: Fs, datadir: DataDir, *, replaces: bool = False) -> None:
        """`replaces`: a segment that is there already is of an attempt that was interrupted."""
        self._fs = fs
        self._datadir = datadir
        self._replaces = replaces
        self._open: dict[int, tuple[int, int, int]] = {}
        """First seq, salt and length of the last segment, by topic id."""
        self.written = 0
        """How many copies have one."""

    def add(self, topic_id: int, records: Sequence[StoredRecord], origins: Sequence[Origin]) -> None:
        """Write some copies as their readers see them. Raises OSError, FileExistsError if somebody else has written
        there."""
        owner = stand_in_id(topic_id)
        first, salt, size = self._open.get(topic_id, (0, 0, FULL_BYTES))
        begins = size >= FULL_BYTES
        if begins:
            first, salt, size = records[0].seq, self._fs.salt(), FILE_HEADER_BYTES
            self._fs.mkdir(self._datadir.topic_dir(owner))
            path = self._datadir.segment_path(owner, first, "data")
            if self._replaces and self._fs.exists(path):
                self._fs.unlink(path)
        blob = encode_copies(records, origins, salt=salt, offset=size).data
        with self._fs.open(self._datadir.segment_path(owner, first, "data"), exclusive=begins) as file:
            if begins:
                write_all(file, encode_file_header(salt, first), 0)
            write_all(file, blob, size)
        self._open[topic_id] = first, salt, size + len(blob)
        self.written += len(records)


def missing_in(recipe: CopyRecipe, opened: Sequence[OpenedRecord | None]) -> array[int]:
    """Return the indexes of the copies for which `opened`, the frames that the recipe names, has not the right one."""
    copies = zip(opened, each_kind(recipe.kinds), recipe.origin_seqs, strict=True)
    return array(
        "I",
        [
            i
            for i, (record, kind, seq) in enumerate(copies)
            if record is None or record.origin[:2] != (kind.topic_id, seq)
        ],
    )
