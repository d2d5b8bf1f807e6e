"""`BucketCeiling`: the seqs that a topic may give out before the bucket knows of them (`docs/spec/bucket.md` section
3).

With takeover, another daemon may have to go on from what the bucket has. It begins above the ceiling that is there, so
the owner gives out no seq above it. The ceiling is raised well ahead: for `AHEAD_MS` of the recent rate. It means
nothing to a recovery in the same directory.
"""

from __future__ import annotations

from typing import Final

LEAST: Final = 1000
"""The least number of seqs that a raise reserves."""

AHEAD_MS: Final = 60_000
"""A raise reserves the seqs that are appended in this time (ms), at the rate since the last raise."""


class BucketCeiling:
    """The ceiling of one topic. Pure. A commit that takes a seq above `archived` waits for a round."""

    __slots__ = ("_raised_from", "_raised_ms", "archived", "queued")

    def __init__(self, ceiling: int = 0, now_ms: int = 0) -> None:
        """`ceiling` is in the bucket."""
        self.archived = ceiling
        """Seqs up to it are reserved in the bucket."""
        self.queued = ceiling
        """The ceiling when everything that is logged by now is in the bucket."""
        self._raised_from = 0
        self._raised_ms = now_ms

    def is_low(self, seq: int) -> bool:
        """Return True if it should be raised when `seq` is given out: half of the reserve is used up."""
        return seq > self.queued - max(LEAST, self.queued - self._raised_from) // 2

    def raise_above(self, seq: int, now_ms: int) -> int:
        """Reserve more above a seq. Return the ceiling that is to be logged."""
        passed_ms = max(now_ms - self._raised_ms, 1)
        rate_ahead = max(seq - self._raised_from, 0) * AHEAD_MS // passed_ms if self._raised_from else 0
        self._raised_from, self._raised_ms = seq, now_ms
        self.queued = max(self.queued, seq + max(LEAST, rate_ahead))
        return self.queued

    def note_archived(self, ceiling: int) -> None:
        """A round has a ceiling that was logged."""
        if ceiling <= self.queued:  # else a later frame has lowered it
            self.archived = max(self.archived, ceiling)

    def lower(self, head: int) -> None:
        """Give everything above the head back. Only for the last round of a clean stop."""
        self.archived = self.queued = head
