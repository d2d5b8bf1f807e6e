"""Section 7: lists of routers; restarts and races."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, Daemon, body_of, data_of, error_of, fresh_name, invalid, until
from tests.conformance.router_client import (
    LISTED,
    OTHERS,
    assert_names_the_cycle,
    connect_topics,
    drop_router,
    listed,
    metric,
    no_such_topic,
    put_router,
    router_of,
    send_router,
)

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
