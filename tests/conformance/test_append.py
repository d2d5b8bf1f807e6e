"""Section 4: what an append stores and answers."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, invalid, seqs_of

ANSWER = {"topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped", "performance"}


def test_an_append_answers_with_its_seqs(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "x")
    answer = body_of(client.send_append(topic, "a", "b", "c"), 200)
    assert set(answer) == ANSWER
    expected = {"topic": topic, "first_seq": 2, "last_seq": 4, "seqs": [2, 3, 4], "head_seq": 4, "count": 3}
    assert {name: answer[name] for name in expected} == expected
    assert (answer["created"], answer["deduped"]) == (False, False)


def test_an_append_creates_what_is_missing(client: Client, topic: str) -> None:
    answer = body_of(client.send_append(topic, 1), 201)
    assert (answer["created"], answer["seqs"]) == (True, [1])
    assert body_of(client.send_append(topic, 1), 200)["created"] is False
    assert body_of(client.send_append(fresh_name(), 1, create=True), 201)["created"] is True


def test_an_append_that_must_not_create_does_not(client: Client, topic: str) -> None:
    error_of(client.send_append(topic, 1, create=False), 404, "topic_not_found")
    error_of(client.send_append(topic, 1, create=False, config={"ttl_ms": 5}), 404, "topic_not_found")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    client.put_topic(topic)
    assert body_of(client.send_append(topic, 1, create=False), 200)["seqs"] == [1]


def test_a_client_reads_its_own_write_at_once(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    for number in range(30):
        seq = client.append(topic, number)["first_seq"]
        assert data_of(client.read(topic, seq - 1)) == [number]


def test_seqs_can_be_left_out(client: Client, topic: str) -> None:
    answer = body_of(client.post(f"/v0/topics/{topic}?return_seqs=0", json={"records": [{"data": 1}] * 3}), 201)
    assert set(answer) == ANSWER - {"seqs"}
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (1, 3, 3)


def test_a_record_is_read_with_all_that_was_written(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    before = time.time_ns() // 1_000_000
    client.append(topic, records=[{"data": {"x": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}])
    after = time.time_ns() // 1_000_000
    full, bare = client.read(topic, include_tags=True)["records"]
    assert before - 5 <= full.pop("$ts") <= bare.pop("$ts") <= after + 5
    assert full == {"$seq": 1, "$tag": "t", "$node": "n", "meta": {"k": "v"}, "data": {"x": 1}}
    assert bare == {"$seq": 2, "data": None}


def test_the_node_of_the_call_is_for_records_without_one(client: Client, topic: str) -> None:
    client.append(topic, node="call", records=[{"data": 1}, {"data": 2, "node": "own"}, {"data": 3}])
    assert [record["$node"] for record in client.read(topic)["records"]] == ["call", "own", "call"]


def test_data_is_required(client: Client, topic: str) -> None:
    invalid(client.send_append(topic, records=[{"data": 1}, {"tag": "t"}]), "data")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"data": 1, "tag": "t" * 257},
        {"data": 1, "node": "n" * 129},
        {"data": 1, "meta": {"k": 5}},
        {"data": 1, "meta": {"_topics_x": "v"}},
        {"data": "x" * (1 << 20)},
        None,
        7,
        [],
    ],
    ids=lambda bad: str(bad)[:40],
)
def test_one_bad_record_refuses_all(client: Client, topic: str, bad: Any) -> None:
    client.put_topic(topic)
    error_of(client.send_append(topic, records=[{"data": 1}, bad, {"data": 2}]), 400)
    error_of(client.send_append(topic, records=[{"data": 1}] * 50 + [bad]), 400)
    assert client.state(topic)["head_seq"] == 0
    assert client.append(topic, 1)["seqs"] == [1]


def test_an_append_without_records_is_400(client: Client, topic: str) -> None:
    error_of(client.send_append(topic, records=[]), 400)
    invalid(client.post(f"/v0/topics/{topic}", json={}), "records")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_batch_holds_up_to_ten_thousand_records(client: Client, topic: str) -> None:
    answer = client.append(topic, *range(10_000))
    assert (answer["count"], answer["seqs"]) == (10_000, list(range(1, 10_001)))
    error_of(client.send_append(topic, *range(10_001)), 400, "batch_too_large")
    assert client.state(topic)["head_seq"] == 10_000


@pytest.mark.parametrize(("field", "limit"), [("tag", 256), ("node", 128)])
def test_tag_and_node_are_limited_in_bytes(client: Client, topic: str, field: str, limit: int) -> None:
    for text in ("x" * limit, "é" * (limit // 2), "😀" * (limit // 4)):
        client.append(topic, records=[{"data": 1, field: text}])
    for text in ("x" * (limit + 1), "é" * (limit // 2) + "x", "😀" * (limit // 4) + "x"):
        invalid(client.send_append(topic, records=[{"data": 1, field: text}]), field)
    assert client.state(topic)["head_seq"] == 3


def test_the_node_of_the_call_is_limited_too(client: Client, topic: str) -> None:
    invalid(client.send_append(topic, 1, node="x" * 129), "node")
    client.append(topic, 1, node="x" * 128)


def test_meta_holds_up_to_64_keys_and_16_kib(client: Client, topic: str) -> None:
    def send(meta: dict[str, str]) -> Any:
        return client.send_append(topic, records=[{"data": 1, "meta": meta}])

    body_of(send({str(number): "v" for number in range(64)}), 201)
    invalid(send({str(number): "v" for number in range(65)}), "meta")
    body_of(send({"k": "v" * 16_000}))
    invalid(send({"k": "v" * (16 * 1024 + 1)}), "meta")
    invalid(send({f"{number}": "v" * 300 for number in range(60)}), "meta")


@pytest.mark.parametrize("key", ["_topics", "_topics_x", "_topics.x"])
def test_reserved_keys_of_meta_are_refused(client: Client, topic: str, key: str) -> None:
    invalid(client.send_append(topic, records=[{"data": 1, "meta": {"a": "b", key: "v"}}]), "meta")
    client.append(topic, records=[{"data": 1, "meta": {"_topic": "v", "x_topics": "v", "_Topics": "v"}}])


def test_bytes_are_those_of_data_and_meta(client: Client, topic: str) -> None:
    client.append(topic, "abc")
    assert client.state(topic)["bytes"] == 5
    client.append(topic, records=[{"data": 7, "meta": {"key": "value"}}])
    assert client.state(topic)["bytes"] >= 5 + 1 + len("keyvalue")


def test_concurrent_appends_get_contiguous_seqs(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)

    def append(number: int) -> list[int]:
        seqs: list[int] = client.append(topic, *([number] * 5))["seqs"]
        return seqs

    with ThreadPoolExecutor(12) as pool:
        taken = list(pool.map(append, range(40)))
    assert all(seqs == list(range(seqs[0], seqs[0] + 5)) for seqs in taken)
    assert sorted(seq for seqs in taken for seq in seqs) == list(range(1, 201))
    answer = client.read(topic, limit=1000)
    assert seqs_of(answer) == list(range(1, 201))
    stamps = [record["$ts"] for record in answer["records"]]
    assert stamps == sorted(stamps)
    by_seq = dict(zip(seqs_of(answer), data_of(answer), strict=True))
    assert all({by_seq[seq] for seq in seqs} == {number} for number, seqs in enumerate(taken))


def test_of_concurrent_appends_one_creates(client: Client, topic: str) -> None:
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda number: client.send_append(topic, number).status_code, range(24)))
    assert sorted(statuses) == [200] * 23 + [201]
    assert client.state(topic)["head_seq"] == 24


def test_backpressure_may_be_disabled(client: Client, topic: str) -> None:
    assert client.append(topic, 1, disable_backpressure=True)["seqs"] == [1]


# Caps: discard "reject"


def test_what_does_not_fit_now_is_422_and_takes_no_seq(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, discard="reject", cap_records=3)
    client.append(topic, 1, 2)
    detail = error_of(client.send_append(topic, 3, 4), 422, "topic_full")["detail"]
    assert detail["cap_records"] == 3
    assert detail["cap_bytes"] == 0
    assert (detail["head_seq"], detail["earliest_seq"]) == (2, 1)
    assert client.append(topic, 3)["seqs"] == [3]
    error_of(client.send_append(topic, 4), 422, "topic_full")
    client.delete_records(topic, before_seq=2)
    assert client.append(topic, 4)["seqs"] == [4]
    assert data_of(client.read(topic)) == [2, 3, 4]


def test_bytes_that_do_not_fit_now_are_422(client: Client, topic: str) -> None:
    client.put_topic(topic, discard="reject", cap_bytes=10)
    client.append(topic, 12345)
    error_of(client.send_append(topic, 123456), 422, "topic_full")
    assert client.append(topic, 12345)["seqs"] == [2]
    error_of(client.send_append(topic, 1), 422, "topic_full")


def test_what_could_never_fit_is_400(client: Client, topic: str) -> None:
    client.put_topic(topic, discard="reject", cap_records=2, cap_bytes=10)
    error_of(client.send_append(topic, 1, 2, 3), 400, "record_too_large")
    error_of(client.send_append(topic, 12345678901), 400, "record_too_large")
    error_of(client.send_append(topic, 123456, 123456), 400, "record_too_large")
    assert client.append(topic, 1234567890)["seqs"] == [1]


def test_expired_records_leave_room(client: Client, topic: str) -> None:
    client.put_topic(topic, discard="reject", cap_records=1, ttl_ms=100)
    client.append(topic, 1)
    time.sleep(0.2)
    assert client.append(topic, 2)["seqs"] == [2]


def test_concurrent_appends_never_exceed_a_cap(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, discard="reject", cap_records=10)
    with ThreadPoolExecutor(12) as pool:
        statuses = list(pool.map(lambda number: client.send_append(topic, number).status_code, range(30)))
    assert sorted(statuses) == [200] * 10 + [422] * 20
    assert seqs_of(client.read(topic)) == list(range(1, 11))


def test_a_refused_append_may_leave_a_topic_but_no_record(client: Client, topic: str) -> None:
    config = {"discard": "reject", "cap_records": 1}
    error_of(client.send_append(topic, 1, 2, config=config), 400, "record_too_large")
    answer = client.get(f"/v0/topics/{topic}")
    assert answer.status_code == 404 or answer.json()["head_seq"] == 0


# Caps: discard "old"


def test_the_oldest_make_room(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=3)
    for number in range(1, 8):
        client.append(topic, number)
        state = client.state(topic)
        assert (state["count"], state["earliest_seq"]) == (min(number, 3), max(1, number - 2))
    assert data_of(client.read(topic)) == [5, 6, 7]


def test_the_oldest_make_room_by_bytes(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=10, cap_records=100)
    client.append(topic, 111, 222, 333)
    assert client.state(topic)["bytes"] == 9
    client.append(topic, 44)
    assert (client.state(topic)["bytes"], client.state(topic)["count"]) == (8, 3)
    client.put_topic(topic, cap_records=2)
    assert client.state(topic)["count"] == 2


def test_a_batch_larger_than_the_cap_is_stored_and_evicts_itself(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=2)
    answer = client.append(topic, *range(1, 6))
    assert (answer["count"], answer["seqs"], answer["head_seq"]) == (5, [1, 2, 3, 4, 5], 5)
    assert data_of(client.read(topic)) == [4, 5]
    state = client.state(topic)
    assert (state["count"], state["earliest_seq"], state["head_seq"]) == (2, 4, 5)


def test_a_record_larger_than_the_cap_evicts_itself(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=5)
    client.append(topic, 12)
    assert client.append(topic, 123456)["seqs"] == [2]
    state = client.state(topic)
    assert (state["count"], state["bytes"], state["earliest_seq"], state["head_seq"]) == (0, 0, 3, 2)


def test_deleted_records_count_towards_no_cap(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.tagged(topic, "a", "b", "b")
    client.delete_records(topic, match="b")
    client.append(topic, 4, 5)
    assert seqs_of(client.read(topic)) == [1, 4, 5]
