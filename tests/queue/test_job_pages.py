"""What keeping jobs in pages is for: snapshots of a moment, short steps, nothing that grows; what a dump must be."""

from __future__ import annotations

import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from random import Random
from typing import Any

import cbor2
import pytest

from topics.queue import leases as leases_module
from topics.queue.job_pages import PAGE, JobPage
from topics.queue.lease_events import (
    AckEvent,
    ClaimEvent,
    DeadLetterEvent,
    EnqueueEvent,
    Event,
    ExtendEvent,
    ParkEvent,
    ReleaseEvent,
)
from topics.queue.leases import Leases
from topics.runtime.instant import MAX_AHEAD_MS, Instant

EPOCH = 1_700_000_000_000


def at(ms: int) -> Instant:
    return Instant(ms, EPOCH + ms)


def seqs_of(seqs: Iterable[int]) -> array[int]:
    return array("Q", seqs)


def claimed(seqs: Iterable[int], until: int = 1_000_000, node: str = "a") -> ClaimEvent:
    """Each under its seq as lease id."""
    seqs = seqs_of(seqs)
    return ClaimEvent(node, seqs, seqs, at(until))


def endless(after: int, limit: int) -> Sequence[int]:
    return range(after + 1, after + limit + 1)


def none_live(seqs: array[int]) -> array[int]:
    return seqs_of([])


def leased_upto(n: int, until: int = 1_000_000) -> Leases:
    leases = Leases()
    leases.apply(claimed(range(1, n + 1), until))
    return leases


# -- Pages -------------------------------------------------------------------------------------------------------------


def test_what_spans_pages_is_done_on_all_of_them() -> None:
    leases = Leases()
    last = 3 * PAGE + 1
    everything = leases.decide_claim(last, at(0), endless, 0).seqs
    leases.apply(claimed(everything))
    released = leases.decide_nack("a", everything[1:-1], None, at(0), 0).event
    assert released is not None
    leases.apply(released)
    leases.check()
    assert leases.in_flight == 2
    assert list(leases.decide_claim(last, at(0), endless, 0).seqs) == [*range(2, last), last + 1, last + 2]


def test_what_was_evicted_is_given_back_by_the_sweeps_after_it() -> None:
    leases = leased_upto(600 * PAGE)
    pages = [weakref.ref(column) for page in leases.freeze(at(0)).pages.values() for column in [page.due_ms]]
    leases.gone_below(600 * PAGE)
    for _ in range(3):
        leases.sweep(0, 1)
    assert sum(page() is not None for page in pages) == 1


@pytest.mark.parametrize("below", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE, 10 * PAGE])
def test_eviction_may_end_anywhere_on_a_page(below: int) -> None:
    last = 3 * PAGE
    leases = leased_upto(last)
    leases.gone_below(below)
    leases.check()
    assert leases.in_flight == max(0, last + 1 - below)
    assert not leases.holds(below - 1, below - 1)
    assert leases.holds(below, below) == (below <= last)
    assert not leases.apply(claimed([below - 1]))


def test_eviction_by_a_few_seqs_or_over_a_great_void_costs_nothing() -> None:
    leases = Leases()
    leases.apply(claimed([5, 10**15]))
    leases.gone_below(10**15)
    leases.check()
    assert leases.in_flight == 1
    leases.gone_below(2**63)
    leases.check()
    assert len(leases) == 0


def test_a_page_that_has_lost_its_last_job_leaves_nothing_behind() -> None:
    leases = Leases()
    empty = leases.dump(at(0))
    leases.apply(claimed([1, PAGE, 2 * PAGE]))
    leases.apply(ReleaseEvent(seqs_of([1]), None))
    leases.apply(ReleaseEvent(seqs_of([PAGE]), at(50)))
    leases.gone([1, PAGE, 2 * PAGE])
    leases.check()
    assert leases.next_due_ms() is None
    assert leases.dump(at(0)) == {**empty, "cursor": 1}


