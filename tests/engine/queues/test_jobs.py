"""Jobs that come later, fail, are urgent, paused or limited (`docs/design/jobs.md`), at the level of the engine: what
wakes whom and when, and what a restart leaves."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.queues.queue_calls import Stream, ack, at_rest, claim, counters, seqs_of, the_queue
from tests.simulation.disk import SimFs
from topics.engine.job_queue import JobQueue
from topics.engine.queues.claims import Claims
from topics.engine.topic import Topic
from topics.job_model import HeldRequest, HeldResult, NackTerms
from topics.model import ClaimRate, Performance, QueueState, RetryPolicy
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio


async def nack(life: Life, seqs: list[int], **terms: Any) -> HeldResult:
    request = HeldRequest(node="a", seqs=seqs, lease_ids=None)
    return await life.engine.queues.nack("q", request, NackTerms(**terms), Performance())


async def pause(life: Life, until: int | None = None) -> QueueState:
    return await life.engine.queues.pause("q", until, Performance())


async def resume(life: Life) -> QueueState:
    return await life.engine.queues.resume("q", Performance())


# ----------------------------------------------------------------- later


@pytest.mark.parametrize("durability", ["ephemeral", "fsync"])
async def test_a_job_is_claimed_when_its_time_has_come(durability: str, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability=durability)
        now = life.clock.now_ms()
        await life.append("q", {"data": 1, "delay_ms": 5000}, {"data": 2, "not_before": now + 3000}, 3)
        assert await counters(life) == (1, 0, 2, 0)
        assert seqs_of(await claim(life, most=9)) == [3]
        call = Called(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await trio.sleep(2.9)
        assert not call.done
        await trio.sleep(0.2)
        assert seqs_of(call.result) == [2]
        await trio.sleep(2)
        assert seqs_of(await claim(life)) == [1]
        await ack(life, [1, 3])
        await ack(life, [2], "b")
        await at_rest(life)


async def test_a_time_is_of_the_wall_clock(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", {"data": 1, "delay_ms": 3_600_000}, {"data": 2, "delay_ms": 7_200_000})
        call = Called(nursery, lambda: claim(life, wait_ms=30_000))
        await trio.sleep(5)
        life.clock.step(3_600_000)
        await trio.sleep(1.5)
        assert seqs_of(call.result) == [1]
        life.clock.step(-7_200_000)
        await trio.sleep(1)
        assert await counters(life) == (0, 1, 1, 0)


async def test_a_time_that_is_over_makes_a_job_like_any_other(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", {"data": 1, "not_before": 1}, {"data": 2, "delay_ms": 0, "priority": 5})
        _, queue = the_queue(life)
        assert len(queue.leases) == 0
        assert await counters(life) == (2, 0, 0, 0)
        assert not life.frames(FrameType.LEASE)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_times_and_priorities_survive_restarts(end: str, checkpoint: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=2), fs=fs, clean=end == "stop") as life:
        await life.put("q", type="queue", durability="fsync")
        jobs = (
            {"data": 1, "delay_ms": 60_000},
            2,
            {"data": 3, "priority": 7},
            {"data": 4, "delay_ms": 9000, "priority": 9},
        )
        await life.append("q", *jobs)
        if checkpoint:
            await life.compactor.checkpoint()
        clock = life.clock
        if end == "kill":
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert await counters(life) == (2, 0, 2, 0)
        assert seqs_of(await claim(life, most=1)) == [3]
        await trio.sleep(10)
        assert seqs_of(await claim(life, most=9)) == [4, 2]
        assert await counters(life) == (0, 3, 1, 0)


async def test_fields_of_jobs_on_a_log_name_the_field_and_make_no_topic(autojump_clock: Any) -> None:
    async with living() as life:
        for name in ("log", "new"):
            if name == "log":
                await life.put("log")
            error = await refusal(life.append(name, 1, {"data": 2, "priority": 3}))
            assert error.detail["field"] == "records[1].priority"
        assert "new" not in life.engine.registry.topics
        await life.append("made", {"data": 1, "delay_ms": 10}, config={"type": "queue"})
        too_far = life.clock.now_ms() + 3654 * 86_400_000
        error = await refusal(life.append("made", 1, {"data": 2, "not_before": too_far}))
        assert error.detail["field"] == "records[1].not_before"


async def test_a_job_that_is_later_is_deleted_and_evicted_like_any_other(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", cap_records=3)
        await life.append("q", *({"data": i, "delay_ms": 1000, "tag": "t" if i == 2 else "u"} for i in range(3)))
        await life.delete("q", match="t")
        assert await counters(life) == (0, 0, 2, 0)
        await life.append("q", {"data": 9, "delay_ms": 1000}, {"data": 9, "delay_ms": 1000})
        assert await counters(life) == (0, 0, 3, 0)
        await trio.sleep(1.1)
        assert seqs_of(await claim(life, most=9)) == [2, 4, 5]


# ----------------------------------------------------------------- failing


async def test_a_nack_without_a_delay_backs_off_and_one_with_a_delay_does_not(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", retry=RetryPolicy(delay_ms=1000, max_delay_ms=3000))
        await life.append("q", 1)
        for wait in (1, 2, 3, 3):
            assert seqs_of(await claim(life)) == [1]
            await nack(life, [1])
            assert await counters(life) == (0, 0, 1, 0)
            await trio.sleep(wait - 0.1)
            assert seqs_of(await claim(life)) == []
            await trio.sleep(0.2)
        assert seqs_of(await claim(life)) == [1]
        await nack(life, [1], delay_ms=0)
        assert seqs_of(await claim(life)) == [1]


@pytest.mark.parametrize("restarts", [False, True])
async def test_the_end_of_a_lease_backs_off(restarts: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("q", type="queue", durability="fsync", retry=RetryPolicy(delay_ms=5000), leases_durable=True)
        await life.append("q", 1)
        await claim(life, lease_ms=1000)
        clock = life.clock
        if not restarts:
            await trio.sleep(1.1)
            assert await counters(life) == (0, 0, 1, 0)
            await trio.sleep(4.5)
            assert await counters(life) == (0, 0, 1, 0)
            await trio.sleep(0.6)
            assert await counters(life) == (1, 0, 0, 0)
            return
    await trio.sleep(3)
    async with living(fs=fs, clock=clock) as life:
        assert await counters(life) == (0, 0, 1, 0)
        await trio.sleep(2.5)
        assert await counters(life) == (0, 0, 1, 0)
        await trio.sleep(0.6)
        assert await counters(life) == (1, 0, 0, 0)


async def test_a_stream_gets_a_free_place_when_its_lease_ends_and_the_job_is_delayed(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", lease_ms=1000, retry=RetryPolicy(delay_ms=60_000))
        await life.append("q", 1, 2)
        stream = Stream(nursery, life, 1)
        await settle()
        assert stream.seqs == [1]
        await trio.sleep(1.1)
        assert stream.seqs == [1, 2]
        stream.close()


async def test_a_delivery_that_does_not_count(autojump_clock: Any) -> None:
    async with living() as life:
        retry = RetryPolicy(delay_ms=60_000)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq", retry=retry)
        await life.append("q", 1)
        for _ in range(3):
            assert [job.deliveries for job in (await claim(life)).jobs] == [1]
            await nack(life, [1], counts=False)
        await claim(life)
        await nack(life, [1], delay_ms=0)
        assert seqs_of(await claim(life)) == []
        await settle()
        assert await counters(life) == (0, 0, 0, 1)


@pytest.mark.parametrize("max_deliveries", [0, 5])
async def test_a_dead_job_is_moved_at_once_with_its_error(max_deliveries: int, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_deliveries=max_deliveries, dead_letter="dlq")
        await life.append("q", 1, 2)
        await claim(life, most=2)
        await nack(life, [2], error="first")
        await claim(life)
        assert (await nack(life, [2], dead=True, error="it broke")).done == [2]
        await settle()
        assert await counters(life) == (0, 1, 0, 1)
        found, _ = await life.all("dlq")
        assert [record["data"] for record in found] == [2]
        assert found[0]["meta"] == {
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": "2",
            "$dead_letter_src_seq": "2",
            "$dead_letter_error": "it broke",
        }
        await ack(life, [1])
        await at_rest(life)


async def test_a_dead_job_without_a_dead_letter_topic_is_refused(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_deliveries=2)
        await life.append("q", 1)
        await claim(life)
        error = await refusal(nack(life, [1], dead=True))
        assert error.detail["field"] == "dead"
        assert await counters(life) == (0, 1, 0, 0)


# ----------------------------------------------------------------- priorities


async def test_higher_priorities_come_first_and_old_jobs_rise(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", priority_aging_ms=1000)
        await life.append("q", {"data": 1, "priority": 0}, 2, {"data": 3, "priority": 9}, {"data": 4, "priority": 9}, 5)
        assert seqs_of(await claim(life, most=3)) == [3, 4, 2]
        await trio.sleep(8)
        await life.append("q", {"data": 6, "priority": 8})
        assert seqs_of(await claim(life, most=9)) == [5, 1, 6]


async def test_priorities_in_segments_that_are_not_loaded(autojump_clock: Any) -> None:
    fs = SimFs()
    small = settings(segment_max_events=5)
    async with living(small, fs=fs) as life:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", *({"data": i, "priority": i % 10} for i in range(1, 31)))
        await life.delete("q", match="gone")
        await life.compactor.checkpoint()
        clock = life.clock
    async with living(small, fs=fs, clock=clock) as life:
        got: list[int] = []
        while found := seqs_of(await claim(life, most=4)):
            got += found
        assert got == sorted(range(1, 31), key=lambda seq: (-(seq % 10), seq))


async def test_a_cohort_shares_by_priority(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=100)
        await life.append("q", {"data": 1, "priority": 1}, 2, {"data": 3, "priority": 9})
        calls = [Called(nursery, lambda: claim(life, most=1)) for _ in range(2)]
        await trio.sleep(0.2)
        assert sorted(seqs_of(call.result) for call in calls) == [[2], [3]]


# ----------------------------------------------------------------- pauses


async def test_a_pause_gives_nothing_out_and_those_who_wait_go_on_waiting(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1, 2, 3)
        await claim(life)
        assert (await pause(life)).paused
        assert (await pause(life)).paused
        answer = await claim(life)
        assert (answer.jobs, answer.paused, answer.ready) == ([], True, 2)
        call = Called(nursery, lambda: claim(life, "b", wait_ms=30_000))
        stream = Stream(nursery, life, 1)
        await ack(life, [1])
        await trio.sleep(5)
        assert not call.done
        assert not stream.seqs
        assert not (await resume(life)).paused
        assert not (await resume(life)).paused
        await settle()
        assert sorted(seqs_of(call.result) + stream.seqs) == [2, 3]
        stream.close()


async def test_a_pause_ends_at_its_time(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        until = life.clock.now_ms() + 3000
        assert (await pause(life, until)).paused_until == until
        call = Called(nursery, lambda: claim(life, wait_ms=30_000))
        await trio.sleep(2.9)
        assert not call.done
        await trio.sleep(0.2)
        assert seqs_of(call.result) == [1]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "fsync"])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_a_pause_is_synced_and_survives_restarts(durability: str, checkpoint: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("q", type="queue", durability=durability)
        await pause(life)
        if checkpoint:
            await life.compactor.checkpoint()
        fs = fs.after_machine_crash("drop", 1)
        clock = life.clock
    async with living(fs=fs, clock=clock) as life:
        await life.append("q", 1)
        answer = await claim(life)
        assert (answer.jobs, answer.paused) == ([], True)
        await resume(life)
        assert len((await claim(life)).jobs) == 1


# ----------------------------------------------------------------- limits


async def test_no_more_jobs_are_in_flight_than_allowed(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", max_in_flight=3)
        await life.append("q", *range(9))
        calls = [Called(nursery, lambda: claim(life, most=2)) for _ in range(4)]
        await settle()
        assert sorted(seq for call in calls for seq in seqs_of(call.result)) == [1, 2, 3]
        late = Called(nursery, lambda: claim(life, most=5, wait_ms=30_000))
        await trio.sleep(1)
        assert not late.done
        await ack(life, [2])
        await settle()
        assert seqs_of(late.result) == [4]
        await life.put("q", max_in_flight=0)
        assert seqs_of(await claim(life, most=9)) == [5, 6, 7, 8, 9]


async def test_no_more_jobs_are_claimed_in_a_time_than_allowed(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync", rate=ClaimRate(jobs=3, per_ms=6400))
        await life.append("q", *range(12))
        assert seqs_of(await claim(life, most=2)) == [1, 2]
        await trio.sleep(2)
        assert seqs_of(await claim(life, most=2)) == [3]
        late = Called(nursery, lambda: claim(life, most=5, wait_ms=30_000))
        await trio.sleep(4.3)
        assert not late.done
        await trio.sleep(0.2)
        assert seqs_of(late.result) == [4, 5]
        clock = life.clock
    async with living(fs=fs, clock=clock) as life:
        assert seqs_of(await claim(life, most=5)) == []
        await trio.sleep(6.6)
        assert seqs_of(await claim(life, most=5)) == [6, 7, 8]


@pytest.mark.parametrize("claim_jitter_ms", [0, 50])
async def test_who_waits_at_an_empty_queue_with_a_rate_waits(
    claim_jitter_ms: int, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = 0
    attend_once = Claims._attend_once

    async def counted(claims: Claims, topic: Topic, queue: JobQueue) -> None:
        nonlocal passes
        passes += 1
        assert passes < 100, "the line is served without a pause"
        await attend_once(claims, topic, queue)

    monkeypatch.setattr(Claims, "_attend_once", counted)
    async with living() as life, trio.open_nursery() as nursery:
        rate = ClaimRate(jobs=1, per_ms=100)
        await life.put("q", type="queue", rate=rate, claim_jitter_ms=claim_jitter_ms)
        await life.append("q", 1)
        assert seqs_of(await claim(life)) == [1]
        late = Called(nursery, lambda: claim(life, wait_ms=20_000))
        await trio.sleep(10)
        assert not late.done
        await life.append("q", 2)
        await trio.sleep(0.1)
        assert seqs_of(late.result) == [2]


async def test_a_claim_counts_in_the_rate_from_its_sync_on(autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(offload=disk) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", leases_durable=True, rate=ClaimRate(jobs=1, per_ms=6400))
        await life.append("q", 1, 2)
        disk.hold()
        first = Called(nursery, lambda: claim(life, "a"))
        await settle()
        second = Called(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await trio.sleep(5)
        disk.let_go()
        await trio.sleep(0.1)
        assert seqs_of(first.result) == [1]
        await trio.sleep(6)
        assert not second.done
        await trio.sleep(0.5)
        assert seqs_of(second.result) == [2]
