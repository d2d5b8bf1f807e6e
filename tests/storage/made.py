"""A data directory with everything in it that `verify` and `inspect` look at, made by the real engine on a simulated
disk."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from tests.simulation.world import Life, World, settings
from topics.config import Settings
from topics.log.tag_match import parse_match
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch

ROOT: Final = "/data"
COLD: Final = "/cold"

CONFIG: Final = settings(
    cold_dir=Path(COLD),
    wal_shards=2,
    wal_file_bytes=16 << 10,
    segment_max_events=40,
    segment_max_bytes=8 << 10,
    segment_max_age_ms=0,
    hot_retain_segments=2,
    rewrite_live_ratio=0.5,
)


class Maker:
    """Calls of an engine that are as short as a scenario wants them."""

    def __init__(self, life: Life, seed: int) -> None:
        self.life = life
        self.random = random.Random(seed)

    async def put(self, name: str, **patch: Any) -> None:
        await self.life.engine.topic_lifecycle.put(name, TopicConfigPatch(**patch))

    async def append(self, name: str, count: int, tags: Sequence[str] = (), size: int = 40) -> None:
        """Records in batches of random size, each with a random tag of `tags`."""
        left = count
        while left:
            n = min(left, self.random.randint(1, 12))
            records = [
                RecordIn(
                    data=msgspec.Raw(json.dumps("x" * self.random.randint(1, size)).encode()),
                    tag=self.random.choice(tags) if tags else None,
                )
                for _ in range(n)
            ]
            await self.life.engine.appends.append(name, AppendRequest(records=records), Performance())
            left -= n

    async def delete(self, name: str, before_seq: int | None = None, match: Any = None) -> None:
        wanted = parse_match(match) if match is not None else None
        await self.life.engine.deletions.delete_records(name, before_seq, wanted, Performance())

    async def checkpoint(self) -> None:
        await self.life.compactor.checkpoint()


def made(seed: int = 0, *, end: str = "stop", config: Settings = CONFIG, world: World | None = None) -> World:
    """A world whose directory holds: several WAL files in two shards, two snapshots; sealed and active segments, hot
    and cold, with tags, nodes, deletions, rewritten and emptied ones; floors, a queue of evictions, an ephemeral topic,
    a deleted one. Stopped cleanly, or killed with records that no checkpoint has seen ("kill")."""
    world = world or World(seed, config=config)

    async def first(life: Life) -> None:
        make = Maker(life, seed)
        await make.put("tagged")
        await make.put("capped", cap_records=150)
        await make.put("quick", durability="disk")
        await make.put("gone")
        await make.put("fleeting", durability="ephemeral")
        for _ in range(3):
            await make.append("tagged", 70, ["red", "green", "blue", "rot/1", "rot/2"])
            await make.append("capped", 90)
            await make.append("quick", 30, ["a"], size=300)
            await make.append("fleeting", 10)
            await make.append("gone", 50)
            await make.checkpoint()
        await make.delete("tagged", match="red")
        await make.delete("capped", before_seq=150)
        await make.checkpoint()
        await life.relocator.pass_over()
        await make.delete("tagged", match=["tag", "Glob", "rot/*"])
        await make.delete("tagged", before_seq=20)
        await make.checkpoint()
        await life.reclaimer.pass_over()
        await make.checkpoint()
        await life.engine.topic_lifecycle.delete("gone", if_empty=False)
        await life.reclaimer.pass_over()

    async def second(life: Life) -> None:
        make = Maker(life, seed + 1)
        await make.append("tagged", 50, ["red", "green"])
        await make.append("quick", 25)
        await make.checkpoint()
        await make.delete("tagged", match="green", before_seq=200)
        await make.append("capped", 30)
        await make.checkpoint()
        await life.reclaimer.pass_over()
        await life.relocator.pass_over()
        await make.append("quick", 100, ["a", "b"], size=300)  # two more WAL files, without a checkpoint
        await make.append("tagged", 60, ["red", "green"], size=300)
        if end != "stop":
            await make.append("tagged", 15, ["red"])
            await make.append("quick", 5)
            await make.delete("quick", match="a")
            await trio.sleep(0.1)

    world.live(first)
    if end == "stop":
        world.live(second)
        return world
    world.live(second, end="kill")
    return world.after("kill")
