"""Checkpoints, and other work on files, while the disk has no room for the log: they fail and are tried again, and keep
nobody waiting meanwhile."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tests.engine.life import Called, Life, living, settings
from tests.simulation.disk import Fault, SimFs
from topics.errors import ApiError
from topics.storage.files.datadir import DataDir
from topics.storage.snapshots.snapshot import snapshot_numbers
from topics.storage.wal.frames import FrameType
from topics.storage.wal.stall import LONGEST_RETRY_MS

pytestmark = pytest.mark.trio

SMALL = settings(wal_file_bytes=8 << 10, wal_shards=1)


@asynccontextmanager
async def without_room(life: Life) -> AsyncIterator[None]:
    """No file of the log grows and none is made, and the current one has been used up."""
    for name in ("create", "preallocate"):
        life.fs.inject(Fault(error=errno.ENOSPC, name=name, path="*/wal/*", times=None))
    async with trio.open_nursery() as nursery:
        waiting = Called(nursery, lambda: life.append("big", "x" * (16 << 10)))
        await trio.sleep(1)
        assert not waiting.done
        try:
            yield
        finally:
            life.fs.faults.clear()
        await trio.sleep(LONGEST_RETRY_MS / 1000 + 0.1)
        assert await life.seqs("big") == [1]


async def expired(life: Life) -> None:
    """A topic of which a checkpoint has something to say in the log: ttl has taken two records."""
    await life.put("big", durability="fsync")
    await life.put("t", ttl_ms=1000, durability="disk")
    await life.append("t", 1, 2)
    await trio.sleep(2)
    await life.append("t", 3)
    assert await life.seqs("t") == [3]


async def test_a_checkpoint_fails_and_the_next_one_says_it_again(autojump_clock: Any) -> None:
    """Its floors of ttl count as logged when they are, and no sooner."""
    async with living(SMALL) as life:
        await expired(life)
        async with without_room(life):
            for _ in range(2):
                with trio.fail_after(30), pytest.raises(ApiError, match="no room"):
                    await life.compactor.checkpoint()
            with trio.fail_after(30), pytest.raises(ApiError, match="no room"):
                await life.engine.checkpoint(1000)
        assert [payload for _, payload in life.frames(FrameType.EVICT_WATERMARK)] == []
        await life.compactor.checkpoint()
        assert [payload for _, payload in life.frames(FrameType.EVICT_WATERMARK)] == [{"below": 3, "reason": "ttl"}]


async def replace_files(life: Life, topic: Any) -> None:
    async with life.engine.reclaimer._file_holds.replacing(topic):
        raise AssertionError("nothing in the log says so")


async def test_who_replaces_files_gives_them_back(autojump_clock: Any) -> None:
    async with living(SMALL) as life:
        await life.append("t", 1, 2)
        await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        segment_set = topic.segment_set
        assert segment_set is not None
        async with trio.open_nursery() as nursery:
            async with without_room(life):
                replacing = Called(nursery, lambda: replace_files(life, topic))  # it cannot be cancelled
                hold = Called(nursery, lambda: life.engine.reclaimer._file_holds.hold(1000))
                await trio.sleep(30)
                locked, done = segment_set.hot_lock.locked(), hold.done
            assert (locked, done) == (False, True)
            assert "no room" in str(replacing.error)


async def test_a_stop_does_not_wait_and_takes_no_checkpoint_that_the_log_knows_nothing_of(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(SMALL, fs=fs) as life:
        await expired(life)
        async with without_room(life):
            with trio.fail_after(30):
                await life.engine.announce_last_checkpoint()
            assert not await life.compactor.try_checkpoint(marks=False)
            assert snapshot_numbers(fs, DataDir("/data")) == []
