"""The fields of the answers, as types (`docs/spec/api.md` sections 3 to 11).

Some answers are formatted from bytes, because their records were encoded when they were committed. The types of these
answers are used only for the description of the interface. A test decodes real answers strictly with all of the types.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from topics.model import (
    ConsumerState,
    GroupState,
    MovedConsumer,
    Performance,
    QueueState,
    RouterState,
    ScheduleState,
    Tombstone,
    TopicConfig,
    TopicState,
    TopicSummary,
    WatchedTopic,
)


class ErrorFacts(Struct, kw_only=True):
    """The content of an error answer (`docs/spec/api.md` section 1)."""

    code: str
    message: str
    detail: dict[str, Any]


class ErrorAnswer(Struct, kw_only=True):
    """The answer to every call that fails."""

    error: ErrorFacts


# --- topics ----------------------------------------------------------------------------------------------------------


class TopicAnswer(Struct, kw_only=True):
    """The answer to the PUT of a topic."""

    topic: str
    created: bool
    config: TopicConfig
    performance: Performance


class TopicStateAnswer(TopicState, kw_only=True):
    """The answer to the GET of a topic."""

    performance: Performance


class TopicListAnswer(Struct, kw_only=True):
    """One page of the list of topics. `next_cursor` is missing on the last one."""

    topics: list[TopicSummary]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class TopicDeletedAnswer(Struct, kw_only=True):
    """The answer to the deletion of a topic."""

    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


# --- consumers -------------------------------------------------------------------------------------------------------


class ConsumerAnswer(ConsumerState, kw_only=True):
    """The answer to the PUT or the GET of a consumer."""

    performance: Performance


class ConsumerListAnswer(Struct, kw_only=True):
    """One page of the list of consumers of a topic. `next_cursor` is missing on the last one."""

    consumers: list[ConsumerState]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class ConsumerDeletedAnswer(Struct, kw_only=True):
    """The answer to the deletion of a consumer."""

    topic: str
    consumer: str
    deleted: bool
    performance: Performance


class ConsumerMovedAnswer(MovedConsumer, kw_only=True):
    """The answer to a commit or a seek of a consumer."""

    performance: Performance


class AcquiredAnswer(Struct, kw_only=True):
    """The answer to an acquire."""

    topic: str
    consumer: str
    epoch: int
    generation: int
    deadline: int
    performance: Performance


class ReleasedAnswer(Struct, kw_only=True):
    """The answer to a release."""

    topic: str
    consumer: str
    released: bool
    performance: Performance


# --- schedules -------------------------------------------------------------------------------------------------------


class ScheduleAnswer(ScheduleState, kw_only=True):
    """The answer to the PUT or the GET of a schedule, and to pause and resume."""

    performance: Performance


class ScheduleListAnswer(Struct, kw_only=True):
    """One page of the list of schedules. `next_cursor` is missing on the last one."""

    schedules: list[ScheduleState]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class ScheduleDeletedAnswer(Struct, kw_only=True):
    """The answer to the deletion of a schedule."""

    schedule: str
    deleted: bool
    performance: Performance


class ScheduleRunAnswer(Struct, kw_only=True):
    """The answer to the run of a schedule."""

    schedule: str
    topic: str
    seq: int
    performance: Performance


# --- groups ----------------------------------------------------------------------------------------------------------


class GroupAnswer(GroupState, kw_only=True):
    """The answer to the PUT or the GET of a group."""

    performance: Performance


class GroupListAnswer(Struct, kw_only=True):
    """One page of the list of groups of a topic. `next_cursor` is missing on the last one."""

    groups: list[GroupState]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class GroupDeletedAnswer(Struct, kw_only=True):
    """The answer to the deletion of a group."""

    topic: str
    group: str
    deleted: bool
    performance: Performance


# --- records ---------------------------------------------------------------------------------------------------------


class Record(Struct, kw_only=True):
    """A record in an answer. It is formatted from bytes (`topics.log.block`)."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    tag: str | UnsetType = field(default=UNSET, name="$tag")
    node: str | UnsetType = field(default=UNSET, name="$node")
    data: Any
    meta: dict[str, str] | UnsetType = UNSET


