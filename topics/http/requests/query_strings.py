"""Query strings: parameters of requests, each read once and checked by its type."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl

from topics.errors import invalid
from topics.http.requests.json_checks import not_u64
from topics.log.names import check_topic_name
from topics.model import MAX_U64

MAX_PARAMETERS: Final = 2000
"""Of one query string."""


_BOOLEANS: Final = {"1": True, "true": True, "0": False, "false": False}


_INTEGER: Final = re.compile(r"-?[0-9]{1,40}", re.ASCII)


class Query:
    """The parameters of a query string. Unknown ones are ignored; bad values are 400 and name the parameter."""

    __slots__ = ("_values",)

    def __init__(self, query: bytes) -> None:
        self._values: dict[str, list[str]] = {}
        if not query:
            return
        if query.count(b"&") >= MAX_PARAMETERS:
            raise invalid("query", f"has more than {MAX_PARAMETERS} parameters", max=MAX_PARAMETERS)
        try:
            pairs = parse_qsl(query.decode(), keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            raise invalid("query", "is not valid UTF-8") from None
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def all(self, name: str) -> list[str]:
        """Every value of a parameter that may be repeated."""
        return self._values.get(name, [])

    def _one(self, name: str) -> str | None:
        values = self._values.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise invalid(name, "is given more than once")
        return values[0]

    def text(self, name: str, default: str) -> str:
        """A string."""
        value = self._one(name)
        return default if value is None else value

    def topic(self, name: str) -> str | None:
        """The name of a topic."""
        value = self._one(name)
        return None if value is None else check_topic_name(value, name)

    def boolean(self, name: str, default: bool) -> bool:
        """`1/0/true/false`, and nothing else."""
        value = self._one(name)
        if value is None:
            return default
        if value not in _BOOLEANS:
            raise invalid(name, "must be one of 1, 0, true, false")
        return _BOOLEANS[value]

    def integer(self, name: str, default: Any, *, signed: bool = False) -> Any:
        """A decimal integer. `signed` ones are about to be clamped; the others may not be negative."""
        value = self._one(name)
        if value is None:
            return default
        if _INTEGER.fullmatch(value) is None:
            raise invalid(name, "must be an integer")
        number = int(value)
        if not signed and not 0 <= number <= MAX_U64:
            raise not_u64(name)
        return number


def decode_if_empty(query: bytes) -> bool:
    """`if_empty` of a topic's DELETE."""
    return Query(query).boolean("if_empty", False)


def decode_create(query: bytes) -> bool:
    """`create` of the PUT of a topic or router."""
    return Query(query).boolean("create", True)


def decode_touch(query: bytes) -> bool:
    """`touch` of a state read."""
    return Query(query).boolean("touch", True)


def decode_hold_ms(query: bytes) -> int:
    """`hold_ms` of a checkpoint; the longest hold there is (`docs/spec/crash.md` 13) for anything above it."""
    return int(Query(query).integer("hold_ms", 0))
