"""Loads columns of spans, and tags, from segments into the cache, in worker threads.

Damaged records become `corrupt` holes here and nowhere else, and only after a second read under the lock of their
files, because a segment that was replaced during the first read looks damaged. For the same reason, tags that were
taken from a `.data` that lacks live records are read again.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeVar

import trio

from topics.errors import topic_not_found
from topics.log.span import NotLoaded, Span
from topics.log.tag_match import TagMatch
from topics.log.topic_log import TopicLog
from topics.runtime.offload import Offload, Pool
from topics.storage.cache.index_cache import IndexCache
from topics.storage.segments.mended_files import has_places
from topics.storage.segments.segment_reader import (
    NO_COLD,
    ColdNeeded,
    LoadedSpan,
    SegmentTiers,
    load_columns,
    load_tag_parts,
    load_tags,
    scan_segment,
)
from topics.storage.segments.segment_repairs import SegmentRepairs
from topics.storage.segments.tag_directory import TagDirectory
from topics.storage.segments.tag_summary import key_of
from topics.storage.segments.tags_format import NO_SLOTS, SegmentTags, TagColumns
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.storage.wal.damage_notes import DamagedTopic, DamageNotes
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

PASSED: Final = 256
"""How many segments `candidates` skips or searches before other tasks run."""

NO_TAGS: Final = TagColumns(b"", array("I"), array("I"), array("I"))

ATTEMPTS: Final = 1000
"""How many loads one operation may need. Each load makes progress, so reaching the bound is an error in the program."""


class SpanOwner(DamagedTopic, Protocol):
    """The topic that spans belong to."""

    name: str
    log: TopicLog
    segment_set: SegmentSet | None

    def mark_changed(self) -> None:
        """Note that the next checkpoint has to make the topic's part again."""
        ...


class MatchingTags(NamedTuple):
    """Tags of a segment: all that match a search, and perhaps others. Positions count from the segment's first seq."""

    tags: TagColumns
    n: int
    """How many slots of the segment the tags cover. A segment that is not full may have more slots by now."""

    @classmethod
    def all_of(cls, tags: SegmentTags) -> MatchingTags:
        """Return the tags of a whole segment."""
        return cls(tags, len(tags.sizes))


