"""Rows about queues: leases of every kind, dead letters, and what else happens to jobs that somebody holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import trio

from tests.crash.judges import PagedQueueSweep, stepping
from tests.crash.rows import Earlier, Operation, Script, nothing
from tests.simulation.queue_clients import Client
from tests.simulation.router_lives import SMALL
from tests.simulation.segment_lives import checkpoint, exactly, reclaim, relocate
from tests.simulation.test_queue_crashes import an_hour_apart, fill, one_move, one_shift
from tests.simulation.world import End, Life

ROOMY = replace(SMALL, wal_shards=1, wal_file_bytes=32 << 10, segment_max_events=100, segment_max_bytes=1 << 20)
"""A log that is not rotated."""

QUEUES = ("plain", "durable", "loose")
LEASES = (1, 2, 4, 9)


async def three_queues(life: Life, client: Client) -> None:
    """One with leases that are in memory only, one with durable ones, and one of a class that a crash may empty."""
    for name, durability in (("plain", "disk"), ("durable", "fsync"), ("loose", "memory")):
        await client.queue(name, durability=durability, leases_durable=name != "plain")
        await fill(client, name, 3)
    await trio.sleep(0.1)


def with_leases(lease_ms: int = 20_000) -> Script:
    """The same; four of six jobs of each are leased."""

    async def script(life: Life, client: Client) -> None:
        await three_queues(life, client)
        for name in QUEUES:
            await client.claim(name, "ann", 4, lease_ms=lease_ms)
        await trio.sleep(0.1)

    return script


def held(client: Client, name: str) -> Any:
    """What somebody was told of last."""
    return next(asked.told for asked in reversed(client.history.asked) if asked.kind == "claim" and asked.name == name)


# ----------------------------------------------------------------- leases


async def claiming(life: Life, client: Client) -> None:
    """One job, several, more than there are, by several at the same time."""
    for name in QUEUES:
        await client.claim(name, "ann")
        async with trio.open_nursery() as workers:
            workers.start_soon(client.claim, name, "bob", 2)
            workers.start_soon(client.claim, name, "cid", 2)
        await client.claim(name, "dan", 9)
    await trio.sleep(0.1)


async def acking(life: Life, client: Client) -> None:
    """One by one, together, and by somebody who does not hold what he says."""
    for name in QUEUES:
        told = held(client, name)
        await client.ack(name, told[:1])
        await client.ack(name, [one._replace(node="eve") for one in told[1:2]])
        await client.ack(name, told[1:4])
        await client.ack(name, told[:1])
    await trio.sleep(0.1)


async def nacking(life: Life, client: Client) -> None:
    """For now, for later, and claimed again."""
    for name in QUEUES:
        told = held(client, name)
        await client.nack(name, told[:2])
        await client.nack(name, told[2:3], delay_ms=300)
        await client.claim(name, "bob", 1)
        unheard = await client.claim(name, "dot", 1)
        if unheard:
            client.hang_up(name, unheard)
    await trio.sleep(0.4)
    for name in QUEUES:
        await client.claim(name, "cid", 9)
    await trio.sleep(0.1)


async def changing(life: Life, client: Client) -> None:
    """Jobs are cancelled while somebody holds them, and retried before their time."""
    for name in QUEUES:
        told = held(client, name)
        await client.cancel(name, told[:2])
        await client.nack(name, told[2:], delay_ms=60_000)
    await client.retry("plain", held(client, "plain")[2:])
    await client.claim("plain", "bob", 9)
    await checkpoint(life)
    await client.retry("loose", held(client, "loose")[3:])
    await trio.sleep(0.1)


async def extending(life: Life, client: Client) -> None:
    """For longer and for shorter."""
    for name in QUEUES:
        told = held(client, name)
        await client.extend(name, told[:2], lease_ms=60_000)
        await client.extend(name, told[2:], lease_ms=200)
    await trio.sleep(0.3)
    for name in QUEUES:
        await client.claim(name, "bob", 9)
    await trio.sleep(0.1)


async def running_out(life: Life, client: Client) -> None:
    """Leases end by themselves, and the jobs go to others."""
    await trio.sleep(0.4)
    for name in QUEUES:
        await client.ack(name, held(client, name))
        await client.claim(name, "bob", 3)
        await client.ack(name, held(client, name)[:1])
    await trio.sleep(0.1)


async def releasing(life: Life, client: Client) -> None:
    """Streams take jobs, end some, and end."""
    for name in QUEUES:
        async with client.stream(name, "ann", 4) as following:
            told = await following()
            await client.ack(name, told[:1])
            await client.nack(name, told[1:2], delay_ms=100)
        await client.claim(name, "bob", 2)
    await trio.sleep(0.2)


async def checkpointing(life: Life, client: Client) -> None:
    """Leases, delays and deliveries of all kinds get into parts and snapshots, while others are taken."""
    for name in QUEUES:
        told = held(client, name)
        await client.nack(name, told[:1], delay_ms=4000)
        await client.nack(name, told[1:2])
    async with trio.open_nursery() as both:
        both.start_soon(checkpoint, life)
        both.start_soon(client.claim, "durable", "bob", 1)
    for name in QUEUES:
        await client.ack(name, held(client, name)[:1])
    await checkpoint(life)


async def taking_away(life: Life, client: Client) -> None:
    """Jobs that are leased are deleted, evicted, or have their queue deleted."""
    await client.delete("durable", match=exactly("a"))
    await client.delete("plain", before=3)
    await client.topic("loose", cap_records=3)
    await client.append("loose", 2)
    for name in QUEUES:
        await client.ack(name, held(client, name))
        await client.claim(name, "bob", 2)
    await client.delete_topic("plain")
    await client.queue("plain", durability="disk")
    await fill(client, "plain", 1)
    await trio.sleep(0.1)


async def changing_class(life: Life, client: Client) -> None:
    """A queue turns ephemeral and comes back, with jobs leased and delayed."""
    for name in ("plain", "durable"):
        await client.nack(name, held(client, name)[:1], delay_ms=4000)
        await client.topic(name, durability="ephemeral")
        await client.claim(name, "bob", 1)
        await client.append(name, 2)
        await client.topic(name, durability="fsync")
        await client.claim(name, "cid", 1)
    await checkpoint(life)


async def in_segments(life: Life, client: Client) -> None:
    """Jobs in segments, hot and cold."""
    for name, durability in (("plain", "disk"), ("durable", "fsync")):
        await client.queue(name, durability=durability, leases_durable=name == "durable")
        await fill(client, name, 9)
    await checkpoint(life)
    await relocate(life)


async def working_off_segments(life: Life, client: Client) -> None:
    for name in ("plain", "durable"):
        told = await client.claim(name, "ann", 9)
        await client.ack(name, told[::2])
    await checkpoint(life)
    for name in ("plain", "durable"):
        await client.ack(name, held(client, name)[1::2])
    await reclaim(life)
    await checkpoint(life)


# ----------------------------------------------------------------- dead letters


async def poison(life: Life, client: Client) -> None:
    """Queues of three kinds whose jobs may be delivered once, and a dead-letter topic that has room for two."""
    await client.topic("dead", durability="fsync")
    await client.topic("full", durability="disk", cap_records=2, discard="reject")
    for name, durability, target in (("plain", "disk", "dead"), ("durable", "fsync", "full"), ("loose", "memory", "x")):
        await client.queue(
            name, durability=durability, leases_durable=name == "durable", max_deliveries=1, dead_letter=target
        )
        await fill(client, name, 3)
        await client.claim(name, "ann", 4, lease_ms=20_000)
    await trio.sleep(0.1)


async def burying(life: Life, client: Client) -> None:
    """Jobs go to the dead-letter topic as soon as anybody is about to get them again, or wait for room there."""
    for name in QUEUES:
        await client.nack(name, held(client, name))
        await client.claim(name, "bob", 2)
    await trio.sleep(0.3)
    await client.delete("full", before=2)
    await checkpoint(life)
    await trio.sleep(1.5)
    await client.look()
    await client.topic("durable", dead_letter=None)
    await client.claim("durable", "cid", 1)
    await trio.sleep(0.1)


async def planning(life: Life, client: Client) -> None:
    """Jobs for later and of several priorities, pauses, and jobs that are given up."""
    for name in QUEUES:
        await client.append(name, 3, delay_ms=500)
        await client.append(name, 2, priority=8)
        await client.append(name, 1, priority=1, delay_ms=300)
        await client.condemn(name, held(client, name)[:2], "no such customer")
        await client.pause(name)
        await client.claim(name, "bob", 2)
    await checkpoint(life)
    await trio.sleep(0.4)
    for name in QUEUES:
        await client.resume(name)
        await client.claim(name, "bob", 3)
        await client.append(name, 1, priority=9, delay_ms=40_000)
    await trio.sleep(0.3)
    await client.look()


UNIQUE = ("unique-plain", "unique-durable", "unique-loose")


async def unique_queues(life: Life, client: Client) -> None:
    """Queues whose jobs have unique keys; some jobs are leased."""
    for name, durability in zip(UNIQUE, ("disk", "fsync", "memory"), strict=True):
        await client.queue(name, durability=durability, leases_durable=True)
        await client.append(name, 6)
        await client.claim(name, "ann", 4, lease_ms=20_000)
    await trio.sleep(0.1)


async def repeating(life: Life, client: Client) -> None:
    """Jobs that are there are appended again, with and without idempotency keys; jobs end, and others come."""
    for name in UNIQUE:
        told = held(client, name)
        await client.repeat(name, told[:2])
        await client.repeat(name, told[1:4], key="again")
        await client.ack(name, told[:2])
        await client.append(name, 3)
    await checkpoint(life)
    for name in UNIQUE:
        told = await client.claim(name, "bob", 2)
        await client.repeat(name, told, key="once more")
        await client.ack(name, told[:1])
        await client.append(name, 2)
        await client.delete(name, before=4)
    await trio.sleep(0.4)
    await client.look()


async def in_order(life: Life, client: Client) -> None:
    """An order of keys begins beside leases; jobs end one after the other, and another checkpoint is taken."""
    for name in QUEUES:
        await client.topic(name, order_by="tag")
        await client.append(name, 3, tag="a")
        await client.ack(name, held(client, name)[:3])
        await client.nack(name, await client.claim(name, "bob", 3), delay_ms=100)
    await checkpoint(life)
    await trio.sleep(0.2)
    for name in QUEUES:
        await client.ack(name, await client.claim(name, "cid", 3))
        await client.claim(name, "dan", 3)
    await trio.sleep(0.1)
    await client.look()


# ----------------------------------------------------------------- starts and stops


async def shifts(life: Life, client: Client) -> None:
    """Everything that workers do, before a checkpoint and behind it."""
    await poison(life, client)
    await client.queue("jobs", durability="disk", leases_durable=True)
    await one_shift(client, "jobs")
    await checkpoint(life)
    for name in QUEUES:
        await client.nack(name, held(client, name)[:2])
    await client.claim("plain", "bob")
    await client.ack("jobs", await client.claim("jobs", "fay", 2))


async def a_shift(life: Life, client: Client) -> None:
    """What workers do at one queue, with a dead-letter topic, before a checkpoint and behind it."""
    await client.queue("jobs", durability="disk", leases_durable=True, max_deliveries=2, dead_letter="dead")
    await one_shift(client, "jobs")
    await checkpoint(life)
    await client.nack("jobs", await client.claim("jobs", "fay", 2))


async def closing_time(life: Life, client: Client) -> None:
    """The daemon is told to stop while a stream waits, leases hold, and jobs are being moved."""

    async def take() -> None:
        async with client.stream("plain", "bob", 2) as following:
            while not client.history.asked[-1].refused:
                await following()

    for name in QUEUES:
        await client.nack(name, held(client, name)[:2])
    async with trio.open_nursery() as workers:
        workers.start_soon(take)
        workers.start_soon(client.claim, "durable", "cid", 2)
        await trio.sleep(0.003)
        life.engine.start_draining()


def start_after(end: End) -> Operation:
    """A start on leases, which is crashed from its first operation on."""
    return Operation(
        f"recovery-of-jobs-after-{end}",
        (2, 6, 26),
        LEASES,
        PagedQueueSweep,
        SMALL,
        nothing,
        from_start=True,
        earlier=(Earlier(shifts, end),),
        how=stepping,
    )


# ----------------------------------------------------------------- the rows


def row(name: str, rules: tuple[int, ...], script: Script, before: Script, **more: Any) -> Operation:
    """A row about a life of queues; after every second crash or so the wall clock is set."""
    config = more.pop("config", ROOMY)
    return Operation(name, rules, LEASES, PagedQueueSweep, config, script, before, how=stepping, **more)


JOB_OPERATIONS = (
    row("claim", (6, 25), claiming, three_queues),
    row("ack", (6, 11), acking, with_leases()),
    row("nack", (6, 25), nacking, with_leases()),
    row("extend", (25,), extending, with_leases()),
    row("cancel-and-retry-jobs", (6, 11), changing, with_leases()),
    row("lease-runs-out", (6,), running_out, with_leases(300)),
    row("release", (25,), releasing, three_queues),
    row("checkpoint-of-leases", (8,), checkpointing, with_leases()),
    row("clock-of-leases", (6, 8), an_hour_apart, nothing),
    row("take-leased-jobs-away", (6, 11), taking_away, with_leases()),
    row("change-class-of-queue", (24,), changing_class, with_leases()),
    row("work-off-segments", (11, 12), working_off_segments, in_segments, config=SMALL),
    row("dead-letter", (26,), burying, poison, config=replace(ROOMY, wal_shards=2)),
    row("dead-letter-over-shards", (26,), one_move, nothing, config=replace(ROOMY, wal_shards=3)),
    row("plan-jobs", (6, 25, 26), planning, poison),
    row("unique-jobs", (6, 8, 11), repeating, unique_queues),
    row("jobs-in-order", (6, 25), in_order, with_leases()),
    row("stop-with-leases", (1, 26), closing_time, poison, end="stop"),
    start_after("kill"),
    start_after("drop"),
    start_after("reorder"),
    row(
        "shards-of-jobs-2-to-1",
        (14,),
        nothing,
        nothing,
        from_start=True,
        earlier=(Earlier(a_shift, "kill", replace(ROOMY, wal_shards=2)),),
    ),
)
