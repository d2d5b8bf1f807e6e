"""A filter that is ready for use: parsing it from JSON, and evaluating it for records.

    ["tag", "Eq" | "Glob" | "In", v]         ["node", "Eq" | "In", v]
    ["meta", key, "Eq" | "Glob" | "In" | "Exists", v]
    ["data", "/json/pointer", "Eq" | "Ne" | "Lt" | "Le" | "Gt" | "Ge" | "In" | "Glob" | "Exists", v]
    ["And", f, ...]   ["Or", f, ...]   ["Not", f]

`docs/spec/consumers.md` section 2 says what these mean. A filter is a small tree of functions, made once. A function
reads only the parts of a record that it needs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn, Protocol

from topics.filters.filter_error import FilterError
from topics.filters.json_places import Buffer, PlaceReader, steps_of
from topics.filters.predicates import (
    NumberLiteral,
    Scalar,
    json_begins,
    json_differs,
    json_in,
    json_ordered,
    text_begins,
    text_in,
)

MAX_TEXT: Final = 64 << 10
"""Bytes of a filter's JSON."""

MAX_NODES: Final = 64
"""Predicates and operators of a filter."""

MAX_DEPTH: Final = 8
"""Levels of a filter. A single predicate has one level."""

MAX_VALUES: Final = 100
"""Values of an `In`."""

MAX_STRING: Final = 1024
"""Bytes of a string, a pointer and a number."""

_REMEMBERED: Final = 2048
"""The longest text (bytes) whose filter is remembered."""

OPERATORS: Final = {
    "tag": ("Eq", "Glob", "In"),
    "node": ("Eq", "In"),
    "meta": ("Eq", "Glob", "In", "Exists"),
    "data": ("Eq", "Ne", "Lt", "Le", "Gt", "Ge", "In", "Glob", "Exists"),
}
"""The operators of a predicate, by its subject."""


class FilteredRecord(Protocol):
    """A record, as a filter reads it. The filter reads each property at most a few times."""

    @property
    def tag(self) -> str | None:
        """Its tag, None if it has none."""
        ...

    @property
    def node(self) -> str | None:
        """Its node, None if it has none."""
        ...

    @property
    def meta(self) -> Buffer | None:
        """The JSON of its meta, None if it has none."""
        ...

    @property
    def data(self) -> Buffer | None:
        """The JSON of its data, None if the record is raw bytes."""
        ...


class TagRule(NamedTuple):
    """A condition on a tag: it is equal to `pattern`, or, if `prefix` is True, begins with it."""

    pattern: str
    prefix: bool


class _Look:
    """One evaluation of a filter for a record, with the values that were read so far."""

    __slots__ = ("_data", "_filter", "_meta", "record")

    def __init__(self, record: FilteredRecord, owner: Filter) -> None:
        self.record = record
        self._filter = owner
        self._meta: Sequence[Buffer | None] | None = None
        self._data: Sequence[Buffer | None] | None = None

    def meta(self) -> Sequence[Buffer | None]:
        """Return the JSON of each value of meta that the filter reads, None for a missing one."""
        if self._meta is None:
            reader, meta = self._filter.meta_reader, self.record.meta
            self._meta = (None,) * reader.count if meta is None else reader.find(meta)
        return self._meta

    def data(self) -> Sequence[Buffer | None]:
        """Return the JSON at each place in data that the filter reads, None for a missing value."""
        if self._data is None:
            reader, data = self._filter.data_reader, self.record.data
            self._data = (None,) * reader.count if data is None else reader.find(data)
        return self._data


_Test = Callable[[_Look], bool]


