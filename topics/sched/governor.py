"""The governor: measures ten times a second how loaded the daemon is, and carries out the steps of the ladder.

`topics.sched.pressure` defines the pressure and the steps that follow from it. This module collects the signals and
acts: it tells the scheduler to coalesce and to pause, the shard writers how long a group gathers, and admission to
refuse at once. Changes of rungs are logged, and the metrics have all of it.
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
"""Time between two ticks (s)."""

LATENCY_WEIGHT: Final = 0.2
"""Weight of a new latency sample in the mean: after half a second it has followed two thirds of a lasting change."""

HARMFUL: Final = frozenset({"pausing", "saturated"})
"""Rungs on which clients get less than was promised: they are logged as warnings. The others only combine work."""

TOLD_EVERY_S: Final = 1.0
QUIET_LINES: Final = 4
QUIET_EVERY_S: Final = 10.0
"""Changes of rungs are logged at most once in `TOLD_EVERY_S`. Harmless rungs come and go with the load: of their
changes `QUIET_LINES` are logged at once, and then one in `QUIET_EVERY_S`."""

CALM: Final = Steps(0.0, 0.0, False, False, False)


class GovernorControls(NamedTuple):
    """The functions of the daemon that the governor calls, besides those of the scheduler."""

    busy_share: Callable[[], float]
    """The share of worker threads that are busy, 0..1."""
    set_commit_window: Callable[[float], None]
    """Set how long a group commit gathers (ms)."""
    set_saturated: Callable[[bool], None]
    """If True, an append that finds its queue full is refused at once."""
    announce_pause: Callable[[], None]
    """Tell watchers of topics that are paused."""


class Governor:
    """The task that measures the pressure and takes the steps. The daemon makes one and runs `run`.

    `pressure` (0..1) and `steps` are those of the last tick.
    """

    def __init__(self, scheduler: Scheduler[Any], controls: GovernorControls) -> None:
        self.pressure = 0.0
        self.steps = CALM
        self._scheduler = scheduler
        self._controls = controls
        self._ladder = Ladder()
        self._latency = Ewma(LATENCY_WEIGHT)
        self._told: tuple[str, ...] = ()
        """The rungs in the last log line, and its time."""
        self._told_at = -TOLD_EVERY_S
        self._quiet_left = float(QUIET_LINES)

    async def run(self) -> None:
        """Tick every `PERIOD_S` until cancelled; then undo all steps."""
        try:
            while True:
                due = trio.current_time() + PERIOD_S
                await trio.sleep_until(due)
                self.tick((trio.current_time() - due) * 1000)
        finally:
            self._carry_out(CALM)

    def tick(self, lag_ms: float) -> None:
        """Read the signals and act. `lag_ms` is how late the event loop called this."""
        self._latency.add(max(lag_ms, self._scheduler.take_mean_wait()))
        depth = self._scheduler.servable_depth / self._scheduler.shards
        self.pressure = pressure_of(Signals(depth, self._latency.value, self._controls.busy_share()))
        self._carry_out(self._ladder.step(self.pressure, trio.current_time() * 1000))
        self._tell(depth)

    def _tell(self, depth: float) -> None:
        """Log how the rungs have changed since the last line. A change that comes too soon is logged later, if it still
        differs by then."""
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
            busy_share=round(self._controls.busy_share(), 2),
            commit_window_ms=round(self.steps.commit_window_ms, 1),
            coalesce_ms=round(self.steps.coalesce_ms, 1),
        )

    def _carry_out(self, steps: Steps) -> None:
        before, self.steps = self.steps, steps
        self._scheduler.pace(steps.coalesce_ms)
        if steps.commit_window_ms != before.commit_window_ms:
            self._controls.set_commit_window(steps.commit_window_ms)
        if steps.saturated != before.saturated:
            self._controls.set_saturated(steps.saturated)
        if steps.lowest_paused and not before.lowest_paused:
            self._scheduler.pause_lowest()
            self._controls.announce_pause()
        elif before.lowest_paused and not steps.lowest_paused:
            self._scheduler.resume_lowest()
