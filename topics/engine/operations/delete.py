"""Deleting records (`docs/spec/api.md` section 6): one commit, however many records it deletes.

Responsible for deciding a deletion, logging it, and carrying out a large one in slices. `topics.log` finds the records.
Deleting a whole topic is in `topics.engine.operations.topic_lifecycle`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import trio

from topics.config import Settings
from topics.engine.commits import Commits, deletion_batch, time_commit
from topics.engine.foreseen import Foreseen
from topics.engine.loader import Loader
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError
from topics.log.missing_columns import missing_below, missing_to_delete
from topics.log.span import LIVE, NotLoaded, Span
from topics.log.tag_match import TagMatch
from topics.model import DeleteResult, Performance
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.storage.wal.frames import NOTHING, UnsealedFrames

DELETE_SLICE: Final = 2_500
"""Records that a deletion marks before it lets other tasks run: about 0.7 ms."""

DELETE_SPREAD: Final = 40_000
"""Seqs that such a slice covers at most, so that it needs the columns of only a few segments at once."""


class SeqRange(NamedTuple):
    """Seqs above `after` and below `before`; None for no bound."""

    after: int | None
    before: int | None


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
        self,
        name: str,
        before_seq: int | None,
        match: TagMatch | None,
        perf: Performance,
        *,
        after_seq: int | None = None,
        before_ts: int | None = None,
    ) -> DeleteResult:
        """Delete the present records that fulfil all given conditions (`docs/spec/api.md` section 6); returns at the
        commit point. `before_ts` is in epoch ms. Readers are never told.

        Raises 404, 429 if the shard's queue stays full, and 503. Cancelling before the commit is queued leaves nothing;
        after that the deletion takes place all the same.
        """
        while True:
            topic = self._registry.topic(name)
            if not await self._commits.settled(topic):
                continue
            self._commits.check_writable(topic)
            if self._commits.is_full(topic) and not topic.ephemeral:
                await self._commits.admit(topic, self._settings.admission_ms)
                continue
            wanted = await self._range(topic, after_seq, before_seq, before_ts)
            if wanted is None:
                continue
            seqs = await self._selected(topic, wanted, match)
            if seqs is not None:
                break
        commit = self._commit(topic, wanted, match, seqs)
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

    async def count_records(
        self,
        name: str,
        before_seq: int | None,
        match: TagMatch | None,
        *,
        after_seq: int | None = None,
        before_ts: int | None = None,
    ) -> DeleteResult:
        """Return what `delete_records` would do now, and delete nothing. Raises like it. A count over many records is
        made in steps, between which the topic may change."""
        while True:
            topic = self._registry.topic(name)
            if not await self._commits.settled(topic):
                continue
            self._commits.check_writable(topic)
            wanted = await self._range(topic, after_seq, before_seq, before_ts)
            if wanted is None:
                continue
            seqs = await self._selected(topic, wanted, match)
            if seqs is not None:
                break
        log_ = topic.log
        if not seqs:
            end = log_.head_seq + 1 if wanted.before is None else min(wanted.before, log_.head_seq + 1)
            seqs = (range(log_.earliest_seq, end),)
        count = 0
        for part in seqs:
            for at in range(0, len(part), DELETE_SPREAD):
                count += await self._loader.prepared(topic, partial(_live_among, topic, part[at : at + DELETE_SPREAD]))
                await trio.lowlevel.checkpoint()
        return DeleteResult(
            topic=name,
            deleted=count,
            earliest_seq=log_.earliest_seq,
            head_seq=log_.head_seq,
            count=log_.count,
            bytes=log_.bytes,
        )

    async def is_ready(self, topic: Topic) -> bool:
        """Evict expired records, and return True if a deletion in the topic can be decided now; then there was no await
        before the return. If False, the caller tries again later. Raises 503."""
        if topic.deleted or topic.barrier is not None or self._commits.writer(topic).queue.is_full:
            return False
        self._commits.check_writable(topic)
        try:
            self._registry.expire(topic)
        except NotLoaded:
            await self._loader.expire(topic)
            return False
        return True

    def trim(self, topic: Topic, before_seq: int) -> Commit:
        """Delete the records below `before_seq`, in a topic that `is_ready`. One step of the loop."""
        return self._commit(topic, SeqRange(None, before_seq), None, ())

    async def _range(
        self, topic: Topic, after_seq: int | None, before_seq: int | None, before_ts: int | None
    ) -> SeqRange | None:
        """Return the conditions on seq and time as a range of seqs. None if it had to wait; the caller then starts
        over."""
        if before_ts is None:
            return SeqRange(after_seq, before_seq)
        try:
            end = topic.log.index.first_at_or_after(before_ts)
        except NotLoaded:
            await self._loader.prepared(topic, partial(topic.log.index.first_at_or_after, before_ts))
            return None
        if end is None:
            end = topic.log.head_seq + 1
        return SeqRange(after_seq, end if before_seq is None else min(before_seq, end))

    async def _selected(self, topic: Topic, wanted: SeqRange, match: TagMatch | None) -> Sequence[Sequence[int]] | None:
        """Return the seqs of the range that match, after expiry, in ascending parts; some may be dead already. Empty if
        all records up to the end of the range are meant.

        None if it had to wait for something: then the caller must check the topic again. Otherwise there was no await
        before the return.
        """
        try:
            self._registry.expire(topic)
        except NotLoaded:
            await self._loader.expire(topic)
            return None
        log_, before_seq = topic.log, wanted.before
        first = max(log_.earliest_seq, (wanted.after or 0) + 1)
        end = log_.head_seq if before_seq is None else min(log_.head_seq, before_seq - 1)
        if match is None:
            if first == log_.earliest_seq:
                return ()
            parts = log_.index.parts(first, end + 1) if first <= end else ()
            return [range(span.first + a, span.first + b) for span, a, b in parts if span.live] or ((),)
        found = array("Q")
        if topic.log.tags.spans_in_files(topic.log.head_seq):
            found = await self._loader.candidates(topic, match, topic.log.head_seq)
            if topic.deleted or topic.barrier is not None or self._commits.writer(topic).failed is not None:
                return None
        bound = topic.log.head_seq
        first = max(topic.log.earliest_seq, first)
        matching = partial(topic.log.tags.matching, match, before_seq=before_seq, bound=bound)
        try:
            indexed = matching()
        except NotLoaded:
            await self._loader.prepared(topic, matching)
            return None
        end = bound if before_seq is None else min(bound, before_seq - 1)
        indexed = indexed[bisect_left(indexed, first) :]
        return (array("Q", [seq for seq in found if first <= seq <= end]) + indexed,)

    def _commit(
        self, topic: Topic, wanted: SeqRange, match: TagMatch | None, selected: Sequence[Sequence[int]]
    ) -> Commit:
        """Decide a deletion and queue it: one step of the loop."""
        bound = topic.log.head_seq
        before = bound + 1 if wanted.before is None else min(wanted.before, bound + 1)
        # Everything up to the bound is published, so the matching seqs are known now. The commit point skips records
        # that have died by then.
        data, count = (NOTHING, 0) if topic.ephemeral else self._frames(topic, wanted, match, bound)
        commit = Commit(
            topic,
            data,
            count,
            topic.commit_point if data else CommitPoint.HANDED,
            partial(self._publish, topic, before, selected, bound),
            self._clock.perf_ns,
        )
        commit.deletes = True
        commit.foreseen = Foreseen(removes=partial(_takes, selected) if selected else (before - 1).__ge__)
        if topic.log.stored.last_seq and not selected:
            commit.needs = partial(self._needs_below, topic, before)
        self._commits.send(commit)
        return commit

    def _frames(self, topic: Topic, wanted: SeqRange, match: TagMatch | None, bound: int) -> tuple[UnsealedFrames, int]:
        """Return the batch from which replay repeats the deletion, and its number of frames."""
        selector: dict[str, Any] = {"bound": bound}
        if wanted.before is not None:
            selector["before_seq"] = wanted.before
        if wanted.after is not None:
            selector["after_seq"] = wanted.after
        if match is not None:
            selector["match"] = match.to_wire()
        return deletion_batch(topic, selector, self._registry.now_ms())

    @staticmethod
    def _needs_below(topic: Topic, end: int) -> tuple[Span, ...]:
        return missing_below(topic.log.index, end)

    def _publish(
        self, topic: Topic, before_seq: int, selected: Sequence[Sequence[int]], bound: int, commit: Commit
    ) -> int:
        """The commit point. Returns how many records were deleted; 0 while a large deletion is carried out in
        slices."""
        if not selected:
            first = topic.log.earliest_seq
            deleted = topic.log.delete_below(before_seq, bound)
            if topic.ephemeral and deleted:
                topic.blocks.free(range(first, min(before_seq, bound + 1)))
            self._registry.account(topic)
            return deleted
        if sum(map(len, selected)) <= DELETE_SLICE:
            seqs = selected[0] if len(selected) == 1 else [seq for part in selected for seq in part]
            if not missing_to_delete(topic.log.index, seqs):
                return self._delete_slice(topic, seqs)
        topic.working = trio.Event()
        self._background.start_soon(self._work_off, topic, commit, selected)
        return 0

    def _delete_slice(self, topic: Topic, seqs: Sequence[int]) -> int:
        deleted = topic.log.delete_seqs(seqs)
        topic.blocks.free(seqs)
        topic.jobs_gone(seqs)
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

    async def _work_off(self, topic: Topic, commit: Commit, selected: Sequence[Sequence[int]]) -> None:
        """Carry out a very large deletion in slices. Readers and later commits of the topic wait for its end, other
        topics do not."""
        deleted = 0
        try:
            for seqs in selected:
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


def _live_among(topic: Topic, seqs: Sequence[int]) -> int:
    """Return how many of these seqs, which ascend, are live. Raises NotLoaded."""
    index = topic.log.index
    if not isinstance(seqs, range):
        return len(index.only_live(array("Q", seqs)))
    count = 0
    for span, a, b in index.parts(seqs.start, seqs.stop):
        if span.live == 0:
            continue
        if a <= span.start and b == span.n:
            count += span.live
        else:
            span.need()
            count += span.dead.count(LIVE, a, b)
    return count


def _takes(parts: Sequence[Sequence[int]], seq: int) -> bool:
    """Return True if `seq` is among these seqs, each part of which ascends."""
    return any(is_among(part, seq) for part in parts)


def is_among(seqs: Sequence[int], seq: int) -> bool:
    """Return True if `seq` is one of `seqs`, which ascend."""
    at = bisect_left(seqs, seq)
    return at < len(seqs) and seqs[at] == seq
