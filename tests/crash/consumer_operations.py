"""Rows about named consumers."""

from __future__ import annotations

from typing import Final

import trio

from tests.crash.job_operations import ROOMY
from tests.crash.rows import Earlier, Operation, nothing
from tests.simulation.consumer_lives import Client, ConsumerSweep
from tests.simulation.lives import CLASSES
from tests.simulation.segment_lives import checkpoint
from tests.simulation.world import Life

HELD: Final = (1, 2, 4, 6)
FILTER: Final = '["tag","Eq","x"]'
OTHER: Final = '["data","/n","Gt",1e400]'


async def with_records(life: Life, client: Client) -> None:
    """A topic of each class."""
    for durability in CLASSES:
        await client.append(durability, 6, durability)
    await trio.sleep(0.1)


async def with_consumers(life: Life, client: Client) -> None:
    """Two consumers of each topic, one of them owned and with a filter."""
    await with_records(life, client)
    for durability in CLASSES:
        await client.put(durability, "a")
        await client.put(durability, "b", FILTER)
        await client.acquire(durability, "b", "ann")
    await trio.sleep(0.1)


async def making(life: Life, client: Client) -> None:
    """Made, made again, given another filter or none, deleted, made anew."""
    for durability in CLASSES:
        await client.put(durability, "a", FILTER)
        await client.put(durability, "a")
        await client.put(durability, "a", OTHER)
        await client.put(durability, "b", FILTER)
        await client.put(durability, "b", None)
        await client.delete(durability, "a")
        await client.put(durability, "a")
    await trio.sleep(0.1)


async def moving(life: Life, client: Client) -> None:
    """Forward, back, and beside appends."""
    for durability in CLASSES:
        await client.move(durability, "a", 2)
        await client.move(durability, "b", 3)
        await client.append(durability, 2)
        await client.move(durability, "a", 8)
        await client.move(durability, "a", 1, seek=True)
        await client.move(durability, "b", 5)
    await trio.sleep(0.1)


async def owning(life: Life, client: Client) -> None:
    """Taken over when the lease has ended, renewed, given up."""
    await trio.sleep(1.1)
    for durability in CLASSES:
        await client.acquire(durability, "b", "bob")
        await client.move(durability, "b", 4)
        await client.acquire(durability, "b", "bob")
        await client.release(durability, "b")
        await client.acquire(durability, "a", "ann")
    await trio.sleep(0.1)


async def storing(life: Life, client: Client) -> None:
    """Checkpoints between moves."""
    for number in (2, 4):
        for durability in CLASSES:
            await client.move(durability, "a", number)
        await checkpoint(life)
    await trio.sleep(0.1)


async def consuming(life: Life, client: Client) -> None:
    """What both consumers have passed is deleted."""
    for durability in CLASSES:
        await client.consume(durability)
    for number in (2, 5):
        for durability in CLASSES:
            await client.move(durability, "a", number)
            await client.move(durability, "b", number)
        life.engine.expire_unused()
        await trio.sleep(0.2)
    for durability in CLASSES:
        assert life.engine.registry.topics[durability].log.earliest_seq == 6


async def at_work(life: Life, client: Client) -> None:
    """All of it."""
    await with_consumers(life, client)
    await moving(life, client)


CONSUMER_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("make-consumers", (1,), HELD, ConsumerSweep, ROOMY, making, with_records),
    Operation("move-consumers", (1,), HELD, ConsumerSweep, ROOMY, moving, with_consumers),
    Operation("own-consumers", (1,), HELD, ConsumerSweep, ROOMY, owning, with_consumers),
    Operation("consumed-records", (6, 11), HELD, ConsumerSweep, ROOMY, consuming, with_consumers),
    Operation("checkpoint-of-consumers", (8,), HELD, ConsumerSweep, ROOMY, storing, with_consumers),
    Operation(
        "recovery-of-consumers-after-kill", (2, 8), HELD, ConsumerSweep, ROOMY, nothing, from_start=True,
        earlier=(Earlier(at_work, "kill"),),
    ),
)  # fmt: skip
