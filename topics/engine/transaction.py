"""A transaction from its seqs to its end: the commits of its topics, which are decided, published or undone together
(`docs/design/transactions.md`). Which changes they are is the business of `topics.engine.operations.member_commits`.

Theory of operation
-------------------
Each topic has a commit of its own, which is written to the shard of the topic and synced there. When all of them are
synced, the transaction is *decided*: each commit is ready, and when each is the first of its topic, all are published
in that step. A Decision frame then goes to each topic's log; nobody waits for it.

If a commit fails, the transaction is *undone*; a decided one too, as long as it is not published: it may wait for one
before it in a topic whose shard fails. Each other topic gets an Undone frame, and goes on when that is synced:
the seqs are published as deleted ones. Until then nobody has seen anything behind them. If the daemon ends while the
bucket is away, nothing is undone (`TopicTotals.leaves_in_doubt`): all commits fail, and the next start decides.

A transaction is *in doubt* until it is published and every Decision frame is synced. So long no checkpoint may begin
the replay of its shards behind where it was queued (`Transaction.starts`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import trio

from topics.engine.commits import Commits
from topics.engine.topic import Commit, Topic
from topics.errors import ApiError
from topics.evidence.topic_tree import blanks
from topics.storage.store import ReplayStart
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import FrameType, UnsealedFrames, encode_control


class MemberCommit(Commit):
    """The commit of one topic of a transaction. `transaction` must be set before it is queued."""

    __slots__ = ("place", "transaction", "undo")

    is_in_doubt = True

    transaction: Transaction
    place: tuple[int, int]
    """Its first and last seq, or what stands for them (`topics.storage.wal.members`)."""
    undo: Callable[[Commit], Any]
    """Called once instead of `apply` if the transaction is undone and this commit's shard still works."""

    def join(self) -> None:
        super().join()
        self.topic.undecided += 1

    def publish(self) -> None:
        super().publish()
        if self.wants_archive and self.topic.bucket_seq >= self.last_seq - self.records:
            self.topic.note_archived(self.last_seq)  # the bucket has the whole transaction, or that it was undone

    def _leave(self) -> None:
        super()._leave()
        self.topic.undecided -= 1

    def on_synced(self) -> None:
        self.synced_ns = self._clock_ns()
        self.topic.note_synced(self.last_seq)
        self.transaction.note_synced(self)

    def on_delayed(self, error: ApiError) -> None:
        """Tell all calls that wait for this transaction, in any of its topics."""
        self.transaction.delay(error)

    def finish(self) -> None:
        super().finish()
        self.transaction.note_ended()


class _UndoneFrame(ControlBatch):
    """The Undone frame of a commit. If it cannot be written, the commit fails."""

    __slots__ = ("_commit",)

    def __init__(self, commit: MemberCommit, data: UnsealedFrames, apply: Callable[[ControlBatch], None]) -> None:
        super().__init__(
            data, 1, topic_id=commit.topic_id, wants_sync=True, wants_archive=commit.wants_archive, apply=apply
        )
        self._commit = commit

    def on_failed(self, error: ApiError) -> None:
        super().on_failed(error)
        self._commit.on_failed(error)


