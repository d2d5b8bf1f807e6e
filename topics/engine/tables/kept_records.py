"""The records that an append removes from a topic with `keep_per_tag` (`docs/spec/evidence.md` section 3).

Responsible for deciding it in the step that gives out seqs, for the Keep frame in the batch of the append, and for
carrying it out at the publication. `topics.log.tables` has the rules. Appends, copies, transactions and stages use
this.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

import trio

from topics.engine.loader import Loader
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.errors import ApiError
from topics.log.span import NotLoaded
from topics.log.tables.kept_tags import KeptChange, KeptTags
from topics.runtime.background import BackgroundTasks
from topics.storage.wal.frames import FrameType
from topics.storage.wal.keep_frames import keep_to_wire

TAKEN_SLICE: Final = 2_500
"""Records that are taken away before other tasks run: about a millisecond."""

TAGS_SLICE: Final = 1_000
"""Tags that are decided or published before other tasks run, in a batch of very many."""

WHOLE_TAGS: Final = 20_000
"""A batch with at most so many tags is published in one step, like its records."""

NULL: Final = b"null"

LONGEST_PAUSE_S: Final = 1.0


class KeptRecords:
    """Made once by the engine. Only `decided_in_slices` waits."""

    def __init__(self, registry: Registry, *, loader: Loader, background: BackgroundTasks) -> None:
        self._registry = registry
        self._loader = loader
        self._background = background

    # -- deciding ----------------------------------------------------------------------------------------------------

    def decide(
        self,
        topic: Topic,
        first_seq: int,
        tags: Sequence[str | None] | None,
        sizes: Sequence[int],
        datas: Sequence[bytes],
    ) -> KeptChange | None:
        """Decide what an append of these records takes away; None if the topic keeps everything and the append has
        nothing to note. One step with the seqs. The caller publishes it or takes it back (`take_back`)."""
        kept = topic.log.kept
        if tags is None or (kept is None and topic.stage is None):
            return None
        nulls = {i for i, data in enumerate(datas) if data == NULL} if NULL in datas else ()
        if kept is None:
            return _only_nulls(first_seq, tags, nulls)
        keep, front = topic.config.keep_per_tag, topic.log.earliest_seq
        return kept.decide(first_seq, tags, sizes, nulls, keep=keep, front=front)

    async def decided_in_slices(
        self,
        topic: Topic,
        first_seq: int,
        pieces: Sequence[tuple[Sequence[str | None] | None, Sequence[int], Collection[int]]],
    ) -> KeptChange:
        """Decide like `decide` about the pieces of a large batch (tags, sizes, indexes of nulls), while a barrier keeps
        others from the topic. Cancelling leaves the part that is decided: the topic must not be used any more."""
        kept = topic.log.kept
        assert kept is not None
        assert topic.barrier is not None
        change, taken = KeptChange(first_seq), list[tuple[int, int]]()
        seq = first_seq
        for tags, sizes, nulls in pieces:
            for at in range(0, len(sizes), TAGS_SLICE):
                some = tags[at : at + TAGS_SLICE] if tags is not None else ()
                here = {i - at for i in nulls if at <= i < at + TAGS_SLICE} if nulls else ()
                keep, front = topic.config.keep_per_tag, topic.log.earliest_seq
                kept.decide_piece(
                    change, seq + at, some, sizes[at : at + TAGS_SLICE], here, taken, keep=keep, front=front
                )
                await trio.lowlevel.checkpoint()
            seq += len(sizes)
        change.last_seq = seq - 1
        change.close(taken)
        return change

    @staticmethod
    def take_back(topic: Topic, change: KeptChange | None) -> None:
        """Forget the decision, because the batch is not published."""
        if change is not None and topic.log.kept is not None:
            topic.log.kept.take_back(change)

    # -- publication -------------------------------------------------------------------------------------------------

    def publish(self, commit: Commit, change: KeptChange, ts: int, watermark: int) -> None:
        """Take the records away and then evict those below the watermark: in this step, or in slices while readers and
        later commits of the topic wait. The records of the batch are published. Then calls `Registry.account`."""
        topic = commit.topic
        log, kept = topic.log, topic.log.kept
        log.add_nulls(change.nulls, ts)
        steps: deque[Callable[[], Any]] = deque()
        if kept is not None:
            if len(change.levels) <= WHOLE_TAGS:
                kept.publish(change, change.levels, log.earliest_seq)
            else:
                tags = iter(change.levels)
                while some := list(islice(tags, TAGS_SLICE)):
                    steps.append(partial(self._publish_tags, kept, change, some, topic))
            for at in range(0, len(change.seqs), TAKEN_SLICE):
                part = slice(at, at + TAKEN_SLICE)
                steps.append(partial(self._take_away, topic, change.seqs[part], change.sizes[part]))
        if watermark:
            steps.append(partial(log.evict_below, watermark, "cap"))
        self.carry_out(topic, commit, steps)

    @staticmethod
    def _publish_tags(kept: KeptTags, change: KeptChange, tags: list[str], topic: Topic) -> None:
        kept.publish(change, tags, topic.log.earliest_seq)

    def carry_out(self, topic: Topic, commit: Commit, steps: deque[Callable[[], Any]]) -> None:
        """Do some steps of the publication of a commit: at once if they are few and need nothing from disk."""
        if len(steps) <= 2:
            try:
                while steps:
                    steps[0]()
                    steps.popleft()
            except NotLoaded:
                pass
        self._registry.account(topic)
        if steps:
            topic.working = trio.Event()
            self._background.start_soon(self._work_off, topic, commit, steps)

    def _take_away(self, topic: Topic, seqs: array[int], sizes: array[int]) -> None:
        topic.log.take_away(seqs, sizes)
        topic.blocks.free(seqs)
        topic.jobs_gone(seqs)

    async def _work_off(self, topic: Topic, commit: Commit, steps: deque[Callable[[], Any]]) -> None:
        """Do the steps one after the other: they are in the log and have to take effect, however slow the disk."""
        pause = 0.01
        try:
            while steps and not topic.deleted:
                try:
                    await self._loader.prepared(topic, steps[0])
                except ApiError:
                    await trio.sleep(pause)
                    pause = min(2 * pause, LONGEST_PAUSE_S)
                    continue
                steps.popleft()
                await trio.lowlevel.checkpoint()
        finally:
            working, topic.working = topic.working, None
            assert working is not None
            if not topic.deleted:
                self._registry.account(topic)
            working.set()
            commit.finish()
            topic.settle()


def keep_frame(change: KeptChange) -> tuple[FrameType, dict[str, Any]]:
    """Return the frame that logs what a batch takes away, and which of its records are null."""
    return FrameType.KEEP, keep_to_wire(change.seqs, change.sizes, change.nulls)


def _only_nulls(first_seq: int, tags: Sequence[str | None], nulls: Collection[int]) -> KeptChange | None:
    """Return what a stage notes for its topic: which records with a tag are null."""
    if not nulls:
        return None
    change = KeptChange(first_seq)
    change.nulls.extend([first_seq + i for i in sorted(nulls) if tags[i] is not None])
    return change if change.nulls else None
