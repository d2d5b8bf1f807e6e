"""The clock of a simulation follows Trio's within runs, and a hand anywhere."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.simulation.clock import BASE_MS, SimClock
from topics.runtime.clock import Clock


@pytest.mark.trio
async def test_both_clocks_follow_a_mock_clock(autojump_clock: trio.testing.MockClock) -> None:
    clock: Clock = SimClock()
    for _ in range(100):
        await trio.sleep(0.001)
        clock.monotonic_ms()
    await trio.sleep(2.9)
    assert clock.now_ms() == BASE_MS + 3000
    assert clock.monotonic_ms() == 3000
    assert clock.perf_ns() == 3_000_000_000


@pytest.mark.trio
async def test_the_wall_clock_steps_and_the_monotonic_one_does_not() -> None:
    clock = SimClock(base_ms=5000)
    clock.advance(10)
    clock.step(-1000)
    assert 4010 <= clock.now_ms() < 5000
    assert clock.monotonic_ms() >= 10


def test_it_is_advanced_by_hand_outside_of_trio() -> None:
    clock = SimClock(base_ms=0)
    assert clock.now_ms() == 0
    clock.advance(1500)
    clock.step(60_000)
    assert (clock.now_ms(), clock.monotonic_ms(), clock.perf_ns()) == (61_500, 1500, 1_500_000_000)


def test_it_goes_on_over_several_runs_of_trio() -> None:
    clock = SimClock(base_ms=0)

    async def life(seconds: float) -> None:
        clock.now_ms()
        await trio.sleep(seconds)
        clock.now_ms()

    for seconds in (5, 1, 3):
        trio.run(life, seconds, clock=trio.testing.MockClock(autojump_threshold=0))
        clock.advance(1)
    assert clock.now_ms() == 9003
