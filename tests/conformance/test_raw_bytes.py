"""Consumers 7: raw bytes as the body of an append, as JSON, and as they came."""

from __future__ import annotations

import base64
import gzip
import json
import signal
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.conformance.bulk_client import LINES_TYPE, export, export_arrow, upload
from tests.conformance.client import (
    JSON_TYPE,
    Client,
    RawConnection,
    body_of,
    data_of,
    error_of,
    invalid,
    running,
    seqs_of,
)
from tests.conformance.keys import bearer
from tests.conformance.router_client import put_router
from tests.conformance.test_one_record import path
from tests.conformance.websocket import WebSocket
from topics.client import ApiError, AsyncClient, BadRequest, NewRecord, Record
from topics.client import Client as PythonClient

BOTH_WAYS = True
SETTINGS = {"max_record_bytes": 1000, "max_body_bytes": 1 << 20}

STRICT = {"topics-strict": "1"}

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
EVERY_BYTE = bytes(range(256))
OCTETS = "application/octet-stream"
SAFE = {
    "x-content-type-options": "nosniff",
    "content-disposition": "attachment",
    "content-security-policy": "sandbox; default-src 'none'",
    "cross-origin-resource-policy": "same-origin",
}


def send(
    client: Client, topic: str, content: Any, content_type: str = "image/png", /, *, headers: Any = (), **query: Any
) -> httpx.Response:
    query = {name: json.dumps(value) if isinstance(value, dict) else value for name, value in query.items()}
    named = {"content-type": content_type, **dict(headers)}
    return client.post(f"/v0/topics/{topic}", content=content, headers=named, params=query)


def in_json(content: bytes, content_type: str = "image/png") -> Any:
    return {"$bytes": base64.b64encode(content).decode(), "$content_type": content_type}


def bytes_of(client: Client, topic: str, seq: int, accept: str = "image/png", **headers: str) -> httpx.Response:
    return client.get(path(topic, seq), headers={"accept": accept, **headers})


# --- appending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        "application/octet-stream", "application/cbor", "application/protobuf", "image/png", "image/svg+xml",
        "audio/ogg;codecs=opus", 'video/mp4;codecs="avc1.42E01E, mp4a.40.2"',
    ],
)  # fmt: skip
def test_the_body_is_one_record_with_its_bytes_and_its_type(client: Client, topic: str, content_type: str) -> None:
    answer = body_of(send(client, topic, EVERY_BYTE, content_type), 201)
    assert (answer["seqs"], answer["count"], answer["created"], answer["head_seq"]) == ([1], 1, True, 1)
    (record,) = client.read(topic)["records"]
    assert record["data"] == in_json(EVERY_BYTE, content_type)
    answer = bytes_of(client, topic, 1, content_type.partition(";")[0])
    assert (answer.status_code, answer.content) == (200, EVERY_BYTE)
    assert answer.headers["content-type"] == content_type


def test_its_class_does_not_matter(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    body_of(send(client, topic, PNG))
    assert bytes_of(client, topic, 1).content == PNG


def test_nothing_is_a_record_too(client: Client, topic: str) -> None:
    body_of(send(client, topic, b""), 201)
    assert data_of(client.read(topic)) == [in_json(b"")]
    answer = bytes_of(client, topic, 1)
    assert (answer.content, answer.headers["content-length"]) == (b"", "0")
    with RawConnection(client) as connection:  # without a length, and with one
        connection.send_head("POST", f"/v0/topics/{topic}", content_type="image/png")
        assert connection.receive()[0] == 200
        connection.send_head("POST", f"/v0/topics/{topic}", content_type="image/png", content_length="0")
        assert connection.receive()[0] == 200


def test_a_type_is_written_in_one_way(client: Client, topic: str) -> None:
    body_of(send(client, topic, PNG, "IMAGE/Png ;\tCharset=UTF-8;"), 201)
    assert data_of(client.read(topic)) == [in_json(PNG, "image/png;charset=UTF-8")]


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain", "text/html", "application/xml", "application/x-protobuf", "application/octet-streams",
        "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "image/*", "*/*", "image", "image/",
        "image/png; a", 'image/png; a="b', "image/png, image/png", "image/" + "a" * 128, "text/plain; image/png",
        "image/png; a=" + "b" * 256, "font/woff", "message/http", "model/obj", "application/pdf",
    ],
)  # fmt: skip
def test_other_types_are_415(client: Client, topic: str, content_type: str) -> None:
    for content in (PNG, b""):
        detail = error_of(send(client, topic, content, content_type), 415, "unsupported_media_type")["detail"]
        assert detail["supported"] == [
            JSON_TYPE, LINES_TYPE, "application/octet-stream", "application/cbor", "application/protobuf", "image/*",
            "audio/*", "video/*",
        ]  # fmt: skip
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_bytes_without_a_type_are_415(client: Client, topic: str) -> None:
    error_of(client.post(f"/v0/topics/{topic}", content=PNG), 415, "unsupported_media_type")


