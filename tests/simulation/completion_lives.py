"""Lives of queues and of a group whose results are delivered, crashed everywhere (`docs/design/completions.md`): the
result of an answered ack is never lost, as far as the class of its queue promises, and a job and its result are never
both gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import trio

from tests.simulation import router_lives
from tests.simulation.lives import Sweep, end_steps
from tests.simulation.model import Fate
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.job_model import ClaimRequest, HeldRequest
from topics.model import (
    AppendRequest,
    ConsumerStart,
    GroupPatch,
    Performance,
    ReadRequest,
    RecordIn,
    TopicConfigPatch,
)

PLACES: Final = {"memory": "memory", "disk": "disk", "fsync": "fsync", "stuck": "fsync", "group": "fsync"}
"""The topics and their classes. The results of `stuck` find no room, until there is; `group` is a log with a group."""

JOBS: Final = 8
LEASE_MS: Final = 3_600_000


class Entry(NamedTuple):
    """Results were sent, or it was answered that they are kept; or jobs were deleted by a client."""

    kind: str
    place: str
    seqs: tuple[int, ...]


@dataclass
class History:
    entries: list[Entry] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)


class Shown(NamedTuple):
    """Of each topic the jobs that are not finished, and the seqs of the results that were delivered, as they are
    there."""

    left: dict[str, frozenset[int]]
    delivered: dict[str, list[int]]


class CompletionClient:
    """Makes requests and writes them down."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.engine = life.engine
        self.history = history

    async def put(self, name: str, **config: Any) -> None:
        await self.engine.topic_lifecycle.put(name, TopicConfigPatch(**config))

    async def begin(self) -> None:
        """Make the topics, with jobs that are leased but for two of each."""
        await self.put("stuck-done", durability="fsync", cap_records=1, discard="reject")
        await self.append("stuck-done", 1)
        for place, durability in PLACES.items():
            if place == "group":
                await self.put(place, durability=durability)
            else:
                await self.put(
                    place, type="queue", durability=durability, completed=f"{place}-done", leases_durable=True
                )
            await self.append(place, JOBS)
        terms = TopicConfigPatch(completed="group-done", lease_ms=LEASE_MS, leases_durable=True)
        await self.engine.groups.put(
            "group", "g", GroupPatch(start=ConsumerStart(place="seq", value=0), terms=terms), Performance()
        )
        for place in PLACES:
            request = ClaimRequest(node="n", most=JOBS - 2, lease_ms=LEASE_MS, wait_ms=0)
            await self.engine.queues.claim(place, request, Performance(), group_of(place))
        for topic in list(self.engine.registry.topics.values()):
            await self.engine._commits.sync_shard(topic)

    async def append(self, name: str, count: int) -> None:
        records = [RecordIn(data=msgspec.Raw(b"1"), tag="t") for _ in range(count)]
        await self.engine.appends.append(name, AppendRequest(records=records), Performance())

    async def ack(self, place: str, *seqs: int) -> None:
        self.history.entries.append(Entry("asked", place, seqs))
        results = {seq: b"%d" % (100 + seq) for seq in seqs}
        request = HeldRequest(node="n", seqs=list(seqs), lease_ids=None, results=results)
        answer = await self.engine.queues.ack(place, request, Performance(), group_of(place))
        self.history.entries.append(Entry("told", place, tuple(answer.done)))

    async def delete(self, place: str, before: int) -> None:
        self.history.entries.append(Entry("deleted", place, tuple(range(1, before))))
        await self.engine.deletions.delete_records(place, before, None, Performance())


def group_of(place: str) -> str | None:
    return "g" if place == "group" else None


async def see(life: Life) -> Shown:
    """Let everything be delivered, and look."""
    registry = life.engine.registry
    if "stuck-done" in registry.topics:
        await life.engine.topic_lifecycle.put("stuck-done", TopicConfigPatch(cap_records=0))
    for _ in range(200):
        queues = [topic.queue for topic in registry.topics.values() if topic.queue is not None]
        log = registry.topics.get("group")
        if log is not None and log.groups is not None:
            queues += log.groups.by_name.values()
        if not any(queue.leases.results for queue in queues):
            break
        await trio.sleep(0.5)
    else:
        raise AssertionError("results are not delivered")
    left: dict[str, frozenset[int]] = {}
    delivered: dict[str, list[int]] = {}
    for place in PLACES:
        topic = registry.topics.get(place)
        if topic is not None:
            live = [row["$seq"] for row in await _rows(life, place)]
            if topic.queue is None:
                assert topic.groups is not None
                state = topic.groups.by_name["g"].state
                state.check()
                live = [seq for seq in live if seq not in state.finished]
            else:
                topic.queue.leases.check()
            left[place] = frozenset(live)
        delivered[place] = await _results(life, place)
    return Shown(left, delivered)


async def _rows(life: Life, name: str) -> list[Any]:
    rows: list[Any] = []
    position = 0
    while True:
        found = await life.engine.reads.read(name, ReadRequest(from_seq=position, limit=1000), Performance())
        rows += msgspec.json.decode(b"[" + found.records + b"]")
        position = found.next_from_seq
        if found.caught_up:
            return rows


async def _results(life: Life, place: str) -> list[int]:
    if f"{place}-done" not in life.engine.registry.topics:
        return []
    found: list[int] = []
    for row in await _rows(life, f"{place}-done"):
        data = row["data"]
        if not isinstance(data, dict):
            continue  # what is in the way
        assert data == {
            "topic": place,
            **({"group": "g"} if place == "group" else {}),
            "job_seq": data["job_seq"],
            "node": "n",
            "result": 100 + data["job_seq"],
        }
        found.append(data["job_seq"])
    return found


class CompletionSweep(Sweep[History, CompletionClient, Sequence[Entry]]):
    """The topics of `PLACES`, and those of their results."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, History())

    def client(self, life: Life) -> CompletionClient:
        return CompletionClient(life, self.history)

    def make_oracle(self, known: int) -> Sequence[Entry]:
        return self.history.entries[:known]

    async def begin(self, life: Life, fate: Fate) -> None:
        """What an earlier life was told holds in the next one as well."""

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> Shown:
        found: list[Shown] = []

        async def look(life: Life) -> None:
            found.append(await see(life))
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return found[0]

    def judge_world(
        self, world: World, oracle: Sequence[Entry], fate: Fate, second: End, *args: Any, **kwargs: Any
    ) -> None:
        """Look after the crash, and after another one."""
        self._judge(self.recover(world), oracle, by_kill=fate == "kill")
        self._judge(self.recover(world.after(second)), oracle, by_kill=fate == second == "kill")
        self.judged += 1

    @staticmethod
    def _judge(shown: Shown, oracle: Sequence[Entry], *, by_kill: bool) -> None:
        for place, durability in PLACES.items():
            asked, told, deleted = (
                {seq for entry in oracle if (entry.kind, entry.place) == (kind, place) for seq in entry.seqs}
                for kind in ("asked", "told", "deleted")
            )
            delivered, left = set(shown.delivered[place]), shown.left.get(place, frozenset())
            assert delivered <= asked, f"{place}: {delivered - asked} were never finished"
            if durability == "fsync" or (durability == "disk" and by_kill):
                assert told <= delivered, f"{place}: results of {told - delivered} are lost"
                assert not told & left, f"{place}: {told & left} come again"
                gone = set(range(1, JOBS + 1)) - left - delivered - deleted
                assert not gone, f"{place}: {gone} are gone, and so are their results"
