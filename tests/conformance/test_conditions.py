"""Conditional appends and fences (`docs/spec/consumers.md` section 1)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, invalid, running
from tests.conformance.keys import asked_by_three
from tests.conformance.websocket import WebSocket

BOTH_WAYS = True


@pytest.fixture
def ws(client: Client) -> Iterator[WebSocket]:
    with WebSocket(client) as opened:
        yield opened


def fences(client: Client, topic: str) -> Any:
    return client.state(topic).get("fences")


def fenced(name: str, token: int) -> dict[str, Any]:
    return {"fence": {"name": name, "token": token}}


def remove(client: Client, topic: str, fence: str) -> httpx.Response:
    return client.delete(f"/v0/topics/{topic}/fences/{quote(fence, safe='')}")


def test_a_head_that_is_expected(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    assert client.append(topic, "a", expected_head_seq=0)["last_seq"] == 1
    error = error_of(client.send_append(topic, "b", expected_head_seq=0), 409, "condition_failed")
    assert error["detail"] == {"head_seq": 1}
    assert client.append(topic, "b", expected_head_seq=1)["last_seq"] == 2
    assert data_of(client.read(topic)) == ["a", "b"]


def test_tags_that_are_expected(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "x", "y", "x")
    tagged = {"records": [{"data": 1, "tag": "x"}]}
    error = error_of(client.send_append(topic, **tagged, expected_tag_seqs={"y": 2, "x": 1}), 409, "condition_failed")
    assert error["detail"] == {"tag": "x", "expected": 1, "actual": 3}
    assert client.append(topic, **tagged, expected_tag_seqs={"x": 3, "y": 2, "z": 0})["last_seq"] == 4
    client.delete_records(topic, match=["tag", "Eq", "x"])
    assert client.append(topic, **tagged, expected_tag_seqs={"x": 0})["last_seq"] == 5


def test_a_condition_on_a_topic_that_does_not_exist(client: Client, topic: str) -> None:
    for condition, detail in (
        ({"expected_head_seq": 3}, {"head_seq": 0}),
        ({"expected_tag_seqs": {"t": 3}}, {"tag": "t", "expected": 3, "actual": 0}),
    ):
        error = error_of(client.send_append(topic, 1, **condition), 409, "condition_failed")
        assert error["detail"] == detail
    error_of(client.send_append(topic, 1, expected_head_seq=3, create=False), 404, "topic_not_found")
    ephemeral = {"config": {"durability": "ephemeral"}}
    invalid(client.send_append(topic, 1, **fenced("f", 1), **ephemeral), "fence")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    assert client.append(topic, 1, expected_head_seq=0, expected_tag_seqs={"t": 0}, **fenced("f", 1))["created"]
    assert fences(client, topic) == {"f": 1}


def test_a_refused_append_leaves_nothing_under_its_key(client: Client, topic: str) -> None:
    client.append(topic, 1)
    error_of(client.send_append(topic, 2, idempotency_key="k", expected_head_seq=0), 409, "condition_failed")
    assert client.append(topic, 3, idempotency_key="k", expected_head_seq=1)["deduped"] is False
    again = client.append(topic, 3, idempotency_key="k", expected_head_seq=0)
    assert (again["deduped"], again["seqs"]) == (True, [2])


def test_fences_keep_lower_tokens_out(client: Client, topic: str) -> None:
    client.append(topic, 1, **fenced("lead", 4))
    error = error_of(client.send_append(topic, 2, **fenced("lead", 3)), 409, "fenced")
    assert error["detail"] == {"name": "lead", "token": 4}
    client.append(topic, 2, **fenced("lead", 4))
    client.append(topic, 3, **fenced("lead", 2**64 - 1))
    client.append(topic, 4, **fenced("ä/b c", 0))
    assert fences(client, topic) == {"lead": 2**64 - 1, "ä/b c": 0}
    answer = body_of(remove(client, topic, "ä/b c"))
    assert {name: answer[name] for name in ("topic", "fence", "deleted")} == {
        "topic": topic,
        "fence": "ä/b c",
        "deleted": True,
    }
    assert body_of(remove(client, topic, "ä/b c"))["deleted"] is False
    assert fences(client, topic) == {"lead": 2**64 - 1}
    body_of(remove(client, topic, "lead"))
    assert fences(client, topic) is None
    client.append(topic, 5, **fenced("lead", 1))


def test_names_of_fences(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert body_of(remove(client, topic, "x" * 128))["deleted"] is False
    invalid(remove(client, topic, "x" * 129), "fence")
    invalid(remove(client, topic, "ä" * 65), "fence")
    error_of(remove(client, "missing", "f"), 404, "topic_not_found")
    error_of(client.get(f"/v0/topics/{topic}/fences/f"), 405, "method_not_allowed")


def test_an_ephemeral_topic_takes_no_fence(client: Client, topic: str) -> None:
    client.put_topic(topic, durability="ephemeral")
    invalid(client.send_append(topic, 1, **fenced("f", 1)), "fence")
    client.append(topic, 1, expected_head_seq=0)


def test_at_most_a_hundred_fences(client: Client, topic: str) -> None:
    for i in range(100):
        client.append(topic, i, **fenced(f"f{i}", i))
    response = client.send_append(topic, "no", **fenced("more", 1))
    assert error_of(response, 429, "throttled")["detail"] == {"limit": "max_fences", "max": 100}
    assert "retry-after" in response.headers
    client.append(topic, 100, **fenced("f5", 6))
    assert client.state(topic)["head_seq"] == 101


def test_names_that_look_like_conditions_are_refused(client: Client, topic: str) -> None:
    refused: list[dict[str, Any]] = [{"expected_seq": 1}, {"fences": {}}, {"fence": {"name": "n", "token": 1, "x": 1}}]
    for fields in refused:
        invalid(client.send_append(topic, 1, **fields), next(iter(fields)))
    for name in ("expected_head_seq", "fence", "expected_x"):
        records = [{"data": 1}]
        invalid(client.post(f"/v0/topics/{topic}?{name}=1", json={"records": records}), name)
        lines = {"content-type": "application/x-ndjson"}
        invalid(client.post(f"/v0/topics/{topic}?{name}=1", content=b'{"data":1}\n', headers=lines), name)
    staged = {"records": [{"data": 1}], "expected_head_seq": 0}
    invalid(client.post(f"/v0/topics/{topic}?stage=s", json=staged), "stage")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_the_strict_header_knows_conditions(client: Client, topic: str) -> None:
    strict = {"Topics-Strict": "1"}
    body = {"records": [{"data": 1}], "expected_head_seq": 0, "expected_tag_seqs": {}, **fenced("f", 1)}
    assert client.post(f"/v0/topics/{topic}", json=body, headers=strict).status_code == 201
    body["expected_head_sec"] = 1
    error = error_of(client.post(f"/v0/topics/{topic}", json=body, headers=strict), 400, "invalid_request")
    assert error["detail"]["suggestion"] == "expected_head_seq"


def test_commits_of_stages_have_conditions(client: Client, topic: str) -> None:
    client.append(topic, "a")
    client.post(f"/v0/topics/{topic}?stage=s", json={"records": [{"data": "b"}]})
    commit = {"stages": ["s"], "idempotency_key": "k"}

    def send(**conditions: Any) -> httpx.Response:
        return client.post(f"/v0/topics/{topic}/commit", json={**commit, **conditions})

    assert error_of(send(expected_head_seq=0), 409, "condition_failed")["detail"] == {"head_seq": 1}
    error_of(send(expected_tag_seqs={"x": 1}), 409, "condition_failed")
    invalid(send(expected_x=1), "expected_x")
    assert body_of(send(expected_head_seq=1, **fenced("f", 3)))["first_seq"] == 2
    assert body_of(send(expected_head_seq=0, **fenced("f", 0)))["deduped"] is True
    assert fences(client, topic) == {"f": 3}
    assert data_of(client.read(topic)) == ["a", "b"]


def test_a_publish_has_conditions(client: Client, ws: WebSocket, topic: str) -> None:
    records = [{"data": 1, "tag": "t"}]
    assert ws.ask("publish", topic=topic, records=records, expected_head_seq=0, **fenced("f", 2))["op"] == "ack"
    failed = ws.refused("condition_failed", "publish", topic=topic, records=records, expected_head_seq=0)
    assert failed["detail"] == {"head_seq": 1}
    failed = ws.refused("condition_failed", "publish", topic=topic, records=records, expected_tag_seqs={"t": 0})
    assert failed["detail"] == {"tag": "t", "expected": 0, "actual": 1}
    failed = ws.refused("fenced", "publish", topic=topic, records=records, **fenced("f", 1))
    assert failed["detail"] == {"name": "f", "token": 2}
    ws.refused("invalid_request", "publish", "expected_x", topic=topic, records=records, expected_x=1)
    assert ws.ask("publish", topic=topic, records=records, expected_tag_seqs={"t": 1})["last_seq"] == 2


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_fences_and_conditions_survive_the_end_of_the_daemon(tmp_path: Path, ending: signal.Signals) -> None:
    with running(tmp_path) as client:
        for durability in ("memory", "disk", "fsync"):
            client.put_topic(durability, durability=durability)
            client.append(durability, 1, **fenced("f", 7))
            client.append(durability, 2, **fenced("gone", 7))
            body_of(remove(client, durability, "gone"))
        client = client.daemon.restart(ending)
        for durability in ("disk", "fsync"):
            assert fences(client, durability) == {"f": 7}
            error_of(client.send_append(durability, 3, **fenced("f", 6)), 409, "fenced")
            assert client.append(durability, 3, expected_head_seq=2, **fenced("f", 8))["last_seq"] == 3


def test_only_admins_remove_fences_and_the_audit_log_tells_of_it(tmp_path: Path) -> None:
    answers, lines = asked_by_three(
        tmp_path, lambda client: client.append("t", 1, **fenced("f", 7)), lambda client: remove(client, "t", "f")
    )
    assert answers == [403, 403, 200]
    found = [(line["call"], line["topic"], line.get("fence"), line["status"]) for line in lines]
    assert found == [("delete_fence", "t", "f", status) for status in answers]
