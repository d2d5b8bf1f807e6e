"""What tests have a client do against a scripted server, and the answers to it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.client.scripted_server import Answer
from topics.client import TopicsError

APPENDED = json.dumps(
    {"topic": "a", "first_seq": 1, "last_seq": 1, "seqs": [1], "head_seq": 1, "count": 1, "created": False}
    | {"deduped": True, "performance": {"server_total_ms": 0.1}, "something_new": [1]}
).encode()
QUEUED = {"topic": "q", "skipped": [], "ready": 0, "in_flight": 0}
DELETED = {"topic": "a", "deleted": 1, "earliest_seq": 1, "head_seq": 1, "count": 0, "bytes": 0}
PAGE = {"topic": "a", "epoch": 1, "records": [], "next_from_seq": 0, "head_seq": 0, "earliest_seq": 1} | {
    "caught_up": True,
    "tombstone": None,
    "lag": 0,
}
IDS = {"lease_ids": ["lease_1"]}

ACTS: dict[str, tuple[Callable[[Any], Awaitable[Any]], Any, bool]] = {
    "an append": (lambda c: c.append("a", [1]), json.loads(APPENDED), True),
    "an append under a key": (lambda c: c.append("a", [1], idempotency_key="k"), json.loads(APPENDED), True),
    "an append without one": (lambda c: c.append("a", [1], idempotency_key=None), json.loads(APPENDED), False),
    "a read": (lambda c: c.diff("a"), PAGE, True),
    "a router": (lambda c: c.delete_router("r"), {"router": "r", "deleted": True}, False),
    "a topic's end": (lambda c: c.delete_topic("a"), {"topic": "a", "deleted": True, "routers_removed": []}, False),
    "a deletion": (lambda c: c.delete_records("a", match="x"), DELETED, False),
    "a claim": (lambda c: c.claim("q", "n"), {"topic": "q", "claimed": [], "count": 0, "ready": 0}, False),
    "an ack": (lambda c: c.ack("q", "n", [1]), QUEUED | {"acked": 1}, False),
    "a fenced ack": (lambda c: c.ack("q", "n", [1], **IDS), QUEUED | {"acked": 1}, True),
    "a nack": (lambda c: c.nack("q", "n", [1]), QUEUED | {"nacked": 1}, False),
    "a fenced nack": (lambda c: c.nack("q", "n", [1], **IDS), QUEUED | {"nacked": 1}, True),
    "a fenced extension": (
        lambda c: c.extend("q", "n", [1], lease_ms=1, **IDS),
        QUEUED | {"extended": 1, "deadlines": {"1": 5}},
        True,
    ),
    "readiness": (lambda c: c.ready(), {"status": "ready", "wal_replay_complete": True, "topics": 0}, True),
}
"""What is done, the answer to it, and whether it does no harm twice."""

HEALTH: tuple[Callable[[Any], Awaitable[Any]], Any] = (
    lambda c: c.health(),
    {"status": "ok", "version": "1", "uptime_ms": 1},
)


def good(act: Any) -> Answer:
    return Answer(body=json.dumps(act[1]).encode())


async def outcome_of(act: Any, client: Any) -> Any:
    """What it returns, or the error that it raises."""
    try:
        return await act(client)
    except TopicsError as error:
        return error
