"""The clock of windows: by it idempotency keys, commit keys, stages, leases and delays end.

Wall time may be set. A window that ran on it would end early after a step forward, and never after a step back. So
windows run on a clock of their own: within a life of the daemon it goes exactly as the monotonic clock does, and at the
start of a life it goes on where the last one left a `Mark`, plus the time that has passed since:

- in the same boot of the machine by CLOCK_BOOTTIME, which nobody can set and which counts while the machine sleeps;
- after another boot by the wall clock, for nothing else knows how long the machine was off; but by no less than the
  machine has been up, whatever the wall clock says;
- without a mark (the first start, a directory of an older version, a mark that was lost) from the wall clock.

Recovery moves it on to the latest of its times that is on disk, so it never goes back. Its readings look like ms since
the epoch and begin as such, but say nothing about the date: `Registry.to_wall` makes a date of one.

Pure: what the clocks say is handed in, where the mark is kept is `topics.storage.snapshots.clock_mark`'s business.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.runtime.clock import Clock
from topics.runtime.instant import Instant


class Mark(NamedTuple):
    """One moment by all clocks (ms), and the boot of the machine that it was in."""

    window: int
    wall: int
    boottime: int
    boot: str


def resumed(mark: Mark | None, *, wall: int, boottime: int, boot: str) -> int:
    """What the clock of windows says now, at the start of a life, by the last mark and by the other clocks (ms)."""
    if mark is None:
        return wall
    if mark.boot == boot and boottime >= mark.boottime:
        passed = boottime - mark.boottime
    else:
        passed = max(wall - mark.wall, boottime)
    return mark.window + passed


class WindowClock:
    """Goes on from the last `start`; before the first one it begins at the wall clock."""

    __slots__ = ("_ahead", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now_ms() - clock.monotonic_ms()

    def start(self, moment: Instant) -> None:
        """It was `moment.window` when the monotonic clock was `moment.mono`."""
        self._ahead = moment.window - moment.mono

    def now_ms(self) -> int:
        """Now, ms."""
        return self._ahead + self._clock.monotonic_ms()

    def mark(self, boot: str) -> Mark:
        """Now, by all clocks."""
        return Mark(self.now_ms(), self._clock.now_ms(), self._clock.boottime_ms(), boot)
