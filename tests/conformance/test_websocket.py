"""Section 8: the WebSocket."""

from __future__ import annotations

import itertools
import json
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conformance.client import (
    CLASSES,
    Client,
    Daemon,
    RawConnection,
    envelope,
    error_of,
    fresh_name,
    has_data,
    running,
    seqs_of,
    until,
)
from tests.conformance.sse import Covered, Cut, Frame, gauge, stream
from tests.conformance.test_data import AS_WRITTEN, REFUSED
from tests.conformance.websocket import (
    Closed,
    Message,
    WebSocket,
    all_open,
    covered,
    covering,
    key,
    raw_frame,
    subscribed,
)

MIB = 1 << 20
TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
PING_COMMAND = b'{"op":"ping"}'
# More than what the kernel keeps of a connection that is not read, on both of its sides.
CHUNK = "x" * 262_000
CHUNKS = 80
SMALL = 4096


@pytest.fixture
def ws(client: Client) -> Iterator[WebSocket]:
    with WebSocket(client) as opened:
        yield opened


def missing(client: Client, topic: str) -> None:
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


# Opening


def shake_hands(client: Client, path: str = "/v0/ws", method: str = "GET", **headers: str | None) -> Any:
    """The answer to a handshake in which some of the headers are others, or None; status, headers and body."""
    asked: dict[str, str | None] = {"connection": "Upgrade", "upgrade": "websocket"}
    asked |= {"sec_websocket_version": "13", "sec_websocket_key": key()} | headers
    with RawConnection(client) as connection:
        connection.send_head(method, path, **{name: value for name, value in asked.items() if value is not None})
        return connection.receive()


def refused(answer: Any) -> Any:
    """It is a 4xx with the envelope of every failure; the error."""
    status, headers, body = answer
    assert 400 <= status < 500, (status, body[:1000])
    assert headers["content-type"].split(";")[0] == "application/json", (status, headers)
    return envelope(json.loads(body))


def test_a_handshake_opens_it(client: Client) -> None:
    assert shake_hands(client)[0] == 101
    with WebSocket(client) as ws:
        # The form of the answer is checked by the client.
        assert "sec-websocket-extensions" not in ws.headers
        assert "sec-websocket-protocol" not in ws.headers
        ws.quiet(0.1)
        ws.works()


@pytest.mark.parametrize("connection", ["upgrade", "keep-alive, Upgrade", "Upgrade,keep-alive"])
@pytest.mark.parametrize("upgrade", ["websocket", "WebSocket"])
def test_the_tokens_of_a_handshake_may_be_written_otherwise(client: Client, connection: str, upgrade: str) -> None:
    with WebSocket(client, connection=connection, upgrade=upgrade) as ws:
        ws.works()


@pytest.mark.parametrize(
    "headers",
    [
        [("user-agent", "x"), ("cookie", "a=b"), ("cache-control", "no-cache")],
        [("accept", "application/json"), ("accept-encoding", "gzip")],
        [("authorization", "Bearer ignored")],
        [("x-long", "x" * 100_000)],
    ],
    ids=lambda headers: str(headers[0][0]),
)
def test_other_headers_do_not_matter(client: Client, headers: Any) -> None:
    with WebSocket(client, headers=headers) as ws:
        ws.works()


def test_a_query_does_not_matter(client: Client) -> None:
    with WebSocket(client, "/v0/ws?token=ignored&x=1") as ws:
        ws.works()


def test_a_plain_get_is_refused(client: Client) -> None:
    refused(shake_hands(client, connection=None, upgrade=None, sec_websocket_version=None, sec_websocket_key=None))
    assert 400 <= client.get("/v0/ws").status_code < 500
    with Client(client.daemon, http2=True) as other:
        answer = other.get("/v0/ws")
        error_of(answer, answer.status_code)
        assert 400 <= answer.status_code < 500


@pytest.mark.parametrize(
    "headers",
    [
        {"sec_websocket_version": "12"},
        {"sec_websocket_version": "8"},
        {"sec_websocket_version": "x"},
        {"sec_websocket_version": None},
        {"sec_websocket_key": None},
        {"connection": None},
        {"connection": "keep-alive"},
        {"upgrade": None},
    ],
    ids=lambda headers: "-".join(f"{name}={value}" for name, value in headers.items()),
)
def test_a_wrong_handshake_is_refused(client: Client, headers: Any) -> None:
    refused(shake_hands(client, **headers))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_another_method_is_405(client: Client, method: str) -> None:
    answer = client.request(method, "/v0/ws")
    error_of(answer, 405, "method_not_allowed")
    assert "GET" in {name.strip() for name in answer.headers["allow"].split(",")}


@pytest.mark.parametrize("path", ["/v0/nothing", "/v0/ws/x", "/ws", "/v0/wss"])
def test_nothing_else_can_be_upgraded(client: Client, path: str) -> None:
    answer = shake_hands(client, path)
    refused(answer)
    assert answer[0] == 404


@pytest.mark.parametrize("path", ["/v0/topics", "/v0/health", "/v0/watch/wid_x", "/v0/topics/a/stream"])
def test_another_call_is_not_upgraded(client: Client, path: str) -> None:
    assert shake_hands(client, path)[0] in range(200, 500)


def test_a_refused_handshake_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for _ in range(5):
            shake_hands(client, sec_websocket_version="12")
            shake_hands(client, "/v0/nothing")
        assert gauge(client, "topics_ws_connections") == 0


@pytest.mark.parametrize(
    "offer",
    [
        "permessage-deflate",
        "permessage-deflate; client_max_window_bits",
        "permessage-deflate; client_max_window_bits=10; server_max_window_bits=10",
        "permessage-deflate; client_no_context_takeover; server_no_context_takeover",
        "permessage-deflate; server_max_window_bits=12, permessage-deflate; client_max_window_bits",
        "x-unknown, permessage-deflate",
        "x-webkit-deflate-frame",
        "x-unknown; a=1",
    ],
)
def test_an_extension_may_be_offered(client: Client, topic: str, offer: str) -> None:
    with WebSocket(client, extensions=offer) as ws:
        ws.subscribe(topic) if ws.publish(topic, 1)["created"] else None
        found = covering(topic).take(ws.until_caught_up())
        values = ["", "a" * 100_000, "é😀" * 1000, [*range(5000)], *(f"number {number}" for number in range(50))]
        for value in values:
            head = ws.publish(topic, value)["head_seq"]
            found.take(ws.until_seq(topic, head))
        found.check(head)
        assert found.data == [1, *values]
        # A frame that is not compressed is as good.
        ws.send_bytes(raw_frame(TEXT, PING_COMMAND))
        ws.next_op("pong")
        ws.works()


# request_id

IDS = ["x", "", "é\u2028😀", "a" * 5000, 0, 1, -7, 1.5, True, False, 2**53, 2**64 - 1]


def same(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and found == expected


@pytest.mark.parametrize("request_id", IDS, ids=lambda value: repr(value)[:20])
def test_a_request_id_comes_back_as_it_was(client: Client, ws: WebSocket, topic: str, request_id: Any) -> None:
    client.append(topic, 1)
    commands: list[tuple[str, str, Any]] = [
        ("ping", "pong", {}),
        ("subscribe", "subscribed", {"topic": topic, "tail": True}),
        ("unsubscribe", "unsubscribed", {"topic": topic}),
        ("publish", "ack", {"topic": topic, "records": [{"data": 1}]}),
        ("subscribe", "error", {"topic": "missing"}),
        ("publish", "error", {"topic": topic}),
        ("unsubscribe", "error", {}),
        ("nothing", "error", {}),
    ]
    for op, answer_op, fields in commands:
        answer = ws.ask(op, **fields, request_id=request_id)
        assert answer["op"] == answer_op
        assert same(answer["request_id"], request_id)


def test_without_a_request_id_there_is_none(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1)
    ws.send("ping")
    assert ws.next_op("pong") == {"op": "pong"}
    ws.send("subscribe", topic=topic, tail=True)
    assert set(ws.next_op("subscribed")) == {"op", "topics"}
    ws.expect("caught_up")
    ws.send("unsubscribe", topic=topic)
    assert set(ws.next_op("unsubscribed")) == {"op", "topics"}
    ws.send("publish", topic=topic, records=[{"data": 1}])
    assert "request_id" not in ws.next_op("ack")
    for op, fields in (("subscribe", {"topic": "missing"}), ("publish", {"topic": topic}), ("nothing", {})):
        ws.send(op, **fields)
        assert "request_id" not in ws.next_op("error")


def test_a_request_id_of_null_is_none(ws: WebSocket) -> None:
    ws.send("ping", request_id=None)
    assert ws.next_op("pong").get("request_id") is None


@pytest.mark.parametrize("request_id", [[1], {"a": 1}, 10**40])
def test_an_odd_request_id_does_no_harm(ws: WebSocket, request_id: Any) -> None:
    ws.send("ping", request_id=request_id)
    message = ws.next()
    assert message.op in ("pong", "error")
    assert message.op == "error" or message.body["request_id"] == request_id
    ws.works()


def test_pushes_have_no_request_id(ws: WebSocket, topic: str) -> None:
    ws.publish(topic, 1)
    ws.subscribe(topic, request_id="x")
    # That there is nothing but what is promised is checked for each.
    ws.expect("record")
    ws.expect("caught_up")


# subscribe


def test_the_answer_says_where_the_topics_begin(client: Client, ws: WebSocket, topic: str) -> None:
    other, empty = fresh_name(), fresh_name()
    client.append(topic, 1, 2, 3)
    client.append(other, *range(5), config={"cap_records": 2})
    client.put_topic(empty)
    answer = ws.ask("subscribe", topics={topic: {"from_seq": 2}, other: {}, empty: {"tail": True}}, request_id=1)
    assert answer == {
        "op": "subscribed",
        "request_id": 1,
        "topics": {
            topic: {"from_seq": 2, "head_seq": 3, "earliest_seq": 1},
            other: {"from_seq": 0, "head_seq": 5, "earliest_seq": 4},
            empty: {"from_seq": 0, "head_seq": 0, "earliest_seq": 1},
        },
    }
    frames = ws.until_caught_up(topic, other, empty)
    assert covered(topic, frames, 2, head=3).seqs == [3]
    assert covered(other, frames, head=5).seqs == [4, 5]


@pytest.mark.parametrize(
    ("fields", "from_seq"),
    [
        ({}, 0),
        ({"from_seq": 0}, 0),
        ({"from_seq": 2}, 2),
        ({"from_seq": 3}, 3),
        ({"tail": True}, 3),
        ({"tail": False}, 0),
        ({"tail": False, "from_seq": 1}, 1),
        ({"tail": True, "from_seq": 0}, 3),
    ],
)
@pytest.mark.parametrize("in_map", [False, True])
def test_a_topic_begins_where_it_is_asked_to(
    client: Client, ws: WebSocket, topic: str, fields: Any, from_seq: int, in_map: bool
) -> None:
    client.append(topic, 1, 2, 3)
    answer = ws.subscribe(topics={topic: fields}) if in_map else ws.subscribe(topic, **fields)
    assert answer == {topic: {"from_seq": from_seq, "head_seq": 3, "earliest_seq": 1}}
    assert covered(topic, ws.until_caught_up(), from_seq, head=3).seqs == [*range(from_seq + 1, 4)]


def test_a_map_of_one_is_as_good(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, "a")
    assert set(ws.subscribe(topics={topic: {}})) == {topic}
    assert covered(topic, ws.until_caught_up(), head=1).data == ["a"]


def test_the_answer_comes_before_any_record(client: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(5)]
    for name in names:
        client.append(name, *range(300))
    with appending(client, names[0]):
        for _ in range(20):
            with WebSocket(client) as ws:
                ws.send("subscribe", topics={name: {} for name in names})
                ws.next_op("subscribed")
                ws.until_caught_up(*names[1:])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"from_seq": "1"}, "from_seq"),
        ({"from_seq": -1}, "from_seq"),
        ({"from_seq": 1.5}, "from_seq"),
        ({"from_seq": True}, "from_seq"),
        ({"from_seq": 2**64}, "from_seq"),
        ({"tail": 1}, "tail"),
        ({"tail": "true"}, "tail"),
        ({"node": 1}, "node"),
        ({"node": [1]}, "node"),
        ({"node": {}}, "node"),
        ({"limit": "1"}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": []}, "limit"),
        ({"max_batch_bytes": "1"}, "max_batch_bytes"),
        ({"max_batch_bytes": {}}, "max_batch_bytes"),
        ({"include_meta": 1}, "include_meta"),
        ({"include_meta": "true"}, "include_meta"),
        ({"include_tags": 0}, "include_tags"),
        ({"include_tags": "x"}, "include_tags"),
        ({"include_data": 1}, "include_data"),
        ({"include_data": []}, "include_data"),
    ],
)
def test_a_wrong_type_or_range_is_refused_and_names_the_field(
    client: Client, ws: WebSocket, topic: str, fields: Any, field: str
) -> None:
    client.append(topic, 1)
    ws.refused("invalid_request", "subscribe", field, topic=topic, **fields)
    of_topic = {name: value for name, value in fields.items() if name in ("from_seq", "tail")}
    of_all = {name: value for name, value in fields.items() if name not in of_topic}
    ws.refused("invalid_request", "subscribe", field, topics={topic: of_topic}, **of_all)
    ws.quiet(0.1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "topic"),
        ({"from_seq": 1}, "topic"),
        ({"topic": 1}, "topic"),
        ({"topic": ["subject"]}, "topic"),
        ({"topic": {"subject": {}}}, "topic"),
        ({"topics": {}}, "topics"),
        ({"topics": "subject"}, "topics"),
        ({"topics": ["subject"]}, "topics"),
        ({"topics": 1}, "topics"),
        ({"topics": {"subject": 1}}, "subject"),
        ({"topics": {"subject": []}}, "subject"),
        ({"topics": {"subject": True}}, "subject"),
        ({"topics": {"subject": "tail"}}, "subject"),
        ({"topic": "subject", "topics": {"subject": {}}}, "topic"),
        ({"topics": {f"t{number}": {} for number in range(257)}}, "topics"),
        ({"topics": {"subject": {}}, "consumer": "c"}, "consumer"),  # it would be ignored, with its filter
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_subscribe_has_a_topic_or_some(client: Client, ws: WebSocket, fields: Any, field: str) -> None:
    client.put_topic("subject")
    ws.refused("invalid_request", "subscribe", field, **fields)
    ws.quiet(0.1)
    ws.works()


