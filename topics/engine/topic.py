"""A live topic: its log in memory together with everything the engine keeps beside it, and the commits on their way.

A `Commit` is one decided change (append, delete) that travels through the shard's queue. Each topic publishes its
commits strictly in the order in which they were decided: a commit that has reached its commit point waits for the one
before it. So what readers see passes through the same states, in the same order, as a replay of the log does.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import trio

from topics.conditions.fences import Fences
from topics.consumers.consumers import Consumers
from topics.engine.foreseen import Foreseen
from topics.engine.group_queue import TopicGroups
from topics.engine.job_queue import JobQueue
from topics.engine.topic_totals import TopicTotals
from topics.errors import ApiError
from topics.evidence.merkle import Leaves
from topics.evidence.topic_tree import TopicTree
from topics.log.bucket_ceiling import BucketCeiling
from topics.log.copies import CopyTable
from topics.log.dedupe_window import DedupeWindow
from topics.log.seq_ceiling import SeqCeiling
from topics.log.span import NotLoaded, Span
from topics.log.stages import CommitKeys, StageTarget
from topics.log.topic_config import config_to_wire
from topics.log.topic_log import TopicLog
from topics.log.transaction_keys import TransactionKeys
from topics.model import SYNCED_CLASSES, TopicConfig
from topics.routing.origin_set import OriginSet
from topics.routing.router_state import Router
from topics.sched.audience import Audience
from topics.storage.cache.payload_cache import BlockList, PayloadCache
from topics.storage.segments.topic_segments import SegmentSet
from topics.storage.snapshots.disk_state import DiskState
from topics.storage.snapshots.snapshot import TopicPart, dump_rows
from topics.storage.wal.frames import NOTHING, UnsealedFrames, offsets_of
from topics.storage.wal.wal_files import LogPosition, WalFile

F = TypeVar("F")

Leans = Sequence[tuple[int, LogPosition]]
"""Positions in shards."""


class HeldBy(Protocol):
    """The holder of a commit that could be published otherwise."""

    def set(self) -> None:
        """The commit could be published now. May be repeated."""
        ...


class CommitPoint(IntEnum):
    """The point that a commit must reach before it may be published and acked."""

    HANDED = 0
    WRITTEN = 1
    SYNCED = 2
    ARCHIVED = 3
    """Synced, and in a round of the bucket: for `remote` topics, and above a bucket ceiling."""


class Topic:
    """One topic instance. `id` is its epoch; a topic created again under the same name is another instance."""

    __slots__ = (
        "after_fetch",
        "assigned",
        "audience",
        "barrier",
        "blocks",
        "bucket_ceiling",
        "bucket_seq",
        "ceiling",
        "changed",
        "commit_keys",
        "common",
        "config",
        "consumer_commits",
        "consumers",
        "copies",
        "counted_bytes",
        "counted_records",
        "deleted",
        "fanout",
        "fences",
        "groups",
        "id",
        "incoming",
        "keys",
        "keys_in_flight",
        "lagging",
        "last_read_ms",
        "last_ts",
        "last_write_ms",
        "log",
        "name",
        "on_disk",
        "origins",
        "pending",
        "pending_bytes",
        "pending_records",
        "queue",
        "segment_set",
        "shard",
        "stage",
        "stages",
        "synced_seq",
        "touched_ms",
        "transactions",
        "tree",
        "undecided",
        "unwritten",
        "used_at",
        "working",
    )

    def __init__(
        self, topic_id: int, name: str, config: TopicConfig, shard: int, cache: PayloadCache, common: TopicTotals
    ) -> None:
        self.id = topic_id
        self.name = name
        self.config = config
        self.shard = shard
        self.log = TopicLog()
        self.blocks = BlockList(cache)
        self.keys: DedupeWindow | None = None
        self.keys_in_flight: dict[str, trio.Event] | None = None
        self.assigned = 0
        """The last assigned seq. Records between `log.head_seq` and this seq are not published yet."""
        self.last_ts = 0
        self.ceiling = SeqCeiling()
        self.synced_seq = 0
        self.bucket_ceiling: BucketCeiling | None = None
        """How far it may give out seqs before the bucket knows of it; None if no other daemon may take over, and for
        stages, whose seqs nobody sees."""
        self.bucket_seq = 0
        """The last seq that a round in the bucket has."""
        self.pending: deque[Commit] | None = None
        self.pending_records = 0
        self.pending_bytes = 0
        self.undecided = 0
        """How many of the pending commits are those of transactions."""
        self.common = common
        self.unwritten: deque[Commit] | None = None
        """Published before they were written (`memory`), oldest first."""
        self.on_disk = DiskState()
        """The parts of it that log and snapshots have."""
        self.segment_set: SegmentSet | None = None
        """Its segments, once it has one."""
        self.barrier: trio.Event | None = None
        """Set while the topic is reconfigured or deleted: a call that would change the topic waits, then looks it up
        again."""
        self.working: trio.Event | None = None
        """Set while a large deletion is worked off in slices, or while columns are loaded that the next commit needs:
        reads of this topic wait, so that nobody sees half of it."""
        self.after_fetch: Callable[[], Any] | None = None
        self.changed: trio.Event | None = None
        """The first caller that waits for the next change makes this event; the change sets and forgets it."""
        self.audience: Audience[Any] | None = None
        """Who watches it or polls it, if anybody does."""
        self.copies: CopyTable | None = None
        """Its copies that are not in its segments yet."""
        self.incoming: dict[str, Router] | None = None
        """The routers that feed it, by name."""
        self.origins: OriginSet | None = None
        """Which records it has taken, if a router may bring each only once."""
        self.fanout: Fanout[Any] | None = None
        """Who forwards from it, if anybody does."""
        self.lagging: deque[tuple[int, Leans]] | None = None
        """Published and synced copies, by last seq, whose sources' bytes are not on disk yet; and what was synced after
        them."""
        self.queue: JobQueue | None = None
        """Its jobs, if it is a queue."""
        self.stage: StageTarget | None = None
        """Whose stage it is, if it is one."""
        self.used_at: int | None = None
        """When a stage was last used, by the clock of windows; None if that is not known."""
        self.stages: dict[str, Topic] | None = None
        """Its stages, by name."""
        self.commit_keys: CommitKeys | None = None
        """The commits of stages that it remembers."""
        self.fences: Fences | None = None
        """Its fences, if it has any."""
        self.consumers: Consumers | None = None
        """Its named consumers, once it has had one."""
        self.consumer_commits: dict[str, ConsumerCommit] | None = None
        """The unpublished event of each consumer that has one."""
        self.groups: TopicGroups | None = None
        """Its groups, once it has had one."""
        self.transactions: TransactionKeys | None = None
        """The transactions that it remembers by their keys: those whose first topic it is."""
        self.tree: TopicTree | None = None
        """Its Merkle tree, if it has evidence."""
        self.deleted = False
        self.counted_records = 0
        self.counted_bytes = 0
        self.last_write_ms: int | None = None
        self.last_read_ms: int | None = None
        self.touched_ms: int | None = None
        """When it was last consumed, by the monotonic clock (for the automatic priority)."""

    def __hash__(self) -> int:
        return self.id  # not an address: sets of topics have the same order whenever the same things happen

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def ephemeral(self) -> bool:
        """Return True if its records are in memory only."""
        return self.config.durability == "ephemeral"

    @property
    def is_remote(self) -> bool:
        """Return True if its changes count only when a round in the bucket has them."""
        return self.config.durability == "remote"

    @property
    def waits_for_rounds(self) -> bool:
        """Return True if the next append has to be in the bucket before it counts."""
        ceiling = self.bucket_ceiling
        return self.is_remote or (ceiling is not None and self.assigned >= ceiling.archived)

    @property
    def commit_point(self) -> CommitPoint:
        """The commit point of the topic's class."""
        durability = self.config.durability
        if durability in SYNCED_CLASSES:
            return CommitPoint.SYNCED
        return CommitPoint.WRITTEN if durability == "disk" else CommitPoint.HANDED

    @property
    def quiet(self) -> bool:
        """True if no commit is pending: every decided commit is published and written."""
        return not self.pending and not self.unwritten

    def wake(self) -> None:
        """Tell all that wait for a change: tasks that work on the topic at once, readers when it is the topic's
        turn."""
        self.tell_workers()
        if self.audience is not None and self.audience.news() and self.common.news is not None:
            self.common.news(self)
        self.wake_routers()

    def wake_routers(self) -> None:
        """Tell the routers from it that there may be more records."""
        fanout = self.fanout
        if fanout is not None:
            fanout.behind = False
            if fanout.audience.news() and self.common.news is not None:
                self.common.news(fanout)

    def tell_workers(self) -> None:
        """Tell the tasks that work on the topic of a change that no reader sees."""
        if self.changed is not None:
            self.changed.set()
            self.changed = None

    def followed(self) -> Audience[Any]:
        """The topic's audience, made where there is none."""
        if self.audience is None:
            self.audience = Audience()
        return self.audience

    def drop_empty_audience(self) -> None:
        """A topic that nobody follows keeps nothing for it."""
        if self.audience is not None and self.audience.empty:
            self.audience = None

    def close_audience(self) -> None:
        """The topic is gone: everybody is to be told."""
        if self.queue is not None:
            self.queue.end()
        if self.groups is not None:
            self.groups.end()
        if self.audience is not None:
            for consumer in self.audience.consumers:
                self.audience.set_due(consumer)
        self.wake()

    def next_change(self) -> trio.Event:
        """Return the event that is set when something about the topic changes."""
        if self.changed is None:
            self.changed = trio.Event()
        return self.changed

    def mark_changed(self) -> None:
        """Its part has to be made anew."""
        self.common.changed.add(self)
        if self.segment_set is not None:
            self.common.attention.add(self)

    def dump_part(self) -> TopicPart:
        """Its part as of now, but for what its files and its jobs are. That of an `ephemeral` topic gives up all
        records that are in memory only."""
        end = self.on_disk.applied_end or LogPosition(0, 0)
        return TopicPart(
            id=self.id,
            name=self.name,
            config=config_to_wire(self.config),
            end=[end.ordinal, end.offset],
            ceiling=self.ceiling.highest,
            bucket_ceiling=self.bucket_ceiling.queued if self.bucket_ceiling is not None else 0,
            last_ts=self.last_ts,
            last_write=self.last_write_ms,
            last_read=self.last_read_ms,
            log=self.log.dump_lost() if self.ephemeral else self.log.dump(raw=False),
            keys=self.keys.dump() if self.keys is not None else [],
            routers=[router.dump() for router in self.incoming.values()] if self.incoming else [],
            origins=self.origins.dump() if self.origins is not None else None,
            stage=[*self.stage, self.used_at] if self.stage is not None else None,
            commits=self.commit_keys.dump() if self.commit_keys is not None else [],
            fences=dict(self.fences.published) if self.fences is not None else {},
            consumers=self.consumers.dump(dump_rows) if self.consumers is not None else None,
            transactions=self.transactions.dump() if self.transactions is not None else [],
        )

    def set_queue(self, queue: JobQueue) -> None:
        """These are its jobs from here on."""
        self.queue = queue
        self.log.on_lost = partial(queue.lost, live_among=self.log.index.only_live)

    def set_groups(self, groups: TopicGroups) -> None:
        """These are its groups from here on."""
        self.groups = groups
        self.log.on_lost = partial(groups.lost, live_among=self.log.index.only_live)

    def jobs_gone(self, seqs: Sequence[int]) -> None:
        """Forget the jobs of records that were deleted: those of a queue, or of groups."""
        if self.queue is not None:
            self.queue.gone(seqs)
        if self.groups is not None:
            self.groups.gone(seqs)

    def copy_table(self) -> CopyTable:
        """Its copies, made where there are none."""
        if self.copies is None:
            self.copies = CopyTable()
        return self.copies

    def copies_stored(self, seq: int) -> None:
        """Copies up to `seq` need nobody else's bytes any more. Those of an `ephemeral` topic never did; where they
        came from is known as long as they are there."""
        if self.copies is None:
            return
        self.copies.forget_files(seq)
        self.copies.forget_to(min(seq, self.log.earliest_seq - 1) if self.ephemeral else seq)
        if not self.copies.needs_files:
            self.common.copying.pop(self, None)
        if self.copies.empty:
            self.copies = None

    def note_synced(self, last_seq: int, leans: Leans = ()) -> None:
        """A sync has covered the records up to `last_seq`. Copies count only when the bytes they are made of are on
        disk as well (`docs/spec/crash.md` 16): until then neither they nor what follows."""
        is_synced = self.common.is_synced
        missing = [lean for lean in leans if is_synced is not None and not is_synced(*lean)]
        if not missing and not self.lagging:
            self.synced_seq = max(self.synced_seq, last_seq)
            return
        if self.lagging is None:
            self.lagging = deque()
        if not leans and self.lagging and not self.lagging[-1][1]:
            self.lagging.pop()  # what follows it was synced as well
        self.lagging.append((last_seq, leans))
        for shard, _ in missing:
            assert self.common.when_synced is not None
            self.common.when_synced(shard, self._look_again)

    def _look_again(self) -> None:
        assert self.common.is_synced is not None
        before = self.synced_seq
        while self.lagging:
            last_seq, leans = self.lagging[0]
            if not all(self.common.is_synced(shard, end) for shard, end in leans):
                break
            self.synced_seq = max(self.synced_seq, last_seq)
            self.lagging.popleft()
        if not self.lagging:
            self.lagging = None
        if self.synced_seq > before:
            self.tell_of_sync()

    @property
    def decided_seq(self) -> int:
        """The last assigned seq that is not of a transaction in doubt, nor behind a record of one."""
        if self.undecided:
            for commit in self.pending or ():
                if commit.records and commit.is_in_doubt:
                    return commit.last_seq - commit.records
        return self.assigned

    def note_archived(self, seq: int) -> None:
        """A round in the bucket has everything up to `seq`."""
        if seq > self.bucket_seq:
            self.bucket_seq = seq
            self.tell_of_sync()

    def tell_of_sync(self) -> None:
        """More is on disk, or in the bucket: tell the readers that want only such records."""
        if self.audience is not None and self.audience.strong:
            self.wake()
        elif self.fanout is not None and self.fanout.behind:
            self.wake_routers()

    def settle(self) -> None:
        """Publish the ready commits, in order. A commit that needs columns that are not in memory waits for them."""
        pending = self.pending
        while pending and pending[0].ready and self.working is None:
            if pending[0].held is not None:
                pending[0].held.set()
                break
            missing = pending[0].needs() if pending[0].needs is not None else ()
            if missing:
                self.fetch(missing)
                break
            commit = pending.popleft()
            commit.publish()
        self._note_delay()
        self.wake()

    def unsettled(self) -> trio.Event | None:
        """The event to wait for before the topic shows all that the disk holds of it; None if it does already."""
        if self.working is not None:
            return self.working
        return self.pending[0].done if self.pending and self.pending[0].ready else None

    def _note_delay(self) -> None:
        if self.unsettled() is not None:
            self.common.delayed[self] = None
        elif self.common.delayed:
            self.common.delayed.pop(self, None)

    def change(self, apply: Callable[[], Any]) -> None:
        """Apply a change that may need columns: now, or once they are there, before anybody sees the topic again."""
        try:
            apply()
        except NotLoaded as missing:
            self.after_fetch = apply
            self.fetch(missing.spans)

    def fetch(self, spans: tuple[Span, ...]) -> None:
        """Load columns that the next commit needs. Nobody reads the topic meanwhile; `resume` ends it."""
        assert self.working is None
        assert self.common.fetch is not None
        self.working = trio.Event()
        self._note_delay()
        self.common.fetch(self, spans)

    def resume(self) -> None:
        """The columns are there: go on."""
        working, self.working = self.working, None
        assert working is not None
        apply, self.after_fetch = self.after_fetch, None
        if apply is not None:
            self.change(apply)
        if self.working is None:
            self.settle()
        self._note_delay()
        working.set()

    async def drained(self) -> None:
        """Wait until no commit is pending. The caller has set a barrier, so no new commit comes."""
        while not self.quiet or self.working is not None:
            await self.next_change().wait()

    def lift_barrier(self) -> None:
        """Let those on who want to change the topic; they look it up again."""
        barrier, self.barrier = self.barrier, None
        assert barrier is not None
        barrier.set()
        self.wake()


