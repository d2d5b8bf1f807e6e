"""Filters against an oracle, and invalid filters."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given, settings

from tests.filters import oracle
from tests.filters.oracle import Written
from topics.filters.filter_error import FilterError
from topics.filters.record_filter import TagRule, all_of, parse_filter


def says(wanted: Any, record: Written) -> bool:
    return parse_filter(wanted if isinstance(wanted, str) else json.dumps(wanted)).matches(record)


def refusal_of(wanted: Any) -> FilterError:
    with pytest.raises(FilterError) as refused:
        parse_filter(wanted if isinstance(wanted, str | bytes) else json.dumps(wanted))
    return refused.value


@pytest.mark.slow
@settings(max_examples=500)
@given(oracle.filters, oracle.records)
@example('["Not", ["data", "/a", "Ne", 1]]', Written(b'{"a": "1"}'))
@example('["data", "/a", "Eq", 9007199254740993]', Written(b'{"a": 9007199254740992}'))
@example('["data", "/a", "Gt", 0.1]', Written(b'{"a": 0.10000000000000000000000001}'))
@example('["data", "/a/b", "Exists", false]', Written(b'{"a": {"b": 1}, "a": {}}'))
def test_a_filter_matches_the_records_that_a_plain_evaluation_matches(text: str, record: Written) -> None:
    try:
        found = parse_filter(text)
    except FilterError as error:
        assume("nested deeper" not in error.message)
        raise
    assert found.matches(record) is oracle.matches(oracle.decoded(text), record)


@pytest.mark.slow
@settings(max_examples=200)
@given(oracle.filters, oracle.records)
def test_its_tags_hold_for_every_record_that_matches(text: str, record: Written) -> None:
    try:
        found = parse_filter(text)
    except FilterError:
        assume(False)
    if found.tags is None or not found.matches(record):
        return
    assert record.tag is not None
    assert any(
        record.tag.startswith(rule.pattern) if rule.prefix else record.tag == rule.pattern for rule in found.tags
    )


@pytest.mark.slow
@settings(max_examples=100)
@given(oracle.filters, oracle.filters, oracle.records)
def test_all_of_several_filters_matches_like_their_conjunction(one: str, other: str, record: Written) -> None:
    try:
        filters = [parse_filter(one), None, parse_filter(other)]
    except FilterError:
        assume(False)
    both = all_of(filters)
    assert both is not None
    assert both.matches(record) is all(each.matches(record) for each in filters if each is not None)


def test_all_of_no_filters_is_none() -> None:
    only = parse_filter('["tag","Eq","a"]')
    assert all_of([None, None]) is None
    assert all_of([None, only]) is only


@pytest.mark.parametrize(
    ("wanted", "tags"),
    [
        (["tag", "Eq", "a"], [("a", False)]),
        (["tag", "In", ["a", "b", "a"]], [("a", False), ("b", False)]),
        (["tag", "Glob", "eu:*"], [("eu:", True)]),
        (["tag", "Glob", "*"], [("", True)]),
        (["Or", ["tag", "Eq", "a"], ["tag", "Glob", "b*"]], [("a", False), ("b", True)]),
        (["Or", ["tag", "Eq", "a"], ["node", "Eq", "n"]], None),
        (["Not", ["tag", "Eq", "a"]], None),
        (["node", "Eq", "a"], None),
        (["And", ["node", "Eq", "n"], ["tag", "Eq", "a"]], [("a", False)]),
        (
            ["And", ["tag", "Glob", "eu:*"], ["tag", "Glob", "*"], ["tag", "In", ["a", "b"]]],
            [("a", False), ("b", False)],
        ),
        (["And", ["tag", "Glob", "*"], ["tag", "Glob", "eu:*"]], [("eu:", True)]),
    ],
)
def test_the_tags_with_which_an_index_finds_the_matching_records(wanted: Any, tags: Any) -> None:
    found = parse_filter(json.dumps(wanted)).tags
    assert found == (None if tags is None else tuple(TagRule(*rule) for rule in tags))


def test_a_filter_reads_only_the_parts_of_a_record_that_it_needs() -> None:
    class Untouchable:
        tag = "a"
        node = None

        @property
        def meta(self) -> bytes:
            raise AssertionError("meta")

        @property
        def data(self) -> bytes:
            raise AssertionError("data")

    assert says(["Or", ["tag", "Eq", "a"], ["data", "/a", "Eq", 1]], Untouchable())  # type: ignore[arg-type]
    assert not says(["And", ["node", "Eq", "a"], ["meta", "a", "Eq", "x"]], Untouchable())  # type: ignore[arg-type]


def test_raw_bytes_have_no_data() -> None:
    raw = Written(None)
    assert says(["data", "", "Exists", False], raw)
    assert not says(["data", "", "Exists", True], raw)
    assert not says(["data", "/a", "Ne", 1], raw)
    assert says(["Not", ["data", "/a", "Eq", 1]], raw)


def test_long_arrays_and_strange_indexes() -> None:
    numbers = json.dumps(list(range(200))).encode()
    assert says(["data", "/199", "Eq", 199], Written(numbers))
    assert says(["data", "/63", "Eq", 63], Written(numbers))
    for pointer in ("/200", "/-", "/-1", "/00", "/1.0", "/\u0661", "/99999999999999999999"):
        assert says(["data", pointer, "Exists", False], Written(numbers)), pointer
    assert says(["data", "/00", "Eq", 1], Written(b'{"00": 1}'))
    assert says(["And", ["data", "/0", "Eq", 1], ["data", "/x", "Exists", False]], Written(b"[1]"))


@pytest.mark.parametrize(
    ("wanted", "place", "said"),
    [
        ([], "", "must be a list"),
        ("{}", "", "must be a list"),
        ('"tag"', "", "must be a list"),
        (["what", "Eq", "a"], "[0]", "one of And, Or"),
        ([["tag"], "Eq", "a"], "[0]", "one of And, Or"),
        (["tag"], "[1]", "one of Eq, Glob, In"),
        (["tag", "Ne", "a"], "[1]", "one of Eq, Glob, In"),
        (["tag", ["Eq"], "a"], "[1]", "one of Eq, Glob, In"),
        (["node", "Glob", "a*"], "[1]", "one of Eq, In"),
        (["tag", "Eq"], "", "has 2 elements, tag has 3"),
        (["tag", "Eq", "a", "b"], "", "has 4 elements, tag has 3"),
        (["tag", "Eq", 1], "[2]", "must be a string"),
        (["tag", "Glob", "a"], "[2]", 'must end in "*"'),
        (["tag", "Glob", ""], "[2]", 'must end in "*"'),
        (["tag", "In", []], "[2]", "a list of 1 to 100"),
        (["tag", "In", "a"], "[2]", "a list of 1 to 100"),
        (["tag", "In", ["a"] * 101], "[2]", "a list of 1 to 100"),
        (["tag", "In", ["a", None]], "[2][1]", "must be a string"),
        (["tag", "Eq", "x" * 1025], "[2]", "1025 bytes"),
        (["tag", "Eq", "ü" * 513], "[2]", "1026 bytes"),
        ('["tag", "Eq", "\\ud800"]', "[2]", "not valid Unicode"),
        (["meta"], "", "needs a key"),
        (["meta", 1, "Eq", "a"], "[1]", "must be a string"),
        (["meta", "k", "Ne", "a"], "[2]", "one of Eq, Glob, In, Exists"),
        (["meta", "k", "Eq", 1], "[3]", "must be a string"),
        (["meta", "k", "Exists", "yes"], "[3]", "true or false"),
        (["data"], "", "needs a JSON pointer"),
        (["data", "a", "Eq", 1], "[1]", 'begin with "/"'),
        (["data", "/a~2", "Eq", 1], "[1]", '"~0" nor "~1"'),
        (["data", "/a" * 17, "Eq", 1], "[1]", "17 steps"),
        (["data", "/" * 1024, "Eq", 1], "[1]", "1024 steps"),
        (["data", "/a", "Like", 1], "[2]", "one of Eq, Ne"),
        (["data", "/a", "Eq", [1]], "[3]", "null, a boolean, a number or a string"),
        (["data", "/a", "Eq", {}], "[3]", "null, a boolean, a number or a string"),
        (["data", "/a", "In", [1, []]], "[3][1]", "null, a boolean, a number or a string"),
        (["data", "/a", "Lt", None], "[3]", "a number or a string"),
        (["data", "/a", "Ge", True], "[3]", "a number or a string"),
        ('["data", "/a", "Eq", 1' + "0" * 1024 + "]", "[3]", "1025 characters"),
        ('["data", "/a", "Eq", NaN]', "", "NaN is no number"),
        ('["data", "/a", "Eq", -Infinity]', "", "-Infinity is no number"),
        (["And"], "", "at least one operand"),
        (["Or"], "", "at least one operand"),
        (["Not"], "", "exactly one operand"),
        (["Not", ["tag", "Eq", "a"], ["tag", "Eq", "b"]], "", "exactly one operand"),
        (["And", ["tag", "Eq", "a"], ["Or", ["tag", "Eq", "b"], ["tag", "Eq", 1]]], "[2][2][2]", "must be a string"),
        (["Or", *[["tag", "Eq", "a"]] * 64], "[64]", "at most 64 predicates"),
        ("[" * 100_000, "", "bytes long"),
        ("[" * 60_000, "", "nested deeper"),
        ('["tag", "Eq", "a"', "", "not valid JSON"),
        (b'["tag", "Eq", "\xff"]', "", "not valid JSON"),
        ('["tag", "Eq", "' + "x" * 70_000 + '"]', "", "bytes long"),
    ],
)
def test_an_invalid_filter_is_refused_with_the_place_of_the_mistake(wanted: Any, place: str, said: str) -> None:
    refused = refusal_of(wanted)
    assert (refused.place, said in refused.message) == (place, True), refused


def test_many_long_pointers_read_the_same_with_types_and_without() -> None:
    wanted = ["And", *[["data", f"/{i}" + "/a" * 15, "Eq", i] for i in range(63)]]
    data: Any = {str(i): i for i in range(63)}
    for _ in range(15):
        data = {key: {"b": 1, "a": value} for key, value in data.items()}
    assert says(wanted, Written(json.dumps(data).encode()))
    data["62"]["a"] = 5
    assert not says(wanted, Written(json.dumps(data).encode()))


def nested(levels: int) -> Any:
    wanted: Any = ["tag", "Eq", "a"]
    for _ in range(levels - 1):
        wanted = ["Not", wanted]
    return wanted


def test_the_limits_themselves_are_allowed() -> None:
    assert says(nested(7), Written(b"1", tag="a"))
    assert refusal_of(nested(9)).place == "[1]" * 8
    assert not says(nested(8), Written(b"1", tag="a"))
    assert says(["Or", *[["tag", "Eq", "a"]] * 63], Written(b"1", tag="a"))
    assert says(["tag", "In", [*["b"] * 99, "a"]], Written(b"1", tag="a"))
    assert says(["tag", "Glob", "a" * 1023 + "*"], Written(b"1", tag="a" * 1024))


def test_a_filter_keeps_the_text_that_the_client_sent() -> None:
    text = '["And",["data","/a","Eq",1.50],["data","/b","Gt",1e400],["tag","Eq","ü"],["data","","In",[null,true,7]]]'
    assert parse_filter(text.replace(",", " , ")).text == text
    assert parse_filter(text) == parse_filter(text.encode())
    assert hash(parse_filter(text)) == hash(parse_filter(text.encode()))
    assert parse_filter('["data","","Eq",1]') != parse_filter('["data","","Eq",1.0]')
