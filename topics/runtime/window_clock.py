"""The clock of windows: idempotency keys, commit keys, stages, leases and delays expire by it.

The wall clock may be set. If windows ran on it, a step forward would end them early, and after a step back they would
last too long. So windows have their own clock. While the daemon runs, it advances exactly as the monotonic clock does.
At a start it continues from the `ClockMark` that the last run has left, plus the time that has passed since:

- in the same boot of the machine by CLOCK_BOOTTIME, which nobody can set and which also counts while the machine is
  suspended;
- after another boot by the wall clock, because nothing else knows how long the machine was off; but by at least the
  time since the boot, even if the wall clock says less;
- without a mark (first start, a directory of an older version, a mark that was lost) it begins at the wall clock.

Recovery moves the clock forward to its latest time that is on disk, so it never goes back. Its readings look like
milliseconds since the epoch, but they are no dates: `Registry.to_wall` converts one.

Pure: the readings of the other clocks are arguments, and `topics.storage.snapshots.clock_mark` stores the mark.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.runtime.clock import Clock
from topics.runtime.instant import Instant


class ClockMark(NamedTuple):
    """One moment by all clocks (ms), and the id of the boot of the machine in which it was taken."""

    window: int
    wall: int
    boottime: int
    boot: str


def resumed(mark: ClockMark | None, *, wall: int, boottime: int, boot: str) -> int:
    """The reading of the clock of windows (ms) at a start: from the last mark, and from the other clocks as they read
    now (ms). `boot` is the id of this boot."""
    if mark is None:
        return wall
    if mark.boot == boot and boottime >= mark.boottime:
        passed = boottime - mark.boottime
    else:
        passed = max(wall - mark.wall, boottime)
    return mark.window + passed


class WindowClock:
    """The running clock. It continues from the last `start`; before the first one it reads as the wall clock did when
    it was made."""

    __slots__ = ("_ahead", "_clock")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now_ms() - clock.monotonic_ms()

    def start(self, moment: Instant) -> None:
        """Set the clock: it reads `moment.window` when the monotonic clock reads `moment.mono`."""
        self._ahead = moment.window - moment.mono

    def now_ms(self) -> int:
        """The current reading, ms."""
        return self._ahead + self._clock.monotonic_ms()

    def mark(self, boot: str) -> ClockMark:
        """The current readings of all clocks. `boot` is the id of this boot."""
        return ClockMark(self.now_ms(), self._clock.now_ms(), self._clock.boottime_ms(), boot)
