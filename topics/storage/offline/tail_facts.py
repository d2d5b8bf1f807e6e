"""The results of `inspect --diverged` about the end of a log, as plain values. Times are epoch ms, ranges of seqs
inclusive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from topics.storage.offline.findings import Finding
from topics.storage.wal.frames import StoredRecord
from topics.storage.wal.wal_files import LogPosition


@dataclass(slots=True)
class TopicTail:
    """The frames of one topic at the end of the log. `name`, `type` and `durability` are None if nothing says them."""

    id: int
    name: str | None
    type: str | None = None
    durability: str | None = None
    is_stage: bool = False
    """True if it is a stage: its records are private until a commit appends them to another topic."""
    records: int = 0
    """Records that were appended, also by commits of stages. Copies that routers have made are not among them,
    but for those of records of `ephemeral` topics."""
    bytes: int = 0
    """Of their data and meta."""
    first_seq: int = 0
    last_seq: int = 0
    first_ts: int = 0
    last_ts: int = 0
    synced: int = 0
    """How many of them the disk had for certain: a later frame or file of the log says so."""
    gone: int | None = 0
    """How many of them were deleted, acked or evicted again, or belong to a transaction that was undone; None if that
    is not known, because the directory cannot be recovered."""
    copies: int = 0
    """Copies that routers have made."""
    acked: int = 0
    """Jobs that were acked or moved, in the queue and in its groups."""
    frames: dict[str, int] = field(default_factory=dict)
    """All other changes: frames by type. Those of which the daemon keeps its books are not among them."""


@dataclass(frozen=True, slots=True)
class ShardTail:
    """Where the end of the log of one shard begins, and the bytes of whole batches behind that."""

    shard: int
    begin: LogPosition
    bytes: int


class TailFacts(NamedTuple):
    """The content of the log of a directory behind given places."""

    shards: list[ShardTail]
    topics: list[TopicTail]
    """In the order of their names."""
    others: dict[str, int]
    """Frames that are about no topic, by type: of schedules."""
    refused: str | None
    """Why a start would be refused, if it would be."""
    findings: list[Finding]
    """Bytes that could not be read (damage), and frames that do not count (notes)."""


class TailRecord(NamedTuple):
    """One record of the end of a log."""

    topic_id: int
    topic: str | None
    record: StoredRecord
    not_before: int = 0
    """Of a job: it cannot be claimed before (epoch ms); 0 for none."""
    priority: int | None = None
    """Of a job, if it is not the usual one."""
