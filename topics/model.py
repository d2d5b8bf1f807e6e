"""The content of requests, and the answers of the engine, as msgspec Structs (`docs/spec/api.md` sections 2 to 9).

Nothing is checked here. Ranges and sizes are checked in `topics.log.topic_config` and `topics.http.requests`. Times in
`ts` fields and deadlines are epoch ms, fields ending in `_ms` are milliseconds, and sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from topics.filters.record_filter import Filter

MAX_U64: Final = 2**64 - 1
"""The highest seq, and the highest value of every count and size on the wire."""

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync", "remote"]

SYNCED_CLASSES: Final = frozenset({"fsync", "remote"})
"""Classes whose changes are synced before they are acked. They reserve no seqs."""

Consistency = Literal["eventual", "strong", "remote"]
"""Which records a watcher gets: all visible ones, synced ones, or those in the bucket."""

Retention = Literal["limits", "consumed"]
Scope = Literal["queued", "unfinished", "window"]
OrderBy = Literal["tag", "node"]
Compression = Literal["zstd", "off"]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long jobs of a queue are delayed that have failed (`docs/spec/consumers.md` section 5)."""

    backoff: Literal["fixed", "exponential"] = "exponential"
    delay_ms: int = 1000
    max_delay_ms: int = 3_600_000
    jitter: float = 0.0


class ClaimRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs of a queue are claimed in any `per_ms` at most."""

    jobs: int
    per_ms: int


class KeyLimitConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many jobs of a queue are leased at a time at most that have one tag or node."""

    by: OrderBy
    max: int


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The complete configuration of a topic, as answers show it (`docs/spec/api.md` section 2)."""

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    completed: str | None = None
    leases_durable: bool = False
    retention: Retention = "limits"
    retry: RetryPolicy | None = None
    priority_aging_ms: int = 60_000
    max_in_flight: int = 0
    rate: ClaimRate | None = None
    order_by: OrderBy | None = None
    max_in_flight_per_key: KeyLimitConfig | None = None
    schema: msgspec.Raw | None = None
    """The JSON of a schema for `data` (`docs/spec/consumers.md` section 6), without blanks."""
    segment_max_events: int | None = None
    """This and the next three are about the topic's segments; None is what the daemon's settings say."""
    segment_max_bytes: int | None = None
    segment_max_age_ms: int | None = None
    compression: Compression | None = None
    evidence: bool = False
    """True if it keeps a Merkle tree (`docs/spec/evidence.md` section 1)."""
    keep_per_tag: int = 0
    null_ttl_ms: int = 86_400_000

    def __hash__(self) -> int:  # a schema cannot be hashed
        return hash((self.type, self.ttl_ms, self.cap_records, self.cap_bytes, self.durability, self.dead_letter))


class TopicConfigPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a topic's configuration: the fields that the request has; the others are UNSET."""

    type: TopicType | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET
    cap_records: int | UnsetType = UNSET
    cap_bytes: int | UnsetType = UNSET
    discard: Discard | UnsetType = UNSET
    durable: bool | UnsetType = UNSET
    durability: Durability | UnsetType = UNSET
    priority: int | UnsetType | None = UNSET
    auto_priority: bool | UnsetType = UNSET
    auto_create: bool | UnsetType = UNSET
    idempotency_window_ms: int | UnsetType = UNSET
    dedupe_node: bool | UnsetType = UNSET
    lease_ms: int | UnsetType = UNSET
    claim_jitter_ms: int | UnsetType = UNSET
    max_deliveries: int | UnsetType = UNSET
    dead_letter: str | UnsetType | None = UNSET
    completed: str | UnsetType | None = UNSET
    leases_durable: bool | UnsetType = UNSET
    retention: Retention | UnsetType = UNSET
    retry: RetryPolicy | UnsetType | None = UNSET
    priority_aging_ms: int | UnsetType = UNSET
    max_in_flight: int | UnsetType = UNSET
    rate: ClaimRate | UnsetType | None = UNSET
    order_by: OrderBy | UnsetType | None = UNSET
    max_in_flight_per_key: KeyLimitConfig | UnsetType | None = UNSET
    schema: msgspec.Raw | UnsetType = UNSET
    segment_max_events: int | UnsetType | None = UNSET
    segment_max_bytes: int | UnsetType | None = UNSET
    segment_max_age_ms: int | UnsetType | None = UNSET
    compression: Compression | UnsetType | None = UNSET
    evidence: bool | UnsetType = UNSET
    keep_per_tag: int | UnsetType = UNSET
    null_ttl_ms: int | UnsetType = UNSET


class UniqueIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which other jobs make a record of a queue a duplicate (`docs/spec/consumers.md` section 5)."""

    key: str
    scope: Scope = "unfinished"
    window_ms: int | None = None


class RecordIn(msgspec.Struct, gc=False):
    """One record of an append. `data` is JSON as the client has sent it, and is not decoded.

    The garbage collector does not track it (`gc=False`): it cannot be part of a cycle, and the thousands in a request
    would start a collection.
    """

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: dict[str, str] | None = None
    delay_ms: int | None = None
    not_before: int | None = None
    priority: int | None = None
    unique: UniqueIn | None = None


class UniqueJob(NamedTuple):
    """The unique key of a record (`topics.queue.unique_keys.digest_of`). `window_ms` is 0 without a window."""

    digest: bytes
    scope: Scope
    window_ms: int


class JobFields(NamedTuple):
    """The job fields of the records of an append, column by column: delays (ms) and times (epoch ms), 0 for none,
    priorities, and unique keys, None if no record has one. `first` names the first field that there is."""

    first: str
    delays: list[int]
    not_before: list[int]
    priorities: bytes
    unique: list[UniqueJob | None] | None = None

    def part(self, records: slice) -> JobFields:
        """Return the columns of some of the records."""
        unique = self.unique and self.unique[records]
        return JobFields(self.first, self.delays[records], self.not_before[records], self.priorities[records], unique)

    def only(self, places: Sequence[int]) -> JobFields:
        """Return the columns of the records at these places."""
        return JobFields(
            self.first,
            [self.delays[i] for i in places],
            [self.not_before[i] for i in places],
            bytes(self.priorities[i] for i in places),
            self.unique and [self.unique[i] for i in places],
        )


class Fence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token under a name: holds if it is at least the highest that was seen (`docs/spec/consumers.md` section 1)."""

    name: str
    token: int


class Conditions(NamedTuple):
    """The conditions of an append or a commit of stages, judged in the step in which it gets its seqs
    (`docs/spec/consumers.md` section 1). `tag_seqs` are the expected seqs of the newest live records by tag, 0 for
    none."""

    head_seq: int | None = None
    tag_seqs: Mapping[str, int] = {}
    fence: Fence | None = None


class AppendRequest(msgspec.Struct, kw_only=True):
    """An append."""

    records: list[RecordIn]
    node: str | None = None
    idempotency_key: str | None = None
    create: bool | UnsetType = UNSET
    config: TopicConfigPatch | None = None
    disable_backpressure: bool = False
    conditions: Conditions | None = None
    """None if it has none."""


class CheckedAppend(AppendRequest, kw_only=True):
    """An append that was checked against the limits, with the columns of its records.

    Each column is in the order of `records`, and None if no record has a value for it. `datas` has the `data` of the
    records with line ends translated, `metas` their `meta` as compact JSON (empty for a record without), `nodes` and
    `tags` their `node` and `tag`. `records[i].data` is as the client sent it, unless line ends were translated.
    """

    datas: list[bytes]
    nodes: list[str | None] | None
    tags: list[str | None] | None
    metas: list[bytes] | None
    jobs: JobFields | None = None


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """A gap that a reader is told of: records `gap_from` to `gap_to` (inclusive) are gone (`docs/spec/api.md` section
    5)."""

    gap_from: int
    gap_to: int
    reason: Literal["cap", "ttl", "mixed", "recreated", "source_trim", "lost", "corrupt"]
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class Performance(msgspec.Struct, omit_defaults=True):
    """The `performance` object of an answer. A field that does not apply is UNSET and left out."""

    server_total_ms: float | UnsetType = UNSET
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET
    records_scanned: int | UnsetType = UNSET
    cold_segments_read: int | UnsetType = UNSET


