"""The governor: from signals to steps and back, with everything at its ease again in the end."""

from __future__ import annotations

from typing import Any

import pytest
import structlog
import trio

from tests.sched.test_workers import DONE, Bench, Item
from topics.sched.governor import CALM, PERIOD_S, Governor, GovernorControls
from topics.sched.workers import ServiceResult

pytestmark = pytest.mark.trio


class Desk:
    """A governor of a scheduler that nobody runs: what waits, waits for as long as a test wants it to."""

    def __init__(self, shards: int = 2) -> None:
        self.bench = Bench(shards=shards)
        self.busy = 0.0
        self.windows: list[float] = []
        self.saturated: list[bool] = []
        self.announced = 0
        controls = GovernorControls(lambda: self.busy, self.windows.append, self.saturated.append, self._announce)
        self.scheduler = self.bench.scheduler
        self.governor = Governor(self.scheduler, controls)
        self._next = 0

    def _announce(self) -> None:
        assert self.scheduler.lowest_paused, "they are told when it is so"
        self.announced += 1

    def wait(self, count: int, priority: int = 0) -> None:
        """So many items more wait."""
        for _ in range(count):
            self._next += 1
            self.scheduler.mark(Item(self._next, priority))

    def serve_all(self) -> None:
        for shard in self.scheduler._shards:
            while shard.ready.pop(0) is not None:
                pass

    async def tick(self, count: int = 1, lag_ms: float = 0.0) -> None:
        for _ in range(count):
            await trio.sleep(PERIOD_S)
            self.governor.tick(lag_ms)


@pytest.fixture
def desk(autojump_clock: Any) -> Desk:
    return Desk()


async def test_without_pressure_nothing_is_done(autojump_clock: Any) -> None:
    desk = Desk()
    with structlog.testing.capture_logs() as logs:
        await desk.tick(50)
    assert desk.governor.pressure == 0
    assert desk.governor.steps == CALM
    assert (desk.windows, desk.saturated, desk.announced, logs) == ([], [], 0, [])
    assert desk.scheduler.coalesce_ms == 0


@pytest.mark.parametrize(
    ("waiting", "pressure", "rungs"),
    [(32, 0.2, []), (128, 0.5, ["coalescing", "widening"]), (32 * 40, 1.0, ["coalescing", "widening", "saturated"])],
)
async def test_depth_per_worker_is_pressure(
    waiting: int, pressure: float, rungs: list[str], autojump_clock: Any
) -> None:
    desk = Desk()
    desk.wait(waiting)
    with structlog.testing.capture_logs() as logs:
        await desk.tick()
    assert desk.governor.pressure == pytest.approx(pressure, abs=0.01)
    assert [log["steps"] for log in logs] == ([rungs] if rungs else [])
    steps = desk.governor.steps
    assert desk.scheduler.coalesce_ms == steps.coalesce_ms
    assert (steps.coalesce_ms > 0, steps.commit_window_ms > 0, steps.saturated) == (
        "coalescing" in rungs,
        "widening" in rungs,
        "saturated" in rungs,
    )
    assert desk.windows == ([steps.commit_window_ms] if steps.commit_window_ms else [])


async def test_lag_of_the_loop_is_pressure_only_when_it_lasts(autojump_clock: Any) -> None:
    desk = Desk()
    await desk.tick(lag_ms=20)
    assert desk.governor.pressure < 0.2
    await desk.tick(30, lag_ms=20)
    assert desk.governor.pressure == pytest.approx(0.5, abs=0.01)
    await desk.tick(40)
    assert desk.governor.pressure < 0.01


async def test_busy_threads_are_pressure_but_never_a_pause(autojump_clock: Any) -> None:
    desk = Desk()
    desk.busy = 1.0
    await desk.tick(50)
    assert desk.governor.pressure == pytest.approx(0.55)
    assert not desk.governor.steps.lowest_paused
    assert desk.announced == 0


