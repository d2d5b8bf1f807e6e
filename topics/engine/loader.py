"""Loads records and index columns that are not in memory: reads them from the files, verifies them, fills the caches.

`topics.log` says where a frame is, `topics.storage` reads it. This module copes with topics that change while it waits
for the disk.
"""

from __future__ import annotations

import errno
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

import trio

from topics.engine.cold_pace import ColdPace
from topics.engine.filtered_records import TagsNeeded
from topics.engine.record_collector import Collector, ColumnsNeeded, Need, RecordsNeeded
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, topic_not_found
from topics.log.block import Block
from topics.log.frame_ranges import FrameRange, locate
from topics.log.span import NotLoaded, Span
from topics.log.tag_match import TagMatch
from topics.model import Performance
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.runtime.turns import Turns
from topics.storage.cache.index_cache import IndexCache
from topics.storage.cache.payload_cache import block_of_records, read_records
from topics.storage.cache.span_loader import SpanLoader
from topics.storage.files.datadir import segment_name
from topics.storage.files.fs import Fs
from topics.storage.segments.copy_frames import read_copies
from topics.storage.segments.segment_format import decode_records, open_records
from topics.storage.segments.segment_reader import runs_of
from topics.storage.segments.tags_format import SegmentTags
from topics.storage.segments.topic_segments import Segment
from topics.storage.store import Store
from topics.storage.wal.damage_notes import DamageNotes
from topics.storage.wal.frames import OpenedRecord
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

TOLD_TRIES: Final = (1, 10, 60)
"""Which failed attempts to read a topic's columns are logged; beyond the last of these every 60th (one a minute)."""

LOAD_RECORDS: Final = 1000
"""Records that one read from disk loads at most."""

DECODE_RECORDS: Final = 250
COLD_DECODE_RECORDS: Final = 100
"""Records decoded and encoded before other tasks run: a third of a millisecond, and less for cold records."""

TURN_RECORDS: Final = 50
"""Records from which on decoding and encoding takes a turn."""


class OpenedRun(NamedTuple):
    """Decoded records of one segment; `offsets` are those of their frames in it."""

    seqs: array[int]
    records: list[OpenedRecord]
    segment: Segment
    offsets: array[int]
    frame_lens: array[int]

    def part(self, first: int, last: int) -> OpenedRun | None:
        """Return the records from `first` up to `last`; None if `first` is not among them."""
        a, b = bisect_left(self.seqs, first), bisect_right(self.seqs, last)
        if a == b or self.seqs[a] != first:
            return None
        return OpenedRun(self.seqs[a:b], self.records[a:b], self.segment, self.offsets[a:b], self.frame_lens[a:b])


