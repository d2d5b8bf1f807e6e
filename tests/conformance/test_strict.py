"""`Topics-Strict: 1`, where to go from `/`, and what else is there for somebody who types."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import (
    Client,
    Daemon,
    RawConnection,
    body_of,
    data_of,
    envelope,
    error_of,
    fresh_name,
)
from tests.conformance.keys import bearer
from tests.conformance.websocket import WebSocket, key

STRICT = {"topics-strict": "1"}
LINES = {"content-type": "application/x-ndjson"}


# ----------------------------------------------------------------- strictness


@pytest.mark.parametrize(
    ("path", "field", "suggestion"),
    [
        ("/v0/topics/{topic}/diff?from_sqe=1", "from_sqe", "from_seq"),
        ("/v0/topics/{topic}/records?from=1", "from", "from_ts"),
        ("/v0/topics/{topic}/stream?tial=true", "tial", "tail"),
        ("/v0/topics/{topic}?tuch=false", "tuch", "touch"),
        ("/v0/topics?page=2&zzz", "page", "page_size"),
        ("/v0/health?verbose=1", "verbose", None),
    ],
)
def test_a_query_parameter_that_the_call_does_not_have_is_refused(
    client: Client, topic: str, path: str, field: str, suggestion: str | None
) -> None:
    client.put_topic(topic)
    path = path.format(topic=topic)
    error = error_of(client.get(path, headers=STRICT), 400, "invalid_request")
    assert error["detail"] == {"field": field} | ({} if suggestion is None else {"suggestion": suggestion})
    assert (f"did you mean {suggestion}?" in error["message"]) == (suggestion is not None)


def test_without_the_header_unknown_names_mean_nothing(client: Client, topic: str) -> None:
    for headers in ({}, {"topics-strict": "0"}):
        body = {"records": [{"data": 1, "tagg": "t"}], "idempotency": "k"}
        body_of(client.post(f"/v0/topics/{topic}?from_sqe=1", json=body, headers=headers), 200, 201)
        body_of(client.get(f"/v0/topics/{topic}/diff?from_sqe=1", headers=headers))
    line = b'{"data": 1, "tagg": "t"}\n'
    body_of(client.post(f"/v0/topics/{topic}", content=line, headers=LINES))
    error = error_of(client.get("/v0/health", headers={"topics-strict": "yes"}), 400, "invalid_request")
    assert error["detail"]["field"] == "Topics-Strict"


@pytest.mark.parametrize(
    ("body", "field", "suggestion"),
    [
        ({"records": [{"data": 1}, {"data": 1, "tagg": "t"}]}, "records[1].tagg", "tag"),
        ({"records": [{"data": 1}], "idempotency": "k"}, "idempotency", "idempotency_key"),
        ({"records": [{"data": 1}], "config": {"ttl": 1}}, "config.ttl", "ttl_ms"),
        ({"records": [{"data": 1, "x" * 200: 1}]}, None, None),
    ],
)
@pytest.mark.parametrize("stage", [False, True])
def test_a_key_of_an_append_that_nobody_knows_is_refused_and_nothing_is_stored(
    client: Client, topic: str, body: Any, field: str | None, suggestion: str | None, stage: bool
) -> None:
    path = f"/v0/topics/{topic}" + ("?stage=s" if stage else "")
    error = error_of(client.post(path, json=body, headers=STRICT), 400, "invalid_request")
    if field is not None:
        assert (error["detail"]["field"], error["detail"]["suggestion"]) == (field, suggestion)
    assert len(error["message"]) < 300
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_parameter_of_an_upload_is_none_of_an_append(client: Client, topic: str) -> None:
    """`node` as a query parameter says nothing beside a body of JSON, which has a field of that name."""
    append = {"records": [{"data": 1}]}
    error = error_of(client.post(f"/v0/topics/{topic}?node=n", json=append, headers=STRICT), 400, "invalid_request")
    assert error["detail"]["field"] == "node"
    body_of(client.post(f"/v0/topics/{topic}?return_seqs=0", json=append, headers=STRICT), 201)
    body_of(client.post(f"/v0/topics/{topic}?node=n", content=b'{"data":2}\n', headers=STRICT | LINES))
    assert data_of(client.read(topic)) == [1, 2]


def test_a_line_with_an_unknown_key_ends_an_upload(client: Client, topic: str) -> None:
    lines = b'{"data": 1, "tag": "t"}\n{"data": 2, "nod": "n"}\n'
    error = error_of(client.post(f"/v0/topics/{topic}", content=lines, headers=STRICT | LINES), 400, "invalid_request")
    assert error["detail"] == {"field": "nod", "suggestion": "node", "line": 2, "committed": 0, "last_seq": 0}


HELD = {"node": "n", "seqs": [1]}


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "suggestion"),
    [
        ("POST", "/v0/topics/{topic}/diff", {"from_sqe": 1}, "from_sqe", "from_seq"),
        ("POST", "/v0/topics/{topic}/claim", {"node": "n", "wait": 1}, "wait", "wait_ms"),
        ("POST", "/v0/topics/{topic}/ack", HELD | {"lease_id": []}, "lease_id", "lease_ids"),
        ("POST", "/v0/topics/{topic}/nack", HELD | {"delay": 1}, "delay", "delay_ms"),
        ("POST", "/v0/topics/{topic}/extend", HELD | {"lease_ms": 1000, "zzz": 1}, "zzz", None),
        (
            "POST",
            "/v0/topics/{topic}/commit",
            {"stages": ["s"], "idempotency_key": "k", "stage": "s"},
            "stage",
            "stages",
        ),
        ("POST", "/v0/topics/{topic}/delete", {"before_seq": 1, "mach": None}, "mach", "match"),
        ("POST", "/v0/watch", {"topics": {"{topic}": {}}, "heartbeat": 1}, "heartbeat", "heartbeat_ms"),
        ("PUT", "/v0/topics/{topic}", {"ttl": 1}, "ttl", "ttl_ms"),
        ("PUT", "/v0/routers/{topic}", {"sauce": "a"}, "sauce", "source"),
        ("POST", "/v0/admin/checkpoint", {"hold_ms": 1}, "hold_ms", None),
        ("DELETE", "/v0/topics/{topic}", {"if_empty": True}, "if_empty", None),
    ],
)
def test_a_key_of_any_other_body_that_the_call_does_not_have_is_refused(
    client: Client, topic: str, method: str, path: str, body: dict[str, Any], field: str, suggestion: str | None
) -> None:
    client.append(topic, "here")
    path = path.format(topic=topic)
    error = error_of(client.request(method, path, json=body, headers=STRICT), 400, "invalid_request")
    assert error["detail"] == {"field": field} | ({} if suggestion is None else {"suggestion": suggestion})
    assert data_of(client.read(topic)) == ["here"]


def test_the_known_keys_of_a_body_and_no_keys_are_as_without_the_header(client: Client, topic: str) -> None:
    client.append(topic, "here")
    diff = f"/v0/topics/{topic}/diff"
    assert data_of(body_of(client.post(diff, json={"from_seq": 0, "limit": 1}, headers=STRICT))) == ["here"]
    for body in (b"", b"{}"):
        content = {"content-type": "application/json"} if body else {}
        body_of(client.post(diff, content=body, headers=STRICT | content))
        body_of(client.post("/v0/admin/checkpoint", content=body, headers=STRICT | content))
    for wrong in (b"[]", b'{"from_seq":', b'{"from_seq":"x"}'):
        plain = error_of(client.post(diff, content=wrong, headers={"content-type": "application/json"}), 400)
        strict = error_of(client.post(diff, content=wrong, headers=STRICT | {"content-type": "application/json"}), 400)
        assert strict == plain


def test_a_socket_is_not_opened_with_a_query_parameter_that_it_does_not_have(client: Client) -> None:
    fields = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec_websocket_version": "13",
        "sec_websocket_key": key(),
    }
    with RawConnection(client) as connection:
        connection.send_head("GET", "/v0/ws?tokn=1", **fields, topics_strict="1")
        status, headers, body = connection.receive()
    assert (status, headers["content-type"]) == (400, "application/json")
    assert envelope(json.loads(body), "invalid_request")["detail"] == {"field": "tokn", "suggestion": "token"}
    with RawConnection(client) as connection:
        connection.send_head("GET", "/v0/ws", **fields, topics_strict="yes")
        assert connection.receive()[0] == 400
    with WebSocket(client, "/v0/ws?token=ignored", headers=[("topics-strict", "1")]) as ws:
        ws.works()


@pytest.mark.parametrize(
    ("op", "command", "field", "suggestion"),
    [
        ("publish", {"records": [{"data": 1}, {"data": 1, "tagg": "t"}]}, "records[1].tagg", "tag"),
        ("publish", {"records": [{"data": 1}], "durabilty": "fsync"}, "durabilty", None),
        ("publish", {"records": [{"data": 1}], "return_seq": True}, "return_seq", "return_seqs"),
        ("publish", {"records": [{"data": 1}], "config": {"ttl": 1}}, "config.ttl", "ttl_ms"),
        ("subscribe", {"from_sqe": 1}, "from_sqe", "from_seq"),
        ("unsubscribe", {"topcs": []}, "topcs", "topics"),
        ("ping", {"hallo": 1}, "hallo", None),
    ],
)
def test_a_socket_that_was_opened_with_the_header_refuses_unknown_keys_of_its_commands(
    client: Client, topic: str, op: str, command: dict[str, Any], field: str, suggestion: str | None
) -> None:
    client.put_topic(topic)
    named = {} if op == "ping" else {"topic": topic}
    with WebSocket(client, headers=[("topics-strict", "1")]) as ws:
        ws.send(op, request_id="r", **named, **command)
        answer = ws.next().body
        assert (answer["op"], answer["request_id"], answer["code"]) == ("error", "r", "invalid_request")
        assert answer["detail"] == {"field": field} | ({} if suggestion is None else {"suggestion": suggestion})
        ws.send("publish", request_id="r", topic=topic, records=[{"data": 2, "tag": "t"}], return_seqs=False)
        assert ws.next().op == "ack"
        ws.send("subscribe", topic=topic, from_seq=0, tail=True)
        assert ws.next().op == "subscribed"
    assert data_of(client.read(topic)) == [2]
    with WebSocket(client) as ws:
        ws.send(op, **named, **command)
        assert (ws.next().op == "error") == ("config" in command)  # a config never has unknown keys


# ----------------------------------------------------------------- changing without creating


def test_a_put_that_may_not_create_changes_what_is_there(client: Client, topic: str) -> None:
    error_of(client.put(f"/v0/topics/{topic}?create=false", json={}), 404, "topic_not_found")
    client.put_topic(topic, cap_records=5)
    changed = body_of(client.put(f"/v0/topics/{topic}?create=false", json={"ttl_ms": 7}))
    assert (changed["created"], changed["config"]["ttl_ms"], changed["config"]["cap_records"]) == (False, 7, 5)
    router, dest = fresh_name("router"), fresh_name("dest")
    ends = {"source": topic, "dest": dest}
    error_of(client.put(f"/v0/routers/{router}?create=false", json=ends), 404, "router_not_found")
    error_of(client.get(f"/v0/topics/{dest}"), 404, "topic_not_found")
    body_of(client.put(f"/v0/routers/{router}", json=ends), 201)
    changed = body_of(client.put(f"/v0/routers/{router}?create=false", json={"preserve_tag": False}))
    assert (changed["created"], changed["dest"], changed["preserve_tag"]) == (False, dest, False)


@pytest.mark.slow
def test_the_commands_that_change_need_no_scope_but_admin(tmp_path: Path) -> None:
    from tests.cli.command_line import CommandLine  # noqa: PLC0415

    daemon = Daemon(tmp_path, api_keys="the-admin:admin")
    try:
        with closing(daemon.start()) as client:
            body_of(client.put("/v0/topics/a", json={}, headers=bearer("the-admin")), 201)
            ends = {"source": "a", "dest": "b"}
            body_of(client.put("/v0/routers/r", json=ends, headers=bearer("the-admin")), 201)
        topics = CommandLine(TOPICS_URL=daemon.url, TOPICS_TOKEN="the-admin")
        for arguments in (("set", "a", "--ttl", "1d"), ("router", "set", "r", "--tag", "x")):
            done = topics(*arguments)
            assert (done.returncode, done.stderr) == (0, "")
    finally:
        daemon.kill()


# ----------------------------------------------------------------- for somebody who types


def test_the_root_says_where_to_go(client: Client) -> None:
    body = body_of(client.get("/"))
    assert body.pop("service") == "topics"
    assert body.pop("version")
    assert set(body) == {"console", "docs", "openapi", "topics", "ready", "metrics"}
    for path in body.values():
        assert client.get(path).status_code == 200


def test_answers_end_with_a_line_end(client: Client, topic: str) -> None:
    append = {"records": [{"data": "x" * 5000}]}
    answers = [
        client.get("/"),
        client.get("/v0/topics/none"),
        client.get("/nowhere"),
        client.put(f"/v0/topics/{topic}", json={}),
        client.post(f"/v0/topics/{topic}", json=append),
        client.get(f"/v0/topics/{topic}/diff", headers={"accept-encoding": "gzip"}),
        client.get("/v0/openapi.json"),
        client.get("/v0/metrics", headers={"accept": "application/json"}),
    ]
    for answer in answers:
        assert answer.content.endswith(b"}\n"), answer.url
        assert answer.content.count(b"\n") == 1, answer.url


@pytest.mark.slow
def test_curl_leaves_the_prompt_on_a_line_of_its_own(client: Client) -> None:
    done = subprocess.run(
        ["curl", "-sS", f"{client.daemon.url}/v0/topics/none"], capture_output=True, timeout=60, check=True
    )
    assert done.stdout.endswith(b"}\n")
