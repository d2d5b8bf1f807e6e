"""Section 7: routers are created, looked at, listed, refused and deleted. What they carry is in `test_forwarding`."""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.conformance.client import (
    JSON_TYPE,
    Client,
    Daemon,
    body_of,
    data_of,
    error_of,
    fresh_name,
    invalid,
    running,
    until,
)
from tests.conformance.test_config import DEFAULTS as TOPIC_DEFAULTS

DEFAULTS: dict[str, Any] = {
    "preserve_node": True,
    "preserve_tag": True,
    "create_dest": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
    "from": "tail",
}
FIELDS = {"source", "dest", *DEFAULTS}
LISTED = {"router", "forwarded_total", "cursor_seq", "lag", *FIELDS}


def router_url(router: str) -> str:
    return "/v0/routers/" + quote(router, safe="")


def send_router(client: Client, router: str, source: str, dest: str, **fields: Any) -> httpx.Response:
    """PUT a router; `begin` is for `from`, which is not a name in Python."""
    if "begin" in fields:
        fields["from"] = fields.pop("begin")
    return client.put(router_url(router), json={"source": source, "dest": dest, **fields})


def put_router(client: Client, router: str, source: str, dest: str, **fields: Any) -> Any:
    return body_of(send_router(client, router, source, dest, **fields), 200, 201)


def connect_topics(client: Client, *topics: str, **fields: Any) -> list[str]:
    """A router from each of the topics to the next one, under a name of its own."""
    pairs = list(itertools.pairwise(topics))
    names = [fresh_name("router") for _ in pairs]
    for name, (source, dest) in zip(names, pairs, strict=True):
        assert put_router(client, name, source, dest, **fields)["created"] is True
    return names


def router_of(client: Client, router: str) -> Any:
    return body_of(client.get(router_url(router)))


def drop_router(client: Client, router: str) -> bool:
    answer = body_of(client.delete(router_url(router)))
    assert set(answer) == {"router", "deleted", "performance"}
    assert answer["router"] == router
    deleted: bool = answer["deleted"]
    return deleted


def listed(client: Client, **query: Any) -> list[Any]:
    """The routers of the only page."""
    body = body_of(client.get("/v0/routers", params={"page_size": 1000, **query}))
    assert set(body) == {"routers", "performance"}
    routers: list[Any] = body["routers"]
    return routers


def no_such_router(client: Client, router: str) -> None:
    error_of(client.get(router_url(router)), 404, "router_not_found")
    assert router not in [entry["router"] for entry in listed(client, prefix=router)]


def no_such_topic(client: Client, *topics: str) -> None:
    for topic in topics:
        error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def metric(client: Client, name: str, **labels: str) -> float | None:
    """The value of a figure, None where there is none with these labels."""
    found = body_of(client.get("/v0/metrics", headers={"accept": JSON_TYPE})).get("topics_" + name, [])
    if not isinstance(found, list):
        return float(found)
    return next((float(entry["value"]) for entry in found if entry["labels"] == labels), None)


@pytest.fixture
def source() -> str:
    """A name that no topic has yet."""
    return fresh_name("source")


@pytest.fixture
def dest() -> str:
    """A name that no topic has yet."""
    return fresh_name("dest")


@pytest.fixture
def router() -> str:
    """A name that no router has yet."""
    return fresh_name("router")


# Creating and updating


def test_a_router_is_created_with_201_and_every_field(client: Client, router: str, source: str, dest: str) -> None:
    made = body_of(send_router(client, router, source, dest), 201)
    assert set(made) >= {"router", "created", "performance", *FIELDS}
    expected = DEFAULTS | {"router": router, "created": True, "source": source, "dest": dest}
    assert {name: made[name] for name in expected} == expected


OTHERS: list[dict[str, Any]] = [
    {"preserve_node": False},
    {"preserve_tag": False},
    {"create_dest": False},
    {"filter": ["tag", "Eq", "x"]},
    {"filter": ["tag", "Eq", "x*"]},
    {"filter": ["tag", "Glob", "x*"]},
    {"filter": ["tag", "Glob", "*"]},
    {"filter": ["tag", "Glob", "x*y*"]},
    {"allow_cycle": True},
    {"guarantee": "exactly_once"},
    {"from": "earliest"},
]


