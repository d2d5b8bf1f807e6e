"""Making topics durable in their own files: the part of a checkpoint that is about single topics
(`docs/design/segments.md` section 3).

Captured in one step of the loop, a topic's new records are copied from the WAL into its segments, its deletions are
flagged, its manifest is written; then, in one step again, its index points to the segments. Nothing changes in memory
before everything is on disk, so a failure anywhere leaves only bytes that do not count. The compactor does this for
all topics that have changed, reclaimer and relocator for the one whose files they change.

Reads, writes and syncs are thread calls. Framing is done on the loop, in slices: a thread that computes would hold the
interpreter for longer than an append may take.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from copy import copy
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol

import trio

from topics.config import Settings
from topics.log.copies import PLAIN, CopyTable, run_of
from topics.log.dumped_spans import grow_dump, set_unflagged, summary_first
from topics.log.record_index import RawRun
from topics.log.shared_reads import shared_reads
from topics.log.span import FLAG_DERIVED, FLAG_ORIGIN, LIVE, LOST, NOT_DERIVED, NotLoaded, Span
from topics.log.topic_config import config_to_wire
from topics.log.topic_log import TopicLog
from topics.model import TopicConfig
from topics.runtime.clock import Clock
from topics.runtime.instant import Instant
from topics.runtime.offload import Kind, Offload
from topics.storage.cache.index_cache import IndexCache
from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.files.fs import File, Fs, join, write_all
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.storage.maintenance.named_files import NOTHING, NamedFiles
from topics.storage.recovery.leftovers import tidy_topic
from topics.storage.segments.copy_frames import dressed, open_frames, read_window
from topics.storage.segments.index_format import (
    HOLE_CORRUPT,
    HOLE_LOST,
    HOLE_SOURCE_TRIM,
    IDX_DELETED,
    IDX_HOLE,
    INDEX_ENTRY_BYTES,
    decode_index,
    encode_index,
)
from topics.storage.segments.segment_format import (
    DELETED_FLAG,
    Converted,
    convert_appends,
    convert_derived,
    delete_flag_offset,
    encode_copies,
    tags_of_data,
)
from topics.storage.segments.segment_reader import Tiers, scan_segment
from topics.storage.segments.tags_format import encode_tags
from topics.storage.segments.topic_segments import Limits, Piece, Segment, Shelf, Tier, divide
from topics.storage.snapshots.manifests import FEW_FILES, ManifestWrite, UncertainManifests
from topics.storage.snapshots.queue_dump import FrozenQueue
from topics.storage.snapshots.snapshot import TopicPart, encode_part, is_large
from topics.storage.store import Store
from topics.storage.wal.damage_notes import DamageNotes
from topics.storage.wal.frames import Seeds
from topics.storage.wal.wal_files import Position
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

WORKING_WAIT_S: Final = 5.0
"""How long a deletion that is being worked off, or columns that a commit needs, are waited for."""

SLICE_NS: Final = 1_000_000
"""How long work on the loop goes on before others run."""

SLICE_RECORDS: Final = 1000
SLICE_COPIES: Final = 250
CHUNK_BYTES: Final = 2 << 20
CHUNK_RECORDS: Final = 4000
"""What is read, framed and written in one go."""

READ_BYTES: Final = 1 << 20
"""The longest read that frames share."""

READ_SLACK: Final = 256 << 10
"""If all slots of a chunk are live and in one file, they share a read of any length with at most so many other bytes in
it."""

GROUP_TOPICS: Final = 2048
"""Topics that are stored together, with one sync for all."""

SMALL_RECORDS: Final = 100
SMALL_BYTES: Final = 64 << 10
SMALL_TOPICS: Final = 16
"""Topics with no more new records and bytes than this are written by so many in one thread call."""

_REASON_CODES: Final = {"lost": HOLE_LOST, "corrupt": HOLE_CORRUPT, "source_trim": HOLE_SOURCE_TRIM}


class RecordsDamaged(OSError):
    """Records were found to be damaged, and are holes from now on: another attempt gets further."""


class LiveCommit(Protocol):
    """A published commit that has not been written yet."""

    last_seq: int
    records: int
    file: int
    offset: int
    end: Position | None
    frame_lens: array[int] | None


class LiveQueue(Protocol):
    """The jobs of a queue topic of the running daemon."""

    def freeze(self, now: Instant, *, keeps_jobs: bool = True) -> FrozenQueue:
        """The jobs as of now, in one step; without `keeps_jobs` only what the queue has counted."""
        ...


class LiveTopic(Protocol):
    """What is asked of a topic of the running daemon."""

    id: int
    name: str
    config: TopicConfig
    log: TopicLog
    keys: Any
    copies: CopyTable | None
    origins: Any

    @property
    def queue(self) -> LiveQueue | None:
        """Its jobs, if it is a queue."""
        ...

    shard: int
    shelf: Shelf | None
    ceiling: int
    ceiling_queued: int
    last_ts: int
    last_write_ms: int | None
    last_read_ms: int | None
    part: bytes | None
    base: bytes | None
    part_end: Position | None
    floor_logged: int
    applied_end: Position | None
    unwritten: Any
    deleted: bool

    def unsettled(self) -> trio.Event | None:
        """What to wait for before it shows all that the disk holds of it."""
        ...

    def mark_changed(self) -> None:
        """Its part has to be made anew."""
        ...

    def dump_stage(self) -> list[Any] | None:
        """Whose stage it is, as its part has it."""
        ...

    def dump_commits(self) -> list[list[Any]]:
        """The commits of stages, as its part has them."""
        ...

    def dump_routers(self) -> list[list[Any]]:
        """The routers that feed it, as its part has them."""
        ...

    def copies_stored(self, seq: int) -> None:
        """Copies up to `seq` need nobody else's bytes any more."""
        ...


