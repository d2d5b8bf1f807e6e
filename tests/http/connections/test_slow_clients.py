"""The server and clients that take their time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.http.conftest import SMALL, Served, serving, until
from tests.http.connections.server_clients import APPEND, JSON, H2Client, is_closed
from topics.http.connections.connection import PROGRESS_BYTES, Connection
from topics.http.connections.server import Server, open_listener, port_of, serve

pytestmark = pytest.mark.trio


@pytest.fixture
def clock(mock_clock: trio.testing.MockClock) -> trio.testing.MockClock:
    """Goes like any other, and jumps."""
    mock_clock.rate = 1.0
    return mock_clock


async def settled() -> None:
    """Let the server take in what was sent to it."""
    await trio.testing.wait_all_tasks_blocked(0.02)


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
