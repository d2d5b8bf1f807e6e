"""The jobs of a queue as the events of its log have left them: what a replay makes, and what a snapshot keeps. Pure.

`leases`, which adds the time and the decisions, has the theory of operation of both.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from topics.queue import job_pages
from topics.queue.job_pages import (
    ABSENT,
    COMPLETING,
    CONDEMNED,
    DEFAULT_PRIORITY,
    DELAYED,
    FAR_MS,
    FREE,
    LATER,
    LEASED,
    PARKED,
    PLAIN,
    JobPage,
    without_fresh,
)
from topics.queue.job_results import JobResult, JobResults
from topics.queue.job_table import JobTable
from topics.queue.key_limit import KeyLimit
from topics.queue.key_order import KeyOrder
from topics.queue.last_errors import LastErrors
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    CompleteEvent,
    DeadLetterEvent,
    DeliverEvent,
    EnqueueEvent,
    Event,
    ExtendEvent,
    KeyEvent,
    NackEvent,
    ParkEvent,
    PauseEvent,
    ReleaseEvent,
    ReopenEvent,
    ResumeEvent,
    RetryEvent,
)
from topics.queue.retry_delay import RetryDelay
from topics.queue.unique_keys import FrozenKeys, UniqueKeys
from topics.runtime.instant import MAX_AHEAD_MS, Instant

# Seqs that are looked up in the log of live records at a time: 32 KiB.
_RUN: Final = 4096

_MOST_SEQ: Final = (1 << 64) - 1


class JobLook(NamedTuple):
    """One job: its state (`job_pages`), how often it was claimed, who holds it, the time of its state (`due_ms` of its
    slot), its priority and its last error."""

    state: int
    deliveries: int
    node: str | None
    due_ms: int
    priority: int
    error: str | None


class JobProjection:
    """The jobs of one queue as its events have left them, and the seqs that are reserved for events in flight.

    `dead_lettered` counts over the topic's life. `backoff` is the delay of jobs that fail, None for none: it is part of
    the topic's config, not of the state, and so is `key_rule`, None if nothing binds the jobs of one key.
    `paused_until` is None if the queue is not paused, otherwise the epoch ms of the end of the pause, or 0. `unique`
    are the keys of the jobs, once one has had a unique key. With `caller_sweeps` decisions do not sweep: the caller
    does that, and learns what becomes free. `results` are those of finished jobs that are not delivered yet, whether
    their records are still there or not. The seqs in answers ascend, or have the order of the event.
    """

    __slots__ = (
        "_cursor",
        "_floor",
        "_reconciled",
        "_reconciled_keys",
        "_reserved",
        "_table",
        "backoff",
        "caller_sweeps",
        "dead_lettered",
        "errors",
        "key_rule",
        "paused_until",
        "results",
        "unique",
    )

    def __init__(self) -> None:
        self.dead_lettered = 0
        self.backoff: RetryDelay | None = None
        self.caller_sweeps = False
        self.key_rule: KeyOrder | KeyLimit | None = None
        self.paused_until: int | None = None
        self.errors = LastErrors()
        self.results = JobResults()
        self.unique: UniqueKeys | None = None
        self._table = JobTable()
        # The cursor: every live seq up to it is in the table or in _reserved.
        self._cursor = 0
        # All records below this seq are gone.
        self._floor = 1
        # Seqs with an event in flight, and True while their records are live, as far as `gone` was told. Those that are
        # kept have the flag in the table.
        self._reserved: dict[int, bool] = {}
        # Progress of `reconcile`: seqs up to this one have been asked for.
        self._reconciled = 0
        self._reconciled_keys = 0

    # -- as of now ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many jobs are kept: all but the fresh ones."""
        return len(self._table)

    @property
    def knows_any(self) -> bool:
        """Return True if a job is kept or reserved, or a unique key or the key rule may know one."""
        return bool(self._table.has_pages or self._reserved or self.unique is not None or self.key_rule is not None)

    @property
    def in_flight(self) -> int:
        """Leased jobs, as of the last sweep; `delayed` and `ready` likewise."""
        return self._table.totals[LEASED]

    @property
    def delayed(self) -> int:
        """Delayed jobs, with those that are later, parked, condemned or completing."""
        totals = self._table.totals
        return totals[DELAYED] + totals[PARKED] + totals[LATER] + totals[CONDEMNED] + totals[COMPLETING]

    @property
    def dealt(self) -> int:
        """Return how many jobs are reserved for claims in flight, or to be parked or cancelled. O(reserved). The latter
        get no lease, so a limit may leave a claim less room than there is until their event has ended, never more."""
        return sum(there and self._table.state(seq) in (ABSENT, FREE) for seq, there in self._reserved.items())

    @property
    def cursor(self) -> int:
        """The cursor: every live seq up to it is known here."""
        return self._cursor

    @property
    def kept_free(self) -> int:
        """Free jobs, reserved ones included: a claim may have those before fresh ones."""
        return self._table.totals[FREE]

    @property
    def reserved(self) -> int:
        """Jobs with an event on its way."""
        return len(self._reserved)

    def is_kept(self, seq: int) -> bool:
        """Return True if the job is kept: it is not fresh."""
        return self._table.state(seq) != ABSENT

    def kept_between(self, first: int, last: int) -> Iterator[int]:
        """Yield the known jobs from `first` to `last`, ascending: those that are kept, and reserved ones whose records
        are there."""
        kept = [seq for run in self._table.runs(first, last, _RUN) for seq in run]
        first = max(first, self._floor)
        return iter(sorted({*kept, *(seq for seq, there in self._reserved.items() if there and first <= seq <= last)}))

    @property
    def last_held(self) -> int:
        """The highest job that is kept, or that an event on its way is about: it may be kept when that has failed. 0 if
        there is none. O(pages + events on their way)."""
        return max(self._table.last(), max(self._reserved, default=0))

    def jobs_after(self, after: int, to: int, mask: bytes, most: int) -> tuple[array[int], int]:
        """Return the known jobs above `after` and up to `to` whose states `mask` (`job_pages.mask_of`) has, ascending,
        and the seq up to which there are no others: as far as a step goes that finds about `most` jobs."""
        found, end = self._table.after(after, to, without_fresh(mask), most)
        if mask[ABSENT]:
            state, floor = self._table.state, self._floor
            fresh = [seq for seq, there in self._reserved.items() if there and max(after + 1, floor) <= seq <= end]
            fresh = [seq for seq in fresh if state(seq) == ABSENT]
            found = array("Q", sorted([*found, *fresh])) if fresh else found
        return found, end

    def jobs_among(self, first: int, last: int, mask: bytes) -> array[int]:
        """Return those from `first` to `last`, which are all unfinished, whose states `mask` has; that of a fresh job
        is `ABSENT`."""
        return self._table.among(first, last, mask)

    def look(self, seq: int) -> JobLook:
        """Return how a job is, as of the last sweep. One that is not kept is fresh."""
        page, slot = self._table.at(seq)
        state = page.states[slot] & PLAIN
        node, error = page.holder(slot), self.errors.of(seq)
        return JobLook(state, page.deliveries[slot], node, page.due_ms[slot], page.priority(slot), error)

    def kept_up_to(self, seq: int) -> list[int]:
        """Return the kept jobs up to `seq`, ascending. O(kept pages)."""
        return [one for run in self._table.runs(0, seq, _RUN) for one in run]

    def is_paused(self, now: Instant) -> bool:
        """Return True if claims get nothing at this time."""
        return self.paused_until is not None and (self.paused_until == 0 or now.wall < self.paused_until)

    def ready(self, count: int) -> int:
        """Return how many of `count` live records can be claimed, or are about to be."""
        ready = count - self.in_flight - self.delayed
        assert ready >= 0, (count, self.in_flight, self.delayed)
        return ready

    def holds(self, seq: int, lease_id: int) -> bool:
        """Return True if `seq` is leased under `lease_id`."""
        page, slot = self._table.at(seq)
        return page.holder(slot) is not None and page.lease_ids[slot] == lease_id

    def deliveries(self, seq: int) -> int:
        """Return how often `seq` was claimed, including a claim that holds, but not one in flight. 0 if it is not
        kept."""
        page, slot = self._table.at(seq)
        return page.deliveries[slot]

    def priority(self, seq: int) -> int:
        """Return the priority of `seq`; the default one if it is not kept."""
        page, slot = self._table.at(seq)
        return page.priority(slot)

    def parked(self) -> array[int]:
        """Return the parked and condemned jobs. For resuming their moves after a restart, and for giving the moves
        up."""
        if not self._table.totals[CONDEMNED]:
            return self._table.seqs_in(PARKED)
        return array("Q", sorted(self._table.seqs_in(PARKED) + self._table.seqs_in(CONDEMNED)))

    def is_parked(self, seq: int) -> bool:
        """Return True if `seq` is parked or condemned."""
        return self._table.state(seq) in (PARKED, CONDEMNED)

    def is_waiting(self, seq: int) -> bool | None:
        """Return True if a live job is ready or delayed, as of the last sweep: somebody will claim it. None if an event
        in flight may make it so. One that is being cancelled is the caller's to know: a removal is foreseen for it."""
        if self._table.state(seq) in (ABSENT, FREE, DELAYED, LATER):
            return True
        return None if seq in self._reserved else False

    # -- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> array[int]:
        """Carry out `event`, at its commit point or in replay. Return the seqs that it changed."""
        match event:
            case ClaimEvent():
                done = self._claim(event)
            case ExtendEvent():
                done = self._extend(event)
            case ReleaseEvent():
                done = self._release(event)
            case NackEvent():
                done = self._nack(event)
            case RetryEvent():
                done = self._retry(event)
            case EnqueueEvent():
                done = self._enqueue(event)
            case ParkEvent():
                done = self._park(event)
            case KeyEvent():
                done = self._key(event)
            case PauseEvent():
                self.paused_until, done = event.until, event.seqs
            case ResumeEvent():
                self.paused_until, done = None, event.seqs
            case DeadLetterEvent():
                # Seqs whose records have died since count as dead-lettered too, because their copies are there. And in
                # replay the deletion, which is in the same batch, may have been applied first.
                self.dead_lettered += len(event.seqs)
                done = self._end(event.seqs)
            case CompleteEvent():
                done = self._complete(event)
            case DeliverEvent():
                self.results.forget(event.seqs)
                done = self._end(event.seqs)
            case AckEvent():
                done = self._end(event.seqs)
            case ReopenEvent():
                done = self._reopen(event)
        self._pass_known()
        if self.key_rule is not None:
            _note_for_keys(self.key_rule, event, done)
        return done

    def gone(self, seqs: Iterable[int]) -> array[int]:
        """Forget the jobs of `seqs`, whose records were deleted or lost, but not by an ack or a dead-letter move, which
        are events. Return the seqs whose lease has ended by that."""
        ended: array[int] = array("Q")
        if self.errors or self.unique is not None or self.key_rule is not None:
            seqs = list(seqs)
            self._forget(seqs)
        if self.key_rule is not None:
            self.key_rule.ended(seqs)
        for page, slot, seq in self._table.each(seqs):
            if seq in self._reserved:
                self._reserved[seq] = False
            state = page.forget(slot)
            if state == LEASED:
                ended.append(seq)
            elif state == ABSENT and seq == self._cursor + 1:
                self._cursor = seq
        self._pass_known()
        return ended

    def gone_below(self, seq: int) -> None:
        """Forget all jobs below `seq`, whose records are gone. Their leases end; `holds` tells which."""
        if seq <= self._floor:
            return
        self._table.drop_below(self._floor, seq)
        if self.errors:
            self.errors.forget_below(seq)
        if self.unique is not None:
            self.unique.end_below(seq)
        if self.key_rule is not None:
            self.key_rule.ended_below(seq)
        self._floor = seq
        self._cursor = max(self._cursor, seq - 1)
        self._pass_known()

    def pass_to(self, seq: int) -> None:
        """Note that no job up to `seq` is fresh: a group has finished those that are not kept."""
        self._cursor = max(self._cursor, seq)
        self._pass_known()

    def reconcile(self, live_among: Callable[[array[int]], array[int]]) -> None:
        """Forget jobs whose records are gone, at the end of a replay.

        `live_among` picks the live ones out of ascending seqs, some thousands at a time. Its exceptions are not caught;
        called again, this continues with the same seqs.
        """
        assert not self._reserved, "a replay decides nothing"
        for run in self._table.runs(self._reconciled + 1, _MOST_SEQ, _RUN):
            self._gone_unless(live_among, run)
            self._reconciled = run[-1]
        if self.unique is not None:
            for run in self.unique.runs(self._reconciled_keys + 1):
                self._gone_unless(live_among, run)
                self._reconciled_keys = run[-1]
        self._reconciled = self._reconciled_keys = 0

    def forget_dead(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> array[int]:
        """Forget the jobs from `first` to `last` that are no longer live, because records of that range were lost.
        Return the same as `gone`. May be called at any time, also while events are in flight.

        Calls `live_among` once, with all known seqs of the range. Its exceptions are not caught, and then nothing has
        changed.
        """
        known = {seq for seq in self._reserved if first <= seq <= last}
        known.update(*self._table.runs(first, last, _RUN))
        if self.unique is not None:
            known.update(*self.unique.runs(first, last))
        if self.key_rule is not None:
            known.update(self.key_rule.known_between(first, last))
        return self._gone_unless(live_among, array("Q", sorted(known)))

    # -- keeping -----------------------------------------------------------------------------------------------------

    def freeze(self, now: Instant) -> FrozenLeases:
        """Return the applied state, never to change, to be dumped later. O(pages), well below 1 ms for a million
        jobs."""
        # Events in flight have not happened: fresh seqs that they reserve are still fresh.
        fresh = (
            seq
            for seq, there in self._reserved.items()
            if there and seq >= self._floor and self._table.state(seq) == ABSENT
        )
        cursor = min(self._cursor, min(fresh, default=self._cursor + 1) - 1)
        errors = self.errors.copy()
        to_epoch_ms = now.window - now.mono
        pages = self._table.freeze()
        unique = self.unique.freeze() if self.unique is not None else None
        results = self.results.copy()
        return FrozenLeases(cursor, self.dead_lettered, to_epoch_ms, pages, errors, self.paused_until, unique, results)

    def dump(self, now: Instant) -> dict[str, Any]:
        """Freeze and dump at once: for few jobs."""
        return self.freeze(now).dump()

    @classmethod
    def load(cls, value: Mapping[str, Any], now: Instant) -> Self:
        """Rebuild the projection from a dump. `now` is used to convert the times to the monotonic clock of this
        process. Raises ValueError if `value` is not a dump."""
        leases = cls()
        leases._cursor, leases.dead_lettered, to_epoch_ms, dumped = _head_of(value)
        leases._table = JobTable.load(dumped, to_epoch_ms - now.window + now.mono, now.mono + MAX_AHEAD_MS)
        leases.errors = LastErrors.load(value.get("errors", []))
        leases.results = JobResults.load(value.get("results", []))
        if not all(map(leases.results.__contains__, leases._table.seqs_in(COMPLETING))):
            raise ValueError("lease dump: a completing job without a result")
        if "unique" in value:
            leases.unique = UniqueKeys.load(value["unique"])
        leases.paused_until = _pause_of(value)
        return leases

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        aside = self.key_rule.aside() if isinstance(self.key_rule, KeyLimit) else ()
        self._table.check({**self._reserved, **dict.fromkeys(aside)})
        if self.unique is not None:
            self.unique.check()
        kept = [seq for run in self._table.runs(0, _MOST_SEQ, _RUN) for seq in run]
        assert kept == sorted(set(kept))
        assert not kept or kept[0] >= self._floor, (kept[0], self._floor)
        assert self._cursor >= self._floor - 1, (self._cursor, self._floor)
        for seq, there in self._reserved.items():
            state = self._table.state(seq)
            assert there or state == ABSENT, seq
        assert all(seq in self.results for seq in self._table.seqs_in(COMPLETING))
        if self.key_rule is not None:
            self.key_rule.check(lambda seq: seq not in self._reserved and self._table.state(seq) in (ABSENT, FREE))

    # -- within --------------------------------------------------------------------------------------------------------

    def _gone_unless(self, live_among: Callable[[array[int]], array[int]], seqs: array[int]) -> array[int]:
        live = set(live_among(seqs)) if seqs else set()
        return self.gone([seq for seq in seqs if seq not in live] if len(live) < len(seqs) else ())

    def _claim(self, event: ClaimEvent) -> array[int]:
        assert len(event.seqs) == len(event.lease_ids)
        done: array[int] = array("Q")
        due_ms = _column_ms(event.deadline.mono + 1)
        holder, last = 0, None
        changes = self._table.each(event.seqs, add=True, due_ms=due_ms)
        for (page, slot, seq), lease_id in zip(changes, event.lease_ids, strict=True):
            there = self._reserved.pop(seq, None)
            # Not reserved, so this is replay; unknown seqs up to the cursor are gone.
            if page.states[slot] == ABSENT and (
                there is False or seq < self._floor or (there is None and seq <= self._cursor)
            ):
                continue
            if page is not last:
                holder, last = page.index_of(event.node), page
            page.lease(slot, holder, lease_id, due_ms)
            done.append(seq)
        return done

    def _extend(self, event: ExtendEvent) -> array[int]:
        done: array[int] = array("Q")
        due_ms = _column_ms(event.deadline.mono + 1)
        for page, slot, seq in self._events(event.seqs, due_ms):
            if page.unreserve(slot) == LEASED:
                page.due_ms[slot] = due_ms
                done.append(seq)
        return done

    def _release(self, event: ReleaseEvent) -> array[int]:
        done: array[int] = array("Q")
        state, due_ms = (FREE, None) if event.available_at is None else (DELAYED, _column_ms(event.available_at.mono))
        for page, slot, seq in self._events(event.seqs, due_ms):
            if page.unreserve(slot) in (LEASED, PARKED, CONDEMNED):
                page.move(slot, state, due_ms or 0)
                done.append(seq)
        return done

    def _nack(self, event: NackEvent) -> array[int]:
        done: array[int] = array("Q")
        start = event.moment.mono
        changes = self._events(event.seqs, _column_ms(start + min(event.delays)))
        for (page, slot, seq), delay_ms in zip(changes, event.delays, strict=True):
            if page.unreserve(slot) != LEASED:
                continue
            if event.condemns:
                page.move(slot, CONDEMNED)
            elif delay_ms > 0:
                page.move(slot, DELAYED, _column_ms(start + delay_ms))
            else:
                page.move(slot, FREE)
            if not event.counts:
                page.uncount(slot)
            if event.error is not None:
                self.errors.note(seq, event.error)
            done.append(seq)
        return done

    def _retry(self, event: RetryEvent) -> array[int]:
        done: array[int] = array("Q")
        for page, slot, seq in self._events(event.seqs):
            # Leased: this is replay, where no time passes, and the job was delayed by the end of its lease.
            if page.unreserve(slot) in (DELAYED, LATER, LEASED):
                page.move(slot, FREE)
                done.append(seq)
        return done

    def _enqueue(self, event: EnqueueEvent) -> array[int]:
        done: array[int] = array("Q")
        first_ms = min(filter(None, event.not_before), default=None)
        changes = self._table.each(event.seqs, add=True, later_ms=first_ms)
        for (page, slot, seq), not_before, priority in zip(changes, event.not_before, event.priorities, strict=True):
            # Unknown seqs up to the cursor are gone: they were evicted by their own batch, or this is replay.
            if page.states[slot] != ABSENT or seq < self._floor or seq <= self._cursor or seq in self._reserved:
                continue
            if not_before:
                page.move(slot, LATER, _column_ms(not_before))
            elif priority != DEFAULT_PRIORITY:
                page.move(slot, FREE)
            else:
                continue
            page.prioritize(slot, priority)
            done.append(seq)
        return done

    def _reopen(self, event: ReopenEvent) -> array[int]:
        done: array[int] = array("Q")
        for page, slot, seq in self._table.each(event.seqs, add=True):
            if page.states[slot] == ABSENT and seq >= self._floor and seq not in self._reserved:
                page.move(slot, FREE)
                done.append(seq)
        return done

    def _key(self, event: KeyEvent) -> array[int]:
        if self.unique is None:
            self.unique = UniqueKeys()
            self.unique.end_below(self._floor)
        self.unique.add(event.seqs, event.digests, event.windows, event.moment)
        if event.answer is not None:
            self.unique.remember(event.answer)
        return array("Q")

    def _park(self, event: ParkEvent) -> array[int]:
        done: array[int] = array("Q")
        for page, slot, seq in self._events(event.seqs):
            # Without a delivery it does not fit: the claims were in a damaged part of the log.
            if page.unreserve(slot) != ABSENT and page.deliveries[slot]:
                page.move(slot, PARKED)
                done.append(seq)
        return done

    def _complete(self, event: CompleteEvent) -> array[int]:
        done: array[int] = array("Q")
        changes = self._events(event.seqs)
        for (page, slot, seq), data in zip(changes, event.results, strict=True):
            if page.unreserve(slot) in (ABSENT, COMPLETING):
                continue  # it is gone
            page.move(slot, COMPLETING)
            if seq not in self.results:
                self.results.note(seq, JobResult(event.node, data))
            done.append(seq)
        return done

    def _end(self, seqs: array[int]) -> array[int]:
        # Fresh jobs that are cancelled are only reserved.
        there = {seq for seq in seqs if self._reserved.get(seq) and seq >= self._floor}
        self._forget(seqs)
        ended = self._events(seqs)
        return array("Q", [seq for page, slot, seq in ended if page.forget(slot) != ABSENT or seq in there])

    def _forget(self, seqs: Sequence[int]) -> None:
        self.errors.forget(seqs)
        if self.unique is not None:
            self.unique.end(seqs)

    def _events(self, seqs: array[int], due_ms: int | None = None) -> Iterator[tuple[JobPage, int, int]]:
        """Like `JobTable.each`, and end the reservations of the seqs."""
        for seq in seqs:
            self._reserved.pop(seq, None)
        return self._table.each(seqs, due_ms=due_ms)

    def _pass_known(self) -> None:
        """Move the cursor over the known seqs right behind it. In replay, where no claim does it."""
        self._cursor = self._table.end_of_run(self._cursor + 1) - 1


def _note_for_keys(rule: KeyOrder | KeyLimit, event: Event, done: array[int]) -> None:
    match event:
        case AckEvent() | DeadLetterEvent() | DeliverEvent():
            rule.ended(event.seqs)
        case ReleaseEvent() | NackEvent() | RetryEvent() | ParkEvent() | CompleteEvent():
            rule.freed(done)
        case ReopenEvent():
            if isinstance(rule, KeyOrder):
                rule.reopen(done)


def _head_of(value: Mapping[str, Any]) -> tuple[int, int, int, list[Any]]:
    """Return the cursor, the count of dead letters, the time of the dump and the pages of a dump. Raises ValueError."""
    match value:
        case {
            "cursor": int(cursor),
            "dead_lettered": int(dead_lettered),
            "to_epoch_ms": int(to_epoch_ms),
            "page": job_pages.PAGE,
            "pages": list(dumped),
        }:
            pass
        case _:
            raise ValueError("lease dump: fields are missing, or not what they should be")
    if not 0 <= cursor <= _MOST_SEQ or dead_lettered < 0:
        raise ValueError("lease dump: values out of range")
    return cursor, dead_lettered, to_epoch_ms, dumped


def _pause_of(value: Mapping[str, Any]) -> int | None:
    match value.get("paused_until"):
        case None:
            return None
        case int(until) if until >= 0:
            return until
    raise ValueError("lease dump: a bad pause")


@dataclass(frozen=True, slots=True)
class FrozenLeases:
    """The state that `Leases.freeze` returned. It never changes; later changes of the `Leases` do not reach it."""

    cursor: int
    dead_lettered: int
    to_epoch_ms: int
    """The window clock minus the monotonic one (ms) at that moment."""
    pages: Mapping[int, JobPage]
    errors: Mapping[int, str]
    paused_until: int | None
    unique: FrozenKeys | None
    results: Mapping[int, JobResult]

    def dump(self) -> dict[str, Any]:
        """Return the state as ints, strings, bytes and lists that CBOR takes, for `Leases.load`. May run in any thread.

        The form is described in `job_pages`.
        """
        return {**self.dump_without_pages(), "pages": self.dump_pages(sorted(self.pages))}

    def dump_pages(self, numbers: Iterable[int]) -> list[Any]:
        """Return some of the pages as `dump` has them."""
        return [self.pages[number].dump(number) for number in numbers]

    def dump_without_pages(self) -> dict[str, Any]:
        """Return what `dump` does, but for the pages."""
        fields: dict[str, Any] = {
            "cursor": self.cursor,
            "dead_lettered": self.dead_lettered,
            "to_epoch_ms": self.to_epoch_ms,
            "page": job_pages.PAGE,
        }
        if self.errors:
            fields["errors"] = [[seq, text] for seq, text in self.errors.items()]
        if self.paused_until is not None:
            fields["paused_until"] = self.paused_until
        if self.unique is not None:
            fields["unique"] = self.unique.dump()
        if self.results:
            fields["results"] = [[seq, result.node, result.data] for seq, result in self.results.items()]
        return fields


def _column_ms(ms: int) -> int:
    return max(-FAR_MS, min(ms, FAR_MS))
