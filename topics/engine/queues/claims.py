"""Dividing jobs among claimers: the line of a queue, coalescing windows, and how a claimer claims the jobs it was
dealt.

Theory of operation (`docs/spec/semantics.md` section 6). A claim, and a `/work` stream with room for more, is a
*claimer*. It stands in the line of its queue, behind earlier ones, and is *dealt* jobs in a pass. A pass is one
decision for all claimers in line: it reserves jobs and gives each claimer its part (its *hand*). The claimer's own task
then fetches the records, for which it may have to read a disk, commits the claim, and answers when that is published.
Jobs that it cannot use it aborts, and they are free for the next claimer.

    no window          a pass whenever a claimer arrives, and when there may be more jobs: first come, first served
    claim_jitter_ms    the pass comes this long after the first claimer has arrived, or after the first job if claimers
                       wait; the jobs there are then are divided evenly among all in line

While claimers wait, one task per queue serves them. It is woken at the queue's turn (`topics.sched`) like a long poll,
when time alone frees a job, and when a window is opened.
"""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Final, NamedTuple

import msgspec
import trio

from topics.engine.job_queue import Claimer, JobQueue
from topics.engine.loader import Loader
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.key_looks import KeyLooks
from topics.engine.queues.lease_commits import LeaseCommits, check_there
from topics.engine.queues.looks import Looks
from topics.engine.registry import EngineStatus
from topics.engine.topic import Commit, Topic
from topics.errors import ApiError, topic_not_found
from topics.log.block import Block, block_with
from topics.log.topic_log import TopicLog
from topics.model import Performance
from topics.queue.fair_division import deal, divide
from topics.queue.lease_events import ClaimEvent, ParkEvent
from topics.runtime.background import BackgroundTasks

PASS_JOBS: Final = 1000
"""Jobs that one step of a pass reserves at most."""

MIN_PAUSE_S: Final = 0.01
MAX_PAUSE_S: Final = 1.0
"""Pauses of the line while the disk does not answer (s): each twice as long as the one before, between these bounds."""


class FetchedJobs(NamedTuple):
    """The jobs of a hand that are live and fit, ascending, and the JSON of each record without its opening brace."""

    seqs: array[int]
    records: list[bytes]


class Claim(NamedTuple):
    """A claim in flight. `lease_ids` are those of `fetched.seqs`; `deadline` is in epoch ms."""

    commit: Commit
    fetched: FetchedJobs
    lease_ids: array[int]
    deadline: int


