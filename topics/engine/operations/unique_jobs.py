"""Unique jobs: which records of an append are duplicates of jobs that are there (`docs/design/unique_jobs.md`).

Responsible for the verdict, in the step in which the append gets its seqs, for the keys on their way, for the limit on
the keys of all topics together, and for the commit of an append that stores nothing. `topics.queue.unique_keys` has the
published keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from topics.config import Settings
from topics.engine.commits import Commits
from topics.engine.foreseen import Foreseen
from topics.engine.idempotency_keys import IdempotencyKeys
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.operations.append_attachment import AppendAttachment
from topics.engine.operations.judge import publish_fence
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.log.span import NotLoaded
from topics.model import Fence, UniqueJob
from topics.queue.lease_events import KeyEvent
from topics.queue.unique_keys import AT_ONCE, MOST_OF_A_KEY, FirstAnswer, KeyTotal
from topics.runtime.clock import Clock
from topics.storage.wal.frames import NOTHING, FrameType, seal_batch


class _Busy(Exception):
    """An event in flight decides whether a job is ready."""


class UniqueJobs:
    """Judges the unique keys of appends. Made once by the engine; `expire` must be called regularly."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        loader: Loader,
        keys: IdempotencyKeys,
    ) -> None:
        self.total = KeyTotal()
        """The keys of all queues, those on their way included."""
        self._max = settings.max_unique_keys
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._loader = loader
        self._keys = keys
        self._topics: dict[int, Topic] = {}
        """Queues that remember keys."""

    def adopt_all(self) -> None:
        """Count the keys of recovered topics."""
        for topic in self._registry.by_id.values():
            self._adopt(topic)

    async def take_stock(self) -> None:
        """On a standby, where replay adds keys and nobody is told: count them anew, and forget what `expire` does."""
        self.total = KeyTotal()
        self._topics = {}
        self.adopt_all()
        await self.expire()

    async def expire(self) -> None:
        """Forget the keys whose window is over, those of jobs that are gone, and those of deleted topics, some at a
        time. Cancelling leaves the rest for the next call."""
        for topic in list(self._topics.values()):
            unique = topic.queue.leases.unique if topic.queue is not None else None
            if topic.deleted and unique is not None:
                unique.join(KeyTotal())
                del self._topics[topic.id]
                continue
            while not topic.deleted and self._tidy(topic):
                await trio.lowlevel.checkpoint()

    # -- the verdict -------------------------------------------------------------------------------------------------

    async def judged(
        self, topic: Topic, jobs: Sequence[UniqueJob | None], *, keeps_answer: bool
    ) -> Mapping[int, int] | None:
        """Return the duplicates of an append, by their places in the batch, with the seqs of the jobs that
        are there; there was no await before the return. Return None if it had to wait: then the caller starts over.
        `keeps_answer`: the append has an idempotency key.

        Raises 429 for too many keys, and 503. Cancelling leaves nothing behind.
        """
        assert topic.queue is not None
        if topic.undecided:
            await self._commits.wait_for(topic.next_change())
            return None
        if topic.working is not None:
            await topic.working.wait()
            return None
        if topic.queue.sweep(self._registry.instant(), topic.config):
            await trio.lowlevel.checkpoint()
            return None
        try:
            self._registry.expire(topic)
            duplicates = self._judge(topic, topic.queue, jobs)
        except NotLoaded:
            await self._loader.expire(topic)
            with suppress(_Busy):
                await self._loader.prepared(topic, partial(self._judge, topic, topic.queue, jobs))
            return None
        except _Busy:
            await self._commits.wait_for(topic.next_change())
            return None
        self._check_room(topic, topic.queue, jobs, duplicates, keeps_answer=keeps_answer)
        return duplicates

    def _judge(self, topic: Topic, queue: JobQueue, jobs: Sequence[UniqueJob | None]) -> dict[int, int]:
        """Return the duplicates of an append that gets its seqs now. Raises NotLoaded and _Busy."""
        is_there = _after_commits(topic)
        now = self._registry.windows.now_ms()
        duplicates: dict[int, int] = {}
        first: dict[bytes, int] = {}
        seq = topic.assigned
        for i, job in enumerate(jobs):
            if job is not None:
                found = first.get(job.digest) or _find(queue, job, now, is_there)
                if found:
                    duplicates[i] = found
                    continue
                first[job.digest] = seq + 1
            seq += 1
        return duplicates

    def _check_room(
        self,
        topic: Topic,
        queue: JobQueue,
        jobs: Sequence[UniqueJob | None],
        duplicates: Mapping[int, int],
        *,
        keeps_answer: bool,
    ) -> None:
        """Raise 429 if there are too many keys, or too many jobs with one of them."""
        new = {job.digest for i, job in enumerate(jobs) if job is not None and i not in duplicates}
        wanted = len(new) + (len(duplicates) if keeps_answer else 0)
        if self._max and self.total.count + wanted > self._max:
            self._tidy(topic)
            if self.total.count + wanted > self._max:
                raise self._registry.throttle("max_unique_keys", self._max)
        unique = queue.leases.unique
        for digest in new if unique is not None or queue.keys_on_the_way else ():
            known = unique.count_of(digest) if unique is not None else 0
            if known + len(queue.keys_on_the_way.get(digest, ())) >= MOST_OF_A_KEY:
                raise self._registry.throttle("max_jobs_of_a_key", MOST_OF_A_KEY)

    # -- the commit --------------------------------------------------------------------------------------------------

    def begin(self, commit: Commit, event: KeyEvent) -> None:
        """Note that an append with keys was decided: others are judged by them, until it is published, or fails."""
        queue = commit.topic.queue
        assert queue is not None
        queue.put_keys_on_the_way(event)
        self.total.count += _size(event)
        commit.also_on_fail(partial(self._leave, queue, event))

    def publish(self, topic: Topic, event: KeyEvent) -> None:
        """Remember the keys of an append, in the step in which its records are published."""
        queue = topic.queue
        assert queue is not None
        self._leave(queue, event)
        queue.apply(event)
        self._adopt(topic)
        self._tidy(topic, most=2 * len(event.seqs) + 2)

    async def nothing_stored(
        self,
        topic: Topic,
        duplicates: Mapping[int, int],
        key: str | None,
        fence: Fence | None,
        attachment: AppendAttachment | None,
    ) -> Commit | None:
        """Finish an append of which all records are duplicates, once those are visible. If it raises a fence, or has an
        idempotency key or an attachment, that is a commit without records. Return this.

        Raises the 503 of the commit that fails. The caller has judged in this step.
        """
        if key is None and fence is None and (attachment is None or not attachment.frames):
            newest = max(duplicates.values())
            before = next((one for one in topic.pending or () if one.last_seq >= newest), None)
            if newest > topic.log.head_seq and before is not None:
                await self._commits.wait_for(before.done)
                if before.error is not None:
                    raise before.error
            return None
        commit = self._commit_answer(topic, duplicates, key, fence, attachment)
        await commit.answer()
        return commit

    def _commit_answer(
        self,
        topic: Topic,
        duplicates: Mapping[int, int],
        key: str | None,
        fence: Fence | None,
        attachment: AppendAttachment | None,
    ) -> Commit:
        at = self._registry.windows.now_ms()
        first_seq = topic.assigned + 1
        event = key_event((), duplicates, first_seq, at, key)
        tail: list[tuple[FrameType, dict[str, Any]]] = []
        if key is not None and event is not None:
            tail.append((FrameType.IDEMPOTENCY, {"key": key, "first": first_seq, "count": 0, "at": at}))
            tail.append(key_frame(event))
        if fence is not None:
            tail.append((FrameType.FENCE, {"name": fence.name, "token": fence.token}))
        if attachment is not None:
            tail += attachment.frames
        data = NOTHING
        if not topic.ephemeral:
            data = seal_batch(tail, topic_id=topic.id, ts=self._registry.now_ms(), opened=False)

        def publish(commit: Commit) -> None:
            if event is not None:
                self.publish(topic, event)
            if key is not None:
                self._keys.remember(topic, key, first_seq, 0, at)
            if fence is not None:
                publish_fence(topic, fence)
            if attachment is not None:
                attachment.publish()

        commit_point = topic.commit_point if data else CommitPoint.HANDED
        if attachment is not None:
            commit_point = CommitPoint.SYNCED
        commit = Commit(topic, data, len(tail) if data else 0, commit_point, publish, self._clock.perf_ns)
        if key is not None:
            self._keys.begin(commit, key)
        if event is not None:
            self.begin(commit, event)
        if attachment is not None:
            commit.also_on_fail(attachment.fail)
        self._commits.send(commit)
        return commit

    # -- within ------------------------------------------------------------------------------------------------------

    def _adopt(self, topic: Topic) -> None:
        unique = topic.queue.leases.unique if topic.queue is not None else None
        if unique is not None and topic.id not in self._topics:
            unique.join(self.total)
            self._topics[topic.id] = topic

    def _leave(self, queue: JobQueue, event: KeyEvent) -> None:
        queue.take_keys_off_the_way(event)
        self.total.count -= _size(event)

    def _tidy(self, topic: Topic, most: int = AT_ONCE) -> bool:
        unique = topic.queue.leases.unique if topic.queue is not None else None
        if unique is None:
            return False
        return unique.tidy(self._registry.windows.now_ms(), topic.config.idempotency_window_ms, most)


