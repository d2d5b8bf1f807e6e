"""The engine: its parts put together, and its life from recovery to drain.

Callers ask the parts. Each call does what `docs/spec/` says of it, and raises `ApiError` for errors that a client
should see:

    topic_lifecycle  topics created, reconfigured, deleted      topic_states  the state of a topic, the list
    appends          one append: seqs, frames, publication      deletions     one deletion of records
    reads            one diff and its long poll                 backward_reads the newest records below a seq
                                                                exports       all of a range, slice by slice
    stages           stages, and appends to them                stage_commits publication of staged records
    transactions     appends to several topics, all or none
    routers          routers created, deleted; catching up      forwarding    who forwards for them
    queues           the calls of a queue                       watching      sessions and streams, live
    consumers        named consumers                            consumer_reads reads at their positions
    schedules        records appended by the clock              firings       the task that appends them
    groups           groups of a log                            redrives      dead letters back to their queues
    evidence         checkpoints and proofs
    registry         all topics, totals, the clock              keys          idempotency keys over all topics
    ceilings         reserves of seqs                           loader        columns and records from disk
    store            the shards and their files                 metrics       figures for scrapes
    compactor, reclaimer, relocator, length_check, governor, delivery: these run by themselves

What a topic's state means is `topics.log`'s business, how bytes reach the disk is `topics.storage`'s. Between two
awaits the loop is the lock: seqs are assigned and frames queued without one in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from topics.config import Settings
from topics.engine.ceilings import Ceilings
from topics.engine.commits import Commits
from topics.engine.consumers.consumed_records import ConsumedTopics
from topics.engine.consumers.consumer_calls import ConsumerCalls
from topics.engine.consumers.consumer_commits import ConsumerCommits
from topics.engine.consumers.consumer_reads import ConsumerReads
from topics.engine.consumers.unused_consumers import UnusedConsumers
from topics.engine.delivery.topic_delivery import TopicDelivery
from topics.engine.delivery.watch_sessions import WatchSessions
from topics.engine.engine_metrics import EngineMetrics
from topics.engine.evidence.evidence_calls import EvidenceCalls
from topics.engine.evidence.tree_growth import TreeGrowth
from topics.engine.forwarding.forwarders import Forwarders
from topics.engine.forwarding.router_lifecycle import RouterLifecycle
from topics.engine.groups.group_calls import GroupCalls
from topics.engine.idempotency_keys import IdempotencyKeys
from topics.engine.job_parts import JobParts
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends
from topics.engine.operations.backward_reads import BackwardReads
from topics.engine.operations.delete import Deletions
from topics.engine.operations.export import Exports
from topics.engine.operations.fence_removal import FenceRemovals
from topics.engine.operations.judge import Judge
from topics.engine.operations.latest_reads import LatestReads
from topics.engine.operations.member_commits import MemberCommits
from topics.engine.operations.null_expiry import NullExpiry
from topics.engine.operations.read import Reads
from topics.engine.operations.stage_commits import StageCommits
from topics.engine.operations.stage_lifecycle import StageLifecycle
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.operations.topic_seals import TopicSeals
from topics.engine.operations.transactions import Transactions
from topics.engine.operations.unique_jobs import UniqueJobs
from topics.engine.reach import Reach
from topics.engine.registry import EngineStatus, Registry, settled
from topics.engine.restoration import restore
from topics.engine.schedules.firings import Firings
from topics.engine.schedules.schedule_calls import ScheduleCalls
from topics.engine.schedules.schedule_commits import ScheduleCommits
from topics.engine.tables.scattered_records import ScatteredRecords
from topics.engine.tables.topic_tables import TopicTables
from topics.engine.topic import Fanout, Topic
from topics.engine.topic_states import TopicStates
from topics.errors import ApiError, read_only
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.runtime.held_clock import HeldClock
from topics.runtime.offload import Offload, Pool
from topics.runtime.turns import Turns
from topics.sched.governor import Governor, GovernorControls
from topics.sched.workers import Scheduler, ServiceResult
from topics.storage.cache.index_cache import IndexCache
from topics.storage.cache.payload_cache import PayloadCache
from topics.storage.files.fs import Fs
from topics.storage.maintenance.compactor import Compactor
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.home_moves import HomeMoves
from topics.storage.maintenance.reclaimer import Reclaimer
from topics.storage.maintenance.relocator import Relocator
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.recovery.length_check import LengthCheck
from topics.storage.recovery.recovered_state import RecoveredState
from topics.storage.segments.segment_store import ObjectSegments, SegmentStore
from topics.storage.segments.set_aside_files import SetAsideFiles
from topics.storage.snapshots.snapshot import KEPT
from topics.storage.store import Store
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import NOTHING
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

BAND: Final = 250
"""Between two bands of priority (`docs/spec/runtime.md` section 4)."""


class Engine:
    """The parts of one daemon and their life. Made once; `run` must be running while the parts are called."""

    def __init__(
        self,
        settings: Settings,
        *,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        cold: SegmentStore | None = None,
        objects: ObjectSegments | None = None,
    ) -> None:
        """`cold` is the store of cold segments if it is not the directory that the settings name. `objects` is the same
        store if it is a bucket."""
        self.settings = settings
        self.clock = clock
        self.status = EngineStatus(clock.monotonic_ms())
        self.turns = Turns()
        self.time = HeldClock(clock)
        """The time by which topics are judged: on a standby that of the last round."""
        self.store: Store = Store(
            settings,
            fs=fs,
            clock=self.time,
            offload=offload,
            on_failure=self._shard_failed,
            cold=cold,
            objects=objects,
        )
        self.cache = PayloadCache(settings.cache_bytes)
        self.registry = Registry(self.time, self.store.windows, self.cache, clock)
        self.fs = self._fs = fs
        self.offload = self._offload = offload
        self._background = BackgroundTasks()
        self.restarts: Counter[str] = Counter()
        """Of background tasks after an unexpected error, by their names; the daemon counts."""
        self._commits = Commits(self.store, self.registry, settings.admission_ms)
        self.indexes = IndexCache(settings.cache_bytes)
        self.loader = Loader(
            self.registry,
            self.store,
            self.indexes,
            self._background,
            fs=fs,
            clock=clock,
            offload=offload,
            turns=self.turns,
        )
        self._make_records()
        self._make_delivery()
        self.file_holds = self._make_maintenance()
        self._make_routing(self.file_holds)
        self._make_jobs()
        self._make_answers()
        self._make_evidence()

    def _make_records(self) -> None:
        """Make the calls on topics and on their records."""
        settings, registry, commits, loader = self.settings, self.registry, self._commits, self.loader
        self.ceilings = Ceilings(self.clock, registry, commits, self.store.right)
        self.tables = TopicTables(
            self.clock, registry, commits=commits, loader=loader, offload=self._offload, background=self._background
        )
        self.keys = IdempotencyKeys(settings, registry)
        self.topic_lifecycle = TopicLifecycle(
            settings,
            self.store,
            registry,
            commits=commits,
            ceilings=self.ceilings,
            keys=self.keys,
            loader=loader,
            tables=self.tables,
            background=self._background,
            offload=self._offload,
        )
        self.unique_jobs = UniqueJobs(settings, self.clock, registry, commits=commits, loader=loader, keys=self.keys)
        judge = Judge(registry, commits=commits, loader=loader)
        self.appends = Appends(
            settings,
            self.clock,
            registry,
            commits=commits,
            ceilings=self.ceilings,
            keys=self.keys,
            topic_lifecycle=self.topic_lifecycle,
            loader=loader,
            turns=self.turns,
            judge=judge,
            unique=self.unique_jobs,
            kept=self.tables.records,
        )
        self._member_commits = MemberCommits(self.clock, registry, ceilings=self.ceilings, appends=self.appends)
        self.transactions = Transactions(
            settings,
            self.clock,
            registry,
            commits=commits,
            members=self._member_commits,
            keys=self.keys,
            appends=self.appends,
            turns=self.turns,
        )
        self.fence_removals = FenceRemovals(settings, self.clock, registry, commits=commits)
        self.deletions = Deletions(
            settings, self.clock, registry, commits=commits, loader=loader, background=self._background
        )
        self._null_expiry = NullExpiry(
            self.clock, registry, commits=commits, deletions=self.deletions, background=self._background
        )
        self.stages = StageLifecycle(
            settings,
            self.store,
            registry,
            commits=commits,
            topic_lifecycle=self.topic_lifecycle,
            appends=self.appends,
            background=self._background,
        )
        self.stage_commits = StageCommits(
            self.clock,
            registry,
            self.store,
            commits=commits,
            ceilings=self.ceilings,
            appends=self.appends,
            stage_lifecycle=self.stages,
            loader=loader,
            background=self._background,
            offload=self._offload,
        )

    def _make_delivery(self) -> None:
        """Who is told of news, and when."""
        self._scheduler: Scheduler[Topic | Fanout[Any]] = Scheduler(
            self.settings.delivery_workers, self._priority_of, self._serve, self.turns
        )
        common = self.registry.common
        common.news = self._scheduler.mark
        common.is_synced = self._is_synced
        common.when_synced = self._when_synced
        self.delivery = TopicDelivery(
            self.registry, self.loader, self._background, self._scheduler, max_scan=self.settings.max_scan
        )
        self.watch_sessions = WatchSessions(self.settings, self.registry, self.delivery)
        controls = GovernorControls(
            busy_share=self._offload.busy_share,
            set_commit_window=self._commits.set_window,
            set_saturated=self._commits.set_saturated,
            announce_pause=self.delivery.announce_pause,
        )
        self.governor = Governor(self._scheduler, controls)

    def _make_maintenance(self) -> FileHolds:
        """Make the parts that keep the files in order."""
        settings, registry, offload = self.settings, self.registry, self._offload
        self.length_check = LengthCheck(self.loader.spans, registry.by_id, registry.account, offload)
        checkpoints = TopicCheckpoints(
            settings,
            self.store,
            registry,
            self.indexes,
            fs=self._fs,
            clock=self.clock,
            offload=offload,
            turns=self.turns,
        )
        file_holds = FileHolds(self.store, registry, self.clock)
        self.compactor = Compactor(
            settings, self.store, registry, checkpoints, file_holds, fs=self._fs, offload=offload
        )
        self.topic_seals = TopicSeals(registry, self.compactor, commits=self._commits)
        self.home_moves = HomeMoves(checkpoints, file_holds, SetAsideFiles(self._fs, self.store.datadir.root), offload)
        self.reclaimer = Reclaimer(
            settings,
            registry,
            checkpoints,
            file_holds,
            self.loader.spans,
            self.indexes,
            self.loader.expire,
            self.home_moves,
            clock=self.clock,
            offload=offload,
        )
        self.relocator = Relocator(settings, registry, checkpoints, file_holds, self.loader.spans, offload=offload)
        registry.on_removed = self.reclaimer.remove_topic
        return file_holds

    def _make_routing(self, file_holds: FileHolds) -> None:
        """Routers, and who forwards for them."""
        self.forwarders = Forwarders(
            self.settings,
            self.clock,
            self.status,
            self.registry,
            self.store,
            commits=self._commits,
            ceilings=self.ceilings,
            appends=self.appends,
            loader=self.loader,
            background=self._background,
            scheduler=self._scheduler,
            is_busy=file_holds.is_replacing,
        )
        self.routers = RouterLifecycle(
            self.settings,
            self.clock,
            self.registry,
            commits=self._commits,
            topic_lifecycle=self.topic_lifecycle,
            forwarders=self.forwarders,
            background=self._background,
        )
        self.topic_lifecycle.on_gone = self.routers.forget_topic

    def _make_jobs(self) -> None:
        """Jobs: who is given which, what becomes of them, and dead letters on their way back."""
        self._jobs = jobs = JobParts(
            self.settings,
            self.clock,
            self.status,
            self.registry,
            commits=self._commits,
            appends=self.appends,
            members=self._member_commits,
            loader=self.loader,
            background=self._background,
            turns=self.turns,
            catch_up=self.routers.catch_up,
        )
        self.queues, self.job_lists, self.job_changes = jobs.queues, jobs.job_lists, jobs.job_changes
        self.letter_moves, self.dead_jobs, self.redrives = jobs.letter_moves, jobs.dead_jobs, jobs.redrives

    def _make_answers(self) -> None:
        """Make the parts that only look at topics."""
        registry, loader, catch_up = self.registry, self.loader, self.routers.catch_up
        self.reach = Reach(registry, self.status, self.store.right)
        self.reads = Reads(self.settings, self.status, registry, loader, self.reach, catch_up=catch_up)
        self.backward_reads = BackwardReads(self.settings, registry, loader, catch_up=catch_up)
        records = ScatteredRecords(loader, self.store, fs=self._fs, offload=self._offload, turns=self.turns)
        self.latest = LatestReads(registry, loader, records, catch_up=catch_up)
        self.exports = Exports(self.status, registry, loader, self.reach, self.clock, self.turns, catch_up=catch_up)
        self._make_consumers()
        self.topic_states = TopicStates(registry, loader=loader, queues=self.queues, catch_up=catch_up)
        self.metrics = EngineMetrics(
            self.clock,
            self.status,
            registry,
            self.store,
            routers=self.routers,
            forwarders=self.forwarders,
            queues=self.queues,
            completions=self._jobs.completions,
            consumers=self.consumers,
            firings=self.firings,
            redrives=self.redrives,
            groups=self.groups,
            watch_sessions=self.watch_sessions,
            scheduler=self._scheduler,
            governor=self.governor,
            restarts=self.restarts,
        )

    def _make_evidence(self) -> None:
        """Merkle trees."""
        self.registry.common.hash_soon = TreeGrowth(self._background, self._offload).hash_soon
        self.evidence = EvidenceCalls(self.registry, self.store, self.reach, fs=self._fs, offload=self._offload)

    def _make_consumers(self) -> None:
        """Positions that the daemon keeps for readers."""
        self._consumed = ConsumedTopics(
            self.registry, commits=self._commits, deletions=self.deletions, background=self._background
        )
        commits = ConsumerCommits(self.settings, self.clock, self.registry, self._commits, self._consumed)
        self._unused = UnusedConsumers(self.registry, commits)
        self.consumers = ConsumerCalls(
            self.settings, self.registry, commits=commits, unused=self._unused, loader=self.loader
        )
        self.consumer_reads = ConsumerReads(self.consumers, self.reads)
        self._make_schedules()
        self.groups = GroupCalls(
            self.settings,
            self.clock,
            self.registry,
            commits=self._commits,
            queues=self.queues,
            loader=self.loader,
            on_changed=self._consumed.note,
        )
        self._jobs.lease_commits.on_finished = self._consumed.note
        self.topic_lifecycle.on_changed = self._look_after

    def _make_schedules(self) -> None:
        """Records that the daemon appends by the clock."""
        commits = ScheduleCommits(self.settings, self.clock, self.registry, self.store, self._commits)
        self.firings = Firings(self.clock, self.registry, self.appends, commits)
        self.schedules = ScheduleCalls(
            self.settings, self.time, self.registry, appends=self.appends, commits=commits, firings=self.firings
        )

    def _look_after(self, topic: Topic) -> None:
        """A topic has got another config."""
        self.queues.look_after(topic)
        self._consumed.note(topic)

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks that finish what a request has begun; until cancelled."""
        await self._background.run(task_status=task_status)

    def open_for_business(self) -> None:
        """Recovery is complete: requests are served from here on."""
        self.status.phase = "ready"
        if self.store.cold is not None:
            self.store.cold.take_time()
        self.status.replay_progress = 1.0
        self.wake_all()
        if self.time.is_held:  # a standby: nothing is done by time
            for topic in self.registry.topics.values():
                self.adopt_replayed(topic)
            return
        self.forwarders.start_all()
        for topic in self.registry.topics.values():
            self.queues.look_after(topic)
        self.consumers.adopt_all()
        self.groups.adopt_all()
        self.unique_jobs.adopt_all()
        self._consumed.note_all()
        self.tables.trim_all()

    def adopt_replayed(self, topic: Topic) -> None:
        """List the consumers and groups of a topic that a standby has replayed, each time that it has changed."""
        self.consumers.adopt(topic)
        self.groups.adopt(topic)

    def start_draining(self) -> None:
        """No new work; long polls end with 503."""
        self.status.phase = "draining"
        if self.store.cold is not None:
            self.store.cold.hurry()
        self.redrives.stop_all()
        self.wake_all()

    def wake_all(self) -> None:
        """Let every waiting reader look at the state of the daemon again."""
        for topic in list(self.registry.topics.values()):
            topic.wake()
            if topic.queue is not None:
                topic.queue.ring()
            elif topic.groups is not None:
                topic.groups.ring()

    def fence(self, error: ApiError) -> None:
        """Another process may own the data. Nothing changes any more, reads go on."""
        self.registry.common.is_fenced = True
        self.store.fence(error)
        self.wake_all()

    async def quiesce(self) -> None:
        """Wait until nothing is on its way on any topic (after `start_draining`), changes whose client has gone
        included. Changes that wait for a bucket that is away are not waited for: the next start archives them."""
        if self.store.round_waits.is_away:
            self.registry.common.leaves_in_doubt = True
            self.store.round_waits.fail(
                ApiError("shutting_down", "the daemon is shutting down, and the bucket is away", retry_after_s=1)
            )
        await self.topic_lifecycle.creations_ended()
        await self.stages.ended()
        await self.stage_commits.ended()
        await self._jobs.ended()
        for topic in list(self.registry.by_id.values()):
            await settled(topic)
            if not self.store.failed(topic.shard):
                await topic.drained()

    async def recover(self) -> None:
        """Rebuild everything from the disk; from here on the shard writers may run.

        Raises `Damage` in strict mode, DataDirError, OSError, `UnknownFrameType`.
        """
        await self.restore(await self.store.open())
        await self._offload.run(Pool.FILES, self.store.write_clock_mark)
        if self.store.layout_differs:
            await self.compactor.change_layout()
        elif self.store.salvaged or self.store.short_of_snapshots:
            for _ in range(KEPT):  # what salvage has decided is in both snapshots before anybody is served
                await self.compactor.checkpoint_at_start()

    async def restore(self, recovered: RecoveredState) -> None:
        """Make live topics of what recovery has found."""
        await restore(
            recovered,
            store=self.store,
            registry=self.registry,
            topic_lifecycle=self.topic_lifecycle,
            routers=self.routers,
            reclaimer=self.reclaimer,
            tables=self.tables,
        )
        self.length_check.pending = self.store.unchecked
        await self.evidence.compare_keys()

    # -- scheduled work ----------------------------------------------------------------------------------------------

    def _priority_of(self, item: Topic | Fanout[Any]) -> int:
        """Effective priority; that of routers is one band lower under pressure, but not so low as to be paused."""
        if isinstance(item, Topic):
            return self.registry.priority(item)
        priority = self.registry.priority(item.topic)
        if priority > 0 and self.governor.steps.routers_lowered:
            return max(priority - BAND, 0)
        return priority

    def _serve(self, item: Topic | Fanout[Any]) -> ServiceResult:
        return self.delivery.serve(item) if isinstance(item, Topic) else self.forwarders.serve(item)

    def _is_synced(self, shard: int, end: LogPosition) -> bool:
        return self.store.writers[shard].synced_position()[0] >= end

    def _when_synced(self, shard: int, call: Callable[[], None]) -> None:
        with suppress(ApiError):  # a failed shard syncs nothing any more
            self.store.writers[shard].submit(ControlBatch(NOTHING, 0, apply=lambda batch: call()))

    def _shard_failed(self, shard: int) -> None:
        self.status.read_only = True
        if self._background.running:
            self._background.start_soon(self._note_failure, shard)

    async def _note_failure(self, shard: int) -> None:
        try:
            await self._offload.run(Pool.FILES, partial(self.store.note_failure_blocking, shard))
        except OSError as error:
            log.error(
                "shard_failure_not_noted",
                shard=shard,
                error=str(error),
                consequence="unless another shard could note it, the next start takes unsynced records for safe",
            )

    # -- maintenance -------------------------------------------------------------------------------------------------

    def expire_unused(self) -> None:
        """Called every second: drop stages and consumers that nobody uses, forget commits and transactions whose window
        is over, delete consumed records, and records with data null after their time."""
        self.stages.expire()
        self.stage_commits.expire()
        self.transactions.expire()
        self._unused.expire()
        self._consumed.work()
        self._null_expiry.work()

    async def announce_last_checkpoint(self) -> None:
        """Before the writers of a clean stop end: what the checkpoint after them needs in the log."""
        with suppress(ApiError):  # a failed shard has no checkpoint after it
            await self.compactor.announce()

    async def checkpoint(self, hold_ms: int) -> tuple[list[str], dict[int, list[int]]]:
        """A checkpoint now, and every file kept as it is for `hold_ms` (`docs/spec/api.md` section 11): the files it
        consists of, and where replay begins by shard.

        Raises `503 read_only` on a failed shard or disk.
        """
        try:
            files, taken = await self.compactor.name_files(hold_ms)
        except OSError as error:
            raise read_only(f"the checkpoint has failed ({error.strerror or error})") from error
        return files, taken.positions
