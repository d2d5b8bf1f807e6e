"""Section 1: content types, encodings, the error envelope, and HTTP itself."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from tests.conformance.client import (
    JSON_TYPE,
    Client,
    RawConnection,
    body_of,
    data_of,
    error_of,
    invalid,
)

BOTH_WAYS = True

ONE_RECORD = b'{"records":[{"data":"x"}]}'


@pytest.fixture(scope="module")
def client_of_http2(client: Client) -> Iterator[Client]:
    with Client(client.daemon, http2=True) as other:
        yield other


@pytest.fixture(params=["h1", "h2"])
def either(request: pytest.FixtureRequest, client: Client, client_of_http2: Client) -> Client:
    """A client that speaks HTTP/1.1, and one that speaks HTTP/2 with prior knowledge."""
    return client if request.param == "h1" else client_of_http2


# Content types and empty bodies


@pytest.mark.parametrize(
    "kind",
    ["application/json", "application/json; charset=utf-8", "application/json;charset=UTF-8", "Application/JSON"],
)
def test_json_is_taken_with_or_without_parameters(either: Client, topic: str, kind: str) -> None:
    answer = either.post(f"/v0/topics/{topic}", content=ONE_RECORD, headers={"content-type": kind})
    body_of(answer, 201)


OPTIONAL_BODIES = [
    ("POST", "/v0/admin/checkpoint"),
    ("POST", "/v0/topics/{topic}/diff"),
    ("PUT", "/v0/topics/{topic}"),
]


@pytest.mark.parametrize("call", OPTIONAL_BODIES, ids=" ".join)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
def test_another_type_is_415_also_without_a_body(either: Client, topic: str, call: tuple[str, str], kind: str) -> None:
    """A page of a stranger may send such a request without asking first (`fetch` in the mode `no-cors`, a form)."""
    either.append(topic, 1)
    method, path = call
    answer = either.request(method, path.format(topic=topic), content=b"", headers={"content-type": kind})
    error_of(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("call", OPTIONAL_BODIES, ids=" ".join)
@pytest.mark.parametrize("headers", [{}, {"content-type": ""}, {"content-type": JSON_TYPE}], ids=str)
def test_no_body_needs_no_type(either: Client, topic: str, call: tuple[str, str], headers: dict[str, str]) -> None:
    either.append(topic, 1)
    method, path = call
    body_of(either.request(method, path.format(topic=topic), content=b"", headers=headers))


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/jsonp", "application/x-www-form-urlencoded", "application/xml"]
)
def test_a_body_of_no_or_another_type_is_415(either: Client, topic: str, method: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    content = b"{}" if method == "PUT" else ONE_RECORD
    answer = either.request(method, f"/v0/topics/{topic}", content=content, headers=headers)
    error_of(answer, 415, "unsupported_media_type")
    error_of(either.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_no_body_means_an_empty_object_where_every_field_is_optional(either: Client, topic: str) -> None:
    assert body_of(either.put(f"/v0/topics/{topic}"), 201)["created"]
    assert body_of(either.post(f"/v0/topics/{topic}/diff"))["records"] == []


def test_no_body_is_400_where_a_field_is_required(either: Client, topic: str) -> None:
    either.put_topic(topic)
    invalid(either.post(f"/v0/topics/{topic}"), "records")
    error_of(either.post(f"/v0/topics/{topic}/delete"), 400, "invalid_request")


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"}",
        b"{}{}",
        b"[]",
        b"null",
        b'"x"',
        b"1",
        b" ",
        b'{"from_seq":01}',
        b'{"from_seq":1,}',
        b"{'limit':1}",
        b'{"limit":NaN}',
        b'{"x":"\xff"}',
        b'{"x":"\xed\xa0\x80"}',
        b'{"x":"\x01"}',
        b'{"x":' + b"[" * 600 + b"]" * 600 + b"}",
        b'{"x":' + b"[" * 100_000,
        b'{"x":"\\u12"}',
        b'{"x":"\\q"}',
        b"\xff\xfe{\x00}\x00",
    ],
)
def test_malformed_json_is_400_whichever_call_it_is_sent_to(client: Client, content: bytes) -> None:
    client.put_topic("malformed")
    for path in ("", "/diff", "/delete"):
        answer = client.post(f"/v0/topics/malformed{path}", content=content, headers={"content-type": JSON_TYPE})
        error_of(answer, 400, "invalid_request")
    answer = client.put("/v0/topics/malformed", content=content, headers={"content-type": JSON_TYPE})
    error_of(answer, 400, "invalid_request")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("", {"records": "x"}, "records"),
        ("", {"records": [1]}, "records"),
        ("", {"records": [{"data": 1}], "node": 1}, "node"),
        ("", {"records": [{"data": 1}], "create": "yes"}, "create"),
        ("", {"records": [{"data": 1}], "idempotency_key": 1}, "idempotency_key"),
        ("", {"records": [{"data": 1}], "config": []}, "config"),
        ("", {"records": [{"data": 1}], "disable_backpressure": 3}, "disable_backpressure"),
        ("", {"records": [{"data": 1, "tag": 1}]}, "tag"),
        ("", {"records": [{"data": 1, "node": []}]}, "node"),
        ("", {"records": [{"data": 1, "meta": []}]}, "meta"),
        ("", {"records": [{"data": 1, "meta": {"k": 1}}]}, "meta"),
        ("", {"records": [{}]}, "data"),
        ("/diff", {"from_seq": "1"}, "from_seq"),
        ("/diff", {"from_seq": -1}, "from_seq"),
        ("/diff", {"from_seq": 1.5}, "from_seq"),
        ("/diff", {"from_seq": 2**64}, "from_seq"),
        ("/diff", {"from_seq": True}, "from_seq"),
        ("/diff", {"epoch": "x"}, "epoch"),
        ("/diff", {"limit": "x"}, "limit"),
        ("/diff", {"limit": 1.5}, "limit"),
        ("/diff", {"node": 1}, "node"),
        ("/diff", {"node": [1]}, "node"),
        ("/diff", {"node": {}}, "node"),
        ("/diff", {"include_tags": "x"}, "include_tags"),
        ("/diff", {"include_meta": 7}, "include_meta"),
        ("/diff", {"wait_ms": "x"}, "wait_ms"),
        ("/diff", {"max_batch_bytes": []}, "max_batch_bytes"),
        ("/delete", {"before_seq": -1}, "before_seq"),
        ("/delete", {"before_seq": "1"}, "before_seq"),
        ("/delete", {"match": 1}, "match"),
    ],
)
def test_a_wrong_type_or_range_is_400_and_names_the_field(client: Client, path: str, body: Any, field: str) -> None:
    client.put_topic("wrong")
    invalid(client.post(f"/v0/topics/wrong{path}", json=body), field)
    assert client.state("wrong")["head_seq"] == 0


def test_data_plane_bodies_ignore_unknown_keys(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "a", "colour": "red"}], colour={"deep": [1]})
    assert data_of(client.read(topic, colour="red")) == [1]
    assert client.delete_records(topic, match="a", colour="red")["deleted"] == 1


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("true", True), ("false", False)])
def test_booleans_in_the_query(client: Client, topic: str, text: str, value: bool) -> None:
    answer = client.post(f"/v0/topics/{topic}?return_seqs={text}", json={"records": [{"data": 1, "tag": "a"}]})
    assert ("seqs" in body_of(answer, 201)) is value
    record = body_of(client.get(f"/v0/topics/{topic}/diff?include_tags={text}"))["records"][0]
    assert ("$tag" in record) is value


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/v0/topics/booleans", "return_seqs"),
        ("GET", "/v0/topics/booleans", "touch"),
        ("GET", "/v0/topics", "touch"),
        ("DELETE", "/v0/topics/booleans", "if_empty"),
        ("GET", "/v0/topics/booleans/diff", "include_tags"),
        ("GET", "/v0/topics/booleans/diff", "include_meta"),
    ],
)
def test_anything_else_for_a_boolean_is_400(client: Client, method: str, path: str, name: str) -> None:
    client.put_topic("booleans")
    body = {"records": [{"data": 1}]} if method == "POST" else None
    for text in ("", "2", "yes", "TRUE", "True", "on", "null", "%20true"):
        invalid(client.request(method, f"{path}?{name}={text}", json=body), name)
    assert client.state("booleans")["head_seq"] == 0


def test_anything_else_for_a_boolean_setting_is_a_refused_start(tmp_path: Path) -> None:
    environ = os.environ | {
        "TOPICS_ALLOW_INSECURE_NO_AUTH": "yes",
        "TOPICS_PORT": "0",
        "TOPICS_DATA_DIR": str(tmp_path),
    }
    done = subprocess.run([sys.executable, "-m", "topics"], env=environ, capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert b"TOPICS_ALLOW_INSECURE_NO_AUTH" in done.stderr + done.stdout


# gzip


def test_a_gzipped_request_is_read(either: Client, topic: str) -> None:
    headers = {"content-type": JSON_TYPE, "content-encoding": "gzip"}
    content = gzip.compress(b'{"records":[{"data":"zipped"}]}')
    body_of(either.post(f"/v0/topics/{topic}", content=content, headers=headers), 201)
    assert data_of(either.read(topic)) == ["zipped"]
    content = gzip.compress(b'{"ttl_ms":') + gzip.compress(b"77000}")
    answer = either.put(f"/v0/topics/{topic}", content=content, headers=headers | {"content-encoding": "GZIP"})
    assert body_of(answer)["config"]["ttl_ms"] == 77000


@pytest.mark.parametrize(
    "content",
    [ONE_RECORD, gzip.compress(ONE_RECORD, mtime=0)[:-9], gzip.compress(b"{}" * 40, mtime=0)[:20], b"\x1f\x8b"],
)
def test_a_damaged_gzip_body_is_400(either: Client, topic: str, content: bytes) -> None:
    headers = {"content-type": JSON_TYPE, "content-encoding": "gzip"}
    error_of(either.post(f"/v0/topics/{topic}", content=content, headers=headers), 400, "invalid_request")
    error_of(either.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate, br", "br;q=1.0, gzip;q=0.5"])
def test_a_response_is_gzipped_for_a_client_that_accepts_it(either: Client, accepted: str) -> None:
    long = "z" * 20_000
    either.append("zipped", long)
    answer = either.post("/v0/topics/zipped/diff", json={"limit": 1}, headers={"accept-encoding": accepted})
    assert answer.headers["content-encoding"] == "gzip"
    assert data_of(body_of(answer)) == [long]
    assert int(answer.headers.get("content-length", "0")) < 5000


@pytest.mark.parametrize("accepted", ["identity", "br", "gzip;q=0", ""])
def test_a_response_is_plain_for_a_client_that_does_not(either: Client, accepted: str) -> None:
    either.append("plain", "z" * 20_000)
    answer = either.post("/v0/topics/plain/diff", json={"limit": 1}, headers={"accept-encoding": accepted})
    assert answer.headers.get("content-encoding", "identity") == "identity"
    assert data_of(body_of(answer)) == ["z" * 20_000]


# The error envelope


@pytest.mark.parametrize("path", ["/v0", "/v0/", "/v0/nothing", "/v1/topics", "/v0/topics/a/nothing", "/x%00"])
def test_an_unknown_route_is_404_in_the_envelope(either: Client, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        error_of(either.request(method, path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PATCH", "/v0/topics/a", {"GET", "PUT", "POST", "DELETE"}),
        ("DELETE", "/v0/topics", {"GET"}),
        ("POST", "/v0/topics", {"GET"}),
        ("PUT", "/v0/topics/a/diff", {"GET", "POST"}),
        ("DELETE", "/v0/topics/a/diff", {"GET", "POST"}),
        ("GET", "/v0/topics/a/delete", {"POST"}),
        ("POST", "/v0/health", {"GET"}),
        ("DELETE", "/v0/ready", {"GET"}),
        ("PUT", "/v0/metrics", {"GET"}),
        ("PROPFIND", "/v0/topics/a", {"GET", "PUT", "POST", "DELETE"}),
    ],
)
def test_another_method_is_405_with_allow(either: Client, method: str, path: str, allowed: set[str]) -> None:
    answer = either.request(method, path)
    error_of(answer, 405, "method_not_allowed")
    listed = {name.strip() for name in answer.headers["allow"].split(",")}
    assert allowed <= listed
    assert listed <= allowed | {"HEAD", "OPTIONS"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v0/topics/missing", None),
        ("GET", "/v0/topics/missing/diff", None),
        ("POST", "/v0/topics/missing/diff", {}),
        ("POST", "/v0/topics/missing/delete", {"before_seq": 1}),
        ("POST", "/v0/topics/missing", {"records": [{"data": 1}], "create": False}),
    ],
)
def test_a_missing_topic_is_404_with_its_name_and_is_not_created(
    either: Client, method: str, path: str, body: Any
) -> None:
    error = error_of(either.request(method, path, json=body), 404, "topic_not_found")
    assert error["detail"]["topic"] == "missing"
    error_of(either.get("/v0/topics/missing"), 404, "topic_not_found")


# Names


@pytest.mark.parametrize("name", ["a", "9", "A.b_c:d-e", "a" * 255, "0.", "x::", "Z-_.:"])
def test_a_good_name_is_taken_as_it_is(client: Client, name: str) -> None:
    assert client.put_topic(name)["topic"] == name
    assert client.append(name, 1)["topic"] == name
    assert client.state(name)["topic"] == name


def test_names_are_case_sensitive(client: Client) -> None:
    client.append("Case", "upper")
    error_of(client.get("/v0/topics/case"), 404, "topic_not_found")
    client.append("case", "lower")
    assert data_of(client.read("Case")) == ["upper"]


@pytest.mark.parametrize(
    "name",
    [
        "-a",
        ".a",
        "_a",
        ":a",
        "a" * 256,
        "a%20b",
        "a%0A",
        "%0Aa",
        "a%3Eb",
        "%C3%A9",
        "a%C3%A9",
        "a%00",
        "%D9%A1",
        "a@b",
        "a$",
        "a*",
        "a%25",
        "a+b",
        "a,b",
        "a~",
    ],
)
def test_a_bad_name_is_400_wherever_it_appears(client: Client, name: str) -> None:
    calls: list[tuple[str, str, Any]] = [
        ("PUT", "", {}),
        ("POST", "", {"records": [{"data": 1}]}),
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/diff", {}),
        ("GET", "/diff", None),
        ("POST", "/delete", {"before_seq": 1}),
    ]
    for method, path, body in calls:
        error_of(client.request(method, f"/v0/topics/{name}{path}", json=body), 400, "invalid_request")


# HTTP itself


def test_no_answer_has_cors_headers_when_no_origins_are_listed(either: Client) -> None:
    headers = {"origin": "https://example.org", "access-control-request-method": "PUT"}
    for method in ("GET", "OPTIONS"):
        answer = either.request(method, "/v0/topics/a", headers=headers)
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize("size", [60_000, 120_000])
def test_request_headers_may_be_large(either: Client, size: int) -> None:
    body_of(either.get("/v0/health", headers={"x-resume": "r" * size}))


@pytest.mark.parametrize("size", [60_000, 120_000])
def test_a_request_target_may_be_large(client: Client, size: int) -> None:
    with RawConnection(client) as connection:
        connection.send_head("GET", f"/v0/health?x={'r' * size}")
        assert connection.receive()[0] == 200


def test_a_connection_of_http1_takes_any_number_of_requests(client: Client) -> None:
    with RawConnection(client) as connection:
        for _ in range(1200):
            connection.send_head("GET", "/v0/health")
            status, headers, _ = connection.receive()
            assert status == 200
            assert headers.get("connection", "keep-alive").lower() != "close"


def test_pipelined_requests_are_answered_in_order(client: Client, topic: str) -> None:
    client.append(topic, *range(5))
    head = f"GET /v0/topics/{topic}/diff?limit=1&from_seq=%d HTTP/1.1\r\nhost: localhost\r\n"
    with RawConnection(client) as connection:
        requests = [head % seq + ("connection: close\r\n" if seq == 4 else "") + "\r\n" for seq in range(5)]
        connection.send("".join(requests).encode())
        received = b""
        while part := connection.socket.recv(65536):
            received += part
    bodies = [json.loads(part.rpartition(b"\r\n\r\n")[2]) for part in _answers(received)]
    assert [data_of(body) for body in bodies] == [[0], [1], [2], [3], [4]]


def _answers(received: bytes) -> list[bytes]:
    return [b"HTTP/1.1" + part for part in received.split(b"HTTP/1.1")[1:]]


@pytest.mark.parametrize(
    "sent",
    [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST /v0/topics/a HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n"],
)
def test_what_is_not_http_is_400_and_harms_nobody_else(client: Client, sent: bytes) -> None:
    with RawConnection(client) as connection:
        connection.send(sent)
        received = b""
        while part := connection.socket.recv(65536):
            received += part
    assert received.startswith(b"HTTP/1.1 400") or not received
    body_of(client.get("/v0/health"))


def test_a_chunked_request_is_read(client: Client, topic: str) -> None:
    with RawConnection(client) as connection:
        connection.send_head("POST", f"/v0/topics/{topic}", content_type=JSON_TYPE, transfer_encoding="chunked")
        for byte in b'{"records":[{"data":[1,2]}]}':
            connection.send(b"1\r\n" + bytes([byte]) + b"\r\n")
        connection.send(b"0\r\n\r\n")
        assert connection.receive()[0] == 201
    assert data_of(client.read(topic)) == [[1, 2]]


def _status_of(event: h2.events.ResponseReceived) -> int:
    headers: list[Any] = list(event.headers)
    return int(dict(headers)[":status"])


class H2Connection:
    """HTTP/2 by hand: many streams of one connection at once."""

    def __init__(self, client: Client, *, upgrade: bool = False) -> None:
        self.raw = RawConnection(client)
        self.events: list[h2.events.Event] = []
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        if not upgrade:
            self.h2.initiate_connection()
            self.h2.increment_flow_control_window(1 << 30)
            self.flush()
            return
        settings = self.h2.initiate_upgrade_connection()
        assert settings is not None
        self.raw.send_head(
            "GET", "/v0/health", upgrade="h2c", connection="Upgrade, HTTP2-Settings", http2_settings=settings.decode()
        )
        received = b""
        while b"\r\n\r\n" not in received:
            received += self.raw.socket.recv(65536)
        head, _, rest = received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        self.flush()
        self.events += self.h2.receive_data(rest)
        self.flush()

    def flush(self) -> None:
        self.raw.send(self.h2.data_to_send())

    def get(self, target: str) -> int:
        stream = self.h2.get_next_available_stream_id()
        headers = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost"), (":path", target)]
        self.h2.send_headers(stream, headers, end_stream=True)
        return stream

    def receive_until_ended(self, streams: set[int]) -> dict[int, int]:
        """The statuses of these streams."""
        statuses: dict[int, int] = {}
        waiting = set(streams)
        while True:
            for event in self.events:
                if isinstance(event, h2.events.ResponseReceived):
                    statuses[event.stream_id] = _status_of(event)
                elif isinstance(event, h2.events.StreamEnded):
                    waiting.discard(event.stream_id)
                else:
                    assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated), event
            self.events = []
            if not waiting:
                return statuses
            data = self.raw.socket.recv(1 << 20)
            assert data, "the daemon hung up"
            self.events = self.h2.receive_data(data)
            self.flush()


def test_an_http1_connection_can_be_upgraded_to_http2(client: Client) -> None:
    connection = H2Connection(client, upgrade=True)
    with connection.raw:
        assert connection.receive_until_ended({1}) == {1: 200}
        second = connection.get("/v0/health")
        connection.flush()
        assert connection.receive_until_ended({second}) == {second: 200}


def test_a_connection_of_http2_takes_any_number_of_requests(client: Client) -> None:
    connection = H2Connection(client)
    with connection.raw:
        for _ in range(24):
            streams = {connection.get("/v0/health") for _ in range(50)}
            connection.flush()
            assert set(connection.receive_until_ended(streams).values()) == {200}


def test_a_connection_of_http2_allows_ten_thousand_concurrent_streams(client: Client) -> None:
    connection = H2Connection(client)
    with connection.raw:
        connection.receive_until_ended({_flushed_get(connection)})
        allowed = connection.h2.remote_settings.max_concurrent_streams
    assert allowed >= 10_000


def test_hundreds_of_long_polls_share_a_connection_of_http2(client: Client, topic: str) -> None:
    client.put_topic(topic)
    connection = H2Connection(client)
    with connection.raw:
        connection.receive_until_ended({_flushed_get(connection)})
        streams = {connection.get(f"/v0/topics/{topic}/diff?wait_ms=20000") for _ in range(600)}
        connection.flush()
        connection.receive_until_ended({_flushed_get(connection)})
        client.append(topic, 1)
        assert set(connection.receive_until_ended(streams).values()) == {200}


def _flushed_get(connection: H2Connection) -> int:
    stream = connection.get("/v0/health")
    connection.flush()
    return stream


# performance


def test_every_success_tells_its_time(either: Client, topic: str) -> None:
    answers = [
        either.put_topic(topic),
        either.append(topic, 1),
        either.read(topic),
        either.state(topic),
        body_of(either.get("/v0/topics")),
        either.delete_records(topic, before_seq=1),
        either.delete_topic(topic),
    ]
    for answer in answers:
        assert answer["performance"]["server_total_ms"] >= 0
        known = {"server_total_ms", "wal_append_ms", "fsync_ms", "throttle_wait_ms", "records_scanned"}
        assert set(answer["performance"]) <= known | {"cold_segments_read"}
        assert all(isinstance(value, int | float) for value in answer["performance"].values())


def test_an_append_tells_of_a_sync_only_when_its_ack_waited_for_one(
    client: Client, topic: str, durability: str
) -> None:
    client.put_topic(topic, durability=durability)
    appends = [client.append(topic, 1, 2)["performance"] for _ in range(5)]
    for kind in (appends, [client.delete_records(topic, before_seq=seq)["performance"] for seq in range(2, 7)]):
        if durability == "fsync":
            assert all(performance["fsync_ms"] > 0 for performance in kind)
        else:
            # One may wait for a promise about the whole topic that has to be on disk first, but not every one does.
            assert min(performance.get("fsync_ms", 0.0) for performance in kind) == 0.0
        if durability in ("disk", "fsync"):
            assert all(performance["wal_append_ms"] > 0 for performance in kind)
            assert all("fsync_ms" in performance for performance in kind)


def test_a_read_tells_what_it_scanned(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    performance = client.read(topic)["performance"]
    assert performance["records_scanned"] >= 10
    assert performance["cold_segments_read"] == 0