class Claims:
    """Deals jobs to the claimers of all queues, and commits their claims. Made once by the engine."""

    def __init__(
        self,
        status: EngineStatus,
        *,
        commits: LeaseCommits,
        loader: Loader,
        background: BackgroundTasks,
        dead_letters: DeadLetters,
        looks: Looks,
        key_looks: KeyLooks,
    ) -> None:
        self._looks = looks
        self._key_looks = key_looks
        self._status = status
        self._commits = commits
        self._loader = loader
        self._background = background
        self._dead_letters = dead_letters
        self._lease_ids = count(secrets.randbits(62))
        """Begins at a random number, so that a lease id of an earlier engine names no lease of this one."""

    # -- the line ----------------------------------------------------------------------------------------------------

    async def _look(self, topic: Topic, queue: JobQueue, most: int, claimer: Claimer | None = None) -> bool:
        """Look at records, if that has to be done before `most` jobs can be dealt: for the filter of a group
        (`Looks.look`), or for the keys of an order (`KeyLooks.look`). Return True if more may have to be looked at."""
        if not queue.must_look(topic.log, most):
            return False
        if not queue.has_filter:
            await self._key_looks.look(topic, queue, most)
            return _must_look(topic, queue, most)
        await self._key_looks.look(topic, queue, most)
        more = await self._looks.look(topic, queue, most, claimer)
        self._commits.on_finished(topic)
        return more

    async def join(self, topic: Topic, queue: JobQueue, claimer: Claimer, *, waits: bool) -> None:
        """Put a claimer in line. Must be called in the step after `LeaseCommits.current`. Without a window the claimer
        is dealt the jobs there are. If it gets none and `waits`, or if there is a window, the queue's task serves it
        later. Raises `503 not_ready` if the disk does not answer."""
        queue.join(claimer)
        if not queue.terms(topic.config).claim_jitter_ms:
            while not claimer.hand and not claimer.scan_is_over:
                looked = await self._look(topic, queue, claimer.most, None if claimer.asks_again else claimer)
                if not await self._loader.prepared(topic, partial(self._serve, topic, queue)) and not looked:
                    break
                await trio.lowlevel.checkpoint()
                await self._commits.still_current(topic, queue)
        waits = waits and not claimer.scan_is_over
        if claimer in queue.line and (queue.terms(topic.config).claim_jitter_ms or (waits and not queue.attended)):
            self.attend(topic, queue)

    def attend(self, topic: Topic, queue: JobQueue) -> None:
        """Make sure that a task serves the line, and wake it."""
        if not queue.attended:
            if not queue.line:
                return
            queue.attended = True
            self._background.start_soon(self._attend, topic, queue)
        elif topic.audience is not None:
            topic.audience.wake_polls()

    def leave(self, topic: Topic, queue: JobQueue, claimer: Claimer) -> None:
        """Take a claimer out of the line. Jobs that it was dealt and has not claimed are free for the others."""
        if queue.leave(claimer) and not queue.line:
            self.attend(topic, queue)  # wakes the task, which ends if the line is empty
        if claimer.hand:
            self.give_back(topic, queue, claimer.hand)
            claimer.hand = array("Q")

    def give_back(self, topic: Topic, queue: JobQueue, seqs: array[int]) -> None:
        """Give back jobs that were dealt but will not be claimed."""
        if seqs:
            queue.abort(seqs)
            topic.wake()

    def _serve(self, topic: Topic, queue: JobQueue) -> bool:
        """Do one step of a pass without a window: deal the jobs there are, first come first served. Return True if
        there is more to do at once. Raises NotLoaded, and has done nothing then."""
        if self._commits.in_the_way(topic, queue):
            return True
        if not queue.ready(topic.log) or not queue.room():
            return False
        wanted = 0
        first: list[Claimer] = []
        for claimer in queue.line:
            first.append(claimer)
            wanted += claimer.most
            if wanted >= PASS_JOBS:
                break
        limit = min(wanted, PASS_JOBS)
        seqs, more = self._take(topic, queue, limit)
        at = 0
        for claimer in first:
            if at == len(seqs):
                break
            at += self._deal(queue, claimer, seqs[at : at + claimer.most])
        return bool(queue.line) and (more or len(seqs) == limit > 0 or _must_look(topic, queue, limit - len(seqs)))

    def _take(self, topic: Topic, queue: JobQueue, limit: int) -> tuple[array[int], bool]:
        """Reserve up to `limit` jobs, and have exhausted ones moved to the dead-letter topic. Return the jobs, and True
        if the call has to be repeated because there were many exhausted ones."""
        config = queue.terms(topic.config)
        limited = config.max_deliveries if config.dead_letter is not None else 0
        limit = min(limit, queue.room())
        if not limit:
            return array("Q"), False
        ages = queue.ages(topic.log, self._commits.retention_ms())
        selection = queue.leases.decide_claim(
            limit, queue.now, queue.fresh(topic.log), limited, ages, queue.fresh_room(topic.log)
        )
        if selection.exhausted:
            self._commits.lease(topic, queue, ParkEvent(selection.exhausted))
            self._dead_letters.attend(topic, queue)
        return selection.seqs, selection.more

    def _take_if_free(self, topic: Topic, queue: JobQueue, limit: int) -> tuple[array[int], bool] | None:
        return None if self._commits.in_the_way(topic, queue) else self._take(topic, queue, limit)

    @staticmethod
    def _deal(queue: JobQueue, claimer: Claimer, seqs: array[int]) -> int:
        claimer.deal(seqs)
        queue.leave(claimer)
        return len(seqs)

    # -- waiting claimers -------------------------------------------------------------------------------------------

    async def _attend(self, topic: Topic, queue: JobQueue) -> None:
        """Serve the line until it is empty, or until there will be no more jobs."""
        pause = MIN_PAUSE_S
        why: ApiError | None = None
        try:
            while queue.line and why is None:
                try:
                    await self._attend_once(topic, queue)
                    pause = MIN_PAUSE_S
                except ApiError as error:
                    if error.code == "not_ready":  # the disk does not answer
                        for claimer in [one for one in queue.line if one.asks_again]:
                            queue.leave(claimer)
                            claimer.end(error)
                        await trio.sleep(pause)
                        pause = min(2 * pause, MAX_PAUSE_S)
                    else:
                        why = error
        finally:
            queue.attended = False
            for claimer in list(queue.line):
                queue.leave(claimer)
                claimer.end(why or ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1))

    async def _attend_once(self, topic: Topic, queue: JobQueue) -> None:
        """Do one pass, and wait for the next. Raises the reason if there will be none."""
        self._check(topic, queue)
        if not await self._commits.settle(topic, queue):
            return
        if queue.terms(topic.config).claim_jitter_ms:
            if queue.ready(topic.log) or queue.newcomers:
                bell = queue.bell
                with trio.move_on_after(queue.terms(topic.config).claim_jitter_ms / 1000):
                    await bell.wait()
                await self._divide(topic, queue)
                self._check(topic, queue)
                if not await self._commits.settle(topic, queue):
                    return
        else:
            looked = await self._look(topic, queue, _wanted(queue))
            more = await self._loader.prepared(topic, partial(self._serve, topic, queue)) or looked
            queue.passed()
            if more:
                await trio.lowlevel.checkpoint()
                return
        if not queue.line or (queue.newcomers and queue.terms(topic.config).claim_jitter_ms):
            return
        with trio.move_on_after(queue.due_in_ms(self._commits.now(), topic.config.ttl_ms) / 1000):
            await topic.followed().poll()

    def _check(self, topic: Topic, queue: JobQueue) -> None:
        check_there(topic, queue)
        if self._status.phase == "draining":
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)

    async def _divide(self, topic: Topic, queue: JobQueue) -> None:
        """Do the pass at the end of a window: divide the jobs evenly among all in line. If that fails, they are told
        why."""
        taken: array[int] = array("Q")
        failure: ApiError | None = None
        try:
            while await self._take_more(topic, queue, taken):
                await trio.lowlevel.checkpoint()
        except ApiError as error:
            failure = error
        finally:
            cohort = list(queue.line)
            shares = divide([claimer.most for claimer in cohort], len(taken))
            hands = deal(taken, shares)
            self.give_back(topic, queue, taken[sum(shares) :])
            queue.passed()
            for claimer, hand in zip(cohort, hands, strict=True):
                if hand:
                    self._deal(queue, claimer, hand)
                elif failure is not None:
                    queue.leave(claimer)
                    claimer.end(failure)

    async def _take_more(self, topic: Topic, queue: JobQueue, taken: array[int]) -> bool:
        """Add to the jobs taken for the cohort. Return True if there may be more for it."""
        self._check(topic, queue)
        if not await self._commits.settle(topic, queue):
            return True
        wanted = sum(claimer.most for claimer in queue.line) - len(taken)
        if wanted <= 0:
            return False
        looked = await self._look(topic, queue, wanted)
        limit = min(wanted, PASS_JOBS)
        selected = await self._loader.prepared(topic, partial(self._take_if_free, topic, queue, limit))
        if selected is None:
            return True
        seqs, more = selected
        by_priority = not (_is_ascending(taken) and _is_ascending(seqs))
        taken.extend(seqs)
        if not by_priority and len(taken) > len(seqs):
            taken[:] = array("Q", sorted(taken))
        return more or looked or len(seqs) == limit or _must_look(topic, queue, limit - len(seqs))

    # -- a hand ------------------------------------------------------------------------------------------------------

    async def fetch(
        self, topic: Topic, queue: JobQueue, claimer: Claimer, most_bytes: int, extra: int, perf: Performance
    ) -> FetchedJobs:
        """Return the records of a claimer's hand, as far as they fit into `most_bytes` (at least one does); each takes
        `extra` bytes besides its own. The other jobs are given back, so that the hand is the fetched ones.

        Raises 503 if the disk does not answer: then nothing has been given back.
        """
        fetched = FetchedJobs(array("Q"), [])
        loaded: list[Block] = []
        room = most_bytes
        left = claimer.hand
        while left:
            gather = partial(_gather, topic, queue, left, loaded, room, extra, fetched)
            left, room = await self._loader.prepared(topic, gather)
            if left:
                loaded = await self._loader.load(topic, left[0], _end_of_run(left), perf)
        if len(fetched.seqs) < len(claimer.hand):
            taken = set(fetched.seqs)
            self.give_back(topic, queue, array("Q", [seq for seq in claimer.hand if seq not in taken]))
            claimer.hand = fetched.seqs
        return fetched

    async def claim(
        self, topic: Topic, queue: JobQueue, claimer: Claimer, fetched: FetchedJobs, lease_ms: int
    ) -> Claim:
        """Commit the claim of the fetched jobs of a hand, which is empty then. Raises 404, and 503 on a failed shard,
        with the hand unchanged."""
        while not await self._commits.settle(topic, queue):
            pass
        n = len(fetched.seqs)
        lease_ids = array("Q", [next(self._lease_ids) for _ in range(n)])
        deadline = self._commits.now().after(lease_ms)
        claimer.hand = array("Q")
        commit = self._commits.claim(topic, queue, ClaimEvent(claimer.node, fetched.seqs, lease_ids, deadline))
        return Claim(commit, fetched, lease_ids, self._commits.deadline(deadline))


