"""The registry of topics: creating, configuring, deleting, listing, and all of that at the same time."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, living, records, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.engine.registry import settled
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


# -- one change at a time ----------------------------------------------------------------------------------------------


async def test_a_decision_waits_for_a_pending_change_and_otherwise_runs_at_once(
    autojump_clock: Any,
) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("a")
        await life.put("b")
        a, b = life.engine.registry.topic("a"), life.engine.registry.topic("b")
        other = Called(nursery, trio.lowlevel.checkpoint)
        assert await settled(a, b)
        assert not other.done
        b.barrier = trio.Event()
        waiting = Called(nursery, partial(settled, a, b))
        await settle()
        assert not waiting.done
        b.lift_barrier()
        await settle()
        assert waiting.result is False
        assert await settled(a, b)


# -- creation ----------------------------------------------------------------------------------------------------------


async def test_two_appends_create_a_topic_once(autojump_clock: Any) -> None:
    async with living() as life:
        async with trio.open_nursery() as nursery:
            calls = [Called(nursery, partial(life.append, "t", i)) for i in range(5)]
            puts = [Called(nursery, lambda: life.put("t")) for _ in range(3)]
        assert sum(call.result.created for call in calls) + sum(put.result[1] for put in puts) == 1
        assert sorted(call.result.first_seq for call in calls) == [1, 2, 3, 4, 5]
        assert len(life.frames(FrameType.TOPIC_CREATE)) == 1


async def test_tasks_that_wait_for_a_failed_creation_get_its_error(autojump_clock: Any) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        offload.hold()
        calls = [Called(nursery, lambda: life.put("t")), Called(nursery, lambda: life.append("t", 1))]
        await settle()
        fs.inject(Fault(error=5, name="pwrite", path="*.log", times=None))
        offload.let_go()
        await settle()
        assert [call.error is not None and call.error.code for call in calls] == ["read_only", "read_only"]
        assert life.engine.registry.topics == {}


async def test_a_create_is_synced_before_it_is_answered(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        for durability in CLASSES:
            await life.put(durability, durability=durability)
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed) as life:
        assert {name: topic.config.durability for name, topic in life.engine.registry.topics.items()} == {
            name: name for name in CLASSES
        }


@pytest.mark.parametrize("options", [{"create": False}, {"config": {"auto_create": False}}])
async def test_an_append_that_does_not_create(options: Any, autojump_clock: Any) -> None:
    async with living() as life:
        assert (await refusal(life.append("t", 1, **options))).code == "topic_not_found"
        assert life.engine.registry.topics == {}


async def test_create_true_wins_over_auto_create(autojump_clock: Any) -> None:
    async with living() as life:
        assert (await life.append("t", 1, create=True, config={"auto_create": False})).created
        assert life.engine.registry.topics["t"].config.auto_create is False


async def test_an_inline_config_is_for_the_creation_only(autojump_clock: Any) -> None:
    async with living() as life:
        assert (await life.append("t", 1, config={"cap_records": 2})).created
        assert not (await life.append("t", 2, config={"cap_records": 1})).created
        assert life.engine.registry.topics["t"].config.cap_records == 2
        assert (await refusal(life.append("t", 3, config={"ttl_ms": -1}))).code == "invalid_request"


async def test_max_topics_is_429_and_lets_updates_pass(autojump_clock: Any) -> None:
    async with living(settings(max_topics=2)) as life:
        async with trio.open_nursery() as nursery:
            calls = [Called(nursery, partial(life.append, f"t{i}", i)) for i in range(4)]
        refused = [call.error for call in calls if call.error is not None]
        assert len(refused) == 2
        assert {(error.status, error.detail["limit"], error.detail["max"]) for error in refused} == {
            (429, "max_topics", 2)
        }
        for name in life.engine.registry.topics:
            await life.put(name, cap_records=5)
            await life.append(name, 1)
        await life.engine.topic_lifecycle.delete(next(iter(life.engine.registry.topics)), if_empty=False)
        assert (await life.put("other"))[1]
        assert (await refusal(life.put("another"))).code == "throttled"


# -- configuration -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(CLASSES, 2)))
async def test_a_change_of_class_under_load_keeps_every_record(before: Any, after: Any, autojump_clock: Any) -> None:
    """A crash of the machine right after the answer keeps all records too, unless the new class is `ephemeral`."""
    fs = SimFs()
    async with living(settings(cache_bytes=2000), fs=fs) as life:
        await life.put("t", durability=before)
        acks: dict[int, Any] = {}
        at_answer: set[int] = set()

        async def write(writer: int) -> None:
            for i in range(30):
                data = [writer, i, '","data":' * (i % 3)]
                node = {"node": f"n{i % 2}"} if i % 3 else {}
                done = await life.append("t", {"data": data, "tag": f"t{i}", "meta": {"i": str(i)}, **node})
                assert done.first_seq not in acks
                acks[done.first_seq] = data
                await trio.sleep(0.004)

        async with trio.open_nursery() as nursery:
            for writer in range(3):
                nursery.start_soon(write, writer)
            await trio.sleep(0.05)
            await life.put("t", durability=after)
            at_answer = set(acks)
            crashed = fs.after_machine_crash("drop", 1)
        assert len(acks) == 90
        found, gaps = await life.all("t", include_tags=True)
        assert gaps == []
        assert {record["$seq"]: record["data"] for record in found} == acks
        assert all(record["$tag"] == f"t{record['data'][1]}" for record in found)
        assert (await life.engine.topic_states.of("t", touch=False)).config.durability == after
    async with living(fs=crashed) as life:
        assert life.engine.registry.topics["t"].config.durability == after
        kept, gaps = await life.all("t")
        if after == "ephemeral":
            assert kept == []
            assert [gap[2] for gap in gaps] == ["lost"]
        else:
            assert at_answer <= {record["$seq"] for record in kept}
            assert all(acks[record["$seq"]] == record["data"] for record in kept if record["$seq"] in acks)
        done = await life.append("t", 1)
        assert done.first_seq > max(at_answer)


async def test_disk_to_ephemeral_and_back_keeps_what_is_only_on_disk(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(cache_bytes=1000), fs=fs) as life:
        await life.put("t", durability="disk")
        for i in range(20):
            await life.append("t", {"data": "x" * 300, "tag": f"t{i}"})
        await life.put("t", durability="ephemeral")
        await life.append("t", {"data": 1, "meta": {"a": "b"}}, {"data": 2, "node": "n"})
        before = await life.all("t", include_tags=True)
        await life.delete("t", match="t7")
        await life.put("t", durability="fsync")
        assert (await life.engine.topic_states.of("t", touch=False)).synced_seq == 22
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed) as life:
        found, gaps = await life.all("t", include_tags=True)
        assert found == [record for record in before[0] if record["$seq"] != 8]
        assert gaps == []
        life.check()


async def test_leaving_ephemeral_logs_each_record_as_it_was(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("t", durability="ephemeral")
        for record in [{"data": 1}, {"data": '"$tag":"x"'}, {"data": 3, "tag": "t"}, {"data": 4, "meta": {"a": "b"}}]:
            await life.append("t", record)
        await life.append("t", {"data": 5, "node": "n"}, {"data": [',"data":'], "tag": ',"meta":', "node": ',"data":'})
        before = await life.all("t", include_tags=True)
        await life.put("t", durability="fsync")
        life.engine.registry.topics["t"].blocks.clear()
        assert await life.all("t", include_tags=True) == before
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed) as life:
        assert await life.all("t", include_tags=True) == before
        assert (await life.delete("t", match="t")).deleted == 1


async def test_leaving_ephemeral_while_records_expire(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="ephemeral", ttl_ms=1000)
        await life.append("t", 1, 2, 3)
        offload.hold()
        call = Called(nursery, lambda: life.put("t", durability="disk"))
        await settle()
        await trio.sleep(2)
        assert await life.seqs("t") == []
        offload.let_go()
        await settle()
        assert call.error is None
        assert call.result[0].durability == "disk"
        await life.append("t", 4)
        assert await life.all("t") == (
            [{"$seq": 4, "$ts": life.engine.registry.topics["t"].last_ts, "data": 4}],
            [(1, 3, "ttl")],
        )


async def test_concurrent_changes_of_one_topic_take_place_one_after_another(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        async with trio.open_nursery() as nursery:
            puts = [
                Called(nursery, partial(life.put, "t", **{k: v}))
                for k, v in [("cap_records", 7), ("cap_bytes", 900), ("ttl_ms", 5000), ("durability", "memory")]
            ]
            appends = [Called(nursery, partial(life.append, "t", i)) for i in range(5)]
        assert all(call.error is None and call.done for call in [*puts, *appends])
        config = life.engine.registry.topics["t"].config
        assert (config.cap_records, config.cap_bytes, config.ttl_ms, config.durability) == (7, 900, 5000, "memory")
        assert life.engine.registry.topics["t"].barrier is None


async def test_an_identical_put_writes_nothing(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=3)
        writes = life.writes()
        assert (await life.put("t", cap_records=3))[1] is False
        assert life.writes() == writes


async def test_a_tighter_cap_applies_at_once_and_survives(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.append("t", *range(10), config={"durability": "fsync"})
        await life.put("t", cap_records=3)
        assert await life.seqs("t", 7) == [8, 9, 10]
        expected = await life.all("t")
        assert expected[1] == [(1, 7, "cap")]
        await life.put("t", cap_records=0)
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed) as life:
        assert await life.all("t") == expected


async def test_a_floor_of_the_old_ttl_is_latched_before_the_new_one_holds(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.append("t", 1, 2, config={"durability": "fsync", "ttl_ms": 1000})
        await trio.sleep(2)
        await life.append("t", 3)
        await life.put("t", ttl_ms=1_000_000)
        expected = await life.all("t")
        assert expected[1] == [(1, 2, "ttl")]
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed, clock=clock) as life:
        assert await life.all("t") == expected


async def test_a_dead_letter_topic_is_never_ephemeral(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dead", durability="disk")
        await life.put("jobs", type="queue", dead_letter="dead")
        assert (await refusal(life.put("dead", durability="ephemeral"))).code == "invalid_request"
        await life.put("e", durability="ephemeral")
        assert (await refusal(life.put("jobs", dead_letter="e"))).code == "invalid_request"
        await life.put("jobs", dead_letter=None)
        await life.put("dead", durability="ephemeral")


# -- checkpoints beside it ---------------------------------------------------------------------------------------------


async def test_a_checkpoint_at_the_moment_of_a_sync_has_what_the_sync_covers(autojump_clock: Any) -> None:
    """No snapshot's position may lie behind a TopicCreate, ConfigUpdate or TopicDelete that its topics do not know."""
    fs = SimFs()
    async with living(fs=fs, housekeeping=False) as life:
        await life.put("kept", durability="disk")
        await life.put("gone", durability="disk")
        await life.append("gone", 1)
        await trio.sleep(1)
        engine = life.engine
        writer = engine.store.writers[0]
        problems: list[Any] = []

        def look(state: str) -> None:
            """Compare the topics of a snapshot that begins now with the log before its position."""
            position, _ = writer.synced_position()
            names: dict[int, str | None] = {}
            caps: dict[int, int] = {}
            for frame, payload in life.frames():
                if frame.end <= position.offset:
                    if frame.type == FrameType.TOPIC_CREATE:
                        names[frame.topic_id] = payload["name"]
                    elif frame.type == FrameType.TOPIC_DELETE:
                        names[frame.topic_id] = None
                    elif frame.type == FrameType.CONFIG_UPDATE:
                        caps[frame.topic_id] = payload["config"]["cap_records"]
            known = {topic.id: topic.name for topic in engine.registry.by_id.values()}
            if known != {topic_id: name for topic_id, name in names.items() if name is not None}:
                problems.append((state, known, names))
            problems.extend(
                (state, topic_id, cap)
                for topic_id, cap in caps.items()
                if topic_id in engine.registry.by_id and engine.registry.by_id[topic_id].config.cap_records != cap
            )

        class Looking(trio.abc.Instrument):
            def before_task_step(self, task: trio.lowlevel.Task) -> None:
                look(task.name)

        looking = Looking()
        trio.lowlevel.add_instrument(looking)
        await life.put("new", durability="disk")
        await life.put("kept", cap_records=5)
        await engine.topic_lifecycle.delete("gone", if_empty=False)
        trio.lowlevel.remove_instrument(looking)
        assert problems == []


