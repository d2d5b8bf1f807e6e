"""The files of segments in a restored directory (`docs/design/bucket.md` section 4).

A sealed segment is copied; its SHA-256 is checked on the way. If `.idx` or `.tags` is missing or damaged, it is made
from `.data`. An active segment is put together from its pieces, and its `.idx` is made from them. Then the records that
the base says are deleted are flagged, in `.data` and `.idx`: the files may be from before the deletion.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from copy import copy
from itertools import count
from typing import Final

from topics.bucket.base_format import SealedFile
from topics.bucket.object_names import SegmentKind
from topics.bucket.offline.base_pages import KINDS, SegmentPlan
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.log.losses import Hole
from topics.log.span import DELETED, SpanColumns
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import File, Fs, write_all
from topics.storage.segments.data_files import DataFiles
from topics.storage.segments.flag_patches import flag_patches
from topics.storage.segments.index_format import (
    HOLE_CORRUPT,
    HOLE_LOST,
    HOLE_SOURCE_TRIM,
    IDX_DELETED,
    IDX_HOLE,
    encode_index,
)
from topics.storage.segments.segment_format import DELETED_FLAG, delete_flag_offset
from topics.storage.segments.segment_pointer import PointedFile, SegmentPointer, encode_pointer
from topics.storage.segments.segment_reader import SegmentTiers, scan_segment
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.tags_format import encode_tags
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

CHUNK_BYTES: Final = 8 << 20
"""Files are read in pieces of this size."""

_REASONS: Final = {"lost": HOLE_LOST, "corrupt": HOLE_CORRUPT, "source_trim": HOLE_SOURCE_TRIM}
_FLAG: Final = bytes((DELETED_FLAG,))


class RestoredSegments:
    """Writes the files of segments. May be called from several threads, for different segments. Methods raise
    BucketDamaged, StoreError, OSError."""

    def __init__(
        self,
        fs: Fs,
        datadir: DataDir,
        reader: BucketReader,
        base: str,
        note: Callable[[int], None] = lambda _: None,
        source: str | None = None,
    ) -> None:
        """`base` is the name of the base; `note` is told how many bytes were read; `source` is the URL of the bucket if
        segments may stay there."""
        self._source = source
        self._fs = fs
        self._datadir = datadir
        self._reader = reader
        self._base = base
        self._note = note
        self._data_files = DataFiles(fs)
        self._tiers = SegmentTiers(DirectorySegmentStore(fs, datadir.root), None)

    def restore_sealed(self, plan: SegmentPlan) -> None:
        """Write the files of a sealed segment; of one that stays in the bucket a pointer, and copies of `.idx` and
        `.tags`."""
        if plan.stays:
            self._leave(plan)
            return
        lost: dict[SegmentKind, BucketDamaged] = {}
        for kind in KINDS:
            file = plan.file(kind)
            if file is not None:
                try:
                    self._copy(plan, kind, file)
                except BucketDamaged as error:
                    if kind == "data":
                        raise
                    lost[kind] = error
        self._make_anew(plan, lost)
        self._flag(plan)

    def finish_active(self, plan: SegmentPlan) -> None:
        """Make the `.idx` of an active segment whose `.data` is written, and flag what is deleted."""
        segment, entry = plan.segment, plan.entry
        if segment is None:
            return
        with self._open(plan, "data") as data:
            if data.size() > segment.data_bytes:
                data.truncate(segment.data_bytes)
            loaded = scan_segment(self._tiers, segment, segment.first, segment.n).loaded
            if loaded.damaged:
                raise BucketDamaged(
                    self._base,
                    f"the pieces of segment {entry.first} of topic {plan.topic_id} lack its record "
                    f"{loaded.damaged[0][0]}",
                )
            columns, deleted = loaded.columns, set(plan.deleted_seqs)
            for offset, size, seq in zip(columns.offset, columns.frame_len, count(segment.first), strict=False):
                if size and seq in deleted:
                    write_all(data, _FLAG, delete_flag_offset(offset, size))
        with self._open(plan, "idx", exclusive=True) as index:
            write_all(index, _index_of(segment.first, columns, deleted, plan.holes), 0)

    def _make_anew(self, plan: SegmentPlan, lost: Mapping[SegmentKind, BucketDamaged], suffix: str = "") -> None:
        """Make those of `.idx` and `.tags` from `.data` whose objects are missing or damaged. Raises the damage if
        `.data` lacks records."""
        if not lost:
            return
        segment, first = plan.segment, next(iter(lost.values()))
        if segment is None:
            raise first
        hot = copy(segment)
        hot.tier = "hot"
        scanned = scan_segment(self._tiers, hot, segment.first, segment.n)
        if scanned.loaded.damaged:
            raise first
        columns = scanned.loaded.columns
        for kind, error in lost.items():
            if kind == "idx":
                content = _index_of(segment.first, columns, set(plan.deleted_seqs), plan.holes)
            else:
                content = encode_tags(segment.first, columns.size, scanned.tags)
            with self._open(plan, kind + suffix) as target:
                target.truncate(0)
                write_all(target, content, 0)
            log.warning("segment_file_made_anew", object=error.name, problem=str(error))

    def _leave(self, plan: SegmentPlan) -> None:
        """Write what a cold segment has in the data directory. Its last byte is read, to see that `.data` is there."""
        entry, source = plan.entry, self._source
        assert entry.data is not None
        assert source is not None
        if entry.data.size and not self._reader.range(plan.name("data"), entry.data.size - 1, 1):
            raise BucketDamaged(plan.name("data"), f"it does not have {entry.data.size} bytes")
        lost: dict[SegmentKind, BucketDamaged] = {}
        for kind in KINDS[1:]:
            file = plan.file(kind)
            assert file is not None
            try:
                self._copy(plan, kind, file, f"{kind}.cold")
            except BucketDamaged as error:
                lost[kind] = error
        if lost:
            self._copy(plan, "data", entry.data)
            self._make_anew(plan, lost, ".cold")
            self._fs.unlink(self._datadir.segment_path(plan.topic_id, entry.first, "data"))
        seqs = plan.deleted_seqs
        with self._open(plan, "idx.cold") as index:
            for patch in flag_patches(index.pread, entry.first, seqs):
                write_all(index, patch.entries, patch.entries_at)
        data, idx, tags = (PointedFile(*file) for kind in KINDS if (file := plan.file(kind)) is not None)
        pointer = SegmentPointer(self._reader.bucket_id, source, entry.epoch, entry.salt, data, idx, tags)
        with self._open(plan, "object", exclusive=True) as target:
            write_all(target, encode_pointer(pointer), 0)

    def _copy(self, plan: SegmentPlan, kind: SegmentKind, file: SealedFile, to: str = "") -> None:
        name = plan.name(kind)
        digest, at = hashlib.sha256(), 0
        with self._open(plan, to or kind, exclusive=True) as target:
            while at < file.size:
                chunk = self._reader.range(name, at, min(CHUNK_BYTES, file.size - at))
                if not chunk:
                    raise BucketDamaged(name, f"it has {at} bytes, and should have {file.size}")
                digest.update(chunk)
                write_all(target, chunk, at)
                at += len(chunk)
                self._note(len(chunk))
        if digest.digest() != file.hash:
            raise BucketDamaged(name, "its hash does not match")

    def _flag(self, plan: SegmentPlan) -> None:
        """Flag the deleted records of a sealed segment."""
        seqs = plan.deleted_seqs
        if not seqs or plan.entry.idx is None:
            return
        path = self._datadir.segment_path(plan.topic_id, plan.entry.first, "data")
        size = self._data_files.length(path)
        with self._open(plan, "idx") as index:
            patches = list(flag_patches(index.pread, plan.entry.first, seqs))
            flags_at = [at for patch in patches for at in patch.flags_at]
            if any(at >= size for at in flags_at):
                raise BucketDamaged(plan.name("idx"), "it names records behind the end of .data")
            for patch in patches:
                write_all(index, patch.entries, patch.entries_at)
        listed = self._data_files.deletions_with(path, flags_at)
        if listed is None:
            with self._open(plan, "data") as data:
                for at in flags_at:
                    write_all(data, _FLAG, at)
        else:
            with self._open(plan, "del", exclusive=True) as target:
                write_all(target, listed, 0)
        if sum(len(patch.seqs) for patch in patches) != len(seqs):
            raise BucketDamaged(plan.name("idx"), "it lacks records that the base says are deleted")

    def _open(self, plan: SegmentPlan, kind: str, *, exclusive: bool = False) -> File:
        return self._fs.open(self._datadir.segment_path(plan.topic_id, plan.entry.first, kind), exclusive=exclusive)


def _index_of(first: int, columns: SpanColumns, deleted: Set[int], holes: Sequence[Hole]) -> bytes:
    """Return the `.idx` of a segment. Slots without a frame are deleted, but for those in holes."""
    offsets, flags = array("I", columns.offset), bytearray(columns.flags)
    for i, (size, state) in enumerate(zip(columns.frame_len, columns.dead, strict=True)):
        seq = first + i
        if size:
            if seq in deleted or state == DELETED:
                flags[i] |= IDX_DELETED
        elif seq not in deleted and (reason := _reason_of(holes, seq)):
            offsets[i] = reason
            flags[i] |= IDX_HOLE
        else:
            flags[i] |= IDX_DELETED
    return encode_index(offsets, columns.frame_len, columns.ts, flags)


def _reason_of(holes: Sequence[Hole], seq: int) -> int:
    """Return why a slot without a frame is lost, as `.idx` says it; 0 if it is in no hole."""
    for first, last, reason in holes:
        if first <= seq <= last:
            return _REASONS.get(reason, HOLE_LOST)
    return 0
