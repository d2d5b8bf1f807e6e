"""Groups with an order for each key (`docs/design/key_order.md` section 5), against a naive model that looks at every
record at every claim.

Records match or not, are deleted and evicted, cancelled, retried, and given back by redrives; claims fail, leases and
delays end; the filter, the order and `max_unfinished` change; the daemon restarts. What the filter refuses counts for
nothing. No claim gets a record while an earlier one of its key is unfinished, unless a redrive gave one of them back;
what may be claimed is claimed, and in the end every record is finished.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.groups.test_group import append
from topics.groups.group import Group
from topics.groups.group_events import PutGroupEvent
from topics.log.topic_log import TopicLog
from topics.model import TopicConfig
from topics.queue import job_pages, key_order
from topics.queue.key_order import KeyOrder, KeyTerms
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    DeadLetterEvent,
    Event,
    NackEvent,
    ParkEvent,
    ReleaseEvent,
    ReopenEvent,
    RetryEvent,
)
from topics.queue.leases import Leases
from topics.runtime.instant import Instant

RED, BLUE = '["tag","Eq","red"]', '["tag","Eq","blue"]'
KEYS = st.sampled_from([None, "a", "a", "a", "b"])
COLOURS = st.sampled_from(["red", "red", "blue"])
LATE = st.booleans()
LEASES = st.sampled_from([5, 1000])


@pytest.fixture(scope="module", autouse=True)
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_pages, "PAGE", 4)
        patch.setattr(key_order, "_PAGE", 4)
        patch.setattr(key_order, "_FINISHED", 2)
        yield


@dataclass
class Record:
    key: str | None
    colour: str
    state: str = "fresh"
    due: int = 0
    deliveries: int = 0
    in_line: bool = True


class GroupOrderMachine(RuleBasedStateMachine):
    @initialize(most=st.sampled_from([2, 5, 1000]), filter=st.sampled_from([None, RED]))
    def begin(self, most: int, filter: str | None) -> None:
        self.put = PutGroupEvent(0, TopicConfig(), filter, most)
        self.group = Group("g", self.put)
        self.log = TopicLog()
        self.now = Instant(0, 500, 1000)
        self.records: dict[int, Record] = {}
        """The unfinished ones."""
        self.reserved: set[int] = set()
        self.early: set[int] = set()
        self.in_flight: list[Event] = []
        self.dead: dict[int, Record] = {}
        """Finished records whose letters are there."""
        self.coming_back: list[tuple[ReopenEvent, int]] = []
        """Redrives on their way, and what they count in `max_unfinished`."""
        self.next_id = 1
        self.order_by("tag")

    def order_by(self, by: str | None) -> None:
        self.group.begin_keys(KeyTerms(by) if by is not None else None)  # type: ignore[arg-type]
        self.lines_begin()

    def lines_begin(self) -> None:
        """What is held now, and refused, is in no line; what is leased now holds up its key, even out of its order."""
        self.early = {s for s, one in self.records.items() if one.state == "leased" or s in self.reserved}
        for seq, one in self.records.items():
            one.in_line = self.matches(seq) or not (one.state != "fresh" or seq in self.reserved)
            if seq <= self.group.finished.floor:
                one.in_line = False

    def matches(self, seq: int) -> bool:
        wanted = self.group.filter
        return wanted is None or self.records[seq].colour in wanted

    @property
    def order(self) -> KeyOrder | None:
        rule = self.group.leases.key_rule
        assert rule is None or isinstance(rule, KeyOrder)
        return rule

    # -- records and time ------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.records) < 30)
    @rule(new=st.lists(st.tuples(KEYS, COLOURS), min_size=1, max_size=6), claimed=st.integers(0, 6))
    def append(self, new: list[tuple[str | None, str]], claimed: int) -> None:
        for i, (key, colour) in enumerate(new):
            self.records[self.log.head_seq + 1 + i] = Record(key, colour)
        append(self.log, len(new))
        if claimed:
            self.claim(claimed, 1000, 0, late=False)

    @rule(ms=st.integers(0, 30))
    def pass_time(self, ms: int) -> None:
        self.now = Instant(self.now.mono + ms, self.now.window + ms, self.now.wall + ms)
        self.group.leases.sweep(self.now.mono, None, self.now.wall)
        for seq, one in self.records.items():
            over = one.due < self.now.mono if one.state == "leased" else one.due <= self.now.mono
            if one.state in ("leased", "delayed") and over and seq not in self.reserved:
                one.state = "free"
                self.early.discard(seq)

    @precondition(lambda self: len(self.records) > 6)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        seqs = sorted(self.some(data))
        self.log.delete_seqs(seqs)
        self.group.gone(seqs)
        self.group.advance(self.log)
        self.end(seqs)

    @precondition(lambda self: len(self.records) > 12)
    @rule(back=st.integers(5, 40))
    def evict(self, back: int) -> None:
        floor = max(self.log.head_seq - back, 1)
        self.log.evict_below(floor, "cap")
        self.group.advance(self.log)
        self.end([seq for seq in [*self.records, *self.dead] if seq < floor])

    def end(self, seqs: list[int]) -> None:
        for seq in seqs:
            self.records.pop(seq, None)
            self.early.discard(seq)
            self.dead.pop(seq, None)

    # -- calls -----------------------------------------------------------------------------------------------------

    def look(self, most: int) -> None:
        group = self.group
        for _ in range(100):
            if not group.must_look(self.log, most):
                return
            if self.order is not None and self.order.unsure:
                seq = self.order.unsure.pop()
                if seq in self.records and group.leases.is_held(seq):
                    self.order.add_held(seq, self.records[seq].key)
            elif group.wanted is None:
                assert self.order is not None
                seqs = group.live_after(self.log, self.order.looked_to, 2)
                self.order.add(seqs, [self.records[seq].key for seq in seqs])
                if len(seqs) < 2:
                    self.order.looked_to = self.log.head_seq
            else:
                first, last = group.looked_to + 1, min(group.looked_to + 3, self.log.head_seq)
                unfinished = [seq for seq in range(first, last + 1) if seq in self.records]
                matches = [seq for seq in range(first, last + 1) if seq not in self.records or self.matches(seq)]
                matches = [seq for seq in matches if self.log.is_live(seq)]
                keys = [self.records[seq].key if seq in self.records else "a" for seq in matches]
                group.looked(self.log, last, matches, keys)
                group.advance(self.log)
                is_held = {seq for seq in unfinished if self.records[seq].state != "fresh"} | self.reserved
                self.end([seq for seq in unfinished if not self.matches(seq) and seq not in is_held])
        raise AssertionError("the look does not end")

    @rule(limit=st.integers(1, 6), lease_ms=LEASES, deliveries=st.sampled_from([0, 0, 2]), late=LATE)
    def claim(self, limit: int, lease_ms: int, deliveries: int, late: bool) -> None:
        group, taken = self.group, array("Q")
        while True:
            self.look(limit - len(taken))
            group.advance(self.log)
            known_to = self.order.looked_to if self.order is not None else 0
            expected = self.expected(limit - len(taken), deliveries, known_to)
            found = group.leases.decide_claim(
                limit - len(taken), self.now, group.fresh(self.log), deliveries, None, group.fresh_room(self.log)
            )
            if self.order is not None:
                assert (list(found.seqs), list(found.exhausted)) == expected
            taken += found.seqs
            self.reserved |= {*found.seqs, *found.exhausted}
            if found.exhausted:
                self.decided(ParkEvent(found.exhausted), late=False)
            if len(taken) == limit or not (found.exhausted or group.must_look(self.log, limit - len(taken))):
                break
        if self.order is not None and len(taken) < limit:
            rest = self.expected(limit, 0, self.log.head_seq)[0]
            assert not rest, rest
        if taken:
            ids = array("Q", range(self.next_id, self.next_id + len(taken)))
            self.next_id += len(ids)
            self.decided(ClaimEvent("n", array("Q", sorted(taken)), ids, self.now.after(lease_ms)), late)

    def expected(self, limit: int, deliveries: int, known_to: int) -> tuple[list[int], list[int]]:
        room = self.group.room
        taken: list[int] = []
        exhausted: list[int] = []
        for seq, one in sorted(self.records.items()):
            if len(taken) == limit:
                break
            if seq > known_to or one.state not in ("fresh", "free") or seq in self.reserved or not self.is_first(seq):
                continue
            if one.state == "fresh":
                if not self.matches(seq) or (room <= 0 and seq != self.group.finished.floor + 1):
                    continue
                room -= 1
            elif 0 < deliveries <= one.deliveries:
                exhausted.append(seq)
                continue
            taken.append(seq)
        return taken, exhausted

    def is_first(self, seq: int) -> bool:
        key = self.records[seq].key
        if key is None or not self.records[seq].in_line:
            return True
        return not any(
            other != seq
            and one.key == key
            and (
                other in self.early
                or (
                    one.in_line
                    and other < seq
                    and (one.state != "fresh" or other in self.reserved or self.matches(other))
                )
            )
            for other, one in self.records.items()
        )

    @precondition(lambda self: self.is_any("leased"))
    @rule(data=st.data(), how=st.sampled_from(["ack", "free", "delay", "dead"]), late=LATE)
    def end_leases(self, data: st.DataObject, how: str, late: bool) -> None:
        leases, seqs = self.group.leases, self.some(data, "leased")
        decision: Any
        if how == "ack":
            decision = leases.decide_ack("n", seqs, None, self.now)
        else:
            delay = 7 if how == "delay" else None
            decision = leases.decide_nack("n", seqs, None, self.now, delay, condemns=how == "dead")
        self.decided(decision.event, late)
        if how == "dead" and not late:
            self.move_the_dead(seqs, late=False)

    @precondition(lambda self: self.is_any("parked"))
    @rule(data=st.data(), late=LATE)
    def move_some_dead(self, data: st.DataObject, late: bool) -> None:
        self.move_the_dead(self.some(data, "parked"), late)

    def move_the_dead(self, seqs: list[int], late: bool) -> None:
        self.decided(self.group.leases.decide_dead_letter(seqs).event, late)

    @precondition(lambda self: self.is_any("delayed"))
    @rule(data=st.data(), late=LATE)
    def retry(self, data: st.DataObject, late: bool) -> None:
        self.decided(self.group.leases.decide_retry(self.some(data, "delayed"), self.now).event, late)

    @precondition(lambda self: len(self.records) > 6)
    @rule(data=st.data(), late=LATE)
    def cancel(self, data: st.DataObject, late: bool) -> None:
        seqs, room = self.some(data), max(self.group.room, 0)
        left_out = {*[seq for seq in seqs if not self.group.leases.is_kept(seq)][room:]}
        wanted = [seq for seq in seqs if seq not in left_out]
        self.decided(self.group.leases.decide_cancel(wanted, self.now).event, late)

    @precondition(lambda self: self.dead)
    @rule(data=st.data(), late=LATE)
    def redrive(self, data: st.DataObject, late: bool) -> None:
        group, wanted = self.group, data.draw(st.lists(st.sampled_from(sorted(self.dead)), min_size=1, unique=True))
        on_their_way = {seq for event, _ in self.coming_back for seq in event.seqs}
        seqs: list[int] = []
        before = group.reopening
        for seq in sorted(set(wanted) - on_their_way):
            if group.room >= group.cost_of_reopening(seq):
                group.reopening += group.cost_of_reopening(seq)
                seqs.append(seq)
        if seqs:
            event = ReopenEvent(array("Q", seqs), group.finished.floor, group.missed, self.log.earliest_seq)
            self.coming_back.append((event, group.reopening - before))
            if not late:
                self.come_back(-1)

    @precondition(lambda self: self.coming_back)
    @rule()
    def redrive_fails(self) -> None:
        self.group.reopening -= self.coming_back.pop()[1]

    @precondition(lambda self: self.coming_back)
    @rule(pick=st.integers(0, 9))
    def come_back(self, pick: int) -> None:
        event, cost = self.coming_back.pop(pick % len(self.coming_back))
        group = self.group
        group.reopening -= cost
        group.apply(event)
        for seq in event.seqs:
            if seq in self.dead:
                one = self.records[seq] = self.dead.pop(seq)
                is_new = seq <= group.finished.floor or self.order is None or seq <= self.order.looked_to
                one.state, one.due, one.deliveries, one.in_line = "free", 0, 0, not is_new
        group.gone([seq for seq in event.seqs if not self.log.is_live(seq)])
        group.advance(self.log)

    def is_any(self, state: str) -> bool:
        return any(one.state == state for one in self.records.values())

    def some(self, data: st.DataObject, state: str | None = None) -> list[int]:
        """Draw some records in this state, or in any."""
        seqs = [seq for seq, one in self.records.items() if state in (None, one.state)]
        drawn: list[int] = data.draw(st.lists(st.sampled_from(sorted(seqs)), min_size=1, max_size=6, unique=True))
        return sorted(drawn)

    # -- commits ---------------------------------------------------------------------------------------------------

    def decided(self, event: Event | None, late: bool) -> None:
        if event is None:
            return
        self.reserved |= set(event.seqs)
        self.in_flight.append(event)
        if not late:
            self.commit(len(self.in_flight) - 1)

    @precondition(lambda self: self.in_flight)
    @rule(pick=st.integers(0, 9))
    def commit_one(self, pick: int) -> None:
        self.commit(pick % len(self.in_flight))

    @precondition(lambda self: self.in_flight)
    @rule(pick=st.integers(0, 9))
    def fail_one(self, pick: int) -> None:
        event = self.in_flight.pop(pick % len(self.in_flight))
        self.group.leases.abort(event.seqs)
        self.reserved -= set(event.seqs)
        for seq in event.seqs:
            if seq in self.records and self.records[seq].state == "fresh":
                self.records[seq].state = "free"
            if seq in self.records and self.records[seq].state != "leased":
                self.early.discard(seq)
        self.now = self.now.after(1)
        self.pass_time(0)

    def commit(self, at: int) -> None:
        event = self.in_flight.pop(at)
        self.group.apply(event)
        self.reserved -= set(event.seqs)
        for seq in event.seqs:
            one = self.records.get(seq)
            self.early.discard(seq)
            if one is None:
                continue
            match event:
                case AckEvent():
                    del self.records[seq]
                case DeadLetterEvent():
                    self.dead[seq] = self.records.pop(seq)
                case RetryEvent():
                    one.state, one.due = "free", 0
                case ClaimEvent():
                    one.state, one.due = "leased", event.deadline.mono
                    one.deliveries += 1
                case ParkEvent() | NackEvent():
                    one.state = "parked"
                case ReleaseEvent():
                    one.state = "free" if event.available_at is None else "delayed"
                    one.due = 0 if event.available_at is None else event.available_at.mono
        self.group.advance(self.log)
        self.pass_time(0)

    # -- another life, other settings ------------------------------------------------------------------------------

    @rule(later=st.sampled_from([0, 0, 50]))
    def restart(self, later: int) -> None:
        """Events in flight have not happened."""
        by = self.order.by if self.order is not None else None
        frozen = self.group.freeze(self.now)
        self.in_flight.clear()
        self.coming_back.clear()
        self.reserved.clear()
        self.group = Group.load(
            frozen.head, frozen.finished, Leases.load(cbor2.loads(cbor2.dumps(frozen.leases.dump())), self.now)
        )
        self.group.settle(self.log, lambda call: call())
        self.order_by(by)
        self.pass_time(later)

    @rule(
        filter=st.sampled_from([None, RED, BLUE]),
        most=st.sampled_from([2, 5, 1000]),
        by=st.sampled_from(["tag", "tag", "node", None]),
    )
    def change(self, filter: str | None, most: int, by: str | None) -> None:
        if by != (self.order.by if self.order is not None else None):
            self.order_by(by)
        is_other = filter != self.group.filter
        self.group.change(self.put._replace(filter=filter, max_unfinished=most))
        if is_other:
            self.lines_begin()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "group"):
            return
        self.group.check()
        states = [one.state for one in self.records.values()]
        assert self.group.leases.in_flight == states.count("leased")
        assert self.group.count(self.log) == len(self.records)

    def teardown(self) -> None:
        """When all is committed and all time has passed, the group finishes every record, with any `max_unfinished`."""
        if not hasattr(self, "group"):
            return
        while self.in_flight:
            self.commit(0)
        while self.coming_back:
            self.come_back(0)
        self.order_by("tag")
        for _ in range(2 * len(self.records) + 2):
            self.pass_time(100_000)
            self.decided(self.group.leases.decide_unpark(self.group.leases.parked()).event, late=False)
            self.claim(100, 10, 0, late=False)
            taken = [seq for seq, one in self.records.items() if one.state == "leased"]
            self.decided(self.group.leases.decide_ack("n", taken, None, self.now).event, late=False)
        assert not self.records
        assert self.group.finished.floor == self.log.head_seq


@pytest.mark.slow
def test_a_group_in_order_does_what_the_model_does() -> None:
    run_state_machine_as_test(GroupOrderMachine, settings=settings(max_examples=20, stateful_step_count=50))


@pytest.mark.sweep
def test_a_group_in_order_does_what_the_model_does_for_long() -> None:
    run_state_machine_as_test(GroupOrderMachine, settings=settings(max_examples=150, stateful_step_count=50))


def test_a_record_whose_claim_fails_after_the_filter_has_changed_is_found_without_room() -> None:
    """Nobody holds it when the lines begin, and it is free afterwards: as a held one it needs no room."""
    group, log = Group("g", group_put(None, 3)), TopicLog()
    append(log, 3)
    now = Instant(0, 500, 1000)
    group.begin_keys(KeyTerms("tag"))
    order = group.leases.key_rule
    assert isinstance(order, KeyOrder)
    order.add([1, 2, 3], [None, None, None])
    claimed = group.leases.decide_claim(3, now, group.fresh(log), 0, None, group.fresh_room(log)).seqs
    assert list(claimed) == [1, 2, 3]
    group.apply(ClaimEvent("n", claimed[:1], array("Q", [1]), now.after(10)))
    group.change(group_put(RED, 1))
    group.leases.abort(claimed[1:])
    order = group.leases.key_rule
    assert isinstance(order, KeyOrder)
    while order.unsure:
        order.unsure.pop()
    assert group.room < 0
    for seq in (1, 2, 3):
        assert group.must_look(log, 3)
        group.looked(log, seq, [], [])
    assert list(group.leases.decide_claim(3, now, group.fresh(log), 0, None, group.fresh_room(log)).seqs) == [2, 3]


def group_put(filter: str | None, most: int) -> PutGroupEvent:
    return PutGroupEvent(0, TopicConfig(), filter, most)


def test_a_record_that_has_ended_hides_none_of_those_that_were_set_aside() -> None:
    """Without room a claim gets the record right above the floor. It asks for that alone, so it has to see it."""
    order = KeyOrder("tag")
    order.add([1, 2, 3], [None, None, None])
    for seq in (1, 2, 3):
        assert order.next(with_aside=False) == seq
        order.set_aside(seq)
    assert order.first_aside == 1
    assert not order.must_look(1, head=4)
    order.ended([1, 2])
    assert order.first_aside == 3
    order.ended([3])
    assert order.first_aside is None
    assert order.must_look(1, head=4)


def test_a_record_that_is_unfinished_again_is_in_no_line() -> None:
    order = KeyOrder("tag")
    order.add([1, 2, 3], ["a", "a", "a"])
    assert (order.next(), order.next()) == (1, None)
    order.ended([1])
    assert order.next() == 2
    order.reopen([1])
    assert (order.next(), order.next()) == (1, None)
    order.ended([1])
    order.ended([2])
    assert (order.next(), order.next()) == (3, None)
    order.check(lambda seq: False)
