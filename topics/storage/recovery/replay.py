"""Recovery: from a data directory to topics in memory, and the judgement between a torn end and damage
(`docs/spec/storage.md` section 3).

Theory of operation
-------------------
The newest valid snapshot gives the topics as of a position in each shard; each shard is replayed from there. A frame
that belongs to a topic and lies before that topic's own position in the snapshot is skipped: it is in there already.
Replay applies what the log says and decides nothing by itself: evictions are logged, so are deletions, so are the
holes that an earlier recovery has found.

*The end.* What a sync has covered is vouched for: by a Synced frame, by a snapshot, by the existence of a later file.
A bad frame at or after the highest vouched position of the shard is the torn end of unsynced writes and is cut off,
together with the batch that it tears. A bad frame before it is damage: bytes that were on disk and are not any more.
Strict recovery then refuses, naming what is affected; salvage (`salvage.py`) replaces the bad range by a filler frame
of the same length that carries the verdict, and recovery begins again.

*The verdict.* A topic whose class does not wait for syncs may have shown seqs that are gone. Its head becomes its
ceiling, and the seqs between are a `lost` hole, unless the machine stayed up (the boot id and the directory are the
same and no sync has failed), in which case what write(2) took is still there. The verdict is logged and synced
(`ShardOpen` and its Hole frames) before anybody is served, and so is everything that was replayed: bytes beyond the
vouched position are written again, because after a failed sync the page cache may show what the disk does not hold
(`verdicts`).

Everything here blocks; the daemon runs it in a worker thread.
"""

from __future__ import annotations

import errno
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from topics.log.copies import PLAIN, CopyTable, Kind, Origin, each_kind
from topics.log.dedupe_window import DedupeWindow
from topics.log.dumped_values import from_little_endian, whole
from topics.log.losses import LossReason
from topics.log.span import FLAG_DERIVED
from topics.log.stages import CommitKeys, StageOf
from topics.log.tag_match import parse_match
from topics.log.topic_config import config_from_wire
from topics.log.topic_log import TopicLog
from topics.queue.lease_events import event_from_wire
from topics.queue.leases import Leases
from topics.routing.origin_set import OriginSet
from topics.routing.router_state import Router, kept_origins
from topics.runtime.instant import Instant
from topics.storage.files.datadir import (
    DataDir,
    DataDirError,
    FoundShard,
    discover_shards,
    manifest_name,
    parse_topic_name,
    parse_wal_name,
    segment_name,
    wal_path,
)
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import Fs, join
from topics.storage.files.progress import Progress
from topics.storage.recovery.bare_fillers import BareFiller, outstanding
from topics.storage.recovery.log_end import WAL_FILE_BYTES, LogEnds, Stop
from topics.storage.recovery.recovered_state import (
    MALFORMED,
    NO_LEASES_RUN,
    Columns,
    Recovered,
    RecoveredShard,
    RecoveredTopic,
    shard_count,
    shard_of,
    understood,
)
from topics.storage.recovery.substitute_snapshot import NoSnapshot, rebuilt_snapshot
from topics.storage.segments.copy_frames import Recipe, decode_forwarded, decode_recipe, holds, is_staged, read_recipe
from topics.storage.segments.segment_reader import Tiers, load_tags
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.manifests import newest_generation
from topics.storage.snapshots.queue_dump import dumped_at, load_queue
from topics.storage.snapshots.snapshot import (
    USUAL_LOG,
    ShardPosition,
    Snapshot,
    SnapshotDamaged,
    TopicPart,
    decode_manifest,
    decode_part,
    encode_part,
    load_newest,
    snapshot_numbers,
)
from topics.storage.wal import frames
from topics.storage.wal.frame_search import MOST_RESERVED
from topics.storage.wal.frames import HAS_ORIGIN, HAS_TAG, Frame, FrameType, Row, Scan
from topics.storage.wal.wal_files import Position, WalFile, WalFiles
from topics.storage.wal.wal_head import read_heads, scans, wal_format
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


def recover(
    fs: Fs,
    datadir: DataDir,
    tiers: Tiers,
    progress: Progress,
    now: Instant = NO_LEASES_RUN,
    *,
    windows_by_wall: bool = True,
    file_bytes: int = WAL_FILE_BYTES,
    without_snapshot: bool = False,
) -> Recovered:
    """Read everything. Changes nothing on disk. `now` is the moment from which leases run on, `file_bytes` how long
    files of the log are made (which says how much one has held that has lost its end).

    `windows_by_wall` says that the clock of windows has no mark: then it is not behind the retention clock.
    `without_snapshot`: where no snapshot can be read and the log was cut, manifests stand in (`substitute_snapshot`);
    else that is NoSnapshot.

    Raises `Damage` for the first bad range below a synced position, `DataDirError` where the directory cannot be used
    at all, or holds what nobody has written, checksums or not, `UnknownFrameType` for frames of a newer version.
    """
    with understood(f"the log of {datadir.root}"):
        return _recover(fs, datadir, tiers, progress, now, windows_by_wall, file_bytes, without_snapshot)


