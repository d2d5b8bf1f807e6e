"""`Wakeup`: an event with a deadline, for a task that waits thousands of times a second.

A cancel scope around each wait (`trio.move_on_after`) costs several times as much as the wait. Here a second task
sleeps until the deadline and sets the event then. A deadline that has been superseded by a later one is not taken back,
since that would cost as much; it wakes the task once for nothing.
"""

from __future__ import annotations

import math

import trio


class Wakeup:
    """A flag that one task waits for, and any code of the loop sets. `run` must run beside that task, until `close`."""

    def __init__(self) -> None:
        self._event = trio.Event()
        self._deadline = math.inf
        """When the second task sets the event (seconds, Trio's clock)."""
        self._timer = trio.CancelScope()
        self._life = trio.CancelScope()

    def set(self) -> None:
        """Wake the task, now or when it waits."""
        self._event.set()

    def clear(self) -> None:
        """Forget earlier calls of `set`."""
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self, seconds: float) -> None:
        """Return when `set` has been called since `clear`, or after `seconds`, which may be infinite. May return
        earlier than that, so the caller looks for work. Cancelling leaves nothing behind."""
        deadline = trio.current_time() + seconds
        if deadline < self._deadline:
            self._deadline = self._timer.deadline = deadline
        await self._event.wait()

    async def run(self) -> None:
        """Set the event at deadlines. Returns after `close`."""
        with self._life:
            while True:
                self._timer = trio.CancelScope(deadline=self._deadline)
                with self._timer:
                    await trio.sleep_forever()
                self._deadline = math.inf
                self._event.set()

    def close(self) -> None:
        """End `run`."""
        self._life.cancel()
