"""Reading query strings: each parameter is read by name and checked by its type."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qsl

from topics.errors import invalid
from topics.http.requests.json_checks import not_u64
from topics.log.names import check_stage_name, check_topic_name
from topics.model import MAX_U64

MAX_PARAMETERS: Final = 2000
"""The most parameters of one query string."""

_BOOLEANS: Final = {"1": True, "true": True, "0": False, "false": False}

_INTEGER: Final = re.compile(r"-?[0-9]{1,40}", re.ASCII)


class Query:
    """The parameters of a query string. Unknown parameters are ignored. All methods raise `400 invalid_request`, which
    names the parameter, for a bad value and for one that is there more than once."""

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
        """All values of a parameter that may be repeated."""
        return self._values.get(name, [])

    def names(self) -> Iterable[str]:
        """The names of all parameters."""
        return self._values.keys()

    def _one(self, name: str) -> str | None:
        values = self._values.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise invalid(name, "is given more than once")
        return values[0]

    def text(self, name: str, default: str) -> str:
        """The value of a parameter that is a string."""
        value = self._one(name)
        return default if value is None else value

    def topic(self, name: str) -> str | None:
        """The value of a parameter that is the name of a topic; None if it is missing."""
        value = self._one(name)
        return None if value is None else check_topic_name(value, name)

    def stage(self) -> str | None:
        """The value of the parameter `stage`, the name of a stage; None if it is missing."""
        value = self._one("stage")
        return None if value is None else check_stage_name(value)

    def boolean(self, name: str, default: bool) -> bool:
        """The value of a parameter that is `1`, `0`, `true` or `false`."""
        value = self._one(name)
        if value is None:
            return default
        if value not in _BOOLEANS:
            raise invalid(name, "must be one of 1, 0, true, false")
        return _BOOLEANS[value]

    def integer(self, name: str, default: Any, *, signed: bool = False) -> Any:
        """The value of a parameter that is a decimal integer, from 0 to 2^64 - 1. `signed`: any integer; the caller
        clamps it."""
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
    """`if_empty` of the deletion of a topic. Raises 400."""
    return Query(query).boolean("if_empty", False)


def decode_create(query: bytes) -> bool:
    """`create` of the PUT of a topic or router. Raises 400."""
    return Query(query).boolean("create", True)


def decode_look(query: bytes) -> tuple[bool, bool]:
    """`touch` and `places` of a read of a topic's state. Raises 400."""
    values = Query(query)
    return values.boolean("touch", True), values.boolean("places", False)


def decode_hold_ms(query: bytes) -> int:
    """`hold_ms` of a checkpoint, in ms. The engine limits it (`docs/spec/crash.md` 13). Raises 400."""
    return int(Query(query).integer("hold_ms", 0))
