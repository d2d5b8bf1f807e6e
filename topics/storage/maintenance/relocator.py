"""The relocator: moves the oldest sealed segments of a topic from the hot to the cold directory (`docs/spec/storage.md`
section 4).

A segment is copied (`.data` last), its tier is changed in the part on disk, then the hot copy is removed. Before the
change of the tier the hot copy counts, after it the cold one. A crash in between leaves an extra copy, which the next
relocation overwrites, or `cold_removal` removes after the next start.

No lock is held while a segment is copied: the topic's hot files may be written to, flagged, rewritten and dropped.
Flags written meanwhile are written to the copy before the tier changes (`docs/spec/crash.md` 12), and a segment that
was replaced meanwhile stays where it is. So a cold store that is slow, or hangs, delays only the relocation.

If the cold store is a bucket, nothing is copied: only segments that a base has are moved, and all that is written is
the pointer to their objects (`docs/design/bucket.md` section 8). Their deleted records stay in the part's list of
deletions without a flag, because the objects may be older than the deletion, and do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

import trio

from topics.config import Settings
from topics.errors import ApiError
from topics.log.span import Span
from topics.runtime.offload import Offload, Pool
from topics.storage.cache.span_loader import SpanLoader
from topics.storage.files.datadir import segment_name
from topics.storage.maintenance.cold_flags import flag_in_store
from topics.storage.maintenance.cold_removal import is_away
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.segments.segment_pointer import SegmentPointer
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import ObjectSegments
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.storage.snapshots.snapshot import encode_manifest
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

COPY_BYTES: Final = 1 << 20
SLICE_TOPICS: Final = 256

ROUNDS: Final = 5
"""How often flags that were written meanwhile are brought to a copy before it is left for the next pass."""


class Relocator:
    """Moves segments of all topics. Made once by the engine; `run` is a task, and `pass_over` does one pass at once."""

    def __init__(
        self,
        settings: Settings,
        source: TopicSource,
        checkpoints: TopicCheckpoints,
        file_holds: FileHolds,
        loader: SpanLoader,
        *,
        offload: Offload,
    ) -> None:
        self._settings = settings
        self._loader = loader
        self._source = source
        self._checkpoints = checkpoints
        self._file_holds = file_holds
        self._offload = offload

    async def run(self) -> None:
        """Do a pass every `TOPICS_RELOCATE_MS` until cancelled. A failure is logged and tried again at the next
        pass."""
        if self._checkpoints.tiers.cold is None:
            return
        while True:
            await trio.sleep(self._settings.relocate_ms / 1000)
            try:
                await self.pass_over()
            except (OSError, ApiError) as error:
                log.warning("relocation_failed", error=str(error))

    async def pass_over(self) -> int:
        """Examine every topic with segments. Return how many segments were moved.

        Work that fails for one topic is tried again at the next pass and delays no other; the first error is raised in
        the end.
        """
        moved = 0
        failure: OSError | ApiError | None = None
        for i, topic in enumerate(list(self._source.by_id.values())):
            if topic.stage is not None:
                continue  # a commit of stages must not depend on a store that may be unavailable
            if i % SLICE_TOPICS == SLICE_TOPICS - 1:
                await trio.lowlevel.checkpoint()
            segment_set = topic.segment_set
            if segment_set is None or topic in self._checkpoints.stuck:
                continue
            try:
                while not topic.deleted and (segment := self._due(topic)) is not None:
                    if not await self._move(topic, segment_set, segment):
                        break
                    moved += 1
            except (OSError, ApiError) as error:
                if is_away(error):
                    raise
                failure = failure or error
        if failure is not None:
            raise failure
        return moved

    def _due(self, topic: LiveTopic) -> Segment | None:
        """Return the oldest hot sealed segment if more is hot than should be by count or by bytes, else None. If the
        cold store is a bucket, the oldest one that is too many and that a base has."""
        spans = topic.log.stored.all()
        most, most_bytes = self._settings.hot_retain_segments, self._settings.hot_retain_bytes
        if len(spans) <= most and not most_bytes:
            return None
        hot = [
            span.segment
            for span in spans
            if isinstance(span.segment, Segment) and span.segment.sealed and span.segment.tier == "hot"
        ]
        objects = self._checkpoints.tiers.objects
        left, left_bytes = len(hot), sum(segment.stored_bytes for segment in hot)
        for segment in hot:
            if left <= most and not (most_bytes and left_bytes > most_bytes):
                return None
            if objects is None or self._is_in_base(objects, segment):
                return segment
            left, left_bytes = left - 1, left_bytes - segment.stored_bytes
        return None

    @staticmethod
    def _is_in_base(objects: ObjectSegments, segment: Segment) -> bool:
        return segment.salt is not None and objects.find(segment.topic_id, segment.first, segment.salt) is not None

    async def _move(self, topic: LiveTopic, segment_set: SegmentSet, segment: Segment) -> bool:
        cold, objects = self._checkpoints.tiers.cold, self._checkpoints.tiers.objects
        assert cold is not None
        async with self._file_holds.cold_files_of(segment_set):
            if not self._may_move(topic, segment):
                return False
            if objects is not None:
                pointer = objects.find(topic.id, segment.first, segment.salt) if segment.salt is not None else None
                if pointer is None:
                    return False
                # The hot copy is removed: what a base said when it was made is not enough for that.
                verify = partial(objects.verify, topic.id, segment.first, pointer)
                await self._offload.run(Pool.COLD_READ, verify)
                return await self._point(topic, segment, objects, pointer)
            segment.flagged_meanwhile = set()
            self._file_holds.littered_cold[topic] = None  # until the copy counts
            try:
                if not await self._copy_and_flip(topic, segment):
                    return False
            finally:
                segment.flagged_meanwhile = None
            self._file_holds.littered_cold.pop(topic, None)
            if topic.on_disk.part is not None:
                manifest = encode_manifest(topic.on_disk.part)
                await self._offload.run(Pool.COLD_FILES, partial(cold.put, topic.id, "topic.cbor", [manifest]))
        log.info("segment_relocated", topic=topic.name, first=segment.first, bytes=segment.data_bytes)
        return True

    async def _point(
        self, topic: LiveTopic, segment: Segment, objects: ObjectSegments, pointer: SegmentPointer
    ) -> bool:
        """Have a segment in the bucket, which has it already. The caller has locked the topic's cold files. Return True
        if the pointer counts from now on; otherwise it is litter."""
        tiers = self._checkpoints.tiers
        async with self._file_holds.replacing(topic, segment) as there:
            if not there or not self._may_move(topic, segment) or segment.salt is None:
                return False
            span = await self._loader.prepared(topic, partial(_unflagged, topic, segment))
            if span is None or pointer.salt != segment.salt or pointer.data.length < segment.data_bytes:
                return False
            if objects.find(topic.id, segment.first, segment.salt) != pointer:
                return False
            await self._offload.run(Pool.FILES, partial(_keep_derived, tiers, segment))
            await self._offload.run(Pool.FILES, partial(objects.point, topic.id, segment.first, pointer))
            segment.packed = pointer.data.size if pointer.data.unpacked else segment.packed
            await self._checkpoints.store([topic], moved=segment, tier="cold")
            if topic.deleted or segment.tier != "cold":
                self._file_holds.littered[topic] = None
                return False
            await self._offload.run(Pool.FILES, partial(_remove_hot, tiers, segment))
        log.info("segment_relocated", topic=topic.name, first=segment.first, bytes=segment.data_bytes)
        return True

    async def _copy_and_flip(self, topic: LiveTopic, segment: Segment) -> bool:
        """Copy a segment and change its tier. Return True if the cold copy counts from now on; otherwise it is
        litter."""
        tiers = self._checkpoints.tiers
        assert tiers.cold is not None
        await self._offload.run(Pool.COLD_FILES, partial(_copy, tiers, segment))
        for _ in range(ROUNDS):
            async with self._file_holds.replacing(topic, segment) as there:
                if not there or not self._may_move(topic, segment) or segment.flagged_meanwhile is None:
                    return False
                late, segment.flagged_meanwhile = sorted(segment.flagged_meanwhile), set()
                if not late:
                    await self._offload.run(Pool.FILES, partial(_keep_derived, tiers, segment))
                    await self._checkpoints.store([topic], moved=segment, tier="cold")
                    if topic.deleted or segment.tier != "cold":
                        return False
                    await self._offload.run(Pool.FILES, partial(_remove_hot, tiers, segment))
                    return True
            patches = await self._offload.run(Pool.COLD_FILES, partial(flag_in_store, tiers, segment, late))
            if sum(len(patch.seqs) for patch in patches) != len(late):
                return False  # the next pass copies it again
        return False

    def _may_move(self, topic: LiveTopic, segment: Segment) -> bool:
        """Return True if the segment is still hot, and no copies point to it."""
        if topic.deleted or topic in self._checkpoints.stuck or segment.tier != "hot":
            return False
        if segment.first in self._file_holds.needed_segments(topic.id):
            return False
        return any(span.segment is segment for span in topic.log.stored.all())


def _unflagged(topic: LiveTopic, segment: Segment) -> Span | None:
    """Put everything that is deleted in a segment into the list of deletions without a flag. Return its span; None if
    there is none any more. Raises NotLoaded."""
    for span in topic.log.stored.all():
        if span.segment is segment:
            if span.deleted:
                span.unflag()
            return span
    return None


def _keep_derived(tiers: SegmentTiers, segment: Segment) -> None:
    """Copy `.idx` and `.tags` to hot files, so that only payloads are ever read from the cold store. Blocking."""
    for kind in ("idx", "tags"):
        name = segment_name(segment.first, kind)
        if tiers.hot.exists(segment.topic_id, name):
            blob = tiers.hot.read_range(segment.topic_id, name, 0, tiers.hot.length(segment.topic_id, name))
            tiers.hot.put(segment.topic_id, segment_name(segment.first, f"{kind}.cold"), [blob])


def _copy(tiers: SegmentTiers, segment: Segment) -> None:
    """Copy the segment's files to the cold store, `.data` last. Blocking."""
    assert tiers.cold is not None
    data = segment_name(segment.first, "data")
    length = segment.data_bytes
    if tiers.hot.exists(segment.topic_id, data):
        # A file that was cut short has other records. If it were refused, no later segment of the topic would move.
        length = min(length, tiers.hot.length(segment.topic_id, data))
    elif not tiers.cold.exists(segment.topic_id, data):
        # Its records are known to be damaged. In the cold tier they would seem unavailable, and reads would retry.
        raise FileNotFoundError(2, f"segment {segment.first} of topic {segment.topic_id} has no {data}")
    for kind in ("idx", "tags", "del", "data"):
        name = segment_name(segment.first, kind)
        if tiers.hot.exists(segment.topic_id, name):
            tiers.cold.put(segment.topic_id, name, _chunks(tiers, segment, name))
    if tiers.cold.length(segment.topic_id, data) < length:
        raise FileNotFoundError(2, f"the cold copy of segment {segment.first} has vanished")


def _chunks(tiers: SegmentTiers, segment: Segment, name: str) -> Iterator[bytes]:
    length = tiers.hot.stored_length(segment.topic_id, name)
    for at in range(0, length, COPY_BYTES):
        yield tiers.hot.read_stored(segment.topic_id, name, at, min(COPY_BYTES, length - at))


def _remove_hot(tiers: SegmentTiers, segment: Segment) -> None:
    """Remove the hot copy. Blocking."""
    for kind in ("data", "idx", "tags", "del"):
        tiers.hot.delete(segment.topic_id, segment_name(segment.first, kind))
