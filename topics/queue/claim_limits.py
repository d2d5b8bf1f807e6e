"""How many jobs may be claimed now (`docs/design/jobs.md` 6): the limits of a queue's config. Pure.

`max_in_flight` bounds the leased jobs, with those that are about to be. `rate` bounds the jobs that are claimed in any
`per_ms`: claims are counted in steps of a part of that time, and a step counts until its end is `per_ms` ago. So there
are never more than the rate allows, and places become free by a step later than they might.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Final

STEPS: Final = 64
"""Steps in one `per_ms`. Also the most that are kept, but for one."""


class RateWindow:
    """The jobs that were claimed in the last `per_ms`, at most `jobs` of them. Times are monotonic ms."""

    __slots__ = ("_counted", "_step_ms", "_steps", "jobs", "per_ms")

    def __init__(self, jobs: int, per_ms: int) -> None:
        self.jobs = jobs
        self.per_ms = per_ms
        self._step_ms = -(-per_ms // STEPS)
        self._steps: deque[tuple[int, int]] = deque()
        """The last ms of each step, and how many jobs were claimed in it."""
        self._counted = 0

    def note(self, now_ms: int, n: int) -> None:
        """Count claimed jobs."""
        end = now_ms - now_ms % self._step_ms + self._step_ms - 1
        if self._steps and self._steps[-1][0] >= end:
            end, before = self._steps.pop()
            n += before
            self._counted -= before
        self._steps.append((end, n))
        self._counted += n

    def room(self, now_ms: int) -> int:
        """Return how many jobs may be claimed now. It can be negative, after a lower rate was set."""
        self._forget_old(now_ms)
        return self.jobs - self._counted

    def next_ms(self, now_ms: int) -> int | None:
        """Return when there will be more room than now by time alone, None if there is all."""
        self._forget_old(now_ms)
        return self._steps[0][0] + self.per_ms if self._steps else None

    def _forget_old(self, now_ms: int) -> None:
        while self._steps and self._steps[0][0] + self.per_ms <= now_ms:
            self._counted -= self._steps.popleft()[1]

    def resized(self, jobs: int, per_ms: int, now_ms: int) -> RateWindow:
        """Return a window of another size, in which what this one counts was claimed now."""
        window = RateWindow(jobs, per_ms)
        self.room(now_ms)
        if self._counted:
            window.note(now_ms, min(self._counted, jobs))
        return window


class ClaimLimits:
    """The limits of one queue. `max_in_flight` is 0 for none, `window` None for none."""

    __slots__ = ("max_in_flight", "window")

    def __init__(self) -> None:
        self.max_in_flight = 0
        self.window: RateWindow | None = None

    @property
    def any(self) -> bool:
        """Return True if there are limits."""
        return bool(self.max_in_flight) or self.window is not None

    def room(self, in_flight: int, dealt: int, now_ms: int) -> int:
        """Return how many jobs may be reserved for claims, given how many are leased and how many are reserved."""
        room = sys.maxsize
        if self.max_in_flight:
            room = self.max_in_flight - in_flight
        if self.window is not None:
            room = min(room, self.window.room(now_ms))
        return max(room - dealt, 0)
