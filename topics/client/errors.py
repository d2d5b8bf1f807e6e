"""The exceptions that a call of the client raises (`docs/spec/api.md` section 1).

Responsible for the types, and for turning an answer without success into one of them. Which of them are repeated is
decided by `topics.client.retry`. No exception holds the API key or the request.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TopicsError(Exception):
    """A call has failed, at the daemon or on the way to it.

    Not TopicsError, but raised too: TypeError and ValueError for wrong arguments, RuntimeError for a closed client, and
    TimeoutError where a caller waits for a producer with a timeout.
    """

    code: str = "error"
    """The kind of the failure, for programs: a code of `docs/spec/api.md` section 1, or one of the client's own."""
    detail: dict[str, Any]
    """Facts about the failure, such as the topic; empty unless the daemon has sent some."""
    retry_after: float | None = None
    """After how long a repeat may succeed, in seconds; None: the daemon has not said."""
    elsewhere: bool = False
    """True if the client has another daemon that was not asked yet, which may answer at once."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.detail = {}


class ConnectionFailed(TopicsError):
    """There is no answer: the daemon cannot be reached, the connection broke, or no byte came within `timeout`."""

    code = "connection_failed"

    def __init__(self, message: str, *, outcome_unknown: bool) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        """True if the daemon may have carried out the call, False if it certainly has not."""


class ProtocolError(TopicsError):
    """The answer is not one that a daemon gives. It comes from a proxy, or from another service."""

    code = "protocol_error"


class ApiError(TopicsError):
    """The daemon has refused the call, or failed at it. `status` is the status of HTTP; `code`, `detail` and `message`
    are those of the answer (`docs/spec/api.md` section 1)."""

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
    """400: a parameter or field has a value that the daemon does not accept."""


class Unauthorized(ApiError):
    """401: the daemon needs an API key, and none was sent or the daemon does not know it."""


class Forbidden(ApiError):
    """403: the API key does not allow this call, or not on this topic."""


class NotFound(ApiError):
    """404: the topic, router or stage does not exist."""


class Conflict(ApiError):
    """409: the state of the topic or router forbids the call; `code` says why."""


class ConditionFailed(Conflict):
    """409: a condition of an append or a commit does not hold, and nothing was stored. `detail` says what is there:
    `head_seq`, or `tag`, `expected` and `actual`."""


class Fenced(Conflict):
    """409: a higher token was seen under the name of the fence (`detail["token"]`), and nothing was stored."""


class TooLarge(ApiError):
    """413: the body is larger than the daemon accepts."""


class TopicFull(ApiError):
    """422: the records do not fit below the caps of the topic, which rejects records instead of removing old ones."""


class Throttled(ApiError):
    """429: too many calls or bytes at once, or a limit of the daemon is reached (`detail["limit"]`)."""


class ServerError(ApiError):
    """5xx: the daemon, or a proxy before it, has failed. It is not known whether the call was carried out."""


class Unavailable(ServerError):
    """503: the daemon is starting, stopping, read-only, or not the owner of its data; `code` says which."""


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


_BY_CODE: dict[str, type[ApiError]] = {"condition_failed": ConditionFailed, "fenced": Fenced}


class _Facts(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] = {}


class _Failure(msgspec.Struct):
    error: _Facts


_decoder = msgspec.json.Decoder(_Failure)


def error_of(status: int, retry_after: str | None, body: bytes) -> TopicsError:
    """The exception for an answer without success, made of its status, its `Retry-After` header and its body."""
    try:
        facts = _decoder.decode(body).error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        if status < 500:
            return ProtocolError(f"the answer with status {status} is not one of topics")
        # What stands in front of the daemon could not reach it, or gave up on it.
        facts = _Facts("server_error", f"an answer with status {status} that is not one of topics")
    kind = _BY_CODE.get(facts.code) or _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    return kind(status, facts.code, facts.message, facts.detail, _seconds(retry_after, facts.detail))


def _seconds(header: str | None, detail: dict[str, Any]) -> float | None:
    exact = detail.get("retry_after_ms")
    if isinstance(exact, int | float):
        return max(exact / 1000, 0.0)
    if header is not None and header.strip().isdecimal():
        return float(header)
    return None
