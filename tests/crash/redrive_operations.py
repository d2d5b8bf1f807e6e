"""Rows about redrives. After every crash each letter is in the dead-letter topic, or where it came from, and never in
both or in neither; nor has a reader ever seen it so."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
import trio

from tests.crash.rows import Earlier, Operation, nothing
from tests.crash.transaction_operations import on, roomy
from tests.simulation import lives, router_lives
from tests.simulation.disk import Fault
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate, views_of
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.engine.group_queue import GroupQueue
from topics.engine.redrives.redrives import RedriveWish
from topics.errors import ApiError
from topics.job_model import ClaimRequest, HeldRequest
from topics.model import (
    CheckedAppend,
    ConsumerStart,
    GroupPatch,
    Performance,
    RecordIn,
    TopicConfigPatch,
)

HELD: Final = (1, 2, 3, 4, 6)
QUEUES: Final = {"jobs": "fsync", "mails": "disk"}
DEAD: Final = {"dead": "disk", "jobs-dead": "fsync"}
LOG: Final = "events"
GROUP: Final = "g"


class History:
    """What is known: which letters there are, and that so many were moved. `len` is how much that is."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, int]] = []
        """The number of each letter, and the seq of its record in the log; 0 for a job of a queue."""
        self.settled: dict[int, int] = {}
        """For lengths of the history: how many letters were known to be moved."""
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, number: int, seq: int = 0) -> None:
        """A letter is there from now on."""
        self.letters.append((number, seq))
        self._length += 1

    def note_moved(self) -> None:
        """All letters were said to be moved."""
        self._length += 1
        self.settled[self._length] = len(self.letters)


