"""Semantics 5: copies stay when the original goes; changes of config, queues and races."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import CLASSES, Client, body_of, checkpoint, error_of, fresh_name
from tests.conformance.router_client import connect_topics, drop_router, put_router
from tests.conformance.router_pairs import (
    LOSSES,
    Pair,
    at_once,
    check_figures,
    everything,
    has,
    paired,
    tagged_pair,
)

# What becomes of copies when the original goes


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
        client.append(pair.dest, "direct")  # behind copies that are on their way
        data = check_figures(client, pair.dest).data
        assert data == [*range(len(data) - 1), "direct"]
