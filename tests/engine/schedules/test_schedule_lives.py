"""Schedules over lives of the engine: each time fires once, after any end of the process, the shard or the schedule."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, records, refusal, settings, settle
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import Fault, SimFs
from topics.auth.keys import OPEN
from topics.engine.schedules import schedule_calls
from topics.engine.schedules.firings import Firings
from topics.errors import ApiError
from topics.model import Performance, SchedulePatch, ScheduleState
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

CLASSES = ("memory", "disk", "fsync")
SECOND = 1000


def patch(**fields: Any) -> SchedulePatch:
    wish: dict[str, Any] = {
        "topic": "t", "record": '{"data":1,"tag":"x","meta":{"k":"v"}}', "cron": None, "every_ms": SECOND,
        "time_zone": "UTC", "catch_up": "all", "paused": None,
    }  # fmt: skip
    return SchedulePatch(**(wish | fields))


async def put(life: Life, name: str = "s", **fields: Any) -> bool:
    _, created = await life.engine.schedules.put(name, patch(**fields), Performance())
    return created


def state(life: Life, name: str = "s") -> ScheduleState:
    return life.engine.schedules.state(name)


async def times(life: Life, topic: str = "t") -> list[int]:
    """The times of the records, in their order."""
    if topic not in life.engine.registry.topics:
        return []
    found, _ = await life.all(topic, include_meta=True)
    return [int(record.get("meta", {}).get("_topics_schedule_ts", 0)) for record in found]


@asynccontextmanager
async def firing(life: Life) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(life.engine.firings.run)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("durability", CLASSES)
async def test_each_time_fires_once_over_kills_in_every_class(durability: str, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=False) as life:
        await life.put("t", durability=durability)
        assert await put(life)
        created = state(life).created_ts
        assert not await put(life)
        async with firing(life):
            await trio.sleep(3.1)
        assert state(life).last_ts == created + 3 * SECOND
    clock.advance(2 * SECOND)
    for round_ in range(3):
        async with living(fs=fs, clock=clock, clean=round_ == 1) as life:
            async with firing(life):
                await trio.sleep(1.5)
            last = state(life).last_ts
            assert last is not None
            assert await times(life) == list(range(created + SECOND, last + 1, SECOND))
            if round_ == 0:
                await life.compactor.try_checkpoint(marks=False)
    assert last is not None
    assert last >= created + 9 * SECOND


async def test_a_record_says_which_schedule_and_which_time(autojump_clock: Any) -> None:
    async with living() as life:
        await put(life)
        async with firing(life):
            await trio.sleep(1.1)
        (record,) = records(await life.read("t", include_meta=True, include_tags=True))
        due = str(state(life).created_ts + SECOND)
        assert (record["data"], record["$tag"]) == (1, "x")
        assert record["meta"] == {"k": "v", "_topics_schedule": "s", "_topics_schedule_ts": due}


async def test_the_firing_is_in_the_batch_of_its_record_and_synced(autojump_clock: Any) -> None:
    async with living(housekeeping=False) as life:
        await life.put("t", durability="memory")
        await put(life)
        before = life.syncs()
        async with firing(life):
            await trio.sleep(1.1)
        assert life.syncs() > before
        kinds = [frame.type for frame, _ in life.frames()]
        at = kinds.index(FrameType.APPEND)
        assert kinds[at + 1] == FrameType.SCHEDULE
        (fired,) = [payload for frame, payload in life.frames(FrameType.SCHEDULE) if payload["op"] == "fired"]
        assert fired["ts"] == state(life).last_ts


async def test_a_firing_is_seen_when_it_is_synced_whatever_the_class(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.put("t", durability="memory")
        await put(life)
        async with firing(life):
            await trio.sleep(1.1)
            before = await times(life)
            assert len(before) == 1
            await life.append("t", 0)  # a reserve of seqs is there, so this waits for nothing
            offload.hold()
            await life.append("t", 0)
            await trio.sleep(1)
            held = await times(life), state(life).last_ts
            offload.let_go()
            assert ([ts for ts in held[0] if ts], held[1]) == (before, before[0])
            await settle()
            assert len([ts for ts in await times(life) if ts]) == 2


async def test_definitions_survive_kills_checkpoints_and_other_numbers_of_shards(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(settings(wal_shards=1), fs=fs, clock=clock, clean=False) as life:
        await put(life, "a", cron="0 3 * * *", every_ms=None, time_zone="Europe/Berlin", catch_up="one")
        await put(life, "b")
        await put(life, "c", paused=True)
        await life.engine.schedules.delete("b", Performance())
        a, c = state(life, "a"), state(life, "c")
    for shards in (1, 3, 2):
        async with living(settings(wal_shards=shards), fs=fs, clock=clock, clean=shards == 3) as life:
            assert (state(life, "a"), state(life, "c")) == (a, c)
            assert life.engine.schedules.topic_of("b") is None
            assert [one.schedule for one in life.engine.schedules.page("", None, 9, OPEN)[0]] == ["a", "c"]
            await put(life, "b")
            if shards == 3:
                await life.compactor.try_checkpoint(marks=False)
            await life.engine.schedules.delete("b", Performance())


async def test_one_that_was_made_again_knows_nothing_of_the_first(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=False) as life:
        await put(life)
        async with firing(life):
            await trio.sleep(1.1)
        await life.engine.schedules.delete("s", Performance())
        assert await put(life)
        assert state(life).last_ts is None
    async with living(fs=fs, clock=clock) as life:
        assert state(life).last_ts is None
        await life.put("new")
        ids = [topic.id for topic in life.engine.registry.topics.values()]
        assert len(ids) == len(set(ids))
        for schedule in life.engine.registry.schedules:
            assert schedule.definition.id not in ids


async def test_a_topic_that_is_deleted_is_made_again_and_last_ts_stays(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=False) as life:
        await put(life)
        async with firing(life):
            await trio.sleep(2.1)
        last = state(life).last_ts
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
    async with living(fs=fs, clock=clock) as life:
        assert state(life).last_ts == last
        async with firing(life):
            await trio.sleep(1.1)
        assert all(ts > (last or 0) for ts in await times(life))
        assert await times(life)


async def test_another_topic_gets_what_is_due_from_then_on(autojump_clock: Any) -> None:
    async with living() as life:
        await put(life)
        async with firing(life):
            await trio.sleep(2.1)
            assert not await put(life, topic="u")
            await trio.sleep(2)
        assert len(await times(life)) == 2
        assert await times(life, "u") == [ts + 2 * SECOND for ts in await times(life)]


async def test_an_ephemeral_topic_is_refused(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("e", durability="ephemeral")
        assert (await refusal(put(life, topic="e"))).code == "topic_exists_incompatible"
        await put(life)
        await life.put("t", durability="ephemeral")
        async with firing(life):
            await trio.sleep(1.1)
            error = state(life).last_error
            assert error is not None
            assert error.code == "topic_exists_incompatible"
            run = life.engine.schedules.run("s", Performance())
            assert (await refusal(run)).code == "topic_exists_incompatible"
            assert await times(life) == []
            await life.put("t", durability="disk")
            await trio.sleep(10)
        assert state(life).last_error is None
        assert len(await times(life)) == 11, "all of them are made up for"


@pytest.mark.parametrize(("catch_up", "made_up"), [("none", [5, 6]), ("one", [5, 6]), ("all", [1, 2, 3, 4, 5, 6])])
async def test_a_refused_firing_is_tried_until_the_next_is_due_and_then_falls_under_catch_up(
    catch_up: str, made_up: list[int], autojump_clock: Any
) -> None:
    minute = 60_000
    async with living() as life:
        await life.put("t", cap_records=1, discard="reject")
        await life.append("t", 0)
        await put(life, every_ms=minute, catch_up=catch_up)
        created = state(life).created_ts
        async with firing(life):
            await trio.sleep(5.5 * 60)
            error = state(life).last_error
            assert error is not None
            assert error.code == "topic_full"
            assert state(life).last_ts is None
            await life.put("t", cap_records=0)
            await trio.sleep(60)
        found = [ts for ts in await times(life) if ts]
        assert found == [created + i * minute for i in made_up]
        assert state(life).last_error is None
        assert life.engine.firings.figures().refused > 5


async def test_a_clock_that_is_set_back_fires_nothing_again(autojump_clock: Any) -> None:
    clock = SimClock()
    async with living(clock=clock) as life:
        await put(life)
        async with firing(life):
            await trio.sleep(3.1)
            before = await times(life)
            clock.step(-2 * SECOND)
            await trio.sleep(1.8)
            assert await times(life) == before
            await trio.sleep(1.5)
            assert await times(life) == [*before, before[-1] + SECOND]


@pytest.mark.parametrize(("catch_up", "count"), [("none", 1), ("one", 1), ("all", 60)])
async def test_a_clock_that_is_set_forward_is_seen_within_seconds(
    catch_up: str, count: int, autojump_clock: Any
) -> None:
    clock = SimClock()
    async with living(clock=clock) as life:
        await put(life, every_ms=60_000, catch_up=catch_up)
        created = state(life).created_ts
        async with firing(life):
            await trio.sleep(0.1)
            clock.step(3_600_000)
            await trio.sleep(1.5)
        assert await times(life) == [created + i * 60_000 for i in range(61 - count, 61)]


@pytest.mark.slow
async def test_what_was_skipped_while_the_clock_was_wrong_by_years_fires_when_its_time_comes(
    autojump_clock: Any,
) -> None:
    clock = SimClock()
    async with living(clock=clock) as life:
        await put(life, cron="30 12 * * *", every_ms=None, catch_up="none")
        async with firing(life):
            clock.step(1000 * 86_400_000 + 12_345_678)
            await trio.sleep(2)
            clock.step(-1000 * 86_400_000 - 12_345_678)
            await trio.sleep(2)
            assert await times(life) == []
            await trio.sleep(86_400)
        assert len(await times(life)) == 1


async def test_a_pause_is_over_at_once_and_nothing_fires_behind_its_answer(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.put("t", durability="fsync")
        await put(life)
        async with firing(life):
            await trio.sleep(0.9)
            offload.hold()
            await trio.sleep(0.2)
            assert life.engine.firings.decided("s") is not None, "the firing has its seq and waits for the disk"
            async with trio.open_nursery() as nursery:
                pausing = Called(nursery, lambda: life.engine.schedules.pause("s", Performance(), paused=True))
                await settle()
                assert not pausing.done
                offload.let_go()
            assert pausing.done
            found = await times(life)
            assert len(found) == 1
            await trio.sleep(5)
            assert await times(life) == found
            assert state(life).next_ts is None
            await life.engine.schedules.pause("s", Performance(), paused=False)
            await trio.sleep(1.5)
            assert len(await times(life)) == 2, "what was due during the pause is not made up for"


async def test_a_firing_that_was_begun_is_not_decided_during_a_change(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.put("t")
        await put(life)
        topic = life.engine.registry.topics["t"]
        async with firing(life), trio.open_nursery() as nursery:
            topic.barrier = trio.Event()
            await trio.sleep(1.1)  # the firing waits for the end of another change of the topic
            offload.hold()
            pausing = Called(nursery, lambda: life.engine.schedules.pause("s", Performance(), paused=True))
            await settle()
            topic.lift_barrier()
            await settle()
            begun = life.engine.firings.decided("s")
            offload.let_go()
            await settle()
            assert begun is None
            assert pausing.done
            assert await times(life) == []


async def test_a_failed_shard_leaves_a_firing_in_doubt_until_the_next_start(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(settings(wal_shards=2), fs=fs, clock=clock, clean=False) as life:
        for name in "abcdefgh":  # one of them is not in shard 0
            await life.put(name, durability="fsync")
        topic = next(topic for topic in life.engine.registry.topics.values() if topic.shard == 1)
        other = next(one.name for one in life.engine.registry.topics.values() if one.shard == 0)
        await put(life, topic=topic.name)
        async with firing(life):
            await trio.sleep(1.1)
            assert len(await times(life, topic.name)) == 1
            fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*/shard-01/*.log"))
            await trio.sleep(1)
            error = state(life).last_error
            assert error is not None
            assert error.code == "read_only"
            await put(life, topic=other)
            await trio.sleep(5)
            assert await times(life, other) == [], "nobody knows whether the last one is on disk"
    async with living(settings(wal_shards=2), fs=fs, clock=clock) as life:
        async with firing(life):
            await trio.sleep(1.1)
        found = [*await times(life, topic.name), *await times(life, other)]
        assert found == sorted(set(found))
        last = state(life).last_ts
        assert found == list(range(found[0], (last or 0) + 1, SECOND))


async def test_run_appends_now_and_leaves_the_times(autojump_clock: Any) -> None:
    async with living() as life:
        await put(life, paused=True)
        done = await life.engine.schedules.run("s", Performance())
        assert (done.topic, done.first_seq) == ("t", 1)
        (record,) = records(await life.read("t", include_meta=True))
        assert record["meta"] == {"k": "v", "_topics_schedule": "s"}
        assert state(life).last_ts is None
        missing = life.engine.schedules.run("missing", Performance())
        assert (await refusal(missing)).code == "schedule_not_found"


async def test_there_are_at_most_so_many_and_their_records_are_bounded(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_calls, "MAX_RECORD_TEXT", 100)
    async with living(settings(max_schedules=2)) as life:
        await put(life, "a", record='{"data":1}')
        await put(life, "b", record='{"data":1}')
        error = await refusal(put(life, "c"))
        assert (error.code, error.detail["limit"]) == ("throttled", "max_schedules")
        await life.engine.schedules.delete("a", Performance())
        await put(life, "c", record='{"data":1}')
        error = await refusal(put(life, "c", record='{"data":"' + "x" * 90 + '"}'))
        assert (error.code, error.detail["limit"]) == ("throttled", "max_schedule_records")
        await put(life, "c", record='{"data":"' + "x" * 70 + '"}')


async def test_ten_thousand_that_wait_are_not_looked_at(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look = Firings._look

    def counted(firings: Firings, schedule: Any, now: int) -> None:
        looked.append(schedule.name)
        look(firings, schedule, now)

    monkeypatch.setattr(Firings, "_look", counted)
    async with living(settings(max_schedules=0)) as life:
        for i in range(300):
            await put(life, f"idle-{i}", every_ms=86_400_000)
        await put(life)
        async with firing(life):
            await trio.sleep(0.1)
            looked.clear()
            await trio.sleep(20)
        assert set(looked) == {"s"}
        assert len(await times(life)) == 20


async def test_many_that_are_due_at_the_same_time_all_fire(autojump_clock: Any) -> None:
    async with living() as life:
        for i in range(200):
            await put(life, f"s-{i:03}", cron="* * * * *", every_ms=None)
        async with firing(life):
            await trio.sleep(61)
        found = records(await life.read("t", include_meta=True))
        assert sorted(record["meta"]["_topics_schedule"] for record in found) == [f"s-{i:03}" for i in range(200)]
        assert min(await times(life)) > BASE_MS


async def test_a_change_while_a_firing_waits_for_room_wins(autojump_clock: Any) -> None:
    """The firing has no seq yet, so it is not decided, and must not be after the change."""
    async with living() as life:
        await life.put("t", cap_records=1, discard="reject")
        await life.append("t", 0)
        await put(life)
        async with firing(life):
            await trio.sleep(1.05)
            assert state(life).last_error is not None
            await life.engine.schedules.delete("s", Performance())
            await life.put("t", cap_records=0)
            await trio.sleep(5)
            assert await times(life) == [0]
            with pytest.raises(ApiError):
                state(life)


async def test_a_schema_is_kept(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", schema=msgspec.Raw(b'{"type":"string"}'))
        await put(life)
        async with firing(life):
            await trio.sleep(1.1)
        error = state(life).last_error
        assert error is not None
        assert error.code == "schema_violation"


async def test_the_job_fields_of_a_record_count_in_a_queue_and_are_refused_by_a_log(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.put("log")
        await put(life, "s", topic="q", record='{"data":1,"delay_ms":60000,"priority":9}')
        await put(life, "r", topic="q", record='{"data":2,"priority":7}', paused=True)
        for topic in ("log", "missing"):
            await put(life, topic, topic=topic, record='{"data":1,"priority":9}')
        async with firing(life):
            await trio.sleep(1.1)
        await life.engine.schedules.run("s", Performance())
        await life.engine.schedules.run("r", Performance())
        queue = life.engine.registry.topics["q"].queue
        assert queue is not None
        assert (queue.leases.delayed, queue.leases.priority(1), queue.leases.priority(3)) == (2, 9, 7)
        for topic in ("log", "missing"):
            error = state(life, topic).last_error
            assert error is not None
            assert error.code == "invalid_request"
            assert "priority" in error.message
            assert await times(life, topic) == []
        assert "missing" not in life.engine.registry.topics


async def test_a_firing_whose_job_is_there_already_is_logged_without_a_record(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=False) as life:
        await life.put("t", type="queue")
        await put(life, record='{"data":1,"unique":{"key":"k","scope":"unfinished"}}')
        async with firing(life):
            await trio.sleep(3.1)
        (only,) = await times(life)
        run = await life.engine.schedules.run("s", Performance())
        last = state(life).last_ts
        assert (only, last) == (state(life).created_ts + SECOND, state(life).created_ts + 3 * SECOND)
        assert (run.count, run.duplicates, state(life).last_error) == (0, {0: 1}, None)
    async with living(fs=fs, clock=clock) as life:
        assert (state(life).last_ts, await times(life)) == (last, [only])
