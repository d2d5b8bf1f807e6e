"""`InlineOffload`: the `Offload` seam of a simulation. Nothing runs beside the loop, so a seed decides every order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

import trio

from topics.offload import Kind

T = TypeVar("T")


class InlineOffload:
    """Runs calls on the loop, one at a time, where real ones run in threads.

    With a `seed` it lets a random number of scheduler turns pass before and after a call, as threads do; without one it
    takes one turn before it. As with threads, a call that has started is never abandoned: its result is returned even
    if the task was cancelled meanwhile.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self.calls: list[Kind] = []
        """The kind of every call that was started, in order."""
        self.share = 0.0
        """What `busy_share` answers; a test of the governor sets it."""

    async def run(self, kind: Kind, call: Callable[[], T]) -> T:
        """Run `call` on the loop after a checkpoint. The only cancellation point is before `call`."""
        await trio.lowlevel.checkpoint()
        await self._turns()
        self.calls.append(kind)
        result = call()
        await self._turns()
        return result

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` now: this is the loop already, and now is in the order of posting."""
        call()

    def busy_share(self) -> float:
        return self.share

    async def _turns(self) -> None:
        if self._random is not None:
            for _ in range(self._random.randrange(3)):
                await trio.lowlevel.cancel_shielded_checkpoint()