class Loader:
    """Reads records and columns from disk for all other parts. Made once by the engine; its methods wait for worker
    threads, and cancelling them leaves nothing behind unless they say otherwise."""

    def __init__(
        self,
        registry: Registry,
        store: Store,
        indexes: IndexCache,
        background: BackgroundTasks,
        *,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        turns: Turns,
    ) -> None:
        self.notes = DamageNotes(lambda: store.writers, clock.now_ms)
        """The log in which damage is noted as soon as it is found."""
        self.spans = SpanLoader(store.tiers, indexes, self.notes, offload, background.start_soon)
        self._registry = registry
        self._pace = ColdPace(clock, lambda: registry.lively)
        self._store = store
        self._indexes = indexes
        self._background = background
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._turns = turns
        self._resuming: dict[Topic, tuple[Span, ...]] = {}
        registry.common.fetch = self._fetch
        registry.may_have_tags = self.spans.may_have_any

    # -- columns -----------------------------------------------------------------------------------------------------

    async def prepared(self, topic: Topic, operation: Callable[[], T]) -> T:
        """Call `operation`, load the columns that it raises NotLoaded for, and repeat until it succeeds. Return its
        result.

        There is no await between its success and the return. Raises `503 not_ready` if the disk does not answer, and
        `404 topic_not_found` if the topic is deleted.
        """
        needed: dict[Span, None] = {}
        while True:
            try:
                return operation()
            except NotLoaded as missing:
                if topic.deleted:
                    raise topic_not_found(topic.name) from None
                # Load all columns that it has needed so far, because loading some may drop others.
                needed.update(dict.fromkeys(missing.spans))
                await self.columns(topic, tuple(needed))

    async def columns(self, topic: Topic, spans: Sequence[Span]) -> None:
        """Load the columns of `spans`. Raises like `prepared`."""
        try:
            await self.spans.load(topic, spans)
        except OSError as error:
            raise _unavailable(topic, error) from error
        if topic in self._registry.changed:
            self._registry.account(topic)  # damaged records are lost now

    async def tags(self, topic: Topic, segment: Segment) -> SegmentTags:
        """Return the tags of a segment of the topic. Raises `503 not_ready` if the disk does not answer."""
        try:
            return await self.spans.tags(topic, segment)
        except OSError as error:
            raise _unavailable(topic, error) from error

    async def expire(self, topic: Topic) -> None:
        """Advance the floors to now (`docs/spec/crash.md` 7)."""
        await self.prepared(topic, partial(self._registry.expire, topic))

    async def candidates(self, topic: Topic, match: TagMatch, bound: int) -> array[int]:
        """Return the seqs that match according to segment files (`SpanLoader.candidates`)."""
        try:
            return await self.spans.candidates(topic, match, bound)
        except OSError as error:
            raise _unavailable(topic, error) from error

    async def stored_tags(self, topic: Topic, span: Span, match: TagMatch) -> array[int] | None:
        """Return the seqs that match according to the file of a span's segment, ascending; None if that was replaced
        meanwhile. Raises `503 not_ready` if the disk does not answer."""
        try:
            return await self.spans.stored_tags(topic, span, match)
        except OSError as error:
            raise _unavailable(topic, error) from error

    def _fetch(self, topic: Topic, spans: tuple[Span, ...]) -> None:
        """Load, in the background, columns without which a commit cannot be published."""
        # Together with those loaded for it before, because loading some may drop others.
        known = [span for span in self._resuming.get(topic, ()) if topic.log.stored.holds(span)]
        self._background.start_soon(self._fetch_and_resume, topic, (*known, *spans))

    async def _fetch_and_resume(self, topic: Topic, spans: tuple[Span, ...]) -> None:
        pause = 0.01
        tries = 0
        while not topic.deleted:
            try:
                await self.spans.load(topic, spans)
                break
            except OSError as error:
                # The commit is in the log and has to take effect: no caller is left to report the failure to.
                tries += 1
                if tries in TOLD_TRIES or tries % TOLD_TRIES[-1] == 0:
                    log.error("columns_unreadable", topic=topic.name, error=str(error), tries=tries)
                await trio.sleep(pause)
                pause = min(2 * pause, 1.0)
        self._resuming[topic] = spans
        topic.resume()
        del self._resuming[topic]

    async def provide(self, found: Collector, need: Need, perf: Performance) -> None:
        """Load what a `Collector` needs to go on. Reads of cold segments are counted in `perf`.

        Raises `503 not_ready` if the disk does not answer.
        """
        if isinstance(need, ColumnsNeeded):
            await self.columns(found.topic, need.spans)
        elif isinstance(need, RecordsNeeded):
            found.loaded = await self.load(found.topic, need.first, need.last, perf)
        elif isinstance(need, TagsNeeded):
            await self._tags_for(found, need.segment)
        elif isinstance(need, trio.Event):
            await need.wait()
        else:
            await self._turns.take()

    async def _tags_for(self, found: Collector, segment: Segment) -> None:
        """Give a read the tags of a segment. Does nothing if the topic has replaced the segment meanwhile: then the
        read asks for those of the new one."""
        assert found.walk is not None
        tier = segment.tier
        try:
            tags = await self.spans.matching_tags(found.topic, segment, found.walk.matches)
        except FileNotFoundError as error:
            stored = found.topic.log.stored.at(segment.first + segment.n - 1)
            if stored is not None and stored.segment is segment and segment.tier == tier:
                raise _unavailable(found.topic, error) from error
        except OSError as error:
            raise _unavailable(found.topic, error) from error
        else:
            found.walk.know(segment, tags.tags, tags.n)

    # -- payloads ----------------------------------------------------------------------------------------------------

    async def load(self, topic: Topic, first: int, last: int, perf: Performance | None = None) -> list[Block]:
        """Read live records from disk into blocks. The first block begins at `first`.

        The caller must check the state again, which may have changed: there may be no block. Each block has all records
        of its range that are live now. Records whose bytes do not verify become `corrupt` holes and are never returned.
        Raises `503 not_ready` if the disk does not answer. Reads of cold segments are counted in `perf`.
        """
        following = topic.blocks.next_first(first)
        last = min(last, first + LOAD_RECORDS - 1, following - 1 if following is not None else last)
        located = await self.prepared(topic, partial(locate, topic.log.index, first, last))
        if not located:
            return []
        wanted = located[0]
        try:
            blocks, damaged = await self._read(topic, wanted)
            if perf is not None and isinstance(wanted.segment, Segment) and wanted.segment.tier == "cold":
                perf.cold_segments_read = (perf.cold_segments_read or 0) + 1
            if damaged and isinstance(wanted.segment, Segment):
                blocks, damaged = await self._read_again(topic, wanted, damaged)
        except OSError as error:
            raise _unavailable(topic, error) from error
        await self._give_up(topic, damaged)
        if not blocks or blocks[0].first_seq != first or topic.deleted:
            return []
        for block in blocks:
            if block.first_seq >= topic.log.earliest_seq:
                topic.blocks.insert(block)
        return blocks

    async def open_stored(self, topic: Topic, first: int, last: int, max_bytes: int) -> OpenedRun | None:
        """Read and decode live records that are in a segment, with their origins, beginning with seq `first`. Return
        None if the caller has to check the topic again. Raises `503 not_ready` if the disk does not answer."""
        located = await self.prepared(topic, partial(locate, topic.log.index, first, last, max_bytes))
        if not located or not isinstance(located[0].segment, Segment):
            return None
        wanted, segment = located[0], located[0].segment
        cold = segment.tier == "cold"
        try:
            store = self._store.tiers.of(segment)
        except FileNotFoundError as error:
            raise _unavailable(topic, error) from error
        name = segment_name(segment.first, "data")
        read = partial(store.read_range, segment.topic_id, name, wanted.offset, wanted.length)
        try:
            window = await self._offload.run(Pool.COLD_READ if cold else Pool.HOT_READ, read)
        except FileNotFoundError:
            window = b""  # the segment was replaced; if it was not, decoding fails and says so
        except OSError as error:
            raise _unavailable(topic, error) from error
        records = await (self._open_cold(window, wanted, topic) if cold else self._open(window, wanted, topic))
        if len(records) < len(wanted.seqs):
            await self.load(topic, first, last)  # this deals with damage, or finds the records moved
            return None
        offsets = array("I", [wanted.offset + at for at in wanted.starts])
        return OpenedRun(wanted.seqs, records, segment, offsets, wanted.frame_lens)

    async def _open(self, window: bytes, wanted: FrameRange, topic: Topic) -> list[OpenedRecord]:
        """Decode records, letting other tasks run in between. Stops at the first one that does not verify."""
        records: list[OpenedRecord] = []
        salt = _salt_of(wanted)
        for at in range(0, len(wanted.seqs), COLD_DECODE_RECORDS):
            part = slice(at, at + COLD_DECODE_RECORDS)
            places, sizes = wanted.starts[part], wanted.frame_lens[part]
            opened = open_records(window, places, sizes, topic.id, salt=salt, base=wanted.offset)
            records += [record for record in opened if record is not None]
            await trio.lowlevel.checkpoint()
        return records

    async def _open_cold(self, window: bytes, wanted: FrameRange, topic: Topic) -> list[OpenedRecord]:
        """Decode records of cold segments like `_open`, within their share of the loop."""
        async with self._pace.lane:
            began = self._clock.perf_ns()
            records = await self._open(window, wanted, topic)
            await self._pace.pay(began)
            return records

    @staticmethod
    def is_current(topic: Topic, opened: OpenedRun) -> bool:
        """Return True if those records are still live and in the same place. Raises NotLoaded."""
        at = 0
        for found in locate(topic.log.index, opened.seqs[0], opened.seqs[-1]):
            n = len(found.seqs)
            if found.segment is not opened.segment or found.seqs != opened.seqs[at : at + n]:
                return False
            if array("I", [found.offset + start for start in found.starts]) != opened.offsets[at : at + n]:
                return False
            at += n
        return at == len(opened.seqs)

    async def _read(self, topic: Topic, wanted: FrameRange) -> tuple[list[Block], list[int]]:
        """Return the records of one range as blocks, and the seqs that do not verify."""
        segment = wanted.segment
        if wanted.derived:
            return await self._read_copies(topic, wanted)
        if not isinstance(segment, Segment):
            file = self._store.files.get(wanted.file)
            try:
                records, damaged = await self._offload.run(
                    Pool.HOT_READ, partial(read_records, self._fs, file.path, wanted, file.head.salt)
                )
                return [block_of_records(records)] if records else [], damaged
            except FileNotFoundError:
                # The file was dropped before the read; if the index still points to it, the file is missing.
                return [], [seq for seq in wanted.seqs if topic.log.stored.at(seq) is None]
        cold = segment.tier == "cold"
        name = segment_name(segment.first, "data")
        try:
            store = self._store.tiers.of(segment)
            read = partial(store.read_range, segment.topic_id, name, wanted.offset, wanted.length)
            window = await self._offload.run(Pool.COLD_READ if cold else Pool.HOT_READ, read)
        except FileNotFoundError:
            if not _is_stored_in(topic, wanted.seqs, segment):
                return [], []  # the segment was removed or replaced after the records were located
            if cold and segment.tier == "cold":
                raise
            return [], list(wanted.seqs)
        if not cold:
            return await self._decode(window, wanted, DECODE_RECORDS, cold=False)
        async with self._pace.lane:
            return await self._decode(window, wanted, COLD_DECODE_RECORDS, cold=True)

    async def _read_copies(self, topic: Topic, wanted: FrameRange) -> tuple[list[Block], list[int]]:
        """Like `_read`, for copies whose frames are those of another topic's records."""
        assert topic.copies is not None
        runs = list(topic.copies.runs)
        times = [topic.log.index.ts_of(seq) for seq in wanted.seqs]
        read = partial(read_copies, self._fs, self._store.tiers, self._store.files, wanted, runs, times)
        try:
            records, damaged = await self._offload.run(Pool.HOT_READ, read)
        except (FileNotFoundError, KeyError):
            # The copies are in a segment of their own by now; if the index still points there, the file is missing.
            records, damaged = [], list(wanted.seqs)
        damaged = [seq for seq in damaged if topic.log.stored.at(seq) is None]
        return [block_of_records(records)] if records else [], damaged

    async def _decode(
        self, window: bytes, wanted: FrameRange, most: int, *, cold: bool
    ) -> tuple[list[Block], list[int]]:
        """Decode records and encode them as blocks of at most `most`, letting other tasks run in between."""
        blocks: list[Block] = []
        damaged: list[int] = []
        salt = _salt_of(wanted)
        for at in range(0, len(wanted.seqs), most):
            part = slice(at, at + most)
            places, sizes, seqs = wanted.starts[part], wanted.frame_lens[part], wanted.seqs[part]
            if len(seqs) >= TURN_RECORDS and not cold:
                await self._turns.take()
            began = self._clock.perf_ns()
            records, bad = decode_records(window, places, sizes, seqs, salt=salt, base=wanted.offset)
            damaged += bad
            if records:
                blocks.append(block_of_records(records))
            if cold:
                await self._pace.pay(began)
        return blocks, damaged

    async def _read_again(self, topic: Topic, wanted: FrameRange, damaged: list[int]) -> tuple[list[Block], list[int]]:
        """Read damaged-looking records again, with no other task at work on the files, and by columns taken from
        `.data` itself: the segment may have been replaced during the read, or its index may be wrong."""
        segment_set = topic.segment_set
        assert segment_set is not None
        for span in {span: None for seq in damaged if (span := topic.log.stored.at(seq)) is not None}:
            await self.spans.repairs.repair(topic, span)
        while not topic.deleted and any(topic.log.stored.at(seq) is not None for seq in damaged):
            cold = _is_cold(topic, damaged)
            async with segment_set.cold_lock if cold else segment_set.hot_lock:
                if _is_cold(topic, damaged) is not cold:
                    continue  # it moved while the lock was waited for
                if topic.deleted or not any(topic.log.stored.at(seq) is not None for seq in damaged):
                    return [], []
                await self.spans.rescan(topic, damaged)
                if topic.deleted:
                    return [], []
                self._registry.account(topic)
                alive = [seq for seq in wanted.seqs if topic.log.is_live(seq)]
                if not alive:
                    return [], []
                ranges = locate(topic.log.index, alive[0], alive[-1])
                return await self._read(topic, ranges[0]) if ranges else ([], [])
        return [], []

    async def _give_up(self, topic: Topic, damaged: Sequence[int]) -> None:
        """Make damaged records `corrupt` holes, which readers are told of."""
        for first, last in runs_of(damaged):
            alive = partial(_live_within, topic, first, last)
            if topic.deleted or not await self.prepared(topic, alive):
                continue
            log.error("records_damaged", topic=topic.name, first=first, last=last)
            if self.notes.is_for_others(topic, f"record {first} of topic {topic.name!r} is damaged"):
                raise _unavailable(topic, OSError(errno.EIO, "they are damaged, and fetched from the bucket"))
            await self.prepared(topic, partial(topic.log.add_hole, first, last, "corrupt"))
            self.notes.note(topic, [(first, last)])
            self._registry.account(topic)


