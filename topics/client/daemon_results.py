"""The answers of the calls about the daemon itself (`docs/spec/api.md` section 11). Times are in ms, sizes in bytes."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class KeyRights(Struct, kw_only=True):
    """The rights of a key. `prefixes` are the beginnings of the names that it covers; none: every name."""

    key: str
    has_keys: bool
    """False: the daemon has no keys, so everybody may do everything."""
    scopes: list[str]
    prefixes: list[str]


class StandbyProgress(Struct, kw_only=True):
    """How far a standby has followed its owner: up to the round `round`, cut at `at` (epoch ms), `lag_ms` ago."""

    state: str
    owner: str | None
    epoch: int
    round: int
    at: int
    lag_ms: int


class ParsedFilter(Struct, kw_only=True):
    """A filter that was written as text."""

    filter: list[Any]


class LoadRates(Struct, kw_only=True):
    """Per second, over the last `seconds`."""

    seconds: float
    records_in: float
    bytes_in: float
    records_out: float
    bytes_out: float
    requests: float
    wal_bytes: float
    syncs: float


class LoadLatency(Struct, kw_only=True):
    """Times of the last seconds."""

    count: int
    p50_ms: float
    p99_ms: float


class LoadLatencies(Struct, kw_only=True):
    """Durations of the last seconds, by kind of work; None for a kind that did not occur."""

    append: LoadLatency | None
    delivery: LoadLatency | None
    commit: LoadLatency | None
    sync: LoadLatency | None


class LoadPressure(Struct, kw_only=True):
    """How pressed the daemon is, 0 to 1, and its measures against that."""

    value: float
    coalesce_ms: float
    commit_window_ms: float
    lowest_paused: bool
    routers_lowered: bool
    saturated: bool


class LoadConnections(Struct, kw_only=True):
    """How many connections of which kind there are."""

    open: int
    streams: int
    sockets: int
    sessions: int


class LoadMemory(Struct, kw_only=True):
    """Memory of the daemon."""

    resident_bytes: int
    cache_bytes: int
    pinned_bytes: int
    cache_limit_bytes: int


class LoadDisk(Struct, kw_only=True):
    """The disk of the data directory. `shortage` says why appends are refused; None if they are not."""

    free_bytes: int | None
    min_free_bytes: int
    shortage: str | None


class Load(Struct, kw_only=True):
    """The present load of the daemon. `rates` is None in its first second."""

    ts: int
    version: str
    uptime_ms: int
    phase: str
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
    rates: LoadRates | None
    latencies: LoadLatencies
    totals: dict[str, int]
    """Since the start: what `rates` are the growth of."""
    pressure: LoadPressure
    queue_depth: int
    failed_shards: int
    connections: LoadConnections
    memory: LoadMemory
    disk: LoadDisk
    lagging_routers: list[dict[str, Any]]
    salvaged: bool
    cold_usable: bool
    bucket: dict[str, Any] | None = None
    """The archive in the bucket; None without one."""
    standby: dict[str, Any] | None = None
    """How far a standby has followed its owner; None on an owner."""


class StorageShard(Struct, kw_only=True):
    """The log of one shard. Counts are since the start of the daemon."""

    shard: int
    read_only: bool
    queue_depth: int
    frames: int
    batches: int
    bytes: int
    syncs: int
    rotations: int
    sync_p99_ms: float | None


class StorageTier(Struct, kw_only=True):
    """The segments in one tier, `hot` or `cold`."""

    tier: str
    segments: int
    seqs: int
    bytes: int


class StorageCheckpoints(Struct, kw_only=True):
    """The checkpoints since the start of the daemon. `error` is why the last one has failed; None if it has not."""

    taken: int
    failed: int
    age_ms: int | None
    took_ms: int | None
    error: str | None
    interval_ms: int
    changed_topics: int


class Storage(Struct, kw_only=True):
    """The storage of the daemon. `cold` is `none`, `directory` or `bucket`. `replicas` are the daemons that have the
    bucket, None without one, and before the daemon has read them."""

    shards: list[StorageShard]
    tiers: list[StorageTier]
    checkpoints: StorageCheckpoints
    reclaim: dict[str, int]
    cold: str
    cold_usable: bool
    bucket: dict[str, Any] | None = None
    replicas: list[dict[str, Any]] | None = None


class ClientConnection(Struct, kw_only=True):
    """An open stream, socket or export. `topics` are the first ten of `topics_total`."""

    id: int
    kind: str
    key: str
    peer: str
    since: int
    """Epoch ms."""
    topics: list[str]
    topics_total: int
    lag: int
    """Seqs of its topics that it has not got yet."""
    waiting_bytes: int


class KeyUsage(Struct, kw_only=True):
    """A key, and how much of its limits it uses now."""

    key: str
    scopes: list[str]
    prefixes: list[str]
    requests: int
    connections: int
    sessions: int


class ConnectionPage(Struct, kw_only=True):
    """One page of the open connections, and all keys."""

    connections: list[ClientConnection]
    total: int
    keys: list[KeyUsage]
    limits: dict[str, int]
    """Of each key; 0 is off."""
    next_cursor: str | None = None
