"""The rate of one API key, in requests and bytes a second: a token bucket (`docs/design/guardrails.md`). Pure."""

from __future__ import annotations

from typing import Final

from topics.config import Rate

_SECOND_NS: Final = 1_000_000_000


class TokenBucket:
    """Holds requests and bytes, at most those of one second.

    A request is admitted if a whole request and any byte are left. Its bytes are charged afterwards, when they are
    known. This may leave a debt, which is paid off as time passes.
    """

    __slots__ = ("_bytes", "_filled_ns", "_rate", "_requests")

    def __init__(self, rate: Rate, now_ns: int) -> None:
        self._rate = rate
        # In billionths, so that each nanosecond adds a whole number and nothing is lost by rounding.
        self._requests = rate.requests * _SECOND_NS
        self._bytes = rate.bytes * _SECOND_NS
        self._filled_ns = now_ns

    def admit(self, now_ns: int) -> int:
        """Admit one request at `now_ns`. Returns 0, or, if it is not admitted, after how many milliseconds it may be
        tried again."""
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
        """Charge the bytes of a request that was admitted."""
        self._bytes -= size * _SECOND_NS

    def _fill(self, now_ns: int) -> None:
        passed_ns = now_ns - self._filled_ns
        self._filled_ns = now_ns
        self._requests = min(self._rate.requests * _SECOND_NS, self._requests + passed_ns * self._rate.requests)
        self._bytes = min(self._rate.bytes * _SECOND_NS, self._bytes + passed_ns * self._rate.bytes)


def _divided(amount: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-amount // by)