def _is_cold(topic: Topic, seqs: Sequence[int]) -> bool:
    """Return True if any of these records is in a cold segment."""
    segments = (span.segment for seq in seqs if (span := topic.log.stored.at(seq)) is not None)
    return any(isinstance(segment, Segment) and segment.tier == "cold" for segment in segments)


def _live_within(topic: Topic, first: int, last: int) -> bool:
    """Return True if any of these seqs (inclusive) is live. Raises NotLoaded."""
    return any(topic.log.is_live(seq) for seq in range(first, last + 1))


def _salt_of(wanted: FrameRange) -> int | None:
    """Return the salt of the segment that records are read from. If the segment is replaced meanwhile, they do not
    verify, and are read again."""
    assert isinstance(wanted.segment, Segment)
    return wanted.segment.read_salt


def _is_stored_in(topic: Topic, seqs: Sequence[int], segment: Segment) -> bool:
    """Return True if one of these records is still stored in the segment."""
    spans = (topic.log.stored.at(seq) for seq in seqs)
    return any(span is not None and span.segment is segment for span in spans)


def _unavailable(topic: Topic, error: OSError) -> ApiError:
    if topic.deleted:  # and its files with it, while they were read
        return topic_not_found(topic.name)
    return ApiError(
        "not_ready",
        f"records of topic {topic.name!r} cannot be read now: {error.strerror or error}",
        detail={"topic": topic.name},
        retry_after_s=1,
    )
