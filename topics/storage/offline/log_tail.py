"""`LogTail`: what the log of a directory has behind some places, and the records that are there: for
`inspect --diverged` (`docs/design/standby.md` section 6).

Changes are counted as the frames say, as far as the log can be read. Which records are gone again is what recovery
says, if it does not refuse the directory; recovery takes the memory of a start. Records are read from their Append
frames. Records that a commit of stages has published are read from where its frame points to. Copies that routers have
made are counted only, but for those of `ephemeral` topics: a daemon that has the sources makes them again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final, NamedTuple

from topics.log.dumped_values import from_little_endian
from topics.log.stages import STAGE_MARK
from topics.log.topic_config import config_from_wire
from topics.queue.job_pages import DEFAULT_PRIORITY
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.files.fs import Fs
from topics.storage.files.progress import Progress
from topics.storage.files.read_only_fs import ReadOnlyFs
from topics.storage.offline.findings import DAMAGE, Finding
from topics.storage.offline.frame_dump import type_name
from topics.storage.offline.inspect import Inspection
from topics.storage.offline.tail_batches import TailBatch, TailBatches
from topics.storage.offline.tail_facts import ShardTail, TailFacts, TailRecord, TopicTail
from topics.storage.recovery import replay
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import RecoveredState, understood
from topics.storage.segments.copy_chains import FrameCopies, copies_of, made_from
from topics.storage.segments.copy_frames import CopyRecipe, is_staged, read_recipe
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.snapshots.snapshot import SnapshotDamaged
from topics.storage.wal import frames
from topics.storage.wal.frames import Frame, FrameSeeds, FrameType, Row, StoredRecord, decode_append
from topics.storage.wal.wal_files import LogPosition

READ_BYTES: Final = 4 << 20
"""Records of a commit of stages are read in pieces of so many bytes, or of one record."""

_APPEND: Final = int(FrameType.APPEND)
_FORWARDED: Final = int(FrameType.FORWARDED)
_SYNCED: Final = int(FrameType.SYNCED)

_NAMING: Final = frozenset((FrameType.TOPIC_CREATE, FrameType.TOPIC_DELETE, FrameType.STAGE))

_BOOKS: Final = frozenset(
    map(
        int,
        (
            FrameType.CHECKPOINT_MARK,
            FrameType.HEAD_WATERMARK,
            FrameType.BUCKET_CEILING,
            FrameType.SYNCED,
            FrameType.FILE_END,
            FrameType.SHARD_OPEN,
            FrameType.CLEAN_STOP,
        ),
    )
)
"""The types of frames that change nothing for clients."""


class _Named(NamedTuple):
    """The known facts about a topic besides its records."""

    name: str
    type: str | None = None
    durability: str | None = None


class _Unsynced(NamedTuple):
    """Records that no frame has yet said to be on disk, and where their batch ends."""

    end: LogPosition
    tail: TopicTail
    records: int


class LogTail:
    """The end of the log of one directory. `progress` tells how far a reading is. Methods raise DataDirError if the
    directory cannot be used at all, OSError."""

    def __init__(self, fs: Fs, root: str, positions: Sequence[tuple[int, int]] | None, cold: str | None = None) -> None:
        """`positions` is where the end begins, by shard; None for the whole log."""
        self._fs = ReadOnlyFs(fs, Progress())
        self._datadir = DataDir(root)
        self._cold = cold
        self._inspection = Inspection(fs, root, cold)
        self._inspection.check_format()
        store = DirectorySegmentStore(self._fs, cold) if cold is not None and fs.exists(cold) else None
        self._tiers = SegmentTiers(DirectorySegmentStore(self._fs, root), store)
        self._batches = TailBatches(self._fs, self._datadir, positions)
        self.progress = self._batches.progress
        self.refused: str | None = None
        """Why recovery refuses the directory, when that is known."""
        self._names: dict[int, _Named] = {}
        self._unread: list[Finding] = []

    @property
    def findings(self) -> list[Finding]:
        """Bytes that the last reading could not read, and frames that do not count."""
        return self._batches.findings + self._unread

    # -- what there is -------------------------------------------------------------------------------------------------

    def facts(self) -> TailFacts:
        """Count everything."""
        self._begin()
        tails: dict[int, TopicTail] = {}
        others: Counter[str] = Counter()
        sizes: Counter[int] = Counter()
        unsynced: dict[int, deque[_Unsynced]] = {}
        for found in self._batches.read():
            batch, shard = found.batch, found.shard
            sizes[shard] += batch.end - batch.rows[0][0]
            self._learn(batch)
            records = self._count(tails, others, batch)
            waiting = unsynced.setdefault(shard, deque())
            for row in batch.rows[-batch.controls :] if batch.controls else ():
                if row[2] == _SYNCED:
                    _note_synced(waiting, batch.extras[row[0]])
            tail = tails.get(batch.rows[0][4])
            if tail is not None and records:
                if found.is_synced:
                    tail.synced += records
                else:
                    waiting.append(_Unsynced(LogPosition(batch.file.ordinal, batch.end), tail, records))
        for tail in tails.values():
            self._name(tail)
        return TailFacts(
            [ShardTail(shard, begin, sizes[shard]) for shard, begin in enumerate(self._batches.begins)],
            sorted(tails.values(), key=lambda tail: (tail.name or "", tail.id)),
            dict(sorted(others.items())),
            self.refused,
            self.findings,
        )

    def _count(self, tails: dict[int, TopicTail], others: Counter[str], batch: FrameBatch) -> int:
        """Count a batch. Return how many records it has."""
        records = 0
        are_copies = self._are_copies(batch)
        for row in batch.rows:
            kind, topic_id = row[2], row[4]
            if kind in _BOOKS:
                continue
            if not topic_id:
                others[type_name(kind)] += 1
                continue
            tail = tails.get(topic_id)
            if tail is None:
                tail = tails[topic_id] = TopicTail(topic_id, None)
            if kind == _APPEND and are_copies:
                tail.copies += 1
            elif kind == _APPEND:
                origin = frames.ORIGIN_BYTES if row[3] & frames.HAS_ORIGIN else 0
                self._add(tail, range(row[5], row[5] + 1), row[6], row[9] - 4 - origin)
                records += 1
            else:
                with understood(batch.file.path):
                    records += self._count_control(tail, Frame._make(row), batch.extras[row[0]])
        return records

    def _count_control(self, tail: TopicTail, frame: Frame, payload: dict[str, Any]) -> int:
        """Count a frame of a topic that is no Append. Return how many records it has."""
        name = type_name(frame.type)
        tail.frames[name] = tail.frames.get(name, 0) + 1
        if frame.type == _FORWARDED:
            if not is_staged(payload):
                tail.copies += payload["count"] if "kinds" in payload else 0
                return 0
            seqs = range(frame.seq, frame.seq + len(payload["flags"]))
            self._add(tail, seqs, frame.ts, sum(from_little_endian("I", payload["sizes"])))
            return len(seqs)
        if "seqs" in payload and (frame.type == FrameType.DELETE or payload.get("op") == "acked"):
            tail.acked += len(payload["seqs"]) // 8
        return 0

    def _are_copies(self, batch: FrameBatch) -> bool:
        """Return True if the Appends of a batch are copies that a router has made, and can be made again. The records
        of an `ephemeral` source have gone with the daemon."""
        for row in batch.rows[-batch.controls :] if batch.controls else ():
            payload = batch.extras[row[0]] if row[2] == _FORWARDED else None
            if payload is not None and not is_staged(payload):
                source = self._names.get(payload["source"])
                return source is None or source.durability != "ephemeral"
        return False

    def _add(self, tail: TopicTail, seqs: range, ts: int, size: int) -> None:
        """Count records that were appended together."""
        if not tail.records:
            tail.first_seq, tail.first_ts = seqs[0], ts
        tail.records += len(seqs)
        tail.bytes += size
        tail.last_seq, tail.last_ts = seqs[-1], ts
        if self._state is None:
            tail.gone = None
        elif tail.gone is not None:
            tail.gone += sum(not self._is_live(tail.id, seq) for seq in seqs)

    # -- records -------------------------------------------------------------------------------------------------------

    def records(self, topic: str | None = None) -> Iterator[TailRecord]:
        """Yield the records that are not gone again, shard by shard; of one topic only if it is named. Records of
        stages that were not committed are none of them."""
        self._begin()
        for found in self._batches.read():
            batch = found.batch
            self._learn(batch)
            topic_id = batch.rows[0][4]
            name = self._names[topic_id].name if topic_id in self._names else None
            if topic_id and topic in (None, name) and STAGE_MARK not in (name or ""):
                yield from self._records_of(found, topic_id, name)

    def _records_of(self, found: TailBatch, topic_id: int, name: str | None) -> Iterator[TailRecord]:
        batch = found.batch
        jobs, are_copies = _jobs_in(batch), self._are_copies(batch)
        for row in batch.rows:
            if row[2] == _APPEND and not are_copies and self._is_wanted(topic_id, row[5]):
                yield TailRecord(topic_id, name, _record_at(batch, row), *jobs.get(row[5], ()))
            elif row[2] == _FORWARDED and is_staged(batch.extras[row[0]]):
                for record in self._committed(batch, row):
                    yield TailRecord(topic_id, name, record)

    def _committed(self, batch: FrameBatch, row: Row) -> Iterator[StoredRecord]:
        """Yield the records that a commit of stages has published."""
        with understood(batch.file.path):
            copies = copies_of(Frame._make(row), batch.extras[row[0]], self._batches.files.file_of)
        lost = 0
        for part in _parts(copies) if copies is not None else ():
            assert copies is not None
            opened = read_recipe(self._fs, self._tiers, self._batches.files, _cut(copies.recipe, part))
            for i, source in zip(part, opened, strict=True):
                seq = copies.first + i
                if not self._is_wanted(copies.topic_id, seq):
                    continue
                made = made_from(copies, i, source) if source is not None else None
                if made is None:
                    lost += 1
                else:
                    yield StoredRecord(seq, copies.ts, made.node, made.tag, made.meta, made.data)
        if lost:
            problem = f"{lost} records of a commit of stages are not where it points to"
            self._unread.append(Finding(batch.file.path, row[0], problem, DAMAGE))

    def _is_wanted(self, topic_id: int, seq: int) -> bool:
        """Return True if a record is not known to be gone."""
        return self._state is None or self._is_live(topic_id, seq)

    # -- what recovery says --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._unread = []
        files = [file for shard in range(len(self._batches.begins)) for file in self._batches.files.of_shard(shard)]
        self.progress.done = 0
        self.progress.total = sum(self._size(file.path) for file in files)
        if self._state is None and not self._names:
            self._names = {
                topic_id: _Named(part.part.name, part.config.type, part.config.durability)
                for topic_id, part in self._inspection.stored_parts().items()
            }
            for found in self._batches.read(whole=True):  # creations that no checkpoint has stored
                self._learn(found.batch)

    def _size(self, path: str) -> int:
        try:
            with self._fs.open(path, read_only=True) as file:
                return file.size()
        except FileNotFoundError:
            return 0

    @cached_property
    def _state(self) -> RecoveredState | None:
        """The directory as a start would find it; None if a start would be refused."""
        try:
            found = replay.recover(self._fs, self._datadir, self._tiers, Progress())
        except (Damage, DataDirError, frames.UnknownFrameType, SnapshotDamaged, OSError, ValueError) as error:
            self.refused = str(error)
            return None
        for topic in found.topics.values():
            self._names[topic.id] = _Named(topic.name, topic.config.type, topic.config.durability)
        return found

    def _is_live(self, topic_id: int, seq: int) -> bool:
        """Return True if a record is there as a start would find it."""
        state = self._state
        assert state is not None
        topic = state.topics.get(topic_id)
        return topic is not None and state.columns.run(topic, partial(topic.log.is_live, seq))

    def _learn(self, batch: FrameBatch) -> None:
        """Note the name of a topic that a batch creates or deletes."""
        kind, topic_id = batch.rows[0][2], batch.rows[0][4]
        if kind not in _NAMING or topic_id in self._names:
            return
        with understood(batch.file.path):
            payload = batch.extras[batch.rows[0][0]]
            if "config" in payload:
                config = config_from_wire(payload["config"])
                self._names[topic_id] = _Named(str(payload["name"]), config.type, config.durability)
            elif "name" in payload:
                self._names[topic_id] = _Named(str(payload["name"]))

    def _name(self, tail: TopicTail) -> None:
        known = self._names.get(tail.id)
        if known is not None:
            tail.name, tail.type, tail.durability = known
            tail.is_stage = STAGE_MARK in known.name


def _note_synced(waiting: deque[_Unsynced], payload: dict[str, Any]) -> None:
    """Count the records that a Synced frame is about."""
    with understood("a Synced frame"):
        end = LogPosition(payload["file"], payload["offset"])
        while waiting and waiting[0].end <= end:
            done = waiting.popleft()
            done.tail.synced += done.records


def _jobs_in(batch: FrameBatch) -> dict[int, tuple[int, int | None]]:
    """Return the times and priorities of jobs, by seq, that a batch says beside their records."""
    jobs: dict[int, tuple[int, int | None]] = {}
    for row in batch.rows:
        payload = batch.extras[row[0]] if row[2] == FrameType.LEASE else {}
        if payload.get("op") == "enqueued":
            with understood(batch.file.path):
                columns = from_little_endian("Q", payload["seqs"]), from_little_endian("Q", payload["not_before"])
                for seq, at, priority in zip(*columns, payload["priorities"], strict=True):
                    jobs[seq] = at, priority if priority != DEFAULT_PRIORITY else None
    return jobs


def _record_at(batch: FrameBatch, row: Row) -> StoredRecord:
    """Return the record of an Append frame, which was verified. Raises DataDirError for one that no version writes."""
    end = row[0] + 4 + row[1]
    window = next(one for one in batch.windows if one.base <= row[0] and end <= one.base + len(one.window))
    seeds = FrameSeeds(batch.file.head.salt, window.base)
    record = decode_append(window.window, row[0] - window.base, row[1] + 4, seeds)
    if record is None:
        raise DataDirError(f"{batch.file.path} has a record at {row[0]} that no version writes")
    return record


def _parts(copies: FrameCopies) -> Iterator[range]:
    """Yield the indexes of copies, in pieces that are read at once."""
    begin = size = 0
    for i, length in enumerate(copies.recipe.frame_lens):
        if i > begin and size + length > READ_BYTES:
            yield range(begin, i)
            begin, size = i, 0
        size += length
    yield range(begin, len(copies.kinds))


def _cut(recipe: CopyRecipe, part: range) -> CopyRecipe:
    """Return the places of some copies of a recipe."""
    at = slice(part.start, part.stop)
    return recipe._replace(
        kinds=[(len(part), recipe.kinds[0][1])],
        origin_seqs=recipe.origin_seqs[at],
        files=recipe.files[at],
        offsets=recipe.offsets[at],
        frame_lens=recipe.frame_lens[at],
        sizes=recipe.sizes[at],
        flags=recipe.flags[at],
    )
