"""Rates and latencies of the last seconds (`topics.telemetry.load_window`)."""

from __future__ import annotations

import random

import pytest

from topics.telemetry.figures import Histogram
from topics.telemetry.load_window import WINDOW_MS, LoadWindow, quantile_of


def test_rates_are_those_of_the_last_seconds() -> None:
    window, histogram = LoadWindow(), Histogram()
    assert window.rates(0, {"in": 5}) is None, "there is nothing to compare with"
    for second in range(31):
        if window.is_due(second * 1000):
            window.add(second * 1000, {"in": 100 * min(second, 15)}, {"h": histogram})
    rates = window.rates(30_000, {"in": 1500})
    assert rates == {"in": 0.0}
    assert window.seconds(30_000) * 1000 == WINDOW_MS
    assert window.rates(20_000, {"in": 1500}) is None or window.seconds(30_000) >= 1


def test_rates_are_per_second_of_what_has_passed() -> None:
    window = LoadWindow()
    window.add(0, {"in": 0}, {})
    assert window.rates(500, {"in": 10}) is None
    assert window.rates(2000, {"in": 10}) == {"in": 5.0}
    assert not window.is_due(999)
    assert window.is_due(1000)


def test_quantiles_forget_what_is_long_ago() -> None:
    window, histogram = LoadWindow(), Histogram((1, 10, 100))
    assert window.quantiles("h", histogram) is None
    for _ in range(100):
        histogram.observe(50)
    window.add(0, {}, {"h": histogram})
    assert window.quantiles("h", histogram) is None, "they were before the oldest sample"
    histogram.observe(0.5)
    found = window.quantiles("h", histogram)
    assert found is not None
    assert (found.values, found.p99 <= 1) == (1, True)


@pytest.mark.parametrize("seed", range(20))
def test_a_quantile_lies_in_the_bucket_of_its_value(seed: int) -> None:
    rng = random.Random(seed)
    bounds = (1.0, 2.0, 5.0, 10.0, 20.0)
    histogram = Histogram(bounds)
    values = sorted(rng.uniform(0, 20) for _ in range(rng.randrange(1, 200)))
    for value in values:
        histogram.observe(value)
    for share in (0.5, 0.99):
        exact = values[max(-(-int(share * 100) * len(values) // 100) - 1, 0)]
        found = quantile_of(bounds, histogram.counts, share)
        low = max((bound for bound in (0.0, *bounds) if bound < exact), default=0.0)
        high = min(bound for bound in bounds if bound >= exact)
        assert low <= found <= high


def test_of_values_above_the_last_bound_it_is_known_only_that_they_exceed_it() -> None:
    assert quantile_of((1.0, 2.0), [0, 0, 5], 0.5) == 2.0
