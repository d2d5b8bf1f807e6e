"""The clock of windows: how it goes on from life to life, also if the wall clock is set to another time."""

from __future__ import annotations

import pytest

from tests.simulation.clock import SimClock
from topics.runtime.instant import Instant
from topics.runtime.window_clock import ClockMark, WindowClock, resumed

MARK = ClockMark(window=5_000_000, wall=1_000_000, boottime=70_000, boot="first")


@pytest.mark.parametrize("wall", [0, 1_000_000, 9_000_000_000])
def test_in_the_same_boot_only_the_clock_of_the_boot_counts(wall: int) -> None:
    assert resumed(MARK, wall=wall, boottime=90_000, boot="first") == 5_020_000


def test_after_another_boot_the_wall_clock_tells_how_long_the_machine_was_off() -> None:
    assert resumed(MARK, wall=1_600_000, boottime=3_000, boot="second") == 5_600_000


@pytest.mark.parametrize("wall", [0, 999_999, 1_002_999])
def test_but_no_less_than_the_machine_has_been_up(wall: int) -> None:
    assert resumed(MARK, wall=wall, boottime=3_000, boot="second") == 5_003_000


def test_a_boot_id_that_comes_again_with_an_earlier_clock_is_another_boot() -> None:
    assert resumed(MARK, wall=1_000_500, boottime=100, boot="first") == 5_000_500


def test_without_a_mark_it_begins_as_the_wall_clock() -> None:
    assert resumed(None, wall=123, boottime=9, boot="first") == 123


def test_within_a_life_a_step_of_the_wall_clock_does_not_move_it() -> None:
    clock = SimClock(base_ms=1_000)
    windows = WindowClock(clock)
    windows.start(Instant(mono=clock.monotonic_ms(), window=42_000))
    clock.step(3_600_000)
    clock.advance(500)
    assert windows.now_ms() == 42_500
    clock.step(-9_000_000)
    assert windows.mark("b") == ClockMark(42_500, clock.now_ms(), 500, "b")
