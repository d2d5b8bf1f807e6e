"""The calls of a queue: claim, ack, nack, extend, and the `/work` stream (`docs/spec/api.md` section 9).

Every call brings the queue up to date, decides in one step which of the seqs are the caller's (`topics.queue.leases`),
and answers when that is published (`topics.engine.queues.lease_commits`). A seq with an event in flight is decided
again after that event. `topics.engine.queues.claims` deals jobs to claimers, `topics.engine.queues.dead_letters` moves
exhausted jobs.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Final, NamedTuple, TypeVar

import trio
from msgspec import UNSET

from topics.config import Settings
from topics.engine.commits import Commits, time_commit
from topics.engine.job_queue import Claimer, Holder, JobQueue
from topics.engine.queues.claims import Claim, Claims
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.lease_commits import LeaseCommits
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.errors import ApiError, invalid
from topics.model import ClaimRequest, ClaimResult, HeldRequest, HeldResult, Job, NackTerms, Performance, QueueState
from topics.queue.lease_events import AckEvent, ExtendEvent, NackEvent, PauseEvent, ReleaseEvent, ResumeEvent
from topics.queue.leases import LeaseDecision
from topics.runtime.background import BackgroundTasks

CLAIM_BYTES: Final = 8 << 20
"""Bytes of JSON of the jobs that one claim returns at most; at least one job is returned whatever its size."""

STREAM_BYTES: Final = 256 << 10
"""The same bound for one batch of a stream."""

JOB_BYTES: Final = 96
"""Bytes that a job takes besides its record: lease id, deadline, deliveries."""

E = TypeVar("E", AckEvent, ReleaseEvent | NackEvent, ExtendEvent)


class QueueCalls:
    """The calls on queues. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        commits: Commits,
        lease_commits: LeaseCommits,
        claims: Claims,
        dead_letters: DeadLetters,
        background: BackgroundTasks,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._commits = commits
        self._lease_commits = lease_commits
        self._claims = claims
        self._dead_letters = dead_letters
        self._background = background
        self._catch_up = catch_up

    # -- calls -------------------------------------------------------------------------------------------------------

    async def claim(self, name: str, request: ClaimRequest, perf: Performance) -> ClaimResult:
        """Lease jobs to a node, including those that routers owe the topic now. Raises 404, 409, and 503 on a failed
        shard or while the daemon stops.

        Cancelling at any time leaves no job leased to a client that has not been told.
        """
        await self._catch_up((name,))
        until = trio.current_time() + request.wait_ms / 1000
        while True:
            topic, queue = await self._lease_commits.current(name)
            self._registry.touch(topic)
            claimer = Claimer(request.node, request.most)
            try:
                await self._claims.join(topic, queue, claimer, waits=trio.current_time() < until)
                await self._wait(topic, claimer, until)
                jobs = await self._take(topic, queue, claimer, request.lease_ms, CLAIM_BYTES, perf)
            finally:
                self._claims.leave(topic, queue, claimer)
            if jobs or trio.current_time() >= until:
                return ClaimResult(jobs, queue.leases.ready(topic.log.count), queue.paused)

    async def _wait(self, topic: Topic, claimer: Claimer, until: float) -> None:
        if claimer.hand:
            return
        if topic.config.claim_jitter_ms:
            await claimer.passed.wait()
        with trio.move_on_at(until):
            await claimer.woken.wait()
        if claimer.ended is not None:
            raise claimer.ended

    async def _take(
        self,
        topic: Topic,
        queue: JobQueue,
        claimer: Claimer,
        lease_ms: int | None,
        most_bytes: int,
        perf: Performance,
        holder: Holder | None = None,
    ) -> list[Job]:
        """Claim the jobs that were dealt, as far as they fit. Return them, ascending; some may have died since."""
        if not claimer.hand:
            return []
        fetched = await self._claims.fetch(topic, queue, claimer, most_bytes, JOB_BYTES, perf)
        if not fetched.seqs:
            return []
        claim = await self._claims.claim(topic, claimer, fetched, lease_ms or topic.config.lease_ms)
        try:
            done, deliveries = await claim.commit.answer()
        except (trio.Cancelled, ApiError):
            if claim.commit.error is None:  # it is, or may still be, carried out
                leases = dict(zip(fetched.seqs, claim.lease_ids, strict=True))
                self._background.start_soon(self._release, topic, queue, leases, claim.commit)
            raise
        time_commit(claim.commit, perf)
        jobs = _jobs(claim, done, deliveries)
        if holder is not None:
            for job in jobs:
                if queue.leases.holds(job.seq, job.lease_id):
                    queue.give(holder, job.seq, job.lease_id)
        return jobs

    async def ack(self, name: str, request: HeldRequest, perf: Performance) -> HeldResult:
        """Delete jobs that the node holds. Raises 404, 409, 429 when the shard's queue stays full, and 503."""

        def decide(queue: JobQueue, seqs: Sequence[int], lease_ids: Sequence[int] | None) -> LeaseDecision[AckEvent]:
            return queue.leases.decide_ack(request.node, seqs, lease_ids, queue.now)

        return await self._say(name, request, decide, self._lease_commits.end, perf, takes_room=True)

    async def nack(self, name: str, request: HeldRequest, nack: NackTerms, perf: Performance) -> HeldResult:
        """Give jobs back that the node holds. Raises 400 for a `dead` one where there is no dead-letter topic, 404, 409
        and 503."""
        delay_ms, error, counts, dead = nack

        def decide(
            queue: JobQueue, seqs: Sequence[int], lease_ids: Sequence[int] | None
        ) -> LeaseDecision[ReleaseEvent | NackEvent]:
            return queue.leases.decide_nack(
                request.node, seqs, lease_ids, queue.now, delay_ms, counts=counts, condemns=dead, error=error
            )

        if not dead:
            return await self._say(name, request, decide, self._lease_commits.lease, perf)
        topic, queue = await self._lease_commits.current(name)
        if topic.config.dead_letter is None:
            raise invalid("dead", f"topic {name!r} has no dead_letter")
        result = await self._say(name, request, decide, self._lease_commits.lease, perf)
        self._dead_letters.attend(topic, queue)
        return result

    async def pause(self, name: str, until: int | None, perf: Performance) -> QueueState:
        """Give out no jobs of a queue until `until` (epoch ms), or for None until it is resumed. Returns once that is
        synced. Raises 404, 409 and 503."""
        return await self._pause(name, PauseEvent(until or 0), perf)

    async def resume(self, name: str, perf: Performance) -> QueueState:
        """Give out the jobs of a queue again. Otherwise like `pause`."""
        return await self._pause(name, ResumeEvent(), perf)

    async def _pause(self, name: str, event: PauseEvent | ResumeEvent, perf: Performance) -> QueueState:
        topic, queue = await self._lease_commits.current(name)
        commit = self._lease_commits.pause(topic, event)
        await commit.answer()
        time_commit(commit, perf)
        if queue.line:
            self._claims.attend(topic, queue)
        state = self.state(topic)
        assert state is not None
        return state

    async def extend(self, name: str, request: HeldRequest, lease_ms: int, perf: Performance) -> HeldResult:
        """Hold jobs that the node holds until `lease_ms` from now. Raises 404, 409 and 503."""
        deadlines: dict[int, int] = {}

        def decide(queue: JobQueue, seqs: Sequence[int], lease_ids: Sequence[int] | None) -> LeaseDecision[ExtendEvent]:
            decision = queue.leases.decide_extend(request.node, seqs, lease_ids, queue.now, lease_ms)
            if decision.event is not None:
                deadline = self._lease_commits.deadline(decision.event.deadline)
                deadlines.update(dict.fromkeys(decision.event.seqs, deadline))
            return decision

        result = await self._say(name, request, decide, self._lease_commits.lease, perf)
        result.deadlines = {str(seq): deadlines[seq] for seq in result.done}
        return result

    async def _say(
        self,
        name: str,
        request: HeldRequest,
        decide: Callable[[JobQueue, Sequence[int], Sequence[int] | None], LeaseDecision[E]],
        send: Callable[[Topic, E], Commit],
        perf: Performance,
        *,
        takes_room: bool = False,
    ) -> HeldResult:
        """Decide and commit; repeat for seqs that have another event in flight."""
        seqs, lease_ids = request.seqs, request.lease_ids
        done: array[int] = array("Q")
        skipped: list[int] = []
        while True:
            topic, queue = await self._lease_commits.current(name)
            writer = self._commits.writer(topic)
            if takes_room and writer.queue.is_full and not topic.ephemeral:
                await self._commits.admit(writer, self._settings.admission_ms)
                continue
            decision = decide(queue, seqs, lease_ids)
            skipped += decision.skipped
            if decision.event is not None:
                commit = send(topic, decision.event)
                happened = await commit.answer()
                time_commit(commit, perf)
                done.extend(happened)
                if len(happened) < len(decision.event.seqs):
                    found = set(happened)
                    skipped += [seq for seq in decision.event.seqs if seq not in found]
            if not decision.busy:
                break
            again = set(decision.busy)
            if lease_ids is not None:
                lease_ids = [lease_id for seq, lease_id in zip(seqs, lease_ids, strict=True) if seq in again]
            seqs = [seq for seq in seqs if seq in again]
            if decision.event is None:
                await self._commits.wait_for(topic.next_change(), writer)
        leases = queue.leases
        return HeldResult(
            done=sorted(done),
            skipped=skipped,
            ready=leases.ready(topic.log.count),
            in_flight=leases.in_flight,
        )

    def sweep(self, topic: Topic) -> bool:
        """Free jobs of a queue whose lease or delay is over, as many as fit into a step. Return True if there are
        more."""
        return topic.queue is not None and topic.queue.sweep(self._lease_commits.now(), topic.config)

    def state(self, topic: Topic) -> QueueState | None:
        """The counters of a queue as of its last sweep; None for a log."""
        if topic.queue is None:
            return None
        leases = topic.queue.leases
        return QueueState(
            ready=leases.ready(topic.log.count),
            in_flight=leases.in_flight,
            delayed=leases.delayed,
            dead_lettered=leases.dead_lettered,
            paused=topic.queue.paused,
            paused_until=leases.paused_until if topic.queue.paused and leases.paused_until else UNSET,
        )

    def window_ms(self, name: str) -> int:
        """Return the window that claims of the topic wait for, whatever they ask for (ms); 0 for none."""
        topic = self._registry.topics.get(name)
        return 0 if topic is None else topic.config.claim_jitter_ms

    def figures(self, topic: Topic) -> tuple[int, int, int, bool] | None:
        """Return ready, leased and delayed jobs, and whether the queue is paused, for metrics, without waiting for
        columns; None for a log."""
        self.sweep(topic)
        state = self.state(topic)
        return None if state is None else (state.ready, state.in_flight, state.delayed, state.paused)

    def look_after(self, topic: Topic) -> None:
        """Wake the tasks of a queue after a start or a config change: there may be another window, or another
        dead-letter topic."""
        queue = topic.queue
        if queue is None:
            return
        if queue.leases.parked():
            self._dead_letters.attend(topic, queue)
        queue.ring()
        if queue.line:
            self._claims.attend(topic, queue)

    # -- streams -----------------------------------------------------------------------------------------------------

    async def open_work(self, name: str, node: str, most: int, lease_ms: int | None) -> JobSubscription:
        """Open a stream of jobs, for `next_jobs`, after forwarding what routers owe the topic now; `close_work` must be
        called. Raises 404, 409, and 503 on a failed shard."""
        await self._catch_up((name,))
        topic, queue = self._queue(name)
        self._commits.check_writable(topic)
        return JobSubscription(topic, queue, node, most, lease_ms, Holder())

    async def next_jobs(self, work: JobSubscription) -> list[Job]:
        """Wait for jobs for a stream, once it has room for some. Raises 404 when the topic is deleted, and 503.
        Cancelling leaves nothing leased that `close_work` does not release."""
        topic, queue, holder = work.topic, work.queue, work.holder
        while True:
            while len(holder.leases) >= work.most:
                await self._until_freed(work)
            await self._lease_commits.still_current(topic)
            claimer = Claimer(work.node, work.most - len(holder.leases), asks_again=True)
            try:
                await self._claims.join(topic, queue, claimer, waits=True)
                await claimer.woken.wait()
                if claimer.ended is not None:
                    raise claimer.ended
                self._registry.touch(topic)
                jobs = await self._take(topic, queue, claimer, work.lease_ms, STREAM_BYTES, Performance(), holder)
            finally:
                self._claims.leave(topic, queue, claimer)
            if jobs:
                return jobs

    async def _until_freed(self, work: JobSubscription) -> None:
        """Wait until a stream may hold fewer jobs than before: a job has ended, or a lease may be over."""
        queue, holder = work.queue, work.holder
        holder.changed = trio.Event()
        now = self._lease_commits.now()
        left = queue.due_in_ms(now)
        ttl_ms, oldest = work.topic.config.ttl_ms, work.topic.log.index.oldest_ts
        if ttl_ms and oldest is not None:
            left = min(left, oldest + ttl_ms + 1 - self._registry.now_ms())
        with trio.move_on_after(max(left, 0) / 1000):
            await holder.changed.wait()
        await self._lease_commits.still_current(work.topic)

    def ready_jobs(self, name: str) -> int:
        """Return how many jobs of a queue are ready now. Raises 404 and 409."""
        topic, queue = self._queue(name)
        return queue.leases.ready(topic.log.count)

    def give_back(self, name: str, jobs: Sequence[Job]) -> None:
        """End the leases of a claim whose answer has not reached its client. Does nothing if the topic is deleted."""
        with suppress(ApiError):
            topic, queue = self._queue(name)
            leases = {job.seq: job.lease_id for job in jobs}
            if leases:
                self._background.start_soon(self._release, topic, queue, leases, None)

    def _queue(self, name: str) -> tuple[Topic, JobQueue]:
        topic = self._registry.topic(name)
        if topic.queue is None:
            raise ApiError("not_a_queue", f"topic {name!r} is a log, not a queue", detail={"topic": name})
        return topic, topic.queue

    def close_work(self, work: JobSubscription) -> None:
        """Close a stream: its jobs are free for others."""
        leases = work.queue.give_up(work.holder)
        if leases and not work.topic.deleted:
            self._background.start_soon(self._release, work.topic, work.queue, leases, None)

    async def _release(self, topic: Topic, queue: JobQueue, leases: dict[int, int], claim: Commit | None) -> None:
        """Release jobs of a claim or stream that has ended, after `claim` if that is still in flight. On a failed shard
        the leases expire instead."""
        with suppress(ApiError):
            if claim is not None:
                await claim.wait()
            while leases:
                if not await self._lease_commits.settle(topic, queue):
                    continue
                decision = queue.leases.decide_release(leases, queue.now)
                if decision.event is not None:
                    self._lease_commits.lease(topic, decision.event)
                leases = {seq: leases[seq] for seq in decision.busy}
                if leases:
                    await topic.next_change().wait()


class JobSubscription(NamedTuple):
    """A stream of jobs: up to `most` at a time are leased to it, each for `lease_ms` (None: as the topic says)."""

    topic: Topic
    queue: JobQueue
    node: str
    most: int
    lease_ms: int | None
    holder: Holder


def _jobs(claim: Claim, done: Sequence[int], deliveries: Sequence[int]) -> list[Job]:
    """Return the jobs of a claim that were leased in fact."""
    fetched = claim.fetched
    deadlines = repeat(claim.deadline)
    if len(done) == len(fetched.seqs):
        return list(map(Job, done, claim.lease_ids, deadlines, deliveries, fetched.records))
    found = dict(zip(done, deliveries, strict=True))
    jobs = zip(fetched.seqs, claim.lease_ids, deadlines, map(found.get, fetched.seqs), fetched.records, strict=False)
    return [Job._make(job) for job in jobs if job[0] in found]
