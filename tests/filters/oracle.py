"""What filters mean, done naively: everything is decoded, nothing is clever. And strategies for records and filters."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any, NamedTuple

from hypothesis import strategies as st

_MISSING = object()


class Written(NamedTuple):
    """A record as a writer sends it; `data` and `meta` are JSON, `data` None for raw bytes."""

    data: bytes | None
    tag: str | None = None
    node: str | None = None
    meta: bytes | None = None


def decoded(text: str | bytes) -> Any:
    """JSON with exact numbers; of a key that is there twice the last one counts."""
    return json.loads(text, parse_int=Decimal, parse_float=Decimal)


def matches(wanted: Any, record: Written) -> bool:
    """What a filter, decoded by `decoded`, says of a record."""
    subject = wanted[0]
    if subject == "And":
        return all(matches(each, record) for each in wanted[1:])
    if subject == "Or":
        return any(matches(each, record) for each in wanted[1:])
    if subject == "Not":
        return not matches(wanted[1], record)
    if subject == "tag":
        return holds(wanted[1], _MISSING if record.tag is None else record.tag, wanted[2])
    if subject == "node":
        return holds(wanted[1], _MISSING if record.node is None else record.node, wanted[2])
    if subject == "meta":
        meta = decoded(record.meta) if record.meta else {}
        return holds(wanted[2], meta.get(wanted[1], _MISSING), wanted[3])
    value = _MISSING if record.data is None else at(decoded(record.data), wanted[1])
    return holds(wanted[2], value, wanted[3])


def at(value: Any, pointer: str) -> Any:
    """The value that a JSON pointer leads to."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and name == str(int(name)) and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def holds(operator: str, value: Any, operand: Any) -> bool:
    """One predicate on a value."""
    if operator == "Exists":
        return (value is not _MISSING) is operand
    if operator == "In":
        return any(_alike(value, each) and value == each for each in operand)
    if operator == "Glob":
        return isinstance(value, str) and value.startswith(operand[:-1])
    if not _alike(value, operand):
        return False
    return bool(
        {
            "Eq": lambda: value == operand,
            "Ne": lambda: value != operand,
            "Lt": lambda: value < operand,
            "Le": lambda: value <= operand,
            "Gt": lambda: value > operand,
            "Ge": lambda: value >= operand,
        }[operator]()
    )


def _alike(value: Any, operand: Any) -> bool:
    return type(value) is type(operand)


# -- strategies --------------------------------------------------------------------------------------------------------

NAMES = ["a", "b", "eu:1", "eu:2", "e", "ü*", 'q"\\', "0", "1", ""]

NUMBERS = [
    *("0", "-0", "0.0", "1", "1.0", "10e-1", "2", "-1", "-1.5", "1e2", "100"),
    *("9007199254740992", "9007199254740993", "9007199254740993.0", "9007199254740992.5", "-9007199254740993"),
    *(
        "0.1",
        "0.10000000000000000000000001",
        "0.30000000000000004",
        "1e400",
        "1e-400",
        "-1e400",
        "123456789012345678901",
    ),
]

_texts = st.sampled_from(NAMES)
_numbers = st.sampled_from(NUMBERS)
_strings = _texts.map(json.dumps) | _texts.map(lambda text: json.dumps(text, ensure_ascii=False))
_scalars = st.sampled_from(["null", "true", "false"]) | _numbers | _strings


def _objects(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    members = st.lists(st.tuples(_strings, values), max_size=4)  # keys may be there twice
    return members.map(lambda found: "{" + ", ".join(f"{key}: {value}" for key, value in found) + "}")


def _arrays(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, max_size=3).map(lambda found: "[" + ",".join(found) + "]")


documents = st.recursive(_scalars, lambda inner: _objects(inner) | _arrays(inner), max_leaves=8)
"""JSON texts, not in their shortest form."""

_tags = st.sampled_from([name for name in NAMES if name])
_metas = st.dictionaries(_texts, _texts, min_size=1, max_size=3).map(lambda meta: json.dumps(meta).encode())


records = st.builds(
    Written,
    (st.one_of(_objects(documents), documents)).map(str.encode),
    st.none() | _tags,
    st.none() | _tags,
    st.none() | _metas,
)

_pointers = st.lists(st.sampled_from(["a", "b", "0", "1", "eu:1", "ü*", 'q"\\', ""]), max_size=3).map(
    lambda steps: "".join("/" + step for step in steps)
)
_globs = _texts.map(lambda text: json.dumps(text + "*"))


def _listed(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(values, min_size=1, max_size=4).map(lambda found: "[" + ",".join(found) + "]")


def _predicate(subject: str, operands: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[str]:
    def written(name: str, operand: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return operand.map(lambda text: f'[{subject}, "{name}", {text}]')

    return st.one_of([written(name, operand) for name, operand in operands.items()])


_on_tag = _predicate('"tag"', {"Eq": _strings, "Glob": _globs, "In": _listed(_strings)})
_on_node = _predicate('"node"', {"Eq": _strings, "In": _listed(_strings)})
_booleans = st.sampled_from(["true", "false"])
_on_meta = _texts.flatmap(
    lambda key: _predicate(
        f'"meta", {json.dumps(key)}',
        {"Eq": _strings, "Glob": _globs, "In": _listed(_strings), "Exists": _booleans},
    )
)
_ordered = _numbers | _strings
_on_data = _pointers.flatmap(
    lambda pointer: _predicate(
        f'"data", {json.dumps(pointer)}',
        {
            **dict.fromkeys(("Eq", "Ne"), _scalars),
            **dict.fromkeys(("Lt", "Le", "Gt", "Ge"), _ordered),
            "In": _listed(_scalars),
            "Glob": _globs,
            "Exists": _booleans,
        },
    )
)


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        several.map(lambda parts: f'["And", {", ".join(parts)}]'),
        several.map(lambda parts: f'["Or", {", ".join(parts)}]'),
        inner.map(lambda part: f'["Not", {part}]'),
    )


tag_filters = st.recursive(_on_tag, _combined, max_leaves=4)
"""Filters on tags alone."""

filters = st.recursive(_on_tag | _on_node | _on_meta | _on_data, _combined, max_leaves=6)
"""Filters as JSON; their depth is bounded by the number of leaves, but for `Not`."""
