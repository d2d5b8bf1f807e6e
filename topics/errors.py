"""The one exception that becomes an error answer to a client.

All code below HTTP raises `ApiError`. `topics.http.gate` turns it into the error envelope of `docs/spec/api.md`
section 1. Which status belongs to which error code is said here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

STATUS_OF_CODE: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "record_too_large": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "topic_not_found": 404,
    "router_not_found": 404,
    "stage_not_found": 404,
    "record_not_found": 404,
    "consumer_not_found": 404,
    "schedule_not_found": 404,
    "group_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "router_cycle": 409,
    "topic_exists_incompatible": 409,
    "topic_not_empty": 409,
    "not_a_queue": 409,
    "not_a_log": 409,
    "no_evidence": 409,
    "stage_closed": 409,
    "condition_failed": 409,
    "consumer_owned": 409,
    "fenced": 409,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "not_here": 421,
    "topic_full": 422,
    "schema_violation": 422,
    "throttled": 429,
    "internal": 500,
    "not_ready": 503,
    "shutting_down": 503,
    "read_only": 503,
    "not_owner": 503,
    "behind": 503,
}


MAX_SHOWN: Final = 100
"""Characters of a client's text that an error message repeats."""

_MAX_MESSAGE: Final = 1000

_MAX_DETAIL: Final = 300
"""Characters of a text in `detail`. The names of topics and routers have at most 255."""


def shown(text: str | bytes, most: int = MAX_SHOWN) -> str:
    """A text that a client has sent, in the form in which an error message repeats it.

    A text longer than `most` characters is cut there, and its full length is added.
    """
    start = text[:most]
    start = start.decode("utf-8", "replace") if isinstance(start, bytes) else start
    return start if len(text) <= most else f"{start}... ({len(text)} in all)"


