"""Section 8: opening a WebSocket, its frames, and ids of requests."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, envelope, error_of, running
from tests.conformance.sockets.readers import CLOSE, CONTINUATION, PING, PING_COMMAND, PONG, TEXT, appending
from tests.conformance.sse import gauge
from tests.conformance.websocket import WebSocket, covering, raw_frame, shake_hands, subscribed

# Opening


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
