"""Unique keys of jobs (`docs/spec/consumers.md` section 5)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.client import Client, body_of, error_of


def unique(key: str, **fields: Any) -> dict[str, Any]:
    return {"data": key, "unique": {"key": key, **fields}}


def add(client: Client, topic: str, *records: dict[str, Any], query: str = "", **fields: Any) -> Any:
    return body_of(client.post(f"/v0/topics/{topic}{query}", json={"records": [*records], **fields}))


def test_a_duplicate_is_named_and_has_the_seq_of_the_job_that_is_there(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    first = add(client, topic, unique("a"), {"data": 1}, unique("b"))
    assert "duplicates" not in first
    answer = add(client, topic, unique("c"), unique("b", scope="queued"), unique("c"), unique("d"), idempotency_key="k")
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (4, 5, 2)
    assert (answer["seqs"], answer["duplicates"]) == ([4, 3, 4, 5], [1, 2])
    again = add(client, topic, unique("other"), idempotency_key="k")
    assert again["deduped"]
    assert {name: again[name] for name in ("first_seq", "last_seq", "count", "seqs", "duplicates")} == {
        name: answer[name] for name in ("first_seq", "last_seq", "count", "seqs", "duplicates")
    }
    nothing = add(client, topic, unique("a", scope="window", window_ms=60_000), query="?return_seqs=false")
    assert (nothing["first_seq"], nothing["last_seq"], nothing["count"], nothing["duplicates"]) == (None, None, 0, [0])
    assert "seqs" not in nothing
    assert client.state(topic)["head_seq"] == 5


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "key"),
        ({"key": ""}, "records[1].unique.key"),
        ({"key": "é" * 129}, "records[1].unique.key"),
        ({"key": "a", "scope": "other"}, "scope"),
        ({"key": "a", "scope": "window"}, "records[1].unique.window_ms"),
        ({"key": "a", "window_ms": 5}, "records[1].unique.window_ms"),
        ({"key": "a", "scope": "window", "window_ms": 0}, "records[1].unique.window_ms"),
        ({"key": "a", "scope": "window", "window_ms": 7 * 86_400_000 + 1}, "records[1].unique.window_ms"),
        ({"key": "a", "more": 1}, "more"),
        ("a", "unique"),
    ],
)
def test_a_bad_unique_is_named(client: Client, topic: str, value: Any, field: str) -> None:
    client.put_topic(topic, type="queue")
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}, {"data": 2, "unique": value}]})
    error = error_of(answer, 400)
    assert field in str(error["detail"]) + error["message"]
    assert client.state(topic)["head_seq"] == 0


def test_the_longest_key_and_window_are_taken(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    longest = unique("é" * 128, scope="window", window_ms=7 * 86_400_000)
    assert add(client, topic, longest, longest)["duplicates"] == [1]


def test_logs_transactions_stages_and_uploads_have_no_unique_keys(client: Client, topic: str) -> None:
    client.put_topic(topic)
    error = error_of(client.post(f"/v0/topics/{topic}", json={"records": [unique("a")]}), 400)
    assert error["detail"]["field"] == "records[0].unique"
    queue = f"{topic}.queue"
    client.put_topic(queue, type="queue")
    appends = [{"topic": topic, "records": [{"data": 1}]}, {"topic": queue, "records": [unique("a")]}]
    error = error_of(client.post("/v0/transactions", json={"appends": appends}), 400)
    assert "unique" in error["message"]
    answer = client.post(f"/v0/topics/{queue}?stage=s", json={"records": [unique("a")]})
    assert error_of(answer, 400)["detail"]["field"] == "records[0].unique"
    lines = b'{"data":1}\n{"data":2,"unique":{"key":"a"}}\n'
    answer = client.post(f"/v0/topics/{queue}", content=lines, headers={"content-type": "application/x-ndjson"})
    error = error_of(answer, 400)
    assert (error["detail"]["field"], error["detail"]["line"]) == ("unique", 2)
