"""How long the work of a checkpoint keeps the loop before others run."""

from __future__ import annotations

from typing import Final

from topics.runtime.clock import Clock
from topics.runtime.turns import Turns

SLICE_NS: Final = 500_000


class WorkSlice:
    """The time since work on the loop has let others run; shared by all parts of a checkpoint."""

    def __init__(self, clock: Clock, turns: Turns) -> None:
        self._clock = clock
        self._turns = turns
        self._from_ns = 0

    def begin(self) -> None:
        """A slice begins now."""
        self._from_ns = self._clock.perf_ns()

    async def give_way(self) -> None:
        """Let others run if this slice has been longer than `SLICE_NS`; then another one begins, with a turn of its
        own."""
        if self._clock.perf_ns() - self._from_ns > SLICE_NS:
            await self._turns.take()
            self._from_ns = self._clock.perf_ns()
