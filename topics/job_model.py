"""The content of requests about jobs, and the answers of the engine (`docs/spec/api.md` section 9), as in
`topics.model`."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from topics.filters.record_filter import Filter


class ClaimRequest(msgspec.Struct, kw_only=True):
    """A claim of jobs, with its limits applied (`docs/spec/api.md` section 9). `lease_ms` is None for the topic's
    configured lease."""

    node: str
    most: int
    lease_ms: int | None
    wait_ms: int


class Job(NamedTuple):
    """A job that was given to a claimer. `record` is the JSON of its record without the opening brace."""

    seq: int
    lease_id: int
    deadline: int
    deliveries: int
    record: bytes


class ClaimResult(NamedTuple):
    """The result of a claim: its jobs, and how many jobs are ready after it. `paused`: the queue gives out none now.
    `wants_results`: the results of their acks are delivered."""

    jobs: list[Job]
    ready: int
    paused: bool = False
    lag: int | None = None
    """Of a group: how many seqs it has not finished, from its floor on; and which records it has missed."""
    missed: int | None = None
    wants_results: bool = False


JobStateName = Literal["ready", "in_flight", "delayed"]
"""The states of jobs that are not dead, as clients name them."""


class JobPageRequest(NamedTuple):
    """Which jobs to list: those in `state` (None: in any, but not dead) that match `filter`, behind the seq `after`, at
    most `page_size`. `touch`: it counts as a use of the topic."""

    state: JobStateName | None
    filter: Filter | None
    after: int
    page_size: int
    touch: bool = True


class ShownJob(NamedTuple):
    """A job in a list. Times are epoch ms; `record` is the JSON of its record without the opening brace."""

    state: str
    deliveries: int
    priority: int
    node: str | None
    deadline: int | None
    not_before: int | None
    last_error: str | None
    record: bytes


class JobSelection(NamedTuple):
    """The jobs to be retried or cancelled: those of `seqs` (ascending), or those that match `filter`; only those in
    `state`, None for any."""

    seqs: list[int] | None
    filter: Filter | None
    state: JobStateName | None = None


class JobsChanged(NamedTuple):
    """The outcome of a call on a selection: how many jobs were found, how many of them were changed, and how many of
    them, or of the seqs that were given, were not."""

    matched: int
    done: int
    skipped: int


class HeldRequest(msgspec.Struct, kw_only=True):
    """The jobs of an ack, a nack or an extension. `node` says that it has leased them; `lease_ids`, if given, are their
    lease ids in the order of `seqs`. An ack may have results (JSON), by seq."""

    node: str
    seqs: list[int]
    lease_ids: list[int] | None
    results: dict[int, bytes] | None = None


class NackTerms(NamedTuple):
    """How jobs are given back: to be claimed again in `delay_ms` (None: as the queue's config says), or to be moved to
    the dead-letter topic (`dead`). Without `counts` it is as if this delivery had not been. `error` says why."""

    delay_ms: int | None = None
    error: str | None = None
    counts: bool = True
    dead: bool = False


class HeldResult(msgspec.Struct, kw_only=True):
    """The result of an ack, a nack or an extension, with the counters of the queue after it.

    `done` are the seqs of the jobs that were changed, ascending, and `skipped` those that the caller has not leased.
    `deadlines` are the new deadlines by seq, for an extension only.
    """

    done: list[int]
    skipped: list[int]
    ready: int
    in_flight: int
    deadlines: dict[str, int] = {}
