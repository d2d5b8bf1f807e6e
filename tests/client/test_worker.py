"""What a worker does and when, for a queue in memory, on a clock that jumps. With daemons: `test_worker_faults`."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio

from tests.client.fake_queue import FakeQueue, broken, refused
from topics.client.errors import Conflict, Forbidden, NotFound, ProtocolError, Unauthorized
from topics.client.results import Job
from topics.client.workers.held_jobs import Nack
from topics.client.workers.worker import AsyncWorker

pytestmark = pytest.mark.trio


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@asynccontextmanager
async def working(queue: FakeQueue, handler: Callable[[Job], object], **options: Any) -> AsyncIterator[AsyncWorker]:
    """A worker that runs meanwhile and is stopped at the end, when it may finish what it has in hand."""
    worker = AsyncWorker(queue, "q", handler, **{"drain_s": math.inf, **options})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        yield worker
        worker.stop()


async def until(condition: Callable[[], object], within_s: float = 3600) -> None:
    with trio.fail_after(within_s):
        while not condition():  # noqa: ASYNC110 - of anything
            await trio.sleep(0.5)


def takes(seconds: float) -> Callable[[Job], Awaitable[None]]:
    async def handler(job: Job) -> None:
        await trio.sleep(seconds)

    return handler


async def ignore(job: Job) -> None:
    """Done at once."""


# Work


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_each_job_is_handled_once_and_acked(autojump_clock: Any, queue: FakeQueue, concurrency: int) -> None:
    seen: list[tuple[str, int, object]] = []

    async def handler(job: Job) -> None:
        seen.append((job.topic, job.seq, job.data))

    queue.add(*range(1, 11))
    async with working(queue, handler, concurrency=concurrency) as worker:
        await until(lambda: not queue.items)
    assert (seen if concurrency == 1 else sorted(seen)) == [("q", seq, seq) for seq in range(1, 11)]
    assert (worker.stats.claimed, worker.stats.acked, worker.stats.lost) == (10, 10, 0)


async def test_no_more_jobs_are_in_hand_than_there_are_places(autojump_clock: Any, queue: FakeQueue) -> None:
    running = most = 0

    async def handler(job: Job) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running, sum(item.lease is not None for item in queue.items.values()))
        await trio.sleep(job.seq % 4)
        running -= 1

    queue.add(*range(1, 41))
    queue.takes_s = 0.1
    async with working(queue, handler, concurrency=3):
        await until(lambda: not queue.items)
    assert most == 3


async def test_a_claim_asks_for_as_many_jobs_as_there_are_free_places_and_waits_for_them(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    async with working(queue, takes(3600), concurrency=5):
        queue.add(1, 2)
        await until(lambda: len(queue.calls("claim")) == 2)
    asked = [said.body for said in queue.calls("claim")]
    assert [body["max"] for body in asked] == [5, 3]
    assert all(body["wait_ms"] >= 10_000 for body in asked)


async def test_a_worker_without_work_makes_a_call_in_twenty_seconds(autojump_clock: Any, queue: FakeQueue) -> None:
    async with working(queue, ignore):
        await trio.sleep(600)
    assert len(queue.log) <= 32


async def test_what_is_over_while_an_ack_is_under_way_goes_into_the_next_one(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    queue.add(*range(1, 6))
    queue.takes_s = 1

    async def handler(job: Job) -> None:
        await trio.sleep(0 if job.seq == 1 else 0.5)

    async with working(queue, handler, concurrency=5):
        await until(lambda: not queue.items)
    assert [sorted(said.body["seqs"]) for said in queue.calls("ack")] == [[1], [2, 3, 4, 5]]


async def test_a_plain_function_runs_in_a_thread_of_its_own(autojump_clock: Any, queue: FakeQueue) -> None:
    threads = set()
    queue.add(1, 2, 3)
    async with working(queue, lambda job: threads.add(threading.current_thread())) as worker:
        await until(lambda: not queue.items)
    assert threads
    assert threading.current_thread() not in threads
    assert worker.stats.acked == 3


async def test_a_plain_function_that_returns_something_to_await_is_awaited(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    seen: list[int] = []

    async def later(job: Job) -> None:
        seen.append(job.seq)

    queue.add(1)
    async with working(queue, lambda job: later(job)):  # noqa: PLW0108 - not an async function
        await until(lambda: not queue.items)
    assert seen == [1]


async def test_after_so_many_jobs_it_ends_by_itself_when_they_are_over(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(*range(1, 11))
    worker = AsyncWorker(queue, "q", takes(100), concurrency=4, max_jobs=6)
    await worker.run()
    assert worker.stats.acked == worker.stats.claimed == 6
    assert sorted(queue.items) == [7, 8, 9, 10]


# Jobs that fail


async def test_a_job_that_fails_comes_again_after_delays_that_grow(autojump_clock: Any, queue: FakeQueue) -> None:
    times: list[float] = []

    async def handler(job: Job) -> None:
        times.append(trio.current_time())
        if job.deliveries < 6:
            raise ValueError

    queue.add(1)
    async with working(queue, handler) as worker:
        await until(lambda: not queue.items)
    waits = [after - before for before, after in pairwise(times)]
    assert len(waits) == 5
    assert waits == sorted(waits)
    assert [said.body["delay_ms"] for said in queue.calls("nack")][-1] > 10_000
    assert (worker.stats.nacked, worker.stats.acked) == (5, 1)


async def test_the_daemon_is_told_what_went_wrong(autojump_clock: Any, queue: FakeQueue) -> None:
    async def handler(job: Job) -> None:
        if job.deliveries == 1:
            raise KeyError("é" * 3000)

    queue.add(1)
    async with working(queue, handler):
        await until(lambda: not queue.items)
    (body,) = [said.body for said in queue.log if said.name == "nack"]
    assert "count" not in body
    assert body["error"].startswith("KeyError: 'éé")
    assert len(body["error"].encode()) <= 4096


async def test_with_no_backoff_the_queue_says_when_a_job_comes_again(autojump_clock: Any, queue: FakeQueue) -> None:
    async def handler(job: Job) -> None:
        if job.deliveries == 1:
            raise ValueError

    queue.add(1)
    async with working(queue, handler, backoff=None):
        await until(lambda: not queue.items)
    (body,) = [said.body for said in queue.log if said.name == "nack"]
    assert "delay_ms" not in body


async def test_of_each_failure_on_error_is_told(autojump_clock: Any, queue: FakeQueue) -> None:
    told: list[object] = []

    async def handler(job: Job) -> None:
        if job.deliveries == 1:
            raise ValueError("at first")

    queue.add(1)
    async with working(queue, handler, on_error=lambda job, error: told.append((job.seq, str(error)))):
        await until(lambda: not queue.items)
    assert told == [(1, "at first")]


async def test_without_on_error_failures_are_logged(
    autojump_clock: Any, queue: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(job: Job) -> None:
        if job.deliveries == 1:
            raise ValueError("at first")

    queue.add(1)
    async with working(queue, handler):
        await until(lambda: not queue.items)
    (line,) = caplog.records
    assert "job 1 failed (delivery 1)" in line.getMessage()
    assert line.exc_info is not None


async def test_what_on_error_raises_ends_the_worker_and_gives_the_jobs_back(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    def on_error(job: Job, error: Exception) -> None:
        raise error

    async def handler(job: Job) -> None:
        if job.seq == 1:
            raise ValueError("enough")
        await trio.sleep_forever()

    queue.add(1, 2)
    with pytest.raises(ValueError, match="enough"):
        await AsyncWorker(queue, "q", handler, concurrency=2, on_error=on_error).run()
    assert all(item.lease is None for item in queue.items.values())


async def test_a_handler_may_give_a_job_back_without_an_error(autojump_clock: Any, queue: FakeQueue) -> None:
    told: list[object] = []
    times: list[float] = []

    async def handler(job: Job) -> None:
        times.append(trio.current_time())
        if job.deliveries == 1:
            raise Nack(7000)

    queue.add(1)
    async with working(queue, handler, on_error=lambda *args: told.append(args)):
        await until(lambda: not queue.items)
    assert times[1] - times[0] == pytest.approx(7, abs=0.1)
    assert told == []


async def test_jobs_that_fail_together_are_nacked_in_a_few_calls(autojump_clock: Any, queue: FakeQueue) -> None:
    async def handler(job: Job) -> None:
        if job.deliveries == 1:
            raise ValueError

    queue.add(*range(1, 101))
    queue.takes_s = 0.1
    async with working(queue, handler, concurrency=100):
        await until(lambda: not queue.items)
    assert len(queue.calls("nack")) <= 9


# Leases


async def test_a_long_handler_keeps_its_lease(autojump_clock: Any, queue: FakeQueue) -> None:
    handled: list[int] = []

    async def handler(job: Job) -> None:
        await trio.sleep(305)
        handled.append(job.seq)
        assert job.deadline / 1000 > trio.current_time()

    queue.add(1, 2)
    async with working(queue, handler, concurrency=2):
        await until(lambda: not queue.items)
    assert sorted(handled) == [1, 2]
    extensions = queue.calls("extend")
    assert len(extensions) == pytest.approx(30, abs=1)
    assert all(said.body["seqs"] == [1, 2] and said.body["lease_ms"] == 30_000 for said in extensions)


async def test_its_own_lease_goes_before_that_of_the_topic(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1)
    async with working(queue, takes(10), lease_ms=3000):
        await until(lambda: not queue.items)
    assert queue.log[0].name == "claim"
    assert queue.log[0].body["lease_ms"] == 3000
    assert len(queue.calls("extend")) == pytest.approx(10, abs=1)


async def test_a_lost_job_is_marked_and_not_acked(autojump_clock: Any, queue: FakeQueue) -> None:
    lost: list[bool] = []

    async def handler(job: Job) -> None:
        if job.deliveries == 1:
            queue.items[1].lease = None  # an operator's hand
            await trio.sleep(20)
            lost.append(job.lost)

    queue.add(1)
    async with working(queue, handler, concurrency=2) as worker:
        await until(lambda: lost)
    assert lost == [True]
    assert (worker.stats.claimed, worker.stats.acked, worker.stats.lost) == (2, 1, 1)


async def test_leases_are_given_up_when_they_are_over_for_certain(autojump_clock: Any, queue: FakeQueue) -> None:
    seen: list[bool] = []

    async def handler(job: Job) -> None:
        for seconds in (29, 12):
            await trio.sleep(seconds)
            if job.deliveries == 1:
                seen.append(job.lost)

    queue.add(1)
    queue.refuse = lambda name: broken(outcome_unknown=False) if name == "extend" else None
    async with working(queue, handler):
        await until(lambda: len(seen) == 2)
        queue.items.clear()
    assert seen == [False, True]


async def test_an_extension_without_an_answer_is_repeated_before_the_lease_is_over(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    queue.add(1)
    failing = iter([broken(), refused(503, "not_ready"), refused(500, "internal")])
    queue.refuse = lambda name: next(failing, None) if name == "extend" else None
    async with working(queue, takes(60)) as worker:
        await until(lambda: not queue.items)
    assert (worker.stats.acked, worker.stats.lost) == (1, 0)


async def test_a_call_that_hangs_does_not_cost_the_lease(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1)
    hung: list[bool] = []

    class Hanging(FakeQueue):
        async def once(self, call: Any) -> Any:
            if call.target.endswith("extend") and not hung:
                hung.append(True)
                await trio.sleep_forever()
            return await super().once(call)

    hanging = Hanging(items=queue.items)
    async with working(hanging, takes(60)) as worker:
        await until(lambda: not queue.items)
    assert (worker.stats.acked, worker.stats.lost) == (1, 0)


# The daemon is away


@pytest.mark.parametrize("name", ["claim", "ack", "extend", "nack", "q"])
@pytest.mark.parametrize(
    "failure",
    [
        broken(outcome_unknown=False),
        refused(429, "throttled", retry_after="1"),
        refused(503, "read_only", retry_after="1"),
        refused(503, "shutting_down"),
        refused(500, "internal"),
        refused(502, "server_error"),
    ],
    ids=lambda failure: getattr(failure, "code", ""),
)
async def test_a_call_that_is_refused_for_a_while_is_repeated(
    autojump_clock: Any, queue: FakeQueue, name: str, failure: Exception
) -> None:
    async def handler(job: Job) -> None:
        await trio.sleep(15)
        if job.seq == 2 and job.deliveries == 1:
            raise ValueError

    queue.add(1, 2)
    queue.refuse = lambda called: failure if called == name and len(queue.calls(name)) % 4 else None
    async with working(queue, handler, concurrency=2) as worker:
        await until(lambda: not queue.items)
    assert (worker.stats.acked, worker.stats.nacked, worker.stats.lost) == (2, 1, 0)


async def test_the_daemon_is_asked_again_no_sooner_than_it_wants(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.refuse = lambda name: refused(429, "throttled", retry_after="7") if name == "claim" else None
    async with working(queue, ignore):
        await trio.sleep(60)
    times = [said.at for said in queue.calls("claim")]
    assert all(after - before >= 7 for before, after in pairwise(times))
    assert len(times) >= 3


async def test_waits_for_a_daemon_that_is_away_grow_to_seconds_and_no_further(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    queue.refuse = lambda _: broken(outcome_unknown=False)
    async with working(queue, ignore):
        await trio.sleep(300)
        queue.refuse = lambda _: None
    times = [said.at for said in queue.log]
    waits = [after - before for before, after in pairwise(times)]
    assert waits[0] < 0.1
    assert 2 < max(waits) <= 5.01


async def test_trouble_is_logged_when_it_begins_and_not_each_time(
    autojump_clock: Any, queue: FakeQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.refuse = lambda name: broken() if name == "claim" and len(queue.log) < 20 else None
    async with working(queue, ignore):
        await trio.sleep(120)
    assert [line.getMessage() for line in caplog.records] == [
        "q: claim failed, and is repeated until it works: as the test wants it"
    ]


async def test_jobs_of_a_claim_whose_answer_was_lost_come_again_when_their_leases_are_over(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    seen: Counter[int] = Counter()

    async def handler(job: Job) -> None:
        seen[job.seq] += 1

    queue.add(1, 2)
    queue.lose = lambda name: broken() if name == "claim" and len(queue.calls("claim")) == 1 else None
    async with working(queue, handler, concurrency=2):
        await until(lambda: not queue.items)
    assert seen == {1: 1, 2: 1}
    assert trio.current_time() >= 30


async def test_an_ack_whose_answer_was_lost_is_not_known_to_have_worked(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1)
    queue.lose = lambda name: broken() if name == "ack" and len(queue.calls("ack")) == 1 else None
    async with working(queue, ignore) as worker:
        await until(lambda: len(queue.calls("ack")) == 2)
    assert (worker.stats.acked, worker.stats.lost) == (0, 1)
    assert not queue.items


async def test_a_nack_that_is_handed_out_again_before_its_answer_counts_as_nacked(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    async def handler(job: Job) -> None:
        if job.deliveries < 5:
            raise Nack

    queue.add(1)
    queue.lose = lambda name: broken() if name == "nack" else None
    async with working(queue, handler, concurrency=2) as worker:
        await until(lambda: not queue.items)
    assert (worker.stats.claimed, worker.stats.nacked, worker.stats.acked) == (5, 4, 1)


async def test_a_daemon_that_allows_fewer_seqs_in_a_call_is_told_fewer(autojump_clock: Any, queue: FakeQueue) -> None:
    def refuse(name: str) -> Exception | None:
        if name != "claim" and len(queue.log[-1].body.get("seqs", ())) > 3:
            return refused(400, "batch_too_large", field="seqs", max=3)
        return None

    queue.add(*range(1, 11))
    queue.refuse = refuse
    async with working(queue, takes(15), concurrency=10) as worker:
        await until(lambda: not queue.items)
    assert worker.stats.acked == 10


# What waiting does not cure


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "topic_not_found", NotFound),
        (409, "not_a_queue", Conflict),
        (401, "unauthorized", Unauthorized),
        (403, "forbidden", Forbidden),
    ],
)
@pytest.mark.parametrize("name", ["q", "claim", "extend", "ack"])
async def test_it_raises_what_waiting_does_not_cure(
    autojump_clock: Any, queue: FakeQueue, name: str, status: int, code: str, kind: type[Exception]
) -> None:
    queue.add(1)
    queue.refuse = lambda called: refused(status, code) if called == name else None
    with pytest.raises(kind):
        await AsyncWorker(queue, "q", takes(15)).run()


async def test_it_raises_for_an_answer_of_something_else(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.refuse = lambda _: ProtocolError("not one of topics")
    with pytest.raises(ProtocolError):
        await AsyncWorker(queue, "q", ignore).run()


async def test_jobs_in_hand_are_given_back_when_it_raises(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1, 2)
    queue.refuse = lambda name: refused(403, "forbidden") if name == "extend" else None
    with pytest.raises(Forbidden):
        await AsyncWorker(queue, "q", takes(60), concurrency=2).run()
    assert all(item.lease is None for item in queue.items.values())


# The end


async def test_after_stop_handlers_finish_and_nothing_is_claimed(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1, 2, 3)
    worker = AsyncWorker(queue, "q", takes(20), concurrency=2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        worker.stop()
    assert trio.current_time() == pytest.approx(20, abs=1)
    assert worker.stats.acked == 2
    assert list(queue.items) == [3]
    assert queue.items[3].deliveries == 0


async def test_leases_are_kept_while_handlers_finish(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1)
    async with working(queue, takes(200)) as worker:
        await trio.sleep(1)
    assert (worker.stats.acked, worker.stats.lost) == (1, 0)


async def test_a_stop_does_not_wait_for_a_claim(autojump_clock: Any, queue: FakeQueue) -> None:
    async with working(queue, ignore):
        await trio.sleep(1)
    assert trio.current_time() < 2


async def test_a_handler_that_takes_longer_than_the_drain_is_cancelled_and_its_job_given_back(
    autojump_clock: Any,
    queue: FakeQueue,
) -> None:
    jobs: list[Job] = []

    async def handler(job: Job) -> None:
        jobs.append(job)
        await trio.sleep(5 if job.seq == 1 else 3600)

    queue.add(1, 2)
    worker = AsyncWorker(queue, "q", handler, concurrency=2, drain_s=10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        worker.stop()
    assert trio.current_time() == pytest.approx(11, abs=0.5)
    assert (worker.stats.acked, worker.stats.nacked) == (1, 1)
    assert queue.items[2].lease is None
    assert queue.items[2].free_at <= trio.current_time()
    assert {job.seq: job.lost for job in jobs} == {1: False, 2: True}


async def test_a_second_stop_makes_it_shorter_and_never_longer(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1)
    worker = AsyncWorker(queue, "q", takes(3600), drain_s=600)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        for drain_s in (None, 10, 1000):
            worker.stop(drain_s)
    assert trio.current_time() == pytest.approx(11, abs=0.5)


async def test_a_job_that_is_over_is_acked_at_the_end_even_if_the_drain_is(
    autojump_clock: Any, queue: FakeQueue
) -> None:
    queue.add(1)
    queue.refuse = lambda name: refused(503, "not_ready") if name == "ack" and trio.current_time() < 10.5 else None
    worker = AsyncWorker(queue, "q", ignore, drain_s=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(10)
        worker.stop()
    assert worker.stats.acked == 1


async def test_a_daemon_that_is_away_does_not_hold_up_the_end_for_long(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1)
    worker = AsyncWorker(queue, "q", takes(3600), drain_s=5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        queue.refuse = lambda _: broken(outcome_unknown=False)
        worker.stop()
    assert trio.current_time() < 10


async def test_a_worker_that_is_cancelled_gives_its_jobs_back(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1, 2)
    with trio.move_on_after(5):
        await AsyncWorker(queue, "q", takes(3600), concurrency=2).run()
    assert all(item.lease is None and item.deliveries == 1 for item in queue.items.values())


async def test_a_stop_before_the_beginning_is_an_end_without_work(autojump_clock: Any, queue: FakeQueue) -> None:
    queue.add(1)
    worker = AsyncWorker(queue, "q", ignore)
    worker.stop()
    await worker.run()
    assert worker.stats.claimed == 0
    assert queue.items[1].deliveries == 0


async def test_it_runs_once(autojump_clock: Any, queue: FakeQueue) -> None:
    worker = AsyncWorker(queue, "q", ignore)
    worker.stop()
    await worker.run()
    with pytest.raises(RuntimeError, match="once"):
        await worker.run()


# What it is told


@pytest.mark.parametrize(
    "option", [{"concurrency": 0}, {"lease_ms": 99}, {"drain_s": -1}, {"drain_s": math.nan}, {"max_jobs": 0}]
)
async def test_an_option_out_of_its_range_is_refused(
    autojump_clock: Any, queue: FakeQueue, option: dict[str, Any]
) -> None:
    (name,) = option
    with pytest.raises(ValueError, match=name):
        AsyncWorker(queue, "q", ignore, **option)


async def test_two_workers_have_two_names(autojump_clock: Any, queue: FakeQueue) -> None:
    one, two = (AsyncWorker(queue, "q", ignore) for _ in range(2))
    assert one.node != two.node
    assert 1 <= len(one.node.encode()) <= 128
    assert AsyncWorker(queue, "q", ignore, node="me").node == "me"
