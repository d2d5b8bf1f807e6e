"""Queues of an engine: windows of claims, sizes, many jobs."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio

from tests.engine.life import Called, Life, living, settings, settle
from tests.engine.queues.queue_calls import (
    SEGMENTS,
    SLOW,
    Disk,
    Stream,
    Timed,
    ack,
    at_rest,
    claim,
    counters,
    extend,
    in_line,
    leave_in_segments,
    seqs_of,
    the_queue,
)
from tests.simulation.disk import SimFs
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- what was found by reading


async def test_a_full_stream_hears_of_a_lease_that_an_extension_has_shortened(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", lease_ms=3_600_000)
        await life.append("q", 1)
        stream = Stream(nursery, life, 1)
        await settle()
        assert stream.seqs == [1]
        await extend(life, [1], 100, "s")
        await trio.sleep(1)
        assert stream.seqs == [1, 1], "its lease is over, its place is free and the job is there"
        stream.close()


async def test_a_full_stream_hears_of_a_lease_that_ends_when_an_extension_was_on_its_way(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", lease_ms=1000, leases_durable=True)
        await life.append("q", 1, 2)
        stream = Stream(nursery, life, 2)
        await settle()
        assert stream.seqs == [1, 2]
        with offload.held():
            first = Called(nursery, lambda: ack(life, [1], "s"))
            second = Called(nursery, lambda: extend(life, [2], 1000, "s"))
            await settle()
        await settle()
        assert first.done
        assert second.done
        await life.append("q", 3)
        await settle()
        assert stream.seqs == [1, 2, 3]
        await trio.sleep(1.5)
        assert stream.seqs == [1, 2, 3, 2, 3]
        stream.close()


async def test_a_full_stream_ends_with_its_topic(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", lease_ms=3_600_000)
        await life.append("q", 1)
        stream = Stream(nursery, life, 1)
        await settle()
        assert stream.seqs == [1]
        await life.engine.topic_lifecycle.delete("q", if_empty=False)
        await trio.sleep(1)
        assert stream.error == "topic_not_found"
        stream.close()


async def test_a_claim_ends_with_its_topic_while_it_fetches(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(cache_bytes=0), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await trio.sleep(0.1)
        with offload.held(Pool.HOT_READ):
            call = Called(nursery, lambda: claim(life))
            await settle()
            await life.engine.topic_lifecycle.delete("q", if_empty=False)
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        assert call.done
        assert call.error is not None
        assert call.error.code == "topic_not_found"


async def test_a_claim_ends_when_its_topic_is_another_one_while_columns_are_loaded(autojump_clock: Any) -> None:
    fs, offload = SimFs(), Disk()
    await leave_in_segments(fs, 10)
    async with living(SEGMENTS, fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        with offload.held(Pool.HOT_READ):
            call = Called(nursery, lambda: claim(life, most=3))
            await settle()
            assert not call.done
            await life.engine.topic_lifecycle.delete("q", if_empty=False)
            await life.put("q", type="queue")
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        assert call.done
        call.scope.cancel()


async def test_a_lease_that_ends_while_columns_are_loaded_frees_its_place(autojump_clock: Any) -> None:
    fs, offload = SimFs(), Disk()
    await leave_in_segments(fs, 20)
    async with living(SEGMENTS, fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        stream = Stream(nursery, life, 1, lease_ms=1000)
        await settle()
        assert stream.seqs == [1]
        await claim(life, "x", 8, lease_ms=100_000)  # the rest of the first segment
        with offload.held(Pool.HOT_READ):
            other = Stream(nursery, life, 20, node="y", lease_ms=100_000)
            await settle()
            assert not other.jobs, "the columns of the second segment are not there"
            life.clock.advance(1100)  # nobody is woken by that
        await settle()
        assert other.seqs == [1, 11, 12, 13, 14, 16, 17, 18, 19, 20]
        await life.append("q", "new")
        await trio.sleep(2)
        other.close()
        await settle()
        assert len(stream.seqs) > 1
        stream.close()


async def test_a_queue_that_is_deleted_while_its_dead_letters_are_read(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(cache_bytes=0), offload=offload) as life:
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq", lease_ms=100)
        await life.append("q", 1)
        await claim(life)
        await trio.sleep(1)
        _, queue = the_queue(life)
        with offload.held(Pool.HOT_READ):
            assert seqs_of(await claim(life)) == []
            await settle()
            assert queue.moving
            await life.engine.topic_lifecycle.delete("q", if_empty=False)
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        assert not queue.moving


async def test_a_queue_that_is_deleted_while_its_dead_letters_are_synced(autojump_clock: Any) -> None:
    fs, offload = SimFs(), Disk()
    async with living(settings(wal_shards=2), fs=fs, offload=offload) as life:
        await life.put("dlq", durability="memory")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq", lease_ms=100, ttl_ms=60_000)
        topic, queue = the_queue(life)
        assert topic.shard != life.engine.registry.topics["dlq"].shard
        await life.append("q", 1, 2)
        await claim(life)
        await trio.sleep(1)
        await life.append("dlq", "its ceiling is raised")
        with offload.shard_held(life.engine.registry.topics["dlq"].shard):
            assert seqs_of(await claim(life, lease_ms=3_600_000)) == [2]
            await settle()
            assert await life.seqs("dlq") == [1, 2], "not synced yet"
            assert queue.moving
            await life.engine.topic_lifecycle.delete("q", if_empty=False)
            clean = life.engine.registry.total_records
        await trio.sleep(120)
        assert not queue.moving
        assert topic not in life.engine.registry.changed
        assert life.engine.registry.total_records == clean
        life.check()
    async with living(settings(wal_shards=2), fs=fs) as life:
        assert list(life.engine.registry.topics) == ["dlq"]


async def test_many_unfit_jobs_do_not_keep_the_others(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_bytes=100, discard="reject")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq", lease_ms=100)
        await life.append("q", *["x" * 200] * 12, "small")
        assert len(seqs_of(await claim(life, most=100))) == 13
        await trio.sleep(1)
        assert seqs_of(await claim(life, most=100)) == []
        await trio.sleep(120)
        found, _ = await life.all("dlq")
        assert [record["data"] for record in found] == ["small"]


# ----------------------------------------------------------------- windows


def naive_shares(maxima: list[int], jobs: int) -> list[int]:
    """Round robin, one by one."""
    shares = [0] * len(maxima)
    while jobs and any(share < most for share, most in zip(shares, maxima, strict=True)):
        for i, most in enumerate(maxima):
            if jobs and shares[i] < most:
                shares[i] += 1
                jobs -= 1
    return shares


async def test_a_window_divides_evenly_for_many_shapes(autojump_clock: Any) -> None:
    dice = random.Random(1)
    shapes = [([1], 0), ([1], 3), ([1, 1, 1], 2), ([5, 5], 7), ([1000, 1], 3), ([3, 2, 1], 6), ([700, 700, 700], 1600)]
    shapes += [
        ([dice.choice((1, 2, 5, 40)) for _ in range(dice.randint(1, 9))], dice.randint(0, 60)) for _ in range(60)
    ]
    async with living(housekeeping=False) as life:
        for n, (maxima, jobs) in enumerate(shapes):
            name = f"q{n}"
            await life.put(name, type="queue", claim_jitter_ms=50, durability="memory")
            if jobs:
                await life.append(name, *range(jobs))
            async with trio.open_nursery() as nursery:
                calls = []
                for i, most in enumerate(maxima):
                    calls.append(Timed(nursery, partial(claim, life, f"n{i}", most, wait_ms=0, name=name)))
                    await trio.sleep(0.001)
            assert [len(call.seqs) for call in calls] == naive_shares(maxima, jobs), (maxima, jobs)
            assert all(call.seqs == sorted(call.seqs) for call in calls)
            dealt = [seq for call in calls for seq in call.seqs]
            assert sorted(dealt) == list(range(1, len(dealt) + 1))
            assert [call.after_ms for call in calls] == [50 - i for i in range(len(calls))], "all at the window's end"
            await at_rest(life, name)


async def test_a_window_ends_for_those_who_came_by_then_and_begins_anew(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=100)
        await life.append("q", 1, 2, 3)
        first = Timed(nursery, lambda: claim(life, "a", 3))
        await trio.sleep(0.099)
        second = Timed(nursery, lambda: claim(life, "b", 3))
        await trio.sleep(0.002)
        third = Timed(nursery, lambda: claim(life, "c", 3))
        await trio.sleep(0.2)
        assert (first.after_ms, second.after_ms, third.after_ms) == (100, 1, 100)
        assert [len(call.seqs) for call in (first, second, third)] == [2, 1, 0]


async def test_the_first_job_opens_a_window_for_those_who_wait(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=100)
        calls = [await in_line(nursery, partial(claim, life, f"n{i}", 5, wait_ms=30_000)) for i in range(2)]
        await trio.sleep(1)
        assert not any(call.called.done for call in calls)
        await life.append("q", 1, 2)
        await trio.sleep(0.05)
        calls.append(Timed(nursery, lambda: claim(life, "late", 5, wait_ms=0)))
        await life.append("q", 3, 4)
        await trio.sleep(0.04)
        assert not any(call.called.done for call in calls), "the window is not over"
        await trio.sleep(0.02)
        assert [call.after_ms for call in calls] == [1100, 1100, 50]
        assert [len(call.seqs) for call in calls] == [2, 1, 1]


async def test_a_window_for_those_who_wait_is_opened_by_time_too(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=100)
        await life.append("q", 1)
        assert seqs_of(await claim(life, "x", lease_ms=1000)) == [1]
        call = Timed(nursery, lambda: claim(life, wait_ms=30_000))
        await trio.sleep(3)
        assert (call.seqs, call.after_ms) == ([1], 1101)


async def test_streams_take_part_in_a_window(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=100)
        stream = Stream(nursery, life, 3)
        await trio.sleep(1)
        await life.append("q", *range(8))
        call = Timed(nursery, lambda: claim(life, "a", 100))
        await trio.sleep(0.2)
        assert len(stream.seqs) == 3
        assert len(call.seqs) == 5
        assert sorted(stream.seqs + call.seqs) == list(range(1, 9))
        stream.close()
        await trio.sleep(1)
        await at_rest(life)
        assert await counters(life) == (3, 5, 0, 0)


async def test_a_claimer_that_leaves_during_the_window_is_not_counted(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=100)
        await life.append("q", *range(6))
        calls = [Called(nursery, partial(claim, life, f"n{i}", 6)) for i in range(3)]
        await trio.sleep(0.05)
        calls[0].scope.cancel()
        await trio.sleep(0.1)
        assert [len(call.result.jobs) for call in calls[1:]] == [3, 3]
        await at_rest(life)


async def test_the_only_claimer_leaves_during_the_window(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=100)
        await life.append("q", *range(6))
        call = Called(nursery, lambda: claim(life, "a", 6, wait_ms=1000))
        await trio.sleep(0.05)
        call.scope.cancel()
        await trio.sleep(0.2)
        await at_rest(life)
        assert len((await claim(life, most=10)).jobs) == 6


async def test_a_claim_whose_wait_ends_within_a_window_waits_for_the_window(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", claim_jitter_ms=1000)
        await life.append("q", 1)
        call = Timed(nursery, lambda: claim(life, wait_ms=10))
        await trio.sleep(2)
        assert (call.seqs, call.after_ms) == ([1], 1000)


async def test_a_window_that_is_switched_on_and_off_while_claimers_wait(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        calls = [await in_line(nursery, partial(claim, life, f"n{i}", 2, wait_ms=30_000)) for i in range(2)]
        await settle()
        await life.put("q", claim_jitter_ms=300)
        await life.append("q", 1, 2)
        await trio.sleep(0.2)
        assert not any(call.called.done for call in calls)
        await trio.sleep(0.2)
        assert [len(call.seqs) for call in calls] == [1, 1]
        calls = [await in_line(nursery, partial(claim, life, f"n{i}", 2, wait_ms=30_000)) for i in range(2)]
        await trio.sleep(1)
        await life.put("q", claim_jitter_ms=0)
        await life.append("q", 3)
        await settle()
        assert calls[0].seqs == [3]
        await life.append("q", 4)
        await settle()
        assert calls[1].seqs == [4]
        await at_rest(life)


# ----------------------------------------------------------------- sizes


async def test_a_claim_answers_with_8_mib_at_most_and_one_job_in_any_case(autojump_clock: Any) -> None:
    async with living(settings(wal_file_bytes=64 << 20)) as life:
        await life.put("q", type="queue", durability="memory")
        await life.append("q", "x" * (900 << 10))
        for _ in range(19):
            await life.append("q", "x" * (900 << 10))
        first = await claim(life, most=1000)
        size = sum(len(job.record) for job in first.jobs)
        assert seqs_of(first) == list(range(1, 10))
        assert size + 900 * 1024 > 8 << 20 >= size
        assert first.ready == 11
        assert await counters(life) == (11, 9, 0, 0)
        assert seqs_of(await claim(life, most=1)) == [10]
        assert seqs_of(await claim(life, most=1000)) == list(range(11, 20))
        await at_rest(life)


async def test_what_does_not_fit_goes_to_others_who_wait(autojump_clock: Any) -> None:
    async with living(settings(wal_file_bytes=64 << 20)) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="memory", claim_jitter_ms=100)
        calls = [await in_line(nursery, partial(claim, life, f"n{i}", 1000, wait_ms=30_000)) for i in range(2)]
        for _ in range(18):
            await life.append("q", "x" * (900 << 10))
        await trio.sleep(0.2)
        assert [len(call.seqs) for call in calls] == [9, 9]
        await trio.sleep(0.2)
        await at_rest(life)


async def test_a_stream_is_sent_what_fits_and_then_the_rest(autojump_clock: Any) -> None:
    async with living(settings(wal_file_bytes=64 << 20)) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="memory")
        stream = Stream(nursery, life, 100)
        await settle()
        for _ in range(5):
            await life.append("q", "x" * (200 << 10))
        await settle()
        assert stream.seqs == [1, 2, 3, 4, 5]
        stream.close()


# ----------------------------------------------------------------- many


class Turns:
    """How often others get to run: a task that does nothing but let others run, and counts."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.count = 0
        self._scope = trio.CancelScope()
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        with self._scope:
            while True:
                await trio.lowlevel.checkpoint()
                self.count += 1

    async def during(self, call: Awaitable[Any]) -> int:
        before = self.count
        await call
        return self.count - before

    def stop(self) -> None:
        self._scope.cancel()


