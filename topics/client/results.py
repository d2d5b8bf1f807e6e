"""What the calls of the client return: the answers of `docs/spec/api.md`, as types.

Responsible for names and types only. Fields that a newer daemon adds are ignored. The block `performance` is left out,
except that nothing is lost by it: whoever measures asks the daemon's metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

_NOTHING = msgspec.Raw()


class Record(Struct, kw_only=True, gc=False):
    """One record, as it was read."""

    topic: str = ""
    seq: int = field(name="$seq")
    ts: int = field(name="$ts")
    """When it was appended, in ms since the epoch."""
    tag: str | None = field(default=None, name="$tag")
    node: str | None = field(default=None, name="$node")
    raw: msgspec.Raw = field(default=_NOTHING, name="data")
    """The JSON of its data, byte for byte as it was written; empty if it was read without its data."""
    meta: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Any:
        """What was appended, decoded anew with each look. Raises ValueError if it was read without its data."""
        if not bytes(self.raw):
            raise ValueError(f"record {self.seq} was read without its data")
        return msgspec.json.decode(self.raw)

    def __repr__(self) -> str:
        named = f"{self.topic}:" if self.topic else ""
        return f"{type(self).__name__}({named}{self.seq}, {bytes(self.raw)[:100]!r})"


class Job(Record, kw_only=True, gc=False):
    """A record that is leased (`docs/spec/api.md` section 9)."""

    lease_id: str
    deadline: int
    """When the lease ends, in ms since the epoch, by the daemon's clock."""
    deliveries: int
    """How often it was given out, this time included."""
    lost: bool = False
    """Set by a Worker when the lease is known to be over: somebody else may have the job."""


class NewRecord(Struct):
    """A record to be appended. `data` is anything that JSON can say, or `msgspec.Raw`: JSON that is sent as it is."""

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, str] | None = None


class Tombstone(Struct, kw_only=True):
    """The records `gap_from` to `gap_to`, both included, are gone, and nobody has deleted them (`docs/spec/api.md`
    section 5)."""

    topic: str = ""
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0
    earliest_seq: int
    head_seq: int


class TopicDeleted(Struct, kw_only=True):
    """The topic was deleted while it was followed."""

    topic: str
    head_seq: int


class CaughtUp(Struct, kw_only=True):
    """There was no more to read for the moment."""

    topic: str
    head_seq: int


# --- topics ----------------------------------------------------------------------------------------------------------


class TopicConfig(Struct, kw_only=True):
    """All settings of a topic (`docs/spec/api.md` section 2)."""

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
    leases_durable: bool


class TopicChanged(Struct, kw_only=True):
    topic: str
    created: bool
    config: TopicConfig


class QueueCounts(Struct, kw_only=True):
    ready: int
    in_flight: int
    delayed: int
    dead_lettered: int


class TopicState(Struct, kw_only=True):
    topic: str
    type: str
    epoch: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    synced_seq: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounts | None = None
    """None for a log."""


class TopicSummary(Struct, kw_only=True):
    """One line of a list."""

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


class TopicPage(Struct, kw_only=True):
    topics: list[TopicSummary]
    next_cursor: str | None = None
    """For the next page; None on the last."""


class TopicDeletion(Struct, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]


# --- records ---------------------------------------------------------------------------------------------------------


class Appended(Struct, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    seqs: list[int] = []
    """Empty if they were not asked for."""
    head_seq: int
    count: int
    created: bool
    deduped: bool


class Ingested(Struct, kw_only=True):
    """An upload. `count` are the records that this call stored."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    batches: int
    head_seq: int
    created: bool
    deduped_batches: int
    """Batches that an earlier upload with the same key had stored."""


class Staged(Struct, kw_only=True):
    """`count` is what the stage holds by now."""

    topic: str
    stage: str
    count: int


class Committed(Struct, kw_only=True):
    topic: str
    first_seq: int
    last_seq: int
    count: int
    deduped: bool
    """Whether an earlier commit with this key had published them."""


class StageDeletion(Struct, kw_only=True):
    topic: str
    stage: str
    deleted: bool


class Page(Struct, kw_only=True):
    """One read (`docs/spec/api.md` section 5). `next_from_seq` is where the next one begins; `caught_up`, and never an
    empty `records`, says that there is no more."""

    topic: str
    epoch: int
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    tombstone: Tombstone | None
    lag: int


class RecordsDeletion(Struct, kw_only=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


# --- routers ---------------------------------------------------------------------------------------------------------


class RouterFacts(Struct, kw_only=True):
    """What all answers about a router have."""

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


class RouterChanged(RouterFacts, kw_only=True):
    created: bool


class RouterState(RouterFacts, kw_only=True):
    forwarded_total: int
    cursor_seq: int
    lag: int


class RouterPage(Struct, kw_only=True):
    routers: list[RouterState]
    next_cursor: str | None = None


class RouterDeletion(Struct, kw_only=True):
    router: str
    deleted: bool


# --- queues ----------------------------------------------------------------------------------------------------------


class Claimed(Struct, kw_only=True):
    topic: str
    claimed: list[Job]
    count: int
    ready: int


class Acked(Struct, kw_only=True):
    topic: str
    acked: int
    skipped: list[int]
    """Seqs that this node does not hold (any more)."""
    ready: int
    in_flight: int


class Nacked(Struct, kw_only=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(Struct, kw_only=True):
    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[int, int]
    """By seq, in ms since the epoch."""


# --- watching --------------------------------------------------------------------------------------------------------


class WatchedTopic(Struct, kw_only=True):
    from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int | None
    """None: there is no such topic yet, and the session waits for it."""


class Watch(Struct, kw_only=True):
    """A watch session. Who has its `stream_url` still needs the key that made it."""

    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]


# --- the daemon ------------------------------------------------------------------------------------------------------


class Health(Struct, kw_only=True):
    status: str
    version: str
    uptime_ms: int


class Ready(Struct, kw_only=True):
    status: str
    topics: int


class Checkpoint(Struct, kw_only=True):
    files: list[str]
    position: Any


Metric = float | list[dict[str, Any]]
"""A number, or `{labels, value}` for each set of labels."""
