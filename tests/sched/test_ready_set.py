"""The ready set: who is next, by example, by property, and against a model that finds out by scanning everything.

Times are whole milliseconds, so that sums of them are exact.
"""

from __future__ import annotations

import weakref
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topics.sched.priority import effective_priority
from topics.sched.ready_set import BANDS, MAX_COST, OVERDUE, OVERDUE_MS, ReadySet, band_of

WEIGHTS = (1, 1, 2, 4, 8, 16)
# A priority in the middle of each band, the lowest first.
IN_BAND = (-500, 100, 300, 600, 900)
PRIORITIES = st.one_of(st.integers(-1000, 1000), st.sampled_from([-1000, -1, 0, 249, 250, 499, 500, 749, 750, 1000]))


def aged_band(priority: int, waited_ms: int) -> int:
    if waited_ms >= 5000:
        return 5
    return band_of(effective_priority(priority, False, None, 0, waited_ms // 50 * 50))


def items_popped(ready: ReadySet[str], now_ms: float = 0) -> list[str]:
    """All that is servable at `now_ms`, in order."""
    items = []
    while (popped := ready.pop(now_ms)) is not None:
        items.append(popped[0])
    return items


def full_set(*bands: int, each: int = 100) -> ReadySet[tuple[int, int]]:
    """A set with `each` items in each of `bands`, an item being its band and its number."""
    ready: ReadySet[tuple[int, int]] = ReadySet()
    for band in bands:
        for number in range(each):
            ready.add((band, number), IN_BAND[band], 0)
    return ready


def serve_again_and_again(ready: ReadySet[tuple[int, int]], pops: int, costs: dict[int, int]) -> Counter[int]:
    """Serve and add again at once, all at time 0; the units spent by band."""
    units: Counter[int] = Counter()
    for _ in range(pops):
        popped = ready.pop(0)
        assert popped is not None
        item, _, band = popped
        ready.charge(band, costs[band])
        ready.add(item, IN_BAND[band], 0)
        units[band] += costs[band]
    return units


# -- Bands and order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "band"),
    [(-1000, 0), (-1, 0), (0, 1), (249, 1), (250, 2), (499, 2), (500, 3), (749, 3), (750, 4), (1000, 4), (2000, 4)],
)
def test_the_band_of_a_priority(priority: int, band: int) -> None:
    assert band_of(priority) == band


def test_the_weights_are_those_of_the_specification() -> None:
    assert [(band.at_least, band.weight) for band in BANDS] == [(-1000, 1), (0, 1), (250, 2), (500, 4), (750, 8)]


def test_an_empty_set_has_nothing_to_serve() -> None:
    ready: ReadySet[str] = ReadySet()
    assert (len(ready), ready.servable, ready.pop(0)) == (0, False, None)


def test_an_item_is_in_at_most_once_and_keeps_its_place() -> None:
    ready: ReadySet[str] = ReadySet()
    assert ready.add("a", 100, 0)
    assert ready.add("b", 100, 10)
    assert not ready.add("a", 1000, 20)
    assert len(ready) == 2
    assert [ready.pop(30), ready.pop(30), ready.pop(30)] == [("a", 30, 1), ("b", 20, 1), None]


def test_an_item_may_be_added_again_once_it_is_popped() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("a", 100, 0)
    ready.pop(10)
    assert "a" not in ready
    assert ready.add("a", 300, 20)
    assert ready.pop(25) == ("a", 5, 2)


@pytest.mark.parametrize("priority", [-5, 5])
def test_a_discarded_item_is_not_served(priority: int) -> None:
    ready: ReadySet[str] = ReadySet()
    for item in "abc":
        ready.add(item, priority, 0)
    ready.discard("b")
    ready.discard("never seen")
    assert "b" not in ready
    assert items_popped(ready) == ["a", "c"]


def test_a_discarded_item_that_is_added_again_goes_to_the_end() -> None:
    ready: ReadySet[str] = ReadySet()
    for item in "abc":
        ready.add(item, 100, 0)
    ready.discard("a")
    ready.add("a", 100, 0)
    assert items_popped(ready) == ["b", "c", "a"]


@given(st.integers(0, 4), st.data())
@settings(max_examples=40)
def test_a_band_serves_in_the_order_of_adding(band: int, data: st.DataObject) -> None:
    low, high = [*(it.at_least for it in BANDS), 1001][band : band + 2]
    priorities = data.draw(st.lists(st.integers(low, high - 1), max_size=20))
    ready: ReadySet[str] = ReadySet()
    for number, priority in enumerate(priorities):
        ready.add(str(number), priority, 0)
    assert items_popped(ready) == [str(number) for number in range(len(priorities))]


def test_after_idleness_the_highest_band_is_first() -> None:
    ready: ReadySet[str] = ReadySet()
    for band, priority in enumerate(IN_BAND):
        ready.add(str(band), priority, 0)
    assert items_popped(ready) == ["4", "3", "2", "1", "0"]


# -- Shares ------------------------------------------------------------------------------------------------------------


def test_full_bands_are_served_by_their_weights() -> None:
    ready = full_set(*range(5))
    for _ in range(20):
        units = serve_again_and_again(ready, 16, dict.fromkeys(range(5), 1))
        assert units == {band: WEIGHTS[band] for band in range(5)}


@given(st.sets(st.integers(0, 4), min_size=1))
@settings(max_examples=31)
def test_what_empty_bands_leave_is_shared_by_the_weights_of_the_others(bands: set[int]) -> None:
    a_round = sum(WEIGHTS[band] for band in bands)
    units = serve_again_and_again(full_set(*bands), 10 * a_round, dict.fromkeys(bands, 1))
    assert units == {band: 10 * WEIGHTS[band] for band in bands}


@given(st.lists(st.integers(1, MAX_COST), min_size=5, max_size=5))
@example([1, 1, 1, 1, MAX_COST])
@example([MAX_COST, 1, 1, 1, 1])
@settings(max_examples=6, deadline=None)
def test_shares_are_of_units_and_not_of_items(costs: list[int]) -> None:
    units = serve_again_and_again(full_set(*range(5)), 2000, dict(enumerate(costs)))
    rounds = [units[band] / WEIGHTS[band] for band in range(5)]
    # One more turn, and the debt that the last item of a turn made.
    assert max(rounds) - min(rounds) <= 1 + MAX_COST
    assert min(rounds) > 100


def test_a_single_expensive_item_does_not_escape_its_debt_by_leaving_its_band_empty() -> None:
    ready = full_set(1, each=200)
    ready.add((4, 0), IN_BAND[4], 0)
    units = serve_again_and_again(ready, 1000, {1: 1, 4: MAX_COST})
    assert units[4] / WEIGHTS[4] - units[1] / WEIGHTS[1] <= 1 + MAX_COST


def test_a_single_cheap_item_that_is_added_again_at_once_keeps_the_turn_of_its_band() -> None:
    ready = full_set(1, each=200)
    ready.add((4, 0), IN_BAND[4], 0)
    assert serve_again_and_again(ready, 90, {1: 1, 4: 1}) == {1: 10, 4: 80}


def test_an_empty_band_saves_no_credit() -> None:
    ready = full_set(1)
    serve_again_and_again(ready, 50, {1: 1})
    for number in range(100):
        ready.add((4, number), IN_BAND[4], 0)
    units = serve_again_and_again(ready, 18, {1: 1, 4: 1})
    assert units == {1: 2, 4: 16}


def test_an_empty_band_pays_off_its_debt_while_others_are_served() -> None:
    ready = full_set(1)
    ready.charge(4, MAX_COST)
    serve_again_and_again(ready, 8, {1: 1})
    ready.add((4, 0), IN_BAND[4], 0)
    assert serve_again_and_again(ready, 18, {1: 1, 4: 1})[4] >= 15


def test_debts_are_forgiven_when_there_was_nothing_to_serve() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.charge(4, MAX_COST)
    assert ready.pop(0) is None
    ready.add("low", 0, 0)
    ready.add("high", 1000, 0)
    assert items_popped(ready) == ["high", "low"]


def test_a_band_in_debt_is_served_at_once_if_nobody_else_waits() -> None:
    ready: ReadySet[str] = ReadySet()
    for band in range(6):
        for _ in range(1000):
            ready.charge(band, MAX_COST)
    ready.add("a", -1000, 0)
    assert ready.pop(0) == ("a", 0, 0)


def test_the_debt_of_a_band_is_at_most_what_one_turn_can_cost() -> None:
    ready = full_set(1, 4)
    for _ in range(1000):
        ready.charge(4, MAX_COST)
    rounds_in_debt = MAX_COST - 1
    assert serve_again_and_again(ready, rounds_in_debt, {1: 1, 4: 1}) == {1: rounds_in_debt}
    assert serve_again_and_again(ready, 9, {1: 1, 4: 1})[4] == 8


# -- Waiting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priority", "waited_ms", "band"),
    [
        (-1000, 4999, 0),
        (-1000, 5000, 5),
        (-1, 49, 0),
        (-1, 50, 1),
        (-1, 2549, 1),
        (-1, 2550, 2),
        (0, 2499, 1),
        (0, 2500, 2),
        (0, 4999, 2),
        (0, 5000, 5),
        (249, 49, 1),
        (249, 50, 2),
        (740, 99, 3),
        (740, 100, 4),
        (1000, 0, 4),
        (1000, 4999, 4),
        (1000, 5000, 5),
    ],
)
def test_an_item_moves_up_as_it_waits(priority: int, waited_ms: int, band: int) -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("a", priority, 1000)
    assert ready.pop(1000 + waited_ms) == ("a", waited_ms, band)


