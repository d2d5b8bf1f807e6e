"""Rows about salvage: a damaged log, and crashes everywhere in the start that gives up what is damaged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import trio

from tests.crash.judges import SalvageSweep
from tests.crash.rows import Earlier, Operation, Script, nothing
from tests.simulation.disk import SimFs
from tests.simulation.router_lives import Client
from tests.simulation.segment_lives import checkpoint
from tests.simulation.test_damage import appended, wal_files
from tests.simulation.world import Life, settings
from topics.config import Settings

STRICT: Final = settings(wal_file_bytes=32 << 10)
SHORT: Final = settings(wal_file_bytes=4 << 10)
"""Files of the log that a few records fill."""


async def two_topics(life: Life, client: Client) -> None:
    """Records and deletions in the log, all of it on disk and vouched for."""
    await client.topic("orders", durability="fsync")
    await client.topic("events", durability="disk")
    for i in range(6):
        await client.append("orders", 2, size=60)
        await client.append("events", size=200)
        if i == 3:
            await client.delete("orders", before=3)
    await trio.sleep(0.1)


async def some_in_segments(life: Life, client: Client) -> None:
    """The same, behind a checkpoint."""
    await two_topics(life, client)
    await checkpoint(life)
    for _ in range(4):
        await client.append("orders", 2, size=60)
        await client.append("events", size=200)
    await trio.sleep(0.1)


async def copied(life: Life, client: Client) -> None:
    """Copies of both, made of what is going to be damaged."""
    for name in ("orders", "events"):
        await client.topic(name, durability="fsync" if name == "orders" else "disk")
        await client.topic(f"{name}-copy", durability="fsync")
        await client.router(f"r-{name}", name, f"{name}-copy")
    for _ in range(6):
        await client.append("orders", 2, size=60)
        await client.append("events", size=200)
        await client.look("orders-copy", "events-copy")
    await trio.sleep(0.1)


def a_bit_of(topic_id: int, seq: int, *, file: int) -> partial[None]:
    """Flips a bit of the frame of a record, in this file of the log."""
    return partial(flip, topic_id=topic_id, seq=seq, file=file)


def flip(fs: SimFs, *, topic_id: int, seq: int, file: int) -> None:
    path = wal_files(fs)[file]
    fs.flip_bit(path, appended(fs, path, topic_id, seq).offset + 50, 1)


def row(name: str, script: Script, hurt: partial[None], config: Settings = STRICT) -> Operation:
    """The life behind the one of `script` is a salvage, and nothing but that."""
    return Operation(
        name,
        (2, 15),
        (1, 2, 4, 6, 10),
        SalvageSweep,
        replace(config, recovery="salvage"),
        nothing,
        from_start=True,
        earlier=(Earlier(script, "drop", config, hurt),),
    )


SALVAGE_OPERATIONS = (
    row("salvage", two_topics, a_bit_of(1, 7, file=0)),
    row("salvage-behind-checkpoint", some_in_segments, a_bit_of(1, 15, file=-1)),
    row("salvage-of-a-rotated-file", two_topics, a_bit_of(2, 1, file=0), SHORT),
    row("salvage-of-copies", copied, a_bit_of(1, 3, file=0)),
)
