"""Section 7 and semantics 5: what routers carry, to where, in which order, and what becomes of it."""

from __future__ import annotations

import itertools
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import (
    CLASSES,
    Client,
    Daemon,
    body_of,
    data_of,
    error_of,
    fresh_name,
    has_data,
    invalid,
    seqs_of,
    until,
)
from tests.conformance.sse import Covered, Frame, Session, covered, reach_of, stream
from tests.conformance.test_data import AS_WRITTEN
from tests.conformance.test_routers import connect_topics, drop_router, listed, metric, put_router, router_of
from tests.conformance.websocket import covered as covered_by_pushes
from tests.conformance.websocket import subscribed

STAMP = "_topics_router"


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


def ends_with(client: Client, topic: str, *data: Any) -> None:
    becomes(lambda: everything(client, topic).data[-len(data) :], list(data))


def has_in_any_order(client: Client, topic: str, *data: Any) -> None:
    becomes(lambda: Counter(everything(client, topic).data), Counter(data))


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


@pytest.fixture
def pair(client: Client) -> Pair:
    return paired(client)


@pytest.fixture(params=CLASSES, ids=lambda name: f"into-{name}")
def dest_class(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CLASSES, ids=lambda name: f"from-{name}")
def source_class(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# What arrives


def test_what_is_appended_arrives_in_order(client: Client, source_class: str, dest_class: str) -> None:
    pair = paired(client, {"durability": source_class}, {"durability": dest_class})
    pair.append("a", "b")
    pair.append("c")
    pair.has("a", "b", "c")
    pair.append("d", "e")
    pair.has("a", "b", "c", "d", "e")
    reading = check_figures(client, pair.dest)
    assert (reading.seqs, reading.tombstones) == ([1, 2, 3, 4, 5], [])
    assert everything(client, pair.source).data == reading.data
    settled = pair.settle()
    assert (settled["forwarded_total"], settled["cursor_seq"], settled["lag"]) == (5, 5, 0)


def test_a_dest_gives_seqs_and_times_of_its_own(client: Client, pair: Pair) -> None:
    client.append(pair.dest, "direct", "direct")
    before = client.state(pair.dest)["last_write_ts"]
    pair.append("a")
    time.sleep(0.02)
    pair.append("b")
    pair.has("direct", "direct", "a", "b")
    originals, copies = everything(client, pair.source).records, everything(client, pair.dest).records[2:]
    assert [copy["$seq"] for copy in copies] == [3, 4]
    assert before <= copies[0]["$ts"] <= copies[1]["$ts"]
    for original, copy in zip(originals, copies, strict=True):
        assert copy["$ts"] >= original["$ts"]
    assert client.state(pair.dest)["last_write_ts"] == copies[1]["$ts"]


def test_data_is_byte_for_byte_what_was_written(client: Client, pair: Pair) -> None:
    for data in AS_WRITTEN:
        body_of(client.append_raw(pair.source, data))
    has_head(client, pair.dest, len(AS_WRITTEN))
    for place, data in enumerate(AS_WRITTEN):
        answer = client.get(f"/v0/topics/{pair.dest}/diff", params={"from_seq": place, "limit": 1})
        assert has_data(answer, data), data
    assert client.state(pair.dest)["bytes"] == client.state(pair.source)["bytes"]


RECORDS: list[dict[str, Any]] = [
    {"data": 1},
    {"data": 2, "tag": "t"},
    {"data": 3, "node": "n"},
    {"data": 4, "meta": {"k": "v"}},
    {"data": 5, "tag": "ü" * 128, "node": "ñ" * 64, "meta": {"": "", "ключ": "значение"}},
    {"data": None, "tag": "t", "node": "m", "meta": {"a": "x" * 1000, "b": "\u0000\n"}},
]


@pytest.mark.parametrize("preserve_node", [True, False], ids=["node", "no-node"])
@pytest.mark.parametrize("preserve_tag", [True, False], ids=["tag", "no-tag"])
def test_node_and_tag_pass_if_they_are_to_and_meta_always_does(
    client: Client, preserve_node: bool, preserve_tag: bool
) -> None:
    pair = paired(client, preserve_node=preserve_node, preserve_tag=preserve_tag)
    pair.append(records=RECORDS)
    has_head(client, pair.dest, len(RECORDS))
    originals, copies = everything(client, pair.source).records, everything(client, pair.dest).records
    for original in originals:
        if not preserve_node:
            original.pop("$node", None)
        if not preserve_tag:
            original.pop("$tag", None)
    assert [without_ts(copy) for copy in copies] == [without_ts(original) for original in originals]
    assert client.state(pair.dest)["bytes"] == client.state(pair.source)["bytes"]


def without_ts(record: Any) -> Any:
    return {name: value for name, value in record.items() if name != "$ts"}


def test_the_node_of_a_batch_passes(client: Client, pair: Pair) -> None:
    pair.append(records=[{"data": 1}, {"data": 2, "node": "own"}], node="batch")
    pair.has(1, 2)
    assert [record["$node"] for record in everything(client, pair.dest).records] == ["batch", "own"]


@pytest.mark.parametrize(("preserve_node", "left"), [(True, ["b"]), (False, ["a", "b", "a"])], ids=["kept", "dropped"])
def test_a_reader_of_a_dest_leaves_out_nodes_that_were_preserved(
    client: Client, preserve_node: bool, left: list[str]
) -> None:
    pair = paired(client, preserve_node=preserve_node)
    pair.append(records=[{"data": node, "node": node} for node in "aba"])
    pair.has("a", "b", "a")
    assert data_of(client.read(pair.dest, node="a")) == left
    with stream(client, pair.dest, node="a") as events:
        assert covered(pair.dest, events.until_caught_up(), head=3, silent=[1, 3]).data == left


def test_a_dest_may_switch_the_node_filter_off(client: Client) -> None:
    pair = paired(client, dest={"dedupe_node": False})
    pair.append(1, node="n")
    pair.has(1)
    assert data_of(client.read(pair.dest, node="n")) == [1]


def test_records_of_the_greatest_size_pass(client: Client, pair: Pair) -> None:
    whole = "x" * ((1 << 20) - 2)
    meta = {f"{number:02}": "v" * 240 for number in range(64)}
    for record in ({"data": whole}, {"data": 1, "meta": meta}, {"data": whole}):
        pair.append(records=[record])
    has_head(client, pair.dest, 3)
    copies = everything(client, pair.dest).records
    assert [copy["data"] == whole for copy in copies] == [True, False, True]
    assert copies[1]["meta"] == meta


def test_thousands_of_records_pass_in_order(client: Client, pair: Pair) -> None:
    pair.append(*range(10_000))
    pair.append(*range(10_000, 12_500))
    pair.has(*range(12_500))
    check_figures(client, pair.dest)
    assert pair.settle()["forwarded_total"] == 12_500


def test_what_many_append_at_once_passes_in_the_order_of_the_source(client: Client) -> None:
    source, dests = fresh_name(), [fresh_name() for _ in range(3)]
    client.put_topic(source)
    for dest in dests:
        connect_topics(client, source, dest)

    def write(writer: int) -> None:
        for number in range(25):
            client.append(source, *[f"{writer}.{number}.{part}" for part in range(writer + 1)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    expected = everything(client, source).data
    assert len(expected) == 250
    for dest in dests:
        has(client, dest, *expected)
        assert check_figures(client, dest).seqs == list(range(1, 251))


def test_direct_appends_interleave(client: Client, pair: Pair) -> None:
    for number in range(10):
        pair.append(f"copy {number}")
        client.append(pair.dest, f"direct {number}")
    becomes(lambda: client.state(pair.dest)["count"], 20)
    reading = check_figures(client, pair.dest)
    for kind in ("copy", "direct"):
        assert [data for data in reading.data if data.startswith(kind)] == [f"{kind} {number}" for number in range(10)]
    assert everything(client, pair.source).data == [f"copy {number}" for number in range(10)]


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_copies_are_read_in_pages(client: Client, pair: Pair, limit: int) -> None:
    for start in range(0, 20, 5):
        pair.append(*range(start, start + 5))
        pair.has(*range(start + 5))
    found: list[int] = []
    while len(found) < 20:
        answer = client.read(pair.dest, len(found), limit=limit)
        assert len(answer["records"]) == min(limit, 20 - len(found))
        found += data_of(answer)
        assert (answer["next_from_seq"], answer["caught_up"]) == (len(found), len(found) == 20)
    assert found == list(range(20))
    answer = client.read(pair.dest, 7, max_batch_bytes=1)
    assert (data_of(answer), answer["lag"]) == ([7], 12)


def test_an_append_that_was_repeated_has_one_copy(client: Client, pair: Pair) -> None:
    for _ in range(3):
        pair.append("once", idempotency_key="key")
    pair.append("after")
    pair.has("once", "after")
    # The key is the source's: the dest does not know it.
    assert client.append(pair.dest, "own", idempotency_key="key")["deduped"] is False
    pair.has("once", "after", "own")


def test_what_is_published_over_a_socket_passes(client: Client, pair: Pair) -> None:
    with subscribed(client, pair.dest) as socket:
        socket.until_caught_up()
        socket.publish(pair.source, "a", "b")
        assert covered_by_pushes(pair.dest, socket.until_seq(pair.dest, 2), head=2).data == ["a", "b"]


def test_a_failed_append_passes_nothing(client: Client) -> None:
    pair = paired(client, {"cap_records": 2, "discard": "reject"})
    pair.append(1, 2)
    error_of(client.send_append(pair.source, 3), 422, "topic_full")
    invalid(client.send_append(pair.source, records=[{"data": 1, "meta": {STAMP: "x"}}]))
    pair.has(1, 2)
    assert pair.settle()["forwarded_total"] == 2


# Where a router begins


@pytest.mark.parametrize("begin", ["tail", "earliest"])
def test_a_router_begins_where_it_is_told_to(client: Client, source_class: str, begin: str) -> None:
    source, dest, router = fresh_name(), fresh_name(), fresh_name("router")
    client.put_topic(source, durability=source_class)
    client.append(source, *range(300))
    put_router(client, router, source, dest, begin=begin)
    client.append(source, "after")
    has(client, dest, *(range(300) if begin == "earliest" else []), "after")
    check_figures(client, dest)


def test_the_earliest_of_a_source_with_deletions_is_what_is_left(client: Client) -> None:
    source, dest = fresh_name(), fresh_name()
    client.tagged(source, "a", "b", "c", "b", "d")
    client.delete_records(source, before_seq=2)
    client.delete_records(source, match="b")
    (router,) = connect_topics(client, source, dest, begin="earliest")
    has(client, dest, "c", "d")
    assert everything(client, dest).tombstones == []
    (settled,) = settle(client, router)
    assert (settled["cursor_seq"], settled["forwarded_total"]) == (5, 2)


def test_the_earliest_of_a_source_with_evictions_is_what_is_left(client: Client) -> None:
    source, dest = fresh_name(), fresh_name()
    client.put_topic(source, cap_records=3)
    client.append(source, *range(1, 11))
    connect_topics(client, source, dest, begin="earliest")
    client.append(source, 11)
    has(client, dest, 8, 9, 10, 11)


def test_a_second_router_from_the_earliest_tells_everything_again(client: Client, pair: Pair) -> None:
    pair.append(1, 2)
    pair.has(1, 2)
    put_router(client, fresh_name("router"), pair.source, pair.dest, begin="earliest")
    pair.has(1, 2, 1, 2)


# Filters


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["tag", "Eq", "a"], ["a", "a"]),
        ("a", ["a", "a"]),
        ("a*", ["a*"]),
        (["tag", "Eq", "a*"], ["a*"]),
        (["tag", "Glob", "a*"], ["a", "a.1", "a*", "a"]),
        (["tag", "Glob", "a**"], ["a*"]),
        (["tag", "Glob", "*"], ["a", "b", "a.1", "a*", "A", "é", "a"]),
        (["tag", "Glob", "é*"], ["é"]),
        ("none", []),
        (None, ["a", "b", None, "a.1", "a*", "A", "é", "a"]),
    ],
    ids=str,
)
def test_a_filter_lets_through_what_it_matches(client: Client, given: Any, passed: list[Any]) -> None:
    pair = paired(client, filter=given)
    client.tagged(pair.source, "a", "b", None, "a.1", "a*", "A", "é", "a")
    pair.has(*passed)
    settled = pair.settle()
    assert (settled["cursor_seq"], settled["lag"], settled["forwarded_total"]) == (8, 0, len(passed))
    reading = everything(client, pair.dest)
    assert (reading.seqs, reading.tombstones) == (list(range(1, len(passed) + 1)), [])


