"""`Lease`: how long an owner may act, by its own CLOCK_BOOTTIME (`docs/design/replication.md` section 3). Pure.

A taker waits for `lease_ms` in which it has seen no renewal, counted from after an answer that showed the last one. The
owner counts from before it sent a renewal that was confirmed, and stops at five sixths. Both clocks count the time of a
suspended machine. So if they run equally fast but for a sixth, the owner has stopped before the taker begins.

`check` is called at each ack and each change of state, not only by a timer: a process that was paused finds out before
it does anything else. A lease that was lost stays lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from topics.errors import ApiError, not_owner

FENCED_AFTER: Final = (5, 6)
"""The share of a lease after which its owner stops."""

RENEWED_AFTER: Final = (1, 3)
"""The share of a lease after which its owner renews it."""


class Lease:
    """The lease of one epoch. Read and written by the loop and by the thread that renews it: each field is replaced
    whole."""

    def __init__(self, lease_ms: int, sent_ms: int, boottime_ms: Callable[[], int]) -> None:
        """`sent_ms` is when the put was sent that has taken the prefix. `boottime_ms` reads CLOCK_BOOTTIME."""
        self.lease_ms = lease_ms
        self.reason = ""
        """Why it was lost; empty while it is held."""
        self.successor = ""
        """The URL of the present owner, as far as it is known."""
        self._sent_ms = sent_ms
        self._boottime_ms = boottime_ms

    @property
    def renew_every_ms(self) -> int:
        """The time between two renewals."""
        return self.lease_ms * RENEWED_AFTER[0] // RENEWED_AFTER[1]

    @property
    def until_ms(self) -> int:
        """When the owner stops unless it renews before (CLOCK_BOOTTIME)."""
        return self._sent_ms + self.lease_ms * FENCED_AFTER[0] // FENCED_AFTER[1]

    @property
    def left_ms(self) -> int:
        """How long the owner may act without another renewal; 0 if it may not."""
        return max(self.until_ms - self._boottime_ms(), 0) if not self.reason else 0

    @property
    def is_held(self) -> bool:
        """Return True if the owner may act now. Once it is False it stays False."""
        if not self.reason and self._boottime_ms() >= self.until_ms:
            self.lose("the lease was not renewed in time: the bucket was away, or this process was paused")
        return not self.reason

    def renewed(self, sent_ms: int) -> None:
        """Note that a renewal was confirmed which was first sent at `sent_ms`. Changes nothing if the lease has been
        lost meanwhile."""
        if self.is_held:
            self._sent_ms = max(self._sent_ms, sent_ms)

    def lose(self, reason: str, successor: str = "") -> None:
        """Note that somebody else owns the prefix, or may. Only the first reason counts."""
        if not self.reason:
            self.reason = reason
        self.successor = successor or self.successor

    def check(self) -> None:
        """Raise `503 not_owner` if this daemon may not change anything any more."""
        if not self.is_held:
            raise self.refusal

    @property
    def refusal(self) -> ApiError:
        """The answer to changes when the lease is lost."""
        message = f"this daemon does not own the bucket any more: {self.reason}"
        return not_owner(message, self.successor, refused=False)
