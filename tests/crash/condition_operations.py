"""Rows about conditional appends and fences. What is left is judged by `conditional_history`."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

import msgspec
import trio

from tests.crash.conditional_history import Attempt, check
from tests.crash.rows import Earlier, Operation, nothing
from tests.simulation import lives, router_lives
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate
from tests.simulation.test_staging_crashes import CONFIG
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.errors import ApiError
from topics.model import AppendRequest, Conditions, Fence, Performance, ReadRequest, RecordIn, TopicConfigPatch

TOPIC: Final = "t"
ROOMY: Final = replace(CONFIG, wal_file_bytes=32 << 10)


class Known:
    """What was known at a moment: the appends, and the fences that were removed, or may have been."""

    def __init__(self, events: list[tuple[Any, ...]]) -> None:
        self.attempts: list[Attempt] = []
        self.removing: set[str] = set()
        self.removed: set[str] = set()
        for moment, event in enumerate(events):
            match event:
                case ("asked", conditions, tag):
                    self.attempts.append(Attempt(len(self.attempts), conditions, tag, 2, moment))
                case ("acked", number, first_seq):
                    self.attempts[number].answered, self.attempts[number].first_seq = moment, first_seq
                case ("refused", number, code, detail):
                    self.attempts[number].answered, self.attempts[number].refused = moment, (code, detail)
                case ("removing", name):
                    self.removing.add(name)
                case ("removed", name):
                    self.removed.add(name)


class ConditionScript:
    """A client, and what it has seen."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.asked = 0

    def __len__(self) -> int:
        return len(self.events)

    async def append(self, life: Life, conditions: Conditions, tag: str | None = None) -> None:
        """Append two records that say which append they are of."""
        number, self.asked = self.asked, self.asked + 1
        self.events.append(("asked", conditions, tag))
        records = [RecordIn(data=msgspec.Raw(json.dumps([number, i]).encode()), tag=tag) for i in range(2)]
        try:
            request = AppendRequest(records=records, conditions=conditions, create=False)
            result = await life.engine.appends.append(TOPIC, request, Performance())
        except ApiError as error:
            self.events.append(("refused", number, error.code, error.detail))
        else:
            self.events.append(("acked", number, result.first_seq))

    async def remove(self, life: Life, name: str) -> None:
        self.events.append(("removing", name))
        await life.engine.fence_removals.remove(TOPIC, name, Performance())
        self.events.append(("removed", name))


class ConditionSweep(lives.Sweep[ConditionScript, ConditionScript, Known]):
    """One `fsync` topic."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, ConditionScript())

    def client(self, life: Life) -> ConditionScript:
        return self.history

    def make_oracle(self, known: int) -> Known:
        return Known(self.history.events[:known])

    def live(self, script: Callable[[Life, ConditionScript], Awaitable[None]], **how: Any) -> None:
        """The same, with the topic there."""

        async def with_topic(life: Life, client: ConditionScript) -> None:
            if TOPIC not in life.engine.registry.topics:
                await life.engine.topic_lifecycle.put(TOPIC, TopicConfigPatch(durability="fsync"))
            await script(life, client)

        super().live(with_topic, **how)

    async def begin(self, life: Life, fate: Fate) -> None:
        """What was known holds on."""

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> tuple[list[Any], dict[str, int]]:
        """The records and the fences of the topic."""
        found: tuple[list[Any], dict[str, int]] = [], {}

        async def look(life: Life) -> None:
            topic = life.engine.registry.topics.get(TOPIC)
            if topic is not None:
                read = ReadRequest(limit=10_000, max_batch_bytes=8 << 20)
                answer = await life.engine.reads.read(TOPIC, read, Performance())
                for at, record in enumerate(json.loads(b"[%b]" % answer.records), 1):
                    assert record["$seq"] == at
                    found[0].append(record["data"])
                found[1].update(topic.fences.published if topic.fences is not None else {})
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return found

    def judge_world(self, world: World, oracle: Known, fate: Fate, second: End, *args: Any, **kwargs: Any) -> None:
        """What clients have seen can have happened, the fences are those of the records, and a second start shows the
        same."""
        log, fences = self.recover(world)
        raised = check(oracle.attempts, log)
        for name in oracle.removing:
            if name in oracle.removed or name not in fences:
                raised.pop(name, None)
        assert fences == raised
        assert self.recover(world.after(second)) == (log, fences), "the second recovery shows something else"
        self.judged += 1


def at(head: int | None, fence: Fence | None = None, **tags: int) -> Conditions:
    return Conditions(head, tags, fence)


async def racing(life: Life, client: ConditionScript) -> None:
    """Appends that exclude one another, some of which raise a fence; all of it once more behind a checkpoint."""
    for head in (0, 6):
        async with trio.open_nursery() as clients:
            for number in range(3):
                clients.start_soon(client.append, life, at(head, Fence("f", number + head)), "a")
            clients.start_soon(client.append, life, at(None, None, a=head), "b")
            clients.start_soon(client.append, life, at(None, Fence("g", head + 1)), "a")
        seen = life.engine.registry.topics[TOPIC].log.head_seq
        await client.append(life, at(seen, Fence("f", head)), "a")
        await client.append(life, at(None, Fence("f", 1)), "b")
        await life.compactor.checkpoint()
    await trio.sleep(0.1)


async def raised(life: Life, client: ConditionScript) -> None:
    await client.append(life, at(0, Fence("f", 5)))
    await client.append(life, at(None, Fence("g", 7)))


async def removing(life: Life, client: ConditionScript) -> None:
    """Fences are removed beside appends that have others."""
    async with trio.open_nursery() as both:
        both.start_soon(client.remove, life, "f")
        both.start_soon(client.append, life, at(None, Fence("g", 8)))
    await life.compactor.checkpoint()
    await client.append(life, at(None, Fence("h", 1)))
    await client.remove(life, "g")
    await trio.sleep(0.1)


CONDITION_OPERATIONS = (
    Operation("conditional-append", (8,), (1, 3, 6), ConditionSweep, CONFIG, racing),
    Operation("fence-removal", (8,), (1, 3, 6), ConditionSweep, ROOMY, removing, raised),
    Operation(
        "recovery-of-fences",
        (2, 8),
        (1, 3, 6),
        ConditionSweep,
        CONFIG,
        nothing,
        from_start=True,
        earlier=(Earlier(racing, "drop"),),
    ),
)