def test_no_other_call_takes_bytes(client: Client, topic: str) -> None:
    headers = {"content-type": "image/png"}
    for method, target in (
        ("PUT", f"/v0/topics/{topic}"), ("POST", f"/v0/topics/{topic}/diff"), ("POST", "/v0/transactions"),
        ("POST", f"/v0/topics/{topic}/commit"),
    ):  # fmt: skip
        detail = error_of(client.request(method, target, content=b"{}", headers=headers), 415)["detail"]
        assert detail["supported"] == [JSON_TYPE]


def test_it_may_come_compressed_and_in_pieces(client: Client, topic: str) -> None:
    zipped = {"content-encoding": "gzip"}
    body_of(send(client, topic, gzip.compress(EVERY_BYTE), headers=zipped), 201)
    body_of(send(client, topic, (EVERY_BYTE[i : i + 7] for i in range(0, 256, 7))))
    body_of(send(client, topic, iter([gzip.compress(EVERY_BYTE)]), headers=zipped))
    with Client(client.daemon, http2=True) as other:
        body_of(send(other, topic, EVERY_BYTE))
        assert bytes_of(other, topic, 4).content == EVERY_BYTE
    assert [bytes_of(client, topic, seq).content for seq in (1, 2, 3, 4)] == [EVERY_BYTE] * 4
    invalid(send(client, topic, EVERY_BYTE, headers=zipped), "body")
    error_of(send(client, topic, EVERY_BYTE, headers={"content-encoding": "br"}), 415)
    assert client.state(topic)["head_seq"] == 4


def test_a_client_that_waits_is_told_to_go_on_or_that_it_need_not(client: Client, topic: str) -> None:
    head = {"content_type": "image/png", "expect": "100-continue"}
    with RawConnection(client) as connection:
        connection.send_head("POST", f"/v0/topics/{topic}", content_length=str(len(PNG)), **head)
        assert connection.socket.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.send(PNG)
        assert connection.receive()[0] == 201
    with RawConnection(client) as connection:
        connection.send_head("POST", f"/v0/topics/{topic}", content_length="2000", **head)
        connection.receive_error(400, "record_too_large")
    with RawConnection(client) as connection:
        connection.send_head(
            "POST", f"/v0/topics/{topic}", content_length="2000", content_type="text/plain", expect="100-continue"
        )
        connection.receive_error(415, "unsupported_media_type")
    assert client.state(topic)["head_seq"] == 1


def test_the_limit_is_that_of_the_json(client: Client, topic: str) -> None:
    around = len(json.dumps(in_json(b""), separators=(",", ":")))
    room = (1000 - around) // 4 * 3
    body_of(send(client, topic, bytes(room)), 201)
    for content in (bytes(room + 1), bytes(5000), iter([bytes(5000)]), bytes(2 << 20)):
        error = error_of(send(client, topic, content), 400, "record_too_large")
        assert error["detail"]["max"] == 1000
        assert room <= error["detail"]["max_raw_bytes"] < 750
        assert "base64" in error["message"]
    zipped = {"content-encoding": "gzip"}
    error_of(send(client, topic, gzip.compress(bytes(100_000)), headers=zipped), 400, "record_too_large")
    error_of(send(client, topic, bytes(room), meta={"k": "v" * 10}), 400, "record_too_large")
    error_of(send(client, topic, bytes(room), "image/png;long=parameter"), 400, "record_too_large")
    assert client.state(topic)["head_seq"] == 1
    # What is in the topic can be appended again, however it is read.
    (record,) = client.read(topic)["records"]
    client.append(f"{topic}-again", record["data"])