def test_a_page_knows_many_nodes_and_forgets_those_that_hold_nothing() -> None:
    leases = Leases()
    for n in range(5 * PAGE):
        leases.apply(claimed([1 + n % 3], node=f"node {n}"))
        leases.check()  # which says how many there may be
    last = leases.decide_ack(f"node {5 * PAGE - 1}", [1, 2, 3], None, at(0))
    assert last.event is not None
    assert len(last.event.seqs) == 1
    [page] = leases.dump(at(0))["pages"]
    assert page[-1] == [f"node {n}" for n in sorted(range(5 * PAGE - 3, 5 * PAGE), key=lambda n: n % 3)]


def test_deliveries_are_counted_for_ever() -> None:
    leases = leased_upto(1)
    dump = leases.dump(at(0))
    dump["pages"][0][2] = b"\xff" * 4
    again = Leases.load(dump, at(0))
    again.apply(claimed([1]))
    again.check()
    assert again.deliveries(1) == 2**32 - 1


def test_extending_again_and_again_makes_nothing_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count()
    next_due = JobPage.next_due

    def counted(page: JobPage) -> int | None:
        next(looks)
        return next_due(page)

    leases = leased_upto(2 * PAGE)
    monkeypatch.setattr(JobPage, "next_due", counted)
    for ms in range(1, 1000):
        leases.apply(ExtendEvent(seqs_of([1 + ms % (2 * PAGE)]), at(1_000_000 - ms if ms % 2 else 2_000_000 + ms)))
        assert not leases.sweep(ms, 10)
    assert next(looks) == 0
    leases.check()  # which says that there is one entry a page


def test_a_page_takes_little_memory() -> None:
    page = JobPage(0).copy(0)
    columns = (page.states, page.deliveries, page.due_ms, page.lease_ids, page.holders)
    assert sum(column.__sizeof__() for column in columns) < PAGE * 25


# -- Time --------------------------------------------------------------------------------------------------------------


def test_a_decision_sweeps_only_so_much_and_the_rest_can_be_swept_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "SWEEP_MOST", 100)
    leases = leased_upto(1000, until=50)
    assert not leases.behind(50)
    assert leases.behind(51)
    leases.decide_ack("a", [1], None, at(51))
    assert leases.in_flight == 900
    steps = 0
    while leases.behind(51):
        assert len(leases.sweep(51, 70)) <= 70
        leases.check()
        steps += 1
    assert 13 <= steps < 20
    assert leases.in_flight == 0


def test_a_lease_that_is_over_is_nobodys_before_it_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "SWEEP_MOST", 1)
    leases = leased_upto(300, until=50)
    assert leases.decide_ack("a", [300], None, at(51)).skipped == [300]
    assert leases.decide_nack("a", [300], [300], at(51), 0).skipped == [300]
    assert leases.decide_extend("a", [300], None, at(51), 10).skipped == [300]
    assert leases.decide_release({300: 300}, at(51)).skipped == [300]
    assert leases.in_flight == 300 - 4


def test_a_lease_with_an_event_on_its_way_is_busy_even_when_it_is_over() -> None:
    leases = leased_upto(3, until=50)
    assert leases.decide_ack("a", [2], None, at(50)).event is not None
    assert leases.decide_ack("a", [1, 2, 3], None, at(51)) == (None, [1, 3], [2])


def test_a_slice_of_a_sweep_examines_few_pages_although_a_job_is_due_on_each() -> None:
    leases = Leases()
    pages = 100
    seqs = seqs_of(range(1, pages * PAGE))
    times = seqs_of(EPOCH + (5 if seq % PAGE == 7 else 900) for seq in seqs)
    leases.apply(EnqueueEvent(seqs, times, bytes([5]) * len(seqs)))
    freed: list[int] = []
    while leases.behind(0, EPOCH + 5):
        step = leases.sweep(0, 2000, EPOCH + 5)
        assert 1 <= len(step) <= 32
        freed += step
        leases.check()
    assert sorted(freed) == [page * PAGE + 7 for page in range(pages)]
    assert leases.next_later_ms() == EPOCH + 900


