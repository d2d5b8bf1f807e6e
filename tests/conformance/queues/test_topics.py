"""Section 9 and semantics 6: queues as topics: their state, their readers, and routers between them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conformance.client import Client, body_of, error_of, running, until
from tests.conformance.client import seqs_of as seqs_read
from tests.conformance.queue_client import LONG_MS, SHORT_MS, Counts, Queue, data_of, deliveries_of, new_queue, seqs_of
from tests.conformance.queues.calls import skipped
from tests.conformance.router_client import connect_topics, metric
from tests.conformance.router_pairs import at_once, has, paired, settle
from tests.conformance.sse import Covered, watching

# State, lists and metrics


def test_the_state_of_a_queue_has_its_counters_and_that_of_a_log_has_none(client: Client, topic: str) -> None:
    queue = new_queue(client, *range(5))
    queue.claim(most=3)
    queue.nack(1, delay_ms=LONG_MS)
    expected = {"ready": 2, "in_flight": 2, "delayed": 1, "dead_lettered": 0, "paused": False}
    state = client.state(queue.topic)
    assert (state["type"], state["queue"], state["count"]) == ("queue", expected, 5)
    assert client.state(queue.topic, touch="false")["queue"] == expected
    client.append(topic, 1)
    assert "queue" not in client.state(topic)
    body = body_of(client.get("/v0/topics", params={"prefix": queue.topic}))
    (entry,) = [entry for entry in body["topics"] if entry["topic"] == queue.topic]
    assert (entry["type"], entry["count"]) == ("queue", 5)


def test_the_config_of_a_queue_is_echoed(client: Client, topic: str) -> None:
    given = {
        "lease_ms": 5,
        "claim_jitter_ms": 10**6,
        "max_deliveries": 3,
        "dead_letter": "dead",
        "leases_durable": True,
    }
    kept = given | {"type": "queue", "lease_ms": 100, "claim_jitter_ms": 5000}
    assert client.put_topic(topic, type="queue", **given)["config"].items() >= kept.items()
    assert client.state(topic)["config"].items() >= kept.items()


@pytest.mark.parametrize(("made", "other"), [("queue", "log"), ("log", "queue")])
def test_a_topic_keeps_its_type_and_its_jobs(client: Client, topic: str, made: str, other: str) -> None:
    client.put_topic(topic, type=made)
    client.append(topic, 1, 2)
    if made == "queue":
        Queue(client, topic).claim()
    error_of(client.put(f"/v0/topics/{topic}", json={"type": other}), 409, "topic_exists_incompatible")
    assert seqs_read(client.read(topic)) == [1, 2]
    if made == "queue":
        assert Queue(client, topic).counts() == Counts(ready=1, in_flight=1)


def test_an_append_may_create_a_queue(client: Client, topic: str) -> None:
    client.append(topic, 1, config={"type": "queue"})
    assert Queue(client, topic).claim_one()["data"] == 1


def test_the_figures_of_queues(client: Client) -> None:
    def figures(queue: Queue | None = None) -> list[float]:
        names = ["queue_topics", "queue_leases_in_flight"]
        found = [metric(client, name) or 0 for name in names]
        if queue is not None:
            per_topic = ["topic_queue_ready", "topic_queue_in_flight"]
            found += [metric(client, name, topic=queue.topic) or 0 for name in per_topic]
        return found

    topics, leases = figures()
    queue = new_queue(client, *range(5))
    queue.claim(most=3)
    queue.nack(3, delay_ms=LONG_MS)
    # Leases of other tests may have come to their end.
    found = figures(queue)
    assert found[0] == topics + 1
    assert found[1] <= leases + 2
    assert found[2:] == [2, 2]
    queue.ack(1, 2)
    assert figures(queue)[2:] == [2, 0]
    client.delete_topic(queue.topic)
    assert metric(client, "topic_queue_ready", topic=queue.topic) is None
    assert figures()[0] == topics


def test_the_figures_of_leases(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("log")
        first, second = new_queue(client, *range(4)), new_queue(client, *range(4))
        first.claim(most=3)
        second.claim(most=2, lease_ms=SHORT_MS)
        assert metric(client, "queue_topics") == 2
        assert metric(client, "topic_queue_ready", topic="log") in (None, 0)
        time.sleep(0.15)
        assert second.counts() == Counts(ready=4)
        assert metric(client, "queue_leases_in_flight") == 3
        client.delete_topic(first.topic)
        assert (metric(client, "queue_topics"), metric(client, "queue_leases_in_flight")) == (1, 0)


# Readers, writers and routers


def test_readers_see_the_jobs_and_take_none(client: Client) -> None:
    queue = new_queue(client, *range(4))
    with watching(client, queue.topic) as events:
        found = Covered(queue.topic).take(events.until_caught_up())
        queue.claim(most=3)
        queue.nack(2, delay_ms=LONG_MS)
        before = queue.counts()
        queue.has_left(1, 2, 3, 4)
        assert body_of(client.get(f"/v0/topics/{queue.topic}/diff?from_seq=1"))["caught_up"] is True
        assert queue.counts() == before == Counts(ready=1, in_flight=2, delayed=1)
        queue.ack(1)
        queue.append(4)
        found.take(events.until_seq(queue.topic, 5))
    assert found.data == [0, 1, 2, 3, 4]
    with watching(client, queue.topic) as events:
        later = Covered(queue.topic).take(events.until_caught_up())
    assert (later.data, later.reasons) == ([1, 2, 3, 4], [])
    queue.has_left(2, 3, 4, 5)


def test_a_repeated_append_is_one_job(client: Client, queue: Queue) -> None:
    queue.append("a", idempotency_key="k")
    queue.append("a", idempotency_key="k")
    assert data_of(queue.claim(most=5)) == ["a"]
    queue.ack(1)
    assert client.append(queue.topic, "a", idempotency_key="k")["deduped"] is True
    assert queue.claim(most=5) == []
    assert queue.counts() == Counts()


def test_what_was_acked_on_a_source_is_claimed_at_once(client: Client, durability: str) -> None:
    pair = paired(client, {"durability": durability}, {"type": "queue", "durability": durability})
    queue = Queue(client, pair.dest)
    for number in range(5):
        pair.append(number)
        at_once(lambda: data_of(queue.claim()), [number])
    assert queue.ack(*range(1, 6))["acked"] == 5
    settle(client, pair.router)
    assert queue.counts() == Counts()
    assert client.state(pair.source)["count"] == 5


def test_the_state_of_a_queue_counts_what_was_acked_on_its_source(client: Client) -> None:
    pair = paired(client, dest={"type": "queue"})
    for number in range(1, 4):
        pair.append("x")
        at_once(lambda: Queue(client, pair.dest).counts(), Counts(ready=number))


def test_jobs_pass_through_a_chain_of_queues(client: Client) -> None:
    queues = [new_queue(client) for _ in range(3)]
    routers = connect_topics(client, *[queue.topic for queue in queues])
    queues[0].append(*range(5))
    at_once(lambda: data_of(queues[2].claim("last", most=3)), [0, 1, 2])
    settle(client, *routers)
    # What a queue has passed on goes its own way.
    queues[0].claim("first", most=5)
    queues[0].ack(*range(1, 6), node="first")
    assert [queue.counts() for queue in queues] == [Counts(), Counts(ready=5), Counts(ready=2, in_flight=3)]
    has(client, queues[1].topic, *range(5))


def test_an_ack_makes_room_for_what_a_router_brings(client: Client) -> None:
    pair = paired(client, dest={"type": "queue", "discard": "reject", "cap_records": 2})
    queue = Queue(client, pair.dest)
    pair.append(*range(5))
    taken: list[int] = []

    def drain() -> bool:
        jobs = queue.claim(most=2)
        taken.extend(data_of(jobs))
        if jobs:
            queue.ack(*seqs_of(jobs))
        return len(taken) == 5

    until(drain)
    assert taken == list(range(5))


def test_a_queue_is_empty_when_everything_is_acked(client: Client) -> None:
    queue = new_queue(client, 1, 2)
    queue.claim(most=2)
    queue.ack(1)
    error_of(client.delete(f"/v0/topics/{queue.topic}?if_empty=true"), 409, "topic_not_empty")
    queue.ack(2)
    assert client.delete_topic(queue.topic, if_empty="true")["deleted"] is True


def test_jobs_are_worked_off_when_the_disk_is_nearly_full(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        topic = new_queue(client, *range(5)).topic
        client.daemon.end()
    with running(tmp_path, min_free_bytes="1000TiB") as client:
        queue = Queue(client, topic)
        error_of(client.send_append(topic, 5), 503, "read_only")
        assert seqs_of(queue.claim(most=3)) == [1, 2, 3]
        assert queue.extend(1)["extended"] == 1
        assert queue.nack(2)["nacked"] == 1
        assert queue.ack(1, 3)["acked"] == 2
        assert queue.counts() == Counts(ready=3)


def test_a_new_instance_knows_nothing_of_the_old_leases(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, durability=durability)
    old = queue.claim(most=2)
    queue.nack(2, delay_ms=200)
    client.delete_topic(queue.topic)
    client.put_topic(queue.topic, type="queue", durability=durability)
    assert queue.counts() == Counts()
    queue.append("new", "newer", "newest")
    assert skipped(queue.ack(1, 2)) == [1, 2]
    jobs = queue.claim(most=2)
    assert deliveries_of(jobs) == {1: 1, 2: 1}
    assert data_of(jobs) == ["new", "newer"]
    assert skipped(queue.ack(1, 2, lease_ids=[job["lease_id"] for job in old])) == [1, 2]
    time.sleep(0.25)
    assert queue.counts() == Counts(ready=1, in_flight=2)
