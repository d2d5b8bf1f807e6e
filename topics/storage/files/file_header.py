"""The header of WAL files and of `.data` files, and the seed of a frame's checksum (`docs/spec/storage.md` section 6).

    off  size  field
      0     8  magic    b"TOPICS2\\0"
      8     8  salt     random, one for each file; a rewritten or merged file has a new one
     16     8  number   WAL: ordinal of the file's first frame; segment: its first seq
     24     8  xxh3_64  over the 24 bytes before

All integers are little-endian. A file without the magic is of version 1: it has no header, and its first frame stands
at offset 0.

Why the salt: clients choose bytes that end up inside frames, and could choose the bytes of a whole frame. The checksum
of a frame is therefore computed with a seed that clients do not know, and that differs at each offset. So bytes that a
client sent are never a valid frame, nor is a frame that was moved or copied to another place.

This module knows the header and the seed. The readers of WAL and segments decide what a damaged header means.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import xxhash

MAGIC: Final = b"TOPICS2\0"
FILE_HEADER_BYTES: Final = 32
_HEADER: Final = struct.Struct("<8sQQQ")
_SUMMED: Final = 24


class FileHeader(NamedTuple):
    """A verified header. `number` is the ordinal or first seq, as in the file's name."""

    salt: int
    number: int


class BadFileHeader(Exception):
    """The file begins with the magic of version 2, but its header is damaged."""


def encode_file_header(salt: int, number: int) -> bytes:
    """Return the 32 bytes with which a file of version 2 begins. `salt` is random (`Fs.salt`)."""
    head = _HEADER.pack(MAGIC, salt, number, 0)[:_SUMMED]
    return head + xxhash.xxh3_64_intdigest(head).to_bytes(8, "little")


def decode_file_header(data: bytes) -> FileHeader | None:
    """Return the header of a file that begins with `data` (at least 32 bytes, or the whole file). None: a file of
    version 1.

    Raises BadFileHeader if the magic is there and the rest is damaged.
    """
    if not data.startswith(MAGIC):
        return None
    if len(data) < FILE_HEADER_BYTES:
        raise BadFileHeader(f"the file ends inside its header, after {len(data)} bytes")
    _, salt, number, checksum = _HEADER.unpack_from(data)
    if checksum != xxhash.xxh3_64_intdigest(data[:_SUMMED]):
        raise BadFileHeader("the checksum of the file's header does not hold")
    return FileHeader(salt, number)


def first_frame(header: FileHeader | None) -> int:
    """Return the offset of a file's first frame."""
    return 0 if header is None else FILE_HEADER_BYTES


def frame_seed(salt: int | None, offset: int) -> int:
    """Return the seed of the checksum of the frame at `offset`. `salt` is None in a file of version 1, whose frames
    have seed 0."""
    return 0 if salt is None else salt ^ offset
