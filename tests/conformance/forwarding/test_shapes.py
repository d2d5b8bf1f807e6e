"""Semantics 5: chains, fans, diamonds, rings and mirrors."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import CLASSES, Client, data_of, fresh_name
from tests.conformance.router_client import connect_topics, listed, metric
from tests.conformance.router_pairs import (
    at_once,
    becomes,
    chain,
    check_figures,
    diamond,
    everything,
    has,
    has_head,
    mirror,
    settle,
)
from tests.conformance.sse import stream


def has_in_any_order(client: Client, topic: str, *data: Any) -> None:
    becomes(lambda: Counter(everything(client, topic).data), Counter(data))


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
