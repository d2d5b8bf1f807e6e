"""Calls that may never return: waited for with a bound, given up behind it, heard of again when they do return.

A hard NFS mount, a FUSE daemon that is stuck or a dying disk can hold a thread for ever, and nothing can end such a
call. So it runs in a thread of its own, and the thread that wants its result waits for a `Patience`. Blocking; from
worker threads only (`Offload.attempt`).
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import trio

T = TypeVar("T")

THREAD_NAME: Final = "bounded call"
"""Of the thread of a call while it lasts, as `top -H` and `/proc` show it."""


class CallHangs(OSError):
    """A call has not returned in time, and goes on in a thread of its own. Nobody knows how far it has come."""

    def __init__(self, seconds: float) -> None:
        super().__init__(errno.ETIMEDOUT, f"no answer for {seconds:g} s")


class Patience:
    """How long calls without progress are waited for, seconds. Shared by the calls of one store."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.changed = threading.Condition()
        """Notified when a call has returned, and when the patience has become another one."""

    @property
    def seconds(self) -> float:
        """How long, from the last sign of life on."""
        return self._seconds

    def change(self, seconds: float) -> None:
        """From now on so long, for the calls that are waited for already too."""
        with self.changed:
            self._seconds = seconds
            self.changed.notify_all()


class Attempt(Generic[T]):
    """One such call. `late` is called, in the call's thread, if it returns after it was given up."""

    def __init__(self, patience: Patience, late: Callable[[], None]) -> None:
        self._patience = patience
        self._late = late
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._has_returned = False
        self._given_up = False
        self._seen_s = time.monotonic()

    def gets_on(self) -> None:
        """For the call itself: it makes progress. Raises CallHangs if it was given up: then it ends here."""
        with self._patience.changed:
            if self._given_up:
                raise CallHangs(self._patience.seconds)
            self._seen_s = time.monotonic()

    def run(self, call: Callable[[Attempt[T]], T]) -> None:
        """In the call's thread: make the call."""
        try:
            self._results.append(call(self))
        except BaseException as error:
            self._error = error
        with self._patience.changed:
            self._has_returned = True
            late = self._given_up
            self._patience.changed.notify_all()
        if late:
            self._late()

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        self._given_up = True

    def wait(self) -> T:
        """Blocking: what it returns, or raises. Raises CallHangs when patience is at an end."""
        patience = self._patience
        with patience.changed:
            while not self._has_returned:
                left = self._seen_s + patience.seconds - time.monotonic()
                if left <= 0:
                    self.give_up()
                    raise CallHangs(patience.seconds)
                patience.changed.wait(left)
        if self._error is not None:
            raise self._error
        return self._results[0]


def attempt(call: Callable[[Attempt[T]], T], patience: Patience, late: Callable[[], None]) -> T:
    """Blocking: run `call` in a thread of its own, and return or raise what it does.

    Raises CallHangs if it has neither returned nor got on for as long as `patience` says. It goes on then, as nothing
    can end it, and `late` is called in its thread when it has returned. The threads do not keep the process alive.
    """
    one: Attempt[T] = Attempt(patience, late)
    trio.lowlevel.start_thread_soon(lambda: one.run(call), lambda _: None, THREAD_NAME)
    return one.wait()