class Client:
    """Somebody who has jobs and letters."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.engine = life.engine
        self.history = history

    async def append(self, name: str, number: int, **meta: str) -> int:
        """Append one record, as the daemon appends letters."""
        data = msgspec.json.encode({"n": number})
        request = CheckedAppend(
            records=[RecordIn(data=msgspec.Raw(data))],
            datas=[data],
            nodes=None,
            tags=["x" if number % 2 else "y"],
            metas=[msgspec.json.encode({f"$dead_letter_{key}": value for key, value in meta.items()} | {"own": "1"})],
        )
        return (await self.engine.appends.append(name, request, Performance())).first_seq

    async def letter(self, dead: str, origin: str, number: int) -> None:
        """A letter of a queue."""
        await self.append(dead, number, **{"from": origin, "src_seq": str(number), "deliveries": "3"})
        self.history.add(number)

    async def group_letter(self, dead: str, number: int, seq: int) -> None:
        """A letter of the group, which has finished the record."""
        await self.append(dead, number, **{"from": LOG, "group": GROUP, "src_seq": str(seq)})
        self.history.add(number, seq)

    async def finish(self, *seqs: int) -> None:
        """Let the group finish records."""
        claim = ClaimRequest(node="n", most=100, lease_ms=60_000, wait_ms=0)
        await self.engine.queues.claim(LOG, claim, Performance(), GROUP)
        await self.engine.queues.ack(LOG, HeldRequest(node="n", seqs=list(seqs), lease_ids=None), Performance(), GROUP)

    async def redrive(self, dead: str, **wish: Any) -> Any:
        """Run a redrive to its end."""
        self.engine.redrives.start(dead, RedriveWish(**wish), lambda name: True)
        await self.engine.redrives.ended()
        return self.engine.redrives.get(dead)

    def check_once(self) -> None:
        """Nobody sees a letter twice or not at all."""
        topics = self.engine.registry.topics
        if {LOG, *QUEUES, *DEAD} <= topics.keys():
            groups = topics[LOG].groups
            if groups is not None and GROUP in groups.by_name:
                total = sum(topics[name].log.count for name in (*QUEUES, *DEAD))
                jobs = [number for number, seq in self.history.letters if not seq]
                group = groups.by_name[GROUP].state
                finished = sum(group.is_finished(seq) for _, seq in self.history.letters if seq)
                assert total in (len(jobs) + finished, len(jobs) + finished + 1), "a letter was seen twice, or not"


class RedriveSweep(lives.Sweep[History, Client, int]):
    """Lives with redrives. An oracle is the length of the history."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, History())

    def client(self, life: Life) -> Client:
        client = Client(life, self.history)
        life.fs.subscribe(lambda op: client.check_once())
        return client

    def make_oracle(self, known: int) -> int:
        return known

    async def begin(self, life: Life, fate: Fate) -> None:
        """What is there is known already."""

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> Any:
        found: list[Any] = []

        async def look(life: Life) -> None:
            found.append(await shown(life))
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return found[0]

    def judge_world(self, world: World, oracle: int, fate: Fate, second: End, *args: Any, **kwargs: Any) -> None:
        """Each letter is there once; a second start shows the same; a redrive then moves the rest."""
        seen = self.recover(world)
        self._judge(seen, oracle, fate)
        again = world.after(second)

        async def go_on(life: Life) -> None:
            assert await shown(life) == seen, "the second recovery shows something else"
            client = Client(life, self.history)
            for dead in DEAD:
                if dead in life.engine.registry.topics:
                    state = await client.redrive(dead)
                    assert state.state == "done"
                    assert not state.left or fate == "machine"
                    assert life.engine.registry.topics[dead].log.count == sum(state.left.values())
            await trio.sleep(0.1)
            assert not life.engine.registry.common.in_doubt
            after.append(await shown(life))
            end_steps(life)

        after: list[Any] = []
        assert again.live(go_on, end="kill")
        self.check_said(again)
        assert self.recover(again.after("drop")) == after[0], "what was moved is not there after a crash"
        self.judged += 1

    def _judge(self, seen: tuple[Counter[int], Counter[int], set[int]], known: int, fate: Fate) -> None:
        letters, jobs, finished = seen
        settled = max((n for length, n in self.history.settled.items() if length <= known), default=0)
        for i, (number, seq) in enumerate(self.history.letters):
            there = letters[number] + (jobs[number] if not seq else seq not in finished)
            if i < known and (fate != "machine" or i < known - 1):
                assert there == 1, f"letter {number} (seq {seq}) is there {there} times: {seen}"
            else:
                assert there <= 1 or seq, f"letter {number} is there {there} times: {seen}"
            if i < settled:
                assert not letters[number], f"letter {number} was moved and is there again: {seen}"


async def shown(life: Life) -> tuple[Counter[int], Counter[int], set[int]]:
    """The numbers of the letters, the numbers of the jobs, and what the group has finished."""
    views = await views_of(life.engine)
    letters = Counter(record.data for name in DEAD if name in views for record in views[name].records.values())
    jobs: Counter[int] = Counter()
    for name in QUEUES:
        for record in views[name].records.values() if name in views else ():
            jobs[record.data] += 1
            assert msgspec.json.decode(record.body)["meta"] == {"own": "1"}
    finished: set[int] = set()
    topic = life.engine.registry.topics.get(LOG)
    if topic is not None and topic.groups is not None and GROUP in topic.groups.by_name:
        queue = topic.groups.by_name[GROUP]
        assert isinstance(queue, GroupQueue)
        queue.state.check()
        finished = {seq for seq in range(1, topic.log.head_seq + 1) if queue.state.is_finished(seq)}
    return letters, jobs, finished


# ----------------------------------------------------------------- scripts


