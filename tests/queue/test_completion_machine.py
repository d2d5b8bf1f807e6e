"""Jobs whose results are delivered (`docs/design/completions.md`), with everything else that happens to jobs: the
machine of `test_job_machine` with acks that have results, and an order of keys on top."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.queue.test_job_machine import JobMachine
from topics.queue import job_pages, job_projection, leases
from topics.queue.job_results import RESULT_BYTES, JobResults
from topics.queue.key_order import KeyTerms
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    CompleteEvent,
    DeliverEvent,
    Event,
    NackEvent,
    ReopenEvent,
    event_from_wire,
)
from topics.queue.leases import Leases
from topics.runtime.instant import Instant


@pytest.fixture(scope="module", autouse=True)
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "_LOOK", 1)
        patch.setattr(leases, "_SCAN", 3)
        patch.setattr(job_projection, "_RUN", 3)
        patch.setattr(job_pages, "PAGE", 4)
        yield


class CompletionMachine(JobMachine):
    """`waiting` has the results that are not delivered, by seq, whether the record is there or not."""

    @initialize()
    def begin_with_results(self) -> None:
        self.waiting: dict[int, bytes] = {}

    @rule(data=st.data(), result=st.sampled_from([b"null", b"1", b'"abc"']))
    def complete(self, data: st.DataObject, result: bytes) -> None:
        seqs = self.some(data)
        said = dict.fromkeys(seqs[:2], result)
        event = self.leases.decide_complete("a", seqs, None, self.now, said).event
        held = [seq for seq in seqs if self.is_held(seq)]
        assert (list(event.seqs) if event is not None else []) == held
        if event is not None:
            self.commit(event)
            for seq in held:
                self.jobs[seq].state = "completing"
                self.waiting[seq] = said.get(seq, b"null")

    @rule(data=st.data(), delete=st.booleans())
    def complete_while_the_record_goes(self, data: st.DataObject, delete: bool) -> None:
        held = [seq for seq in self.some(data) if self.is_held(seq)]
        event = self.leases.decide_complete("a", held, None, self.now, {}).event
        if event is None:
            return
        if delete:
            self.leases.gone(held[:1])
            del self.jobs[held[0]]
        else:
            self.evict(0)
        there = [seq for seq in held if seq in self.jobs]
        assert list(self.leases.apply(event)) == there
        if there:
            self.log.append(CompleteEvent("a", array("Q", there), event.results[-len(there) :]))
        for seq in there:
            self.jobs[seq].state = "completing"
            self.waiting[seq] = b"null"

    @rule(data=st.data(), fails=st.booleans())
    @precondition(lambda self: self.waiting)
    def deliver(self, data: st.DataObject, fails: bool) -> None:
        seqs = data.draw(st.lists(st.sampled_from([*self.waiting, 10**6]), min_size=1, max_size=4, unique=True))
        wanted = sorted(seq for seq in seqs if seq in self.waiting)
        decision = self.leases.decide_deliver(seqs)
        assert decision.skipped == [seq for seq in seqs if seq not in self.waiting]
        assert (list(decision.event.seqs) if decision.event is not None else []) == wanted
        if decision.event is None:
            return
        assert self.leases.decide_deliver(wanted).busy == wanted
        if fails:
            self.leases.abort(decision.event.seqs)
            return
        self.log.append(decision.event)
        assert list(self.leases.apply(decision.event)) == [seq for seq in wanted if seq in self.jobs]
        for seq in wanted:
            self.jobs.pop(seq, None)
            del self.waiting[seq]

    @rule(data=st.data())
    def nobody_else_says_anything_about_it(self, data: st.DataObject) -> None:
        seqs = [seq for seq in self.some(data) if self.jobs[seq].state == "completing"]
        for decision in (
            self.leases.decide_ack("a", seqs, None, self.now),
            self.leases.decide_nack("a", seqs, None, self.now, 0),
            self.leases.decide_extend("a", seqs, None, self.now, 5),
            self.leases.decide_dead_letter(seqs),
            self.leases.decide_unpark(seqs),
        ):
            assert (decision.event, decision.skipped) == (None, seqs)

    @rule()
    def replay_any_prefix(self) -> None:
        for n in range(0, len(self.log) + 1, 3):
            again = Leases()
            for event in self.log[:n]:
                _again(again, event, self.now)
            again.check()

    @invariant()
    def results_agree(self) -> None:
        if not hasattr(self, "waiting"):
            return
        results = self.leases.results
        assert {seq: found.data for seq in results if (found := results.of(seq)) is not None} == self.waiting
        assert results.size == sum(len(data) + RESULT_BYTES for data in self.waiting.values())
        states = [job.state for job in self.jobs.values()]
        assert self.leases.delayed == sum(
            states.count(state) for state in ("delayed", "later", "parked", "condemned", "completing")
        )
        for seq, job in self.jobs.items():
            assert (job.state == "completing") <= (seq in self.waiting)


def _again(again: Leases, event: Event, now: Instant) -> None:
    if isinstance(event, AckEvent):
        again.gone(event.seqs)
    elif not isinstance(event, ReopenEvent):
        again.apply(event_from_wire(cbor2.loads(cbor2.dumps(event.to_wire())), now))


CompletionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCompletionMachine = CompletionMachine.TestCase


class OrderMachine(RuleBasedStateMachine):
    """Of the unfinished jobs of a key only the first is claimed; a completing one keeps the place."""

    @initialize()
    def begin(self) -> None:
        self.leases = Leases()
        self.leases.begin_keys(KeyTerms("tag"))
        self.now = Instant(0, 0)
        self.keys: dict[int, str] = {}
        self.states: dict[int, str] = {}
        self.orphans: set[int] = set()
        self.head = 0
        self.next_id = 1

    @rule(keys=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=4))
    def append(self, keys: list[str]) -> None:
        first = self.head + 1
        self.head += len(keys)
        seqs = range(first, self.head + 1)
        self.keys |= dict(zip(seqs, keys, strict=True))
        self.states |= dict.fromkeys(seqs, "ready")
        assert self.leases.key_rule is not None
        self.leases.key_rule.add(seqs, keys)

    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        firsts: dict[str, int] = {}
        for seq in sorted(self.states):
            if self.keys[seq]:
                firsts.setdefault(self.keys[seq], seq)
        free = [
            seq for seq in sorted(self.states) if self.states[seq] == "ready" and firsts.get(self.keys[seq], seq) == seq
        ]
        found = self.leases.decide_claim(limit, self.now, lambda after, most: [], 0)
        assert list(found.seqs) == free[:limit]
        if found.seqs:
            ids = array("Q", range(self.next_id, self.next_id + len(found.seqs)))
            self.next_id += len(ids)
            self.leases.apply(ClaimEvent("n", found.seqs, ids, self.now.after(1000)))
            self.states |= dict.fromkeys(found.seqs, "leased")

    def some(self, data: st.DataObject, state: str) -> list[int]:
        seqs = sorted(seq for seq, now in self.states.items() if now == state)
        return sorted(data.draw(st.lists(st.sampled_from(seqs), max_size=3, unique=True))) if seqs else []

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        seqs = self.some(data, "leased")
        event = self.leases.decide_complete("n", seqs, None, self.now, {}).event
        if event is not None:
            assert list(self.leases.apply(event)) == seqs
            self.states |= dict.fromkeys(seqs, "completing")

    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        event = self.leases.decide_nack("n", seqs := self.some(data, "leased"), None, self.now, 0).event
        if event is not None:
            assert not isinstance(event, NackEvent)
            self.leases.apply(event)
            self.states |= dict.fromkeys(seqs, "ready")

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        seqs = self.some(data, "completing")
        self.leases.gone(seqs)
        for seq in seqs:
            del self.states[seq]
            self.orphans.add(seq)

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        seqs = [*self.some(data, "completing"), *self.orphans]
        event = self.leases.decide_deliver(seqs).event
        if event is not None:
            self.leases.apply(event)
            for seq in seqs:
                self.states.pop(seq, None)
            self.orphans.clear()

    @rule()
    def begin_the_order_again(self) -> None:
        """As a start does, which reads the keys from the records; those of held jobs first."""
        self.leases = Leases.load(cbor2.loads(cbor2.dumps(self.leases.dump(self.now))), self.now)
        self.leases.begin_keys(KeyTerms("tag"))
        order = self.leases.key_rule
        assert order is not None
        for seq in order.unsure:
            order.add_held(seq, self.keys[seq])
        order.unsure = array("Q")
        seqs = sorted(self.states)
        order.add(seqs, [self.keys[seq] for seq in seqs])

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "states"):
            return
        self.leases.check()
        assert self.leases.delayed == list(self.states.values()).count("completing")
        assert len(self.leases.results) == self.leases.delayed + len(self.orphans)


OrderMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestOrderMachine = OrderMachine.TestCase


# ----------------------------------------------------------------- in the small


def leased(*seqs: int) -> Leases:
    queue = Leases()
    named = array("Q", seqs)
    found = queue.decide_claim(len(seqs), Instant(0, 0), lambda after, most: [seq for seq in seqs if seq > after], 0)
    assert found.seqs == named
    queue.apply(ClaimEvent("n", named, named, Instant(0, 0).after(1000)))
    return queue


def test_an_orphan_that_is_about_to_be_ended_takes_no_place_of_a_claim() -> None:
    queue = leased(1, 2)
    event = queue.decide_complete("n", [1, 2], None, Instant(0, 0), {1: b"1"}).event
    assert event is not None
    queue.apply(event)
    queue.gone([1])
    assert queue.decide_deliver([1, 2]).event == DeliverEvent(array("Q", [1, 2]))
    assert queue.dealt == 0
    queue.abort([1, 2])
    queue.check()
    assert list(queue.results) == [1, 2]


@pytest.mark.parametrize(
    "value",
    [
        {"op": "completed", "seqs": b"\1" + bytes(7), "node": "n", "results": []},
        {"op": "completed", "seqs": b"\1" + bytes(7), "node": "n", "results": ["1"]},
        {"op": "completed", "seqs": b"\1" + bytes(7), "results": [b"1"]},
        {"op": "completed", "seqs": bytes(8), "node": "n", "results": [b"1"]},
        {"op": "delivered", "seqs": b""},
    ],
)
def test_a_bad_event_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="lease event"):
        event_from_wire(value, Instant(0, 0))


def test_a_dump_in_which_results_are_missing_or_bad_is_refused() -> None:
    queue = leased(1)
    event = queue.decide_complete("n", [1], None, Instant(0, 0), {1: b"1"}).event
    assert event is not None
    queue.apply(event)
    dump = queue.dump(Instant(0, 0))
    assert dump["results"] == [[1, "n", b"1"]]
    for bad in ([], [[0, "n", b"1"]], [[1, "n", "1"]], [[1, "n", b"1"], [1, "n", b"1"]], 7):
        with pytest.raises(ValueError, match="lease dump"):
            Leases.load({**dump, "results": bad}, Instant(0, 0))
    assert JobResults.load([]).size == 0
