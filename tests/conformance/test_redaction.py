"""Section 12: tokens are never logged, nor shown in any other way."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import JSON_TYPE, Client, RawConnection, fresh_name, running, until
from tests.conformance.keys import bearer
from tests.conformance.sse import Cut, Ended, connect, stream
from tests.conformance.websocket import WebSocket, shake_hands

BOSS, READER, WRITER = "Zq7boss0Kx", "Zq7read0Kx", "Zq7write0Kx"
NOBODY, LATER = "Zq7nobody0Kx", "Zq7later0Kx"
TRACE, TAIL = "Zq7", "0Kx"
"""How all of them begin and end, so that parts of them are found too."""

TOKENS = [BOSS, READER, WRITER, NOBODY]


@dataclass
class Watched:
    """A daemon that says as much as it can, and everything that it has answered."""

    client: Client
    keys_file: Path
    audit: Path
    answers: list[bytes] = field(default_factory=list)
    begin: int = 0
    """How long the log was before the test."""

    def request(self, method: str, path: str, token: str = BOSS, body: object = None) -> None:
        with Client(self.client.daemon) as fresh:
            answer = fresh.request(method, path, json=body, headers=bearer(token))
        self.answers.append(str(answer.headers).encode() + answer.content)

    def raw(self, *lines: str, body: bytes = b"") -> None:
        """Send a request as it stands, and keep what comes until the other side hangs up."""
        with RawConnection(self.client) as connection:
            connection.send("\r\n".join([*lines, "connection: close", "", ""]).encode("latin-1") + body)
            connection.socket.settimeout(5)
            while True:
                try:
                    part = connection.socket.recv(1 << 16)
                except (ConnectionError, TimeoutError):
                    return
                if not part:
                    return
                self.answers.append(part)

    @property
    def log(self) -> bytes:
        return (self.client.daemon.root / "log").read_bytes()[self.begin :]

    def check(self) -> None:
        """No part of a token is in any place where one should not be."""
        request_id = fresh_name("last")

        def is_logged() -> bool:
            # Not every one of many in a second is.
            self.client.get("/v0/health", headers={"x-request-id": request_id})
            return request_id.encode() in self.log

        until(is_logged)
        places = {"log": self.log, "answers": b"\n".join(self.answers), "audit": self.audit.read_bytes()}
        for name, content in places.items():
            for token in (TRACE, TAIL):
                at = content.find(token.encode())
                assert at < 0, (name, content[max(0, at - 300) : at + 100])


@pytest.fixture(scope="module", params=["json", "human"])
def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("redaction")
    keys_file, audit = root / "keys", root / "audit"
    keys_file.write_text(f"{READER}:r:a\n{WRITER}:w\n")
    settings = {
        "api_keys": BOSS, "api_keys_file": keys_file, "audit_log": audit, "log_level": "debug", "slow_request_ms": 1,
        "log_format": request.param, "max_sse_connections_per_key": 2, "rate_per_key": "100000/1000000000",
    }  # fmt: skip
    with running(root, **settings) as client:
        watched = Watched(client, keys_file, audit)
        watched.request("PUT", "/v0/topics/a", BOSS, {})
        watched.check()
        yield watched


@pytest.fixture
def watched(started: Watched) -> Watched:
    """Watched from now on."""
    return replace(started, begin=len(started.log), answers=[])


def test_of_headers_nothing_is_told(watched: Watched) -> None:
    for token in TOKENS:
        calls: list[tuple[str, str, Any]] = [
            ("GET", "/v0/topics", None), ("GET", "/v0/topics/a", None), ("PUT", "/v0/topics/b", {}),
            ("PUT", "/v0/topics/b", {"bad": 1}), ("POST", "/v0/topics/a", {"records": [{"data": 1}]}),
            ("POST", "/v0/topics/a", {"records": 7}), ("GET", "/v0/nothing", None), ("PATCH", "/v0/topics/a", None),
            ("GET", "/v0/topics/a/diff?wait_ms=20&from_seq=999", None), ("GET", "/v0/metrics", None),
            ("GET", "/v0/health", None), ("DELETE", "/v0/topics/b", None), ("POST", "/v0/admin/checkpoint", None),
            ("PUT", "/v0/routers/r", {"source": "a", "dest": "c"}), ("DELETE", "/v0/routers/r", None),
            ("POST", "/v0/watch", {"topics": {"a": {}}}), ("GET", "/v0/watch/wid_x", None), ("GET", "/v0/ws", None),
            ("GET", "/v0/openapi.json", None), ("GET", "/v0/docs", None), ("POST", "/v0/topics/a/claim", {"node": "n"}),
        ]  # fmt: skip
        for method, path, body in calls:
            watched.request(method, path, token, body)
    for value in (f"Basic {BOSS}", BOSS, f"Bearer  {BOSS}", f"Bearer {BOSS} {NOBODY}", f'Bearer token="{BOSS}"',
                  f"bearer\t{BOSS}", f"Bearer:{BOSS}", f"Digest username={BOSS}"):  # fmt: skip
        watched.raw("GET /v0/topics HTTP/1.1", "host: x", f"authorization: {value}")
    watched.check()


def test_of_queries_nothing_is_told(watched: Watched) -> None:
    for token in TOKENS:
        for path in (
            "/v0/topics/a/stream?from_seq=x", "/v0/topics/none/stream?x=y", "/v0/topics/-bad/stream?x=y",
            "/v0/topics/a/work?node=n", "/v0/watch/wid_x?x=y", "/v0/watch/wid_x?x", "/v0/ws?x=y", "/v0/topics?prefix=a",
            "/v0/topics?page_size=x", "/v0/topics/a?touch=x", "/v0/metrics?x=y", "/v0/health?x=y", "/v0/nothing?x=y",
            "/v0/topics/a/diff?from_seq=1", "/v0/topics/a/diff?limit=x", "/?x=y",
        ):  # fmt: skip
            for name in ("token", "Token", "access_token", "%74oken"):
                if "/stream" in path or "/work" in path:
                    # What is let in is a stream, which has no end.
                    with connect(watched.client, f"{path}&{name}={token}") as events:
                        watched.answers.append(repr(events.headers).encode())
                else:
                    watched.raw(f"GET {path}&{name}={token} HTTP/1.1", "host: x")
        with stream(watched.client, "a", how={"headers": bearer(READER)}, token=token):
            pass
        for query in (f"?token={token}", f"?token={token}&token={token}"):
            watched.answers.append(
                repr(shake_hands(watched.client, f"/v0/ws{query}", sec_websocket_version="12")).encode()
            )
            watched.answers.append(repr(shake_hands(watched.client, f"/v0/topics{query}")).encode())
    watched.check()


def test_of_what_is_no_request_nothing_is_told(watched: Watched) -> None:
    for lines in (
        [f"GET /v0/topics?token={BOSS} HTTP/9.9", "host: x"],
        [f"GET /v0/topics?token={BOSS}", "host: x"],
        [f"GET /v0/to pics?token={BOSS} HTTP/1.1", "host: x"],
        [f"G\x00T /v0/topics?token={BOSS} HTTP/1.1", "host: x"],
        [f"GET /v0/topics?token={BOSS} HTTP/1.1"],
        ["GET /v0/topics HTTP/1.1", "host: x", f"authorization: Bearer {BOSS}\x00"],
        ["GET /v0/topics HTTP/1.1", "host: x", f"authorization : Bearer {BOSS}"],
        ["GET /v0/topics HTTP/1.1", "host: x", f"Bearer {BOSS}"],
        ["POST /v0/topics/a HTTP/1.1", "host: x", f"authorization: Bearer {BOSS}", "content-length: x"],
        ["POST /v0/topics/a HTTP/1.1", "host: x", f"authorization: Bearer {BOSS}", "transfer-encoding: x"],
        ["GET /v0/topics HTTP/1.1", "host: x", f"authorization: Bearer {BOSS}" + "x" * 200_000],
        [f"GET http://{BOSS}@x/v0/topics?token={BOSS} HTTP/1.1", "host: x"],
        [f"GET /v0/topics/%ff?token={BOSS} HTTP/1.1", "host: x", f"authorization: Bearer {BOSS}"],
        [f"GET /v0/topics/a/stream?token=%ff{NOBODY} HTTP/1.1", "host: x"],
        ["GET /v0/topics HTTP/1.1", "host: x", f"authorization: Bearer {BOSS}", "upgrade: h2c",
         "connection: upgrade, http2-settings", f"http2-settings: {NOBODY}"],
    ):  # fmt: skip
        watched.raw(*lines)
    # Cut off within the head, and within a body.
    with RawConnection(watched.client) as connection:
        connection.send(f"GET /v0/topics?token={BOSS} HTTP/1.1\r\nauthorization: Bearer {BOSS}\r\n".encode())
    with RawConnection(watched.client) as connection:
        connection.send_head("POST", "/v0/topics/a", content_type=JSON_TYPE, content_length="100", **bearer(BOSS))
        connection.send(b'{"rec')
    watched.check()


def test_of_sockets_nothing_is_told(watched: Watched) -> None:
    with WebSocket(watched.client, f"/v0/ws?token={WRITER}") as ws:
        ws.refused("forbidden", "subscribe", topic="a")
        ws.send_text("{")
        ws.works()
    with WebSocket(watched.client, headers=bearer(BOSS).items()) as ws:
        ws.subscribe("a")
        ws.works()
        with WebSocket(watched.client, headers=bearer(BOSS).items()):
            # One more than there may be.
            watched.answers.append(repr(shake_hands(watched.client, f"/v0/ws?token={BOSS}", **bearer(BOSS))).encode())
    watched.check()


def test_of_keys_that_come_and_go_nothing_is_told(watched: Watched) -> None:
    with stream(watched.client, "a", how={"headers": bearer(READER)}) as events:
        for text in (f"{LATER}:root", f"{LATER}\n{LATER}", f"{LATER}::-x", f"{LATER}:r\n{WRITER}:w\n"):
            watched.keys_file.write_text(text)
            said = len(watched.log)
            watched.client.daemon.send_signal(signal.SIGHUP)
            until(lambda said=said: len(watched.log) > said)  # type: ignore[misc]
        until(lambda: watched.client.get("/v0/topics", headers=bearer(LATER)).status_code == 200)
        with suppress(Cut, Ended):
            while events.transport.receive(5):
                pass
    watched.check()


def test_log_and_audit_tell_what_was_asked_without_it(watched: Watched) -> None:
    watched.request("PUT", f"/v0/topics/told?token={NOBODY}", BOSS, {"cap_records": "x"})
    watched.request("PUT", f"/v0/topics/told?token={NOBODY}", NOBODY, {})
    watched.check()
    lines = [json.loads(line) for line in watched.audit.read_text().splitlines()]
    assert [line["status"] for line in lines if line.get("topic") == "told"] == [400, 401]
