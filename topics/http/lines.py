"""The lines of an upload, in batches (`pipeline.md` section 1): bytes in, as they come, complete batches of lines out.

Where a batch ends depends on the lines alone and not on how they came, so that an upload that is repeated breaks into
the same batches, and their idempotency keys find them. What a line means is for `bodies` to say.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Final, NamedTuple

from topics.errors import ApiError

BATCH_RECORDS: Final = 1000
BATCH_BYTES: Final = 1 << 20

FEED_BYTES: Final = 64 << 10
"""Fed at a time: lines of a byte each take some milliseconds."""


class Batch(NamedTuple):
    """Lines that are appended together, and their numbers in the upload, from 1. Empty ones are left out."""

    lines: list[bytes]
    numbers: list[int]
    size: int
    """Bytes of the lines."""


class Batches:
    """Breaks an upload into batches. Each holds at most `records` lines of at most `nbytes` bytes in all, or a single
    longer one; a line of more than `longest` bytes is refused before it is complete. Holds what was fed and not taken.
    """

    def __init__(self, records: int, nbytes: int, longest: int) -> None:
        self._records = records
        self._bytes = nbytes
        self._longest = longest
        self._rest = bytearray()
        """Of the line that is not complete."""
        self._lines: list[bytes] = []
        self._numbers: list[int] = []
        self._size = 0
        """Bytes of `_lines`."""
        self.line = 1
        """Number of the line that is not complete."""

    @property
    def held(self) -> int:
        """Bytes that wait here."""
        return self._size + len(self._rest)

    def feed(self, data: bytes) -> None:
        """More of the upload. Raises `400 record_too_large` if the line that is not complete (`line`) is too long."""
        first, *following = data.split(b"\n")
        self._rest += first
        if len(self._rest) > self._longest:
            raise ApiError(
                "record_too_large",
                f"a line of more than {self._longest} bytes holds no record",
                detail={"max": self._longest},
            )
        if following:
            lines = [bytes(self._rest), *following]
            self._rest = bytearray(lines.pop())
            self._add(lines)

    def next(self) -> Batch | None:
        """The next complete batch, if there is one."""
        count = min(len(self._lines), self._records)
        sizes = list(map(len, self._lines[:count]))
        if self._size > self._bytes and sum(sizes) > self._bytes:
            count = max(1, bisect_right(list(accumulate(sizes)), self._bytes))
        elif count < self._records:
            return None
        return self._take(count)

    def end(self) -> Batch | None:
        """What is left, after `next` has none and nothing more is fed; None for nothing."""
        if self._rest:
            self._add([bytes(self._rest)])
            self._rest.clear()
        return self.next() or (self._take(len(self._lines)) if self._lines else None)

    def _add(self, lines: list[bytes]) -> None:
        numbers = range(self.line, self.line + len(lines))
        self.line += len(lines)
        full = [line for line in lines if line and not line.isspace()]
        if len(full) == len(lines):
            self._numbers.extend(numbers)
        else:
            self._numbers += [n for n, line in zip(numbers, lines, strict=True) if line and not line.isspace()]
        self._lines += full
        self._size += sum(map(len, full))

    def _take(self, count: int) -> Batch:
        lines, numbers = self._lines[:count], self._numbers[:count]
        del self._lines[:count], self._numbers[:count]
        size = sum(map(len, lines))
        self._size -= size
        return Batch(lines, numbers, size)
