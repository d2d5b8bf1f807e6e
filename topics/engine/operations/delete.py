"""Deleting records (`docs/spec/api.md` section 6): one commit, however many records it deletes.

Responsible for deciding a deletion, logging it, and carrying out a large one in slices. `topics.log` finds the records.
Deleting a whole topic is in `topics.engine.operations.topic_lifecycle`.
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
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError
from topics.log.missing_columns import missing_below, missing_to_delete
from topics.log.span import NotLoaded, Span
from topics.log.tag_match import TagMatch
from topics.model import DeleteResult, Performance
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.storage.wal.frames import NOTHING, UnsealedFrames

DELETE_SLICE: Final = 10_000
"""Records that a deletion marks before it lets other tasks run: about 3 ms."""

DELETE_SPREAD: Final = 40_000
"""Seqs that such a slice covers at most, so that it needs the columns of only a few segments at once."""


class Deletions:
    """The delete call for records. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        loader: Loader,
        background: BackgroundTasks,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._loader = loader
        self._background = background

    async def delete_records(
        self, name: str, before_seq: int | None, match: TagMatch | None, perf: Performance
    ) -> DeleteResult:
        """Delete the records that are present now (`docs/spec/api.md` section 6); returns at the commit point. Readers
        are never told.

        Raises 404, 429 if the shard's queue stays full, and 503. Cancelling before the commit is queued leaves nothing;
        after that the deletion takes place all the same.
        """
        while True:
            topic = self._registry.topic(name)
            if not await self._commits.settled(topic):
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

    async def _selected(self, topic: Topic, before_seq: int | None, match: TagMatch | None) -> array[int] | None:
        """Return the matching seqs below `before_seq`, after expiry; some of those in segments may be dead already.

        None if it had to wait for something: then the caller must check the topic again. Otherwise there was no await
        before the return.
        """
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

    def _commit(self, topic: Topic, before_seq: int | None, match: TagMatch | None, selected: array[int]) -> Commit:
        """Decide a deletion and queue it: one step of the loop."""
        bound = topic.log.head_seq
        # Everything up to the bound is published, so the matching seqs are known now. The commit point skips those that
        # have died by then.
        seqs = selected if match is not None else None
        data, count = (NOTHING, 0) if topic.ephemeral else self._frames(topic, before_seq, match, bound)
        commit = Commit(
            topic,
            data,
            count,
            topic.commit_point if data else CommitPoint.HANDED,
            partial(self._publish, topic, before_seq, seqs, bound),
            self._clock.perf_ns,
        )
        commit.deletes = True
        if topic.log.stored.last_seq and seqs is None:
            assert before_seq is not None
            commit.needs = partial(self._needs_below, topic, min(before_seq, bound + 1))
        self._commits.send(commit)
        return commit

    def _frames(
        self, topic: Topic, before_seq: int | None, match: TagMatch | None, bound: int
    ) -> tuple[UnsealedFrames, int]:
        """Return the batch from which replay repeats the deletion, and its number of frames."""
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
        """The commit point. Returns how many records were deleted; 0 while a large deletion is carried out in
        slices."""
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
        """Call `part` until its columns are loaded: the deletion is in the log and has to take effect, however slow the
        disk."""
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
        """Carry out a very large deletion in slices. Readers and later commits of the topic wait for its end, other
        topics do not."""
        deleted = 0
        try:
            at = 0
            while at < len(seqs):
                # A few segments at a time, so that their columns fit into memory.
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
            commit.finish()
            topic.settle()
