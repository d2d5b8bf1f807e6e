"""Section 7: creating and updating routers, and how many there may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, running, until
from tests.conformance.router_client import (
    DEFAULTS,
    FIELDS,
    LISTED,
    OTHERS,
    connect_topics,
    drop_router,
    listed,
    metric,
    no_such_router,
    no_such_topic,
    put_router,
    router_of,
    router_url,
    send_router,
)
from tests.conformance.test_config import DEFAULTS as TOPIC_DEFAULTS

# Creating and updating


def test_a_router_is_created_with_201_and_every_field(client: Client, router: str, source: str, dest: str) -> None:
    made = body_of(send_router(client, router, source, dest), 201)
    assert set(made) >= {"router", "created", "performance", *FIELDS}
    expected = DEFAULTS | {"router": router, "created": True, "source": source, "dest": dest}
    assert {name: made[name] for name in expected} == expected


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
