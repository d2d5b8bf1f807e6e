"""The content of a base in the bucket, as of one moment (`docs/design/bucket.md` section 4): plain values, made by
`checkpoint_files`. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

from topics.storage.evidence.leaf_files import LeafFile
from topics.storage.segments.topic_segments import Segment, Tier
from topics.storage.wal.wal_files import LogPosition


class CapturedSegment(NamedTuple):
    """A segment as it was then. The object may have been sealed or replaced since, while no hold lasts."""

    segment: Segment
    n: int
    data_bytes: int
    sealed: bool
    tier: Tier
    salt: int | None


class CapturedTopic(NamedTuple):
    """A topic as it is on disk."""

    id: int
    part: bytes
    """Its `TopicPart`, encoded."""
    has_manifest: bool
    segments: tuple[CapturedSegment, ...]
    """Those that have files, by their first seq."""
    tree: str = ""
    """The uuid of its Merkle tree, if it has evidence."""
    leaves: tuple[LeafFile, ...] = ()
    """The files with the leaves of that tree."""


class BaseCapture(NamedTuple):
    """Everything but the bytes of files, which a hold keeps as they are."""

    hold: object
    """By which `Compactor.prolong` knows the hold."""
    snapshot: dict[str, Any]
    """The fields of `Snapshot` without `topics`. `positions` are those of the newest checkpoint."""
    cut: list[LogPosition]
    """By shard: where the files of the log begin that this does not need."""
    wal_files: list[tuple[int, int]]
    """The files of the log that a replay reads, complete: shard and ordinal."""
    topics: list[CapturedTopic]
    """By id. A topic without a part is not in it: the log has all of it."""
    foreign: list[tuple[int, int]]
    """Segments of deleted topics that copies still point to: topic id and first seq."""
