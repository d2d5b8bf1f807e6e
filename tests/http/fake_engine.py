"""An engine of a few lists, for tests of HTTP alone: it answers every route, and can be made to fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import trio
from msgspec.structs import asdict, replace

from topics.auth.keys import Key
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.operations.export import Export, ExportRequest
from topics.engine.record_columns import columns_of
from topics.errors import ApiError, invalid, record_not_found, router_not_found, topic_not_found
from topics.job_model import (
    ClaimRequest,
    ClaimResult,
    HeldRequest,
    HeldResult,
    Job,
)
from topics.log.tag_match import TagMatch, parse_match
from topics.log.topic_config import resolve_config
from topics.model import (
    AppendRequest,
    AppendResult,
    CheckedAppend,
    CommitResult,
    Conditions,
    DeleteResult,
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
from topics.runtime.clock import SystemClock
from topics.runtime.turns import Turns
from topics.storage.wal.write_right import WriteRight
from topics.telemetry.figures import EngineFigures, RouterFigures, TopicFigures

NO_ROUTER = RouterState(
    router="",
    source="",
    dest="",
    preserve_node=True,
    preserve_tag=True,
    create_dest=True,
    filter=None,
    allow_cycle=False,
    guarantee="at_least_once",
    start="tail",
    forwarded_total=7,
    cursor_seq=5,
    lag=2,
)
"""The defaults of a router, and the figures that every router here has."""


@dataclass
class FakeStatus:
    started_ms: int
    phase: str = "ready"
    replay_progress: float = 1.0
    read_only: bool = False
    following: Any = None
    not_owner: ApiError | None = None


@dataclass
class FakeTopic:
    config: TopicConfig
    records: list[dict[str, Any]] = field(default_factory=list)
    head_seq: int = 0
    stages: dict[str, list[CheckedAppend]] = field(default_factory=dict)
    fences: dict[str, int] = field(default_factory=dict)


class FakeReach:
    async def wait(self, places: Any, deadline: float) -> None:
        """An owner has everything."""


class FakeEngine:
    """Topics in memory. `before` runs ahead of every call that may wait; what it raises is raised."""

    def __init__(self, settings: Settings) -> None:
        self.given_back: list[int] = []
        self.settings = settings
        self.clock = SystemClock()
        self.status = FakeStatus(self.clock.monotonic_ms())
        self.metrics = SimpleNamespace(figures=partial(self._call, "figures"), bucket=None)
        self.reach = FakeReach()
        self.right = WriteRight()
        self.topics: dict[str, FakeTopic] = {}
        self.routers: dict[str, RouterState] = {}
        self.appends: list[AppendRequest] = []
        self.reads: list[ReadRequest] = []
        self.holds: list[int] = []
        self.asked: list[Any] = []
        """What queues were asked for."""
        self.before: Callable[[], Awaitable[None]] | None = None
        self.entered = 0
        """How often it was called, but for what the daemon and its metrics ask."""
        self.changed = trio.Event()
        self.cancelled_reads = 0
        self.waiting_reads = 0

    def as_engine(self) -> Engine:
        """What HTTP takes for the real one. A call is looked up when it is made, so a test may replace it."""

        def part(**calls: str) -> SimpleNamespace:
            return SimpleNamespace(**{name: partial(self._call, method) for name, method in calls.items()})

        registry = part(caps_of="caps_of")
        registry.topics = self.topics
        parts = SimpleNamespace(
            store=SimpleNamespace(right=self.right),
            settings=self.settings,
            status=self.status,
            clock=self.clock,
            turns=Turns(),
            registry=registry,
            checkpoint=partial(self._call, "checkpoint"),
            topic_lifecycle=part(put="put_topic", delete="delete_topic"),
            topic_states=part(of="topic_state", page="list_topics"),
            routers=part(
                put="put_router",
                state="router_state",
                page="list_routers",
                ends="router_ends",
                delete="delete_router",
                catch_up="catch_up",
            ),
            appends=part(append="append"),
            reads=part(read="read", record="record"),
            exports=part(open="export"),
            deletions=part(delete_records="delete_records"),
            stages=part(append="stage", delete="delete_stage"),
            stage_commits=part(commit="commit_stages"),
            fence_removals=part(remove="remove_fence"),
            topic_seals=part(seal="seal"),
            queues=part(
                claim="claim",
                window_ms="window_ms",
                nothing_claimed="nothing_claimed",
                give_back="give_back",
                ack="ack",
                nack="nack",
                extend="extend",
                pause="pause",
                resume="resume",
            ),
            metrics=self.metrics,
        )
        return cast(Engine, parts)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self, method)(*args, **kwargs)

    def _topic(self, name: str) -> FakeTopic:
        topic = self.topics.get(name)
        if topic is None:
            raise topic_not_found(name)
        return topic

    async def _enter(self) -> None:
        self.entered += 1
        if self.before is not None:
            await self.before()
        await trio.lowlevel.checkpoint()

    async def put_topic(self, name: str, patch: TopicConfigPatch, *, create: bool = True) -> tuple[TopicConfig, bool]:
        await self._enter()
        known = self.topics.get(name)
        if known is None and not create:
            raise topic_not_found(name)
        config = resolve_config(known.config if known else None, patch, topic=name)
        if known is None:
            self.topics[name] = FakeTopic(config)
        else:
            known.config = config
        return config, known is None

    async def delete_topic(self, name: str, *, if_empty: bool) -> tuple[bool, list[str]]:
        await self._enter()
        topic = self.topics.get(name)
        if topic is not None and if_empty and topic.records:
            raise ApiError("topic_not_empty", "there are records", detail={"topic": name})
        return self.topics.pop(name, None) is not None, []

    async def topic_state(self, name: str, *, touch: bool, places: bool = False) -> TopicState:
        return self._state(name, touch=touch)

    def _state(self, name: str, *, touch: bool) -> TopicState:
        topic = self._topic(name)
        return TopicState(
            topic=name,
            type=topic.config.type,
            epoch=1,
            head_seq=topic.head_seq,
            earliest_seq=topic.records[0]["$seq"] if topic.records else topic.head_seq + 1,
            next_seq=topic.head_seq + 1,
            count=len(topic.records),
            bytes=0,
            synced_seq=topic.head_seq,
            config=topic.config,
            effective_priority=0,
            last_write_ts=None,
            last_read_ts=1 if touch else None,
        )

    async def list_topics(
        self, prefix: str, after: str | None, page_size: int, key: Key
    ) -> tuple[list[TopicSummary], bool]:
        starts = tuple(key.covered(prefix))
        names = sorted(name for name in self.topics if name.startswith(starts) and (after is None or name > after))
        page = []
        for name in names[:page_size]:
            state = self._state(name, touch=False)
            page.append(
                TopicSummary(
                    topic=name,
                    type=state.type,
                    epoch=1,
                    head_seq=state.head_seq,
                    earliest_seq=state.earliest_seq,
                    count=state.count,
                    bytes=0,
                    durable=state.config.durable,
                    durability=state.config.durability,
                    effective_priority=0,
                )
            )
        return page, len(names) > page_size

    async def put_router(self, name: str, patch: RouterPatch, *, create: bool = True) -> tuple[RouterState, bool]:
        await self._enter()
        if name not in self.routers and not create:
            raise router_not_found(name)
        fields = {key: value for key, value in asdict(patch).items() if value is not msgspec.UNSET}
        if fields.get("filter") is not None:
            fields["filter"] = parse_match(fields["filter"], "filter").to_wire()
        known = self.routers.get(name)
        if known is None:
            for field_ in ("source", "dest"):
                if field_ not in fields:
                    raise invalid(field_, "is required")
        state = NO_ROUTER if known is None else known
        self.routers[name] = replace(state, router=name, **fields)
        return self.routers[name], known is None

    def router_state(self, name: str) -> RouterState:
        self.entered += 1
        if name not in self.routers:
            raise router_not_found(name)
        return self.routers[name]

    def list_routers(
        self, prefix: str, source: str | None, dest: str | None, after: str | None, page_size: int, key: Key
    ) -> tuple[list[RouterState], bool]:
        self.entered += 1
        found = [
            state
            for name, state in sorted(self.routers.items())
            if name.startswith(tuple(key.covered(prefix)))
            and key.covers(state.source)
            and key.covers(state.dest)
            and (after is None or name > after)
            and source in (None, state.source)
            and dest in (None, state.dest)
        ]
        return found[:page_size], len(found) > page_size

    def router_ends(self, name: str) -> tuple[str, str] | None:
        state = self.routers.get(name)
        return None if state is None else (state.source, state.dest)

    async def delete_router(self, name: str) -> bool:
        await self._enter()
        return self.routers.pop(name, None) is not None

    async def catch_up(self, names: Iterable[str]) -> None:
        """Nothing is ever due."""

    async def append(self, name: str, request: AppendRequest, perf: Performance) -> AppendResult:
        await self._enter()
        self.appends.append(request)
        created = name not in self.topics
        if created:
            if request.create is False:
                raise topic_not_found(name)
            self.topics[name] = FakeTopic(TopicConfig())
        topic = self.topics[name]
        first = topic.head_seq + 1
        columns = columns_of(request)
        nothing = [None] * len(columns.datas)
        rows = zip(
            columns.datas, columns.nodes or nothing, columns.tags or nothing, columns.metas or nothing, strict=True
        )
        for data, node, tag, meta in rows:
            topic.head_seq += 1
            stored: dict[str, Any] = {"$seq": topic.head_seq, "$ts": self.clock.now_ms()}
            if node:
                stored["$node"] = node
            if tag:
                stored["$tag"] = tag
            stored["data"] = msgspec.Raw(data)
            if meta:
                stored["meta"] = msgspec.Raw(meta)
            topic.records.append(stored)
        perf.wal_append_ms = 0.1
        self.changed.set()
        return AppendResult(
            topic=name,
            first_seq=first,
            last_seq=topic.head_seq,
            head_seq=topic.head_seq,
            count=len(columns.datas),
            created=created,
            deduped=False,
        )

    async def read(self, name: str, request: ReadRequest, perf: Performance) -> ReadResult:
        await self._enter()
        self.reads.append(request)
        topic = self._topic(name)
        if request.wait_ms and topic.head_seq <= request.from_seq:
            self.waiting_reads += 1
            try:
                with trio.move_on_after(request.wait_ms / 1000):
                    await self.changed.wait()
            except trio.Cancelled:
                self.cancelled_reads += 1
                raise
            finally:
                self.waiting_reads -= 1
        found = [record for record in topic.records if record["$seq"] > request.from_seq][: request.limit]
        last = found[-1]["$seq"] if found else topic.head_seq
        perf.records_scanned = len(found)
        return ReadResult(
            topic=name,
            epoch=1,
            records=msgspec.json.encode(found)[1:-1],
            count=len(found),
            next_from_seq=last,
            head_seq=topic.head_seq,
            earliest_seq=1,
            caught_up=last == topic.head_seq,
            tombstone=None,
            lag=topic.head_seq - last,
        )

    async def record(self, name: str, seq: int, perf: Performance) -> bytes:
        await self._enter()
        for record in self._topic(name).records:
            if record["$seq"] == seq:
                return msgspec.json.encode(record)
        raise record_not_found(name, seq, "not_yet")

    async def export(self, name: str, request: ExportRequest) -> Export:
        await self._enter()
        self._topic(name)
        raise AssertionError("exports are tested with the real engine")

    def caps_of(self, name: str) -> tuple[int, int]:
        topic = self.topics.get(name)
        return (topic.config.cap_records, topic.config.cap_bytes) if topic is not None else (0, 0)

    async def stage(self, topic: str, stage: str, request: CheckedAppend, perf: Performance) -> StageResult:
        await self._enter()
        created = topic not in self.topics
        if created:
            if request.create is False:
                raise topic_not_found(topic)
            self.topics[topic] = FakeTopic(TopicConfig())
        staged = self.topics[topic].stages.setdefault(stage, [])
        staged.append(request)
        perf.wal_append_ms = 0.1
        count = sum(len(request.datas) for request in staged)
        return StageResult(topic=topic, stage=stage, count=count, created=created, deduped=False)

    async def commit_stages(
        self,
        topic: str,
        stages: Sequence[str],
        idempotency_key: str,
        perf: Performance,
        *,
        conditions: Conditions | None = None,
    ) -> CommitResult:
        await self._enter()
        known = self._topic(topic)
        for stage in stages:
            if stage not in known.stages:
                raise ApiError("stage_not_found", f"stage {stage!r} does not exist", detail={"stage": stage})
        first, count = known.head_seq + 1, 0
        for stage in stages:
            for request in known.stages.pop(stage):
                count += (await self.append(topic, request, perf)).count
        return CommitResult(topic=topic, first_seq=first, last_seq=first + count - 1, count=count, deduped=False)

    async def delete_stage(self, topic: str, stage: str) -> bool:
        await self._enter()
        known = self.topics.get(topic)
        return known is not None and known.stages.pop(stage, None) is not None

    async def remove_fence(self, topic: str, fence: str, perf: Performance) -> bool:
        await self._enter()
        return self._topic(topic).fences.pop(fence, None) is not None

    async def seal(self, topic: str) -> int:
        await self._enter()
        return min(1, len(self._topic(topic).records))

    async def delete_records(
        self,
        name: str,
        before_seq: int | None,
        match: TagMatch | None,
        perf: Performance,
        *,
        after_seq: int | None = None,
        before_ts: int | None = None,
    ) -> DeleteResult:
        await self._enter()
        topic = self._topic(name)
        kept = [
            record
            for record in topic.records
            if (after_seq is not None and record["$seq"] <= after_seq)
            or (before_ts is not None and record["$ts"] >= before_ts)
            or (before_seq is not None and record["$seq"] >= before_seq)
            or (match is not None and not match.matches(record.get("$tag")))
        ]
        deleted = len(topic.records) - len(kept)
        topic.records = kept
        state = self._state(name, touch=False)
        return DeleteResult(
            topic=name,
            deleted=deleted,
            earliest_seq=state.earliest_seq,
            head_seq=state.head_seq,
            count=state.count,
            bytes=0,
        )

    async def claim(self, name: str, request: ClaimRequest, perf: Performance, group: str | None = None) -> ClaimResult:
        await self._enter()
        self.asked.append(request)
        jobs = [
            Job(record["$seq"], 7, 1234, 1, msgspec.json.encode(record)[1:])
            for record in self._topic(name).records[: request.most]
        ]
        return ClaimResult(jobs, 5)

    def window_ms(self, name: str, group: str | None = None) -> int:
        return 0

    async def ack(self, name: str, request: HeldRequest, perf: Performance, group: str | None = None) -> HeldResult:
        await self._enter()
        self.asked.append(request)
        self._topic(name)
        return HeldResult(done=request.seqs[:1], skipped=request.seqs[1:], ready=1, in_flight=2)

    async def nack(
        self, name: str, request: HeldRequest, delay_ms: int, perf: Performance, group: str | None = None
    ) -> HeldResult:
        self.asked.append(delay_ms)
        return await self.ack(name, request, perf)

    async def extend(
        self, name: str, request: HeldRequest, lease_ms: int, perf: Performance, group: str | None = None
    ) -> HeldResult:
        self.asked.append(lease_ms)
        result = await self.ack(name, request, perf)
        result.deadlines = {str(seq): 99 for seq in result.done}
        return result

    def nothing_claimed(self, name: str, group: str | None = None) -> ClaimResult:
        return ClaimResult([], 0)

    def give_back(self, name: str, jobs: Sequence[Job], group: str | None = None) -> None:
        self.given_back += [job.seq for job in jobs]

    async def checkpoint(self, hold_ms: int) -> tuple[list[str], dict[int, list[int]]]:
        await self._enter()
        self.holds.append(hold_ms)
        return ["FORMAT", "meta/snapshot.1.cbor"], {0: [3, 4711], 1: [0, 0]}

    async def figures(self, key: Key) -> EngineFigures:
        samples = [
            TopicFigures(name, topic.head_seq, 1, len(topic.records), 0)
            for name, topic in self.topics.items()
            if key.covers(name)
        ]
        return EngineFigures(
            topics=len(self.topics),
            by_class={"disk": len(self.topics)},
            ready=self.status.phase == "ready",
            recovery_progress=self.status.replay_progress,
            topic_samples=samples,
            routers=len(self.routers),
            router_samples=[
                RouterFigures(name, state.lag, state.forwarded_total) for name, state in sorted(self.routers.items())
            ],
            throttled={"max_topics": 2},
        )
