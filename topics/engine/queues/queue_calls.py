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

from topics.config import Settings
from topics.engine.commits import Commits, time_commit
from topics.engine.group_queue import GroupQueue
from topics.engine.job_queue import Claimer, Holder, JobQueue
from topics.engine.queues.claims import Claim, Claims
from topics.engine.queues.completions import Completions
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.lease_commits import LeaseCommits, queue_of
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.errors import ApiError, invalid
from topics.job_model import (
    ClaimRequest,
    ClaimResult,
    HeldRequest,
    HeldResult,
    Job,
    NackTerms,
)
from topics.model import Performance, QueueState
from topics.queue.job_results import size_of
from topics.queue.lease_events import (
    AckEvent,
    CompleteEvent,
    ExtendEvent,
    NackEvent,
    PauseEvent,
    ReleaseEvent,
    ResumeEvent,
)
from topics.queue.leases import LeaseDecision
from topics.runtime.background import BackgroundTasks
from topics.telemetry.figures import JobFigures

CLAIM_BYTES: Final = 8 << 20
"""Bytes of JSON of the jobs that one claim returns at most; at least one job is returned, of any size."""

STREAM_BYTES: Final = 256 << 10
"""The same bound for one batch of a stream."""

JOB_BYTES: Final = 96
"""Bytes that a job takes besides its record: lease id, deadline, deliveries."""

