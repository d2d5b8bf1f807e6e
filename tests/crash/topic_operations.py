"""Rows about the log of a topic: appends of every class, retention, deletions, configuration, heads, and the WAL."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import trio

from tests.crash.rows import Operation, Script, nothing
from tests.simulation.lives import CLASSES
from tests.simulation.model import Client
from tests.simulation.segment_lives import SMALL, STORED, SegmentSweep, checkpoint, exactly, fill, fill_all, one_of_each
from tests.simulation.world import Life
from topics.errors import ApiError
from topics.log.tag_match import TagMatch

LONG = replace(SMALL, wal_file_bytes=64 << 10, segment_max_events=100)
"""A log that is not rotated, and segments that are not full."""


def a_topic(name: str, batches: int = 0, **config: Any) -> Script:
    """A topic with so many batches in it, on disk."""

    async def script(life: Life, client: Client) -> None:
        await client.create(name, **config)
        await fill(client, name, batches)
        await trio.sleep(0.1)

    return script


def near_the_reserve(*names: str) -> Script:
    """Topics that will ask for more seqs to be reserved with one of their next records: half of the first reserve of
    1024 is used up. Of an ephemeral one this is all that is ever written."""

    async def script(life: Life, client: Client) -> None:
        await one_of_each(client, names)
        for name in names:
            await client.append(name)
            await trio.sleep(0.05)
            await client.append(name, 510, size=1)
            await client.delete(name, before=510)
        await trio.sleep(0.1)

    return script


async def a_topic_of_each_class(life: Life, client: Client) -> None:
    await one_of_each(client)
    await fill_all(client, 4)
    await trio.sleep(0.1)


# ----------------------------------------------------------------- appends


def appending(name: str) -> Script:
    """Small and large batches, alone and side by side, in one commit and in several."""

    async def script(life: Life, client: Client) -> None:
        await client.append(name, tag="a", node="n", meta={"m": "1"})
        await client.append(name, 3, size=700)
        async with trio.open_nursery() as clients:
            for count in (1, 2, 3):
                clients.start_soon(client.append, name, count)
        await trio.sleep(0.03)
        await client.append(name)
        await client.look(name)
        await trio.sleep(0.1)

    return script


async def batches(life: Life, client: Client) -> None:
    """Batches of many frames in all classes, some larger than what one write takes."""
    async with trio.open_nursery() as clients:
        for name in CLASSES:
            clients.start_soon(client.append, name, 12)
    async with trio.open_nursery() as clients:
        for name in CLASSES:
            clients.start_soon(append_large, client, name)
    await trio.sleep(0.1)


async def append_large(client: Client, name: str) -> None:
    await client.append(name, 5, size=400, tag="a")
    await client.append(name, 2, meta={"m": "x"})


async def keyed(life: Life, client: Client) -> None:
    """Appends with keys; the judge repeats every one of them."""
    for i in range(3):
        async with trio.open_nursery() as clients:
            for name in CLASSES:
                clients.start_soon(append_keyed, client, name, f"k{i}")
    await trio.sleep(0.1)


async def append_keyed(client: Client, name: str, key: str) -> None:
    await client.append(name, 2, key=key)


# ----------------------------------------------------------------- retention and deletion


async def with_caps(life: Life, client: Client) -> None:
    await client.create("records", durability="fsync", cap_records=5)
    await client.create("bytes", durability="disk", cap_bytes=300)
    await client.create("loose", durability="memory", cap_records=3)
    await fill_all(client, 2, names=("records", "bytes", "loose"))
    await trio.sleep(0.1)


async def evicting(life: Life, client: Client) -> None:
    """Appends that evict, a batch that evicts all there was, a cap that gets tighter."""
    async with trio.open_nursery() as clients:
        for name in ("records", "bytes", "loose"):
            clients.start_soon(client.append, name, 2)
    await client.append("records", 5)
    await client.append("bytes", 3)
    await client.configure("loose", cap_records=2)
    await client.append("records", 1)
    for name in ("records", "bytes", "loose"):
        await client.look(name)
    await trio.sleep(0.1)


async def with_ttl(life: Life, client: Client) -> None:
    for name in STORED:
        await client.create(name, durability=name, ttl_ms=300)
        await client.append(name, 2, tag="old")
    await trio.sleep(0.2)


async def expiring(life: Life, client: Client) -> None:
    """Records that expire while others are appended and deleted, and readers who are told."""
    for name in STORED:
        await client.append(name, 2, tag="new")
    await trio.sleep(0.15)
    for name in STORED:
        await client.look(name)
        await client.append(name)
    await client.delete("fsync", before=4)
    await client.configure("disk", ttl_ms=0)
    await trio.sleep(0.4)
    for name in STORED:
        await client.append(name)
        await client.look(name)
    await trio.sleep(0.1)


async def deleting_before(life: Life, client: Client) -> None:
    for before in (2, 4, 4, 100):
        async with trio.open_nursery() as clients:
            for name in CLASSES:
                clients.start_soon(delete_before, client, name, before)
    await fill_all(client, 1)
    await trio.sleep(0.1)


async def delete_before(client: Client, name: str, before: int) -> None:
    await client.delete(name, before=before)


async def deleting_matches(life: Life, client: Client) -> None:
    """By tag and by prefix, with and without a bound, beside appends that match."""
    for match in (exactly("b"), TagMatch("a", prefix=True), TagMatch("", prefix=True)):
        async with trio.open_nursery() as clients:
            for name in CLASSES:
                clients.start_soon(delete_match, client, name, match)
                clients.start_soon(append_tagged, client, name)
    await client.delete("fsync", before=9, match=exactly("b"))
    await trio.sleep(0.1)


async def delete_match(client: Client, name: str, match: TagMatch) -> None:
    await client.delete(name, match=match)


async def append_tagged(client: Client, name: str) -> None:
    await client.append(name, 1, tag="b")


# ----------------------------------------------------------------- topics


async def creating(life: Life, client: Client) -> None:
    """Alone, side by side, and by an append's side."""
    await client.create("first", durability="fsync", ttl_ms=60_000, cap_records=9)
    async with trio.open_nursery() as clients:
        for name in CLASSES:
            clients.start_soon(create_and_append, client, name)
    await trio.sleep(0.1)


