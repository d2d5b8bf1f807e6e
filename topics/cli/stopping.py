"""Signals that ask a command to come to an end, as something it can look at between two things that it does.

An exception in the middle of handing a record on would leave nobody knowing whether it was handed on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether the end was asked for. `descriptor` becomes readable then, for who waits in a `select`."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.signal: signal.Signals | None = None
        self._before = {number: signal.getsignal(number) for number in SIGNALS}

    def arm(self, ask: Callable[[int, FrameType | None], object]) -> None:
        """Have signals call `ask`, but for those that are ignored (of a job in the background)."""
        for number, handler in self._before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, ask)

    def disarm(self) -> None:
        """From now on a signal does what it does otherwise."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What a command exits with that did what was asked."""
        return 0 if self.signal is None else 128 + self.signal


@contextmanager
def stopping() -> Iterator[Stop]:
    """While the block runs the first SIGINT or SIGTERM sets the Stop; a second one does what it does otherwise."""
    read, write = os.pipe()
    stop = Stop(read)

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
