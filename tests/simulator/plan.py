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
from tests.simulator.actors import Actor, Step
from tests.simulator.groups.group_plans import GroupPlanner
from tests.simulator.jobs.job_plans import JobPlanner
from tests.simulator.outcomes.outcome_plans import OutcomePlanner
from tests.simulator.schedules.schedule_plans import SchedulePlanner

PLAIN: Final = ("a", "b", "c", "d")
QUEUES: Final = ("q", "r")
DEAD: Final = "dead"
"""Where jobs go that have had all their deliveries."""
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
FORGERIES: Final = 16
"""Tags that hold frames, as `clients` makes them."""
TAGS: Final = (None, None, "x", "y", "xy")
FILTERS: Final = (
    '["tag","Eq","x"]',
    '["tag","Glob","x*"]',
    '["tag","In",["xy","y"]]',
    '["Not",["tag","Glob","*"]]',
    '["And",["tag","In",["x","y"]],["node","Eq","n"]]',
    '["Or",["tag","Eq","y"],["tag","Glob","xy*"]]',
    '["node","Eq","n"]',
    '["meta","m","Exists",true]',
    '["Not",["meta","m","Eq","1"]]',
    '["data","/x","Glob","xxxxxxxxxxxxxxxx*"]',
    '["data","/missing","Exists",true]',
    '["And",["data","/n","Ge",0],["tag","Glob","*"]]',
)
"""What readers want; besides, numbers of records are compared (`_Maker.wish`)."""
CONSUMERS: Final = ("one", "two")
ENDS: Final[tuple[End | Literal["stop"], ...]] = (
    *("stop", "kill", "drop", "keep", "tear", "reorder", "garble", "remount"),
)
END_WEIGHTS: Final = (2, 4, 2, 1, 2, 3, 2, 2)
TOLD: Final = "told"
"""The kernel cannot write back what is pending, and another process is told."""


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
    """All of it. `settings` are those of every life, and `packs`, which is 1 if sealed segments are packed; `routers`
    are the options of each router by its name."""

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
        self.ranges = random.Random(f"ranges {seed}")
        self.doubter = random.Random(f"conditions {seed}")
        self.dealer = random.Random(f"transactions {seed}")
        self.wishes = random.Random(f"filters {seed}")
        self.habits = random.Random(f"consumers {seed}")
        self.tables = random.Random(f"tables {seed}")
        self.proofs = random.Random(f"evidence {seed}")
        self.proved = [name for name in (*PLAIN, *QUEUES) if self.proofs.random() < 0.25]
        """Topics that have evidence if their owner makes them."""
        self.consumed = [name for name in PLAIN if self.habits.random() < 0.3]
        """Topics of which what all consumers have finished is deleted, unless somebody changes that."""
        self.made = list(PLAIN)
        """Topics that are made in the first life."""
        self.size = self.random.choice((0.5, 1.0, 1.0, 1.6))
        """How much goes on in a life."""
        self.jobs = JobPlanner(seed, self.size)
        self.groups = GroupPlanner(seed, self.size)
        self.schedules = SchedulePlanner(seed, self.size)
        self.outcomes = OutcomePlanner(seed, self.size)

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
            "max_scan": self.wishes.choice((1, 3, 20, 10_000)),
            "packs": random.Random(f"packing {self.seed}").choice((0, 1)),
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
        actors += [self.trader(f"trader{i}") for i in range(self.dealer.choice((0, 0, 1, 2)))]
        actors += [self.picker(f"reader{i}") for i in range(self.wishes.choice((0, 0, 1, 2)))]
        if number == 0:
            self.made = [actor.name[0] for actor in actors if actor.name.endswith("-owner")] or list(PLAIN)
        actors += self.consumers()
        actors += self.jobs.actors(number)
        actors += self.groups.actors(number)
        actors += self.schedules.actors(number)
        actors += self.outcomes.actors(number)
        rotten = rng.random() < 0.15
        end = "kill" if rotten else rng.choices(ENDS, END_WEIGHTS)[0]
        crash_at = None
        if end != "stop" and not rotten and rng.random() < 0.75:
            crash_at = int(rng.choice((10, 60, 300)) * rng.random() * (1 + self.size))
        if end != "stop" and not rotten:
            self.die(actors)
            self.outcomes.die(actors)
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

    def above(self) -> dict[str, float]:
        """Where some deletions begin. Drawn by itself, as `hang` is."""
        return {"above": self.ranges.random()} if self.ranges.random() < 0.4 else {}

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
            **self.condition(),
        )

    def condition(self) -> dict[str, Any]:
        """What an append expects; nothing of it is drawn from what the rest of the plan is."""
        if self.doubter.random() < 0.8:
            return {}
        return {"expects": "head"} if self.doubter.random() < 0.6 else {"token": self.doubter.randrange(6)}

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
                return self.step("delete", topic=name, share=rng.random(), **self.above())
            if kind == "match":
                tag, prefix = rng.choice(("x", "y")), rng.random() < 0.5
                return self.step("delete", topic=name, tag=tag, prefix=prefix, **self.above())
            if kind == "change":
                return self.step("topic", topic=name, config=self.change())
            if kind == "again":
                return self.step("again", topic=name, config=self.config())
            return self.step(kind, topic=name)

        first = [Step("topic", 0, {"topic": name, "config": self.config()})] if number == 0 else []
        return self.consuming(name, self.actor(f"{name}-owner", 16, step, first))

    def consuming(self, name: str, owner: Actor) -> Actor:
        """The same owner, who has what is consumed deleted, or not any more. Drawn by itself, as `hang` is."""
        for step in owner.steps:
            makes = step.do == "again" or (step.do == "topic" and step is owner.steps[0])
            if makes and name in self.consumed:
                step.what["config"]["retention"] = "consumed"
        if self.habits.random() < 0.15:
            config = {"retention": self.habits.choice(("consumed", "limits"))}
            at = self.habits.randrange(1, len(owner.steps) + 1)
            owner.steps.insert(at, Step("topic", 0, {"topic": name, "config": config}))
        return self.keeping(name, owner)

    def keeping(self, name: str, owner: Actor) -> Actor:
        """The same owner, whose topic is made as a table, or becomes one, or is none any more. Drawn by itself, as
        `hang` is."""
        rng = self.tables
        for step in owner.steps:
            makes = step.do == "again" or (step.do == "topic" and step is owner.steps[0])
            if makes and rng.random() < 0.2:
                step.what["config"]["keep_per_tag"] = rng.choice((1, 1, 2))
        if rng.random() < 0.15:
            config = {"keep_per_tag": rng.choice((0, 1, 1, 2))}
            at = rng.randrange(1, len(owner.steps) + 1)
            owner.steps.insert(at, Step("topic", 0, {"topic": name, "config": config}))
        return self.proving(name, owner)

    def proving(self, name: str, owner: Actor) -> Actor:
        """The same owner, who keeps checkpoints of a topic with evidence. Drawn by itself, as `hang` is."""
        if name not in self.proved:
            return owner
        for step in owner.steps:
            config = step.what.get("config", {})
            makes = step.do == "again" or (step.do == "topic" and step is owner.steps[0])
            if makes:
                config["evidence"] = True
            if makes or "durability" in config:
                config["durability"] = "fsync"
        for _ in range(3):
            owner.steps.insert(self.proofs.randrange(1, len(owner.steps) + 1), Step("audit", 0, {"topic": name}))
        return owner

    def producer(self, name: str, number: int) -> Actor:
        """The same for a queue, more gently."""
        rng = self.random

        def step() -> Step:
            kind = rng.choices(("append", "delete", "change", "again", "look"), (70, 5, 8, 2, 5))[0]
            if kind == "append":
                return self.append(name)
            if kind == "delete":
                return self.step("delete", topic=name, tag="y", prefix=False, **self.above())
            if kind == "change":
                change = {"leases_durable": rng.random() < 0.5} if rng.random() < 0.4 else {}
                return self.step("topic", topic=name, config=change or {"durability": rng.choice(CLASSES)})
            if kind == "again":
                return self.step("again", topic=name, config={"type": "queue", **self.config(queue=True)})
            return self.step("look", topic=name)

        config = {"type": "queue", **self.config(queue=True)}
        first = [Step("topic", 0, {"topic": name, "config": config})] if number == 0 else []
        return self.proving(name, self.actor(f"{name}-producer", 10, step, first))

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

    def trader(self, name: str) -> Actor:
        """Appends to several topics, all or none. Drawn by itself, as `hang` is."""
        rng = self.dealer

        def append(topic: str) -> dict[str, Any]:
            what = {"topic": topic, "count": rng.choice((1, 1, 2, 7)), "size": rng.choice((1, 30, 300, 1500))}
            expects: dict[str, Any] = {}
            if rng.random() < 0.15:
                expects = {"expects": "head"} if rng.random() < 0.5 else {"token": rng.randrange(6)}
            return {**what, "tag": rng.choice(TAGS), **expects}

        def step() -> Step:
            after = rng.choice((0, 0, 0, 1, 5, 30, 400))
            if rng.random() < 0.15:
                return Step("repeat_transaction", after)
            chosen = rng.sample((*PLAIN, *PLAIN, *QUEUES), rng.choice((2, 2, 3, 4)))
            appends = [append(topic) for topic in dict.fromkeys(chosen)]
            return Step("transaction", after, {"appends": appends, "key": rng.random() < 0.4})

        return Actor(name, [step() for _ in range(rng.randrange(1, max(2, int(10 * self.size))))])

    def wish(self, rng: random.Random) -> str:
        """A filter."""
        if rng.random() < 0.4:
            operator = rng.choice(("Lt", "Le", "Gt", "Ge", "Ne"))
            return f'["data","/n","{operator}",{rng.randrange(1, 200)}]'
        if rng.random() < 0.2:
            return f'["Or",{rng.choice(FILTERS)},["data","/n","In",{sorted(rng.sample(range(1, 200), 40))}]]'
        return rng.choice(FILTERS)

    def picker(self, name: str) -> Actor:
        """Reads with a filter: pages, exports, and as a watcher. Drawn by itself, as `hang` is."""
        rng = self.wishes
        mine = self.wish(rng)

        def step() -> Step:
            after = rng.choice((0, 0, 1, 5, 30, 30, 400, 2500))
            kind = rng.choices(("filtered", "filtered_export", "watch"), (60, 15, 25))[0]
            what: dict[str, Any] = {"filter": mine if rng.random() < 0.7 else self.wish(rng)}
            if kind == "watch":
                what |= {"topics": rng.sample((*PLAIN, DEAD), rng.choice((1, 2, 3)))}
                what |= {"ms": rng.choice((1, 50, 2000)), "slow": rng.random() < 0.2}
                if rng.random() < 0.5:
                    return Step(kind, after, what)
                filters = (what["filter"], self.wish(rng), self.wish(rng))
                watches = [{"do": kind, "what": {**what, "filter": one}} for one in filters]
                return Step("together", after, {"steps": watches})
            what |= {"topic": rng.choice(PLAIN)}
            if kind == "filtered":
                what |= {"pages": rng.choice((1, 3, 20)), "limit": rng.choice((1, 2, 50))}
                what |= {"anew": rng.random() < 0.4, "wait_ms": rng.choice((0, 0, 40, 400))}
            return Step(kind, after, what)

        return Actor(name, [step() for _ in range(rng.randrange(1, max(2, int(10 * self.size))))])

    def consumers(self) -> list[Actor]:
        """Some who use named consumers, most of them the same one. Drawn by themselves, as `hang` is."""
        consumed = [name for name in self.consumed if name in self.made]
        topics = (*self.made, *consumed, *consumed)
        shared = self.habits.choice(topics), self.habits.choice(CONSUMERS)
        found = []
        for i in range(self.habits.choice((0, 2, 2, 3))):
            mine = shared
            if self.habits.random() < 0.5:
                topic = shared[0] if self.habits.random() < 0.6 else self.habits.choice(topics)
                mine = topic, self.habits.choice(CONSUMERS)
            found.append(self.consumer(f"consumer{i}", *mine))
        return found

    def consumer(self, name: str, topic: str, mine: str) -> Actor:
        """Uses a named consumer, and others now and then."""
        rng = self.habits
        owns = rng.random() < 0.5

        def step() -> Step:
            after = rng.choice((0, 0, 0, 0, 1, 5, 5, 30, 400))
            kinds = ("put", "show", "commit", "consume", "watch", "seek", "acquire", "release", "delete", "expire")
            kind = rng.choices(kinds, (10, 8, 20, 34, 4, 4, 10 if owns else 2, 3, 2, 8))[0]
            at, which = (topic, mine) if rng.random() < 0.85 else (rng.choice(PLAIN), rng.choice(CONSUMERS))
            what = {"topic": at, "consumer": which}
            if rng.random() < 0.1:
                several = rng.choices(
                    ("commit", "consume", "acquire", "seek", "put", "delete"), (5, 9, 3, 1, 1, 1), k=2
                )
                return Step("together", after, {"steps": [self.consumer_call(one, what, owns=owns) for one in several]})
            return self.consumer_step(kind, after, what, owns=owns)

        put = {"topic": topic, "consumer": mine, "from": "earliest", "share": 0.0}
        steps = [step() for _ in range(rng.randrange(5, 6 + int(25 * self.size)))]
        if rng.random() < 0.5:  # done with all there is
            all_of_it = {"topic": topic, "consumer": mine, "share": 1.0, "owned": owns}
            at = rng.randrange(len(steps))
            steps[at:at] = [Step("commit_consumer", 0, all_of_it), Step("expire", rng.choice((0, 1, 30)))]
        return Actor(name, [Step("put_consumer", rng.choice((1, 5, 30)), put), *steps])

    def die(self, actors: list[Actor]) -> None:
        """In some lives the machine dies soon after something was told of a consumer, or deleted because of them."""
        told = [actor for actor in actors if actor.name.startswith("consumer")]
        if told and self.habits.random() < 0.4:
            actor = self.habits.choice(told)
            calls = ("commit_consumer", "consume", "acquire", "put_consumer", "seek", "release", "expire")
            places = [i + 1 for i, step in enumerate(actor.steps) if i > 2 and step.do in calls]
            if places:
                actor.steps.insert(self.habits.choice(places), Step("die", self.habits.choice((0, 0, 1, 5))))

    def consumer_call(self, kind: str, what: dict[str, Any], *, owns: bool) -> dict[str, Any]:
        """One of several things that are done at the same time."""
        step = self.consumer_step(kind, 0, dict(what), owns=owns)
        return {"do": step.do, "what": step.what}

    def consumer_step(self, kind: str, after: int, what: dict[str, Any], *, owns: bool) -> Step:
        """One thing that is done with a consumer."""
        rng = self.habits
        if kind == "expire":
            return Step(kind, after)
        if kind in ("commit", "consume", "seek", "watch"):
            what |= {"owned": owns and rng.random() < 0.9, "epoch": rng.choices((False, True, "old"), (5, 4, 1))[0]}
            what |= {"share": rng.choice((rng.random(), 1.0)), "read": rng.random() < 0.75}
        if kind in ("consume", "watch") and rng.random() < 0.2:
            what["filter"] = self.wish(rng)
        if kind == "put":
            what |= {"from": rng.choice(("earliest", "earliest", "tail", "seq")), "share": rng.random()}
            if rng.random() < 0.4:
                what["filter"] = rng.choice((None, self.wish(rng)))
            if rng.random() < 0.15:
                what["ttl_ms"] = rng.choice((0, 500, 60_000))
        elif kind == "show":
            what["all"] = rng.random() < 0.4
        elif kind == "commit":
            what["beyond"] = rng.random() < 0.03
        elif kind == "seek":
            what["to"] = rng.choice(("seq", "seq", "earliest", "tail"))
        elif kind == "acquire":
            what["lease_ms"] = rng.choice((20, 20, 1000, 3000, 60_000))
        elif kind == "consume":
            way = rng.choices(("plain", "commit", "before"), (4, 3, 3))[0]
            what |= {"limit": rng.choice((1, 3, 100)), "before": way == "before", "commit": way == "commit"}
        elif kind == "watch":
            what |= {"ms": rng.choice((1, 50, 2000)), "slow": rng.random() < 0.2}
        name = {"put": "put_consumer", "show": "show_consumers", "delete": "delete_consumer"}
        name |= {"commit": "commit_consumer", "watch": "watch_consumer"}
        return Step(name.get(kind, kind), after, what)

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
