"""Bytes of one connection, drawn at random: several requests, most of them valid, and what clients do to them. Pure.

The same seed gives the same bytes. What is drawn is meant for a reader with two ways to serve a request: about half of
the requests are as ordinary clients send them, so that a connection changes hands again and again.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Final

from tests.fuzz.mutations import KINDS, mutated

MOST_REQUESTS: Final = 6

APPEND: Final = b'{"records":[{"data":1,"tag":"t"}]}'
LINES: Final = b'{"data":1}\n{"data":2,"tag":"t"}\n'
RAW: Final = b"\x00\r\n\r\nGET / HTTP/1.1\r\n\r\n\xff"
"""Raw bytes that look like a request."""

_CALLS: Final[tuple[tuple[bytes, bytes, bytes], ...]] = (
    (b"POST", b"/v0/topics/a", APPEND),
    (b"POST", b"/v0/topics/a", b'{"records":[{"data":{"a":[1,2]}},{"data":null}],"return_seqs":true}'),
    (b"POST", b"/v0/topics/b?create=0", APPEND),
    (b"POST", b"/v0/topics/a?stage=s1", b'{"records":[{"data":1}],"idempotency_key":"k"}'),
    (b"POST", b"/v0/topics/a?tag=t&node=n&meta=%7B%22k%22%3A%22v%22%7D", RAW),
    (b"POST", b"/v0/topics/a?expected_head_seq=1&fence=%7B%22name%22%3A%22f%22%2C%22token%22%3A1%7D", RAW),
    (b"POST", b"/v0/topics/a/commit", b'{"stages":["s1"],"idempotency_key":"k"}'),
    (b"GET", b"/v0/topics/a/diff", b""),
    (b"GET", b"/v0/topics/a/diff?from_seq=1&limit=3", b""),
    (b"GET", b"/v0/topics/a/diff?from_seq=99&wait_ms=2000", b""),
    (b"POST", b"/v0/topics/a/diff", b'{"from_seq":0,"wait_ms":1}'),
    (b"GET", b"/v0/topics/a", b""),
    (b"GET", b"/v0/topics/nobody", b""),
    (b"PUT", b"/v0/topics/a", b'{"ttl_ms":5000}'),
    (b"PUT", b"/v0/topics/q", b'{"type":"queue"}'),
    (b"DELETE", b"/v0/topics/b", b""),
    (b"GET", b"/v0/topics?prefix=a", b""),
    (b"POST", b"/v0/topics/a/delete", b'{"before_seq":2}'),
    (b"POST", b"/v0/topics/a/claim", b'{"node":"n","max":2}'),
    (b"POST", b"/v0/topics/a/ack", b'{"node":"n","seqs":[1,2],"lease_ids":["lease_7"]}'),
    (b"PUT", b"/v0/routers/r", b'{"source":"a","dest":"b"}'),
    (b"GET", b"/v0/routers/r", b""),
    (b"GET", b"/v0/health", b""),
    (b"GET", b"/healthz", b""),
    (b"GET", b"/v0/ready", b""),
    (b"GET", b"/", b""),
    (b"POST", b"/v0/admin/checkpoint", b""),
    (b"GET", b"/nowhere", b""),
    (b"POST", b"/v0/nowhere", b"{}"),
    (b"DELETE", b"/v0/health", b""),
    (b"GET", b"/v0/topics/%61/diff", b""),
    (b"GET", b"/v0/topics/a%2Fb", b""),
    (b"GET", b"//v0/health", b""),
    (b"GET", b"/v0/health?", b""),
    (b"GET", b"/v0/health?a=b&c=%zz", b""),
)

_ODD_METHODS: Final = (
    b"HEAD",
    b"OPTIONS",
    b"PATCH",
    b"get",
    b"CONNECT",
    b"PRI",
    b"POSTT",
    b"",
    b"G T",
    b"DELETE",
    b"PUT",
)
_ODD_TARGETS: Final = (
    b"*",
    b"",
    b"http://a/v0/health",
    b"HTTP://a",
    b"https://a?x",
    b"http://",
    b"ftp://a/",
    b"v0/health",
    b"/v0/health#part",
    b"/v0/hea lth",
    b"/v0/\xe9",
    b"/v0\t/health",
    b'/v0/"<>\\^`{|}',
    b"/" + b"x" * 5000,
    b"/v0/health?" + b"y" * 20000,
    b"a:80",
)
_VERSIONS: Final = (b"HTTP/1.0", b"HTTP/1.2", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1 ", b"", b"HTTP/1.10", b"HTTP/01.1")

_HOSTS: Final = (b"a", b"x", b"a:80", b"A", b"127.0.0.1", b"[::1]:4000", b"localhost", b"stranger")
_ODD_HOSTS: Final = (
    b"",
    b"a b",
    b"a:99999",
    b"a:",
    b"a..b",
    b"[::1",
    b"a,b",
    b"a/b",
    b"user@a",
    b"\xe9",
    b"a" * 5000,
    b"%61",
    b"%6",
)

_FIELDS: Final = (
    b"accept: */*",
    b"Accept: application/json",
    b"accept: image/*, application/cbor",
    b"accept-encoding: gzip",
    b"Accept-Encoding: gzip;q=0, identity",
    b"user-agent: a client/1.0 (of a kind)",
    b"connection: keep-alive",
    b"Connection: Keep-Alive",
    b"x-request-id: one",
    b"x-request-id: not one",
    b"idempotency-key: k1",
    b"authorization: Bearer secret",
    b"authorization: Bearer other",
    b"authorization: Basic c2VjcmV0",
    b"topics-strict: 1",
    b"cookie: a=b; c=d",
    b"origin: http://a",
    b"origin: http://stranger",
    b"x-empty:",
    b"x-empty:   ",
    b"x-tab:\tone\ttwo\t",
    b"x-spaces:     in front and behind     ",
    b"!#$%&'*+-.^_`|~: 1",
    b"keep-alive: timeout=5",
    b"last-event-id: e30",
)
_RAW_TYPES: Final = (
    b"application/octet-stream",
    b"image/png",
    b"IMAGE/Png ; Charset=utf-8;",
    b'video/mp4; codecs="a, b"',
    b"image/png; a",
    b"image/*",
    b"image/" + b"a" * 300,
    b"text/plain",
)

_ODD_FIELDS: Final = (
    b"connection: close",
    b"Connection: keep-alive, close",
    b"connection: keep-alive, foo",
    b"connection: upgrade",
    b"connection:",
    b"connection: " + b" " * 5000 + b"keep-alive",
    b"expect: 100-continue",
    b"expect: something",
    b"te: trailers",
    b"trailer: a",
    b"transfer-encoding: chunked",
    b"transfer-encoding: identity",
    b"transfer-encoding: gzip, chunked",
    b"Transfer-Encoding : chunked",
    b"transfer-encoding:\x0bchunked",
    b"transfer_encoding: chunked",
    b"upgrade: h2c",
    b"upgrade: websocket",
    b"upgrade: something",
    b"http2-settings: AAMAAABk",
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: " + b"A" * 5000,
    b"content-length: 3",
    b"content-length: 0",
    b"content-length: 00",
    b"content-length: +3",
    b"content-length: 3, 3",
    b"content-length: 3 3",
    b"content-length: -1",
    b"content-length:",
    b"content-length: 1_0",
    b"content-length: " + b"0" * 30 + b"2",
    b"content-length:" + b" " * 5000 + b"0",
    b"content-length: 99999999999999999999999",
    b"content-length: 999999",
    b"content-type: text/plain",
    b"content-type: application/cbor",
    b"content-type: image/png\x0b",
    b"content-type: image/png, image/png",
    b"content-encoding: br",
    b"content-encoding: gzip",
    b"host: a",
    b"accept: text/plain",
    b"x-control: a\x01b",
    b"x-nul: a\x00b",
    b"x-delete: a\x7fb",
    b"x-high: \xff\xfe",
    b"x-cr: a\rb: c",
    b"x-lf: a\nb: c",
    b"x-long: " + b"y" * 4085,
    b"x-long: " + b"y" * 9000,
    b"x-longer: " + b"y" * 20000,
    b" folded: a",
    b"\tfolded: a",
    b"no colon",
    b": no name",
    b"spa ce: a",
    b"space : a",
    b"na(me: a",
    b"",
)

_BETWEEN: Final = (
    b"\r\n",
    b"\n",
    b"\r\n\r\n",
    b"\0",
    b" ",
    b"\r",
    b"x",
    b"0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)


def drawn_bytes(chance: Random) -> bytes:
    """The bytes of a connection: one to `MOST_REQUESTS` requests, in one of three connections with odd bytes."""
    parts = []
    odd = chance.choice((0.0, 0.05, 0.3))
    for _ in range(chance.randint(1, MOST_REQUESTS)):
        if chance.random() < odd / 4:
            parts.append(chance.choice(_BETWEEN))
        parts.append(drawn_request(chance, odd))
    data = b"".join(parts)
    if chance.random() < odd:
        steps = [
            (chance.randrange(KINDS), chance.randrange(1 << 16), chance.randrange(1 << 16))
            for _ in range(chance.randint(1, 3))
        ]
        data = mutated(data, drawn_request(chance, odd), steps)
    return data


def drawn_request(chance: Random, odd: float) -> bytes:
    """One request. `odd` is the share of its parts that are not as ordinary clients send them."""

    def is_odd() -> bool:
        return chance.random() < odd

    method, target, body = chance.choice(_CALLS)
    version = b"HTTP/1.1"
    if is_odd():
        method = chance.choice(_ODD_METHODS)
    if is_odd():
        target = chance.choice(_ODD_TARGETS)
    if is_odd():
        version = chance.choice(_VERSIONS)
    if is_odd() or chance.random() < 0.05:
        body = chance.choice((b"", b"hello", APPEND, LINES, RAW, b" " * 3000, b"x" * 20000, b"[" * 40))
    host = chance.choice(_ODD_HOSTS) if is_odd() else chance.choice(_HOSTS[:2] if chance.random() < 0.9 else _HOSTS)
    fields = [b"host: " + host]
    if is_odd() and chance.random() < 0.3:
        fields = []
    fields += chance.sample(_FIELDS, chance.choice((0, 0, 1, 2, 4)))
    while is_odd():
        fields.append(chance.choice(_ODD_FIELDS))
    framing, body = drawn_body(chance, body, odd)
    fields += framing
    if chance.random() < 0.3:
        fields = [_recased(chance, field) for field in fields]
    if is_odd():
        chance.shuffle(fields)
    if is_odd() and chance.random() < 0.1:
        fields += [b"x-%d: y" % number for number in range(chance.choice((60, 70, 1100)))]
    end = chance.choice((b"\n", b"\r", b"\r\n ")) if chance.random() < odd / 10 else b"\r\n"
    return end.join([b" ".join((method, target, version)), *fields, b"", b""]) + body


def drawn_body(chance: Random, body: bytes, odd: float) -> tuple[Sequence[bytes], bytes]:
    """The fields for a body, and its bytes as they are sent."""
    fields = []
    if body or chance.random() < 0.1:
        kind = b"application/x-ndjson" if body == LINES or chance.random() < 0.05 else b"application/json"
        if body == RAW or chance.random() < 0.05:
            kind = chance.choice(_RAW_TYPES)
        fields.append(b"content-type: " + kind)
    if body and chance.random() < 0.1:
        body = gzip.compress(body, mtime=0)
        fields.append(b"content-encoding: gzip")
    draw = chance.random()
    if draw < 0.2:
        return [*fields, b"transfer-encoding: chunked"], _chunked(chance, body, odd)
    if draw < 0.25:
        fields.append(b"expect: 100-continue")
    if not body and chance.random() < 0.8:
        return fields, b""
    length = len(body)
    if chance.random() < odd / 2:
        length = max(0, length + chance.choice((-5, -1, 1, 7, 200, 20_000)))
    return [*fields, b"content-length: %d" % length], body


def _chunked(chance: Random, body: bytes, odd: float) -> bytes:
    out = []
    while body:
        size = chance.randint(1, len(body))
        extension = chance.choice((b";a=b", b';a="b;c"', b" ", b";", b";\n")) if chance.random() < odd / 3 else b""
        out.append(b"%x%b\r\n%b\r\n" % (size, extension, body[:size]))
        body = body[size:]
    trailer = chance.choice((b"a: b\r\n", b"content-length: 3\r\n", b"x\r\n")) if chance.random() < odd / 2 else b""
    return b"".join(out) + b"0\r\n" + trailer + b"\r\n"


def _recased(chance: Random, field: bytes) -> bytes:
    name, colon, value = field.partition(b":")
    return chance.choice((name.upper(), name.title(), name)) + colon + value


def drawn_cuts(chance: Random, data: bytes) -> list[bytes]:
    """The bytes in the segments in which they are sent: often all at once, or cut at a line or anywhere."""
    cuts = {0, len(data)}
    for _ in range(chance.choice((0, 0, 1, 2, 5))):
        at = chance.randint(0, len(data))
        if chance.random() < 0.5:
            line = data.find(b"\r\n", at)
            at = min(len(data), line + chance.randint(0, 4)) if line >= 0 else at
        cuts.add(at)
    places = sorted(cuts)
    return [data[begin:end] for begin, end in pairwise(places)]
