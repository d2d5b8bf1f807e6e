"""Watching by prefix, over a session and over a WebSocket: topics that come later, access, and bounds."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, error_of, fresh_name, invalid, running
from tests.conformance.keys import bearer, forbidden
from tests.conformance.sse import Frame, Session
from tests.conformance.websocket import WebSocket


@pytest.fixture
def prefix() -> str:
    return fresh_name() + "."


def added(name: str) -> Any:
    return lambda frame: frame.event == "topic-added" and frame.topic == name


def coming(ws: WebSocket, op: str) -> Any:
    """The next message with this `op`; all messages before it are passed over."""
    while (message := ws.next()).op != op:
        pass
    return message.body


def test_topics_that_are_there_are_in_the_answer_and_later_ones_are_announced(client: Client, prefix: str) -> None:
    there, later, other = f"{prefix}a", f"{prefix}b", fresh_name()
    client.append(there, 1, 2)
    session = Session(client, prefixes={prefix: {"tail": True}})
    assert session.answer["topics"].keys() == {there}
    assert session.answer["topics"][there]["from_seq"] == 2
    with session.open() as events:
        events.expect("caught-up", topic=there)
        client.append(other, 1)
        client.append(later, "a", "b")
        first = events.next()
        state = client.state(later)
        assert (first.event, first.topic, first.data["from_seq"]) == ("topic-added", later, 0)
        assert first.data["epoch"] == state["epoch"]
        frames = events.until_seq(later, 2)
        assert [record["data"] for frame in frames if frame.event == "record" for record in frame.data["records"]] == [
            "a",
            "b",
        ]
        client.delete_topic(there)
        assert events.until(lambda frame: frame.event == "topic-deleted")[-1].topic == there
        client.delete_topic(later)
        events.until(lambda frame: frame.event == "topic-deleted")
        client.append(later, "new")
        events.until(added(later))
        events.until_seq(later, 1)


def test_topics_are_not_needed_and_beat_prefixes(client: Client, prefix: str) -> None:
    there, next_one = f"{prefix}a", f"{prefix}b"
    for name in (there, next_one):
        client.append(name, 1, 2)
    answer = body_of(client.post("/v0/watch", json={"prefixes": {prefix: {}}}))
    assert {name: at["from_seq"] for name, at in answer["topics"].items()} == {there: 0, next_one: 0}
    session = Session(client, topics={there: {"from_seq": 1}}, prefixes={prefix: {}, f"{prefix}b": {"tail": True}})
    assert {name: at["from_seq"] for name, at in session.answer["topics"].items()} == {there: 1, next_one: 2}


def test_a_session_goes_on_from_an_id_over_what_came_and_went(client: Client, prefix: str) -> None:
    """Added, deleted and made again while nobody was connected, and told again to a client that has not heard of it."""
    kept, made, replaced = f"{prefix}kept", f"{prefix}made", f"{prefix}replaced"
    client.append(kept, 1)
    client.append(replaced, "old")
    session = Session(client, prefixes={prefix: {}})
    with session.open() as events:
        last = events.until_caught_up(kept, replaced)[-1].id
    client.append(made, 1, 2)
    client.delete_topic(replaced)
    client.append(replaced, "new")
    client.append(kept, 2)
    for _ in range(2):
        with session.open(last) as events:
            seen: dict[str, list[Frame]] = {kept: [], made: [], replaced: []}
            while not all(frames and frames[-1].event == "caught-up" for frames in seen.values()):
                frame = events.next()
                seen[str(frame.topic)].append(frame)
            assert seen[made][0].event == "topic-added"
            assert [frame.seqs for frame in seen[made] if frame.event == "record"] == [[1, 2]]
            assert [frame.event for frame in seen[replaced]][:2] == ["topic-deleted", "topic-added"]
            (record,) = [frame for frame in seen[replaced] if frame.event == "record"]
            assert record.data["records"][0]["data"] == "new"
            assert [frame.seqs for frame in seen[kept] if frame.event == "record"] == [[2]]


def test_a_slow_reader_of_a_prefix_gets_everything(client: Client, prefix: str) -> None:
    with Session(client, prefixes={prefix: {}}).open(receive_buffer=4096) as events:
        names = [f"{prefix}{n}" for n in range(20)]
        for name in names:
            client.append(name, "x" * 100_000, "y")
        for name in reversed(names[:5]):
            client.append(name, "z")
        heads = {name: 3 if name in names[:5] else 2 for name in names}
        at: dict[str, int] = {}
        while at != heads:
            frame = events.next()
            if frame.event == "topic-added":
                assert frame.topic not in at
                at[str(frame.topic)] = 0
            elif frame.event == "record":
                assert frame.data["from_seq"] == at[str(frame.topic)]
                at[str(frame.topic)] = frame.data["to_seq"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prefixes": {}}, "topics"),
        ({"prefixes": []}, "prefixes"),
        ({"prefixes": {"-": {}}}, "prefixes"),
        ({"prefixes": {"a*": {}}}, "prefixes"),
        ({"prefixes": {"a" * 256: {}}}, "prefixes"),
        ({"prefixes": {"a.": {"from_seq": -1}}}, "from_seq"),
        ({"prefixes": {"a.": {"colour": 1}}}, "colour"),
        ({"prefixes": {"a.": 1}}, "a."),
        ({"prefixes": {f"a{n}": {} for n in range(65)}}, "prefixes"),
        ({"topics": {}, "prefixes": {}}, "topics"),
    ],
)
def test_bad_prefixes_are_400(client: Client, body: Any, field: str) -> None:
    invalid(client.post("/v0/watch", json=body), field)


def test_a_missing_topic_is_404_also_beside_a_prefix(client: Client, prefix: str) -> None:
    body: dict[str, Any] = {"topics": {f"{prefix}a": {}}, "prefixes": {prefix: {}}}
    error_of(client.post("/v0/watch", json=body), 404, "topic_not_found")
    answer = body_of(client.post("/v0/watch", params={"lenient": "true"}, json=body))
    assert answer["topics"] == {}


def test_more_topics_than_allowed_are_named(tmp_path: Path) -> None:
    with running(tmp_path, max_watch_topics=2) as client:
        for name in ("a.1", "a.2", "a.3"):
            client.append(name, 1)
        with Session(client, prefixes={"": {}}).open() as events:
            events.until_caught_up("a.1", "a.2")
            client.append("b", 1)
            client.append("a.2", 2)
            events.until_seq("a.2", 2)
            told = [frame.data for frame in events.advisories]
            assert [(each["code"], each["topics"], each["left_out"], each["max"]) for each in told] == [
                (429, ["a.3"], 1, 2),
                (429, ["b"], 1, 2),
            ]
            client.delete_topic("a.1")
            events.until(lambda frame: frame.event == "topic-deleted")
            client.append("c", 1)
            events.until(added("c"))
        with WebSocket(client) as ws:
            ws.send("subscribe", prefix="a.")
            assert ws.next_op("subscribed")["topics"].keys() == {"a.2", "a.3"}
            client.append("a.4", 1)
            detail = coming(ws, "error")["detail"]
            assert detail == {"limit": "max_watch_topics", "max": 2, "left_out": 1, "topics": ["a.4"]}


# WebSocket


def test_a_socket_subscribes_to_a_prefix_and_leaves_it(client: Client, prefix: str) -> None:
    there, later = f"{prefix}a", f"{prefix}b"
    client.append(there, 1)
    with WebSocket(client) as ws:
        ws.send("subscribe", prefix=prefix, tail=True)
        answer = ws.next_op("subscribed")
        assert answer["prefix"] == prefix
        assert answer["topics"] == {there: {"from_seq": 1, "head_seq": 1, "earliest_seq": 1}}
        client.append(later, "a")
        told = coming(ws, "topic_added")
        assert (told["topic"], told["from_seq"]) == (later, 0)
        ws.until_seq(later, 1)
        client.delete_topic(later)
        assert coming(ws, "topic_deleted")["topic"] == later
        client.append(later, "b")
        assert coming(ws, "topic_added")["topic"] == later
        ws.until_seq(later, 1)
        ws.send("unsubscribe", prefix=prefix)
        answer = coming(ws, "unsubscribed")
        assert (answer["prefix"], sorted(answer["topics"])) == (prefix, [there, later])
        client.append(f"{prefix}c", 1)
        client.append(there, 2)
        ws.send("ping")
        assert coming(ws, "pong")


@pytest.mark.parametrize(
    "fields", [{"prefix": "-"}, {"prefix": 1}, {"prefix": "a", "topic": "a"}, {"prefix": "a", "topics": {"a": {}}}]
)
@pytest.mark.parametrize("op", ["subscribe", "unsubscribe"])
def test_a_bad_command_is_refused(client: Client, op: str, fields: dict[str, Any]) -> None:
    with WebSocket(client) as ws:
        ws.send(op, **fields)
        assert coming(ws, "error")["code"] == "invalid_request"


# Access


def test_a_key_sees_of_a_prefix_what_it_covers_and_ends_when_it_covers_less(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("boss\nsome:r:s.eu.|s.us.\n")
    with running(tmp_path, api_keys_file=keys) as client:
        client.headers.update(bearer("boss"))
        client.append("s.eu.1", 1)
        client.append("s.cn.1", 1)
        own = bearer("some")
        answer = body_of(client.post("/v0/watch", json={"prefixes": {"s.": {}}}, headers=own))
        assert answer["topics"].keys() == {"s.eu.1"}
        url = answer["stream_url"]
        nothing = body_of(client.post("/v0/watch", json={"prefixes": {"t.": {}}}, headers=own))
        assert nothing["topics"] == {}
        forbidden(client.post("/v0/watch", json={"topics": {"s.cn.1": {}}, "prefixes": {"s.": {}}}, headers=own))
        session = Session.__new__(Session)
        session.client, session.wid = client, url.rsplit("/", 1)[1]
        with WebSocket(client, headers=own.items()) as ws, session.open(headers=own) as events:
            ws.send("subscribe", prefix="s.")
            assert ws.next_op("subscribed")["topics"].keys() == {"s.eu.1"}
            client.append("s.cn.2", 1)
            client.append("s.us.1", 1)
            assert events.until(lambda frame: frame.event == "topic-added")[-1].topic == "s.us.1"
            assert coming(ws, "topic_added")["topic"] == "s.us.1"
            # No topic of the session is lost to the key, only a part of a prefix.
            client.delete_topic("s.us.1")
            events.until(lambda frame: frame.event == "topic-deleted")
            keys.write_text("boss\nsome:r:s.eu.\n")
            client.daemon.send_signal(signal.SIGHUP)
            events.final(410)
            while coming(ws, "error")["code"] != "unauthorized":
                pass
        error_of(client.get(url, headers=own), 404, "not_found")