class ApiError(Exception):
    """A request is refused, and the client is told why.

    `code` is one of `STATUS_OF_CODE`. `detail` holds facts about the error that can be encoded as JSON. The message and
    the texts in `detail` are cut if they are long, because they may repeat what a client has sent. `retry_after_s`
    (whole seconds) becomes the `Retry-After` header; `headers` are further headers of the answer.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        detail: Mapping[str, Any] | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        message = shown(message, _MAX_MESSAGE)
        super().__init__(f"{code}: {message}")
        self.code = code
        self.status = STATUS_OF_CODE[code]
        self.message = message
        self.detail: dict[str, Any] = {
            name: shown(value, _MAX_DETAIL) if isinstance(value, str) else value
            for name, value in (detail or {}).items()
        }
        self.retry_after_s = retry_after_s
        self.headers: dict[str, str] = dict(headers or {})


def invalid(field: str, message: str, **detail: Any) -> ApiError:
    """`400 invalid_request` about one named field."""
    return ApiError("invalid_request", f"{field}: {message}", detail={"field": field, **detail})


def placed(error: ApiError, prefix: str, **detail: Any) -> ApiError:
    """Return the error with `prefix`, such as `config.`, before the name of its field, and with more detail. An error
    that names no field keeps its message."""
    field = error.detail.get("field")
    if not isinstance(field, str):
        return ApiError(error.code, error.message, detail={**error.detail, **detail})
    return ApiError(
        error.code, f"{prefix}{error.message}", detail={**error.detail, **detail, "field": f"{prefix}{field}"}
    )


def router_not_found(router: str) -> ApiError:
    """`404 router_not_found`."""
    return ApiError("router_not_found", f"there is no router {router!r}", detail={"router": router})


def topic_not_found(topic: str) -> ApiError:
    """`404 topic_not_found`."""
    return ApiError("topic_not_found", f"topic {topic!r} does not exist", detail={"topic": topic})


def record_not_found(topic: str, seq: int, reason: str) -> ApiError:
    """`404 record_not_found`. `reason` is `deleted`, `evicted`, `expired`, `lost`, `corrupt` or `not_yet`."""
    detail = {"topic": topic, "seq": seq, "reason": reason}
    return ApiError("record_not_found", f"topic {topic!r} has no record {seq}: {reason}", detail=detail)


def no_record_of_tag(topic: str, tag: str, reason: str) -> ApiError:
    """`404 record_not_found` for a tag. `reason` is `none`: no live record has it, or `null`: the newest one has data
    null."""
    detail = {"topic": topic, "tag": tag, "reason": reason}
    text = "the data of its newest record is null" if reason == "null" else "no record has it"
    return ApiError("record_not_found", f"topic {topic!r}, tag {tag!r}: {text}", detail=detail)


def schema_violation(record: int, path: str, message: str) -> ApiError:
    """`422 schema_violation`: the data of a record (counted from 0) breaks the schema of the topic. `path` is a JSON
    pointer into the data."""
    detail = {"record": record, "path": path, "message": message}
    return ApiError("schema_violation", f"records[{record}].data{path}: {message}", detail=detail)


def unauthorized(message: str, *, token_shown: bool) -> ApiError:
    """`401 unauthorized`. The `WWW-Authenticate` header says whether the request had no token (`token_shown` is false)
    or one that is not valid (RFC 6750, 3)."""
    challenge = 'Bearer error="invalid_token"' if token_shown else "Bearer"
    return ApiError("unauthorized", message, headers={"www-authenticate": challenge})


def throttled(limit: str, maximum: int, *, retry_after_ms: int | None = None) -> ApiError:
    """`429 throttled`: the limit named `limit`, which is `maximum`, has been reached.

    `retry_after_ms` says that the cause passes by itself, and when to try again; None for a cap, which stays.
    """
    detail: dict[str, Any] = {"limit": limit, "max": maximum}
    if retry_after_ms is not None:
        detail["retry_after_ms"] = retry_after_ms
    retry_after_s = max(1, -(-(retry_after_ms or 0) // 1000))
    return ApiError("throttled", f"{limit} is reached ({maximum})", detail=detail, retry_after_s=retry_after_s)


def timed_out(timeout_ms: int, *, changes: bool) -> ApiError:
    """A call has not begun its answer in `TOPICS_REQUEST_TIMEOUT_MS`: `503 not_ready` if it changes nothing, so that
    everybody may repeat it, and else `503 read_only`, the code for calls whose outcome is open (`changes`)."""
    detail = {"request_timeout_ms": timeout_ms}
    message = f"there was no answer within {timeout_ms} ms"
    if changes:
        return ApiError("read_only", f"{message}. The call may still be carried out", detail=detail, retry_after_s=5)
    return ApiError("not_ready", message, detail=detail, retry_after_s=1)


def read_only(message: str) -> ApiError:
    """`503 read_only`: the daemon refuses this change, because a WAL shard has failed or the disk is nearly full. Reads
    still work."""
    return ApiError("read_only", message, retry_after_s=5)


def not_owner(message: str, owner: str = "", *, refused: bool = True) -> ApiError:
    """`503 not_owner`: another daemon owns the bucket, or may, so this one changes nothing. `owner` is the URL of the
    owner, if it is known. `refused` is False if the call may have been carried out."""
    return ApiError("not_owner", message, detail={"owner": owner or None, "refused": refused}, retry_after_s=1)


def not_archived(problem: str, *, remote: bool) -> ApiError:
    """`503 not_ready`: the bucket is away, and this change would have to be in it. Nothing of it exists. `remote` is
    True if the topic's class asks for that, and False if its seqs do (`topics.log.bucket_ceiling`)."""
    why = (
        "this topic is kept in it (durability remote)"
        if remote
        else "this topic has used up the seqs that are reserved there for a takeover (TOPICS_BUCKET_TAKEOVER)"
    )
    return ApiError(
        "not_ready",
        f"the bucket takes nothing now ({problem}), and {why}",
        detail={"bucket": problem},
        retry_after_s=1,
    )
