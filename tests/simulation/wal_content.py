"""The content of WAL files, for tests: their frames, and frames put into them."""

from __future__ import annotations

from topics.storage.files.file_header import decode_file_header, first_frame
from topics.storage.wal.frames import FrameSeeds, LogScan, UnsealedFrames, scan_window


def salt_of(content: bytes) -> int | None:
    """The salt of a file; None of version 1."""
    header = decode_file_header(content)
    return header.salt if header is not None else None


def begin_of(content: bytes) -> int:
    """The offset of a file's first frame."""
    return first_frame(decode_file_header(content))


def seeds_of(content: bytes) -> FrameSeeds:
    """The seeds of the frames of a whole file."""
    return FrameSeeds(salt_of(content), 0)


def scan_of(content: bytes) -> LogScan:
    """The frames of a whole file, up to its end or the first bytes that are none."""
    begin = begin_of(content)
    return scan_window(content[begin:], begin, file_end=len(content), salt=salt_of(content))


def sealed_for(content: bytes, frames: UnsealedFrames, at: int) -> bytes:
    """These frames as they stand at `at` of the file."""
    return frames.sealed(salt_of(content), at)
