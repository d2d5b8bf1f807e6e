"""The text form of filters: its meaning, and the places of mistakes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.filters.filter_error import FilterError
from topics.filters.filter_text import json_of
from topics.filters.record_filter import parse_filter


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('tag ~ "eu:*" and data./total >= 10', '["And",["tag","Glob","eu:*"],["data","/total","Ge",10]]'),
        ('tag="a"', '["tag","Eq","a"]'),
        ('node == "n"', '["node","Eq","n"]'),
        ('tag in ("a", "b")', '["tag","In",["a","b"]]'),
        ('meta.trace = "x"', '["meta","trace","Eq","x"]'),
        ('meta."a b".', None),
        ('meta."a b" exists', '["meta","a b","Exists",true]'),
        ("meta.k missing", '["meta","k","Exists",false]'),
        ("data = null", '["data","","Eq",null]'),
        ('data."" = 1', '["data","","Eq",1]'),
        ("data./a/0/b != true", '["data","/a/0/b","Ne",true]'),
        ('data./a~1b~"x*"', '["data","/a~1b","Glob","x*"]'),
        ('data."/a b" < -1.50e3', '["data","/a b","Lt",-1.50e3]'),
        ("data./n > 9007199254740993.0", '["data","/n","Gt",9007199254740993.0]'),
        ("not data./a exists", '["Not",["data","/a","Exists",true]]'),
        ("NOT (data./a=1 OR data./b=2)", '["Not",["Or",["data","/a","Eq",1],["data","/b","Eq",2]]]'),
        (
            "data./a=1 or data./b=2 and data./c=3 or not data./d=4",
            '["Or",["data","/a","Eq",1],["And",["data","/b","Eq",2],["data","/c","Eq",3]],["Not",["data","/d","Eq",4]]]',
        ),
        ("((data./a=1))", '["data","/a","Eq",1]'),
        ('data./a in (1,"x",null)', '["data","/a","In",[1,"x",null]]'),
    ],
)
def test_a_text_is_read_as_the_filter_that_it_describes(text: str, wanted: str | None) -> None:
    if wanted is None:
        with pytest.raises(FilterError):
            json_of(text)
    else:
        assert json_of(text) == wanted
        assert parse_filter(json_of(text)).text == wanted


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("", "at character 1, the end", "expected tag, node"),
        ("tag", "at character 4, the end", "expected =, !="),
        ("tag = eu", "at character 7 ('eu')", "strings need quotes"),
        ('tag = "eu', "at character 7 ('\"eu')", "does not end"),
        ('tag = "\\x"', "at character 7 ('\"\\\\x\"')", "bad escape"),
        ("total >= 1", "at character 1 ('total >= 1')", "expected tag, node"),
        ("data.total >= 1", "at character 6 ('total >= 1')", "a JSON pointer, such as data./total"),
        ("data/total >= 1", "at character 5 ('/total >= 1')", "expected `.`"),
        ('meta = "x"', "at character 5 (' = \"x\"')", "expected `.`"),
        ("data./a = 01", "at character 11 ('01')", "expected a string, a number"),
        ("data./a = 1 data./b = 2", "at character 13 ('data./b = 2')", "expected `and`, `or` or the end"),
        ("(data./a = 1", "at character 13, the end", "`and`, `or` or `)`"),
        ('tag in "a"', "at character 8 ('\"a\"')", "expected `(`"),
        ('tag in ("a"', "at character 12, the end", "expected `,` or `)`"),
        ('tag != "a"', "at character 5 ('!= \"a\"')", "tag takes only =, ~, in"),
        ("data = 1 and meta.k missing and tag missing", "at character 37 ('missing')", "tag takes only =, ~, in"),
        ('tag ~ "a"', "at character 7 ('\"a\"')", 'must end in "*"'),
        ('(not ( tag = "b" and  data./b ~ 5))', "at character 33 ('5))')", "must be a string"),
        ('node in ("a", null)', "at character 15 ('null)')", "must be a string"),
        ('tag = "a" or data."b" exists', "at character 19 ('\"b\" exists')", "not a JSON pointer"),
        ('data = 1 or meta."\\ud800" = "a"', 'at character 18 (\'"\\\\ud800" = "a"\')', "not valid Unicode"),
        ("not " * 8 + "data exists", "at character 33 ('data exists')", "deeper than 8"),
        ("data = 1 or " * 64 + "tag = 1", "at character 757 ('data = 1 or tag = 1')", "at most 64 predicates"),
        ("(" * 5000, "at character 34 ('((((((((((((((((((((')", "more than 32"),
        ("not " * 5000, "at character 132 (' not not not not not')", "more than 32"),
    ],
)
def test_a_mistake_is_named_by_its_place(text: str, place: str, said: str) -> None:
    with pytest.raises(FilterError) as refused:
        json_of(text)
    assert (refused.value.place, said in refused.value.message) == (place, True), refused.value


words = st.sampled_from(
    [
        *("tag", "node", "meta.k", "data./a", "and", "or", "not", "in", "exists", "missing"),
        *("=", "~", "<", "(", ")", ",", '"a*"', "1", "null", " ", '"'),
    ]
)


@given(st.lists(words, max_size=12).map(" ".join) | st.text(max_size=30))
def test_every_text_is_either_a_filter_or_refused_with_an_error(text: str) -> None:
    try:
        found = json_of(text)
    except FilterError:
        return
    assert json.loads(found)
