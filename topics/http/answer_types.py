"""What calls are answered with, as types (`docs/spec/api.md` sections 3 to 11).

Some answers are put together from bytes, because the records in them were encoded when they were committed. Their types
encode nothing; they are what the description of the daemon says of them, and a test decodes real answers with all of
these types, strictly.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from topics.model import Performance, RouterState, Tombstone, TopicConfig, TopicState, TopicSummary, WatchedTopic


class ErrorFacts(Struct, kw_only=True):
    code: str
    message: str
    detail: dict[str, Any]


class ErrorAnswer(Struct, kw_only=True):
    """Every failure."""

    error: ErrorFacts


# --- topics ----------------------------------------------------------------------------------------------------------


class TopicAnswer(Struct, kw_only=True):
    topic: str
    created: bool
    config: TopicConfig
    performance: Performance


class TopicStateAnswer(TopicState, kw_only=True):
    performance: Performance


class TopicListAnswer(Struct, kw_only=True):
    topics: list[TopicSummary]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class TopicDeletedAnswer(Struct, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance


# --- records ---------------------------------------------------------------------------------------------------------


class Record(Struct, kw_only=True):
    """Put together from bytes (`topics.log.block`)."""

    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    tag: str | UnsetType = field(default=UNSET, name="$tag")
    node: str | UnsetType = field(default=UNSET, name="$node")
    data: Any
    meta: dict[str, str] | UnsetType = UNSET


class AppendAnswer(Struct, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] | UnsetType = UNSET
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: Performance


class IngestAnswer(Struct, kw_only=True):
    """To an append of NDJSON."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    batches: int
    head_seq: int
    created: bool
    deduped_batches: int
    performance: Performance


class StageAnswer(Struct, kw_only=True):
    """To an append to a stage, of JSON and of NDJSON."""

    topic: str
    stage: str
    count: int
    performance: Performance


class CommitAnswer(Struct, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    count: int
    deduped: bool
    performance: Performance


class StageDeletedAnswer(Struct, kw_only=True):
    topic: str
    stage: str
    deleted: bool
    performance: Performance


class ReadAnswer(Struct, kw_only=True):
    """Put together from bytes (`data_plane`)."""

    topic: str
    epoch: int
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    performance: Performance


class RecordsDeletedAnswer(Struct, kw_only=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    performance: Performance


# --- queues ----------------------------------------------------------------------------------------------------------


class ClaimedJob(Record, kw_only=True):
    """Put together from bytes (`queues`)."""

    lease_id: str
    deadline: int
    deliveries: int


class ClaimAnswer(Struct, kw_only=True):
    """Put together from bytes (`queues`)."""

    topic: str
    claimed: list[ClaimedJob]
    count: int
    ready: int
    performance: Performance


class AckAnswer(Struct, kw_only=True):
    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class NackAnswer(Struct, kw_only=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class ExtendAnswer(Struct, kw_only=True):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance


# --- live delivery ---------------------------------------------------------------------------------------------------


class WatchAnswer(Struct, kw_only=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance


# --- routers ---------------------------------------------------------------------------------------------------------


class RouterAnswer(RouterState, frozen=True, kw_only=True):
    created: bool | UnsetType = UNSET
    performance: Performance


class RouterListAnswer(Struct, kw_only=True):
    routers: list[RouterState]
    next_cursor: str | UnsetType = UNSET
    performance: Performance


class RouterDeletedAnswer(Struct, kw_only=True):
    router: str
    deleted: bool
    performance: Performance


# --- the daemon ------------------------------------------------------------------------------------------------------


class RootAnswer(Struct, kw_only=True):
    service: Literal["topics"]
    version: str
    docs: str
    openapi: str
    topics: str
    ready: str
    metrics: str


class HealthAnswer(Struct, kw_only=True):
    status: Literal["ok"]
    version: str
    uptime_ms: int


class ReadyAnswer(Struct, kw_only=True):
    status: Literal["ready"]
    wal_replay_complete: bool
    topics: int


class ShardPosition(Struct, kw_only=True):
    shard: int
    file: int
    offset: int


class CheckpointAnswer(Struct, kw_only=True):
    files: list[str]
    position: list[ShardPosition]
    performance: Performance


class Sample(Struct, kw_only=True):
    """One value of a metric that has labels (`metrics`)."""

    labels: dict[str, str]
    value: float


Metrics = dict[str, float | list[Sample]]