def test_a_field_is_set_and_echoed_and_the_others_keep_their_defaults(client: Client, source: str) -> None:
    for given in OTHERS:
        router, dest = fresh_name("router"), fresh_name("dest")
        client.put_topic(dest)
        expected = DEFAULTS | given | {"source": source, "dest": dest}
        made = body_of(send_router(client, router, source, dest, **given), 201)
        assert {name: made[name] for name in FIELDS} == expected
        found = router_of(client, router)
        assert {name: found[name] for name in FIELDS} == expected


def test_a_filter_may_be_a_bare_string(client: Client, source: str) -> None:
    for tag in ("x", "x*", "*", "é", "Eq"):
        router, dest = fresh_name("router"), fresh_name("dest")
        made = body_of(send_router(client, router, source, dest, filter=tag), 201)
        assert made["filter"] in (tag, ["tag", "Eq", tag])
        assert body_of(send_router(client, router, source, dest, filter=tag), 200)["created"] is False


def test_the_answer_to_a_get_has_every_field_and_the_figures(
    client: Client, router: str, source: str, dest: str
) -> None:
    put_router(client, router, source, dest)
    found = router_of(client, router)
    assert set(found) == LISTED | {"performance"}
    assert (found["router"], found["source"], found["dest"]) == (router, source, dest)
    assert (found["forwarded_total"], found["cursor_seq"], found["lag"]) == (0, 0, 0)
    assert isinstance(found["performance"]["server_total_ms"], int | float)


def test_an_identical_put_changes_nothing(client: Client, router: str, source: str, dest: str) -> None:
    fields: dict[str, Any] = {"filter": "a", "preserve_tag": False, "guarantee": "exactly_once", "begin": "earliest"}
    made = body_of(send_router(client, router, source, dest, **fields), 201)
    client.tagged(source, "a", "b", "a")
    assert data_of(client.read(dest)) == ["a", "a"]
    until(lambda: bool(router_of(client, router)["lag"] == 0))
    before = router_of(client, router)
    for _ in range(3):
        again = body_of(send_router(client, router, source, dest, **fields), 200)
        assert again["created"] is False
        assert {name: again[name] for name in FIELDS} == {name: made[name] for name in FIELDS}
        assert set(again) >= {"router", "created", "performance", *FIELDS}
    after = router_of(client, router)
    assert {name: after[name] for name in LISTED} == {name: before[name] for name in LISTED}
    assert data_of(client.read(dest)) == ["a", "a"]


def test_an_update_replaces_what_it_names_and_nothing_else(client: Client, source: str) -> None:
    for given in OTHERS:
        if "from" in given:
            continue
        router, dest = fresh_name("router"), fresh_name("dest")
        put_router(client, router, source, dest, preserve_node=False, filter="before", allow_cycle=True)
        had = {name: value for name, value in router_of(client, router).items() if name in FIELDS}
        updated = body_of(send_router(client, router, source, dest, **given), 200)
        assert updated["created"] is False
        assert {name: updated[name] for name in FIELDS} == had | given
        found = router_of(client, router)
        assert {name: found[name] for name in FIELDS} == had | given


def test_an_update_need_not_name_source_and_dest(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest)
    updated = body_of(client.put(router_url(router), json={"preserve_tag": False}), 200)
    assert (updated["source"], updated["dest"], updated["preserve_tag"]) == (source, dest, False)
    found = router_of(client, router)
    assert (found["source"], found["dest"], found["preserve_tag"]) == (source, dest, False)


def test_a_filter_can_be_taken_back(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest, filter="x")
    assert put_router(client, router, source, dest, filter=None)["filter"] is None
    client.append(source, 1)
    assert data_of(client.read(dest)) == [1]


def test_an_update_keeps_the_cursor_and_the_total(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest)
    client.append(source, 1, 2, 3)
    assert data_of(client.read(dest)) == [1, 2, 3]
    for fields in ({"filter": "x"}, {"preserve_node": False}, {"begin": "earliest"}, {"guarantee": "exactly_once"}):
        body_of(send_router(client, router, source, dest, **fields), 200)
        found = router_of(client, router)
        assert (found["forwarded_total"], found["cursor_seq"], found["lag"]) == (3, 3, 0)
    assert data_of(client.read(dest)) == [1, 2, 3]


