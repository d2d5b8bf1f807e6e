"""`Leases` against a model that looks at every job at every question and knows no pages, cursor or reserved arrays.

Many workers claim, ack, nack and extend, rightly and wrongly; what is due is swept, or only in part, or not; events are
committed late, in any order, or not at all; records are deleted, evicted and lost under them; both clocks move; and the
daemon restarts, from any snapshot, which is written long after it was taken, with any beginning of what was committed
after it. The pages are tiny, so that everything happens at their borders.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import cbor2
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.log.dumped_values import from_little_endian
from topics.queue import job_pages, job_projection, leases
from topics.queue.job_pages import ABSENT, DELAYED, FREE, LEASED, PARKED
from topics.queue.job_projection import FrozenLeases
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    DeadLetterEvent,
    Event,
    ExtendEvent,
    ParkEvent,
    ReleaseEvent,
    event_from_wire,
)
from topics.queue.leases import Leases
from topics.runtime.instant import MAX_AHEAD_MS, Instant

PARKED_AT_ONCE = 3
# No wall clock is set back to before this: times before the epoch are not kept apart.
EPOCH_FLOOR = 10**7


@pytest.fixture(scope="module", autouse=True)
def _tiny_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "MAX_PARKED", PARKED_AT_ONCE)
        # Decisions do not sweep: the machine does, so that it knows what was swept.
        patch.setattr(leases, "SWEEP_MOST", 0)
        patch.setattr(leases, "_LOOK", 1)
        patch.setattr(leases, "_SCAN", 3)
        patch.setattr(job_projection, "_RUN", 3)
        patch.setattr(job_pages, "PAGE", 4)
        yield


@dataclass
class Job:
    """A job that is not fresh. `until`: the last ms of a lease, the first ms after a delay; monotonic."""

    state: int = FREE
    deliveries: int = 0
    node: str = ""
    lease_id: int = 0
    until: int = 0

    def is_over(self, now: int) -> bool:
        return (self.state == LEASED and now > self.until) or (self.state == DELAYED and now >= self.until)

    def move(self, state: int, until: int = 0) -> None:
        self.state, self.until, self.node, self.lease_id = state, until, "", 0


@dataclass
class Model:
    """What a queue is, in the words of the specification. `jobs` has live jobs only; live and in neither is fresh."""

    live: set[int] = field(default_factory=set)
    head: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)
    reserved: set[int] = field(default_factory=set)
    dead_lettered: int = 0

    def sweep(self, now: int) -> None:
        for seq, job in self.jobs.items():
            if seq not in self.reserved and job.is_over(now):
                job.move(FREE)

    def append(self, n: int) -> None:
        self.live |= set(range(self.head + 1, self.head + 1 + n))
        self.head += n

    def remove(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.live.discard(seq)
            self.jobs.pop(seq, None)

    def claimable(self, limit: int, max_deliveries: int) -> tuple[list[int], list[int], bool]:
        seqs: list[int] = []
        exhausted: list[int] = []
        for seq in sorted(seq for seq, job in self.jobs.items() if job.state == FREE and seq not in self.reserved):
            if len(seqs) == limit:
                break
            if not (max_deliveries and self.jobs[seq].deliveries >= max_deliveries):
                seqs.append(seq)
            elif len(exhausted) < PARKED_AT_ONCE:
                exhausted.append(seq)
            else:
                return seqs, exhausted, True
        fresh = sorted(self.live - self.jobs.keys() - self.reserved)
        return sorted(seqs + fresh[: limit - len(seqs)]), exhausted, False

    def apply(self, event: Event) -> list[int]:
        self.reserved -= set(event.seqs)
        if isinstance(event, DeadLetterEvent):
            self.dead_lettered += len(event.seqs)
        return [seq for seq in event.seqs if seq in self.live and self._apply(event, seq)]

    def _apply(self, event: Event, seq: int) -> bool:
        job = self.jobs.get(seq)
        match event:
            case ClaimEvent():
                job = self.jobs.setdefault(seq, Job())
                job.move(LEASED, event.deadline.mono)
                job.deliveries += 1
                job.node, job.lease_id = event.node, event.lease_ids[event.seqs.index(seq)]
                return True
            case ExtendEvent() if job is not None and job.state == LEASED:
                job.until = event.deadline.mono
                return True
            case ReleaseEvent() if job is not None and job.state in (LEASED, PARKED):
                if event.available_at is None:
                    job.move(FREE)
                else:
                    job.move(DELAYED, event.available_at.mono)
                return True
            case ParkEvent() if job is not None:
                job.move(PARKED)
                return True
            case AckEvent() | DeadLetterEvent() if job is not None:
                self.remove([seq])
                return True
        return False

    def restarted(self, before: Instant, now: Instant) -> Model:
        """A copy, its times taken from the clocks of `before` to those of `now` by way of the wall clock."""
        jobs = {}
        for seq, job in self.jobs.items():
            ahead = job.until - before.mono + before.window - now.window
            jobs[seq] = replace(job, until=now.mono + min(ahead, MAX_AHEAD_MS) if job.state in (LEASED, DELAYED) else 0)
        return Model(set(self.live), self.head, jobs, set(), self.dead_lettered)


@dataclass
class Snapshot:
    frozen: FrozenLeases
    model: Model
    taken: Instant
    position: int


NODES = st.sampled_from(["a", "b", "c"])
LEASE_MS = st.sampled_from([100, 100, 150, 1000])
# Which jobs a call is about: drawn from all that were ever given out, and a few that never were.
PICKS = st.lists(st.integers(0, 14), min_size=1, max_size=5)
# Most events are committed when they are decided, as without a sync. The others wait for a rule.
LATE = st.sampled_from([False, False, True])
# How much of what is due is swept before a decision.
SWEPT = st.sampled_from([None, None, 0, 1, 2])


class LeaseMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases()
        self.model = Model()
        self.now = Instant(1_000, 1_700_000_000_000)
        self.max_deliveries = 0
        self.lease_ids = 0
        self.in_flight: list[tuple[Event, int]] = []
        """Decided and not committed, with the time of the decision."""
        self.log: list[tuple[str, Any]] = []
        self.snapshots = [Snapshot(self.leases.freeze(self.now), Model(), self.now, 0)]
        self.told: dict[int, tuple[str, int, int]] = {}
        """What clients were told, and have to rely on: seq to node, lease id and deadline. Not the model's."""
        self.looks = 0

    # -- The engine's part ---------------------------------------------------------------------------------------------

    def decided(self, event: Event | None, late: bool) -> None:
        if event is not None:
            assert not self.model.reserved & set(event.seqs), "a seq is in two events"
            assert len(set(event.seqs)) == len(event.seqs) > 0
            self.model.reserved |= set(event.seqs)
            self.in_flight.append((event, self.now.mono))
            if not late:
                self.commit(-1)

    def commit(self, at: int) -> None:
        event, decided_ms = self.in_flight.pop(at)
        done = self.leases.apply(event)
        if isinstance(event, AckEvent):
            self.log.append(("delete", list(event.seqs)))
        else:
            self.log.append(("event", event))
            if isinstance(event, DeadLetterEvent):
                self.log.append(("delete", list(event.seqs)))
        assert list(done) == self.model.apply(event)
        for seq in done:
            if isinstance(event, ClaimEvent):
                assert seq not in self.told or self.told[seq][2] < decided_ms, "two holders"
                lease_id = event.lease_ids[event.seqs.index(seq)]
                self.told[seq] = (event.node, lease_id, event.deadline.mono)
            elif isinstance(event, ExtendEvent):
                node, lease_id, deadline = self.told[seq]
                assert decided_ms <= deadline, "a lease that was over is extended"
                self.told[seq] = (node, lease_id, event.deadline.mono)
            elif isinstance(event, AckEvent):
                assert decided_ms <= self.told[seq][2], "a lease that was over is acked"
            if not isinstance(event, ClaimEvent | ExtendEvent):
                self.told.pop(seq, None)

    def sweep_first(self, most: int | None) -> None:
        """All, in slices, or only so many."""
        if most is None:
            while self.leases.behind(self.now.mono):
                self.freed(self.leases.sweep(self.now.mono, 2), 2)
            assert not self.over()
        else:
            self.freed(self.leases.sweep(self.now.mono, most), most)

    def over(self) -> set[int]:
        return {seq for seq, job in self.model.jobs.items() if job.is_over(self.now.mono)} - self.model.reserved

    def freed(self, seqs: Sequence[int], most: int) -> None:
        assert len(set(seqs)) == len(seqs) <= most
        assert set(seqs) <= self.over()
        for seq in seqs:
            self.model.jobs[seq].move(FREE)

    def may_act(self, seq: int) -> bool:
        """Whether somebody holds `seq`: swept or not, a lease that is over is nobody's."""
        job = self.model.jobs.get(seq)
        return (
            job is not None and job.state == LEASED and (seq in self.model.reserved or not job.is_over(self.now.mono))
        )

    def live_among(self, seqs: array[int]) -> array[int]:
        assert list(seqs) == sorted(set(seqs))
        return array("Q", [seq for seq in seqs if seq in self.model.live])

    def next_live(self, after: int, limit: int) -> Sequence[int]:
        return sorted(seq for seq in self.model.live if seq > after)[:limit]

    def seqs_of(self, picks: list[int]) -> list[int]:
        """Mostly jobs that are kept, and some that are fresh, gone, or never were."""
        kept = sorted(self.model.jobs)
        return [kept[pick] if pick < len(kept) else pick for pick in picks]

    # -- Rules ---------------------------------------------------------------------------------------------------------

    @initialize()
    def begin(self) -> None:
        self.append(12)

    @rule(n=st.integers(1, 8))
    def append(self, n: int) -> None:
        self.model.append(n)
        self.log.append(("append", n))

    @rule(
        limit=st.integers(1, 8),
        shares=st.lists(st.tuples(NODES, st.integers(1, 4)), min_size=1, max_size=3),
        lease_ms=LEASE_MS,
        late=LATE,
        swept=SWEPT,
    )
    def claim(self, limit: int, shares: list[tuple[str, int]], lease_ms: int, late: bool, swept: int | None) -> None:
        """A cohort shares what there is; what is left over (a byte budget, a client that hung up) is aborted."""
        self.sweep_first(swept)
        selection = self.leases.decide_claim(limit, self.now, self.next_live, self.max_deliveries)
        expected = self.model.claimable(limit, self.max_deliveries)
        assert (list(selection.seqs), list(selection.exhausted), selection.more) == expected
        if selection.exhausted:
            self.decided(ParkEvent(selection.exhausted), late)
        rest = selection.seqs
        for node, most in shares:
            seqs, rest = rest[:most], rest[most:]
            if seqs:
                ids = array("Q", range(self.lease_ids + 1, self.lease_ids + 1 + len(seqs)))
                self.lease_ids += len(seqs)
                self.decided(ClaimEvent(node, seqs, ids, self.now.after(lease_ms)), late)
        self.leases.abort(rest)
        for seq in rest:
            self.model.jobs.setdefault(seq, Job())

    @rule(
        call=st.sampled_from(["ack", "nack", "extend"]),
        node=st.one_of(st.none(), st.none(), NODES),
        picks=PICKS,
        ids=st.sampled_from(["none", "right", "right", "wrong"]),
        ms=st.sampled_from([0, 60, 200]),
        late=LATE,
        swept=SWEPT,
    )
    def call_about_jobs(
        self, call: str, node: str | None, picks: list[int], ids: str, ms: int, late: bool, swept: int | None
    ) -> None:
        """By `node`, or by the holder of the first of the jobs."""
        seqs = self.seqs_of(picks)
        node = node or self.model.jobs.get(seqs[0], Job()).node or "a"
        lease_ids = None
        if ids != "none":
            lease_ids = [self.model.jobs.get(seq, Job()).lease_id + (ids == "wrong") for seq in seqs]
        self.sweep_first(swept)
        decision = (
            self.leases.decide_ack(node, seqs, lease_ids, self.now)
            if call == "ack"
            else self.leases.decide_nack(node, seqs, lease_ids, self.now, ms)
            if call == "nack"
            else self.leases.decide_extend(node, seqs, lease_ids, self.now, ms + 1)
        )
        held = [
            seq
            for seq in dict.fromkeys(seqs)
            if self.may_act(seq) and self.model.jobs[seq].node == node and ids != "wrong"
        ]
        self.expect(decision.event, decision.skipped, decision.busy, seqs, held, late)

    @rule(node=NODES, late=LATE, swept=SWEPT)
    def disconnect(self, node: str, late: bool, swept: int | None) -> None:
        """A connection of `node` ends, and takes all of its leases with it that clients know of."""
        connection = {seq: lease_id for seq, (holder, lease_id, _) in self.told.items() if holder == node}
        self.sweep_first(swept)
        decision = self.leases.decide_release(connection, self.now)
        held = [
            seq
            for seq, lease_id in connection.items()
            if self.may_act(seq) and self.model.jobs[seq].lease_id == lease_id
        ]
        self.expect(decision.event, decision.skipped, decision.busy, list(connection), held, late)

    @precondition(lambda self: any(job.state == PARKED for job in self.model.jobs.values()))
    @rule(picks=PICKS, works=st.booleans(), late=LATE)
    def finish_moves(self, picks: list[int], works: bool, late: bool) -> None:
        parked = list(self.leases.parked())
        assert parked == sorted(seq for seq, job in self.model.jobs.items() if job.state == PARKED)
        seqs = [parked[pick % len(parked)] if pick < 12 else pick for pick in picks]
        decision = self.leases.decide_dead_letter(seqs) if works else self.leases.decide_unpark(seqs)
        right = [seq for seq in dict.fromkeys(seqs) if seq in parked]
        self.expect(decision.event, decision.skipped, decision.busy, seqs, right, late)

    def expect(
        self, event: Event | None, skipped: list[int], busy: list[int], seqs: list[int], right: list[int], late: bool
    ) -> None:
        free = [seq for seq in right if seq not in self.model.reserved]
        assert (list(event.seqs) if event is not None else []) == sorted(free)
        assert sorted(busy) == sorted(set(right) - set(free))
        assert sorted(skipped) == sorted(set(seqs) - set(right))
        self.decided(event, late)

    @precondition(lambda self: self.in_flight)
    @rule(pick=st.integers(0, 9))
    def commit_one(self, pick: int) -> None:
        self.commit(pick % len(self.in_flight))

    @precondition(lambda self: self.in_flight)
    @rule()
    def commit_all(self) -> None:
        while self.in_flight:
            self.commit(0)

    @precondition(lambda self: self.in_flight)
    @rule(pick=st.integers(0, 9))
    def fail_one(self, pick: int) -> None:
        event, _ = self.in_flight.pop(pick % len(self.in_flight))
        self.leases.abort(event.seqs)
        self.model.reserved -= set(event.seqs)
        for seq in set(event.seqs) & self.model.live:
            self.model.jobs.setdefault(seq, Job())

    @precondition(lambda self: self.model.live)
    @rule(picks=st.lists(st.integers(0, 20), min_size=1, max_size=2))
    def delete(self, picks: list[int]) -> None:
        live = sorted(self.model.live)
        seqs = sorted({live[pick % len(live)] for pick in picks})
        leased = [seq for seq in seqs if seq in self.model.jobs and self.model.jobs[seq].state == LEASED]
        self.model.remove(seqs)
        assert list(self.leases.gone(seqs)) == leased
        self.log.append(("delete", seqs))
        for seq in seqs:
            self.told.pop(seq, None)

    @rule(first=st.integers(1, 30), n=st.integers(0, 8))
    def lose(self, first: int, n: int) -> None:
        """Records turn out to be damaged, every other one of some."""
        seqs = sorted(seq for seq in self.model.live if first <= seq <= first + n and seq % 2)
        leased = [seq for seq in seqs if seq in self.model.jobs and self.model.jobs[seq].state == LEASED]
        self.model.remove(seqs)
        assert list(self.leases.forget_dead(first, first + n, self.live_among)) == leased
        self.log.append(("delete", seqs))
        for seq in seqs:
            self.told.pop(seq, None)

    @precondition(lambda self: len(self.model.live) > 6)
    @rule(n=st.integers(1, 9))
    def evict(self, n: int) -> None:
        below = min([*sorted(self.model.live)[n:], self.model.head + 1])
        seqs = sorted(seq for seq in self.model.live if seq < below)
        lease_ids = {seq: job.lease_id for seq, job in self.model.jobs.items() if job.state == LEASED}
        self.model.remove(seqs)
        self.leases.gone_below(below)
        assert all(self.leases.holds(seq, id_) == (seq in self.model.live) for seq, id_ in lease_ids.items())
        self.log.append(("evict", below))
        for seq in seqs:
            self.told.pop(seq, None)

    @rule(ms=st.one_of(st.integers(0, 120), st.sampled_from([1, 99, 100, 101, 5000])))
    def time_passes(self, ms: int) -> None:
        self.now = self.now.after(ms)

    @rule(ms=st.sampled_from([-10_000, -90, 90, 10_000]))
    def the_wall_clock_steps(self, ms: int) -> None:
        self.now = Instant(self.now.mono, self.now.window + ms)

    @rule()
    def sweep(self) -> None:
        assert set(self.leases.sweep(self.now.mono)) == self.over()
        assert not self.leases.behind(self.now.mono)
        self.model.sweep(self.now.mono)
        rest = (
            job.until + (job.state == LEASED)
            for seq, job in self.model.jobs.items()
            if job.state in (LEASED, DELAYED) and seq not in self.model.reserved
        )
        assert self.leases.next_due_ms() == min(rest, default=None)

    @rule(max_deliveries=st.sampled_from([0, 1, 2, 2, 3]))
    def configure(self, max_deliveries: int) -> None:
        self.max_deliveries = max_deliveries

    @rule()
    def take_snapshot(self) -> None:
        model = self.model.restarted(self.now, self.now)
        self.snapshots.append(Snapshot(self.leases.freeze(self.now), model, self.now, len(self.log)))

    @rule(which=st.integers(0, 3))
    def write_snapshot(self, which: int) -> None:
        """Events since it was taken do not change it."""
        snapshot = self.snapshots[-1 - which % len(self.snapshots)]
        assert read_dump(snapshot.frozen.dump(), snapshot.taken) == snapshot.model.jobs

    @rule(
        which=st.integers(0, 3),
        lost=st.sampled_from([0, 0, 1, 2, 4, 12]),
        mono=st.sampled_from([0, 5_000_000]),
        wall_ms=st.sampled_from([0, 50, 500, -300, -(10**12)]),
        gone_is_told=st.booleans(),
    )
    def restart(self, which: int, lost: int, mono: int, wall_ms: int, gone_is_told: bool) -> None:
        """From a snapshot, and the log after it but for its end. The clocks are others."""
        snapshot = self.snapshots[-1 - which % len(self.snapshots)]
        del self.log[max(snapshot.position, len(self.log) - lost) :]
        self.snapshots = [it for it in self.snapshots if it.position <= len(self.log)]
        self.now = Instant(mono, max(EPOCH_FLOOR, self.now.window + wall_ms))
        self.in_flight.clear()
        self.leases = Leases.load(cbor2.loads(cbor2.dumps(snapshot.frozen.dump(), canonical=True)), self.now)
        self.model = snapshot.model.restarted(snapshot.taken, self.now)
        for kind, value in self.log[snapshot.position :]:
            self.replay(kind, value, gone_is_told)
            self.leases.check()
        self.leases.reconcile(self.live_among)
        # Of what clients were told, what has survived; for the rest see `it_is_what_the_model_says`.
        leased = [(seq, job) for seq, job in self.model.jobs.items() if job.state == LEASED]
        self.told = {seq: (job.node, job.lease_id, job.until) for seq, job in leased}

    def replay(self, kind: str, value: Any, gone_is_told: bool) -> None:
        if kind == "append":
            self.model.append(value)
        elif kind == "event":
            event = event_from_wire(cbor2.loads(cbor2.dumps(value.to_wire(), canonical=True)), self.now)
            self.leases.apply(event)
            self.model.apply(event)
        elif kind == "delete":
            self.model.remove(value)
            if gone_is_told:
                self.leases.gone(value)
        else:
            self.model.remove([seq for seq in self.model.live if seq < value])
            if gone_is_told:
                self.leases.gone_below(value)

    # -- What must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def it_is_consistent(self) -> None:
        self.leases.check()

    @invariant()
    def it_is_what_the_model_says(self) -> None:
        assert self.leases.dead_lettered == self.model.dead_lettered
        assert len(self.leases) == len(self.model.jobs)
        for seq, job in self.model.jobs.items():
            assert self.leases.deliveries(seq) == job.deliveries
            assert self.leases.holds(seq, job.lease_id) == (job.state == LEASED)
        self.looks += 1
        if self.looks % 3 == 0:  # for what is dumped is then shared, and it is not to be shared always
            assert read_dump(self.leases.dump(self.now), self.now) == self.model.jobs

    @invariant()
    def the_counters_add_up(self) -> None:
        states = [job.state for job in self.model.jobs.values()]
        assert self.leases.in_flight == states.count(LEASED)
        assert self.leases.delayed == states.count(DELAYED) + states.count(PARKED)
        fresh = self.model.live - self.model.jobs.keys()
        assert self.leases.ready(len(self.model.live)) == states.count(FREE) + len(fresh)

    def teardown(self) -> None:
        """No job is lost: when all is committed and all time has passed, every live one can be claimed or moved."""
        while self.in_flight:
            self.commit(0)
        self.now = self.now.after(2 * MAX_AHEAD_MS)
        self.leases.sweep(self.now.mono)
        unparked = self.leases.decide_unpark(self.leases.parked()).event
        if unparked is not None:
            self.leases.apply(unparked)
        selection = self.leases.decide_claim(len(self.model.live) + 1, self.now, self.next_live, 0)
        assert list(selection.seqs) == sorted(self.model.live)
        assert not selection.exhausted
        self.leases.check()


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


