"""Lists and cancellations of records that a group has again below its floor: they are found wherever the floor and the
cursor are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.life import living
from tests.engine.queues.test_job_changes import cancel
from tests.engine.queues.test_job_lists import listed, nack
from tests.engine.redrives.test_redrives import ack, claim, group, put_group, redrive
from tests.engine.redrives.test_redrives_by_key import LIMITED, ORDERED, check, letters, records

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("config", [ORDERED, LIMITED])
async def test_records_below_the_floor_and_above_the_cursor_are_listed(
    config: dict[str, Any], autojump_clock: Any
) -> None:
    async with living() as life:
        await life.put("log", durability="disk")
        await life.put("dead", durability="disk")
        await put_group(life, **config)
        await records(life, "a", "a", "b", "b")
        for _ in range(2):
            for job in await claim(life, "log", "g"):
                await ack(life, "log", job.seq, group="g")
        assert (await group(life)).lag == 0
        # Nothing between the cursor and the floor is given out again but the last one.
        await letters(life, 1, 4)
        assert (await redrive(life)).moved == 2
        await records(life, "c")
        options: dict[str, Any] = {"name": "log", "group": "g"}
        assert await listed(life, "ready", **options) == await listed(life, **options) == [1, 4, 5]
        assert await listed(life, "ready", size=1, **options) == [1, 4, 5]
        assert [job.seq for job in await claim(life, "log", "g", 2)] == [1, 4]
        assert await listed(life, "in_flight", **options) == [1, 4]
        await nack(life, [4], "n", name="log", group="g", delay_ms=60_000)
        assert await listed(life, "delayed", **options) == [4]
        assert await cancel(life, name="log", group="g", state="delayed") == (1, 1, 0)
        assert await listed(life, **options) == [1, 5]
        check(life)
