"""The interfaces of the running daemon that a checkpoint needs: a topic, its pending commits, and the registry.

The engine has the classes (`topics.engine.topic`, `topics.engine.registry`); storage knows them by these protocols
alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import trio

from topics.evidence.topic_tree import TopicTree
from topics.log.copies import CopyTable
from topics.runtime.instant import Instant
from topics.schedules.schedules import Schedules
from topics.storage.cache.span_loader import SpanOwner
from topics.storage.snapshots.disk_state import DiskState
from topics.storage.snapshots.group_dump import FrozenGroups
from topics.storage.snapshots.queue_dump import FrozenQueue
from topics.storage.snapshots.snapshot import TopicPart
from topics.storage.store import ReplayStart
from topics.storage.wal.wal_files import LogPosition


class LiveCommit(Protocol):
    """A published commit that has not been written yet."""

    last_seq: int
    records: int
    file: int
    offset: int
    end: LogPosition | None
    frame_lens: array[int] | None


class LiveQueue(Protocol):
    """The jobs of a queue topic of the running daemon."""

    def freeze(self, now: Instant, *, keeps_jobs: bool = True) -> FrozenQueue:
        """The jobs as of now, in one step; without `keeps_jobs` only what the queue has counted."""
        ...


class LiveGroups(Protocol):
    """The groups of a topic of the running daemon."""

    def freeze(self, now: Instant) -> FrozenGroups:
        """The groups as of now, in one step."""
        ...


class LiveTopic(SpanOwner, Protocol):
    """The interface of a topic of the running daemon."""

    copies: CopyTable | None
    on_disk: DiskState
    tree: TopicTree | None
    """Its Merkle tree, if it has evidence."""

    @property
    def queue(self) -> LiveQueue | None:
        """Its jobs, if it is a queue."""
        ...

    @property
    def groups(self) -> LiveGroups | None:
        """Its groups, if it has had any."""
        ...

    @property
    def unwritten(self) -> Sequence[LiveCommit] | None:
        """Commits that were published before they were written, oldest first."""
        ...

    def unsettled(self) -> trio.Event | None:
        """The event to wait for before it shows all that the disk holds of it."""
        ...

    def dump_part(self) -> TopicPart:
        """Its part as of now, but for what its files and its jobs are."""
        ...

    def copies_stored(self, seq: int) -> None:
        """Copies up to `seq` need nobody else's bytes any more."""
        ...


class TopicSource(Protocol):
    """Where the topics are found (the registry)."""

    by_id: dict[int, Any]
    next_topic_id: int

    schedules: Schedules

    @property
    def changed(self) -> set[Any]:
        """Topics whose part has to be made anew."""
        ...

    @property
    def attention(self) -> set[Any]:
        """Topics that the reclaimer has to look at."""
        ...

    @property
    def delayed(self) -> Iterable[Any]:
        """Topics with something in the log that does not show in them yet."""
        ...

    def starts_in_doubt(self) -> Mapping[int, ReplayStart]:
        """By shard, the position behind which no replay may begin because of transactions that are in doubt."""
        ...

    def now_ms(self) -> int:
        """The retention clock."""
        ...

    def instant(self) -> Instant:
        """Now, by the monotonic clock and by that of windows."""
        ...

    def account(self, topic: Any) -> None:
        """Bring the totals up to date after a change of a topic's log."""
        ...

    def copied_files(self) -> set[int]:
        """Ids of the files that copies in other topics are made of."""
        ...
