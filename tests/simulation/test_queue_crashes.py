"""Crash everywhere, with queues: workers of every kind at queues of every class, poison jobs, dead-letter topics, caps,
deletions, changes of class, routers, checkpoints, reclaim and relocation, and a wall clock that is set while the daemon
is down (`docs/spec/semantics.md` 6 and 8, `docs/spec/crash.md` 6, 8, 24 to 26).

As in `test_crash_sweep`, a run takes a sample of the points; `-m slow` a larger one; with TOPICS_TEST_EVERYTHING=1 in
the environment it takes all of them, which is hours.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.clock import BASE_MS
from tests.simulation.disk import Fault
from tests.simulation.lives import CLASSES, TAGS
from tests.simulation.model import numbered
from tests.simulation.queue_clients import Client, Script, Told
from tests.simulation.queue_lives import QueueSweep, empty, see
from tests.simulation.queue_oracle import Oracle
from tests.simulation.queue_state import Kept, kept_by, nobody_moves, shown_by
from tests.simulation.router_lives import SMALL
from tests.simulation.segment_lives import checkpoint, exactly, maintenance, reclaim, relocate
from tests.simulation.world import End, Life, all_ends, some_ends
from topics.config import Settings
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, ConsumerStart, GroupPatch, Performance, TopicConfigPatch
from topics.queue import job_pages
from topics.storage.snapshots import queue_dump

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _tiny_pages() -> Iterator[None]:
    """A few jobs are many pages, dumped while the loop goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_pages, "PAGE", 4)
        patch.setattr(queue_dump, "LARGE_PAGES", 1)
        yield


HOUR_MS = 3_600_000
STEPS = (0, 0, 0, -HOUR_MS, 3000, 0, HOUR_MS)
"""By how much the wall clock is set before a restart."""

STORED = CLASSES[1:]

# ----------------------------------------------------------------- scenarios


async def fill(client: Client, name: str, batches: int, *, each: int = 2, size: int = 30) -> None:
    """Batches of jobs with tags in turn."""
    for i in range(batches):
        await client.append(name, each, size=size, tag=TAGS[i % 4])


async def one_shift(client: Client, name: str, *, lease_ms: int = 20_000) -> None:
    """Everything that workers do, once: of ten jobs four are done, the others are in every state that there is."""
    await fill(client, name, 5)
    first = await client.claim(name, "ann", 5, lease_ms=lease_ms)
    await client.ack(name, first[:1])
    await client.nack(name, first[1:2])
    await client.nack(name, first[2:3], delay_ms=4000)
    await client.extend(name, first[3:4], lease_ms=40_000)
    second = await client.claim(name, "bob", 3, lease_ms=300)
    await client.ack(name, second[:2])
    await client.ack(name, [told._replace(node="eve") for told in first[3:]])
    await client.ack(name, [told._replace(lease_id=told.lease_id + 1) for told in second[2:]])
    await trio.sleep(0.4)
    await client.ack(name, second[2:])
    third = await client.claim(name, "cid", 2)
    await client.ack(name, third[:1])


async def every_class(life: Life, client: Client) -> None:
    """A shift at queues of every class, leases durable and not."""
    names = []
    for durability in CLASSES:
        for durable in (False, True):
            names.append(f"{durability}-{'durable' if durable else 'plain'}")
            await client.queue(names[-1], durability=durability, leases_durable=durable)
    async with trio.open_nursery() as workers:
        for name in names:
            workers.start_soon(one_shift, client, name)
        workers.start_soon(checkpoint, life)
    await client.look()
    for name in names:
        await client.ack(name, await client.claim(name, "dan", 2))
    await checkpoint(life)
    await client.look()


def poisoned(target: dict[str, Any], *classes: str) -> Script:
    """Jobs that nobody can do, with a dead-letter topic for each queue."""

    async def give_up(client: Client, name: str) -> None:
        await fill(client, name, 3)
        for around in range(3):
            jobs = await client.claim(name, "ann", 3, lease_ms=200 if around == 1 else 20_000)
            await client.nack(name, jobs[:2] if around % 2 == 0 else jobs[:1], delay_ms=100 * around)
            await trio.sleep(0.25)
        await client.claim(name, "bob", 2)
        await client.look(name)

    async def script(life: Life, client: Client) -> None:
        names = []
        for i, durability in enumerate(classes):
            name = f"{durability}-{'durable' if i % 2 else 'plain'}"
            names.append(name)
            await client.topic(f"dead-{name}", **target)
            await client.queue(
                name,
                durability=durability,
                leases_durable=bool(i % 2),
                max_deliveries=1 + i // 2,
                dead_letter=f"dead-{name}",
            )
        async with trio.open_nursery() as workers:
            for name in names:
                workers.start_soon(give_up, client, name)
            workers.start_soon(maintenance, life)
        await client.look()
        await trio.sleep(0.4)
        async with trio.open_nursery() as workers:
            for name in names:
                workers.start_soon(client.claim, name, "cid", 5)
            workers.start_soon(checkpoint, life)
        await trio.sleep(0.2)
        await client.topic(names[0], dead_letter=None)
        await client.topic(names[1], max_deliveries=5)
        await client.claim(names[0], "dan", 5)
        await checkpoint(life)
        await client.look()

    return script