def step_of_a_life(machine: LeaseMachine, random: Random) -> None:
    """One rule, drawn with weights as in a queue that is worked on."""
    late = random.random() < 0.4
    swept = random.choice([None, None, 0, 1, 2])
    node = random.choice("abc")
    picks = [random.randrange(15) for _ in range(random.randint(1, 5))]
    model = machine.model
    match random.choices(RULES, WEIGHTS)[0]:
        case "append" if len(model.live) < 40:
            machine.append(random.randint(1, 4))
        case "claim":
            shares = [(random.choice("abc"), random.randint(1, 4)) for _ in range(random.randint(1, 3))]
            machine.claim(random.randint(1, 8), shares, random.choice([100, 150, 1000]), late, swept)
        case "call":
            call = random.choice(["ack", "nack", "extend"])
            ids = random.choice(["none", "right", "right", "wrong"])
            who, ms = random.choice([None, None, node]), random.choice([0, 200])
            machine.call_about_jobs(call, who, picks, ids, ms, late, swept)
        case "disconnect":
            machine.disconnect(node, late, swept)
        case "finish moves" if any(job.state == PARKED for job in model.jobs.values()):
            machine.finish_moves(picks, random.random() < 0.5, late)
        case "commit" if machine.in_flight:
            machine.commit_one(random.randrange(9))
        case "fail" if machine.in_flight:
            machine.fail_one(random.randrange(9))
        case "delete" if model.live:
            machine.delete(picks[:2])
        case "lose" if model.live:
            machine.lose(random.choice(sorted(model.live)), random.randint(0, 6))
        case "evict" if len(model.live) > 6:
            machine.evict(random.randint(1, 6))
        case "wait":
            machine.time_passes(random.choice([0, 1, 20, 60, 100, 101]))
        case "step":
            machine.the_wall_clock_steps(random.choice([-90, 90, 10_000]))
        case "sweep":
            machine.sweep()
        case "configure":
            machine.configure(random.choice([0, 2, 3]))
        case "snapshot":
            machine.take_snapshot()
        case "write":
            machine.write_snapshot(random.randrange(4))
        case "restart":
            lost = random.choice([0, 0, 1, 4])
            machine.restart(random.randrange(3), lost, 0, random.choice([0, 50, 500, -300]), late)


