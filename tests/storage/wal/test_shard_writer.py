"""Shard writers on a simulated disk: group commit, vouching, rotation, admission, failure, stop.

What is on the disk is read by a reader of its own, written from `docs/spec/storage.md` section 2.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import cbor2
import pytest
import trio
import trio.lowlevel
import trio.testing
import xxhash

from tests.engine.life import Called, HeldOffload, refusal
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, Op, SimFs
from tests.simulation.offload import InlineOffload
from tests.storage.wal.test_frames import Seen, parse
from topics.errors import ApiError
from topics.runtime.offload import Pool
from topics.storage.wal import write_queue
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import NOTHING, FrameType, encode_appends, encode_control
from topics.storage.wal.group_writes import GroupWrites
from topics.storage.wal.shard_writer import SYNC_TICK_MS, ShardWriter
from topics.storage.wal.wal_files import WalFile, WalFiles
from topics.storage.wal.wal_head import TAIL_BYTES
from topics.telemetry.figures import WalFigures

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("each_way")]

FILE_BYTES = 4096


def salt_in(path: str, content: bytes) -> int:
    """The salt in the header with which every file begins. The header is what `docs/spec/storage.md` section 6 says."""
    magic, salt, ordinal, checksum = struct.unpack("<8sQQQ", content[:32])
    assert magic == b"TOPICS2\0"
    assert checksum == xxhash.xxh3_64(content[:24]).intdigest()
    assert not path or path == f"/wal/wal-{ordinal:020d}.log"
    assert isinstance(salt, int)
    return salt


def parse_file(path: str, content: bytes) -> list[Seen]:
    """The frames of a file, behind which there are zeros only."""
    salt, at = salt_in(path, content), 32
    while at + 4 <= len(content) and (length := int.from_bytes(content[at : at + 4], "little")):
        at += 4 + length
    assert not content[at:].strip(b"\0"), "nothing but zeros behind the last frame"
    return parse(content[32:at], salt, 32)


class Batch:
    """One record, and a diary of what the writer told about it."""

    def __init__(self, seq: int, *, size: int = 20, sync: bool = False, diary: list[str] | None = None) -> None:
        appends = encode_appends(
            7, seq, 5, [b"x" * size], nodes=None, tags=None, metas=None, durable=sync, closes_batch=True
        )
        self.data = appends.data
        self.size = len(appends.data)
        self.frames = 1
        self.topic_id = 7
        self.last_seq = seq
        self.wants_sync = sync
        self.wants_archive = False
        self.diary = diary if diary is not None else []
        self.error: ApiError | None = None
        self.at: tuple[int, int] | None = None

    def on_written(self, file: WalFile, offset: int) -> None:
        self.at = file.ordinal, offset
        self.diary.append(f"written {self.last_seq}")

    def on_synced(self) -> None:
        self.diary.append(f"synced {self.last_seq}")

    def on_failed(self, error: ApiError) -> None:
        self.error = error
        self.diary.append(f"failed {self.last_seq}")

    def on_delayed(self, error: ApiError) -> None:
        if self.diary[-1:] != [f"delayed {self.last_seq}"]:
            self.diary.append(f"delayed {self.last_seq}")


class Shard:
    """A writer, its disk, and an independent view of its files."""

    def __init__(
        self, fs: SimFs, offload: InlineOffload, file_bytes: int = FILE_BYTES, sync_tick_ms: int = SYNC_TICK_MS
    ) -> None:
        self.fs = fs
        self.failures: list[int] = []
        self.files = WalFiles()
        self.figures = WalFigures()
        clock = SimClock()
        self.writer = ShardWriter(
            shard=0,
            directory="/wal",
            fs=fs,
            clock=clock,
            offload=offload,
            writes=GroupWrites(clock, offload),
            files=self.files,
            file_bytes=file_bytes,
            backlog_bytes=1 << 40,
            figures=self.figures,
            on_failure=self.failures.append,
            sync_tick_ms=sync_tick_ms,
        )

    def names(self) -> list[str]:
        return sorted(path for path in self.fs.tree() if path.endswith(".log"))

    def log(self, *, durable: bool = False) -> list[tuple[str, list[Seen]]]:
        """The frames of every file, up to the first frame_len of 0."""
        found = []
        for path, content in sorted(self.fs.tree(durable=durable).items()):
            if content is None or not path.endswith(".log"):
                continue
            found.append((path, parse_file(path, content)))
        return found

    def kinds(self) -> list[FrameType]:
        return [FrameType(frame.type) for _, frames in self.log() for frame in frames]

    def seqs(self, *, durable: bool = False) -> list[int]:
        return [frame.seq for _, frames in self.log(durable=durable) for frame in frames if frame.type == 1]

    def ops(self, *names: str, path: str = ".log") -> list[Op]:
        return [op for op in self.fs.ops if op.name in names and op.path.endswith(path)]


@asynccontextmanager
async def running(
    *,
    fs: SimFs | None = None,
    offload: InlineOffload | None = None,
    file_bytes: int = FILE_BYTES,
    sync_tick_ms: int = SYNC_TICK_MS,
    stop: bool = True,
) -> AsyncIterator[Shard]:
    fs = fs or SimFs()
    fs.mkdir("/wal")
    fs.sync_dir("/")
    shard = Shard(fs, offload or InlineOffload(), file_bytes, sync_tick_ms)
    shard.writer.create()
    shard.writer.write_opening(encode_control(FrameType.SHARD_OPEN, {"boot": "b"}), 1)
    async with trio.open_nursery() as nursery:
        await nursery.start(shard.writer.run)
        yield shard
        if stop:
            await shard.writer.stop()
        nursery.cancel_scope.cancel()


async def idle() -> None:
    await trio.testing.wait_all_tasks_blocked()


# -- group commit ------------------------------------------------------------------------------------------------------


async def test_a_lone_durable_append_is_written_and_synced_at_once(mock_clock: Any) -> None:
    async with running(stop=False) as shard:
        before = len(shard.ops("pwrite")), len(shard.ops("fdatasync"))
        batch = Batch(1, sync=True)
        shard.writer.submit(batch)
        await idle()
        assert batch.diary == ["written 1", "synced 1"]
        assert (len(shard.ops("pwrite")), len(shard.ops("fdatasync"))) == (before[0] + 1, before[1] + 1)
        assert shard.seqs(durable=True) == [1]


@pytest.mark.parametrize("sync_tick_ms", [1, 20, 300])
async def test_what_does_not_wait_is_synced_by_the_tick(sync_tick_ms: int, mock_clock: Any) -> None:
    async with running(sync_tick_ms=sync_tick_ms, stop=False) as shard:
        mock_clock.jump(1)
        await idle()
        batch = Batch(1)
        shard.writer.submit(batch)
        await idle()
        assert batch.diary == ["written 1"]
        passed = 0
        while "synced 1" not in batch.diary:
            mock_clock.jump(0.001)
            passed += 1
            await idle()
            assert passed <= sync_tick_ms + 1, "in whole milliseconds, rounded"
        assert passed >= sync_tick_ms - 1
        assert batch.diary == ["written 1", "synced 1"]
        assert shard.seqs(durable=True) == [1]


async def test_the_tick_comes_under_load_too(autojump_clock: Any) -> None:
    async with running() as shard:
        waiting: dict[int, float] = {}

        class Timed(Batch):
            def on_written(self, file: WalFile, offset: int) -> None:
                waiting[self.last_seq] = trio.current_time()

            def on_synced(self) -> None:
                waited = trio.current_time() - waiting.pop(self.last_seq)
                assert waited <= 0.0231, waited

        for seq in range(1, 200):
            shard.writer.submit(Timed(seq))
            await trio.sleep(0.003)
        await trio.sleep(0.1)
        assert not waiting


async def test_order_is_the_order_of_the_queue(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with running(offload=offload) as shard:
        diary: list[str] = []
        offload.hold()
        for seq in range(1, 31):
            shard.writer.submit(Batch(seq, sync=seq % 7 == 0, diary=diary))
            if seq % 10 == 0:
                await idle()
        assert diary == []
        offload.let_go()
        await trio.sleep(1)
        assert [line for line in diary if line.startswith("written")] == [f"written {seq}" for seq in range(1, 31)]
        assert [line for line in diary if line.startswith("synced")] == [f"synced {seq}" for seq in range(1, 31)]
        assert shard.seqs() == list(range(1, 31))
        assert len(shard.ops("pwrite")) <= 7, "what queues while the disk is busy is one group"


async def test_in_a_mixed_group_written_is_told_before_the_sync(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        diary: list[str] = []
        fs.inject(Fault(name="fdatasync", path="*.log", hook=lambda op: diary.append("sync")))
        shard.writer.submit(Batch(1, diary=diary))
        shard.writer.submit(Batch(2, sync=True, diary=diary))
        await idle()
        assert diary == ["written 1", "written 2", "sync", "synced 1", "synced 2"]


async def test_batches_lie_where_they_are_told(autojump_clock: Any) -> None:
    async with running() as shard:
        batches = [Batch(seq, size=seq * 5, sync=seq % 5 == 0) for seq in range(1, 60)]
        for batch in batches:
            shard.writer.submit(batch)
            await trio.sleep(0.004 * (batch.last_seq % 3))
        await trio.sleep(1)
        tree = shard.fs.tree()
        for batch in batches:
            assert batch.at is not None
            ordinal, offset = batch.at
            content = tree[f"/wal/wal-{ordinal:020d}.log"]
            assert content is not None
            (frame,) = parse(content[offset : offset + batch.size], salt_in("", content), offset)
            assert frame.seq == batch.last_seq


# -- vouching ----------------------------------------------------------------------------------------------------------


async def test_one_synced_frame_after_the_last_sync_and_then_silence(autojump_clock: Any) -> None:
    async with running(stop=False) as shard:
        await trio.sleep(1)
        start = len(shard.kinds())
        shard.writer.submit(Batch(1))
        shard.writer.submit(Batch(2, sync=True))
        await trio.sleep(1)
        assert shard.kinds()[start:] == [FrameType.APPEND, FrameType.APPEND, FrameType.SYNCED]
        ops = len(shard.fs.ops)
        await trio.sleep(60)
        assert len(shard.fs.ops) == ops, "a minute of silence"
        batch = ControlBatch(NOTHING, 0, wants_sync=True)
        shard.writer.submit(batch)
        await batch.wait_synced()
        await trio.sleep(60)
        assert shard.kinds()[start:] == [FrameType.APPEND, FrameType.APPEND, FrameType.SYNCED], (
            "a barrier vouches nothing"
        )


async def test_a_synced_frame_vouches_for_what_was_on_disk_when_it_was_written(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        for seq in range(1, 40):
            shard.writer.submit(Batch(seq, size=30, sync=seq % 3 == 0))
            await trio.sleep(0.007)
            for kind in ("drop", "keep"):
                crashed = fs.after_machine_crash(kind, 1)
                tree = crashed.tree()
                for path, content in tree.items():
                    if content is None or not path.endswith(".log"):
                        continue
                    length = len(content.rstrip(b"\0")) + 8
                    at, salt = 32, salt_in(path, content)
                    while at < length and (frame_len := int.from_bytes(content[at : at + 4], "little")):
                        (frame,) = parse(content[at : at + 4 + frame_len], salt, at)
                        at += frame.length
                        if frame.type == FrameType.SYNCED:
                            vouched = cbor2.loads(frame.payload)
                            target = f"/wal/wal-{vouched['file']:020d}.log"
                            assert shard.fs.content_durable(target, 0, vouched["offset"])


# -- rotation ----------------------------------------------------------------------------------------------------------


async def test_rotation(autojump_clock: Any) -> None:
    fs = SimFs()
    named: list[tuple[str, bool, bool]] = []

    def look(op: Op) -> None:
        """At the rename that names a successor, its predecessor is whole and on disk."""
        if op.name == "rename" and op.detail.endswith(".log"):
            existing = sorted(path for path in fs.tree() if path.endswith(".log"))
            if existing:
                content = fs.tree(durable=True)[existing[-1]]
                assert content is not None
                found = parse_file(existing[-1], content)
                end = 32 + sum(frame.length for frame in found)
                durable = fs.content_durable(existing[-1], 0, end)
                named.append((op.detail, found[-1].type == FrameType.FILE_END, durable))

    fs.subscribe(look)
    async with running(fs=fs) as shard:
        for seq in range(1, 201):
            shard.writer.submit(Batch(seq, size=60, sync=seq % 9 == 0))
            if seq % 4 == 0:
                await trio.sleep(0.005)
        await trio.sleep(1)
        log = shard.log()
        assert len(log) > 4
        ordinal = 0
        seqs = []
        for i, (path, frames) in enumerate(log):
            assert path == f"/wal/wal-{ordinal:020d}.log"
            content = fs.tree()[path]
            assert content is not None
            own = [frame.seq for frame in frames if frame.type == 1]
            seqs += own
            ordinal += len(frames)
            if i == len(log) - 1:
                assert len(content) == FILE_BYTES + 2 * TAIL_BYTES, "preallocated"
                break
            end = frames[-1]
            assert end.type == FrameType.FILE_END
            assert cbor2.loads(end.payload) == {"last": {7: own[-1]}, "next": ordinal}
            assert len(content) == 32 + sum(frame.length for frame in frames), "cut behind FileEnd"
            assert len(content) - end.length <= FILE_BYTES + 80, "full, and a Synced frame at the most"
        assert seqs == list(range(1, 201))
        assert [ok for _, *ok in named] == [[True, True]] * (len(log) - 1)
        assert shard.fs.read("/wal/CURRENT").decode() == log[-1][0].rpartition("/")[2] + "\n"
        assert shard.figures.rotations == len(log) - 1
        assert [file.path for file in shard.files.of_shard(0)] == [path for path, _ in log]
        assert shard.fs.open_files == 1


async def test_the_next_file_is_preallocated_ahead(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        assert not fs.is_file("/wal/next.tmp")
        shard.writer.submit(Batch(1, size=FILE_BYTES // 2))
        await trio.sleep(0.1)
        assert fs.is_file("/wal/next.tmp")
        assert fs.content_durable("/wal/next.tmp")
        made = len(shard.ops("preallocate", path=".tmp"))
        shard.writer.submit(Batch(2, size=FILE_BYTES // 2, sync=True))
        await trio.lowlevel.checkpoint()
        await idle()
        assert len(shard.names()) == 2
        assert len(shard.ops("preallocate", path=".tmp")) == made + 1, "only the one after the next is made now"


async def test_a_batch_larger_than_a_file(autojump_clock: Any) -> None:
    async with running() as shard:
        shard.writer.submit(Batch(1))
        await trio.sleep(0.1)
        for seq in (2, 3):
            shard.writer.submit(Batch(seq, size=3 * FILE_BYTES, sync=True))
        shard.writer.submit(Batch(4))
        await trio.sleep(1)
        files = [[frame.seq for frame in frames if frame.type == 1] for _, frames in shard.log()]
        assert files == [[1], [2], [3], [4]]


async def test_an_ephemeral_commit_is_not_in_file_end(autojump_clock: Any) -> None:
    async with running() as shard:
        empty = Batch(9)
        empty.data, empty.frames, empty.topic_id, empty.wants_sync = NOTHING, 0, 8, True
        shard.writer.submit(empty)
        await trio.sleep(0.1)
        assert empty.diary == ["written 9", "synced 9"]
        shard.writer.submit(Batch(1))
        shard.writer.submit(Batch(2, size=FILE_BYTES))
        await trio.sleep(0.1)
        (end,) = [frame for _, frames in shard.log() for frame in frames if frame.type == FrameType.FILE_END]
        assert cbor2.loads(end.payload)["last"] == {7: 1}


# -- admission ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_queue, "QUEUE_BATCHES", 3)


@pytest.mark.usefixtures("small_queue")
async def test_admission(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with running(offload=offload) as shard, trio.open_nursery() as nursery:
        writer = shard.writer
        assert await writer.queue.admit(0) == 0.0
        offload.hold()
        writer.submit(Batch(1))
        await idle()
        for seq in (2, 3, 4):
            assert not writer.queue.is_full
            writer.submit(Batch(seq))
        assert writer.queue.is_full
        assert (len(writer.queue), shard.figures.queue_depth_peak) == (3, 3)
        writer.submit(ControlBatch(encode_control(FrameType.HEAD_WATERMARK, {"ceiling": 1}), 1))
        started = trio.current_time()
        error = await refusal(writer.queue.admit(250))
        assert trio.current_time() - started == pytest.approx(0.25)
        assert (error.status, error.code, error.detail["limit"]) == (429, "throttled", "wal_queue")
        endless = Called(nursery, partial(writer.queue.admit, None))
        gone = Called(nursery, partial(writer.queue.admit, None))
        short = Called(nursery, partial(writer.queue.admit, 60_000))
        await trio.sleep(30)
        assert not endless.done
        gone.scope.cancel()
        await idle()
        assert gone.cancelled
        assert len(writer.queue._waiting) == 2
        offload.let_go()
        await idle()
        assert endless.result == pytest.approx(30_000)
        assert short.result == pytest.approx(30_000)
        assert shard.figures.submit_full == 4
        assert len(writer.queue._waiting) == 0


@pytest.mark.usefixtures("small_queue")
async def test_a_failure_wakes_who_waits_for_room(autojump_clock: Any) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with running(fs=fs, offload=offload) as shard, trio.open_nursery() as nursery:
        offload.hold()
        shard.writer.submit(Batch(1))
        await idle()
        for seq in (2, 3, 4):
            shard.writer.submit(Batch(seq))
        waiting = Called(nursery, partial(shard.writer.queue.admit, None))
        await idle()
        fs.inject(Fault(error=errno.EIO, name="pwrite", path="*.log"))
        offload.let_go()
        await idle()
        assert waiting.error is not None
        assert waiting.error.code == "read_only"
        assert (await refusal(shard.writer.queue.admit(None))).code == "read_only"


# -- failure -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "path", "size"),
    [
        ("pwrite", "*.log", 20),
        ("fdatasync", "*.log", 20),
        ("pwrite", "*.log", FILE_BYTES),  # FileEnd
        ("truncate", "*.log", FILE_BYTES),
        ("sync_dir", "/wal", FILE_BYTES),
    ],
)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_a_failure_ends_the_writer(
    operation: str, path: str, size: int, number: int, autojump_clock: Any
) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with running(fs=fs, offload=offload) as shard:
        diary: list[str] = []
        first = Batch(1, sync=True)
        shard.writer.submit(first)
        await trio.sleep(0.1)
        assert first.diary == ["written 1", "synced 1"]
        fault = fs.inject(Fault(error=number, name=operation, path=path))
        for kind in (Pool.WAL, Pool.FILES):
            offload.hold(kind)
        shard.writer.submit(Batch(2, size=size, sync=True, diary=diary))
        await idle()
        shard.writer.submit(Batch(3, diary=diary))
        control = ControlBatch(NOTHING, 0, wants_sync=True)
        shard.writer.submit(control)
        for kind in (Pool.WAL, Pool.FILES):
            offload.let_go(kind)
        await trio.sleep(0.1)
        assert fault.hits == 1
        assert [line for line in diary if not line.startswith("written")] == ["failed 2", "failed 3"]
        assert first.diary == ["written 1", "synced 1"]
        assert (await refusal(control.wait_synced())).code == "read_only"
        assert shard.failures == [0]
        assert shard.figures.read_only == 1
        with pytest.raises(ApiError) as refused:
            shard.writer.submit(Batch(4))
        assert (refused.value.status, refused.value.code) == (503, "read_only")
        ops = len(fs.ops)
        await trio.sleep(60)
        assert len(fs.ops) == ops, "nothing is retried"
        assert fs.open_files == 0


async def test_a_failure_while_room_is_made_fails_what_was_taken_from_the_queue_for_it(autojump_clock: Any) -> None:
    """A group between the queue and the disk is in neither of them: whose batches are in it would wait for ever."""
    fs = SimFs()
    async with running(fs=fs) as shard:
        await trio.sleep(1)

        def refuse_the_sync(_op: Op) -> None:
            fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log"))

        fs.inject(Fault(hook=refuse_the_sync, name="preallocate", path="*.log"))
        long, control = Batch(1, size=3 * FILE_BYTES, sync=True), ControlBatch(NOTHING, 0, wants_sync=True)
        shard.writer.submit(long)
        shard.writer.submit(control)
        await trio.sleep(1)
        assert shard.failures == [0]
        assert long.diary == ["failed 1"]
        assert (await refusal(control.wait_synced())).code == "read_only"


async def test_a_failed_background_sync_fails_what_it_should_have_covered(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        await trio.sleep(1)
        batch = Batch(1)
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log"))
        shard.writer.submit(batch)
        await trio.sleep(1)
        assert batch.diary == ["written 1", "failed 1"]
        assert FrameType.CLEAN_STOP not in shard.kinds()


async def test_a_short_write_is_completed(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        fs.inject(Fault(short=5, name="pwrite", path="*.log", times=3))
        batch = Batch(1, sync=True)
        shard.writer.submit(batch)
        await trio.sleep(0.1)
        assert batch.diary == ["written 1", "synced 1"]
        assert shard.seqs() == [1]


# -- stop --------------------------------------------------------------------------------------------------------------


async def test_a_stop_writes_what_is_queued_and_leaves_a_mark_as_the_last_frame(autojump_clock: Any) -> None:
    fs = SimFs()
    async with running(fs=fs) as shard:
        diary: list[str] = []
        for seq in range(1, 100):
            shard.writer.submit(Batch(seq, diary=diary, size=100))
        await shard.writer.stop()
        assert [line for line in diary if line.startswith("synced")] == [f"synced {seq}" for seq in range(1, 100)]
        assert shard.kinds()[-1] == FrameType.CLEAN_STOP
        assert shard.kinds().count(FrameType.CLEAN_STOP) == 1
        assert shard.log() == shard.log(durable=True)
        last = shard.log()[-1][1][-1]
        assert cbor2.loads(last.payload).keys() == {"clock"}
        with pytest.raises(ApiError) as refused:
            shard.writer.submit(Batch(100))
        assert refused.value.code == "shutting_down"
        assert fs.open_files == 0


async def test_figures(autojump_clock: Any) -> None:
    async with running() as shard:
        for seq in range(1, 60):
            shard.writer.submit(Batch(seq, size=90, sync=True))
            await trio.sleep(0.01 * (seq % 4))
        await trio.sleep(1)
        figures = shard.figures
        assert figures.frames == sum(len(frames) for _, frames in shard.log()) - 1, "all but the opening"
        assert figures.fsyncs == figures.fsync_latency.cumulative()[-1][1] + figures.rotations
        assert figures.queue_depth_peak >= 1


async def test_who_waits_for_a_writer_that_ends_by_a_mistake_is_told(autojump_clock: Any) -> None:
    """Not to be told is to wait for ever, and the daemon could not even stop."""
    fs, control = SimFs(), ControlBatch(NOTHING, 0, wants_sync=True)

    def mistake(_op: Op) -> None:
        raise ZeroDivisionError

    batch = Batch(1, sync=True)
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True, allow_unwrapped=True):
        async with running(fs=fs, stop=False) as shard:
            await trio.sleep(0.1)
            fs.inject(Fault(hook=mistake, name="pwrite"))
            shard.writer.submit(batch)
            shard.writer.submit(control)
            await trio.sleep(1)
    assert batch.diary == ["failed 1"]
    assert (await refusal(control.wait_synced())).code == "read_only"
    with pytest.raises(ApiError):
        shard.writer.submit(Batch(2))


async def test_who_waits_for_a_writer_that_is_cancelled_while_it_makes_room_is_told(autojump_clock: Any) -> None:
    fs, offload, control = SimFs(), HeldOffload(), ControlBatch(NOTHING, 0, wants_sync=True)
    batch = Batch(1, size=3 * FILE_BYTES, sync=True)

    def hold(_op: Op) -> None:
        offload.hold()

    async def let_go() -> None:
        await trio.sleep(10)
        offload.let_go()

    async with trio.open_nursery() as nursery, running(fs=fs, offload=offload, stop=False) as shard:
        await trio.sleep(1)
        held = fs.inject(Fault(hook=hold, name="rename", path="*next.tmp"))  # then there is room to be made
        shard.writer.submit(batch)
        shard.writer.submit(control)
        nursery.start_soon(let_go)
        await trio.sleep(1)
        assert held.hits == 1
        assert not batch.diary
    assert batch.diary == ["failed 1"]
    assert (await refusal(control.wait_synced())).code == "read_only"