class AppendResult(msgspec.Struct, kw_only=True):
    """The result of an append (`docs/spec/api.md` section 4)."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    duplicates: Mapping[int, int] | None = None
    """The records that were not stored, by their places, with the seqs of the jobs that were there; None for none. If
    there are only such records, both seqs and `count` are 0."""


class TransactionRequest(msgspec.Struct, kw_only=True):
    """A transaction (`docs/spec/consumers.md` section 1): one append for each topic, in the same order. The appends
    have no keys of their own."""

    topics: list[str]
    appends: list[AppendRequest]
    idempotency_key: str | None = None


class MemberResult(msgspec.Struct, kw_only=True):
    """The result of a transaction in one of its topics."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    created: bool


class TransactionResult(msgspec.Struct, kw_only=True):
    """The result of a transaction, in the order of the request."""

    appends: list[MemberResult]
    deduped: bool


class StageResult(msgspec.Struct, kw_only=True):
    """The result of an append to a stage (`docs/spec/pipeline.md` section 1). `count` is the number of records that the
    stage has after it."""

    topic: str
    stage: str
    count: int
    created: bool
    deduped: bool


class CommitResult(msgspec.Struct, kw_only=True):
    """The result of a commit of stages (`docs/spec/pipeline.md` section 1): the seqs of their records, which are in the
    order of the stages.

    `last_seq` is `first_seq - 1` if the stages have no records.
    """

    topic: str
    first_seq: int
    last_seq: int
    count: int
    deduped: bool


class ReadRequest(msgspec.Struct, kw_only=True):
    """A read (diff), with its limits applied (`docs/spec/api.md` section 5).

    `nodes` are the writers whose records are left out, `filter` is what the records must match. `gathered` is called
    with the number of bytes of records that are in memory for the answer, before more are read and before they are
    joined. It may raise an `ApiError`, which ends the read.
    """

    from_seq: int = 0
    epoch: int | None = None
    limit: int = 256
    nodes: frozenset[str] = frozenset()
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = 1 << 20
    filter: Filter | None = None
    gathered: Callable[[int], None] | None = None
    consumer: ConsumerRead | None = None
    """Where the read begins, instead of `from_seq`."""
    touch: bool = True
    """The read counts as a use of the topic, which raises its automatic priority."""


class ConsumerPatch(msgspec.Struct, frozen=True, kw_only=True):
    """The PUT of a consumer, checked. `start` counts at its creation only. A `ttl_ms` of None leaves that as it is, and
    so does a `filter` that is UNSET; with a `filter` of None the consumer has none."""

    start: ConsumerStart
    ttl_ms: int | None = None
    filter: Filter | UnsetType | None = UNSET


class GroupPatch(msgspec.Struct, frozen=True, kw_only=True):
    """The PUT of a group, checked. `start` counts at its creation only. Fields that are UNSET do not change; with a
    `filter` of None the group has none. Of `terms` only the fields that a group has are set."""

    start: ConsumerStart
    terms: TopicConfigPatch
    filter: Filter | UnsetType | None = UNSET
    max_unfinished: int | UnsetType = UNSET


