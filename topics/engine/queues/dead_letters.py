"""Moving jobs that have had all their deliveries to the dead-letter topic (`docs/spec/semantics.md` section 6,
`docs/spec/crash.md` 26).

Such jobs are parked: claims do not see them, and no request waits for their move. One task per queue with parked jobs
appends them to the dead-letter topic, waits until that is synced, and only then deletes them in the queue; a crash in
between leaves both copies. Failed moves are tried again later, job by job, so that a job that can never be moved does
not block the others. If the queue's config names no dead-letter topic any more, its parked jobs become free.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import Final

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
from topics.log.block import Block, RecordParts, block_with
from topics.model import CheckedAppend, Performance, RecordIn
from topics.runtime.background import BackgroundTasks
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

BATCH_JOBS: Final = 100
BATCH_BYTES: Final = 1 << 20
"""Bounds of the jobs that are moved together."""

SINGLES: Final = 8
"""If so many jobs of a failed batch fail one by one, the rest is tried as another batch."""

MIN_BACKOFF_MS: Final = 100
MAX_BACKOFF_MS: Final = 30_000
"""Pauses before a job is tried again (ms): each twice as long as the one before, between these bounds."""


class DeadLetters:
    """Moves parked jobs of all queues, one background task per queue. Made once by the engine."""

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
        self._tries: set[trio.Event] = set()
        """Events for the ends of the moves in flight."""

    async def ended(self) -> None:
        """Wait until the moves in flight have ended; none is begun once the daemon drains."""
        for end in list(self._tries):
            await end.wait()

    def attend(self, topic: Topic, queue: JobQueue) -> None:
        """Start or wake the queue's task: there may be parked jobs, or another dead-letter topic."""
        queue.parked_more.set()
        if not queue.moving:
            queue.moving = True
            self._background.start_soon(self._move_all, topic, queue)

    async def _move_all(self, topic: Topic, queue: JobQueue) -> None:
        """Move jobs until none is parked, or the topic is deleted."""
        backoff = _Backoff()
        config = queue.terms(topic.config)
        try:
            while not topic.deleted and not queue.deleted:
                if queue.terms(topic.config) is not config:
                    # With another config, moves that failed may succeed.
                    backoff, config = _Backoff(), queue.terms(topic.config)
                queue.parked_more = trio.Event()
                parked = queue.leases.parked()
                if not parked and topic.quiet:
                    return
                now = self._lease_commits.now().mono
                due, wait_ms = backoff.due(parked, now)
                if not due:
                    with trio.move_on_after(wait_ms / 1000):
                        await (queue.parked_more if parked else topic.next_change()).wait()
                    continue
                for at in range(0, len(due), BATCH_JOBS):
                    if self._status.phase == "draining":
                        return
                    await self._try(topic, queue, due[at : at + BATCH_JOBS], backoff)
        finally:
            queue.moving = False

    async def _try(self, topic: Topic, queue: JobQueue, seqs: Sequence[int], backoff: _Backoff) -> None:
        """Try to move jobs, and note which of them have to wait."""
        end = trio.Event()
        self._tries.add(end)
        try:
            failed = await self._move_some(topic, queue, seqs)
        except ApiError as error:
            failed = dict.fromkeys(seqs, error)
        finally:
            self._tries.remove(end)
            end.set()
        backoff.note(seqs, failed, self._lease_commits.now().mono)
        if failed:
            seq, why = next(iter(failed.items()))
            log.warning("dead_letters_delayed", topic=topic.name, seq=seq, jobs=len(failed), why=str(why))

    async def _move_some(self, topic: Topic, queue: JobQueue, seqs: Sequence[int]) -> dict[int, ApiError]:
        """Move jobs to the dead-letter topic, or free them if there is none. Return those that failed, with the errors.
        Raises errors that concern all of them."""
        await self._lease_commits.still_current(topic, queue)
        config = queue.terms(topic.config)
        if config.dead_letter is None or not config.max_deliveries:
            # Condemned jobs go there however often they may be delivered.
            unparked = queue.leases.decide_unpark(seqs, condemned=config.dead_letter is None)
            if unparked.event is not None:
                await self._lease_commits.lease(topic, queue, unparked.event).wait()
            seqs = unparked.skipped
            if config.dead_letter is None or not seqs:
                return {}
        target = self._registry.topics.get(config.dead_letter)
        if target is not None and target.ephemeral:
            raise ApiError("invalid_request", f"{config.dead_letter!r} is ephemeral")  # configs do not allow it
        jobs = await self._jobs(topic, seqs)
        failed: dict[int, ApiError] = {}
        moved = list(jobs)
        try:
            await self._append(topic, queue, config.dead_letter, jobs)
        except ApiError as error:
            moved = []
            for seq in jobs:
                if len(jobs) == 1:
                    failed[seq] = error
                elif len(failed) < SINGLES or moved:
                    try:
                        await self._append(topic, queue, config.dead_letter, {seq: jobs[seq]})
                        moved.append(seq)
                    except ApiError as reason:
                        failed[seq] = reason
        if moved:
            await self._sync(config.dead_letter)
            await self._delete(topic, queue, moved)
        return failed

    async def _jobs(self, topic: Topic, seqs: Sequence[int]) -> dict[int, RecordParts]:
        """Return the first of these jobs, with the contents of their records. Raises 503 if the disk does not
        answer."""
        jobs: dict[int, RecordParts] = {}
        loaded: list[Block] = []
        size = 0
        for seq in seqs:
            while await self._loader.prepared(topic, partial(topic.log.is_live, seq)):
                if topic.deleted:
                    raise topic_not_found(topic.name)
                block = topic.blocks.find(seq) or block_with(loaded, seq)
                if block is not None:
                    parts = block.parts_of(seq)
                    size += len(parts.data) + len(parts.meta)
                    if size <= BATCH_BYTES or not jobs:
                        jobs[seq] = parts
                    break
                loaded = await self._loader.load(topic, seq, seq)
            if size > BATCH_BYTES:
                break
        return jobs

    async def _append(self, topic: Topic, queue: JobQueue, name: str, jobs: dict[int, RecordParts]) -> None:
        """Append jobs to the dead-letter topic, which is made if it is missing. Jobs that have died since they were
        read are left out."""
        jobs = {seq: parts for seq, parts in jobs.items() if queue.leases.is_parked(seq)}
        if not jobs:
            return
        datas = [parts.data for parts in jobs.values()]
        metas = [_meta(topic.name, queue, seq, parts.meta) for seq, parts in jobs.items()]
        tags = [parts.tag.decode() or None for parts in jobs.values()]
        request = CheckedAppend(
            records=[RecordIn(data=msgspec.Raw(data)) for data in datas],
            datas=datas,
            nodes=None,
            tags=tags if any(tags) else None,
            metas=metas,
            disable_backpressure=True,
        )
        # They are not judged by a schema of that topic: a job that breaks it would stay parked for ever.
        await self._appends.append(name, request, Performance(), check_schema=False)

    async def _sync(self, name: str) -> None:
        """Return once the appends to the dead-letter topic are on disk. Raises 503."""
        target = self._registry.topics.get(name)
        if target is not None and target.synced_seq < target.log.head_seq:
            await self._commits.sync_shard(target)

    async def _delete(self, topic: Topic, queue: JobQueue, seqs: Sequence[int]) -> None:
        """Delete jobs whose copies are on disk. Raises 404 and 503."""
        while not await self._lease_commits.settle(topic, queue):
            pass
        event = queue.leases.decide_dead_letter(seqs).event
        if event is not None:
            await self._lease_commits.end(topic, queue, event).wait()


