"""Rows about stages and their commits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final, Literal

import trio

from tests.crash.judges import StageSweep
from tests.crash.rows import Earlier, Operation, nothing
from tests.crash.rows import Script as Scene
from tests.simulation.test_staging_crashes import CONFIG, Script
from tests.simulation.world import End, Life
from topics.config import Settings

ROOMY: Final = replace(CONFIG, wal_file_bytes=32 << 10)
"""Two shards whose logs are not rotated."""
WHOLE: Final = (1, 2, 3, 6)


async def staging(life: Life, client: Script) -> None:
    """Stages filled beside one another, in several batches, each sent twice."""
    async with trio.open_nursery() as writers:
        writers.start_soon(client.stage, life, "a", [0, 1, 2, 3])
        writers.start_soon(client.stage, life, "b", [10, 11])
    await client.stage(life, "a", [4, 5])
    await trio.sleep(0.1)


async def two_stages(life: Life, client: Script) -> None:
    await client.append(life, "direct", [0])
    await client.stage(life, "a", [0, 1, 2, 3])
    await client.stage(life, "b", [10, 11])
    await client.stage(life, "left", [30])
    await trio.sleep(0.1)


async def committing(life: Life, client: Script) -> None:
    """Two stages in one commit, beside an append, and then the third."""
    async with trio.open_nursery() as both:
        both.start_soon(client.commit, life, "q/1", "b", "a")
        both.start_soon(client.append, life, "direct", [1, 2])
    await client.commit(life, "q/2", "left")
    await trio.sleep(0.1)


async def committed(life: Life, client: Script) -> None:
    await two_stages(life, client)
    await client.commit(life, "q/1", "b", "a")


async def committing_again(life: Life, client: Script) -> None:
    """A commit that was answered is repeated, beside a new one."""
    async with trio.open_nursery() as both:
        both.start_soon(client.commit, life, "q/1", "b", "a")
        both.start_soon(client.commit, life, "q/2", "left")
    await client.commit(life, "q/2", "left")
    await trio.sleep(0.1)


async def deleting(life: Life, client: Script) -> None:
    await client.delete(life, "a")
    await client.stage(life, "c", [20])
    await client.delete(life, "c")
    await client.commit(life, "q/1", "b")
    await trio.sleep(0.1)


async def expiring(life: Life, client: Script) -> None:
    """Stages that nobody has used for too long, beside one that somebody has."""
    await trio.sleep(61)
    await client.stage(life, "c", [20, 21])
    client.history += [("deleting", name) for name in ("a", "b", "left")]
    life.engine.expire_unused()
    await trio.sleep(0.5)
    await client.commit(life, "q/1", "c")
    await trio.sleep(0.1)


async def storing(life: Life, client: Script) -> None:
    """Stages in segments, in the log and in both are committed, stored in their target, and removed."""
    await client.stage(life, "a", range(4, 14))
    await life.compactor.checkpoint()
    await client.stage(life, "a", [14, 15])
    await client.commit(life, "q/1", "a", "b")
    await life.reclaimer.pass_over()
    await life.compactor.checkpoint()
    await life.reclaimer.pass_over()
    await life.compactor.checkpoint()


async def at_work(life: Life, client: Script) -> None:
    """Stages in segments and in the log, one of them committed."""
    await two_stages(life, client)
    await life.compactor.checkpoint()
    await client.stage(life, "c", [20, 21])
    await client.commit(life, "q/1", "a", "c")
    await client.stage(life, "b", [12])


async def closing_time(life: Life, client: Script) -> None:
    """A commit that is on its way when the daemon is told to stop."""
    async with trio.open_nursery() as both:
        both.start_soon(client.commit, life, "q/1", "a", "b")
        for _ in range(3):
            await trio.lowlevel.checkpoint()
        life.engine.start_draining()


def of_class(durability: str) -> partial[StageSweep]:
    """Judges a target of this class."""
    return partial(StageSweep, durability=durability)


def row(name: str, script: Scene, before: Scene, durability: str, config: Settings = ROOMY) -> Operation:
    """A row about the stages of one topic."""
    return Operation(name, (23,), WHOLE, of_class(durability), config, script, before)


def start_after(end: End | Literal["stop"], durability: str) -> Operation:
    """A start on stages, which is crashed from its first operation on."""
    return Operation(
        f"recovery-of-stages-after-{end}",
        (2, 23),
        WHOLE,
        of_class(durability),
        CONFIG,
        nothing,
        from_start=True,
        earlier=(Earlier(at_work, end),),
    )


STAGE_OPERATIONS = (
    row("stage-append", staging, nothing, "disk"),
    row("commit-of-disk", committing, two_stages, "disk"),
    row("commit-of-fsync", committing, two_stages, "fsync"),
    row("commit-of-memory", committing, two_stages, "memory"),
    row("commit-of-ephemeral", committing, two_stages, "ephemeral"),
    row("repeat-commit", committing_again, committed, "disk"),
    row("delete-stage", deleting, two_stages, "fsync"),
    row("expire-stage", expiring, two_stages, "disk"),
    row("store-stages", storing, two_stages, "disk", CONFIG),
    Operation("stop-with-commit", (1, 23), WHOLE, of_class("disk"), ROOMY, closing_time, two_stages, end="stop"),
    start_after("kill", "disk"),
    start_after("drop", "fsync"),
    start_after("stop", "memory"),
    Operation(
        "shards-of-stages-2-to-3",
        (14, 23),
        WHOLE,
        of_class("disk"),
        replace(CONFIG, wal_shards=3),
        nothing,
        from_start=True,
        earlier=(Earlier(at_work, "kill", CONFIG),),
    ),
)
