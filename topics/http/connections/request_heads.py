"""Plain heads of HTTP/1.1 requests: one strict grammar, which decides what the lane serves. Pure.

A head is *plain* if there is only one way to read it: a known method, an origin-form path, fields of printable ASCII,
none of them twice, a valid `Host`, at most one length of the body, and nothing that changes the framing or the
protocol. `read_head` returns None for everything else, also for bytes that are no HTTP at all and for a head that is
not complete. Hypercorn takes heads that are not plain, from their first byte on: the lane refuses nothing by itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from topics.http.connections.hosts import is_host

MAX_HEAD: Final = 16 << 10
"""Bytes of a plain head."""
MAX_LINE: Final = 4 << 10
"""Bytes of a field. Of fields about the connection hypercorn refuses longer ones (`request_checks.LONG_FIELD`)."""
MAX_FIELDS: Final = 64
MAX_LENGTH_DIGITS: Final = 15

# Possessive quantifiers: a head that does not match is given up in one pass.
_HEAD: Final = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[!->@-~]*+)(?:\?([!-~]*+))? HTTP/1\.1\r\n"
    rb"((?:[!#$%&'*+.^_`|~0-9A-Za-z-]++:[\t -~]*+\r\n)*+)\r\n"
)

_NOT_PLAIN: Final = frozenset({b"expect", b"http2-settings", b"te", b"trailer", b"transfer-encoding", b"upgrade"})
"""Fields that change the framing, ask for another protocol, or ask for something before the answer."""

_is_host: Final = lru_cache(maxsize=64)(is_host)


@dataclass(frozen=True, slots=True)
class Head:
    """A plain head."""

    method: str
    path: bytes
    """The path, still percent-encoded."""
    query: bytes
    headers: dict[bytes, bytes]
    """The fields by their names in lower case, in their order."""
    body_bytes: int
    """The length of the body."""
    size: int
    """The length of the head itself, bytes."""


_METHODS: Final = {name.encode(): name for name in ("GET", "POST", "PUT", "DELETE")}


def read_head(data: bytes) -> Head | None:
    """The plain head with which `data` begins; None if there is none."""
    found = _HEAD.match(data, 0, MAX_HEAD)
    if found is None:
        return None
    method, path, query, fields = found.groups()
    lines = fields.split(b"\r\n")
    headers: dict[bytes, bytes] = {}
    for line in lines[:-1]:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip(b" \t")
    count = len(lines) - 1
    if len(headers) != count or count > MAX_FIELDS or not _NOT_PLAIN.isdisjoint(headers):
        return None
    if len(fields) > MAX_LINE and max(map(len, lines)) > MAX_LINE:
        return None
    connection = headers.get(b"connection")
    if connection is not None and connection.lower() != b"keep-alive":
        return None
    length = headers.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > MAX_LENGTH_DIGITS or not _is_host(headers.get(b"host", b"")):
        return None
    return Head(_METHODS[method], path, query or b"", headers, int(length), found.end())
