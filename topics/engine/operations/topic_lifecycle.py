"""Topics as a whole: created, reconfigured, deleted (`docs/spec/api.md` section 3), each synced before it is answered.

Responsible for one change at a time per topic. A change sets a *barrier*: everything decided before it is published
first, and other tasks that want to change the topic wait for the barrier and then look the topic up again by its name
(`topics.engine.commits.Commits.settled`). Also responsible for turning an `ephemeral` topic into a stored one, and for
keeping dead-letter topics from being ephemeral. `topics.log.topic_config` checks configs; deleting records is in
`topics.engine.operations.delete`.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeVar

import trio

from topics.config import Settings
from topics.engine.ceilings import Ceilings
from topics.engine.commits import Commits, Creation
from topics.engine.doubts import Doubts
from topics.engine.idempotency_keys import IdempotencyKeys
from topics.engine.loader import Loader
from topics.engine.registry import Registry
from topics.engine.tables.topic_tables import TopicTables
from topics.engine.topic import Topic
from topics.errors import ApiError, invalid, topic_not_found
from topics.evidence.topic_tree import TopicTree, TreeIdentity
from topics.log.block import Block, block_with
from topics.log.bucket_ceiling import BucketCeiling
from topics.log.copies import Origin
from topics.log.losses import Gap
from topics.log.missing_columns import missing_below
from topics.log.retention import eviction_watermark
from topics.log.seq_ceiling import MIN_CEILING_BLOCK
from topics.log.span import FLAG_ORIGIN, NotLoaded
from topics.log.topic_config import config_to_wire, resolve_config, targets_of
from topics.log.topic_log import SeqRun
from topics.model import SYNCED_CLASSES, TopicConfig, TopicConfigPatch
from topics.runtime.background import BackgroundTasks
from topics.runtime.offload import Offload
from topics.storage.segments.topic_segments import SegmentSet
from topics.storage.store import Store
from topics.storage.wal import frames
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import FrameType, encode_control, joined, offsets_of, seal_batch

T = TypeVar("T")

RUN_RECORDS: Final = 1000
"""Records of an `ephemeral` topic that are written out in one batch at most."""


class TopicLifecycle:
    """The calls that create, reconfigure and delete topics. Made once by the engine. If the caller of a change is
    cancelled, the change continues in a background task."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        registry: Registry,
        *,
        commits: Commits,
        ceilings: Ceilings,
        keys: IdempotencyKeys,
        loader: Loader,
        tables: TopicTables,
        background: BackgroundTasks,
        offload: Offload,
    ) -> None:
        self._settings = settings
        self._store = store
        self._registry = registry
        self._commits = commits
        self._ceilings = ceilings
        self._keys = keys
        self._loader = loader
        self._tables = tables
        self._background = background
        self._offload = offload
        self.on_gone: Callable[[Topic], list[str]] | None = None
        """Called when a topic is deleted; returns the names of the routers that are deleted with it."""
        self.on_changed: Callable[[Topic], None] | None = None
        """Called when a topic has got another config."""
        self.doubts = Doubts()
        self._creating: dict[str, Creation] = {}
        self._targets: dict[str, set[tuple[int, str]]] = {}
        """The topics that name a dead-letter topic or one for results, and the fields, by the name of that topic."""
        self._intended: list[tuple[str, TopicConfig]] = []
        """Topics that are being made or changed, with their future configs."""

    # -- creating and deleting ---------------------------------------------------------------------------------------

    def adopt(self, topic: Topic) -> None:
        """Register a topic that recovery has rebuilt or a create has made."""
        self._registry.add(topic)
        self._keys.adopt(topic)
        self._ceilings.watch(topic)
        self._note_targets(topic)

    def forget(self, topic: Topic) -> None:
        """Unregister a deleted topic and its stages."""
        for stage in list((topic.stages or {}).values()):
            self.forget(stage)
        self._registry.remove(topic)
        self._ceilings.forget(topic)
        self._keys.forget(topic)
        self._forget_targets(topic)

    def replace_config(self, topic: Topic, config: TopicConfig) -> None:
        """Take over the config that replay has found for a topic (a standby)."""
        self._forget_targets(topic)
        topic.config = config
        self._note_targets(topic)

    def _note_targets(self, topic: Topic) -> None:
        for field, target in targets_of(topic.config).items():
            self._targets.setdefault(target, set()).add((topic.id, field))

    def _forget_targets(self, topic: Topic) -> None:
        for field, target in targets_of(topic.config).items():
            self._targets[target].discard((topic.id, field))
            if not self._targets[target]:
                del self._targets[target]

    async def creations_ended(self) -> None:
        """Wait until the topics that are being made now exist, or have failed."""
        for making in list(self._creating.values()):
            await making.ended.wait()

    async def put(self, name: str, patch: TopicConfigPatch, *, create: bool = True) -> tuple[TopicConfig, bool]:
        """Create or reconfigure a topic (`docs/spec/api.md` section 3). Return the resolved config, and True if it was
        created. Synced when it returns. Without `create`, raises 404 for a topic that is missing."""
        while True:
            topic = self._registry.topics.get(name)
            if topic is None:
                config = resolve_config(None, patch, topic=name)
                if not create:
                    self.doubts.check(name)
                    raise topic_not_found(name)
                if await self.create(name, config):
                    return config, True
                continue
            if not await self._commits.settled(topic):
                continue
            config = resolve_config(topic.config, patch, topic=name)
            if config == topic.config and not self._tables.is_unfinished(topic):
                self.doubts.check(name)
                return config, False
            self.check_targets(name, config)
            self._commits.check_class(config)
            self._commits.check_changeable(topic)
            topic.barrier = trio.Event()
            return await self._carry_out(name, config, partial(self._reconfigure, topic, config)), False

    async def delete(self, name: str, *, if_empty: bool) -> tuple[bool, list[str]]:
        """Delete a topic with all its records (`docs/spec/api.md` section 3). Return True if it existed, and the
        routers that were deleted with it. Raises `503 read_only` if it does not exist but a failed creation of it may
        be on disk."""
        while True:
            topic = self._registry.topics.get(name)
            if topic is None:
                if name not in self._creating:
                    self.doubts.check(name)
                    return False, []
                await self._creating[name].wait(self._commits)
                continue
            if not await self._commits.settled(topic):
                continue
            self._commits.check_changeable(topic)
            topic.barrier = trio.Event()
            work = partial(self._delete_synced, topic, if_empty)
            wait = partial(self._commits.wait_begun, remote=topic.is_remote)
            return True, await self._background.finish(work, wait)

    def check_targets(self, name: str, config: TopicConfig) -> None:
        """Refuse evidence without a key that may sign it; and a config with which a dead-letter topic, or one for
        results, would be ephemeral: it must survive a restart (`docs/spec/semantics.md` section 6)."""
        present = self._registry.topics.get(name)
        if config.evidence and (present is None or not present.config.evidence):
            self._store.evidence_key.check_may_begin()
        if config.durability == "ephemeral":
            fields = {field for _, field in self._targets.get(name, ())}
            for _, other in self._intended:
                fields.update(field for field, target in targets_of(other).items() if target == name)
            if fields:
                what = "a dead-letter topic" if "dead_letter" in fields else "named as `completed`"
                raise invalid("durability", f"{name!r} is {what} and cannot be ephemeral")
        for field, named in targets_of(config).items():
            target = self._registry.topics.get(named)
            becomes = any(of == named and other.durability == "ephemeral" for of, other in self._intended)
            if becomes or (target is not None and target.ephemeral):
                raise invalid(field, f"{named!r} is ephemeral")

    async def _new_tree(self, start_seq: int) -> TreeIdentity:
        """Return a new Merkle tree whose first leaf is that of `start_seq`. Raises `503 not_ready` without a key."""
        signer = await self._store.evidence_key.signer(self._offload)
        return TreeIdentity(self._store.new_tree_id(), start_seq, signer.hash)

    async def create(self, name: str, config: TopicConfig) -> bool:
        """Make a topic, synced, and return True. Or wait for the task that is making it and return False; the caller
        then looks whether it exists."""
        making = self._creating.get(name)
        if making is not None:
            await making.wait(self._commits)
            return False
        self.check_topics((name,))
        self.check_targets(name, config)
        self._commits.check_class(config)
        self._creating[name] = Creation()
        await self._carry_out(name, config, partial(self._create_synced, name, config))
        return True

    async def _carry_out(self, name: str, config: TopicConfig, work: Callable[[], Awaitable[T]]) -> T:
        """Make or change a topic in a task that outlives its caller. Meanwhile the checks of other calls use the future
        config. Must be called in the same step as the check of the config."""
        intention = name, config

        async def carry_out() -> T:
            try:
                return await work()
            finally:
                self._intended.remove(intention)

        self._intended.append(intention)
        topic = self._registry.topics.get(name)
        remote = config.durability == "remote" or (topic is not None and topic.is_remote)
        return await self._background.finish(carry_out, partial(self._commits.wait_begun, remote=remote))

    async def create_missing(self, names: Sequence[str]) -> None:
        """Make the missing topics among these, with the default config; none of them if the limit does not allow all.
        Some may have been deleted again when it returns. Raises 429."""
        making = [self._creating[name] for name in names if name in self._creating]
        missing = [name for name in names if name not in self._registry.topics and name not in self._creating]
        self.check_topics(missing)
        for name in missing:
            self._creating[name] = Creation()
        for i, name in enumerate(missing):
            config = resolve_config(None, TopicConfigPatch(), topic=name)
            try:
                await self._background.finish(partial(self._create_synced, name, config))
            except BaseException:
                for other in missing[i + 1 :]:
                    self._creating.pop(other).ended.set()
                raise
        for other_making in making:
            await other_making.ended.wait()

    def check_topics(self, names: Collection[str]) -> None:
        """Refuse topics of all these names beyond the limit. Raises 429."""
        maximum, topics = self._settings.max_topics, self._registry.topics
        missing = {name for name in names if name not in topics}
        on_the_way = {name for name in self._creating if name not in topics}
        if maximum and missing and len(topics) + len(missing | on_the_way) > maximum:
            raise self._registry.throttle("max_topics", maximum)

    async def _create_synced(self, name: str, config: TopicConfig) -> None:
        try:
            topic_id = self._registry.next_topic_id
            self._registry.next_topic_id += 1
            shard = self._store.shard_of(topic_id)
            self._creating[name].begin(self._store.writers[shard], self._commits)
            topic = self._registry.make(topic_id, name, config, shard)
            ceiling = 0 if config.durability in SYNCED_CLASSES else MIN_CEILING_BLOCK
            now = self._registry.now_ms()
            created: dict[str, Any] = {"name": name, "config": config_to_wire(config), "ceiling": ceiling}
            bucket_ceiling = self._ceilings.first_bucket_ceiling(config)
            if bucket_ceiling:
                created["bucket_ceiling"] = bucket_ceiling
                topic.bucket_ceiling = BucketCeiling(bucket_ceiling, self._registry.monotonic_ms())
            entries = [(FrameType.TOPIC_CREATE, created)]
            if config.evidence:
                tree = await self._new_tree(1)
                entries.append((FrameType.EVIDENCE, tree_frame(tree)))
                topic.tree = TopicTree(tree)

            def apply(batch: ControlBatch) -> None:
                topic.ceiling.set(ceiling)
                topic.on_disk.applied_end = batch.end
                self.adopt(topic)

            batch = ControlBatch(
                seal_batch(entries, topic_id=topic_id, ts=now, opened=False),
                len(entries),
                topic_id=topic_id,
                wants_sync=True,
                wants_archive=topic.is_remote,
                apply=apply,
            )
            self._store.writers[shard].submit(batch)
            with self.doubts.deciding(name):
                await batch.wait_synced()
        finally:
            self._creating.pop(name).ended.set()

    async def _delete_synced(self, topic: Topic, if_empty: bool) -> list[str]:
        routers: list[str] = []

        def apply(batch: ControlBatch) -> None:
            if self.on_gone is not None:
                routers.extend(self.on_gone(topic))
            self.forget(topic)

        try:
            await topic.drained()
            if if_empty:
                await self._loader.expire(topic)
                if topic.log.count:
                    raise ApiError(
                        "topic_not_empty",
                        f"topic {topic.name!r} holds {topic.log.count} records",
                        detail={"topic": topic.name, "count": topic.log.count},
                    )
            data = encode_control(
                FrameType.TOPIC_DELETE, {"name": topic.name}, topic_id=topic.id, ts=self._registry.now_ms()
            )
            remote = topic.is_remote
            batch = ControlBatch(data, 1, topic_id=topic.id, wants_sync=True, wants_archive=remote, apply=apply)
            self._commits.writer(topic).submit(batch)
            with self.doubts.deciding(topic.name):
                await batch.wait_synced()
            return routers
        finally:
            topic.lift_barrier()

    # -- reconfiguring -----------------------------------------------------------------------------------------------

    async def _reconfigure(self, topic: Topic, config: TopicConfig) -> TopicConfig:
        """Change a topic's config behind its barrier. Everything before it is published first, and synced if the class
        changes."""
        files = AsyncExitStack()
        try:
            await topic.drained()
            old = topic.config
            await self._loader.expire(topic)
            now = self._registry.now_ms()
            if config.durability != old.durability:
                # The ConfigUpdate must name the same segments as the part on disk. And no checkpoint may store records
                # in segments that are still being written out, or drop the log behind it.
                if topic.segment_set is None:
                    topic.segment_set = SegmentSet()
                await files.enter_async_context(topic.segment_set.hot_lock)
                await self._commits.sync_shard(topic)
                if topic.lagging:
                    await self._commits.sync_all()  # frames of copies may be in other shards
                if old.durability == "ephemeral":
                    topic.mark_changed()  # checkpoints look for locked files among such topics only
                    await self._write_out(topic)
            ceiling = _ceiling_under(topic, config)
            nulls = await self._tables.prepare(topic, config)
            trims = bool(config.keep_per_tag) and not 0 < old.keep_per_tag <= config.keep_per_tag
            below = 0 if trims else await self._below(topic, config)
            entries = self._update_entries(topic, config, ceiling, below) + self._tables.null_frames(nulls)
            tree: TreeIdentity | None = None
            if config.evidence and not old.evidence:
                tree = await self._new_tree(topic.assigned + 1)
                entries.append((FrameType.EVIDENCE, tree_frame(tree)))

            def apply(batch: ControlBatch) -> None:
                topic.on_disk.applied_end = batch.end
                if config.durability != old.durability:
                    topic.synced_seq = topic.blocks.written_seq = topic.assigned
                    topic.lagging = None
                if (reserved := entries_ceiling(entries)) is not None:
                    topic.bucket_ceiling = BucketCeiling(reserved, self._registry.monotonic_ms())
                self._apply_config(topic, config, ceiling)
                if tree is not None:
                    topic.tree = TopicTree(tree)
                self._tables.settle(topic, nulls)
                topic.change(partial(self._latch, topic, below))

            batch = ControlBatch(
                seal_batch(entries, topic_id=topic.id, ts=now, opened=False),
                len(entries),
                topic_id=topic.id,
                wants_sync=True,
                wants_archive="remote" in (old.durability, config.durability),
                apply=apply,
            )
            self._commits.writer(topic).submit(batch)
            with self.doubts.deciding(topic.name):
                await batch.wait_synced()
            if trims:
                await self._tables.trim(topic)
            return config
        except BaseException:
            self._tables.settle(topic)
            raise
        finally:
            await files.aclose()
            topic.lift_barrier()

    async def _below(self, topic: Topic, config: TopicConfig) -> int:
        return await self._loader.prepared(topic, partial(eviction_watermark, topic.log, config, []))

    def _update_entries(
        self, topic: Topic, config: TopicConfig, ceiling: int, below: int
    ) -> list[tuple[FrameType, dict[str, Any]]]:
        """Return the frames of a change of config, one batch; `below` is the seq below which the new caps evict. The
        floors are logged before the new ttl and caps can change them (`docs/spec/crash.md` 6)."""
        old = topic.config
        update: dict[str, Any] = {"config": config_to_wire(config), "ceiling": ceiling}
        if old.durability == "remote" != config.durability and (reserve := self._ceilings.first_bucket_ceiling(config)):
            update["bucket_ceiling"] = topic.assigned + reserve
        if old.durability == "ephemeral" and config.durability != "ephemeral":
            update["log"] = topic.log.dump()
            update["keys"] = topic.keys.dump() if topic.keys is not None else []
            update["origins"] = topic.origins.dump() if topic.origins is not None else None
            if topic.queue is not None:
                update["queue"] = topic.queue.freeze(self._registry.instant()).dump()
            if topic.groups is not None:
                update["groups"] = topic.groups.freeze(self._registry.instant()).dump()
        entries: list[tuple[FrameType, dict[str, Any]]] = []
        if old.ttl_ms and topic.log.losses.evict_floor > 1:
            entries.append((FrameType.EVICT_WATERMARK, {"below": topic.log.earliest_seq, "reason": "ttl"}))
        entries.append((FrameType.CONFIG_UPDATE, update))
        entries.append((FrameType.HEAD_WATERMARK, {"ceiling": ceiling}))
        if below > topic.log.earliest_seq:
            entries.append((FrameType.EVICT_WATERMARK, {"below": below, "reason": "cap"}))
        return entries

    def _latch(self, topic: Topic, below: int) -> None:
        """Evict what the new caps and ttl require. Raises NotLoaded, and is then called again."""
        if missing := missing_below(topic.log.index, below):
            raise NotLoaded(missing)
        topic.log.evict_below(below, "cap")
        self._registry.account(topic)
        self._registry.expire(topic)

    def _apply_config(self, topic: Topic, config: TopicConfig, ceiling: int) -> None:
        self._forget_targets(topic)
        topic.config = config
        self._note_targets(topic)
        topic.ceiling.set(ceiling)
        self._ceilings.watch(topic)
        if self.on_changed is not None:
            self.on_changed(topic)

    async def _write_out(self, topic: Topic) -> None:
        """Log the live records of an `ephemeral` topic that is about to be stored (`docs/spec/crash.md` 24); a barrier
        keeps new ones out. Records that are in segments from before it became `ephemeral` stay there.

        The logged records have no effect without the ConfigUpdate that follows them, which carries the topic's
        structure.
        """
        position = max(topic.log.earliest_seq - 1, topic.log.stored.last_seq)
        loaded: list[Block] = []
        while (step := topic.log.step(position, RUN_RECORDS)) is not None:
            if isinstance(step, Gap):
                position = step.last
                continue
            block = topic.blocks.find(step.first)
            if block is None:
                block = block_with(loaded, step.first)
            if block is None:
                # On disk since before the topic became `ephemeral`; some may have expired during the wait.
                loaded = await self._loader.load(topic, step.first, step.last)
                continue
            last = min(step.last, block.last_seq)
            await self._write_out_run(topic, block, step.first, last)
            position = last
            following = topic.log.step(position, 1)
            more = isinstance(following, SeqRun) and following.first <= block.last_seq
            if block.pinned and not more and topic.blocks.find(last) is block:
                self._registry.cache.unpin(topic.blocks, block)

    @staticmethod
    def _origins(topic: Topic, first: int, last: int) -> dict[int, Origin] | None:
        """Return the origins of those of these records that are copies."""
        if topic.copies is None:
            return None
        return {
            run.first + i: topic.copies.run_of(run.first + i).origin(run.first + i)
            for run in topic.log.index.capture_raw(last, first)
            for i, flag in enumerate(run.flags)
            if flag & FLAG_ORIGIN
        }

    async def _write_out_run(self, topic: Topic, block: Block, first: int, last: int) -> None:
        parts = [block.parts_of(seq) for seq in range(first, last + 1)]
        encoded = []
        origins = self._origins(topic, first, last)
        for seq, part in zip(range(first, last + 1), parts, strict=True):
            encoded.append(
                frames.encode_appends(
                    topic.id,
                    seq,
                    topic.log.index.ts_of(seq),
                    [part.data],
                    nodes=[part.node],
                    tags=[part.tag],
                    metas=[part.meta],
                    durable=False,
                    closes_batch=True,
                    origins=[origins.get(seq)] if origins else None,
                )
            )
        batch = ControlBatch(joined(one.data for one in encoded), len(encoded), topic_id=topic.id, wants_sync=True)
        self._commits.writer(topic).submit(batch)
        await batch.wait_synced()
        lens = array("I")
        for one in encoded:
            lens.extend(one.frame_lens)
        topic.log.index.place(first, batch.file_id, offsets_of(batch.offset, lens), lens)
        topic.blocks.written_seq = max(topic.blocks.written_seq, last)


def tree_frame(tree: TreeIdentity) -> dict[str, Any]:
    """Return the payload of the frame that begins a Merkle tree."""
    return {"tree": tree.tree, "start": tree.start_seq, "key": tree.key}


def entries_ceiling(entries: Sequence[tuple[FrameType, Mapping[str, Any]]]) -> int | None:
    """Return the bucket ceiling that a change of config sets; None if it sets none."""
    return next((payload["bucket_ceiling"] for _, payload in entries if "bucket_ceiling" in payload), None)


def _ceiling_under(topic: Topic, config: TopicConfig) -> int:
    """Return the ceiling of a topic under another config: classes that are synced have no reserve."""
    if config.durability in SYNCED_CLASSES:
        return topic.assigned
    if config.durability != topic.config.durability:
        return topic.assigned + MIN_CEILING_BLOCK
    return topic.ceiling.highest
