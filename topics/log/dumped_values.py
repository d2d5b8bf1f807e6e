"""Numbers and arrays as dumps hold them: what comes from a disk is checked before anybody counts with it."""

from __future__ import annotations

import sys
from array import array


def little_endian(values: array[int]) -> bytes:
    """The items as little-endian bytes, as dumps hold them."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def whole(value: object) -> int:
    """A number of a dump, which is one already: `int` would take texts, and work for hours on a decimal of CBOR.
    Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"dump: {type(value).__name__} instead of a number")
    return value


def from_little_endian(typecode: str, value: object) -> array[int]:
    """The inverse of `little_endian`. Raises ValueError if `value` is not bytes of whole items."""
    if not isinstance(value, bytes):
        raise ValueError(f"array dump: {type(value).__name__} instead of bytes")
    values: array[int] = array(typecode)
    values.frombytes(value)
    if sys.byteorder == "big":
        values.byteswap()
    return values
