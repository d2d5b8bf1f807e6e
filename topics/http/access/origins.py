"""Requests that web pages of other origins make a browser send (`TOPICS_CORS_ORIGINS`, `docs/spec/api.md` section 12).

Theory of operation. Without keys, only what the browser says tells a page of a stranger from the owner of the machine,
so `check` refuses every request that such a page can cause. There are two ways to cause one. A page can request a URL
of the daemon. Then the browser says in `Sec-Fetch-Site`, or at least in `Origin`, that the page is of another site or
origin. Or the DNS name of the page's own host can be changed to 127.0.0.1 after the page was loaded (DNS rebinding).
Then page and daemon have the same origin for the browser, and only `Host` shows the stranger's name.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from topics.errors import ApiError, shown
from topics.http.calls import Response

PREFLIGHT_S: Final = 600
"""How long a browser may keep the answer to a preflight request, seconds."""

_REQUEST_HEADERS: Final = (
    b"authorization, content-type, content-encoding, idempotency-key, last-event-id, topics-strict, x-request-id"
)
_EXPOSED: Final = b"x-request-id, retry-after"

Headers = list[tuple[bytes, bytes]]

_FOREIGN: Final = frozenset({b"cross-site", b"same-site"})
_MAX_HOST: Final = 300
"""Bytes of a `Host`; a name has at most 253, and a port follows it."""


class Origins:
    """The origins whose pages may use the daemon (`allowed`), and the names that `Host` may have beside `localhost` and
    addresses (`hosts`; None: any name)."""

    def __init__(self, allowed: tuple[str, ...], hosts: Iterable[str] | None = None) -> None:
        self._names = None if hosts is None else frozenset({"localhost", *hosts})
        self._is_ours = lru_cache(maxsize=64)(self._is_our_host)
        self._any = "*" in allowed
        self._allowed = frozenset(origin.encode() for origin in allowed)

    def _allows(self, origin: bytes | None) -> bool:
        return origin is not None and (self._any or origin.lower() in self._allowed)

    def headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        """The CORS headers of the answer to a request with these headers."""
        if not self._allowed:
            return []
        vary: Headers = [(b"vary", b"origin")]
        origin = headers.get(b"origin")
        if origin is None or not self._allows(origin):
            return vary
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), *vary]

    def preflight(self, method: str, headers: Mapping[bytes, bytes], allow: str) -> Response | None:
        """The answer to a preflight request (CORS) for a path with the methods `allow`; None for any other request, and
        for an origin that is not allowed."""
        if method != "OPTIONS" or b"access-control-request-method" not in headers:
            return None
        if not self._allows(headers.get(b"origin")):
            return None
        return Response(
            200,
            b"{}",
            headers=[
                (b"access-control-allow-methods", allow.encode()),
                (b"access-control-allow-headers", _REQUEST_HEADERS),
                (b"access-control-max-age", b"%d" % PREFLIGHT_S),
            ],
        )

    def check(self, method: str, headers: Mapping[bytes, bytes], *, is_page: bool = False) -> None:
        """Refuse a request that a page of another origin may have caused; for a daemon without keys.

        `is_page`: the route may be opened by a link on any page, because the answer then takes the place of that page.
        Raises `403 forbidden`.
        """
        host = headers.get(b"host", b"")
        if len(host) > _MAX_HOST or not self._is_ours(host):
            raise ApiError(
                "forbidden",
                "without keys the daemon answers to localhost, addresses and the names of TOPICS_ALLOWED_HOSTS only",
                detail={"host": shown(host)},
            )
        origin = headers.get(b"origin")
        if self._allows(origin):
            return
        site = headers.get(b"sec-fetch-site", b"")
        if site in _FOREIGN and not (is_page and _is_visit(method, headers)):
            raise _foreign({"sec_fetch_site": shown(site)})
        if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
            raise _foreign({"origin": shown(origin)})

    def _is_our_host(self, host: bytes) -> bool:
        """Return True if a `Host` (with or without a port) names this machine. It may be empty: every browser sends
        one."""
        if self._names is None or not host:
            return True
        name = host.decode("latin-1").lower()
        if name.startswith("["):
            return _is_address(name[1:].partition("]")[0])
        name = name.partition(":")[0]
        return name.removesuffix(".") in self._names or _is_address(name)


def _is_visit(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Return True if somebody follows a link, so that the answer replaces the page and the page cannot read it."""
    return (
        method == "GET"
        and headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _foreign(detail: dict[str, str]) -> ApiError:
    return ApiError("forbidden", "a page of another origin may not do this on a daemon without keys", detail=detail)
