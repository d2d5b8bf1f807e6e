"""How a WAL file begins: its version, and the salt of its frames (`docs/spec/storage.md` sections 2 and 6).

Every reader of WAL files needs this before the first frame: a file of version 2 begins with a valid header, one of
version 1 with a frame, and any other beginning is damage. Recovery decides what to do with a damaged beginning.

No byte tells a file of version 1 whose first frame is damaged from one of version 2 whose header is. Bytes that a
client chose must never be read without a salt, so the second is assumed. Other knowledge is used:

- FORMAT: as long as it says 1, no file has a header. It is raised only after recovery has understood every file.
- A shard never goes back: behind a file of version 2 there is none of version 1.
- A header is synced before its file gets its name. So no crash leaves a torn header, and a file that begins with zeros
  has lost its header, unless it is the empty last file of a shard of version 1.
- A single flipped bit is corrected: of the 256 neighbours of 32 bytes only the header that was written has a valid
  checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from topics.storage.files.datadir import FORMAT, DataDir, DataDirError, read_format, wal_path
from topics.storage.files.file_header import (
    FILE_HEADER_BYTES,
    BadFileHeader,
    FileHeader,
    decode_file_header,
    encode_file_header,
)
from topics.storage.files.fs import WINDOW_BYTES, File, Fs
from topics.storage.wal import frames
from topics.storage.wal.frames import LogScan


class WalHead(NamedTuple):
    """The beginning of a WAL file. `salt` is None in a file of version 1, and where it is unknown."""

    salt: int | None
    first: int
    """The offset of the first frame."""
    problem: str | None = None
    """The damage of the beginning, if any; then no frame of the file can be verified."""
    corrected: bool = False
    """True if one flipped bit of the header was corrected."""


class WalWindow(NamedTuple):
    """Some bytes of a WAL file, and the frames in them."""

    scan: LogScan
    data: bytes
    base: int
    """The offset of `data` in the file."""


TAIL_BYTES: Final = 4096
"""A file of version 2 ends in FileEnd, or in at least so many zeros. The writer keeps twice as many."""

HEADLESS: Final = WalHead(None, 0)
"""The beginning of every file of version 1."""


def new_head(salt: int) -> WalHead:
    """Return the beginning of a new file."""
    return WalHead(salt, FILE_HEADER_BYTES)


def wal_format(fs: Fs, datadir: DataDir) -> int:
    """Return the version of the WAL according to FORMAT; the newest if that is missing or unreadable, because then a
    file without a header is damage rather than old."""
    with suppress(FileNotFoundError, DataDirError):
        return read_format(fs, datadir)["wal"]
    return FORMAT["wal"]


def read_heads(fs: Fs, directory: str, ordinals: Iterable[int], *, version: int) -> dict[int, WalHead]:
    """Return the beginnings of a shard's files, given all their ordinals. `version` is that of FORMAT.

    Blocking. Files that are removed meanwhile are left out.
    """
    heads: dict[int, WalHead] = {}
    before: WalHead | None = None
    for ordinal in sorted(ordinals):
        if version == 1:
            heads[ordinal] = HEADLESS
            continue
        try:
            handle = fs.open(wal_path(directory, ordinal), read_only=True)
        except FileNotFoundError:
            continue
        with handle:
            before = heads[ordinal] = _read_head(handle, ordinal, before)
    return heads


def scans(handle: File, head: WalHead, at: int, size: int) -> Iterator[WalWindow]:
    """Yield the verified frames of a file from `at` on, window by window, up to its end or the first bytes that are not
    a frame. Raises UnknownFrameType, OSError."""
    length = WINDOW_BYTES
    while True:
        window = handle.pread(max(min(length, size - at), 0), at)
        scan = frames.scan_window(window, at, file_end=size, salt=head.salt)
        yield WalWindow(scan, window, at)
        if scan.reason != "window" or not window:
            return
        length = WINDOW_BYTES if scan.stop > at else length * 2
        at = scan.stop


def _read_head(handle: File, ordinal: int, before: WalHead | None) -> WalHead:
    size = handle.size()
    data = handle.pread(min(FILE_HEADER_BYTES, size), 0)
    problem = "it begins with neither a header nor a frame"
    try:
        header = decode_file_header(data)
    except BadFileHeader as error:
        header, problem = None, str(error)
    corrected = header is None
    header = header or _corrected(data)
    if header is not None:
        if header.number != ordinal:
            return WalHead(None, FILE_HEADER_BYTES, f"its header is that of a file of frame {header.number}")
        return WalHead(header.salt, FILE_HEADER_BYTES, corrected=corrected)
    may_be_old = before is None or before == HEADLESS
    if may_be_old and _begins_with_frame(handle, size):
        return HEADLESS
    if before == HEADLESS and not data.strip(b"\0"):
        return HEADLESS
    return WalHead(None, FILE_HEADER_BYTES, problem)


def _corrected(data: bytes) -> FileHeader | None:
    """Return the valid header that differs from these bytes in one bit, None if there is none."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    for bit in range(8 * FILE_HEADER_BYTES):
        changed = bytearray(data)
        changed[bit >> 3] ^= 1 << (bit & 7)
        with suppress(BadFileHeader):
            header = decode_file_header(bytes(changed))
            if header is not None and encode_file_header(*header) == changed:
                return header
    return None


def _begins_with_frame(handle: File, size: int) -> bool:
    """Return True if the file begins with a valid frame without a salt."""
    length = min(WINDOW_BYTES, size)
    while True:
        try:
            scan = frames.scan_window(handle.pread(length, 0), 0, file_end=size, salt=None)
        except frames.UnknownFrameType:
            return True
        if scan.rows or scan.reason != "window":
            return bool(scan.rows)
        length = min(2 * length, size)
