"""The router graph: what is refused, in which order reads catch up, and what it costs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import ApiError
from topics.routing.router_graph import RouterGraph

Edge = tuple[str, str, bool]


def graph(**edges: str | Edge) -> RouterGraph:
    """Routers by name; "ab" is one from a to b without `allow_cycle`."""
    it = RouterGraph()
    for router, edge in edges.items():
        source, dest, allow_cycle = edge if isinstance(edge, tuple) else (*edge, False)
        it.add(router, source, dest, allow_cycle)
    return it


def refusal(
    it: RouterGraph, router: str, source: str, dest: str, allow_cycle: bool = False
) -> tuple[str, dict[str, Any]]:
    with pytest.raises(ApiError) as caught:
        it.check(router, source, dest, allow_cycle)
    return caught.value.code, caught.value.detail


def test_a_topic_knows_its_routers_sorted_by_name() -> None:
    it = graph(z="ab", y="ab", x="bc", w="bd")
    assert it.into("b") == ["y", "z"]
    assert it.out_of("b") == ["w", "x"]
    assert it.routers_of("b") == ["w", "x", "y", "z"]
    assert it.routers_of("nowhere") == it.into("nowhere") == it.out_of("nowhere") == []


def test_what_a_topic_answers_is_the_callers_to_keep() -> None:
    it = graph(x="ab")
    it.into("b").clear()
    it.out_of("a").clear()
    assert it.routers_of("a") == it.routers_of("b") == ["x"]


def test_a_router_that_is_removed_leaves_nothing() -> None:
    it = graph(x="ab", y="bc")
    it.remove("x")
    it.remove("x")
    assert ("x" in it, "y" in it, len(it)) == (False, True, 1)
    assert it.routers_of("a") == []
    assert it.upstream_first("c") == ["b", "c"]
    it.check("z", "c", "a", False)


def test_a_router_that_is_added_again_has_its_new_edge_only() -> None:
    it = graph(x="ab")
    it.add("x", "c", "d", True)
    assert (it.routers_of("a"), it.out_of("c"), it.into("d"), len(it)) == ([], ["x"], ["x"], 1)


def test_a_router_that_would_close_a_cycle_is_refused_with_it() -> None:
    it = graph(x="ab", y="bc")
    assert refusal(it, "z", "c", "a") == ("router_cycle", {"router": "z", "cycle": ["c", "a", "b", "c"]})
    assert refusal(it, "z", "b", "a") == ("router_cycle", {"router": "z", "cycle": ["b", "a", "b"]})
    assert "z" not in it


def test_a_router_with_allow_cycle_may_close_one() -> None:
    graph(x="ab", y="bc").check("z", "c", "a", True)


def test_of_several_cycles_the_shortest_is_shown_and_always_the_same() -> None:
    edges = {"p": "ab", "q": "bd", "r": "ac", "s": "cd", "t": "ae", "u": "ef", "v": "fd"}
    forward, backward = graph(**edges), graph(**dict(reversed(edges.items())))
    assert refusal(forward, "z", "d", "a")[1]["cycle"] == ["d", "a", "b", "d"]
    assert refusal(backward, "z", "d", "a")[1]["cycle"] == ["d", "a", "b", "d"]


def test_a_dest_takes_any_number_of_routers_from_one_source() -> None:
    graph(x="ab", y="ab").check("z", "a", "b", False)


def test_a_second_source_is_refused_unless_both_allow_cycles() -> None:
    strict, lenient = graph(x="ab"), graph(x=("a", "b", True))
    detail = {"reason": "router_dest_fan_in", "router": "z", "dest": "b", "routers": ["x"]}
    assert refusal(strict, "z", "c", "b", False) == ("topic_exists_incompatible", detail)
    assert refusal(strict, "z", "c", "b", True) == ("topic_exists_incompatible", detail)
    assert refusal(lenient, "z", "c", "b", False) == ("topic_exists_incompatible", detail)
    lenient.check("z", "c", "b", True)


def test_a_fan_in_is_refused_with_the_routers_in_the_way() -> None:
    it = graph(y=("a", "b", True), x=("c", "b", False), w=("d", "b", True))
    assert refusal(it, "z", "d", "b", False)[1]["routers"] == ["x", "y"]
    assert refusal(it, "z", "d", "b", True)[1]["routers"] == ["x"]


def test_the_cycle_is_reported_before_the_fan_in() -> None:
    it = graph(x="ab", y="ca")
    assert refusal(it, "z", "b", "a")[0] == "router_cycle"


def test_a_router_is_not_in_its_own_way() -> None:
    it = graph(x="ab", y="bc")
    it.check("x", "a", "b", True)
    it.check("y", "d", "c", False)
    assert refusal(it, "y", "b", "a")[1]["cycle"] == ["b", "a", "b"]


def test_a_router_on_a_cycle_cannot_give_up_the_allow_cycle_it_stands_on() -> None:
    it = graph(x="ab", y=("b", "a", True))
    assert refusal(it, "y", "b", "a", False) == ("router_cycle", {"router": "y", "cycle": ["b", "a", "b"]})
    it = graph(x=("a", "b", True), y=("c", "b", True))
    assert refusal(it, "y", "c", "b", False)[1]["reason"] == "router_dest_fan_in"


def test_what_was_accepted_once_may_be_said_again() -> None:
    it = graph(x="ab", y=("b", "a", True))
    it.check("x", "a", "b", False)
    it.check("y", "b", "a", True)
    it.check("x", "a", "b", True)


def test_a_read_catches_up_upstream_first() -> None:
    it = graph(x="ab", y="bd", w="ac", v="cd", u="de", t="fg")
    assert it.upstream_first("d") == ["a", "c", "b", "d"]
    assert it.upstream_first("a") == ["a"]
    assert it.upstream_first("nowhere") == ["nowhere"]


def test_a_read_within_a_cycle_visits_each_topic_once_and_its_own_last() -> None:
    it = graph(x="ab", y="bc", z=("c", "a", True))
    assert it.upstream_first("c") == ["a", "b", "c"]
    assert it.upstream_first("a") == ["b", "c", "a"]


@pytest.mark.parametrize("backward", [False, True])
def test_a_chain_of_ten_thousand_routers_is_built_searched_and_ordered(backward: bool) -> None:
    n = 10_000
    names = [f"t{i:05}" for i in range(n + 1)]
    it = RouterGraph()
    for i in reversed(range(n)) if backward else range(n):
        it.check(f"r{i}", names[i], names[i + 1], False)
        it.add(f"r{i}", names[i], names[i + 1], False)
    assert it.upstream_first(names[-1]) == names
    assert refusal(it, "z", names[-1], names[0])[1]["cycle"] == [names[-1], *names]


# --- against naive searches ---------------------------------------------------------------------------------------

topics = st.sampled_from("abcdef")
edges = st.tuples(topics, topics, st.booleans()).filter(lambda edge: edge[0] != edge[1])
routers = st.sampled_from([f"r{i}" for i in range(9)])
changes = st.lists(st.tuples(routers, st.none() | edges), max_size=20)


def build(steps: list[tuple[str, Edge | None]]) -> tuple[RouterGraph, dict[str, Edge]]:
    it, model = RouterGraph(), dict[str, Edge]()
    for router, edge in steps:
        if edge is None:
            it.remove(router)
            model.pop(router, None)
        else:
            it.add(router, *edge)
            model[router] = edge
    return it, model


def distances(model: dict[str, Edge], start: str) -> dict[str, int]:
    """Routers on the shortest way from `start` to each topic that can be reached."""
    found = {start: 0}
    for _ in model:
        for source, dest, _allow in model.values():
            if source in found:
                found[dest] = min(found.get(dest, 99), found[source] + 1)
    return found


@given(changes)
def test_topics_know_the_routers_that_were_added_and_not_removed(steps: list[tuple[str, Edge | None]]) -> None:
    it, model = build(steps)
    for topic in "abcdef":
        assert it.into(topic) == sorted(router for router, edge in model.items() if edge[1] == topic)
        assert it.out_of(topic) == sorted(router for router, edge in model.items() if edge[0] == topic)
        assert it.routers_of(topic) == sorted(router for router, edge in model.items() if topic in edge[:2])
    # Nothing is left behind by what is gone.
    anew = graph(**model)
    assert (it._edges, it._into, it._out_of) == (anew._edges, anew._into, anew._out_of)


@given(changes, routers, edges)
def test_check_refuses_what_the_rules_refuse(steps: list[tuple[str, Edge | None]], router: str, edge: Edge) -> None:
    it, model = build(steps)
    source, dest, allow_cycle = edge
    unchanged = model.pop(router, None) == edge
    way_back = distances(model, dest).get(source)
    strangers = {name: other for name, other in model.items() if other[1] == dest and other[0] != source}
    in_the_way = sorted(name for name, other in strangers.items() if not (allow_cycle and other[2]))
    if unchanged or ((allow_cycle or way_back is None) and not in_the_way):
        it.check(router, source, dest, allow_cycle)
        return
    code, detail = refusal(it, router, source, dest, allow_cycle)
    if allow_cycle or way_back is None:
        expected = {"reason": "router_dest_fan_in", "router": router, "dest": dest, "routers": in_the_way}
        assert (code, detail) == ("topic_exists_incompatible", expected)
        return
    cycle = detail["cycle"]
    assert (code, detail["router"], cycle[:2], cycle[-1]) == ("router_cycle", router, [source, dest], source)
    assert len(cycle) == way_back + 2
    assert set(pairwise(cycle[1:])) <= {other[:2] for other in model.values()}


@given(changes, topics)
def test_sources_come_before_their_dests_but_for_cycles(steps: list[tuple[str, Edge | None]], topic: str) -> None:
    it, model = build(steps)
    order = it.upstream_first(topic)
    assert sorted(order) == [start for start in "abcdef" if topic in distances(model, start)]
    assert order[-1] == topic
    for source, dest, _allow in model.values():
        if dest in order and source not in distances(model, dest):
            assert order.index(source) < order.index(dest)


@given(changes)
def test_answers_depend_on_the_graph_alone(steps: list[tuple[str, Edge | None]]) -> None:
    it, model = build(steps)
    other = graph(**dict(reversed(model.items())))
    for topic in "abcdef":
        assert it.upstream_first(topic) == other.upstream_first(topic)
