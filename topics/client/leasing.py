"""What a worker has in hand: jobs, their leases, and what is to be said about them next.

Pure: the time is given (seconds of any clock that does not jump), the random numbers too; who calls the daemon and who
runs the handlers is `topics.client.worker`'s business.

A job is in hand from the claim that gave it until the daemon has answered its ack or nack, or its lease is known to be
over and its handler has ended:

    take --> running --done-----> over, to be acked ---.
                |  '---failed---> over, to be nacked --+--> settled
                '---lost--> running without a lease ---'    (not in hand any more)

Places bound what is in hand, so everything that waits in here is bounded by them.

**When is a lease over?** The daemon decides, by its clock: it skips what is not held (any more). The worker knows an
upper bound of its own, one lease after the last answer that may have begun or renewed it, and gives a job up at that
time, whatever has become of the daemon. Deadlines in answers are only passed on: clocks of two machines differ.

**A call whose answer was lost** may have been carried out. Once an ack or nack was sent, that an extension skips the
job therefore says nothing; only the answer to a repeat does, or time. A repeat that is skipped counts as lost, because
nobody knows better: the job was acked by the first try, or its lease was over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topics.client.results import Job

MAX_PLACES: Final = 1000
"""Jobs in hand at most: as many as one call may name, unless `TOPICS_MAX_CLAIM` of the daemon says otherwise."""

_STEPS: Final = 8


class Nack(Exception):
    """Raised by a handler: the job is to be given out again after `delay_ms`. No error, so nobody is told of one."""

    def __init__(self, delay_ms: int = 0) -> None:
        super().__init__(f"again in {delay_ms} ms")
        self.delay_ms = delay_ms


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a job that failed is left alone, by the number of its deliveries: `first_ms`, each time `factor` times
    as long, never more than `most_ms`, and up to a quarter less at random. The random part moves in eight steps, so
    that many jobs that fail together come back at a few times, and can be told to the daemon in a few calls."""

    first_ms: int = 1000
    factor: float = 2.0
    most_ms: int = 300_000
    pick: Callable[[int], int] = random.randrange
    """Picks a number below its argument."""

    def __post_init__(self) -> None:
        if not 1 <= self.first_ms <= self.most_ms or self.factor <= 1:
            raise ValueError("a backoff needs 1 <= first_ms <= most_ms and a factor above 1")

    def __call__(self, deliveries: int) -> int:
        """The delay in ms after delivery number `deliveries`."""
        delay: float = self.first_ms
        while deliveries > 1 and delay < self.most_ms:
            delay *= self.factor
            deliveries -= 1
        return int(min(delay, self.most_ms) * (1 - self.pick(_STEPS) / (4 * _STEPS)))


@dataclass(slots=True)
class Stats:
    """Counters over the life of a worker. A job that comes again is counted again."""

    claimed: int = 0
    acked: int = 0
    """The daemon has said so."""
    nacked: int = 0
    lost: int = 0
    """Their leases were over before the daemon had confirmed an ack or nack; also those of which nobody knows whether
    the daemon carried it out."""


class Held:
    """One job in hand. Compared by identity: the same seq may be in hand twice, under a lost lease and a new one."""

    __slots__ = ("delay_ms", "extend_at", "job", "over_at", "said")

    def __init__(self, job: Job, now: float, lease_s: float) -> None:
        self.job = job
        self.extend_at = now + lease_s / 3
        self.over_at = now + lease_s
        """The lease is over then for certain."""
        self.delay_ms: int | None = None
        """Of the nack it is to get; None: it is to be acked, or not over yet."""
        self.said = False
        """An ack or nack is or was under way."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call is about, in the order in which the jobs were over (for an extension, were claimed)."""

    held: Sequence[Held]
    delay_ms: int | None = None
    """Of a nack; None: it is an ack, or an extension."""

    @property
    def seqs(self) -> list[int]:
        return [held.job.seq for held in self.held]

    @property
    def lease_ids(self) -> list[str]:
        return [held.job.lease_id for held in self.held]


