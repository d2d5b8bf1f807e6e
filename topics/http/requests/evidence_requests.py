"""Queries of the calls about evidence (`docs/spec/evidence.md` section 1)."""

from __future__ import annotations

from topics.errors import invalid
from topics.http.requests.query_strings import Query


def decode_inclusion(query: bytes) -> tuple[int, int | None]:
    """Return `seq` and `size`, None if the latter is missing. Raises 400."""
    found = Query(query)
    return _required(found, "seq"), found.integer("size", None)


def decode_consistency(query: bytes) -> tuple[int, int | None]:
    """Return `from` and `to`, None if the latter is missing. Raises 400."""
    found = Query(query)
    return _required(found, "from"), found.integer("to", None)


def _required(query: Query, name: str) -> int:
    value = query.integer(name, None)
    if value is None:
        raise invalid(name, "is required")
    return int(value)
