"""Translates filters of Spark into the conditions of an export, and says which filters Spark still has to apply.

Pure. Seqs, times and topics become bounds and names. They are exact: `$ts` is in whole milliseconds, so any bound in
microseconds has one in milliseconds that means the same. Tags and nodes become a filter of the daemon
(`docs/filters.md`), joined with the one of the option `filter`.

Theory of operation. A filter of Spark is true, false or null for a row, and the row stays if it is true. Null is the
answer wherever the column is null, but for IS NULL and `<=>`. A filter of the daemon is true or false; it is false for
a missing tag or node. So without NOT the two let the same rows through. Under NOT they differ where the tag or node is
missing: the daemon says true, Spark says null. Then more is let through than should be, and Spark applies its filter
again. Conditions that the daemon cannot express, or would refuse because they are too large, are not pushed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self
from urllib.parse import quote_plus

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from topics.filters.filter_error import FilterError
from topics.filters.record_filter import parse_filter
from topics.spark.options import MAX_SEQ, ReadOptions

MAX_PUSHED_BYTES: Final = 4096
"""The longest filter in a URL with something pushed in it (bytes, URL-encoded). Some proxies refuse a request line of
more than 8 KiB. Further filters are left to Spark."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = ("topic", "seq", "ts")


@dataclass(frozen=True)
class QueryScope:
    """The part of the options' range that a query reads: bounds of seqs and times, topics, and a filter."""

    topics: frozenset[str] | None = None
    """None: all of them."""
    first: int = 1
    last: int = MAX_SEQ
    """Seqs, both included."""
    from_ts: int | None = None
    to_ts: int | None = None
    """Milliseconds, both included."""
    conditions: tuple[str, ...] = ()
    """Filters as JSON (`docs/filters.md`), which must all match."""

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        """The scope of a read without filters of Spark."""
        return cls(conditions=() if options.filter is None else (options.filter,))

    @property
    def filter(self) -> str | None:
        """The conditions as one filter, as an export takes it; None if there are none."""
        if len(self.conditions) < 2:
            return self.conditions[0] if self.conditions else None
        return f'["And",{",".join(self.conditions)}]'

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


def narrowed(scope: QueryScope, filters: Sequence[Filter], *, exact: bool) -> tuple[QueryScope, list[Filter]]:
    """`scope` with the conditions for filters of which all must hold, and the filters that Spark still has to apply.
    Without `exact` these are all filters: the row of a gap has null in the filtered columns, and only Spark can leave
    it out."""
    rest: list[Filter] = []
    for one in filters:
        found, done = _applied(scope, one)
        scope = scope if found is None else found
        if not done:
            rest.append(one)
    return scope, rest if exact else list(filters)


def _applied(scope: QueryScope, one: Filter) -> tuple[QueryScope | None, bool]:
    """The conditions with one more filter, None if an export cannot apply it; and True if that applies all of it."""
    name = _column(one.child if isinstance(one, Not) else one)
    if name in ("tag", "node"):
        return _by_name(scope, name, one)
    if isinstance(one, IsNotNull):
        return None, name in _NEVER_NULL
    if name == "seq":
        return _by_seq(scope, one)
    if name == "ts":
        return _by_time(scope, one)
    if name == "topic":
        return _by_topic(scope, one)
    return None, False


def _column(one: Filter) -> str | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else None


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


def _by_name(scope: QueryScope, name: str, one: Filter) -> tuple[QueryScope | None, bool]:
    condition = _condition(name, one.child if isinstance(one, Not) else one)
    if condition is None:
        return None, False
    negated = isinstance(one, Not)
    text = json.dumps(["Not", condition] if negated else condition, ensure_ascii=False, separators=(",", ":"))
    found = dataclasses.replace(scope, conditions=(*scope.conditions, text))
    return (found, not negated) if _is_pushable(found.filter) else (None, False)


def _condition(name: str, one: Filter) -> list[Any] | None:
    """The condition that holds for a record exactly if a filter on its tag or node is true, None if there is none."""
    value = getattr(one, "value", None)
    if isinstance(one, IsNull) or (isinstance(one, EqualNullSafe) and value is None):
        present = _condition(name, IsNotNull((name,)))
        return None if present is None else ["Not", present]
    if isinstance(one, IsNotNull):
        return [name, "Glob", "*"] if name == "tag" else None  # nodes have no Glob
    if isinstance(one, EqualTo | EqualNullSafe):
        return [name, "Eq", value] if isinstance(value, str) else None
    if isinstance(one, StringStartsWith):
        return [name, "Glob", f"{value}*"] if name == "tag" and isinstance(value, str) else None
    if isinstance(one, In):
        values = [each for each in one.value if each is not None]  # `tag IN ('a', NULL)` is never true for the null
        return [name, "In", values] if all(isinstance(each, str) for each in values) else None
    return None


def _is_pushable(text: str | None) -> bool:
    """Return True if the daemon takes this filter, and in a URL."""
    if text is None:
        return True
    try:
        parse_filter(text)
    except FilterError:
        return False
    return len(quote_plus(text)) <= MAX_PUSHED_BYTES
