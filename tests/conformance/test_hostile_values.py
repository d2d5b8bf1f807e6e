"""Any text that a client sends stays a value: in files, logs, labels, frames, headers, pages and JSON."""

from __future__ import annotations

import base64
import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.client import JSON_TYPE, Client, RawConnection, body_of, fresh_name, invalid, running
from tests.conformance.queue_client import Queue, new_queue
from tests.conformance.sse import Cut, Frame, Http2, Session, connect, stream
from tests.conformance.websocket import WebSocket, subscribed

MARK = "injected"
"""In every text that would show if it were taken for more than text."""

TEXTS = [
    f"a\n\ndata: {MARK}\n\n", f"a\r\revent: {MARK}\rdata: b", f"a\r\n\r\nid: 99\r\nretry: 1\r\n: {MARK}",
    f"event: {MARK}", f"\u2028{MARK}\u2029\x85\x0b\x0c", f"\x1b[31m{MARK}\x1b[0m\x07\x08\x9b1m",
    f'{{"event":"{MARK}","level":"error"}}\n{{"event":"{MARK}"}}', f'"}}],"{MARK}":[{{"x":"',
    f"\\\\\" \\u0022 \\ {MARK}\\", f"</script></textarea><script>alert('{MARK}')</script><!--",
    f"${{jndi:ldap://{MARK}}} %s%n{{0}}{{}} $(touch {MARK}) `{MARK}` ; | & '", f"\x00\x01\x1f\x7f{MARK}\x00",
    f"../../{MARK}/../..\\{MARK}", "__proto__", f"\ufeff\u202e\u200b\ufffe\uffff{MARK}",
    "\U0001f600\U0010ffff e\u0301 \u00e9", f' "{MARK}"}} 1\ntopics_ready{{x="', " ", "\t", "-rf", "null", "0", "*",
]  # fmt: skip

GOOD_NAMES = [
    "a..", "a.", "a..b", "A", "a", "aA", "CON", "con", "NUL.txt", "COM1", "AUX.", "a.b:c-d_e", "a:", "a-", "a_", "0",
    "a-b", "FORMAT", "LOCK", "meta", "wal", "data", "segments", "x.tmp", "t.wal", "lost.found", "null", "true",
    "x__proto__", "constructor", "topics", "n" * 255, "N" * 255,
]  # fmt: skip

