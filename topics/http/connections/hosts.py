"""Which values of `Host` (HTTP/2: `:authority`) are one, and what a request target says of it (RFC 9110, 7.2; RFC 9112,
3.2).

A request with any other value is answered 400 before anybody looks at it: two servers on the way could see different
hosts in it, and `origins` decides by the host whether a page of a stranger has sent the request. For the same reason
the host of a target with an authority (`GET http://host/path`) takes the place of the `Host` field.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

MOST_PORT: Final = 65535

# A name is what RFC 3986, 3.2.2, allows, but for the comma: it would look like a list.
_HOST: Final = re.compile(
    rb"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?:[A-Za-z0-9._~!$&'()*+;=-]|%[0-9A-Fa-f]{2})+)(?::(?P<port>[0-9]{0,5}))?"
)
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
_ABSOLUTE: Final = re.compile(rb"https?://(?P<host>[^/?#]*)(?P<rest>[/?].*)?", re.IGNORECASE)


class Target(NamedTuple):
    """Where a request goes."""

    path: bytes
    """With the query."""
    host: bytes | None
    """None where the target does not say it."""


def is_host(value: bytes) -> bool:
    """Return True for a name or an address, with or without a port up to 65535. No host is empty."""
    found = _HOST.fullmatch(value)
    if found is None or int(found["port"] or 0) > MOST_PORT:
        return False
    return found["address"] is None or _is_ipv6(found["address"].decode())


def read_target(target: bytes) -> Target | None:
    """The path, and the host if the target has one. None for a target that is no path and no `http` or `https` URI."""
    if _SCHEME.match(target) is None:
        return Target(target, None)
    found = _ABSOLUTE.fullmatch(target)
    if found is None or not is_host(found["host"]):
        return None
    rest = found["rest"] or b"/"
    return Target(rest if rest.startswith(b"/") else b"/" + rest, found["host"])


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
