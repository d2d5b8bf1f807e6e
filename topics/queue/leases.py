"""Which node holds which job of a queue: the projection of the queue's lease events (`docs/spec/semantics.md` section
6, `docs/spec/api.md` section 9).

Pure: the caller passes the time, the live records of the jobs log, and which of them die. The engine decides when
events are logged and synced, keeps the claims that wait for jobs, and encodes lease ids.

Theory of operation
-------------------

**The states of a job.** A job is a live record of the jobs log, in exactly one of eight states. Nothing is kept here
for a fresh job; a cursor says where the fresh ones begin.

    fresh     never leased
    free      was leased and is not any more: on the freelist, which is served before fresh jobs, smallest seq first
    leased    held by a node under a lease id, until its deadline has passed
    delayed   not held, and not to be claimed before its time
    parked    has had all its deliveries, and is to be moved to the dead-letter topic; claims never see it
    condemned the same after any number of deliveries, because its holder has said so
    later     never leased, and not to be claimed before a time of the wall clock
    completing  finished, with a result that is to be delivered; claims never see it

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

Completed is an ack whose results are to be delivered: leased becomes completing, and Delivered makes it gone. A result
is kept apart from its job (`job_results`): if the record dies first, Delivered only ends the result.

Retried makes a delayed or later job free, and Acked also ends jobs in other states than leased: those that are
cancelled, fresh ones included. Nacked is Released with a delay for each job, or to condemned, from where the arrows are
those of parked. Enqueued is about new jobs that are not fresh: they are later, and become free at their times, or free
at once if only their priority is not the default one. Extended gives a lease another deadline. A job in any state also
goes when its record is deleted, evicted or expires (`gone`, `gone_below`). Of the counters, `in_flight` is leased jobs,
`delayed` is delayed, later, parked, condemned and completing jobs, and `ready` is the rest of the live records: fresh
and free jobs.

**Priorities.** A kept job has its priority in its state code (`job_pages`). While no free job has another than the
default one, a claim takes free jobs first, smallest seq first, then fresh ones. Otherwise `claim_order` says what is
next.

**Keys.** A `key_rule` bounds the jobs of one key: one at a time, in the order of their seqs, which goes before their
priorities (`key_order`), or so many at a time (`key_limit`). Claims ask it which jobs may be claimed, and it is told of
all jobs that become free or end. Then fresh jobs may stay behind claimed ones, above the cursor. Free jobs that wait
for their key are flagged like reserved ones, so that a search does not find them.

**Backoff.** With a `backoff` a lease that is over makes the job delayed, from the deadline on, instead of free. That is
an arrow by time alone too, and its delay follows from the job (`retry_delay`).

**Time.** Two of the arrows happen by time alone, and nothing is logged for them: `sweep` carries out those that are
due. The log may therefore show a leased job that is claimed again, or parked: in replay, where no time passes, Claimed
and Parked apply in any state. There are no timers. A lease is over when `now > deadline`, so it is due a millisecond
later; a delay is over at its time.

Every decision begins with a sweep, but of at most `SWEEP_MOST` jobs, so that a step of the event loop stays short.
Where many jobs are due together, a caller that is about to decide sweeps in slices, with pauses, until the projection
is not `behind`: otherwise claims and counters would miss free jobs. Correctness does not depend on it: a lease that is
over does not count as held, swept or not. So where jobs become due as fast as they can be swept, a caller decides
nevertheless (`topics.engine.job_queue`). Such a caller does all the sweeping (`caller_sweeps`).

**Deliveries.** Claimed adds one, and Nacked takes it back if it says that the delivery does not count. A free job that
has had `max_deliveries` of them is not claimed again; the claim that meets it parks it instead. A parked job that is
released is parked again if the limit still holds.

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
when each is due (`job_table`, `due_pages`). There is no object or entry per job: the heaps
of due times have entries of pages.

Costs: nothing per fresh job; 26 bytes for each of many neighbours (12 while none of them was claimed), 6.7 KB for a job
that is alone on its page. A job that is claimed and acked takes 4 us in calls of 32, and 40 us alone, however many
others there are. A million leased jobs are frozen in 0.2 ms, swept in steps of 1 ms, evicted in 4 ms (later sweeps give
back their memory), dumped in 40 ms and loaded in 300 ms.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, repeat
from typing import Final, Generic, NamedTuple, TypeVar

from topics.queue import claim_order
from topics.queue.claim_order import Ages
from topics.queue.job_pages import ABSENT, CONDEMNED, DELAYED, FREE, LATER, LEASED, PARKED, PLAIN
from topics.queue.job_projection import JobProjection
from topics.queue.key_limit import KeyLimit
from topics.queue.key_order import KeyOrder, KeyTerms
from topics.queue.lease_events import (
    AckEvent,
    CompleteEvent,
    DeadLetterEvent,
    DeliverEvent,
    Event,
    ExtendEvent,
    NackEvent,
    ReleaseEvent,
    RetryEvent,
)
from topics.queue.limited_claims import FreshRoom, LimitedClaim
from topics.runtime.instant import Instant

# Jobs that one claim parks at most: as many as a call can claim. It keeps a step of the loop and the frame short.
MAX_PARKED: Final = 1000

# Due jobs that a decision frees at most: 1 ms. Nearly always that is all of them.
SWEEP_MOST = 2000

# Examining a page counts as freeing so many jobs at least, because it takes as long.
_LOOK: Final = 80

# Pages that may be examined to find the job that is due next: 1 ms.
_LOOKS: Final = 64

# After a replay a claim has to pass over known seqs. `_SCAN`: live seqs that it asks for at a time (32 KiB);
# `_SCAN_MOST`: seqs that it passes over before it stops early (2 ms).
_SCAN: Final = 4096
_SCAN_MOST: Final = 16_384

NextLive = Callable[[int, int], Sequence[int]]
"""`next_live(after, limit)`: the first `limit` live seqs above `after`, ascending. It may return fewer; none means that
there are no more. Its exceptions are not caught."""

E_co = TypeVar("E_co", bound=Event, covariant=True)


UNBOUNDED: Final = FreshRoom(sys.maxsize, 0, 0)


class ClaimSelection(NamedTuple):
    """The jobs that a claim can have: `seqs` (in the order of the claim: ascending, unless there are priorities), for
    `ClaimEvent`, and `exhausted`, for `ParkEvent`. All are reserved.

    `more`: the search stopped early, at many exhausted or known seqs, and should be repeated at once. Both arrays may
    be empty then.
    """

    seqs: array[int]
    exhausted: array[int]
    more: bool


class LeaseDecision(NamedTuple, Generic[E_co]):
    """The outcome of a call about some seqs. `event` is about the seqs that the caller holds, ascending and reserved;
    None if there are none. `skipped` are not (or no longer) the caller's. `busy` are, but another event about them is
    in flight."""

    event: E_co | None
    skipped: list[int]
    busy: list[int]


class Leases(JobProjection):
    """The lease projection of one queue. The engine makes one for each queue topic, decides with `decide_*`, logs the
    event, and then calls `apply`, or `abort` if the event was not committed.

    The seqs in answers ascend, or have the order of the event.
    """

    __slots__ = ()

    # -- time --------------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Return when (monotonic ms) the next job becomes free by time alone, None if none will.

        The answer may be too early, even in the past, where many leases were extended or have ended: then sweep and ask
        again.
        """
        return self._table.next_due(_LOOKS)

    def next_later_ms(self) -> int | None:
        """Return the time of the first job that is later (epoch ms), None if there is none. It may be too early, like
        `next_due_ms`."""
        return self._table.next_later(_LOOKS)

    def behind(self, now_ms: int, wall_ms: int = 0) -> bool:
        """Return True if a sweep until `now_ms` has something to examine. It may free nothing."""
        return self._table.is_due(now_ms, wall_ms)

    def let_go(self) -> None:
        """Give back some of the memory of evicted jobs. A sweep does that too."""
        self._table.let_go()

    def sweep(self, now_ms: int, most: int | None = None, wall_ms: int = 0) -> array[int]:
        """Free the jobs whose lease or delay is over at `now_ms` (monotonic), or whose time has come at `wall_ms`
        (epoch ms), and return them, in no order. With a `backoff` some of them are delayed instead.

        `most` bounds how many are freed, and how much is examined, so that a long sweep can be done in slices: repeat
        until the projection is not `behind`.
        """
        freed: array[int] = array("Q")
        self._table.let_go()
        left = sys.maxsize if most is None else most
        while left > 0 and self._table.is_due(now_ms, wall_ms):
            seqs = self._table.free_due(now_ms, wall_ms, left, self.backoff)
            freed += seqs
            left -= max(len(seqs), _LOOK)
        if self.key_rule is not None:
            self.key_rule.freed(freed)
        return freed

    # -- keys --------------------------------------------------------------------------------------------------------

    @property
    def key_terms(self) -> KeyTerms | None:
        """The bound of the jobs of one key; None for none."""
        return None if self.key_rule is None else self.key_rule.terms

    def begin_keys(self, terms: KeyTerms | None, looked_to: int = 0) -> None:
        """Give out the jobs of one key by other terms from here on; None: without any. There is nothing to know about
        jobs up to `looked_to`.

        The caller then tells `key_rule` the keys of the records. Until it has done that for those of `unsure`, nothing
        can be claimed.
        """
        if isinstance(self.key_rule, KeyLimit):
            self._table.show_all(self._reserved)
        self.key_rule = None
        if terms is None:
            return
        held = {*self._table.seqs_in(LEASED), *self._reserved}
        if terms.most:
            self.key_rule = KeyLimit(terms.by, terms.most, held)
            looked_to = max(looked_to, self._cursor)
        else:
            self.key_rule = KeyOrder(terms.by, held)
        self.key_rule.looked_to = looked_to

    def must_look(self, most: int, head: int) -> bool:
        """Return True if records up to `head` have to be looked at before `most` jobs can be claimed."""
        rule = self.key_rule
        return rule is not None and (rule.must_look(most, head) or self.must_look_at_kept(most))

    def must_look_at_kept(self, most: int) -> bool:
        """Return True if some of the records are those of jobs that are kept."""
        return self.key_rule is not None and (bool(self.key_rule.unsure) or bool(self.without_key(most)))

    def without_key(self, most: int) -> array[int]:
        """Return the free jobs among the first `most` of each lane that the limit of keys does not know."""
        found: array[int] = array("Q")
        limit = self.key_rule
        if isinstance(limit, KeyLimit) and not limit.is_full:
            for lane in (0, *self._table.other_lanes()):
                found.extend([seq for _, _, seq in islice(self._table.free(lane), most) if not limit.role_of(seq)])
        return found

    def to_look_at(self, seqs: array[int]) -> array[int]:
        """Return those of the next unfinished jobs of which `key_rule` has to be told."""
        return array("Q", filter(self.is_fresh, seqs)) if isinstance(self.key_rule, KeyLimit) else seqs

    def is_fresh(self, seq: int) -> bool:
        """Return True if a live job was never claimed."""
        return self._table.state(seq) == ABSENT and seq not in self._reserved

    def is_held(self, seq: int) -> bool:
        """Return True if `seq` is leased, or an event about it is in flight."""
        return seq in self._reserved or self._table.state(seq) == LEASED

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide_claim(
        self,
        limit: int,
        now: Instant,
        next_live: NextLive,
        max_deliveries: int,
        ages: Ages | None = None,
        room: FreshRoom = UNBOUNDED,
    ) -> ClaimSelection:
        """Choose up to `limit` jobs to be claimed, by one claimer or a cohort: free ones first, then fresh ones, or in
        the order of their priorities, if any is not the default one.

        `max_deliveries` is 0 for no limit (also without a dead-letter topic). `ages` says how jobs age, None for not at
        all. `room` is for fresh jobs in an order; without one `next_live` finds no more than there is room for. The
        caller makes the events: `ClaimEvent` for each claimer, with any share of the seqs, and `ParkEvent`; the rest it
        aborts. Raises what `next_live` and `ages` raise, and then nothing has changed.
        """
        if not self.caller_sweeps:
            self.sweep(now.mono, SWEEP_MOST, now.wall)
        ages = ages or Ages(lambda seq: 0, 0, 0)
        if isinstance(self.key_rule, KeyOrder):
            return self._claim_in_order(self.key_rule, limit, max_deliveries, room)
        if self.key_rule is not None:
            return self._claim_limited(self.key_rule, limit, max_deliveries, ages, room)
        if self._table.other_lanes():
            return self._claim_by_priority(limit, next_live, max_deliveries, ages)
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

    def _claim_in_order(self, order: KeyOrder, limit: int, max_deliveries: int, room: FreshRoom) -> ClaimSelection:
        seqs: array[int] = array("Q")
        exhausted: array[int] = array("Q")
        if order.unsure:
            return ClaimSelection(seqs, exhausted, False)
        fresh: list[int] = []
        while len(seqs) < limit and len(exhausted) < MAX_PARKED:
            is_room = len(fresh) < room.most
            seq = order.next(with_aside=is_room or order.first_aside == room.always)
            if seq is None:
                break
            page, slot = self._table.at(seq)
            # The end of a reservation is told to the order.
            state = page.states[slot] & PLAIN
            if seq in self._reserved or state not in (ABSENT, FREE):
                continue
            if state == ABSENT:
                if not is_room and seq != room.always:
                    order.set_aside(seq)
                    continue
                fresh.append(seq)
            elif 0 < max_deliveries <= page.deliveries[slot]:
                exhausted.append(seq)
                continue
            seqs.append(seq)
        if len(fresh) < len(seqs):
            among = set(fresh)
            self._reserve([seq for seq in seqs if seq not in among])
        self._reserve(exhausted)
        # The cursor stays below the fresh ones: others below them may wait for those before them.
        self._reserved.update(zip(fresh, repeat(True)))
        return ClaimSelection(seqs, exhausted, len(exhausted) == MAX_PARKED)

    def _claim_limited(
        self, rule: KeyLimit, limit: int, max_deliveries: int, ages: Ages, room: FreshRoom
    ) -> ClaimSelection:
        if rule.unsure:
            return ClaimSelection(array("Q"), array("Q"), False)
        claim = LimitedClaim(
            self._table,
            rule,
            self._reserved.__contains__,
            max_deliveries=max_deliveries,
            most_parked=MAX_PARKED,
            ages=ages,
            room=room,
        )
        try:
            claim.choose(limit)
        finally:
            for page, slot, _ in self._table.each(claim.hidden):
                page.reserve(slot)
        among = set(claim.fresh)
        self._reserve([seq for seq in claim.seqs if seq not in among])
        self._reserve(claim.exhausted)
        # As in an order, the cursor stays below the fresh ones.
        self._reserved.update(dict.fromkeys(claim.fresh, True))
        seqs = claim.seqs if claim.by_priority else array("Q", sorted(claim.seqs))
        return ClaimSelection(seqs, claim.exhausted, len(claim.exhausted) == MAX_PARKED)

    def _claim_by_priority(self, limit: int, next_live: NextLive, max_deliveries: int, ages: Ages) -> ClaimSelection:
        fresh, cursor, more = self._find_fresh(limit, next_live)
        choice = claim_order.choose(self._table, fresh, limit, max_deliveries, ages, MAX_PARKED)
        # The fresh jobs that are not taken stay above the cursor.
        self._cursor = cursor if choice.fresh == len(fresh) else fresh[choice.fresh] - 1
        taken = set(fresh[: choice.fresh])
        self._reserve([seq for seq in choice.seqs if seq not in taken])
        self._reserve(choice.exhausted)
        self._reserved.update(dict.fromkeys(taken, True))
        return ClaimSelection(choice.seqs, choice.exhausted, choice.more or (more and len(choice.seqs) < limit))

    def decide_ack(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant
    ) -> LeaseDecision[AckEvent]:
        """Decide the ack of those of `seqs` that `node` holds. `lease_ids`, if given, has one for each seq.

        A seq that is repeated counts once, and counts as held if one of its lease ids matches. The same goes for
        `decide_nack` and `decide_extend`.
        """
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        return LeaseDecision(AckEvent(held) if held else None, skipped, busy)

    def decide_complete(
        self,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[int] | None,
        now: Instant,
        results: Mapping[int, bytes],
    ) -> LeaseDecision[CompleteEvent]:
        """Decide the ack of those of `seqs` that `node` holds, whose results (JSON; null for those without one) are to
        be delivered."""
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        if not held:
            return LeaseDecision(None, skipped, busy)
        return LeaseDecision(
            CompleteEvent(node, held, tuple([results.get(seq, b"null") for seq in held])), skipped, busy
        )

    def decide_nack(
        self,
        node: str,
        seqs: Sequence[int],
        lease_ids: Sequence[int] | None,
        now: Instant,
        delay_ms: int | None,
        *,
        counts: bool = True,
        condemns: bool = False,
        error: str | None = None,
    ) -> LeaseDecision[ReleaseEvent | NackEvent]:
        """Decide the release of those of `seqs` that `node` holds; they can be claimed again after `delay_ms`. With
        None that is what `backoff` says, if the delivery counts, otherwise at once. `condemns`: they are to be moved to
        the dead-letter topic instead. `error` is kept as their last one."""
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        if not held:
            return LeaseDecision(None, skipped, busy)
        backoff = self.backoff if delay_ms is None and counts else None
        if counts and not condemns and error is None and backoff is None:
            available_at = now.after(delay_ms) if delay_ms else None
            return LeaseDecision(ReleaseEvent(held, available_at), skipped, busy)
        delays = array("q", repeat(delay_ms or 0, len(held)))
        if backoff is not None:
            delays = array("q", [backoff.delay_ms(seq, self.deliveries(seq)) for seq in held])
        return LeaseDecision(NackEvent(held, now, delays, counts, condemns, error), skipped, busy)

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

    def decide_unpark(self, seqs: Sequence[int], *, condemned: bool = True) -> LeaseDecision[ReleaseEvent]:
        """Decide which of `seqs` need not go to the dead-letter topic any more; `skipped` are not parked, or, without
        `condemned`, only condemned."""
        states = (PARKED, CONDEMNED) if condemned else (PARKED,)
        parked, skipped, busy = self._choose(seqs, lambda seq: self._table.state(seq) in states)
        return LeaseDecision(ReleaseEvent(parked, None) if parked else None, skipped, busy)

    def decide_dead_letter(self, seqs: Sequence[int]) -> LeaseDecision[DeadLetterEvent]:
        """Decide the deletion of those of `seqs` that are parked or condemned. All of them must have synced copies.
        `skipped` are neither."""
        parked, skipped, busy = self._choose(seqs, self.is_parked)
        return LeaseDecision(DeadLetterEvent(parked) if parked else None, skipped, busy)

    def decide_deliver(self, seqs: Sequence[int]) -> LeaseDecision[DeliverEvent]:
        """Decide the end of those of `seqs` whose results wait: they are synced where they were to go. It is about
        those too whose records are gone."""
        waiting, skipped, busy = self._choose(seqs, self.results.__contains__)
        return LeaseDecision(DeliverEvent(waiting) if waiting else None, skipped, busy)

    def decide_cancel(self, seqs: Sequence[int], now: Instant) -> LeaseDecision[AckEvent]:
        """Decide the end of those of `seqs`, which are all unfinished, that are ready, delayed, later or leased to
        whomever. `skipped` are parked or condemned."""
        if not self.caller_sweeps:
            self.sweep(now.mono, SWEEP_MOST, now.wall)
        states = (ABSENT, FREE, LEASED, DELAYED, LATER)
        chosen, skipped, busy = self._choose(seqs, lambda seq: self._table.state(seq) in states)
        if isinstance(self.key_rule, KeyLimit):
            self.key_rule.cancelled(chosen)
        return LeaseDecision(AckEvent(chosen) if chosen else None, skipped, busy)

    def decide_retry(self, seqs: Sequence[int], now: Instant) -> LeaseDecision[RetryEvent]:
        """Decide that those of `seqs` that are delayed or later can be claimed at once. `skipped` are neither."""
        if not self.caller_sweeps:
            self.sweep(now.mono, SWEEP_MOST, now.wall)
        chosen, skipped, busy = self._choose(seqs, lambda seq: self._table.state(seq) in (DELAYED, LATER))
        return LeaseDecision(RetryEvent(chosen) if chosen else None, skipped, busy)

    def abort(self, seqs: Iterable[int]) -> None:
        """End the reservation of `seqs`, whose event will not be committed: all seqs of an event, or those of a
        selection that went into no event."""
        seqs = list(seqs)
        there = {seq for seq in seqs if self._reserved.pop(seq) and seq >= self._floor}
        still_held: set[int] = set()
        for page, slot, seq in self._table.each(seqs, add=True):
            state = page.unreserve(slot)
            if state == ABSENT and seq in there:
                page.move(slot, FREE)
            elif state in (LEASED, DELAYED):
                self._table.due_at(seq, page.due_ms[slot])
                if state == LEASED:
                    still_held.add(seq)
            elif state == LATER:
                self._table.later_at(seq, page.due_ms[slot])
        if self.key_rule is not None:
            self.key_rule.freed([seq for seq in seqs if seq not in still_held])

    # -- within ------------------------------------------------------------------------------------------------------

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
                if self._table.state(seq) == ABSENT and seq not in self._reserved:
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
        if not self.caller_sweeps:
            self.sweep(now.mono, SWEEP_MOST, now.wall)
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
        """Reserve jobs; those that are not kept are fresh ones, or their records are gone and their results are not
        delivered."""
        for page, slot, seq in self._table.each(seqs):
            kept = page.states[slot] != ABSENT
            self._reserved[seq] = kept or seq not in self.results
            if kept:
                page.reserve(slot)
