"""Lives of named consumers, crashed everywhere: what a recovery shows of each topic is a prefix of the order of its
events, and has everything that the topic's class promised (`docs/spec/consumers.md` section 3).

A topic is asked for one thing after the other, so its states are a list. An answer of a call is as durable as the class
says; creations and acquisitions are synced in every class, and with them everything before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import UNSET, UnsetType

from tests.simulation.lives import CLASSES
from tests.simulation.model import Fate
from tests.simulation.told_states import Entry, StateSweep, TopicClient
from tests.simulation.world import Life
from topics.filters.record_filter import parse_filter
from topics.model import (
    ConsumerMove,
    ConsumerPatch,
    ConsumerStart,
    Performance,
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


class Client(TopicClient):
    """Asks for one thing of the consumers of a topic at a time."""

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


class ConsumerSweep(StateSweep[Client]):
    """Topics of every class, named by it, with consumers."""

    topics = CLASSES

    def client(self, life: Life) -> Client:
        return Client(life, self.history)

    def shown(self, life: Life) -> dict[str, State]:
        return shown(life)

    def is_safe(self, entry: Entry, fate: Fate) -> bool:
        by_class = entry.topic in {"fsync", "ephemeral"} or (entry.topic == "disk" and fate == "kill")
        return by_class or entry.kind in SYNCED
