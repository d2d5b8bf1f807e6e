"""The live topics: finding them by name or id, their totals, and the clocks that they are judged by.

Responsible for the totals that limits and metrics use, for the clock of retention, and for counting refusals. Creating,
changing and deleting topics is the business of `topics.engine.operations.topic_lifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import trio
from sortedcontainers import SortedDict

from topics.engine.job_queue import JobQueue
from topics.engine.topic import Topic
from topics.engine.topic_totals import TopicTotals
from topics.errors import ApiError, not_owner, throttled, topic_not_found
from topics.log.retention import expire
from topics.log.stages import StageTarget
from topics.log.tables.kept_tags import KeptTags
from topics.model import TopicConfig
from topics.queue.leases import Leases
from topics.runtime.clock import Clock
from topics.runtime.instant import Instant
from topics.runtime.window_clock import WindowClock
from topics.sched.priority import effective_priority
from topics.schedules.schedules import Schedules
from topics.storage.cache.payload_cache import PayloadCache
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.storage.store import ReplayStart
from topics.telemetry.figures import StandbyFigures, Traffic

LIVE_MS: Final = 100
"""How long after an append (ms) the daemon counts as busy (`Registry.lively`)."""

LAST_HEADS: Final = 10_000
"""Deleted topics whose names and heads are remembered, for watchers that are told of the deletion late. The oldest are
forgotten."""


class DeletedTopic(NamedTuple):
    """The facts that are remembered of a deleted topic."""

    name: str
    head_seq: int


def names_with(names: SortedDict[str, Any], prefixes: Iterable[str], after: str | None) -> Iterator[str]:
    """Yield the names that start with one of `prefixes` (ascending, disjoint) and come after `after`, in order."""
    for prefix in prefixes:
        exclusive = after is not None and after >= prefix
        low = after if after is not None and exclusive else prefix
        for name in names.irange(low, inclusive=(not exclusive, True)):
            if not name.startswith(prefix):
                break
            yield name


def count_with(names: SortedDict[str, Any], prefixes: Iterable[str]) -> int:
    """Return how many names start with one of `prefixes` (disjoint), without looking at each."""
    # No name has a character behind "\x7f".
    return sum(names.bisect_left(prefix + "\x7f") - names.bisect_left(prefix) for prefix in prefixes)


async def settled(*topics: Topic) -> bool:
    """Return True if none of these topics is being changed; then nothing was waited for, and no other task has run.
    Otherwise wait for the end of one change and return False: the topic may be deleted by then, or have another config,
    so the caller must look it up again.

    Must be called in the step of a decision about a topic, before it. Cancelling leaves nothing behind.
    """
    for topic in topics:
        if topic.barrier is not None:
            await topic.barrier.wait()
            return False
    return True


class EngineStatus:
    """The phase of the daemon's life, the progress of replay (0..1), and whether a shard is read-only. HTTP asks before
    every request."""

    __slots__ = ("following", "next_cut", "not_owner", "phase", "read_only", "replay_progress", "started_ms")

    def __init__(self, started_ms: int) -> None:
        self.phase: Literal["starting", "replaying", "archiving", "ready", "draining"] = "starting"
        self.replay_progress = 0.0
        self.read_only = False
        self.not_owner: ApiError | None = None
        """The refusal while the daemon waits for the bucket of another owner; None otherwise."""
        self.started_ms = started_ms
        self.following: Callable[[], StandbyFigures] | None = None
        """On a standby, which owner it follows and how far it is; None on an owner."""
        self.next_cut = trio.Event()
        """On a standby, set and replaced when a cut is applied."""

    def note_cut(self) -> None:
        """A cut is applied: wake the calls that wait for its content."""
        event, self.next_cut = self.next_cut, trio.Event()
        event.set()

    def standby_refusal(self) -> ApiError:
        """The error with which a standby refuses changes."""
        owner = self.following().owner if self.following is not None else ""
        return not_owner("this daemon is a standby: it follows another one, and takes no changes", owner)


MayHaveTags = Callable[[Segment, Sequence[int]], bool]
"""Returns False only if no record of a segment has a tag with one of these keys (`tag_summary.key_of`). Never waits."""


class Registry:
    """The live topics, and the sums over them. Changed only in single steps of the loop. Made once by the engine."""

    def __init__(
        self, clock: Clock, windows: WindowClock, cache: PayloadCache, waiting_clock: Clock | None = None
    ) -> None:
        """`clock` is the one by which topics are judged, `waiting_clock` measures how long clients wait."""
        self.cache = cache
        self.may_have_tags: MayHaveTags = lambda segment, keys: True
        """Set by the loader."""
        self.topics: SortedDict[str, Topic] = SortedDict()
        self.by_id: dict[int, Topic] = {}
        """The topics by id, including stages, which clients cannot find by name."""
        self.stages: dict[int, Topic] = {}
        """Stages by id."""
        self.next_topic_id = 1
        self.committed: set[Topic] = set()
        """Topics that remember commits of stages."""
        self.remembering: set[Topic] = set()
        """Topics that remember keys of transactions."""
        self.tables: dict[Topic, None] = {}
        """Topics with `keep_per_tag`."""
        self.time_floor = 0
        """The highest time that was persisted or given out (ms): the clock of retention never shows less."""
        self.total_records = 0
        self.total_bytes = 0
        self.windows = windows
        """The clock by which keys, stages, leases and delays end."""
        self.common = TopicTotals()
        self.on_removed: Callable[[int, SegmentSet | None], None] | None = None
        """Called with topics whose files may be deleted."""
        self.on_added: Callable[[Topic], None] | None = None
        """Called with each topic that has just been added."""
        self.throttled: dict[str, int] = {}
        """How many requests each limit has refused (429)."""
        self.schedules = Schedules()
        self._deleted: dict[int, DeletedTopic] = {}
        self._pinned: dict[int, set[int]] = {}
        self._cut: dict[Topic, int] = {}
        """Topics in cuts that are not known to be in the bucket, and up to which seq."""
        self._clock = clock
        self._waiting_clock = waiting_clock or clock
        self.follows = False
        """True: topics change only as the log of another daemon says (a standby)."""

    @property
    def traffic(self) -> Traffic:
        """Records and bytes that have come in and gone out since the start."""
        return self.common.traffic

    @property
    def changed(self) -> set[Topic]:
        """Topics that have changed since their part was made."""
        return self.common.changed

    @property
    def attention(self) -> set[Topic]:
        """Topics that the reclaimer has to look at."""
        return self.common.attention

    def pin(self, files: set[int]) -> None:
        """Keep these files until `unpin` is called with the same set, because copies will be made of records in
        them."""
        self._pinned[id(files)] = files

    def unpin(self, files: set[int]) -> None:
        """Release files that were pinned."""
        self._pinned.pop(id(files), None)

    @property
    def delayed(self) -> Iterable[Topic]:
        """Topics that lag behind their log: a commit is ready but not published, or a deletion is being worked off."""
        return self.common.delayed

    def starts_in_doubt(self) -> dict[int, ReplayStart]:
        """Return, by shard, the position behind which no replay may begin because of transactions that are in doubt
        (`docs/design/transactions.md` section 3)."""
        starts: dict[int, ReplayStart] = {}
        for transaction in self.common.in_doubt:
            for shard, start in transaction.starts.items():
                starts[shard] = min(starts.get(shard, start), start)
        return starts

    # -- the bucket --------------------------------------------------------------------------------------------------

    @property
    def has_bucket(self) -> bool:
        """Return True if the log is written to a bucket."""
        return self.common.unarchived is not None

    def begin_cuts(self) -> None:
        """From here on note which topics have seqs that are not in the bucket: all, as far as is known."""
        if self.common.unarchived is None:
            self.common.unarchived = dict.fromkeys(self.by_id.values())

    def begin_cut(self) -> None:
        """Note up to which seq the topics go whose records are queued by now. Must be called in the step of the cut.

        Records of a transaction in doubt do not count before the next cut. The cut may lack another of its batches,
        because a shard waits for room, and then a takeover would undo it; or it may yet be undone, which a takeover
        would not know.
        """
        assert self.common.unarchived is not None
        self._cut.update((topic, topic.decided_seq) for topic in self.common.unarchived)
        self.common.unarchived = {topic: None for topic in self.common.unarchived if topic.undecided}

    def cut_archived(self, missing: Collection[int]) -> None:
        """The bucket has the last cut, but for these shards."""
        kept = {topic: seq for topic, seq in self._cut.items() if topic.shard in missing}
        done, self._cut = self._cut, kept
        for topic, seq in done.items():
            if topic not in kept:
                topic.note_archived(seq)

    def copied_files(self) -> set[int]:
        """Return the ids of the files that copies point to: they must stay as they are until the copies are in segments
        of their own (`docs/spec/crash.md` 18)."""
        files: set[int] = set().union(*self._pinned.values())
        for topic in self.common.copying:
            if topic.copies is not None:
                files.update(topic.copies.files)
        return files

    def topic(self, name: str) -> Topic:
        """The live topic of a name; never a stage. Raises `404 topic_not_found`."""
        topic = self.topics.get(name)
        if topic is None:
            raise topic_not_found(name)
        return topic

    def caps_of(self, name: str) -> tuple[int, int]:
        """Return the most records and bytes that a topic may have; 0 for no cap, and for a topic that does not
        exist."""
        topic = self.topics.get(name)
        return (topic.config.cap_records, topic.config.cap_bytes) if topic is not None else (0, 0)

    def make(self, topic_id: int, name: str, config: TopicConfig, shard: int) -> Topic:
        """Make a topic that cannot be found before `add`."""
        topic = Topic(topic_id, name, config, shard, self.cache, self.common)
        if config.type == "queue":
            topic.set_queue(JobQueue(Leases()))
        if config.keep_per_tag:
            topic.log.kept = KeptTags(topic.log.losses)
        return topic

    def add(self, topic: Topic) -> None:
        """Let a topic be found."""
        self.by_id[topic.id] = topic
        self.remember(topic)
        if topic.config.keep_per_tag:
            self.tables[topic] = None
        if topic.stage is None:
            self.topics[topic.name] = topic
        else:
            self.stages[topic.id] = topic
            target = self.by_id[topic.stage.target_id]
            if target.stages is None:
                target.stages = {}
            target.stages[topic.stage.name] = topic
        self.next_topic_id = max(self.next_topic_id, topic.id + 1)
        self.account(topic)
        if topic.stage is None and self.on_added is not None:
            self.on_added(topic)

    def remember(self, topic: Topic) -> None:
        """Note whether a topic remembers commits of stages, or transactions."""
        if topic.commit_keys is not None:
            self.committed.add(topic)
        if topic.transactions is not None:
            self.remembering.add(topic)

    def remove(self, topic: Topic) -> None:
        """Remove a deleted topic, and its totals."""
        topic.deleted = True
        del self.by_id[topic.id]
        if topic.stage is None:
            del self.topics[topic.name]
        else:
            self._remove_stage(topic, topic.stage)
        self.changed.discard(topic)
        self.attention.discard(topic)
        self.committed.discard(topic)
        self.remembering.discard(topic)
        self.tables.pop(topic, None)
        self.common.copying.pop(topic, None)
        self.common.delayed.pop(topic, None)
        self.total_records -= topic.counted_records
        self.total_bytes -= topic.counted_bytes
        topic.blocks.clear()
        if topic.stage is None:
            self._deleted[topic.id] = DeletedTopic(topic.name, topic.log.head_seq)
            if len(self._deleted) > LAST_HEADS:
                del self._deleted[next(iter(self._deleted))]
        topic.close_audience()
        if self.on_removed is not None:
            self.on_removed(topic.id, topic.segment_set)

    def _remove_stage(self, stage: Topic, of: StageTarget) -> None:
        del self.stages[stage.id]
        target = self.by_id.get(of.target_id)
        if target is not None and target.stages is not None and target.stages.get(of.name) is stage:
            del target.stages[of.name]
            target.stages = target.stages or None

    def last_head(self, topic_id: int, known: int) -> int:
        """Return the head of a deleted topic, or `known`, a seq of it, if it was deleted too long ago."""
        deleted = self._deleted.get(topic_id)
        return known if deleted is None else deleted.head_seq

    def deleted_topic(self, topic_id: int) -> DeletedTopic | None:
        """Return the facts that are remembered of a deleted topic; None if it was deleted too long ago, or was not."""
        return self._deleted.get(topic_id)

    def account(self, topic: Topic) -> None:
        """Update the totals after a change of a topic's log, and evict blocks that no reader can reach any more."""
        log_ = topic.log
        topic.mark_changed()
        self.total_records += log_.count - topic.counted_records
        self.total_bytes += log_.bytes - topic.counted_bytes
        topic.counted_records, topic.counted_bytes = log_.count, log_.bytes
        topic.blocks.drop_below(log_.earliest_seq)
        if topic.queue is not None:
            topic.queue.gone_below(log_.earliest_seq)
        elif topic.groups is not None:
            topic.groups.front_moved(log_)

    def now_ms(self) -> int:
        """The clock by which retention judges (ms): wall time that never steps back."""
        now = self._clock.now_ms()
        if now < self.time_floor:
            return self.time_floor
        self.time_floor = now
        return now

    def monotonic_ms(self) -> int:
        """Return the monotonic time (ms), by which waiting is measured."""
        return self._waiting_clock.monotonic_ms()

    def instant(self) -> Instant:
        """Return the current time on the monotonic clock, on the window clock, and on the wall clock."""
        return Instant(self._clock.monotonic_ms(), self.windows.now_ms(), self._clock.now_ms())

    def to_wall(self, window_ms: int) -> int:
        """Return what the wall clock will show (epoch ms) at a time of the window clock, unless it is set."""
        return window_ms - self.windows.now_ms() + self._clock.now_ms()

    @property
    def lively(self) -> bool:
        """Return True if there was an append within the last `LIVE_MS`: work that can wait then yields the loop."""
        return self._clock.perf_ns() - self.common.committed_ns < LIVE_MS * 1_000_000

    def expire(self, topic: Topic) -> None:
        """Advance the floors to now (`docs/spec/crash.md` 7). Raises NotLoaded."""
        if self.follows or self.common.is_fenced:
            return
        if topic.config.ttl_ms and expire(topic.log, self.now_ms(), topic.config.ttl_ms):
            self.account(topic)

    def touch(self, topic: Topic) -> None:
        """Note that the topic was just consumed, for its automatic priority."""
        topic.touched_ms = self._waiting_clock.monotonic_ms()
        topic.last_read_ms = self.now_ms()

    def priority(self, topic: Topic) -> int:
        """Return its current effective priority, without waiting time (`docs/spec/semantics.md` section 7)."""
        config = topic.config
        now_ms = self._waiting_clock.monotonic_ms()
        return effective_priority(config.priority, config.auto_priority, topic.touched_ms, now_ms)

    def throttle(self, limit: str, maximum: int) -> ApiError:
        """Return a 429 for a limit, and count it."""
        self.count_throttled(limit)
        return throttled(limit, maximum)

    def count_throttled(self, limit: str) -> None:
        """Count a request that was refused for a limit."""
        self.throttled[limit] = self.throttled.get(limit, 0) + 1
