"""The outline of a large JSON body: its text without the values that are its bulk.

msgspec decodes a body in one call, which holds the interpreter: 60 MB for 0.1 to 7 s. So the *items* of a large body,
the objects and arrays within its top-level members, are first found by counting brackets in steps. The *skeleton* is
the body with a short mark in the place of each item. It is decoded in one call, and so is each item, or in steps of its
own.

Theory of operation. Brackets are counted outside of strings, as in `json_checks.depth_in_steps`. Only the parts in
which an item begins or ends are looked at bracket by bracket. Nothing is proved by counting: if the skeleton is valid
JSON, and each item is, then so is the body, and it has the same values. So a caller decodes all of them, or has
`unclaimed` decode those that it has no use for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import accumulate
from operator import add
from typing import Final, TypeVar

import msgspec

from topics.http.requests.json_checks import LEVELS, NOT_STRUCTURE, malformed_in_steps, too_deep, wrong_value

T = TypeVar("T")

MOST_ITEMS: Final = 100_000
"""The most items of a body, unless a caller says otherwise. Their marks are decoded in one step: some 20 ms."""

_STEP: Final = 32 << 10
"""Bytes that are looked at in one step. If there is an item at every third byte, it takes about 10 ms."""

_AROUND: Final = 2
"""Levels of brackets around an item: the body, and the array or object that is a top-level member."""

_BRACKET: Final = re.compile(rb"[\[\]{}]")

_BYTE: Final = re.compile(r"(?<=\(byte )\d+(?=\)\Z)")

_value: Final = msgspec.json.Decoder(msgspec.Raw)


class TooManyItems(Exception):
    """A body has more items than it may have."""


class TooMuchBesideItems(Exception):
    """A body has more bytes beside its items than it may have."""


class BodyOutline:
    """The skeleton of a body, and where its items are."""

    __slots__ = ("_mark", "_raw", "depth", "items", "skeleton")

    def __init__(self, raw: bytes, items: list[tuple[int, int]], depth: int, name: bytes) -> None:
        self._raw = raw
        self.items = items
        """Where each item begins and ends, in order."""
        self.depth = depth
        """How many levels the body nests, if it is valid."""
        self._mark = re.compile(rb'\{"%b":(\d+)\}' % name)
        parts: list[bytes] = []
        at = 0
        for i, (start, end) in enumerate(items):
            parts += raw[at:start], b'{"%b":%d}' % (name, i)
            at = end
        parts.append(raw[at:])
        self.skeleton = b"".join(parts)
        """The body with a mark in the place of each item."""

    def item_of(self, value: msgspec.Raw) -> int | None:
        """The number of the item that a value of the skeleton stands for; None if it stands for itself."""
        found = self._mark.fullmatch(bytes(value))
        return int(found[1]) if found is not None else None

    def text_of(self, value: msgspec.Raw) -> bytes:
        """The text that a value of the skeleton has in the body."""
        return self._mark.sub(lambda found: self.item(int(found[1])), bytes(value))

    def item(self, i: int) -> bytes:
        """The text of an item."""
        start, end = self.items[i]
        return self._raw[start:end]

    def place_of(self, at: int) -> int:
        """Where the byte `at` of the skeleton is in the body."""
        moved = 0
        for found, (start, end) in zip(self._mark.finditer(self.skeleton), self.items, strict=True):
            if found.end() > at:
                break
            moved += (end - start) - (found.end() - found.start())
        return at + moved

    def decode(self, decoder: msgspec.json.Decoder[T]) -> Generator[None, None, T]:
        """Decode the skeleton. Raises 400, which names the wrong field or the byte of the body. Yields after each
        step."""
        try:
            return decoder.decode(self.skeleton)
        except msgspec.ValidationError as error:
            raise wrong_value(str(error)) from None
        except msgspec.DecodeError as error:
            text = moved(str(error), self.place_of)
            raise (yield from malformed_in_steps(text, self._raw)) from None

    def unclaimed(self, claimed: Iterable[int]) -> Generator[None, None, None]:
        """Check that the items of which the caller has no use are JSON. Raises 400. Yields after each step."""
        rest = set(range(len(self.items))).difference(claimed)
        checked = 0
        for i in sorted(rest):
            start, end = self.items[i]
            try:
                _value.decode(self._raw[start:end])
            except msgspec.DecodeError as error:
                text = moved(str(error), partial(add, start))
                raise (yield from malformed_in_steps(text, self._raw)) from None
            except RecursionError:
                raise too_deep("body") from None
            checked += end - start
            if checked > _STEP:
                checked = 0
                yield

    def size_beside(self, claimed: Iterable[int]) -> int:
        """How many bytes of the body are not in these items."""
        return len(self._raw) - sum(self.items[i][1] - self.items[i][0] for i in claimed)


def moved(text: str, place: Callable[[int], int]) -> str:
    """Return a message about the byte n of a part as one about the byte `place(n)`."""
    return _BYTE.sub(lambda found: str(place(int(found[0]))), text)


def outline_in_steps(
    raw: bytes, most_items: int = MOST_ITEMS, most_beside: int = sys.maxsize
) -> Generator[None, None, BodyOutline]:
    """Return the outline of a body. Yields after each step. Raises `TooManyItems` if there are more than
    `most_items`, and `TooMuchBesideItems` if more than `most_beside` bytes are in none."""
    items: list[tuple[int, int]] = []
    level = at = depth = begun = 0
    in_string = False
    while at < len(raw):
        text = raw[at : at + _STEP]
        if (len(text) - len(text.rstrip(b"\\"))) % 2:
            text = raw[at : at + len(text) + 1]  # with the character that the last backslash escapes
        size = len(text)
        if b"\\" in text:
            text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        first = int(in_string)
        in_string ^= text.count(b'"') % 2 == 1
        if first or b'"' in text:
            # As long as before, because the places of brackets count; what is in a string has none.
            parts = text.split(b'"')
            parts[1 - first :: 2] = [bytes(len(part)) for part in parts[1 - first :: 2]]
            text = b" ".join(parts)
        brackets = text.translate(None, NOT_STRUCTURE).translate(LEVELS)
        levels = list(accumulate(memoryview(brackets).cast("b"), initial=level))
        depth = max(depth, *levels)
        if min(levels) > _AROUND:
            level = levels[-1]
        else:
            for found in _BRACKET.finditer(text):
                if found[0] in b"[{":
                    if level == _AROUND:
                        begun = at + found.start()
                    level += 1
                else:
                    if level == _AROUND + 1:
                        items.append((begun, at + found.end()))
                    level -= 1
            if len(items) > most_items:
                raise TooManyItems
        at += size
        yield
    if level > _AROUND:
        items.append((begun, len(raw)))  # it has no end, so it is no JSON
    name = b"at"
    if len(raw) - sum(end - start for start, end in items) > most_beside:
        raise TooMuchBesideItems
    yield
    while raw.find(b'{"%b"' % name) >= 0:
        name += b"_"
        yield
    yield
    return BodyOutline(raw, items, depth, name)
