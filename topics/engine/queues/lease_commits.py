"""Turns decisions about jobs into commits of their topic (`docs/spec/semantics.md` section 6).

A lease event is a commit like an append or a deletion, so a claim is published after the append of its record, and an
ack after the claim. Claims, nacks and extensions are Lease frames that wait for nothing (with `leases_durable`: for the
sync that covers them). An ack is a deletion, in the topic's class. Lease frames use reserved room in the shard's queue,
not the room that appends may be waiting for (`docs/spec/crash.md` 25). An `ephemeral` queue logs only its moves to the
dead-letter topic, which it counts over its life.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from topics.engine.commits import Commits, deletion_batch
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.operations.delete import is_among
from topics.engine.registry import Registry, settled
from topics.engine.topic import Commit, CommitPoint, Foreseen, Topic
from topics.errors import ApiError, topic_not_found
from topics.log.dumped_values import little_endian
from topics.log.missing_columns import missing_to_delete
from topics.log.span import NotLoaded
from topics.queue.lease_events import AckEvent, ClaimEvent, DeadLetterEvent, LeaseEvent, PauseEvent, ResumeEvent
from topics.runtime.clock import Clock
from topics.runtime.instant import Instant
from topics.storage.wal.frames import NOTHING, FrameType, encode_control, joined


class LeaseCommits:
    """Checks that a queue is current, and commits lease events. Made once by the engine."""

    def __init__(self, clock: Clock, registry: Registry, *, commits: Commits, loader: Loader) -> None:
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._loader = loader

    def now(self) -> Instant:
        """Return the time of a decision."""
        return self._registry.instant()

    def retention_ms(self) -> int:
        """Return the time by the clock of the records' times (epoch ms)."""
        return self._registry.now_ms()

    def deadline(self, moment: Instant) -> int:
        """Return a time as clients are told it: epoch ms, by the wall clock as it is set now."""
        return self._registry.to_wall(moment.window)

    async def current(self, name: str, *, bounded: bool = True) -> tuple[Topic, JobQueue]:
        """Return a queue about which a decision can be made now (`JobQueue.now`): no barrier is set, expired leases are
        free, expired records are gone. There is no await between that and the return.

        Raises 404, `409 not_a_queue`, and 503 on a failed shard; if `bounded`, also when a change of the topic waits
        for room on the disk (`Commits.settled`).
        """
        while True:
            topic = self._registry.topic(name)
            if topic.queue is None:
                raise ApiError("not_a_queue", f"topic {name!r} is a log, not a queue", detail={"topic": name})
            if bounded and topic.barrier is not None:
                await self._commits.settled(topic)
            elif await self.settle(topic, topic.queue):
                return topic, topic.queue

    async def settle(self, topic: Topic, queue: JobQueue) -> bool:
        """Remove one obstacle to a decision about the queue. Return True if there was none, and nothing waited. Raises
        404 if the topic is deleted, and 503 on a failed shard."""
        if topic.deleted:
            raise topic_not_found(topic.name)
        self._commits.check_writable(topic)
        if not await settled(topic):
            return False
        if topic.working is not None:
            await topic.working.wait()
        elif queue.sweep(self.now(), topic.config):
            await trio.lowlevel.checkpoint()
        else:
            try:
                self._registry.expire(topic)
                return True
            except NotLoaded:
                await self._loader.expire(topic)
        return False

    async def still_current(self, topic: Topic) -> None:
        """Like `current`, for a queue that was looked up before. Raises 404 if it is deleted, even if another one has
        its name. Waits for a change of the topic however long that takes."""
        current, _ = await self.current(topic.name, bounded=False)
        if current is not topic:
            raise topic_not_found(topic.name)

    def in_the_way(self, topic: Topic, queue: JobQueue) -> bool:
        """Return True if, after an await, no decision can be made about the queue yet."""
        if topic.deleted or topic.barrier is not None or topic.working is not None:
            return True
        return queue.sweep(self.now(), topic.config)

    def claim(self, topic: Topic, event: ClaimEvent) -> Commit:
        """Commit a claim. The result of the commit is the seqs that it leased, and their deliveries."""
        assert topic.queue is not None
        return self._lease(topic, event, partial(self._publish_claim, topic.queue, event))

    def lease(self, topic: Topic, event: LeaseEvent) -> Commit:
        """Commit a Lease frame. The result of the commit is the seqs that it changed."""
        assert topic.queue is not None
        return self._lease(topic, event, partial(_publish, topic.queue, event))

    def pause(self, topic: Topic, event: PauseEvent | ResumeEvent) -> Commit:
        """Commit a pause or its end, synced whatever the class of the topic."""
        assert topic.queue is not None
        return self._lease(topic, event, partial(_publish, topic.queue, event), synced=True)

    def _lease(
        self, topic: Topic, event: LeaseEvent, publish: Callable[[Commit], Any], *, synced: bool = False
    ) -> Commit:
        assert topic.queue is not None
        data = NOTHING
        # A pause outlives the jobs of an `ephemeral` queue.
        if not topic.ephemeral or synced:
            # `at` tells a later start how far the window clock had come.
            payload = {**event.to_wire(), "at": self._registry.windows.now_ms()}
            data = encode_control(FrameType.LEASE, payload, topic_id=topic.id, ts=self._registry.now_ms())
        waits = synced or topic.config.leases_durable
        commit_point = CommitPoint.SYNCED if waits and data else CommitPoint.HANDED
        commit = Commit(topic, data, 1 if data else 0, commit_point, publish, self._clock.perf_ns)
        commit.on_fail = partial(topic.queue.abort, event.seqs)
        commit.patient = commit_point is CommitPoint.HANDED
        self._commits.send(commit)
        return commit

    def end(self, topic: Topic, event: AckEvent | DeadLetterEvent) -> Commit:
        """Commit the deletion of jobs. The result of the commit is the seqs that were still there."""
        assert topic.queue is not None
        moved = [(FrameType.LEASE, event.to_wire())] if isinstance(event, DeadLetterEvent) else []
        ts = self._registry.now_ms()
        if not topic.ephemeral:
            selector = {"bound": topic.log.head_seq, "seqs": little_endian(event.seqs)}
            data, count = deletion_batch(topic, selector, ts, moved)
            commit_point = topic.commit_point
        else:
            data = joined(encode_control(kind, payload, topic_id=topic.id, ts=ts) for kind, payload in moved)
            count, commit_point = len(moved), CommitPoint.HANDED
        commit = Commit(topic, data, count, commit_point, partial(self._publish_end, topic, event), self._clock.perf_ns)
        commit.deletes = True
        commit.foreseen = Foreseen(removes=partial(is_among, event.seqs))
        commit.on_fail = partial(topic.queue.abort, event.seqs)
        if topic.log.stored.last_seq:
            commit.needs = partial(missing_to_delete, topic.log.index, event.seqs)
        self._commits.send(commit)
        return commit

    def _publish_claim(self, queue: JobQueue, event: ClaimEvent, commit: Commit) -> tuple[array[int], array[int]]:
        done = queue.apply(event)
        if queue.limits.window is not None:
            # From now on: the decision may be old, if the claim waited for a sync.
            queue.limits.window.note(self.now().mono, len(done))
        return done, array("Q", map(queue.leases.deliveries, done))

    def _publish_end(self, topic: Topic, event: AckEvent | DeadLetterEvent, commit: Commit) -> array[int]:
        assert topic.queue is not None
        topic.log.delete_seqs(event.seqs)
        topic.blocks.free(event.seqs)
        done = topic.queue.apply(event)
        self._registry.account(topic)
        return done


def _publish(queue: JobQueue, event: LeaseEvent, commit: Commit) -> array[int]:
    return queue.apply(event)