RULES, WEIGHTS = zip(
    *{
        "append": 5,
        "claim": 12,
        "call": 16,
        "disconnect": 2,
        "finish moves": 6,
        "commit": 12,
        "fail": 2,
        "delete": 1,
        "lose": 1,
        "evict": 1,
        "wait": 8,
        "step": 1,
        "sweep": 2,
        "configure": 1,
        "snapshot": 2,
        "write": 2,
        "restart": 1,
    }.items(),
    strict=True,
)


@pytest.mark.parametrize("seed", range(6))
def test_the_long_life_of_a_busy_queue(seed: int) -> None:
    """The same rules for many more steps, so that what takes many of them comes about."""
    random = Random(seed)
    machine = LeaseMachine()
    machine.begin()
    for _ in range(400):
        step_of_a_life(machine, random)
        machine.it_is_consistent()
        machine.it_is_what_the_model_says()
        machine.the_counters_add_up()
    machine.teardown()


def read_dump(dump: dict[str, Any], now: Instant) -> dict[int, Job]:
    """The jobs of a dump, as the model keeps them."""
    jobs = {}
    for number, states, *columns, nodes in dump["pages"]:
        seqs = [(number * dump["page"] + slot, state) for slot, state in enumerate(states) if state != ABSENT]
        items = [
            from_little_endian(code, column) or [0] * len(seqs) for code, column in zip("IqQH", columns, strict=True)
        ]
        for (seq, state), deliveries, due_ms, lease_id, holder in zip(seqs, *items, strict=True):
            job = jobs[seq] = Job(state, deliveries, lease_id=lease_id)
            if state in (LEASED, DELAYED):
                job.until = due_ms - (state == LEASED) + dump["to_epoch_ms"] - now.window + now.mono
            if state == LEASED:
                job.node = nodes[holder]
    return jobs
