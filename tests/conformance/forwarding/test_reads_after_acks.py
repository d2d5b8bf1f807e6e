"""Semantics 5: who reads a dest sees what was acked on the source."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.client import CLASSES, Client, body_of, data_of, fresh_name, until
from tests.conformance.router_client import connect_topics
from tests.conformance.router_pairs import Pair, at_once, chain, paired
from tests.conformance.sse import Covered, Frame, Session, reach_of, stream
from tests.conformance.websocket import covered as covered_by_pushes
from tests.conformance.websocket import subscribed

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
