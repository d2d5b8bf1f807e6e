"""The reserve of seqs that topics keep ahead of their head (`docs/spec/semantics.md` section 1): raised, lowered, given
back.

`memory`, `disk` and `ephemeral` topics give out seqs below a synced ceiling, so that no crash can make a seq be given
out twice. `commit_point` decides whether a commit has to wait for a sync. Which seqs an append gets is the business of
`topics.engine.operations.append`; recovery applies ceilings after a crash (`topics.storage.recovery.replay`).
"""

from __future__ import annotations

import heapq
from contextlib import suppress
from typing import Final

from topics.engine.commits import Commits
from topics.engine.registry import Registry
from topics.engine.topic import CommitPoint, Topic
from topics.errors import ApiError
from topics.log.bucket_ceiling import LEAST, BucketCeiling
from topics.log.seq_ceiling import IDLE_MS
from topics.model import TopicConfig
from topics.runtime.clock import Clock
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import FrameType, encode_control
from topics.storage.wal.wal_files import WalFile
from topics.storage.wal.write_right import WriteRight

MOST_AT_START: Final = 1000
"""Topics whose bucket ceilings are raised at a start. Each costs a frame of some 60 bytes, and its part in the next
base. The first append to one of the others waits for a round, and raises its ceiling then."""


class CeilingBatch:
    """A HeadWatermark frame on its way to disk. Once a sync covers it, the topic may give out seqs up to `ceiling`
    without waiting."""

    __slots__ = ("ceiling", "data", "frames", "last_seq", "topic", "topic_id", "wants_archive", "wants_sync")

    def __init__(self, topic: Topic, ceiling: int, ts: int) -> None:
        self.topic = topic
        self.ceiling = ceiling
        self.topic_id = topic.id
        self.last_seq = 0
        self.frames = 1
        self.wants_sync = False
        self.wants_archive = False
        self.data = encode_control(FrameType.HEAD_WATERMARK, {"ceiling": ceiling}, topic_id=topic.id, ts=ts)

    def on_written(self, file: WalFile, offset: int) -> None:
        """Do nothing: only the sync counts."""

    def on_synced(self) -> None:
        self.topic.ceiling.note_synced(self.ceiling)

    def on_failed(self, error: ApiError) -> None:
        """Do nothing: the shard is read-only now and gives out no more seqs."""

    def on_delayed(self, error: ApiError) -> None:
        """Do nothing: no client waits for this frame."""


class BucketCeilingBatch(ControlBatch):
    """A BucketCeiling frame on its way to the bucket, with the next round. Once that has it, the topic may give out
    seqs up to `ceiling` without waiting for a round."""

    __slots__ = ()

    is_urgent = False

    def __init__(self, topic: Topic, ceiling: int, ts: int) -> None:
        def archived(_batch: ControlBatch) -> None:
            if topic.bucket_ceiling is not None:
                topic.bucket_ceiling.note_archived(ceiling)

        data = encode_control(FrameType.BUCKET_CEILING, {"ceiling": ceiling}, topic_id=topic.id, ts=ts)
        super().__init__(data, 1, topic_id=topic.id, wants_archive=True, apply=archived)