class Source(Protocol):
    """Where the topics are found (the registry)."""

    by_id: dict[int, Any]
    next_topic_id: int

    @property
    def changed(self) -> set[Any]:
        """Topics whose part has to be made anew."""
        ...

    @property
    def attention(self) -> set[Any]:
        """Topics that the reclaimer has to look at."""
        ...

    @property
    def delayed(self) -> Iterable[Any]:
        """Topics with something in the log that does not show in them yet."""
        ...

    def now_ms(self) -> int:
        """The retention clock."""
        ...

    def instant(self) -> Instant:
        """Now, by the monotonic clock and by that of windows."""
        ...

    def account(self, topic: Any) -> None:
        """Bring the totals up to date after a change of a topic's log."""
        ...

    def copied_files(self) -> set[int]:
        """Ids of the files that copies in other topics are made of."""
        ...


class _Growth(NamedTuple):
    """What one segment takes up in one go. Offsets and lengths are those of the new slots."""

    segment: Segment
    new: bool
    pieces: list[Piece]
    offsets: array[int]
    frame_lens: array[int]
    data_bytes: int
    frames: int
    seals: bool


class _Target(NamedTuple):
    """Where frames are going to be: in a `.data` with this salt, at this offset."""

    salt: int | None
    offset: int


class _Captured:
    """A topic as of one step of the loop, and what is written of it."""

    def __init__(self, topic: LiveTopic, now: Instant, now_ms: int, named: NamedFiles) -> None:
        log_ = topic.log
        self.topic = topic
        self.named = named
        self.ephemeral = topic.config.durability == "ephemeral"
        self.unwritten: list[LiveCommit] = list(topic.unwritten or ())
        self.earliest = log_.earliest_seq
        """The front: the part of an `ephemeral` topic gives everything up, this life does not."""
        self.spans = log_.stored.all()
        self.unflagged = [(span, span.unflagged[:]) for span in self.spans if span.unflagged]
        self.runs = log_.index.capture_raw(log_.head_seq)
        self.copies = topic.copies.seal() if topic.copies is not None else []
        self.head_seq = log_.head_seq
        if self.ephemeral:
            self.runs = _with_place(self.runs)
        end = topic.applied_end or Position(0, 0)
        self.part = TopicPart(
            id=topic.id,
            name=topic.name,
            config=config_to_wire(topic.config),
            end=[end.ordinal, end.offset],
            ceiling=max(topic.ceiling, topic.ceiling_queued),
            last_ts=topic.last_ts,
            last_write=topic.last_write_ms,
            last_read=topic.last_read_ms,
            log=log_.dump_lost() if self.ephemeral else log_.dump(raw=False),
            keys=topic.keys.dump() if topic.keys is not None else [],
            routers=topic.dump_routers(),
            origins=topic.origins.dump() if topic.origins is not None else None,
            stage=topic.dump_stage(),
            commits=topic.dump_commits(),
        )
        self.queue: FrozenQueue | None = None
        if topic.queue is not None:
            self.queue = topic.queue.freeze(now, keeps_jobs=not self.ephemeral)
        self.now_ms = now_ms
        self.growths: list[_Growth] = []
        self.sealed: Segment | None = None
        """The segment that was active and is sealed as it is."""
        self.flagged: list[tuple[Span, array[int]]] = []
        self.index_patches: list[tuple[str, list[FlagPatch]]] = []
        self.stale: list[Segment] = []
        self.encoded = b""
        self.pieces: list[Piece] = []
        self.written = False

    @property
    def active(self) -> Segment | None:
        """The segment that takes new records. One that has lost all that it had takes no more."""
        newest = self.spans[-1].segment if self.spans else None
        return newest if isinstance(newest, Segment) and not newest.sealed else None

    @property
    def has_no_segment(self) -> bool:
        """Whether the topic has no files of segments, as far as anybody knows."""
        shelf = self.topic.shelf
        return not self.spans and not self.growths and not (shelf is not None and shelf.segments)

    def place_unwritten(self) -> None:
        """Fill in where records lie that were not written when they were captured. Everything is by now."""
        for commit in self.unwritten:
            assert commit.end is not None, "everything captured is written by now"
            self.part.end = [commit.end.ordinal, commit.end.offset]
            if not commit.records or commit.frame_lens is None:
                continue
            offsets = list(accumulate(commit.frame_lens, initial=commit.offset))
            first = commit.last_seq - commit.records + 1
            for run in self.runs:
                lo, hi = max(first, run.first), min(commit.last_seq + 1, run.first + len(run.flags))
                for seq in range(lo, hi):
                    run.file[seq - run.first] = commit.file
                    run.offset[seq - run.first] = offsets[seq - first]


def _with_place(runs: list[RawRun]) -> list[RawRun]:
    """The captured records of an `ephemeral` topic that are in the WAL: those from before it became so."""
    for at in range(len(runs) - 1, -1, -1):
        run = runs[at]
        count = len(run.file)
        while count and run.file[count - 1] == 0:
            count -= 1
        if count:  # what has no place in front of it was lost
            return [*runs[:at], run if count == len(run.file) else _shortened(run, count)]
    return []


def _shortened(run: RawRun, n: int) -> RawRun:
    return RawRun(
        run.first,
        run.ts[:n],
        run.file[:n],
        run.offset[:n],
        run.frame_len[:n],
        run.size[:n],
        run.flags[:n],
        run.dead[:n],
    )


