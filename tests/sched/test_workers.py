"""The workers: what is marked is served, in order, without polling; held while it is coalesced, passed over while it is
paused."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.engine.life import settle
from topics.runtime.turns import Turns
from topics.sched.ready_set import MAX_COST
from topics.sched.workers import Scheduler, ServiceResult

DONE = ServiceResult(1, False)


@dataclass(eq=False)
class Item:
    """A topic, as the scheduler sees it."""

    id: int
    priority: int = 0

    def __repr__(self) -> str:
        return f"item {self.id}"


@dataclass
class Bench:
    """A scheduler that notes who was served when, in ms since the start."""

    shards: int = 1
    served: list[tuple[Item, float]] = field(default_factory=list)
    serve: Callable[[Item], ServiceResult] = lambda item: DONE

    def __post_init__(self) -> None:
        self.scheduler: Scheduler[Item] = Scheduler(self.shards, lambda item: item.priority, self._serve, Turns())
        self.began = trio.current_time()

    def _serve(self, item: Item) -> ServiceResult:
        self.served.append((item, self.now_ms))
        return self.serve(item)

    @property
    def now_ms(self) -> float:
        return round((trio.current_time() - self.began) * 1000, 3)

    def times(self, item: Item) -> list[float]:
        return [at for one, at in self.served if one is item]

    @property
    def order(self) -> list[int]:
        return [item.id for item, _ in self.served]


@pytest.fixture
async def bench(nursery: trio.Nursery, autojump_clock: Any) -> Bench:
    await trio.sleep(1)
    one = Bench()
    nursery.start_soon(one.scheduler.run)
    return one


class TaskSteps(trio.abc.Instrument):
    """Counts the steps of the loop's tasks, and how often it slept."""

    def __init__(self) -> None:
        self.count = 0
        self.sleeps: list[float] = []

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1

    def before_io_wait(self, timeout: float) -> None:
        if timeout:
            self.sleeps.append(timeout)


# --- serving ----------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_what_is_marked_is_served_at_once_and_once(bench: Bench, autojump_clock: Any) -> None:
    item = Item(1)
    for _ in range(3):
        bench.scheduler.mark(item)
    assert bench.scheduler.depth == 1
    await settle()
    assert bench.served == [(item, 0)]
    bench.scheduler.mark(item)
    await settle()
    assert bench.times(item) == [0, 0]


@pytest.mark.trio
async def test_what_has_more_is_served_again_after_the_others(bench: Bench, autojump_clock: Any) -> None:
    rounds = Counter[int]()

    def serve(item: Item) -> ServiceResult:
        rounds[item.id] += 1
        return ServiceResult(MAX_COST, rounds[item.id] < 3)

    bench.serve = serve
    for number in (1, 2, 3):
        bench.scheduler.mark(Item(number))
    await settle()
    assert bench.order == [1, 2, 3] * 3


@pytest.mark.trio
async def test_the_higher_band_is_served_more_often(bench: Bench, autojump_clock: Any) -> None:
    bench.serve = lambda item: ServiceResult(1, len(bench.served) < 900)
    high, low = Item(1, 900), Item(2, 100)
    bench.scheduler.mark(low)
    bench.scheduler.mark(high)
    await settle()
    shares = Counter(bench.order[:900])
    assert shares[high.id] / shares[low.id] == pytest.approx(8, rel=0.1)


@pytest.mark.trio
async def test_marked_while_it_is_served_it_is_served_again(bench: Bench, autojump_clock: Any) -> None:
    item = Item(1)

    def serve(one: Item) -> ServiceResult:
        if len(bench.served) == 1:
            bench.scheduler.mark(one)
        return DONE

    bench.serve = serve
    bench.scheduler.mark(item)
    await settle()
    assert bench.order == [1, 1]


@pytest.mark.trio
async def test_items_are_spread_over_the_shards(nursery: trio.Nursery, autojump_clock: Any) -> None:
    bench = Bench(shards=3)
    nursery.start_soon(bench.scheduler.run)
    for number in range(9):
        bench.scheduler.mark(Item(number))
    assert bench.scheduler.depth == 9
    await settle()
    assert sorted(bench.order) == list(range(9))
    assert bench.scheduler.depth == 0