class Hand:
    """The jobs in hand of one worker, `places` at most. Not thread-safe."""

    def __init__(self, places: int) -> None:
        if not 1 <= places <= MAX_PLACES:
            raise ValueError(f"concurrency: must be from 1 to {MAX_PLACES}")
        self.lease_s = 0.0
        """How long the leases are: to be set before the first is taken."""
        self.stats = Stats()
        self.most = places
        """What one call may name; lowered where the daemon says so."""
        self._places = places
        self._running: dict[Held, None] = {}
        self._over: dict[Held, None] = {}

    @property
    def free(self) -> int:
        """How many jobs may be taken."""
        return self._places - len(self._running) - len(self._over)

    @property
    def empty(self) -> bool:
        return not self._running and not self._over

    @property
    def unsettled(self) -> bool:
        """Whether there is anything to ack or nack."""
        return bool(self._over)

    # -- jobs come and end -------------------------------------------------------------------------------------------

    def take(self, jobs: Sequence[Job], now: float) -> list[Held]:
        """Jobs that were claimed are in hand from here on. Where one was in hand already, that lease is over: its nack
        was carried out, though the answer is still on its way, or it was lost."""
        assert self.lease_s > 0
        assert len(jobs) <= self.free
        seqs = {job.seq for job in jobs}
        for held in self._leased():
            if held.job.seq not in seqs:
                continue
            if held.said and held.delay_ms is not None:
                del self._over[held]
                self.stats.nacked += 1
            else:
                self._lose(held)
        taken = [Held(job, now, self.lease_s) for job in jobs]
        self._running.update(dict.fromkeys(taken))
        self.stats.claimed += len(taken)
        return taken

    def done(self, held: Held) -> None:
        """Its handler has ended well."""
        del self._running[held]
        if not held.job.lost:
            self._over[held] = None

    def failed(self, held: Held, delay_ms: int) -> None:
        """Its handler has ended otherwise."""
        held.delay_ms = delay_ms
        self.done(held)

    def give_up(self) -> None:
        """No handler is waited for any more, and no lease extended: what runs is to be given out again at once."""
        for held in list(self._running):
            self.failed(held, 0)
            held.job.lost = True

    # -- acks and nacks ----------------------------------------------------------------------------------------------

    def next_call(self) -> Batch:
        """What to say next; only when there is something `unsettled`. It is about the job that has waited longest, and
        takes along, up to `most`, all that get the same: an ack, or a nack with the same delay. So whatever was over
        while the last call was under way is in one call, and nothing is overtaken by others for ever."""
        delay_ms = next(iter(self._over)).delay_ms
        chosen = [held for held in self._over if held.delay_ms == delay_ms][: self.most]
        for held in chosen:
            held.said = True
        return Batch(chosen, delay_ms)

    def settled(self, batch: Batch, skipped: Collection[int]) -> None:
        """The daemon has answered an ack or nack."""
        missed = frozenset(skipped)
        for held in batch.held:
            if held not in self._over:
                continue
            if held.job.seq in missed:
                self._lose(held)
                continue
            del self._over[held]
            if batch.delay_ms is None:
                self.stats.acked += 1
            else:
                self.stats.nacked += 1

    # -- leases ------------------------------------------------------------------------------------------------------

    def extend_at(self) -> float | None:
        """When the next extension is due: after a third of the lease that is oldest. None while nothing is leased."""
        return min((held.extend_at for held in self._leased()), default=None)

    def to_extend(self) -> list[Batch]:
        """All that is leased, in calls of up to `most`."""
        leased = self._leased()
        return [Batch(leased[i : i + self.most]) for i in range(0, len(leased), self.most)]

    def extended(
        self, batch: Batch, skipped: Collection[int], deadlines: Mapping[int, int], sent: float, now: float
    ) -> None:
        """The daemon has answered an extension that was sent at `sent`."""
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

    def maybe_extended(self, batch: Batch, now: float) -> None:
        """Nobody knows what became of an extension."""
        for held in batch.held:
            held.over_at = now + self.lease_s

    def expire(self, now: float) -> None:
        """Give up what is certainly over."""
        for held in self._leased():
            if held.over_at < now:
                self._lose(held)

    def _leased(self) -> list[Held]:
        return [held for held in (*self._running, *self._over) if not held.job.lost]

    def _lose(self, held: Held) -> None:
        held.job.lost = True
        self.stats.lost += 1
        self._over.pop(held, None)
