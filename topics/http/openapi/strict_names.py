"""Requests with the header `Topics-Strict: 1`: unknown names are refused instead of ignored.

Without the header, unknown query parameters and unknown keys of an append are ignored, so that a client may be newer
than the daemon. But a misspelt name is ignored as well. The project's own clients therefore send the header.

This module knows the names that a strict request may have, and suggests one in the error. `topics.http.requests`
decodes appends strictly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Final
from urllib.parse import unquote_to_bytes

from msgspec.structs import fields

from topics.errors import ApiError, invalid
from topics.http.openapi.description import OPERATIONS
from topics.http.routes import ROUTES, Route
from topics.model import AppendRequest, RecordIn, TopicConfigPatch

HEADER: Final = b"topics-strict"
MAX_SHOWN: Final = 100
"""Characters of an unknown name that are shown and compared."""

_VALUES: Final[Mapping[bytes, bool]] = {b"1": True, b"true": True, b"0": False, b"false": False}
_OF_JSON_APPENDS: Final = frozenset({"return_seqs", "stage"})
"""The query parameters of an append whose body is JSON. In such a body the others are fields."""


def is_strict(headers: Mapping[bytes, bytes]) -> bool:
    """Return True if the request has the header with the value true. Raises 400 for a value that is no boolean."""
    value = headers.get(HEADER)
    if value is None:
        return False
    if value not in _VALUES:
        raise invalid("Topics-Strict", "must be one of 1, 0, true, false")
    return _VALUES[value]


def check_query(route: Route, query: bytes, *, lines: bool = False) -> None:
    """Check that the call has all of these query parameters. Raises a 400 that names an unknown one. `lines`: the body
    is NDJSON."""
    if not query:
        return
    known = _parameters()[route.name]
    if route.name == "append":
        known = known - {"return_seqs"} if lines else known & _OF_JSON_APPENDS
    for pair in query.split(b"&"):
        encoded = pair.partition(b"=")[0]
        if not pair:
            continue
        name = unquote_to_bytes(encoded[: 3 * MAX_SHOWN].replace(b"+", b" ")).decode("utf-8", "replace")
        if name not in known:
            raise unknown(name, known, "there is no such query parameter")


def explained(error: ApiError, path: str = "") -> ApiError:
    """The error about an unknown key of an append, with the most similar known key added. Other errors are returned
    unchanged. `path` is the place of the field, if the error does not contain it."""
    field = error.detail.get("field")
    if not isinstance(field, str) or not error.message.endswith(": there is no such field"):
        return error
    shown, _, name = field.rpartition(".")
    path = path or shown
    kind = RecordIn if path.startswith("records[") else TopicConfigPatch if path == "config" else AppendRequest
    return unknown(name, [known.encode_name for known in fields(kind)], "there is no such field", shown)


def unknown(name: str, known: Iterable[str], message: str, path: str = "") -> ApiError:
    """The 400 for an unknown name, with the most similar known one. `path` is the place of the name in the request."""
    name = name[:MAX_SHOWN]
    alike = get_close_matches(name, sorted(known), n=1)
    shown = f"{path}.{name}" if path else name
    if not alike:
        return invalid(shown, message)
    return invalid(shown, f"{message}; did you mean {alike[0]}?", suggestion=alike[0])


@cache
def _parameters() -> Mapping[str, frozenset[str]]:
    """The query parameters of each route, by its name."""
    found = {}
    for route in ROUTES:
        names = {parameter.name for parameter in OPERATIONS[route.name].parameters if parameter.place == "query"}
        found[route.name] = frozenset(names | {"token"} if route.token_in_query else names)
    return found
