"""Topics that are joined by routers, and what they come to hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.client import Client, data_of, fresh_name, until
from tests.conformance.router_client import connect_topics, drop_router, put_router, router_of


@dataclass
class Reading:
    """A topic from its beginning to its head."""

    records: list[Any] = field(default_factory=list)
    tombstones: list[Any] = field(default_factory=list)
    head: int = 0
    earliest: int = 0

    @property
    def data(self) -> list[Any]:
        return [record["data"] for record in self.records]

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.records]

    @property
    def gaps(self) -> list[tuple[int, int, str]]:
        return [(gap["gap_from"], gap["gap_to"], gap["reason"]) for gap in self.tombstones]


def everything(client: Client, topic: str, **fields: Any) -> Reading:
    reading = Reading()
    at = 0
    while True:
        answer = client.read(topic, at, **{"limit": 1000, "include_tags": True, **fields})
        if answer["tombstone"] is not None:
            assert answer["tombstone"]["gap_from"] > at
            reading.tombstones.append(answer["tombstone"])
        reading.records += answer["records"]
        reading.head, reading.earliest = answer["head_seq"], answer["earliest_seq"]
        if answer["caught_up"]:
            assert reading.seqs == sorted(set(reading.seqs))
            return reading
        assert answer["next_from_seq"] > at
        at = answer["next_from_seq"]


def becomes(probe: Callable[[], Any], expected: Any, within_s: float = 40) -> None:
    """It is so, or comes to be so in time."""
    deadline = time.monotonic() + within_s
    while (found := probe()) != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert found == expected


def at_once(probe: Callable[[], Any], expected: Any) -> None:
    """It is so by the first look, unless that took the second for which it is promised."""
    began = time.monotonic()
    found = probe()
    if time.monotonic() - began < 0.9:
        assert found == expected
    else:
        becomes(probe, expected)


def has(client: Client, topic: str, *data: Any) -> None:
    """The topic comes to have exactly these, in this order."""
    becomes(lambda: everything(client, topic).data, list(data))


def has_head(client: Client, topic: str, head: int) -> None:
    becomes(lambda: client.state(topic)["head_seq"], head)


def settle(client: Client, *routers: str) -> list[Any]:
    """Wait until all of these routers have nothing left to do; what they are then."""

    def look() -> list[Any]:
        found = [router_of(client, router) for router in routers]
        return [{name: value for name, value in one.items() if name != "performance"} for one in found]

    before = look()

    def is_settled() -> bool:
        nonlocal before
        last, before = before, look()
        return before == last and all(one["lag"] == 0 for one in before)

    until(is_settled)
    return before


def check_figures(client: Client, topic: str) -> Reading:
    """Its count, bytes and earliest seq are what a full read shows; its records have no meta."""
    state = client.state(topic)
    reading = everything(client, topic)
    assert state["count"] == len(reading.records)
    assert state["earliest_seq"] == (reading.seqs[0] if reading.records else state["head_seq"] + 1)
    assert state["head_seq"] == reading.head
    assert state["bytes"] == sum(len(json_text(record["data"]).encode()) for record in reading.records)
    return reading


def json_text(data: Any) -> str:
    """Numbers and plain strings as the client writes them."""
    assert isinstance(data, int | str)
    return str(data) if isinstance(data, int) else f'"{data}"'


@dataclass
class Pair:
    """A router between two topics."""

    client: Client
    source: str
    dest: str
    router: str

    @property
    def lag(self) -> int:
        return int(router_of(self.client, self.router)["lag"])

    @property
    def cursor(self) -> int:
        return int(router_of(self.client, self.router)["cursor_seq"])

    def append(self, *data: Any, **fields: Any) -> Any:
        return self.client.append(self.source, *data, **fields)

    def read(self) -> list[Any]:
        return data_of(self.client.read(self.dest))

    def has(self, *data: Any) -> None:
        has(self.client, self.dest, *data)

    def settle(self) -> Any:
        (settled,) = settle(self.client, self.router)
        return settled


def paired(client: Client, source: Any = None, dest: Any = None, stem: str = "", **fields: Any) -> Pair:
    """Two new topics of these configs, and a router."""
    pair = Pair(client, fresh_name(stem + "source"), fresh_name(stem + "dest"), fresh_name(stem + "router"))
    client.put_topic(pair.source, **(source or {}))
    client.put_topic(pair.dest, **(dest or {}))
    put_router(client, pair.router, pair.source, pair.dest, **fields)
    return pair


RECORDS: list[dict[str, Any]] = [
    {"data": 1},
    {"data": 2, "tag": "t"},
    {"data": 3, "node": "n"},
    {"data": 4, "meta": {"k": "v"}},
    {"data": 5, "tag": "ü" * 128, "node": "ñ" * 64, "meta": {"": "", "ключ": "значение"}},
    {"data": None, "tag": "t", "node": "m", "meta": {"a": "x" * 1000, "b": "\u0000\n"}},
]


def chain(client: Client, length: int, **config: Any) -> list[str]:
    topics = [fresh_name("chain") for _ in range(length)]
    for topic in topics:
        client.put_topic(topic, **config)
    connect_topics(client, *topics)
    return topics


def diamond(client: Client, **fields: Any) -> tuple[list[str], list[str]]:
    """A source, two topics beside each other, and one that both lead to; with the routers."""
    top, left, right, bottom = topics = [fresh_name("diamond") for _ in range(4)]
    routers = connect_topics(client, top, left) + connect_topics(client, top, right)
    for side in (left, right):
        routers += connect_topics(client, side, bottom, allow_cycle=True, **fields)
    return topics, routers


def mirror(client: Client, nodes: int, **fields: Any) -> tuple[list[str], list[str]]:
    """Topics of which each feeds each other one; with the routers."""
    topics = [fresh_name("mirror") for _ in range(nodes)]
    pairs = [(source, dest) for source in topics for dest in topics if source != dest]
    return topics, [connect_topics(client, *ends, allow_cycle=True, **fields)[0] for ends in pairs]


def blocked(client: Client, *more: Any, source: Any = None, dest: Any = None, **fields: Any) -> Pair:
    """A pair whose dest refuses more than two records, and has them: 1 and 2."""
    pair = paired(client, source, {"cap_records": 2, "discard": "reject", **(dest or {})}, **fields)
    pair.append(1, 2)
    pair.has(1, 2)
    becomes(lambda: pair.cursor, 2)
    if more:
        pair.append(*more)
    return pair


def lose_to_a_ttl(client: Client, source: str) -> None:
    time.sleep(0.05)
    client.put_topic(source, ttl_ms=20)
    client.put_topic(source, ttl_ms=0)


def lose_by_seq(client: Client, pair: Pair) -> None:
    assert client.delete_records(pair.source, before_seq=10**6)["deleted"] == 4


def lose_by_tag(client: Client, pair: Pair) -> None:
    assert client.delete_records(pair.source, match=["tag", "Glob", "a*"])["deleted"] == 2


def lose_by_cap(client: Client, pair: Pair) -> None:
    client.put_topic(pair.source, cap_records=1)


def lose_by_ttl(client: Client, pair: Pair) -> None:
    lose_to_a_ttl(client, pair.source)


def lose_the_topic(client: Client, pair: Pair) -> None:
    assert client.delete_topic(pair.source)["routers_removed"] == [pair.router]


def lose_the_instance(client: Client, pair: Pair) -> None:
    client.delete_topic(pair.source)
    client.append(pair.source, "another", "instance")


def lose_the_router(client: Client, pair: Pair) -> None:
    assert drop_router(client, pair.router)


def lose_the_class(client: Client, pair: Pair) -> None:
    client.put_topic(pair.source, durability="ephemeral")


LOSSES = [
    lose_by_seq,
    lose_by_tag,
    lose_by_cap,
    lose_by_ttl,
    lose_the_topic,
    lose_the_instance,
    lose_the_router,
    lose_the_class,
]


def tagged_pair(client: Client, source: Any = None, dest: Any = None, **fields: Any) -> Pair:
    """A pair that has passed four records on."""
    pair = paired(client, source, dest, **fields)
    tags = ["a", "b", "ab", "c"]
    pair.append(records=[{"data": tag, "tag": tag, "node": "n", "meta": {"k": tag}} for tag in tags])
    pair.has(*tags)
    return pair
