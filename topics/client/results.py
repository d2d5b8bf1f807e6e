"""The types of what the calls of the client return: the answers of `docs/spec/api.md`.

Responsible for names and types only. Fields that a newer daemon adds are ignored, and so is the field `performance` of
every answer: the daemon's metrics say more. Times are in ms since the epoch, durations in ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from topics.client.daemon_results import StandbyProgress

_NOTHING = msgspec.Raw()


class _RawBytes(Struct, forbid_unknown_fields=True, gc=False):
    """Raw bytes as data (`docs/spec/consumers.md` section 7). There is one way to write them, and this encodes so."""

    content: bytes = field(name="$bytes")
    content_type: str = field(name="$content_type")


_RAW_BEGIN = b'{"$bytes":"'
_raw_bytes = msgspec.json.Decoder(_RawBytes)


class Record(Struct, kw_only=True, gc=False):
    """One record of a topic."""

    topic: str = ""
    """Empty in the records of a `Page` and the jobs of a `Claimed`, which name the topic themselves."""
    seq: int = field(name="$seq")
    """Its number in the topic, from 1."""
    ts: int = field(name="$ts")
    """When it was appended, in ms since the epoch, by the daemon's clock."""
    tag: str | None = field(default=None, name="$tag")
    node: str | None = field(default=None, name="$node")
    """Who has appended it, if the writer gave a name."""
    raw: msgspec.Raw = field(default=_NOTHING, name="data")
    """The JSON of its data, byte for byte as it was appended; empty if the record was read without its data."""
    meta: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Any:
        """The data that was appended, decoded anew on each access. Raises ValueError if the record was read without its
        data."""
        if not bytes(self.raw):
            raise ValueError(f"record {self.seq} was read without its data")
        return msgspec.json.decode(self.raw)

    @property
    def content_type(self) -> str | None:
        """The type of the raw bytes that were appended; None if the data is any other JSON. Decoded anew on each
        access."""
        found = self._raw_bytes()
        return None if found is None else found.content_type

    @property
    def content(self) -> bytes:
        """The raw bytes that were appended, decoded anew on each access. Raises ValueError if the data is any other
        JSON, or if the record was read without its data."""
        found = self._raw_bytes()
        if found is None:
            raise ValueError(f"record {self.seq} has no raw bytes")
        return found.content

    def _raw_bytes(self) -> _RawBytes | None:
        data = bytes(self.raw)
        if not data.startswith(_RAW_BEGIN):
            return None
        try:
            found = _raw_bytes.decode(data)
        except msgspec.DecodeError:
            return None
        return found if msgspec.json.encode(found) == data else None

    def __repr__(self) -> str:
        named = f"{self.topic}:" if self.topic else ""
        return f"{type(self).__name__}({named}{self.seq}, {bytes(self.raw)[:100]!r})"


class Job(Record, kw_only=True, gc=False):
    """A record of a queue that is leased (`docs/spec/api.md` section 9)."""

    lease_id: str
    """Given to `ack`, `nack` and `extend` as one of `lease_ids`."""
    deadline: int
    """When the lease ends, in ms since the epoch, by the daemon's clock."""
    deliveries: int
    """How often the job was given out, this time included."""
    last_error: str | None = None
    """The `error` of its last nack that had one."""
    lost: bool = False
    """Set by a Worker when it knows that the lease has ended: another worker may have the job."""


class Unique(Struct):
    """The unique key of a job: it is not appended if a job with this key is there. `scope` says which jobs count:
    "queued" (it waits to be claimed), "unfinished" (it is neither acked nor dead), or "window" (it was appended within
    the last `window_ms`)."""

    key: str
    scope: Literal["queued", "unfinished", "window"] = "unfinished"
    window_ms: int | None = None


