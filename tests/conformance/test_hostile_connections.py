"""Section 1, as seen by clients that break it: what is not HTTP is refused, who is slow or many is borne with, and none
of it is anybody else's affair."""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import pytest

from tests.conformance.client import JSON_TYPE, Client, RawConnection, envelope, running, until
from tests.conformance.sse import gauge
from tests.conformance.websocket import WebSocket, key, raw_frame

BOTH_WAYS = True

SETTINGS: dict[str, Any] = {
    "max_body_bytes": 1 << 20,
    "max_inflight_bytes": 1 << 20,
    "admission_ms": 200,
    "log_level": "info",
}

HEAD = "POST /v0/topics/h HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
APPEND = '{"records":[{"data":1}]}'


# What the daemon says and holds


def pid_of(client: Client) -> int:
    process = client.daemon._process
    assert process is not None
    return process.pid


def open_files(client: Client) -> int:
    return len(os.listdir(f"/proc/{pid_of(client)}/fd"))


def resident_bytes(client: Client) -> int:
    status = Path(f"/proc/{pid_of(client)}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


@contextmanager
def unmoved(client: Client) -> Iterator[None]:
    """After the body of the `with`, the daemon answers, has logged no failure, and has kept no descriptor."""
    log = client.daemon.root / "log"
    before, files = log.stat().st_size, open_files(client)
    yield
    assert client.get("/v0/health").status_code == 200
    until(lambda: open_files(client) <= files)
    with log.open("rb") as lines:
        lines.seek(before)
        written = lines.read().decode(errors="replace")
    assert "Traceback" not in written, written[:5000]
    assert "exc_type" not in written, written[:5000]
    assert re.search(r"(request|connection|stream|socket|command)_failed", written) is None, written[:5000]


@pytest.fixture(autouse=True)
def undisturbed(client: Client) -> Iterator[None]:
    assert client.get("/v0/health").status_code == 200  # opens the connection that stays
    with unmoved(client):
        yield


def exchange(client: Client, *parts: bytes) -> bytes:
    """Send, end, and receive everything up to the close."""
    with socket.create_connection(("127.0.0.1", client.daemon.port), timeout=40) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answer = b""
        try:
            for part in parts:
                connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it is refused before it has been sent
        try:
            while part := connection.recv(1 << 16):
                answer += part
        except ConnectionError:
            pass
    return answer


def is_refused(answer: bytes) -> None:
    """It is a 4xx in the envelope, or a close without a word."""
    if not answer:
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", head)
    assert status is not None, answer[:500]
    assert 400 <= int(status[1]) < 500, answer[:500]
    assert f"content-type: {JSON_TYPE}".encode() in head.lower()
    # What follows may be answered, too, if it is a request by itself.
    length = re.search(rb"(?i)content-length: (\d+)", head)
    assert length is not None
    envelope(json.loads(body[: int(length[1])]))


# HTTP/1.1

NOT_HTTP = {
    "nothing": "\r\n\r\n",
    "no version": "GET /v0/health\r\n\r\n",
    "HTTP/0.9": "GET /\r\n",
    "two spaces": "GET  /v0/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "a leading space": " GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tab": "GET\t/v0/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "a space in the target": "GET /v0/he alth HTTP/1.1\r\nhost: x\r\n\r\n",
    "a method that is none": "G{}T /v0/health HTTP/1.1\r\nhost: x\r\n\r\n",
    "a version that is none": "GET /v0/health HTTP/x\r\nhost: x\r\n\r\n",
    "another version": "GET /v0/health HTTP/3.7\r\nhost: x\r\n\r\n",
    "HTTP/2 in a line": "GET /v0/health HTTP/2.0\r\nhost: x\r\n\r\n",
    "almost a preface": "PRI /x HTTP/2.0\r\nhost: x\r\n\r\n",
    "another protocol": "GET /v0/health SIP/1.1\r\nhost: x\r\n\r\n",
    "TLS": "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a NUL in the line": "GET /v0/\0health HTTP/1.1\r\nhost: x\r\n\r\n",
    "a NUL in a name": "GET /v0/health HTTP/1.1\r\nhost: x\r\na\0b: c\r\n\r\n",
    "a NUL in a value": "GET /v0/health HTTP/1.1\r\nhost: x\r\na: b\0c\r\n\r\n",
    "a CR in a value": "GET /v0/health HTTP/1.1\r\nhost: x\r\na: b\rc: d\r\n\r\n",
    "a CR for a line end": "GET /v0/health HTTP/1.1\rhost: x\r\r\n\r\n",
    "a field that folds nothing": "GET /v0/health HTTP/1.1\r\n host: x\r\n\r\n",
    "a field without a name": "GET /v0/health HTTP/1.1\r\nhost: x\r\n: b\r\n\r\n",
    "a field without a colon": "GET /v0/health HTTP/1.1\r\nhost: x\r\nnonsense\r\n\r\n",
    "a space before a colon": "GET /v0/health HTTP/1.1\r\nhost: x\r\na : b\r\n\r\n",
    "no host": "GET /v0/health HTTP/1.1\r\n\r\n",
    "two hosts": "GET /v0/health HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "an 8-bit target": "GET /v0/topics/\xfc HTTP/1.1\r\nhost: x\r\n\r\n",
    "an absolute target": "GET http://elsewhere/nothing HTTP/1.1\r\nhost: x\r\n\r\n",
    "an authority": "CONNECT elsewhere:443 HTTP/1.1\r\nhost: x\r\n\r\n",
    "an asterisk": "OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
    "a fragment": "GET /v0/topics/a#b HTTP/1.1\r\nhost: x\r\n\r\n",
    "a tunnel over an upgrade": "connect /v0/ws HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "percent and nothing": "GET /v0/topics/% HTTP/1.1\r\nhost: x\r\n\r\n",
    "percent and no hex": "GET /v0/topics/%zz HTTP/1.1\r\nhost: x\r\n\r\n",
    "percent and no UTF-8": "GET /v0/topics/%ff HTTP/1.1\r\nhost: x\r\n\r\n",
    "an encoded NUL": "GET /v0/topics/%00 HTTP/1.1\r\nhost: x\r\n\r\n",
    "an encoded line end": "GET /v0/topics/%0d%0aa:%20b HTTP/1.1\r\nhost: x\r\n\r\n",
    "an encoded way out": "GET /v0/topics/..%2f..%2fetc HTTP/1.1\r\nhost: x\r\n\r\n",
    "a query that is no UTF-8": "GET /v0/topics?prefix=%ff%fe&page_size=%zz HTTP/1.1\r\nhost: x\r\n\r\n",
    "a target of 300 KiB": "GET /" + "x" * (300 << 10) + " HTTP/1.1\r\nhost: x\r\n\r\n",
    "a target of 100 KiB": "GET /v0/topics/" + "x" * (100 << 10) + " HTTP/1.1\r\nhost: x\r\n\r\n",
    "a query of 100 KiB": "GET /v0/topics?cursor=" + "%ff" * (32 << 10) + " HTTP/1.1\r\nhost: x\r\n\r\n",
    "a method of 300 KiB": "G" * (300 << 10),
    "a field of 300 KiB": "GET /v0/health HTTP/1.1\r\nhost: x\r\na: " + "b" * (300 << 10) + "\r\n\r\n",
    "fields of 300 KiB": "GET /v0/health HTTP/1.1\r\nhost: x\r\n" + ("a: " + "b" * 1000 + "\r\n") * 300 + "\r\n",
    "30,000 fields": "GET /v0/health HTTP/1.1\r\nhost: x\r\n" + "a:b\r\n" * 30_000 + "\r\n",
    "two lengths": HEAD + "content-length: 5\r\ncontent-length: 6\r\n\r\n{}",
    "two lengths in a line": HEAD + "content-length: 5, 6\r\n\r\n{}",
    "a length below nothing": HEAD + "content-length: -1\r\n\r\n",
    "a length with a sign": HEAD + "content-length: +24\r\n\r\n" + APPEND,
    "a length in hex": HEAD + "content-length: 0x18\r\n\r\n" + APPEND,
    "a length with a fraction": HEAD + "content-length: 24.0\r\n\r\n" + APPEND,
    "a length of other digits": HEAD + "content-length: \xb2\xb3\r\n\r\n" + APPEND,
    "a length without digits": HEAD + "content-length: \r\n\r\n" + APPEND,
    "a length of many digits": HEAD + "content-length: " + "9" * 100 + "\r\n\r\n" + APPEND,
    "a length of too many digits": HEAD + "content-length: " + "9" * 5000 + "\r\n\r\n" + APPEND,
    "a length and chunks": HEAD
    + "content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n18\r\n"
    + APPEND
    + "\r\n0\r\n\r\n",
    "chunks and a length": HEAD
    + "transfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n18\r\n"
    + APPEND
    + "\r\n0\r\n\r\n",
    "chunks twice": HEAD + "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in chunks": HEAD + "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "another coding": HEAD + "transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "almost chunked": HEAD + "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "no coding": HEAD + "transfer-encoding: identity\r\ncontent-length: 24\r\n\r\n" + APPEND,
    "a hidden coding": HEAD + "transfer-encoding:\x0bchunked\r\n\r\n18\r\n" + APPEND + "\r\n0\r\n\r\n",
    "a coding with a space": HEAD + "transfer-encoding : chunked\r\n\r\n18\r\n" + APPEND + "\r\n0\r\n\r\n",
    "chunks before their time": HEAD.replace("1.1", "1.0") + "transfer-encoding: chunked\r\n\r\n18\r\n" + APPEND,
    "a chunk's size that is none": HEAD + "transfer-encoding: chunked\r\n\r\nzz\r\n" + APPEND + "\r\n0\r\n\r\n",
    "a chunk's size with 0x": HEAD + "transfer-encoding: chunked\r\n\r\n0x18\r\n" + APPEND + "\r\n0\r\n\r\n",
    "a chunk's size below nothing": HEAD + "transfer-encoding: chunked\r\n\r\n-18\r\n" + APPEND + "\r\n0\r\n\r\n",
    "a chunk of a size beyond any": HEAD + "transfer-encoding: chunked\r\n\r\n" + "f" * 30 + "\r\n" + APPEND,
    "a chunk of nearly all there is": HEAD + "transfer-encoding: chunked\r\n\r\n" + "f" * 16 + "\r\n" + APPEND,
    "a chunk without its size": HEAD + "transfer-encoding: chunked\r\n\r\n\r\n" + APPEND + "\r\n0\r\n\r\n",
    "a chunk longer than its size": HEAD + "transfer-encoding: chunked\r\n\r\n2\r\n" + APPEND + "\r\n0\r\n\r\n",
    "an endless extension": HEAD + "transfer-encoding: chunked\r\n\r\n18;a=" + "b" * (300 << 10),
    "endless trailers": HEAD + "transfer-encoding: chunked\r\n\r\n0\r\n" + "a: b\r\n" * 60_000,
    "no 100": HEAD + "expect: 200-maybe\r\ncontent-length: 2000000\r\n\r\n",
}


@pytest.mark.parametrize("request_", NOT_HTTP.values(), ids=NOT_HTTP.keys())
def test_what_is_not_http_is_refused(client: Client, request_: str) -> None:
    is_refused(exchange(client, request_.encode("latin-1")))
    assert client.get("/v0/topics/h").status_code == 404


def test_what_is_refused_is_the_end_of_its_connection(client: Client) -> None:
    smuggled = HEAD + f"content-length: {len(APPEND)}\r\n\r\n{APPEND}"
    for framing in (
        "content-length: 4\r\ntransfer-encoding: chunked",
        "transfer-encoding: chunked\r\ncontent-length: 4",
    ):
        answer = exchange(client, f"{HEAD}{framing}\r\n\r\n0\r\n\r\n{smuggled}".encode())
        assert answer.count(b"HTTP/1.1 ") == 1
        is_refused(answer)
    assert client.get("/v0/topics/h").status_code == 404


def test_what_comes_byte_by_byte_is_the_same(client: Client) -> None:
    for request in (b"GET /v0/he alth HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n"):
        answer = exchange(client, *(bytes([byte]) for byte in request))
        assert answer.startswith(b"HTTP/1.1 400 " if b"he alth" in request else b"HTTP/1.1 200 ")


# HTTP/2

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SET, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    length = len(payload) if length is None else length
    return length.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


OPEN = PREFACE + frame(SET, 0, 0)
END_STREAM, END_HEADERS = 1, 4


def block(*fields: tuple[str, str], path: str = "/v0/health", method: str = "GET", authority: str = "x") -> bytes:
    """A block of headers, none of it compressed, and none of it looked at."""
    pseudo = ((":method", method), (":scheme", "http"), (":path", path), (":authority", authority))
    return literal(*pseudo, *fields)


def literal(*fields: tuple[str, str]) -> bytes:
    def string(text: str) -> bytes:
        content = text.encode("latin-1")
        return (bytes([len(content)]) if len(content) < 127 else b"\x7f" + varint(len(content) - 127)) + content

    return b"".join(b"\0" + string(name) + string(value) for name, value in fields)


def varint(number: int) -> bytes:
    content = b""
    while number >= 128:
        content += bytes([number & 127 | 128])
        number >>= 7
    return content + bytes([number])


def get(
    stream: int, path: str = "/v0/health", *fields: tuple[str, str], method: str = "GET", authority: str = "x"
) -> bytes:
    content = block(*fields, path=path, method=method, authority=authority)
    return frame(HEADERS, END_STREAM | END_HEADERS, stream, content)


NOT_HTTP2 = {
    "garbage": OPEN + os.urandom(2000),
    "garbage for settings": PREFACE + b"\xff" * 100,
    "no end of the preface": PREFACE[:-2] + b"xx",
    "a request before the settings": PREFACE + get(1),
    "settings of no length": OPEN + frame(SET, 0, 0, b"\0\0\0"),
    "settings of a stream": OPEN + frame(SET, 0, 1, b"\0\4\0\0\0\0"),
    "an acknowledgement with settings": OPEN + frame(SET, 1, 0, b"\0\4\0\0\0\0"),
    "a window beyond any": OPEN + frame(SET, 0, 0, struct.pack(">HI", 4, 1 << 31)),
    "frames below the least": OPEN + frame(SET, 0, 0, struct.pack(">HI", 5, 1)),
    "a push that is neither": OPEN + frame(SET, 0, 0, struct.pack(">HI", 2, 7)),
    "a frame beyond the limit": OPEN + frame(DATA, 0, 1, length=1 << 23),
    "data of the connection": OPEN + frame(DATA, 0, 0, b"x"),
    "data of no stream": OPEN + frame(DATA, 0, 1, b"x"),
    "data after the end": OPEN + get(1) + frame(DATA, 0, 1, b"x"),
    "more padding than there is": OPEN + frame(HEADERS, END_HEADERS | END_STREAM | 8, 1, b"\xff"),
    "headers of the connection": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 0, block()),
    "headers of an even stream": OPEN + get(2),
    "headers of a stream that is over": OPEN + get(5) + get(3),
    "headers that cannot be decoded": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xff" * 20),
    "an index beyond the table": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\xbf"),
    "a table beyond any": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x3f" + varint(1 << 40) + block()),
    "bad Huffman": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\0\x84\xff\xff\xff\xff\0"),
    "a continuation of nothing": OPEN + frame(CONTINUATION, END_HEADERS, 1, b""),
    "a continuation of another": OPEN + frame(HEADERS, END_STREAM, 1, block()) + frame(CONTINUATION, END_HEADERS, 3),
    "a ping within a block": OPEN + frame(HEADERS, END_STREAM, 1, block()) + frame(PING, 0, 0, bytes(8)),
    "endless continuations": OPEN
    + frame(HEADERS, END_STREAM, 1, block())
    + frame(CONTINUATION, 0, 1, b"\0\1a\1b") * 5000,
    "large continuations": OPEN
    + frame(HEADERS, END_STREAM, 1, block())
    + frame(CONTINUATION, 0, 1, literal(("a", "b" * 16_000))) * 60,
    "a bomb": OPEN
    + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x40\1a\x7f" + varint(3000 - 127) + b"b" * 3000 + b"\xbe" * 10_000),
    "5000 fields of a byte": OPEN
    + frame(HEADERS, END_HEADERS | END_STREAM, 1, block() + b"\x40\1a\1b" + b"\xbe" * 5000),
    "5000 sizes of a table": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, b"\x20" * 5000 + block()),
    "no path": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1, literal((":method", "GET"), (":scheme", "http"))),
    "nothing at all": OPEN + frame(HEADERS, END_HEADERS | END_STREAM, 1),
    "an empty path": OPEN + get(1, ""),
    "an 8-bit path": OPEN + get(1, "/v0/topics/\xfc"),
    "a path with a space": OPEN + get(1, "/v0/he alth"),
    "a path with a line end": OPEN + get(1, "/v0/topics/a\r\nb: c"),
    "a path with a NUL": OPEN + get(1, "/v0/topics/a\0"),
    "a path that is none": OPEN + get(1, "nothing"),
    "an 8-bit method": OPEN + get(1, method="G\xcbT"),
    "a method with a space": OPEN + get(1, method="G T"),
    "an empty method": OPEN + get(1, method=""),
    "no tunnel": OPEN
    + frame(HEADERS, END_HEADERS, 1, literal((":method", "CONNECT"), (":authority", "x:1")))
    + frame(DATA, 0, 1, b"x" * 1000),
    "a tunnel in lower case": OPEN + get(1, "/v0/ws", method="connect"),
    "a tunnel of another protocol": OPEN
    + frame(HEADERS, END_HEADERS, 1, block((":protocol", "connect-udp"), path="/v0/ws", method="CONNECT")),
    "a socket of another version": OPEN
    + frame(
        HEADERS,
        END_HEADERS,
        1,
        literal(
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":path", "/v0/ws"),
            (":authority", "x"),
            ("sec-websocket-version", "12"),
            ("sec-websocket-protocol", "\xff"),
        ),
    ),
    "a field with a line end": OPEN + get(1, "/v0/health", ("a", "b\r\nc: d")),
    "a field with a NUL": OPEN + get(1, "/v0/health", ("a", "b\0c")),
    "a name in upper case": OPEN + get(1, "/v0/health", ("A", "b")),
    "an empty name": OPEN + get(1, "/v0/health", ("", "b")),
    "a field of a connection": OPEN + get(1, "/v0/health", ("connection", "close")),
    "a coding": OPEN + get(1, "/v0/health", ("transfer-encoding", "chunked")),
    "a pseudo field too late": OPEN + get(1, "/v0/health", ("a", "b"), (":path", "/")),
    "an unknown pseudo field": OPEN + get(1, "/v0/health", (":status", "200")),
    "a length without a body": OPEN + get(1, "/v0/health", ("content-length", "5")),
    "a length that is none": OPEN + get(1, "/v0/health", ("content-length", "x" * 10)),
    "a length of too many digits": OPEN + get(1, "/v0/health", ("content-length", "9" * 5000)),
    "less than announced": OPEN
    + frame(HEADERS, END_HEADERS, 1, block(("content-length", "5"), path="/v0/topics/h", method="POST"))
    + frame(DATA, END_STREAM, 1, b"{}"),
    "more than announced": OPEN
    + frame(HEADERS, END_HEADERS, 1, block(("content-length", "1"), path="/v0/topics/h", method="POST"))
    + frame(DATA, END_STREAM, 1, b"{}"),
    "trailers without an end": OPEN
    + frame(HEADERS, END_HEADERS, 1, block(path="/v0/topics/h", method="POST"))
    + frame(HEADERS, END_HEADERS, 1, literal(("a", "b"))),
    "a push from a client": OPEN + frame(PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 2) + block()),
    "a window that grows by nothing": OPEN + frame(WINDOW_UPDATE, 0, 0, bytes(4)),
    "a stream's window that grows by nothing": OPEN + get(1) + frame(WINDOW_UPDATE, 0, 1, bytes(4)),
    "a window that grows too large": OPEN + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", (1 << 31) - 1)) * 2,
    "a window of no stream": OPEN + frame(WINDOW_UPDATE, 0, 7, struct.pack(">I", 1)),
    "a ping that is short": OPEN + frame(PING, 0, 0, b"x"),
    "a ping of a stream": OPEN + frame(PING, 0, 1, bytes(8)),
    "a reset of nothing": OPEN + frame(RST_STREAM, 0, 1, bytes(4)),
    "a reset that is short": OPEN + get(1) + frame(RST_STREAM, 0, 1, b"x"),
    "a stream that depends on itself": OPEN + frame(PRIORITY, 0, 3, struct.pack(">IB", 3, 1)),
    "a priority that is short": OPEN + frame(PRIORITY, 0, 3, b"x"),
    "a farewell that is short": OPEN + frame(GOAWAY, 0, 0, b"x"),
    "a farewell, and on": OPEN + frame(GOAWAY, 0, 0, bytes(8)) + get(1),
    "frames of no kind": OPEN + frame(0x77, 0xFF, 9, b"x" * 100) * 100,
}


