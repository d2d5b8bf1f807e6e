"""Router configs: merging, refusing, and coming back from disk."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import ApiError
from topics.filters.record_filter import parse_filter
from topics.log.tag_match import TagMatch
from topics.model import RouterPatch
from topics.routing.router import RouterConfig, resolve_router, router_from_wire, router_to_wire

FILTERS = [parse_filter('["node","Eq","n"]'), parse_filter('["data","/a","Gt",9007199254740992.5]')]

configs = st.builds(
    RouterConfig,
    source=st.sampled_from(["a", "b.c", "A:1"]),
    dest=st.sampled_from(["d", "e-f"]),
    preserve_node=st.booleans(),
    preserve_tag=st.booleans(),
    create_dest=st.booleans(),
    filter=st.none() | st.builds(TagMatch, st.text(), prefix=st.booleans()),
    record_filter=st.none() | st.sampled_from(FILTERS),
    allow_cycle=st.booleans(),
    guarantee=st.sampled_from(["at_least_once", "exactly_once"]),
    start=st.sampled_from(["tail", "earliest"]),
)


def resolve(current: RouterConfig | None = None, /, **fields: Any) -> RouterConfig:
    return resolve_router(current, RouterPatch(**fields), router="r")


def refused_field(current: RouterConfig | None = None, /, **fields: Any) -> tuple[str, str]:
    with pytest.raises(ApiError) as caught:
        resolve(current, **fields)
    return caught.value.code, caught.value.detail["field"]


def test_a_source_and_a_dest_are_enough_to_create_a_router() -> None:
    assert resolve(source="a", dest="b") == RouterConfig(source="a", dest="b")
    assert router_to_wire(resolve(source="a", dest="b")) == {
        "source": "a",
        "dest": "b",
        "preserve_node": True,
        "preserve_tag": True,
        "create_dest": True,
        "filter": None,
        "allow_cycle": False,
        "guarantee": "at_least_once",
        "from": "tail",
    }


def test_a_creation_takes_every_field() -> None:
    config = resolve(
        source="a",
        dest="b",
        preserve_node=False,
        preserve_tag=False,
        create_dest=False,
        filter=["tag", "Glob", "x*"],
        allow_cycle=True,
        guarantee="exactly_once",
        start="earliest",
    )
    assert config == RouterConfig(
        source="a",
        dest="b",
        preserve_node=False,
        preserve_tag=False,
        create_dest=False,
        filter=TagMatch("x", prefix=True),
        allow_cycle=True,
        guarantee="exactly_once",
        start="earliest",
    )


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "source"),
        ({"dest": "b"}, "source"),
        ({"source": "a"}, "dest"),
        ({"source": "a>b", "dest": "b"}, "source"),
        ({"source": "a", "dest": ""}, "dest"),
        ({"source": "a", "dest": "b\n"}, "dest"),
        ({"source": "a", "dest": "a"}, "dest"),
        ({"source": "a", "dest": "b", "filter": ["node", "Ne", "x"]}, "filter[1]"),
        ({"source": "a", "dest": "b", "filter": False}, "filter"),
        ({"source": "a", "dest": "b", "guarantee": "at_most_once"}, "guarantee"),
        ({"source": "a", "dest": "b", "guarantee": None}, "guarantee"),
        ({"source": "a", "dest": "b", "start": "head"}, "from"),
        ({"source": "a", "dest": "b", "start": 0}, "from"),
    ],
)
def test_a_bad_creation_is_refused_by_its_field(fields: dict[str, Any], field: str) -> None:
    assert refused_field(**fields) == ("invalid_request", field)


def test_an_update_replaces_what_is_present_and_keeps_the_rest() -> None:
    current = resolve(source="a", dest="b", preserve_tag=False, filter="x", guarantee="exactly_once")
    updated = resolve(current, allow_cycle=True, preserve_tag=True)
    assert updated == RouterConfig(
        source="a", dest="b", filter=TagMatch("x", prefix=False), guarantee="exactly_once", allow_cycle=True
    )


def test_a_filter_that_is_no_match_takes_its_place_and_gives_it_back() -> None:
    wanted = ["data", "/total", "Ge", 10.5]
    current = resolve(source="a", dest="b", filter="x")
    filtered = resolve(current, filter=wanted)
    assert (filtered.filter, filtered.record_filter) == (None, parse_filter('["data","/total","Ge",10.5]'))
    assert router_from_wire(router_to_wire(filtered)) == filtered
    assert resolve(filtered, preserve_tag=False).record_filter == filtered.record_filter
    again = resolve(filtered, filter=["tag", "Glob", "x*"])
    assert (again.filter, again.record_filter) == (TagMatch("x", prefix=True), None)
    assert resolve(filtered, filter=None).record_filter is None


def test_a_filter_is_taken_away_by_null_and_not_by_silence() -> None:
    current = resolve(source="a", dest="b", filter="x")
    assert resolve(current).filter == TagMatch("x", prefix=False)
    assert resolve(current, filter=None).filter is None


def test_from_counts_at_creation_only_but_has_to_be_valid() -> None:
    current = resolve(source="a", dest="b", start="earliest")
    assert resolve(current, start="tail") == current
    assert refused_field(current, start="head") == ("invalid_request", "from")


@pytest.mark.parametrize(("field", "stays"), [("source", "a"), ("dest", "b")])
def test_an_update_may_repeat_the_topics_and_not_change_them(field: str, stays: str) -> None:
    current = resolve(source="a", dest="b")
    assert resolve(current, source="a", dest="b") == current
    with pytest.raises(ApiError) as caught:
        resolve(current, **{field: "c"})
    assert caught.value.code == "topic_exists_incompatible"
    assert caught.value.detail == {"field": field, "router": "r", field: stays}


def test_what_is_bad_in_itself_is_refused_before_what_does_not_fit() -> None:
    current = resolve(source="a", dest="b")
    assert refused_field(current, source="c", guarantee="never") == ("invalid_request", "guarantee")
    assert refused_field(current, source="c", dest="c") == ("invalid_request", "dest")
    assert refused_field(current, dest="a") == ("invalid_request", "dest")


@given(configs)
def test_a_config_comes_back_from_its_wire_form(config: RouterConfig) -> None:
    assert router_from_wire(cbor2.loads(cbor2.dumps(router_to_wire(config)))) == config


@given(configs, configs)
def test_an_update_with_every_field_keeps_topics_and_start_only(current: RouterConfig, other: RouterConfig) -> None:
    fields = router_to_wire(other) | {"source": current.source, "dest": current.dest}
    patch = {name: value for name, value in fields.items() if name not in ("from", "record_filter")}
    if other.record_filter is not None:
        patch["filter"] = other.record_filter
        fields["filter"] = None
    updated = resolve(current, start=fields["from"], **patch)
    assert router_to_wire(updated) == fields | {"from": current.start}


def test_a_missing_key_has_its_default_and_an_unknown_one_is_ignored() -> None:
    assert router_from_wire({"source": "a", "dest": "b", "later": 1}) == RouterConfig(source="a", dest="b")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"source": "a"},
        {"source": "a", "dest": 1},
        {"source": "a", "dest": "b", "preserve_node": 1},
        {"source": "a", "dest": "b", "filter": 7},
        {"source": "a", "dest": "b", "record_filter": 7},
        {"source": "a", "dest": "b", "record_filter": '["tag"]'},
        {"source": "a", "dest": "b", "filter": ["tag", "Glob", "x"]},
        {"source": "a", "dest": "b", "guarantee": "never"},
        {"source": "a", "dest": "b", "from": None},
    ],
)
def test_nonsense_does_not_come_back(value: Any) -> None:
    with pytest.raises(ValueError, match="router config"):
        router_from_wire(value)
