"""The `Clock` seam: wall time, monotonic time and time since the boot, so that a simulation can decide all of them."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Three clocks. Waiting is Trio's business (a MockClock replaces it in tests), reading is this one's."""

    def now_ms(self) -> int:
        """Wall clock, integer milliseconds since the Unix epoch. May step."""
        ...

    def monotonic_ms(self) -> int:
        """Monotonic clock, integer milliseconds from an arbitrary start. Leases run on it."""
        ...

    def boottime_ms(self) -> int:
        """Milliseconds since the machine was booted, those included in which it slept: the same clock for every process
        of one boot. Nobody can set it."""
        ...

    def perf_ns(self) -> int:
        """High resolution monotonic nanoseconds, for `performance` figures only: no decision may rest on it."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def boottime_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    def perf_ns(self) -> int:
        return time.perf_counter_ns()
