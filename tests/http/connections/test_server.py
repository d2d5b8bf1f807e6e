"""Connections: what a client may do to one, and that it stays that client's affair."""

from __future__ import annotations

import errno
import json
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

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
from topics.config import Settings
from topics.http.connections.connection import PROGRESS_BYTES, Connection
from topics.http.connections.lane import LaneExchange
from topics.http.connections.protocols import http1
from topics.http.connections.server import Server, open_listener, port_of, serve
from topics.runtime import process_limits

pytestmark = pytest.mark.trio

APPEND = b'{"records":[{"data":1}]}'
JSON = b"host: x\r\ncontent-type: application/json\r\n"


class H2Client:
    """An HTTP/2 client that does what it is told, also what no library would."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self.statuses: dict[int, int] = {}
        self.bodies: dict[int, bytes] = {}
        self.ended: set[int] = set()
        self.closed = False

    @classmethod
    async def open(cls, served: Served) -> H2Client:
        client = cls(await served.connect())
        client.connection.initiate_connection()
        await client.flush()
        return client

    async def flush(self) -> None:
        await self.stream.send_all(self.connection.data_to_send())

    async def request(self, method: str, path: str, *, end: bool = True, headers: dict[str, str] | None = None) -> int:
        stream_id = self.connection.get_next_available_stream_id()
        fields = {":method": method, ":path": path, ":scheme": "http", ":authority": "x", **(headers or {})}
        self.connection.send_headers(stream_id, list(fields.items()), end_stream=end)
        await self.flush()
        return stream_id

    async def receive(self) -> None:
        """Take in one read's worth of events."""
        data = await self.stream.receive_some(1 << 16)
        if not data:
            self.closed = True
            return
        for event in self.connection.receive_data(data):
            if isinstance(event, h2.events.ResponseReceived):
                self.statuses[event.stream_id] = int(dict(event.headers)[b":status"])
            elif isinstance(event, h2.events.DataReceived):
                self.bodies[event.stream_id] = self.bodies.get(event.stream_id, b"") + event.data
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded | h2.events.StreamReset):
                self.ended.add(event.stream_id)
        await self.flush()

    async def answer(self, stream_id: int) -> int:
        with trio.fail_after(60):
            while stream_id not in self.ended:
                assert not self.closed
                await self.receive()
        return self.statuses[stream_id]


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


# --- clients that take their time ------------------------------------------------------------------------------------


@pytest.fixture
def clock(mock_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """Goes like any other, and jumps."""
    mock_clock.rate = 1.0
    return mock_clock


async def settled() -> None:
    """Let the server take in what was sent to it."""
    await trio.testing.wait_all_tasks_blocked(0.02)


async def is_closed(stream: trio.SocketStream) -> bool:
    """Whether the server closes now; what it has sent before is passed over."""
    with trio.move_on_after(5):
        try:
            while await stream.receive_some(1 << 16):
                pass
        except trio.BrokenResourceError:
            pass
        return True
    return False


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NO_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
OPEN_BLOCK = b"\0\0\1\1\0\0\0\0\1\x82"  # HEADERS, more of which follow


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"GET /v0/health HT", [b"TP/1.1\r\n", b"host: x\r\n", b"x: y\r\n"]),
        (b"PRI * HTTP/2.0\r\n\r\nS", [b"M", b"\r", b"\n"]),
        (PREFACE + NO_SETTINGS + OPEN_BLOCK[:3], [b"\1", b"\0", b"\0"]),
        (PREFACE + NO_SETTINGS + OPEN_BLOCK, [b"\0\0\0\x09\0\0\0\0\1"] * 3),
    ],
    ids=["http1", "preface", "frame", "continuation"],
)
async def test_a_head_that_trickles_in_does_not_keep_its_connection(
    served: Served, clock: trio.testing.MockClock, begun: bytes, more: list[bytes]
) -> None:
    stream = await served.connect()
    clock.jump(60)  # of the 75 s that it may say nothing
    with capture_logs() as logged:
        await stream.send_all(begun)
        for part in more:
            await settled()
            clock.jump(8)
            await settled()
            assert len(served.server.connections) == 1
            await stream.send_all(part)
        await settled()
        clock.jump(8)
        assert await is_closed(stream)
    await until(lambda: not served.server.connections)
    assert [entry["event"] for entry in logged if entry["log_level"] == "info"] == ["head_too_slow"]


