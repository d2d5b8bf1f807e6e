"""Which jobs a claim gets where so many of one key are leased at a time (`docs/design/key_order.md` section 7). Pure.

The order is that of `claim_order`: the lane whose first job is the most urgent is next, and within the default lane
those that were claimed before are before fresh ones. Jobs of full keys are passed over, and set aside (`key_limit`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import NamedTuple

from topics.queue.claim_order import Ages
from topics.queue.job_pages import DEFAULT_PRIORITY, JobPage, priority_of
from topics.queue.job_table import JobTable
from topics.queue.key_limit import FRESH, KeyLimit
from topics.queue.key_order import UNKNOWN


class FreshRoom(NamedTuple):
    """Which fresh jobs a claim may have: `most` of them, and besides the one of seq `always`. Up to `head` there may be
    some."""

    most: int
    always: int
    head: int


class _TakenJob(NamedTuple):
    seq: int
    key: int
    kind: int


class _LimitedLane:
    """A lane: its jobs in the table, of which `seq` is the next, 0 for none; and the urgency of the one that was asked
    for last."""

    __slots__ = ("asked", "code", "jobs", "page", "seq", "slot", "urgency")

    def __init__(self, code: int, table: JobTable) -> None:
        self.code = code
        self.jobs: Iterator[tuple[JobPage, int, int]] = table.free(code)
        self.page, self.slot = table.at(0)
        self.seq = 0
        self.asked = self.urgency = 0

    def move(self) -> None:
        """Go to the next job in the table."""
        found = next(self.jobs, None)
        if found is None:
            self.seq = 0
        else:
            self.page, self.slot, self.seq = found

    def end(self) -> None:
        """Leave out the rest of the jobs in the table."""
        self.jobs = iter(())
        self.seq = 0


class LimitedClaim:
    """One claim, of up to `most` jobs. `seqs` are the jobs that it gets, `fresh` the fresh ones of them, `exhausted`
    those to be parked, and `hidden` the kept ones that it has set aside. The caller hides these in the table, also when
    `choose` raises."""

    def __init__(
        self,
        table: JobTable,
        limit: KeyLimit,
        is_reserved: Callable[[int], bool],
        *,
        max_deliveries: int,
        most_parked: int,
        ages: Ages,
        room: FreshRoom,
    ) -> None:
        self.seqs: array[int] = array("Q")
        self.fresh: list[int] = []
        self.exhausted: array[int] = array("Q")
        self.hidden: list[int] = []
        self.by_priority = False
        """True if there were jobs of several lanes."""
        self._table = table
        self._limit = limit
        self._is_reserved = is_reserved
        self._max_deliveries = max_deliveries
        self._most_parked = most_parked
        self._ages = ages
        self._room = room
        self._taken: list[_TakenJob] = []
        self._parked: list[_TakenJob] = []
        self._stops = False

    def choose(self, most: int) -> None:
        """Choose the jobs. Raises what `ages.ts_of` raises, and then nothing is chosen."""
        codes = {0, *self._table.other_lanes(), *self._limit.classes()} - {FRESH}
        lanes = [_LimitedLane(code, self._table) for code in sorted(codes)]
        self.by_priority = len(lanes) > 1
        for lane in lanes:
            lane.move()
        try:
            while len(self.seqs) < most and not self._stops:
                found = self._first(lanes)
                if found is None or self._stops:
                    break
                self._take(*found)
        except BaseException:
            self._undo()
            raise

    def _first(self, lanes: list[_LimitedLane]) -> tuple[_LimitedLane, int, int] | None:
        """Return the job that is next, with its lane and class. None if there is none, or if it is not known which it
        is (`_stops`)."""
        best: tuple[_LimitedLane, int, int] | None = None
        for lane in lanes:
            found = self._head(lane)
            if self._stops:
                return None
            if found is None:
                continue
            seq, kind = found
            if len(lanes) > 1 and lane.asked != seq:
                page, slot = self._table.at(seq)
                lane.urgency = self._ages.urgency(priority_of(lane.code), seq, page.due_ms[slot])
                lane.asked = seq
            if best is None or (lane.urgency, -seq) > (best[0].urgency, -best[1]):
                best = lane, seq, kind
        return best

    def _head(self, lane: _LimitedLane) -> tuple[int, int] | None:
        """Return the first job of a lane that may be claimed, and its class."""
        limit = self._limit
        while not self._stops:
            shown = limit.first_shown(lane.code)
            if shown is not None and (not lane.seq or shown < lane.seq):
                page, slot = self._table.at(shown)
                if not self._is_exhausted(page, slot):
                    return shown, lane.code
                self._park(shown, lane.code)
                continue
            if not lane.seq:
                return self._fresh_head() if priority_of(lane.code) == DEFAULT_PRIORITY else None
            seq, key = lane.seq, limit.key_of(lane.seq)
            if self._is_exhausted(lane.page, lane.slot):
                self._park(seq, lane.code)
                lane.move()
            elif key == UNKNOWN:
                if limit.is_full:
                    lane.end()
                else:
                    self._stops = True  # it has to be looked at
            elif limit.has_room(key):
                return seq, lane.code
            else:
                limit.set_aside(seq, key, lane.code)
                self.hidden.append(seq)
                lane.move()
        return None

    def _fresh_head(self) -> tuple[int, int] | None:
        limit = self._limit
        while True:
            seq = limit.first_shown(FRESH)
            is_shown = seq is not None
            if seq is None:
                seq = limit.first_ahead()
            if seq is None:
                # A less urgent job must not be taken instead of one that was not looked at.
                self._stops = limit.looked_to < self._room.head and not limit.is_full
                return None
            if self._table.state(seq) or self._is_reserved(seq):
                # It had ended, and was given out again since.
                limit.unlist(seq, FRESH) if is_shown else limit.forget(seq)
            elif not limit.has_room(key := limit.key_of(seq)):
                limit.set_aside(seq, key, FRESH)
            elif len(self.fresh) < self._room.most or seq == self._room.always:
                return seq, FRESH
            else:
                return None

    def _is_exhausted(self, page: JobPage, slot: int) -> bool:
        return 0 < self._max_deliveries <= page.deliveries[slot]

    def _park(self, seq: int, kind: int) -> None:
        if len(self.exhausted) == self._most_parked:
            self._stops = True
            return
        key = self._limit.key_of(seq)
        if self._limit.first_shown(kind) == seq:
            self._limit.drop(seq, kind)
            self._parked.append(_TakenJob(seq, key, kind))
        else:
            self._limit.forget(seq)
        self.exhausted.append(seq)

    def _take(self, lane: _LimitedLane, seq: int, kind: int) -> None:
        self._taken.append(_TakenJob(seq, self._limit.key_of(seq), kind))
        self._limit.take(seq, kind)
        self.seqs.append(seq)
        if kind == FRESH:
            self.fresh.append(seq)
        elif seq == lane.seq:
            lane.move()

    def _undo(self) -> None:
        """Set the chosen jobs aside."""
        for seq, key, kind in [*self._taken, *self._parked]:
            self._limit.set_aside(seq, key, kind)
            if kind != FRESH:
                self.hidden.append(seq)
        self.seqs, self.exhausted = array("Q"), array("Q")
        self.fresh.clear()
