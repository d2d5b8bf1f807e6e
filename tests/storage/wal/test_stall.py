"""A shard whose disk refuses what comes before a write of the log does not fail: it waits, and goes on by itself."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from tests.engine.life import HeldOffload, refusal
from tests.simulation.disk import Fault, SimFs
from tests.storage.wal.test_shard_writer import FILE_BYTES, Batch, Shard, idle, running
from topics.errors import ApiError
from topics.runtime.offload import Pool
from topics.storage.wal.batches import MaintenanceBatch, SyncRequest
from topics.storage.wal.frames import FrameType, encode_control
from topics.storage.wal.stall import LONGEST_RETRY_MS
from topics.storage.wal.wal_files import most_bytes

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("each_way")]

BEFORE_ANY_WRITE = [
    ("create", "*next.tmp"),
    ("truncate", "*next.tmp"),
    ("preallocate", "*next.tmp"),
    ("fdatasync", "*next.tmp"),
    ("open", "*next.tmp"),
    ("rename", "*next.tmp"),
]


async def filled(shard: Shard) -> int:
    """Appends until a little less than half of the first file is used; the next seq."""
    seq = 1
    while shard.writer.file.end < FILE_BYTES // 2 - 200:
        batch = Batch(seq, size=100, sync=True)
        shard.writer.submit(batch)
        await trio.sleep(0.1)
        assert batch.diary[-1] == f"synced {seq}"
        seq += 1
    return seq


@pytest.mark.parametrize(("operation", "path"), BEFORE_ANY_WRITE)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE])
async def test_it_goes_on_by_itself(operation: str, path: str, number: int, autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        seq = await filled(shard)
        fault = fs.inject(Fault(error=number, name=operation, path=path, times=None))
        if operation == "rename":
            fs.inject(Fault(error=number, name="open", path="*/wal/0*"))
        batches = [Batch(seq + i, size=FILE_BYTES // 3, sync=True) for i in range(8)]
        for batch in batches:
            shard.writer.submit(batch)
        await trio.sleep(20)
        assert fault.hits > 3
        assert shard.writer.stall.refusal is not None
        assert (shard.writer.stall.refusal.status, shard.writer.stall.refusal.code) == (503, "read_only")
        assert shard.writer.stall.refusal.retry_after_s
        assert shard.figures.read_only == 0, "that is about shards that need a restart"
        last = batches[-1].last_seq
        assert batches[-1].diary == [f"delayed {last}"], "there is no room for it"
        assert shard.writer.failed is None
        assert (await refusal(_admitted(shard))).code == "read_only"
        fs.faults.clear()
        await trio.sleep(LONGEST_RETRY_MS / 1000 + 0.1)
        assert [batch.diary[-2:] for batch in batches] == [[f"written {n}", f"synced {n}"] for n in range(seq, seq + 8)]
        assert shard.writer.stall.refusal is None
        assert await shard.writer.queue.admit(None) == 0.0
        assert shard.failures == []
        assert shard.seqs(durable=True) == list(range(1, seq + 8))
        assert len(shard.names()) > 1
    assert shard.kinds()[-1] == FrameType.CLEAN_STOP
    assert fs.open_files == 0


async def _admitted(shard: Shard) -> None:
    """An append that finds the queue full."""
    shard.writer.queue._bytes += 1 << 40
    try:
        await shard.writer.queue.admit(None)
    finally:
        shard.writer.queue._bytes -= 1 << 40


async def test_a_refusal_that_comes_when_the_log_is_silent_is_tried_again(autojump_clock: Any) -> None:
    """Appends are refused meanwhile, so no batch comes that would wake the writer."""
    fs, offload = SimFs(), HeldOffload()
    async with running(fs=fs, offload=offload) as shard:
        seq = await filled(shard)
        fault = fs.inject(Fault(error=errno.ENOSPC, name="preallocate", path="*next.tmp"))
        offload.hold(Pool.FILES)
        shard.writer.submit(Batch(seq, size=200, sync=True))
        await trio.sleep(10)
        assert shard.writer.stall.refusal is None
        offload.let_go(Pool.FILES)
        await idle()
        assert fault.hits == 1
        assert shard.writer.stall.refusal is not None
        await trio.sleep(LONGEST_RETRY_MS / 1000 + 0.1)
        assert shard.writer.stall.refusal is None


async def test_with_half_a_file_left_appends_are_refused_and_the_rest_goes_on(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        seq = await filled(shard)
        fs.inject(Fault(error=errno.ENOSPC, name="create", path="*next.tmp", times=None))
        shard.writer.submit(Batch(seq, size=200, sync=True))
        await trio.sleep(0.1)
        assert shard.writer.stall.refusal is not None
        control = Batch(seq + 1, size=100, sync=True)  # a deletion, an ack: commits that do not ask for admission
        shard.writer.submit(control)
        await trio.sleep(0.1)
        assert control.diary == [f"written {seq + 1}", f"synced {seq + 1}"]
        assert shard.writer.stall.refusal is not None
        assert len(shard.names()) == 1


async def test_while_there_is_no_next_file_the_current_one_grows_so_far_and_no_further(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        await filled(shard)
        fs.inject(Fault(error=errno.ENOSPC, name="create", path="*next.tmp", times=None))
        batches = [Batch(100 + i, size=200, sync=True) for i in range(60)]
        for batch in batches:
            shard.writer.submit(batch)
        await trio.sleep(10)
        written = [batch for batch in batches if batch.diary and "delayed" not in batch.diary[0]]
        assert FILE_BYTES < shard.writer.file.end <= most_bytes(FILE_BYTES)
        assert written == batches[: len(written)]
        assert len(written) < len(batches)
        fs.faults.clear()
        await trio.sleep(10)
        assert all(batch.diary[-1] == f"synced {batch.last_seq}" for batch in batches)


async def test_what_was_written_before_is_synced_while_it_waits(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        await filled(shard)
        loose = Batch(100)
        shard.writer.submit(loose)
        for name in ("create", "preallocate"):
            fs.inject(Fault(error=errno.ENOSPC, name=name, times=None))
        shard.writer.submit(Batch(101, size=FILE_BYTES))
        await trio.sleep(1)
        assert loose.diary == ["written 100", "synced 100"]
        fs.faults.clear()


async def test_who_asks_only_for_a_sync_is_answered_and_does_not_wait_for_room(autojump_clock: Any) -> None:
    """A checkpoint that waited for room would keep its topics locked, and what it drops is what room is made of."""
    fs = SimFs()
    async with running(fs=fs) as shard:
        await filled(shard)
        loose = Batch(100)
        shard.writer.submit(loose)
        fs.inject(Fault(error=errno.ENOSPC, name="rename", path="*next.tmp", times=None))
        cut = shard.writer.cut()  # the current file is complete then, and nothing can be written
        with trio.fail_after(60), pytest.raises(ApiError, match="no room"):
            await cut.wait_synced()
        assert loose.diary == ["written 100", "synced 100"]
        await trio.sleep(1)
        request = SyncRequest()
        shard.writer.submit(request)
        with trio.fail_after(60):
            await request.wait_synced()
        waiting, behind = Batch(101), SyncRequest()
        shard.writer.submit(waiting)
        shard.writer.submit(behind)
        with trio.fail_after(60), pytest.raises(ApiError, match="no room"):
            await behind.wait_synced()
        assert not waiting.diary
        assert shard.writer.failed is None
        fs.faults.clear()
        await trio.sleep(LONGEST_RETRY_MS / 1000 + 0.1)
        assert waiting.diary == ["written 101", "synced 101"]


async def test_frames_of_maintenance_are_refused_and_never_written(autojump_clock: Any) -> None:
    """They would stand in the way of all that ask for a sync, and be more with each try."""
    fs = SimFs()
    async with running(fs=fs) as shard:
        await filled(shard)
        fs.inject(Fault(error=errno.ENOSPC, name="rename", path="*next.tmp", times=None))
        cut = shard.writer.cut()
        with trio.fail_after(60), pytest.raises(ApiError, match="no room"):
            await cut.wait_synced()
        marks = [
            MaintenanceBatch(encode_control(FrameType.CHECKPOINT_MARK, {}), 1, topic_id=1, wants_sync=sync)
            for sync in (True, False)
        ]
        for mark in marks:
            shard.writer.submit(mark)
        for mark in marks:
            with trio.fail_after(60), pytest.raises(ApiError, match="no room"):
                await mark.wait_synced()
        assert not shard.writer.queue
        assert shard.writer.queue._bytes == 0
        request = SyncRequest()
        shard.writer.submit(request)
        with trio.fail_after(60):
            await request.wait_synced()
        fs.faults.clear()
        await trio.sleep(LONGEST_RETRY_MS / 1000 + 0.1)
        late = MaintenanceBatch(encode_control(FrameType.CHECKPOINT_MARK, {}), 1, topic_id=1, wants_sync=True)
        shard.writer.submit(late)
        with trio.fail_after(60):
            await late.wait_synced()
    assert shard.kinds().count(FrameType.CHECKPOINT_MARK) == 1


async def test_room_is_asked_for_before_the_log_is_written_beyond_its_file(autojump_clock: Any) -> None:
    """A batch that is longer than a file: else the write of the log meets the full disk, and the shard has failed."""
    fs = SimFs()
    async with running(fs=fs) as shard:
        await trio.sleep(1)
        fault = fs.inject(Fault(error=errno.ENOSPC, name="preallocate", path="*.log", times=4))
        batch = Batch(1, size=3 * FILE_BYTES, sync=True)
        shard.writer.submit(batch)
        await trio.sleep(20)
        assert fault.hits == 4
        assert batch.diary == ["written 1", "synced 1"]
        assert shard.failures == []


async def test_another_directory_in_the_place_of_the_shards_gets_no_file(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        seq = await filled(shard)
        fs.rename("/wal", "/elsewhere")
        fs.mkdir("/wal")
        batches = [Batch(seq + i, size=FILE_BYTES // 3, sync=True) for i in range(8)]
        for batch in batches:
            shard.writer.submit(batch)
        await trio.sleep(5)
        assert shard.writer.stall.refusal is not None
        assert fs.listdir("/wal") == []
        fs.rmdir("/wal")
        fs.rename("/elsewhere", "/wal")
        await trio.sleep(5)
        assert all(batch.diary[-1] == f"synced {batch.last_seq}" for batch in batches)
        assert shard.seqs(durable=True) == list(range(1, seq + 8))


@pytest.mark.parametrize("operation", ["create", "rename"])
async def test_a_stop_does_not_wait_and_is_no_failure(operation: str, autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        await filled(shard)
        fs.inject(Fault(error=errno.ENOSPC, name=operation, path="*next.tmp", times=None))
        batch = Batch(100, size=3 * FILE_BYTES)
        shard.writer.submit(batch)
        await trio.sleep(3)
        began = trio.current_time()
        await shard.writer.stop()
        assert trio.current_time() - began < 0.1
        assert batch.diary == ["failed 100"]
        assert shard.failures == []
        assert FrameType.CLEAN_STOP not in shard.kinds()
    assert fs.open_files == 0


async def test_a_rename_that_was_done_and_answered_by_an_error_is_not_done_again(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        seq = await filled(shard)
        fault = fs.inject(Fault(error=errno.EIO, name="rename", path="*next.tmp", applied=True))
        batches = [Batch(seq + i, size=FILE_BYTES // 3, sync=True) for i in range(3)]
        for batch in batches:
            shard.writer.submit(batch)
        await trio.sleep(5)
        assert fault.hits == 1
        assert [batch.diary[-1] for batch in batches] == [f"synced {batch.last_seq}" for batch in batches]
        assert shard.seqs(durable=True) == list(range(1, seq + 3))


@pytest.mark.parametrize("operation", ["create", "truncate", "pwrite", "rename"])
async def test_current_is_for_people_and_may_fail(operation: str, autojump_clock: Any) -> None:
    fs = SimFs()
    fs.inject(Fault(error=errno.ENOSPC, name=operation, path="*CURRENT.tmp", times=None))
    with capture_logs() as logs:
        async with running(fs=fs) as shard:
            for seq in range(1, 60):
                shard.writer.submit(Batch(seq, size=300, sync=True))
                await trio.sleep(0.1)
            assert shard.figures.rotations > 2
            assert shard.failures == []
    assert [line["event"] for line in logs if line["log_level"] != "info"] == ["wal_current_not_written"]
