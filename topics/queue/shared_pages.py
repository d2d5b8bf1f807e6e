"""Values by number, in pages that a frozen copy shares with the live one until they change. Pure.

Freezing takes a look at each page, and a page is copied once before its next change: a snapshot of a million values
costs no step of the loop that is long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

PAGE: Final = 1024
"""Numbers of a page."""

V = TypeVar("V")

Frozen = Mapping[int, Mapping[int, V]]
"""Pages by number; values by number in each."""


class SharedPages(Generic[V]):
    """Values by number. New numbers are higher than all before them; so pages, and values in a page, ascend."""

    __slots__ = ("_pages", "_shared", "_size")

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, V]] = {}
        self._shared: set[int] = set()
        """Pages that a frozen copy has too."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def get(self, number: int) -> V | None:
        """Return the value of a number, None if it has none."""
        page = self._pages.get(number // PAGE)
        return None if page is None else page.get(number)

    def put(self, number: int, value: V) -> None:
        """Set the value of a number."""
        page = self._own(number // PAGE)
        before = len(page)
        page[number] = value
        self._size += len(page) - before

    def pop(self, number: int) -> V | None:
        """Forget a number. Return the value that it had, None if it had none."""
        at = number // PAGE
        if number not in self._pages.get(at, ()):
            return None
        page = self._own(at)
        value = page.pop(number)
        self._size -= 1
        if not page:
            del self._pages[at]
        return value

    def first(self) -> int | None:
        """Return the smallest number, None if there is none."""
        for page in self._pages.values():
            return next(iter(page))
        return None

    def runs(self, first: int, last: int) -> Iterator[list[int]]:
        """Yield the numbers from `first` to `last`, ascending, a page at a time."""
        for at in [at for at in self._pages if first // PAGE <= at <= last // PAGE]:
            run = [number for number in self._pages.get(at, ()) if first <= number <= last]
            if run:
                yield run

    def freeze(self) -> Frozen[V]:
        """Return the values as they are now, never to change. O(pages)."""
        self._shared = set(self._pages)
        return self._pages.copy()

    def _own(self, at: int) -> dict[int, V]:
        """Return a page, which may be changed. Made if it is missing."""
        page = self._pages.get(at)
        if page is None:
            self._shared.discard(at)
            page = self._pages[at] = {}
        elif at in self._shared:
            self._shared.discard(at)
            page = self._pages[at] = page.copy()
        return page
