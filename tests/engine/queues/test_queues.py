"""Queues at the level of the engine: who is woken by what and when, who gets how much, and what is left behind.

Whatever needs time, a held disk or a cancellation in the middle of something is here; what a client sees of a queue
that is left alone is in `tests/conformance`.
"""

from __future__ import annotations

import errno
import json
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from tests.simulation.offload import InlineOffload
from topics.engine.job_queue import JobQueue
from topics.engine.queues.queue_calls import JobSubscription
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.model import ClaimRequest, ClaimResult, HeldRequest, HeldResult, Job, NackTerms, Performance, QueueState
from topics.runtime.offload import Pool
from topics.storage.files.datadir import DataDir
from topics.storage.wal.frames import FrameType
from topics.storage.wal.shard_log import ShardLog
from topics.storage.wal.write_queue import PATIENCE_MS

T = TypeVar("T")

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- calls, as short as a test wants them


def claim(
    life: Life, node: str = "a", most: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, name: str = "q"
) -> Awaitable[ClaimResult]:
    return life.engine.queues.claim(
        name, ClaimRequest(node=node, most=most, lease_ms=lease_ms, wait_ms=wait_ms), Performance()
    )


def ack(life: Life, seqs: list[int], node: str = "a", ids: list[int] | None = None) -> Awaitable[HeldResult]:
    return life.engine.queues.ack("q", HeldRequest(node=node, seqs=seqs, lease_ids=ids), Performance())


def nack(life: Life, seqs: list[int], node: str = "a", *, delay_ms: int = 0) -> Awaitable[HeldResult]:
    return life.engine.queues.nack(
        "q", HeldRequest(node=node, seqs=seqs, lease_ids=None), NackTerms(delay_ms), Performance()
    )


def extend(life: Life, seqs: list[int], lease_ms: int, node: str = "a") -> Awaitable[HeldResult]:
    return life.engine.queues.extend("q", HeldRequest(node=node, seqs=seqs, lease_ids=None), lease_ms, Performance())


def seqs_of(answer: ClaimResult | list[Job]) -> list[int]:
    jobs = answer.jobs if isinstance(answer, ClaimResult) else answer
    return [job.seq for job in jobs]


async def counters(life: Life, name: str = "q") -> tuple[int, int, int, int]:
    """Ready, in flight, delayed, dead-lettered; the first three are all there are."""
    state = await life.engine.topic_states.of(name, touch=False)
    queue = state.queue
    assert isinstance(queue, QueueState)
    assert queue.ready + queue.in_flight + queue.delayed == state.count
    return queue.ready, queue.in_flight, queue.delayed, queue.dead_lettered


def the_queue(life: Life, name: str = "q") -> tuple[Topic, JobQueue]:
    topic = life.engine.registry.topics[name]
    assert topic.queue is not None
    return topic, topic.queue


async def at_rest(life: Life, name: str = "q") -> None:
    """Nobody waits, nothing is reserved, no task is left."""
    await settle()
    topic, queue = the_queue(life, name)
    queue.leases.check()
    assert not queue.leases._reserved
    assert not queue.line
    assert not queue.attended
    assert not queue.moving
    assert not queue._held
    await trio.sleep(2 * PATIENCE_MS / 1000)  # lease events are written when that suits the log
    assert topic.quiet


class Stream:
    """A `/work` stream with a client that is sent what it is given."""

    def __init__(self, nursery: trio.Nursery, life: Life, most: int, *, node: str = "s", lease_ms: int | None = None):
        self.life = life
        self.node = node
        self.jobs: list[Job] = []
        self.work: JobSubscription | None = None
        self.call = Called(nursery, partial(self._run, most, lease_ms))

    async def _run(self, most: int, lease_ms: int | None) -> None:
        self.work = await self.life.engine.queues.open_work("q", self.node, most, lease_ms)
        try:
            while True:
                self.jobs += await self.life.engine.queues.next_jobs(self.work)
        finally:
            self.life.engine.queues.close_work(self.work)

    @property
    def seqs(self) -> list[int]:
        return [job.seq for job in self.jobs]

    @property
    def error(self) -> str | None:
        return self.call.error.code if self.call.error is not None else None

    def close(self) -> None:
        self.call.scope.cancel()


SEGMENTS = settings(segment_max_events=10)


