"""Turns decisions about jobs into commits of their topic (`docs/spec/semantics.md` section 6).

A lease event is a commit like an append or a deletion, so a claim is published after the append of its record, and an
ack after the claim. Claims, nacks and extensions are Lease frames that wait for nothing (with `leases_durable`: for the
sync that covers them). An ack is a deletion, in the topic's class; where results are delivered it is a Lease frame in
the topic's class, and their delivery is the deletion. Lease frames use reserved room in the shard's queue, not the room
that appends may be waiting for (`docs/spec/crash.md` 25). An `ephemeral` queue logs only its moves to the
dead-letter topic, which it counts over its life.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from topics.engine.commits import Commits, deletion_batch
from topics.engine.foreseen import Foreseen
from topics.engine.group_queue import GroupQueue, TopicGroups, group_not_found
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.operations.delete import is_among
from topics.engine.registry import Registry, settled
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError, topic_not_found
from topics.groups.group_events import group_event_to_wire
from topics.log.dumped_values import little_endian
from topics.log.missing_columns import missing_to_delete
from topics.log.span import NotLoaded
from topics.queue.job_results import size_of
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    CompleteEvent,
    DeadLetterEvent,
    DeliverEvent,
    Event,
    LeaseEvent,
    PauseEvent,
    ReopenEvent,
    ResumeEvent,
    RetryEvent,
)
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.runtime.instant import Instant
from topics.storage.wal.frames import NOTHING, FrameType, UnsealedFrames, encode_control, joined

EndEvent = AckEvent | DeadLetterEvent | DeliverEvent
"""The events with which a job is gone."""


class LeaseCommits:
    """Checks that a queue is current, and commits lease events. Made once by the engine."""

    def __init__(
        self, clock: Clock, registry: Registry, *, commits: Commits, loader: Loader, background: BackgroundTasks
    ) -> None:
        self._background = background
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._loader = loader
        self.on_finished: Callable[[Topic], None] = _nothing
        """Called when a group of the topic has finished records."""

    def now(self) -> Instant:
        """Return the time of a decision."""
        return self._registry.instant()

    def retention_ms(self) -> int:
        """Return the time by the clock of the records' times (epoch ms)."""
        return self._registry.now_ms()

    def deadline(self, moment: Instant) -> int:
        """Return a time as clients are told it: epoch ms, by the wall clock as it is set now."""
        return self._registry.to_wall(moment.window)

    async def current(self, name: str, group: str | None = None, *, bounded: bool = True) -> tuple[Topic, JobQueue]:
        """Return a queue, or a group of a log, about which a decision can be made now (`JobQueue.now`): no barrier is
        set, expired leases are free, expired records are gone. There is no await between that and the return.

        Raises 404, `409 not_a_queue` or `not_a_log`, and 503 on a failed shard; if `bounded`, also when a change of the
        topic waits for room on the disk (`Commits.settled`).
        """
        while True:
            topic = self._registry.topic(name)
            queue = queue_of(topic, group)
            if bounded and topic.barrier is not None:
                await self._commits.settled(topic)
            elif await self.settle(topic, queue):
                return topic, queue

    async def settle(self, topic: Topic, queue: JobQueue) -> bool:
        """Remove one obstacle to a decision about the queue. Return True if there was none, and nothing waited. Raises
        404 if the topic is deleted, and 503 on a failed shard."""
        check_there(topic, queue)
        self._commits.check_writable(topic)
        return await settled(topic) and await self._observe(topic, queue)

    async def until_observed(self, topic: Topic, queue: JobQueue) -> None:
        """Return when expired leases are free and expired records gone, so that the queue can be shown, also on a
        failed shard. There is no await between that and the return. Raises 404, and 503 if the disk does not answer."""
        check_there(topic, queue)
        while not await self._observe(topic, queue):
            check_there(topic, queue)

    async def _observe(self, topic: Topic, queue: JobQueue) -> bool:
        if topic.working is not None:
            await topic.working.wait()
        elif queue.sweep(self.now(), queue.terms(topic.config)):
            await trio.lowlevel.checkpoint()
        else:
            try:
                self._registry.expire(topic)
                self._catch_up(topic, queue)
                return True
            except NotLoaded:
                await self._loader.expire(topic)
        return False

    def _catch_up(self, topic: Topic, queue: JobQueue) -> None:
        """Move the floor of a group. If that needs columns that are not in memory, a task does it: no call should
        wait, or fail, for a disk that it does not need."""
        queue.catch_up(topic.log)
        if not isinstance(queue, GroupQueue) or not queue.is_behind or queue.is_loading:
            return
        if self._background.running:
            queue.is_loading = True
            self._background.start_soon(self._load_and_catch_up, topic, queue)

    async def _load_and_catch_up(self, topic: Topic, queue: GroupQueue) -> None:
        try:
            with suppress(ApiError):  # the next call tries again
                await self._loader.prepared(topic, partial(queue.advance, topic.log))
                self.on_finished(topic)
        finally:
            queue.is_loading = False

    async def still_current(self, topic: Topic, queue: JobQueue) -> None:
        """Like `current`, for a queue or group that was looked up before. Raises 404 if it is deleted, even if another
        one has its name. Waits for a change of the topic however long that takes."""
        while not await self.settle(topic, queue):
            pass

    def in_the_way(self, topic: Topic, queue: JobQueue) -> bool:
        """Return True if, after an await, no decision can be made about the queue yet."""
        if topic.deleted or queue.deleted or topic.barrier is not None or topic.working is not None:
            return True
        return queue.sweep(self.now(), queue.terms(topic.config))

    def claim(self, topic: Topic, queue: JobQueue, event: ClaimEvent) -> Commit:
        """Commit a claim. The result of the commit is the seqs that it leased, and their deliveries."""
        return self._lease(topic, queue, event, partial(self._publish_claim, topic, queue, event))

    def lease(self, topic: Topic, queue: JobQueue, event: LeaseEvent) -> Commit:
        """Commit an event about leases. The result of the commit is the seqs that it changed."""
        return self._lease(topic, queue, event, partial(_publish, queue, event))

    def retry(self, topic: Topic, queue: JobQueue, event: RetryEvent) -> Commit:
        """Commit that jobs can be claimed at once, in the class of the topic."""
        return self._lease(topic, queue, event, partial(_publish, queue, event), commit_point=topic.commit_point)

    def pause(self, topic: Topic, queue: JobQueue, event: PauseEvent | ResumeEvent) -> Commit:
        """Commit a pause or its end, synced in every class of topics."""
        synced = CommitPoint.SYNCED
        return self._lease(topic, queue, event, partial(_publish, queue, event), commit_point=synced, always=True)

    def _lease(
        self,
        topic: Topic,
        queue: JobQueue,
        event: LeaseEvent,
        publish: Callable[[Commit], Any],
        *,
        commit_point: CommitPoint = CommitPoint.HANDED,
        always: bool = False,
    ) -> Commit:
        # A pause outlives the jobs of an `ephemeral` topic.
        data = NOTHING if topic.ephemeral and not always else self._frame(topic, queue, event)
        if queue.terms(topic.config).leases_durable:
            commit_point = CommitPoint.SYNCED
        commit_point = commit_point if data else CommitPoint.HANDED
        commit = Commit(topic, data, 1 if data else 0, commit_point, publish, self._clock.perf_ns)
        commit.on_fail = partial(queue.abort, event.seqs)
        commit.patient = commit_point is CommitPoint.HANDED
        self._commits.send(commit)
        return commit

    def _frame(self, topic: Topic, queue: JobQueue, event: Event) -> UnsealedFrames:
        """Return the frame of an event: a Lease frame, or the Group frame of a group. `at` tells a later start how far
        the window clock had come."""
        at, ts = self._registry.windows.now_ms(), self._registry.now_ms()
        if queue.group is not None:
            payload = group_event_to_wire(queue.group, at, event)
            return encode_control(FrameType.GROUP, payload, topic_id=topic.id, ts=ts)
        assert not isinstance(event, AckEvent | ReopenEvent), "an ack of a queue is a deletion"
        return encode_control(FrameType.LEASE, {**event.to_wire(), "at": at}, topic_id=topic.id, ts=ts)

    def complete(self, topic: Topic, queue: JobQueue, event: CompleteEvent) -> Commit:
        """Commit the ack of jobs whose results are to be delivered. The result of the commit is the seqs that were
        still there."""
        data = NOTHING if topic.ephemeral else self._frame(topic, queue, event)
        commit_point = CommitPoint.HANDED if topic.ephemeral else topic.commit_point
        publish = partial(_publish_completed, queue, event)
        commit = Commit(topic, data, 1 if data else 0, commit_point, publish, self._clock.perf_ns)
        commit.on_fail = partial(_completed_failed, queue, event)
        queue.results_on_the_way += size_of(event.results)
        self._commits.send(commit)
        return commit

    def end(self, topic: Topic, queue: JobQueue, event: EndEvent) -> Commit:
        """Commit the end of jobs: their deletion, or that the group has finished them. The result of the commit is the
        seqs that were still there."""
        if queue.group is not None:
            return self._finish(topic, queue, event)
        there = event.seqs
        moved: list[tuple[FrameType, Mapping[str, Any]]] = []
        if isinstance(event, DeadLetterEvent) or (isinstance(event, DeliverEvent) and not topic.ephemeral):
            moved = [(FrameType.LEASE, event.to_wire())]
        if isinstance(event, DeliverEvent):
            there = array("Q", filter(queue.leases.is_kept, event.seqs))
        ts = self._registry.now_ms()
        if not topic.ephemeral and there:
            selector = {"bound": topic.log.head_seq, "seqs": little_endian(there)}
            data, count = deletion_batch(topic, selector, ts, moved)
            commit_point = topic.commit_point
        else:
            data = joined(encode_control(kind, payload, topic_id=topic.id, ts=ts) for kind, payload in moved)
            count, commit_point = len(moved), CommitPoint.HANDED
        commit = Commit(
            topic,
            data,
            count,
            commit_point,
            partial(self._publish_end, topic, queue, event, there),
            self._clock.perf_ns,
        )
        commit.deletes = True
        commit.foreseen = Foreseen(removes=partial(is_among, there))
        commit.on_fail = partial(queue.abort, event.seqs)
        if topic.log.stored.last_seq:
            commit.needs = partial(missing_to_delete, topic.log.index, there)
        self._commits.send(commit)
        return commit

    def _finish(self, topic: Topic, queue: JobQueue, event: EndEvent) -> Commit:
        """Commit that a group has finished records, which stay."""
        data = NOTHING if topic.ephemeral else self._frame(topic, queue, event)
        commit_point = topic.commit_point if data else CommitPoint.HANDED
        publish = partial(self._publish_finish, topic, queue, event)
        commit = Commit(topic, data, 1 if data else 0, commit_point, publish, self._clock.perf_ns)
        commit.on_fail = partial(queue.abort, event.seqs)
        self._commits.send(commit)
        return commit

    def _publish_finish(self, topic: Topic, queue: JobQueue, event: EndEvent, commit: Commit) -> array[int]:
        done = queue.apply(event)
        self._catch_up(topic, queue)
        self.on_finished(topic)
        return done

    def _publish_claim(
        self, topic: Topic, queue: JobQueue, event: ClaimEvent, commit: Commit
    ) -> tuple[array[int], array[int]]:
        queue.catch_up(topic.log)
        done = queue.apply(event)
        if queue.limits.window is not None:
            # From now on: the decision may be old, if the claim waited for a sync.
            queue.limits.window.note(self.now().mono, len(done))
        return done, array("Q", map(queue.leases.deliveries, done))

    def _publish_end(
        self, topic: Topic, queue: JobQueue, event: EndEvent, there: array[int], commit: Commit
    ) -> array[int]:
        topic.log.delete_seqs(there)
        topic.blocks.free(there)
        done = queue.apply(event)
        self._registry.account(topic)
        return done