def test_a_sweep_that_has_much_to_look_at_in_vain_takes_pauses_too() -> None:
    leases = leased_upto(400 * PAGE, until=50)
    leases.apply(ExtendEvent(seqs_of(range(1, 400 * PAGE + 1)), at(5000)))
    due_ms = leases.next_due_ms()
    assert due_ms is not None
    assert due_ms <= 5001
    steps = 0
    while leases.behind(51):
        assert not leases.sweep(51, 2000)
        steps += 1
    assert steps > 3
    assert leases.next_due_ms() == 5001
    assert leases.in_flight == 400 * PAGE


def test_a_claim_that_has_much_to_pass_over_takes_pauses_too() -> None:
    n = 50_000
    leases = leased_upto(n)
    leases.gone(range(1, n, 2))  # so that the cursor of a replay stands before them all
    events = [claimed(range(2, n + 1, 2))]
    again = Leases()
    for event in events:
        again.apply(event)

    def next_live(after: int, limit: int) -> Sequence[int]:
        return [seq for seq in range(after + 1, after + 1 + 2 * limit) if seq > n or seq % 2 == 0][:limit]

    calls = 1
    while (selection := again.decide_claim(1, at(0), next_live, 0)).more:
        assert not selection.seqs
        again.check()
        calls += 1
    assert list(selection.seqs) == [n + 1]
    assert calls == 2


# -- Snapshots ---------------------------------------------------------------------------------------------------------


def some_of_everything() -> Leases:
    leases = Leases()
    leases.apply(claimed(range(1, 2 * PAGE), node="a"))
    leases.apply(claimed(range(2 * PAGE, 3 * PAGE, 3), 70, node="b"))
    leases.apply(ReleaseEvent(seqs_of(range(5, 60, 2)), None))
    leases.apply(ReleaseEvent(seqs_of(range(6, 60, 2)), at(500)))
    leases.apply(ParkEvent(seqs_of(range(60, 90))))
    leases.apply(DeadLetterEvent(seqs_of([61, 62])))
    leases.check()
    return leases


EVENTS: list[Event] = [
    claimed(range(1, 4 * PAGE, 2), node="c"),
    ExtendEvent(seqs_of(range(1, 3 * PAGE)), at(9)),
    ReleaseEvent(seqs_of(range(1, 3 * PAGE, 5)), None),
    ReleaseEvent(seqs_of(range(1, 3 * PAGE, 5)), at(600)),
    ParkEvent(seqs_of(range(1, 3 * PAGE, 7))),
    DeadLetterEvent(seqs_of(range(60, 90))),
    AckEvent(seqs_of(range(1, 3 * PAGE, 2))),
]

