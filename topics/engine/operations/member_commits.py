"""The commits of the topics of a transaction: an append, a deletion, or the event of a group, each with the Transaction
frame behind it (`docs/design/transactions.md`, `docs/design/redrive.md`).

Responsible for their frames, and for the changes at their publication, or if the transaction is undone. Admission is
the business of `transactions` and `topics.engine.redrives`; `topics.engine.transaction` queues them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from topics.engine.ceilings import Ceilings
from topics.engine.commits import deletion_frames
from topics.engine.foreseen import Foreseen
from topics.engine.group_queue import GroupQueue
from topics.engine.operations.append import Appends, eviction_frames, fence_frame, placed, publish_records
from topics.engine.operations.delete import is_among
from topics.engine.operations.judge import publish_fence, raise_fence, take_back_fence
from topics.engine.operations.large_batches import LargeBatch
from topics.engine.operations.new_jobs import enqueue_event, enqueue_frame, publish_jobs
from topics.engine.record_columns import AppendColumns, encode_blocks, utf8
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.engine.transaction import MemberCommit
from topics.groups.group_events import group_event_to_wire
from topics.log.block import Block
from topics.log.dumped_values import little_endian
from topics.log.missing_columns import missing_below, missing_to_delete
from topics.log.tables.kept_tags import KeptChange
from topics.model import Conditions, Fence
from topics.queue.lease_events import EnqueueEvent, ReopenEvent
from topics.runtime.clock import Clock
from topics.storage.wal import frames
from topics.storage.wal.frames import AppendFrames, FrameType, UnsealedFrames, seal_batch


class _DecidedMember(NamedTuple):
    """An append that has its seqs. It does not change any more."""

    first_seq: int
    last_seq: int
    ts: int
    appended: AppendFrames
    tags: Sequence[str | None] | None
    blocks: list[Block]
    watermark: int
    kept: KeptChange | None
    floor: int
    """The floor of the topic when the append got its seqs. The batch logs it."""
    fence: Fence | None
    """The fence that it raises, if it raises one."""
    jobs: EnqueueEvent | None


class MemberCommits:
    """Makes the commits. Made once by the engine. Each is made in the step in which it is queued, as part of its
    transaction; `payload` is that of its Transaction frame."""

    def __init__(self, clock: Clock, registry: Registry, *, ceilings: Ceilings, appends: Appends) -> None:
        self._clock = clock
        self._registry = registry
        self._ceilings = ceilings
        self._appends = appends

    def append(
        self,
        topic: Topic,
        batch: AppendColumns,
        conditions: Conditions | None,
        payload: dict[str, object],
        ahead: LargeBatch | None = None,
    ) -> MemberCommit:
        """Assign the seqs of an append, which was admitted in this step, and return its commit. `ahead`: the batch,
        encoded for these seqs."""
        count = len(batch.datas)
        ts = topic.last_ts = ahead.ts if ahead is not None else max(self._registry.now_ms(), topic.last_ts)
        first_seq, last_seq = topic.assigned + 1, topic.assigned + count
        topic.assigned = last_seq
        commit_point = max(self._ceilings.commit_point(topic, last_seq, ts), CommitPoint.SYNCED)
        kept, watermark = self._appends.decided_removals(topic, first_seq, batch.tags, batch.sizes, batch.datas)
        floor = topic.log.losses.evict_floor
        fence = raise_fence(topic, conditions) if conditions is not None else None
        tail = eviction_frames(topic, watermark, kept)
        if fence is not None:
            tail.append(fence_frame(fence))
        jobs = enqueue_event(batch.jobs, first_seq, self._clock.now_ms())
        if jobs is not None:
            tail.append(enqueue_frame(jobs, self._registry.windows.now_ms()))
        tail.append((FrameType.TRANSACTION, payload))
        if ahead is not None:
            appended, blocks = ahead.frames(closes_batch=False), ahead.blocks()
        else:
            appended, blocks = _encoded(topic, first_seq, ts, batch)
        decided = _DecidedMember(
            first_seq, last_seq, ts, appended, batch.tags, blocks, watermark, kept, floor, fence, jobs
        )
        commit = MemberCommit(
            topic,
            appended.data + seal_batch(tail, topic_id=topic.id, ts=ts, opened=True),
            count + len(tail),
            commit_point,
            partial(self._publish_append, decided),
            self._clock.perf_ns,
            last_seq=last_seq,
            records=count,
            sizes=appended.sizes,
            frame_lens=appended.frame_lens,
        )
        commit.place = first_seq, last_seq
        commit.undo = partial(self._publish_undone, decided)
        if watermark:
            commit.needs = partial(missing_below, topic.log.index, watermark)
        if kept is not None:
            commit.on_fail = partial(self._appends.kept.take_back, topic, kept)
        return commit

    def deletion(self, topic: Topic, seqs: array[int], payload: dict[str, object], token: int) -> MemberCommit:
        """Return the commit of the deletion of published records, ascending."""
        selector = {"bound": topic.log.head_seq, "seqs": little_endian(seqs)}
        entries = [*deletion_frames(topic, selector), (FrameType.TRANSACTION, payload)]
        ts = self._registry.now_ms()
        data = seal_batch(entries, topic_id=topic.id, ts=ts, opened=False)
        commit = self._without_records(topic, data, len(entries), token)
        commit.apply = partial(self._publish_deletion, seqs)
        commit.foreseen = Foreseen(removes=partial(is_among, seqs))
        commit.needs = partial(missing_to_delete, topic.log.index, seqs)
        return commit

    def reopening(
        self, topic: Topic, queue: GroupQueue, event: ReopenEvent, payload: dict[str, object], token: int
    ) -> MemberCommit:
        """Return the commit by which a group gets records again. Until its end they count as held."""
        group = queue.state
        cost = sum(group.cost_of_reopening(seq) for seq in event.seqs if group.is_finished(seq))
        group.reopening += cost
        frame = group_event_to_wire(queue.group, self._registry.windows.now_ms(), event)
        entries = [(FrameType.GROUP, frame), (FrameType.TRANSACTION, payload)]
        data = seal_batch(entries, topic_id=topic.id, ts=self._registry.now_ms(), opened=False)
        commit = self._without_records(topic, data, len(entries), token)
        commit.apply = partial(self._publish_reopening, queue, event, cost)
        commit.undo = partial(_not_reopened, queue, cost)
        commit.needs = partial(missing_to_delete, topic.log.index, event.seqs)
        return commit

    def _without_records(self, topic: Topic, data: UnsealedFrames, count: int, token: int) -> MemberCommit:
        commit = MemberCommit(topic, data, count, CommitPoint.SYNCED, _change_nothing, self._clock.perf_ns)
        commit.place = token, token
        commit.undo = _change_nothing
        return commit

    def _publish_deletion(self, seqs: array[int], commit: Commit) -> None:
        topic = commit.topic
        topic.log.delete_seqs(seqs)
        topic.blocks.free(seqs)
        topic.jobs_gone(seqs)
        self._registry.account(topic)

    def _publish_reopening(self, queue: GroupQueue, event: ReopenEvent, cost: int, commit: Commit) -> None:
        log = commit.topic.log
        queue.state.reopening -= cost
        queue.apply(event)
        live = set(log.index.only_live(event.seqs))
        queue.gone([seq for seq in event.seqs if seq not in live])
        queue.catch_up(log)

    def _publish_append(self, decided: _DecidedMember, commit: Commit) -> None:
        """The commit point of one topic; that of the others is in the same step."""
        first_seq, _, ts, appended, tags, blocks, watermark, kept, _, fence, jobs = decided
        extent = placed(commit, first_seq, ts, appended, tags)
        publish_records(commit.topic, extent, blocks, 0 if kept else watermark)
        if kept is not None:
            self._appends.kept.publish(commit, kept, ts, watermark)
        publish_jobs(commit.topic, jobs)
        if fence is not None:
            publish_fence(commit.topic, fence)
        self._registry.account(commit.topic)

    def _publish_undone(self, decided: _DecidedMember, commit: Commit) -> None:
        """Publish the seqs of an undone append as deleted records."""
        first_seq, last_seq, ts, appended, tags, blocks, watermark, kept, floor, fence, _ = decided
        topic = commit.topic
        publish_records(topic, placed(commit, first_seq, ts, appended, tags), blocks, 0)
        self._appends.kept.take_back(topic, kept)
        if fence is not None:
            take_back_fence(topic, fence)
        seqs = range(first_seq, last_seq + 1)
        topic.log.delete_seqs(seqs)
        topic.blocks.free(seqs)
        if watermark:  # the eviction by caps is undone too; earlier evictions by ttl stay
            topic.on_disk.floor_logged = min(topic.on_disk.floor_logged, floor)
        topic.jobs_gone(seqs)
        self._registry.account(topic)


def _change_nothing(commit: Commit) -> None:
    """An undone member without records leaves its topic as it was."""


def _not_reopened(queue: GroupQueue, cost: int, commit: Commit) -> None:
    """An undone event of a group has not happened: claims may have the room that was kept for it."""
    queue.state.reopening -= cost
    queue.ring()


def _encoded(topic: Topic, first_seq: int, ts: int, batch: AppendColumns) -> tuple[AppendFrames, list[Block]]:
    """Return the frames and blocks of one append."""
    appended = frames.encode_appends(
        topic.id,
        first_seq,
        ts,
        batch.datas,
        nodes=utf8(batch.nodes),
        tags=utf8(batch.tags),
        metas=batch.metas,
        durable=True,
        closes_batch=False,
    )
    return appended, encode_blocks(first_seq, ts, batch.datas, batch.nodes, batch.tags, batch.metas, pinned=False)
