"""`OwnerWatch`: when a daemon that is not the owner may take the prefix (`docs/spec/bucket.md` section 3). Pure.

The only clock is this machine's CLOCK_BOOTTIME: nothing that the owner says about time is believed but `lease_ms`, and
that of the object, not of this daemon's settings. The time in which nothing has changed begins *after* the answer that
showed the present state, so that the owner had sent it before.
"""

from __future__ import annotations

from enum import Enum

from topics.bucket.ownership.owner_format import Owner, SeenOwner


class TakeReason(Enum):
    """Why the prefix may be taken."""

    ABSENT = "absent"
    """There was never an owner, or somebody has removed `owner`, and it stayed away for a lease."""
    FREE = "free"
    """Given up by a clean stop, behind its last round."""
    OWN = "own"
    """It names this very directory."""
    LAPSED = "lapsed"
    """It was not renewed for the lease that stands in it."""


class OwnerWatch:
    """What one daemon has seen of `owner`."""

    def __init__(self, dir_id: str) -> None:
        """`dir_id` is the id of this directory; empty for one that has none yet."""
        self.seen: SeenOwner | None = None
        """`owner` as of the last answer; None if there is none."""
        self.has_looked = False
        self.absent_ms = 0
        """How long `owner` has to be absent. 0 for a new prefix; where there was an owner, it may not know yet that
        `owner` is gone, and goes on for the rest of its lease."""
        self._dir = dir_id
        self._unchanged_since_ms = 0

    @property
    def owner(self) -> Owner | None:
        """The owner as of the last answer."""
        return self.seen.owner if self.seen is not None else None

    def note(self, seen: SeenOwner | None, answered_ms: int) -> None:
        """Note an answer, and the time *after* it was there (CLOCK_BOOTTIME)."""
        if not self.has_looked or _state(seen) != _state(self.seen):
            self._unchanged_since_ms = answered_ms
        if seen is None and self.seen is not None:
            self.absent_ms = max(self.absent_ms, self.seen.owner.lease_ms)
        self.seen, self.has_looked = seen, True

    def claim(self, now_ms: int) -> TakeReason | None:
        """Return why the prefix may be taken now, None if it may not. The take must be on condition of `seen`."""
        if not self.has_looked:
            return None
        owner = self.owner
        if owner is None:
            return TakeReason.ABSENT if now_ms - self._unchanged_since_ms >= self.absent_ms else None
        if owner.state == "free":
            return TakeReason.FREE
        if self._dir and owner.dir == self._dir:
            return TakeReason.OWN
        if owner.lease_ms and now_ms - self._unchanged_since_ms >= owner.lease_ms:
            return TakeReason.LAPSED
        return None

    def left_ms(self, now_ms: int) -> int | None:
        """Return how long to wait until the lease has lapsed if nothing changes; None if nobody takes by time."""
        owner = self.owner
        if owner is None or not owner.lease_ms:
            return None
        return max(owner.lease_ms - (now_ms - self._unchanged_since_ms), 0)


def _state(seen: SeenOwner | None) -> tuple[int, str, int, str] | None:
    """What changes with every renewal. The ETag is left out: equal bytes may get another one."""
    if seen is None:
        return None
    owner = seen.owner
    return owner.epoch, owner.nonce, owner.renewals, owner.state
