"""The log of a running daemon: whole lines after any event, requests that can be found, and the fields that an operator
needs."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, Daemon, RawConnection, fresh_name, running, until
from tests.conformance.sse import connect
from tests.conformance.websocket import WebSocket

SETTINGS = {"log_level": "debug", "log_format": "json"}


def lines_of(root: Path) -> list[dict[str, Any]]:
    """Every line, each of which has to be a JSON object."""
    whole = (root / "log").read_bytes().rpartition(b"\n")[0]
    lines = [json.loads(line) for line in whole.split(b"\n")] if whole else []
    for line in lines:
        assert list(line)[:4] == ["timestamp", "level", "event", "logger"], line
        assert line["timestamp"].endswith("Z")
    return lines


def events_of(root: Path) -> list[str]:
    return [line["event"] for line in lines_of(root)]


def line_of(client: Client, request_id: str) -> dict[str, Any]:
    """The line of the level debug that each request has."""
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        found[:] = [line for line in lines_of(client.daemon.root) if line.get("request_id") == request_id]
        return bool(found)

    until(is_there)
    [line] = found
    return line


# --- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("http2", [False, True])
def test_a_request_is_found_by_the_id_that_it_has_brought_or_was_given(client: Client, topic: str, http2: bool) -> None:
    with Client(client.daemon, http2=http2) as other:
        for method, path, route in [
            ("PUT", f"/v0/topics/{topic}", "PUT /v0/topics/{topic}"),
            ("GET", f"/v0/topics/{topic}/diff", "GET /v0/topics/{topic}/diff"),
            ("GET", "/v0/nothing", "unmatched"),
        ]:
            mine = fresh_name("mine")
            for headers in ({"x-request-id": mine}, {}):
                answer = other.request(method, path, headers=headers)
                request_id = answer.headers["x-request-id"]
                assert request_id == headers.get("x-request-id", request_id)
                line = line_of(client, request_id)
                assert (line["event"], line["route"], line["status"]) == ("request", route, answer.status_code)
                assert line["ms"] > 0


def test_a_request_on_the_same_connection_has_an_id_of_its_own(client: Client) -> None:
    given = [fresh_name("mine") for _ in range(3)]
    with RawConnection(client) as connection:
        for request_id in given:
            connection.send_head("GET", "/v0/health", x_request_id=request_id)
            assert connection.receive()[1]["x-request-id"] == request_id
        connection.send_head("GET", "/v0/health")
        made = connection.receive()[1]["x-request-id"]
    assert made not in given
    for request_id in (*given, made):
        assert line_of(client, request_id)["route"] == "GET /v0/health"


def test_under_a_mixed_load_every_line_is_whole_and_every_request_has_one(client: Client) -> None:
    given: set[str] = set()
    failures: list[BaseException] = []

    def call(worker: int) -> None:
        name = fresh_name()
        try:
            with Client(client.daemon, http2=bool(worker % 2)) as own:
                for number in range(25):
                    for method, path, body in [
                        ("PUT", f"/v0/topics/{name}", {"cap_records": number}),
                        ("POST", f"/v0/topics/{name}", {"records": [{"data": "x" * 3000}]}),
                        ("POST", f"/v0/topics/{name}/diff", {"from_seq": "\u2028\x1b\n"}),
                        ("DELETE", "/v0/topics/%1b%0a%e2%80%a8", None),
                        ("POST", f"/v0/topics/{name}/claim", {"node": "n"}),
                    ]:
                        request_id = f"load-{name}-{number}-{method}-{len(path)}-{len(given)}"
                        given.add(request_id)
                        answer = own.request(method, path, json=body, headers={"x-request-id": request_id})
                        assert answer.status_code < 500
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=call, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    with WebSocket(client) as socket:
        for _ in range(50):
            socket.publish(fresh_name(), 1)
    for thread in threads:
        thread.join()
    assert failures == []

    def logged() -> list[str]:
        ids = [line.get("request_id", "") for line in lines_of(client.daemon.root)]
        return [request_id for request_id in ids if request_id.startswith("load-")]

    until(lambda: set(logged()) >= given)
    assert len(logged()) == len(given)


def test_what_clients_can_provoke_does_not_flood_the_log(client: Client) -> None:
    before = len(lines_of(client.daemon.root))
    for _ in range(200):
        with RawConnection(client) as connection:
            connection.send(b"\x16\x03\x01\x00\x00\r\n\r\n")
    client.get("/v0/health")
    shown = [line for line in lines_of(client.daemon.root)[before:] if line["level"] != "debug"]
    assert len(shown) < 200


# --- the form --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def human(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("human"), log_level="debug", log_format="human") as client:
        yield client


def test_for_people_a_request_is_one_line_without_anything_that_a_terminal_would_obey(human: Client) -> None:
    last = fresh_name("last")
    with RawConnection(human) as connection:
        connection.send_head("GET", "/v0/topics/\x1b[2J\x9b31m%0Aa", x_request_id="\x1b[31m")
        connection.receive_error(400)
        connection.send_head("\x1b[2J", "/")
    human.get("/v0/health", headers={"x-request-id": last})
    until(lambda: last in (human.daemon.root / "log").read_text())
    text = (human.daemon.root / "log").read_text()
    assert all(line.isprintable() for line in text.split("\n"))
    line = next(line for line in text.splitlines() if f"request_id={last}" in line)
    for part in ("request", "status=200", "route='GET /v0/health'", "debug"):
        assert part in line


# --- what an operator needs ------------------------------------------------------------------------------------------


def test_a_life_of_the_daemon_is_told_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, wal_shards=2)
    try:
        client = daemon.start()
        client.append("a", *range(10))
        assert daemon.end() == 0
        first = lines_of(tmp_path)
        at_times = ("checkpoint", "wal_file_dropped", "wal_loop_writes_paused")
        events = [line["event"] for line in first if line["event"] not in at_times]
        assert events == [
            "recovering", "log_replayed", "recovered", "ready", "draining", *["drain_stage"] * 5, "drained",
        ]  # fmt: skip
        stages = [line["done"] for line in first if line["event"] == "drain_stage"]
        assert stages == ["requests", "commits in flight", "wal shard 0", "wal shard 1", "the last snapshot"]
        assert first[-1]["clean"] is True
        assert first[-1]["ms"] >= sum(line["ms"] for line in first if line["event"] == "drain_stage") - 5
        assert all("request_id" not in line for line in first)

        client = daemon.start()
        client.append("a", *range(10))
        client.append("b", 1, config={"durability": "ephemeral"})
        daemon.end(signal.SIGKILL)
        daemon.start()
        second = lines_of(tmp_path)[len(first) :]
        clean, killed = (line for line in second if line["event"] == "log_replayed")
        assert (clean["topics"], killed["topics"]) == (1, 2)
        assert killed["frames"] > clean["frames"] >= 0
        assert (killed["failed_before"], killed["salvaged"]) == ([], False)
        [lost] = [line for line in second if line["event"] == "seqs_lost"]
        assert (lost["level"], lost["topics"], lost["by_class"]) == ("info", 1, {"ephemeral": 1})
        assert lost["examples"] == [f"b 1..{lost['seqs']}"]
    finally:
        daemon.kill()


def test_a_second_signal_is_told_too(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    client = daemon.start()
    with RawConnection(client) as connection:
        fields = {"content_type": "application/json", "content_length": "100", "expect": "100-continue"}
        connection.send_head("POST", "/v0/topics/a", **fields)
        assert connection.socket.recv(1 << 16).startswith(b"HTTP/1.1 100 ")  # it waits for the body
        daemon.send_signal(signal.SIGTERM)
        until(lambda: "draining" in events_of(tmp_path))
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait() == 130
    last = lines_of(tmp_path)[-1]
    assert (last["event"], last["signal"], last["waiting_for"]) == ("stopped_at_once", "SIGTERM", "requests")


def test_a_disk_that_is_nearly_full_is_told_once_and_so_is_an_odd_configuration(tmp_path: Path) -> None:
    with running(tmp_path, min_free_bytes="1000TiB", no_such_setting="1") as client:
        until(lambda: "disk_nearly_full" in events_of(tmp_path))
        assert client.send_append("a", 1).status_code == 503
    [line] = [line for line in lines_of(tmp_path) if line["event"] == "disk_nearly_full"]
    assert line["free_bytes"] < line["min_free_bytes"] == 1000 << 40
    assert "consequence" in line
    said = [line for line in (tmp_path / "log").read_text().splitlines() if "TOPICS_NO_SUCH_SETTING" in line]
    assert len(said) == 1


def test_a_daemon_whose_log_nobody_reads_goes_on_and_stops_in_order(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    reader = os.open(tmp_path / "log", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    daemon = Daemon(tmp_path, log_level="debug", log_format="json")
    try:
        client = daemon.start()
        with connect(client, "/v0/topics/a/stream"):
            pass
        long = "x" * 128
        for number in range(60):
            assert client.get("/v0/health", headers={"x-request-id": f"{long[3:]}{number:03}"}).status_code == 200
        assert daemon.end() == 0
    finally:
        if daemon._process is not None:
            daemon._process.kill()
        written = os.read(reader, 1 << 20)
        os.close(reader)
    assert written.count(b"\n") < 60, "it has been full"
