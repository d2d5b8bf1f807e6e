"""What clients of the daemons of a simulation do, and what they tell the judge of it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import trio

from tests.bucket.archived import ArchivedLife
from tests.engine.queues.queue_calls import ack, claim
from tests.simulation.disk import SimCrash
from tests.simulator.replicas.judge import CONSUMER, Judge, Place, Told
from tests.simulator.replicas.nodes import Node, StandbyNode
from topics.bucket.archive import ArchiveStopped
from topics.errors import ApiError
from topics.model import (
    AppendRequest,
    CheckedAppend,
    ConsumerMove,
    ConsumerPatch,
    ConsumerStart,
    Durability,
    Performance,
    RecordIn,
    TransactionRequest,
)

PATIENCE_S: Final = 2.0
"""A client gives up after so long (s)."""

LEASE_MS: Final = 2500
"""How long a job is held."""

REMOTE: Final = "r"
OTHER: Final = "o"
SECOND: Final = "r2"
QUEUE: Final = "q"
"""The topics: of the class `remote`, of another class, for transactions with the first one, and a queue."""

NEVER: Final = 1 << 62
"""The number of a round of which nobody knows."""

EVERYTHING: Final = "everything"
LITTLE_REMOTE: Final = "little remote"
"""What clients do most: some of all, or appends to the other topic, so that nothing hurries a round."""

Call = Callable[["Clients", Node, ArchivedLife], Awaitable[None]]


class Clients:
    """All clients of one history."""

    def __init__(self, nodes: list[Node], judge: Judge, seed: int, other: Durability, mix: str) -> None:
        self.random = random.Random(f"clients {seed}")
        self.other = other
        self._mostly_other = mix == LITTLE_REMOTE
        self._nodes = nodes
        self._judge = judge
        self.are_gone = False
        """True when nobody calls any more."""
        self._written = 0

    async def run(self) -> None:
        """One client: calls after calls, of daemons that answer."""
        while not self.are_gone:
            await trio.sleep(self.random.uniform(0.04, 0.6))
            node = self.random.choice(self._nodes)
            if node.machine.is_paused or node.machine.is_down:
                continue
            life = node.life
            try:
                with trio.move_on_after(PATIENCE_S), suppress(ApiError, SimCrash):
                    if node.follows is not None:
                        await self.read_standby(node)
                    elif life is not None:
                        await self._call(node, life)
            except RuntimeError:
                if node.life is life:
                    raise
                # The process has ended meanwhile, and takes in no tasks.

    async def _call(self, node: Node, life: ArchivedLife) -> None:
        if self._mostly_other and self.random.random() < 0.85:
            await self.append_other(node, life)
            return
        calls: list[Call] = [call for call, _ in CALLS]
        weights = [weight for _, weight in CALLS]
        await self.random.choices(calls, weights)[0](self, node, life)

    # -- what clients know ---------------------------------------------------------------------------------------------

    def _text(self, node: Node, kind: str = "one") -> str:
        self._written += 1
        return f"{kind} {self._written} {node.name} {node.epoch}"

    def _answered(self, node: Node, life: ArchivedLife) -> int | None:
        """The answer to a change comes. Return a round that has it, if the class is `remote`; None if nobody gets the
        answer. Raises ApiError."""
        life.engine.store.right.check()  # as before every answer
        if node.life is not life or node.machine.is_paused:
            return None
        self._judge.answer(node.epoch)
        try:
            return life.archive.last_round
        except ArchiveStopped:
            return NEVER

    async def _topic(self, life: ArchivedLife, name: str, node: Node) -> int:
        """Have a topic, and return its id."""
        topics = life.engine.registry.topics
        if name not in topics:
            fields: dict[str, Any] = {"durability": self.other if name == OTHER else "remote"}
            if name == QUEUE:
                fields |= {"type": "queue", "lease_ms": LEASE_MS, "leases_durable": True}
            await life.put(name, **fields)
            topic_id, number = topics[name].id, self._answered(node, life)
            if number is not None and name != OTHER:
                self._judge.topics.setdefault(name, (topic_id, number))
        return topics[name].id

    def _keep(self, topic_id: int, first: int, texts: list[str], number: int, name: str) -> None:
        for seq, text in enumerate(texts, first):
            self._judge.see(topic_id, seq, text)
            if name != OTHER:
                self._judge.keep([(topic_id, seq)], number)

    # -- changes -------------------------------------------------------------------------------------------------------

    async def append(self, node: Node, life: ArchivedLife) -> None:
        """Some records, in one call."""
        name = self.random.choice((REMOTE, OTHER, OTHER, QUEUE))
        topic_id = await self._topic(life, name, node)
        texts = [self._text(node) for _ in range(self.random.choice((1, 1, 1, 4)))]
        result = await life.append(name, *texts)
        number = self._answered(node, life)
        if number is not None:
            self._keep(topic_id, result.first_seq, texts, number, name)

    async def append_other(self, node: Node, life: ArchivedLife) -> None:
        """Some records of another class: in a moment they may be in no round."""
        topic_id = await self._topic(life, OTHER, node)
        texts = [self._text(node) for _ in range(self.random.randint(1, 5))]
        result = await life.append(OTHER, *texts)
        if self._answered(node, life) is not None:
            self._keep(topic_id, result.first_seq, texts, NEVER, OTHER)

    async def append_pair(self, node: Node, life: ArchivedLife) -> None:
        """A transaction: both records, or none."""
        names = [REMOTE, SECOND]
        ids = [await self._topic(life, name, node) for name in names]
        text = self._text(node, "pair")
        one = AppendRequest(records=[RecordIn(data=msgspec.Raw(msgspec.json.encode(text)))])
        result = await life.engine.transactions.append(
            TransactionRequest(topics=names, appends=[one, one]), Performance()
        )
        number = self._answered(node, life)
        if number is not None:
            for topic_id, member in zip(ids, result.appends, strict=True):
                self._keep(topic_id, member.first_seq, [text], number, REMOTE)

    async def commit_stage(self, node: Node, life: ArchivedLife) -> None:
        """Records that show all at once."""
        topic_id = await self._topic(life, REMOTE, node)
        texts = [self._text(node) for _ in range(2)]
        stage = f"s{self._written}"
        datas = [msgspec.json.encode(text) for text in texts]
        staged = CheckedAppend(records=[], datas=datas, nodes=None, tags=None, metas=None)
        await life.engine.stages.append(REMOTE, stage, staged, Performance())
        result = await life.engine.stage_commits.commit(REMOTE, (stage,), f"k{stage}", Performance())
        number = self._answered(node, life)
        if number is not None:
            self._keep(topic_id, result.first_seq, texts, number, REMOTE)

    async def delete(self, node: Node, life: ArchivedLife) -> None:
        """The older half of what there is."""
        topic_id = await self._topic(life, REMOTE, node)
        head = life.engine.registry.topics[REMOTE].log.head_seq
        told = self._judge.deleted.setdefault(topic_id, Told())
        before = head // 2
        if before <= told.acked:
            return
        told.asked = max(told.asked, before)
        await life.delete(REMOTE, before)
        number = self._answered(node, life)
        if number is not None:
            told.ack(before, number)

    async def commit_position(self, node: Node, life: ArchivedLife) -> None:
        """A consumer has got as far as the head."""
        topic_id = await self._topic(life, REMOTE, node)
        consumers = life.engine.consumers
        topic = life.engine.registry.topics[REMOTE]
        if topic.consumers is None or not len(topic.consumers):
            start = ConsumerStart(place="earliest", value=0)
            await consumers.put(REMOTE, CONSUMER, ConsumerPatch(start=start), Performance())
        told = self._judge.positions.setdefault(topic_id, Told())
        seq = topic.log.head_seq
        told.asked = max(told.asked, seq)
        moved = await consumers.commit(REMOTE, CONSUMER, seq, ConsumerMove(), Performance())
        number = self._answered(node, life)
        if number is not None:
            told.ack(moved.committed_seq, number)

    async def change_config(self, node: Node, life: ArchivedLife) -> None:
        """A longer time to live than before."""
        topic_id = await self._topic(life, REMOTE, node)
        told = self._judge.ttls.setdefault(topic_id, Told())
        told.asked = max(told.asked, told.acked, 10**9) + 1
        value = told.asked
        await life.put(REMOTE, ttl_ms=value)
        number = self._answered(node, life)
        if number is not None:
            told.ack(value, number)

    async def work(self, node: Node, life: ArchivedLife) -> None:
        """Claim a job, and finish it; or keep it until the lease is over."""
        topic_id = await self._topic(life, QUEUE, node)
        asked_at = trio.current_time()
        result = await claim(life, node=node.name, most=2, name=QUEUE)
        if self._answered(node, life) is None:
            return
        for job in result.jobs:
            self._judge.claimed((topic_id, job.seq), job.lease_id, asked_at, LEASE_MS)
        jobs = [job for job in result.jobs if self.random.random() < 0.6]
        if not jobs:
            return
        places: list[Place] = [(topic_id, job.seq) for job in jobs]
        self._judge.asked_done.update(places)
        held = await ack(life, [job.seq for job in jobs], node.name, [job.lease_id for job in jobs])
        number = self._answered(node, life)
        if number is not None:
            for seq in held.done:
                self._judge.done.setdefault((topic_id, seq), number)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def read(self, node: Node, life: ArchivedLife) -> None:
        """All of a topic."""
        await self.all_of(life, self.random.choice((REMOTE, OTHER)))

    async def read_standby(self, node: Node) -> None:
        """All of a topic of a standby. What it shows is in the bucket, so it stays."""
        assert isinstance(node, StandbyNode)
        node.look()
        life, standby = node.follows, node.standby
        assert life is not None
        assert standby is not None
        assert standby._follower is not None
        name = self.random.choice((REMOTE, OTHER))
        found = await self.all_of(life, name)
        self._judge.keep(found, standby._follower.note.round)

    async def all_of(self, life: ArchivedLife, name: str) -> dict[Place, Any]:
        """Read all records of a topic."""
        topic = life.engine.registry.topics.get(name)
        if topic is None:
            return {}
        records, _ = await life.all(name)
        for record in records:
            self._judge.see(topic.id, record["$seq"], record["data"])
        return {(topic.id, record["$seq"]): record["data"] for record in records}


CALLS: Final[tuple[tuple[Call, int], ...]] = (
    (Clients.append, 40),
    (Clients.append_pair, 12),
    (Clients.read, 10),
    (Clients.work, 12),
    (Clients.delete, 5),
    (Clients.commit_position, 7),
    (Clients.change_config, 3),
    (Clients.commit_stage, 4),
)