async def streams(life: Life, client: Client) -> None:
    """Streams that take jobs, end some, and end."""
    names = ("disk", "fsync", "memory")
    for name in names:
        await client.queue(name, durability=name, leases_durable=name != "disk", claim_jitter_ms=5)

    async def take(name: str, node: str, rounds: int) -> None:
        async with client.stream(name, node, 3) as following:
            for _ in range(rounds):
                with trio.move_on_after(1):
                    jobs = await following()
                    await client.ack(name, jobs[:2])
                    await client.nack(name, jobs[2:], delay_ms=50)

    async with trio.open_nursery() as workers:
        for name in names:
            workers.start_soon(take, name, "ann", 3)
            workers.start_soon(take, name, "bob", 2)
            workers.start_soon(fill, client, name, 4)
        workers.start_soon(checkpoint, life)
    for name in names:
        async with client.stream(name, "cid", 4) as following:
            await client.append(name, 3)
            await following()
            await checkpoint(life)
        await client.claim(name, "dan", 2)
    await client.look()


async def taken_away(life: Life, client: Client) -> None:
    """Jobs that are leased, delayed or parked are deleted, evicted, or expire."""
    await client.queue("capped", durability="fsync", leases_durable=True, cap_records=6)
    await client.queue("small", durability="disk", leases_durable=True, cap_bytes=300)
    await client.queue("brief", durability="disk", leases_durable=True, ttl_ms=600)
    await client.queue("cut", durability="fsync", leases_durable=True, max_deliveries=1, dead_letter="dead")
    await client.queue("matched", durability="memory", leases_durable=True)
    names = ("capped", "small", "brief", "cut", "matched")

    async def lease(name: str) -> None:
        await fill(client, name, 3)
        jobs = await client.claim(name, "ann", 4)
        await client.nack(name, jobs[:1], delay_ms=5000)
        await client.nack(name, jobs[1:2])
        await client.claim(name, "bob", 1)

    async with trio.open_nursery() as workers:
        for name in names:
            workers.start_soon(lease, name)
    await checkpoint(life)
    async with trio.open_nursery() as workers:
        workers.start_soon(fill, client, "capped", 3)
        workers.start_soon(fill, client, "small", 3)
        workers.start_soon(client.claim, "capped", "cid", 3)
        workers.start_soon(client.claim, "small", "cid", 3)
    await client.delete("cut", before=4)
    await client.delete("matched", match=exactly("a"))
    await trio.sleep(0.7)
    await client.append("brief", 2)
    await client.claim("brief", "dan")
    await client.look()
    await client.delete("matched", match=TagMatch("", prefix=True))
    await client.topic("capped", cap_records=3)
    await reclaim(life)
    await checkpoint(life)
    for name in names:
        await client.ack(name, await client.claim(name, "eli", 2))
    await client.look()


async def in_order(life: Life, client: Client) -> None:
    """Jobs in order for each key that are done, fail, are given up, deleted and evicted, from memory and segments; and
    an order that begins and ends while jobs are leased."""
    names = ("plain", "durable", "loose", "capped")
    for name, durability in zip(names, ("disk", "fsync", "memory", "disk"), strict=True):
        await client.queue(
            name,
            durability=durability,
            leases_durable=name == "durable",
            order_by="tag",
            max_deliveries=2,
            dead_letter="dead",
            cap_records=8 if name == "capped" else 0,
        )

    async def work(name: str, node: str) -> None:
        for around in range(4):
            jobs = await client.claim(name, node, 3, lease_ms=200 if around == 1 else 20_000)
            await client.ack(name, jobs[:1])
            await client.nack(name, jobs[1:2], delay_ms=100 * around)
            await trio.sleep(0.12)

    for _ in range(2):
        async with trio.open_nursery() as workers:
            for name in names:
                workers.start_soon(fill, client, name, 5)
                workers.start_soon(work, name, "ann")
                workers.start_soon(work, name, "bob")
            workers.start_soon(maintenance, life)
        await client.look()
        await client.delete("plain", match=exactly("a"))
        await client.delete("durable", before=3)
    await client.topic("plain", order_by=None)
    await client.claim("plain", "cid", 3)
    await client.topic("plain", order_by="tag")
    await client.ack("plain", await client.claim("plain", "dan", 3))
    await checkpoint(life)
    await client.look()


def changing(*changes: str) -> Script:
    """Queues that change their class, and what else is configured, while jobs are leased, delayed and parked."""

    async def script(life: Life, client: Client) -> None:
        await client.topic("dead", durability="disk", cap_records=1, discard="reject")
        for name in ("plain", "durable"):
            await client.queue(
                name, durability="disk", leases_durable=name == "durable", max_deliveries=2, dead_letter="dead"
            )
            await fill(client, name, 5)
        for i, durability in enumerate(changes):
            for name in ("plain", "durable"):
                jobs = await client.claim(name, "ann", 4)
                await client.nack(name, jobs[:2])
                await client.ack(name, jobs[2:3])
                jobs = await client.claim(name, "bob", 2, lease_ms=200)
                await client.nack(name, jobs[:1])
                await client.claim(name, "cid", 2)
                async with trio.open_nursery() as both:
                    both.start_soon(fill, client, name, 2)
                    both.start_soon(client.claim, name, "dan", 1)
                    if i % 2:
                        both.start_soon(checkpoint, life)
                    await client.topic(name, durability=durability)
                await client.claim(name, "eli", 1)
            if i == 1:
                await client.topic("durable", dead_letter=None)
                await client.topic("plain", leases_durable=True)
            if i == 2:
                await client.topic("durable", dead_letter="dead")
            await client.look()
        await maintenance(life)
        for name in ("plain", "durable"):
            await client.ack(name, await client.claim(name, "fay", 2))
        await client.look()

    return script