def test_a_filter_sees_tags_that_are_not_preserved(client: Client) -> None:
    first, second, third = fresh_name(), fresh_name(), fresh_name()
    connect_topics(client, first, second, filter="a", preserve_tag=False)
    (router,) = connect_topics(client, second, third, filter=["tag", "Glob", "*"])
    client.tagged(first, "a", "b", "a")
    has(client, second, "a", "a")
    assert all("$tag" not in record for record in everything(client, second).records)
    # They have none for the next one to match.
    assert settle(client, router)[0]["cursor_seq"] == 2
    has(client, third)


def test_filters_part_a_source(client: Client) -> None:
    source = fresh_name()
    dests = {tag: fresh_name() for tag in "abc"}
    for tag, dest in dests.items():
        connect_topics(client, source, dest, filter=tag)
    tags = [tag for number in range(60) for tag in "abc"[: number % 4]]
    client.append(source, records=[{"data": f"{tag}{place}", "tag": tag} for place, tag in enumerate(tags)])
    for tag, dest in dests.items():
        has(client, dest, *[f"{tag}{place}" for place, other in enumerate(tags) if other == tag])


def test_filters_of_a_chain_all_hold(client: Client) -> None:
    first, second, third = fresh_name(), fresh_name(), fresh_name()
    connect_topics(client, first, second, filter=["tag", "Glob", "a*"])
    connect_topics(client, second, third, filter=["tag", "Glob", "ab*"])
    client.tagged(first, "a", "ab", "b", "abc", None)
    has(client, second, "a", "ab", "abc")
    has(client, third, "ab", "abc")


def test_an_update_holds_for_what_comes_after_it(client: Client, pair: Pair) -> None:
    updates: list[dict[str, Any]] = [
        {"filter": "a"},
        {"filter": "b", "preserve_tag": False},
        {"preserve_node": False},
        {"filter": None},
    ]
    for place, fields in enumerate(updates):
        pair.settle()
        put_router(client, pair.router, pair.source, pair.dest, **fields)
        pair.append(records=[{"data": f"{place}{tag}", "tag": tag, "node": "n"} for tag in "ab"])
    pair.has("0a", "1b", "2b", "3a", "3b")
    copies = everything(client, pair.dest).records
    assert [copy.get("$tag") for copy in copies] == ["a", None, None, None, None]
    assert [copy.get("$node") for copy in copies] == ["n", "n", None, None, None]


# Who reads a dest sees what was acked on the source


def chain(client: Client, length: int, **config: Any) -> list[str]:
    topics = [fresh_name("chain") for _ in range(length)]
    for topic in topics:
        client.put_topic(topic, **config)
    connect_topics(client, *topics)
    return topics


Look = Callable[[Client, str], int]


def look_with_diff(client: Client, topic: str) -> int:
    return int(client.read(topic)["head_seq"])


def look_with_get(client: Client, topic: str) -> int:
    return len(body_of(client.get(f"/v0/topics/{topic}/diff"))["records"])


def look_with_state(client: Client, topic: str) -> int:
    return int(client.state(topic)["head_seq"])


def look_with_a_quiet_state(client: Client, topic: str) -> int:
    return int(client.state(topic, touch="false")["count"])


def look_with_a_long_poll(client: Client, topic: str) -> int:
    return int(client.read(topic, wait_ms=100)["head_seq"])


def look_with_a_stream(client: Client, topic: str) -> int:
    with stream(client, topic) as events:
        return int(events.until_caught_up()[-1].data["head_seq"])


def look_with_the_tail_of_a_stream(client: Client, topic: str) -> int:
    with stream(client, topic, tail="true") as events:
        return int(events.expect("caught-up").data["head_seq"])


def look_with_a_session(client: Client, topic: str) -> int:
    return int(Session(client, topic).answer["topics"][topic]["head_seq"])


def look_with_the_tail_of_a_session(client: Client, topic: str) -> int:
    return int(Session(client, topics={topic: {"tail": True}}).answer["topics"][topic]["from_seq"])


def look_with_a_socket(client: Client, topic: str) -> int:
    with subscribed(client, topic) as socket:
        return int(socket.until_caught_up()[-1].data["head_seq"])


def look_with_the_tail_of_a_socket(client: Client, topic: str) -> int:
    with subscribed(client, topic, tail=True) as socket:
        return int(socket.expect("caught_up").data["head_seq"])


LOOKS = [
    look_with_diff,
    look_with_get,
    look_with_state,
    look_with_a_quiet_state,
    look_with_a_long_poll,
    look_with_a_stream,
    look_with_the_tail_of_a_stream,
    look_with_a_session,
    look_with_the_tail_of_a_session,
    look_with_a_socket,
    look_with_the_tail_of_a_socket,
]


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
def test_a_reader_of_a_dest_sees_what_was_acked_before(client: Client, look: Look) -> None:
    topics = chain(client, 4)
    for number in range(1, 6):
        client.append(topics[0], number)
        for topic in reversed(topics[1:]):
            at_once(lambda name=topic: look(client, name), number)  # type: ignore[misc]


def test_a_reader_sees_what_was_acked_before_in_every_class(client: Client, source_class: str) -> None:
    for dest_class in CLASSES:
        pair = paired(client, {"durability": source_class}, {"durability": dest_class})
        for number in range(5):
            pair.append(number)
            at_once(pair.read, list(range(number + 1)))


