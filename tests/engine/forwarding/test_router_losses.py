"""Records that cannot be forwarded, copies whose original goes, and topics that are deleted."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio

from tests.engine.forwarding.router_calls import CLASSES, datas, figures, route
from tests.engine.life import living, settings
from tests.simulation.disk import SimFs
from topics.errors import ApiError

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- what cannot be had


async def test_a_record_that_can_never_fit_is_one_seq_of_a_hole(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_bytes=20, discard="reject")
        await route(life, "r", "a", "b", filter="t")
        await life.append("a", {"data": 1, "tag": "t"}, 2, {"data": "x" * 30, "tag": "t"}, {"data": 4, "tag": "t"})
        found, gaps = await life.all("b")
        assert [(record["$seq"], record["data"]) for record in found] == [(1, 1), (3, 4)]
        assert gaps == [(2, 2, "source_trim")]
        assert await figures(life, "r") == (4, 0, 2)


async def test_a_stamp_counts_when_it_is_judged_whether_a_record_can_fit(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_bytes=40, discard="reject")
        await route(life, "r", "a", "b", guarantee="exactly_once")
        await life.append("a", "x" * 30, 1)
        assert (await life.all("b"))[1] == [(1, 1, "source_trim")]
        assert await datas(life, "b") == [1]


@pytest.mark.parametrize("durability", CLASSES)
async def test_what_retention_takes_before_a_blocked_router_is_one_seq_of_a_hole(
    durability: Any, autojump_clock: Any
) -> None:
    async with living() as life:
        await life.put("a", durability=durability)
        await life.put("b", cap_records=2, discard="reject")
        await route(life, "r", "a", "b")
        await route(life, "on", "b", "c")
        await life.append("a", *range(8))
        await trio.sleep(3)
        await life.put("a", cap_records=3)
        await life.put("b", cap_records=0)
        await trio.sleep(3)
        for name in "bc":
            assert await datas(life, name) == [0, 1, 5, 6, 7]
            assert (await life.all(name))[1] == [(3, 3, "source_trim")]
        assert await figures(life, "r") == (8, 0, 5)


async def test_a_loss_does_not_go_around_a_cycle_for_ever(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_bytes=20, discard="reject")
        await route(life, "r1", "a", "b", allow_cycle=True)
        await route(life, "r2", "b", "a", allow_cycle=True)
        await life.append("a", "x" * 30, 1)
        await trio.sleep(30)
        heads = [life.engine.registry.topics[name].log.head_seq for name in "ab"]
        assert max(heads) <= 4
        assert (await life.all("b"))[1] == [(1, 1, "source_trim")]


async def test_what_is_deleted_before_it_is_forwarded_is_silently_absent(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("b", cap_records=1, discard="reject")
        await route(life, "r", "a", "b")
        await life.append("a", *[{"data": n, "tag": f"t{n % 2}"} for n in range(8)])
        await trio.sleep(1)
        await life.delete("a", before_seq=4)
        await life.delete("a", match="t1")
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == [0, 4, 6]
        assert (await life.all("b"))[1] == []
        assert await figures(life, "r") == (8, 0, 3)


# ----------------------------------------------------------------- copies stay


@pytest.mark.parametrize("stored", [False, True])
async def test_copies_stay_whatever_becomes_of_the_source(stored: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    config = settings(cache_bytes=0, wal_shards=2, wal_file_bytes=16 << 10)
    async with living(config, fs=fs) as life:
        await route(life, "r1", "a", "b")
        await route(life, "r2", "b", "c", preserve_node=False)
        await life.append("a", *[{"data": n, "tag": "t", "node": "n", "meta": {"k": str(n)}} for n in range(20)])
        expected = [await life.all(name, include_tags=True) for name in "bc"]
        assert len(expected[1][0]) == 20
        if stored:
            await life.compactor.checkpoint()
        await life.delete("a", match="t")
        await life.engine.topic_lifecycle.delete("a", if_empty=False)
        await life.engine.topic_lifecycle.delete("b", if_empty=False) if stored else None
        for _ in range(3):
            await life.append("d", *["x" * 3000] * 6)
            await life.compactor.checkpoint()
            await life.engine.reclaimer.pass_over()
        assert await life.all("c", include_tags=True) == expected[1]
        if not stored:
            assert await life.all("b", include_tags=True) == expected[0]
    async with living(config, fs=fs) as life:
        assert await life.all("c", include_tags=True) == expected[1]


async def test_frames_that_several_copies_share_are_read_for_each_of_them(autojump_clock: Any) -> None:
    """The copies of two routers in one dest are made of the same frames, so their places go back and forth."""
    fs = SimFs()
    config = settings(cache_bytes=0)
    async with living(config, fs=fs) as life:
        await route(life, "r1", "a", "b", filter="t")
        await route(life, "r2", "a", "b")
        for n in range(6):
            await life.append("a", {"data": 10 * n, "tag": "t"}, {"data": 10 * n + 1, "tag": "t"}, {"data": 10 * n + 2})
            expected = await datas(life, "b")
        assert len(expected) == 30
        await life.compactor.checkpoint()
        assert await datas(life, "b") == expected
        assert (await life.all("b"))[1] == []
    async with living(config, fs=fs) as life:
        assert await datas(life, "b") == expected


# ----------------------------------------------------------------- topics that go


async def test_a_topic_takes_its_routers_with_it(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        for name, ends in {"r1": "ab", "r2": "bc", "r3": "xc"}.items():
            await route(life, name, ends[0], ends[1], allow_cycle=True)
        await life.append("a", 1)
        await life.append("x", 2)
        assert sorted(await datas(life, "c")) == [1, 2]
        assert await life.engine.topic_lifecycle.delete("b", if_empty=False) == (True, ["r1", "r2"])
        assert life.engine.forwarders.forwarders.keys() == {"r3"}
        await life.append("a", 3)
        await life.append("b", 4)
        assert sorted(await datas(life, "c")) == [1, 2]
        assert life.engine.registry.topics["a"].fanout is None
    async with living(fs=fs) as life:
        assert [state.router for state in life.engine.routers.page("", None, None, None, 9)[0]] == ["r3"]
        assert sorted(await datas(life, "c")) == [1, 2]


@pytest.mark.parametrize("seed", range(4))
async def test_races_of_routers_topics_and_appends_leave_no_forwarder_without_router(
    seed: int, autojump_clock: Any
) -> None:
    chance = random.Random(seed)
    async with living(settings(wal_shards=2)) as life:
        engine = life.engine
        tasks = engine._background._nursery
        assert tasks is not None
        baseline = len(tasks.child_tasks)

        async def tried(work: Any) -> None:
            try:
                await work
            except ApiError as error:
                if error.status not in (404, 409):
                    raise

        async with trio.open_nursery() as nursery:
            for n in range(120):
                a, b = chance.sample("abcd", 2)
                work = chance.choice(
                    (
                        lambda a=a, b=b, n=n: route(life, f"{a}>{b}", a, b, allow_cycle=True, guarantee="exactly_once"),
                        lambda a=a, b=b: engine.routers.delete(f"{a}>{b}"),
                        lambda a=a: engine.topic_lifecycle.delete(a, if_empty=False),
                        lambda a=a, n=n: life.append(a, n),
                        lambda a=a, n=n: life.put(a, durability=CLASSES[n % 4]),
                        lambda a=a: life.seqs(a),
                    )
                )
                nursery.start_soon(tried, work())
                if chance.random() < 0.3:
                    await trio.sleep(chance.choice((0, 0, 0.001, 0.05)))
        await trio.sleep(5)
        states = {state.router: state for state in engine.routers.page("", None, None, None, 99)[0]}
        assert states.keys() == engine.forwarders.forwarders.keys()
        incoming = {name for topic in engine.registry.topics.values() for name in topic.incoming or ()}
        assert incoming == states.keys()
        fans = {
            forwarder.router.name
            for topic in engine.registry.topics.values()
            if topic.fanout is not None
            for forwarder in topic.fanout.audience.consumers
        }
        assert fans == states.keys()
        for name, forwarder in engine.forwarders.forwarders.items():
            assert forwarder.source is engine.registry.topics[states[name].source]
            assert forwarder.dest is engine.registry.topics[states[name].dest]
            assert states[name].lag == 0
        assert len(tasks.child_tasks) == baseline
        assert engine.forwarders.failures == 0
        for state in states.values():
            assert await engine.routers.delete(state.router)
        assert not engine.forwarders.forwarders
        assert all(topic.fanout is None and topic.incoming is None for topic in engine.registry.topics.values())