async def routed(life: Life, client: Client) -> None:
    """Jobs that come by a router, and a router that takes what is in a queue further."""
    await client.topic("source", durability="disk")
    for name, durability in (("jobs", "fsync"), ("more", "memory")):
        await client.queue(
            name, durability=durability, leases_durable=name == "jobs", max_deliveries=1, dead_letter="dead"
        )
        await client.router(f"source>{name}", "source", name)
    await client.topic("log", durability="disk")
    await client.router("jobs>log", "jobs", "log")
    await client.router("dead>made", "dead", "made")
    await fill(client, "source", 4)
    for name in ("jobs", "more"):
        jobs = await client.claim(name, "ann", 5)
        await client.ack(name, jobs[:2])
        await client.nack(name, jobs[2:4])
        await client.claim(name, "bob", 2)
    await checkpoint(life)
    await fill(client, "source", 3)
    await client.append("jobs", 2)
    await client.look()
    await client.delete("source", before=9)
    await maintenance(life)
    for name in ("jobs", "more"):
        await client.ack(name, await client.claim(name, "cid", 4))
    await trio.sleep(0.3)
    await client.look()


async def comings_and_goings(life: Life, client: Client) -> None:
    """Queues and dead-letter topics that are deleted and made again under their workers."""

    async def make(durability: str) -> None:
        await client.queue(
            "jobs", durability=durability, leases_durable=True, max_deliveries=1, dead_letter="dead", lease_ms=5000
        )

    async def take() -> None:
        async with client.stream("jobs", "stream", 2) as following:
            with trio.move_on_after(2):
                await following()
                await trio.sleep(0.2)

    for durability in ("disk", "fsync", "disk"):
        await make(durability)
        await fill(client, "jobs", 3)
        jobs = await client.claim("jobs", "ann", 3)
        await client.nack("jobs", jobs[:2])
        async with trio.open_nursery() as workers:
            workers.start_soon(take)
            workers.start_soon(client.claim, "jobs", "bob", 2)
            workers.start_soon(checkpoint, life)
            await trio.sleep(0.05)
        await client.look()
        await client.delete_topic("dead" if durability == "fsync" else "jobs")
        await client.ack("jobs", jobs[2:])
    await make("fsync")
    await fill(client, "jobs", 2)
    await client.nack("jobs", await client.claim("jobs", "cid", 2))
    await client.claim("jobs", "dan", 2)
    await reclaim(life)
    await client.look()


async def from_segments(life: Life, client: Client) -> None:
    """Jobs that lie in segments, some of them cold, with leases that go on over one checkpoint after another."""
    for name, durability in (("jobs", "fsync"), ("loose", "disk")):
        await client.queue(
            name, durability=durability, leases_durable=name == "jobs", max_deliveries=2, dead_letter="dead"
        )
        await fill(client, name, 14)
    await checkpoint(life)
    await relocate(life)
    kept: dict[str, tuple[Told, ...]] = {}
    for name in ("jobs", "loose"):
        kept[name] = await client.claim(name, "ann", 12)
        await client.ack(name, kept[name][::2])
        await client.nack(name, kept[name][1::4], delay_ms=1000)
    await maintenance(life)
    for name in ("jobs", "loose"):
        await client.extend(name, kept[name][3::4], lease_ms=30_000)
        await client.ack(name, await client.claim(name, "bob", 9))
    await client.delete("jobs", match=exactly("b"))
    async with trio.open_nursery() as both:
        both.start_soon(maintenance, life)
        both.start_soon(fill, client, "jobs", 3)
    await client.look()
    for name in ("jobs", "loose"):
        await client.ack(name, await client.claim(name, "cid", 20))
    await maintenance(life)
    await client.look()


def at_random(seed: int) -> Script:
    """A few queues, workers that do anything to them, and all kinds of work beside them."""

    async def script(life: Life, client: Client) -> None:
        rng = random.Random(seed)
        if rng.random() < 0.4 and not client.history.began:
            await client.queue("dead", durability=rng.choice(STORED), max_deliveries=1, dead_letter="deader")
        names = [f"q{i}" for i in range(3)]
        for name in names:
            if name not in life.engine.registry.topics:
                await make(client, name, rng)

        async def anything(name: str, rng: random.Random) -> None:
            mine: list[Told] = []
            for _ in range(rng.randrange(10, 20)):
                await one_thing(client, name, mine, rng)
                if rng.random() < 0.2:
                    await trio.sleep(rng.choice((0.001, 0.02, 0.3)))

        async def work() -> None:
            for _ in range(3):
                await trio.sleep(rng.choice((0.005, 0.05, 0.3)))
                for one in (checkpoint, reclaim, relocate):
                    if rng.random() < 0.6:
                        await one(life)

        async with trio.open_nursery() as clients:
            for name in names:
                clients.start_soon(anything, name, random.Random(rng.random()))
                clients.start_soon(anything, name, random.Random(rng.random()))
            clients.start_soon(work)
        await client.look()

    return script