def test_missing_topics_are_created_with_the_defaults(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest)
    for topic in (source, dest):
        state = client.state(topic)
        assert (state["config"], state["head_seq"]) == (TOPIC_DEFAULTS, 0)


def test_topics_that_are_there_stay_as_they_are(client: Client, router: str, source: str, dest: str) -> None:
    client.put_topic(source, durability="fsync", cap_records=5)
    client.put_topic(dest, durability="memory", ttl_ms=10**9, type="queue")
    client.append(source, 1, 2)
    client.append(dest, "a")
    before = [client.state(topic, touch="false") for topic in (source, dest)]
    put_router(client, router, source, dest)
    after = [client.state(topic, touch="false") for topic in (source, dest)]
    for name in ("config", "epoch", "head_seq", "earliest_seq", "count", "bytes", "last_write_ts"):
        assert [state[name] for state in after] == [state[name] for state in before]


def test_a_dest_that_is_not_to_be_created_has_to_be_there(client: Client, router: str, source: str, dest: str) -> None:
    error = error_of(send_router(client, router, source, dest, create_dest=False), 404, "topic_not_found")
    assert error["detail"]["topic"] == dest
    no_such_topic(client, source, dest)
    no_such_router(client, router)
    client.put_topic(dest)
    assert put_router(client, router, source, dest, create_dest=False)["create_dest"] is False
    assert client.append(source, 1)["created"] is False
    assert data_of(client.read(dest)) == [1]


def test_a_router_and_a_topic_may_have_the_same_name(client: Client, source: str, dest: str) -> None:
    put_router(client, source, source, dest)
    client.append(source, 1)
    assert data_of(client.read(dest)) == [1]
    assert drop_router(client, source)
    assert data_of(client.read(source)) == [1]


def test_two_routers_may_have_the_same_source_and_dest(client: Client, source: str, dest: str) -> None:
    first, second = fresh_name("router"), fresh_name("router")
    put_router(client, first, source, dest, filter="a")
    put_router(client, second, source, dest, filter="b", preserve_tag=False)
    client.tagged(source, "a", "b", "c", "a", "b")
    assert sorted(data_of(client.read(dest))) == ["a", "a", "b", "b"]
    assert [router_of(client, name)["forwarded_total"] for name in (first, second)] == [2, 2]


@pytest.mark.parametrize(("begin", "cursor"), [("tail", 3), ("earliest", 0), (None, 3)], ids=str)
def test_where_a_router_begins_counts_at_its_creation_only(
    client: Client, router: str, source: str, dest: str, begin: str | None, cursor: int
) -> None:
    client.append(source, 1, 2, 3)
    put_router(client, router, source, dest, **({} if begin is None else {"begin": begin}))
    assert router_of(client, router)["cursor_seq"] >= cursor
    expected = [1, 2, 3] if begin == "earliest" else []
    assert data_of(client.read(dest)) == expected
    for other in ("tail", "earliest"):
        body_of(send_router(client, router, source, dest, begin=other), 200)
        found = router_of(client, router)
        assert (found["cursor_seq"], found["lag"], found["forwarded_total"]) == (3, 0, len(expected))
    client.append(source, 4)
    assert data_of(client.read(dest)) == [*expected, 4]


# Deleting


def test_a_deleted_router_is_gone(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest)
    assert drop_router(client, router) is True
    no_such_router(client, router)
    assert drop_router(client, router) is False
    client.append(source, 1)
    assert client.read(dest)["head_seq"] == 0


def test_deleting_a_router_that_never_was_is_no_error(client: Client, router: str) -> None:
    assert drop_router(client, router) is False
    no_such_router(client, router)


def test_a_router_that_is_made_anew_begins_anew(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest)
    client.append(source, 1, 2)
    assert data_of(client.read(dest)) == [1, 2]
    drop_router(client, router)
    client.append(source, 3)
    assert body_of(send_router(client, router, source, dest), 201)["created"] is True
    found = router_of(client, router)
    assert (found["forwarded_total"], found["cursor_seq"], found["lag"]) == (0, 3, 0)
    client.append(source, 4)
    assert data_of(client.read(dest)) == [1, 2, 4]
    assert router_of(client, router)["forwarded_total"] == 1