def test_a_reader_sees_what_was_acked_before_its_router_was_made(client: Client) -> None:
    source, dest = fresh_name(), fresh_name()
    client.append(source, *range(50))
    connect_topics(client, source, dest, begin="earliest")
    at_once(lambda: data_of(client.read(dest)), list(range(50)))


def test_a_long_poll_of_a_dest_hears_of_the_source(client: Client, source_class: str) -> None:
    topics = chain(client, 3, durability=source_class)
    with ThreadPoolExecutor(1) as pool:
        poll = pool.submit(client.read, topics[-1], wait_ms=20_000)
        client.append(topics[0], "a")
        assert data_of(poll.result(20)) == ["a"]


@pytest.mark.parametrize("consistency", ["eventual", "strong"])
def test_a_stream_of_dests_goes_on_with_the_source(client: Client, source_class: str, consistency: str) -> None:
    source, dests = fresh_name(), [fresh_name() for _ in CLASSES]
    client.put_topic(source, durability=source_class)
    for dest, dest_class in zip(dests, CLASSES, strict=True):
        client.put_topic(dest, durability=dest_class)
        connect_topics(client, source, dest)
    client.append(source, *range(5))
    frames: list[Frame] = []
    with Session(client, *dests, consistency=consistency).open() as events:
        for number in range(5, 10):
            client.append(source, number)
        reached = dict.fromkeys(dests, 0)
        while min(reached.values()) < 10:
            frames.append(events.next())
            reached[frames[-1].data["topic"]] = reach_of(frames[-1])
    for dest in dests:
        assert Covered(dest).take(frames).data == list(range(10))


def test_a_socket_of_a_dest_goes_on_with_the_source(client: Client, pair: Pair) -> None:
    with subscribed(client, pair.source, pair.dest) as socket:
        for number in range(20):
            pair.append(number)
        frames = socket.until_seq(pair.dest, 20)
        assert covered_by_pushes(pair.dest, frames, head=20).data == list(range(20))


def test_copies_come_to_be_synced(client: Client, source_class: str) -> None:
    for dest_class in ("memory", "disk", "fsync"):
        pair = paired(client, {"durability": source_class}, {"durability": dest_class})
        pair.append(1, 2, 3)
        until(lambda dest=pair.dest: bool(client.state(dest)["synced_seq"] == 3))  # type: ignore[misc]
    pair = paired(client, {"durability": source_class}, {"durability": "ephemeral"})
    pair.append(1)
    pair.has(1)
    assert client.state(pair.dest)["synced_seq"] == 0


# Chains, fans, diamonds, rings and mirrors


def test_a_chain_carries_everything_to_its_end(client: Client, durability: str) -> None:
    topics = chain(client, 8, durability=durability)
    for start in range(0, 100, 20):
        client.append(topics[0], *range(start, start + 20))
    for topic in reversed(topics):
        has(client, topic, *range(100))
        check_figures(client, topic)


def test_a_chain_of_all_classes_carries_everything(client: Client) -> None:
    classes = ["fsync", "ephemeral", "disk", "memory", "fsync", "memory", "ephemeral", "fsync"]
    topics = [fresh_name("chain") for _ in classes]
    for topic, name in zip(topics, classes, strict=True):
        client.put_topic(topic, durability=name)
    connect_topics(client, *topics)
    for number in range(20):
        client.append(topics[0], number)
    for topic in topics:
        has(client, topic, *range(20))


def test_records_enter_a_chain_anywhere(client: Client) -> None:
    topics = chain(client, 4)
    for number, topic in enumerate(topics):
        client.append(topic, number)
    for number, topic in enumerate(topics):
        has_in_any_order(client, topic, *range(number + 1))


def test_a_record_goes_no_further_than_fifteen_topics(client: Client) -> None:
    topics = [fresh_name("far") for _ in range(18)]
    routers = connect_topics(client, *topics)
    client.append(topics[0], "first")
    client.append(topics[2], "third")
    for number, topic in enumerate(topics):
        expected = ["first"] if number <= 15 else []
        has_in_any_order(client, topic, *expected, *(["third"] if number >= 2 else []))
    settled = settle(client, *routers)
    assert [one["forwarded_total"] for one in settled] == [1, 1, *[2] * 13, 1, 1]


def test_a_fan_of_a_hundred_carries_everything_and_logs_it_once(client: Client) -> None:
    source, dests = fresh_name(), [fresh_name("fan") for _ in range(100)]
    for dest in dests:
        connect_topics(client, source, dest)
    before = metric(client, "wal_bytes_written_total")
    assert before is not None
    large = "x" * 400_000
    client.append(source, large)
    client.append(source, *range(50))
    for dest in dests:
        has_head(client, dest, 51)
    after = metric(client, "wal_bytes_written_total")
    assert after is not None
    assert after - before < 2 * len(large)
    for dest in dests:
        assert data_of(client.read(dest, 1)) == list(range(50))
    for dest in dests[::33]:
        assert data_of(client.read(dest, limit=1)) == [large]
        assert client.state(dest)["bytes"] == client.state(source)["bytes"]
    assert [entry["forwarded_total"] for entry in listed(client, source=source)] == [51] * 100
    assert len(client.delete_topic(source)["routers_removed"]) == 100
    assert data_of(client.read(dests[50], limit=1)) == [large]


def test_a_fan_into_every_class_carries_everything(client: Client, source_class: str) -> None:
    source, dests = fresh_name(), [fresh_name("fan") for _ in range(8)]
    client.put_topic(source, durability=source_class)
    for dest, dest_class in zip(dests, CLASSES * 2, strict=True):
        client.put_topic(dest, durability=dest_class)
        connect_topics(client, source, dest)
    for number in range(20):
        client.append(source, number)
    for dest in dests:
        has(client, dest, *range(20))


def diamond(client: Client, **fields: Any) -> tuple[list[str], list[str]]:
    """A source, two topics beside each other, and one that both lead to; with the routers."""
    top, left, right, bottom = topics = [fresh_name("diamond") for _ in range(4)]
    routers = connect_topics(client, top, left) + connect_topics(client, top, right)
    for side in (left, right):
        routers += connect_topics(client, side, bottom, allow_cycle=True, **fields)
    return topics, routers


def test_a_diamond_carries_everything_at_least_once(client: Client) -> None:
    topics, routers = diamond(client)
    client.append(topics[0], *range(50))
    settle(client, *routers)
    reading = check_figures(client, topics[3])
    assert set(reading.data) == set(range(50))
    assert list(dict.fromkeys(reading.data)) == list(range(50))


def test_a_diamond_of_exactly_once_carries_everything_once(client: Client) -> None:
    topics, routers = diamond(client, guarantee="exactly_once")
    for start in range(0, 100, 10):
        client.append(topics[0], *range(start, start + 10))
    client.append(topics[1], "left")
    client.append(topics[2], "right")
    settled = settle(client, *routers)
    assert sorted(everything(client, topics[3]).data, key=str) == sorted([*range(100), "left", "right"], key=str)
    assert settled[2]["forwarded_total"] + settled[3]["forwarded_total"] == 102


def test_two_routers_of_exactly_once_between_the_same_topics_carry_everything_once(client: Client) -> None:
    source, dest = fresh_name(), fresh_name()
    routers = [
        *connect_topics(client, source, dest, guarantee="exactly_once", filter=["tag", "Glob", "a*"]),
        *connect_topics(client, source, dest, guarantee="exactly_once", filter=["tag", "Glob", "*"]),
    ]
    client.tagged(source, "a", "b", "ab", "c")
    settle(client, *routers)
    assert sorted(everything(client, dest).data) == ["a", "ab", "b", "c"]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("length", [2, 3, 8])
def test_a_ring_carries_everything_around_once(client: Client, length: int, guarantee: str) -> None:
    topics = [fresh_name("ring") for _ in range(length)]
    routers = connect_topics(client, *topics, guarantee=guarantee)
    routers += connect_topics(client, topics[-1], topics[0], allow_cycle=True, guarantee=guarantee)
    for number in range(3):
        for place, topic in enumerate(topics):
            client.append(topic, f"{place}.{number}")
    expected = [f"{place}.{number}" for place in range(length) for number in range(3)]
    for topic in topics:
        has_in_any_order(client, topic, *expected)
    settled = settle(client, *routers)
    assert [one["forwarded_total"] for one in settled] == [3 * (length - 1)] * length
    for topic in topics:
        assert client.state(topic)["head_seq"] == 3 * length


def test_a_ring_of_twenty_ends_after_fifteen_topics(client: Client) -> None:
    topics = [fresh_name("ring") for _ in range(20)]
    routers = connect_topics(client, *topics)
    routers += connect_topics(client, topics[-1], topics[0], allow_cycle=True)
    client.append(topics[10], "a")
    becomes(lambda: everything(client, topics[5]).data, ["a"])
    settled = settle(client, *routers)
    assert sum(one["forwarded_total"] for one in settled) == 15
    counts = [client.state(topic)["count"] for topic in topics]
    assert counts == [1] * 6 + [0] * 4 + [1] * 10


