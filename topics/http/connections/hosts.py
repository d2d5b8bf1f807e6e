"""Which values of `Host` (HTTP/2: `:authority`) are valid, and the host in a request target (RFC 9110, 7.2; RFC 9112,
3.2).

A request with an invalid value is answered with 400 before anything else. Two servers on the way could see different
hosts in it, and `topics.http.access.origins` decides by the host whether a page of a stranger has caused the request.
For the same reason the host of an absolute target (`GET http://host/path`) replaces the `Host` field.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final, NamedTuple

MOST_PORT: Final = 65535

# The names that RFC 3986, 3.2.2, allows, without those that have a comma, which would look like a list, or an empty
# label (`x..y`). A dot may be the last character.
_LABEL: Final = rb"(?:[A-Za-z0-9_~!$&'()*+;=-]|%[0-9A-Fa-f]{2})+"
_HOST: Final = re.compile(
    rb"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|%b(?:\.%b)*\.?)(?::(?P<port>[0-9]{0,5}))?" % (_LABEL, _LABEL)
)
_SCHEME: Final = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*:")
_ABSOLUTE: Final = re.compile(rb"https?://(?P<host>[^/?#]*)(?P<rest>[/?].*)?", re.IGNORECASE)


class Target(NamedTuple):
    """The parts of a request target."""

    path: bytes
    """The path, with the query."""
    host: bytes | None
    """The host; None if the target is only a path."""


def is_host(value: bytes) -> bool:
    """Return True if the value is a host name or an address, with or without a port up to 65535. An empty value is no
    host."""
    found = _HOST.fullmatch(value)
    if found is None or int(found["port"] or 0) > MOST_PORT:
        return False
    return found["address"] is None or _is_ipv6(found["address"].decode())


def read_target(target: bytes) -> Target | None:
    """The path and the host of a target; None if it is neither a path nor an `http` or `https` URI."""
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
