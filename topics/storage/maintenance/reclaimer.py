"""The reclaimer: gives back the disk space of deleted, evicted and expired records (`docs/spec/storage.md` section 4).

The kinds of work, each on one topic at a time and crash-safe at every step (`docs/design/segments.md` section 4):

- *drop*: remove segments that the part on disk does not need any more, and directories of deleted topics.
- *flag*: flag the deletions in cold segments that are not flagged there yet.
- *rewrite*: write a sealed segment of which less than `TOPICS_REWRITE_LIVE_RATIO` is live again, without dead records;
  one in which everything was deleted has no files from then on. With a bucket, so is one that has held deleted bytes
  for too long (`purges`).
- *merge*: join small neighbours.
- *pack*: compress (`packer`); rewritten and merged segments are compressed at once.

Every topic whose part has changed is added to `attention`, so a scan costs as much as has changed. Work that only time
causes (ttl, the age of an active segment) is in a heap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import compress
from typing import Any, Final

import trio

from topics.config import Settings
from topics.errors import ApiError
from topics.log.span import LIVE, Span
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.storage.cache.index_cache import IndexCache
from topics.storage.cache.span_loader import SpanLoader
from topics.storage.files.datadir import segment_name
from topics.storage.maintenance.appointments import Appointments
from topics.storage.maintenance.cold_flags import ColdFlags
from topics.storage.maintenance.cold_removal import ColdRemoval, delete_all, is_away
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.home_moves import HomeMoves
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.packer import Packer, packs_new
from topics.storage.maintenance.purges import Purges
from topics.storage.maintenance.segment_rewrite import (
    Replacement,
    WrittenFiles,
    columns_if_held,
    freeze,
    plan_of,
    put_all,
    write_replacement,
)
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.segments.segment_format import MIN_FRAME_BYTES
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.topic_segments import EMPTIED, Segment, SegmentSet, limits_of
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


BYTES_PER_S: Final = 32 << 20
"""The most that rewriting and merging write (bytes per second)."""


SMALL: Final = 4
"""A segment below one `SMALL`th of both seal limits is small."""


SLICE_TOPICS: Final = 256

MOST_GONE: Final = 1 << 20
"""Slots of a segment without files: as many as the largest segment has, because somebody may ask for its columns."""

HOT_KINDS: Final = ("data", "idx", "tags", "del", "idx.cold", "tags.cold", "object")
"""The files that a segment may have in the data directory."""

COLD_KINDS: Final = HOT_KINDS[:4]
"""Those that it may have in a cold directory."""

PURGE_SHARE: Final = 3
"""With a bucket, a segment may hold deleted bytes for a third of its retention."""

_ONE_IF_LIVE: Final = bytes(state == LIVE for state in range(256))


class Reclaimer:
    """Reclaims space, for all topics. Made once by the engine; `run` is a task, `pass_over` does one scan at once."""

    def __init__(
        self,
        settings: Settings,
        source: TopicSource,
        checkpoints: TopicCheckpoints,
        file_holds: FileHolds,
        loader: SpanLoader,
        cache: IndexCache,
        expire: Callable[[Any], Awaitable[None]],
        home_moves: HomeMoves,
        *,
        clock: Clock,
        offload: Offload,
    ) -> None:
        self._settings = settings
        self._source = source
        self._checkpoints = checkpoints
        self._file_holds = file_holds
        self._loader = loader
        self._cache = cache
        self._expire = expire
        self._home_moves = home_moves
        self._clock = clock
        self._offload = offload
        self.cold = ColdRemoval(source, checkpoints, file_holds, offload=offload)
        self._cold_flags = ColdFlags(source, checkpoints, file_holds, offload=offload)
        self.removed: deque[tuple[int, SegmentSet | None]] = deque()
        """Topics whose directories are to be removed."""
        self._cold_attention: dict[LiveTopic, None] = {}
        """Topics with work on their cold segments."""
        self._later = Appointments()
        self._purges = Purges(settings.bucket_retain_ms // PURGE_SHARE if settings.bucket else None)
        self.packer = Packer(settings, source, checkpoints, file_holds, checkpoints.new_salt, offload=offload)
        self._found_all = False
        """The topics that a start has found have been looked at for deleted bytes."""

    async def run(self) -> None:
        """Scan every `TOPICS_RECLAIM_MS`, both tiers and for packing in parallel, until cancelled. Failures are logged
        and tried again."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run, self.hot_pass)
            nursery.start_soon(self._run, self.packer.pass_over)
            if self._checkpoints.tiers.cold is not None:
                nursery.start_soon(self._run, self.cold_pass)

    async def _run(self, one: Callable[[], Awaitable[int]]) -> None:
        while True:
            await trio.sleep(self._settings.reclaim_ms / 1000)
            try:
                await one()
            except (OSError, ApiError) as error:
                log.warning("reclaim_failed", error=str(error))

    def remove_topic(self, topic_id: int, segment_set: SegmentSet | None) -> None:
        """Have the directories of a deleted topic removed."""
        self.removed.append((topic_id, segment_set))

    async def pass_over(self) -> int:
        """Do one scan of both tiers and one for packing, and all the work found. Return the number of pieces of work.
        Raises like the scans."""
        failure: OSError | ApiError | None = None
        done = 0
        for one in (self.hot_pass, self.cold_pass, self.packer.pass_over):
            try:
                done += await one()
            except (OSError, ApiError) as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return done

    async def hot_pass(self) -> int:
        """Do one scan, and all the work found on hot files. Return the number of pieces of work. Never asks the cold
        store.

        Work that fails for one topic is tried again by the next scan and delays no other; the first error is raised in
        the end.
        """
        done = 0
        failure: OSError | ApiError | None = None
        for _ in range(len(self.removed)):
            topic_id, segment_set = self.removed[0]
            if self._file_holds.needed_segments(topic_id):
                self.removed.rotate(-1)
                continue
            try:
                await self._remove_directories(topic_id, segment_set)
                done += 1
            except OSError as error:
                failure = failure or error
                self.removed.append((topic_id, segment_set))
            self.removed.popleft()
        for topic in list(self._file_holds.littered):
            try:
                await self._clear_away(topic)
            except OSError as error:
                failure = failure or error
        now = self._source.now_ms()
        self._source.attention.update(self._later.due(now))
        if self._purges.is_on and not self._found_all:
            await self._find_all(now)
        todo = list(self._source.attention)
        self._source.attention.clear()
        for i, topic in enumerate(todo):
            if i % SLICE_TOPICS == SLICE_TOPICS - 1:
                await trio.lowlevel.checkpoint()
            if topic.segment_set is None or topic.deleted or topic in self._checkpoints.stuck:
                continue
            try:
                done += await self._look_after(topic, topic.segment_set)
            except (OSError, ApiError) as error:
                if topic.deleted:
                    continue
                failure = failure or error
                self._source.attention.add(topic)
            except BaseException:
                self._source.attention.update(todo[i:])
                raise
            if topic in self._source.changed:
                self._source.attention.add(topic)  # there is more to do once its part is on disk
            if _has_cold(topic):
                self._cold_attention[topic] = None
            self.packer.note(topic)
        if failure is not None:
            raise failure
        return done

    async def cold_pass(self) -> int:
        """Do the same for the cold files of the topics that `hot_pass` has found. Ends if the store does not answer."""
        if self._checkpoints.tiers.cold is None:
            self._cold_attention.clear()
            return 0
        done = await self.cold.pass_over()
        failure: OSError | ApiError | None = None
        todo = list(self._cold_attention)
        for i, topic in enumerate(todo):
            if i % SLICE_TOPICS == SLICE_TOPICS - 1:
                await trio.lowlevel.checkpoint()
            if topic.segment_set is not None and not topic.deleted and topic not in self._checkpoints.stuck:
                try:
                    done += await self._look_after_cold(topic, topic.segment_set)
                except (OSError, ApiError) as error:
                    if is_away(error):
                        raise
                    if not topic.deleted:
                        failure = failure or error
                        continue
            self._cold_attention.pop(topic, None)
            if topic in self._source.changed and not topic.deleted:
                self._source.attention.add(topic)
        if failure is not None:
            raise failure
        return done

    async def _find_all(self, now_ms: int) -> None:
        """Look for deleted bytes in the segments that a start has found: nothing else leads to topics that nobody
        changes."""
        for i, topic in enumerate(list(self._source.by_id.values())):
            if i % SLICE_TOPICS == SLICE_TOPICS - 1:
                await trio.lowlevel.checkpoint()
            if not topic.deleted and self._purges.look(topic, now_ms):
                self._source.attention.add(topic)
        self._found_all = True

    # -- one topic ---------------------------------------------------------------------------------------------------

    async def _look_after(self, topic: LiveTopic, segment_set: SegmentSet) -> int:
        """Do all the work on the hot files of a topic. Return the number of pieces of work."""
        done = 0
        await self._expire(topic)
        self._look_again(topic)
        if _gone(segment_set, cold=False):
            await self._drop(topic, segment_set)
            done += 1
        return done + await self._replace_all(topic, segment_set, cold=False)

    async def _look_after_cold(self, topic: LiveTopic, segment_set: SegmentSet) -> int:
        """Do all the work on the cold files of a topic. Return the number of pieces of work."""
        done = 0
        if _gone(segment_set, cold=True):
            await self._drop_cold(topic, segment_set)
            done += 1
        if any(self._cold_flags.lacks(span) for span in topic.log.stored.all()):
            done += await self._cold_flags.write(topic, segment_set)
        return done + await self._replace_all(topic, segment_set, cold=True)

    async def _replace_all(self, topic: LiveTopic, segment_set: SegmentSet, *, cold: bool) -> int:
        """Replace every segment of one tier that is worth it. Return how many segments were made. A segment that cannot
        be replaced now, or whose files fail, stops no other one. Raises the first error in the end."""
        done = 0
        tried: set[Segment] = set()
        failure: OSError | None = None
        while not topic.deleted and (group := await self._worth_it(topic, tried, cold=cold)) is not None:
            segments = {segment for span in group if (segment := _sealed(span)) is not None}
            size = None
            try:
                size = await (self._replace_cold if cold else self._replace)(topic, segment_set, group)
            except OSError as error:
                if topic in self._checkpoints.stuck or is_away(error):
                    raise
                failure = failure or error
            if size is None:
                tried |= segments
                continue
            if _gone(segment_set, cold=cold):
                await (self._drop_cold if cold else self._drop)(topic, segment_set)
            done += 1
            await trio.sleep(size / BYTES_PER_S)
        if failure is not None:
            raise failure
        return done

    def _look_again(self, topic: LiveTopic) -> None:
        """Note when time alone will cause work on this topic."""
        spans = topic.log.stored.all()
        due = []
        if topic.config.ttl_ms and spans:
            due.append(spans[0].last_ts + topic.config.ttl_ms + 1)
        newest = spans[-1].segment if spans else None
        age = limits_of(topic.config, self._settings, len(spans)).age_ms
        if age and isinstance(newest, Segment) and not newest.sealed:
            at = newest.opened_ms + age
            if at <= self._source.now_ms():
                topic.mark_changed()  # so that the next checkpoint seals the segment
            else:
                due.append(at)
        self._later.make(topic, due + self._purges.look(topic, self._source.now_ms()))

    async def _worth_it(self, topic: LiveTopic, tried: set[Segment], *, cold: bool) -> list[Span] | None:
        """Return the next spans of a tier, none of `tried`, to be replaced by one: mostly dead, or small neighbours."""
        sealed = _sealed_in(topic, tried, cold=cold)
        needed = self._file_holds.needed_segments(topic.id)
        if needed:
            self._source.attention.add(topic)  # there may be work once copies no longer point to these segments
        for span in sealed:
            segment = _sealed(span)
            if segment is None or not topic.log.stored.holds(span):
                continue  # evicted while another span was loaded
            if segment.tier == "gone" or self._cold_flags.lacks(span) or segment.first in needed:
                continue
            if _all_deleted(span):
                return [span]
            if self._purges.is_due(span, segment, self._source.now_ms()):
                return [span]
            if await self._mostly_dead(topic, span, segment):
                return [span]
        sealed = _sealed_in(topic, tried, cold=cold)
        events, size = limits_of(topic.config, self._settings, len(topic.log.stored.all())).after()
        group, total, slots = list[Span](), 0, 0
        for span in sealed:
            segment = _sealed(span)
            assert segment is not None
            small = SMALL * segment.n < events and SMALL * segment.data_bytes < size
            small = (
                small and segment.tier != "gone" and not self._cold_flags.lacks(span) and segment.first not in needed
            )
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
        """Return True if the live records of a sealed segment take up too little of it.

        Frames are longer than the summary says. Only if that could decide it are columns read, once for each change.
        """
        enough = self._settings.rewrite_live_ratio * (segment.data_bytes - segment.header_bytes)
        if span.bytes + MIN_FRAME_BYTES * span.live >= enough:
            return False
        if segment.measured is None or segment.measured[0] != span.live:
            columns = await self._loader.prepared(topic, partial(columns_if_held, topic, span))
            if columns is None:
                return False
            live = columns.dead[span.start :].translate(_ONE_IF_LIVE)
            segment.measured = (live.count(1), sum(compress(columns.frame_len[span.start :], live)))
        return segment.measured[1] < enough

    # -- dropping ----------------------------------------------------------------------------------------------------

    async def _drop(self, topic: LiveTopic, segment_set: SegmentSet) -> None:
        """Remove hot segments that the part on disk does not need. It names them until the next part, in case of a
        crash."""
        async with self._file_holds.files_of(segment_set):
            kept = {segment.first for segment in segment_set.segments if segment not in segment_set.gone}
            needed = self._file_holds.needed_segments(topic.id)
            await self._mark_emptied(topic, segment_set, cold=False)
            for segment in _gone(segment_set, cold=False):
                if segment.first in needed:
                    continue
                if segment.first not in kept:
                    await self._remove_hot_files(segment)
                self._forget_dropped(topic, segment_set, segment)
            topic.mark_changed()

    async def _drop_cold(self, topic: LiveTopic, segment_set: SegmentSet) -> None:
        """Remove cold segments that the part on disk does not need. Their hot copies are removed last."""
        cold = self._checkpoints.tiers.cold
        assert cold is not None
        async with self._file_holds.cold_files_of(segment_set):
            await self._mark_emptied(topic, segment_set, cold=True)
            for segment in _gone(segment_set, cold=True):
                kept = {other.first for other in segment_set.segments if other not in segment_set.gone}
                # Nothing points to it any more, so no new copy can begin to need it.
                if segment.first in self._file_holds.needed_segments(topic.id):
                    continue
                if segment.first not in kept:
                    names = [segment_name(segment.first, kind) for kind in COLD_KINDS]
                    await self._offload.run(Pool.COLD_FILES, partial(delete_all, cold, segment.topic_id, names))
                async with self._file_holds.files_of(segment_set):
                    if segment.first not in kept:
                        await self._remove_hot_files(segment)
                    self._forget_dropped(topic, segment_set, segment)
                    topic.mark_changed()

    async def _mark_emptied(self, topic: LiveTopic, segment_set: SegmentSet, *, cold: bool) -> None:
        """Log which segments the front has passed, for a start without a manifest. Raises ApiError if that fails."""
        front, floor = segment_set.earliest_stored, topic.log.losses.evict_floor
        passed = [segment for segment in _gone(segment_set, cold=cold) if floor < segment.end <= front]
        if passed and not topic.deleted:
            await self._file_holds.mark(topic, {EMPTIED: [[segment.first, segment.n] for segment in passed]})

    def _forget_dropped(self, topic: LiveTopic, segment_set: SegmentSet, segment: Segment) -> None:
        segment_set.segments.discard(segment)
        segment_set.gone = [other for other in segment_set.gone if other is not segment]
        self._cache.forget_tags(segment)
        log.info("segment_dropped", topic=topic.name, first=segment.first, bytes=segment.data_bytes)

    async def _remove_hot_files(self, segment: Segment) -> None:
        names = [segment_name(segment.first, kind) for kind in HOT_KINDS]
        await self._offload.run(Pool.FILES, partial(delete_all, self._checkpoints.tiers.hot, segment.topic_id, names))

    async def _clear_away(self, topic: LiveTopic) -> None:
        """Remove files of failed work that no part names."""
        if not topic.deleted and topic not in self._checkpoints.stuck:
            if topic.segment_set is None:
                topic.segment_set = SegmentSet()
            async with self._file_holds.files_of(topic.segment_set):
                if not topic.deleted:
                    await self._checkpoints.tidy(topic)
        self._file_holds.littered.pop(topic, None)

    async def _remove_directories(self, topic_id: int, segment_set: SegmentSet | None) -> None:
        tiers = self._checkpoints.tiers
        async with self._file_holds.files_of(segment_set):
            if self._file_holds.needed_segments(topic_id):  # a standby has made copies meanwhile
                self.removed.append((topic_id, segment_set))
                return
            await self._offload.run(Pool.FILES, partial(tiers.hot.delete_topic, topic_id))
            self._checkpoints.forget_files(topic_id)
            for segment in segment_set.segments if segment_set is not None else ():
                self._cache.forget_tags(segment)
        self.cold.remove_topic(topic_id)

    # -- replacing ---------------------------------------------------------------------------------------------------

    async def _replace(self, topic: LiveTopic, segment_set: SegmentSet, group: Sequence[Span]) -> int | None:
        """Write one new hot segment in the place of `group`, without records that are dead by the part on disk. Return
        its bytes.

        None if it turns out that it cannot be done now.
        """
        async with self._file_holds.replacing(topic) as there:
            if not there or not await self._is_replaceable(topic, group):
                return None
            if _can_vanish(topic, group, self._source, self._checkpoints.tiers):
                return await self._vanish(topic, group[0])
            work = await self._prepare(topic, segment_set, group)
            if work is None:
                return None
            hot = self._checkpoints.tiers.hot
            try:
                written = await self._offload.run(Pool.FILES, partial(write_replacement, hot, work))
            except BaseException:
                self._lose_track(topic, work)
                raise
            return await self._put_in_place(topic, segment_set, work, written)

    async def _replace_cold(self, topic: LiveTopic, segment_set: SegmentSet, group: Sequence[Span]) -> int | None:
        """Do the same for cold segments. The writes to the cold store do not block work on the topic's hot files."""
        tiers = self._checkpoints.tiers
        assert tiers.cold is not None
        async with self._file_holds.cold_files_of(segment_set):
            async with self._file_holds.replacing(topic) as there:
                if not there or not await self._is_replaceable(topic, group):
                    return None
                if _can_vanish(topic, group, self._source, self._checkpoints.tiers):
                    return await self._vanish(topic, group[0])
            if tiers.objects is not None:  # they do not change, so the segments are replaced at home
                is_home = await self._home_moves.bring_all(topic, [span.segment for span in group]) is not None
                return await self._replace(topic, segment_set, group) if is_home else None
            work = await self._prepare(topic, segment_set, group)
            if work is None or topic.deleted:
                return None
            copies = [segment_name(work.old[0].first, kind) for kind in ("idx.cold", "tags.cold")]
            # Derived files are removed before their `.data` is replaced (`docs/spec/crash.md` 12), the hot copies as
            # late as possible, because without them columns have to be read from the cold store.
            ready = partial(delete_all, tiers.hot, topic.id, copies)
            write = partial(write_replacement, tiers.cold, work, ready)
            try:
                written = await self._offload.run(Pool.COLD_FILES, write)
            except BaseException:
                self._lose_track(topic, work)
                self._file_holds.littered_cold[topic] = None
                raise
            try:
                async with self._file_holds.replacing(topic) as there:
                    if not there:
                        return None
                    await self._offload.run(Pool.FILES, partial(put_all, tiers.hot, topic.id, copies, written.derived))
                    return await self._put_in_place(topic, segment_set, work, written)
            except BaseException:
                self._lose_track(topic, work)
                raise

    async def _is_replaceable(self, topic: LiveTopic, group: Sequence[Span]) -> bool:
        """Store the topic's changes, then return True if nothing has happened to these spans. From here on no copies of
        them are begun: the topic is busy, or they are cold."""
        await self._checkpoints.store([topic])
        segments = [_sealed(span) for span in group]
        needed = self._file_holds.needed_segments(topic.id)
        if any(segment is not None and segment.first in needed for segment in segments):
            self._source.attention.add(topic)
            return False
        return all(topic.log.stored.holds(span) for span in group) and all(segments)

    async def _prepare(self, topic: LiveTopic, segment_set: SegmentSet, group: Sequence[Span]) -> Replacement | None:
        """Return the content to be written in the place of `group`; None if a span does not cover its segment."""
        frozen = await self._loader.prepared(topic, partial(freeze, topic, segment_set, group))
        if frozen is None:
            return None
        plan = await plan_of(frozen, self._checkpoints.work)
        old = [span.segment for span in group if isinstance(span.segment, Segment)]
        tags = [await self._loader.tags(topic, segment) for segment in old]
        work = Replacement(group, old, plan, tags, self._checkpoints.new_salt())
        is_packed = packs_new(self._settings, topic.config, old, work.data_bytes)
        return work._replace(generation=self._checkpoints.new_salt()) if is_packed else work

    def _lose_track(self, topic: LiveTopic, work: Replacement) -> None:
        """Detach the columns after a failed write: from now on only the files tell where records are."""
        for span, segment in zip(work.group, work.old, strict=True):
            if span.segment is segment:
                self._cache.forget_columns(span)
                span.detach()
            self._cache.forget_tags(segment)
            segment.flagged_meanwhile = None  # a copy in progress is of files that have been replaced

    async def _put_in_place(
        self, topic: LiveTopic, segment_set: SegmentSet, work: Replacement, written: WrittenFiles
    ) -> int | None:
        """Let the index point to the new files; the part on disk does so too when this returns."""
        group, old, plan = work.group, work.old, work.plan
        if topic.deleted or not all(topic.log.stored.holds(span) for span in group):
            return None  # evicted meanwhile: the next pass drops it
        new = Segment(
            topic.id,
            old[0].first,
            n=sum(segment.n for segment in old),
            data_bytes=work.data_bytes,
            frames=len(plan.frame_len) - plan.frame_len.count(0),
            opened_ms=old[0].opened_ms,
            sealed=True,
            tier=old[0].tier,
            salt=work.salt,
            packed=written.packed,
            sha256=written.sha256,
        )
        for span, segment in zip(group, old, strict=True):
            self._cache.forget(span, segment)
        topic.log.stored.replace(group[0].first, group[-1].end - 1, new)
        segment_set.segments.discard(old[0])
        segment_set.segments.add(new)
        await self._checkpoints.store([topic])
        log.info("segments_replaced", topic=topic.name, first=new.first, segments=len(old), bytes=new.data_bytes)
        return new.data_bytes

    async def _vanish(self, topic: LiveTopic, span: Span) -> int:
        """Remove the files of a segment of which everything was deleted, which the part on disk knows."""
        old = span.segment
        assert isinstance(old, Segment)
        await self._file_holds.mark(topic, {EMPTIED: [[span.first, span.n]]})
        if topic.deleted or not topic.log.stored.holds(span):
            return 1  # evicted meanwhile: the next pass drops it
        self._cache.forget(span, old)
        gone = Segment(topic.id, span.first, n=span.n, opened_ms=span.last_ts, sealed=True, tier="gone")
        topic.log.stored.replace(span.first, span.end - 1, gone).unflagged = None
        _join_gone(topic, gone, self._cache)
        await self._checkpoints.store([topic])
        log.info("segment_emptied", topic=topic.name, first=span.first, last=span.end - 1)
        return 1