async def create_and_append(client: Client, name: str) -> None:
    await client.create(name, durability=name)
    await client.append(name, 2)


async def configuring(life: Life, client: Client) -> None:
    """Everything but the class."""
    for changes in ({"ttl_ms": 60_000}, {"cap_records": 3, "ttl_ms": 0}, {"cap_records": 0, "priority": 7}):
        for name in CLASSES:
            await client.configure(name, **changes)
            await client.append(name)
    await trio.sleep(0.1)


def changing_class(*changes: tuple[str, str]) -> tuple[Script, Script]:
    """Topics of one class with live and deleted records and keys; and how each turns into the other."""

    async def make(life: Life, client: Client) -> None:
        for old, new in changes:
            name = f"{old}-to-{new}"
            await client.create(name, durability=old)
            await client.append(name, 3, tag="a", key="one")
            await client.delete(name, before=2)
        await trio.sleep(0.1)

    async def change(life: Life, client: Client) -> None:
        for old, new in changes:
            name = f"{old}-to-{new}"
            async with trio.open_nursery() as both:
                both.start_soon(append_tagged, client, name)
                await client.configure(name, durability=new)
            await client.append(name, 2, tag="b", key="two")
            await client.delete(name, match=exactly("a"))
        await checkpoint(life)
        await trio.sleep(0.1)

    return make, change


async def deleting_topics(life: Life, client: Client) -> None:
    async with trio.open_nursery() as clients:
        for name in CLASSES:
            clients.start_soon(client.delete_topic, name)
    await trio.sleep(0.1)


async def recreating(life: Life, client: Client) -> None:
    """Under the same name, with the same keys and of another class, beside a checkpoint."""

    async def again(name: str, durability: str) -> None:
        await client.delete_topic(name)
        await client.create(name, durability=durability)
        await client.append(name, 2, key="same")
        await client.look(name)

    for turn in (1, 2):
        async with trio.open_nursery() as clients:
            for i, name in enumerate(CLASSES):
                clients.start_soon(again, name, CLASSES[(i + turn) % 4])
            clients.start_soon(checkpoint, life)
    await trio.sleep(0.1)


# ----------------------------------------------------------------- heads, the log


async def raising(life: Life, client: Client) -> None:
    """Appends that have the reserve raised beside them, and one that has to wait for that."""
    async with trio.open_nursery() as clients:
        clients.start_soon(append_twice, client, "ephemeral", 20)
        clients.start_soon(append_twice, client, "memory", 20)
        clients.start_soon(append_twice, client, "disk", 540)
    await trio.sleep(0.1)


async def append_twice(client: Client, name: str, count: int) -> None:
    await client.append(name, count, size=1)
    await client.append(name)


async def lowering(life: Life, client: Client) -> None:
    """Idle topics give their reserve back; one is appended to while it does, and again after that."""
    await fill_all(client, 1)
    await trio.sleep(1.4)
    for name in CLASSES:
        await client.append(name)
    await trio.sleep(2.6)
    for name in CLASSES:
        await client.append(name)
        await client.look(name)