class AppendAnswer(Struct, kw_only=True):
    """The answer to an append of JSON."""

    topic: str
    first_seq: int | None
    last_seq: int | None
    seqs: list[int] | UnsetType = UNSET
    duplicates: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: Performance


class IngestAnswer(Struct, kw_only=True):
    """The answer to an append of NDJSON."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    batches: int
    head_seq: int
    created: bool
    deduped_batches: int
    performance: Performance


class TransactionMember(Struct, kw_only=True):
    """The records of a transaction in one of its topics."""

    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int]
    count: int
    created: bool


class TransactionAnswer(Struct, kw_only=True):
    """The answer to a transaction, in the order of the request."""

    appends: list[TransactionMember]
    deduped: bool
    performance: Performance


class StageAnswer(Struct, kw_only=True):
    """The answer to an append to a stage, of JSON or of NDJSON."""

    topic: str
    stage: str
    count: int
    performance: Performance


class CommitAnswer(Struct, kw_only=True):
    """The answer to a commit of stages."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    deduped: bool
    performance: Performance


class StageDeletedAnswer(Struct, kw_only=True):
    """The answer to the deletion of a stage."""

    topic: str
    stage: str
    deleted: bool
    performance: Performance


class FenceDeletedAnswer(Struct, kw_only=True):
    """The answer to the removal of a fence."""

    topic: str
    fence: str
    deleted: bool
    performance: Performance


class SealedAnswer(Struct, kw_only=True):
    """The answer to the sealing of a topic."""

    topic: str
    segments: int
    performance: Performance


class ReadAnswer(Struct, kw_only=True):
    """The answer to a diff. It is formatted from bytes (`topics.http.handlers.data_plane`)."""

    topic: str
    epoch: int
    records: list[Record]
    next_from_seq: int
    next_before_seq: int | UnsetType = UNSET
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    performance: Performance


class LatestAnswer(Struct, kw_only=True):
    """The newest record of a tag, or a page of those of a prefix. It is formatted from bytes
    (`topics.http.handlers.latest`)."""

    topic: str
    epoch: int
    record: Record | UnsetType = UNSET
    records: list[Record] | UnsetType = UNSET
    head_seq: int
    next_cursor: str | UnsetType = UNSET
    performance: Performance | UnsetType = UNSET


class RecordsDeletedAnswer(Struct, kw_only=True):
    """The answer to a deletion of records."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    dry_run: bool | UnsetType = UNSET
    performance: Performance


# --- queues ----------------------------------------------------------------------------------------------------------


class ClaimedJob(Record, kw_only=True):
    """A job in the answer to a claim. It is formatted from bytes (`topics.http.handlers.queues`)."""

    lease_id: str
    deadline: int
    deliveries: int
    last_error: str | UnsetType = UNSET


class JobEntry(Record, kw_only=True):
    """A job in a list. It is formatted from bytes (`topics.http.handlers.jobs`)."""

    state: Literal["ready", "in_flight", "delayed", "dead"]
    deliveries: int
    priority: int
    node: str | UnsetType = UNSET
    deadline: int | UnsetType = UNSET
    not_before: int | UnsetType = UNSET
    last_error: str | UnsetType = UNSET


class JobListAnswer(Struct, kw_only=True):
    """A page of a list of jobs. It is formatted from bytes (`topics.http.handlers.jobs`)."""

    topic: str
    jobs: list[JobEntry]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class GroupJobListAnswer(JobListAnswer, kw_only=True):
    """A page of a list of jobs of a group."""

    group: str


class JobsChangedAnswer(Struct, kw_only=True):
    """The answer to a retry and a cancellation of jobs."""

    topic: str
    matched: int
    done: int
    skipped: int
    performance: Performance


class GroupJobsChangedAnswer(JobsChangedAnswer, kw_only=True):
    """The same of a group."""

    group: str


class ClaimAnswer(Struct, kw_only=True):
    """The answer to a claim. It is formatted from bytes (`topics.http.handlers.queues`)."""

    topic: str
    claimed: list[ClaimedJob]
    count: int
    ready: int
    paused: bool | UnsetType = UNSET
    wants_results: bool | UnsetType = UNSET
    performance: Performance


class GroupClaimAnswer(ClaimAnswer, kw_only=True):
    """The answer to a claim of a group."""

    group: str
    lag: int
    missed: int


class AckAnswer(Struct, kw_only=True):
    """The answer to an ack."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class GroupAckAnswer(AckAnswer, kw_only=True):
    """The answer to an ack of a group."""

    group: str


