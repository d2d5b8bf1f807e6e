"""Rows about routers and the copies that they make."""

from __future__ import annotations

from dataclasses import replace

import trio

from tests.crash.rows import Earlier, Operation, Script, nothing
from tests.simulation.lives import CLASSES
from tests.simulation.router_lives import SMALL, Client, RouterSweep, nobody_forwards, until_idle
from tests.simulation.segment_lives import checkpoint, exactly, reclaim, relocate
from tests.simulation.test_router_crashes import fill
from tests.simulation.world import End, Life

ROOMY = replace(SMALL, wal_file_bytes=32 << 10, segment_max_events=100, segment_max_bytes=1 << 20)
"""Two shards whose logs are not rotated."""

Promises = tuple[int, ...]
COPIES: Promises = (1, 2, 4, 6)


async def two_topics(life: Life, client: Client) -> None:
    """A source and a dest with records in them."""
    await client.topic("a", durability="disk")
    await client.topic("b", durability="fsync")
    await fill(client, "a", 3)
    await fill(client, "b", 1)
    await trio.sleep(0.1)


async def two_linked(life: Life, client: Client) -> None:
    """The same, with a router between them that has nothing to do."""
    await two_topics(life, client)
    await client.router("a>b", "a", "b", start="earliest")
    await client.look()
    await trio.sleep(0.1)


# ----------------------------------------------------------------- routers


async def creating(life: Life, client: Client) -> None:
    """From now on, and from the beginning into a topic that is new."""
    await client.router("a>b", "a", "b")
    await client.topic("all", durability="disk")
    await client.router("a>all", "a", "all", start="earliest", filter=["tag", "Eq", "a"], guarantee="exactly_once")
    await client.append("a", 2, tag="a")
    await client.look("b", "all")
    await trio.sleep(0.1)


async def updating(life: Life, client: Client) -> None:
    """Another filter, another guarantee, with records between."""
    await client.router("a>b", "a", "b", filter=["tag", "Glob", "a*"])
    await fill(client, "a", 2)
    await client.router("a>b", "a", "b", guarantee="exactly_once", preserve_tag=False)
    await fill(client, "a", 2)
    await client.look()
    await trio.sleep(0.1)


async def deleting(life: Life, client: Client) -> None:
    """By itself, beside an append; made again; and then with its source."""
    async with trio.open_nursery() as both:
        both.start_soon(client.append, "a", 2)
        both.start_soon(client.delete_router, "a>b")
    await client.router("a>b", "a", "b")
    await client.append("a", 2)
    await client.delete_topic("a")
    await client.look()
    await client.topic("a", durability="disk")
    await trio.sleep(0.1)


# ----------------------------------------------------------------- copies


def linked(source: str, dest: str) -> Script:
    """A topic of one class, and a router to one of another."""

    async def script(life: Life, client: Client) -> None:
        await client.topic("a", durability=source)
        await client.topic("b", durability=dest)
        await client.router("a>b", "a", "b")
        await client.append("a")
        await client.look()
        await trio.sleep(0.1)

    return script


async def forwarding(life: Life, client: Client) -> None:
    """Batches of all kinds through one router, a record of the dest's own, and a checkpoint behind."""
    await fill(client, "a", 3)
    await client.look("b")
    await client.append("b", tag="direct")
    await client.append("a", 3, size=600)
    await client.look("b")
    await trio.sleep(0.1)
    await checkpoint(life)


async def diamond(life: Life, client: Client) -> None:
    """One source, two ways, one dest that takes each record once; and one that takes it from both."""
    for name, durability in (("a", "disk"), ("l", "memory"), ("r", "fsync"), ("once", "disk"), ("twice", "disk")):
        await client.topic(name, durability=durability)
    for way in "lr":
        await client.router(f"a>{way}", "a", way)
        await client.router(f"{way}>once", way, "once", guarantee="exactly_once")
        await client.router(f"{way}>twice", way, "twice")
    await client.append("a", 2)
    await client.look()
    await trio.sleep(0.1)


