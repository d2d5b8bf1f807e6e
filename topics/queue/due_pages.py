"""When pages have to be examined: page numbers, each with a lower bound of the time at which a job on it becomes free.

A bound that turns out to be too low is corrected when its page comes to the front. The bounds are in a dict; a heap has
an entry for each of them, and others that do not count any more. They are dropped when they come to the front, or when
they are more than the bounds. So a change costs less than a microsecond, and memory is bounded by the pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

# With so many entries besides twice the bounds the heap is not made anew.
_FEW: Final = 64


class DuePages:
    """Page numbers in the order of their bounds (ms). Calls are O(log n), but now and then O(n)."""

    __slots__ = ("_bounds", "_heap")

    def __init__(self) -> None:
        self._bounds: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def first(self) -> tuple[int, int] | None:
        """Return the lowest bound and its page, None if there is none."""
        bounds, heap = self._bounds, self._heap
        while heap:
            entry = heap[0]
            if bounds.get(entry[1]) == entry[0]:
                return entry
            heappop(heap)
        return None

    def lower(self, number: int, due_ms: int) -> None:
        """Note that a job on the page is due at `due_ms`: lowers the bound of the page if that is earlier."""
        bound = self._bounds.get(number)
        if bound is None or due_ms < bound:
            self.put(number, due_ms)

    def put(self, number: int, due_ms: int | None) -> None:
        """Set the bound: no job on the page is due before `due_ms`, or (None) ever."""
        bounds, heap = self._bounds, self._heap
        if due_ms is None:
            self.remove(number)
        elif bounds.get(number) != due_ms:
            bounds[number] = due_ms
            if heap and heap[0][1] == number:
                heapreplace(heap, (due_ms, number))
            else:
                heappush(heap, (due_ms, number))
                self._tidy()

    def remove(self, number: int) -> None:
        """Remove the page, which is no longer kept or on which no job is due."""
        if self._bounds.pop(number, None) is not None:
            self._tidy()

    def remove_all(self, numbers: Sequence[int]) -> None:
        """Remove many pages."""
        for number in numbers:
            self._bounds.pop(number, None)
        self._tidy()

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._bounds) + _FEW:
            self._heap = [(bound, number) for number, bound in self._bounds.items()]
            heapify(self._heap)

    def bounds(self) -> dict[int, int]:
        """A copy of the bounds, by page number. For checks."""
        assert set(self._heap) >= {(bound, number) for number, bound in self._bounds.items()}
        assert len(self._heap) <= 2 * len(self._bounds) + _FEW
        return dict(self._bounds)
