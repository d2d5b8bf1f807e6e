"""The engine: the one door through which HTTP, and later queues, routers and jobs, change and read topics.

Responsible for its own life (from recovery to drain), for what is said about topics (state, list, figures), and for
putting the parts together that do the rest:

    appending     one append: admission, seqs, frames, publication      columns      its records, column by column
    deleting      one deletion of records                               idempotency  the keys of appends
    reading       one diff and its long poll                            loading      records that are not in memory
    exporting     all of a range, slice by slice
    staging       stages, and appends to them                           stage_commits  what was staged, published
    configuring   topics created, reconfigured, deleted                 ceilings     reserves of seqs
    committing    the way of a decided change into its shard            background   work that outlives its request
    queueing      the calls of a queue                                  claiming     who gets which jobs
    registry      which topics there are, totals, the clock             topic        a live topic, and a commit
    watching      live delivery                                         collecting   what is deliverable, in steps

What a topic's state means is `topics.log`'s business, how bytes reach the disk is `topics.storage`'s. Between two
awaits the loop is the lock: seqs are assigned and frames queued without one in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final

import trio
from msgspec import UNSET
from sortedcontainers import SortedDict

from topics.auth.keys import OPEN, Key
from topics.config import Settings
from topics.engine.ceilings import Ceilings
from topics.engine.commits import Commits
from topics.engine.delivery.topic_delivery import Delivery
from topics.engine.delivery.watch_sessions import Watching
from topics.engine.forwarding.forwarders import Forwarding
from topics.engine.forwarding.router_lifecycle import Routers
from topics.engine.idempotency_keys import IdempotencyKeys
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.operations.append import Appending
from topics.engine.operations.delete import Deleting
from topics.engine.operations.export import Export, Exporting, ExportRequest
from topics.engine.operations.read import Reading
from topics.engine.operations.stage_commits import StageCommits
from topics.engine.operations.stage_lifecycle import Staging
from topics.engine.operations.topic_lifecycle import Configuring
from topics.engine.queues.claims import Claiming
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.lease_commits import LeaseCommits
from topics.engine.queues.queue_calls import Queueing, Work
from topics.engine.registry import EngineStatus, Registry, names_with
from topics.engine.topic import Fanout, Topic
from topics.errors import ApiError, read_only, topic_not_found
from topics.log.span import NotLoaded, Span
from topics.log.tag_match import Match
from topics.model import (
    AppendRequest,
    AppendResult,
    CheckedAppend,
    ClaimRequest,
    ClaimResult,
    CommitResult,
    DeleteResult,
    HeldRequest,
    HeldResult,
    Job,
    Performance,
    ReadRequest,
    ReadResult,
    RouterPatch,
    RouterState,
    StageResult,
    TopicConfig,
    TopicConfigPatch,
    TopicState,
    TopicSummary,
)
from topics.runtime.background import Background
from topics.runtime.clock import Clock
from topics.runtime.offload import Kind, Offload
from topics.sched.governor import Governor, Hands
from topics.sched.workers import Scheduler, Served
from topics.storage.cache.index_cache import IndexCache
from topics.storage.cache.payload_cache import PayloadCache
from topics.storage.files.fs import Fs
from topics.storage.maintenance.compactor import Compactor
from topics.storage.maintenance.file_holds import Upkeep
from topics.storage.maintenance.reclaimer import Reclaimer
from topics.storage.maintenance.relocator import Relocator
from topics.storage.maintenance.topic_checkpoint import Storing
from topics.storage.recovery.length_check import LengthCheck
from topics.storage.recovery.recovered_state import Recovered
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Shelf
from topics.storage.snapshots.snapshot import KEPT
from topics.storage.store import Store
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import NOTHING
from topics.storage.wal.wal_files import Position
from topics.telemetry.figures import DeliveryFigures, EngineFigures, TopicFigures, WalFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

METRIC_ROUTERS: Final = 1000
METRIC_TOPICS: Final = 1000
"""Routers and topics with figures of their own in the metrics (`docs/spec/api.md` section 11)."""

CENSUS_STEP: Final = 1000
"""Topics and segments that are counted in one step of the loop, which is below a millisecond."""

BAND: Final = 250
"""Between two bands of priority (`docs/spec/runtime.md` section 4)."""


class Engine:
    """See the module. Made once by the daemon; `run` must be running while the other methods are called."""

    def __init__(
        self,
        settings: Settings,
        *,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        cold: SegmentStore | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.status = EngineStatus(clock.monotonic_ms())
        self.store: Store = Store(
            settings, fs=fs, clock=clock, offload=offload, on_failure=self._shard_failed, cold=cold
        )
        self.cache = PayloadCache(settings.cache_bytes)
        self.registry = Registry(clock, self.store.windows, self.cache)
        self._fs = fs
        self._offload = offload
        self._background = Background()
        self.restarts: Counter[str] = Counter()
        """Of background tasks after an unexpected error, by their names; the daemon counts."""
        self._commits = Commits(self.store, self.registry)
        self._indexes = IndexCache(settings.cache_bytes)
        self._loader = Loader(
            self.registry, self.store, self._indexes, self._background, fs=fs, clock=clock, offload=offload
        )
        self._make_records()
        self._make_delivery()
        self._make_routing(self._make_upkeep())
        self._make_queues()

    def _make_records(self) -> None:
        """Topics, and what is done to their records."""
        settings, registry, commits, loader = self.settings, self.registry, self._commits, self._loader
        self._ceilings = Ceilings(self.clock, registry, commits)
        self._keys = IdempotencyKeys(settings, registry)
        self._configuring = Configuring(
            settings,
            self.store,
            registry,
            commits=commits,
            ceilings=self._ceilings,
            keys=self._keys,
            loader=loader,
            background=self._background,
        )
        self._appending = Appending(
            settings,
            self.clock,
            registry,
            commits=commits,
            ceilings=self._ceilings,
            keys=self._keys,
            configuring=self._configuring,
            loader=loader,
        )
        self._deleting = Deleting(
            settings, self.clock, registry, commits=commits, loader=loader, background=self._background
        )
        self._staging = Staging(
            settings,
            self.store,
            registry,
            commits=commits,
            configuring=self._configuring,
            appending=self._appending,
            background=self._background,
        )
        self._stage_commits = StageCommits(
            self.clock,
            registry,
            self.store,
            commits=commits,
            ceilings=self._ceilings,
            appending=self._appending,
            staging=self._staging,
            loader=loader,
            background=self._background,
        )
        self._reading = Reading(self.status, registry, loader)
        self._exporting = Exporting(self.status, registry, loader, self.clock)

    def _make_delivery(self) -> None:
        """Who is told of news, and when."""
        self._scheduler: Scheduler[Topic | Fanout[Any]] = Scheduler(
            self.settings.delivery_workers, self._priority_of, self._serve
        )
        common = self.registry.common
        common.news = self._scheduler.mark
        common.is_synced = self._is_synced
        common.when_synced = self._when_synced
        self.delivery = Delivery(self.registry, self._loader, self._background, self._scheduler)
        self.watching = Watching(self.settings, self.registry, self.delivery)
        hands = Hands(
            busy_share=self._offload.busy_share,
            set_commit_window=self._commits.set_window,
            set_saturated=self._commits.set_saturated,
            announce_pause=self.delivery.announce_pause,
        )
        self.governor = Governor(self._scheduler, hands)

    def _make_upkeep(self) -> Upkeep:
        """What keeps the files in order."""
        settings, registry, offload = self.settings, self.registry, self._offload
        self.length_check = LengthCheck(self._loader.spans, registry.by_id, registry.account, offload)
        storing = Storing(settings, self.store, registry, self._indexes, fs=self._fs, clock=self.clock, offload=offload)
        upkeep = Upkeep(self.store, registry, self.clock)
        self.compactor = Compactor(settings, self.store, registry, storing, upkeep, fs=self._fs, offload=offload)
        self.reclaimer = Reclaimer(
            settings,
            registry,
            storing,
            upkeep,
            self._loader.spans,
            self._indexes,
            self._loader.expire,
            clock=self.clock,
            offload=offload,
        )
        self.relocator = Relocator(settings, registry, storing, upkeep, offload=offload)
        registry.on_removed = self.reclaimer.remove_topic
        return upkeep

    def _make_routing(self, upkeep: Upkeep) -> None:
        """Routers, and who forwards for them."""
        self.forwarding = Forwarding(
            self.settings,
            self.clock,
            self.status,
            self.registry,
            self.store,
            commits=self._commits,
            ceilings=self._ceilings,
            appending=self._appending,
            loader=self._loader,
            background=self._background,
            scheduler=self._scheduler,
            is_busy=upkeep.is_replacing,
        )
        self._routers = Routers(
            self.settings,
            self.clock,
            self.registry,
            commits=self._commits,
            configuring=self._configuring,
            forwarding=self.forwarding,
            background=self._background,
        )
        self._configuring.on_gone = self._routers.forget_topic

    def _make_queues(self) -> None:
        """Jobs: who is given which, and what becomes of them."""
        lease_commits = LeaseCommits(self.clock, self.registry, commits=self._commits, loader=self._loader)
        self._dead_letters = dead_letters = DeadLetters(
            self.status,
            self.registry,
            commits=self._commits,
            lease_commits=lease_commits,
            appending=self._appending,
            loader=self._loader,
            background=self._background,
        )
        claiming = Claiming(
            self.status,
            commits=lease_commits,
            loader=self._loader,
            background=self._background,
            dead_letters=dead_letters,
        )
        self.queueing = Queueing(
            self.settings,
            self.registry,
            commits=self._commits,
            lease_commits=lease_commits,
            claiming=claiming,
            dead_letters=dead_letters,
            background=self._background,
        )
        self._configuring.on_changed = self.queueing.look_after

    @property
    def topics(self) -> SortedDict[str, Topic]:
        """The live topics by name."""
        return self.registry.topics

    @property
    def by_id(self) -> dict[int, Topic]:
        """The live topics by id, stages among them."""
        return self.registry.by_id

    @property
    def next_topic_id(self) -> int:
        """What the next topic's id will be."""
        return self.registry.next_topic_id

    @property
    def total_records(self) -> int:
        """Live records in all topics."""
        return self.registry.total_records

    @property
    def total_bytes(self) -> int:
        """Bytes of the live records in all topics."""
        return self.registry.total_bytes

    @property
    def pending_bytes_total(self) -> int:
        """Bytes of the records that are on their way, in all topics."""
        return self.registry.common.bytes_on_the_way

    @property
    def key_count(self) -> int:
        """Idempotency keys that are remembered or on their way, in all topics."""
        return self._keys.count

    def now_ms(self) -> int:
        """The clock by which retention judges: wall time that never steps back."""
        return self.registry.now_ms()

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
        self.forwarding.start_all()
        for topic in self.topics.values():
            self.queueing.look_after(topic)

    def start_draining(self) -> None:
        """No new work; long polls end with 503."""
        self.status.phase = "draining"
        if self.store.cold is not None:
            self.store.cold.hurry()
        self.wake_all()

    def wake_all(self) -> None:
        """Let every waiting reader look at the state of the daemon again."""
        for topic in list(self.topics.values()):
            topic.wake()
            if topic.queue is not None:
                topic.queue.ring()

    async def quiesce(self) -> None:
        """Wait until nothing is on its way on any topic (after `start_draining`), changes whose client has gone
        included."""
        await self._configuring.creations_ended()
        await self._staging.ended()
        await self._stage_commits.ended()
        await self._dead_letters.ended()
        for topic in list(self.by_id.values()):
            if topic.barrier is not None:
                await topic.barrier.wait()
            if not self.store.failed(topic.shard):
                await topic.drained()

    async def recover(self) -> None:
        """Rebuild everything from the disk; from here on the shard writers may run.

        Raises `Damage` in strict mode, DataDirError, OSError, `UnknownFrameType`.
        """
        await self._restore(await self.store.open())
        self.length_check.pending = self.store.unchecked
        await self._offload.run(Kind.FILES, self.store.write_clock_mark)
        if self.store.layout_differs:
            await self.compactor.change_layout()
        elif self.store.salvaged or self.store.short_of_snapshots:
            for _ in range(KEPT):  # what salvage has decided is in both snapshots before anybody is served
                await self.compactor.checkpoint_at_start()

    async def _restore(self, recovered: Recovered) -> None:
        """Take over what recovery has found, in slices."""
        registry = self.registry
        registry.next_topic_id = max(registry.next_topic_id, recovered.next_topic_id)
        registry.time_floor = max(registry.time_floor, recovered.clock)
        targets_first = sorted(recovered.topics.values(), key=lambda found: found.stage is not None)
        for i, found in enumerate(targets_first):
            topic = registry.make(found.id, found.name, found.config, self.store.shard_of(found.id))
            topic.log = found.log
            if found.queue is not None:
                topic.set_queue(JobQueue(found.queue))
            topic.assigned = topic.synced_seq = topic.blocks.written_seq = found.log.head_seq
            topic.last_ts = found.log.last_ts
            topic.ceiling = topic.ceiling_queued = found.ceiling
            topic.keys = found.keys
            topic.floor_logged = found.log.losses.evict_floor
            topic.applied_end = found.end if found.end.ordinal >= 0 else None
            topic.last_write_ms, topic.last_read_ms = found.last_write, found.last_read
            topic.incoming = found.incoming or None
            topic.origins = found.origins
            topic.stage, topic.commit_keys = found.stage, found.commit_keys
            # What was appended since the checkpoint says nothing of this clock: the stage counts as used now.
            topic.used_at = found.used_at if found.part is not None else None
            topic.part = found.part
            topic.base = found.base if found.part is None else None
            topic.part_end = topic.applied_end if found.part is not None else None
            if found.segments:
                topic.shelf = Shelf()
                topic.shelf.segments = {segment for segment in found.segments if segment.tier != "gone"}
                topic.shelf.earliest_stored = found.log.earliest_seq
            self._configuring.adopt(topic)
            if found.copies is not None:
                topic.copies = found.copies
                registry.common.copying[topic] = None
            if topic.part is not None:
                self.registry.changed.discard(topic)  # nothing has happened since its part was made
                if topic.shelf is not None:
                    # What the part names without needing it may or may not be there still.
                    needed = {span.segment for span in topic.log.stored.all()}
                    topic.shelf.gone = [segment for segment in topic.shelf.segments if segment not in needed]
            if i % 256 == 255:
                await trio.lowlevel.checkpoint()
        self._routers.adopt()
        for topic_id in recovered.copied_topics - registry.by_id.keys():
            self.reclaimer.remove_topic(topic_id, None)  # as soon as nobody needs them any more

    # -- what is scheduled -------------------------------------------------------------------------------------------

    def _priority_of(self, item: Topic | Fanout[Any]) -> int:
        """Effective priority; that of routers is one band lower under pressure, but not so low as to be paused."""
        if isinstance(item, Topic):
            return self.registry.priority(item)
        priority = self.registry.priority(item.topic)
        if priority > 0 and self.governor.steps.routers_lowered:
            return max(priority - BAND, 0)
        return priority

    def _serve(self, item: Topic | Fanout[Any]) -> Served:
        return self.delivery.serve(item) if isinstance(item, Topic) else self.forwarding.serve(item)

    def _is_synced(self, shard: int, end: Position) -> bool:
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
            await self._offload.run(Kind.FILES, partial(self.store.note_failure_blocking, shard))
        except OSError as error:
            log.error(
                "shard_failure_not_noted",
                shard=shard,
                error=str(error),
                consequence="unless another shard could note it, the next start takes unsynced records for safe",
            )

    def lower_idle_ceilings(self) -> None:
        """Called every second: topics that have had no append for one and are synced give their reserve back."""
        self._ceilings.lower_idle()

    def lower_all_ceilings(self) -> None:
        """Before a clean stop: no seq stays reserved."""
        self._ceilings.lower_all()

    async def expire_keys(self) -> None:
        """Called every second: forget idempotency keys whose window is over, in slices. Cancelling leaves the rest for
        the next call."""
        await self._keys.expire()

    # -- records -----------------------------------------------------------------------------------------------------

    async def append(self, name: str, request: AppendRequest, perf: Performance) -> AppendResult:
        """Append a checked batch (`docs/spec/api.md` section 4); returns at its commit point.

        Raises the `ApiError`s of that section. Cancelling before seqs are assigned leaves nothing; after that the
        batch is committed all the same and only the answer is lost.
        """
        return await self._appending.append(name, request, perf)

    async def delete_records(
        self, name: str, before_seq: int | None, match: Match | None, perf: Performance
    ) -> DeleteResult:
        """Delete records that are present now (`docs/spec/api.md` section 6); returns at the commit point. Silent for
        readers, always."""
        return await self._deleting.delete_records(name, before_seq, match, perf)

    async def read(self, name: str, request: ReadRequest, perf: Performance) -> ReadResult:
        """One diff, with its long poll (`docs/spec/api.md` section 5). Raises 404, and 503 when the daemon stops while
        it waits."""
        await self.catch_up((name,))
        return await self._reading.read(name, request, perf)

    async def export(self, name: str, request: ExportRequest) -> Export:
        """All of a range of a topic, to be taken slice by slice (`docs/spec/pipeline.md` section 1). Raises 404."""
        await self.catch_up((name,))
        return await self._exporting.open(name, request)

    def caps_of(self, name: str) -> tuple[int, int]:
        """The most records and bytes that a topic may hold, 0 for no cap and of a topic that does not exist."""
        topic = self.registry.topics.get(name)
        return (topic.config.cap_records, topic.config.cap_bytes) if topic is not None else (0, 0)

    # -- stages ------------------------------------------------------------------------------------------------------

    async def stage(self, topic: str, stage: str, request: CheckedAppend, perf: Performance) -> StageResult:
        """Append a checked batch to a stage of a topic, which is made where there is none (`docs/spec/pipeline.md`
        section 1).

        Raises what an append raises, and `409 stage_closed`.
        """
        return await self._staging.append(topic, stage, request, perf)

    async def commit_stages(
        self,
        topic: str,
        stages: Sequence[str],
        idempotency_key: str,
        perf: Performance,
        *,
        disable_backpressure: bool = False,
    ) -> CommitResult:
        """Publish what stages hold, one after another, all of it at once and once (`docs/spec/pipeline.md` section 1);
        on disk when it returns.

        Raises `404 topic_not_found`, `404 stage_not_found`, and what an append of all of it would raise. Cancelling
        stops only the waiting.
        """
        return await self._stage_commits.commit(
            topic, stages, idempotency_key, perf, disable_backpressure=disable_backpressure
        )

    async def delete_stage(self, topic: str, stage: str) -> bool:
        """Drop a stage with all it holds; whether there was one. Raises `404 topic_not_found`."""
        return await self._staging.delete(topic, stage)

    def expire_stages(self) -> None:
        """Called every second: drop stages that nobody uses, forget commits whose window is over."""
        self._staging.expire()
        self._stage_commits.expire()

    # -- routers -----------------------------------------------------------------------------------------------------

    async def put_router(self, name: str, patch: RouterPatch, *, create: bool = True) -> tuple[RouterState, bool]:
        """Create or update a router (`docs/spec/api.md` section 7); its state, and whether it was created. Synced when
        it returns. Without `create`, raises 404 for a router that is missing."""
        return await self._routers.put(name, patch, create=create)

    async def router_state(self, name: str) -> RouterState:
        """A router as of now. Raises `404 router_not_found`."""
        return self._routers.state(name)

    async def list_routers(
        self,
        prefix: str,
        source: str | None,
        dest: str | None,
        after: str | None,
        page_size: int,
        key: Key = OPEN,
    ) -> tuple[list[RouterState], bool]:
        """A page of the routers that `key` covers with both ends, in name order, and whether another exists."""
        return self._routers.page(prefix, source, dest, after, page_size, key)

    def router_ends(self, name: str) -> tuple[str, str] | None:
        """Source and dest of a router; None if there is none."""
        return self._routers.ends(name)

    async def delete_router(self, name: str) -> bool:
        """Delete a router; whether it was there. Its copies stay. Synced when it returns."""
        return await self._routers.delete(name)

    async def catch_up(self, names: Iterable[str]) -> None:
        """Before these topics are read: forward to them what is due now, within a second (`docs/spec/api.md` section
        7)."""
        await self._routers.catch_up(names)

    # -- queues ------------------------------------------------------------------------------------------------------

    async def claim(self, name: str, request: ClaimRequest, perf: Performance) -> ClaimResult:
        """Lease jobs to a node (`docs/spec/api.md` section 9). Cancelling leaves nothing leased that nobody has heard
        of."""
        await self.catch_up((name,))
        return await self.queueing.claim(name, request, perf)

    def has_window(self, name: str) -> bool:
        """Whether claims of a topic wait, whatever they say."""
        return self.queueing.has_window(name)

    def ready_jobs(self, name: str) -> int:
        """How many jobs of a queue are ready now. Raises 404 and 409."""
        return self.queueing.ready_jobs(name)

    def give_back(self, name: str, jobs: Sequence[Job]) -> None:
        """End the leases of a claim whose answer did not reach its client."""
        self.queueing.give_back(name, jobs)

    async def ack(self, name: str, request: HeldRequest, perf: Performance) -> HeldResult:
        """Delete jobs that a node holds."""
        return await self.queueing.ack(name, request, perf)

    async def nack(self, name: str, request: HeldRequest, delay_ms: int, perf: Performance) -> HeldResult:
        """Give jobs back that a node holds, to be claimed again in `delay_ms`."""
        return await self.queueing.nack(name, request, delay_ms, perf)

    async def extend(self, name: str, request: HeldRequest, lease_ms: int, perf: Performance) -> HeldResult:
        """Hold jobs that a node holds until `lease_ms` from now."""
        return await self.queueing.extend(name, request, lease_ms, perf)

    async def open_work(self, name: str, node: str, most: int, lease_ms: int | None) -> Work:
        """A stream of jobs, for `next_jobs`; `close_work` has to be called."""
        await self.catch_up((name,))
        return self.queueing.open_work(name, node, most, lease_ms)

    async def next_jobs(self, work: Work) -> list[Job]:
        """Jobs for a stream, once it has room for some and there are any."""
        return await self.queueing.next_jobs(work)

    def close_work(self, work: Work) -> None:
        """A stream has ended: everybody else may have its jobs."""
        self.queueing.close_work(work)

    # -- topics ------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The live topic of a name. Raises `404 topic_not_found`."""
        return self.registry.topic(name)

    async def put_topic(self, name: str, patch: TopicConfigPatch, *, create: bool = True) -> tuple[TopicConfig, bool]:
        """Create or reconfigure a topic (`docs/spec/api.md` section 3); the resolved config and whether it was created.
        Synced when it returns. Without `create`, raises 404 for a topic that is missing."""
        return await self._configuring.put(name, patch, create=create)

    async def delete_topic(self, name: str, *, if_empty: bool) -> tuple[bool, list[str]]:
        """Delete a topic with all it has (`docs/spec/api.md` section 3); whether it was there, and the routers that
        went with it."""
        return await self._configuring.delete(name, if_empty=if_empty)

    async def topic_state(self, name: str, *, touch: bool) -> TopicState:
        """The state of a topic as of now (`docs/spec/api.md` section 3). Raises 404."""
        await self.catch_up((name,))
        topic = self.registry.topic(name)
        while True:
            await self._loader.expire(topic)
            if topic.deleted:
                raise topic_not_found(name)
            if topic.working is not None:
                await topic.working.wait()
            elif self.queueing.sweep(topic):
                await trio.lowlevel.checkpoint()
            else:
                break
        if touch:
            self.registry.touch(topic)
        queue = self.queueing.state(topic)
        log_ = topic.log
        return TopicState(
            topic=name,
            type=topic.config.type,
            epoch=topic.id,
            head_seq=log_.head_seq,
            earliest_seq=log_.earliest_seq,
            next_seq=log_.head_seq + 1,
            count=log_.count,
            bytes=log_.bytes,
            synced_seq=0 if topic.ephemeral else min(topic.synced_seq, log_.head_seq),
            config=topic.config,
            effective_priority=self.registry.priority(topic),
            last_write_ts=topic.last_write_ms,
            last_read_ts=topic.last_read_ms,
            queue=UNSET if queue is None else queue,
        )

    async def list_topics(
        self, prefix: str, after: str | None, page_size: int, key: Key = OPEN
    ) -> tuple[list[TopicSummary], bool]:
        """A page of the topics that `key` covers, in name order, and whether another exists. The cost follows the
        page."""
        prefixes = key.covered(prefix)
        while True:
            try:
                return self._list(prefixes, after, page_size)
            except _NotReady as missing:
                await self._loader.expire(missing.topic)

    def _list(self, prefixes: Sequence[str], after: str | None, page_size: int) -> tuple[list[TopicSummary], bool]:
        """One step of the loop, so that a page is of one moment. Raises _NotReady."""
        page: list[TopicSummary] = []
        for name in names_with(self.topics, prefixes, after):
            if len(page) == page_size:
                return page, True
            topic = self.topics[name]
            try:
                self.registry.expire(topic)
            except NotLoaded as missing:
                raise _NotReady(topic, missing.spans) from missing
            page.append(
                TopicSummary(
                    topic=name,
                    type=topic.config.type,
                    epoch=topic.id,
                    head_seq=topic.log.head_seq,
                    earliest_seq=topic.log.earliest_seq,
                    count=topic.log.count,
                    bytes=topic.log.bytes,
                    durable=topic.config.durable,
                    durability=topic.config.durability,
                    effective_priority=self.registry.priority(topic),
                )
            )
        return page, False

    async def figures(self, key: Key = OPEN) -> EngineFigures:
        """What the metrics show. Topics and routers that `key` covers have figures of their own; sums are over all.

        What is summed up by looking at every topic is so in steps of the loop; the rest is of one moment, after them.
        """
        census = await self._take_census()
        wal = WalFigures()
        for writer in self.store.writers:
            writer.figures.queue_depth = len(writer.queue)
            wal.add(writer.figures)
        names = list(islice(names_with(self.topics, key.covered(""), None), METRIC_TOPICS + 1))
        routers, routers_truncated = self._routers.samples(METRIC_ROUTERS, key)
        return EngineFigures(
            topics=len(self.topics),
            by_class=census.by_class,
            records_live=self.registry.total_records,
            bytes_live=self.total_bytes,
            ready=self.status.phase == "ready",
            recovery_progress=self.status.replay_progress,
            uptime_ms=self.clock.monotonic_ms() - self.status.started_ms,
            read_only=self.status.read_only or self.store.refuses_appends,
            wal=wal,
            topic_samples=[self._topic_figures(self.topics[name]) for name in names[:METRIC_TOPICS]],
            topics_truncated=len(names) > METRIC_TOPICS,
            throttled=dict(self.registry.throttled),
            segments=census.segments,
            cold_hanging=self.store.cold.hanging if self.store.cold is not None else 0,
            cold_timeouts=self.store.cold.timeouts if self.store.cold is not None else 0,
            cold_usable=self.store.cold_dir.is_ours,
            queue_topics=census.queue_topics,
            queue_leases=census.queue_leases,
            routers=len(self._routers),
            router_samples=routers,
            routers_truncated=routers_truncated,
            router_failures=self.forwarding.failures,
            restarts=dict(self.restarts),
            delivery=self._delivery_figures(),
        )

    def _topic_figures(self, topic: Topic) -> TopicFigures:
        with suppress(NotLoaded):  # metrics wait for nobody
            self.registry.expire(topic)
        log_ = topic.log
        return TopicFigures(
            topic.name, log_.head_seq, log_.earliest_seq, log_.count, log_.bytes, self.queueing.figures(topic)
        )

    async def _take_census(self) -> _Census:
        census = _Census()
        counted = 0
        for topic in list(self.registry.by_id.values()):
            if counted >= CENSUS_STEP:
                counted = 0
                await trio.lowlevel.checkpoint()
            counted += 1
            if topic.deleted or topic.stage is not None:  # meanwhile; or nobody knows of it
                continue
            census.by_class[topic.config.durability] += 1
            if topic.queue is not None:
                census.queue_topics += 1
                census.queue_leases += topic.queue.leases.in_flight
            if topic.shelf is not None:
                counted += len(topic.shelf.segments)
                for segment in topic.shelf.segments:
                    census.segments[segment.tier] += 1
        return census

    def _delivery_figures(self) -> DeliveryFigures:
        steps, scheduler = self.governor.steps, self.delivery.scheduler
        return DeliveryFigures(
            sse_connections=self.watching.places.sse,
            ws_connections=self.watching.places.ws,
            watch_sessions=self.watching.session_count,
            pressure=self.governor.pressure,
            coalesce_ms=steps.coalesce_ms,
            commit_window_ms=steps.commit_window_ms,
            lowest_paused=steps.lowest_paused,
            routers_lowered=steps.routers_lowered,
            saturated=steps.saturated,
            ready_set_depth=scheduler.depth,
            waits_ms=scheduler.waits_ms,
        )

    # -- upkeep ------------------------------------------------------------------------------------------------------

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


class _Census:
    """What is known only by looking at every topic."""

    def __init__(self) -> None:
        self.by_class = dict.fromkeys(("ephemeral", "memory", "disk", "fsync"), 0)
        self.segments = {"hot": 0, "cold": 0}
        self.queue_topics = 0
        self.queue_leases = 0


class _NotReady(Exception):
    """Columns of a topic are needed."""

    def __init__(self, topic: Topic, spans: tuple[Span, ...]) -> None:
        super().__init__(topic.name)
        self.topic = topic
        self.spans = spans
