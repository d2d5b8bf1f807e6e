"""Redrives to groups whose records of one key are bound (`docs/design/key_order.md` 5 and 7): a record that comes back
is in no line, and counts for its key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.life import Life, living
from tests.engine.redrives.test_redrives import ack, claim, condemn, letter, put_group, redrive
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.filters.record_filter import parse_filter
from topics.job_model import JobPageRequest, JobSelection, JobStateName
from topics.model import KeyLimitConfig, Performance
from topics.queue.key_order import KeyOrder

pytestmark = pytest.mark.trio

ORDERED: dict[str, Any] = {"order_by": "tag"}
LIMITED: dict[str, Any] = {"max_in_flight_per_key": KeyLimitConfig(by="tag", max=1)}


def check(life: Life) -> None:
    groups = life.engine.registry.topic("log").groups
    assert groups is not None
    groups.by_name["g"].state.check()


async def records(life: Life, *keys: str) -> None:
    await life.append("log", *({"data": key, "tag": key} for key in keys))


async def letters(life: Life, *seqs: int) -> None:
    for seq in seqs:
        await letter(life, seq, **{"from": "log", "group": "g", "src_seq": str(seq)})


async def listed(life: Life, state: JobStateName | None = None) -> dict[int, str]:
    """Return the jobs of the group with their states."""
    page = await life.engine.job_lists.page("log", JobPageRequest(state, None, 0, 100), Performance(), "g")
    return {json.loads(b"{" + job.record)["$seq"]: job.state for job in page.jobs}


@pytest.mark.parametrize("config", [ORDERED, LIMITED, ORDERED | {"max_unfinished": 6}])
@pytest.mark.parametrize("stops", [False, True])
async def test_records_below_and_above_the_floor_come_back(
    config: dict[str, Any], stops: bool, autojump_clock: Any
) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("log", durability="fsync")
        await life.put("dead", durability="fsync")
        await put_group(life, **config)
        await records(life, "a", "b", "a", "c")
        assert [job.seq for job in await claim(life, "log", "g")] == [1, 2, 4]
        await ack(life, "log", 1, 4, group="g")
        assert [job.seq for job in await claim(life, "log", "g")] == [3]
        await ack(life, "log", 3, group="g")
        await letters(life, 1, 4)
        assert (await redrive(life)).moved == 2
        check(life)
        if stops:
            await life.engine.compactor.try_checkpoint()
    async with living(fs=fs, clock=clock) as life:
        await records(life, "a", "d")
        check(life)
        found = [job.seq for job in await claim(life, "log", "g")]
        rule = life.engine.registry.topic("log").groups.by_name["g"].state.leases.key_rule  # type: ignore[union-attr]
        # A record that comes back holds nobody up; where its key may have one at a time, it is that one.
        assert found == ([1, 4, 5, 6] if isinstance(rule, KeyOrder) else [1, 4, 6])
        check(life)
        await ack(life, "log", *found, group="g")
        assert [job.seq for job in await claim(life, "log", "g")] == ([] if isinstance(rule, KeyOrder) else [5])
        check(life)


@pytest.mark.parametrize("config", [ORDERED, LIMITED])
async def test_a_dead_record_that_comes_back_at_once(config: dict[str, Any], autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("log", durability="disk")
        await put_group(life, dead_letter="dead", max_deliveries=2, **config)
        await records(life, "a", "a", "b", "a")
        assert [job.seq for job in await claim(life, "log", "g", 1)] == [1]
        await condemn(life, "log", 1, group="g")
        assert [job.seq for job in await claim(life, "log", "g")] == [2, 3]
        assert (await redrive(life)).moved == 1
        check(life)
        assert [job.seq for job in await claim(life, "log", "g")] == ([1] if config is ORDERED else [])
        await ack(life, "log", 2, group="g")
        assert [job.seq for job in await claim(life, "log", "g")] == ([4] if config is ORDERED else [1])
        check(life)


@pytest.mark.parametrize("wanted", [None, parse_filter('["tag","Glob","*"]')])
@pytest.mark.parametrize("config", [ORDERED, LIMITED])
async def test_records_come_back_below_the_floor_before_anybody_has_looked_there(
    config: dict[str, Any], wanted: Any, autojump_clock: Any
) -> None:
    async with living() as life:
        await life.put("log", durability="fsync")
        await life.put("dead", durability="fsync")
        await put_group(life, filter=wanted, **config)
        await records(life, "a", "a", "a", "b")
        await life.engine.job_changes.cancel("log", JobSelection([1, 2], None, None), Performance(), "g")
        await letters(life, 2)
        assert (await redrive(life)).moved == 1
        check(life)
        assert [job.seq for job in await claim(life, "log", "g")] == ([2, 3, 4] if config is ORDERED else [2, 4])
        check(life)
        await ack(life, "log", 2, 3, 4, group="g")
        assert [job.seq for job in await claim(life, "log", "g")] == ([] if config is ORDERED else [3])


@pytest.mark.parametrize("config", [{}, ORDERED, LIMITED])
async def test_records_below_the_floor_are_listed_and_cancelled(config: dict[str, Any], autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("log", durability="fsync")
        await life.put("dead", durability="fsync")
        await put_group(life, dead_letter="dead", **config)
        await records(life, "a", "b", "c", "d")
        # The cursor of claims stays before a record that ends unclaimed.
        await life.engine.job_changes.cancel("log", JobSelection([1], None, None), Performance(), "g")
        await claim(life, "log", "g")
        await condemn(life, "log", 2, 3, group="g")
        assert (await redrive(life)).moved == 2
        assert await listed(life) == {2: "ready", 3: "ready", 4: "in_flight"}
        assert await listed(life, "ready") == {2: "ready", 3: "ready"}
        await claim(life, "log", "g")
        assert await listed(life, "in_flight") == dict.fromkeys((2, 3, 4), "in_flight")
        only_b = parse_filter('["tag", "Eq", "b"]')
        wish = JobSelection(None, only_b, None)
        assert (await life.engine.job_changes.cancel("log", wish, Performance(), "g")).done == 1
        assert list(await listed(life)) == [3, 4]
        check(life)
