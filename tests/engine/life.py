"""One life of an engine over a simulated disk: started and stopped the way `daemon.Daemon` does it, without HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import cbor2
import msgspec
import trio
import trio.testing

from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from tests.simulation.wal_content import scan_of
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.record_columns import columns_of
from topics.engine.transaction import MemberCommit
from topics.errors import ApiError
from topics.http.requests.job_fields import jobs_of
from topics.log.tag_match import parse_match
from topics.model import (
    AppendRequest,
    AppendResult,
    CheckedAppend,
    DeleteResult,
    Performance,
    ReadRequest,
    ReadResult,
    RecordIn,
    TopicConfig,
    TopicConfigPatch,
)
from topics.runtime.offload import Pool
from topics.storage.wal import frames
from topics.storage.wal.frames import FrameType

T = TypeVar("T")

SETTINGS = Settings(data_dir=Path("/data"), wal_shards=1, wal_file_bytes=1 << 20, min_free_bytes=0)


def settings(**changes: Any) -> Settings:
    """The settings of these tests, with changes."""
    return replace(SETTINGS, **changes)


class Life:
    """An engine that is open for business, with calls as short as a test wants them."""

    def __init__(self, config: Settings, fs: SimFs, clock: SimClock, offload: InlineOffload) -> None:
        self.fs = fs
        self.clock = clock
        self.engine = Engine(config, fs=fs, clock=clock, offload=offload)
        self.compactor = self.engine.compactor

    async def put(self, name: str, **patch: Any) -> tuple[TopicConfig, bool]:
        return await self.engine.topic_lifecycle.put(name, TopicConfigPatch(**patch))

    async def append(self, name: str, *datas: Any, **options: Any) -> AppendResult:
        """Append JSON values, or JSON as `msgspec.Raw`; a dict with a "data" key is a whole record. `config` is a
        dict."""
        records = []
        for data in datas:
            parts = data if isinstance(data, dict) and "data" in data else {"data": data}
            value = parts["data"]
            raw = value if isinstance(value, msgspec.Raw) else msgspec.Raw(json.dumps(value).encode())
            records.append(RecordIn(**{**parts, "data": raw}))
        if "config" in options:
            options["config"] = TopicConfigPatch(**options["config"])
        request = AppendRequest(records=records, **options)
        jobs = jobs_of(records)
        if jobs is not None:
            checked = columns_of(request)
            request = CheckedAppend(
                **{name: getattr(request, name) for name in AppendRequest.__struct_fields__},
                datas=checked.datas,
                nodes=checked.nodes,
                tags=checked.tags,
                metas=checked.metas,
                jobs=jobs,
            )
        return await self.engine.appends.append(name, request, Performance())

    async def delete(
        self, name: str, before_seq: int | None = None, match: Any = None, **bounds: int | None
    ) -> DeleteResult:
        wanted = parse_match(match) if match is not None else None
        return await self.engine.deletions.delete_records(name, before_seq, wanted, Performance(), **bounds)

    async def read(self, name: str, from_seq: int = 0, **options: Any) -> ReadResult:
        options.setdefault("limit", 1000)
        options.setdefault("max_batch_bytes", 8 << 20)
        return await self.engine.reads.read(name, ReadRequest(from_seq=from_seq, **options), Performance())

    async def seqs(self, name: str, from_seq: int = 0, **options: Any) -> list[int]:
        return [record["$seq"] for record in records(await self.read(name, from_seq, **options))]

    async def all(self, name: str, **options: Any) -> tuple[list[dict[str, Any]], list[tuple[int, int, str]]]:
        """Everything a reader gets from the start: records, and tombstones as (from, to, reason)."""
        found: list[dict[str, Any]] = []
        gaps: list[tuple[int, int, str]] = []
        position = 0
        while True:
            answer = await self.read(name, position, **options)
            if answer.tombstone is not None:
                gaps.append((answer.tombstone.gap_from, answer.tombstone.gap_to, answer.tombstone.reason))
            found += records(answer)
            position = answer.next_from_seq
            if answer.caught_up:
                return found, gaps

    def syncs(self) -> int:
        """How many fdatasyncs of WAL files there were."""
        return sum(op.name == "fdatasync" and op.path.endswith(".log") for op in self.fs.ops)

    def writes(self) -> int:
        """How many writes to WAL files there were."""
        return sum(op.name == "pwrite" and op.path.endswith(".log") for op in self.fs.ops)

    def frames(self, kind: FrameType | None = None) -> list[tuple[frames.Frame, Any]]:
        """The frames of the only shard's log as it is visible, with the payloads of control frames."""
        found = []
        for path, content in self.fs.tree().items():
            if content is None or not (path.startswith("/data/wal/") and path.endswith(".log")):
                continue
            for frame in scan_of(content).frames:
                if kind is None or frame.type == kind:
                    payload = None
                    if frame.type != FrameType.APPEND:
                        payload = cbor2.loads(content[frame.end - 8 - frame.data_len : frame.end - 8])
                    found.append((frame, payload))
        return found

    async def housekeep(self) -> None:
        while True:
            await trio.sleep(0.5)
            self.engine.ceilings.lower_idle()
            await self.engine.keys.expire()
            await self.engine.unique_jobs.expire()
            self.engine.watch_sessions.expire_idle()
            self.engine.watch_sessions.check_connections()

    async def stop(self) -> None:
        """The daemon's drain."""
        self.engine.start_draining()
        await self.engine.quiesce()
        self.engine.ceilings.lower_all()
        for writer in self.engine.store.writers:
            await writer.stop()
        self.check()
        if not any(writer.failed for writer in self.engine.store.writers):
            await self.compactor.try_checkpoint(marks=False)

    def check(self) -> None:
        """Every invariant of every topic, and of the totals."""
        engine = self.engine
        for topic in engine.registry.by_id.values():
            topic.log.check()
            assert topic.undecided == sum(isinstance(commit, MemberCommit) for commit in topic.pending or ())
        assert engine.registry.total_records == sum(topic.log.count for topic in engine.registry.by_id.values())
        assert engine.registry.total_bytes == sum(topic.log.bytes for topic in engine.registry.by_id.values())
        assert engine.registry.common.bytes_on_the_way == sum(
            topic.pending_bytes for topic in engine.registry.by_id.values()
        )