class AlwaysHeld:
    """The lease of an owner that nobody else takes."""

    is_held = True

    @property
    def refusal(self) -> ApiError:
        raise AssertionError("it is held")


async def lowering_for_takers(life: Life, client: Client) -> None:
    """A daemon whose bucket another one may take gives back the seqs that it has reserved there, before a stop, and
    reserves some when it starts again."""
    right = life.store.right
    right.lease = AlwaysHeld()
    await client.create("reserved", durability="disk")
    await client.append("reserved", 3)
    life.engine.ceilings.lower_bucket_ceilings()
    await trio.sleep(0.1)
    life.engine.ceilings.raise_at_start()
    await trio.sleep(0.1)
    right.lease = None
    await client.append("reserved", 3)
    await client.look("reserved")


async def rotating(life: Life, client: Client) -> None:
    """Several files of the log, with all classes in them."""
    for i in range(7):
        async with trio.open_nursery() as clients:
            for name in CLASSES:
                clients.start_soon(append_sized, client, name, 900 + 100 * i)
    await trio.sleep(0.1)


async def append_sized(client: Client, name: str, size: int) -> None:
    await client.append(name, 1, size=size)


async def stopping(life: Life, client: Client) -> None:
    """Work that is on its way when the daemon is told to stop."""
    await fill_all(client, 1)


# ----------------------------------------------------------------- the rows

LOG_OPERATIONS = (
    Operation("first-start", (2, 14), (1, 6), SegmentSweep, LONG, nothing, from_start=True),
    *(
        Operation(f"append-{name}", rules, (1, 2, 4, 5, 6, 10), SegmentSweep, LONG, appending(name), before=make)
        for name, make, rules in (
            ("ephemeral", near_the_reserve("ephemeral"), (1, 7)),
            ("memory", a_topic("memory", 2, durability="memory"), (1, 6, 7)),
            ("disk", a_topic("disk", 2, durability="disk"), (1, 3, 7)),
            ("fsync", a_topic("fsync", 2, durability="fsync"), (1, 4, 5)),
        )
    ),
    Operation("batch-append", (4, 5), (1, 3, 5), SegmentSweep, LONG, batches, before=a_topic_of_each_class),
    Operation("keyed-append", (6,), (1, 3), SegmentSweep, LONG, keyed, before=a_topic_of_each_class),
    Operation("cap-eviction", (6, 8), (2, 4, 5), SegmentSweep, LONG, evicting, before=with_caps),
    Operation("ttl-expiry", (6, 7), (2, 4, 5), SegmentSweep, LONG, expiring, before=with_ttl),
    Operation("delete-before", (6, 11), (1, 2, 5), SegmentSweep, LONG, deleting_before, before=a_topic_of_each_class),
    Operation("delete-match", (6, 11), (1, 2, 5), SegmentSweep, LONG, deleting_matches, before=a_topic_of_each_class),
    Operation("create-topic", (1,), (1, 2), SegmentSweep, LONG, creating),
    Operation("configure-topic", (6, 25), (1, 5), SegmentSweep, LONG, configuring, before=a_topic_of_each_class),
    *(
        Operation(name, (1, 24), (1, 2, 3, 4), SegmentSweep, LONG, change, before=make)
        for name, (make, change) in (
            ("turn-ephemeral", changing_class(*((old, "ephemeral") for old in STORED))),
            ("leave-ephemeral", changing_class(*(("ephemeral", new) for new in STORED))),
            ("raise-class", changing_class(("memory", "disk"), ("memory", "fsync"), ("disk", "fsync"))),
            ("lower-class", changing_class(("fsync", "disk"), ("fsync", "memory"), ("disk", "memory"))),
        )
    ),
    Operation("delete-topic", (8, 20), (1, 2), SegmentSweep, LONG, deleting_topics, before=a_topic_of_each_class),
    Operation("recreate-topic", (8, 20), (1, 2), SegmentSweep, SMALL, recreating, before=a_topic_of_each_class),
    Operation(
        "raise-ceiling",
        (1, 25),
        (2, 4),
        SegmentSweep,
        replace(LONG, wal_file_bytes=1 << 20),
        raising,
        before=near_the_reserve("ephemeral", "memory", "disk"),
    ),
    Operation("lower-ceiling", (1, 3), (2, 4), SegmentSweep, LONG, lowering, before=a_topic_of_each_class),
    Operation("lower-bucket-ceiling", (1,), (2, 4), SegmentSweep, LONG, lowering_for_takers),
    Operation("rotate-wal", (4, 5), (1, 6, 10), SegmentSweep, SMALL, rotating, before=a_topic_of_each_class),
    Operation("clean-stop", (1, 6), (1, 4, 6), SegmentSweep, LONG, stopping, before=a_topic_of_each_class, end="stop"),
)
