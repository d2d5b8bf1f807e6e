"""Reading segments for a base: whole files of sealed ones, the new bytes of active ones, and which records are deleted.

Everything here blocks. Files are read in one call each, so that a file which is replaced meanwhile is read either as it
was or as it is. What was read without a hold is verified (`is_coherent`); during a hold no file
changes, and only its generation and length are looked at (`lack_of`).
"""

from __future__ import annotations

import errno
from array import array
from typing import Final, NamedTuple

import msgspec

from topics.bucket.base_format import SealedFile, SegmentEntry
from topics.log.dumped_values import from_little_endian
from topics.log.span import DELETED, STORED_MARK, SpanSummary
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.maintenance.base_capture import CapturedSegment
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES, decode_index
from topics.storage.segments.packed_format import as_written, table_of
from topics.storage.segments.packed_reads import PackedReads, pack_problems
from topics.storage.segments.segment_format import SegmentDamaged
from topics.storage.segments.segment_pointer import SegmentPointer, files_of
from topics.storage.segments.segment_reader import SegmentTiers, load_columns
from topics.storage.segments.segment_scan import layout_of
from topics.storage.segments.segment_store import ObjectSegments, SegmentStore
from topics.storage.segments.tags_format import decode_tags
from topics.storage.snapshots.snapshot import TopicPart

MOST_BYTES: Final = 1 << 31
"""A file of a segment is read up to here. Offsets in segments have 32 bits, and limits are far below."""


class SealedBytes(NamedTuple):
    """The files of a sealed segment as they are stored; None for one that is missing. `salt` is that of `data`, 0
    without one; `unpacked` is the length of its unpacked form, 0 if it is not packed."""

    salt: int
    data: bytes | None
    idx: bytes | None
    tags: bytes | None
    unpacked: int = 0

    @property
    def length(self) -> int:
        """The length of the unpacked form of `data`."""
        return self.unpacked or len(self.data or b"")


class SegmentDeletions(NamedTuple):
    """What a part says of the deletions in a segment. As long as `state` is the same, the same records are deleted."""

    first: int
    """Where the span begins; the segment may begin earlier."""
    n: int
    state: tuple[int, int, int, int]
    """Slots, dropped, live and lost ones."""
    deleted: int
    unflagged: bytes


def deletions_of(part: TopicPart) -> dict[int, SegmentDeletions]:
    """Return what a part says of its segments, by first seq of the segment. Pure."""
    firsts = [(int(entry[0]), int(entry[0]) + int(entry[1])) for entry in part.segments]
    found: dict[int, SegmentDeletions] = {}
    by_end = {end: first for first, end in firsts}
    for dumped in part.log["spans"]:
        if not dumped or dumped[0] != STORED_MARK:
            continue
        one = SpanSummary(*dumped[1:-1])
        first = by_end.get(one.first + one.n)
        if first is not None:
            deleted = one.n - one.start - one.live - one.lost
            state = (one.n, one.start, one.live, one.lost)
            found[first] = SegmentDeletions(one.first, one.n, state, deleted, bytes(dumped[-1]))
    return found


def read_sealed(tiers: SegmentTiers, captured: CapturedSegment) -> SealedBytes:
    """Return the files of a sealed segment. The index is read first: a task that replaces the files removes derived
    ones before `.data` changes. Raises OSError if the disk or the cold store does not answer, FileNotFoundError for a
    missing cold `.data`."""
    idx, tags = (_file(tiers, captured, kind) for kind in ("idx", "tags"))
    data = _file(tiers, captured, "data")
    if data is None:
        if captured.tier == "cold":
            raise FileNotFoundError(2, "a cold segment is not in the cold store")
        return SealedBytes(0, None, idx, tags)
    head, unpacked, data = _opened(data)
    salt = layout_of(head, captured.segment.first, captured.salt).salt or 0
    if unpacked:
        return SealedBytes(salt, data, idx, tags, unpacked)
    return SealedBytes(salt, data[: captured.data_bytes], idx, tags)  # bytes beyond do not count


def _opened(data: bytes) -> tuple[bytes, int, bytes]:
    """Return the first bytes of the unpacked form of a `.data`, its length, 0 for one that is not packed, and the file.
    Of a packed one this is the file as it was written, where damage has only met what is there twice. Raises OSError
    for other damage: each block counts for many records."""

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    table = table_of(read, len(data))
    if table is None:
        return data[:FILE_HEADER_BYTES], 0, data
    whole = as_written(table, read)
    if whole is None:
        at, problem = next(pack_problems(read, len(data)))
        raise OSError(errno.EIO, f"a packed .data is damaged at {at}: {problem}")
    return PackedReads().read(table, read, 0, FILE_HEADER_BYTES), table.length, whole


def pointed_entry(tiers: SegmentTiers, captured: CapturedSegment) -> SegmentEntry | None:
    """Return the entry of a cold segment whose objects are in the daemon's own bucket already; None for another one.
    Then the objects that the data directory points to are those that bases name, and stay. Raises OSError."""
    if tiers.objects is None:
        return None
    pointer = tiers.objects.pointer(captured.segment.topic_id, captured.segment.first)
    return _own_entry(tiers.objects, captured.segment.first, pointer) if pointer.salt == captured.salt else None