class Storing:
    """See the module. Callers hold the `upkeep` lock of every shelf concerned."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        source: Source,
        cache: IndexCache,
        *,
        fs: Fs,
        clock: Clock,
        offload: Offload,
    ) -> None:
        self._settings = settings
        self._store = store
        self._source = source
        self._cache = cache
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._notes = DamageNotes(lambda: store.writers, clock.now_ms)
        self._limits = Limits(settings.segment_max_events, settings.segment_max_bytes)
        self._slice_from = 0
        self.stuck: set[LiveTopic] = set()
        """Topics whose manifest may be on disk or not, because renaming or syncing it has failed. What it may name must
        not be written again before the one from before is on disk in its place (`Manifests.supersede`), which the next
        checkpoint tries first; until then their WAL stays."""
        self.unflagged_in_named: set[LiveTopic] = set()
        """Topics with deletions in segments that a hold names: their part says so, the flags have yet to be written."""

    def forget_files(self, topic_id: int) -> None:
        """The directory of a deleted topic is gone."""
        self._store.manifests.forget(topic_id)

    @property
    def tiers(self) -> Tiers:
        """Where segments are."""
        return self._store.tiers

    async def store(
        self,
        topics: Iterable[LiveTopic],
        *,
        sync_shards: bool = True,
        moved: Segment | None = None,
        tier: Tier = "hot",
        named: NamedFiles = NOTHING,
    ) -> None:
        """Make everything about these topics durable in their own files, as of a moment within this call.

        `moved` is a segment of theirs that counts as being in `tier` from now on. What a hold has `named` is neither
        written to nor replaced: new records go to new segments, deletions are flagged later, manifests are of the next
        generation. Raises OSError or ApiError (a failed
        shard); then nothing has changed but bytes that do not count. The same after a cancellation, for those topics
        that have not been done by then.
        """
        todo = list(topics)
        for at in range(0, len(todo), GROUP_TOPICS):
            await self._store_group(todo[at : at + GROUP_TOPICS], sync_shards, moved, tier, named)

    async def _store_group(
        self, topics: Sequence[LiveTopic], sync_shards: bool, moved: Segment | None, tier: Tier, named: NamedFiles
    ) -> None:
        captured = []
        self._slice_from = self._clock.perf_ns()
        try:
            for topic in topics:
                if topic.unsettled() is not None:
                    with trio.move_on_after(WORKING_WAIT_S):
                        while (event := topic.unsettled()) is not None:
                            await event.wait()
                if topic.unsettled() is not None:
                    # What it waits for may be the lock that our caller holds, to read once more what looks damaged.
                    raise OSError(errno.EAGAIN, f"topic {topic.name!r} is being worked on")
                if topic.deleted:
                    self._source.changed.discard(topic)
                    continue
                if topic in self.stuck and not await self._has_superseded(topic):
                    continue
                captured.append(self._capture(topic, moved, named))
                await self._breathe()
            if sync_shards:
                await self._store.sync_shards()
            for one in captured:
                one.place_unwritten()
            async with self._synced_behind() as files:
                await self._write_small([one for one in captured if self._is_small(one)], files)
                for one in captured:
                    if not one.written:
                        await self._write(one, files)
            async with self._synced_behind() as files:
                await self._flag_indexes(captured, files)
            for one in captured:
                await self._dump_queue(one)
                self._finish_part(one, moved, tier)
                one.encoded = await self._encoded(one.part)
                await self._breathe()
            # Between a manifest that may be on disk and the memory that knows of it nobody may be cancelled.
            with trio.CancelScope(shield=True):
                await self._write_manifests(captured, named)
                for one in captured:
                    await self._settle(one, moved, tier)
                    await self._breathe()
        except BaseException:
            for one in captured:
                one.topic.mark_changed()
            raise

    async def _has_superseded(self, topic: LiveTopic) -> bool:
        """Make the manifest from before the doubtful one count. False: the disk does not take it now; the topic stays
        changed, so the next checkpoint tries again."""
        try:
            with trio.CancelScope(shield=True):
                part = await self._store.manifests.supersede(topic.id, topic.part or topic.base)
        except OSError as error:
            log.warning("manifest_still_uncertain", topic=topic.name, error=str(error))
            return False
        if topic.part is not None:
            topic.part = part
        elif topic.base is not None:
            topic.base = part
        self.stuck.discard(topic)
        return True

    def _capture(self, topic: LiveTopic, moved: Segment | None, named: NamedFiles) -> _Captured:
        captured = _Captured(topic, self._source.instant(), self._source.now_ms(), named)
        # A segment on its way has been copied: a flag that is written to its old files now would be lost with them.
        captured.unflagged = [(span, seqs) for span, seqs in captured.unflagged if span.segment is not moved]
        self._source.changed.discard(topic)
        return captured

    async def _breathe(self) -> None:
        """Let others run if this slice has been long enough."""
        if self._clock.perf_ns() - self._slice_from > SLICE_NS:
            await trio.lowlevel.checkpoint()
            self._slice_from = self._clock.perf_ns()

    async def tidy(self, topic: LiveTopic) -> None:
        """Remove hot files of this topic that its part does not name. The caller holds its `upkeep`. Raises OSError."""
        segments = list(topic.shelf.segments) if topic.shelf is not None else []
        tidy = partial(tidy_topic, self._fs, self._store.datadir, topic.id, segments)
        await self._offload.run(Kind.FILES, tidy)

    # -- records into segments ---------------------------------------------------------------------------------------

    def _is_small(self, captured: _Captured) -> bool:
        """Whether a topic has nothing but a few records for one segment that stays open, or nothing at all."""
        if not (captured.unflagged or captured.runs or captured.spans):
            return True
        if captured.unflagged or sum(len(run.flags) for run in captured.runs) > SMALL_RECORDS:
            return False
        if sum(sum(run.frame_len) for run in captured.runs) > SMALL_BYTES:
            return False
        active = captured.active
        if self._takes_no_more(captured):
            return False
        pieces, seals_active = divide(captured.runs, active, self._limits)
        captured.pieces = pieces
        return not seals_active and not any(piece.seals for piece in pieces) and len({p.first for p in pieces}) <= 1

    async def _write_small(self, captured: Sequence[_Captured], files: UnsyncedFiles) -> None:
        """The topics that have little to write, many of them in one call."""
        todo = [one for one in captured if one.pieces]
        for one in captured:
            one.written = not one.pieces
        for at in range(0, len(todo), SMALL_TOPICS):
            group = todo[at : at + SMALL_TOPICS]
            paths = self._paths({file for one in group for run in one.runs for file in run.file if file})
            growths = await self._offload.run(Kind.FILES, partial(self._grow_small, group, paths, files))
            for one, growth in zip(group, growths, strict=True):
                if growth is not None:  # else its bytes are damaged, and the long way says how
                    one.written = True
                    one.growths.append(growth)
            await self._breathe()

    def _grow_small(
        self, captured: Sequence[_Captured], paths: dict[int, str], files: UnsyncedFiles
    ) -> list[_Growth | None]:
        """In a worker thread."""
        with ExitStack() as logs:
            handles = {
                file: logs.enter_context(closing(self._fs.open(path, read_only=True))) for file, path in paths.items()
            }
            return [self._grow_one(one, handles, files) for one in captured]

    def _grow_one(self, captured: _Captured, handles: Mapping[int, File], files: UnsyncedFiles) -> _Growth | None:
        pieces = captured.pieces
        active = captured.active
        new = active is None or pieces[0].first != active.first
        segment = self._new_segment(captured.topic.id, pieces[0].first) if active is None or new else active
        data_parts, index_parts = [], []
        offsets, frame_lens = array("I"), array("I")
        at = segment.data_bytes
        for piece in pieces:
            run, a, b = captured.runs[piece.run], piece.a, piece.b
            lens = array("I", bytes(4 * (b - a)))
            read_at = at
            for read in _reads(run, a, b):
                window = self._window(read, handles)
                target = _Target(segment.salt, read_at)
                converted = self._convert_slots(captured, run, read, window, 0, len(read.slots), target)
                if converted.bad:
                    return None
                data_parts.append(converted.data)
                read_at += len(converted.data)
                for i, size in zip(read.slots, converted.frame_lens, strict=True):
                    lens[i - a] = size
            places = array("I", accumulate(lens, initial=at))
            at = places.pop()
            index_parts.append(self._entries(captured, run, a, b, places, lens))
            offsets.extend(places)
            frame_lens.extend(lens)
        path, index_path = self._path(segment, "data"), self._path(segment, "idx")
        if new:
            self._make_room(segment, path, index_path, first=captured.has_no_segment)
        index_at = INDEX_ENTRY_BYTES * segment.n
        for name, parts, start in ((path, data_parts, segment.data_bytes), (index_path, index_parts, index_at)):
            with files.writing(name, create=True) as handle:
                if handle.size() != start:
                    handle.truncate(start)
                if new and name == path:
                    write_all(handle, _header(segment), 0)
                write_all(handle, b"".join(parts), start)
        frames = len(frame_lens) - frame_lens.count(0)
        return _Growth(segment, new, pieces, offsets, frame_lens, at, frames, False)

    async def _write(self, captured: _Captured, files: UnsyncedFiles) -> None:
        """Write one topic's new records and flags."""
        topic = captured.topic
        active = captured.active
        takes_no_more = self._takes_no_more(captured)
        pieces, seals_active = divide(captured.runs, None if takes_no_more else active, self._limits)
        if active is not None and (takes_no_more or seals_active):
            await self._seal(captured, active, active.n, active.data_bytes, array("I"), [], files)
            captured.sealed = active
        at = 0
        while at < len(pieces):
            to = at + 1
            while to < len(pieces) and pieces[to].first == pieces[at].first:
                to += 1
            continues = active is not None and pieces[at].first == active.first and captured.sealed is None
            segment = active if continues and active is not None else self._new_segment(topic.id, pieces[at].first)
            await self._grow(captured, segment, pieces[at:to], files, new=not continues)
            at = to
        if captured.unflagged:
            await self._write_flags(captured, files)

    def new_salt(self) -> int:
        """The salt of a new `.data`."""
        return self._fs.salt()

    def _new_segment(self, topic_id: int, first: int) -> Segment:
        """A segment without records. Its `.data` has yet to be made, and begins with a header."""
        return Segment(topic_id, first, data_bytes=FILE_HEADER_BYTES, salt=self.new_salt())

    def _takes_no_more(self, captured: _Captured) -> bool:
        """Return True if the active segment is to be sealed as it is: it is old, or of version 1, or there are records
        for it and a hold names it."""
        segment = captured.active
        if segment is None or not segment.n:
            return False
        if captured.runs and segment in captured.named.segments:
            return True
        age = self._settings.segment_max_age_ms
        return segment.salt is None or (bool(age) and captured.now_ms - segment.opened_ms >= age)

    async def _grow(
        self, captured: _Captured, segment: Segment, pieces: list[Piece], files: UnsyncedFiles, *, new: bool
    ) -> None:
        """Append the slots of `pieces` to a segment's files."""
        path = self._path(segment, "data")
        index_path = self._path(segment, "idx")
        offsets, frame_lens = array("I"), array("I")
        tags: list[str | None] = []
        sizes = array("I")
        data_at, index_at = segment.data_bytes, INDEX_ENTRY_BYTES * segment.n
        frames = 0
        prepare: Callable[[], None] | None = partial(
            self._prepare, files, segment, path, index_path, first=captured.has_no_segment
        )
        for piece in pieces:
            run = captured.runs[piece.run]
            for a, b in _chunks(run, piece.a, piece.b):
                data, lens = await self._convert(captured, run, a, b, _Target(segment.salt, data_at))
                places = array("I", accumulate(lens, initial=data_at))
                places.pop()
                index = self._entries(captured, run, a, b, places, lens)
                await self._offload.run(
                    Kind.FILES,
                    partial(self._append, files, prepare, path, data, data_at, index_path, index, index_at),
                )
                prepare = None
                data_at, index_at = data_at + len(data), index_at + len(index)
                frames += len(lens) - lens.count(0)
                offsets.extend(places)
                frame_lens.extend(lens)
                sizes.extend(run.size[a:b])
                tags += tags_of_data(data, lens) if any(run.flags[a:b]) else [None] * (b - a)
                await self._breathe()
        seals = pieces[-1].seals
        if seals:
            await self._seal(captured, segment, segment.n + len(sizes), segment.data_bytes, sizes, tags, files)
        captured.growths.append(_Growth(segment, new, pieces, offsets, frame_lens, data_at, frames, seals))

    def _prepare(self, files: UnsyncedFiles, segment: Segment, path: str, index_path: str, *, first: bool) -> None:
        """In a worker thread: make the files of a segment, or cut off what an interrupted checkpoint has left."""
        if not segment.n:
            self._make_room(segment, path, index_path, first=first)
        for name, length in ((path, segment.data_bytes), (index_path, INDEX_ENTRY_BYTES * segment.n)):
            with files.writing(name, create=True) as handle:
                if handle.size() != length:
                    handle.truncate(length)
                if not segment.n and name == path:
                    write_all(handle, _header(segment), 0)

    def _make_room(self, segment: Segment, path: str, index_path: str, *, first: bool) -> None:
        """In a worker thread: the directory of a new segment, without anything of the same name.

        What an earlier attempt has left goes, the directory too if this is the `first` segment: a sync that failed may
        have lost their names, and no later one would make them durable.
        """
        directory = self._store.datadir.topic_dir(segment.topic_id)
        if first and not self._fs.exists(self._store.manifests.path(segment.topic_id)):
            if self._fs.exists(directory):
                for name in self._fs.listdir(directory):
                    self._fs.unlink(join(directory, name))
                self._fs.rmdir(directory)
        else:
            for name in (path, index_path):
                if self._fs.exists(name):
                    self._fs.unlink(name)
        self._fs.mkdir(directory)

    def _append(
        self,
        files: UnsyncedFiles,
        prepare: Callable[[], None] | None,
        path: str,
        data: bytes,
        data_at: int,
        index_path: str,
        index: bytes,
        index_at: int,
    ) -> None:
        """In a worker thread."""
        if prepare is not None:
            prepare()
        for name, blob, at in ((path, data, data_at), (index_path, index, index_at)):
            with files.writing(name) as handle:
                write_all(handle, blob, at)

    async def _convert(
        self, captured: _Captured, run: RawRun, a: int, b: int, target: _Target
    ) -> tuple[bytes, array[int]]:
        """The segment frames of slots `a` to `b` of a run, and their lengths; 0 for those that are dead.

        A record whose bytes in the WAL do not verify becomes a `corrupt` hole, and this attempt fails.
        """
        topic = captured.topic
        reads = _reads(run, a, b)
        paths = self._paths({read.file for read in reads})
        windows = await self._offload.run(Kind.FILES, partial(self._read_all, reads, paths))
        lens = array("I", bytes(4 * (b - a)))
        pieces = []
        damaged: list[int] = []
        for read, window in zip(reads, windows, strict=True):
            stride = SLICE_COPIES if read.derived else SLICE_RECORDS
            for at in range(0, len(read.slots), stride):
                slots = read.slots[at : at + stride]
                converted = self._convert_slots(captured, run, read, window, at, at + stride, target)
                damaged += [run.first + slots[i] for i in converted.bad]
                pieces.append(converted.data)
                target = _Target(target.salt, target.offset + len(converted.data))
                for i, size in zip(slots, converted.frame_lens, strict=True):
                    lens[i - a] = size
                await self._breathe()
        if damaged:
            for seq in damaged:
                log.error("record_damaged", topic=topic.name, seq=seq)
                with suppress(NotLoaded):  # the next attempt will find it again
                    if topic.log.is_live(seq):
                        topic.log.add_hole(seq, seq, "corrupt")
                        self._notes.note(topic, [(seq, seq)])
                        self._source.account(topic)
            raise RecordsDamaged(errno.EIO, f"records of topic {topic.name!r} are damaged in the WAL")
        return b"".join(pieces), lens

    def _read_all(self, reads: Sequence[_Read], paths: dict[int, str]) -> list[bytes]:
        """In a worker thread."""
        windows = []
        with ExitStack() as files:
            handles = {
                file: files.enter_context(closing(self._fs.open(path, read_only=True))) for file, path in paths.items()
            }
            for read in reads:
                windows.append(self._window(read, handles))
        return windows

    def _paths(self, files: Iterable[int]) -> dict[int, str]:
        """The paths of those of these files that are the WAL's."""
        wal = self._store.files
        return {file: wal.get(file).path for file in files if wal.place_of(file)[0] == "wal"}

    def _window(self, read: _Read, handles: Mapping[int, File]) -> bytes:
        """In a worker thread."""
        handle = handles.get(read.file)
        if handle is not None:
            return handle.pread(read.length, read.offset)
        return read_window(self._fs, self.tiers, self._store.files, read.file, read.offset, read.length)

    def _convert_slots(
        self, captured: _Captured, run: RawRun, read: _Read, window: bytes, a: int, b: int, target: _Target
    ) -> Converted:
        """The segment frames of slots `a` to `b` of a read."""
        salt, offset = target
        slots, starts = read.slots[a:b], read.starts[a:b]
        sizes = [run.frame_len[i] for i in slots]
        seqs = [run.first + i for i in slots]
        files = self._store.files
        if not read.derived:
            seeds = Seeds(files.get(read.file).head.salt, read.offset)
            return convert_appends(window, starts, sizes, seqs, seeds, salt=salt, offset=offset)
        made = run_of(captured.copies, seqs[0])
        alike = made.alike(seqs)
        if alike is not None and alike[0].look == PLAIN and files.place_of(read.file)[0] == "wal":
            (topic_id, hops, _), origin_seqs = alike
            times = [run.ts[i] for i in slots]
            passed_on = hops if run.flags[slots[0]] & FLAG_ORIGIN else None
            seeds = Seeds(files.get(read.file).head.salt, read.offset)
            converted = convert_derived(
                window, starts, sizes, seqs, times, topic_id, origin_seqs, passed_on, seeds, salt=salt, offset=offset
            )
            if converted is not None:
                return converted
        opened = open_frames(files, read.file, read.offset, window, starts, sizes)
        runs = [run_of(captured.copies, seq) for seq in seqs]
        copies = [
            dressed(one, made, seq, run.ts[i]) for one, made, seq, i in zip(opened, runs, seqs, slots, strict=True)
        ]
        bad = [i for i, copy in enumerate(copies) if copy is None]
        if bad:
            return Converted(b"", array("I", bytes(4 * len(slots))), bad)
        return encode_copies(
            [copy for copy in copies if copy is not None],
            [
                made.origin(seq) if run.flags[i] & FLAG_ORIGIN else None
                for made, seq, i in zip(runs, seqs, slots, strict=True)
            ],
            salt=salt,
            offset=offset,
        )

    @staticmethod
    def _entries(captured: _Captured, run: RawRun, a: int, b: int, places: array[int], lens: array[int]) -> bytes:
        """The `.idx` entries of slots `a` to `b`."""
        flags = run.flags[a:b].translate(NOT_DERIVED)
        if 0 not in lens:
            return encode_index(places, lens, run.ts[a:b], flags)
        offsets, marked = places[:], bytearray(flags)
        for i, size in enumerate(lens):
            if size:
                continue
            if run.dead[a + i] == LOST:
                marked[i] |= IDX_HOLE
                offsets[i] = _reason_of(captured.part.log["holes"], run.first + a + i)
            else:
                marked[i] |= IDX_DELETED
        return encode_index(offsets, lens, run.ts[a:b], bytes(marked))

    async def _seal(
        self,
        captured: _Captured,
        segment: Segment,
        n: int,
        known_bytes: int,
        sizes: array[int],
        tags: list[str | None],
        files: UnsyncedFiles,
    ) -> None:
        """Write the `.tags` of a segment that is full: what it held before is read back from its `.data`."""
        if segment.n:
            scanned = await self._offload.run(
                Kind.FILES, partial(scan_segment, self.tiers, _as_of(segment, known_bytes), segment.first, segment.n)
            )
            sizes = scanned.loaded.columns.size + sizes
            tags = scanned.tags + tags
        assert len(sizes) == len(tags) == n
        path = self._path(segment, "tags")
        await self._offload.run(Kind.FILES, partial(self._write_tags, files, path, segment.first, sizes, tags))

    def _write_tags(
        self, files: UnsyncedFiles, path: str, first: int, sizes: array[int], tags: Sequence[str | None]
    ) -> None:
        """In a worker thread: a file that nobody reads yet."""
        blob = encode_tags(first, sizes, tags)
        with files.writing(path, create=True) as handle:
            handle.truncate(0)
            write_all(handle, blob, 0)

    def _path(self, segment: Segment, kind: str) -> str:
        return self._store.datadir.segment_path(segment.topic_id, segment.first, kind)

    # -- delete flags ------------------------------------------------------------------------------------------------

    async def _write_flags(self, captured: _Captured, files: UnsyncedFiles) -> None:
        """Flag deleted records of hot segments in `.data`. Their Delete frames are synced by now (`docs/spec/crash.md`
        11).

        Those of cold segments stay in the part until the reclaimer has written them; those of segments that a hold
        names, until it is over.
        """
        for span, seqs in captured.unflagged:
            segment = span.segment
            if not isinstance(segment, Segment) or segment.tier != "hot":
                continue
            if segment in captured.named.segments:
                self.unflagged_in_named.add(captured.topic)
                continue
            paths = self._path(segment, "data"), self._path(segment, "idx")
            flag = partial(self._flag, files, *paths, segment.first, sorted(seqs))
            patches = await self._offload.run(Kind.FILES, flag)
            if patches:
                captured.flagged.append((span, array("Q", [seq for patch in patches for seq in patch.seqs])))
                captured.index_patches.append((paths[1], patches))

    def _flag(
        self, files: UnsyncedFiles, path: str, index_path: str, first: int, seqs: Sequence[int]
    ) -> list[FlagPatch]:
        """In a worker thread: flag in `.data`. Returns what to write into `.idx` once that is synced, as `.data` is the
        witness; where a file is missing or an entry does not verify, the part goes on saying what is deleted."""
        done: list[FlagPatch] = []
        with ExitStack() as both:
            try:
                index = both.enter_context(closing(self._fs.open(index_path, read_only=True)))
                data = both.enter_context(files.writing(path))
            except FileNotFoundError:
                return done
            for patch in flag_patches(partial(_pread, index), first, seqs):
                for at in patch.flags_at:
                    write_all(data, bytes((DELETED_FLAG,)), at)
                done.append(patch)
        return done

    async def _flag_indexes(self, captured: Sequence[_Captured], files: UnsyncedFiles) -> None:
        """Flag in `.idx` what is flagged in `.data`, which is durable by now."""
        todo = [patch for one in captured for patch in one.index_patches]
        if todo:
            await self._offload.run(Kind.FILES, partial(self._patch_indexes, todo, files))

    def _patch_indexes(self, todo: Sequence[tuple[str, list[FlagPatch]]], files: UnsyncedFiles) -> None:
        """In a worker thread."""
        for path, patches in todo:
            with files.writing(path) as index:
                for patch in patches:
                    write_all(index, patch.entries, patch.entries_at)

    # -- durability --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _synced_behind(self) -> AsyncIterator[UnsyncedFiles]:
        """Everything that is written to these files meanwhile, and their names, is on disk afterwards."""
        files = UnsyncedFiles(self._fs, self._store.datadir.topics_dir, most=FEW_FILES)
        try:
            yield files
            if files:
                await self._offload.run(Kind.FILES, files.sync)
        finally:
            if files.has_open:
                with trio.CancelScope(shield=True):
                    await self._offload.run(Kind.FILES, files.close)

    async def _dump_queue(self, captured: _Captured) -> None:
        """Say in the part which jobs there are, if it is one of a queue."""
        queue = captured.queue
        if queue is not None:
            captured.part.queue = await self._offload.run(Kind.CPU, queue.dump) if queue.is_large else queue.dump()

    def _finish_part(self, captured: _Captured, moved: Segment | None, tier: Tier) -> None:
        """Say in the part what its segments are once everything is written."""
        part, shelf = captured.part, captured.topic.shelf
        part.generation = self._store.manifests.following(part.id, captured.named.manifests)
        if captured.has_no_segment:
            return
        spans: list[Any] = part.log["spans"]
        entries = [
            _entry(span.segment, moved, tier, sealed=span.segment is captured.sealed)
            for span in captured.spans
            if isinstance(span.segment, Segment)
        ]
        flagged = {span.first: set(seqs) for span, seqs in captured.flagged}
        pending = {span.first: seqs for span, seqs in captured.unflagged}
        for summary in spans:
            first = summary_first(summary)
            if first in flagged:
                set_unflagged(summary, [seq for seq in pending[first] if seq not in flagged[first]])
        for growth in captured.growths:
            entry = _grown(growth, captured.now_ms).to_wire()
            if growth.new:
                entries.append(entry)
            else:
                entries[-1] = entry
            if not captured.ephemeral:
                for i, piece in enumerate(growth.pieces):
                    grow_dump(spans, captured.runs[piece.run], piece.a, piece.b, new=growth.new and i == 0)
        # What no span points to any more comes last: it has yet to be removed, whoever finds it.
        referenced = {span.segment for span in captured.spans} | {growth.segment for growth in captured.growths}
        captured.stale = [segment for segment in shelf.segments if segment not in referenced] if shelf else []
        part.segments = entries + [segment.to_wire() for segment in captured.stale]

    async def _encoded(self, part: TopicPart) -> bytes:
        """The bytes of a part; those of a large one are put together in a worker thread."""
        return await self._offload.run(Kind.CPU, partial(encode_part, part)) if is_large(part) else encode_part(part)

    async def _write_manifests(self, captured: Sequence[_Captured], named: NamedFiles) -> None:
        """The manifests of those that have files; the parts of the others stand in the snapshot alone."""
        manifests = self._store.manifests
        todo = [
            ManifestWrite(one.topic.id, one.encoded, one.part.generation)
            for one in captured
            if not one.topic.deleted and (one.part.segments or one.topic.id in manifests)
        ]
        try:
            await manifests.write(todo, remove_outdated=named is NOTHING)
        except UncertainManifests as error:
            written = {one.topic_id for one in todo}
            self.stuck.update(one.topic for one in captured if one.topic.id in written)
            log.error("manifests_uncertain", topics=len(todo), error=str(error))
            raise

    # -- what it means in memory ------------------------------------------------------------------------------------

    async def _settle(self, captured: _Captured, moved: Segment | None, tier: Tier) -> None:
        """The index points to the segments: one step for each of them."""
        topic = captured.topic
        topic.part, topic.base = captured.encoded, None
        topic.part_end = Position(*captured.part.end)
        if topic.deleted:
            return
        shelf, log_ = topic.shelf, topic.log
        if shelf is not None:
            shelf.gone = captured.stale
            if shelf.gone:
                self._source.attention.add(topic)  # who looked while this was written has seen nothing of it
            shelf.earliest_stored = captured.earliest
        for span, seqs in captured.flagged:
            span.flagged(seqs)
            if isinstance(span.segment, Segment) and span.segment.flagged_meanwhile is not None:
                span.segment.flagged_meanwhile.update(seqs)
        sealed_to = 0
        if captured.sealed is not None:
            captured.sealed.sealed = True
            sealed_to = captured.sealed.end
        if moved is not None:
            moved.tier = tier
        for growth in captured.growths:
            assert shelf is not None
            segment = growth.segment
            at = 0
            for piece in growth.pieces:
                run = captured.runs[piece.run]
                n = piece.b - piece.a
                log_.stored.store(
                    run.first + piece.a,
                    n,
                    segment,
                    growth.offsets[at : at + n],
                    growth.frame_lens[at : at + n],
                    was_dead=run.dead[piece.a : piece.b],
                )
                at += n
            grown = _grown(growth, captured.now_ms)
            segment.n, segment.data_bytes, segment.frames = grown.n, grown.data_bytes, grown.frames
            segment.opened_ms, segment.sealed = grown.opened_ms, grown.sealed
            shelf.segments.add(segment)
            if growth.seals:
                sealed_to = segment.end
            newest = log_.stored.at(segment.end - 1)
            if newest is not None and newest.loaded:
                self._cache.add_columns(newest)
            await self._breathe()
        topic.copies_stored(captured.head_seq)  # not before: others have looked at the topic in between
        if sealed_to:
            log_.drop_tags_below(sealed_to)
            while log_.tidy():
                await self._breathe()


