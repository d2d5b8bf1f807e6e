"""`Topics-Strict: 1`, where to go from `/`, and what else is there for somebody who types."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, Daemon, body_of, data_of, error_of, fresh_name
from tests.conformance.keys import bearer

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
    assert set(body) == {"docs", "openapi", "topics", "ready", "metrics"}
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