@pytest.mark.parametrize("end", ["source", "dest"])
def test_deleting_a_topic_takes_its_routers(client: Client, topic: str, end: str) -> None:
    others = [fresh_name() for _ in range(3)]
    routers = [fresh_name("router") for _ in others]
    for name, other in zip(routers, others, strict=True):
        if end == "source":
            put_router(client, name, topic, other)
        else:
            put_router(client, name, other, topic, allow_cycle=True)
    apart = connect_topics(client, fresh_name(), fresh_name())
    answer = client.delete_topic(topic)
    assert answer["deleted"] is True
    assert sorted(answer["routers_removed"]) == sorted(routers)
    for name in routers:
        no_such_router(client, name)
        assert drop_router(client, name) is False
    for other in others:
        client.append(other, 1)
        assert data_of(client.read(other)) == [1]
    router_of(client, *apart)
    no_such_topic(client, topic)


def test_deleting_a_topic_in_the_middle_takes_the_routers_on_both_sides(client: Client) -> None:
    first, middle, last = fresh_name(), fresh_name(), fresh_name()
    routers = connect_topics(client, first, middle, last)
    client.append(first, 1)
    assert data_of(client.read(last)) == [1]
    assert sorted(client.delete_topic(middle)["routers_removed"]) == sorted(routers)
    client.append(first, 2)
    assert data_of(client.read(first)) == [1, 2]
    assert data_of(client.read(last)) == [1]
    assert listed(client, source=first) == listed(client, dest=last) == []


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_topic_that_is_made_anew_has_no_routers(
    client: Client, router: str, source: str, dest: str, end: str
) -> None:
    put_router(client, router, source, dest)
    client.append(source, "old")
    assert data_of(client.read(dest)) == ["old"]
    gone = source if end == "source" else dest
    assert client.delete_topic(gone)["routers_removed"] == [router]
    client.append(source, "new")
    client.append(dest, "direct")
    assert data_of(client.read(dest)) == (["old", "direct"] if end == "source" else ["direct"])
    no_such_router(client, router)
    assert body_of(send_router(client, router, source, dest), 201)["created"] is True


def test_a_topic_that_has_to_be_empty_and_is_not_keeps_its_routers(
    client: Client, router: str, source: str, dest: str
) -> None:
    put_router(client, router, source, dest)
    client.append(source, 1)
    for topic in (source, dest):
        assert client.state(topic)["count"] == 1
        error_of(client.delete(f"/v0/topics/{topic}?if_empty=true"), 409, "topic_not_empty")
    client.append(source, 2)
    assert data_of(client.read(dest)) == [1, 2]


def test_a_topic_without_routers_takes_none(client: Client, source: str, dest: str) -> None:
    (router,) = connect_topics(client, source, dest)
    drop_router(client, router)
    assert client.delete_topic(source)["routers_removed"] == []
    assert client.delete_topic(source)["routers_removed"] == []
    assert client.delete_topic(dest)["routers_removed"] == []


# Names


GOOD_NAMES = ["a>b", "0", "Z>", "a->b", "a:b>c.d_e-f", "x" * 255, "x" + ">" * 254, "a>>b", "1>2>3"]


def test_a_good_name_is_taken_as_it_is(client: Client) -> None:
    for name in GOOD_NAMES:
        source, dest = fresh_name(), fresh_name()
        assert put_router(client, name, source, dest)["router"] == name
        assert router_of(client, name)["router"] == name
        assert [entry["router"] for entry in listed(client, source=source)] == [name]
        client.append(source, 1)
        assert data_of(client.read(dest)) == [1]
        assert client.delete_topic(source)["routers_removed"] == [name]


def test_a_name_may_come_without_escapes(client: Client, source: str, dest: str) -> None:
    body_of(client.put(f"/v0/routers/{source}:{dest}", json={"source": source, "dest": dest}), 201)
    assert router_of(client, f"{source}:{dest}")["dest"] == dest


def test_names_are_case_sensitive(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest)
    no_such_router(client, router.upper())
    assert drop_router(client, router.upper()) is False
    assert body_of(send_router(client, router.upper(), source, fresh_name()), 201)["created"] is True
    assert router_of(client, router)["dest"] == dest