class Filter:
    """A filter. Two filters are equal if they have the same text.

    `text` is its JSON without spaces, with numbers as they were written. `tags` are conditions on the tag: for every
    matching record at least one of them holds. It is None if no such conditions can be derived; then a reader must
    evaluate the filter for every record. `uses_data` and `uses_meta` say whether an evaluation may decode JSON.
    """

    __slots__ = (
        "__weakref__",
        "_test",
        "data_reader",
        "memory",
        "meta_reader",
        "tags",
        "text",
        "uses_data",
        "uses_meta",
    )

    def __init__(self, text: str, parsed: _Parser, test: _Test, tags: tuple[TagRule, ...] | None) -> None:
        self.text = text
        self.tags = tags
        self.meta_reader = PlaceReader(list(parsed.meta_places))
        self.data_reader = PlaceReader(list(parsed.data_places))
        self.uses_meta = bool(parsed.meta_places)
        self.uses_data = bool(parsed.data_places)
        self.memory = _memory_of(text, [*parsed.meta_places, *parsed.data_places])
        """Bytes of memory that it takes, estimated."""
        self._test = test

    def matches(self, record: FilteredRecord) -> bool:
        """Return True if the record matches the filter."""
        return self._test(_Look(record, self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Filter) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Filter({self.text})"


def parse_filter(text: str | bytes) -> Filter:
    """Return the filter with this JSON. Raises FilterError, which names the place of the mistake."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _remembered(raw) if len(raw) <= _REMEMBERED else _parse(raw)


def _parse(raw: bytes) -> Filter:
    if len(raw) > MAX_TEXT:
        raise FilterError("", f"is {len(raw)} bytes long, at most {MAX_TEXT} are allowed")
    try:
        value = json.loads(raw, parse_int=NumberLiteral, parse_float=NumberLiteral, parse_constant=_refuse_constant)
    except FilterError:
        raise
    except RecursionError:
        raise FilterError("", f"is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise FilterError("", f"is not valid JSON: {error}") from None
    parser = _Parser()
    branch = parser.parse(value, "", 1)
    return Filter(_written(value), parser, branch.test, branch.tags)


_remembered = lru_cache(maxsize=256)(_parse)
"""For readers that poll with the same filter: a filter on `data` takes 0.1 ms to make."""


def all_of(filters: Sequence[Filter | None]) -> Filter | None:
    """Return a filter that matches the records that match all of these; None stands for a filter that matches every
    record. Its size is not limited."""
    given = tuple(found for found in filters if found is not None)
    if len(given) < 2:
        return given[0] if given else None
    return _remembered_together(given) if sum(len(found.text) for found in given) <= _REMEMBERED else _together(given)


def _together(given: tuple[Filter, ...]) -> Filter:
    value = json.loads(
        '["And",' + ",".join(found.text for found in given) + "]", parse_int=NumberLiteral, parse_float=NumberLiteral
    )
    parser = _Parser(nodes=len(given) * MAX_NODES + 1, depth=MAX_DEPTH + 1)
    branch = parser.parse(value, "", 1)
    return Filter(_written(value), parser, branch.test, branch.tags)


_remembered_together = lru_cache(maxsize=256)(_together)
"""For readers that poll with the same filters."""


def forget_remembered() -> None:
    """Forget the filters that are only remembered, so that no memory is taken but by those in use."""
    _remembered.cache_clear()
    _remembered_together.cache_clear()


def _memory_of(text: str, places: Sequence[tuple[str, ...]]) -> int:
    """Return the estimate, from measurements: 5 bytes for each byte of the text, and for each place the types that
    decode the JSON on the way to it."""
    return 2048 + 5 * len(text) + sum(3072 + 1024 * len(steps) for steps in places)


class _Branch(NamedTuple):
    """A part of a filter."""

    test: _Test
    tags: tuple[TagRule, ...] | None


class _Parser:
    """Makes tests out of decoded JSON, and collects the places in meta and data that the tests read."""

    def __init__(self, nodes: int = MAX_NODES, depth: int = MAX_DEPTH) -> None:
        self.meta_places: dict[tuple[str, ...], int] = {}
        self.data_places: dict[tuple[str, ...], int] = {}
        self._nodes_left = self._most_nodes = nodes
        self._most_depth = depth

    def parse(self, value: object, place: str, depth: int) -> _Branch:
        """Return the part of the filter at `place`, `depth` levels deep. Raises FilterError."""
        if not isinstance(value, list) or not value:
            raise FilterError(place, 'must be a list such as ["tag", "Eq", "x"] or ["And", ..., ...]')
        if depth > self._most_depth:
            raise FilterError(place, f"is nested deeper than {self._most_depth} levels")
        self._nodes_left -= 1
        if self._nodes_left < 0:
            raise FilterError(place, f"is too much: at most {self._most_nodes} predicates and operators are allowed")
        subject, rest = value[0], value[1:]
        if subject in ("And", "Or", "Not"):
            return self._combined(subject, rest, place, depth)
        if subject in ("tag", "node"):
            return self._of_name(subject, rest, place)
        if subject in ("meta", "data"):
            return self._of_place(subject, rest, place)
        raise FilterError(f"{place}[0]", "must be one of And, Or, Not, tag, node, meta, data")

    def _combined(self, operator: str, operands: list[object], place: str, depth: int) -> _Branch:
        if operator == "Not" and len(operands) != 1:
            raise FilterError(place, "Not has exactly one operand")
        if not operands:
            raise FilterError(place, f"{operator} has at least one operand")
        branches = [self.parse(operand, f"{place}[{i}]", depth + 1) for i, operand in enumerate(operands, 1)]
        tests = [branch.test for branch in branches]
        if operator == "Not":
            (only,) = tests
            return _Branch(lambda look: not only(look), None)
        if operator == "And":
            rules = [branch.tags for branch in branches if branch.tags is not None]
            return _Branch(_every(tests), min(rules, key=_width, default=None))
        known = [branch.tags for branch in branches]
        union = dict.fromkeys(rule for rules in known for rule in rules or ())
        return _Branch(_some(tests), None if None in known else tuple(union))

    def _of_name(self, subject: str, rest: list[object], place: str) -> _Branch:
        """Return a predicate on the tag or on the node."""
        operator, operand = self._operation(subject, rest, place, 1)
        at = f"{place}[2]"
        if operator == "Glob":
            prefix = _prefix(operand, at)
            rules: tuple[TagRule, ...] = (TagRule(prefix, True),)
            test = text_begins(prefix)
        else:
            values = [_string(operand, at)] if operator == "Eq" else _list(operand, at, _string)
            rules = tuple(TagRule(value, False) for value in dict.fromkeys(values))
            test = text_in(values)
        if subject == "tag":
            return _Branch(lambda look: test(look.record.tag), rules)
        return _Branch(lambda look: test(look.record.node), None)

    def _of_place(self, subject: str, rest: list[object], place: str) -> _Branch:
        """Return a predicate on a value of meta or of data."""
        if not rest:
            raise FilterError(place, f"{subject} needs a {'key' if subject == 'meta' else 'JSON pointer'}")
        name = _string(rest[0], f"{place}[1]")
        places = self.meta_places if subject == "meta" else self.data_places
        steps: tuple[str, ...] = (name,)
        if subject == "data":
            try:
                steps = steps_of(name)
            except ValueError as error:
                raise FilterError(f"{place}[1]", f"is not a JSON pointer: it {error}") from None
        operator, operand = self._operation(subject, rest[1:], place, 2)
        slot = places.setdefault(steps, len(places))
        found_in = _Look.meta if subject == "meta" else _Look.data
        at = f"{place}[3]"
        if operator == "Exists":
            if not isinstance(operand, bool):
                raise FilterError(at, "must be true or false")
            wanted = operand
            return _Branch(lambda look: (found_in(look)[slot] is not None) is wanted, None)
        scalar = _string if subject == "meta" else _scalar
        if operator == "In":
            test = json_in(_list(operand, at, scalar))
        elif operator == "Eq":
            test = json_in((scalar(operand, at),))
        elif operator == "Ne":
            test = json_differs(_scalar(operand, at))
        elif operator == "Glob":
            test = json_begins(_prefix(operand, at))
        else:
            test = json_ordered(operator, _ordered(operand, at))
        return _Branch(lambda look: (value := found_in(look)[slot]) is not None and test(bytes(value)), None)

    @staticmethod
    def _operation(subject: str, rest: list[object], place: str, at: int) -> tuple[str, object]:
        """Return operator and operand of a predicate: the elements at index `at` and behind it."""
        allowed = OPERATORS[subject]
        if not rest or not isinstance(rest[0], str) or rest[0] not in allowed:
            raise FilterError(f"{place}[{at}]", f"must be one of {', '.join(allowed)}")
        if len(rest) != 2:
            raise FilterError(place, f"has {at + len(rest)} elements, {subject} has {at + 2}")
        return rest[0], rest[1]


def _every(tests: Sequence[_Test]) -> _Test:
    def test(look: _Look) -> bool:
        for each in tests:  # noqa: SIM110  (a generator would cost more than most tests)
            if not each(look):
                return False
        return True

    return test


def _some(tests: Sequence[_Test]) -> _Test:
    def test(look: _Look) -> bool:
        for each in tests:  # noqa: SIM110
            if each(look):
                return True
        return False

    return test


def _width(rules: tuple[TagRule, ...]) -> tuple[int, int, int]:
    """Return a sort key for sets of rules: first those with which the index probably finds the fewest records. Sets
    without prefixes come first, then sets with long prefixes."""
    prefixes = [len(rule.pattern) for rule in rules if rule.prefix]
    return len(prefixes), -min(prefixes, default=0), len(rules)


def _string(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise FilterError(place, "must be a string")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise FilterError(place, "is not valid Unicode") from None
    if size > MAX_STRING:
        raise FilterError(place, f"is {size} bytes long, at most {MAX_STRING} are allowed")
    return value


def _number(value: NumberLiteral, place: str) -> NumberLiteral:
    if len(value.text) > MAX_STRING:
        raise FilterError(place, f"has {len(value.text)} characters, at most {MAX_STRING} are allowed")
    return value


def _scalar(value: object, place: str) -> Scalar:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, NumberLiteral):
        return _number(value, place)
    if isinstance(value, str):
        return _string(value, place)
    raise FilterError(place, "must be null, a boolean, a number or a string")


def _ordered(value: object, place: str) -> str | NumberLiteral:
    if isinstance(value, NumberLiteral):
        return _number(value, place)
    if isinstance(value, str):
        return _string(value, place)
    raise FilterError(place, "must be a number or a string")


def _prefix(value: object, place: str) -> str:
    pattern = _string(value, place)
    if not pattern.endswith("*"):
        raise FilterError(place, 'must end in "*": a Glob is a prefix and one final "*"')
    return pattern[:-1]


def _list(value: object, place: str, one: Callable[[object, str], Any]) -> list[Any]:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_VALUES:
        raise FilterError(place, f"must be a list of 1 to {MAX_VALUES} values")
    return [one(item, f"{place}[{i}]") for i, item in enumerate(value)]


def _refuse_constant(name: str) -> NoReturn:
    raise FilterError("", f"is not valid JSON: {name} is no number")


def _written(value: Any) -> str:
    """Return the JSON of a checked filter, without spaces and with numbers as they were written."""
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, NumberLiteral):
        return value.text
    return json.dumps(value, ensure_ascii=False)