def letters(shards: int) -> Callable[[Life, Client], Awaitable[None]]:
    """Two dead-letter topics with letters of two queues and of a group, on at least so many shards."""

    async def make(life: Life, client: Client) -> None:
        put = life.engine.topic_lifecycle.put
        for name, durability in {**QUEUES, **DEAD, LOG: "fsync"}.items():
            kind: Any = "queue" if name in QUEUES else "log"
            await put(name, TopicConfigPatch(durability=durability, type=kind))  # type: ignore[arg-type]
        assert len({topic.shard for topic in life.engine.registry.topics.values()}) >= shards
        for _ in range(8):
            await client.append(LOG, 0)
        patch = GroupPatch(start=ConsumerStart(place="earliest"), terms=TopicConfigPatch())
        await life.engine.groups.put(LOG, GROUP, patch, Performance())
        await client.finish(1, 2, 3, 5, 7)
        for number in range(1, 5):
            await client.letter("dead", "jobs" if number % 2 else "mails", number)
            await client.letter("jobs-dead", "jobs", 10 + number)
        for i, seq in enumerate((2, 5, 7)):
            await client.group_letter("dead", 21 + i, seq)
        await trio.sleep(0.1)

    return make


async def redriving(life: Life, client: Client) -> None:
    """Both topics, side by side and beside acks of the group."""
    async with trio.open_nursery() as both:
        both.start_soon(client.redrive, "dead")
        both.start_soon(client.redrive, "jobs-dead")
    client.history.note_moved()
    await trio.sleep(0.1)


async def one_by_one(life: Life, client: Client) -> None:
    """One letter in each transaction, with checkpoints between them and beside them."""
    async with trio.open_nursery() as nursery:
        over = trio.Event()

        async def checkpoints() -> None:
            while not over.is_set():
                await life.compactor.checkpoint()
                await trio.sleep(0.0005)

        nursery.start_soon(checkpoints)
        for _ in range(7):
            for dead in DEAD:
                await client.redrive(dead, most=1)
        over.set()
    client.history.note_moved()
    await trio.sleep(0.1)
    await life.compactor.checkpoint()


async def failing(life: Life, client: Client) -> None:
    """The shard of one queue fails while letters are on their way there: those stay, also on the disk."""
    topics = life.engine.registry.topics
    lost = topics["jobs"].shard
    assert lost not in {topics[dead].shard for dead in DEAD}
    life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{lost:02d}/wal*", keep_some=True))
    state = await client.redrive("jobs-dead")
    assert state.state == "failed"
    assert topics["jobs-dead"].log.count == 4
    with suppress(ApiError, OSError):
        await life.compactor.checkpoint()
    await trio.sleep(0.1)


async def stopping(life: Life, client: Client) -> None:
    """No decision is in the log yet when the stop begins."""
    await client.redrive("dead")
    await client.redrive("jobs-dead")


async def at_work(life: Life, client: Client) -> None:
    """All of it, up to the middle of a redrive."""
    await letters(1)(life, client)
    await client.redrive("dead", most=2)
    life.engine.redrives.start("jobs-dead", RedriveWish(), lambda name: True)
    while not life.engine.registry.topics["jobs-dead"].pending:
        await trio.lowlevel.checkpoint()


def recovery(name: str, end: End) -> Operation:
    """A start behind such a life."""
    earlier = Earlier(at_work, end, on(2))
    return Operation(name, (2, 8), HELD, RedriveSweep, on(2), nothing, from_start=True, earlier=(earlier,))


REDRIVE_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("redrive-on-one-shard", (8,), HELD, RedriveSweep, roomy(1), redriving, letters(1)),
    Operation("redrive-on-three-shards", (8,), HELD, RedriveSweep, on(3), redriving, letters(3)),
    Operation("checkpoint-beside-a-redrive", (2, 8), HELD, RedriveSweep, on(3), one_by_one, letters(3)),
    Operation("undone-redrive", (8, 27), HELD, RedriveSweep, on(3), failing, letters(3)),
    Operation("stop-behind-a-redrive", (8,), HELD, RedriveSweep, on(2), stopping, letters(2), end="stop"),
    recovery("recovery-of-a-redrive-after-kill", "kill"),
    recovery("recovery-of-a-redrive-after-crash", "reorder"),
)
