"""One group, against a naive model: a dict with the state of every record."""

from __future__ import annotations

from array import array
from itertools import count
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.groups.group import Group, live_in, lost_between
from topics.groups.group_events import (
    DeleteGroupEvent,
    GroupEvent,
    PutGroupEvent,
    group_event_from_wire,
    group_event_to_wire,
)
from topics.log.topic_log import Extent, TopicLog
from topics.model import TopicConfig
from topics.queue.lease_events import AckEvent, ClaimEvent, DeadLetterEvent, ParkEvent, ReopenEvent
from topics.queue.leases import Leases
from topics.runtime.instant import Instant

PUT = PutGroupEvent(0, TopicConfig(), None, 1000)
ODD = '["tag","Eq","odd"]'


def append(log: TopicLog, n: int) -> None:
    tags = ["odd" if seq % 2 else "even" for seq in range(log.head_seq + 1, log.head_seq + n + 1)]
    zeros = array("I", bytes(4 * n))
    log.extend(Extent(log.head_seq + 1, 0, 0, zeros, zeros, array("I", [1]) * n, b"\1" * n, tags))


def again(group: Group, now: Instant) -> Group:
    frozen = group.freeze(now)
    return Group.load(frozen.head, frozen.finished, Leases.load(frozen.leases.dump(), now))


def take(group: Group, log: TopicLog, limit: int, now: Instant, most: int = 0) -> array[int]:
    return group.leases.decide_claim(limit, now, group.fresh(log), most).seqs


def claim(group: Group, log: TopicLog, limit: int, now: Instant, node: str = "n") -> array[int]:
    seqs = take(group, log, limit, now)
    if seqs:
        group.apply(ClaimEvent(node, seqs, array("Q", range(1, len(seqs) + 1)), now.after(1000)))
    return seqs


NOW = Instant(1000, 5000)


def test_an_ack_of_the_smallest_moves_the_floor_over_the_runs() -> None:
    log, group = TopicLog(), Group("g", PUT)
    append(log, 10)
    assert list(claim(group, log, 10, NOW)) == list(range(1, 11))
    group.apply(AckEvent(array("Q", [2, 3, 5])))
    assert (group.finished.floor, group.lag(log), group.count(log)) == (0, 10, 7)
    group.apply(AckEvent(array("Q", [1])))
    assert (group.finished.floor, group.lag(log), group.count(log)) == (3, 7, 6)


def test_what_was_lost_is_missed_and_what_was_deleted_is_not() -> None:
    log, group = TopicLog(), Group("g", PUT)
    append(log, 10)
    log.delete_seqs([2, 7])
    group.gone([2, 7])
    claim(group, log, 1, NOW)
    group.apply(AckEvent(array("Q", [1])))
    log.evict_below(5, "cap")  # 3 and 4
    group.advance(log)
    assert (group.missed, group.finished.floor) == (2, 4)
    log.add_hole(5, 6, "corrupt")
    group.gone([5, 6])
    group.advance(log)
    assert (group.missed, group.finished.floor, group.ready(log)) == (4, 7, 3)
    assert lost_between(log, 1, 7) == 5, "1 was lost as well, after it was finished"


def test_with_max_unfinished_held_there_is_nothing_fresh() -> None:
    log, group = TopicLog(), Group("g", PUT._replace(max_unfinished=3))
    append(log, 10)
    assert list(claim(group, log, 10, NOW)) == [1, 2, 3]
    assert not claim(group, log, 10, NOW)
    group.apply(AckEvent(array("Q", [2])))  # a run instead of a lease
    assert not claim(group, log, 10, NOW)
    group.apply(AckEvent(array("Q", [1])))
    assert list(claim(group, log, 10, NOW)) == [4, 5]


def test_what_the_filter_refuses_counts_as_finished_once_it_was_looked_at() -> None:
    log, group = TopicLog(), Group("g", PUT._replace(filter=ODD))
    append(log, 10)
    assert group.must_look(log, 1)
    assert (group.ready(log), list(claim(group, log, 5, NOW))) == (10, [])
    group.looked(log, 6, [1, 3, 5])
    assert (group.ready(log), list(claim(group, log, 5, NOW))) == (7, [1, 3, 5])
    group.apply(AckEvent(array("Q", [1, 3])))
    assert (group.finished.floor, group.ready(log)) == (4, 4)
    group.change(PUT._replace(filter='["tag","Eq","even"]'))
    group.looked(log, 10, [6, 8, 10])
    assert list(claim(group, log, 5, NOW)) == [8, 10], "6 was refused before"
    group.check()


def test_events_are_what_they_were_after_the_wire() -> None:
    seqs = array("Q", [3, 4])
    events: list[GroupEvent] = [
        PUT._replace(filter=ODD),
        DeleteGroupEvent(),
        AckEvent(seqs),
        ParkEvent(seqs),
        DeadLetterEvent(seqs),
        ReopenEvent(seqs, 2, 1, 2),
        ClaimEvent("n", seqs, seqs, NOW.after(10)),
    ]
    for event in events:
        assert group_event_from_wire(group_event_to_wire("g", 7, event), NOW) == ("g", 7, event)