async def test_a_head_has_its_whole_time_and_the_next_one_too(served: Served, clock: trio.testing.MockClock) -> None:
    stream = await served.connect()
    for _ in range(3):
        await stream.send_all(b"GET /v0/health HTTP/1.1\r\n")
        await settled()
        clock.jump(25)
        await settled()
        await stream.send_all(b"host: x\r\n\r\n")
        assert (await stream.receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")
        await settled()
        clock.jump(65)
    await stream.aclose()


@pytest.mark.parametrize("sent", [b"", PREFACE + NO_SETTINGS], ids=["nothing", "http2"])
async def test_a_connection_without_a_request_is_closed(
    served: Served, clock: trio.testing.MockClock, sent: bytes
) -> None:
    stream = await served.connect()
    await stream.send_all(sent)
    await settled()
    clock.jump(65)
    await settled()
    assert len(served.server.connections) == 1
    if sent:
        await stream.send_all(b"\0\0\x08\x06\0\0\0\0\0" + b"a pi")
        await settled()
        await stream.send_all(b"ng..")
        await settled()
    clock.jump(15)
    assert await is_closed(stream)


class Upload:
    """A request whose body comes as the test wants it, over either protocol."""

    def __init__(self, served: Served, length: int) -> None:
        self._served = served
        self._length = self._left = length
        self._stream: trio.SocketStream
        self._http2: H2Client | None = None
        self._number = 0

    async def open(self, http2: bool) -> Upload:
        if http2:
            self._http2 = await H2Client.open(self._served)
            self._stream = self._http2.stream
            headers = {"content-type": "application/json", "content-length": str(self._length)}
            self._number = await self._http2.request("POST", "/v0/topics/a", end=False, headers=headers)
        else:
            self._stream = await self._served.connect()
            head = b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (JSON, self._length)
            await self._stream.send_all(head)
        await settled()
        return self

    async def send(self, data: bytes) -> None:
        self._left -= len(data)
        if self._http2 is not None:
            self._http2.connection.send_data(self._number, data, end_stream=not self._left)
            await self._http2.flush()
        else:
            await self._stream.send_all(data)
        await settled()

    async def send_raw(self, data: bytes) -> None:
        await self._stream.send_all(data)
        await settled()

    async def is_cut_off(self) -> bool:
        if self._http2 is None:
            return await is_closed(self._stream)
        while self._number not in self._http2.ended:
            await self._http2.receive()
        assert self._number not in self._http2.statuses
        # It is this request's affair.
        return await self._http2.answer(await self._http2.request("GET", "/v0/health")) == 200

    async def status(self) -> int:
        if self._http2 is not None:
            return await self._http2.answer(self._number)
        return int((await self._stream.receive_some(1 << 16))[9:12])

    async def close(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("http2", [False, True])
async def test_a_body_that_stops_coming_is_given_up(served: Served, clock: trio.testing.MockClock, http2: bool) -> None:
    upload = await Upload(served, 1000).open(http2)
    budget = served.gate._reader.budget
    with capture_logs() as logged:
        for _ in range(2):
            await upload.send(b" " * 100)
            clock.jump(25)
            await settled()
        assert budget.used == 200
        clock.jump(10)
        assert await upload.is_cut_off()
        await until(lambda: budget.used == 0)
    assert [entry["event"] for entry in logged if entry["log_level"] == "info"] == ["body_too_slow"]
    assert served.gate.figures.requests[("POST /v0/topics/{topic}", 499)] == 1
    await upload.close()


@pytest.mark.parametrize("http2", [False, True])
async def test_a_body_that_trickles_in_is_given_up_after_a_minute(
    served: Served, clock: trio.testing.MockClock, http2: bool
) -> None:
    upload = await Upload(served, 100_000).open(http2)
    for size in (3000, 300, 300):
        await upload.send(b" " * size)
        clock.jump(17)
        await settled()
    await upload.send(b" " * 200)  # which would do for 59 s
    assert served.gate._reader.budget.used == 3800
    clock.jump(15)
    assert await upload.is_cut_off()
    await until(lambda: served.gate._reader.budget.used == 0)
    await upload.close()


@pytest.mark.parametrize("http2", [False, True])
async def test_a_body_that_comes_slowly_but_steadily_is_waited_for(
    served: Served, clock: trio.testing.MockClock, http2: bool
) -> None:
    part, parts = b" " * 2000, 10
    upload = await Upload(served, len(APPEND) + (1 + parts) * len(part)).open(http2)
    await upload.send(APPEND + part)
    for _ in range(parts):
        clock.jump(25)
        await settled()
        await upload.send(part)
    assert await upload.status() == 201
    await upload.close()


async def test_a_frame_that_comes_in_parts_counts_as_it_comes(served: Served, clock: trio.testing.MockClock) -> None:
    upload = await Upload(served, 16_000).open(http2=True)
    await upload.send_raw((16_000).to_bytes(3, "big") + b"\0\0" + (1).to_bytes(4, "big"))
    for _ in range(5):
        await upload.send_raw(b" " * 2000)
        clock.jump(25)
        await settled()
    assert len(served.server.connections) == 1
    clock.jump(40)
    await until(lambda: served.gate.figures.requests[("POST /v0/topics/{topic}", 499)] == 1)
    await upload.close()


async def test_a_call_without_a_body_is_not_waited_for_either(served: Served, clock: trio.testing.MockClock) -> None:
    stream = await served.connect()
    await stream.send_all(b"GET /v0/health HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
    await settled()
    clock.jump(31)
    assert await is_closed(stream)
    await until(lambda: not served.server.connections)


@pytest.mark.parametrize("http2", [False, True])
async def test_the_wait_for_memory_is_not_the_clients_fault(clock: trio.testing.MockClock, http2: bool) -> None:
    async with serving(replace(SMALL, admission_ms=3_600_000)) as served:
        budget = served.gate._reader.budget
        assert budget.try_take(budget.limit)
        upload = await Upload(served, len(APPEND)).open(http2)
        await upload.send(APPEND[:10])
        clock.jump(1000)
        await settled()
        budget.give_back(budget.limit)
        await settled()
        clock.jump(25)
        await settled()
        await upload.send(APPEND[10:])
        assert await upload.status() == 201
        await upload.close()


@asynccontextmanager
async def answering(size: int) -> AsyncIterator[tuple[Server, int]]:
    """A server whose every answer is so long, and its port."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        with scope["state"]["connection"].answering(size):
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
            await send({"type": "http.response.body", "body": bytes(size), "more_body": False})

    sockets = open_listener("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(serve, app, sockets, SMALL)
        yield server, port_of(sockets)
        nursery.cancel_scope.cancel()


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_reader_that_takes_too_long_over_its_answer_is_cut_off(clock: trio.testing.MockClock) -> None:
    size = 20 << 20
    async with answering(size) as (server, port):
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        bystander = await trio.open_tcp_stream("127.0.0.1", port)
        await stream.send_all(GET)
        await until(lambda: len(server.answering) == 1)
        (connection,) = server.answering
        connection.progress = lambda: 0  # what the kernel takes for it does not count here
        await settled()
        clock.jump(55)  # of the minute in which it has to take something
        await settled()
        assert len(server.answering) == 1
        with capture_logs() as logged:
            clock.jump(10)
            await until(lambda: not server.answering)
        assert [(entry["event"], entry["peer"]) for entry in logged if entry["event"] != "head_too_slow"] == [
            ("reader_too_slow", stream.socket.getsockname())
        ]
        assert await is_closed(stream)
        clock.jump(75)
        assert await is_closed(bystander)  # which has long been idle
        await until(lambda: not server.connections)


async def test_a_reader_of_many_answers_has_the_time_of_all_of_them(clock: trio.testing.MockClock) -> None:
    async with answering(1 << 20) as (server, port):
        client = H2Client(await trio.open_tcp_stream("127.0.0.1", port))
        client.connection.initiate_connection()
        streams = [await client.request("GET", "/") for _ in range(3)]
        await until(lambda: len(server.answering) == 1)
        await settled()
        clock.jump(55)
        await settled()
        for stream in streams:
            with trio.fail_after(60):
                assert await client.answer(stream) == 200
        await until(lambda: not server.answering)
        clock.jump(10_000)
        await settled()
        await client.stream.aclose()
        await until(lambda: not server.connections)


async def test_the_time_for_an_answer(clock: trio.testing.MockClock) -> None:
    clock.rate = 0.0
    slow: set[Connection] = set()
    ours, theirs = trio.socket.socketpair()
    connection = Connection(trio.SocketStream(ours), trio.Lock(), slow)
    connection.progress = count(0, PROGRESS_BYTES).__next__  # it takes something all the time

    def too_slow_after(seconds: float) -> bool:
        now = trio.current_time() + seconds
        assert not connection.is_too_slow(now - 1)
        return connection.is_too_slow(now)

    with theirs, ours:
        assert not connection.is_too_slow(1e9)
        with connection.answering(0):
            assert too_slow_after(60)
            with connection.answering(1600 << 10):
                with connection.answering(160 << 10):
                    assert slow == {connection}
                    assert too_slow_after(60)
                clock.jump(59)
                assert too_slow_after(1)
        assert not slow
        with connection.answering(1600 << 10), connection.answering(160 << 10):
            assert too_slow_after(160)
        assert not slow
        with ExitStack() as later:
            with connection.answering(0):
                later.enter_context(connection.answering(1600 << 10))
            clock.jump(61)
            assert too_slow_after(99)
        assert not connection.is_too_slow(1e9)


async def test_a_reader_that_takes_hardly_anything_is_too_slow_after_a_minute(clock: trio.testing.MockClock) -> None:
    clock.rate = 0.0
    ours, theirs = trio.socket.socketpair()
    connection = Connection(trio.SocketStream(ours), trio.Lock(), set())
    taken = 0
    connection.progress = lambda: taken
    with theirs, ours, connection.answering(1 << 30):
        for _ in range(3):
            clock.jump(59)
            assert not connection.is_too_slow(trio.current_time())
            taken += PROGRESS_BYTES
            assert not connection.is_too_slow(trio.current_time())
        for _ in range(59):
            clock.jump(1)
            taken += 1
            assert not connection.is_too_slow(trio.current_time())
        clock.jump(1)
        assert connection.is_too_slow(trio.current_time())


# --- crowds ----------------------------------------------------------------------------------------------------------


async def busy(served: Served) -> trio.SocketStream:
    """A connection with a request that goes on."""
    stream = await served.connect()
    await stream.send_all(b"POST /v0/topics/a HTTP/1.1\r\n" + JSON + b"content-length: 10\r\n\r\n")
    return stream


async def test_connections_that_are_too_many_are_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_limits, "file_limit", lambda: 67)
    with capture_logs() as logged:
        async with serving() as served:
            assert served.server.most == 3
            taken = [await busy(served) for _ in range(3)]
            await until(lambda: len(served.server.connections) == 3 and not served.server.idle)
            for _ in range(20):
                with trio.fail_after(60):
                    assert await is_closed(await served.connect())
            await taken.pop().aclose()
            await until(lambda: len(served.server.connections) == 2)
            taken.append(await served.connect())
            await taken[-1].send_all(b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await taken[-1].receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")
            await until(lambda: served.server.refused == 0)
            for stream in taken:
                await stream.aclose()
    lines = [entry for entry in logged if entry["event"] == "connections_refused"]
    assert sum(entry["count"] for entry in lines) == 20
    assert len(lines) < 20


async def test_the_connection_that_has_been_idle_longest_makes_way_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_limits, "file_limit", lambda: 67)
    async with serving() as served:
        working = await busy(served)
        await until(lambda: len(served.server.connections) == 1 and not served.server.idle)
        first = await served.connect()
        await until(lambda: len(served.server.idle) == 1)
        second = await served.connect()
        await until(lambda: len(served.server.idle) == 2)
        # The first has just been of use, so the second goes.
        await first.send_all(GET_HEALTH)
        assert (await first.receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")
        async with await served.connect() as third:
            await third.send_all(GET_HEALTH)
            assert (await third.receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")
            with trio.fail_after(60):
                assert await is_closed(second)
            await first.send_all(GET_HEALTH)
            assert (await first.receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")
            await working.send_all(b"0123456789")
            assert (await working.receive_some(1 << 16)).startswith(b"HTTP/1.1 400 ")
            assert len(served.server.connections) <= 3
        await first.aclose()
        await working.aclose()


async def test_a_crowd_that_asks_for_nothing_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_limits, "file_limit", lambda: 74)
    async with serving() as served:
        with ExitStack() as stack:
            for _ in range(100):
                crowd = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
                crowd.send(b"G")
            await until(lambda: len(served.server.connections) == 10)
            async with await served.connect() as stream:
                await stream.send_all(GET_HEALTH)
                assert (await stream.receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")


GET_HEALTH: Final = b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_want_of_descriptors_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = socket.socket.accept
    failures = 3

    def fail(listener: socket.socket) -> tuple[socket.socket, Any]:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail)
    with capture_logs() as logged:
        async with serving() as served:
            answer = await served.exchange(b"GET /v0/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            await until(lambda: any(entry["log_level"] == "error" for entry in logged))
    assert answer.startswith(b"HTTP/1.1 200 ")
    (line,) = [entry for entry in logged if entry["log_level"] == "error"]
    assert line["event"] == "accept_failed"
    assert "Too many open files" in line["error"]


# --- drain -----------------------------------------------------------------------------------------------------------


async def test_a_drain_lets_requests_finish_and_takes_no_more(served: Served) -> None:
    release, entered = trio.Event(), trio.Event()

    async def hold() -> None:
        entered.set()
        await release.wait()

    idle = await served.connect()
    await idle.send_all(b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"}\n"):
        answer += await idle.receive_some(1 << 16)
    served.engine.before = hold
    busy = await served.connect()
    await busy.send_all(b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (JSON, len(APPEND), APPEND))
    await entered.wait()
    with trio.fail_after(60):
        served.server.stop_accepting()
        assert await idle.receive_some(1) == b""
        with pytest.raises(OSError, match="connect"):
            await served.connect()
        release.set()
        answer = b"".join([part async for part in busy])
    assert answer.startswith(b"HTTP/1.1 201 ")


async def test_serve_returns_when_the_last_connection_is_gone() -> None:
    with trio.fail_after(60):
        async with serving() as served:
            stream = await served.connect()
            await until(lambda: len(served.server.connections) == 1)
            served.server.stop_accepting()
            assert await stream.receive_some(1) == b""
            await until(lambda: not served.server.connections)


async def test_a_client_that_does_not_read_cannot_hold_up_the_end(served: Served) -> None:
    async with served.client() as client:
        for _ in range(40):
            await client.post("/v0/topics/a", json={"records": [{"data": "x" * 250_000}]})
    deaf = await served.connect()
    for _ in range(3):
        await deaf.send_all(b"GET /v0/topics/a/diff HTTP/1.1\r\nhost: x\r\n\r\n")
    await until(lambda: len(served.engine.reads) >= 1)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert len(served.server.connections) == 1
    with trio.fail_after(60):
        served.server.stop_accepting()
        served.server.abort_all()
        await until(lambda: not served.server.connections)
    await deaf.aclose()


async def test_cancelling_the_server_aborts_what_does_not_end_by_itself() -> None:
    with trio.fail_after(60):
        async with serving() as served:
            async with served.client() as client:
                for _ in range(40):
                    await client.post("/v0/topics/a", json={"records": [{"data": "x" * 250_000}]})
            deaf = await served.connect()
            await deaf.send_all(b"GET /v0/topics/a/diff HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: len(served.engine.reads) == 1)
            await trio.testing.wait_all_tasks_blocked(0.05)


async def test_ipv6_works_where_there_is_any() -> None:
    try:
        sockets = open_listener("::1", 0)
    except OSError:
        return  # this machine has no IPv6; there is nothing to promise
    async with serving(SMALL) as served, trio.open_nursery() as nursery:
        await nursery.start(serve, served.gate, sockets, Settings(wal_shards=1))
        stream = await trio.open_tcp_stream("::1", port_of(sockets))
        await stream.send_all(b"GET /v0/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert (await stream.receive_some(1 << 16)).startswith(b"HTTP/1.1 200 ")
        nursery.cancel_scope.cancel()