BAD_NAMES = [
    ">a",
    "-a",
    ".a",
    "_a",
    ":a",
    "a" * 256,
    "a b",
    "a\n",
    "é",
    "aé",
    "a<b",
    "a@",
    "a*",
    "a%",
    "a,b",
    "a~",
    "\u0661",
]


def test_a_bad_name_is_400(client: Client, source: str, dest: str) -> None:
    for name in BAD_NAMES:
        invalid(send_router(client, name, source, dest))
        invalid(client.get(router_url(name)))
        invalid(client.delete(router_url(name)))
    no_such_topic(client, source, dest)


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_bad_name_of_a_topic_is_400(client: Client, router: str, end: str) -> None:
    other = fresh_name()
    for name in ["", "a>b", *BAD_NAMES]:
        ends = {"source": other, "dest": other} | {end: name}
        invalid(client.put(router_url(router), json=ends), end)
    no_such_topic(client, other)
    no_such_router(client, router)


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


def assert_names_the_cycle(error: Any, topics: list[str]) -> None:
    """The detail goes along the topics, in their order and once around, from wherever it begins."""
    *cycle, end = error["detail"]["cycle"]
    assert cycle[0] == end
    assert len(cycle) == len(topics)
    start = topics.index(cycle[0])
    assert cycle == topics[start:] + topics[:start]


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


# Lists


def pages(client: Client, **query: Any) -> list[list[str]]:
    """The names on each page."""
    found: list[list[str]] = []
    while True:
        body = body_of(client.get("/v0/routers", params=query))
        assert set(body) - {"next_cursor"} == {"routers", "performance"}
        found.append([entry["router"] for entry in body["routers"]])
        if "next_cursor" not in body:
            return found
        assert re.fullmatch("[A-Za-z0-9_-]+=*", body["next_cursor"])
        query["cursor"] = body["next_cursor"]


class Five:
    """Five routers of two sources to three dests."""

    def __init__(self, client: Client) -> None:
        self.prefix = fresh_name("list") + ":"
        self.names = [self.prefix + name for name in ("B", "a", "a0", "a>b", "z")]
        self.sources = [fresh_name("source") for _ in range(2)]
        self.dests = [fresh_name("dest") for _ in range(3)]
        self.ends = [(0, 0), (1, 1), (0, 2), (0, 0), (1, 1)]
        for name, (source, dest) in reversed(list(zip(self.names, self.ends, strict=True))):
            put_router(client, name, self.sources[source], self.dests[dest])

    def those(self, condition: Callable[[int, int], bool]) -> list[str]:
        return [name for name, ends in zip(self.names, self.ends, strict=True) if condition(*ends)]


@pytest.fixture
def five(client: Client) -> Five:
    return Five(client)


def test_a_list_is_in_the_order_of_names(client: Client, five: Five) -> None:
    assert pages(client, prefix=five.prefix) == [five.names]
    assert pages(client, prefix=five.prefix + "a") == [five.names[1:4]]
    assert pages(client, prefix=five.prefix + "a>") == [five.names[3:4]]
    assert pages(client, prefix=five.prefix + "none") == [[]]
    assert set(five.names) <= {name for page in pages(client, page_size=1000) for name in page}


def test_a_list_is_narrowed_by_source_and_dest(client: Client, five: Five) -> None:
    for number, source in enumerate(five.sources):
        assert pages(client, source=source) == [five.those(lambda at, _, n=number: at == n)]  # type: ignore[misc]
    for number, dest in enumerate(five.dests):
        assert pages(client, dest=dest) == [five.those(lambda _, at, n=number: at == n)]  # type: ignore[misc]
    assert pages(client, source=five.sources[0], dest=five.dests[0]) == [[five.names[0], five.names[3]]]
    assert pages(client, source=five.sources[0], dest=five.dests[1]) == [[]]
    assert pages(client, prefix=five.prefix + "a", source=five.sources[0]) == [five.names[2:4]]
    assert pages(client, source=five.dests[0]) == pages(client, dest=five.sources[0]) == [[]]
    assert pages(client, source="no-such-topic") == [[]]


def test_a_narrowed_list_comes_in_pages_too(client: Client, five: Five) -> None:
    assert pages(client, source=five.sources[0], page_size=2) == [[five.names[0], five.names[2]], [five.names[3]]]
    assert pages(client, dest=five.dests[1], page_size=1) == [[five.names[1]], [five.names[4]]]


