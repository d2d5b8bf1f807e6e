"""Which node holds which job of a queue: the projection of the queue's lease events (`docs/spec/semantics.md` section
6, `docs/spec/api.md` section 9).

Pure: the caller passes the time, the live records of the jobs log, and which of them die. The engine decides when
events are logged and synced, keeps the claims that wait for jobs, and encodes lease ids.

Theory of operation
-------------------

**The states of a job.** A job is a live record of the jobs log, in exactly one of five states. Nothing is kept here for
a fresh job; a cursor says where the fresh ones begin.

    fresh     never leased
    free      was leased and is not any more: on the freelist, which is served before fresh jobs, smallest seq first
    leased    held by a node under a lease id, until its deadline has passed
    delayed   not held, and not to be claimed before its time
    parked    has had all its deliveries, and is to be moved to the dead-letter topic; claims never see it

    fresh --Claimed--> leased --Acked--> gone
                       |  ^ |
      Released, or     |  | '--Released with a delay--> delayed
      now > deadline   |  |                                |
                       |  | Claimed                        | now >= its time
                       v  |                                |
                       free <------------------------------'
                       |  ^
                Parked |  | Released
                       v  |
                      parked --DeadLettered--> gone

Extended gives a lease another deadline. A job in any state also goes when its record is deleted, evicted or expires
(`gone`, `gone_below`). Of the counters, `in_flight` is leased jobs, `delayed` is delayed and parked jobs, and `ready`
is the rest of the live records: fresh and free jobs.

**Time.** Two of the arrows happen by time alone, and nothing is logged for them: `sweep` carries out those that are
due. The log may therefore show a leased job that is claimed again, or parked: in replay, where no time passes, Claimed
and Parked apply in any state. There are no timers. A lease is over when `now > deadline`, so it is due a millisecond
later; a delay is over at its time.

Every decision begins with a sweep, but of at most `SWEEP_MOST` jobs, so that a step of the event loop stays short.
Where many jobs are due together, a caller that is about to decide sweeps in slices, with pauses, until the projection
is not `behind`: otherwise claims and counters would miss free jobs. Correctness does not depend on it: a lease that is
over does not count as held, swept or not.

**Deliveries.** Claimed adds one, nothing takes one away. A free job that has had `max_deliveries` of them is not
claimed again; the claim that meets it parks it instead. A parked job that is released is parked again if the limit
still holds.

**Deciding and applying.** A `decide_*` method returns the event that is to happen and changes no state. Until the event
is applied, which is when it is committed (with `leases_durable`: synced), the holder still holds and the counters stay
as they were. A decision *reserves* the seqs of its event, and reserved seqs are left alone by everything else:

- no other decision takes them: claims pass over them, and a holder gets them back as `busy`;
- time does not free them: a lease whose event was decided in time does not end before the event is applied;
- `apply` of the event ends the reservation, or `abort`, if the event will not be committed. Then it is as if nothing
  had been decided, except that fresh seqs have become free ones, with no delivery.

So a seq never has two events in flight, and each is applied to the state in which it was decided. Events about
different seqs do not affect one another, so the order in which they are committed does not matter.

**Records that die.** Their jobs are forgotten at once. If a reserved seq dies, its event passes it over. In replay a
record may be claimed after it has died: therefore the log of live records is asked once at the end (`reconcile`), and
for a range of seqs when records turn out later to be lost (`forget_dead`).

**Replay.** Replay applies the events of a log, or of any prefix of it, in order, to the projection as it was dumped or
to an empty one. Where the log is cut off, the last events have not happened, and their jobs can still, or again, be
claimed. An event that does not fit (earlier ones were in a damaged part of the log) skips the seqs concerned.

The cursor is a lower bound: every live seq up to it is known here (in the table, or reserved), and known seqs above it
are not fresh either. That holds in replay too, which cannot tell a seq that was never claimed from one that was already
gone: it leaves the cursor below both, and the next claim that passes them finds out.

What can never happen: a seq is in two states, or reserved for two events; a lease that has not ended is claimed; a live
job cannot be claimed, is not leased, delayed or parked, and not about to be one of these; a counter disagrees with the
states; `ready < 0`, provided that the caller reports dead records at the moment it stops counting them as live.

The structure: kept jobs are in pages of neighbours (`job_pages`), in a table that knows which pages have free jobs and
when each is due (`job_table`, `due_pages`). There is no object or entry per job, and no heap that needs tidying.

Costs: nothing per fresh job; 26 bytes for each of many neighbours, 6.7 KB for a job that is alone on its page. A job
that is claimed and acked takes 4 us in calls of 32, and 40 us alone, however many others there are. A million leased
jobs are frozen in 0.2 ms, swept in steps of 1 ms, evicted in 4 ms (later sweeps give back their memory), dumped in 40
ms and loaded in 300 ms.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, Generic, NamedTuple, TypeVar

from topics.queue import job_pages
from topics.queue.job_pages import ABSENT, DELAYED, FAR_MS, FREE, LEASED, PARKED, JobPage
from topics.queue.job_table import JobTable
from topics.queue.lease_events import AckEvent, ClaimEvent, DeadLetterEvent, Event, ExtendEvent, ParkEvent, ReleaseEvent
from topics.runtime.instant import MAX_AHEAD_MS, Instant

# Jobs that one claim parks at most: as many as a call can claim. It keeps a step of the loop and the frame short.
MAX_PARKED: Final = 1000

# Due jobs that a decision frees at most: 1 ms. Nearly always that is all of them.
SWEEP_MOST = 2000

# Examining a page on which nothing is due counts as freeing so many jobs, because it takes as long.
_LOOK: Final = 32

# Pages that may be examined to find the job that is due next: 1 ms.
_LOOKS: Final = 64

# After a replay a claim has to pass over known seqs. `_SCAN`: live seqs that it asks for at a time (32 KiB);
# `_SCAN_MOST`: seqs that it passes over before it stops early (2 ms).
_SCAN: Final = 4096
_SCAN_MOST: Final = 16_384

_MOST_SEQ: Final = (1 << 64) - 1

NextLive = Callable[[int, int], Sequence[int]]
"""`next_live(after, limit)`: the first `limit` live seqs above `after`, ascending. It may return fewer; none means that
there are no more. Its exceptions are not caught."""

E = TypeVar("E", bound=Event)


class ClaimSelection(NamedTuple):
    """The jobs that a claim can have: `seqs` (ascending), for `ClaimEvent`, and `exhausted`, for `ParkEvent`. All are
    reserved.

    `more`: the search stopped early, at many exhausted or known seqs, and should be repeated at once. Both arrays may
    be empty then.
    """

    seqs: array[int]
    exhausted: array[int]
    more: bool


class LeaseDecision(NamedTuple, Generic[E]):
    """The outcome of a call about some seqs. `event` is about the seqs that the caller holds, ascending and reserved;
    None if there are none. `skipped` are not (or no longer) the caller's. `busy` are, but another event about them is
    in flight."""

    event: E | None
    skipped: list[int]
    busy: list[int]


class Leases:
    """The lease projection of one queue. The engine makes one for each queue topic, decides with `decide_*`, logs the
    event, and then calls `apply`, or `abort` if the event was not committed.

    `dead_lettered` counts over the topic's life. The seqs in answers ascend, or have the order of the event.
    """

    __slots__ = ("_cursor", "_floor", "_reconciled", "_reserved", "_table", "dead_lettered")

    def __init__(self) -> None:
        self.dead_lettered = 0
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

    # -- as of now ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return how many jobs are kept: all but the fresh ones."""
        return len(self._table)

    @property
    def in_flight(self) -> int:
        """Leased jobs, as of the last sweep; `delayed` and `ready` likewise."""
        return self._table.totals[LEASED]

    @property
    def delayed(self) -> int:
        """Delayed jobs, parked ones included."""
        return self._table.totals[DELAYED] + self._table.totals[PARKED]

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
        """Yield the known jobs from `first` to `last`, ascending: those that are kept, and reserved ones."""
        kept = [seq for run in self._table.runs(first, last, _SCAN) for seq in run]
        return iter(sorted({*kept, *(seq for seq in self._reserved if first <= seq <= last)}))

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

    def parked(self) -> array[int]:
        """Return the parked jobs. For resuming their moves after a restart, and for giving the moves up."""
        return self._table.seqs_in(PARKED)

    # -- time --------------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Return when (monotonic ms) the next job becomes free by time alone, None if none will.

        The answer may be too early, even in the past, where many leases were extended or have ended: then sweep and ask
        again.
        """
        return self._table.next_due(_LOOKS)

    def behind(self, now_ms: int) -> bool:
        """Return True if a sweep until `now_ms` has something to examine. It may free nothing."""
        return self._table.is_due(now_ms)

    def sweep(self, now_ms: int, most: int | None = None) -> array[int]:
        """Free the jobs whose lease or delay is over at `now_ms` (monotonic), and return them, in no order.

        `most` bounds how many are freed, and how much is examined, so that a long sweep can be done in slices: repeat
        until the projection is not `behind`.
        """
        freed: array[int] = array("Q")
        self._table.let_go()
        left = sys.maxsize if most is None else most
        while left > 0 and self._table.is_due(now_ms):
            seqs = self._table.free_due(now_ms, left)
            freed += seqs
            left -= max(len(seqs), _LOOK)
        return freed

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide_claim(self, limit: int, now: Instant, next_live: NextLive, max_deliveries: int) -> ClaimSelection:
        """Choose up to `limit` jobs to be claimed, by one claimer or a cohort: free ones first, then fresh ones.

        `max_deliveries` is 0 for no limit (also without a dead-letter topic). The caller makes the events: `ClaimEvent`
        for each claimer, with any share of the seqs, and `ParkEvent`; the rest it aborts. Raises what `next_live`
        raises, and then nothing has changed.
        """
        self.sweep(now.mono, SWEEP_MOST)
        seqs: array[int] = array("Q")
        exhausted: array[int] = array("Q")
        more = False
        for page, slot, seq in self._table.free():
            if len(seqs) == limit:
                break
            if not 0 < max_deliveries <= page.deliveries[slot]:
                seqs.append(seq)
            elif len(exhausted) < MAX_PARKED:
                exhausted.append(seq)
            else:
                more = True
                break
        fresh: array[int] = array("Q")
        if len(seqs) < limit and not more:
            fresh, self._cursor, more = self._find_fresh(limit - len(seqs), next_live)
        self._reserve(seqs)
        self._reserve(exhausted)
        self._reserved.update(zip(fresh, repeat(True)))
        # After a replay, fresh seqs may be between and below the free ones.
        seqs = array("Q", sorted(seqs + fresh))
        return ClaimSelection(seqs, exhausted, more)

    def decide_ack(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant
    ) -> LeaseDecision[AckEvent]:
        """Decide the ack of those of `seqs` that `node` holds. `lease_ids`, if given, has one for each seq.

        A seq that is repeated counts once, and counts as held if one of its lease ids matches. The same goes for
        `decide_nack` and `decide_extend`.
        """
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        return LeaseDecision(AckEvent(held) if held else None, skipped, busy)

    def decide_nack(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant, delay_ms: int
    ) -> LeaseDecision[ReleaseEvent]:
        """Decide the release of those of `seqs` that `node` holds; they can be claimed again after `delay_ms`."""
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        available_at = now.after(delay_ms) if delay_ms else None
        return LeaseDecision(ReleaseEvent(held, available_at) if held else None, skipped, busy)

    def decide_extend(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant, lease_ms: int
    ) -> LeaseDecision[ExtendEvent]:
        """Decide a new deadline, `lease_ms` from now, for those of `seqs` that `node` holds."""
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        return LeaseDecision(ExtendEvent(held, now.after(lease_ms)) if held else None, skipped, busy)

    def decide_release(self, leases: Mapping[int, int], now: Instant) -> LeaseDecision[ReleaseEvent]:
        """Decide the release of those of `leases` (seq to lease id) that still hold, because their connection has
        ended."""
        held, skipped, busy = self._held(None, list(leases), list(leases.values()), now)
        return LeaseDecision(ReleaseEvent(held, None) if held else None, skipped, busy)

    def decide_unpark(self, seqs: Sequence[int]) -> LeaseDecision[ReleaseEvent]:
        """Decide which of `seqs` need not go to the dead-letter topic any more; `skipped` are not parked."""
        parked, skipped, busy = self._choose(seqs, lambda seq: self._table.state(seq) == PARKED)
        return LeaseDecision(ReleaseEvent(parked, None) if parked else None, skipped, busy)

    def decide_dead_letter(self, seqs: Sequence[int]) -> LeaseDecision[DeadLetterEvent]:
        """Decide the deletion of those of `seqs` that are parked. All of them must have synced copies. `skipped` are
        not parked."""
        parked, skipped, busy = self._choose(seqs, lambda seq: self._table.state(seq) == PARKED)
        return LeaseDecision(DeadLetterEvent(parked) if parked else None, skipped, busy)

    def abort(self, seqs: Iterable[int]) -> None:
        """End the reservation of `seqs`, whose event will not be committed: all seqs of an event, or those of a
        selection that went into no event."""
        seqs = list(seqs)
        there = {seq for seq in seqs if self._reserved.pop(seq) and seq >= self._floor}
        for page, slot, seq in self._table.each(seqs, add=True):
            state = page.unreserve(slot)
            if state == ABSENT and seq in there:
                page.move(slot, FREE)
            elif state == LEASED:
                self._table.due_at(seq, page.due_ms[slot])

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
            case ParkEvent():
                done = self._park(event)
            case DeadLetterEvent():
                # Seqs whose records have died since count as dead-lettered too, because their copies are there. And in
                # replay the deletion, which is in the same batch, may have been applied first.
                self.dead_lettered += len(event.seqs)
                done = self._end(event.seqs)
            case AckEvent():
                done = self._end(event.seqs)
        self._pass_known()
        return done

    def gone(self, seqs: Iterable[int]) -> array[int]:
        """Forget the jobs of `seqs`, whose records were deleted or lost, but not by an ack or a dead-letter move, which
        are events. Return the seqs whose lease has ended by that."""
        ended: array[int] = array("Q")
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
        self._floor = seq
        self._cursor = max(self._cursor, seq - 1)
        self._pass_known()

    def reconcile(self, live_among: Callable[[array[int]], array[int]]) -> None:
        """Forget jobs whose records are gone, at the end of a replay.

        `live_among` picks the live ones out of ascending seqs, some thousands at a time. Its exceptions are not caught;
        called again, this continues with the same seqs.
        """
        assert not self._reserved, "a replay decides nothing"
        for run in self._table.runs(self._reconciled + 1, _MOST_SEQ, _SCAN):
            self._gone_unless(live_among, run)
            self._reconciled = run[-1]
        self._reconciled = 0

    def forget_dead(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> array[int]:
        """Forget the jobs from `first` to `last` that are no longer live, because records of that range were lost.
        Return the same as `gone`. May be called at any time, also while events are in flight.

        Calls `live_among` once, with all known seqs of the range. Its exceptions are not caught, and then nothing has
        changed.
        """
        known = {seq for seq in self._reserved if first <= seq <= last}
        known.update(*self._table.runs(first, last, _SCAN))
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
        return FrozenLeases(cursor, self.dead_lettered, now.window - now.mono, self._table.freeze())

    def dump(self, now: Instant) -> dict[str, Any]:
        """Freeze and dump at once: for few jobs."""
        return self.freeze(now).dump()

    @classmethod
    def load(cls, value: Mapping[str, Any], now: Instant) -> Leases:
        """Rebuild the projection from a dump. `now` is used to convert the times to the monotonic clock of this
        process.

        Raises ValueError if `value` is not a dump.
        """
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
        leases = cls()
        leases.dead_lettered = dead_lettered
        leases._cursor = cursor
        leases._table = JobTable.load(dumped, to_epoch_ms - now.window + now.mono, now.mono + MAX_AHEAD_MS)
        return leases

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        self._table.check(self._reserved)
        kept = [seq for run in self._table.runs(0, _MOST_SEQ, _SCAN) for seq in run]
        assert kept == sorted(set(kept))
        assert not kept or kept[0] >= self._floor, (kept[0], self._floor)
        assert self._cursor >= self._floor - 1, (self._cursor, self._floor)
        for seq, there in self._reserved.items():
            state = self._table.state(seq)
            assert there or state == ABSENT, seq
            assert not there or state != ABSENT or seq <= self._cursor, seq

    # -- within ------------------------------------------------------------------------------------------------------

    def _gone_unless(self, live_among: Callable[[array[int]], array[int]], seqs: array[int]) -> array[int]:
        live = set(live_among(seqs)) if seqs else set()
        return self.gone([seq for seq in seqs if seq not in live] if len(live) < len(seqs) else ())

    def _find_fresh(self, limit: int, next_live: NextLive) -> tuple[array[int], int, bool]:
        """Return up to `limit` fresh seqs, ascending, the cursor after them, and True if there may be more beyond the
        scan limit."""
        found: array[int] = array("Q")
        cursor = self._cursor
        ask = limit
        passed = 0
        while len(found) < limit and (live := next_live(cursor, ask)):
            if passed >= _SCAN_MOST:
                return found, cursor, True
            for seq in live:
                cursor = seq
                if self._table.state(seq) == ABSENT:
                    found.append(seq)
                    if len(found) == limit:
                        break
            passed += len(live)
            # One call is enough, unless known seqs have to be passed over.
            ask = max(limit - len(found), min(2 * ask, _SCAN))
        return found, cursor, False

    def _held(
        self, node: str | None, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant
    ) -> tuple[array[int], list[int], list[int]]:
        """Call `_choose` for the seqs that `node` (None: any node) holds under the lease ids, if any are given."""
        assert lease_ids is None or len(lease_ids) == len(seqs)
        self.sweep(now.mono, SWEEP_MOST)
        right = set()
        for seq, lease_id in zip(seqs, repeat(None, len(seqs)) if lease_ids is None else lease_ids, strict=True):
            page, slot = self._table.at(seq)
            holder = page.holder(slot)
            if (
                holder is not None
                and (node is None or holder == node)
                and (lease_id is None or page.lease_ids[slot] == lease_id)
                # The lease may be over without having been swept.
                and (page.due_ms[slot] > now.mono or seq in self._reserved)
            ):
                right.add(seq)
        return self._choose(seqs, right.__contains__)

    def _choose(self, seqs: Sequence[int], is_right: Callable[[int], bool]) -> tuple[array[int], list[int], list[int]]:
        """Reserve those of `seqs` for which `is_right`. Return them ascending, then the others, then those that are
        right but reserved already."""
        chosen: list[int] = []
        skipped: list[int] = []
        busy: list[int] = []
        for seq in dict.fromkeys(seqs):
            if not is_right(seq):
                skipped.append(seq)
            elif seq in self._reserved:
                busy.append(seq)
            else:
                chosen.append(seq)
        chosen.sort()
        self._reserve(chosen)
        return array("Q", chosen), skipped, busy

    def _reserve(self, seqs: Sequence[int]) -> None:
        """Reserve kept jobs."""
        for page, slot, seq in self._table.each(seqs):
            self._reserved[seq] = True
            page.reserve(slot)

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
            if page.unreserve(slot) in (LEASED, PARKED):
                page.move(slot, state, due_ms or 0)
                done.append(seq)
        return done

    def _park(self, event: ParkEvent) -> array[int]:
        done: array[int] = array("Q")
        for page, slot, seq in self._events(event.seqs):
            if page.unreserve(slot) != ABSENT:
                page.move(slot, PARKED)
                done.append(seq)
        return done

    def _end(self, seqs: array[int]) -> array[int]:
        return array("Q", [seq for page, slot, seq in self._events(seqs) if page.forget(slot) != ABSENT])

    def _events(self, seqs: array[int], due_ms: int | None = None) -> Iterator[tuple[JobPage, int, int]]:
        """Like `JobTable.each`, and end the reservations of the seqs."""
        for seq in seqs:
            self._reserved.pop(seq, None)
        return self._table.each(seqs, due_ms=due_ms)

    def _pass_known(self) -> None:
        """Move the cursor over the known seqs right behind it. In replay, where no claim does it."""
        self._cursor = self._table.end_of_run(self._cursor + 1) - 1


@dataclass(frozen=True, slots=True)
class FrozenLeases:
    """The state that `Leases.freeze` returned. It never changes, whatever happens to the `Leases`."""

    cursor: int
    dead_lettered: int
    to_epoch_ms: int
    """The window clock minus the monotonic one (ms) at that moment."""
    pages: Mapping[int, JobPage]

    def dump(self) -> dict[str, Any]:
        """Return the state as ints, strings, bytes and lists that CBOR takes, for `Leases.load`. May run in any thread.

        The form is described in `job_pages`.
        """
        return {
            "cursor": self.cursor,
            "dead_lettered": self.dead_lettered,
            "to_epoch_ms": self.to_epoch_ms,
            "page": job_pages.PAGE,
            "pages": [self.pages[number].dump(number) for number in sorted(self.pages)],
        }


def _column_ms(ms: int) -> int:
    return max(-FAR_MS, min(ms, FAR_MS))