def statuses_of(answer: bytes) -> list[int]:
    """Those of the answers in what a server has sent, all of which is well-formed."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
    connection.initiate_connection()
    for number in range(1, 12, 2):
        connection.send_headers(number, [(":method", "GET"), (":path", "/"), (":scheme", "http"), (":authority", "x")])
    statuses = []
    try:
        for event in connection.receive_data(answer):
            if isinstance(event, h2.events.ResponseReceived):
                statuses.append(int(dict(event.headers)[b":status"]))
    except h2.exceptions.StreamClosedError:
        pass
    return statuses


@pytest.mark.parametrize("sent", NOT_HTTP2.values(), ids=NOT_HTTP2.keys())
def test_what_is_not_http2_is_refused(client: Client, sent: bytes) -> None:
    assert not [status for status in statuses_of(exchange(client, sent)) if status >= 500]
    assert client.get("/v0/topics/h").status_code == 404


@pytest.mark.parametrize("name", ["5000 fields of a byte", "5000 sizes of a table", "a bomb", "endless continuations"])
def test_too_much_of_a_head_over_http2_ends_the_connection(client: Client, name: str) -> None:
    sent = NOT_HTTP2[name]
    with RawConnection(client) as connection:
        connection.send(sent)
        answer = b""
        while part := connection.socket.recv(1 << 16):  # to the end, which is the daemon's
            answer += part
    assert not statuses_of(answer)


@pytest.mark.parametrize("name", ["an 8-bit path", "a path with a space", "an 8-bit method", "no tunnel"])
def test_a_refusal_over_http2_is_told(client: Client, name: str) -> None:
    answer = exchange(client, NOT_HTTP2[name])
    assert statuses_of(answer) == [400]
    assert b'"invalid_request"' in answer


FLOODS: dict[str, Callable[[int], bytes]] = {
    "pings": lambda _: frame(PING, 0, 0, b"12345678"),
    "settings": lambda n: frame(SET, 0, 0, struct.pack(">HI", 4, n % 1000 + 1)),
    "resets": lambda n: get(2 * n + 1) + frame(RST_STREAM, 0, 2 * n + 1, struct.pack(">I", 8)),
    "resets of uploads": lambda n: (
        frame(HEADERS, END_HEADERS, 2 * n + 1, block(("content-type", JSON_TYPE), path="/v0/topics/h", method="POST"))
        + frame(RST_STREAM, 0, 2 * n + 1, struct.pack(">I", 8))
    ),
    "long polls that are reset": lambda n: (
        get(2 * n + 1, "/v0/topics/polled/diff?wait_ms=30000") + frame(RST_STREAM, 0, 2 * n + 1, struct.pack(">I", 8))
    ),
    "streams that are reset": lambda n: (
        get(2 * n + 1, "/v0/topics/polled/stream") + frame(RST_STREAM, 0, 2 * n + 1, struct.pack(">I", 8))
    ),
    "windows": lambda _: frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)),
    "priorities": lambda n: frame(PRIORITY, 0, 2 * n + 1, struct.pack(">IB", 0, 1)),
    "empty data": lambda n: (
        frame(HEADERS, END_HEADERS, 1, block(("content-type", JSON_TYPE), path="/v0/topics/h", method="POST"))
        if not n
        else frame(DATA, 0, 1)
    ),
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_of_frames_drowns_nobody(client: Client, flood: Callable[[int], bytes]) -> None:
    client.put_topic("polled")
    before = gauge(client, "topics_sse_connections")
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(client)) for _ in range(2)]
        for connection in connections:
            connection.send(OPEN)
            connection.socket.setblocking(False)
        parts = [memoryview(b"".join(flood(number) for number in range(500))) for _ in connections]
        deadline = time.monotonic() + 60
        while any(parts):
            assert time.monotonic() < deadline
            for place, connection in enumerate(connections):
                try:
                    while connection.socket.recv(1 << 16):
                        pass
                except BlockingIOError:
                    pass
                except ConnectionError:
                    parts[place] = memoryview(b"")
                try:
                    parts[place] = parts[place][connection.socket.send(parts[place][:8192]) :]
                except BlockingIOError:
                    pass
                except ConnectionError:
                    parts[place] = memoryview(b"")
            assert client.get("/v0/health").status_code == 200
    until(lambda: gauge(client, "topics_sse_connections") == before)
    client.delete_topic("polled")


# WebSocket


def handshake(*fields: str, method: str = "GET", version: str = "1.1", body: str = "") -> str:
    return "\r\n".join([f"{method} /v0/ws HTTP/{version}", "host: x", *fields, "", body])


UPGRADE = ("connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13", f"sec-websocket-key: {key()}")

NOT_A_HANDSHAKE = {
    "no key": handshake(*UPGRADE[:3]),
    "no version": handshake(*UPGRADE[:2], UPGRADE[3]),
    "another version": handshake(*UPGRADE[:2], "sec-websocket-version: 8", UPGRADE[3]),
    "no upgrade": handshake(*UPGRADE[1:]),
    "an upgrade to nothing": handshake(UPGRADE[0], "upgrade: nothing", *UPGRADE[2:]),
    "a connection that is not ASCII": handshake("connection: Upgr\xe4de", *UPGRADE[1:]),
    "an upgrade that is not ASCII": handshake(UPGRADE[0], "upgrade: w\xe9bsocket", *UPGRADE[2:]),
    "a key that is not ASCII": handshake(*UPGRADE[:3], "sec-websocket-key: \xff"),
    "a protocol that is not ASCII": handshake(*UPGRADE, "sec-websocket-protocol: \xff"),
    "extensions that are not ASCII": handshake(*UPGRADE, "sec-websocket-extensions: \xff"),
    "a POST": handshake(*UPGRADE, "content-length: 2", method="POST", body="{}"),
    "a body": handshake(*UPGRADE, "content-length: 24", body=APPEND),
    "chunks": handshake(*UPGRADE, "transfer-encoding: chunked", body="0\r\n\r\n"),
    "HTTP/1.0": handshake(*UPGRADE, version="1.0"),
    "nowhere": handshake(*UPGRADE).replace("/v0/ws", "/v0/health"),
    "nowhere, and on": handshake(*UPGRADE).replace("/v0/ws", "/v0/nowhere") + "x" * 1000,
}


@pytest.mark.parametrize("request_", NOT_A_HANDSHAKE.values(), ids=NOT_A_HANDSHAKE.keys())
def test_what_is_no_handshake_is_refused(client: Client, request_: str) -> None:
    with RawConnection(client) as connection:
        connection.send(request_.encode("latin-1"))
        status, headers, body = connection.receive()
    assert 400 <= status < 500
    assert headers["content-type"] == JSON_TYPE
    envelope(json.loads(body))


def test_a_frame_that_comes_with_the_handshake_waits_for_it(client: Client) -> None:
    for rest in (raw_frame(1, b'{"op":"ping"}'), raw_frame(8, b""), raw_frame(1, b"x" * 300_000), b"garbage"):
        answer = exchange(client, handshake(*UPGRADE).encode() + rest)
        assert answer.startswith(b"HTTP/1.1 101 ")
    assert gauge(client, "topics_ws_connections") == 0


NOT_FRAMES = {
    "garbage": b"\xff" * 500,
    "no mask": raw_frame(1, b'{"op":"ping"}', mask=False),
    "reserved bits": raw_frame(1, b'{"op":"ping"}', reserved=7),
    "an unknown opcode": raw_frame(3, b"x"),
    "an unknown control": raw_frame(11, b"x"),
    "a ping in parts": raw_frame(9, b"x", fin=False),
    "a close in parts": raw_frame(8, b"\x03\xe8", fin=False),
    "a ping that is long": raw_frame(9, b"x" * 126),
    "a close of one byte": raw_frame(8, b"\x03"),
    "a close of no code": raw_frame(8, struct.pack(">H", 999)),
    "a close that is no UTF-8": raw_frame(8, b"\x03\xe8\xff"),
    "a text that is no UTF-8": raw_frame(1, b'"\xff"'),
    "a continuation of nothing": raw_frame(0, b"x"),
    "a message within another": raw_frame(1, b"x", fin=False) + raw_frame(1, b"x"),
    "a length below its form": bytes([0x81, 0xFE]) + (5).to_bytes(2, "big") + bytes(4) + b"hello",
    "a length beyond any": bytes([0x81, 0xFF]) + b"\xff" * 8 + bytes(4),
    "a message that is too long": raw_frame(1, b"x" * (SETTINGS["max_body_bytes"] + 1)),
    "parts that are too long": raw_frame(1, b"x", fin=False) + raw_frame(0, b"x" * 60_000, fin=False) * 20,
}


@pytest.mark.parametrize("sent", NOT_FRAMES.values(), ids=NOT_FRAMES.keys())
def test_what_is_no_frame_closes_the_socket(client: Client, sent: bytes) -> None:
    with WebSocket(client) as opened:
        opened.works()
        try:
            opened.send_bytes(sent + raw_frame(1, b'{"op":"ping"}') * 10)
        except OSError:
            pass
        messages, code = opened.rest()
        assert not messages
        assert code is None or code in {1002, 1003, 1007, 1009, 1000}, code
    until(lambda: gauge(client, "topics_ws_connections") == 0)


def test_what_follows_a_close_is_for_nobody(client: Client) -> None:
    with WebSocket(client) as opened:
        try:
            opened.send_bytes(raw_frame(8, b"\x03\xe8"))
            for _ in range(100):
                opened.send_bytes(raw_frame(1, b"x" * 1000))
        except OSError:
            pass
        opened.rest()
    until(lambda: gauge(client, "topics_ws_connections") == 0)


def test_a_flood_of_control_frames_drowns_nobody(client: Client) -> None:
    with WebSocket(client) as opened:
        for _ in range(20):
            opened.send_bytes((raw_frame(9, b"x" * 100) + raw_frame(10, b"")) * 100)
            assert client.get("/v0/health").status_code == 200
        opened.works()


# The slow, the many, and those who leave


def ready_for(connections: int) -> int:
    """As many connections as this process and a daemon may have, up to this number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < connections + 200:
        soft = hard if hard != resource.RLIM_INFINITY and hard < connections + 200 else connections + 200
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(connections, soft // 2)


@contextmanager
def crowd(client: Client, sent: Sequence[bytes]) -> Iterator[list[socket.socket]]:
    """A connection for each of these, on which it has been sent."""
    with ExitStack() as stack:
        connections = []
        for part in sent:
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", client.daemon.port), timeout=60))
            connection.sendall(part)
            connections.append(connection)
        yield connections


def works(client: Client, topic: str) -> None:
    """Everything that an ordinary client does is done."""
    head = client.append(topic, "x")["head_seq"]
    assert client.read(topic, head - 1)["records"][0]["data"] == "x"
    assert client.state(topic)["head_seq"] == head
    assert client.get("/v0/health").status_code == 200


def get_line(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


def test_a_few_hundred_that_never_finish_hold_up_nobody(client: Client, topic: str) -> None:
    upload = f"{HEAD}content-length: 1000\r\n\r\n".encode()
    chunks = f"{HEAD}transfer-encoding: chunked\r\n\r\n3e8;".encode()
    part_of_block = OPEN + frame(HEADERS, END_STREAM, 1, block())
    part_of_frame = OPEN + get(1)[:20]
    begun = [b"G", b"GET /v0/health HTTP/1.1\r\nx: ", b"PRI * HTTP/2.0\r\n\r\n", part_of_block, part_of_frame]
    begun += [upload, upload + b'{"records":', chunks]
    with crowd(client, begun * 40) as connections:
        for _ in range(3):
            for place, connection in enumerate(connections):
                if place % len(begun) not in (2, 3):  # whose next byte means something
                    connection.sendall(b"a")
            works(client, topic)


def test_two_thousand_connections_are_borne_with(client: Client, topic: str) -> None:
    client.put_topic(topic)
    gauges = ("topics_sse_connections", "topics_ws_connections")
    kinds = [
        b"",
        get_line("/v0/health"),
        get_line(f"/v0/topics/{topic}/diff?wait_ms=60000"),
        get_line(f"/v0/topics/{topic}/stream"),
        handshake(*UPGRADE).encode(),
    ]
    count = ready_for(2000)
    files, resident = open_files(client), resident_bytes(client)
    before = [gauge(client, name) for name in gauges]
    with crowd(client, [kinds[place % len(kinds)] for place in range(count)]):
        until(
            lambda: sum(gauge(client, name) for name in gauges) >= sum(before) + 2 * (count // len(kinds)), within_s=60
        )
        assert open_files(client) >= files + count
        # An idle connection takes some 30 KiB, a stream 60.
        assert resident_bytes(client) - resident < count * (256 << 10)
        for _ in range(3):
            works(client, topic)
    until(lambda: [gauge(client, name) for name in gauges] == before, within_s=60)
    until(lambda: open_files(client) <= files, within_s=60)
    works(client, topic)


def test_a_want_of_descriptors_passes(client: Client, topic: str) -> None:
    limit = resource.prlimit(pid_of(client), resource.RLIMIT_NOFILE)
    works(client, topic)
    resource.prlimit(pid_of(client), resource.RLIMIT_NOFILE, (open_files(client) + 2, limit[1]))
    try:
        with crowd(client, [get_line("/v0/health")] * 10) as connections:
            log = client.daemon.root / "log"
            until(lambda: "accept_failed" in log.read_text(errors="replace"))
            assert client.get("/v0/health").status_code == 200
            resource.prlimit(pid_of(client), resource.RLIMIT_NOFILE, limit)
            for connection in connections:
                assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    finally:
        resource.prlimit(pid_of(client), resource.RLIMIT_NOFILE, limit)
    works(client, topic)


BODY = SETTINGS["max_body_bytes"]
BEARER = ("authorization", "Bearer hostile")
AT_ONCE = 4


@pytest.fixture(scope="module")
def counted(http_lane: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client with a key, which may have so many requests in flight, and a topic with more than fits in sockets."""
    settings = SETTINGS | {"api_keys": "hostile", "max_inflight_per_key": AT_ONCE}
    with running(tmp_path_factory.mktemp("counted"), **settings) as client:
        client.headers[BEARER[0]] = BEARER[1]
        for _ in range(10):
            client.append("large", *["x" * 100_000] * 9)
        yield client


def post(path: str, body: bytes, length: int | None = None) -> bytes:
    fields = f"{BEARER[0]}: {BEARER[1]}\r\ncontent-type: {JSON_TYPE}\r\ncontent-length: {length or len(body)}"
    return f"POST {path} HTTP/1.1\r\nhost: x\r\n{fields}\r\n\r\n".encode() + body


def post2(path: str, body: bytes, *, end: bool = True) -> bytes:
    head = frame(HEADERS, END_HEADERS, 1, block(BEARER, ("content-type", JSON_TYPE), path=path, method="POST"))
    frames = [frame(DATA, 0, 1, body[start : start + 16_000]) for start in range(0, len(body), 16_000)]
    return head + b"".join(frames) + frame(DATA, 1 if end else 0, 1)


POLL = b'{"from_seq":90,"wait_ms":30000}'
PAGES = b'{"limit":1000,"max_bytes":9000000}'
RESET = frame(RST_STREAM, 0, 1, struct.pack(">I", 8))
WIDE = OPEN + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))

ABORTED = {
    "in the head": post("/v0/topics/h", b"")[:60],
    "in the body": post("/v0/topics/h", b" " * 50_000, BODY),
    "in a chunk": post("/v0/topics/h", b"").replace(b"content-length: 0", b"transfer-encoding: chunked") + b"9\r\nab",
    "after the body": post("/v0/topics/large/diff", POLL),
    "after an append": post("/v0/topics/h", APPEND.encode()),
    "in the answer": post("/v0/topics/large/diff", PAGES) * 3,
    "in the head over HTTP/2": OPEN + post2("/v0/topics/h", b"")[:30],
    "in the body over HTTP/2": OPEN + post2("/v0/topics/h", b" " * 50_000, end=False),
    "by a reset in the body": OPEN + post2("/v0/topics/h", b" " * 50_000, end=False) + RESET,
    "after the body over HTTP/2": OPEN + post2("/v0/topics/large/diff", POLL),
    "by a reset after the body": OPEN + post2("/v0/topics/large/diff", POLL) + RESET,
    "in the answer over HTTP/2": WIDE + post2("/v0/topics/large/diff", PAGES),
    "by a reset in the answer": WIDE + post2("/v0/topics/large/diff", PAGES) + RESET,
}


@pytest.mark.parametrize("sent", ABORTED.values(), ids=ABORTED.keys())
def test_a_request_that_is_aborted_leaves_nothing(counted: Client, sent: bytes) -> None:
    with unmoved(counted):
        for way in ("close", "reset", "half", "moment"):
            for _ in range(AT_ONCE + 1):
                connection = socket.create_connection(("127.0.0.1", counted.daemon.port), timeout=40)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                with connection:
                    connection.sendall(sent)
                    if way == "half":
                        connection.shutdown(socket.SHUT_WR)
                    elif way == "reset":
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    elif way == "moment":
                        assert counted.get("/v0/health").status_code == 200  # it has been seen
            until(lambda: has_everything(counted))


def has_everything(client: Client) -> bool:
    """Whether all requests that a key may have fit in at once, with all the bytes that may be in memory."""
    large = APPEND[:-1].encode().ljust(BODY - 1000) + b"}"
    bodies = [large, *[APPEND.encode()] * (AT_ONCE - 1)]
    with ExitStack() as stack:
        held = [stack.enter_context(RawConnection(client)) for _ in bodies]
        for connection, body in zip(held, bodies, strict=True):
            head = post("/v0/topics/full", b"", len(body))
            connection.send(head.replace(b"host: x", b"host: x\r\nexpect: 100-continue"))
        for connection in held:
            connection.socket.recv(1, socket.MSG_PEEK)  # it is there: 100, or else 429
        for connection, body in zip(held, bodies, strict=True):
            with suppress(OSError):
                connection.send(body)
        statuses = [connection.receive()[0] for connection in held]
    assert set(statuses) <= {200, 201, 429}, statuses
    return 429 not in statuses
