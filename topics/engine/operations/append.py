"""One append, from admission to its answer (`docs/spec/api.md` section 4).

Responsible for admission (repeats, room in the queue, caps, the quota), for the one step of the loop in which an append
gets its seqs and becomes a commit, and for its publication. Records are taken apart in `topics.engine.record_columns`,
reserves are raised in `topics.engine.ceilings`, keys are counted in `topics.engine.idempotency_keys`, and a missing
topic is made by `topics.engine.operations.topic_lifecycle`.
"""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import trio

from topics.config import Settings
from topics.engine.ceilings import Ceilings
from topics.engine.commits import Commits, time_commit, unlogged_floor
from topics.engine.foreseen import Foreseen
from topics.engine.idempotency_keys import IdempotencyKeys
from topics.engine.loader import Loader
from topics.engine.operations.append_attachment import AppendAttachment
from topics.engine.operations.judge import FoundTags, Judge, check_missing, publish_fence, raise_fence
from topics.engine.operations.large_batches import LARGE_BATCH_BYTES, LargeBatch
from topics.engine.operations.new_jobs import check_jobs, enqueue_event, enqueue_frame, publish_jobs
from topics.engine.operations.schema_checks import check_records
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.operations.unique_jobs import UniqueJobs, duplicates_of, key_event, key_frame
from topics.engine.record_columns import (
    COMMIT_TURN_BYTES,
    AppendColumns,
    columns_of,
    encode_blocks,
    index_flags,
    job_fields_of,
    utf8,
)
from topics.engine.registry import Registry
from topics.engine.tables.kept_records import KeptRecords, keep_frame
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError, topic_not_found
from topics.log.block import Block
from topics.log.missing_columns import missing_below
from topics.log.retention import eviction_watermark, has_room, watermark_beside
from topics.log.span import NotLoaded
from topics.log.tables.kept_tags import KeptChange
from topics.log.topic_config import resolve_config
from topics.log.topic_log import Extent
from topics.model import (
    AppendRequest,
    AppendResult,
    Fence,
    Performance,
    TopicConfig,
    TopicConfigPatch,
)
from topics.queue.lease_events import EnqueueEvent, KeyEvent
from topics.runtime.clock import Clock
from topics.runtime.turns import Turns
from topics.storage.wal import frames
from topics.storage.wal.frames import NOTHING, AppendFrames, FrameType, offsets_of, seal_batch

EXPIRE_ALL_MS: Final = 1000
"""If the quota refuses appends, all topics are searched for expired records, at most once in this time (ms)."""


class _Additions(NamedTuple):
    """The states that an append stores besides its records."""

    key: str | None
    """The idempotency key."""
    fence: Fence | None
    """The fence that the append raises."""
    jobs: EnqueueEvent | None
    """The event that tells the queue of its jobs, if any has a delay, a time or a priority."""
    keys: KeyEvent | None
    """The event with their unique keys for the queue, if they have any."""
    attachment: AppendAttachment | None


class _DecidedAppend(NamedTuple):
    """An append that has its seqs. It does not change any more."""

    topic: Topic
    first_seq: int
    last_seq: int
    ts: int
    at: int
    """When the append got its seqs (ms of the window clock)."""
    appended: AppendFrames
    tags: Sequence[str | None] | None
    blocks: list[Block]
    watermark: int
    """Records below it are evicted to make room for the batch; 0 for none."""
    kept: KeptChange | None
    """The records that the batch removes from a topic that keeps only the newest records of each tag."""
    additions: _Additions


