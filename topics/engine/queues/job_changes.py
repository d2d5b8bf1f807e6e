"""Retrying and cancelling jobs, by their seqs or by a filter (`docs/spec/consumers.md` section 5,
`docs/design/jobs.md` section 7).

A call goes through the jobs up to the head as it finds that, piece by piece. Each piece is a commit of its own, so
other calls come in between, and a call that fails has done a part. A job with an event in flight is decided about after
that event, like one that is acked.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from topics.config import Settings
from topics.engine.commits import Commits, time_commit
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.queues.job_lists import MASKS
from topics.engine.queues.job_scan import JobScan, JobWish
from topics.engine.queues.lease_commits import LeaseCommits
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.job_model import JobsChanged, JobSelection
from topics.model import Performance
from topics.queue.lease_events import AckEvent, RetryEvent
from topics.queue.leases import LeaseDecision
from topics.runtime.turns import Turns

PIECE: Final = 500
"""Jobs that one commit changes at most."""

NO_BOUND: Final = 1 << 62

E = TypeVar("E", AckEvent, RetryEvent)


class JobChanges:
    """Retries and cancels jobs. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        commits: Commits,
        lease_commits: LeaseCommits,
        loader: Loader,
        turns: Turns,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._commits = commits
        self._lease_commits = lease_commits
        self._loader = loader
        self._turns = turns

    async def cancel(
        self, name: str, selection: JobSelection, perf: Performance, group: str | None = None
    ) -> JobsChanged:
        """Delete jobs that are ready, delayed or leased to whomever; a group finishes them. Those that are about to
        move to the dead letters are skipped. Durable as the class of the topic. Raises 404, 409, 429 when the shard's
        queue stays full, and 503; then a part may be done."""
        mask = MASKS[selection.state]
        return await self._change(name, selection, mask, _decide_cancel, self._lease_commits.end, perf, group)

    async def retry(
        self, name: str, selection: JobSelection, perf: Performance, group: str | None = None
    ) -> JobsChanged:
        """Make delayed jobs ready. Otherwise like `cancel`."""

        def decide(queue: JobQueue, seqs: Sequence[int]) -> LeaseDecision[RetryEvent]:
            return queue.leases.decide_retry(seqs, queue.now)

        return await self._change(name, selection, MASKS["delayed"], decide, self._lease_commits.retry, perf, group)

    async def _change(
        self,
        name: str,
        selection: JobSelection,
        mask: bytes,
        decide: Callable[[JobQueue, Sequence[int]], LeaseDecision[E]],
        send: Callable[[Topic, JobQueue, E], Commit],
        perf: Performance,
        group: str | None,
    ) -> JobsChanged:
        topic, queue = await self._lease_commits.current(name, group)
        self._registry.touch(topic)
        wish = JobWish(mask, selection.filter, records=False)
        scan = JobScan(self._loader, self._turns, topic, queue, wish, to=topic.log.head_seq, seqs=selection.seqs)
        matched = done = 0
        while not scan.is_over:
            found = await scan.find(PIECE, NO_BOUND, NO_BOUND, perf)
            matched += len(found)
            done += await self._change_some(topic, queue, [job.seq for job in found], decide, send, perf)
        perf.records_scanned = scan.scanned
        asked = matched if selection.seqs is None else len(selection.seqs)
        return JobsChanged(matched, done, asked - done)

    async def _change_some(
        self,
        topic: Topic,
        queue: JobQueue,
        seqs: Sequence[int],
        decide: Callable[[JobQueue, Sequence[int]], LeaseDecision[E]],
        send: Callable[[Topic, JobQueue, E], Commit],
        perf: Performance,
    ) -> int:
        """Decide and commit; repeat for jobs that have another event in flight. Return how many were changed."""
        done = 0
        while seqs:
            await self._lease_commits.still_current(topic, queue)
            writer = self._commits.writer(topic)
            if self._commits.is_full(topic) and not topic.ephemeral:
                await self._commits.admit(topic, self._settings.admission_ms)
                continue
            decided = await self._loader.prepared(topic, partial(self._decide, topic, queue, seqs, decide))
            if decided is None:
                continue
            if decided.event is not None:
                commit = send(topic, queue, decided.event)
                done += len(await commit.answer())
                time_commit(commit, perf)
            elif decided.busy:
                await self._commits.wait_for(topic.next_change(), writer)
            seqs = decided.busy
        return done

    def _decide(
        self,
        topic: Topic,
        queue: JobQueue,
        seqs: Sequence[int],
        decide: Callable[[JobQueue, Sequence[int]], LeaseDecision[E]],
    ) -> LeaseDecision[E] | None:
        """Decide about those that are still jobs; None if that has to wait. Raises NotLoaded, and has done nothing
        then."""
        if self._lease_commits.in_the_way(topic, queue):
            return None
        live = topic.log.index.only_live(array("Q", sorted(seqs)))
        return decide(queue, [seq for seq in live if queue.is_unfinished(seq)])


def _decide_cancel(queue: JobQueue, seqs: Sequence[int]) -> LeaseDecision[AckEvent]:
    return queue.decide_cancel(seqs)
