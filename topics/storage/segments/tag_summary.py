"""A summary of the tags of a segment: says of most tags that are not there that they are not.

A Bloom filter with 16 bits for each tag and two hashes: one of 70 tags that are not there seems to be. It takes a tenth
of what the tags take, so the summaries of many more segments than tags can stay in memory, and a look for a tag asks
only the files of segments that may have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xxhash import xxh3_64_intdigest

BITS: Final = 16
"""Bits for each tag."""


def key_of(name: bytes) -> int:
    """Return what a summary knows a tag by, which is given in UTF-8."""
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
        """Return False only if the tag with this key is not there."""
        bits, size = self._bits, self._size
        first, second = (key & 0xFFFF_FFFF) * size >> 32, (key >> 32) * size >> 32
        return bool(bits[first >> 3] >> (first & 7) & bits[second >> 3] >> (second & 7) & 1)