class ConsumerCommit(NamedTuple):
    """An unpublished event of a consumer, and the consumer's position after it."""

    commit: Commit
    seq: int


class Fanout(Generic[F]):
    """The routers from one topic, scheduled by themselves: their priority may be lowered while that of watchers is
    not."""

    __slots__ = ("audience", "behind", "id", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.id = -topic.id  # not that of its topic, which may wait beside it
        self.behind = False
        """Some readers wait until published records are written or synced."""
        self.audience: Audience[F] = Audience()

    def __hash__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return self is other


class Commit:
    """A change on its way through a shard. The writer owns it from `submit` on; a caller who goes away changes
    nothing."""

    __slots__ = (
        "_clock_ns",
        "answerable",
        "apply",
        "bodies",
        "bytes",
        "commit_point",
        "data",
        "delayed",
        "deletes",
        "done",
        "end",
        "error",
        "file",
        "foreseen",
        "forwards",
        "frame_lens",
        "frames",
        "held",
        "last_seq",
        "leans",
        "leaves",
        "needs",
        "offset",
        "on_fail",
        "patient",
        "published",
        "ready",
        "records",
        "result",
        "sizes",
        "submitted_ns",
        "synced_ns",
        "topic",
        "topic_id",
        "wants_archive",
        "wants_sync",
        "written_ns",
    )

    is_urgent = True
    is_in_doubt = False
    """True if it may yet be undone."""

    def __init__(
        self,
        topic: Topic,
        data: UnsealedFrames,
        frames: int,
        commit_point: CommitPoint,
        apply: Callable[[Commit], Any],
        clock_ns: Callable[[], int],
        *,
        last_seq: int = 0,
        records: int = 0,
        sizes: array[int] | None = None,
        frame_lens: array[int] | None = None,
        nbytes: int | None = None,
    ) -> None:
        """`nbytes` is the sum of `sizes`, where it is known."""
        self.topic = topic
        self.topic_id = topic.id
        self.data = data
        self.frames = frames
        self.wants_sync = commit_point >= CommitPoint.SYNCED
        self.wants_archive = commit_point is CommitPoint.ARCHIVED or (self.wants_sync and topic.is_remote)
        self.commit_point = commit_point = min(commit_point, CommitPoint.SYNCED)  # whose sync is told later then
        self.apply = apply
        """Called once, in order, at the commit point; its return value is the result."""
        self.on_fail: Callable[[], None] | None = None
        self.needs: Callable[[], tuple[Span, ...]] | None = None
        """Returns the spans that must be loaded before `apply` can be called."""
        self.held: HeldBy | None = None
        """The holder of the commit, if it may not be published yet. `set` tells the holder that the commit could be
        published; the holder then finishes its work, puts None here and settles."""
        self.forwards = False
        """True if a router has made it, so no client waits for it."""
        self.deletes = False
        """True if it removes records."""
        self.foreseen: Foreseen | None = None
        """Its effects on the tags of its topic, if it is an append, a copy or a deletion that has any."""
        self.patient = False
        """True if it has no waiters, so it may be written a little later."""
        self.leans: Leans = ()
        """Where the bytes end that its copies are made of."""
        self.leaves: Leaves | None = None
        """The leaves of its records, if they are not those of its Append frames."""
        self.bodies: Sequence[bytes] = ()
        """The bodies of its Append frames once they are written, if its topic has evidence."""
        self.last_seq = last_seq
        self.records = records
        self.sizes = sizes
        self.frame_lens = frame_lens
        if nbytes is None:
            nbytes = sum(sizes) if sizes is not None else 0
        self.bytes = nbytes
        self.file = 0
        self.offset = 0
        self.end: LogPosition | None = None
        self.ready = commit_point is CommitPoint.HANDED
        self.published = False
        self.error: ApiError | None = None
        self.delayed: ApiError | None = None
        self.answerable: trio.Event | None = None
        """The event that its client waits for in `answer`: set when the commit is done, or delayed. A cancel scope
        around the wait would cost five times as much."""
        self.result: Any = None
        self.done = trio.Event()
        self._clock_ns = clock_ns
        self.submitted_ns = clock_ns()
        self.written_ns = 0
        self.synced_ns = 0

    def join(self) -> None:
        """Take the place at the end of the topic's pending commits."""
        topic = self.topic
        if topic.pending is None:
            topic.pending = deque()
        topic.pending.append(self)
        topic.pending_records += self.records
        topic.pending_bytes += self.bytes
        topic.common.bytes_on_the_way += self.bytes
        if not self.forwards:
            topic.common.committed_ns = self.submitted_ns
        if self.records and topic.common.unarchived is not None:
            topic.common.unarchived[topic] = None

    def on_written(self, file: WalFile, offset: int) -> None:
        topic = self.topic
        self.file, self.offset = file.file_id, offset
        self.end = LogPosition(file.ordinal, offset + len(self.data))
        if topic.tree is not None and self.leaves is None:
            self.bodies = self.data.bodies[: self.records]
        self.data = NOTHING
        self.written_ns = file.written_ns
        topic.blocks.written_seq = max(topic.blocks.written_seq, self.last_seq)
        if self.published:
            topic.on_disk.applied_end = self.end
            if topic.unwritten and topic.unwritten[0] is self:
                topic.unwritten.popleft()
            if self.frame_lens is not None:
                first_seq = self.last_seq - self.records + 1
                topic.log.index.place(first_seq, self.file, offsets_of(offset, self.frame_lens))
            topic.mark_changed()
            topic.tell_workers()
            if topic.fanout is not None and topic.fanout.behind:
                topic.wake_routers()
        elif self.commit_point is not CommitPoint.SYNCED:
            self.ready = True
            topic.settle()

    def on_synced(self) -> None:
        self.synced_ns = self._clock_ns()
        topic = self.topic
        topic.note_synced(self.last_seq, self.leans)
        if not self.ready:
            self.ready = True
            topic.settle()
        else:
            topic.tell_of_sync()

    def also_on_fail(self, call: Callable[[], None]) -> None:
        """Call `call` if the commit fails, after the earlier calls of this kind."""
        before = self.on_fail

        def on_fail() -> None:
            if before is not None:
                before()
            call()

        self.on_fail = on_fail

    def on_failed(self, error: ApiError) -> None:
        """Fail this commit and those behind it: they would leave a gap, and the shard takes nothing any more."""
        topic = self.topic
        if self.published:
            # It stays readable until the restart; nobody has to wait for it to be written.
            if topic.unwritten:
                topic.unwritten.clear()
                topic.wake()
            return
        if self.error is not None:
            return
        assert topic.pending is not None
        failed = [topic.pending.pop()]
        while failed[-1] is not self:
            failed.append(topic.pending.pop())
        for commit in failed:  # all of them before anybody is told: who hears of one may look at another
            commit._leave()
            commit.error = error
        for commit in reversed(failed):
            if commit.on_fail is not None:
                commit.on_fail()
            commit.finish()
        topic._note_delay()
        topic.wake()

    def publish(self) -> None:
        """The commit point."""
        topic = self.topic
        self.published = True
        topic.mark_changed()
        self._leave()
        if self.end is not None:
            topic.on_disk.applied_end = self.end
        elif not topic.ephemeral or self.frames:
            if topic.unwritten is None:
                topic.unwritten = deque()
            topic.unwritten.append(self)
        if topic.tree is not None and self.records:
            self._grow(topic.tree)
        self.result = self.apply(self)
        if topic.working is None:
            self.finish()

    def _grow(self, tree: TopicTree) -> None:
        """Add the leaves of its records to the topic's tree."""
        tree.publish(self.last_seq - self.records + 1, self.leaves or self.bodies, self.bytes)
        self.bodies = ()
        if tree.is_due and self.topic.common.hash_soon is not None:
            self.topic.common.hash_soon(self.topic)

    def finish(self) -> None:
        """Let those go on who wait for it."""
        self.done.set()
        if self.answerable is not None:
            self.answerable.set()

    def _leave(self) -> None:
        topic = self.topic
        topic.pending_records -= self.records
        topic.pending_bytes -= self.bytes
        topic.common.bytes_on_the_way -= self.bytes

    def on_delayed(self, error: ApiError) -> None:
        """End what waits in `answer`."""
        self.delayed = error
        if self.answerable is not None:
            self.answerable.set()

    async def wait(self) -> Any:
        """Wait for the commit point; its result. Raises the shard's `ApiError`. Cancelling stops only the waiting."""
        await self.done.wait()
        return self._outcome()

    async def answer(self) -> Any:
        """As `wait`, for a client: raises `503 read_only` too when the commit waits for room on the disk too long. It
        may still be published then."""
        answerable = self.done
        if not self.done.is_set():
            answerable = self.answerable = trio.Event()
        await answerable.wait()
        if not self.done.is_set():
            assert self.delayed is not None
            raise self.delayed
        return self._outcome()

    def _outcome(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.result