def key_event(
    jobs: Sequence[UniqueJob | None], duplicates: Mapping[int, int], first_seq: int, at: int, key: str | None
) -> KeyEvent | None:
    """Return the event for the keys of an append that gets seqs from `first_seq` on at `at` (ms of the window clock),
    of which `duplicates` are not stored; None if there is nothing to remember. `jobs`: of the records that are stored.
    `key` is its idempotency key."""
    keyed = [(seq, job) for seq, job in enumerate(jobs, first_seq) if job is not None]
    answer = None
    if key is not None and duplicates:
        answer = FirstAnswer(key, at, first_seq, len(jobs), array("I", duplicates), array("Q", duplicates.values()))
    if not keyed and answer is None:
        return None
    seqs = array("Q", [seq for seq, _ in keyed])
    windows = array("I", [job.window_ms for _, job in keyed])
    return KeyEvent(seqs, b"".join([job.digest for _, job in keyed]), windows, at, answer)


def key_frame(event: KeyEvent) -> tuple[FrameType, dict[str, Any]]:
    """Return the frame that logs the event."""
    return FrameType.LEASE, {**event.to_wire(), "at": event.moment}


def duplicates_of(topic: Topic, key: str, first_seq: int, count: int) -> Mapping[int, int] | None:
    """Return the duplicates of the append that is remembered under an idempotency key with this first seq and count.
    None if it had none."""
    unique = topic.queue.leases.unique if topic.queue is not None else None
    answer = unique.answer(key) if unique is not None else None
    if answer is None or (answer.first_seq, answer.stored) != (first_seq, count):
        return None
    return dict(zip(answer.records, answer.seqs, strict=True))


