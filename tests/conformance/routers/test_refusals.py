"""Section 7: bodies of requests about routers, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.client import JSON_TYPE, Client, body_of, data_of, error_of, fresh_name, invalid
from tests.conformance.router_client import (
    FIELDS,
    assert_names_the_cycle,
    connect_topics,
    drop_router,
    no_such_router,
    no_such_topic,
    put_router,
    router_of,
    router_url,
    send_router,
)

# Bodies


WRONG_OF_FIELDS: dict[str, list[Any]] = {
    "source": [1, None, True, [], {}],
    "dest": [1, None, True, [], {}],
    "preserve_node": ["true", "yes", None, 2, []],
    "preserve_tag": ["true", "yes", None, 2, []],
    "create_dest": ["true", "yes", None, 2, []],
    "allow_cycle": ["true", "yes", None, 2, []],
    "guarantee": ["exactly-once", "at_most_once", "EXACTLY_ONCE", "", 1, None, True],
    "from": ["head", "Tail", "", 0, 5, None, True],
    "forwarded_total": [5],
    "cursor_seq": [5],
    "lag": [0],
    "colour": ["red"],
    "Source": ["a"],
}


@pytest.mark.parametrize("field", WRONG_OF_FIELDS)
def test_a_wrong_value_or_unknown_field_is_400_and_changes_nothing(
    client: Client, router: str, source: str, dest: str, field: str
) -> None:
    before = put_router(client, router, source, dest)
    other, first, last = fresh_name("router"), fresh_name(), fresh_name()
    for value in WRONG_OF_FIELDS[field]:
        invalid(client.put(router_url(other), json={"source": first, "dest": last, field: value}), field)
        invalid(client.put(router_url(router), json={"source": source, "dest": dest, field: value}), field)
    no_such_topic(client, first, last)
    no_such_router(client, other)
    found = router_of(client, router)
    assert {name: found[name] for name in FIELDS} == {name: before[name] for name in FIELDS}


BAD_FILTERS: list[Any] = [
    [],
    ["tag"],
    ["tag", "Eq"],
    ["tag", "Eq", 1],
    ["tag", "Eq", None],
    ["tag", "Eq", "x", "y"],
    ["tag", "Eq", ["x"]],
    ["tag", "eq", "x"],
    ["tag", "Ne", "x"],
    ["tag", "Regex", "x.*"],
    ["Tag", "Eq", "x"],
    ["node", "Glob", "x*"],
    ["$tag", "Eq", "x"],
    ["tag", "Glob", "x"],
    ["tag", "Glob", ""],
    ["tag", "Glob", "*x"],
    ["tag", "Glob", 5],
    [["tag", "Eq", "x"]],
    {"tag": "x"},
    1,
    True,
    1.5,
]


def test_a_bad_filter_is_400_and_creates_nothing(client: Client, router: str, source: str, dest: str) -> None:
    for wrong in BAD_FILTERS:
        invalid(send_router(client, router, source, dest, filter=wrong), "filter")
    no_such_topic(client, source, dest)
    no_such_router(client, router)


@pytest.mark.parametrize("field", ["source", "dest"])
def test_a_new_router_needs_both_its_ends(client: Client, router: str, topic: str, field: str) -> None:
    other = "dest" if field == "source" else "source"
    invalid(client.put(router_url(router), json={other: topic}), field)
    no_such_topic(client, topic)
    no_such_router(client, router)


BAD_BODIES = [b"", b"{", b"[]", b"null", b'"a"', b"1", b"{}", b'{"source":"a"', b"\xff", b"{}{}"]


def test_a_body_that_is_not_what_a_new_router_needs_is_400(client: Client, router: str) -> None:
    for content in BAD_BODIES:
        answer = client.put(router_url(router), content=content, headers={"content-type": JSON_TYPE})
        error_of(answer, 400, "invalid_request")
    no_such_router(client, router)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-ndjson"], ids=str)
def test_a_body_of_no_or_another_type_is_415(client: Client, router: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    content = b'{"source":"a-source","dest":"a-dest"}'
    error_of(client.put(router_url(router), content=content, headers=headers), 415, "unsupported_media_type")
    no_such_router(client, router)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/v0/routers/x", {"GET", "PUT", "DELETE"}),
        ("PATCH", "/v0/routers/x", {"GET", "PUT", "DELETE"}),
        ("POST", "/v0/routers", {"GET"}),
        ("PUT", "/v0/routers", {"GET"}),
        ("DELETE", "/v0/routers", {"GET"}),
    ],
)
def test_another_method_is_405_with_allow(client: Client, method: str, path: str, allowed: set[str]) -> None:
    answer = client.request(method, path)
    error_of(answer, 405, "method_not_allowed")
    assert {name.strip() for name in answer.headers["allow"].split(",")} - {"HEAD", "OPTIONS"} == allowed


def test_every_success_tells_its_time(client: Client, router: str, source: str, dest: str) -> None:
    answers = [
        send_router(client, router, source, dest),
        send_router(client, router, source, dest),
        client.get(router_url(router)),
        client.get("/v0/routers", params={"prefix": router}),
        client.delete(router_url(router)),
        client.delete(router_url(router)),
    ]
    for answer in answers:
        assert body_of(answer, 200, 201)["performance"]["server_total_ms"] >= 0


# What is refused


@pytest.mark.parametrize("allow_cycle", [False, True])
def test_a_topic_does_not_feed_itself(client: Client, router: str, topic: str, allow_cycle: bool) -> None:
    error_of(send_router(client, router, topic, topic, allow_cycle=allow_cycle), 400, "invalid_request")
    no_such_topic(client, topic)
    client.put_topic(topic)
    error_of(send_router(client, router, topic, topic, allow_cycle=allow_cycle), 400, "invalid_request")
    no_such_router(client, router)


@pytest.mark.parametrize("end", ["source", "dest", "both"])
def test_another_source_or_dest_is_409_and_creates_nothing(
    client: Client, router: str, source: str, dest: str, end: str
) -> None:
    put_router(client, router, source, dest)
    client.append(source, 1)
    other, another = fresh_name(), fresh_name()
    ends = {"source": (other, dest), "dest": (source, other), "both": (another, other)}[end]
    error_of(send_router(client, router, *ends), 409, "topic_exists_incompatible")
    no_such_topic(client, other, another)
    found = router_of(client, router)
    assert (found["source"], found["dest"]) == (source, dest)
    client.append(source, 2)
    assert data_of(client.read(dest)) == [1, 2]


@pytest.mark.parametrize("length", [2, 3, 7])
def test_a_cycle_is_refused_and_named(client: Client, router: str, length: int) -> None:
    topics = [fresh_name() for _ in range(length)]
    connect_topics(client, *topics)
    connect_topics(client, topics[0], fresh_name(), fresh_name())
    error = error_of(send_router(client, router, topics[-1], topics[0]), 409, "router_cycle")
    assert_names_the_cycle(error, topics)
    no_such_router(client, router)


@pytest.mark.parametrize("length", [2, 3, 7])
def test_who_allows_a_cycle_may_close_it(client: Client, router: str, length: int) -> None:
    topics = [fresh_name() for _ in range(length)]
    connect_topics(client, *topics)
    assert put_router(client, router, topics[-1], topics[0], allow_cycle=True)["allow_cycle"] is True
    # Another one on the same way would close it as well.
    second = fresh_name("router")
    error = error_of(send_router(client, second, topics[0], topics[1]), 409, "router_cycle")
    assert_names_the_cycle(error, topics)
    put_router(client, second, topics[0], topics[1], allow_cycle=True)


def test_what_does_not_close_a_cycle_is_no_cycle(client: Client) -> None:
    """All the ways of a tree lead away from its root."""
    root, left, right = fresh_name(), fresh_name(), fresh_name()
    connect_topics(client, root, left)
    connect_topics(client, root, right)
    connect_topics(client, left, fresh_name())
    connect_topics(client, right, fresh_name(), fresh_name())
    connect_topics(client, fresh_name(), root)


@pytest.mark.parametrize("how", ["router", "topic"])
def test_what_would_have_been_a_cycle_is_none_when_a_part_is_gone(client: Client, router: str, how: str) -> None:
    topics = [fresh_name() for _ in range(3)]
    routers = connect_topics(client, *topics)
    error_of(send_router(client, router, topics[2], topics[0]), 409, "router_cycle")
    if how == "router":
        drop_router(client, routers[0])
    else:
        client.delete_topic(topics[1])
    assert put_router(client, router, topics[2], topics[0])["created"] is True
    error = error_of(send_router(client, fresh_name("router"), topics[0], topics[2]), 409, "router_cycle")
    assert_names_the_cycle(error, [topics[2], topics[0]])


@pytest.mark.parametrize("first", [False, True], ids=["plain", "allowing"])
@pytest.mark.parametrize("second", [False, True], ids=["plain", "allowing"])
def test_a_second_source_is_refused_unless_both_routers_allow_cycles(
    client: Client, router: str, dest: str, first: bool, second: bool
) -> None:
    one, other = fresh_name(), fresh_name()
    connect_topics(client, one, dest, allow_cycle=first)
    answer = send_router(client, router, other, dest, allow_cycle=second)
    if first and second:
        assert body_of(answer, 201)["created"] is True
        return
    error = error_of(answer, 409, "topic_exists_incompatible")
    assert error["detail"]["reason"] == "router_dest_fan_in"
    no_such_router(client, router)
    no_such_topic(client, other)


def test_a_third_source_needs_all_three_to_allow_cycles(client: Client, dest: str, router: str) -> None:
    for _ in range(2):
        connect_topics(client, fresh_name(), dest, allow_cycle=True)
    error = error_of(send_router(client, router, fresh_name(), dest), 409, "topic_exists_incompatible")
    assert error["detail"]["reason"] == "router_dest_fan_in"
    put_router(client, router, fresh_name(), dest, allow_cycle=True)


def test_a_router_that_comes_to_allow_cycles_lets_a_second_source_in(client: Client, dest: str, router: str) -> None:
    source = fresh_name()
    (first,) = connect_topics(client, source, dest)
    error_of(send_router(client, router, fresh_name(), dest, allow_cycle=True), 409, "topic_exists_incompatible")
    put_router(client, first, source, dest, allow_cycle=True)
    put_router(client, router, fresh_name(), dest, allow_cycle=True)


@pytest.mark.parametrize("how", ["router", "topic"])
def test_a_dest_whose_source_is_gone_takes_another(client: Client, dest: str, router: str, how: str) -> None:
    source, other = fresh_name(), fresh_name()
    (first,) = connect_topics(client, source, dest)
    error_of(send_router(client, router, other, dest), 409, "topic_exists_incompatible")
    if how == "router":
        drop_router(client, first)
    else:
        client.delete_topic(source)
    put_router(client, router, other, dest)
    client.append(other, 1)
    assert data_of(client.read(dest)) == [1]


def test_a_refused_router_forwards_nothing(client: Client, router: str, source: str, dest: str) -> None:
    connect_topics(client, source, dest)
    other = fresh_name()
    client.put_topic(other)
    error_of(send_router(client, router, other, dest), 409, "topic_exists_incompatible")
    error_of(send_router(client, router, dest, source), 409, "router_cycle")
    client.append(other, "other")
    client.append(dest, "direct")
    client.append(source, "source")
    assert data_of(client.read(dest)) == ["direct", "source"]
    assert data_of(client.read(source)) == ["source"]