class NackAnswer(Struct, kw_only=True):
    """The answer to a nack."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class GroupNackAnswer(NackAnswer, kw_only=True):
    """The answer to a nack of a group."""

    group: str


class PauseAnswer(Struct, kw_only=True):
    """The answer to a pause of a queue, and to its end."""

    topic: str
    queue: QueueState
    performance: Performance


class RedriveFault(Struct, frozen=True):
    """Why a redrive has failed."""

    code: str
    message: str


class RedriveAnswer(Struct, kw_only=True):
    """The answer to the calls on the redrive of a dead-letter topic."""

    topic: str
    state: Literal["idle", "running", "done", "stopped", "failed"]
    moved: int
    left: int
    reasons: dict[str, int]
    error: RedriveFault | None
    performance: Performance


class GroupPauseAnswer(PauseAnswer, kw_only=True):
    """The answer to a pause of a group, and to its end."""

    group: str


class ExtendAnswer(Struct, kw_only=True):
    """The answer to an extension of leases. `deadlines` are ms since the Unix epoch, by seq."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance


class GroupExtendAnswer(ExtendAnswer, kw_only=True):
    """The answer to an extension of leases of a group."""

    group: str


# --- live delivery ---------------------------------------------------------------------------------------------------


class WatchAnswer(Struct, kw_only=True):
    """The answer to the making of a watch session."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance


# --- routers ---------------------------------------------------------------------------------------------------------


class RouterAnswer(RouterState, frozen=True, kw_only=True):
    """The answer to the PUT (with `created`) and to the GET of a router."""

    created: bool | UnsetType = UNSET
    performance: Performance


class RouterListAnswer(Struct, kw_only=True):
    """One page of the list of routers. `next_cursor` is missing on the last one."""

    routers: list[RouterState]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class RouterDeletedAnswer(Struct, kw_only=True):
    """The answer to the deletion of a router."""

    router: str
    deleted: bool
    performance: Performance


# --- the daemon ------------------------------------------------------------------------------------------------------


class RootAnswer(Struct, kw_only=True):
    """The answer to `GET /`."""

    service: Literal["topics"]
    version: str
    docs: str
    openapi: str
    topics: str
    ready: str
    metrics: str
    console: str | UnsetType = UNSET


class HealthAnswer(Struct, kw_only=True):
    """The answer to `GET /v0/health`."""

    status: Literal["ok"]
    version: str
    uptime_ms: int


class BucketState(Struct, kw_only=True):
    """How the archive in the bucket is doing."""

    state: Literal["opening", "working", "waiting", "refused"]
    epoch: int
    round: int
    lag_bytes: int
    lag_ms: int
    has_base: bool
    base: int
    base_age_ms: int


class StandbyState(Struct, kw_only=True):
    """How far a standby has followed its owner."""

    state: Literal["opening", "following", "waiting"]
    owner: str | None
    epoch: int
    round: int
    at: int
    lag_ms: int


class ReadyAnswer(Struct, kw_only=True):
    """The answer to `GET /v0/ready` when the daemon is ready."""

    status: Literal["ready"]
    wal_replay_complete: bool
    topics: int
    bucket: BucketState | UnsetType = UNSET
    standby: StandbyState | UnsetType = UNSET


class ShardPosition(Struct, kw_only=True):
    """A place in the log of one shard: the ordinal of the first frame of a file, and a byte offset in the file."""

    shard: int
    file: int
    offset: int


class CheckpointAnswer(Struct, kw_only=True):
    """The answer to a checkpoint: the files of the data directory that a copy needs, and up to where."""

    files: list[str]
    position: list[ShardPosition]
    performance: Performance


class Sample(Struct, kw_only=True):
    """One value of a metric that has labels (`topics.http.answers.metrics`)."""

    labels: dict[str, str]
    value: float


Metrics = dict[str, float | list[Sample]]
