"""The share of the common byte budget that one key may take (`TOPICS_KEY_SHARE`).

Without it, a hostile or broken client with one key could take the whole budget, and all others would be refused. The
same share applies to streams (`topics.engine.delivery.connection_places`) and to sessions
(`topics.engine.delivery.watch_sessions`).
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from topics.http.budgets.byte_budget import ByteBudget


class ByteShares:
    """The shares of the budget `total`. `share` returns the share that one key may take now, 0 to 1; but each key may
    take `least` bytes."""

    def __init__(self, total: ByteBudget, least: int, share: Callable[[], float]) -> None:
        self.total = total
        self._least = least
        self._share = share
        self._own: dict[bytes, ByteBudget] = {}

    def of(self, owner: bytes) -> OwnedBudget:
        """The budget of the key with this digest. For an empty digest (no key) it is the whole."""
        if not owner:
            return OwnedBudget(self.total, None)
        own = self._own.get(owner)
        if own is None:
            own = self._own[owner] = ByteBudget(0)
        # Set each time: a reload may have changed the number of keys, and with it the share.
        own.limit = max(self._least, int(self.total.limit * self._share()))
        return OwnedBudget(self.total, own)


class OwnedBudget:
    """The budget of one owner. Bytes that are taken count for the owner and for all."""

    __slots__ = ("_own", "_total")

    def __init__(self, total: ByteBudget, own: ByteBudget | None) -> None:
        self._total = total
        self._own = own

    @property
    def limit(self) -> int:
        """How many bytes the owner may take in all."""
        return self._total.limit if self._own is None else min(self._own.limit, self._total.limit)

    def try_take(self, size: int) -> bool:
        """Take `size` bytes if they are free and nobody waits. Return True if they were taken."""
        if self._own is None:
            return self._total.try_take(size)
        if not self._own.try_take(size):
            return False
        if self._total.try_take(size):
            return True
        self._own.give_back(size)
        return False

    async def take(self, size: int, timeout_s: float) -> bool:
        """Take `size` bytes, and wait for them at most `timeout_s` seconds. Return False if they did not become free;
        then, and when it is cancelled, nothing is taken."""
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
        """Give back `size` bytes that were taken."""
        self._total.give_back(size)
        if self._own is not None:
            self._own.give_back(size)
