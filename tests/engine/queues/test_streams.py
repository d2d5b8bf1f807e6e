"""Streams of jobs, and their leases."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from tests.engine.life import Called, living, settle
from tests.engine.queues.queue_calls import (
    SLOW,
    Disk,
    Stream,
    Timed,
    ack,
    at_rest,
    cancelled_after,
    claim,
    counters,
    extend,
    nack,
    seqs_of,
    the_queue,
)
from tests.simulation.disk import SimFs

pytestmark = pytest.mark.trio


async def test_a_leased_job_that_expires_frees_its_place_in_a_stream(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", ttl_ms=1000, lease_ms=3_600_000)
        stream = Stream(nursery, life, 1)
        await life.append("q", 1)
        await trio.sleep(0.9)
        await life.append("q", 2)
        assert stream.seqs == [1]
        await trio.sleep(0.5)
        assert stream.seqs == [1, 2], "the second is there until 1.9 s"
        stream.close()


async def test_a_leased_job_that_is_evicted_frees_its_place_in_a_stream(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", cap_records=3)
        stream = Stream(nursery, life, 2)
        await life.append("q", 1, 2, 3)
        await settle()
        assert stream.seqs == [1, 2]
        await life.append("q", 4)
        await settle()
        assert stream.seqs == [1, 2, 3]
        await life.put("q", cap_records=1)
        await settle()
        assert stream.seqs == [1, 2, 3, 4]
        assert (await ack(life, [1, 2, 3, 4], "s")).done == [4]
        stream.close()
        await at_rest(life)


async def test_a_stream_that_is_closed_while_an_ack_is_synced(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync", leases_durable=True)
        await life.append("q", 1, 2, 3)
        stream = Stream(nursery, life, 3)
        await settle()
        assert stream.seqs == [1, 2, 3]
        with offload.held():
            acked = Called(nursery, lambda: ack(life, [2], "s"))
            extended = Called(nursery, lambda: extend(life, [3], 80_000_000, "s"))
            await settle()
            stream.close()
            await settle()
            assert await counters(life) == (0, 3, 0, 0)
        await settle()
        assert acked.result.done == [2]
        assert extended.result.done == [3]
        assert await counters(life) == (2, 0, 0, 0)
        assert seqs_of(await claim(life, "b", 5)) == [1, 3]
        await at_rest(life)


async def test_a_stream_does_not_let_go_what_another_claim_of_its_node_holds(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1, 2, 3)
        stream = Stream(nursery, life, 1)
        await settle()
        assert seqs_of(await claim(life, "s")) == [2]
        other = Stream(nursery, life, 1)
        await settle()
        stream.close()
        await settle()
        assert await counters(life) == (1, 2, 0, 0)
        other.close()
        await settle()
        assert await counters(life) == (2, 1, 0, 0)


async def test_two_streams_share_what_comes(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", lease_ms=1000)
        first = Stream(nursery, life, 2)
        await settle()
        second = Stream(nursery, life, 2, node="t")
        await settle()
        await life.append("q", *range(6))
        await settle()
        assert (first.seqs, second.seqs) == ([1, 2], [3, 4])
        await ack(life, [3], "t")
        await settle()
        assert second.seqs == [3, 4, 5]
        await trio.sleep(1.1)
        assert sorted(first.seqs[2:] + second.seqs[3:]) in ([1, 2, 4, 5], [1, 2, 4, 6], [1, 2, 5, 6], [1, 2, 4])
        first.close()
        second.close()
        await settle()
        assert await counters(life) == (5, 0, 0, 0)
        await at_rest(life)


async def test_an_old_lease_id_of_the_same_node_is_fenced(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", 1)
        old = (await claim(life, lease_ms=100)).jobs[0]
        await trio.sleep(0.2)
        new = (await claim(life)).jobs[0]
        assert (await ack(life, [1], ids=[old.lease_id])).skipped == [1]
        assert (await ack(life, [1, 1], ids=[old.lease_id, new.lease_id])).done == [1], "right if it is right anywhere"


@pytest.mark.parametrize("what", ["ack", "nack", "extend"])
@pytest.mark.parametrize("durable", [False, True])
async def test_a_call_that_is_cancelled_at_any_step_has_happened_or_not(
    what: str, durable: bool, autojump_clock: Any
) -> None:
    async with living(housekeeping=False) as life:
        await life.put("q", type="queue", durability="fsync", leases_durable=durable)
        for k in range(100):
            await life.append("q", *range(3))
            seqs = seqs_of(await claim(life, most=3))[:2]
            calls: dict[str, Callable[[], Awaitable[Any]]] = {
                "ack": partial(ack, life, seqs),
                "nack": partial(nack, life, seqs),
                "extend": partial(extend, life, seqs, 50_000),
            }
            done = await cancelled_after(k, calls[what])
            await settle()
            _, queue = the_queue(life)
            queue.leases.check()
            assert not queue.leases._reserved
            await life.delete("q", before_seq=1 << 40)
            assert await counters(life) == (0, 0, 0, 0)
            if done:
                break
        else:
            raise AssertionError("it never ends")


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_an_ephemeral_queue_that_becomes_durable_keeps_its_leases(end: str, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=end == "stop") as life:
        await life.put("q", type="queue", durability="ephemeral", max_deliveries=1, dead_letter="dlq", lease_ms=60_000)
        await life.append("q", *range(6))
        await claim(life, lease_ms=100)
        await trio.sleep(1)
        assert seqs_of(await claim(life, most=2)) == [2, 3]
        await nack(life, [3], delay_ms=50_000)
        await trio.sleep(1)
        assert await counters(life) == (3, 1, 1, 1)
        await life.put("q", durability="fsync")
        assert await counters(life) == (3, 1, 1, 1)
        assert seqs_of(await claim(life)) == [4]
        await trio.sleep(2)
        if end == "kill":
            fs = fs.after_process_kill()
    async with living(fs=fs) as life:
        assert await counters(life) == (2, 2, 1, 1)
        assert (await ack(life, [2, 4])).done == [2, 4]
        await trio.sleep(60)
        assert seqs_of(await claim(life, most=9)) == [5, 6]
        await trio.sleep(10)
        assert await counters(life) == (0, 2, 0, 2), "the third has had its delivery"


async def test_a_queue_that_becomes_ephemeral_keeps_its_count_of_dead_letters(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("q", type="queue", durability="fsync", max_deliveries=1, dead_letter="dlq", lease_ms=60_000)
        await life.append("q", *range(6))
        await claim(life, lease_ms=100)
        await trio.sleep(1)
        assert seqs_of(await claim(life, most=2)) == [2, 3]
        await trio.sleep(1)
        await life.put("q", durability="ephemeral")
        assert await counters(life) == (3, 2, 0, 1)
        assert (await ack(life, [2])).done == [2]
    async with living(fs=fs) as life:
        assert await counters(life) == (0, 0, 0, 1)
        await life.append("q", *range(2))
        assert len((await claim(life, most=9)).jobs) == 2
        await at_rest(life)


async def test_a_thousand_who_wait_get_one_each(autojump_clock: Any) -> None:
    async with living(housekeeping=False) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="memory")
        calls = []
        for i in range(1100):
            calls.append(Timed(nursery, partial(claim, life, f"n{i}", wait_ms=30_000)))
            await trio.lowlevel.checkpoint()
        await settle()
        await life.append("q", *range(1100))
        await settle()
        assert sorted(call.seqs[0] for call in calls) == list(range(1, 1101))
        assert {call.after_ms for call in calls} == {0}
        await at_rest(life)


@SLOW
async def test_those_who_wait_cost_nothing_while_others_are_served(autojump_clock: Any) -> None:
    """Processor time of a job, with few and with many who wait behind the one it goes to."""
    cost: dict[int, float] = {}
    for waiting in (300, 6000):
        async with living(housekeeping=False) as life, trio.open_nursery() as nursery:
            await life.put("q", type="queue", durability="memory")
            for i in range(waiting):
                nursery.start_soon(partial(claim, life, f"n{i}", wait_ms=30_000_000))
            await settle()
            began = time.process_time()
            for i in range(100):
                await life.append("q", i)
                await settle()
            cost[waiting] = (time.process_time() - began) / 100
            assert await counters(life) == (0, 100, 0, 0)
            nursery.cancel_scope.cancel()
    assert cost[6000] < 6 * cost[300] + 0.003, cost
