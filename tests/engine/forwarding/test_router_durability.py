"""Routers between topics of every durability, over restarts, failures and slow disks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import trio

from tests.engine.forwarding.router_calls import CLASSES, datas, figures, route
from tests.engine.life import HeldOffload, living, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.world import quiet
from topics.engine.forwarding.forwarders import CATCH_UP_S, Forwarders
from topics.errors import ApiError
from topics.runtime.offload import Pool
from topics.sched.governor import CALM
from topics.storage.segments.topic_segments import SegmentSet
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- classes


async def test_a_copy_counts_as_synced_only_when_its_bytes_in_another_shard_are(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    async with living(settings(wal_shards=2)) as life:
        await life.put("a", durability="disk")
        await life.put("b", durability="disk")
        source, dest = life.engine.registry.topics["a"], life.engine.registry.topics["b"]
        assert source.shard != dest.shard
        await route(life, "r", "a", "b")
        held: list[Any] = []
        with monkeypatch.context() as patch:
            patch.setattr(source.common, "is_synced", lambda shard, end: shard != source.shard)
            patch.setattr(source.common, "when_synced", lambda shard, call: held.append(call))
            await life.append("b", 1)
            await life.append("a", 2, 3)
            assert await life.seqs("b") == [1, 2, 3]
            await life.append("b", 4)
            await trio.sleep(5)
            assert (dest.log.head_seq, dest.synced_seq) == (4, 1)
        for call in held:
            call()
        assert (await life.engine.topic_states.of("b", touch=False)).synced_seq == 4


@pytest.mark.parametrize("source_class", ["memory", "disk"])
async def test_a_copy_into_a_stronger_class_is_made_of_what_is_synced(source_class: Any, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", durability=source_class)
        await life.put("b", durability="fsync")
        await route(life, "r", "a", "b")
        await life.append("a", 1)
        await trio.sleep(5)
        await life.append("a", 2)  # the tick has long been due: this one is synced at once
        await settle()
        await life.append("a", 3)
        await settle()
        dest, source = life.engine.registry.topics["b"], life.engine.registry.topics["a"]
        assert (source.synced_seq, source.log.head_seq, dest.log.head_seq) == (2, 3, 2)
        began = trio.current_time()
        assert await life.seqs("b") == [1, 2, 3]  # a reader asks for the sync
        assert trio.current_time() == began
        await life.append("a", 4)
        await trio.sleep(1)  # without one it comes with the next tick
        assert (source.synced_seq, dest.log.head_seq) == (4, 4)


async def test_from_an_ephemeral_source_copies_are_logged_and_into_an_ephemeral_dest_nothing_is(
    autojump_clock: Any,
) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("a", durability="ephemeral")
        await life.put("b", durability="disk")
        await life.put("c", durability="ephemeral")
        await route(life, "r1", "a", "b")
        await route(life, "r2", "b", "c")
        await life.append("a", {"data": 1, "tag": "t"}, 2)
        assert await datas(life, "b") == await datas(life, "c") == [1, 2]
        await trio.sleep(1)
        assert [frame.topic_id for frame, _ in life.frames(FrameType.APPEND)] == [
            life.engine.registry.topics["b"].id
        ] * 2
        assert {payload["router"] for _, payload in life.frames(FrameType.FORWARDED)} == {"r1", "r2"}
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert await datas(life, "b") == [1, 2]
        assert await datas(life, "c") == []
        assert (await life.all("c"))[1] != []
        assert (await figures(life, "r2"))[2] == 2


@pytest.mark.parametrize("end", ["a", "b"])
async def test_topics_change_their_classes_while_they_are_routed(end: str, autojump_clock: Any) -> None:
    fs = SimFs()
    expected: list[int] = []
    async with living(settings(wal_shards=2, cache_bytes=0), fs=fs) as life:
        await route(life, "r1", "a", "b")
        await route(life, "r2", "b", "c")
        for durability in CLASSES * 2:
            for other in CLASSES:
                expected.append(len(expected))
                await life.append("a", expected[-1])
                await life.put(end, durability=durability)
                expected.append(len(expected))
                await life.append("a", expected[-1])
                await life.put(end, durability=other)
        for name in "bc":
            assert await datas(life, name) == expected
        await life.compactor.checkpoint()
        for name in "bc":
            assert await datas(life, name) == expected
    async with living(settings(wal_shards=2, cache_bytes=0), fs=fs) as life:
        for name in "abc":
            assert await datas(life, name) == expected


async def test_an_ephemeral_source_that_is_stored_is_forwarded_to_its_head(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", durability="ephemeral")
        await life.put("b", cap_records=1, discard="reject")
        await route(life, "r", "a", "b")
        await life.append("a", *[{"data": n, "tag": f"t{n // 3}"} for n in range(6)])
        await trio.sleep(1)
        await life.delete("a", match="t1")  # the last ones: they are not written out
        await life.put("a", durability="disk")
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == [0, 1, 2]
        assert await figures(life, "r") == (6, 0, 3)


# ----------------------------------------------------------------- lives


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_keeps_cursor_total_and_lag(clean: bool, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=clean) as life:
        await life.put("b", cap_records=3, discard="reject")
        await route(life, "r", "a", "b", guarantee="exactly_once")
        await life.append("a", *range(7))
        await trio.sleep(2)
        before = life.engine.routers.state("r")
        assert (before.cursor_seq, before.lag, before.forwarded_total) == (3, 4, 3)
        if not clean:
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert life.engine.routers.state("r") == before
        assert await datas(life, "b") == [0, 1, 2]
        await life.put("b", cap_records=0)
        await trio.sleep(2)
        assert await datas(life, "b") == list(range(7))
        assert await figures(life, "r") == (7, 0, 7)


async def test_what_forwards_from_a_topic_of_the_lowest_band_waits_while_that_is_paused(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", priority=-500)
        await route(life, "r1", "a", "b")
        await route(life, "r2", "x", "y")
        life.engine.delivery.scheduler.pause_lowest()
        await life.append("a", 1)
        await life.append("x", 2)
        await trio.sleep(10)
        assert [life.engine.registry.topics[name].log.head_seq for name in "by"] == [0, 1]
        life.engine.delivery.scheduler.resume_lowest()
        await settle()
        assert life.engine.registry.topics["b"].log.head_seq == 1


async def test_a_forwarder_that_fails_is_started_again_and_counted(autojump_clock: Any, monkeypatch: Any) -> None:
    async with living() as life:
        await route(life, "r1", "a", "b")
        await route(life, "r2", "a", "c")
        choose = Forwarders._choose
        times: list[float] = []

        def fail(forwarders: Forwarders, forwarder: Any, taken: Any, looked_at: int) -> Any:
            if forwarder.router.name == "r1" and len(times) < 4:
                times.append(trio.current_time())
                raise ZeroDivisionError
            return choose(forwarders, forwarder, taken, looked_at)

        monkeypatch.setattr(Forwarders, "_choose", fail)
        with quiet():
            await life.append("a", 1)
            began = trio.current_time()
            assert await datas(life, "c") == [1]
            assert trio.current_time() - began < 0.1
            await trio.sleep(5)
        assert await datas(life, "b") == [1]
        assert life.engine.forwarders.failures == len(times) == 4
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert pauses == sorted(pauses)
        assert pauses[0] > 0


async def test_a_forwarder_whose_reading_fails_is_started_again_and_counted(
    autojump_clock: Any, monkeypatch: Any
) -> None:
    async with living(settings(cache_bytes=0)) as life:
        await life.append("a", *range(5))
        await trio.sleep(1)
        life.engine.registry.topics["a"].blocks.clear()
        loader = life.engine.loader
        load = loader.load
        failed: list[float] = []

        async def fail(*args: Any) -> Any:
            if len(failed) < 2:
                failed.append(trio.current_time())
                raise ZeroDivisionError
            return await load(*args)

        monkeypatch.setattr(loader, "load", fail)
        with quiet():
            await route(life, "r", "a", "b")
            await trio.sleep(5)
        assert life.engine.forwarders.failures == len(failed) == 2
        assert await datas(life, "b") == list(range(5))


async def test_a_slow_disk_holds_up_only_the_forwarder_that_needs_it(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.append("a", *range(5))
        await trio.sleep(1)
        life.engine.registry.topics["a"].blocks.clear()
        offload.hold(Pool.HOT_READ)
        await route(life, "r1", "a", "b")
        await route(life, "r2", "a", "c", start="tail")
        await life.append("a", 5)
        count = (await life.engine.topic_states.of("c", touch=False)).count
        reads = life.engine.registry.topics["b"].log.count
        deleted = await life.engine.routers.delete("r1")  # it does not wait for it, either
        offload.let_go(Pool.HOT_READ)
        assert (count, reads, deleted) == (1, 0, True)
        await trio.sleep(1)
        assert await datas(life, "b") == []


# ----------------------------------------------------------------- what copies are made of


async def test_the_log_that_copies_are_made_of_stays_while_a_checkpoint_has_to_pass_over_their_topic(
    autojump_clock: Any,
) -> None:
    async with living(settings(wal_shards=2, wal_file_bytes=1 << 14, cache_bytes=1000), housekeeping=False) as life:
        await route(life, "r", "a", "b")
        source, dest = life.engine.registry.topic("a"), life.engine.registry.topic("b")
        for n in range(100):
            await life.append("a", {"data": "x" * 200, "meta": {"n": str(n)}})
        await life.engine.routers.catch_up(["b"])
        dest.segment_set = SegmentSet()
        made_of = {life.engine.store.files.get(file).path for file in dest.copy_table().files}
        assert len(made_of) > 1

        async def work_on_its_files(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
            assert dest.segment_set is not None
            async with dest.segment_set.hot_lock:
                task_status.started()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            await nursery.start(work_on_its_files)
            for _ in range(3):
                await life.compactor.checkpoint()
                await life.append("a", "more")
            assert source.log.stored.last_seq >= 100
            assert not dest.log.stored.last_seq
            assert all(life.fs.exists(path) for path in made_of)
            found, gaps = await life.all("b")
            assert (len([record for record in found if record["data"] != "more"]), gaps) == (100, [])
            nursery.cancel_scope.cancel()
        for _ in range(3):
            await life.append("a", "more")
            await life.engine.routers.catch_up(["b"])
            await life.compactor.checkpoint()
        assert dest.log.stored.last_seq >= 100
        assert sum(life.fs.exists(path) for path in made_of) <= 1  # that which the shard writes to now


async def test_a_full_dest_over_a_source_that_goes_on_losing_is_told_of_it_once(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("a", cap_records=3)
        await life.put("b", cap_records=2, discard="reject")
        await route(life, "r", "a", "b")
        for n in range(60):
            await life.append("a", n)
            await trio.sleep(0.1)
        assert await datas(life, "b") == [0, 1]
        assert (await life.engine.topic_states.of("b", touch=False)).head_seq == 2
        await life.delete("b", before_seq=3)
        await trio.sleep(CATCH_UP_S + 1)
        found, gaps = await life.all("b")
        assert ([record["data"] for record in found], gaps) == ([57, 58], [(1, 3, "source_trim")])


async def test_a_refused_router_leaves_no_topic_behind_however_many_are_made_meanwhile(autojump_clock: Any) -> None:
    async with living(settings(max_topics=2)) as life:
        refused: list[str] = []

        async def make_router() -> None:
            try:
                await route(life, "r", "a", "b")
            except ApiError as error:
                refused.append(error.code)

        async def make_topic() -> None:
            for _ in range(4):
                await trio.lowlevel.checkpoint()
            try:
                await life.put("other")
            except ApiError as error:
                refused.append(error.code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_router)
            nursery.start_soon(make_topic)
        assert refused == ["throttled"]
        assert set(life.engine.registry.topics) in ({"a", "b"}, {"other"})


# ----------------------------------------------------------------- under pressure


async def test_under_pressure_routers_are_a_band_lower_and_never_so_low_as_to_be_paused(autojump_clock: Any) -> None:
    async with living() as life:
        for name, priority in {"high": 600, "low": 100, "negative": -5}.items():
            await life.put(name, priority=priority)
            await route(life, f"of-{name}", name, f"{name}-dest")
        topics = [life.engine.registry.topic(name) for name in ("high", "low", "negative")]
        fans = [topic.fanout for topic in topics if topic.fanout is not None]
        priority_of = life.engine.delivery.scheduler._priority_of
        assert [priority_of(fan) for fan in fans] == [600, 100, -5]
        life.engine.governor.steps = CALM._replace(routers_lowered=True)
        assert [priority_of(fan) for fan in fans] == [350, 0, -5]
        assert [priority_of(topic) for topic in topics] == [600, 100, -5]
