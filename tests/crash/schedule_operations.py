"""Rows about schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.crash.job_operations import ROOMY
from tests.crash.rows import Earlier, Operation, nothing
from tests.simulation.schedule_lives import Client, ScheduleSweep
from tests.simulation.segment_lives import checkpoint
from tests.simulation.world import Life

HELD: Final = (1, 2, 4, 6)
SHARDS: Final = replace(ROOMY, wal_shards=3)
"""Definitions are in shard 0, and firings in the shards of their topics."""


async def with_topics(life: Life, client: Client) -> None:
    """Topics of several classes. That of `made` is made by its first firing."""
    for durability in ("memory", "disk", "fsync"):
        await client.topic(durability, durability)


async def defining(life: Life, client: Client) -> None:
    """Made, paused and resumed, run, given another topic, deleted."""
    await client.put("a", "memory")
    await client.put("b", "fsync")
    await client.pause("a", "memory", paused=True)
    await client.run("a")
    await client.pause("a", "memory", paused=False)
    await client.put("a", "disk")
    await client.delete("b")


async def firing(life: Life, client: Client) -> None:
    """Into topics of every class, one of which is not there yet; then from one topic to another."""
    for topic in ("memory", "disk", "fsync", "made"):
        await client.put(f"to-{topic}", topic)
    await client.fire(250)
    await client.put("to-disk", "fsync")
    await client.fire(250)


async def storing(life: Life, client: Client) -> None:
    """Checkpoints between firings."""
    await client.put("a", "memory")
    await client.put("b", "fsync")
    for _ in range(2):
        await client.fire(220)
        await checkpoint(life)
    await client.put("a", "fsync")
    await client.fire(120)


SCHEDULE_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("define-schedules", (1,), HELD, ScheduleSweep, ROOMY, defining, with_topics),
    Operation("firings", (1, 2), HELD, ScheduleSweep, SHARDS, firing, with_topics),
    Operation("checkpoint-of-schedules", (8,), HELD, ScheduleSweep, SHARDS, storing, with_topics),
    Operation(
        "recovery-of-schedules-after-kill", (2, 8), HELD, ScheduleSweep, SHARDS, nothing, from_start=True,
        earlier=(Earlier(firing, "kill", SHARDS),),
    ),
)  # fmt: skip
