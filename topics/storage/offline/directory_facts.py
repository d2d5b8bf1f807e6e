"""The results of `inspect` about a data directory, as plain values. Times are epoch ms, ranges of seqs inclusive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from topics.storage.offline.topic_parts import StoredHole


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """One snapshot file. If there is a `problem`, nothing else of it is known."""

    path: str
    number: int
    bytes: int
    problem: str | None
    topics: int = 0
    shards: int = 0
    clock: int = 0
    positions: dict[int, list[int]] | None = None
    """Ordinal of the file, offset, ordinal of the frame there, by shard."""


@dataclass(frozen=True, slots=True)
class WalFileFacts:
    """One WAL file. Its frames end at offset `used`; `end` says how: "file end", "clean stop", "open" or "bad
    bytes"."""

    path: str
    ordinal: int
    bytes: int
    used: int
    frames: int
    types: dict[str, int]
    first_ts: int
    last_ts: int
    end: str


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """The log of one shard."""

    shard: int
    directory: str
    files: list[WalFileFacts]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment. `live` is None if no span points to it any more: its files have still to be removed."""

    first_seq: int
    last_seq: int
    tier: str
    sealed: bool
    bytes: int
    records: int
    live: int | None
    opened_ms: int
    stored_bytes: int
    """Of a packed segment, the bytes of the packed file; else those of `bytes`."""
    sha256: str | None
    """Of the unpacked form, with the delete flags taken as zero, in hex; None if it is not known."""


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """A router that leads into a topic. `cursor` is the last seq of the source that it has copied or skipped; `source`
    is None if the source's name is unknown."""

    name: str
    source_id: int
    source: str | None
    cursor: int
    copies: int
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The jobs of a queue. Leases and delays count as they were written, even if their time is over."""

    ready: int
    leased: int
    delayed: int
    parked: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group of a log: its floor, runs of finished seqs above that, its jobs, and the records that it has missed."""

    name: str
    floor: int
    runs: int
    missed: int
    queue: QueueFacts


@dataclass(frozen=True, slots=True)
class EvidenceFacts:
    """The Merkle tree of a topic: its uuid, the seq of its first leaf, how many leaves it has, and how many of them are
    in `.mrk` files. `key` is the hash of the key that signs its checkpoints."""

    tree: str
    start_seq: int
    leaves: int
    stored: int
    key: str


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. `unstored` counts records that are in the WAL only; `derived` those of them that are copies pointing
    to frames of other topics. `keeps_origins`: a router into it is `exactly_once`."""

    id: int
    name: str
    shard: int
    type: str
    durability: str
    head_seq: int
    earliest_seq: int
    evict_floor: int
    ceiling: int
    count: int
    bytes: int
    last_ts: int
    unstored: int
    derived: int
    routers: list[RouterFacts]
    keeps_origins: bool
    queue: QueueFacts | None
    groups: list[GroupFacts]
    fences: dict[str, int]
    evidence: EvidenceFacts | None
    holes: list[StoredHole]
    segments: list[SegmentFacts]


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A data directory. `refused` is the reason why a start would be refused, None if it would not; if it would, the
    topics are as of their parts."""

    root: str
    cold: str | None
    format: dict[str, int]
    holder: str | None
    refused: str | None
    snapshots: list[SnapshotFacts]
    shards: list[ShardFacts]
    topics: list[TopicFacts]
    bucket: dict[str, Any] | None = None
    """The content of `meta/bucket`; None if there is none. `problem` stands alone if it cannot be read."""