class Groups(RuleBasedStateMachine):
    """Calls in any order. `live`: the records; `done`: what the group has finished; `held`: who holds what."""

    @initialize()
    def begin(self) -> None:
        self.log, self.group, self.now = TopicLog(), Group("g", PUT), NOW
        self.replayed = Group("g", PUT)
        self.live: set[int] = set()
        self.done: set[int] = set()
        self.held: dict[int, int] = {}
        self.dealt: list[array[int]] = []
        self.ids = count(1)
        self.lost = 0
        self.excepted: set[int] = set()
        self.shown_floor = 0

    def commit(self, event: Any) -> None:
        wire = group_event_to_wire("g", 0, event)
        self.group.apply(event)
        self.replayed.apply(group_event_from_wire(wire, self.now)[2])  # type: ignore[arg-type]

    @rule(n=st.integers(1, 20))
    def append(self, n: int) -> None:
        self.live |= set(range(self.log.head_seq + 1, self.log.head_seq + n + 1))
        append(self.log, n)

    @rule(limit=st.integers(1, 12))
    def deal(self, limit: int) -> None:
        seqs = take(self.group, self.log, limit, self.now)
        expected = sorted(self.live - self.done - self.held.keys() - {seq for hand in self.dealt for seq in hand})
        assert set(seqs) <= set(expected)
        assert len(seqs) == min(limit, len(expected))
        if seqs:
            self.dealt.append(seqs)

    @precondition(lambda self: self.dealt)
    @rule(at=st.integers(0, 100), aborts=st.booleans())
    def end_a_deal(self, at: int, aborts: bool) -> None:
        seqs = self.dealt.pop(at % len(self.dealt))
        if aborts:
            self.group.leases.abort(seqs)
            return
        ids = array("Q", [next(self.ids) for _ in seqs])
        self.commit(ClaimEvent("n", seqs, ids, self.now.after(1000)))
        self.held.update({seq: lease for seq, lease in zip(seqs, ids, strict=True) if seq in self.live})

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end_a_lease(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.held)), min_size=1, unique=True))
        if data.draw(st.booleans()):
            decision: Any = self.group.leases.decide_ack("n", seqs, None, self.now)
            self.done |= set(seqs)
        else:
            decision = self.group.leases.decide_nack("n", seqs, None, self.now, 0)
        assert not decision.skipped
        assert not decision.busy
        self.commit(decision.event)
        for seq in seqs:
            del self.held[seq]

    @precondition(lambda self: self.done & self.live)
    @rule(data=st.data())
    def reopen(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.done & self.live)), min_size=1, unique=True))
        group = self.group
        self.commit(ReopenEvent(array("Q", sorted(seqs)), group.finished.floor, group.missed, self.log.earliest_seq))
        self.done -= set(seqs)
        self.excepted |= {seq for seq in seqs if seq <= group.finished.floor}
        assert all(group.leases.deliveries(seq) == 0 for seq in seqs)

    @rule()
    def wait(self) -> None:
        self.now = self.now.after(2000)
        self.group.leases.sweep(self.now.mono)
        self.held.clear()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), kind=st.sampled_from(["delete", "evict", "hole"]))
    def die(self, data: st.DataObject, kind: str) -> None:
        seq = data.draw(st.sampled_from(sorted(self.live)))
        if kind == "delete":
            dead = {seq}
            self.log.delete_seqs([seq])
        elif kind == "hole":
            dead = {seq}
            self.log.add_hole(seq, seq, "corrupt")
        else:
            dead = {one for one in self.live if one <= seq}
            self.log.evict_below(seq + 1, "cap")
        if kind != "delete":
            self.lost += len(dead & (self.live - self.done))
        if kind == "hole":
            self.group.lost(seq, seq, self.log.index.only_live)
        elif kind == "delete":  # of these alone a replay tells groups; of the others they learn at its end
            self.group.gone([seq])
            self.replayed.gone([seq])
        self.group.advance(self.log)
        self.live -= dead
        for one in dead:
            self.held.pop(one, None)

    @rule()
    def restart(self) -> None:
        """What was dumped, and what was replayed, know the same as what has lived."""
        for hand in self.dealt:
            self.group.leases.abort(hand)
        self.dealt.clear()
        self.replayed.settle(self.log, lambda call: call())
        self.replayed.leases.sweep(self.now.mono)
        loaded = again(self.group, self.now)
        loaded.settle(self.log, lambda call: call())
        for other in (loaded, self.replayed):
            other.check()
            unfinished = self.live - self.done
            assert {seq for seq in range(1, self.log.head_seq + 1) if not other.is_finished(seq)} >= unfinished
            assert not [seq for seq in self.done & self.live if not other.is_finished(seq)]
            assert other.finished.floor >= self.shown_floor
            assert other.count(self.log) == len(unfinished)
            assert {seq for seq in self.live if other.leases.holds(seq, self.held.get(seq, 0))} == self.held.keys()
            assert other.missed == self.group.missed
        self.group, self.replayed = loaded, again(loaded, self.now)

    @invariant()
    def as_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        group, log = self.group, self.log
        group.advance(log)
        group.check()
        unfinished = self.live - self.done
        self.excepted &= unfinished
        assert group.finished.floor == max(
            self.shown_floor, min(unfinished - self.excepted, default=log.head_seq + 1) - 1
        )
        self.shown_floor = group.finished.floor
        assert group.passed_to == min(group.finished.floor, min(unfinished, default=log.head_seq + 1) - 1)
        assert group.count(log) == len(unfinished)
        assert group.leases.in_flight == len(self.held)
        gone_above = sum(seq in group.finished for seq in range(group.finished.floor + 1, log.head_seq + 1))
        assert gone_above == group.finished.total
        assert group.missed <= self.lost
        if group.lag(log) == 0:
            assert group.missed == self.lost
        assert live_in(log, 1, log.head_seq) == len(self.live)


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