class ConsumerStart(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a topic: at its beginning, at its end, behind `seq`, or before the first record of `ts` (epoch ms) or
    later."""

    place: Literal["earliest", "tail", "seq", "ts"]
    value: int = 0


class ConsumerState(msgspec.Struct, kw_only=True):
    """A consumer as answers show it (`docs/spec/consumers.md` section 3). `filter` is JSON (`Raw`), or None."""

    topic: str
    consumer: str
    epoch: int
    committed_seq: int
    lag: int
    last_commit_ts: int | None
    owner: str | None
    generation: int
    deadline: int | None
    ttl_ms: int
    filter: Any


class ConsumerMove(msgspec.Struct, kw_only=True):
    """Who moves a consumer, and which instance of the topic that is meant for; None where the request does not say."""

    generation: int | None = None
    epoch: int | None = None


class MovedConsumer(msgspec.Struct, kw_only=True):
    """The result of a commit or a seek."""

    topic: str
    consumer: str
    epoch: int
    committed_seq: int
    moved: bool
    lag: int


class SchedulePatch(msgspec.Struct, frozen=True, kw_only=True):
    """The PUT of a schedule. `record` is the JSON of the record, checked; a `paused` of None leaves that as it is."""

    topic: str
    record: str
    cron: str | None
    every_ms: int | None
    time_zone: str
    catch_up: Literal["none", "one", "all"]
    paused: bool | None


class ScheduleError(msgspec.Struct, frozen=True):
    """Why the last firing of a schedule was refused."""

    code: str
    message: str


class ScheduleState(msgspec.Struct, kw_only=True):
    """A schedule as answers show it (`docs/spec/consumers.md` section 5). Times are epoch ms. `record` is JSON."""

    schedule: str
    topic: str
    record: msgspec.Raw
    cron: str | None
    every_ms: int | None
    time_zone: str
    catch_up: str
    paused: bool
    created_ts: int
    next_ts: int | None
    last_ts: int | None
    last_error: ScheduleError | None


class ConsumerRead(msgspec.Struct, kw_only=True):
    """The part of a read that concerns its consumer: the position that is finished, and whether the returned records
    count as finished before they are sent."""

    consumer: str
    commit_seq: int | None = None
    generation: int | None = None
    before: bool = False

    @property
    def commits(self) -> bool:
        """Return True if the read moves the consumer."""
        return self.before or self.commit_seq is not None


class ReadResult(msgspec.Struct, kw_only=True):
    """The result of a read. `records` is the JSON of the records, joined by commas, without brackets."""

    topic: str
    epoch: int
    records: bytes
    count: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int
    scan_is_over: bool = False
    """It has looked at as many records as a read with a filter may, and there may be more."""


class WatchStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the watcher of a topic begins: after `from_seq` (0 if it is UNSET), at the head (`tail`), or at the
    position of a `consumer`. `epoch` is the instance of the topic that `from_seq` is of: a standby that does not know
    it yet waits for it. `filter` is the client's JSON and has not been checked."""

    from_seq: int | UnsetType = UNSET
    epoch: int | UnsetType = UNSET
    tail: bool = False
    consumer: str | None = None
    filter: msgspec.Raw | UnsetType = UNSET


class WatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The topics to watch, with the limits applied (`docs/spec/api.md` section 8). `nodes` are the writers whose
    records are left out."""

    topics: dict[str, WatchStart]
    prefixes: dict[str, WatchStart] = {}
    """Also the topics whose names begin so, and those that are made later. The start is that of topics that exist."""
    nodes: frozenset[str] = frozenset()
    limit: int = 256
    max_batch_bytes: int = 256 << 10
    heartbeat_ms: int = 15_000
    include_tags: bool = False
    include_meta: bool = True
    include_data: bool = True
    consistency: Consistency = "eventual"
    lenient: bool = False
    create: bool = False
    """Wait for topics that do not exist yet."""
    touch: bool = True
    """Delivery counts as a use of the topics, which raises their automatic priority."""
    filter: Filter | None = None
    """The filter that the records of all topics must match."""
    filters: Mapping[str, tuple[Filter, ...]] = {}
    """Filters that the records of single topics must all match besides: that of the topic in the request, and that of
    its consumer."""
    prefix_filters: Mapping[str, tuple[Filter, ...]] = {}
    """Filters that the records of the topics of single prefixes must match besides."""


class WatchedTopic(msgspec.Struct, kw_only=True):
    """The state of a topic that a watcher is told when it begins."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int | None
    """None if the topic does not exist yet."""


Guarantee = Literal["at_least_once", "exactly_once"]
RouterStart = Literal["tail", "earliest"]


class RouterPatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of a router: the fields that the request has; the others are UNSET. `filter` is a Filter, or the
    client's JSON value, which has not been checked."""

    source: str | UnsetType = UNSET
    dest: str | UnsetType = UNSET
    preserve_node: bool | UnsetType = UNSET
    preserve_tag: bool | UnsetType = UNSET
    create_dest: bool | UnsetType = UNSET
    filter: Any | UnsetType = UNSET
    allow_cycle: bool | UnsetType = UNSET
    guarantee: Guarantee | UnsetType = UNSET
    start: RouterStart | UnsetType = msgspec.field(default=UNSET, name="from")


class RouterState(msgspec.Struct, frozen=True, kw_only=True):
    """A router as answers show it (`docs/spec/api.md` section 7). `filter` is the match in its form with three
    elements, the JSON of a filter (`Raw`), or None."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: Any
    allow_cycle: bool
    guarantee: Guarantee
    start: RouterStart = msgspec.field(name="from")
    forwarded_total: int
    cursor_seq: int
    lag: int


class EvidenceResult(msgspec.Struct, kw_only=True):
    """A signed checkpoint of a topic (`docs/spec/evidence.md` section 1)."""

    topic: str
    epoch: int
    origin: str
    start_seq: int
    size: int
    root: str
    """Base64, like all hashes here."""
    note: str


class InclusionResult(msgspec.Struct, kw_only=True):
    """The proof that a record is in the tree of the first `size` leaves."""

    seq: int
    index: int
    size: int
    leaf: str
    hashes: list[str]


class ConsistencyResult(msgspec.Struct, kw_only=True):
    """The proof that a tree is the beginning of a larger one."""

    first: int = msgspec.field(name="from")
    second: int = msgspec.field(name="to")
    hashes: list[str]


class DeleteRequest(msgspec.Struct, kw_only=True):
    """The body of a deletion of records (`docs/spec/api.md` section 6). `match` is the client's JSON value and has not
    been checked."""

    dry_run: bool = False
    """Count the records, and delete none."""

    after_seq: int | UnsetType = UNSET
    before_seq: int | UnsetType = UNSET
    before_ts: int | UnsetType = UNSET
    match: Any | UnsetType = UNSET


class DeleteResult(msgspec.Struct, kw_only=True):
    """The result of a deletion of records: how many were deleted, and the state of the topic after it."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class LatestRequest(NamedTuple):
    """Which newest records to read: those of the tags that begin with `prefix` and come behind `after`, in order, at
    most `page_size` of about `max_batch_bytes` in all."""

    prefix: str
    after: str | None
    page_size: int
    max_batch_bytes: int
    include_tags: bool = True
    include_meta: bool = True
    touch: bool = True


class NewestRecords(NamedTuple):
    """A page of newest records. `records` is their JSON, joined by commas; `next_after` is the tag after which the next
    page begins, None if there is none. Changes after `head_seq` may be missing in it."""

    topic: str
    epoch: int
    records: bytes
    head_seq: int
    next_after: str | None


class QueueState(msgspec.Struct, kw_only=True):
    """The counters of a queue (`docs/spec/api.md` section 3)."""

    ready: int
    in_flight: int
    delayed: int
    dead_lettered: int
    paused: bool = False
    paused_until: int | UnsetType = UNSET
    """When the pause ends (epoch ms), if it does by itself."""


class GroupState(msgspec.Struct, kw_only=True):
    """A group as answers show it (`docs/spec/consumers.md` section 4). `filter` is JSON (`Raw`), or None."""

    topic: str
    group: str
    epoch: int
    floor: int
    """Everything up to it is finished, or gone."""
    lag: int
    missed: int
    """Records that were lost before they were finished."""
    unfinished: int
    """Records that it holds, and runs of finished ones above its floor: what `max_unfinished` bounds."""
    queue: QueueState
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    completed: str | None
    leases_durable: bool
    retry: RetryPolicy | None
    max_in_flight: int
    rate: ClaimRate | None
    order_by: OrderBy | None
    max_in_flight_per_key: KeyLimitConfig | None
    max_unfinished: int
    filter: msgspec.Raw | None


class TopicPlaces(msgspec.Struct, kw_only=True):
    """Where the seqs of a topic are that were ever given out: gone, or live in which place."""

    evicted: int
    """At the front: lost to caps, age or a crash."""
    deleted: int
    """At the front, above those: deleted."""
    between: int
    """Deleted or lost between live ones, and at the end."""
    cold: int
    """Live, in segments in the cold directory or the bucket."""
    hot: int
    """Live, in segments in the data directory."""
    log: int
    """Live, not in a segment yet."""
    memory: int
    """Of the live ones: whose bytes are in memory."""
    segments: int


class TopicState(msgspec.Struct, kw_only=True):
    """The state of a topic (`docs/spec/api.md` section 3)."""

    topic: str
    type: TopicType
    epoch: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    synced_seq: int
    bucket_seq: int | UnsetType = UNSET
    """The highest seq that a round in the bucket has; UNSET without a bucket."""
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueState | UnsetType = UNSET
    places: TopicPlaces | UnsetType = UNSET
    """Where its seqs are, if that was asked for."""
    fences: dict[str, int] | UnsetType = UNSET
    """The highest token that was seen, by name; UNSET if it has no fences."""


class TopicSummary(msgspec.Struct, kw_only=True):
    """One topic in a list of topics. `queue`: the counters of a queue, in a list of queues."""

    topic: str
    type: TopicType
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    durability: Durability
    effective_priority: int
    queue: QueueState | UnsetType = UNSET