class NewRecord(Struct):
    """A record to be appended. `data` is a value that JSON can express, or `msgspec.Raw`, JSON that is sent as it is.
    `node` names the writer, and wins over the `node` of the call."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, str] | None = None
    delay_ms: int | None = None
    """Queues: the job cannot be claimed before so long after the append. `not_before` is a time instead (ms since the
    epoch); not both."""
    not_before: int | None = None
    priority: int | None = None
    """Queues: 0 to 9, default 5; jobs of a higher one are claimed first."""
    unique: Unique | None = None
    """Queues: when the job is a duplicate. Only for `append`."""


class NewAppend(Struct):
    """One append of a transaction. Its fields mean what they mean in an append (`Client.append`)."""

    topic: str
    records: Iterable[object]
    node: str | None = None
    create: bool | None = None
    config: Mapping[str, object] | None = None
    expected_head_seq: int | None = None
    expected_tag_seqs: Mapping[str, int] | None = None
    fence: tuple[str, int] | None = None


class Tombstone(Struct, kw_only=True):
    """The records `gap_from` to `gap_to`, both included, are gone, and no call has deleted them (`docs/spec/api.md`
    section 5)."""

    topic: str = ""
    gap_from: int
    gap_to: int
    reason: str
    """Why they are gone, such as `ttl`, `cap` or `recreated`: the topic was deleted and made again."""
    missed_estimate: int = 0
    """Seqs of the gap, less those of records that are known to have been deleted."""
    earliest_seq: int
    head_seq: int


class TopicDeleted(Struct, kw_only=True):
    """The topic was deleted while it was followed; no more values of it come. `head_seq` was its last seq."""

    topic: str
    head_seq: int


class TopicAdded(Struct, kw_only=True):
    """A topic whose name begins with a prefix that is watched was made; its records follow from the first one."""

    topic: str
    epoch: int
    head_seq: int
    earliest_seq: int


class TopicsLeftOut(Struct, kw_only=True):
    """`count` topics begin with a prefix that is watched and are not followed, because the daemon allows no more topics
    in one watch (`TOPICS_MAX_WATCH_TOPICS`). `topics` are the first of them."""

    topics: list[str]
    count: int


class CaughtUp(Struct, kw_only=True):
    """All records up to `head_seq`, the head of the topic, have been delivered."""

    topic: str
    head_seq: int


# --- topics ----------------------------------------------------------------------------------------------------------


class TopicConfig(Struct, kw_only=True):
    """All settings of a topic (`docs/spec/api.md` section 2). Times are in ms."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: str
    durability: str
    durable: bool
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    completed: str | None = None
    leases_durable: bool
    retention: str = "limits"
    retry: dict[str, Any] | None = None
    priority_aging_ms: int = 60_000
    max_in_flight: int = 0
    rate: dict[str, int] | None = None
    max_in_flight_per_key: dict[str, Any] | None = None
    order_by: str | None = None
    schema: dict[str, Any] | None = None
    segment_max_events: int | None = None
    segment_max_bytes: int | None = None
    segment_max_age_ms: int | None = None
    compression: Literal["zstd", "off"] | None = None
    evidence: bool = False
    keep_per_tag: int = 0
    null_ttl_ms: int = 86_400_000


class TopicChanged(Struct, kw_only=True):
    """A topic was created or its settings were changed. `config` are all its settings from now on."""

    topic: str
    created: bool
    config: TopicConfig


class QueueCounts(Struct, kw_only=True):
    """How many jobs of a queue may be claimed, are leased, and wait for their delay to end; and how many have gone to
    the dead-letter topic so far."""

    ready: int
    in_flight: int
    delayed: int
    dead_lettered: int
    paused: bool = False
    paused_until: int | None = None
    """When the pause ends by itself, in ms since the epoch."""


class RedriveError(Struct, kw_only=True):
    """Why a redrive has failed."""

    code: str
    message: str


class RedriveState(Struct, kw_only=True):
    """How far the redrive of a dead-letter topic has come."""

    topic: str
    state: str
    """`running`, `done`, `stopped`, `failed`, or `idle` for none since the start of the daemon."""
    moved: int
    left: int
    """Letters that it has looked at and that are still there."""
    reasons: dict[str, int] = {}
    """How many of these stay for which reason."""
    error: RedriveError | None = None