def mirror(client: Client, nodes: int, **fields: Any) -> tuple[list[str], list[str]]:
    """Topics of which each feeds each other one; with the routers."""
    topics = [fresh_name("mirror") for _ in range(nodes)]
    pairs = [(source, dest) for source in topics for dest in topics if source != dest]
    return topics, [connect_topics(client, *ends, allow_cycle=True, **fields)[0] for ends in pairs]


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_in_a_mirror_everyone_sees_what_the_others_wrote_once(client: Client, nodes: int) -> None:
    topics, routers = mirror(client, nodes, guarantee="exactly_once")

    def write(place: int) -> None:
        for number in range(4):
            client.append(topics[place], f"{place}.{number}", node=f"node{place}")

    with ThreadPoolExecutor(nodes) as pool:
        list(pool.map(write, range(nodes)))
    names = {f"{place}.{number}" for place in range(nodes) for number in range(4)}
    for place, topic in enumerate(topics):
        others = Counter(name for name in names if not name.startswith(f"{place}."))

        def seen(name: str = topic, node: str = f"node{place}") -> Counter[str]:
            return Counter(everything(client, name, node=node).data)

        becomes(seen, others)
    settled = settle(client, *routers)
    assert sum(one["forwarded_total"] for one in settled) == nodes * (nodes - 1) * 4
    for topic in topics:
        assert Counter(everything(client, topic).data) == Counter(names)
        assert client.state(topic)["head_seq"] == nodes * 4


def test_a_mirror_of_at_least_once_comes_to_rest(client: Client) -> None:
    topics, routers = mirror(client, 3)
    client.append(topics[0], "a")
    settle(client, *routers)
    heads = [client.state(topic)["head_seq"] for topic in topics]
    # The one it came from never gets it back.
    assert heads[0] == 1
    assert min(heads) >= 1
    assert {data for topic in topics for data in everything(client, topic).data} == {"a"}
    settle(client, *routers)
    assert [client.state(topic)["head_seq"] for topic in topics] == heads


def test_a_stream_of_a_mirror_has_what_the_other_side_wrote(client: Client) -> None:
    topics, _ = mirror(client, 2, guarantee="exactly_once")
    with stream(client, topics[0], node="here") as here, stream(client, topics[1], node="there") as there:
        for number in range(5):
            client.append(topics[0], f"here {number}", node="here")
            client.append(topics[1], f"there {number}", node="there")
        for events, name in ((here, "there"), (there, "here")):
            data: list[Any] = []
            while len(data) < 5:
                frame = events.next()
                if frame.event == "record":
                    data += [record["data"] for record in frame.data["records"]]
            assert data == [f"{name} {number}" for number in range(5)]


@pytest.mark.parametrize("shape", ["diamond", "ring", "mirror"])
def test_a_reader_sees_what_was_acked_before_on_whichever_way_it_comes(client: Client, shape: str) -> None:
    if shape == "diamond":
        topics, _ = diamond(client, guarantee="exactly_once")
    elif shape == "mirror":
        topics, _ = mirror(client, 4, guarantee="exactly_once")
    else:
        topics = [fresh_name("ring") for _ in range(4)]
        connect_topics(client, *topics)
        connect_topics(client, topics[-1], topics[0], allow_cycle=True)
    for number in range(5):
        client.append(topics[0], number)
        for topic in topics[:0:-1]:
            at_once(lambda name=topic: data_of(client.read(name)), list(range(number + 1)))  # type: ignore[misc]


# Stamps


def test_exactly_once_stamps_one_string_and_leaves_the_rest_of_meta(client: Client) -> None:
    pair = paired(client, guarantee="exactly_once")
    pair.append(records=RECORDS)
    has_head(client, pair.dest, len(RECORDS))
    stamps = []
    for original, copy in zip(RECORDS, everything(client, pair.dest).records, strict=True):
        stamp = copy["meta"].pop(STAMP)
        assert isinstance(stamp, str)
        assert pair.router in stamp
        assert str(copy["$seq"]) in re.findall("[0-9]+", stamp)
        assert copy["meta"] == original.get("meta", {})
        assert copy["data"] == original["data"]
        stamps.append(stamp)
    assert len(set(stamps)) == len(stamps)
    assert "meta" not in everything(client, pair.source).records[0]
    assert "meta" not in everything(client, pair.dest, include_meta=False).records[0]


def test_a_stamp_is_outside_the_limits_of_meta(client: Client) -> None:
    pair = paired(client, guarantee="exactly_once")
    meta = {f"{number:02}": "v" * 240 for number in range(64)}
    whole = "x" * ((1 << 20) - 2)
    pair.append(records=[{"data": 1, "meta": meta}])
    pair.append(whole)
    has_head(client, pair.dest, 2)
    first, second = everything(client, pair.dest).records
    assert isinstance(first["meta"].pop(STAMP), str)
    assert first["meta"] == meta
    assert second["data"] == whole
    assert set(second["meta"]) == {STAMP}


def test_a_stamp_holds_the_longest_name(client: Client) -> None:
    source, dest, router = fresh_name(), fresh_name(), fresh_name("router") + ">"
    router += ">" * (255 - len(router))
    put_router(client, router, source, dest, guarantee="exactly_once")
    client.append(source, 1)
    has(client, dest, 1)
    assert router in everything(client, dest).records[0]["meta"][STAMP]


def test_a_chain_of_exactly_once_has_one_stamp(client: Client) -> None:
    topics = [fresh_name("chain") for _ in range(4)]
    connect_topics(client, *topics, guarantee="exactly_once")
    client.append(topics[0], records=[{"data": 1, "meta": {"k": "v"}}])
    for topic in topics[1:]:
        has(client, topic, 1)
        meta = everything(client, topic).records[0]["meta"]
        assert isinstance(meta.pop(STAMP), str)
        assert meta == {"k": "v"}


def test_at_least_once_stamps_nothing(client: Client, pair: Pair) -> None:
    pair.append(records=[{"data": 1}, {"data": 2, "meta": {"k": "v"}}])
    pair.has(1, 2)
    first, second = everything(client, pair.dest).records
    assert "meta" not in first
    assert second["meta"] == {"k": "v"}


def test_a_guarantee_may_be_changed(client: Client, pair: Pair) -> None:
    for guarantee in ("at_least_once", "exactly_once", "at_least_once"):
        pair.settle()
        put_router(client, pair.router, pair.source, pair.dest, guarantee=guarantee)
        pair.append(guarantee)
    pair.has("at_least_once", "exactly_once", "at_least_once")
    stamped = [STAMP in record.get("meta", {}) for record in everything(client, pair.dest).records]
    assert stamped == [False, True, False]


# A dest that is full


def blocked(client: Client, *more: Any, source: Any = None, dest: Any = None, **fields: Any) -> Pair:
    """A pair whose dest refuses more than two records, and has them: 1 and 2."""
    pair = paired(client, source, {"cap_records": 2, "discard": "reject", **(dest or {})}, **fields)
    pair.append(1, 2)
    pair.has(1, 2)
    becomes(lambda: pair.cursor, 2)
    if more:
        pair.append(*more)
    return pair


def test_a_full_dest_makes_a_lag_and_leaves_the_source_writable(client: Client, dest_class: str) -> None:
    pair = blocked(client, dest={"durability": dest_class})
    for number in range(3, 8):
        assert pair.append(number)["seqs"] == [number]
    found = router_of(client, pair.router)
    assert (found["forwarded_total"], found["cursor_seq"], found["lag"]) == (2, 2, 5)
    assert metric(client, "router_lag", router=pair.router) == 5
    assert metric(client, "router_forwarded_total", router=pair.router) == 2
    assert everything(client, pair.source).data == list(range(1, 8))
    # Readers of the dest are answered, and nobody else gets in either.
    for _ in range(3):
        assert data_of(client.read(pair.dest)) == [1, 2]
    error_of(client.send_append(pair.dest, "direct"), 422, "topic_full")
    check_figures(client, pair.dest)


def make_room_by_deleting(client: Client, dest: str) -> None:
    assert client.delete_records(dest, before_seq=3)["deleted"] == 2


def make_room_by_a_wider_cap(client: Client, dest: str) -> None:
    client.put_topic(dest, cap_records=10)


def make_room_by_no_cap(client: Client, dest: str) -> None:
    client.put_topic(dest, cap_records=0)


def make_room_by_discarding(client: Client, dest: str) -> None:
    client.put_topic(dest, discard="old")


ROOM = [
    make_room_by_deleting,
    make_room_by_a_wider_cap,
    make_room_by_no_cap,
    make_room_by_discarding,
]


@pytest.mark.parametrize("make_room", ROOM, ids=lambda how: how.__name__)
def test_forwarding_goes_on_when_there_is_room(client: Client, make_room: Callable[[Client, str], None]) -> None:
    pair = blocked(client, 3, 4)
    make_room(client, pair.dest)
    has_head(client, pair.dest, 4)
    assert everything(client, pair.dest).data[-2:] == [3, 4]
    assert everything(client, pair.dest).seqs[-2:] == [3, 4]
    settled = pair.settle()
    assert (settled["cursor_seq"], settled["forwarded_total"]) == (4, 4)
    check_figures(client, pair.dest)


