"""Rates and latencies of the last seconds, from samples of counters and histograms. Without I/O and clock.

Samples are taken at least `STEP_MS` apart, and kept for `WINDOW_MS`. Rates are those between now and the oldest sample,
so that two clients that ask at different times get the same kind of figure, and a client that asks once gets one, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from topics.telemetry.figures import Histogram

WINDOW_MS: Final = 10_000
STEP_MS: Final = 1_000


class WindowSample(NamedTuple):
    """Counters and histograms at one moment of the monotonic clock (ms)."""

    at_ms: int
    counters: Mapping[str, int]
    counts: Mapping[str, tuple[int, ...]]


class Quantiles(NamedTuple):
    """Of the values of some seconds: how many there were, and the values that half of them, and 99 % of them, do not
    exceed. In the unit of the histogram."""

    values: int
    p50: float
    p99: float


class LoadWindow:
    """The samples of the last seconds. The histograms must have the same names in every sample."""

    def __init__(self) -> None:
        self._samples: deque[WindowSample] = deque()

    def is_due(self, now_ms: int) -> bool:
        """Return True if it is time for another sample."""
        return not self._samples or now_ms - self._samples[-1].at_ms >= STEP_MS

    def add(self, now_ms: int, counters: Mapping[str, int], histograms: Mapping[str, Histogram]) -> None:
        """Add a sample, and drop those that are no longer needed."""
        self._samples.append(_sample(now_ms, counters, histograms))
        while len(self._samples) > 1 and now_ms - self._samples[1].at_ms >= WINDOW_MS:
            self._samples.popleft()

    def seconds(self, now_ms: int) -> float:
        """Return how long ago the oldest sample was taken; 0 without one."""
        return (now_ms - self._samples[0].at_ms) / 1000 if self._samples else 0.0

    def rates(self, now_ms: int, counters: Mapping[str, int]) -> dict[str, float] | None:
        """Return how much each counter has grown in a second; None if the oldest sample is less than `STEP_MS` old."""
        seconds = self.seconds(now_ms)
        if seconds * 1000 < STEP_MS:
            return None
        before = self._samples[0].counters
        return {name: max(value - before.get(name, 0), 0) / seconds for name, value in counters.items()}

    def quantiles(self, name: str, histogram: Histogram) -> Quantiles | None:
        """Return the quantiles of the values since the oldest sample; None if there were none."""
        before = self._samples[0].counts[name] if self._samples else (0,) * len(histogram.counts)
        counts = [now - then for now, then in zip(histogram.counts, before, strict=True)]
        total = sum(counts)
        if total <= 0:
            return None
        return Quantiles(total, quantile_of(histogram.bounds, counts, 0.5), quantile_of(histogram.bounds, counts, 0.99))


def quantile_of(bounds: tuple[float, ...], counts: list[int], share: float) -> float:
    """Return the value that the share `share` (0 to 1) of the counted values does not exceed, taken to be spread evenly
    between the bounds. Of values above the last bound it is known only that they exceed it. There must be a value."""
    wanted = share * sum(counts)
    running, low = 0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if running + count >= wanted and count:
            return low + (bound - low) * (wanted - running) / count
        running += count
        low = bound
    return bounds[-1]


def _sample(now_ms: int, counters: Mapping[str, int], histograms: Mapping[str, Histogram]) -> WindowSample:
    return WindowSample(now_ms, dict(counters), {name: tuple(one.counts) for name, one in histograms.items()})
