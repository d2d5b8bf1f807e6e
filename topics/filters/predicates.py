"""Tests of one value: of a text (a tag, a node, a value of meta), and of a JSON text (a member of data).

A test of a JSON text is False for a missing value, and for a value whose JSON type is not that of the operand. Strings
compare by code point, numbers exactly (`topics.filters.exact_numbers`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from topics.filters.exact_numbers import as_float, is_short, key_of

ORDER: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "Lt": operator.lt,
    "Le": operator.le,
    "Gt": operator.gt,
    "Ge": operator.ge,
}

_QUOTE: Final = ord('"')
_LITERALS: Final = b"tfn"
_NUMBERS: Final = b"-0123456789"

_decode_text: Final = msgspec.json.Decoder(str).decode

TextTest = Callable[[str | None], bool]
JsonTest = Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class NumberLiteral:
    """A JSON number as it was written."""

    text: str


Scalar = None | bool | str | NumberLiteral
"""A value that is neither an object nor an array."""


def text_in(values: Iterable[str]) -> TextTest:
    """Return a test that a text is one of `values`."""
    return frozenset(values).__contains__


def text_begins(prefix: str) -> TextTest:
    """Return a test that a text begins with `prefix`."""
    return lambda text: text is not None and text.startswith(prefix)


def json_in(values: Iterable[Scalar]) -> JsonTest:
    """Return a test that a JSON text is equal to one of `values`."""
    every = list(values)
    strings = frozenset(value for value in every if isinstance(value, str))
    plain = frozenset(text for value in strings if (text := _unescaped(value)) is not None)
    literals = frozenset(_literal(value) for value in every if value is None or isinstance(value, bool))
    numbers = [value.text.encode() for value in every if isinstance(value, NumberLiteral)]
    floats = frozenset(value for text in numbers if (value := as_float(text)) is not None)
    keys = frozenset(map(key_of, numbers))

    def test(text: bytes) -> bool:
        first = text[0]
        if first == _QUOTE:
            return text in plain or (b"\\" in text and _decode_text(text) in strings)
        if first in _NUMBERS:
            if not keys:
                return False
            return float(text) in floats if is_short(text) else key_of(text) in keys
        return text in literals

    return test


def json_differs(value: Scalar) -> JsonTest:
    """Return a test that a JSON text has the type of `value`, and is not equal to it."""
    equal = json_in((value,))
    if isinstance(value, str):
        first = b'"'
    elif isinstance(value, NumberLiteral):
        first = _NUMBERS
    else:
        first = b"n" if value is None else b"tf"
    return lambda text: text[0] in first and not equal(text)


def json_begins(prefix: str) -> JsonTest:
    """Return a test that a JSON text is a string that begins with `prefix`."""
    unescaped = _unescaped(prefix)
    plain = None if unescaped is None else unescaped[:-1]

    def test(text: bytes) -> bool:
        if plain is not None and text.startswith(plain):
            return True
        return text[0] == _QUOTE and b"\\" in text and _decode_text(text).startswith(prefix)

    return test


def json_ordered(name: str, value: str | NumberLiteral) -> JsonTest:
    """Return a test that a JSON text has the type of `value`, and compares with it as the operator `name` says
    (`ORDER`)."""
    compare = ORDER[name]
    if isinstance(value, str):
        return lambda text: text[0] == _QUOTE and compare(_decode_text(text), value)
    number = value.text.encode()
    near, key = as_float(number), key_of(number)

    def test(text: bytes) -> bool:
        if text[0] not in _NUMBERS:
            return False
        if near is not None and is_short(text):
            return compare(float(text), near)
        return compare(key_of(text), key)

    return test


def _unescaped(value: str) -> bytes | None:
    """Return the JSON of a string if this JSON has no escapes, None otherwise. A JSON text without a backslash is equal
    to the string only if it is this text."""
    text = msgspec.json.encode(value)
    return None if b"\\" in text else text


def _literal(value: bool | None) -> bytes:
    return b"null" if value is None else b"true" if value else b"false"
