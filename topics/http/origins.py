"""Pages of other origins (`TOPICS_CORS_ORIGINS`, `api.md` section 12): what a browser may send and show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.errors import ApiError
from topics.http.calls import Response

PREFLIGHT_S: Final = 600
"""How long a browser may remember what it was told."""

_REQUEST_HEADERS: Final = b"authorization, content-type, content-encoding, idempotency-key, last-event-id, x-request-id"
_EXPOSED: Final = b"x-request-id, retry-after"

Headers = list[tuple[bytes, bytes]]


class Origins:
    """The origins that are let."""

    def __init__(self, allowed: tuple[str, ...]) -> None:
        self._any = "*" in allowed
        self._allowed = frozenset(origin.encode() for origin in allowed)

    def _allows(self, origin: bytes | None) -> bool:
        return origin is not None and (self._any or origin.lower() in self._allowed)

    def headers(self, headers: Mapping[bytes, bytes]) -> Headers:
        """What an answer to a request with these headers carries besides."""
        if not self._allowed:
            return []
        vary: Headers = [(b"vary", b"origin")]
        origin = headers.get(b"origin")
        if origin is None or not self._allows(origin):
            return vary
        return [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _EXPOSED), *vary]

    def preflight(self, method: str, headers: Mapping[bytes, bytes], allow: str) -> Response | None:
        """The answer to a browser that asks beforehand whether it may use one of the methods `allow`; None for any
        other request."""
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

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Refuse what a page of another origin asks for, where no key tells whether it may. For what a browser sends
        without asking beforehand: WebSockets, and calls without a body that change something. Raises `403 forbidden`.
        """
        origin = headers.get(b"origin")
        if origin is None or self._allows(origin):
            return
        if origin.partition(b"://")[2].lower() != headers.get(b"host", b"").lower():
            raise ApiError(
                "forbidden",
                "a page of this origin may not do this",
                detail={"origin": origin.decode("latin-1")},
            )
