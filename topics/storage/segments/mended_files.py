"""Mending the files of a sealed segment with a copy of them from a second home, the bucket (`docs/design/bucket.md`
section 9).

A copy has the same layout: the same frames at the same places, with the same salt. All of this is about unpacked forms:
of the two files either may be packed. Its flags of deletions may be older
than the local ones. So the mended `.data` has, frame by frame, the local bytes if they are valid, else those of the
copy. A record is deleted in it if the local files, the copy or the base that names the copy say so. If the local files
have lost their deletions, the number of known deletions must be that of the topic's count. Otherwise nothing is mended,
because a deleted record would come back.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Collection, Generator, Sequence
from typing import Final, NamedTuple, Protocol

from topics.log.span import Span
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES, frame_seed
from topics.storage.segments.index_format import (
    IDX_DELETED,
    IDX_HOLE,
    INDEX_ENTRY_BYTES,
    IndexColumns,
    decode_index,
    encode_index,
)
from topics.storage.segments.segment_format import (
    DELETED_FLAG,
    LIVE_FLAG,
    MIN_FRAME_BYTES,
    READS_AS_DELETED,
    SegmentDamaged,
    xxh3,
)
from topics.storage.segments.segment_scan import layout_of
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.tags_format import decode_tags
from topics.storage.segments.topic_segments import Segment
from topics.storage.wal.wal_files import LogPosition

MOST_TAGS_BYTES: Final = 1 << 31
"""`.tags` are read up to here; none is as long."""

_AROUND: Final = 9
"""Bytes of a frame behind its body: checksum and delete flag."""


class SegmentCopy(NamedTuple):
    """The files of a sealed segment as the second home has them, each with the hash that it should have. `deleted` has
    a bit for each slot that was deleted when the copy was named last; it may be shorter."""

    data: bytes
    idx: bytes
    tags: bytes
    deleted: bytes


class SecondHome(Protocol):
    """Where the files of sealed segments, and the log, are a second time. Methods block for a bounded time."""

    def segment(self, topic_id: int, first: int, salt: int) -> SegmentCopy | None:
        """Return the files of a segment of this directory; None if there is no copy, or a damaged one. Raises OSError
        if that cannot be known now."""
        ...

    def log_bytes(self, shard: int, ordinal: int, start: int, stop: int) -> Generator[tuple[int, bytes]]:
        """Yield what there is of the synced bytes `start` to `stop` (exclusive) of a file of the log, as offsets and
        bytes, ascending. Raises OSError if that cannot be known now."""
        ...

    def log_positions(self) -> list[LogPosition]:
        """Return up to where a sync has covered the log of this directory, as far as is known, by shard; an empty list
        if it is not the log that is known. Never raises."""
        ...


class LocalFiles(NamedTuple):
    """The files of a segment here; None for one that is missing."""

    data: bytes | None
    idx: bytes | None
    tags: bytes | None


class CountedSlots(NamedTuple):
    """The counts of a segment's slots that are in memory."""

    start: int
    """Slots before this one count no more."""
    deleted: int
    lost: int
    """How many are deleted, and lost, from `start` on."""
    unflagged: Collection[int]
    """Slots that are deleted, perhaps without a flag in the files."""


class MendedFiles(NamedTuple):
    """The files to be written; None for one that is good as it is."""

    data: bytes | None
    idx: bytes | None
    tags: bytes | None
    taken: int
    """How many bytes of `.data` are from the copy."""
    damaged: int
    """Frames that are valid neither here nor in the copy."""


class NotMendable(Exception):
    """The copy cannot mend the files. The message is a sentence for the log."""


def may_be_mended(segment: Segment) -> bool:
    """Return True if there may be a copy that tells by its salt that it is of this segment."""
    return segment.tier == "hot" and segment.sealed and segment.salt is not None


def counted_slots(span: Span) -> CountedSlots:
    """Return what memory knows of the slots of a span's segment."""
    segment = span.segment
    assert isinstance(segment, Segment)
    unflagged = {seq - segment.first for seq in span.unflagged or ()}
    return CountedSlots(span.first + span.start - segment.first, span.deleted, span.lost, unflagged)