def _own_entry(objects: ObjectSegments, first: int, pointer: SegmentPointer) -> SegmentEntry | None:
    if not objects.is_own(pointer):
        return None
    data, idx, tags = (SealedFile(file.size, file.hash, file.unpacked) if file else None for file in files_of(pointer))
    return SegmentEntry(first, pointer.salt, pointer.epoch, data, idx, tags)


def lack_of(captured: CapturedSegment, salt: int, length: int) -> str | None:
    """Return what is wrong with a `.data` that has this salt and length; None for nothing. A base with such a file
    could not be restored, so none is made: rounds and the base before go on to be enough."""
    segment = captured.segment
    what = f"segment {segment.first} of topic {segment.topic_id}"
    if length < captured.data_bytes:
        return f"{what} has {length} bytes, and its part says {captured.data_bytes}"
    if salt != (captured.salt or 0):
        return f"{what} is of another generation than its part says"
    return None


def pointed_foreign(tiers: SegmentTiers, topic_id: int, first: int) -> SegmentEntry | None:
    """Return what `pointed_entry` does for a segment of a deleted topic: only its `.data` is needed."""
    if tiers.objects is None:
        return None
    try:
        pointer = tiers.objects.pointer(topic_id, first)
    except FileNotFoundError:
        return None
    entry = _own_entry(tiers.objects, first, pointer)
    return msgspec.structs.replace(entry, idx=None, tags=None) if entry is not None else None


def read_foreign(store: SegmentStore, topic_id: int, first: int) -> SealedBytes:
    """Return `.data` of a segment of a deleted topic. Raises OSError."""
    try:
        data = store.read_stored(topic_id, segment_name(first, "data"), 0, MOST_BYTES)
    except FileNotFoundError:
        return SealedBytes(0, None, None, None)
    head, unpacked, data = _opened(data)
    return SealedBytes(layout_of(head, first, None).salt or 0, data, None, None, unpacked)


def foreign_salt(store: SegmentStore, topic_id: int, first: int) -> int:
    """Return the salt of a segment of a deleted topic; 0 if it has none, or is missing."""
    try:
        head = store.read_range(topic_id, segment_name(first, "data"), 0, FILE_HEADER_BYTES)
    except FileNotFoundError:
        return 0
    return layout_of(head, first, None).salt or 0


def is_coherent(captured: CapturedSegment, files: SealedBytes) -> bool:
    """Return True if these are the files of the segment, of one generation, undamaged as far as lengths and checks of
    index and tags say."""
    if files.data is None or files.idx is None or files.tags is None:
        return False
    if files.salt != (captured.salt or 0) or files.length != captured.data_bytes:
        return False
    if len(files.idx) != INDEX_ENTRY_BYTES * captured.n:
        return False
    index = decode_index(files.idx)
    header = FILE_HEADER_BYTES if captured.salt is not None else 0
    if index.bad or sum(index.frame_len) + header != captured.data_bytes:
        return False
    try:
        decode_tags(files.tags, captured.segment.first, captured.n)
    except SegmentDamaged:
        return False
    return True


def read_active(tiers: SegmentTiers, captured: CapturedSegment, have: int) -> bytes:
    """Return the bytes of an active `.data` from `have` on; nothing if the file is missing. Raises OSError."""
    name = segment_name(captured.segment.first, "data")
    try:
        return tiers.hot.read_range(captured.segment.topic_id, name, have, captured.data_bytes - have)
    except FileNotFoundError:
        return b""


def deleted_bits(tiers: SegmentTiers, captured: CapturedSegment, known: SegmentDeletions) -> bytes | None:
    """Return a bit for each slot of a segment, set if it is deleted, in its files or as its part says; None if none is.
    Raises OSError, and ColdNeeded."""
    columns = load_columns(tiers, captured.segment, known.first, known.n).columns
    skipped = known.first - captured.segment.first
    bits = bytearray((captured.n + 7) // 8)
    for i, state in enumerate(columns.dead, skipped):
        if state == DELETED:
            bits[i >> 3] |= 1 << (i & 7)
    unflagged = from_little_endian("Q", known.unflagged) if known.unflagged else array("Q")
    for seq in unflagged:
        i = seq - captured.segment.first
        if 0 <= i < captured.n:
            bits[i >> 3] |= 1 << (i & 7)
    return bytes(bits) if any(bits) else None


def _file(tiers: SegmentTiers, captured: CapturedSegment, kind: str) -> bytes | None:
    segment = captured.segment
    store = tiers.hot if captured.tier == "hot" else tiers.cold
    if store is None:
        raise FileNotFoundError(
            2, "there is neither the cold directory (TOPICS_COLD_DIR) nor the bucket (TOPICS_BUCKET)"
        )
    try:
        return store.read_stored(segment.topic_id, segment_name(segment.first, kind), 0, MOST_BYTES)
    except FileNotFoundError:
        return None
