"""The calls that look at the jobs of a queue, or of a group of a log, retry and cancel them (`docs/spec/consumers.md`
section 5). As `topics.client.calls` is, without I/O; the functions are methods of both clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from topics.client.calls import ClientCall, Filter, encode, filter_json, filter_text, jobs_path, target
from topics.client.job_results import JobCounts, JobList, QueuePaused

JobState = Literal["ready", "in_flight", "delayed", "dead"]

LONGEST_S: Final = 300.0
"""How long retrying and cancelling may take: the daemon changes many jobs in pieces."""


def job_page(
    topic: str,
    *,
    state: JobState | None = None,
    filter: Filter | None = None,
    page_size: int = 100,
    cursor: str | None = None,
    group: str | None = None,
    touch: bool = True,
) -> ClientCall[JobList]:
    """One page of the jobs of a queue, or with `group` of the records that a group has not finished, in the order of
    their seqs: those in `state` (None: in any but "dead") that match `filter`. "dead" lists the dead letters of the
    queue or group, for which the key needs to read the dead-letter topic.

    `cursor` is `next_cursor` of the page before; None: the first page. A page is a view of one moment. With
    `touch=False` the call does not count as a use of the topic, which raises its automatic priority.
    """
    wanted = None if filter is None else filter_text(filter)
    query = {"state": state, "filter": wanted, "page_size": page_size, "cursor": cursor}
    where = target(jobs_path(topic, group, "jobs"), **query, touch=None if touch else False)
    return ClientCall(method="GET", target=where, answer=JobList, repeatable=True)


def retry_jobs(
    topic: str,
    seqs: Sequence[int] | None = None,
    *,
    filter: Filter | None = None,
    state: Literal["delayed", "dead"] | None = None,
    group: str | None = None,
) -> ClientCall[JobCounts]:
    """Make delayed and dead jobs ready: those of `seqs`, or those that match `filter`; one of the two is needed.

    `state`: only those in this state. `seqs` are of delayed jobs, or with `state="dead"` those of the letters in the
    dead-letter topic; dead jobs get new ones."""
    return _change(topic, "retry", seqs, filter, state, group)


def cancel_jobs(
    topic: str,
    seqs: Sequence[int] | None = None,
    *,
    filter: Filter | None = None,
    state: Literal["ready", "in_flight", "delayed"] | None = None,
    group: str | None = None,
) -> ClientCall[JobCounts]:
    """Delete jobs, leased ones too; with `group` the group has finished the records, which stay. Those of `seqs`, or
    those that match `filter`; one of the two is needed. `state`: only those in this state."""
    return _change(topic, "cancel", seqs, filter, state, group)


def _change(
    topic: str, verb: str, seqs: Sequence[int] | None, filter: Filter | None, state: str | None, group: str | None
) -> ClientCall[JobCounts]:
    given = {"seqs": seqs, "filter": filter_json(filter), "state": state}
    return ClientCall(
        method="POST",
        target=jobs_path(topic, group, f"jobs/{verb}"),
        answer=JobCounts,
        body=encode({name: value for name, value in given.items() if value is not None}),
        repeatable=False,
        waits=LONGEST_S,
    )


def pause(topic: str, *, until: int | None = None, group: str | None = None) -> ClientCall[QueuePaused]:
    """Give out no jobs of a queue, or with `group` of a group, until the time `until` (ms since the epoch, by the
    daemon's clock), or until `resume`. Jobs that are leased stay so."""
    return ClientCall(
        method="POST",
        target=jobs_path(topic, group, "pause"),
        answer=QueuePaused,
        body=encode({} if until is None else {"until": until}),
        repeatable=True,
    )


def resume(topic: str, *, group: str | None = None) -> ClientCall[QueuePaused]:
    """Give out the jobs of a queue, or with `group` of a group, again."""
    where = jobs_path(topic, group, "resume")
    return ClientCall(method="POST", target=where, answer=QueuePaused, repeatable=True)
