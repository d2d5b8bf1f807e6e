"""Values of options as people write them: durations (`7d`, `500ms`), sizes (`10MB`, `64KiB`), times
(`2026-01-31T12:00`) and filters (`docs/filters.md`).

Pure. A plain number is in the unit of the interface, which the caller of `Duration` names.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Final

import click

_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_BYTES: Final = {
    **{"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30, "tib": 1 << 40},
}
_NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)
MOST: Final = 1e18
NONE: Final = ("none", "off")


def parse_duration(text: str, *, plain: str = "ms") -> int:
    """Milliseconds of `7d`, `1h30m`, `1.5s`, `250ms`; a number without a unit has the unit `plain`. Raises
    ValueError."""
    parts = _NUMBER.findall(text)
    if not parts or _NUMBER.sub("", text).strip():
        raise ValueError(f"{text!r} is no duration: a number with ms, s, m, h, d or w")
    if len(parts) > 1 and not all(unit for _, unit in parts):
        raise ValueError(f"{text!r} is no duration: a unit is missing")
    total = 0.0
    exact = 0
    for number, unit in parts:
        scale = _MS.get(unit.lower() or plain)
        if scale is None:
            raise ValueError(f"{text!r} is no duration: there is no unit {unit!r}")
        if "." in number:
            total += _decimal(number) * scale
        else:
            exact += int(number) * scale
    return exact + round(total)


def parse_size(text: str) -> int:
    """Bytes of `10MB` (decimal), `64KiB`, `64K` (binary), or a plain number. Raises ValueError."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: a number with kB, MB, GB, KiB, MiB or GiB")
    number, unit = match.groups()
    scale = _BYTES.get(unit.lower() or "b")
    if scale is None:
        raise ValueError(f"{text!r} is no size: there is no unit {unit!r}")
    return int(number) * scale if "." not in number else round(_decimal(number) * scale)


def parse_time(text: str) -> int:
    """Milliseconds since the Unix epoch of an ISO 8601 time (UTC, if it names no zone), or of a plain number of
    milliseconds. Raises ValueError."""
    if text.isascii() and text.isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        ms = round(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        ms = -1
    if ms < 0:
        raise ValueError(f"{text!r} is no time: ISO 8601 from 1970 on, or ms since the epoch")
    return ms


def filter_json(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str | None:
    """The JSON of a filter that was written as text, for the `callback` of an option. Raises BadParameter, which names
    the place of a mistake."""
    from topics.filters.filter_error import FilterError  # noqa: PLC0415
    from topics.filters.filter_text import json_of  # noqa: PLC0415

    try:
        return None if text is None else json_of(text)
    except FilterError as error:
        raise click.BadParameter(str(error)) from None


def _decimal(number: str) -> float:
    """Raises ValueError for one that is beyond all measure."""
    value = float(number)
    if value > MOST:
        raise ValueError(f"{number[:20]}... is too much")
    return value


class Duration(click.ParamType[int]):
    """Milliseconds, `least` of them. `plain` is the unit of a number without one; `off`, where allowed, is 0."""

    name = "duration"

    def __init__(self, *, plain: str = "ms", off: bool = False, least: int = 0) -> None:
        self.plain = plain
        self.off = off
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self.off and value.lower() in NONE:
            return 0
        try:
            ms = parse_duration(value, plain=self.plain)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if ms < self.least:
            self.fail(f"{value!r} is too short", param, ctx)
        return ms


class Size(click.ParamType[int]):
    """Bytes. `off`, where allowed, is 0."""

    name = "size"

    def __init__(self, *, off: bool = False) -> None:
        self.off = off

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if self.off and value.lower() in NONE:
            return 0
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Time(click.ParamType[int]):
    """A time, as milliseconds since the Unix epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_time(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class JsonObject(click.ParamType[Any]):
    """A JSON object with some of the known keys; `none` stays a text. The daemon checks the values."""

    name = "json"

    def __init__(self, *keys: str) -> None:
        self._keys = keys

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value.lower() in NONE:
            return value
        try:
            found = json.loads(value)
        except ValueError as error:
            self.fail(f"{value!r} is no JSON: {error}", param, ctx)
        if not isinstance(found, dict) or not found.keys() <= set(self._keys):
            self.fail(f"{value!r} is no object with some of {', '.join(self._keys)}", param, ctx)
        return found


class Count(click.ParamType[int]):
    """A number that is not negative; `none` or `off` is 0."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value.lower() in NONE:
            return 0
        if not (value.isascii() and value.isdecimal()):
            self.fail(f"{value!r} is no number", param, ctx)
        return int(value)


class KeyValue(click.ParamType[tuple[str, str]]):
    """`K=V`"""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        key, equals, text = value.partition("=")
        if not equals or not key:
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return key, text
