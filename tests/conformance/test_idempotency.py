"""Section 1, idempotency: what is repeated is not done again."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.client import JSON_TYPE, Client, body_of, data_of, error_of, fresh_name, invalid

SEVEN_DAYS_MS = 7 * 24 * 3600 * 1000


def test_an_identical_put_changes_nothing(client: Client, topic: str) -> None:
    first = client.put_topic(topic, ttl_ms=5000, cap_records=7)
    again = client.put_topic(topic, ttl_ms=5000, cap_records=7)
    assert (first["created"], again["created"]) == (True, False)
    assert first["config"] == again["config"]


def test_deleting_nothing_is_a_success(client: Client, topic: str) -> None:
    answer = client.delete_topic(topic)
    assert answer["topic"] == topic
    assert answer["deleted"] is False
    assert answer["routers_removed"] == []


def test_a_repeat_returns_the_seqs_of_the_first_call(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "before")
    first = client.append(topic, "a", "b", idempotency_key="k")
    assert (first["deduped"], first["seqs"], first["count"]) == (False, [2, 3], 2)
    client.append(topic, "after")
    again = client.append(topic, "a", "b", idempotency_key="k")
    expected = {"first_seq": 2, "last_seq": 3, "seqs": [2, 3], "count": 2, "head_seq": 4}
    assert {name: again[name] for name in expected} == expected
    assert (again["deduped"], again["created"], again["topic"]) == (True, False, topic)
    assert data_of(client.read(topic)) == ["before", "a", "b", "after"]


def test_a_repeat_with_other_content_appends_nothing(client: Client, topic: str) -> None:
    client.append(topic, "a", idempotency_key="k")
    again = client.append(topic, "x", "y", "z", idempotency_key="k")
    assert (again["deduped"], again["seqs"], again["count"]) == (True, [1], 1)
    assert data_of(client.read(topic)) == ["a"]


def test_a_repeat_of_the_call_that_created_the_topic_created_nothing(client: Client, topic: str) -> None:
    assert client.send_append(topic, 1, idempotency_key="k").status_code == 201
    again = client.send_append(topic, 1, idempotency_key="k")
    assert (again.status_code, again.json()["created"], again.json()["deduped"]) == (200, False, True)


def test_a_repeat_without_seqs_leaves_them_out(client: Client, topic: str) -> None:
    client.append(topic, 1, idempotency_key="k")
    body = {"records": [{"data": 1}], "idempotency_key": "k"}
    again = body_of(client.post(f"/v0/topics/{topic}?return_seqs=false", json=body))
    assert "seqs" not in again
    assert (again["first_seq"], again["last_seq"], again["deduped"]) == (1, 1, True)


def test_the_header_is_as_good_as_the_body_and_the_body_wins(client: Client, topic: str) -> None:
    def append(header: str | None, body: str | None) -> bool:
        content: dict[str, object] = {"records": [{"data": 1}]}
        if body is not None:
            content["idempotency_key"] = body
        headers = {} if header is None else {"Idempotency-Key": header}
        return bool(body_of(client.post(f"/v0/topics/{topic}", json=content, headers=headers), 200, 201)["deduped"])

    assert append("h", None) is False
    assert append("h", None) is True
    assert append(None, "h") is True
    assert append("h", "b") is False
    assert append(None, "b") is True
    assert append("other", "b") is True
    assert append("other", None) is False


def test_a_key_has_1_to_256_characters(client: Client, topic: str) -> None:
    for key in ("x", "x" * 256, "é" * 256, "😀" * 256):
        assert client.append(topic, 1, idempotency_key=key)["deduped"] is False
        assert client.append(topic, 1, idempotency_key=key)["deduped"] is True
    for key in ("", "x" * 257):
        invalid(client.send_append(topic, 1, idempotency_key=key), "idempotency_key")
    headers = {"Idempotency-Key": "x" * 257}
    error_of(
        client.post(f"/v0/topics/{topic}", json={"records": [{"data": 1}]}, headers=headers), 400, "invalid_request"
    )
    assert client.state(topic)["head_seq"] == 4


def test_a_key_belongs_to_its_topic(client: Client, topic: str) -> None:
    client.append(topic, 1, idempotency_key="k")
    assert client.append(fresh_name(), 1, idempotency_key="k")["deduped"] is False


def test_a_key_goes_with_its_topic(client: Client, topic: str) -> None:
    client.append(topic, 1, idempotency_key="k")
    client.delete_topic(topic)
    again = client.append(topic, "new", idempotency_key="k")
    assert (again["deduped"], again["created"], again["seqs"]) == (False, True, [1])


def test_a_key_stays_when_its_records_are_deleted(client: Client, topic: str) -> None:
    client.append(topic, 1, idempotency_key="k")
    client.delete_records(topic, before_seq=2)
    again = client.append(topic, 1, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (True, [1])
    assert client.state(topic)["count"] == 0


def test_a_key_is_forgotten_after_the_window(client: Client, topic: str) -> None:
    client.put_topic(topic, idempotency_window_ms=1500)
    client.append(topic, 1, idempotency_key="k")
    assert client.append(topic, 1, idempotency_key="k")["deduped"] is True
    time.sleep(1.7)
    again = client.append(topic, 1, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (False, [2])


def test_a_window_of_seven_days_is_the_longest(client: Client, topic: str) -> None:
    config = client.put_topic(topic, idempotency_window_ms=SEVEN_DAYS_MS)["config"]
    assert config["idempotency_window_ms"] == SEVEN_DAYS_MS
    too_long = {"idempotency_window_ms": SEVEN_DAYS_MS + 1}
    invalid(client.put(f"/v0/topics/{topic}", json=too_long), "idempotency_window_ms")
    invalid(client.put(f"/v0/topics/{fresh_name()}", json=too_long), "idempotency_window_ms")
    invalid(client.send_append(fresh_name(), 1, config=too_long), "idempotency_window_ms")


def test_a_call_that_failed_is_not_remembered(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=1, discard="reject")
    client.append(topic, 1)
    error_of(client.send_append(topic, 2, idempotency_key="k"), 422, "topic_full")
    client.delete_records(topic, before_seq=2)
    again = client.append(topic, 2, idempotency_key="k")
    assert (again["deduped"], again["seqs"]) == (False, [2])


def test_a_repeat_needs_no_room(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=1, discard="reject")
    client.append(topic, 1, idempotency_key="k")
    error_of(client.send_append(topic, 2), 422, "topic_full")
    assert client.append(topic, 1, idempotency_key="k")["deduped"] is True


def test_of_concurrent_repeats_one_is_the_first(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    for key in ("p", "q", "r"):
        with ThreadPoolExecutor(16) as pool:
            calls = [pool.submit(client.append, topic, number, idempotency_key=key) for number in range(16)]
            answers = [call.result() for call in calls]
        assert sorted(answer["deduped"] for answer in answers) == [False] + [True] * 15
        assert len({tuple(answer["seqs"]) for answer in answers}) == 1
    assert client.state(topic)["head_seq"] == 3


def test_of_concurrent_repeats_to_a_missing_topic_one_is_the_first(client: Client, topic: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(client.send_append, topic, number, idempotency_key="k") for number in range(16)]
        answers = [call.result() for call in calls]
    assert sorted(answer.json()["deduped"] for answer in answers) == [False] + [True] * 15
    for answer in answers:
        body = body_of(answer, 200, 201)
        assert body["seqs"] == [1]
        assert body["created"] is (answer.status_code == 201)
        assert not (body["created"] and body["deduped"])
    assert client.state(topic)["head_seq"] == 1


def test_of_concurrent_repeats_none_waits_for_one_that_failed(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=1, discard="reject")
    client.append(topic, "full")
    with ThreadPoolExecutor(16) as pool:
        calls = [pool.submit(client.send_append, topic, number, idempotency_key="k") for number in range(16)]
        for call in calls:
            error_of(call.result(), 422, "topic_full")
    assert client.state(topic)["head_seq"] == 1


def test_a_key_may_be_sent_with_a_body_in_bytes(client: Client, topic: str) -> None:
    content = b'{"idempotency_key":"\\u006b","records":[{"data":1}]}'
    client.post(f"/v0/topics/{topic}", content=content, headers={"content-type": JSON_TYPE})
    assert client.append(topic, 2, idempotency_key="k")["deduped"] is True


@pytest.mark.parametrize("key", ["a b", "日本", "\n", "\x00", "null"])
def test_a_key_may_hold_any_character(client: Client, topic: str, key: str) -> None:
    assert client.append(topic, 1, idempotency_key=key)["deduped"] is False
    assert client.append(topic, 1, idempotency_key=key)["deduped"] is True
