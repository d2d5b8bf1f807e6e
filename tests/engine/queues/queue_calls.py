"""Calls on the queues of an engine, as short as a test wants them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, settings, settle
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from topics.engine.job_queue import JobQueue
from topics.engine.queues.queue_calls import JobSubscription
from topics.engine.topic import Topic
from topics.job_model import (
    ClaimRequest,
    ClaimResult,
    HeldRequest,
    HeldResult,
    Job,
    NackTerms,
)
from topics.model import Performance, QueueState
from topics.runtime.offload import Pool
from topics.storage.wal.shard_log import ShardLog
from topics.storage.wal.write_queue import PATIENCE_MS

T = TypeVar("T")


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


async def exhaust(life: Life, n: int, name: str = "q") -> None:
    """Have all jobs delivered as often as they may be, and the last lease end."""
    limit = life.engine.registry.topics[name].config.max_deliveries
    for _ in range(limit):
        assert len((await claim(life, "x", n, lease_ms=100, name=name)).jobs) == n
        await trio.sleep(0.2)


SLOW = pytest.mark.slow
