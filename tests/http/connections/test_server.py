"""The server: answers before the body is over, requests that are not ones, HTTP/2."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.http.conftest import SMALL, Served, serving, until
from tests.http.connections.server_clients import APPEND, JSON, H2Client
from topics.http.connections.lane import LaneExchange
from topics.http.connections.protocols import http1
from topics.http.connections.server import Server, open_listener, port_of

pytestmark = pytest.mark.trio


async def test_listening_sockets_hand_their_options_on() -> None:
    (listener,) = open_listener("127.0.0.1", 0)
    with listener, socket.create_connection(("127.0.0.1", port_of([listener]))):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = {
                socket.TCP_NODELAY: 1,
                socket.TCP_KEEPIDLE: 10,
                socket.TCP_KEEPINTVL: 5,
                socket.TCP_KEEPCNT: 3,
                socket.TCP_USER_TIMEOUT: 25_000,
            }
            for option, value in options.items():
                assert accepted.getsockopt(socket.IPPROTO_TCP, option) == value


async def test_a_port_in_use_is_an_error() -> None:
    (listener,) = open_listener("127.0.0.1", 0)
    with listener, pytest.raises(OSError, match="in use"):
        open_listener("127.0.0.1", port_of([listener]))


# --- answers before the body is over ---------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [100 << 20, 1 << 40])
async def test_a_client_that_is_still_sending_gets_its_413(served: Served, declared: int) -> None:
    stream = await served.connect()
    await stream.send_all(b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (JSON, declared))
    answer = b""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                sent = 0
                while sent < min(declared, 100 << 20):
                    await stream.send_all(b" " * (1 << 20))
                    sent += 1 << 20

            nursery.start_soon(send)
            while b"}}" not in answer:
                answer += await stream.receive_some(1 << 16)
            # It has the answer while it goes on, and may go on.
            if declared > 100 << 20:
                nursery.cancel_scope.cancel()
        await stream.aclose()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "payload_too_large"
    await until(lambda: not served.server.connections)


async def test_a_client_that_sends_first_and_listens_later_gets_its_413(served: Served) -> None:
    size = 20 << 20
    stream = await served.connect()
    await stream.send_all(b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (JSON, size))
    await stream.send_all(b" " * size)
    with trio.fail_after(60):
        answer = b"".join([part async for part in stream])
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_a_refusal_of_a_small_body_keeps_the_connection(served: Served) -> None:
    bad = b"POST /nowhere HTTP/1.1\r\n%bcontent-length: 2\r\n\r\n{}" % JSON
    good = b"GET /v0/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    answers = await served.exchange(bad + good)
    assert answers.startswith(b"HTTP/1.1 404 ")
    assert b"HTTP/1.1 200 " in answers


async def test_an_http2_client_that_goes_on_after_the_answer_harms_nobody(served: Served) -> None:
    client = await H2Client.open(served)
    upload = await client.request("POST", "/v0/topics/a", end=False, headers={"content-length": str(1 << 30)})
    with trio.fail_after(60):
        while upload not in client.bodies:
            await client.receive()
    assert client.statuses[upload] == 415
    other = await client.request("GET", "/v0/health")
    assert await client.answer(other) == 200
    for _ in range(200):
        while client.connection.local_flow_control_window(upload) < 16_384:
            await client.receive()
        client.connection.send_data(upload, b" " * 16_384)
        await client.flush()
    client.connection.reset_stream(upload)
    await client.flush()
    assert await client.answer(await client.request("GET", "/v0/health")) == 200
    await client.stream.aclose()
    await until(lambda: not served.server.connections)


# --- requests that are not ones --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: -1\r\n\r\n" % JSON,
        b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: 5\r\ncontent-length: 6\r\n\r\n{}" % JSON,
        b"POST /v0/topics/a HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\nzz\r\n" % JSON,
        b"GET / HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * (300 << 10)),
    ],
)
async def test_what_is_not_http_is_refused(served: Served, request_: bytes) -> None:
    with trio.fail_after(60):
        answer = await served.exchange(request_)
    assert answer[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 431")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_request"
    await until(lambda: not served.server.connections)
    assert not served.engine.topics


@pytest.mark.parametrize("version", [b"HTTP/1.0\r\n", b"HTTP/1.1\r\nconnection: close\r\n"])
@pytest.mark.parametrize("behind", [b"\r\n", b"x", b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_what_comes_behind_the_last_request_does_not_matter(
    served: Served, version: bytes, behind: bytes
) -> None:
    request = b"POST /v0/topics/a %b%bcontent-length: %d\r\n\r\n%b" % (version, JSON, len(APPEND), APPEND)
    with trio.fail_after(60):
        answer = await served.exchange(request + behind)
    assert answer.startswith(b"HTTP/1.1 201 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    await until(lambda: not served.server.connections)


async def test_a_refusal_of_a_head_has_no_body(served: Served) -> None:
    with trio.fail_after(60), capture_logs() as logged:
        answer = await served.exchange(b"HEAD a:80 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"\r\n\r\n")
    assert not [entry for entry in logged if entry["log_level"] == "warning"]


@pytest.mark.parametrize(
    "framing",
    [b"content-length: 1000\r\n\r\n" + APPEND, b"transfer-encoding: chunked\r\n\r\n18\r\n" + APPEND + b"\r\n"],
)
async def test_a_truncated_body_appends_nothing(served: Served, framing: bytes) -> None:
    answer = await served.exchange(b"POST /v0/topics/a HTTP/1.1\r\n" + JSON + framing, half_close=True)
    assert answer.startswith(b"HTTP/1.1 400 ")
    await until(lambda: not served.server.connections)
    assert not served.engine.topics
    assert served.gate._reader.budget.used == 0


async def test_chunks_are_put_together(served: Served) -> None:
    chunks = b"".join(b"%x\r\n%c\r\n" % (1, byte) for byte in APPEND) + b"0\r\n\r\n"
    head = b"POST /v0/topics/a HTTP/1.1\r\n%bconnection: close\r\ntransfer-encoding: chunked\r\n\r\n" % JSON
    answer = await served.exchange(head + chunks)
    assert answer.startswith(b"HTTP/1.1 201 ")


@pytest.mark.slow
async def test_a_request_may_come_in_any_two_parts(served: Served) -> None:
    length = b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (JSON, len(APPEND), APPEND)
    chunks = b"%x\r\n%b\r\n0\r\ntrailer: x\r\n\r\n" % (len(APPEND), APPEND)
    chunked = b"POST /v0/topics/a HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n%b" % (JSON, chunks)
    for request in (length, chunked):
        for cut in range(1, len(request)):
            stream = await served.connect()
            await stream.send_all(request[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(request[cut:])
            assert (await stream.receive_some(1 << 16))[:11] == b"HTTP/1.1 20", request[:cut]
            await stream.aclose()


async def test_a_slow_body_is_waited_for_and_keeps_nobody_waiting(served: Served) -> None:
    slow = await served.connect()
    await slow.send_all(b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (JSON, len(APPEND)))
    async with served.client() as client:
        for byte in APPEND[:-1]:
            await slow.send_all(bytes([byte]))
            assert (await client.get("/v0/health")).status_code == 200
    await slow.send_all(APPEND[-1:])
    assert (await slow.receive_some(1 << 16)).startswith(b"HTTP/1.1 201 ")
    await slow.aclose()


async def test_a_client_that_expects_100_continue_gets_it(served: Served) -> None:
    stream = await served.connect()
    head = b"POST /v0/topics/a HTTP/1.1\r\n%bexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % (JSON, len(APPEND))
    await stream.send_all(head)
    assert (await stream.receive_some(1 << 16)).startswith(b"HTTP/1.1 100 ")
    await stream.send_all(APPEND)
    assert (await stream.receive_some(1 << 16)).startswith(b"HTTP/1.1 201 ")
    await stream.aclose()


async def test_a_client_that_closes_its_side_still_gets_its_answer(served: Served) -> None:
    request = b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (JSON, len(APPEND), APPEND)
    with trio.fail_after(60):
        assert (await served.exchange(request, half_close=True)).startswith(b"HTTP/1.1 201 ")
    await until(lambda: not served.server.connections)


async def test_a_connection_ends_when_its_client_leaves(served: Served) -> None:
    async with served.client() as client:
        await client.get("/v0/health")
        assert len(served.server.connections) == 1
    # Not after the keep-alive time.
    await until(lambda: not served.server.connections)


@pytest.mark.slow
async def test_many_requests_use_one_connection(served: Served) -> None:
    async with served.client() as client:
        for _ in range(1100):
            response = await client.get("/nowhere")
        assert response.status_code == 404
        assert len(served.server.connections) == 1


LONG: Final = {"last-event-id": "x" * (128 << 10)}


@pytest.mark.parametrize("http_lane", [True, False])
async def test_a_drain_ends_a_connection_that_was_accepted_right_before_it(
    monkeypatch: pytest.MonkeyPatch, http_lane: bool
) -> None:
    def accept_and_drain(server: Server) -> bool:
        server.stop_accepting()
        return True

    monkeypatch.setattr(Server, "has_room", accept_and_drain)
    with trio.fail_after(30):
        async with serving(replace(SMALL, http_lane=http_lane)) as running:
            assert await running.exchange(b"") == b""


async def test_headers_of_128_kib_are_taken(served: Served) -> None:
    async with served.client() as client:
        assert (await client.get("/v0/health", headers=LONG)).status_code == 200


async def test_headers_of_128_kib_are_taken_over_http2(served: Served) -> None:
    client = await H2Client.open(served)
    # Compressing them takes the client seconds.
    encoder = client.connection.encoder
    client.connection.encoder.encode = partial(encoder.encode, huffman=False)  # type: ignore[method-assign]
    assert await client.answer(await client.request("GET", "/v0/health", headers=LONG)) == 200
    await client.stream.aclose()


async def test_an_upgrade_to_http2(served: Served) -> None:
    client = H2Client(await served.connect())
    settings = client.connection.initiate_upgrade_connection()
    assert settings is not None
    await client.stream.send_all(
        b"GET /v0/health HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
        b"http2-settings: %b\r\n\r\n" % settings
    )
    data = await client.stream.receive_some(1 << 16)
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    client.connection.receive_data(rest)
    await client.flush()
    assert await client.answer(1) == 200
    assert json.loads(client.bodies[1])["status"] == "ok"
    assert await client.answer(await client.request("GET", "/v0/topics")) == 200
    await client.stream.aclose()


@pytest.mark.parametrize("settings", [b"", b"!!!", b"AAAA"])
async def test_a_bad_upgrade_closes_the_connection(served: Served, settings: bytes) -> None:
    with trio.fail_after(60):
        await served.exchange(
            b"GET /v0/health HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\n"
            b"http2-settings: %b\r\n\r\n" % settings,
            half_close=True,
        )
    await until(lambda: not served.server.connections)


async def test_a_websocket_is_refused_where_there_is_none(served: Served) -> None:
    answer = await served.exchange(
        b"GET /v0/topics/a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"not_found"' in answer


# --- HTTP/2 ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_one_connection_carries_thousands_of_streams(served: Served) -> None:
    async with served.client() as client:
        await client.put("/v0/topics/a")
    client_ = await H2Client.open(served)
    with trio.fail_after(60):
        await client_.receive()
        limit = client_.connection.remote_settings.max_concurrent_streams
        assert limit is not None
        assert limit >= 10_000
        streams = [await client_.request("GET", "/v0/topics/a/diff?wait_ms=30000") for _ in range(1100)]
        await until(lambda: served.engine.waiting_reads == len(streams))
        served.engine.changed.set()
        while len(client_.ended) < len(streams):
            await client_.receive()
    assert set(client_.statuses.values()) == {200}
    await client_.stream.aclose()


async def test_a_client_that_leaves_with_answers_waiting_for_its_window_frees_them(served: Served) -> None:
    async with served.client() as client:
        await client.post("/v0/topics/a", json={"records": [{"data": "x" * 200_000}]})
    client_ = await H2Client.open(served)
    client_.connection.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0})
    await client_.flush()
    stream_id = await client_.request("GET", "/v0/topics/a/diff")
    with trio.fail_after(60):
        while stream_id not in client_.statuses:
            await client_.receive()
    await client_.stream.aclose()
    await until(lambda: not served.server.connections)


async def test_a_broken_http2_connection_is_that_connections_affair(served: Served) -> None:
    frames = [
        struct.pack(">I", 5)[1:] + b"\x00\x00" + struct.pack(">I", 1) + b"hello",  # DATA for a stream that never was
        struct.pack(">I", 1 << 22)[1:] + b"\x00\x00" + struct.pack(">I", 1),  # a frame beyond the limit
        b"\xff" * 100,
    ]
    for frame in frames:
        client = await H2Client.open(served)
        with trio.fail_after(60):
            await client.stream.send_all(frame)
            try:
                while await client.stream.receive_some(1 << 16):
                    pass
            except trio.BrokenResourceError:
                pass
        await client.stream.aclose()
    async with served.client(http2=True) as other:
        assert (await other.get("/v0/health")).status_code == 200


@pytest.mark.parametrize(
    ("served", "broken", "method"),
    [(False, http1.Http1, "handle"), (True, LaneExchange, "begin")],
    ids=["hypercorn", "lane"],
    indirect=["served"],
)
async def test_an_exception_in_a_connection_closes_it_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch, broken: type, method: str
) -> None:
    bystander = await served.connect()
    with capture_logs() as logged, breaking(monkeypatch, broken, method):
        stream = await served.connect()
        await stream.send_all(b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n")
        with trio.fail_after(60):
            try:
                assert await stream.receive_some(10) == b""
            except trio.BrokenResourceError:
                pass
        await until(lambda: any(entry["log_level"] != "debug" for entry in logged))
    assert [entry["event"] for entry in logged if entry["log_level"] != "debug"] == ["connection_failed"]
    await bystander.send_all(b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await bystander.receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")
    await bystander.aclose()


@contextmanager
def breaking(monkeypatch: pytest.MonkeyPatch, broken: type, method: str) -> Iterator[None]:
    async def fail(*_: object) -> None:
        raise KeyError(5)

    with monkeypatch.context() as patch:
        patch.setattr(broken, method, fail)
        yield