def test_a_dest_whose_records_expire_is_not_full_for_ever(client: Client) -> None:
    pair = blocked(client, 3, 4)
    client.put_topic(pair.dest, ttl_ms=20)
    has_head(client, pair.dest, 4)
    assert pair.settle()["forwarded_total"] == 4


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_everything_passes_through_a_dest_that_is_emptied_again_and_again(client: Client, durability: str) -> None:
    config = {"cap_records": 3, "discard": "reject", "durability": durability}
    pair = paired(client, dest=config)
    pair.append(*range(10))
    pair.append(*range(10, 20))
    seen: list[int] = []

    def take() -> int:
        answer = client.read(pair.dest)
        assert len(answer["records"]) <= 3
        assert answer["tombstone"] is None
        if answer["records"]:
            seen.extend(data_of(answer))
            client.delete_records(pair.dest, before_seq=seqs_of(answer)[-1] + 1)
        return len(seen)

    becomes(take, 20)
    assert seen == list(range(20))
    assert pair.settle()["forwarded_total"] == 20


def test_a_full_dest_has_never_more_than_its_cap(client: Client, pair: Pair) -> None:
    client.put_topic(pair.dest, cap_records=10, discard="reject")

    def write(_: int) -> None:
        for number in range(10):
            assert client.send_append(pair.dest, f"direct {number}").status_code in (200, 422)

    with ThreadPoolExecutor(3) as pool:
        direct = pool.map(write, range(2))
        copied = pool.map(pair.append, range(20))
        until(lambda: bool(client.state(pair.dest)["count"] == 10))
        list(direct), list(copied)
    assert len(check_figures(client, pair.dest).records) == 10
    client.put_topic(pair.dest, cap_records=0)
    becomes(
        lambda: sorted(data for data in everything(client, pair.dest).data if isinstance(data, int)), list(range(20))
    )
    assert everything(client, pair.dest).tombstones == []


def test_a_dest_may_be_full_in_bytes(client: Client) -> None:
    pair = paired(client, dest={"cap_bytes": 25, "discard": "reject"})
    for name in ("one", "two", "three"):
        pair.append(f"{name:10}")
    pair.has("one       ", "two       ")
    assert (pair.cursor, pair.lag) == (2, 1)
    client.delete_records(pair.dest, before_seq=2)
    pair.has("two       ", "three     ")


def test_a_full_dest_holds_up_no_other(client: Client) -> None:
    pair = blocked(client)
    other, far = fresh_name(), fresh_name()
    connect_topics(client, pair.source, other, far)
    for number in range(3, 30):
        pair.append(number)
    for topic in (other, far):
        has(client, topic, *range(3, 30))
    pair.has(1, 2)
    assert pair.lag == 27
    client.put_topic(pair.dest, cap_records=0)
    pair.has(*range(1, 30))


def test_a_full_topic_in_a_chain_holds_up_only_what_comes_after_it(client: Client) -> None:
    pair = blocked(client, 3, 4, 5)
    before, after = fresh_name(), fresh_name()
    connect_topics(client, pair.dest, after, begin="earliest")
    connect_topics(client, before, pair.source)
    client.append(before, 6)
    has(client, after, 1, 2)
    has(client, pair.source, *range(1, 7))
    client.put_topic(pair.dest, cap_records=0)
    has(client, after, *range(1, 7))


def test_a_stream_of_a_full_dest_goes_on_when_there_is_room(client: Client) -> None:
    pair = blocked(client, 3, 4)
    with stream(client, pair.dest) as events:
        frames = events.until_caught_up()
        client.put_topic(pair.dest, cap_records=0)
        frames += events.until_seq(pair.dest, 4)
    assert covered(pair.dest, frames, head=4).data == [1, 2, 3, 4]


def test_a_router_to_a_full_dest_can_be_deleted(client: Client) -> None:
    pair = blocked(client, 3, 4)
    drop_router(client, pair.router)
    client.put_topic(pair.dest, cap_records=0)
    client.append(pair.dest, "direct")
    assert everything(client, pair.dest).data == [1, 2, "direct"]


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_topic_of_a_blocked_router_can_be_deleted(client: Client, end: str) -> None:
    pair = blocked(client, 3, 4)
    gone, left = (pair.source, pair.dest) if end == "source" else (pair.dest, pair.source)
    assert client.delete_topic(gone)["routers_removed"] == [pair.router]
    client.put_topic(left, cap_records=0)
    client.append(left, 5)
    assert everything(client, left).data == ([1, 2, 5] if end == "source" else [1, 2, 3, 4, 5])


# What a source has lost before it could be forwarded


def lose_to_a_cap(client: Client, source: str) -> None:
    """Of 3 to 7, which were not forwarded yet, and 8 to 10, which come now, the last three stay."""
    client.put_topic(source, cap_records=3)


def lose_to_a_ttl(client: Client, source: str) -> None:
    time.sleep(0.05)
    client.put_topic(source, ttl_ms=20)
    client.put_topic(source, ttl_ms=0)


@pytest.mark.parametrize("lose", [lose_to_a_cap, lose_to_a_ttl], ids=lambda how: how.__name__)
@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_what_a_source_loses_before_it_is_forwarded_is_announced_by_one_seq(
    client: Client, durability: str, lose: Callable[[Client, str], None]
) -> None:
    pair = blocked(client, *range(3, 8), source={"durability": durability})
    lose(client, pair.source)
    pair.append(8, 9, 10)
    becomes(lambda: client.state(pair.source)["earliest_seq"], 8)
    client.put_topic(pair.dest, cap_records=0)
    pair.has(1, 2, 8, 9, 10)
    reading = check_figures(client, pair.dest)
    assert {reason for _, _, reason in reading.gaps} == {"source_trim"}
    if lose is lose_to_a_ttl:
        # They went all at once.
        assert (reading.gaps, reading.seqs) == ([(3, 3, "source_trim")], [1, 2, 4, 5, 6])
    assert pair.settle()["forwarded_total"] == 5
    assert client.read(pair.dest, reading.tombstones[-1]["gap_to"])["tombstone"] is None


