"""Rows about transactions. What is left is judged by `transaction_history`."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import msgspec
import trio

from tests.crash.rows import Earlier, Operation, nothing
from tests.crash.transaction_history import REFUSED, Asked, History, Kind, Oracle, Shown, fenced, seen_together
from tests.simulation import lives, router_lives
from tests.simulation.disk import Fault
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate, Record, View, canonical, views_of
from tests.simulation.world import End, Life, World, settings
from tests.simulator.caller import exported
from topics.config import Settings
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.filters.record_filter import parse_filter
from topics.model import AppendRequest, Conditions, Performance, ReadRequest, RecordIn, TopicConfigPatch

HELD: Final = (1, 2, 3, 4, 5, 6)
TAGS: Final = ("x", "y")


def on(shards: int) -> Settings:
    """So many shards, whose log is rotated now and then."""
    return settings(wal_shards=shards, wal_file_bytes=4 << 10, segment_max_events=8)


def roomy(shards: int) -> Settings:
    """The same, with a log that is not rotated."""
    return replace(on(shards), wal_file_bytes=64 << 10)


# ----------------------------------------------------------------- clients


class Client:
    """A client, which writes down what it asks for and what is answered."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.engine = life.engine
        self.history = history

    async def make(self, name: str, durability: str, **config: Any) -> None:
        """Make a topic."""
        capped = any(what.startswith("cap_") for what in config)
        self.history.kinds[name] = Kind(durability, capped, config.get("cap_records", 0))
        await self.engine.topic_lifecycle.put(name, TopicConfigPatch(durability=durability, **config))  # type: ignore[arg-type]

    async def append(self, name: str, count: int = 1, *, key: str | None = None, **more: Any) -> Asked:
        """Append to one topic, outside of any transaction."""
        asked = self.history.ask({name: self.history.part(count, **more)}, is_transaction=False, key=key)
        await self.send(asked)
        return asked

    async def transaction(
        self,
        counts: Sequence[str] | Mapping[str, int],
        *,
        key: str | None = None,
        conditions: Mapping[str, Conditions] | None = None,
        makes: Sequence[str] = (),
        **more: Any,
    ) -> Asked:
        """Append one record, or so many, to each of these topics; `makes` are those that may be missing."""
        counted = counts if isinstance(counts, Mapping) else dict.fromkeys(counts, 1)
        for name in makes:
            self.history.kinds[name] = Kind("fsync")
        patch = TopicConfigPatch(durability="fsync")
        parts = {
            name: self.history.part(
                count,
                conditions=(conditions or {}).get(name),
                config=patch if name in makes else None,
                **{"tag": TAGS[i % 2], **more},
            )
            for i, (name, count) in enumerate(counted.items())
        }
        asked = self.history.ask(parts, is_transaction=True, key=key)
        await self.send(asked)
        return asked

    async def send(self, asked: Asked) -> None:
        """Ask for it, for the first time or again."""
        firsts, deduped = dict[str, int](), False
        refused: tuple[str, Mapping[str, Any]] | None = None
        try:
            firsts, deduped = await sent(self.engine, asked)
        except ApiError as error:
            refused = error.code, error.detail
        assert asked.firsts in ({}, firsts), f"{asked} is answered with {firsts or refused} now"
        assert refused or deduped or asked.refused is None
        asked.firsts = firsts
        asked.refused = asked.refused or refused
        asked.answered = self.history.tick() if asked.answered is None else asked.answered

    def note_visible(self) -> None:
        """Write down what readers see now."""
        self.history.visible({name: topic.log.head_seq for name, topic in self.engine.registry.topics.items()})


async def sent(engine: Engine, asked: Asked) -> tuple[dict[str, int], bool]:
    """Send it; the first seq in each topic, and whether it was there already. Raises ApiError."""
    if asked.is_transaction:
        result = await engine.transactions.append(asked.request(), Performance())
        for one in result.appends:
            assert one.count == one.last_seq - one.first_seq + 1 == asked.parts[one.topic].count
        return {one.topic: one.first_seq for one in result.appends}, result.deduped
    ((name, part),) = asked.parts.items()
    answer = await engine.appends.append(name, part.append(asked.key), Performance())
    return {name: answer.first_seq}, answer.deduped


