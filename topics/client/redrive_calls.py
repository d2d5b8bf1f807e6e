"""The calls on the redrive of a dead-letter topic (`docs/spec/consumers.md` section 5). As `topics.client.calls` is,
without I/O; the functions are methods of both clients."""

from __future__ import annotations

from collections.abc import Mapping

from topics.client import results
from topics.client.calls import ClientCall, Filter, encode, filter_json, topic_path


def redrive(
    topic: str,
    *,
    to: str | None = None,
    filter: Filter | None = None,
    max: int | None = None,
    rate: Mapping[str, int] | None = None,
) -> ClientCall[results.RedriveState]:
    """Let the daemon move the letters of a dead-letter topic back: each to the queue or the group that it came from, or
    all to `to`. `filter`: only letters that match; `max`: at most so many; `rate`: `{"jobs": n, "per_ms": ms}`. Returns
    at once; `redrive_state` tells how far it has come. If a redrive of the topic is running already, nothing new
    begins, and the answer is the state of that one."""
    given: dict[str, object] = {"to": to, "filter": filter_json(filter), "max": max, "rate": rate and dict(rate)}
    return ClientCall(
        method="POST",
        target=topic_path(topic, "redrive"),
        answer=results.RedriveState,
        body=encode({name: value for name, value in given.items() if value is not None}),
        repeatable=True,
    )


def redrive_state(topic: str) -> ClientCall[results.RedriveState]:
    """How far the last redrive of a topic has come; `idle` if it had none since the start of the daemon."""
    return ClientCall(method="GET", target=topic_path(topic, "redrive"), answer=results.RedriveState, repeatable=True)


def stop_redrive(topic: str) -> ClientCall[results.RedriveState]:
    """Stop the redrive of a topic. Returns when the letters that are on their way are moved."""
    return ClientCall(
        method="DELETE", target=topic_path(topic, "redrive"), answer=results.RedriveState, repeatable=True
    )