def test_what_a_source_has_lost_is_announced_when_everything_before_is_deleted(client: Client) -> None:
    pair = blocked(client, *range(3, 8))
    lose_to_a_ttl(client, pair.source)
    pair.append(8)
    client.delete_records(pair.dest, before_seq=3)
    pair.has(8)
    answer = client.read(pair.dest)
    gap = answer["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (1, 3, "source_trim", 1)
    assert seqs_of(answer) == [4]
    assert client.state(pair.dest)["earliest_seq"] == 4


def test_what_was_deleted_before_it_could_be_forwarded_is_not_announced(client: Client) -> None:
    pair = blocked(client, *range(3, 8))
    client.delete_records(pair.source, before_seq=7)
    client.put_topic(pair.dest, cap_records=0)
    pair.has(1, 2, 7)
    assert everything(client, pair.dest).tombstones == []
    assert pair.settle()["forwarded_total"] == 3


def test_streams_tell_what_the_source_has_lost(client: Client) -> None:
    pair = blocked(client, *range(3, 8))
    lose_to_a_ttl(client, pair.source)
    pair.append(8)
    with stream(client, pair.dest) as events, subscribed(client, pair.dest) as socket:
        frames, pushes = events.until_caught_up(), socket.until_caught_up()
        client.put_topic(pair.dest, cap_records=0)
        frames += events.until_seq(pair.dest, 4)
        pushes += socket.until_seq(pair.dest, 4)
    with stream(client, pair.dest) as events:
        later = events.until_caught_up()
    told = [covered(pair.dest, some, head=4) for some in (frames, later)]
    told.append(covered_by_pushes(pair.dest, pushes, head=4))
    for one in told:
        assert (one.data, one.gaps, one.reasons) == ([1, 2, 8], [(3, 3)], ["source_trim"])


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
def test_a_record_that_can_never_fit_is_skipped_and_announced(client: Client, place: int, together: bool) -> None:
    pair = paired(client, dest={"cap_bytes": 50, "discard": "reject"})
    small = ["a", "b"]
    data = [*small[:place], "x" * 100, *small[place:]]
    if together:
        pair.append(*data)
    else:
        for one in data:
            pair.append(one)
    has_head(client, pair.dest, 3)
    reading = check_figures(client, pair.dest)
    assert (reading.data, reading.gaps) == (small, [(place + 1, place + 1, "source_trim")])
    assert client.read(pair.dest, place)["tombstone"]["missed_estimate"] == 1
    settled = pair.settle()
    assert (settled["cursor_seq"], settled["lag"], settled["forwarded_total"]) == (3, 0, 2)
    pair.append("c")
    pair.has(*small, "c")


def test_what_can_never_fit_goes_to_the_others(client: Client) -> None:
    pair = paired(client, dest={"cap_bytes": 50, "discard": "reject"})
    other = fresh_name()
    connect_topics(client, pair.source, other)
    pair.append("a", "x" * 100, "b")
    has(client, other, "a", "x" * 100, "b")
    pair.has("a", "b")


def test_a_dest_that_discards_takes_everything_and_evicts_the_oldest(client: Client, durability: str) -> None:
    pair = paired(client, dest={"cap_records": 3, "durability": durability})
    pair.append(*range(10))
    pair.append(10)
    pair.has(8, 9, 10)
    reading = check_figures(client, pair.dest)
    assert reading.gaps == [(1, 8, "cap")]
    assert pair.settle()["forwarded_total"] == 11
    assert everything(client, pair.source).data == list(range(11))


def test_copies_expire_by_the_ttl_of_their_dest(client: Client) -> None:
    pair = paired(client, dest={"ttl_ms": 60_000_000})
    pair.append(1, 2)
    pair.has(1, 2)
    time.sleep(0.05)
    client.put_topic(pair.dest, ttl_ms=20)
    client.put_topic(pair.dest, ttl_ms=0)
    pair.append(3)
    pair.has(3)
    assert everything(client, pair.dest).gaps == [(1, 2, "ttl")]
    assert everything(client, pair.source).data == [1, 2, 3]
    check_figures(client, pair.dest)


# What becomes of copies when the original goes


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


def checkpoint(client: Client) -> None:
    body_of(client.post("/v0/admin/checkpoint"))


@pytest.mark.parametrize("lose", LOSSES, ids=lambda how: how.__name__)
def test_copies_stay_whatever_becomes_of_the_source(client: Client, lose: Callable[[Client, Pair], None]) -> None:
    for dest_class in CLASSES:
        pair = tagged_pair(client, dest={"durability": dest_class})
        before = everything(client, pair.dest)
        lose(client, pair)
        assert everything(client, pair.dest) == before
        checkpoint(client)
        assert everything(client, pair.dest) == before
        client.append(pair.dest, "direct")
        pair.has(*before.data, "direct")


def test_copies_are_deleted_by_themselves(client: Client) -> None:
    pair = tagged_pair(client)
    assert client.delete_records(pair.dest, match="b")["deleted"] == 1
    assert client.delete_records(pair.dest, before_seq=2)["deleted"] == 1
    pair.has("ab", "c")
    assert client.state(pair.dest)["count"] == 2
    assert everything(client, pair.dest).tombstones == []
    assert everything(client, pair.source).data == ["a", "b", "ab", "c"]
    client.tagged(pair.source, "d")
    pair.has("ab", "c", "d")
    assert pair.settle()["forwarded_total"] == 5


def test_copies_without_tags_are_not_matched(client: Client) -> None:
    pair = tagged_pair(client, preserve_tag=False)
    assert client.delete_records(pair.dest, match=["tag", "Glob", "*"])["deleted"] == 0
    assert client.delete_records(pair.source, match=["tag", "Glob", "*"])["deleted"] == 4
    pair.has("a", "b", "ab", "c")


def test_a_deleted_dest_leaves_the_source_as_it_is(client: Client) -> None:
    pair = tagged_pair(client)
    client.delete_topic(pair.dest)
    client.append(pair.source, "d")
    assert everything(client, pair.source).data == ["a", "b", "ab", "c", "d"]
    put_router(client, pair.router, pair.source, pair.dest, begin="earliest")
    pair.has("a", "b", "ab", "c", "d")


def test_a_reader_of_a_dest_made_anew_is_told(client: Client) -> None:
    pair = tagged_pair(client)
    epoch = client.state(pair.dest)["epoch"]
    client.delete_topic(pair.dest)
    put_router(client, pair.router, pair.source, pair.dest)
    pair.append("new")
    pair.has("new")
    assert client.read(pair.dest, 4, epoch=epoch)["tombstone"]["reason"] == "recreated"


# Changes of config


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_topic_changes_its_class_while_it_is_routed(client: Client, end: str) -> None:
    pair = paired(client)
    topic = pair.source if end == "source" else pair.dest
    sequence = ["fsync", "memory", "ephemeral", "disk", "ephemeral", "fsync", "disk"]
    for number, name in enumerate(sequence):
        pair.append(number)
        client.put_topic(topic, durability=name)
        pair.append(f"{number}, {name}")
    expected = [data for number, name in enumerate(sequence) for data in (number, f"{number}, {name}")]
    pair.has(*expected)
    check_figures(client, pair.dest)
    checkpoint(client)
    pair.has(*expected)


def test_topics_change_their_classes_while_records_pass(client: Client, pair: Pair) -> None:
    after = fresh_name()
    connect_topics(client, pair.dest, after)

    def write() -> None:
        for number in range(150):
            pair.append(2 * number, 2 * number + 1)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        for number in range(12):
            topic = (pair.source, pair.dest, after)[number % 3]
            client.put_topic(topic, durability=CLASSES[(number * 7 + 3) % 4])
        writing.result(30)
    pair.has(*range(300))
    has(client, after, *range(300))
    check_figures(client, after)


def test_a_cap_of_the_source_takes_nothing_from_a_dest_that_keeps_up(client: Client) -> None:
    pair = paired(client, {"cap_records": 1})
    for number in range(20):
        pair.append(number)
        pair.has(*range(number + 1))
    assert everything(client, pair.source).data == [19]


# Queues


def test_a_queue_is_fed_by_a_router(client: Client, durability: str) -> None:
    pair = paired(client, dest={"type": "queue", "durability": durability})
    pair.append(*range(5))
    pair.has(*range(5))
    check_figures(client, pair.dest)


def test_the_jobs_of_a_queue_are_passed_on(client: Client, durability: str) -> None:
    pair = paired(client, {"type": "queue", "durability": durability})
    pair.append(*range(5))
    pair.has(*range(5))
    client.delete_records(pair.source, before_seq=4)
    pair.has(*range(5))


def claimed(client: Client, topic: str, count: int) -> Any:
    return body_of(client.post(f"/v0/topics/{topic}/claim", json={"node": "worker", "max": count}))["claimed"]


def test_a_claim_sees_what_was_acked_on_the_source(client: Client) -> None:
    pair = paired(client, dest={"type": "queue"})
    for number in range(5):
        pair.append(records=[{"data": number, "tag": "t", "node": "n", "meta": {"k": "v"}}])
        at_once(lambda: [job["data"] for job in claimed(client, pair.dest, 10)], [number])


def test_an_ack_of_a_copy_leaves_the_source_alone_and_brings_nothing_back(client: Client) -> None:
    pair = paired(client, {"type": "queue"}, {"type": "queue"})
    pair.append(1, 2, 3)
    jobs = claimed(client, pair.dest, 2)
    body_of(client.post(f"/v0/topics/{pair.dest}/ack", json={"node": "worker", "seqs": [job["$seq"] for job in jobs]}))
    pair.has(3)
    assert everything(client, pair.source).data == [1, 2, 3]
    assert [job["data"] for job in claimed(client, pair.source, 1)] == [1]


# Races


def test_a_router_that_comes_and_goes_from_the_earliest_misses_nothing(client: Client, pair: Pair) -> None:
    done = threading.Event()

    def come_and_go() -> None:
        while not done.is_set():
            drop_router(client, pair.router)
            put_router(client, pair.router, pair.source, pair.dest, begin="earliest")

    with ThreadPoolExecutor(1) as pool:
        flapping = pool.submit(come_and_go)
        try:
            for number in range(40):
                pair.append(number)
        finally:
            done.set()
        flapping.result(20)
    pair.settle()
    reading = check_figures(client, pair.dest)
    assert set(reading.data) == set(range(40))
    assert reading.tombstones == []


def test_a_dest_that_is_deleted_while_it_is_fed_is_gone(client: Client) -> None:
    for _ in range(5):
        pair = paired(client)
        with ThreadPoolExecutor(2) as pool:
            writing = [pool.submit(pair.append, *range(20)) for _ in range(10)]
            answer = client.delete_topic(pair.dest)
            assert [write.result(20)["count"] for write in writing] == [20] * 10
        assert answer["routers_removed"] == [pair.router]
        error_of(client.get(f"/v0/topics/{pair.dest}"), 404, "topic_not_found")
        client.put_topic(pair.dest)
        assert client.state(pair.dest)["head_seq"] == 0


def test_a_source_that_is_deleted_while_it_is_read_leaves_a_prefix(client: Client) -> None:
    for _ in range(5):
        pair = paired(client)
        for number in range(30):
            pair.append(number)
        client.delete_topic(pair.source)
        data = check_figures(client, pair.dest).data
        assert data == list(range(len(data)))
        client.append(pair.dest, "direct")
        assert everything(client, pair.dest).data == [*data, "direct"]


# Restarts


@dataclass
class Built:
    """What a scene has made: the dests to look at, and where to go on."""

    dests: list[str]
    root: str | None = None
    """What is appended here reaches each of `reached` once."""
    reached: list[str] = field(default_factory=list)
    routers: list[str] = field(default_factory=list)
    lossy: bool = False
    """Whether the source may lose records when the daemon is killed."""


def built(*pairs: Pair, lossy: bool = False) -> Built:
    dests = [pair.dest for pair in pairs]
    return Built(dests, pairs[0].source, dests, [pair.router for pair in pairs], lossy)


def scene_of_class(source_class: str) -> Callable[[Client], Built]:
    def build(client: Client) -> Built:
        first = tagged_pair(client, {"durability": source_class}, {"durability": "fsync"})
        pairs = [first]
        for dest_class in ("memory", "disk"):
            pair = Pair(client, first.source, fresh_name("dest"), fresh_name("router"))
            client.put_topic(pair.dest, durability=dest_class)
            put_router(client, pair.router, pair.source, pair.dest, begin="earliest")
            pair.has("a", "b", "ab", "c")
            pairs.append(pair)
        return built(*pairs, lossy=source_class in ("ephemeral", "memory"))

    return build


def scene_of_loss(lose: Callable[[Client, Pair], None]) -> Callable[[Client], Built]:
    def build(client: Client) -> Built:
        pair = tagged_pair(client, dest={"durability": "fsync"})
        pair.settle()
        lose(client, pair)
        if lose in (lose_the_topic, lose_the_instance, lose_the_router):
            return Built([pair.dest])
        return built(pair, lossy=lose is lose_the_class)

    return build


def scene_of_options(client: Client) -> Built:
    others: list[dict[str, Any]] = [{"preserve_tag": False}, {"preserve_node": False}, {"guarantee": "exactly_once"}]
    pairs = [paired(client, dest={"durability": "fsync"}, filter=["tag", "Glob", "a*"])]
    for options in others:
        pair = Pair(client, pairs[0].source, fresh_name("dest"), fresh_name("router"))
        put_router(client, pair.router, pair.source, pair.dest, **options)
        pairs.append(pair)
    client.append(pairs[0].source, records=RECORDS)
    client.tagged(pairs[0].source, "a", "b", "ab")
    for pair in pairs:
        pair.settle()
    reached = built(*pairs)
    reached.reached = reached.dests[1:]
    return reached


def scene_of_a_chain(client: Client) -> Built:
    topics = chain(client, 4)
    client.tagged(topics[0], "a", "b", "c")
    has(client, topics[-1], "a", "b", "c")
    client.delete_records(topics[1], match="b")
    return Built(topics[1:], topics[0], topics[1:])


def scene_of_a_chain_without_its_middle(client: Client) -> Built:
    topics = chain(client, 4, durability="fsync")
    client.append(topics[0], *range(10))
    has(client, topics[-1], *range(10))
    client.delete_topic(topics[1])
    client.delete_topic(topics[0])
    return Built(topics[2:], topics[2], topics[2:])


def scene_of_deleted_and_evicted_copies(client: Client) -> Built:
    first = tagged_pair(client)
    client.delete_records(first.dest, match="b")
    client.delete_records(first.dest, before_seq=2)
    second = Pair(client, first.source, fresh_name("dest"), fresh_name("router"))
    client.put_topic(second.dest, cap_records=2, durability="fsync")
    put_router(client, second.router, second.source, second.dest, begin="earliest")
    second.has("ab", "c")
    return built(first, second)


def scene_of_a_diamond(client: Client) -> Built:
    topics, routers = diamond(client, guarantee="exactly_once")
    client.append(topics[0], *range(20))
    settle(client, *routers)
    return Built(topics[1:], topics[0], topics[1:], routers)


def scene_of_a_ring(client: Client) -> Built:
    topics = [fresh_name("ring") for _ in range(3)]
    routers = connect_topics(client, *topics) + connect_topics(client, topics[-1], topics[0], allow_cycle=True)
    for number, topic in enumerate(topics):
        client.append(topic, number)
    settle(client, *routers)
    return Built(topics, topics[1], topics, routers)


def scene_of_a_mirror(client: Client) -> Built:
    topics, routers = mirror(client, 3, guarantee="exactly_once")
    for number, topic in enumerate(topics):
        client.append(topic, number, f"{number} again")
    settle(client, *routers)
    return Built(topics, topics[2], topics, routers)


def scene_of_a_queue(client: Client) -> Built:
    pair = tagged_pair(client, {"type": "queue"}, {"type": "queue"})
    pair.settle()
    client.delete_records(pair.source, before_seq=2)
    client.delete_records(pair.dest, before_seq=3)
    return built(pair)


def scene_of_many_and_large_records(client: Client) -> Built:
    pair = paired(client, dest={"durability": "fsync"})
    pair.append(*range(3000))
    pair.append(*["x" * 200_000] * 3)
    has_head(client, pair.dest, 3003)
    pair.settle()
    return built(pair)


def scene_of_direct_appends(client: Client) -> Built:
    pair = paired(client)
    for number in range(5):
        pair.append(f"copy {number}")
        client.append(pair.dest, f"direct {number}")
    has_head(client, pair.dest, 10)
    pair.settle()
    return built(pair)


def scene_of_holes(client: Client) -> Built:
    first = paired(client, dest={"cap_bytes": 1000, "discard": "reject"})
    first.append("a", "x" * 2000, "b")
    first.has("a", "b")
    first.settle()
    return built(first)


def scene_of_holes_after_a_loss(client: Client) -> Built:
    pair = blocked(client, *range(3, 8))
    lose_to_a_ttl(client, pair.source)
    pair.append(8)
    client.put_topic(pair.dest, cap_records=0)
    pair.has(1, 2, 8)
    pair.settle()
    return built(pair)


def scene_of_a_fan(client: Client) -> Built:
    source, dests = fresh_name("source"), [fresh_name("fan") for _ in range(20)]
    routers = [connect_topics(client, source, dest)[0] for dest in dests]
    client.append(source, *range(50))
    settle(client, *routers)
    return Built(dests, source, dests, routers)


def scene_of_a_filter_of_many(client: Client) -> Built:
    pair = paired(client, filter="a", dest={"durability": "fsync"})
    tags = ["a" if number * 7919 % 13 < 5 else "b" for number in range(2500)]
    client.append(pair.source, records=[{"data": number, "tag": tag} for number, tag in enumerate(tags)])
    pair.has(*[number for number, tag in enumerate(tags) if tag == "a"])
    pair.settle()
    return Built([pair.dest], routers=[pair.router])


def scene_of_ends_made_anew(client: Client) -> Built:
    pairs = [tagged_pair(client), tagged_pair(client)]
    for pair, end in zip(pairs, ("source", "dest"), strict=True):
        client.delete_topic(pair.source if end == "source" else pair.dest)
        put_router(client, pair.router, pair.source, pair.dest, begin="earliest")
        pair.append("new")
    pairs[0].has("a", "b", "ab", "c", "new")
    pairs[1].has("a", "b", "ab", "c", "new")
    for pair in pairs:
        pair.settle()
    anew = built(*pairs)
    anew.reached = [pairs[0].dest]
    return anew


def scene_of_changed_classes(client: Client) -> Built:
    pairs = [tagged_pair(client, dest={"durability": "ephemeral"})]
    client.put_topic(pairs[0].dest, durability="disk")
    second = Pair(client, pairs[0].source, fresh_name("dest"), fresh_name("router"))
    client.put_topic(second.dest, durability="memory")
    put_router(client, second.router, second.source, second.dest, begin="earliest")
    second.has("a", "b", "ab", "c")
    client.put_topic(second.dest, durability="fsync")
    return built(*pairs, second)


SCENES: dict[str, Callable[[Client], Built]] = {
    **{f"from-{name}": scene_of_class(name) for name in CLASSES},
    **{how.__name__.replace("_", "-"): scene_of_loss(how) for how in LOSSES},
    "options": scene_of_options,
    "chain": scene_of_a_chain,
    "chain-without-its-middle": scene_of_a_chain_without_its_middle,
    "deleted-and-evicted-copies": scene_of_deleted_and_evicted_copies,
    "diamond": scene_of_a_diamond,
    "ring": scene_of_a_ring,
    "mirror": scene_of_a_mirror,
    "queue": scene_of_a_queue,
    "many-and-large-records": scene_of_many_and_large_records,
    "direct-appends": scene_of_direct_appends,
    "holes": scene_of_holes,
    "holes-after-a-loss": scene_of_holes_after_a_loss,
    "changed-classes": scene_of_changed_classes,
    "fan": scene_of_a_fan,
    "filter-of-many": scene_of_a_filter_of_many,
    "ends-made-anew": scene_of_ends_made_anew,
}

EAGER = {
    "checkpoint_ms": 100,
    "segment_max_events": 8,
    "reclaim_ms": 100,
    "relocate_ms": 100,
    "hot_retain_segments": 1,
    "wal_file_bytes": 1 << 20,
}


class Life:
    """A daemon that has lived once and lives again, and what its topics and routers were before."""

    def __init__(self, root: Path, how: str) -> None:
        self.was_killed = how != "stopped"
        self.how = how
        self.daemon = Daemon(root, **(EAGER if how == "compacted-and-killed" else {}))

    def live(self) -> None:
        client = self.daemon.start()
        self.scenes = {name: build(client) for name, build in SCENES.items()}
        self.full = blocked(client, 3, 4, 5, dest={"durability": "fsync"})
        self.overtaken = blocked(client, *range(3, 8), dest={"durability": "fsync"})
        lose_to_a_ttl(client, self.overtaken.source)
        self.overtaken.append(8)
        self.tagged = tagged_pair(client, dest={"durability": "fsync"})
        # What may have been on its way while the others were built is there.
        dests = [dest for scene in self.scenes.values() for dest in scene.dests]
        self.before = {dest: everything(client, dest) for dest in dests}
        self.states = {dest: client.state(dest, touch="false") for dest in dests}
        self.routers = {entry["router"]: entry for entry in listed(client)}
        if self.how == "compacted-and-killed":
            checkpoint(client)
            checkpoint(client)
        client.close()
        if self.was_killed:
            client = self.daemon.restart(signal.SIGKILL)
            client.close()
        self.daemon.end(signal.SIGKILL if self.was_killed else signal.SIGTERM)
        self.client = self.daemon.start()

    def keeps(self, dest: str) -> bool:
        """Whether its class promises that everything is there."""
        promised = ["disk", "fsync"] if self.was_killed else ["memory", "disk", "fsync"]
        return self.states[dest]["config"]["durability"] in promised

    def check_scene(self, name: str) -> None:
        scene, client = self.scenes[name], self.client
        for dest in scene.dests:
            before, after = self.before[dest], everything(client, dest)
            if not self.keeps(dest):
                # What may be gone is unchanged if it is not, and its seqs are not used again.
                assert after.head >= before.head
                there = {record["$seq"]: record for record in before.records}
                assert all(there.get(record["$seq"], record) == record for record in after.records)
                continue
            if scene.lossy:
                # What the source lost in a crash is announced after everything else.
                assert all(gap["gap_from"] > before.head for gap in after.tombstones[len(before.tombstones) :])
                after.tombstones = after.tombstones[: len(before.tombstones)]
                after.head = before.head
            assert after == before
            state = client.state(dest, touch="false")
            for figure in ("epoch", "count", "bytes", "earliest_seq", "config"):
                assert state[figure] == self.states[dest][figure]
        for router in filter(lambda name: self.keeps(self.routers[name]["dest"]), scene.routers):
            was, found = self.routers[router], router_of(client, router)
            assert found["forwarded_total"] == was["forwarded_total"]
            assert found["cursor_seq"] >= was["cursor_seq"]
            assert scene.lossy or found["cursor_seq"] == was["cursor_seq"]
        if scene.root is not None:
            self.check_it_goes_on(scene, scene.root)

    def check_it_goes_on(self, scene: Built, root: str) -> None:
        self.client.append(root, "after")
        self.client.append(root, "at last")
        for dest in scene.reached:
            if dest == root or self.keeps(dest):
                expected = [*self.before[dest].data, "after", "at last"]
                has(self.client, dest, *expected[-self.states[dest]["config"]["cap_records"] :])
            else:
                ends_with(self.client, dest, "after", "at last")

    def check_a_router_to_a_full_dest(self) -> None:
        pair = replace(self.full, client=self.client)
        pair.has(1, 2)
        found = router_of(self.client, pair.router)
        assert (found["forwarded_total"], found["cursor_seq"], found["lag"]) == (2, 2, 3)
        self.client.put_topic(pair.dest, cap_records=0)
        pair.has(1, 2, 3, 4, 5)

    def check_what_was_lost_before_is_announced(self) -> None:
        pair = replace(self.overtaken, client=self.client)
        self.client.put_topic(pair.dest, cap_records=0)
        pair.has(1, 2, 8)
        assert {reason for _, _, reason in everything(self.client, pair.dest).gaps} == {"source_trim"}
        assert pair.settle()["forwarded_total"] == 3

    def check_copies_are_deleted_by_their_tags(self) -> None:
        pair = replace(self.tagged, client=self.client)
        assert self.client.delete_records(pair.dest, match=["tag", "Glob", "a*"])["deleted"] == 2
        assert self.client.delete_records(pair.dest, match="none")["deleted"] == 0
        pair.has("b", "c")
        assert self.client.state(pair.dest)["count"] == 2
        assert everything(self.client, pair.source).data == ["a", "b", "ab", "c"]


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("stopped", marks=pytest.mark.more),
        pytest.param("killed", marks=pytest.mark.more),
        "compacted-and-killed",
    ],
)
def test_copies_are_as_they_were_after_a_restart_and_forwarding_goes_on(tmp_path: Path, how: str) -> None:
    life = Life(tmp_path, how)
    try:
        life.live()
        checks: dict[str, Callable[[], None]] = {name: partial(life.check_scene, name) for name in SCENES}
        for check in (
            life.check_a_router_to_a_full_dest,
            life.check_what_was_lost_before_is_announced,
            life.check_copies_are_deleted_by_their_tags,
        ):
            checks[check.__name__] = check
        failures = {}
        for name, check in checks.items():
            try:
                check()
            except AssertionError as error:
                failures[name] = str(error)[:2000]
        assert not failures
    finally:
        life.daemon.kill()