# --- the query -------------------------------------------------------------------------------------------------------


def test_the_query_has_what_a_body_of_json_would_have(client: Client, topic: str) -> None:
    query = {"tag": "ä:1", "node": "n", "meta": {"name": "a.png", "k": 'q"\\'}, "idempotency_key": "k"}
    body_of(send(client, topic, PNG, **query), 201)
    (record,) = client.read(topic, include_tags=True)["records"]
    assert (record["$tag"], record["$node"], record["meta"]) == ("ä:1", "n", {"name": "a.png", "k": 'q"\\'})
    again = body_of(send(client, topic, b"other", **query))
    assert (again["deduped"], again["seqs"]) == (True, [1])
    header = {"idempotency-key": "k"}
    assert body_of(send(client, topic, b"other", headers=header))["deduped"] is True
    assert body_of(send(client, topic, b"other", headers=header, idempotency_key="own"))["deduped"] is False
    assert "seqs" not in body_of(send(client, topic, PNG, return_seqs="false"))
    error_of(send(client, f"{topic}-x", PNG, create="false"), 404, "topic_not_found")
    body_of(send(client, topic, PNG, disable_backpressure="true", meta={}))


def test_an_append_of_json_under_the_same_key_is_the_same_append(client: Client, topic: str) -> None:
    body_of(send(client, topic, PNG, idempotency_key="k"), 201)
    assert client.append(topic, 1, idempotency_key="k")["deduped"] is True


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tag", ""), ("tag", "x" * 1000), ("node", ""), ("node", "x" * 1000), ("idempotency_key", ""),
        ("idempotency_key", "x" * 257), ("meta", "x"), ("meta", ""), ("meta", "[]"), ("meta", '{"a":1}'),
        ("meta", '{"a":"\\ud800"}'), ("meta", '{"_topics_x":"1"}'), ("meta", "[" * 3000), ("create", "x"),
        ("meta", json.dumps({str(i): "" for i in range(65)})), ("expected_head_seq", "x"), ("expected_head_seq", "-1"),
        ("expected_head_seq", str(2**64)), ("expected_tag_seqs", "x"), ("expected_tag_seqs", ""),
        ("expected_tag_seqs", '{"a":"1"}'), ("expected_tag_seqs", '{"a":-1}'), ("expected_tag_seqs", '{"":1}'),
        ("fence", "x"), ("fence", ""), ("fence", "leader"), ("fence", '{"name":"a"}'), ("fence", "[]"),
        ("fence", '{"name":"a","token":-1}'), ("fence", '{"name":"a","token":1,"more":1}'),
        ("fence", '{"name":"","token":1}'), ("expected_seq", "1"), ("fence_token", "1"), ("stage", "-"),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_named_and_nothing_is_stored(client: Client, topic: str, field: str, value: str) -> None:
    invalid(send(client, topic, PNG, **{field: value}), field)
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_parameter_twice_is_400(client: Client, topic: str) -> None:
    answer = client.post(f"/v0/topics/{topic}?tag=a&tag=b", content=PNG, headers={"content-type": "image/png"})
    invalid(answer, "tag")


def test_conditions_are_judged(client: Client, topic: str) -> None:
    body_of(send(client, topic, PNG, expected_head_seq=0, expected_tag_seqs={"t": 0}, tag="t"), 201)
    detail = error_of(send(client, topic, PNG, expected_head_seq=0), 409, "condition_failed")["detail"]
    assert detail["head_seq"] == 1
    error_of(send(client, topic, PNG, expected_tag_seqs={"t": 0}), 409, "condition_failed")
    body_of(send(client, topic, PNG, expected_tag_seqs={"t": 1}, fence={"name": "f", "token": 7}))
    error_of(send(client, topic, PNG, fence={"name": "f", "token": 6}), 409, "fenced")
    body_of(send(client, topic, PNG, fence="null", expected_tag_seqs="null"))
    assert client.state(topic)["head_seq"] == 3
    assert client.state(topic)["fences"] == {"f": 7}
    invalid(send(client, topic, PNG, stage="s", expected_head_seq=3), "stage")


