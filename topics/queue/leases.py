"""Who holds what in a queue: the projection of its lease events (`docs/spec/semantics.md` section 6, `docs/spec/api.md`
section 9).

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

**Time.** Two arrows are drawn by time alone, and nothing is logged for them: `sweep` follows those that are due. The
log therefore shows a job leased that is claimed again, or parked: in replay, where no time passes, Claimed and Parked
apply to whatever the state is. Nothing has a timer. A lease is over when `now > deadline`, so it is due a millisecond
later; a delay is over at its time.

Every decision begins with a sweep, but of so many jobs only (`SWEEP_MOST`) that a step of the event loop stays short.
Where a multitude is due together, whoever is about to decide sweeps in slices, and takes pauses, until it is not
`behind`: for otherwise claims and counters do not see all that is free. What is right does not depend on that: a lease
that is over is nobody's, swept or not.

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

**Records that go.** Their jobs are forgotten at once. If a reserved seq goes, its event passes it over. In replay it
may come to be claimed after it has gone: for that the log of live records is asked once at the end (`reconcile`), and
about some of them when it turns out later that records are lost (`forget_dead`).

**Replay.** Events of a log, or of any beginning of it, in its order, on the projection as it was dumped or on an empty
one. Where the log is cut off, the last events have not happened, and their jobs are still, or again, to be claimed. An
event that does not fit (its predecessors were in a damaged part of the log) is passed over for those seqs.

The cursor is a lower bound: every live seq up to it is known here (in the table, or reserved), and what is known above
it is not fresh either. That is exact in replay too, which cannot tell a seq that nobody was given from one that was
gone by then: it leaves the cursor before both, and the next claim that comes past them finds out.

What can never happen: a seq is in two states, or reserved for two events; a lease that has not ended is claimed; a live
job cannot be claimed, is not leased, delayed or parked, and not about to be one of these; a counter disagrees with the
states; `ready < 0`, if whoever counts live records tells of those that go when they are counted off.

The structure: the jobs that are kept are in pages of neighbours (`job_pages`), in a table that knows which pages have
free jobs and when which one is due (`job_table`, `due_pages`). There is no object or entry per job, and no heap that
has to be tidied.

Costs: nothing per fresh job; 26 bytes for each of many neighbours, 6.7 KB for a job that is alone on its page. A job
that is claimed and acked takes 4 us in calls of 32, and 40 us alone, however many others there are. A million leased
jobs are frozen in 0.2 ms, swept in steps of 1 ms, evicted in 4 ms (later sweeps give back their memory), dumped in
40 ms and loaded in 300 ms.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Final, Generic, NamedTuple, TypeVar

from topics.queue import job_pages
from topics.queue.job_pages import ABSENT, DELAYED, FAR_MS, FREE, LEASED, PARKED, Page
from topics.queue.job_table import Table
from topics.queue.lease_events import Acked, Claimed, DeadLettered, Event, Extended, Parked, Released
from topics.runtime.instant import MAX_AHEAD_MS, Instant

# One claim parks no more than that: as many as a call can claim. A step of the loop stays short, and so does the frame.
MAX_PARKED: Final = 1000

# A decision frees no more than that of what is due: 1 ms. Nearly always it is all.
SWEEP_MOST = 2000

# What looking at a page in vain counts for in a sweep, in jobs: it takes as long as freeing so many.
_LOOK: Final = 32

# So many pages may be looked at to find out what is due next: 1 ms.
_LOOKS: Final = 64

# The most seqs that a claim asks for at a time when it has to pass over known ones, after a replay: 32 KiB. And so many
# it passes over at most: 2 ms.
_SCAN: Final = 4096
_SCAN_MOST: Final = 16_384

_MOST_SEQ: Final = (1 << 64) - 1

NextLive = Callable[[int, int], Sequence[int]]
"""`next_live(after, limit)`: the first `limit` live seqs above `after`, ascending. Fewer is fine, none means that there
are none. Whatever it raises passes through."""

E = TypeVar("E", bound=Event)


class Selection(NamedTuple):
    """What a claim can have: `seqs` (ascending), for `Claimed`, and `exhausted`, for `Parked`. All are reserved.

    `more`: it ended early because there were so many exhausted ones, or known ones to be passed over, and should be
    repeated at once. There may be nothing in it then.
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

    __slots__ = ("_cursor", "_floor", "_reconciled", "_reserved", "_table", "dead_lettered")

    def __init__(self) -> None:
        self.dead_lettered = 0
        self._table = Table()
        # Every live seq up to it is in the table or in _reserved.
        self._cursor = 0
        # Everything below it is gone.
        self._floor = 1
        # Seqs with an event on its way, and whether their records are still there, as far as `gone` was told. The kept
        # ones are flagged in the table.
        self._reserved: dict[int, bool] = {}
        # Where `reconcile` is: those up to it were asked for.
        self._reconciled = 0

    # -- as of now ---------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many jobs are kept: all that are not fresh."""
        return len(self._table)

    @property
    def in_flight(self) -> int:
        """Leased jobs, as of the last sweep; the next three likewise."""
        return self._table.totals[LEASED]

    @property
    def delayed(self) -> int:
        """Delayed jobs, parked ones included."""
        return self._table.totals[DELAYED] + self._table.totals[PARKED]

    def ready(self, count: int) -> int:
        """What can be claimed, or is about to be, of `count` live records."""
        ready = count - self.in_flight - self.delayed
        assert ready >= 0, (count, self.in_flight, self.delayed)
        return ready

    def holds(self, seq: int, lease_id: int) -> bool:
        """Whether `seq` is leased under `lease_id`."""
        page, slot = self._table.at(seq)
        return page.holder(slot) is not None and page.lease_ids[slot] == lease_id

    def deliveries(self, seq: int) -> int:
        """How often `seq` was claimed, a claim that holds included and one on its way not. 0 if it is not kept."""
        page, slot = self._table.at(seq)
        return page.deliveries[slot]

    def parked(self) -> array[int]:
        """The parked jobs, an array. For taking up the moves after a restart, and for giving them up."""
        return self._table.seqs_in(PARKED)

    # -- time --------------------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """When, by the monotonic clock, the next job comes free by time alone; None if none will.

        It may be a time before that, even one that has passed, where many leases were extended or have ended: sweep
        then, and ask again.
        """
        return self._table.next_due(_LOOKS)

    def behind(self, now_ms: int) -> bool:
        """Whether a sweep until `now_ms` has something to do. It may come to free nothing."""
        return self._table.is_due(now_ms)

    def sweep(self, now_ms: int, most: int | None = None) -> array[int]:
        """Free what time has freed until `now_ms` (monotonic): leases and delays that are over. Returns an array of
        them, in no order.

        With `most` it frees at most as many, or fewer when there is much to look at for it, so that a long sweep can
        take pauses: until it is not `behind`.
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

    def decide_claim(self, limit: int, now: Instant, next_live: NextLive, max_deliveries: int) -> Selection:
        """Choose up to `limit` jobs to be claimed, by one claimer or a cohort: the free ones first, then fresh ones.

        `max_deliveries` is 0 where jobs are delivered for ever (also without a dead-letter topic). The caller makes the
        events: `Claimed` for each claimer, of seqs as it likes, and `Parked`; what it leaves over, it aborts.
        Raises what `next_live` raises, and then nothing has changed.
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
        parked, skipped, busy = self._choose(seqs, lambda seq: self._table.state(seq) == PARKED)
        return Decision(Released(parked, None) if parked else None, skipped, busy)

    def decide_dead_letter(self, seqs: Sequence[int]) -> Decision[DeadLettered]:
        """Which of `seqs`, of all of which there are synced copies, are to be deleted; `skipped` are not parked."""
        parked, skipped, busy = self._choose(seqs, lambda seq: self._table.state(seq) == PARKED)
        return Decision(DeadLettered(parked) if parked else None, skipped, busy)

    def abort(self, seqs: Iterable[int]) -> None:
        """Nothing comes of what was decided about `seqs`, which are reserved: all of an event's, or of a selection's
        those that make no event."""
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
        return done

    def gone(self, seqs: Iterable[int]) -> array[int]:
        """The records of `seqs` are gone, by somebody's deletion or for good: not by an ack or a move from here, which
        are events. Returns an array of those whose lease has ended by that."""
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
        """All records below `seq` are gone, and their leases have ended: whoever wants to know which asks `holds`."""
        if seq <= self._floor:
            return
        self._table.drop_below(self._floor, seq)
        self._floor = seq
        self._cursor = max(self._cursor, seq - 1)
        self._pass_known()

    def reconcile(self, live_among: Callable[[array[int]], array[int]]) -> None:
        """The end of a replay: forget jobs whose records are gone. `live_among` picks the live ones out of ascending
        seqs, some thousands at a time. What it raises passes through; called again, this goes on with the same ones."""
        assert not self._reserved, "a replay decides nothing"
        for run in self._table.runs(self._reconciled + 1, _MOST_SEQ, _SCAN):
            self._gone_unless(live_among, run)
            self._reconciled = run[-1]
        self._reconciled = 0

    def forget_dead(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> array[int]:
        """Some records from `first` to `last` were lost: those of them that are not live any more are `gone`. Returns
        the same. At any time, also while events are on their way.

        Asks `live_among` once, with whatever is known there; what it raises passes through, and nothing has changed.
        """
        known = {seq for seq in self._reserved if first <= seq <= last}
        known.update(*self._table.runs(first, last, _SCAN))
        return self._gone_unless(live_among, array("Q", sorted(known)))

    # -- keeping -----------------------------------------------------------------------------------------------------

    def freeze(self, now: Instant) -> Frozen:
        """Everything applied, as of now, to be dumped at leisure. O(pages), well below 1 ms for a million jobs."""
        # What is reserved has not happened: fresh seqs are still that.
        fresh = (
            seq
            for seq, there in self._reserved.items()
            if there and seq >= self._floor and self._table.state(seq) == ABSENT
        )
        cursor = min(self._cursor, min(fresh, default=self._cursor + 1) - 1)
        return Frozen(cursor, self.dead_lettered, now.window - now.mono, self._table.freeze())

    def dump(self, now: Instant) -> dict[str, Any]:
        """`freeze` and `Frozen.dump` at once: for few jobs."""
        return self.freeze(now).dump()

    @classmethod
    def load(cls, value: Mapping[str, Any], now: Instant) -> Leases:
        """The inverse, at the moment `now`, which tells what the times are on the monotonic clock of this life.

        Raises ValueError if `value` cannot have come from a dump.
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
        leases._table = Table.load(dumped, to_epoch_ms - now.window + now.mono, now.mono + MAX_AHEAD_MS)
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
        """Up to `limit` fresh seqs, ascending, where the cursor is after them, and whether there may be more, which it
        was too far to look for."""
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
            # Once is enough, but where there are known ones to be passed over.
            ask = max(limit - len(found), min(2 * ask, _SCAN))
        return found, cursor, False

    def _held(
        self, node: str | None, seqs: Sequence[int], lease_ids: Sequence[int] | None, now: Instant
    ) -> tuple[array[int], list[int], list[int]]:
        """See `_choose`. What is held by `node` (None: by anybody) under the lease ids, if there are any."""
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
                # It may not have been swept yet.
                and (page.due_ms[slot] > now.mono or seq in self._reserved)
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
        self._reserve(chosen)
        return array("Q", chosen), skipped, busy

    def _reserve(self, seqs: Sequence[int]) -> None:
        """Of kept jobs."""
        for page, slot, seq in self._table.each(seqs):
            self._reserved[seq] = True
            page.reserve(slot)

    def _claim(self, event: Claimed) -> array[int]:
        assert len(event.seqs) == len(event.lease_ids)
        done: array[int] = array("Q")
        due_ms = _column_ms(event.deadline.mono + 1)
        holder, last = 0, None
        changes = self._table.each(event.seqs, add=True, due_ms=due_ms)
        for (page, slot, seq), lease_id in zip(changes, event.lease_ids, strict=True):
            there = self._reserved.pop(seq, None)
            # Not reserved: this is replay, and what is not known up to the cursor is gone.
            if page.states[slot] == ABSENT and (
                there is False or seq < self._floor or (there is None and seq <= self._cursor)
            ):
                continue
            if page is not last:
                holder, last = page.index_of(event.node), page
            page.lease(slot, holder, lease_id, due_ms)
            done.append(seq)
        return done

    def _extend(self, event: Extended) -> array[int]:
        done: array[int] = array("Q")
        due_ms = _column_ms(event.deadline.mono + 1)
        for page, slot, seq in self._events(event.seqs, due_ms):
            if page.unreserve(slot) == LEASED:
                page.due_ms[slot] = due_ms
                done.append(seq)
        return done

    def _release(self, event: Released) -> array[int]:
        done: array[int] = array("Q")
        state, due_ms = (FREE, None) if event.available_at is None else (DELAYED, _column_ms(event.available_at.mono))
        for page, slot, seq in self._events(event.seqs, due_ms):
            if page.unreserve(slot) in (LEASED, PARKED):
                page.move(slot, state, due_ms or 0)
                done.append(seq)
        return done

    def _park(self, event: Parked) -> array[int]:
        done: array[int] = array("Q")
        for page, slot, seq in self._events(event.seqs):
            if page.unreserve(slot) != ABSENT:
                page.move(slot, PARKED)
                done.append(seq)
        return done

    def _end(self, seqs: array[int]) -> array[int]:
        return array("Q", [seq for page, slot, seq in self._events(seqs) if page.forget(slot) != ABSENT])

    def _events(self, seqs: array[int], due_ms: int | None = None) -> Iterator[tuple[Page, int, int]]:
        """As `Table.each`. The events about `seqs` are not on their way any more."""
        for seq in seqs:
            self._reserved.pop(seq, None)
        return self._table.each(seqs, due_ms=due_ms)

    def _pass_known(self) -> None:
        """Move the cursor over what is known right behind it: in replay, where no claim does it."""
        self._cursor = self._table.end_of_run(self._cursor + 1) - 1


@dataclass(frozen=True, slots=True)
class Frozen:
    """What `Leases.freeze` has found. Nothing changes it any more, whatever happens to the `Leases`."""

    cursor: int
    dead_lettered: int
    to_epoch_ms: int
    """What makes times of the clock of windows of monotonic ones, as of that moment."""
    pages: Mapping[int, Page]

    def dump(self) -> dict[str, Any]:
        """It as ints, strings, bytes and lists that CBOR takes, for `Leases.load`. In whatever thread.

        `cursor`, `dead_lettered`, `to_epoch_ms`; `page`, the slots of a page; `pages`, which see.
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
