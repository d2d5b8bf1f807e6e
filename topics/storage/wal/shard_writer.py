"""Shard writers: group commit, rotation, preallocation, vouching and failure (`docs/spec/storage.md` section 2,
`docs/spec/crash.md` 3 to 5, 25).

Theory of operation
-------------------
A shard is one append-only log in files `wal-<ordinal of first frame>.log`. Everything that must survive is a
`WalBatch`: bytes of one or more frames that count together or not at all. Batches are queued in the order in which they
were decided and are written in that order; there is no other order.

One task (`ShardWriter.run`) takes a group from the queue and has it written and, if a batch of the group waits for it
or the background tick is due, synced. A worker thread does that in one call; a small group without a sync is written by
the task itself (`group_writes`). The next group gathers meanwhile: on the loop that is what was queued in one turn of
it. A batch is told of three things, each at most once and always on the loop: `on_written`, `on_synced` or `on_failed`.
The thread posts the first between write and sync, so a batch that waits only for write(2) never waits for another
batch's sync. A *patient* batch, for which nothing waits, goes with the next group, and after `PATIENCE_MS` by itself: a
write costs as much as the call that made the batch.

A Synced frame *vouches* for the log that a sync has covered, so that recovery can tell damage (below a vouched
position) from a torn end (above it). The frame travels in front of the next group; when nothing follows, it is written
once at the next idle tick, synced once, and then the shard is silent: a Synced frame never asks for another. A rotated
file ends in FileEnd and is synced whole before its successor gets its name, so a successor vouches for its predecessor.

The checksums of frames depend on their place and on the salt of the file, so the thread that writes a group computes
them, for the whole group in one pass. The salt is in the header of a file, which is synced before the file gets its
name: no crash leaves a named file whose frames cannot be verified. To a file of version 1, left by an older version,
only the verdict of recovery is added: the first group goes to a file with a salt.

A failed write or sync of the log, or of its directory, ends the writer. Everything not yet acked fails, and the shard
is read-only until a restart. Nothing is retried, because after a failed fdatasync the kernel may call pages clean that
never reached the disk. If the disk refuses what comes before the write (the next file, its name, room in the current
one), nothing is uncertain: the shard is stalled, and tries again (`topics.storage.wal.stall`). Room is allocated ahead
of a write, so that a full disk is noticed there. While the next file cannot be made, the current one grows past its
size.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from topics.errors import ApiError, read_only
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.runtime.wakeup import Wakeup
from topics.storage.files.fs import Fs, write_all
from topics.storage.wal import frames
from topics.storage.wal.batches import LogCut, LogMark, WalBatch
from topics.storage.wal.frames import FrameType, UnsealedFrames
from topics.storage.wal.group_writes import GroupWrites
from topics.storage.wal.round_waits import RoundWaits
from topics.storage.wal.shard_log import NamedFile, ShardLog
from topics.storage.wal.stall import NoRoom, Stall, refused_outright
from topics.storage.wal.unacked_batches import UnackedBatches
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles, most_bytes
from topics.storage.wal.write_queue import WriteQueue
from topics.storage.wal.write_right import WriteRight
from topics.telemetry.figures import WalFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

SYNC_TICK_MS: Final = 20
"""The usual period of the background sync (ms): for at most this long an acked `disk` record is only in the page
cache."""

SYNCED_ROOM: Final = 256
"""Bytes that a Synced frame takes at most."""


class ShardWriter:
    """One shard's log and the task that writes it.

    Made by the store. `resume` or `create` must be called before `run`, and `stop` ends it; `submit` and `cut` never
    wait. The module describes how it works.
    """

    def __init__(
        self,
        *,
        shard: int,
        directory: str,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        writes: GroupWrites,
        files: WalFiles,
        file_bytes: int,
        backlog_bytes: int,
        figures: WalFigures,
        on_failure: Callable[[int], None],
        sync_tick_ms: int = SYNC_TICK_MS,
        round_waits: RoundWaits | None = None,
        right: WriteRight | None = None,
    ) -> None:
        self.shard = shard
        self.figures = figures
        self.failed: ApiError | None = None
        self.commit_window_ms = 0.0
        """How long a group gathers before it is written (ms); the governor widens it under pressure."""
        self.rotated = trio.Event()
        """Set, and replaced, at each rotation: the compactor waits for it."""
        self._clock = clock
        self._offload = offload
        self._writes = writes
        self._files = files
        self._file_bytes = file_bytes
        self._on_failure = on_failure
        self._right = right or WriteRight()
        self._tick_ms = sync_tick_ms
        self.stall = Stall(shard, clock)
        self.queue = WriteQueue(clock, figures, backlog_bytes, self.stall)
        self._wake = Wakeup()
        self._stopping = False
        self._stopped = trio.Event()
        self._log = ShardLog(shard, directory, fs, clock, file_bytes)
        self._file: WalFile | None = None
        self._frame_count = 0
        """Ordinal of the next frame."""
        self._last_seqs: dict[int, int] = {}
        """Highest seq of each topic in the current file (for FileEnd)."""
        self._unacked = UnackedBatches(shard, round_waits or RoundWaits(clock))
        self._data_end = 0
        """Offset behind the last frame other than a Synced frame. Everything below `_synced_end` is on disk."""
        self._synced_end = self._synced_frames = self._vouched = 0
        self._tick_from_ms = clock.monotonic_ms()
        """When the first of the batches was written that wait for the background tick."""
        self._spare_lock = trio.Lock()
        self._ended: tuple[int, int] | None = None
        """Set while the current file is complete and the next one has no name: its ordinal, and FileEnd's length."""
        self._stop_asked = trio.Event()

    # -- calls of the engine ---------------------------------------------------------------------------------------

    def submit(self, batch: WalBatch, *, patient: bool = False) -> None:
        """Queue a batch; never waits. Raises `503 read_only` on a failed shard, `503 not_owner` if this process must
        not change anything any more, and then the batch is not queued."""
        if self.failed is not None:
            raise self.failed
        self._right.check()
        if self._stopping:
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        if self.queue.put(batch, patient=patient):
            self._wake.set()

    async def prepare_cut(self) -> None:
        """Make the next file for a cut, so that a lack of room is noticed before it. Raises OSError."""
        async with self._spare_lock:
            if not self._log.is_spare_ready and self.failed is None and not self._stopping:
                await self._offload.run(Pool.FILES, self._log.make_spare)
                self._log.is_spare_ready = True
                self.stall.end()

    def cut(self) -> LogCut:
        """End the current file between the batches queued by now and later ones; never waits. Cuts of several shards
        made in one step of the loop are one moment for all of them. Raises like `submit`."""
        cut = LogCut()
        self.submit(cut)
        return cut

    def mark(self) -> LogMark:
        """Ask for the place behind everything queued by now; as `cut` does otherwise."""
        mark = LogMark()
        self.submit(mark)
        return mark

    def synced_position(self) -> tuple[LogPosition, int]:
        """Return how far the disk is known to have the log, and the number of frames up to there. Everything before it
        has reached its commit point, but for what waits for a round (`RoundWaits.starts`). So a replay that begins with
        the current state may start there, or where the first of these is."""
        assert self._file is not None
        return LogPosition(self._file.ordinal, self._synced_end), self._synced_frames

    @property
    def file(self) -> WalFile:
        """The active file."""
        assert self._file is not None
        return self._file

    # -- opening ----------------------------------------------------------------------------------------------------

    def resume(self, file: WalFile, *, end: int, frame_count: int, last_seqs: Mapping[int, int]) -> None:
        """Take over a recovered log whose last file ends at `end`, synced. Blocking; called before `run`."""
        self._log.resume(file.path)
        with refused_outright():
            self._log.make_room(max(end, self._file_bytes))
        self._file = file
        file.end = self._data_end = self._synced_end = self._vouched = end
        self._frame_count = self._synced_frames = frame_count
        self._last_seqs = dict(last_seqs)

    def create(self, frame_count: int = 0) -> None:
        """Start an empty log, or its next file, whose first frame has the ordinal `frame_count`. Blocking; called
        before `run`."""
        with refused_outright():
            self._begin_file(self._log.create(frame_count))

    def abandon(self) -> None:
        """Close a log that will not be written any more. Blocking; never called after `run`."""
        self._log.close()

    def write_opening(self, opening: UnsealedFrames, count: int) -> None:
        """Write and sync the first frames of this process's part of the log (`docs/spec/crash.md` 2). Blocking; called
        before `run`."""
        handle, file = self._log.handle, self.file
        with refused_outright():
            self._log.make_room(file.end + len(opening))
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
                nursery.start_soon(self._wake.run)
                while self.failed is None and not (self._stopping and not self.queue and self._clean):
                    if not self.queue.is_urgent:
                        await self._wait_for_work()
                        now = self._clock.monotonic_ms()
                        awaited = (
                            self.queue.is_urgent or now >= self.queue.patient_until_ms or self._due or self.stall.due
                        )
                        if not (awaited or self._stopping):
                            continue
                    if self.queue and self.commit_window_ms > 0 and not self._stopping:
                        await trio.sleep(self.commit_window_ms / 1000)
                    await self._write_group()
                    if (
                        not self._log.is_spare_ready
                        and self.stall.refusal is None
                        and not self._spare_lock.locked()
                        and self.file.end > self._file_bytes // 2
                    ):
                        nursery.start_soon(self._prepare_spare)
                self._wake.close()
            if self._stopping and self.failed is None and self._ended is None:
                await self._write_clean_stop()
        except BaseException:
            # An unexpected error, or a cancellation: fail what waits for the shard, which would wait for ever.
            self.failed = self.failed or read_only(f"WAL shard {self.shard} has ended")
            self._refuse_waiting(self.failed)
            raise
        finally:
            self._log.close()
            self._stopped.set()

    async def stop(self) -> None:
        """Refuse new batches, write and sync what is queued, leave a clean-stop mark. Returns when the task is over."""
        self._stopping = True
        self._wake.set()
        self._stop_asked.set()
        await self._stopped.wait()

    async def _write_clean_stop(self) -> None:
        """Write the mark that nothing was in flight; it counts only as the log's last frame."""
        file = self.file
        mark = frames.encode_control(FrameType.CLEAN_STOP, {"clock": self._clock.now_ms()}, ts=self._clock.now_ms())
        try:
            await self._offload.run(Pool.WAL, partial(self._log.write, file, [mark], file.end, True, None))
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
        """Return True if everything is synced and vouched for."""
        return not self._dirty and self._data_end <= self._vouched

    @property
    def _due(self) -> bool:
        """Return True if the background tick is due for unsynced or unvouched frames."""
        return not self._clean and (self._stopping or self._clock.monotonic_ms() - self._tick_from_ms >= self._tick_ms)

    async def _wait_for_work(self) -> None:
        """Sleep until a batch comes, the patience of queued ones is over, or the tick of an unclean shard is due."""
        self._wake.clear()
        if self.queue.is_urgent or self._stopping:
            return
        until = self.queue.patient_until_ms
        if not self._clean:
            until = min(until, self._tick_from_ms + self._tick_ms)
        if self.stall.refusal is not None:
            until = min(until, self.stall.retry_at_ms)
        await self._wake.wait(max(until - self._clock.monotonic_ms(), 0) / 1000)

    async def _write_group(self) -> None:
        """One turn: rotate if the next batch does not fit, write a group, sync if it is due, tell the batches."""
        try:
            if self.stall.due:
                await self._try_again()
            if self._ended is not None:
                await self._rotate()
            await self._reach_marks()
            if self.queue and isinstance(self.queue.first, LogCut):
                await self._go_over()
            elif self.queue and self._is_full_for(self.queue.first):
                await self._rotate_or_grow()
            group = self.queue.take_group(max(self._file_bytes - self.file.end, 0))
            self._unacked.begin(group)
            due = self._due
            vouch = self._data_end > self._vouched and not self._dirty and (bool(group) or due)
            sync = due or any(batch.wants_sync for batch in group)
            if not group and not sync:
                return
            if group or vouch:
                try:
                    await self._allocate(self.file.end + SYNCED_ROOM + sum(len(batch.data) for batch in group))
                except NoRoom:
                    self._unacked.begin([])
                    self.queue.put_back(group)
                    raise
            await self._write(group, vouch=vouch, sync=sync)
            if group:
                self.stall.is_blocked = False
        except NoRoom as problem:
            await self._wait_for_room(problem.error)
        except OSError as error:
            self._fail(error)

    def _is_full_for(self, batch: WalBatch) -> bool:
        """Return True if the batch has to go to the next file."""
        file = self.file
        if file.end <= file.head.first:
            return False
        return file.head.salt is None or file.end + len(batch.data) > self._file_bytes

    async def _write(self, group: list[WalBatch], *, vouch: bool, sync: bool) -> None:
        file, start, pieces = self.file, self.file.end, []
        if vouch:
            pieces.append(frames.encode_control(FrameType.SYNCED, {"file": file.ordinal, "offset": self._synced_end}))
            self._vouched = self._synced_end
        data_start = start + sum(map(len, pieces))
        pieces.extend(batch.data for batch in group)
        size = sum(map(len, pieces))
        self._unacked.begin(group)
        mixed = sync and not all(batch.wants_sync for batch in group)
        written = partial(self._tell_written, group, file, data_start)
        if not self._dirty:
            self._tick_from_ms = self._clock.monotonic_ms()
        sync_ns = await self._writes.write(self._log, file, pieces, start, sync, written if mixed else None)
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
        self._unacked.end_group()
        if sync:
            figures.fsyncs += 1
            figures.fsync_latency.observe(sync_ns / 1000)
        if sync or not self._dirty:  # a group without bytes, right behind a rotation
            self._synced()

    def _tell_written(self, group: list[WalBatch], file: WalFile, offset: int) -> None:
        """Tell each batch of the group its place, once."""
        if not self._stands_down():
            self._unacked.tell_written(group, file, offset)

    def _synced(self) -> None:
        """Note that a sync has covered everything written."""
        before = LogPosition(self.file.ordinal, self._synced_end), self._synced_frames
        self._synced_end = self.file.end
        self._synced_frames = self._frame_count
        self._tick_from_ms = self._clock.monotonic_ms()
        if not self._stands_down():
            self._unacked.tell_synced(before)

    # -- rotation ---------------------------------------------------------------------------------------------------

    async def _prepare_spare(self) -> None:
        """Preallocate the next file ahead of the rotation. If that fails, the rest of the current file is a reserve."""
        async with self._spare_lock:
            try:
                await self._have_spare()
            except NoRoom as problem:
                self._stalled(problem.error)

    async def _have_spare(self) -> None:
        """Make the next file unless it exists. Raises NoRoom. The caller holds the lock."""
        if not self._log.is_spare_ready:
            try:
                await self._offload.run(Pool.FILES, self._log.make_spare)
            except OSError as error:
                raise NoRoom(error) from error
            self._log.is_spare_ready = True

    async def _try_again(self) -> None:
        """Try to get what the shard is stalled for. Raises NoRoom if nothing can be written without it."""
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
        self.queue.wake_waiting()
        self._wake.set()  # to look at the clock: the spare is made beside the writer, which may be asleep

    async def _wait_for_room(self, error: OSError) -> None:
        """Sync what was written and wait, because nothing more can be written. A stop does not wait."""
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
        if self.stall.refusal is not None:  # else the next file has been made meanwhile, for a cut
            self.queue.settle_requests(self.stall.refusal, self.synced_position()[0])
            self.stall.is_blocked = bool(self.queue) or self._ended is not None
        if self.stall.lasts:
            self.queue.tell_of_delay(self.stall.delay(error))
        with trio.move_on_after(max(self.stall.retry_at_ms - self._clock.monotonic_ms(), 0) / 1000):
            await self._stop_asked.wait()

    async def _allocate(self, end: int) -> None:
        """Allocate room on disk for the current file up to `end`. Raises NoRoom; OSError if the log cannot be
        synced."""
        if not self._log.has_room(end):
            await self._offload.run(Pool.WAL, partial(self._log.make_room, end))

    async def _rotate_or_grow(self) -> None:
        """Rotate for a batch that does not fit; let the file grow while the next one cannot be made. Raises NoRoom."""
        if self.stall.refusal is None or self.stall.due:
            try:
                await self._rotate()
            except NoRoom as problem:
                if self._ended is not None:
                    raise
                self._stalled(problem.error)
            else:
                return
        if not self.queue:  # the shard was fenced meanwhile
            return
        end = self.file.end + SYNCED_ROOM + len(self.queue.first.data)
        if self.file.head.salt is None or end > most_bytes(self._file_bytes):
            raise NoRoom(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.file.path))
        await self._allocate(end)

    async def _rotate(self) -> None:
        """End and sync the current file and begin the next. Raises NoRoom: if the current file is complete by then,
        nothing can be written until a further call has succeeded."""
        file = self.file
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
                await self._offload.run(Pool.WAL, partial(self._log.end_file, sealed, file.end))
                self._synced()  # a position before FileEnd: a replay that began behind FileEnd would not know of it
                self._ended = ordinal, len(ending)
            ordinal, length = self._ended
            entered = await self._offload.run(Pool.WAL, partial(self._log.enter_spare, ordinal, again=again))
            self._log.is_spare_ready = False
        self._ended = None
        self.figures.frames += 1
        self.figures.rotations += 1
        self.figures.fsyncs += 1
        file.end += length
        self._begin_file(entered)
        self.stall.end()
        self.rotated.set()
        self.rotated = trio.Event()

    async def _reach_marks(self) -> None:
        """Sync what was queued before marks at the head of the queue, and tell them where that ends."""
        while self.queue and isinstance(self.queue.first, LogMark):
            if self._dirty:
                await self._write([], vouch=False, sync=True)
            else:  # and it was not fenced meanwhile, which empties the queue
                self.queue.take_mark().reach(self.synced_position()[0])

    async def _go_over(self) -> None:
        """Carry out the cut at the head of the queue. If the current file is empty, it is used as the new one."""
        if self.file.end > self.file.head.first:
            await self._rotate()
        if self.queue:  # else the shard was fenced meanwhile
            cut = self.queue.take_cut()
            cut.ordinal = self.file.ordinal
            cut.on_synced()

    def _begin_file(self, entered: NamedFile) -> None:
        """Make the file the active one."""
        self._log.begin(entered)
        ordinal, head = entered.ordinal, entered.head
        self._file = file = self._files.add(self.shard, ordinal, entered.path, head)
        self._frame_count = self._synced_frames = ordinal
        self._last_seqs = {}
        file.end = self._data_end = self._synced_end = self._vouched = head.first

    # -- failure ----------------------------------------------------------------------------------------------------

    def fence(self, error: ApiError) -> None:
        """Another process may own the data: fail everything that is not acked yet, and take nothing any more. A group
        that a worker thread is writing may still get into the log."""
        if self.failed is None:
            self.failed = error
            self._refuse_waiting(error)
            self._stop_asked.set()

    def _stands_down(self) -> bool:
        """Return True if nobody may be told any more that something is in the log."""
        if not self._right.is_held:
            self.fence(self._right.refusal)
        return self.failed is not None

    def _fail(self, error: OSError) -> None:
        """End this shard's writing: everything not yet acked fails, nothing is retried."""
        self.failed = read_only(
            f"WAL shard {self.shard} has failed ({error.strerror or error}); it stays read-only until a restart"
        )
        self.figures.read_only = 1
        log.error(
            "wal_shard_read_only",
            shard=self.shard,
            error=str(error),
            file=self._file.path if self._file is not None else None,
            batches_failed=len(self._unacked) + len(self.queue),
            consequence="what changes its topics is refused (503 read_only) until a restart; reads go on",
        )
        self._refuse_waiting(self.failed)
        self._on_failure(self.shard)

    def _give_up(self, error: OSError) -> None:
        """Refuse what waits, at a stop without room. None of it was written, so nothing is uncertain."""
        self.failed = read_only(f"WAL shard {self.shard} was stopped without room on the disk ({error.strerror})")
        self._refuse_waiting(self.failed)

    def _refuse_waiting(self, error: ApiError) -> None:
        """Fail every batch that is not acked yet."""
        for batch in [*self._unacked.take(), *self.queue.close(error)]:
            batch.on_failed(error)
