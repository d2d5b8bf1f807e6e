"""How many refused calls get a line of their own in the audit log. Pure.

Calls that are refused cost a client nothing and change nothing, so there is no bound to how many may come; their lines
would fill the disk. Each source (a key, or an address without one) has a bucket of lines; what comes while it is empty
is counted, and the counts become lines of their own, so that nothing is missing without a word.
"""

from __future__ import annotations

from typing import Final

LINES_PER_S: Final = 10.0
BURST: Final = 100.0
MOST_SOURCES: Final = 1000
OTHERS: Final = "others"
"""The source of those for whom there is no bucket left."""


class RefusalRate:
    """One bucket for each source. Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def source(self, name: str) -> str:
        """What a source is counted as: itself, or `OTHERS` where there are too many."""
        return name if name in self._buckets or len(self._buckets) < MOST_SOURCES else OTHERS

    def admit(self, source: str, now: float) -> bool:
        """Return True if a refused call of this source gets a line; otherwise it has been counted."""
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
        """How many calls of each source were counted since the last time; sources that have been quiet are
        forgotten."""
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
