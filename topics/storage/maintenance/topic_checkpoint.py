"""Making topics durable in their own files: the part of a checkpoint that is about single topics
(`docs/design/segments.md` section 3).

Captured in one step of the loop (`topic_capture`), a topic's new records are copied from the WAL into its segments
(`small_topics`, `segment_growth`), its deletions are flagged (`deletion_flags`), its manifest is written; then, in one
step again, its index points to the segments. Nothing changes in memory before everything is on disk, so a failure
anywhere leaves only bytes that do not count. The compactor does this for all topics that have changed, reclaimer and
relocator for the one whose files they change.

Responsible for the order of these steps, for the syncs between them, and for the doubts when one of them fails.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

import trio

from topics.config import Settings
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.runtime.turns import Turns
from topics.storage.cache.index_cache import IndexCache
from topics.storage.evidence.leaf_checkpoint import LeafCheckpoint
from topics.storage.files.fs import Fs
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.storage.maintenance.deletion_flags import DeletionFlags
from topics.storage.maintenance.frame_conversion import FrameConversion
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.named_files import NOTHING, NamedFiles
from topics.storage.maintenance.segment_files import SegmentFiles
from topics.storage.maintenance.segment_growth import SegmentGrowth
from topics.storage.maintenance.small_topics import SmallTopics
from topics.storage.maintenance.topic_capture import Growth, TopicCapture
from topics.storage.maintenance.work_slice import WorkSlice
from topics.storage.recovery.leftovers import tidy_topic
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.topic_segments import Segment, SegmentSet, Tier, limits_of
from topics.storage.snapshots.manifests import FEW_FILES, ManifestWrite, UncertainManifests
from topics.storage.snapshots.snapshot import TopicPart, encode_part, is_large
from topics.storage.store import Store
from topics.storage.wal.damage_notes import DamageNotes
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

WORKING_WAIT_S: Final = 5.0
"""How long a deletion that is being worked off, or columns that a commit needs, are waited for."""

GROUP_TOPICS: Final = 256
"""Topics that are stored together, with one sync for all. They are so few that their captured objects do not start
Python's search for garbage, which would hold the loop for up to 14 ms."""


