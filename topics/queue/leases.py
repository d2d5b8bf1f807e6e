"""Who holds what in a queue: the projection of its lease events (`semantics.md` section 6, `api.md` section 9).

Pure: it is told the time, what is live in the jobs log, and what goes from there. When events are logged and synced,
who waits for jobs, and what a lease id looks like, is the engine's.

Theory of operation
-------------------

**The states of a job.** A job is a live record of the jobs log, in exactly one of five states. Of a fresh one nothing
is kept here; a cursor says where they begin.

    fresh     never leased
    free      was leased and is nobody's: on the freelist, which is served before fresh ones, smallest seq first
    leased    somebody's (a node, a lease id), until its deadline has passed
    delayed   nobody's, and not to be claimed before its time
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

Extended gives a lease another deadline. From every state a job also goes when its record is deleted, evicted or
expires (`gone`, `gone_below`). Of the counters, `in_flight` is leased jobs, `delayed` is delayed and parked ones, and
`ready` is the rest of the live records: fresh and free ones.

**Time.** Two arrows are drawn by time alone, and nothing is logged for them: `sweep` follows those that are due, and
every decision begins with it. The log therefore shows a job leased that is claimed again, or parked: in replay, where
no time passes, Claimed and Parked apply to whatever the state is. Nothing has a timer. A lease is over when
`now > deadline`, so it is due a millisecond later; a delay is over at its time. Both are in one heap.

**Deliveries.** Claimed adds one, nothing takes one away. A free job that has had `max_deliveries` of them is not
claimed again but parked, by the claim that comes across it; parked and released, if the limit still holds, it will be
parked again.

**Deciding and applying.** A `decide_*` method returns the event that is to happen and changes no state: until the event
is applied, which is when it is committed (with `leases_durable`: synced), the holder holds and the counters count as
before. What it does is to *reserve* the seqs of the event, and reserved seqs are let alone by everything else:

- no other decision takes them: claims pass over them, and a holder gets them back as `busy`;
- no time runs: a lease whose event was decided in time does not end while the event is on its way;
- `apply` of the event ends it, or `abort`, if nothing comes of it. Then it is as if nothing had been decided, only that
  fresh seqs have become free ones, with no delivery.

So a seq never has two events in flight, and each is applied to the state in which it was decided. Events about
different seqs do not touch one another, so in which order those are committed does not matter.

**Records that go.** Their jobs are forgotten at once, and heaps still hold their seqs, which nobody minds. If a
reserved seq goes, its event passes it over. In replay it may come to be claimed after it has gone: for that the log of
live records is asked once at the end (`reconcile`).

**Replay.** Events of a log, or of any beginning of it, in its order, on the projection as it was dumped or on an empty
one. Where the log is cut off, the last events have not happened, and their jobs are still, or again, to be claimed. An
event that does not fit (its predecessors were in a damaged part of the log) is passed over for those seqs.

The cursor is a lower bound: every live seq up to it is known here (in the table, or reserved), and what is known above
it is not fresh either. That is exact in replay too, which cannot tell a seq that nobody was given from one that was
gone by then: it leaves the cursor before both, and the next claim that comes past them finds out.

What can never happen: a seq is in two states, or reserved for two events; a lease that has not ended is claimed; a live
job cannot be claimed, is not leased, delayed or parked, and not about to be one of these; a counter disagrees with the
states; `ready < 0`, if whoever counts live records tells of those that go when they are counted off.

Costs: nothing per fresh job, about 200 bytes for any other. O(log n) per seq for everything; a `sweep` is O(k log n)
for k jobs that move, `gone_below` for k jobs that go.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise, repeat
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from topics.log.index import from_little_endian, little_endian
from topics.queue.events import Acked, Claimed, DeadLettered, Event, Extended, Instant, Parked, Released
from topics.queue.heaps import TIDY_MIN, DueHeap, SeqHeap

FREE: Final = 0
LEASED: Final = 1
DELAYED: Final = 2
PARKED: Final = 3
"""The states of jobs in the table, as dumps have them."""
_STATES: Final = 4
_TIMED: Final = (LEASED, DELAYED)

# One claim parks no more than that: as many as a call can claim. A step of the loop stays short, and so does the frame.
MAX_PARKED: Final = 1000

# The most seqs that a claim asks for at a time when it has to pass over known ones, after a replay: 32 KiB.
_SCAN: Final = 4096

NextLive = Callable[[int, int], Sequence[int]]
"""`next_live(after, limit)`: the first `limit` live seqs above `after`, ascending. Fewer is fine, none means that there
are none. Whatever it raises passes through."""

E = TypeVar("E", bound=Event)


class Selection(NamedTuple):
    """What a claim can have: `seqs` (ascending), for `Claimed`, and `exhausted`, for `Parked`. All are reserved.

    `more`: it ended early because there were so many exhausted ones, and should be repeated at once.
    """

    seqs: array[int]
    exhausted: array[int]
    more: bool


class Decision(NamedTuple, Generic[E]):
    """What a call about some seqs comes to: `event` about those it is right about, ascending and reserved; None if
    there are none. `skipped` are not the caller's (any more); `busy` are, but an event about them is on its way.
    """

    event: E | None
    skipped: list[int]
    busy: list[int]


class Leases:
    """See the module. `dead_lettered` counts over the topic's life. Methods that say *array* return ascending seqs or,
    where events are concerned, in the order of the event."""

    __slots__ = (
        "_by_seq",
        "_by_state",
        "_cursor",
        "_due",
        "_floor",
        "_free",
        "_jobs",
        "_parked",
        "_reserved",
        "dead_lettered",
    )

    def __init__(self) -> None:
        self.dead_lettered = 0
        self._jobs: dict[int, _Job] = {}
        self._by_state = [0] * _STATES
        # Every live seq up to it is in _jobs or in _reserved.
        self._cursor = 0
        # Everything below it is gone.
        self._floor = 1
        # Seqs with an event on its way, and whether their records are still there, as far as `gone` was told.
        self._reserved: dict[int, bool] = {}
        self._parked: set[int] = set()
        # Lazy, all three: free jobs, when leases and delays are over, and all jobs in the order of their seqs.
        self._free = SeqHeap()
        self._due = DueHeap()
        self._by_seq = SeqHeap()

    # -- as of now ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many jobs are kept: all that are not fresh."""
        return len(self._jobs)

    @property
    def in_flight(self) -> int:
        """Leased jobs, as of the last sweep; the next three likewise."""
        return self._by_state[LEASED]

    @property
    def delayed(self) -> int:
        """Delayed jobs, parked ones included."""
        return self._by_state[DELAYED] + self._by_state[PARKED]

    def ready(self, count: int) -> int:
        """What can be claimed, or is about to be, of `count` live records."""
        ready = count - self.in_flight - self.delayed
        assert ready >= 0, (count, self.in_flight, self.delayed)
        return ready

    def holds(self, seq: int, lease_id: int) -> bool:
        """Whether `seq` is leased under `lease_id`."""
        job = self._jobs.get(seq)
        return job is not None and job.state == LEASED and job.lease_id == lease_id

    def deliveries(self, seq: int) -> int:
        """How often `seq` was claimed, a claim that holds included and one on its way not. 0 if it is not kept."""
        job = self._jobs.get(seq)
        return job.deliveries if job is not None else 0

    def parked(self) -> array[int]:
        """The parked jobs, an array. For taking up the moves after a restart, and for giving them up."""
        return array("Q", sorted(self._parked))

    def next_due_ms(self) -> int | None:
        """When, by the monotonic clock, the next job comes free by time alone; None if none will."""
        return self._due.first_time(self._due_job)

    def sweep(self, now_ms: int, most: int | None = None) -> array[int]:
        """Free what time has freed until `now_ms` (monotonic): leases and delays that are over. Returns an array of
        them, in no order.

        With `most` it stops soon after as many, so that whoever comes first after a long time can take pauses.
        """
        moved: array[int] = array("Q")
        while (due_ms := self._due.pop_time(now_ms)) is not None and (most is None or len(moved) < most):
            for seq in self._due.pop(due_ms):
                if (job := self._due_job(due_ms, seq)) is not None:
                    self._move(job, FREE)
                    moved.append(seq)
        if moved:
            self._free.push_all(moved)
            self._tidy()
        return moved

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide_claim(self, limit: int, now: Instant, next_live: NextLive, max_deliveries: int) -> Selection:
        """Choose up to `limit` jobs to be claimed, by one claimer or a cohort: the free ones first, then fresh ones.

        `max_deliveries` is 0 where jobs are delivered for ever (also without a dead-letter topic). The caller makes the
        events: `Claimed` for each claimer, of seqs as it likes, and `Parked`; what it leaves over, it aborts.
        Raises what `next_live` raises, and then nothing has changed.
        """
        self.sweep(now.mono)
        seqs: array[int] = array("Q")
        exhausted: array[int] = array("Q")
        more = False
        while len(seqs) < limit and (seq := self._free.first(self._is_free)) is not None:
            if not 0 < max_deliveries <= self._jobs[seq].deliveries:
                seqs.append(seq)
            elif len(exhausted) < MAX_PARKED:
                exhausted.append(seq)
            else:
                more = True
                break
            self._free.pop()
            self._reserved[seq] = True
        if len(seqs) < limit and not more:
            try:
                fresh, self._cursor = self._find_fresh(limit - len(seqs), next_live)
            except BaseException:
                self.abort(seqs + exhausted)
                raise
            self._reserved.update(zip(fresh, repeat(True)))
            # After a replay, fresh ones may be among and before the free ones.
            seqs = array("Q", sorted(seqs + fresh))
        return Selection(seqs, exhausted, more)

    def decide_ack(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant
    ) -> Decision[Acked]:
        """Who says that it is done with `seqs` holds some of them. `lease_ids`, if given, has one per seq.

        A seq that is repeated counts once, and is right if it is right anywhere. So in the next two.
        """
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        return Decision(Acked(held) if held else None, skipped, busy)

    def decide_nack(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant, delay_ms: int
    ) -> Decision[Released]:
        """What of `seqs` its holder gives back, to be claimed again in `delay_ms`."""
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        available_at = now.after(delay_ms) if delay_ms else None
        return Decision(Released(held, available_at) if held else None, skipped, busy)

    def decide_extend(
        self, node: str, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant, lease_ms: int
    ) -> Decision[Extended]:
        """Which of `seqs` its holder holds until `lease_ms` from now."""
        held, skipped, busy = self._held(node, seqs, lease_ids, now)
        return Decision(Extended(held, now.after(lease_ms)) if held else None, skipped, busy)

    def decide_release(self, leases: Mapping[int, int], now: Instant) -> Decision[Released]:
        """What of `leases` (seq to lease id) still holds and comes free, because their connection has ended."""
        held, skipped, busy = self._held(None, list(leases), list(leases.values()), now)
        return Decision(Released(held, None) if held else None, skipped, busy)

    def decide_unpark(self, seqs: Sequence[int]) -> Decision[Released]:
        """Which of `seqs` need not go to the dead-letter topic any more; `skipped` are not parked."""
        parked, skipped, busy = self._choose(seqs, self._parked.__contains__)
        return Decision(Released(parked, None) if parked else None, skipped, busy)

    def decide_dead_letter(self, seqs: Sequence[int]) -> Decision[DeadLettered]:
        """Which of `seqs`, of all of which there are synced copies, are to be deleted; `skipped` are not parked."""
        parked, skipped, busy = self._choose(seqs, self._parked.__contains__)
        return Decision(DeadLettered(parked) if parked else None, skipped, busy)

    def abort(self, seqs: Iterable[int]) -> None:
        """Nothing comes of what was decided about `seqs`, which are reserved: all of an event's, or of a selection's
        those that make no event."""
        for seq in seqs:
            there = self._reserved.pop(seq)
            if not there or seq < self._floor:
                continue
            job = self._jobs.get(seq)
            if job is None:
                self._add(seq)
                self._free.push(seq)
            elif job.state == FREE:
                self._free.push(seq)
            elif job.state == LEASED:
                self._due.push_all(job.due_ms, (seq,))
        self._tidy()

    # -- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> array[int]:
        """Let `event` happen: at its commit point, or in replay. Returns an array of the seqs that it happened to."""
        match event:
            case Claimed():
                done = self._claim(event)
            case Extended():
                done = self._extend(event)
            case Released():
                done = self._release(event)
            case Parked():
                done = self._park(event)
            case DeadLettered():
                # What is gone meanwhile is dead-lettered all the same, there is a copy of it; and in replay the
                # deletion, which is in the same batch, may have been met first.
                self.dead_lettered += len(event.seqs)
                done = self._end(event.seqs)
            case Acked():
                done = self._end(event.seqs)
        self._pass_known()
        self._tidy()
        return done

    def gone(self, seqs: Iterable[int]) -> array[int]:
        """The records of `seqs` are gone, by somebody's deletion or for good: not by an ack or a move from here, which
        are events. Returns an array of those whose lease has ended by that."""
        ended: array[int] = array("Q")
        for seq in seqs:
            if seq in self._reserved:
                self._reserved[seq] = False
            if self._forget(seq) == LEASED:
                ended.append(seq)
            elif seq == self._cursor + 1:
                self._cursor = seq
        self._pass_known()
        self._tidy()
        return ended

    def gone_below(self, seq: int) -> array[int]:
        """All records below `seq` are gone. The same otherwise; costs what is kept of them."""
        if seq <= self._floor:
            return array("Q")
        self._floor = seq
        self._cursor = max(self._cursor, seq - 1)
        ended = array("Q", [old for old in self._by_seq.take_below(seq) if self._forget(old) == LEASED])
        self._pass_known()
        self._tidy()
        return ended

    def reconcile(self, live_among: Callable[[array[int]], array[int]]) -> None:
        """The end of a replay: forget jobs whose records are gone. `live_among` picks the live ones out of ascending
        seqs; what it raises passes through, and then nothing has changed."""
        assert not self._reserved, "a replay decides nothing"
        known = array("Q", sorted(self._jobs))
        live = set(live_among(known))
        self.gone(seq for seq in known if seq not in live)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self, now: Instant) -> dict[str, Any]:
        """Everything applied, as ints, strings, bytes and lists that CBOR takes; arrays as little-endian bytes.

        All columns are in the order of their seqs: of all jobs `seqs`, `states`, `deliveries`; of leased and delayed
        ones `times` (epoch ms, a deadline or the end of a delay, by the clocks as of `now`); of leased ones `lease_ids`
        and `holders`, an index into `nodes`.
        """
        seqs = sorted(self._jobs)
        jobs = [self._jobs[seq] for seq in seqs]
        leased = [job for job in jobs if job.state == LEASED]
        nodes = {node: i for i, node in enumerate(dict.fromkeys(job.node for job in leased))}
        to_epoch = now.epoch - now.mono
        times = [job.due_ms - (job.state == LEASED) + to_epoch for job in jobs if job.state in _TIMED]
        # What is reserved has not happened: fresh seqs are still that.
        fresh = (seq for seq, there in self._reserved.items() if there and seq >= self._floor and seq not in self._jobs)
        return {
            "cursor": min(self._cursor, min(fresh, default=self._cursor + 1) - 1),
            "dead_lettered": self.dead_lettered,
            "nodes": list(nodes),
            "seqs": little_endian(array("Q", seqs)),
            "states": bytes(job.state for job in jobs),
            "deliveries": little_endian(array("Q", [job.deliveries for job in jobs])),
            "times": little_endian(array("Q", [max(0, time) for time in times])),
            "lease_ids": little_endian(array("Q", [job.lease_id for job in leased])),
            "holders": little_endian(array("I", [nodes[job.node] for job in leased])),
        }

    @classmethod
    def load(cls, value: Mapping[str, Any], now: Instant) -> Leases:
        """The inverse, at the moment `now`, which tells what epoch times are on the monotonic clock of this life.

        Raises ValueError if `value` cannot have come from `dump`.
        """
        columns = _Columns.load(value)
        leases = cls()
        leases.dead_lettered = columns.dead_lettered
        leases._cursor = columns.cursor
        leases._by_state = [columns.states.count(state) for state in range(_STATES)]
        leases._by_seq.push_all(columns.seqs)
        nodes = [sys.intern(node) for node in columns.nodes]
        times, lease_ids, holders = iter(columns.times), iter(columns.lease_ids), iter(columns.holders)
        to_mono = {time: now.at_epoch(time).mono for time in set(columns.times)}
        for seq, state, deliveries in zip(columns.seqs, columns.states, columns.deliveries, strict=True):
            job = leases._jobs[seq] = _Job(state, deliveries)
            if state in _TIMED:
                job.due_ms = to_mono[next(times)] + (state == LEASED)
                leases._due.push_all(job.due_ms, (seq,))
            if state == LEASED:
                job.node = nodes[next(holders)]
                job.lease_id = next(lease_ids)
        leases._free.push_all([seq for seq, job in leases._jobs.items() if job.state == FREE])
        leases._parked.update(seq for seq, job in leases._jobs.items() if job.state == PARKED)
        return leases

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        by_state = [0] * _STATES
        free = self._free.entries()
        due = self._due.entries()
        by_seq = self._by_seq.entries()
        for seq, job in self._jobs.items():
            by_state[job.state] += 1
            reserved = seq in self._reserved
            assert seq >= self._floor, (seq, self._floor)
            assert seq in by_seq, seq
            assert (job.state == PARKED) == (seq in self._parked), seq
            if job.state == FREE:
                # Reserved, it may still be in from before: replay claims without taking out.
                assert reserved or seq in free, seq
            if job.state in _TIMED:
                assert reserved or (job.due_ms, seq) in due, seq
            assert job.deliveries > 0 or job.state == FREE, seq
            assert not (reserved and job.state == DELAYED), seq
        assert by_state == self._by_state, (by_state, self._by_state)
        assert self._parked <= self._jobs.keys()
        assert self._cursor >= self._floor - 1, (self._cursor, self._floor)
        for seq, there in self._reserved.items():
            assert there or seq not in self._jobs, seq
            assert not there or seq in self._jobs or seq <= self._cursor, seq
        lengths = len(self._free), len(self._due), len(self._by_seq)
        for length, live in zip(lengths, self._most_live(), strict=True):
            assert length <= 2 * live + TIDY_MIN, (length, live)

    # -- within ------------------------------------------------------------------------------------------------------

    def _find_fresh(self, limit: int, next_live: NextLive) -> tuple[array[int], int]:
        """Up to `limit` fresh seqs, ascending, and where the cursor is after them."""
        found: array[int] = array("Q")
        cursor = self._cursor
        ask = limit
        while len(found) < limit and (live := next_live(cursor, ask)):
            for seq in live:
                cursor = seq
                if seq not in self._jobs:
                    found.append(seq)
                    if len(found) == limit:
                        break
            # Once is enough, but where there are known ones to be passed over.
            ask = max(limit - len(found), min(2 * ask, _SCAN))
        return found, cursor

    def _held(
        self, node: str | None, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant
    ) -> tuple[array[int], list[int], list[int]]:
        """See `_choose`. What is held by `node` (None: by anybody) under the lease ids, if there are any."""
        assert lease_ids is None or len(lease_ids) == len(seqs)
        self.sweep(now.mono)
        right = set()
        for i, seq in enumerate(seqs):
            job = self._jobs.get(seq)
            if (
                job is not None
                and job.state == LEASED
                and (node is None or job.node == node)
                and (lease_ids is None or job.lease_id == lease_ids[i])
            ):
                right.add(seq)
        return self._choose(seqs, right.__contains__)

    def _choose(self, seqs: Sequence[int], is_right: Callable[[int], bool]) -> tuple[array[int], list[int], list[int]]:
        """Reserve those of `seqs` that are right, ascending; the others, and those that are right but reserved."""
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
        self._reserved.update(zip(chosen, repeat(True)))
        return array("Q", chosen), skipped, busy

    def _claim(self, event: Claimed) -> array[int]:
        done: array[int] = array("Q")
        node = sys.intern(event.node)
        due_ms = event.deadline.mono + 1
        for seq, lease_id in zip(event.seqs, event.lease_ids, strict=True):
            there = self._reserved.pop(seq, None)
            job = self._jobs.get(seq)
            if job is None:
                # Not reserved: this is replay, and what is not known up to the cursor is gone.
                if there is False or seq < self._floor or (there is None and seq <= self._cursor):
                    continue
                job = self._add(seq)
            elif job.state == PARKED:
                self._parked.discard(seq)
            self._move(job, LEASED)
            job.deliveries += 1
            job.node = node
            job.lease_id = lease_id
            job.due_ms = due_ms
            done.append(seq)
        self._due.push_all(due_ms, done)
        return done

    def _extend(self, event: Extended) -> array[int]:
        done: array[int] = array("Q")
        due_ms = event.deadline.mono + 1
        for seq in event.seqs:
            job = self._unreserve(seq)
            if job is not None and job.state == LEASED:
                job.due_ms = due_ms
                done.append(seq)
        self._due.push_all(due_ms, done)
        return done

    def _release(self, event: Released) -> array[int]:
        done: array[int] = array("Q")
        until = event.available_at
        for seq in event.seqs:
            job = self._unreserve(seq)
            if job is None or job.state not in (LEASED, PARKED):
                continue
            self._parked.discard(seq)
            self._move(job, FREE if until is None else DELAYED)
            if until is not None:
                job.due_ms = until.mono
            done.append(seq)
        if until is None:
            self._free.push_all(done)
        else:
            self._due.push_all(until.mono, done)
        return done

    def _park(self, event: Parked) -> array[int]:
        done: array[int] = array("Q")
        for seq in event.seqs:
            job = self._unreserve(seq)
            if job is not None:
                self._move(job, PARKED)
                self._parked.add(seq)
                done.append(seq)
        return done

    def _end(self, seqs: array[int]) -> array[int]:
        for seq in seqs:
            self._reserved.pop(seq, None)
        return array("Q", [seq for seq in seqs if self._forget(seq) is not None])

    def _unreserve(self, seq: int) -> _Job | None:
        self._reserved.pop(seq, None)
        return self._jobs.get(seq)

    def _add(self, seq: int) -> _Job:
        job = self._jobs[seq] = _Job(FREE)
        self._by_state[FREE] += 1
        self._by_seq.push(seq)
        return job

    def _move(self, job: _Job, state: int) -> None:
        self._by_state[job.state] -= 1
        self._by_state[state] += 1
        job.state = state
        if state != LEASED:
            job.node = ""
            job.lease_id = 0

    def _forget(self, seq: int) -> int | None:
        """Keep nothing of `seq`; the state it was in, None if nothing was kept."""
        job = self._jobs.pop(seq, None)
        if job is None:
            return None
        self._by_state[job.state] -= 1
        self._parked.discard(seq)
        return job.state

    def _pass_known(self) -> None:
        """Move the cursor over what is known right behind it: in replay, where no claim does it."""
        while self._cursor + 1 in self._jobs:
            self._cursor += 1

    def _is_free(self, seq: int) -> bool:
        job = self._jobs.get(seq)
        return job is not None and job.state == FREE and seq not in self._reserved

    def _due_job(self, due_ms: int, seq: int) -> _Job | None:
        """The job, if it is `due_ms` that ends its lease or delay, and nothing is on its way that may change that."""
        job = self._jobs.get(seq)
        if job is None or job.due_ms != due_ms or job.state not in _TIMED or seq in self._reserved:
            return None
        return job

    def _most_live(self) -> tuple[int, int, int]:
        """The most live entries that the heaps can have: `_free`, `_due`, `_by_seq`."""
        return self._by_state[FREE], self._by_state[LEASED] + self._by_state[DELAYED], len(self._jobs)

    def _tidy(self) -> None:
        free, due, kept = self._most_live()
        self._free.tidy(free, self._is_free)
        self._due.tidy(due, self._due_job)
        self._by_seq.tidy(kept, self._jobs.__contains__)


