"""Blocking calls that may never return. They are given up after a time without progress.

A hard NFS mount, a FUSE daemon that is stuck or a dying disk can block a thread for ever, and nothing can end such a
call. So the call runs in a thread of its own, and the thread that wants the result waits for it no longer than a
`CallTimeLimit` says. A call that was given up goes on in its thread; if it returns later, a callback is told.
Everything in here blocks, and is called from worker threads only (`Offload.attempt`).
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
"""The name of the thread of such a call, as `top -H` and `/proc` show it."""


class CallTimeout(OSError):
    """A call was given up. It goes on in its thread, and nobody knows how much of it has been done."""

    def __init__(self, seconds: float) -> None:
        super().__init__(errno.ETIMEDOUT, f"no answer for {seconds:g} s")


class CallTimeLimit:
    """How long a call may go on without progress before it is given up. The calls of one store share one object."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.changed = threading.Condition()
        """Notified when a call has returned and when `seconds` has changed."""

    @property
    def seconds(self) -> float:
        """The bound in seconds, counted from the call's last sign of progress."""
        return self._seconds

    def change(self, seconds: float) -> None:
        """Set the bound. It also applies to the calls that are waited for already."""
        with self.changed:
            self._seconds = seconds
            self.changed.notify_all()


class BoundedCall(Generic[T]):
    """One such call. `late` is called in the thread of the call if it returns after it was given up."""

    def __init__(self, time_limit: CallTimeLimit, late: Callable[[], None]) -> None:
        self._time_limit = time_limit
        self._late = late
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._has_returned = False
        self._given_up = False
        self._seen_s = time.monotonic()

    def gets_on(self) -> None:
        """The call itself reports progress here. Raises CallTimeout if it was given up: it must not go on then."""
        with self._time_limit.changed:
            if self._given_up:
                raise CallTimeout(self._time_limit.seconds)
            self._seen_s = time.monotonic()

    def run(self, call: Callable[[BoundedCall[T]], T]) -> None:
        """Make the call; run in the thread of the call."""
        try:
            self._results.append(call(self))
        except BaseException as error:
            self._error = error
        with self._time_limit.changed:
            self._has_returned = True
            late = self._given_up
            self._time_limit.changed.notify_all()
        if late:
            self._late()

    def give_up(self) -> None:
        """Stop waiting for the call. If it returns later, `late` is called."""
        self._given_up = True

    def wait(self) -> T:
        """Blocking: wait for the call, and return its result or raise its exception. Raises CallTimeout if it has made
        no progress for as long as the patience allows; it is given up then."""
        time_limit = self._time_limit
        with time_limit.changed:
            while not self._has_returned:
                left = self._seen_s + time_limit.seconds - time.monotonic()
                if left <= 0:
                    self.give_up()
                    raise CallTimeout(time_limit.seconds)
                time_limit.changed.wait(left)
        if self._error is not None:
            raise self._error
        return self._results[0]


def attempt(call: Callable[[BoundedCall[T]], T], time_limit: CallTimeLimit, late: Callable[[], None]) -> T:
    """Blocking: run `call` in a thread of its own, and return its result or raise its exception.

    Raises CallTimeout if it has neither returned nor reported progress (`BoundedCall.gets_on`) for as long as
    `time_limit` allows. The call then goes on in its thread, and `late` is called in that thread when it returns. The
    threads do not keep the process alive.
    """
    one: BoundedCall[T] = BoundedCall(time_limit, late)
    trio.lowlevel.start_thread_soon(lambda: one.run(call), lambda _: None, THREAD_NAME)
    return one.wait()