@given(PRIORITIES, st.lists(st.integers(0, 3000), min_size=1, max_size=8))
@settings(max_examples=100)
def test_an_item_is_where_priority_and_waiting_time_say_however_often_it_was_looked_at(
    priority: int, gaps_ms: list[int]
) -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("a", priority, 0)
    now_ms = 0
    for gap_ms in gaps_ms[:-1]:
        now_ms += gap_ms
        ready.add("b", 1000, now_ms)
        popped = ready.pop(now_ms)
        assert popped is not None
        if popped[0] == "a":
            assert popped == ("a", now_ms, aged_band(priority, now_ms))
            return
    now_ms += gaps_ms[-1]
    assert ready.pop(now_ms) == ("a", now_ms, aged_band(priority, now_ms))


def test_a_risen_item_takes_the_place_of_its_age() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("old", 240, 0)
    ready.add("middle", 260, 50)
    ready.add("new", 260, 99)
    ready.add("newest", 260, 100)
    assert items_popped(ready, 100) == ["old", "middle", "new", "newest"]


def test_an_overdue_item_is_served_before_the_others_whatever_its_priority() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("overdue", -1000, 0)
    ready.add("high", 1000, OVERDUE_MS)
    assert items_popped(ready, OVERDUE_MS) == ["overdue", "high"]