@pytest.mark.parametrize(
    "fields", [{"consistency": "strong"}, {"heartbeat_ms": 1000}, {"colour": 1}, {"lenient": True}]
)
def test_a_field_that_is_not_known_does_no_harm(client: Client, ws: WebSocket, topic: str, fields: Any) -> None:
    client.append(topic, 1)
    answer = ws.ask("subscribe", topic=topic, **fields)
    # Whether it is ignored or refused is not said.
    if answer["op"] == "subscribed":
        covered(topic, ws.until_caught_up(), head=1)
    else:
        assert answer["code"] == "invalid_request"
        assert next(iter(fields)) in json.dumps(answer)
    ws.quiet(0.1)
    ws.works()


BAD_NAMES = ["", "-a", "a b", "a>b", "a\n", "é", "a" * 256, "a/b", "."]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_wherever_it_is(client: Client, ws: WebSocket, topic: str, name: str) -> None:
    client.append(topic, 1)
    ws.refused("invalid_request", "subscribe", topic=name)
    ws.refused("invalid_request", "subscribe", topics={topic: {}, name: {}})
    ws.refused("invalid_request", "unsubscribe", topic=name)
    ws.refused("invalid_request", "unsubscribe", topics=[topic, name])
    ws.refused("invalid_request", "publish", topic=name, records=[{"data": 1}])
    ws.quiet(0.1)


def test_an_unknown_topic_is_refused_and_not_created(client: Client, ws: WebSocket, topic: str) -> None:
    ways: list[Any] = [{"topic": topic}, {"topics": {topic: {}}}, {"topic": topic, "tail": True}]
    for fields in ways:
        error = ws.refused("topic_not_found", "subscribe", request_id="x", **fields)
        assert set(error) <= {"op", "request_id", "code", "message", "detail"}
        assert error["request_id"] == "x"
        assert error["detail"]["topic"] == topic
    missing(client, topic)
    # When it is there, it can be subscribed to.
    client.append(topic, "a")
    ws.quiet(0.1)
    ws.subscribe(topic)
    assert covered(topic, ws.until_caught_up(), head=1).data == ["a"]


def test_a_subscribe_is_all_or_nothing(client: Client, ws: WebSocket, topic: str) -> None:
    absent = fresh_name("absent")
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        client.append(name, 1)
    for at in range(5):
        topics: dict[str, Any] = {name: {} for name in [*names[:at], absent, *names[at:]]}
        assert ws.refused("topic_not_found", "subscribe", topics=topics)["detail"]["topic"] == absent
    ws.refused("invalid_request", "subscribe", topics={names[0]: {}, names[1]: {"from_seq": -1}})
    for name in names:
        client.append(name, 2)
    ws.quiet()
    missing(client, absent)


