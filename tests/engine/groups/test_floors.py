"""The floor of a group moves on, also over records that are not in memory."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.groups.test_group_calls import ack, claim, put, state, tagged, take
from tests.engine.life import Life, living, settings
from tests.simulation.disk import SimFs

pytestmark = pytest.mark.trio

SEGMENTS = settings(segment_max_events=10)


async def held_back(life: Life, **config: Any) -> None:
    """Leave 1 as the only record that the group has not finished. In the next life the columns of the segment from 11
    on, of which a record was deleted, are not in memory."""
    await life.put("t", **config)
    records = tagged(1, 30)
    records[14]["tag"] = "gone"
    await life.append("t", *records)
    await put(life, lease_ms=600_000)
    assert len(await claim(life)) == 30
    await ack(life, *range(2, 15), *range(16, 31))
    await life.delete("t", match="gone")
    await life.compactor.try_checkpoint()


async def test_a_floor_that_needs_columns_moves_on_in_the_background(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(SEGMENTS, fs=fs) as life:
        await held_back(life)
    async with living(SEGMENTS, fs=fs) as life:
        spans = life.engine.registry.topic("t").log.index.spans
        assert not spans[1].loaded
        assert await ack(life, 1) == [1]
        await trio.testing.wait_all_tasks_blocked()
        assert (await take(life)).lag == 0


async def test_what_is_consumed_is_deleted_behind_such_a_floor(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(SEGMENTS, fs=fs) as life:
        await held_back(life, retention="consumed")
    async with living(SEGMENTS, fs=fs) as life:
        await ack(life, 1)
        await trio.testing.wait_all_tasks_blocked()
        life.engine.expire_unused()
        await trio.sleep(0.1)
        assert await life.seqs("t") == []
        assert (await state(life)).lag == 0


async def test_records_are_given_out_whatever_is_deleted_where_columns_are_not_in_memory(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(SEGMENTS, fs=fs) as life:
        await life.append("t", *range(20))
        await put(life, lease_ms=600_000)
        assert len(await claim(life, 18)) == 18
        await ack(life, *range(2, 19))
        await life.delete("t", 18, after_seq=11)
        await life.compactor.try_checkpoint()
    async with living(SEGMENTS, fs=fs) as life:
        assert await claim(life) == [19, 20]
