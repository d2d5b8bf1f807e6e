"""What one key may take of what all share: bytes in memory (`TOPICS_KEY_SHARE`).

Without it a key whose holder means harm, or has lost control of a program, takes the whole of a cap of the daemon, and
everybody else is refused. Streams and sessions have the same share (`topics.engine.delivery.connection_places`,
`topics.engine.delivery.watch_sessions`).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from topics.http.budgets.byte_budget import ByteBudget


class ByteShares:
    """The shares of a budget. `share` says how much of it one key may take now, 0..1."""

    def __init__(self, total: ByteBudget, least: int, share: Callable[[], float]) -> None:
        self.total = total
        self._least = least
        self._share = share
        self._own: dict[bytes, ByteBudget] = {}

    def of(self, owner: bytes) -> OwnedBudget:
        """What the key of this digest takes from; an empty one, for who has none, is bounded by the whole only."""
        if not owner:
            return OwnedBudget(self.total, None)
        own = self._own.get(owner)
        if own is None:
            own = self._own[owner] = ByteBudget(0)
        # One body has to fit, and a reload of the keys may have changed how many there are.
        own.limit = max(self._least, int(self.total.limit * self._share()))
        return OwnedBudget(self.total, own)


class OwnedBudget:
    """A budget as one owner sees it: what is taken counts for the owner and for all."""

    __slots__ = ("_own", "_total")

    def __init__(self, total: ByteBudget, own: ByteBudget | None) -> None:
        self._total = total
        self._own = own

    @property
    def limit(self) -> int:
        """What the owner may take at most."""
        return self._total.limit if self._own is None else min(self._own.limit, self._total.limit)

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if they are there and nobody is waiting."""
        if self._own is None:
            return self._total.try_take(size)
        if not self._own.try_take(size):
            return False
        if self._total.try_take(size):
            return True
        self._own.give_back(size)
        return False

    async def take(self, size: int, timeout_s: float) -> bool:
        """Take `size` bytes, waiting at most `timeout_s`. False, and nothing taken, if they did not become free."""
        if self._own is None:
            return await self._total.take(size, timeout_s)
        began = trio.current_time()
        if not await self._own.take(size, timeout_s):
            return False
        taken = False
        try:
            taken = await self._total.take(size, max(0.0, timeout_s - (trio.current_time() - began)))
        finally:
            if not taken:
                self._own.give_back(size)
        return taken

    def give_back(self, size: int) -> None:
        """Return what was taken."""
        self._total.give_back(size)
        if self._own is not None:
            self._own.give_back(size)