@pytest.mark.trio
async def test_a_failure_of_serving_is_not_swallowed(autojump_clock: Any) -> None:
    def serve(item: Item) -> ServiceResult:
        raise ValueError("no")

    bench = Bench(serve=serve)
    bench.scheduler.mark(Item(1))
    with pytest.RaisesGroup(ValueError, flatten_subgroups=True):
        await bench.scheduler.run()


@pytest.mark.trio
async def test_what_waited_is_measured(autojump_clock: Any) -> None:
    bench = Bench()
    for pause in (0.01, 0.02, 0.03):
        bench.scheduler.mark(Item(1))
        await trio.sleep(pause)
        with trio.move_on_after(0):
            await bench.scheduler.run()
    assert sum(bench.scheduler.waits_ms.counts) == 3
    assert bench.scheduler.take_mean_wait() == pytest.approx(20)
    assert bench.scheduler.take_mean_wait() == 0


# --- no polling -------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_an_idle_worker_sets_no_timer(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    bench = Bench(shards=4)
    nursery.start_soon(bench.scheduler.run)
    bench.scheduler.mark(Item(1))
    await settle()
    assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
    steps = TaskSteps()
    trio.lowlevel.add_instrument(steps)
    await trio.sleep(1000)
    trio.lowlevel.remove_instrument(steps)
    assert steps.count < 5


@pytest.mark.trio
async def test_with_nothing_but_paused_items_no_timer_either(bench: Bench, autojump_clock: Any) -> None:
    bench.scheduler.pause_lowest()
    for number in range(3):
        bench.scheduler.mark(Item(number, -1))
    await settle()
    steps = TaskSteps()
    trio.lowlevel.add_instrument(steps)
    await trio.sleep(1000)
    trio.lowlevel.remove_instrument(steps)
    assert steps.count < 5
    assert bench.served == []
    assert (bench.scheduler.depth, bench.scheduler.servable_depth) == (3, 0)


@pytest.mark.trio
async def test_a_held_item_costs_one_timer(bench: Bench, autojump_clock: Any) -> None:
    item = Item(1)
    bench.scheduler.pace(20)
    bench.scheduler.mark(item)
    await settle()
    steps = TaskSteps()
    trio.lowlevel.add_instrument(steps)
    bench.scheduler.mark(item)
    await trio.sleep(10)
    trio.lowlevel.remove_instrument(steps)
    assert bench.times(item) == [0, 20]
    assert steps.count < 12


# --- coalescing -------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_the_first_is_served_at_once_and_later_ones_in_windows(bench: Bench, autojump_clock: Any) -> None:
    item = Item(1)
    bench.scheduler.pace(20)
    for _ in range(100):
        bench.scheduler.mark(item)
        await trio.sleep(0.001)
    times = bench.times(item)
    assert times == [0, 20, 40, 60, 80]
    await trio.sleep(1)
    assert bench.times(item)[5:] == [100]


@pytest.mark.trio
async def test_after_a_quiet_window_the_next_is_a_first_one(bench: Bench, autojump_clock: Any) -> None:
    item = Item(1)
    bench.scheduler.pace(20)
    for _ in range(5):
        bench.scheduler.mark(item)
        await trio.sleep(0.0201)
    assert bench.times(item) == pytest.approx([0, 20.1, 40.2, 60.3, 80.4])


@pytest.mark.trio
async def test_one_item_that_is_held_does_not_hold_another(bench: Bench, autojump_clock: Any) -> None:
    busy, quiet = Item(1), Item(2)
    bench.scheduler.pace(20)
    bench.scheduler.mark(busy)
    await settle()
    bench.scheduler.mark(busy)
    await trio.sleep(0.005)
    bench.scheduler.mark(quiet)
    await settle()
    assert bench.times(quiet) == [5]


@pytest.mark.trio
async def test_what_is_left_over_is_not_held(bench: Bench, autojump_clock: Any) -> None:
    """It is full frames, or other watchers: there is nothing to be gained by waiting."""
    item = Item(1)
    bench.serve = lambda one: ServiceResult(1, len(bench.served) < 4)
    bench.scheduler.pace(10)
    bench.scheduler.mark(item)
    await trio.sleep(1)
    assert bench.times(item) == [0, 0, 0, 0]


@pytest.mark.trio
async def test_without_pressure_what_is_held_is_let_go(bench: Bench, autojump_clock: Any) -> None:
    item = Item(1)
    bench.scheduler.pace(20)
    bench.scheduler.mark(item)
    await settle()
    bench.scheduler.mark(item)
    await trio.sleep(0.003)
    bench.scheduler.pace(0)
    await settle()
    assert bench.times(item) == [0, 3]


