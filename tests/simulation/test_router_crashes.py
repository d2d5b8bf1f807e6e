"""Crash everywhere, with routers: copies from every class into every class, chains, fan-out, rings, mirrors, beside
deletions, caps, changes of class, checkpoints, reclaim and relocation (`docs/spec/crash.md` 15 to 22,
`docs/spec/semantics.md` 5 and 8).

As in `test_crash_sweep`, a run takes a sample of the points; `-m slow` a larger one; with TOPICS_TEST_EVERYTHING=1 in
the environment it takes all of them, which is hours.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.lives import CLASSES, TAGS
from tests.simulation.router_lives import (
    SMALL,
    Client,
    RouterSweep,
    Script,
    Shown,
    nobody_forwards,
    shown_by,
    until_idle,
)
from tests.simulation.segment_lives import checkpoint, exactly, maintenance, reclaim, relocate
from tests.simulation.world import End, Life, all_ends, some_ends
from topics.config import Settings
from topics.log.tag_match import TagMatch
from topics.storage.maintenance.work_slice import WorkSlice

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------- scenarios


async def fill(client: Client, name: str, batches: int, *, each: int = 2, size: int = 30) -> None:
    """Batches with everything that a record can have."""
    for i in range(batches):
        meta = {"m": "x" * i} if i % 3 == 2 else None
        await client.append(name, each, size=size, tag=TAGS[i % 4], node="n" if i % 2 else None, meta=meta)


async def every_class(life: Life, client: Client) -> None:
    """A source of each class, each with a dest of each class."""
    for source in CLASSES:
        await client.topic(source, durability=source)
    for source in CLASSES:
        for dest in CLASSES:
            await client.topic(f"{source}-{dest}", durability=dest)
            await client.router(f"r-{source}-{dest}", source, f"{source}-{dest}")
    async with trio.open_nursery() as clients:
        for source in CLASSES:
            clients.start_soon(fill, client, source, 2)
        clients.start_soon(checkpoint, life)
    for source in CLASSES:
        await client.append(f"{source}-disk", tag="direct")
        await client.append(f"{source}-fsync", tag="direct")
    await client.look()
    for source in CLASSES:
        await client.append(source, 2, tag="last")
    await client.look(*(f"{source}-fsync" for source in CLASSES), *(f"{source}-disk" for source in CLASSES))


def chains(*classes: str) -> Script:
    """A chain, a fan-out of it, two filters between the same topics, a mirror."""

    async def script(life: Life, client: Client) -> None:
        for i, name in enumerate("abcd"):
            await client.topic(name, durability=classes[i % len(classes)])
        await client.router("a>b", "a", "b")
        await client.router("b>c", "b", "c", preserve_node=False)
        await client.router("b>d1", "b", "d", filter=["tag", "Eq", "a"], guarantee="exactly_once")
        await client.router("b>d2", "b", "d", filter=["tag", "Glob", "a*"], guarantee="exactly_once")
        await client.topic("m", durability="fsync")
        await client.router("c>m", "c", "m", guarantee="exactly_once", preserve_tag=False)
        await fill(client, "a", 4)
        await client.look("c", "m")
        await client.append("b", 2, tag="a")
        await checkpoint(life)
        await fill(client, "a", 3)
        await client.delete("b", match=exactly("a"))
        await client.look()
        async with trio.open_nursery() as both:
            both.start_soon(checkpoint, life)
            both.start_soon(fill, client, "a", 3)
        await client.delete("a", before=6)
        await client.delete("m", before=3)
        await maintenance(life)
        await client.look()

    return script


async def ring(life: Life, client: Client) -> None:
    """Three topics in a ring, and two that mirror one another."""
    for name, durability in (("x", "disk"), ("y", "memory"), ("z", "fsync"), ("l", "fsync"), ("r", "disk")):
        await client.topic(name, durability=durability)
    for source, dest in ("xy", "yz", "zx"):
        await client.router(f"{source}>{dest}", source, dest, allow_cycle=True)
    for source, dest in ("lr", "rl"):
        await client.router(f"{source}>{dest}", source, dest, allow_cycle=True, guarantee="exactly_once")
    for _ in range(2):
        async with trio.open_nursery() as clients:
            for name in "xyzlr":
                clients.start_soon(fill, client, name, 2)
        await client.look()
        await checkpoint(life)
    await client.append("x", 3)
    await client.append("l", 3)
    await client.look()


async def retention(life: Life, client: Client) -> None:
    """Dests that refuse and dests that evict, sources that overtake their routers, ttl, deletions on both sides."""
    await client.topic("a", durability="disk", cap_records=6)
    await client.topic("old", durability="fsync", cap_records=4)
    await client.topic("full", durability="disk", cap_records=5, discard="reject")
    await client.topic("small", durability="fsync", cap_bytes=120, discard="reject")
    await client.topic("short", durability="disk", ttl_ms=300)
    for dest in ("old", "full", "small", "short"):
        await client.router(f"a>{dest}", "a", dest)
    await client.topic("brief", durability="memory", ttl_ms=200)
    await client.topic("kept", durability="fsync")
    await client.router("brief>kept", "brief", "kept")
    await fill(client, "a", 4)
    await fill(client, "brief", 3)
    await client.append("a", size=300)
    await client.look()
    await client.delete("full", before=4)
    await client.delete("small", match=exactly("a"))
    await trio.sleep(0.2)
    await checkpoint(life)
    await fill(client, "a", 4)
    await client.delete("a", match=exactly("b"))
    await fill(client, "brief", 2)
    await trio.sleep(0.4)
    await client.look()
    await client.delete("old", before=30)
    await client.append("a", 9)
    await client.topic("full", cap_records=30)
    await trio.sleep(1.1)
    await client.look()
    await maintenance(life)
    await client.append("a", 2)
    await client.look()


async def comings_and_goings(life: Life, client: Client) -> None:
    """Routers and topics that are deleted and made again, sources whose bytes are needed after they are gone."""
    for name, durability in (("a", "disk"), ("b", "fsync"), ("c", "memory"), ("d", "disk")):
        await client.topic(name, durability=durability)
    await client.router("a>b", "a", "b")
    await client.router("a>c", "a", "c", filter=["tag", "Eq", "a"])
    await client.router("c>d", "c", "d")
    await fill(client, "a", 4)
    await client.look()
    await client.delete_topic("a")
    await client.look("b", "c")
    await client.topic("a", durability="fsync")
    await client.router("a>b", "a", "b", **{"start": "earliest"})
    await fill(client, "a", 3)
    await client.router("a>b", "a", "b", filter=["tag", "Glob", "*"])
    await client.look("b")
    await checkpoint(life)
    await fill(client, "a", 4)
    await client.delete_router("a>b")
    await client.append("a", 2)
    await client.router("a>b", "a", "b")
    await client.append("a", 2, tag="a")
    await client.look()
    await client.delete_topic("b")
    await client.topic("b", durability="disk")
    await client.router("a>b", "a", "b", **{"start": "earliest"})
    await client.look()
    await client.delete_topic("a")
    await reclaim(life)
    await client.look()
    await maintenance(life)
    await client.look()


def changing(*changes: tuple[str, str]) -> Script:
    """A source and a dest that change their classes, beside a chain behind them."""

    async def script(life: Life, client: Client) -> None:
        await client.topic("a", durability="disk")
        await client.topic("b", durability="disk")
        await client.topic("c", durability="fsync")
        await client.topic("e", durability="ephemeral")
        await client.router("a>b", "a", "b")
        await client.router("b>c", "b", "c")
        await client.router("b>e", "b", "e")
        await fill(client, "a", 2)
        for i, (source, dest) in enumerate(changes):
            await client.look()
            async with trio.open_nursery() as both:
                both.start_soon(fill, client, "a", 2)
                if i % 2:
                    both.start_soon(checkpoint, life)
                await client.topic("a", durability=source)
                await client.append("a", 2)
                await client.topic("b", durability=dest)
            await client.append("b")
        await client.look()
        await maintenance(life)
        await fill(client, "a", 2)
        await client.look()

    return script


async def from_segments(life: Life, client: Client) -> None:
    """Copies made of segments that are rewritten, merged, moved and dropped, of a source that goes in the end."""
    await client.topic("a", durability="fsync")
    await client.topic("before", durability="ephemeral")
    for i in range(14):
        await client.append("a", 2, tag="dead" if i % 3 == 1 else "live", node="n" if i % 2 else None)
    await checkpoint(life)
    await client.delete("a", match=exactly("dead"))
    for dest, durability in (("b", "disk"), ("c", "fsync"), ("e", "ephemeral")):
        await client.topic(dest, durability=durability)
        await client.router(f"a>{dest}", "a", dest, start="earliest", preserve_tag=dest != "c")
    await client.topic("d", durability="memory")
    await client.router("b>d", "b", "d", start="earliest")
    await client.look()
    await reclaim(life)
    await relocate(life)
    await client.look()
    await client.delete("a", before=14)
    await checkpoint(life)
    await client.topic("late", durability="disk")
    await client.router("a>late", "a", "late", start="earliest", guarantee="exactly_once")
    await client.look("late")
    async with trio.open_nursery() as both:
        both.start_soon(reclaim, life)
        both.start_soon(fill, client, "a", 4)
    await client.look("late", "c")
    await client.router("late", "a", "late", start="earliest", guarantee="exactly_once")
    await client.look("late")
    await client.delete_topic("a")
    await reclaim(life)
    await client.look()
    await maintenance(life)
    await client.look()


def at_random(seed: int) -> Script:
    """A few topics with routers between them, clients that do anything to both, and all kinds of work beside them."""

    async def script(life: Life, client: Client) -> None:
        rng = random.Random(seed)
        names = [f"t{i}" for i in range(5)]
        for name in names:
            if name not in life.engine.registry.topics:
                await client.topic(name, durability=rng.choice(CLASSES))

        async def anything(name: str, rng: random.Random) -> None:
            for _ in range(rng.randrange(5, 12)):
                await one_thing(client, name, names, rng)
                if rng.random() < 0.2:
                    await trio.sleep(rng.choice((0.001, 0.02, 0.3)))

        async def work() -> None:
            for _ in range(4):
                await trio.sleep(rng.choice((0.005, 0.05, 0.3)))
                for one in (checkpoint, reclaim, relocate):
                    if rng.random() < 0.6:
                        await one(life)

        async with trio.open_nursery() as clients:
            for name in names:
                clients.start_soon(anything, name, random.Random(rng.random()))
            clients.start_soon(work)
        await client.look()

    return script


async def one_thing(client: Client, name: str, names: list[str], rng: random.Random) -> None:
    """One random request about a topic."""
    kinds = ("append", "router", "delete_router", "before", "match", "configure", "recreate", "look")
    kind = rng.choices(kinds, (40, 14, 3, 5, 5, 8, 2, 8))[0]
    if kind == "append":
        tag, node = rng.choice(TAGS), rng.choice((None, "n"))
        await client.append(name, rng.choice((1, 2, 5)), size=rng.choice((1, 30, 300)), tag=tag, node=node)
    elif kind == "router":
        dest = rng.choice([other for other in names if other > name]) if name < names[-1] else names[0]
        fields: dict[str, Any] = {"filter": rng.choice((None, None, ["tag", "Glob", "a*"]))}
        if rng.random() < 0.5:
            fields["preserve_tag"] = False
        await client.router(
            f"{name}>{dest}",
            name,
            dest,
            allow_cycle=True,
            # What goes around a ring again and again would be most of what there is.
            guarantee="exactly_once" if dest < name else rng.choice(("at_least_once", "exactly_once")),
            start=rng.choice(("tail", "earliest")),
            **fields,
        )
    elif kind == "delete_router":
        await client.delete_router(f"{name}>{rng.choice(names)}")
    elif kind == "before":
        await client.delete(name, before=rng.randrange(1, 20))
    elif kind == "match":
        await client.delete(name, match=TagMatch(rng.choice("ab"), prefix=rng.random() < 0.5))
    elif kind == "configure":
        if rng.random() < 0.7:
            await client.topic(name, durability=rng.choice(CLASSES))
        else:
            await client.topic(name, cap_records=rng.choice((0, 8, 20)))
    elif kind == "recreate":
        await client.delete_topic(name)
        await client.topic(name, durability=rng.choice(CLASSES))
    else:
        await client.look(name)


SCENARIOS: dict[str, tuple[Script, Settings]] = {
    "every-class": (every_class, SMALL),
    "chain-of-disk": (chains("disk"), SMALL),
    "chain-of-fsync-and-memory": (chains("fsync", "memory"), replace(SMALL, wal_shards=3)),
    "chain-of-all": (chains("ephemeral", "memory", "disk", "fsync"), SMALL),
    "ring": (ring, SMALL),
    "retention": (retention, SMALL),
    "comings-and-goings": (comings_and_goings, SMALL),
    "changing-class": (
        changing(("memory", "fsync"), ("fsync", "memory"), ("disk", "ephemeral"), ("disk", "disk")),
        SMALL,
    ),
    "changing-to-ephemeral": (
        changing(("ephemeral", "disk"), ("ephemeral", "ephemeral"), ("fsync", "ephemeral"), ("memory", "fsync")),
        replace(SMALL, wal_shards=3),
    ),
    "from-segments": (from_segments, SMALL),
}


def swept(name: str, *, stride: int, seed: int = 0, end: str = "kill") -> RouterSweep:
    """A scenario that has been run."""
    script, config = SCENARIOS[name]
    sweep = RouterSweep(config, seed)
    sweep.live(script, stride=stride, end=end)
    return sweep


@pytest.mark.parametrize("name", SCENARIOS)
def test_rules_16_to_20_no_promise_about_copies_is_broken_by_a_crash_at_a_sample_of_the_operations(name: str) -> None:
    sweep = swept(name, stride=307)
    sweep.judge_all(lambda point: some_ends(point, 1))
    print(f"{name}: {sweep}")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_rules_16_to_20_no_promise_about_copies_is_broken_by_a_crash_at_any_operation(name: str) -> None:
    sweep = swept(name, stride=1 if EVERYTHING else 191, seed=1)
    sweep.judge_all(lambda point: all_ends(point, 1) if EVERYTHING else some_ends(point, 2))
    print(f"{name}: {sweep}")


def random_lives(seed: int, *, stride: int) -> None:
    """One to three lives with random requests, ended in one way or another, and a sample of the crashes in them."""
    sweep = RouterSweep(replace(SMALL, wal_shards=1 + seed % 3), seed)
    sweep.live_at_random(at_random, stride=stride)
    sweep.judge_all(lambda point: some_ends(point, 1))
    print(f"seed {seed}: {sweep}")


@pytest.mark.parametrize("seed", range(2))
def test_no_promise_about_copies_is_broken_by_clients_that_do_anything(seed: int) -> None:
    random_lives(seed, stride=307)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 60 if EVERYTHING else 6))
def test_no_promise_about_copies_is_broken_by_many_more_of_them(seed: int) -> None:
    random_lives(seed, stride=19 if EVERYTHING else 401)


def crash_in_recovery(name: str, *, first: int, stride: int) -> None:
    """Recover, crash in the middle of that, recover again."""
    sweep = swept(name, stride=first)
    sweep.judge_recoveries(stride=stride)
    print(f"{name}: {sweep}")


@pytest.mark.parametrize("name", ["chain-of-fsync-and-memory"])
def test_rule_2_a_crash_in_the_recovery_of_copies_decides_nothing_anew(name: str) -> None:
    crash_in_recovery(name, first=307, stride=37)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_rule_2_any_crash_in_the_recovery_of_copies_decides_nothing_anew(name: str) -> None:
    crash_in_recovery(name, first=37 if EVERYTHING else 401, stride=1 if EVERYTHING else 31)


@pytest.mark.parametrize("end", ["stop", "drop"])
def test_lives_in_a_row_keep_what_the_earlier_ones_have_promised(end: str) -> None:
    """Rules 18 and 20: recipes and cursors are taken over by the next life, and the next checkpoint."""
    script, config = SCENARIOS["every-class"]
    sweep = RouterSweep(config)
    sweep.live(script, stride=997, end=end)
    for seed in (1, 2):
        sweep.live(later(seed), stride=601, end=end)
    sweep.judge_all(lambda point: some_ends(point, 1))
    print(f"lives ended by {end}: {sweep}")


def later(seed: int) -> Script:
    """What goes on in a life that finds topics and routers there already."""

    async def script(life: Life, client: Client) -> None:
        rng = random.Random(seed)
        for name in CLASSES:
            await client.append(name, 2, tag=rng.choice(TAGS))
        await client.look(*(f"{source}-fsync" for source in CLASSES))
        await checkpoint(life)
        for name in CLASSES:
            await client.append(name, 2, tag=rng.choice(TAGS))
        await client.look()

    return script


# ----------------------------------------------------------------- what reading and the sweeps have found


def judged_after(sweep: RouterSweep, script: Script, *ends: End) -> None:
    """Run a life, end it in each of these ways, and check everything each time."""
    sweep.live(script, collect=False)
    for end in ends:
        world = sweep.machine(0).after(end)
        sweep.judge_world(world, sweep.oracle_now(), "kill" if end == "kill" else "machine", "drop")


def numbers(shown: Shown, name: str) -> list[int]:
    """What a topic holds, by number."""
    return [record.data for record in shown.views[name].records.values()]


def test_rule_17_what_is_not_written_yet_has_no_place_that_another_router_may_use() -> None:
    """A copy into an ephemeral topic does not wait for write(2); what was taken apart for it said "no place", and was
    kept for the next router, which failed at it for ever."""

    async def script(life: Life, client: Client) -> None:
        for name, durability in (("a", "memory"), ("e", "ephemeral"), ("m", "memory")):
            await client.topic(name, durability=durability)
        await client.router("a>e", "a", "e")
        await client.router("a>m", "a", "m")
        for _ in range(3):
            await client.append("a", 2)
            await trio.sleep(0.1)
        await until_idle(life)
        assert numbers(await shown_by(life), "m") == [1, 2, 3, 4, 5, 6]

    judged_after(RouterSweep(), script, "kill", "keep")


@pytest.mark.parametrize("to", ["memory", "disk", "fsync"])
def test_rule_24_leaving_ephemeral_takes_the_origins_of_copies_along(to: str) -> None:
    """A restart right behind it forgot where copies came from: routers from there on failed, and a second path brought
    every record once more."""

    async def leave(life: Life, client: Client) -> None:
        for name, durability in (("a", "disk"), ("b", "ephemeral"), ("c", "disk")):
            await client.topic(name, durability=durability)
        await client.router("one", "a", "b", guarantee="exactly_once")
        await client.append("a", 3)
        await until_idle(life)
        await client.topic("b", durability=to)
        await client.look()

    async def go_on(life: Life, client: Client) -> None:
        await client.router("two", "a", "b", guarantee="exactly_once", start="earliest")
        await client.router("b>c", "b", "c", start="earliest")
        await client.append("a")
        await until_idle(life)
        shown = await shown_by(life)
        assert numbers(shown, "b") == numbers(shown, "c") == [1, 2, 3, 4]

    sweep = RouterSweep()
    sweep.live(leave, end="drop", collect=False)
    judged_after(sweep, go_on, "kill", "drop")


def test_a_router_gets_to_the_end_of_a_source_that_has_left_ephemeral() -> None:
    """Where the last records had been deleted, it waited for them to be written, and every read of the dest for it."""

    async def script(life: Life, client: Client) -> None:
        await client.topic("a", durability="ephemeral")
        await client.topic("b", durability="disk")
        await client.append("a", 3)
        await client.append("a", 2, tag="x")
        await client.delete("a", match=exactly("x"))
        await client.topic("a", durability="disk")
        await client.router("a>b", "a", "b", start="earliest")
        began = trio.current_time()
        await client.look("b")
        assert trio.current_time() - began < 0.5
        assert life.engine.routers.state("a>b").lag == 0

    judged_after(RouterSweep(), script, "kill", "drop")


def test_copies_are_read_while_a_checkpoint_puts_them_into_one_segment_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What copies are made of was forgotten with the first slice of the index, and asked for until the last."""

    async def copies(life: Life, client: Client) -> None:
        await client.topic("a", durability="disk")
        await client.topic("b", durability="disk")
        await client.router("a>b", "a", "b")
        await client.append("a", 20)
        await client.look("b")

    async def read_between(life: Life, client: Client) -> None:
        async def look_meanwhile(_work: WorkSlice) -> None:
            life.engine.registry.topics["b"].blocks.clear()
            await client.look("b")

        monkeypatch.setattr(WorkSlice, "give_way", look_meanwhile)
        await life.compactor.checkpoint()
        monkeypatch.undo()
        assert numbers(await shown_by(life), "b") == list(range(1, 21))

    sweep = RouterSweep()
    sweep.live(copies, collect=False)
    judged_after(sweep, read_between, "kill")