class _Read(NamedTuple):
    """One pread of a WAL file, and which slots of a run begin where in it."""

    file: int
    offset: int
    length: int
    slots: Sequence[int]
    starts: Sequence[int]
    derived: bool


def _reads(run: RawRun, a: int, b: int) -> list[_Read]:
    """The reads that fetch the live records among slots `a` to `b`."""
    lens, offset = run.frame_len, run.offset
    begin, end = offset[a], offset[b - 1] + lens[b - 1]
    derived = run.flags[a] >= FLAG_DERIVED
    whole = run.dead.count(LIVE, a, b) == b - a and run.file[a:b].count(run.file[a]) == b - a
    if whole and (min(run.flags[a:b]) >= FLAG_DERIVED if derived else max(run.flags[a:b]) < FLAG_DERIVED):
        starts = [at - begin for at in offset[a:b]]
        # The frames that copies are made of come in any order, and more than once.
        if min(starts) >= 0 and max(starts) == starts[-1] and end - begin <= sum(lens[a:b]) + READ_SLACK:
            return [_Read(run.file[a], begin, end - begin, range(a, b), starts, derived)]
    slots = [i for i in range(a, b) if not run.dead[i]]
    # Twice the file, plus one for the frame of another topic: such frames are converted in another way.
    sources = [2 * run.file[i] + (run.flags[i] >= FLAG_DERIVED) for i in slots]
    offsets = [offset[i] for i in slots]
    reads = []
    for read in shared_reads(sources, offsets, [lens[i] for i in slots], max_bytes=READ_BYTES):
        file, is_derived = divmod(sources[read.first], 2)
        taken, starts = slots[read.first : read.end], read.starts(offsets)
        reads.append(_Read(file, read.offset, read.length, taken, starts, bool(is_derived)))
    return reads


