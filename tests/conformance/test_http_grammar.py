"""Section 1, where HTTP leaves a choice or a trap: fields given twice, upgrades, 100 Continue, lines, methods."""

from __future__ import annotations

import json
import socket
import struct
from base64 import urlsafe_b64encode
from collections.abc import Iterator

import pytest

from tests.conformance.client import Client, RawConnection, envelope, fresh_name, running
from tests.conformance.test_hostile_connections import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    OPEN,
    block,
    frame,
    get,
    handshake,
    statuses_of,
)
from tests.conformance.websocket import WebSocket, raw_frame

BOTH_WAYS = True

KEYS = "first,second"
FIRST = "authorization: Bearer first\r\n"


@pytest.fixture(scope="module")
def client(http_lane: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("grammar"), api_keys=KEYS, max_body_bytes=1 << 20) as client:
        client.headers["authorization"] = "Bearer first"
        yield client


@pytest.fixture(autouse=True)
def undisturbed(client: Client) -> Iterator[None]:
    yield
    assert client.get("/v0/health").status_code == 200
    written = (client.daemon.root / "log").read_text(errors="replace")
    assert "Traceback" not in written, written[-5000:]
    assert "_failed" not in written, written[-5000:]


def exchange(client: Client, sent: str | bytes) -> bytes:
    """Send, end, and receive everything up to the close."""
    with RawConnection(client) as connection:
        connection.send(sent.encode("latin-1") if isinstance(sent, str) else sent)
        connection.socket.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.socket.recv(1 << 16):
            answer += part
    return answer


def statuses(client: Client, sent: str) -> list[int]:
    """Of all answers; bodies hold no line that looks like one."""
    return [int(part[:3]) for part in exchange(client, sent).split(b"HTTP/1.1 ")[1:]]


def head(method: str = "GET", target: str = "/v0/topics", *fields: str) -> str:
    return "\r\n".join([f"{method} {target} HTTP/1.1", "host: x", *fields, "", ""])


@pytest.mark.parametrize("host", ["x..y", "x.", ".x", "-", "xn--a", "[::1", "a" * 300, "a:b:c", "é", ""])
@pytest.mark.parametrize("target", ["/v0/health", "/v0/topics", "/v0/nowhere"])
def test_no_host_is_the_daemons_failure(client: Client, host: str, target: str) -> None:
    (status,) = statuses(client, head("GET", target, FIRST.strip()).replace("host: x", f"host: {host}"))
    assert status < 500


NO_HOSTS = [
    "", "a:b", "a:b:c", "a:65536", "a:99999", "a:-1", "a:+80", "a: 80", "a:8 0", "a, b", "a,b", "a b", ":80",
    "[::1", "::1", "[::1]x", "[x]:1", "[evil]", "[]", "[::1]:65536", "u@a", "u:p@a:80", "http://a", "a/b", "a?b",
    "a#b", "a\\b", "%", "a%zz", "<a>", "é", "x..y", ".....", ".", ".x", "x..", "x..y:80",
]  # fmt: skip
HOSTS = [
    "x", "x.", "a.b-c_d~e", "127.0.0.1", "127.0.0.1:0", "x:", "x:80", "x:00080", "x:65535", "[::1]", "[::1]:4000",
    "[::]:", "a%20b", "a!$&'()*+;=",
]  # fmt: skip


@pytest.mark.parametrize("target", ["/v0/health", "/v0/topics", "/v0/nowhere"])
def test_a_value_that_is_no_host_is_a_bad_request(client: Client, target: str) -> None:
    for host in NO_HOSTS:
        sent = head("GET", target, FIRST.strip()).replace("host: x", f"host: {host}")
        assert statuses(client, sent) == [400], host
        assert statuses(client, sent.replace("HTTP/1.1", "HTTP/1.0")) == [400], host
        assert statuses_of(exchange(client, OPEN + get(1, target, authority=host))) in ([400], []), host


def test_every_value_that_is_a_host_is_taken_where_there_are_keys(client: Client) -> None:
    for host in HOSTS:
        assert statuses(client, head("GET", "/v0/health").replace("host: x", f"host: {host}")) == [200], host
        assert statuses_of(exchange(client, OPEN + get(1, "/v0/health", authority=host))) == [200], host


@pytest.mark.parametrize(
    "sent",
    [
        "get / HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: localhost:99999\r\nx-request-id: mine\r\n\r\n",
        "nonsense\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\nx: " + "y" * 300_000 + "\r\n\r\n",
    ],
    ids=["a method", "a host", "nonsense", "a long head"],
)
def test_the_answer_to_what_is_not_http_has_a_request_id_and_a_line_end(client: Client, sent: str) -> None:
    with RawConnection(client) as connection:
        connection.send(sent.encode())
        status, headers, body = connection.receive()
    assert 400 <= status < 500
    assert headers["x-request-id"]
    assert body.endswith(b"}\n")
    envelope(json.loads(body))


