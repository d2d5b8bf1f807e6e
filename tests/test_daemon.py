"""The tree of tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_object import BucketRefused
from topics.daemon import Daemon
from topics.daemon_start import StartRefusal, settle_bucket


def test_a_background_task_that_has_ended_is_not_started_again() -> None:
    calls: list[str] = []

    async def task() -> None:
        await trio.lowlevel.checkpoint()
        calls.append("run")

    async def main() -> None:
        daemon = object.__new__(Daemon)
        with trio.fail_after(10):
            await daemon._restarted("task", task)

    trio.run(main)
    assert calls == ["run"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lease_that_is_lost_during_the_start_is_no_refused_start(is_lost: bool) -> None:
    """A refused start is not tried again (exit code 2); one that has lost the bucket is (exit code 3)."""
    lease = Lease(6000, 0, lambda: 0)
    if is_lost:
        lease.lose("another daemon was faster")
    archive: Any = SimpleNamespace()

    async def refused() -> None:
        raise BucketRefused("it is not this daemon's")

    archive.settle_start = refused
    if is_lost:
        trio.run(settle_bucket, archive, lease)
    else:
        with pytest.raises(StartRefusal):
            trio.run(settle_bucket, archive, lease)
