"""The clocks of the machine, behind the protocol `Clock`, so that a simulation can set each of them."""

from __future__ import annotations

import resource
import time
from typing import Protocol


class Clock(Protocol):
    """Reads clocks. It does not wait: waiting is done with Trio, whose clock tests replace by a MockClock."""

    def now_ms(self) -> int:
        """The wall clock, in whole milliseconds since the Unix epoch. It may step forward and back."""
        ...

    def monotonic_ms(self) -> int:
        """The monotonic clock, in whole milliseconds from an arbitrary start. Leases expire by it."""
        ...

    def boottime_ms(self) -> int:
        """Milliseconds since the machine was booted, including the time that it was suspended. Nobody can set this
        clock, and every process reads the same value of it."""
        ...

    def perf_ns(self) -> int:
        """Monotonic nanoseconds with a high resolution, for the figures in `performance` and for how long work may hold
        the loop. Nothing that a client is promised may depend on it."""
        ...

    def thread_waits(self) -> int:
        """Return how often this thread has waited for something in the kernel so far. Two readings tell time in which
        the thread waited from time in which it had no core to run on."""
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

    def thread_waits(self) -> int:
        return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw  # voluntary context switches
