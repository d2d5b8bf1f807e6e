"""How a decided change gets into its shard: check that the shard is writable and has room, queue it, measure it.

Also the waits of a client for a change of a topic, stage or router: its own change (`wait_begun`), or another one that
is in its way (`settled`, `wait_for`). A client waits as long as the change takes, but not for a disk that has no room
(`topics.storage.wal.stall`). The change itself goes on waiting, because its frames may still be written.

Used by everything that writes. The content of a change is decided by `topics.engine.operations.append`,
`topics.engine.operations.delete` and `topics.engine.operations.topic_lifecycle`; what happens to a queued commit is
described in `topics.engine.topic` and `topics.storage.wal.shard_writer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import trio

from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError, invalid, read_only
from topics.model import Performance, TopicConfig
from topics.runtime.withdrawal import interruptible
from topics.storage.store import Store
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import NOTHING, FrameType, UnsealedFrames, seal_batch
from topics.storage.wal.shard_writer import ShardWriter
from topics.storage.wal.stall import LONGEST_RETRY_MS, TELL_AFTER_MS


class Commits:
    """The door to the shard writers. Made once by the engine. Only what is `async` waits."""

    def __init__(self, store: Store, registry: Registry, admission_ms: int) -> None:
        self._store = store
        self._registry = registry
        self._admission_ms = admission_ms
        self.saturated = False
        """If True, a full queue is answered with 429 at once. Set by the governor."""

    def writer(self, topic: Topic) -> ShardWriter:
        """The writer of the topic's shard."""
        return self._store.writers[topic.shard]

    def check_writable(self, topic: Topic) -> ShardWriter:
        """Return the writer of the topic's shard. Raises `503 read_only` if the shard has failed, `503 not_ready` if
        the change would have to be in the bucket, and that has been away for `TOPICS_ADMISSION_MS`."""
        writer = self._store.writers[topic.shard]
        if writer.failed is not None:
            raise writer.failed
        if topic.is_remote:
            self._store.round_waits.check(self._admission_ms)
        return writer

    def check_class(self, config: TopicConfig) -> None:
        """Refuse a config whose changes could not be carried out. Raises 400 for the class `remote` without a bucket,
        `503 not_ready` if the bucket has been away for `TOPICS_ADMISSION_MS`."""
        if config.durability == "remote":
            if not self._registry.has_bucket:
                raise invalid("durability", "remote needs a daemon with a bucket (TOPICS_BUCKET)")
            self._store.round_waits.check(self._admission_ms)

    def check_all_writable(self) -> None:
        """Refuse while a new topic's shard is still undecided: raises `503 read_only` if any shard has failed, or the
        disk is nearly full."""
        for writer in self._store.writers:
            if writer.failed is not None:
                raise writer.failed
        self.check_space(*self._store.writers)

    def check_space(self, *writers: ShardWriter) -> None:
        """Refuse an append if there is no room on disk: raises `503 read_only` if the disk is nearly full, or one of
        these shards cannot get the room it needs."""
        shortage = self._store.space.shortage
        if shortage is not None:
            raise read_only(shortage)
        for writer in writers:
            if writer.stall.refusal is not None:
                raise writer.stall.refusal

    def check_unblocked(self, *writers: ShardWriter) -> None:
        """Refuse a change that would wait in the queue: raises `503 read_only` if one of these shards has no room on
        disk for what is queued. While a stalled shard has room left, changes other than appends go on."""
        for writer in writers:
            if writer.stall.blockage is not None:
                raise writer.stall.blockage

    def check_all_unblocked(self) -> None:
        """Refuse a change that any shard may be needed for. Raises `503 read_only`."""
        self.check_unblocked(*self._store.writers)

    def check_changeable(self, topic: Topic) -> ShardWriter:
        """Return the writer of the topic's shard, for a change of the topic as a whole. Raises `503 read_only` if the
        shard has failed, or has no room on disk for what is queued."""
        writer = self.check_writable(topic)
        self.check_unblocked(writer)
        return writer

    async def settled(self, *topics: Topic) -> bool:
        """As `topics.engine.registry.settled`, for a client: raises `503 read_only` if the change in the way waits for
        room on the disk, at once if it is known that it does. Nothing has been done for the client then."""
        for topic in topics:
            if topic.barrier is not None:
                await self.wait_for(topic.barrier, self.writer(topic), remote=topic.is_remote)
                return False
        return True

    async def wait_for(self, event: trio.Event, writer: ShardWriter | None = None, *, remote: bool = False) -> None:
        """Wait, for a client, for the end of somebody else's change. `remote`: it has to be in the bucket.

        Raises `503 read_only` after `TELL_AFTER_MS` if a shard has no room on disk for what is queued, or the bucket is
        away, and at once if `writer`, that of the change, has none. Cancelling stops only the waiting.
        """
        if writer is not None:
            self.check_unblocked(writer)
        patience_ms = TELL_AFTER_MS
        while not event.is_set():
            with trio.move_on_after(patience_ms / 1000):
                await event.wait()
                return
            self.check_all_unblocked()
            if remote and self._store.round_waits.is_away:
                raise self._store.round_waits.delay
            patience_ms = LONGEST_RETRY_MS

    async def wait_begun(self, done: trio.Event, *, remote: bool = False) -> None:
        """Wait, for a client, for the end of its own change, which goes on without it (`BackgroundTasks.finish`).
        `remote`: it has to be in the bucket.

        Raises `503 read_only` after `TELL_AFTER_MS` if a shard has no room on disk for what is queued, or the bucket is
        away. Cancelling stops only the waiting.
        """
        try:
            await self.wait_for(done, remote=remote)
        except ApiError as error:
            raise read_only(f"{error.message}. The change waits, and may still be carried out then") from error

    def is_full(self, topic: Topic) -> bool:
        """Return True if a change of the topic has to be admitted: its shard's queue is full, or it would have to be in
        the bucket, which is away or behind."""
        waits = self._store.round_waits
        return self.writer(topic).queue.is_full or (topic.waits_for_rounds and (waits.is_away or waits.is_full))

    async def admit(self, topic: Topic, budget_ms: int | None) -> float:
        """Wait for room in the queue of the topic's shard, and for the bucket if the change has to be in it. Return how
        long that took (ms). Raises 429 after `budget_ms` (None = no limit), or at once while the daemon is saturated;
        `503 not_ready` if the bucket does not come back by then, or in `TOPICS_ADMISSION_MS` without a limit; 401 or
        403 if the caller's key is withdrawn meanwhile.

        After waiting, the caller must check the topic again. Cancelling leaves nothing behind.
        """
        waited = await self.admit_to(self.writer(topic), budget_ms)
        if topic.waits_for_rounds:
            began = trio.current_time()
            with interruptible():
                patience_ms = self._admission_ms if budget_ms is None else max(budget_ms - waited, 0)
                await self._store.round_waits.admit(patience_ms, remote=topic.is_remote)
            waited += 1000 * (trio.current_time() - began)
        return waited

    async def admit_to(self, writer: ShardWriter, budget_ms: int | None) -> float:
        """Wait for room in a shard's queue, as `admit` does."""
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
        if not self._store.right.is_held:
            commit.ready = False
            commit.on_failed(self._store.right.refusal)
            return
        if commit.frames or commit.commit_point is CommitPoint.SYNCED:
            try:
                self.writer(topic).submit(commit, patient=commit.patient)
            except ApiError as error:
                commit.ready = False
                commit.on_failed(error)
                return
        if commit.ready:
            topic.settle()

    def set_window(self, window_ms: float) -> None:
        """Set how long every shard's groups gather before they are written (ms)."""
        for writer in self._store.writers:
            writer.commit_window_ms = window_ms

    def set_saturated(self, saturated: bool) -> None:
        """Set whether an append that finds its queue full is refused at once."""
        self.saturated = saturated

    async def sync_shard(self, topic: Topic) -> None:
        """Return once everything queued so far in this topic's shard is on disk."""
        batch = ControlBatch(NOTHING, 0, wants_sync=True)
        self.writer(topic).submit(batch)
        await batch.wait_synced()

    async def sync_all(self) -> None:
        """Return once everything queued so far in any shard is on disk."""
        await self._store.sync_shards()


