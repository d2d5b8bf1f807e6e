"""The jobs in hand of a worker, their leases, and the next ack, nack or extension.

Pure: the time is given (seconds of any clock that does not jump), and so are the random numbers. Calls and handlers are
left to `topics.client.workers.worker`.

A job is in hand from the claim that gave it until the daemon has answered its ack or nack, or until its lease is known
to be over and its handler has ended:

    take --> running --done-----> over, to be acked ---.
                |  '---failed---> over, to be nacked --+--> settled
                '---lost--> running without a lease ---'    (not in hand any more)

The places bound the number of jobs in hand, and with it everything that is kept here.

**When is a lease over?** The daemon decides, by its clock: it skips a job that the worker does not hold any more. The
worker knows an upper bound, one lease after the last answer that may have begun or renewed the lease, and gives the job
up at that time, whether the daemon answers or not. Deadlines in answers are only passed on to handlers: the clocks of
two machines differ.

**A call whose answer was lost** may have been carried out. So once an ack or nack was sent, an extension that skips the
job proves nothing; only the answer to a repeat does, or time. A repeat that is skipped counts as lost: either the first
attempt has acked the job, or its lease was over, and the worker cannot tell which.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from topics.client.results import Job

MAX_PLACES: Final = 1000
"""The largest number of jobs in hand: as many as one call may name by default (`TOPICS_MAX_CLAIM` of the daemon)."""

_STEPS: Final = 8


MAX_RESULTS_BYTES: Final = 128 << 10
"""Bytes of results that one ack has together at most, unless it is one result. A daemon takes twice as much by default,
and the longest result besides (`TOPICS_MAX_CALL_BYTES`)."""

MAX_ERROR_BYTES: Final = 4096
"""Bytes that the daemon keeps of an error."""


def cut(error: str) -> str:
    """Return as much of a text as the daemon keeps."""
    return error.encode("utf-8", "replace")[:MAX_ERROR_BYTES].decode("utf-8", "ignore")


class GiveBack(NamedTuple):
    """How a job is given back; as in `Client.nack`."""

    delay_ms: int | None = 0
    error: str | None = None
    counts: bool = True
    dead: bool = False


class Nack(Exception):
    """A handler raises this to give its job back, to be given out again after `delay_ms`. It counts as no error:
    `on_error` is not called."""

    def __init__(
        self, delay_ms: int | None = 0, *, error: str | None = None, count: bool = True, dead: bool = False
    ) -> None:
        """A `delay_ms` of None is as `retry` of the queue says. `error`, `count` and `dead` are as in
        `Client.nack`."""
        super().__init__("again" if delay_ms is None else f"again in {delay_ms} ms")
        self.terms = GiveBack(delay_ms, None if error is None else cut(error), count, dead)

    @property
    def delay_ms(self) -> int | None:
        """The delay, None: as the queue says."""
        return self.terms.delay_ms


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay after which a job that failed is given out again, by the number of its deliveries. It is `first_ms`
    after the first one, and `factor` times as long after each further one; at most `most_ms`; and up to a quarter less
    at random. The random part has eight steps, so that jobs that fail together have few different delays, and few calls
    nack them.

    Raises ValueError unless 1 <= `first_ms` <= `most_ms` and `factor` > 1."""

    first_ms: int = 1000
    factor: float = 2.0
    most_ms: int = 300_000
    pick: Callable[[int], int] = random.randrange
    """Returns a random number from 0 to below its argument."""

    def __post_init__(self) -> None:
        if not 1 <= self.first_ms <= self.most_ms or self.factor <= 1:
            raise ValueError("a backoff needs 1 <= first_ms <= most_ms and a factor above 1")

    def __call__(self, deliveries: int) -> int:
        """The delay after delivery number `deliveries` (from 1), in ms."""
        delay: float = self.first_ms
        while deliveries > 1 and delay < self.most_ms:
            delay *= self.factor
            deliveries -= 1
        return int(min(delay, self.most_ms) * (1 - self.pick(_STEPS) / (4 * _STEPS)))


