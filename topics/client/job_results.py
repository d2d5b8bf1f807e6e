"""The types of what the calls about many jobs return (`docs/spec/consumers.md` section 5); see `topics.client.results`
for the others."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from topics.client.results import QueueCounts, Record


class ListedJob(Record, kw_only=True, gc=False):
    """A job in a list. `seq` is its number in the topic; of a dead one, that of the letter in the dead-letter topic."""

    state: Literal["ready", "in_flight", "delayed", "dead"]
    deliveries: int
    """How often the job was given out."""
    priority: int
    holder: str | None = field(default=None, name="node")
    """Who holds it, if it is in flight. `node` of the wire; the attribute `node` is the writer of the record."""
    deadline: int | None = None
    """When its lease ends, in ms since the epoch, by the daemon's clock."""
    not_before: int | None = None
    """When a delayed job can be claimed, in ms since the epoch. None for one that is about to move to the dead
    letters."""
    last_error: str | None = None
    """The `error` of its last nack that had one."""


class JobList(Struct, kw_only=True):
    """A page of a list of jobs. It may be empty although more follow."""

    topic: str
    jobs: list[ListedJob]
    next_cursor: str | None = None
    """The `cursor` of the next page; None on the last page."""


class JobCounts(Struct, kw_only=True):
    """Jobs were retried or cancelled."""

    topic: str
    matched: int
    """How many jobs were found."""
    done: int
    """How many of them were changed."""
    skipped: int
    """How many of them, or of the seqs that were given, were not."""


class QueuePaused(Struct, kw_only=True):
    """A queue was paused or resumed. `queue` has its counts."""

    topic: str
    queue: QueueCounts
