"""The text of a log line: an event as JSON, or in a form for people. The rules for every line are listed in
`topics.telemetry.logs`."""

from __future__ import annotations

import json
import math
import re
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

import structlog

from topics.telemetry.credentials import HIDDEN, SECRET_KEYS, hide_credentials

MAX_LINE: Final = 16 << 10
"""Characters of a line; a longer one is cut."""

_MAX_VALUE: Final = 64 << 10
"""Characters of a text within an event; a longer one is cut before the line is made."""

_MAX_DEPTH: Final = 8

_NOT_VISIBLE: Final = re.compile("[^ -~]")

_FIRST: Final = ("timestamp", "level", "event", "logger", "request_id")
"""These fields are at the beginning of a line, in this order. If a line cannot be cut otherwise, only they are kept."""

Event = MutableMapping[str, Any]


def render_json(_logger: Any, _method: str, event: Event) -> str:
    """The line as one JSON object of ASCII characters. It is the last processor of a structlog chain."""
    line = hide_credentials(_dumps(_unified(event)))
    return line if len(line) <= MAX_LINE else _cut_json(line)


def _dumps(value: Any) -> str:
    return escape_ascii(json.dumps(value))


def escape_ascii(line: str) -> str:
    """A line of JSON in visible ASCII characters: no control character reaches a terminal, no line break a reader."""
    return _NOT_VISIBLE.sub(lambda found: json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f"), line)


class HumanRenderer:
    """The line in a form for people. It is the last processor of a structlog chain."""

    def __init__(self, colors: bool) -> None:
        self._render = structlog.dev.ConsoleRenderer(colors=colors)

    def __call__(self, logger: Any, method: str, event: Event) -> str:
        event = _unified(event)
        below = [str(event.pop(name)) for name in ("stack", "exception") if name in event]
        shown: Event = {_escaped(key): value if key in _FIRST else _ConsoleValue(value) for key, value in event.items()}
        for key in _FIRST:
            if key in shown:
                shown[key] = _escaped(str(shown[key]))
        head = str(self._render(logger, method, shown))
        lines = [head, *("    " + _escaped(line) for text in below for line in text.splitlines())]
        text = hide_credentials("\n".join(lines), as_json=False)
        if len(text) <= MAX_LINE:
            return text
        return _middle_left_out(text, MAX_LINE - 64, f" ... (cut: it has {len(text)} characters) ... ")


class _ConsoleValue:
    """A value whose `repr` is what the console shows: without control characters."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        value = self._value
        if not isinstance(value, str):
            return _escaped(repr(value))
        plain = value.isprintable() and value and not set(value) & set(" ='\"")
        return value if plain else repr(value)


def _escaped(text: str) -> str:
    return text if text.isprintable() else repr(text)[1:-1]


def _unified(event: Mapping[str, Any]) -> Event:
    """The event with values that JSON has, the values of secret keys replaced, and a traceback as text."""
    known = {name: _plain(event[name]) for name in _FIRST if name in event}
    rest = {
        str(name): HIDDEN if _is_secret(name) else _plain(value)
        for name, value in event.items()
        if name not in known and name != "exc_info"
    }
    error = _exception_of(event.get("exc_info"))
    if error is not None:
        rest["exception"] = _shortened("".join(traceback.format_exception(error)).rstrip("\n"))
    return known | rest


def _exception_of(exc_info: Any) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        error = exc_info[1]
        return error if isinstance(error, BaseException) else None
    return sys.exc_info()[1] if exc_info else None


def _is_secret(key: Any) -> bool:
    if isinstance(key, bytes):
        key = key.decode("latin-1")
    return isinstance(key, str) and key.lower().replace("-", "_") in SECRET_KEYS


def _plain(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return _shortened(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(key): HIDDEN if _is_secret(key) else _plain(inner, depth + 1) for key, inner in value.items()}
        if isinstance(value, list | tuple) and len(value) == 2 and _is_secret(value[0]):
            return [_plain(value[0]), HIDDEN]  # a header
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(inner, depth + 1) for inner in value]
    return _shortened(repr(value))


def _shortened(text: str) -> str:
    """The text, cut in the middle if it is so long that searching it would take noticeable time."""
    return (
        text if len(text) <= _MAX_VALUE else _middle_left_out(text, _MAX_VALUE, f" ... ({len(text)} characters) ... ")
    )


def _middle_left_out(text: str, room: int, instead: str) -> str:
    """The beginning and the end of the text, each half of `room` long, with `instead` between them. Both are kept
    because a traceback names its error at the end."""
    return text[: room // 2] + instead + text[len(text) - room // 2 :]


def _cut_json(line: str) -> str:
    """The JSON object with its long values cut until the line is short enough. The field `cut` has its full length."""
    event = json.loads(line)
    room = MAX_LINE
    while room > 64:
        room //= 2
        short = _dumps({name: _cut_value(value, room) for name, value in event.items()} | {"cut": len(line)})
        if len(short) <= MAX_LINE:
            return short
    kept = {name: _cut_value(event[name], 512) for name in _FIRST if name in event}
    return _dumps(kept | {"cut": len(line)})


def _cut_value(value: Any, room: int) -> Any:
    text = value if isinstance(value, str) else _dumps(value)
    return value if len(text) <= room else _middle_left_out(text, room, " ... ")
