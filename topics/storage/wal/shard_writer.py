"""Shard writers: group commit, rotation, preallocation, vouching and failure (`docs/spec/storage.md` section 2,
`docs/spec/crash.md` 3 to 5, 25).

Theory of operation
-------------------
A shard is one append-only log in files `wal-<ordinal of first frame>.log`. Everything that must survive is a `Batch`:
bytes of one or more frames that stand or fall together. Batches are queued in the order in which they were decided and
are written in that order; the queue is the only order there is.

One task (`ShardWriter.run`) drains the queue into a group and hands it to one worker-thread call: a write and, if
something in the group waits for it or the background tick is due, an fdatasync. The next group gathers meanwhile. A
batch hears of three things, each at most once and always on the loop: `on_written`, `on_synced` or `on_failed`.
Between write and sync the thread posts the former, so a batch that waits only for write(2) never waits for another's
sync. A *patient* batch, of which nobody waits to hear, goes with the next group, and after `PATIENCE_MS` by itself: a
write and the hop to its thread cost as much as the call that it comes from.

What a sync has covered is *vouched for* by a Synced frame, so that recovery can tell damage (below a vouched position)
from a torn end (above it). The frame travels in front of the next group; when nothing follows, it is written once at
the next idle tick, synced once, and then the shard is silent: a Synced frame never asks for another. A rotated file
ends in FileEnd and is synced whole before its successor gets its name, so a successor vouches for its predecessor.

A batch says what its frames hold; their checksums depend on where they go and on the salt of the file, so they are
computed here, for a whole group in one pass, in the thread that writes it. The salt stands in the header of a file,
which is synced before the file gets its name: no crash leaves a named file whose frames nobody can verify. A file of
version 1 that a life finds takes the verdict of its recovery and nothing else: the first group goes to a file with a
salt.

A failed write or sync of the log, or of its directory, ends the writer's life: everything not yet acked fails, the
shard is read-only until a restart, and nothing is retried, because after a failed fdatasync the kernel may call clean
what never reached the disk. Where the disk refuses what comes before that (the next file, its name, room in the current
one), nothing is uncertain: the shard is stalled, and tries again (`topics.storage.wal.stall`). Room is asked for ahead
of a write, so that a full disk is met there. While the next file cannot be made, the current one grows past its size.
"""

from __future__ import annotations

import errno
import math
import os
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

import trio

from topics.errors import ApiError, read_only, throttled
from topics.runtime.clock import Clock
from topics.runtime.offload import Kind, Offload
from topics.storage.files.datadir import wal_name
from topics.storage.files.file_header import encode_file_header
from topics.storage.files.fs import File, Fs, write_all
from topics.storage.wal import frames
from topics.storage.wal.frames import NOTHING, FrameType, Unsealed
from topics.storage.wal.stall import NoRoom, Stall, refused_outright
from topics.storage.wal.wal_head import TAIL_BYTES, WalHead, new_head
from topics.telemetry.figures import WalFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

SYNC_TICK_MS: Final = 20
"""The background sync: at most this long an acked `disk` record is only in the page cache."""

PATIENCE_MS: Final = 5
"""At most this long a batch that nobody waits for waits for others to be written with."""

GROUP_BYTES: Final = 8 << 20
"""Most bytes of one group: two of them fit into what a disk takes in a few ms, and the next gathers meanwhile."""

SYNCED_ROOM: Final = 256
"""Bytes that a Synced frame takes at most."""

MOST_GROWTH: Final = 2
MOST_BYTES: Final = 3 << 30
"""How long a file may become for want of a next one: so many times its size, and less than an offset can say."""

QUEUE_BYTES: Final = 32 << 20
RETRY_AFTER_MS: Final = 500
"""What a client that found the queue full is told to wait."""

QUEUE_BATCHES: Final = 4096
"""Bounds of a shard's queue. At the bound an append waits (admission) and is refused with 429 after
`TOPICS_ADMISSION_MS`.

Control frames use room beyond it, as they must never wait for an append (`docs/spec/crash.md` 25).
"""


class WalFile:
    """One file of a shard's log. `file_id` is what the index stores; 0 is never used."""

    __slots__ = ("end", "file_id", "head", "ordinal", "path", "shard", "written_ns")

    def __init__(self, file_id: int, shard: int, ordinal: int, path: str, head: WalHead, end: int = 0) -> None:
        self.file_id = file_id
        self.head = head
        self.shard = shard
        self.ordinal = ordinal
        self.path = path
        self.end = end
        """Offset behind the last frame written."""
        self.written_ns = 0
        """When the last write to it returned, by `Clock.perf_ns`."""


class Position(NamedTuple):
    """A place in a shard's log. Positions of one shard are ordered as the log is."""

    ordinal: int
    """Of the file's first frame."""
    offset: int


