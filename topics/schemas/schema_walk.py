"""The subschemas of a JSON Schema (2020-12), and the references between them.

Refuses schemas that cannot be judged within bounds, or that need another document: references that leave the document,
names that are resolved while a value is judged (`$dynamicRef`), a change of the base or of the dialect below the root.
(`schema_cost` refuses a schema that refers to itself at the same value, for which judging would not end.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

MAX_NESTING: Final = 64
"""Levels of objects and arrays in a schema."""

MAX_SUBSCHEMAS: Final = 2000

MAX_PATTERNS: Final = 100
"""Regular expressions in a schema: compiling one takes up to 0.3 ms, and 64 KiB of memory."""

PATTERN_TOKENS: Final = 10
"""The cost of matching a regular expression (tokens)."""

UNIQUE_TOKENS: Final = 25
"""The cost of comparing the items of an array with each other, for each value in them, in tokens: up to 15 items, each
is compared with each."""

NUMBER_TOKENS: Final = 30
"""The cost of comparing a number with one in the schema, in tokens: up to 1.8 us if one is no integer of 64 bits."""

FRACTION_TOKENS: Final = 450
"""The cost of dividing a number by a `multipleOf` that is no integer, in tokens: up to 26 us, and 1 us for most."""

_SAME: Final = ("not", "if", "then", "else")
_SAME_LISTS: Final = ("allOf", "anyOf", "oneOf")
_SAME_MAPS: Final = ("dependentSchemas", "dependencies")
_ONE_OF_CHILDREN: Final = ("additionalProperties", "items", "additionalItems")
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")
_AGAIN: Final = ("if", "allOf", "anyOf", "oneOf")
"""Of those that judge the same value, those that are judged again to find out which children are evaluated."""
_EACH_CHILD: Final = ("contains", "propertyNames")
_APART: Final = ("$defs", "definitions")
_JUDGING: Final = (
    "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength",
    "minLength", "pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties",
    "minProperties", "required", "dependentRequired", "$ref", *_SAME, *_SAME_LISTS, *_SAME_MAPS, *_ONE_OF_CHILDREN,
    *_UNEVALUATED, "properties", "prefixItems", *_EACH_CHILD, "patternProperties",
)  # fmt: skip
"""The keywords that cost work; others only say something, or are unknown."""
_BOUNDS: Final = ("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum")
_REFUSED: Final = ("$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "$vocabulary")
_ONLY_AT_ROOT: Final = ("$id", "$schema")


class BadSchema(Exception):
    """A schema is refused; the text says why."""


@dataclass(slots=True)
class Subschema:
    """One subschema. The lists have indexes into the result of `subschemas`."""

    tokens: int = 1
    """Keywords and the values in them, but for subschemas: the work of judging one value by it alone."""
    numbers: int = 0
    """The most that its keywords cost beyond that if a value has numbers, in tokens."""
    pattern_properties: int = 0
    """How many regular expressions the name of each member is matched with."""
    same: list[int] = field(default_factory=list)
    """Subschemas that judge the same value, each once."""
    one_child: list[int] = field(default_factory=list)
    """Subschemas for children of the value. At most one of them judges each child."""
    each_child: list[int] = field(default_factory=list)
    """Subschemas that may judge any child, or the name of a member, beside others."""
    unevaluated: list[int] = field(default_factory=list)
    """Those of `unevaluatedProperties` and `unevaluatedItems`: they judge the children that no other evaluates."""
    again: list[int] = field(default_factory=list)
    """Of `same`, those that are judged again to find out which children are evaluated."""
    asked: list[int] = field(default_factory=list)
    """Of `same`, those that are asked which children they evaluate."""
    contains: list[int] = field(default_factory=list)
    """Of `each_child`, the one that evaluates the items that it allows."""
    reference: str | None = None


def subschemas(schema: Mapping[str, Any]) -> list[Subschema]:
    """Return the subschemas of a schema; the first one is the schema itself. Raises BadSchema."""
    if schema.get("$schema", DIALECT) not in (DIALECT, DIALECT + "#"):
        raise BadSchema(f"$schema must be {DIALECT}")
    if _nesting(schema) > MAX_NESTING:
        raise BadSchema(f"nests deeper than {MAX_NESTING} levels")
    found: list[Subschema] = []
    places: dict[str, int] = {}
    patterns = 0
    left: list[tuple[str, Any]] = [("", schema)]
    names = {"": 0}
    while left:
        place, value = left.pop()
        if len(found) == MAX_SUBSCHEMAS:
            raise BadSchema(f"has more than {MAX_SUBSCHEMAS} subschemas")
        places[place] = names[place] = len(found)
        node = Subschema()
        found.append(node)
        if isinstance(value, Mapping):
            patterns += ("pattern" in value) + len(_mapping(value, "patternProperties"))
            left += _take(node, place, value)
    if patterns > MAX_PATTERNS:
        raise BadSchema(f"has more than {MAX_PATTERNS} regular expressions")
    _connect(schema, found, places)
    return found


def _take(node: Subschema, place: str, value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fill in the fields of a subschema that depend on its own keywords. Yields its subschemas with their places."""
    for name in _REFUSED:
        if name in value:
            raise BadSchema(f"{name} at {place or '/'} is not supported")
    for name in _ONLY_AT_ROOT if place else ():
        if name in value:
            raise BadSchema(f"{name} at {place} is not supported below the root")
    parts = {id(part) for _, _, part in parts_of(value)}
    reference = value.get("$ref")
    if reference is not None and not isinstance(reference, str):
        raise BadSchema(f"$ref at {place or '/'} is not a string")
    node.reference = reference
    node.pattern_properties = len(_mapping(value, "patternProperties"))
    node.tokens += _tokens({name: value[name] for name in _JUDGING if name in value}, parts)
    node.numbers = _number_tokens(value)
    node.tokens += PATTERN_TOKENS * ("pattern" in value) + UNIQUE_TOKENS * ("uniqueItems" in value)
    for _, path, part in parts_of(value):
        yield place + path, part
    for name in _APART:
        for key, part in _mapping(value, name).items():
            if isinstance(part, Mapping | bool):
                yield f"{place}/{name}/{escaped(key)}", part