class Transaction:
    """A transaction whose seqs are given out. `send` queues it; from then on the shard writers own it, and cancelling
    the caller changes nothing."""

    def __init__(self, members: Sequence[MemberCommit], commits: Commits, now_ms: Callable[[], int]) -> None:
        """`now_ms` is the retention clock."""
        self.members = members
        self.error: ApiError | None = None
        """The error because of which it is undone, None if it is not undone."""
        self.failed_topic: Topic | None = None
        """The topic whose commit was the first to fail."""
        self.starts: dict[int, ReplayStart] = {}
        """The synced positions of its shards when it was queued."""
        self._commits = commits
        self._now_ms = now_ms
        self._unsynced = set(map(id, members))
        self._undecided = len(members)
        """How many Decision frames are not synced yet."""
        self._is_sent = False
        self._delayed: ApiError | None = None
        self._answerable = trio.Event()
        wants_archive = any(member.wants_archive for member in members)
        for member in members:
            member.wants_archive = wants_archive  # it is decided by all of them
            member.transaction = self
            member.held = self
            member.deletes = True  # which records later commits evict depends on the outcome
            member.on_fail = partial(self._fail, member, member.on_fail)

    @property
    def _is_over(self) -> bool:
        return all(member.done.is_set() for member in self.members)

    def send(self) -> None:
        """Queue all commits: one step of the loop."""
        common = self.members[0].topic.common
        for member in self.members:
            writer = self._commits.writer(member.topic)
            if writer.shard not in self.starts:
                self.starts[writer.shard] = ReplayStart(*writer.synced_position())
        common.in_doubt[self] = None
        for member in self.members:
            self._commits.send(member)
        self._is_sent = True
        if self.error is not None:  # a stopping shard has not taken the commit
            self._undo()

    async def answer(self) -> None:
        """Wait until all commits are published. Raises the `ApiError` of the shard that has failed, or `503 read_only`
        if a shard waits for room on the disk too long; it may still be published then. Cancelling stops only the
        waiting."""
        await self._answerable.wait()
        if not self._is_over:
            assert self._delayed is not None
            raise self._delayed
        if self.error is not None:
            raise self.error

    async def ended(self) -> None:
        """Wait until all commits are published or have failed, however long that takes. Raises the `ApiError` of the
        shard that has failed. Cancelling stops only the waiting."""
        for member in self.members:
            await member.done.wait()
        if self.error is not None:
            raise self.error

    # -- what the commits report ---------------------------------------------------------------------------------------

    def note_synced(self, member: MemberCommit) -> None:
        """Note that a sync has covered one commit; decide when it was the last."""
        self._unsynced.discard(id(member))
        if self._unsynced or self.error is not None:
            return
        for one in self.members:
            one.ready = True
        for one in self.members:
            one.topic.settle()

    def note_ended(self) -> None:
        """Note that one commit is published or has failed. When all are published, log the decision: until then the
        failure of an earlier transaction in one of its topics may still undo it."""
        if not self._is_over:
            return
        self._answerable.set()
        if self.error is None:
            for one in self.members:
                batch = ControlBatch(self._decision(one), 1, topic_id=one.topic_id, apply=self._note_decided)
                self._queue(one, batch)
        self._leave_doubt()

    def delay(self, error: ApiError) -> None:
        """Tell the clients of this transaction, and of all commits behind it, that a shard waits for room."""
        self._delayed = error
        self._answerable.set()
        for member in self.members:
            for commit in member.topic.pending or ():
                Commit.on_delayed(commit, error)

    def set(self) -> None:
        """Called by a topic whose next commit belongs to this transaction and is ready. Publish all commits if each is
        the next one of its topic and memory has its columns."""
        for member in self.members:
            topic = member.topic
            if not topic.pending or topic.pending[0] is not member or topic.working is not None:
                return
        missing = [(member.topic, member.needs()) for member in self.members if member.needs is not None]
        missing = [(topic, spans) for topic, spans in missing if spans]
        for topic, spans in missing:
            topic.fetch(spans)
        if missing:
            return
        for member in self.members:
            member.held = None
        for member in self.members:
            member.topic.common.in_turn(member.topic.settle)

    # -- decisions in the log ------------------------------------------------------------------------------------------

    def _decision(self, member: MemberCommit, *, undone: bool = False) -> UnsealedFrames:
        first, last = member.place
        payload = {"first": first, "last": last, "undone": undone}
        kind = FrameType.TRANSACTION_DECISION
        return encode_control(kind, payload, topic_id=member.topic_id, ts=self._now_ms())

    def _queue(self, member: MemberCommit, batch: ControlBatch) -> None:
        """Queue a Decision frame. If the shard takes no frames any more, the transaction stays in doubt until the next
        start."""
        try:
            self._commits.writer(member.topic).submit(batch, patient=not batch.wants_sync)
        except ApiError as error:
            member.topic.common.in_turn(partial(batch.on_failed, error))

    def _note_decided(self, _batch: ControlBatch) -> None:
        self._undecided -= 1
        self._leave_doubt()

    def _leave_doubt(self) -> None:
        if not self._undecided and self._is_over:
            self.members[0].topic.common.in_doubt.pop(self, None)

    # -- failure -------------------------------------------------------------------------------------------------------

    def _fail(self, failed: MemberCommit, on_fail: Callable[[], None] | None) -> None:
        """One commit has failed: undo the others."""
        if on_fail is not None:
            on_fail()
        if self.error is not None:
            return
        self.error, self.failed_topic = failed.error, failed.topic
        if self._is_sent:
            self._undo()

    def _undo(self) -> None:
        common, error = self.members[0].topic.common, self.error
        assert error is not None
        for member in self.members:
            if member.error is None and common.leaves_in_doubt:
                common.in_turn(partial(member.on_failed, error))
            elif member.error is None:
                self._queue(member, _UndoneFrame(member, self._decision(member, undone=True), self._undone(member)))

    def _undone(self, member: MemberCommit) -> Callable[[ControlBatch], None]:
        def publish(batch: ControlBatch) -> None:
            if member.error is None:
                member.apply, member.needs, member.held = member.undo, None, None
                member.leaves = blanks(member.records)  # nobody has ever seen these records
                member.ready = True
                member.topic.settle()
            self._note_decided(batch)

        return publish