class Batch(Protocol):
    """What a shard writer writes: frames that stand or fall together."""

    data: Unsealed
    frames: int
    topic_id: int
    last_seq: int
    """The highest seq of the topic in these frames; 0 when they carry none."""
    wants_sync: bool

    def on_written(self, file: WalFile, offset: int) -> None:
        """write(2) has taken the batch at `offset` of `file`."""
        ...

    def on_synced(self) -> None:
        """A sync has covered it."""
        ...

    def on_failed(self, error: ApiError) -> None:
        """It may or may not be on disk; it will never be confirmed."""
        ...

    def on_delayed(self, error: ApiError) -> None:
        """It waits for room on the disk, nobody knows how long, and stays in the queue. May be repeated."""
        ...


class ControlBatch:
    """A batch of control frames that somebody may wait for. Nothing is published by it."""

    __slots__ = (
        "_apply",
        "_done",
        "data",
        "end",
        "error",
        "file_id",
        "frames",
        "last_seq",
        "offset",
        "topic_id",
        "wants_sync",
    )

    def __init__(
        self,
        data: Unsealed,
        frames_: int,
        *,
        topic_id: int = 0,
        wants_sync: bool = False,
        apply: Callable[[ControlBatch], None] | None = None,
    ) -> None:
        self.data = data
        self.frames = frames_
        self.topic_id = topic_id
        self.last_seq = 0
        self.wants_sync = wants_sync
        self.error: ApiError | None = None
        self.file_id = 0
        self.offset = 0
        self.end: Position | None = None
        self._apply = apply
        """What the batch means for the state in memory. Done in the step in which it is synced, so that nobody ever
        sees a synced position beyond it and the state without it (a snapshot taken then would lose it for ever)."""
        self._done = trio.Event()

    def on_written(self, file: WalFile, offset: int) -> None:
        self.file_id, self.offset = file.file_id, offset
        self.end = Position(file.ordinal, offset + len(self.data))

    def on_synced(self) -> None:
        if self._apply is not None:
            self._apply(self)
        self._done.set()

    def on_failed(self, error: ApiError) -> None:
        self.error = error
        self._done.set()

    def on_delayed(self, error: ApiError) -> None:
        """What waits for it is half way through a change, and goes on waiting."""

    async def wait_synced(self) -> None:
        """Wait until a sync has covered the batch. Raises the shard's `ApiError` if it failed. Cancelling stops only
        the waiting."""
        await self._done.wait()
        if self.error is not None:
            raise self.error


class SyncRequest(ControlBatch):
    """Nothing is written for it; synced when what was queued before it is.

    While nothing can be written for want of room on the disk, it does not wait as other batches do: it is answered if
    nothing before it has to be written, and refused otherwise. A checkpoint that waited would keep the files of its
    topics locked, and nobody would be told.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NOTHING, 0, wants_sync=True)


class Cut(SyncRequest):
    """A place in the queue at which the log goes over to a new file. When it is synced, the file that ends there will
    never be written again. Without room for the new file it is refused."""

    __slots__ = ("ordinal",)

    def __init__(self) -> None:
        super().__init__()
        self.ordinal = 0
        """Of the file that begins here; older ones are finished."""


Place = tuple[str, int, int]
"""A file by what it is called on disk: ("wal", shard, ordinal), or ("segment", topic id, first seq)."""


class WalFiles:
    """The files of all shards by the id that the index stores; and segments that copies are made of."""

    def __init__(self) -> None:
        self._by_id: dict[int, WalFile] = {}
        self._segments: dict[int, tuple[int, int]] = {}
        self._ids: dict[Place, int] = {}
        self.salts: dict[int, int | None] = {}
        """By file id, the salt of a segment's `.data` as it was read last."""
        self._next_id = 1

    def add(self, shard: int, ordinal: int, path: str, head: WalHead) -> WalFile:
        """Register a file."""
        file = self._by_id[self._next_id] = WalFile(self._next_id, shard, ordinal, path, head)
        self._ids["wal", shard, ordinal] = self._next_id
        self._next_id += 1
        return file

    def file_of(self, place: Place, salt: int | None = None) -> int:
        """The id of a file; 0 for one of the WAL that is not there (any more). A segment gets one when it is first
        asked for; `salt` is that of its `.data`, if it is known."""
        kind, owner, first = place
        known = self._ids.get(place, 0)
        if not known and kind == "segment":
            known = self._ids[place] = self._next_id
            self._segments[known] = (owner, first)
            self._next_id += 1
        if salt is not None:
            self.salts[known] = salt
        return known

    def keep_segments(self, file_ids: Collection[int]) -> None:
        """Forget the segments that no copy is made of any more."""
        for file_id in self._segments.keys() - file_ids:
            del self._ids["segment", *self._segments.pop(file_id)]
            self.salts.pop(file_id, None)

    def place_of(self, file_id: int) -> Place:
        """What a file is called. KeyError when it was dropped."""
        segment = self._segments.get(file_id)
        if segment is not None:
            return ("segment", *segment)
        file = self._by_id[file_id]
        return ("wal", file.shard, file.ordinal)

    def get(self, file_id: int) -> WalFile:
        """The file of an id. KeyError when it was dropped."""
        return self._by_id[file_id]

    def drop(self, file: WalFile) -> None:
        """Forget a file that was unlinked."""
        del self._by_id[file.file_id]
        del self._ids["wal", file.shard, file.ordinal]

    def of_shard(self, shard: int) -> list[WalFile]:
        """A shard's files, oldest first."""
        return sorted((file for file in self._by_id.values() if file.shard == shard), key=lambda file: file.ordinal)


