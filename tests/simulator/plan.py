"""What one seed means: a `Plan` of lives, written out before anything runs.

Everything that chance decides about what clients, the disk and the clock do is in here, as plain data; what is left to
chance while it runs (the order of tasks, which bytes a crash leaves) is drawn from the plan's seed as well. So a plan
can be run again, cut down (`tests.simulator.shrinking`), and kept as a file (`tests/simulator/cases`).

Steps name no seqs: where a deletion ends is a share of the head then, and a lease is the n-th that a worker holds. A
step that has lost its meaning, because others were taken out of the plan, does nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from tests.simulation.world import End

PLAIN: Final = ("a", "b", "c", "d")
QUEUES: Final = ("q", "r")
DEAD: Final = "dead"
"""Where jobs go that have had all their deliveries."""
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
FORGERIES: Final = 16
"""Tags that hold frames, as `clients` makes them."""
TAGS: Final = (None, None, "x", "y", "xy")
ENDS: Final[tuple[End | Literal["stop"], ...]] = (
    *("stop", "kill", "drop", "keep", "tear", "reorder", "garble", "remount"),
)
END_WEIGHTS: Final = (2, 4, 2, 1, 2, 3, 2, 2)
TOLD: Final = "told"
"""The kernel cannot write back what is pending, and another process is told."""


class Step(msgspec.Struct, frozen=True):
    """One thing that an actor does, after a pause (ms)."""

    do: str
    after: int
    what: dict[str, Any] = {}


class Actor(msgspec.Struct, frozen=True):
    """Somebody who does one thing after another, beside the others."""

    name: str
    steps: list[Step]


class Trouble(msgspec.Struct, frozen=True):
    """A fault of the disk from the `nth` such operation of a life on: slow by `ms`, or an error. `TOLD` is one of the
    kernel, at the `nth` sync."""

    op: str
    nth: int
    ms: int = 0
    error: int = 0
    times: int = 1
    keep_some: bool = False


class Hang(msgspec.Struct, frozen=True):
    """Calls of the cold store that never return: `times` of them (0: all) from its `nth` operation of a life on.

    With `start`, also those of a start between this life and the next one, all of them.
    """

    nth: int
    times: int = 1
    start: bool = False


class Rot(msgspec.Struct, frozen=True):
    """What happens to a file of some kind while the daemon is down: which one and where are shares of what there is.

    `way` is "bit" (one changes), "cut" (the file ends there), "boundary" (it ends at a frame or entry near there),
    "emptied", or "forged" (frames that a client could have made stand there).
    """

    kind: str
    file: float
    place: float
    bit: int
    way: str = "bit"


class LifePlan(msgspec.Struct, frozen=True):
    """One life of the daemon, how it ends, and what happens before the next one.

    It ends when all its actors are done, or at the `crash_at`-th change of the disk after it has opened for business;
    the recovery behind it at the `crash_in_recovery`-th. Calls of the kinds in `slow` take `slow_ms` now and then.
    """

    actors: list[Actor]
    end: str
    end_seed: int
    crash_at: int | None = None
    crash_in_recovery: int | None = None
    shards: int = 1
    slow: list[str] = []
    slow_ms: int = 0
    troubles: list[Trouble] = []
    room: int = 0
    """Bytes that the disk takes in this life, 0 for any number."""
    inodes: int = 0
    """Files and directories that the disk takes, 0 for any number."""
    room_after: int = 0
    """After so many ms there is room again, 0 for not in this life."""
    intruder: bool = False
    """Another process removes LOCK and wants to begin."""
    rot: list[Rot] = []
    down_ms: int = 0
    clock_step: int = 0
    hang: Hang | None = None
    busy: float = 1.0
    """How often other calls hold the disk, so that a group is not written on the loop; always in plans of a time when
    none was."""


class Plan(msgspec.Struct, frozen=True):
    """All of it. `settings` are those of every life; `routers` are the options of each router by its name."""

    seed: int
    settings: dict[str, int]
    cold: bool
    routers: dict[str, dict[str, Any]]
    lives: list[LifePlan]

    def size(self) -> int:
        """What shrinking makes smaller: steps, faults, lives."""
        steps = sum(len(actor.steps) for life in self.lives for actor in life.actors)
        extras = sum(
            len(life.troubles) + len(life.rot) + bool(life.slow) + (life.hang is not None) for life in self.lives
        )
        return steps + extras + len(self.lives)


def encode(plan: Plan) -> bytes:
    """A plan as readable JSON."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=1) + b"\n"


