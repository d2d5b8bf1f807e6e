"""Translates filters of Spark into the conditions of an export, and says which filters Spark still has to apply.

Pure. Seqs, times and topics are exact: `$ts` is in whole milliseconds, so any bound in microseconds has one in
milliseconds that means the same. A tag is compared with one pattern, which is a tag or, with a final `*`, a prefix: so
a tag that itself ends in `*` can only be asked for as a prefix, and of several filters on tags the narrowest is
pushed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from topics.spark.options import MAX_SEQ

MAX_TAG_BYTES: Final = 256
"""The longest tag that a daemon accepts by default. Filters with longer tags are left to Spark."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = ("topic", "seq", "ts")


@dataclass(frozen=True)
class QueryScope:
    """The part of the options' range that a query reads: bounds of seqs and times, topics, and a pattern of tags."""

    topics: frozenset[str] | None = None
    """None: all of them."""
    first: int = 1
    last: int = MAX_SEQ
    """Seqs, both included."""
    from_ts: int | None = None
    to_ts: int | None = None
    """Milliseconds, both included."""
    match: str | None = None
    """As an export takes it."""

    @property
    def is_nothing(self) -> bool:
        """Return True if no record can match."""
        times = self.from_ts is not None and self.to_ts is not None and self.from_ts > self.to_ts
        return (
            self.first > self.last or times or (self.to_ts is not None and self.to_ts < 0) or self.topics == frozenset()
        )

    def reads(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics


EVERYTHING: Final = QueryScope()


def narrowed(filters: Sequence[Filter], *, exact: bool) -> tuple[QueryScope, list[Filter]]:
    """The conditions for filters of which all must hold, and the filters that Spark still has to apply. Without `exact`
    these are all filters: the row of a gap has null in the filtered columns, and only Spark can leave it out."""
    scope = EVERYTHING
    rest: list[Filter] = []
    tags: list[Filter] = []
    for one in filters:
        name = _column(one)
        if name == "tag":
            tags.append(one)
            continue
        found, done = _applied(scope, name, one)
        scope = scope if found is None else found
        if not done:
            rest.append(one)
    match, done_by_match = _matched(tags)
    rest.extend(one for one in tags if not any(one is done for done in done_by_match))
    return dataclasses.replace(scope, match=match), rest if exact else list(filters)


def _column(one: Filter) -> str | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else None


def _applied(scope: QueryScope, name: str | None, one: Filter) -> tuple[QueryScope | None, bool]:
    """The conditions with one more filter, as far as an export can apply it, and True if that applies all of it."""
    if isinstance(one, IsNotNull):
        return None, name in _NEVER_NULL
    if name == "seq":
        return _by_seq(scope, one)
    if name == "ts":
        return _by_time(scope, one)
    if name == "topic":
        return _by_topic(scope, one)
    return None, False


def _by_seq(scope: QueryScope, one: Filter) -> tuple[QueryScope | None, bool]:
    if isinstance(one, In):
        if not one.value or not all(_is_int(value) for value in one.value):
            return None, False
        lowest, highest = min(one.value), max(one.value)
        return _within(scope, lowest, highest), len(set(one.value)) == highest - lowest + 1
    value = getattr(one, "value", None)
    if not _is_int(value):
        return None, False
    assert isinstance(value, int)
    if isinstance(one, EqualTo | EqualNullSafe):
        return _within(scope, value, value), True
    if isinstance(one, GreaterThan | GreaterThanOrEqual):
        return _within(scope, value + isinstance(one, GreaterThan), MAX_SEQ), True
    if isinstance(one, LessThan | LessThanOrEqual):
        return _within(scope, 1, value - isinstance(one, LessThan)), True
    return None, False


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _within(scope: QueryScope, first: int, last: int) -> QueryScope:
    return dataclasses.replace(scope, first=max(scope.first, first), last=min(scope.last, last))


def _by_time(scope: QueryScope, one: Filter) -> tuple[QueryScope | None, bool]:
    value = getattr(one, "value", None)
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None, False
    at_us = (value - _EPOCH) // timedelta(microseconds=1)
    at_ms, over = divmod(at_us, 1000)
    after = at_ms + 1  # the first millisecond later than the bound
    up_to = at_ms  # the last one that is not later
    from_it = after if over else at_ms
    before = at_ms if over else at_ms - 1
    if isinstance(one, EqualTo | EqualNullSafe):
        return _at_times(scope, from_it, up_to), True  # nothing at all, if it is no whole millisecond
    if isinstance(one, GreaterThan):
        return _at_times(scope, after, None), True
    if isinstance(one, GreaterThanOrEqual):
        return _at_times(scope, from_it, None), True
    if isinstance(one, LessThan):
        return _at_times(scope, None, before), True
    if isinstance(one, LessThanOrEqual):
        return _at_times(scope, None, up_to), True
    return None, False


def _at_times(scope: QueryScope, first: int | None, last: int | None) -> QueryScope:
    begins = [edge for edge in (scope.from_ts, first) if edge is not None]
    ends = [edge for edge in (scope.to_ts, last) if edge is not None]
    return dataclasses.replace(scope, from_ts=max(0, *begins) if begins else None, to_ts=min(ends) if ends else None)


def _by_topic(scope: QueryScope, one: Filter) -> tuple[QueryScope | None, bool]:
    values: Collection[object]
    if isinstance(one, EqualTo | EqualNullSafe):
        values = (one.value,)
    elif isinstance(one, In):
        values = one.value
    else:
        return None, False
    names = frozenset(value for value in values if isinstance(value, str))
    if len(names) != len(set(values)):
        return None, False
    kept = names if scope.topics is None else scope.topics & names
    return dataclasses.replace(scope, topics=kept), True


def _matched(filters: Iterable[Filter]) -> tuple[str | None, list[Filter]]:
    """One pattern for what all of these ask for, and those of them that it says exactly."""
    patterns: list[tuple[int, str, Filter, bool]] = []
    """How narrow, the pattern, the filter, and whether it says it exactly."""
    given = list(filters)
    for one in given:
        value = getattr(one, "value", None)
        if isinstance(one, IsNotNull):
            patterns.append((0, "*", one, True))
        elif not isinstance(value, str) or not value or not _is_tag(value):
            continue
        elif isinstance(one, EqualTo | EqualNullSafe):
            exact = not value.endswith("*")
            patterns.append((MAX_TAG_BYTES + 1 if exact else len(value), value, one, exact))
        elif isinstance(one, StringStartsWith):
            patterns.append((len(value), value + "*", one, True))
    if not patterns:
        return None, []
    _, match, _, _ = max(patterns, key=lambda pattern: pattern[0])
    # That there is a tag at all is said by every pattern.
    return match, [one for _, pattern, one, exact in patterns if exact and pattern in (match, "*")]


def _is_tag(text: str) -> bool:
    try:
        return len(text.encode()) <= MAX_TAG_BYTES
    except UnicodeEncodeError:
        return False