def _wanted(queue: JobQueue) -> int:
    """Return how many jobs the claimers in line want, as far as one pass deals them."""
    wanted = 0
    for claimer in queue.line:
        wanted += claimer.most
        if wanted >= PASS_JOBS:
            return PASS_JOBS
    return wanted


def _must_look(topic: Topic, queue: JobQueue, most: int) -> bool:
    """Return True if a claim that might have had `most` more jobs should look at more records."""
    return queue.must_look(topic.log, most) and queue.room() > 0


def _gather(
    topic: Topic,
    queue: JobQueue,
    seqs: array[int],
    loaded: Sequence[Block],
    room: int,
    extra: int,
    fetched: FetchedJobs,
) -> tuple[array[int], int]:
    """Add the records of `seqs` that are in memory to `fetched`, up to the first that is not. Return the seqs still to
    be fetched, and the room for them. Raises NotLoaded, and has done nothing then."""
    if topic.deleted:
        raise topic_not_found(topic.name)
    live = _only_live(topic.log, seqs)
    block: Block | None = None
    errors = queue.leases.errors
    for i, seq in enumerate(live):
        if block is None or not block.first_seq <= seq <= block.last_seq:
            block = topic.blocks.find(seq) or block_with(loaded, seq)
            if block is None:
                return live[i:], room
        record = block.record_of(seq)
        error = errors.of(seq)
        if error is not None:
            record = b'"last_error":%b,%b' % (msgspec.json.encode(error), record)
        room -= len(record) + extra
        if room < 0 and fetched.seqs:
            break
        fetched.seqs.append(seq)
        fetched.records.append(record)
    return array("Q"), room


def _only_live(log: TopicLog, seqs: array[int]) -> array[int]:
    """Return the live ones of `seqs`, in their order. Raises NotLoaded."""
    if _is_ascending(seqs):
        return log.index.only_live(seqs)
    among = set(log.index.only_live(array("Q", sorted(seqs))))
    return array("Q", [seq for seq in seqs if seq in among])


def _end_of_run(seqs: array[int]) -> int:
    """Return the last of the contiguous seqs at the beginning of `seqs`."""
    last = seqs[0]
    for seq in seqs[1:]:
        if seq != last + 1:
            break
        last = seq
    return last


def _is_ascending(seqs: array[int]) -> bool:
    return array("Q", sorted(seqs)) == seqs
