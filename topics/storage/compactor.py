"""The compactor: takes snapshots of the running daemon and drops WAL files that nothing needs
(`docs/design/architecture.md` section 6).

A snapshot never holds up an append: topics are captured one after another between other work, each in one step of the
loop, and the files are written in a worker thread. What a part shows may be ahead of the disk when it is captured; it
is written only after everything queued by then is synced, so no snapshot ever knows more than the log.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

import trio

from topics.clock import Clock
from topics.config import Settings
from topics.errors import ApiError
from topics.log.topic_config import config_to_wire
from topics.logs import get_logger
from topics.offload import Kind, Offload
from topics.storage.frames import FrameType, encode_control
from topics.storage.fs import Fs
from topics.storage.snapshot import Snapshot, TopicPart, encode_part, write_snapshot
from topics.storage.store import Store
from topics.storage.wal import ControlBatch, Position, WalFile

log = get_logger(__name__)

SLICE_NS: Final = 2_000_000
"""How long capturing goes on before others run."""

GROWTH: Final = 4
"""A snapshot is due when the WAL has grown by so many times the size of the last one: its cost follows what is new."""


class LiveCommit(Protocol):
    """A published commit that has not been written yet."""

    last_seq: int
    records: int
    file: int
    offset: int
    end: Position | None
    frame_lens: array[int] | None


class LiveTopic(Protocol):
    """What the compactor reads of a topic."""

    id: int
    name: str
    config: Any
    log: Any
    keys: Any
    shard: int
    ceiling: int
    ceiling_queued: int
    last_ts: int
    last_write_ms: int | None
    last_read_ms: int | None
    part: bytes | None
    floor_logged: int
    applied_end: Position | None
    unwritten: Any
    working: trio.Event | None
    barrier: trio.Event | None
    deleted: bool


class Source(Protocol):
    """Where the compactor finds the topics (the engine)."""

    by_id: dict[int, Any]
    next_topic_id: int

    def now_ms(self) -> int:
        """The retention clock."""
        ...


class Compactor:
    """See the module. `run` is a task; `checkpoint` may be called beside it, one at a time takes place."""

    def __init__(
        self, settings: Settings, store: Store, source: Source, *, fs: Fs, clock: Clock, offload: Offload
    ) -> None:
        self._settings = settings
        self._store = store
        self._source = source
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._lock = trio.Lock()
        self._last_bytes = 0
        self._written_at_last = 0
        self._kept: list[_Kept] = []
        """The snapshots on disk, oldest first, as far as this life knows them."""

    async def run(self) -> None:
        """Take a snapshot whenever one is due; until cancelled. A failure is logged and tried again at the next
        look."""
        while True:
            await trio.sleep(self._settings.checkpoint_ms / 1000)
            due = max(self._settings.wal_file_bytes, GROWTH * self._last_bytes)
            if self._written() - self._written_at_last >= due:
                await self.try_checkpoint()

    async def try_checkpoint(self, *, marks: bool = True) -> bool:
        """A checkpoint whose failure is a log line; whether it succeeded."""
        try:
            await self.checkpoint(marks=marks)
        except (OSError, ApiError) as error:
            log.warning("checkpoint_failed", error=str(error))
            return False
        return True

    def _written(self) -> int:
        return sum(writer.figures.bytes_written for writer in self._store.writers)

    async def checkpoint(self, *, marks: bool = True) -> int:
        """Take a snapshot, then drop what it makes superfluous; its number.

        `marks=False` leaves the log alone (its writers have stopped). Raises OSError if the disk fails, ApiError on a
        failed shard.
        """
        async with self._lock:
            written = self._written()
            if marks:
                await self._log_floors()
            starts = [writer.synced_position() for writer in self._store.writers]
            oldest: dict[int, int] = {}
            parts = await self._capture_all(oldest)
            if marks:
                await self._sync_shards()
            blobs = [part if isinstance(part, bytes) else part.finish() for part in parts]
            number = self._store.next_snapshot_number()
            snapshot = Snapshot(
                number=number,
                shards=self._store.shards,
                next_topic_id=self._source.next_topic_id,
                clock=self._source.now_ms(),
                positions={i: [start.ordinal, start.offset, count] for i, (start, count) in enumerate(starts)},
                files=self._store.files.to_wire(),
                topics=blobs,
                boot_id=self._store.boot_id,
                identity=self._store.identity,
            )
            size = await self._offload.run(Kind.FILES, partial(write_snapshot, self._fs, self._store.datadir, snapshot))
            self._last_bytes, self._written_at_last = size, written
            self._kept = [*self._kept[-1:], _Kept([start for start, _ in starts], oldest)]
            if marks:
                self._mark(number)
                await self._drop_files()
            log.info("checkpoint", snapshot=number, bytes=size, topics=len(blobs))
            return number

    async def _log_floors(self) -> None:
        """ttl moves floors without a frame; they are logged before any file goes (`semantics.md` section 3)."""
        last: dict[int, ControlBatch] = {}
        for topic in list(self._source.by_id.values()):
            floor = topic.log.evict_floor
            if not topic.config.ttl_ms or floor <= topic.floor_logged or topic.config.durability == "ephemeral":
                continue
            topic.floor_logged = floor
            data = encode_control(
                FrameType.EVICT_WATERMARK,
                {"below": floor, "reason": "ttl"},
                topic_id=topic.id,
                ts=self._source.now_ms(),
            )
            last[topic.shard] = batch = ControlBatch(data, 1, topic_id=topic.id, wants_sync=True)
            self._store.writers[topic.shard].submit(batch)
        for batch in last.values():
            await batch.wait_synced()

    async def _capture_all(self, oldest: dict[int, int]) -> list[bytes | _Captured]:
        """Every topic's part, in slices. `oldest` gets, by shard, the ordinal of the oldest file with a record of
        them."""
        parts: list[bytes | _Captured] = []
        started = self._clock.perf_ns()
        for topic in list(self._source.by_id.values()):
            while topic.working is not None:
                await topic.working.wait()
            if topic.deleted:
                continue
            parts.append(self._capture(topic))
            file_id = topic.log.front_file()
            if file_id:
                file = self._store.files.get(file_id)
                oldest[file.shard] = min(oldest.get(file.shard, file.ordinal), file.ordinal)
            if self._clock.perf_ns() - started > SLICE_NS:
                await trio.lowlevel.checkpoint()
                started = self._clock.perf_ns()
        return parts

    def _capture(self, topic: LiveTopic) -> bytes | _Captured:
        if topic.part is not None:
            return topic.part
        end = topic.applied_end or Position(0, 0)
        part = TopicPart(
            id=topic.id,
            name=topic.name,
            config=config_to_wire(topic.config),
            end=[end.ordinal, end.offset],
            ceiling=max(topic.ceiling, topic.ceiling_queued),
            last_ts=topic.last_ts,
            last_write=topic.last_write_ms,
            last_read=topic.last_read_ms,
            log=topic.log.dump(),
            keys=topic.keys.dump() if topic.keys is not None else [],
        )
        if topic.unwritten:
            return _Captured(part, list(topic.unwritten))
        topic.part = encode_part(part)
        return topic.part

    async def _sync_shards(self) -> None:
        """Everything queued so far is on disk when it returns."""
        batches = []
        for writer in self._store.writers:
            batch = ControlBatch(b"", 0, wants_sync=True)
            writer.submit(batch)
            batches.append(batch)
        for batch in batches:
            await batch.wait_synced()

    def _mark(self, number: int) -> None:
        for writer in self._store.writers:
            mark = encode_control(FrameType.CHECKPOINT_MARK, {"snapshot": number}, ts=self._source.now_ms())
            try:
                writer.submit(ControlBatch(mark, 1))
            except ApiError:
                continue

    async def _drop_files(self) -> None:
        """Unlink WAL files, oldest first, that both kept snapshots are past and know no record in.

        What has gone since they were taken does not count: that it is gone may not be on disk, and need not even be in
        the log (ttl).
        """
        if len(self._kept) < 2:
            return
        for writer in self._store.writers:
            shard = writer.shard
            droppable: list[WalFile] = []
            files = self._store.files.of_shard(shard)
            for file, following in pairwise(files):
                past = all(kept.starts[shard].ordinal >= following.ordinal for kept in self._kept)
                if not past or any(file.ordinal >= kept.oldest.get(shard, file.ordinal + 1) for kept in self._kept):
                    break
                droppable.append(file)
            for file in droppable:
                await self._offload.run(Kind.FILES, partial(self._fs.unlink, file.path))
                self._store.files.drop(file)
                log.info("wal_file_dropped", shard=shard, file=file.path)


class _Kept(NamedTuple):
    """What a snapshot on disk needs of the WAL."""

    starts: list[Position]
    """By shard, where its replay begins."""
    oldest: dict[int, int]
    """By shard, the ordinal of the oldest file with a record it knows. A topic's records lie in the order of their
    seqs."""


class _Captured:
    """A part whose newest records were not written when it was captured; complete once everything is synced."""

    def __init__(self, part: TopicPart, unwritten: list[LiveCommit]) -> None:
        self._part = part
        self._unwritten = unwritten

    def finish(self) -> bytes:
        """The encoded part, with the places that the records have got."""
        for commit in self._unwritten:
            assert commit.end is not None, "everything captured is written by now"
            self._part.end = [commit.end.ordinal, commit.end.offset]
            if commit.records and commit.frame_lens is not None:
                first = commit.last_seq - commit.records + 1
                self._part.placed.append([first, commit.file, commit.offset, commit.frame_lens.tobytes()])
        return encode_part(self._part)