async def test_checkpoints_under_load_lose_nothing(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(wal_file_bytes=64 << 10), fs=fs) as life:
        acked: dict[str, dict[int, Any]] = {}

        async def work(writer: int) -> None:
            for i in range(12):
                name = f"t{writer}-{i % 4}"
                if i in (5, 9):
                    await life.engine.topic_lifecycle.delete(name, if_empty=False)
                    acked.pop(name, None)
                if i % 3 == 2:
                    await life.put(name, durability=CLASSES[1 + i % 3], cap_records=50 + i)
                done = await life.append(name, {"data": [writer, i, "x" * 500]})
                acked.setdefault(name, {})[done.first_seq] = [writer, i, "x" * 500]
                await trio.sleep(0.01)

        async def checkpoint() -> None:
            for _ in range(15):
                await life.compactor.checkpoint()
                await trio.sleep(0.007)

        async with trio.open_nursery() as nursery:
            for writer in range(6):
                nursery.start_soon(work, writer)
            nursery.start_soon(checkpoint)
        await trio.sleep(0.1)
        expected = {name: await life.all(name) for name in life.engine.registry.topics}
        configs = {name: topic.config for name, topic in life.engine.registry.topics.items()}
        for name, wanted in acked.items():
            assert {record["$seq"]: record["data"] for record in expected[name][0]} == wanted
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert {name: topic.config for name, topic in life.engine.registry.topics.items()} == configs
        for name, (wanted_records, _) in expected.items():
            assert (await life.all(name))[0] == wanted_records


