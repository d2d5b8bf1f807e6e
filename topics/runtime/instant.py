"""One moment as two clocks show it; leases and delays are kept in this form. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

MAX_AHEAD_MS: Final = 86_400_000
"""The longest lease and the longest delay (`docs/spec/api.md` sections 2 and 9). If the wall clock is wrong after a
restart, no job is delayed for longer than this."""


class Instant(NamedTuple):
    """One moment by three clocks, in ms: `mono` is the monotonic clock of this run of the daemon. `window` is the clock
    of windows, which continues over restarts (`topics.runtime.window_clock`). `wall` is the wall clock (epoch ms). A
    `wall` of 0 means that it is not needed: then no job that waits for a time of the wall clock is due."""

    mono: int
    window: int
    wall: int = 0

    def after(self, ms: int) -> Instant:
        """The moment `ms` milliseconds later."""
        return Instant(self.mono + ms, self.window + ms, self.wall)

    def at_window(self, window: int) -> Instant:
        """The moment at which the clock of windows shows `window`, but at most `MAX_AHEAD_MS` after this one."""
        return self.after(min(window - self.window, MAX_AHEAD_MS))
