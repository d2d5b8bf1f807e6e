"""One moment by two clocks, as leases and delays keep it. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

# The longest lease, and the longest delay, that the contract allows (`docs/spec/api.md` sections 2 and 9). After a
# restart with a wall clock that has gone wrong no job is kept from its claimers for longer than that.
MAX_AHEAD_MS: Final = 86_400_000


class Instant(NamedTuple):
    """One moment by two clocks, in ms: the monotonic one of this life of the daemon, and that of windows, which goes on
    from life to life and which nobody can set (`topics.runtime.window_clock`)."""

    mono: int
    window: int

    def after(self, ms: int) -> Instant:
        """`ms` later, by both clocks."""
        return Instant(self.mono + ms, self.window + ms)

    def at_window(self, window: int) -> Instant:
        """The moment that the clock of windows calls `window`: at most `MAX_AHEAD_MS` ahead."""
        return self.after(min(window - self.window, MAX_AHEAD_MS))
