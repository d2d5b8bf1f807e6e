"""Signals that ask a command to end, as a flag that the command looks at between two records.

An exception in the middle of sending a record would leave it unknown whether the record was sent.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """The signal that has asked for the end, if one has. `descriptor` becomes readable then, for `select`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.signal: signal.Signals | None = None
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def arm(self, ask: Callable[[int, FrameType | None], object]) -> None:
        """Have SIGINT and SIGTERM call `ask`, unless they are ignored (as in a background job)."""
        for number, handler in self._before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, ask)

    def disarm(self) -> None:
        """Restore the handlers from before `arm`."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0, or 128 + the number of the signal that has ended it."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def stopping() -> Iterator[StopSignal]:
    """While the block runs, the first SIGINT or SIGTERM sets the Stop; a second one has its usual effect."""
    read, write = os.pipe()
    stop = StopSignal(read)

    def ask(number: int, _frame: FrameType | None) -> None:
        stop.signal = signal.Signals(number)
        os.write(write, b"\0")
        stop.disarm()

    try:
        stop.arm(ask)
        yield stop
    finally:
        stop.disarm()
        os.close(read)
        os.close(write)
