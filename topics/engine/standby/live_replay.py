"""`LiveReplay`: applies what the log of another daemon has got to the topics of this one, while they are read
(`docs/design/standby.md` section 2).

Theory of operation
-------------------
What a frame does to a topic is said once, in `topics.storage.recovery`: a start replays a log with it, and a standby
goes on with the same code for each cut. Here are only the differences between a start and a running daemon: topics are
found among the live ones (`topic_views`), columns come from the cache (`live_columns`), transactions that are in doubt
stay so, and readers are told at the end.

`apply` is one step of the loop, so nobody sees half of a cut. What would wait for a disk is done before it, by
`prepare`. An exception in `apply` leaves topics of which half is applied: the daemon has to begin again from its
directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from topics.bucket.standby.followed_log import FileBatches
from topics.engine.forwarding.router_lifecycle import RouterLifecycle
from topics.engine.group_queue import TopicGroups
from topics.engine.job_queue import JobQueue
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.registry import EngineStatus, Registry
from topics.engine.standby.copy_sources import CopySources
from topics.engine.standby.live_columns import LiveColumns
from topics.engine.standby.topic_views import TopicViews
from topics.engine.topic import Topic
from topics.log.dumped_values import whole
from topics.queue.leases import Leases
from topics.runtime.held_clock import HeldClock
from topics.runtime.instant import Instant
from topics.runtime.offload import Offload, Pool
from topics.storage.cache.index_cache import IndexCache
from topics.storage.files.fs import Fs
from topics.storage.recovery.copy_replay import CopyReplay
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.recovered_state import RecoveredShard, RecoveredState, RecoveredTopic, StashedRecords
from topics.storage.recovery.replay_clock import ReplayClock
from topics.storage.recovery.schedule_replay import ScheduleReplay
from topics.storage.recovery.shard_replay import BatchReplay
from topics.storage.recovery.topic_catalog import TopicCatalog
from topics.storage.recovery.topic_replay import TopicReplay
from topics.storage.store import ReplayStart, Store, follow
from topics.storage.wal.followed_shard import FollowedShard
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

Apply = Callable[[RecoveredTopic, RecoveredShard, FrameBatch], None]

_SHARD_OPEN: Final = int(FrameType.SHARD_OPEN)
_CLEAN_STOP: Final = int(FrameType.CLEAN_STOP)
_SCHEDULE: Final = int(FrameType.SCHEDULE)


WINDOWS_MS: Final = 1000
"""How far the clock of windows of a standby may be before that of its owner (ms). It goes with the wall clock of
rounds; moving it costs a pass over all leases."""


class CannotFollow(Exception):
    """The log has something that can only be followed from a newer base. The message is a phrase."""


class CutInDoubt:
    """A cut with a transaction that lacks a Decision frame. Among `TopicTotals.in_doubt`, as transactions of an owner
    are: if this daemon takes over, its start has to find all batches of the transaction, or none."""

    def __init__(self, starts: Iterable[ReplayStart]) -> None:
        self.starts: Final = dict(enumerate(starts))
        """Where the log was before the cut, by shard."""


class _LiveParts:
    """Topics of a running daemon are as they are in memory, whatever manifests say."""

    def of_snapshot(self, blob: bytes) -> RecoveredTopic:
        raise AssertionError("a running daemon reads no snapshot")

    def newer(self, topic_id: int, topic: RecoveredTopic | None) -> RecoveredTopic | None:
        return topic


class LiveReplay:
    """Follows the log from where the recovery of the directory has ended. Made by the engine of a standby."""

    def __init__(
        self,
        recovered: RecoveredState,
        registry: Registry,
        store: Store,
        indexes: IndexCache,
        sources: CopySources,
        *,
        topic_lifecycle: TopicLifecycle,
        routers: RouterLifecycle,
        time: HeldClock,
        status: EngineStatus,
        fs: Fs,
        on_changed: Callable[[Topic], None],
        offload: Offload,
    ) -> None:
        """`on_changed` is called with each topic that a cut has changed or made."""
        self.shards: dict[int, RecoveredShard] = {shard.shard: shard for shard in recovered.shards}
        self.reached: dict[int, int] = {
            topic.id: topic.forwarded_to for topic in recovered.topics.values() if topic.forwarded_to
        }
        """By topic id, the highest seq that a router, a consumer or a group is known to have seen."""
        self.transactions = recovered.transactions
        self.damaged = sorted({recovered.topics[topic_id].name for topic_id in recovered.columns.damaged})
        """The topics in whose segments recovery has found damage."""
        self._registry = registry
        self._store = store
        self._indexes = indexes
        self._sources = sources
        self._topic_lifecycle = topic_lifecycle
        self._routers = routers
        self._time = time
        self._status = status
        self._fs = fs
        self._knows_windows = False
        self._windows = 0
        """What the owner's clock of windows has read last, as far as is known."""
        self._on_changed = on_changed
        self._offload = offload
        self._stashes: dict[int, list[StashedRecords]] = {
            topic.id: topic.stash for topic in recovered.topics.values() if topic.stash
        }
        self._delayed: set[Topic] = set()
        self._before = CutInDoubt(store.recovered_starts())
        """Of the transactions that recovery has met, which have no mark."""
        self._note_kept_back()

    async def prepare(self, cut: Sequence[FileBatches]) -> None:
        """Do what a cut needs of the disk before it is applied. Raises OSError, ApiError."""
        batches = [batch for one in cut for batch in one.batches]
        await self._sources.write_missing(batches)
        topics = self._registry.by_id
        of_topics = ((topics.get(batch.rows[0][4]), batch) for batch in batches)
        proved = [batch for topic, batch in of_topics if topic is not None and topic.tree is not None]
        if proved:
            await self._offload.run(Pool.CPU, partial(_hash_records, proved))

    def apply(self, cut: Sequence[FileBatches], wall_ms: int, window_ms: int) -> None:
        """Apply a cut, which was taken at `wall_ms` (epoch ms), in this step. `window_ms` is what the owner's clock of
        windows read then, 0 if that is not known. Raises CannotFollow, OSError, and any exception for a malformed
        log."""
        registry = self._registry
        self._time.hold(wall_ms)
        clock = ReplayClock(registry.instant(), windows_by_wall=False)
        self.transactions.mark = CutInDoubt(ReplayStart(*one.synced_position()) for one in self._store.writers)
        columns = LiveColumns(self._store.tiers, self._indexes)
        views = TopicViews(registry, self._stashes)
        topics = TopicCatalog(_LiveParts(), clock, views)
        topics.next_id = registry.next_topic_id
        schedules = ScheduleReplay(topics, registry.schedules)
        # Copies of cold records have stand-ins: nothing of them is read from where they are.
        hot = LiveColumns(self._store.tiers._replace(cold=None), self._indexes)
        copies = CopyReplay(self._fs, self._store.files, hot)
        frames = TopicReplay(topics, clock, columns, copies)
        self.transactions.apply = partial(self._apply, views, frames.apply)
        self.transactions.undo = partial(self._apply, views, frames.undo)
        replay = BatchReplay(topics, self.transactions, schedules)
        for part in cut:
            shard = self.shards[part.shard]
            if shard.file is not part.file:
                shard.file, shard.last_seqs = part.file, {}
            for batch in part.batches:
                if batch.rows[0][4]:
                    replay.apply(shard, batch)
                else:
                    self._apply_to_shard(shard, batch, clock, schedules)
            shard.end, shard.frame_count, shard.ended = part.end, part.frame_count, part.is_ended
            shard.last_frame = part.batches[-1].rows[-1][0]
            shard.vouched = LogPosition(part.file.ordinal, part.end)
        self.transactions.settle()
        schedules.schedules.settle()
        self._settle(views, columns, copies)
        for shard in self.shards.values():
            writer = self._store.writers[shard.shard]
            if isinstance(writer, FollowedShard) and shard.file is not None:
                follow(writer, shard)
        changed = views.publish(self._store, self._topic_lifecycle, self._routers)
        registry.next_topic_id = max(registry.next_topic_id, topics.next_id)
        registry.time_floor = max(registry.time_floor, clock.retention)
        self._windows, self._knows_windows = max(clock.windows, window_ms), window_ms > 0
        self._follow_windows(WINDOWS_MS)
        self._note_kept_back()
        self._sources.release()
        for topic in changed:
            self._on_changed(topic)
            topic.wake()
        self._status.note_cut()

    @staticmethod
    def _apply(
        views: TopicViews, apply: Apply, topic: RecoveredTopic, shard: RecoveredShard, batch: FrameBatch
    ) -> None:
        """Apply a batch to the present view of its topic: it may have been kept back since an earlier cut."""
        found = views.get(topic.id)
        if found is not None:
            apply(found, shard, batch)

    @staticmethod
    def _apply_to_shard(
        shard: RecoveredShard, batch: FrameBatch, clock: ReplayClock, schedules: ScheduleReplay
    ) -> None:
        """Apply a frame about the shard. What it says of files and syncs is of the owner's."""
        frame, payload = batch.first, batch.extras[batch.rows[0][0]]
        shard.clean = frame.type == _CLEAN_STOP
        if frame.type == _CLEAN_STOP:
            clock.note_write(whole(payload["clock"]))
        elif frame.type == _SCHEDULE:
            schedules.apply(payload)
        elif frame.type == _SHARD_OPEN and "boot" not in payload and "failed" not in payload:
            raise CannotFollow("a part of the log was given up")

    def _settle(self, views: TopicViews, columns: LiveColumns, copies: CopyReplay) -> None:
        """Do what recovery does when all shards have been read."""
        for topic_id, last in copies.reached.items():
            self.reached[topic_id] = max(last, self.reached.get(topic_id, 0))
        for topic_id, place in self.transactions.keeps_back.items():
            found = views.touched.get(topic_id)
            if found is not None:
                found.end = place
        for found in views.touched.values():
            if found.doomed:
                raise CannotFollow(f"topic {found.name!r} is made of files that are not here")
            for seq in found.missing:
                log.error("copy_without_bytes", topic=found.name, seq=seq)
                columns.add_hole(found, seq, seq, "lost")
            if found.forwarded_to:
                self.reached[found.id] = max(found.forwarded_to, self.reached.get(found.id, 0))
        for topic_id in views.deleted:
            self.reached.pop(topic_id, None)
            self._stashes.pop(topic_id, None)

    def settle_windows(self) -> None:
        """Set the clock of windows to what that of the owner has read last, before this daemon becomes the owner: no
        lease ends earlier than it would have there."""
        self._follow_windows(0)

    def _follow_windows(self, tolerance_ms: int) -> None:
        """The clock of windows is not behind anything that the owner has written by its own. If it is known what that
        reads, it is at most `tolerance_ms` before it, either. Both may be otherwise: the owner's wall clock was set, or
        the owner has taken over, and its windows had stood still until then. Leases and delays move with the clock, as
        at a start (`ReplayClock.move_leases`)."""
        registry, windows = self._registry, self._windows
        before = registry.instant()
        is_ahead = self._knows_windows and before.window > windows + tolerance_ms
        if windows <= before.window and not is_ahead:
            return
        now = Instant(before.mono, windows)
        registry.windows.start(now)
        for topic in registry.by_id.values():
            if topic.queue is not None:
                topic.set_queue(JobQueue(Leases.load(topic.queue.leases.dump(before), now), restored=True))
            if topic.groups is not None and len(topic.groups):
                groups = [queue.state for queue in topic.groups.by_name.values()]
                for group in groups:
                    group.move(Leases.load(group.leases.dump(before), now))
                topic.set_groups(TopicGroups(groups))

    def _note_kept_back(self) -> None:
        """No snapshot may begin the replay behind batches that were not applied, or that a start would have to
        decide."""
        registry = self._registry
        registry.common.in_doubt.clear()
        registry.common.in_doubt.update((mark or self._before, None) for mark in self.transactions.marks_in_doubt)
        delayed = {registry.by_id[topic_id] for topic_id in self.transactions.keeps_back if topic_id in registry.by_id}
        for topic in self._delayed - delayed:
            registry.common.delayed.pop(topic, None)
        registry.common.delayed.update(dict.fromkeys(delayed))
        self._delayed = delayed


def _hash_records(batches: Sequence[FrameBatch]) -> None:
    """Hash what trees need of a cut, apart from those that begin in it. In a worker thread."""
    for batch in batches:
        batch.hash_records()
