"""The lines of an upload, in batches (`docs/spec/pipeline.md` section 1): bytes in, as they come, complete batches of
lines out.

Where a batch ends depends on the lines alone and not on how they came, so that an upload that is repeated breaks into
the same batches, and their idempotency keys find them. What a line means is for `append_requests` to say.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from topics.errors import ApiError

BATCH_RECORDS: Final = 1000
BATCH_BYTES: Final = 1 << 20

FEED_BYTES: Final = 64 << 10
"""Fed at a time: lines of a byte each take some milliseconds."""


PLAIN_START: Final = b'{"data":'
PLAIN_END: Final = b"}"
_BETWEEN: Final = PLAIN_END + b"\n" + PLAIN_START


class Batch(NamedTuple):
    """Lines that are appended together, and their numbers in the upload, from 1. Empty ones are left out."""

    items: list[bytes]
    plain: bool
    """Whether all lines begin with `{"data":` and end with `}`. Then items are what is between, else the lines."""
    numbers: Sequence[int]
    size: int
    """Bytes of the lines."""

    @property
    def lines(self) -> list[bytes]:
        """The lines as they came."""
        return _lines_of(self.items) if self.plain else self.items


class Batches:
    """Breaks an upload into batches. Each holds at most `records` lines of at most `nbytes` bytes in all, or a single
    longer one; a line of more than `longest` bytes is refused before it is complete. Holds what was fed and not taken.

    Lines of nothing but `data`, as programs write them, are taken apart and freed of what is around it in one pass.
    """

    def __init__(self, records: int, nbytes: int, longest: int) -> None:
        self._records = records
        self._bytes = nbytes
        self._longest = longest
        self._rest = bytearray()
        """Of the line that is not complete."""
        self._items: list[bytes] = []
        self._plain = True
        """Whether all of `_items` are plain."""
        self._numbers: list[int] | None = None
        """Of the lines of `_items`; None: they follow each other from `_first` on."""
        self._first = 1
        self._size = 0
        """Bytes of the lines of `_items`."""
        self.line = 1
        """Number of the line that is not complete."""
        self.looks_for_plain = True
        """Whether lines are tried to be taken for plain ones: in vain where they look so and hold more than `data`."""

    @property
    def held(self) -> int:
        """Bytes that wait here."""
        return self._size + len(self._rest)

    def feed(self, data: bytes) -> None:
        """More of the upload. Raises `400 record_too_large` if the line that is not complete (`line`) is too long."""
        end = data.find(b"\n")
        if len(self._rest) + (len(data) if end < 0 else end) > self._longest:
            raise ApiError(
                "record_too_large",
                f"a line of more than {self._longest} bytes holds no record",
                detail={"max": self._longest},
            )
        if end < 0:
            self._rest += data
            return
        last = data.rindex(b"\n")
        complete = bytes(self._rest) + data[:last]
        self._rest = bytearray(data[last + 1 :])
        self._add(complete)

    def next(self) -> Batch | None:
        """The next complete batch, if there is one."""
        count = min(len(self._items), self._records)
        if self._size > self._bytes:
            around = len(PLAIN_START) + len(PLAIN_END) if self._plain else 0
            sizes = list(accumulate(len(item) + around for item in self._items[:count]))
            if sizes[-1] > self._bytes:
                return self._take(max(1, bisect_right(sizes, self._bytes)))
        return self._take(count) if count == self._records else None

    def end(self) -> Batch | None:
        """What is left, after `next` has none and nothing more is fed; None for nothing."""
        if self._rest:
            complete = bytes(self._rest)
            self._rest.clear()
            self._add(complete)
        return self.next() or (self._take(len(self._items)) if self._items else None)

    def _add(self, complete: bytes) -> None:
        """Lines with line ends between them."""
        count = complete.count(b"\n") + 1
        if not self._items:
            self._plain, self._numbers, self._first = True, None, self.line
        values = _values_of(complete, count) if self._plain and self.looks_for_plain else None
        if values is None:
            self._add_lines(complete.split(b"\n"))
        else:
            self._items += values
            self._size += len(complete) - count + 1
            if self._numbers is not None:
                self._numbers.extend(range(self.line, self.line + count))
        self.line += count

    def _add_lines(self, lines: list[bytes]) -> None:
        if self._plain:
            self._items, self._plain = _lines_of(self._items), False
        full = [line for line in lines if line and not line.isspace()]
        if len(full) < len(lines) and self._numbers is None:
            self._numbers = list(range(self._first, self._first + len(self._items)))
        if self._numbers is not None:
            self._numbers += [n for n, line in enumerate(lines, self.line) if line and not line.isspace()]
        self._items += full
        self._size += sum(map(len, full))

    def _take(self, count: int) -> Batch:
        items = self._items[:count]
        del self._items[:count]
        numbers: Sequence[int]
        if self._numbers is None:
            numbers = range(self._first, self._first + count)
            self._first += count
        else:
            numbers = self._numbers[:count]
            del self._numbers[:count]
        size = sum(map(len, items))
        if self._plain:
            size += (len(PLAIN_START) + len(PLAIN_END)) * count
        self._size -= size
        return Batch(items, self._plain, numbers, size)


def _values_of(complete: bytes, count: int) -> list[bytes] | None:
    """What is between the beginning and the end of so many lines, if all of them are plain."""
    if not (complete.startswith(PLAIN_START) and complete.endswith(PLAIN_END)):
        return None
    values = complete[len(PLAIN_START) : -len(PLAIN_END)].split(_BETWEEN)
    return values if len(values) == count else None


def _lines_of(values: list[bytes]) -> list[bytes]:
    return [b"%b%b%b" % (PLAIN_START, value, PLAIN_END) for value in values]