class Appends:
    """The append call. Made once by the engine. Others use its parts: stages and dead letters append through it,
    forwarding uses its checks."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        ceilings: Ceilings,
        keys: IdempotencyKeys,
        topic_lifecycle: TopicLifecycle,
        loader: Loader,
        turns: Turns,
        judge: Judge,
        unique: UniqueJobs,
        kept: KeptRecords,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._ceilings = ceilings
        self._keys = keys
        self._topic_lifecycle = topic_lifecycle
        self._loader = loader
        self._turns = turns
        self.judge = judge
        self._unique = unique
        self.kept = kept
        self._expired_all_ms: int | None = None

    async def append(
        self,
        name: str,
        request: AppendRequest,
        perf: Performance,
        *,
        check_schema: bool = True,
        attachment: AppendAttachment | None = None,
    ) -> AppendResult:
        """Append a checked batch to the topic of a name; returns at its commit point. With `check_schema` the records
        must not break the schema of the topic. `attachment` decides in the step in which seqs are assigned.

        Raises the `ApiError`s of `docs/spec/api.md` section 4. Cancelling before seqs are assigned leaves nothing;
        after that the batch is committed all the same and only the answer is lost.
        """
        config = self.inline_config(name, request)
        find, make = partial(self._registry.topics.get, name), partial(self.create, name, request, config)
        return await self.append_to(find, make, request, perf, check_schema=check_schema, attachment=attachment)

    async def append_to(
        self,
        find: Callable[[], Topic | None],
        make: Callable[[], Awaitable[bool]],
        request: AppendRequest,
        perf: Performance,
        *,
        check_schema: bool = True,
        attachment: AppendAttachment | None = None,
    ) -> AppendResult:
        """Append to the topic that `find` returns. If it returns None, call `make`, which makes the topic, or waits for
        the task that is making it, and returns True if it made one that clients know. Otherwise like `append`."""
        created = False
        waited = 0.0
        key = request.idempotency_key
        conditions = request.conditions
        found: FoundTags = {}
        batch: AppendColumns | None = None
        large: LargeBatch | None = None
        takes_turn = False
        judged_by: msgspec.Raw | None = None
        duplicates: Mapping[int, int] | None = None
        while True:
            has_turn, takes_turn = takes_turn, False  # a turn ends when the task waits for anything else
            topic = find()
            if topic is None:
                self._commits.check_space()
                if await make():
                    created = True
                continue
            if not await self._commits.settled(topic):
                continue
            writer = self._commits.check_writable(topic)
            if key is not None:
                known = self._keys.known(topic, key)
                if known is not None:
                    return _repeated(topic, key, known, perf)
                if (first := self._keys.in_flight(topic, key)) is not None:
                    self._commits.check_space(writer)
                    await self._commits.wait_for(first)
                    continue
            if topic.config.schema is not None or topic.stage is not None:
                schema = self._schema_of(topic)
                if schema is not None and schema is not judged_by and check_schema:
                    batch = columns_of(request) if batch is None else batch
                    judged_by = schema
                    if await check_records(schema, batch.datas, self._turns):
                        continue
            self._commits.check_space(writer)
            if self._commits.is_full(topic) and not topic.ephemeral:
                waited += await self.admit(topic, waited, disable_backpressure=request.disable_backpressure)
                continue
            if waits_for_pending(topic):
                await self._commits.wait_for(topic.next_change())
                continue
            if batch is None:
                batch = columns_of(request)
            if batch.jobs is not None:
                check_jobs(batch.jobs, is_queue=topic.queue is not None, wall_ms=self._clock.now_ms())
            if topic.log.stored.last_seq and not await self.is_loaded(topic, batch):
                continue
            if not has_turn and batch.cost >= COMMIT_TURN_BYTES:
                large = await self._take_turn(topic, batch, large)
                takes_turn = True
                continue
            if conditions is not None and not await self.judge.holds(topic, conditions, found):
                continue
            if batch.jobs is not None and batch.jobs.unique is not None:
                duplicates = await self._unique.judged(topic, batch.jobs.unique, keeps_answer=key is not None)
                if duplicates is None:
                    continue
            break
        if waited:
            perf.throttle_wait_ms = waited
        return await self._store(
            topic, request, batch, perf, large=large, duplicates=duplicates, created=created, attachment=attachment
        )

    async def _store(
        self,
        topic: Topic,
        request: AppendRequest,
        batch: AppendColumns,
        perf: Performance,
        *,
        large: LargeBatch | None,
        duplicates: Mapping[int, int] | None,
        created: bool,
        attachment: AppendAttachment | None,
    ) -> AppendResult:
        """Commit those records of an append that are not duplicates, and wait for the commit point. The caller has
        judged the append in this step of the loop. `large`: the batch, encoded ahead, perhaps for other seqs."""
        key, conditions = request.idempotency_key, request.conditions
        if duplicates:
            batch, large = batch.only([i for i in range(len(batch.datas)) if i not in duplicates]), None
        if batch.datas:
            self._check_room(topic, batch)
        if key is not None:
            self._keys.check_room()
        if attachment is not None:
            attachment.decide(topic)
        fence = raise_fence(topic, conditions) if conditions is not None else None
        if duplicates and not batch.datas:
            nothing = await self._unique.nothing_stored(topic, duplicates, key, fence, attachment)
            if nothing is not None:
                time_commit(nothing, perf)
            return _answer(topic, 0, 0, created=created, duplicates=duplicates)
        large = large if large is not None and large.fits(topic) else None
        commit = self._commit(topic, batch, key, fence, large, duplicates=duplicates, attachment=attachment)
        first_seq, last_seq = await commit.answer()
        time_commit(commit, perf)
        return _answer(topic, first_seq, last_seq, created=created, duplicates=duplicates or None)

    def _schema_of(self, topic: Topic) -> msgspec.Raw | None:
        """Return the schema of a topic, or of the topic of a stage; None for none."""
        if topic.stage is None:
            return topic.config.schema
        target = self._registry.by_id.get(topic.stage.target_id)
        return target.config.schema if target is not None else None

    async def _take_turn(self, topic: Topic, batch: AppendColumns, large: LargeBatch | None) -> LargeBatch | None:
        """Wait for a turn of the loop for a batch that takes long. Return the batch encoded ahead if it is a large one,
        None otherwise; `large` is what an earlier call returned."""
        if batch.cost >= LARGE_BATCH_BYTES and large is None:
            return await self._encode_ahead(topic, batch)
        await self._turns.take(batch.cost)
        return large

    async def _encode_ahead(self, topic: Topic, batch: AppendColumns) -> LargeBatch:
        """Encode a large batch for the seqs that come next, each piece in a turn of its own, behind a barrier. Returns
        in a turn."""
        topic.barrier = trio.Event()
        try:
            large = LargeBatch(topic, batch, self._registry.now_ms())
            while not large.is_ready:
                await self._turns.take()
                large.encode_piece()
            await self._turns.take()
        finally:
            topic.lift_barrier()
        return large

    async def is_loaded(self, topic: Topic, batch: AppendColumns) -> bool:
        """Return True if eviction for this batch can be decided from memory. Otherwise load the missing columns and
        return False; the caller must start over."""
        judge = partial(self.foreseen_watermark, topic, batch.tags, batch.sizes, batch.datas)
        try:
            judge()
        except NotLoaded:
            await self._loader.prepared(topic, judge)
            return False
        return True

    def foreseen_watermark(
        self, topic: Topic, tags: Sequence[str | None] | None, sizes: array[int], datas: Sequence[bytes]
    ) -> int:
        """Return the `watermark` for a batch that is not committed yet. Raises NotLoaded."""
        if topic.log.kept is None or not evicts(topic):
            return self.watermark(topic, sizes)
        self._registry.expire(topic)
        change = self.kept.decide(topic, topic.assigned + 1, tags, sizes, datas)
        try:
            return self._watermark(topic, sizes, change)
        finally:
            self.kept.take_back(topic, change)

    # -- admission ---------------------------------------------------------------------------------------------------

    def inline_config(self, name: str, request: AppendRequest) -> TopicConfig | None:
        """Return the config that the request has for the topic if it must be created, None if it has none. Raises 400
        for a config that a topic of this name could not have, whether the topic exists or not."""
        if request.config is None:
            return None
        config = resolve_config(None, request.config, topic=name)
        self._topic_lifecycle.check_targets(name, config)
        return config

    async def create(self, name: str, request: AppendRequest, config: TopicConfig | None) -> bool:
        """Make the topic of an append, with the `inline_config` or else the defaults, or wait for the task that is
        making it. Return True if it was made here.

        Raises `404 topic_not_found` if the request or the config does not allow it, 400, `422 schema_violation`, and
        429.
        """
        if config is None:
            config = resolve_config(None, TopicConfigPatch(), topic=name)
        check_may_be_made(name, request, config)
        check_jobs(job_fields_of(request), is_queue=config.type == "queue", wall_ms=self._clock.now_ms())
        if config.schema is not None:
            await check_records(config.schema, columns_of(request).datas, self._turns)
        if request.conditions is not None:
            check_missing(request.conditions, ephemeral=config.durability == "ephemeral")
        if request.idempotency_key is not None:
            self._keys.check_room()  # an append that will be refused must not leave a topic behind
        return await self._topic_lifecycle.create(name, config)

    async def admit(self, topic: Topic, waited: float, *, disable_backpressure: bool) -> float:
        """Wait for room in the queue of the topic's shard, and for the bucket (`Commits.admit`). All waits of a call
        together last `admission_ms` at most; `waited` ms of them have passed. Return how long this wait took (ms)."""
        budget = None if disable_backpressure else max(int(self._settings.admission_ms - waited), 0)
        return await self._commits.admit(topic, budget)

    def _check_room(self, topic: Topic, batch: AppendColumns) -> None:
        """Check the quota, and caps with `reject`, against the published records and those in flight
        (`docs/spec/semantics.md` section 2)."""
        quota = self._settings.max_total_bytes
        if not quota and topic.config.discard != "reject":
            return
        nbytes = sum(batch.sizes)
        if quota:
            self.check_quota(nbytes)
        if topic.config.discard == "reject":
            self.check_caps(topic, len(batch.sizes), nbytes)

    def check_quota(self, nbytes: int) -> None:
        """Refuse `nbytes` that do not fit the quota. There must be a quota. Raises 429."""
        if nbytes <= self.quota_left():
            return
        self.expire_all()
        if nbytes > self.quota_left():
            raise self._registry.throttle("max_total_bytes", self._settings.max_total_bytes)

    def quota_left(self) -> int:
        """Bytes that may still be appended to all topics together, if there is a limit."""
        registry = self._registry
        return self._settings.max_total_bytes - registry.total_bytes - registry.common.bytes_on_the_way

    def expire_all(self) -> None:
        """Evict expired records of all topics, at most once in `EXPIRE_ALL_MS`, because it looks at every topic and
        clients repeat refused appends."""
        now = self._clock.monotonic_ms()
        if self._expired_all_ms is not None and now - self._expired_all_ms < EXPIRE_ALL_MS:
            return
        self._expired_all_ms = now
        for topic in self._registry.by_id.values():
            self._expire_known(topic)  # for other topics, the next call on the topic loads the columns

    def check_caps(self, topic: Topic, count: int, nbytes: int) -> None:
        """Refuse `count` records of `nbytes` that do not fit a topic with `reject`. Raises 400, 422."""
        config = topic.config
        if not (config.cap_records or config.cap_bytes):
            return
        if (config.cap_records and count > config.cap_records) or (config.cap_bytes and nbytes > config.cap_bytes):
            raise ApiError(
                "record_too_large",
                f"{count} records of {nbytes} bytes can never fit the caps of topic {topic.name!r}",
                detail={"cap_records": config.cap_records, "cap_bytes": config.cap_bytes},
            )
        self._expire_known(topic)
        if not has_room(topic.log, config, topic.pending_records, topic.pending_bytes, count, nbytes):
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

    # -- the commit --------------------------------------------------------------------------------------------------

    def _commit(
        self,
        topic: Topic,
        batch: AppendColumns,
        key: str | None,
        fence: Fence | None = None,
        large: LargeBatch | None = None,
        duplicates: Mapping[int, int] | None = None,
        attachment: AppendAttachment | None = None,
    ) -> Commit:
        """Assign seqs and times, build frames and blocks, queue them: one step of the loop. `fence`: it was raised in
        this step. `large`: the batch, encoded for these seqs up to the last piece. `duplicates` were left out of the
        batch. `attachment` has decided."""
        count = len(batch.datas)
        if large is not None:
            ts = topic.last_ts = large.ts
        else:
            ts = topic.last_ts = max(self._registry.now_ms(), topic.last_ts)
        at = self._registry.windows.now_ms()
        first_seq = topic.assigned + 1
        last_seq = topic.assigned = topic.assigned + count
        commit_point = self._ceilings.commit_point(topic, last_seq, ts)
        if attachment is not None:
            commit_point = CommitPoint.SYNCED
        kept, watermark = self.decided_removals(topic, first_seq, batch.tags, batch.sizes, batch.datas)
        jobs = keys = None
        if batch.jobs is not None:
            jobs = enqueue_event(batch.jobs, first_seq, self._clock.now_ms())
            if batch.jobs.unique is not None:
                keys = key_event(batch.jobs.unique, duplicates or {}, first_seq, at, key)
        additions = _Additions(key, fence, jobs, keys, attachment)
        if topic.ephemeral:
            appended, data, frame_count = _without_frames(batch), NOTHING, 0
        else:
            tail = _tail(topic, first_seq, count, eviction_frames(topic, watermark, kept), at, additions)
            frame_count = count + len(tail)
            if large is not None:
                appended = large.frames(closes_batch=not tail)
            else:
                appended = _with_frames(topic, first_seq, ts, batch, closes_batch=not tail)
            data = appended.data + seal_batch(tail, topic_id=topic.id, ts=ts, opened=True) if tail else appended.data
        if large is not None:
            blocks = large.blocks()
        else:
            names = batch.nodes, batch.tags
            blocks = encode_blocks(first_seq, ts, batch.datas, *names, batch.metas, pinned=topic.ephemeral)
        decided = _DecidedAppend(
            topic, first_seq, last_seq, ts, at, appended, batch.tags, blocks, watermark, kept, additions
        )
        commit = Commit(
            topic,
            data,
            frame_count,
            commit_point,
            partial(self._publish, decided),
            self._clock.perf_ns,
            last_seq=last_seq,
            records=count,
            sizes=appended.sizes,
            frame_lens=None if topic.ephemeral else appended.frame_lens,
        )
        if watermark:
            commit.needs = partial(missing_below, topic.log.index, watermark)
        if watermark or batch.tags is not None:
            commit.foreseen = Foreseen(batch.tags, watermark)
        if key is not None:
            self._keys.begin(commit, key)
        if keys is not None:
            self._unique.begin(commit, keys)
        if attachment is not None:
            commit.also_on_fail(attachment.fail)
        if kept is not None:
            commit.also_on_fail(partial(self.kept.take_back, topic, kept))
        self._commits.send(commit)
        return commit

    def watermark(self, topic: Topic, sizes: array[int], kept: KeptChange | None = None) -> int:
        """Return the seq below which a topic with caps evicts for this batch and those in flight before it; 0 for none.
        `kept` is what the batch takes away before that. Raises NotLoaded."""
        self._registry.expire(topic)
        return self._watermark(topic, sizes, kept)

    def decided_removals(
        self,
        topic: Topic,
        first_seq: int,
        tags: Sequence[str | None] | None,
        sizes: array[int],
        datas: Sequence[bytes],
    ) -> tuple[KeptChange | None, int]:
        """Return what a batch takes away that has its seqs now, and its `watermark`. It cannot wait for columns any
        more: the caller has called `foreseen_watermark` before, in the same step."""
        self._expire_known(topic)
        kept = self.kept.decide(topic, first_seq, tags, sizes, datas)
        return kept, self._watermark(topic, sizes, kept)

    def _expire_known(self, topic: Topic) -> None:
        """Evict expired records if memory has the columns. The caller has loaded the columns that it needed a moment
        ago; records that have expired since are evicted by the next call."""
        with suppress(NotLoaded):
            self._registry.expire(topic)

    @staticmethod
    def _watermark(topic: Topic, sizes: array[int], kept: KeptChange | None = None) -> int:
        if not evicts(topic):
            return 0
        if kept is not None and kept.seqs:  # nothing else is in flight: see `waits_for_pending`
            watermark = watermark_beside(topic.log, topic.config, sizes, kept.seqs, kept.sizes)
            return watermark if watermark > topic.log.earliest_seq else 0
        incoming = [commit.sizes for commit in topic.pending or () if commit.sizes is not None]
        watermark = eviction_watermark(topic.log, topic.config, [*incoming, sizes])
        return watermark if watermark > topic.log.earliest_seq else 0

    def _publish(self, decided: _DecidedAppend, commit: Commit) -> tuple[int, int]:
        """The commit point: from here on readers see the batch. Returns its first and last seq."""
        topic, first_seq, last_seq, ts, at, appended, tags, blocks, watermark, kept, additions = decided
        key, fence, jobs, keys, attachment = additions
        publish_records(topic, placed(commit, first_seq, ts, appended, tags), blocks, 0 if kept else watermark)
        if kept is not None:
            self.kept.publish(commit, kept, ts, watermark)
        if jobs is not None:
            publish_jobs(topic, jobs)
        if keys is not None:
            self._unique.publish(topic, keys)
        if key is not None:
            self._keys.remember(topic, key, first_seq, commit.records, at)
        if fence is not None:
            publish_fence(topic, fence)
        if attachment is not None:
            attachment.publish()
        self._registry.account(topic)
        return first_seq, last_seq


def check_may_be_made(name: str, request: AppendRequest, config: TopicConfig) -> None:
    """Raise `404 topic_not_found` if an append must not make its topic, with this config."""
    if request.create is False or (request.create is msgspec.UNSET and not config.auto_create):
        raise topic_not_found(name)


def placed(
    commit: Commit, first_seq: int, ts: int, appended: AppendFrames, tags: Sequence[str | None] | None
) -> Extent:
    """Return the records of a commit with the places of those frames that have been written."""
    topic = commit.topic
    offsets: Sequence[int] = (
        offsets_of(commit.offset, appended.frame_lens) if commit.file else array("I", bytes(4 * commit.records))
    )
    file = 0 if topic.ephemeral else commit.file  # an ephemeral commit has a file too if it waited for a sync
    return Extent(first_seq, ts, file, offsets, appended.frame_lens, appended.sizes, appended.flags, tags)


def publish_records(topic: Topic, extent: Extent, blocks: Sequence[Block], watermark: int) -> None:
    """Publish these records, and evict records below the watermark. The caller then calls `Registry.account`."""
    topic.log.extend(extent)
    for block in blocks:
        topic.blocks.append(block)
    if watermark:
        topic.log.evict_below(watermark, "cap")
    topic.last_write_ms = extent.ts
    if topic.stage is None:
        topic.common.traffic.count_in(len(extent.sizes), sum(extent.sizes))


def _answer(
    topic: Topic,
    first_seq: int,
    last_seq: int,
    *,
    created: bool = False,
    deduped: bool = False,
    duplicates: Mapping[int, int] | None = None,
) -> AppendResult:
    """Return the answer to an append of these seqs, both ends inclusive, 0 for none, as of now."""
    return AppendResult(
        topic=topic.name,
        first_seq=first_seq,
        last_seq=last_seq,
        head_seq=topic.log.head_seq,
        count=last_seq - first_seq + 1 if last_seq else 0,
        created=created,
        deduped=deduped,
        duplicates=duplicates,
    )


def _repeated(topic: Topic, key: str, known: tuple[int, int], perf: Performance) -> AppendResult:
    """Return the answer to an append that was committed before under the same key."""
    first_seq, count = known
    perf.wal_append_ms = perf.fsync_ms = 0.0
    duplicates = duplicates_of(topic, key, first_seq, count)
    if not count:
        return _answer(topic, 0, 0, deduped=True, duplicates=duplicates)
    return _answer(topic, first_seq, first_seq + count - 1, deduped=True, duplicates=duplicates)


def evicts(topic: Topic) -> bool:
    """Return True if appends to the topic evict older records."""
    config = topic.config
    return config.discard == "old" and bool(config.cap_records or config.cap_bytes)


def only_appends(topic: Topic) -> bool:
    """Return True if no commit in flight deletes records."""
    return topic.working is None and not any(commit.deletes for commit in topic.pending or ())


def waits_for_pending(topic: Topic) -> bool:
    """Return True if an append cannot be decided before commits in flight are published. A deletion in flight changes
    what caps have to evict and which records of a tag are the newest: wait for it rather than take too much. With both,
    appends are decided one after the other."""
    if not topic.pending and topic.working is None:
        return False
    keeps = topic.log.kept is not None
    if evicts(topic):
        return keeps or (bool(topic.pending) and not only_appends(topic))
    return keeps and not only_appends(topic)


def _tail(
    topic: Topic,
    first_seq: int,
    count: int,
    removals: list[tuple[FrameType, dict[str, Any]]],
    at: int,
    additions: _Additions,
) -> list[tuple[FrameType, dict[str, Any]]]:
    """Return the control frames behind the records of a batch."""
    key, fence, jobs, keys, attachment = additions
    tail: list[tuple[FrameType, dict[str, Any]]] = []
    if key is not None:
        tail.append((FrameType.IDEMPOTENCY, {"key": key, "first": first_seq, "count": count, "at": at}))
    tail += removals
    if fence is not None:
        tail.append(fence_frame(fence))
    if jobs is not None:
        tail.append(enqueue_frame(jobs, at))
    if keys is not None:
        tail.append(key_frame(keys))
    if attachment is not None:
        tail += attachment.frames
    return tail


def fence_frame(fence: Fence) -> tuple[FrameType, dict[str, Any]]:
    """Return the frame that logs a raised fence."""
    return FrameType.FENCE, {"name": fence.name, "token": fence.token}


def eviction_frames(
    topic: Topic, watermark: int, kept: KeptChange | None = None
) -> list[tuple[FrameType, dict[str, Any]]]:
    """Return the frames that log what a batch takes away and evicts. From now on the watermark counts as logged."""
    found: list[tuple[FrameType, dict[str, Any]]] = []
    takes = kept is not None and bool(kept.seqs)
    mark = unlogged_floor(topic) if watermark or takes else None
    if mark is not None:
        found.append((FrameType.EVICT_WATERMARK, mark))
    if kept is not None and kept.logs_anything:
        found.append(keep_frame(kept))
    if watermark:
        # The ttl below it needs no frame of its own.
        topic.on_disk.floor_logged = max(topic.on_disk.floor_logged, watermark)
        found.append((FrameType.EVICT_WATERMARK, {"below": watermark, "reason": "cap"}))
    return found


def _with_frames(topic: Topic, first_seq: int, ts: int, batch: AppendColumns, *, closes_batch: bool) -> AppendFrames:
    return frames.encode_appends(
        topic.id,
        first_seq,
        ts,
        batch.datas,
        nodes=utf8(batch.nodes),
        tags=utf8(batch.tags),
        metas=batch.metas,
        durable=topic.commit_point is CommitPoint.SYNCED,
        closes_batch=closes_batch,
    )


def _without_frames(batch: AppendColumns) -> AppendFrames:
    """Return the index columns of records that are in memory only."""
    count = len(batch.datas)
    return AppendFrames(NOTHING, array("I", bytes(4 * count)), batch.sizes, index_flags(count, batch.nodes, batch.tags))