async def leave_in_segments(fs: SimFs, n: int, **config: Any) -> None:
    """A queue of `n` jobs in segments of ten, of each of which the fifth is gone, so that the columns are needed to
    know what is live. After a start they are not loaded."""
    async with living(SEGMENTS, fs=fs) as life:
        await life.put("q", type="queue", **({"durability": "fsync", "lease_ms": 1000} | config))
        await life.append("q", *({"data": i, "tag": "gone" if i % 10 == 5 else "stays"} for i in range(1, n + 1)))
        await life.delete("q", match="gone")


class Disk(HeldOffload):
    """A disk of which a kind of access, or the log of one shard, can be held for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._shard: int | None = None
        self._moves = trio.Event()
        self.passes = 0
        """Reads that are let through all the same."""

    @contextmanager
    def held(self, kind: Pool = Pool.WAL) -> Iterator[None]:
        self.hold(kind)
        try:
            yield
        finally:
            self.let_go(kind)

    @contextmanager
    def shard_held(self, shard: int) -> Iterator[None]:
        self._shard, self._moves = shard, trio.Event()
        try:
            yield
        finally:
            self._shard = None
            self._moves.set()

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        if kind is Pool.HOT_READ and self.passes:
            self.passes -= 1
            return await InlineOffload.perform(self, kind, call)
        writer = getattr(getattr(call, "func", None), "__self__", None)
        if kind is Pool.WAL and isinstance(writer, ShardLog) and writer.shard == self._shard:
            with trio.CancelScope(shield=True):
                await self._moves.wait()
        return await super().perform(kind, call)

    def is_disk_free(self) -> bool:
        return self._shard is None and super().is_disk_free()


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


# ----------------------------------------------------------------- who is woken, and when


class Timed:
    """A call beside the test, and when it ended, in ms from where it began."""

    def __init__(self, nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> None:
        self._call = call
        self._began = trio.current_time()
        self.after_ms: float | None = None
        self.called = Called(nursery, self._run)

    async def _run(self) -> Any:
        result = await self._call()
        self.after_ms = round((trio.current_time() - self._began) * 1000, 3)
        return result

    @property
    def seqs(self) -> list[int]:
        assert self.called.done
        assert self.called.error is None, self.called.error
        return seqs_of(self.called.result)


async def in_line(nursery: trio.Nursery, call: Callable[[], Awaitable[Any]]) -> Timed:
    """A call that is there before the next one."""
    timed = Timed(nursery, call)
    await settle()
    return timed


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


# ----------------------------------------------------------------- cancellation, at every step


async def cancelled_after(checkpoints: int, call: Callable[[], Awaitable[Any]], seconds: float = 0) -> bool:
    """Run `call` and cancel it after a time and so many turns of the scheduler; whether it came to its end all the
    same."""
    async with trio.open_nursery() as nursery:
        called = Called(nursery, call)
        if seconds:
            await trio.sleep(seconds)
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        called.scope.cancel()
    return called.done


async def nothing_is_held_for_ever(life: Life, jobs: int) -> None:
    """All jobs can be claimed, at once."""
    await settle()
    _, queue = the_queue(life)
    queue.leases.check()
    assert not queue.leases._reserved
    assert await counters(life) == (jobs, 0, 0, 0)
    given = await claim(life, "check", 1000)
    assert len(given.jobs) == jobs
    assert given.ready == 0
    assert (await nack(life, seqs_of(given), "check")).done == seqs_of(given)
    assert (await claim(life, "check", 1)).jobs[0].deliveries > 1
    assert (await nack(life, seqs_of(given), "check")).done == [1]


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
            for span in list(life.engine._indexes._columns):
                span.detach()
                life.engine._indexes.forget_columns(span)
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


# ----------------------------------------------------------------- seqs with an event on its way


async def test_an_ack_behind_an_extension_is_decided_again(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", leases_durable=True, durability="fsync")
        await life.append("q", 1, 2, 3)
        ids = [job.lease_id for job in (await claim(life, most=3)).jobs]
        with offload.held():
            extension = Called(nursery, lambda: extend(life, [1, 2], 5000))
            await settle()
            acked = Called(nursery, lambda: ack(life, [3, 2, 1, 9], ids=[ids[2], ids[1] + 1, ids[0], 5]))
            await settle()
        await settle()
        assert (extension.result.done, list(extension.result.deadlines)) == ([1, 2], ["1", "2"])
        assert (acked.result.done, sorted(acked.result.skipped)) == ([1, 3], [2, 9])
        assert await counters(life) == (0, 1, 0, 0)


async def test_an_extension_behind_an_ack_is_skipped(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, 2)
        await claim(life, most=2)
        with offload.held():
            acked = Called(nursery, lambda: ack(life, [1]))
            await settle()
            others = [
                Called(nursery, lambda: extend(life, [1, 2], 5000)),
                Called(nursery, lambda: nack(life, [1])),
                Called(nursery, lambda: ack(life, [1])),
            ]
            await settle()
        await settle()
        assert acked.result.done == [1]
        assert [(call.result.done, call.result.skipped) for call in others] == [([2], [1]), ([], [1]), ([], [1])]
        await at_rest(life)


async def test_an_ack_that_was_in_time_counts_though_the_lease_ends_on_its_way(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, 2)
        await claim(life, most=2, lease_ms=1000)
        with offload.held():
            acked = Called(nursery, lambda: ack(life, [1]))
            await trio.sleep(5)
            late = Called(nursery, lambda: ack(life, [2]))
            again = Called(nursery, lambda: ack(life, [1]))
            await settle()
        await settle()
        assert acked.result.done == [1]
        assert (late.result.skipped, again.result.skipped) == ([2], [1])
        assert seqs_of(await claim(life, "b", 5)) == [2]


async def test_a_delete_ends_the_lease_of_a_job_whose_ack_is_on_its_way(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, 2)
        await claim(life, most=2)
        with offload.held():
            gone = Called(nursery, lambda: life.delete("q", before_seq=2))
            acked = Called(nursery, lambda: ack(life, [1, 2]))
            await settle()
        await settle()
        assert gone.result.deleted + len(acked.result.done) == 2
        assert sorted([*acked.result.done, *acked.result.skipped]) == [1, 2]
        await at_rest(life)


# ----------------------------------------------------------------- dead letters


async def exhaust(life: Life, n: int, name: str = "q") -> None:
    """Have all jobs delivered as often as they may be, and the last lease end."""
    limit = life.engine.registry.topics[name].config.max_deliveries
    for _ in range(limit):
        assert len((await claim(life, "x", n, lease_ms=100, name=name)).jobs) == n
        await trio.sleep(0.2)


async def test_a_job_is_moved_with_its_history(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_deliveries=2, dead_letter="dlq")
        await life.append("q", {"data": [1], "tag": "t", "meta": {"a": "b"}, "node": "n"}, 2)
        await exhaust(life, 2)
        assert await counters(life) == (2, 0, 0, 0), "nobody has come across them yet"
        assert seqs_of(await claim(life, most=5)) == []
        await settle()
        await trio.sleep(1)
        assert await counters(life) == (0, 0, 0, 2)
        found, _ = await life.all("dlq", include_tags=True)
        assert [record["data"] for record in found] == [[1], 2]
        assert found[0]["$tag"] == "t"
        assert found[0]["meta"] == {
            "a": "b",
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": "2",
            "$dead_letter_src_seq": "1",
        }
        await at_rest(life)


async def test_claims_do_not_wait_for_the_dead_letter_topic(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(wal_shards=2), offload=offload) as life:
        await life.put("dlq")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", 1, 2)
        await exhaust(life, 2)
        await life.append("q", 3)
        with offload.shard_held(life.engine.registry.topics["dlq"].shard):
            assert seqs_of(await claim(life, most=5)) == [3]
            await trio.sleep(10)
            assert await counters(life) == (0, 1, 2, 0)
            assert seqs_of(await claim(life, "b", 5)) == []
        await trio.sleep(60)
        assert await counters(life) == (1, 0, 0, 2)
        assert [record["data"] for record in (await life.all("dlq"))[0]] == [1, 2], "once each"
        await at_rest(life)


async def test_a_full_dead_letter_topic_keeps_them_until_there_is_room(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_records=3, discard="reject")
        await life.append("dlq", "there")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(5))
        await exhaust(life, 5)
        await claim(life)
        await trio.sleep(100)
        assert await counters(life) == (0, 0, 3, 2)
        assert len(await life.seqs("dlq")) == 3
        assert seqs_of(await claim(life)) == []
        await life.delete("dlq", before_seq=100)
        await trio.sleep(31)
        assert await counters(life) == (0, 0, 0, 5)
        await at_rest(life)


async def test_one_unfit_job_does_not_keep_the_others(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_bytes=200, discard="reject")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", "x" * 300, "a")
        await exhaust(life, 2)
        await claim(life)
        await trio.sleep(1)
        assert await counters(life) == (0, 0, 1, 1)
        await life.put("dlq", cap_bytes=0)
        await trio.sleep(31)
        assert await counters(life) == (0, 0, 0, 2)
        await at_rest(life)


async def test_a_dead_letter_topic_that_is_deleted_meanwhile_is_made_again(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", 1)
        await exhaust(life, 1)
        await claim(life)
        await trio.sleep(1)
        assert len(await life.seqs("dlq")) == 1
        await life.append("q", 2)
        await exhaust(life, 1)
        with offload.held():
            gone = Called(nursery, lambda: life.engine.topic_lifecycle.delete("dlq", if_empty=False))
            await settle()
            await claim(life)
            await settle()
        await trio.sleep(60)
        assert gone.done
        assert await counters(life) == (0, 0, 0, 2)
        assert [record["data"] for record in (await life.all("dlq"))[0]] == [2]
        await at_rest(life)


@pytest.mark.parametrize("change", [{"dead_letter": None}, {"max_deliveries": 0}])
async def test_parked_jobs_come_back_when_nothing_is_moved_any_more(
    change: dict[str, Any], autojump_clock: Any
) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        call = Timed(nursery, lambda: claim(life, most=10, wait_ms=30_000))
        await trio.sleep(10)
        assert await counters(life) == (0, 0, 4, 0)
        await life.put("q", **change)
        await trio.sleep(1)
        assert call.seqs == [1, 2, 3, 4]
        assert {job.deliveries for job in call.called.result.jobs} == {2}
        assert call.after_ms == 10_000
        await at_rest(life)


async def test_another_dead_letter_topic_takes_them_at_once(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        await claim(life)
        await trio.sleep(100)
        await life.put("q", dead_letter="other")
        await trio.sleep(1)
        assert await counters(life) == (0, 0, 0, 4)
        assert len(await life.seqs("other")) == 4


async def test_parked_jobs_are_moved_after_a_restart_and_counted_once(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        await claim(life)
        await trio.sleep(10)
        assert await counters(life) == (0, 0, 4, 0)
    async with living(fs=fs) as life:
        assert await counters(life) == (0, 0, 4, 0)
        await life.put("dlq", cap_records=0)
        await trio.sleep(60)
        assert await counters(life) == (0, 0, 0, 4)
        assert len(await life.seqs("dlq")) == 5
    async with living(fs=fs) as life:
        assert await counters(life) == (0, 0, 0, 4)


async def test_parked_jobs_that_are_deleted_are_forgotten(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        await claim(life)
        await trio.sleep(10)
        await life.delete("q", before_seq=100)
        assert await counters(life) == (0, 0, 0, 0)
        await trio.sleep(31)
        await at_rest(life)


async def test_a_job_that_goes_while_the_mover_reads_others_is_not_moved(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(cache_bytes=0), offload=offload) as life:
        await life.put("dlq")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", 1, 2)
        await exhaust(life, 2)
        await trio.sleep(0.1)
        with offload.held(Pool.HOT_READ):
            offload.passes = 1
            await claim(life)
            await settle()
            await life.delete("q", before_seq=2)
        await trio.sleep(1)
        found, _ = await life.all("dlq")
        assert [record["data"] for record in found] == [2]
        assert await counters(life) == (0, 0, 0, 1)


async def test_a_thousand_dead_letters_and_their_order(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(2500))
        for _ in range(3):
            await claim(life, "x", 1000, lease_ms=100)
        await trio.sleep(0.2)
        await life.append("q", "fresh")
        assert seqs_of(await claim(life, most=5)) == [2501]
        await trio.sleep(60)
        assert await counters(life) == (1, 0, 0, 2500)
        found, _ = await life.all("dlq")
        assert [record["data"] for record in found] == list(range(2500))
        await at_rest(life)


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


SLOW = pytest.mark.slow


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


# ----------------------------------------------------------------- more of streams and leases


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
