"""Schemas of topics (`docs/spec/consumers.md` section 6): judging records, refused schemas, and bounds of the work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from topics.schemas import record_schema
from topics.schemas.record_schema import (
    EXPONENT_TOKENS,
    MAX_SCHEMA_BYTES,
    MAX_STEPS,
    MOST_VALUES,
    PIECE_BYTES,
    PIECE_RECORDS,
    PIECE_STEPS,
    ReadySchemas,
    RecordSchema,
    normal_schema,
    ready,
)
from topics.schemas.schema_cost import MOST, cost_of
from topics.schemas.schema_walk import BadSchema, subschemas

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}, "a/b~c": {"type": "null"}},
    "required": ["name"],
    "additionalProperties": False,
}


def said(schema: Any, value: Any) -> tuple[str, str] | None:
    """Return where and why a value breaks a schema."""
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return RecordSchema(schema).violation(data)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"name": "a", "age": 3}, None),
        ({"name": "a", "age": 3.0}, None),
        ({"name": ""}, "/name"),
        ({"name": "a", "age": "3"}, "/age"),
        ({"name": "a", "a/b~c": 1}, "/a~1b~0c"),
        ({}, ""),
        ({"name": "a", "other": 1}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_path_says_where_a_value_breaks_the_schema(value: Any, path: str | None) -> None:
    found = said(PERSON, value)
    assert (found and found[0]) == path
    if found is not None:
        assert found[1]


def test_no_schema_allows_raw_bytes() -> None:
    found = said({}, b'{"$bytes":"AP8=","$content_type":"image/png"}')
    assert found is not None
    assert (found[0], "raw bytes" in found[1]) == ("", True)
    assert said({}, b'{"$bytes": "AP8=","$content_type":"image/png"}') is None


def test_a_number_without_a_value_cannot_be_judged() -> None:
    for data in (b"1e999", b"[-1e999]", b"1" * 5000):
        found = said({}, data)
        assert found is not None
        assert "cannot be judged" in found[1]
    assert said({"maximum": 10**30}, b"1" + b"0" * 30) is None
    assert said({"maximum": 10**30}, b"1" + b"0" * 29 + b"1" + b"0") is not None


def test_annotations_refuse_nothing() -> None:
    assert (
        said({"format": "email", "contentMediaType": "application/json", "x-mine": {"$ref": "http://x"}}, "?") is None
    )


# ----------------------------------------------------------------- what is refused


def doubling(levels: int, keyword: str = "anyOf") -> dict[str, Any]:
    """A schema whose work doubles with each level."""
    defs: dict[str, Any] = {
        f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}"}]} for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{levels}": {"type": "string"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


BAD: dict[str, Any] = {
    "a type that there is not": {"type": "text"},
    "a keyword with another kind of value": {"minimum": "1"},
    "no schema for items": {"items": 5},
    "another dialect": {"$schema": "http://json-schema.org/draft-07/schema#"},
    "a reference to the network": {"$ref": "https://example.invalid/schema"},
    "a reference to a file": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "a reference to a relative document": {"$ref": "other.json#/$defs/a"},
    "a reference to the meta-schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    "a reference to nothing": {"$ref": "#/$defs/none"},
    "a reference into what is no schema": {"$ref": "#/enum/0", "enum": [{}]},
    "a reference by anchor": {"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}},
    "a reference that is resolved late": {"$dynamicRef": "#"},
    "another base below": {"properties": {"a": {"$id": "https://example.invalid/a"}}},
    "another dialect below": {"properties": {"a": {"$schema": "https://json-schema.org/draft/2020-12/schema"}}},
    "a reference that is no text": {"$ref": 1},
    "itself": {"$ref": "#"},
    "itself in an alternative": {"anyOf": [{"type": "string"}, {"not": {"$ref": "#"}}]},
    "two that refer to each other": {
        "$ref": "#/$defs/a",
        "$defs": {"a": {"if": {"$ref": "#/$defs/b"}}, "b": {"dependentSchemas": {"x": {"$ref": "#/$defs/a"}}}},
    },
    "look-ahead": {"pattern": "(?=a)b"},
    "look-behind in the name of a member": {"patternProperties": {"(?<!a)b": {}}},
    "a back reference": {"properties": {"a": {"pattern": "(a)\\1"}}},
    "an open bracket": {"pattern": "("},
    "a large expression": {"pattern": "(x{100}){100}"},
    "a huge expression": {"pattern": "((x{1000}){1000}){1000}"},
    "many expressions": {"anyOf": [{"pattern": "a"}] * 101},
    "doubling anyOf": doubling(60),
    "doubling oneOf": doubling(400, "oneOf"),
    "doubling allOf": doubling(20, "allOf"),
    "much nesting": nested(65),
    "very much nesting": nested(400),
    "many subschemas": {"allOf": [{}] * 2001},
    "a long one": {"const": "x" * MAX_SCHEMA_BYTES},
}


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD.keys())
def test_a_schema_that_cannot_be_judged_within_bounds_is_refused_at_once(schema: Any) -> None:
    began = time.process_time()
    with pytest.raises(BadSchema):
        RecordSchema(schema)
    assert time.process_time() - began < 5, "nothing was judged, or fetched"


@pytest.mark.parametrize("text", [b"1", b"[]", b'"x"', b"true", b"{" * 100, b'{"a":' * 5000 + b"1" + b"}" * 5000])
def test_a_schema_is_an_object(text: bytes) -> None:
    with pytest.raises(BadSchema):
        normal_schema(text)


def test_null_is_no_schema_and_blanks_do_not_count() -> None:
    assert normal_schema(b" null ") is None
    assert bytes(normal_schema(b'{ "maximum" : 1.0 }') or b"") == b'{"maximum":1.0}'
    assert ready(b'{"maximum":1.0}') is ready(bytes(bytearray(b'{"maximum":1.0}')))


GOOD: list[Any] = [
    {},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.invalid/a", "$ref": "#/$defs/a",
     "$defs": {"a": {"type": "integer"}}},
    {"$ref": "#/$defs/a%20b~1c", "$defs": {"a b/c": {"type": "integer"}}},
    {"definitions": {"a": {"type": "integer"}}, "allOf": [{"$ref": "#/definitions/a"}]},
    {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}},
    {"pattern": r"^\p{Lu}\w*(-\d{4}){0,3}$"},
    {"enum": [{"$anchor": "a", "$ref": "https://example.invalid/", "$id": 7}]},
    {"required": ["$ref"], "properties": {"$ref": {"type": "string"}, "$id": True}},
    {"unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}], "dependentRequired": {"a": ["b"]}},
    doubling(8),
    nested(60),
]  # fmt: skip


@pytest.mark.parametrize("schema", GOOD, ids=str)
def test_common_schemas_are_accepted(schema: Any) -> None:
    RecordSchema(schema)


# ----------------------------------------------------------------- what bounds the work

TREE = {
    "$ref": "#/$defs/n",
    "$defs": {"n": {"properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}, "v": {"type": "integer"}}}},
}
KINDS = ["add", "sub", "mul", "div", "neg"]
EXPRESSION = {
    "$ref": "#/$defs/e",
    "$defs": {
        "e": {
            "oneOf": [
                {"type": "integer"},
                *({"properties": {"op": {"const": kind}, "of": {"$ref": "#/$defs/e"}}, "required": ["op"]}
                  for kind in KINDS),
            ]
        }
    },
}  # fmt: skip
EACH_OTHER = {
    "$ref": "#/$defs/a",
    "$defs": {
        "a": {"anyOf": [{"properties": {"of": {"$ref": f"#/$defs/b{i}"}}} for i in range(4)]},
        **{
            f"b{i}": {"allOf": [{"properties": {"of": {"$ref": "#/$defs/a"}}}] * 2, "not": {"const": i}}
            for i in range(4)
        },
    },
}


def chain(levels: int, leaf: Any) -> bytes:
    value = leaf
    for i in range(levels):
        value = {"op": KINDS[i % 5], "of": value, "l": value if i < 3 else 1}
    return json.dumps(value).encode()


@pytest.mark.parametrize("schema", [TREE, EXPRESSION, EACH_OTHER], ids=["tree", "expression", "each other"])
@pytest.mark.parametrize("leaf", [1, "x", {"v": "x"}, []], ids=str)
def test_a_recursive_schema_judges_deep_records_at_once(schema: Any, leaf: Any) -> None:
    """The library judges a value once by the target of a recursive reference; the bounds rely on this."""
    found = RecordSchema(schema)
    for levels in (1, 3, 20, 200):
        began = time.process_time()
        found.violation(chain(levels, leaf))
        assert time.process_time() - began < 5


def wrapped(levels: int, wrap: Callable[[Any], Any]) -> Any:
    schema: Any = {"properties": {"z": True}, "prefixItems": [True]}
    for _ in range(levels):
        schema = wrap(schema)
    return schema


OPEN = {"unevaluatedProperties": {"type": ["integer", "object"]}, "unevaluatedItems": True}
JUDGED_AGAIN = {
    "allOf": lambda inner: {"allOf": [inner], **OPEN},
    "anyOf": lambda inner: {"anyOf": [inner], **OPEN},
    "oneOf": lambda inner: {"oneOf": [inner], **OPEN},
    "if": lambda inner: {"if": inner, **OPEN},
    "members of alternatives": lambda inner: {"anyOf": [{"properties": {"of": inner}}], **OPEN},
    "items of alternatives": lambda inner: {"allOf": [{"items": inner}], **OPEN},
    "contains": lambda inner: {"contains": inner, **OPEN},
    "unevaluated members": lambda inner: {"allOf": [{"unevaluatedProperties": inner}], "unevaluatedProperties": False},
}


@pytest.mark.parametrize("wrap", JUDGED_AGAIN.values(), ids=JUDGED_AGAIN)
def test_what_unevaluated_judges_again_counts_again(wrap: Callable[[Any], Any]) -> None:
    """The library judges alternatives, and the items that `contains` allows, once more at each level."""
    members: Any = {f"p{i}": i for i in range(20)}
    items: Any = []
    for _ in range(20):
        members, items = {"of": members, "p": 1}, [items]
    for levels in range(1, 15):
        try:
            found = RecordSchema(wrapped(levels, wrap))
        except BadSchema:
            break
        assert found.steps(b"1") >= 2**levels
        began = time.process_time()
        for value in (members, items, {f"p{i}": i for i in range(50)}):
            found.violation(json.dumps(value).encode())
        assert time.process_time() - began < 5
    with pytest.raises(BadSchema, match="too much work"):
        RecordSchema(wrapped(15, wrap))


@pytest.mark.parametrize("keyword", ["then", "else", "$ref", "dependentSchemas"])
def test_what_unevaluated_only_asks_does_not_multiply(keyword: str) -> None:
    definitions: dict[str, Any] = {}
    schema: Any = {"properties": {"z": True}}
    for i in range(20):
        if keyword == "$ref":
            definitions[f"d{i}"] = schema
            schema = {"$ref": f"#/$defs/d{i}", **OPEN}
        else:
            inner = {"a": schema} if keyword == "dependentSchemas" else schema
            schema = {"if": keyword == "then", keyword: inner, **OPEN}
    assert RecordSchema({"$defs": definitions, **schema}).steps(b"1") < 5000


def test_unevaluated_in_a_recursion_is_bounded_or_refused() -> None:
    """Accepted: a node that refuses members of its own. Refused: one that judges the alternatives of its child again,
    and those judge theirs again."""
    base = {"properties": {"of": {"$ref": "#/$defs/n"}, "v": {"type": "integer"}}}
    node = {"anyOf": [base], "unevaluatedProperties": False}
    found = RecordSchema({"$ref": "#/$defs/n", "$defs": {"n": node}})
    value: Any = {"v": 1}
    for _ in range(400):
        value = {"of": value}
    began = time.process_time()
    assert found.violation(json.dumps(value).encode()) is None
    assert time.process_time() - began < 5
    child = {"$ref": "#/$defs/n", "unevaluatedProperties": False}
    with pytest.raises(BadSchema, match="judge a recursion again"):
        RecordSchema({"$ref": "#/$defs/n", "$defs": {"n": {"anyOf": [{"properties": {"of": child}}]}}})


def test_a_record_whose_judgement_might_take_long_is_refused_without_being_judged() -> None:
    wide = RecordSchema(doubling(11))
    assert wide.violation(b'"x"') is None
    found = wide.violation(json.dumps("x" * 1_000_000).encode())
    assert found is not None
    assert "too much work" in found.message
    assert RecordSchema({"items": {"type": "integer"}}).violation(json.dumps([1] * 300_000).encode()) is None


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"items": {"allOf": [{"multipleOf": 1e-300}] * 1000}}, "[" + "1e300," * 2000 + "1e300]"),
        ({"items": {"multipleOf": 1e-300}}, "[" + "1e300," * 150_000 + "1e300]"),
        ({"items": {"not": {"enum": [n + 0.5 for n in range(5000)]}}}, "[" + "1.5e9," * 2000 + "1.5e9]"),
        ({"items": {"allOf": [{"minimum": n} for n in range(1000)]}}, "[" + f"{10**4000}," * 25 + "1]"),
        ({"items": {"allOf": [{"maximum": 1e308}] * 20}}, "[" + "1e300," * 100_000 + "1e300]"),
        ({"items": {"not": {"enum": [1.5]}}}, "[" + "1e-300," * 100_000 + "1e-300]"),
        (
            {"allOf": [{"uniqueItems": True}] * 7},
            "[" + ",".join(f"[{n},{','.join(f'{k}.5' for k in range(9000))}]" for n in range(15)) + "]",
        ),
        ({}, "[" + "1e300," * 150_000 + "1e300]"),
        ({"uniqueItems": True}, "[" + ",".join(f"[{n}{',1e-300' * 5000}]" for n in range(15)) + "]"),
    ],
    ids=[
        "factors",
        "one factor",
        "an enum",
        "long integers",
        "bounds",
        "tiny numbers",
        "unique",
        "decoding",
        "unique and tiny",
    ],
)
def test_comparing_numbers_counts_for_what_it_costs(schema: Any, data: str) -> None:
    """Each of these would hold the interpreter for seconds, or minutes."""
    found = RecordSchema(schema).violation(data.encode())
    assert found is not None
    assert "too much work" in found.message


@pytest.mark.parametrize("schema", [{"uniqueItems": True}, {"minimum": 1}, {}, {"multipleOf": 0.5}])
@given(st.text("1,e-E[{.", max_size=60))
def test_no_byte_counts_for_more_than_the_bound_that_spares_counting(schema: Any, text: str) -> None:
    found, data = RecordSchema(schema), text.encode()
    width = cost_of(subschemas(schema)).width
    assert found.steps(data) <= (len(data) + 1) * (MOST_VALUES * width + EXPONENT_TOKENS)


def test_numbers_of_usual_records_are_judged() -> None:
    price = {"type": "object", "properties": {"price": {"type": "number", "minimum": 0, "multipleOf": 0.01}}}
    schema = RecordSchema({"items": price, "uniqueItems": True})
    assert schema.violation(json.dumps([{"price": n + 0.25} for n in range(1000)]).encode()) is None
    assert RecordSchema({"enum": list(range(10_000))}).violation(b"9999") is None
    broken = RecordSchema({"items": {"enum": list(range(60))}}).violation(b"[1,2,3,4,60]")
    assert broken is not None
    assert broken.path == "/4"


def test_an_explanation_of_many_numbers_is_left_out() -> None:
    schema = RecordSchema({"items": {"anyOf": [{"multipleOf": 1e-300, "type": "string"}] * 150}})
    found = schema.violation(b"[" + b"1e300," * 100 + b"1e300]")
    assert found == ("", "it breaks the schema (it is too large to say where)")


def test_an_explanation_that_might_take_long_is_left_out() -> None:
    found = RecordSchema(doubling(11)).violation(b"5")
    assert found == ("", "it breaks the schema (it is too large to say where)")
    found = RecordSchema({"type": "string"}).violation(json.dumps(["x" * 10] * 100_000).encode())
    assert found is not None
    assert len(found.message) <= 300


SCHEMAS = st.recursive(
    st.sampled_from([{}, True, False, {"type": "integer"}, {"type": "object"}, {"const": 1}, {"maximum": 2}]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda found: {"anyOf": found}),
        st.lists(inner, min_size=1, max_size=3).map(lambda found: {"allOf": found}),
        st.lists(inner, min_size=1, max_size=2).map(lambda found: {"prefixItems": found}),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(lambda found: {"properties": found}),
        st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2).map(
            lambda found: {"patternProperties": found}
        ),
        inner.map(lambda found: {"not": found}),
        inner.map(lambda found: {"items": found}),
        inner.map(lambda found: {"contains": found}),
        inner.map(lambda found: {"additionalProperties": found}),
        st.tuples(inner, inner).map(lambda two: {"anyOf": [two[0]], "unevaluatedProperties": two[1]}),
        st.tuples(inner, inner).map(lambda two: {"allOf": [two[0]], "unevaluatedItems": two[1]}),
        st.tuples(inner, inner).map(lambda two: {"if": two[0], "then": two[1]}),
        inner.map(lambda found: {"$defs": {"d": found}, "$ref": "#/$defs/d"}),
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    st.sampled_from([0, 1, 5, "a", None, 1.5]),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=300)
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), VALUES)
def test_records_are_judged_as_the_library_judges_them(schema: Any, value: Any) -> None:
    try:
        found = said(schema, value)
    except BadSchema:  # a $ref of a part is relative to the root, and may lead to itself
        return
    errors = list(Draft202012Validator(schema).iter_errors(value))
    assert (found is None) == (not errors)


def applied(schema: Any, value: Any) -> int:
    """Count one by one how many subschemas are applied to the parts of a value. The schema has no references."""
    if not isinstance(schema, dict):
        return 1
    count = 1
    for name in ("anyOf", "allOf"):
        count += sum(applied(part, value) for part in schema.get(name, ()))
    for name in ("not", "if", "then"):
        count += applied(schema[name], value) if name in schema else 0
    if isinstance(value, dict):
        for key, child in value.items():
            if key in schema.get("properties", {}):
                count += applied(schema["properties"][key], child)
            elif "additionalProperties" in schema:
                count += applied(schema["additionalProperties"], child)
            count += sum(applied(part, child) for part in schema.get("patternProperties", {}).values())
    if isinstance(value, list):
        for i, child in enumerate(value):
            if i < len(schema.get("prefixItems", ())):
                count += applied(schema["prefixItems"][i], child)
            elif "items" in schema:
                count += applied(schema["items"], child)
            count += applied(schema["contains"], child) if "contains" in schema else 0
    return count


def parts(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(parts(child) for child in children)


def levels(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(levels, children), default=0)


@settings(max_examples=300)
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict) and "$ref" not in json.dumps(schema)), VALUES)
def test_the_bounds_are_at_least_the_real_work(schema: Any, value: Any) -> None:
    cost = cost_of(subschemas(schema))
    work = applied(schema, value)
    assert work <= cost.width * parts(value)
    assert work <= cost.explaining(levels(value), numbers=False) * parts(value)


def test_counts_stop_at_the_highest_count() -> None:
    cost = cost_of(subschemas(TREE))
    assert cost.width < 50
    assert cost.explaining(200, numbers=False) == MOST > MAX_STEPS


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 3000).map(lambda n: b"[" + b",".join([b"1"] * n) + b"]"), min_size=1, max_size=400),
    st.sampled_from([1, 30, 1900]),
)
def test_a_piece_is_one_record_or_within_all_bounds(datas: list[bytes], alternatives: int) -> None:
    schema = RecordSchema({"items": {"anyOf": [{"const": i} for i in range(alternatives)]}})
    start = 0
    while start < len(datas):
        end, share = schema.piece(datas, start)
        part = datas[start:end]
        size, steps = sum(map(len, part)), sum(map(schema.steps, part))
        assert part
        assert len(part) <= PIECE_RECORDS
        assert len(part) == 1 or (size <= PIECE_BYTES and steps <= PIECE_STEPS)
        assert share >= size / PIECE_BYTES
        start = end


def test_the_memory_of_schemas_that_are_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ReadySchemas()
    texts = [json.dumps({"properties": {f"p{i}": {"pattern": f"^{n}x{i}$"} for i in range(20)}}) for n in range(6)]
    first = kept.get(texts[0].encode())
    monkeypatch.setattr(record_schema, "KEPT_BYTES", 3 * first.nbytes + 100)
    for text in texts[1:]:
        assert kept.get(texts[0].encode()) is first  # it is used again and again
        kept.get(text.encode())
        assert kept.nbytes <= 3 * first.nbytes + 100
    assert len(kept) == 3
    monkeypatch.setattr(record_schema, "KEPT_BYTES", 1)
    assert kept.get(b'{"type":"null"}').violation(b"null") is None
    assert len(kept) == 1


def test_numbers_that_take_long_to_decode_are_few() -> None:
    """10,000 of them took 0.7 s, in one step of the loop."""
    most = ",".join(["1e300", "2E-300"] * 100)
    assert normal_schema(b'{"enum":[%b]}' % most.encode()) is not None
    with pytest.raises(BadSchema, match="more than 200 numbers with an exponent"):
        normal_schema(b'{"enum":[%b,1e3]}' % most.encode())
    hexadecimal = ",".join(f'"{i}e{i}\\""' for i in range(300))
    assert normal_schema(b'{"enum":[%b]}' % hexadecimal.encode()) is not None
