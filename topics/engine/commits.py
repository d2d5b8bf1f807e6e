"""The way of a decided change into its shard: is the shard there, is there room, into the queue, how long it took.

Used by everything that writes. What a change consists of is decided by `topics.engine.operations.append`,
`topics.engine.operations.delete` and `topics.engine.operations.topic_lifecycle`; what becomes of a commit from then on
is said in `topics.engine.topic` and `topics.storage.wal.shard_writer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topics.engine.registry import Registry
from topics.engine.topic import Commit, Gate, Topic
from topics.errors import ApiError, read_only
from topics.model import Performance
from topics.runtime.withdrawal import interruptible
from topics.storage.store import Store
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import NOTHING, FrameType, Unsealed, seal_batch
from topics.storage.wal.shard_writer import ShardWriter


class Commits:
    """See the module."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self._store = store
        self._registry = registry
        self.saturated = False
        """Set by the governor: nobody need wait for room, the answer is 429 at once."""

    def writer(self, topic: Topic) -> ShardWriter:
        """The writer of the topic's shard."""
        return self._store.writers[topic.shard]

    def check_writable(self, topic: Topic) -> ShardWriter:
        """The writer of the topic's shard. Raises `503 read_only` when the shard has failed."""
        writer = self._store.writers[topic.shard]
        if writer.failed is not None:
            raise writer.failed
        return writer

    def check_all_writable(self) -> None:
        """Before topics are made of which nobody knows yet where they will be. Raises `503 read_only` when a shard has
        failed or the disk is nearly full."""
        for writer in self._store.writers:
            if writer.failed is not None:
                raise writer.failed
        self.check_space(*self._store.writers)

    def check_space(self, *writers: ShardWriter) -> None:
        """Before anything is appended: raises `503 read_only` when the disk is nearly full, or has no room for what
        one of these shards needs."""
        shortage = self._store.space.shortage
        if shortage is not None:
            raise read_only(shortage)
        for writer in writers:
            if writer.stall.refusal is not None:
                raise writer.stall.refusal

    async def admit(self, writer: ShardWriter, budget_ms: int | None) -> float:
        """Wait for room in a shard's queue; the milliseconds that took. Raises 429 after `budget_ms` (None = never), or
        at once when the daemon is saturated; 401 or 403 when the caller's key is withdrawn meanwhile.

        Whoever has waited has to look at the topic again. Cancelling leaves nothing.
        """
        if self.saturated and budget_ms is not None:
            budget_ms = 0
        try:
            with interruptible():
                return await writer.queue.admit(budget_ms)
        except ApiError as error:
            if error.code == "throttled":
                self._registry.count_throttled(error.detail["limit"])
            raise

    def send(self, commit: Commit) -> None:
        """Queue a commit; publish it now if it waits for nothing."""
        commit.join()
        topic = commit.topic
        if commit.frames or commit.gate is Gate.SYNCED:
            try:
                self.writer(topic).submit(commit, patient=commit.patient)
            except ApiError as error:
                commit.ready = False
                commit.on_failed(error)
                return
        if commit.ready:
            topic.settle()

    def set_window(self, window_ms: float) -> None:
        """How long every shard's groups gather before they are written."""
        for writer in self._store.writers:
            writer.commit_window_ms = window_ms

    def set_saturated(self, saturated: bool) -> None:
        """Whether nobody waits for room any more."""
        self.saturated = saturated

    async def sync_shard(self, topic: Topic) -> None:
        """Everything of this topic's shard so far is on disk when it returns."""
        batch = ControlBatch(NOTHING, 0, wants_sync=True)
        self.writer(topic).submit(batch)
        await batch.wait_synced()

    async def sync_all(self) -> None:
        """Everything that any shard has taken so far is on disk when it returns."""
        await self._store.sync_shards()


def time_commit(commit: Commit, perf: Performance) -> None:
    """Fill in what the commit cost: `fsync_ms` only where the ack waited for a sync."""
    if commit.written_ns:
        perf.wal_append_ms = (commit.written_ns - commit.submitted_ns) / 1e6
    else:
        perf.wal_append_ms = 0.0
    waited = commit.gate is Gate.SYNCED and commit.synced_ns and commit.written_ns
    perf.fsync_ms = (commit.synced_ns - commit.written_ns) / 1e6 if waited else 0.0


def unlogged_floor(topic: Topic) -> dict[str, Any] | None:
    """The EvictWatermark for what ttl has taken and the log does not know; it counts as logged from here on.

    ttl moves floors without a frame of its own. A change that takes records has to be preceded by it in the same batch:
    what has expired is lost for its age, and replay has to know that before it sees who took the rest.
    """
    floor = topic.log.losses.evict_floor
    if not topic.config.ttl_ms or floor <= topic.floor_logged:
        return None
    topic.floor_logged = floor
    return {"below": floor, "reason": "ttl"}


def deletion_batch(
    topic: Topic, selector: Mapping[str, Any], ts: int, lead: Sequence[tuple[FrameType, Mapping[str, Any]]] = ()
) -> tuple[Unsealed, int]:
    """The batch that replay repeats a deletion from, and how many frames it has. `lead` comes before the deletion."""
    entries = [*lead, (FrameType.DELETE, selector)]
    mark = unlogged_floor(topic)
    if mark is not None:
        entries.insert(0, (FrameType.EVICT_WATERMARK, mark))
    return seal_batch(entries, topic_id=topic.id, ts=ts, opened=False), len(entries)
