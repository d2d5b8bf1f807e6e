"""Flagging deleted records in the segments of a cold directory, and in the hot copies of their indexes.

Nothing is flagged in a bucket: the deletions stay in the part (`docs/design/bucket.md` section 8). Those of hot
segments are `deletion_flags`' business.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from topics.log.span import Span
from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import segment_name
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.segments.data_files import NotFlaggable
from topics.storage.segments.flag_patches import FlagPatch, flag_patches
from topics.storage.segments.segment_format import DELETED_FLAG
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class ColdFlags:
    """Writes the flags of cold segments. Made by the reclaimer."""

    def __init__(
        self, source: TopicSource, checkpoints: TopicCheckpoints, file_holds: FileHolds, *, offload: Offload
    ) -> None:
        self._source = source
        self._checkpoints = checkpoints
        self._file_holds = file_holds
        self._offload = offload

    def lacks(self, span: Span) -> bool:
        """Return True if deletions in a cold segment have yet to be flagged there: until then a rewrite would keep
        deleted records, for nothing."""
        is_cold = isinstance(span.segment, Segment) and span.segment.tier == "cold"
        return is_cold and bool(span.unflagged) and self._checkpoints.tiers.objects is None

    async def write(self, topic: LiveTopic, segment_set: SegmentSet) -> int:
        """Write the delete flags that cold segments lack, once the part that names the deletions is synced."""
        done = 0
        tiers = self._checkpoints.tiers
        async with self._file_holds.cold_files_of(segment_set):
            todo: list[tuple[Span, list[int]]] = []
            async with self._file_holds.files_of(segment_set):  # so that no part is being written
                if topic in self._source.changed:
                    self._source.attention.add(topic)  # however its part becomes durable
                    return 0  # some deletions are not in a part yet: try after the next checkpoint
                if not topic.deleted:
                    lacking = [span for span in topic.log.stored.all() if self.lacks(span)]
                    todo = [(span, sorted(span.unflagged or ())) for span in lacking]
            for span, seqs in todo:
                segment = span.segment
                assert isinstance(segment, Segment)
                patches = await self._offload.run(Pool.COLD_FILES, partial(flag_in_store, tiers, segment, seqs))
                if not patches:
                    continue
                async with self._file_holds.files_of(segment_set):
                    if topic.deleted:
                        return done
                    await self._offload.run(Pool.FILES, partial(_flag_copy, tiers, segment, patches))
                    span.flagged([seq for patch in patches for seq in patch.seqs])
                    topic.mark_changed()
                    done += 1
        return done


def flag_in_store(tiers: SegmentTiers, segment: Segment, seqs: Sequence[int]) -> list[FlagPatch]:
    """Write the flags of a cold segment, in `.data` and in its `.idx` in the cold store. Return the flagged seqs.
    Records that a `.data` has lost which was cut short need no flags. Nothing is flagged in one that is damaged so that
    it cannot get flags. Blocking."""
    store = tiers.cold
    assert store is not None
    index, data = segment_name(segment.first, "idx"), segment_name(segment.first, "data")

    def read(length: int, offset: int) -> bytes:
        return store.read_range(segment.topic_id, index, offset, length)

    try:
        patches = list(flag_patches(read, segment.first, seqs))
    except FileNotFoundError:  # the places of the flags are unknown: the part keeps the deletions instead
        return []
    if patches:
        length = store.length(segment.topic_id, data)
        flags = [(at, bytes((DELETED_FLAG,))) for patch in patches for at in patch.flags_at if at < length]
        try:
            if flags:
                store.patch(segment.topic_id, data, flags)
        except NotFlaggable as error:
            log.error("segment_not_flagged", topic_id=segment.topic_id, first=segment.first, problem=error.strerror)
            return []
    if patches:
        store.patch(segment.topic_id, index, [(patch.entries_at, patch.entries) for patch in patches])
    return patches


def _flag_copy(tiers: SegmentTiers, segment: Segment, patches: Sequence[FlagPatch]) -> None:
    """Write the flags in the hot copy of its `.idx`. Blocking.

    A copy that was cut short takes those that fit: readers find the damage, and read the rest in the cold store.
    """
    copy = segment_name(segment.first, "idx.cold")
    if tiers.hot.exists(segment.topic_id, copy):
        length = tiers.hot.length(segment.topic_id, copy)
        entries = [(patch.entries_at, patch.entries) for patch in patches]
        fitting = [(at, data) for at, data in entries if at + len(data) <= length]
        if fitting:
            tiers.hot.patch(segment.topic_id, copy, fitting)
