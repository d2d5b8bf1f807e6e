"""The calls that pause the jobs of a queue, or of a group of a log (`docs/spec/consumers.md` section 5). As
`topics.client.calls` is, without I/O; the functions are methods of both clients."""

from __future__ import annotations

from topics.client import results
from topics.client.calls import ClientCall, encode, jobs_path


def pause(topic: str, *, until: int | None = None, group: str | None = None) -> ClientCall[results.QueuePaused]:
    """Give out no jobs of a queue, or with `group` of a group, until the time `until` (ms since the epoch, by the
    daemon's clock), or until `resume`. Jobs that are leased stay so."""
    return ClientCall(
        method="POST",
        target=jobs_path(topic, group, "pause"),
        answer=results.QueuePaused,
        body=encode({} if until is None else {"until": until}),
        repeatable=True,
    )


def resume(topic: str, *, group: str | None = None) -> ClientCall[results.QueuePaused]:
    """Give out the jobs of a queue, or with `group` of a group, again."""
    where = jobs_path(topic, group, "resume")
    return ClientCall(method="POST", target=where, answer=results.QueuePaused, repeatable=True)
