"""Section 3: topics are created, looked at, listed and deleted."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, invalid, seqs_of, until

STATE = {
    "topic", "type", "epoch", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "synced_seq", "config",
    "effective_priority", "last_write_ts", "last_read_ts", "performance",
}  # fmt: skip
LISTED = {
    "topic", "type", "epoch", "head_seq", "earliest_seq", "count", "bytes", "durable", "durability",
    "effective_priority",
}  # fmt: skip


def test_a_put_creates_with_201_and_updates_with_200(client: Client, topic: str) -> None:
    made = body_of(client.put(f"/v0/topics/{topic}", json={}), 201)
    assert set(made) == {"topic", "created", "config", "performance"}
    assert (made["topic"], made["created"]) == (topic, True)
    updated = body_of(client.put(f"/v0/topics/{topic}", json={"ttl_ms": 9}), 200)
    assert set(updated) == {"topic", "created", "config", "performance"}
    assert (updated["created"], updated["config"]["ttl_ms"]) == (False, 9)


def test_the_state_of_a_topic_that_was_never_written(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    state = client.state(topic, touch="false")
    assert set(state) == STATE
    assert (state["topic"], state["type"]) == (topic, "log")
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (0, 1, 1)
    assert (state["count"], state["bytes"], state["synced_seq"]) == (0, 0, 0)
    assert state["last_write_ts"] is None
    assert state["last_read_ts"] is None
    assert isinstance(state["epoch"], int)
    assert isinstance(state["effective_priority"], int)


def test_the_state_of_a_topic_with_records(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    before = time.time_ns() // 1_000_000
    client.append(topic, 1, "two", [3, 4])
    after = time.time_ns() // 1_000_000
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"]) == (3, 1, 4)
    assert (state["count"], state["bytes"]) == (3, len("1") + len('"two"') + len("[3,4]"))
    assert before - 5 <= state["last_write_ts"] <= after + 5


def test_synced_seq_tells_what_is_on_the_disk(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, 1, 2)
    if durability == "ephemeral":
        assert client.state(topic)["synced_seq"] == 0
    elif durability == "fsync":
        assert client.state(topic)["synced_seq"] == 2
    else:
        assert 0 <= client.state(topic)["synced_seq"] <= 2
        until(lambda: bool(client.state(topic)["synced_seq"] == 2))


def test_nothing_live_is_told_by_earliest_after_head(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    client.delete_records(topic, before_seq=100)
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (3, 4, 4, 0)


def test_a_read_and_a_touch_move_the_recency_clock(client: Client, topic: str) -> None:
    client.append(topic, 1)
    for _ in range(2):
        assert client.state(topic, touch="false")["last_read_ts"] is None
        assert client.state(topic, touch="0")["last_read_ts"] is None
    client.state(topic)
    touched = client.state(topic, touch="false")["last_read_ts"]
    assert isinstance(touched, int)
    time.sleep(0.02)
    assert client.state(topic, touch="false")["last_read_ts"] == touched
    client.read(topic)
    read = client.state(topic, touch="false")["last_read_ts"]
    assert read > touched
    time.sleep(0.02)
    client.state(topic, touch="true")
    assert client.state(topic, touch="false")["last_read_ts"] > read


def test_a_list_leaves_the_recency_clock_alone_unless_asked(client: Client, topic: str) -> None:
    client.append(topic, 1)
    client.get("/v0/topics", params={"prefix": topic})
    client.get("/v0/topics", params={"prefix": topic, "touch": "false"})
    assert client.state(topic, touch="false")["last_read_ts"] is None
    body_of(client.get("/v0/topics", params={"prefix": topic, "touch": "true"}))
    assert client.state(topic, touch="false")["last_read_ts"] is not None


def test_a_deleted_topic_is_gone(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, ttl_ms=10**9)
    client.append(topic, 1)
    answer = client.delete_topic(topic)
    assert set(answer) == {"topic", "deleted", "routers_removed", "performance"}
    assert (answer["topic"], answer["deleted"], answer["routers_removed"]) == (topic, True, [])
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    error_of(client.post(f"/v0/topics/{topic}/diff"), 404, "topic_not_found")
    assert client.delete_topic(topic)["deleted"] is False


def test_a_topic_created_again_is_another_instance(client: Client, topic: str, durability: str) -> None:
    epochs = []
    for _ in range(3):
        client.put_topic(topic, durability=durability, cap_records=4)
        assert client.append(topic, "a", "b")["seqs"] == [1, 2]
        epochs.append(client.state(topic)["epoch"])
        client.delete_topic(topic)
    assert epochs == sorted(set(epochs))
    client.append(topic, "c")
    assert client.state(topic)["config"]["cap_records"] == 0
    assert data_of(client.read(topic)) == ["c"]


def test_a_topic_with_records_is_not_deleted_if_it_must_be_empty(client: Client, topic: str) -> None:
    client.append(topic, 1)
    error_of(client.delete(f"/v0/topics/{topic}?if_empty=true"), 409, "topic_not_empty")
    assert data_of(client.read(topic)) == [1]
    client.delete_records(topic, before_seq=2)
    assert client.delete_topic(topic, if_empty="1")["deleted"] is True
    assert client.delete_topic(topic, if_empty="1")["deleted"] is False


def test_a_topic_whose_records_have_expired_is_empty(client: Client, topic: str) -> None:
    client.put_topic(topic, ttl_ms=20)
    client.append(topic, 1)
    time.sleep(0.05)
    assert client.delete_topic(topic, if_empty="true")["deleted"] is True


# Lists


def pages(client: Client, **query: Any) -> list[list[str]]:
    """The names on each page."""
    found: list[list[str]] = []
    while True:
        body = body_of(client.get("/v0/topics", params=query))
        assert set(body) - {"next_cursor"} == {"topics", "performance"}
        found.append([entry["topic"] for entry in body["topics"]])
        if "next_cursor" not in body:
            return found
        assert re.fullmatch("[A-Za-z0-9_-]+=*", body["next_cursor"])
        query["cursor"] = body["next_cursor"]


@pytest.fixture
def five(client: Client) -> list[str]:
    prefix = fresh_name("list") + ":"
    names = [prefix + name for name in ("B", "a", "a.", "a0", "z")]
    for name in reversed(names):
        client.put_topic(name)
    return names


def test_a_list_is_in_the_order_of_names(client: Client, five: list[str]) -> None:
    assert pages(client, prefix=five[0][:-1]) == [five]
    assert pages(client, prefix=five[0][:-1] + "a") == [five[1:4]]
    assert pages(client, prefix=five[0] + "none") == [[]]
    assert set(five) <= {name for page in pages(client, page_size=1000) for name in page}


def test_an_entry_of_a_list(client: Client, topic: str) -> None:
    client.put_topic(topic, durable=True, priority=7)
    client.append(topic, 1, 22)
    state = client.state(topic)
    (entry,) = body_of(client.get("/v0/topics", params={"prefix": topic}))["topics"]
    assert set(entry) == LISTED
    assert (entry["durable"], entry["durability"], entry["bytes"]) == (True, "fsync", 3)
    for name in LISTED - {"durable", "durability", "effective_priority"}:
        assert entry[name] == state[name]


@pytest.mark.parametrize(("size", "lengths"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (5, [5]), (6, [5])])
def test_a_list_comes_in_pages(client: Client, five: list[str], size: int, lengths: list[int]) -> None:
    found = pages(client, prefix=five[0][:-1], page_size=size)
    assert [len(page) for page in found] == lengths
    assert [name for page in found for name in page] == five


def test_a_cursor_is_valid_after_its_name_is_gone(client: Client, five: list[str]) -> None:
    query: dict[str, Any] = {"prefix": five[0][:-1], "page_size": 2}
    cursor = body_of(client.get("/v0/topics", params=query))["next_cursor"]
    for name in five[1:3]:
        client.delete_topic(name)
    client.put_topic(five[1])
    assert pages(client, **query, cursor=cursor) == [five[3:]]


@pytest.mark.parametrize("cursor", ["!", "a b", "*", "\x00", "é", "_____w", "//79"])
def test_a_corrupt_cursor_is_400(client: Client, cursor: str) -> None:
    invalid(client.get("/v0/topics", params={"cursor": cursor}), "cursor")


def test_the_page_size_is_clamped(client: Client, five: list[str]) -> None:
    prefix = five[0][:-1]
    for size in (0, -1, -1000):
        assert [len(page) for page in pages(client, prefix=prefix, page_size=size)] == [1] * 5
    many = fresh_name("many") + ":"
    for number in range(101):
        client.put_topic(f"{many}{number:03}")
    assert [len(page) for page in pages(client, prefix=many)] == [100, 1]
    for size in (101, 1001, 10**9):
        assert [len(page) for page in pages(client, prefix=many, page_size=size)] == [101]


@pytest.mark.parametrize("size", ["x", "1.5", "true", ""])
def test_a_page_size_that_is_no_number_is_400(client: Client, size: str) -> None:
    invalid(client.get("/v0/topics", params={"page_size": size}), "page_size")


def test_a_reader_of_the_old_instance_is_told(client: Client, topic: str) -> None:
    client.append(topic, "old")
    old = client.state(topic)["epoch"]
    client.delete_topic(topic)
    client.append(topic, "new", "newer")
    answer = client.read(topic, 1, epoch=old)
    assert answer["tombstone"]["reason"] == "recreated"
    assert seqs_of(answer) == [1, 2]