async def make(client: Client, name: str, rng: random.Random) -> None:
    """A queue of any kind."""
    await client.queue(
        name,
        durability=rng.choice(CLASSES),
        leases_durable=rng.random() < 0.6,
        max_deliveries=rng.choice((0, 1, 2)),
        dead_letter=rng.choice((None, "dead")),
        claim_jitter_ms=rng.choice((0, 0, 3)),
        order_by="tag" if name == "q1" else None,
    )


async def one_thing(client: Client, name: str, mine: list[Told], rng: random.Random) -> None:
    """One random request about a queue."""
    kinds = ("append", "claim", "ack", "nack", "extend", "stream", "delete", "configure", "recreate", "look")
    kind = rng.choices(kinds, (25, 30, 16, 14, 6, 4, 4, 6, 1, 5))[0]
    if rng.random() < 0.05:  # somebody hangs up
        with trio.move_on_after(rng.choice((0.0001, 0.001, 0.01))):
            await client.claim(name, "gone", 3, wait_ms=50)
    node = f"n{rng.randrange(1000)}"
    chosen = [mine.pop(rng.randrange(len(mine)))] if mine and kind in ("ack", "nack", "extend") else []
    if kind == "append":
        await client.append(name, rng.choice((1, 2, 5)), size=rng.choice((1, 30, 300)), tag=rng.choice(TAGS))
    elif kind == "claim":
        lease_ms, wait_ms = rng.choice((100, 5000, 20_000)), rng.choice((0, 0, 100))
        mine += await client.claim(name, node, rng.choice((1, 2, 4)), lease_ms=lease_ms, wait_ms=wait_ms)
    elif kind == "ack":
        await client.ack(name, chosen)
    elif kind == "nack":
        await client.nack(name, chosen, delay_ms=rng.choice((0, 0, 100, 5000)))
    elif kind == "extend":
        await client.extend(name, chosen, lease_ms=rng.choice((100, 5000, 30_000)))
        mine += chosen
    elif kind == "stream":
        async with client.stream(name, node, 2) as following:
            with trio.move_on_after(0.1):
                await client.ack(name, (await following())[:1])
    elif kind == "delete" and rng.random() < 0.5:
        await client.delete(name, before=rng.randrange(1, 12))
    elif kind == "delete":
        await client.delete(name, match=TagMatch(rng.choice("ab"), prefix=rng.random() < 0.5))
    elif kind == "configure":
        field, values = rng.choice(CHANGES)
        await client.topic(name, **{field: rng.choice(values)})
    elif kind == "recreate":
        await client.delete_topic(name)
        await make(client, name, rng)
    elif kind == "look":
        await client.look(name)


CHANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("durability", CLASSES),
    ("cap_records", (0, 6)),
    ("dead_letter", (None, "dead")),
    ("max_deliveries", (0, 1, 2)),
    ("leases_durable", (False, True)),
    ("claim_jitter_ms", (0, 3)),
    ("ttl_ms", (0, 400)),
)

SCENARIOS: dict[str, tuple[Script, Settings]] = {
    "every-class": (every_class, SMALL),
    "poison-to-disk": (poisoned({"durability": "disk"}, *CLASSES), SMALL),
    "poison-to-memory": (poisoned({"durability": "memory"}, *STORED, "fsync"), replace(SMALL, wal_shards=3)),
    "poison-to-a-full-queue": (
        poisoned({"type": "queue", "durability": "fsync", "cap_records": 2, "discard": "reject"}, *STORED, "disk"),
        SMALL,
    ),
    "streams": (streams, SMALL),
    "taken-away": (taken_away, SMALL),
    "changing-class": (changing("fsync", "memory", "disk"), replace(SMALL, wal_shards=1)),
    "changing-to-ephemeral": (changing("ephemeral", "fsync", "ephemeral", "memory"), SMALL),
    "routed": (routed, SMALL),
    "comings-and-goings": (comings_and_goings, SMALL),
    "from-segments": (from_segments, SMALL),
    "in-order": (in_order, SMALL),
}