async def through_the_diamond(life: Life, client: Client) -> None:
    await client.append("a", 2, tag="a")
    await client.append("l")
    await client.look("once", "twice")
    await client.delete("once", before=3)
    await checkpoint(life)
    await client.append("a", 2)
    await client.look("once")
    await trio.sleep(0.1)


async def a_ring(life: Life, client: Client) -> None:
    for name, durability in (("x", "disk"), ("y", "memory"), ("z", "fsync")):
        await client.topic(name, durability=durability)
    for source, dest in ("xy", "yz", "zx"):
        await client.router(f"{source}>{dest}", source, dest, allow_cycle=True)
    await trio.sleep(0.1)


async def around_the_ring(life: Life, client: Client) -> None:
    for name in "xyz":
        await client.append(name, 2)
    await client.look()
    await client.append("x")
    await client.look("z")
    await trio.sleep(0.1)


async def a_chain(life: Life, client: Client) -> None:
    """Three copies of each record behind one another."""
    for name, durability in (("a", "disk"), ("b", "memory"), ("c", "fsync"), ("e", "ephemeral")):
        await client.topic(name, durability=durability)
    await client.router("a>b", "a", "b")
    await client.router("b>c", "b", "c", preserve_node=False)
    await client.router("b>e", "b", "e")
    await fill(client, "a", 3)
    await client.look()
    await trio.sleep(0.1)


async def storing_copies(life: Life, client: Client) -> None:
    """What copies are made of goes from the log into segments, and the log goes."""
    for size in (30, 300):
        await fill(client, "a", 1, size=size)
        await client.look("c")
        await checkpoint(life)
    await client.delete("a", before=8)
    await reclaim(life)


async def storing_copies_in_a_hold(life: Life, client: Client) -> None:
    """What copies are made of is in segments that are younger than the hold."""
    await life.engine.checkpoint(1000)
    await fill(client, "a", 2)
    await client.look("c")
    await checkpoint(life)
    await client.topic("d", durability="disk")
    await client.router("a>d", "a", "d", start="earliest")
    await client.look("d")
    await life.engine.checkpoint(1000)
    await fill(client, "a", 1)
    await client.look("c", "d")
    await checkpoint(life)
    await trio.sleep(2)
    await checkpoint(life)


async def removing_the_source(life: Life, client: Client) -> None:
    """A source goes while its copies have no bytes of their own."""
    await client.append("a", 2)
    await client.look("c")
    await client.delete_topic("a")
    await reclaim(life)
    await client.look()
    await checkpoint(life)
    await reclaim(life)


async def copies_of_segments(life: Life, client: Client) -> None:
    """A source in segments, some of them half dead, of which copies are made from the beginning."""
    await client.topic("a", durability="fsync")
    for i in range(9):
        await client.append("a", 2, tag="dead" if i % 3 == 1 else "live")
    await checkpoint(life)
    await client.delete("a", match=exactly("dead"))
    for dest, durability in (("b", "disk"), ("e", "ephemeral")):
        await client.topic(dest, durability=durability)
        await client.router(f"a>{dest}", "a", dest, start="earliest")
    await client.look()
    await trio.sleep(0.1)


async def replacing_the_segments(life: Life, client: Client) -> None:
    """They are written anew, moved and dropped; the copies have their own by then."""
    await reclaim(life)
    await relocate(life)
    await client.look()
    await client.delete("a", before=12)
    await checkpoint(life)
    await reclaim(life)
    await client.look()


async def overtaken(life: Life, client: Client) -> None:
    """A source whose cap takes records before they are copied; a dest that refuses, and one that evicts."""
    await client.topic("a", durability="disk", cap_records=4)
    await client.topic("b", durability="fsync")
    await client.topic("full", durability="disk", cap_records=3, discard="reject")
    await client.topic("old", durability="disk", cap_records=3)
    for dest in ("b", "full", "old"):
        await client.router(f"a>{dest}", "a", dest)
    await client.append("a", 2)
    await client.look("b")
    await trio.sleep(0.1)


async def overtaking(life: Life, client: Client) -> None:
    with nobody_forwards(life):
        await client.append("a", 3)
        await client.append("a", 4)
    await until_idle(life)
    await client.look()
    await client.delete("full", before=4)
    await until_idle(life)
    await trio.sleep(0.1)
    await checkpoint(life)


