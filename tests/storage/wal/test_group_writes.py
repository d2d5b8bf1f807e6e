"""Which groups are written on the loop, and that nothing else differs from a write in a thread."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.lowlevel
from structlog.testing import capture_logs

from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, Op, SimFs
from tests.simulation.offload import InlineOffload
from tests.storage.wal.test_shard_writer import Batch, idle, running
from topics.runtime.clock import SystemClock
from topics.runtime.offload import HOLDS_DISK, Pool, ThreadOffload
from topics.storage.files.fs import OsFile, OsFs
from topics.storage.wal import group_writes
from topics.storage.wal.frames import FrameType, UnsealedFrames, encode_control
from topics.storage.wal.group_writes import (
    CALM_WRITES,
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    LOOP_BYTES,
    MOST_SLOW,
    GroupWrites,
)
from topics.storage.wal.shard_log import ShardLog
from topics.storage.wal.shard_writer import ShardWriter
from topics.storage.wal.wal_files import WalFiles
from topics.telemetry.figures import WalFigures

pytestmark = pytest.mark.trio

T = TypeVar("T")
FILE_BYTES = 1 << 20


def frame_of(size: int) -> UnsealedFrames:
    """Frames of so many bytes on disk."""
    frame = encode_control(FrameType.SHARD_OPEN, {"x": ""})
    frame = encode_control(FrameType.SHARD_OPEN, {"x": "x" * (size - len(frame) - 2 if size > 300 else 0)})
    return UnsealedFrames(frame.bodies, size)


class Log:
    """A log of one shard, and how its groups are written."""

    def __init__(self, fs: SimFs | None = None) -> None:
        self.fs = SimFs() if fs is None else fs
        self.clock = SimClock()
        self.offload = InlineOffload()
        self.writes = GroupWrites(self.clock, self.offload)
        self.fs.mkdir("/wal")
        self.log = ShardLog(0, "/wal", self.fs, self.clock, FILE_BYTES)
        entered = self.log.create(0)
        self.log.begin(entered)
        self.file = WalFiles().add(0, 0, entered.path, entered.head)
        self.at = entered.head.first

    async def on_loop(self, size: int = 200, *, sync: bool = False, written: Callable[[], None] | None = None) -> bool:
        """Write a group. True if that was done on the loop."""
        before = len(self.offload.calls)
        await self.writes.write(self.log, self.file, [frame_of(size)], self.at, sync, written)
        assert self.fs.ops[-1 - sync].name == "pwrite"
        self.at += size
        return len(self.offload.calls) == before

    def slow(self, ms: float, *, waits: bool = True) -> None:
        """The next write takes so long, because the thread waits or has no core."""

        def wait(_op: Op) -> None:
            self.clock._passed_ns += round(ms * 1e6)
            self.clock._waits += waits

        self.fs.inject(Fault(hook=wait, name="pwrite"))


# -- which groups ------------------------------------------------------------------------------------------------------


async def test_a_small_group_without_a_sync_is_written_on_the_loop(mock_clock: Any) -> None:
    log = Log()
    assert await log.on_loop()
    assert not await log.on_loop(sync=True)


@pytest.mark.parametrize("is_free", [True, False])
async def test_who_waits_for_the_write_alone_is_told_before_the_sync_that_follows_in_a_thread(
    mock_clock: Any, is_free: bool
) -> None:
    log = Log()
    steps: list[str] = []

    class Watched(InlineOffload):
        async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
            steps.append("thread")
            return await super().perform(kind, call)

        def is_disk_free(self) -> bool:
            return is_free

    log.fs.subscribe(lambda op: steps.append(op.name))
    log.writes = GroupWrites(log.clock, Watched())
    await log.writes.write(log.log, log.file, [frame_of(200)], log.at, True, lambda: steps.append("told"))
    assert steps == (
        ["pwrite", "told", "thread", "fdatasync"] if is_free else ["thread", "pwrite", "told", "fdatasync"]
    )


async def test_a_writer_that_is_cancelled_behind_a_write_on_the_loop_learns_of_its_sync(mock_clock: Any) -> None:
    log = Log()
    with trio.CancelScope() as scope:
        await log.writes.write(log.log, log.file, [frame_of(200)], log.at, True, scope.cancel)
    assert [op.name for op in log.fs.ops[-2:]] == ["pwrite", "fdatasync"]


async def test_a_large_group_is_written_in_a_thread(mock_clock: Any) -> None:
    log = Log()
    assert await log.on_loop(LOOP_BYTES)
    assert not await log.on_loop(LOOP_BYTES + 1)


async def test_a_group_for_which_room_has_to_be_allocated_is_written_in_a_thread(mock_clock: Any) -> None:
    log = Log()
    log.at = FILE_BYTES - 100
    assert not await log.on_loop()
    assert "preallocate" in [op.name for op in log.fs.ops[-3:]]


@pytest.mark.parametrize("kind", list(Pool))
@pytest.mark.parametrize("holds", [True, False])
async def test_while_a_call_is_under_way_that_may_hold_the_disk_groups_are_written_in_threads(
    kind: Pool, holds: bool
) -> None:
    log, done = Log(), trio.Event()

    class Slow(InlineOffload):
        async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
            if call is print:
                await done.wait()
            return await super().perform(kind, call)

    log.offload = Slow()
    log.writes = GroupWrites(log.clock, log.offload)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(log.offload.run, kind, print, holds_disk=holds))
        await idle()
        assert await log.on_loop() == (kind not in HOLDS_DISK or not holds)
        done.set()
    assert await log.on_loop()


# -- pauses ------------------------------------------------------------------------------------------------------------


async def test_a_slow_write_on_the_loop_sends_groups_to_threads_for_a_while(mock_clock: Any) -> None:
    log = Log()
    log.slow(2.9)
    assert await log.on_loop()
    log.slow(3.1)
    assert await log.on_loop(), "who is slow is known afterwards only"
    log.clock.advance(FIRST_PAUSE_MS - 1)
    assert not await log.on_loop()
    log.clock.advance(1)
    assert await log.on_loop()


async def test_a_thread_that_had_no_core_to_run_on_pauses_nothing(mock_clock: Any) -> None:
    log = Log()
    log.slow(50, waits=False)
    assert await log.on_loop()
    assert await log.on_loop()


async def test_a_slow_write_in_a_thread_pauses_nothing(mock_clock: Any) -> None:
    log = Log()
    log.slow(50)
    assert not await log.on_loop(sync=True)
    assert await log.on_loop()


async def test_a_pause_is_twice_as_long_as_the_one_shortly_before(mock_clock: Any) -> None:
    log = Log()
    for pause in (FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS):
        log.slow(5)
        assert await log.on_loop()
        log.clock.advance(pause - 1)
        assert not await log.on_loop()
        log.clock.advance(1)
        assert await log.on_loop()


@pytest.mark.parametrize("calm", [True, False])
async def test_a_pause_is_forgotten_after_some_fast_writes_on_the_loop(calm: bool, mock_clock: Any) -> None:
    log = Log()
    log.slow(5)
    assert await log.on_loop()
    for _ in range(CALM_WRITES):
        assert not await log.on_loop(), "those in threads do not count"
    log.clock.advance(FIRST_PAUSE_MS)
    for _ in range(CALM_WRITES if calm else CALM_WRITES - 1):
        assert await log.on_loop()
    log.slow(5)
    assert await log.on_loop()
    log.clock.advance(FIRST_PAUSE_MS)
    assert await log.on_loop() == calm


async def test_a_file_system_that_is_slow_again_and_again_has_one_write_an_hour_on_the_loop(mock_clock: Any) -> None:
    log = Log()
    with capture_logs() as lines:
        for number in range(MOST_SLOW - 1):
            log.slow(5)
            assert await log.on_loop()
            log.clock.advance(FIRST_PAUSE_MS << number)
    for _ in range(3):
        log.slow(5)
        assert await log.on_loop()
        log.clock.advance(LONGEST_PAUSE_MS - 1)
        assert not await log.on_loop()
        log.clock.advance(1)
    for _ in range(CALM_WRITES):
        assert await log.on_loop()
    log.slow(5)
    assert await log.on_loop()
    log.clock.advance(FIRST_PAUSE_MS)
    assert await log.on_loop(), "it is another one now"
    pauses = [line["pause_ms"] for line in lines if line["event"] == "wal_loop_writes_paused"]
    assert pauses == [FIRST_PAUSE_MS << number for number in range(MOST_SLOW - 1)]


async def test_a_write_that_fails_late_pauses_too(mock_clock: Any) -> None:
    log = Log()
    log.slow(5)
    log.fs.faults[-1].error = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        await log.on_loop()
    assert not await log.on_loop()


# -- shards that share a disk ------------------------------------------------------------------------------------------


class Seen(InlineOffload):
    """Threads that take their time, and that know what is under way in them."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.busy = 0.0
        self.under_way = 0
        self.inside = False

    async def run(self, kind: Pool, call: Callable[[], T], *, holds_disk: bool = True) -> T:
        holds = holds_disk and kind in HOLDS_DISK
        self.under_way += holds
        try:
            return await super().run(kind, call, holds_disk=holds_disk)
        finally:
            self.under_way -= holds

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        def mark() -> T:
            self.inside = True
            try:
                return call()
            finally:
                self.inside = False

        with trio.CancelScope(shield=True):
            await trio.sleep(0.001)
        return await super().perform(kind, mark)


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_written_on_the_loop_while_any_shard_syncs_or_allocates(
    seed: int, autojump_clock: Any
) -> None:
    fs, offload, clock = SimFs(), Seen(seed), SimClock()
    writes = GroupWrites(clock, offload)
    counts = {True: 0, False: 0}

    def look(op: Op) -> None:
        if op.name == "pwrite" and op.path.endswith(".log"):
            counts[offload.inside] += 1
            assert offload.inside or not offload.under_way

    shards = []
    for number in range(3):
        fs.mkdir(f"/{number}")
        shard = ShardWriter(
            shard=number,
            directory=f"/{number}",
            fs=fs,
            clock=clock,
            offload=offload,
            writes=writes,
            files=WalFiles(),
            file_bytes=8192,
            backlog_bytes=1 << 40,
            figures=WalFigures(),
            on_failure=lambda number: None,
        )
        shard.create()
        shards.append(shard)
    fs.subscribe(look)
    batches = [Batch(seq, size=seq % 300, sync=seq % 11 == 0) for seq in range(1, 600)]
    async with trio.open_nursery() as nursery:
        for shard in shards:
            await nursery.start(shard.run)
        for batch in batches:
            shards[batch.last_seq % 3].submit(batch)
            await trio.sleep(0.0003 * (batch.last_seq % 5))
        for shard in shards:
            await shard.stop()
    assert all(batch.diary[-1] == f"synced {batch.last_seq}" for batch in batches)
    assert min(counts.values()) > 50, counts