def _join_gone(topic: LiveTopic, gone: Segment, cache: IndexCache) -> None:
    """Join a segment without files with its neighbours that have none either. Where old records stay for ever in front
    of others that come and go, their number would grow without end, and with it the part."""
    spans = topic.log.stored.all()
    lo = hi = next(k for k, span in enumerate(spans) if span.segment is gone)
    while lo and _may_join(spans[lo - 1], spans[lo : hi + 1]):
        lo -= 1
    while hi + 1 < len(spans) and _may_join(spans[hi + 1], spans[lo : hi + 1]):
        hi += 1
    if lo == hi:
        return
    for span in spans[lo : hi + 1]:
        assert isinstance(span.segment, Segment)
        cache.forget(span, span.segment)
    first, last = spans[lo], spans[hi]
    n = last.end - first.first
    joined = Segment(topic.id, first.first, n=n, opened_ms=last.last_ts, sealed=True, tier="gone")
    topic.log.stored.replace(first.first, last.end - 1, joined)


def _may_join(span: Span, others: Sequence[Span]) -> bool:
    """Return True if a span without files, which touches one end of others, may be one with them."""
    segment = span.segment
    if not isinstance(segment, Segment) or segment.tier != "gone" or not _all_deleted(span):
        return False
    touches = span.end == others[0].first or others[-1].end == span.first
    return touches and segment.n + sum(other.n for other in others) <= MOST_GONE