def parts_of(value: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield the subschemas in the keywords of a schema, with the field of `Subschema` that they belong to and their
    places below it."""
    for name in _SAME:
        if name in value:
            yield "same", f"/{name}", value[name]
    for name in _SAME_LISTS:
        for i, part in enumerate(_list(value, name)):
            yield "same", f"/{name}/{i}", part
    for name in _SAME_MAPS:
        for key, part in _mapping(value, name).items():
            if not isinstance(part, list):
                yield "same", f"/{name}/{escaped(key)}", part
    for name in _ONE_OF_CHILDREN:
        if name in value:
            yield "one_child", f"/{name}", value[name]
    for name in _UNEVALUATED:
        if name in value:
            yield "unevaluated", f"/{name}", value[name]
    for key, part in _mapping(value, "properties").items():
        yield "one_child", f"/properties/{escaped(key)}", part
    for i, part in enumerate(_list(value, "prefixItems")):
        yield "one_child", f"/prefixItems/{i}", part
    for name in _EACH_CHILD:
        if name in value:
            yield "each_child", f"/{name}", value[name]
    for key, part in _mapping(value, "patternProperties").items():
        yield "each_child", f"/patternProperties/{escaped(key)}", part


def _connect(schema: Mapping[str, Any], found: list[Subschema], places: Mapping[str, int]) -> None:
    """Fill in which subschemas each subschema applies."""
    left: list[tuple[str, Any]] = [("", schema)]
    while left:
        place, value = left.pop()
        node = found[places[place]]
        if not isinstance(value, Mapping):
            continue
        for kind, path, part in parts_of(value):
            part_at, keyword = places[place + path], path.split("/", 2)[1]
            getattr(node, kind).append(part_at)
            if keyword in _AGAIN:
                node.again.append(part_at)
            if kind == "same" and keyword != "not":
                node.asked.append(part_at)
            if keyword == "contains":
                node.contains.append(part_at)
            left.append((place + path, part))
        for name in _APART:
            for key, part in _mapping(value, name).items():
                if isinstance(part, Mapping | bool):
                    left.append((f"{place}/{name}/{escaped(key)}", part))
        if node.reference is not None:
            target = _target(node.reference, places)
            node.same.append(target)
            node.asked.append(target)


def _target(reference: str, places: Mapping[str, int]) -> int:
    """Return the index of the subschema that a reference names. Raises BadSchema if this schema has no such
    subschema."""
    if not reference.startswith("#"):
        raise BadSchema(f"$ref {reference!r} leaves the schema: only #/... is supported")
    try:
        found = places.get(unquote(reference[1:], errors="strict"))
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise BadSchema(f"$ref {reference!r} names no subschema of this schema")
    return found


def escaped(key: str) -> str:
    """Return the name of a member as a step of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def _mapping(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name)
    return found if isinstance(found, Mapping) else {}


def _list(value: Mapping[str, Any], name: str) -> list[Any]:
    found = value.get(name)
    return found if isinstance(found, list) else []


def _tokens(value: Any, parts: set[int]) -> int:
    """Return the number of values in a value, without subschemas."""
    count, left = 0, [value]
    while left:
        inner = left.pop()
        children = inner.values() if isinstance(inner, Mapping) else inner if isinstance(inner, list) else ()
        for child in children:
            count += 1
            if id(child) not in parts or not isinstance(child, Mapping | list):
                left.append(child)
    return count


def _number_tokens(value: Mapping[str, Any]) -> int:
    """Return the most that comparing the numbers of a value with those in the keywords of a subschema costs, in
    tokens."""
    count = sum(name in value for name in _BOUNDS)
    left = [value.get("const"), value.get("enum")]
    while left:
        inner = left.pop()
        if isinstance(inner, Mapping):
            left += inner.values()
        elif isinstance(inner, list):
            left += inner
        elif isinstance(inner, int | float) and not isinstance(inner, bool):
            count += 1
    multiple = value.get("multipleOf", 0)
    if isinstance(multiple, float):
        return NUMBER_TOKENS * count + FRACTION_TOKENS
    return NUMBER_TOKENS * (count + ("multipleOf" in value))


def _nesting(value: Any) -> int:
    """Return how deep objects and arrays nest in a value. Looks at `MAX_NESTING` levels and one more."""
    depth, level = 0, [value]
    while level and depth <= MAX_NESTING:
        level = [
            child
            for inner in level
            for child in (inner.values() if isinstance(inner, Mapping) else inner)
            if isinstance(child, Mapping | list)
        ]
        depth += 1
    return depth
