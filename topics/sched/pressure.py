"""How loaded the daemon is, and which steps follow: the pure part of the governor (`docs/spec/runtime.md` 4).

Signals become a pressure of 0..1, and the ladder turns pressures into steps. The steps change when work is done, never
whether. The governor measures the signals, calls every 100 ms and carries out the steps.
"""

from __future__ import annotations

from math import log2
from typing import Final, NamedTuple

# The knees: the values at which a signal counts `_AT_KNEE`, the pressure of the first step. The 5 ms are those of the
# specification; 16 topics take a worker as long, at 0.3 ms each.
_LATENCY_KNEE_MS: Final = 5.0
_DEPTH_KNEE: Final = 16.0
_AT_KNEE: Final = 0.2
# Above the knee a signal counts 0.15 more for each doubling: 0.5 at 4 knees, 0.8 at 16, and 1.0 at 40.
_PER_DOUBLING: Final = 0.15
_BUSY_PEAK: Final = 0.55

# Coalescing, widening and saturation end 0.05 below the pressure at which they begin, so that the log does not flap.
_COALESCE_ABOVE: Final = 0.2
_COALESCE_OFF_BELOW: Final = 0.15
_COALESCE_MAX_MS: Final = 20.0
_WIDEN_ABOVE: Final = 0.4
_WIDEN_OFF_BELOW: Final = 0.35
_WINDOW_MIN_MS: Final = 0.5
_WINDOW_MAX_MS: Final = 10.0
_PAUSE_ABOVE: Final = 0.8
_PAUSE_AFTER_MS: Final = 1000.0
_RESUME_BELOW: Final = 0.6
_SATURATED_AT: Final = 0.99
_SATURATED_OFF_BELOW: Final = 0.94

RUNGS: Final = ("coalescing", "widening", "pausing", "saturated")


class Signals(NamedTuple):
    """The measurements that make up the pressure."""

    depth_per_worker: float
    """Waiting topics per delivery worker, without paused ones, which would keep up the pressure that pauses them."""
    latency_ms: float
    """Mean scheduling latency (ms), including the lag of the event loop."""
    busy_share: float
    """The share of worker threads that are busy, 0..1."""


class Steps(NamedTuple):
    """The measures that are taken at a pressure."""

    coalesce_ms: float
    """How long a topic's records are collected into one frame (ms), 0..20."""
    commit_window_ms: float
    """How long a group commit gathers (ms); 0 means the configured window."""
    lowest_paused: bool
    """Topics of a priority below 0 are not served."""
    routers_lowered: bool
    """Routers are served one band lower."""
    saturated: bool
    """An append that finds its shard queue full gets 429 without the admission wait."""


def pressure_of(signals: Signals) -> float:
    """Return the pressure, 0..1: the greatest of three parts, because each alone is reason enough to act.

    Latency and depth count by their logarithm: what matters is how many times too high they are. Busy threads are a
    weak sign, and so squared and at most 0.55: readers that wait for a slow disk keep threads busy although nothing is
    short for others. They alone never pause a topic or keep it paused.
    """
    latency = _against(_LATENCY_KNEE_MS, signals.latency_ms)
    depth = _against(_DEPTH_KNEE, signals.depth_per_worker)
    busy = _BUSY_PEAK * min(1.0, max(0.0, signals.busy_share)) ** 2
    return max(latency, depth, busy)


def _against(knee: float, value: float) -> float:
    if value <= knee:
        return _AT_KNEE * max(0.0, value) / knee
    return min(1.0, _AT_KNEE + _PER_DOUBLING * log2(value / knee))


class Ladder:
    """Turns pressures into steps, and keeps the state for the hysteresis."""

    def __init__(self) -> None:
        self._on: set[str] = set()
        self._high_since_ms: float | None = None

    def step(self, pressure: float, now_ms: float) -> Steps:
        """Return the steps at this pressure, 0..1. Must be called every 100 ms, with ms of a monotonic clock."""
        assert 0.0 <= pressure <= 1.0
        saturated = pressure >= _SATURATED_AT
        self._turn("coalescing", pressure > _COALESCE_ABOVE, pressure < _COALESCE_OFF_BELOW)
        self._turn("widening", pressure > _WIDEN_ABOVE, pressure < _WIDEN_OFF_BELOW)
        self._turn("pausing", self._is_high_for_long(pressure, now_ms), pressure < _RESUME_BELOW)
        self._turn("saturated", saturated, pressure < _SATURATED_OFF_BELOW)
        pausing = "pausing" in self._on
        return Steps(_coalesce_ms(pressure), _commit_window_ms(pressure), pausing, pausing, saturated)

    @property
    def rungs(self) -> tuple[str, ...]:
        """The names out of `RUNGS` that are on, lowest first; logged when they change.

        They change less often than the steps: a rung that came on above a pressure goes off 0.05 below it.
        """
        return tuple(rung for rung in RUNGS if rung in self._on)

    def _turn(self, rung: str, on: bool, off: bool) -> None:
        if on:
            self._on.add(rung)
        elif off:
            self._on.discard(rung)

    def _is_high_for_long(self, pressure: float, now_ms: float) -> bool:
        if pressure <= _PAUSE_ABOVE:
            self._high_since_ms = None
            return False
        if self._high_since_ms is None:
            self._high_since_ms = now_ms
        return now_ms - self._high_since_ms >= _PAUSE_AFTER_MS


def _coalesce_ms(pressure: float) -> float:
    return _COALESCE_MAX_MS * max(0.0, pressure - _COALESCE_ABOVE) / (1.0 - _COALESCE_ABOVE)


def _commit_window_ms(pressure: float) -> float:
    return 0.0 if pressure <= _WIDEN_ABOVE else _WINDOW_MIN_MS + (_WINDOW_MAX_MS - _WINDOW_MIN_MS) * pressure


class Ewma:
    """An exponentially weighted moving mean.

    Each value moves it by `weight` (above 0, at most 1) of the difference: after 1/weight values it has followed two
    thirds of a lasting change. It begins at 0, so that the first value has no more weight than any other.
    """

    __slots__ = ("_weight", "value")

    def __init__(self, weight: float) -> None:
        assert 0.0 < weight <= 1.0
        self._weight = weight
        self.value = 0.0

    def add(self, value: float) -> None:
        """Add a value to the mean."""
        self.value += self._weight * (value - self.value)