def test_strict_requests_know_their_names(client: Client, topic: str) -> None:
    every: dict[str, Any] = {"tag": "t", "node": "n", "meta": {"k": "v"}, "idempotency_key": "k", "create": "true"}
    every |= {"disable_backpressure": "false", "return_seqs": "true", "expected_head_seq": 0}
    every |= {"expected_tag_seqs": {"t": 0}, "fence": {"name": "f", "token": 1}}
    body_of(send(client, topic, PNG, headers=STRICT, **every), 201)
    error = error_of(send(client, topic, PNG, headers=STRICT, tga="t"), 400, "invalid_request")
    assert error["detail"] == {"field": "tga", "suggestion": "tag"}
    body_of(send(client, topic, PNG, tga="t"))
    error_of(send(client, topic, PNG, "text/plain", headers=STRICT, tag="t"), 415)
    # They are fields of other bodies.
    for name in ("tag", "meta", "idempotency_key"):
        answer = client.post(f"/v0/topics/{topic}?{name}=x", json={"records": [{"data": 1}]}, headers=STRICT)
        invalid(answer, name)
        invalid(send(client, topic, b'{"data":1}', LINES_TYPE, headers=STRICT, **{name: "x"}), name)


def test_it_may_go_to_a_stage(client: Client, topic: str) -> None:
    assert body_of(send(client, topic, PNG, stage="s", tag="t"), 201)["count"] == 1
    assert body_of(send(client, topic, b"", stage="s"))["count"] == 2
    assert data_of(client.read(topic)) == []
    body_of(client.post(f"/v0/topics/{topic}/commit", json={"stages": ["s"], "idempotency_key": "c"}))
    assert data_of(client.read(topic)) == [in_json(PNG), in_json(b"")]


# --- as JSON ---------------------------------------------------------------------------------------------------------


def test_json_of_exactly_that_form_is_the_same_record(client: Client, topic: str) -> None:
    written = json.dumps(in_json(PNG), separators=(",", ":")).encode()
    client.append_raw(topic, written)
    body_of(send(client, topic, PNG))
    with WebSocket(client) as socket:
        socket.send_text(
            f'{{"op":"publish","request_id":1,"topic":"{topic}","records":[{{"data":{written.decode()}}}]}}'
        )
        assert socket.answer(1)["seqs"] == [3]
    body_of(upload(client, topic, b'{"data":%b}\n' % written))
    for seq in range(1, 5):
        assert bytes_of(client, topic, seq).content == PNG
    assert seqs_of(client.read(topic, filter=["data", "", "Exists", False])) == [1, 2, 3, 4]


def test_json_of_nearly_that_form_is_json(client: Client, topic: str) -> None:
    text = json.dumps(in_json(PNG)).encode()  # with blanks
    client.append_raw(topic, text)
    client.append_raw(topic, b'{"$bytes":"AB==","$content_type":"image/png"}')
    client.append_raw(topic, b'{"$bytes":"AA==","$content_type":"text/html"}')
    client.append_raw(topic, b'{"$bytes":"AA==","$content_type":"image/png\\r\\nx: y"}')
    for seq in range(1, 5):
        answer = bytes_of(client, topic, seq, "image/png, text/html")
        assert answer.headers["content-type"] == JSON_TYPE
    assert bytes_of(client, topic, 1).content.endswith(b'"data":' + text + b"}\n")
    assert seqs_of(client.read(topic, filter=["data", "/$content_type", "Exists", True])) == [1, 2, 3, 4]


def test_an_export_can_be_appended_again(client: Client, topic: str) -> None:
    body_of(send(client, topic, PNG, tag="t"), 201)
    client.append(topic, {"a": 1})
    body_of(send(client, topic, b"", "application/cbor"))
    lines = [json.dumps({"data": record["data"]}, separators=(",", ":")) for record in export(client, topic).records]
    body_of(upload(client, f"{topic}-again", "\n".join(lines).encode()), 201)
    assert bytes_of(client, f"{topic}-again", 1).content == PNG
    assert bytes_of(client, f"{topic}-again", 3, "application/cbor").content == b""
    assert export_arrow(client, topic).data == export(client, topic).data