def test_http_1_1_has_one_host_and_http_1_0_may_have_none(client: Client) -> None:
    assert statuses(client, "GET /v0/health HTTP/1.1\r\n\r\n") == [400]
    assert statuses(client, "GET http://x/v0/health HTTP/1.1\r\n\r\n") == [400]
    assert statuses(client, "GET /v0/health HTTP/1.0\r\n\r\n") == [200]


ABSOLUTE = [
    ("http://x/v0/health", 200), ("HTTP://x/v0/health", 200), ("https://x:443/v0/health", 200),
    ("http://[::1]:1/v0/health", 200), ("http://other.example/v0/topics?limit=1", 401), ("http://x", 200),
    ("http://x?a=b", 200), ("http://x/", 200), ("http:///v0/health", 400), ("http://:80/v0/health", 400),
    ("http://u@x/v0/health", 400), ("http://a:b/v0/health", 400), ("http://x:65536/v0/health", 400),
    ("http:/v0/health", 400), ("http:v0/health", 400), ("ftp://x/v0/health", 400), ("urn:x", 400),
    ("http://x#/v0/health", 400), ("ws://x/v0/health", 400), ("http://a,b/v0/health", 400),
]  # fmt: skip


@pytest.mark.parametrize(("target", "status"), ABSOLUTE)
def test_a_target_with_an_authority_is_taken_for_its_path(client: Client, target: str, status: int) -> None:
    assert statuses(client, head("GET", target)) == [status]
    assert statuses(client, head("GET", target).replace("host: x", "host: a:b")) == [400]


def test_a_query_of_a_target_with_an_authority_is_read(client: Client) -> None:
    topic = fresh_name()
    client.append(topic, *range(3))
    answer = exchange(client, head("GET", f"http://x/v0/topics/{topic}/diff?limit=1", FIRST + "connection: close"))
    assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["records"]) == 1


@pytest.mark.parametrize(
    "field",
    [
        "authorization: Bearer {}",
        "content-type: application/{}",
        "content-encoding: {}",
        "idempotency-key: {}",
        "last-event-id: {}",
        "host: {}",
    ],
)
def test_a_field_that_says_one_thing_may_not_be_there_twice(client: Client, field: str) -> None:
    both = [field.format("first"), field.format("second")]
    if not field.startswith("authorization"):
        both.append(FIRST.strip())
    assert statuses(client, head("GET", "/v0/topics", *both)) == [400]
    fields = [tuple(line.split(": ")) for line in both]
    answer = exchange(client, OPEN + get(1, "/v0/topics", *[(name, value) for name, value in fields]))
    assert statuses_of(answer) in ([400], [])  # h2 itself ends a connection with two hosts


def test_an_authority_and_another_host_are_refused(client: Client) -> None:
    assert statuses_of(exchange(client, OPEN + get(1, "/v0/health", ("host", "y")))) == []
    assert statuses_of(exchange(client, OPEN + get(1, "/v0/health", ("host", "x")))) == [200]


@pytest.mark.parametrize("method", ["get", "Get", "gET"])
def test_methods_are_in_upper_case(client: Client, method: str) -> None:
    assert statuses(client, head(method, "/v0/health")) == [400]
    assert statuses_of(exchange(client, OPEN + get(1, method=method))) == [400]


def test_one_empty_line_before_a_request_is_skipped(client: Client) -> None:
    request = head("GET", "/v0/health")
    assert statuses(client, f"\r\n{request}\r\n{request}{request}\r\n") == [200, 200, 200]
    assert statuses(client, f"\r\n\r\n{request}") == [400]
    with RawConnection(client) as connection:
        for byte in f"\r\n{request}".encode():
            connection.send(bytes([byte]))
        assert connection.receive()[0] == 200


LINES = {
    "a line feed": "GET /v0/health HTTP/1.1\nhost: x\n\n",
    "a line feed in the head": "GET /v0/health HTTP/1.1\r\nhost: x\na: b\r\n\r\n",
    "a line feed at the end": "GET /v0/health HTTP/1.1\r\nhost: x\r\n\n",
    "a folded field": "GET /v0/health HTTP/1.1\r\nhost: x\r\na: b\r\n c\r\n\r\n",
    "a folded field with a tab": "GET /v0/health HTTP/1.1\r\nhost: x\r\na: b\r\n\tc\r\n\r\n",
    "a line feed in trailers": head("POST", "/v0/topics/t/diff", FIRST + "content-type: application/json")[:-2]
    + "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\na: b\nc: d\r\n\r\n",
    "47,000 trailers": head("POST", "/v0/topics/t/diff", FIRST + "content-type: application/json")[:-2]
    + "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    + "a:b\r\n" * 47_000
    + "\r\n",
    "a long connection": head("GET", "/v0/health", "connection: " + "," * 100_000),
    "a long expectation": head("GET", "/v0/health", "expect: " + "," * 100_000),
}


