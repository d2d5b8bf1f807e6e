"""Turns of bulk work: small requests run between two pieces, beside any number of bulk clients. Nothing here measures
time: work is a step of the mock clock."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from topics.runtime.turns import MOST_PASSES, REST_S, TURN_BYTES, Turns

PIECE_S = 0.002
SMALL_S = 0.0002
"""What a step of a small request takes of the loop."""


class Passes(trio.abc.Instrument):
    """Counts the passes of the loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


@pytest.fixture
async def passes() -> Passes:
    counter = Passes()
    trio.lowlevel.add_instrument(counter)
    return counter


@pytest.mark.trio
async def test_the_loop_looks_at_others_twice_between_two_pieces(passes: Passes, mock_clock: MockClock) -> None:
    turns = Turns()
    at: list[int] = []

    async def bulk() -> None:
        for _ in range(5):
            await turns.take()
            at.append(passes.count)
            mock_clock.jump(PIECE_S)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(bulk)
    assert len(at) == 20
    assert all(after - before >= 2 for before, after in pairwise(at)), at


@pytest.mark.trio
async def test_a_small_request_is_answered_between_two_pieces(mock_clock: MockClock) -> None:
    turns = Turns()
    events: list[str] = []
    bulk_may_end = False

    async def bulk() -> None:
        while not bulk_may_end:
            await turns.take()
            events.append("piece")
            mock_clock.jump(PIECE_S)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(bulk)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        for _ in range(10):
            events.append("asked")
            for _ in range(4):  # read, decide, write, answer
                await trio.lowlevel.checkpoint()
                mock_clock.jump(SMALL_S)
            events.append("answered")
        bulk_may_end = True
    text = " ".join(events)
    waits = [part.split(" answered")[0].count("piece") for part in text.split("asked")[1:]]
    assert len(waits) == 10
    assert max(waits) <= 1, text


@pytest.mark.trio
async def test_turns_are_given_in_the_order_in_which_they_were_asked_for(mock_clock: MockClock) -> None:
    turns = Turns()
    asked: list[int] = []
    given: list[int] = []

    async def bulk(number: int) -> None:
        for _ in range(5):
            asked.append(number)
            await turns.take()
            given.append(number)
            mock_clock.jump(PIECE_S)

    await turns.take()
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(bulk, number)
    assert given == asked


@pytest.mark.trio
async def test_whoever_is_cancelled_while_it_waits_holds_up_nobody() -> None:
    turns = Turns()
    asked: list[int] = []
    given: list[int] = []
    scopes = [trio.CancelScope() for _ in range(6)]

    async def bulk(number: int) -> None:
        with scopes[number]:
            asked.append(number)
            await turns.take()
            given.append(number)

    await turns.take()
    async with trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(bulk, number)
        while len(asked) < 6:
            await trio.lowlevel.checkpoint()
        assert given == []
        for place in (0, 2, 5):  # the one that is next, one in the middle, the last
            scopes[asked[place]].cancel()
    assert given == [asked[1], asked[3], asked[4]]
    await turns.take()


@pytest.mark.trio
async def test_a_piece_that_fails_or_waits_holds_up_nobody(mock_clock: MockClock) -> None:
    turns = Turns()
    done = trio.Event()

    async def waits() -> None:
        await turns.take()
        await done.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(waits)
        await wait_all_tasks_blocked()
        with pytest.raises(ZeroDivisionError):
            await turns.each(fails())
        await turns.take()
        done.set()


def fails() -> Generator[None, None, None]:
    yield
    raise ZeroDivisionError


@pytest.mark.trio
async def test_small_requests_without_end_do_not_keep_bulk_from_its_turn(mock_clock: MockClock) -> None:
    turns = Turns()
    pieces = 0

    async def small() -> None:
        while True:
            mock_clock.jump(SMALL_S)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for _ in range(16):
            nursery.start_soon(small)
        began = trio.current_time()
        for _ in range(10):
            await turns.take()
            pieces += 1
        passed = trio.current_time() - began
        nursery.cancel_scope.cancel()
    # A pass of 16 steps is longer than the rest; a turn takes one to be next, and ends with the pass that is too long.
    assert passed <= 10 * (REST_S + 3 * 16 * SMALL_S)
    assert pieces == 10


@pytest.mark.trio
async def test_a_turn_is_given_whatever_the_clock_says(passes: Passes, mock_clock: MockClock) -> None:
    async def busy() -> None:
        while True:
            mock_clock.jump(1e-4)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(busy)
        turns = Turns()
        await turns.take()
        began = passes.count
        await turns.take()
        assert passes.count - began <= MOST_PASSES + 2
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_each_step_has_a_turn_of_its_own_and_one_generator_is_worked_on_at_a_time(passes: Passes) -> None:
    turns = Turns()
    at: list[tuple[str, int]] = []

    def steps(name: str) -> Generator[None, None, str]:
        for _ in range(3):
            at.append((name, passes.count))
            yield
        return name

    async def one(name: str) -> None:
        assert await turns.each(steps(name)) == name

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one, "a")
        nursery.start_soon(one, "b")
    names = [name for name, _ in at]
    assert names in (["a"] * 3 + ["b"] * 3, ["b"] * 3 + ["a"] * 3)
    assert all(after - before >= 2 for (_, before), (_, after) in pairwise(at))


@pytest.mark.trio
async def test_the_steps_behind_a_cancellation_are_not_taken() -> None:
    turns = Turns()
    taken = 0

    def steps() -> Generator[None, None, None]:
        nonlocal taken
        for _ in range(5):
            taken += 1
            if taken == 2:
                scope.cancel()
            yield

    with trio.CancelScope() as scope:
        await turns.each(steps())
    assert taken == 2
    assert await turns.each(answer()) == 42


def answer() -> Generator[None, None, int]:
    yield
    return 42


@pytest.mark.trio
async def test_small_pieces_share_a_turn(passes: Passes) -> None:
    turns = Turns()
    at: list[int] = []
    for _ in range(12):
        await turns.take(TURN_BYTES // 4)
        at.append(passes.count)
    assert [at.count(number) for number in sorted(set(at))] == [4, 4, 4]
    assert at[4] - at[0] >= 2
    assert at[8] - at[4] >= 2


@pytest.mark.trio
async def test_a_small_piece_does_not_overtake_one_that_waits() -> None:
    turns = Turns()
    order: list[str] = []

    async def bulk(name: str, size: int) -> None:
        await turns.take(size)
        order.append(name)

    await turns.take(TURN_BYTES // 2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bulk, "large", TURN_BYTES)
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert order == []
        await bulk("small", 1)
    assert order == ["large", "small"]
