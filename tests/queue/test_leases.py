"""The lease projection by example: who may claim, who holds, what time does, and what a restart leaves."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterable, Sequence
from itertools import count, islice

import cbor2
import pytest

from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    DeadLetterEvent,
    EnqueueEvent,
    ExtendEvent,
    LeaseEvent,
    NackEvent,
    ParkEvent,
    ReleaseEvent,
    event_from_wire,
)
from topics.queue.leases import MAX_PARKED, Leases, NextLive
from topics.runtime.instant import MAX_AHEAD_MS, Instant

EPOCH = 1_700_000_000_000


def at(ms: int) -> Instant:
    return Instant(ms, EPOCH + ms)


def seqs_of(seqs: Iterable[int]) -> array[int]:
    return array("Q", seqs)


class Queue:
    """A projection over live records 1 to `head`, and the calls of an engine that commits everything at once."""

    def __init__(self, head: int, *, max_deliveries: int = 0) -> None:
        self.leases = Leases()
        self.live = set(range(1, head + 1))
        self.max_deliveries = max_deliveries
        self.lease_id = 0
        self.log: list[LeaseEvent] = []

    def next_live(self, after: int, limit: int) -> Sequence[int]:
        return sorted(seq for seq in self.live if seq > after)[:limit]

    def commit(self, event: LeaseEvent | AckEvent | None) -> list[int]:
        if event is None:
            return []
        if isinstance(event, AckEvent | DeadLetterEvent):
            self.live.difference_update(event.seqs)
        if not isinstance(event, AckEvent):
            self.log.append(event)
        done = self.leases.apply(event)
        self.leases.check()
        self.leases.ready(len(self.live))
        return list(done)

    def claimed_by(self, node: str, seqs: Iterable[int], now: int, lease_ms: int = 100) -> ClaimEvent:
        seqs = seqs_of(seqs)
        ids = seqs_of(range(self.lease_id + 1, self.lease_id + 1 + len(seqs)))
        self.lease_id += len(seqs)
        return ClaimEvent(node, seqs, ids, at(now).after(lease_ms))

    def select(self, limit: int, now: int) -> array[int]:
        selection = self.leases.decide_claim(limit, at(now), self.next_live, self.max_deliveries)
        if selection.exhausted:
            self.commit(ParkEvent(selection.exhausted))
        return selection.seqs

    def claim(self, node: str, limit: int, now: int, lease_ms: int = 100) -> list[int]:
        seqs = self.select(limit, now)
        return self.commit(self.claimed_by(node, seqs, now, lease_ms)) if seqs else []

    def ack(self, node: str, seqs: Sequence[int], now: int, ids: Sequence[int] | None = None) -> list[int]:
        return self.commit(self.leases.decide_ack(node, seqs, ids, at(now)).event)

    def nack(self, node: str, seqs: Sequence[int], now: int, delay_ms: int = 0) -> list[int]:
        return self.commit(self.leases.decide_nack(node, seqs, None, at(now), delay_ms).event)

    def extend(self, node: str, seqs: Sequence[int], now: int, lease_ms: int) -> list[int]:
        return self.commit(self.leases.decide_extend(node, seqs, None, at(now), lease_ms).event)

    def delete(self, *seqs: int) -> list[int]:
        self.live.difference_update(seqs)
        ended = list(self.leases.gone(seqs))
        self.leases.check()
        return ended

    def counts(self, now: int) -> tuple[int, int, int]:
        """Ready, in flight, delayed."""
        self.leases.sweep(now)
        self.leases.check()
        return self.leases.ready(len(self.live)), self.leases.in_flight, self.leases.delayed


# -- Claims ------------------------------------------------------------------------------------------------------------


def test_claims_take_what_was_never_leased_in_order_and_never_twice() -> None:
    queue = Queue(5)
    assert queue.claim("a", 2, 0) == [1, 2]
    assert queue.claim("b", 2, 0) == [3, 4]
    assert queue.claim("c", 2, 0) == [5]
    assert queue.claim("d", 2, 0) == []
    assert queue.counts(0) == (0, 5, 0)


def test_nothing_is_kept_of_what_was_never_leased() -> None:
    queue = Queue(1000)
    queue.claim("a", 3, 0)
    assert len(queue.leases) == 3
    assert queue.counts(0) == (997, 3, 0)


def test_freed_jobs_come_first_the_smallest_seq_before_the_others() -> None:
    queue = Queue(9)
    queue.claim("a", 6, 0)
    queue.nack("a", [5], 1)
    queue.nack("a", [2, 4], 2)
    assert queue.claim("b", 5, 3) == [2, 4, 5, 7, 8]


def test_each_claim_is_a_delivery() -> None:
    queue = Queue(1)
    for delivery in range(1, 4):
        assert queue.leases.deliveries(1) == delivery - 1
        queue.claim("a", 1, 0)
        assert queue.leases.deliveries(1) == delivery
        queue.nack("a", [1], 0)


def test_a_claim_may_take_a_part_of_what_it_was_offered_and_the_rest_is_the_next_ones() -> None:
    queue = Queue(6)
    offered = queue.select(4, 0)
    assert list(offered) == [1, 2, 3, 4]
    queue.commit(queue.claimed_by("a", offered[:1], 0))
    queue.leases.abort(offered[1:])
    assert queue.counts(0) == (5, 1, 0)
    assert queue.claim("b", 4, 0) == [2, 3, 4, 5]
    assert [queue.leases.deliveries(seq) for seq in (1, 2, 5, 6)] == [1, 1, 1, 0]


def test_a_claim_that_finds_columns_missing_has_changed_nothing() -> None:
    queue = Queue(4)
    queue.claim("a", 2, 0)
    queue.nack("a", [2], 0)

    def broken(after: int, limit: int) -> Sequence[int]:
        raise LookupError

    with pytest.raises(LookupError):
        queue.leases.decide_claim(3, at(0), broken, 0)
    queue.leases.check()
    assert queue.claim("b", 3, 0) == [2, 3, 4]


# -- Time --------------------------------------------------------------------------------------------------------------


def test_a_lease_is_over_when_its_deadline_has_passed_not_when_it_is_reached() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0, lease_ms=100)
    assert queue.claim("b", 1, 100) == []
    assert queue.counts(100) == (0, 1, 0)
    assert queue.counts(101) == (1, 0, 0)
    assert queue.claim("b", 1, 101) == [1]


def test_what_comes_after_the_end_of_a_lease_is_skipped() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0, lease_ms=100)
    assert queue.leases.decide_ack("a", [1], None, at(101)).skipped == [1]
    assert queue.nack("a", [1], 101) == []
    assert queue.extend("a", [1], 101, 50) == []


def test_an_ack_at_the_very_deadline_counts() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0, lease_ms=100)
    assert queue.ack("a", [1], 100) == [1]
    assert queue.counts(1000) == (0, 0, 0)


def test_an_extended_lease_runs_from_now_and_may_become_shorter() -> None:
    queue = Queue(2)
    queue.claim("a", 2, 0, lease_ms=100)
    queue.extend("a", [1], 50, 100)
    queue.extend("a", [2], 50, 10)
    assert queue.leases.next_due_ms() == 61
    assert queue.claim("b", 2, 61) == [2]
    assert queue.claim("b", 2, 150) == []
    assert queue.claim("b", 2, 151) == [1]


def test_a_delayed_job_waits_for_its_time_and_counts_as_delayed() -> None:
    queue = Queue(2)
    queue.claim("a", 1, 0)
    queue.nack("a", [1], 10, delay_ms=40)
    assert queue.counts(49) == (1, 0, 1)
    assert queue.claim("b", 2, 49) == [2]
    assert queue.counts(50) == (1, 1, 0)
    assert queue.claim("b", 2, 50) == [1]


def test_the_next_job_to_come_free_by_time_is_known() -> None:
    queue = Queue(3)
    assert queue.leases.next_due_ms() is None
    queue.claim("a", 3, 0, lease_ms=100)
    queue.nack("a", [2], 0, delay_ms=70)
    assert queue.leases.next_due_ms() == 70
    queue.leases.sweep(70)
    assert queue.leases.next_due_ms() == 101
    queue.ack("a", [1, 3], 80)
    assert queue.leases.next_due_ms() is None


def test_a_long_sweep_can_take_pauses() -> None:
    queue = Queue(10)
    for ms in range(10):
        queue.claim("a", 1, ms)
    assert list(queue.leases.sweep(1000, most=3)) == [1, 2, 3]
    assert queue.leases.in_flight == 7
    assert list(queue.leases.sweep(1000)) == [4, 5, 6, 7, 8, 9, 10]


# -- Who holds ---------------------------------------------------------------------------------------------------------


def test_only_its_holder_acks_a_job() -> None:
    queue = Queue(3)
    queue.claim("a", 2, 0)
    decision = queue.leases.decide_ack("b", [1, 2, 3], None, at(0))
    assert (decision.event, decision.skipped, decision.busy) == (None, [1, 2, 3], [])


def test_a_lease_id_fences_an_older_lease_of_the_same_node() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0)
    queue.claim("a", 1, 200)
    assert queue.ack("a", [1], 200, ids=[1]) == []
    assert not queue.leases.holds(1, 1)
    assert queue.leases.holds(1, 2)
    assert queue.ack("a", [1], 200, ids=[2]) == [1]


def test_a_repeated_seq_counts_once() -> None:
    queue = Queue(3)
    queue.claim("a", 2, 0)
    decision = queue.leases.decide_ack("a", [2, 3, 2, 3, 1], None, at(0))
    assert decision.event is not None
    assert (list(decision.event.seqs), decision.skipped) == ([1, 2], [3])


def test_a_repeated_seq_is_held_if_one_of_its_lease_ids_is_right() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0)
    decision = queue.leases.decide_ack("a", [1, 1], [77, 1], at(0))
    assert decision.event is not None
    assert (list(decision.event.seqs), decision.skipped) == ([1], [])


def test_a_closed_connection_gives_back_what_it_still_holds() -> None:
    queue = Queue(4)
    queue.claim("a", 4, 0)  # lease ids 1 to 4
    queue.ack("a", [1], 0)
    queue.nack("a", [2], 0)
    queue.claim("a", 1, 0)  # seq 2 again, not by this connection
    decision = queue.leases.decide_release({1: 1, 2: 2, 3: 3, 4: 4}, at(0))
    assert decision.skipped == [1, 2]
    assert queue.commit(decision.event) == [3, 4]
    assert queue.claim("b", 4, 0) == [3, 4]


# -- Events on their way -----------------------------------------------------------------------------------------------


def test_what_is_being_claimed_is_nobody_elses_and_still_counts_as_ready() -> None:
    queue = Queue(3)
    seqs = queue.select(2, 0)
    assert list(queue.select(3, 0)) == [3]
    assert queue.counts(0) == (3, 0, 0)
    queue.commit(queue.claimed_by("a", seqs, 0))
    assert queue.counts(0) == (1, 2, 0)


def test_a_job_with_an_event_on_its_way_is_busy_for_its_holder() -> None:
    queue = Queue(2)
    queue.claim("a", 2, 0)
    extended = queue.leases.decide_extend("a", [1], None, at(0), 100).event
    decision = queue.leases.decide_ack("a", [1, 2], None, at(0))
    assert decision.event is not None
    assert (list(decision.event.seqs), decision.skipped, decision.busy) == ([2], [], [1])
    queue.commit(extended)
    assert queue.ack("a", [1], 0) == [1]


def test_a_lease_does_not_end_while_its_ack_is_on_its_way() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0, lease_ms=100)
    acked = queue.leases.decide_ack("a", [1], None, at(100)).event
    assert queue.claim("b", 1, 5000) == []
    assert queue.commit(acked) == [1]
    assert queue.counts(5000) == (0, 0, 0)


def test_a_lease_whose_ack_came_to_nothing_is_over_at_once_if_its_deadline_has_passed() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0, lease_ms=100)
    queue.leases.decide_ack("a", [1], None, at(100))
    assert queue.claim("b", 1, 5000) == []
    queue.leases.abort([1])
    assert queue.claim("b", 1, 5000) == [1]


def test_the_claim_of_a_job_that_goes_meanwhile_passes_it_over() -> None:
    queue = Queue(3)
    seqs = queue.select(3, 0)
    queue.delete(2)
    assert queue.commit(queue.claimed_by("a", seqs, 0)) == [1, 3]
    assert queue.counts(0) == (0, 2, 0)


def test_the_aborted_claim_of_a_job_that_went_meanwhile_does_not_bring_it_back() -> None:
    queue = Queue(3)
    seqs = queue.select(3, 0)
    queue.delete(3)
    queue.live -= {1}
    queue.leases.gone_below(2)
    queue.leases.abort(seqs)
    assert queue.claim("a", 3, 0) == [2]


# -- Records that go ---------------------------------------------------------------------------------------------------


def test_a_deleted_record_ends_its_lease_and_a_later_ack_skips_it() -> None:
    queue = Queue(3)
    queue.claim("a", 2, 0)
    assert queue.delete(1, 3) == [1]
    assert queue.counts(0) == (0, 1, 0)
    assert queue.leases.decide_ack("a", [1], None, at(0)).skipped == [1]
    assert queue.claim("b", 3, 0) == []


def test_a_deleted_record_leaves_the_freelist_the_delays_and_the_parked_ones() -> None:
    queue = Queue(3, max_deliveries=1)
    queue.claim("a", 3, 0)
    queue.nack("a", [1, 2], 0)
    queue.nack("a", [3], 0, delay_ms=10)
    assert queue.claim("b", 1, 0) == []  # parks 1 and 2
    assert queue.counts(0) == (0, 0, 3)
    queue.delete(1, 3)
    assert queue.counts(1000) == (0, 0, 1)
    assert list(queue.leases.parked()) == [2]


def test_eviction_takes_everything_below_a_seq() -> None:
    queue = Queue(10)
    queue.claim("a", 6, 0)
    queue.nack("a", [2], 0)
    queue.live -= set(range(1, 8))
    queue.leases.gone_below(8)
    assert not any(queue.leases.holds(seq, seq) for seq in range(1, 8))
    assert len(queue.leases) == 0
    assert queue.counts(0) == (3, 0, 0)
    assert queue.claim("b", 2, 1000) == [8, 9]


def test_eviction_costs_what_it_removes_not_what_is_kept() -> None:
    queue = Queue(0)
    leases = queue.leases
    leases.apply(queue.claimed_by("a", range(1, 100_001), 0))

    def seconds(seqs: Iterable[int]) -> float:
        start = time.thread_time()
        for seq in seqs:
            leases.gone_below(seq)
        return time.thread_time() - start

    # A thousand evictions of one job each; if each looked at what is kept, they would take a minute.
    assert seconds(range(2, 1002)) < 10
    assert leases.in_flight == 99_000


# -- Dead letters ------------------------------------------------------------------------------------------------------


def test_a_job_that_has_had_its_deliveries_is_parked_and_never_claimed() -> None:
    queue = Queue(2, max_deliveries=2)
    for _ in range(2):
        assert queue.claim("a", 1, 0) == [1]
        queue.nack("a", [1], 0)
    assert queue.counts(0) == (2, 0, 0)
    assert queue.claim("a", 2, 0) == [2]
    assert queue.counts(0) == (0, 1, 1)
    assert list(queue.leases.parked()) == [1]
    assert queue.leases.deliveries(1) == 2
    assert queue.claim("a", 2, 10_000) == [2]


def test_without_a_limit_a_job_is_delivered_for_ever() -> None:
    queue = Queue(1, max_deliveries=0)
    for _ in range(50):
        assert queue.claim("a", 1, 0) == [1]
        queue.nack("a", [1], 0)


def test_a_moved_job_is_gone_and_counted() -> None:
    queue = Queue(1, max_deliveries=1)
    queue.claim("a", 1, 0)
    queue.claim("a", 1, 1000)
    decision = queue.leases.decide_dead_letter([1, 2])
    assert decision.skipped == [2]
    assert queue.counts(1000) == (0, 0, 1)
    assert queue.commit(decision.event) == [1]
    assert queue.leases.dead_lettered == 1
    assert queue.counts(1000) == (0, 0, 0)


def test_a_move_that_is_given_up_makes_the_job_claimable_again() -> None:
    queue = Queue(1, max_deliveries=1)
    queue.claim("a", 1, 0)
    queue.claim("a", 1, 1000)
    queue.max_deliveries = 0
    queue.commit(queue.leases.decide_unpark(queue.leases.parked()).event)
    assert queue.claim("a", 1, 1000) == [1]
    assert queue.leases.deliveries(1) == 2


def test_one_claim_parks_only_so_many_and_says_so() -> None:
    queue = Queue(MAX_PARKED + 5, max_deliveries=1)
    queue.claim("a", MAX_PARKED + 4, 0)
    selection = queue.leases.decide_claim(3, at(1000), queue.next_live, 1)
    assert (len(selection.seqs), len(selection.exhausted), selection.more) == (0, MAX_PARKED, True)
    again = queue.leases.decide_claim(3, at(1000), queue.next_live, 1)
    assert (list(again.seqs), len(again.exhausted), again.more) == ([MAX_PARKED + 5], 4, False)


# -- Restarts ----------------------------------------------------------------------------------------------------------


def replayed(events: Iterable[LeaseEvent], now: Instant, leases: Leases | None = None) -> Leases:
    """What a restart at `now` makes of events in frames."""
    leases = leases or Leases()
    for event in events:
        leases.apply(event_from_wire(cbor2.loads(cbor2.dumps(event.to_wire(), canonical=True)), now))
        leases.check()
    return leases


def test_a_replayed_lease_holds_until_the_same_epoch_time_on_another_monotonic_clock() -> None:
    queue = Queue(2)
    queue.claim("a", 2, 0, lease_ms=100)
    queue.nack("a", [2], 0, delay_ms=60)
    leases = replayed(queue.log, Instant(7_000_000, EPOCH + 20))
    assert leases.holds(1, 1)
    assert leases.next_due_ms() == 7_000_040
    assert list(leases.sweep(7_000_080)) == [2]
    assert list(leases.sweep(7_000_081)) == [1]


def test_a_wall_clock_gone_wrong_keeps_no_job_for_longer_than_the_longest_lease() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0)
    leases = replayed(queue.log, Instant(0, 5))  # 1970
    assert leases.next_due_ms() == MAX_AHEAD_MS + 1


def test_a_replayed_claim_ends_the_lease_that_time_had_ended() -> None:
    queue = Queue(1)
    queue.claim("a", 1, 0)
    queue.claim("b", 1, 1000)
    leases = replayed(queue.log, at(1000))
    assert leases.decide_ack("a", [1], None, at(1000)).skipped == [1]
    assert leases.deliveries(1) == 2
    assert leases.in_flight == 1


def test_lost_events_heal_because_their_jobs_are_claimable_again() -> None:
    queue = Queue(6)
    queue.claim("a", 2, 0)
    queue.claim("b", 2, 0)
    queue.nack("a", [1], 0)
    leases = replayed(queue.log[:1], at(0))
    selection = leases.decide_claim(9, at(0), queue.next_live, 0)
    assert list(selection.seqs) == [3, 4, 5, 6]


def test_events_that_do_not_fit_are_passed_over() -> None:
    stray: list[LeaseEvent] = [
        ExtendEvent(seqs_of([4]), at(9)),
        ReleaseEvent(seqs_of([5]), at(9)),
        ParkEvent(seqs_of([6])),
    ]
    leases = replayed(stray, at(0))
    assert (len(leases), leases.in_flight, leases.delayed) == (0, 0, 0)


def test_the_replayed_claim_of_a_record_that_is_known_to_be_gone_is_passed_over() -> None:
    by_one, by_many = Leases(), Leases()
    by_one.gone([1])
    by_many.gone_below(2)
    for leases in (by_one, by_many):
        assert list(leases.apply(Queue(2).claimed_by("a", [1, 2], 0))) == [2]
        leases.check()


def test_a_claim_behind_lost_events_ends_the_parking() -> None:
    queue = Queue(1)
    parked = ParkEvent(seqs_of([1]))
    leases = replayed([queue.claimed_by("a", [1], 0), parked, queue.claimed_by("b", [1], 0)], at(0))
    assert (leases.in_flight, leases.delayed, list(leases.parked())) == (1, 0, [])


def test_jobs_that_replay_never_saw_claimed_are_found_below_those_that_it_did() -> None:
    queue = Queue(6)
    offered = queue.select(2, 0)
    queue.claim("b", 2, 0)  # 3 and 4
    queue.leases.abort(offered)
    leases = replayed(queue.log, at(0))
    selection = leases.decide_claim(9, at(0), queue.next_live, 0)
    assert list(selection.seqs) == [1, 2, 5, 6]


def test_a_replay_ends_with_forgetting_what_is_not_live() -> None:
    queue = Queue(5)
    queue.claim("a", 4, 0)
    queue.ack("a", [1, 3], 0)
    leases = replayed(queue.log, at(0))
    leases.reconcile(lambda seqs: seqs_of(seq for seq in seqs if seq in queue.live))
    leases.check()
    assert (leases.in_flight, leases.ready(len(queue.live))) == (2, 1)
    assert leases.dump(at(0)) == queue.leases.dump(at(0))


def test_the_dead_lettered_are_counted_in_replay_whether_their_records_went_first_or_not() -> None:
    queue = Queue(1, max_deliveries=1)
    queue.claim("a", 1, 0)
    queue.claim("a", 1, 1000)
    leases = replayed(queue.log, at(1000))
    leases.gone([1])
    assert list(leases.apply(DeadLetterEvent(seqs_of([1])))) == []
    assert leases.dead_lettered == 1


def full_queue() -> Queue:
    """Some of everything: two fresh, and one or two in each other state."""
    queue = Queue(10, max_deliveries=1)
    queue.claim("poisoned", 2, 0)
    queue.claim("x", 1, 1000)  # parks 1 and 2
    queue.claim("a", 2, 1000)
    queue.claim("ü", 2, 1000, lease_ms=70)
    queue.nack("a", [4], 1000, delay_ms=500)
    queue.nack("ü", [6], 1000)
    queue.commit(queue.leases.decide_dead_letter([1]).event)
    return queue


def test_a_dump_loads_into_the_same_state() -> None:
    queue = full_queue()
    dump = queue.leases.dump(at(1000))
    again = Leases.load(cbor2.loads(cbor2.dumps(dump, canonical=True)), at(1000))
    again.check()
    assert again.dump(at(1000)) == dump
    leases = Leases.load(dump, Instant(77, EPOCH + 1000))
    leases.check()
    assert (leases.in_flight, leases.delayed, leases.dead_lettered) == (3, 2, 1)
    assert leases.ready(len(queue.live)) == 4
    assert leases.next_due_ms() == 148
    selection = leases.decide_claim(9, Instant(147, EPOCH + 1070), queue.next_live, 0)
    assert list(selection.seqs) == [6, 8, 9, 10]
    assert leases.decide_ack("a", [3], None, Instant(147, EPOCH + 1070)).skipped == [3]
    assert leases.decide_ack("x", [3], None, Instant(147, EPOCH + 1070)).event is not None


def test_a_dump_has_nothing_of_what_is_on_its_way() -> None:
    queue = full_queue()
    before = queue.leases.dump(at(1000))
    queue.leases.decide_claim(2, at(1000), queue.next_live, 0)
    queue.leases.decide_ack("x", [3], None, at(1000))
    queue.leases.decide_unpark([2])
    assert queue.leases.dump(at(1000)) == before


def test_an_empty_projection_dumps_and_loads() -> None:
    leases = Leases.load(Leases().dump(at(0)), at(0))
    leases.check()
    assert len(leases) == 0


# -- Frames ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "event",
    [
        ClaimEvent("näd", seqs_of([1, 2**64 - 1]), seqs_of([0, 2**64 - 1]), at(5)),
        ExtendEvent(seqs_of([3]), at(6)),
        ReleaseEvent(seqs_of([3]), None),
        ReleaseEvent(seqs_of([3, 9]), at(7)),
        ParkEvent(seqs_of([3])),
        DeadLetterEvent(seqs_of([3])),
    ],
)
def test_an_event_is_read_as_it_was_written(event: LeaseEvent) -> None:
    assert event_from_wire(cbor2.loads(cbor2.dumps(event.to_wire(), canonical=True)), at(0)) == event


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"op": "parked"},
        {"op": "parked", "seqs": b""},
        {"op": "parked", "seqs": b"1234567"},
        {"op": "parked", "seqs": bytes(8)},
        {"op": "stolen", "seqs": b"12345678"},
        {"op": "extended", "seqs": b"12345678"},
        {"op": "extended", "seqs": b"12345678", "deadline": "soon"},
        {"op": "claimed", "seqs": b"12345678", "lease_ids": b"", "node": "a", "deadline": 1},
    ],
)
def test_what_no_event_writes_is_refused(value: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"lease event|array|multiple"):
        event_from_wire(value, at(0))


# -- Size --------------------------------------------------------------------------------------------------------------


def endless(after: int, limit: int) -> Sequence[int]:
    return range(after + 1, after + limit + 1)


def work_of(leases: Leases, next_live: NextLive, ids: Iterable[int]) -> float:
    """The best of several times of claiming and acking a few, in seconds of the processor."""
    best = math.inf
    for _ in range(20):
        start = time.thread_time()
        for _ in range(10):
            selection = leases.decide_claim(8, at(10), next_live, 5)
            leases.apply(ClaimEvent("a", selection.seqs, seqs_of(islice(ids, len(selection.seqs))), at(10_000)))
            acked = leases.decide_ack("a", selection.seqs, None, at(10)).event
            assert acked is not None
            leases.apply(acked)
        best = min(best, time.thread_time() - start)
    return best


@pytest.mark.slow
@pytest.mark.parametrize("state", ["leased", "free", "delayed"])
def test_a_claim_costs_the_same_however_many_are_leased_free_or_delayed(state: str) -> None:
    ids = count(1)
    times = []
    for others in (10, 200_000):
        leases = Leases()
        others_seqs = seqs_of(range(1, others + 1))
        leases.apply(ClaimEvent("b", others_seqs, seqs_of(islice(ids, others)), at(1_000_000)))
        if state != "leased":
            leases.apply(ReleaseEvent(others_seqs, None if state == "free" else at(1_000_000)))
        times.append(work_of(leases, endless, ids))
    assert times[1] < 20 * times[0], "it grows with how many there are"


def test_everything_given_back_at_once_is_claimable_in_order() -> None:
    queue = Queue(20_000)
    seqs = queue.select(20_000, 0)
    queue.leases.apply(queue.claimed_by("a", seqs, 0))
    released = queue.leases.decide_nack("a", seqs, None, at(0), 0).event
    assert released is not None
    queue.leases.apply(released)
    queue.leases.check()
    assert list(queue.leases.decide_claim(20_000, at(0), queue.next_live, 0).seqs) == list(range(1, 20_001))


def test_a_job_whose_claims_were_lost_is_not_parked_and_can_be_dumped() -> None:
    leases = Leases()
    leases.apply(EnqueueEvent(seqs_of([1, 2]), seqs_of([0, EPOCH + 5]), bytes([9, 5])))
    leases.apply(ClaimEvent("a", seqs_of([3]), seqs_of([7]), at(100)))
    leases.apply(NackEvent(seqs_of([3]), at(0), array("q", [0]), counts=False))
    assert list(leases.apply(ParkEvent(seqs_of([1, 2, 3])))) == []
    leases.check()
    assert list(leases.parked()) == []
    loaded = Leases.load(cbor2.loads(cbor2.dumps(leases.dump(at(0)))), at(0))
    loaded.check()
    assert loaded.delayed == 1