def _chunks(run: RawRun, a: int, b: int) -> Iterable[tuple[int, int]]:
    """Slots `a` to `b` in pieces of bounded size."""
    while a < b:
        to = min(b, a + CHUNK_RECORDS)
        while to > a + 1 and sum(run.frame_len[a:to]) > CHUNK_BYTES:
            to = a + (to - a) // 2
        yield a, to
        a = to


def _reason_of(holes: Sequence[Sequence[Any]], seq: int) -> int:
    """Why a slot is lost, as `.idx` says it."""
    for first, last, reason in holes:
        if first <= seq <= last:
            return _REASON_CODES.get(reason, HOLE_LOST)
    return HOLE_LOST


def _header(segment: Segment) -> bytes:
    """What the `.data` of a new segment begins with."""
    assert segment.salt is not None
    return encode_file_header(segment.salt, segment.first)


def _as_of(segment: Segment, data_bytes: int) -> Segment:
    """The segment as it is known to be on disk, to be read while it grows."""
    return Segment(
        segment.topic_id, segment.first, n=segment.n, data_bytes=data_bytes, tier=segment.tier, salt=segment.salt
    )


def _grown(growth: _Growth, now_ms: int) -> Segment:
    """The segment as it is with what it has taken up."""
    segment = growth.segment
    return Segment(
        segment.topic_id,
        segment.first,
        n=segment.n + len(growth.offsets),
        data_bytes=growth.data_bytes,
        frames=segment.frames + growth.frames,
        opened_ms=now_ms if growth.new else segment.opened_ms,
        sealed=growth.seals,
        tier=segment.tier,
        salt=segment.salt,
    )