def test_an_entry_of_a_list_is_the_answer_to_a_get(client: Client, router: str, source: str, dest: str) -> None:
    put_router(client, router, source, dest, filter=["tag", "Glob", "a*"], preserve_node=False, allow_cycle=True)
    client.tagged(source, "a", "b")
    assert data_of(client.read(dest)) == ["a"]
    until(lambda: bool(router_of(client, router)["lag"] == 0))
    (entry,) = listed(client, source=source)
    assert set(entry) - {"performance"} == LISTED
    found = router_of(client, router)
    assert {name: entry[name] for name in LISTED} == {name: found[name] for name in LISTED}


@pytest.mark.parametrize(("size", "lengths"), [(1, [1] * 5), (2, [2, 2, 1]), (4, [4, 1]), (5, [5]), (6, [5])])
def test_a_list_comes_in_pages(client: Client, five: Five, size: int, lengths: list[int]) -> None:
    found = pages(client, prefix=five.prefix, page_size=size)
    assert [len(page) for page in found] == lengths
    assert [name for page in found for name in page] == five.names


def test_a_cursor_is_valid_after_its_name_is_gone(client: Client, five: Five) -> None:
    query: dict[str, Any] = {"prefix": five.prefix, "page_size": 2}
    cursor = body_of(client.get("/v0/routers", params=query))["next_cursor"]
    for name in five.names[1:3]:
        drop_router(client, name)
    assert pages(client, **query, cursor=cursor) == [five.names[3:]]


def test_a_corrupt_cursor_is_400(client: Client) -> None:
    for cursor in ["!", "a b", "*", "\x00", "é", "_____w", "//79"]:
        invalid(client.get("/v0/routers", params={"cursor": cursor}), "cursor")


def test_the_page_size_is_clamped(client: Client, five: Five) -> None:
    for size in (0, -1, -1000):
        assert [len(page) for page in pages(client, prefix=five.prefix, page_size=size)] == [1] * 5
    assert pages(client, prefix=five.prefix, page_size=10**9) == [five.names]
    for text in ("x", "1.5", "true", ""):
        invalid(client.get("/v0/routers", params={"page_size": text}), "page_size")


# Figures


def test_routers_have_figures(client: Client, router: str, source: str, dest: str) -> None:
    before = metric(client, "routers")
    assert before is not None
    put_router(client, router, source, dest)
    assert metric(client, "routers") == before + 1
    client.append(source, 1, 2, 3)
    assert data_of(client.read(dest)) == [1, 2, 3]
    until(lambda: metric(client, "router_lag", router=router) == 0)
    assert metric(client, "router_forwarded_total", router=router) == 3
    drop_router(client, router)
    assert metric(client, "routers") == before
    assert metric(client, "router_lag", router=router) is None
    assert metric(client, "router_forwarded_total", router=router) is None


# Caps


def test_how_many_routers_there_are_is_a_setting(tmp_path: Path) -> None:
    with running(tmp_path, max_routers=2) as client:
        connect_topics(client, "a", "b", "c")
        refused = send_router(client, "third", "new-source", "new-dest")
        error = error_of(refused, 429, "throttled")
        assert (error["detail"]["limit"], error["detail"]["max"]) == ("max_routers", 2)
        assert int(refused.headers["retry-after"]) >= 0
        no_such_router(client, "third")
        no_such_topic(client, "new-source", "new-dest")
        (entry, _) = listed(client)
        # What exists may be updated.
        body_of(send_router(client, entry["router"], entry["source"], entry["dest"], filter="x"), 200)
        drop_router(client, entry["router"])
        put_router(client, "third", "new-source", "new-dest")
        error_of(send_router(client, "fourth", "a", "x"), 429, "throttled")
        client.delete_topic("new-dest")
        put_router(client, "fourth", "a", "x")


def test_a_router_counts_against_the_topics_that_there_may_be(tmp_path: Path) -> None:
    with running(tmp_path, max_topics=3) as client:
        client.put_topic("a")
        client.put_topic("b")
        error = error_of(send_router(client, "r", "c", "d"), 429, "throttled")
        assert error["detail"]["limit"] == "max_topics"
        no_such_topic(client, "c", "d")
        no_such_router(client, "r")
        put_router(client, "r", "a", "b")
        put_router(client, "s", "b", "c")
        error_of(send_router(client, "t", "c", "d"), 429, "throttled")
        no_such_topic(client, "d")
        client.append("a", 1)
        assert data_of(client.read("c")) == [1]


