"""Bad input to every endpoint of a real daemon: the documented status, code and field, and nothing is changed.

The table is data: an input, and what is to come back. It runs against a daemon of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

JSON = {"content-type": "application/json"}
BODY_LIMIT = 1 << 20
LIMITS = {
    "TOPICS_MAX_BODY_BYTES": "1MiB",
    "TOPICS_MAX_RECORD_BYTES": "64KiB",
    "TOPICS_MAX_BATCH_RECORDS": "100",
    "TOPICS_MIN_FREE_BYTES": "0",
}


class Bad(NamedTuple):
    """One refused request. `field` is `detail.field` where the contract says that the field is named."""

    method: str
    path: str
    body: bytes | None = None
    headers: dict[str, str] = {}  # noqa: RUF012 -- never changed
    status: int = 400
    code: str = "invalid_request"
    field: str | None = None


def _json(method: str, path: str, body: Any, field: str | None = None, **expected: Any) -> Bad:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Bad(method, path, raw, JSON, field=field, **expected)


def _append(body: Any, field: str | None = None, **expected: Any) -> Bad:
    return _json("POST", "/v0/topics/kept", body, field, **expected)


def _record(field: str, **parts: Any) -> Bad:
    return _append({"records": [{"data": 1, **parts}]}, f"records[0].{field}")


ONE = {"records": [{"data": 1}]}
DEEP = b"[" * 600 + b"]" * 600
WITH_BODIES = [
    ("POST", "/v0/topics/kept"),
    ("POST", "/v0/topics/kept/diff"),
    ("POST", "/v0/topics/kept/delete"),
    ("PUT", "/v0/topics/kept"),
    ("PUT", "/v0/routers/missing"),
]
BAD_NAMES = ["-a", "_a", ".a", "a%20b", "a%2Fb", "%C3%A9", "%ff", "a" * 256, "a%00", "a%0A", "a>b", "a*"]

TABLE: list[Bad] = [
    # Every body, of all calls: form before content.
    *(
        bad
        for method, path in WITH_BODIES
        for bad in (
            _json(method, path, b"{", "body"),
            _json(method, path, b"\xff", "body"),
            _json(method, path, b'{"x":"\xc3"}', "body"),
            _json(method, path, b"[]", "body"),
            _json(method, path, b"1", "body"),
            _json(method, path, b"null", "body"),
            _json(method, path, b"{} {}"),
            _json(method, path, b'\xef\xbb\xbf{"records":[{"data":1}],"before_seq":0}', "body"),
            _json(method, path, b"{'records':1}", "body"),
            _json(method, path, b"[" * 100_000, "body"),
            Bad(method, path, b"{}", {}, 415, "unsupported_media_type"),
            Bad(method, path, b"{}", {"content-type": "text/plain"}, 415, "unsupported_media_type"),
            Bad(
                method,
                path,
                b"{}",
                {"content-type": "application/x-www-form-urlencoded"},
                415,
                "unsupported_media_type",
            ),
            Bad(method, path, b"{}", {**JSON, "content-encoding": "br"}, 415, "unsupported_media_type"),
            Bad(method, path, b"{}", {**JSON, "content-encoding": "gzip"}, field="body"),
            Bad(method, path, gzip.compress(b"{}", mtime=0)[:-1], {**JSON, "content-encoding": "gzip"}, field="body"),
            Bad(method, path, gzip.compress(b"{}", mtime=0) + b"x", {**JSON, "content-encoding": "gzip"}, field="body"),
            Bad(method, path, b" " * (BODY_LIMIT + 1), JSON, 413, "payload_too_large"),
            Bad(
                method,
                path,
                gzip.compress(b" " * (BODY_LIMIT + 1), mtime=0),
                {**JSON, "content-encoding": "gzip"},
                413,
                "payload_too_large",
            ),
        )
    ),
    # Names on every path.
    *(
        Bad(method, f"/v0/topics/{name}{suffix}", field="topic")
        for name in BAD_NAMES
        for method, suffix in (
            ("GET", ""),
            ("PUT", ""),
            ("DELETE", ""),
            ("POST", ""),
            ("GET", "/diff"),
            ("POST", "/diff"),
            ("POST", "/delete"),
        )
    ),
    *(
        Bad(method, f"/v0/routers/{name}", field="router")
        for name in BAD_NAMES
        if ">" not in name
        for method in ("GET", "PUT", "DELETE")
    ),
    # Routes and methods.
    *(
        Bad(method, path, status=404, code="not_found")
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH")
        for path in (
            "/v0",
            "/v0/topics/",
            "/v0/topics/kept/",
            "/v0/topics/kept/nothing",
            "/v0/routers/",
            "/v0/routers/missing/nothing",
            "/v1/topics",
            "/v0/nothing",
        )
    ),
    *(
        Bad(method, path, status=405, code="method_not_allowed")
        for method, path in (
            ("PATCH", "/v0/topics/kept"),
            ("POST", "/v0/topics"),
            ("DELETE", "/v0/topics"),
            ("PUT", "/v0/topics/kept/diff"),
            ("GET", "/v0/topics/kept/delete"),
            ("DELETE", "/v0/topics/kept/delete"),
            ("POST", "/v0/routers/missing"),
            ("PUT", "/v0/routers"),
            ("POST", "/v0/health"),
            ("POST", "/v0/ready"),
            ("DELETE", "/v0/metrics"),
            ("PUT", "/healthz"),
            ("OPTIONS", "/v0/topics/kept"),
        )
    ),
    # Append.
    Bad("POST", "/v0/topics/kept", field="records"),
    _append({}, "records"),
    _append({"records": []}, "records"),
    _append({"records": None}, "records"),
    _append({"records": {"data": 1}}, "records"),
    _append({"records": [1]}, "records[0]"),
    _append({"records": [{"data": 1}, {}]}, "records[1].data"),
    _append({"records": [{"data": 1}] * 101}, "records", code="batch_too_large"),
    _append({"records": [{"data": "x" * (64 << 10)}]}, "records[0]", code="record_too_large"),
    _append(
        {"records": [{"data": "x" * (60 << 10), "meta": {"k": "v" * (5 << 10)}}]}, "records[0]", code="record_too_large"
    ),
    _record("tag", tag=1),
    _record("tag", tag=""),
    _record("tag", tag="x" * 257),
    _record("tag", tag="\u00e9" * 129),
    _record("node", node={}),
    _record("node", node=""),
    _record("node", node="x" * 129),
    _record("meta", meta=[]),
    _record("meta", meta={"k": 1}),
    _record("meta", meta={"k": None}),
    _record("meta", meta={"_topics": "x"}),
    _record("meta", meta={"_topics_dead_letter": "x"}),
    _record("meta", meta={str(i): "" for i in range(65)}),
    _record("meta", meta={"k": "v" * (16 << 10)}),
    _append({**ONE, "node": ""}, "node"),
    _append({**ONE, "node": "x" * 129}, "node"),
    _append({**ONE, "node": 1}, "node"),
    _append({**ONE, "create": "yes"}, "create"),
    _append({**ONE, "create": None}, "create"),
    _append({**ONE, "disable_backpressure": 1}, "disable_backpressure"),
    _append({**ONE, "idempotency_key": ""}, "idempotency_key"),
    _append({**ONE, "idempotency_key": "k" * 257}, "idempotency_key"),
    _append({**ONE, "idempotency_key": 1}, "idempotency_key"),
    _append({**ONE, "config": []}, "config"),
    _append({**ONE, "config": {"colour": "red"}}, "config.colour"),
    _append({**ONE, "config": {"ttl_ms": -1}}, "config.ttl_ms"),
    _append({**ONE, "config": {"type": "heap"}}, "config.type"),
    _append({**ONE, "config": {"idempotency_window_ms": 7 * 86_400_000 + 1}}, "config.idempotency_window_ms"),
    _append({**ONE, "config": {"dead_letter": "kept"}}, "config.dead_letter"),
    _append({**ONE, "config": {"dead_letter": "a b"}}, "config.dead_letter"),
    _append(b'{"records":[{"data":' + DEEP + b"}]}", "records[0].data"),
    _append(b'{"records":[{"data":"\\ud800"}]}', "body"),
    _append(b'{"records":[{"data":1}],"x":' + DEEP + b"}", "body"),
    Bad(
        "POST",
        "/v0/topics/kept",
        json.dumps(ONE).encode(),
        {**JSON, "idempotency-key": "k" * 257},
        field="Idempotency-Key",
    ),
    _json("POST", "/v0/topics/kept?return_seqs=maybe", ONE, "return_seqs"),
    _json("POST", "/v0/topics/kept?return_seqs=", ONE, "return_seqs"),
    _json("POST", "/v0/topics/missing", {**ONE, "create": False}, status=404, code="topic_not_found"),
    _json("POST", "/v0/topics/missing", {**ONE, "config": {"auto_create": False}}, status=404, code="topic_not_found"),
    _json("POST", "/v0/topics/missing", {**ONE, "config": {"ttl_ms": 1.5}}, "config.ttl_ms"),
    # Diff.
    *(
        _json("POST", "/v0/topics/kept/diff", {field: value}, field)
        for field, values in {
            "from_seq": (-1, 2**64, 1.0, "1", True, None),
            "epoch": (-1, 2**64, "1", False),
            "limit": (-1, "1", 0.5),
            "wait_ms": (-1, "1", None),
            "max_batch_bytes": (-1, []),
            "include_tags": (1, "true", None),
            "include_meta": (0, "false"),
            "node": (1, "", "x" * 129, ["a", ""]),
        }.items()
        for value in values
    ),
    *(
        Bad("GET", f"/v0/topics/kept/diff?{name}={value}", field=name)
        for name, values in {
            "from_seq": ("-1", "", "x", "1.0", "18446744073709551616", "%2B1"),
            "epoch": ("-1", "null"),
            "limit": ("-1", "ten"),
            "wait_ms": ("-1", "1s"),
            "max_batch_bytes": ("-1", "1MiB"),
            "include_tags": ("yes", "TRUE", ""),
            "include_meta": ("2",),
            "node": ("", "x" * 129),
        }.items()
        for value in values
    ),
    Bad("GET", "/v0/topics/kept/diff?limit=1&limit=2", field="limit"),
    Bad("GET", "/v0/topics/kept/diff?node=%ff", field="query"),
    Bad("GET", "/v0/topics/missing/diff", status=404, code="topic_not_found"),
    Bad("POST", "/v0/topics/missing/diff", status=404, code="topic_not_found"),
    # Delete records.
    Bad("POST", "/v0/topics/kept/delete", field="before_seq"),
    *(
        _json("POST", "/v0/topics/kept/delete", body, field)
        for body, field in (
            ({}, "before_seq"),
            ({"before_seq": -1}, "before_seq"),
            ({"before_seq": 2**64}, "before_seq"),
            ({"before_seq": "9"}, "before_seq"),
            ({"before_seq": None}, "before_seq"),
            ({"before_seq": 9.0}, "before_seq"),
            ({"match": None}, "match"),
            ({"match": 1}, "match"),
            ({"match": []}, "match"),
            ({"match": ["tag", "Eq"]}, "match"),
            ({"match": ["node", "Eq", "x"]}, "match"),
            ({"match": ["tag", "eq", "x"]}, "match"),
            ({"match": ["tag", "Glob", "x"]}, "match"),
            ({"match": ["tag", "Eq", 1]}, "match"),
            ({"before_seq": 9, "match": {"tag": "x"}}, "match"),
        )
    ),
    _json("POST", "/v0/topics/missing/delete", {"before_seq": 1}, status=404, code="topic_not_found"),
    # Topic config.
    *(
        _json("PUT", path, {field: value}, field)
        for path in ("/v0/topics/kept", "/v0/topics/missing")
        for field, values in {
            "colour": ("red",),
            "type": ("heap", None, 1),
            "ttl_ms": (-1, 2**64, 1.0, "1", True, None),
            "cap_records": (-1, "1"),
            "cap_bytes": (-1, 0.5),
            "discard": ("new", None),
            "durability": ("ram", None, 1),
            "durable": (1, "true", None),
            "priority": ("high", 1.5, True),
            "auto_priority": (0, None),
            "auto_create": ("x",),
            "idempotency_window_ms": (7 * 86_400_000 + 1, -1, None),
            "dedupe_node": (None, 1),
            "lease_ms": ("1", None),
            "claim_jitter_ms": (1.5,),
            "max_deliveries": (-1, None),
            "dead_letter": ("a b", "", 1, path.rsplit("/", 1)[1]),
            "leases_durable": ("no",),
            "retention": ("all", None, 1),
        }.items()
        for value in values
    ),
    _json("PUT", "/v0/topics/kept", {"type": "queue"}, status=409, code="topic_exists_incompatible"),
    # State, list, delete topic.
    Bad("GET", "/v0/topics/missing", status=404, code="topic_not_found"),
    Bad("GET", "/v0/topics/kept?touch=maybe", field="touch"),
    Bad("GET", "/v0/topics?page_size=many", field="page_size"),
    Bad("GET", "/v0/topics?page_size=", field="page_size"),
    Bad("GET", "/v0/topics?touch=2", field="touch"),
    *(
        Bad("GET", f"/v0/topics?cursor={cursor}", field="cursor")
        for cursor in ("x", "!!!!", "abcd", "a2VwdA", "dDphL2I")
    ),
    Bad("DELETE", "/v0/topics/kept?if_empty=true", status=409, code="topic_not_empty"),
    Bad("DELETE", "/v0/topics/kept?if_empty=perhaps", field="if_empty"),
    # Routers.
    *(
        _json("PUT", "/v0/routers/missing", {"source": "kept", "dest": "missing", field: value}, field)
        for field, values in {
            "colour": ("red",),
            "source": ("a b", "", "a>b", None, 1),
            "dest": ("a b", "", "a>b", None, 1),
            "preserve_node": (1, "true", None),
            "preserve_tag": (0, None),
            "create_dest": ("no", None),
            "allow_cycle": (1, None),
            "guarantee": ("exactly", None, 1),
            "from": ("head", None, 0),
        }.items()
        for value in values
    ),
    _json("PUT", "/v0/routers/missing", b'{"source":"kept","dest":"missing","filter":' + DEEP + b"}", "body"),
    *(
        Bad("GET", f"/v0/routers?{name}={value}", field=name)
        for name, values in {
            "source": ("", "a%3Eb", "-a"),
            "dest": ("", "a%20b"),
            "page_size": ("many", ""),
            "cursor": ("x", "!!!!", "dDprZXB0", "cjphL2I"),
        }.items()
        for value in values
    ),
]


def _name(bad: Bad) -> str:
    return f"{bad.method} {bad.path[:60]} {(bad.body or b'')[:40]!r} -> {bad.status} {bad.field or bad.code}"


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon in a process of its own; it has to stop cleanly in the end."""
    home = tmp_path_factory.mktemp("daemon")
    port_file = home / "port"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
        **LIMITS,
        "TOPICS_PORT": "0",
        "TOPICS_PORT_FILE": str(port_file),
        "TOPICS_DATA_DIR": str(home / "data"),
    }
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "topics", "serve"], env=environment, stderr=log)
    try:
        url = f"http://127.0.0.1:{_port(port_file, process, home / 'log')}"
        _until_ready(url, process)
        yield url
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0, (home / "log").read_text()
        assert "request_failed" not in (home / "log").read_text()
        assert "connection_failed" not in (home / "log").read_text()
    finally:
        process.kill()
        process.wait()