def test_a_router_copies_it(client: Client, topic: str) -> None:
    put_router(client, f"{topic}>all", topic, f"{topic}-all")
    put_router(client, f"{topic}>json", topic, f"{topic}-json", filter=["data", "", "Exists", True])
    put_router(client, f"{topic}>raw", topic, f"{topic}-raw", filter=["data", "", "Exists", False])
    body_of(send(client, topic, PNG))
    client.append(topic, 1)
    assert data_of(client.read(f"{topic}-all")) == [in_json(PNG), 1]
    assert data_of(client.read(f"{topic}-json")) == [1]
    assert data_of(client.read(f"{topic}-raw")) == [in_json(PNG)]
    assert bytes_of(client, f"{topic}-raw", 1).content == PNG


def test_a_filter_finds_no_data_in_it(client: Client, topic: str) -> None:
    body_of(send(client, topic, PNG, tag="a"), 201)
    client.append(topic, records=[{"data": {"$bytes": "x"}, "tag": "a"}])
    for wanted, seqs in (
        (["data", "/$bytes", "Exists", True], [2]), (["data", "", "Exists", False], [1]),
        (["data", "/$content_type", "Ne", "x"], []), (["Not", ["data", "/$bytes", "Eq", "x"]], [1]),
        (["tag", "Eq", "a"], [1, 2]), (["And", ["tag", "Eq", "a"], ["data", "/$bytes", "Glob", "*"]], [2]),
    ):  # fmt: skip
        assert seqs_of(client.read(topic, filter=wanted)) == seqs, wanted
        assert export(client, topic, filter=json.dumps(wanted)).seqs == seqs, wanted


def test_a_topic_with_a_schema_refuses_it(client: Client, topic: str) -> None:
    client.put_topic(topic, schema={})
    for answer in (send(client, topic, PNG), client.send_append(topic, in_json(PNG))):
        detail = error_of(answer, 422, "schema_violation")["detail"]
        assert (detail["record"], detail["path"]) == (0, "")
        assert "raw bytes" in detail["message"]
    client.append(topic, {"$bytes": "AA=="})
    error_of(send(client, topic, PNG, stage="s"), 422, "schema_violation")
    body_of(send(client, f"{topic}-source", PNG), 201)
    put_router(client, f"{topic}>copies", f"{topic}-source", topic, **{"from": "earliest"})
    assert data_of(client.read(topic)) == [{"$bytes": "AA=="}]


