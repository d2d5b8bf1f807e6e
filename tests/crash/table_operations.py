"""Rows about topics with `keep_per_tag`. What is left is judged by the rule alone: it is what the batches up to some
point leave, none of which the class has promised is missing, and no value is gone whose successor is not there."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
import trio

from tests.crash.rows import Earlier, Operation, Script, nothing
from tests.simulation import lives, router_lives
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate
from tests.simulation.test_staging_crashes import CONFIG
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.model import AppendRequest, Performance, ReadRequest, RecordIn, TopicConfigPatch

TOPIC: Final = "t"
SMALL: Final = replace(CONFIG, segment_max_events=4, rewrite_live_ratio=0.9, cold_dir=None)
TAGS: Final = ("a", "b", "c", "d", "e")


class Value(NamedTuple):
    """A record: its tag, and a number that no other has; None for null."""

    tag: str
    number: int | None


class Known:
    """What was known at a moment."""

    def __init__(self, events: list[tuple[Any, ...]]) -> None:
        self.batches: list[list[Value]] = []
        self.acked = 0
        """So many of the batches, in their order, were acked."""
        self.keeps: list[int] = [0]
        """The values of `keep_per_tag` that may be in force, the last one that is known first."""
        self.expired = False
        """Nulls may have been taken away."""
        for event in events:
            match event:
                case ("asked", batch):
                    self.batches.append(batch)
                case ("acked", number):
                    self.acked = number
                case ("setting", keep):
                    self.keeps.append(keep)
                case ("set", keep):
                    self.keeps = [keep]
                case ("expiring",):
                    self.expired = True


def kept(batches: list[list[Value]], keep: int) -> list[Value]:
    """What the rule leaves of some batches."""
    live: list[Value] = []
    for value in (value for batch in batches for value in batch):
        same = [one for one in live if one.tag == value.tag]
        most = 1 if value.number is None else keep
        if keep and len(same) >= most:
            for one in same[: len(same) + 1 - most]:
                live.remove(one)
        live.append(value)
    return live


class TableScript:
    """A client that appends one batch after the other, and what it has seen."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.appended = self.numbered = 0

    def __len__(self) -> int:
        return len(self.events)

    async def append(self, life: Life, *tags: str) -> None:
        """Append a batch with these tags; one with a `!` behind it is null."""
        batch = []
        for tag in tags:
            self.numbered += 1
            batch.append(Value(tag.rstrip("!"), None if tag.endswith("!") else self.numbered))
        self.events.append(("asked", batch))
        records = [RecordIn(data=msgspec.Raw(json.dumps(one.number).encode()), tag=one.tag) for one in batch]
        await life.engine.appends.append(TOPIC, AppendRequest(records=records, create=False), Performance())
        self.appended += 1
        self.events.append(("acked", self.appended))

    async def keep(self, life: Life, keep: int) -> None:
        self.events.append(("setting", keep))
        await life.engine.topic_lifecycle.put(TOPIC, TopicConfigPatch(keep_per_tag=keep))
        self.events.append(("set", keep))


class TableSweep(lives.Sweep[TableScript, TableScript, Known]):
    """One topic of a class."""

    durability = "fsync"

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, TableScript())

    def client(self, life: Life) -> TableScript:
        return self.history

    def make_oracle(self, known: int) -> Known:
        return Known(self.history.events[:known])

    def live(self, script: Callable[[Life, TableScript], Awaitable[None]], **how: Any) -> None:
        """The same, with the topic there."""

        async def with_topic(life: Life, client: TableScript) -> None:
            if TOPIC not in life.engine.registry.topics:
                config: dict[str, Any] = {"durability": self.durability}
                await life.engine.topic_lifecycle.put(TOPIC, TopicConfigPatch(**config))
            await script(life, client)

        super().live(with_topic, **how)

    async def begin(self, life: Life, fate: Fate) -> None:
        """What was known holds on."""

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> tuple[int, list[tuple[int, Value]]]:
        """The `keep_per_tag` of the topic, and its records, once nothing more is taken away."""
        found: list[tuple[int, Value]] = []
        keep = 0

        async def look(life: Life) -> None:
            nonlocal keep
            topic = life.engine.registry.topics.get(TOPIC)
            if topic is not None:
                await trio.sleep(0.5)
                keep = topic.config.keep_per_tag
                read = ReadRequest(limit=10_000, max_batch_bytes=8 << 20, include_tags=True)
                answer = await life.engine.reads.read(TOPIC, read, Performance())
                rows = json.loads(b"[%b]" % answer.records)
                found.extend((row["$seq"], Value(row["$tag"], row["data"])) for row in rows)
                log = topic.log
                assert log.count == len(rows)
                assert log.bytes == sum(len(json.dumps(row["data"])) for row in rows)
                if log.kept is not None:
                    live: dict[str, list[int]] = {}
                    for row in rows:
                        live.setdefault(row["$tag"], []).append(row["$seq"])
                    log.kept.check(live, log.earliest_seq)
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return keep, found

    def judge_world(self, world: World, oracle: Known, fate: Fate, second: End, *args: Any, **kwargs: Any) -> None:
        """The records are what some of the batches leave, from the first on; all that the class has promised are among
        these; a second start shows the same."""
        keep, rows = self.recover(world)
        values = [value for _, value in rows]
        promised = oracle.acked
        if self.durability == "memory" or (self.durability == "disk" and fate == "machine"):
            promised = 0
        possible = []
        for n in range(promised, len(oracle.batches) + 1):
            left = kept(oracle.batches[:n], keep)
            possible.append(left)
            if oracle.expired:
                possible.append([one for one in left if one.number is not None])
        assert keep in oracle.keeps
        # A change of the config applies to what was there in slices, and is answered at its end.
        whole = kept(oracle.batches, 0)
        subset = len(oracle.keeps) > 1 and all(one in whole for one in values)
        assert values in possible or (subset and keep == 0 and _newest(values, oracle)), (keep, values, possible)
        assert self.recover(world.after(second)) == (keep, rows), "the second recovery shows something else"
        self.judged += 1


