"""An event with a deadline."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from topics.runtime.wakeup import Wakeup

pytestmark = pytest.mark.trio


@asynccontextmanager
async def running() -> AsyncIterator[Wakeup]:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wakeup.run)
        yield wakeup
        wakeup.close()


async def waited(wakeup: Wakeup, seconds: float) -> float:
    """How long a wait takes that begins now."""
    began = trio.current_time()
    wakeup.clear()
    await wakeup.wait(seconds)
    return trio.current_time() - began


async def test_a_wait_ends_at_its_deadline(autojump_clock: Any) -> None:
    async with running() as wakeup:
        assert [await waited(wakeup, seconds) for seconds in (3.0, 0.5, 7.0, 0.0)] == [3.0, 0.5, 7.0, 0.0]


async def test_a_wait_ends_when_it_is_told_to(autojump_clock: Any) -> None:
    async with running() as wakeup, trio.open_nursery() as nursery:

        async def tell() -> None:
            await trio.sleep(2)
            wakeup.set()

        nursery.start_soon(tell)
        assert await waited(wakeup, math.inf) == 2.0
        await wakeup.wait(math.inf)
        assert trio.current_time() % 1 == 0, "as long as it is not cleared, nobody waits"


async def test_the_earliest_deadline_counts_and_a_later_one_is_not_forgotten(autojump_clock: Any) -> None:
    async with running() as wakeup, trio.open_nursery() as nursery:

        async def tell() -> None:
            await trio.sleep(1)
            wakeup.set()

        nursery.start_soon(tell)
        assert await waited(wakeup, 5) == 1.0
        assert await waited(wakeup, 20) == 4.0, "the deadline before is still there, and harmless"
        assert await waited(wakeup, 16) == 16.0
        assert await waited(wakeup, 30) == 30.0


async def test_a_deadline_before_it_runs_is_kept(autojump_clock: Any) -> None:
    wakeup = Wakeup()
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            assert await waited(wakeup, 3) == 3.0
            wakeup.close()

        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked(0.0)
        nursery.start_soon(wakeup.run)


async def test_a_wait_that_is_cancelled_leaves_nothing_behind(autojump_clock: Any) -> None:
    async with running() as wakeup:
        with trio.move_on_after(1) as scope:
            await waited(wakeup, 10)
        assert scope.cancelled_caught
        assert await waited(wakeup, 2) == 2.0


async def test_it_ends_with_its_nursery(autojump_clock: Any) -> None:
    with trio.move_on_after(5) as scope:
        async with running() as wakeup:
            await waited(wakeup, math.inf)
    assert scope.cancelled_caught