def test_overdue_items_get_half_of_the_service_and_leave_the_other_half() -> None:
    ready: ReadySet[str] = ReadySet()
    for number in range(100):
        ready.add(f"overdue {number}", 0, 0)
    for band, priority in enumerate(IN_BAND):
        for number in range(100):
            ready.add(f"{band} {number}", priority, OVERDUE_MS)
    popped = [ready.pop(OVERDUE_MS) for _ in range(32)]
    assert Counter(it[2] for it in popped if it) == dict(enumerate(WEIGHTS))


def test_every_item_of_any_priority_is_served_within_ten_seconds_beside_hot_topics() -> None:
    ready: ReadySet[int] = ReadySet()
    hot = range(10_000, 10_010)
    for item in (*hot, *range(-1000, 1001)):
        ready.add(item, 1000 if item in hot else item, 0)
    served = {}
    for now_ms in range(0, 10_000):
        popped = ready.pop(now_ms)
        assert popped is not None
        item, waited_ms, _ = popped
        if item in hot:
            ready.add(item, 1000, now_ms)
        else:
            served[item] = waited_ms
    assert len(served) == 2001


@given(PRIORITIES, st.integers(1, 20), st.integers(5, 40), st.integers(1, MAX_COST))
@example(-1000, 20, 40, MAX_COST)
@example(-1000, 1, 40, MAX_COST)
@settings(max_examples=30, deadline=None)
def test_no_priority_waits_ten_seconds_under_permanent_load(priority: int, hot: int, every_ms: int, cost: int) -> None:
    ready: ReadySet[str] = ReadySet()
    for number in range(hot):
        ready.add(str(number), 1000, 0)
    ready.add("patient", priority, 0)
    for now_ms in range(0, 10_000, every_ms):
        popped = ready.pop(now_ms)
        assert popped is not None
        item, _, band = popped
        if item == "patient":
            return
        ready.charge(band, cost)
        ready.add(item, 1000, now_ms)
    pytest.fail("still waiting")


