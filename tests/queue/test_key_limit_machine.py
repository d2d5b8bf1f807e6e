"""A limit of jobs for each key (`docs/design/key_order.md` section 7), against a naive model, which looks at every job
at every question: no key has more jobs leased, or about to be, than the limit; a claim gets what it would get if the
jobs of full keys were not there, by priority and age; and in the end every job is claimed.

Events are committed late or not at all, records are deleted, evicted and lost, leases and delays end, the age of a job
cannot be read, the daemon restarts, and limits are switched on, off and changed while jobs are leased.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.queue import job_pages, job_projection, key_limit, leases
from topics.queue.claim_order import Ages
from topics.queue.key_limit import KeyLimit
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
from topics.queue.leases import UNBOUNDED, Leases
from topics.queue.retry_delay import RetryDelay
from topics.runtime.instant import Instant

KEYS = st.sampled_from([None, None, "a", "a", "a", "b", "c"])
LATE = st.booleans()
NEVER = 1 << 60
MOST_LIVE = 40


@pytest.fixture(scope="module", autouse=True)
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "_LOOK", 1)
        patch.setattr(leases, "MAX_PARKED", 2)
        patch.setattr(job_projection, "_RUN", 3)
        patch.setattr(job_pages, "PAGE", 4)
        patch.setattr(key_limit, "_PAGE", 4)
        patch.setattr(key_limit, "_STALE", 1)
        yield
    key_limit.MOST_KNOWN = MOST_KNOWN  # type: ignore[misc]


@dataclass
class Job:
    key: str | None
    state: str = "fresh"
    due: int = 0
    deliveries: int = 0
    priority: int = 5
    since: int = 0
    ts: int = 0


class Unreadable(Exception):
    """The time of a record is not in memory."""


class KeyLimitMachine(RuleBasedStateMachine):
    most_known = 1_000_000

    @initialize(
        backoff=st.sampled_from([None, RetryDelay("fixed", 5, 5, 0.0)]),
        most=st.sampled_from([0, 1, 1, 2, 3]),
        aging_ms=st.sampled_from([0, 10]),
    )
    def begin(self, backoff: RetryDelay | None, most: int, aging_ms: int) -> None:
        self.aging_ms = aging_ms
        self.claiming: set[int] = set()
        self.leases = Leases()
        self.backoff = self.leases.backoff = backoff
        self.now = Instant(0, 500, 1000)
        self.jobs: dict[int, Job] = {}
        self.head = 0
        self.reserved: set[int] = set()
        self.early: set[int] = set()
        self.in_flight: list[Event] = []
        self.next_id = 1
        self.set_limit(most)

    def set_limit(self, most: int) -> None:
        key_limit.MOST_KNOWN = self.most_known  # type: ignore[misc]
        self.most = most
        self.leases.begin_keys(KeyTerms("tag", most) if most else None)
        # A job whose claim is on its way counts for its key too.
        self.early = {seq for seq in self.reserved if seq in self.jobs} if most else set()

    @property
    def limit(self) -> KeyLimit | None:
        rule = self.leases.key_rule
        assert rule is None or isinstance(rule, KeyLimit)
        return rule

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
                job.state, job.due, job.since = "delayed", job.due + delay, 0
            if job.state == "delayed" and job.due <= self.now.mono:
                job.state = "free"
            if job.state == "later" and job.due <= self.now.wall:
                job.state, job.since = "free", job.due

    @precondition(lambda self: len(self.jobs) < MOST_LIVE)
    @rule(keys=st.lists(st.tuples(KEYS, st.sampled_from([0, 0, 0, 5, 20]), st.sampled_from([5, 5, 7, 2])), max_size=6))
    def append(self, keys: list[tuple[str | None, int, int]]) -> None:
        seqs, times, priorities = array("Q"), array("Q"), bytearray()
        for key, ahead, priority in keys:
            self.head += 1
            job = self.jobs[self.head] = Job(key, priority=priority, ts=self.now.wall)
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
            self.claiming.discard(seq)

    # -- calls -----------------------------------------------------------------------------------------------------

    def look(self, most: int) -> None:
        limit = self.limit
        if limit is None:
            return
        for _ in range(200):
            if not self.leases.must_look(most, self.head):
                return
            if limit.unsure:
                seq = limit.unsure.pop()
                if seq in self.jobs and self.leases.is_held(seq):
                    limit.add_held(seq, self.jobs[seq].key)
            elif kept := self.leases.without_key(most):
                limit.learn(kept[0], self.jobs[kept[0]].key)
            else:
                seqs = array("Q", self.next_live(limit.looked_to, 2))
                told = self.leases.to_look_at(seqs)
                limit.add(told, [self.jobs[seq].key for seq in told])
                limit.looked_to = seqs[-1] if len(seqs) == 2 else self.head
        raise AssertionError("the look does not end")

    def ages(self, fails_at: int) -> Ages:
        left = fails_at

        def ts_of(seq: int) -> int:
            nonlocal left
            left -= 1
            if left == 0:
                raise Unreadable
            return self.jobs[seq].ts

        return Ages(ts_of, self.now.wall, self.aging_ms)

    @rule(
        limit=st.integers(1, 6),
        lease_ms=st.integers(1, 20),
        most=st.sampled_from([0, 0, 2]),
        late=LATE,
        fails_at=st.sampled_from([1, 2, 4, NEVER, NEVER]),
    )
    def claim(self, limit: int, lease_ms: int, most: int, late: bool, fails_at: int) -> None:
        expected = self.expected(limit, most)
        taken: list[int] = []
        while True:
            self.look(limit - len(taken))
            found = None
            with suppress(Unreadable):
                ages = self.ages(fails_at)
                room = UNBOUNDED._replace(head=self.head)
                found = self.leases.decide_claim(limit - len(taken), self.now, self.next_live, most, ages, room)
            fails_at = NEVER
            if found is None:
                self.leases.check()
                continue
            taken += found.seqs
            self.reserved |= {*found.seqs, *found.exhausted}
            self.claiming |= set(found.seqs)
            for seq in found.exhausted:
                assert 0 < most <= self.jobs[seq].deliveries
            if found.exhausted:
                self.decided(ParkEvent(found.exhausted), late)
            if len(taken) == limit or not (found.more or self.leases.must_look(limit - len(taken), self.head)):
                break
        self.judge(taken, expected)
        if taken:
            ids = array("Q", range(self.next_id, self.next_id + len(taken)))
            self.next_id += len(ids)
            self.decided(ClaimEvent("a", array("Q", sorted(taken)), ids, self.now.after(lease_ms)), late)

    def judge(self, taken: list[int], expected: list[int]) -> None:
        if self.most:
            assert sorted(taken) == sorted(expected)

    def expected(self, limit: int, most: int) -> list[int]:
        """The jobs that a claim gets, one by one."""
        taken: list[int] = []
        while len(taken) < limit:
            best: dict[int, tuple[bool, int]] = {}
            for seq, job in sorted(self.jobs.items()):
                if job.state not in ("fresh", "free") or seq in self.reserved or seq in taken:
                    continue
                if 0 < most <= job.deliveries or not self.has_room(job.key, taken):
                    continue
                place = (job.state == "fresh", seq)
                best[job.priority] = min(best.get(job.priority, place), place)
            if not best:
                break
            taken.append(max((seq for _, seq in best.values()), key=lambda seq: (self.urgency(seq), -seq)))
        return taken

    def urgency(self, seq: int) -> int:
        job = self.jobs[seq]
        since = job.since if job.state == "free" else 0
        age = self.now.wall - max(job.ts, since)
        return job.priority if not self.aging_ms else min(job.priority + max(age, 0) // self.aging_ms, 9)

    def has_room(self, key: str | None, taken: Sequence[int] = ()) -> bool:
        return key is None or self.held(key) + sum(self.jobs[seq].key == key for seq in taken) < self.most

    def held(self, key: str) -> int:
        held = {*self.claiming, *self.early, *(seq for seq, job in self.jobs.items() if job.state == "leased")}
        return sum(self.jobs[seq].key == key for seq in held)

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
            self.claiming.discard(seq)
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
            self.claiming.discard(seq)
            if job is None:
                continue
            match event:
                case AckEvent() | DeadLetterEvent():
                    del self.jobs[seq]
                case ClaimEvent():
                    job.since = 0
                    job.state, job.due = "leased", event.deadline.mono
                    job.deliveries += 1
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
        self.claiming.clear()
        self.leases = Leases.load(dumped, self.now)
        self.leases.backoff = self.backoff
        self.set_limit(self.most)
        self.pass_time(later)

    @rule(most=st.sampled_from([0, 1, 2]))
    def configure(self, most: int) -> None:
        self.set_limit(most)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "jobs"):
            return
        self.leases.check()
        states = [job.state for job in self.jobs.values()]
        assert self.leases.in_flight == states.count("leased")
        assert self.leases.ready(len(states)) == states.count("free") + states.count("fresh")

    def teardown(self) -> None:
        """When all is committed and all time has passed, every job is claimed."""
        if not hasattr(self, "jobs"):
            return
        while self.in_flight:
            self.commit(0)
        if not self.most:
            self.set_limit(1)
        self.decided(self.leases.decide_unpark(self.leases.parked()).event, late=False)
        for _ in range(len(self.jobs) + 1):
            self.pass_time(100_000)
            self.claim(100, 10, 0, late=False, fails_at=NEVER)
            taken = [seq for seq, job in self.jobs.items() if job.state == "leased"]
            self.decided(self.leases.decide_ack("a", taken, None, self.now).event, late=False)
        assert not self.jobs


class FewKnownMachine(KeyLimitMachine):
    """With so few known jobs claims may get less, but they never stand still."""

    most_known = 5

    def judge(self, taken: list[int], expected: list[int]) -> None:
        for key in {self.jobs[seq].key for seq in taken} - {None} if self.most else set():
            assert key is not None
            before = self.held(key) - len([seq for seq in taken if self.jobs[seq].key == key])
            assert self.held(key) <= max(self.most, before)


MOST_KNOWN = key_limit.MOST_KNOWN
KeyLimitMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestKeyLimit = KeyLimitMachine.TestCase
FewKnownMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestFewKnown = FewKnownMachine.TestCase
