"""The fields of the answers about the daemon itself: what a key may do, rates and latencies, the storage, who is
connected (`docs/spec/api.md` section 11). For `topics.http.answer_types`, in which the other answers are.
"""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from topics.http.answer_types import BucketState, StandbyState
from topics.model import Performance


class KeyAnswer(Struct, kw_only=True):
    """The answer to `GET /v0/key`: what the caller may do."""

    key: str
    has_keys: bool
    scopes: list[str]
    prefixes: list[str]
    performance: Performance


class FilterAnswer(Struct, kw_only=True):
    """The answer to `GET /v0/filter`: the filter that was written as text."""

    filter: Raw
    performance: Performance


class Rates(Struct, kw_only=True):
    """Per second, over the last `seconds`."""

    seconds: float
    records_in: float
    bytes_in: float
    records_out: float
    bytes_out: float
    requests: float
    wal_bytes: float
    syncs: float


class Latency(Struct, kw_only=True):
    """Times of the last seconds."""

    count: int
    p50_ms: float
    p99_ms: float


class Latencies(Struct, kw_only=True):
    """Durations of the last seconds, by kind of work; None for a kind that did not occur."""

    append: Latency | None
    delivery: Latency | None
    commit: Latency | None
    sync: Latency | None


class TotalFigures(Struct, kw_only=True):
    """Counts since the start of the process."""

    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int
    requests: int
    wal_bytes: int
    syncs: int


class PressureFigures(Struct, kw_only=True):
    """How pressed the daemon is, and its measures against that."""

    value: float
    coalesce_ms: float
    commit_window_ms: float
    lowest_paused: bool
    routers_lowered: bool
    saturated: bool


class ConnectionCounts(Struct, kw_only=True):
    """How many connections of which kind there are."""

    open: int
    streams: int
    sockets: int
    sessions: int


class MemoryFigures(Struct, kw_only=True):
    """Memory, in bytes."""

    resident_bytes: int
    cache_bytes: int
    pinned_bytes: int
    cache_limit_bytes: int


class DiskFigures(Struct, kw_only=True):
    """The disk of the data directory."""

    free_bytes: int | None
    min_free_bytes: int
    shortage: str | None


class LaggingRouter(Struct, kw_only=True):
    """A router that has records to copy."""

    router: str
    lag: int


class BucketFiguresAnswer(BucketState, kw_only=True):
    """The archive in the bucket, in detail."""

    problem: str
    rounds: int
    round_bytes: int
    base_is_due: bool
    bases: int
    bases_failed: int
    calls_hanging: int
    repairs_waiting: int


class StandbyFiguresAnswer(StandbyState, kw_only=True):
    """How far a standby has followed its owner, and why it waits."""

    problem: str


class FiguresAnswer(Struct, kw_only=True):
    """The answer to `GET /v0/figures`."""

    ts: int
    version: str
    uptime_ms: int
    phase: Literal["starting", "replaying", "archiving", "ready", "draining"]
    replay_progress: float
    read_only: bool
    topics: int
    records: int
    bytes: int
    routers: int
    consumers: int
    groups: int
    schedules: int
    redrives: int
    results_waiting: int
    rates: Rates | None
    latencies: Latencies
    totals: TotalFigures
    pressure: PressureFigures
    queue_depth: int
    failed_shards: int
    connections: ConnectionCounts
    memory: MemoryFigures
    disk: DiskFigures
    lagging_routers: list[LaggingRouter]
    salvaged: bool
    cold_usable: bool
    bucket: BucketFiguresAnswer | UnsetType = UNSET
    standby: StandbyFiguresAnswer | UnsetType = UNSET
    performance: Performance


class ShardState(Struct, kw_only=True):
    """The log of one shard. Counts are since the start of the process."""

    shard: int
    read_only: bool
    queue_depth: int
    frames: int
    batches: int
    bytes: int
    syncs: int
    rotations: int
    sync_p99_ms: float | None


class TierState(Struct, kw_only=True):
    """The segments in one tier."""

    tier: Literal["hot", "cold"]
    segments: int
    seqs: int
    bytes: int


class CheckpointState(Struct, kw_only=True):
    """The checkpoints since the start of the process."""

    taken: int
    failed: int
    age_ms: int | None
    took_ms: int | None
    error: str | None
    interval_ms: int
    changed_topics: int


class ReclaimState(Struct, kw_only=True):
    """The work that waits for the reclaimer."""

    topics_waiting: int
    interval_ms: int


class ReplicaState(Struct, kw_only=True):
    """A daemon that has the bucket: its owner, or a standby as far as it has told of itself there."""

    role: Literal["owner", "standby"]
    node: str
    url: str
    is_this: bool
    state: Literal["owns", "stopped", "opening", "following", "waiting", "silent"]
    epoch: int
    round: int | None
    at: int | None
    lag_ms: int | None
    heard_ms: int | None


class StorageAnswer(Struct, kw_only=True):
    """The answer to `GET /v0/storage`."""

    shards: list[ShardState]
    tiers: list[TierState]
    checkpoints: CheckpointState
    reclaim: ReclaimState
    cold: Literal["none", "directory", "bucket"]
    cold_usable: bool
    bucket: BucketFiguresAnswer | UnsetType = UNSET
    replicas: list[ReplicaState] | UnsetType | None = UNSET
    performance: Performance


class ConnectionState(Struct, kw_only=True):
    """An open stream, socket or export."""

    id: int
    kind: Literal["stream", "watch", "socket", "work", "export"]
    key: str
    peer: str
    since: int
    topics: list[str]
    topics_total: int
    lag: int
    waiting_bytes: int


class KeyUse(Struct, kw_only=True):
    """A key, and how much of its limits it uses now."""

    key: str
    scopes: list[str]
    prefixes: list[str]
    requests: int
    connections: int
    sessions: int


class KeyLimits(Struct, kw_only=True):
    """The limits of one key; 0 is off."""

    requests: int
    connections: int
    sessions: int
    requests_per_s: int
    bytes_per_s: int


class ConnectionListAnswer(Struct, kw_only=True):
    """One page of the list of open streams, sockets and exports. `next_cursor` is missing on the last one."""

    connections: list[ConnectionState]
    total: int
    keys: list[KeyUse]
    limits: KeyLimits
    next_cursor: str | UnsetType = UNSET
    performance: Performance