E = TypeVar("E", AckEvent | CompleteEvent, ReleaseEvent | NackEvent, ExtendEvent)


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
        completions: Completions,
        background: BackgroundTasks,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._commits = commits
        self._lease_commits = lease_commits
        self._claims = claims
        self._dead_letters = dead_letters
        self._completions = completions
        self._background = background
        self._catch_up = catch_up

    # -- calls -------------------------------------------------------------------------------------------------------

    async def claim(self, name: str, request: ClaimRequest, perf: Performance, group: str | None = None) -> ClaimResult:
        """Lease jobs to a node, including those that routers owe the topic now. Raises 404, 409, and 503 on a failed
        shard or while the daemon stops.

        Cancelling at any time leaves no job leased to a client that has not been told.
        """
        await self._catch_up((name,))
        until = trio.current_time() + request.wait_ms / 1000
        while True:
            topic, queue = await self._lease_commits.current(name, group)
            self._registry.touch(topic)
            claimer = Claimer(request.node, request.most)
            try:
                await self._claims.join(topic, queue, claimer, waits=trio.current_time() < until)
                await self._wait(topic, queue, claimer, until)
                jobs = await self._take(topic, queue, claimer, request.lease_ms, CLAIM_BYTES, perf)
            finally:
                self._claims.leave(topic, queue, claimer)
            if group is not None:
                perf.records_scanned = (perf.records_scanned or 0) + claimer.scanned
            if jobs or claimer.scan_is_over or trio.current_time() >= until:
                return _claimed(topic, queue, jobs)

    async def _wait(self, topic: Topic, queue: JobQueue, claimer: Claimer, until: float) -> None:
        if claimer.hand or claimer.scan_is_over:
            return
        if queue.terms(topic.config).claim_jitter_ms:
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
        claim = await self._claims.claim(topic, queue, claimer, fetched, lease_ms or queue.terms(topic.config).lease_ms)
        try:
            done, deliveries = await claim.commit.answer()
        except (trio.Cancelled, ApiError):
            if claim.commit.error is None:  # it is, or may still be, carried out
                leases = dict(zip(fetched.seqs, claim.lease_ids, strict=True))
                self._background.start_soon(self._release, topic, queue, leases, claim.commit)
            raise
        time_commit(claim.commit, perf)
        jobs = _jobs(claim, done, deliveries)
        topic.common.traffic.count_out(len(jobs), sum(len(job.record) for job in jobs))
        if holder is not None:
            for job in jobs:
                if queue.leases.holds(job.seq, job.lease_id):
                    queue.give(holder, job.seq, job.lease_id)
        return jobs

    async def ack(self, name: str, request: HeldRequest, perf: Performance, group: str | None = None) -> HeldResult:
        """Delete jobs that the node holds, or note that the group has finished them. With `completed` in the config
        their results are kept to be delivered first. Raises 400 for results that nobody wants, 404, 409, 429 when the
        shard's queue stays full or too many results wait, and 503."""
        results = request.results or {}

        def decide(
            topic: Topic, queue: JobQueue, seqs: Sequence[int], lease_ids: Sequence[int] | None
        ) -> LeaseDecision[AckEvent | CompleteEvent]:
            if queue.terms(topic.config).completed is not None:
                self._commits.check_space(self._commits.writer(topic))
                self._completions.check_room(queue, size_of(results.get(seq, b"null") for seq in seqs))
                return queue.leases.decide_complete(request.node, seqs, lease_ids, queue.now, results)
            if request.results is not None:
                raise invalid("results", f"{_called(name, group)} has no `completed`")
            return queue.leases.decide_ack(request.node, seqs, lease_ids, queue.now)

        return await self._say(name, request, decide, self._send_end, perf, group, takes_room=True)

    def _send_end(self, topic: Topic, queue: JobQueue, event: AckEvent | CompleteEvent) -> Commit:
        if isinstance(event, AckEvent):
            return self._lease_commits.end(topic, queue, event)
        commit = self._lease_commits.complete(topic, queue, event)
        self._completions.attend(topic, queue)
        return commit

    async def nack(
        self, name: str, request: HeldRequest, nack: NackTerms, perf: Performance, group: str | None = None
    ) -> HeldResult:
        """Give jobs back that the node holds. Raises 400 for a `dead` one where there is no dead-letter topic, 404, 409
        and 503."""
        delay_ms, error, counts, dead = nack

        def decide(
            topic: Topic, queue: JobQueue, seqs: Sequence[int], lease_ids: Sequence[int] | None
        ) -> LeaseDecision[ReleaseEvent | NackEvent]:
            return queue.leases.decide_nack(
                request.node, seqs, lease_ids, queue.now, delay_ms, counts=counts, condemns=dead, error=error
            )

        if not dead:
            return await self._say(name, request, decide, self._lease_commits.lease, perf, group)
        topic, queue = await self._lease_commits.current(name, group)
        if queue.terms(topic.config).dead_letter is None:
            raise invalid("dead", f"{_called(name, group)} has no dead_letter")
        result = await self._say(name, request, decide, self._lease_commits.lease, perf, group)
        self._dead_letters.attend(topic, queue)
        return result

    async def pause(self, name: str, until: int | None, perf: Performance, group: str | None = None) -> QueueState:
        """Give out no jobs of a queue or group until `until` (epoch ms), or for None until it is resumed. Returns once
        that is synced. Raises 404, 409 and 503."""
        return await self._pause(name, PauseEvent(until or 0), perf, group)

    async def resume(self, name: str, perf: Performance, group: str | None = None) -> QueueState:
        """Give out the jobs of a queue or group again. Otherwise like `pause`."""
        return await self._pause(name, ResumeEvent(), perf, group)

    async def _pause(
        self, name: str, event: PauseEvent | ResumeEvent, perf: Performance, group: str | None
    ) -> QueueState:
        topic, queue = await self._lease_commits.current(name, group)
        commit = self._lease_commits.pause(topic, queue, event)
        await commit.answer()
        time_commit(commit, perf)
        if queue.line:
            self._claims.attend(topic, queue)
        return queue.counters(topic.log)

    async def extend(
        self, name: str, request: HeldRequest, lease_ms: int, perf: Performance, group: str | None = None
    ) -> HeldResult:
        """Hold jobs that the node holds until `lease_ms` from now. Raises 404, 409 and 503."""
        deadlines: dict[int, int] = {}

        def decide(
            topic: Topic, queue: JobQueue, seqs: Sequence[int], lease_ids: Sequence[int] | None
        ) -> LeaseDecision[ExtendEvent]:
            decision = queue.leases.decide_extend(request.node, seqs, lease_ids, queue.now, lease_ms)
            if decision.event is not None:
                deadline = self._lease_commits.deadline(decision.event.deadline)
                deadlines.update(dict.fromkeys(decision.event.seqs, deadline))
            return decision

        result = await self._say(name, request, decide, self._lease_commits.lease, perf, group)
        result.deadlines = {str(seq): deadlines[seq] for seq in result.done}
        return result

    async def _say(
        self,
        name: str,
        request: HeldRequest,
        decide: Callable[[Topic, JobQueue, Sequence[int], Sequence[int] | None], LeaseDecision[E]],
        send: Callable[[Topic, JobQueue, E], Commit],
        perf: Performance,
        group: str | None,
        *,
        takes_room: bool = False,
    ) -> HeldResult:
        """Decide and commit; repeat for seqs that have another event in flight."""
        seqs, lease_ids = request.seqs, request.lease_ids
        done: array[int] = array("Q")
        skipped: list[int] = []
        while True:
            topic, queue = await self._lease_commits.current(name, group)
            if takes_room and self._commits.is_full(topic) and not topic.ephemeral:
                await self._commits.admit(topic, self._settings.admission_ms)
                continue
            decision = decide(topic, queue, seqs, lease_ids)
            skipped += decision.skipped
            if decision.event is not None:
                commit = send(topic, queue, decision.event)
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
                await self._commits.wait_for(topic.next_change(), self._commits.writer(topic))
        return HeldResult(
            done=sorted(done), skipped=skipped, ready=queue.ready(topic.log), in_flight=queue.leases.in_flight
        )

    def sweep(self, topic: Topic) -> bool:
        """Free jobs of a queue whose lease or delay is over, as many as fit into a step. Return True if there are
        more."""
        return topic.queue is not None and topic.queue.sweep(self._lease_commits.now(), topic.config)

    def state(self, topic: Topic) -> QueueState | None:
        """The counters of a queue as of its last sweep; None for a log."""
        return None if topic.queue is None else topic.queue.counters(topic.log)

    def window_ms(self, name: str, group: str | None = None) -> int:
        """Return the window that all claims of the topic or group wait for, in addition to `wait_ms` (ms); 0 for
        none."""
        with suppress(ApiError):
            topic, queue = self._queue(name, group)
            return queue.terms(topic.config).claim_jitter_ms
        return 0

    def figures(self, topic: Topic, queue: JobQueue) -> JobFigures:
        """Return the figures of a queue or group for the metrics, without waiting for columns."""
        queue.sweep(self._lease_commits.now(), queue.terms(topic.config))
        state = queue.counters(topic.log)
        return JobFigures(state.ready, state.in_flight, state.delayed, state.paused, state.dead_lettered)

    def look_after(self, topic: Topic) -> None:
        """Wake the tasks of a queue after a start or a config change: there may be another window, or another
        dead-letter topic."""
        if topic.queue is not None:
            self.look_after_one(topic, topic.queue)
        elif topic.groups is not None:
            for group in topic.groups.by_name.values():
                self.look_after_one(topic, group)

    def look_after_one(self, topic: Topic, queue: JobQueue) -> None:
        """The same for one queue or group."""
        if queue.leases.parked():
            self._dead_letters.attend(topic, queue)
        if queue.leases.results:
            self._completions.attend(topic, queue)
        queue.ring()
        if queue.line:
            self._claims.attend(topic, queue)

    # -- streams -----------------------------------------------------------------------------------------------------

    async def open_work(
        self, name: str, node: str, most: int, lease_ms: int | None, group: str | None = None
    ) -> JobSubscription:
        """Open a stream of jobs, for `next_jobs`, after forwarding what routers owe the topic now; `close_work` must be
        called. Raises 404, 409, and 503 on a failed shard."""
        await self._catch_up((name,))
        topic, queue = self._queue(name, group)
        self._commits.check_writable(topic)
        return JobSubscription(topic, queue, node, most, lease_ms, Holder())

    async def next_jobs(self, work: JobSubscription) -> list[Job]:
        """Wait for jobs for a stream, once it has room for some. Raises 404 when the topic is deleted, and 503.
        Cancelling leaves nothing leased that `close_work` does not release."""
        topic, queue, holder = work.topic, work.queue, work.holder
        while True:
            while len(holder.leases) >= work.most:
                await self._until_freed(work)
            await self._lease_commits.still_current(topic, queue)
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
        left = queue.due_in_ms(now, work.topic.config.ttl_ms)
        ttl_ms, oldest = work.topic.config.ttl_ms, work.topic.log.index.oldest_ts
        if ttl_ms and oldest is not None:
            left = min(left, oldest + ttl_ms + 1 - self._registry.now_ms())
        with trio.move_on_after(max(left, 0) / 1000):
            await holder.changed.wait()
        await self._lease_commits.still_current(work.topic, queue)

    def nothing_claimed(self, name: str, group: str | None = None) -> ClaimResult:
        """Return the answer of a claim that gets nothing. Raises 404 and 409."""
        topic, queue = self._queue(name, group)
        return _claimed(topic, queue, [])

    def give_back(self, name: str, jobs: Sequence[Job], group: str | None = None) -> None:
        """End the leases of a claim whose answer has not reached its client. Does nothing if the topic is deleted."""
        with suppress(ApiError):
            topic, queue = self._queue(name, group)
            leases = {job.seq: job.lease_id for job in jobs}
            if leases:
                self._background.start_soon(self._release, topic, queue, leases, None)

    def _queue(self, name: str, group: str | None) -> tuple[Topic, JobQueue]:
        topic = self._registry.topic(name)
        return topic, queue_of(topic, group)

    def close_work(self, work: JobSubscription) -> None:
        """Close a stream: its jobs are free for others."""
        leases = work.queue.give_up(work.holder)
        if leases and not work.topic.deleted and not work.queue.deleted:
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
                    self._lease_commits.lease(topic, queue, decision.event)
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


def _claimed(topic: Topic, queue: JobQueue, jobs: list[Job]) -> ClaimResult:
    ready, wants_results = queue.ready(topic.log), queue.terms(topic.config).completed is not None
    if not isinstance(queue, GroupQueue):
        return ClaimResult(jobs, ready, queue.paused, wants_results=wants_results)
    lag, missed = queue.state.lag(topic.log), queue.state.missed
    return ClaimResult(jobs, ready, queue.paused, lag, missed, wants_results)


def _called(name: str, group: str | None) -> str:
    return f"topic {name!r}" if group is None else f"group {group!r} of topic {name!r}"


def _jobs(claim: Claim, done: Sequence[int], deliveries: Sequence[int]) -> list[Job]:
    """Return the jobs of a claim that were leased in fact."""
    fetched = claim.fetched
    deadlines = repeat(claim.deadline)
    if len(done) == len(fetched.seqs):
        return list(map(Job, done, claim.lease_ids, deadlines, deliveries, fetched.records))
    found = dict(zip(done, deliveries, strict=True))
    jobs = zip(fetched.seqs, claim.lease_ids, deadlines, map(found.get, fetched.seqs), fetched.records, strict=False)
    return [Job._make(job) for job in jobs if job[0] in found]
