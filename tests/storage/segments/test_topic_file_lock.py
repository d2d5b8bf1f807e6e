"""The lock of a topic's files."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from topics.storage.segments.topic_segments import TopicFileLock

pytestmark = pytest.mark.trio


async def test_it_is_given_to_those_who_wait_in_the_order_of_asking() -> None:
    lock = TopicFileLock()
    order: list[int] = []

    async def wait(number: int) -> None:
        async with lock:
            order.append(number)
            await trio.lowlevel.checkpoint()

    lock.acquire_nowait()
    assert lock.mine
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(wait, number)
            await trio.testing.wait_all_tasks_blocked()
        assert order == []
        lock.release()
    assert order == list(range(5))
    assert not lock.locked()


async def test_it_is_not_free_while_it_is_passed_on() -> None:
    lock = TopicFileLock()
    lock.acquire_nowait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lock.acquire)
        await trio.testing.wait_all_tasks_blocked()
        lock.release()
        assert lock.locked()
        assert not lock.mine
        with pytest.raises(trio.WouldBlock):
            lock.acquire_nowait()


async def test_one_who_no_longer_waits_leaves_nothing_behind() -> None:
    lock = TopicFileLock()
    lock.acquire_nowait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lock.acquire)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    lock.release()
    assert not lock.locked()
    with trio.CancelScope() as scope:
        scope.cancel()
        await lock.acquire()
    assert scope.cancelled_caught
    assert not lock.locked()


async def test_only_its_holder_sees_it_as_its_own() -> None:
    lock = TopicFileLock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lock.acquire)
        await trio.testing.wait_all_tasks_blocked()
        assert lock.locked()
        assert not lock.mine
