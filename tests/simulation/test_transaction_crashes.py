"""Crash everywhere, with transactions over topics of several shards, beside appends, deletions, evictions and
checkpoints (`docs/spec/consumers.md` section 1, `docs/design/transactions.md`).

What has to hold after any crash: a transaction is there whole or not at all, in all of its topics; an acked one is
there with the same seqs; a repeat under its key says so; what anybody has read stays what it was; and nobody is told
that anything is missing.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.disk import Fault, SimFs
from tests.simulation.world import End, Life, World, all_ends, disk_after, settings, some_ends, wrecks_of
from tests.storage.offline.test_verify import damage
from topics.config import Settings
from topics.errors import ApiError
from topics.model import (
    AppendRequest,
    Conditions,
    Fence,
    Performance,
    ReadRequest,
    RecordIn,
    TopicConfigPatch,
    TransactionRequest,
    TransactionResult,
)
from topics.storage.files.file_header import decode_file_header
from topics.storage.recovery.damage import Damage
from topics.storage.wal import frames
from topics.storage.wal.frames import Frame, FrameType

SHARDS: Final[dict[str, Any]] = {"wal_shards": 4, "wal_file_bytes": 4 << 10, "segment_max_events": 8}
CONFIG: Final = settings(**SHARDS)

Shown = dict[str, dict[int, int]]
"""The number of the record at each seq, by topic."""


def records_of(numbers: Sequence[int], size: int = 40) -> list[RecordIn]:
    return [RecordIn(data=msgspec.Raw(json.dumps([n, "x" * size]).encode()), tag=f"t{n % 2}") for n in numbers]


class Script:
    """What clients do, and what they were told: (kind, what), as of each moment."""

    def __init__(self) -> None:
        self.history: list[tuple[str, Any]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self.history)

    def _numbers(self, count: int) -> list[int]:
        self._number += count
        return list(range(self._number - count + 1, self._number + 1))

    async def append(self, life: Life, topic: str, count: int = 1) -> None:
        numbers = self._numbers(count)
        self.history.append(("appending", (topic, numbers)))
        request = AppendRequest(records=records_of(numbers))
        try:
            result = await life.engine.appends.append(topic, request, Performance())
        except ApiError as error:
            self.history.append(("refused", error.code))
            return
        self.history.append(("appended", (topic, numbers, result.first_seq)))

    async def transaction(
        self, life: Life, counts: Mapping[str, int], key: str | None = None, size: int = 40
    ) -> TransactionResult | None:
        numbers = {topic: self._numbers(count) for topic, count in counts.items()}
        self.history.append(("asking", (numbers, key)))
        try:
            result = await life.engine.transactions.append(request_of(numbers, key, size), Performance())
        except ApiError as error:
            self.history.append(("refused", error.code))
            return None
        self.history.append(("acked", (numbers, key, result)))
        return result

    async def look(self, life: Life) -> None:
        self.history.append(("saw", await shown(life)))


def request_of(numbers: Mapping[str, Sequence[int]], key: str | None, size: int = 40) -> TransactionRequest:
    appends = [AppendRequest(records=records_of(some, size)) for some in numbers.values()]
    return TransactionRequest(topics=list(numbers), appends=appends, idempotency_key=key)


async def shown(life: Life, *, loss: bool = False) -> Shown:
    """All that readers get; no reader is told of a loss, unless `loss`."""
    found: Shown = {}
    for name in list(life.engine.registry.topics):
        records, position = dict[int, int](), 0
        while True:
            asked = ReadRequest(from_seq=position, limit=1000)
            answer = await life.engine.reads.read(name, asked, Performance())
            if answer.tombstone is not None:
                assert loss or answer.tombstone.reason == "cap", answer.tombstone
            records |= {row["$seq"]: row["data"][0] for row in json.loads(b"[%b]" % answer.records)}
            position = answer.next_from_seq
            if answer.caught_up:
                break
        found[name] = records
        topic = life.engine.registry.topics[name]
        assert topic.log.count == len(records)
        topic.log.check()
    return found


class Known:
    """What was known when the history was so long."""

    def __init__(self, history: Sequence[tuple[str, Any]]) -> None:
        self.asked: list[tuple[dict[str, list[int]], str | None]] = []
        self.acked: dict[str, dict[int, int]] = {}
        """The number of the record at each seq that a client was told of, by topic."""
        self.answers: dict[str, TransactionResult] = {}
        self.gone: set[str] = set()
        """Topics with deletions or caps, where records may be gone."""
        for kind, what in history:
            if kind == "asking":
                self.asked.append(what)
            elif kind == "acked":
                numbers, key, result = what
                for one in result.appends:
                    self._take(one.topic, one.first_seq, numbers[one.topic])
                if key is not None:
                    self.answers[key] = result
            elif kind == "appended":
                self._take(what[0], what[2], what[1])
            elif kind == "saw":
                for topic, records in what.items():
                    self.acked.setdefault(topic, {}).update(records)
            elif kind == "loses":
                self.gone.add(what)

    def _take(self, topic: str, first: int, numbers: Sequence[int]) -> None:
        self.acked.setdefault(topic, {}).update(enumerate(numbers, first))


async def judge(life: Life, known: Known, fate: End, weak: frozenset[str]) -> Shown:
    """Check everything about a recovered machine. `weak`: topics whose appends may be lost with the machine. Returns
    what they show before and after the repeats."""
    found = await shown(life, loss=bool(weak) and fate != "kill")
    for topic, records in known.acked.items():
        for seq, number in records.items():
            there = found.get(topic, {}).get(seq)
            if there is None:
                assert topic in known.gone or (topic in weak and fate != "kill"), f"{topic}/{seq} is gone"
            else:
                assert there == number, f"{topic}/{seq} was {number} and is {there}"
    for numbers, key in known.asked:
        present = {topic: [n for n in found.get(topic, {}).values() if n in some] for topic, some in numbers.items()}
        kept = {topic for topic in numbers if topic not in known.gone}
        whole = {present[topic] == numbers[topic] for topic in kept}
        assert len(whole) <= 1, f"there in part: {present} of {numbers}"
        if whole == {False}:
            assert not any(present.values()), f"{present} of a transaction that is not there: {numbers}"
        if key is None or not all(topic in life.engine.registry.topics for topic in numbers):
            continue
        result = await life.engine.transactions.append(request_of(numbers, key), Performance())
        if whole:
            assert result.deduped is (whole == {True}), f"{key}: {result}, with {present}"
        if key in known.answers:
            assert result.deduped
            told = [(one.topic, one.first_seq, one.last_seq) for one in known.answers[key].appends]
            assert [(one.topic, one.first_seq, one.last_seq) for one in result.appends] == told
    return await shown(life, loss=bool(weak) and fate != "kill")


def visible_together(life: Life) -> None:
    """No moment shows a part of a transaction."""
    for transaction in life.engine.registry.common.in_doubt:
        published = {member.published for member in transaction.members if member.error is None}
        assert len(published) == 1 or transaction.error is not None


Scenario = Callable[[Life, Script], Awaitable[None]]


def crash_everywhere(
    scenario: Scenario,
    *,
    stride: int,
    config: Settings = CONFIG,
    following: Settings | None = None,
    weak: frozenset[str] = frozenset(),
) -> int:
    """Run it, crash before every `stride`-th operation, judge what the start after it shows; how many that were."""
    script = Script()
    world = World(11, config=config)
    wrecks = wrecks_of(world, lambda: len(script), stride=1 if EVERYTHING else stride)

    async def live(life: Life) -> None:
        world.fs.subscribe(lambda op: visible_together(life))
        await scenario(life, script)
        life.engine.status.phase = "draining"

    assert world.live(live, end="kill")
    judged = 0
    for wreck in wrecks:
        for end, seed in all_ends(wreck.point, 1) if EVERYTHING else some_ends(wreck.point, 2):
            fs = disk_after(wreck.fs, end, seed)
            told: list[Shown] = []

            async def look(life: Life, end: End = end, told: Any = told, wreck: Any = wreck) -> None:
                told.append(await judge(life, Known(script.history[: wreck.known]), end, weak))
                life.engine.status.phase = "draining"

            async def again(life: Life, told: Any = told) -> None:
                assert await shown(life, loss=bool(weak)) == told[0], "the second recovery shows something else"
                for _ in range(2):
                    await life.compactor.checkpoint()

            async def first(life: Life) -> None:
                life.engine.status.phase = "draining"

            try:
                after = World(seed, config=following or config, fs=fs, now_ms=wreck.now_ms)
                if wreck.point % 2:  # what one start has decided, the next must not decide otherwise
                    assert after.live(first, end="kill")
                    after = after.after("drop")
                assert after.live(look, end="kill")
                if wreck.point % 3 == 0:
                    assert damage(after.fs.after_process_kill()) == []
                after = after.after("drop" if not weak else "kill")
                assert after.live(again, end="kill")
                assert after.after("drop" if not weak else "kill").live(again, end="kill")
            except Exception as error:
                raise AssertionError(f"{wreck}, {end}/{seed}: {type(error).__name__}: {error}") from error
            judged += 1
    return judged


# ----------------------------------------------------------------- scenarios


async def make(life: Life, names: str, **config: Any) -> None:
    for name in names:
        await life.engine.topic_lifecycle.put(name, TopicConfigPatch(**config))


async def checkpoint(life: Life) -> None:
    """A checkpoint, which may fail with a disk."""
    with suppress(ApiError, OSError):
        await life.compactor.checkpoint()


async def beside_appends(life: Life, script: Script) -> None:
    """Transactions of different sizes beside one another, beside appends to their topics and checkpoints."""
    if not life.engine.registry.topics:
        await make(life, "abcde", durability="fsync")

    async def appends(name: str) -> None:
        for i in range(4):
            await script.append(life, name, 1 + i % 2)

    async def transactions(names: str, keys: str) -> None:
        for i in range(3):
            counts = {name: 1 + (i + k) % 2 for k, name in enumerate(names)}
            await script.transaction(life, counts, f"{keys}{i}")

    async def checkpoints() -> None:
        for _ in range(3):
            await trio.sleep(0.002)
            await checkpoint(life)

    async with trio.open_nursery() as clients:
        clients.start_soon(transactions, "ab", "x")
        clients.start_soon(transactions, "cba", "y")
        clients.start_soon(transactions, "edcb", "z")
        clients.start_soon(appends, "b")
        clients.start_soon(appends, "d")
        clients.start_soon(checkpoints)
    await script.look(life)
    await checkpoint(life)
    await script.transaction(life, {"e": 9, "a": 9}, "last")
    await trio.sleep(0.1)
    await checkpoint(life)


async def of_other_kinds(life: Life, script: Script) -> None:
    """Topics with caps, with deletions, of class `disk`, and a queue."""
    await make(life, "a", durability="fsync", cap_records=5)
    await make(life, "b", durability="fsync")
    await make(life, "c", durability="disk")
    await make(life, "q", durability="fsync", type="queue")
    script.history += [("loses", "a"), ("loses", "q"), ("loses", "b")]

    async def transactions() -> None:
        for i in range(5):
            await script.transaction(life, {"a": 2, "q": 1, "c": 1, "b": 1}, f"k{i}")

    async def others() -> None:
        for i in range(4):
            await script.append(life, "a")
            await script.append(life, "c", 2)
            await life.engine.deletions.delete_records("b", 2 + i, None, Performance())

    async with trio.open_nursery() as clients:
        clients.start_soon(transactions)
        clients.start_soon(others)
    await life.compactor.checkpoint()
    await script.transaction(life, {"c": 2, "a": 3})
    await trio.sleep(0.05)


@pytest.mark.parametrize(
    ("scenario", "stride", "weak"), [(beside_appends, 10, ""), (of_other_kinds, 8, "c")], ids=["appends", "kinds"]
)
def test_a_transaction_is_whole_or_not_at_all_after_any_crash(scenario: Scenario, stride: int, weak: str) -> None:
    assert crash_everywhere(scenario, stride=stride, weak=frozenset(weak)) > 10


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "weak"), [(beside_appends, ""), (of_other_kinds, "c")])
def test_the_same_at_more_points(scenario: Scenario, weak: str) -> None:
    assert crash_everywhere(scenario, stride=2, weak=frozenset(weak)) > 20


def test_one_shard() -> None:
    assert crash_everywhere(beside_appends, stride=13, config=settings(wal_shards=1, wal_file_bytes=4 << 10)) > 5


def test_another_number_of_shards() -> None:
    following = settings(wal_shards=3, wal_file_bytes=4 << 10, segment_max_events=8)
    assert crash_everywhere(beside_appends, stride=23, following=following) > 5


# ----------------------------------------------------------------- a disk that fails


async def despite(life: Life, script: Script) -> None:
    """As `beside_appends`; some of it is refused. Topics of the shards that go on are used, and read."""
    await beside_appends(life, script)
    await script.look(life)
    for name in "abcde":
        topic = life.engine.registry.topics[name]
        await script.append(life, name)
        stalled = life.store.writers[topic.shard].stall.refusal is not None
        if not life.store.failed(topic.shard) and not stalled:
            assert script.history[-1][0] == "appended", f"{name} does not go on: {script.history[-1]}"
            assert not topic.pending
    await script.look(life)


FAULTS: Final[dict[str, Callable[[int], Fault]]] = {
    "eio": lambda at: Fault(error=errno.EIO, when=lambda op: op.mutation == at),
    "eio-in-part": lambda at: Fault(error=errno.EIO, when=lambda op: op.mutation == at, keep_some=True, short=100),
    "eio-but-done": lambda at: Fault(error=errno.EIO, when=lambda op: op.mutation == at, applied=True),
    "enospc": lambda at: Fault(
        error=errno.ENOSPC,
        times=30,
        when=lambda op: op.mutation is not None and op.mutation >= at and op.name in ("pwrite", "preallocate"),
    ),
}


def fail_everywhere(kind: str, *, stride: int) -> int:
    """One run for each `stride`-th operation on the log that fails; how many shards went read-only in all."""
    ops: list[int] = []
    world = World(11, config=CONFIG)

    async def count(life: Life) -> None:
        await make(life, "abcde", durability="fsync")
        begun = life.fs.mutations
        await despite(life, Script())
        written = (op for op in life.fs.ops if op.mutation is not None and "/wal/" in op.path)
        ops.extend(op.mutation for op in written if op.mutation is not None and op.mutation >= begun)

    assert world.live(count, end="kill")
    failed = 0
    for at in ops[3 * list(FAULTS).index(kind) % stride :: stride]:
        script, world = Script(), World(11, config=CONFIG)
        world.fs.inject(FAULTS[kind](at))
        undone: list[int] = []

        async def live(life: Life, script: Script = script, undone: list[int] = undone) -> None:
            life.fs.subscribe(lambda op: visible_together(life))
            await make(life, "abcde", durability="fsync")
            await despite(life, script)
            undone.append(sum(life.store.failed(shard) for shard in range(4)))
            life.engine.status.phase = "draining"

        try:
            assert world.live(live, end="kill")
            failed += undone[0]
            for end in ("kill", "drop", "reorder"):
                told: list[Shown] = []

                async def look(life: Life, told: Any = told, script: Script = script) -> None:
                    told.append(await judge(life, Known(script.history), "kill", frozenset()))

                async def again(life: Life, told: Any = told) -> None:
                    assert await shown(life) == told[0], "the second recovery shows something else"

                after = world.after(end, 7)
                assert after.live(look, end="kill")
                assert after.after("drop").live(again, end="kill")
        except Exception as error:
            raise AssertionError(f"{kind} at {at}: {type(error).__name__}: {error}") from error
    return failed


@pytest.mark.parametrize("kind", FAULTS)
def test_a_failed_shard_undoes_a_transaction_everywhere(kind: str) -> None:
    failed = fail_everywhere(kind, stride=19)
    assert failed > 0 or kind == "enospc"


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_the_same_with_a_fault_at_more_operations(kind: str) -> None:
    failed = fail_everywhere(kind, stride=1 if EVERYTHING else 3)
    assert failed > 0 or kind == "enospc"


def test_an_undone_transaction_uses_its_seqs_up_silently() -> None:
    """One of three shards fails: the client gets 503, the topics of the others go on behind the seqs, and so they do
    after a restart, although the page cache shows all batches whole."""
    world = World(3, config=CONFIG)
    names: list[str] = []

    async def live(life: Life) -> None:
        await make(life, "abcde", durability="fsync")
        topics = life.engine.registry.topics
        by_shard = {topics[name].shard: name for name in "abcde"}
        names.extend(by_shard.values())
        assert len(names) > 2
        script = Script()
        for name in names:
            await script.append(life, name)
        failing = topics[names[0]]
        life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{failing.shard:02d}/wal*"))
        assert await script.transaction(life, dict.fromkeys(names, 2), "k") is None
        assert script.history[-1] == ("refused", "read_only")
        assert life.store.failed(failing.shard)
        for name in names[1:]:
            assert topics[name].log.head_seq == 3
            await script.append(life, name)
        records = await shown(life)
        assert [list(records[name]) for name in names] == [[1], *[[1, 4]] * (len(names) - 1)]
        assert not topics[names[1]].transactions

    async def look(life: Life) -> None:
        records = await shown(life)
        assert [list(records[name]) for name in names[1:]] == [[1, 4]] * (len(names) - 1)
        result = await life.engine.transactions.append(request_of({names[1]: [9], names[2]: [9]}, "k"), Performance())
        assert not result.deduped

    assert world.live(live, end="kill")
    for end in ("kill", "drop", "keep"):
        assert world.after(end).live(look, end="kill")


def test_a_steady_load_of_transactions_does_not_keep_the_log() -> None:
    """At any moment some are in doubt; files of the log go all the same."""
    world = World(5, config=CONFIG)

    async def live(life: Life) -> None:
        await make(life, "abcd", durability="fsync")
        script = Script()

        async def load(names: str) -> None:
            while not done:
                await script.transaction(life, dict.fromkeys(names, 1), size=200)

        async def checkpoints() -> None:
            for _ in range(12):
                for _ in range(100):
                    await trio.lowlevel.checkpoint()
                in_doubt.append(len(life.engine.registry.common.in_doubt))
                await life.compactor.checkpoint()
            done.append(True)

        done: list[bool] = []
        in_doubt: list[int] = []
        async with trio.open_nursery() as clients:
            clients.start_soon(load, "ab")
            clients.start_soon(load, "cdb")
            clients.start_soon(checkpoints)
        assert sum(map(bool, in_doubt)) > 6
        await trio.sleep(0.1)
        assert not life.engine.registry.common.in_doubt
        assert any(event.get("event") == "wal_file_dropped" for event in world.events)

    assert world.live(live, end="kill")


def test_a_large_transaction_waits_for_columns_and_is_published_at_once() -> None:
    """A topic with a cap whose oldest records are in segments: eviction needs their columns."""
    world = World(6, config=CONFIG)

    async def live(life: Life) -> None:
        await make(life, "a", durability="fsync", cap_records=20)
        await make(life, "b", durability="fsync")
        script = Script()
        for _ in range(5):
            await script.append(life, "a", 8)
            await life.compactor.checkpoint()
        life.fs.subscribe(lambda op: visible_together(life))
        async with trio.open_nursery() as clients:
            for _ in range(4):
                clients.start_soon(script.transaction, life, {"a": 6, "b": 1})
        records = await shown(life)
        assert list(records["a"]) == list(range(45, 65))
        assert len(records["b"]) == 4

    assert world.live(live)


def test_a_transaction_that_a_stopping_shard_does_not_take_is_undone() -> None:
    world = World(8, config=CONFIG)

    async def live(life: Life) -> None:
        await make(life, "abcde", durability="fsync")
        topics = life.engine.registry.topics
        script = Script()
        stopped = topics["b"].shard
        await life.store.writers[stopped].stop()
        others = [name for name in "abcde" if topics[name].shard != stopped]
        assert await script.transaction(life, {others[0]: 1, "b": 1, others[1]: 1}) is None
        assert script.history[-1] == ("refused", "shutting_down")
        await script.append(life, others[0])
        assert [list((await shown(life))[name]) for name in (others[0], "b")] == [[2], []]

    async def look(life: Life) -> None:
        assert sorted(map(len, (await shown(life)).values())) == [0, 0, 0, 0, 1]

    assert world.live(live, end="kill")
    assert world.after("kill").live(look, end="kill")


def test_a_fence_of_an_undone_transaction_is_as_it_was_before_it() -> None:
    world = World(8, config=CONFIG)
    others: list[str] = []

    async def live(life: Life) -> None:
        await make(life, "abcde", durability="fsync")
        topics = life.engine.registry.topics
        others.extend(name for name in "abcde" if topics[name].shard != topics["b"].shard)
        raised, fresh = others[:2]
        await append_with(life, raised, Fence("leader", 3))
        await life.store.writers[topics["b"].shard].stop()
        asked = request_of({raised: [1], fresh: [2], "b": [3]}, None)
        asked.appends[0].conditions = Conditions(None, {}, Fence("leader", 7))
        asked.appends[1].conditions = Conditions(None, {}, Fence("leader", 9))
        with pytest.raises(ApiError, match="shutting down"):
            await life.engine.transactions.append(asked, Performance())
        await append_with(life, raised, Fence("leader", 3))
        await append_with(life, fresh, Fence("leader", 1))
        assert [tokens(life, name) for name in (raised, fresh)] == [{"leader": 3}, {"leader": 1}]

    async def look(life: Life) -> None:
        assert [tokens(life, name) for name in others[:2]] == [{"leader": 3}, {"leader": 1}]

    assert world.live(live, end="kill")
    assert world.after("kill").live(look, end="kill")


def test_conditions_wait_for_an_undecided_transaction_and_a_fence_survives_with_its_transaction() -> None:
    world = World(9, config=CONFIG)

    async def live(life: Life) -> None:
        await make(life, "abcde", durability="fsync")
        topics = life.engine.registry.topics
        other = next(name for name in "bcde" if topics[name].shard != topics["a"].shard)
        asked = request_of({"a": [1], other: [2]}, None)
        asked.appends[0].conditions = Conditions(0, {}, Fence("leader", 5))
        asked.appends[1].conditions = Conditions(0, {}, None)
        seen: list[str] = []

        async def follow(what: Callable[[], Awaitable[object]], name: str) -> None:
            try:
                await what()
            except ApiError as error:
                name += " " + error.code
            seen.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follow, lambda: life.engine.transactions.append(asked, Performance()), "transaction")
            while not topics["a"].pending:
                await trio.lowlevel.checkpoint()
            fenced = Fence("leader", 4)
            nursery.start_soon(follow, lambda: append_with(life, "a", fenced), "append")
            nursery.start_soon(
                follow, lambda: life.engine.fence_removals.remove("a", "other", Performance()), "removal"
            )
        assert seen[0] == "transaction"
        assert sorted(seen[1:]) == ["append fenced", "removal"]
        assert tokens(life, "a") == {"leader": 5}

    async def look(life: Life) -> None:
        assert tokens(life, "a") == {"leader": 5}
        with pytest.raises(ApiError, match="below 5"):
            await append_with(life, "a", Fence("leader", 4))

    assert world.live(live, end="kill")
    for end in ("kill", "drop"):
        assert world.after(end).live(look, end="kill")


async def append_with(life: Life, topic: str, fence: Fence) -> None:
    request = AppendRequest(records=records_of([0]), conditions=Conditions(None, {}, fence))
    await life.engine.appends.append(topic, request, Performance())


def tokens(life: Life, name: str) -> dict[str, int]:
    """The fences that a topic shows."""
    fences = life.engine.registry.topics[name].fences
    assert fences is not None
    assert fences.decided == fences.published
    return fences.published


def frames_about(fs: SimFs) -> Iterator[tuple[str, Frame, dict[str, Any]]]:
    """The frames about transactions in all logs: file, frame, payload."""
    for shard in range(4):
        directory = f"/data/wal/shard-{shard:02d}"
        for name in sorted(name for name in fs.listdir(directory) if name.endswith(".log")):
            blob = fs.read(f"{directory}/{name}")
            header = decode_file_header(blob[:32])
            assert header is not None
            for frame in frames.scan_window(blob[32:], 32, file_end=len(blob), salt=header.salt).frames:
                if frame.type in (FrameType.TRANSACTION, FrameType.TRANSACTION_DECISION):
                    yield f"{directory}/{name}", frame, frames.control_payload(blob, 0, frame)


def frames_of(fs: SimFs) -> list[tuple[int, int, dict[str, Any]]]:
    """Type, topic id and payload of these frames."""
    return [(frame.type, frame.topic_id, payload) for _, frame, payload in frames_about(fs)]


def places_of(fs: SimFs, kind: FrameType, topic_id: int) -> Iterator[tuple[str, int]]:
    """File and offset of those of one type and topic."""
    for path, frame, _ in frames_about(fs):
        if (frame.type, frame.topic_id) == (kind, topic_id):
            yield path, frame.offset


def test_after_a_start_each_batch_of_a_transaction_has_its_decision_beside_it() -> None:
    """The next start decides as this one did, with the files that are left."""
    script = Script()
    world = World(11, config=CONFIG)
    wrecks = wrecks_of(world, lambda: len(script), stride=5)

    async def live(life: Life) -> None:
        await beside_appends(life, script)
        life.engine.status.phase = "draining"

    async def start(life: Life) -> None:
        life.engine.status.phase = "draining"

    assert world.live(live, end="kill")
    in_doubt = 0
    for wreck in wrecks:
        after = World(1, config=CONFIG, fs=disk_after(wreck.fs, "tear", wreck.point), now_ms=wreck.now_ms)
        decided = [payload for kind, _, payload in frames_of(after.fs) if kind == FrameType.TRANSACTION_DECISION]
        assert after.live(start, end="kill")
        found = frames_of(after.after("drop").fs)
        batches = {
            (topic_id, first)
            for kind, topic_id, payload in found
            if kind == FrameType.TRANSACTION
            for owner, first, _ in payload["members"]
            if owner == topic_id
        }
        decisions = {
            (topic_id, payload["first"]) for kind, topic_id, payload in found if kind == FrameType.TRANSACTION_DECISION
        }
        assert batches <= decisions
        in_doubt += len(decisions) > len(decided)
    assert in_doubt > 3


def test_no_replay_begins_behind_a_transaction_in_doubt() -> None:
    """A checkpoint may pass over other frames, but a shard must not look as if it never had the batch."""
    world = World(7, config=CONFIG)

    async def live(life: Life) -> None:
        await make(life, "abcd", durability="fsync")
        script, common = Script(), life.engine.registry.common
        checkpoint = life.compactor.checkpoint
        await script.transaction(life, dict.fromkeys("abcd", 1))
        (transaction,) = common.in_doubt
        await trio.sleep(0.1)
        assert not common.in_doubt
        common.in_doubt[transaction] = None  # as if one of its Decision frames could not be written
        for name in "abcd":
            await script.append(life, name)
        taken = await checkpoint()
        assert (
            taken.positions.items()
            >= {shard: list(start.position) for shard, start in transaction.starts.items()}.items()
        )
        common.in_doubt.clear()
        assert all(place > taken.positions[shard] for shard, place in (await checkpoint()).positions.items())

    assert world.live(live)


@pytest.mark.parametrize("kind", [FrameType.TRANSACTION, FrameType.TRANSACTION_DECISION])
def test_damage_in_one_shard_takes_nothing_from_the_topics_of_others(kind: FrameType) -> None:
    """The frame that decides is damaged, or the batch: strict refuses, salvage keeps what is there."""
    world = World(9, config=CONFIG)
    told: list[Shown] = []

    async def live(life: Life) -> None:
        await make(life, "abcd", durability="fsync")
        script = Script()
        for i in range(4):
            await script.transaction(life, dict.fromkeys("abcd", 1), f"k{i}")
            await script.append(life, "a")
            await trio.sleep(0.1)
        told.append(await shown(life))

    assert world.live(live, end="kill")
    world = world.after("drop")
    owner = "a" if kind == FrameType.TRANSACTION_DECISION else "b"
    ids = {"a": 1, "b": 2}
    path, offset = next(places_of(world.fs, kind, ids[owner]))
    world.fs.flip_bit(path, offset + 45, 0)
    with pytest.raises(Damage):
        World(1, config=CONFIG, fs=world.after("drop").fs).live(live)

    async def look(life: Life) -> None:
        found = await shown(life, loss=True)
        assert {name: found[name] for name in "acd"} == {name: told[0][name] for name in "acd"}
        assert found["b"].items() <= told[0]["b"].items()
        assert (found["b"] == told[0]["b"]) is (owner == "a")

    salvaged = World(1, config=settings(**SHARDS, recovery="salvage"), fs=world.fs, now_ms=world.clock.now_ms())
    assert salvaged.live(look, end="kill")
    assert salvaged.after("drop").live(look, end="kill")


def test_an_undone_transaction_evicts_nothing_and_logs_what_ttl_had_evicted() -> None:
    world = World(3, config=CONFIG)
    told: list[tuple[int, int, int]] = []

    def facts(life: Life) -> tuple[int, int, int]:
        log = life.engine.registry.topics["a"].log
        return log.earliest_seq, log.losses.evict_floor, log.count

    async def live(life: Life) -> None:
        await make(life, "a", durability="fsync", cap_records=4, ttl_ms=500)
        await make(life, "bcde", durability="fsync")
        topics = life.engine.registry.topics
        other = next(name for name in "bcde" if topics[name].shard != topics["a"].shard)
        script = Script()
        await script.append(life, "a", 2)
        await trio.sleep(0.4)
        await script.append(life, "a", 2)
        await trio.sleep(0.2)
        life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{topics[other].shard:02d}/wal*"))
        assert await script.transaction(life, {"a": 3, other: 1}) is None
        told.append(facts(life))
        assert told == [(3, 3, 2)]

    async def look(life: Life) -> None:
        assert facts(life) == told[0]
        life.engine.status.phase = "draining"

    assert world.live(live, end="kill")
    for end in ("kill", "drop"):
        assert world.after(end).live(look, end="kill")