# -- The pause ---------------------------------------------------------------------------------------------------------


def test_while_paused_what_is_below_zero_gets_nothing() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("low", -1, 0)
    ready.add("zero", 0, 0)
    ready.pause_lowest(0)
    assert ready.servable
    assert items_popped(ready) == ["zero"]
    assert not ready.servable
    assert (len(ready), "low" in ready, ready.paused) == (1, True, 1)
    ready.resume_lowest(0)
    assert (ready.servable, ready.paused) == (True, 0)
    assert items_popped(ready) == ["low"]


@pytest.mark.parametrize("waited_ms", [50, 2550, 5000])
def test_a_pause_also_holds_what_has_risen_from_below_zero(waited_ms: int) -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("first", 1000, 0)
    ready.add("low", -1, 0)
    assert ready.pop(waited_ms) == ("first", waited_ms, aged_band(1000, waited_ms))
    ready.pause_lowest(waited_ms)
    assert ready.pop(20_000) is None
    ready.resume_lowest(20_000)
    assert ready.pop(20_000) == ("low", waited_ms, aged_band(-1, waited_ms))


def test_waiting_time_stands_still_in_a_pause_and_then_goes_on() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("low", -1000, 0)
    ready.pause_lowest(4000)
    assert ready.pop(60_000) is None
    ready.resume_lowest(60_000)
    assert ready.pop(60_999) == ("low", 4999, 0)


def test_what_is_added_in_a_pause_begins_to_wait_at_its_end() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.pause_lowest(100)
    ready.add("first", -10, 200)
    ready.add("second", -10, 300)
    ready.resume_lowest(1000)
    assert [ready.pop(1010), ready.pop(1020)] == [("first", 10, 0), ("second", 20, 0)]


def test_a_second_pause_or_resume_changes_nothing() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("low", -1000, 0)
    ready.resume_lowest(100)
    ready.pause_lowest(200)
    ready.pause_lowest(300)
    ready.resume_lowest(1200)
    ready.resume_lowest(1300)
    assert ready.pop(1300) == ("low", 300, 0)


def test_pauses_add_up() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("low", -1000, 0)
    for start_ms in (1000, 3000, 5000):
        ready.pause_lowest(start_ms)
        ready.resume_lowest(start_ms + 1000)
    assert ready.pop(7000) == ("low", 4000, 0)


def test_an_item_may_be_discarded_in_a_pause() -> None:
    ready: ReadySet[str] = ReadySet()
    ready.add("low", -1, 0)
    ready.pause_lowest(0)
    ready.discard("low")
    ready.resume_lowest(10)
    assert (len(ready), ready.pop(10)) == (0, None)


# -- Size --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_a_hundred_thousand_items_none_is_served_twice_and_the_overdue_in_order() -> None:
    ready: ReadySet[int] = ReadySet()
    for item in range(100_000):
        ready.add(item, item % 2001 - 1000, 0)
    served: dict[int, list[int]] = {band: [] for band in range(6)}
    for now_ms in range(0, 10_000):
        for _ in range(2):
            popped = ready.pop(now_ms)
            assert popped is not None
            served[popped[2]].append(popped[0])
    assert len(set().union(*served.values())) == 20_000
    assert len(ready) == 80_000
    assert len(served[OVERDUE]) == 10_000
    assert all(a < b for a, b in pairwise(served[OVERDUE]))


class Topic:
    pass


