"""Transactions over HTTP (`docs/spec/consumers.md` section 1): all appends are stored or none."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, invalid, running
from tests.conformance.keys import callers_of, forbidden

SETTINGS = {"wal_shards": 4, "max_batch_records": 50}


def of(topic: str, *data: Any, **fields: Any) -> dict[str, Any]:
    return {"topic": topic, "records": [{"data": value} for value in data], **fields}


def send(client: Client, *appends: Any, headers: Any = None, **fields: Any) -> httpx.Response:
    return client.post("/v0/transactions", json={"appends": list(appends), **fields}, headers=headers)


@pytest.fixture
def names() -> list[str]:
    return [fresh_name() for _ in range(5)]


def nothing_in(client: Client, *topics: str) -> None:
    for topic in topics:
        answer = client.get(f"/v0/topics/{topic}")
        assert answer.status_code == 404 or answer.json()["head_seq"] == 0, topic


def test_all_are_stored_and_the_answer_says_where(client: Client, names: list[str]) -> None:
    a, b, c, _, _ = names
    client.put_topic(a, durability="fsync")
    client.append(a, "before")
    answer = send(
        client,
        of(a, 1, 2),
        {"topic": b, "records": [{"data": 3, "tag": "t", "meta": {"k": "v"}}], "node": "n"},
        of(c, 4),
    )
    body = body_of(answer, 200)
    assert set(body) == {"appends", "deduped", "performance"}
    assert body["deduped"] is False
    assert body["appends"] == [
        {"topic": a, "first_seq": 2, "last_seq": 3, "seqs": [2, 3], "count": 2, "created": False},
        {"topic": b, "first_seq": 1, "last_seq": 1, "seqs": [1], "count": 1, "created": True},
        {"topic": c, "first_seq": 1, "last_seq": 1, "seqs": [1], "count": 1, "created": True},
    ]
    assert data_of(client.read(a)) == ["before", 1, 2]
    (record,) = client.read(b, include_tags=True)["records"]
    assert (record["data"], record["$tag"], record["$node"], record["meta"]) == (3, "t", "n", {"k": "v"})
    assert client.state(b)["synced_seq"] == 1  # of class disk, and synced all the same


def test_a_repeat_under_a_key_appends_nothing_and_keys_of_appends_are_others(client: Client, names: list[str]) -> None:
    a, b, *_ = names
    client.append(a, "x", idempotency_key="k")
    first = body_of(send(client, of(a, 1), of(b, 2), idempotency_key="k"), 200)
    assert first["deduped"] is False
    again = body_of(send(client, of(a, 1), of(b, 2), headers={"Idempotency-Key": "k"}), 200)
    assert again["deduped"] is True
    assert [one["seqs"] for one in again["appends"]] == [one["seqs"] for one in first["appends"]]
    assert not any(one["created"] for one in again["appends"])
    assert body_of(send(client, of(b, 1), of(a, 2), idempotency_key="k"), 200)["deduped"] is False  # b's window
    assert (data_of(client.read(a)), data_of(client.read(b))) == (["x", 1, 2], [2, 1])


def test_repeats_at_the_same_time_append_once(client: Client, names: list[str]) -> None:
    a, b, *_ = names
    client.put_topic(a)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda: answers.append(send(client, of(a, 1), of(b, 2), idempotency_key="same").json()))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["deduped"] for answer in answers) == [False] + [True] * 5
    assert (data_of(client.read(a)), data_of(client.read(b))) == ([1], [2])


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
def test_classes_that_do_not_keep_what_they_acked_are_refused(
    client: Client, names: list[str], durability: str
) -> None:
    a, b, c, *_ = names
    client.put_topic(b, durability=durability)
    error = error_of(send(client, of(a, 1), of(b, 2)), 409, "topic_exists_incompatible")
    assert error["detail"]["topic"] == b
    error = error_of(
        send(client, of(a, 1), of(c, 2, config={"durability": durability})), 409, "topic_exists_incompatible"
    )
    assert error["detail"]["topic"] == c
    nothing_in(client, a, b, c)


def test_conditions_of_all_appends_hold_or_nothing_is_stored(client: Client, names: list[str]) -> None:
    a, b, c, _, _ = names
    client.append(a, "x", "y")
    fence = {"name": "leader", "token": 7}
    error = error_of(
        send(client, of(b, 1), of(a, 2, expected_head_seq=1), of(c, 3, fence=fence)), 409, "condition_failed"
    )
    assert error["detail"] == {"head_seq": 2, "topic": a}
    nothing_in(client, b, c)
    error = error_of(
        send(client, of(a, 2, expected_head_seq=2), of(c, 3, expected_head_seq=1)), 409, "condition_failed"
    )
    assert error["detail"] == {"head_seq": 0, "topic": c}
    assert client.get(f"/v0/topics/{c}").status_code == 404
    send(client, of(a, 2, expected_head_seq=2, fence=fence), of(c, 3, expected_head_seq=0, expected_tag_seqs={"t": 0}))
    assert (data_of(client.read(a)), data_of(client.read(c))) == (["x", "y", 2], [3])
    assert client.state(a)["fences"] == {"leader": 7}
    error = error_of(send(client, of(c, 4), of(a, 5, fence={"name": "leader", "token": 6})), 409, "fenced")
    assert error["detail"] == {"name": "leader", "token": 7, "topic": a}
    assert data_of(client.read(c)) == [3]


def test_a_schema_of_one_topic_refuses_all(client: Client, names: list[str]) -> None:
    a, b, c, *_ = names
    client.put_topic(b, schema={"type": "string"})
    error = error_of(send(client, of(a, 1), of(b, "x", 2)), 422, "schema_violation")
    assert (error["detail"]["topic"], error["detail"]["record"]) == (b, 1)
    error = error_of(send(client, of(a, 1), of(c, 2, config={"schema": {"type": "string"}})), 422, "schema_violation")
    assert error["detail"]["topic"] == c
    nothing_in(client, a, b, c)
    body_of(send(client, of(a, 1), of(b, "x")), 200)


def test_what_looks_like_a_condition_and_is_none_is_refused(client: Client, names: list[str]) -> None:
    a, b, *_ = names
    invalid(send(client, of(a, 1), of(b, 2), expected_head_seq=0), "expected_head_seq")
    invalid(send(client, of(a, 1), of(b, 2, expected_epoch=1)), "appends[1].expected_epoch")
    nothing_in(client, a, b)


def test_one_append_that_is_refused_refuses_all(client: Client, names: list[str]) -> None:
    a, b, c, *_ = names
    client.put_topic(b, durability="fsync", cap_records=1, discard="reject")
    client.append(b, 0)
    client.put_topic(a)
    error = error_of(send(client, of(a, 1), of(b, 2)), 422, "topic_full")
    assert error["detail"]["topic"] == b
    error = error_of(send(client, of(a, 1), of(c, 2, create=False)), 404, "topic_not_found")
    assert error["detail"]["topic"] == c
    nothing_in(client, a, c)
    assert data_of(client.read(b)) == [0]


def test_a_topic_that_must_not_be_made_is_told_before_conditions_and_makes_no_other(
    client: Client, names: list[str]
) -> None:
    a, b, c, *_ = names
    client.append(a, "x")
    failing = of(a, 1, expected_head_seq=7)
    error = error_of(send(client, of(b, 1), failing, of(c, 2, create=False)), 404, "topic_not_found")
    assert error["detail"]["topic"] == c
    error_of(send(client, of(b, 1), of(a, 1), of(c, 2, create=False)), 404, "topic_not_found")
    assert [client.get(f"/v0/topics/{name}").status_code for name in (b, c)] == [404, 404]
    assert data_of(client.read(a)) == ["x"]


def test_a_topic_with_a_cap_evicts_for_a_transaction(client: Client, names: list[str]) -> None:
    a, b, *_ = names
    client.put_topic(a, cap_records=3)
    for i in range(4):
        body_of(send(client, of(a, i, i), of(b, i)), 200)
    state = client.state(a)
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (3, 6, 8)


@pytest.mark.parametrize(
    ("appends", "field"),
    [
        ([], "appends"),
        ([of("a", 1)], "appends"),
        ([of(f"t{i}", 1) for i in range(33)], "appends"),
        ([of("a", 1), of("a", 2)], "appends"),
        ([of("a", 1), of("b c", 2)], "appends[1].topic"),
        ([of("a", 1), of("b")], "appends[1].records"),
        ([of("a", 1), of("b", 1, idempotency_key="k")], "appends[1].idempotency_key"),
        ([of("a", 1), of("b", 1, disable_backpressure=True)], "appends[1].disable_backpressure"),
        ([of("a", 1), of("b", 1, config={"ttl_ms": -1})], "appends[1].config.ttl_ms"),
        ([of("a", 1), of("b", 1, config={"type": "queue", "retention": "consumed"})], "appends[1].config.retention"),
        ([of("a", 1), {"topic": "b", "records": [{"data": 1, "tag": ""}]}], "appends[1].records[0].tag"),
        ([of("a", 1), {"records": [{"data": 1}]}], ""),
    ],
)
def test_bad_bodies(client: Client, appends: list[Any], field: str) -> None:
    refused = send(client, *appends)
    invalid(refused, field)
    detail = refused.json()["error"]["detail"]
    assert detail["field"] == (field or "appends[1].topic")
    assert detail.get("topic") == ("b" if field.startswith("appends[1]") and not field.endswith("topic") else None)
    nothing_in(client, "a", "b")


def test_the_limits_of_one_append_are_those_of_all_together(client: Client, names: list[str]) -> None:
    a, b, *_ = names
    error_of(send(client, of(a, *range(26)), of(b, *range(25))), 400, "batch_too_large")
    nothing_in(client, a, b)
    body_of(send(client, of(a, *range(25)), of(b, *range(25))), 200)


def test_a_strict_client_is_told_of_unknown_names(client: Client, names: list[str]) -> None:
    a, b, *_ = names
    strict = {"Topics-Strict": "1"}
    invalid(send(client, of(a, 1), of(b, 1), headers=strict, idempotency_keys="k"), "idempotency_keys")
    invalid(send(client, of(a, 1), of(b, 1, nodes="k"), headers=strict), "appends[1].nodes")
    body = {"appends": [of(a, 1), {"topic": b, "records": [{"data": 1, "tags": "x"}]}]}
    invalid(client.post("/v0/transactions", json=body, headers=strict), "appends[1].records[0].tags")
    body_of(send(client, of(a, 1), of(b, 1), headers=strict), 200)
    large = "x" * 400_000
    invalid(send(client, of(a, large), of(b, 1), headers=strict, colour=1), "colour")
    invalid(send(client, of(a, large), {"topic": b, "records": [{"data": 1, "tags": "x"}]}, headers=strict), "tags")
    body_of(send(client, of(a, large), of(b, 1), headers=strict), 200)
    body_of(send(client, of(a, 1, later=1), of(b, 1)), 200)


def test_each_name_needs_the_scope_write(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,ours:w:our-,reader:r") as client, callers_of(client) as callers:
        forbidden(send(callers["reader"], of("our-a", 1), of("our-b", 1)))
        forbidden(send(callers["ours"], of("our-a", 1), of("other", 1)))
        forbidden(send(callers["ours"], of("our-a", 1), of("our-b", 1, config={"ttl_ms": 5})))
        body_of(send(callers["ours"], of("our-a", 1), of("our-b", 1)), 200)


def test_a_key_of_a_transaction_over_other_topics_tells_nothing_of_them(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,ours:w:our-") as client, callers_of(client) as callers:
        body_of(send(callers["boss"], of("our-a", 1), of("secret", 1), idempotency_key="k"), 200)
        for _ in range(2):
            answer = send(callers["ours"], of("our-a", 2), of("our-b", 2), idempotency_key="k")
            invalid(answer, "idempotency_key")
            assert "secret" not in answer.text
        again = body_of(send(callers["boss"], of("our-a", 1), of("secret", 1), idempotency_key="k"), 200)
        assert again["deduped"] is True
        assert data_of(callers["boss"].read("our-a")) == [1]


def test_a_remembered_transaction_counts_once_for_each_of_its_topics(tmp_path: Path) -> None:
    with running(tmp_path, max_idempotency_keys=5) as client:
        for number in range(3):  # the first one begins below the limit, so the second may too
            answer = send(client, of("a", 1), of("b", 1), of("c", 1), idempotency_key=f"k{number}")
            if number < 2:
                body_of(answer, 200)
        error_of(answer, 429, "throttled")
        error_of(client.post("/v0/topics/a", json={"records": [{"data": 1}], "idempotency_key": "x"}), 429, "throttled")
        assert body_of(send(client, of("a", 1), of("b", 1), of("c", 1), idempotency_key="k0"), 200)["deduped"] is True


def test_a_killed_daemon_has_all_of_a_transaction_and_knows_its_key(tmp_path: Path) -> None:
    with running(tmp_path, wal_shards=4) as client:
        for i in range(20):
            body_of(send(client, of("a", i), of("b", i), of("c", i), idempotency_key=f"k{i}"), 200)
        again = client.daemon.restart(signal.SIGKILL)
        for topic in "abc":
            assert data_of(again.read(topic, limit=100)) == list(range(20))
        assert body_of(send(again, of("a", 7), of("b", 7), of("c", 7), idempotency_key="k7"), 200)["deduped"]
        again = client.daemon.restart(signal.SIGTERM)
        assert body_of(send(again, of("a", 7), of("b", 7), of("c", 7), idempotency_key="k7"), 200)["deduped"]


def test_transactions_beside_kills_are_there_in_all_topics_or_in_none(tmp_path: Path) -> None:
    with running(tmp_path, wal_shards=4, wal_file_bytes=65536, checkpoint_ms=200) as client:
        number = 0
        acked: set[int] = set()
        for _ in range(4):
            timer = threading.Timer(0.7, client.daemon.send_signal, [signal.SIGKILL])
            timer.start()
            while True:
                number += 1
                try:
                    answer = send(client, *(of(topic, number) for topic in "abcd"))
                except httpx.HTTPError:
                    break
                assert answer.status_code == 200
                acked.add(number)
            timer.join()
            client.daemon.wait()
            client = client.daemon.start()
            shown = [data_of(client.read(topic, limit=100_000)) for topic in "abcd"]
            assert shown[0] == shown[1] == shown[2] == shown[3]
            assert acked <= set(shown[0])
            for topic in "abcd":
                client.delete_records(topic, before_seq=1 << 40)
            acked.clear()
