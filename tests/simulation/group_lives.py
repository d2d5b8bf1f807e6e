"""Lives of groups, crashed everywhere: what a recovery shows of each topic is a prefix of the order of its events, and
has everything that was promised (`docs/spec/consumers.md` section 4).

A topic is asked for one thing after the other, so its states are a list. Creations and deletions are synced whatever
the class, acks are as the class says, claims and nacks are promised nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, NamedTuple

from tests.simulation import router_lives
from tests.simulation.consumer_lives import Entry, History
from tests.simulation.lives import Sweep, end_steps
from tests.simulation.model import Fate
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.filters.record_filter import parse_filter
from topics.model import (
    AppendRequest,
    ClaimRequest,
    ConsumerStart,
    GroupPatch,
    HeldRequest,
    NackTerms,
    Performance,
    RecordIn,
    TopicConfigPatch,
)

GROUP_CLASSES: Final = ("memory", "disk", "fsync")
"""Names and classes of the topics. On an `ephemeral` one groups log nothing of what they do."""

LEASE_MS: Final = 3_600_000


class Known(NamedTuple):
    """What is known of a group: the records that it has finished and that are held, and its filter."""

    done: frozenset[int] = frozenset()
    held: frozenset[int] = frozenset()
    filter: str | None = None


class GroupClient:
    """Asks for one thing of a topic at a time."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.history = history

    def state(self, topic: str) -> dict[str, Known]:
        """What the topic is like if everything asked has happened."""
        found: list[Any] = [entry.state for entry in self.history.entries if entry.topic == topic]
        return dict(found[-1]) if found else {}

    async def _ask(self, kind: str, topic: str, state: Any, call: Awaitable[Any]) -> Any:
        self.history.entries.append(Entry(kind, topic, state, told=False))
        answer = await call
        self.history.entries.append(Entry(kind, topic, state, told=kind != "lease"))
        return answer

    async def append(self, topic: str, count: int, *, creates: bool = False) -> None:
        """Append records; the topic is made first."""
        if creates:
            await self.life.engine.topic_lifecycle.put(topic, TopicConfigPatch(durability=topic))  # type: ignore[arg-type]
        records = [RecordIn(data=b"1") for _ in range(count)]  # type: ignore[arg-type]
        await self.life.engine.appends.append(topic, AppendRequest(records=records), Performance())

    async def put(self, topic: str, group: str, wanted: str | None = None) -> None:
        """Create a group, or give it a filter or none."""
        state = self.state(topic)
        state[group] = state.get(group, Known())._replace(filter=wanted)
        patch = GroupPatch(
            start=ConsumerStart(place="seq", value=0),
            terms=TopicConfigPatch(lease_ms=LEASE_MS),
            filter=None if wanted is None else parse_filter(wanted),
        )
        await self._ask("put", topic, state, self.life.engine.groups.put(topic, group, patch, Performance()))

    async def claim(self, topic: str, group: str, *seqs: int) -> None:
        """Claim; `seqs` are what comes."""
        state = self.state(topic)
        state[group] = state[group]._replace(held=state[group].held | set(seqs))
        request = ClaimRequest(node="n", most=len(seqs), lease_ms=None, wait_ms=0)
        call = self.life.engine.queues.claim(topic, request, Performance(), group)
        claimed = await self._ask("lease", topic, state, call)
        assert [job.seq for job in claimed.jobs] == list(seqs)

    async def ack(self, topic: str, group: str, *seqs: int) -> None:
        state = self.state(topic)
        before = state[group]
        state[group] = before._replace(done=before.done | set(seqs), held=before.held - set(seqs))
        request = HeldRequest(node="n", seqs=list(seqs), lease_ids=None)
        await self._ask("ack", topic, state, self.life.engine.queues.ack(topic, request, Performance(), group))

    async def nack(self, topic: str, group: str, *seqs: int) -> None:
        state = self.state(topic)
        state[group] = state[group]._replace(held=state[group].held - set(seqs))
        request = HeldRequest(node="n", seqs=list(seqs), lease_ids=None)
        await self._ask(
            "lease", topic, state, self.life.engine.queues.nack(topic, request, NackTerms(0), Performance(), group)
        )

    async def delete(self, topic: str, group: str) -> None:
        state = self.state(topic)
        del state[group]
        await self._ask("delete", topic, state, self.life.engine.groups.delete(topic, group, Performance()))


def shown(life: Life) -> dict[str, dict[str, Known]]:
    """The groups of every topic."""
    found: dict[str, dict[str, Known]] = {}
    for name, topic in life.engine.registry.topics.items():
        groups = topic.groups.by_name if topic.groups is not None else {}
        live = [seq for seq in range(1, topic.log.head_seq + 1) if topic.log.is_live(seq)]
        found[name] = {}
        for group, queue in groups.items():
            state = queue.state
            state.check()
            assert state.finished.last <= topic.log.head_seq, "beyond the head"
            done = frozenset(seq for seq in live if seq in state.finished)
            held = frozenset(seq for seq in live if state.leases.deliveries(seq) and _is_leased(state, seq))
            found[name][group] = Known(done, held, state.filter)
    return found


def _is_leased(state: Any, seq: int) -> bool:
    page, slot = state.leases._table.at(seq)
    return page.holder(slot) is not None


class GroupSweep(Sweep[History, GroupClient, Sequence[Entry]]):
    """Topics of every class that keeps something, named by it, with groups."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, History())

    def client(self, life: Life) -> GroupClient:
        return GroupClient(life, self.history)

    def make_oracle(self, known: int) -> Sequence[Entry]:
        return self.history.entries[:known]

    async def begin(self, life: Life, fate: Fate) -> None:
        for topic, state in shown(life).items():
            self.history.entries.append(Entry("put", topic, state, told=True))  # type: ignore[arg-type]

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> dict[str, dict[str, Known]]:
        found: list[dict[str, dict[str, Known]]] = []

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
        for durability in GROUP_CLASSES:
            entries = [entry for entry in oracle if entry.topic == durability]
            if not entries:
                continue
            safe = durability == "fsync" or (durability == "disk" and fate == "kill")
            promised = (i for i, one in enumerate(entries) if one.told and (one.kind in ("put", "delete") or safe))
            floor = max(promised, default=-1)
            possible: list[Any] = [entry.state for entry in entries[max(floor, 0) :]]
            if floor < 0:
                possible.append({})
            assert first.get(durability, {}) in possible, f"{durability}: {first.get(durability)}, not in {possible}"
        assert self.recover(world.after(second)) == first, "the second recovery shows something else"
        self.judged += 1
