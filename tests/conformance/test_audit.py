"""The audit log of a running daemon: one line for each control-plane call and deletion, before it is answered."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, Daemon, error_of, until
from tests.conformance.websocket import WebSocket

SECRET = "s3cr3t-of-the-boss"
WRITER = "s3cr3t-of-the-writer"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Audited:
    """A daemon, its client and what its audit log has grown by."""

    def __init__(self, client: Client, path: Path) -> None:
        self.client = client
        self.path = path
        self._seen = 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Without waiting: a line is there before the answer."""
        text = self.path.read_text() if self.path.exists() else ""
        assert SECRET not in text
        assert WRITER not in text
        lines = [json.loads(line) for line in text.splitlines()]
        new, self._seen = lines[self._seen :], len(lines)
        return new

    def new_line(self) -> dict[str, Any]:
        [line] = self.new_lines()
        return line


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Audited]:
    root = tmp_path_factory.mktemp("audited")
    daemon = Daemon(root, audit_log=root / "audit.log", api_keys=f"{SECRET},{WRITER}:w:in-")
    try:
        client = daemon.start()
        client.headers.update(bearer(SECRET))
        yield Audited(client, root / "audit.log")
    finally:
        daemon.kill()


@pytest.fixture
def audited(running: Audited) -> Audited:
    running.new_lines()
    return running


def test_what_changes_the_daemon_has_a_line_and_nothing_else_has(audited: Audited, topic: str) -> None:
    client = audited.client
    client.put_topic(topic, cap_records=5)
    line = audited.new_line()
    assert line["ts"].endswith("Z")
    assert line["key"].startswith("key-")
    assert line["peer"].startswith("127.0.0.1:")
    assert line["ms"] > 0
    assert (line["call"], line["topic"], line["body"], line["status"]) == ("put_topic", topic, {"cap_records": 5}, 201)
    client.append(topic, 1, 2)
    client.read(topic)
    client.state(topic)
    client.get("/v0/topics")
    client.get("/v0/metrics")
    client.get("/v0/nothing")
    assert audited.new_lines() == []
    client.delete_records(topic, before_seq=2)
    client.put(f"/v0/routers/{topic}>x", json={"source": topic, "dest": f"{topic}-x"})
    client.delete(f"/v0/routers/{topic}>x")
    client.post("/v0/admin/checkpoint?hold_ms=0")
    client.delete_topic(topic, if_empty=False)
    client.delete(f"/v0/topics/{topic}")
    lines = audited.new_lines()
    assert [(line["call"], line["status"]) for line in lines] == [
        ("delete_records", 200),
        ("put_router", 201),
        ("delete_router", 200),
        ("checkpoint", 200),
        ("delete_topic", 200),
        ("delete_topic", 200),
    ]
    assert lines[1]["router"] == f"{topic}>x"
    client.delete(f"/v0/topics/{topic}/stages/part-1")
    dropped = audited.new_line()
    assert [dropped[name] for name in ("call", "topic", "stage", "status")] == ["delete_stage", topic, "part-1", 200]
    assert (lines[3]["query"], lines[4]["query"]) == ("hold_ms=0", "if_empty=false")


def test_the_line_has_the_id_that_the_answer_has(audited: Audited, topic: str) -> None:
    given = audited.client.put(f"/v0/topics/{topic}", headers={"x-request-id": "mine-1"})
    made = audited.client.put(f"/v0/topics/{topic}")
    assert given.headers["x-request-id"] == "mine-1"
    assert [line["request_id"] for line in audited.new_lines()] == ["mine-1", made.headers["x-request-id"]]


def test_what_is_refused_has_a_line_too(audited: Audited, topic: str) -> None:
    client = audited.client
    error_of(client.put(f"/v0/topics/{topic}", headers=bearer("nobody")), 401)
    error_of(client.delete("/v0/topics/bad%0Aname%ff?token=" + SECRET, headers={"authorization": ""}), 401)
    error_of(client.put(f"/v0/topics/{topic}", headers=bearer(WRITER)), 403)
    error_of(client.put(f"/v0/topics/{topic}", json={"no": 1}), 400)
    error_of(client.put(f"/v0/topics/{topic}", content=b"{", headers={"content-type": "application/json"}), 400)
    lines = audited.new_lines()
    assert [(line["status"], line["code"], line["key"][:4]) for line in lines] == [
        (401, "unauthorized", "unkn"),
        (401, "unauthorized", "unkn"),
        (403, "forbidden", "key-"),
        (400, "invalid_request", "key-"),
        (400, "invalid_request", "key-"),
    ]
    assert lines[0]["topic"] == topic
    assert lines[1]["topic"] == "bad\nname\ufffd"
    assert lines[2]["key"] != lines[3]["key"]
    assert lines[3]["body"] == {"no": 1}
    assert lines[4]["body_bytes"] == 1


def test_an_append_with_a_config_has_a_line_without_its_records(audited: Audited) -> None:
    client = audited.client
    records = [{"data": "payload"}]
    client.append("in-a", records=records, config={"cap_records": 9})
    error_of(client.post("/v0/topics/in-b", json={"records": records, "config": {}}, headers=bearer(WRITER)), 403)
    client.append("in-a", "payload")
    first, second = audited.new_lines()
    assert (first["call"], first["status"], first["body"]) == ("append", 201, {"cap_records": 9})
    assert (second["status"], second["topic"], second["body"]) == (403, "in-b", {})
    assert "payload" not in audited.path.read_text()


def test_so_has_one_over_a_socket(audited: Audited) -> None:
    records = [{"data": "payload"}]
    with WebSocket(audited.client, headers=[("authorization", f"Bearer {WRITER}")]) as socket:
        socket.ask("publish", topic="in-c", records=records)
        assert audited.new_lines() == []
        socket.send("publish", topic="in-d", records=records, config={"cap_records": 9})
        assert socket.next_op("error")["code"] == "forbidden"
    line = audited.new_line()
    assert (line["call"], line["topic"], line["status"], line["code"]) == ("publish", "in-d", 403, "forbidden")
    with WebSocket(audited.client, headers=[("authorization", f"Bearer {SECRET}")]) as socket:
        socket.ask("publish", topic="in-d", records=records, config={"cap_records": 9})
    line = audited.new_line()
    assert (line["status"], line["body"]) == (201, {"cap_records": 9})
    assert "payload" not in audited.path.read_text()


def test_a_hangup_opens_the_file_anew(audited: Audited, topic: str) -> None:
    old = audited.path.rename(audited.path.with_suffix(".old"))
    before = old.read_text()
    audited.client.put_topic(topic)
    assert old.read_text() != before
    audited.client.daemon.send_signal(signal.SIGHUP)
    until(audited.path.exists)
    before = old.read_text()
    audited.client.put_topic(topic)
    assert topic in audited.path.read_text()
    assert old.read_text() == before


def test_a_log_that_cannot_be_kept_refuses_the_start(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, audit_log=tmp_path / "none" / "audit.log")
    with pytest.raises(RuntimeError, match="TOPICS_AUDIT_LOG"):
        daemon.launch()


def test_a_line_that_cannot_be_written_costs_no_call(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, audit_log="/dev/full")
    try:
        client = daemon.start()
        client.put_topic("a")
        client.put_topic("b")
        metrics = client.get("/v0/metrics", headers={"accept": "application/json"}).json()
        assert metrics["topics_audit_failures_total"] == 2
        assert daemon.end() == 0
    finally:
        daemon.kill()
    events = [json.loads(line)["event"] for line in (tmp_path / "log").read_text().splitlines()]
    assert events.count("audit_log_failed") == 1
