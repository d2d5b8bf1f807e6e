"""The counts of the gate, which `metrics` shows: requests, refusals, exports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Final, Protocol

from topics.telemetry.figures import Histogram

# Milliseconds: from an append that is answered from memory to a long poll that waits its full time.
REQUEST_BOUNDS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)


# Milliseconds: as of requests, with more bounds where an append is answered from memory.
APPEND_BOUNDS_MS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000)


class ConnectionFigures(Protocol):
    """The part of `topics.http.connections.server.Server` that the metrics show."""

    @property
    def connections(self) -> Sized:
        """The open connections."""

    @property
    def refused_total(self) -> int:
        """How many new connections were closed since the start, because there were too many."""


class ExportFigures:
    """The totals of all exports in one format."""

    def __init__(self) -> None:
        self.seqs = 0
        """Seqs that were examined."""
        self.records = 0
        """Records that were sent."""
        self.bytes = 0
        """Bytes that were sent, without the chunk heads of the transfer."""


class RequestFigures:
    """The counts of the gate: answers by route and status, their times, refusals before the engine was asked, exports,
    and lines missing in the audit log."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.answered = 0
        """How many requests were answered, the sum of `requests`."""
        self.duration_ms = Histogram(REQUEST_BOUNDS_MS)
        self.append_ms = Histogram(APPEND_BOUNDS_MS)
        """Times of appends of JSON that were carried out, from the first byte of the request to the answer."""
        self.throttled: Counter[str] = Counter()
        """Answers with 429, by the limit."""
        self.unauthorized: Counter[str] = Counter()
        """Answers with 401 and 403, by the error code."""
        self.exports: Counter[tuple[str, str]] = Counter()
        """Exports that were begun, by format and by whether `data` was asked for."""
        self.exported = {name: ExportFigures() for name in ("arrow", "ndjson")}
        self.server: ConnectionFigures | None = None
        """Set when the server listens."""
        self.audit_failures = 0
        """Lines of the audit log that could not be written."""

    def count(self, route: str, status: int, duration_ms: float) -> None:
        """Count one request that has been answered."""
        self.requests[route, status] += 1
        self.answered += 1
        self.duration_ms.observe(duration_ms)
