"""What schemathesis is told of the daemon that no schema says; it loads this module by its name.

A long poll that waits for its full time would be all that the fuzz does, and lease ids that are not as many as the seqs
would be all that it is told of.
"""

from __future__ import annotations

from typing import Any

import schemathesis

LONGEST_WAIT_MS = 20


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """Waits become short, and lease ids as many as there are seqs."""
    body: Any = case.body
    for values in (body, case.query):
        if isinstance(values, dict):
            _shorten(values)
    if isinstance(body, dict) and isinstance(body.get("seqs"), list) and isinstance(body.get("lease_ids"), list):
        count = len(body["seqs"])
        body["lease_ids"] = (body["lease_ids"] * count + ["lease_0"] * count)[:count]


def _shorten(values: dict[str, Any]) -> None:
    wait = values.get("wait_ms")
    if isinstance(wait, int) and LONGEST_WAIT_MS < wait < 2**64:
        values["wait_ms"] = LONGEST_WAIT_MS
    elif isinstance(wait, str) and wait.isdigit() and LONGEST_WAIT_MS < int(wait) < 2**64:
        values["wait_ms"] = str(LONGEST_WAIT_MS)


@schemathesis.serializer("application/cbor", "application/protobuf", "audio/ogg", "video/mp4")
def raw_bytes(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Raw bytes are text to the document. A range such as `audio/*` is sent as the type that this is for."""
    data = getattr(value, "data", value)
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogatepass")


@schemathesis.serializer("application/x-ndjson")
def lines(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """An upload is text to the document."""
    return str(value).encode("utf-8", "surrogatepass")