def test_what_was_discarded_is_not_held_on_to() -> None:
    ready: ReadySet[Topic] = ReadySet()
    alive: weakref.WeakSet[Topic] = weakref.WeakSet()
    ready.add(Topic(), -1000, 0)
    ready.pause_lowest(0)
    for now_ms in range(5000):
        topic = Topic()
        alive.add(topic)
        ready.add(topic, -1000, now_ms)
        ready.discard(topic)
    del topic
    assert len(alive) < 200


# -- The model ---------------------------------------------------------------------------------------------------------


class Waiter:
    def __init__(self, item: int, priority: int) -> None:
        self.item = item
        self.priority = priority
        self.waited_ms = 0

    @property
    def band(self) -> int:
        return aged_band(self.priority, self.waited_ms)


class Model:
    """Waiters in the order they were added, each counting its own waiting time."""

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []
        self.paused = False
        self.turn = 0
        self.deficits = [0] * 6

    def ready(self) -> list[Waiter]:
        return [it for it in self.waiters if not (self.paused and it.priority < 0)]

    def wait(self, ms: int) -> None:
        for it in self.ready():
            it.waited_ms += ms

    def pop(self) -> tuple[int, int, int] | None:
        if not self.ready():
            self.turn, self.deficits = 0, [0] * 6
            return None
        while True:
            line = [it for it in self.ready() if it.band == self.turn]
            if line and self.deficits[self.turn] > 0:
                break
            self.deficits[self.turn] = min(self.deficits[self.turn], 0)
            self.turn = self.turn - 1 if self.turn else 5
            self.deficits[self.turn] += WEIGHTS[self.turn]
        self.deficits[self.turn] -= 1
        longest = max(line, key=lambda it: it.waited_ms)
        self.waiters.remove(longest)
        return longest.item, longest.waited_ms, self.turn

    def charge(self, band: int, cost: int) -> None:
        self.deficits[band] = max(self.deficits[band] - (cost - 1), -63 * WEIGHTS[band])


ITEMS = st.integers(0, 11)
COSTS = st.one_of(st.just(1), st.integers(1, MAX_COST))


class ReadySetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ready: ReadySet[int] = ReadySet()
        self.model = Model()
        self.now_ms = 1_000_000

    @rule(item=ITEMS, priority=PRIORITIES)
    def add(self, item: int, priority: int) -> None:
        known = any(it.item == item for it in self.model.waiters)
        assert self.ready.add(item, priority, self.now_ms) is not known
        if not known:
            self.model.waiters.append(Waiter(item, priority))

    @rule(item=ITEMS)
    def discard(self, item: int) -> None:
        self.ready.discard(item)
        self.model.waiters = [it for it in self.model.waiters if it.item != item]

    @rule(ms=st.one_of(st.integers(0, 60), st.integers(0, 6000), st.sampled_from([50, 2500, 5000])))
    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.model.wait(ms)

    @rule(costs=st.lists(COSTS, min_size=1, max_size=6))
    def serve(self, costs: list[int]) -> None:
        for cost in costs:
            popped = self.ready.pop(self.now_ms)
            assert popped == self.model.pop()
            if popped is not None:
                self.ready.charge(popped[2], cost)
                self.model.charge(popped[2], cost)

    @rule(band=st.integers(0, 5), cost=COSTS)
    def charge_late(self, band: int, cost: int) -> None:
        self.ready.charge(band, cost)
        self.model.charge(band, cost)

    @rule()
    def pause(self) -> None:
        self.ready.pause_lowest(self.now_ms)
        self.model.paused = True

    @precondition(lambda self: self.model.paused)
    @rule()
    def resume(self) -> None:
        self.ready.resume_lowest(self.now_ms)
        self.model.paused = False

    @invariant()
    def it_holds_what_the_model_holds(self) -> None:
        waiting = {it.item for it in self.model.waiters}
        assert len(self.ready) == len(waiting)
        assert {item for item in range(12) if item in self.ready} == waiting
        assert self.ready.servable == bool(self.model.ready())
        assert self.ready.paused == len(waiting) - len(self.model.ready())

    def teardown(self) -> None:
        while (popped := self.model.pop()) is not None:
            assert self.ready.pop(self.now_ms) == popped


TestReadySet = ReadySetMachine.TestCase
TestReadySet.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
