"""The files of a checkpoint: their names for a copy of the directory, and what a base in the bucket is made of
(`docs/design/holds.md`, `docs/design/bucket.md` section 4).

Both show the directory as of one moment. All shards go over to new files in one step of the loop, and these are left
out; topics are visited one after another, while their files stay as they are. The caller has the lock of checkpoints,
and a hold lasts, unless it is said otherwise.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from topics.config import Settings
from topics.evidence.topic_tree import TopicTree
from topics.runtime.offload import Offload, Pool
from topics.storage.evidence.leaf_files import LeafFile, parse_leaf_name
from topics.storage.evidence.leaf_writer import needed_files
from topics.storage.files.datadir import DataDir, segment_name
from topics.storage.files.fs import Fs, join
from topics.storage.maintenance.base_capture import CapturedSegment, CapturedTopic
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.named_files import NamedFiles
from topics.storage.maintenance.packer import is_unpacked, packs
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.segments.topic_segments import Segment
from topics.storage.store import Store
from topics.storage.wal.batches import LogCut
from topics.storage.wal.wal_files import LogPosition

SLICE_TOPICS: Final = 100
"""Topics that are examined before other tasks run, up to 1 ms."""

COPIES_OF_COLD: Final = ("idx.cold", "tags.cold", "object")
"""The files that a cold segment has in the data directory."""

_RELATIVE: Final = DataDir("")
"""Paths relative to the data directory."""


class Moment(NamedTuple):
    """The moment that the files are to show."""

    cuts: list[LogCut]
    """By shard; empty without a hold."""
    topics: list[Any]
    needed: dict[int, set[int]]
    """The segments that copies point to: first seqs by topic id."""
    needed_log: set[tuple[int, int]]
    """The files of the log that copies point to: shard and ordinal."""

    @property
    def foreign(self) -> list[tuple[int, int]]:
        """The segments of deleted topics that copies point to."""
        deleted = self.needed.keys() - {topic.id for topic in self.topics}
        return [(owner, first) for owner in sorted(deleted) for first in sorted(self.needed[owner])]


class CheckpointFiles:
    """Says which files a checkpoint consists of. Made by the compactor."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        source: TopicSource,
        checkpoints: TopicCheckpoints,
        file_holds: FileHolds,
        *,
        fs: Fs,
        offload: Offload,
    ) -> None:
        self.tiers = store.tiers
        self._settings = settings
        self._store = store
        self._file_holds = file_holds
        self._source = source
        self._checkpoints = checkpoints
        self._fs = fs
        self._offload = offload

    async def prepare_cut(self) -> None:
        """Make the next file of every shard. Raises OSError."""
        for writer in self._store.writers:
            await writer.prepare_cut()

    def cut(self, *, held: bool) -> Moment:
        """The moment is now. `held`: all shards go over to new files. Raises ApiError on a failed shard."""
        # In one step: records deleted later are not deleted in the copy, so their files have to be in it.
        cuts = [writer.cut() for writer in self._store.writers] if held else []
        topics = list(self._source.by_id.values())
        needed: dict[int, set[int]] = {}
        needed_log: set[tuple[int, int]] = set()
        for kind, owner, first in map(self._store.files.place_of, self._source.copied_files()):
            if kind == "segment":
                needed.setdefault(owner, set()).add(first)
            else:
                needed_log.add((owner, first))
        return Moment(cuts, topics, needed, needed_log)

    # -- a copy ------------------------------------------------------------------------------------------------------

    async def names(self, named: NamedFiles, *, held: bool) -> list[str]:
        """Return the files of a checkpoint and those made since. Reclaimer and relocator may be at work, unless there
        is a hold.

        `held`, during a hold: only files that are not written to while it lasts, and the hold notes them. All shards go
        over to new files at one moment, and these are left out. So copies show the directory as of that moment, however
        long copying takes. (A copy of a file that is being written may have zeros in front of bytes that a sync has
        covered; and if the log of one shard is copied before that of another, copies made meanwhile would point to
        nothing.) Raises OSError, and ApiError on a failed shard.
        """
        datadir = self._store.datadir
        if held:
            await self.prepare_cut()
        moment = self.cut(held=held)
        for cut in moment.cuts:
            await cut.wait_synced()
        names = ["FORMAT", *self._store.cold_dir.identity_files()]
        names += [datadir.relative(datadir.snapshot_path(number)) for number in sorted(named.snapshots)]
        for path in (datadir.reserve_path, datadir.restore_path):
            if await self._offload.run(Pool.FILES, partial(self._fs.exists, path)):
                names.append(datadir.relative(path))
        for writer in self._store.writers:
            end = moment.cuts[writer.shard].ordinal if moment.cuts else math.inf
            files = self._store.files.of_shard(writer.shard)
            names += [datadir.relative(file.path) for file in files if file.ordinal < end]
        sealed: list[tuple[int, int]] = []
        in_cold: dict[int, set[str]] = {}
        for i, (topic, generation, segments) in enumerate(self._topics(moment, named, held=held), 1):
            if generation is not None:
                names.append(_RELATIVE.manifest_path(topic.id, generation))
            names += self._segment_files(segments)
            # A file may be packed without the part saying so, after a crash or if a snapshot was damaged.
            sealed += [(s.topic_id, s.first) for s in segments if s.sealed and s.tier == "hot"]
            for segment in segments:
                if segment.tier == "cold":
                    in_cold.setdefault(segment.topic_id, set()).add(segment_name(segment.first, "del"))
            if i % SLICE_TOPICS == 0:
                await trio.lowlevel.checkpoint()
        names += await self._cold_deletions(in_cold)
        for topic_id, leaves in (await self._leaf_files(moment.topics)).items():
            names += [join(_RELATIVE.topic_dir(topic_id), file.name) for file in leaves]
        names += await self._offload.run(Pool.FILES, partial(self._foreign_files, moment.foreign))
        cold = [
            (topic.id, s.first)
            for topic in moment.topics
            if topic.segment_set
            for s in topic.segment_set.segments
            if s.tier == "cold"
        ]
        names += await self._offload.run(Pool.FILES, partial(self._existing, sealed, ("del",)))
        return names + await self._offload.run(Pool.FILES, partial(self._existing, cold, COPIES_OF_COLD))

    def _topics(
        self, moment: Moment, named: NamedFiles, *, held: bool
    ) -> Iterator[tuple[LiveTopic, int | None, list[Segment]]]:
        """Yield the topics that have a part, each with the generation of its manifest (None without one) and the
        segments that have files, by their first seq. A hold notes the yielded files. Raises OSError."""
        for topic in moment.topics:
            generation: int | None = None
            segments: list[Segment] = []
            if topic.on_disk.newest_part is not None:
                if topic.id in self._store.manifests:
                    generation = self._store.manifests.generation(topic.id)
                    if held:
                        generation = self._durable_generation(topic, named)
                        named.manifests[topic.id] = generation
                if topic.segment_set is not None:
                    copied = moment.needed.get(topic.id, ())
                    gone = [segment for segment in topic.segment_set.gone if segment.first not in copied]
                    kept = topic.segment_set.segments.difference(gone)
                    if held:
                        named.segments |= kept
                    segments = sorted(
                        (segment for segment in kept if segment.tier != "gone"), key=lambda segment: segment.first
                    )
            yield topic, generation, segments

    def _durable_generation(self, topic: LiveTopic, named: NamedFiles) -> int:
        """Return the generation of the manifest that a copy takes. If a topic's manifest is uncertain, that is the one
        that the hold has named before, from which memory goes on. Raises OSError if there is none."""
        if topic not in self._checkpoints.stuck:
            return self._store.manifests.generation(topic.id)
        if topic.id not in named.manifests:
            raise OSError(errno.EIO, f"it is uncertain which manifest of topic {topic.name!r} is on disk")
        return named.manifests[topic.id]

    def _segment_files(self, segments: Iterable[Segment]) -> list[str]:
        """Return the files of segments. Those in a bucket have none, but pointers (`_existing`)."""
        names = []
        for segment in segments:
            cold = segment.tier == "cold"
            if cold and self.tiers.objects is not None:
                continue
            for kind in ("data", "idx", "tags") if segment.sealed else ("data", "idx"):
                path = _RELATIVE.segment_path(segment.topic_id, segment.first, kind)
                names.append(f"cold:{path}" if cold else path)
        return names

    async def _leaf_files(self, topics: Iterable[LiveTopic]) -> dict[int, list[LeafFile]]:
        """Return the files with those leaves of Merkle trees that the parts on disk count, by topic id. Raises
        OSError."""
        trees = [(topic.id, topic.tree) for topic in topics if topic.tree is not None and topic.tree.stored.size]
        return await self._offload.run(Pool.FILES, partial(self._listed_leaves, trees)) if trees else {}

    def _listed_leaves(self, trees: Iterable[tuple[int, TopicTree]]) -> dict[int, list[LeafFile]]:
        """In a worker thread."""
        found: dict[int, list[LeafFile]] = {}
        for topic_id, tree in trees:
            try:
                names = self._fs.listdir(self._store.datadir.topic_dir(topic_id))
            except FileNotFoundError:  # the topic was deleted meanwhile
                continue
            needed = needed_files(names, tree)
            found[topic_id] = sorted(file for name in needed if (file := parse_leaf_name(name)) is not None)
        return found

    def _foreign_files(self, foreign: Iterable[tuple[int, int]]) -> list[str]:
        """Return `.data` of segments of deleted topics, or the pointers to those in a bucket. Runs in a worker
        thread."""
        names = []
        for owner, first in foreign:
            path = _RELATIVE.segment_path(owner, first, "data")
            if self._fs.exists(self._store.datadir.segment_path(owner, first, "data")) or self.tiers.cold is None:
                names.append(path)
            elif self.tiers.objects is None:
                names.append(f"cold:{path}")
            else:
                names.append(_RELATIVE.segment_path(owner, first, "object"))
        return names

    async def _cold_deletions(self, wanted: Mapping[int, Set[str]]) -> list[str]:
        """Return those of these `.del` files, by topic, that are in a cold directory. None of topics behind one that
        cannot be listed, and none if calls of the store hang: then the other files cannot be copied either."""
        cold, found = self.tiers.cold, []
        if cold is None or self.tiers.objects is not None or (self._store.cold and self._store.cold.hanging):
            return []
        with suppress(OSError):
            for topic_id, names in wanted.items():
                there = await self._offload.run(Pool.COLD_READ, partial(cold.list, topic_id))
                found += [f"cold:{join(_RELATIVE.topic_dir(topic_id), name)}" for name in there if name in names]
        return found

    def _existing(self, segments: Iterable[tuple[int, int]], kinds: Iterable[str]) -> list[str]:
        """Return those files of segments that are there, of the kinds that need not be. Runs in a worker thread."""
        datadir, kinds = self._store.datadir, tuple(kinds)
        found = []
        for topic_id, first in sorted(segments):
            paths = [datadir.segment_path(topic_id, first, kind) for kind in kinds]
            found += [datadir.relative(path) for path in paths if self._fs.exists(path)]
        return found

    # -- a base ------------------------------------------------------------------------------------------------------

    async def log_of(
        self, moment: Moment, starts: Iterable[LogPosition]
    ) -> tuple[list[LogPosition], list[tuple[int, int]]]:
        """Return where the new files of the log begin, by shard, and which older ones a replay from `starts` reads:
        those from there on, and those that copies point to. Raises ApiError on a failed shard."""
        for cut in moment.cuts:
            await cut.wait_synced()
        positions: list[LogPosition] = []
        files: list[tuple[int, int]] = []
        for writer, cut, start in zip(self._store.writers, moment.cuts, starts, strict=True):
            for file in self._store.files.of_shard(writer.shard):
                if file.ordinal == cut.ordinal:
                    positions.append(LogPosition(file.ordinal, file.head.first))
                elif file.ordinal < cut.ordinal:
                    place = (writer.shard, file.ordinal)
                    if file.ordinal >= start.ordinal or place in moment.needed_log:
                        files.append(place)
        return positions, files

    async def topics_of(self, moment: Moment, named: NamedFiles) -> list[CapturedTopic]:
        """Return the topics with their parts as they are on disk, and what files they have. Raises OSError."""
        found: list[CapturedTopic] = []
        leaves = await self._leaf_files(moment.topics)
        for i, (topic, generation, segments) in enumerate(self._topics(moment, named, held=True), 1):
            part = topic.on_disk.newest_part
            if part is not None:
                taken = tuple(map(_captured, segments))
                tree = topic.tree.identity.tree if topic.tree is not None else ""
                files = tuple(leaves.get(topic.id, ()))
                found.append(CapturedTopic(topic.id, part, generation is not None, taken, tree, files))
            if i % SLICE_TOPICS == 0:
                await trio.lowlevel.checkpoint()
        found.sort(key=lambda topic: topic.id)
        return found

    # -- without a hold ----------------------------------------------------------------------------------------------

    async def sealed(self, wanted: Callable[[Segment], bool], most: int) -> list[CapturedSegment]:
        """Return at most so many sealed segments that are `wanted` and are not being replaced now."""
        found: list[CapturedSegment] = []
        for i, topic in enumerate(list(self._source.by_id.values()), 1):
            if topic.segment_set is not None:
                # Objects do not change, so those that are packed within seconds are left to be put as packed files.
                is_packed = packs(self._settings, topic.config)
                soon = set(filter(is_unpacked, topic.segment_set.segments)) if is_packed else set()
                for segment in sorted(topic.segment_set.segments, key=lambda segment: segment.first):
                    if segment.sealed and segment not in soon and wanted(segment) and self.is_current(segment):
                        found.append(_captured(segment))
                        if len(found) == most:
                            return found
            if i % SLICE_TOPICS == 0:
                await trio.lowlevel.checkpoint()
        return found

    def is_current(self, segment: Segment) -> bool:
        """Return True if a segment has files that nobody is replacing or removing now."""
        topic = self._source.by_id.get(segment.topic_id)
        if topic is None or topic.segment_set is None or topic.deleted or segment.tier == "gone":
            return False
        segment_set = topic.segment_set
        if segment not in segment_set.segments or any(segment is one for one in segment_set.gone):
            return False
        return not self._file_holds.is_replacing(topic, segment)


def _captured(segment: Segment) -> CapturedSegment:
    return CapturedSegment(segment, segment.n, segment.data_bytes, segment.sealed, segment.tier, segment.salt)
