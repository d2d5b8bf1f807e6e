"""When pages have to be looked at: page numbers, each with a lower bound of when time frees something there.

A bound that turns out to be too low is put right by whoever comes across it, at the front. One that is lowered
replaces the one before, and a page that is dropped takes its own along. So there is one entry a page and no garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sortedcontainers import SortedList

# Where more than this share of the entries goes at once, it is cheaper to make the list anew.
_REBUILD_SHARE: Final = 8


class DuePages:
    """Page numbers in the order of their bounds (monotonic ms). O(log n) each, but for `remove_all`."""

    __slots__ = ("_bounds", "_order")

    def __init__(self) -> None:
        self._bounds: dict[int, int] = {}
        self._order: SortedList[tuple[int, int]] = SortedList()

    def first(self) -> tuple[int, int] | None:
        """The lowest bound, and its page; None if there is none."""
        return self._order[0] if self._bounds else None

    def lower(self, number: int, due_ms: int) -> None:
        """Something on the page is due at `due_ms`."""
        bound = self._bounds.get(number)
        if bound is None or due_ms < bound:
            self.put(number, due_ms)

    def put(self, number: int, due_ms: int | None) -> None:
        """Nothing on the page is due before `due_ms`; None: nothing is due ever."""
        self.remove(number)
        if due_ms is not None:
            self._bounds[number] = due_ms
            self._order.add((due_ms, number))

    def remove(self, number: int) -> None:
        """The page is not kept any more, or nothing on it is due."""
        bound = self._bounds.pop(number, None)
        if bound is not None:
            self._order.remove((bound, number))

    def remove_all(self, numbers: Sequence[int]) -> None:
        """The same for many: O(n), n for all entries, or less if they are few."""
        if len(numbers) * _REBUILD_SHARE < len(self._bounds):
            for number in numbers:
                self.remove(number)
        else:
            for number in numbers:
                self._bounds.pop(number, None)
            self._order = SortedList(entry for entry in self._order if entry[1] in self._bounds)

    def bounds(self) -> dict[int, int]:
        """A copy of the bounds, by page number. For checks."""
        assert sorted((bound, number) for number, bound in self._bounds.items()) == list(self._order)
        return dict(self._bounds)