def test_a_refused_subscribe_leaves_what_there_was(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    ws.refused("topic_not_found", "subscribe", topics={topic: {}, fresh_name("absent"): {}})
    ws.refused("invalid_request", "subscribe", topic=topic, limit="x")
    ws.quiet(0.1)
    client.append(topic, 3)
    found.take(ws.until_seq(topic, 3)).check(3)
    assert found.data == [1, 2, 3]


@pytest.mark.parametrize("start", [{"from_seq": 0}, {"from_seq": 150}, {"from_seq": 700}, {"tail": True}])
def test_repeating_a_subscribe_replaces_the_cursor(client: Client, ws: WebSocket, topic: str, start: Any) -> None:
    client.append(topic, *range(700))
    ws.subscribe(topic)
    ws.until_caught_up()
    from_seq = 700 if "tail" in start else start["from_seq"]
    assert ws.subscribe(topic, **start)[topic]["from_seq"] == from_seq
    found = covering(topic, from_seq).take(ws.until_caught_up())
    client.append(topic, "live")
    found.take(ws.until_seq(topic, 701)).check(701)
    assert found.data == [*range(from_seq, 700), "live"]
    # It is not there twice.
    ws.quiet()


def test_a_cursor_is_replaced_in_the_middle_of_a_backlog(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(9000))
    for from_seq in (0, 4000, 100, 8999, 0):
        ws.send("subscribe", topic=topic, from_seq=from_seq, limit=10, request_id=from_seq)
        ws.send("subscribe", topic=topic, from_seq=from_seq // 2, limit=1000, request_id="again")
        before = covering(topic, from_seq)
        while (message := ws.next()).op != "subscribed":
            pass
        while (message := ws.next()).op != "subscribed":
            before.take([message.frame])
        assert message.body["request_id"] == "again"
        found = covered(topic, ws.until_caught_up(), from_seq // 2, head=9000)
        assert found.data == [*range(from_seq // 2, 9000)]
        ws.quiet(0.05)


def test_a_repeated_subscribe_has_its_own_options(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "t", "meta": {"k": "v"}}])
    ws.subscribe(topic, include_data=False, include_tags=True, include_meta=False)
    assert set(ws.expect("record").data["records"][0]) == {"$seq", "$ts", "$tag"}
    ws.expect("caught_up")
    ws.subscribe(topic)
    assert set(ws.expect("record").data["records"][0]) == {"$seq", "$ts", "data", "meta"}
    ws.expect("caught_up")
    client.append(topic, 2)
    assert set(ws.expect("record").data["records"][0]) == {"$seq", "$ts", "data"}


def test_each_subscribe_has_its_own_options(client: Client, ws: WebSocket, topic: str) -> None:
    other = fresh_name()
    for name in (topic, other):
        client.append(name, records=[{"data": number, "node": "n"} for number in range(5)])
    ws.subscribe(topic, limit=2)
    ws.until_caught_up(topic)
    ws.subscribe(other, include_data=False, node="n", limit=1000)
    assert covered(other, ws.until_caught_up(other), head=5, silent=range(1, 6)).seqs == []
    client.append(topic, 5, 6, 7, node="n")
    frames = [frame for frame in ws.until_seq(topic, 8) if frame.event == "record"]
    assert [frame.seqs for frame in frames] == [[6, 7], [8]]
    assert covering(topic, 5).take(frames).data == [5, 6, 7]
    client.append(other, "theirs")
    *_, frame = ws.until_seq(other, 6)
    assert set(frame.data["records"][0]) == {"$seq", "$ts"}


def test_topics_add_up(client: Client, ws: WebSocket, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(5)]
    for number, name in enumerate(names):
        client.append(name, *([name] * (number + 1)))
        assert set(ws.subscribe(name)) == {name}
    frames = ws.until_caught_up(*names)
    for number, name in enumerate(names):
        client.append(name, "live")
        frames += ws.until_seq(name, number + 2)
    for number, name in enumerate(names):
        assert covered(name, frames, head=number + 2).data == [name] * (number + 1) + ["live"]


@pytest.mark.parametrize(
    "durability", [pytest.param(one, marks=[pytest.mark.more] * (one in {"memory", "ephemeral"})) for one in CLASSES]
)
def test_a_socket_watches_200_topics(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    names = [f"{topic}-{number}" for number in range(200)]
    for name in names:
        client.append(name, name, config={"durability": durability})
    assert set(ws.subscribe(*names)) == set(names)
    frames = ws.until_caught_up(*names)
    for name in names:
        client.append(name, "live")
    reached: set[str | None] = set()
    while len(reached) < 200:
        frames.append(ws.push())
        if frames[-1].data.get("to_seq") == 2:
            reached.add(frames[-1].topic)
    for name in names:
        assert covered(name, frames, head=2).data == [name, "live"]
    assert set(ws.unsubscribe(topics=names)) == set(names)
    client.append(names[0], "after")
    ws.quiet(0.1)


def test_a_subscribe_holds_up_to_256_topics(client: Client, ws: WebSocket, topic: str) -> None:
    names = [f"{topic}-{number}".ljust(255, "x") for number in range(256)]
    for name in names:
        client.put_topic(name)
    assert set(ws.subscribe(*names)) == set(names)
    ws.until_caught_up(*names)


@pytest.mark.parametrize(
    ("limit", "most"), [(None, 256), (0, 256), (1, 1), (7, 7), (256, 256), (1000, 1000), (10**12, 1000)]
)
def test_a_message_has_no_more_records_than_the_limit(
    client: Client, ws: WebSocket, topic: str, limit: int | None, most: int
) -> None:
    client.append(topic, *range(1100))
    ws.subscribe(topic, **({} if limit is None else {"limit": limit}))
    frames = ws.until_caught_up()
    assert covered(topic, frames, head=1100).data == list(range(1100))
    sizes = [len(frame.seqs) for frame in frames if frame.event == "record"]
    assert max(sizes) <= most
    # A clamped limit is the greatest, not the default.
    assert max(sizes) > most // 2


@pytest.mark.parametrize(("most", "count"), [(1, 1), (500, 1), (2500, 2), (6000, 5)])
def test_a_message_is_limited_in_bytes_but_has_a_record(
    client: Client, ws: WebSocket, topic: str, most: int, count: int
) -> None:
    client.append(topic, *(["x" * 998] * 10))
    ws.subscribe(topic, max_batch_bytes=most)
    frames = ws.until_caught_up()
    covered(topic, frames, head=10)
    sizes = [len(frame.seqs) for frame in frames if frame.event == "record"]
    # What a record takes beside its data is not said, so that one less may come; but one always comes.
    assert max(1, count - 1) <= max(sizes) <= count
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({}, 2, 3),
        ({"max_batch_bytes": 0}, 2, 3),
        ({"max_batch_bytes": 10**12}, 70, 84),
        ({"max_batch_bytes": 8 * MIB}, 70, 84),
    ],
)
def test_the_bytes_of_a_message_have_a_default_and_are_clamped(
    client: Client, ws: WebSocket, topic: str, fields: Any, least: int, most: int
) -> None:
    for _ in range(2):
        client.append(topic, *(["x" * 99_998] * 50))
    ws.subscribe(topic, **fields)
    frames = ws.until_caught_up()
    covered(topic, frames, head=100)
    count = max(len(frame.seqs) for frame in frames if frame.event == "record")
    # 0 is the default of diff or of watch; a batch may be smaller than what is asked for.
    assert 1 <= count <= (10 if fields.get("max_batch_bytes") == 0 else most)


def test_records_are_the_ones_of_a_read(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, records=[{"data": [1], "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}])
    for tags, meta in itertools.product((None, False, True), (None, False, True)):
        asked: dict[str, Any] = {"include_tags": tags, "include_meta": meta}
        asked = {name: value for name, value in asked.items() if value is not None}
        ws.subscribe(topic, **asked)
        found = covered(topic, ws.until_caught_up(), head=2).records
        assert found == client.read(topic, **asked)["records"]
        assert ("$tag" in found[0], "meta" in found[0]) == (tags is True, meta is not False)


def test_data_may_be_left_out(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, records=[{"data": "secret", "node": "n", "meta": {"k": "v"}}])
    ws.subscribe(topic, include_data=False)
    frame = ws.expect("record")
    assert b"secret" not in frame.text
    assert set(frame.data["records"][0]) == {"$seq", "$ts", "$node", "meta"}


@pytest.mark.parametrize(
    ("node", "left"),
    [
        ("a", [2, 3, 4, 6]),
        (["a"], [2, 3, 4, 6]),
        (["a", "b"], [3, 4, 6]),
        ([], [1, 2, 3, 4, 5, 6]),
        ("A", [1, 2, 3, 4, 5, 6]),
        (["a", "b", "c"], [3, 6]),
    ],
)
def test_records_of_the_named_nodes_are_dropped(
    client: Client, ws: WebSocket, topic: str, node: Any, left: list[int]
) -> None:
    nodes = ["a", "b", None, "c", "a", None]
    client.append(topic, records=[{"data": 1} if name is None else {"data": 1, "node": name} for name in nodes])
    ws.subscribe(topic, node=node)
    found = covered(topic, ws.until_caught_up(), head=6, silent=range(1, 7))
    assert (found.seqs, found.tombstones) == (left, [])


def test_the_node_filter_is_the_topics_to_switch_off(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, dedupe_node=False)
    client.append(topic, 1, 2, node="mine")
    ws.subscribe(topic, node="mine")
    assert covered(topic, ws.until_caught_up(), head=2).seqs == [1, 2]


def test_who_does_not_want_its_own_gets_those_of_others(client: Client, ws: WebSocket, topic: str) -> None:
    ws.publish(topic, *range(600), node="mine")
    ws.subscribe(topic, node="mine")
    found = covering(topic).take(ws.until_caught_up())
    assert (found.seqs, found.caught_up) == ([], [600])
    ws.publish(topic, *range(10), node="mine")
    client.append(topic, "theirs", node="theirs")
    found.take(ws.until_seq(topic, 611)).check(611, silent=range(1, 611))
    assert found.data == ["theirs"]


# unsubscribe


def test_after_an_unsubscribe_nothing_comes(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1)
    ws.subscribe(topic)
    ws.until_caught_up()
    assert ws.ask("unsubscribe", topic=topic, request_id=7) == {
        "op": "unsubscribed",
        "request_id": 7,
        "topics": [topic],
    }
    client.append(topic, 2)
    client.put_topic(topic, cap_records=1)
    client.delete_topic(topic)
    ws.quiet()


def test_some_are_left(client: Client, ws: WebSocket, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        client.append(name, 1)
    ws.subscribe(*names)
    frames = ws.until_caught_up(*names)
    answer = ws.unsubscribe(topics=names[:2])
    assert (sorted(answer), type(answer)) == (names[:2], list)
    for name in names:
        client.append(name, 2)
    frames += ws.until_seq(names[3], 2)
    if frames[-2].topic != names[2]:
        frames += ws.until_seq(names[2], 2)
    ws.quiet()
    for name in names:
        covered(name, frames, head=2 if name in names[2:] else 1)


def test_nothing_comes_after_the_answer_whatever_was_under_way(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(topic, *range(3000))
    client.put_topic(other)
    with appending(client, topic), WebSocket(client) as ws:
        for number in range(20):
            ws.subscribe(topic, other, limit=7)
            for _ in range(number):
                ws.next()
            ws.send("unsubscribe", topic=topic)
            while ws.next().op != "unsubscribed":
                pass
            head = client.append(other, 1)["head_seq"]
            frames = ws.until_seq(other, head)
            assert {frame.topic for frame in frames} == {other}
        ws.quiet()


def test_it_can_be_subscribed_to_again(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    found = covering(topic)
    for head in range(2, 6):
        ws.subscribe(topic, from_seq=found.at)
        found.take(ws.until_caught_up()).check(head)
        ws.unsubscribe(topic=topic)
        client.append(topic, head + 1)
    assert found.seqs == [1, 2, 3, 4, 5]


def test_what_is_not_subscribed_to_is_unsubscribed_from_in_peace(client: Client, ws: WebSocket, topic: str) -> None:
    absent = fresh_name("absent")
    client.append(topic, 1)
    for name in (topic, absent):
        # Whether one that was not subscribed to is listed is not said.
        assert set(ws.unsubscribe(topic=name)) <= {name}
        assert set(ws.unsubscribe(topics=[name])) <= {name}
    ws.subscribe(topic, tail=True)
    ws.expect("caught_up")
    answer = ws.unsubscribe(topics=[absent, topic])
    assert {topic} <= set(answer) <= {absent, topic}
    missing(client, absent)
    client.append(topic, 2)
    ws.quiet(0.1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": 1},
        {"topic": ["a"]},
        {"topic": {}},
        {"topics": "a"},
        {"topics": {"a": {}}},
        {"topics": [1]},
        {"topics": [["a"]]},
        {"topic": "a", "topics": ["a"]},
    ],
    ids=str,
)
def test_an_unsubscribe_has_a_topic_or_some(client: Client, ws: WebSocket, fields: Any) -> None:
    client.append("a", 1)
    ws.subscribe("a", tail=True)
    ws.expect("caught_up")
    ws.refused("invalid_request", "unsubscribe", "topic", **fields)
    head = client.append("a", 2)["head_seq"]
    ws.expect("record", topic="a", to_seq=head)


# publish


def test_a_publish_is_acked_with_its_seqs(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    ws.publish(topic, "x")
    answer = ws.ask("publish", topic=topic, records=[{"data": "a"}, {"data": "b"}], request_id="r")
    performance = answer.pop("performance")
    assert performance["server_total_ms"] >= 0
    assert answer == {
        "op": "ack",
        "request_id": "r",
        "topic": topic,
        "first_seq": 2,
        "last_seq": 3,
        "seqs": [2, 3],
        "head_seq": 3,
        "count": 2,
        "created": False,
        "deduped": False,
    }
    assert [record["data"] for record in client.read(topic)["records"]] == ["x", "a", "b"]


def test_a_publish_creates_what_is_missing(client: Client, ws: WebSocket, topic: str) -> None:
    assert ws.publish(topic, 1)["created"] is True
    assert ws.publish(topic, 1)["created"] is False
    assert ws.publish(fresh_name(), 1, create=True)["created"] is True
    assert client.state(topic)["config"]["durability"] == "disk"


def test_a_publish_that_must_not_create_does_not(client: Client, ws: WebSocket, topic: str) -> None:
    records = [{"data": 1}]
    error = ws.refused("topic_not_found", "publish", topic=topic, records=records, create=False)
    assert error["detail"]["topic"] == topic
    config = {"auto_create": False}
    ws.refused("topic_not_found", "publish", topic=topic, records=records, config=config)
    missing(client, topic)
    client.put_topic(topic)
    assert ws.publish(topic, 1, create=False)["seqs"] == [1]


def test_a_publish_may_bring_the_config_of_what_it_creates(client: Client, ws: WebSocket, topic: str) -> None:
    config = {"cap_records": 3, "durability": "fsync", "priority": 7}
    assert ws.publish(topic, 1, config=config)["created"] is True
    assert client.state(topic)["config"].items() >= config.items()
    # It counts only then, but is looked at always.
    ws.publish(topic, 1, config={"cap_records": 9})
    assert client.state(topic)["config"]["cap_records"] == 3
    ws.refused("invalid_request", "publish", "colour", topic=topic, records=[{"data": 1}], config={"colour": 1})
    ws.refused("invalid_request", "publish", "ttl_ms", topic=topic, records=[{"data": 1}], config={"ttl_ms": "x"})
    assert client.state(topic)["head_seq"] == 2


def test_seqs_can_be_left_out(ws: WebSocket, topic: str) -> None:
    answer = ws.publish(topic, 1, 2, 3, return_seqs=False)
    assert "seqs" not in answer
    assert (answer["first_seq"], answer["last_seq"], answer["count"]) == (1, 3, 3)
    assert ws.publish(topic, 1, return_seqs=True)["seqs"] == [4]


def test_a_repeat_is_deduped(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    first = ws.publish(topic, "a", "b", idempotency_key="k")
    assert (first["deduped"], first["seqs"]) == (False, [1, 2])
    ws.publish(topic, "c")
    again = ws.publish(topic, "other", idempotency_key="k")
    values = {"first_seq": 1, "last_seq": 2, "seqs": [1, 2], "count": 2, "head_seq": 3, "deduped": True}
    assert {name: again[name] for name in values} == values
    assert again["created"] is False
    # A key is the topic's, however it is told.
    assert client.append(topic, 1, idempotency_key="k")["deduped"] is True
    client.append(topic, 1, idempotency_key="of http")
    assert ws.publish(topic, 1, idempotency_key="of http")["deduped"] is True
    assert "seqs" not in ws.publish(topic, 1, idempotency_key="k", return_seqs=False)
    assert client.state(topic)["head_seq"] == 4


def test_repeats_that_arrive_together_are_done_once(client: Client, topic: str) -> None:
    client.put_topic(topic, durability="fsync")
    with all_open(WebSocket(client) for _ in range(10)) as sockets:
        for ws in sockets:
            ws.send("publish", topic=topic, records=[{"data": 1}], idempotency_key="k")
        answers = [ws.next_op("ack") for ws in sockets]
    assert sorted(answer["deduped"] for answer in answers) == [False] + [True] * 9
    assert {answer["first_seq"] for answer in answers} == {1}
    assert client.state(topic)["head_seq"] == 1


def test_a_publish_stores_what_an_append_stores(client: Client, ws: WebSocket, topic: str) -> None:
    before = time.time_ns() // 1_000_000
    record = {"data": {"x": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}
    ws.publish(topic, records=[record, {"data": None}], node="call", disable_backpressure=True, colour="ignored")
    full, bare = client.read(topic, include_tags=True)["records"]
    assert before - 5 <= full.pop("$ts") <= bare.pop("$ts")
    assert full == {"$seq": 1, "$tag": "t", "$node": "n", "meta": {"k": "v"}, "data": {"x": 1}}
    assert bare == {"$seq": 2, "$node": "call", "data": None}


@pytest.mark.parametrize(
    ("code", "field", "fields"),
    [
        ("invalid_request", "records", {}),
        ("invalid_request", "records", {"records": []}),
        ("invalid_request", "records", {"records": "x"}),
        ("invalid_request", "records", {"records": [1]}),
        ("invalid_request", "data", {"records": [{"data": 1}, {"tag": "t"}]}),
        ("invalid_request", "tag", {"records": [{"data": 1, "tag": 1}]}),
        ("invalid_request", "tag", {"records": [{"data": 1, "tag": "t" * 257}]}),
        ("invalid_request", "node", {"records": [{"data": 1, "node": "n" * 129}]}),
        ("invalid_request", "node", {"records": [{"data": 1}], "node": 1}),
        ("invalid_request", "node", {"records": [{"data": 1}], "node": "n" * 129}),
        ("invalid_request", "meta", {"records": [{"data": 1, "meta": {"k": 5}}]}),
        ("invalid_request", "meta", {"records": [{"data": 1, "meta": {"_topics_x": "v"}}]}),
        ("invalid_request", "meta", {"records": [{"data": 1, "meta": {"k": "v" * 17_000}}]}),
        ("invalid_request", "create", {"records": [{"data": 1}], "create": "yes"}),
        ("invalid_request", "config", {"records": [{"data": 1}], "config": []}),
        ("invalid_request", "idempotency_key", {"records": [{"data": 1}], "idempotency_key": 1}),
        ("invalid_request", "idempotency_key", {"records": [{"data": 1}], "idempotency_key": ""}),
        ("invalid_request", "idempotency_key", {"records": [{"data": 1}], "idempotency_key": "k" * 257}),
        ("invalid_request", "return_seqs", {"records": [{"data": 1}], "return_seqs": "x"}),
        ("invalid_request", "disable_backpressure", {"records": [{"data": 1}], "disable_backpressure": 5}),
        ("batch_too_large", "", {"records": [{"data": 1}] * 10_001}),
        ("record_too_large", "", {"records": [{"data": 1}, {"data": "x" * MIB}]}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_bad_publish_is_refused_and_stores_nothing(
    client: Client, ws: WebSocket, topic: str, code: str, field: str, fields: Any
) -> None:
    error = ws.refused(code, "publish", field, topic=topic, **fields, request_id="x")
    assert error["request_id"] == "x"
    missing(client, topic)
    assert ws.publish(topic, 1)["seqs"] == [1]
    ws.refused(code, "publish", field, topic=topic, **fields)
    assert client.state(topic)["head_seq"] == 1


@pytest.mark.parametrize("fields", [{}, {"topic": 1}, {"topic": None}, {"topic": ["a"]}, {"topics": {"a": {}}}])
def test_a_publish_has_one_topic(ws: WebSocket, fields: Any) -> None:
    ws.refused("invalid_request", "publish", "topic", records=[{"data": 1}], **fields)


def test_what_does_not_fit_now_is_topic_full(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, discard="reject", cap_records=3)
    ws.publish(topic, 1, 2)
    detail = ws.refused("topic_full", "publish", topic=topic, records=[{"data": 1}] * 2)["detail"]
    values = {"cap_records": 3, "cap_bytes": 0, "head_seq": 2, "earliest_seq": 1}
    assert {name: detail[name] for name in values} == values
    assert ws.publish(topic, 3)["seqs"] == [3]
    ws.refused("record_too_large", "publish", topic=topic, records=[{"data": 1}] * 4)
    client.delete_records(topic, before_seq=2)
    assert ws.publish(topic, 4)["seqs"] == [4]


def publish_raw(ws: WebSocket, topic: str, data: bytes) -> None:
    """Publish one record whose `data` is exactly these bytes."""
    name = json.dumps(topic).encode()
    ws.send_bytes(raw_frame(TEXT, b'{"op":"publish","topic":%s,"records":[{"data":%s}]}' % (name, data)))


def in_text(frame: Frame, data: bytes) -> bool:
    return re.search(rb'"data"\s*:\s*' + re.escape(data) + rb"\s*[,}]", frame.text) is not None


@pytest.mark.parametrize("data", [*AS_WRITTEN, b"1.0e5", b"[" * 400 + b"]" * 400])
def test_data_is_byte_for_byte_what_was_written(client: Client, ws: WebSocket, topic: str, data: bytes) -> None:
    publish_raw(ws, topic, data)
    ws.next_op("ack")
    ws.subscribe(topic)
    assert in_text(ws.expect("record"), data)
    assert has_data(client.post(f"/v0/topics/{topic}/diff"), data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"a":1,\r\n"b":2}', b'{"a":1,  "b":2}'),
        (b"[\n1\r,\n\n2\r\n]", b"[ 1 ,  2  ]"),
        (b'["a\\n",\n"b"]', b'["a\\n", "b"]'),
    ],
)
def test_line_breaks_between_tokens_become_spaces(
    client: Client, ws: WebSocket, topic: str, data: bytes, expected: bytes
) -> None:
    publish_raw(ws, topic, data)
    ws.next_op("ack")
    ws.subscribe(topic)
    assert in_text(ws.expect("record"), expected)
    assert has_data(client.post(f"/v0/topics/{topic}/diff"), expected)


def is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("data", [data for data in REFUSED if is_utf8(data)])
def test_what_is_not_json_is_refused_and_nothing_is_stored(
    client: Client, ws: WebSocket, topic: str, data: bytes
) -> None:
    publish_raw(ws, topic, data)
    assert ws.next_op("error")["code"] == "invalid_request"
    missing(client, topic)
    ws.works()


def test_the_order_of_publishes_is_that_of_their_seqs(
    client: Client, ws: WebSocket, topic: str, durability: str
) -> None:
    client.put_topic(topic, durability=durability)
    for number in range(300):
        ws.send("publish", topic=topic, records=[{"data": number}] * (number % 3 + 1), request_id=number)
    acks = [ws.next_op("ack") for _ in range(300)]
    acks.sort(key=lambda ack: int(ack["request_id"]))
    assert [seq for ack in acks for seq in ack["seqs"]] == list(range(1, 601))
    ws.subscribe(topic)
    data = covered(topic, ws.until_caught_up(), head=600).data
    assert data == [number for number in range(300) for _ in range(number % 3 + 1)]


def test_a_client_reads_its_own_write_at_once(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    for number in range(30):
        seq = ws.publish(topic, number)["first_seq"]
        assert [record["data"] for record in client.read(topic, seq - 1)["records"]] == [number]


def test_what_is_published_is_pushed_to_who_published_it_too(ws: WebSocket, topic: str) -> None:
    ws.publish(topic, 0)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    for number in range(1, 50):
        ws.publish(topic, number)
    found.take(ws.until_seq(topic, 50)).check(50)
    assert found.data == list(range(50))


def test_publishers_at_once_get_contiguous_seqs(client: Client, topic: str) -> None:
    def publish(ws: WebSocket) -> list[list[int]]:
        return [ws.publish(topic, *([1] * 5))["seqs"] for _ in range(20)]

    with all_open(WebSocket(client) for _ in range(8)) as sockets, ThreadPoolExecutor(8) as pool:
        taken = [seqs for found in pool.map(publish, sockets) for seqs in found]
    assert all(seqs == list(range(seqs[0], seqs[0] + 5)) for seqs in taken)
    assert sorted(seq for seqs in taken for seq in seqs) == list(range(1, 801))


def test_a_message_may_be_as_large_as_a_body(client: Client, ws: WebSocket, topic: str) -> None:
    """A little less than the 64 MiB that are the default."""
    value = "x" * (MIB - 2)
    answer = ws.publish(topic, *([value] * 63))
    assert answer["count"] == 63
    ws.subscribe(topic)
    found = covered(topic, ws.until_caught_up(), head=63)
    assert found.data == [value] * 63


def test_a_large_publish_has_little_beside_its_records(client: Client, ws: WebSocket, topic: str) -> None:
    """It is decoded in steps; 60 MB in a member that nobody knows took half a second in one."""
    request_id = {"a": [{"b": [1, {"at": 0}]}, "c"]}
    records = [{"data": "x" * 700_000}, {"data": [{"y": "x" * 700_000}]}]
    assert ws.publish(topic, records=records, request_id=request_id, colour=[{"ignored": 1}])["count"] == 2
    ws.send("publish", topic=topic, records=[{"data": 1}], colour="x" * (2 * MIB))
    error = ws.next_op("error")
    assert (error["code"], error["detail"]["field"]) == ("invalid_request", "body")
    ws.send("ping", colour="x" * (2 * MIB))
    assert ws.next_op("error")["code"] == "payload_too_large"
    ws.works()
    assert client.state(topic)["head_seq"] == 2


def test_a_batch_holds_up_to_ten_thousand_records(ws: WebSocket, topic: str) -> None:
    assert ws.publish(topic, *range(10_000))["seqs"] == list(range(1, 10_001))
    ws.subscribe(topic)
    assert covered(topic, ws.until_caught_up(), head=10_000).data == list(range(10_000))


# ping, and what is no command


def test_a_ping_is_answered_with_a_pong(ws: WebSocket) -> None:
    assert ws.ask("ping", request_id="x") == {"op": "pong", "request_id": "x"}
    ws.send("ping", colour="ignored", topic=5)
    assert ws.next_op("pong") == {"op": "pong"}


def test_many_commands_in_a_row_are_all_answered_in_order(ws: WebSocket) -> None:
    for number in range(2000):
        ws.send("ping", request_id=number)
    assert [ws.next_op("pong")["request_id"] for _ in range(2000)] == list(range(2000))


def test_who_sends_much_and_reads_late_gets_every_answer(client: Client) -> None:
    """The queue for what goes out is short: what is not read holds up the reading of commands, and loses none."""
    count = 20_000
    command = b"".join(raw_frame(TEXT, b'{"op":"ping","request_id":"%s%d"}' % (b"x" * 400, n)) for n in range(100))
    # Not smaller: with both windows nearly closed, TCP itself goes on by probes, a segment each.
    with WebSocket(client, receive_buffer=64 << 10) as ws, ThreadPoolExecutor(1) as pool:
        ws.socket.settimeout(60)
        sender = pool.submit(ws.socket.sendall, command * (count // 100))
        time.sleep(2)
        for number in range(count):
            while not ws.messages:
                part = ws.socket.recv(1 << 16)
                assert part
                ws._take(part)
            answer = ws.messages.pop(0).body
            assert answer["request_id"] == "x" * 400 + str(number % 100)
        sender.result(30)


NO_COMMANDS = [
    "{}",
    '{"request_id":"x"}',
    '{"op":"nothing"}',
    '{"op":""}',
    '{"op":"Ping"}',
    '{"op":"ping "}',
    '{"op":"pong"}',
    '{"op":"record"}',
    '{"op":1}',
    '{"op":null}',
    '{"op":true}',
    '{"op":["ping"]}',
    '{"op":7,"request_id":"x"}',
    '{"op":null,"request_id":1}',
    '{"request_id":7,"op":"nothing"}',
    '{"op":{"op":"ping"}}',
]


@pytest.mark.parametrize("text", NO_COMMANDS)
def test_what_has_no_known_op_is_refused(ws: WebSocket, text: str) -> None:
    ws.send_text(text)
    error = ws.next_op("error")
    assert error["code"] == "invalid_request"
    assert "op" in json.dumps(error)
    assert error.get("request_id") == json.loads(text).get("request_id")
    ws.quiet(0.05)
    ws.works()


NO_OBJECTS = [
    "",
    " ",
    "{",
    "}",
    "[]",
    '[{"op":"ping"}]',
    "null",
    "true",
    "1",
    '"ping"',
    "ping",
    '{"op":"ping"}{"op":"ping"}',
    '{"op":"ping"}\n{"op":"ping"}',
    '{"op":"ping",}',
    "{'op':'ping'}",
    '{"op":"ping","x":NaN}',
    '{"op":"ping","x":01}',
    '{"op":"ping","x":"\x01"}',
    '{"op":"ping","x":"\\q"}',
    '{"op":"ping","x":"\\u12"}',
    '{"op":"ping","x":' + "[" * 600 + "]" * 600 + "}",
    '{"op":"ping","x":' + "[" * 100_000,
    '{"op":"ping","x":' + '{"a":' * 100_000,
]


@pytest.mark.parametrize("text", NO_OBJECTS, ids=lambda text: repr(text)[:40])
def test_what_is_no_object_is_refused(ws: WebSocket, text: str) -> None:
    ws.send_text(text)
    error = ws.next_op("error")
    assert (error["code"], "request_id" in error) == ("invalid_request", False)
    # One message, one answer.
    ws.quiet(0.05)
    ws.works()


def test_space_around_an_object_does_not_matter(ws: WebSocket) -> None:
    ws.send_text(' \r\n\t{ "op" :\n"ping" , "request_id":1 }\r\n ')
    assert ws.next_op("pong")["request_id"] == 1


@pytest.mark.parametrize(
    "content", [b"", PING_COMMAND, b"\x00\xff", b"x" * 100_000], ids=["empty", "json", "bytes", "large"]
)
def test_a_binary_message_is_refused(ws: WebSocket, content: bytes) -> None:
    ws.send_bytes(raw_frame(BINARY, content))
    assert ws.next_op("error")["code"] == "invalid_request"
    middle = len(content) // 2
    ws.send_bytes(raw_frame(BINARY, content[:middle], fin=False) + raw_frame(CONTINUATION, content[middle:]))
    assert ws.next_op("error")["code"] == "invalid_request"
    ws.quiet(0.05)
    ws.works()


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b'{"op":"ping","x":"\xff"}',
        b'{"op":"ping","x":"\xc0\xaf"}',
        b'{"op":"ping","x":"\xed\xa0\x80"}',
        b'{"op":"ping","x":"\xf5\x80\x80\x80"}',
        b'{"op":"ping","x":"\xf0\x9f',
    ],
)
def test_text_that_is_not_utf8_is_refused(client: Client, ws: WebSocket, content: bytes) -> None:
    ws.send_bytes(raw_frame(TEXT, content))
    # The protocol itself says 1007.
    try:
        assert ws.next_op("error")["code"] == "invalid_request"
        ws.works()
    except Closed as closed:
        code = closed.code
    else:
        code = 1007
    assert code == 1007
    with WebSocket(client) as other:
        other.works()


def test_mistakes_do_not_add_up(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    for text in (NO_COMMANDS + NO_OBJECTS[:18]) * 10:
        ws.send_text(text)
        assert ws.next_op("error")["code"] == "invalid_request"
    client.append(topic, 2)
    found.take(ws.until_seq(topic, 2)).check(2)


# The protocol


def test_a_message_may_come_in_fragments(client: Client, ws: WebSocket, topic: str) -> None:
    content = json.dumps(
        {"op": "publish", "topic": topic, "records": [{"data": "é漢😀" * 20}]}, ensure_ascii=False
    ).encode()
    # A byte each, also within a character.
    pieces = [content[place : place + 1] for place in range(len(content))]
    frames = [raw_frame(TEXT, pieces[0], fin=False)]
    frames += [raw_frame(CONTINUATION, piece, fin=False) for piece in pieces[1:]]
    ws.send_bytes(b"".join(frames) + raw_frame(CONTINUATION, b""))
    ws.next_op("ack")
    assert client.read(topic)["records"][0]["data"] == "é漢😀" * 20


def test_control_frames_may_come_between_fragments(ws: WebSocket) -> None:
    ws.send_bytes(raw_frame(TEXT, PING_COMMAND[:5], fin=False))
    ws.send_bytes(raw_frame(PING, b"between"))
    ws.send_bytes(raw_frame(CONTINUATION, b"", fin=False))
    ws.send_bytes(raw_frame(PONG, b"not asked for"))
    ws.send_bytes(raw_frame(CONTINUATION, PING_COMMAND[5:]))
    ws.next_op("pong")
    assert ws.pongs == [b"between"]


def test_frames_may_come_in_pieces_and_together(ws: WebSocket) -> None:
    for byte in raw_frame(TEXT, PING_COMMAND):
        ws.send_bytes(bytes([byte]))
        time.sleep(0.001)
    ws.next_op("pong")
    ws.send_bytes(raw_frame(TEXT, PING_COMMAND) * 50)
    for _ in range(50):
        ws.next_op("pong")
    ws.quiet(0.05)


def test_a_ping_frame_is_answered_with_its_content(ws: WebSocket) -> None:
    payloads = [b"", b"x", b"\x00\xff", b"y" * 125]
    ws.send_pings(*payloads)
    ws.works()
    assert ws.pongs == payloads


@pytest.mark.parametrize(
    "frame",
    [
        raw_frame(TEXT, PING_COMMAND, mask=False),
        raw_frame(3, b""),
        raw_frame(11, b""),
        raw_frame(TEXT, PING_COMMAND, reserved=4),
        raw_frame(TEXT, PING_COMMAND, reserved=2),
        raw_frame(CONTINUATION, PING_COMMAND),
        raw_frame(TEXT, b"", fin=False) + raw_frame(TEXT, PING_COMMAND),
        raw_frame(PING, b"x" * 126),
        raw_frame(PING, b"", fin=False),
        raw_frame(CLOSE, b"x"),
        raw_frame(CLOSE, (999).to_bytes(2, "big")),
        raw_frame(CLOSE, (1006).to_bytes(2, "big")),
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ],
    ids=itertools.count(1),
)
def test_a_breach_of_the_protocol_closes_that_socket(client: Client, frame: bytes) -> None:
    with WebSocket(client) as ws, WebSocket(client) as other:
        ws.send_bytes(frame)
        messages, code = ws.rest()
        assert code in (None, 1002), code
        assert [message for message in messages if message.op == "pong"] == []
        other.works()


@pytest.mark.parametrize(
    ("code", "reason"),
    [(1000, None), (1000, "bye"), (1001, "going away"), (3000, "own"), (4999, "own"), (None, None)],
)
def test_a_close_is_answered(client: Client, topic: str, code: int | None, reason: str | None) -> None:
    client.append(topic, 1)
    with WebSocket(client) as ws:
        ws.subscribe(topic)
        ws.until_caught_up()
        ws.send_close(code, reason)
        messages, answered = ws.rest()
        assert messages == []
        assert answered in ((1000, 1005) if code is None else (code, 1000)), answered
        ws.ends_within()


def test_a_close_is_answered_whatever_is_under_way(client: Client, topic: str) -> None:
    client.append(topic, *(["x" * 1000] * 9000))
    with appending(client, topic):
        for _ in range(10):
            with subscribed(client, topic) as ws:
                ws.next()
                ws.send_close(1000)
                messages, code = ws.rest()
                assert code == 1000
                assert all(message.op in ("record", "caught_up") for message in messages)
                ws.ends_within()


# Pushes


def test_pushes_have_the_fields_that_are_promised(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 6))
    ws.subscribe(topic)
    tombstone, record, caught_up = (ws.next() for _ in range(3))
    assert tombstone.body == {
        "op": "tombstone",
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 2,
        "earliest_seq": 3,
        "head_seq": 5,
    }
    assert record.body == {
        "op": "record",
        "topic": topic,
        "from_seq": 2,
        "to_seq": 5,
        "head_seq": 5,
        "records": client.read(topic, 2)["records"],
    }
    assert caught_up.body == {"op": "caught_up", "topic": topic, "head_seq": 5}
    client.delete_topic(topic)
    assert ws.next().body == {"op": "topic_deleted", "topic": topic, "head_seq": 5, "reason": "deleted"}


def test_records_come_as_they_are_appended(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "a", "b", "c")
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    client.append(topic, "d")
    found.take(ws.until_seq(topic, 4))
    client.append(topic, "e", "f")
    found.take(ws.until_seq(topic, 6)).check(6)
    ws.quiet()
    assert found.data == list("abcdef")
    assert found.records == client.read(topic)["records"]
    assert (found.tombstones, found.caught_up) == ([], [3])


def test_an_empty_topic_is_caught_up_with_at_once(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic)
    ws.subscribe(topic)
    ws.expect("caught_up", topic=topic, head_seq=0)
    ws.quiet()
    client.append(topic, 1)
    ws.expect("record", from_seq=0, to_seq=1, head_seq=1)
    ws.quiet()


def test_tail_is_caught_up_at_once(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    ws.subscribe(topic, tail=True)
    ws.expect("caught_up", topic=topic, head_seq=2)
    client.append(topic, 3)
    ws.expect("record", topic=topic, from_seq=2, to_seq=3, head_seq=3)


def test_the_head_is_caught_up_with_after_the_backlog_and_once(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(700))
    ws.subscribe(topic)
    *frames, last = ws.until_caught_up()
    assert (last.topic, last.data["head_seq"]) == (topic, 700)
    assert covered(topic, frames, head=700).caught_up == []
    for number in range(701, 711):
        # What is delivered as it comes is no backlog.
        client.append(topic, number)
        ws.expect("record", topic=topic, from_seq=number - 1, to_seq=number)
    ws.quiet()


def test_thousands_of_records_come_in_order(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    for start in range(0, 9000, 3000):
        client.append(topic, *range(start, start + 3000), return_seqs=False)
    found.take(ws.until_seq(topic, 9000)).check(9000)
    assert found.data == list(range(9000))


def test_records_that_are_appended_meanwhile_come_all(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)

    def publish(other: WebSocket) -> None:
        for number in range(150):
            other.publish(topic, *([number] * (number % 7 + 1)))

    found = covering(topic)
    with WebSocket(client) as other, ThreadPoolExecutor(1) as pool, subscribed(client, topic) as ws:
        done = pool.submit(publish, other)
        found.take(ws.until_caught_up())
        done.result(30)
        head = client.state(topic)["head_seq"]
        while found.at < head:
            found.take([ws.push()])
    found.check(head)
    assert found.tombstones == []
    assert found.data == sorted(found.data)


def test_records_of_the_greatest_size_come_whole(client: Client, ws: WebSocket, topic: str) -> None:
    values = [letter * (MIB - 2) for letter in "abcdefgh"]
    for value in values:
        client.append(topic, value)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    ws.publish(topic, "z" * (MIB - 2))
    found.take(ws.until_seq(topic, 9)).check(9)
    assert found.data == [*values, "z" * (MIB - 2)]


def test_diff_sse_and_websocket_agree(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=500)
    client.append(topic, *range(700))
    client.tagged(topic, *("ab" * 20))
    client.delete_records(topic, match="b")
    client.append(topic, 1, node="n")
    ws.subscribe(topic, node="n", include_tags=True)
    with stream(client, topic, node="n", include_tags="true") as events:
        told = Covered(topic).take(events.until_caught_up())
    found = covering(topic).take(ws.until_caught_up())
    assert (found.records, found.tombstones, found.caught_up) == (told.records, told.tombstones, told.caught_up)
    assert found.records == client.read(topic, node="n", include_tags=True, limit=1000)["records"]


def test_a_queue_can_be_subscribed_to(client: Client, ws: WebSocket, topic: str) -> None:
    ws.publish(topic, "job", config={"type": "queue"})
    ws.subscribe(topic)
    assert covered(topic, ws.until_caught_up(), head=1).data == ["job"]


def test_what_is_delivered_counts_as_read(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1)
    assert client.state(topic, touch="false")["last_read_ts"] is None
    ws.subscribe(topic)
    ws.until_caught_up()
    until(lambda: client.state(topic, touch="false")["last_read_ts"] is not None)


# Tombstones


@pytest.mark.parametrize(("from_seq", "gap"), [(0, (1, 3)), (1, (2, 3)), (2, (3, 3)), (3, None), (4, None), (5, None)])
def test_what_was_evicted_before_is_too_old(client: Client, ws: WebSocket, topic: str, from_seq: int, gap: Any) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    ws.subscribe(topic, from_seq=from_seq)
    found = covered(topic, ws.until_caught_up(), from_seq, head=5)
    assert found.gaps == ([] if gap is None else [gap])
    assert set(found.reasons) <= {"from_seq_too_old"}


def test_what_expired_before_is_too_old(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, ttl_ms=60)
    client.append(topic, 1, 2)
    until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
    ws.subscribe(topic)
    ws.expect("tombstone", topic=topic, reason="from_seq_too_old", gap_from=1, gap_to=2, earliest_seq=3, head_seq=2)
    ws.expect("caught_up", topic=topic, head_seq=2)
    ws.quiet(0.1)


def test_what_went_for_more_than_one_cause_is_too_old(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 6))
    time.sleep(1.05)
    client.put_topic(topic, ttl_ms=1000)
    client.append(topic, 6)
    client.put_topic(topic, ttl_ms=0)
    assert client.read(topic)["tombstone"]["reason"] == "mixed"
    ws.subscribe(topic)
    found = covered(topic, ws.until_caught_up(), head=6)
    assert (found.gaps, found.reasons, found.seqs) == ([(1, 5)], ["from_seq_too_old"], [6])


def test_what_goes_after_its_delivery_is_not_announced(client: Client, ws: WebSocket, topic: str) -> None:
    other = fresh_name()
    client.put_topic(topic, ttl_ms=1500)
    client.put_topic(other, cap_records=2)
    client.append(topic, 1, 2)
    ws.subscribe(topic, other)
    frames = ws.until_caught_up(topic, other)
    until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
    ws.quiet()
    for number in range(1, 6):
        client.append(other, number)
        frames += ws.until_seq(other, number)
    client.append(topic, 3)
    frames += ws.until_seq(topic, 3)
    assert [frame for frame in frames if frame.event == "tombstone"] == []
    covered(topic, frames, head=3)
    covered(other, frames, head=5)


def test_what_is_evicted_before_its_delivery_is_announced_by_its_cause(
    client: Client, ws: WebSocket, topic: str
) -> None:
    client.put_topic(topic, cap_records=3)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    client.append(topic, *range(1, 11))
    found.take(ws.until_seq(topic, 10)).check(10)
    # On a subscription that stands it is not too old but evicted.
    assert (found.gaps, found.reasons, found.seqs) == ([(1, 7)], ["cap"], [8, 9, 10])


def test_a_record_that_never_fits_is_announced(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_bytes=5)
    ws.subscribe(topic)
    ws.until_caught_up()
    ws.publish(topic, "too large to stay")
    ws.expect("tombstone", topic=topic, reason="cap", gap_from=1, gap_to=1, earliest_seq=2, head_seq=1)


def test_a_repeated_subscribe_may_be_too_old(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    ws.subscribe(topic)
    ws.until_caught_up()
    for number in range(1, 6):
        client.append(topic, number)
        ws.until_seq(topic, number)
    assert ws.subscribe(topic, from_seq=1)[topic] == {"from_seq": 1, "head_seq": 5, "earliest_seq": 4}
    found = covered(topic, ws.until_caught_up(), 1, head=5)
    assert (found.gaps, found.reasons, found.seqs) == ([(2, 3)], ["from_seq_too_old"], [4, 5])


@pytest.mark.parametrize("from_seq", [3, 1000, 2**64 - 1])
def test_who_is_beyond_the_head_knows_another_instance(
    client: Client, ws: WebSocket, topic: str, from_seq: int
) -> None:
    client.append(topic, "a", "b")
    answer = ws.subscribe(topic, from_seq=from_seq)[topic]
    assert (answer["head_seq"], answer["earliest_seq"]) == (2, 1)
    frames = ws.until_caught_up()
    values = {"reason": "recreated", "gap_from": 1, "gap_to": 2, "earliest_seq": 1, "head_seq": 2}
    assert (frames[0].event, frames[0].data) == ("tombstone", {"topic": topic} | values)
    found = covered(topic, frames, from_seq, head=2)
    assert (found.data, found.caught_up, found.reasons) == (["a", "b"], [2], ["recreated"])
    client.append(topic, "c")
    ws.expect("record", from_seq=2, to_seq=3)


def test_who_is_beyond_the_head_of_nothing(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic)
    ws.subscribe(topic, from_seq=5)
    ws.expect("tombstone", reason="recreated", gap_from=1, gap_to=0, earliest_seq=1, head_seq=0)
    ws.expect("caught_up", head_seq=0)
    client.append(topic, "a")
    assert ws.expect("record", from_seq=0, to_seq=1).seqs == [1]


def test_recreated_describes_the_new_instance_whatever_it_has_evicted(
    client: Client, ws: WebSocket, topic: str
) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    ws.subscribe(topic, from_seq=77)
    found = covered(topic, ws.until_caught_up(), 77, head=5)
    assert (found.reasons, found.gaps, found.data) == (["recreated"], [(1, 5)], [4, 5])


# Deletions


def test_deletions_before_are_silent(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "a", "b", "a", "c", "b")
    client.delete_records(topic, match="b")
    client.delete_records(topic, before_seq=2)
    ws.subscribe(topic)
    found = covered(topic, ws.until_caught_up(), head=5, silent=[1, 2, 5])
    assert (found.seqs, found.tombstones) == ([3, 4], [])


def test_deletions_after_are_silent(client: Client, ws: WebSocket, topic: str) -> None:
    client.tagged(topic, "a", "b", "a")
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    client.delete_records(topic, match="b")
    client.delete_records(topic, before_seq=10)
    ws.quiet()
    client.append(topic, "after")
    found.take(ws.until_seq(topic, 4)).check(4)
    assert (found.seqs, found.tombstones) == ([1, 2, 3, 4], [])


def test_a_topic_of_deleted_records_is_caught_up_with(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(600))
    client.delete_records(topic, before_seq=601)
    ws.subscribe(topic)
    found = covered(topic, ws.until_caught_up(), head=600, silent=range(1, 601))
    assert (found.seqs, found.tombstones, found.caught_up) == ([], [], [600])
    client.append(topic, "after")
    found.take(ws.until_seq(topic, 601)).check(601, silent=range(1, 601))


# Topics that go


def test_a_deleted_topic_ends_but_the_socket_goes_on(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    ws.subscribe(topic)
    ws.until_caught_up()
    client.delete_topic(topic)
    ws.expect("topic_deleted", topic=topic, head_seq=2, reason="deleted")
    ws.refused("topic_not_found", "subscribe", topic=topic)
    # One of the same name is another topic.
    client.append(topic, "new", "newer", "newest")
    ws.quiet()
    assert set(ws.unsubscribe(topic=topic)) <= {topic}
    assert ws.subscribe(topic)[topic] == {"from_seq": 0, "head_seq": 3, "earliest_seq": 1}
    found = covered(topic, ws.until_caught_up(), head=3)
    assert (found.data, found.tombstones) == (["new", "newer", "newest"], [])
    ws.publish(topic, "live")
    ws.expect("record", from_seq=3, to_seq=4)
    client.delete_topic(topic)
    ws.expect("topic_deleted", topic=topic, head_seq=4)
    ws.works()


def test_who_comes_back_with_a_cursor_of_the_old_instance_is_told(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(5))
    ws.subscribe(topic)
    ws.until_caught_up()
    client.delete_topic(topic)
    ws.expect("topic_deleted", head_seq=5)
    client.append(topic, "new")
    ws.subscribe(topic, from_seq=5)
    found = covered(topic, ws.until_caught_up(), 5, head=1)
    assert (found.reasons, found.data) == (["recreated"], ["new"])


def test_the_other_topics_go_on(client: Client, ws: WebSocket, topic: str) -> None:
    other = fresh_name()
    for name in (topic, other):
        client.append(name, 1)
    ws.subscribe(topic, other)
    ws.until_caught_up(topic, other)
    client.delete_topic(topic)
    ws.expect("topic_deleted", topic=topic, head_seq=1)
    client.append(other, 2)
    ws.expect("record", topic=other, from_seq=1, to_seq=2)
    ws.quiet(0.1)


def test_a_publish_may_create_again_what_was_deleted(client: Client, ws: WebSocket, topic: str) -> None:
    ws.publish(topic, *range(5))
    ws.subscribe(topic)
    ws.until_caught_up()
    client.delete_topic(topic)
    ws.expect("topic_deleted")
    answer = ws.publish(topic, 1)
    assert (answer["created"], answer["seqs"]) == (True, [1])
    ws.quiet(0.1)


def test_a_topic_that_goes_within_its_backlog(client: Client, topic: str) -> None:
    for _ in range(10):
        client.append(topic, *(["x" * 500] * 5000), return_seqs=False)
        with subscribed(client, topic, limit=10) as ws:
            frames = ws.until_seq(topic, 10)
            client.delete_topic(topic)
            *more, last = ws.until(lambda frame: frame.event == "topic_deleted")
            found = covering(topic).take(frames + more)
            assert found.tombstones == []
            assert last.data["head_seq"] == 5000
            ws.quiet(0.05)
            ws.works()


def test_all_hear_that_a_topic_is_deleted(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with all_open(subscribed(client, topic) for _ in range(10)) as sockets:
        for ws in sockets:
            ws.until_caught_up()
        client.delete_topic(topic)
        for ws in sockets:
            ws.expect("topic_deleted", topic=topic)
            ws.works()


# Several sockets


@contextmanager
def appending(client: Client, topic: str) -> Iterator[None]:
    """Somebody else appends all the while."""
    stop = threading.Event()

    def append(other: Client) -> None:
        while not stop.is_set():
            other.append(topic, *(["x" * 100] * 20))
            time.sleep(0.002)

    with Client(client.daemon) as other, ThreadPoolExecutor(1) as pool:
        done = pool.submit(append, other)
        try:
            yield
        finally:
            stop.set()
            done.result(30)


def test_sockets_of_a_topic_get_the_same(client: Client, topic: str) -> None:
    client.append(topic, *range(300))
    with all_open(subscribed(client, topic) for _ in range(25)) as sockets:
        for number in range(300, 320):
            client.append(topic, number)
        found = [covering(topic).take(ws.until_seq(topic, 320)) for ws in sockets]
    for one in found:
        one.check(320)
        assert one.records == found[0].records
    assert found[0].data == list(range(320))


def test_sockets_have_subscriptions_of_their_own(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    with subscribed(client, topic) as first, subscribed(client, topic, from_seq=2) as second, WebSocket(client) as none:
        covered(topic, first.until_caught_up(), head=3)
        covered(topic, second.until_caught_up(), 2, head=3)
        first.unsubscribe(topic=topic)
        none.unsubscribe(topic=topic)
        client.append(topic, 4)
        second.expect("record", from_seq=3, to_seq=4)
        first.quiet(0.1)
        none.quiet(0.05)


def test_300_sockets_at_once(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with all_open(subscribed(client, topic) for _ in range(300)) as sockets:
        for ws in sockets:
            covered(topic, ws.until_caught_up(), head=1)
        client.append(topic, 2)
        for ws in sockets:
            ws.expect("record", from_seq=1, to_seq=2)
        for ws in sockets:
            ws.send("publish", topic=topic, records=[{"data": 1}], request_id="x")
        assert sorted(ws.answer("x")["first_seq"] for ws in sockets) == list(range(3, 303))
        for ws in sockets:
            covered(topic, ws.until_seq(topic, 302), 2, head=302)


def test_sockets_are_counted_and_freed(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.append("a", 1)
        assert gauge(client, "topics_ws_connections") == 0
        with all_open(WebSocket(client) for _ in range(3)) as sockets:
            assert gauge(client, "topics_ws_connections") == 3
            sockets[0].subscribe("a")
            sockets[0].until_caught_up()
            sockets[0].send_close()
            sockets[0].rest()
            until(lambda: gauge(client, "topics_ws_connections") == 2)
            # Without a word.
            sockets[1].subscribe("a")
            sockets[1].hang_up()
            until(lambda: gauge(client, "topics_ws_connections") == 1)
            sockets[2].send_bytes(raw_frame(3, b""))
            sockets[2].rest()
            until(lambda: gauge(client, "topics_ws_connections") == 0)
        with subscribed(client, "a") as ws:
            # It has no more to say, and goes without a close.
            ws.socket.shutdown(socket.SHUT_WR)
            until(lambda: gauge(client, "topics_ws_connections") == 0)
        for _ in range(50):
            with subscribed(client, "a") as ws:
                ws.send("publish", topic="a", records=[{"data": 1}])
        until(lambda: gauge(client, "topics_ws_connections") == 0)
        text = client.get("/v0/metrics").text
        assert re.search(r"^topics_ws_connections 0(\.0)?$", text, re.MULTILINE)
        until(lambda: bool(client.state("a")["head_seq"] >= 1))


def test_how_many_streams_there_may_be_is_a_setting(tmp_path: Path) -> None:
    with running(tmp_path, max_sse_connections=2) as client:
        client.append("a", 1)
        with WebSocket(client) as ws, stream(client, "a") as events:
            events.until_caught_up()
            status, headers, body = shake_hands(client)
            assert status == 429, (status, body[:500])
            assert "retry-after" in headers
            detail = envelope(json.loads(body), "throttled")["detail"]
            assert (detail["limit"], detail["max"]) == ("max_sse_connections", 2)
            ws.works()
            ws.send_close()
            ws.rest()
            until(lambda: shake_hands(client)[0] == 101)


def anonymous_memory(client: Client) -> int:
    process = client.daemon._process
    assert process is not None
    found = re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


class Follower:
    """A socket, and what it may be told according to the answers to its commands."""

    def __init__(self, client: Client) -> None:
        self.ws = WebSocket(client)
        self.found: dict[str, Covered] = {}
        self.tombstones: set[str] = set()

    def take(self, message: Message) -> None:
        if message.op == "subscribed":
            for name, at in message.body["topics"].items():
                self.found[name] = covering(name, at["from_seq"])
        elif message.op == "unsubscribed":
            for name in message.body["topics"]:
                self.found.pop(name, None)
        elif message.op == "error":
            assert message.body["code"] == "topic_not_found", message.body
        elif message.is_push:
            frame = message.frame
            assert frame.topic in self.found, ("nobody asked for it", message.text[:500])
            if frame.event == "topic_deleted":
                del self.found[frame.topic]
                return
            if frame.event == "tombstone":
                self.tombstones.add(frame.topic)
            self.found[frame.topic].take([frame])


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_for_in_whatever_order_is_told_exactly(client: Client, topic: str, seed: int) -> None:
    random = Random(seed)
    plain, pruned, capped, reborn = names = [f"{topic}-{kind}" for kind in ("plain", "pruned", "capped", "reborn")]
    for name in names:
        client.append(name, *range(30), config={"durability": CLASSES[seed]})
    followers = [Follower(client) for _ in range(6)]
    with all_open(follower.ws for follower in followers):
        for _ in range(500):
            follower, name = random.choice(followers), random.choice(names)
            match random.randrange(12):
                case 0 | 1:
                    start: Any = random.choice([{}, {"tail": True}, {"from_seq": random.randrange(1, 30)}])
                    if name == reborn:
                        # It may have fewer than what it is asked to begin after.
                        start.pop("from_seq", None)
                    limit = random.choice([0, 1, 5, 100])
                    follower.ws.send("subscribe", topics={name: start, plain: {}}, limit=limit)
                case 2:
                    follower.ws.send("unsubscribe", topic=name)
                case 3:
                    follower.ws.send("publish", topic=name, records=[{"data": 1}] * random.randrange(1, 40))
                case 4:
                    client.delete_records(pruned, before_seq=random.randrange(1, 200))
                case 5:
                    client.delete_records(pruned, match=random.choice("abc"))
                case 6:
                    client.put_topic(capped, cap_records=random.choice([0, 1, 10, 100]))
                case 7 if random.random() < 0.3:
                    client.delete_topic(reborn)
                    client.append(reborn, 1, 2)
                case 8:
                    while follower.ws.messages:
                        follower.take(follower.ws.messages.pop(0))
                    follower.ws.wait(0.001)
                case _:
                    client.tagged(name, *random.choices("abc", k=random.randrange(1, 40)))
        for follower in followers:
            follower.ws.send("ping", request_id="last")
            while (message := follower.ws.next()).op != "pong":
                follower.take(message)
        heads = {name: client.state(name)["head_seq"] for name in names}
        for follower in followers:
            while any(found.at != heads[name] for name, found in follower.found.items()):
                follower.take(follower.ws.next())
            for name, found in follower.found.items():
                found.check(heads[name], silent=range(1, heads[name] + 1) if name == pruned else ())
            assert follower.tombstones <= {capped}


# Limits that are small enough to be met

BODY = 65_536


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = {
        "max_batch_records": 3,
        "max_record_bytes": 2000,
        "max_body_bytes": BODY,
        "max_meta_bytes": 100,
        "max_tag_bytes": 5,
        "max_node_bytes": 4,
        "max_limit": 4,
        "max_watch_topics": 2,
    }
    with running(tmp_path_factory.mktemp("small"), **settings) as client:
        yield client


def padded(length: int, filler: str = "x") -> bytes:
    """A ping in a message of this many bytes."""
    start, end = b'{"op":"ping","padding":"', b'"}'
    left = length - len(start) - len(end)
    size = len(filler.encode())
    return start + b" " * (left % size) + filler.encode() * (left // size) + end


@pytest.mark.parametrize("filler", ["x", "é", "😀"])
def test_a_message_of_the_limit_is_taken_and_a_larger_one_closes_the_socket(small: Client, filler: str) -> None:
    with WebSocket(small) as ws, WebSocket(small) as other:
        ws.send_bytes(raw_frame(TEXT, padded(BODY, filler)))
        ws.next_op("pong")
        content = padded(BODY, filler)
        parts = [content[place : place + 999] for place in range(0, BODY, 999)]
        ws.send_bytes(raw_frame(TEXT, parts[0], fin=False))
        for part in parts[1:]:
            ws.send_bytes(raw_frame(CONTINUATION, part, fin=False))
        ws.send_bytes(raw_frame(CONTINUATION, b""))
        ws.next_op("pong")
        ws.send_bytes(raw_frame(TEXT, padded(BODY + 1, filler)))
        messages, code = ws.rest()
        assert code == 1009
        assert [message for message in messages if message.op != "error"] == []
        other.works()


def test_bytes_are_counted_and_not_characters(small: Client) -> None:
    content = padded(BODY * 2, "é")
    assert len(content.decode()) < BODY + 100
    with WebSocket(small) as ws:
        ws.send_bytes(raw_frame(TEXT, content[:BODY], fin=False) + raw_frame(CONTINUATION, content[BODY:]))
        messages, code = ws.rest()
        assert code in (None, 1009)
        assert [message for message in messages if message.op != "error"] == []


def test_fragments_are_counted_together(small: Client) -> None:
    content = padded(BODY + 1)
    with WebSocket(small) as ws:
        ws.send_bytes(raw_frame(TEXT, content[:BODY], fin=False))
        ws.quiet(0.1)
        ws.send_bytes(raw_frame(CONTINUATION, content[BODY:]))
        assert ws.rest()[1] == 1009


def test_a_binary_message_is_limited_too(small: Client) -> None:
    with WebSocket(small) as ws:
        ws.send_bytes(raw_frame(BINARY, b"x" * BODY))
        assert ws.next_op("error")["code"] == "invalid_request"
        ws.send_bytes(raw_frame(BINARY, b"x" * (BODY + 1)))
        assert ws.rest()[1] == 1009


@pytest.mark.parametrize("in_fragments", [False, True])
def test_a_message_that_never_ends_closes_the_socket(small: Client, in_fragments: bool) -> None:
    """As soon as it is too large, and without keeping what comes."""
    start, more = b"\x01\xff" + (1 << 40).to_bytes(8, "big") + bytes(4), b" " * BODY
    if in_fragments:
        start, more = raw_frame(TEXT, b"{", fin=False), raw_frame(CONTINUATION, b" " * 1000, fin=False) * 60
    before = anonymous_memory(small)
    with WebSocket(small) as ws:
        ws.send_bytes(start)
        sent = 0
        code = None
        try:
            while sent < 64 * MIB:
                ws.send_bytes(more)
                sent += len(more)
                ws.wait(0.001)
        except Closed as closed:
            code = closed.code
        except (Cut, ConnectionError):
            pass
        assert code in (None, 1009)
        assert sent < 64 * MIB
        # What is sent in spite of that is not kept.
        try:
            for _ in range(200):
                ws.send_bytes(more)
        except ConnectionError:
            pass
        assert anonymous_memory(small) - before < 32 * MIB
        with WebSocket(small) as other:
            other.works()


@pytest.mark.slow
def test_a_socket_that_was_closed_is_freed_though_the_client_does_not_answer(tmp_path: Path) -> None:
    with running(tmp_path, max_body_bytes=BODY) as client, WebSocket(client) as ws, WebSocket(client) as endless:
        ws.send_bytes(raw_frame(TEXT, padded(BODY + 1)))
        endless.send_bytes(raw_frame(TEXT, b"{" * BODY, fin=False) + raw_frame(CONTINUATION, b"{", fin=False))
        for one in (ws, endless):
            one.answers_close = False
            assert one.rest() == ([], 1009)
        # However long it may wait for that answer, it is not for ever.
        until(lambda: gauge(client, "topics_ws_connections") == 0, within_s=40)
        for one in (ws, endless):
            one.ends_within()


def test_a_message_that_is_small_only_when_compressed_closes_the_socket(small: Client) -> None:
    with WebSocket(small, extensions="permessage-deflate; client_max_window_bits") as ws:
        ws.send_text(padded(BODY).decode())
        ws.next_op("pong")
        try:
            # Nothing needs to be compressed: then it is large in any case.
            ws.send_text(padded(16 * MIB).decode())
        except ConnectionError:
            pass
        messages, code = ws.rest()
        assert code in (None, 1009)
        assert [message for message in messages if message.op != "error"] == []


@pytest.mark.parametrize("filler", ["x", "é", "😀"])
def test_a_message_that_is_too_large_harms_nobody_else(small: Client, topic: str, filler: str) -> None:
    for _ in range(3):
        with WebSocket(small) as ws:
            ws.send_bytes(raw_frame(TEXT, padded(BODY + 1000, filler)))
            ws.rest(1)
    small.put_topic(topic)
    with WebSocket(small) as ws:
        ws.publish(topic, 1)
    assert seqs_of(small.read(topic)) == [1]


def test_a_publish_has_the_limits_of_an_append(small: Client, topic: str) -> None:
    with WebSocket(small) as ws:
        ws.refused("batch_too_large", "publish", topic=topic, records=[{"data": 1}] * 4)
        ws.refused("record_too_large", "publish", topic=topic, records=[{"data": "x" * 1999}])
        ws.refused("invalid_request", "publish", "meta", topic=topic, records=[{"data": 1, "meta": {"k": "v" * 100}}])
        ws.refused("invalid_request", "publish", "tag", topic=topic, records=[{"data": 1, "tag": "123456"}])
        ws.refused("invalid_request", "publish", "node", topic=topic, records=[{"data": 1, "node": "12345"}])
        ws.publish(topic, records=[{"data": "x" * 1998}, {"data": 1, "tag": "12345", "node": "1234"}, {"data": 1}])
        ws.publish(topic, 4, 5)
        ws.subscribe(topic, limit=1000)
        frames = ws.until_caught_up()
        covered(topic, frames, head=5)
        assert max(len(frame.seqs) for frame in frames if frame.event == "record") == 4


def test_how_many_topics_a_subscribe_holds_is_a_setting(small: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        small.put_topic(name)
    with WebSocket(small) as ws:
        ws.refused("invalid_request", "subscribe", "topics", topics={name: {} for name in names})
        ws.quiet(0.1)
        ws.subscribe(*names[:2])
        ws.until_caught_up(*names[:2])


# Who does not read


def fill(client: Client, topic: str, count: int = CHUNKS) -> int:
    """Append so much that it does not fit in what lies between the daemon and a client; the head after it."""
    head = 0
    for _ in range(0, count, 16):
        head = client.append(topic, *([CHUNK] * 16), return_seqs=False)["head_seq"]
    return head


def stopped(client: Client, *names: str, **fields: Any) -> WebSocket:
    """A socket that takes little from its connection, and nothing by itself."""
    ws = WebSocket(client, receive_buffer=SMALL)
    try:
        for name in names:
            ws.subscribe(name, **fields)
    except BaseException:
        ws.hang_up()
        raise
    return ws


def test_who_reads_is_not_held_up_by_who_does_not(client: Client, topic: str) -> None:
    other = fresh_name()
    client.put_topic(topic)
    client.append(other, 0)
    with (
        all_open(stopped(client, topic) for _ in range(5)),
        subscribed(client, topic) as ws,
        subscribed(client, other) as watch,
    ):
        found = covering(topic).take(ws.until_caught_up())
        beside = covering(other).take(watch.until_caught_up())
        for number in range(1, 6):
            # All of it comes while the others take nothing.
            head = fill(client, topic, 16)
            found.take(ws.until_seq(topic, head))
            watch.publish(other, number)
            beside.take(watch.until_seq(other, number + 1))
        found.check(CHUNKS)
        beside.check(6)
        assert found.tombstones == []


@pytest.mark.parametrize("has_backlog", [False, True])
def test_who_goes_on_reading_gets_everything(client: Client, topic: str, has_backlog: bool) -> None:
    client.put_topic(topic)
    if has_backlog:
        fill(client, topic)
    with stopped(client, topic) as ws:
        found = covering(topic)
        if not has_backlog:
            found.take(ws.until_caught_up())
            fill(client, topic)
        client.append(topic, *range(1000))
        time.sleep(1)
        found.take(ws.until_seq(topic, CHUNKS + 1000))
        ws.works()
        while found.at < CHUNKS + 1000 or not found.caught_up:
            found.take([ws.push()])
        client.append(topic, "live")
        found.take(ws.until_seq(topic, CHUNKS + 1001)).check(CHUNKS + 1001)
    assert found.tombstones == []
    assert found.data[CHUNKS:] == [*range(1000), "live"]


def test_commands_are_answered_when_it_is_read_again(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(other, 1)
    fill(client, topic)
    with stopped(client, topic) as ws:
        time.sleep(0.5)
        ws.send("ping", request_id="ping")
        ws.send("publish", topic=other, records=[{"data": 2}], request_id="publish")
        ws.send("unsubscribe", topic=topic, request_id="unsubscribe")
        ws.send("subscribe", topic=other, request_id="subscribe")
        assert ws.answer("ping")["op"] == "pong"
        assert ws.answer("publish")["op"] == "ack"
        assert ws.answer("unsubscribe")["op"] == "unsubscribed"
        assert ws.answer("subscribe")["op"] == "subscribed"
        frames: list[Frame] = []
        while not frames or frames[-1].event != "caught_up" or frames[-1].topic != other:
            frames.append(ws.push())
        covered(other, frames, head=2)
        assert covering(topic).take(frames).tombstones == []
        ws.quiet(0.1)


def test_what_retention_took_meanwhile_is_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=20)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        head = fill(client, topic, 160)
        client.append(topic, "last")
        found.take(ws.until_seq(topic, head + 1)).check(head + 1)
    # What lies in between holds far less than what was evicted.
    assert found.tombstones
    assert set(found.reasons) <= {"cap", "from_seq_too_old"}
    assert set(range(head + 1 - 19, head + 2)) <= set(found.seqs)


def test_what_was_deleted_meanwhile_is_not_announced(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        head = fill(client, topic)
        client.delete_records(topic, before_seq=head + 1)
        client.append(topic, "last")
        found.take(ws.until_seq(topic, head + 1)).check(head + 1, silent=range(1, head + 1))
    assert (found.tombstones, found.data[-1]) == ([], "last")
    assert len(found.seqs) < head


def test_a_topic_that_is_deleted_meanwhile_is_told(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        fill(client, topic)
        client.delete_topic(topic)
        *frames, last = ws.until(lambda frame: frame.event == "topic_deleted")
        found.take(frames)
        assert (last.data["head_seq"], found.tombstones) == (CHUNKS, [])
        assert found.seqs == list(range(1, found.at + 1))
        ws.works()


def test_who_hangs_up_without_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        fill(client, "a")
        for _ in range(5):
            with all_open(stopped(client, "a") for _ in range(8)):
                pass
        until(lambda: gauge(client, "topics_ws_connections") == 0)
        with subscribed(client, "a") as ws:
            covered("a", ws.until_caught_up(), head=CHUNKS)


def test_what_waits_is_not_copied_for_each(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for name in ("first", "second"):
            client.put_topic(name)
        with all_open(stopped(client, "first", "second") for _ in range(50)):
            for name in ("first", "second"):
                fill(client, name)
            with subscribed(client, "first") as ws:
                covered("first", ws.until_caught_up(), head=CHUNKS)
            before = anonymous_memory(client)
            for name in ("first", "second"):
                fill(client, name, 2 * CHUNKS)
            with subscribed(client, "first", tail=True) as ws:
                ws.until_caught_up()
            # 50 copies of what came would be 4 GB; what a connection may hold it held before.
            assert anonymous_memory(client) - before < 300 * MIB


# The end of the daemon


def test_a_stop_ends_sockets_in_order_and_is_clean(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for name in "ab":
            client.append(name, 1)
        with (
            all_open(subscribed(client, "a", "b") for _ in range(5)) as sockets,
            WebSocket(client) as idle,
            WebSocket(client, extensions="permessage-deflate") as deflated,
        ):
            for ws in sockets:
                ws.until_caught_up("a", "b")
            client.daemon.send_signal(signal.SIGTERM)
            for ws in [*sockets, idle, deflated]:
                before, error, code = ws.final()
                assert before == []
                assert error["code"] == "shutting_down"
                assert code in (1000, 1001, 1012), code
                ws.ends_within()
            assert client.daemon.wait() == 0


def test_a_stop_is_in_time_whoever_does_not_read(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("a")
        with all_open(stopped(client, "a") for _ in range(5)) as sockets:
            fill(client, "a")
            client.daemon.send_signal(signal.SIGTERM)
            assert client.daemon.wait() == 0
            for ws in sockets:
                messages, code = ws.rest()
                if messages and messages[-1].op == "error":
                    assert messages.pop().body["code"] == "shutting_down"
                else:
                    assert code is None
                found = covering("a").take(message.frame for message in messages)
                assert found.seqs == list(range(1, found.at + 1))


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_stop_is_in_order_in_the_middle_of_commands(tmp_path: Path, durability: str) -> None:
    daemon = Daemon(tmp_path, drain_ms=50_000)
    try:
        client = daemon.start()
        client.put_topic("a", durability=durability)
        with WebSocket(client) as ws, ThreadPoolExecutor(1) as pool:
            for number in range(300):
                ws.send("publish", topic="a", records=[{"data": number}])
            began = time.monotonic()
            stop = pool.submit(daemon.end)
            messages, _ = ws.rest()
            acked = [seq for message in messages if message.op == "ack" for seq in message.body["seqs"]]
            assert stop.result(90) == 0
            took = time.monotonic() - began
        client = daemon.start()
        head = client.state("a")["head_seq"]
        assert acked == list(range(1, len(acked) + 1))
        assert head >= len(acked)
        with subscribed(client, "a") as ws:
            found = covered("a", ws.until_caught_up(), head=head)
            assert (found.data, found.tombstones) == (list(range(head)), [])
        assert took < 40, "what was not carried out was waited for"
    finally:
        daemon.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_who_comes_back_after_a_restart_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        found = {}
        for durability in CLASSES:
            client.append(durability, 1, 2, 3, config={"durability": durability})
        with subscribed(client, *CLASSES) as ws:
            frames = ws.until_caught_up(*CLASSES)
            found = {name: covering(name).take(frames) for name in CLASSES}
            client = daemon.restart(how)
            messages, _ = ws.rest()
            for name in CLASSES:
                found[name].take(message.frame for message in messages if message.is_push)
        heads = {name: client.append(name, "new")["first_seq"] for name in CLASSES}
        with subscribed(client, topics={name: {"from_seq": found[name].at} for name in CLASSES}) as ws:
            frames = ws.until_caught_up(*CLASSES)
            for name in CLASSES:
                found[name].take(frames).check(heads[name])
                assert set(found[name].reasons) <= {"lost"}
            assert found["fsync"].data == [1, 2, 3, "new"]
            assert found["disk"].data == [1, 2, 3, "new"]
        # What is gone with the daemon is called lost, for whoever begins before it.
        with subscribed(client, "ephemeral") as ws:
            told = covered("ephemeral", ws.until_caught_up(), head=heads["ephemeral"])
            assert (told.reasons[0], told.data) == ("lost", ["new"])
    finally:
        daemon.kill()


# The long ones: each takes longer than one of the contract's times.


@pytest.mark.slow
def test_a_socket_is_pinged_every_15_s_and_has_no_time_limit(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with WebSocket(client) as idle, subscribed(client, topic) as quiet, subscribed(client, topic) as busy:
        quiet.unsubscribe(topic=topic)
        quiet.messages.clear()
        quiet.subscribe(topic, tail=True)
        busy.until_caught_up()
        began = time.monotonic()
        other = fresh_name()
        busy.publish(other, 0)
        busy.subscribe(other, tail=True)
        busy.until_caught_up()
        head = 1
        while time.monotonic() < began + 48:
            head = busy.publish(other, 1)["head_seq"]
            busy.until_seq(other, head)
            for ws in (idle, quiet):
                ws.wait(0.02)
            time.sleep(0.1)
        for ws in (idle, quiet, busy):
            times = [began, *ws.pings]
            assert 2 <= len(ws.pings) <= 4, [at - began for at in times]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert all(12 < gap < 22 for gap in gaps[1:]), gaps
            assert gaps[0] < 22
        client.append(topic, 2)
        quiet.until_seq(topic, 2)
        busy.until_seq(topic, 2)
        idle.works()


@pytest.mark.slow
@pytest.mark.parametrize("has_retention", [False, True])
def test_who_was_lagged_goes_on_from_its_cursor(client: Client, topic: str, has_retention: bool) -> None:
    client.put_topic(topic, cap_records=20 if has_retention else 0)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        fill(client, topic)
        time.sleep(7)
        head = fill(client, topic)
        found.take(ws.until_seq(topic, head))
        while not found.caught_up or found.caught_up[-1] != head:
            # From backlog to live.
            found.take([ws.push()])
        client.append(topic, "live")
        found.take(ws.until_seq(topic, head + 1)).check(head + 1)
        ws.works()
    assert found.data[-1] == "live"
    assert set(found.reasons) == ({"cap"} & set(found.reasons) if has_retention else set())
    assert bool(found.tombstones) == has_retention


@dataclass
class TooSlow:
    """Sockets that were not read for so long that the daemon closed them, and what became of others meanwhile."""

    client: Client
    sockets: dict[str, WebSocket]
    found: dict[str, Covered]
    closed_after: float
    delays: list[float]
    slow: tuple[list[Message], str]


@pytest.fixture(scope="module")
def too_slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TooSlow]:
    """All at once, since it takes over 30 s."""
    stop = threading.Event()
    delays: list[float] = []

    def read_slowly(client: Client) -> tuple[list[Message], str]:
        """Read with pauses, for longer than who takes nothing is left open, and then to the end of the backlog."""
        messages: list[Message] = []
        with WebSocket(client, receive_buffer=1 << 16) as ws:
            ws.subscribe("slow")
            deadline = time.monotonic() + 45
            try:
                while time.monotonic() < deadline:
                    # About 2 MiB: the buffers of the kernel are so large that less of it might not be seen.
                    messages += [ws.next() for _ in range(8)]
                    time.sleep(1)
                while messages[-1].op != "caught_up":
                    messages.append(ws.next())
                ws.works()
            except (Closed, Cut, AssertionError) as error:
                return messages, repr(error)[:500]
            stop.wait(60)
        return messages, ""

    def follow(client: Client) -> None:
        """See how long others wait for what they are sent."""
        with subscribed(client, "other", tail=True) as ws:
            ws.until_caught_up()
            while not stop.wait(0.1):
                began = time.monotonic()
                head = ws.publish("other", 1)["head_seq"]
                ws.until_seq("other", head)
                delays.append(time.monotonic() - began)

    with running(tmp_path_factory.mktemp("slow")) as client, ThreadPoolExecutor(2) as pool:
        for name in ("live", "other", "slow"):
            client.put_topic(name)
        fill(client, "slow", 6 * CHUNKS)
        fill(client, "backlog")
        names = ["live", "backlog"]
        with all_open(stopped(client, name) for name in names) as opened:
            sockets = dict(zip(names, opened, strict=True))
            found = {name: covering(name) for name in names}
            found["live"].take(sockets["live"].until_caught_up())
            began = time.monotonic()
            fill(client, "live")
            reader, follower = pool.submit(read_slowly, client), pool.submit(follow, client)
            try:
                until(lambda: gauge(client, "topics_ws_connections") == 4)
                # The slow one and the other one are left.
                until(lambda: gauge(client, "topics_ws_connections") <= 2, within_s=60)
                closed_after = time.monotonic() - began
                time.sleep(max(0.0, began + 50 - time.monotonic()))
                stop.set()
                slow = reader.result(120)
                follower.result(30)
                yield TooSlow(client, sockets, found, closed_after, delays, slow)
            finally:
                stop.set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["live", "backlog"])
def test_who_takes_nothing_for_30_s_is_closed_and_resumes_without_loss(too_slow: TooSlow, name: str) -> None:
    assert too_slow.closed_after > 27
    messages, code = too_slow.sockets[name].rest()
    # The final error and the close are there if they could still be read: not if what was before them did not fit.
    assert code in (None, 1008)
    if messages and messages[-1].op == "error":
        assert isinstance(messages.pop().body["code"], str)
    else:
        assert code is None
    found = too_slow.found[name].take(message.frame for message in messages)
    assert found.at < CHUNKS
    with subscribed(too_slow.client, name, from_seq=found.at) as ws:
        found.take(ws.until_caught_up()).check(CHUNKS)
    assert (found.tombstones, found.seqs) == ([], list(range(1, CHUNKS + 1)))


@pytest.mark.slow
def test_nobody_else_is_held_up_by_who_takes_nothing(too_slow: TooSlow) -> None:
    assert len(too_slow.delays) > 20
    assert max(too_slow.delays) < 15, sorted(too_slow.delays)[-5:]


@pytest.mark.slow
def test_a_socket_that_makes_progress_has_no_time_limit(too_slow: TooSlow) -> None:
    messages, error = too_slow.slow
    assert not error
    found = covering("slow").take(message.frame for message in messages)
    found.check(6 * CHUNKS)
    assert found.tombstones == []


@pytest.mark.slow
def test_who_was_closed_and_lost_some_to_retention_is_told(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("a", cap_records=20)
        with stopped(client, "a") as ws:
            found = covering("a").take(ws.until_caught_up())
            fill(client, "a")
            until(lambda: gauge(client, "topics_ws_connections") == 0, within_s=60)
            head = fill(client, "a")
            messages, _ = ws.rest()
            found.take(message.frame for message in messages if message.is_push)
        with subscribed(client, "a", from_seq=found.at) as ws:
            found.take(ws.until_caught_up()).check(head)
        assert found.reasons[-1] == "from_seq_too_old"
        assert set(seqs_of(client.read("a", head - 20))) <= set(found.seqs)


@pytest.mark.slow
def test_who_does_not_read_the_answers_is_too_slow_as_well(tmp_path: Path) -> None:
    with running(tmp_path) as client, WebSocket(client, receive_buffer=SMALL) as ws:
        command = raw_frame(TEXT, json.dumps({"op": "ping", "request_id": "x" * 50_000}).encode())
        ws.socket.settimeout(3)
        # Until it does not take any more: what goes out is limited, and so is what comes in.
        sent = 0
        try:
            while sent < 256 * MIB:
                ws.socket.sendall(command)
                sent += len(command)
        except TimeoutError:
            pass
        assert sent < 256 * MIB
        assert anonymous_memory(client) < 300 * MIB
        client.append("a", 1)
        until(lambda: gauge(client, "topics_ws_connections") == 0, within_s=60)
        messages, code = ws.rest()
        assert code in (None, 1008)
        assert {message.op for message in messages[:-1]} <= {"pong"}


def test_answers_that_nobody_reads_leave_the_memory_of_requests_to_others(tmp_path: Path) -> None:
    with running(tmp_path, max_inflight_bytes=256 << 10, max_body_bytes=224 << 10, admission_ms=200) as client:
        command = json.dumps({"op": "nothing", "request_id": "x" * (100 << 10)}).encode()
        with WebSocket(client, receive_buffer=8 << 10) as ws:
            ws.socket.settimeout(1)
            with pytest.raises(TimeoutError):
                ws.socket.sendall(raw_frame(TEXT, command) * 500)
            for _ in range(5):
                client.append("a", "y" * (200 << 10))


def test_a_command_that_appends_nothing_is_small(client: Client, topic: str) -> None:
    with WebSocket(client) as ws:
        for op, fields in [("ping", {}), ("subscribe", {"topic": topic}), ("unsubscribe", {"topic": topic})]:
            error = ws.refused("payload_too_large", op, x="y" * (256 << 10), **fields)
            assert error["detail"] == {"limit": "max_call_bytes", "max": 256 << 10}
        ws.publish(topic, "y" * (300 << 10))
        ws.refused("invalid_request", "unsubscribe", topics=[f"t{i}" for i in range(257)])


def test_what_a_command_is_called_has_a_limit(client: Client) -> None:
    most = 128 << 10
    with WebSocket(client) as ws:
        ws.send("ping", request_id="r" * (most - 2))
        assert ws.next().body["request_id"] == "r" * (most - 2)
        ws.send("ping", request_id="r" * (most - 1))
        answer = ws.next().body
        assert (answer["op"], answer["code"]) == ("error", "invalid_request")
        assert "request_id" not in answer
