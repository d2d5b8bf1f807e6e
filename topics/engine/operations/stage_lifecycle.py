"""Stages: records that are appended in private until they are committed (`docs/spec/pipeline.md` section 1).

A stage is a topic that clients cannot name as a topic. It has its own log, in the class of its target but at least
`disk`, and the rules of appends (admission, repeats, checkpoints, quotas) apply to it. No list shows it, and it has no
readers, routers or retention. Responsible for making stages, appending to them, dropping them on request or after
`TOPICS_STAGE_TTL_MS` without use, and for the limits of their number. They are published by
`topics.engine.operations.stage_commits`.
"""

from __future__ import annotations

from functools import partial

import trio

from topics.config import Settings
from topics.engine.commits import Commits, Creation
from topics.engine.operations.append import Appends
from topics.engine.operations.new_jobs import refuse_jobs
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.log.seq_ceiling import MIN_CEILING_BLOCK
from topics.log.stages import WINDOW_MS, StageTarget, stage_label
from topics.log.topic_config import config_to_wire
from topics.model import SYNCED_CLASSES, AppendRequest, CheckedAppend, Performance, StageResult, TopicConfig
from topics.runtime.background import BackgroundTasks
from topics.storage.store import Store
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import FrameType, UnsealedFrames, encode_control
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class StageLifecycle:
    """The calls on stages, except for their commit. Made once by the engine; `expire` must be called every second."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        registry: Registry,
        *,
        commits: Commits,
        topic_lifecycle: TopicLifecycle,
        appends: Appends,
        background: BackgroundTasks,
    ) -> None:
        self._settings = settings
        self._store = store
        self._registry = registry
        self._commits = commits
        self._topic_lifecycle = topic_lifecycle
        self._appends = appends
        self._background = background
        self._making: dict[StageTarget, Creation] = {}

    # -- appends -----------------------------------------------------------------------------------------------------

    async def append(self, name: str, stage: str, request: CheckedAppend, perf: Performance) -> StageResult:
        """Append a checked batch to a stage of the topic; returns at its commit point. Makes topic and stage if they do
        not exist.

        Raises the errors of an append, and `409 stage_closed`. Cancelling as for an append.
        """
        refuse_jobs(request.jobs, "a stage")
        config = self._appends.inline_config(name, request)
        find, make = partial(self._find, name, stage), partial(self._make, name, stage, request, config)
        result = await self._appends.append_to(find, make, request, perf)
        self._note_use(name, stage)
        return StageResult(
            topic=name, stage=stage, count=result.head_seq, created=result.created, deduped=result.deduped
        )

    def _find(self, name: str, stage: str) -> Topic | None:
        """Return the stage of a name, None if there is none. Raises `409 stage_closed`."""
        target = self._registry.topics.get(name)
        if target is None:
            return None
        if target.commit_keys is not None and target.commit_keys.has_closed(stage):
            raise ApiError(
                "stage_closed",
                f"stage {stage!r} of topic {name!r} was committed",
                detail={"topic": name, "stage": stage},
            )
        return self._note_use(name, stage)

    def _note_use(self, name: str, stage: str) -> Topic | None:
        """Return the stage of a name if it exists, and restart its time without use."""
        target = self._registry.topics.get(name)
        found = target.stages.get(stage) if target is not None and target.stages is not None else None
        if found is not None:
            found.used_at = self._registry.windows.now_ms()
        return found

    async def _make(self, name: str, stage: str, request: AppendRequest, config: TopicConfig | None) -> bool:
        """Make the stage of an append, and its topic before it, or wait for the task that is making it. Return True if
        the topic was made here."""
        target = self._registry.topics.get(name)
        if target is None:
            return await self._appends.create(name, request, config)
        if not await self._commits.settled(target):
            return False
        of = StageTarget(target.id, stage)
        making = self._making.get(of)
        if making is not None:
            await making.wait(self._commits)
            return False
        self._check_room()
        self._commits.check_class(target.config)
        self._making[of] = Creation()
        wait = partial(self._commits.wait_begun, remote=target.is_remote)
        await self._background.finish(partial(self._make_synced, target, of), wait)
        return False

    def _check_room(self) -> None:
        """Refuse another stage beyond the limits. Raises 429."""
        maximum = self._settings.max_stages
        if maximum and len(self._registry.stages) + len(self._making) >= maximum:
            raise self._registry.throttle("max_stages", maximum)

    async def _make_synced(self, target: Topic, of: StageTarget) -> None:
        """Make a stage and return once it is on disk. The stage has its own idempotency keys, which end with it."""
        registry = self._registry
        try:
            durability = target.config.durability
            is_synced = durability in SYNCED_CLASSES
            config = TopicConfig(
                durability=durability if is_synced else "disk",
                durable=is_synced,
                idempotency_window_ms=WINDOW_MS,
            )
            topic_id = registry.next_topic_id
            registry.next_topic_id += 1
            shard = self._store.shard_of(topic_id)
            self._making[of].begin(self._store.writers[shard], self._commits)
            stage = registry.make(topic_id, stage_label(target.name, of.name), config, shard)
            stage.stage = of
            ceiling = 0 if is_synced else MIN_CEILING_BLOCK
            stage.last_write_ms = now = registry.now_ms()
            stage.used_at = registry.windows.now_ms()
            payload = {
                "name": stage.name,
                "stage": of.name,
                "target": of.target_id,
                "config": config_to_wire(config),
                "ceiling": ceiling,
            }

            def apply(batch: ControlBatch) -> None:
                if target.deleted:
                    return  # its target was deleted; a restart would drop the stage too
                stage.ceiling.set(ceiling)
                stage.on_disk.applied_end = batch.end
                self._topic_lifecycle.adopt(stage)

            data = encode_control(FrameType.STAGE, payload, topic_id=topic_id, ts=now)
            remote = stage.is_remote
            batch = ControlBatch(data, 1, topic_id=topic_id, wants_sync=True, wants_archive=remote, apply=apply)
            self._store.writers[shard].submit(batch)
            await batch.wait_synced()
        finally:
            self._making.pop(of).ended.set()

    async def ended(self) -> None:
        """Wait until the stages that are being made now exist, or have failed."""
        for making in list(self._making.values()):
            await making.ended.wait()

    # -- dropping ----------------------------------------------------------------------------------------------------

    async def delete(self, name: str, stage: str) -> bool:
        """Drop a stage with all its records. Return True if there was one; a committed stage does not count. Synced
        when it returns."""
        while True:
            target = self._registry.topics.get(name)
            if target is None:
                return False
            making = self._making.get(StageTarget(target.id, stage))
            if making is not None:
                await making.wait(self._commits)
                continue
            found = target.stages.get(stage) if target.stages is not None else None
            if found is None:
                return False
            if not await self._commits.settled(found):
                continue
            self._commits.check_changeable(found)
            found.barrier = trio.Event()
            wait = partial(self._commits.wait_begun, remote=found.is_remote)
            await self._background.finish(partial(self._drop, found), wait)
            return True

    def expire(self) -> None:
        """Drop the stages that have not been used for too long. Those being committed count as used. Called every
        second."""
        now = self._registry.windows.now_ms()
        for stage in list(self._registry.stages.values()):
            if stage.used_at is None:
                stage.used_at = now
            idle = now - stage.used_at > self._settings.stage_ttl_ms
            if idle and stage.barrier is None and stage.quiet and not self._store.failed(stage.shard):
                log.info("stage_expired", stage=stage.name, records=stage.log.count)
                stage.barrier = trio.Event()
                self._background.start_soon(self._try_drop, stage)

    async def drop_damaged(self, stage: Topic) -> None:
        """Drop a stage that has lost records, after a commit was refused for this reason. The caller has set the
        stage's barrier, which ends when the stage is dropped. If its shard has failed, the next start drops the
        stage."""
        log.error("stage_damaged", stage=stage.name, records=stage.log.count, acked=stage.log.head_seq)
        await self._try_drop(stage)

    async def _try_drop(self, stage: Topic) -> None:
        try:
            await self._drop(stage)
        except ApiError as error:  # the shard has failed: the next start drops the stage, or its expiry does
            log.warning("stage_not_dropped", stage=stage.name, error=str(error))

    async def _drop(self, stage: Topic) -> None:
        """Drop a stage. The caller has set its barrier."""

        def apply(batch: ControlBatch) -> None:
            if not stage.deleted:  # else it was deleted with its target meanwhile
                self._topic_lifecycle.forget(stage)

        try:
            await stage.drained()
            remote = stage.is_remote
            batch = ControlBatch(
                self._gone(stage), 1, topic_id=stage.id, wants_sync=True, wants_archive=remote, apply=apply
            )
            self._commits.writer(stage).submit(batch)
            await batch.wait_synced()
        finally:
            stage.lift_barrier()

    def forget(self, stage: Topic) -> None:
        """Forget a stage that a commit on disk has closed. The deletion is logged too, because commits remember closed
        names only for a while; nothing waits for that."""
        self._topic_lifecycle.forget(stage)
        try:
            self._commits.writer(stage).submit(ControlBatch(self._gone(stage), 1, topic_id=stage.id))
        except ApiError:
            return  # recovery deletes it again

    def _gone(self, stage: Topic) -> UnsealedFrames:
        return encode_control(
            FrameType.TOPIC_DELETE, {"name": stage.name}, topic_id=stage.id, ts=self._registry.now_ms()
        )