@asynccontextmanager
async def living(
    config: Settings = SETTINGS,
    *,
    fs: SimFs | None = None,
    clock: SimClock | None = None,
    offload: InlineOffload | None = None,
    housekeeping: bool = True,
    clean: bool = True,
) -> AsyncIterator[Life]:
    """An engine from recovery to its stop; `clean=False` ends it as a kill does."""
    life = Life(config, fs or SimFs(), clock or SimClock(), offload or InlineOffload())
    engine = life.engine
    engine.store.lock("a test")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            await engine.recover()
            for writer in engine.store.writers:
                await nursery.start(writer.run)
            if housekeeping:
                nursery.start_soon(life.housekeep)
            nursery.start_soon(engine.store.space.watch)
            nursery.start_soon(engine.delivery.scheduler.run)
            engine.open_for_business()
            yield life
            life.check()
            if clean:
                await life.stop()
            nursery.cancel_scope.cancel()
    finally:
        if not life.fs.dead:
            engine.store.unlock()


def records(answer: ReadResult) -> list[dict[str, Any]]:
    """The records of an answer, decoded."""
    found: list[dict[str, Any]] = json.loads(b"[%b]" % answer.records)
    assert len(found) == answer.count
    return found


async def refusal(call: Awaitable[Any]) -> ApiError:
    """What a call that has to be refused is refused with."""
    try:
        result = await call
    except ApiError as error:
        return error
    raise AssertionError(f"not refused: {result!r}")


async def settle() -> None:
    """Let every other task run as far as it gets without time passing."""
    await trio.testing.wait_all_tasks_blocked()


class HeldOffload(InlineOffload):
    """A disk that can be held: calls of the held kinds wait until they are let go."""

    def __init__(self) -> None:
        super().__init__()
        self._held: dict[Pool, trio.Event] = {}

    def hold(self, kind: Pool = Pool.WAL) -> None:
        self._held[kind] = trio.Event()

    def let_go(self, kind: Pool = Pool.WAL) -> None:
        self._held.pop(kind).set()

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        with trio.CancelScope(shield=True):
            while kind in self._held:
                await self._held[kind].wait()
        return await super().perform(kind, call)

    def is_disk_free(self) -> bool:
        return Pool.WAL not in self._held and super().is_disk_free()


class Called:
    """A call that runs beside the test: `done`, then `result` or `error`."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> None:
        self.done = False
        self.result: Any = None
        self.error: ApiError | None = None
        self.cancelled = False
        self.scope = trio.CancelScope()
        nursery.start_soon(self._run, call)

    async def _run(self, call: Callable[[], Awaitable[Any]]) -> None:
        with self.scope:
            try:
                self.result = await call()
            except ApiError as error:
                self.error = error
            self.done = True
        self.cancelled = self.scope.cancelled_caught
