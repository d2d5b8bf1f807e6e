"""Who of those that wait for jobs is woken, and when; cancellation at every step."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from tests.engine.life import Called, living, settings, settle
from tests.engine.queues.queue_calls import (
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
    nothing_is_held_for_ever,
    seqs_of,
    the_queue,
)
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- who is woken, and when


async def test_a_claim_that_does_not_wait_returns_at_once_with_nothing(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        call = Timed(nursery, lambda: claim(life))
        await settle()
        assert (call.seqs, call.after_ms) == ([], 0)
        await at_rest(life)


async def test_a_waiting_claim_gives_up_at_its_time(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        call = Timed(nursery, lambda: claim(life, wait_ms=700))
        await trio.sleep(1)
        assert (call.seqs, call.after_ms) == ([], 700)
        await at_rest(life)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("leases_durable", [False, True])
async def test_an_append_wakes_a_waiting_claim(durability: Any, leases_durable: bool, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability=durability, leases_durable=leases_durable)
        call = Timed(nursery, lambda: claim(life, most=5, wait_ms=30_000))
        await trio.sleep(0.2)
        await life.append("q", 1, 2, 3)
        await settle()
        assert (call.seqs, call.after_ms) == ([1, 2, 3], 200)
        assert await counters(life) == (0, 3, 0, 0)
        await at_rest(life)


async def test_a_nack_wakes_a_waiting_claim(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await claim(life)
        call = Timed(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await trio.sleep(0.2)
        assert (await nack(life, [1])).done == [1]
        await settle()
        assert (call.seqs, call.after_ms) == ([1], 200)
        assert call.called.result.jobs[0].deliveries == 2


async def test_the_end_of_a_delay_wakes_a_waiting_claim(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1, 2)
        await claim(life, most=2)
        call = Timed(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await settle()
        await nack(life, [1], delay_ms=500)
        await nack(life, [2], delay_ms=300)
        assert await counters(life) == (0, 0, 2, 0)
        await trio.sleep(1)
        assert (call.seqs, call.after_ms) == ([2], 300)
        assert await counters(life) == (1, 1, 0, 0)


async def test_the_end_of_a_lease_wakes_a_waiting_claim_without_any_traffic(autojump_clock: Any) -> None:
    async with living(housekeeping=False) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await claim(life, lease_ms=400)
        call = Timed(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await trio.sleep(1)
        assert (call.seqs, call.after_ms) == ([1], 401), "it is over when now > deadline"


async def test_a_shortened_lease_wakes_a_waiting_claim_at_its_new_end(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await claim(life, lease_ms=20_000)
        call = Timed(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await settle()
        await extend(life, [1], 100)
        await trio.sleep(1)
        assert (call.seqs, call.after_ms) == ([1], 101)


async def test_a_lengthened_lease_does_not_end_at_its_old_end(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await claim(life, lease_ms=100)
        call = Timed(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await settle()
        await extend(life, [1], 700)
        await trio.sleep(1)
        assert (call.seqs, call.after_ms) == ([1], 701)


async def test_waiting_claimers_are_served_in_the_order_of_their_arrival(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        calls = []
        for i, most in enumerate((2, 1, 3, 1)):
            calls.append(Timed(nursery, partial(claim, life, f"n{i}", most, wait_ms=30_000)))
            await settle()
        await life.append("q", 1)
        await settle()
        await life.append("q", 2, 3)
        await settle()
        assert [call.called.done for call in calls] == [True, True, True, False]
        assert [call.seqs for call in calls[:3]] == [[1], [2], [3]]
        await life.append("q", *range(5))
        await settle()
        assert calls[3].seqs == [4]
        assert await counters(life) == (4, 4, 0, 0)


async def test_who_comes_later_does_not_overtake_those_who_wait(autojump_clock: Any) -> None:
    """A nack and a claim in the same moment: the one who waits gets the job."""
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await claim(life)
        first = Timed(nursery, lambda: claim(life, "b", wait_ms=30_000))
        await settle()
        given_back = Called(nursery, lambda: nack(life, [1]))
        second = Timed(nursery, lambda: claim(life, "c", wait_ms=300))
        await trio.sleep(1)
        assert given_back.done
        assert (first.seqs, second.seqs) == ([1], [])


async def test_a_claim_is_ascending_and_takes_what_was_given_back_first(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", *range(10))
        await claim(life, most=6)
        await nack(life, [5, 2])
        await nack(life, [3])
        assert seqs_of(await claim(life, most=2)) == [2, 3]
        assert seqs_of(await claim(life, most=3)) == [5, 7, 8]


async def test_a_claim_goes_on_waiting_when_what_it_was_dealt_is_gone(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(cache_bytes=0), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await trio.sleep(0.1)
        with offload.held(Pool.HOT_READ):
            call = Timed(nursery, lambda: claim(life, wait_ms=5000))
            await settle()
            await life.delete("q", before_seq=2)
        await settle()
        assert not call.called.done
        await life.append("q", 2)
        await settle()
        assert call.seqs == [2]
        await at_rest(life)


# ----------------------------------------------------------------- cancellation, at every step


Situation = tuple[dict[str, Any], int]
SITUATIONS: dict[str, Situation] = {
    "plain": ({}, 256 << 20),
    "leases_durable": ({"leases_durable": True}, 256 << 20),
    "fsync": ({"durability": "fsync", "leases_durable": True}, 256 << 20),
    "ephemeral": ({"durability": "ephemeral"}, 256 << 20),
    "window": ({"claim_jitter_ms": 20, "leases_durable": True}, 256 << 20),
    "from the disk": ({"leases_durable": True}, 0),
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("wait_ms", [0, 50])
async def test_a_claim_that_is_cancelled_at_any_step_leaves_nothing(
    situation: str, wait_ms: int, autojump_clock: Any
) -> None:
    config, cache_bytes = SITUATIONS[situation]
    async with living(settings(cache_bytes=cache_bytes), housekeeping=False) as life:
        await life.put("q", type="queue", **config)
        await life.append("q", *range(5))
        await trio.sleep(1)
        seen = []
        window_s = 0.02 if situation == "window" else 0
        for k in range(60):
            done = await cancelled_after(k, lambda: claim(life, most=3, wait_ms=wait_ms), window_s)
            seen.append(done)
            await settle()
            if done:
                assert await counters(life) == (2, 3, 0, 0)
                assert (await nack(life, [1, 2, 3])).done == [1, 2, 3]
            if situation == "window":
                await trio.sleep(0.1)
            await nothing_is_held_for_ever(life, 5)
            if done:
                break
        else:
            raise AssertionError("it never ends")
        assert len(seen) > (1 if situation == "ephemeral" else 2)
        await at_rest(life)


@pytest.mark.parametrize("config", [{}, {"leases_durable": True}, {"claim_jitter_ms": 20, "leases_durable": True}])
async def test_a_claim_that_is_cancelled_while_an_append_wakes_it_leaves_nothing(
    config: dict[str, Any], autojump_clock: Any
) -> None:
    async with living(housekeeping=False) as life:
        for k in range(100):
            name = f"q{k}"
            await life.put(name, type="queue", **config)
            async with trio.open_nursery() as nursery:
                first = Called(nursery, partial(claim, life, "a", 2, wait_ms=1000, name=name))
                second = Called(nursery, partial(claim, life, "b", 2, wait_ms=1000, name=name))
                await settle()
                nursery.start_soon(life.append, name, 1, 2)
                if config.get("claim_jitter_ms"):
                    await trio.sleep(0.02)
                for _ in range(k):
                    await trio.lowlevel.checkpoint()
                first.scope.cancel()
                await trio.sleep(0.1)
                through = first.done
                if not through:
                    assert second.done
                    expected = [1, 2]
                    assert seqs_of(second.result) in ([1], [2], expected), "what the first was dealt comes back"
                second.scope.cancel()
            await settle()
            _, queue = the_queue(life, name)
            queue.leases.check()
            assert not queue.leases._reserved
            told = [call for call in (first, second) if call.result is not None]
            leased = sum(len(call.result.jobs) for call in told)
            assert (await counters(life, name))[:2] == (2 - leased, leased)
            if through:
                break
        else:
            raise AssertionError("it never ends")


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_a_stream_that_is_closed_at_any_step_leaves_nothing(situation: str, autojump_clock: Any) -> None:
    config, cache_bytes = SITUATIONS[situation]
    async with living(settings(cache_bytes=cache_bytes), housekeeping=False) as life:
        await life.put("q", type="queue", **config)
        await life.append("q", *range(5))
        await trio.sleep(1)
        longest = 0
        for k in range(60):
            async with trio.open_nursery() as nursery:
                stream = Stream(nursery, life, 3)
                for _ in range(k):
                    await trio.lowlevel.checkpoint()
                longest = max(longest, len(stream.seqs))
                stream.close()
            if situation == "window":
                await trio.sleep(0.1)
            await nothing_is_held_for_ever(life, 5)
        assert longest == 3 or situation == "window"
        await at_rest(life)


async def test_a_stream_that_is_closed_while_its_claim_is_synced_leaves_nothing(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", leases_durable=True)
        await life.append("q", *range(5))
        with offload.held():
            stream = Stream(nursery, life, 3)
            await settle()
            assert stream.seqs == []
            stream.close()
            await settle()
            assert stream.call.cancelled
        await nothing_is_held_for_ever(life, 5)
        await at_rest(life)


async def test_a_claimer_that_vanishes_while_its_claim_is_synced_leaves_nothing(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", leases_durable=True)
        await life.append("q", *range(5))
        with offload.held():
            call = Called(nursery, lambda: claim(life, most=3, wait_ms=1000))
            await settle()
            call.scope.cancel()
            other = Called(nursery, lambda: claim(life, "b", 5, wait_ms=1000))
            await settle()
            assert call.cancelled
        await settle()
        assert seqs_of(other.result) in ([1, 2, 3, 4, 5], [4, 5])
        await nack(life, seqs_of(other.result), "b")
        await nothing_is_held_for_ever(life, 5)


async def test_an_ack_whose_caller_has_gone_happens(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, 2)
        await claim(life, most=2)
        with offload.held():
            call = Called(nursery, lambda: ack(life, [1]))
            await settle()
            call.scope.cancel()
            await settle()
            assert await counters(life) == (0, 2, 0, 0)
        await settle()
        assert await counters(life) == (0, 1, 0, 0)
        await at_rest(life)
