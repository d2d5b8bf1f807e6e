"""Workers for the queues of real daemons: what is promised when the daemon, the network or the process fails."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.client.conftest import StartDaemon
from tests.client.proxy import Fate, Proxy
from tests.conformance.client import Daemon, until
from topics.client import AsyncClient, Client
from topics.client.errors import NotFound
from topics.client.results import Job, QueueCounts
from topics.client.workers.held_jobs import Backoff, Stats
from topics.client.workers.worker import AsyncWorker, Worker

pytestmark = pytest.mark.slow

NOTHING = QueueCounts(ready=0, in_flight=0, delayed=0, dead_lettered=0)
QUICK = Backoff(first_ms=20, most_ms=200)

Handler = Callable[[Job], object]


def fill(client: Client, topic: str, jobs: int, **config: Any) -> None:
    client.create(topic, **{"type": "queue", **config})
    client.append(topic, list(range(jobs)))


def counts(client: Client, topic: str) -> QueueCounts:
    found = client.state(topic).queue
    assert found is not None
    return found


def work(url: str, topic: str, handler: Handler, *, backend: str = "trio", **options: Any) -> Stats:
    """Work until nothing is left of the queue, from a loop of this thread."""

    async def main() -> Stats:
        async with AsyncClient(url) as client, anyio.create_task_group() as group:
            worker = AsyncWorker(client, topic, handler, **options)

            async def watch() -> None:
                while (await client.state(topic)).count:  # noqa: ASYNC110 - of a daemon
                    await anyio.sleep(0.05)
                worker.stop()

            group.start_soon(watch)
            await worker.run()
            group.cancel_scope.cancel()
        return worker.stats

    async def bounded() -> Stats:
        with anyio.fail_after(90):
            return await main()

    return anyio.run(bounded, backend=backend)


@contextmanager
def meanwhile(handler: Handler, url: str, topic: str, **options: Any) -> Iterator[Worker]:
    """A worker in a thread, until the queue is empty."""
    with Client(url) as client:
        worker = Worker(client, topic, handler, **options)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop(0)
        thread.join(30)
        assert not thread.is_alive()


class Handled:
    """Counts how often each job was handled, and how many at a time at most."""

    def __init__(self, pause: Callable[[], float] = lambda: 0.0) -> None:
        self.times: Counter[int] = Counter()
        self.most = 0
        self._now = 0
        self._pause = pause
        self._lock = threading.Lock()

    def __call__(self, job: Job) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(self._pause())  # how long the job takes
        with self._lock:
            self._now -= 1
            self.times[job.data] += 1

    async def on_the_loop(self, job: Job) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await anyio.sleep(self._pause())  # how long the job takes
        self._now -= 1
        self.times[job.data] += 1


# Without faults


@pytest.mark.parametrize("in_threads", [False, True], ids=["async", "threads"])
def test_without_faults_each_job_is_handled_once(
    shared_daemon: Daemon, topic: str, backend: str, in_threads: bool
) -> None:
    rng = random.Random(1)
    handled = Handled(lambda: rng.choice([0, 0, 0.002]))
    with Client(shared_daemon.url) as client:
        fill(client, topic, 100)
        handler = handled if in_threads else handled.on_the_loop
        stats = work(shared_daemon.url, topic, handler, backend=backend, concurrency=8)
        assert handled.times == dict.fromkeys(range(100), 1)
        assert handled.most <= 8
        assert stats == Stats(claimed=100, acked=100)
        assert counts(client, topic) == NOTHING


def test_many_workers_share_a_queue(shared_daemon: Daemon, topic: str) -> None:
    handled = Handled(lambda: 0.001)
    with Client(shared_daemon.url) as client:
        fill(client, topic, 100)
        options: dict[str, Any] = {"concurrency": 2}
        with (
            meanwhile(handled, shared_daemon.url, topic, **options) as one,
            meanwhile(handled, shared_daemon.url, topic, **options) as two,
        ):
            until(lambda: client.state(topic).count == 0, within_s=60)
            until(lambda: one.stats.acked + two.stats.acked == 100)
    assert handled.times == dict.fromkeys(range(100), 1)


def test_long_handlers_keep_their_leases(shared_daemon: Daemon, topic: str, backend: str) -> None:
    handled = Handled(lambda: 4.0)
    with Client(shared_daemon.url) as client:
        fill(client, topic, 6)
        stats = work(shared_daemon.url, topic, handled, backend=backend, concurrency=6, lease_ms=1000)
    assert handled.times == dict.fromkeys(range(6), 1)
    assert stats == Stats(claimed=6, acked=6)


def test_jobs_that_fail_come_again_and_end_in_the_dead_letters(shared_daemon: Daemon, topic: str, backend: str) -> None:
    deliveries: Counter[int] = Counter()

    async def handler(job: Job) -> None:
        deliveries[job.data] += 1
        assert job.deliveries == deliveries[job.data]
        if job.data % 10 == 0 or (job.data % 10 == 1 and job.deliveries == 1):
            raise ValueError(job.data)

    dead = f"{topic}-dead"
    with Client(shared_daemon.url) as client:
        fill(client, topic, 50, max_deliveries=3, dead_letter=dead)
        stats = work(shared_daemon.url, topic, handler, backend=backend, concurrency=4, backoff=QUICK)
        assert sorted(record.data for record in client.diff(dead).records) == [0, 10, 20, 30, 40]
        assert counts(client, topic).dead_lettered == 5
    assert deliveries == {n: 3 if n % 10 == 0 else 2 if n % 10 == 1 else 1 for n in range(50)}
    assert (stats.acked, stats.nacked, stats.lost) == (45, 20, 0)


def test_a_handler_that_is_cancelled_from_within_has_failed(shared_daemon: Daemon, topic: str) -> None:
    async def handler(job: Job) -> None:
        if job.deliveries == 1:
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(60)

    with Client(shared_daemon.url) as client:
        fill(client, topic, 1)
        stats = work(shared_daemon.url, topic, handler, backend="asyncio", backoff=QUICK)
    assert stats == Stats(claimed=2, acked=1, nacked=1)


def test_it_ends_when_the_topic_is_deleted(shared_daemon: Daemon, topic: str, backend: str) -> None:
    async def main() -> None:
        async with AsyncClient(shared_daemon.url) as client, anyio.create_task_group() as group:

            async def delete() -> None:
                await anyio.sleep(0.1)
                await client.delete_topic(topic)

            group.start_soon(delete)
            with pytest.raises(NotFound), anyio.fail_after(60):
                await AsyncWorker(client, topic, Handled()).run()

    with Client(shared_daemon.url) as client:
        fill(client, topic, 1)
    anyio.run(main, backend=backend)


def test_what_hangs_past_the_drain_is_given_back_at_once(shared_daemon: Daemon, topic: str, backend: str) -> None:
    async def main() -> Stats:
        started = anyio.Event()

        async def handler(job: Job) -> None:
            started.set()
            await anyio.sleep_forever()

        async with AsyncClient(shared_daemon.url) as client, anyio.create_task_group() as group:
            worker = AsyncWorker(client, topic, handler, drain_s=0.1)
            group.start_soon(worker.run)
            await started.wait()
            worker.stop()
        return worker.stats

    with Client(shared_daemon.url) as client:
        fill(client, topic, 1, lease_ms=3_600_000)
        assert anyio.run(main, backend=backend) == Stats(claimed=1, nacked=1)
        (job,) = client.claim(topic, "another").claimed
        assert job.deliveries == 1


def test_a_thread_that_hangs_past_the_drain_does_not_hold_up_the_end(shared_daemon: Daemon, topic: str) -> None:
    jobs: list[Job] = []
    leave = threading.Event()

    def handler(job: Job) -> None:
        jobs.append(job)
        leave.wait(60)

    with Client(shared_daemon.url) as client:
        fill(client, topic, 1, lease_ms=3_600_000)
        worker = Worker(client, topic, handler, drain_s=0.1)

        def stop() -> None:
            until(lambda: bool(jobs))
            worker.stop()

        threading.Thread(target=stop).start()
        try:
            worker.run()
            assert jobs[0].lost
            assert client.claim(topic, "another").claimed[0].deliveries == 1
        finally:
            leave.set()


# With faults


def test_a_daemon_that_is_killed_again_and_again_costs_no_job(daemon: Daemon, topic: str, backend: str) -> None:
    handled = Handled(lambda: 0.005)
    dead = f"{topic}-dead"
    with Client(daemon.url) as client:
        fill(client, topic, 200, lease_ms=3000, max_deliveries=50, dead_letter=dead)

        def strike() -> None:
            for share in (50, 110):
                until(lambda share=share: len(handled.times) >= share, within_s=60)  # type: ignore[misc]
                daemon.end(signal.SIGKILL)
                daemon.start().close()

        striker = threading.Thread(target=strike)
        striker.start()
        try:
            work(daemon.url, topic, handled, backend=backend, concurrency=4)
        finally:
            striker.join()
        assert set(handled.times) == set(range(200))
        assert handled.most <= 4
        assert counts(client, topic) == NOTHING
        with pytest.raises(NotFound):
            client.state(dead)


def test_a_daemon_that_throttles_costs_time_only(
    start_daemon: StartDaemon, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon(api_keys="boss:r+w+d+a,worker:rw", rate_per_key="12")
    handled = Handled()
    with Client(daemon.url, token="boss") as client:
        fill(client, topic, 100)
        monkeypatch.setenv("TOPICS_TOKEN", "worker")
        stats = work(daemon.url, topic, handled.on_the_loop, concurrency=4)
        assert "rate_per_key" in str(client.metrics()["topics_throttled_total"])
    assert handled.times == dict.fromkeys(range(100), 1)
    assert stats == Stats(claimed=100, acked=100)


def test_a_daemon_whose_disk_is_nearly_full_goes_on_and_keeps_what_has_failed(daemon: Daemon, topic: str) -> None:
    handled = Handled()
    dead = f"{topic}-dead"

    async def handler(job: Job) -> None:
        await handled.on_the_loop(job)
        if job.data == 7:
            raise ValueError

    with Client(daemon.url) as client:
        fill(client, topic, 50, max_deliveries=2, dead_letter=dead)
        daemon.end()
        full = Daemon(daemon.root, port=daemon.port, min_free_bytes="1000TiB")
        full.start().close()

        def make_room() -> None:
            try:
                until(lambda: counts(client, topic).delayed == 1 and handled.times.total() == 51, within_s=60)
            finally:
                full.end()
                daemon.start().close()

        maker = threading.Thread(target=make_room)
        maker.start()
        try:
            stats = work(daemon.url, topic, handler, concurrency=4, backoff=QUICK)
        finally:
            maker.join()
        assert handled.times == dict.fromkeys(range(50), 1) | {7: 2}
        assert (stats.acked, stats.nacked) == (49, 2)
        assert [record.data for record in client.diff(dead).records] == [7]


def test_a_network_that_delays_and_cuts_costs_no_job(shared_daemon: Daemon, topic: str, backend: str) -> None:
    rng = random.Random(7)
    handled = Handled(lambda: 0.001)
    dead = f"{topic}-dead"

    def fate(number: int) -> Fate:
        return Fate(
            up=rng.choice([None, rng.randrange(6000)]), down=rng.choice([0, rng.randrange(6000)]), delay_s=0.005
        )

    with Proxy(shared_daemon.port, fate) as proxy, Client(shared_daemon.url) as client:
        fill(client, topic, 100, lease_ms=1000, max_deliveries=100, dead_letter=dead)
        work(proxy.url, topic, handled.on_the_loop, backend=backend, concurrency=8)
        assert set(handled.times) == set(range(100))
        assert counts(client, topic) == NOTHING
        assert proxy.accepted > 10
        with pytest.raises(NotFound):
            client.state(dead)


def test_a_network_that_stands_still_for_longer_than_a_lease_costs_no_job(shared_daemon: Daemon, topic: str) -> None:
    handled = Handled(lambda: 0.02)
    with Proxy(shared_daemon.port) as proxy, Client(shared_daemon.url) as client:
        fill(client, topic, 100, lease_ms=1000)

        def stall() -> None:
            until(lambda: len(handled.times) >= 20, within_s=60)
            proxy.stall()
            until(lambda: counts(client, topic).in_flight == 0, within_s=60)
            proxy.cut()
            proxy.flow()

        staller = threading.Thread(target=stall)
        staller.start()
        try:
            work(proxy.url, topic, handled, concurrency=3)
        finally:
            staller.join()
        assert set(handled.times) == set(range(100))
        assert counts(client, topic) == NOTHING


# The process


SCRIPT = textwrap.dedent(
    """
    import sys, time
    from topics.client import Client, Worker

    def handler(job):
        print("begun", flush=True)
        time.sleep(float(sys.argv[2]))  # how long the job takes
        print("done", flush=True)

    with Client() as client:
        worker = Worker(client, sys.argv[1], handler, install_signal_handlers=len(sys.argv) == 3)
        worker.run()
    print("over", worker.stats, flush=True)
    """
)


@contextmanager
def process(url: str, *arguments: str, stderr: int | None = None) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "TOPICS_URL": url}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=stderr, text=True) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "begun\n"
            yield running
        finally:
            running.kill()


def test_a_signal_lets_handlers_finish(shared_daemon: Daemon, topic: str) -> None:
    with Client(shared_daemon.url) as client:
        fill(client, topic, 2, lease_ms=3_600_000)
        with process(shared_daemon.url, topic, "0.5") as running:
            running.send_signal(signal.SIGTERM)
            out, _ = running.communicate(timeout=60)
        assert out.startswith("done\nover Stats(claimed=1, acked=1,")
        assert running.returncode == 0
        assert counts(client, topic).ready == 1


def test_a_second_signal_ends_it_at_once_and_gives_the_jobs_back(shared_daemon: Daemon, topic: str) -> None:
    with Client(shared_daemon.url) as client:
        fill(client, topic, 1, lease_ms=3_600_000)
        with process(shared_daemon.url, topic, "3600") as running:
            running.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):  # the first one waits for the handler
                running.wait(0.5)
            assert running.poll() is None
            running.send_signal(signal.SIGINT)
            out, _ = running.communicate(timeout=60)
        assert out.startswith("over Stats(claimed=1, acked=0, nacked=1,")
        assert running.returncode == 0
        assert counts(client, topic).ready == 1


def test_a_process_that_was_suspended_does_not_ack_what_somebody_else_has(shared_daemon: Daemon, topic: str) -> None:
    with Client(shared_daemon.url) as client:
        fill(client, topic, 1, lease_ms=500)
        with process(shared_daemon.url, topic, "1") as running:
            running.send_signal(signal.SIGSTOP)
            until(lambda: client.claim(topic, "another", lease_ms=3_600_000).count == 1)
            running.send_signal(signal.SIGTERM)
            running.send_signal(signal.SIGCONT)
            out, _ = running.communicate(timeout=60)
        assert out == "done\nover Stats(claimed=1, acked=0, nacked=0, lost=1)\n"
        assert counts(client, topic).in_flight == 1


def test_without_signal_handlers_an_interrupt_is_raised_and_gives_the_jobs_back(
    shared_daemon: Daemon, topic: str
) -> None:
    with Client(shared_daemon.url) as client:
        fill(client, topic, 1, lease_ms=3_600_000)
        with process(shared_daemon.url, topic, "3600", "no signal handlers", stderr=subprocess.PIPE) as running:
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=60)
        assert said.endswith("\nKeyboardInterrupt\n")
        assert running.returncode == -signal.SIGINT
        assert counts(client, topic).ready == 1