async def many_leased(life: Life, jobs: int, leased: int) -> None:
    """A queue of so many jobs, of which the first are leased in claims of a thousand, one in a millisecond, and all the
    leases are over."""
    await life.put("q", type="queue", durability="memory")
    for _ in range(jobs // 5000):
        await life.append("q", *range(5000))
    for _ in range(leased // 1000):
        await claim(life, most=1000, lease_ms=60_000)
        await trio.sleep(0.001)
    await trio.sleep(61)


@pytest.mark.parametrize(
    ("what", "leased"),
    [
        ("claim", 10_000),
        *(pytest.param(what, 50_000, marks=SLOW) for what in ("claim", "state", "ack", "waiting", "window")),
    ],
)
async def test_leases_that_are_over_are_swept_in_steps(what: str, leased: int, autojump_clock: Any) -> None:
    async with living(settings(wal_file_bytes=64 << 20), housekeeping=False) as life, trio.open_nursery() as nursery:
        await many_leased(life, leased + 10_000, leased)
        if what == "window":
            await life.put("q", claim_jitter_ms=1)
        turns = Turns(nursery)
        if what == "waiting":
            # There is nobody to be served at once, as all is leased: the task that looks after those who wait sweeps.
            stream = Stream(nursery, life, 1000)
            while not stream.jobs:
                await trio.lowlevel.checkpoint()
            assert turns.count >= leased // 3000
            turns.stop()
            stream.close()
            return
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "claim": lambda: claim(life, "b", 10),
            "state": lambda: counters(life),
            "ack": lambda: ack(life, [1]),
            "window": lambda: claim(life, "b", 10),
        }
        if what == "window":
            called = Called(nursery, calls[what])
            while life.engine.registry.topics["q"].queue.leases.in_flight > 0:  # type: ignore[union-attr]
                await trio.lowlevel.checkpoint()
            assert turns.count >= leased // 3000
            turns.stop()
            await trio.sleep(1)
            assert len(called.result.jobs) == 10
        else:
            assert await turns.during(calls[what]()) >= leased // 3000
            turns.stop()
        assert (await counters(life))[2] == 0


@SLOW
async def test_a_hundred_thousand_jobs_go_through(autojump_clock: Any) -> None:
    async with living(settings(wal_file_bytes=64 << 20), housekeeping=False) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="memory", claim_jitter_ms=5)
        for _ in range(20):
            await life.append("q", *range(5000))
        seen: set[int] = set()

        async def work(node: str) -> None:
            while len(seen) < 100_000:
                jobs = seqs_of(await claim(life, node, 1000, wait_ms=10))
                assert seen.isdisjoint(jobs)
                seen.update(jobs)
                if jobs:
                    assert (await ack(life, jobs, node)).done == jobs

        async with trio.open_nursery() as workers:
            for i in range(20):
                workers.start_soon(work, f"n{i}")
        assert await counters(life) == (0, 0, 0, 0)
        _, queue = the_queue(life)
        assert len(queue.leases) == 0
        nursery.cancel_scope.cancel()
