"""Section 8: `publish`, `ping`, and what is no command."""

from __future__ import annotations

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import Client, fresh_name, has_data
from tests.conformance.sockets.readers import BINARY, CONTINUATION, MIB, PING_COMMAND, TEXT, missing
from tests.conformance.sse import Frame
from tests.conformance.test_data import AS_WRITTEN, REFUSED
from tests.conformance.websocket import Closed, WebSocket, all_open, covered, covering, raw_frame

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