# ----------------------------------------------------------------- what every reader shows


async def shown_by(life: Life) -> Shown:
    """All topics, read in several ways that have to agree, and their fences."""
    views = await views_of(life.engine)
    fences: dict[str, dict[str, int]] = {}
    for name, view in views.items():
        topic = life.engine.registry.topics[name]
        topic.log.check()
        fences[name] = dict(topic.fences.published) if topic.fences is not None else {}
        await _check_readers(life, view)
    assert not life.engine.registry.common.in_doubt
    return Shown(views, fences)


async def _check_readers(life: Life, view: View) -> None:
    """An export, reads by tag, and reads of single records show what a plain read does."""
    records, gaps, _ = await exported(life, view.name)
    assert (records, gaps) == (view.records, view.gaps), (
        f"{view.name}: an export shows {records} {gaps}, and not {view}"
    )
    for tag in TAGS:
        with_tag = {seq for seq, record in view.records.items() if msgspec.json.decode(record.body).get("$tag") == tag}
        found = await _matching(life, view.name, tag)
        assert found == with_tag, f"{view.name}: records {found} are found by tag {tag}, and not {with_tag}"
    for seq in range(1, view.head + 1):
        alone = await _alone(life, view.name, seq)
        assert alone == view.records.get(seq), f"{view.name}: seq {seq} alone is {alone}, and not as in {view}"


async def _matching(life: Life, name: str, tag: str) -> set[int]:
    request = ReadRequest(limit=10_000, filter=parse_filter(msgspec.json.encode(["tag", "Eq", tag])))
    found: set[int] = set()
    while True:
        answer = await life.engine.reads.read(name, request, Performance())
        found |= {row["$seq"] for row in msgspec.json.decode(b"[%b]" % answer.records)}
        request.from_seq = answer.next_from_seq
        if answer.caught_up:
            return found


async def _alone(life: Life, name: str, seq: int) -> Record | None:
    with suppress(ApiError):
        row = msgspec.json.decode(await life.engine.reads.record(name, seq, Performance()))
        assert row.pop("$seq") == seq
        return Record(seq, row.pop("$ts"), row["data"]["n"], canonical(row))
    return None


def without_reserves(before: Shown, after: Shown) -> Shown:
    """What a start shows after a crash of the machine, without the holes behind what there was before: those of a
    topic of class `disk` are as long as its reserve of seqs."""
    views = dict(after.views)
    for name, view in after.views.items():
        head = before.views[name].head if name in before.views else 0
        if view.config.durability == "disk" and view.gaps and view.gaps[-1] == (head + 1, view.head, "lost"):
            views[name] = replace(view, head=head, gaps=view.gaps[:-1])
    return Shown(views, after.fences)


def difference(one: Shown, other: Shown) -> str:
    """What two starts show differently."""
    said = []
    for name in one.views.keys() | other.views.keys():
        views = [shown.views.get(name) for shown in (one, other)]
        if views[0] != views[1]:
            said += [f"{name}: {view and (view.head, view.gaps, view.records)}" for view in views]
    return "\n  ".join([f"fences {one.fences} and {other.fences}", *said])


# ----------------------------------------------------------------- the sweep


