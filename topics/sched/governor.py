"""The governor: measures how pressed the daemon is, ten times a second, and sees to what the ladder says.

What pressure is and which step follows from it is `topics.sched.pressure`'s; here are the signals, and the hands: the
scheduler is told to coalesce and to pause, the shard writers how long a group gathers, admission that nobody need wait.
Changes of rungs are lines in the log, and all of it is in the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import trio

from topics.sched.pressure import Ewma, Ladder, Signals, Steps, pressure_of
from topics.sched.workers import Scheduler
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

PERIOD_S: Final = 0.1

LATENCY_WEIGHT: Final = 0.2
"""Of a new sample: a lasting change is two thirds through after half a second."""

HARMFUL: Final = frozenset({"pausing", "saturated"})
"""Rungs on which somebody gets less than was promised: a warning. The others only put things together."""

TOLD_EVERY_S: Final = 1.0
QUIET_LINES: Final = 4
QUIET_EVERY_S: Final = 10.0
"""Changes are logged once a second at most. Those of the rungs that harm nobody come and go with the load: a few of
them at once, and then one in ten seconds."""

CALM: Final = Steps(0.0, 0.0, False, False, False)


class Hands(NamedTuple):
    """What the governor looks at and acts on beside the scheduler."""

    busy_share: Callable[[], float]
    """Of worker threads, 0..1."""
    set_commit_window: Callable[[float], None]
    """In milliseconds."""
    set_saturated: Callable[[bool], None]
    """Whether an append that finds its queue full is refused at once."""
    announce_pause: Callable[[], None]
    """Tell watchers of topics that are paused."""


class Governor:
    """See the module. `pressure` and `steps` are as of the last tick."""

    def __init__(self, scheduler: Scheduler[Any], hands: Hands) -> None:
        self.pressure = 0.0
        self.steps = CALM
        self._scheduler = scheduler
        self._hands = hands
        self._ladder = Ladder()
        self._latency = Ewma(LATENCY_WEIGHT)
        self._told: tuple[str, ...] = ()
        """The rungs as of the last line in the log, and when that was."""
        self._told_at = -TOLD_EVERY_S
        self._quiet_left = float(QUIET_LINES)

    async def run(self) -> None:
        """Tick until cancelled; then everything is at its ease again."""
        try:
            while True:
                due = trio.current_time() + PERIOD_S
                await trio.sleep_until(due)
                self.tick((trio.current_time() - due) * 1000)
        finally:
            self._carry_out(CALM)

    def tick(self, lag_ms: float) -> None:
        """Look at the signals and act. `lag_ms` is how late the loop was to call this."""
        self._latency.add(max(lag_ms, self._scheduler.take_mean_wait()))
        depth = self._scheduler.servable_depth / self._scheduler.shards
        self.pressure = pressure_of(Signals(depth, self._latency.value, self._hands.busy_share()))
        self._carry_out(self._ladder.step(self.pressure, trio.current_time() * 1000))
        self._tell(depth)

    def _tell(self, depth: float) -> None:
        """Log how the rungs have changed since the last line. What changes too often is told as it is when its time
        has come, if it differs by then."""
        rungs, now = self._ladder.rungs, trio.current_time()
        if rungs == self._told or now - self._told_at < TOLD_EVERY_S:
            return
        taken = [rung for rung in rungs if rung not in self._told]
        left = [rung for rung in self._told if rung not in rungs]
        harmful = not HARMFUL.isdisjoint(taken + left)
        quiet = min(self._quiet_left + (now - self._told_at) / QUIET_EVERY_S, QUIET_LINES)
        if not harmful and quiet < 1:
            return
        self._told, self._told_at, self._quiet_left = rungs, now, quiet - (not harmful)
        (log.warning if harmful else log.info)(
            "pressure",
            pressure=round(self.pressure, 2),
            steps=list(rungs),
            taken=taken,
            left=left,
            latency_ms=round(self._latency.value, 1),
            topics_per_worker=round(depth, 1),
            busy_share=round(self._hands.busy_share(), 2),
            commit_window_ms=round(self.steps.commit_window_ms, 1),
            coalesce_ms=round(self.steps.coalesce_ms, 1),
        )

    def _carry_out(self, steps: Steps) -> None:
        before, self.steps = self.steps, steps
        self._scheduler.pace(steps.coalesce_ms)
        if steps.commit_window_ms != before.commit_window_ms:
            self._hands.set_commit_window(steps.commit_window_ms)
        if steps.saturated != before.saturated:
            self._hands.set_saturated(steps.saturated)
        if steps.lowest_paused and not before.lowest_paused:
            self._scheduler.pause_lowest()
            self._hands.announce_pause()
        elif before.lowest_paused and not steps.lowest_paused:
            self._scheduler.resume_lowest()
