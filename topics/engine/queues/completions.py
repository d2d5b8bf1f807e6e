"""Delivering the results of finished jobs to the topic that `completed` names (`docs/design/completions.md`,
`docs/spec/crash.md` 28).

An ack of such a queue is answered when it is logged with its results. One task per queue with results that wait appends
them to the topic, waits until that is synced, and only then deletes the jobs in the queue; a crash in between leaves
both. Results whose append fails are tried again later, job by job. If the queue's config names no such topic any more,
nobody wants the results that wait: the jobs end without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import trio

from topics.engine.commits import Commits
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends
from topics.engine.queues.lease_commits import LeaseCommits
from topics.engine.registry import EngineStatus, Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, topic_not_found
from topics.log.block import Block, block_with
from topics.model import CheckedAppend, Performance, RecordIn
from topics.queue.job_results import MAX_RESULTS_BYTES, RESULT_BYTES, JobResults
from topics.runtime.background import BackgroundTasks
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

BATCH_RESULTS: Final = 1000
BATCH_BYTES: Final = 1 << 20
"""Bounds of the results that are appended together; one that is longer is appended alone."""

SINGLES: Final = 8
"""If so many results of a failed batch fail one by one, the rest is tried as another batch."""

MIN_PAUSE_MS: Final = 100
MAX_PAUSE_MS: Final = 30_000
"""Pauses before a result is tried again (ms): each twice as long as the one before, between these bounds."""

MAX_ALL_BYTES: Final = 16 * MAX_RESULTS_BYTES
"""Bytes of the results of all queues together, at most."""


class Completions:
    """Delivers the results of all queues, one background task per queue. Made once by the engine."""

    def __init__(
        self,
        status: EngineStatus,
        registry: Registry,
        *,
        commits: Commits,
        lease_commits: LeaseCommits,
        appends: Appends,
        loader: Loader,
        background: BackgroundTasks,
    ) -> None:
        self._status = status
        self._registry = registry
        self._commits = commits
        self._lease_commits = lease_commits
        self._appends = appends
        self._loader = loader
        self._background = background
        self._attended: dict[JobQueue, None] = {}
        """The queues that have a task."""
        self._tries: set[trio.Event] = set()
        """Events for the ends of the deliveries in flight."""

    async def ended(self) -> None:
        """Wait until the deliveries in flight have ended; none is begun once the daemon drains."""
        for end in list(self._tries):
            await end.wait()

    def check_room(self, queue: JobQueue, size: int) -> None:
        """Refuse results that count `size` bytes where too many wait already. Raises 429."""
        waiting = _waiting(queue)
        if waiting and waiting + size > MAX_RESULTS_BYTES:
            raise self._registry.throttle("max_results_bytes", MAX_RESULTS_BYTES)
        everywhere = sum(map(_waiting, self._attended))
        if everywhere and everywhere + size > MAX_ALL_BYTES:
            raise self._registry.throttle("max_all_results_bytes", MAX_ALL_BYTES)

    def waiting(self) -> tuple[int, int]:
        """Return how many results of all queues and groups wait for delivery, and how many bytes they count. Those of
        acks on their way count in the bytes only."""
        return sum([len(queue.leases.results) for queue in self._attended]), sum(map(_waiting, self._attended))

    def attend(self, topic: Topic, queue: JobQueue) -> None:
        """Start or wake the queue's task: there may be results, or another topic for them."""
        queue.results_more.set()
        if queue not in self._attended:
            self._attended[queue] = None
            self._background.start_soon(self._deliver_all, topic, queue)

    async def _deliver_all(self, topic: Topic, queue: JobQueue) -> None:
        """Deliver results until none waits, or the topic is deleted."""
        retries = _Retries()
        config = queue.terms(topic.config)
        try:
            while not topic.deleted and not queue.deleted and self._status.phase != "draining":
                if queue.terms(topic.config) is not config:
                    # With another config, what has failed may succeed.
                    retries, config = _Retries(), queue.terms(topic.config)
                queue.results_more = trio.Event()
                waiting = queue.leases.results
                if not waiting and topic.quiet:
                    return
                batch, wait_ms = retries.next_batch(waiting, self._lease_commits.now().mono)
                if batch:
                    await self._try(topic, queue, batch, retries)
                else:
                    with trio.move_on_after(wait_ms / 1000):
                        await (queue.results_more if waiting else topic.next_change()).wait()
        finally:
            del self._attended[queue]

    async def _try(self, topic: Topic, queue: JobQueue, seqs: Sequence[int], retries: _Retries) -> None:
        """Try to deliver results, and note which of them have to wait."""
        end = trio.Event()
        self._tries.add(end)
        try:
            delivered, failed = await self._deliver_some(topic, queue, seqs)
        except ApiError as error:
            delivered, failed = [], dict.fromkeys(seqs, error)
        finally:
            self._tries.remove(end)
            end.set()
        retries.note(delivered, failed, self._lease_commits.now().mono)
        if failed:
            seq, why = next(iter(failed.items()))
            log.warning("results_delayed", topic=topic.name, seq=seq, jobs=len(failed), why=str(why))

    async def _deliver_some(
        self, topic: Topic, queue: JobQueue, seqs: Sequence[int]
    ) -> tuple[list[int], dict[int, ApiError]]:
        """Deliver results, or end the jobs without them if nobody wants them. Return which were delivered, and which
        failed, with the errors; others were not tried. Raises errors that concern all of them."""
        await self._lease_commits.still_current(topic, queue)
        name = queue.terms(topic.config).completed
        failed: dict[int, ApiError] = {}
        delivered = list(seqs)
        if name is not None:
            target = self._registry.topics.get(name)
            if target is not None and target.ephemeral:
                raise ApiError("invalid_request", f"{name!r} is ephemeral")  # configs of topics do not allow it
            tags = await self._tags(topic, seqs)
            try:
                await self._append(topic, queue, name, seqs, tags)
            except ApiError as error:
                delivered = []
                for seq in seqs:
                    if len(seqs) == 1:
                        failed[seq] = error
                    elif len(failed) < SINGLES or delivered:
                        try:
                            await self._append(topic, queue, name, (seq,), tags)
                            delivered.append(seq)
                        except ApiError as reason:
                            failed[seq] = reason
            if delivered:
                await self._sync(name)
        if delivered:
            await self._end(topic, queue, delivered)
        return delivered, failed

    async def _tags(self, topic: Topic, seqs: Sequence[int]) -> dict[int, str]:
        """Return the tags of those jobs whose records are still there and have one. Raises 404, and 503 if the disk
        does not answer."""
        tags: dict[int, str] = {}
        loaded: list[Block] = []
        for seq in seqs:
            while await self._loader.prepared(topic, partial(topic.log.is_live, seq)):
                if topic.deleted:
                    raise topic_not_found(topic.name)
                block = topic.blocks.find(seq) or block_with(loaded, seq)
                if block is not None:
                    tag = block.parts_of(seq).tag.decode()
                    if tag:
                        tags[seq] = tag
                    break
                loaded = await self._loader.load(topic, seq, seq)
        return tags

    async def _append(
        self, topic: Topic, queue: JobQueue, name: str, seqs: Sequence[int], tags: dict[int, str]
    ) -> None:
        """Append results to a topic, which is made if it is missing."""
        found = [(seq, result) for seq in seqs if (result := queue.leases.results.of(seq)) is not None]
        place: dict[str, Any] = {"topic": topic.name}
        if queue.group is not None:
            place["group"] = queue.group
        datas = [
            msgspec.json.encode({**place, "job_seq": seq, "node": result.node, "result": msgspec.Raw(result.data)})
            for seq, result in found
        ]
        if not datas:
            return
        request = CheckedAppend(
            records=[RecordIn(data=msgspec.Raw(data)) for data in datas],
            datas=datas,
            nodes=None,
            tags=[tags.get(seq) for seq, _ in found] if tags else None,
            metas=None,
            disable_backpressure=True,
        )
        # They are not judged by a schema of that topic: a result that breaks it would wait for ever.
        await self._appends.append(name, request, Performance(), check_schema=False)

    async def _sync(self, name: str) -> None:
        """Return once the appends to a topic are on disk. Raises 503."""
        target = self._registry.topics.get(name)
        if target is not None and target.synced_seq < target.log.head_seq:
            await self._commits.sync_shard(target)

    async def _end(self, topic: Topic, queue: JobQueue, seqs: Sequence[int]) -> None:
        """End jobs whose results are on disk. Raises 404 and 503."""
        while not await self._lease_commits.settle(topic, queue):
            pass
        event = queue.leases.decide_deliver(seqs).event
        if event is not None:
            await self._lease_commits.end(topic, queue, event).wait()