class TransactionSweep(lives.Sweep[History, Client, Oracle]):
    """Lives with transactions."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, History())

    def client(self, life: Life) -> Client:
        client = Client(life, self.history)
        life.fs.subscribe(lambda op: client.note_visible())
        return client

    def make_oracle(self, known: int) -> Oracle:
        return Oracle(self.history, known)

    def live(self, script: Callable[[Life, Client], Awaitable[None]], **how: Any) -> None:
        """The same; nobody may have seen a part of a transaction."""
        super().live(script, **how)
        seen_together(self.history)

    async def begin(self, life: Life, fate: Fate) -> None:
        """What is there now was decided by the recovery."""
        if fate == "machine":
            self.history.machine_ended.append(self.history.tick())
        for name, view in (await views_of(life.engine)).items():
            numbers = {record.data: seq for seq, record in view.records.items()}
            for one in self.history.asked:
                if name not in one.parts:
                    continue
                found = [numbers[n] - i for i, n in enumerate(one.parts[name].numbers) if n in numbers]
                if found:
                    one.firsts.setdefault(name, found[0])
        self.client(life).note_visible()

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> Shown:
        found: list[Shown] = []

        async def look(life: Life) -> None:
            found.append(await shown_by(life))
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        assert world.fs.open_files == 0
        return found[0]

    def judge_world(self, world: World, oracle: Oracle, fate: Fate, second: End, *args: Any, **kwargs: Any) -> None:
        """What clients know holds; a second start shows the same; keys are known; what is appended then stays."""
        shown = self.recover(world)
        oracle.judge(shown, fate)
        again, stored = world.after(second), list[Shown]()

        async def go_on(life: Life) -> None:
            seen = await shown_by(life)
            assert seen == shown, f"the second recovery shows something else: {difference(shown, seen)}"
            await repeat(life, oracle, shown)
            if world.seed % 3 == 0:
                await life.compactor.checkpoint()
            await append_everywhere(life)
            stored.append(await shown_by_now(life))
            end_steps(life)

        assert again.live(go_on, end="kill")
        self.check_said(again)
        last = without_reserves(stored[0], self.recover(again.after("drop")))
        assert last == stored[0], f"what was stored is not there after a crash: {difference(stored[0], last)}"
        self.judged += 1


async def shown_by_now(life: Life) -> Shown:
    """The same of a daemon that has just answered: decisions may be on their way."""
    await trio.sleep(0.1)
    return await shown_by(life)


async def repeat(life: Life, oracle: Oracle, shown: Shown) -> None:
    """Send all that had a key once more: what is there is answered as it was, what is not is stored now."""
    there = {record.data for view in shown.views.values() for record in view.records.values()}
    gone = {name for name, view in shown.views.items() if any(reason != "lost" for _, _, reason in view.gaps)}
    for one in oracle.asked:
        if one.key is None:
            continue
        found = not there.isdisjoint(number for part in one.parts.values() for number in part.numbers)
        code = ""
        try:
            firsts, deduped = await sent(life.engine, one)
        except ApiError as error:
            code = error.code
        if code:
            assert not found, f"{one} is there, and a repeat is refused: {code}"
            assert code in REFUSED
            continue
        if found or not gone & one.parts.keys():
            assert deduped == found, f"{one}, of which {found} is there: {firsts}, deduped {deduped}"
        if oracle.is_acked(one) and deduped:
            assert firsts == one.firsts, f"{one} is answered with {firsts}"


async def append_everywhere(life: Life) -> None:
    """Append to each topic alone, and to all together: they get the next seqs, in topics of any content."""
    heads = {name: topic.log.head_seq for name, topic in life.engine.registry.topics.items()}
    for name, head in list(heads.items()):
        record = RecordIn(data=msgspec.Raw(b'{"n":0}'))
        answer = await life.engine.appends.append(name, AppendRequest(records=[record], create=False), Performance())
        assert answer.first_seq == head + 1, f"{name}: after {head} comes {answer.first_seq}"
        heads[name] = answer.first_seq
    if len(heads) > 1:
        asked = History().ask({name: History().part(2) for name in heads}, is_transaction=True, key=None)
        firsts, _ = await sent(life.engine, asked)
        assert firsts == {name: head + 1 for name, head in heads.items()}


# ----------------------------------------------------------------- scripts

CLASSES: Final = {"a": "fsync", "b": "disk", "c": "fsync", "d": "disk", "e": "fsync"}


def topics(least: int) -> Callable[[Life, Client], Awaitable[None]]:
    """Five topics of both classes, on at least so many shards."""

    async def make(life: Life, client: Client) -> None:
        for name, durability in CLASSES.items():
            await client.make(name, durability)
        assert len({topic.shard for topic in life.engine.registry.topics.values()}) >= least
        await trio.sleep(0.1)

    return make


async def transacting(life: Life, client: Client) -> None:
    """Transactions one after another and side by side, beside plain appends to the same topics; some have keys, some
    are sent twice, one makes its topics."""
    first = await client.transaction({"a": 2, "b": 1}, key="one")
    await client.send(first)
    await client.append("a", key="one")
    await client.transaction({"b": 1, "c": 2, "d": 1, "a": 1, "e": 1}, size=300)
    async with trio.open_nursery() as clients:
        clients.start_soon(_twice, client, "cab", "two")
        clients.start_soon(client.transaction, "cb")
        clients.start_soon(client.append, "b", 2)
        clients.start_soon(_twice, client, "edcb", "three")
        clients.start_soon(client.append, "c")
        clients.start_soon(client.append, "d", 2)
        clients.start_soon(client.transaction, {"a": 3, "e": 1})
    await client.append("b")
    async with trio.open_nursery() as clients:
        for key in ("four", "five"):
            clients.start_soon(_making, client, key)
    await client.append("d")
    await trio.sleep(0.1)


async def _twice(client: Client, names: str, key: str) -> None:
    """Ask for something, and ask again while it is on its way."""
    parts = {name: client.history.part(2, tag="x") for name in names}
    asked = client.history.ask(parts, is_transaction=True, key=key)
    async with trio.open_nursery() as both:
        both.start_soon(client.send, asked)
        both.start_soon(client.send, asked)


async def _making(client: Client, key: str) -> None:
    await client.transaction({"n": 1, "a": 1, "m": 2}, key=key, makes="nm")


async def with_caps(life: Life, client: Client) -> None:
    """Topics that evict by records and by bytes, two that do not."""
    await client.make("r", "fsync", cap_records=5)
    await client.make("s", "disk", cap_records=3)
    await client.make("t", "fsync", cap_bytes=300)
    await client.make("u", "fsync")
    await client.make("v", "disk")
    for name in "rst":
        await client.append(name, 3)
    await trio.sleep(0.1)


async def evicting(life: Life, client: Client) -> None:
    """Transactions that evict, beside appends that do; once with segments."""
    for i in range(2):
        async with trio.open_nursery() as clients:
            clients.start_soon(_keyed, client, {"r": 2, "u": 1, "s": 2}, f"k{i}")
            clients.start_soon(client.append, "r", 2)
            clients.start_soon(_keyed, client, {"t": 3, "v": 1, "r": 1}, f"l{i}")
            clients.start_soon(client.append, "s")
            clients.start_soon(client.transaction, {"s": 5, "t": 1})
        await life.compactor.checkpoint()
    await client.transaction({"r": 7, "v": 1}, key="all")
    await trio.sleep(0.1)


async def _keyed(client: Client, counts: Mapping[str, int], key: str) -> None:
    await client.transaction(counts, key=key)


async def racing(life: Life, client: Client) -> None:
    """Transactions that exclude one another by heads, tags and fences, and appends that they exclude; all of it once
    more behind a checkpoint."""
    for turn in range(2):
        heads = {name: topic.log.head_seq for name, topic in life.engine.registry.topics.items()}
        newest = {tag: await _newest(life, "b", tag) for tag in TAGS}
        async with trio.open_nursery() as clients:
            for i in range(3):
                expected = {"a": fenced(10 * turn + i, heads["a"]), "c": fenced(i, name="g")}
                clients.start_soon(_conditional, client, {"a": 1, "b": 1, "c": 2}, expected, f"k{turn}{i}")
            clients.start_soon(_conditional, client, {"c": 1, "b": 2}, {"b": Conditions(None, newest)}, None)
            clients.start_soon(_conditional, client, {"d": 1, "a": 1}, {"d": fenced(turn, name="h")}, f"h{turn}")
            clients.start_soon(_fenced_append, client, "a", fenced(10 * turn + 1))
            clients.start_soon(_fenced_append, client, "c", Conditions(heads["c"]))
            clients.start_soon(client.append, "b")
            clients.start_soon(client.append, "c", 2)
        await life.compactor.checkpoint()
    await _conditional(client, {"e": 1, "a": 1}, {"a": fenced(0)}, "old")
    await trio.sleep(0.1)


async def _newest(life: Life, name: str, tag: str) -> int:
    return max(await _matching(life, name, tag), default=0)


async def _conditional(
    client: Client, counts: Mapping[str, int], conditions: Mapping[str, Conditions], key: str | None
) -> None:
    await client.transaction(counts, conditions=conditions, key=key)


async def _fenced_append(client: Client, name: str, conditions: Conditions) -> None:
    await client.append(name, tag="y", conditions=conditions)


async def storing(life: Life, client: Client) -> None:
    """Checkpoints while transactions are on their way, and files of the log that go."""
    over = trio.Event()

    async def load(names: str) -> None:
        for i in range(5):
            await client.transaction(names, size=150, key=f"{names}{i}")
            await client.append(names[0], size=150)

    async def checkpoints() -> None:
        while not over.is_set():
            await life.compactor.checkpoint()
            await trio.sleep(0.0005)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(checkpoints)
        async with trio.open_nursery() as clients:
            for names in ("ab", "cda", "ebdc"):
                clients.start_soon(load, names)
        over.set()
    await trio.sleep(0.1)
    await life.compactor.checkpoint()


async def failing(life: Life, client: Client) -> None:
    """The shard of one topic fails while transactions are on their way; what is on the others goes on."""
    registry = life.engine.registry.topics
    await client.transaction("abcde", key="before")
    lost = registry["c"].shard
    left = [name for name in CLASSES if registry[name].shard != lost]
    assert len({registry[name].shard for name in left}) > 1
    failed = [name for name in CLASSES if registry[name].shard == lost and CLASSES[name] == "fsync"]
    await trio.sleep(0.1)
    client.history.failed = client.history.tick()
    life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{lost:02d}/wal*", keep_some=True))
    async with trio.open_nursery() as clients:
        clients.start_soon(_conditional, client, dict.fromkeys([*left, "c"], 2), {left[0]: fenced(9)}, "undone")
        clients.start_soon(client.transaction, [*left[:2], *failed])
        for name in left:
            clients.start_soon(client.append, name)
        clients.start_soon(client.transaction, "".join(left))
    assert life.store.failed(lost)
    for _ in range(2):
        await _conditional(client, dict.fromkeys(left, 1), {left[0]: fenced(3)}, None)
        await client.append(left[-1])
        with suppress(ApiError, OSError):
            await life.compactor.checkpoint()
    assert client.history.asked[-1].firsts
    await client.append("c")
    assert client.history.asked[-1].refused is not None
    await trio.sleep(0.1)


async def stopping(life: Life, client: Client) -> None:
    """Nothing is decided in the log yet when the stop begins."""
    await client.transaction("abcde", key="last")
    await client.transaction("dca", key="very last")


async def at_work(life: Life, client: Client) -> None:
    """All of it."""
    await topics(1)(life, client)
    await transacting(life, client)
    async with trio.open_nursery() as clients:
        for names in ("abc", "ced", "bd"):
            clients.start_soon(_keyed, client, dict.fromkeys(names, 2), names)
        while not life.engine.registry.topics["a"].pending:
            await trio.lowlevel.checkpoint()
        clients.cancel_scope.cancel()  # nobody is told how these end


def recovery(name: str, end: End, before: int, now: int) -> Operation:
    """A start behind such a life."""
    earlier = Earlier(at_work, end, on(before))
    return Operation(name, (2, 8), HELD, TransactionSweep, on(now), nothing, from_start=True, earlier=(earlier,))


TRANSACTION_OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("transaction-on-one-shard", (8,), HELD, TransactionSweep, roomy(1), transacting, topics(1)),
    Operation("transaction-on-two-shards", (8,), HELD, TransactionSweep, roomy(2), transacting, topics(2)),
    Operation("transaction-on-three-shards", (8,), HELD, TransactionSweep, on(3), transacting, topics(3)),
    Operation("transaction-that-evicts", (6, 8), HELD, TransactionSweep, on(2), evicting, with_caps),
    Operation("conditional-transaction", (8,), HELD, TransactionSweep, on(3), racing, topics(3)),
    Operation("checkpoint-beside-transactions", (2, 8), HELD, TransactionSweep, on(3), storing, topics(3)),
    Operation("undone-transaction", (8, 27), HELD, TransactionSweep, on(3), failing, topics(3)),
    Operation("stop-behind-a-transaction", (8,), HELD, TransactionSweep, on(2), stopping, topics(2), end="stop"),
    recovery("recovery-of-transactions-after-kill", "kill", 3, 3),
    recovery("recovery-of-transactions-after-crash", "reorder", 3, 3),
    recovery("transactions-on-fewer-shards", "drop", 3, 2),
)
