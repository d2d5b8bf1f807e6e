"""`CopySources`: the bytes of copies whose sources are in files that only the owner has.

A Forwarded frame names the place of the bytes of its copies: a file of the log, which is the same here, or a segment,
which is not: each daemon makes its own. Files of the log go here as they do there, but at other times. What is not in
its place is made anew from the record that was copied, which is a live one here, or comes in the same cut, and is
written as a *stand-in* (`topics.storage.segments.stand_ins`): replay finds it, now and after a restart. It goes when
the copies are in segments of their own topic.

All of it is done before the cut is applied: then each record that its owner has copied is still there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from topics.engine.loader import Loader
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.log.block import block_with
from topics.log.copies import Origin
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import Fs
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.reclaimer import Reclaimer
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.segments.copy_chains import DEEPEST, FrameCopies, copies_of, made_from
from topics.storage.segments.copy_frames import open_frames, read_window
from topics.storage.segments.stand_ins import StandInWriter, stand_in_id
from topics.storage.store import ReplayStart, Store
from topics.storage.wal.frames import Frame, FrameType, OpenedRecord, StoredRecord
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

WRITE_BYTES: Final = 4 << 20
"""Stand-ins are written when there are so many bytes of them."""

TRIES: Final = 100
"""How often a record is looked for that is being moved from file to file; each time another task has moved it."""

_APPEND: Final = int(FrameType.APPEND)
_FORWARDED: Final = int(FrameType.FORWARDED)


class _Place(NamedTuple):
    """A frame of the log."""

    file: int
    offset: int
    length: int


class CopySources:
    """Writes stand-ins. Made by the engine of a standby."""

    def __init__(
        self,
        registry: Registry,
        store: Store,
        loader: Loader,
        reclaimer: Reclaimer,
        file_holds: FileHolds,
        starts: Callable[[], Sequence[ReplayStart]],
        *,
        fs: Fs,
        offload: Offload,
    ) -> None:
        """`starts` returns where the replay of the newest snapshot begins, by shard."""
        self.written = 0
        """How many copies have got one."""
        self._registry = registry
        self._store = store
        self._loader = loader
        self._reclaimer = reclaimer
        self._file_holds = file_holds
        self._starts = starts
        self._fs = fs
        self._offload = offload
        self._pinned: set[int] = set()
        self._owners: dict[int, None] = {}

    async def write_missing(self, batches: Sequence[FrameBatch]) -> None:
        """Write the stand-ins that a cut needs; they stay until `release`. Raises OSError, and ApiError if a record
        cannot be read."""
        all_copies = [copies for batch in batches if batch.controls for copies in self._copies_in(batch)]
        if all_copies:
            self._pinned.update(*(one.recipe.files for one in all_copies))
            self._registry.pin(self._pinned)
        missing = [(copies, lacks) for copies in all_copies if (lacks := self._lacking(copies))]
        if not missing:
            return
        search = _Search(self, batches, all_copies)
        writer = StandInWriter(self._fs, self._store.datadir, replaces=True)
        for copies, lacks in missing:
            owner = stand_in_id(copies.topic_id)
            self._owners[owner] = None
            self._pinned.add(self._store.files.file_of(("segment", owner, copies.first + lacks[0])))
            await self._write(writer, search, copies, lacks)
        await self._offload.run(Pool.FILES, partial(self._fs.sync_all, self._store.datadir.topics_dir))
        self.written += writer.written

    def release(self) -> None:
        """The copies are there, and keep their stand-ins for as long as they need them."""
        if not self._pinned:
            return
        self._registry.unpin(self._pinned)
        self._pinned.clear()
        for owner in self._owners.keys() - {topic_id for topic_id, _ in self._reclaimer.removed}:
            self._reclaimer.remove_topic(owner, None)
        self._owners.clear()

    def _copies_in(self, batch: FrameBatch) -> list[FrameCopies]:
        found = []
        for row in batch.rows:
            if row[2] == _FORWARDED:
                copies = copies_of(Frame._make(row), batch.extras[row[0]], self._store.files.file_of)
                if copies is not None:
                    found.append(copies)
        return found

    def _lacking(self, copies: FrameCopies) -> list[int]:
        """Return which copies have no file of the log with their bytes, or one that may be about to go."""
        there = {file: self._stays(file) for file in set(copies.recipe.files)}
        if all(there.values()):
            return []
        return [i for i, file in enumerate(copies.recipe.files) if not there[file]]

    def _stays(self, file: int) -> bool:
        """Return True if a file is one of the log that no checkpoint under way removes. A later one will find that it
        is needed."""
        if not file:
            return False
        kind, shard, ordinal = self._store.files.place_of(file)
        return kind == "wal" and ordinal >= self._starts()[shard].position.ordinal

    async def _write(self, writer: StandInWriter, search: _Search, copies: FrameCopies, lacks: Sequence[int]) -> None:
        """Write the stand-ins of one frame. Without a source there is none: the owner had lost it, too."""
        records: list[StoredRecord] = []
        origins: list[Origin] = []
        size = 0

        async def flush() -> None:
            if records:
                async with self._file_holds.files_of(None):
                    await self._offload.run(
                        Pool.FILES, partial(writer.add, copies.topic_id, tuple(records), tuple(origins))
                    )
                records.clear()
                origins.clear()

        for i in lacks:
            found = await search.copy(copies, i, DEEPEST)
            if found is None:
                log.warning("copy_without_source", topic_id=copies.topic_id, seq=copies.first + i)
                continue
            seq = copies.first + i
            records.append(StoredRecord(seq, copies.ts, found.node, found.tag, found.meta, found.data))
            origins.append(copies.origin(i))
            size += len(found.meta) + len(found.data)
            if size >= WRITE_BYTES:
                await flush()
                size = 0
        await flush()

    async def live_record(self, topic: Topic, seq: int) -> OpenedRecord | None:
        """Return a live record as its readers see it; None if it is not live. Raises ApiError if it cannot be read."""
        for _ in range(TRIES):
            if topic.deleted or not await self._loader.prepared(topic, partial(_is_live, topic, seq)):
                return None
            block = topic.blocks.find(seq)
            if block is None:
                block = block_with(await self._loader.load(topic, seq, seq), seq)
            if block is not None:
                parts = block.parts_of(seq)
                return OpenedRecord(Origin(topic.id, seq, 0), parts.node, parts.tag, parts.meta, parts.data)
        raise ApiError("not_ready", f"record {seq} of topic {topic.name!r} cannot be read")

    async def logged_record(self, place: _Place) -> OpenedRecord | None:
        """Return the record of a frame of the log."""
        return await self._offload.run(Pool.FILES, partial(self._open, place))

    def _open(self, place: _Place) -> OpenedRecord | None:
        files = self._store.files
        try:
            window = read_window(self._fs, self._store.tiers, files, *place)
        except FileNotFoundError:
            return None
        return open_frames(files, place.file, place.offset, window, (0,), (place.length,))[0]

    def topic(self, topic_id: int) -> Topic | None:
        """The live topic of an id."""
        return self._registry.by_id.get(topic_id)

    def in_log(self, file: int) -> bool:
        """Return True if a file is one of the log that is here."""
        return bool(file) and self._store.files.place_of(file)[0] == "wal"


class _Search:
    """Finds records for one cut: live ones, and those that come with it."""

    def __init__(self, sources: CopySources, batches: Sequence[FrameBatch], copies: Sequence[FrameCopies]) -> None:
        self._sources = sources
        self._made: dict[int, list[FrameCopies]] = {}
        for one in copies:
            self._made.setdefault(one.topic_id, []).append(one)
        wanted = {one.source for one in copies}
        self._appends: dict[tuple[int, int], _Place] = {
            (row[4], row[5]): _Place(batch.file.file_id, row[0], row[1] + 4)
            for batch in batches
            for row in batch.rows
            if row[2] == _APPEND and row[4] in wanted
        }

    async def copy(self, copies: FrameCopies, i: int, depth: int) -> OpenedRecord | None:
        """Return a copy as its readers see it, made from the record that it was taken from."""
        if not depth:
            return None
        found = await self._record(copies.source, copies.chosen[i], depth - 1)
        if found is None:
            return None
        # That it is the right one is known by topic and seq. What it was made of itself is of no interest here.
        kind = copies.kinds[i]
        return made_from(copies, i, found._replace(origin=Origin(kind.topic_id, copies.recipe.origin_seqs[i], 0)))

    async def _record(self, topic_id: int, seq: int, depth: int) -> OpenedRecord | None:
        topic = self._sources.topic(topic_id)
        if topic is not None and seq <= topic.log.head_seq:
            return await self._sources.live_record(topic, seq)
        place = self._appends.get((topic_id, seq))
        if place is not None:
            return await self._sources.logged_record(place)
        return await self._made_copy(topic_id, seq, depth)

    async def _made_copy(self, topic_id: int, seq: int, depth: int) -> OpenedRecord | None:
        """Return a record that another frame of the cut makes."""
        frames = self._made.get(topic_id, [])
        at = bisect_right(frames, seq, key=lambda copies: copies.first) - 1
        if at < 0 or seq >= frames[at].end:
            return None
        copies, i = frames[at], seq - frames[at].first
        recipe = copies.recipe
        if self._sources.in_log(recipe.files[i]):
            place = _Place(recipe.files[i], recipe.offsets[i], recipe.frame_lens[i])
            found = await self._sources.logged_record(place)
            return made_from(copies, i, found) if found is not None else None
        return await self.copy(copies, i, depth)


def _is_live(topic: Topic, seq: int) -> bool:
    """Return True if a seq has a live record. Raises NotLoaded."""
    return topic.log.index.next_live(seq) == seq