@pytest.mark.trio
async def test_a_shorter_window_does_not_lose_what_is_held(bench: Bench, autojump_clock: Any) -> None:
    item = Item(1)
    bench.scheduler.pace(20)
    bench.scheduler.mark(item)
    await settle()
    bench.scheduler.mark(item)
    bench.scheduler.pace(5)
    await trio.sleep(1)
    assert bench.times(item) == [0, 20]


@pytest.mark.trio
async def test_nothing_is_remembered_of_items_outside_their_window(bench: Bench, autojump_clock: Any) -> None:
    bench.scheduler.pace(20)
    for number in range(100):
        bench.scheduler.mark(Item(number))
    await trio.sleep(0.1)
    bench.scheduler.pace(20)
    assert all(not shard.served_ms and not shard.held for shard in bench.scheduler._shards)


@given(
    st.floats(0.01, 20),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.03)), min_size=1, max_size=60),
    st.floats(0, 1e6),
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_times_everything_is_served_and_nothing_spins(
    window_ms: float, marks: list[tuple[int, float]], started: float
) -> None:
    """A window ends at a time that the clock may not be able to say exactly."""
    clock = MockClock(autojump_threshold=0)
    clock.jump(1 + started)

    async def main() -> None:
        bench, items, pending = Bench(), [Item(number) for number in range(4)], set[int]()
        steps = TaskSteps()
        trio.lowlevel.add_instrument(steps)

        def serve(item: Item) -> ServiceResult:
            pending.discard(item.id)
            assert steps.count < 100 * len(marks) + 1000, "it spins"
            return DONE

        bench.serve = serve
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.scheduler.run)
            bench.scheduler.pace(window_ms)
            for number, pause in marks:
                pending.add(number)
                bench.scheduler.mark(items[number])
                await trio.sleep(pause)
            with trio.move_on_after(1):
                while pending:
                    await trio.sleep(0.01)
                    assert steps.count < 200 * len(marks) + 5000, "it spins"
            assert not pending
            assert len(bench.served) <= len(marks)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


# --- pausing ----------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_while_it_is_paused_the_lowest_band_gets_nothing(bench: Bench, autojump_clock: Any) -> None:
    low, high = Item(1, -1), Item(2, 0)
    bench.scheduler.pause_lowest()
    bench.scheduler.pause_lowest()
    bench.scheduler.mark(low)
    bench.scheduler.mark(high)
    await trio.sleep(60)
    assert bench.order == [2]
    assert bench.scheduler.is_paused(low)
    assert not bench.scheduler.is_paused(high)
    bench.scheduler.resume_lowest()
    bench.scheduler.resume_lowest()
    await settle()
    assert bench.order == [2, 1]
    assert not bench.scheduler.is_paused(low)


@pytest.mark.trio
async def test_what_was_waiting_before_the_pause_waits_as_well(bench: Bench, autojump_clock: Any) -> None:
    low = Item(1, -1)
    bench.scheduler.mark(low)
    bench.scheduler.pause_lowest()
    await trio.sleep(20)
    assert bench.served == []
    bench.scheduler.resume_lowest()
    await settle()
    assert bench.times(low) == [20_000]
    assert bench.scheduler.take_mean_wait() < 1, "a pause is not waiting"


@pytest.mark.trio
async def test_what_was_held_when_the_pause_began_is_served_after_it(bench: Bench, autojump_clock: Any) -> None:
    low = Item(1, -1)
    bench.scheduler.pace(20)
    bench.scheduler.mark(low)
    await settle()
    bench.scheduler.mark(low)
    bench.scheduler.pause_lowest()
    await trio.sleep(1)
    assert bench.times(low) == [0]
    bench.scheduler.resume_lowest()
    await settle()
    assert bench.times(low) == [0, 1000]


@pytest.mark.trio
async def test_an_idle_scheduler_keeps_nothing_of_what_it_served(bench: Bench, autojump_clock: Any) -> None:
    """Items are whole topics, which may be deleted as soon as they were served."""
    items = [Item(number, number * 100 - 500) for number in range(12)]
    gone = [weakref.ref(item) for item in items]
    for item in items:
        bench.scheduler.mark(item)
    items.clear()
    del item
    await settle()
    bench.served.clear()
    gc.collect()
    assert [ref() for ref in gone if ref() is not None] == []
