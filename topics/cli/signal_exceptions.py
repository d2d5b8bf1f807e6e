"""Signals that end a command as an exception would, so that it can clean up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def unwinding() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP raise SystemExit in it, with the exit code 128 + the signal's number.
    SIGINT raises KeyboardInterrupt anyway. Signals that are ignored stay ignored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, end)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT, SIGTERM and SIGHUP while the block runs, for a cleanup that must not be interrupted."""
    numbers = (signal.SIGINT, *SIGNALS)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
