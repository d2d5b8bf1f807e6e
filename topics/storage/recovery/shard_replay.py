"""The replay of one shard of the log, from where the snapshot ends to the end of its last file (`docs/spec/storage.md`
section 3, `docs/spec/crash.md` 2 to 5).

Responsible for the order of its files, which must have no gap, for frames about the shard itself, and for passing
batches about topics to `topic_replay`. If a file does not end in FileEnd, `log_end` judges.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from topics.log.dumped_values import text, whole
from topics.storage.files.datadir import DataDirError, FoundShard
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import Fs
from topics.storage.files.progress import Progress
from topics.storage.recovery.bare_fillers import outstanding
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.frame_batches import FrameBatch, FrameBatches
from topics.storage.recovery.log_end import LogEnds, OpenEnd
from topics.storage.recovery.log_layout import LogLayout
from topics.storage.recovery.recovered_state import (
    BareFiller,
    ColumnLoader,
    FilledRange,
    RecoveredShard,
    RecoveredTopic,
)
from topics.storage.recovery.replay_clock import ReplayClock
from topics.storage.recovery.schedule_replay import ScheduleReplay
from topics.storage.recovery.topic_catalog import TopicCatalog
from topics.storage.recovery.transaction_replay import TransactionReplay
from topics.storage.snapshots.snapshot import ReplayPosition, Snapshot
from topics.storage.wal.frame_search import MOST_RESERVED
from topics.storage.wal.frames import Frame, FrameType
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

EVERY_MANIFEST: Final = "every_manifest"
"""In a ShardOpen, with True: before it the log lacks the marks of work on files (`restored_copy.lacks_marks`)."""

_CLEAN_STOP: Final = int(FrameType.CLEAN_STOP)
_TOPIC_DELETE: Final = int(FrameType.TOPIC_DELETE)


class BatchReplay:
    """Applies batches about topics, in the order of each shard: at a start, and when a standby follows the log of
    another daemon (`topics.engine.standby`). Both go through this one door, so they cannot come to different states.
    `topic_replay` says what the frames mean."""

    def __init__(self, topics: TopicCatalog, transactions: TransactionReplay, schedules: ScheduleReplay) -> None:
        self._topics = topics
        self._transactions = transactions
        self._schedules = schedules

    def apply(self, shard: RecoveredShard, batch: FrameBatch) -> None:
        """Apply a batch that was found in `shard`. Raises OSError, UnknownFrameType, and any exception for a malformed
        payload."""
        topics, file, first = self._topics, batch.file, batch.rows[0]
        self._transactions.note(batch)
        self._schedules.note(batch)
        topic = topics.of_batch(batch)
        if topic is None:
            return
        if topic.doomed:
            if any(row[2] == _TOPIC_DELETE for row in batch.rows):
                del topics.by_id[topic.id]
            return
        if (file.ordinal, first[0]) < topic.end:
            # Frames before the topic's own position are in the snapshot already; a run may begin among them.
            batch.rows = [row for row in batch.rows if (file.ordinal, row[0]) >= topic.end]
        if batch.rows:
            topic.part = None
            topic.end = LogPosition(file.ordinal, batch.end)
            if topic.tree is not None or self._transactions.begins_tree(topic):
                batch.take_leaves()
            batch.forget_bytes()
            self._transactions.take(topic, shard, batch)


class ReplayTools(NamedTuple):
    """The objects that the replays of all shards share."""

    fs: Fs
    progress: Progress
    layout: LogLayout
    files: WalFiles
    clock: ReplayClock
    columns: ColumnLoader
    topics: TopicCatalog
    transactions: TransactionReplay
    schedules: ScheduleReplay
    batches: BatchReplay
    ends: LogEnds
    vouched: Mapping[int, LogPosition]
    """Positions that are known to be synced, by shard, besides those that the log itself tells."""
    shard_of: Callable[[int], int]
    """Returns the shard of a topic id."""


class ShardReplay:
    """Replays one shard, once. Blocking."""

    def __init__(self, tools: ReplayTools, found: FoundShard, begin: ReplayPosition, snapshot: Snapshot | None) -> None:
        """`begin` is where the snapshot ends; without a snapshot, where the log begins."""
        self._tools = tools
        self._found = found
        self._begin = begin
        self._has_snapshot = snapshot is not None
        self._shard = shard = RecoveredShard(found.shard, found.path)
        known = tools.vouched.get(found.shard, LogPosition(0, 0))
        shard.vouched = max(LogPosition(begin.ordinal, begin.offset), known)
        if snapshot is not None and found.shard in snapshot.positions:
            # A substitute snapshot made from manifests has neither of them; the frames may have them.
            shard.boot_id, shard.identity = snapshot.boot_id or None, snapshot.identity or None
            shard.shards = snapshot.shards

    def run(self) -> RecoveredShard:
        """Replay the shard to its end.

        Raises Damage, DataDirError if a file is missing, UnknownFrameType, OSError, and any exception for a malformed
        payload.
        """
        layout, progress, begin, shard = self._tools.layout, self._tools.progress, self._begin, self._shard
        ordinals = layout.ordinals(self._found)
        if layout.first_ordinal and not ordinals:
            shard.frame_count = begin.frames
            return shard
        self._check_start(ordinals)
        later = [ordinal for ordinal in ordinals if ordinal >= begin.ordinal]
        before = (ordinal for ordinal in ordinals if ordinal < begin.ordinal)
        progress.done += sum(layout.file_size(self._found, ordinal) for ordinal in before)
        offset, count = begin.offset, begin.frames
        for i, ordinal in enumerate(later):
            following = later[i + 1] if i + 1 < len(later) else None
            if ordinal != count and offset <= FILE_HEADER_BYTES:
                raise self._gap(ordinal, count)
            count = self._file(self._file_of(ordinal), offset, count, following)
            offset = 0
        self._settle_bare_fillers()
        return shard

    def _check_start(self, ordinals: list[int]) -> None:
        """Check that the log reaches back to where the snapshot begins, and to the records that the snapshot places in
        older files."""
        begin = self._begin.ordinal
        if begin not in ordinals:
            if ordinals and ordinals[0] <= begin:
                raise self._gap(ordinals[-1], begin)
            raise DataDirError(
                f"the WAL in {self._shard.directory} does not reach back to frame {begin}, where "
                + ("its snapshot ends" if self._has_snapshot else "it starts, and there is no snapshot")
            )

    def _gap(self, ordinal: int, expected: int) -> DataDirError:
        return DataDirError(
            f"the WAL in {self._shard.directory} has a gap: frame {expected} should begin a file, and the next file "
            f"begins with frame {ordinal}"
        )

    def _file_of(self, ordinal: int) -> WalFile:
        return next(file for file in self._tools.files.of_shard(self._shard.shard) if file.ordinal == ordinal)

    # -- one file -----------------------------------------------------------------------------------------------------

    def _file(self, file: WalFile, offset: int, count: int, following: int | None) -> int:
        """Replay one file from `offset`, where the frame of ordinal `count` is. Return the ordinal of the frame behind
        it. `following` is the ordinal of the next file, None if this is the last one."""
        shard, progress, ends = self._shard, self._tools.progress, self._tools.ends
        shard.file = file
        shard.last_seqs = {}
        with self._tools.fs.open(file.path, read_only=True) as handle:
            batches = FrameBatches(file, handle, max(offset, file.head.first), count, progress)
            if file.head.problem is not None:
                self._tools.transactions.give_in(shard)
                raise ends.without_header(self._open_end(batches, file, following), batches.size)
            if file.head.corrected:
                log.error("wal_header_corrected", file=file.path, problem="one bit of it was not as it was written")
            for batch in batches:
                self._apply(batch)
            progress.done += batches.size - batches.at
            if batches.ended:
                self._note_end(batches, file, following)
            else:
                try:
                    ends.judge(self._open_end(batches, file, following), handle)
                except Damage:
                    if self._tools.transactions.give_in(shard):  # the heads have moved: judge again
                        ends.judge(self._open_end(batches, file, following), handle)
                    raise
            return batches.count

    def _open_end(self, batches: FrameBatches, file: WalFile, following: int | None) -> OpenEnd:
        return OpenEnd(
            self._shard, file, following, batches.at, batches.reason, batches.batch_at, batch_count=batches.count
        )

    def _note_end(self, batches: FrameBatches, file: WalFile, following: int | None) -> None:
        """Note a file that is complete."""
        shard = self._shard
        if following is not None and batches.count != following:
            raise self._gap(following, batches.count)
        shard.end, shard.ended, shard.frame_count = batches.batch_at, True, batches.count
        if following is not None:  # otherwise its sync may have failed or have been interrupted
            shard.vouched = max(shard.vouched, LogPosition(file.ordinal, batches.batch_at))

    # -- frames -------------------------------------------------------------------------------------------------------

    def _apply(self, batch: FrameBatch) -> None:
        """Apply one batch."""
        first = batch.rows[0]
        self._shard.clean = first[2] == _CLEAN_STOP
        self._shard.last_frame = batch.rows[-1][0]
        if not first[4]:
            self._apply_to_shard(batch.file, batch.first, batch.extras[first[0]])
            return
        self._tools.batches.apply(self._shard, batch)

    def _apply_to_shard(self, file: WalFile, frame: Frame, payload: dict[str, Any]) -> None:
        """Apply a frame about the shard itself; types not handled here need nothing done in replay."""
        shard = self._shard
        if frame.type == FrameType.SYNCED:
            # Bytes behind this frame were not synced when it was written, even if its position is beyond it.
            vouched = LogPosition(payload["file"], payload["offset"])
            shard.vouched = max(shard.vouched, min(vouched, LogPosition(file.ordinal, frame.offset)))
        elif frame.type == FrameType.FILE_END:
            self._fill_up(payload["last"])
            shard.bare_fillers = [one for one in shard.bare_fillers if one.place.ordinal != file.ordinal]
        elif frame.type == FrameType.CLEAN_STOP:
            self._tools.clock.note_write(payload["clock"])
        elif frame.type == FrameType.SCHEDULE:
            self._tools.schedules.apply(payload)
        elif frame.type == FrameType.SHARD_OPEN:
            if "boot" not in payload and "failed" not in payload:
                # A file that had lost its end and is not the last: frames behind the filler are lost as well.
                stop = sys.maxsize if payload.get("ends_file") else frame.end
                self._tools.transactions.give_in(shard)
                shard.fillers.append(FilledRange(file.ordinal, frame.offset, stop))
                if "holes" not in payload:
                    self._note_bare_filler(
                        LogPosition(file.ordinal, frame.offset), LogPosition(file.ordinal, frame.end)
                    )
            if "holes" in payload:
                self._take_verdict(file, frame, payload["holes"])
                return
            shard.failed_shards.update(payload.get("failed", ()))
            if "boot" in payload:
                shard.boot_id, shard.identity = text(payload["boot"]), text(payload["identity"])
                shard.shards = whole(payload["shards"])
                if not shard.shards:
                    raise ValueError("a ShardOpen frame with 0 shards")
                shard.failed_shards = set()
                if payload.get(EVERY_MANIFEST):
                    self._tools.topics.consult_all()

    def _take_verdict(self, file: WalFile, frame: Frame, holes: Mapping[int, tuple[int, int]]) -> None:
        """Apply the verdict of a filler: first and last lost seq, by topic id (`docs/spec/crash.md` 15)."""
        for topic_id, (first, last) in holes.items():
            topic = self._tools.topics.with_files(topic_id)
            if topic is not None and (file.ordinal, frame.offset) >= topic.end and last > topic.log.head_seq:
                self._give_up(topic, last, LogPosition(file.ordinal, frame.end), first=first)

    def _fill_up(self, last_seqs: Mapping[int, int]) -> None:
        """Make holes of the seqs that FileEnd knows and replay has not found: they were in a range that salvage gave
        up. In a shard with such a range no batch is kept back, so a topic with one lacks nothing."""
        for topic_id, last in last_seqs.items():
            topic = self._tools.topics.with_files(topic_id)
            if topic is None or topic.config.durability == "ephemeral":
                continue
            if last > topic.log.head_seq and not self._tools.transactions.keeps_back_of(topic):
                self._tools.columns.add_hole(topic, topic.log.head_seq + 1, last, "corrupt")
                topic.part = None

    # -- ranges that salvage has given up -----------------------------------------------------------------------------

    def _note_bare_filler(self, place: LogPosition, end: LogPosition) -> None:
        """Note a filler without a verdict, with the present head of each topic of which it may have replaced
        records."""
        topics, shard = self._tools.topics, self._shard
        heads: dict[int, int] = {}
        for topic_id in sorted(topics.by_id):
            if topics.with_files(topic_id) is None or self._tools.shard_of(topic_id) != shard.shard:
                continue
            topic = topics.consulted(topic_id)
            if topic is None or place < topic.end:
                continue
            if topic.config.durability == "ephemeral":
                self._give_up(topic, max(topic.log.head_seq, topic.ceiling) + MOST_RESERVED, end)
            else:
                heads[topic_id] = topic.log.head_seq
        shard.bare_fillers.append(BareFiller(place, end, heads))

    def _settle_bare_fillers(self) -> None:
        """Decide, at the end of the log, about fillers for which no later frame has shown how many seqs they
        replace."""
        topics, shard = self._tools.topics, self._shard
        for topic_id, seqs in outstanding(shard.bare_fillers, topics.by_id).items():
            topic = topics.with_files(topic_id)
            if topic is not None:
                self._give_up(topic, topic.log.head_seq + seqs, shard.bare_fillers[-1].end)
                shard.last_seqs[topic_id] = topic.log.head_seq  # FileEnd tells it to later replays

    def _give_up(self, topic: RecoveredTopic, last: int, end: LogPosition, *, first: int = 1) -> None:
        """Make a hole of the seqs of a topic that a filler ending at `end` held: those behind the head, from `first` to
        `last`."""
        self._tools.columns.add_hole(topic, max(first, topic.log.head_seq + 1), last, "corrupt")
        topic.part = None
        topic.ceiling = max(topic.ceiling, last)
        topic.end = max(topic.end, end)