class Creation:
    """The creation of a topic or stage: other calls wait for its end, and then check whether the topic exists. The call
    that carries it out must call `begin`, and set `ended` at last."""

    __slots__ = ("_writer", "ended")

    def __init__(self) -> None:
        self.ended = trio.Event()
        self._writer: ShardWriter | None = None

    def begin(self, writer: ShardWriter, commits: Commits) -> None:
        """Note the shard that it is queued in, in the step in which it is. Raises `503 read_only` if that has no room
        on disk for what is queued."""
        commits.check_unblocked(writer)
        self._writer = writer

    async def wait(self, commits: Commits) -> None:
        """Wait for the end, for another client (`Commits.wait_for`)."""
        await commits.wait_for(self.ended, self._writer)


def time_commit(commit: Commit, perf: Performance) -> None:
    """Fill in the durations of the commit; `fsync_ms` only if the ack waited for a sync."""
    if commit.written_ns:
        perf.wal_append_ms = (commit.written_ns - commit.submitted_ns) / 1e6
    else:
        perf.wal_append_ms = 0.0
    waited = commit.commit_point is CommitPoint.SYNCED and commit.synced_ns and commit.written_ns
    perf.fsync_ms = (commit.synced_ns - commit.written_ns) / 1e6 if waited else 0.0
    if commit.written_ns:
        commit.topic.common.traffic.commit_ms.observe(perf.wal_append_ms + perf.fsync_ms)


def unlogged_floor(topic: Topic) -> dict[str, Any] | None:
    """Return the EvictWatermark for records that ttl has evicted and the log does not show, None for none. It counts as
    logged from here on.

    ttl moves floors without a frame of its own. A deletion must be preceded, in the same batch, by this watermark:
    replay has to know that expired records were lost before it sees the deletion of the others.
    """
    floor = topic.log.losses.evict_floor
    if not topic.config.ttl_ms or floor <= topic.on_disk.floor_logged:
        return None
    topic.on_disk.floor_logged = floor
    return {"below": floor, "reason": "ttl"}


def deletion_frames(
    topic: Topic, selector: Mapping[str, Any], lead: Sequence[tuple[FrameType, Mapping[str, Any]]] = ()
) -> list[tuple[FrameType, Mapping[str, Any]]]:
    """Return the frames of a `deletion_batch`."""
    mark = unlogged_floor(topic)
    first = [] if mark is None else [(FrameType.EVICT_WATERMARK, mark)]
    return [*first, *lead, (FrameType.DELETE, selector)]


def deletion_batch(
    topic: Topic, selector: Mapping[str, Any], ts: int, lead: Sequence[tuple[FrameType, Mapping[str, Any]]] = ()
) -> tuple[UnsealedFrames, int]:
    """Return the batch from which replay repeats a deletion, and its number of frames. `lead` comes before the
    deletion."""
    entries = deletion_frames(topic, selector, lead)
    return seal_batch(entries, topic_id=topic.id, ts=ts, opened=False), len(entries)