def read_local(store: SegmentStore, segment: Segment) -> LocalFiles:
    """Return the files of a hot segment, `.data` and `.idx` up to the length that they should have: a damaged or
    hostile file may say that it is much longer. Raises OSError. Blocking."""

    def file(kind: str, most: int) -> bytes | None:
        try:
            return store.read_range(segment.topic_id, segment_name(segment.first, kind), 0, most)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return None  # sectors that cannot be read are damage, too

    return LocalFiles(
        file("data", segment.data_bytes), file("idx", INDEX_ENTRY_BYTES * segment.n), file("tags", MOST_TAGS_BYTES)
    )


def mended(local: LocalFiles, copy: SegmentCopy, segment: Segment, counted: CountedSlots) -> MendedFiles:
    """Return the files as they were before the damage. Raises NotMendable. Computes checksums: for a worker thread."""
    assert segment.salt is not None
    _check_generation(local, copy, segment)
    index = decode_index(copy.idx)
    here = _own_entries(local.idx, index, segment.n)
    ours = _valid_frames(local.data, index, segment)
    theirs = _valid_frames(copy.data, index, segment)
    states = _States(local, copy, index, here, ours)
    _check_deletions(states, counted)
    data, taken, damaged = bytearray(copy.data), 0, 0
    for i, size in enumerate(index.frame_len):
        if not size:
            continue
        at = index.offset[i]
        if ours[i] or (not theirs[i] and local.data is not None and at + size <= len(local.data)):
            assert local.data is not None
            data[at : at + size] = local.data[at : at + size]
        taken += 0 if ours[i] or not theirs[i] else size
        damaged += not (ours[i] or theirs[i])
        data[at + size - 1] = DELETED_FLAG if states.flagged[i] else LIVE_FLAG
    if damaged and not taken:
        raise NotMendable("the copy has the same damage")
    flags = [
        flag | IDX_DELETED if flagged and size else flag
        for flag, flagged, size in zip(states.flags, states.flagged, index.frame_len, strict=True)
    ]
    whole = bytes(data)
    idx = encode_index(states.offsets, index.frame_len, index.ts, flags)
    return MendedFiles(
        whole if whole != local.data else None,
        idx if idx != local.idx else None,
        _mended_tags(local, copy, segment),
        taken,
        damaged,
    )


def put_mended(store: SegmentStore, segment: Segment, files: MendedFiles) -> None:
    """Write mended files. `.data` comes last, so after a crash before it the damage is found again. The layout is the
    same all the time: the files fit each other in every state between. `.data` is plain then, even if it was packed.
    Raises OSError. Blocking."""
    for kind, content in (("idx", files.idx), ("tags", files.tags), ("data", files.data)):
        if content is not None:
            store.put(segment.topic_id, segment_name(segment.first, kind), [content])
    deletions = segment_name(segment.first, "del")
    if files.data is not None and store.exists(segment.topic_id, deletions):
        store.delete(segment.topic_id, deletions)  # the flags are in `.data`


class _States:
    """The known deletions, slot by slot."""

    def __init__(
        self,
        local: LocalFiles,
        copy: SegmentCopy,
        index: IndexColumns,
        here: list[tuple[int, int] | None],
        ours: bytearray,
    ) -> None:
        n = len(index.flags)
        self.flagged = bytearray(n)
        """1 for slots whose records are flagged as deleted in the mended files."""
        self.known = bytearray(n)
        """1 for slots that are deleted, for all that is known."""
        self.unknown = 0
        """How many slots the local files say nothing about."""
        self.offsets = array("I", index.offset)
        self.flags = bytearray(index.flags)
        for i, size in enumerate(index.frame_len):
            entry = here[i]
            if entry is not None:
                self.offsets[i], self.flags[i] = entry
            flag = self.flags[i]
            if not size:
                self.known[i] = not flag & IDX_HOLE
                continue
            at = index.offset[i] + size - 1
            there = bool(
                index.flags[i] & IDX_DELETED
                or READS_AS_DELETED[copy.data[at]]
                or (i >> 3 < len(copy.deleted) and copy.deleted[i >> 3] >> (i & 7) & 1)
            )
            if ours[i]:
                assert local.data is not None
                self.flagged[i] = bool(flag & IDX_DELETED and entry is not None) or READS_AS_DELETED[local.data[at]]
            else:
                self.unknown += entry is None
                self.flagged[i] = there or bool(flag & IDX_DELETED)
            self.known[i] = self.flagged[i] or there
            if not self.flagged[i]:
                self.flags[i] &= ~IDX_DELETED


