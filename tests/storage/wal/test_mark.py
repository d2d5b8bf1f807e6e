"""Marks: places in the queue that are known in the log once they are synced, so that the log of all shards can be
copied up to one moment (`docs/design/bucket.md` 3)."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from tests.simulation.disk import Fault, SimFs
from tests.storage.wal.test_shard_writer import Batch, Shard, idle, running
from topics.errors import ApiError
from topics.storage.wal.batches import LogMark
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_files import LogPosition

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("each_way")]


def seqs_before(shard: Shard, mark: LogMark) -> list[int]:
    """The seqs of the records that are in front of the place of a mark, which is between two frames."""
    assert mark.position is not None
    found = []
    for file, (_, frames) in zip(shard.files.of_shard(0), shard.log(durable=True), strict=True):
        at = file.head.first
        for frame in frames:
            at += frame.length
            if LogPosition(file.ordinal, at) <= mark.position and frame.type == FrameType.APPEND:
                found.append(frame.seq)
    return found


async def test_a_mark_is_behind_what_was_queued_before_it_and_in_front_of_the_rest(autojump_clock: Any) -> None:
    async with running() as shard:
        marks = []
        for seq in range(1, 120):
            if seq % 11 == 0:
                marks.append((seq, shard.writer.mark()))
            shard.writer.submit(Batch(seq, size=seq * 3, sync=seq % 13 == 0))
            if seq % 7 == 0:
                await trio.sleep(0.03)
        for seq, mark in marks:
            await mark.wait_synced()
            assert seqs_before(shard, mark) == list(range(1, seq))
        assert len(shard.files.of_shard(0)) > 3, "and over rotations"


async def test_a_mark_behind_a_vouching_frame_is_behind_its_batch(autojump_clock: Any) -> None:
    async with running() as shard:
        shard.writer.submit(Batch(1, sync=True))
        await trio.sleep(0.001)
        shard.writer.submit(second := Batch(2))
        mark = shard.writer.mark()
        await mark.wait_synced()
        assert second.at is not None
        assert mark.position == (second.at[0], second.at[1] + second.size)
        assert FrameType.SYNCED in shard.kinds()
        assert "synced 2" in second.diary


async def test_nothing_is_written_or_synced_for_marks_of_an_idle_shard(autojump_clock: Any) -> None:
    async with running() as shard:
        shard.writer.submit(Batch(1))
        await trio.sleep(1)
        before = len(shard.ops("pwrite", "fdatasync"))
        marks = [shard.writer.mark() for _ in range(3)]
        for mark in marks:
            await mark.wait_synced()
        assert {mark.position for mark in marks} == {shard.writer.synced_position()[0]}
        await trio.sleep(1)
        assert len(shard.ops("pwrite", "fdatasync")) == before


async def test_a_mark_costs_at_most_one_sync_of_what_is_written(autojump_clock: Any) -> None:
    async with running(sync_tick_ms=60_000) as shard:
        shard.writer.submit(batch := Batch(1))
        await idle()
        assert batch.diary == ["written 1"]
        syncs = len(shard.ops("fdatasync"))
        mark = shard.writer.mark()
        await mark.wait_synced()
        assert len(shard.ops("fdatasync")) == syncs + 1
        assert batch.diary == ["written 1", "synced 1"]
        assert seqs_before(shard, mark) == [1]


async def test_marks_around_cuts_are_in_the_files_that_the_cuts_have_begun(autojump_clock: Any) -> None:
    async with running() as shard:
        shard.writer.submit(Batch(1))
        before, cut, after = shard.writer.mark(), shard.writer.cut(), shard.writer.mark()
        shard.writer.submit(Batch(2))
        await after.wait_synced()
        assert before.position is not None
        assert before.position.ordinal < cut.ordinal
        assert after.position == (cut.ordinal, shard.writer.file.head.first)
        assert seqs_before(shard, before) == seqs_before(shard, after) == [1]


async def test_a_failed_shard_fails_its_marks_and_stays_at_its_last_synced_position(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs, stop=False) as shard:
        shard.writer.submit(Batch(1, sync=True))
        await trio.sleep(1)
        synced = shard.writer.synced_position()[0]
        fs.inject(Fault(name="fdatasync", path="*.log", error=errno.EIO))
        shard.writer.submit(Batch(2))
        mark = shard.writer.mark()
        with pytest.raises(ApiError):
            await mark.wait_synced()
        assert mark.position is None
        assert shard.writer.synced_position()[0] == synced
        with pytest.raises(ApiError):
            shard.writer.mark()


async def test_without_room_a_mark_with_nothing_before_it_is_reached_and_others_are_refused(
    autojump_clock: Any,
) -> None:
    fs = SimFs()
    async with running(fs=fs, stop=False) as shard:
        shard.writer.submit(Batch(1))
        await trio.sleep(1)
        synced = shard.writer.synced_position()[0]
        fs.inject(Fault(name="preallocate", path="*", error=errno.ENOSPC, times=None))
        first = shard.writer.mark()
        shard.writer.submit(Batch(2, size=3 * 4096))
        second = shard.writer.mark()
        await first.wait_synced()
        assert first.position == synced
        with pytest.raises(ApiError):
            await second.wait_synced()
        third = shard.writer.mark()
        with pytest.raises(ApiError):
            await third.wait_synced()
        assert shard.writer.synced_position()[0] == synced


async def test_a_shard_that_is_fenced_while_it_syncs_for_a_mark_refuses_it(autojump_clock: Any) -> None:
    """The daemon has lost its lease meanwhile."""
    async with running(sync_tick_ms=60_000) as shard:
        shard.writer.submit(Batch(1))
        await idle()
        refusal = ApiError("not_owner", "another process may own the data")
        shard.fs.subscribe(lambda op: shard.writer.fence(refusal) if op.name == "fdatasync" else None)
        one = shard.writer.mark()
        with pytest.raises(ApiError, match="not_owner"):
            await one.wait_synced()
        with pytest.raises(ApiError, match="not_owner"):
            shard.writer.submit(Batch(2))
