"""Packing: sealed segments get a compressed `.data` (`docs/design/packed_segments.md`).

No byte of the unpacked form changes, so a segment may be packed at any time. Readers, copies that point to it, `.idx`
and `.tags` do not depend on it; the part on disk only notes that it was done. The file is replaced by a rename, after
which it is durable.

The packed file is made in memory, slice by slice, at `BYTES_PER_S` at most, and one at a time. Meanwhile nobody waits:
only the lock of the topic's cold files is held, against the relocator, which takes note of flags in the same way. The
lock of the hot files is taken for writing the file. If the file was flagged or replaced since it was read, the work was
for nothing, and is done again at the next pass.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

from topics.config import Settings
from topics.errors import ApiError
from topics.log.span import Span
from topics.model import TopicConfig
from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import segment_name
from topics.storage.maintenance.cold_removal import is_away
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.segments.packed_format import BLOCK_BYTES, PackedFile, PackHeader
from topics.storage.segments.segment_format import MIN_FRAME_BYTES
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

BYTES_PER_S: Final = 16 << 20
"""The most that is packed (bytes of unpacked forms per second). It takes a tenth to a third of a processor."""

SLICE_BYTES: Final = 1 << 20
"""Bytes that are read and compressed in one call, some 10 ms."""

MIN_BYTES: Final = 16 << 10
"""Segments with less are not packed: a file takes whole pages, and small neighbours are merged first."""

MAX_BYTES: Final = 128 << 20
"""Segments with more are not packed: the packed file is in memory until it is whole."""

WORTH: Final = 0.9
"""A segment that does not become smaller than this share stays as it is."""

TRIAL_BYTES: Final = 4 << 20
"""After so many bytes it is decided whether to go on."""

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})

AGAIN_S: Final = 60.0
"""How long packing rests when the disk had no room for a packed file."""

SLICE_TOPICS: Final = 256


def packs(settings: Settings, config: TopicConfig) -> bool:
    """Return True if the segments of a topic are packed."""
    return (config.compression or settings.segment_compression) == "zstd"


def is_unpacked(segment: Segment) -> bool:
    """Return True if a segment could be packed, and has not been tried."""
    is_whole = segment.sealed and segment.salt is not None and segment.read_salt == segment.salt
    return is_whole and segment.packed is None and MIN_BYTES <= segment.data_bytes <= MAX_BYTES


def packs_new(settings: Settings, config: TopicConfig, old: Sequence[Segment], data_bytes: int) -> bool:
    """Return True if a segment that replaces old ones is packed at once. Those that did not get smaller stay as they
    are."""
    return packs(settings, config) and data_bytes >= MIN_BYTES and any(segment.packed != 0 for segment in old)


class Packer:
    """Packs the segments of all topics. Made by the reclaimer, which notes topics here."""

    def __init__(
        self,
        settings: Settings,
        source: TopicSource,
        checkpoints: TopicCheckpoints,
        file_holds: FileHolds,
        new_generation: Callable[[], int],
        *,
        offload: Offload,
    ) -> None:
        self.packed_bytes = 0
        """The bytes of the segments that were packed since the start, before."""
        self.stored_bytes = 0
        """The same, afterwards."""
        self.segments = 0
        """How many were packed since the start."""
        self._settings = settings
        self._source = source
        self._checkpoints = checkpoints
        self._file_holds = file_holds
        self._new_generation = new_generation
        self._offload = offload
        self._todo: dict[LiveTopic, None] | None = None
        """None: all topics, as after a start."""
        self._failed: set[Segment] = set()
        """Segments whose files could not be read or written. They are tried again after the next start."""
        self._rests_until = -math.inf

    def note(self, topic: LiveTopic) -> None:
        """Have the next pass look at a topic."""
        if self._todo is not None:
            self._todo[topic] = None

    async def pass_over(self) -> int:
        """Pack all segments that can be packed. Return how many were. A failure for one segment delays no other; the
        first error is raised in the end. A disk without room ends the pass, and the next ones for a while."""
        if trio.current_time() < self._rests_until:
            return 0
        todo: list[Any] = list(self._source.by_id.values()) if self._todo is None else list(self._todo)
        self._todo = {}
        done = 0
        failure: OSError | ApiError | None = None
        for i, topic in enumerate(todo):
            if i % SLICE_TOPICS == SLICE_TOPICS - 1:
                await trio.lowlevel.checkpoint()
            segment_set = topic.segment_set
            if segment_set is None or topic.deleted or topic.stage is not None or topic in self._checkpoints.stuck:
                continue
            if not packs(self._settings, topic.config):
                continue
            for segment in self._due(topic):
                try:
                    done += await self._pack(topic, segment_set, segment)
                except (OSError, ApiError) as error:
                    failure = failure or error
                    if isinstance(error, OSError) and error.errno in NO_ROOM:
                        self._rests_until = trio.current_time() + AGAIN_S
                        self._todo.update(dict.fromkeys(todo[i:]))
                        raise
                    if is_away(error):
                        self.note(topic)
                        break
                    self._failed.add(segment)
        self._failed = {segment for segment in self._failed if segment.packed is None}
        if failure is not None:
            raise failure
        return done

    def _due(self, topic: LiveTopic) -> list[Segment]:
        """Return the segments of a topic that are to be packed. One that is about to be rewritten is packed then."""
        found = []
        for span in topic.log.stored.all():
            segment = span.segment
            if isinstance(segment, Segment) and self._may_pack(segment) and not self._is_mostly_dead(span, segment):
                found.append(segment)
        return found

    def _may_pack(self, segment: Segment) -> bool:
        if not is_unpacked(segment) or segment in self._failed:
            return False
        return segment.tier == "hot" or (segment.tier == "cold" and self._checkpoints.tiers.objects is None)

    def _is_mostly_dead(self, span: Span, segment: Segment) -> bool:
        live = span.bytes + MIN_FRAME_BYTES * span.live
        return not span.live or live < self._settings.rewrite_live_ratio * (segment.data_bytes - segment.header_bytes)

    async def _pack(self, topic: LiveTopic, segment_set: SegmentSet, segment: Segment) -> bool:
        """Pack one segment. Return False if it is of no use, or cannot be done now."""
        await self._file_holds.hold_over()
        cold = segment.tier == "cold"
        async with self._file_holds.cold_files_of(segment_set) if cold else segment_set.cold_lock:
            if not self._is_current(topic, segment) or (segment.tier == "cold") is not cold:
                return False
            store = self._checkpoints.tiers.of(segment)
            segment.flagged_meanwhile = set()
            try:
                packing = await self._made(store, segment, cold=cold)
                async with self._file_holds.files_of(segment_set):
                    if not self._is_current(topic, segment) or segment.flagged_meanwhile is None:
                        return False
                    if segment.flagged_meanwhile:
                        self.note(topic)
                        return False
                    if packing is None:
                        segment.packed = 0
                        topic.mark_changed()
                        return False
                    if not cold:
                        await self._offload.run(Pool.FILES, partial(_put, store, segment, packing))
                if cold:  # the relocator and the flags of cold segments need the lock that is held here
                    await self._offload.run(Pool.COLD_FILES, partial(_put, store, segment, packing))
            finally:
                segment.flagged_meanwhile = None
            segment.packed = packing.size
            topic.mark_changed()
        self.segments += 1
        self.packed_bytes += segment.data_bytes
        self.stored_bytes += packing.size
        log.info(
            "segment_packed",
            topic=topic.name,
            first=segment.first,
            bytes=segment.data_bytes,
            stored_bytes=packing.size,
        )
        return True

    def _is_current(self, topic: LiveTopic, segment: Segment) -> bool:
        if topic.deleted or topic in self._checkpoints.stuck or not self._may_pack(segment):
            return False
        return any(span.segment is segment for span in topic.log.stored.all())

    async def _made(self, store: SegmentStore, segment: Segment, *, cold: bool) -> PackedFile | None:
        """Return the packed file of a segment; None if that is of no use, or the file is damaged. Raises OSError."""
        name = segment_name(segment.first, "data")
        packing = PackedFile(PackHeader(self._new_generation(), segment.first, segment.data_bytes, BLOCK_BYTES))
        for at in range(0, segment.data_bytes, SLICE_BYTES):
            length = min(SLICE_BYTES, segment.data_bytes - at)
            read = partial(store.read_range, segment.topic_id, name, at, length)
            data = await self._offload.run(Pool.COLD_READ if cold else Pool.HOT_READ, read)
            if len(data) != length:
                return None  # the file was cut short: its records are lost, and nothing is to be saved
            await self._offload.run(Pool.CPU, partial(packing.add, data))
            is_last = at + length == segment.data_bytes
            if (is_last or at + length >= TRIAL_BYTES) and packing.size > WORTH * (at + length):
                return None
            await trio.sleep(length / BYTES_PER_S)
        return packing


def _put(store: SegmentStore, segment: Segment, packing: PackedFile) -> None:
    """Write a packed file in the place of a plain one. Blocking."""
    store.put(segment.topic_id, segment_name(segment.first, "data"), packing.finished())
