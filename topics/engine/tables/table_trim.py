"""Removes surplus records of tags in slices. There are some when `keep_per_tag` is set or lowered, and after a start,
because a crash came in between or salvage has brought records back. Then evicting what caps do not allow, which were
set with it: the records of tags come before them.

Each slice is a commit of its own, so a crash leaves a part of them. A barrier keeps appends and deletions from the
topic; readers see every slice.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import trio

from topics.engine.commits import Commits, unlogged_floor
from topics.engine.loader import Loader
from topics.engine.registry import Registry
from topics.engine.tables.kept_records import TAKEN_SLICE
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError
from topics.log.missing_columns import missing_below, missing_to_take_away
from topics.log.retention import eviction_watermark
from topics.log.span import NotLoaded
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import NOTHING, FrameType, seal_batch
from topics.storage.wal.keep_frames import keep_to_wire
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

TAGS_SLICE: Final = 1_000
"""Tags that are looked at before other tasks run: a millisecond at most, if none has many records."""

RETRY_S: Final = 10.0
"""After a failure, how long the trim of a start waits before it goes on."""


class TableTrim:
    """Made once by the engine."""

    def __init__(
        self, clock: Clock, registry: Registry, *, commits: Commits, loader: Loader, background: BackgroundTasks
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._loader = loader
        self._background = background

    def note_all(self) -> None:
        """After a start: look at every topic that has a table."""
        for topic in self._registry.topics.values():
            if topic.log.kept is not None:
                self.note(topic)

    def note(self, topic: Topic) -> None:
        """Look at a topic that has got its table at, or after, a start."""
        self._background.start_soon(self._look_at, topic)

    async def trim(self, topic: Topic) -> None:
        """Take away all surplus of a topic. The caller has set a barrier, and nothing is pending. Raises the error of
        the shard; a part of the surplus may be left then."""
        kept, keep = topic.log.kept, topic.config.keep_per_tag
        if kept is None:
            return
        taken: list[tuple[int, int]] = []
        cuts: dict[str, int] = {}
        for i, tag in enumerate(kept.names(), 1):
            to = kept.surplus_to(tag, keep, topic.log.earliest_seq)
            while to:
                found = kept.oldest(tag, to, TAKEN_SLICE - len(taken), topic.log.earliest_seq)
                if found:
                    taken += found
                    cuts[tag] = found[-1][0]
                if len(taken) == TAKEN_SLICE:
                    await self._commit(topic, taken, cuts)
                    taken, cuts = [], {}
                if not found or found[-1][0] == to:
                    break
            if i % TAGS_SLICE == 0:
                await trio.lowlevel.checkpoint()
        if taken:
            await self._commit(topic, taken, cuts)

    async def _commit(self, topic: Topic, taken: Sequence[tuple[int, int]], cuts: Mapping[str, int]) -> None:
        seqs, sizes = array("Q"), array("I")
        for seq, size in sorted(taken):
            seqs.append(seq)
            sizes.append(size)
        data, count, commit_point = NOTHING, 0, CommitPoint.HANDED
        if not topic.ephemeral:
            mark = unlogged_floor(topic)
            entries = [] if mark is None else [(FrameType.EVICT_WATERMARK, mark)]
            entries.append((FrameType.KEEP, keep_to_wire(seqs, sizes, array("Q"))))
            data = seal_batch(entries, topic_id=topic.id, ts=self._registry.now_ms(), opened=False)
            count, commit_point = len(entries), topic.commit_point
        commit = Commit(
            topic, data, count, commit_point, partial(self._publish, seqs, sizes, cuts), self._clock.perf_ns
        )
        commit.deletes = True
        commit.needs = partial(missing_to_take_away, topic.log.index, seqs)
        self._commits.send(commit)
        await commit.wait()

    def _publish(self, seqs: array[int], sizes: array[int], cuts: Mapping[str, int], commit: Commit) -> None:
        topic = commit.topic
        assert topic.log.kept is not None
        for tag, to in cuts.items():
            topic.log.kept.cut(tag, to)
        topic.log.take_away(seqs, sizes)
        topic.blocks.free(seqs)
        topic.jobs_gone(seqs)
        self._registry.account(topic)

    async def evict(self, topic: Topic) -> None:
        """Evict what the caps of a topic do not allow. The caller has set a barrier, and nothing is pending. Returns
        when it is synced. Raises the error of the shard, and 503 if the disk does not answer."""
        await self._loader.expire(topic)
        if not is_over_caps(topic):
            return
        below = await self._loader.prepared(topic, partial(eviction_watermark, topic.log, topic.config, []))
        if below <= topic.log.earliest_seq:
            return
        mark = unlogged_floor(topic)
        entries = [] if mark is None else [(FrameType.EVICT_WATERMARK, mark)]
        entries.append((FrameType.EVICT_WATERMARK, {"below": below, "reason": "cap"}))
        entries = [] if topic.ephemeral else entries

        def apply(batch: ControlBatch) -> None:
            topic.on_disk.applied_end = batch.end or topic.on_disk.applied_end
            topic.change(partial(self._evict_below, topic, below))

        data = seal_batch(entries, topic_id=topic.id, ts=self._registry.now_ms(), opened=False)
        batch = ControlBatch(data, len(entries), topic_id=topic.id, wants_sync=True, apply=apply)
        self._commits.writer(topic).submit(batch)
        await batch.wait_synced()

    def _evict_below(self, topic: Topic, below: int) -> None:
        """Raises NotLoaded, and is then called again."""
        if missing := missing_below(topic.log.index, below):
            raise NotLoaded(missing)
        topic.log.evict_below(below, "cap")
        self._registry.account(topic)

    # -- after a start -----------------------------------------------------------------------------------------------

    async def _look_at(self, topic: Topic) -> None:
        """Trim a topic if any of its tags has a surplus, or it holds more than its caps allow. Tries again if the shard
        takes nothing at the moment."""
        while await self._has_surplus(topic) or (not topic.deleted and is_over_caps(topic)):
            if topic.barrier is not None:
                await topic.barrier.wait()
                continue
            try:
                self._commits.check_changeable(topic)
                topic.barrier = trio.Event()
                try:
                    await topic.drained()
                    await self.trim(topic)
                    await self.evict(topic)
                finally:
                    topic.lift_barrier()
            except ApiError as error:
                log.warning("trim_failed", topic=topic.name, error=str(error))
                await trio.sleep(RETRY_S)

    async def _has_surplus(self, topic: Topic) -> bool:
        kept = topic.log.kept
        for i, tag in enumerate(kept.names() if kept is not None else (), 1):
            if topic.deleted or topic.log.kept is not kept or kept is None:
                return False
            if kept.surplus_to(tag, topic.config.keep_per_tag, topic.log.earliest_seq):
                return True
            if i % TAGS_SLICE == 0:
                await trio.lowlevel.checkpoint()
        return False


def is_over_caps(topic: Topic) -> bool:
    """Return True if a topic with a table holds more than its caps allow."""
    log_, config = topic.log, topic.config
    if log_.kept is None or topic.working is not None:
        return False
    return bool(config.cap_records and log_.count > config.cap_records) or bool(
        config.cap_bytes and log_.bytes > config.cap_bytes
    )