def _check_deletions(states: _States, counted: CountedSlots) -> None:
    """Raises NotMendable if not all deletions of a segment are known."""
    known = sum(
        bool(state or i in counted.unflagged) for i, state in enumerate(states.known[counted.start :], counted.start)
    )
    if known < counted.deleted or (states.unknown and counted.lost):
        raise NotMendable("it is not known any more which of its records were deleted")


def _check_generation(local: LocalFiles, copy: SegmentCopy, segment: Segment) -> None:
    """Raises NotMendable if the copy is of another file than the topic's part names, or the local file is."""
    there = layout_of(copy.data[:FILE_HEADER_BYTES], segment.first, segment.salt)
    if there.header is None or there.damage is not None or there.salt != segment.salt:
        raise NotMendable("the copy is of another generation")
    if len(copy.data) != segment.data_bytes or len(copy.idx) != INDEX_ENTRY_BYTES * segment.n:
        raise NotMendable("the copy is not as long as the segment")
    index = decode_index(copy.idx)
    places = zip(index.offset, index.frame_len, strict=True)
    if index.bad or any(
        size and not (at >= FILE_HEADER_BYTES and size >= MIN_FRAME_BYTES and at + size <= len(copy.data))
        for at, size in places
    ):
        raise NotMendable("the index of the copy is damaged")
    if local.data is not None:
        here = layout_of(local.data[:FILE_HEADER_BYTES], segment.first, segment.salt)
        if here.header is not None and here.salt != segment.salt:
            raise NotMendable("the file here is of another generation than the topic's part says")


def _own_entries(blob: bytes | None, index: IndexColumns, n: int) -> list[tuple[int, int] | None]:
    """Return offset and flags of the entries of the local `.idx`; None for those that do not verify, or are about
    another frame."""
    if blob is None:
        return [None] * n
    own = decode_index(blob[: INDEX_ENTRY_BYTES * n])
    bad = set(own.bad)
    found: list[tuple[int, int] | None] = []
    for i in range(n):
        size = index.frame_len[i]
        is_same = i < len(own.flags) and i not in bad and own.frame_len[i] == size
        is_same = is_same and (not size or own.offset[i] == index.offset[i])
        found.append((own.offset[i], own.flags[i]) if is_same else None)
    return found


def _valid_frames(data: bytes | None, index: IndexColumns, segment: Segment) -> bytearray:
    """Return 1 for each slot whose frame is valid in these bytes."""
    valid = bytearray(len(index.flags))
    if data is None:
        return valid
    assert segment.salt is not None
    for i, (at, size) in enumerate(zip(index.offset, index.frame_len, strict=True)):
        if not size or at + size > len(data):
            continue
        frame = data[at : at + size]
        valid[i] = (
            int.from_bytes(frame[:4], "little") == size - 4
            and int.from_bytes(frame[5:13], "little") == segment.first + i
            and int.from_bytes(frame[-_AROUND:-1], "little") == xxh3(frame[4:-_AROUND], frame_seed(segment.salt, at))
        )
    return valid


def _mended_tags(local: LocalFiles, copy: SegmentCopy, segment: Segment) -> bytes | None:
    """Return the copy's `.tags` if the local ones cannot be used; None otherwise."""

    def holds(blob: bytes) -> bool:
        try:
            decode_tags(blob, segment.first, segment.n)
        except SegmentDamaged:
            return False
        return True

    if local.tags is not None and holds(local.tags):
        return None
    return copy.tags if holds(copy.tags) else None


def has_places(damaged: Sequence[tuple[int, int]], first: int, frame_len: Sequence[int]) -> bool:
    """Return True if all these records (inclusive ranges of seqs, in the columns of a span from `first` on) have a
    place, so that only their bytes are missing."""
    return all(frame_len[seq - first] for lo, hi in damaged for seq in range(lo, hi + 1))
