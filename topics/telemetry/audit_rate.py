"""How many refused calls get a line of their own in the audit log. Pure.

A refused call costs a client nothing, so a client can send any number of them, and their lines would fill the disk.
Each source (a key, or the address of a client without one) therefore has a token bucket: a call that finds it empty
gets no line and is counted. The counts are written as lines, so that no call is left out silently.
"""

from __future__ import annotations

from typing import Final

LINES_PER_S: Final = 10.0
"""Lines a second that a source gets in the long run."""

BURST: Final = 100.0
"""Lines that a source gets at once after it has been quiet."""

MOST_SOURCES: Final = 1000
"""Sources with a bucket of their own."""

OTHERS: Final = "others"
"""The common source of all clients that come when `MOST_SOURCES` have buckets."""


class RefusalRate:
    """The buckets of all sources. Times are seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def source(self, name: str) -> str:
        """The source under which `name` is counted: `name` itself, or `OTHERS` if there are too many sources."""
        return name if name in self._buckets or len(self._buckets) < MOST_SOURCES else OTHERS

    def admit(self, source: str, now: float) -> bool:
        """Return True if a refused call of this source gets a line of its own. Otherwise count it."""
        bucket = self._buckets.get(source)
        if bucket is None:
            bucket = self._buckets[source] = _Bucket(now)
        bucket.fill(now)
        if bucket.lines >= 1:
            bucket.lines -= 1
            return True
        bucket.left_out += 1
        return False

    def take_counts(self, now: float) -> dict[str, int]:
        """How many calls of each source were counted since the last call of this method. A source without any whose
        bucket is full again is forgotten."""
        counts = {}
        for source, bucket in list(self._buckets.items()):
            bucket.fill(now)
            if bucket.left_out:
                counts[source], bucket.left_out = bucket.left_out, 0
            elif bucket.lines >= BURST:
                del self._buckets[source]
        return counts


class _Bucket:
    __slots__ = ("_filled", "left_out", "lines")

    def __init__(self, now: float) -> None:
        self.lines = BURST
        self.left_out = 0
        self._filled = now

    def fill(self, now: float) -> None:
        self.lines = min(BURST, self.lines + (now - self._filled) * LINES_PER_S)
        self._filled = now
