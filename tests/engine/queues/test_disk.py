"""Queues and their disk: jobs in segments, barriers, failing shards, shutdown, synced leases, damage."""

from __future__ import annotations

import errno
import json
from functools import partial
from typing import Any

import pytest
import trio

from tests.engine.life import Called, Life, living, refusal, settings, settle
from tests.engine.queues.queue_calls import (
    SEGMENTS,
    Disk,
    Stream,
    Timed,
    ack,
    at_rest,
    claim,
    counters,
    exhaust,
    extend,
    in_line,
    leave_in_segments,
    nack,
    nothing_is_held_for_ever,
    seqs_of,
    the_queue,
)
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.errors import ApiError
from topics.runtime.offload import Pool
from topics.storage.files.datadir import DataDir
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- jobs on disk


async def test_jobs_are_claimed_from_segments_after_a_start(autojump_clock: Any) -> None:
    fs = SimFs()
    await leave_in_segments(fs, 40)
    live = [seq for seq in range(1, 41) if seq % 10 != 5]
    async with living(SEGMENTS, fs=fs) as life:
        assert await counters(life) == (36, 0, 0, 0)
        first = await claim(life, most=20)
        assert seqs_of(first) == live[:20]
        assert [json.loads(b"{" + job.record)["data"] for job in first.jobs] == live[:20]
        assert (await ack(life, live[:20])).done == live[:20]
        assert seqs_of(await claim(life, most=1000)) == live[20:]
        assert await counters(life) == (0, 16, 0, 0)
    async with living(SEGMENTS, fs=fs) as life:
        assert await counters(life) == (0, 16, 0, 0)
        assert (await ack(life, live)).done == live[20:]
        assert await counters(life) == (0, 0, 0, 0)
        assert await life.seqs("q") == []


