"""How long a job that has failed is delayed before it can be claimed again (`docs/design/jobs.md` 3). Pure.

The jitter of a delay follows from the job's seq and the number of its deliveries, not from a random number. No event is
logged when a lease runs out, and so the delay of such a job is the same after a restart.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from topics.runtime.instant import MAX_AHEAD_MS

_DOUBLINGS: Final = 27
"""So many times a delay can double: 1 ms is then more than `MAX_AHEAD_MS`."""

_MIX: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1


class RetryDelay(NamedTuple):
    """The delays of failed jobs (ms): `first_ms` after the first delivery, then the same again (`fixed`) or twice as
    long each time (`exponential`), at most `most_ms`; each shortened by up to its part `jitter` (0 to 1)."""

    kind: Literal["fixed", "exponential"]
    first_ms: int
    most_ms: int
    jitter: float

    def delay_ms(self, seq: int, deliveries: int) -> int:
        """Return how long a job is delayed that was delivered so often."""
        delay_ms = self.first_ms
        if self.kind == "exponential":
            delay_ms <<= min(max(deliveries - 1, 0), _DOUBLINGS)
        delay_ms = min(delay_ms, self.most_ms, MAX_AHEAD_MS)
        if self.jitter:
            delay_ms -= int(delay_ms * self.jitter * _fraction(seq, deliveries))
        return delay_ms


def _fraction(seq: int, deliveries: int) -> float:
    """Return a number from 0 to below 1 that is spread evenly over jobs and deliveries (SplitMix64)."""
    value = (seq * _MIX + deliveries * 0xD1B54A32D192ED03) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((value ^ (value >> 31)) >> 11) / (1 << 53)