def swept(name: str, *, stride: int, seed: int = 0, end: str = "kill") -> QueueSweep:
    """A scenario that has been run."""
    script, config = SCENARIOS[name]
    sweep = QueueSweep(config, seed)
    sweep.live(script, stride=stride, end=end)
    return sweep


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_promise_about_jobs_is_broken_by_a_crash_at_a_sample_of_the_operations(name: str) -> None:
    sweep = swept(name, stride=307)
    sweep.judge_stepping(lambda point: some_ends(point, 1), STEPS)
    print(f"{name}: {sweep}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_promise_about_jobs_is_broken_by_a_crash_at_any_operation(name: str) -> None:
    sweep = swept(name, stride=1 if EVERYTHING else 167, seed=1)
    sweep.judge_stepping(lambda point: all_ends(point, 1) if EVERYTHING else some_ends(point, 2), STEPS)
    print(f"{name}: {sweep}")


def random_lives(seed: int, *, stride: int) -> None:
    """One to three lives with random requests, ended in one way or another, and a sample of the crashes in them."""
    sweep = QueueSweep(replace(SMALL, wal_shards=1 + seed % 3), seed)
    step = random.Random(seed).choice(STEPS) if seed % 4 == 3 else 0
    sweep.live_at_random(at_random, stride=stride, step=step)
    sweep.judge_stepping(lambda point: some_ends(point, 1), STEPS)
    print(f"seed {seed}: {sweep}")


@pytest.mark.parametrize("seed", range(2))
def test_no_promise_about_jobs_is_broken_by_workers_that_do_anything(seed: int) -> None:
    random_lives(seed, stride=211)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 80 if EVERYTHING else 12))
def test_no_promise_about_jobs_is_broken_by_many_more_of_them(seed: int) -> None:
    random_lives(seed, stride=13 if EVERYTHING else 293)


def crash_in_recovery(name: str, *, first: int, stride: int) -> None:
    """Recover, crash in the middle of that, recover again."""
    sweep = swept(name, stride=first)
    sweep.judge_recoveries(stride=stride)
    print(f"{name}: {sweep}")


@pytest.mark.parametrize("name", ["poison-to-disk"])
def test_rule_2_a_crash_in_the_recovery_of_queues_decides_nothing_anew(name: str) -> None:
    crash_in_recovery(name, first=307, stride=11)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_rule_2_any_crash_in_the_recovery_of_queues_decides_nothing_anew(name: str) -> None:
    crash_in_recovery(name, first=37 if EVERYTHING else 401, stride=1 if EVERYTHING else 23)


@pytest.mark.parametrize("end", ["stop", "drop", pytest.param("kill", marks=pytest.mark.slow)])
def test_lives_in_a_row_keep_what_the_earlier_ones_have_promised(end: End) -> None:
    """Leases of one life hold in the next, and count there."""
    sweep = QueueSweep()
    sweep.live(every_class, collect=False, end=end)
    sweep.live(every_class, stride=401, end=end)
    sweep.judge_stepping(lambda point: some_ends(point, 1), STEPS)
    print(f"lives ended by {end}: {sweep}")


async def a_look(life: Life, client: Client) -> None:
    """Nothing but what the start does."""
    await client.look()


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_rule_14_leases_hold_in_another_number_of_shards(shards: int) -> None:
    sweep = QueueSweep(replace(SMALL, wal_shards=2))
    sweep.live(every_class, collect=False, end="kill")
    sweep.live(a_look, stride=1 if EVERYTHING else 23, config=replace(SMALL, wal_shards=shards))
    sweep.judge_stepping(lambda point: some_ends(point, 1), STEPS)
    print(f"{shards} shards: {sweep}")


async def a_day(life: Life, client: Client) -> None:
    """What a disk that fails is tried with."""
    for name, durability in (("jobs", "fsync"), ("more", "disk"), ("loose", "memory")):
        await client.queue(
            name, durability=durability, leases_durable=name != "more", max_deliveries=2, dead_letter="dead"
        )
    async with trio.open_nursery() as workers:
        for name in ("jobs", "more", "loose"):
            workers.start_soon(one_shift, client, name)
        workers.start_soon(checkpoint, life)
    for name in ("jobs", "more", "loose"):
        for node in ("fay", "gil"):
            await client.nack(name, await client.claim(name, node, 3))
    await trio.sleep(0.1)
    await client.look()


def faulty(nth: int) -> None:
    """A sync of the log fails, or a write."""
    name = "fdatasync" if nth % 3 else "pwrite"
    sweep = QueueSweep(replace(SMALL, wal_shards=1 + nth % 2))
    sweep.live_with(a_day, Fault(error=errno.EIO, name=name, path="*.log", nth=nth, keep_some=name == "fdatasync"))
    sweep.judge_end(("kill", "drop", "reorder"))


@pytest.mark.parametrize("nth", [14, 21])
def test_of_a_failed_shard_nothing_is_lost_that_was_promised_and_nobody_holds_what_another_does(nth: int) -> None:
    faulty(nth)


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(60) if EVERYTHING else range(5, 50, 4))
def test_of_a_failed_shard_nothing_is_lost_wherever_it_fails(nth: int) -> None:
    faulty(nth)


async def overtime(life: Life, client: Client) -> None:
    """The daemon is told to stop while streams and claims wait, leases hold, and poison jobs are being moved."""

    async def take(name: str, node: str) -> None:
        async with client.stream(name, node, 4) as following:
            while not client.history.asked[-1].refused:
                await following()

    names = ("disk", "fsync", "memory")
    for name in names:
        await client.queue(name, durability=name, leases_durable=name != "disk", max_deliveries=1, dead_letter="dead")
        await client.append(name, 3)
        await client.nack(name, await client.claim(name, "ann", 2))
    async with trio.open_nursery() as workers:
        for name in names:
            workers.start_soon(take, name, "bob")
            workers.start_soon(partial(client.claim, name, "cid", 2, wait_ms=20_000))
            workers.start_soon(partial(client.claim, name, "dan", 2, wait_ms=20_000))
            workers.start_soon(client.append, name, 2)
        await trio.sleep(0.003)
        began = trio.current_time()
        life.engine.start_draining()
    assert trio.current_time() - began < 1, "somebody waits on while the daemon stops"


