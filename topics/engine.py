"""The engine: the one door through which HTTP, and later queues, routers and jobs, change and read topics.

Responsible for the registry of topics, for admission, for deciding changes (seqs, times, frames) in single steps of
the loop, and for publishing them when their commit point has come. What a topic's state means is `topics.log`'s
business, how bytes reach the disk is `topics.storage`'s. Between two awaits the loop is the lock: seqs are assigned
and frames queued without one in between.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeVar

import msgspec
import trio
from sortedcontainers import SortedDict

from topics.clock import Clock
from topics.config import Settings
from topics.errors import ApiError, read_only, throttled, topic_not_found
from topics.figures import EngineFigures, TopicFigures, WalFigures
from topics.log.block import Block, Projection, encode_block
from topics.log.dedupe import DedupeWindow
from topics.log.match import Match
from topics.log.topic_config import config_to_wire, resolve_config
from topics.log.topic_log import Extent, Gap, TopicLog
from topics.logs import get_logger
from topics.model import (
    AppendRequest,
    AppendResult,
    DeleteResult,
    Performance,
    ReadRequest,
    ReadResult,
    Tombstone,
    TopicConfig,
    TopicConfigPatch,
    TopicState,
    TopicSummary,
)
from topics.offload import Kind, Offload
from topics.sched.priority import effective_priority
from topics.storage import frames
from topics.storage.frames import FrameType, encode_control, offsets_of, seal_batch
from topics.storage.fs import Fs
from topics.storage.payloads import PayloadCache, block_of_records, read_records
from topics.storage.recovery import Recovered
from topics.storage.store import Store
from topics.storage.wal import ControlBatch, ShardWriter, WalFile
from topics.topic import MAX_CEILING_BLOCK, MIN_CEILING_BLOCK, Commit, Gate, Topic

log = get_logger(__name__)
T = TypeVar("T")

BLOCK_RECORDS: Final = 1000
"""A batch becomes blocks of at most so many records."""

DELETE_SLICE: Final = 10_000
"""Records a deletion marks before it lets others run: about 3 ms."""

SCAN_SLICE: Final = 10_000
"""Records a read passes over (filtered) before it lets others run."""

LOAD_RECORDS: Final = 1000
"""Records one read from disk brings in at most."""

METRIC_TOPICS: Final = 1000
"""Topics with figures of their own in the metrics (`api.md` section 11)."""

_json = msgspec.json.encode


class EngineStatus:
    """Where the daemon is in its life; HTTP asks it before every request."""

    __slots__ = ("phase", "read_only", "replay_progress", "started_ms")

    def __init__(self, started_ms: int) -> None:
        self.phase: Literal["starting", "replaying", "ready", "draining"] = "starting"
        self.replay_progress = 0.0
        self.read_only = False
        self.started_ms = started_ms


class CeilingBatch:
    """A HeadWatermark on its way: when a sync has covered it, the topic may hand out seqs up to `ceiling` without
    waiting."""

    __slots__ = ("ceiling", "data", "frames", "last_seq", "topic", "topic_id", "wants_sync")

    def __init__(self, topic: Topic, ceiling: int, ts: int) -> None:
        self.topic = topic
        self.ceiling = ceiling
        self.topic_id = topic.id
        self.last_seq = 0
        self.frames = 1
        self.wants_sync = False
        self.data = encode_control(FrameType.HEAD_WATERMARK, {"ceiling": ceiling}, topic_id=topic.id, ts=ts)

    def on_written(self, file: WalFile, offset: int) -> None:
        """Nothing hangs on it."""

    def on_synced(self) -> None:
        if self.ceiling <= self.topic.ceiling_queued:  # else it was lowered again behind this frame
            self.topic.ceiling = max(self.topic.ceiling, self.ceiling)

    def on_failed(self, error: ApiError) -> None:
        """The shard is read-only; no more seqs are handed out."""


class Engine:
    """See the module. Made once by the daemon; `run` must be running while the other methods are called."""

    def __init__(self, settings: Settings, *, fs: Fs, clock: Clock, offload: Offload) -> None:
        self.settings = settings
        self.clock = clock
        self.status = EngineStatus(clock.monotonic_ms())
        self.cache = PayloadCache(settings.cache_bytes)
        self.topics: SortedDict[str, Topic] = SortedDict()
        self.by_id: dict[int, Topic] = {}
        self.next_topic_id = 1
        self.time_floor = 0
        """The highest time that was persisted or given out: retention never judges by less."""
        self.store: Store = Store(settings, fs=fs, clock=clock, offload=offload, on_failure=self._shard_failed)
        self._fs = fs
        self._offload = offload
        self._nursery: trio.Nursery | None = None
        self._creating: dict[str, trio.Event] = {}
        self._raised: dict[int, Topic] = {}
        """Topics whose ceiling stands above their head."""
        self._keyed: dict[int, Topic] = {}
        """Topics that remember idempotency keys."""
        self._dead_letters: dict[str, set[int]] = {}
        """Which topics name a dead-letter topic."""
        self.key_count = 0
        self.total_records = 0
        self.total_bytes = 0
        self._throttled: dict[str, int] = {}
        self._changed_status = trio.Event()

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks that finish what a request has begun; until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    def open_for_business(self) -> None:
        """Recovery is complete: requests are served from here on."""
        self.status.phase = "ready"
        self.status.replay_progress = 1.0
        self.wake_all()

    def start_draining(self) -> None:
        """No new work; long polls end with 503."""
        self.status.phase = "draining"
        self.wake_all()

    def wake_all(self) -> None:
        """Let every waiting reader look at the state of the daemon again."""
        for topic in list(self.topics.values()):
            topic.wake()

    async def quiesce(self) -> None:
        """Wait until nothing is on its way on any topic (after `start_draining`), changes whose client has gone
        included."""
        for making in list(self._creating.values()):
            await making.wait()
        for topic in list(self.topics.values()):
            if topic.barrier is not None:
                await topic.barrier.wait()
            if not self.store.failed(topic.shard):
                await topic.drained()

    def lower_all_ceilings(self) -> None:
        """Before a clean stop: no seq stays reserved."""
        for topic in list(self._raised.values()):
            self._lower_ceiling(topic)

    def adopt(self, topic: Topic) -> None:
        """Register a topic that recovery has rebuilt or a create has made."""
        self.by_id[topic.id] = topic
        self.topics[topic.name] = topic
        self.next_topic_id = max(self.next_topic_id, topic.id + 1)
        if topic.keys:
            self._keyed[topic.id] = topic
            self.key_count += len(topic.keys)
        if topic.config.dead_letter is not None:
            self._dead_letters.setdefault(topic.config.dead_letter, set()).add(topic.id)
        if topic.ceiling > topic.log.head_seq:
            self._raised[topic.id] = topic
        self.account(topic)

    def account(self, topic: Topic) -> None:
        """Bring the totals up to date after a change of a topic's log, and free what nobody can read any more."""
        log_ = topic.log
        topic.part = None
        self.total_records += log_.count - topic.counted_records
        self.total_bytes += log_.bytes - topic.counted_bytes
        topic.counted_records, topic.counted_bytes = log_.count, log_.bytes
        topic.blocks.drop_below(log_.earliest_seq)

    def now_ms(self) -> int:
        """The clock by which retention judges: wall time that never steps back."""
        now = self.clock.now_ms()
        if now < self.time_floor:
            return self.time_floor
        self.time_floor = now
        return now

    async def _detached(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` to its end whatever becomes of the caller; its result or its exception."""
        assert self._nursery is not None
        done = trio.Event()
        results: list[T] = []
        errors: list[Exception] = []

        async def run() -> None:
            try:
                results.append(await work())
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self._nursery.start_soon(run)
        await done.wait()
        if errors:
            raise errors[0]
        if not results:
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        return results[0]

    def _shard_failed(self, shard: int) -> None:
        self.status.read_only = True
        if self._nursery is not None:
            self._nursery.start_soon(self._note_failure, shard)

    async def _note_failure(self, shard: int) -> None:
        try:
            await self._offload.run(Kind.FILES, partial(self.store.note_failure_blocking, shard))
        except OSError as error:
            log.error("shard_failure_not_noted", shard=shard, error=str(error))

    async def restore(self, recovered: Recovered) -> None:
        """Take over what recovery has found, in slices."""
        self.next_topic_id = max(self.next_topic_id, recovered.next_topic_id)
        self.time_floor = max(self.time_floor, recovered.clock)
        for i, found in enumerate(recovered.topics.values()):
            topic = Topic(found.id, found.name, found.config, self.store.shard_of(found.id), self.cache)
            topic.log = found.log
            topic.assigned = topic.synced_seq = topic.blocks.written_seq = found.log.head_seq
            topic.last_ts = found.log.last_ts
            topic.ceiling = topic.ceiling_queued = found.ceiling
            topic.keys = found.keys
            topic.floor_logged = found.log.evict_floor
            topic.applied_end = found.end if found.end.ordinal >= 0 else None
            topic.last_write_ms, topic.last_read_ms = found.last_write, found.last_read
            newest = self.topics.get(found.name)
            if newest is not None and newest.id > topic.id:
                continue  # for one name the highest id wins
            if newest is not None:
                self._forget(newest)
            self.adopt(topic)
            if i % 256 == 255:
                await trio.lowlevel.checkpoint()

    def _writer(self, topic: Topic) -> ShardWriter:
        return self.store.writers[topic.shard]

    def _check_writable(self, topic: Topic) -> ShardWriter:
        writer = self.store.writers[topic.shard]
        if writer.failed is not None:
            raise writer.failed
        return writer

    def _throttle(self, reason: str, maximum: int) -> ApiError:
        self._throttled[reason] = self._throttled.get(reason, 0) + 1
        return throttled(reason, maximum)

    # -- topics -------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The live topic of a name. Raises `404 topic_not_found`."""
        topic = self.topics.get(name)
        if topic is None:
            raise topic_not_found(name)
        return topic

    async def put_topic(self, name: str, patch: TopicConfigPatch) -> tuple[TopicConfig, bool]:
        """Create or reconfigure a topic (`api.md` section 3); the resolved config and whether it was created. Synced
        when it returns."""
        while True:
            topic = self.topics.get(name)
            if topic is None:
                config = resolve_config(None, patch, topic=name)
                self._check_dead_letter(name, config)
                if await self._create(name, config):
                    return config, True
                continue
            if topic.barrier is not None:
                await topic.barrier.wait()
                continue
            config = resolve_config(topic.config, patch, topic=name)
            if config == topic.config:
                return config, False
            self._check_dead_letter(name, config)
            self._check_writable(topic)
            topic.barrier = trio.Event()
            return await self._detached(partial(self._reconfigure, topic, config)), False

    def _check_dead_letter(self, name: str, config: TopicConfig) -> None:
        """A dead-letter topic must survive a restart (`semantics.md` section 6)."""
        if config.durability == "ephemeral" and self._dead_letters.get(name):
            raise ApiError(
                "invalid_request",
                f"durability: {name!r} is a dead-letter topic and cannot be ephemeral",
                detail={"field": "durability"},
            )
        target = self.topics.get(config.dead_letter) if config.dead_letter is not None else None
        if target is not None and target.ephemeral:
            raise ApiError(
                "invalid_request",
                f"dead_letter: {config.dead_letter!r} is ephemeral",
                detail={"field": "dead_letter"},
            )

    async def _create(self, name: str, config: TopicConfig) -> bool:
        """Make a topic, synced: True. Or wait for whoever is making it: False, and the caller looks whether it is
        there."""
        making = self._creating.get(name)
        if making is not None:
            await making.wait()
            return False
        on_the_way = sum(other not in self.topics for other in self._creating)
        if self.settings.max_topics and len(self.topics) + on_the_way >= self.settings.max_topics:
            raise self._throttle("max_topics", self.settings.max_topics)
        self._creating[name] = trio.Event()
        await self._detached(partial(self._create_synced, name, config))
        return True

    async def _create_synced(self, name: str, config: TopicConfig) -> None:
        try:
            topic_id = self.next_topic_id
            self.next_topic_id += 1
            shard = self.store.shard_of(topic_id)
            topic = Topic(topic_id, name, config, shard, self.cache)
            ceiling = 0 if config.durability == "fsync" else MIN_CEILING_BLOCK
            now = self.now_ms()
            entries = [(FrameType.TOPIC_CREATE, {"name": name, "config": config_to_wire(config), "ceiling": ceiling})]

            def apply(batch: ControlBatch) -> None:
                topic.ceiling = topic.ceiling_queued = ceiling
                topic.applied_end = batch.end
                self.adopt(topic)

            batch = ControlBatch(
                seal_batch(entries, topic_id=topic_id, ts=now, opened=False),
                1,
                topic_id=topic_id,
                wants_sync=True,
                apply=apply,
            )
            self.store.writers[shard].submit(batch)
            await batch.wait_synced()
        finally:
            self._creating.pop(name).set()

    async def _reconfigure(self, topic: Topic, config: TopicConfig) -> TopicConfig:
        """Change a topic's config behind its barrier: everything before it is settled (and synced, when the class
        changes) first."""
        try:
            await topic.drained()
            old = topic.config
            now = self.now_ms()
            topic.log.expire(now, old.ttl_ms)
            if config.durability != old.durability:
                await self._sync_barrier(topic)
                if old.durability == "ephemeral":
                    await self._write_out(topic)
            ceiling = 0
            if config.durability == "fsync":
                ceiling = topic.assigned
            elif config.durability != old.durability:
                ceiling = topic.assigned + MIN_CEILING_BLOCK
            else:
                ceiling = max(topic.ceiling, topic.ceiling_queued)
            below = topic.log.eviction_watermark(config.cap_records, config.cap_bytes, [])
            # The floors are latched before the new ttl and caps can change what they would have been (`crash.md` 6).
            update: dict[str, Any] = {"config": config_to_wire(config), "ceiling": ceiling}
            if old.durability == "ephemeral" and config.durability != "ephemeral":
                update["log"] = topic.log.dump()
                update["keys"] = topic.keys.dump() if topic.keys is not None else []
            entries: list[tuple[FrameType, dict[str, Any]]] = []
            if topic.log.evict_floor > 1:
                entries.append((FrameType.EVICT_WATERMARK, {"below": topic.log.earliest_seq, "reason": "ttl"}))
            entries.append((FrameType.CONFIG_UPDATE, update))
            entries.append((FrameType.HEAD_WATERMARK, {"ceiling": ceiling}))
            if below > topic.log.earliest_seq:
                entries.append((FrameType.EVICT_WATERMARK, {"below": below, "reason": "cap"}))

            def apply(batch: ControlBatch) -> None:
                topic.applied_end = batch.end
                if config.durability != old.durability:
                    topic.synced_seq = topic.assigned
                self._apply_config(topic, config, ceiling)
                topic.log.evict_below(below, "cap")
                topic.log.expire(self.now_ms(), config.ttl_ms)
                self.account(topic)

            batch = ControlBatch(
                seal_batch(entries, topic_id=topic.id, ts=now, opened=False),
                len(entries),
                topic_id=topic.id,
                wants_sync=True,
                apply=apply,
            )
            self._writer(topic).submit(batch)
            await batch.wait_synced()
            return config
        finally:
            self._lift_barrier(topic)

    @staticmethod
    def _lift_barrier(topic: Topic) -> None:
        barrier, topic.barrier = topic.barrier, None
        assert barrier is not None
        barrier.set()
        topic.wake()

    def _apply_config(self, topic: Topic, config: TopicConfig, ceiling: int) -> None:
        if topic.config.dead_letter is not None:
            self._dead_letters[topic.config.dead_letter].discard(topic.id)
        if config.dead_letter is not None:
            self._dead_letters.setdefault(config.dead_letter, set()).add(topic.id)
        topic.config = config
        topic.ceiling = topic.ceiling_queued = ceiling
        if ceiling > topic.assigned:
            self._raised[topic.id] = topic
        else:
            self._raised.pop(topic.id, None)

    async def _sync_barrier(self, topic: Topic) -> None:
        """Everything of this topic's shard so far is on disk when it returns."""
        batch = ControlBatch(b"", 0, wants_sync=True)
        self._writer(topic).submit(batch)
        await batch.wait_synced()

    async def _write_out(self, topic: Topic) -> None:
        """Log the live records of an `ephemeral` topic that is about to be stored (`crash.md` 24); a barrier keeps new
        ones out.

        They mean nothing until the ConfigUpdate that follows them, which carries the structure they belong to.
        """
        position = topic.log.earliest_seq - 1
        loaded: Block | None = None
        while (step := topic.log.step(position, BLOCK_RECORDS)) is not None:
            if isinstance(step, Gap):
                position = step.last
                continue
            block = topic.blocks.find(step.first)
            if block is None and loaded is not None and loaded.first_seq <= step.first <= loaded.last_seq:
                block = loaded
            if block is None:
                # It is from before the topic became `ephemeral`, and on disk; some may have expired after the wait.
                loaded = await self._load(topic, step.first, step.last)
                continue
            last = min(step.last, block.last_seq)
            await self._write_out_run(topic, block, step.first, last)
            if block.pinned and topic.blocks.find(last) is block:
                self.cache.unpin(topic.blocks, block)
            position = last

    async def _write_out_run(self, topic: Topic, block: Block, first: int, last: int) -> None:
        parts = [block.parts_of(seq) for seq in range(first, last + 1)]
        encoded = []
        for seq, part in zip(range(first, last + 1), parts, strict=True):
            encoded.append(
                frames.encode_appends(
                    topic.id,
                    seq,
                    topic.log.ts_of(seq),
                    [part.data],
                    nodes=[part.node],
                    tags=[part.tag],
                    metas=[part.meta],
                    durable=False,
                    closes_batch=True,
                )
            )
        batch = ControlBatch(b"".join(one.data for one in encoded), len(encoded), topic_id=topic.id, wants_sync=True)
        self._writer(topic).submit(batch)
        await batch.wait_synced()
        lens = array("I")
        for one in encoded:
            lens.extend(one.frame_lens)
        topic.log.place(first, batch.file_id, offsets_of(batch.offset, lens), lens)
        topic.blocks.written_seq = max(topic.blocks.written_seq, last)

    async def delete_topic(self, name: str, *, if_empty: bool) -> tuple[bool, list[str]]:
        """Delete a topic with all it has (`api.md` section 3); whether it was there, and the routers that went with
        it."""
        while True:
            topic = self.topics.get(name)
            if topic is None:
                if name not in self._creating:
                    return False, []
                await self._creating[name].wait()
                continue
            if topic.barrier is not None:
                await topic.barrier.wait()
                continue
            self._check_writable(topic)
            topic.barrier = trio.Event()
            await self._detached(partial(self._delete_synced, topic, if_empty))
            return True, []

    async def _delete_synced(self, topic: Topic, if_empty: bool) -> None:
        try:
            await topic.drained()
            topic.log.expire(self.now_ms(), topic.config.ttl_ms)
            self.account(topic)
            if if_empty and topic.log.count:
                raise ApiError(
                    "topic_not_empty",
                    f"topic {topic.name!r} holds {topic.log.count} records",
                    detail={"topic": topic.name, "count": topic.log.count},
                )
            data = encode_control(FrameType.TOPIC_DELETE, {"name": topic.name}, topic_id=topic.id, ts=self.now_ms())
            batch = ControlBatch(data, 1, topic_id=topic.id, wants_sync=True, apply=lambda batch: self._forget(topic))
            self._writer(topic).submit(batch)
            await batch.wait_synced()
        finally:
            self._lift_barrier(topic)

    def _forget(self, topic: Topic) -> None:
        topic.deleted = True
        del self.topics[topic.name]
        del self.by_id[topic.id]
        self._raised.pop(topic.id, None)
        if topic.keys is not None and self._keyed.pop(topic.id, None) is not None:
            self.key_count -= len(topic.keys)
        if topic.config.dead_letter is not None:
            self._dead_letters[topic.config.dead_letter].discard(topic.id)
        self.total_records -= topic.counted_records
        self.total_bytes -= topic.counted_bytes
        topic.blocks.clear()

    def topic_state(self, name: str, *, touch: bool) -> TopicState:
        """The state of a topic as of now (`api.md` section 3). Raises 404."""
        topic = self.topic(name)
        self._expire(topic)
        if touch:
            self._touch(topic)
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
            effective_priority=self._priority(topic),
            last_write_ts=topic.last_write_ms,
            last_read_ts=topic.last_read_ms,
        )

    def list_topics(self, prefix: str, after: str | None, page_size: int) -> tuple[list[TopicSummary], bool]:
        """A page of topics in name order, and whether another exists. The cost follows the page."""
        low = prefix if after is None or after < prefix else after
        page: list[TopicSummary] = []
        for name in self._names_from(low, exclusive=after is not None and low == after):
            if not name.startswith(prefix):
                break
            if len(page) == page_size:
                return page, True
            topic = self.topics[name]
            self._expire(topic)
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
                    effective_priority=self._priority(topic),
                )
            )
        return page, False

    def _names_from(self, low: str, *, exclusive: bool) -> Iterator[str]:
        return iter(self.topics.irange(low, inclusive=(not exclusive, True)))

    def _priority(self, topic: Topic) -> int:
        return effective_priority(
            topic.config.priority, topic.config.auto_priority, topic.touched_ms, self.clock.monotonic_ms()
        )

    def _touch(self, topic: Topic) -> None:
        topic.touched_ms = self.clock.monotonic_ms()
        topic.last_read_ms = self.now_ms()

    def _expire(self, topic: Topic) -> None:
        """Advance the floors to now (`crash.md` 7)."""
        if topic.config.ttl_ms and topic.log.expire(self.now_ms(), topic.config.ttl_ms):
            self.account(topic)

    # -- append -------------------------------------------------------------------------------------------------------

    async def append(self, name: str, request: AppendRequest, perf: Performance) -> AppendResult:
        """Append a checked batch (`api.md` section 4); returns at its commit point.

        Raises the `ApiError`s of that section. Cancelling before seqs are assigned leaves nothing; after that the
        batch is committed all the same and only the answer is lost.
        """
        if request.config is not None:
            wanted = resolve_config(None, request.config, topic=name)
            self._check_dead_letter(name, wanted)
        created = False
        waited = 0.0
        key = request.idempotency_key
        while True:
            topic = self.topics.get(name)
            if topic is None:
                self._check_space()
                if await self._create_for_append(name, request):
                    created = True
                continue
            if topic.barrier is not None:
                await topic.barrier.wait()
                continue
            writer = self._check_writable(topic)
            if key is not None:
                known = (
                    topic.keys.lookup(key, self.now_ms(), topic.config.idempotency_window_ms) if topic.keys else None
                )
                if known is not None:
                    return self._deduped(topic, known, perf)
                first = topic.keys_in_flight.get(key) if topic.keys_in_flight else None
                if first is not None:
                    await first.wait()
                    continue
            self._check_space()
            if writer.full and not topic.ephemeral:
                budget = None if request.disable_backpressure else max(int(self.settings.admission_ms - waited), 0)
                waited += await self._admit(writer, budget)
                continue
            if topic.pending and self._evicts(topic) and not self._only_appends(topic):
                # A deletion on its way decides what has to be evicted: wait for it rather than evict too much.
                await self._next_change(topic)
                continue
            break
        self._check_caps(topic, request)
        max_keys = self.settings.max_idempotency_keys
        if key is not None and max_keys and self.key_count >= max_keys:
            raise self._throttle("max_idempotency_keys", max_keys)
        if waited:
            perf.throttle_wait_ms = waited
        commit = self._commit_append(topic, request, key)
        first_seq, last_seq = await commit.wait()
        self._time_commit(commit, perf)
        return AppendResult(
            topic=name,
            first_seq=first_seq,
            last_seq=last_seq,
            head_seq=topic.log.head_seq,
            count=last_seq - first_seq + 1,
            created=created,
            deduped=False,
        )

    async def _admit(self, writer: ShardWriter, budget_ms: int | None) -> float:
        try:
            return await writer.admit(budget_ms)
        except ApiError as error:
            if error.code == "throttled":
                reason = error.detail["limit"]
                self._throttled[reason] = self._throttled.get(reason, 0) + 1
            raise

    async def _create_for_append(self, name: str, request: AppendRequest) -> bool:
        patch = request.config if request.config is not None else TopicConfigPatch()
        config = resolve_config(None, patch, topic=name)
        if request.create is False or (request.create is msgspec.UNSET and not config.auto_create):
            raise topic_not_found(name)
        return await self._create(name, config)

    def _deduped(self, topic: Topic, known: tuple[int, int], perf: Performance) -> AppendResult:
        first_seq, count = known
        perf.wal_append_ms = perf.fsync_ms = 0.0
        return AppendResult(
            topic=topic.name,
            first_seq=first_seq,
            last_seq=first_seq + count - 1,
            head_seq=topic.log.head_seq,
            count=count,
            created=False,
            deduped=True,
        )

    def _check_space(self) -> None:
        if self.store.space_low:
            raise read_only(f"less than {self.settings.min_free_bytes} bytes are free on the disk")

    def _evicts(self, topic: Topic) -> bool:
        config = topic.config
        return config.discard == "old" and bool(config.cap_records or config.cap_bytes)

    @staticmethod
    def _only_appends(topic: Topic) -> bool:
        return topic.working is None and all(commit.records for commit in topic.pending or ())

    async def _next_change(self, topic: Topic) -> None:
        if topic.changed is None:
            topic.changed = trio.Event()
        await topic.changed.wait()

    def _check_caps(self, topic: Topic, request: AppendRequest) -> None:
        """Caps with `reject`, and the quota, against what is published and what is on its way (`semantics.md` section
        2)."""
        config, quota = topic.config, self.settings.max_total_bytes
        if config.discard != "reject" and not quota:
            return
        count = len(request.records)
        nbytes = sum(len(record.data) + len(_json(record.meta) if record.meta else b"") for record in request.records)
        on_the_way = sum(other.pending_bytes for other in self.by_id.values()) if quota else 0
        if quota and self.total_bytes + on_the_way + nbytes > quota:
            for other in self.by_id.values():
                self._expire(other)  # what nobody has looked at since may have expired
            if self.total_bytes + on_the_way + nbytes > quota:
                raise self._throttle("max_total_bytes", quota)
        if config.discard != "reject" or not (config.cap_records or config.cap_bytes):
            return
        if (config.cap_records and count > config.cap_records) or (config.cap_bytes and nbytes > config.cap_bytes):
            raise ApiError(
                "record_too_large",
                f"{count} records of {nbytes} bytes can never fit the caps of topic {topic.name!r}",
                detail={"cap_records": config.cap_records, "cap_bytes": config.cap_bytes},
            )
        self._expire(topic)
        if not topic.log.room(
            config.cap_records, config.cap_bytes, topic.pending_records, topic.pending_bytes, count, nbytes
        ):
            raise ApiError(
                "topic_full",
                f"topic {topic.name!r} is full",
                detail={
                    "topic": topic.name,
                    "cap_records": config.cap_records,
                    "cap_bytes": config.cap_bytes,
                    "head_seq": topic.log.head_seq,
                    "earliest_seq": topic.log.earliest_seq,
                },
            )

    def _commit_append(self, topic: Topic, request: AppendRequest, key: str | None) -> Commit:
        """Assign seqs and times, build frames and blocks, queue them: one step of the loop."""
        records = request.records
        count = len(records)
        now = self.now_ms()
        ts = topic.last_ts = max(now, topic.last_ts)
        first_seq = topic.assigned + 1
        last_seq = topic.assigned = topic.assigned + count
        default_node = request.node or ""
        datas = [bytes(record.data) for record in records]
        node_texts = [record.node or default_node for record in records]
        tag_texts = [record.tag for record in records]
        metas = [_json(record.meta) if record.meta else b"" for record in records]
        some_nodes = node_texts if any(node_texts) else None
        some_tags = tag_texts if any(tag_texts) else None
        some_metas = metas if any(metas) else None
        watermark = 0
        sizes: array[int]
        gate = topic.gate
        ephemeral = topic.ephemeral
        if gate is not Gate.SYNCED:
            gate = self._reserve(topic, last_seq, ts, gate)
        if ephemeral:
            sizes = array("I", [len(data) + len(meta) for data, meta in zip(datas, metas, strict=True)])
            appended = frames.Appends(b"", array("I", bytes(4 * count)), sizes, _flags(node_texts, tag_texts))
        if self._evicts(topic):
            self._expire(topic)
            incoming = [commit.sizes for commit in topic.pending or () if commit.sizes is not None]
            own = array("I", [len(data) + len(meta) for data, meta in zip(datas, metas, strict=True)])
            watermark = topic.log.eviction_watermark(topic.config.cap_records, topic.config.cap_bytes, [*incoming, own])
            if watermark <= topic.log.earliest_seq:
                watermark = 0
        tail: list[tuple[FrameType, dict[str, Any]]] = []
        if key is not None:
            tail.append((FrameType.IDEMPOTENCY, {"key": key, "first": first_seq, "count": count}))
        if watermark:
            tail.append((FrameType.EVICT_WATERMARK, {"below": watermark, "reason": "cap"}))
        data = b""
        if not ephemeral:
            appended = frames.encode_appends(
                topic.id,
                first_seq,
                ts,
                datas,
                nodes=[node.encode() for node in node_texts] if some_nodes else None,
                tags=[tag.encode() if tag else b"" for tag in tag_texts] if some_tags else None,
                metas=some_metas,
                durable=topic.gate is Gate.SYNCED,
                closes_batch=not tail,
            )
            data = appended.data
            if tail:
                data += seal_batch(tail, topic_id=topic.id, ts=ts, opened=True)
        blocks = _encode_blocks(first_seq, ts, datas, some_nodes, some_tags, some_metas, pinned=ephemeral)

        def apply(commit: Commit) -> tuple[int, int]:
            offsets: Sequence[int] = (
                offsets_of(commit.offset, appended.frame_lens) if commit.file else array("I", bytes(4 * count))
            )
            file = 0 if ephemeral else commit.file  # an ephemeral commit may have waited for a sync all the same
            topic.log.extend(
                Extent(first_seq, ts, file, offsets, appended.frame_lens, appended.sizes, appended.flags, some_tags)
            )
            for block in blocks:
                topic.blocks.append(block)
            if watermark:
                topic.log.evict_below(watermark, "cap")
            if key is not None:
                self._remember_key(topic, key, first_seq, count, ts)
            topic.last_write_ms = ts
            self.account(topic)
            return first_seq, last_seq

        commit = Commit(
            topic,
            data,
            count + len(tail) if data else 0,
            gate,
            apply,
            self.clock.perf_ns,
            last_seq=last_seq,
            records=count,
            sizes=appended.sizes,
            frame_lens=None if ephemeral else appended.frame_lens,
        )
        if key is not None:
            if topic.keys_in_flight is None:
                topic.keys_in_flight = {}
            topic.keys_in_flight[key] = commit.done
            self.key_count += 1
            commit.on_fail = partial(self._key_failed, topic, key)
        self._send(topic, commit)
        return commit

    def _remember_key(self, topic: Topic, key: str, first_seq: int, count: int, ts: int) -> None:
        if topic.keys is None:
            topic.keys = DedupeWindow()
        before = len(topic.keys)
        topic.keys.remember(key, first_seq, count, ts)
        self._keyed[topic.id] = topic
        self.key_count += len(topic.keys) - before - 1
        self._key_settled(topic, key)

    def _key_failed(self, topic: Topic, key: str) -> None:
        self.key_count -= 1
        self._key_settled(topic, key)

    def _key_settled(self, topic: Topic, key: str) -> None:
        if topic.keys_in_flight is not None:
            topic.keys_in_flight.pop(key, None)
            if not topic.keys_in_flight:
                topic.keys_in_flight = None

    def _send(self, topic: Topic, commit: Commit) -> None:
        """Queue a commit; publish it now if it waits for nothing."""
        commit.join()
        if commit.frames or commit.gate is Gate.SYNCED:
            try:
                self._writer(topic).submit(commit)
            except ApiError as error:
                commit.ready = False
                commit.on_failed(error)
                return
        if commit.ready:
            topic.settle()

    def _reserve(self, topic: Topic, last_seq: int, ts: int, gate: Gate) -> Gate:
        """Keep the ceiling ahead of the seqs; an append beyond it waits for the sync that raises it (`semantics.md`
        section 1)."""
        if last_seq + topic.ceiling_block // 2 > topic.ceiling_queued:
            now = self.clock.monotonic_ms()
            fast = now - topic.last_raise_ms < 1000
            topic.last_raise_ms = now
            topic.ceiling_block = min(topic.ceiling_block * 2, MAX_CEILING_BLOCK) if fast else MIN_CEILING_BLOCK
            topic.ceiling_queued = last_seq + topic.ceiling_block
            self._raised[topic.id] = topic
            topic.part = None
            self._writer(topic).submit(CeilingBatch(topic, topic.ceiling_queued, ts))
        return gate if last_seq <= topic.ceiling else Gate.SYNCED

    def _lower_ceiling(self, topic: Topic) -> None:
        """Fall back to the head. Only while everything assigned is synced, and in the step that queues the frame
        (`crash.md` 1)."""
        topic.ceiling = topic.ceiling_queued = topic.assigned
        topic.ceiling_block = MIN_CEILING_BLOCK
        topic.part = None
        self._raised.pop(topic.id, None)
        batch = CeilingBatch(topic, topic.assigned, self.now_ms())
        try:
            self._writer(topic).submit(batch)
        except ApiError:
            return

    def lower_idle_ceilings(self) -> None:
        """Called every second: topics that have had no append for one and are synced give their reserve back."""
        now = self.clock.monotonic_ms()
        for topic in list(self._raised.values()):
            if topic.barrier is not None:
                continue  # a ConfigUpdate with a ceiling of its own may be on its way
            synced = (
                topic.ephemeral or topic.synced_seq >= topic.assigned or topic.assigned == topic.log.earliest_seq - 1
            )
            idle = now - topic.last_raise_ms >= 1000 and self.now_ms() - (topic.last_write_ms or 0) >= 1000
            if idle and synced and topic.quiet and topic.ceiling >= topic.ceiling_queued:
                self._lower_ceiling(topic)

    @staticmethod
    def _time_commit(commit: Commit, perf: Performance) -> None:
        """Fill in what the commit cost: `fsync_ms` only where the ack waited for a sync."""
        if commit.written_ns:
            perf.wal_append_ms = (commit.written_ns - commit.submitted_ns) / 1e6
        else:
            perf.wal_append_ms = 0.0
        waited = commit.gate is Gate.SYNCED and commit.synced_ns and commit.written_ns
        perf.fsync_ms = (commit.synced_ns - commit.written_ns) / 1e6 if waited else 0.0

    # -- delete -------------------------------------------------------------------------------------------------------

    async def delete_records(
        self, name: str, before_seq: int | None, match: Match | None, perf: Performance
    ) -> DeleteResult:
        """Delete records that are present now (`api.md` section 6); returns at the commit point. Silent for readers,
        always."""
        while True:
            topic = self.topic(name)
            if topic.barrier is not None:
                await topic.barrier.wait()
                continue
            writer = self._check_writable(topic)
            if writer.full and not topic.ephemeral:
                await self._admit(writer, self.settings.admission_ms)
                continue
            break
        self._expire(topic)
        commit = self._commit_delete(topic, before_seq, match)
        deleted = await commit.wait()
        self._time_commit(commit, perf)
        log_ = topic.log
        return DeleteResult(
            topic=name,
            deleted=deleted,
            earliest_seq=log_.earliest_seq,
            head_seq=log_.head_seq,
            count=log_.count,
            bytes=log_.bytes,
        )

    def _commit_delete(self, topic: Topic, before_seq: int | None, match: Match | None) -> Commit:
        bound = topic.log.head_seq
        selector: dict[str, Any] = {"bound": bound}
        if before_seq is not None:
            selector["before_seq"] = before_seq
        if match is not None:
            selector["match"] = match.to_wire()
        now = self.now_ms()
        data = b""
        count = 0
        if not topic.ephemeral:
            floor = topic.log.evict_floor
            if topic.config.ttl_ms and floor > topic.floor_logged:
                # What has expired is lost, not deleted: replay has to know before it applies the deletion.
                topic.floor_logged = floor
                mark = {"below": floor, "reason": "ttl"}
                data = encode_control(FrameType.EVICT_WATERMARK, mark, topic_id=topic.id, ts=now, flags=frames.MORE)
                count = 1
            flags = frames.CONTINUES if count else 0
            data += encode_control(FrameType.DELETE, selector, topic_id=topic.id, seq=bound, ts=now, flags=flags)
            count += 1

        def apply(commit: Commit) -> int:
            if match is None:
                assert before_seq is not None
                first = topic.log.earliest_seq
                deleted = topic.log.delete_below(before_seq, bound)
                if topic.ephemeral and deleted:
                    topic.blocks.free(range(first, min(before_seq, bound + 1)))
                self.account(topic)
                return deleted
            seqs = topic.log.matching(match, before_seq=before_seq, bound=bound)
            if len(seqs) <= DELETE_SLICE:
                return self._delete_slice(topic, seqs)
            assert self._nursery is not None
            topic.working = trio.Event()
            self._nursery.start_soon(self._work_off, topic, commit, seqs)
            return 0

        commit = Commit(topic, data, count, topic.gate if data else Gate.HANDED, apply, self.clock.perf_ns)
        self._send(topic, commit)
        return commit

    def _delete_slice(self, topic: Topic, seqs: Sequence[int]) -> int:
        deleted = topic.log.delete_seqs(seqs)
        topic.blocks.free(seqs)
        self.account(topic)
        return deleted

    async def _work_off(self, topic: Topic, commit: Commit, seqs: array[int]) -> None:
        """A very large deletion in slices. The topic's readers and later commits wait for its end, nobody else does."""
        deleted = 0
        try:
            for start in range(0, len(seqs), DELETE_SLICE):
                deleted += self._delete_slice(topic, seqs[start : start + DELETE_SLICE])
                await trio.lowlevel.checkpoint()
        finally:
            working, topic.working = topic.working, None
            assert working is not None
            working.set()
            commit.result = deleted
            commit.done.set()
            topic.settle()

    # -- read ---------------------------------------------------------------------------------------------------------

    async def read(self, name: str, request: ReadRequest, perf: Performance) -> ReadResult:
        """One diff, with its long poll (`api.md` section 5). Raises 404, and 503 when the daemon stops while it
        waits."""
        topic = self.topic(name)
        self._touch(topic)
        deadline = trio.current_time() + request.wait_ms / 1000
        position = request.from_seq
        same_epoch = request.epoch is None or request.epoch == topic.id
        scanned = 0
        while True:
            while topic.working is not None:
                await topic.working.wait()
            self._expire(topic)
            result, examined = await self._collect(topic, request, position, same_epoch)
            scanned += examined
            if result.count or result.tombstone is not None or trio.current_time() >= deadline:
                perf.records_scanned = scanned
                perf.cold_segments_read = 0
                self._touch(topic)
                return result
            position = result.next_from_seq
            await self._wait_for_change(topic, deadline)
            if topic.deleted:
                raise topic_not_found(name)
            if self.status.phase == "draining":
                raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)

    async def _wait_for_change(self, topic: Topic, deadline: float) -> None:
        if topic.deleted or self.status.phase == "draining":
            return
        if topic.changed is None:
            topic.changed = trio.Event()
        changed = topic.changed
        with trio.move_on_at(deadline):
            await changed.wait()

    async def _collect(
        self, topic: Topic, request: ReadRequest, from_seq: int, same_epoch: bool
    ) -> tuple[ReadResult, int]:
        """Everything deliverable after `from_seq` up to the limits, in the order floor, hole, ttl, deleted, node,
        deliver."""
        log_ = topic.log
        same_epoch = same_epoch and from_seq <= log_.head_seq
        position, tombstone = log_.start(from_seq, same_epoch)
        hidden = request.nodes if topic.config.dedupe_node else frozenset()
        projection = Projection(request.include_tags, request.include_meta)
        pieces: list[bytes] = []
        count = scanned = since_pause = 0
        budget = request.max_batch_bytes
        loaded: Block | None = None
        while count < request.limit and budget > 0:
            # Every round may follow a wait (for the disk, or to let others run), so the topic is looked at anew.
            if topic.deleted:
                raise topic_not_found(topic.name)
            if topic.working is not None:
                await topic.working.wait()
                continue
            if position + 1 < log_.evict_floor:
                if pieces:
                    break
                position, tombstone = log_.start(from_seq, same_epoch)
            step = log_.step(position, request.limit - count)
            if step is None:
                position = max(position, log_.head_seq)
                break
            if isinstance(step, Gap):
                if pieces or tombstone is not None:
                    break
                tombstone = self._tombstone(log_, step)
                position = step.last
                continue
            block = topic.blocks.find(step.first)
            if block is None and loaded is not None and loaded.first_seq <= step.first <= loaded.last_seq:
                block = loaded
            if block is None:
                loaded = await self._load(topic, step.first, step.last)
                continue
            last = min(step.last, block.last_seq)
            taken, n, position = _take(block, step.first, last, budget, projection, hidden, at_least_one=not pieces)
            if block.views:
                self.cache.grown(block)
            scanned += position - step.first + 1
            if taken:
                pieces.append(taken)
                count += n
                budget -= len(taken) + 1
            if position < last:
                break
            since_pause += position - step.first + 1
            if since_pause >= SCAN_SLICE:
                since_pause = 0
                await trio.lowlevel.checkpoint()
        return ReadResult(
            topic=topic.name,
            epoch=topic.id,
            records=b",".join(pieces),
            count=count,
            next_from_seq=position,
            head_seq=log_.head_seq,
            earliest_seq=log_.earliest_seq,
            caught_up=position == log_.head_seq,
            tombstone=tombstone,
            lag=log_.head_seq - position,
        ), scanned

    @staticmethod
    def _tombstone(log_: TopicLog, gap: Gap) -> Tombstone:
        return Tombstone(
            gap_from=gap.first,
            gap_to=gap.last,
            reason=gap.reason,
            missed_estimate=gap.missed,
            earliest_seq=log_.earliest_seq,
            head_seq=log_.head_seq,
        )

    async def _load(self, topic: Topic, first: int, last: int) -> Block | None:
        """Read live records from disk into a block that begins at `first`.

        The caller looks at the state again, as it may have changed: then there may be no block (None), and what is live
        now of the block's range is all there.
        Records whose bytes do not verify become `corrupt` holes, never data.
        """
        following = topic.blocks.next_first(first)
        last = min(last, first + LOAD_RECORDS - 1, following - 1 if following is not None else last)
        frame_range = topic.log.locate(first, last)[0]
        path = self.store.files.get(frame_range.file).path
        read = partial(read_records, self._fs, path, frame_range)
        try:
            records, damaged = await self._offload.run(Kind.HOT_READ, read)
        except FileNotFoundError:
            # Dropped while we were about to read it; if the index still points there, the file is missing.
            records, damaged = [], list(frame_range.seqs)
        for seq in damaged:
            if topic.log.is_live(seq) and topic.log.locate(seq, seq)[0].file == frame_range.file:
                log.error("record_damaged", topic=topic.name, seq=seq, file=path)
                topic.log.add_hole(seq, seq, "corrupt")
        if damaged:
            self.account(topic)
        if not records or records[0].seq != first or topic.deleted:
            return None
        block = block_of_records(records)
        if topic.log.is_live(first):
            topic.blocks.insert(block)
        return block

    # -- housekeeping
    # ---------------------------------------------------------------------------------------------------

    def expire_keys(self) -> None:
        """Called every second: forget idempotency keys whose window is over, a bounded number a call."""
        now = self.now_ms()
        for topic in list(self._keyed.values()):
            if topic.keys is None:
                continue
            self.key_count -= topic.keys.expire(now, topic.config.idempotency_window_ms)
            if not len(topic.keys):
                topic.keys = None
                self._keyed.pop(topic.id, None)

    def figures(self) -> EngineFigures:
        """What the metrics show, as of one moment."""
        wal = WalFigures()
        for writer in self.store.writers:
            writer.figures.queue_depth = writer.queue_depth
            wal.add(writer.figures)
        by_class = dict.fromkeys(("ephemeral", "memory", "disk", "fsync"), 0)
        samples: list[TopicFigures] = []
        for topic in self.topics.values():
            by_class[topic.config.durability] += 1
            if len(samples) < METRIC_TOPICS:
                self._expire(topic)
                log_ = topic.log
                samples.append(TopicFigures(topic.name, log_.head_seq, log_.earliest_seq, log_.count, log_.bytes))
        return EngineFigures(
            topics=len(self.topics),
            by_class=by_class,
            records_live=self.total_records,
            bytes_live=self.total_bytes,
            ready=self.status.phase == "ready",
            recovery_progress=self.status.replay_progress,
            uptime_ms=self.clock.monotonic_ms() - self.status.started_ms,
            wal=wal,
            topic_samples=samples,
            topics_truncated=len(self.topics) > METRIC_TOPICS,
            throttled=dict(self._throttled),
        )


def _flags(nodes: Sequence[str], tags: Sequence[str | None]) -> bytes:
    return bytes(
        (frames.HAS_TAG if tag else 0) | (frames.HAS_NODE if node else 0) for node, tag in zip(nodes, tags, strict=True)
    )


def _encode_blocks(
    first_seq: int,
    ts: int,
    datas: Sequence[bytes],
    nodes: Sequence[str] | None,
    tags: Sequence[str | None] | None,
    metas: Sequence[bytes] | None,
    *,
    pinned: bool,
) -> list[Block]:
    """A batch as blocks of bounded size."""
    blocks = []
    for at in range(0, len(datas), BLOCK_RECORDS):
        part = slice(at, at + BLOCK_RECORDS)
        block = encode_block(
            first_seq + at,
            ts,
            datas[part],
            nodes=nodes and nodes[part],
            tags=tags and tags[part],
            metas=metas and metas[part],
        )
        block.pinned = pinned
        blocks.append(block)
    return blocks


def _take(
    block: Block,
    first: int,
    last: int,
    budget: int,
    projection: Projection,
    hidden: frozenset[str],
    *,
    at_least_one: bool,
) -> tuple[bytes, int, int]:
    """Records `first`..`last` of a block without those of hidden nodes: bytes, how many, last seq examined.

    The last is below `last` only when the budget has run out.
    """
    if not hidden or block.nodes is None or hidden.isdisjoint(block.nodes):
        taken, to = block.cut(first, last, budget, projection, at_least_one=at_least_one)
        return taken, to - first + 1, to
    pieces: list[bytes] = []
    count = 0
    seq = first
    while seq <= last:
        if block.node_of(seq) in hidden:
            seq += 1
            continue
        end = seq
        while end < last and block.node_of(end + 1) not in hidden:
            end += 1
        taken, to = block.cut(seq, end, budget, projection, at_least_one=at_least_one and not pieces)
        if taken:
            pieces.append(taken)
            count += to - seq + 1
            budget -= len(taken) + 1
        if to < end:
            return b",".join(pieces), count, to
        seq = end + 1
    return b",".join(pieces), count, last
