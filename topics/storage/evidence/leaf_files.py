"""`.mrk` files: the leaves of a topic's Merkle tree, beside its segments (`docs/design/evidence.md` section 3).

    size  field
       8  "TOPICSM1"
       8  seq of the first leaf
       8  number of leaves, n
    32 n  leaves
       8  xxh3_64 of everything before
    4096  only if the file is a whole block: the roots of its subtrees of 128 leaves
       8  xxh3_64 of the first 24 bytes and these roots

All integers are little-endian. A file is written once, under a temporary name if another file has its name, and never
changed. Its name says which leaves it has: `seg-<first seq, 20 digits>-<n>.mrk`. A leaf of a tree is the same in every
file that has it, so files may overlap.

The leaves of a tree are divided into blocks of 2^14, from its first leaf on. A whole block is one file. The leaves of
the last block, which is not whole yet, are in up to `MAX_PIECES` files.
"""

from __future__ import annotations

import re
import struct
from typing import Final, NamedTuple

import xxhash

from topics.evidence.merkle import level_above
from topics.evidence.record_leaf import LEAF_BYTES

BLOCK_LEVEL = 14
BLOCK_LEAVES = 1 << BLOCK_LEVEL
"""Leaves of a block: a file of 516 KiB, whose root is computed in 10 ms. 100 million records are 6,100 files."""

MIDDLE_LEVEL = 7
"""The height of the subtrees whose roots a whole block has besides: the root of the block takes 127 hashes then."""

MAX_PIECES = 16
"""Files of the block that is not whole. When there are so many, they are joined."""

_MAGIC: Final = b"TOPICSM1"
_HEAD: Final = struct.Struct("<8sQQ")
_SUM: Final = struct.Struct("<Q")
HEAD_BYTES: Final = _HEAD.size

# The constants above are read where they are used, so that tests can make them smaller.
_NAME: Final = re.compile(r"seg-([0-9]{20})-([1-9][0-9]{0,5})\.mrk")


class LeafFile(NamedTuple):
    """A file by its name."""

    first_seq: int
    leaves: int

    @property
    def name(self) -> str:
        """Its name in the directory of the topic."""
        return f"seg-{self.first_seq:020d}-{self.leaves}.mrk"

    @property
    def end_seq(self) -> int:
        """One past the seq of its last leaf."""
        return self.first_seq + self.leaves


class LeavesDamaged(Exception):
    """A `.mrk` does not verify, or is missing. The message names it."""


def parse_leaf_name(name: str) -> LeafFile | None:
    """Return the file of a name; None for any other name, also for one with more leaves than a block has: no file of
    ours, and it must not stand for others."""
    found = _NAME.fullmatch(name)
    if found is None or int(found[2]) > BLOCK_LEAVES:
        return None
    return LeafFile(int(found[1]), int(found[2]))


def encode_leaf_file(first_seq: int, leaves: bytes) -> bytes:
    """Return the bytes of the file with these leaves, at most a block of them. Those of a whole block are hashed."""
    count = len(leaves) // LEAF_BYTES
    assert 0 < count <= BLOCK_LEAVES
    head = _HEAD.pack(_MAGIC, first_seq, count)
    whole = head + leaves
    blob = whole + _SUM.pack(xxhash.xxh3_64_intdigest(whole))
    if count == BLOCK_LEAVES:
        middle = leaves
        for _ in range(MIDDLE_LEVEL):
            middle = level_above(middle)
        blob += middle + _SUM.pack(xxhash.xxh3_64_intdigest(head + middle))
    return blob


def decode_leaf_file(blob: bytes, file: LeafFile) -> bytes:
    """Return the leaves of a file, of which `blob` is the content. Raises LeavesDamaged."""
    end = HEAD_BYTES + file.leaves * LEAF_BYTES
    if len(blob) != file_bytes(file.leaves) or blob[:HEAD_BYTES] != _HEAD.pack(_MAGIC, *file):
        raise LeavesDamaged(f"{file.name} is not a file of {file.leaves} leaves")
    if _SUM.unpack_from(blob, end)[0] != xxhash.xxh3_64_intdigest(blob[:end]):
        raise LeavesDamaged(f"the checksum of {file.name} does not match")
    return blob[HEAD_BYTES:end]


def decode_middle(head: bytes, tail: bytes, file: LeafFile) -> bytes:
    """Return the roots of the subtrees of `MIDDLE_LEVEL` of a whole block, from the beginning and the end of its file.
    Raises LeavesDamaged."""
    if head != _HEAD.pack(_MAGIC, *file) or len(tail) != _middle_bytes() + _SUM.size:
        raise LeavesDamaged(f"{file.name} is not a file of {file.leaves} leaves")
    middle = tail[: _middle_bytes()]
    if _SUM.unpack_from(tail, _middle_bytes())[0] != xxhash.xxh3_64_intdigest(head + middle):
        raise LeavesDamaged(f"the checksum of the subtrees of {file.name} does not match")
    return middle


def middle_at() -> tuple[int, int]:
    """Return offset and length of what `decode_middle` takes as the end of a file."""
    return HEAD_BYTES + BLOCK_LEAVES * LEAF_BYTES + _SUM.size, _middle_bytes() + _SUM.size


def _middle_bytes() -> int:
    return LEAF_BYTES << BLOCK_LEVEL - MIDDLE_LEVEL


def file_bytes(count: int) -> int:
    """Return the length of a file of so many leaves."""
    middle = _middle_bytes() + _SUM.size if count == BLOCK_LEAVES else 0
    return HEAD_BYTES + count * LEAF_BYTES + _SUM.size + middle
