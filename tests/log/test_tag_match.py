"""Matches: their three forms, and nothing else."""

from __future__ import annotations

import pytest

from topics.errors import ApiError
from topics.log.tag_match import TagMatch, parse_match


@pytest.mark.parametrize(
    ("value", "selected", "left"),
    [
        (["tag", "Eq", "x"], ["x"], ["xy", "", None]),
        (["tag", "Eq", "x*"], ["x*"], ["x", "xy", None]),
        (["tag", "Glob", "x*"], ["x", "xy", "x*"], ["ax", "", None]),
        (["tag", "Glob", "x**"], ["x*", "x*y"], ["x", "xy", None]),
        (["tag", "Glob", "a*b*"], ["a*b", "a*bc"], ["axb", None]),
        (["tag", "Glob", "*"], ["", "x", "*"], [None]),
        ("x", ["x"], ["xy", None]),
        ("x*", ["x*"], ["x", "xy", None]),
    ],
)
def test_a_match_selects_tags(value: object, selected: list[str], left: list[str | None]) -> None:
    match = parse_match(value)
    assert [tag for tag in selected if not match.matches(tag)] == []
    assert [tag for tag in left if match.matches(tag)] == []
    assert parse_match(match.to_wire()) == match


def test_a_bare_string_is_never_a_glob() -> None:
    assert parse_match("x*") == TagMatch("x*", prefix=False)
    assert parse_match("x*").to_wire() == ["tag", "Eq", "x*"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        True,
        {},
        [],
        ["tag", "Eq"],
        ["tag", "Eq", "x", "y"],
        ["tag", "Eq", 7],
        ["tag", "Eq", None],
        ["tag", "eq", "x"],
        ["tag", "Glob", "x"],
        ["tag", "Glob", "*x"],
        ["tag", "Glob", ""],
        ["tag", ["Eq"], "x"],
        ["node", "Eq", "x"],
        "\ud800",
    ],
)
def test_anything_else_is_refused_by_its_field(value: object) -> None:
    with pytest.raises(ApiError) as caught:
        parse_match(value, "filter")
    assert caught.value.status == 400
    assert caught.value.detail["field"] == "filter"
