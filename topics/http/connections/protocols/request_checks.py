"""Checks of a request's head that HTTP/1.1 and HTTP/2 share: fields that may be there once, hosts, handshakes of
WebSockets; and the answer to what is not HTTP. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import h11
import msgspec
from hypercorn.protocol.ws_stream import Handshake

from topics.http.connections.hosts import is_host

# h11 looks at each of the commas in these; no client has more than some words there.
LONG_FIELD: Final = 4 << 10
TARGET: Final = re.compile(rb"[\x21-\x7e]+")
# Request headers up to 128 KiB are promised; the request line, and what h2 adds for each field, come on top.
MAX_HEADER_BYTES: Final = (128 + 64) << 10


# The libraries take up to 20 us of the loop for each field, which over HTTP/2 may be one byte. No client sends more
# than some dozens.
MAX_HEADER_FIELDS: Final = 1000


# Fields that say one thing, of which the daemon would take the last and a proxy perhaps the first.
SINGLE_FIELDS: Final = frozenset(
    {
        b":authority",
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"expect",
        b"host",
        b"http2-settings",
        b"idempotency-key",
        b"last-event-id",
        b"origin",
        b"sec-websocket-key",
        b"sec-websocket-version",
    }
)


_WEBSOCKET_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")


def refusal_of_no_http() -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Body and headers of the answer to what is not HTTP (`docs/spec/api.md` section 1)."""
    body = msgspec.json.encode(
        {"error": {"code": "invalid_request", "message": "the request is not valid HTTP", "detail": {}}}
    )
    return body, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


def are_single(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if no field occurs twice that may be there once."""
    found = [name for name, _ in headers if name in SINGLE_FIELDS]
    return len(found) == len(set(found))


def have_valid_host(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if what the fields say of the host is one."""
    return all(is_host(value) for name, value in headers if name in (b"host", b":authority"))


def opens_websocket(request: h11.Request, version: str) -> bool:
    """Whether a request with an upgrade is one that RFC 6455, 4.2.1, allows. Of a field that is not ASCII hypercorn's
    look at it would be the connection's end."""
    names = [name for name, _ in request.headers]
    return (
        request.method == b"GET"
        and b"content-length" not in names
        and b"transfer-encoding" not in names
        and is_handshake(list(request.headers), version)
    )


def is_handshake(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    fields = [(name, value) for name, value in headers if name in _HANDSHAKE_FIELDS]
    if not all(value.isascii() and len(value) <= LONG_FIELD for _, value in fields):
        return False
    if version == "1.1":
        found = dict(fields)
        if b"upgrade" not in found or _WEBSOCKET_KEY.fullmatch(found.get(b"sec-websocket-key", b"")) is None:
            return False  # not 16 bytes in base64 (RFC 6455, 4.2.1)
    return Handshake(headers, version).is_valid()


_HANDSHAKE_FIELDS: Final = frozenset(
    {b"connection", b"upgrade", *(b"sec-websocket-" + name for name in (b"extensions", b"key", b"protocol"))}
)


def without_extensions(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a request for a WebSocket without the offer to compress.

    Hypercorn takes every offer, which costs 300 KiB and a deflate of every message for each socket.
    """
    return [(name, value) for name, value in headers if name.lower() != b"sec-websocket-extensions"]
