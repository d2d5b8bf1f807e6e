"""Many transactions on their way at once, in topics that they share: what ends one of them ends or frees the others,
however many those are, and never a part of one (`docs/design/transactions.md` section 2)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise

import pytest
import trio

from tests.engine.walks import SlowOffload
from tests.simulation.disk import Fault
from tests.simulation.test_transaction_crashes import (
    CONFIG,
    Script,
    make,
    shown,
    visible_together,
)
from tests.simulation.world import Life, World, settings
from topics.errors import ApiError
from topics.model import CheckedAppend, Performance, RouterPatch, TopicConfigPatch
from topics.runtime.offload import Pool

MANY = 600
"""More than the calls that Python lets be open within one another."""


def on_other_shards(life: Life, count: int) -> list[str]:
    """So many topics, each on a shard of its own."""
    by_shard = {topic.shard: name for name, topic in life.engine.registry.topics.items()}
    assert len(by_shard) >= count
    return list(by_shard.values())[:count]


async def stall(life: Life, name: str, script: Script) -> None:
    """Have the shard of a topic wait for room with the next thing that is large."""
    shard = life.engine.registry.topics[name].shard
    for what in ("preallocate", "create"):
        life.fs.inject(Fault(error=errno.ENOSPC, name=what, path=f"*shard-{shard:02d}*", times=None))
    await script.append(life, name)


async def settled(life: Life) -> None:
    """Let what can be synced be synced, decisions too."""
    await trio.sleep(0.2)


# ----------------------------------------------------------------- failures


@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_a_shard_fails_with_several_transactions_over_the_same_topics_in_it(names: str) -> None:
    """The first one that fails has the others fail, each in all of its topics, and the daemon goes on."""
    world = World(4, config=settings(wal_shards=1))
    script = Script()
    known = 0

    async def live(life: Life) -> None:
        nonlocal known
        await make(life, names, durability="fsync")
        await script.transaction(life, dict.fromkeys(names, 1))
        known = len(script.history)
        life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log"))
        async with trio.open_nursery() as clients:
            for _ in range(5):
                clients.start_soon(partial(script.transaction, life, dict.fromkeys(names, 1)))
                clients.start_soon(script.append, life, names[0])
        assert life.store.failed(0)
        answers = [what for kind, what in script.history[known:] if kind not in {"asking", "appending"}]
        assert answers == ["read_only"] * 10
        assert not any(topic.pending for topic in life.engine.registry.topics.values())
        assert {len(records) for records in (await shown(life)).values()} == {1}

    async def look(life: Life) -> None:
        numbers = {name: set(records.values()) for name, records in (await shown(life)).items()}
        for kind, what in script.history:
            if kind == "asking":
                assert len({numbers[name] >= set(some) for name, some in what[0].items()}) == 1

    assert world.live(live, end="kill")
    for end in ("kill", "drop", "reorder"):
        assert world.after(end, 3).live(look, end="kill")


def test_a_shard_fails_with_a_chain_of_transactions_that_share_topics() -> None:
    """Each has one topic in common with the next one, so that the end of one is the end of the next."""
    count = MANY // 2
    world = World(4, config=settings(wal_shards=1, wal_file_bytes=1 << 20))
    world.offload = partial(SlowOffload, {Pool.WAL: 1.0}, (0.2,))
    names = [f"t{i}" for i in range(count)]

    async def live(life: Life) -> None:
        put = life.engine.topic_lifecycle.put
        async with trio.open_nursery() as makers:
            for name in names:
                makers.start_soon(put, name, TopicConfigPatch(durability="fsync"))
        life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log"))
        script = Script()
        async with trio.open_nursery() as clients:
            for one, other in pairwise(names):
                clients.start_soon(partial(script.transaction, life, {one: 1, other: 1}))
                while not life.engine.registry.topics[other].pending:
                    await trio.lowlevel.checkpoint()
        assert life.store.failed(0)
        assert [what for kind, what in script.history if kind != "asking"] == ["read_only"] * (count - 1)

    assert world.live(live, end="kill")


def test_a_transaction_behind_one_that_is_undone_in_a_failing_shard_is_whole_or_not_at_all() -> None:
    """Both shards of the second one hold it, but it was never visible: it waits for the first one in a topic that they
    share. The first one fails in its other shard, and then the shard of the shared topic fails."""
    world = World(11, config=CONFIG)
    script = Script()
    shared, second, first = "", "", ""
    seen: dict[int, int] = {}

    async def live(life: Life) -> None:
        nonlocal shared, second, first
        await make(life, "abcde", durability="fsync")
        shared, second, first = on_other_shards(life, 3)
        life.fs.subscribe(lambda op: visible_together(life))
        topics = life.engine.registry.topics
        await stall(life, first, script)
        async with trio.open_nursery() as clients:
            clients.start_soon(partial(script.transaction, life, {shared: 1, first: 1}, size=9000))
            await settled(life)
            clients.start_soon(partial(script.transaction, life, {shared: 2, second: 2}))
            await settled(life)
            assert [len(topics[name].pending or ()) for name in (shared, second, first)] == [2, 1, 1]
            life.fs.faults.clear()
            for name in (first, shared):
                life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{topics[name].shard:02d}/*.log"))
            await trio.sleep(5)
        assert [life.store.failed(topics[name].shard) for name in (shared, second, first)] == [True, False, True]
        await script.append(life, second)
        assert script.history[-1][0] == "appended"
        seen.update((await shown(life))[second])

    async def look(life: Life) -> None:
        found = await shown(life)
        assert found[second] == seen, f"a reader saw {seen}, and now there is {found[second]}"
        ((numbers, _),) = [what for kind, what in script.history if kind == "asking" and second in what[0]]
        there = {name: set(found[name].values()) >= set(some) for name, some in numbers.items()}
        assert len(set(there.values())) == 1, f"it is there in part: {there}"

    assert world.live(live, end="kill")
    for end in ("kill", "drop", "keep", "reorder"):
        after = world.after(end, 5)
        assert after.live(look, end="kill")
        assert after.after("drop").live(look, end="kill")


def test_a_transaction_that_waits_for_columns_counts_although_a_shard_of_it_fails() -> None:
    """It is decided, so a round may have it and a standby show it: nothing undoes it any more."""
    world = World(7, config=CONFIG)
    script = Script()

    async def live(life: Life) -> None:
        await make(life, "abcde", durability="fsync")
        shared, second = on_other_shards(life, 2)
        topic = life.engine.registry.topics[shared]
        missing = [None]
        async with trio.open_nursery() as clients:
            topic.common.fetch = lambda *_: None
            clients.start_soon(partial(script.transaction, life, {shared: 1, second: 1}))
            while not topic.pending:
                await trio.lowlevel.checkpoint()
            topic.pending[0].needs = lambda: tuple(missing)  # type: ignore[arg-type]
            await settled(life)
            assert topic.working is not None
            life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{topic.shard:02d}/*.log"))
            clients.start_soon(script.append, life, shared)
            await settled(life)
            assert life.store.failed(topic.shard)
            missing.clear()
            topic.resume()
        assert "acked" in [kind for kind, _ in script.history]

    async def look(life: Life) -> None:
        ((numbers, _),) = [what for kind, what in script.history if kind == "asking"]
        found = await shown(life)
        assert all(set(found[name].values()) >= set(some) for name, some in numbers.items())

    assert world.live(live, end="kill")
    for end in ("kill", "drop", "keep", "reorder"):
        assert world.after(end, 5).live(look, end="kill")


# ----------------------------------------------------------------- many


@pytest.mark.parametrize("is_undone", [False, True], ids=["counts", "undone"])
def test_hundreds_of_transactions_wait_for_one_and_are_visible_behind_it(is_undone: bool) -> None:
    """The first one waits for room in another shard. All behind it are published in the step in which it ends."""
    world = World(5, config=settings(wal_shards=4, wal_file_bytes=1 << 20))

    async def live(life: Life) -> None:
        await make(life, "abcde", durability="fsync")
        script = Script()
        shared, second, first = on_other_shards(life, 3)
        topics = life.engine.registry.topics
        await stall(life, first, script)
        transact: Callable[..., object] = script.transaction
        async with trio.open_nursery() as clients:
            clients.start_soon(partial(transact, life, {shared: 1, first: 1}, size=1 << 20))  # type: ignore[arg-type]
            await settled(life)
            for _ in range(MANY):
                clients.start_soon(partial(transact, life, {shared: 1, second: 1}))  # type: ignore[arg-type]
            await settled(life)
            assert len(topics[second].pending or ()) == MANY
            life.fs.subscribe(lambda op: visible_together(life))
            life.fs.faults.clear()
            if is_undone:
                shard = topics[first].shard
                life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{shard:02d}/*.log"))
        kinds = [kind for kind, _ in script.history]
        assert kinds.count("acked") == (MANY if is_undone else MANY + 1)
        assert not any(topic.pending for topic in topics.values())
        with suppress(ApiError):
            await life.compactor.checkpoint()
        found = await shown(life)
        assert len(found[second]) == MANY
        assert len(found[shared]) == (MANY if is_undone else MANY + 1)

    assert world.live(live, end="kill")


# ----------------------------------------------------------------- kept back in replay


@pytest.mark.parametrize("behind", ["copies", "commit"])
def test_records_behind_a_transaction_at_the_end_of_a_complete_file_are_no_loss(behind: str) -> None:
    """Replay keeps them back until it has read the other shard. The end of the file says up to which seq it goes."""
    world = World(8, config=settings(wal_shards=2, wal_file_bytes=4 << 10))
    script = Script()
    names: list[str] = []

    async def live(life: Life) -> None:
        await make(life, "abcdef", durability="fsync")
        on = {name: topic.shard for name, topic in life.engine.registry.topics.items()}
        shared, source, filler = names[:] = [name for name in on if on[name] == 0]
        other = next(name for name in on if on[name] == 1)
        if behind == "copies":
            await life.engine.routers.put("r", RouterPatch(source=source, dest=shared))
        else:
            for name in "ghij":
                if not life.store.shard_of(life.engine.registry.next_topic_id):
                    break
                await make(life, name, durability="fsync")
            staged = CheckedAppend(records=[], datas=[b"[101, 0]", b"[102, 0]"], nodes=None, tags=None, metas=None)
            await life.engine.stages.append(shared, "s", staged, Performance())
        life.fs.inject(Fault(error=errno.EIO, path="*/meta/snapshot*", times=None))  # all is replayed
        await stall(life, other, script)
        async with trio.open_nursery() as clients:
            clients.start_soon(partial(script.transaction, life, {shared: 1, other: 1}, size=9000))
            await settled(life)
            assert life.engine.registry.topics[shared].pending
            if behind == "copies":
                await script.append(life, source, 2)
            else:
                clients.start_soon(life.engine.stage_commits.commit, shared, ["s"], "key", Performance())
            await settled(life)
            assert life.engine.registry.topics[shared].assigned == 3
            files = len(life.store.files.of_shard(0))
            for _ in range(100):
                if len(life.store.files.of_shard(0)) > files:
                    break
                await script.append(life, filler)
            assert len(life.store.files.of_shard(0)) > files
            clients.cancel_scope.cancel()

    async def look(life: Life) -> None:
        """Nobody is told of a loss, and only the transaction, which was undone, is not there."""
        assert [*(await shown(life))[names[0]]] == [2, 3]

    assert world.live(live, end="kill")
    for end in ("kill", "drop", "reorder"):
        assert world.after(end, 3).live(look, end="kill")