async def pinned(life: Life, client: Client) -> None:
    """A chain, all of it in the log."""
    for name in "abc":
        await client.topic(name, durability="disk")
    await client.router("a>b", "a", "b")
    await client.router("b>c", "b", "c")
    await fill(client, "a", 2)
    await client.look()
    await trio.sleep(0.1)


async def changing_classes(life: Life, client: Client) -> None:
    """Source and dest turn ephemeral and come back, while copies need the source's bytes."""
    await client.topic("a", durability="ephemeral")
    await client.append("a", 2)
    await client.look("c")
    await client.topic("b", durability="ephemeral")
    await client.append("a", 2)
    await client.look("c")
    await checkpoint(life)
    await client.topic("b", durability="fsync")
    await client.topic("a", durability="memory")
    await client.append("a", 2)
    await client.look()
    await trio.sleep(0.1)


# ----------------------------------------------------------------- starts


async def at_work(life: Life, client: Client) -> None:
    """Copies in the log and in segments, of sources of which one is gone."""
    await a_chain(life, client)
    await client.topic("s", durability="disk")
    await client.router("s>c", "s", "c", guarantee="exactly_once")
    await fill(client, "s", 2)
    await client.look()
    await checkpoint(life)
    await fill(client, "a", 2)
    await client.delete_topic("s")
    await client.look("c")


async def less_work(life: Life, client: Client) -> None:
    """Copies of which some are stored and some are not."""
    await pinned(life, client)
    await checkpoint(life)
    await fill(client, "a", 1)
    await client.look("c")


def start_after(end: End) -> Operation:
    """A start on copies, which is crashed from its first operation on."""
    return Operation(
        f"recovery-of-copies-after-{end}",
        (2, 16, 17, 20),
        COPIES,
        RouterSweep,
        SMALL,
        nothing,
        from_start=True,
        earlier=(Earlier(at_work, end),),
    )


# ----------------------------------------------------------------- the rows

COPY_OPERATIONS = (
    Operation("create-router", (19, 20), COPIES, RouterSweep, ROOMY, creating, before=two_topics),
    Operation("update-router", (19, 20), COPIES, RouterSweep, ROOMY, updating, before=two_linked),
    Operation("delete-router", (20,), COPIES, RouterSweep, ROOMY, deleting, before=two_linked),
    *(
        Operation(
            f"forward-{source}-to-{dest}",
            (16, 17, 19, 22),
            (*COPIES, 3),
            RouterSweep,
            ROOMY,
            forwarding,
            before=linked(source, dest),
        )
        for source in CLASSES
        for dest in CLASSES
    ),
    Operation("forward-once", (19,), COPIES, RouterSweep, ROOMY, through_the_diamond, before=diamond),
    Operation("forward-in-a-ring", (19, 22), COPIES, RouterSweep, ROOMY, around_the_ring, before=a_ring),
    Operation("forward-past-losses", (18, 21), (4, 5, 7), RouterSweep, ROOMY, overtaking, before=overtaken),
    Operation("store-copies", (9, 16, 18), COPIES, RouterSweep, SMALL, storing_copies, before=a_chain),
    Operation(
        "store-copies-in-hold", (9, 13, 16, 18), COPIES, RouterSweep, SMALL, storing_copies_in_a_hold, before=a_chain
    ),
    Operation("remove-source", (18, 20), COPIES, RouterSweep, SMALL, removing_the_source, before=a_chain),
    Operation(
        "replace-segments-of-source",
        (12, 17, 18),
        COPIES,
        RouterSweep,
        SMALL,
        replacing_the_segments,
        before=copies_of_segments,
    ),
    Operation("change-class-of-source", (16, 18, 24), COPIES, RouterSweep, ROOMY, changing_classes, before=pinned),
    start_after("kill"),
    start_after("drop"),
    start_after("garble"),
    Operation(
        "shards-of-copies-2-to-3",
        (14, 18),
        COPIES,
        RouterSweep,
        replace(SMALL, wal_shards=3),
        nothing,
        from_start=True,
        earlier=(Earlier(less_work, "kill", SMALL),),
    ),
)
