"""Lives of the states that a topic keeps beside its records, crashed everywhere. The state that a recovery shows of
each topic is that after a prefix of its events, and has everything that was promised.

A topic is asked for one thing after the other, so its states are a list. Subclasses say which state a topic shows, and
which events a fate cannot undo.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from tests.simulation import router_lives
from tests.simulation.lives import Sweep, end_steps
from tests.simulation.model import Fate
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch


class Entry(NamedTuple):
    """Something was asked of a topic, or answered; or a start has shown it."""

    kind: str
    topic: str
    state: dict[str, Any]
    """What the topic is like when it has happened, by the names of what it keeps."""
    told: bool


@dataclass
class History:
    """What was asked and answered, in order."""

    entries: list[Entry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)


class TopicClient:
    """Asks for one thing of a topic at a time."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.history = history

    def state(self, topic: str) -> dict[str, Any]:
        """What the topic is like if everything asked has happened."""
        found = [entry.state for entry in self.history.entries if entry.topic == topic]
        return dict(found[-1]) if found else {}

    async def append(self, topic: str, count: int, durability: Any = None) -> None:
        """Append records; with a class the topic is made first."""
        if durability is not None:
            await self.life.engine.topic_lifecycle.put(topic, TopicConfigPatch(durability=durability))
        records = [RecordIn(data=b"1") for _ in range(count)]  # type: ignore[arg-type]
        await self.life.engine.appends.append(topic, AppendRequest(records=records), Performance())

    async def _ask(
        self, kind: str, topic: str, state: dict[str, Any], call: Awaitable[Any], *, promised: bool = True
    ) -> Any:
        """Make a call after which the topic is in this state. `promised`: its answer promises the state."""
        self.history.entries.append(Entry(kind, topic, state, told=False))
        answer = await call
        self.history.entries.append(Entry(kind, topic, state, told=promised))
        return answer


ClientT = TypeVar("ClientT", bound=TopicClient)


class StateSweep(Sweep[History, ClientT, Sequence[Entry]], Generic[ClientT]):
    """Topics of several classes, named by their class."""

    topics: ClassVar[Sequence[str]]
    """The topics that are judged."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, History())

    @abstractmethod
    def shown(self, life: Life) -> dict[str, dict[str, Any]]:
        """What every topic is like now."""

    @abstractmethod
    def is_safe(self, entry: Entry, fate: Fate) -> bool:
        """Return True if this fate cannot undo an event that was answered."""

    def make_oracle(self, known: int) -> Sequence[Entry]:
        return self.history.entries[:known]

    async def begin(self, life: Life, fate: Fate) -> None:
        for topic, state in self.shown(life).items():
            self.history.entries.append(Entry("put", topic, state, told=True))

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> dict[str, dict[str, Any]]:
        found: list[dict[str, dict[str, Any]]] = []

        async def look(life: Life) -> None:
            found.append(self.shown(life))
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return found[0]

    def judge_world(
        self, world: World, oracle: Sequence[Entry], fate: Fate, second: End, *args: Any, **kwargs: Any
    ) -> None:
        """What is shown is a promised prefix, and a second recovery shows the same."""
        first = self.recover(world)
        for topic in self.topics:
            entries = [entry for entry in oracle if entry.topic == topic]
            if not entries:
                continue
            promised = (i for i, entry in enumerate(entries) if entry.told and self.is_safe(entry, fate))
            floor = max(promised, default=-1)
            possible = [entry.state for entry in entries[max(floor, 0) :]]
            if floor < 0:
                possible.append({})
            assert first.get(topic, {}) in possible, f"{topic}: {first.get(topic)}, not in {possible}"
        assert self.recover(world.after(second)) == first, "the second recovery shows something else"
        self.judged += 1
