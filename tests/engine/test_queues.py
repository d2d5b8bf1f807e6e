"""Queues at the level of the engine: who is woken by what and when, who gets how much, and what is left behind.

Whatever needs time, a held disk or a cancellation in the middle of something is here; what a client sees of a queue
that is left alone is in `tests/conformance`.
"""

from __future__ import annotations

import errno
import json
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.job_queue import JobQueue
from topics.model import ClaimRequest, ClaimResult, HeldRequest, HeldResult, Job, Performance, QueueState
from topics.offload import Kind
from topics.queueing import Work
from topics.storage.wal import ShardWriter
from topics.topic import Topic

T = TypeVar("T")

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- calls, as short as a test wants them


def claim(
    life: Life, node: str = "a", most: int = 1, *, wait_ms: int = 0, lease_ms: int | None = None, name: str = "q"
) -> Awaitable[ClaimResult]:
    return life.engine.claim(name, ClaimRequest(node=node, most=most, lease_ms=lease_ms, wait_ms=wait_ms), Performance())


def ack(life: Life, seqs: list[int], node: str = "a", ids: list[int] | None = None) -> Awaitable[HeldResult]:
    return life.engine.ack("q", HeldRequest(node=node, seqs=seqs, lease_ids=ids), Performance())


def nack(life: Life, seqs: list[int], node: str = "a", *, delay_ms: int = 0) -> Awaitable[HeldResult]:
    return life.engine.nack("q", HeldRequest(node=node, seqs=seqs, lease_ids=None), delay_ms, Performance())


def extend(life: Life, seqs: list[int], lease_ms: int, node: str = "a") -> Awaitable[HeldResult]:
    return life.engine.extend("q", HeldRequest(node=node, seqs=seqs, lease_ids=None), lease_ms, Performance())


def seqs_of(answer: ClaimResult | list[Job]) -> list[int]:
    jobs = answer.jobs if isinstance(answer, ClaimResult) else answer
    return [job.seq for job in jobs]


async def counters(life: Life, name: str = "q") -> tuple[int, int, int, int]:
    """Ready, in flight, delayed, dead-lettered; the first three are all there are."""
    state = await life.engine.topic_state(name, touch=False)
    queue = state.queue
    assert isinstance(queue, QueueState)
    assert queue.ready + queue.in_flight + queue.delayed == state.count
    return queue.ready, queue.in_flight, queue.delayed, queue.dead_lettered


def the_queue(life: Life, name: str = "q") -> tuple[Topic, JobQueue]:
    topic = life.engine.topics[name]
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
    assert topic.quiet


class Stream:
    """A `/work` stream with a client that is sent what it is given."""

    def __init__(self, nursery: trio.Nursery, life: Life, most: int, *, node: str = "s", lease_ms: int | None = None):
        self.life = life
        self.node = node
        self.jobs: list[Job] = []
        self.work: Work | None = None
        self.call = Called(nursery, partial(self._run, most, lease_ms))

    async def _run(self, most: int, lease_ms: int | None) -> None:
        self.work = await self.life.engine.open_work("q", self.node, most, lease_ms)
        try:
            while True:
                self.jobs += await self.life.engine.next_jobs(self.work)
        finally:
            self.life.engine.close_work(self.work)

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

    @contextmanager
    def held(self, kind: Kind = Kind.WAL) -> Iterator[None]:
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

    async def run(self, kind: Kind, call: Callable[[], T]) -> T:
        writer = getattr(getattr(call, "func", None), "__self__", None)
        if kind is Kind.WAL and isinstance(writer, ShardWriter) and writer.shard == self._shard:
            with trio.CancelScope(shield=True):
                await self._moves.wait()
        return await super().run(kind, call)


# ----------------------------------------------------------------- suspicions


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
        await life.engine.delete_topic("q", if_empty=False)
        await trio.sleep(1)
        assert stream.error == "topic_not_found"
        stream.close()


async def test_a_claim_ends_with_its_topic_while_it_fetches(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(cache_bytes=0), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1)
        await trio.sleep(0.1)
        with offload.held(Kind.HOT_READ):
            call = Called(nursery, lambda: claim(life))
            await settle()
            await life.engine.delete_topic("q", if_empty=False)
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        assert call.done
        assert call.error is not None
        assert call.error.code == "topic_not_found"


async def test_a_claim_ends_when_its_topic_is_another_one_while_columns_are_loaded(autojump_clock: Any) -> None:
    fs, offload = SimFs(), Disk()
    await leave_in_segments(fs, 10)
    async with living(SEGMENTS, fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        with offload.held(Kind.HOT_READ):
            call = Called(nursery, lambda: claim(life, most=3))
            await settle()
            assert not call.done
            await life.engine.delete_topic("q", if_empty=False)
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
        with offload.held(Kind.HOT_READ):
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
        with offload.held(Kind.HOT_READ):
            assert seqs_of(await claim(life)) == []
            await settle()
            assert queue.moving
            await life.engine.delete_topic("q", if_empty=False)
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
        assert not queue.moving


async def test_a_queue_that_is_deleted_while_its_dead_letters_are_synced(autojump_clock: Any) -> None:
    fs, offload = SimFs(), Disk()
    async with living(settings(wal_shards=2), fs=fs, offload=offload) as life:
        await life.put("dlq", durability="memory")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq", lease_ms=100, ttl_ms=60_000)
        topic, queue = the_queue(life)
        assert topic.shard != life.engine.topics["dlq"].shard
        await life.append("q", 1, 2)
        await claim(life)
        await trio.sleep(1)
        await life.append("dlq", "its ceiling is raised")
        with offload.shard_held(life.engine.topics["dlq"].shard):
            assert seqs_of(await claim(life, lease_ms=3_600_000)) == [2]
            await settle()
            assert await life.seqs("dlq") == [1, 2], "not synced yet"
            assert queue.moving
            await life.engine.delete_topic("q", if_empty=False)
            clean = life.engine.total_records
        await trio.sleep(120)
        assert not queue.moving
        assert topic not in life.engine.registry.changed
        assert life.engine.total_records == clean
        life.check()
    async with living(settings(wal_shards=2), fs=fs) as life:
        assert list(life.engine.topics) == ["dlq"]


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
        _, queue = the_queue(life)
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
        with offload.held(Kind.HOT_READ):
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
    shapes += [([dice.choice((1, 2, 5, 40)) for _ in range(dice.randint(1, 9))], dice.randint(0, 60)) for _ in range(60)]
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


async def cancelled_after(checkpoints: int, call: Callable[[], Awaitable[Any]]) -> bool:
    """Run `call` and cancel it after so many turns of the scheduler; whether it came to its end all the same."""
    async with trio.open_nursery() as nursery:
        called = Called(nursery, call)
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
        for k in range(200):
            done = await cancelled_after(k, lambda: claim(life, most=3, wait_ms=wait_ms))
            seen.append(done)
            await settle()
            _, queue = the_queue(life)
            if done:
                assert await counters(life) == (2, 3, 0, 0)
                assert (await nack(life, [1, 2, 3])).done == [1, 2, 3]
            if situation == "window":
                await trio.sleep(0.1)
            await nothing_is_held_for_ever(life, 5)
            if done:
                break
        else:
            assert situation == "window", "time has to pass"
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
            topic, queue = the_queue(life, name)
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
        with offload.held(Kind.HOT_READ):
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
            topic, _ = the_queue(life)
            for span in list(life.engine._indexes._columns):
                topic.log.detach(span)
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