@dataclass(slots=True)
class Stats:
    """Counts the jobs of a worker since it began. A job that is given out again is counted again."""

    claimed: int = 0
    acked: int = 0
    """Jobs whose ack the daemon has confirmed."""
    nacked: int = 0
    """Jobs whose nack the daemon has confirmed."""
    lost: int = 0
    """Jobs whose leases ended before the daemon confirmed an ack or nack; also those of which it is not known whether
    the daemon has carried it out."""


class HeldJob:
    """One job in hand. Compared by identity: a seq may be in hand twice, under a lost lease and under a new one."""

    __slots__ = ("extend_at", "job", "over_at", "result", "said", "terms")

    def __init__(self, job: Job, now: float, lease_s: float) -> None:
        self.job = job
        self.extend_at = now + lease_s / 3
        self.over_at = now + lease_s
        """The time at which the lease is certainly over."""
        self.terms: GiveBack | None = None
        """How it is given back; None: the job gets an ack, or its handler runs."""
        self.result: bytes | None = None
        """The JSON of its result, if that is wanted."""
        self.said = False
        """An ack or nack was sent, whether it was answered or not."""


@dataclass(frozen=True, slots=True)
class HeldJobBatch:
    """The jobs of one call: for an ack or nack in the order in which their handlers ended, for an extension in that of
    their claims."""

    held: Sequence[HeldJob]
    terms: GiveBack | None = None
    """How the jobs are given back; None for an ack and for an extension."""

    @property
    def seqs(self) -> list[int]:
        """The seqs of the jobs."""
        return [held.job.seq for held in self.held]

    @property
    def lease_ids(self) -> list[str]:
        """Their leases, in the same order."""
        return [held.job.lease_id for held in self.held]

    @property
    def results(self) -> list[msgspec.Raw] | None:
        """Their results, in the same order; None if none has one."""
        if all(held.result is None for held in self.held):
            return None
        return [msgspec.Raw(b"null" if held.result is None else held.result) for held in self.held]