class _Entered(NamedTuple):
    """A file that has just got its name."""

    ordinal: int
    path: str
    head: WalHead
    handle: File


class ShardWriter:
    """One shard's log and the task that writes it. See the module for how it works."""

    def __init__(
        self,
        *,
        shard: int,
        directory: str,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        files: WalFiles,
        file_bytes: int,
        backlog_bytes: int,
        figures: WalFigures,
        on_failure: Callable[[int], None],
    ) -> None:
        self.shard = shard
        self.figures = figures
        self.failed: ApiError | None = None
        self.commit_window_ms = 0.0
        """How long a group gathers before it is written; the governor widens it under pressure."""
        self.rotated = trio.Event()
        """Replaced at each rotation: the compactor waits for it."""
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._files = files
        self._file_bytes = file_bytes
        self._backlog_bytes = backlog_bytes
        self._stored_bytes = 0
        self._on_failure = on_failure
        self._queue: deque[Batch] = deque()
        self._queue_bytes = 0
        self._room = trio.lowlevel.ParkingLot()
        self._wake = trio.Event()
        self._urgent = False
        """There are batches in the queue that are not patient."""
        self._patient_from_ms = 0
        """Since when the first of the patient ones has been waiting, if there are only such."""
        self._stopping = False
        self._stopped = trio.Event()
        self._handle: File | None = None
        self._file: WalFile | None = None
        self._allocated = 0
        """Bytes of the file that are on the disk, as frames or as zeros."""
        self._frame_count = 0
        """Ordinal of the next frame."""
        self._last_seqs: dict[int, int] = {}
        """Highest seq of each topic in the current file (for FileEnd)."""
        self._unsynced: list[Batch] = []
        self._in_group: list[Batch] = []
        """Taken from the queue and not yet written. A failure finds every batch that has not heard of a sync here, in
        `_unsynced` or in the queue, whatever the writer does at that moment."""
        self._group_written = 0
        """How many of the group have heard `on_written`."""
        self._data_end = 0
        """Offset behind the last frame that is not a Synced frame; what is below `_synced_end` is on disk."""
        self._synced_end = 0
        self._synced_frames = 0
        self._vouched = 0
        self._tick_from_ms = clock.monotonic_ms()
        """Since when something has been waiting for the background tick."""
        self._spare_lock = trio.Lock()
        self._spare_ready = False
        self.stall = Stall(shard, clock)
        self._ended: tuple[int, int] | None = None
        """The current file is complete and the next one has no name yet: its ordinal, and how long FileEnd is."""
        self._spare_salt = 0
        """In the header of the next file, once it has one."""
        self._stop_asked = trio.Event()
        self._current_told = False
        self._home: str | None = None
        """Which directory `directory` is (`Fs.identity`), in case somebody puts another one there."""

    # -- what the engine calls -------------------------------------------------------------------------------------

    def submit(self, batch: Batch, *, patient: bool = False) -> None:
        """Queue a batch; never waits. Raises `503 read_only` on a failed shard, and then the batch is not queued."""
        if self.failed is not None:
            raise self.failed
        if self._stopping:
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        self._queue.append(batch)
        self._queue_bytes += len(batch.data)
        depth = len(self._queue)
        self.figures.queue_depth_peak = max(self.figures.queue_depth_peak, depth)
        if not patient or depth > QUEUE_BATCHES // 2:
            self._urgent = True
            self._wake.set()
        elif depth == 1:
            self._patient_from_ms = self._clock.monotonic_ms()
            self._wake.set()  # to look at the clock

    async def prepare_cut(self) -> None:
        """Make what a cut needs, so that a lack of room on the disk is found before it. Raises OSError."""
        async with self._spare_lock:
            if not self._spare_ready and self.failed is None and not self._stopping:
                await self._offload.run(Kind.FILES, self._make_spare)
                self._spare_ready = True
                self.stall.end()

    def cut(self) -> Cut:
        """End the current file between what is queued by now and what comes later; never waits. Cuts of several shards
        made in one step of the loop are one moment for all of them. Raises like `submit`."""
        cut = Cut()
        self.submit(cut)
        return cut

    @property
    def queue_depth(self) -> int:
        """Batches queued and not yet taken into a group."""
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether an append has to wait for room."""
        return self._queue_bytes >= QUEUE_BYTES or len(self._queue) >= QUEUE_BATCHES or self._behind

    @property
    def _behind(self) -> bool:
        """Checkpoints do not keep up: the index of what they have not stored is in memory, and the log on disk."""
        return self.figures.bytes_written - self._stored_bytes >= self._backlog_bytes

    def stored(self, bytes_written: int) -> None:
        """A checkpoint has covered what the shard had written by `bytes_written` (its figure of that name)."""
        self._stored_bytes = bytes_written
        if not self.full:
            self._room.unpark_all()

    async def admit(self, admission_ms: int | None) -> float:
        """Wait for room in the queue, before seqs are assigned; returns the ms waited.

        `None` waits without limit (`disable_backpressure`). Raises `429 throttled` at the limit, `503 read_only` on a
        failed shard. Cancellation leaves nothing behind.
        """
        if self.failed is not None:
            raise self.failed
        if not self.full:
            return 0.0
        if self.stall.refusal is not None:
            raise self.stall.refusal
        self.figures.submit_full += 1
        started = self._clock.perf_ns()
        with trio.move_on_after(math.inf if admission_ms is None else admission_ms / 1000):
            while self.full and self.failed is None and self.stall.refusal is None:
                await self._room.park()
            refusal = self.failed or self.stall.refusal
            if refusal is not None:
                raise refusal
            return (self._clock.perf_ns() - started) / 1e6
        if self._behind:
            raise throttled("wal_backlog_bytes", self._backlog_bytes, retry_after_ms=RETRY_AFTER_MS)
        raise throttled("wal_queue", QUEUE_BATCHES, retry_after_ms=RETRY_AFTER_MS)

    def synced_position(self) -> tuple[Position, int]:
        """How far the disk is known to hold the log, and the number of frames up to there.

        Everything before it has reached its commit point, so a replay that begins with the state as it is now may
        start there.
        """
        assert self._file is not None
        return Position(self._file.ordinal, self._synced_end), self._synced_frames

    @property
    def file(self) -> WalFile:
        """The active file."""
        assert self._file is not None
        return self._file

    # -- opening ----------------------------------------------------------------------------------------------------

    def resume(self, file: WalFile, *, end: int, frame_count: int, last_seqs: Mapping[int, int]) -> None:
        """Take over a recovered log whose last file ends at `end` (synced up to there). Blocking; called before
        `run`."""
        self._home = self._fs.identity(self._directory)
        self._handle = self._fs.open(file.path)
        self._allocated = self._handle.size()
        with refused_outright():
            self._make_room(self._handle, max(end, self._file_bytes))
        self._file = file
        file.end = self._data_end = self._synced_end = self._vouched = end
        self._frame_count = self._synced_frames = frame_count
        self._last_seqs = dict(last_seqs)

    def create(self, frame_count: int = 0) -> None:
        """Start an empty log, or its next file, whose first frame is the `frame_count`-th of the shard. Blocking."""
        self._home = self._fs.identity(self._directory)
        self._make_spare()
        with refused_outright():
            self._begin_file(self._enter_spare(frame_count))

    def abandon(self) -> None:
        """Blocking: let go of a log that is not written any more. Never called after `run`."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def write_opening(self, opening: Unsealed, count: int) -> None:
        """Blocking: write and sync the frames with which this life of the log begins (`docs/spec/crash.md` 2). Called
        before `run`."""
        handle, file = self._handle, self.file
        assert handle is not None
        with refused_outright():
            self._make_room(handle, file.end + len(opening))
        write_all(handle, opening.sealed(file.head.salt, file.end), file.end)
        handle.fdatasync()
        file.end += len(opening)
        self._frame_count += count
        self._data_end = file.end
        self._synced()

    # -- the task -----------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until `stop`, or until the shard fails; a failed shard's task waits for the stop. Never raises
        OSError."""
        task_status.started()
        try:
            async with trio.open_nursery() as nursery:
                while self.failed is None and not (self._stopping and not self._queue and self._clean):
                    if not self._urgent:
                        await self._wait_for_work()
                        awaited = self._urgent or self._patience_is_over or self._due or self.stall.due
                        if not (awaited or self._stopping):
                            continue
                    if self._queue and self.commit_window_ms > 0 and not self._stopping:
                        await trio.sleep(self.commit_window_ms / 1000)
                    await self._write_group()
                    if (
                        not self._spare_ready
                        and self.stall.refusal is None
                        and not self._spare_lock.locked()
                        and self.file.end > self._file_bytes // 2
                    ):
                        nursery.start_soon(self._prepare_spare)
            if self._stopping and self.failed is None and self._ended is None:
                await self._write_clean_stop()
        except BaseException:
            # A mistake of ours, or nobody wants the shard any more: who waits for it would do so for ever.
            self.failed = self.failed or read_only(f"WAL shard {self.shard} has ended")
            self._refuse_waiting(self.failed)
            raise
        finally:
            if self._handle is not None:
                self._handle.close()
                self._handle = None
            self._stopped.set()

    async def stop(self) -> None:
        """Refuse new batches, write and sync what is queued, leave a clean-stop mark, end the task. Returns when it
        has ended."""
        self._stopping = True
        self._wake.set()
        self._stop_asked.set()
        await self._stopped.wait()

    async def _write_clean_stop(self) -> None:
        """The mark that nothing was in flight; it counts only as the log's last frame."""
        handle, file = self._handle, self.file
        assert handle is not None
        mark = frames.encode_control(FrameType.CLEAN_STOP, {"clock": self._clock.now_ms()}, ts=self._clock.now_ms())
        try:
            await self._offload.run(Kind.WAL, partial(self._write_blocking, file, handle, [mark], file.end, True, None))
        except NoRoom as problem:
            log.warning("wal_not_stopped_cleanly", shard=self.shard, error=str(problem))
        except OSError as error:
            self._fail(error)
        else:
            self._frame_count += 1
            file.end += len(mark)
            self._synced()

    @property
    def _dirty(self) -> bool:
        return self.file.end > self._synced_end

    @property
    def _clean(self) -> bool:
        """Nothing unsynced, nothing unvouched."""
        return not self._dirty and self._data_end <= self._vouched

    @property
    def _due(self) -> bool:
        """Whether the background tick has come for what waits for it."""
        return not self._clean and (self._stopping or self._clock.monotonic_ms() - self._tick_from_ms >= SYNC_TICK_MS)

    @property
    def _patience_is_over(self) -> bool:
        return bool(self._queue) and self._clock.monotonic_ms() - self._patient_from_ms >= PATIENCE_MS

    async def _wait_for_work(self) -> None:
        """Sleep until a batch comes, the patience of those that are there is over, or the tick of an unsynced or
        unvouched shard is due."""
        if self._wake.is_set():
            self._wake = trio.Event()
        if self._urgent or self._stopping:
            return
        until = math.inf
        if self._queue:
            until = self._patient_from_ms + PATIENCE_MS
        if not self._clean:
            until = min(until, self._tick_from_ms + SYNC_TICK_MS)
        if self.stall.refusal is not None:
            until = min(until, self.stall.retry_at_ms)
        with trio.move_on_after(max(until - self._clock.monotonic_ms(), 0) / 1000):
            await self._wake.wait()

    def _take_group(self) -> list[Batch]:
        """What the next write takes: bounded by bytes, and by what still fits into the file (one batch always does)."""
        group: list[Batch] = []
        total = 0
        room = max(self._file_bytes - self.file.end, 0)
        while self._queue and total < GROUP_BYTES:
            size = len(self._queue[0].data)
            if (group and total + size > room) or isinstance(self._queue[0], Cut):
                break
            group.append(self._queue.popleft())
            total += size
        self._queue_bytes -= total
        self._in_group = group
        self._group_written = 0
        self._urgent = bool(self._queue)
        if not self.full:
            self._room.unpark_all()
        return group

    async def _write_group(self) -> None:
        """One turn: rotate if the next batch does not fit, write a group, sync if it is due, tell the batches."""
        try:
            if self.stall.due:
                await self._try_again()
            if self._ended is not None:
                await self._rotate()
            if self._queue and isinstance(self._queue[0], Cut):
                await self._go_over()
            elif self._queue and self._is_full_for(self._queue[0]):
                await self._rotate_or_grow()
            group = self._take_group()
            due = self._due
            vouch = self._data_end > self._vouched and not self._dirty and (bool(group) or due)
            sync = due or any(batch.wants_sync for batch in group)
            if not group and not sync:
                return
            if group or vouch:
                try:
                    await self._allocate(self.file.end + SYNCED_ROOM + sum(len(batch.data) for batch in group))
                except NoRoom:
                    self._put_back(group)
                    raise
            await self._write(group, vouch=vouch, sync=sync)
        except NoRoom as problem:
            await self._wait_for_room(problem.error)
        except OSError as error:
            self._fail(error)

    def _put_back(self, group: Sequence[Batch]) -> None:
        """The group was not written: it is in front of the queue, as before."""
        self._in_group = []
        self._queue.extendleft(reversed(group))
        self._queue_bytes += sum(len(batch.data) for batch in group)
        self._urgent = bool(self._queue)

    def _is_full_for(self, batch: Batch) -> bool:
        """Return True if the batch has to go to the next file."""
        file = self.file
        if file.end <= file.head.first:
            return False
        return file.head.salt is None or file.end + len(batch.data) > self._file_bytes

    async def _write(self, group: list[Batch], *, vouch: bool, sync: bool) -> None:
        file, handle = self.file, self._handle
        assert handle is not None
        start = file.end
        pieces = []
        if vouch:
            pieces.append(frames.encode_control(FrameType.SYNCED, {"file": file.ordinal, "offset": self._synced_end}))
            self._vouched = self._synced_end
        data_start = start + sum(map(len, pieces))
        pieces.extend(batch.data for batch in group)
        size = sum(map(len, pieces))
        self._in_group = group
        self._group_written = 0
        mixed = sync and not all(batch.wants_sync for batch in group)
        written = partial(self._tell_written, group, file, data_start)
        after_write = partial(self._offload.post, written) if mixed else None
        if not self._dirty:
            self._tick_from_ms = self._clock.monotonic_ms()
        sync_ns = await self._offload.run(
            Kind.WAL, partial(self._write_blocking, file, handle, pieces, start, sync, after_write)
        )
        written()
        file.end = start + size
        self._frame_count += len(pieces) - len(group) + sum(batch.frames for batch in group)
        if file.end > data_start:
            self._data_end = file.end
        for batch in group:
            if batch.last_seq and batch.frames:
                self._last_seqs[batch.topic_id] = batch.last_seq
        figures = self.figures
        figures.bytes_written += size
        figures.frames += len(pieces) - len(group) + sum(batch.frames for batch in group)
        figures.batches += 1 if size else 0
        self._unsynced.extend(group)
        self._in_group = []
        if sync:
            figures.fsyncs += 1
            figures.fsync_latency.observe(sync_ns / 1000)
        if sync or not self._dirty:  # a group without bytes, right behind a rotation
            self._synced()

    def _write_blocking(
        self,
        file: WalFile,
        handle: File,
        pieces: Sequence[Unsealed],
        start: int,
        sync: bool,
        after_write: Callable[[], None] | None,
    ) -> int:
        """In a worker thread: compute the checksums and write, then sync; returns the ns of the sync."""
        bodies = pieces[0].bodies if len(pieces) == 1 else [body for piece in pieces for body in piece.bodies]
        if bodies:
            self._make_room(handle, start + sum(map(len, pieces)))
            write_all(handle, frames.seal(bodies, file.head.salt, start), start)
        file.written_ns = self._clock.perf_ns()
        if not sync:
            return 0
        if after_write is not None:
            after_write()
        handle.fdatasync()
        return self._clock.perf_ns() - file.written_ns

    def _tell_written(self, group: list[Batch], file: WalFile, offset: int) -> None:
        """Tell each batch of the group where it lies, once."""
        if self._group_written or self._in_group is not group:
            return
        self._group_written = len(group)
        for batch in group:
            size = len(batch.data)
            batch.on_written(file, offset)
            offset += size

    def _synced(self) -> None:
        """A sync has covered all that was written."""
        self._synced_end = self.file.end
        self._synced_frames = self._frame_count
        self._tick_from_ms = self._clock.monotonic_ms()
        done, self._unsynced = self._unsynced, []
        for batch in done:
            batch.on_synced()

    def _make_room(self, handle: File, end: int) -> None:
        """Blocking: see to it that zeros are on the disk behind `end`, up to where frames will be written. So a file
        that has no FileEnd and does not end in zeros has lost its end (`log_end`). Raises NoRoom, and OSError if what
        was written before cannot be synced."""
        if end + 2 * TAIL_BYTES > self._allocated:
            try:
                handle.preallocate(end + 2 * TAIL_BYTES)
            except OSError as error:
                raise NoRoom(error) from error
            handle.fdatasync()
            self._allocated = end + 2 * TAIL_BYTES

    # -- rotation ---------------------------------------------------------------------------------------------------

    @property
    def _spare_path(self) -> str:
        return f"{self._directory}/next.tmp"

    def _make_spare(self) -> None:
        """In a worker thread: the next file, preallocated under a temporary name. Its zeros are on disk before it is
        used."""
        self._check_home()
        handle = self._fs.open(self._spare_path, create=True)
        try:
            handle.truncate(0)
            handle.preallocate(self._file_bytes + 2 * TAIL_BYTES)
            handle.fdatasync()
        except OSError:
            with suppress(OSError):  # what it takes is needed, and the next attempt is one with another file
                self._fs.unlink(self._spare_path)
            raise
        finally:
            handle.close()

    def _check_home(self) -> None:
        """In a worker thread: raises OSError where another directory is in the place of the shard's."""
        if self._fs.identity(self._directory) != self._home:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self._directory)

    async def _prepare_spare(self) -> None:
        """Preallocate ahead of the rotation. If that fails, what is left of the current file is a reserve."""
        async with self._spare_lock:
            try:
                await self._have_spare()
            except NoRoom as problem:
                self._stalled(problem.error)

    async def _have_spare(self) -> None:
        """Make the next file unless it is there. Raises NoRoom. The caller holds the lock."""
        if not self._spare_ready:
            try:
                await self._offload.run(Kind.FILES, self._make_spare)
            except OSError as error:
                raise NoRoom(error) from error
            self._spare_ready = True

    async def _try_again(self) -> None:
        """What the shard is stalled for may be there by now. Raises NoRoom where nothing can be written without it."""
        if self._ended is not None:
            await self._rotate()
        try:
            async with self._spare_lock:
                await self._have_spare()
        except NoRoom as problem:
            self._stalled(problem.error)
        else:
            self.stall.end()

    def _stalled(self, error: OSError) -> None:
        self.stall.begin(error)
        self._room.unpark_all()
        self._wake.set()  # to look at the clock: the spare is made beside the writer, which may be asleep

    async def _wait_for_room(self, error: OSError) -> None:
        """Nothing more can be written: wait, after a sync of what has been. A stop does not wait."""
        self._stalled(error)
        if self._stopping:
            self._give_up(error)
            return
        if self._dirty:
            try:
                await self._write([], vouch=False, sync=True)
            except OSError as failure:
                self._fail(failure)
                return
        self._settle_requests()
        if self.stall.lasts:
            self._tell_of_delay(error)
        with trio.move_on_after(max(self.stall.retry_at_ms - self._clock.monotonic_ms(), 0) / 1000):
            await self._stop_asked.wait()

    def _settle_requests(self) -> None:
        """Nothing can be written, and what was written is on the disk: whether it is, is all that some ask."""
        refusal = self.stall.refusal
        if refusal is None:  # what was missing has been made meanwhile, for a cut
            return
        waiting: deque[Batch] = deque()
        for batch in self._queue:
            if not isinstance(batch, SyncRequest):
                waiting.append(batch)
            elif waiting or isinstance(batch, Cut):
                batch.on_failed(refusal)
            else:
                batch.on_synced()
        self._queue = waiting
        self._urgent = bool(waiting)

    def _tell_of_delay(self, error: OSError) -> None:
        """Clients whose batches wait get an answer; the batches stay, as their seqs are given out."""
        refusal = read_only(
            f"WAL shard {self.shard} waits for room on the disk ({error.strerror or error}). What was sent is not "
            "stored; it is kept in memory, and may still be written when there is room"
        )
        for batch in self._queue:
            batch.on_delayed(refusal)

    async def _allocate(self, end: int) -> None:
        """Have room on the disk for the current file up to `end`. Raises NoRoom; OSError if the log cannot be
        synced."""
        if end + 2 * TAIL_BYTES > self._allocated:
            assert self._handle is not None
            await self._offload.run(Kind.WAL, partial(self._make_room, self._handle, end))

    async def _rotate_or_grow(self) -> None:
        """The next batch does not fit into the file: rotate, or, while the next file cannot be made, make this one
        longer. Raises NoRoom."""
        if self.stall.refusal is None or self.stall.due:
            try:
                await self._rotate()
            except NoRoom as problem:
                if self._ended is not None:
                    raise
                self._stalled(problem.error)
            else:
                return
        end = self.file.end + SYNCED_ROOM + len(self._queue[0].data)
        if self.file.head.salt is None or end > min(self._file_bytes * MOST_GROWTH, MOST_BYTES):
            raise NoRoom(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.file.path))
        await self._allocate(end)

    async def _rotate(self) -> None:
        """End the current file and begin the next. What was written before is synced by it. Raises NoRoom: where the
        current file is complete by then, nothing can be written before the next call has succeeded."""
        file, handle = self.file, self._handle
        assert handle is not None
        async with self._spare_lock:
            await self._have_spare()
            again = self._ended is not None
            if self._ended is None:
                ordinal = self._frame_count + 1
                ending = frames.encode_control(
                    FrameType.FILE_END,
                    {"last": dict(sorted(self._last_seqs.items())), "next": ordinal},
                    ts=self._clock.now_ms(),
                )
                await self._allocate(file.end + len(ending))
                sealed = ending.sealed(file.head.salt, file.end)
                await self._offload.run(Kind.WAL, partial(self._end_file, handle, sealed, file.end))
                self._synced()  # without FileEnd: a replay that began behind it would not know of it
                self._ended = ordinal, len(ending)
            ordinal, length = self._ended
            entered = await self._offload.run(Kind.WAL, partial(self._enter_spare, ordinal, again=again))
            self._spare_ready = False
        handle.close()
        self._ended = None
        self.figures.frames += 1
        self.figures.rotations += 1
        self.figures.fsyncs += 1
        file.end += length
        self._begin_file(entered)
        self.stall.end()
        self.rotated.set()
        self.rotated = trio.Event()

    async def _go_over(self) -> None:
        """Carry out the cut at the head of the queue. An empty file is a new one already."""
        cut = self._queue[0]
        assert isinstance(cut, Cut)
        if self.file.end > self.file.head.first:
            await self._rotate()
        self._queue.popleft()
        self._urgent = bool(self._queue)
        cut.ordinal = self.file.ordinal
        cut.on_synced()

    def _end_file(self, handle: File, ending: bytes, at: int) -> None:
        """In a worker thread. FileEnd and all before it are synced before the next file gets its name
        (`docs/spec/crash.md` 5)."""
        write_all(handle, ending, at)
        handle.fdatasync()
        handle.truncate(at + len(ending))  # behind the sync: a file without FileEnd never ends before its zeros

    def _enter_spare(self, ordinal: int, *, again: bool = False) -> _Entered:
        """In a worker thread: give the preallocated file its header and its name, both durably, and open it. Raises
        NoRoom where it has not got them, and may be called `again`; OSError where that is not known."""
        name = wal_name(ordinal)
        path = f"{self._directory}/{name}"
        try:
            self._check_home()
            renamed = again and self._fs.exists(path)  # what was answered by an error may have been done
            handle = self._fs.open(path if renamed else self._spare_path)
        except OSError as error:
            raise NoRoom(error) from error
        try:
            try:
                if not renamed:
                    self._write_header(handle, ordinal)
                    self._fs.rename(self._spare_path, path)
            except OSError as error:
                raise NoRoom(error) from error
            self._fs.sync_dir(self._directory)
            self._name_current(name)
        except BaseException:
            handle.close()
            raise
        return _Entered(ordinal, path, new_head(self._spare_salt), handle)

    def _write_header(self, handle: File, ordinal: int) -> None:
        """Give the spare a salt. The header is synced before anybody can find the file."""
        self._spare_salt = self._fs.salt()
        try:
            write_all(handle, encode_file_header(self._spare_salt, ordinal), 0)
            handle.fdatasync()
        except OSError:
            self._spare_ready = False  # the next attempt is one with another file
            raise

    def _name_current(self, name: str) -> None:
        """In a worker thread: say in CURRENT which file is active. It is for people, so it may fail."""
        try:
            write_current(self._fs, self._directory, name)
        except OSError as error:
            if not self._current_told:
                log.warning("wal_current_not_written", shard=self.shard, error=str(error), consequence="none")
            self._current_told = True

    def _begin_file(self, entered: _Entered) -> None:
        """Make the file the active one."""
        ordinal, path, head, handle = entered
        self._handle = handle
        self._file = file = self._files.add(self.shard, ordinal, path, head)
        self._frame_count = self._synced_frames = ordinal
        self._last_seqs = {}
        file.end = self._data_end = self._synced_end = self._vouched = head.first
        self._allocated = self._file_bytes + 2 * TAIL_BYTES

    # -- failure ----------------------------------------------------------------------------------------------------

    def _fail(self, error: OSError) -> None:
        """End of this shard's writing: everything not yet acked fails, nothing is retried."""
        self.failed = read_only(
            f"WAL shard {self.shard} has failed ({error.strerror or error}); it stays read-only until a restart"
        )
        self.figures.read_only = 1
        log.error(
            "wal_shard_read_only",
            shard=self.shard,
            error=str(error),
            file=self._file.path if self._file is not None else None,
            batches_failed=len(self._in_group) + len(self._unsynced) + len(self._queue),
            consequence="what changes its topics is refused (503 read_only) until a restart; reads go on",
        )
        self._refuse_waiting(self.failed)
        self._on_failure(self.shard)

    def _give_up(self, error: OSError) -> None:
        """A stop while there is no room: what waits is refused. Nothing of it was written, so nothing is uncertain."""
        self.failed = read_only(f"WAL shard {self.shard} was stopped without room on the disk ({error.strerror})")
        self._refuse_waiting(self.failed)

    def _refuse_waiting(self, error: ApiError) -> None:
        """Nothing of what is not acked yet will be."""
        waiting = [*self._in_group, *self._unsynced, *self._queue]
        self._in_group, self._unsynced = [], []
        self._queue.clear()
        self._queue_bytes = 0
        for batch in waiting:
            batch.on_failed(error)
        self._room.unpark_all()


def write_current(fs: Fs, directory: str, name: str) -> None:
    """Advisory: names the active file for people. The listing decides, so it is not synced."""
    path = f"{directory}/CURRENT"
    handle = fs.open(path + ".tmp", create=True)
    try:
        handle.truncate(0)
        write_all(handle, name.encode() + b"\n", 0)
    finally:
        handle.close()
    fs.rename(path + ".tmp", path)