def _find(queue: JobQueue, job: UniqueJob, now: int, is_there: Callable[[int], bool]) -> int:
    """Return the seq of the newest job that makes a record a duplicate, 0 if there is none."""
    since = now - job.window_ms
    for seq, at in reversed(queue.keys_on_the_way.get(job.digest, ())):
        if at > since if job.scope == "window" else is_there(seq):
            return seq
    unique = queue.leases.unique
    for entry in unique.of(job.digest) if unique is not None else ():
        there = not entry.gone and is_there(entry.seq)
        if job.scope == "window":
            if entry.at > since and (there or entry.until > now):
                return entry.seq
        elif there:
            if job.scope == "unfinished":
                return entry.seq
            waits = queue.leases.is_waiting(entry.seq)
            if waits is None:
                raise _Busy
            if waits:
                return entry.seq
    return 0


def _after_commits(topic: Topic) -> Callable[[int], bool]:
    """Return what tells whether a job that is published, or on its way, is there after the commits on their way."""
    foreseen = list(_foreseen(topic))
    floor = max((one.floor for one in foreseen), default=0)
    removals = [one.removes for one in foreseen if one.removes is not None]
    head_seq = topic.log.head_seq

    def is_there(seq: int) -> bool:
        return seq >= floor and (seq > head_seq or not any(removes(seq) for removes in removals))

    return is_there


def _foreseen(topic: Topic) -> Iterator[Foreseen]:
    for commit in topic.pending or ():
        if commit.foreseen is not None:
            yield commit.foreseen


def _size(event: KeyEvent) -> int:
    return len(event.seqs) + (len(event.answer.seqs) if event.answer is not None else 0)
