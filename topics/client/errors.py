"""What a call of the client raises (`docs/spec/api.md` section 1).

Responsible for the types and for turning an answer that is a failure into one of them. What is done about it is
`topics.client.retry`'s business. No exception holds a token or the request that was sent.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TopicsError(Exception):
    """What goes wrong with a call, at the daemon or on the way to it. Wrong arguments are a TypeError or ValueError, a
    closed client is a RuntimeError, and waiting for a producer raises TimeoutError."""

    code: str = "error"
    """Of `docs/spec/api.md` section 1, or one of the client's own."""
    detail: dict[str, Any]
    retry_after: float | None = None
    """Seconds after which it may work, where the daemon has said so."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.detail = {}


class ConnectionFailed(TopicsError):
    """No answer: the daemon cannot be reached, or the connection broke or took too long."""

    code = "connection_failed"

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        """Whether the daemon may have carried the call out."""


class ProtocolError(TopicsError):
    """An answer that the contract does not know, from something between the client and the daemon, or another
    service."""

    code = "protocol_error"


class ApiError(TopicsError):
    """The daemon's refusal. `status` is that of HTTP; `code` and `detail` are those of `docs/spec/api.md` section 1."""

    def __init__(
        self, status: int, code: str, message: str, detail: dict[str, Any], retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.detail = detail
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message} ({self.status} {self.code})"


class BadRequest(ApiError):
    """400: a field has a value that it cannot have."""


class Unauthorized(ApiError):
    """401: no key, or one that the daemon does not know."""


class Forbidden(ApiError):
    """403: the key does not go so far."""


class NotFound(ApiError):
    """404: there is no such topic, router or stage."""


class Conflict(ApiError):
    """409: what is there stands against it."""


class TooLarge(ApiError):
    """413: the body is larger than the daemon takes."""


class TopicFull(ApiError):
    """422: the topic rejects what does not fit under its caps."""


class Throttled(ApiError):
    """429: too much at once, or a limit is reached (`detail["limit"]`)."""


class ServerError(ApiError):
    """500 and what else is the other side's fault: whether the call was carried out is unknown."""


class Unavailable(ServerError):
    """503: starting, stopping, or read-only."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: TopicFull,
    429: Throttled,
    503: Unavailable,
}


class _Facts(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}


class _Failure(msgspec.Struct):
    error: _Facts


_decoder = msgspec.json.Decoder(_Failure)


def error_of(status: int, retry_after: str | None, body: bytes) -> TopicsError:
    """The exception for an answer that is no success: its status, its `Retry-After` header, its body."""
    try:
        facts = _decoder.decode(body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        if status < 500:
            return ProtocolError(f"the answer with status {status} is not one of topics")
        # What stands in front of the daemon could not reach it, or gave up on it.
        facts = _Facts("server_error", f"an answer with status {status} that is not one of topics")
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    return kind(status, facts.code, facts.message, facts.detail, _seconds(retry_after, facts.detail))


def _seconds(header: str | None, detail: dict[str, Any]) -> float | None:
    exact = detail.get("retry_after_ms")
    if isinstance(exact, int | float):
        return max(exact / 1000, 0.0)
    if header is not None and header.strip().isdecimal():
        return float(header)
    return None
