"""Recovery: from a data directory to topics in memory, and the judgement between a torn end and damage
(`docs/spec/storage.md` section 3).

Responsible for the order of the steps: finding where replay begins (`stored_parts`, `substitute_snapshot`), one shard
after another (`log_layout`, `shard_replay`), and the work on all topics together (`topic_catalog`, `lost_copies`,
`copy_replay`).

Theory of operation
-------------------
The newest valid snapshot gives the topics as of a position in each shard; each shard is replayed from there. A frame of
a topic before that topic's own position in the snapshot is skipped: the snapshot has it already. Replay applies what
the log says and decides nothing by itself: evictions and deletions are logged, and so are the holes that an earlier
recovery has found (`topic_replay`).

*The end.* Bytes that a sync has covered are *vouched for*: by a Synced frame, by a snapshot, or by the existence of a
later file. A bad frame at or after the highest vouched position of the shard is the torn end of unsynced writes and is
cut off, together with the batch that it tears. A bad frame before this position is damage: bytes that were on disk and
have changed (`log_end`). Strict recovery then refuses, naming what is affected (`damage`); salvage (`salvage`) replaces
the bad range by a filler frame of the same length that carries the verdict, and recovery begins again.

*The verdict.* A topic whose class does not wait for syncs may have shown seqs that are lost now. Its head becomes its
ceiling, and the seqs between are a `lost` hole. If the machine stayed up (the boot id and the directory are the same
and no sync has failed), all bytes that write(2) took still exist, and the head stays. The verdict is logged and synced
(`ShardOpen` and its Hole frames) before any request is served. All replayed bytes are synced too: bytes beyond the
vouched position are written again, because after a failed sync the page cache may show bytes that the disk does not
hold (`verdicts`).

Everything here blocks; the daemon runs it in a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from topics.runtime.instant import Instant
from topics.storage.files.datadir import DataDir, DataDirError, FoundShard
from topics.storage.files.fs import Fs
from topics.storage.files.progress import Progress
from topics.storage.recovery.copy_replay import CopyReplay
from topics.storage.recovery.log_end import WAL_FILE_BYTES, LogEnds
from topics.storage.recovery.log_layout import LogLayout, ordinals_in, shards_with_files
from topics.storage.recovery.lost_copies import LostCopies, copied_topics
from topics.storage.recovery.recovered_state import (
    MALFORMED,
    NO_LEASES_RUN,
    ColumnLoader,
    RecoveredShard,
    RecoveredState,
    shard_count,
    shard_of,
    understood,
)
from topics.storage.recovery.replay_clock import ReplayClock
from topics.storage.recovery.restored_copy import lacks_marks
from topics.storage.recovery.schedule_replay import ScheduleReplay
from topics.storage.recovery.shard_replay import BatchReplay, ReplayTools, ShardReplay
from topics.storage.recovery.start_repairs import StartRepairs
from topics.storage.recovery.stored_parts import StoredParts
from topics.storage.recovery.substitute_snapshot import stand_in
from topics.storage.recovery.topic_catalog import TopicCatalog
from topics.storage.recovery.topic_replay import TopicReplay
from topics.storage.recovery.transaction_replay import Members, TransactionReplay
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.snapshots.snapshot import ReplayPosition, Snapshot, SnapshotDamaged, load_newest, snapshot_numbers
from topics.storage.wal.members import FIRST_TOKEN
from topics.storage.wal.wal_files import WalFiles
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


def recover(
    fs: Fs,
    datadir: DataDir,
    tiers: SegmentTiers,
    progress: Progress,
    now: Instant = NO_LEASES_RUN,
    *,
    windows_by_wall: bool = True,
    file_bytes: int = WAL_FILE_BYTES,
    without_snapshot: bool = False,
    repairs: StartRepairs | None = None,
    follows: bool = False,
) -> RecoveredState:
    """Read everything. Changes nothing on disk, except for segments that `repairs` mends. `now` is the moment from
    which leases continue, `file_bytes` the length to which files of the log are made (it bounds what a file that has
    lost its end may have held).

    `windows_by_wall`: there is no mark of the window clock, so it is taken to be not behind the retention clock.
    `without_snapshot`: if no snapshot can be read and the log was cut, use the manifests instead
    (`substitute_snapshot`); without it that is NoSnapshot.
    `follows`: the directory is that of a standby. More of the log will come, so transactions that are in doubt stay so
    (`RecoveredState.transactions`).

    Raises `Damage` for the first bad range below a synced position, `DataDirError` if the directory cannot be used at
    all, or has content with valid checksums that no version writes; `UnknownFrameType` for frames of a newer version.
    """
    with understood(f"the log of {datadir.root}"):
        base = _find_base(fs, datadir, without_snapshot=without_snapshot)
        every_manifest = follows or lacks_marks(fs, datadir)
        outcomes: Mapping[Members, bool] = {}
        while True:  # twice at most: the second replay knows all outcomes
            clock = ReplayClock(now, windows_by_wall=windows_by_wall)
            replay = _Replay(
                fs, datadir, tiers, clock, base, outcomes, repairs, follows=follows, every_manifest=every_manifest
            )
            if replay.read_log(progress, file_bytes):
                return replay.result(ids_of_unknown_count=without_snapshot)
            assert not outcomes
            outcomes = replay.outcomes
            log.info("replayed_again", reason="a transaction beside a damaged range was undone")


class _Base(NamedTuple):
    """The snapshot and the log that replay starts from."""

    snapshot: Snapshot | None
    damaged: Sequence[str]
    """A sentence about each newer snapshot that cannot be read."""
    shards: list[FoundShard]
    """The shards of all layouts that have files."""


def _find_base(fs: Fs, datadir: DataDir, *, without_snapshot: bool) -> _Base:
    snapshot, damaged = load_newest(fs, datadir)
    for sentence in damaged:
        log.error("snapshot_damaged", problem=sentence)
    shards = shards_with_files(fs, datadir)
    if snapshot is None:
        first = [(found, ordinals_in(fs, found.path)[0]) for found in shards]
        if any(ordinal for _, ordinal in first):
            snapshot = stand_in(fs, datadir, first, damaged, allowed=without_snapshot)
    return _Base(snapshot, damaged, shards)


class _Replay:
    """One reading of everything: the topics as they are stored, then the log, then the work on all topics together."""

    def __init__(
        self,
        fs: Fs,
        datadir: DataDir,
        tiers: SegmentTiers,
        clock: ReplayClock,
        base: _Base,
        outcomes: Mapping[Members, bool],
        repairs: StartRepairs | None,
        *,
        follows: bool,
        every_manifest: bool,
    ) -> None:
        """`outcomes` are those that another reading has found. Raises DataDirError if the snapshot is malformed, and
        OSError."""
        self._fs = fs
        self._datadir = datadir
        self._base = base
        self._follows = follows
        self._clock = clock
        self._files = WalFiles()
        self._columns = ColumnLoader(tiers, repairs)
        self._vouched = repairs.vouched if repairs is not None else {}
        self._stored = StoredParts(fs, datadir, tiers, clock)
        self._topics = TopicCatalog(self._stored, clock)
        self._copies = CopyReplay(fs, self._files, self._columns)
        self._starts: dict[int, ReplayPosition] = {}
        """Where replay begins, by shard."""
        self._shards: list[RecoveredShard] = []
        self._stored_heads: dict[int, int] = {}
        """The heads of the topics in the snapshot, by id."""
        frames = TopicReplay(self._topics, clock, self._columns, self._copies)
        self._transactions = TransactionReplay(frames.apply, frames.undo, outcomes)
        self._schedules = ScheduleReplay(self._topics)
        if base.snapshot is not None:
            try:
                self._load(base.snapshot)
            except (SnapshotDamaged, *MALFORMED) as error:  # its checksum holds, so it was written like this
                raise DataDirError(f"the newest snapshot of {datadir.root} cannot be understood: {error}") from error
        if every_manifest:
            self._topics.consult_all()

    def _load(self, snapshot: Snapshot) -> None:
        """Take over the contents of a snapshot."""
        clock, topics = self._clock, self._topics
        topics.next_id = snapshot.next_topic_id
        clock.retention = snapshot.clock
        self._starts = {shard: ReplayPosition(*position) for shard, position in snapshot.positions.items()}
        topics.load(snapshot.topics)
        self._schedules.load(snapshot.schedules, snapshot.firings)
        self._stored_heads = {topic.id: topic.log.head_seq for topic in topics.by_id.values()}

    @property
    def outcomes(self) -> Mapping[Members, bool]:
        """For each transaction in the log, True if it is undone. Complete when the log has been read."""
        return self._transactions.outcomes

    def read_log(self, progress: Progress, file_bytes: int) -> bool:
        """Replay every shard. Return False if a new replay has to do it again, with the `outcomes` of this one. Raises
        the errors of `recover`."""
        fs, datadir, topics = self._fs, self._datadir, self._topics
        layout = LogLayout(fs, datadir, self._base.snapshot, self._base.shards)
        progress.total += layout.size()
        layout.register(self._files)
        owner = partial(shard_of, shards=max(shard_count(fs, datadir), 1))
        shared = ReplayTools(
            fs,
            progress,
            layout,
            self._files,
            self._clock,
            self._columns,
            topics,
            transactions=self._transactions,
            schedules=self._schedules,
            batches=BatchReplay(topics, self._transactions, self._schedules),
            ends=LogEnds(fs, self._files, topics.by_id, owner, file_bytes),
            vouched=self._vouched,
            shard_of=owner,
        )
        for found in layout.shards:
            begin = self._starts.setdefault(found.shard, ReplayPosition(0, 0, 0))
            self._shards.append(ShardReplay(shared, found, begin, self._base.snapshot).run())
        if self._follows:
            self._transactions.settle()
            return True
        given_up = {shard.shard for shard in self._shards if shard.fillers}

        def damaged(topic_id: int) -> bool:
            return owner(topic_id) in given_up

        return self._transactions.decide(damaged, partial(self._may_be_there, damaged))

    def _may_be_there(self, damaged: Callable[[int], bool], topic_id: int, last: int, ts: int) -> bool:
        """Return True if a member of a transaction whose batch was not found may be in a range that salvage gave up, or
        before the replayed range. `last` is its last seq or its token, `ts` the time of the transaction."""
        if damaged(topic_id):
            topic = self._topics.by_id.get(topic_id)
            return topic is None or last >= FIRST_TOKEN or last <= topic.log.head_seq
        head = self._stored_heads.get(topic_id)
        if head is None:
            return topic_id not in self._topics.replayed
        if last >= FIRST_TOKEN:  # what the snapshot has was written before the snapshot
            return self._base.snapshot is not None and ts <= self._base.snapshot.clock
        return last <= head

    def result(self, *, ids_of_unknown_count: bool) -> RecoveredState:
        """Return the result. With `ids_of_unknown_count`, ids that only frames mention are not given out again.

        Raises DataDirError if files are missing, and OSError.
        """
        snapshot, damaged, _ = self._base
        topics, shards = self._topics, self._shards
        topics.check_files(self._datadir)
        topics.drop_superseded()
        self._schedules.schedules.settle()
        self._columns.settle(topics.by_id)
        numbers = snapshot_numbers(self._fs, self._datadir)
        by_number = {shard.shard: shard for shard in shards}
        missing = LostCopies(self._files, by_number, self._columns).find(topics.by_id.values())
        self._copies.settle_routers(topics.by_id)
        for number in range(max([snapshot.shards if snapshot is not None else 0, *(shard.shards for shard in shards)])):
            if number not in by_number:
                raise DataDirError(f"the WAL files of shard {number} are missing")
        unknown = [topic_id + 1 for topic_id in topics.unknown] if ids_of_unknown_count else []
        return RecoveredState(
            topics=dict(topics.by_id),
            shards=shards,
            files=self._files,
            next_topic_id=max([topics.next_id, *unknown]),
            clock=self._clock.retention,
            now=self._clock.move_leases(topics.by_id.values()),
            snapshot_number=max([snapshot.number if snapshot is not None else 0, *numbers]),
            snapshots_damaged=bool(damaged) or (snapshot is not None and snapshot.number not in numbers),
            failed={number for shard in shards for number in shard.failed_shards},
            starts=self._starts,
            new_layout=snapshot is not None and snapshot.new_layout,
            replayed=topics.replayed,
            directories=self._stored.directories,
            generations=self._stored.generations,
            columns=self._columns,
            copied_topics=copied_topics(topics.by_id.values(), self._files),
            missing=missing,
            decisions=self._transactions.decisions,
            schedules=self._schedules.schedules,
            transactions=self._transactions,
        )
