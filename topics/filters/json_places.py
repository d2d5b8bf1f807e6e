"""Finding places in JSON without decoding the rest.

A `PlaceReader` knows all places that a filter reads, and finds them in one pass for each level of nesting. The decoder
checks and skips all other values, and makes no objects of them. If a key occurs more than once, the last one counts, as
in every JSON decoder that a client is likely to use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

Buffer = bytes | memoryview | msgspec.Raw

_Reader = Callable[[Buffer], Sequence[msgspec.Raw | None]]

_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)

_NOT_A_FIELD: Final = re.compile(r'[\\"\x00-\x1f]')
"""Characters that the decoder does not accept in the name of a field."""

_MOST_FIELDS: Final = 64
"""Elements at the beginning of an array that the decoder finds one by one. For a later element it makes a list of all
elements."""

MAX_STEPS: Final = 16
"""Steps of a pointer. Each step is one more pass over the remaining text."""

_MOST_TYPES: Final = 32
"""How many types one filter makes for the decoder at most: each takes 0.1 ms. Further levels are read as dicts."""

_any_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any_array: Final = msgspec.json.Decoder(list[msgspec.Raw])


def steps_of(pointer: str) -> tuple[str, ...]:
    """Return the steps of a JSON pointer (RFC 6901). Raises ValueError with the reason."""
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError('must be empty or begin with "/"')
    if re.search(r"~(?![01])", pointer):
        raise ValueError('has a "~" that is neither "~0" nor "~1"')
    steps = pointer[1:].split("/")
    if len(steps) > MAX_STEPS:
        raise ValueError(f"has {len(steps)} steps, at most {MAX_STEPS} are allowed")
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


class _Budget:
    """How many types the readers of a filter may still make."""

    __slots__ = ("_left",)

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self) -> bool:
        """Use one up. Return True if one was left."""
        self._left -= 1
        return self._left >= 0


class PlaceReader:
    """Finds places, each given by its steps, in JSON texts. The texts must be valid JSON without a lone surrogate."""

    __slots__ = ("_budget", "_children", "_elements", "_is_flat", "_members", "_names", "_slots", "count")

    def __init__(self, places: Sequence[tuple[str, ...]], budget: _Budget | None = None) -> None:
        self._budget = budget = _Budget(_MOST_TYPES) if budget is None else budget
        self.count = len(places)
        """The number of places."""
        self._slots = [slot for slot, steps in enumerate(places) if not steps]
        below: dict[str, list[int]] = {}
        for slot, steps in enumerate(places):
            if steps:
                below.setdefault(steps[0], []).append(slot)
        self._children = [
            (slots, PlaceReader([places[slot][1:] for slot in slots], budget)) for slots in below.values()
        ]
        self._names = tuple(below)
        self._is_flat = [slots for slots, child in self._children if not child._children] == [
            [i] for i in range(self.count)
        ]
        """True if each place has exactly one step."""
        # Made when they are first needed.
        self._members: _Reader | None = None
        self._elements: _Reader | None = None

    def find(self, text: Buffer) -> Sequence[Buffer | None]:
        """Return the text at each place, in the order of the places; None for a missing value."""
        if self._is_flat:
            return self._values(text)
        found: list[Buffer | None] = [None] * self.count
        for slot in self._slots:
            found[slot] = text
        if self._children:
            for (slots, child), value in zip(self._children, self._values(text), strict=True):
                if value is None:
                    continue
                if not child._children:
                    for slot in slots:
                        found[slot] = value
                else:
                    for slot, inner in zip(slots, child.find(value), strict=True):
                        found[slot] = inner
        return found

    def _values(self, text: Buffer) -> Sequence[msgspec.Raw | None]:
        if self._members is None:
            self._members = _members(self._names, as_dict=not self._budget.take())
        try:
            return self._members(text)
        except msgspec.ValidationError:  # not an object
            pass
        if self._elements is None:
            self._elements = _elements(self._names)
        try:
            return self._elements(text)
        except msgspec.ValidationError:  # not an array
            return (None,) * len(self._names)


@lru_cache(maxsize=256)
def _members(names: tuple[str, ...], *, as_dict: bool) -> _Reader:
    """Return a function that finds the members of an object with these names. It raises ValidationError if a text is
    not an object."""
    if as_dict or any(_NOT_A_FIELD.search(name) for name in names):
        return lambda text: list(map(_any_object.decode(text).get, names))
    fields: list[tuple[str, Any, Any]] = [(f"m{i}", msgspec.Raw, None) for i in range(len(names))]
    kind = msgspec.defstruct("Members", fields, rename={f"m{i}": name for i, name in enumerate(names)}, gc=False)
    decode = msgspec.json.Decoder(kind).decode
    if len(names) == 1:
        return lambda text: (decode(text).m0,)  # type: ignore[attr-defined]
    return lambda text: msgspec.structs.astuple(decode(text))


@lru_cache(maxsize=256)
def _elements(names: tuple[str, ...]) -> _Reader:
    """Return a function that finds the elements of an array at these indexes; a name that is not an index has no
    element. It raises ValidationError if a text is not an array."""
    indexes = [int(name) if _INDEX.fullmatch(name) else None for name in names]
    last = max((index for index in indexes if index is not None), default=None)
    if last is None:
        return lambda text: (None,) * len(names)
    if last >= _MOST_FIELDS:
        return lambda text: _picked(_any_array.decode(text), indexes)
    fields: list[tuple[str, Any, Any]] = [(f"e{i}", msgspec.Raw, None) for i in range(last + 1)]
    decode = msgspec.json.Decoder(msgspec.defstruct("Elements", fields, array_like=True, gc=False)).decode
    return lambda text: _picked(msgspec.structs.astuple(decode(text)), indexes)


def _picked(elements: Sequence[msgspec.Raw | None], indexes: Sequence[int | None]) -> list[msgspec.Raw | None]:
    return [elements[i] if i is not None and i < len(elements) else None for i in indexes]
