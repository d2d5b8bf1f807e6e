"""Requests with the header `Topics-Strict: 1`: unknown names are refused instead of ignored.

Without the header, unknown query parameters and unknown keys of most bodies are ignored, so that a client may be newer
than the daemon. But a misspelt name is ignored as well. The project's own clients therefore send the header.

This module knows the names that a strict request may have, and suggests one in the error. It looks only at the outer
keys of a body. `topics.http.requests` decodes appends strictly, with their records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import fields

from topics.errors import ApiError, invalid
from topics.http.openapi.description import OPERATIONS
from topics.http.requests.append_requests import AppendBody, IngestQuery
from topics.http.requests.body_reader import Carried
from topics.http.requests.raw_appends import RawQuery
from topics.http.routes import ROUTES, Route
from topics.model import RecordIn, TopicConfigPatch

HEADER: Final = b"topics-strict"
MAX_SHOWN: Final = 100
"""Characters of an unknown name that are shown and compared."""

_VALUES: Final[Mapping[bytes, bool]] = {b"1": True, b"true": True, b"0": False, b"false": False}


def is_strict(headers: Mapping[bytes, bytes]) -> bool:
    """Return True if the request has the header with the value true. Raises 400 for a value that is no boolean."""
    value = headers.get(HEADER)
    if value is None:
        return False
    if value not in _VALUES:
        raise invalid("Topics-Strict", "must be one of 1, 0, true, false")
    return _VALUES[value]


def check_query(route: Route, query: bytes, carried: Carried = "json") -> None:
    """Check that the call has all of these query parameters. Raises a 400 that names an unknown one. `carried` is what
    the body of an append is."""
    if not query:
        return
    known = _OF_APPENDS[carried] if route.name == "append" else _parameters()[route.name]
    for pair in query.split(b"&"):
        encoded = pair.partition(b"=")[0]
        if not pair:
            continue
        name = unquote_to_bytes(encoded[: 3 * MAX_SHOWN].replace(b"+", b" ")).decode("utf-8", "replace")
        if name not in known:
            raise unknown(name, known, "there is no such query parameter")


def check_body(route: Route, body: bytes) -> None:
    """Check that the call has all outer keys of this JSON body; a call without a body has none. Raises a 400 that names
    an unknown one. Everything else about the body is left to its decoder, also whether it is JSON."""
    described = OPERATIONS[route.name].body
    check_keys(body, () if described is None else names_of(described.type))


def check_keys(body: bytes, known: tuple[str, ...]) -> None:
    """Like `check_body`, for any JSON with these known outer keys."""
    try:
        _keys_only(known).decode(body)
    except msgspec.ValidationError as error:
        found = _UNKNOWN_KEY.match(str(error))
        if found is not None:
            raise unknown(found["name"] or '""', known, "there is no such field") from None
    except (msgspec.DecodeError, RecursionError):
        pass


def names_of(*kinds: type[msgspec.Struct]) -> tuple[str, ...]:
    """The names of the fields of these types, as they are in JSON."""
    return tuple(dict.fromkeys(field.encode_name for kind in kinds for field in fields(kind)))


_OF_APPENDS: Final[Mapping[Carried, frozenset[str]]] = {
    "json": frozenset({"return_seqs", "stage"}),
    "lines": frozenset(names_of(IngestQuery)),
    "bytes": frozenset({"return_seqs", *names_of(RawQuery)}),
    "unknown": frozenset({"return_seqs", *names_of(RawQuery)}),
}
"""The query parameters of an append, by what its body is. In JSON the others are fields of the body. A body that is not
taken is refused for that."""

_UNKNOWN_KEY: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)


@cache
def _keys_only(known: tuple[str, ...]) -> msgspec.json.Decoder[Any]:
    """Decodes an object with no other keys than these, and none of their values."""
    values = [(f"key_{number}", Raw | UnsetType, UNSET) for number in range(len(known))]
    names = {f"key_{number}": name for number, name in enumerate(known)}
    kind = msgspec.defstruct("Keys", values, rename=names, forbid_unknown_fields=True)
    return msgspec.json.Decoder(kind)


def explained(error: ApiError, path: str = "", also: Iterable[str] = ()) -> ApiError:
    """The error about an unknown key of an append, with the most similar known key added. Other errors are returned
    unchanged. `path` is the place of the field, if the error does not contain it. `also` are known keys beside those of
    an append."""
    field = error.detail.get("field")
    if not isinstance(field, str) or not error.message.endswith(": there is no such field"):
        return error
    shown, _, name = field.rpartition(".")
    path = path or shown
    kind = RecordIn if path.startswith("records[") else TopicConfigPatch if path == "config" else AppendBody
    known = [*names_of(kind), *(also if kind is AppendBody else ())]
    return unknown(name, known, "there is no such field", shown)


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
