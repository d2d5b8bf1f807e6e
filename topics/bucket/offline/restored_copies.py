"""Copies in a restored directory whose sources are in segments that the base does not have (`docs/design/bucket.md`
section 6).

A Forwarded frame that was written after the base may name a segment that the owner has made after the base. The records
themselves are there, in another place: as Append frames of the log, in a segment of the base (which may stay in the
bucket), or as copies that another Forwarded frame makes. They are found by the topic and seq from which the frame has
taken them, and written as stand-ins (`topics.storage.segments.stand_ins`), which recovery uses.

The log is read once for the frames whose sources are missing, and, only if there are any, a second time for the
sources. In memory are, for each copy without its source, its recipe and the place of its source, some 200 bytes; and
the records of 4 MiB.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from topics.bucket.offline.bucket_reader import BucketDamaged
from topics.log.copies import Origin
from topics.storage.files.datadir import DataDir, DataDirError, parse_segment_file, segment_name
from topics.storage.files.fs import Fs
from topics.storage.recovery.log_layout import LogLayout, shards_with_files
from topics.storage.recovery.recovered_state import understood
from topics.storage.segments.copy_chains import DEEPEST, FrameCopies, copies_of, made_from
from topics.storage.segments.copy_frames import open_frames, read_recipe, read_window
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES, decode_index
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DirectorySegmentStore, SegmentStore
from topics.storage.segments.stand_ins import StandIns, StandInWriter, missing_in
from topics.storage.snapshots.snapshot import Snapshot
from topics.storage.wal.frames import Frame, FrameType, OpenedRecord, StoredRecord, control_payload
from topics.storage.wal.wal_files import WalFile, WalFiles
from topics.storage.wal.wal_head import WalWindow, scans

WRITE_BYTES: Final = 4 << 20
"""Records are written when there are so many bytes of them."""

_APPEND: Final = int(FrameType.APPEND)
_FORWARDED: Final = int(FrameType.FORWARDED)


class RestoredCopies:
    """Writes stand-ins into a directory whose log and segments are written. Blocking."""

    def __init__(
        self, fs: Fs, datadir: DataDir, base: str, snapshot: Snapshot, left: SegmentStore | None = None
    ) -> None:
        """`base` is the name of the base, `snapshot` its snapshot; `left` reads the segments that stay in the
        bucket."""
        self._fs = fs
        self._base = base
        self._positions = snapshot.positions
        self._snapshot = snapshot
        self._datadir = datadir
        self._tiers = SegmentTiers(DirectorySegmentStore(fs, datadir.root), None)
        self._all_tiers = self._tiers._replace(cold=left)
        self._files = WalFiles()
        self._stand_ins = StandIns(self._tiers.hot, self._files)
        self._missing: list[tuple[FrameCopies, array[int]]] = []
        """The frames whose sources are missing, each with the indexes of its copies without them."""
        self._appends: dict[int, dict[int, tuple[int, int, int] | None]] = {}
        """By topic and seq, the records that are looked for: file, offset and length of their Append frames."""
        self._made: dict[int, list[FrameCopies]] = {}
        """By topic, the frames that have made copies that are looked for, in the order of their seqs."""
        self._firsts: dict[int, list[int]] = {}
        """The first seqs of a topic's segments, ascending."""

    def write_stand_ins(self) -> int:
        """Write a stand-in for each copy whose source is not in its place and is somewhere else. Return how many there
        are. Raises BucketDamaged if the log is malformed, and OSError."""
        writer = StandInWriter(self._fs, self._datadir)
        try:
            with understood(f"the log behind {self._base}"):
                layout = LogLayout(self._fs, self._datadir, self._snapshot, shards_with_files(self._fs, self._datadir))
                layout.register(self._files)
                self._find_missing()
                if self._missing:
                    self._find_sources()
                for copies, missing in self._missing:
                    self._stand_in(writer, copies, missing)
        except (DataDirError, FileExistsError) as error:
            raise BucketDamaged(self._base, str(error)) from error
        return writer.written

    # -- what is missing, and where it is ----------------------------------------------------------------------------

    def _find_missing(self) -> None:
        """Find the copies that recovery would not find the sources of."""
        for shard, (ordinal, offset, *_) in self._positions.items():
            for file in self._files.of_shard(shard):
                if file.ordinal < ordinal:
                    continue
                for window in self._windows(file, offset if file.ordinal == ordinal else 0):
                    for copies in self._copies_in(window):
                        if any(
                            not one or self._files.place_of(one)[0] == "segment" for one in set(copies.recipe.files)
                        ):
                            self._look_for(copies)

    def _look_for(self, copies: FrameCopies) -> None:
        """Note which of these copies have no source."""
        opened = read_recipe(self._fs, self._tiers, self._files, copies.recipe)
        if self._stand_ins.use(copies.recipe, copies.topic_id, copies.first, opened):
            opened = read_recipe(self._fs, self._tiers, self._files, copies.recipe)
        missing = missing_in(copies.recipe, opened)
        if missing:
            self._missing.append((copies, missing))
            self._appends.setdefault(copies.source, {}).update((copies.chosen[i], None) for i in missing)

    def _find_sources(self) -> None:
        """Find the frames of the log that have what is looked for."""
        for shard in self._positions:
            for file in self._files.of_shard(shard):
                for window in self._windows(file, 0):
                    for row in window.scan.rows:
                        wanted = self._appends.get(row[4]) if row[2] == _APPEND else None
                        if wanted is not None and row[5] in wanted:
                            wanted[row[5]] = file.file_id, row[0], row[1] + 4
                    for copies in self._copies_in(window):
                        wanted = self._appends.get(copies.topic_id)
                        if wanted is not None and not wanted.keys().isdisjoint(range(copies.first, copies.end)):
                            self._made.setdefault(copies.topic_id, []).append(copies)

    def _windows(self, file: WalFile, begin: int) -> Iterator[WalWindow]:
        """Yield the frames of a file, up to its end or the first bad bytes, about which recovery has its say."""
        if file.head.problem is None:
            with self._fs.open(file.path, read_only=True) as handle:
                yield from scans(handle, file.head, max(begin, file.head.first), handle.size())

    def _copies_in(self, window: WalWindow) -> Iterator[FrameCopies]:
        """Yield the copies of all Forwarded frames with a recipe. Raises any exception for a malformed payload."""
        for i in window.scan.controls:
            row = window.scan.rows[i]
            if row[2] != _FORWARDED:
                continue
            frame = Frame._make(row)
            copies = copies_of(frame, control_payload(window.data, window.base, frame), self._files.file_of)
            if copies is not None:
                yield copies

    # -- records ------------------------------------------------------------------------------------------------------

    def _stand_in(self, writer: StandInWriter, copies: FrameCopies, missing: Sequence[int]) -> None:
        """Write the stand-ins of one frame. Without a source there is none: the owner had lost it, too."""
        records: list[StoredRecord] = []
        origins: list[Origin] = []
        size = 0
        for i in missing:
            found = self._from_source(copies, i, DEEPEST)
            if found is not None:
                seq = copies.first + i
                records.append(StoredRecord(seq, copies.ts, found.node, found.tag, found.meta, found.data))
                origins.append(copies.origin(i))
                size += len(found.meta) + len(found.data)
            if size >= WRITE_BYTES:
                writer.add(copies.topic_id, records, origins)
                records, origins, size = [], [], 0
        if records:
            writer.add(copies.topic_id, records, origins)

    def _from_source(self, copies: FrameCopies, i: int, depth: int) -> OpenedRecord | None:
        """Return a copy as its readers see it, made from the record that it was taken from, wherever that is."""
        source = self._record(copies.source, copies.chosen[i], depth - 1) if depth else None
        return made_from(copies, i, source) if source is not None else None

    def _record(self, topic_id: int, seq: int, depth: int) -> OpenedRecord | None:
        """Return a record as its readers see it, None if it is nowhere."""
        place = self._appends.get(topic_id, {}).get(seq)
        found = self._open(*place) if place is not None else None
        if found is None:
            found = self._made_copy(topic_id, seq, depth)
        return found if found is not None else self._stored(topic_id, seq)

    def _made_copy(self, topic_id: int, seq: int, depth: int) -> OpenedRecord | None:
        """Return a record that is a copy in the log."""
        frames = self._made.get(topic_id, [])
        at = bisect_right(frames, seq, key=lambda copies: copies.first) - 1
        if at < 0 or seq >= frames[at].end:
            return None
        copies, i = frames[at], seq - frames[at].first
        recipe = copies.recipe
        found = self._open(recipe.files[i], recipe.offsets[i], recipe.frame_lens[i])
        if found is not None:
            found = made_from(copies, i, found)
        return found if found is not None else self._from_source(copies, i, depth)

    def _stored(self, topic_id: int, seq: int) -> OpenedRecord | None:
        """Return a record from a segment of the base."""
        if topic_id not in self._firsts:
            found = map(parse_segment_file, self._tiers.hot.list(topic_id))
            kinds = ("data", "object")  # in the directory, and in the bucket
            self._firsts[topic_id] = sorted(one[0] for one in found if one is not None and one[1] in kinds)
        firsts = self._firsts[topic_id]
        for first in reversed(firsts[: bisect_right(firsts, seq)]):
            at = INDEX_ENTRY_BYTES * (seq - first)
            entry = self._index_entry(topic_id, first, at)
            if entry is None:
                continue  # a segment of a deleted topic has none
            index = decode_index(entry)
            if index.frame_len and index.frame_len[0] and not index.bad:
                file = self._files.file_of(("segment", topic_id, first))
                return self._open(file, index.offset[0], index.frame_len[0])
        return None

    def _index_entry(self, topic_id: int, first: int, at: int) -> bytes | None:
        for kind in ("idx", "idx.cold"):
            with suppress(FileNotFoundError):
                return self._tiers.hot.read_range(topic_id, segment_name(first, kind), at, INDEX_ENTRY_BYTES)
        return None

    def _open(self, file: int, offset: int, length: int) -> OpenedRecord | None:
        """Return the record of a frame, None if there is none."""
        if not file:
            return None
        try:
            window = read_window(self._fs, self._all_tiers, self._files, file, offset, length)
        except FileNotFoundError:
            return None
        return open_frames(self._files, file, offset, window, (0,), (length,))[0]