@pytest.mark.parametrize("sent", LINES.values(), ids=LINES.keys())
def test_lines_that_a_proxy_may_see_differently_are_refused(client: Client, sent: str) -> None:
    (status,) = statuses(client, sent)
    assert status in (400, 431)


def test_few_trailers_are_ignored(client: Client) -> None:
    topic = fresh_name()
    client.append(topic, "x")
    upload = head("POST", f"/v0/topics/{topic}/diff", FIRST + "content-type: application/json")[:-2]
    upload += "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\na: b\r\nc: d\r\n\r\n"
    assert statuses(client, upload + head("GET", "/v0/health")) == [200, 200]


# 100 Continue


UNWANTED = [
    (path, fields, status)
    for path in ("/v0/topics/t", "/v0/topics/t?stage=s", "/v0/watch", "/v0/admin/checkpoint")
    for fields, status in (
        ("content-type: application/json\r\ncontent-length: 20", 401),
        (FIRST + "content-type: application/json\r\ncontent-length: 2000000", 413),
        (FIRST + "content-type: text/plain\r\ncontent-length: 20", 415),
        (FIRST + "content-length: 20", 415),
        ("content-type: application/json\r\ntransfer-encoding: chunked", 401),
        (FIRST + "content-type: text/plain\r\ntransfer-encoding: chunked", 415),
        (FIRST + "transfer-encoding: chunked", 415),
    )
    if (path, status) != ("/v0/admin/checkpoint", 413)  # what a checkpoint does not read may be longer
]


@pytest.mark.parametrize(("path", "fields", "status"), UNWANTED)
def test_a_body_that_is_not_wanted_is_not_asked_for(client: Client, path: str, fields: str, status: int) -> None:
    with RawConnection(client) as connection:
        connection.send(head("POST", path, "expect: 100-continue", fields).encode())
        response = b""
        while part := connection.socket.recv(1 << 16):
            response += part
    assert response.startswith(b"HTTP/1.1 %d " % status), response
    assert b"\r\nconnection: close\r\n" in response.lower()


def test_a_body_that_is_wanted_is_asked_for_once(client: Client) -> None:
    body = b'{"records":[{"data":1}]}'
    topic = fresh_name()
    for status in (b"201", b"200"):
        with RawConnection(client) as connection:
            fields = FIRST + f"content-type: application/json\r\ncontent-length: {len(body)}"
            connection.send(head("POST", f"/v0/topics/{topic}", "expect: 100-continue", fields).encode())
            asked = connection.socket.recv(1 << 16)
            assert asked.startswith(b"HTTP/1.1 100 ")
            assert asked.count(b"HTTP/1.1") == 1
            connection.send(body)
            assert connection.socket.recv(1 << 16).startswith(b"HTTP/1.1 " + status)
    assert client.state(topic)["count"] == 2


# Upgrades

VALUE = urlsafe_b64encode(struct.pack(">HI", 3, 100)).decode()
NOT_UPGRADES = {
    "no settings": ("connection: Upgrade", "upgrade: h2c"),
    "no connection": ("upgrade: h2c", f"http2-settings: {VALUE}"),
    "settings that are not in connection": ("connection: Upgrade", "upgrade: h2c", f"http2-settings: {VALUE}"),
    "an upgrade that is not in connection": ("connection: HTTP2-Settings", "upgrade: h2c", f"http2-settings: {VALUE}"),
    **{
        name: ("connection: Upgrade, HTTP2-Settings", "upgrade: h2c", f"http2-settings: {value}")
        for name, value in {
            "empty settings": "",
            "settings in no base64": "!!!",
            "settings of three bytes": "AAAA",
            "settings with a window beyond any": urlsafe_b64encode(struct.pack(">HI", 4, 1 << 31)).decode(),
            "settings with frames of a byte": urlsafe_b64encode(struct.pack(">HI", 5, 1)).decode(),
            "settings that push": urlsafe_b64encode(struct.pack(">HI", 2, 9)).decode(),
        }.items()
    },
}


@pytest.mark.parametrize("fields", NOT_UPGRADES.values(), ids=NOT_UPGRADES.keys())
def test_what_is_no_upgrade_to_http2_is_answered_over_http1(client: Client, fields: tuple[str, ...]) -> None:
    assert statuses(client, head("GET", "/v0/health", *fields)) == [200]


