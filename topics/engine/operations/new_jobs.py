"""The fields of jobs in an append to a queue (`docs/design/jobs.md` 2): whether the topic takes them, and the event
that puts them into the queue, in the batch of their records.
"""

from __future__ import annotations

from array import array
from typing import Final

from topics.engine.topic import Topic
from topics.errors import invalid
from topics.model import JobFields
from topics.queue.job_pages import DEFAULT_PRIORITY
from topics.queue.lease_events import EnqueueEvent
from topics.storage.wal.frames import FrameType

MAX_AHEAD_MS: Final = 3653 * 86_400_000
"""How far ahead the time of a job may be: ten years."""


def check_jobs(jobs: JobFields | None, *, is_queue: bool, wall_ms: int) -> None:
    """Refuse fields of jobs where there are none, and times that are too far ahead. Raises 400."""
    if jobs is None:
        return
    if not is_queue:
        raise invalid(jobs.first, "is only for the records of a queue")
    latest = wall_ms + MAX_AHEAD_MS
    if max(jobs.not_before) > latest:
        i = next(i for i, at in enumerate(jobs.not_before) if at > latest)
        raise invalid(f"records[{i}].not_before", "must be at most 10 years from now", max=latest)


def refuse_unique(jobs: JobFields | None, where: str) -> None:
    """Refuse unique keys. `where` names the place that takes none, such as "a stage". Raises 400."""
    if jobs is not None and jobs.unique is not None:
        i = next(i for i, job in enumerate(jobs.unique) if job is not None)
        raise invalid(f"records[{i}].unique", f"is not for {where}")


def refuse_jobs(jobs: JobFields | None, where: str) -> None:
    """Refuse fields of jobs. `where` names the place that takes none, such as "a stage". Raises 400."""
    if jobs is not None:
        raise invalid(jobs.first, f"is not for {where}")


def enqueue_event(jobs: JobFields | None, first_seq: int, wall_ms: int) -> EnqueueEvent | None:
    """Return the event for the jobs of a batch that are not like any other job; None if there are none."""
    if jobs is None:
        return None
    seqs, times, priorities = array("Q"), array("Q"), bytearray()
    for seq, (delay_ms, at, priority) in enumerate(
        zip(jobs.delays, jobs.not_before, jobs.priorities, strict=True), first_seq
    ):
        at = wall_ms + delay_ms if delay_ms else at
        at = at if at > wall_ms else 0
        if at or priority != DEFAULT_PRIORITY:
            seqs.append(seq)
            times.append(at)
            priorities.append(priority)
    return EnqueueEvent(seqs, times, bytes(priorities)) if seqs else None


def enqueue_frame(event: EnqueueEvent, at: int) -> tuple[FrameType, dict[str, object]]:
    """Return the frame that logs the event. `at` is the time of the window clock."""
    return FrameType.LEASE, {**event.to_wire(), "at": at}


def publish_jobs(topic: Topic, event: EnqueueEvent | None) -> None:
    """Put new jobs into the queue, in the step in which their records are published."""
    if event is not None and topic.queue is not None:
        topic.queue.apply(event)
