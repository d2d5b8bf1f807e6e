"""The compactor: checkpoints (`docs/design/segments.md` section 3). Changes go into segments and manifests, then a
snapshot says where replay begins, then WAL files that are no longer needed are removed.

A *hold* keeps the files that its answers have named as they are (`docs/design/holds.md`). Checkpoints go on during it;
the files that they would have removed are removed with the first one after the hold.

A checkpoint never delays an append: topics are captured one after another between other work, each in one step of the
loop. A captured part may be ahead of the disk, and is written only after everything queued by then is synced. The cost
depends on what is new; the snapshot is joined from parts that are encoded already.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

import msgspec
import trio

from topics.config import Settings
from topics.errors import ApiError
from topics.runtime.offload import Offload, Pool
from topics.runtime.process_limits import trim_memory
from topics.storage.files.fs import Fs
from topics.storage.maintenance.base_capture import BaseCapture
from topics.storage.maintenance.checkpoint_files import SLICE_TOPICS, CheckpointFiles
from topics.storage.maintenance.file_holds import BASE, FileHolds
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.named_files import NOTHING, NamedFiles
from topics.storage.maintenance.segment_growth import RecordsDamaged
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.storage.snapshots.snapshot import KEPT, Snapshot, dump_rows, snapshot_numbers, write_reserve, write_snapshot
from topics.storage.store import ReplayStart, Store
from topics.storage.wal.batches import ControlBatch, MaintenanceBatch
from topics.storage.wal.frames import FrameType, encode_control
from topics.storage.wal.shard_writer import ShardWriter
from topics.storage.wal.wal_files import WalFile
from topics.telemetry.figures import CheckpointFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LOCK_WAIT_S: Final = 1.0
"""How long a checkpoint waits for the lock of one topic's files (s); then it goes on without the topic, and keeps its
WAL."""


TRIM_AFTER_BYTES: Final = 32 << 20
"""So much of the log is covered before a checkpoint returns unused memory to the system."""

LITTLE_SHARE: Final = 64
"""If one byte in so many of it was written during the last checkpoint, the log is not at rest."""

REST: Final = 4
"""A checkpoint for sealing waits for so many times the duration of the last checkpoint. So any number of calls for
sealing keeps the disk busy with checkpoints for a fifth of the time at most."""


class LogKeeper(Protocol):
    """Somebody who still needs files of the log that no replay needs."""

    def may_drop(self, file: WalFile) -> bool:
        """Return False if the file has to stay. All younger ones of its shard stay with it. Never waits."""
        ...


class CheckpointResult(NamedTuple):
    """The result of a checkpoint."""

    number: int
    """Number of its snapshot."""
    positions: dict[int, list[int]]
    """File ordinal and offset where replay begins, by shard."""
    bytes: int


class _Hold(NamedTuple):
    """A hold whose files were named."""

    taken: CheckpointResult
    """The checkpoint with which it began."""
    named: NamedFiles


class Compactor:
    """Takes checkpoints, one at a time. Made once by the engine; `run` is a task, and `checkpoint` may be called beside
    it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        source: TopicSource,
        checkpoints: TopicCheckpoints,
        file_holds: FileHolds,
        *,
        fs: Fs,
        offload: Offload,
    ) -> None:
        self._settings = settings
        self._store = store
        self._source = source
        self._checkpoints = checkpoints
        self._file_holds = file_holds
        self._fs = fs
        self._offload = offload
        self.files = CheckpointFiles(settings, store, source, checkpoints, file_holds, fs=fs, offload=offload)
        self.figures = CheckpointFigures()
        """The checkpoints of this process."""
        self.keeper: LogKeeper | None = None
        """Who is asked before a file of the log is removed."""
        self._lock = trio.Lock()
        self._wake = trio.Event()
        self._schedules_stored = source.schedules.version
        """Which schedules the newest snapshot has."""
        self._kept: list[list[ReplayStart]] = []
        """Where the replay of each snapshot on disk begins, oldest first, as far as this process knows."""
        self._reserve: list[ReplayStart] | None = None
        """Where the replay of the snapshot in reserve begins, if this process has written it."""
        self._hold: _Hold | None = None
        """The present hold, or the last one until a checkpoint has removed the files that it kept."""
        self._keeps_outdated = True
        """True if there may be manifests of lower generations that a hold has kept; a start does not look for them."""
        self._announced = True
        """True unless the last `announce` has failed: then the log may lack what a checkpoint relies on."""
        self._failures = 0
        """How many checkpoints have failed since the last success."""
        self._stored = 0
        """Topics and versions of the schedules that checkpoints have stored."""
        self._begun = 0
        """How many checkpoints have begun."""
        self._ended = 0
        """Which of them was the last that succeeded or failed, and was not cancelled."""
        self._failure = ""
        """Why that one has failed; empty if it has not."""
        self._trimmed = 0
        """Bytes of the log that checkpoints had covered when unused memory was returned last."""
        self._rested_at = -math.inf
        """From when on (`trio.current_time`) a checkpoint may be taken to seal a topic."""

    async def run(self) -> None:
        """Take a checkpoint at every interval in which something was written or a hold has ended, and whenever a WAL
        file is full, until cancelled. A failure is logged and tried again at the next occasion."""
        async with trio.open_nursery() as nursery:
            for writer in self._store.writers:
                nursery.start_soon(self._watch_rotations, writer)
            while True:
                with trio.move_on_after(self._settings.checkpoint_ms / 1000):
                    await self._wake.wait()
                self._wake = trio.Event()
                schedules_changed = self._source.schedules.version != self._schedules_stored
                if self._source.changed or schedules_changed or self._hold is not self._lasting:
                    await self.try_checkpoint()

    async def _watch_rotations(self, writer: ShardWriter) -> None:
        while True:
            await writer.rotated.wait()
            self._wake.set()
            await trio.lowlevel.checkpoint()

    async def try_checkpoint(self, *, marks: bool = True) -> bool:
        """Take a checkpoint; a failure is only logged. Return True if it succeeded."""
        try:
            await self.checkpoint(marks=marks)
        except (OSError, ApiError) as error:
            self._failures += 1
            log.warning(
                "checkpoint_failed",
                error=str(error),
                failures=self._failures,
                consequence="the log grows, and the next start takes longer; it is tried again",
            )
            return False
        self._failures = 0
        return True

    @property
    def _lasting(self) -> _Hold | None:
        """The present hold, None without one."""
        return self._hold if self._file_holds.held else None

    async def checkpoint(self, *, marks: bool = True) -> CheckpointResult:
        """Take a checkpoint, then drop files that are no longer needed, unless there is a hold.

        `marks=False` leaves the log alone (its writers have stopped). Raises OSError if the disk fails, ApiError on a
        failed shard. After a cancellation some topics are stored and there is no new snapshot.
        """
        async with self._lock:
            return await self._checkpoint(marks)

    async def seal(self, topic: LiveTopic) -> None:
        """Seal the active segment of a topic with all that is published. Takes a checkpoint if there is something to be
        sealed, unless one that begins after this call does it: calls for many topics share one, and its failure. Waits
        before it, for up to `REST` times as long as the last one took.

        Raises like `checkpoint`, and OSError if the checkpoint had to pass over the topic; then, and after a
        cancellation, the next one that succeeds seals it. Returns without having sealed if the topic is deleted
        meanwhile.
        """
        if _is_sealed(topic):
            return
        disk = topic.on_disk
        disk.seals_asked += 1
        asked, begun = disk.seals_asked, self._begun
        topic.mark_changed()
        while True:
            async with self._lock:
                if disk.seals_done >= asked or topic.deleted:
                    return
                if self._ended > begun:
                    raise OSError(errno.EAGAIN, self._failure or f"topic {topic.name!r} is being worked on")
                rest = self._rested_at - trio.current_time()
                if rest <= 0:
                    await self._checkpoint(marks=True)
            await trio.sleep(max(rest, 0))

    async def name_files(self, hold_ms: int = 0) -> tuple[list[str], CheckpointResult]:
        """Take a checkpoint. Return the files that it consists of, relative to the data directory, and itself; files in
        the cold directory have `cold:` in front. With `hold_ms`, none of the files is changed or removed for so long
        from the return on, and the files of the log that are no longer written to are among them.

        During a hold, a call takes no new checkpoint and prolongs the hold. It names the same snapshots, which identify
        the hold, and otherwise the present files: those that a crash after all later checkpoints would leave if it had
        damaged their snapshots. Raises like `checkpoint`.
        """
        with ExitStack() as stack:
            if hold_ms and self._lasting is not None:
                # A checkpoint that is going on may take longer than the hold still lasts.
                stack.enter_context(self._file_holds.naming())
            async with self._lock:
                hold = await self._begun_hold()
                if not hold_ms:
                    return await self.files.names(hold.named, held=False), hold.taken
                before = self._lasting
                self._hold, self._keeps_outdated = hold, True
                # Naming the files may take longer than `hold_ms`, too.
                stack.enter_context(self._file_holds.naming())
                try:
                    await self._file_holds.hold(hold_ms)
                    names = await self.files.names(hold.named, held=True)
                except BaseException:
                    self._hold = before
                    raise
                self._file_holds.prolong(hold_ms)
                return names, hold.taken

    async def _begun_hold(self) -> _Hold:
        """Return the present hold, or else a new one, with a checkpoint; it does not last yet."""
        hold = self._lasting
        if hold is None:
            taken = await self._checkpoint(marks=True)
            numbers = await self._offload.run(Pool.FILES, partial(snapshot_numbers, self._fs, self._store.datadir))
            hold = _Hold(taken, NamedFiles(numbers))
        return hold

    async def capture(self, hold_ms: int) -> BaseCapture:
        """Return what a base in the bucket is made of, as of a moment within this call. Takes a checkpoint, unless a
        hold lasts; that is shared then. From now on a hold lasts at least `hold_ms`; it can be prolonged by `prolong`
        and ended by `release`. Raises like `checkpoint`; then it is not held, either."""
        async with self._lock:
            hold = await self._begun_hold()
            self._hold, self._keeps_outdated = hold, True
            await self._file_holds.hold(hold_ms, BASE)
            try:
                await self.files.prepare_cut()
                starts = self._kept[-1]
                # In one step, so that nothing is in the fields that the log does not have before the cut.
                moment = self.files.cut(held=True)
                fields = msgspec.structs.asdict(self._picture(hold.taken.number, starts, []))
                cut, wal_files = await self.files.log_of(moment, [start.position for start in starts])
                topics = await self.files.topics_of(moment, hold.named)
            except BaseException:
                self.release()
                raise
            del fields["topics"]
            fields["number"] = self._store.snapshot_number
            return BaseCapture(hold, fields, cut, wal_files, topics, moment.foreign)

    @property
    def identity(self) -> str:
        """The identity of the data directory."""
        return self._store.identity

    @property
    def version(self) -> int:
        """Rises whenever there is something that the last capture has not seen."""
        return self.stored_version + len(self._source.changed)

    @property
    def stored_version(self) -> int:
        """The value of `version` as long as nothing changes."""
        return self._stored + self._source.schedules.version

    async def prolong(self, capture: BaseCapture, hold_ms: int) -> None:
        """Have the hold of a capture last `hold_ms` from now on. Raises OSError if it was over before."""
        if self._lasting is not capture.hold:
            raise OSError(errno.EAGAIN, "the hold was over before everything was read")
        await self._file_holds.hold(hold_ms, BASE)

    def release(self) -> None:
        """End the hold of the last capture, unless somebody else holds the files, too."""
        self._file_holds.end(BASE)

    async def _checkpoint(self, marks: bool) -> CheckpointResult:
        self._begun += 1
        began = trio.current_time()
        try:
            result = await self._take_checkpoint(marks)
        except (OSError, ApiError) as error:
            self._ended, self._failure = self._begun, getattr(error, "strerror", None) or str(error)
            self.figures.failed += 1
            self.figures.error = self._failure
            raise
        finally:
            now = trio.current_time()
            self._rested_at = now + REST * (now - began)
        self._ended, self._failure = self._begun, ""
        self.figures.note(ended_at=now, took_ms=round((now - began) * 1000))
        return result

    async def _take_checkpoint(self, marks: bool) -> CheckpointResult:
        began = trio.current_time()
        # The hold as of now: if it ends meanwhile, this checkpoint still respects it.
        hold = self._lasting
        named = hold.named if hold is not None else NOTHING
        if hold is None and marks:
            self._checkpoints.flags.take_up_withheld()
        await self._store.space.check_place()
        if marks:
            await self.announce()
        elif not self._announced:
            raise OSError(errno.ENOSPC, "the log lacks what a checkpoint takes for granted")
        topics: dict[LiveTopic, SegmentSet] = {}
        try:
            skipped = await self._take(topics)
            starts = [ReplayStart(*writer.synced_position()) for writer in self._store.writers]
            for shard, start in self._source.starts_in_doubt().items():
                starts[shard] = min(starts[shard], start)
            for shard, waits_from in self._store.round_waits.starts().items():
                starts[shard] = min(starts[shard], ReplayStart(*waits_from))
            written = [writer.figures.bytes_written for writer in self._store.writers]
            passed_over = skipped | self._file_holds.busy | set(self._source.delayed)
            try:
                await self._checkpoints.store(topics, sync_shards=marks, named=named)
            except BaseException:
                self._file_holds.littered.update(dict.fromkeys(topics))
                raise
        finally:
            with trio.CancelScope(shield=True):
                await self._give_back(topics)
        self._stored += len(topics)
        self._checkpoints.stuck = {topic for topic in self._checkpoints.stuck if not topic.deleted}
        for topic in passed_over | self._checkpoints.stuck:
            starts[topic.shard] = self._previous(topic.shard)
        checkpoint = await self._write_snapshot(starts, named=named)
        for writer, covered in zip(self._store.writers, written, strict=True):
            writer.queue.note_stored(covered)
        if marks:
            self._mark(checkpoint.number)
            if hold is None:
                await self._drop_files()
        if hold is None and self._keeps_outdated:
            await self._remove_outdated_manifests()
        await self._trim_memory(sum(written))
        log.info(
            "checkpoint",
            snapshot=checkpoint.number,
            bytes=checkpoint.bytes,
            topics=len(topics),
            skipped=len(skipped),
            held=hold is not None,
            ms=round((trio.current_time() - began) * 1000),
        )
        return checkpoint

    async def _trim_memory(self, covered: int) -> None:
        """Return unused memory to the system, if checkpoints have covered much of the log since that was done last, and
        little has been written since this one began. `covered` is in bytes of the log. The C library keeps what records
        took until they were stored, and storing them: some 30 bytes for each. While it returns them (10 ms for 100 MiB)
        other threads may wait for memory, so that is not done under load, where it would be taken again at once."""
        since = covered - self._trimmed
        written = sum(writer.figures.bytes_written for writer in self._store.writers) - covered
        if since >= TRIM_AFTER_BYTES and written * LITTLE_SHARE <= since:
            self._trimmed = covered
            await self._offload.run(Pool.CPU, trim_memory)

    async def _remove_outdated_manifests(self) -> None:
        """Remove manifests that a hold has kept, in this process or an earlier one, now that no hold lasts. Those of a
        topic with an uncertain manifest are removed when it has another one."""
        manifests = self._store.manifests
        await manifests.remove_outdated(manifests.outdated - {topic.id for topic in self._checkpoints.stuck})
        self._hold, self._keeps_outdated = None, False

    async def checkpoint_at_start(self) -> None:
        """Take a checkpoint that the start needs, before any writer runs. Each damaged record that it meets becomes a
        hole, so there are no more attempts than records. Raises OSError if the disk fails."""
        while True:
            try:
                await self.checkpoint(marks=False)
            except RecordsDamaged:
                continue
            return

    async def change_layout(self) -> None:
        """Change to the number of shards in the settings, at the start, before anything is written
        (`docs/spec/crash.md` 14).

        Everything goes into segments first, so that no frame of the old layout is needed any more; then two snapshots
        name the new layout; then the old one is removed.
        """
        await self.checkpoint_at_start()
        starts = self._store.new_layout_starts()
        for _ in range(KEPT):
            await self._write_snapshot(starts, new_layout=True)
        await self._keep_reserve()
        await self._offload.run(Pool.FILES, partial(self._store.switch_layout, starts))
        for topic in self._source.by_id.values():
            topic.shard = self._store.shard_of(topic.id)

    async def _write_snapshot(
        self, starts: Sequence[ReplayStart], *, new_layout: bool = False, named: NamedFiles = NOTHING
    ) -> CheckpointResult:
        """Write a snapshot of the durable parts, and where replay begins.

        A topic that could not be stored since the start is in it as recovery found it, and replay begins where it did
        then. A topic that has neither is younger than that, and all of it is in the log.
        """
        number = self._store.next_snapshot_number()
        version = self._source.schedules.version
        parts = [part for topic in self._source.by_id.values() if (part := topic.on_disk.newest_part) is not None]
        snapshot = self._picture(number, starts, parts, new_layout=new_layout)
        write = partial(write_snapshot, self._fs, self._store.datadir, snapshot, named.snapshots)
        size = await self._offload.run(Pool.FILES, write)
        self._schedules_stored = version
        await self._offload.run(Pool.FILES, self._store.write_clock_mark)
        self._kept = [*(self._kept or [self._store.recovered_starts()])[-1:], list(starts)]
        return CheckpointResult(number, {i: list(start.position) for i, start in enumerate(starts)}, size)

    def _picture(
        self, number: int, starts: Sequence[ReplayStart], parts: list[bytes], *, new_layout: bool = False
    ) -> Snapshot:
        """A snapshot as of now."""
        schedules, firings = self._source.schedules.dump(dump_rows)
        return Snapshot(
            number=number,
            shards=len(starts),
            next_topic_id=self._source.next_topic_id,
            clock=self._source.now_ms(),
            positions={i: [*start.position, start.frames] for i, start in enumerate(starts)},
            topics=parts,
            schedules=schedules,
            firings=firings,
            new_layout=new_layout,
            boot_id=self._store.boot_id,
            identity=self._store.identity,
        )

    async def _take(self, taken: dict[LiveTopic, SegmentSet]) -> set[LiveTopic]:
        """Lock the files of the topics that have changed, and add them to `taken`. Return those whose lock could not be
        got in time.

        There is no await between the last look at the changes and the return.
        """
        skipped: set[LiveTopic] = set()
        for i, topic in enumerate(list(self._source.changed), 1):
            segment_set = _segment_set_of(topic)
            if i % SLICE_TOPICS == 0:
                await trio.lowlevel.checkpoint()
            with suppress(trio.WouldBlock):  # nearly always the lock is free
                segment_set.hot_lock.acquire_nowait()
                taken[topic] = segment_set
                continue
            with trio.move_on_after(LOCK_WAIT_S) as patience:
                await segment_set.hot_lock.acquire()
            if patience.cancelled_caught:
                skipped.add(topic)
                continue
            taken[topic] = segment_set
        for topic in self._source.changed:
            if topic in taken or topic in skipped:
                continue
            segment_set = _segment_set_of(topic)
            try:
                segment_set.hot_lock.acquire_nowait()
            except trio.WouldBlock:
                skipped.add(topic)
                continue
            taken[topic] = segment_set
        return skipped

    async def _give_back(self, taken: dict[LiveTopic, SegmentSet]) -> None:
        """Unlock what `_take` has locked. Topics without records, of which there may be many, drop their empty
        shelves."""
        for i, (topic, segment_set) in enumerate(taken.items(), 1):
            segment_set.hot_lock.release()
            if not segment_set.segments and not segment_set.hot_lock.locked() and not segment_set.cold_lock.locked():
                topic.segment_set = None
            if i % SLICE_TOPICS == 0:
                await trio.lowlevel.checkpoint()

    def _previous(self, shard: int) -> ReplayStart:
        """Return where the newest snapshot on disk begins the replay of a shard."""
        return self.replay_starts()[shard]

    def replay_starts(self) -> list[ReplayStart]:
        """Return where the replay of the newest snapshot begins, by shard."""
        return self._kept[-1] if self._kept else self._store.recovered_starts()

    async def announce(self) -> None:
        """Log what a checkpoint is going to rely on; synced when this returns.

        ttl moves floors without a frame; they are logged before any file is removed (`docs/spec/semantics.md` section
        3). A topic that has changed without any frame gets a mark, so that a recovery before the next snapshot reads
        its manifest. Raises ApiError on a failed shard, or if the disk has no room for the log: then any of it may be
        missing there, and no checkpoint may follow.
        """
        self._announced = False
        last: dict[int, MaintenanceBatch] = {}
        for topic in list(self._source.changed):
            floor = topic.log.losses.evict_floor
            ephemeral = topic.config.durability == "ephemeral"
            logged: Callable[[ControlBatch], None] | None = None
            if topic.config.ttl_ms and floor > topic.on_disk.floor_logged and not ephemeral:
                kind, payload = FrameType.EVICT_WATERMARK, {"below": floor, "reason": "ttl"}
                logged = partial(_note_floor, topic, floor)
            elif ephemeral or not topic.on_disk.is_behind_log:
                if topic.id not in self._store.manifests and not ephemeral and topic.tree is None:
                    continue  # it has no manifest, and will not get one
                kind, payload = FrameType.CHECKPOINT_MARK, {}
            else:
                continue
            data = encode_control(kind, payload, topic_id=topic.id, ts=self._source.now_ms())
            last[topic.shard] = batch = MaintenanceBatch(data, 1, topic_id=topic.id, wants_sync=True, apply=logged)
            self._store.writers[topic.shard].submit(batch)
        for batch in last.values():
            await batch.wait_synced()  # the earlier ones of its shard are synced, or refused, with it
        self._announced = True

    def _mark(self, number: int) -> None:
        for writer in self._store.writers:
            mark = encode_control(FrameType.CHECKPOINT_MARK, {"snapshot": number}, ts=self._source.now_ms())
            try:
                writer.submit(MaintenanceBatch(mark, 1))
            except ApiError:
                continue

    async def _drop_files(self) -> None:
        """Remove WAL files, oldest first, that are before both kept snapshots."""
        needed = self._source.copied_files()
        self._store.files.keep_segments(needed)
        if len(self._kept) < 2:
            return
        for writer in self._store.writers:
            droppable: list[WalFile] = []
            for file, following in pairwise(self._store.files.of_shard(writer.shard)):
                if file.file_id in needed:
                    break  # copies point to frames in it
                if any(kept[writer.shard].position.ordinal < following.ordinal for kept in self._kept):
                    break
                if self.keeper is not None and not self.keeper.may_drop(file):
                    break
                droppable.append(file)
            if droppable:
                await self._keep_reserve()
            for file in droppable:
                await self._offload.run(Pool.FILES, partial(self._fs.unlink, file.path))
                self._store.files.drop(file)
                log.info("wal_file_dropped", shard=writer.shard, file=file.path)

    async def _keep_reserve(self) -> None:
        """Make sure, before the log is cut, that there is a third snapshot from which the rest of the log can be
        replayed. Raises OSError."""
        newest = self._kept[-1]
        if self._reserve != newest:
            write = partial(write_reserve, self._fs, self._store.datadir, self._store.snapshot_number)
            await self._offload.run(Pool.FILES, write)
            self._reserve = newest


def _is_sealed(topic: LiveTopic) -> bool:
    """Return True if all records of a topic, if it has any, are in sealed segments on disk."""
    stored = topic.log.stored.all()
    newest = stored[-1].segment if stored else None
    is_open = isinstance(newest, Segment) and not newest.sealed
    return not is_open and len(stored) == len(topic.log.index.spans)


def _note_floor(topic: LiveTopic, floor: int, _batch: ControlBatch) -> None:
    """Note that the log has the floor of ttl."""
    topic.on_disk.floor_logged = max(topic.on_disk.floor_logged, floor)


def _segment_set_of(topic: LiveTopic) -> SegmentSet:
    """Return a topic's segment set, made if it has no records yet: it may have some by the time it is captured."""
    if topic.segment_set is None:
        topic.segment_set = SegmentSet()
    return topic.segment_set
