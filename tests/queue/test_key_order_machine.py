"""Jobs in order for each key (`docs/design/key_order.md`), against a naive model, which looks at every job at every
question: no two jobs of one key are leased, none before an earlier one is finished, and what can be claimed is claimed.

Events are committed late or not at all, records are deleted, evicted and lost, leases and delays end, the daemon
restarts, and the order is switched on and off while jobs are leased.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

from topics.queue import job_pages, job_projection, key_order, leases
from topics.queue.key_order import KeyTerms
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    DeadLetterEvent,
    EnqueueEvent,
    Event,
    NackEvent,
    ParkEvent,
    ReleaseEvent,
    RetryEvent,
)
from topics.queue.leases import Leases
from topics.queue.retry_delay import RetryDelay
from topics.runtime.instant import Instant

KEYS = st.sampled_from([None, None, "a", "a", "a", "b", "c"])
LATE = st.booleans()
MOST_LIVE = 40


@pytest.fixture(scope="module", autouse=True)
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "_LOOK", 1)
        patch.setattr(leases, "MAX_PARKED", 2)
        patch.setattr(job_projection, "_RUN", 3)
        patch.setattr(job_pages, "PAGE", 4)
        patch.setattr(key_order, "_PAGE", 4)
        patch.setattr(key_order, "_FINISHED", 2)
        yield


@dataclass
class Job:
    key: str | None
    state: str = "fresh"
    due: int = 0
    deliveries: int = 0


class KeyOrderMachine(RuleBasedStateMachine):
    @initialize(
        backoff=st.sampled_from([None, RetryDelay("fixed", 5, 5, 0.0)]), ordered=st.sampled_from([True, True, False])
    )
    def begin(self, backoff: RetryDelay | None, ordered: bool) -> None:
        self.leases = Leases()
        self.backoff = self.leases.backoff = backoff
        self.now = Instant(0, 500, 1000)
        self.jobs: dict[int, Job] = {}
        self.head = 0
        self.reserved: set[int] = set()
        self.early: set[int] = set()
        self.in_flight: list[Event] = []
        self.next_id = 1
        self.set_order(ordered)

    def set_order(self, ordered: bool) -> None:
        self.ordered = ordered
        self.leases.begin_keys(KeyTerms("tag") if ordered else None)
        self.early = set(self.reserved) if ordered else set()
        # Claims of before may lease several jobs of a key.
        self.first_id = self.next_id if ordered else 1 << 62

    # -- time and records ------------------------------------------------------------------------------------------

    @rule(ms=st.integers(0, 30))
    def pass_time(self, ms: int) -> None:
        self.now = Instant(self.now.mono + ms, self.now.window + ms, self.now.wall + ms)
        self.leases.sweep(self.now.mono, None, self.now.wall)
        self.sweep_model()

    def sweep_model(self) -> None:
        for seq, job in self.jobs.items():
            if seq in self.reserved:
                continue
            if job.state == "leased" and job.due < self.now.mono:
                delay = self.backoff.delay_ms(seq, job.deliveries) if self.backoff is not None else 0
                job.state, job.due = "delayed", job.due + delay
            if job.state == "delayed" and job.due <= self.now.mono:
                job.state = "free"
            if job.state == "later" and job.due <= self.now.wall:
                job.state = "free"

    @precondition(lambda self: len(self.jobs) < MOST_LIVE)
    @rule(keys=st.lists(st.tuples(KEYS, st.sampled_from([0, 0, 0, 5, 20]), st.sampled_from([5, 5, 7])), max_size=6))
    def append(self, keys: list[tuple[str | None, int, int]]) -> None:
        seqs, times, priorities = array("Q"), array("Q"), bytearray()
        for key, ahead, priority in keys:
            self.head += 1
            job = self.jobs[self.head] = Job(key)
            if ahead or priority != 5:
                job.state = "later" if ahead else "free"
                job.due = self.now.wall + ahead if ahead else 0
                seqs.append(self.head)
                times.append(job.due)
                priorities.append(priority)
        if seqs:
            self.leases.apply(EnqueueEvent(seqs, times, bytes(priorities)))

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def delete(self, data: st.DataObject) -> None:
        seqs = self.some(data)
        self.remove(seqs)
        self.leases.gone(seqs)

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def lose(self, data: st.DataObject) -> None:
        seqs = self.some(data)
        self.remove(seqs)
        if seqs:
            self.leases.forget_dead(seqs[0], seqs[-1], lambda asked: array("Q", [s for s in asked if s in self.jobs]))

    @rule(back=st.integers(0, 12))
    def evict(self, back: int) -> None:
        floor = max(self.head - back, 1)
        self.remove([seq for seq in self.jobs if seq < floor])
        self.leases.gone_below(floor)

    def remove(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            del self.jobs[seq]
            self.early.discard(seq)

    # -- calls -----------------------------------------------------------------------------------------------------

    def look(self, most: int) -> None:
        order = self.leases.key_rule
        if order is None:
            return
        while order.must_look(most, self.head):
            if order.unsure:
                seq = order.unsure.pop()
                if seq in self.jobs and self.leases.is_held(seq):
                    order.add_held(seq, self.jobs[seq].key)
                continue
            seqs = self.next_live(order.looked_to, 2)
            order.add(seqs, [self.jobs[seq].key for seq in seqs])
            if len(seqs) < 2:
                order.looked_to = self.head

    @rule(limit=st.integers(1, 6), lease_ms=st.integers(1, 20), most=st.sampled_from([0, 2]), late=LATE)
    def claim(self, limit: int, lease_ms: int, most: int, late: bool) -> None:
        expected, exhausted = self.expected(limit, most)
        taken: list[int] = []
        parked: list[int] = []
        while True:
            self.look(limit - len(taken))
            found = self.leases.decide_claim(limit - len(taken), self.now, self.next_live, most)
            taken += found.seqs
            parked += found.exhausted
            self.reserved |= {*found.seqs, *found.exhausted}
            order = self.leases.key_rule
            looks = order is not None and order.must_look(limit - len(taken), self.head)
            if found.exhausted:
                self.decided(ParkEvent(found.exhausted), late)
            if len(taken) == limit or not (found.more or looks):
                break
        if self.ordered:
            assert (taken, parked) == (expected, exhausted)
        if taken:
            ids = array("Q", range(self.next_id, self.next_id + len(taken)))
            self.next_id += len(ids)
            self.decided(ClaimEvent("a", array("Q", sorted(taken)), ids, self.now.after(lease_ms)), late)

    def expected(self, limit: int, most: int) -> tuple[list[int], list[int]]:
        taken: list[int] = []
        exhausted: list[int] = []
        for seq, job in sorted(self.jobs.items()):
            if len(taken) == limit:
                break
            if job.state not in ("fresh", "free") or seq in self.reserved or not self.in_order(seq):
                continue
            (exhausted if 0 < most <= job.deliveries else taken).append(seq)
        return taken, exhausted

    def in_order(self, seq: int) -> bool:
        key = self.jobs[seq].key
        return key is None or not any(
            other != seq and job.key == key and (other < seq or job.state == "leased" or other in self.early)
            for other, job in self.jobs.items()
        )

    def next_live(self, after: int, limit: int) -> Sequence[int]:
        return [seq for seq in sorted(self.jobs) if seq > after][:limit]

    @rule(data=st.data(), late=LATE)
    def ack(self, data: st.DataObject, late: bool) -> None:
        self.decided(self.leases.decide_ack("a", self.some(data), None, self.now).event, late)

    @rule(data=st.data(), delay=st.sampled_from([None, 0, 7]), counts=LATE, condemns=LATE, late=LATE)
    def nack(self, data: st.DataObject, delay: int | None, counts: bool, condemns: bool, late: bool) -> None:
        decision = self.leases.decide_nack(
            "a", self.some(data), None, self.now, delay, counts=counts, condemns=condemns
        )
        self.decided(decision.event, late)

    @rule(data=st.data(), ms=st.integers(1, 30), late=LATE)
    def extend(self, data: st.DataObject, ms: int, late: bool) -> None:
        self.decided(self.leases.decide_extend("a", self.some(data), None, self.now, ms).event, late)

    @rule(data=st.data(), late=LATE)
    def cancel(self, data: st.DataObject, late: bool) -> None:
        self.decided(self.leases.decide_cancel(self.some(data), self.now).event, late)

    @rule(data=st.data(), late=LATE)
    def retry(self, data: st.DataObject, late: bool) -> None:
        self.decided(self.leases.decide_retry(self.some(data), self.now).event, late)

    @rule(data=st.data(), late=LATE)
    def move_the_dead(self, data: st.DataObject, late: bool) -> None:
        self.decided(self.leases.decide_dead_letter(self.some(data)).event, late)

    @rule(data=st.data(), late=LATE)
    def unpark(self, data: st.DataObject, late: bool) -> None:
        self.decided(self.leases.decide_unpark(self.some(data)).event, late)

    def some(self, data: st.DataObject) -> list[int]:
        seqs = sorted(self.jobs)
        return sorted(data.draw(st.lists(st.sampled_from(seqs), max_size=6, unique=True))) if seqs else []

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
        self.leases.abort(event.seqs)
        self.reserved -= set(event.seqs)
        for seq in event.seqs:
            self.early.discard(seq)
            if seq in self.jobs and self.jobs[seq].state == "fresh":
                self.jobs[seq].state = "free"
        self.now = self.now.after(1)
        self.pass_time(0)

    def commit(self, at: int) -> None:
        event = self.in_flight.pop(at)
        self.leases.apply(event)
        self.reserved -= set(event.seqs)
        for i, seq in enumerate(event.seqs):
            job = self.jobs.get(seq)
            self.early.discard(seq)
            if job is None:
                continue
            match event:
                case AckEvent() | DeadLetterEvent():
                    del self.jobs[seq]
                case ClaimEvent():
                    job.state, job.due = "leased", event.deadline.mono
                    job.deliveries += 1
                    assert event.lease_ids[0] < self.first_id or not any(
                        other.state == "leased" and other is not job and other.key == job.key is not None
                        for other in self.jobs.values()
                    )
                case RetryEvent():
                    job.state = "free"
                case ParkEvent():
                    job.state = "parked"
                case ReleaseEvent():
                    job.state = "free" if event.available_at is None else "delayed"
                    job.due = 0 if event.available_at is None else event.available_at.mono
                case NackEvent():
                    job.state = "condemned" if event.condemns else "delayed" if event.delays[i] else "free"
                    job.due = event.moment.mono + event.delays[i]
                    job.deliveries -= not event.counts
                case _:
                    job.due = event.deadline.mono  # type: ignore[union-attr]
        self.pass_time(0)

    # -- another life, another order -------------------------------------------------------------------------------

    @rule(later=st.integers(0, 50))
    def restart(self, later: int) -> None:
        """Events in flight have not happened."""
        dumped = cbor2.loads(cbor2.dumps(self.leases.dump(self.now)))
        self.in_flight.clear()
        self.reserved.clear()
        self.leases = Leases.load(dumped, self.now)
        self.leases.backoff = self.backoff
        self.set_order(self.ordered)
        self.pass_time(later)

    @rule(ordered=st.sampled_from([True, True, False]))
    def configure(self, ordered: bool) -> None:
        self.set_order(ordered)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "jobs"):
            return
        self.leases.check()
        states = [job.state for job in self.jobs.values()]
        assert self.leases.in_flight == states.count("leased")
        assert self.leases.ready(len(states)) == states.count("free") + states.count("fresh")

    def teardown(self) -> None:
        """When all is committed and all time has passed, every job is claimed, and those of a key in their order."""
        if not hasattr(self, "jobs"):
            return
        while self.in_flight:
            self.commit(0)
        self.pass_time(100_000)
        self.decided(self.leases.decide_unpark(self.leases.parked()).event, late=False)
        done: list[tuple[str | None, int]] = []
        for _ in range(len(self.jobs) + 1):
            before = sorted(self.jobs)
            self.claim(100, 10, 0, late=False)
            taken = [seq for seq in before if self.jobs[seq].state == "leased"]
            done += [(self.jobs[seq].key, seq) for seq in taken]
            self.decided(self.leases.decide_ack("a", taken, None, self.now).event, late=False)
        assert not self.jobs
        if self.ordered:
            for key in {key for key, _ in done} - {None}:
                seqs = [seq for one, seq in done if one == key]
                assert seqs == sorted(seqs)


def test_a_queue_in_order_does_what_the_model_does() -> None:
    run_state_machine_as_test(KeyOrderMachine, settings=settings(max_examples=30, stateful_step_count=50))


@pytest.mark.sweep
def test_a_queue_in_order_does_what_the_model_does_for_long() -> None:
    run_state_machine_as_test(KeyOrderMachine, settings=settings(max_examples=150, stateful_step_count=50))