CHANGES: list[Callable[[Leases], object]] = [
    *(partial(Leases.apply, event=event) for event in EVENTS),
    lambda leases: leases.sweep(10_000_000, 3),
    lambda leases: leases.sweep(10_000_000),
    lambda leases: leases.gone(range(1, 3 * PAGE, 3)),
    lambda leases: leases.gone_below(PAGE + 3),
    lambda leases: leases.reconcile(none_live),
    lambda leases: leases.forget_dead(3, 2 * PAGE + 1, none_live),
    lambda leases: leases.abort(leases.decide_claim(3 * PAGE, at(0), endless, 0).seqs),
    lambda leases: leases.decide_claim(2 * PAGE, at(20_000_000), endless, 1),
    lambda leases: leases.decide_ack("a", range(1, 300), None, at(0)),
    lambda leases: leases.decide_unpark(leases.parked()),
    lambda leases: leases.next_due_ms(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_frozen_is_dumped_as_it_was_whatever_happens_after(change: Callable[[Leases], object]) -> None:
    leases = some_of_everything()
    before = some_of_everything().dump(at(0))
    frozen, again = leases.freeze(at(0)), leases.freeze(at(0))
    change(leases)
    leases.check()
    assert frozen.dump() == before
    after = leases.dump(at(0))
    change(leases)
    assert again.dump() == before
    loaded = Leases.load(after, at(0))
    loaded.check()
    assert loaded.dump(at(0)) == after


def test_what_is_frozen_can_be_dumped_in_another_thread_while_work_goes_on() -> None:
    leases = leased_upto(100 * PAGE)
    before = leases.dump(at(0))
    frozen = leases.freeze(at(0))
    dumps: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: dumps.extend(frozen.dump() for _ in range(20)))
    thread.start()
    while thread.is_alive():
        leases.apply(ReleaseEvent(seqs_of(range(1, 100 * PAGE, 11)), None))
        leases.apply(claimed(range(1, 100 * PAGE, 11), node="b"))
        leases.freeze(at(0))
    thread.join()
    assert dumps == [before] * 20


def test_the_dump_of_a_lone_job_is_small() -> None:
    leases = Leases()
    leases.apply(claimed([10**12]))
    assert len(cbor2.dumps(leases.dump(at(0)))) < PAGE + 120


def test_times_of_a_dump_are_taken_to_the_clocks_of_another_life() -> None:
    leases = Leases()
    leases.apply(claimed(range(1, PAGE), 100))
    leases.apply(claimed([PAGE], 10**15))
    leases.apply(claimed([PAGE + 1], 300))
    leases.apply(ReleaseEvent(seqs_of([PAGE + 1]), at(10**15)))
    loaded = Leases.load(leases.dump(at(40)), Instant(7_000_000, EPOCH + 50))
    loaded.check()
    assert loaded.next_due_ms() == 7_000_051
    loaded.gone(range(1, PAGE))
    latest = 7_000_000 + MAX_AHEAD_MS
    assert list(loaded.sweep(latest)) == [PAGE + 1]
    assert loaded.next_due_ms() == latest + 1


def test_no_clock_is_too_wrong_to_load() -> None:
    dump = some_of_everything().dump(at(0))
    for epoch in (-(10**30), 0, 10**30):
        loaded = Leases.load({**dump, "to_epoch_ms": epoch}, at(0))
        loaded.check()
        loaded.sweep(MAX_AHEAD_MS + 1)
        assert loaded.in_flight == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda dump: dump.pop("cursor"),
        lambda dump: dump.update(cursor=-1),
        lambda dump: dump.update(cursor=2**64),
        lambda dump: dump.update(cursor="1"),
        lambda dump: dump.update(dead_lettered=-1),
        lambda dump: dump.update(to_epoch_ms=1.5),
        lambda dump: dump.update(page=PAGE * 2),
        lambda dump: dump.update(pages={}),
        lambda dump: dump["pages"].append([]),
        lambda dump: dump["pages"].append(7),
        lambda dump: dump["pages"].reverse(),
        lambda dump: dump["pages"].insert(0, dump["pages"][0]),
        lambda dump: dump["pages"][0].append(b""),
        lambda dump: dump["pages"][0].__setitem__(0, -1),
        lambda dump: dump["pages"][-1].__setitem__(0, 2**64 // PAGE),
        lambda dump: dump["pages"][0].__setitem__(0, 1.0),
        lambda dump: dump["pages"][0].__setitem__(1, bytes(PAGE)),
        lambda dump: dump["pages"][0].__setitem__(1, dump["pages"][0][1][1:]),
        lambda dump: dump["pages"][0].__setitem__(1, b"\x05" + dump["pages"][0][1][1:]),
        lambda dump: dump["pages"][0].__setitem__(1, b"\x01" + dump["pages"][0][1][1:]),
        lambda dump: dump["pages"][0].__setitem__(1, "\x00" * PAGE),
        lambda dump: dump["pages"][0].__setitem__(2, b""),
        lambda dump: dump["pages"][0].__setitem__(3, dump["pages"][0][3][8:]),
        lambda dump: dump["pages"][0].__setitem__(3, b"\x01" * len(dump["pages"][0][3])),
        lambda dump: dump["pages"][0].__setitem__(4, dump["pages"][0][4][:-1]),
        lambda dump: dump["pages"][0].__setitem__(4, b"\x01" * len(dump["pages"][0][4])),
        lambda dump: dump["pages"][-1].__setitem__(5, b"\x01\x00" * (len(dump["pages"][-1][4]) // 8)),
        lambda dump: dump["pages"][-1].__setitem__(5, None),
        lambda dump: dump["pages"][0].__setitem__(6, []),
        lambda dump: dump["pages"][0].__setitem__(6, ["a", "a"]),
        lambda dump: dump["pages"][0].__setitem__(6, [["a"]]),
        lambda dump: dump["pages"][0].__setitem__(6, "a"),
        lambda dump: dump["pages"][0].__setitem__(6, ["x"] * 10**6),
    ],
)
def test_what_cannot_have_come_from_a_dump_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    dump = some_of_everything().dump(at(0))
    change(dump)
    with pytest.raises(ValueError, match=r"dump|multiple"):
        Leases.load(dump, at(0))


def test_a_dump_that_was_tampered_with_is_refused_or_loads_into_something_that_holds() -> None:
    random = Random(1)
    dump = cbor2.dumps(some_of_everything().dump(at(0)))
    refused = 0
    for _ in range(250):
        value = tampered(cbor2.loads(dump), random)
        try:
            loaded = Leases.load(value, at(0))
        except ValueError:
            refused += 1
        else:
            loaded.check()
            loaded.sweep(MAX_AHEAD_MS + 1)
            loaded.decide_claim(3 * PAGE, at(0), endless, 0)
            loaded.check()
            assert read_again(loaded) == loaded.dump(at(0))
    assert 15 < refused < 235


def read_again(leases: Leases) -> dict[str, Any]:
    return Leases.load(leases.dump(at(0)), at(0)).dump(at(0))


def tampered(value: Any, random: Random) -> Any:
    """`value`, somewhere in it something else."""
    match value:
        case dict() if value and random.random() < 0.98:
            key = random.choice(list(value))
            if random.random() < 0.03:
                del value[key]
            else:
                value[key] = tampered(value[key], random)
            return value
        case list() if value and random.random() < 0.95:
            at_ = random.randrange(len(value))
            match random.random():
                case draw if draw < 0.03:
                    del value[at_]
                case draw if draw < 0.06:
                    value.insert(at_, value[random.randrange(len(value))])
                case draw if draw < 0.08:
                    random.shuffle(value)
                case _:
                    value[at_] = tampered(value[at_], random)
            return value
        case bytes() if value and random.random() < 0.95:
            at_ = random.randrange(len(value))
            match random.random():
                case draw if draw < 0.1:
                    return value[:at_]
                case draw if draw < 0.2:
                    return value[:at_] + value[at_ + 8 :]
                case _:
                    bits = bytearray(value)
                    bits[at_] = random.choice([0, 1, 2, 3, 4, 5, 8, 10, 255])
                    return bytes(bits)
    return random.choice(
        [None, -1, 0, 1, 2**31, 2**63, 2**64, 2**70, -(2**80), 1.5, "", "x", b"", b"x" * 8, [], {}, True]
    )


# -- Records that are lost ---------------------------------------------------------------------------------------------


def test_lost_records_are_forgotten_in_their_range_only_and_what_is_on_its_way_passes_them_over() -> None:
    leases = leased_upto(3 * PAGE)
    acked = leases.decide_ack("a", [PAGE, PAGE + 1], None, at(0)).event
    selection = leases.decide_claim(2, at(0), endless, 0)
    asked: list[int] = []

    def live_among(seqs: array[int]) -> array[int]:
        asked.extend(seqs)
        return seqs_of(seq for seq in seqs if seq % 2)

    ended = leases.forget_dead(PAGE, 3 * PAGE + 2, live_among)
    leases.check()
    assert asked == list(range(PAGE, 3 * PAGE + 3))
    assert list(ended) == list(range(PAGE, 3 * PAGE + 1, 2))
    assert leases.holds(PAGE - 2, PAGE - 2)
    assert acked is not None
    assert list(leases.apply(acked)) == [PAGE + 1]
    assert list(leases.apply(claimed(selection.seqs))) == [3 * PAGE + 1]
    leases.check()


def test_what_was_only_about_to_be_claimed_is_among_what_is_lost() -> None:
    leases = Leases()
    selection = leases.decide_claim(3, at(0), endless, 0)
    assert not leases.forget_dead(3, 3, none_live)
    assert list(leases.apply(claimed(selection.seqs))) == [1, 2]
    leases.check()


def test_nothing_has_changed_when_it_is_not_known_what_is_lost() -> None:
    leases = leased_upto(3 * PAGE)
    before = leases.dump(at(0))

    def breaks(seqs: array[int]) -> array[int]:
        raise LookupError

    with pytest.raises(LookupError):
        leases.forget_dead(1, 3 * PAGE, breaks)
    leases.check()
    assert leases.dump(at(0)) == before
    assert not leases.forget_dead(3 * PAGE + 1, 2**64 - 1, breaks)


def test_the_end_of_a_replay_asks_little_by_little_and_for_nothing_twice() -> None:
    n = 20_000
    leases = leased_upto(n)
    answered: list[int] = []
    refused: list[array[int]] = []

    def every_other_time(seqs: array[int]) -> array[int]:
        assert len(seqs) < 5000
        if not refused or refused[-1] != seqs:
            refused.append(seqs)
            raise LookupError
        answered.extend(seqs)
        return seqs_of(seq for seq in seqs if seq % 3)

    while True:
        try:
            leases.reconcile(every_other_time)
        except LookupError:
            leases.check()
        else:
            break
    assert answered == list(range(1, n + 1))
    assert leases.in_flight == n - n // 3
    leases.reconcile(none_live)
    assert len(leases) == 0


# -- Later jobs --------------------------------------------------------------------------------------------------------


def later(leases: Leases, times: dict[int, int]) -> None:
    leases.apply(EnqueueEvent(seqs_of(times), array("Q", times.values()), bytes([5] * len(times))))


def test_a_page_of_jobs_that_were_never_claimed_has_no_columns_of_claims() -> None:
    leases = Leases()
    later(leases, dict.fromkeys(range(1, 2 * PAGE), 1000))
    one, other = (leases._table.at(seq)[0] for seq in (1, PAGE))
    assert one.lease_ids is other.lease_ids
    leases.apply(claimed([1]))
    assert (one.lease_ids[1], one.deliveries[1]) == (1, 1)
    assert (other.lease_ids[1], other.deliveries[1]) == (0, 0)
    frozen = leases.freeze(at(0))
    leases.apply(ReleaseEvent(seqs_of([1]), None))
    leases.apply(claimed([1, PAGE]))
    assert [leases.deliveries(seq) for seq in (1, 2, PAGE, PAGE + 1)] == [2, 0, 1, 0]
    loaded = Leases.load(frozen.dump(), at(0))
    loaded.check()
    loaded.apply(claimed([PAGE]))
    assert [loaded.deliveries(seq) for seq in (1, 2, PAGE, PAGE + 1)] == [1, 0, 1, 0]
    leases.check()


@pytest.mark.parametrize("seed", range(5))
def test_later_jobs_become_free_at_their_times_whatever_else_happens_on_their_page(seed: int) -> None:
    random = Random(seed)
    leases = Leases()
    times = {seq: random.randrange(1, 400) for seq in range(1, 2 * PAGE)}
    later(leases, times)
    gone: set[int] = set()
    for now in range(400):
        freed = set(leases.sweep(0, random.choice((None, 1, 3)), now))
        while leases.behind(0, now):
            freed |= set(leases.sweep(0, 2, now))
        assert freed == {seq for seq, time in times.items() if time == now} - gone
        leases.check()
        some = random.sample(sorted(times), 2)
        match random.randrange(4):
            case 0:
                leases.gone(some)
                gone.update(some)
            case 1:
                leases.apply(claimed(leases.decide_claim(2, Instant(0, 0, now), endless, 0).seqs))
            case 2:
                leases.freeze(at(0))
        leases.check()
    assert leases.delayed == 0


def test_what_is_dropped_below_a_floor_is_not_due_any_more() -> None:
    leases = Leases()
    later(leases, {seq: 10 + seq for seq in range(1, 2 * PAGE)})
    assert list(leases.sweep(0, None, 11)) == [1]
    leases.gone_below(PAGE + 5)
    leases.check()
    assert list(leases.sweep(0, None, 10 + PAGE + 5)) == [PAGE + 5]
