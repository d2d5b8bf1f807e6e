"""Numbers and arrays as dumps hold them. Values from a disk are checked here before anything computes with them."""

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
    """Return `value` if it is an int of 0 to 2^64 - 1. Raises ValueError.

    `int(value)` would also accept text, and could compute for hours on a decimal of CBOR.
    """
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"dump: {type(value).__name__} instead of a number")
    return value


def text(value: object) -> str:
    """Return `value` if it is a str. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError(f"dump: {type(value).__name__} instead of a text")
    return value


def from_little_endian(typecode: str, value: object) -> array[int]:
    """Return the array that `little_endian` was called with. Raises ValueError if `value` is not bytes of whole
    items."""
    if not isinstance(value, bytes):
        raise ValueError(f"array dump: {type(value).__name__} instead of bytes")
    values: array[int] = array(typecode)
    values.frombytes(value)
    if sys.byteorder == "big":
        values.byteswap()
    return values