class HeldJobs:
    """The jobs in hand of one worker, at most `places` (1 to 1000). Not thread-safe. Raises ValueError for a number of
    places out of range."""

    def __init__(self, places: int) -> None:
        if not 1 <= places <= MAX_PLACES:
            raise ValueError(f"concurrency: must be from 1 to {MAX_PLACES}")
        self.lease_s = 0.0
        """How long the leases are, in seconds. To be set before the first job is taken."""
        self.stats = Stats()
        self.most = places
        """How many jobs one call may name; lowered when the daemon accepts fewer."""
        self.most_results = MAX_RESULTS_BYTES
        """How many bytes of results; lowered like `most`."""
        self._places = places
        self._running: dict[HeldJob, None] = {}
        self._over: dict[HeldJob, None] = {}

    @property
    def free(self) -> int:
        """How many more jobs may be taken."""
        return self._places - len(self._running) - len(self._over)

    @property
    def empty(self) -> bool:
        """Return True if no job is in hand."""
        return not self._running and not self._over

    @property
    def unsettled(self) -> bool:
        """Return True if there is a job to ack or nack."""
        return bool(self._over)

    # -- jobs come and end -------------------------------------------------------------------------------------------

    def take(self, jobs: Sequence[Job], now: float) -> list[HeldJob]:
        """Take claimed jobs in hand. If a job was in hand already, that lease is over: the daemon has carried out its
        nack, and the answer is still on its way; or the lease was lost."""
        assert self.lease_s > 0
        assert len(jobs) <= self.free
        seqs = {job.seq for job in jobs}
        for held in self._leased():
            if held.job.seq not in seqs:
                continue
            if held.said and held.terms is not None:
                del self._over[held]
                self.stats.nacked += 1
            else:
                self._lose(held)
        taken = [HeldJob(job, now, self.lease_s) for job in jobs]
        self._running.update(dict.fromkeys(taken))
        self.stats.claimed += len(taken)
        return taken

    def done(self, held: HeldJob, result: bytes | None = None) -> None:
        """Note that the handler of a job has returned: the job gets an ack, with the JSON of its result if that is
        wanted."""
        held.result = result
        del self._running[held]
        if not held.job.lost:
            self._over[held] = None

    def failed(self, held: HeldJob, terms: GiveBack) -> None:
        """Note that the handler of a job has failed: the job is given back."""
        held.terms = terms
        self.done(held)

    def give_up(self) -> None:
        """Nack all jobs whose handlers run, with no delay; these deliveries do not count. For the end of a worker: it
        waits for no handler any more."""
        for held in list(self._running):
            self.failed(held, GiveBack(counts=False))
            held.job.lost = True

    # -- acks and nacks ----------------------------------------------------------------------------------------------

    def next_call(self) -> HeldJobBatch:
        """The jobs of the next ack or nack; only if there are `unsettled` ones. It takes the job that has waited
        longest, and up to `most` jobs that get the same: an ack, or a nack on the same terms. So jobs that ended
        during the last call share one call, and no job waits for ever."""
        terms = next(iter(self._over)).terms
        chosen: list[HeldJob] = []
        size = 0
        for held in self._over:
            if held.terms != terms:
                continue
            size += len(held.result or b"")
            if len(chosen) == self.most or (chosen and size > self.most_results):
                break
            chosen.append(held)
        for held in chosen:
            held.said = True
        return HeldJobBatch(chosen, terms)

    def settled(self, batch: HeldJobBatch, skipped: Collection[int]) -> None:
        """Take the daemon's answer to an ack or nack."""
        missed = frozenset(skipped)
        for held in batch.held:
            if held not in self._over:
                continue
            if held.job.seq in missed:
                self._lose(held)
                continue
            del self._over[held]
            if batch.terms is None:
                self.stats.acked += 1
            else:
                self.stats.nacked += 1

    def refused(self, held: HeldJob, terms: GiveBack) -> None:
        """Note that the daemon takes no ack of a job with its result: it is given back."""
        held.terms, held.result = terms, None

    def without_results(self) -> None:
        """Ack the jobs without their results: nobody wants them any more."""
        for held in (*self._running, *self._over):
            held.result = None

    # -- leases ------------------------------------------------------------------------------------------------------

    def extend_at(self) -> float | None:
        """When the next extension is due: a third of a lease after the oldest was given or extended. None if no job is
        leased."""
        return min((held.extend_at for held in self._leased()), default=None)

    def to_extend(self) -> list[HeldJobBatch]:
        """All leased jobs, in batches of up to `most`."""
        leased = self._leased()
        return [HeldJobBatch(leased[i : i + self.most]) for i in range(0, len(leased), self.most)]

    def extended(
        self, batch: HeldJobBatch, skipped: Collection[int], deadlines: Mapping[int, int], sent: float, now: float
    ) -> None:
        """Take the daemon's answer to an extension that was sent at `sent`."""
        missed = frozenset(skipped)
        for held in batch.held:
            job = held.job
            if job.seq in missed:
                if not held.said and not job.lost:
                    self._lose(held)
                continue
            held.extend_at = sent + self.lease_s / 3
            held.over_at = now + self.lease_s
            job.deadline = deadlines.get(job.seq, job.deadline)

    def maybe_extended(self, batch: HeldJobBatch, now: float) -> None:
        """Note that it is not known whether the daemon has carried out an extension."""
        for held in batch.held:
            held.over_at = now + self.lease_s

    def expire(self, now: float) -> None:
        """Give up the jobs whose leases are certainly over."""
        for held in self._leased():
            if held.over_at < now:
                self._lose(held)

    def _leased(self) -> list[HeldJob]:
        return [held for held in (*self._running, *self._over) if not held.job.lost]

    def _lose(self, held: HeldJob) -> None:
        held.job.lost = True
        self.stats.lost += 1
        self._over.pop(held, None)
