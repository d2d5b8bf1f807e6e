"""Jobs of queues that come later, fail, are urgent, paused or limited (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, error_of

YEAR_MS = 366 * 86_400_000


def call(client: Client, topic: str, name: str, **fields: Any) -> Any:
    return body_of(client.post(f"/v0/topics/{topic}/{name}", json=fields))


def claimed(client: Client, topic: str, most: int = 100, **fields: Any) -> list[int]:
    return [job["$seq"] for job in call(client, topic, "claim", node="w", max=most, **fields)["claimed"]]


def add(client: Client, topic: str, *records: dict[str, Any]) -> None:
    body_of(client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1, **record} for record in records]}))


def test_jobs_come_at_their_times_and_in_the_order_of_their_priorities(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    soon = int(time.time() * 1000) + 700
    add(client, topic, {"priority": 0}, {}, {"priority": 9}, {"delay_ms": YEAR_MS}, {"not_before": soon, "priority": 7})
    state = client.state(topic)
    assert (state["queue"]["ready"], state["queue"]["delayed"], state["count"]) == (3, 2, 5)
    assert claimed(client, topic) == [3, 2, 1]
    assert claimed(client, topic, wait_ms=10_000) == [5]
    assert time.time() * 1000 >= soon
    assert client.state(topic)["queue"]["delayed"] == 1


@pytest.mark.parametrize(
    ("record", "field"),
    [
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": 11 * YEAR_MS}, "delay_ms"),
        ({"delay_ms": "1"}, "delay_ms"),
        ({"not_before": 10**14}, "not_before"),
        ({"not_before": -1}, "not_before"),
        ({"delay_ms": 1, "not_before": 1}, "not_before"),
        ({"priority": 10}, "priority"),
        ({"priority": -1}, "priority"),
        ({"priority": 1.5}, "priority"),
    ],
)
def test_a_bad_field_of_a_job_is_named(client: Client, topic: str, record: dict[str, Any], field: str) -> None:
    client.put_topic(topic, type="queue")
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}, {"data": 2, **record}]})
    assert field in error_of(answer, 400, "invalid_request")["detail"]["field"]
    assert client.state(topic)["count"] == 0


@pytest.mark.parametrize("record", [{"delay_ms": 1}, {"not_before": 1}, {"priority": 5}])
def test_a_log_has_no_jobs(client: Client, topic: str, record: dict[str, Any]) -> None:
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1, **record}]})
    assert error_of(answer, 400, "invalid_request")["detail"]["field"] == f"records[0].{next(iter(record))}"
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_lines_and_transactions_have_jobs(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue", durability="fsync")
    lines = b'{"data":1}\n{"data":2,"priority":8}\n'
    body_of(client.post(f"/v0/topics/{topic}", content=lines, headers={"content-type": "application/x-ndjson"}))
    other = f"{topic}.other"
    appends = [{"topic": topic, "records": [{"data": 3, "priority": 9}]}, {"topic": other, "records": [{"data": 4}]}]
    body_of(client.post("/v0/transactions", json={"appends": appends}))
    assert claimed(client, topic) == [3, 2, 1]


def test_a_nack_says_what_becomes_of_a_job(client: Client, topic: str) -> None:
    dead = f"{topic}.dead"
    client.put_topic(topic, type="queue", retry={"delay_ms": 60_000}, dead_letter=dead)
    add(client, topic, {}, {}, {})
    assert claimed(client, topic) == [1, 2, 3]
    call(client, topic, "nack", node="w", seqs=[1], error="late")
    call(client, topic, "nack", node="w", seqs=[2], count=False)
    call(client, topic, "nack", node="w", seqs=[3], dead=True, error="no such customer")
    answer = call(client, topic, "claim", node="w", max=9)
    assert [(job["$seq"], job["deliveries"]) for job in answer["claimed"]] == [(2, 1)]
    until = time.monotonic() + 10
    while not client.state(topic)["queue"]["dead_lettered"]:
        assert time.monotonic() < until
    (letter,) = body_of(client.get(f"/v0/topics/{dead}/diff"))["records"]
    assert letter["meta"]["$dead_letter_error"] == "no such customer"
    client.put_topic(topic, dead_letter=None)
    refused = client.post(f"/v0/topics/{topic}/nack", json={"node": "w", "seqs": [2], "dead": True})
    assert error_of(refused, 400, "invalid_request")["detail"]["field"] == "dead"


def test_a_queue_is_paused_and_resumed(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    add(client, topic, {})
    for _ in range(2):
        assert call(client, topic, "pause")["queue"]["paused"] is True
    answer = call(client, topic, "claim", node="w")
    assert (answer["claimed"], answer["paused"], answer["ready"]) == ([], True, 1)
    for _ in range(2):
        assert body_of(client.post(f"/v0/topics/{topic}/resume"))["queue"]["paused"] is False
    until = int(time.time() * 1000) + 60_000
    assert call(client, topic, "pause", until=until)["queue"]["paused_until"] == until
    assert call(client, topic, "pause", until=int(time.time() * 1000) - 1)["queue"]["paused"] is False
    assert claimed(client, topic) == [1]
    bad = client.post(f"/v0/topics/{topic}/pause", json={"until": 0})
    assert error_of(bad, 400, "invalid_request")["detail"]["field"] == "until"
    client.put_topic(f"{topic}.log")
    error_of(client.post(f"/v0/topics/{topic}.log/pause", json={}), 409, "not_a_queue")


def test_claims_get_no_more_than_the_limits(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue", max_in_flight=3, rate={"jobs": 4, "per_ms": 86_400_000})
    add(client, topic, *[{}] * 9)
    assert claimed(client, topic) == [1, 2, 3]
    call(client, topic, "ack", node="w", seqs=[1, 2])
    assert claimed(client, topic) == [4]
    client.put_topic(topic, rate=None)
    assert claimed(client, topic) == [5]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"retry": {"delay_ms": -1}}, "retry.delay_ms"),
        ({"retry": {"jitter": 1.5}}, "retry.jitter"),
        ({"retry": {"backoff": "linear"}}, "retry"),
        ({"retry": {"what": 1}}, "retry"),
        ({"rate": {"jobs": 0, "per_ms": 1}}, "rate.jobs"),
        ({"rate": {"jobs": 1}}, "rate"),
        ({"rate": {"jobs": 1, "per_ms": 86_400_001}}, "rate.per_ms"),
    ],
)
def test_bad_settings_are_named(client: Client, topic: str, config: dict[str, Any], field: str) -> None:
    answer = client.put(f"/v0/topics/{topic}", json={"type": "queue", **config})
    assert error_of(answer, 400, "invalid_request")["detail"]["field"].startswith(field)
