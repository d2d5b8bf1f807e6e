"""Section 7: deleting routers; a topic that is deleted takes its routers with it; names of routers."""

from __future__ import annotations

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, invalid
from tests.conformance.router_client import (
    connect_topics,
    drop_router,
    listed,
    no_such_router,
    no_such_topic,
    put_router,
    router_of,
    router_url,
    send_router,
)

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