async def test_a_second_of_high_pressure_pauses_the_lowest_until_it_is_well_below(autojump_clock: Any) -> None:
    desk = Desk()
    desk.wait(600)
    await desk.tick(9)
    assert desk.governor.pressure > 0.8
    assert not desk.scheduler.lowest_paused
    await desk.tick(3)
    assert desk.scheduler.lowest_paused
    assert desk.governor.steps.routers_lowered
    assert desk.announced == 1
    desk.serve_all()
    desk.wait(240)
    await desk.tick(5)
    assert 0.6 < desk.governor.pressure < 0.8
    assert desk.scheduler.lowest_paused
    desk.serve_all()
    await desk.tick()
    assert not desk.scheduler.lowest_paused
    assert desk.announced == 1


async def test_the_paused_do_not_keep_up_the_pressure_that_pauses_them(autojump_clock: Any) -> None:
    desk = Desk()
    desk.wait(600, priority=-1)
    await desk.tick(9)
    while not desk.scheduler.lowest_paused:
        assert desk.governor.pressure > 0.8
        await desk.tick()
    await desk.tick()
    assert desk.governor.pressure < 0.6
    assert desk.announced == 1


async def test_each_change_is_one_line_in_the_log(autojump_clock: Any) -> None:
    desk = Desk()
    with structlog.testing.capture_logs() as logs:
        desk.wait(128)
        await desk.tick(20)
        desk.serve_all()
        await desk.tick(20)
    assert [(log["event"], log["steps"]) for log in logs] == [
        ("pressure", ["coalescing", "widening"]),
        ("pressure", []),
    ]
    assert logs[0]["pressure"] == 0.5
    assert logs[0]["topics_per_worker"] == 64


async def test_hands_are_moved_only_when_something_changes(autojump_clock: Any) -> None:
    desk = Desk()
    desk.wait(32 * 50)
    await desk.tick(30)
    assert desk.saturated == [True]
    assert len(desk.windows) == 1
    desk.serve_all()
    await desk.tick(30)
    assert desk.saturated == [True, False]
    assert desk.windows[-1] == 0
    assert len(desk.windows) == 2


async def test_it_ticks_ten_times_a_second_and_restores_everything_at_the_end(autojump_clock: Any) -> None:
    desk = Desk()
    desk.wait(32 * 50, priority=5)
    desk.wait(1, priority=-5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.governor.run)
        await trio.sleep(0.95)
        assert desk.saturated == [True]
        assert desk.announced == 0
        await trio.sleep(0.5)
        assert desk.announced == 1
        assert desk.scheduler.coalesce_ms == pytest.approx(20)
        assert desk.windows[-1] == pytest.approx(10)
        nursery.cancel_scope.cancel()
    assert desk.governor.steps == CALM
    assert desk.scheduler.coalesce_ms == 0
    assert not desk.scheduler.lowest_paused
    assert desk.saturated == [True, False]
    assert desk.windows[-1] == 0


async def test_started_again_it_does_again_what_is_needed(autojump_clock: Any) -> None:
    desk = Desk()
    desk.wait(32 * 50)
    for announced in (1, 2):
        with trio.move_on_after(2):
            await desk.governor.run()
        assert desk.announced == announced
        assert not desk.scheduler.lowest_paused


async def test_what_waits_long_is_pressure(autojump_clock: Any) -> None:
    """Scheduling latency, as the workers have measured it."""
    desk = Desk(shards=1)
    desk.bench.serve = lambda item: ServiceResult(1, False)
    for _ in range(40):
        desk.wait(1)
        await trio.sleep(PERIOD_S)
        desk.scheduler._serve_next(desk.scheduler._shards[0])
        desk.governor.tick(0)
    assert desk.governor.pressure == pytest.approx(0.2 + 0.15 * 4.32, abs=0.02)
    assert DONE.cost == 1
