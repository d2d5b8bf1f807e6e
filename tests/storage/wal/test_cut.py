"""Cuts: all shards go over to new files at one moment, so that what a hold names is written to no more
(`docs/spec/crash.md` 13)."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from tests.simulation.disk import Fault, SimFs
from tests.storage.wal.test_shard_writer import Batch, Shard, running
from topics.errors import ApiError
from topics.storage.wal.frames import FrameType

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("each_way")]


def by_file(shard: Shard) -> list[list[int]]:
    """The seqs in each file."""
    return [[frame.seq for frame in frames if frame.type == FrameType.APPEND] for _, frames in shard.log()]


async def test_what_is_queued_before_a_cut_is_in_finished_files_and_what_comes_later_is_not(
    autojump_clock: Any,
) -> None:
    async with running() as shard:
        batches = [Batch(seq, sync=seq == 2) for seq in range(1, 7)]
        for batch in batches[:3]:
            shard.writer.submit(batch)
        cut = shard.writer.cut()
        for batch in batches[3:5]:
            shard.writer.submit(batch)
        second = shard.writer.cut()
        third = shard.writer.cut()
        shard.writer.submit(batches[5])
        for one in (cut, second, third):
            await one.wait_synced()
        assert by_file(shard)[:2] == [[1, 2, 3], [4, 5]]
        ordinals = [file.ordinal for file in shard.files.of_shard(0)]
        assert cut.ordinal == ordinals[1]
        assert second.ordinal == third.ordinal == ordinals[2]
        # Finished files end in FileEnd, have nothing behind it, and are on the disk.
        for path, frames in shard.log(durable=True)[:2]:
            assert frames[-1].type == FrameType.FILE_END, path
        finished = {path: content for path, content in shard.fs.tree().items() if path in shard.names()[:2]}
        await trio.sleep(1)
        shard.writer.submit(Batch(7, sync=True))
        await trio.sleep(1)
        assert finished.items() <= shard.fs.tree().items(), "a finished file was written to"
    assert shard.seqs() == [1, 2, 3, 4, 5, 6, 7]


async def test_a_cut_right_behind_a_rotation_makes_no_empty_file(autojump_clock: Any) -> None:
    async with running() as shard:
        first = shard.writer.cut()
        await first.wait_synced()
        await trio.sleep(1)
        names = shard.names()
        assert len(names) == 2
        again = shard.writer.cut()
        await again.wait_synced()
        assert (shard.names(), again.ordinal) == (names, first.ordinal)


async def test_cuts_of_several_shards_in_one_step_are_one_moment(autojump_clock: Any) -> None:
    """If one batch refers to another one, a finished file has it only if a finished file has the other one too."""
    async with running() as one, running() as other:
        stop = False
        source: list[Batch] = []

        async def refer() -> None:
            # Each record of the other shard is queued when one of this shard is written.
            while not stop:
                batch = Batch(len(source) + 1)
                source.append(batch)
                one.writer.submit(batch)
                while batch.at is None:  # noqa: ASYNC110
                    await trio.sleep(0.001)
                other.writer.submit(Batch(batch.last_seq))
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(refer)
            for _ in range(10):
                await trio.sleep(0.017)
                cuts = [shard.writer.cut() for shard in (other, one)]
                for cut in cuts:
                    await cut.wait_synced()
                finished = [
                    [
                        seq
                        for file, seqs in zip(shard.files.of_shard(0), by_file(shard), strict=True)
                        for seq in seqs
                        if file.ordinal < cut.ordinal
                    ]
                    for shard, cut in ((one, cuts[1]), (other, cuts[0]))
                ]
                assert set(finished[1]) <= set(finished[0])
            stop = True
        assert len(source) > 20


async def test_no_room_for_the_next_file_is_found_before_the_cut_and_costs_nobody_anything(
    autojump_clock: Any,
) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        shard.writer.submit(Batch(1, sync=True))
        await trio.sleep(1)
        fs.inject(Fault(error=errno.ENOSPC, name="preallocate", times=1))
        with pytest.raises(OSError, match="No space"):
            await shard.writer.prepare_cut()
        assert shard.writer.failed is None
        shard.writer.submit(Batch(2, sync=True))
        await trio.sleep(1)
        await shard.writer.prepare_cut()
        await shard.writer.cut().wait_synced()
    assert shard.seqs() == [1, 2]


async def test_a_cut_fails_with_its_shard(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log"))
        shard.writer.submit(Batch(1))
        cut = shard.writer.cut()
        with pytest.raises(ApiError, match="read-only"):
            await cut.wait_synced()
        with pytest.raises(ApiError, match="read-only"):
            shard.writer.cut()


async def test_a_shard_that_is_fenced_while_it_syncs_for_a_cut_refuses_it(autojump_clock: Any) -> None:
    """The daemon has lost its lease meanwhile."""
    async with running(sync_tick_ms=60_000) as shard:
        shard.writer.submit(Batch(1))
        await trio.sleep(0.001)
        refusal = ApiError("not_owner", "another process may own the data")
        shard.fs.subscribe(lambda op: shard.writer.fence(refusal) if op.name == "fdatasync" else None)
        one = shard.writer.cut()
        with pytest.raises(ApiError, match="not_owner"):
            await one.wait_synced()
        with pytest.raises(ApiError, match="not_owner"):
            shard.writer.submit(Batch(2))