def _has_cold(topic: LiveTopic) -> bool:
    """Return True if a topic has cold segments, or files of some."""
    segment_set = topic.segment_set
    return segment_set is not None and any(segment.tier == "cold" for segment in segment_set.segments)


def _gone(segment_set: SegmentSet, *, cold: bool) -> list[Segment]:
    """Return the segments of a tier that the part on disk does not need any more."""
    return [segment for segment in segment_set.gone if (segment.tier == "cold") is cold]


def _sealed_in(topic: LiveTopic, tried: set[Segment], *, cold: bool) -> list[Span]:
    """Return the spans of sealed segments in a tier, without those that were tried."""
    return [
        span
        for span in topic.log.stored.all()
        if (segment := _sealed(span)) is not None and (segment.tier == "cold") is cold and segment not in tried
    ]


def _sealed(span: Span) -> Segment | None:
    segment = span.segment
    return segment if isinstance(segment, Segment) and segment.sealed else None


def _all_deleted(span: Span) -> bool:
    """Return True if all records of a span were deleted. Lost records need their entries, so they do not count."""
    return span.live == 0 and span.lost == 0


def _can_vanish(topic: LiveTopic, group: Sequence[Span], source: TopicSource, tiers: SegmentTiers) -> bool:
    """Return True if nothing of a group is left to be written, and the part on disk knows it. The topic was stored just
    now."""
    if len(group) != 1 or not _all_deleted(group[0]):
        return False
    in_bucket = _is_cold(group[0]) and tiers.objects is not None
    return not group[0].unflagged or (in_bucket and topic not in source.changed)


def _is_cold(span: Span) -> bool:
    return isinstance(span.segment, Segment) and span.segment.tier == "cold"


def _follows(left: Span, right: Span) -> bool:
    """Return True if two spans can be one: they touch, and are in the same tier."""
    a, b = left.segment, right.segment
    return left.end == right.first and isinstance(a, Segment) and isinstance(b, Segment) and a.tier == b.tier
