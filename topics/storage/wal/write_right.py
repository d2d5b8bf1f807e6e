"""`WriteRight`: whether this process may change anything (`docs/design/replication.md` section 3).

Without a lease it always may. With one it is asked wherever something is queued for the log, and wherever somebody is
told that something is on disk. When the lease is lost, each shard fails with `503 not_owner`, as after an error of the
disk: what is not acked yet never will be, and reads go on.
"""

from __future__ import annotations

from typing import Protocol

from topics.errors import ApiError, not_owner


class HeldLease(Protocol):
    """A lease (`topics.bucket.ownership.lease`)."""

    @property
    def is_held(self) -> bool:
        """Return True if its holder may act now. Once it is False it stays False."""
        ...

    @property
    def refusal(self) -> ApiError:
        """The answer to changes when it is lost."""
        ...


class WriteRight:
    """The right of one process. Made by the store."""

    __slots__ = ("lease",)

    def __init__(self) -> None:
        self.lease: HeldLease | None = None
        """The lease on which the right rests; None if it rests on none."""

    @property
    def is_held(self) -> bool:
        """Return True if this process may change things now."""
        return self.lease is None or self.lease.is_held

    @property
    def refusal(self) -> ApiError:
        """The answer to changes when the right is lost."""
        assert self.lease is not None
        return self.lease.refusal

    def check(self) -> None:
        """Raise `503 not_owner` if the right is lost."""
        if not self.is_held:
            raise self.refusal

    @property
    def refusal_at_door(self) -> ApiError:
        """The answer to a call of which nothing was carried out: the next owner may get it."""
        refusal = self.refusal
        return not_owner(refusal.message, refusal.detail["owner"] or "", refused=True)

    def check_at_door(self) -> None:
        """As `check`, before anything of a call was carried out."""
        if not self.is_held:
            raise self.refusal_at_door
