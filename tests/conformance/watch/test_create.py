"""Watching topics that are not there yet: `create` waits for them, over a session, a stream and a WebSocket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.client import Client, body_of, error_of, fresh_name
from tests.conformance.sse import Session, covered, encode_id, stream
from tests.conformance.websocket import WebSocket


def is_missing(client: Client, topic: str) -> None:
    """Watching has made nothing."""
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


@pytest.mark.parametrize("query", [{}, {"tail": "true"}], ids=["from the beginning", "tail"])
def test_a_stream_waits_for_its_topic_and_shows_all_of_it(client: Client, topic: str, query: dict[str, Any]) -> None:
    with stream(client, topic, create="true", **query) as events:
        events.opened()
        events.quiet()
        is_missing(client, topic)
        client.append(topic, "a", "b")
        frames = events.until_seq(topic, 2)
        assert covered(topic, frames, head=2).data == ["a", "b"]
        assert frames[-1].cursors == {topic: 2}
        client.append(topic, "c")
        events.until_seq(topic, 3)
        client.delete_topic(topic)
        assert events.until(lambda frame: frame.event == "topic-deleted")[-1].data["head_seq"] == 3
        events.ended()


def test_a_topic_that_is_made_empty_is_caught_up(client: Client, topic: str) -> None:
    with stream(client, topic, create="1") as events:
        events.opened()
        client.put_topic(topic)
        events.expect("caught-up", topic=topic, head_seq=0)


def test_a_watcher_who_has_read_another_instance_is_told(client: Client, topic: str) -> None:
    for last_id, query in ((encode_id({topic: 7}), {}), (None, {"from_seq": "7"})):
        with stream(client, topic, last_id, create="true", **query) as events:
            events.opened()
            client.append(topic, "a")
            frames = events.until_seq(topic, 1)
            assert (frames[0].event, frames[0].data["reason"]) == ("tombstone", "recreated")
            assert frames[-1].seqs == [1]
        client.delete_topic(topic)


def test_without_create_an_unknown_topic_is_404(client: Client, topic: str) -> None:
    for create in ("", "?create=false"):
        error_of(client.get(f"/v0/topics/{topic}/stream{create}"), 404, "topic_not_found")
    body = {"topics": {topic: {}}, "create": False}
    error_of(client.post("/v0/watch", json=body), 404, "topic_not_found")


def test_a_session_waits_for_those_of_its_topics_that_are_missing(client: Client, topic: str) -> None:
    there = fresh_name()
    client.append(there, 1)
    answer = body_of(client.post("/v0/watch", json={"topics": {topic: {"tail": True}, there: {}}, "create": True}))
    assert answer["topics"][topic] == {"from_seq": 0, "head_seq": 0, "earliest_seq": 1, "epoch": None}
    assert answer["topics"][there]["head_seq"] == 1
    is_missing(client, topic)


def test_a_session_goes_on_waiting_over_its_connections(client: Client, topic: str) -> None:
    there = fresh_name()
    client.append(there, 1)
    session = Session(client, there, topic, create=True)
    with session.open() as events:
        events.expect("record", topic=there)
        last = events.expect("caught-up", topic=there)
    with session.open(last.id) as events:
        events.expect("caught-up", topic=there)
        client.append(topic, "a")
        assert events.until_seq(topic, 1)[-1].cursors == {there: 1, topic: 1}
    client.append(topic, "b")
    with session.open() as events:
        assert events.until_seq(topic, 2)


def test_a_topic_that_comes_while_nobody_is_connected_is_shown_from_its_beginning(client: Client, topic: str) -> None:
    session = Session(client, topic, create=True)
    client.append(topic, "a", "b")
    with session.open() as events:
        assert events.expect("record", topic=topic, from_seq=0).seqs == [1, 2]


def test_a_socket_waits_too_and_may_stop_waiting(client: Client, topic: str) -> None:
    other = fresh_name()
    with WebSocket(client) as ws:
        ws.send("subscribe", topic=topic)
        assert ws.next_op("error")["code"] == "topic_not_found"
        for name in (topic, other):
            ws.send("subscribe", topic=name, create=True)
            told = ws.next_op("subscribed")["topics"]
            assert told == {name: {"from_seq": 0, "head_seq": 0, "earliest_seq": 1}}
        ws.send("unsubscribe", topic=other)
        assert ws.next_op("unsubscribed")["topics"] == [other]
        is_missing(client, topic)
        client.append(other, "nobody waits for it")
        client.append(topic, "a")
        frames = ws.until_seq(topic, 1)
        assert frames[-1].seqs == [1]
        assert {frame.topic for frame in frames} == {topic}
