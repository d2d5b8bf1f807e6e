"""`.del`: which records of a packed segment were deleted after it was packed (`docs/design/packed_segments.md`).

A byte of a packed file is never written again, so the delete flags that a plain `.data` gets in place are listed here.
The file is cumulative: each has all positions of the one before. It is written under another name and renamed, so after
a crash there is one or the other. All integers are little-endian.

    off  size  field
      0     8  magic       b"TOPICSD1"
      8     8  generation  that of the packed file; the file says nothing about any other
     16     4  count
     20   4 n  positions   of delete flags that are set, in the unpacked form, ascending
      .     8  xxh3_64     over everything before, with the seed generation

All of it stands there twice, one behind the other: a deleted record must not come back because of one damaged byte.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable
from itertools import pairwise
from typing import Final, NamedTuple

import xxhash

from topics.log.dumped_values import from_little_endian, little_endian

MAGIC: Final = b"TOPICSD1"

MOST_POSITIONS: Final = 1 << 21
"""More than a segment has slots."""

DELETIONS_HEAD_BYTES: Final = 20
_HEAD: Final = struct.Struct("<8sQI")
_SUM: Final = struct.Struct("<Q")


class DeletionList(NamedTuple):
    """The content of a `.del`: positions of delete flags, ascending, in the unpacked form of the file of a
    generation."""

    generation: int
    positions: array[int]


def encode_deletions(generation: int, positions: Iterable[int]) -> bytes:
    """Return the content of a `.del`."""
    listed = array("I", sorted(set(positions)))
    assert len(listed) <= MOST_POSITIONS
    one = _HEAD.pack(MAGIC, generation, len(listed)) + little_endian(listed)
    one += _SUM.pack(xxhash.xxh3_64_intdigest(one, generation))
    return one + one


def decode_deletions(blob: bytes) -> DeletionList | None:
    """Return what a `.del` says; None if neither copy verifies."""
    return _decoded(blob, 0) or _decoded(blob, len(blob) // 2)


def deletions_are_whole(blob: bytes) -> bool:
    """Return True if both copies verify, and are the same."""
    half = len(blob) // 2
    return len(blob) % 2 == 0 and blob[:half] == blob[half:] and _decoded(blob, 0) is not None


def _decoded(blob: bytes, at: int) -> DeletionList | None:
    """Return what the copy at this offset says; None if it does not verify."""
    if len(blob) < at + DELETIONS_HEAD_BYTES or blob[at : at + 8] != MAGIC:
        return None
    _, generation, count = _HEAD.unpack_from(blob, at)
    end = at + DELETIONS_HEAD_BYTES + 4 * count
    if count > MOST_POSITIONS or len(blob) < end + _SUM.size:
        return None
    if _SUM.unpack_from(blob, end)[0] != xxhash.xxh3_64_intdigest(blob[at:end], generation):
        return None
    positions = from_little_endian("I", blob[at + DELETIONS_HEAD_BYTES : end])
    if any(a >= b for a, b in pairwise(positions)):
        return None
    return DeletionList(generation, positions)
