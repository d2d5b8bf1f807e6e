"""Plain heads: what is one, what is none, and that h11 reads every one of them in the same way."""

from __future__ import annotations

import re
from typing import Final

import h11
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from topics.http.connections import request_heads
from topics.http.connections.protocols.http1 import Http1Connection
from topics.http.connections.protocols.request_checks import LONG_FIELD, MAX_HEADER_BYTES
from topics.http.connections.request_heads import MAX_FIELDS, MAX_HEAD, Head, read_head

BEHIND: Final = b"0123456789" * 3


def head(line: bytes = b"GET /v0/health HTTP/1.1", *fields: bytes, host: bytes | None = b"x") -> bytes:
    """The head of a request."""
    hosts = [] if host is None else [b"host: " + host]
    return b"\r\n".join([line, *hosts, *fields, b"", b""])


# -- what is plain -----------------------------------------------------------------------------------------------------


def test_a_head_as_a_client_sends_it() -> None:
    data = head(
        b"POST /v0/topics/a%20b?create=1&x=%zz HTTP/1.1",
        b"Accept: */*",
        b"Content-Type: application/json",
        b"Content-Length: 0024",
        b"CONNECTION: Keep-Alive",
        b"x-empty:",
        b"x-spaces: \t a  b \t",
    )
    headers = {
        b"host": b"x",
        b"accept": b"*/*",
        b"content-type": b"application/json",
        b"content-length": b"0024",
        b"connection": b"Keep-Alive",
        b"x-empty": b"",
        b"x-spaces": b"a  b",
    }
    assert read_head(data + BEHIND) == Head("POST", b"/v0/topics/a%20b", b"create=1&x=%zz", headers, 24, len(data))


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", b""),
        (b"/?", b"/", b""),
        (b"/a?b?c", b"/a", b"b?c"),
        (b"//a//", b"//a//", b""),
        (b"/a#b", b"/a#b", b""),
        (b'/"<>\\^`{|}~!', b'/"<>\\^`{|}~!', b""),
    ],
)
def test_methods_and_targets(method: str, target: bytes, path: bytes, query: bytes) -> None:
    found = read_head(head(b"%b %b HTTP/1.1" % (method.encode(), target)))
    assert found is not None
    assert (found.method, found.path, found.query, found.body_bytes) == (method, path, query, 0)


@pytest.mark.parametrize("host", [b"x", b"x:80", b"X.example.", b"127.0.0.1:4000", b"[::1]", b"x:", b"%61"])
def test_hosts(host: bytes) -> None:
    assert read_head(head(host=host)) is not None


LONGEST: Final = LONG_FIELD - len(b"x-long: ")


def test_the_longest_plain_field_and_the_most_of_them() -> None:
    assert read_head(head(b"GET / HTTP/1.1", b"x-long: " + b"y" * LONGEST)) is not None
    assert read_head(head(b"GET / HTTP/1.1", *(b"x-%d: y" % number for number in range(MAX_FIELDS - 1)))) is not None
    longest = head(b"GET /%b HTTP/1.1" % (b"p" * (MAX_HEAD - len(head(b"GET / HTTP/1.1")))))
    assert len(longest) == MAX_HEAD
    assert read_head(longest + BEHIND) is not None


# -- what is not -------------------------------------------------------------------------------------------------------

