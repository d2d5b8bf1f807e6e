"""Crash everywhere: each scenario is run once, and every disk state that a crash during it can leave is recovered and
judged.

For every mutating operation of a scenario, before it and (which is before the next one) after it, and for every kind of
crash: recover, compare with what clients were told, crash again without writing and require the same state, then repeat
the keyed appends and append to every topic. The quick run takes a sample of the points, `-m slow` a
larger one, and TOPICS_TEST_EVERYTHING=1 in the environment all of them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.lives import CLASSES
from tests.simulation.model import Client, Fate, History, Oracle, Restarted, View, append_everywhere, views_of
from tests.simulation.world import COLD, End, Life, World, Wreck, all_ends, settings, some_ends, wrecks_of
from topics.config import Settings
from topics.log.tag_match import TagMatch

Script = Callable[[Life, Client], Awaitable[None]]


# ----------------------------------------------------------------- scenarios


async def all_classes(life: Life, client: Client) -> None:
    """Appends in all four classes, with keys, caps, ttl and deletions."""
    for durability in CLASSES:
        await client.create(durability, durability=durability)
    await client.create("capped", durability="fsync", cap_records=5)
    await client.create("capped-disk", durability="disk", cap_bytes=300)
    await client.create("short-lived", durability="disk", ttl_ms=400)

    async def writer(durability: str) -> None:
        for i in range(4):
            await client.append(durability, 1 + i % 3, tag=f"t{i % 2}", key=f"k{i}", node="n" if i % 2 else None)
            if i == 2:
                await client.delete(durability, before=3)
        await client.delete(durability, match=TagMatch("t1", prefix=False))
        await client.append(durability, 2, meta={"a": "b"})

    async def evicting() -> None:
        for i in range(4):
            await client.append("capped", 2, key=f"c{i}")
            await client.append("capped-disk", 3)
        await client.delete("capped", before=5)
        await client.append("capped", 7)

    async def expiring() -> None:
        await client.append("short-lived", 3, tag="old")
        await trio.sleep(0.3)
        await client.append("short-lived", 2)
        await trio.sleep(0.2)
        await client.look("short-lived")
        await client.delete("short-lived", before=5)
        await client.append("short-lived", 1)

    async with trio.open_nursery() as clients:
        for durability in CLASSES:
            clients.start_soon(writer, durability)
        clients.start_soon(evicting)
        clients.start_soon(expiring)
    for name in list(life.engine.registry.topics):
        await client.look(name)
    await trio.sleep(0.1)


async def rotation(life: Life, client: Client) -> None:
    """Several WAL files, checkpoints, and files dropped once everything in them is deleted or evicted."""
    await client.create("safe", durability="fsync", cap_records=12)
    await client.create("loose", durability="memory")
    await client.create("plain", durability="disk", ttl_ms=60_000)
    await client.create("volatile", durability="ephemeral", cap_records=6)

    async def checkpoints() -> None:
        for _ in range(5):
            await trio.sleep(0.03)
            await life.compactor.checkpoint()

    async def other_topics() -> None:
        for i in range(3):
            await client.create(f"passing-{i}", durability="fsync")
            await client.append(f"passing-{i}", 2)
            await trio.sleep(0.01)
            await client.delete_topic(f"passing-{i}")

    async def writing() -> None:
        for i in range(14):
            await client.append("safe", 3, size=300, key=f"s{i}")
            await client.append("loose", 2, size=200)
            await client.append("plain", 2, size=300, tag=f"p{i % 3}")
            await client.append("volatile", 2)
            if i % 4 == 3:
                await client.delete("loose", before=2 * i)
                await client.delete("plain", before=2 * i)

    async with trio.open_nursery() as clients:
        clients.start_soon(writing)
        clients.start_soon(checkpoints)
        clients.start_soon(other_topics)
    await client.look("safe")
    await life.compactor.checkpoint()
    await trio.sleep(0.05)


async def class_changes(life: Life, client: Client) -> None:
    """Every pair of classes, with live records, a deletion and a hole-free numbering throughout; and changes of caps
    and ttl.
    """

    async def change(old: str, new: str) -> None:
        name = f"{old}-to-{new}"
        await client.create(name, durability=old)
        await client.append(name, 3, tag="a", key="one")
        await client.delete(name, before=2)
        await client.configure(name, durability=new)
        await client.append(name, 2, tag="b", key="two")
        await client.delete(name, match=TagMatch("b", prefix=False))
        await client.append(name, 1)
        await client.configure(name, durability=old)
        await client.append(name, 1)

    async def limits() -> None:
        await client.create("limits", durability="disk")
        await client.append("limits", 6, size=60)
        await client.configure("limits", cap_records=4)
        await client.append("limits", 2)
        await client.configure("limits", cap_records=0, ttl_ms=200)
        await trio.sleep(0.3)
        await client.configure("limits", ttl_ms=0)
        await client.append("limits", 2)

    async with trio.open_nursery() as clients:
        for old in CLASSES:
            for new in CLASSES:
                if old < new:
                    clients.start_soon(change, old, new)
        clients.start_soon(limits)
        for _ in range(4):
            await trio.sleep(0.003)
            await life.compactor.checkpoint()
    await life.compactor.checkpoint()
    for name in list(life.engine.registry.topics):
        await client.look(name)


async def recreation(life: Life, client: Client) -> None:
    """Topics that are deleted and created again, beside a checkpoint."""

    async def again(name: str, durability: str) -> None:
        for i in range(3):
            await client.create(name, durability=durability)
            await client.append(name, 2, key="same")
            if i == 1:
                await client.look(name)
            if i < 2:
                await client.delete_topic(name)

    async with trio.open_nursery() as clients:
        for durability in CLASSES:
            clients.start_soon(again, f"re-{durability}", durability)
        for _ in range(3):
            await trio.sleep(0.01)
            await life.compactor.checkpoint()


async def a_few_records(life: Life, client: Client) -> None:
    """What a life between two restarts does."""
    for durability in CLASSES:
        await client.create(durability, durability=durability)
        await client.append(durability, 2, size=100)
        await client.append(durability, 1, key=f"k{len(client.history)}")
    await client.delete("disk", before=2)
    await trio.sleep(0.05)


def at_random(seed: int) -> Script:
    """Six topics, each with a client that does anything to it, beside checkpoints."""

    async def script(life: Life, client: Client) -> None:
        rng = random.Random(seed)

        async def anything(name: str, rng: random.Random) -> None:
            await client.create(name, durability=rng.choice(CLASSES), cap_records=rng.choice((0, 0, 8)))
            for _ in range(rng.randrange(4, 14)):
                await one_thing(client, name, rng)
                if rng.random() < 0.2:
                    await trio.sleep(rng.choice((0.001, 0.02, 0.3, 2.0)))

        async def checkpoints() -> None:
            for _ in range(rng.randrange(4)):
                await trio.sleep(rng.choice((0.005, 0.05, 0.5)))
                await life.compactor.checkpoint()

        async with trio.open_nursery() as clients:
            for i in range(6):
                clients.start_soon(anything, f"topic-{i}", random.Random(rng.random()))
            clients.start_soon(checkpoints)

    return script


async def one_thing(client: Client, name: str, rng: random.Random) -> None:
    """One random request about a topic."""
    kind = rng.choices(("append", "both", "delete", "match", "configure", "again", "look"), (50, 10, 8, 8, 12, 4, 8))[0]
    key = rng.choice((None, None, f"k{client.history.number()}"))
    tag = rng.choice((None, "a", "b", "ab"))
    if kind == "append":
        size = rng.choice((1, 30, 300, 2500))
        await client.append(name, rng.choice((1, 1, 2, 5)), size=size, tag=tag, key=key, node=rng.choice((None, "n")))
    elif kind == "both":
        async with trio.open_nursery() as clients:
            for _ in range(3):
                clients.start_soon(client.append, name, rng.choice((1, 2)))
    elif kind == "delete":
        await client.delete(name, before=rng.randrange(1, 20))
    elif kind == "match":
        await client.delete(name, match=TagMatch(rng.choice("ab"), prefix=rng.random() < 0.5))
    elif kind == "configure":
        field, values = rng.choice(CHANGES)
        await client.configure(name, **{field: rng.choice(values)})
    elif kind == "again":
        await client.delete_topic(name)
        await client.create(name, durability=rng.choice(CLASSES))
    else:
        await client.look(name)


CHANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("durability", CLASSES),
    ("cap_records", (0, 3, 10)),
    ("cap_bytes", (0, 200, 3000)),
    ("ttl_ms", (0, 50, 100_000)),
)


# ----------------------------------------------------------------- the sweep


class Sweep:
    """One world through one or several lives, and the judgement of every wreck of them."""

    def __init__(self, config: Settings, seed: int = 0) -> None:
        self.config = config
        self.history = History()
        self.world = World(seed, config=config)
        self.wrecks: list[Wreck] = []
        self.judged = 0
        self._oracles: dict[int, Oracle] = {}

    def live(self, script: Script, *, stride: int = 1, end: Any = "stop") -> None:
        """Run a life and collect its wrecks; the next one goes on from how it ended."""
        fate: Fate = "stop" if end == "stop" else "kill" if end == "kill" else "machine"
        wrecks = wrecks_of(self.world, lambda: len(self.history), stride=stride)

        async def scenario(life: Life) -> None:
            if self.history.entries:
                self.history.entries.append(Restarted(self._fate, await views_of(life.engine)))
            await script(life, Client(life.engine, self.history))

        assert self.world.live(scenario, end="stop" if end == "stop" else "kill")
        assert self.world.fs.open_files == 0
        self.wrecks += wrecks
        self._fate = fate
        self.world = self.world.after("kill" if end == "stop" else end)

    def judge(self, wreck: Wreck, end: End, seed: int) -> None:
        """Recover a wreck and check everything about it."""
        fate: Fate = "kill" if end == "kill" else "machine"
        world = wreck.world(end, seed, self.config)
        views = see(world)
        if wreck.known not in self._oracles:
            self._oracles[wreck.known] = Oracle(self.history, wreck.known)
        oracle = self._oracles[wreck.known]
        oracle.judge(views, fate, now_ms=world.clock.now_ms())
        self.recover_again(world, views, oracle, fate, "kill" if seed % 2 else "drop")
        self.judged += 1

    def recover_again(self, world: World, views: dict[str, View], oracle: Oracle, fate: Fate, end: End) -> None:
        """Once more without a write in between: the same state; and the topics go on from it."""
        again = world.after(end)

        async def go_on(life: Life) -> None:
            seen = await views_of(life.engine)
            for name in views.keys() | seen.keys():
                assert seen.get(name) == views.get(name), f"{name}: the second recovery shows something else"
            await append_everywhere(life.engine, oracle, views, fate)
            for name, view in (await views_of(life.engine)).items():
                if view.config.durable:
                    acked[name] = view

        acked: dict[str, View] = {}
        assert again.live(go_on, end="kill")
        if oracle.instances and again.fs.mutations % 3 == 0:
            last = see(again.after("drop"))
            for name, view in acked.items():
                assert last[name] == view, f"{name}: what was acked after two recoveries is not there after a third"

    def judge_all(self, ends: Callable[[int], list[tuple[End, int]]]) -> int:
        """Judge every wreck in every given way; how many that were."""
        problems: list[str] = []
        for wreck in self.wrecks:
            for end, seed in ends(wreck.point):
                try:
                    self.judge(wreck, end, seed)
                except Exception as error:
                    problems.append(f"{wreck}, {end}/{seed}: {type(error).__name__}: {error}")
        assert not problems, f"{len(problems)} of {self.judged + len(problems)} wrecks: {problems[0]}"
        return self.judged


def see(world: World) -> dict[str, View]:
    """What a recovery shows; then the process is killed."""
    views: dict[str, View] = {}

    async def look(life: Life) -> None:
        views.update(await views_of(life.engine))

    assert world.live(look, end="kill")
    return views


SCENARIOS: dict[str, tuple[Script, int]] = {
    "all-classes": (all_classes, 1),
    "rotation": (rotation, 1),
    "rotation-in-two-shards": (rotation, 2),
    "class-changes": (class_changes, 1),
    "recreation": (recreation, 2),
}


def swept(name: str, *, stride: int, seed: int = 0) -> Sweep:
    """A scenario that has been run."""
    script, shards = SCENARIOS[name]
    sweep = Sweep(settings(wal_shards=shards), seed)
    sweep.live(script, stride=stride)
    return sweep


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_survives_a_crash_at_a_sample_of_the_operations(name: str) -> None:
    sweep = swept(name, stride=37)
    judged = sweep.judge_all(lambda point: some_ends(point, 2))
    print(f"{name}: {len(sweep.wrecks)} points, {judged} crashes")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_survives_a_crash_at_every_operation(name: str) -> None:
    sweep = swept(name, stride=1 if EVERYTHING else 29)
    judged = sweep.judge_all(lambda point: all_ends(point, 1) if point % 3 == 0 else some_ends(point, 2))
    print(f"{name}: {len(sweep.wrecks)} points, {judged} crashes")


# ----------------------------------------------------------------- several lives


@pytest.mark.parametrize("end", ["stop", "kill", "drop", "reorder"])
def test_a_life_after_a_life_keeps_what_the_first_has_promised(end: str) -> None:
    """Four lives in a row, each ended in the same way, and the crashes in all of them."""
    sweep = Sweep(settings())
    for _ in range(4):
        sweep.live(a_few_records, stride=11, end=end)
    judged = sweep.judge_all(lambda point: some_ends(point, 1))
    print(f"lives ended by {end}: {len(sweep.wrecks)} points, {judged} crashes")


@pytest.mark.parametrize("seed", range(4))
def test_no_promise_is_broken_by_clients_that_do_anything_over_several_lives(seed: int) -> None:
    random_lives(seed, stride=41)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 24 if EVERYTHING else 12))
def test_no_promise_is_broken_by_many_more_of_them(seed: int) -> None:
    random_lives(seed, stride=19 if EVERYTHING else 37)


def random_lives(seed: int, *, stride: int) -> None:
    """One to three lives with random requests, ended in one way or another, and a sample of the crashes in them."""
    sweep = Sweep(settings(wal_shards=1 + seed % 2), seed)
    for life in range(1 + seed % 3):
        end = ("kill", "stop", "drop", "garble", "reorder")[(seed // 3) % 5]
        sweep.live(at_random(10 * seed + life), stride=stride, end=end)
    judged = sweep.judge_all(lambda point: some_ends(point, 1))
    print(f"seed {seed}: {len(sweep.wrecks)} points, {judged} crashes")


def with_maintenance(script: Script, seed: int) -> Script:
    """The same beside checkpoints, reclaim and, with a cold directory, relocation."""

    async def both(life: Life, client: Client) -> None:
        rng = random.Random(seed)
        work: list[Callable[[], Awaitable[Any]]] = [life.compactor.try_checkpoint, life.reclaimer.pass_over]
        if life.engine.settings.cold_dir is not None:
            work.append(life.relocator.pass_over)

        async def maintenance() -> None:
            for _ in range(8):
                await trio.sleep(rng.choice((0.005, 0.05, 0.3)))
                for one in work:
                    if rng.random() < 0.7:
                        await one()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(script, life, client)
            nursery.start_soon(maintenance)

    return both


def lives_with_maintenance(seed: int, *, stride: int) -> None:
    """Small segments that are rewritten, merged, dropped and moved while clients do anything, and crashes in it."""
    config = settings(
        wal_shards=1 + seed % 2,
        segment_max_events=4,
        segment_max_bytes=2000,
        rewrite_live_ratio=0.8,
        hot_retain_segments=1,
        cold_dir=Path(COLD) if seed % 3 else None,
    )
    sweep = Sweep(config, seed)
    for life in range(1 + seed % 3):
        end = ("kill", "stop", "drop", "garble", "reorder")[(seed // 3) % 5]
        sweep.live(with_maintenance(at_random(10 * seed + life), seed), stride=stride, end=end)
    judged = sweep.judge_all(lambda point: some_ends(point, 1))
    print(f"seed {seed}: {len(sweep.wrecks)} points, {judged} crashes")


@pytest.mark.parametrize("seed", [5, 9, 13])
def test_no_promise_is_broken_beside_all_work_on_segments(seed: int) -> None:
    lives_with_maintenance(seed, stride=499)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20, 60 if EVERYTHING else 27))
def test_no_promise_is_broken_beside_much_more_work_on_segments(seed: int) -> None:
    lives_with_maintenance(seed, stride=53 if EVERYTHING else 181)


def crash_in_recovery(sweep: Sweep, wrecks: list[Wreck], ends: Callable[[int], list[tuple[End, int]]]) -> int:
    """Recover each wreck, crash at every mutating operation of that recovery, recover again: the same promises hold."""
    judged = 0
    for wreck in wrecks:
        for first_end, first_seed in ends(wreck.point):
            world = wreck.world(first_end, first_seed, sweep.config)
            inner = wrecks_of(world, lambda: 0)
            views = see(world)
            oracle = Oracle(sweep.history, wreck.known)
            for point in inner:
                for end, seed in ends(wreck.point + point.point):
                    second = point.world(end, seed, sweep.config)
                    fate: Fate = "kill" if (first_end, end) == ("kill", "kill") else "machine"
                    label = f"{wreck}, {first_end}/{first_seed}; then {point}, {end}/{seed}"
                    try:
                        seen = see(second)
                        oracle.judge(seen, fate, now_ms=second.clock.now_ms())
                        sweep.recover_again(second, seen, oracle, fate, "drop")
                    except Exception as error:
                        raise AssertionError(f"{label}: {type(error).__name__}: {error}") from error
                    judged += 1
            del views
    return judged


@pytest.mark.slow
@pytest.mark.parametrize("name", ["all-classes", "rotation-in-two-shards"])
def test_every_promise_survives_a_crash_in_the_recovery_after_a_crash(name: str) -> None:
    sweep = swept(name, stride=47 if EVERYTHING else 97)
    judged = crash_in_recovery(sweep, sweep.wrecks, lambda point: some_ends(point, 1))
    print(f"{name}: {len(sweep.wrecks)} first crashes, {judged} second ones")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_survives_any_crash_in_the_recovery_after_a_crash(name: str) -> None:
    sweep = swept(name, stride=31 if EVERYTHING else 293, seed=1)
    judged = crash_in_recovery(sweep, sweep.wrecks, lambda point: some_ends(point, 1))
    print(f"{name}: {len(sweep.wrecks)} first crashes, {judged} second ones")


@pytest.mark.parametrize("applied", [False, True])
def test_a_machine_that_dies_in_the_middle_of_an_operation_takes_the_daemon_with_it(applied: bool) -> None:
    """The way out does nothing to the disk and swallows nothing: what wrecks show is what a crash leaves."""
    for at in range(3, 110, 13):  # the life has 97 mutating operations
        history = History()
        world = World(0, config=settings())
        world.fs.crash_at, world.fs.crash_applied = at, applied

        async def scenario(life: Life, history: History = history) -> None:
            await all_classes(life, Client(life.engine, history))

        survived = world.live(scenario)
        assert survived == (world.fs.mutations <= at)
        assert world.fs.open_files == 0
        for end, seed in some_ends(at, 2):
            left = world.after(end, seed)
            fate: Fate = "kill" if end == "kill" else "stop" if survived else "machine"
            Oracle(history).judge(see(left), fate, now_ms=left.clock.now_ms())
