"""Dividing the lines of an upload into batches (`docs/spec/pipeline.md` section 1). The bytes of the upload are fed as
they come, and complete batches of lines are taken.

Where a batch ends depends only on the lines, not on the pieces in which they came. So a repeated upload is divided into
the same batches, and their idempotency keys are recognised. `append_requests` decodes the lines.
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
"""Bytes that are fed in one step of the loop. If each line has one byte, that takes some milliseconds."""

PLAIN_START: Final = b'{"data":'
PLAIN_END: Final = b"}"
_BETWEEN: Final = PLAIN_END + b"\n" + PLAIN_START


class LineBatch(NamedTuple):
    """Lines that are appended together. Empty lines are left out."""

    items: list[bytes]
    plain: bool
    """All lines begin with `{"data":` and end with `}`, and `items` are the texts in between. Otherwise `items` are the
    lines."""
    numbers: Sequence[int]
    """The numbers of the lines in the upload, from 1."""
    size: int
    """The bytes of the lines."""

    @property
    def lines(self) -> list[bytes]:
        """The lines as they came."""
        return _lines_of(self.items) if self.plain else self.items


class LineBatches:
    """Divides an upload into batches. Each has at most `records` lines with at most `nbytes` bytes together, or a
    single longer line. A line of more than `longest` bytes is refused before it is complete.

    Lines that have only `data`, as programs write them (*plain* lines), are split and stripped of their `{"data":` and
    `}` in one pass.
    """

    def __init__(self, records: int, nbytes: int, longest: int) -> None:
        self._records = records
        self._bytes = nbytes
        self._longest = longest
        self._rest = bytearray()
        """The bytes of the incomplete line at the end."""
        self._items: list[bytes] = []
        self._plain = True
        """True if all of `_items` are plain."""
        self._numbers: list[int] | None = None
        """The numbers of the lines in `_items`; None if they are consecutive from `_first` on."""
        self._first = 1
        self._size = 0
        """The bytes of the lines in `_items`."""
        self.line = 1
        """The number of the incomplete line."""
        self.looks_for_plain = True
        """Try to take lines as plain ones. Set to False if lines look plain but have other keys after `data`."""

    @property
    def held(self) -> int:
        """The bytes that were fed and not taken."""
        return self._size + len(self._rest)

    def feed(self, data: bytes) -> None:
        """Add bytes of the upload. Raises `400 record_too_large` if the incomplete line (`line`) becomes too long."""
        end = data.find(b"\n")
        if len(self._rest) + (len(data) if end < 0 else end) > self._longest:
            raise ApiError(
                "record_too_large",
                f"a line has more than {self._longest} bytes, which no record within the limits needs",
                detail={"max": self._longest},
            )
        if end < 0:
            self._rest += data
            return
        last = data.rindex(b"\n")
        complete = bytes(self._rest) + data[:last]
        self._rest = bytearray(data[last + 1 :])
        self._add(complete)

    def next(self) -> LineBatch | None:
        """The next complete batch; None if there is none."""
        count = min(len(self._items), self._records)
        if self._size > self._bytes:
            around = len(PLAIN_START) + len(PLAIN_END) if self._plain else 0
            sizes = list(accumulate(len(item) + around for item in self._items[:count]))
            if sizes[-1] > self._bytes:
                return self._take(max(1, bisect_right(sizes, self._bytes)))
        return self._take(count) if count == self._records else None

    def end(self) -> LineBatch | None:
        """The next batch after the end of the upload, when `next` has no more; None at the end."""
        if self._rest:
            complete = bytes(self._rest)
            self._rest.clear()
            self._add(complete)
        return self.next() or (self._take(len(self._items)) if self._items else None)

    def _add(self, complete: bytes) -> None:
        """Add complete lines, which have line ends between them."""
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

    def _take(self, count: int) -> LineBatch:
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
        return LineBatch(items, self._plain, numbers, size)


def _values_of(complete: bytes, count: int) -> list[bytes] | None:
    """The values of `count` lines if all of them are plain, else None."""
    if not (complete.startswith(PLAIN_START) and complete.endswith(PLAIN_END)):
        return None
    values = complete[len(PLAIN_START) : -len(PLAIN_END)].split(_BETWEEN)
    return values if len(values) == count else None


def _lines_of(values: list[bytes]) -> list[bytes]:
    return [b"%b%b%b" % (PLAIN_START, value, PLAIN_END) for value in values]