class _Retries:
    """When the results of one queue are tried again that could not be delivered: each after a pause of its own, so that
    one that can never be delivered does not block the others. If none of a batch was delivered, all others wait for a
    pause too."""

    def __init__(self) -> None:
        self._until: dict[int, tuple[int, int]] = {}
        """For each of them, when its pause ends (monotonic ms), and the length of that pause (ms)."""
        self._all_until = self._all_pause = 0
        self._may_repeat = False
        """True if it is the turn of those that have failed before: they take turns with others."""

    def next_batch(self, waiting: JobResults, now_ms: int) -> tuple[list[int], float]:
        """Return some results to be delivered together; if there are none, how long to wait (ms), 0 for not at all."""
        if now_ms < self._all_until:
            return [], self._all_until - now_ms
        again = sorted((until, seq) for seq, (until, _) in self._until.items() if until <= now_ms)
        if again and self._may_repeat:
            self._may_repeat = False
            return _some(waiting, [seq for _, seq in again]), 0
        self._may_repeat = True
        fresh = _some(waiting, (seq for seq in waiting if seq not in self._until))
        if fresh or again:
            return fresh, 0
        return [], min((until - now_ms for until, _ in self._until.values()), default=float("inf"))

    def note(self, delivered: Sequence[int], failed: Iterable[int], now_ms: int) -> None:
        """Note what became of a batch."""
        for seq in delivered:
            self._until.pop(seq, None)
        for seq in failed:
            pause = _longer(self._until.get(seq, (0, 0))[1])
            self._until[seq] = now_ms + pause, pause
        self._all_pause = 0 if delivered else _longer(self._all_pause)
        self._all_until = now_ms + self._all_pause


def _some(waiting: JobResults, seqs: Iterable[int]) -> list[int]:
    """Return the first of these results, as many as are delivered together."""
    batch: list[int] = []
    size = 0
    for seq in seqs:
        result = waiting.of(seq)
        assert result is not None
        size += len(result.data) + RESULT_BYTES
        if batch and (size > BATCH_BYTES or len(batch) == BATCH_RESULTS):
            break
        batch.append(seq)
    return batch


def _longer(pause: int) -> int:
    return min(max(2 * pause, MIN_PAUSE_MS), MAX_PAUSE_MS)


def _waiting(queue: JobQueue) -> int:
    """Return what the results count that wait for delivery, with those that are about to."""
    return queue.leases.results.size + queue.results_on_the_way