NOT_PLAIN: Final = {
    "nothing": b"",
    "an empty line": b"\r\n",
    "an empty line before": b"\r\n" + head(),
    "no HTTP": b"\x16\x03\x01\x02\x00\x01",
    "HTTP/1.0": head(b"GET / HTTP/1.0"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "another method": head(b"HEAD / HTTP/1.1"),
    "an unknown method": head(b"BREW / HTTP/1.1"),
    "a method in small letters": head(b"get / HTTP/1.1"),
    "two spaces": head(b"GET  / HTTP/1.1"),
    "a space behind": head(b"GET / HTTP/1.1 "),
    "a tab": head(b"GET\t/ HTTP/1.1"),
    "no target": head(b"GET HTTP/1.1"),
    "a space in the target": head(b"GET /a b HTTP/1.1"),
    "an asterisk": head(b"GET * HTTP/1.1"),
    "an absolute target": head(b"GET http://x/ HTTP/1.1"),
    "an authority": head(b"GET x:80 HTTP/1.1"),
    "a target above ASCII": head(b"GET /\xe9 HTTP/1.1"),
    "a query above ASCII": head(b"GET /?\xe9 HTTP/1.1"),
    "a query with a space": head(b"GET /?a b HTTP/1.1"),
    "line feeds": head().replace(b"\r\n", b"\n"),
    "a line feed": head(b"GET / HTTP/1.1\nx: y"),
    "a carriage return": head(b"GET / HTTP/1.1", b"x: a\rb: c"),
    "a folded field": head(b"GET / HTTP/1.1", b"x: a", b" b: c"),
    "a space before a colon": head(b"GET / HTTP/1.1", b"x : a"),
    "a space in a name": head(b"GET / HTTP/1.1", b"x y: a"),
    "no colon": head(b"GET / HTTP/1.1", b"x"),
    "no name": head(b"GET / HTTP/1.1", b": a"),
    "a name that is no token": head(b"GET / HTTP/1.1", b"x(y: a"),
    "a name above ASCII": head(b"GET / HTTP/1.1", b"\xe9: a"),
    "a NUL": head(b"GET / HTTP/1.1", b"x: a\0b"),
    "a control character": head(b"GET / HTTP/1.1", b"x: a\x0bb"),
    "a delete": head(b"GET / HTTP/1.1", b"x: a\x7fb"),
    "a value above ASCII": head(b"GET / HTTP/1.1", b"x: \xe9"),
    "no host": head(host=None),
    "an empty host": head(host=b""),
    "two hosts": head(b"GET / HTTP/1.1", b"host: x"),
    "a host that is none": head(host=b"a..b"),
    "a host of another port": head(host=b"x:65536"),
    "a long host": head(host=b"x" * LONG_FIELD),
    "a field twice": head(b"GET / HTTP/1.1", b"accept: a", b"Accept: b"),
    "a length twice": head(b"POST / HTTP/1.1", b"content-length: 3", b"Content-Length: 3"),
    "a length in a list": head(b"POST / HTTP/1.1", b"content-length: 3, 3"),
    "an empty length": head(b"POST / HTTP/1.1", b"content-length:"),
    "a length with a sign": head(b"POST / HTTP/1.1", b"content-length: +3"),
    "a negative length": head(b"POST / HTTP/1.1", b"content-length: -3"),
    "a length with a line under it": head(b"POST / HTTP/1.1", b"content-length: 1_0"),
    "a hexadecimal length": head(b"POST / HTTP/1.1", b"content-length: 0x3"),
    "a length of many digits": head(b"POST / HTTP/1.1", b"content-length: " + b"1" * 16),
    "a length far behind its name": head(b"POST / HTTP/1.1", b"content-length:" + b" " * LONG_FIELD + b"3"),
    "chunks": head(b"POST / HTTP/1.1", b"transfer-encoding: chunked"),
    "chunks in capitals": head(b"POST / HTTP/1.1", b"TRANSFER-ENCODING: CHUNKED"),
    "no coding": head(b"POST / HTTP/1.1", b"transfer-encoding:"),
    "a length and chunks": head(b"POST / HTTP/1.1", b"content-length: 3", b"transfer-encoding: chunked"),
    "trailers": head(b"POST / HTTP/1.1", b"trailer: x"),
    "wanted trailers": head(b"GET / HTTP/1.1", b"te: trailers"),
    "an expectation": head(b"POST / HTTP/1.1", b"expect: 100-continue"),
    "an upgrade": head(b"GET / HTTP/1.1", b"connection: upgrade", b"upgrade: websocket"),
    "an upgrade without a connection": head(b"GET / HTTP/1.1", b"upgrade: h2c"),
    "settings": head(b"GET / HTTP/1.1", b"http2-settings: AAMAAABk"),
    "a close": head(b"GET / HTTP/1.1", b"connection: close"),
    "a close and more": head(b"GET / HTTP/1.1", b"connection: keep-alive, close"),
    "a connection that names a field": head(b"GET / HTTP/1.1", b"connection: x"),
    "an empty connection": head(b"GET / HTTP/1.1", b"connection:"),
    "a long field": head(b"GET / HTTP/1.1", b"x-long: " + b"y" * (LONGEST + 1)),
    "too many fields": head(b"GET / HTTP/1.1", *(b"x-%d: y" % number for number in range(MAX_FIELDS))),
    "a long head": head(b"GET /%b HTTP/1.1" % (b"p" * MAX_HEAD)),
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain(name: str) -> None:
    assert read_head(NOT_PLAIN[name]) is None


def test_a_head_is_plain_only_when_it_is_complete() -> None:
    data = head(b"POST /v0/topics/a?b HTTP/1.1", b"content-length: 3")
    assert [read_head(data[:size]) for size in range(len(data))] == [None] * len(data)
    assert read_head(data) is not None


# -- beside h11 --------------------------------------------------------------------------------------------------------

TOKEN: Final = st.text(st.sampled_from("!#$%&'*+-.^_`|~09AZaz"), min_size=1, max_size=8).map(str.encode)
PRINTABLE: Final = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=12).map(str.encode)
VISIBLE: Final = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=12).map(str.encode)
ANY: Final = st.binary(max_size=4)
SPACE: Final = st.sampled_from([b"", b" ", b" ", b" ", b"\t", b"  \t "])
GOOD_FIELD: Final = st.tuples(TOKEN, st.just(b":"), SPACE, PRINTABLE, SPACE).map(b"".join)
FIELD: Final = st.one_of(
    GOOD_FIELD,
    GOOD_FIELD,
    st.sampled_from([b"content-length: 7", b"Content-Length:00012 ", b"CONNECTION: keep-alive", b"host: y", b"te: x"]),
    st.tuples(TOKEN, st.sampled_from([b":", b" :", b""]), ANY, PRINTABLE, ANY).map(b"".join),
)
METHOD: Final = st.sampled_from([b"GET", b"POST", b"PUT", b"DELETE"] * 3 + [b"HEAD", b"get"])
PATH: Final = VISIBLE.map(lambda rest: b"/" + rest)
TARGET: Final = st.one_of(PATH, PATH, PATH, VISIBLE, st.tuples(st.just(b"/"), ANY).map(b"".join))
VERSION: Final = st.sampled_from([b"HTTP/1.1"] * 20 + [b"HTTP/1.0", b"HTTP/1.1 "])
END: Final = st.sampled_from([b"\r\n"] * 40 + [b"\n", b"\r\n ", b"\r"])


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    """Heads that are nearly plain, and mostly plain."""
    line = b" ".join((draw(METHOD), draw(TARGET), draw(VERSION)))
    host = b"host:" + draw(SPACE) + draw(st.sampled_from([b"x", b"y:80", b"[::1]"] * 3 + [b"", b"a b"])) + draw(SPACE)
    fields = draw(st.permutations([host, *draw(st.lists(FIELD, max_size=4))]))
    return b"".join(part + draw(END) for part in (line, *fields, b""))