async def test_threads_of_the_system_know_when_the_disk_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with real files and threads: no write of the loop begins while a sync is under way anywhere."""
    syncs, on_loop, in_threads, mutex = [0], [0], [0], threading.Lock()
    loop, pwrite, fdatasync = threading.get_ident(), OsFile.pwrite, OsFile.fdatasync

    def note_sync(file: OsFile) -> None:
        with mutex:
            syncs[0] += 1
        fdatasync(file)
        with mutex:
            syncs[0] -= 1

    def note_write(file: OsFile, data: bytes | memoryview, offset: int) -> int:
        if threading.get_ident() == loop:
            on_loop[0] += 1
            assert not syncs[0]
        else:
            in_threads[0] += 1
        return pwrite(file, data, offset)

    clock, offload = SystemClock(), ThreadOffload(dict.fromkeys(Pool, 4))
    writes = GroupWrites(clock, offload)
    shards = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        shard = ShardWriter(
            shard=number,
            directory=str(tmp_path / str(number)),
            fs=OsFs(),
            clock=clock,
            offload=offload,
            writes=writes,
            files=WalFiles(),
            file_bytes=FILE_BYTES,
            backlog_bytes=1 << 40,
            figures=WalFigures(),
            on_failure=lambda number: None,
        )
        shard.create()
        shards.append(shard)
    monkeypatch.setattr(group_writes, "SLOW_NS", 1 << 62)  # the machine may be busy
    monkeypatch.setattr(OsFile, "pwrite", note_write)
    monkeypatch.setattr(OsFile, "fdatasync", note_sync)
    batches = [Batch(seq, sync=seq % 5 == 0) for seq in range(1, 300)]
    async with trio.open_nursery() as nursery:
        for shard in shards:
            await nursery.start(shard.run)
        for batch in batches:
            shards[batch.last_seq % 2].submit(batch)
            while "written" not in " ".join(batch.diary):
                await trio.lowlevel.checkpoint()
        for shard in shards:
            await shard.stop()
    assert all(batch.diary == [f"written {batch.last_seq}", f"synced {batch.last_seq}"] for batch in batches)
    assert min(on_loop[0], in_threads[0]) > 20


# -- the writer --------------------------------------------------------------------------------------------------------


async def test_a_write_on_the_loop_that_fails_ends_the_writer(autojump_clock: Any) -> None:
    fs, offload = SimFs(), InlineOffload()
    async with running(fs=fs, offload=offload) as shard:
        await trio.sleep(1)
        calls = len(offload.calls)
        fs.inject(Fault(error=errno.EIO, name="pwrite", path="*.log"))
        first, second = Batch(1), Batch(2)
        shard.writer.submit(first)
        shard.writer.submit(second)
        await idle()
        assert offload.calls[calls:] == []
        assert (first.diary, second.diary) == (["failed 1"], ["failed 2"])
        assert shard.failures == [0]


@pytest.mark.parametrize("way", ["on the loop", "in a thread"])
async def test_a_writer_that_is_cancelled_leaves_no_group_half_told(
    way: str, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cancelled while the disk writes has been written, and its batches are told that, and then how it
    ended."""
    monkeypatch.setattr(group_writes, "LOOP_BYTES", LOOP_BYTES if way == "on the loop" else -1)
    fs = SimFs()
    async with running(fs=fs, stop=False) as shard, trio.open_nursery() as nursery:
        await trio.sleep(1)
        diary: list[str] = []
        fs.inject(Fault(hook=lambda op: nursery.cancel_scope.cancel(), name="pwrite", path="*.log"))
        for seq in (1, 2):
            shard.writer.submit(Batch(seq, diary=diary))
        await trio.sleep(0.001)
    assert shard.seqs() == [1, 2]
    assert diary[:2] == ["written 1", "written 2"]
    assert set(diary[2:]) <= {"failed 1", "failed 2"}


async def test_groups_on_the_loop_gather_what_is_ready_in_the_same_turn(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        await trio.sleep(1)
        before = len(shard.ops("pwrite"))
        batches = [Batch(seq) for seq in range(1, 17)]

        async def client(batch: Batch) -> None:
            shard.writer.submit(batch)

        async with trio.open_nursery() as nursery:
            for batch in batches:
                nursery.start_soon(client, batch)
        await idle()
        assert all(batch.diary == [f"written {batch.last_seq}"] for batch in batches)
        assert len(shard.ops("pwrite")) == before + 1