def _recover(
    fs: Fs,
    datadir: DataDir,
    tiers: Tiers,
    progress: Progress,
    now: Instant,
    windows_by_wall: bool,
    file_bytes: int,
    without_snapshot: bool,
) -> Recovered:
    snapshot, damaged = load_newest(fs, datadir)
    for sentence in damaged:
        log.error("snapshot_damaged", problem=sentence)
    shards = [found for found in discover_shards(fs, datadir) if _ordinals(fs, found.path)]
    if snapshot is None and any(_ordinals(fs, found.path)[0] for found in shards):
        snapshot = _stand_in(fs, datadir, shards, damaged, without_snapshot)
    try:
        replay = _Replay(fs, datadir, tiers, snapshot, progress, now, windows_by_wall, file_bytes)
    except (SnapshotDamaged, *MALFORMED) as error:  # its checksum holds, so it was written like this
        raise DataDirError(f"the newest snapshot of {datadir.root} cannot be understood: {error}") from error
    if snapshot is not None and snapshot.new_layout:
        replay.first_ordinal, shards = _new_layout(datadir, snapshot, shards, fs)
    if len({found.path == datadir.wal_dir for found in shards}) > 1:
        raise DataDirError(f"{datadir.wal_dir} holds WAL files of two layouts")
    for found in shards:
        for ordinal in _ordinals(fs, found.path, replay.first_ordinal):
            handle = fs.open(wal_path(found.path, ordinal), read_only=True)
            progress.total += handle.size()
            handle.close()
    version = wal_format(fs, datadir)
    for found in shards:
        heads = read_heads(fs, found.path, _ordinals(fs, found.path), version=version)
        for ordinal in _ordinals(fs, found.path, replay.first_ordinal):
            if ordinal not in heads:
                raise FileNotFoundError(errno.ENOENT, "removed meanwhile", wal_path(found.path, ordinal))
            replay.files.add(found.shard, ordinal, wal_path(found.path, ordinal), heads[ordinal])
    recovered = [replay.shard(found) for found in shards]
    replay.check_files()
    replay.drop_superseded()
    replay.columns.settle(replay.topics)
    numbers = snapshot_numbers(fs, datadir)
    missing = replay.resolve_copies({shard.shard: shard for shard in recovered})
    replay.check_routers()
    known = {shard.shard for shard in recovered}
    counts = [snapshot.shards if snapshot is not None else 0, *(shard.shards for shard in recovered)]
    for number in range(max(counts)):
        if number not in known:
            raise DataDirError(f"the WAL files of shard {number} are missing")
    return Recovered(
        replay.topics,
        recovered,
        replay.files,
        max([replay.next_topic_id, *(topic_id + 1 for topic_id in replay.unknown if without_snapshot)]),
        replay.clock,
        replay.move_now(),
        max([snapshot.number if snapshot is not None else 0, *numbers]),
        bool(damaged) or (snapshot is not None and snapshot.number not in numbers),
        {number for shard in recovered for number in shard.failed_shards},
        replay.positions,
        snapshot is not None and snapshot.new_layout,
        replay.consulted,
        replay.directories,
        replay.generations,
        replay.columns,
        replay.copied_topics(),
        missing,
    )


def _stand_in(
    fs: Fs, datadir: DataDir, shards: Sequence[FoundShard], damaged: Sequence[str], without_snapshot: bool
) -> Snapshot:
    """What takes the place of a snapshot, if it may."""
    if not damaged:  # then it may be a file of the log that is missing, and nobody knows what was in it
        raise DataDirError("the WAL does not reach back to its start, and there is no snapshot")
    found = f"no snapshot can be read ({damaged[0]})"
    numbers = {shard.shard for shard in shards}
    if len({shard.path == datadir.wal_dir for shard in shards}) > 1 or numbers != set(range(len(numbers))):
        raise DataDirError(f"{found}, and the WAL files of some shards are missing or of another layout")
    if not without_snapshot:
        raise NoSnapshot(
            f"{found}, and the WAL does not reach back to its start. Restore a file of {datadir.meta_dir} from a copy, "
            f"or start with TOPICS_RECOVERY=salvage: topics with segments are rebuilt whole from their manifests and "
            f"the log, others that were made before the log begins are given up"
        )
    return rebuilt_snapshot(fs, datadir, {shard.shard: _ordinals(fs, shard.path)[0] for shard in shards}, len(numbers))


def _ordinals(fs: Fs, directory: str, least: int = 0) -> list[int]:
    found = (parse_wal_name(name) for name in fs.listdir(directory))
    return sorted(ordinal for ordinal in found if ordinal is not None and ordinal >= least)


def _new_layout(datadir: DataDir, snapshot: Snapshot, found: list[FoundShard], fs: Fs) -> tuple[int, list[FoundShard]]:
    """The shards of a layout that a snapshot has announced, and the ordinal above all of the old one.

    The old files go only when every new one is there. So as long as one of them is left, a new one that is missing was
    never made; after that it is lost, and recovery refuses.
    """
    first = min(position[0] for position in snapshot.positions.values())
    shards = [FoundShard(number, datadir.shard_dir(number, snapshot.shards)) for number in range(snapshot.shards)]
    current = {shard.path for shard in shards}
    old = any(shard.path not in current or _ordinals(fs, shard.path)[0] < first for shard in found)
    if not old:
        shards = [shard for shard in shards if _ordinals(fs, shard.path, first)]
    return first, shards


