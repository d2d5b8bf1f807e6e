"""The errors of a query over topics: one sentence that says what happened to which topic.

Spark shows only the text of an exception, at the end of a trace of the Python worker, so the message holds all facts.
No message holds an API key.
"""

from __future__ import annotations

from typing import Any

import msgspec

from topics.client import ApiError, ConnectionFailed, TopicsError


class DataLoss(RuntimeError):
    """Records of the range that a query reads are gone, and no call has deleted them."""

    def __init__(self, topic: str, gap_from: int, gap_to: int | None, reason: str) -> None:
        last = "its end" if gap_to is None else str(gap_to)
        super().__init__(
            f"data loss: the records {gap_from} to {last} of topic {topic!r} are gone (reason: {reason}); with "
            "failOnDataLoss=false the query goes on without them, with tombstones=true it has a row that says so"
        )
        self.topic = topic
        self.gap_from = gap_from
        self.gap_to = gap_to
        self.reason = reason

    def __reduce__(self) -> tuple[type[DataLoss], tuple[str, int, int | None, str]]:
        return DataLoss, (self.topic, self.gap_from, self.gap_to, self.reason)


class FilesError(Exception):
    """Files, or objects of a bucket, that are missing or malformed. The message names the file, the object or the
    topic."""


class DaemonError(RuntimeError):
    """The daemon cannot be reached, or has refused a call. The message holds the daemon's answer."""


def daemon_error(error: TopicsError, doing: str) -> DaemonError:
    """The DaemonError for a failed call. `doing` says what the caller was doing, like `reading topic 'orders'`."""
    if isinstance(error, ConnectionFailed):
        return DaemonError(f"{doing}: the daemon cannot be reached: {error}")
    detail: dict[str, Any] = error.detail if isinstance(error, ApiError) else {}
    more = f" {msgspec.json.encode(detail).decode()}" if detail else ""
    return DaemonError(f"{doing}: {error}{more}")