def test_an_upgrade_to_http2_is_taken(client: Client) -> None:
    fields = ("connection: keep-alive, upgrade, HTTP2-Settings", "upgrade: h2c", f"http2-settings: {VALUE}")
    assert exchange(client, head("GET", "/v0/health", *fields)).startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    "value", ["", "x", "AAAA", "A" * 22 + "=", "A" * 22 + "===", "*" * 22 + "==", "A" * 21 + "B=="]
)
def test_a_key_of_a_websocket_is_16_bytes_in_base64(client: Client, value: str) -> None:
    fields = ("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13", FIRST.strip())
    with RawConnection(client) as connection:
        connection.send(handshake(*fields, f"sec-websocket-key: {value}").encode())
        status, _, body = connection.receive()
    assert status == 400
    envelope(json.loads(body))


# What is behind a refusal

SMUGGLED = f"DELETE /v0/topics/victim HTTP/1.1\r\nhost: x\r\n{FIRST}\r\n"
REFUSALS = {
    "401": ("POST", "/v0/topics/t", "content-type: application/json"),
    "404": ("POST", "/v0/nowhere", FIRST + "content-type: application/json"),
    "405": ("POST", "/v0/health", FIRST + "content-type: application/json"),
    "415": ("POST", "/v0/topics/t", FIRST + "content-type: text/plain"),
    "bad JSON": ("POST", "/v0/topics/t", FIRST + "content-type: application/json"),
    "bad gzip": ("POST", "/v0/topics/t", FIRST + "content-type: application/json\r\ncontent-encoding: gzip"),
    "a bad coding": ("POST", "/v0/topics/t", FIRST + "content-type: application/json\r\ncontent-encoding: br"),
    "a GET with a body": ("GET", "/v0/topics", FIRST.strip()),
    "a HEAD with a body": ("HEAD", "/v0/topics", FIRST.strip()),
    "an OPTIONS with a body": ("OPTIONS", "/v0/topics", FIRST.strip()),
    "no WebSocket": ("GET", "/v0/ws", FIRST + "connection: upgrade\r\nupgrade: websocket"),
    "no HTTP/2": ("GET", "/v0/topics", FIRST + "connection: upgrade\r\nupgrade: h2c"),
    "an expectation": ("POST", "/v0/topics/t", "content-type: application/json\r\nexpect: 100-continue"),
    "too much": ("POST", "/v0/topics/t", FIRST + "content-type: application/json"),
}


@pytest.mark.parametrize("chunked", [False, True], ids=["a length", "chunks"])
@pytest.mark.parametrize("name", REFUSALS)
def test_no_part_of_a_refused_body_is_taken_for_a_request(client: Client, name: str, chunked: bool) -> None:
    client.put_topic("victim")
    body = SMUGGLED * (20_000 if name == "too much" else 3)
    framed = f"{len(body):x}\r\n{body}\r\n0\r\n\r\n" if chunked else body
    framing = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    method, target, fields = REFUSALS[name]
    sent = head(method, target, fields, framing) + framed + head("GET", "/v0/health")
    with RawConnection(client) as connection:
        received = b""
        try:
            connection.send(sent.encode())
            connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is refused before it has been sent
        try:
            while part := connection.socket.recv(1 << 16):
                received += part
        except ConnectionError:
            pass
    answers = [part for part in received.split(b"HTTP/1.1 ")[1:] if not part.startswith(b"100 ")]
    # Where the connection is closed on what is still being sent, the kernel may drop the answer with it.
    assert (0 if name == "too much" else 1) <= len(answers) <= 2
    if len(answers) == 2:  # the body was read to its end, and what follows is the request behind it
        assert b'"status":"ok"' in answers[1]
    elif answers:
        assert b"\r\nconnection: close\r\n" in answers[0].lower()
    assert client.get("/v0/topics/victim").status_code == 200


# What would take long


def test_fields_of_commas_by_reference_hold_nobody(client: Client) -> None:
    commas = b"\x40" + b"\x0faccept-encoding" + b"\x7f\xa1\x1e" + b"," * 4000
    fields = block(("authorization", "Bearer first"), path="/v0/docs") + commas + b"\xbe" * 40
    answer = exchange(client, OPEN + frame(HEADERS, END_STREAM | END_HEADERS, 1, fields))
    assert statuses_of(answer) == [200]


@pytest.mark.parametrize("opcode", [0, 9, 10], ids=["fragments", "pings", "pongs"])
def test_thousands_of_frames_are_taken(client: Client, opcode: int) -> None:
    with WebSocket(client, headers=[("authorization", "Bearer first")]) as opened:
        opened.works()
        many = raw_frame(opcode, b" " if opcode == 0 else b"", fin=opcode != 0) * 20_000
        if opcode == 0:
            opened.send_bytes(raw_frame(1, b"{", fin=False) + many + raw_frame(0, b'"op":"ping"}'))
            assert opened.next_op("pong") is not None
        else:
            opened.send_bytes(many)
        opened.works()