class TopicState(Struct, kw_only=True):
    """The settings and the state of a topic (`docs/spec/api.md` section 3)."""

    topic: str
    type: str
    epoch: int
    """The instance of the topic: another number once it was deleted and made again."""
    head_seq: int
    """The seq of the last record that was appended; 0 before the first."""
    earliest_seq: int
    """The seq of the first record that may still be there."""
    next_seq: int
    count: int
    """Live records."""
    bytes: int
    synced_seq: int
    """Records up to this seq are known to be on disk; 0 for an `ephemeral` topic."""
    bucket_seq: int | None = None
    """Records up to this seq are in the bucket; 0 for an `ephemeral` topic, None if the daemon has no bucket."""
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounts | None = None
    """None for a log."""
    fences: dict[str, int] = {}
    """The highest token that was seen under the name of each fence."""
    places: dict[str, int] | None = None
    """How many seqs are gone, and where the live ones are, if that was asked for."""


class TopicSummary(Struct, kw_only=True):
    """A topic in a list; the fields are those of `TopicState`."""

    topic: str
    type: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    durability: str
    effective_priority: int
    queue: QueueCounts | None = None
    """The counters of a queue, in a list of queues."""


class TopicPage(Struct, kw_only=True):
    """A page of a list of topics."""

    topics: list[TopicSummary]
    next_cursor: str | None = None
    """The `cursor` of the next page; None on the last page."""


class TopicDeletion(Struct, kw_only=True):
    """A topic was deleted, and with it the routers `routers_removed`. `deleted` is False if it did not exist."""

    topic: str
    deleted: bool
    routers_removed: list[str]


# --- records ---------------------------------------------------------------------------------------------------------


class Appended(Struct, kw_only=True):
    """Records were appended, with the seqs `first_seq` to `last_seq`; None if all were duplicates."""

    topic: str
    first_seq: int | None
    last_seq: int | None
    seqs: list[int] = []
    """Each seq; of a duplicate, that of the job that is there. Empty with `return_seqs=False`."""
    duplicates: list[int] = []
    """The places of the records that were not appended, because a job with their unique key is there."""
    head_seq: int
    count: int
    created: bool
    """The append has created the topic."""
    deduped: bool
    """Nothing was appended, because an earlier append with this idempotency key has. The seqs are those of that one."""


class Ingested(Struct, kw_only=True):
    """An upload is complete."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    """Records that this upload has appended."""
    batches: int
    """Atomic batches in which the daemon took the upload."""
    head_seq: int
    created: bool
    """The upload has created the topic."""
    deduped_batches: int
    """Batches that were not appended, because an earlier upload with the same key has appended them."""


class Staged(Struct, kw_only=True):
    """Records were appended to a stage, which holds `count` records now."""

    topic: str
    stage: str
    count: int


class MemberAppended(Struct, kw_only=True):
    """The records that a transaction has appended to one of its topics: the seqs `first_seq` to `last_seq`."""

    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] = []
    count: int
    created: bool
    """The transaction has created the topic."""


class TransactionCommitted(Struct, kw_only=True):
    """All records of a transaction were stored."""

    appends: list[MemberAppended]
    """In the order of the call."""
    deduped: bool
    """Nothing was appended, because an earlier transaction with this idempotency key has. The seqs are those of that
    one."""


class Committed(Struct, kw_only=True):
    """Stages were published as the records `first_seq` to `last_seq` of their topic."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    deduped: bool
    """Nothing was published, because an earlier commit with this key has. The seqs are those of that one."""


class FenceDeletion(Struct, kw_only=True):
    """A fence was removed. `deleted` is False if it did not exist."""

    topic: str
    fence: str
    deleted: bool


class Sealed(Struct, kw_only=True):
    """The active segment of a topic was sealed. `segments` is how many the topic has."""

    topic: str
    segments: int


class StageDeletion(Struct, kw_only=True):
    """A stage was dropped. `deleted` is False if it did not exist."""

    topic: str
    stage: str
    deleted: bool


