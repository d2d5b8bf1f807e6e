"""The jobs of one queue topic in the live daemon: the lease projection, the claimers that wait, and the streams that
hold jobs.

Every change of the projection (`topics.queue.leases`) goes through here, so that a stream is told of every job that it
no longer holds, for any reason. Nothing here waits or writes to the log: that is the business of
`topics.engine.queues.queue_calls`.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import trio
from msgspec import UNSET

from topics.errors import ApiError
from topics.filters.record_filter import Filter
from topics.log.topic_log import SeqRun, TopicLog
from topics.model import QueueState, TopicConfig
from topics.queue.claim_limits import ClaimLimits, RateWindow
from topics.queue.claim_order import Ages
from topics.queue.job_pages import ABSENT
from topics.queue.key_order import KeyTerms
from topics.queue.lease_events import AckEvent, ClaimEvent, Event, ExtendEvent, KeyEvent
from topics.queue.leases import UNBOUNDED, LeaseDecision, Leases, NextLive
from topics.queue.limited_claims import FreshRoom
from topics.queue.retry_delay import RetryDelay
from topics.queue.unique_keys import DIGEST_BYTES
from topics.runtime.instant import Instant
from topics.storage.snapshots.queue_dump import FrozenQueue

LOOK_AT_WALL_MS: Final = 1000
"""How long claimers wait at most before the wall clock is looked at again, on which something depends: it may have been
set."""

SWEEP_SLICE: Final = 2000
"""Leases and delays that one step frees at most. If more end together, it takes several steps."""

FRESH_STEP: Final = 500
"""Records behind the cursor among which one step looks for jobs."""


MOST_BEHIND_MS: Final = 1000
"""How long ago the time may be up to which all jobs were freed, for a decision. Where more become due than one step
frees, the steps may never catch up: each begins at a later time."""


class Claimer:
    """A claim or stream that wants up to `most` jobs, and stands in line until there are some.

    `hand` has the jobs that it was dealt. They are reserved for it, and it has to claim or abort them.
    """

    __slots__ = ("asks_again", "ended", "hand", "most", "node", "passed", "scan_is_over", "scanned", "woken")

    def __init__(self, node: str, most: int, *, asks_again: bool = False) -> None:
        self.asks_again = asks_again
        """If True, it is told when the disk does not answer, and asks again. Otherwise it waits in line."""
        self.node = node
        self.most = most
        self.hand: array[int] = array("Q")
        self.woken = trio.Event()
        """Set when it was dealt jobs, or will never be (`ended`)."""
        self.passed = trio.Event()
        """True once its window is over, whether it was dealt jobs or not."""
        self.ended: ApiError | None = None
        self.scanned = 0
        """Records that a filter was asked about for it."""
        self.scan_is_over = False
        """True if these are as many as a call may look at."""

    def deal(self, seqs: array[int]) -> None:
        """Add jobs to its hand."""
        self.hand = seqs
        self.woken.set()
        self.passed.set()

    def end(self, why: ApiError) -> None:
        """Tell it that it will get no jobs, and why."""
        self.ended = why
        self.woken.set()
        self.passed.set()


class Holder:
    """The jobs that a stream holds: their lease ids, by seq. `changed` is set when it loses jobs, when leases may end
    at another time, and when its topic is deleted."""

    __slots__ = ("changed", "leases")

    def __init__(self) -> None:
        self.leases: dict[int, int] = {}
        self.changed = trio.Event()


class JobQueue:
    """The lease projection of one queue topic, its line of claimers and its streams. Made with the topic, which keeps
    it. Of a group of a log (`topics.engine.group_queue`) it is the base."""

    __slots__ = (
        "_config",
        "_goal",
        "_held",
        "_restored",
        "_swept_ms",
        "attended",
        "bell",
        "deleted",
        "keys_on_the_way",
        "leases",
        "limits",
        "line",
        "looking",
        "moving",
        "newcomers",
        "now",
        "parked_more",
        "results_more",
        "results_on_the_way",
    )

    def __init__(self, leases: Leases, *, restored: bool = False) -> None:
        """`restored`: it is from an earlier life of the daemon, whose claims are not known one by one."""
        self.leases = leases
        leases.caller_sweeps = True
        self.limits = ClaimLimits()
        self._goal: Instant | None = None
        """While sweeps are behind: the time up to which they free jobs, before there is another one."""
        self._swept_ms: int | None = None
        """The time (monotonic ms) up to which all jobs were freed."""
        self._config: TopicConfig | None = None
        self._restored = restored
        self.line: dict[Claimer, None] = {}
        """The claimers that want jobs, in the order of their arrival."""
        self.newcomers: dict[Claimer, None] = {}
        """The claimers in line that no pass has reached yet."""
        self.attended = False
        """True while a task serves the line."""
        self.moving = False
        """True while a task moves parked jobs to the dead-letter topic."""
        self.parked_more = trio.Event()
        """Wakes that task: there may be more parked jobs, or another dead-letter topic."""
        self.results_on_the_way = 0
        """Bytes of results of acks that are not published yet."""
        self.results_more = trio.Event()
        """Wakes the task that delivers results: there may be more, or another topic for them."""
        self.now = Instant(0, 0)
        """The time of the last sweep, and of decisions."""
        self.bell = trio.Event()
        """Set when claimers should not wait for a window any more."""
        self.keys_on_the_way: dict[bytes, list[tuple[int, int]]] = {}
        """The unique keys of appends that are not published yet: the seqs of each, ascending, and their times (ms of
        the window clock)."""
        self.looking: trio.Event | None = None
        """Set while a task looks at records; others wait for its end."""
        self._held: dict[int, Holder] = {}
        """The stream that holds a job, by seq."""
        self.deleted = False
        """True for a group that is gone, or about to be. A queue goes with its topic."""

    @property
    def group(self) -> str | None:
        """The name of the group; None for the jobs of a queue topic."""
        return None

    def terms(self, config: TopicConfig) -> TopicConfig:
        """Return the settings of leases: those of the topic, which has `config`."""
        return config

    def ready(self, log: TopicLog) -> int:
        """Return how many jobs can be claimed, or are about to be."""
        return self.leases.ready(log.count)

    def fresh(self, log: TopicLog) -> NextLive:
        """Return what `Leases.decide_claim` asks for fresh jobs. Its calls raise NotLoaded."""
        return partial(live_after, log)

    def fresh_room(self, log: TopicLog) -> FreshRoom:
        """Return which fresh jobs a claim may have, where something binds those of one key."""
        return UNBOUNDED._replace(head=log.head_seq)

    @property
    def has_filter(self) -> bool:
        """Return True if a filter says which records there are. Those of a queue are all jobs."""
        return False

    def live_after(self, log: TopicLog, after: int, limit: int) -> array[int]:
        """Return the first `limit` unfinished jobs above `after`, ascending. Raises NotLoaded."""
        return live_after(log, after, limit)

    @property
    def wanted(self) -> Filter | None:
        """The filter that records must match to be jobs here; None for all."""
        return None

    def is_unfinished(self, seq: int) -> bool:
        """Return True if a live record is still a job here. A queue deletes the others."""
        return True

    def jobs_after(self, log: TopicLog, after: int, to: int, mask: bytes, most: int) -> tuple[array[int], int]:
        """Return jobs above `after` and up to `to` whose states `mask` (`job_pages.mask_of`) has, ascending, and the
        seq up to which there are no others: as far as one step goes. Records of jobs in the table may have died. Fresh
        jobs of a group are not asked whether they match. Raises NotLoaded."""
        known = min(self.leases.cursor, to) if mask[ABSENT] else to
        if after < known:
            return self.leases.jobs_after(after, known, mask, most)
        step = log.step(after, FRESH_STEP)
        if step is None or step.first > to:
            return array("Q"), to
        last = min(step.last, to)
        return (self._jobs_among(step.first, last, mask) if isinstance(step, SeqRun) else array("Q")), last

    def _jobs_among(self, first: int, last: int, mask: bytes) -> array[int]:
        return self.leases.jobs_among(first, last, mask)

    def decide_cancel(self, seqs: Sequence[int]) -> LeaseDecision[AckEvent]:
        """Decide the end of those of these live jobs that are ready, delayed or leased."""
        return self.leases.decide_cancel(seqs, self.now)

    def counters(self, log: TopicLog) -> QueueState:
        """Return the counters as of the last sweep."""
        leases = self.leases
        return QueueState(
            ready=self.ready(log),
            in_flight=leases.in_flight,
            delayed=leases.delayed,
            dead_lettered=leases.dead_lettered,
            paused=self.paused,
            paused_until=leases.paused_until if self.paused and leases.paused_until else UNSET,
        )

    def catch_up(self, log: TopicLog) -> None:
        """Take note of records that are gone without a call. Those of a queue never are."""

    def freeze(self, now: Instant, *, keeps_jobs: bool = True) -> FrozenQueue:
        """Return the state for the queue's part of a snapshot. An `ephemeral` queue keeps no jobs, but a count over its
        life."""
        leases = self.leases
        if not keeps_jobs:
            leases = Leases()
            leases.dead_lettered = self.leases.dead_lettered
            leases.paused_until = self.leases.paused_until
        return FrozenQueue(now.window, leases.freeze(now))

    # -- unique keys -------------------------------------------------------------------------------------------------

    def put_keys_on_the_way(self, event: KeyEvent) -> None:
        """Note the unique keys of an append that has its seqs."""
        for seq, digest in _keys_of(event):
            self.keys_on_the_way.setdefault(digest, []).append((seq, event.moment))

    def take_keys_off_the_way(self, event: KeyEvent) -> None:
        """The append is about to be published, or has failed."""
        for seq, digest in _keys_of(event):
            jobs = self.keys_on_the_way[digest]
            jobs.remove((seq, event.moment))
            if not jobs:
                del self.keys_on_the_way[digest]

    # -- the line ----------------------------------------------------------------------------------------------------

    def join(self, claimer: Claimer) -> None:
        """Add a claimer to the end of the line."""
        self.line[claimer] = self.newcomers[claimer] = None

    def leave(self, claimer: Claimer) -> bool:
        """Take a claimer out of the line. Return True if it was in it."""
        self.newcomers.pop(claimer, None)
        return self.line.pop(claimer, self) is None

    def passed(self) -> None:
        """Note that a pass has reached all claimers in line."""
        for claimer in self.newcomers:
            claimer.passed.set()
        self.newcomers.clear()

    # -- streams -----------------------------------------------------------------------------------------------------

    def give(self, holder: Holder, seq: int, lease_id: int) -> None:
        """Note that a stream holds `seq` from here on."""
        self._freed((seq,))
        self._held[seq] = holder
        holder.leases[seq] = lease_id

    @property
    def has_holders(self) -> bool:
        """Return True if streams hold jobs."""
        return bool(self._held)

    def give_up(self, holder: Holder) -> dict[int, int]:
        """Forget a stream that has ended. Return the jobs that it held."""
        for seq in holder.leases:
            del self._held[seq]
        leases, holder.leases = holder.leases, {}
        return leases

    def ring(self) -> None:
        """End windows at once: the topic was deleted or has another config, or the daemon stops."""
        self.bell.set()
        self.bell = trio.Event()

    def end(self) -> None:
        """Wake all claimers and streams, because the topic is deleted."""
        self.ring()
        for holder in self._held.values():
            holder.changed.set()

    def _freed(self, seqs: Sequence[int]) -> None:
        if not self._held:
            return
        for seq in seqs:
            holder = self._held.pop(seq, None)
            if holder is not None:
                holder.leases.pop(seq, None)
                holder.changed.set()

    # -- changes -----------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> array[int]:
        """Carry out an event, at its commit point. Return the seqs that it changed."""
        done = self._carry_out(event)
        if isinstance(event, ExtendEvent):
            self._look_again(done)
        elif not isinstance(event, ClaimEvent):
            self._freed(done)
        return done

    def _carry_out(self, event: Event) -> array[int]:
        return self.leases.apply(event)

    def abort(self, seqs: Sequence[int]) -> None:
        """End the reservation of `seqs`: their event will not be committed."""
        self.leases.abort(seqs)
        self._look_again(seqs)

    def _look_again(self, seqs: Sequence[int]) -> None:
        """Wake the streams that hold `seqs`, because their leases may end at another time than before."""
        if self._held:
            for seq in seqs:
                if seq in self._held:
                    self._held[seq].changed.set()

    def sweep(self, now: Instant, config: TopicConfig) -> bool:
        """Free jobs whose lease or delay is over, as many as fit into a step. Return True if there are more, and it has
        to be called again before a decision."""
        self.now = now
        if config is not self._config:
            self._configure(config)
        if not self.leases.behind(now.mono, now.wall):
            self.leases.let_go()
            self._swept_ms = now.mono
            self._goal = None
            return False
        until = self._goal or now
        self._freed(self.leases.sweep(until.mono, SWEEP_SLICE, until.wall))
        if not self.leases.behind(until.mono, until.wall):
            self._swept_ms = until.mono
            self._goal = None
        if self._goal is None and self.leases.behind(now.mono, now.wall):
            self._goal = now
        if self._goal is None:
            return False
        return self._swept_ms is None or now.mono - self._swept_ms > MOST_BEHIND_MS

    def _configure(self, config: TopicConfig) -> None:
        retry, rate, limits = config.retry, config.rate, self.limits
        self.leases.backoff = None
        if retry is not None:
            self.leases.backoff = RetryDelay(retry.backoff, retry.delay_ms, retry.max_delay_ms, retry.jitter)
        terms = _key_terms(config)
        if terms != self.leases.key_terms:
            self._begin_keys(terms)
        limits.max_in_flight = config.max_in_flight
        if rate is None:
            limits.window = None
        elif limits.window is not None:
            limits.window = limits.window.resized(rate.jobs, rate.per_ms, self.now.mono)
        else:
            limits.window = RateWindow(rate.jobs, rate.per_ms)
            if self._restored and self._config is None:
                # As many as the rate allows may have been claimed just before the start.
                limits.window.note(self.now.mono, rate.jobs)
        self._config = config

    def _begin_keys(self, terms: KeyTerms | None) -> None:
        self.leases.begin_keys(terms)

    @property
    def paused(self) -> bool:
        """Return True if claims get nothing, as of the last sweep."""
        return self.leases.paused_until is not None and self.leases.is_paused(self.now)

    def room(self) -> int:
        """Return how many jobs may be reserved for claims, as of the last sweep."""
        if self.paused:
            return 0
        limits = self.limits
        if not limits.any:
            return sys.maxsize
        return limits.room(self.leases.in_flight, self.leases.dealt, self.now.mono)

    def must_look(self, log: TopicLog, most: int) -> bool:
        """Return True if records have to be looked at before `most` jobs can be claimed."""
        return self.leases.must_look(most, log.head_seq)

    def ages(self, log: TopicLog, now_ms: int) -> Ages:
        """Return how old jobs are at `now_ms`, by the retention clock."""
        assert self._config is not None
        return Ages(log.index.ts_of, now_ms, self._config.priority_aging_ms)

    def due_in_ms(self, now: Instant, ttl_ms: int) -> float:
        """Return how long (ms) until a sweep may have something to do, or claims may get something by time alone;
        infinity if there is nothing to wait for. `ttl_ms` is that of the topic."""
        left = float("inf")
        leases, window = self.leases, self.limits.window
        due_ms = leases.next_due_ms()
        if due_ms is not None:
            left = due_ms - now.mono
        if window is not None and (due_ms := window.next_ms(now.mono)) is not None:
            left = min(left, due_ms - now.mono)
        later_ms = leases.next_later_ms()
        if later_ms is not None:
            left = min(left, later_ms - now.wall, LOOK_AT_WALL_MS)
        if leases.paused_until and leases.is_paused(now):
            left = min(left, leases.paused_until - now.wall, LOOK_AT_WALL_MS)
        if leases.key_rule is not None and ttl_ms:
            # A job that expires makes room for others of its key.
            left = min(left, LOOK_AT_WALL_MS)
        return max(left, 0)

    def gone(self, seqs: Sequence[int]) -> None:
        """Forget jobs whose records were deleted or lost."""
        self._freed(self.leases.gone(seqs))

    def gone_below(self, seq: int) -> None:
        """Forget all jobs below `seq`, whose records are gone."""
        before = self.leases.in_flight
        self.leases.gone_below(seq)
        if self._held and self.leases.in_flight < before:
            self._freed([held for held in self._held if held < seq])

    def lost(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> None:
        """Forget the jobs from `first` to `last` that are not live any more, because records there were found
        damaged."""
        self._freed(self.leases.forget_dead(first, last, live_among))


def _key_terms(config: TopicConfig) -> KeyTerms | None:
    if config.order_by is not None:
        return KeyTerms(config.order_by)
    limit = config.max_in_flight_per_key
    return None if limit is None else KeyTerms(limit.by, limit.max)


def live_after(log: TopicLog, after: int, limit: int) -> array[int]:
    """Return the first `limit` live seqs above `after`, ascending. Raises NotLoaded."""
    found: array[int] = array("Q")
    while len(found) < limit and (step := log.step(after, limit - len(found))) is not None:
        if isinstance(step, SeqRun):
            found.extend(range(step.first, step.last + 1))
        after = step.last
    return found


def _keys_of(event: KeyEvent) -> Iterator[tuple[int, bytes]]:
    for i, seq in enumerate(event.seqs):
        yield seq, event.digests[DIGEST_BYTES * i : DIGEST_BYTES * (i + 1)]
