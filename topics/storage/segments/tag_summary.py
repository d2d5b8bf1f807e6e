"""A summary of the tags of a segment: for most tags that the segment does not have, it says so.

A Bloom filter with 16 bits for each tag and two hashes. It wrongly reports one in 70 of the tags that the segment does
not have. It takes a tenth of the memory of the tags, so memory can keep the summaries of many more segments, and a
search for a tag reads only the files of segments that may have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

BITS: Final = 16
"""Bits for each tag."""


def key_of(name: bytes) -> int:
    """Return the key of a tag (given in UTF-8) in a summary."""
    return xxh3_64_intdigest(name)


class TagSummary:
    """The summary of some tags."""

    __slots__ = ("_bits", "_size")

    def __init__(self, names: Iterable[bytes], count: int) -> None:
        """`names` are the tags in UTF-8, `count` is how many there are."""
        self._size = size = BITS * max(1, count)
        bits = bytearray(size >> 3)
        for name in names:
            key = xxh3_64_intdigest(name)
            at = (key & 0xFFFF_FFFF) * size >> 32
            bits[at >> 3] |= 1 << (at & 7)
            at = (key >> 32) * size >> 32
            bits[at >> 3] |= 1 << (at & 7)
        self._bits = bytes(bits)

    @property
    def nbytes(self) -> int:
        """Bytes of memory, for a cache."""
        return len(self._bits) + 100

    def may_have(self, key: int) -> bool:
        """Return False only if the segment does not have the tag with this key."""
        bits, size = self._bits, self._size
        first, second = (key & 0xFFFF_FFFF) * size >> 32, (key >> 32) * size >> 32
        return bool(bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & 1)
