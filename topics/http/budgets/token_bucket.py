"""How much one API key may use: a token bucket (`docs/design/guardrails.md`). Pure."""

from __future__ import annotations

from typing import Final

from topics.config import Rate

_SECOND_NS: Final = 1_000_000_000


class Bucket:
    """Requests and bytes, one second's worth of each at most.

    A request is let in while a whole request and any byte are left; what it turns out to weigh is charged afterwards,
    and may leave a debt that the time to come pays off.
    """

    __slots__ = ("_bytes", "_filled_ns", "_rate", "_requests")

    def __init__(self, rate: Rate, now_ns: int) -> None:
        self._rate = rate
        # In billionths: at one request a second, a nanosecond brings one. Whole numbers lose nothing by rounding.
        self._requests = rate.requests * _SECOND_NS
        self._bytes = rate.bytes * _SECOND_NS
        self._filled_ns = now_ns

    def admit(self, now_ns: int) -> int:
        """Let one request in now: 0, or in how many milliseconds it may be tried again."""
        self._fill(now_ns)
        wait_ns = 0
        if self._rate.requests and self._requests < _SECOND_NS:
            wait_ns = _divided(_SECOND_NS - self._requests, self._rate.requests)
        if self._rate.bytes and self._bytes <= 0:
            wait_ns = max(wait_ns, _divided(_SECOND_NS - self._bytes, self._rate.bytes))
        if wait_ns:
            return _divided(wait_ns, 1_000_000)
        self._requests -= _SECOND_NS
        return 0

    def charge(self, size: int) -> None:
        """A request that was let in has moved so many bytes."""
        self._bytes -= size * _SECOND_NS

    def _fill(self, now_ns: int) -> None:
        passed_ns = now_ns - self._filled_ns
        self._filled_ns = now_ns
        self._requests = min(self._rate.requests * _SECOND_NS, self._requests + passed_ns * self._rate.requests)
        self._bytes = min(self._rate.bytes * _SECOND_NS, self._bytes + passed_ns * self._rate.bytes)


def _divided(amount: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-amount // by)
