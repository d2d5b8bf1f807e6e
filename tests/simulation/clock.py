"""`SimClock`: the `Clock` seam of a simulation, driven by Trio's clock (a MockClock) and by hand."""

from __future__ import annotations

import trio

BASE_MS = 1_700_000_000_000
"""Where the wall clock starts unless told otherwise: some time in 2023."""


class SimClock:
    """Wall and monotonic time out of Trio's, in as many runs of Trio as a simulation has restarts, and outside of them.

    Time passes as `trio.current_time()` does between two readings in one run, and by `advance` anywhere. Between two
    runs, and from the start of a run to the first reading in it, none passes. The wall clock differs from the monotonic
    one by `base_ms` and the sum of all `step`s, that of the boot by the `up_ms` that the machine was up before.
    """

    def __init__(self, base_ms: int = BASE_MS, *, up_ms: int = 0) -> None:
        self._wall_offset_ms = base_ms
        self._up_ms = up_ms
        self._passed_ns = 0
        self._waits = 0
        self._run: trio.lowlevel.TrioToken | None = None
        self._run_read_at = 0.0
        self._follow()

    def now_ms(self) -> int:
        return self._wall_offset_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return self.perf_ns() // 1_000_000

    def boottime_ms(self) -> int:
        return self._up_ms + self.monotonic_ms()

    def perf_ns(self) -> int:
        self._follow()
        return self._passed_ns

    def thread_waits(self) -> int:
        return self._waits

    def step(self, ms: int) -> None:
        """Set the wall clock forward by `ms`, or back if negative. The monotonic one does not move."""
        self._wall_offset_ms += ms

    def advance(self, ms: int) -> None:
        """Let `ms` pass on both clocks, without waking anybody, while a thread waits."""
        assert ms >= 0, "time does not go back; step() moves the wall clock"
        self._passed_ns += ms * 1_000_000
        self._waits += 1

    def _follow(self) -> None:
        """Take over what has passed on Trio's clock since the last reading in this run."""
        try:
            run = trio.lowlevel.current_trio_token()
        except RuntimeError:
            return
        now = trio.current_time()
        if run is self._run:
            passed_ns = round((now - self._run_read_at) * 1e9)
            self._passed_ns += passed_ns
        self._run = run
        self._run_read_at = now
