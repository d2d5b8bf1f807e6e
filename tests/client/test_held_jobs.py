"""What a worker has in hand, without a daemon and without a clock."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topics.client.results import Job
from topics.client.workers.held_jobs import (
    MAX_ERROR_BYTES,
    MAX_PLACES,
    Backoff,
    GiveBack,
    HeldJob,
    HeldJobBatch,
    HeldJobs,
    Nack,
    cut,
)

LEASE_S = 30.0


def job(seq: int, *, lease: str = "a") -> Job:
    raw = msgspec.Raw(b"null")
    return Job(seq=seq, ts=0, raw=raw, lease_id=f"lease_{lease}{seq}", deadline=30_000, deliveries=1)


def hand_of(*seqs: int, places: int = 10) -> tuple[HeldJobs, list[HeldJob]]:
    """A hand that took these jobs at 0."""
    hand = HeldJobs(places)
    hand.lease_s = LEASE_S
    return hand, hand.take([job(seq) for seq in seqs], 0.0)


# How long a job that failed is left alone


@pytest.mark.parametrize("step", [0, 7])
def test_delays_grow_from_the_first_to_the_longest_whatever_chance_takes_off(step: int) -> None:
    backoff = Backoff(first_ms=1000, factor=2, most_ms=60_000, pick=lambda _: step)
    delays = [backoff(deliveries) for deliveries in range(1, 7)]
    assert delays == sorted(set(delays))
    assert delays[0] <= 1000
    assert backoff(7) == backoff(10**18) <= 60_000


def test_chance_takes_off_less_than_a_quarter_in_eight_steps() -> None:
    backoff = Backoff()
    delays = {backoff(1) for _ in range(1000)}
    assert len(delays) == 8
    assert 750 < min(delays) < max(delays) == 1000


def test_each_delay_is_longer_than_any_before_it() -> None:
    longest, shortest = Backoff(pick=lambda _: 0), Backoff(pick=lambda below: below - 1)
    assert all(longest(deliveries) < shortest(deliveries + 1) for deliveries in range(1, 9))


@pytest.mark.parametrize("bad", [(0, 2.0, 10), (1, 1.0, 10), (2, 2.0, 1)])
def test_a_backoff_that_does_not_grow_is_refused(bad: tuple[int, float, int]) -> None:
    with pytest.raises(ValueError, match="backoff"):
        Backoff(*bad)


# Places


@pytest.mark.parametrize("places", [0, -1, MAX_PLACES + 1])
def test_a_number_of_places_that_cannot_be_is_refused(places: int) -> None:
    with pytest.raises(ValueError, match="concurrency"):
        HeldJobs(places)


def test_a_job_takes_its_place_until_the_daemon_has_said_what_became_of_it() -> None:
    hand, (one,) = hand_of(1, places=2)
    assert hand.free == 1
    hand.done(one)
    assert hand.free == 1
    hand.settled(hand.next_call(), [])
    assert hand.free == 2
    assert hand.empty


def test_a_job_that_is_lost_takes_its_place_until_its_handler_has_ended() -> None:
    hand, (one,) = hand_of(1, places=1)
    hand.expire(LEASE_S + 1)
    assert one.job.lost
    assert hand.free == 0
    hand.done(one)
    assert hand.empty
    assert not hand.unsettled
    assert hand.stats.lost == 1


# Acks and nacks


def test_what_is_over_meanwhile_goes_into_the_next_call_in_the_order_of_its_end() -> None:
    hand, (one, two, three) = hand_of(1, 2, 3)
    hand.done(two)
    first = hand.next_call()
    hand.done(three)
    hand.done(one)
    hand.settled(first, [])
    batch = hand.next_call()
    assert first.seqs == [2]
    assert batch.seqs == [3, 1]
    assert batch.lease_ids == ["lease_a3", "lease_a1"]
    assert batch.terms is None


def test_nacks_with_the_same_delay_are_one_call_and_the_oldest_end_comes_first() -> None:
    hand, held = hand_of(1, 2, 3, 4, 5)
    hand.failed(held[0], GiveBack(500))
    hand.done(held[1])
    hand.failed(held[2], GiveBack(700))
    hand.failed(held[3], GiveBack(500))
    hand.done(held[4])
    said = []
    while hand.unsettled:
        batch = hand.next_call()
        said.append((batch.terms, batch.seqs))
        hand.settled(batch, [])
    assert said == [(GiveBack(500), [1, 4]), (None, [2, 5]), (GiveBack(700), [3])]
    assert (hand.stats.acked, hand.stats.nacked) == (2, 3)


def test_nacks_with_different_errors_are_different_calls() -> None:
    hand, held = hand_of(1, 2, 3)
    for one, error in zip(held, ("a", "b", "a"), strict=True):
        hand.failed(one, GiveBack(5, error))
    assert hand.next_call().seqs == [1, 3]


def test_an_error_is_cut_to_what_the_daemon_keeps() -> None:
    assert cut("é" * 3000) == "é" * (MAX_ERROR_BYTES // 2)
    assert cut("x" + "é" * 3000) == "x" + "é" * (MAX_ERROR_BYTES // 2 - 1)
    assert cut("\ud800") == "?"
    assert Nack(None, error="no", dead=True).terms == GiveBack(None, "no", True, True)


def test_a_call_names_no_more_than_it_may() -> None:
    hand, held = hand_of(1, 2, 3)
    hand.most = 2
    for one in held:
        hand.done(one)
    assert hand.next_call().seqs == [1, 2]
    assert [batch.seqs for batch in hand.to_extend()] == [[1, 2], [3]]


def test_a_call_that_failed_is_repeated_with_what_was_over_meanwhile() -> None:
    hand, (one, two) = hand_of(1, 2)
    hand.done(one)
    assert hand.next_call().seqs == [1]
    hand.done(two)
    assert hand.next_call().seqs == [1, 2]


def test_what_an_ack_skips_was_lost() -> None:
    hand, (one, two) = hand_of(1, 2)
    hand.done(one)
    hand.done(two)
    hand.settled(hand.next_call(), [1])
    assert (hand.stats.acked, hand.stats.lost) == (1, 1)
    assert hand.empty


def test_an_answer_about_a_job_that_is_given_up_changes_nothing() -> None:
    hand, (one,) = hand_of(1)
    hand.done(one)
    batch = hand.next_call()
    hand.expire(LEASE_S + 1)
    hand.settled(batch, [])
    assert (hand.stats.acked, hand.stats.lost) == (0, 1)


def test_a_job_that_was_acked_is_not_acked_again() -> None:
    hand, (one, two) = hand_of(1, 2)
    hand.done(one)
    hand.settled(hand.next_call(), [])
    hand.done(two)
    assert hand.next_call().seqs == [2]


def test_a_nacked_job_that_comes_back_before_the_answer_was_nacked() -> None:
    hand, (one,) = hand_of(1)
    hand.failed(one, GiveBack(0))
    batch = hand.next_call()
    (again,) = hand.take([job(1, lease="b")], 1.0)
    hand.settled(batch, [])
    hand.done(again)
    assert hand.next_call().lease_ids == ["lease_b1"]
    assert (hand.stats.nacked, hand.stats.lost) == (1, 0)
    assert not again.job.lost


def test_a_job_that_comes_back_while_its_handler_runs_was_lost() -> None:
    hand, (one,) = hand_of(1)
    (again,) = hand.take([job(1, lease="b")], 1.0)
    assert one.job.lost
    assert not again.job.lost
    assert hand.to_extend()[0].lease_ids == ["lease_b1"]


def test_at_the_end_what_runs_is_given_back_at_once_and_what_is_over_acked() -> None:
    hand, (one, two, three) = hand_of(1, 2, 3)
    hand.done(two)
    hand.failed(three, GiveBack(800))
    hand.give_up()
    said = []
    while hand.unsettled:
        batch = hand.next_call()
        said.append((batch.terms, batch.seqs))
        hand.settled(batch, [])
    assert said == [(None, [2]), (GiveBack(800), [3]), (GiveBack(0, counts=False), [1])], "stopping is no failure"
    assert one.job.lost  # nobody extends it any more


# Leases


def test_an_extension_is_due_after_a_third_of_the_oldest_lease_and_takes_all_along() -> None:
    hand, _ = hand_of(1)
    hand.take([job(2)], 5.0)
    assert hand.extend_at() == 10.0
    (batch,) = hand.to_extend()
    assert batch.seqs == [1, 2]
    hand.extended(batch, [], {1: 41_000, 2: 41_000}, sent=10.0, now=11.0)
    assert hand.extend_at() == 20.0
    assert [held.job.deadline for held in batch.held] == [41_000, 41_000]


def test_nothing_is_due_while_nothing_is_leased() -> None:
    hand, _ = hand_of(1)
    hand.expire(LEASE_S + 1)
    assert hand.extend_at() is None
    assert hand.to_extend() == []


def test_what_waits_for_its_ack_is_extended_too() -> None:
    hand, (one,) = hand_of(1)
    hand.done(one)
    assert hand.to_extend()[0].seqs == [1]


def test_what_an_extension_skips_is_lost() -> None:
    hand, (one, two) = hand_of(1, 2)
    (batch,) = hand.to_extend()
    hand.done(two)
    hand.extended(batch, [1, 2], {}, sent=10.0, now=10.0)
    assert one.job.lost
    assert two.job.lost
    assert not hand.unsettled


def test_an_extension_that_skips_what_is_being_acked_says_nothing() -> None:
    hand, (one,) = hand_of(1)
    (batch,) = hand.to_extend()
    hand.done(one)
    ack = hand.next_call()
    hand.extended(batch, [1], {}, sent=10.0, now=10.0)
    hand.settled(ack, [])
    assert (hand.stats.acked, hand.stats.lost) == (1, 0)


def test_a_lease_is_given_up_one_lease_after_the_last_answer() -> None:
    hand, (one,) = hand_of(1)
    hand.extended(hand.to_extend()[0], [], {}, sent=10.0, now=12.0)
    hand.expire(12.0 + LEASE_S)
    assert not one.job.lost
    hand.expire(12.1 + LEASE_S)
    assert one.job.lost


def test_a_lease_that_may_have_been_extended_is_not_given_up_yet() -> None:
    hand, (one,) = hand_of(1)
    hand.maybe_extended(hand.to_extend()[0], 20.0)
    hand.expire(LEASE_S + 10)
    assert not one.job.lost
    assert hand.extend_at() == 10.0


class Hands(RuleBasedStateMachine):
    """Jobs are claimed, end, are acked, nacked, extended and lost in any order; answers come late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.hand = HeldJobs(5)
        self.hand.lease_s = LEASE_S
        self.now = 0.0
        self.claims = 0
        self.running: list[HeldJob] = []
        self.calls: list[HeldJobBatch] = []
        self.extensions: list[tuple[float, HeldJobBatch]] = []

    @rule(seqs=st.sets(st.integers(1, 8), max_size=5))
    def claim(self, seqs: set[int]) -> None:
        self.claims += 1
        jobs = [job(seq, lease=f"{self.claims}-") for seq in sorted(seqs)[: self.hand.free]]
        self.running += self.hand.take(jobs, self.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), delay_ms=st.sampled_from([None, 0, 500]))
    def end(self, data: st.DataObject, delay_ms: int | None) -> None:
        held = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if delay_ms is None:
            self.hand.done(held)
        else:
            self.hand.failed(held, GiveBack(delay_ms))

    @precondition(lambda self: self.hand.unsettled)
    @rule()
    def say(self) -> None:
        batch = self.hand.next_call()
        self.check(batch)
        self.calls.append(batch)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        batch = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        self.hand.settled(batch, data.draw(st.sets(st.sampled_from(batch.seqs))))

    @rule()
    def extend(self) -> None:
        for batch in self.hand.to_extend():
            self.check(batch)
            self.extensions.append((self.now, batch))

    @precondition(lambda self: self.extensions)
    @rule(data=st.data())
    def extended(self, data: st.DataObject) -> None:
        sent, batch = self.extensions.pop(data.draw(st.integers(0, len(self.extensions) - 1)))
        if data.draw(st.booleans()):
            self.hand.maybe_extended(batch, self.now)
        else:
            self.hand.extended(batch, data.draw(st.sets(st.sampled_from(batch.seqs))), {}, sent, self.now)

    @rule(seconds=st.floats(0, LEASE_S))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.hand.expire(self.now)

    def check(self, batch: HeldJobBatch) -> None:
        assert len(set(batch.seqs)) == len(batch.seqs) > 0
        assert not any(held.job.lost for held in batch.held)

    @invariant()
    def every_job_is_in_hand_or_counted(self) -> None:
        stats, held = self.hand.stats, 5 - self.hand.free
        assert 0 <= held <= 5
        lost = sum(one.job.lost for one in self.running)
        assert stats.claimed == stats.acked + stats.nacked + stats.lost + held - lost
        assert self.hand.empty == (held == 0)


TestHands = Hands.TestCase
TestHands.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
