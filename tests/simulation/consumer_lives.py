"""Lives of named consumers, crashed everywhere: what a recovery shows of each topic is a prefix of the order of its
events, and has everything that the topic's class promised (`docs/spec/consumers.md` section 3).

A topic is asked for one thing after the other, so its states are a list. What a call has answered is promised as the
class says; creations and acquisitions are synced whatever the class, and with them everything before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from msgspec import UNSET, UnsetType

from tests.simulation import lives, router_lives
from tests.simulation.lives import CLASSES, end_steps
from tests.simulation.model import Fate
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.filters.record_filter import parse_filter
from topics.model import (
    AppendRequest,
    ConsumerMove,
    ConsumerPatch,
    ConsumerStart,
    Performance,
    RecordIn,
    TopicConfigPatch,
)


class Known(NamedTuple):
    """What is known of a consumer."""

    seq: int
    owner: str | None
    generation: int
    filter: str | None
    """Its text."""


State = dict[str, Known]
"""The consumers of a topic."""

SYNCED: Final = ("put", "acquire", "delete")


class Entry(NamedTuple):
    """Something was asked of a topic, or answered; or a start has shown it."""

    kind: str
    topic: str
    state: State
    """What the topic is like when it has happened."""
    told: bool


@dataclass
class History:
    """What was asked and answered, in order."""

    entries: list[Entry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)


class Client:
    """Asks for one thing of a topic at a time."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.history = history

    def state(self, topic: str) -> State:
        """What the topic is like if everything asked has happened."""
        found = [entry.state for entry in self.history.entries if entry.topic == topic]
        return dict(found[-1]) if found else {}

    async def _ask(self, kind: str, topic: str, state: State, call: Awaitable[Any]) -> Any:
        self.history.entries.append(Entry(kind, topic, state, told=False))
        answer = await call
        self.history.entries.append(Entry(kind, topic, state, told=True))
        return answer

    async def append(self, topic: str, count: int, durability: Any = None) -> None:
        """Append records; with a class the topic is made first."""
        if durability is not None:
            await self.life.engine.topic_lifecycle.put(topic, TopicConfigPatch(durability=durability))
        records = [RecordIn(data=b"1") for _ in range(count)]  # type: ignore[arg-type]
        await self.life.engine.appends.append(topic, AppendRequest(records=records), Performance())

    async def consume(self, topic: str) -> None:
        """Let what its consumers have passed be deleted."""
        await self.life.engine.topic_lifecycle.put(topic, TopicConfigPatch(retention="consumed"))

    async def put(self, topic: str, consumer: str, wanted: str | UnsetType | None = UNSET) -> None:
        """Create a consumer, or give it the filter `wanted`; it keeps what it has for UNSET."""
        state = self.state(topic)
        state.setdefault(consumer, Known(0, None, 0, None))
        if wanted is not UNSET:
            state[consumer] = state[consumer]._replace(filter=wanted)
        parsed = parse_filter(wanted) if isinstance(wanted, str) else wanted
        patch = ConsumerPatch(start=ConsumerStart(place="seq", value=0), filter=parsed)
        await self._ask("put", topic, state, self.life.engine.consumers.put(topic, consumer, patch, Performance()))

    async def move(self, topic: str, consumer: str, seq: int, *, seek: bool = False) -> None:
        state = self.state(topic)
        before = state[consumer]
        state[consumer] = before._replace(seq=seq if seek else max(seq, before.seq))
        move, calls = ConsumerMove(generation=before.generation if before.owner else None), self.life.engine.consumers
        place = ConsumerStart(place="seq", value=seq)
        call = (
            calls.seek(topic, consumer, place, move, Performance())
            if seek
            else calls.commit(topic, consumer, seq, move, Performance())
        )
        await self._ask("move", topic, state, call)

    async def acquire(self, topic: str, consumer: str, owner: str, lease_ms: int = 1000) -> None:
        state = self.state(topic)
        before = state[consumer]
        states = [entry.state for entry in self.history.entries if entry.topic == topic]
        taken = max(known.generation for state in states for known in state.values())
        generation = before.generation if before.owner == owner else taken + 1
        state[consumer] = before._replace(owner=owner, generation=generation)
        call = self.life.engine.consumers.acquire(topic, consumer, owner, lease_ms, Performance())
        await self._ask("acquire", topic, state, call)

    async def release(self, topic: str, consumer: str) -> None:
        state = self.state(topic)
        generation = state[consumer].generation
        state[consumer] = state[consumer]._replace(owner=None)
        call = self.life.engine.consumers.release(topic, consumer, generation, Performance())
        await self._ask("release", topic, state, call)

    async def delete(self, topic: str, consumer: str) -> None:
        state = self.state(topic)
        del state[consumer]
        await self._ask("delete", topic, state, self.life.engine.consumers.delete(topic, consumer, Performance()))


def shown(life: Life) -> dict[str, State]:
    """The consumers of every topic."""
    found: dict[str, State] = {}
    for name, topic in life.engine.registry.topics.items():
        found[name] = {one.name: Known(one.seq, one.owner, one.generation, one.filter) for one in topic.consumers or ()}
        assert all(known.seq <= topic.log.head_seq for known in found[name].values()), "beyond the head"
        lowest = min((known.seq for known in found[name].values()), default=None)
        if topic.config.retention == "consumed" and name == "fsync" and lowest is not None:
            assert topic.log.earliest_seq <= lowest + 1, "records are gone that a consumer has yet to finish"
    return found


class ConsumerSweep(lives.Sweep[History, Client, Sequence[Entry]]):
    """Topics of every class, named by it, with consumers."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, History())

    def client(self, life: Life) -> Client:
        return Client(life, self.history)

    def make_oracle(self, known: int) -> Sequence[Entry]:
        return self.history.entries[:known]

    async def begin(self, life: Life, fate: Fate) -> None:
        for topic, state in shown(life).items():
            self.history.entries.append(Entry("put", topic, state, told=True))

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> dict[str, State]:
        found: list[dict[str, State]] = []

        async def look(life: Life) -> None:
            found.append(shown(life))
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return found[0]

    def judge_world(
        self, world: World, oracle: Sequence[Entry], fate: Fate, second: End, *args: Any, **kwargs: Any
    ) -> None:
        """What is shown is a promised prefix, and a second recovery shows the same."""
        first = self.recover(world)
        for durability in CLASSES:
            entries = [entry for entry in oracle if entry.topic == durability]
            if not entries:
                continue
            safe = durability in {"fsync", "ephemeral"} or (durability == "disk" and fate == "kill")
            floor = max(
                (i for i, entry in enumerate(entries) if entry.told and (safe or entry.kind in SYNCED)), default=-1
            )
            possible = [entry.state for entry in entries[max(floor, 0) :]]
            if floor < 0:
                possible.append({})
            assert first.get(durability, {}) in possible, f"{durability}: {first.get(durability)}, not in {possible}"
        assert self.recover(world.after(second)) == first, "the second recovery shows something else"
        self.judged += 1