class _Job(msgspec.Struct, gc=False, eq=False):
    """A job that is not fresh. A million of them must not be a million objects for the garbage collector to visit."""

    state: int
    deliveries: int = 0
    node: str = ""
    """Who holds it; empty unless leased."""
    lease_id: int = 0
    due_ms: int = 0
    """Leased: one past the deadline, delayed: the end of that. Monotonic."""


class _Columns(NamedTuple):
    """What `Leases.dump` returns, checked."""

    cursor: int
    dead_lettered: int
    nodes: list[str]
    seqs: array[int]
    states: bytes
    deliveries: array[int]
    times: array[int]
    lease_ids: array[int]
    holders: array[int]

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> _Columns:
        """Raises ValueError."""
        match value:
            case {"cursor": int(cursor), "dead_lettered": int(dead_lettered), "nodes": list(nodes), "states": bytes()}:
                states: bytes = value["states"]
            case _:
                raise ValueError("lease dump: fields are missing, or of a wrong type")
        seqs, deliveries, times, lease_ids = (
            from_little_endian("Q", value.get(key)) for key in ("seqs", "deliveries", "times", "lease_ids")
        )
        holders = from_little_endian("I", value.get("holders"))
        leased, delayed = states.count(LEASED), states.count(DELAYED)
        if not (
            len(seqs) == len(deliveries) == len(states)
            and len(times) == leased + delayed
            and len(lease_ids) == len(holders) == leased
        ):
            raise ValueError("lease dump: columns do not fit")
        if not (
            cursor >= 0
            and dead_lettered >= 0
            and all(isinstance(node, str) for node in nodes)
            and max(states, default=0) < _STATES
            and max(holders, default=-1) < len(nodes)
            and all(a < b for a, b in pairwise((0, *seqs)))
        ):
            raise ValueError("lease dump: values out of range")
        return cls(cursor, dead_lettered, nodes, seqs, states, deliveries, times, lease_ids, holders)
