"""Consumers 6: a topic with a schema takes only what fits it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, invalid, running, until
from tests.conformance.websocket import WebSocket

LINES = {"content-type": "application/x-ndjson"}
ORDER = {"type": "object", "properties": {"total": {"type": "number", "minimum": 0}}, "required": ["total"]}


def violation(response: Any) -> Any:
    detail = error_of(response, 422, "schema_violation")["detail"]
    assert detail["message"]
    return {name: value for name, value in detail.items() if name != "message"}


def test_a_record_that_breaks_the_schema_is_refused_with_its_whole_append(
    client: Client, topic: str, durability: str
) -> None:
    assert client.put_topic(topic, durability=durability, schema=ORDER)["config"]["schema"] == ORDER
    assert client.state(topic)["config"]["schema"] == ORDER
    client.append(topic, {"total": 1}, {"total": 2.5})
    answer = client.send_append(topic, {"total": 3}, {"total": -1}, 5)
    assert violation(answer) == {"record": 1, "path": "/total"}
    assert violation(client.send_append(topic, 5)) == {"record": 0, "path": ""}
    assert data_of(client.read(topic)) == [{"total": 1}, {"total": 2.5}]
    assert client.append(topic, {"total": 3})["seqs"] == [3]


def test_there_is_none_by_default_and_null_removes_it(client: Client, topic: str) -> None:
    assert client.put_topic(topic)["config"]["schema"] is None
    client.append(topic, 1)
    client.put_topic(topic, schema=ORDER)
    assert client.put_topic(topic, ttl_ms=0)["config"]["schema"] == ORDER
    assert data_of(client.read(topic)) == [1]  # what was there is not judged
    violation(client.send_append(topic, 1))
    client.put_topic(topic, schema=None)
    client.append(topic, 2)


@pytest.mark.parametrize(
    "schema",
    [1, "x", [], True, {"type": "x"}, {"$ref": "https://example.invalid/"}, {"pattern": "(?=a)"}, {"$ref": "#"}],
    ids=str,
)
def test_a_bad_schema_is_400(client: Client, topic: str, schema: Any) -> None:
    invalid(client.put(f"/v0/topics/{topic}", json={"schema": schema}), "schema")
    invalid(client.send_append(topic, 1, config={"schema": schema}), "config.schema")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_schemas_that_differ_in_the_kind_of_a_number_are_different(client: Client, topic: str) -> None:
    for const in (1, True, 0, False):
        assert client.put_topic(topic, schema={"const": const})["config"]["schema"]["const"] is const
        client.append(topic, const)
        violation(client.send_append(topic, not const if isinstance(const, bool) else bool(const)))


def test_a_refused_append_makes_no_topic_and_leaves_no_key(client: Client, topic: str) -> None:
    config = {"schema": ORDER}
    violation(client.send_append(topic, 5, config=config, idempotency_key="k"))
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    done = client.append(topic, {"total": 1}, config=config, idempotency_key="k")
    assert (done["created"], done["deduped"]) == (True, False)
    # A known key comes before the schema, a missing topic too, caps after it.
    assert client.append(topic, 5, idempotency_key="k")["deduped"] is True
    error_of(client.send_append(f"{topic}-none", 5, config=config, create=False), 404, "topic_not_found")
    client.put_topic(topic, cap_records=1, discard="reject")
    violation(client.send_append(topic, 5))
    error_of(client.send_append(topic, {"total": 1}), 422, "topic_full")


def test_an_upload_names_the_line(client: Client, topic: str) -> None:
    client.put_topic(topic, schema=ORDER)
    lines = [json.dumps({"data": {"total": n}}) for n in range(2500)]
    lines[1700] = '{"data": {"total": "x"}, "tag": "t"}'
    lines.insert(100, "")
    answer = client.post(f"/v0/topics/{topic}", content="\n".join(lines), headers=LINES)
    assert violation(answer) == {"line": 1702, "path": "/total", "committed": 1000, "last_seq": 1000}
    assert client.state(topic)["count"] == 1000


def test_a_stage_is_judged_when_it_is_uploaded(client: Client, topic: str) -> None:
    client.put_topic(topic, schema=ORDER)
    stage = f"/v0/topics/{topic}?stage=s"
    violation(client.post(stage, json={"records": [{"data": {"total": 1}}, {"data": 5}]}))
    body_of(client.post(stage, json={"records": [{"data": {"total": 1}}]}), 200)
    client.put_topic(topic, schema={"type": "string"})
    violation(client.post(stage, json={"records": [{"data": {"total": 1}}]}))
    commit = {"stages": ["s"], "idempotency_key": "k"}
    assert body_of(client.post(f"/v0/topics/{topic}/commit", json=commit), 200)["count"] == 1
    assert data_of(client.read(topic)) == [{"total": 1}]


def test_copies_that_break_it_are_skipped_with_a_hole(client: Client, topic: str) -> None:
    client.put_topic(topic)
    client.put_topic(f"{topic}-orders", schema=ORDER)
    body_of(client.put(f"/v0/routers/{topic}>r", json={"source": topic, "dest": f"{topic}-orders"}), 201)
    client.append(topic, {"total": 1}, 5, {"total": 2}, "x", "y", {"total": 3})
    until(lambda: client.state(f"{topic}-orders")["head_seq"] == 6)
    told: list[Any] = []
    position = 0
    while not told or position < 6:
        answer = client.read(f"{topic}-orders", position)
        if answer["tombstone"]:
            gap = answer["tombstone"]
            told.append((gap["reason"], gap["gap_from"], gap["gap_to"]))
        told += data_of(answer)
        position = answer["next_from_seq"]
    assert told == [
        {"total": 1}, ("source_trim", 2, 2), {"total": 2}, ("source_trim", 4, 5), {"total": 3},
    ]  # fmt: skip


def test_a_dead_letter_is_not_judged(client: Client, topic: str) -> None:
    client.put_topic(f"{topic}-dead", schema=ORDER)
    client.put_topic(topic, type="queue", max_deliveries=1, dead_letter=f"{topic}-dead", lease_ms=100)
    client.append(topic, "job")
    for _ in range(2):
        client.post(f"/v0/topics/{topic}/claim", json={"node": "w", "wait_ms": 2000})
        time.sleep(0.15)
    until(lambda: data_of(client.read(f"{topic}-dead")) == ["job"])


def test_a_publish_is_judged(client: Client, topic: str) -> None:
    client.put_topic(topic, schema=ORDER)
    with WebSocket(client) as socket:
        refused = socket.refused("schema_violation", "publish", topic=topic, records=[{"data": {"total": -1}}])
        assert (refused["detail"]["record"], refused["detail"]["path"]) == (0, "/total")
        assert socket.publish(topic, {"total": 1})["count"] == 1


def test_large_batches_are_judged_while_others_are_served(client: Client, topic: str) -> None:
    client.put_topic(topic, schema=ORDER)
    batch = [{"total": n} for n in range(10_000)]
    assert client.append(topic, *batch)["count"] == 10_000
    batch[9_999] = {"total": -1}
    assert violation(client.send_append(topic, *batch)) == {"record": 9_999, "path": "/total"}
    assert client.state(topic)["count"] == 10_000


def test_after_a_restart_it_is_the_same(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("t", schema=ORDER, durability="fsync")
        client.append("t", {"total": 1})
        client = client.daemon.restart(signal.SIGKILL)
        assert client.state("t")["config"]["schema"] == ORDER
        violation(client.send_append("t", 5))
        client.post("/v0/admin/checkpoint")
        client.put_topic("t", ttl_ms=10**9)
        client = client.daemon.restart(signal.SIGTERM)
        violation(client.send_append("t", 5))