BAD_NAMES = [
    "..", ".", "-rf", ".hidden", ":a", "_a", "", " ", "a b", "a/b", "a/../b", "/etc/passwd", "a\\b", "a\nb", "a\r",
    "a\n", "a\x00", "\x00", "a\x1b[31m", "a\"b", "a'b", "a{b}", "a<b", "a\u2028", "\u00e9", "a\u0301", "a\ufeff",
    "n" * 256, "a%2fb", "a%", "a;b", "a,b", "a=b", "~a", "$a",
]  # fmt: skip


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a daemon that logs all it can."""
    root = tmp_path_factory.mktemp("hostile") / "root"
    root.mkdir()
    settings = {"log_level": "debug", "log_format": "json", "slow_request_ms": 1, "audit_log": root / "audit"}
    with running(root, **settings) as client:
        yield client


def written(
    texts: list[str], make: Callable[[str], dict[str, Any]], send: Callable[[Any], httpx.Response]
) -> list[str]:
    """Append a record for each text, each by itself; those that were taken. All others were refused in order."""
    taken = []
    for text in texts:
        answer = send({"records": [make(text)]})
        if answer.status_code == 400:
            invalid(answer, "records")
        else:
            body_of(answer, 200, 201)
            taken.append(text)
    return taken


# --- records: what is written is read, over whatever way -------------------------------------------------------------


FIELDS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[[Any], Any]]] = {
    "data": (lambda text: {"data": text}, lambda record: record["data"]),
    "key of data": (lambda text: {"data": {text: {text: [text]}}}, lambda record: next(iter(record["data"]))),
    "tag": (lambda text: {"data": 1, "tag": text}, lambda record: record["$tag"]),
    "node": (lambda text: {"data": 1, "node": text}, lambda record: record["$node"]),
    "meta": (lambda text: {"data": 1, "meta": {"k": text}}, lambda record: record["meta"]["k"]),
    "key of meta": (lambda text: {"data": 1, "meta": {text: "v"}}, lambda record: next(iter(record["meta"]))),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "raw"])
def test_text_comes_back_as_it_was_written_on_every_way(client: Client, topic: str, field: str, escaped: bool) -> None:
    make, find = FIELDS[field]
    copy = f"{topic}-copy"
    body_of(client.put(f"/v0/routers/{topic}>copy", json={"source": topic, "dest": copy}), 201)

    def send(body: Any) -> httpx.Response:
        content = json.dumps(body, ensure_ascii=escaped).encode()
        return client.post(f"/v0/topics/{topic}", content=content, headers={"content-type": JSON_TYPE})

    with stream(client, topic, include_tags="true") as sse, subscribed(client, topic, include_tags=True) as ws:
        taken = written(TEXTS, make, send)
        assert taken == TEXTS, "nothing of this is forbidden"
        ways = {
            "diff": [find(record) for record in client.read(topic, include_tags=True)["records"]],
            "copy": [find(record) for record in client.read(copy, include_tags=True)["records"]],
            "SSE": [find(r) for frame in sse.until_seq(topic, len(taken)) for r in records_of(frame)],
            "WebSocket": [find(r) for frame in ws.until_seq(topic, len(taken)) for r in records_of(frame)],
        }
        with stream(client, copy, include_tags="true", how={"http2": True}) as again:
            frames = again.until_seq(copy, len(taken))
            ways["SSE over h2"] = [find(record) for frame in frames for record in records_of(frame)]
    for way, texts in ways.items():
        assert texts == taken, way


def records_of(frame: Frame) -> list[Any]:
    return list(frame.data["records"]) if frame.event == "record" else []


def test_text_comes_back_from_a_queue_and_through_its_dead_letters(client: Client) -> None:
    dead = fresh_name("dead")
    queue = new_queue(client, dead_letter=dead, max_deliveries=1)
    records = [{"data": {t: t}, "tag": t, "node": t, "meta": {t: t}} for t in TEXTS]
    client.append(queue.topic, records=records)

    def is_right(job: Any, text: str) -> bool:
        return (job["data"], job["$tag"], job["$node"], job["meta"]) == ({text: text}, text, text, {text: text})

    for text in TEXTS:
        (job,) = queue.claim(text)
        assert is_right(job, text)
        assert queue.nack(job["$seq"], node=text)["nacked"] == 1
    found = client.post(f"/v0/topics/{dead}/diff", json={"include_tags": True, "wait_ms": 5000}).json()["records"]
    for record in found:
        assert {record["$tag"]: record["$tag"]} == record["data"]
        assert record["meta"].pop("$dead_letter_from") == queue.topic
        assert record["meta"][record["$tag"]] == record["$tag"]

    again = new_queue(client)
    client.append(again.topic, records=records)
    query = f"node={quote(TEXTS[0])}&max={len(TEXTS)}"
    with connect(client, f"/v0/topics/{again.topic}/work?{query}").opened() as work:
        seen: list[bytes] = []
        content = b""
        while content.count(b"event: job\n") < len(TEXTS) or not content.endswith(b"\n\n"):
            part = work.transport.receive(10)
            assert part
            content += part
        assert b"\r" not in content
        for frame in content.split(b"\n\n")[1:-1]:
            if frame.startswith(b":"):
                continue
            lines = frame.split(b"\n")
            assert sorted(line.partition(b":")[0] for line in lines) == [b"data", b"event", b"id"], lines
            seen += [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")]
    assert all(is_right(json.loads(data), text) for data, text in zip(seen, TEXTS, strict=True))


@pytest.mark.parametrize(
    "data",
    [
        b'{"__proto__":{"polluted":1},"constructor":{"prototype":{}}}', b'{"a":1,"a":2,"a":{"a":3}}', b'{"":""}',
        b"1e999999", b"-1E-400", b"123456789012345678901234567890.5", b"-0", b"-0.0", b"18446744073709551616",
        b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000\\u001f\\u2028"', b'"\xe2\x80\xa8\xe2\x80\xa9\x7f\xc2\x85"',
        b'"\\/\\b\\f"', b"[" * 400 + b"]" * 400, b'{"$seq":0,"$ts":"x","$tag":1}', b'"\xf4\x8f\xbf\xbf"',
        b'"' + b"\\n\\ndata: injected" * 50 + b'"', b"[ 1 ,\t2 ]", b'{"data":{"data":[]}}', b'"caught-up"',
        b"9" * 4000,
    ],
    ids=lambda data: data[:24].decode(errors="replace"),
)  # fmt: skip
def test_json_comes_back_byte_for_byte_or_is_refused(client: Client, topic: str, data: bytes) -> None:
    answer = client.append_raw(topic, data)
    if answer.status_code == 400:
        invalid(answer)
        assert client.get(f"/v0/topics/{topic}").status_code == 404
        return
    body_of(answer, 201)
    assert b'"data":' + data + b"}" in client.get(f"/v0/topics/{topic}/diff").content
    with stream(client, topic) as sse, subscribed(client, topic) as ws:
        (frame,) = [frame for frame in sse.until_seq(topic, 1) if frame.event == "record"]
        assert b'"data":' + data + b"}" in frame.text
        assert frame.text.count(b"\n") == frame.text.count(b"\r") == 0
        assert any(b'"data":' + data + b"}" in frame.text for frame in ws.until_seq(topic, 1))


@pytest.mark.parametrize(
    "data",
    [
        b'"\xed\xa0\x80"', b'"\xff"', b'"\xc0\xaf"', b'"\xf4\x90\x80\x80"', b'"a\nb"', b'"a\x00b"', b'"a\x1bb"',
        b"NaN", b"Infinity", b"01", b"1.", b"+1", b"'a'", b"[1,]", b'{"a"}', b'"\\x41"', b'"\\u12"', b'"a',
        b"1}],\"records\":[{", b"[" * 100_000, b'{"a":' * 100_000, b"\xef\xbb\xbf1", b"1 2", b"undefined", b"/* */1",
        b"",
    ],
    ids=lambda data: data[:24].decode(errors="replace"),
)  # fmt: skip
def test_what_is_no_json_is_refused_and_leaves_nothing(client: Client, topic: str, data: bytes) -> None:
    error = client.append_raw(topic, data)
    invalid(error)
    assert client.get(f"/v0/topics/{topic}").status_code == 404


@pytest.mark.parametrize(
    "number", ["1e30", "1e999999", "-1", "18446744073709551616", "9" * 5000, "1.5", '"1"', "true", "[]", "NaN"]
)
def test_numbers_out_of_all_range_are_refused(client: Client, topic: str, number: str) -> None:
    client.put_topic(topic)
    for path, field in (
        (f"topics/{topic}/diff", "from_seq"), (f"topics/{topic}/delete", "before_seq"), (f"topics/{topic}", "ttl_ms"),
    ):  # fmt: skip
        method = "PUT" if field == "ttl_ms" else "POST"
        content = f'{{"{field}":{number}}}'.encode()
        answer = client.request(method, f"/v0/{path}", content=content, headers={"content-type": JSON_TYPE})
        assert answer.status_code == 400, (field, number, answer.text)
        invalid(answer)
    if not number.startswith(('"', "t")):
        invalid(client.get(f"/v0/topics/{topic}/diff", params={"from_seq": number}), "from_seq")


def test_bodies_with_odd_keys_are_taken_for_what_they_are(client: Client, topic: str) -> None:
    for content in (
        b'{"__proto__":{"create":false},"records":[{"data":1,"constructor":2}]}',
        b'{"records":[{"data":1}],"\\u0000\\n":1,"":2}', b'{"records":[{"data":2}],"records":[{"data":1}]}',
        b'{"\\u0072ecords":[{"\\u0064ata":1}]}',
    ):  # fmt: skip
        body_of(client.post(f"/v0/topics/{topic}", content=content, headers={"content-type": JSON_TYPE}), 200, 201)
    assert [record["data"] for record in client.read(topic)["records"]] == [1, 1, 1, 1]
    for key in ("__proto__", "", "ttl_ms\u0000", 'a"\n', "TTL_MS"):
        invalid(client.put(f"/v0/topics/{topic}", json={key: 1}))


# --- names -----------------------------------------------------------------------------------------------------------


def test_names_are_taken_apart_and_survive_a_restart(client: Client) -> None:
    root = client.daemon.root
    beside = sorted(path.name for path in root.parent.iterdir())
    for number, name in enumerate(GOOD_NAMES):
        answer = client.append(
            name, number, name, config={"durability": "fsync"}, records=[{"data": name, "tag": name}]
        )
        assert answer["topic"] == name
        assert answer["created"], f"{name} is another's"
        router = f"{name[:200]}>..>{number}"
        body_of(
            client.put(f"/v0/routers/{router}", json={"source": name, "dest": f"d{number}", "from": "earliest"}), 201
        )
        assert client.get(f"/v0/routers/{router}").json()["router"] == router
    body_of(client.post("/v0/admin/checkpoint"))
    files = list((root / "data").rglob("*"))
    assert len(files) > len(GOOD_NAMES)
    for path in files:
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,100}", path.name), path
        assert path.name not in {"..", "CON", "con", "NUL.txt", "COM1", "a.", "a..", "n" * 255}
        assert not path.is_symlink()
    assert {path.name for path in root.iterdir()} <= {"data", "log", "port", "audit"}
    assert sorted(path.name for path in root.parent.iterdir()) == beside
    assert not [name for name in GOOD_NAMES if name not in ("data", "topics") and Path(name).exists()]

    client.daemon.restart(signal.SIGTERM)
    client.base_url = httpx.URL(client.daemon.url)
    names = {entry["topic"] for entry in body_of(client.get("/v0/topics", params={"page_size": 1000}))["topics"]}
    assert names >= set(GOOD_NAMES)
    for name in GOOD_NAMES:
        (record,) = client.read(name, include_tags=True)["records"]
        assert (record["data"], record["$tag"]) == (name, name)
        with stream(client, name) as events:
            assert {frame.topic for frame in events.until_seq(name, 1)} == {name}
    labels = scraped_labels(client)
    assert labels >= set(GOOD_NAMES)


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name[:12]))
def test_a_bad_name_is_refused_wherever_it_stands(client: Client, topic: str, name: str) -> None:
    client.put_topic(topic)
    for method, path, body in (
        ("PUT", "/v0/topics/{}", {}), ("GET", "/v0/topics/{}", None),
        ("POST", "/v0/topics/{}", {"records": [{"data": 1}]}), ("DELETE", "/v0/topics/{}", None),
        ("POST", "/v0/topics/{}/claim", {"node": "n"}), ("GET", "/v0/topics/{}/stream", None),
        ("PUT", "/v0/routers/{}", {"source": topic, "dest": "x"}), ("DELETE", "/v0/routers/{}", None),
    ):  # fmt: skip
        target = path.format("".join(f"%{byte:02X}" for byte in name.encode()))
        with RawConnection(client) as connection:
            content = b"" if body is None else json.dumps(body).encode()
            connection.send_head(
                method, target, content_type=JSON_TYPE, content_length=str(len(content)), connection="close"
            )
            connection.send(content)
            if name:
                assert connection.receive_error(400, "invalid_request")["detail"]["field"] in ("topic", "router")
            else:
                assert connection.receive()[0] in (404, 405)
    for field, answer in (
        ("source", client.put("/v0/routers/r", json={"source": name, "dest": "x"})),
        ("dest", client.put("/v0/routers/r", json={"source": topic, "dest": name})),
        ("dead_letter", client.put("/v0/topics/q", json={"type": "queue", "dead_letter": name})),
        ("topics", client.post("/v0/watch", json={"topics": {name: {}}})),
    ):
        invalid(answer, field)
    with WebSocket(client) as socket:
        for op, fields in (
            ("subscribe", {"topic": name}), ("subscribe", {"topics": {name: {}}}), ("unsubscribe", {"topic": name}),
            ("publish", {"topic": name, "records": [{"data": 1}]}),
        ):  # fmt: skip
            socket.refused("invalid_request", op, "topic", **fields)
        socket.works()


# --- frames and messages ---------------------------------------------------------------------------------------------


def test_cursors_cannot_say_more_than_where_one_stands(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)

    def encoded(text: str) -> str:
        return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()

    for text in (
        '{"__proto__":1}', '{"a":1e999}', f'{{"{topic}":-1}}', f'{{"{topic}":1,"{topic}":"x"}}', "[" * 10_000,
        f'"{MARK}"', "\x00", "{}" * 3,
    ):  # fmt: skip
        session = Session(client, topic)
        events = session.connect(encoded(text))
        with events:
            if events.status == 400:
                assert events.refused(400, "invalid_request")
            else:
                frames = events.opened().until_caught_up(topic)
                assert all(set(frame.cursors) == {topic} for frame in frames)
    for cursor in (encoded("../.."), encoded("a\nb"), "%0d%0aSet-Cookie: injected", "\u2028", "a" * 10_000):
        for path in ("topics", "routers"):
            answer = client.get(f"/v0/{path}", params={"cursor": cursor})
            assert answer.status_code in (200, 400)
            assert "set-cookie" not in answer.headers
            if answer.status_code == 400:
                invalid(answer, "cursor")


@pytest.mark.parametrize(
    "request_id",
    [
        '"\\n\\r\\u2028"', '"\x7f\u2028"', '{"a":{"b":[1,null]},"a":2}', "[[[[]]]]", "1e400",
        "123456789012345678901234567890", '"\\ud800"', "null", '"</script>"', '{"__proto__":1}',
        '" \\",\\"op\\":\\"record\\",\\"x\\":\\""', "[ 1,\n 2 ]",
    ],
)  # fmt: skip
def test_a_request_id_is_echoed_as_one_value(client: Client, request_id: str) -> None:
    with WebSocket(client) as socket:
        socket.send_text(f'{{"op":"ping","request_id":{request_id}}}')
        message = socket.next()
        if message.op == "error":
            assert message.body["code"] == "invalid_request"
        else:
            assert message.op == "pong"
            expected = json.loads(request_id)
            assert message.body.get("request_id") == expected
        socket.works()


def test_commands_that_are_no_commands_leave_the_socket_as_it_is(client: Client, topic: str) -> None:
    with subscribed(client, topic_of(client, topic)) as socket:
        socket.until_caught_up(topic)
        for text in (
            "", "\x00", "[]", '"op"', "{}", '{"op":1}', '{"op":"\\u0000"}', '{"op":"__class__"}', '{"op":"run"}',
            '{"op":"publish"}', "{" * 10_000, '{"op":"ping","op":"nonsense"}',
            '{"op":"subscribe","topics":{"__proto__":{}}}', '{"op":"subscribe","topic":{"a":1}}',
            '{"op":"ping"}{"op":"ping"}', f'{{"op":"{MARK}\\n\\u001b[31m"}}', '{"op":"\\ud800"}',
        ):  # fmt: skip
            socket.send_text(text)
            assert socket.next_op("error")["code"] in ("invalid_request", "topic_not_found"), text
        socket.works()
        assert client.append(topic, TEXTS[0])["last_seq"] == 1
        (record,) = socket.expect("record").data["records"]
        assert record["data"] == TEXTS[0]


def topic_of(client: Client, topic: str) -> str:
    client.put_topic(topic)
    return topic


# --- headers ---------------------------------------------------------------------------------------------------------


ANSWER_HEADERS = {
    "allow", "cache-control", "connection", "content-encoding", "content-length", "content-type", "date", "etag",
    "retry-after", "server", "transfer-encoding", "vary", "x-accel-buffering", "x-request-id", "www-authenticate",
    "keep-alive", "content-security-policy", "x-content-type-options", "referrer-policy", "x-frame-options",
}  # fmt: skip


def heads_of(answer: bytes) -> list[tuple[str, dict[str, str]]]:
    """Status line and headers of every answer of a connection, read as strictly as can be."""
    heads = []
    while answer.startswith(b"HTTP/"):
        head, _, rest = answer.partition(b"\r\n\r\n")
        assert b"\n" not in head.replace(b"\r\n", b"")
        assert b"\r" not in head.replace(b"\r\n", b"")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            found = re.fullmatch(r"([a-zA-Z0-9-]+): ([\x20-\x7e]*)", line)
            assert found, line
            assert found[1].lower() not in headers, line
            headers[found[1].lower()] = found[2]
        assert set(headers) <= ANSWER_HEADERS, headers
        heads.append((first, headers))
        answer = rest[int(headers.get("content-length", 0)) :]
    assert not answer, answer[:200]
    return heads


def exchanged(client: Client, request: bytes) -> list[tuple[str, dict[str, str]]]:
    with RawConnection(client) as connection:
        connection.send(request)
        content = b""
        try:
            while part := connection.socket.recv(1 << 16):
                content += part
        except ConnectionError:
            pass
    return heads_of(content)


def test_what_comes_in_a_header_stays_in_it(client: Client, topic: str) -> None:
    client.put_topic(topic)
    values = [
        b"a\r\nSet-Cookie: injected=1", b"a\nSet-Cookie: injected=1", b"a\rSet-Cookie: injected=1", b"a\x00b",
        b"a\x1b[31mb", b"\xff\xfe", b"a\r\n folded: injected", b"a\r\n\r\nHTTP/1.1 200 OK\r\nX: injected",
        b"a%0d%0aSet-Cookie:%20injected", b'"</script>', b"a" * 129, b"a b", b"", b"\xe2\x80\xa8",
        b'{"event":"injected"}',
    ]  # fmt: skip
    for name in (
        b"X-Request-Id",
        b"Idempotency-Key",
        b"User-Agent",
        b"Host",
        b"Origin",
        b"Authorization",
        b"Accept",
        b"Last-Event-ID",
    ):
        for value in values:
            body = b'{"records":[{"data":1}]}'
            head = b"POST /v0/topics/" + topic.encode() + b" HTTP/1.1\r\n"
            head += b"" if name == b"Host" else b"Host: x\r\n"
            head += name + b": " + value + b"\r\nContent-Type: application/json\r\nConnection: close\r\n"
            heads = exchanged(client, head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert len(heads) <= 2
            for status, headers in heads:
                assert re.fullmatch(r"HTTP/1\.1 (200|400|40[1358]|417|431|501)( .*)?", status), (name, value, status)
                given = headers.pop("x-request-id", "")
                assert re.fullmatch(r"[\x21-\x7e]{0,128}", given)
                assert given in ("", re.split("[\r\n]", value.decode("latin-1"))[0]) or re.fullmatch(
                    "[0-9a-f]{16}", given
                ), (name, value, given)
                assert MARK not in str(headers), (name, value, headers)


def test_what_stands_in_a_target_or_a_method_is_in_no_header(client: Client) -> None:
    for method, target in (
        ("GET", f"/v0/{MARK}%0d%0aSet-Cookie:%20{MARK}"), (f"X{MARK}", "/v0/topics/a"),
        ("GET", f"/v0/topics?cursor=%0d%0a{MARK}"), ("GET", f"/v0/topics/a%0d%0a{MARK}"),
        ("GET", f"/v0/topics/a/diff?from_seq=%0d%0a{MARK}%1b"), ("PATCH", f"/v0/topics/{MARK}"),
        ("GET", f"/v0/watch/wid_{MARK}%0d%0a"), ("GET", f"http://{MARK}/v0/topics"), ("GET", f"//{MARK}/..//"),
        ("OPTIONS", "*"), ("DELETE", "/v0/health"),
    ):  # fmt: skip
        [(_, headers)] = exchanged(
            client, f"{method} {target} HTTP/1.1\r\nHost: {MARK}\r\nConnection: close\r\n\r\n".encode()
        )
        assert MARK not in str(headers), (method, target, headers)
        if "allow" in headers:
            assert re.fullmatch(r"[A-Z]+(, [A-Z]+)*", headers["allow"])


@pytest.mark.parametrize(
    "value", [f"a\r\nset-cookie: {MARK}", f"a\n{MARK}", f"a\x00{MARK}", f"a\x1b{MARK}", f"\u2028{MARK}"]
)
def test_what_comes_in_a_header_of_http2_stays_in_it(client: Client, value: str) -> None:
    with Http2(client) as connection:
        connection.machine.config.validate_outbound_headers = False
        connection.machine.config.normalize_outbound_headers = False
        answer = connection.get("/v0/health", [("x-request-id", value), ("user-agent", value)])
        try:
            answer.wait_for_head()
        except Cut:
            pass  # it has refused the connection
        else:
            assert answer.status in (200, 400)
            assert MARK not in str(answer.headers)
            assert "set-cookie" not in answer.headers
    assert client.get("/v0/health").status_code == 200


def test_a_key_of_idempotency_is_one_whatever_is_in_it(client: Client, topic: str) -> None:
    for number, text in enumerate(TEXTS, 1):
        first = client.append(topic, number, idempotency_key=text)
        assert (first["deduped"], first["first_seq"]) == (False, number)
        again = client.append(topic, number, idempotency_key=text)
        assert (again["deduped"], again["first_seq"]) == (True, number)
    for key in ("", "a" * 257, ["a"], 1):
        invalid(client.send_append(topic, 1, idempotency_key=key), "idempotency_key")
    lone = client.post(
        f"/v0/topics/{topic}",
        content=b'{"records":[{"data":1}],"idempotency_key":"\\ud800"}',
        headers={"content-type": JSON_TYPE},
    )
    assert lone.status_code in (200, 400)


def test_a_lone_surrogate_is_no_text(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    for body in (
        b'{"records":[{"data":1,"tag":"\\ud800"}]}', b'{"records":[{"data":1,"node":"\\udfff"}]}',
        b'{"records":[{"data":1,"meta":{"k":"\\ud800x"}}]}', b'{"records":[{"data":1,"meta":{"\\ud800":"v"}}]}',
        b'{"records":[{"data":1}],"node":"\\ud800"}',
    ):  # fmt: skip
        answer = client.post(f"/v0/topics/{topic}", content=body, headers={"content-type": JSON_TYPE})
        invalid(answer)
    for call in ("claim", "ack", "delete"):
        content = b'{"node":"\\ud800","seqs":[1],"match":["tag","Eq","\\ud800"]}'
        answer = client.post(f"/v0/topics/{topic}/{call}", content=content, headers={"content-type": JSON_TYPE})
        invalid(answer)
    assert client.state(topic)["head_seq"] == 0


# --- pages, labels, logs ---------------------------------------------------------------------------------------------


def test_pages_show_nothing_of_a_request(client: Client) -> None:
    script = f"<script>{MARK}</script>"
    for path in (
        "/v0/docs",
        "/v0/openapi.json",
        f"/v0/{script}",
        f"/v0/topics/{script}",
        f"/v0/topics?prefix={script}&cursor={script}",
    ):
        separator = "&" if "?" in path else "?"
        headers = {
            "host": script,
            "x-forwarded-prefix": script,
            "x-forwarded-host": script,
            "referer": script,
            "accept": "text/html",
        }
        answer = client.get(f"{path}{separator}q={script}", headers=headers)
        kind = answer.headers["content-type"]
        assert kind.startswith(JSON_TYPE) or script not in answer.text, path
        if kind.startswith("text/html"):
            assert MARK not in answer.text
            assert answer.status_code == 200


def scraped_labels(client: Client) -> set[str]:
    """The values of all labels, which are what they should be."""
    answer = client.get("/v0/metrics")
    values = set()
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert sample.name.startswith("topics_"), sample
            for label, value in sample.labels.items():
                allowed = {
                    "topic": r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", "router": r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}",
                    "route": r"unmatched|[A-Z]+ /[a-z0-9_./{}]*", "status": r"[1-5][0-9]{2}",
                    "le": r"[0-9.e+]+|\+Inf",
                }.get(label, r"[a-z0-9_]+")  # fmt: skip
                assert re.fullmatch(allowed, value), (sample.name, label, value)
                values.add(value)
    body = body_of(client.get("/v0/metrics", headers={"accept": JSON_TYPE}))
    assert all(name.startswith("topics_") for name in body)
    return values


def provoke(client: Client, queue: Queue) -> None:
    """Bring about every line of the log that a value could get into."""
    # First what may be in an id, before there are so many lines that some are left out.
    for value in (b'{"event":"injected","level":"error"}', b"\x1b[31minjected", b"a\nb: c", b'\\"},{"x":"', b"%s%d"):
        exchanged(
            client, b"GET /v0/health HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + value + b"\r\nConnection: close\r\n\r\n"
        )
        exchanged(
            client,
            b"GET /v0/\x1b[31m\x07injected HTTP/1.1\r\nHost: x\r\nUser-Agent: "
            + value
            + b"\r\nConnection: close\r\n\r\n",
        )
        exchanged(client, value + b" / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    for text in TEXTS:
        client.append(queue.topic, records=[{"data": text, "tag": text, "node": text, "meta": {text: text}}])
        client.send_append(queue.topic, 1, idempotency_key=text, node=text)
        queue.send("claim", node=text)
        client.get(f"/v0/topics/{quote(text, safe='')}")
        client.get(f"/v0/{quote(text, safe='')}", params={text: text})
        client.post("/v0/watch", json={"topics": {text: {}}, "node": text})
        client.put(f"/v0/routers/{quote(text, safe='')}", json={"source": text, "dest": text})
    with WebSocket(client) as socket:
        for text in TEXTS:
            socket.send("publish", topic=f"-{text}", records=[{"data": text}], request_id=text)
            socket.next_op("error")


@pytest.mark.parametrize("file", ["log", "audit"])
def test_what_is_logged_is_one_json_object_a_line_and_metrics_are_metrics(client: Client, file: str) -> None:
    provoke(client, new_queue(client))
    scraped_labels(client)
    content = (client.daemon.root / file).read_bytes()
    *lines, rest = content.split(b"\n")
    assert lines
    assert rest == b""
    for line in lines:
        assert not re.search(rb"[\x00-\x1f\x7f]", line), line[:500]
        # What some readers take for the end of a line, and what a terminal obeys.
        assert not re.search("[\u0080-\u009f\u2028\u2029\u202a-\u202e]", line.decode()), line[:500]
        entry = json.loads(line)
        assert isinstance(entry, dict)
        assert entry.get("event") != MARK
        assert not set(entry) & {MARK, "x"}


def test_the_log_for_people_has_no_line_that_a_client_wrote(tmp_path: Path) -> None:
    with running(tmp_path, log_level="debug", log_format="human", slow_request_ms=1) as client:
        provoke(client, new_queue(client))
        content = (tmp_path / "log").read_bytes()
    assert content
    for line in content.decode().split("\n")[:-1]:
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", line), line[:500]
        # A traceback is indented; everything else begins with its time.
        assert re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z \[|\s", line), line[:500]
