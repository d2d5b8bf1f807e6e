"""The numbers behind `/v0/metrics`: plain values without formatting or I/O.

The engine fills them (`topics.engine.engine_metrics`). All of them but the sums over every topic are taken in one step
of the loop, so that they belong to one moment. `topics.http.answers.metrics` writes them under the names of
`docs/spec/api.md` section 11.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

# Microseconds, about three bounds a decade: from the flush of a fast NVMe disk to a disk that is failing.
FSYNC_LATENCY_BOUNDS_US: Final[tuple[float, ...]] = (
    50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 5_000_000,
)  # fmt: skip


# Milliseconds: from the wait on an idle loop to 10 s, the longest that any ready topic waits.
SCHEDULING_BOUNDS_MS: Final = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


# Milliseconds: from a small write that needs no sync to a disk that is failing.
COMMIT_BOUNDS_MS: Final = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000)


class Histogram:
    """A histogram with fixed upper bounds, ascending and inclusive. `counts` has one more cell, for values above the
    last bound; `total` is the sum of all values.

    It has no lock: it is changed in the loop only.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = FSYNC_LATENCY_BOUNDS_US) -> None:
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.counts: list[int] = [0] * (len(self.bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        """Count one value, in the unit of the bounds."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, other: Histogram) -> None:
        """Add the counts of `other`, which has the same bounds."""
        assert self.bounds == other.bounds
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total

    def cumulative(self) -> list[tuple[float, int]]:
        """Pairs of an upper bound and the number of values at or below it, ascending. The last bound is infinite."""
        running = 0
        rows: list[tuple[float, int]] = []
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            rows.append((bound, running))
        return rows


class Traffic:
    """Records and bytes that came in (appended, copies of routers included) and went out (read, delivered, exported,
    claimed), since the start of the process."""

    __slots__ = ("bytes_in", "bytes_out", "commit_ms", "records_in", "records_out")

    def __init__(self) -> None:
        self.records_in = self.bytes_in = self.records_out = self.bytes_out = 0
        self.commit_ms = Histogram(COMMIT_BOUNDS_MS)
        """From the decision of a commit that a client waits for to its commit point."""

    def count_in(self, records: int, size: int) -> None:
        """Count records with `size` bytes of data and meta as they become visible."""
        self.records_in += records
        self.bytes_in += size

    def count_out(self, records: int, size: int) -> None:
        """Count records whose JSON has `size` bytes as they are sent."""
        self.records_out += records
        self.bytes_out += size


@dataclass(slots=True)
class WalFigures:
    """The WAL of one shard, or the sum of several. Counts are since the start of the process; `fsync_latency` is in
    microseconds."""

    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    bytes_written: int = 0
    rotations: int = 0
    queue_depth: int = 0
    queue_depth_peak: int = 0
    submit_full: int = 0
    read_only: int = 0
    fsync_latency: Histogram = field(default_factory=Histogram)

    def add(self, other: WalFigures) -> None:
        """Add the figures of another shard. `read_only` then is the number of failed shards, and `queue_depth_peak` the
        greatest of all shards."""
        self.frames += other.frames
        self.batches += other.batches
        self.fsyncs += other.fsyncs
        self.bytes_written += other.bytes_written
        self.rotations += other.rotations
        self.queue_depth += other.queue_depth
        self.queue_depth_peak = max(self.queue_depth_peak, other.queue_depth_peak)
        self.submit_full += other.submit_full
        self.read_only += other.read_only
        self.fsync_latency.merge(other.fsync_latency)


@dataclass(slots=True)
class StandbyFigures:
    """A daemon that follows the bucket of another one. Counts are since the start of the process."""

    state: Literal["opening", "following", "waiting"] = "following"
    """`waiting` is for the store or the disk."""
    problem: str = ""
    """Why it waits; for an operator."""
    owner: str = ""
    """Where the owner answers; empty if that is not known."""
    epoch: int = 0
    round: int = 0
    """The last round that is applied."""
    wall_ms: int = 0
    """When its cut was taken (epoch ms): the time of what is shown."""
    lag_ms: int = 0
    """Since when there may be rounds that are not applied."""
    rounds: int = 0
    frames: int = 0
    apply_ms: float = 0.0
    """How long the loop was held by applying rounds, in all."""


@dataclass(frozen=True, slots=True)
class ReplicaFigures:
    """A daemon that has a bucket: its owner, or a standby as far as it has told of itself."""

    role: Literal["owner", "standby"]
    node: str
    """The name of its machine."""
    url: str
    """Where it answers; may be empty."""
    is_this: bool
    """It is this daemon."""
    state: Literal["owns", "stopped", "opening", "following", "waiting", "silent"]
    """`silent`: a standby that was not heard for some time."""
    epoch: int
    round: int | None = None
    """The last round that a standby has applied."""
    at: int | None = None
    """When its cut was taken (epoch ms)."""
    lag_ms: int | None = None
    """How old what a standby shows may be."""
    heard_ms: int | None = None
    """How long ago a standby was heard."""


@dataclass(slots=True)
class CheckpointFigures:
    """The checkpoints since the start of the process."""

    taken: int = 0
    failed: int = 0
    ended_at: float | None = None
    """When the last one that succeeded ended (`trio.current_time`): on a standby all other clocks stand still between
    rounds."""
    took_ms: int | None = None
    error: str = ""
    """Why the last one has failed; empty if it has not."""

    def note(self, *, ended_at: float, took_ms: int) -> None:
        """Count one that has succeeded."""
        self.taken += 1
        self.ended_at, self.took_ms, self.error = ended_at, took_ms, ""


@dataclass(slots=True)
class BucketFigures:
    """The archive in the bucket. Counts are since the start of the process."""

    state: Literal["opening", "working", "waiting", "refused"] = "opening"
    """`waiting` is for the store."""
    problem: str = ""
    """Why it is not working; for an operator."""
    epoch: int = 0
    lease_left_ms: int | None = None
    """How long this process may act without another renewal of its lease; None without takeover."""
    round: int = 0
    """The last round that is in the bucket."""
    rounds: int = 0
    round_bytes: int = 0
    """Of rounds as they are stored."""
    lag_bytes: int = 0
    lag_ms: int = 0
    """How much of the synced log is not in the bucket, and since when at least."""
    has_base: bool = False
    """There is a base of the present history, so that a restore is possible. False as long as the bucket is not
    open."""
    base: int = 0
    """The newest base of the present history; 0 if there is none."""
    base_age_ms: int = 0
    """Since its capture."""
    base_is_due: bool = False
    """Something has changed since it was captured, or there is none."""
    bases: int = 0
    bases_failed: int = 0
    backlog_limit_bytes: int = 0
    """Beyond so many `lag_bytes` the place is given up; 0 while it is not known, as long as there is no backlog."""
    objects_put: dict[str, int] = field(default_factory=dict)
    bytes_put: dict[str, int] = field(default_factory=dict)
    """By kind: what is before the first slash of a name."""
    objects_deleted: int = 0
    """By the collector."""
    segments_repaired: int = 0
    log_files_repaired: int = 0
    repaired_bytes: int = 0
    """Bytes of the bucket that have replaced damaged ones here."""
    repairs_waiting: int = 0
    """Damaged segments for which the bucket has not answered yet."""
    calls_hanging: int = 0
    """Calls of the bucket that were given up and have not returned yet."""
    calls_timed_out: int = 0
    calls_failed: dict[str, int] = field(default_factory=dict)
    """By kind of error."""


class JobFigures(NamedTuple):
    """The jobs of a queue or group: how many are ready, leased and delayed, whether it is paused, and how many went to
    the dead letters in its life."""

    ready: int
    in_flight: int
    delayed: int
    paused: bool
    dead_lettered: int


@dataclass(slots=True)
class TopicFigures:
    """One topic, for the metrics that each topic has."""

    name: str
    head_seq: int
    earliest_seq: int
    records: int
    bytes: int
    jobs: JobFigures | None = None
    """None for a topic that is no queue."""


@dataclass(slots=True)
class RouterFigures:
    """One router, for the metrics that each router has."""

    router: str
    lag: int
    forwarded_total: int


@dataclass(slots=True)
class ScheduleFigures:
    """All schedules. `failing` are those whose last firing was refused; the other three count since the start."""

    schedules: int = 0
    failing: int = 0
    fired: int = 0
    refused: int = 0
    missed: int = 0


@dataclass(slots=True)
class ConsumerFigures:
    """One named consumer, for the metrics that each consumer has."""

    topic: str
    consumer: str
    lag: int


@dataclass(slots=True)
class GroupFigures:
    """One group, for the metrics that each group has."""

    topic: str
    group: str
    lag: int
    missed: int
    jobs: JobFigures


@dataclass(slots=True)
class DeliveryFigures:
    """Connections and sessions of watchers, and the measures that the governor has taken."""

    sse_connections: int = 0
    ws_connections: int = 0
    watch_sessions: int = 0
    pressure: float = 0.0
    coalesce_ms: float = 0.0
    commit_window_ms: float = 0.0
    lowest_paused: bool = False
    routers_lowered: bool = False
    saturated: bool = False
    ready_set_depth: int = 0
    waits_ms: Histogram = field(default_factory=lambda: Histogram(SCHEDULING_BOUNDS_MS))


@dataclass(slots=True)
class EngineFigures:
    """The whole engine at one moment.

    `topic_samples` holds the first 1000, by name, of the topics that the caller may see; `topics_truncated` is true if
    there are more. `router_samples` and `routers_truncated` are the same for routers, and those of consumers for
    consumers, those of groups for groups.
    """

    topics: int = 0
    by_class: dict[str, int] = field(default_factory=dict)
    records_live: int = 0
    bytes_live: int = 0
    ready: bool = False
    recovery_progress: float = 0.0
    uptime_ms: int = 0
    read_only: bool = False
    """A shard has failed or the disk is nearly full, so that some or all appends are refused."""
    wal: WalFigures = field(default_factory=WalFigures)
    topic_samples: list[TopicFigures] = field(default_factory=list)
    topics_truncated: bool = False
    queue_topics: int = 0
    queue_leases: int = 0
    """Leases that have not expired, in all queues."""
    results_waiting: int = 0
    """Results of jobs that wait to be delivered, of all queues and groups."""
    results_bytes: int = 0
    """Bytes that these count."""
    routers: int = 0
    router_samples: list[RouterFigures] = field(default_factory=list)
    routers_truncated: bool = False
    consumers: int = 0
    consumer_samples: list[ConsumerFigures] = field(default_factory=list)
    consumers_truncated: bool = False
    schedules: ScheduleFigures = field(default_factory=ScheduleFigures)
    redrives: int = 0
    """Running redrives."""
    letters_redriven: int = 0
    """Dead letters that redrives have moved since the start."""
    groups: int = 0
    group_samples: list[GroupFigures] = field(default_factory=list)
    groups_truncated: bool = False
    router_failures: int = 0
    """How often forwarders were started again after an unexpected error."""
    restarts: dict[str, int] = field(default_factory=dict)
    """How often background tasks were started again after a failure, by their names."""
    throttled: dict[str, int] = field(default_factory=dict)
    """How many calls were refused, by the limit."""
    segments: dict[str, int] = field(default_factory=dict)
    """How many segments there are, by tier."""
    segments_packed: int = 0
    """How many of them are packed."""
    segment_bytes: int = 0
    """The bytes of the `.data` of all of them, unpacked."""
    segment_stored_bytes: int = 0
    """The same as they are stored."""
    cold_hanging: int = 0
    """Calls of the cold store that were given up and have not returned yet."""
    cold_timeouts: int = 0
    """Calls of the cold store that were given up, since the start."""
    cold_usable: bool = True
    """The cold directory is known to belong to this daemon, or there is none."""
    delivery: DeliveryFigures = field(default_factory=DeliveryFigures)
    bucket: BucketFigures | None = None
    standby: StandbyFigures | None = None
    """None without a bucket."""
