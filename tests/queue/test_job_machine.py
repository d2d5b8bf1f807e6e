"""Jobs with times, priorities and delays (`docs/design/jobs.md`), against a naive model: a dict with an object for each
job, which is searched whole for every decision."""

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

from topics.queue import job_pages, job_projection, leases
from topics.queue.claim_order import Ages
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    DeadLetterEvent,
    EnqueueEvent,
    Event,
    ParkEvent,
    PauseEvent,
    ReopenEvent,
    ResumeEvent,
    event_from_wire,
)
from topics.queue.leases import Leases
from topics.queue.retry_delay import RetryDelay
from topics.runtime.instant import Instant

AGING_MS = 10
MAX_DELIVERIES = 3
WALL = 1_000_000


@pytest.fixture(scope="module", autouse=True)
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "_LOOK", 1)
        patch.setattr(leases, "_SCAN", 3)
        patch.setattr(job_projection, "_RUN", 3)
        patch.setattr(job_pages, "PAGE", 4)
        yield


@dataclass
class Job:
    """`since` is when it became free after its time, `due` the end of a lease or delay, or its time."""

    ts: int
    priority: int = 5
    state: str = "fresh"
    due: int = 0
    since: int = 0
    deliveries: int = 0
    error: str | None = None

    def urgency(self, now: int) -> int:
        return min(9, self.priority + max(0, now - max(self.ts, self.since)) // AGING_MS)


class JobMachine(RuleBasedStateMachine):
    @initialize(backoff=st.sampled_from([None, RetryDelay("fixed", 5, 5, 0.0), RetryDelay("exponential", 3, 40, 0.5)]))
    def begin(self, backoff: RetryDelay | None) -> None:
        self.leases = Leases()
        self.backoff = self.leases.backoff = backoff
        self.now = Instant(0, 500, WALL)
        self.jobs: dict[int, Job] = {}
        self.head = 0
        self.dead = 0
        self.paused: int | None = None
        self.log: list[Event] = []
        self.next_id = 1

    # -- the clock -------------------------------------------------------------------------------------------------

    @rule(ms=st.integers(0, 30), wall=st.integers(-15, 30))
    def pass_time(self, ms: int, wall: int) -> None:
        now = self.now
        self.now = Instant(now.mono + ms, now.window + ms, max(now.wall + wall, 1))
        self.leases.sweep(self.now.mono, None, self.now.wall)
        for seq, job in self.jobs.items():
            if job.state == "leased" and job.due < self.now.mono:
                delay = self.backoff.delay_ms(seq, job.deliveries) if self.backoff is not None else 0
                job.state, job.due, job.since = "delayed", job.due + delay, 0
            if job.state == "delayed" and job.due <= self.now.mono:
                job.state = "free"
            if job.state == "later" and job.due <= self.now.wall:
                job.state, job.since = "free", job.due

    # -- records ---------------------------------------------------------------------------------------------------

    @rule(fields=st.lists(st.tuples(st.sampled_from([0, 0, 5, 20]), st.integers(0, 9) | st.just(5)), max_size=6))
    def append(self, fields: list[tuple[int, int]]) -> None:
        seqs, times, priorities = array("Q"), array("Q"), bytearray()
        for ahead, priority in fields:
            self.head += 1
            job = self.jobs[self.head] = Job(self.now.wall, priority)
            if ahead or priority != 5:
                job.state = "later" if ahead else "free"
                job.due = self.now.wall + ahead if ahead else 0
                seqs.append(self.head)
                times.append(job.due)
                priorities.append(priority)
        if seqs:
            self.commit(EnqueueEvent(seqs, times, bytes(priorities)))

    @rule(data=st.data())
    @precondition(lambda self: self.jobs)
    def delete(self, data: st.DataObject) -> None:
        seqs = data.draw(st.lists(st.sampled_from(sorted(self.jobs)), max_size=3, unique=True))
        self.leases.gone(seqs)
        for seq in seqs:
            del self.jobs[seq]

    @rule(back=st.integers(0, 4))
    def evict(self, back: int) -> None:
        floor = max(self.head - back, 1)
        self.leases.gone_below(floor)
        self.jobs = {seq: job for seq, job in self.jobs.items() if seq >= floor}

    # -- calls -----------------------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 6), lease_ms=st.integers(1, 20), bounded=st.booleans())
    def claim(self, limit: int, lease_ms: int, bounded: bool) -> None:
        most = MAX_DELIVERIES if bounded else 0
        expected, exhausted = self.expected(limit, most)
        ages = Ages(lambda seq: self.jobs[seq].ts, self.now.wall, AGING_MS)
        found = self.leases.decide_claim(limit, self.now, self.next_live, most, ages)
        assert (list(found.seqs), found.more) == (expected, False)
        assert set(found.exhausted) == exhausted
        if found.exhausted:
            self.commit(ParkEvent(found.exhausted))
            for seq in found.exhausted:
                self.jobs[seq].state, self.jobs[seq].since = "parked", 0
        if not found.seqs:
            return
        ids = array("Q", range(self.next_id, self.next_id + len(found.seqs)))
        self.next_id += len(ids)
        self.commit(ClaimEvent("a", found.seqs, ids, self.now.after(lease_ms)))
        for seq in found.seqs:
            job = self.jobs[seq]
            job.state, job.due, job.since = "leased", self.now.mono + lease_ms, 0
            job.deliveries += 1

    def expected(self, limit: int, most: int) -> tuple[list[int], set[int]]:
        lanes: dict[int, list[int]] = {}
        for state in ("free", "fresh"):
            for seq, job in sorted(self.jobs.items()):
                if job.state == state:
                    lanes.setdefault(job.priority, []).append(seq)
        is_plain = lanes.keys() <= {5}
        taken: list[int] = []
        exhausted: set[int] = set()

        def pass_exhausted(lane: list[int]) -> None:
            while lane and 0 < most <= self.jobs[lane[0]].deliveries:
                exhausted.add(lane.pop(0))

        if not is_plain:
            for lane in lanes.values():
                pass_exhausted(lane)
        while len(taken) < limit:
            for lane in lanes.values() if is_plain else ():
                pass_exhausted(lane)
            heads = [lane for lane in lanes.values() if lane]
            if not heads:
                break
            first = max(heads, key=lambda lane: (self.jobs[lane[0]].urgency(self.now.wall), -lane[0]))
            taken.append(first.pop(0))
            if not is_plain and len(taken) < limit:
                pass_exhausted(first)
        return (sorted(taken) if is_plain else taken), exhausted

    def next_live(self, after: int, limit: int) -> Sequence[int]:
        return [seq for seq in sorted(self.jobs) if seq > after][:limit]

    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        seqs = self.some(data)
        event = self.leases.decide_ack("a", seqs, None, self.now).event
        held = [seq for seq in seqs if self.is_held(seq)]
        assert (list(event.seqs) if event is not None else []) == held
        if event is not None:
            self.commit(event)
            for seq in held:
                del self.jobs[seq]

    @rule(
        data=st.data(),
        delay=st.sampled_from([None, None, 0, 7]),
        counts=st.booleans(),
        condemns=st.booleans(),
        error=st.sampled_from([None, "e", "f" * 10]),
    )
    def nack(self, data: st.DataObject, delay: int | None, counts: bool, condemns: bool, error: str | None) -> None:
        seqs = self.some(data)
        decision = self.leases.decide_nack(
            "a", seqs, None, self.now, delay, counts=counts, condemns=condemns, error=error
        )
        held = [seq for seq in seqs if self.is_held(seq)]
        assert (list(decision.event.seqs) if decision.event is not None else []) == held
        if decision.event is None:
            return
        self.commit(decision.event)
        for seq in held:
            job = self.jobs[seq]
            wait = delay or 0
            if delay is None and counts and self.backoff is not None:
                wait = self.backoff.delay_ms(seq, job.deliveries)
            job.state = "condemned" if condemns else "delayed" if wait else "free"
            job.due, job.since = self.now.mono + wait, 0
            job.deliveries -= not counts
            job.error = job.error if error is None else error

    @rule(data=st.data())
    def move_the_dead(self, data: st.DataObject) -> None:
        seqs = self.some(data)
        event = self.leases.decide_dead_letter(seqs).event
        over = [seq for seq in seqs if self.jobs[seq].state in ("parked", "condemned")]
        assert (list(event.seqs) if event is not None else []) == over
        if event is not None:
            self.commit(event)
            self.dead += len(over)
            for seq in over:
                del self.jobs[seq]

    @rule(data=st.data(), condemned=st.booleans())
    def unpark(self, data: st.DataObject, condemned: bool) -> None:
        states = ("parked", "condemned") if condemned else ("parked",)
        seqs = self.some(data)
        event = self.leases.decide_unpark(seqs, condemned=condemned).event
        back = [seq for seq in seqs if self.jobs[seq].state in states]
        assert (list(event.seqs) if event is not None else []) == back
        if event is not None:
            self.commit(event)
            for seq in back:
                self.jobs[seq].state = "free"

    @rule(ahead=st.none() | st.integers(0, 20))
    def pause(self, ahead: int | None) -> None:
        self.paused = 0 if ahead is None else self.now.wall + ahead
        self.commit(PauseEvent(self.paused))

    @rule()
    def resume(self) -> None:
        self.paused = None
        self.commit(ResumeEvent())

    def some(self, data: st.DataObject) -> list[int]:
        seqs = sorted(self.jobs)
        return sorted(data.draw(st.lists(st.sampled_from(seqs), max_size=4, unique=True))) if seqs else []

    def is_held(self, seq: int) -> bool:
        return self.jobs[seq].state == "leased"

    def commit(self, event: Event) -> None:
        self.log.append(event)
        assert list(self.leases.apply(event)) == list(event.seqs)

    # -- another life ----------------------------------------------------------------------------------------------

    @rule(later=st.integers(0, 50), wall=st.integers(0, 50))
    def restart_from_a_dump(self, later: int, wall: int) -> None:
        dumped = cbor2.loads(cbor2.dumps(self.leases.dump(self.now)))
        window = self.now.window
        moved = Instant(self.now.mono, window, self.now.wall)
        self.leases = Leases.load(dumped, moved)
        self.leases.backoff = self.backoff
        self.pass_time(later, wall)

    @rule()
    def replay(self) -> None:
        again = Leases()
        for event in self.log:
            if isinstance(event, AckEvent | ReopenEvent):
                again.gone(event.seqs)
            else:
                assert not isinstance(event, DeadLetterEvent) or event.seqs
                again.apply(event_from_wire(event.to_wire(), self.now))
        again.reconcile(lambda seqs: array("Q", [seq for seq in seqs if seq in self.jobs]))
        again.backoff = self.backoff
        again.sweep(self.now.mono, None, self.now.wall)
        again.check()
        for seq, job in self.jobs.items():
            assert again.priority(seq) == job.priority, seq
            assert again.deliveries(seq) == job.deliveries, seq
            assert again.errors.of(seq) == job.error, seq
            assert again.is_parked(seq) == (job.state in ("parked", "condemned")), seq
        assert (again.in_flight, again.paused_until) == (self.leases.in_flight, self.paused)
        assert again.dead_lettered == self.dead

    # -- always ----------------------------------------------------------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "jobs"):
            return
        self.leases.check()
        states = [job.state for job in self.jobs.values()]
        assert self.leases.in_flight == states.count("leased")
        assert self.leases.ready(len(states)) == states.count("free") + states.count("fresh")
        assert list(self.leases.parked()) == sorted(
            seq for seq, job in self.jobs.items() if job.state in ("parked", "condemned")
        )
        assert self.leases.is_paused(self.now) == (
            self.paused is not None and (self.paused == 0 or self.now.wall < self.paused)
        )
        later = [job.due for job in self.jobs.values() if job.state == "later"]
        assert self.leases.next_later_ms() == min(later, default=None)
        for seq, job in self.jobs.items():
            assert (self.leases.errors.of(seq), self.leases.deliveries(seq)) == (job.error, job.deliveries), seq
            assert job.state == "fresh" or self.leases.priority(seq) == job.priority, seq


def test_a_queue_does_what_the_model_does() -> None:
    run_state_machine_as_test(JobMachine, settings=settings(max_examples=30, stateful_step_count=40))


@pytest.mark.sweep
def test_a_queue_does_what_the_model_does_for_long() -> None:
    run_state_machine_as_test(JobMachine, settings=settings(max_examples=150, stateful_step_count=40))
