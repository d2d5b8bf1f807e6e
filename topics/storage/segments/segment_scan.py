"""Reading a whole `.data` file from front to back: its header, its frames, and where they continue behind bad bytes
(`docs/spec/storage.md` sections 4 and 6).

Theory of operation. The header has the salt of the file's checksums. The part has the same salt in the segment's entry,
for a file whose header is damaged. A valid header decides, because a crash may have left a part that is older than its
file.

Frames follow one another. Where bytes are no valid frame, the search for the next one obeys these rules, so that bytes
that a client chose are not taken for frames, and intact frames are not given up:

- In a file of version 2 a valid checksum was made for this file and this offset: a frame may be searched at every byte.
- In a file of version 1 a record may contain a valid frame. If `.idx` verifies, only the places that it names are
  searched. Without it, first the end that the bad frame itself claims, then every byte.
- A found frame counts only if its seq is above the seq of the last valid frame, and within the segment.
- The work is bounded: `SEARCH_WORK` times the bytes of the file, with `CANDIDATE_WORK` bytes charged for each place
  that looks like the head of a frame. Beyond the bound the rest of the file is given up.

Everything here blocks in `read`.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from topics.storage.files.file_header import (
    FILE_HEADER_BYTES,
    MAGIC,
    BadFileHeader,
    FileHeader,
    decode_file_header,
    first_frame,
)
from topics.storage.files.fs import WINDOW_BYTES
from topics.storage.segments.index_format import IDX_HOLE, INDEX_ENTRY_BYTES, decode_index
from topics.storage.segments.segment_format import HEADER_BYTES, MIN_FRAME_BYTES, TRAILER_BYTES, DataScan, scan_data
from topics.storage.wal.frames import HAS_ORIGIN
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

SEARCH_WORK: Final = 4
"""All searches of one pass together may checksum so many times the bytes of the file."""

CANDIDATE_WORK: Final = 64
"""Examining a candidate head that is not a frame counts as so many bytes."""

SPARE_WORK: Final = 1 << 20
"""A search may always checksum so many bytes, however short the file is."""

_HEADER: Final = struct.Struct("<IBQQHHI")

_NEARLY: Final = 3
"""If the first bytes of a file differ from the magic in at most so many bits, they count as a damaged header. The first
frame of a file of version 1 differs in at least four bits."""

# frame_len not 0, flags of ours, seq below 2**48, ts below 2**48: looked for at every byte, hence the lookahead.
_CANDIDATE: Final = re.compile(rb"(?=(?!\x00{4}).{4}[\x00-\x03\x20-\x23].{6}\x00\x00.{6}\x00\x00.{8})", re.DOTALL)

Read = Callable[[int, int], bytes]
"""Returns bytes of the file, given offset and length; fewer at its end."""


class DataLayout(NamedTuple):
    """How to read a `.data` file. `salt` is None for version 1, `start` is the offset of the first frame, `header` the
    valid header, `damage` the damage of the header, None for none. With damage and without a salt, no frame of the file
    can be verified."""

    salt: int | None
    start: int
    header: FileHeader | None
    damage: str | None


class BadBytes(NamedTuple):
    """Bytes `start` to `stop` (exclusive) of a file, which are not valid frames."""

    start: int
    stop: int


def layout_of(head: bytes, first: int, known: int | None) -> DataLayout:
    """Return the layout of the segment from seq `first` on, whose `.data` begins with `head` (at least
    `FILE_HEADER_BYTES`, or the whole file). `known` is the salt in the segment's entry in a part; None if there is
    none.

    A file is read as version 1 only if its beginning is not nearly that of version 2, and the part does not say that it
    is version 2.
    """
    damage = None
    header: FileHeader | None = None
    try:
        header = decode_file_header(head)
    except BadFileHeader as error:
        damage = str(error)
    if header is None and damage is None:
        differing = sum((a ^ b).bit_count() for a, b in zip(head, MAGIC, strict=False))
        if known is None and (len(head) < len(MAGIC) or differing > _NEARLY):
            return DataLayout(None, first_frame(None), None, None)
        damage = "the file does not begin with its header"
    if header is None:
        header = _corrected(head)
    if header is not None and header.number != first:
        damage = f"the header is that of a segment from seq {header.number} on"
        header = None
    if header is not None:
        return DataLayout(header.salt, first_frame(header), header, damage)
    return DataLayout(known, FILE_HEADER_BYTES, None, damage)


def _corrected(head: bytes) -> FileHeader | None:
    """Return the header if a single bit of it has changed; None otherwise."""
    changed = bytearray(head[:FILE_HEADER_BYTES])
    if len(changed) < FILE_HEADER_BYTES:
        return None
    for bit in range(8 * len(changed)):
        changed[bit // 8] ^= 1 << bit % 8
        try:
            header = decode_file_header(bytes(changed))
        except BadFileHeader:
            header = None
        if header is not None:
            return header
        changed[bit // 8] ^= 1 << bit % 8
    return None


class IndexEntry(NamedTuple):
    """A frame that `.idx` names."""

    offset: int
    frame_len: int
    seq: int


def entries_of(blob: bytes, first: int, n: int) -> list[IndexEntry] | None:
    """Return the frames that an `.idx` names, by ascending offset; None if it does not verify as a whole, or
    contradicts itself."""
    if len(blob) < INDEX_ENTRY_BYTES * n:
        return None
    index = decode_index(blob[: INDEX_ENTRY_BYTES * n])
    if index.bad:
        return None
    columns = zip(index.offset, index.frame_len, index.flags, strict=True)
    entries = [
        IndexEntry(offset, size, first + i)
        for i, (offset, size, flags) in enumerate(columns)
        if size and not (flags & IDX_HOLE and size < MIN_FRAME_BYTES)
    ]
    end = 0
    for entry in entries:
        if entry.offset < end or entry.frame_len < MIN_FRAME_BYTES:
            return None
        end = entry.offset + entry.frame_len
    return entries


class SegmentFrameSearch:
    """Finds where the frames of one `.data` file continue behind bad bytes. One object for one pass over a file,
    because the bound of the work is for the whole pass."""

    def __init__(
        self,
        read: Read,
        end: int,
        seqs: range,
        *,
        salt: int | None,
        entries: Callable[[], Sequence[IndexEntry] | None] | None = None,
    ) -> None:
        """`end` is the number of bytes of the file that count, `seqs` the seqs that the segment may have. `entries`
        returns the entries of a valid `.idx`; it is called for a file of version 1 only, and at most once."""
        self._read = read
        self._end = end
        self._seqs = seqs
        self._salt = salt
        self._fetch = entries if salt is None else None
        self._entries: Sequence[IndexEntry] | None = None
        self._work = SEARCH_WORK * end + SPARE_WORK

    def find(self, bad: int, above: int) -> int:
        """Return the offset of the first valid frame behind the bad bytes at offset `bad`, with a seq greater than
        `above`; the end of the file if there is none, or finding it would take too much work."""
        if self._fetch is not None:
            self._entries, self._fetch = self._fetch(), None
        if self._entries is not None:
            return self._by_entries(self._entries, bad, above)
        if self._salt is None:
            claimed = self._claimed_end(bad)
            if claimed is not None and self._holds(claimed, above):
                return claimed
        return self._by_bytes(bad + 1, above)

    def _by_entries(self, entries: Sequence[IndexEntry], bad: int, above: int) -> int:
        for i in range(bisect_right(entries, bad, key=_offset_of), len(entries)):
            if self._holds(entries[i].offset, max(above, entries[i].seq - 1), entries[i]):
                return entries[i].offset
        return self._end

    def _claimed_end(self, bad: int) -> int | None:
        """Return where the bad frame ends, assuming that its length is right and the damage is elsewhere in it."""
        length = self._read(bad, 4)
        claimed = bad + 4 + int.from_bytes(length, "little")
        return claimed if len(length) == 4 and bad + MIN_FRAME_BYTES <= claimed < self._end else None

    def _by_bytes(self, at: int, above: int) -> int:
        while at < self._end and self._work > 0:
            window = self._read(at, min(WINDOW_BYTES, self._end - at))
            for candidate in _CANDIDATE.finditer(window):
                if self._holds(at + candidate.start(), above, window=window, at_window=at):
                    return at + candidate.start()
                if self._work <= 0:
                    break
            if len(window) < HEADER_BYTES or at + len(window) >= self._end:
                return self._end
            at += len(window) - (HEADER_BYTES - 1)
        if self._work <= 0:
            log.warning("frame_search_given_up", seqs=f"{self._seqs.start} to {self._seqs.stop - 1}", bytes=self._end)
        return self._end

    def _holds(
        self, at: int, above: int, entry: IndexEntry | None = None, *, window: bytes = b"", at_window: int = 0
    ) -> bool:
        """Return True if there is a valid frame at `at` whose seq is greater than `above`, is allowed in the segment,
        and is the seq of `entry` if given. `window`, from offset `at_window` on, has been read already."""
        self._work -= CANDIDATE_WORK
        if self._work <= 0:
            return False
        head = self._bytes(at, HEADER_BYTES, window, at_window)
        if len(head) < HEADER_BYTES:
            return False
        frame_len, flags, seq, _ts, node_len, tag_len, data_len = _HEADER.unpack(head)
        size = 4 + frame_len
        fits = size == HEADER_BYTES + node_len + tag_len + data_len + TRAILER_BYTES and at + size <= self._end
        if not fits or seq <= above or seq not in self._seqs or data_len < (21 if flags & HAS_ORIGIN else 4):
            return False
        if entry is not None and (size, seq) != (entry.frame_len, entry.seq):
            return False
        self._work -= size
        if self._work <= 0:
            return False
        frame = self._bytes(at, size, window, at_window)
        return bool(scan_data(frame, at, end=at + size, salt=self._salt).frame_len)

    def _bytes(self, at: int, size: int, window: bytes, at_window: int) -> bytes:
        begin = at - at_window
        return window[begin : begin + size] if begin + size <= len(window) else self._read(at, size)


def frames_of(
    read: Read,
    layout: DataLayout,
    end: int,
    seqs: range,
    entries: Callable[[], Sequence[IndexEntry] | None] | None = None,
) -> Iterator[DataScan | BadBytes]:
    """Yield the first `end` bytes of a file from its first frame on, window by window, in the order of the file: valid
    frames, and the ranges between them that have none. Parameters as for `SegmentFrameSearch`."""
    if layout.salt is None and layout.damage is not None:
        yield BadBytes(0, end)
        return
    search = SegmentFrameSearch(read, end, seqs, salt=layout.salt, entries=entries)
    at, size, last = layout.start, WINDOW_BYTES, seqs.start - 1
    while at < end:
        window = read(at, min(size, end - at))
        if not window:
            yield BadBytes(at, end)
            return
        rows = scan_data(window, at, end=end, salt=layout.salt)
        if rows.seq:
            yield rows
            last = max(last, rows.seq[-1])
        if rows.reason == "bad":
            size, at = WINDOW_BYTES, search.find(rows.stop, last)
            yield BadBytes(rows.stop, at)
            continue
        size = WINDOW_BYTES if rows.stop > at else 2 * size
        at = rows.stop


def _offset_of(entry: IndexEntry) -> int:
    return entry.offset