def _entry(segment: Segment, moved: Segment | None, tier: Tier, *, sealed: bool) -> list[Any]:
    """The segment's entry in a part."""
    changed = copy(segment)
    if segment is moved:
        changed.tier = tier
    changed.sealed = segment.sealed or sealed
    return changed.to_wire()


class FlagPatch(NamedTuple):
    """Some entries of an `.idx` with their deleted bits set, and where the flags of the same records are in `.data`."""

    entries_at: int
    entries: bytes
    flags_at: list[int]
    seqs: Sequence[int]


def flag_patches(read: Callable[[int, int], bytes], first: int, seqs: Sequence[int]) -> Iterable[FlagPatch]:
    """What flagging these seqs (ascending) of a segment means. `read(length, offset)` reads its `.idx`.

    Where entries do not verify or are missing, nobody knows where the flags are: those seqs are left out.
    """
    at = 0
    while at < len(seqs):
        to = at + 1
        while to < len(seqs) and seqs[to] - seqs[to - 1] < 64 and seqs[to] - seqs[at] < SLICE_RECORDS:
            to += 1
        lo, hi = seqs[at] - first, seqs[to - 1] - first + 1
        blob = read(INDEX_ENTRY_BYTES * (hi - lo), INDEX_ENTRY_BYTES * lo)
        if len(blob) == INDEX_ENTRY_BYTES * (hi - lo):
            index = decode_index(blob)
            if not index.bad:
                flags, flags_at = bytearray(index.flags), []
                for seq in seqs[at:to]:
                    i = seq - first - lo
                    if index.frame_len[i]:
                        flags[i] |= IDX_DELETED
                        flags_at.append(delete_flag_offset(index.offset[i], index.frame_len[i]))
                blob = encode_index(index.offset, index.frame_len, index.ts, bytes(flags))
                yield FlagPatch(INDEX_ENTRY_BYTES * lo, blob, flags_at, seqs[at:to])
        at = to


def _pread(handle: Any, length: int, offset: int) -> bytes:
    found: bytes = handle.pread(length, offset)
    return found
