"""Consumers 7: one record by its seq, or why it is not there."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, error_of, invalid, running


def path(topic: str, seq: object) -> str:
    return f"/v0/topics/{topic}/records/{seq}"


def why(client: Client, topic: str, seq: int) -> str:
    """Why a record is not there."""
    detail = error_of(client.get(path(topic, seq)), 404, "record_not_found")["detail"]
    reason = detail.pop("reason")
    assert detail == {"topic": topic, "seq": seq}
    assert isinstance(reason, str)
    return reason


def fates(client: Client, topic: str) -> list[Any]:
    """The data of each record of a topic, or why it is not there, up to one past the head."""
    found: list[Any] = []
    for seq in range(1, client.state(topic)["head_seq"] + 2):
        answer = client.get(path(topic, seq))
        found.append(answer.json()["data"] if answer.status_code == 200 else why(client, topic, seq))
    return found


def test_it_is_the_record_of_a_diff_with_tag_and_meta(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, records=[{"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}])
    records = client.read(topic, include_tags=True)["records"]
    for record in records:
        answer = client.get(path(topic, record["$seq"]))
        assert answer.status_code == 200
        assert answer.json() == record


def test_its_data_comes_byte_for_byte(client: Client, topic: str) -> None:
    client.append_raw(topic, b'{"a":  1.50, "a": 1e999}')
    assert client.get(path(topic, 1)).content.endswith(b'"data":{"a":  1.50, "a": 1e999}}\n')


def test_a_record_that_is_not_there_has_a_reason(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    assert fates(client, topic) == ["not_yet"]
    client.tagged(topic, "a", "b", "c", "b", "d", "e")
    client.delete_records(topic, match="b")
    assert fates(client, topic) == ["a", "deleted", "c", "deleted", "d", "e", "not_yet"]
    client.put_topic(topic, cap_records=2)
    assert fates(client, topic) == ["evicted", "deleted", "evicted", "deleted", "d", "e", "not_yet"]
    client.delete_records(topic, before_seq=6)
    assert fates(client, topic) == ["evicted", "deleted", "evicted", "deleted", "deleted", "e", "not_yet"]


def test_a_record_expires(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, ttl_ms=50)
    client.append(topic, 1)
    time.sleep(0.1)
    assert why(client, topic, 1) == "expired"


def test_a_job_that_was_done_was_deleted(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.append(topic, "job")
    assert client.get(path(topic, 1)).json()["data"] == "job"
    client.post(f"/v0/topics/{topic}/claim", json={"node": "w"})
    client.post(f"/v0/topics/{topic}/ack", json={"node": "w", "seqs": [1]})
    assert why(client, topic, 1) == "deleted"


def test_a_copy_that_was_never_made_is_lost(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=1)
    client.append(topic, 1, 2, 3)
    client.put(f"/v0/routers/{topic}>copy", json={"source": topic, "dest": f"{topic}-copy", "from": "earliest"})
    client.read(f"{topic}-copy", wait_ms=5000)
    known = fates(client, f"{topic}-copy")
    assert set(known[:-2]) <= {"lost"}
    assert known[-2:] == [3, "not_yet"]


@pytest.mark.parametrize("seq", ["0", "-1", "x", "1.0", "18446744073709551616", "1" * 5000, "%31x", "\u0661", "+1"])
def test_a_seq_is_a_whole_number(client: Client, topic: str, seq: str) -> None:
    client.append(topic, 1)
    invalid(client.get(path(topic, seq)), "seq")


def test_the_highest_seq_has_not_come_yet(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert why(client, topic, 2**64 - 1) == "not_yet"
    assert client.get(path(topic, "%31")).json()["data"] == 1


def test_without_a_topic_there_is_no_record(client: Client, topic: str) -> None:
    error_of(client.get(path(topic, 1)), 404, "topic_not_found")


def test_after_a_restart_it_is_the_same(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("gone", durability="ephemeral")
        client.append("gone", 1, 2)
        client.put_topic("t", durability="fsync")
        client.tagged("t", "a", "b", "c", "b", "d", "e")
        client.delete_records("t", match="b")
        client.put_topic("t", cap_records=2)
        before = fates(client, "t")
        client.post("/v0/admin/checkpoint")
        assert fates(client, "t") == before
        client = client.daemon.restart(signal.SIGKILL)
        assert fates(client, "t") == before
        assert why(client, "gone", 1) == "lost"