class _Batch:
    """One or more whole batches of one topic, with what replay needs of their bodies."""

    __slots__ = ("controls", "extras", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.controls = 0
        """How many of the rows are no Appends."""
        self.extras: dict[int, Any] = {}
        """By frame offset: the tag of an Append, the payload of any other. By its inverse: the origin of an Append."""

    @property
    def first(self) -> Frame:
        """The first frame."""
        return Frame._make(self.rows[0])

    @property
    def last(self) -> Frame:
        """The last frame."""
        return Frame._make(self.rows[-1])


def _extras(scan: Scan, window: bytes, base: int) -> dict[int, Any]:
    """Tags of Appends and payloads of control frames, by frame offset."""
    extras: dict[int, Any] = {}
    for i in scan.tagged:
        row = scan.rows[i]
        tag_at = row[0] - base + frames.HEADER_BYTES + row[7]
        extras[row[0]] = window[tag_at : tag_at + row[8]].decode()
    for i in scan.copied:
        frame = Frame._make(scan.rows[i])
        extras[~frame.offset] = frames.origin_at(window, base, frame)
    for i in scan.controls:
        frame = Frame._make(scan.rows[i])
        extras[frame.offset] = frames.control_payload(window, base, frame)
    return extras


def _runs(scan: Scan, *, open_batch: bool) -> Iterator[tuple[int, int, int]]:
    """The batches that end in a window, as (first row, row behind the last, control frames).

    Neighbouring batches of one topic's Appends are one run: replaying them together costs a fraction. The first one
    stands alone when it began in the window before (`open_batch`).
    """
    rows, ends, controls = scan.rows, scan.ends, scan.controls
    begin = i = k = 0
    while i < len(ends):
        end = ends[i]
        k_begin = k
        while k < len(controls) and controls[k] < end:
            k += 1
        if k == k_begin and not (open_batch and i == 0):
            limit = controls[k] if k < len(controls) else len(rows)
            topic_id = rows[begin][4]
            while i + 1 < len(ends) and ends[i + 1] <= limit and rows[end][4] == topic_id:
                i += 1
                end = ends[i]
        yield begin, end, k - k_begin
        begin = end
        i += 1


class _Replay:
    """The state while the shards are read one after another."""

    def __init__(
        self,
        fs: Fs,
        datadir: DataDir,
        tiers: Tiers,
        snapshot: Snapshot | None,
        progress: Progress,
        now: Instant,
        windows_by_wall: bool,
        file_bytes: int,
    ) -> None:
        self.columns = Columns(tiers)
        self.first_ordinal = 0
        """Files below it belong to an old layout."""
        self.consulted: set[int] = set()
        self.directories = {
            topic_id for name in fs.listdir(datadir.topics_dir) if (topic_id := parse_topic_name(name)) is not None
        }
        self.generations: dict[int, int] = {}
        self._fs = fs
        self._datadir = datadir
        self._snapshot = snapshot
        self._progress = progress
        self._started = now
        self._windows_by_wall = windows_by_wall
        self._seen = 0
        """The highest time of the clock of windows that has been found."""
        self.topics: dict[int, RecoveredTopic] = {}
        self.files = WalFiles()
        self._ends = LogEnds(
            fs,
            self.files,
            self.topics,
            lambda topic_id: shard_of(topic_id, max(shard_count(fs, datadir), 1)),
            file_bytes,
        )
        self.next_topic_id = 1
        self._newest: dict[str, int] = {}
        """By name, the highest id that the log has a creation for."""
        self.clock = 0
        self.positions: dict[int, ShardPosition] = {}
        self.unknown: set[int] = set()
        self._sources: dict[int, int] = {}
        """By source, the highest seq that any router has dealt with."""
        self._doomed: set[int] = set()
        """Topics whose files are gone, so that what the log says of them cannot be worked out any more: it must come to
        say that they were deleted."""
        if snapshot is not None:
            self.next_topic_id = snapshot.next_topic_id
            self.clock = snapshot.clock
            self.positions = {shard: ShardPosition(*position) for shard, position in snapshot.positions.items()}
            for blob in snapshot.topics:
                self._load_part(decode_part(blob), blob)

    def _load_part(self, part: TopicPart, blob: bytes | None) -> None:
        log = TopicLog.load(part.log) if part.log != USUAL_LOG else TopicLog()
        topic = RecoveredTopic(part.id, part.name, config_from_wire(part.config), log)
        topic.part = blob
        topic.base = encode_part(part) if blob is None else blob
        topic.segments = [Segment.from_wire(part.id, entry) for entry in part.segments]
        for span, segment in zip(topic.log.stored.all(), topic.segments, strict=False):
            span.segment = segment
        if part.generation:
            self.generations[topic.id] = max(part.generation, self.generations.get(topic.id, 0))
        topic.ceiling = part.ceiling
        topic.end = Position(*part.end)
        topic.last_write, topic.last_read = part.last_write, part.last_read
        topic.keys = DedupeWindow.load(part.keys) if part.keys else None
        topic.incoming = {router.name: router for router in map(Router.load, part.routers)}
        topic.origins = OriginSet.load(part.origins) if part.origins is not None else None
        if part.stage is not None:
            target_id, stage, *used_at = part.stage
            topic.stage = StageOf(target_id, stage)
            topic.used_at = used_at[0] if used_at else None
        topic.commit_keys = CommitKeys.load(part.commits) if part.commits else None
        # A manifest may be newer than the snapshot, and the frames that it covers are not looked at.
        self.clock = max(self.clock, part.last_ts)
        self._note_windows(topic)
        if part.queue is not None:
            self._seen = max(self._seen, dumped_at(part.queue))
            topic.queue = load_queue(part.queue, self.now)
        self.topics[topic.id] = topic

    def _note_windows(self, topic: RecoveredTopic) -> None:
        """No window that a topic knows of began after now."""
        if topic.keys is not None:
            self._seen = max(self._seen, topic.keys.last_at)
        if topic.commit_keys is not None:
            self._seen = max(self._seen, topic.commit_keys.last_at)

    @property
    def now(self) -> Instant:
        """The moment of the start, as far as it is known before the replay: one for all that is replayed."""
        return self._started

    def move_now(self) -> Instant:
        """The moment of the start, when all has been replayed: the clock of windows is not behind anything that was
        written by it. Leases and delays are moved there, so none runs longer than it was given for."""
        by_wall = self.clock if self._windows_by_wall else 0
        moved = Instant(self._started.mono, max(self._started.window, self._seen, by_wall))
        if moved != self._started:
            for topic in self.topics.values():
                if topic.queue is not None:
                    topic.queue = Leases.load(topic.queue.dump(self._started), moved)
        return moved

    def check_files(self) -> None:
        """No topic may be without its files. Raises DataDirError."""
        for topic_id in self._doomed:
            raise DataDirError(
                f"files of topic {self.topics[topic_id].name!r} are missing in {self._datadir.topic_dir(topic_id)}"
            )

    def drop_superseded(self) -> None:
        """For one name the highest id wins (`docs/spec/semantics.md` 1), whether that topic is still there or was
        deleted.

        There are two if a creation failed and was found on the disk all the same, and another one in a shard that had
        not failed succeeded.
        """
        for topic in list(self.topics.values()):
            newest = self._newest.get(topic.name, 0)
            if topic.id < newest:
                log.info("topic_superseded", topic=topic.name, id=topic.id, by=newest)
                del self.topics[topic.id]

    # -- one shard ----------------------------------------------------------------------------------------------------

    def shard(self, found: FoundShard) -> RecoveredShard:
        """Replay one shard to its end."""
        shard = RecoveredShard(found.shard, found.path)
        ordinals = _ordinals(self._fs, found.path, self.first_ordinal)
        begin = self.positions.setdefault(found.shard, ShardPosition(0, 0, 0))
        shard.vouched = Position(begin.ordinal, begin.offset)
        if self._snapshot is not None and found.shard in self._snapshot.positions:
            # One that the manifests stand in for knows neither; the frames may.
            shard.boot_id, shard.identity = self._snapshot.boot_id or None, self._snapshot.identity or None
            shard.shards = self._snapshot.shards
        if self.first_ordinal and not ordinals:
            shard.frame_count = begin.frames
            return shard
        self._check_start(shard, ordinals, begin)
        later = [ordinal for ordinal in ordinals if ordinal >= begin.ordinal]
        self._progress.done += sum(self._size(found.path, ordinal) for ordinal in ordinals if ordinal < begin.ordinal)
        offset, count = begin.offset, begin.frames
        for i, ordinal in enumerate(later):
            following = later[i + 1] if i + 1 < len(later) else None
            if ordinal != count and offset <= FILE_HEADER_BYTES:
                raise self._missing_file(shard, ordinal, count)
            count = self._file(shard, ordinal, offset, count, following)
            offset = 0
        for topic_id, seqs in outstanding(shard.bare_fillers, self.topics).items():
            topic = self._with_files(topic_id)
            if topic is not None:
                self._give_up(topic, topic.log.head_seq + seqs, shard.bare_fillers[-1].end)
                shard.last_seqs[topic_id] = topic.log.head_seq  # FileEnd will tell the replays after this one
        return shard

    def _check_start(self, shard: RecoveredShard, ordinals: list[int], begin: ShardPosition) -> None:
        """The log has to reach back to where the snapshot begins, and to the records that the snapshot places in older
        files."""
        if begin.ordinal not in ordinals:
            if ordinals and ordinals[0] <= begin.ordinal:
                raise self._missing_file(shard, ordinals[-1], begin.ordinal)
            raise DataDirError(
                f"the WAL in {shard.directory} does not reach back to frame {begin.ordinal}, where "
                + ("its snapshot ends" if self._snapshot is not None else "it starts, and there is no snapshot")
            )

    def _missing_file(self, shard: RecoveredShard, ordinal: int, expected: int) -> DataDirError:
        return DataDirError(
            f"the WAL in {shard.directory} has a gap: frame {expected} should begin a file, and the next file begins "
            f"with frame {ordinal}"
        )

    def _size(self, directory: str, ordinal: int) -> int:
        handle = self._fs.open(wal_path(directory, ordinal), read_only=True)
        try:
            return handle.size()
        finally:
            handle.close()

    def _file(self, shard: RecoveredShard, ordinal: int, offset: int, count: int, following: int | None) -> int:
        """Replay one file from `offset`; the ordinal of the frame behind it."""
        path = wal_path(shard.directory, ordinal)
        file = self.files.get(self._file_id(shard.shard, ordinal))
        shard.file = file
        shard.last_seqs = {}
        handle = self._fs.open(path, read_only=True)
        try:
            size = handle.size()
            at = max(offset, file.head.first)
            if file.head.problem is not None:
                raise self._ends.without_header(
                    shard, file, size, Position(ordinal, offset), count, following=following
                )
            if file.head.corrected:
                log.error("wal_header_corrected", file=path, problem="one bit of it was not as it was written")
            batch = _Batch()
            batch_at, batch_count = at, count
            ended = False
            reason = "window"
            for scan, window, base in scans(handle, file.head, at, size):
                batch.extras.update(_extras(scan, window, base))
                taken = 0
                for begin, end, controls in _runs(scan, open_batch=bool(batch.rows)):
                    batch.rows += scan.rows[begin:end]
                    batch.controls += controls
                    taken = end
                    count += self._weight(batch)
                    last = batch.last
                    batch_at, batch_count = last.end, count
                    ended = last.type == FrameType.FILE_END or self._is_last_filler(batch)
                    self._apply(shard, file, batch)
                    batch = self._next_batch(batch)
                batch.rows += scan.rows[taken:]
                batch.controls += sum(i >= taken for i in scan.controls)
                batch.extras = {
                    at: batch.extras[at] for row in batch.rows for at in (row[0], ~row[0]) if at in batch.extras
                }
                self._progress.done += scan.stop - at
                at, reason = scan.stop, scan.reason
                if ended:
                    break
            self._progress.done += size - at
            if ended:
                if following is not None and count != following:
                    raise self._missing_file(shard, following, count)
                shard.end, shard.ended, shard.frame_count = batch_at, True, count
                if following is not None:  # else its sync may have failed, or have been cut short
                    shard.vouched = max(shard.vouched, Position(ordinal, batch_at))
                return count
            stop = Stop(at, reason, batch_at, batch_count)
            self._ends.judge(shard, file, handle, stop, following=following)
            return batch_count
        finally:
            handle.close()

    def _file_id(self, shard: int, ordinal: int) -> int:
        return next(file.file_id for file in self.files.of_shard(shard) if file.ordinal == ordinal)

    @staticmethod
    def _next_batch(done: _Batch) -> _Batch:
        """An empty batch that keeps the extras of the window, which later batches need."""
        batch = _Batch()
        batch.extras = done.extras
        return batch

    @staticmethod
    def _weight(batch: _Batch) -> int:
        """How many frames a batch stands for: a salvage filler stands for those that it replaces."""
        if len(batch.rows) == 1 and batch.rows[0][2] == FrameType.SHARD_OPEN:
            return int(batch.extras[batch.first.offset].get("replaces", 1))
        return len(batch.rows)

    @staticmethod
    def _is_last_filler(batch: _Batch) -> bool:
        if batch.rows[-1][2] != FrameType.SHARD_OPEN:
            return False
        return bool(batch.extras[batch.last.offset].get("ends_file"))

    # -- frames
    # -------------------------------------------------------------------------------------------------------

    def _apply(self, shard: RecoveredShard, file: WalFile, batch: _Batch) -> None:
        """Apply one whole batch."""
        first = batch.first
        shard.clean = first.type == FrameType.CLEAN_STOP
        topic_id = first.topic_id
        if topic_id:
            topic = self.topics.get(topic_id)
            creates = first.type == FrameType.TOPIC_CREATE or (
                first.type == FrameType.STAGE and "target" in batch.extras[first.offset]
            )
            if topic_id not in self.consulted and (topic is not None or creates):
                self.consulted.add(topic_id)
                topic = self._consult(topic_id, topic)
            if creates:
                topic = self._create(topic, first, batch.extras[first.offset])
            if topic is None:
                if topic_id not in self.unknown and topic_id >= self.next_topic_id:
                    log.warning("frames_of_unknown_topic", topic_id=topic_id, file=file.path, offset=first.offset)
                self.unknown.add(topic_id)
                return
            if topic_id in self._doomed:
                if any(row[2] == FrameType.TOPIC_DELETE for row in batch.rows):
                    self._doomed.discard(topic_id)
                    del self.topics[topic_id]
                return
            if Position(file.ordinal, first.offset) < topic.end:
                # What lies before the topic's own position is in the snapshot already; a run may begin there.
                batch.rows = [row for row in batch.rows if (file.ordinal, row[0]) >= topic.end]
            if batch.rows:
                topic.part = None
                topic.end = Position(file.ordinal, batch.last.end)
                self._apply_to(topic, shard, file, batch)
            return
        self._apply_shard_frame(shard, file, first, batch.extras[first.offset])

    def _apply_shard_frame(self, shard: RecoveredShard, file: WalFile, frame: Frame, payload: dict[str, Any]) -> None:
        if frame.type == FrameType.SYNCED:
            # What it says about bytes behind itself nobody has synced when it was written.
            vouched = Position(payload["file"], payload["offset"])
            shard.vouched = max(shard.vouched, min(vouched, Position(file.ordinal, frame.offset)))
        elif frame.type == FrameType.FILE_END:
            self._fill_up(payload["last"])
            shard.bare_fillers = [one for one in shard.bare_fillers if one.place.ordinal != file.ordinal]
        elif frame.type == FrameType.CLEAN_STOP:
            self.clock = max(self.clock, payload["clock"])
        elif frame.type == FrameType.SHARD_OPEN:
            if "boot" not in payload and "failed" not in payload:
                # A file that had lost its end, and is not the last: what was behind the filler is gone as well.
                end = sys.maxsize if payload.get("ends_file") else frame.end
                shard.fillers.append((file.ordinal, frame.offset, end))
                if "holes" not in payload:
                    self._bare_filler(shard, Position(file.ordinal, frame.offset), Position(file.ordinal, frame.end))
            if "holes" in payload:
                for topic_id, (first, last) in payload["holes"].items():
                    topic = self._with_files(topic_id)
                    if (
                        topic is not None
                        and Position(file.ordinal, frame.offset) >= topic.end
                        and last > topic.log.head_seq
                    ):
                        self._give_up(topic, last, Position(file.ordinal, frame.end), first=first)
                return
            shard.failed_shards.update(payload.get("failed", ()))
            if "boot" in payload:
                shard.boot_id, shard.identity = payload["boot"], payload["identity"]
                shard.shards = whole(payload["shards"])
                if not shard.shards:
                    raise ValueError("a shard of none")
                shard.failed_shards = set()

    def _bare_filler(self, shard: RecoveredShard, place: Position, end: Position) -> None:
        """A filler without a verdict: note what is known of each topic whose records it may stand for."""
        shards = max(shard_count(self._fs, self._datadir), 1)
        heads: dict[int, int] = {}
        for topic_id in sorted(self.topics):
            topic = self._with_files(topic_id)
            if topic is None or shard_of(topic_id, shards) != shard.shard:
                continue
            if topic_id not in self.consulted:
                self.consulted.add(topic_id)
                self._consult(topic_id, topic)
                topic = self._with_files(topic_id)
            if topic is None or place < topic.end:
                continue
            if topic.config.durability == "ephemeral":
                self._give_up(topic, max(topic.log.head_seq, topic.ceiling) + MOST_RESERVED, end)
            else:
                heads[topic_id] = topic.log.head_seq
        shard.bare_fillers.append(BareFiller(place, end, heads))

    def _give_up(self, topic: RecoveredTopic, last: int, end: Position, *, first: int = 1) -> None:
        """What a filler that ends at `end` held of a topic: the seqs behind the head, from `first` to `last`."""
        self.columns.run(topic, partial(topic.log.add_hole, max(first, topic.log.head_seq + 1), last, "corrupt"))
        topic.part = None
        topic.ceiling = max(topic.ceiling, last)
        topic.end = max(topic.end, end)

    def _fill_up(self, last_seqs: Mapping[int, int]) -> None:
        """What FileEnd knows of and replay has not found was in a range that salvage gave up."""
        for topic_id, last in last_seqs.items():
            topic = self._with_files(topic_id)
            if topic is not None and topic.config.durability != "ephemeral" and last > topic.log.head_seq:
                self.columns.run(topic, partial(topic.log.add_hole, topic.log.head_seq + 1, last, "corrupt"))
                topic.part = None

    def _with_files(self, topic_id: int) -> RecoveredTopic | None:
        return self.topics.get(topic_id) if topic_id not in self._doomed else None

    def _consult(self, topic_id: int, topic: RecoveredTopic | None) -> RecoveredTopic | None:
        """The topic as of its manifest, if it has one and that is newer than what the snapshot has."""
        if topic_id not in self.directories and (topic is None or not topic.segments):
            return topic
        directory = self._datadir.topic_dir(topic_id)
        generation = newest_generation(self._fs.listdir(directory)) or 0
        if generation:
            self.generations[topic_id] = max(generation, self.generations.get(topic_id, 0))
        try:
            part = decode_manifest(self._fs.read(join(directory, manifest_name(generation))))
        except FileNotFoundError as error:
            if topic is None or all(segment.tier != "cold" for segment in topic.segments):
                return topic
            if self._fs.exists(self._datadir.topic_dir(topic_id)):
                # One that is removed has lost its name before it loses a file. So it is damaged.
                return self._without_manifest(topic_id, topic, error)
            self._doomed.add(topic_id)
            return topic
        except SnapshotDamaged as error:
            return self._without_manifest(topic_id, topic, error)
        try:
            # One that is just as new may know of segments that were replaced since the snapshot.
            if part.id == topic_id and (topic is None or Position(*part.end) >= topic.end):
                self._load_part(part, None)
                self.next_topic_id = max(self.next_topic_id, topic_id + 1)
        except MALFORMED as error:
            return self._without_manifest(topic_id, topic, error)
        return self.topics.get(topic_id)

    def _without_manifest(self, topic_id: int, topic: RecoveredTopic | None, error: Exception) -> RecoveredTopic | None:
        """The topic as the snapshot has it. Of segments that went cold since then only the manifest knew: they are
        where their files are."""
        log.warning("manifest_damaged", topic_id=topic_id, problem=str(error))
        if topic is not None:
            self._find_relocated(topic)
        return topic

    def _find_relocated(self, topic: RecoveredTopic) -> None:
        for segment in topic.segments:
            name = segment_name(segment.first, "data")
            hot, cold = self.columns.tiers.hot, self.columns.tiers.cold
            if segment.tier != "hot" or cold is None or hot.exists(topic.id, name):
                continue
            try:
                if cold.exists(topic.id, name):
                    segment.tier = "cold"
            except OSError:
                return  # without the store the start goes on, and reads of it fail

    def _create(self, topic: RecoveredTopic | None, frame: Frame, payload: dict[str, Any]) -> RecoveredTopic | None:
        self.next_topic_id = max(self.next_topic_id, frame.topic_id + 1)
        self.clock = max(self.clock, frame.ts)
        if frame.type == FrameType.TOPIC_CREATE:
            self._newest[payload["name"]] = max(self._newest.get(payload["name"], 0), frame.topic_id)
        if topic is not None:
            return topic
        topic = RecoveredTopic(frame.topic_id, payload["name"], config_from_wire(payload["config"]))
        topic.ceiling = payload.get("ceiling", 0)
        if frame.type == FrameType.STAGE:
            topic.stage = StageOf(payload["target"], payload["stage"])
            topic.last_write = frame.ts  # it is as if it had been used then
        self.topics[topic.id] = topic
        return topic

    def _apply_to(self, topic: RecoveredTopic, shard: RecoveredShard, file: WalFile, batch: _Batch) -> None:
        """Apply a batch of one topic: its records first, then what the batch says about them."""
        if not batch.controls:
            self._append(topic, shard, file, batch.rows, batch.extras)
            return
        appends = [row for row in batch.rows if row[2] == FrameType.APPEND]
        if appends:
            self._append(topic, shard, file, appends, batch.extras)
        for row in batch.rows:
            if row[2] != FrameType.APPEND:
                frame = Frame._make(row)
                self.clock = max(self.clock, frame.ts)
                if frame.type == FrameType.FORWARDED:
                    self._forwarded(topic, shard, frame, batch.extras[frame.offset])
                else:
                    self._control(topic, frame, batch.extras[frame.offset])

    def _append(
        self,
        topic: RecoveredTopic,
        shard: RecoveredShard,
        file: WalFile,
        appends: list[Row],
        extras: Mapping[int, Any],
    ) -> None:
        offsets, frame_lens, _, flags, _, seqs, times, _, _, data_lens = zip(*appends, strict=True)
        totals = [length + 4 for length in frame_lens]
        if topic.config.durability == "ephemeral":
            origins = [extras.get(~offset) for offset in offsets]
            topic.stash.append((seqs[0], file.file_id, list(offsets), totals, origins))
            return
        log_ = topic.log
        if seqs[0] > log_.head_seq + 1:
            log.error("seqs_missing", topic=topic.name, first=log_.head_seq + 1, last=seqs[0] - 1, file=file.path)
            self.columns.run(topic, partial(log_.add_hole, log_.head_seq + 1, seqs[0] - 1, "corrupt"))
        if seqs[0] <= log_.head_seq:
            log.error("seqs_repeated", topic=topic.name, first=seqs[0], head=log_.head_seq, file=file.path)
            return
        with_origin = any(flag & HAS_ORIGIN for flag in flags)
        sizes = [
            size - 4 - (17 if with_origin and flag & HAS_ORIGIN else 0)
            for size, flag in zip(data_lens, flags, strict=True)
        ]
        tags = None
        if any(flag & HAS_TAG for flag in flags):
            tags = [extras.get(offset) for offset in offsets]
        log_.extend_records(
            seqs[0],
            array("Q", times),
            file.file_id,
            offsets,
            array("I", totals),
            array("I", sizes),
            bytes([flag & 0x23 for flag in flags]),
            tags,
        )
        if with_origin:
            self._note_origins(topic, seqs[0], [extras.get(~offset) for offset in offsets])
        shard.last_seqs[topic.id] = seqs[-1]
        topic.last_write = times[-1]
        self.clock = max(self.clock, times[-1])

    @staticmethod
    def _note_origins(topic: RecoveredTopic, first: int, origins: Sequence[Origin | None]) -> None:
        """Some records of a batch have come from elsewhere."""
        for seq, origin in enumerate(origins, first):
            if origin is not None:
                topic.copies = topic.copies or CopyTable()
                topic.copies.add(seq, [(1, Kind(origin.topic_id, origin.hops, PLAIN))], [origin.seq])
                if topic.origins is not None:
                    topic.origins.add(origin.topic_id, origin.seq)

    # -- copies ------------------------------------------------------------------------------------------------------

    def _forwarded(self, topic: RecoveredTopic, shard: RecoveredShard, frame: Frame, payload: dict[str, Any]) -> None:
        """A router has moved on, and has made what the frame says; or stages were committed."""
        trims = False
        if not is_staged(payload):
            forwarded = decode_forwarded(payload)
            trims = forwarded.trims
            router = topic.incoming.get(forwarded.router)
            if router is not None and router.source_id == forwarded.source:
                router.cursor = max(router.cursor, forwarded.last)
                router.forwarded = max(router.forwarded, forwarded.total)
            self._sources[forwarded.source] = max(forwarded.last, self._sources.get(forwarded.source, 0))
        if topic.config.durability == "ephemeral" or not frame.seq:
            return
        log_ = topic.log
        recipe = decode_recipe(payload, self.files.file_of)
        if recipe is None and not trims:
            return  # the copies are in the batch
        if frame.seq > log_.head_seq + 1:
            log.error("seqs_missing", topic=topic.name, first=log_.head_seq + 1, last=frame.seq - 1, forwarded=True)
            self.columns.run(topic, partial(log_.add_hole, log_.head_seq + 1, frame.seq - 1, "corrupt"))
        if frame.seq <= log_.head_seq:
            return
        shard.last_seqs[topic.id] = frame.seq + (len(recipe.flags) if recipe is not None else 1) - 1
        topic.last_write = frame.ts
        if recipe is None:
            self.columns.run(topic, partial(log_.add_hole, frame.seq, frame.seq, "source_trim"))
            return
        self._copy(topic, frame, recipe)

    def _copy(self, topic: RecoveredTopic, frame: Frame, recipe: Recipe) -> None:
        """The copies of one recipe. Structure does not need the bytes; what is found of those tells their tags.

        Bytes in a segment were on the disk before the copy was made of them, so copies without a tag are there also
        while the cold store does not answer, to which the segment may have gone since.
        """
        n = len(recipe.flags)
        flags = bytearray(recipe.flags)
        tags: list[str | None] = [None] * n
        tagged = any(flag & HAS_TAG for flag in flags)
        if tagged or not holds(self._fs, self.columns.tiers, self.files, recipe):
            away: set[int] = set()
            opened = read_recipe(self._fs, self.columns.tiers, self.files, recipe, None if tagged else away)
            for i, (record, kind, seq) in enumerate(
                zip(opened, each_kind(recipe.kinds), recipe.origin_seqs, strict=True)
            ):
                if i in away:
                    continue
                if record is None or record.origin[:2] != (kind.topic_id, seq):
                    topic.missing[frame.seq + i] = None
                    flags[i] &= ~HAS_TAG
                elif flags[i] & HAS_TAG:
                    tags[i] = record.tag.decode()
        topic.log.extend_records(
            frame.seq,
            array("Q", (frame.ts,)) * n,
            recipe.files,
            recipe.offsets,
            recipe.frame_lens,
            recipe.sizes,
            bytes(flag | FLAG_DERIVED for flag in flags),
            tags if any(tags) else None,
        )
        topic.copies = topic.copies or CopyTable()
        topic.copies.add(frame.seq, recipe.kinds, recipe.origin_seqs)
        topic.copies.need(set(recipe.files) - {0}, frame.seq + n - 1)
        if topic.origins is not None:
            for i, (kind, seq) in enumerate(zip(each_kind(recipe.kinds), recipe.origin_seqs, strict=True)):
                if flags[i] & HAS_ORIGIN and frame.seq + i not in topic.missing:  # what is lost may come another way
                    topic.origins.add(kind.topic_id, seq)

    def resolve_copies(self, shards: Mapping[int, RecoveredShard]) -> dict[int, list[tuple[int, int, LossReason]]]:
        """Now that the ends of all shards are known: copies whose bytes are not there are lost (`docs/spec/crash.md`
        16), or were damaged."""
        found: dict[int, list[tuple[int, int, LossReason]]] = {}
        filled = any(shard.fillers for shard in shards.values())
        if filled:
            self._give_up_filled(shards)
        for topic in self.topics.values():
            if topic.copies is None:
                continue
            lost: list[tuple[int, int, LossReason]] = []
            for run in topic.log.index.capture_raw(topic.log.head_seq):
                for i, flag in enumerate(run.flags):
                    if flag < FLAG_DERIVED or run.dead[i]:
                        continue
                    seq = run.first + i
                    beyond = self._is_beyond(shards, run.file[i], run.offset[i] + run.frame_len[i])
                    beyond = beyond or (filled and self._is_filled(shards, run.file[i], run.offset[i]))
                    if beyond or seq in topic.missing:
                        given_up = self._is_given_up(shards, run.file[i], run.offset[i])
                        lost.append((seq, seq, "corrupt" if given_up else "lost"))
            for first, last, reason in lost:
                log.error("copy_without_bytes", topic=topic.name, seq=first, reason=reason)
                self.columns.run(topic, partial(topic.log.add_hole, first, last, reason))
                topic.part = None
            if lost:
                found[topic.id] = _joined(lost)
        return found

    def _give_up_filled(self, shards: Mapping[int, RecoveredShard]) -> None:
        """Records that a part knows of, in the log where salvage has given it up: replay has not looked at them."""
        for topic in self.topics.values():
            for run in topic.log.index.capture_raw(topic.log.head_seq):
                for i, flag in enumerate(run.flags):
                    if flag >= FLAG_DERIVED or run.dead[i] or not self._is_filled(shards, run.file[i], run.offset[i]):
                        continue
                    seq = run.first + i
                    log.error("record_damaged", topic=topic.name, seq=seq)
                    self.columns.run(topic, partial(topic.log.add_hole, seq, seq, "corrupt"))
                    topic.part = None

    def copied_topics(self) -> set[int]:
        """Topics with segments that copies are made of."""
        files = (file for topic in self.topics.values() if topic.copies is not None for file in topic.copies.files)
        return {owner for kind, owner, _ in map(self.files.place_of, filter(None, files)) if kind == "segment"}

    def _is_given_up(self, shards: Mapping[int, RecoveredShard], file: int, offset: int) -> bool:
        """Whether salvage has given up the bytes there, or they are in a segment: then they were on disk."""
        kind = self.files.place_of(file)[0] if file else ""
        return kind == "segment" or self._is_filled(shards, file, offset)

    def _is_filled(self, shards: Mapping[int, RecoveredShard], file: int, offset: int) -> bool:
        """Whether salvage has given up the bytes there: a copy that the snapshot knows of was not looked at before."""
        kind, shard, ordinal = self.files.place_of(file) if file else ("", 0, 0)
        return kind == "wal" and any(
            ordinal == filled and start <= offset < end for filled, start, end in shards[shard].fillers
        )

    def _is_beyond(self, shards: Mapping[int, RecoveredShard], file: int, end: int) -> bool:
        """Whether a frame that ends there is not in the log as it was recovered."""
        if not file:
            return True
        kind, shard, ordinal = self.files.place_of(file)
        if kind != "wal":
            return False
        found = shards[shard]
        return found.file is None or (ordinal, end) > (found.file.ordinal, found.end)

    def check_routers(self) -> None:
        """Routers between instances that are not both there are gone (`docs/spec/crash.md` 20); no cursor stands above
        its source's head."""
        for topic in self.topics.values():
            gone = [name for name, router in topic.incoming.items() if router.source_id not in self.topics]
            for name in gone:
                del topic.incoming[name]
                self._keep_origins(topic)
                topic.part = None
            for router in topic.incoming.values():
                self._sources[router.source_id] = max(router.cursor, self._sources.get(router.source_id, 0))
        for topic_id, last in self._sources.items():
            source = self.topics.get(topic_id)
            if source is not None:
                source.forwarded_to = last

    def _control(self, topic: RecoveredTopic, frame: Frame, payload: dict[str, Any]) -> None:
        kind = frame.type
        if kind == FrameType.HEAD_WATERMARK:
            topic.ceiling = payload["ceiling"]
        elif kind == FrameType.IDEMPOTENCY:
            if topic.keys is None:
                topic.keys = DedupeWindow()
            at = payload.get("at")  # version 1 has none, and its windows ran by the wall clock
            at = max(frame.ts, topic.log.last_ts) if at is None else whole(at)
            topic.keys.remember(payload["key"], payload["first"], payload["count"], at)
            self._note_windows(topic)
        elif kind == FrameType.EVICT_WATERMARK:
            self.columns.run(topic, partial(topic.log.evict_below, payload["below"], payload["reason"]))
        elif kind == FrameType.DELETE:
            self._delete(topic, payload)
        elif kind == FrameType.LEASE:
            self._seen = max(self._seen, whole(payload.get("at", 0)))
            if topic.queue is not None:
                topic.queue.apply(event_from_wire(payload, self.now))
        elif kind == FrameType.CONFIG_UPDATE:
            self._configure(topic, payload)
        elif kind == FrameType.ROUTER_CREATE:
            self._create_router(topic, Router.load(payload["router"]))
        elif kind == FrameType.ROUTER_DELETE:
            topic.incoming.pop(payload["name"], None)
            self._keep_origins(topic)
        elif kind == FrameType.HOLE and payload.get("within"):
            self.columns.run(topic, partial(topic.log.add_hole, payload["first"], payload["last"], payload["reason"]))
        elif kind == FrameType.HOLE:
            # Of an `ephemeral` topic an older snapshot knows a lower head than the recovery that has logged this.
            if payload["last"] > topic.log.head_seq:
                if topic.config.durability != "ephemeral" and payload["first"] > topic.log.head_seq + 1:
                    before = partial(topic.log.add_hole, topic.log.head_seq + 1, payload["first"] - 1, "corrupt")
                    self.columns.run(topic, before)
                hole = partial(topic.log.add_hole, topic.log.head_seq + 1, payload["last"], payload["reason"])
                self.columns.run(topic, hole)
        elif kind == FrameType.TOPIC_DELETE:
            del self.topics[topic.id]
        elif kind == FrameType.STAGE:
            if "key" in payload:
                topic.commit_keys = topic.commit_keys or CommitKeys()
                at = whole(payload.get("at", frame.ts))
                commit = payload["key"], payload["first"], payload["count"], at, payload["stages"]
                topic.commit_keys.remember(*commit)
                self._note_windows(topic)
        elif kind not in (FrameType.TOPIC_CREATE, FrameType.CHECKPOINT_MARK):
            raise frames.UnknownFrameType(
                f"a frame of type {kind} at offset {frame.offset} is not known to this version"
            )

    def _create_router(self, topic: RecoveredTopic, router: Router) -> None:
        known = topic.incoming.get(router.name)
        if known is not None and known.source_id == router.source_id:
            known.config = router.config  # its cursor is where the frames since have brought it
        else:
            topic.incoming[router.name] = router
        self._keep_origins(topic)

    @staticmethod
    def _keep_origins(topic: RecoveredTopic) -> None:
        topic.origins = kept_origins(topic.origins, topic.incoming.values())

    def _delete(self, topic: RecoveredTopic, payload: dict[str, Any]) -> None:
        bound, before = payload["bound"], payload.get("before_seq")
        log_ = topic.log
        if "seqs" in payload:
            named = from_little_endian("Q", payload["seqs"])
            self.columns.run(topic, partial(log_.delete_seqs, named))
            if topic.queue is not None:
                topic.queue.gone(named)
            return
        if "match" not in payload:
            if before is not None:
                self.columns.run(topic, partial(log_.delete_below, before, bound))
            return
        match = parse_match(payload["match"])
        end = bound if before is None else min(bound, before - 1)
        for span in log_.tags.spans_in_files(end):
            segment = span.segment
            assert isinstance(segment, Segment)
            tags = load_tags(self.columns.tiers, segment)
            seqs = [segment.first + i for i in tags.find(match)]
            # One segment after another, so that a few columns at a time are enough.
            hit = array("Q", [seq for seq in seqs if seq < log_.tags.known_from and log_.earliest_seq <= seq <= end])
            if hit:
                self.columns.run(topic, partial(log_.delete_seqs, hit))
        rest = self.columns.run(topic, partial(log_.tags.matching, match, before_seq=before, bound=bound))
        self.columns.run(topic, partial(log_.delete_seqs, rest))

    def _configure(self, topic: RecoveredTopic, payload: dict[str, Any]) -> None:
        topic.config = config_from_wire(payload["config"])
        topic.ceiling = payload["ceiling"]
        if "log" in payload:
            topic.log = TopicLog.load(payload["log"])
            for span in topic.log.stored.all():
                inside = (one for one in topic.segments if one.first <= span.first and span.end <= one.end)
                span.segment = next(inside, None)
                if span.segment is None:
                    self._doomed.add(topic.id)
                    return
            topic.copies = None  # what is in no segment has been written out
            for first_seq, file_id, offsets, totals, origins in topic.stash:
                topic.log.index.place(first_seq, file_id, offsets, array("I", totals))
                _Replay._note_origins(topic, first_seq, origins)
            topic.keys = DedupeWindow.load(payload["keys"]) if payload["keys"] else None
            if payload.get("origins") is not None:
                topic.origins = OriginSet.load(payload["origins"])
            if payload.get("queue") is not None:
                topic.queue = load_queue(payload["queue"], self.now)
        topic.stash = []


def _joined(lost: Sequence[tuple[int, int, LossReason]]) -> list[tuple[int, int, LossReason]]:
    """The same with neighbours of one reason as one run."""
    joined: list[tuple[int, int, LossReason]] = []
    for first, last, reason in lost:
        if joined and joined[-1][1] + 1 == first and joined[-1][2] == reason:
            joined[-1] = (joined[-1][0], last, reason)
        else:
            joined.append((first, last, reason))
    return joined
