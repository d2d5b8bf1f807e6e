"""Copies segments from a bucket back into the data directory: `HomeMoves` (`docs/design/bucket.md` section 8).

The reverse of what the relocator does. `.data` is copied while only the lock of the topic's cold files is held, and
counts when all of it has the SHA-256 that the pointer says. If there is such a file already, of a directory that was
set aside (`set_aside_files`), the bucket is not asked. Then, with the topic's hot files locked, `.idx` and `.tags`
get their usual names, the tier is changed in the part on disk, and the pointer is removed. Before the change of the
tier the objects count, after it the hot files. A crash in between leaves an extra copy, which is removed after the next
start. The deletions that the part has without a flag are flagged by the next checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import segment_name
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.live_topic import LiveTopic
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.segments.segment_pointer import PointedFile, SegmentPointer
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.set_aside_files import SetAsideFiles
from topics.storage.segments.topic_segments import Segment
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

COPY_BYTES: Final = 4 << 20
"""Bytes that are read of a bucket in one call: each call has its own time limit."""

DERIVED: Final = ("idx", "tags")


class HomeMoves:
    """Brings segments home. Made once by the engine."""

    def __init__(
        self, checkpoints: TopicCheckpoints, file_holds: FileHolds, set_aside: SetAsideFiles, offload: Offload
    ) -> None:
        self._checkpoints = checkpoints
        self._set_aside = set_aside
        self._file_holds = file_holds
        self._offload = offload

    def needed(self, topic_id: int) -> set[int]:
        """Return the first seqs of those segments of a topic that copies in other topics point to."""
        return self._file_holds.needed_segments(topic_id)

    def copied(self) -> set[tuple[int, int]]:
        """Return topic id and first seq of all such segments, those of deleted topics among them."""
        return self._file_holds.copied_segments()

    async def pointer(self, topic_id: int, first: int) -> SegmentPointer:
        """Return the pointer to a segment. One that is damaged is made anew, if the bucket has it. Raises
        OSError."""
        tiers = self._checkpoints.tiers
        assert tiers.objects is not None
        assert tiers.cold is not None
        read = partial(tiers.objects.pointer, topic_id, first)
        try:
            return await self._offload.run(Pool.FILES, read)
        except OSError:
            touch = partial(tiers.cold.read_range, topic_id, segment_name(first, "data"), 0, 1)
            await self._offload.run(Pool.COLD_FILES, touch)
        return await self._offload.run(Pool.FILES, read)

    async def bring(self, topic: LiveTopic, segment: Segment, *, fetches: bool = True) -> bool:
        """Make a cold segment a hot one, with the lock. Return False if it cannot be done now. Unless it `fetches`, the
        bucket is not asked and no room is taken: a file that was set aside may be there. Raises like `bring_all`."""
        assert topic.segment_set is not None
        async with self._file_holds.cold_files_of(topic.segment_set):
            return await self._bring(topic, segment, fetches=fetches)

    async def bring_all(self, topic: LiveTopic, segments: Iterable[object]) -> int | None:
        """Make cold segments hot ones. Return their bytes; None if it cannot be done now, because one was
        replaced. The caller has the lock of the topic's cold files, in the way of `FileHolds`. Raises OSError, also if
        an object is missing or changed; ApiError."""
        size = 0
        for segment in segments:
            assert isinstance(segment, Segment)
            if not await self._bring(topic, segment):
                return None
            size += segment.data_bytes
        return size

    async def _bring(self, topic: LiveTopic, segment: Segment, *, fetches: bool = True) -> bool:
        tiers = self._checkpoints.tiers
        assert tiers.objects is not None
        if not self._may_move(topic, segment):
            return False
        pointer = await self.pointer(topic.id, segment.first)
        was_littered = topic in self._file_holds.littered_cold
        self._file_holds.littered_cold[topic] = None  # until the copy counts
        look = partial(self._set_aside.bring, tiers.hot, topic.id, segment.first, pointer.data, has_room=fetches)
        how: str | None = await self._offload.run(Pool.FILES, look)
        if how is None:
            if not fetches:
                if not was_littered:
                    self._file_holds.littered_cold.pop(topic, None)
                return False
            await self._offload.run(Pool.COLD_FILES, partial(_copy, tiers, segment, pointer.data))
            how = "fetched"
        async with self._file_holds.replacing(topic, segment) as there:
            if not there or not self._may_move(topic, segment):
                return False
            await self._offload.run(Pool.FILES, partial(_keep_derived, tiers, segment))
            segment.packed = pointer.data.size if pointer.data.unpacked else None
            await self._checkpoints.store([topic], moved=segment, tier="hot")
            if topic.deleted or segment.tier != "hot":
                self._file_holds.littered[topic] = None
                return False
            await self._offload.run(Pool.FILES, partial(_remove_cold, tiers, segment))
            self._file_holds.littered_cold.pop(topic, None)
            topic.mark_changed()  # so that the next checkpoint flags the deletions
        log.info("segment_came_home", topic=topic.name, first=segment.first, bytes=segment.data_bytes, how=how)
        return True

    def _may_move(self, topic: LiveTopic, segment: Segment) -> bool:
        """Return True if the segment is still cold. Copies may point to it: no byte of it changes."""
        if topic.deleted or topic in self._checkpoints.stuck or segment.tier != "cold":
            return False
        return any(span.segment is segment for span in topic.log.stored.all())


def _copy(tiers: SegmentTiers, segment: Segment, file: PointedFile) -> None:
    """Copy `.data`. Nothing is there after an exception. Blocking."""
    tiers.hot.put(segment.topic_id, segment_name(segment.first, "data"), _verified(tiers, segment, file))


def _verified(tiers: SegmentTiers, segment: Segment, file: PointedFile) -> Iterator[bytes]:
    """Yield the object in pieces. Raises OSError if it is not the one that the pointer names."""
    assert tiers.cold is not None
    assert tiers.objects is not None
    tiers.objects.read_anew(segment.topic_id, segment.first)
    name, digest = segment_name(segment.first, "data"), hashlib.sha256()
    for at in range(0, file.size, COPY_BYTES):
        chunk = tiers.cold.read_stored(segment.topic_id, name, at, min(COPY_BYTES, file.size - at))
        digest.update(chunk)
        yield chunk
    if digest.digest() != file.hash:
        raise OSError(errno.EIO, f"the object of segment {segment.first} of topic {segment.topic_id} has another hash")


def _keep_derived(tiers: SegmentTiers, segment: Segment) -> None:
    """Give the hot copies of `.idx` and `.tags` the names that they have beside a hot `.data`. Blocking."""
    for kind in DERIVED:
        copy, name = segment_name(segment.first, f"{kind}.cold"), segment_name(segment.first, kind)
        if tiers.hot.exists(segment.topic_id, copy):
            blob = tiers.hot.read_range(segment.topic_id, copy, 0, tiers.hot.length(segment.topic_id, copy))
            tiers.hot.put(segment.topic_id, name, [blob])
        else:
            tiers.hot.delete(segment.topic_id, name)  # one of an earlier attempt; it is made anew from `.data`


def _remove_cold(tiers: SegmentTiers, segment: Segment) -> None:
    """Remove the pointer, and the copies under their old names. Blocking."""
    assert tiers.objects is not None
    tiers.objects.forget(segment.topic_id, segment.first)
    for kind in DERIVED:
        tiers.hot.delete(segment.topic_id, segment_name(segment.first, f"{kind}.cold"))