def _newest(values: list[Value], oracle: Known) -> bool:
    """Whether some values have the newest of each tag."""
    newest = {value.tag: value for batch in oracle.batches for value in batch}
    return all(value in values for value in newest.values())


class DiskSweep(TableSweep):
    """A topic of class `disk`."""

    durability = "disk"


class MemorySweep(TableSweep):
    """A topic of class `memory`."""

    durability = "memory"


async def filled(life: Life, client: TableScript) -> None:
    """Some values, in segments and in the log."""
    await client.keep(life, 1)
    await client.append(life, *TAGS)
    await life.compactor.checkpoint()
    await client.append(life, "a", "b")


async def overwriting(life: Life, client: TableScript) -> None:
    """Values that take stored, logged and unsynced ones away; checkpoints and rewrites in between."""
    await client.append(life, "a")
    await client.append(life, "c", "d", "c", "e!")
    await life.compactor.checkpoint()
    await client.append(life, "b", "e")
    await client.append(life, "d!", "a")
    await life.compactor.checkpoint()
    await life.engine.reclaimer.pass_over()
    await client.append(life, *TAGS)
    await trio.sleep(0.1)


async def several(life: Life, client: TableScript) -> None:
    """Many values of few tags, before the topic is a table."""
    for _ in range(3):
        await client.append(life, "a", "b", "a")
        await client.append(life, "c", "b!", "a")
        await life.compactor.checkpoint()
    await client.append(life, "a", "c")
    await trio.sleep(0.1)


async def becoming(life: Life, client: TableScript) -> None:
    """The topic becomes a table, and keeps less after that."""
    await client.keep(life, 2)
    await client.append(life, "a", "b")
    await client.keep(life, 1)
    await client.append(life, "c")
    await trio.sleep(0.1)


def expiring(ttl_ms: int) -> Script:
    """Nulls go after their time."""

    async def script(life: Life, client: TableScript) -> None:
        await client.append(life, "a!", "c!", "b")
        await life.engine.topic_lifecycle.put(TOPIC, TopicConfigPatch(null_ttl_ms=ttl_ms))
        client.events.append(("expiring",))
        await trio.sleep(3)
        life.engine.expire_unused()
        await trio.sleep(0.2)
        await life.compactor.checkpoint()

    return script


TABLE_OPERATIONS = (
    Operation("table-append", (6, 8, 11), (1, 2, 3, 5, 6), TableSweep, SMALL, overwriting, filled),
    Operation("table-append-disk", (6, 11), (1, 2, 3, 5, 6), DiskSweep, SMALL, overwriting, filled),
    Operation("table-append-memory", (6, 11), (1, 2, 3, 5, 6), MemorySweep, SMALL, overwriting, filled),
    Operation("table-made", (8, 11), (1, 2, 5, 6), TableSweep, SMALL, becoming, several),
    Operation("null-expiry", (8, 11), (1, 2, 5, 6), TableSweep, SMALL, expiring(1000), filled),
    Operation(
        "recovery-of-tables",
        (2, 8),
        (1, 2, 5, 6),
        DiskSweep,
        SMALL,
        nothing,
        from_start=True,
        earlier=(Earlier(filled), Earlier(overwriting, "drop")),
    ),
)