def h11_head(data: bytes) -> tuple[h11.Request, bytes]:
    """A request as the connections of hypercorn read it, and the bytes behind its head. Raises RemoteProtocolError."""
    connection = Http1Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
    connection.receive_data(data)
    request = connection.next_event()
    assert type(request) is h11.Request, f"h11 sees {request}"
    return request, connection.trailing_data[0]


def body_of(data: bytes, length: int) -> bytes:
    """The body that h11 finds behind a head; `data` ends with it."""
    connection = Http1Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
    connection.receive_data(data)
    body = b""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        assert event is not h11.NEED_DATA, f"h11 waits for more than {length} bytes"
        body += event.data if isinstance(event, h11.Data) else b""
    assert connection.trailing_data[0] == BEHIND
    return bytes(body)


@settings(max_examples=1500, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(heads())
@example(head(b"POST /?a?b HTTP/1.1", b"content-length: 00007", b"connection: KEEP-ALIVE"))
@example(head(b"GET / HTTP/1.1", b"x:", b"y: \t", b"z:  a\tb  "))
def test_h11_reads_every_plain_head_in_the_same_way(data: bytes) -> None:
    found = read_head(data + BEHIND)
    if found is None:
        return
    request, behind = h11_head(data + BEHIND)
    path, _, query = request.target.partition(b"?")
    assert (request.method.decode(), path, query) == (found.method, found.path, found.query)
    assert [(bytes(name), bytes(value)) for name, value in request.headers] == list(found.headers.items())
    assert behind == (data + BEHIND)[found.size :]
    assert request.http_version == b"1.1"
    if found.body_bytes <= 10_000:
        body = b"b" * found.body_bytes
        assert body_of(data[: found.size] + body + BEHIND, found.body_bytes) == body


def test_the_heads_that_are_drawn_are_plain_often_enough() -> None:
    plain = 0

    @settings(max_examples=300, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(heads())
    def count(data: bytes) -> None:
        nonlocal plain
        plain += read_head(data) is not None

    count()
    assert plain > 20


@pytest.mark.parametrize("name", [name for name in NOT_PLAIN if name.startswith(("a long host", "a length far"))])
def test_what_h11_refuses_for_its_length_is_not_plain(name: str) -> None:
    with pytest.raises(h11.RemoteProtocolError, match="too long"):
        h11_head(NOT_PLAIN[name])


# -- what a hostile head costs -----------------------------------------------------------------------------------------


def tried_again(pattern: bytes) -> list[bytes]:
    """The repetitions of a regular expression that may be tried again with fewer characters."""
    without_classes = re.sub(rb"\[[^\]]*\]", b"C", pattern)
    return re.findall(rb"[C)](?:[*+]|\{[^}]*\})(?!\+)", without_classes)


def test_no_part_of_a_head_is_tried_twice() -> None:
    assert tried_again(rb"([a-z]+b)*c{2}[d]{3}") == [b"C+", b")*", b"C{3}"]
    assert tried_again(request_heads._HEAD.pattern) == []