class Page(Struct, kw_only=True):
    """The result of one read (`docs/spec/api.md` section 5)."""

    topic: str
    epoch: int
    records: list[Record]
    """May be empty although more records follow: `caught_up` decides."""
    next_from_seq: int
    """The `from_seq` of the next page."""
    next_before_seq: int | None = None
    """With `before_seq`: the `before_seq` of the next page."""
    head_seq: int
    earliest_seq: int
    caught_up: bool
    """No more records follow for the moment."""
    tombstone: Tombstone | None
    """Records before the first of `records` are gone, and no call has deleted them."""
    lag: int
    """Seqs between `next_from_seq` and the head."""


class RecordsDeletion(Struct, kw_only=True):
    """`deleted` records were deleted, or with `dry_run` would be; the other fields are the state of the topic after
    that."""

    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


# --- routers ---------------------------------------------------------------------------------------------------------


class RouterFields(Struct, kw_only=True):
    """The settings of a router (`docs/spec/api.md` section 7). `from_` is `from` in the daemon's answer."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: Any
    allow_cycle: bool
    guarantee: str
    from_: str = field(name="from")


class RouterChanged(RouterFields, kw_only=True):
    """A router was created or its settings were changed."""

    created: bool


class RouterState(RouterFields, kw_only=True):
    """The settings and the progress of a router."""

    forwarded_total: int
    """Records that it has copied so far."""
    cursor_seq: int
    """The last seq of its source that it has dealt with."""
    lag: int
    """Seqs of its source that it has not dealt with."""


class RouterPage(Struct, kw_only=True):
    """A page of a list of routers."""

    routers: list[RouterState]
    next_cursor: str | None = None
    """The `cursor` of the next page; None on the last page."""


class RouterDeletion(Struct, kw_only=True):
    """A router was deleted. `deleted` is False if it did not exist."""

    router: str
    deleted: bool


# --- groups ----------------------------------------------------------------------------------------------------------


class GroupState(Struct, kw_only=True):
    """A group of a log: how far it is, and its settings."""

    topic: str
    group: str
    epoch: int
    floor: int
    """Everything up to this seq is finished, or gone."""
    lag: int
    """Seqs from the floor to the head."""
    missed: int
    """Records that were lost before the group had finished them."""
    unfinished: int
    """Records that it holds, and runs of finished ones above its floor: at most `max_unfinished`."""
    queue: QueueCounts
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    completed: str | None = None
    """The topic to which the results of acks are delivered; None: they have none."""
    leases_durable: bool
    max_unfinished: int
    retry: dict[str, Any] | None = None
    """How records are delayed that have failed; None for not."""
    max_in_flight: int = 0
    """Most records that are leased at a time; 0: unlimited."""
    rate: dict[str, int] | None = None
    """Most records that are claimed in some time; None: unlimited."""
    order_by: str | None = None
    """The key of a record, where those of one key are claimed one at a time, in their order; None: no such order."""
    max_in_flight_per_key: dict[str, Any] | None = None
    """Most records with one tag or node (`by`) that are leased at a time (`max`); None: unlimited."""
    filter: Any
    """Only records that match it; None for all."""


class GroupPage(Struct, kw_only=True):
    """A page of a list of groups."""

    groups: list[GroupState]
    next_cursor: str | None = None
    """The `cursor` of the next page; None on the last page."""


class GroupDeletion(Struct, kw_only=True):
    """A group was deleted. `deleted` is False if it did not exist."""

    topic: str
    group: str
    deleted: bool


# --- consumers -------------------------------------------------------------------------------------------------------


class ConsumerState(Struct, kw_only=True):
    """A named consumer: its position, and who owns it."""

    topic: str
    consumer: str
    epoch: int
    committed_seq: int
    """It has finished everything up to this seq."""
    lag: int
    last_commit_ts: int | None
    owner: str | None
    generation: int
    deadline: int | None
    """When others may acquire it, in ms since the epoch; None without an owner."""
    ttl_ms: int
    filter: Any = None


class ConsumerPage(Struct, kw_only=True):
    """A page of a list of consumers."""

    consumers: list[ConsumerState]
    next_cursor: str | None = None
    """The `cursor` of the next page; None on the last page."""


class ConsumerDeletion(Struct, kw_only=True):
    """A consumer was deleted. `deleted` is False if it did not exist."""

    topic: str
    consumer: str
    deleted: bool


class ConsumerMoved(Struct, kw_only=True):
    """Where a consumer is after a commit or a seek. `moved` is False if it was there, or further, already."""

    topic: str
    consumer: str
    epoch: int
    committed_seq: int
    moved: bool
    lag: int


class ConsumerAcquired(Struct, kw_only=True):
    """A consumer is owned, under this generation, until `deadline` (ms since the epoch) at least."""

    topic: str
    consumer: str
    epoch: int
    generation: int
    deadline: int


class ConsumerReleased(Struct, kw_only=True):
    """A consumer was given up. `released` is False if the generation did not own it."""

    topic: str
    consumer: str
    released: bool


# --- schedules -------------------------------------------------------------------------------------------------------


class ScheduleError(Struct, kw_only=True):
    """Why the last firing of a schedule was refused."""

    code: str
    message: str


class ScheduleState(Struct, kw_only=True):
    """A schedule. Times are ms since the epoch."""

    schedule: str
    topic: str
    record: Any
    """The record that it appends: a dict with `data`, and with `tag`, `node` and `meta` if it has them."""
    cron: str | None
    every_ms: int | None
    time_zone: str
    catch_up: str
    paused: bool
    created_ts: int
    next_ts: int | None
    """When it fires next; in the past if that is late; None for never."""
    last_ts: int | None
    """The time that it has fired for last."""
    last_error: ScheduleError | None = None


class SchedulePage(Struct, kw_only=True):
    """A page of a list of schedules."""

    schedules: list[ScheduleState]
    next_cursor: str | None = None
    """The `cursor` of the next page; None on the last page."""


class ScheduleDeletion(Struct, kw_only=True):
    """A schedule was deleted. `deleted` is False if it did not exist."""

    schedule: str
    deleted: bool


class ScheduleRun(Struct, kw_only=True):
    """The record of a schedule was appended, under this seq."""

    schedule: str
    topic: str
    seq: int


# --- queues ----------------------------------------------------------------------------------------------------------


class Claimed(Struct, kw_only=True):
    """`count` jobs were leased, in the order of their seqs, or of their priorities if these differ. `ready` more may be
    claimed."""

    topic: str
    claimed: list[Job]
    count: int
    ready: int
    paused: bool = False
    """The queue gives out no jobs now."""
    wants_results: bool = False
    """The results of acks are delivered."""


class Acked(Struct, kw_only=True):
    """`acked` jobs were deleted, or will be when their results are delivered. `ready` and `in_flight` (leased) jobs are
    left in the queue."""

    topic: str
    acked: int
    skipped: list[int]
    """Seqs that the node does not hold, or not under the given leases."""
    ready: int
    in_flight: int


class Nacked(Struct, kw_only=True):
    """`nacked` jobs were given back; the other fields are as in `Acked`."""

    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(Struct, kw_only=True):
    """The leases of `extended` jobs were extended; `skipped` is as in `Acked`."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]
    """When the leases end, by seq, in ms since the epoch, by the daemon's clock."""


# --- watching --------------------------------------------------------------------------------------------------------


class WatchedTopic(Struct, kw_only=True):
    """A topic of a watch session: the session delivers what comes after `from_seq`."""

    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int | None
    """None: the topic does not exist yet, and the session waits for it."""


class Watch(Struct, kw_only=True):
    """A watch session (`docs/spec/api.md` section 8). Its `stream_url` can be opened with the API key that made it."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]


# --- the daemon ------------------------------------------------------------------------------------------------------


class Health(Struct, kw_only=True):
    """The daemon runs."""

    status: str
    version: str
    uptime_ms: int


class Ready(Struct, kw_only=True):
    """The daemon serves, with `topics` topics. `standby` is None unless it follows an owner."""

    status: str
    topics: int
    standby: StandbyProgress | None = None


class Checkpoint(Struct, kw_only=True):
    """A checkpoint was taken: the files of the data directory that belong to it, and up to where the files of the
    write-ahead log count (`docs/spec/api.md` section 11)."""

    files: list[str]
    position: Any


Metric = float | list[dict[str, Any]]
"""The value of a metric; or, of a metric with labels, `{labels, value}` for each set of labels."""