class Ceilings:
    """Raises and lowers the ceilings of all topics. Made once by the engine; it keeps a list of the topics with a
    reserve."""

    def __init__(self, clock: Clock, registry: Registry, commits: Commits, right: WriteRight) -> None:
        self._clock = clock
        self._right = right
        self._registry = registry
        self._commits = commits
        self._raised: dict[int, Topic] = {}
        """Topics whose ceiling is above their head."""

    def watch(self, topic: Topic) -> None:
        """Note a topic that is new to the registry, or whose ceiling was set elsewhere (by recovery or a
        ConfigUpdate)."""
        if topic.ceiling.synced > topic.assigned:
            self._raised[topic.id] = topic
        else:
            self._raised.pop(topic.id, None)

    def forget(self, topic: Topic) -> None:
        """Forget a topic that was deleted."""
        self._raised.pop(topic.id, None)

    def commit_point(self, topic: Topic, last_seq: int, ts: int) -> CommitPoint:
        """Return what a commit of records up to `last_seq` must wait for: the commit point of the topic's class, or a
        sync if the ceiling has to be raised first (`docs/spec/semantics.md` section 1). Queues the next raise ahead of
        need."""
        return max(self._local_point(topic, last_seq, ts), self._bucket_point(topic, last_seq, ts))

    def _bucket_point(self, topic: Topic, last_seq: int, ts: int) -> CommitPoint:
        """Return ARCHIVED if another daemon may take over and the bucket does not know yet that seqs up to this one may
        be given out (`docs/spec/bucket.md` section 3); else HANDED. Queues the next raise well ahead of need."""
        if not self._takes_over or topic.is_remote or topic.stage is not None:
            return CommitPoint.HANDED
        ceiling = self._raise_if_low(topic, last_seq, ts)
        return CommitPoint.HANDED if last_seq <= ceiling.archived else CommitPoint.ARCHIVED

    def _raise_if_low(self, topic: Topic, seq: int, ts: int) -> BucketCeiling:
        """Return the bucket ceiling of a topic, when its raise is queued if that is due for `seq`."""
        ceiling = topic.bucket_ceiling
        if ceiling is None:
            ceiling = topic.bucket_ceiling = BucketCeiling()
        if ceiling.is_low(seq):
            raised = ceiling.raise_above(seq, self._clock.monotonic_ms())
            topic.mark_changed()
            self._submit_bucket_ceiling(topic, raised, ts)
        return ceiling

    def raise_at_start(self) -> None:
        """Queue raises for the topics that were written to last, `MOST_AT_START` of them: after a clean stop or a
        takeover the ceilings are at the heads, and the first append would have to wait for a round. Called before the
        round that makes the daemon ready."""
        if not self._takes_over:
            return
        topics = (topic for topic in self._registry.by_id.values() if not topic.is_remote and topic.stage is None)
        ts = self._registry.now_ms()
        for topic in heapq.nlargest(MOST_AT_START, topics, key=lambda topic: topic.last_write_ms or 0):
            self._raise_if_low(topic, topic.assigned + 1, ts)

    def first_bucket_ceiling(self, config: TopicConfig) -> int:
        """Return the bucket ceiling of a new topic, or of one whose class is new; 0 for none. It counts when the frame
        does that says it: before the bucket has that, it has no topic that could go on."""
        return LEAST if self._takes_over and config.durability != "remote" else 0

    @property
    def _takes_over(self) -> bool:
        return self._right.lease is not None

    def _submit_bucket_ceiling(self, topic: Topic, ceiling: int, ts: int) -> None:
        with suppress(ApiError):  # a shard that takes nothing any more gives out no more seqs either
            self._commits.writer(topic).submit(BucketCeilingBatch(topic, ceiling, ts))

    def _local_point(self, topic: Topic, last_seq: int, ts: int) -> CommitPoint:
        """Return what the class and the local ceiling ask for."""
        commit_point = topic.commit_point
        if commit_point is CommitPoint.SYNCED:
            return commit_point
        ceiling = topic.ceiling
        if last_seq + ceiling.block // 2 > ceiling.queued:
            raised = ceiling.raise_above(last_seq, self._clock.monotonic_ms())
            self._raised[topic.id] = topic
            topic.mark_changed()
            self._commits.writer(topic).submit(CeilingBatch(topic, raised, ts))
        return commit_point if last_seq <= ceiling.synced else CommitPoint.SYNCED

    def lower_idle(self) -> None:
        """Give back the reserves of synced topics that have had no append for `IDLE_MS`. Called every second."""
        now = self._clock.monotonic_ms()
        for topic in list(self._raised.values()):
            if topic.barrier is not None:
                continue  # a ConfigUpdate with a ceiling of its own may be in flight
            synced = (
                topic.ephemeral or topic.synced_seq >= topic.assigned or topic.assigned == topic.log.earliest_seq - 1
            )
            ceiling = topic.ceiling
            idle = now - ceiling.raised_ms >= IDLE_MS
            idle = idle and self._registry.now_ms() - (topic.last_write_ms or 0) >= IDLE_MS
            if idle and synced and topic.quiet and ceiling.synced >= ceiling.queued:
                self._lower(topic)

    def lower_all(self) -> None:
        """Give back all reserves, before a clean stop."""
        for topic in list(self._raised.values()):
            self._lower(topic)

    def lower_bucket_ceilings(self) -> None:
        """Give back all reserves in the bucket, in the last round before a clean stop."""
        if not self._takes_over:
            return
        ts = self._registry.now_ms()
        for topic in self._registry.by_id.values():
            ceiling = topic.bucket_ceiling
            if ceiling is not None and ceiling.queued > topic.assigned:
                ceiling.lower(topic.assigned)
                topic.mark_changed()
                self._submit_bucket_ceiling(topic, topic.assigned, ts)

    def _lower(self, topic: Topic) -> None:
        """Lower the ceiling to the head. Only while everything assigned is synced, and in the step that queues the
        frame (`docs/spec/crash.md` 1)."""
        topic.ceiling.lower(topic.assigned)
        topic.mark_changed()
        self._raised.pop(topic.id, None)
        batch = CeilingBatch(topic, topic.assigned, self._registry.now_ms())
        try:
            self._commits.writer(topic).submit(batch)
        except ApiError:
            return