# Restarts and races


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_routers_are_there_after_a_restart_and_the_deleted_ones_are_not(tmp_path: Path, number: signal.Signals) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        for place, given in enumerate(OTHERS):
            client.put_topic(f"dest{place}")
            put_router(client, f"router>{place}", "source", f"dest{place}", **given)
        put_router(client, "router>0", "source", "dest0", filter="updated")
        put_router(client, "deleted", "source", "was")
        drop_router(client, "deleted")
        put_router(client, "cascaded", "source", "gone")
        client.delete_topic("gone")
        connect_topics(client, "ring0", "ring1")
        put_router(client, "ring", "ring1", "ring0", allow_cycle=True)
        before = listed(client)
        assert len(before) == len(OTHERS) + 2
        client = daemon.restart(number)
        assert listed(client) == before
        assert client.delete_topic("was")["routers_removed"] == []
        assert_names_the_cycle(
            error_of(send_router(client, "again", "ring0", "ring1"), 409, "router_cycle"), ["ring0", "ring1"]
        )
        error = error_of(send_router(client, "fan-in", "other", "dest0"), 409, "topic_exists_incompatible")
        assert error["detail"]["reason"] == "router_dest_fan_in"
        assert body_of(send_router(client, "router>0", "source", "dest0"), 200)["created"] is False
        client.append("source", 1)
        assert data_of(client.read("dest1")) == [1]
    finally:
        daemon.kill()


def test_of_equal_puts_at_once_one_creates(client: Client, source: str, dest: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            router = fresh_name("router")
            answers = list(pool.map(lambda _, name=router: send_router(client, name, source, dest), range(6)))
            assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
            assert [body_of(answer, 200, 201)["created"] for answer in answers].count(True) == 1


def test_of_opposite_puts_at_once_at_most_one_is_taken(client: Client) -> None:
    with ThreadPoolExecutor(2) as pool:
        for _ in range(10):
            ends = fresh_name(), fresh_name()
            names = fresh_name("router"), fresh_name("router")
            answers = list(pool.map(send_router, [client] * 2, names, ends, reversed(ends)))
            assert sorted(answer.status_code for answer in answers) == [201, 409]
            assert len(listed(client, source=ends[0]) + listed(client, source=ends[1])) == 1


def test_of_puts_from_several_sources_at_once_one_is_taken(client: Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            dest = fresh_name("dest")
            sources = [fresh_name("source") for _ in range(4)]
            names = [fresh_name("router") for _ in sources]
            answers = list(pool.map(send_router, [client] * 4, names, sources, [dest] * 4))
            assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
            (entry,) = listed(client, dest=dest)
            made = names[[answer.status_code for answer in answers].index(201)]
            assert entry["router"] == made
            no_such_topic(client, *[source for source in sources if source != entry["source"]])


def test_routers_that_come_and_go_while_topics_do_leave_a_consistent_graph(client: Client) -> None:
    source, dest = fresh_name("source"), fresh_name("dest")
    router = fresh_name("router")

    def come(number: int) -> None:
        assert send_router(client, router, source, dest).status_code in (200, 201)
        client.append(source, number)

    def go(_: int) -> None:
        drop_router(client, router)

    def delete(number: int) -> None:
        client.delete_topic(dest if number % 2 else source)

    with ThreadPoolExecutor(3) as pool:
        for number in range(25):
            acts: list[Callable[[int], None]] = [come, go, delete]
            for done in [pool.submit(act, number) for act in acts]:
                done.result(20)
    for entry in listed(client, prefix=router):
        client.state(entry["source"])
        client.state(entry["dest"])
    put_router(client, router, source, dest)
    assert metric(client, "routers") == len(listed(client))
    before = client.read(dest)["head_seq"]
    client.append(source, "last")
    assert data_of(client.read(dest, before)) == ["last"]
    assert client.delete_topic(source)["routers_removed"] == [router]
    assert listed(client, prefix=router) == []
    client.append(source, "unheard")
    assert client.read(dest)["head_seq"] == before + 1