async def test_an_ack_of_jobs_in_segments_whose_columns_are_not_loaded(autojump_clock: Any) -> None:
    fs, offload = SimFs(), Disk()
    async with living(SEGMENTS, fs=fs) as life:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", *range(40))
        assert len((await claim(life, most=30)).jobs) == 30
    async with living(SEGMENTS, fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        with offload.held(Pool.HOT_READ):
            acks = Called(nursery, lambda: ack(life, [3, 14, 25, 35]))
            more = Called(nursery, lambda: nack(life, [4]))
            await settle()
            assert not acks.done
        await settle()
        assert (acks.result.done, acks.result.skipped) == ([3, 14, 25], [35])
        assert more.result.done == [4]
        assert await counters(life) == (11, 26, 0, 0)
        await at_rest(life)


async def test_jobs_that_are_stored_while_their_ack_is_synced(autojump_clock: Any) -> None:
    """A checkpoint puts them into a segment, and its columns go, between decision and commit point."""
    offload = Disk()
    async with living(settings(segment_max_events=5), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", *range(20))
        await claim(life, most=10)
        await trio.sleep(1)
        with offload.held():
            call = Called(nursery, lambda: ack(life, [2, 3, 8]))
            check = Called(nursery, life.compactor.try_checkpoint)
            await settle()
            for span in list(life.engine.indexes._columns):
                span.detach()
                life.engine.indexes.forget_columns(span)
        await settle()
        await trio.sleep(1)
        assert check.done
        assert call.result.done == [2, 3, 8]
        assert await life.seqs("q") == [seq for seq in range(1, 21) if seq not in (2, 3, 8)]


@pytest.mark.parametrize("jitter", [0, 50])
async def test_a_disk_that_does_not_answer_leases_nothing(jitter: int, autojump_clock: Any) -> None:
    fs = SimFs()
    await leave_in_segments(fs, 20, claim_jitter_ms=jitter)
    async with living(SEGMENTS, fs=fs) as life, trio.open_nursery() as nursery:
        fault = Fault(error=errno.EIO, path="/data/*", when=lambda op: op.name in ("pread", "open"), times=None)
        fs.inject(fault)
        error = await refusal(claim(life, most=3))
        assert (error.status, error.code) == (503, "not_ready")
        waiting = Timed(nursery, lambda: claim(life, most=3, wait_ms=30_000))
        await trio.sleep(3)
        _, queue = the_queue(life)
        assert not queue.leases._reserved
        assert queue.leases.in_flight == 0
        fault.times = 0
        await trio.sleep(3)
        if waiting.called.error is None:
            assert waiting.seqs == [1, 2, 3]
            await nack(life, waiting.seqs)
        await nothing_is_held_for_ever(life, 18)


async def test_a_stream_that_waits_in_line_hears_that_the_disk_does_not_answer(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that waits stays in line: its time comes to an end."""
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        stream = Stream(nursery, life, 5)
        waiting = Timed(nursery, lambda: claim(life, node="other", most=3, wait_ms=30_000))
        await settle()
        _, queue = the_queue(life)
        assert len(queue.line) == 2

        async def fails(*_: object) -> None:
            raise ApiError("not_ready", "the disk does not answer")

        with monkeypatch.context() as away:
            away.setattr(life.engine.queues._claims._loader, "prepared", fails)
            await life.append("q", *range(3))
            await trio.sleep(3)
            assert stream.error == "not_ready"
            assert not waiting.called.done
        await trio.sleep(5)
        assert waiting.seqs == [1, 2, 3]


# ----------------------------------------------------------------- barriers


@pytest.mark.parametrize("change", [{"lease_ms": 5000}, {"durability": "ephemeral"}, {"durability": "fsync"}])
async def test_a_reconfiguration_between_decision_and_commit_of_a_claim(
    change: dict[str, Any], autojump_clock: Any
) -> None:
    offload = Disk()
    async with living(settings(cache_bytes=0), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1, 2)
        await trio.sleep(0.1)
        with offload.held(Pool.HOT_READ):
            call = Called(nursery, lambda: claim(life, most=2))
            await settle()
            assert not call.done
            with offload.held():
                config = Called(nursery, lambda: life.put("q", **change))
                await settle()
                assert not config.done
            await settle()
            assert config.done
        await settle()
        assert seqs_of(call.result) == [1, 2]
        assert (await ack(life, [1, 2])).done == [1, 2]
        await at_rest(life)


async def test_calls_beside_a_reconfiguration_wait_for_it(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", *range(9))
        await claim(life, most=3)
        with offload.held():
            config = Called(nursery, lambda: life.put("q", durability="ephemeral"))
            await settle()
            calls = [
                Called(nursery, lambda: claim(life, most=2)),
                Called(nursery, lambda: ack(life, [1])),
                Called(nursery, lambda: nack(life, [2])),
                Called(nursery, lambda: extend(life, [3], 100)),
            ]
            stream = Stream(nursery, life, 1)
            await settle()
            assert not any(call.done for call in calls)
            assert stream.seqs == []
        await trio.sleep(0.1)
        assert config.done
        assert all(call.error is None and call.done for call in calls)
        assert len(stream.seqs) == 1
        stream.close()


async def test_deleting_a_topic_ends_everybody_who_waits_there(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        call = Called(nursery, lambda: claim(life, wait_ms=30_000))
        stream = Stream(nursery, life, 1)
        await settle()
        _, queue = the_queue(life)
        await life.engine.topic_lifecycle.delete("q", if_empty=False)
        await settle()
        assert call.error is not None
        assert call.error.code == "topic_not_found"
        assert stream.error == "topic_not_found"
        assert not queue.attended
        assert not queue.line


@pytest.mark.parametrize("recreate", [False, True])
async def test_deleting_a_topic_while_claims_and_acks_are_synced(recreate: bool, autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync", leases_durable=True)
        await life.append("q", *range(9))
        assert len((await claim(life, most=3)).jobs) == 3
        with offload.held():
            claimed = Called(nursery, lambda: claim(life, "b", 2))
            await settle()
            acked = Called(nursery, lambda: ack(life, [1]))
            await settle()
            busy = Called(nursery, lambda: nack(life, [1, 2]))
            stream = Stream(nursery, life, 2)
            await settle()
            gone = Called(nursery, lambda: life.engine.topic_lifecycle.delete("q", if_empty=False))
            await settle()
            late = Called(nursery, lambda: claim(life, "c", 2, wait_ms=100))
            later = Called(nursery, lambda: ack(life, [3]))
            if recreate:
                new = Called(nursery, lambda: life.put("q", type="queue"))
            await settle()
        await settle()
        await trio.sleep(1)
        assert gone.done
        assert seqs_of(claimed.result) == [4, 5]
        assert acked.result.done == [1]
        assert busy.done
        assert late.done
        assert later.done
        assert stream.call.done
        if recreate:
            assert new.done
            assert await counters(life) == (0, 0, 0, 0)
            await at_rest(life)
        else:
            assert "q" not in life.engine.registry.topics


# ----------------------------------------------------------------- a shard that fails


async def test_a_failed_shard_refuses_everything_and_nobody_hangs(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.put("idle", type="queue")
        await life.append("q", 1, 2, 3)
        await claim(life, most=3, lease_ms=5000)
        call = Timed(nursery, lambda: claim(life, "b", wait_ms=30_000))
        idle = Timed(nursery, lambda: claim(life, "b", wait_ms=20_000, name="idle"))
        stream = Stream(nursery, life, 1)
        await settle()
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
        error = await refusal(life.append("q", 4))
        assert error.code == "read_only"
        for refused in (
            claim(life),
            claim(life, wait_ms=1000),
            ack(life, [1]),
            nack(life, [2]),
            extend(life, [3], 500),
        ):
            error = await refusal(refused)
            assert (error.status, error.code) == (503, "read_only")
        assert (await refusal(life.engine.queues.open_work("q", "s", 1, None))).code == "read_only"
        await trio.sleep(60)
        assert call.called.done
        assert call.called.error is not None
        assert call.called.error.code == "read_only"
        assert idle.called.done
        assert stream.error == "read_only"
        _, queue = the_queue(life)
        queue.leases.check()
        assert not queue.leases._reserved
        assert not queue.line
        assert not queue.attended
        assert await life.seqs("q") == [1, 2, 3], "reads go on"


@pytest.mark.parametrize("leases_durable", [False, True])
async def test_what_is_on_its_way_when_a_shard_fails_is_refused_and_let_go(
    leases_durable: bool, autojump_clock: Any
) -> None:
    fs, offload = SimFs(), Disk()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync", leases_durable=leases_durable)
        await life.append("q", *range(9))
        await claim(life, most=4, lease_ms=1000)
        stream = Stream(nursery, life, 1)
        await settle()
        assert stream.seqs == [5]
        with offload.held():
            calls = [Called(nursery, lambda: life.append("q", 10))]
            await settle()  # what waits for nothing itself stands behind it
            calls += [
                Called(nursery, lambda: ack(life, [1])),
                Called(nursery, lambda: ack(life, [1])),
                Called(nursery, lambda: claim(life, "b", 2)),
                Called(nursery, lambda: nack(life, [2])),
                Called(nursery, lambda: extend(life, [3], 500)),
                Called(nursery, lambda: ack(life, [5], "s")),
            ]
            gone = Called(nursery, lambda: claim(life, "b", 2))
            await settle()
            gone.scope.cancel()
            await settle()
            fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
        await trio.sleep(60)
        assert all(call.done for call in calls)
        assert all(call.error is not None and call.error.code == "read_only" for call in calls)
        assert stream.call.done
        assert stream.error == "read_only"
        _, queue = the_queue(life)
        queue.leases.check()
        assert not queue.leases._reserved
        assert not queue._held


# ----------------------------------------------------------------- shutdown


@pytest.mark.parametrize("jitter", [0, 5000])
async def test_a_shutdown_ends_those_who_wait(jitter: int, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=jitter)
        calls = [await in_line(nursery, partial(claim, life, f"n{i}", wait_ms=30_000)) for i in range(3)]
        stream = Stream(nursery, life, 3)
        await settle()
        life.engine.start_draining()
        await trio.sleep(6)
        assert {call.called.error.code for call in calls if call.called.error is not None} == {"shutting_down"}
        assert stream.error == "shutting_down"
        await at_rest(life)


async def test_after_a_stop_a_closed_stream_holds_nothing(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("q", type="queue", lease_ms=3_600_000)
        await life.append("q", 1, 2)
        async with trio.open_nursery() as nursery:
            stream = Stream(nursery, life, 1)
            await settle()
            await claim(life)
            life.engine.start_draining()
            stream.close()
        await settle()
    async with living(fs=fs) as life:
        assert await counters(life) == (1, 1, 0, 0)
        assert (await claim(life, "b")).jobs[0].deliveries == 2


# ----------------------------------------------------------------- leases that are synced


async def test_a_durable_claim_is_answered_when_it_is_synced(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", leases_durable=True)
        await life.append("q", 1, 2)
        syncs = life.syncs()
        with offload.held():
            call = Called(nursery, lambda: claim(life))
            other = Called(nursery, lambda: claim(life, "b"))
            await settle()
            assert not call.done
            assert await counters(life) == (2, 0, 0, 0), "nothing has happened"
            await trio.sleep(60)
            assert not call.done
        await settle()
        assert sorted(seqs_of(call.result) + seqs_of(other.result)) == [1, 2]
        assert life.syncs() > syncs
        for answer in (call.result, other.result):
            assert answer.jobs[0].deadline <= life.clock.now_ms() - 60_000 + 30_000


@pytest.mark.parametrize("what", ["nack", "extend", "ack"])
async def test_durable_changes_of_leases_are_answered_when_they_are_synced(what: str, autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", leases_durable=True, durability="fsync")
        await life.append("q", 1)
        await claim(life)
        calls = {
            "nack": lambda: nack(life, [1]),
            "extend": lambda: extend(life, [1], 777),
            "ack": lambda: ack(life, [1]),
        }
        with offload.held():
            call = Called(nursery, calls[what])
            await settle()
            assert not call.done
            assert await counters(life) == (0, 1, 0, 0)
            assert seqs_of(await claim(life, "b")) == []
        await settle()
        assert call.result.done == [1]


async def test_a_durable_lease_is_there_after_a_crash_and_no_other_holder(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("q", type="queue", leases_durable=True, durability="fsync", lease_ms=60_000)
        await life.append("q", 1, 2)
        job = (await claim(life)).jobs[0]
        crashed = fs.after_machine_crash("drop", 0)
        told_ms = life.clock.now_ms()
    clock = SimClock(told_ms + 10_000)
    async with living(fs=crashed, clock=clock, clean=False) as life:
        assert await counters(life) == (1, 1, 0, 0)
        assert seqs_of(await claim(life, "b", 5)) == [2]
        assert (await extend(life, [1], 60_000)).done == [1]
        crashed = crashed.after_machine_crash("drop", 0)
    async with living(fs=crashed, clock=SimClock(told_ms + 65_000), clean=False) as life:
        assert seqs_of(await claim(life, "b", 5)) == [], "it was extended until 70 s"
        await trio.sleep(4.999)
        assert seqs_of(await claim(life, "c", 5)) == []
        assert (await ack(life, [1], ids=[job.lease_id])).done == [1]
        await trio.sleep(1)
        assert await counters(life) == (1, 0, 0, 0), "and then the other lease is over as well"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
async def test_the_wall_clock_does_not_move_leases(step_ms: int, autojump_clock: Any) -> None:
    clock = SimClock()
    async with living(clock=clock) as life:
        await life.put("q", type="queue", lease_ms=10_000)
        await life.append("q", 1, 2)
        await claim(life)
        clock.step(step_ms)
        await trio.sleep(9.999)
        assert (await counters(life)) == (1, 1, 0, 0)
        assert (await extend(life, [1], 5000)).done == [1]
        clock.step(-2 * step_ms)
        await trio.sleep(5)
        assert (await ack(life, [1])).done == [1]


@pytest.mark.parametrize("step_ms", [-3_600_000, -1, 0])
async def test_a_lease_runs_no_longer_after_a_restart_with_a_clock_set_back(step_ms: int, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("q", type="queue", lease_ms=10_000)
        await life.append("q", 1)
        await claim(life)
        await trio.sleep(2)
    clock.step(step_ms)
    async with living(fs=fs, clock=clock) as life:
        assert await counters(life) == (0, 1, 0, 0)
        await trio.sleep(11)
        assert await counters(life) == (1, 0, 0, 0)


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
async def test_a_lease_is_as_long_after_a_restart_with_a_clock_that_was_set(step_ms: int, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("q", type="queue", leases_durable=True, lease_ms=10_000)
        await life.append("q", 1)
        await claim(life)
        await trio.sleep(2)
    clock.step(step_ms)
    async with living(fs=fs, clock=clock) as life:
        await trio.sleep(7.9)
        assert seqs_of(await claim(life, "b", 1)) == []
        await trio.sleep(0.2)
        assert seqs_of(await claim(life, "b", 1)) == [1]


async def test_clients_are_told_deadlines_by_the_wall_clock_as_it_is_set(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", lease_ms=10_000)
        await life.append("q", 1)
        life.clock.step(3_600_000)
        job = (await claim(life)).jobs[0]
        assert job.deadline == life.clock.now_ms() + 10_000
        life.clock.step(-7_200_000)
        assert (await extend(life, [1], 5_000)).deadlines == {"1": life.clock.now_ms() + 5_000}


# ----------------------------------------------------------------- damage


def damage(life: Life, fs: SimFs, *seqs: int) -> None:
    """Records in the only WAL file are not what was written."""
    path = life.engine.store.writers[0].file.path
    for frame, _ in life.frames(FrameType.APPEND):
        if frame.seq in seqs:
            fs.flip_bit(path, frame.end - 12, 3)


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("jitter", [0, 20])
async def test_a_damaged_job_does_not_keep_the_others(most: int, jitter: int, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(cache_bytes=0), fs=fs) as life:
        await life.put("q", type="queue", claim_jitter_ms=jitter)
        await life.append("q", *range(1, 7))
        await trio.sleep(0.1)
        damage(life, fs, 2, 4)
        got: list[int] = []
        with trio.fail_after(60):
            for _ in range(12):
                got += seqs_of(await claim(life, most=most, wait_ms=100))
        assert got == [1, 3, 5, 6]
        assert await counters(life) == (0, 4, 0, 0)
        await at_rest(life)


async def test_a_leased_job_that_is_found_damaged_ends_its_lease(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(cache_bytes=0), fs=fs) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", *range(1, 7))
        await trio.sleep(0.1)
        stream = Stream(nursery, life, 2)
        await settle()
        assert stream.seqs == [1, 2]
        damage(life, fs, 2, 4)
        found, _ = await life.all("q")
        assert [record["$seq"] for record in found] == [1, 3, 5, 6]
        await settle()
        assert stream.seqs == [1, 2, 3], "its place is free"
        answer = await ack(life, [1, 2], "s")
        assert (answer.done, answer.skipped) == ([1], [2])
        await settle()
        assert stream.seqs == [1, 2, 3, 5]
        stream.close()
        await settle()
        assert await counters(life) == (3, 0, 0, 0)
        await at_rest(life)


@pytest.mark.parametrize("most", [1, 5])
async def test_a_damaged_job_in_a_segment_does_not_keep_the_others(most: int, autojump_clock: Any) -> None:
    fs = SimFs()
    config = settings(segment_max_events=10, cache_bytes=0)
    async with living(config, fs=fs) as life:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", *range(1, 21))
        await claim(life, "x", lease_ms=86_400_000)
    for at in (150, 260):
        fs.flip_bit(DataDir("/data").segment_path(1, 1, "data"), at, 0)
    async with living(config, fs=fs) as life:
        got: list[int] = []
        with trio.fail_after(60):
            for _ in range(25):
                got += seqs_of(await claim(life, most=most, wait_ms=100))
        state = await life.engine.topic_states.of("q", touch=False)
        assert state.count < 20
        assert len(got) == state.count - 1
        assert await counters(life) == (0, len(got) + 1, 0, 0)
        await at_rest(life)


async def test_a_damaged_dead_letter_does_not_keep_the_others(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(cache_bytes=0), fs=fs) as life:
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(1, 7))
        await exhaust(life, 6)
        damage(life, fs, 2, 4)
        await claim(life)
        await trio.sleep(5)
        assert [record["data"] for record in (await life.all("dlq"))[0]] == [1, 3, 5, 6]
        assert await counters(life) == (0, 0, 0, 4)
        await at_rest(life)