class _Backoff:
    """The jobs that failed, and when each may be tried again."""

    def __init__(self) -> None:
        self._until: dict[int, tuple[int, int]] = {}
        """For each job, when its pause ends (monotonic ms), and the length of that pause (ms)."""

    def due(self, parked: array[int], now_ms: int) -> tuple[list[int], float]:
        """Return the parked jobs that are to be tried, those that have waited longest last; if there are none, how long
        to wait."""
        self._until = {seq: self._until[seq] for seq in parked if seq in self._until}
        due = [seq for seq in parked if seq not in self._until]
        due += [seq for at, seq in sorted((at, seq) for seq, (at, _) in self._until.items()) if at <= now_ms]
        wait = min((at for at, _ in self._until.values()), default=None)
        return due, float("inf") if wait is None else max(wait - now_ms, 0)

    def note(self, tried: Sequence[int], failed: dict[int, ApiError], now_ms: int) -> None:
        """Note which of the jobs that were tried have failed."""
        for seq in tried:
            if seq not in failed:
                self._until.pop(seq, None)
                continue
            _, pause = self._until.get(seq, (0, MIN_BACKOFF_MS // 2))
            pause = min(2 * pause, MAX_BACKOFF_MS)
            self._until[seq] = now_ms + pause, pause


def _meta(topic: str, queue: JobQueue, seq: int, meta: bytes) -> bytes:
    """Return a job's meta with its history added."""
    fields: dict[str, str] = msgspec.json.decode(meta) if meta else {}
    fields |= {
        "$dead_letter_from": topic,
        "$dead_letter_deliveries": str(queue.leases.deliveries(seq)),
        "$dead_letter_src_seq": str(seq),
    }
    if queue.group is not None:
        fields["$dead_letter_group"] = queue.group
    error = queue.leases.errors.of(seq)
    if error is not None:
        fields["$dead_letter_error"] = error
    return msgspec.json.encode(fields)
