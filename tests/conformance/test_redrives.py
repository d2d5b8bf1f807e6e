"""Redrives over HTTP and through the clients, over kills (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.client.ports import free_port
from tests.conformance.client import Client, Daemon, body_of, error_of, until
from topics.client import AsyncClient, Record
from topics.client import Client as TopicsClient

JOBS = 600


def dead_jobs(client: TopicsClient, queue: str, dead: str, count: int, group: str | None = None) -> None:
    """Let all jobs of a queue or a group fail for good."""
    while claimed := client.claim(queue, "w", max=500, group=group).claimed:
        client.nack(queue, "w", [job.seq for job in claimed], dead=True, error="broken", group=group)
    until(lambda: client.state(dead).count >= count)
    if group is None:  # until the jobs are deleted, a kill leaves both: the way into the dead letters is no transaction
        until(lambda: client.state(queue).count == 0)


async def until_done(client: AsyncClient, dead: str) -> None:
    with anyio.fail_after(40):
        while (await client.redrive_state(dead)).state == "running":  # noqa: ASYNC110
            await anyio.sleep(0.01)


def numbers(client: TopicsClient, topic: str) -> Counter[int]:
    return Counter(one.data for one in client.export(topic) if isinstance(one, Record))


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that may be killed, with two shards; always on the same port."""
    daemon = Daemon(tmp_path, wal_shards=2, port=free_port())
    daemon.start().close()
    yield daemon
    daemon.end(signal.SIGTERM)


def test_a_daemon_that_is_killed_has_each_letter_once(own_daemon: Daemon) -> None:
    with TopicsClient(own_daemon.url) as client:
        client.create("dead")
        client.create("jobs", type="queue", dead_letter="dead", max_deliveries=5)
        client.append("jobs", list(range(JOBS)))
        dead_jobs(client, "jobs", "dead", JOBS)
        for moved in (1, 200, 400):
            client.redrive("dead", rate={"jobs": 100, "per_ms": 100})
            until(lambda moved=moved: client.state("jobs").count >= moved)  # type: ignore[misc]
            own_daemon.end(signal.SIGKILL)
            own_daemon.start().close()
            assert client.redrive_state("dead").state == "idle"
            assert numbers(client, "dead") + numbers(client, "jobs") == Counter(range(JOBS))
        client.redrive("dead")
        until(lambda: client.redrive_state("dead").state == "done")
        assert client.state("dead").count == 0
        assert {job.deliveries for job in client.claim("jobs", "w", max=1000).claimed} == {1}


def test_a_redrive_from_its_beginning_to_its_end(client: Client, topic: str) -> None:
    path = f"/v0/topics/{topic}-dead/redrive"
    error_of(client.get(path), 404, "topic_not_found")
    with TopicsClient(client.daemon.url) as jobs:
        jobs.create(f"{topic}-dead")
        jobs.create(topic, type="queue", dead_letter=f"{topic}-dead", max_deliveries=5)
        jobs.append(topic, [1, 2, 3])
        assert body_of(client.get(path))["state"] == "idle"
        dead_jobs(jobs, topic, f"{topic}-dead", 3)
        (letter, *_) = list(jobs.export(f"{topic}-dead"))
        assert isinstance(letter, Record)
        begun = body_of(client.post(path, json={"max": 2, "filter": ["data", "", "Ge", 2]}), 202)
        assert (begun["topic"], begun["error"]) == (f"{topic}-dead", None)
        until(lambda: body_of(client.get(path))["state"] == "done")
        done = body_of(client.get(path))
        assert (done["moved"], done["left"], done["reasons"]) == (2, 0, {})
        assert list(numbers(jobs, f"{topic}-dead")) == [1]
        assert [one.meta for one in jobs.export(topic) if isinstance(one, Record)] == [{}, {}]
        jobs.delete_topic(topic)

        async def again() -> Any:
            async with AsyncClient(client.daemon.url) as other:
                await other.redrive(f"{topic}-dead")
                await until_done(other, f"{topic}-dead")
                return await other.stop_redrive(f"{topic}-dead")

        state = anyio.run(again)
        assert (state.state, state.moved, state.left, state.reasons) == ("done", 0, 1, {"missing": 1})
        jobs.delete_topic(f"{topic}-dead")


def test_a_group_gets_its_records_again(client: Client, topic: str) -> None:
    with TopicsClient(client.daemon.url) as jobs:
        jobs.create(f"{topic}-dead")
        jobs.append(topic, list(range(5)))
        jobs.create_group(topic, "g", from_="earliest", dead_letter=f"{topic}-dead", max_deliveries=5)
        dead_jobs(jobs, topic, f"{topic}-dead", 5, "g")
        until(lambda: jobs.group(topic, "g").floor == 5)
        jobs.redrive(f"{topic}-dead", to=None, max=3)
        until(lambda: jobs.redrive_state(f"{topic}-dead").state == "done")
        state = jobs.group(topic, "g")
        assert (state.floor, state.lag, state.queue.ready) == (5, 0, 3)
        claimed = jobs.claim(topic, "w", max=10, group="g").claimed
        assert [(job.seq, job.deliveries) for job in claimed] == [(1, 1), (2, 1), (3, 1)]
        assert jobs.ack(topic, "w", [1, 2, 3], group="g").acked == 3
        assert jobs.state(topic).count == 5
        jobs.delete_topic(topic)
        jobs.delete_topic(f"{topic}-dead")
