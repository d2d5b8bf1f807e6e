"""How much one API key may use: a token bucket (`docs/design/guardrails.md`). Pure."""

from __future__ import annotations

import math
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
        self._requests = float(rate.requests)
        self._bytes = float(rate.bytes)
        self._filled_ns = now_ns

    def admit(self, now_ns: int) -> int:
        """Let one request in now: 0, or in how many milliseconds it may be tried again."""
        self._fill(now_ns)
        wait_s = 0.0
        if self._rate.requests and self._requests < 1:
            wait_s = (1 - self._requests) / self._rate.requests
        if self._rate.bytes and self._bytes <= 0:
            wait_s = max(wait_s, (1 - self._bytes) / self._rate.bytes)
        if wait_s:
            return max(1, math.ceil(wait_s * 1000))
        self._requests -= 1
        return 0

    def charge(self, size: int) -> None:
        """A request that was let in has moved so many bytes."""
        self._bytes -= size

    def _fill(self, now_ns: int) -> None:
        passed_s = (now_ns - self._filled_ns) / _SECOND_NS
        self._filled_ns = now_ns
        self._requests = min(self._rate.requests, self._requests + passed_s * self._rate.requests)
        self._bytes = min(self._rate.bytes, self._bytes + passed_s * self._rate.bytes)
