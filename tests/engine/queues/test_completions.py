"""Results that are delivered to another topic (`docs/design/completions.md`), at the level of the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, refusal, settle
from tests.engine.queues.queue_calls import at_rest, claim, counters, seqs_of, the_queue
from tests.simulation.disk import SimFs
from topics.engine.queues import completions
from topics.job_model import ClaimRequest, HeldRequest, HeldResult
from topics.model import ConsumerStart, GroupPatch, Performance, TopicConfigPatch
from topics.queue import job_results
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

HOUR_MS = 3_600_000
CLASSES = ("ephemeral", "memory", "disk", "fsync")


async def ack(life: Life, results: dict[int, Any] | list[int], node: str = "a", group: str | None = None) -> HeldResult:
    """Ack jobs, with results if they are given."""
    said = {seq: json.dumps(value).encode() for seq, value in results.items()} if isinstance(results, dict) else None
    request = HeldRequest(node=node, seqs=list(results), lease_ids=None, results=said)
    return await life.engine.queues.ack("q", request, Performance(), group)


async def delivered(life: Life, name: str = "done") -> list[Any]:
    """The data of the records of a topic, none as long as it is missing."""
    if name not in life.engine.registry.topics:
        return []
    return [record["data"] for record in (await life.all(name))[0]]


def result(seq: int, value: Any, node: str = "a", **more: Any) -> dict[str, Any]:
    return {"topic": "q", **more, "job_seq": seq, "node": node, "result": value}


@pytest.mark.parametrize("durability", CLASSES)
async def test_an_ack_has_its_result_delivered_and_then_the_job_is_gone(durability: str, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", durability=durability, completed="done")
        await life.append("q", {"data": 1, "tag": "red"}, 2, 3)
        assert (await claim(life, most=3)).wants_results
        answer = await ack(life, {1: {"sum": 7}, 3: [1, "x"]})
        assert (answer.done, answer.skipped) == ([1, 3], [])
        await ack(life, [2])
        await settle()
        records, _ = await life.all("done", include_tags=True)
        assert [record["data"] for record in records] == [result(1, {"sum": 7}), result(3, [1, "x"]), result(2, None)]
        assert records[0]["$tag"] == "red"
        assert life.engine.registry.topic("done").config.durability == "disk"
        assert await counters(life) == (0, 0, 0, 0)
        assert (await ack(life, {1: 5})).skipped == [1]
        await at_rest(life)


async def test_the_answer_does_not_wait_for_the_delivery_and_the_job_counts_as_delayed(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("done", cap_records=1, discard="reject")
        await life.append("done", "in the way")
        await life.put("q", type="queue", durability="fsync", completed="done", order_by="tag")
        await life.append("q", {"data": 1, "tag": "k"}, {"data": 2, "tag": "k"}, {"data": 3, "tag": "other"})
        assert seqs_of(await claim(life)) == [1]
        assert (await ack(life, {1: "r"})).done == [1]
        assert await counters(life) == (2, 0, 1, 0)
        assert seqs_of(await claim(life, most=5)) == [3], "it keeps the place of its key"
        await trio.sleep(20)
        assert await counters(life) == (1, 1, 1, 0)
        await life.delete("done", before_seq=2)
        await trio.sleep(31)
        assert await delivered(life) == [result(1, "r")]
        assert 2 in seqs_of(await claim(life, most=5))


async def test_results_are_refused_where_nobody_wants_them(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", 1)
        assert not (await claim(life)).wants_results
        error = await refusal(ack(life, {1: "r"}))
        assert (error.code, error.detail["field"]) == ("invalid_request", "results")
        assert (await ack(life, [1])).done == [1]


@pytest.mark.parametrize("field", ["dead_letter", "completed"])
async def test_the_topic_of_results_is_another_one_that_is_not_ephemeral(field: str, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("loose", durability="ephemeral")
        for name in ("loose", "q", "?"):
            error = await refusal(life.put("q", type="queue", **{field: name}))
            assert error.detail["field"] == field, name
        await life.put("q", type="queue", dead_letter="both", completed="both")
        for change in ({"dead_letter": None}, {}):
            await life.put("q", **change)
            error = await refusal(life.put("both", durability="ephemeral"))
            assert error.detail["field"] == "durability"
        await life.put("q", completed=None)
        await life.put("both", durability="ephemeral")


async def stuck(life: Life, **config: Any) -> None:
    """Two jobs that are finished, and whose results wait because there is no room for them."""
    await life.put("done", cap_records=1, discard="reject")
    await life.append("done", "in the way")
    await life.put("q", **{"type": "queue", "durability": "fsync", "completed": "done", "lease_ms": HOUR_MS} | config)
    await life.append("q", {"data": 1, "tag": "a"}, 2)
    await claim(life, most=2)
    assert (await ack(life, {1: "one", 2: "two"})).done == [1, 2]
    await settle()
    assert await counters(life) == (0, 0, 2, 0)


async def make_room(life: Life) -> None:
    await life.delete("done", before_seq=2)
    await life.put("done", cap_records=0)
    await trio.sleep(40)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_start_delivers_what_waits(end: str, checkpoint: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=end == "stop") as life:
        await stuck(life)
        if checkpoint:
            await life.compactor.checkpoint()
        clock = life.clock
        if end == "kill":
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert await counters(life) == (0, 0, 2, 0)
        assert seqs_of(await claim(life)) == []
        await make_room(life)
        assert await delivered(life) == [result(1, "one"), result(2, "two")]
        assert await counters(life) == (0, 0, 0, 0)
    async with living(fs=fs, clock=clock) as life:
        await settle()
        assert len(await delivered(life)) == 2


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("way", ["delete", "evict", "expire"])
async def test_a_result_outlives_its_record(way: str, restarts: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await stuck(life)
        if way == "delete":
            await life.delete("q", match="a")
            await life.append("q", 3)
        elif way == "evict":
            await life.put("q", cap_records=1)
            await life.append("q", 3)
        else:
            await life.put("q", ttl_ms=1000)
            await trio.sleep(2)
        ready = 0 if way == "expire" else 1
        assert await counters(life) == (ready, 0, 1 if way == "delete" else 0, 0)
        clock = life.clock
        if not restarts:
            await make_room(life)
            assert await delivered(life) == [result(1, "one"), result(2, "two")]
    if restarts:
        async with living(fs=fs, clock=clock) as life:
            await make_room(life)
            assert await delivered(life) == [result(1, "one"), result(2, "two")]
    async with living(fs=fs, clock=clock) as life:
        await settle()
        _, queue = the_queue(life)
        assert not len(queue.leases.results)
        assert len(await delivered(life)) == 2


async def test_another_topic_takes_the_results_and_without_one_they_are_dropped(autojump_clock: Any) -> None:
    async with living() as life:
        await stuck(life)
        await life.put("q", completed="other")
        await settle()
        assert await delivered(life, "other") == [result(1, "one"), result(2, "two")]
        assert await counters(life) == (0, 0, 0, 0)
    async with living() as life:
        await stuck(life)
        await life.put("q", completed=None)
        await settle()
        assert await counters(life) == (0, 0, 0, 0)
        await make_room(life)
        assert await delivered(life) == []


async def test_a_topic_that_is_deleted_is_made_again_and_one_with_a_schema_takes_all(autojump_clock: Any) -> None:
    async with living() as life:
        await stuck(life)
        await life.engine.topic_lifecycle.delete("done", if_empty=False)
        await trio.sleep(40)
        assert await delivered(life) == [result(1, "one"), result(2, "two")]
        await life.append("q", 3)
        await life.put("done", schema=b'{"type":"string"}')
        await claim(life)
        await ack(life, {3: 3})
        await settle()
        assert (await delivered(life))[2:] == [result(3, 3)]


async def test_a_queue_that_is_deleted_takes_its_results_with_it(autojump_clock: Any) -> None:
    async with living() as life:
        await stuck(life)
        await life.engine.topic_lifecycle.delete("q", if_empty=False)
        await life.put("q", type="queue", completed="done")
        await make_room(life)
        assert await delivered(life) == []


async def test_one_that_can_never_be_delivered_does_not_keep_the_others(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("done", cap_bytes=2000, discard="reject")
        await life.put("q", type="queue", completed="done")
        await life.append("q", *range(20))
        await claim(life, most=20)
        await ack(life, {seq: "x" * 3000 if seq <= 10 else seq for seq in range(1, 21)})
        await trio.sleep(120)
        assert [one["job_seq"] for one in await delivered(life)] == list(range(11, 21))
        assert await counters(life) == (0, 0, 10, 0)
        await life.put("done", cap_bytes=0)
        await trio.sleep(31)
        assert await counters(life) == (0, 0, 0, 0)


async def test_results_that_wait_are_bounded_for_a_queue_and_for_all(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    each = job_results.RESULT_BYTES + 100
    monkeypatch.setattr(completions, "MAX_RESULTS_BYTES", 3 * each)
    async with living() as life:
        await stuck(life)
        await life.append("q", 3, 4, 5)
        await claim(life, most=3)
        assert (await ack(life, {3: "x" * 90})).done == [3]
        error = await refusal(ack(life, {4: "x" * 500}))
        assert (error.code, error.detail["limit"]) == ("throttled", "max_results_bytes")
        assert await counters(life) == (0, 2, 3, 0), "the job is still held"
        monkeypatch.setattr(completions, "MAX_ALL_BYTES", 3 * each)
        await life.put("p", type="queue", completed="done", lease_ms=HOUR_MS)
        await life.append("p", 1)
        await claim(life, name="p")
        request = HeldRequest(node="a", seqs=[1], lease_ids=None, results={1: b'"%b"' % (b"x" * 500)})
        error = await refusal(life.engine.queues.ack("p", request, Performance()))
        assert error.detail["limit"] == "max_all_results_bytes"
        await make_room(life)
        assert (await ack(life, {4: "x" * 5000})).done == [4], "one that is longer than the bound, when nothing waits"
        await settle()
        assert (await life.engine.queues.ack("p", request, Performance())).done == [1]


async def test_a_queue_that_changes_its_class_keeps_what_it_has_promised(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await stuck(life)
        await life.put("q", durability="ephemeral")
        await life.put("q", durability="disk")
        assert await counters(life) == (0, 0, 2, 0)
        clock = life.clock
    async with living(fs=fs, clock=clock) as life:
        await make_room(life)
        assert len(await delivered(life)) == 2


async def test_results_of_an_ephemeral_queue_are_in_memory_only(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await stuck(life, durability="ephemeral")
        assert not life.frames(FrameType.LEASE)
        clock = life.clock
    async with living(fs=fs, clock=clock) as life:
        await make_room(life)
        assert await delivered(life) == []
    fs = SimFs()
    async with living(fs=fs) as life:
        await stuck(life)
        await life.put("q", durability="ephemeral")
        clock = life.clock
    async with living(fs=fs, clock=clock) as life:
        await make_room(life)
        assert await delivered(life) == []


async def test_two_queues_may_have_their_results_delivered_to_each_other(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", completed="p")
        await life.put("p", type="queue", completed="q")
        await life.append("q", 1)
        await claim(life)
        await ack(life, {1: "r"})
        await settle()
        assert await counters(life, "p") == (1, 0, 0, 0)


async def test_a_stream_gets_a_free_place_by_an_ack_whose_result_waits(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("done", cap_records=1, discard="reject")
        await life.append("done", "in the way")
        await life.put("q", type="queue", completed="done")
        await life.append("q", 1, 2)
        work = await life.engine.queues.open_work("q", "a", 1, None)
        seqs: list[int] = []

        async def follow() -> None:
            while True:
                seqs.extend(job.seq for job in await life.engine.queues.next_jobs(work))

        nursery.start_soon(follow)
        await settle()
        assert seqs == [1]
        await ack(life, {1: "r"})
        await settle()
        assert seqs == [1, 2]
        life.engine.queues.close_work(work)
        nursery.cancel_scope.cancel()


# ----------------------------------------------------------------- groups


async def put_group(life: Life, **terms: Any) -> None:
    patch = GroupPatch(start=ConsumerStart(place="earliest"), terms=TopicConfigPatch(**terms))
    await life.engine.groups.put("q", "g", patch, Performance())


async def take(life: Life, most: int = 10) -> list[int]:
    request = ClaimRequest(node="a", most=most, lease_ms=None, wait_ms=0)
    return [job.seq for job in (await life.engine.queues.claim("q", request, Performance(), "g")).jobs]


@pytest.mark.parametrize("durability", CLASSES)
async def test_the_results_of_a_group(durability: str, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("q", durability=durability)
        await life.append("q", {"data": 1, "tag": "t"}, 2, 3)
        await put_group(life)
        assert await take(life) == [1, 2, 3]
        error = await refusal(ack(life, {1: 1}, group="g"))
        assert error.detail["field"] == "results"
        await put_group(life, completed="done")
        assert (await ack(life, {1: "one", 3: None}, group="g")).done == [1, 3]
        await settle()
        records, _ = await life.all("done", include_tags=True)
        assert [record["data"] for record in records] == [result(1, "one", group="g"), result(3, None, group="g")]
        assert [record.get("$tag") for record in records] == ["t", None]
        state = await life.engine.groups.state("q", "g")
        assert (state.completed, state.floor, state.queue.in_flight, state.queue.delayed) == ("done", 1, 1, 0)
        assert await life.seqs("q") == [1, 2, 3]
        clock = life.clock
    async with living(fs=fs, clock=clock) as life:
        await settle()
        assert len(await delivered(life)) == 2
        assert (await life.engine.groups.state("q", "g")).completed == "done"


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_results_of_a_group_wait_over_a_kill_and_outlive_records(checkpoint: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("done", cap_records=1, discard="reject")
        await life.append("done", "in the way")
        await life.put("q", durability="fsync")
        await life.append("q", 1, 2, 3, 4)
        await put_group(life, completed="done")
        assert await take(life, 3) == [1, 2, 3]
        assert (await ack(life, {1: "one", 2: "two"}, group="g")).done == [1, 2]
        await life.put("q", cap_records=3)
        state = await life.engine.groups.state("q", "g")
        assert (state.floor, state.missed, state.queue.delayed, state.queue.in_flight) == (1, 0, 1, 1)
        if checkpoint:
            await life.compactor.checkpoint()
        fs, clock = fs.after_process_kill(), life.clock
    async with living(fs=fs, clock=clock) as life:
        state = await life.engine.groups.state("q", "g")
        assert (state.floor, state.missed, state.queue.delayed) == (1, 0, 1)
        await make_room(life)
        assert await delivered(life) == [result(1, "one", group="g"), result(2, "two", group="g")]
        state = await life.engine.groups.state("q", "g")
        assert (state.floor, state.missed) == (2, 0)
        await life.engine.groups.delete("q", "g", Performance())