@pytest.mark.parametrize("names", ["lr", "xyz"])
def test_a_loss_goes_once_around_a_ring_and_no_further(names: str) -> None:
    """A hole has no origin: each topic told the next one of it, round and round."""

    async def ring_of(life: Life, client: Client) -> None:
        for name in names:
            await client.topic(name, durability="memory" if name == names[0] else "fsync")
        for source, dest in zip(names, names[1:] + names[0], strict=True):
            await client.router(f"{source}>{dest}", source, dest, allow_cycle=True)
        await client.append(names[0], 3)

    async def see_it_end(life: Life, client: Client) -> None:
        await until_idle(life)
        shown = await shown_by(life)
        assert shown.views[names[0]].gaps == [(1, 1024, "lost")]
        assert shown.views[names[1]].gaps == [(1, 1, "source_trim")]
        assert all(view.head <= 1025 for view in shown.views.values())

    sweep = RouterSweep()
    sweep.live(ring_of, end="drop", collect=False)
    judged_after(sweep, see_it_end, "kill")


def test_rule_24_turning_ephemeral_stores_all_records_from_before_whatever_was_lost_between_them() -> None:
    """Behind a trim that a long hole follows, nothing was stored, the log went, and reads failed."""

    async def trimmed(life: Life, client: Client) -> None:
        await client.topic("a", durability="disk")
        await client.topic("b", durability="memory")
        await client.router("a>b", "a", "b")
        await client.append("a", 4)
        await until_idle(life)
        with nobody_forwards(life):
            await client.append("a", 6)
            await client.topic("a", cap_records=1)
            await client.delete("a", before=100)
        await until_idle(life)
        await trio.sleep(0.1)

    async def turned(life: Life, client: Client) -> None:
        await client.append("b", 3)
        await client.look("b")
        before = (await shown_by(life)).views["b"]
        assert [reason for _, _, reason in before.gaps][:2] == ["source_trim", "lost"]
        await client.topic("b", durability="ephemeral")
        for _ in range(4):
            await fill(client, "a", 20)
            await checkpoint(life)
        life.engine.registry.topics["b"].blocks.drop_below(before.head + 1)  # those are read from the disk
        after = (await shown_by(life)).views["b"]
        assert before.records.items() <= after.records.items()

    sweep = RouterSweep(replace(SMALL, wal_shards=1, segment_max_events=1000))
    sweep.live(trimmed, end="drop", collect=False)
    judged_after(sweep, turned, "kill")
