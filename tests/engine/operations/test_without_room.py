"""Calls that change topics, stages and routers while the disk has no room for the queued commits: they are answered in
time, and work again by themselves when there is room."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.simulation.disk import Fault
from topics.errors import ApiError
from topics.job_model import ClaimRequest, HeldRequest
from topics.model import CheckedAppend, Performance, RecordIn, RouterPatch
from topics.runtime.offload import Pool
from topics.storage.wal.stall import LONGEST_RETRY_MS, TELL_AFTER_MS

pytestmark = pytest.mark.trio

SMALL: Final = settings(wal_file_bytes=8 << 10, wal_shards=1)
TOLD_S: Final = (TELL_AFTER_MS + LONGEST_RETRY_MS) / 1000 + 0.1
ROUTER: Final = RouterPatch(source="from", dest="into")


@dataclass(frozen=True)
class Change:
    """A call, and a test whether its effect is visible."""

    call: Callable[[Life], Awaitable[Any]]
    done: Callable[[Life], bool]


def stage_append(life: Life, stage: str) -> Awaitable[Any]:
    request = CheckedAppend(records=[RecordIn(data=msgspec.Raw(b"1"))], datas=[b"1"], nodes=None, tags=None, metas=None)
    return life.engine.stages.append("t", stage, request, Performance())


def stages(life: Life) -> set[str]:
    return set(life.engine.registry.topics["t"].stages or ())


CHANGES: Final = {
    "create": Change(lambda life: life.put("new"), lambda life: "new" in life.engine.registry.topics),
    "create by an append": Change(
        lambda life: life.append("new", 1), lambda life: "new" in life.engine.registry.topics
    ),
    "reconfigure": Change(
        lambda life: life.put("t", cap_records=7), lambda life: life.engine.registry.topics["t"].config.cap_records == 7
    ),
    "delete": Change(
        lambda life: life.engine.topic_lifecycle.delete("t", if_empty=False),
        lambda life: "t" not in life.engine.registry.topics,
    ),
    "make a stage": Change(lambda life: stage_append(life, "new"), lambda life: "new" in stages(life)),
    "drop a stage": Change(lambda life: life.engine.stages.delete("t", "s"), lambda life: "s" not in stages(life)),
    "commit a stage": Change(
        lambda life: life.engine.stage_commits.commit("t", ["s"], "key", Performance()),
        lambda life: life.engine.registry.topics["t"].log.head_seq == 2,
    ),
    "create a router": Change(
        lambda life: life.engine.routers.put("new", ROUTER), lambda life: life.engine.routers.ends("new") is not None
    ),
    "change a router": Change(
        lambda life: life.engine.routers.put("r", RouterPatch(preserve_node=False)),
        lambda life: not life.engine.routers.state("r").preserve_node,
    ),
    "delete a router": Change(
        lambda life: life.engine.routers.delete("r"), lambda life: life.engine.routers.ends("r") is None
    ),
}
WITH_APPENDS: Final = [
    CHANGES[name] for name in ("create by an append", "make a stage", "commit a stage", "create a router")
]
BY_NAME = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


@asynccontextmanager
async def prepared(offload: HeldOffload | None = None) -> AsyncIterator[Life]:
    """A life with the topics, stages and routers that the changes need."""
    async with living(SMALL, offload=offload) as life:
        for name in ("big", "t", "other", "from", "into"):
            await life.put(name, durability="fsync")
        await life.put("q", type="queue", durability="fsync", leases_durable=True)
        await life.append("t", 1)
        await life.append("q", 1, 2)
        await life.engine.routers.put("r", ROUTER)
        await stage_append(life, "s")
        yield life


def take_room(life: Life) -> None:
    """From now on no file of the log can grow, and no new one can be made."""
    for name in ("create", "preallocate"):
        life.fs.inject(Fault(error=errno.ENOSPC, name=name, path="*/wal/*", times=None))


async def give_room(life: Life) -> None:
    life.fs.faults.clear()
    await trio.sleep(LONGEST_RETRY_MS / 1000 + 0.1)


async def fill(life: Life) -> None:
    """Queue an append that does not fit on the disk. It gets an error, and is stored later."""
    assert (await refusal(life.append("big", "x" * (16 << 10)))).code == "read_only"


@asynccontextmanager
async def blocked(life: Life) -> AsyncIterator[None]:
    """Within the body, the disk has no room for queued commits."""
    take_room(life)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill, life)
        await settle()
        try:
            yield
            await trio.sleep(TOLD_S)
        finally:
            await give_room(life)
    assert await life.seqs("big") == [1]


@BY_NAME
async def test_without_room_a_new_change_is_refused_at_once_and_never_carried_out(
    change: Change, autojump_clock: Any
) -> None:
    async with prepared() as life:
        async with blocked(life):
            before = trio.current_time()
            error = await refusal(change.call(life))
            assert trio.current_time() == before
            assert (error.status, error.code) == (503, "read_only")
            assert "may still" not in error.message
            assert error.retry_after_s
        await trio.sleep(10)
        assert not change.done(life)
        await change.call(life)
        assert change.done(life)


@BY_NAME
async def test_a_change_that_was_queued_before_is_answered_and_carried_out_once_there_is_room(
    change: Change, autojump_clock: Any
) -> None:
    offload = HeldOffload()
    async with prepared(offload) as life, trio.open_nursery() as nursery:
        for kind in (Pool.WAL, Pool.FILES):
            offload.hold(kind)
        take_room(life)
        nursery.start_soon(fill, life)
        await settle()
        called = Called(nursery, lambda: change.call(life))
        await settle()
        for kind in (Pool.WAL, Pool.FILES):
            offload.let_go(kind)
        await settle()
        assert not called.done
        await trio.sleep(TOLD_S)
        assert called.error is not None
        assert (called.error.status, called.error.code) == (503, "read_only")
        assert "may still" in called.error.message
        before = trio.current_time()
        assert (await refusal(change.call(life))).code == "read_only"
        assert trio.current_time() == before
        assert not change.done(life)
        await give_room(life)
        assert change.done(life)
        assert await life.seqs("big") == [1]
        await life.put("other", cap_records=3)
        await life.append("other", 1)


async def test_an_append_behind_a_queued_change_is_refused_and_stores_nothing(
    autojump_clock: Any,
) -> None:
    offload = HeldOffload()
    async with prepared(offload) as life, trio.open_nursery() as nursery:
        for kind in (Pool.WAL, Pool.FILES):
            offload.hold(kind)
        take_room(life)
        nursery.start_soon(fill, life)
        await settle()
        changes = [
            Called(nursery, lambda: life.put("t", cap_records=7)),
            Called(nursery, lambda: life.put("q", cap_records=7)),
            Called(nursery, lambda: life.put("new")),
            Called(nursery, lambda: life.engine.stages.delete("t", "s")),
        ]
        await settle()
        claim = ClaimRequest(node="n", most=1, lease_ms=None, wait_ms=0)
        waiting = [
            Called(nursery, call)
            for call in (
                lambda: life.append("t", 2),
                lambda: life.append("new", 2),
                lambda: life.put("t", cap_records=8),
                lambda: life.put("new", cap_records=8),
                lambda: life.delete("t", before_seq=2),
                lambda: life.engine.topic_lifecycle.delete("t", if_empty=False),
                lambda: life.engine.topic_lifecycle.delete("new", if_empty=False),
                lambda: stage_append(life, "another"),
                lambda: stage_append(life, "s"),
                lambda: life.engine.stage_commits.commit("t", ["s"], "key", Performance()),
                lambda: life.engine.queues.claim("q", claim, Performance()),
                lambda: life.engine.queues.ack("q", HeldRequest(node="n", seqs=[1], lease_ids=None), Performance()),
            )
        ]
        await settle()
        for kind in (Pool.WAL, Pool.FILES):
            offload.let_go(kind)
        await trio.sleep(TOLD_S)
        assert [call.error and call.error.code for call in changes + waiting] == ["read_only"] * 16
        assert not any("may still" in call.error.message for call in waiting if call.error is not None)
        await give_room(life)
        topics = life.engine.registry.topics
        assert [topics[name].config.cap_records for name in ("t", "q", "new")] == [7, 7, 0]
        assert [topics[name].log.count for name in ("t", "q", "new")] == [1, 2, 0]
        assert stages(life) == set()
        for name in ("t", "q", "new"):
            await life.append(name, 3)


async def test_a_claim_that_was_queued_before_is_answered_and_its_jobs_are_free_once_there_is_room(
    autojump_clock: Any,
) -> None:
    async with prepared() as life:
        claim = ClaimRequest(node="n", most=2, lease_ms=None, wait_ms=0)
        async with blocked(life):
            with trio.fail_after(TOLD_S):
                error = await refusal(life.engine.queues.claim("q", claim, Performance()))
            assert error.code == "read_only"
        answer = await life.engine.queues.claim("q", claim, Performance())
        assert [job.seq for job in answer.jobs] == [1, 2]


async def test_a_repeated_append_and_ack_do_not_wait_for_the_first(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with prepared(offload) as life, trio.open_nursery() as nursery:
        claimed = await life.engine.queues.claim(
            "q", ClaimRequest(node="n", most=1, lease_ms=None, wait_ms=0), Performance()
        )
        held = HeldRequest(node="n", seqs=[job.seq for job in claimed.jobs], lease_ids=None)
        for kind in (Pool.WAL, Pool.FILES):
            offload.hold(kind)
        take_room(life)
        nursery.start_soon(fill, life)
        await settle()
        calls = []
        for _ in range(2):
            calls.append(Called(nursery, lambda: life.append("t", 2, idempotency_key="key")))
            calls.append(Called(nursery, lambda: life.engine.queues.ack("q", held, Performance())))
            await settle()
        for kind in (Pool.WAL, Pool.FILES):
            offload.let_go(kind)
        await trio.sleep(TOLD_S)
        assert [call.error and call.error.code for call in calls] == ["read_only"] * 4
        await give_room(life)
        assert await life.seqs("t") == [1, 2]
        assert await life.seqs("q") == [2]


@BY_NAME
async def test_while_the_current_file_has_room_changes_go_on(change: Change, autojump_clock: Any) -> None:
    """Some of these changes free space. Changes that contain an append are refused, and leave at most a new topic."""
    async with prepared() as life:
        life.fs.inject(Fault(error=errno.ENOSPC, name="create", path="*next.tmp", times=None))
        writer = life.engine.store.writers[0]
        while writer.stall.refusal is None:
            with suppress(ApiError):
                await life.append("other", "x" * 200)
            await trio.sleep(0.1)
        assert writer.stall.blockage is None
        if change in WITH_APPENDS:
            assert (await refusal(change.call(life))).code == "read_only"
        else:
            await change.call(life)
            assert change.done(life)
        assert writer.stall.refusal is not None
        await give_room(life)
        assert writer.stall.refusal is None
        await life.append("other", 1)
