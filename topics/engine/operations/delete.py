"""Deleting records (`docs/spec/api.md` section 6): one commit, however many records it takes.

Responsible for deciding a deletion, logging it, and carrying it out in slices where it is large. Which records it hits
is `topics.log`'s business. Deleting a whole topic is in `topics.engine.operations.topic_lifecycle`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import trio

from topics.config import Settings
from topics.engine.commits import Commits, deletion_batch, time_commit
from topics.engine.loader import Loader
from topics.engine.registry import Registry, settled
from topics.engine.topic import Commit, Gate, Topic
from topics.errors import ApiError
from topics.log.missing_columns import missing_below, missing_to_delete
from topics.log.span import NotLoaded, Span
from topics.log.tag_match import Match
from topics.model import DeleteResult, Performance
from topics.runtime.background import Background
from topics.runtime.clock import Clock
from topics.storage.wal.frames import NOTHING, Unsealed

DELETE_SLICE: Final = 10_000
"""Records a deletion marks before it lets others run: about 3 ms."""

DELETE_SPREAD: Final = 40_000
"""Seqs that such a slice is spread over at most: the columns of a few segments are needed at once."""


class Deleting:
    """See the module."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        loader: Loader,
        background: Background,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._loader = loader
        self._background = background

    async def delete_records(
        self, name: str, before_seq: int | None, match: Match | None, perf: Performance
    ) -> DeleteResult:
        """Delete records that are present now (`docs/spec/api.md` section 6); returns at the commit point. Silent for
        readers, always."""
        while True:
            topic = self._registry.topic(name)
            if not await settled(topic):
                continue
            writer = self._commits.check_writable(topic)
            if writer.queue.is_full and not topic.ephemeral:
                await self._commits.admit(writer, self._settings.admission_ms)
                continue
            seqs = await self._selected(topic, before_seq, match)
            if seqs is not None:
                break
        commit = self._commit(topic, before_seq, match, seqs)
        deleted = await commit.answer()
        time_commit(commit, perf)
        log_ = topic.log
        return DeleteResult(
            topic=name,
            deleted=deleted,
            earliest_seq=log_.earliest_seq,
            head_seq=log_.head_seq,
            count=log_.count,
            bytes=log_.bytes,
        )

    async def _selected(self, topic: Topic, before_seq: int | None, match: Match | None) -> array[int] | None:
        """The seqs that match, below `before_seq`, with the floors as of now; some of those in segments may be gone.
        None if the topic has to be looked at again, as something had to be waited for. Nothing waits before
        the return otherwise."""
        try:
            self._registry.expire(topic)
        except NotLoaded:
            await self._loader.expire(topic)
            return None
        if match is None:
            return array("Q")
        found = array("Q")
        if topic.log.tags.spans_in_files(topic.log.head_seq):
            found = await self._loader.candidates(topic, match, topic.log.head_seq)
            if topic.deleted or topic.barrier is not None or self._commits.writer(topic).failed is not None:
                return None
        bound = topic.log.head_seq
        matching = partial(topic.log.tags.matching, match, before_seq=before_seq, bound=bound)
        try:
            indexed = matching()
        except NotLoaded:
            await self._loader.prepared(topic, matching)
            return None
        end = bound if before_seq is None else min(bound, before_seq - 1)
        return array("Q", [seq for seq in found if topic.log.earliest_seq <= seq <= end]) + indexed

    def _commit(self, topic: Topic, before_seq: int | None, match: Match | None, selected: array[int]) -> Commit:
        """Decide a deletion and queue it: one step of the loop."""
        bound = topic.log.head_seq
        # Everything up to the bound is published, so what matches is known now; what of it is still there then, the
        # commit point will find.
        seqs = selected if match is not None else None
        data, count = (NOTHING, 0) if topic.ephemeral else self._frames(topic, before_seq, match, bound)
        commit = Commit(
            topic,
            data,
            count,
            topic.gate if data else Gate.HANDED,
            partial(self._publish, topic, before_seq, seqs, bound),
            self._clock.perf_ns,
        )
        commit.deletes = True
        if topic.log.stored.last_seq and seqs is None:
            assert before_seq is not None
            commit.needs = partial(self._needs_below, topic, min(before_seq, bound + 1))
        self._commits.send(commit)
        return commit

    def _frames(self, topic: Topic, before_seq: int | None, match: Match | None, bound: int) -> tuple[Unsealed, int]:
        """The batch that replay repeats the deletion from, and how many frames it has."""
        selector: dict[str, Any] = {"bound": bound}
        if before_seq is not None:
            selector["before_seq"] = before_seq
        if match is not None:
            selector["match"] = match.to_wire()
        return deletion_batch(topic, selector, self._registry.now_ms())

    @staticmethod
    def _needs_below(topic: Topic, end: int) -> tuple[Span, ...]:
        return missing_below(topic.log.index, end)

    def _publish(
        self, topic: Topic, before_seq: int | None, seqs: array[int] | None, bound: int, commit: Commit
    ) -> int:
        """The commit point: how many records that was (0 as long as it is being worked off)."""
        if seqs is None:
            assert before_seq is not None
            first = topic.log.earliest_seq
            deleted = topic.log.delete_below(before_seq, bound)
            if topic.ephemeral and deleted:
                topic.blocks.free(range(first, min(before_seq, bound + 1)))
            self._registry.account(topic)
            return deleted
        if len(seqs) <= DELETE_SLICE and not missing_to_delete(topic.log.index, seqs):
            return self._delete_slice(topic, seqs)
        topic.working = trio.Event()
        self._background.start_soon(self._work_off, topic, commit, seqs)
        return 0

    def _delete_slice(self, topic: Topic, seqs: Sequence[int]) -> int:
        deleted = topic.log.delete_seqs(seqs)
        topic.blocks.free(seqs)
        if topic.queue is not None:
            topic.queue.gone(seqs)
        self._registry.account(topic)
        return deleted

    async def _until_loaded(self, topic: Topic, part: Callable[[], int]) -> int:
        """The deletion is in the log, so it has to take effect, however long the disk takes to answer."""
        pause = 0.01
        while True:
            try:
                return await self._loader.prepared(topic, part)
            except ApiError:
                if topic.deleted:
                    return 0
                await trio.sleep(pause)
                pause = min(2 * pause, 1.0)

    async def _work_off(self, topic: Topic, commit: Commit, seqs: array[int]) -> None:
        """A very large deletion in slices. The topic's readers and later commits wait for its end, nobody else does."""
        deleted = 0
        try:
            at = 0
            while at < len(seqs):
                # A few segments at a time, so that what they need fits into memory.
                to = bisect_left(seqs, seqs[at] + DELETE_SPREAD, at, min(at + DELETE_SLICE, len(seqs)))
                part = partial(self._delete_slice, topic, seqs[at:to])
                deleted += await self._until_loaded(topic, part)
                at = to
                await trio.lowlevel.checkpoint()
        finally:
            working, topic.working = topic.working, None
            assert working is not None
            working.set()
            commit.result = deleted
            commit.done.set()
            topic.settle()