@pytest.mark.parametrize("seed", range(2))
def test_a_stop_in_the_middle_of_work_loses_nothing(seed: int) -> None:
    sweep = QueueSweep(SMALL, seed)
    sweep.live(overtime, stride=61, end="stop")
    sweep.judge_all(lambda point: some_ends(point, 1))
    sweep.judge_world(sweep.machine(seed), sweep.oracle_now(), "stop", "drop")


def slowly(seed: int, *, stride: int) -> None:
    """Random requests on a disk so slow that leases and delays are over while what was decided about them is on its
    way."""
    sweep = QueueSweep(replace(SMALL, wal_shards=1 + seed % 2), seed)
    rng = random.Random(seed)
    sweep.slow_down(lambda: rng.choice((0, 0, 30, 120)))
    sweep.live(at_random(1000 + seed), stride=stride)
    sweep.judge_stepping(lambda point: some_ends(point, 1), STEPS)
    print(f"seed {seed}: {sweep}")


def test_nobody_holds_what_another_does_where_the_disk_is_slow() -> None:
    slowly(0, stride=211)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 40 if EVERYTHING else 4))
def test_nobody_holds_what_another_does_wherever_the_disk_is_slow(seed: int) -> None:
    slowly(seed, stride=13 if EVERYTHING else 151)


# ----------------------------------------------------------------- a disk that forgets


@pytest.mark.parametrize("name", ["every-class", "from-segments"])
def test_leases_come_out_of_the_older_snapshot_where_the_newest_is_damaged(name: str) -> None:
    sweep = swept(name, stride=10**6)
    fs = sweep.world.fs
    newest = max(path for path in fs.tree() if path.startswith("/data/meta/snapshot"))
    fs.flip_bit(newest, len(fs.tree()[newest] or b"") // 2, 1)
    sweep.judge_world(sweep.world, sweep.oracle_now(), "kill", "drop")


def salvaged(seed: int) -> None:
    """A damaged log: what is left of leases is consistent, and every job that is left comes to somebody."""
    rng = random.Random(seed)
    sweep = swept(rng.choice(["every-class", "poison-to-disk", "changing-class"]), stride=10**6, seed=seed)
    logs = {path: content for path, content in sweep.world.fs.tree().items() if content and path.endswith(".log")}
    path = rng.choice(sorted(logs))
    sweep.world.fs.flip_bit(path, rng.randrange(len(logs[path].rstrip(bytes(1)))), rng.randrange(8))
    config = replace(sweep.config, recovery="salvage")

    async def go_on(life: Life) -> None:
        begun, kept, now = life.clock.monotonic_ms(), kept_by(life), life.engine.registry.now_ms()
        with nobody_moves(life):
            start = await shown_by(life, kept, now)
        await empty(life, Oracle(sweep.history, 0), start, now, begun)

    for end in ("kill", "drop"):
        world = sweep.machine(seed, config).after(end)
        assert world.live(go_on)
        assert world.fs.open_files == 0


@pytest.mark.parametrize("seed", range(3))
def test_every_job_that_salvage_leaves_comes_to_somebody(seed: int) -> None:
    salvaged(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 200 if EVERYTHING else 15))
def test_every_job_that_salvage_leaves_comes_to_somebody_whatever_is_damaged(seed: int) -> None:
    salvaged(seed)


# ----------------------------------------------------------------- every operation of what is delicate


async def one_move(life: Life, client: Client) -> None:
    """Three jobs go to the dead-letter topic, one by one and together."""
    await client.topic("dead", durability="memory")
    await client.queue("jobs", durability="disk", leases_durable=True, max_deliveries=1, dead_letter="dead")
    await client.append("jobs", 4)
    jobs = await client.claim("jobs", "ann", 3)
    await client.nack("jobs", jobs[:2])
    await client.claim("jobs", "bob")
    await trio.sleep(0.1)
    await client.nack("jobs", jobs[2:])
    await client.claim("jobs", "cid")
    await trio.sleep(0.1)
    await client.look()


