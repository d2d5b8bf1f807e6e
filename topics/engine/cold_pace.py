"""The pace of readers of cold records: how much of the loop they get for decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from topics.runtime.clock import Clock

COLD_SHARE: Final = 10
"""While appends arrive, all readers of cold segments together get one part in so many of the loop to decode records;
otherwise half of it. Reading the past may be slow, live traffic may not."""

LEAST_PAUSE_NS: Final = 1_000_000
"""A shorter pause is put off until it has grown to this: the kernel ends waits at whole milliseconds, so each pause of
0.1 ms would take ten times as long."""

MOST_SURPLUS_NS: Final = 2_000_000
"""How much of a pause that was too long shortens the next ones, while no appends arrive."""


class ColdPace:
    """The pauses of all readers of cold records together. Made once by the loader."""

    __slots__ = ("_clock", "_is_lively", "_owed_ns", "lane")

    def __init__(self, clock: Clock, is_lively: Callable[[], bool]) -> None:
        """`is_lively` returns True if an append has arrived lately."""
        self.lane = trio.Lock()
        """Held while cold records are decoded, and during the pause after it."""
        self._clock = clock
        self._is_lively = is_lively
        self._owed_ns = 0

    async def pay(self, began_ns: int) -> None:
        """Leave the loop to others for a multiple of the time since `began_ns`, in which records were decoded.

        Others run in any case; the pause comes when it is worth one. Cancelling loses the pause.
        """
        now = self._clock.perf_ns()
        lively = self._is_lively()
        self._owed_ns += (now - began_ns) * (COLD_SHARE - 1 if lively else 1)
        if self._owed_ns < LEAST_PAUSE_NS:
            await trio.lowlevel.checkpoint()
            return
        owed, self._owed_ns = self._owed_ns, 0
        await trio.sleep(owed / 1e9)
        surplus = self._clock.perf_ns() - now - owed
        if not lively:
            self._owed_ns = -max(0, min(surplus, MOST_SURPLUS_NS))
