"""Inputs that are nearly valid: mutations of bytes, and of the structures in them.

Pure, and decided by the numbers given: hypothesis draws them, so that what fails is shrunk, and atheris makes them of
its own seed. Checksums and lengths are for a target's `mend` to correct.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import cbor2

WIDTHS: Final = (1, 2, 4, 8)
NUMBERS: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 24, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""What lengths and counts are set to, besides the largest of 8 bytes."""

MOST_NODES: Final = 100
"""Maps and lists of a text in which a value is changed: looking for it takes the square of how deep it nests."""

STRANGE: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**32,
    2**48,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**64),
    2**200,
    0.5,
    1e308,
    "",
    "a",
    "\x00",
    "é" * 40,
    "x" * 300,
    [],
    [[]],
    [0] * 20,
    {},
    {"": ""},
    [[[[[[[[[[]]]]]]]]]],
)
"""Values that stand where others should."""

STRANGE_CBOR: Final[tuple[Any, ...]] = (
    *STRANGE,
    b"",
    b"\x00",
    b"\xff" * 8,
    b"\xff" * 64,
    float("inf"),
    float("nan"),
    cbor2.CBORSimpleValue(99),
    cbor2.undefined,
    cbor2.CBORTag(4, [100_000, 1]),
    cbor2.CBORTag(258, [1, 2]),
    cbor2.CBORTag(6000, []),
    {0: 0, 1: 2**63},
    {b"": None},
)
"""The same, with what CBOR has besides. Tag 4 is a decimal number of 100,000 digits."""


def mutated(data: bytes, other: bytes, steps: Sequence[tuple[int, int, int]]) -> bytes:
    """`data` after these steps, each a kind of mutation, a place and a number; `other` is another valid input."""
    for kind, place, number in steps:
        data = _MUTATIONS[kind % len(_MUTATIONS)](data, other, place % (len(data) + 1), number)
    return data


def _flip(data: bytes, _other: bytes, at: int, number: int) -> bytes:
    if at >= len(data):
        return data
    return data[:at] + bytes((data[at] ^ 1 << number % 8,)) + data[at + 1 :]


def _set_byte(data: bytes, _other: bytes, at: int, number: int) -> bytes:
    return data[:at] + bytes((number % 256,)) + data[at + 1 :]


def _cut_end(data: bytes, _other: bytes, at: int, _number: int) -> bytes:
    return data[:at]


def _cut_out(data: bytes, _other: bytes, at: int, number: int) -> bytes:
    return data[:at] + data[at + number % 64 :]


def _repeat(data: bytes, _other: bytes, at: int, number: int) -> bytes:
    piece = data[at : at + 1 + number % 64]
    return data[:at] + piece + data[at:]


def _splice(data: bytes, other: bytes, at: int, number: int) -> bytes:
    return data[:at] + other[number % (len(other) + 1) :]


def _insert(data: bytes, other: bytes, at: int, number: int) -> bytes:
    begin = number % (len(other) + 1)
    return data[:at] + other[begin : begin + 40] + data[at:]


def _set_number(data: bytes, _other: bytes, at: int, number: int) -> bytes:
    width = WIDTHS[number % len(WIDTHS)]
    kind = number // len(WIDTHS)
    values = (*NUMBERS, (1 << 8 * width) - 1, len(data), max(len(data) - at, 0))
    value = values[kind % len(values)] & ((1 << 8 * width) - 1)
    order = "big" if kind // len(values) % 3 == 2 else "little"
    return data[:at] + value.to_bytes(width, order) + data[at + width :]  # type: ignore[arg-type]


_MUTATIONS: Final[tuple[Callable[[bytes, bytes, int, int], bytes], ...]] = (
    _flip,
    _set_byte,
    _set_number,
    _cut_end,
    _cut_out,
    _repeat,
    _splice,
    _insert,
)
KINDS: Final = len(_MUTATIONS)


# ----------------------------------------------------------------- structures


def vary_json(data: bytes, where: int, what: int) -> bytes:
    """One value of a JSON text replaced, or left out, or a key renamed; the text as it is if it is none."""
    if data.count(b"[") + data.count(b"{") > MOST_NODES:
        return data
    try:
        varied = changed(json.loads(data), where, what, STRANGE)
        return b"" if varied is _LEFT_OUT else json.dumps(varied).encode()
    except (ValueError, RecursionError):
        return data


def vary_cbor(data: bytes, where: int, what: int) -> bytes:
    """The same of CBOR, and of CBOR in byte strings within it."""
    with suppress(Exception):  # on any error it is no CBOR that can be written again
        return cbor2.dumps(changed(cbor2.loads(data), where, what, STRANGE_CBOR), canonical=True)
    return data


def changed(value: Any, where: int, what: int, strange: Sequence[Any]) -> Any:
    """A copy with one of its nodes replaced, or left out: `where` says which, `what` by what."""
    return _change(value, where % _count(value), what, strange)


_LEFT_OUT: Final = object()


def _inner(value: bytes) -> Any:
    """What CBOR a byte string holds, if it is a map or a list; else None."""
    if len(value) < 8:
        return None
    with suppress(Exception):  # as above
        found = cbor2.loads(value)
        if isinstance(found, dict | list) and cbor2.dumps(found, canonical=True) == value:
            return found
    return None


def _count(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_count, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(_count, value))
    if isinstance(value, bytes) and (inner := _inner(value)) is not None:
        return 1 + _count(inner)
    return 1


def _change(value: Any, where: int, what: int, strange: Sequence[Any]) -> Any:
    if where == 0:
        choice = what % (len(strange) + 3)
        if choice < len(strange):
            return strange[choice]
        if choice == len(strange) or not isinstance(value, bytes | str | list):
            return _LEFT_OUT
        return value[: len(value) // 2] if choice == len(strange) + 1 else value * 2
    where -= 1
    if isinstance(value, bytes):
        return cbor2.dumps(_change(_inner(value), where, what, strange), canonical=True)
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
    for i, (key, item) in enumerate(pairs):
        size = _count(item)
        if where < size:
            pairs[i] = (key, _change(item, where, what, strange))
            break
        where -= size
    kept = [(key, item) for key, item in pairs if item is not _LEFT_OUT]
    return dict(kept) if isinstance(value, dict) else [item for _, item in kept]