def kill_under_load(
    client: Client, source: str, dest: str, meanwhile: Callable[[int], object] = lambda head: None
) -> Reading:
    """What was seen of the dest before the daemon was killed in the middle of appends to the source."""

    def write(writer: Client) -> None:
        try:
            for start in range(0, 10**6, 5):
                writer.append(source, *range(start, start + 5))
        except httpx.HTTPError:
            # It was killed.
            return

    start = client.read(dest)["head_seq"]

    def has_passed_enough() -> bool:
        head = client.read(dest)["head_seq"]
        meanwhile(head)
        return writing.done() or head > start + 150

    with Client(client.daemon) as writer, ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write, writer)
        until(has_passed_enough)
        seen = everything(client, dest)
        client.daemon.end(signal.SIGKILL)
        writing.result(60)
    client.close()
    return seen


@pytest.mark.parametrize(
    ("source_class", "dest_class"),
    [("disk", "disk"), ("disk", "fsync"), ("fsync", "fsync"), ("memory", "fsync")],
)
def test_a_kill_while_records_pass_loses_none_and_repeats_none(
    tmp_path: Path, source_class: str, dest_class: str
) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        client.put_topic("source", durability=source_class)
        client.put_topic("dest", durability=dest_class)
        put_router(client, "router", "source", "dest")
        for _ in range(2):
            seen = kill_under_load(client, "source", "dest")
            client = daemon.start()
            settle(client, "router")
            reading = everything(client, "dest")
            assert reading.records[: len(seen.records)] == seen.records
            if source_class == "memory":
                assert reading.data[-5:] == everything(client, "source").data[-5:]
                assert all(later in (former + 1, 0) for former, later in itertools.pairwise(reading.data))
            else:
                assert reading.data == everything(client, "source").data
                assert reading.tombstones == []
    finally:
        daemon.kill()


