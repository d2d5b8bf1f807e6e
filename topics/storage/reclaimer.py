"""The reclaimer: gives back what deleted, evicted and expired records take up on disk (`storage.md` section 4).

The kinds of work, each on one topic at a time and crash-safe at every step (`docs/design/segments.md` section 4):

- *drop*: segments that the part on disk does not need any more; directories of deleted topics.
- *flag*: deletions in cold segments that have not been written there yet.
- *rewrite*: a sealed segment of which less than `TOPICS_REWRITE_LIVE_RATIO` is live, without what is dead; one in which
  everything was deleted has no files from then on.
- *merge*: neighbours that are small, into one.

Which topics there is something to do for is known from `attention`, where every topic whose part has changed is put; so
a scan costs what has changed. What only time can bring about (ttl, the age of an active segment) stands in a heap.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import compress, count
from typing import Any, Final, NamedTuple

import trio

from topics.clock import Clock
from topics.config import Settings
from topics.errors import ApiError
from topics.log.index import DELETED, LIVE, LOST, Span
from topics.log.topic_log import SpanColumns
from topics.logs import get_logger
from topics.offload import Kind, Offload
from topics.storage.datadir import segment_name
from topics.storage.index_cache import IndexCache
from topics.storage.segment_reader import Tiers
from topics.storage.segment_store import SegmentStore
from topics.storage.segments import (
    DELETED_FLAG,
    HOLE_CORRUPT,
    IDX_DELETED,
    IDX_HOLE,
    MIN_FRAME_BYTES,
    SegmentTags,
    encode_index,
    encode_tags,
)
from topics.storage.shelf import Segment, Shelf
from topics.storage.span_loader import SpanLoader
from topics.storage.storing import LiveTopic, Source, Storing, flag_patches
from topics.storage.upkeep import Upkeep

log = get_logger(__name__)

BYTES_PER_S: Final = 32 << 20
"""Rewriting and merging take no more of the disk than this."""

SMALL: Final = 4
"""A segment under a quarter of both seal limits is small."""

SLICE_TOPICS: Final = 256
SLICE_SLOTS: Final = 1000
COPY_BYTES: Final = 1 << 20
READ_GAP: Final = 4096

_ONE_IF_LIVE: Final = bytes(state == LIVE for state in range(256))


class Reclaimer:
    """See the module. `run` is a task; `pass_over` does what it does at once."""

    def __init__(
        self,
        settings: Settings,
        source: Source,
        storing: Storing,
        upkeep: Upkeep,
        loader: SpanLoader,
        cache: IndexCache,
        expire: Callable[[Any], Awaitable[None]],
        *,
        clock: Clock,
        offload: Offload,
    ) -> None:
        self._settings = settings
        self._source = source
        self._storing = storing
        self._upkeep = upkeep
        self._loader = loader
        self._cache = cache
        self._expire = expire
        self._clock = clock
        self._offload = offload
        self._removed: deque[tuple[int, Shelf | None]] = deque()
        self._later: list[tuple[int, int, LiveTopic]] = []
        """A heap: when to look at a topic again, epoch ms; the number keeps topics from being compared."""
        self._due: dict[LiveTopic, int] = {}
        self._numbers = count()

    async def run(self) -> None:
        """Scan every `TOPICS_RECLAIM_MS`; until cancelled. A failure is logged and tried again at the next scan."""
        while True:
            await trio.sleep(self._settings.reclaim_ms / 1000)
            try:
                await self.pass_over()
            except (OSError, ApiError) as error:
                log.warning("reclaim_failed", error=str(error))

    def remove_topic(self, topic_id: int, shelf: Shelf | None) -> None:
        """The topic is gone for good: its directories may go."""
        self._removed.append((topic_id, shelf))

    async def pass_over(self) -> int:
        """One scan, and all the work it finds; how many pieces that was.

        What fails for one topic is tried again by the next scan and holds up no other; the first error is raised in the
        end.
        """
        done = 0
        failure: OSError | ApiError | None = None
        for _ in range(len(self._removed)):
            topic_id, shelf = self._removed[0]
            if self._upkeep.needed_segments(topic_id):
                self._removed.rotate(-1)
                continue
            try:
                await self._remove_directories(topic_id, shelf)
                done += 1
            except OSError as error:
                failure = failure or error
                self._removed.append((topic_id, shelf))
            self._removed.popleft()
        for topic in list(self._upkeep.littered):
            try:
                await self._clear_away(topic)
            except OSError as error:
                failure = failure or error
        now = self._source.now_ms()
        while self._later and self._later[0][0] <= now:
            _, _, topic = heapq.heappop(self._later)
            self._due.pop(topic, None)
            self._source.attention.add(topic)
        todo = list(self._source.attention)
        self._source.attention.clear()
        for i, topic in enumerate(todo):
            if i % SLICE_TOPICS == SLICE_TOPICS - 1:
                await trio.lowlevel.checkpoint()
            if topic.shelf is None or topic.deleted or topic in self._storing.stuck:
                continue
            try:
                done += await self._look_after(topic, topic.shelf)
            except (OSError, ApiError) as error:
                if topic.deleted:
                    continue
                failure = failure or error
                self._source.attention.add(topic)
            except BaseException:
                self._source.attention.update(todo[i:])
                raise
            if topic in self._source.changed:
                self._source.attention.add(topic)  # once its part is on disk, there is more to do
        if failure is not None:
            raise failure
        return done

    # -- one topic ---------------------------------------------------------------------------------------------------

    async def _look_after(self, topic: LiveTopic, shelf: Shelf) -> int:
        """Everything there is to do for a topic; how many pieces of work that was."""
        done = 0
        await self._expire(topic)
        self._look_again(topic)
        if shelf.gone:
            await self._drop(topic, shelf)
            done += 1
        if any(_lacks_flags(span) for span in topic.log.stored_spans()):
            done += await self._flag_cold(topic, shelf)
        while not topic.deleted and (group := await self._worth_it(topic)) is not None:
            size = await self._replace(topic, shelf, group)
            if size is None:
                break
            if shelf.gone:
                await self._drop(topic, shelf)
            done += 1
            await trio.sleep(size / BYTES_PER_S)
        return done

    def _look_again(self, topic: LiveTopic) -> None:
        """Note when time alone will have made something to do of this topic."""
        spans = topic.log.stored_spans()
        due = []
        if topic.config.ttl_ms and spans:
            due.append(spans[0].last_ts + topic.config.ttl_ms + 1)
        newest = spans[-1].segment if spans else None
        age = self._settings.segment_max_age_ms
        if age and isinstance(newest, Segment) and not newest.sealed:
            at = newest.opened_ms + age
            if at <= self._source.now_ms():
                topic.mark_changed()  # the next checkpoint seals it
            else:
                due.append(at)
        if due and min(due) < self._due.get(topic, min(due) + 1):
            self._due[topic] = min(due)
            heapq.heappush(self._later, (min(due), next(self._numbers), topic))

    async def _worth_it(self, topic: LiveTopic) -> list[Span] | None:
        """The next spans to be replaced by one: one with too little in it, or small neighbours."""
        sealed = [span for span in topic.log.stored_spans() if _sealed(span) is not None]
        needed = self._upkeep.needed_segments(topic.id)
        if needed:
            self._source.attention.add(topic)  # once nobody needs them any more, there may be something to do
        for span in sealed:
            segment = _sealed(span)
            if segment is None or not topic.log.holds(span):
                continue  # evicted while another one was loaded
            if segment.tier == "gone" or _lacks_flags(span) or segment.first in needed:
                continue
            if _all_deleted(span):
                return [span]
            if await self._mostly_dead(topic, span, segment):
                return [span]
        sealed = [span for span in topic.log.stored_spans() if _sealed(span) is not None]
        events, size = self._settings.segment_max_events, self._settings.segment_max_bytes
        group: list[Span] = []
        total = slots = 0
        for span in sealed:
            segment = _sealed(span)
            assert segment is not None
            small = SMALL * segment.n < events and SMALL * segment.data_bytes < size
            small = small and segment.tier != "gone" and not _lacks_flags(span) and segment.first not in needed
            fits = bool(group) and small and _follows(group[-1], span)
            fits = fits and slots + segment.n <= events and total + segment.data_bytes <= size
            if not fits:
                if len(group) > 1:
                    return group
                group, total, slots = ([span], segment.data_bytes, segment.n) if small else ([], 0, 0)
                continue
            group.append(span)
            total, slots = total + segment.data_bytes, slots + segment.n
        return group if len(group) > 1 else None

    async def _mostly_dead(self, topic: LiveTopic, span: Span, segment: Segment) -> bool:
        """Whether the live records of a sealed segment take up too little of it.

        Their frames are longer than what the summary knows of them by tags and nodes; so where that does not decide it,
        the columns do, once for each change.
        """
        enough = self._settings.rewrite_live_ratio * segment.data_bytes
        if span.bytes + MIN_FRAME_BYTES * span.live >= enough:
            return False
        if segment.measured is None or segment.measured[0] != span.live:
            columns = await self._loader.prepared(topic, partial(_columns_if_held, topic, span))
            if columns is None:
                return False
            live = columns.dead[span.start :].translate(_ONE_IF_LIVE)
            segment.measured = (live.count(1), sum(compress(columns.frame_len[span.start :], live)))
        return segment.measured[1] < enough

    # -- dropping ----------------------------------------------------------------------------------------------------

    async def _drop(self, topic: LiveTopic, shelf: Shelf) -> None:
        """Unlink segments that the part on disk does not need. It names them until the next part, so that a crash in
        between leaves nothing behind."""
        async with self._upkeep.files_of(shelf):
            kept = {segment.first for segment in shelf.segments if segment not in shelf.gone}
            needed = self._upkeep.needed_segments(topic.id)
            for segment in shelf.gone:
                if segment.first in needed:
                    continue
                if segment.first not in kept:
                    await self._remove_files(segment)
                shelf.segments.discard(segment)
                self._cache.forget_tags(segment)
                log.info("segment_dropped", topic=topic.name, first=segment.first, bytes=segment.data_bytes)
            shelf.gone = [segment for segment in shelf.gone if segment.first in needed]
            topic.mark_changed()

    async def _remove_files(self, segment: Segment) -> None:
        tiers = self._storing.tiers
        names = [segment_name(segment.first, kind) for kind in ("data", "idx", "tags", "idx.cold", "tags.cold")]
        await self._offload.run(Kind.FILES, partial(_delete_all, tiers.hot, segment.topic_id, names))
        if tiers.cold is not None:
            # A relocation that was cut short may have left a copy there.
            await self._offload.run(Kind.COLD_READ, partial(_delete_all, tiers.cold, segment.topic_id, names[:3]))

    async def _clear_away(self, topic: LiveTopic) -> None:
        """Remove what failed work has left of files that no part names."""
        if not topic.deleted and topic not in self._storing.stuck:
            if topic.shelf is None:
                topic.shelf = Shelf()
            async with self._upkeep.files_of(topic.shelf):
                if not topic.deleted:
                    await self._storing.tidy(topic)
        self._upkeep.littered.pop(topic, None)

    async def _remove_directories(self, topic_id: int, shelf: Shelf | None) -> None:
        tiers = self._storing.tiers
        async with self._upkeep.files_of(shelf):
            await self._offload.run(Kind.FILES, partial(tiers.hot.delete_topic, topic_id))
            if tiers.cold is not None:
                await self._offload.run(Kind.COLD_READ, partial(tiers.cold.delete_topic, topic_id))

    # -- flags of cold segments --------------------------------------------------------------------------------------

    async def _flag_cold(self, topic: LiveTopic, shelf: Shelf) -> int:
        """Write the delete flags that cold segments lack: their Delete frames are synced with the part that names
        them."""
        done = 0
        async with self._upkeep.files_of(shelf):
            if topic in self._source.changed:
                return 0  # not every one of them is in a part yet: after the next checkpoint
            for span in topic.log.stored_spans():
                if not _is_cold(span) or not span.unflagged or topic.deleted:
                    continue
                segment = span.segment
                assert isinstance(segment, Segment)
                seqs = span.unflagged[:]
                flagged = await self._offload.run(
                    Kind.COLD_READ, partial(_flag_in_store, self._storing.tiers, segment, sorted(seqs))
                )
                if flagged:
                    topic.log.flagged(span, flagged)
                    topic.mark_changed()
                    done += 1
        return done

    # -- replacing ---------------------------------------------------------------------------------------------------

    async def _replace(self, topic: LiveTopic, shelf: Shelf, group: Sequence[Span]) -> int | None:
        """Put one new segment in the place of `group`, without what the part on disk knows to be dead; its bytes.

        None if it has turned out that it cannot be done now.
        """
        async with self._upkeep.replacing(topic) as there:
            if not there:
                return None
            await self._storing.store([topic])
            segments = [_sealed(span) for span in group]
            needed = self._upkeep.needed_segments(topic.id)  # from here on there are no new ones: the topic is busy
            if any(segment is not None and segment.first in needed for segment in segments):
                self._source.attention.add(topic)
                return None
            if not all(topic.log.holds(span) for span in group) or not all(segments):
                return None
            if len(group) == 1 and _all_deleted(group[0]) and not group[0].unflagged:
                return await self._vanish(topic, group[0])
            frozen = await self._loader.prepared(topic, partial(_freeze, topic, shelf, group))
            if frozen is None:
                return None
            plan = await _plan(frozen)
            old = [segment for segment in segments if segment is not None]
            tags = [await self._loader.tags(segment) for segment in old]
            store = self._storing.tiers.of(old[0])
            kind = Kind.FILES if old[0].tier == "hot" else Kind.COLD_READ
            try:
                await self._offload.run(kind, partial(_write_replacement, self._storing.tiers, store, old, plan, tags))
            except BaseException:
                # Nobody knows how far it has come; from now on only the files say where the records are in them.
                for span, segment in zip(group, old, strict=True):
                    self._cache.forget_columns(span)
                    topic.log.detach(span)
                    self._cache.forget_tags(segment)
                raise
            if topic.deleted or not all(topic.log.holds(span) for span in group):
                return None  # evicted meanwhile: dropped as it is
            new = Segment(
                topic.id,
                old[0].first,
                n=sum(segment.n for segment in old),
                data_bytes=sum(plan.frame_len),
                frames=len(plan.frame_len) - plan.frame_len.count(0),
                opened_ms=old[0].opened_ms,
                sealed=True,
                tier=old[0].tier,
            )
            for span, segment in zip(group, old, strict=True):
                self._cache.forget_columns(span)
                self._cache.forget_tags(segment)
            topic.log.replace(group[0].first, group[-1].end - 1, new)
            shelf.segments.discard(old[0])
            shelf.segments.add(new)
            await self._storing.store([topic])
        log.info("segments_replaced", topic=topic.name, first=new.first, segments=len(old), bytes=new.data_bytes)
        return new.data_bytes

    async def _vanish(self, topic: LiveTopic, span: Span) -> int:
        """Everything in a segment was deleted, and the part on disk knows it: from the next part on it has no files."""
        old = span.segment
        assert isinstance(old, Segment)
        self._cache.forget_columns(span)
        gone = Segment(topic.id, span.first, n=span.n, opened_ms=span.last_ts, sealed=True, tier="gone")
        topic.log.replace(span.first, span.end - 1, gone)
        await self._storing.store([topic])
        log.info("segment_emptied", topic=topic.name, first=span.first, last=span.end - 1)
        return 1


class _Plan(NamedTuple):
    """What of the old segments goes into the new one, slot by slot; `frame_len` is 0 for what does not."""

    source: array[int]
    """Which of the old segments, and `offset`: where in it."""
    offset: array[int]
    frame_len: array[int]
    ts: array[int]
    flags: bytearray
    """As in `.idx`."""
    size: array[int]


class _Frozen(NamedTuple):
    """A span as of one step of the loop."""

    first: int
    columns: SpanColumns
    since: set[int]
    """Seqs deleted since the part on disk was made; at least."""
    gone: int
    """Slots that the part on disk knows to be below the front."""


def _columns_if_held(topic: LiveTopic, span: Span) -> SpanColumns | None:
    """The columns of a span; None if it has been evicted: nothing loads it any more. Raises NotLoaded."""
    return topic.log.columns_of(span) if topic.log.holds(span) else None


def _freeze(topic: LiveTopic, shelf: Shelf, group: Sequence[Span]) -> list[_Frozen] | None:
    """What the new segment is made from. Raises NotLoaded; None if a span does not cover its segment from the first
    slot on."""
    frozen = []
    for span in group:
        segment = span.segment
        assert isinstance(segment, Segment)
        if span.first != segment.first or span.n != segment.n:
            return None
        gone = min(max(shelf.earliest_stored - span.first, 0), span.n)
        frozen.append(_Frozen(span.first, topic.log.columns_of(span), set(span.unflagged or ()), gone))
    return frozen


async def _plan(group: Sequence[_Frozen]) -> _Plan:
    """What survives: everything that is not dead according to the part on disk, worked out in slices.

    What has been deleted or evicted since is kept, so that the part never knows less than the files have forgotten.
    """
    plan = _Plan(array("I"), array("I"), array("I"), array("Q"), bytearray(), array("I"))
    for number, (first, columns, since, gone) in enumerate(group):
        for i, (state, size, flag) in enumerate(zip(columns.dead, columns.frame_len, columns.flags, strict=True)):
            kept = i >= gone and size > 0 and state != LOST and (state != DELETED or first + i in since)
            plan.source.append(number)
            plan.offset.append(columns.offset[i])
            plan.frame_len.append(size if kept else 0)
            plan.ts.append(columns.ts[i])
            plan.size.append(columns.size[i] if kept else 0)
            plan.flags.append(flag if kept else flag | (IDX_HOLE if state == LOST else IDX_DELETED))
            if i % SLICE_SLOTS == SLICE_SLOTS - 1:
                await trio.lowlevel.checkpoint()
    return plan


def _write_replacement(
    tiers: Tiers, store: SegmentStore, old: Sequence[Segment], plan: _Plan, tags: Sequence[SegmentTags]
) -> None:
    """Blocking, in the order of `crash.md` 12: derived files go, `.data` is replaced, derived files are made anew."""
    first = old[0]
    offsets, at = array("I"), 0
    for size, flag, was in zip(plan.frame_len, plan.flags, plan.offset, strict=True):
        # A hole's entry has its reason in the place of the offset. One that has a place yet was found to be damaged.
        offsets.append(at if size else (was if 1 <= was <= 3 else HOLE_CORRUPT) if flag & IDX_HOLE else 0)
        at += size
    index = encode_index(offsets, plan.frame_len, plan.ts, bytes(plan.flags))
    blob = encode_tags(first.first, plan.size, _surviving(plan, old, tags))
    derived: list[tuple[SegmentStore, str, bytes]] = [
        (store, segment_name(first.first, "idx"), index),
        (store, segment_name(first.first, "tags"), blob),
    ]
    if first.tier == "cold":
        derived += [
            (tiers.hot, segment_name(first.first, "idx.cold"), index),
            (tiers.hot, segment_name(first.first, "tags.cold"), blob),
        ]
    for where, name, _ in derived:
        where.delete(first.topic_id, name)
    store.put(first.topic_id, segment_name(first.first, "data"), _copied(store, old, plan))
    for where, name, content in derived:
        where.put(first.topic_id, name, [content])


def _copied(store: SegmentStore, old: Sequence[Segment], plan: _Plan) -> Iterator[bytes]:
    """The surviving frames as they are, in reads of bounded size."""
    begin = end = 0
    number = 0
    pieces: list[tuple[int, int]] = []

    def flush() -> bytes:
        name = segment_name(old[number].first, "data")
        window = store.read_range(old[number].topic_id, name, begin, end - begin)
        return b"".join(window[at - begin : at - begin + size] for at, size in pieces)

    for source, offset, size in zip(plan.source, plan.offset, plan.frame_len, strict=True):
        if not size:
            continue
        near = source == number and end <= offset <= end + READ_GAP and offset + size - begin <= COPY_BYTES
        if not near:
            if pieces:
                yield flush()
            number, begin, pieces = source, offset, []
        if pieces and pieces[-1][0] + pieces[-1][1] == offset:
            pieces[-1] = (pieces[-1][0], pieces[-1][1] + size)
        else:
            pieces.append((offset, size))
        end = offset + size
    if pieces:
        yield flush()


def _surviving(plan: _Plan, old: Sequence[Segment], tags: Sequence[SegmentTags]) -> list[str | None]:
    """The tag of every slot that has a record in the new segment."""
    out: list[str | None] = [None] * len(plan.frame_len)
    base = 0
    for segment, known in zip(old, tags, strict=True):
        for tag, positions in known.items():
            for i in positions:
                if plan.frame_len[base + i]:
                    out[base + i] = tag
        base += segment.n
    return out


def _flag_in_store(tiers: Tiers, segment: Segment, seqs: Sequence[int]) -> array[int]:
    """Blocking: patch the flags of a cold segment, and of the copy of its `.idx`. Returns what was flagged."""
    store = tiers.of(segment)
    index, data = segment_name(segment.first, "idx"), segment_name(segment.first, "data")
    copy = segment_name(segment.first, "idx.cold")

    def read(length: int, offset: int) -> bytes:
        return store.read_range(segment.topic_id, index, offset, length)

    patches = list(flag_patches(read, segment.first, seqs))
    flags = [(at, bytes((DELETED_FLAG,))) for patch in patches for at in patch.flags_at]
    entries = [(patch.entries_at, patch.entries) for patch in patches]
    if flags:
        store.patch(segment.topic_id, data, flags)
    if entries:
        store.patch(segment.topic_id, index, entries)
        if tiers.hot.exists(segment.topic_id, copy):
            tiers.hot.patch(segment.topic_id, copy, entries)
    return array("Q", [seq for patch in patches for seq in patch.seqs])


def _delete_all(store: SegmentStore, topic_id: int, names: Sequence[str]) -> None:
    for name in names:
        store.delete(topic_id, name)


def _sealed(span: Span) -> Segment | None:
    segment = span.segment
    return segment if isinstance(segment, Segment) and segment.sealed else None


def _all_deleted(span: Span) -> bool:
    """Whether nothing but deleted records is left of a span; what was lost needs its entries."""
    return span.live == 0 and span.lost == 0


def _is_cold(span: Span) -> bool:
    return isinstance(span.segment, Segment) and span.segment.tier == "cold"


def _lacks_flags(span: Span) -> bool:
    """Whether deletions in a cold segment have yet to be flagged there: until then a rewrite would keep what was
    deleted, to no end."""
    return _is_cold(span) and bool(span.unflagged)


def _follows(left: Span, right: Span) -> bool:
    """Whether two spans can be one: they touch, and are in the same tier."""
    a, b = left.segment, right.segment
    return left.end == right.first and isinstance(a, Segment) and isinstance(b, Segment) and a.tier == b.tier
