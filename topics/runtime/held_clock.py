"""`HeldClock`: the time by which topics are judged. On an owner it is that of the machine. On a standby it stands still
between two rounds of the bucket, at the time of the last one. Leases, delays and the windows of keys are shown as of
that moment. So nothing ends on a standby before it has ended on its owner.

The wall clock is held at the time of a round. The monotonic clock moves by as much as these times do, so moments on
both stay comparable, and the clock of windows, which follows the monotonic one, stands still too.
"""

from __future__ import annotations

from topics.runtime.clock import Clock


class HeldClock:
    """A `Clock`, which reads as the one behind it until `hold` is called."""

    __slots__ = ("_began_mono", "_began_wall", "_clock", "_wall")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall: int | None = None
        self._began_wall = self._began_mono = 0

    @property
    def is_held(self) -> bool:
        """Return True if it stands still."""
        return self._wall is not None

    def hold(self, wall_ms: int) -> None:
        """Stand still at this time of the wall clock (epoch ms), which is never less than the one before."""
        if self._wall is None:
            self._began_wall, self._began_mono = wall_ms, self._clock.monotonic_ms()
        self._wall = max(wall_ms, self._wall or 0)

    def release(self) -> None:
        """Go with the clock of the machine from now on."""
        self._wall = None

    def now_ms(self) -> int:
        return self._clock.now_ms() if self._wall is None else self._wall

    def monotonic_ms(self) -> int:
        if self._wall is None:
            return self._clock.monotonic_ms()
        return self._began_mono + self._wall - self._began_wall

    def boottime_ms(self) -> int:
        return self._clock.boottime_ms()

    def perf_ns(self) -> int:
        return self._clock.perf_ns()

    def thread_waits(self) -> int:
        return self._clock.thread_waits()