@pytest.mark.parametrize("shards", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_rule_26_a_crash_at_any_operation_leaves_a_poison_job_in_the_queue_or_in_the_dead_letter_topic_or_in_both(
    shards: int,
) -> None:
    sweep = QueueSweep(replace(SMALL, wal_shards=shards))
    sweep.live(one_move)
    torn: list[tuple[End, int]] = [("tear", seed) for seed in range(4)]  # between two frames of one write, too
    sweep.points = sweep.points if EVERYTHING else sweep.points[len(sweep.points) // 2 :]
    sweep.look_at_all(lambda point: [("kill", 0), ("drop", 0), *torn])
    sweep.points = sweep.points[:: 1 if EVERYTHING else 7]
    sweep.judge_all(lambda point: all_ends(point, 1) if EVERYTHING else some_ends(point, 1))


async def an_hour_apart(life: Life, client: Client) -> None:
    """Leases and a delay that the newest snapshot is an hour too old for."""
    await client.queue("jobs", durability="disk", leases_durable=True)
    await client.append("jobs", 10)
    await client.nack("jobs", await client.claim("jobs", "ann", 2))
    await checkpoint(life)
    life.clock.advance(HOUR_MS)
    jobs = await client.claim("jobs", "bob", 6, lease_ms=1000)
    await client.nack("jobs", jobs[:1], delay_ms=1000)
    await maintenance(life)


def test_no_lease_holds_longer_than_it_was_given_for_because_the_clock_was_set_back() -> None:
    """One out of a manifest that was newer than the snapshot held for as long as the clock was set back."""
    sweep = QueueSweep(replace(SMALL, wal_shards=1))
    sweep.live(an_hour_apart)
    late = [point for point in sweep.points if point.wreck.now_ms > BASE_MS + HOUR_MS - 1]
    sweep.points = late if EVERYTHING else late[::7]
    sweep.judge_stepping(lambda point: some_ends(point, 1), (-HOUR_MS,))


# ----------------------------------------------------------------- what reading and the sweeps have found


def test_rule_8_what_an_ephemeral_queue_has_moved_is_counted_once() -> None:
    """Its DeadLetterEvent frame was published, but not yet written, when a checkpoint came: the part had counted it,
    and said that it did not know of it."""

    def dead_lettered(turns: int) -> int:
        async def move(life: Life, client: Client) -> None:
            await client.topic("dead", durability="disk")
            await client.queue("jobs", durability="ephemeral", max_deliveries=1, dead_letter="dead")
            await client.append("jobs", 3)
            await client.nack("jobs", await client.claim("jobs", "ann", 3))
            async with trio.open_nursery() as both:
                both.start_soon(client.claim, "jobs", "bob")
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                await life.compactor.checkpoint()
            await trio.sleep(0.1)
            await client.look("jobs")

        sweep = QueueSweep(replace(SMALL, wal_shards=1))
        sweep.live(move, collect=False, end="keep")
        (saw,) = sweep.history.saw
        assert saw.state is not None
        assert saw.state.dead_lettered == 3
        return see(sweep.world).states["jobs"].dead_lettered

    assert {turns: dead_lettered(turns) for turns in range(24)} == dict.fromkeys(range(24), 3)


@pytest.mark.parametrize("seq", [1, 5])
def test_a_job_that_is_found_damaged_keeps_nobody_from_the_others(seq: int) -> None:
    """The one who was dealt it gave it back, so it was free, and the first that everybody was dealt after that."""

    async def stored(life: Life, client: Client) -> None:
        await client.queue("jobs", durability="disk")
        await client.append("jobs", 20)
        await maintenance(life)

    async def claimed(life: Life, client: Client) -> None:
        seqs = []
        for _ in range(25):
            seqs += [told.seq for told in await client.claim("jobs", "ann")]
        assert seqs == [there for there in range(1, 21) if there != seq]

    sweep = QueueSweep(replace(SMALL, wal_shards=1))
    sweep.live(stored, collect=False)
    (found,) = [
        (path, content.index(b'"n":%d,' % seq))
        for path, content in sweep.world.fs.tree().items()
        if content and path.endswith("01.data")
    ]
    sweep.world.fs.flip_bit(*found, 1)

    async def claim_the_rest(life: Life) -> None:
        await claimed(life, Client(life, sweep.history))

    assert sweep.world.live(claim_the_rest, end="kill")


@pytest.mark.parametrize("there", [False, True])
def test_rule_26_of_two_calls_that_would_make_a_dead_letter_topic_ephemeral_one_is_refused(there: bool) -> None:
    """Each was checked before the other had taken effect."""

    async def both_at_once(life: Life, client: Client) -> None:
        if there:
            await client.queue("jobs", durability="disk", max_deliveries=1)
            await client.topic("dead", durability="disk")
        async with trio.open_nursery() as both:
            both.start_soon(partial(client.queue, "jobs", max_deliveries=1, dead_letter="dead"))
            both.start_soon(partial(client.topic, "dead", durability="ephemeral"))
        topics = life.engine.registry.topics
        names = "jobs" in topics and topics["jobs"].config.dead_letter == "dead"
        assert not (names and "dead" in topics and topics["dead"].ephemeral)

    QueueSweep().live(both_at_once, collect=False)


def test_rule_26_a_call_that_is_not_waited_for_any_more_still_counts() -> None:
    """The change went on when its client hung up, and another one that does not go with it was let through."""

    def hang_up(turns: int) -> Script:
        async def script(life: Life, client: Client) -> None:
            await client.queue("jobs", durability="disk", max_deliveries=1)
            await client.topic("dead", durability="disk")
            async with trio.open_nursery() as caller:
                caller.start_soon(partial(client.topic, "jobs", dead_letter="dead"))
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                caller.cancel_scope.cancel()
            await client.topic("dead", durability="ephemeral")
            await trio.sleep(0.5)
            topics = life.engine.registry.topics
            assert not (topics["dead"].ephemeral and topics["jobs"].config.dead_letter == "dead")

        return script

    for turns in range(1, 12):
        QueueSweep().live(hang_up(turns), collect=False)


def test_rule_6_the_clock_does_not_go_back_behind_what_a_manifest_holds() -> None:
    """Frames that a manifest had made unnecessary were not asked for their time."""

    async def an_hour_later(life: Life, client: Client) -> None:
        await client.topic("brief", durability="fsync", ttl_ms=2 * HOUR_MS)
        await client.append("brief", 20)
        await checkpoint(life)
        life.clock.advance(HOUR_MS)
        await client.append("brief", 20)
        await client.look("brief")
        await checkpoint(life)

    sweep = QueueSweep(replace(SMALL, wal_shards=1))
    sweep.live(an_hour_later)
    behind = []
    for point in sweep.points:
        if point.wreck.known == len(sweep.history):
            world = point.wreck.world("drop", 0, sweep.config)
            world.clock.step(-HOUR_MS)
            if see(world).now < BASE_MS + HOUR_MS:
                behind.append(str(point.wreck))
    assert not behind


@pytest.mark.parametrize("what", ["jobs", "groups", "keys"])
def test_rule_24_the_clock_of_windows_does_not_go_back_behind_a_topic_that_has_left_ephemeral(what: str) -> None:
    """Nobody asked the frame for the times in it. A lease of such a queue ran for longer than it was given for, after a
    crash of the machine and a wall clock that was set back."""
    stood_at = []

    async def leave(life: Life, client: Client) -> None:
        engine = life.engine
        await client.topic("topic", durability="ephemeral", type="queue" if what == "jobs" else "log")
        if what == "groups":
            start = ConsumerStart(place="earliest")
            await engine.groups.put("topic", "group", GroupPatch(start=start, terms=TopicConfigPatch()), Performance())
        life.clock.advance(HOUR_MS)
        request = AppendRequest(records=list(numbered((1,), 30)), idempotency_key="key" if what == "keys" else None)
        await engine.appends.append("topic", request, Performance())
        if what == "jobs":
            await client.claim("topic", "ann", lease_ms=1000)
        await client.topic("topic", durability="fsync")
        stood_at.append(engine.registry.windows.now_ms())

    async def look(life: Life) -> None:
        assert life.engine.registry.windows.now_ms() >= stood_at[0]
        kept = kept_by(life).get("topic", Kept(0, 0, {}))
        assert all(job.time - life.engine.registry.now_ms() <= 1000 for job in kept.jobs.values())
        assert life.engine.registry.topics["topic"].log.count == 1

    sweep = QueueSweep(replace(SMALL, wal_shards=1))
    sweep.live(leave, collect=False, end="drop")
    sweep.world.clock.step(-HOUR_MS)
    assert sweep.world.live(look, end="kill")


# ----------------------------------------------------------------- what a crash has undone


async def acked_in_memory(life: Life, client: Client) -> None:
    """An ack that no sync covers, of a job whose claim was synced."""
    await client.queue("jobs", durability="memory", leases_durable=True)
    await client.append("jobs", 3)
    await client.ack("jobs", (await client.claim("jobs", "ann", 2))[:1])


async def claimed_in_memory(life: Life, client: Client) -> None:
    """A claim that no sync covers, of a job that is stored."""
    await client.queue("jobs", durability="memory")
    await client.append("jobs", 3)
    await checkpoint(life)
    await client.claim("jobs", "ann")


async def deleted_before_the_tick(life: Life, client: Client) -> None:
    """A deletion that no sync covers, of a job that is stored."""
    await client.queue("jobs", durability="disk")
    await client.append("jobs", 3)
    await checkpoint(life)
    await client.delete("jobs", before=2)


@pytest.mark.parametrize(
    ("script", "change"),
    [
        (acked_in_memory, {"durability": "fsync"}),
        (claimed_in_memory, {"durability": "fsync", "leases_durable": True}),
        (deleted_before_the_tick, {"claim_jitter_ms": 3}),
    ],
    ids=["ack", "claim", "deletion"],
)
def test_rule_2_what_a_crash_of_the_machine_has_undone_stays_undone(script: Script, change: dict[str, Any]) -> None:
    """Nothing had promised to keep it. A random history of queues was said to have broken a promise here: the oracle
    took a `memory` ack that the first crash had undone for one that the change to `fsync` in the next life had synced.
    """

    async def goes_on(life: Life, client: Client) -> None:
        await client.topic("jobs", **change)
        await client.append("jobs")

    sweep = QueueSweep(replace(SMALL, wal_shards=1))
    sweep.live(script, collect=False, end="drop")
    sweep.live(goes_on)
    (began,) = sweep.history.began
    assert sorted(began.shown.views["jobs"].records) == [1, 2, 3]
    kept = began.shown.kept["jobs"].jobs.get(1)
    assert (kept.deliveries if kept is not None else 0) == (script is acked_in_memory)
    sweep.judge_all(lambda point: [("kill", 0), ("drop", 0)])
