"""Puts are decided also if answers are lost: the object is the caller's, or the caller is told that it is not."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.bucket.simulated_objects import SIM_FAULTS, SimFault, SimObjects, given_faults, random_faults
from tests.everything import EVERYTHING, slow_after
from tests.simulation.offload import InlineOffload
from topics.bucket.bounded_objects import BoundedObjects
from topics.bucket.object_store import ObjectMissing, StoreErrorKind
from topics.bucket.settled_puts import (
    FIRST_S,
    GOOD,
    LONGEST_S,
    MAX_READ_BACK,
    PutGivenUp,
    SettledPuts,
    StoreState,
    TakenByOther,
)

FAULTS = st.lists(st.sampled_from((None, *SIM_FAULTS)), max_size=24)


def puts_in(store: SimObjects, seed: int = 0, told: Callable[[StoreState], None] = lambda state: None) -> SettledPuts:
    """As in a daemon, on the loop alone."""
    offload = InlineOffload(seed)
    bounded = BoundedObjects(store, offload, 1.0, most_reads=1000, most_changes=1000)
    return SettledPuts(bounded, offload, told, random.Random(seed))


def run(work: Callable[[], Awaitable[None]]) -> None:
    trio.run(work, clock=trio.testing.MockClock(autojump_threshold=0))


async def outcomes(*puts: Callable[[], Awaitable[str]]) -> list[str | TakenByOther]:
    """What several puts at once have come to."""
    results: dict[int, str | TakenByOther] = {}

    async def one(number: int, put: Callable[[], Awaitable[str]]) -> None:
        try:
            results[number] = await put()
        except TakenByOther as other:
            results[number] = other

    async with trio.open_nursery() as nursery:
        for number, put in enumerate(puts):
            nursery.start_soon(one, number, put)
    return [results[number] for number in range(len(puts))]


def judge(store: SimObjects, datas: Sequence[bytes], results: Sequence[str | TakenByOther]) -> None:
    """Exactly one has made the object, and all others were told whose it is; also when everything has arrived."""
    store.release()
    final = store.objects["owner"]
    for data, result in zip(datas, results, strict=True):
        if data == final:
            assert isinstance(result, str)
        else:
            assert isinstance(result, TakenByOther)
            assert result.data == final
    assert final in datas


@settings(max_examples=60 if EVERYTHING else 15)
@given(FAULTS, st.integers(0, 1000), st.integers(1, 3))
@example([SimFault.HANG, None], 0, 1)
@example([SimFault.AFTER, SimFault.DENIED], 0, 2)
@example([SimFault.WRONG, None], 0, 1)
def test_a_created_object_is_its_creators(faults: list[SimFault | None], seed: int, writers: int) -> None:
    async def work() -> None:
        store = SimObjects(seed, faults=given_faults(faults))
        datas = [b"nonce %d" % number for number in range(writers)]
        puts = [puts_in(store, seed + number) for number in range(writers)]
        results = await outcomes(
            *(lambda put=put, data=data: put.create("owner", data) for put, data in zip(puts, datas, strict=True))
        )
        judge(store, datas, results)
        assert all(put.waiting == 0 and put.state == GOOD for put in puts)

    run(work)


@settings(max_examples=60 if EVERYTHING else 15)
@given(FAULTS, st.integers(0, 1000), st.integers(1, 3))
@example([SimFault.LATE, None, SimFault.HANG, None], 1, 2)
@example([SimFault.WRONG, None], 0, 1)
def test_a_replaced_object_is_that_of_one_who_replaced_it(
    faults: list[SimFault | None], seed: int, writers: int
) -> None:
    async def work() -> None:
        store = SimObjects(seed)
        etag = store.put_new("owner", b"before")
        store.faults = given_faults(faults)
        datas = [b"nonce %d" % number for number in range(writers)]
        puts = [puts_in(store, seed + number) for number in range(writers)]
        results = await outcomes(
            *(
                lambda put=put, data=data: put.replace("owner", data, etag)
                for put, data in zip(puts, datas, strict=True)
            )
        )
        judge(store, datas, results)

    run(work)


@pytest.mark.parametrize("seed", slow_after(2, range(20)))
def test_a_chain_of_renewals_is_never_broken_by_what_arrives_late(seed: int) -> None:
    """An owner renews again and again, over a bad network, while another one creates rounds."""

    async def work() -> None:
        store = SimObjects(seed)
        etag = store.put_new("owner", b"renewal 0")
        store.faults = random_faults(seed, 0.6)
        puts = puts_in(store, seed)
        for number in range(1, 20):
            etag = await puts.replace("owner", b"renewal %d" % number, etag)
            assert store.objects["owner"] == b"renewal %d" % number
            await puts.create(f"rounds/{number:020}", b"round %d" % number)
        store.release()
        assert store.objects == {"owner": b"renewal 19"} | {
            f"rounds/{number:020}": b"round %d" % number for number in range(1, 20)
        }

    run(work)


def test_an_object_of_the_same_bytes_is_ours() -> None:
    async def work() -> None:
        store = SimObjects()
        etag = store.put_new("owner", b"ours")
        assert await puts_in(store).create("owner", b"ours") == etag

    run(work)


def test_an_object_of_other_bytes_is_told_with_them() -> None:
    async def work() -> None:
        store = SimObjects()
        etag = store.put_new("owner", b"theirs")
        with pytest.raises(TakenByOther) as taken:
            await puts_in(store).create("owner", b"ours")
        assert (taken.value.name, taken.value.data, taken.value.etag) == ("owner", b"theirs", etag)
        assert store.calls[-1] == ("get", "owner")

    run(work)


def test_what_is_to_be_replaced_and_is_gone_is_missing() -> None:
    async def work() -> None:
        store = SimObjects()
        etag = store.put_new("owner", b"before")
        store.delete(["owner"])
        with pytest.raises(ObjectMissing):
            await puts_in(store).replace("owner", b"ours", etag)

    run(work)


def test_the_same_bytes_are_put_for_as_long_as_it_takes_with_bounded_waits() -> None:
    async def work() -> None:
        times: list[float] = []

        def faults(op: str, name: str) -> SimFault | None:
            if op == "put_new":
                times.append(trio.current_time())
            return SimFault.THROTTLED if len(times) < 1000 else None

        store = SimObjects(faults=faults)
        puts = puts_in(store)
        await puts.create("owner", b"ours")
        assert puts.attempts == 1000
        assert puts.failures == {StoreErrorKind.THROTTLED: 999}
        waits = [after - before for before, after in pairwise(times)]
        assert FIRST_S / 2 <= waits[0] <= FIRST_S
        assert max(waits) <= LONGEST_S
        assert min(waits[20:]) >= LONGEST_S / 2
        assert len(set(waits[20:])) > 900, "they differ"

    run(work)


def test_a_change_of_state_is_told_once() -> None:
    async def work() -> None:
        told: list[StoreState] = []
        kinds = [SimFault.THROTTLED, SimFault.BEFORE] * 2 + [SimFault.DENIED, SimFault.BEFORE]
        puts = puts_in(SimObjects(faults=given_faults(kinds)), told=told.append)
        await puts.create("owner", b"ours")
        assert [(state.is_waiting, state.kind) for state in told] == [
            (True, StoreErrorKind.THROTTLED),
            (True, StoreErrorKind.DENIED),
            (False, None),
        ]
        assert all(state.sentence for state in told[:-1])
        await puts.create("rounds/1", b"ours")
        assert len(told) == 3

    run(work)


def test_one_that_is_cancelled_while_it_waits_ends_at_once_and_claims_nothing() -> None:
    async def work() -> None:
        told: list[StoreState] = []
        store = SimObjects(faults=lambda op, name: SimFault.BEFORE)
        puts = puts_in(store, told=told.append)
        with trio.move_on_after(1000) as scope:
            await puts.create("owner", b"ours")
        assert scope.cancelled_caught
        assert trio.current_time() - scope.deadline < 0.01
        assert puts.waiting == 0
        assert puts.state.is_waiting, "nobody has seen the store answer"
        store.faults = lambda op, name: None
        await puts.create("owner", b"ours")
        assert [state.is_waiting for state in told] == [True, False]

    run(work)


def test_the_caller_may_stop_it() -> None:
    async def work() -> None:
        store = SimObjects(faults=lambda op, name: SimFault.AFTER if op == "put_new" else SimFault.BEFORE)
        asked = 0

        def keep_on() -> bool:
            nonlocal asked
            asked += 1
            return asked < 10

        with pytest.raises(PutGivenUp, match=r"the put of owner was given up; nobody knows"):
            await puts_in(store).create("owner", b"ours", keep_on)
        assert store.objects == {"owner": b"ours"}

    run(work)


def test_no_more_of_anothers_object_is_read_than_it_may_have() -> None:
    async def work() -> None:
        store = SimObjects()
        store.put_new("owner", bytes(MAX_READ_BACK + 1))
        with pytest.raises(ValueError, match=r"the object owner has \d+ bytes"):
            await puts_in(store).create("owner", b"ours")

    run(work)
