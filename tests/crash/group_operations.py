"""Rows about groups."""

from __future__ import annotations

from typing import Final

import trio

from tests.crash.job_operations import ROOMY
from tests.crash.rows import Earlier, Operation, nothing
from tests.simulation.group_lives import GROUP_CLASSES, GroupClient, GroupSweep
from tests.simulation.segment_lives import checkpoint
from tests.simulation.world import Life

HELD: Final = (1, 2, 4, 6)
FILTER: Final = '["Not",["tag","Eq","x"]]'


async def with_records(life: Life, client: GroupClient) -> None:
    """A topic of each class."""
    for topic in GROUP_CLASSES:
        await client.append(topic, 8, topic)
    await trio.sleep(0.1)


async def with_groups(life: Life, client: GroupClient) -> None:
    """Two groups of each topic; one holds some records."""
    await with_records(life, client)
    for topic in GROUP_CLASSES:
        await client.put(topic, "a")
        await client.put(topic, "b", FILTER)
        await client.claim(topic, "a", 1, 2, 3, 4)
    await trio.sleep(0.1)


async def making(life: Life, client: GroupClient) -> None:
    """Made, given a filter, deleted, made anew."""
    for topic in GROUP_CLASSES:
        await client.put(topic, "a")
        await client.put(topic, "b", FILTER)
        await client.claim(topic, "a", 1, 2)
        await client.put(topic, "a", FILTER)
        await client.delete(topic, "a")
        await client.put(topic, "a")
        await client.claim(topic, "a", 1)
    await trio.sleep(0.1)


async def working(life: Life, client: GroupClient) -> None:
    """Finished out of order, given back, and beside appends."""
    for topic in GROUP_CLASSES:
        await client.ack(topic, "a", 2, 4)
        await client.nack(topic, "a", 3)
        await client.claim(topic, "b", 1, 2)
        await client.append(topic, 2)
        await client.ack(topic, "a", 1)
        await client.claim(topic, "a", 3, 5)
        await client.ack(topic, "b", 1, 2)
        await client.ack(topic, "a", 3, 5)
    await trio.sleep(0.1)


async def storing(life: Life, client: GroupClient) -> None:
    """Checkpoints between acks."""
    for seq in (3, 1):
        for topic in GROUP_CLASSES:
            await client.ack(topic, "a", seq)
        await checkpoint(life)
    await trio.sleep(0.1)


async def at_work(life: Life, client: GroupClient) -> None:
    """All of it."""
    await with_groups(life, client)
    await working(life, client)


GROUP_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("make-groups", (1,), HELD, GroupSweep, ROOMY, making, with_records),
    Operation("work-in-groups", (1,), HELD, GroupSweep, ROOMY, working, with_groups),
    Operation("checkpoint-of-groups", (8,), HELD, GroupSweep, ROOMY, storing, with_groups),
    Operation(
        "recovery-of-groups-after-kill", (2, 8), HELD, GroupSweep, ROOMY, nothing, from_start=True,
        earlier=(Earlier(at_work, "kill"),),
    ),
)  # fmt: skip
