"""Results of jobs that are delivered to another topic (`docs/spec/consumers.md` section 5), over HTTP."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import CLASSES, Client, Daemon, body_of, error_of, fresh_name, invalid, running, until
from tests.conformance.keys import callers_of, forbidden
from tests.conformance.test_dead_letters import records_of
from tests.conformance.work_stream_client import call, claim, come_to, counts, queue, seqs
from topics.client import Client as TopicsClient
from topics.client import Job, Retry, TopicsError, Worker


@pytest.fixture
def done() -> str:
    """The name of a topic for results that does not exist yet."""
    return fresh_name("done")


def ack(client: Client, topic: str, seqs: list[int], *results: Any, node: str = "w") -> Any:
    return call(client, topic, "ack", node, seqs=seqs, **({"results": list(results)} if results else {}))


def refused(client: Client, topic: str, **fields: Any) -> Any:
    return client.post(f"/v0/topics/{topic}/ack", json={"node": "w", **fields})


@pytest.mark.parametrize("durability", CLASSES)
def test_results_are_delivered_and_the_jobs_are_gone(client: Client, topic: str, done: str, durability: str) -> None:
    queue(client, topic, durability=durability, completed=done)
    client.append(topic, records=[{"data": 1, "tag": "t"}, {"data": 2}, {"data": 3}])
    answer = call(client, topic, "claim", max=3)
    assert answer["wants_results"] is True
    acked = ack(client, topic, [1, 2], {"a": [1]}, None)
    assert (acked["acked"], acked["skipped"]) == (2, [])
    assert ack(client, topic, [3])["acked"] == 1
    come_to(client, topic, 0, 0, 0)
    records = records_of(client, done)
    place = {"topic": topic, "node": "w"}
    assert [record["data"] for record in records] == [
        {**place, "job_seq": 1, "result": {"a": [1]}},
        {**place, "job_seq": 2, "result": None},
        {**place, "job_seq": 3, "result": None},
    ]
    assert [record.get("$tag") for record in records] == ["t", None, None]
    assert ack(client, topic, [1], 5)["skipped"] == [1]


def test_a_result_is_byte_for_byte(client: Client, topic: str, done: str) -> None:
    queue(client, topic, 1, completed=done)
    claim(client, topic)
    body = b'{"node":"w","seqs":[1],"results":[{ "b":1.50, "a":"\\u00e9" }]}'
    body_of(client.post(f"/v0/topics/{topic}/ack", content=body, headers={"content-type": "application/json"}))
    come_to(client, topic, 0, 0, 0)
    assert b'"result":{ "b":1.50, "a":"\\u00e9" }' in client.get(f"/v0/topics/{done}/records/1").content


def test_wrong_results_are_400_and_name_the_field(client: Client, topic: str, done: str) -> None:
    queue(client, topic, 1, 2)
    assert "wants_results" not in call(client, topic, "claim", max=2)
    invalid(refused(client, topic, seqs=[1], results=[1]), "results")
    client.put_topic(topic, completed=done)
    for results in ([], [1, 2], "x", {"1": 1}):
        invalid(refused(client, topic, seqs=[1], results=results), "results")
    assert counts(client, topic) == (0, 2, 0)
    assert refused(client, topic, seqs=[1, 1], results=["first", "second"]).json()["acked"] == 1
    assert refused(client, topic, seqs=[2], results=None).json()["acked"] == 1
    come_to(client, topic, 0, 0, 0)
    assert [record["data"]["result"] for record in records_of(client, done)] == ["first", None]


def test_the_topic_of_results_is_another_one_that_is_not_ephemeral(client: Client, topic: str, done: str) -> None:
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "completed": topic}), "completed")
    client.put_topic(done, durability="ephemeral")
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "completed": done}), "completed")
    invalid(client.send_append(topic, 1, config={"type": "queue", "completed": done}), "completed")
    client.put_topic(done, durability="disk")
    queue(client, topic, completed=done)
    invalid(client.put(f"/v0/topics/{done}", json={"durability": "ephemeral"}), "durability")
    client.append(f"{topic}.log", 1)
    group = f"/v0/topics/{topic}.log/groups/g"
    invalid(client.put(group, json={"completed": f"{topic}.log"}), "completed")
    assert body_of(client.put(group, json={"completed": done}), 201)["completed"] == done
    assert body_of(client.put(group, json={"completed": None}))["completed"] is None


def test_results_have_bounds(tmp_path: Path) -> None:
    with running(tmp_path, max_record_bytes=1000) as client:
        queue(client, "q", *range(10), completed="done", lease_ms=60_000)
        claim(client, "q", max=10)
        error = error_of(refused(client, "q", seqs=[1, 2], results=[1, "x" * 1000]), 400, "record_too_large")
        assert error["detail"] == {"field": "results[1]", "size": 1002, "max": 1000}
        assert ack(client, "q", [1], "x" * 998)["acked"] == 1
        come_to(client, "q", 0, 9, 0)
        client.delete("/v0/topics/done")
        client.put_topic("done", cap_records=1, discard="reject")
        client.append("done", "in the way")
        assert ack(client, "q", [2, 3], 2, 3)["acked"] == 2
        assert counts(client, "q") == (0, 7, 2)
        client.put_topic("done", cap_records=0)
        come_to(client, "q", 0, 7, 0)
        assert [record["data"]["job_seq"] for record in records_of(client, "done")[1:]] == [2, 3]


def test_a_result_may_be_as_long_as_a_record(client: Client, topic: str, done: str) -> None:
    queue(client, topic, 1, 2, completed=done)
    claim(client, topic, max=2)
    result = "x" * ((1 << 20) - 2)
    assert ack(client, topic, [1, 2], result, "y" * 200_000)["acked"] == 2
    come_to(client, topic, 0, 0, 0)
    found = [body_of(client.get(f"/v0/topics/{done}/records/{seq}"))["data"]["result"] for seq in (1, 2)]
    assert [len(text) for text in found] == [len(result), 200_000]
    error_of(refused(client, topic, seqs=[1, 2], results=[result, result]), 413, "payload_too_large")


def test_a_group_has_results(client: Client, topic: str, done: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "t"}, {"data": 2}])
    group = f"/v0/topics/{topic}/groups/g"
    body_of(client.put(group, json={"from": "earliest", "completed": done}), 201)
    claimed = body_of(client.post(f"{group}/claim", json={"node": "w", "max": 5}))
    assert (seqs(claimed["claimed"]), claimed["wants_results"]) == ([1, 2], True)
    answer = body_of(client.post(f"{group}/ack", json={"node": "w", "seqs": [1, 2], "results": ["one", "two"]}))
    assert answer["acked"] == 2
    until(lambda: body_of(client.get(group))["floor"] == 2)
    records = records_of(client, done)
    assert [record["data"] for record in records] == [
        {"topic": topic, "group": "g", "job_seq": 1, "node": "w", "result": "one"},
        {"topic": topic, "group": "g", "job_seq": 2, "node": "w", "result": "two"},
    ]
    assert client.state(topic)["count"] == 2


def test_the_topic_of_results_must_be_within_the_prefixes_of_the_key(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,mine::mine-") as client, callers_of(client) as callers:
        mine = callers["mine"]
        forbidden(mine.put("/v0/topics/mine-q", json={"type": "queue", "completed": "theirs"}))
        mine.put_topic("mine-q", type="queue", completed="mine-done")
        mine.append("mine-log", 1)
        forbidden(mine.put("/v0/topics/mine-log/groups/g", json={"completed": "theirs"}))
        body_of(mine.put("/v0/topics/mine-log/groups/g", json={"completed": "mine-done"}), 201)
        error_of(mine.put("/v0/topics/mine-q", json={"completed": "-bad"}), 400, "invalid_request")


def test_both_clients_and_the_worker_say_results(client: Client, topic: str, done: str) -> None:
    with TopicsClient(client.daemon.url) as own:
        own.create(topic, type="queue", completed=done)
        assert own.state(topic).config.completed == done
        own.append(topic, [1, 2, 3])
        claimed = own.claim(topic, "me", max=2)
        assert claimed.wants_results
        assert own.ack(topic, "me", [1, 2], results=[{"a": 1}, None]).acked == 2

        def handle(job: Job) -> object:
            return {"twice": 2 * job.data}

        worker = Worker(own, topic, handle, node="me", max_jobs=1)
        worker.run()
        assert worker.stats.acked == 1
        come_to(client, topic, 0, 0, 0)
        results = [(record.data["job_seq"], record.data["result"]) for record in own.diff(done).records]
        assert results == [(1, {"a": 1}), (2, None), (3, {"twice": 6})]
        own.append(f"{topic}.log", [1])
        assert own.create_group(f"{topic}.log", "g", completed=done).completed == done
        assert own.create_group(f"{topic}.log", "g", completed="").completed is None


def test_over_kills_every_acked_result_is_delivered_and_few_twice(tmp_path: Path) -> None:
    """Workers ack jobs of a queue of class `fsync` while the daemon is killed again and again."""
    daemon, chance, total = Daemon(tmp_path), random.Random(11), 300
    told: set[int] = set()
    client = daemon.start()
    try:
        queue(client, "q", *range(total), durability="fsync", completed="done", lease_ms=500)

        def work(url: str, node: str, stop: threading.Event) -> None:
            with TopicsClient(url, retry=Retry(give_up_after=0)) as own, suppress(TopicsError):
                while not stop.is_set():
                    jobs = own.claim("q", node, max=5, wait_ms=100).claimed
                    if not jobs:
                        continue
                    named, leases = [job.seq for job in jobs], [job.lease_id for job in jobs]
                    answer = own.ack("q", node, named, lease_ids=leases, results=[f"r{seq}" for seq in named])
                    told.update(set(named) - set(answer.skipped))

        for _ in range(4):
            stop = threading.Event()
            threads = [threading.Thread(target=work, args=(daemon.url, f"n{i}", stop)) for i in range(3)]
            for thread in threads:
                thread.start()
            stop.wait(0.1 + 0.2 * chance.random())
            daemon.kill()
            stop.set()
            for thread in threads:
                thread.join()
            client = daemon.start()
        until(lambda: client.state("q")["queue"]["in_flight"] == client.state("q")["queue"]["delayed"] == 0)
        left = set(seqs(claim(client, "q", max=1000, lease_ms=60_000)))
        found = Counter(record["data"]["job_seq"] for record in records_of(client, "done"))
        assert all(record["data"]["result"] == f"r{record['data']['job_seq']}" for record in records_of(client, "done"))
        assert told
        assert told <= set(found)
        assert not told & left
        assert left | set(found) == set(range(1, total + 1)), "neither"
    finally:
        daemon.kill()
