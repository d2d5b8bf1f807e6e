"""Checks of request heads for HTTP/1.1 and HTTP/2: fields that may be there only once, hosts, handshakes of WebSockets.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import h11
from hypercorn.protocol.ws_stream import Handshake

from topics.http.connections.hosts import is_host

# The longest value of a field about the connection. h11 splits such a value at each comma, and a client needs only a
# few words in it.
LONG_FIELD: Final = 4 << 10
TARGET: Final = re.compile(rb"[\x21-\x7e]+")
# Request headers up to 128 KiB are promised. The rest is for the request line and for what h2 counts for each field.
MAX_HEADER_BYTES: Final = (128 + 64) << 10

# The libraries take up to 20 us for each field, which over HTTP/2 may be one byte. Clients send some dozens.
MAX_HEADER_FIELDS: Final = 1000

# Fields that may be there only once: of two, the daemon would take the last, and a proxy perhaps the first.
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


def are_single(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if no field that may be there only once is there twice."""
    found = [name for name, _ in headers if name in SINGLE_FIELDS]
    return len(found) == len(set(found))


def have_valid_host(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if every `Host` and `:authority` among the fields is a valid host."""
    return all(is_host(value) for name, value in headers if name in (b"host", b":authority"))


def opens_websocket(request: h11.Request, version: str) -> bool:
    """Return True if an HTTP/1.1 request with an upgrade is a valid opening handshake (RFC 6455, 4.2.1)."""
    names = [name for name, _ in request.headers]
    return (
        request.method == b"GET"
        and b"content-length" not in names
        and b"transfer-encoding" not in names
        and is_handshake(list(request.headers), version)
    )


def is_handshake(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    """Return True if the fields are those of a valid opening handshake of a WebSocket over this HTTP version. Fields
    that are not ASCII are refused, because hypercorn fails on them."""
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
    """The headers of an opening handshake without its offer to compress messages.

    Hypercorn accepts every offer, which costs 300 KiB for each socket and a compression of each message.
    """
    return [(name, value) for name, value in headers if name.lower() != b"sec-websocket-extensions"]
