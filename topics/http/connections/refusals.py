"""The answer to input that is not HTTP; and request ids."""

from __future__ import annotations

import secrets

import msgspec


def refusal_of_no_http() -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body and the headers of the 400 for input that is not valid HTTP (`docs/spec/api.md` section 1). Its request
    id is always a new one, because the fields of such input cannot be relied on."""
    body = msgspec.json.encode(
        {"error": {"code": "invalid_request", "message": "the request is not valid HTTP", "detail": {}}}
    )
    body += b"\n"
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    return body, [*headers, (b"x-request-id", new_request_id().encode())]


def new_request_id() -> str:
    """A request id for an answer whose request has none."""
    return secrets.token_hex(8)
