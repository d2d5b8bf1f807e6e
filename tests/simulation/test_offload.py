"""Calls of a simulation run on the loop, as if in a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from tests.simulation.offload import InlineOffload
from tests.simulation.world import Life, World
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch
from topics.runtime.offload import Offload, Pool
from topics.storage.wal.shard_log import ShardLog


@pytest.mark.trio
async def test_a_call_runs_once_after_a_checkpoint_and_returns_its_result() -> None:
    offload: Offload = InlineOffload()
    with trio.testing.assert_checkpoints():
        assert await offload.run(Pool.WAL, lambda: 42) == 42


@pytest.mark.trio
async def test_errors_of_a_call_reach_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        await InlineOffload().run(Pool.CPU, lambda: 1 // 0)


@pytest.mark.trio
async def test_posted_calls_run_in_order_before_the_result_is_returned() -> None:
    offload = InlineOffload()
    seen: list[str] = []

    def call() -> None:
        offload.post(lambda: seen.append("one"))
        offload.post(lambda: seen.append("two"))

    await offload.run(Pool.FILES, call)
    seen.append("returned")
    assert seen == ["one", "two", "returned"]


@pytest.mark.trio
async def test_a_cancelled_task_does_not_start_a_call() -> None:
    offload = InlineOffload()
    with trio.CancelScope() as scope:
        scope.cancel()
        await offload.run(Pool.WAL, lambda: None)
    assert scope.cancelled_caught
    assert offload.calls == []


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.trio
async def test_a_started_call_returns_its_result_to_a_task_cancelled_meanwhile(seed: int) -> None:
    offload = InlineOffload(seed)
    with trio.CancelScope() as scope:

        def call() -> str:
            scope.cancel()
            return "done"

        result = await offload.run(Pool.WAL, call)
    assert result == "done"


def orders(seed: int) -> list[int]:
    finished: list[int] = []

    async def main() -> None:
        offload = InlineOffload(seed)

        async def task(number: int) -> None:
            for _ in range(3):
                await offload.run(Pool.WAL, lambda: None)
                finished.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(task, number)

    trio.run(main)
    return finished


def test_a_seed_varies_the_order_in_which_calls_of_several_tasks_finish() -> None:
    assert len({tuple(orders(seed)) for seed in range(10)}) > 5


@pytest.mark.trio
async def test_the_busy_share_is_what_a_test_says() -> None:
    offload = InlineOffload()
    assert offload.busy_share() == 0.0
    offload.share = 0.75
    assert offload.busy_share() == 0.75


def test_a_world_writes_groups_on_the_loop_and_in_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the crashes of a seed reach both ways (`topics.storage.wal.group_writes`)."""
    perform, write = InlineOffload.perform, ShardLog.write
    inside, groups = [False], {True: 0, False: 0}

    async def note_call(self: InlineOffload, kind: Pool, call: Callable[[], Any]) -> Any:
        def mark() -> Any:
            inside[0] = True
            try:
                return call()
            finally:
                inside[0] = False

        return await perform(self, kind, mark)

    def note_write(self: ShardLog, *args: Any) -> int:
        groups[inside[0]] += 1
        return write(self, *args)

    async def scenario(life: Life) -> None:
        engine = life.engine
        request = AppendRequest(records=[RecordIn(data=msgspec.Raw(b"1"))], config=TopicConfigPatch(durability="disk"))
        for _ in range(50):
            await engine.appends.append("t", request, Performance())

    monkeypatch.setattr(InlineOffload, "perform", note_call)
    monkeypatch.setattr(ShardLog, "write", note_write)
    assert World(0).live(scenario)
    assert min(groups.values()) > 10, groups
