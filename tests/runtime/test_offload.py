"""Blocking calls in worker threads."""

from __future__ import annotations

import threading
from functools import partial

import pytest
import trio
import trio.lowlevel
import trio.testing

from topics.runtime.offload import BUCKET, COLD, HOLDS_DISK, Pool, ThreadOffload

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("kind", list(Pool))
@pytest.mark.parametrize("holds", [True, False])
@pytest.mark.parametrize("end", ["result", "error", "cancelled"])
async def test_the_disk_is_free_unless_a_call_is_under_way_that_may_hold_it(kind: Pool, holds: bool, end: str) -> None:
    offload, begun, go_on = ThreadOffload(dict.fromkeys(Pool, 1)), trio.Event(), threading.Event()

    def call() -> None:
        offload.post(begun.set)
        assert go_on.wait(60)
        if end == "error":
            raise OSError("no")

    async def caller(scope: trio.CancelScope) -> None:
        with scope:
            if end == "error":
                with pytest.raises(OSError, match="no"):
                    await offload.run(kind, call, holds_disk=holds)
            else:
                await offload.run(kind, call, holds_disk=holds)

    scope = trio.CancelScope()
    assert offload.is_disk_free()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(caller, scope)
        await begun.wait()
        before = offload.is_disk_free()
        if end == "cancelled":
            scope.cancel()
            await trio.lowlevel.checkpoint()
        meanwhile = offload.is_disk_free()
        go_on.set()
    assert before == meanwhile == (kind not in HOLDS_DISK or not holds)
    assert offload.is_disk_free()


async def test_a_call_that_waits_for_a_thread_counts_already() -> None:
    """It may begin while the loop is busy with a write."""
    offload, go_on = ThreadOffload(dict.fromkeys(Pool, 1)), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(offload.run, Pool.WAL, partial(go_on.wait, 60), holds_disk=False))
        await trio.testing.wait_all_tasks_blocked()
        before = offload.is_disk_free()
        nursery.start_soon(offload.run, Pool.WAL, int)
        await trio.testing.wait_all_tasks_blocked()
        meanwhile = offload.is_disk_free()
        go_on.set()
    assert (before, meanwhile) == (True, False)
    assert offload.is_disk_free()


@pytest.mark.parametrize("kind", list(Pool))
async def test_calls_that_wait_for_a_store_elsewhere_are_no_sign_of_pressure(kind: Pool) -> None:
    offload, go_on = ThreadOffload(dict.fromkeys(Pool, 1)), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(offload.run, kind, partial(go_on.wait, 60))
        await trio.testing.wait_all_tasks_blocked()
        share = offload.busy_share()
        go_on.set()
    assert (share > 0) == (kind not in COLD | BUCKET)