def _port(port_file: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    deadline = time.monotonic() + 20
    while not port_file.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "the daemon does not listen"
        time.sleep(0.02)
    return int(port_file.read_text())


def _until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while httpx.get(f"{url}/v0/ready").status_code != 200:
        assert process.poll() is None
        assert time.monotonic() < deadline, "the daemon is not ready"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[httpx.Client]:
    """A client, and a topic `kept` of two records that nothing in the table may change."""
    with httpx.Client(base_url=base_url, timeout=60) as client:
        records = {"records": [{"data": {"n": 1}, "tag": "x", "meta": {"k": "v"}}, {"data": 2, "node": "n"}]}
        assert client.post("/v0/topics/kept", json=records).status_code == 201
        yield client


@pytest.fixture(scope="module")
def before(client: httpx.Client) -> Any:
    """What there was ahead of the first request of the table."""
    return _everything(client)


def _everything(client: httpx.Client) -> Any:
    """What a refused request may not change."""
    state = client.get("/v0/topics/kept?touch=false").json()
    diff = client.get("/v0/topics/kept/diff?include_tags=1").json()
    topics = [topic["topic"] for topic in client.get("/v0/topics").json()["topics"]]
    for answer in (state, diff):
        del answer["performance"]
    for moving in ("last_read_ts", "effective_priority", "synced_seq"):
        del state[moving]
    return state, diff, topics


@pytest.mark.parametrize("bad", TABLE, ids=_name)
def test_bad_input_is_refused_as_documented_and_changes_nothing(client: httpx.Client, before: Any, bad: Bad) -> None:
    response = client.request(bad.method, bad.path, content=bad.body, headers=bad.headers)
    assert response.status_code == bad.status, response.text
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert error.keys() == {"code", "message", "detail"}
    assert error["code"] == bad.code
    if bad.field is not None:
        assert error["detail"]["field"] == bad.field
    if bad.status == 405:
        assert response.headers["allow"]
    assert _everything(client) == before


def test_the_daemon_goes_on_after_all_of_it(client: httpx.Client) -> None:
    assert client.post("/v0/topics/after", json=ONE).status_code == 201
    assert client.get("/v0/topics/after/diff").json()["records"][0]["data"] == 1
    metrics = client.get("/v0/metrics", headers={"accept": "application/json"}).json()
    assert all(entry["labels"]["status"] != "500" for entry in metrics["topics_requests_total"])
