"""`KeyExpiry`: forgets on a standby the keys whose window is over.

Replay only adds keys: those of idempotent appends, transactions, commits of stages, and unique jobs. An owner forgets
them in its housekeeping, of which no log tells. Without this a standby would keep, in memory and in its snapshots, the
keys of all appends since it was started. By the clock that it holds nothing ends here before it has ended on the owner,
so nothing that a standby shows, or does after taking over, depends on what was forgotten.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

EXPIRY_S: Final = 10.0
"""The time between two passes (s)."""


class KeyExpiry:
    """Made by the standby. `run` is a task, `pass_over` makes one pass at once."""

    def __init__(self, stocks: Sequence[Callable[[], Awaitable[None]]], expiries: Sequence[Callable[[], None]]) -> None:
        """`stocks` count keys and forget some, with checkpoints; `expiries` do that in one step."""
        self._stocks = stocks
        self._expiries = expiries

    async def run(self) -> None:
        """Make a pass every `EXPIRY_S`, until cancelled."""
        while True:
            await trio.sleep(EXPIRY_S)
            await self.pass_over()

    async def pass_over(self) -> None:
        """Forget what is over. Cancelling leaves the rest for the next pass."""
        for take_stock in self._stocks:
            await take_stock()
        for expire in self._expiries:
            expire()
