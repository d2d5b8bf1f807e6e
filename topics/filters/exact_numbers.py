"""Comparing JSON numbers exactly, as they are written: numbers of any size are not rounded.

A number becomes a key: its sign, the power of ten of its first digit, and its digits. Keys of numbers compare as the
numbers do. Making a key takes time in proportion to the text, also for `1e999999999`.

Most numbers are short, and short numbers are compared as floats. This is exact, because two different decimals of at
most 15 digits have different nearest floats, and the larger decimal has the larger float.
"""

from __future__ import annotations

import re
from typing import Final

SHORT: Final = 15
"""Numbers of at most so many characters, without an exponent, are compared exactly as floats."""

NumberKey = tuple[int, int, bytes]
"""Sign (-1, 0, 1), power of ten, digits. For a negative number, power and digits are inverted."""

_NUMBER: Final = re.compile(rb"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]*))?")

_COMPLEMENT: Final = bytes.maketrans(b"0123456789", b"9876543210")

_MOST_EXPONENT: Final = 1100
"""An exponent with more digits counts as 10 to this power. No number of a filter has so many characters, so a number
with such an exponent is above all numbers of filters, or nearer to zero than all of them."""

_FLOAT_POWERS: Final = 300
"""Powers of ten within which floats have their full precision."""


def key_of(text: bytes) -> NumberKey:
    """Return the key of a JSON number."""
    found = _NUMBER.fullmatch(text)
    assert found is not None, "not a JSON number"
    sign, whole, fraction, exponent_sign, exponent = found.groups(b"")
    digits = whole + fraction
    significant = digits.lstrip(b"0")
    if not significant:
        return (0, 0, b"")
    power = 10**_MOST_EXPONENT if len(exponent) > _MOST_EXPONENT else int(exponent or b"0")
    power = (-power if exponent_sign == b"-" else power) + len(whole) - (len(digits) - len(significant))
    significant = significant.rstrip(b"0")
    if not sign:
        return (1, power, significant)
    # With inverted digits a longer number is smaller, so the end mark `:` sorts above all digits.
    return (-1, -power, significant.translate(_COMPLEMENT) + b":")


def is_short(text: bytes) -> bool:
    """Return True if this JSON number, as a float, compares exactly with every float that `as_float` returns."""
    return len(text) <= SHORT and b"e" not in text and b"E" not in text


def as_float(text: bytes) -> float | None:
    """Return the float with which short numbers are compared; None if the number has too many digits, or is too large
    or too small."""
    sign, power, digits = key_of(text)
    if len(digits) - (sign < 0) > SHORT or abs(power) > _FLOAT_POWERS:
        return None
    return float(text)