def test_a_kill_while_a_source_is_emptied_behind_its_router_loses_no_copy(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, **EAGER)
    try:
        client = daemon.start()
        put_router(client, "router", "source", "dest")
        client.put_topic("dest", durability="fsync")
        # The two count alike: what is up to the head of the dest has been forwarded.
        seen = kill_under_load(client, "source", "dest", lambda head: client.delete_records("source", before_seq=head))
        client = daemon.start()
        settle(client, "router")
        reading = everything(client, "dest")
        assert reading.records[: len(seen.records)] == seen.records
        assert (reading.data, reading.tombstones) == (list(range(reading.head)), [])
        assert reading.head == client.state("source")["head_seq"]
        client.delete_topic("source")
        client = daemon.restart(signal.SIGKILL)
        assert everything(client, "dest") == reading
    finally:
        daemon.kill()


@pytest.mark.parametrize("shape", ["diamond", "mirror"])
def test_a_kill_while_records_pass_on_several_ways_repeats_none(tmp_path: Path, shape: str) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        topics, routers = (
            diamond(client, guarantee="exactly_once")
            if shape == "diamond"
            else mirror(client, 3, guarantee="exactly_once")
        )
        seen = kill_under_load(client, topics[0], topics[-1])
        client = daemon.start()
        settle(client, *routers)
        reading = everything(client, topics[-1])
        assert reading.records[: len(seen.records)] == seen.records
        assert sorted(reading.data) == sorted(everything(client, topics[0]).data)
    finally:
        daemon.kill()


@pytest.mark.parametrize("middle", ["memory", "ephemeral"])
def test_a_kill_while_records_pass_a_weak_topic_repeats_none_and_announces_what_is_lost(
    tmp_path: Path, middle: str
) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        client.put_topic("middle", durability=middle)
        client.put_topic("last", durability="fsync")
        routers = connect_topics(client, "first", "middle", "last", guarantee="exactly_once")
        seen = kill_under_load(client, "first", "last")
        client = daemon.start()
        client.append("first", "after")
        becomes(lambda: everything(client, "last").data[-1], "after")
        settle(client, *routers)
        reading = everything(client, "last")
        assert reading.records[: len(seen.records)] == seen.records
        numbers = [record["data"] for record in reading.records][:-1]
        assert len(set(numbers)) == len(numbers)
        expected = everything(client, "first").data[:-1]
        assert set(numbers) <= set(expected)
        assert set(numbers) == set(expected) or reading.tombstones
    finally:
        daemon.kill()