class TopicCheckpoints:
    """Stores topics in their own files. Callers hold the `hot_lock` of every topic concerned."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        source: TopicSource,
        cache: IndexCache,
        *,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        turns: Turns,
    ) -> None:
        self._settings = settings
        self._store = store
        self._source = source
        self._cache = cache
        self._fs = fs
        self._offload = offload
        self.work = WorkSlice(clock, turns)
        """Between whose slices other tasks run; the reclaimer works in them too."""
        self._files = SegmentFiles(store, fs)
        frames = FrameConversion(store, fs)
        notes = DamageNotes(lambda: store.writers, clock.now_ms)
        self._small = SmallTopics(self._files, frames, self.work, offload)
        self._growth = SegmentGrowth(source, store.tiers, self._files, frames, notes, work=self.work, offload=offload)
        self.flags = DeletionFlags(store.datadir, fs, offload)
        self._leaves = LeafCheckpoint(store.datadir, fs, offload)
        self.stuck: set[LiveTopic] = set()
        """Topics whose manifest may be on disk or not, because renaming or syncing it has failed. Files that it may
        name must not be written again before the manifest from before is on disk in its place (`Manifests.supersede`),
        which the next checkpoint tries first; until then their WAL stays."""

    def forget_files(self, topic_id: int) -> None:
        """The directory of a deleted topic is gone."""
        self._store.manifests.forget(topic_id)

    def new_salt(self) -> int:
        """The salt of a new `.data`."""
        return self._files.new_salt()

    @property
    def tiers(self) -> SegmentTiers:
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

        `moved` is a segment of theirs that counts as being in `tier` from now on. Files that a hold has `named` are
        neither written to nor replaced: new records go to new segments, deletions are flagged later, manifests are of
        the next generation. Raises OSError or ApiError (a failed shard); then nothing has changed but bytes that do not
        count. The same after a cancellation, for those topics that have not been done by then.
        """
        todo = list(topics)
        for at in range(0, len(todo), GROUP_TOPICS):
            captures: list[TopicCapture] = []
            self.work.begin()
            try:
                for topic in todo[at : at + GROUP_TOPICS]:
                    if await self._is_ready(topic):
                        captures.append(self._capture(topic, moved, tier, named))
                        await self.work.give_way()
                await self._store_captures(captures, named, sync_shards=sync_shards)
            except BaseException:
                for one in captures:
                    one.topic.mark_changed()
                raise

    async def tidy(self, topic: LiveTopic) -> None:
        """Remove hot files of this topic that its part does not name. The caller holds its `hot_lock`. Raises
        OSError."""
        segments = list(topic.segment_set.segments) if topic.segment_set is not None else []
        tidy = partial(tidy_topic, self._fs, self._store.datadir, topic.id, segments, topic.tree)
        await self._offload.run(Pool.FILES, tidy)

    # -- capturing ---------------------------------------------------------------------------------------------------

    async def _is_ready(self, topic: LiveTopic) -> bool:
        """Return True if the topic can be captured now. False: it is gone, or the manifest that counts is still
        doubtful. Raises OSError if somebody works on it for too long."""
        if topic.unsettled() is not None:
            with trio.move_on_after(WORKING_WAIT_S):
                while (event := topic.unsettled()) is not None:
                    await event.wait()
        if topic.unsettled() is not None:
            # It may wait for the lock that our caller holds, to read bytes that look damaged once more.
            raise OSError(errno.EAGAIN, f"topic {topic.name!r} is being worked on")
        if topic.deleted:
            self._source.changed.discard(topic)
            return False
        return topic not in self.stuck or await self._has_superseded(topic)

    async def _has_superseded(self, topic: LiveTopic) -> bool:
        """Make the manifest from before the doubtful one count. False: the disk does not take it now; the topic stays
        changed, so the next checkpoint tries again."""
        try:
            with trio.CancelScope(shield=True):
                part = await self._store.manifests.supersede(topic.id, topic.on_disk.newest_part)
        except OSError as error:
            log.warning("manifest_still_uncertain", topic=topic.name, error=str(error))
            return False
        topic.on_disk.replace_newest_part(part)
        self.stuck.discard(topic)
        return True

    def _capture(self, topic: LiveTopic, moved: Segment | None, tier: Tier, named: NamedFiles) -> TopicCapture:
        """The topic as of now; from here on it changes anew."""
        source = self._source
        limits = limits_of(topic.config, self._settings, len(topic.log.stored.all()))
        capture = TopicCapture(topic, source.instant, source.now_ms(), limits, moved=moved, tier=tier, named=named)
        source.changed.discard(topic)
        return capture

    # -- durability --------------------------------------------------------------------------------------------------

    async def _store_captures(self, captures: Sequence[TopicCapture], named: NamedFiles, *, sync_shards: bool) -> None:
        """Everything that follows the capture, in the order that `docs/spec/crash.md` 8 and 11 ask for."""
        if sync_shards:
            await self._store.sync_shards()
        for one in captures:
            one.place_unwritten()
            await self.work.give_way()
        async with self._synced_behind() as files:
            await self._small.write(captures, files)
            for one in captures:
                if not one.written:
                    await self._growth.write(one, files)
                    await self.flags.write(one, files)
                if one.tree is not None:
                    one.note_leaves(await self._leaves.write(one.tree, files))
        async with self._synced_behind() as files:
            await self.flags.write_indexes(captures, files)
        for one in captures:
            await self._dump_queue(one)
            for _ in one.complete_part(self._store.manifests.following(one.part.id, named.manifests)):
                await self.work.give_way()
            one.encoded = await self._encoded(one.part)
            await self.work.give_way()
        # Between a manifest that may be on disk and the memory that knows of it nobody may be cancelled.
        with trio.CancelScope(shield=True):
            await self._write_manifests(captures, named)
            for one in captures:
                await self._settle(one)
                await self.work.give_way()
            if named is NOTHING:
                grown = (one for one in captures if one.new_leaves is not None and not one.topic.deleted)
                await self._leaves.clear([one.tree for one in grown if one.tree is not None])

    @asynccontextmanager
    async def _synced_behind(self) -> AsyncIterator[UnsyncedFiles]:
        """Everything that is written to these files meanwhile, and their names, is on disk afterwards."""
        files = UnsyncedFiles(self._fs, self._store.datadir.topics_dir, most=FEW_FILES)
        try:
            yield files
            if files:
                await self._offload.run(Pool.FILES, files.sync)
        finally:
            if files.has_open:
                with trio.CancelScope(shield=True):
                    await self._offload.run(Pool.FILES, files.close)

    async def _dump_queue(self, capture: TopicCapture) -> None:
        """Say in the part which jobs there are, if it is one of a queue or of a log with groups."""
        queue, groups = capture.queue, capture.groups
        if queue is not None:
            dump = partial(queue.dump, deflates=queue.is_large)
            capture.part.queue = await self._offload.run(Pool.CPU, dump) if queue.is_large else dump()
        if groups is not None and groups.groups:
            capture.part.groups = await self._offload.run(Pool.CPU, groups.dump) if groups.is_large else groups.dump()

    async def _encoded(self, part: TopicPart) -> bytes:
        """The bytes of a part; those of a large one are put together in a worker thread."""
        return await self._offload.run(Pool.CPU, partial(encode_part, part)) if is_large(part) else encode_part(part)

    async def _write_manifests(self, captures: Sequence[TopicCapture], named: NamedFiles) -> None:
        """The manifests of those that have files; the parts of the others stand in the snapshot alone."""
        manifests = self._store.manifests
        todo = [
            ManifestWrite(one.topic.id, one.encoded, one.part.generation)
            for one in captures
            if not one.topic.deleted and (one.part.segments or one.tree is not None or one.topic.id in manifests)
        ]
        try:
            await manifests.write(todo, remove_outdated=named is NOTHING)
        except UncertainManifests as error:
            written = {one.topic_id for one in todo}
            self.stuck.update(one.topic for one in captures if one.topic.id in written)
            log.error("manifests_uncertain", topics=len(todo), error=str(error))
            raise

    # -- what it means in memory ------------------------------------------------------------------------------------

    async def _settle(self, capture: TopicCapture) -> None:
        """The index points to the segments: one step for each of them."""
        topic = capture.topic
        topic.on_disk.set_part(capture.encoded, LogPosition(*capture.part.end))
        topic.on_disk.seals_done = max(topic.on_disk.seals_done, capture.seals)
        if capture.tree is not None and capture.new_leaves is not None:
            capture.tree.tree.note_stored(*capture.new_leaves)
        if topic.deleted:
            return
        segment_set = topic.segment_set
        if segment_set is not None:
            segment_set.gone = capture.stale
            if segment_set.gone:
                self._source.attention.add(topic)  # who looked while this was written has seen nothing of it
            segment_set.earliest_stored = capture.earliest
        sealed_to = 0
        if capture.sealed is not None:
            capture.sealed.sealed, capture.sealed.sha256 = True, capture.sealed_sha256
            sealed_to = capture.sealed.end
        if capture.moved is not None:
            capture.moved.tier = capture.tier
        for span, seqs in capture.flagged:
            span.flagged(seqs)
            if isinstance(span.segment, Segment) and span.segment.flagged_meanwhile is not None:
                span.segment.flagged_meanwhile.update(seqs)
            await self.work.give_way()
        for growth in capture.growths:
            assert segment_set is not None
            self._take_over(capture, growth, segment_set)
            if growth.seals:
                sealed_to = growth.segment.end
            await self.work.give_way()
        topic.copies_stored(capture.head_seq)  # not before: others have looked at the topic in between
        if sealed_to:
            self._source.attention.add(topic)  # who looked while this was written has found no sealed segment
            topic.log.drop_tags_below(sealed_to)
            while topic.log.tidy():
                await self.work.give_way()

    def _take_over(self, capture: TopicCapture, growth: Growth, segment_set: SegmentSet) -> None:
        """The records that a segment has taken up are in it from now on."""
        stored, segment = capture.topic.log.stored, growth.segment
        at = 0
        for piece in growth.pieces:
            run = capture.runs[piece.run]
            n = piece.b - piece.a
            stored.store(
                run.first + piece.a,
                n,
                segment,
                growth.offsets[at : at + n],
                growth.frame_lens[at : at + n],
                was_dead=run.dead[piece.a : piece.b],
            )
            at += n
        grown = growth.segment_after(capture.now_ms)
        segment.n, segment.data_bytes, segment.frames = grown.n, grown.data_bytes, grown.frames
        segment.opened_ms, segment.sealed, segment.sha256 = grown.opened_ms, grown.sealed, grown.sha256
        segment_set.segments.add(segment)
        newest = stored.at(segment.end - 1)
        if newest is not None and newest.loaded:
            self._cache.add_columns(newest)
