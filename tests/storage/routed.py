"""A data directory with everything in it that routers leave, made by the real engine on a simulated disk."""

from __future__ import annotations

from typing import Any, Final

import trio

from tests.simulation.world import Life, World
from tests.storage.made import CONFIG, Maker
from topics.config import Settings
from topics.model import RouterPatch

KEPT: Final = 24
"""Records that `narrow` keeps."""


async def connect(life: Life, name: str, source: str, dest: str, **fields: Any) -> None:
    """Create or update a router. `start` is `from`."""
    await life.engine.routers.put(name, RouterPatch(source=source, dest=dest, **fields))


async def settle(life: Life, *names: str) -> None:
    """Bring everything to these topics that is on its way."""
    await life.engine.routers.catch_up(names)


async def connected(life: Life, seed: int) -> Maker:
    """Chains of every class, a filter, two ways to one dest, an `ephemeral` end of each kind, a router that is gone."""
    make = Maker(life, seed)
    await make.put("orders", durability="disk")
    await make.put("quick", durability="memory")
    await make.put("fleeting", durability="ephemeral")
    await make.put("narrow", durability="disk", cap_records=KEPT)
    await connect(life, "one", "orders", "copies", preserve_node=False)
    await connect(life, "two", "copies", "far", preserve_tag=False)
    await connect(life, "red", "orders", "reds", filter=["tag", "Glob", "red*"])
    await connect(life, "left", "orders", "joined", guarantee="exactly_once", allow_cycle=True)
    await connect(life, "right", "copies", "joined", guarantee="exactly_once", allow_cycle=True)
    await connect(life, "caught", "fleeting", "kept")
    await connect(life, "shown", "orders", "quick")
    await connect(life, "lost", "quick", "fleeting2")
    await make.put("fleeting2", durability="ephemeral")
    await connect(life, "over", "orders", "gone")
    return make


DESTS: Final = ("copies", "far", "reds", "joined", "kept", "quick", "fleeting2", "late", "after", "narrow2")


async def first_life(life: Life, seed: int) -> None:
    """Much of it goes into segments."""
    make = await connected(life, seed)
    for _ in range(2):
        await make.append("orders", 60, ["red", "green", "redder", "blue"])
        await make.append("copies", 3, ["green"])  # so that copies of copies lean on the log back and forth
        await make.append("fleeting", 20, ["red"])
        await make.append("narrow", 40)
        await settle(life, *DESTS)
        await make.checkpoint()
    await connect(life, "late", "orders", "late", start="earliest")  # from segments
    await connect(life, "narrow", "narrow", "narrow2", start="earliest")  # what is there no more is a hole
    await settle(life, "late", "narrow2")
    await make.delete("orders", match="blue")
    await life.engine.routers.delete("over")
    await life.reclaimer.pass_over()
    await life.relocator.pass_over()


async def second_life(life: Life, seed: int) -> None:
    """Much of it is in the WAL only: copies of records, of copies, of segments, cold ones among them."""
    make = Maker(life, seed + 1)
    await make.append("orders", 30, ["red", "green"])
    await connect(life, "after", "orders", "after", start="earliest")
    await connect(life, "orphan", "narrow", "orphaned", start="earliest")
    await settle(life, *DESTS, "orphaned")
    await make.delete("copies", match="red")
    await make.delete("joined", before_seq=20)
    await life.engine.topic_lifecycle.delete("narrow", if_empty=False)
    await make.append("fleeting", 5)
    await make.append("orders", 20, ["red", "green"], size=300)
    await settle(life, *DESTS)
    await trio.sleep(0.1)


def routed(seed: int = 0, *, end: str = "stop", config: Settings = CONFIG, world: World | None = None) -> World:
    """A world after two lives; the last one stopped cleanly or was killed ("kill")."""
    world = world or World(seed, config=config)

    async def first(life: Life) -> None:
        await first_life(life, seed)

    async def second(life: Life) -> None:
        await second_life(life, seed)

    world.live(first)
    if end == "stop":
        world.live(second)
        return world
    world.live(second, end="kill")
    return world.after("kill")