# -- deletion ----------------------------------------------------------------------------------------------------------


async def test_a_topic_made_again_is_another_instance(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.append("t", 1, 2, 3, idempotency_key="k")
        epoch = (await life.engine.topic_states.of("t", touch=False)).epoch
        assert await life.engine.topic_lifecycle.delete("t", if_empty=False) == (True, [])
        assert await life.engine.topic_lifecycle.delete("t", if_empty=False) == (False, [])
        assert (await refusal(life.read("t"))).code == "topic_not_found"
        assert life.engine.keys.count == 0
        done = await life.append("t", 4, idempotency_key="k")
        assert (done.first_seq, done.deduped, done.created) == (1, False, True)
        answer = await life.read("t", 3, epoch=epoch)
        assert answer.epoch > epoch
        assert answer.tombstone is not None
        assert (answer.tombstone.reason, answer.tombstone.gap_from, answer.tombstone.gap_to) == ("recreated", 1, 1)
        assert [record["data"] for record in records(answer)] == [4]
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert (await life.engine.topic_states.of("t", touch=False)).epoch == answer.epoch
        assert [record["data"] for record in (await life.all("t"))[0]] == [4]


async def test_deleting_under_appends_long_polls_and_changes(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.append("t", 0)
        poll = Called(nursery, lambda: life.read("t", 1, wait_ms=30_000))
        await settle()
        calls = [Called(nursery, partial(life.append, "t", i)) for i in range(10)]
        deletes = [Called(nursery, lambda: life.engine.topic_lifecycle.delete("t", if_empty=False)) for _ in range(3)]
        puts = [Called(nursery, lambda: life.put("t", cap_records=100)) for _ in range(2)]
        polls = [Called(nursery, lambda: life.read("t", 100_000, wait_ms=30_000)) for _ in range(2)]
        await trio.sleep(40)
        assert all(call.done for call in [poll, *calls, *deletes, *puts, *polls])
        assert all(call.error is None for call in [*calls, *deletes, *puts])
        assert 1 <= sum(call.result[0] for call in deletes) <= 3
        for name in life.engine.registry.topics:
            seqs = await life.seqs(name)
            assert seqs == list(range(1, len(seqs) + 1))


async def test_a_long_poll_on_a_deleted_topic_is_404_at_once(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.append("t", 0)
        poll = Called(nursery, lambda: life.read("t", 1, wait_ms=30_000))
        await settle()
        started = trio.current_time()
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await settle()
        assert poll.error is not None
        assert poll.error.code == "topic_not_found"
        assert trio.current_time() - started < 1


async def test_if_empty(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", ttl_ms=1000)
        await life.append("t", 1)
        error = await refusal(life.engine.topic_lifecycle.delete("t", if_empty=True))
        assert (error.status, error.code) == (409, "topic_not_empty")
        await life.append("t", 2)
        await trio.sleep(2)
        assert await life.engine.topic_lifecycle.delete("t", if_empty=True) == (True, [])


async def test_a_deletion_is_synced_before_it_is_answered(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.append("t", 1)
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed) as life:
        assert life.engine.registry.topics == {}
        assert life.engine.registry.next_topic_id > 1


# -- listing -----------------------------------------------------------------------------------------------------------


async def test_the_cost_of_a_page_follows_the_records_that_it_shows(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living() as life:
        async with trio.open_nursery() as nursery:
            for i in range(500):
                nursery.start_soon(life.put, f"t{i:04d}")
            nursery.start_soon(life.put, "z")
        looks: list[str] = []
        expire = life.engine.registry.expire

        def counted(topic: Any) -> None:
            looks.append(topic.name)
            expire(topic)

        monkeypatch.setattr(life.engine.registry, "expire", counted)
        page, more = await life.engine.topic_states.page("t", None, 20)
        assert [topic.topic for topic in page] == [f"t{i:04d}" for i in range(20)]
        assert more
        assert len(looks) == 20
        names: list[str] = []
        after = None
        while True:
            page, more = await life.engine.topic_states.page("t", after, 77)
            names += [topic.topic for topic in page]
            after = names[-1]
            if not more:
                break
        assert names == [f"t{i:04d}" for i in range(500)]
        page, more = await life.engine.topic_states.page("t", "t0123x", 2)
        assert [topic.topic for topic in page] == ["t0124", "t0125"]
        assert await life.engine.topic_states.page("t", "t0499", 5) == ([], False)
        assert await life.engine.topic_states.page("t", "zz", 5) == ([], False)
        assert [topic.topic for topic in (await life.engine.topic_states.page("", "t0498", 5))[0]] == ["t0499", "z"]
        assert [topic.topic for topic in (await life.engine.topic_states.page("t", "a", 1))[0]] == ["t0000"]