def queue_of(topic: Topic, group: str | None) -> JobQueue:
    """Return the jobs of a queue topic, or a group of a log. Raises `404 group_not_found`, `409 not_a_queue` and
    `not_a_log`."""
    if group is None:
        if topic.queue is None:
            raise ApiError("not_a_queue", f"topic {topic.name!r} is a log, not a queue", detail={"topic": topic.name})
        return topic.queue
    found = groups_of(topic).by_name.get(group)
    if found is None:
        raise group_not_found(topic.name, group)
    return found


def groups_of(topic: Topic) -> TopicGroups:
    """Return the groups of a log. Raises `409 not_a_log`."""
    if topic.queue is not None:
        raise ApiError("not_a_log", f"topic {topic.name!r} is a queue, not a log", detail={"topic": topic.name})
    return topic.groups if topic.groups is not None else TopicGroups()


def check_there(topic: Topic, queue: JobQueue) -> None:
    """Raise 404 if the topic or the group is deleted."""
    if topic.deleted:
        raise topic_not_found(topic.name)
    if queue.deleted and queue.group is not None:
        raise group_not_found(topic.name, queue.group)


def _nothing(topic: Topic) -> None:
    """Nobody wants to be told."""


def _publish(queue: JobQueue, event: LeaseEvent, commit: Commit) -> array[int]:
    return queue.apply(event)


def _publish_completed(queue: JobQueue, event: CompleteEvent, commit: Commit) -> array[int]:
    queue.results_on_the_way -= size_of(event.results)
    queue.results_more.set()
    return queue.apply(event)


def _completed_failed(queue: JobQueue, event: CompleteEvent) -> None:
    queue.results_on_the_way -= size_of(event.results)
    queue.abort(event.seqs)
