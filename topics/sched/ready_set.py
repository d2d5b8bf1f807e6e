"""Which topics wait to be served, and which of them is next (`docs/spec/runtime.md` section 4).

Pure: the caller passes the time, and workers and the governor act. Only they know how a topic is served, and the cost
of that.

Theory of operation
-------------------

**Bands.** A waiting item is in exactly one of six bands. Bands 0..4 hold effective priorities, waiting time included:
below 0, then from 0, 250, 500 and 750 up. Band 5 holds overdue items: those of any priority that have waited for 5 s.
From -1000, waiting lifts an item no further than 0. Within a band the item that has waited longest, that is the one
added first, is served first.

**Aging.** Waiting adds a point per 10 ms, in whole steps of 50 ms. An item enters by its priority alone, and from then
on only ever moves up. Each item has one crossing on a heap: the time of its next move, and the band it moves to. So
nothing is scanned, and an item costs nothing while it stays in its band. It crosses three times at most (from -1: at 50
ms, at 2550 ms, and at 5 s into the overdue band). The bonus is never above 500 at a crossing, so its limit of 1000
needs no code here. Crossings are carried out by the next `pop`.

**Two groups.** Items whose own priority is below 0 are a group apart, with lines and a clock of their own. Pausing them
stops that clock and passes over that group: they are neither served nor do they age, in whichever band they are, and
when the clock runs on they are where they were. Band 0 holds only items of that group, since nothing moves down; the
other bands may hold items of both, and serve first the one that has waited longer, a pause not counted.

**Turns.** Deficit weighted round robin. The turn goes from the top band down and round again. A band whose turn it is
gets its weight in units and serves while it has at least one left. It pays one unit per item at once, and the rest of
the cost when that is known (`charge`), if need be into debt. So over whole rounds the service of bands with waiting
items is in the ratio of their weights, in units, not in items.

- Credit: only the band whose turn it is has any, at most its weight. If it has nothing to serve, the turn and the
  credit are gone at the next `pop`, not before: a single item that is served and added again at once does not lose its
  band the turn.
- Debt: at most what the items of one turn can cost. It is paid off by a weight a round, whether items wait or not, so
  there is nothing to gain by being empty for an instant, and no debt lasts long. When every band with items is in debt,
  rounds pass at once. When a `pop` finds nothing, there is idle capacity and no item was kept waiting, so all debts are
  forgiven.

What can never happen: an item is in twice; an item moves to a lower band; a paused item is served or ages; an item is
passed over while it is the first of a band whose turn it is and which has credit; a worker gets nothing while something
servable waits. Half of all units go to overdue items, if there are any, in the order they were added. The promise
"served within 10 s" rests on that, and on capacity: the service that is due must fit into the time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final, Generic, NamedTuple, TypeVar

from topics.sched.priority import MAX_PRIORITY


class Band(NamedTuple):
    """A range of effective priorities, from `at_least` to that of the next band, with `weight` units of service a
    round."""

    at_least: int
    weight: int


# By index, the lowest first. With these weights every band gets at least a sixteenth of the units, or a thirty-second
# while items are overdue.
BANDS: Final = (Band(-MAX_PRIORITY, 1), Band(0, 1), Band(250, 2), Band(500, 4), Band(750, 8))
# The band of overdue items. It gets as much as all the others together: an item waits 5 s to become overdue, and may
# then wait 5 s more.
OVERDUE: Final = len(BANDS)
OVERDUE_WEIGHT: Final = sum(band.weight for band in BANDS)
OVERDUE_MS: Final = 5000
# The aging tick, in ms of waiting: five points. Bands are fifty times as wide.
AGING_MS: Final = 50
# The most that serving one item may cost, in units.
MAX_COST: Final = 64

_BOUNDS: Final = tuple(band.at_least for band in BANDS[1:])
_WEIGHTS: Final = (*(band.weight for band in BANDS), OVERDUE_WEIGHT)
# As in `effective_priority`.
_WAITING_MS_PER_POINT: Final = 10
_GONE: Final = -1
# A line with fewer items is not tidied.
_TIDY_MIN: Final = 64

T = TypeVar("T")


def band_of(priority: int) -> int:
    """Return the band of an effective priority: 0 (below 0) to 4 (from 750 up)."""
    return bisect_right(_BOUNDS, priority)


class ReadySet(Generic[T]):
    """Items (hashable) that wait to be served, each once. `now_ms` is in ms of one monotonic clock."""

    def __init__(self) -> None:
        self._lowest: _ItemGroup[T] = _ItemGroup()
        self._others: _ItemGroup[T] = _ItemGroup()
        self._added = 0
        self._deficits = [0] * len(_WEIGHTS)
        self._turn = 0

    def __len__(self) -> int:
        return len(self._lowest.waiting) + len(self._others.waiting)

    def __contains__(self, item: object) -> bool:
        return item in self._lowest.waiting or item in self._others.waiting

    @property
    def servable(self) -> bool:
        """Return True if `pop` would return an item: at least one waits that is not paused."""
        return any(group.waiting for group in self._running())

    @property
    def paused(self) -> int:
        """How many items are paused. They are part of `len`, but must not be part of the pressure that pauses them."""
        return len(self._lowest.waiting) if self._lowest.clock.stopped else 0

    def add(self, item: T, priority: int, now_ms: float) -> bool:
        """Let `item` wait from now on. Return False, and change nothing, if it waits already.

        `priority` is the effective one as of now, without waiting time (`docs/spec/semantics.md` section 7).
        """
        if item in self:
            return False
        self._added += 1
        group = self._lowest if priority < 0 else self._others
        group.add(item, _WaitingItem(item, priority, group.clock.read(now_ms), self._added, band_of(priority)))
        return True

    def discard(self, item: T) -> None:
        """Remove `item` if it waits."""
        self._lowest.discard(item)
        self._others.discard(item)

    def pop(self, now_ms: float) -> tuple[T, float, int] | None:
        """Take the next item. Return it, how long it has waited (ms, without pauses), and the band that served it.

        None if no item can be served; a worker should ask until then before it sleeps, because that forgives all debts.
        The band pays one unit; `charge` tells the rest of the cost.
        """
        if not self.servable:
            self._become_idle()
            return None
        for group in self._running():
            group.age(now_ms)
        band, group, first = self._next(now_ms)
        item = first.item
        assert item is not None
        group.discard(item)
        self._deficits[band] -= 1
        return item, group.waited_ms(first, now_ms), band

    def charge(self, band: int, cost: int) -> None:
        """Tell that serving an item popped from `band` cost `cost` units, 1..`MAX_COST`, including the unit paid at
        `pop`.

        Must be called when the item has been served, before it is added again. Charges that come later than a whole
        turn of the band are cut to the most that one turn can cost.
        """
        assert 1 <= cost <= MAX_COST
        most_debt = _WEIGHTS[band] * (MAX_COST - 1)
        self._deficits[band] = max(-most_debt, self._deficits[band] - (cost - 1))

    def pause_lowest(self, now_ms: float) -> None:
        """Serve no item that was added with a priority below 0, and stop its waiting time. O(1), idempotent."""
        self._lowest.clock.stop(now_ms)

    def resume_lowest(self, now_ms: float) -> None:
        """End the pause, if there is one. Items added during it begin to wait now; the others go on."""
        self._lowest.clock.start(now_ms)

    def _running(self) -> tuple[_ItemGroup[T], ...]:
        return (self._others,) if self._lowest.clock.stopped else (self._others, self._lowest)

    def _next(self, now_ms: float) -> tuple[int, _ItemGroup[T], _WaitingItem[T]]:
        """Pass the turn on until a band has credit and an item."""
        while True:
            for _ in _WEIGHTS:
                if self._deficits[self._turn] >= 1 and (found := self._longest_waiting(self._turn, now_ms)) is not None:
                    return self._turn, *found
                self._pass_turn()
            self._pass_rounds()

    def _longest_waiting(self, band: int, now_ms: float) -> tuple[_ItemGroup[T], _WaitingItem[T]] | None:
        firsts = [(group, first) for group in self._running() if (first := group.first(band)) is not None]
        return max(firsts, key=lambda it: (it[0].waited_ms(it[1], now_ms), -it[1].order), default=None)

    def _pass_turn(self) -> None:
        self._deficits[self._turn] = min(0, self._deficits[self._turn])
        self._turn = (self._turn - 1) % len(_WEIGHTS)
        self._deficits[self._turn] += _WEIGHTS[self._turn]
        assert self._deficits[self._turn] <= _WEIGHTS[self._turn]

    def _pass_rounds(self) -> None:
        """Skip the rounds in which nothing would be served, because all bands with items are in debt."""
        lines = [any(group.first(band) is not None for group in self._running()) for band in range(len(_WEIGHTS))]
        rounds = min(-self._deficits[band] // _WEIGHTS[band] for band, has_items in enumerate(lines) if has_items)
        if rounds > 0:
            self._deficits = [
                min(0, deficit + rounds * weight) for deficit, weight in zip(self._deficits, _WEIGHTS, strict=True)
            ]

    def _become_idle(self) -> None:
        """Forgive all debts, and give the next turn to the top band."""
        self._deficits = [0] * len(_WEIGHTS)
        self._turn = 0


@dataclass(slots=True, eq=False)
class _WaitingItem(Generic[T]):
    """A waiting item. `added_ms` is on the clock of its group, `order` counts over both groups."""

    item: T | None
    """None once it no longer waits, so that entries that a line has not dropped yet keep no item alive."""
    priority: int
    added_ms: float
    order: int
    band: int

    def next_crossing(self) -> tuple[float, int]:
        """Return when it moves next, on the clock of its group, and into which band."""
        after_ms = OVERDUE_MS
        if self.band < len(_BOUNDS):
            needed_ms = (_BOUNDS[self.band] - self.priority) * _WAITING_MS_PER_POINT
            after_ms = -(-needed_ms // AGING_MS) * AGING_MS
        if after_ms >= OVERDUE_MS:
            return self.added_ms + OVERDUE_MS, OVERDUE
        return self.added_ms + after_ms, self.band + 1

    def rise(self, clock_ms: float) -> None:
        """Carry out all crossings that are due, at once if there are several."""
        while self.band != OVERDUE:
            due_ms, band = self.next_crossing()
            if due_ms > clock_ms:
                break
            self.band = band


class _ItemGroup(Generic[T]):
    """Items that share a clock, and so age and pause together: a line per band, and the crossings to come."""

    def __init__(self) -> None:
        self.clock = _StoppableClock()
        self.waiting: dict[T, _WaitingItem[T]] = {}
        self._lines = [_WaitingLine[T](_is_in(band)) for band in range(len(_WEIGHTS))]
        self._crossings = _WaitingLine[T](lambda it: it.band != _GONE)

    def add(self, item: T, it: _WaitingItem[T]) -> None:
        self.waiting[item] = it
        self._enter_band(it)

    def discard(self, item: T) -> None:
        it = self.waiting.pop(item, None)
        if it is not None:
            it.band = _GONE
            it.item = None

    def first(self, band: int) -> _WaitingItem[T] | None:
        return self._lines[band].first()

    def waited_ms(self, it: _WaitingItem[T], now_ms: float) -> float:
        return max(0.0, self.clock.read(now_ms) - it.added_ms)

    def age(self, now_ms: float) -> None:
        """Carry out the crossings that are due. Each leads to a higher band, so this ends."""
        clock_ms = self.clock.read(now_ms)
        while (it := self._crossings.take_until(clock_ms)) is not None:
            it.rise(clock_ms)
            self._enter_band(it)

    def _enter_band(self, it: _WaitingItem[T]) -> None:
        self._lines[it.band].push(it.added_ms, it)
        if it.band != OVERDUE:
            self._crossings.push(it.next_crossing()[0], it)


def _is_in(band: int) -> Callable[[_WaitingItem[T]], bool]:
    return lambda it: it.band == band


class _WaitingLine(Generic[T]):
    """A heap of waiting items by a time and their order. Items are not removed from it; they cease to be `live` in it.

    Such items are dropped when they come to the front, and all of them when a push finds the heap twice as long as
    after the last tidying. So it never holds more than twice the items that were live then, at constant cost per push.
    """

    def __init__(self, live: Callable[[_WaitingItem[T]], bool]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, _WaitingItem[T]]] = []
        self._tidy_at = _TIDY_MIN

    def push(self, at_ms: float, it: _WaitingItem[T]) -> None:
        if len(self._heap) >= self._tidy_at:
            self._heap = [entry for entry in self._heap if self._live(entry[2])]
            heapify(self._heap)
            self._tidy_at = max(_TIDY_MIN, 2 * len(self._heap))
        heappush(self._heap, (at_ms, it.order, it))

    def first(self) -> _WaitingItem[T] | None:
        while self._heap:
            it = self._heap[0][2]
            if self._live(it):
                return it
            heappop(self._heap)
        return None

    def take_until(self, until_ms: float) -> _WaitingItem[T] | None:
        """Remove and return the first item if its time is not after `until_ms`, else None."""
        it = self.first()
        if it is None or self._heap[0][0] > until_ms:
            return None
        heappop(self._heap)
        return it


class _StoppableClock:
    """A clock that can be stopped. When started again it is late by the time for which it was stopped."""

    def __init__(self) -> None:
        self._behind_ms = 0.0
        self._stopped_ms: float | None = None

    @property
    def stopped(self) -> bool:
        return self._stopped_ms is not None

    def read(self, now_ms: float) -> float:
        return (now_ms if self._stopped_ms is None else self._stopped_ms) - self._behind_ms

    def stop(self, now_ms: float) -> None:
        if self._stopped_ms is None:
            self._stopped_ms = now_ms

    def start(self, now_ms: float) -> None:
        if self._stopped_ms is not None:
            self._behind_ms += now_ms - self._stopped_ms
            self._stopped_ms = None
