"""What HTTP/1.1 the daemon takes, beside two other readers of the same bytes: h11 by itself, and llhttp (Node's and
undici's parser, by way of `httptools`, where that is installed).

Two servers on the way that see different requests in the same bytes are how a request is smuggled past the first one.
So for every request that the daemon takes:

- h11 takes the same: method, target, fields, body, and where the next one begins. One empty line before a request is
  the only thing that the daemon adds.
- llhttp takes the same, or refuses the connection there for a reason of `REASONS`, each with its justification.

The daemon may refuse what the others take.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module, util
from typing import Any, Final

import h11

from tests.fuzz.target import Target
from topics.http.connections.protocols.http1 import Http1Connection, asks_for_http2
from topics.http.connections.protocols.request_checks import MAX_HEADER_BYTES, opens_websocket

HAS_LLHTTP: Final = util.find_spec("httptools") is not None

REASONS: Final = {
    "Invalid method encountered": "llhttp knows a list of methods; here an unknown one is 405, which frames nothing",
    "Expected space after method": "the same: a method that begins like one of the list",
    "Expected HTTP/": "llhttp reads on in a target after some bytes that end it here; it refuses, and goes no further",
    "Data after `Connection: close`": "the daemon answers and closes, and reads nothing behind it either",
    "Invalid HTTP version": "llhttp knows HTTP/1.0 and 1.1 and the preface of HTTP/2 as PRI",
    "Expected SOURCE method for ICE/x.x request": "an ICE request; a version that the daemon refuses itself",
    "Pause on PRI/Upgrade": "the preface of HTTP/2",
    "Invalid char in url query": "targets of odd bytes; the daemon answers 404 or 400 to them",
    "Unexpected char in url fragment start": "a fragment in a target; the daemon answers 404 or 400",
    "Unexpected char in url server": "an authority in a target; the daemon answers 404 or 400",
    "Unexpected char in url schema": "a target that is no path; the daemon answers 404 or 400",
    "Unexpected start char in url": "a target that is no path; the daemon answers 404 or 400",
    "Double @ in url": "an authority in a target; the daemon answers 404 or 400",
    "Invalid characters in url": "targets of odd bytes; the daemon answers 404 or 400 to them",
}
"""Why llhttp may refuse what the daemon takes, by the beginning of what llhttp says. None of them moves a border."""


@dataclass(frozen=True)
class Read:
    """A request as a reader sees it."""

    method: bytes
    target: bytes
    fields: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass
class Reading:
    """What a reader has made of the bytes of a connection."""

    requests: list[Read] = field(default_factory=list)
    """Those that are complete."""
    refused: str = ""
    """Why it goes no further."""
    ended: bool = False
    """It goes no further, because the last request says so: an upgrade, or a close."""


def by_daemon(data: bytes) -> Reading:
    """As the daemon reads."""
    return _by_h11(Http1Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES), data, upgrades=True)


def by_h11(data: bytes) -> Reading:
    """As h11 reads."""
    return _by_h11(h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES), data, upgrades=False)


def _by_h11(connection: h11.Connection, data: bytes, *, upgrades: bool) -> Reading:
    reading = Reading()
    connection.receive_data(data)
    request: h11.Request | None = None
    body = b""
    try:
        while not reading.ended:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request, body = event, b""
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                fields = tuple((bytes(name), bytes(value)) for name, value in request.headers)
                reading.requests.append(Read(bytes(request.method), bytes(request.target), fields, body))
                reading.ended = _ends(request, upgrades=upgrades) or not _answer(connection)
            else:
                break
    except (h11.RemoteProtocolError, ValueError) as error:
        reading.refused = str(error)
    return reading


def _ends(request: h11.Request, *, upgrades: bool) -> bool:
    version = request.http_version.decode()
    if request.method == b"CONNECT" or version == "2.0":
        return True
    return upgrades and (opens_websocket(request, version) or asks_for_http2(request))


def _answer(connection: h11.Connection) -> bool:
    """Answer, and return True if the connection goes on."""
    if connection.our_state is h11.ERROR:
        return False
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
        return False
    connection.start_next_cycle()
    return True


class _Callbacks:
    """What httptools calls."""

    def __init__(self) -> None:
        self.reading = Reading()
        self.parser: Any = None
        self._begin()

    def _begin(self) -> None:
        self._target = self._body = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._head: tuple[tuple[bytes, bytes], ...] = ()

    def on_message_begin(self) -> None:
        self._begin()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_headers_complete(self) -> None:
        self._head = tuple(self._fields)  # what follows are trailers

    def on_message_complete(self) -> None:
        read = Read(self.parser.get_method(), self._target, self._head, self._body)
        self.reading.requests.append(read)


def by_llhttp(data: bytes) -> Reading:
    """As llhttp reads. Only where `HAS_LLHTTP`."""
    httptools = import_module("httptools")
    callbacks = _Callbacks()
    callbacks.parser = httptools.HttpRequestParser(callbacks)
    try:
        callbacks.parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        callbacks.reading.ended = True
    except httptools.HttpParserError as error:
        callbacks.reading.refused = str(error)
    return callbacks.reading


def compare(data: bytes) -> None:
    """Raise AssertionError where the daemon takes a request that another reader sees differently."""
    ours = by_daemon(data)
    # h11 alone does not skip the empty line before a request.
    _same_beginning(ours, by_h11(data.removeprefix(b"\r\n")), "h11", lambda why: why == "no request line received")
    if HAS_LLHTTP:
        _same_beginning(ours, by_llhttp(data), "llhttp", lambda why: why.startswith(tuple(REASONS)))


def by_its_target(read: Read) -> Read:
    """The same request as the daemon has to take it if its target has an authority (RFC 9112, 3.2.2): to the path, and
    to the host that the target says."""
    scheme, found, rest = read.target.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        return read
    host, slash, path = rest.partition(b"/")
    if not slash:
        host, query, path = rest.partition(b"?")
        path = query + path
    fields = (*((name, value) for name, value in read.fields if name != b"host"), (b"host", host))
    return Read(read.method, b"/" + path, fields, read.body)


def _same_beginning(ours: Reading, theirs: Reading, who: str, is_justified: Callable[[str], bool]) -> None:
    for number, request in enumerate(ours.requests):
        if number == len(theirs.requests):
            assert theirs.ended or is_justified(theirs.refused), (
                f"the daemon takes {request}, and {who} refuses it: {theirs.refused or 'it sees no end'}"
            )
            return
        other = by_its_target(theirs.requests[number])
        assert (request.method, request.target) == (other.method, other.target), (
            f"the daemon takes {request}, and {who} sees {other}"
        )
        # llhttp takes any upgrade for one that is taken, and reads no further, not even the body.
        upgraded = theirs.ended and number == len(theirs.requests) - 1
        assert upgraded or request.body == other.body, f"the daemon takes {request}, and {who} sees {other}"
        assert _framing(request) == _framing(other), f"the daemon takes {request}, and {who} sees {other}"


_COUNT: Final = (b"authorization", b"content-length", b"content-type", b"host", b"transfer-encoding", b"upgrade")


def _framing(read: Read) -> list[tuple[bytes, bytes]]:
    """The fields that say where a body ends and who asks, as far as white space does not matter."""
    return sorted((name, value.strip(b" \t").lower()) for name, value in read.fields if name in _COUNT)


def _request(line: str, *fields: str, body: str = "") -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", "host: a", *fields, "", body]).encode("latin-1")


GET: Final = _request("GET /v0/health")
SECOND: Final = _request("GET /v0/topics/second")

CORPUS: Final = {
    "two requests": GET + SECOND,
    "an empty line before": b"\r\n" + GET + b"\r\n" + SECOND,
    "a length": _request("POST /v0/topics/t", "content-length: 5", body="hello") + SECOND,
    "a length of nothing": _request("POST /v0/topics/t", "content-length: 0") + SECOND,
    "a length with zeros": _request("POST /v0/topics/t", "content-length: 0005", body="hello") + SECOND,
    "the same length twice": _request("POST /v0/topics/t", "content-length: 5", "content-length: 5", body="hello"),
    "the same length in a list": _request("POST /v0/topics/t", "content-length: 5, 5", body="hello") + SECOND,
    "another length": _request("POST /v0/topics/t", "content-length: 5", "content-length: 6", body="hello!") + SECOND,
    "a length and chunks": _request(
        "POST /v0/topics/t", "content-length: 4", "transfer-encoding: chunked", body="0\r\n\r\n"
    )
    + SECOND,
    "chunks": _request("POST /v0/topics/t", "transfer-encoding: chunked", body="5\r\nhello\r\n0\r\n\r\n") + SECOND,
    "chunks in capitals": _request("POST /v0/t", "Transfer-Encoding: CHUNKED", body="A\r\n0123456789\r\n0\r\n\r\n")
    + SECOND,
    "an extension": _request("POST /v0/t", "transfer-encoding: chunked", body="5;a=b\r\nhello\r\n0;c\r\n\r\n") + SECOND,
    "an extension in quotes": _request(
        "POST /v0/t", "transfer-encoding: chunked", body='5;a="b;c"\r\nhello\r\n0\r\n\r\n'
    )
    + SECOND,
    "an extension with a line feed": _request(
        "POST /v0/t", "transfer-encoding: chunked", body="5;a\nb\r\nhello\r\n0\r\n\r\n"
    )
    + SECOND,
    "a space after a size": _request("POST /v0/t", "transfer-encoding: chunked", body="5 \r\nhello\r\n0\r\n\r\n")
    + SECOND,
    "a size with zeros": _request("POST /v0/t", "transfer-encoding: chunked", body="005\r\nhello\r\n000\r\n\r\n")
    + SECOND,
    "a size with a line feed": _request("POST /v0/t", "transfer-encoding: chunked", body="5\nhello\r\n0\r\n\r\n")
    + SECOND,
    "a chunk with a line feed": _request("POST /v0/t", "transfer-encoding: chunked", body="5\r\nhello\n0\r\n\r\n")
    + SECOND,
    "a chunk that is longer": _request("POST /v0/t", "transfer-encoding: chunked", body="5\r\nhellos\r\n0\r\n\r\n")
    + SECOND,
    "trailers": _request("POST /v0/t", "transfer-encoding: chunked", body="0\r\na: b\r\nc: 9\r\n\r\n") + SECOND,
    "a length in the trailers": _request(
        "POST /v0/t", "transfer-encoding: chunked", body="0\r\na: b\r\ncontent-length: 9\r\n\r\n"
    )
    + SECOND,
    "a trailer with a line feed": _request("POST /v0/t", "transfer-encoding: chunked", body="0\r\na: b\n\r\n") + SECOND,
    "chunked and more": _request("POST /v0/t", "transfer-encoding: chunked, gzip", body="0\r\n\r\n") + SECOND,
    "another coding": _request("POST /v0/t", "transfer-encoding: gzip", body="hello") + SECOND,
    "chunked twice": _request(
        "POST /v0/t", "transfer-encoding: chunked", "transfer-encoding: chunked", body="0\r\n\r\n"
    )
    + SECOND,
    "a hidden coding": _request("POST /v0/t", "transfer-encoding:\x0bchunked", body="0\r\n\r\n") + SECOND,
    "a coding behind a tab": _request("POST /v0/t", "transfer-encoding:\tchunked\t", body="0\r\n\r\n") + SECOND,
    "a space before a colon": _request("POST /v0/t", "content-length : 5", body="hello") + SECOND,
    "a folded length": _request("POST /v0/t", "content-length:", " 5", body="hello") + SECOND,
    "a folded field": _request("GET /v0/health", "a: b", " c: d") + SECOND,
    "line feeds": GET.replace(b"\r\n", b"\n") + SECOND,
    "a line feed": GET.replace(b"host: a\r\n", b"host: a\n") + SECOND,
    "a carriage return": GET.replace(b"host: a\r\n", b"host: a\rb: c\r\n") + SECOND,
    "a NUL": _request("GET /v0/health", "a: b\0c") + SECOND,
    "bytes above ASCII": _request("GET /v0/health", "a: \xff\xfe") + SECOND,
    "no host": GET.replace(b"host: a\r\n", b"") + SECOND,
    "two hosts": _request("GET /v0/health", "host: b") + SECOND,
    "HTTP/1.0": GET.replace(b"1.1", b"1.0") + SECOND,
    "HTTP/1.0 kept": _request("GET /v0/health", "connection: keep-alive").replace(b"1.1", b"1.0") + SECOND,
    "HTTP/1.2": GET.replace(b"1.1", b"1.2") + SECOND,
    "HTTP/0.9": b"GET /\r\n" + SECOND,
    "a close": _request("GET /v0/health", "connection: close") + SECOND,
    "a close and more": _request("GET /v0/health", "connection: keep-alive, close") + SECOND,
    "small letters": _request("get /v0/health") + SECOND,
    "an unknown method": _request("BREW /v0/health") + SECOND,
    "a method that is none": _request("G(T /v0/health") + SECOND,
    "two spaces": _request("GET  /v0/health") + SECOND,
    "an absolute target": _request("GET http://a/v0/health") + SECOND,
    "a target with a space": _request("GET /v0 /health") + SECOND,
    "a target above ASCII": _request("GET /v0/\xe9") + SECOND,
    "a target with a tab": _request("GET /v0\t/health") + SECOND,
    "an authority": _request("CONNECT a:1") + SECOND,
    "an asterisk": _request("OPTIONS *") + SECOND,
    "a GET with a body": _request("GET /v0/topics", "content-length: 5", body="hello") + SECOND,
    "a HEAD with chunks": _request("HEAD /v0/topics", "transfer-encoding: chunked", body="0\r\n\r\n") + SECOND,
    "an expectation": _request("POST /v0/t", "expect: 100-continue", "content-length: 5", body="hello") + SECOND,
    "a WebSocket": _request(
        "GET /v0/ws",
        "connection: upgrade",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
    )
    + SECOND,
    "an upgrade to HTTP/2": _request(
        "GET /v0/health", "connection: upgrade, http2-settings", "upgrade: h2c", "http2-settings: AAMAAABk"
    )
    + SECOND,
    "two authorizations": _request("GET /v0/topics", "authorization: Bearer a", "authorization: Bearer b") + SECOND,
    "a field without a name": _request("GET /v0/health", ": b") + SECOND,
    "a field without a colon": _request("GET /v0/health", "nonsense") + SECOND,
    "garbage": b"\x16\x03\x01\x02\x00\x01" + SECOND,
}
"""Bytes of connections, each with a request behind it wherever there might be a border."""


def _seeds() -> Sequence[bytes]:
    return list(CORPUS.values())


TARGETS: Final[tuple[Target, ...]] = (
    Target(
        "requests",
        "HTTP/1.1 as the daemon reads it, beside h11 and llhttp",
        compare,
        _seeds,
        base_bytes=1 << 20,
        factor=1000,
        examples=300,
        modules=("topics.http.connections.protocols", "h11"),
    ),
)