def decode(data: bytes) -> Plan:
    """A plan that `encode` has written. Raises msgspec.ValidationError."""
    return msgspec.json.decode(data, type=Plan)


def make(seed: int) -> Plan:
    """The plan of a seed."""
    return _Maker(seed).plan()


class _Maker:
    """Draws a plan."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"plan {seed}")
        self.adversary = random.Random(f"adversary {seed}")
        self.size = self.random.choice((0.5, 1.0, 1.0, 1.6))
        """How much goes on in a life."""

    def plan(self) -> Plan:
        rng = self.random
        routers = dict(self.routers())
        shards = rng.choice((1, 2, 2, 3))
        lives: list[LifePlan] = []
        for number in range(rng.choice((1, 2, 2, 3, 4))):
            if rng.random() < 0.15:
                shards = rng.choice((1, 2, 3))
            lives.append(self.life(number, shards, list(routers)))
        settings = {
            "wal_file_bytes": rng.choice((4, 8, 16)) << 10,
            "cache_bytes": rng.choice((2, 4, 64)) << 10,
            "segment_max_events": rng.choice((4, 8, 30)),
            "segment_max_bytes": rng.choice((1000, 2048, 8000)),
            "hot_retain_segments": rng.choice((1, 2)),
            "delivery_workers": rng.choice((1, 2)),
        }
        return Plan(self.seed, settings, rng.random() < 0.7, routers, lives)

    def routers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        rng = self.random
        for number in range(rng.choice((0, 1, 2, 3, 4))):
            source, dest = rng.sample((*PLAIN, QUEUES[0]), 2)
            yield (
                f"router{number}",
                {
                    "source": source,
                    "dest": dest,
                    "preserve_node": rng.random() < 0.8,
                    "preserve_tag": rng.random() < 0.8,
                    "filter": rng.choice((None, None, "x", ["tag", "Glob", "x*"])),
                    "guarantee": rng.choice(("at_least_once", "exactly_once")),
                    "start": rng.choice(("earliest", "tail")),
                    "allow_cycle": True,
                    "create_dest": False,
                },
            )

    def life(self, number: int, shards: int, routers: list[str]) -> LifePlan:
        rng = self.random
        actors = [self.owner(name, number) for name in PLAIN if rng.random() < 0.8]
        actors += [self.producer(name, number) for name in QUEUES if rng.random() < 0.7]
        actors += [self.worker(f"{name}-worker{i}", name) for name in QUEUES for i in range(rng.choice((0, 1, 2)))]
        if number == 0 or rng.random() < 0.5:
            actors.append(self.undertaker(number))
        if routers:
            actors.append(self.plumber(routers, number))
        if rng.random() < 0.6:
            actors += [self.stager(f"stager{i}") for i in range(rng.choice((1, 1, 2)))]
        actors += [self.watcher(f"watcher{i}") for i in range(rng.choice((0, 1, 2)))]
        if rng.random() < 0.85:
            actors.append(self.keeper())
        if rng.random() < 0.2:
            actors.append(self.astronomer())
        rotten = rng.random() < 0.15
        end = "kill" if rotten else rng.choices(ENDS, END_WEIGHTS)[0]
        crash_at = None
        if end != "stop" and not rotten and rng.random() < 0.75:
            crash_at = int(rng.choice((10, 60, 300)) * rng.random() * (1 + self.size))
        return LifePlan(
            actors=actors,
            end=end,
            end_seed=rng.randrange(1 << 16),
            crash_at=crash_at,
            crash_in_recovery=rng.randrange(40) if rng.random() < 0.2 else None,
            shards=shards,
            slow=rng.sample(("hot_read", "cold_read", "files", "cpu"), 2) if rng.random() < 0.3 else [],
            slow_ms=rng.choice((1, 20, 200)),
            troubles=[*self.troubles(), *self.slow_writes(number)],
            room=rng.choice((3_000, 20_000, 60_000)) if rng.random() < 0.07 else 0,
            inodes=rng.choice((1, 4, 10)) if rng.random() < 0.05 else 0,
            room_after=rng.choice((200, 5_000, 60_000)),
            intruder=rng.random() < 0.1,
            rot=list(self.rot()) if rotten else [],
            down_ms=rng.choice((0, 0, 50, 5000, 100_000)),
            clock_step=rng.choice((0, 0, 0, 0, -5000, 3_000, -3_600_000)),
            hang=self.hang(number),
            busy=random.Random(f"busy {self.seed} {number}").choice((0.0, 0.0, 0.3, 1.0)),
        )

    def hang(self, number: int) -> Hang | None:
        """Drawn by itself, so that the rest of a seed's plan is what it was before there were hangs."""
        rng = random.Random(f"hang {self.seed} {number}")
        if rng.random() < 0.5:
            return None
        nth = rng.choice((0, 0, rng.randrange(12), rng.randrange(100)))
        return Hang(nth, rng.choice((1, 2, 0, 0)), rng.random() < 0.4)

    def troubles(self) -> Iterator[Trouble]:
        rng = self.random
        if rng.random() < 0.25:
            yield Trouble("fdatasync", rng.randrange(20), ms=rng.choice((5, 50, 700)), times=rng.choice((1, 5, 30)))
        if rng.random() < 0.12:
            op = rng.choice(
                ("fdatasync", "fdatasync", "pwrite", "preallocate", "rename", "sync_dir", "sync_all", "create")
            )
            yield Trouble(op, rng.randrange(60), error=rng.choice((5, 28)), keep_some=rng.random() < 0.5)
        if rng.random() < 0.06:
            yield Trouble(TOLD, rng.randrange(40), error=5)

    def slow_writes(self, number: int) -> Iterator[Trouble]:
        """Drawn by themselves, as `hang` is: on the loop they pause the writes there."""
        rng = random.Random(f"slow writes {self.seed} {number}")
        if rng.random() < 0.2:
            yield Trouble("pwrite", rng.randrange(30), ms=rng.choice((2, 5, 50)), times=rng.choice((1, 3, 30)))

    def rot(self) -> Iterator[Rot]:
        rng = self.random
        kind = rng.choice((".data", ".data", ".idx", ".tags", "topic.cbor", "snapshot", ".log"))
        for _ in range(1 if kind in (".log", "snapshot") else rng.choice((1, 1, 3))):
            way = "bit"
            if kind == ".log" and self.adversary.random() < 0.5:
                way = "cut"
            elif kind in (".data", ".idx", ".tags") and self.adversary.random() < 0.4:
                ways = ("cut", "boundary", "emptied", "forged") if kind == ".data" else ("cut", "emptied")
                way = self.adversary.choice(ways)
            yield Rot(kind, rng.random(), rng.random(), rng.randrange(8), way)

    # -- actors ------------------------------------------------------------------------------------------------------

    def actor(self, name: str, most: int, step: Callable[[], Step], first: list[Step] | None = None) -> Actor:
        count = self.random.randrange(1, max(2, int(most * self.size)))
        return Actor(name, (first or []) + [step() for _ in range(count)])

    def step(self, do: str, **what: Any) -> Step:
        return Step(do, self.random.choice((0, 0, 0, 1, 5, 30, 30, 400, 2500)), what)

    def config(self, *, queue: bool = False) -> dict[str, Any]:
        rng = self.random
        config: dict[str, Any] = {"durability": rng.choices(CLASSES, (1, 2, 4, 4))[0]}
        if not queue and rng.random() < 0.2:
            config["cap_records"] = rng.choice((3, 10))
            config["discard"] = rng.choice(("old", "old", "reject"))
        if rng.random() < 0.1:
            config["ttl_ms"] = rng.choice((50, 3000, 100_000))
        if queue:
            config |= {"lease_ms": rng.choice((1000, 2000, 30_000)), "leases_durable": rng.random() < 0.5}
            if rng.random() < 0.5:
                config |= {"max_deliveries": rng.choice((1, 2)), "dead_letter": DEAD}
            if rng.random() < 0.3:
                config["claim_jitter_ms"] = 20
        return config

    def change(self) -> dict[str, Any]:
        rng = self.random
        return rng.choice(
            (
                {"durability": rng.choice(CLASSES)},
                {"durability": rng.choice(CLASSES)},
                {"cap_records": rng.choice((0, 3, 10))},
                {"cap_bytes": rng.choice((0, 200, 3000))},
                {"ttl_ms": rng.choice((0, 50, 100_000))},
                {"priority": rng.choice((-500, 0, 800))},
            )
        )

    def append(self, topic: str) -> Step:
        rng = self.random
        forged = {"forged": self.adversary.randrange(FORGERIES)} if self.adversary.random() < 0.1 else {}
        return self.step(
            "append",
            **forged,
            topic=topic,
            count=rng.choice((1, 1, 1, 2, 5, 12)),
            size=rng.choice((1, 30, 30, 300, 1500)),
            tag=rng.choice(TAGS),
            node=rng.choice((None, "n")),
            meta=rng.choice((None, None, {"m": "1"})),
            key=rng.random() < 0.25,
        )

    def owner(self, name: str, number: int) -> Actor:
        """Writes to a topic, deletes from it, changes its config; nobody else does the last."""
        rng = self.random

        def step() -> Step:
            kind = rng.choices(
                ("append", "burst", "delete", "match", "change", "again", "repeat", "look", "export"),
                (44, 8, 9, 8, 9, 3, 6, 5, 3),
            )[0]
            if kind == "append":
                return self.append(name)
            if kind == "burst":
                return self.step("burst", topic=name, writers=rng.choice((2, 4)))
            if kind == "delete":
                return self.step("delete", topic=name, share=rng.random())
            if kind == "match":
                return self.step("delete", topic=name, tag=rng.choice(("x", "y")), prefix=rng.random() < 0.5)
            if kind == "change":
                return self.step("topic", topic=name, config=self.change())
            if kind == "again":
                return self.step("again", topic=name, config=self.config())
            return self.step(kind, topic=name)

        first = [Step("topic", 0, {"topic": name, "config": self.config()})] if number == 0 else []
        return self.actor(f"{name}-owner", 16, step, first)

    def producer(self, name: str, number: int) -> Actor:
        """The same for a queue, more gently."""
        rng = self.random

        def step() -> Step:
            kind = rng.choices(("append", "delete", "change", "again", "look"), (70, 5, 8, 2, 5))[0]
            if kind == "append":
                return self.append(name)
            if kind == "delete":
                return self.step("delete", topic=name, tag="y", prefix=False)
            if kind == "change":
                change = {"leases_durable": rng.random() < 0.5} if rng.random() < 0.4 else {}
                return self.step("topic", topic=name, config=change or {"durability": rng.choice(CLASSES)})
            if kind == "again":
                return self.step("again", topic=name, config={"type": "queue", **self.config(queue=True)})
            return self.step("look", topic=name)

        config = {"type": "queue", **self.config(queue=True)}
        first = [Step("topic", 0, {"topic": name, "config": config})] if number == 0 else []
        return self.actor(f"{name}-producer", 10, step, first)

    def undertaker(self, number: int) -> Actor:
        """Keeps the topic for dead letters, and writes to it now and then."""
        rng = self.random
        config = {"durability": rng.choice(("disk", "fsync", "memory"))}

        def step() -> Step:
            return self.append(DEAD) if rng.random() < 0.6 else self.step("look", topic=DEAD)

        first = [Step("topic", 0, {"topic": DEAD, "config": config})] if number == 0 else []
        return self.actor("undertaker", 3, step, first)

    def worker(self, name: str, queue: str) -> Actor:
        rng = self.random

        def step() -> Step:
            kinds = ("claim", "work", "ack", "nack", "extend", "stale")
            kind = rng.choices(kinds, (40, 10, 30, 12, 8, 4))[0]
            if kind in ("claim", "work"):
                lease_ms = rng.choice((None, 20, 3000, 60_000))
                claim = self.step(kind, topic=queue, most=rng.choice((1, 2, 5)), lease_ms=lease_ms)
                if kind == "work":
                    claim.what["ms"] = rng.choice((1, 50, 3000))
                else:
                    claim.what["wait_ms"] = rng.choice((0, 0, 40, 2000))
                return claim
            what: dict[str, Any] = {"topic": queue, "which": rng.random(), "count": rng.choice((1, 1, 3))}
            if kind == "nack":
                what["ms"] = rng.choice((0, 0, 40, 5000))
            if kind == "extend":
                what["ms"] = rng.choice((10, 5000, 60_000))
            return self.step(kind, **what)

        return self.actor(name, 12, step)

    def plumber(self, routers: list[str], number: int) -> Actor:
        """Makes routers and takes them away."""
        rng = self.random

        def step() -> Step:
            kind = "router" if rng.random() < 0.75 else "delete_router"
            return self.step(kind, router=rng.choice(routers))

        first = [Step("router", 5, {"router": name}) for name in routers if number == 0 and rng.random() < 0.9]
        return self.actor("plumber", 4, step, first)

    def stager(self, name: str) -> Actor:
        rng = self.random
        topic = rng.choice(PLAIN)

        def step() -> Step:
            kind = rng.choices(("stage", "commit", "recommit", "delete_stage"), (60, 25, 8, 7))[0]
            what: dict[str, Any] = {"topic": topic}
            if kind == "stage":
                what |= {"stage": rng.choice(("one", "two")), "count": rng.choice((1, 3, 10))}
                what["size"] = rng.choice((10, 300))
            if kind == "commit":
                what["both"] = rng.random() < 0.5
            if kind == "delete_stage":
                what["stage"] = rng.choice(("one", "two"))
            return self.step(kind, **what)

        return self.actor(name, 9, step)

    def watcher(self, name: str) -> Actor:
        rng = self.random

        def step() -> Step:
            topics = rng.sample((*PLAIN, DEAD), rng.choice((1, 2, 3)))
            strong = rng.random() < 0.2
            return self.step(
                "watch", topics=topics, ms=rng.choice((1, 50, 2000)), slow=rng.random() < 0.2, strong=strong
            )

        return self.actor(name, 4, step)

    def keeper(self) -> Actor:
        """Does the work that the daemon does by the clock, at any moment."""
        rng = self.random
        kinds = ("checkpoint", "reclaim", "relocate", "expire")
        return self.actor("keeper", 14, lambda: self.step(rng.choices(kinds, (5, 3, 3, 1))[0]))

    def astronomer(self) -> Actor:
        """Sets the clock."""
        rng = self.random
        return self.actor(
            "astronomer", 3, lambda: self.step("clock", ms=rng.choice((-4000, -50, 500, 20_000, 180_000)))
        )