class SpanLoader:
    """Loads columns and tags in worker threads. Made by the engine's loader."""

    def __init__(
        self,
        tiers: SegmentTiers,
        cache: IndexCache,
        notes: DamageNotes,
        offload: Offload,
        start_soon: Callable[..., None],
    ) -> None:
        """`start_soon(work, *args)` starts a task."""
        self.tiers = tiers
        self.repairs = SegmentRepairs(tiers.hot, offload, start_soon)
        self._without_cold = tiers._replace(cold=NO_COLD)
        self._notes = notes
        self._cache = cache
        self._offload = offload

    async def rescan(self, topic: SpanOwner, seqs: Iterable[int]) -> None:
        """Load the spans of these seqs again, from `.data` alone; damaged records become holes. The caller holds the
        lock of the files' tier. Raises OSError."""
        await self._renew(topic, seqs, _scanned)

    async def reload(self, topic: SpanOwner, seqs: Iterable[int]) -> None:
        """Load the spans of these seqs again, for a `.data` that is too short, from the file that has most of their
        columns. The caller holds the lock of the files' tier. Raises OSError."""
        await self._renew(topic, seqs, load_columns)

    async def _renew(
        self, topic: SpanOwner, seqs: Iterable[int], load: Callable[[SegmentTiers, Segment, int, int], LoadedSpan]
    ) -> None:
        for span in {span: None for seq in seqs if (span := topic.log.stored.at(seq)) is not None}:
            segment, n = span.segment, span.n
            assert isinstance(segment, Segment)
            kind = Pool.COLD_READ if segment.tier == "cold" else Pool.HOT_READ
            flaggings = -1
            while span.flaggings != flaggings:  # as in `_load_one`
                flaggings = span.flaggings
                found = await self._offload.run(kind, partial(load, self.tiers, segment, span.first, n))
            if span.loaded:
                self._cache.forget_columns(span)
                span.detach()
            await self._attach(topic, span, segment, n, found)

    async def prepared(self, topic: SpanOwner, operation: Callable[[], T]) -> T:
        """Call `operation`, load the columns that it raises NotLoaded for, and repeat until it succeeds. Return its
        result. There is no await between its success and the return. Raises `404 topic_not_found` if the topic is
        deleted, and OSError."""
        needed: dict[Span, None] = {}
        for _ in range(ATTEMPTS):
            try:
                return operation()
            except NotLoaded as missing:
                if topic.deleted:
                    raise topic_not_found(topic.name) from None
                # Load all columns that the operation has needed so far, because loading some may drop others.
                needed.update(dict.fromkeys(missing.spans))
                await self.load(topic, tuple(needed))
        raise AssertionError("an operation needs more and more columns, without end")

    async def load(self, topic: SpanOwner, spans: Iterable[Span]) -> None:
        """Load the columns of those of these spans that still belong to the topic.

        Raises OSError if the disk does not answer.
        """
        spans = tuple(spans)
        with self._cache.gathering(spans):
            for span in spans:
                await self._load_one(topic, span)

    async def _load_one(self, topic: SpanOwner, span: Span) -> None:
        segment = span.segment
        if span.loaded:
            self._cache.use_columns(span)
            return
        if not topic.log.stored.holds(span):
            return
        assert isinstance(segment, Segment)
        while True:
            n, flaggings = span.n, span.flaggings
            found = await self._read(segment, partial(load_columns, segment=segment, first=span.first, n=n))
            if found.damaged:
                found = await self._load_damaged(topic, span, segment)
            if span.flaggings == flaggings:
                break
            # Deletions were flagged during the read. They are not in `unflagged` any more, and perhaps not in the bytes
            # that were read.
        await self._attach(topic, span, segment, n, found)

    async def _load_damaged(self, topic: SpanOwner, span: Span, segment: Segment) -> LoadedSpan:
        """Load the columns of a span whose files looked damaged, after their repair. If the repair cannot tell yet, and
        only bytes of records are damaged, report no damage: a read of these records asks for the repair again."""
        call = partial(load_columns, segment=segment, first=span.first, n=span.n)
        try:
            await self.repairs.repair(topic, span, patient=False)
        except OSError:
            found = await self._under_lock(topic, segment, call)
            if not has_places(found.damaged, span.first, found.columns.frame_len):
                raise
            return found._replace(damaged=[])
        return await self._under_lock(topic, segment, call)

    async def _under_lock(self, topic: SpanOwner, segment: Segment, call: Callable[[SegmentTiers], T]) -> T:
        """Call a function about a segment under the lock of its files, after the segment looked damaged without the
        lock."""
        segment_set = topic.segment_set
        assert segment_set is not None
        if segment.tier == "cold":
            if segment_set.cold_lock.mine:
                return await self._read(segment, call)
            if segment_set.hot_lock.mine and segment_set.cold_lock.locked():
                # The holder may be waiting for this task.
                raise OSError(errno.EAGAIN, "other work holds the lock of the topic's cold files")
            async with segment_set.cold_lock:
                return await self._read(segment, call)
        if segment_set.hot_lock.mine:
            return await self._read(segment, call)
        async with segment_set.hot_lock:
            return await self._read(segment, call)

    async def _read(self, segment: Segment, call: Callable[[SegmentTiers], T]) -> T:
        """Call a function about a segment. The cold store is asked only if the hot copies are not usable, in its own
        threads."""
        if segment.tier != "cold" or self.tiers.cold is None:
            return await self._offload.run(Pool.HOT_READ, partial(call, self.tiers))
        try:
            return await self._offload.run(Pool.HOT_READ, partial(call, self._without_cold))
        except ColdNeeded:
            return await self._offload.run(Pool.COLD_READ, partial(call, self.tiers))

    async def _attach(self, topic: SpanOwner, span: Span, segment: Segment, n: int, found: LoadedSpan) -> None:
        """Attach columns, unless the span has changed meanwhile; then make damaged records `corrupt` holes. If this
        moves the front of the log, columns of later spans are loaded too."""
        if await self.prepared(topic, partial(self._attach_at_once, topic, span, segment, n, found)):
            for first, last in found.damaged:
                await self.prepared(topic, partial(self._give_up, topic, first, last))

    def _attach_at_once(self, topic: SpanOwner, span: Span, segment: Segment, n: int, found: LoadedSpan) -> bool:
        """Attach columns. Return False if the span has changed since it was read. Raises NotLoaded."""
        if topic.deleted or span.segment is not segment or span.n != n or not topic.log.stored.holds(span):
            return False
        if not span.loaded:
            if topic.log.attach(span, found.columns):
                log.warning("summary_corrected", topic=topic.name, first=span.first, last=span.end - 1)
                topic.mark_changed()
            self._cache.add_columns(span)
        return True

    def _give_up(self, topic: SpanOwner, first: int, last: int) -> None:
        """Make a `corrupt` hole of damaged records that are still live. Raises NotLoaded."""
        first, last = max(first, topic.log.earliest_seq), min(last, topic.log.head_seq)
        if first <= last and not topic.deleted:
            if self._notes.is_for_others(topic, f"record {first} of topic {topic.name!r} is damaged"):
                raise OSError(errno.EIO, "records are damaged, and fetched from the bucket")
            topic.log.add_hole(first, last, "corrupt")
            self._notes.note(topic, [(first, last)])
            log.error("records_damaged", topic=topic.name, first=first, last=last)
            topic.mark_changed()

    async def tags(self, topic: SpanOwner, segment: Segment) -> SegmentTags:
        """Return the tags of a segment. Raises OSError."""
        known = self._cache.tags(segment)
        if known is not None:
            return known
        # The number of slots as of now: a segment that is not full may grow during the read, and then its later tags
        # are missing.
        sealed = segment.sealed
        most_names = self._cache.names_for_directory(segment) if sealed else 0
        call = partial(load_tags, segment=segment, n=segment.n, most_names=most_names)
        found = await self._read(segment, call)
        if found.damaged:
            span = topic.log.stored.at(segment.end - 1)
            if span is not None and span.segment is segment:
                await self.repairs.repair(topic, span, patient=False)
            found = await self._under_lock(topic, segment, call)
        if sealed:
            self._cache.add_tags(segment, found.tags)
            if found.directory is not None:
                self._cache.add_directory(segment, found.directory)
        return found.tags

    def _without(self, spans: Sequence[Span], keys: Sequence[int]) -> int:
        """Return how many of these spans, counted from the first one, have no tag with one of these keys."""
        for i, span in enumerate(spans):
            assert isinstance(span.segment, Segment)
            if self.may_have_any(span.segment, keys):
                return i
        return len(spans)

    def may_have_any(self, segment: Segment, keys: Sequence[int]) -> bool:
        """Return False only if memory knows that no record of a segment has a tag with one of these keys."""
        directory = self._cache.directory(segment)
        return directory is None or directory.may_have_any(keys)

    def cached_slots(self, segment: Segment, name: bytes) -> array[int] | None:
        """Return which slots of a segment have a tag, given in UTF-8, ascending; None if memory does not know that."""
        tags = self._cache.tags(segment)
        if tags is not None:
            return tags.slots_of(name)
        return None if self.may_have_any(segment, (key_of(name),)) else NO_SLOTS

    async def matching_tags(self, topic: SpanOwner, segment: Segment, matches: Sequence[TagMatch]) -> MatchingTags:
        """Return tags of a segment, among them all matching ones. Raises OSError."""
        directory = self._cache.directory(segment)
        if directory is None:
            return MatchingTags.all_of(await self.tags(topic, segment))
        parts = directory.parts_of(matches)
        if parts == []:
            return MatchingTags(NO_TAGS, segment.n)
        known = self._cache.tags(segment)
        if known is not None:
            return MatchingTags.all_of(known)
        if parts is not None and not self._cache.wants_whole(directory, len(parts)):
            found = await self._read_parts(segment, directory, parts)
            if found is not None:
                return MatchingTags(found, segment.n)
            self._cache.forget_tags(segment)
        return MatchingTags.all_of(await self.tags(topic, segment))

    async def _read_parts(self, segment: Segment, directory: TagDirectory, parts: Sequence[int]) -> TagColumns | None:
        """Return parts of a segment's tags; None if the file is not in the hot directory, or does not match the
        checksums in memory."""
        call = partial(load_tag_parts, self._without_cold, segment, directory, parts)
        try:
            return await self._offload.run(Pool.HOT_READ, call)
        except ColdNeeded:
            return None

    async def stored_tags(self, topic: SpanOwner, span: Span, match: TagMatch) -> array[int] | None:
        """Return the seqs with a matching tag according to the file of a span's segment, ascending; None if the segment
        was dropped, moved or replaced while it was read. Raises OSError."""
        segment = span.segment
        assert isinstance(segment, Segment)
        tier = segment.tier
        try:
            found = await self.matching_tags(topic, segment, (match,))
        except FileNotFoundError:
            if span.segment is segment and segment.tier == tier and topic.log.stored.holds(span):
                raise
            return None
        if span.segment is not segment or not topic.log.stored.holds(span):
            return None
        return array("Q", [segment.first + i for i in found.tags.find(match)])

    async def candidates(self, topic: SpanOwner, match: TagMatch, bound: int) -> array[int]:
        """Return seqs up to `bound` that have a matching tag according to segment files, ascending. Together with
        `TopicTags.matching`, called in the step in which this returns, they are all matching seqs."""
        seqs: array[int] = array("Q")
        keys = () if match.prefix else (key_of(match.pattern.encode()),)
        done = steps = 0
        while True:
            spans = [span for span in topic.log.tags.spans_in_files(bound) if span.end > done]
            passed = spans[: self._without(spans[:PASSED], keys)] if keys else []
            done = passed[-1].end if passed else done
            steps += 1
            if len(passed) == PASSED or steps % PASSED == 0:
                await trio.lowlevel.checkpoint()
                continue
            if len(passed) == len(spans):
                return seqs
            span = spans[len(passed)]
            segment = span.segment
            assert isinstance(segment, Segment)
            tier = segment.tier
            try:
                found = await self.matching_tags(topic, segment, (match,))
            except FileNotFoundError:
                if span.segment is segment and segment.tier == tier and topic.log.stored.holds(span):
                    raise
                continue  # the segment was dropped or moved meanwhile
            if span.segment is not segment or not topic.log.stored.holds(span):
                continue  # the segment was replaced while it was read
            end = topic.log.tags.known_from
            seqs.extend(segment.first + i for i in found.tags.find(match) if done <= segment.first + i < end)
            done = max(done, segment.first + found.n)


def _scanned(tiers: SegmentTiers, segment: Segment, first: int, n: int) -> LoadedSpan:
    return scan_segment(tiers, segment, first, n).loaded
