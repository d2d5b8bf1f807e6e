"""Pressure and what is done at it, by example and by property (`docs/spec/runtime.md` section 4)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.sched.pressure import RUNGS, Ewma, Ladder, Signals, Steps, pressure_of

STEP_MS = 100
CALM = Signals(depth_per_worker=0, latency_ms=0, busy_share=0)
PRESSURES = st.floats(0, 1)
SIGNALS = st.builds(Signals, st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1))


def climb(ladder: Ladder, pressures: Iterable[float], start_ms: float = 0) -> list[Steps]:
    return [ladder.step(pressure, start_ms + n * STEP_MS) for n, pressure in enumerate(pressures)]


@pytest.mark.parametrize(
    ("latency_ms", "pressure"), [(0, 0), (2.5, 0.1), (5, 0.2), (20, 0.5), (80, 0.8), (202, 1), (60_000, 1)]
)
def test_latency_counts_in_factors_of_four_above_five_ms(latency_ms: float, pressure: float) -> None:
    assert pressure_of(CALM._replace(latency_ms=latency_ms)) == pytest.approx(pressure)


@pytest.mark.parametrize(
    ("depth", "pressure"), [(0, 0), (8, 0.1), (16, 0.2), (64, 0.5), (256, 0.8), (646, 1), (1e9, 1)]
)
def test_depth_counts_in_factors_of_four_above_sixteen(depth: float, pressure: float) -> None:
    assert pressure_of(CALM._replace(depth_per_worker=depth)) == pytest.approx(pressure)


@pytest.mark.parametrize(("busy", "pressure"), [(0, 0), (0.5, 0.1375), (1, 0.55)])
def test_busy_threads_count_by_their_square_and_never_pause_anybody(busy: float, pressure: float) -> None:
    assert pressure_of(CALM._replace(busy_share=busy)) == pytest.approx(pressure)


@given(SIGNALS)
@settings(max_examples=100)
def test_pressure_is_the_greatest_of_its_parts(signals: Signals) -> None:
    parts = [CALM._replace(**{name: value}) for name, value in signals._asdict().items()]
    assert 0 <= pressure_of(signals) <= 1
    assert pressure_of(signals) == max(map(pressure_of, parts))


@given(SIGNALS, SIGNALS)
@settings(max_examples=100)
def test_more_of_anything_is_never_less_pressure(one: Signals, other: Signals) -> None:
    more = Signals(*map(max, one, other))
    assert pressure_of(more) >= pressure_of(one)


@pytest.mark.parametrize(("pressure", "coalesce_ms"), [(0, 0), (0.2, 0), (0.4, 5), (0.6, 10), (0.8, 15), (1, 20)])
def test_the_coalescing_window_grows_from_a_fifth_on(pressure: float, coalesce_ms: float) -> None:
    assert Ladder().step(pressure, 0).coalesce_ms == pytest.approx(coalesce_ms)


@pytest.mark.parametrize(("pressure", "window_ms"), [(0, 0), (0.4, 0), (0.41, 4.395), (0.5, 5.25), (0.8, 8.1), (1, 10)])
def test_the_commit_window_widens_above_two_fifths(pressure: float, window_ms: float) -> None:
    assert Ladder().step(pressure, 0).commit_window_ms == pytest.approx(window_ms)


@pytest.mark.parametrize(("pressure", "saturated"), [(0, False), (0.98, False), (0.99, True), (1, True)])
def test_saturation_is_a_matter_of_the_moment(pressure: float, saturated: bool) -> None:
    assert Ladder().step(pressure, 0).saturated == saturated


def test_the_lowest_band_is_paused_after_a_second_of_high_pressure() -> None:
    assert [steps.lowest_paused for steps in climb(Ladder(), [0.81] * 12)] == [False] * 10 + [True] * 2


def test_a_moment_of_less_pressure_starts_the_second_anew() -> None:
    paused = [steps.lowest_paused for steps in climb(Ladder(), [0.9] * 9 + [0.8] + [0.9] * 11)]
    assert paused == [False] * 20 + [True]


def test_a_pause_lasts_until_pressure_is_below_three_fifths() -> None:
    ladder = Ladder()
    climb(ladder, [1.0] * 11)
    paused = [steps.lowest_paused for steps in climb(ladder, [0.79, 0.6, 0.7, 0.59, 0.7, 0.9], start_ms=1100)]
    assert paused == [True, True, True, False, False, False]


def test_a_new_pause_takes_a_second_again() -> None:
    ladder = Ladder()
    climb(ladder, [1.0] * 11 + [0.1])
    assert [steps.lowest_paused for steps in climb(ladder, [1.0] * 11, start_ms=1200)] == [False] * 10 + [True]


@given(st.lists(PRESSURES, max_size=60))
@settings(max_examples=60)
def test_routers_are_lowered_while_the_lowest_band_is_paused(pressures: list[float]) -> None:
    assert all(steps.routers_lowered == steps.lowest_paused for steps in climb(Ladder(), pressures))


@given(st.lists(st.sampled_from([0.0, 0.59, 0.6, 0.7, 0.8, 0.81, 0.81, 0.9, 0.9, 0.9, 1.0]), max_size=60))
@settings(max_examples=100)
def test_the_pause_is_what_the_last_seconds_of_pressure_say(pressures: list[float]) -> None:
    paused = False
    for n, steps in enumerate(climb(Ladder(), pressures)):
        if n >= 10 and all(pressure > 0.8 for pressure in pressures[n - 10 : n + 1]):
            paused = True
        elif pressures[n] < 0.6:
            paused = False
        assert steps.lowest_paused == paused


def test_rungs_go_on_from_the_lowest_up() -> None:
    ladder = Ladder()
    seen = []
    for now_ms, pressure in enumerate([0.0, 0.2, 0.21, 0.4, 0.41, 0.98, 0.99]):
        ladder.step(pressure, now_ms)
        seen.append(ladder.rungs)
    low, middle = ("coalescing",), ("coalescing", "widening")
    assert seen == [(), (), low, low, middle, middle, (*middle, "saturated")]


def test_a_pause_is_a_rung() -> None:
    ladder = Ladder()
    climb(ladder, [1.0] * 11)
    assert ladder.rungs == RUNGS == ("coalescing", "widening", "pausing", "saturated")


@pytest.mark.parametrize(
    ("rung", "on", "still_on", "off"),
    [("coalescing", 0.21, 0.15, 0.149), ("widening", 0.41, 0.35, 0.349), ("saturated", 0.99, 0.94, 0.939)],
)
def test_a_rung_stays_on_a_little_below_where_it_began(rung: str, on: float, still_on: float, off: float) -> None:
    ladder = Ladder()
    seen = []
    for pressure in (still_on, on, still_on, off, still_on):
        ladder.step(pressure, 0)
        seen.append(rung in ladder.rungs)
    assert seen == [False, True, True, False, False]


def test_what_is_done_has_no_hysteresis_where_the_rung_has() -> None:
    ladder = Ladder()
    ladder.step(0.99, 0)
    steps = ladder.step(0.19, STEP_MS)
    assert ladder.rungs == ("coalescing",)
    assert (steps.coalesce_ms, steps.commit_window_ms, steps.saturated) == (0, 0, False)


def test_a_mean_goes_a_share_of_the_way_to_each_value() -> None:
    mean = Ewma(0.25)
    seen = []
    for value in (8.0, 8.0, 0.0):
        mean.add(value)
        seen.append(mean.value)
    assert seen == [2.0, 3.5, 2.625]


@given(st.floats(0.01, 1), st.lists(st.floats(0, 1e6), min_size=1, max_size=30))
@settings(max_examples=60)
def test_a_mean_stays_between_zero_and_the_greatest_value(weight: float, values: list[float]) -> None:
    mean = Ewma(weight)
    for value in values:
        mean.add(value)
        assert 0 <= mean.value <= max(values) * (1 + 1e-9)
