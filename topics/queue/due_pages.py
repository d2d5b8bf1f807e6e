"""When pages have to be examined: page numbers, each with a lower bound of the time at which a job on it becomes free.

A bound that turns out to be too low is corrected when its page comes to the front. Lowering a bound replaces the old
one, and removing a page removes its bound. So there is one entry per page and no garbage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sortedcontainers import SortedList

# If more than one in so many entries is removed at once, it is cheaper to make a new list.
_REBUILD_SHARE: Final = 8


class DuePages:
    """Page numbers in the order of their bounds (monotonic ms). Calls are O(log n), but for `remove_all`."""

    __slots__ = ("_bounds", "_order")

    def __init__(self) -> None:
        self._bounds: dict[int, int] = {}
        self._order: SortedList[tuple[int, int]] = SortedList()

    def first(self) -> tuple[int, int] | None:
        """Return the lowest bound and its page, None if there is none."""
        return self._order[0] if self._bounds else None

    def lower(self, number: int, due_ms: int) -> None:
        """Note that a job on the page is due at `due_ms`: lowers the bound of the page if that is earlier."""
        bound = self._bounds.get(number)
        if bound is None or due_ms < bound:
            self.put(number, due_ms)

    def put(self, number: int, due_ms: int | None) -> None:
        """Set the bound: no job on the page is due before `due_ms`, or (None) ever."""
        self.remove(number)
        if due_ms is not None:
            self._bounds[number] = due_ms
            self._order.add((due_ms, number))

    def remove(self, number: int) -> None:
        """Remove the page, which is no longer kept or on which no job is due."""
        bound = self._bounds.pop(number, None)
        if bound is not None:
            self._order.remove((bound, number))

    def remove_all(self, numbers: Sequence[int]) -> None:
        """Remove many pages: O(n) for n entries, or less if the pages are few."""
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
