"""What a worker says of the results of its jobs, for a queue in memory."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.client.fake_queue import FakeQueue
from tests.client.test_worker import until, working
from topics.client.results import Job
from topics.client.workers import held_jobs

pytestmark = pytest.mark.trio


async def doubled(job: Job) -> Any:
    return {"twice": 2 * job.data}


async def test_what_a_handler_returns_is_the_result_where_that_is_wanted(autojump_clock: Any) -> None:
    queue = FakeQueue(wants_results=True)
    queue.add(1, 2)
    async with working(queue, doubled, concurrency=2) as worker:
        await until(lambda: not queue.items)
    assert queue.results == {1: {"twice": 2}, 2: {"twice": 4}}
    assert worker.stats.acked == 2
    queue = FakeQueue(wants_results=True)
    queue.add(3)
    async with working(queue, lambda job: [job.data], concurrency=1):
        await until(lambda: not queue.items)
    assert queue.results == {3: [3]}


async def test_elsewhere_it_does_not_count(autojump_clock: Any) -> None:
    queue = FakeQueue()
    queue.add(1)
    async with working(queue, lambda job: object(), concurrency=1) as worker:
        await until(lambda: not queue.items)
    assert (queue.results, worker.stats.acked) == ({}, 1)
    assert "results" not in queue.calls("ack")[0].body


async def test_results_that_nobody_wants_any_more_are_left_out(autojump_clock: Any) -> None:
    queue = FakeQueue(wants_results=True)
    queue.add(1)

    async def handler(job: Job) -> int:
        queue.wants_results = False
        return 7

    async with working(queue, handler, concurrency=1) as worker:
        await until(lambda: not queue.items)
    assert [said.body.get("results") for said in queue.calls("ack")] == [[7], None]
    assert worker.stats.acked == 1


@pytest.mark.parametrize("value", [object(), "x" * 200])
async def test_a_value_that_cannot_be_a_result_is_a_failure_of_its_job_alone(value: Any, autojump_clock: Any) -> None:
    queue = FakeQueue(wants_results=True, takes_s=1)
    queue.add(1, 2, 3)
    failed: list[int] = []

    async def handler(job: Job) -> Any:
        return value if job.seq == 2 and job.deliveries == 1 else job.seq

    options = {"concurrency": 3, "on_error": lambda job, error: failed.append(job.seq)}
    async with working(queue, handler, **options) as worker:
        await until(lambda: not queue.items)
    assert queue.results == {1: 1, 2: 2, 3: 3}
    assert failed == [2]
    assert (worker.stats.acked, worker.stats.nacked) == (3, 1)


@pytest.mark.parametrize("bounded_by", ["client", "daemon"])
async def test_an_ack_has_so_many_bytes_of_results(
    bounded_by: str, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_jobs, "MAX_RESULTS_BYTES", 50 if bounded_by == "client" else 1000)
    queue = FakeQueue(wants_results=True, takes_s=1, most_results=math.inf if bounded_by == "client" else 70)
    queue.add(*range(1, 8))

    async def handler(job: Job) -> str:
        return "x" * (60 if job.seq == 4 else 20)

    async with working(queue, handler, concurrency=7):
        await until(lambda: not queue.items)
    sizes = [[len(one) + 2 for one in said.body["results"]] for said in queue.calls("ack")]
    if bounded_by == "client":
        assert all(len(ack) == 1 or sum(ack) <= 50 for ack in sizes), sizes
        assert any(len(ack) == 2 for ack in sizes)
    assert len(queue.results) == 7


async def test_a_result_that_no_body_may_have_is_a_failure_of_its_job(autojump_clock: Any) -> None:
    queue = FakeQueue(wants_results=True, most_results=50)
    queue.add(1)
    async with working(queue, lambda job: "x" * (60 if job.deliveries == 1 else 6), concurrency=1) as worker:
        await until(lambda: not queue.items)
    assert (queue.results, worker.stats.nacked) == ({1: "xxxxxx"}, 1)
