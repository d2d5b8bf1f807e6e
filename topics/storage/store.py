"""The store: one data directory held open by the daemon, with its shard writers, its WAL files and its free space.

Responsible for the order of opening (lock, FORMAT, recovery, verdict, writers) and of closing. Other modules know the
contents of the files.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from topics.config import Settings
from topics.errors import ApiError
from topics.evidence.signed_note import BadSignedNote
from topics.model import SYNCED_CLASSES
from topics.runtime.clock import Clock
from topics.runtime.instant import Instant
from topics.runtime.offload import Offload, Pool
from topics.runtime.window_clock import WindowClock, resumed
from topics.storage.cold.cold_directory import ColdDirectory
from topics.storage.evidence.key_file import EvidenceKey, new_tree_id
from topics.storage.files.datadir import (
    DataDir,
    DataDirError,
    discover_shards,
    lock_data_dir,
    open_data_dir,
    parse_wal_name,
    raise_format,
)
from topics.storage.files.free_space import FreeSpace
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, LockHandle, parent, write_atomic
from topics.storage.files.progress import Progress
from topics.storage.files.swapped_files import finish_swaps
from topics.storage.files.witness import Witness
from topics.storage.recovery import replay, restored_copy
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.leftovers import remove_unknown_topics, set_unknown_aside, tidy_topic
from topics.storage.recovery.length_check import check_at_start
from topics.storage.recovery.recovered_state import RecoveredShard, RecoveredState, shard_of, understood
from topics.storage.recovery.salvage import repair
from topics.storage.recovery.shard_replay import EVERY_MANIFEST
from topics.storage.recovery.start_repairs import StartRepairs, repair_log
from topics.storage.recovery.substitute_snapshot import NoSnapshot
from topics.storage.recovery.verdicts import (
    Verdict,
    decide,
    drop_orphans,
    drop_stages,
    note_damage,
    note_decisions,
    renew_trees,
    secure_end,
    settle_queues,
)
from topics.storage.segments.mended_files import SecondHome
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DirectorySegmentStore, ObjectSegments, SegmentStore
from topics.storage.snapshots.clock_mark import read_mark, write_mark
from topics.storage.snapshots.manifests import Manifests
from topics.storage.snapshots.snapshot import ReplayPosition, set_damaged_aside
from topics.storage.wal import frames
from topics.storage.wal.batches import ControlBatch, SyncRequest
from topics.storage.wal.followed_shard import FollowedShard
from topics.storage.wal.frames import FrameType, UnsealedFrames, joined
from topics.storage.wal.group_writes import GroupWrites
from topics.storage.wal.round_waits import RoundWaits
from topics.storage.wal.shard_writer import ShardWriter
from topics.storage.wal.wal_files import LogPosition, WalFiles
from topics.storage.wal.write_right import WriteRight
from topics.telemetry.figures import WalFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

FEW_TOPICS: Final = 8
"""Directories of up to so many topics are synced one by one; more by one sync of the file system."""

SHOWN: Final = 10
"""Examples in a log line."""

W = TypeVar("W", bound=ShardWriter)

MAX_REPAIRS: Final = 10_000
"""Damaged ranges that one salvage gives up before it refuses: a log with more is beyond repair."""


class ReplayStart(NamedTuple):
    """Where the replay of a shard begins, and how many frames are before it."""

    position: LogPosition
    frames: int


class Store:
    """One data directory held open by the daemon. Made by the engine. `lock`, then `open`, which fills `files` and
    `writers`, then run the writers; `unlock` in the end."""

    def __init__(
        self,
        settings: Settings,
        *,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        on_failure: Callable[[int], None],
        cold: SegmentStore | None = None,
        objects: ObjectSegments | None = None,
    ) -> None:
        self.files = WalFiles()
        self.writers: list[ShardWriter] = []
        self.datadir = DataDir(str(settings.data_dir))
        self.cold_dir = ColdDirectory(settings, fs, offload, cold, data_root=self.datadir.root)
        self.cold = self.cold_dir.store
        self.tiers = SegmentTiers(DirectorySegmentStore(fs, self.datadir.root), self.cold, objects)
        self.manifests = Manifests(fs, self.datadir, offload, self.tiers.hot)
        self.evidence_key = EvidenceKey(fs, self.datadir, settings.evidence_key_file, has_bucket=bool(settings.bucket))
        self.progress = Progress()
        self.snapshot_number = 0
        self.salvaged = False
        self.restored = False
        """True if this is the first start of a copy of another directory."""
        self.space = FreeSpace(settings, self.datadir.root, fs=fs, offload=offload)
        self.right = WriteRight()
        """The right of this process to change anything."""
        self.round_waits = RoundWaits(clock)
        """Batches that are synced and wait until the bucket has them."""
        self.home: SecondHome | None = None
        """Where the data is a second time, if the daemon has a bucket. Set before `open`."""
        self.repairs: StartRepairs | None = None
        """The repairs of the start; None without a bucket."""
        self._rebuilt = False
        self._lacks_marks = False
        self.short_of_snapshots = False
        """True if some snapshots cannot be read: two new ones are due before requests are served."""
        self.unchecked: list[int] = []
        """Ids of topics whose files the start has not checked (`length_check`)."""
        self._settings = settings
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._writes = GroupWrites(clock, offload)
        self._on_failure = on_failure
        self.windows = WindowClock(clock)
        """The clock by which keys, stages, leases and delays end; continues over restarts."""
        self._lock: LockHandle | None = None
        self._starts: dict[int, ReplayPosition] = {}
        self.boot_id = ""
        self._witness: Witness | None = None

    # -- opening ------------------------------------------------------------------------------------------------------

    def lock(self, holder: str) -> None:
        """Lock the directory. Raises DataDirError, naming the holder. Blocking."""
        try:
            self._lock = lock_data_dir(self._fs, self.datadir, holder)
            open_data_dir(self._fs, self.datadir.root)
        except BaseException:
            self.unlock()
            raise

    def unlock(self) -> None:
        """Release the directory."""
        self.cold_dir.unlock()
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if self._witness is not None:
            self._witness.close()
        self._fs.release_anchors()

    async def open(self) -> RecoveredState:
        """Recover, log the verdict, and make the writers, which do not run yet. Return the recovered topics.

        Raises `Damage` in strict mode, DataDirError, OSError, `UnknownFrameType`.
        """
        return await self._offload.run(Pool.CPU, self._open_blocking)

    async def open_following(self, refusal: Callable[[], ApiError]) -> RecoveredState:
        """Recover the directory of a standby: nothing is decided or logged. The writers refuse with what `refusal`
        makes. Raises like `open`."""
        return await self._offload.run(Pool.CPU, partial(self._open_following_blocking, refusal))

    def _open_following_blocking(self, refusal: Callable[[], ApiError]) -> RecoveredState:
        fs, began_ns = self._fs, self._clock.perf_ns()
        self.boot_id = fs.boot_id()
        witness = self._witness = Witness(fs, self.datadir)
        self.cold_dir.look_at_start()
        recovered = self._replay(follows=True)
        raise_format(fs, self.datadir)
        self._adopt(recovered)
        with understood(f"the log of {self.datadir.root}"):
            settle_queues(recovered)
        drop_orphans(recovered)
        log_found(recovered, {}, (self._clock.perf_ns() - began_ns) / 1e6, salvaged=self.salvaged)
        fs.sync_dir(self.datadir.meta_dir)
        self._sync_manifests(recovered.directories)
        witness.prepare()
        witness.begin()
        for shard in recovered.shards:
            writer = self._make_writer(shard.shard, len(recovered.shards), FollowedShard)
            writer.refusal = refusal
            follow(writer, shard)
            self.writers.append(writer)
        tidy_all(fs, self.datadir, recovered)
        remove_unknown_topics(self.tiers.hot, recovered.topics.keys() | recovered.copied_topics)
        self.cold_dir.join_at_start(recovered)
        recovered.columns.forget_all()
        return recovered

    def _adopt(self, recovered: RecoveredState) -> None:
        self.files = recovered.files
        self.manifests.adopt(recovered.directories, recovered.generations)
        self.snapshot_number = recovered.snapshot_number
        self._starts = recovered.starts

    def _open_blocking(self) -> RecoveredState:
        fs, began_ns = self._fs, self._clock.perf_ns()
        self.boot_id = fs.boot_id()
        witness = self._witness = Witness(fs, self.datadir)
        log.info("recovering", directory=self.datadir.root, mode=self._settings.recovery)
        self.cold_dir.look_at_start()
        if self.home is not None:
            self.repairs = StartRepairs(self.home, self.tiers.hot)
        recovered = self._recover()
        raise_format(fs, self.datadir)
        shards = max((shard.shards for shard in recovered.shards), default=0) or self._settings.wal_shards
        self._adopt(recovered)
        self._lacks_marks = restored_copy.lacks_marks(fs, self.datadir)
        taken_over = restored_copy.is_taken_over(fs, self.datadir.root)
        restored_now = not taken_over and restored_copy.is_restored(fs, self.datadir.root, recovered, self.identity)
        self.restored = restored_now
        with understood(f"the log of {self.datadir.root}"):
            verdicts = decide(
                recovered,
                boot_id=self.boot_id,
                identity=witness.identity,
                failed=self._failure_noted,
                shards=shards,
                restored=restored_now,
                taken_over=taken_over,
            )
            self.unchecked = check_at_start(recovered, self.tiers)
            settle_queues(recovered)  # after every step that may find a damaged record
            note_damage(recovered, verdicts, shards)
            note_decisions(recovered, verdicts, shards)
            drop_stages(recovered, verdicts, shards)
        self._renew_trees(recovered, verdicts, shards)
        if restored_now:
            log.warning("directory_restored", directory=self.datadir.root, seqs_skipped=restored_copy.SKIPPED_SEQS)
        log_found(recovered, verdicts, (self._clock.perf_ns() - began_ns) / 1e6, salvaged=self.salvaged)
        by_number = {shard.shard: shard for shard in recovered.shards}
        # First make durable what recovery relied on: it may have seen names that are not on disk yet.
        self.short_of_snapshots = recovered.snapshots_damaged
        if recovered.snapshots_damaged and not self._rebuilt:  # else only the damaged ones show that the log was cut
            set_damaged_aside(fs, self.datadir)
        fs.sync_dir(self.datadir.meta_dir)
        at_work = recovered.replayed & recovered.directories
        self._sync_manifests(at_work)
        witness.prepare()
        openings = [
            self._open_shard(number, shards, by_number.get(number), verdicts.get(number, []))
            for number in range(shards)
        ]
        # Only when every shard has its file, so that a shard without one is known to be missing. The notes about failed
        # shards come first, because they may be in the other shards only.
        for number in sorted(range(shards), key=lambda number: number not in recovered.failed):
            self.writers[number].write_opening(*openings[number])
        if restored_now or taken_over:
            restored_copy.forget(fs, self.datadir, keeps_note=taken_over)
        for number in range(shards):
            if fs.exists(self._failure_path(number)):
                fs.unlink(self._failure_path(number))
        witness.begin()
        if recovered.new_layout:
            self._remove_old_layout(shards, recovered.starts[0].ordinal)
        if self.salvaged:  # what says that a topic was at work may be lost
            trees = {topic.id for topic in recovered.topics.values() if topic.tree is not None}
            at_work |= trees & recovered.directories
        for topic_id in at_work:
            topic = recovered.topics.get(topic_id)
            if topic is not None:
                tidy_topic(fs, self.datadir, topic_id, topic.segments, topic.tree)
        if self._rebuilt:
            set_unknown_aside(fs, self.datadir, recovered.topics.keys() | recovered.copied_topics)
        remove_unknown_topics(self.tiers.hot, recovered.topics.keys() | recovered.copied_topics)
        self.cold_dir.join_at_start(recovered)
        recovered.columns.forget_all()
        return recovered

    def _renew_trees(self, recovered: RecoveredState, verdicts: dict[int, list[Verdict]], shards: int) -> None:
        """Begin new histories of Merkle trees, of which leaves may be lost: nothing of them may contradict a checkpoint
        from before."""
        renewed = renew_trees(
            recovered,
            verdicts,
            shards,
            every=self.restored or self._rebuilt,
            new_id=partial(new_tree_id, self._fs),
            key=self._present_key,
        )
        if renewed:
            log.warning(
                "evidence_begun_anew",
                topics=renewed,
                reason="the directory is a copy" if self.restored else "salvage may have lost leaves",
                consequence="their checkpoints have another origin from now on",
            )

    def _present_key(self) -> str | None:
        """Return the hash of the key that signs checkpoints now, None if it cannot be read."""
        try:
            return self.evidence_key.load().hash
        except (OSError, BadSignedNote) as error:
            self.evidence_key.log_problem(error)
            return None

    def _recover(self) -> RecoveredState:
        for directory in self._shard_directories():
            finish_swaps(self._fs, directory)
        for _ in range(MAX_REPAIRS):
            try:
                return self._replay()
            except NoSnapshot:
                if self._settings.recovery != "salvage" or self._rebuilt:
                    raise
                self.salvaged = self._rebuilt = True
            except Damage as damage:
                if self._repaired(damage):
                    self.progress.done = self.progress.total = 0
                    continue
                if self._settings.recovery != "salvage":
                    raise
                if self._fs.exists(self.datadir.bucket_path):
                    write_atomic(self._fs, self.datadir.salvaged_path, b"")
                with understood(f"what is vouched for in {damage.where.path}"):
                    repair(self._fs, damage)
                self.salvaged = True
                if self.repairs is not None:
                    self.repairs.vouched = {}
                self.progress.done = self.progress.total = 0
        raise DataDirError(f"the WAL has more than {MAX_REPAIRS} damaged ranges")

    def _repaired(self, damage: Damage) -> bool:
        """Repair a damaged file of the log from the bucket, if there is one and it can."""
        if self.repairs is None:
            return False
        directory = parent(damage.where.path)
        found = discover_shards(self._fs, self.datadir)
        shard = next((one.shard for one in found if one.path == directory), None)
        return shard is not None and repair_log(self.repairs, self._fs, shard, damage.where)

    def _replay(self, *, follows: bool = False) -> RecoveredState:
        """Read everything once. The window clock continues from where the last process left it."""
        clock, mark = self._clock, read_mark(self._fs, self.datadir)
        if follows and mark is not None:  # time passes with the rounds
            window = mark.window + max(clock.now_ms() - mark.wall, 0)
        else:
            window = resumed(mark, wall=clock.now_ms(), boottime=clock.boottime_ms(), boot=self.boot_id)
        now = Instant(clock.monotonic_ms(), window)
        recovered = replay.recover(
            self._fs,
            self.datadir,
            self.tiers,
            self.progress,
            now,
            windows_by_wall=mark is None,
            file_bytes=self._settings.wal_file_bytes,
            without_snapshot=self._rebuilt,
            repairs=self.repairs,
            follows=follows,
        )
        self.windows.start(recovered.now)
        return recovered

    def write_clock_mark(self) -> None:
        """Save the state of the window clock. An OSError is only logged. Blocking."""
        write_mark(self._fs, self.datadir, self.windows.mark(self.boot_id))

    def _sync_manifests(self, topic_ids: Collection[int]) -> None:
        """Make the names in these topics' directories durable. Blocking."""
        fs, datadir = self._fs, self.datadir
        if len(topic_ids) > FEW_TOPICS:
            fs.sync_all(datadir.topics_dir)
            return
        for topic_id in sorted(topic_ids):
            fs.sync_dir(datadir.topic_dir(topic_id))
        fs.sync_dir(datadir.topics_dir)

    def _shard_directories(self) -> list[str]:
        wal = self.datadir.wal_dir
        nested = [f"{wal}/{name}" for name in self._fs.listdir(wal) if name.startswith("shard-")]
        return [wal, *nested]

    def _open_shard(
        self, number: int, shards: int, found: RecoveredShard | None, verdicts: list[Verdict]
    ) -> tuple[UnsealedFrames, int]:
        """Cut the torn end and make a writer. Return the frames of the verdict, and their number.

        Once they are synced, recovery after another crash decides the same (`docs/spec/crash.md` 2).
        """
        fs = self._fs
        writer = self._make_writer(number, shards, ShardWriter)
        if found is not None and found.file is not None:
            secure_end(fs, found, boot_id=self.boot_id)
        opening = self._opening_frames(found, verdicts, shards)
        if found is None:
            writer.create()
        elif found.ended or found.file is None:
            writer.create(found.frame_count)
        else:
            writer.resume(found.file, end=found.end, frame_count=found.frame_count, last_seqs=found.last_seqs)
        self.writers.append(writer)
        return opening, len(verdicts_frames(verdicts)) + 1

    def _make_writer(self, number: int, shards: int, kind: type[W]) -> W:
        """Make the directory of a shard, and its writer. Blocking."""
        fs = self._fs
        directory = self.datadir.shard_dir(number, shards)
        fs.mkdir(directory)
        fs.sync_dir(self.datadir.wal_dir)
        fs.sync_dir(directory)
        for name in fs.listdir(directory):
            if name.endswith(".log" + TEMPORARY_SUFFIX):
                fs.unlink(f"{directory}/{name}")  # left by an interrupted recovery
        return kind(
            shard=number,
            directory=directory,
            fs=fs,
            clock=self._clock,
            offload=self._offload,
            writes=self._writes,
            files=self.files,
            file_bytes=self._settings.wal_file_bytes,
            backlog_bytes=max(self._settings.wal_backlog_bytes // self._settings.wal_shards, 1),
            figures=WalFigures(),
            on_failure=self._shard_failed,
            sync_tick_ms=self._settings.sync_tick_ms,
            round_waits=self.round_waits,
            right=self.right,
        )

    # -- another number of shards ------------------------------------------------------------------------------------

    @property
    def layout_differs(self) -> bool:
        """Return True if the WAL on disk has another number of shards than configured."""
        return self.shards != self._settings.wal_shards

    def new_layout_starts(self) -> list[ReplayStart]:
        """Return where the shards of the new layout begin: above every frame of the old one, in any shard."""
        ordinal = max(writer.synced_position()[1] for writer in self.writers) + 1
        return [ReplayStart(LogPosition(ordinal, 0), ordinal)] * self._settings.wal_shards

    def switch_layout(self, starts: Sequence[ReplayStart]) -> None:
        """Begin the new layout and remove the old one. Both kept snapshots must be of the new one already, so that no
        frame of the old one is needed. Blocking."""
        shards = len(starts)
        for writer in self.writers:
            writer.abandon()
        self.files = WalFiles()
        self.writers = []
        self._starts = {number: ReplayPosition(*start.position, start.frames) for number, start in enumerate(starts)}
        for number, start in enumerate(starts):
            writer = self._make_writer(number, shards, ShardWriter)
            writer.create(start.frames)
            self.writers.append(writer)
        for writer in self.writers:
            writer.write_opening(self._opening_frames(None, [], shards), 1)
        self._remove_old_layout(shards, starts[0].position.ordinal)
        log.info("wal_shards_changed", shards=shards)

    def _remove_old_layout(self, shards: int, ordinal: int) -> None:
        """Remove files from before the new layout. As long as there is one, a missing file of the new layout was never
        made (`recovery`). Blocking."""
        current = {self.datadir.shard_dir(number, shards) for number in range(shards)}
        for directory in self._shard_directories():
            for name in self._fs.listdir(directory):
                known = parse_wal_name(name)
                ours = name == "CURRENT" or name.endswith(TEMPORARY_SUFFIX)
                if (known is not None and known < ordinal) or (ours and directory not in current):
                    self._fs.unlink(f"{directory}/{name}")
            self._fs.sync_dir(directory)
            # Files that salvage has kept aside stay, and their directory with them.
            if directory not in current and directory != self.datadir.wal_dir and not self._fs.listdir(directory):
                self._fs.rmdir(directory)
        self._fs.sync_dir(self.datadir.wal_dir)

    def recovered_starts(self) -> list[ReplayStart]:
        """Return where the replay of each shard begins, according to the snapshot that this process started with."""
        starts = [self._starts.get(number, ReplayPosition(0, 0, 0)) for number in range(self.shards)]
        return [ReplayStart(LogPosition(start.ordinal, start.offset), start.frames) for start in starts]

    def _opening_frames(self, found: RecoveredShard | None, verdicts: list[Verdict], shards: int) -> UnsealedFrames:
        now = self._clock.now_ms()
        pieces = [
            frames.encode_control(kind, payload, topic_id=topic_id, ts=now)
            for kind, topic_id, payload in verdicts_frames(verdicts)
        ]
        truncated = list(found.truncated) if found is not None and found.truncated is not None else None
        payload: dict[str, Any] = {
            "boot": self.boot_id,
            "identity": self.identity,
            "shards": shards,
            "truncated": truncated,
            "heads": {verdict.topic_id: verdict.ceiling for verdict in verdicts if verdict.dropped is None},
        }
        if self._lacks_marks:
            payload[EVERY_MANIFEST] = True  # also for the starts before the next snapshot, when `RESTORED` has gone
        pieces.append(frames.encode_control(FrameType.SHARD_OPEN, payload, ts=now))
        return joined(pieces)

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """The identity of the directory: with the boot id it tells a later recovery if the page cache is still valid
        (`witness`)."""
        assert self._witness is not None
        return self._witness.identity

    @property
    def shards(self) -> int:
        """The number of WAL shards."""
        return len(self.writers)

    def shard_of(self, topic_id: int) -> int:
        """The shard of a topic."""
        return shard_of(topic_id, self.shards)

    @property
    def refuses_appends(self) -> bool:
        """Return True if some or all appends are refused because the disk has no room."""
        return self.space.shortage is not None or any(writer.stall.refusal is not None for writer in self.writers)

    def new_tree_id(self) -> str:
        """Return a uuid for a Merkle tree."""
        return new_tree_id(self._fs)

    def failed(self, shard: int) -> bool:
        """Return True if a shard is read-only."""
        return self.writers[shard].failed is not None

    def fence(self, error: ApiError) -> None:
        """Another process may own the data: from here on every change is refused with this error."""
        for writer in self.writers:
            writer.fence(error)
        self.round_waits.fail(error)

    async def sync_shards(self) -> None:
        """Return once everything queued so far in any shard is on disk. Raises ApiError if a shard has failed, or if
        the disk has no room for its batches."""
        batches = []
        for writer in self.writers:
            batch = SyncRequest()
            writer.submit(batch)
            batches.append(batch)
        for batch in batches:
            await batch.wait_synced()

    def _shard_failed(self, shard: int) -> None:
        """Note the failure for the next recovery, which must not trust the page cache then (`docs/spec/crash.md` 3)."""
        for other in self.writers:
            if other.failed is None:
                note = frames.encode_control(FrameType.SHARD_OPEN, {"failed": [shard]}, ts=self._clock.now_ms())
                try:
                    other.submit(ControlBatch(note, 1, wants_sync=True))
                except ApiError:
                    continue
        self._on_failure(shard)

    def note_failure_blocking(self, shard: int) -> None:
        """Write the note wherever there is room. Raises OSError if there is none anywhere. Blocking."""
        note = msgspec.json.encode({"shard": shard, "boot": self.boot_id})
        try:
            assert self._witness is not None
            self._witness.note(shard)
        finally:
            with suppress(OSError):  # for people, and for versions that do not read the witness
                write_atomic(self._fs, self._failure_path(shard), note)

    def _failure_path(self, shard: int) -> str:
        return f"{self.datadir.meta_dir}/failed-shard-{shard:02d}"

    def _failure_noted(self, shard: int) -> bool:
        assert self._witness is not None
        return shard in self._witness.failed or self._fs.exists(self._failure_path(shard))

    def next_snapshot_number(self) -> int:
        """Return a number for a new snapshot."""
        self.snapshot_number += 1
        return self.snapshot_number


def log_found(recovered: RecoveredState, verdicts: dict[int, list[Verdict]], ms: float, *, salvaged: bool) -> None:
    """Log what recovery has found, and what was lost. (Damage is logged where it is found.)"""
    nothing = ReplayPosition(0, 0, 0)
    before = sum(recovered.starts.get(shard.shard, nothing).frames for shard in recovered.shards)
    log.info(
        "log_replayed",
        snapshot=recovered.snapshot_number,
        shards=len(recovered.shards),
        torn_ends=[shard.shard for shard in recovered.shards if shard.truncated is not None],
        failed_before=sorted(recovered.failed),
        frames=sum(shard.frame_count for shard in recovered.shards) - before,
        topics=len(recovered.topics),
        topics_replayed=len(recovered.replayed),
        salvaged=salvaged,
        ms=round(ms),
    )
    every = list(itertools.chain.from_iterable(verdicts.values()))
    decisions = [decision for verdict in every for decision in verdict.decisions]
    if decisions:
        undone = sum(decision.undone for decision in decisions)
        log.info("transactions_decided", batches=len(decisions), undone=undone)
    stages = [verdict.dropped for verdict in every if verdict.dropped is not None]
    if stages:
        log.info("stages_dropped", stages=len(stages), examples=stages[:SHOWN])
    lost = [
        (recovered.topics[verdict.topic_id], *span)
        for verdict in every
        for span in (*filter(None, [verdict.hole]), *((first, last) for first, last, _ in verdict.copies))
    ]
    if lost:
        by_class = Counter(topic.config.durability for topic, _, _ in lost)
        kept = by_class.keys() & {"disk", *SYNCED_CLASSES}
        (log.warning if kept else log.info)(
            "seqs_lost",
            topics=len({topic.id for topic, _, _ in lost}),
            seqs=sum(last - first + 1 for _, first, last in lost),
            by_class=dict(by_class),
            examples=[f"{topic.name} {first}..{last}" for topic, first, last in lost[:SHOWN]],
            consequence="readers are told by a tombstone; seqs that were only reserved are among them",
        )


def follow(writer: FollowedShard, shard: RecoveredShard) -> None:
    """Tell what stands for a writer how far the log is applied. Raises DataDirError if the shard has no file."""
    if shard.file is None:
        raise DataDirError(f"{shard.directory} has no file of the log")
    file_end = shard.last_frame if shard.ended else None
    writer.follow(shard.file, shard.end, shard.frame_count, shard.last_seqs, file_end)


def tidy_all(fs: Fs, datadir: DataDir, recovered: RecoveredState) -> None:
    """Remove files that belong to no segment, in the directories of all topics. Blocking. Raises OSError."""
    for topic_id in sorted(recovered.directories & recovered.topics.keys()):
        topic = recovered.topics[topic_id]
        tidy_topic(fs, datadir, topic_id, topic.segments, topic.tree)


def verdicts_frames(verdicts: list[Verdict]) -> list[tuple[FrameType, int, dict[str, Any]]]:
    """Return the frames that make verdicts durable: decisions about transactions, the holes, then the ceilings."""
    out: list[tuple[FrameType, int, dict[str, Any]]] = []
    for verdict in verdicts:
        if verdict.dropped is not None:
            out.append((FrameType.TOPIC_DELETE, verdict.topic_id, {"name": verdict.dropped}))
            continue
        for _, first, last, undone in verdict.decisions:
            payload = {"first": first, "last": last, "undone": undone}
            out.append((FrameType.TRANSACTION_DECISION, verdict.topic_id, payload))
        if verdict.hole is not None:
            first, last = verdict.hole
            out.append((FrameType.HOLE, verdict.topic_id, {"first": first, "last": last, "reason": "lost"}))
        for first, last, reason in verdict.copies:
            hole_within = {"first": first, "last": last, "reason": reason, "within": True}
            out.append((FrameType.HOLE, verdict.topic_id, hole_within))
        if verdict.tree is not None:
            renewed = {"tree": verdict.tree.tree, "key": verdict.tree.key}
            out.append((FrameType.EVIDENCE, verdict.topic_id, renewed))
        out.append((FrameType.HEAD_WATERMARK, verdict.topic_id, {"ceiling": verdict.ceiling}))
    return out