def test_it_can_be_a_job(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    body_of(send(client, topic, PNG))
    (job,) = body_of(client.post(f"/v0/topics/{topic}/claim", json={"node": "w"}))["claimed"]
    assert job["data"] == in_json(PNG)


# --- as it came ------------------------------------------------------------------------------------------------------


def test_a_browser_does_not_run_what_was_stored(client: Client, topic: str) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    body_of(send(client, topic, svg, "image/svg+xml"), 201)
    answer = bytes_of(client, topic, 1, "image/svg+xml")
    assert answer.content == svg
    assert {name: answer.headers[name] for name in SAFE} == SAFE


@pytest.mark.parametrize(
    ("accept", "comes"),
    [
        ("image/png", True),
        ("IMAGE/PNG", True),
        ("image/*", True),
        ("image/png;q=0.5", True),
        ("image/png; charset=utf-8", True),
        ("image/png, application/json", True),
        ("image/avif,image/webp,image/*,*/*;q=0.8", True),
        ("text/html, image/png;q=0.2", True),
        ("image/png;q=0", False),
        ("image/png;q=x", False),
        ("image/png;q=0, image/*", False),
        ("image/png;q=0.1, application/json", False),
        ("image/png;q=0.1, */*;q=0.2", False),
        ("image/jpeg", False),
        ("audio/*", False),
        ("*/*", False),
        ("application/*", False),
        ("application/json", False),
        ("text/html", False),
        ("", False),
        ("image", False),
        ("image/", False),
    ],
)
def test_the_bytes_come_if_accept_names_their_type(client: Client, topic: str, accept: str, comes: bool) -> None:
    body_of(send(client, topic, PNG), 201)
    answer = bytes_of(client, topic, 1, accept)
    assert "accept" in answer.headers["vary"].split(", ")
    if comes:
        assert (answer.content, answer.headers["content-type"]) == (PNG, "image/png")
    else:
        assert body_of(answer)["data"] == in_json(PNG)
        assert not set(SAFE) & set(answer.headers)


def test_the_type_decides_without_its_parameters(client: Client, topic: str) -> None:
    body_of(send(client, topic, PNG, "application/octet-stream; a=b"), 201)
    answer = bytes_of(client, topic, 1, "application/octet-stream;c=d")
    assert (answer.content, answer.headers["content-type"]) == (PNG, "application/octet-stream;a=b")
    body_of(bytes_of(client, topic, 1, "application/*"))


def test_other_records_are_json_whatever_is_asked_for(client: Client, topic: str) -> None:
    client.append(topic, {"a": 1})
    assert body_of(bytes_of(client, topic, 1))["data"] == {"a": 1}
    error_of(bytes_of(client, topic, 2), 404, "record_not_found")


def test_bytes_may_come_compressed(tmp_path: Path) -> None:
    with running(tmp_path, max_record_bytes=1 << 20) as other:
        content = b"abc" * 200_000
        body_of(send(other, "t", content), 201)
        for encoding in ("gzip", "identity"):
            answer = bytes_of(other, "t", 1, **{"accept-encoding": encoding})
            assert answer.content == content
            assert answer.headers.get("content-encoding", "identity") == encoding
            assert set(answer.headers["vary"].split(", ")) >= {"accept", "accept-encoding"}
        assert zlib.crc32(bytes_of(other, "t", 1).content) == zlib.crc32(content)


def test_a_key_must_allow_it(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,reader:read,writer:write,narrow:rw:a") as client:
        error_of(send(client, "t", PNG), 401)
        error_of(send(client, "t", PNG, headers=bearer("reader")), 403)
        error_of(send(client, "t", PNG, headers=bearer("narrow")), 403)
        body_of(send(client, "t", PNG, headers=bearer("writer")), 201)
        assert bytes_of(client, "t", 1, **bearer("reader")).content == PNG
        error_of(bytes_of(client, "t", 1, **bearer("writer")), 403)
        error_of(bytes_of(client, "t", 1), 401)


def test_a_page_of_another_origin_may_neither_send_nor_see_it(client: Client, topic: str) -> None:
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        error_of(send(client, topic, PNG, headers=headers), 403, "forbidden")
        error_of(bytes_of(client, topic, 1, **headers), 403, "forbidden")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_both_python_clients_send_and_read_it(client: Client, topic: str) -> None:
    async def asynchronously() -> None:
        async with AsyncClient(client.daemon.url) as python:
            done = await python.append_bytes(
                topic, bytearray(EVERY_BYTE), tag="t", meta={"k": "v"}, expected_head_seq=1
            )
            assert done.seqs == [2]
            record = await python.record(topic, 2)
            assert (record.content, record.content_type) == (EVERY_BYTE, "application/octet-stream")
            assert (record.tag, record.meta) == ("t", {"k": "v"})

    with PythonClient(client.daemon.url) as python:
        assert python.append_bytes(topic, PNG, "image/png").created
        trio.run(asynchronously)
        python.append(topic, [NewRecord(record.raw) for record in python.read(topic) if isinstance(record, Record)])
        python.append(topic, [in_json(PNG), "x"])
        found = [record for record in python.read(topic) if isinstance(record, Record)]
        assert [record.content_type for record in found[:5]] == ["image/png", OCTETS, "image/png", OCTETS, "image/png"]
        assert [record.content for record in found[:5]] == [PNG, EVERY_BYTE, PNG, EVERY_BYTE, PNG]
        assert found[5].content_type is None
        with pytest.raises(ApiError) as refused:
            python.append_bytes(topic, b"x", "text/plain")
        assert (refused.value.status, refused.value.code) == (415, "unsupported_media_type")
        with pytest.raises(BadRequest):
            python.append_bytes(topic, bytes(2000))


def test_after_a_restart_it_is_the_same(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("t", durability="fsync")
        body_of(send(client, "t", EVERY_BYTE, tag="a", idempotency_key="k"))
        client.post("/v0/admin/checkpoint")
        body_of(send(client, "t", b"", "audio/ogg"))
        client = client.daemon.restart(signal.SIGKILL)
        assert bytes_of(client, "t", 1).content == EVERY_BYTE
        assert bytes_of(client, "t", 2, "audio/*").content == b""
        assert body_of(send(client, "t", b"", idempotency_key="k"))["deduped"] is True
