"""Filters in requests: a field of a JSON body, or a parameter of a query (`docs/spec/consumers.md` section 2)."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from topics.errors import invalid
from topics.filters.filter_error import FilterError
from topics.filters.record_filter import Filter, parse_filter
from topics.http.requests.query_strings import Query


def check_filter(value: msgspec.Raw | UnsetType, field: str = "filter") -> Filter | None:
    """Return the filter that a field of a body means; None if it is missing or null. Raises a 400 that names the place
    in it, such as `filter[2][3]`."""
    if value is UNSET:
        return None
    raw = bytes(value)
    return None if raw == b"null" else _parsed(raw, field)


def check_query_filter(query: Query) -> Filter | None:
    """Return the filter that a query has as JSON; None if it has none. Raises 400."""
    text = query.text("filter", "")
    if not text and not query.all("filter"):
        return None
    return _parsed(text, "filter")


def _parsed(text: str | bytes, field: str) -> Filter:
    try:
        return parse_filter(text)
    except FilterError as error:
        raise invalid(field + error.place, error.message) from None
