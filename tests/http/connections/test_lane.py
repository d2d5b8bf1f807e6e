"""The lane, and what becomes of a connection that it shares with hypercorn: every byte is read by one of them."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
import structlog
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.http.conftest import SMALL, Served, serving, until
from tests.http.fake_engine import FakeTopic
from topics.engine.record_columns import columns_of
from topics.http.connections.connection import KEEP_ALIVE_S, Connection
from topics.http.connections.exchange import Exchange
from topics.http.connections.lane import Lane, LaneExchange
from topics.http.connections.server import Server, open_listener, port_of, serve
from topics.http.gate import Gate
from topics.model import TopicConfig
from topics.runtime import process_limits

pytestmark = pytest.mark.trio

JSON: Final = b"host: x\r\ncontent-type: application/json\r\n"
HEALTH: Final = b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n"
DIFF: Final = b"GET /v0/topics/a/diff HTTP/1.1\r\nhost: x\r\n\r\n"
LAST: Final = b"GET /v0/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


def record(number: int) -> bytes:
    return b'{"records":[{"data":%d}]}' % number


def plain(number: int, *fields: bytes) -> bytes:
    """A request for the lane: append this number."""
    more = b"".join(field + b"\r\n" for field in fields)
    body = record(number)
    return b"POST /v0/topics/a HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (JSON, more, len(body), body)


def chunked(number: int) -> bytes:
    """The same for hypercorn, in chunks."""
    body = record(number)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]))
    return b"POST /v0/topics/a HTTP/1.1\r\n%btransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (JSON, chunks)


def expecting(number: int) -> bytes:
    """The same for hypercorn, with a body that is not waited for."""
    return plain(number, b"expect: 100-continue")


def numbers(served: Served) -> list[int]:
    """What was appended."""
    return [json.loads(data) for request in served.engine.appends for data in columns_of(request).datas]


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """A server with a lane, and with a topic."""
    async with serving(SMALL) as running:
        running.engine.topics["a"] = FakeTopic(TopicConfig())
        yield running


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """By whom each request was served, in their order."""
    noted: list[str] = []
    handle = Gate.handle

    async def note(gate: Gate, exchange: Exchange) -> None:
        noted.append("lane" if isinstance(exchange, LaneExchange) else "hypercorn")
        await handle(gate, exchange)

    monkeypatch.setattr(Gate, "handle", note)
    return noted


async def settled() -> None:
    """Let the server take in what was sent to it."""
    await trio.testing.wait_all_tasks_blocked(0.01)


async def received(stream: trio.SocketStream) -> bytes:
    """Everything up to the end of the connection, or to a reset."""
    data = b""
    with trio.fail_after(60):
        try:
            while part := await stream.receive_some(1 << 16):
                data += part
        except trio.BrokenResourceError:
            pass
    return data


async def answer_to(stream: trio.SocketStream, request: bytes) -> int:
    """Send a request, and return the status of its answer, which is received as a whole."""
    await stream.send_all(request)
    data = b""
    with trio.fail_after(60):
        while not data.endswith(b"}\n"):
            part = await stream.receive_some(1 << 16)
            assert part, f"closed behind {data!r}"
            data += part
    return statuses(data)[-1]


# -- changing hands ----------------------------------------------------------------------------------------------------

LANE, HYPERCORN = "lane", "hypercorn"


async def test_a_connection_changes_hands_again_and_again(served: Served, ways: list[str]) -> None:
    async with await served.connect() as stream:
        for number, (make, way) in enumerate([(plain, LANE), (chunked, HYPERCORN), (chunked, HYPERCORN)] * 5):
            assert await answer_to(stream, make(number)) == 200
            assert ways[-1] == way
        assert await answer_to(stream, b"\r\n" + HEALTH) == 200
        assert await answer_to(stream, HEALTH) == 200
        assert ways[-2:] == [HYPERCORN, LANE]
        await stream.send_all(HEALTH.replace(b"1.1", b"1.0"))
        assert statuses(await received(stream)) == [200]
    assert numbers(served) == list(range(15))
    assert len(ways) == 18


MIX: Final = b"".join(
    (plain(0), chunked(1), chunked(2), b"\r\n", plain(3), expecting(4), plain(5), plain(6), chunked(7), DIFF, LAST)
)
MIXED: Final = [200, 200, 200, 200, 200, 200, 200, 200, 200, 200]


async def test_requests_for_both_in_one_segment(served: Served, ways: list[str]) -> None:
    answers = await served.exchange(MIX)
    assert statuses(answers) == MIXED
    assert numbers(served) == list(range(8))
    assert set(ways) == {LANE, HYPERCORN}


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(4))
async def test_requests_for_both_cut_at_every_byte(served: Served, part: int) -> None:
    for cut in range(1 + part, len(MIX), 4):
        served.engine.appends.clear()
        async with await served.connect() as stream:
            await stream.send_all(MIX[:cut])
            await trio.testing.wait_all_tasks_blocked()
            await stream.send_all(MIX[cut:])
            answers = await received(stream)
        assert [status for status in statuses(answers) if status != 100] == MIXED, cut
        assert numbers(served) == list(range(8)), cut


async def test_requests_for_both_byte_by_byte(served: Served) -> None:
    async with await served.connect() as stream:
        for i in range(len(MIX)):
            await stream.send_all(MIX[i : i + 1])
            await trio.testing.wait_all_tasks_blocked()
        assert [status for status in statuses(await received(stream)) if status != 100] == MIXED
    assert numbers(served) == list(range(8))


@pytest.mark.slow
async def test_many_requests_behind_one_for_hypercorn(served: Served) -> None:
    """More than the server reads at once."""
    count = 1500
    requests = [chunked(number) if number % 100 == 0 else plain(number) for number in range(count)]
    data = b"".join(requests)
    assert len(data) > 100 << 10
    async with await served.connect() as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.send_all, data + LAST)
        answers = await received(stream)
    assert statuses(answers) == [200] * count + [200]
    assert numbers(served) == list(range(count))


async def test_the_other_protocols_leave_the_lane_for_good(served: Served, ways: list[str]) -> None:
    async with await served.connect() as stream:
        assert await answer_to(stream, HEALTH) == 200
        assert await answer_to(stream, chunked(1)) == 200
        await stream.send_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")
        assert (await stream.receive_some(1 << 16))[3:4] == b"\x04"  # SETTINGS
    await until(lambda: not served.server.connections)
    assert ways == [LANE, HYPERCORN]


@pytest.mark.parametrize("before", [HEALTH, b"\r\n" + HEALTH], ids=["lane", "hypercorn"])
async def test_bytes_behind_a_body_are_the_next_request(served: Served, before: bytes) -> None:
    answers = await served.exchange(before + plain(1) + b"xyz\r\n\r\n" + plain(2))
    assert statuses(answers) == [200, 200, 400]
    assert numbers(served) == [1]


async def test_a_body_ends_where_its_length_says(served: Served) -> None:
    hidden = plain(666)
    body = b'{"records":[{"data":1}]}' + b" " * 10 + hidden
    head = b"POST /v0/topics/a HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (JSON, len(body))
    answers = await served.exchange(head + body + plain(2) + LAST)
    assert statuses(answers) == [400, 200, 200]
    assert numbers(served) == [2]


# -- the end of the input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 20, len(plain(2)) - len(record(2)), len(plain(2)) - 1])
async def test_a_client_that_ends_its_side_in_a_request(served: Served, cut: int) -> None:
    answers = await served.exchange(plain(1) + plain(2)[:cut], half_close=True)
    assert statuses(answers) == [200, 400]
    assert numbers(served) == [1]
    await until(lambda: not served.server.connections)
    assert served.gate._reader.budget.used == 0


async def test_a_client_that_ends_its_side_behind_requests_gets_all_answers(served: Served) -> None:
    answers = await served.exchange(plain(1) + chunked(2) + plain(3), half_close=True)
    assert statuses(answers) == [200, 200, 200]
    await until(lambda: not served.server.connections)


async def test_a_body_that_a_drain_has_cut_off_is_no_error_of_the_client(served: Served) -> None:
    """An idle connection is closed in the moment in which a request comes: the client may send it again."""
    for part in (plain(1)[:-5], chunked(1)[:-5]):
        client = socket.create_connection(("127.0.0.1", served.port))
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(client))
        assert await answer_to(stream, HEALTH) == 200
        await settled()
        (connection,) = served.server.connections
        client.send(part)  # before the server runs again
        connection.end_idle()
        assert await received(stream) == b""
        await stream.aclose()
        await until(lambda: not served.server.connections)
    assert not served.engine.appends


# -- waits -------------------------------------------------------------------------------------------------------------

WAITING: Final = b"GET /v0/topics/a/diff?from_seq=9&wait_ms=30000 HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def waiting(served: Served) -> AsyncIterator[trio.SocketStream]:
    """A connection whose request waits for records."""
    async with await served.connect() as stream:
        await answer_to(stream, plain(1))
        served.engine.changed = trio.Event()
        await stream.send_all(WAITING)
        await until(lambda: served.engine.waiting_reads == 1)
        yield stream


async def test_a_client_that_leaves_ends_its_wait(served: Served, waiting: trio.SocketStream) -> None:
    await waiting.aclose()
    await until(lambda: served.engine.cancelled_reads == 1 and not served.server.connections)


async def test_a_client_that_leaves_a_request_behind_its_wait_ends_it_too(
    served: Served, waiting: trio.SocketStream
) -> None:
    await waiting.send_all(plain(2))
    await settled()
    await waiting.aclose()
    await until(lambda: served.engine.cancelled_reads == 1 and not served.server.connections)


async def test_a_flood_behind_a_wait_ends_the_connection(served: Served, waiting: trio.SocketStream) -> None:
    async def flood() -> None:
        while True:
            await waiting.send_all(b" " * 1000)
            await settled()

    with trio.fail_after(60), pytest.raises(trio.BrokenResourceError):
        await flood()
    await until(lambda: served.engine.cancelled_reads == 1 and not served.server.connections)


async def test_what_is_behind_a_wait_comes_after_it(served: Served, waiting: trio.SocketStream) -> None:
    await waiting.send_all(plain(2) + LAST)
    await settled()
    assert numbers(served) == [1]
    served.engine.changed.set()
    assert statuses(await received(waiting)) == [200, 200, 200]
    assert numbers(served) == [1, 2]


# -- idle connections and drains ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [plain(1), chunked(1)], ids=["lane", "hypercorn"])
async def test_a_connection_without_a_request_is_closed_after_its_time(
    served: Served, mock_clock: trio.testing.MockClock, last: bytes
) -> None:
    mock_clock.rate = 1.0
    stream = await served.connect()
    for _ in range(2):
        mock_clock.jump(KEEP_ALIVE_S - 10)
        await settled()
        assert await answer_to(stream, last) == 200
        await settled()
    mock_clock.jump(KEEP_ALIVE_S + 2)
    assert await received(stream) == b""
    await until(lambda: not served.server.connections)


@pytest.mark.parametrize("part", [b"", b"G", b"\r\n", HEALTH[:-1]])
@pytest.mark.parametrize("before", [HEALTH, chunked(1), b"\r\n" + HEALTH], ids=["lane", "hypercorn", "line"])
async def test_a_connection_with_a_part_of_a_request_makes_way_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch, before: bytes, part: bytes
) -> None:
    monkeypatch.setattr(process_limits, "file_limit", lambda: 65)
    async with serving() as served:
        assert served.server.most == 1
        first = await served.connect()
        assert await answer_to(first, before + part) in (200, 201)
        await settled()
        second = await served.connect()
        assert await answer_to(second, HEALTH) == 200
        assert await received(first) == b""
        await first.aclose()
        await second.aclose()


@pytest.mark.parametrize("first", [plain(1), chunked(1)], ids=["lane", "hypercorn"])
async def test_a_drain_takes_no_request_from_behind_the_present_one(served: Served, first: bytes) -> None:
    release, entered = trio.Event(), trio.Event()

    async def hold() -> None:
        entered.set()
        await release.wait()

    served.engine.before = hold
    async with await served.connect() as stream:
        await stream.send_all(first + plain(2) + chunked(3))
        await entered.wait()
        served.server.stop_accepting()
        await settled()
        release.set()
        assert statuses(await received(stream)) == [200]
    assert numbers(served) == [1]
    await until(lambda: not served.server.connections)


async def test_a_drain_closes_what_has_a_part_of_a_head(served: Served) -> None:
    async with await served.connect() as stream:
        await stream.send_all(HEALTH + HEALTH[:-1])
        await settled()
        served.server.stop_accepting()
        assert statuses(await received(stream)) == [200]


# -- the task of a connection ------------------------------------------------------------------------------------------


async def test_the_next_request_inherits_nothing_of_the_last_one(
    served: Served, mock_clock: trio.testing.MockClock
) -> None:
    mock_clock.rate = 1.0
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logged:
        stream = await served.connect()
        assert await answer_to(stream, HEALTH.replace(b"\r\n\r\n", b"\r\nx-request-id: one\r\n\r\n")) == 200
        await stream.send_all(b"GET / HT")
        await settled()
        mock_clock.jump(31)
        await received(stream)
    (line,) = [entry for entry in logged if entry["event"] == "head_too_slow"]
    assert "request_id" not in line


async def test_a_client_that_sends_many_requests_at_once_keeps_nobody_waiting(served: Served, ways: list[str]) -> None:
    async with await served.connect() as greedy, await served.connect() as other:
        assert await answer_to(other, HEALTH) == 200
        await greedy.send_all(HEALTH * 1000)
        await other.send_all(plain(1))
        await until(lambda: bool(served.engine.appends))
        assert len(ways) < 500


@pytest.mark.slow
async def test_a_connection_that_is_aborted_while_it_answers_ends(served: Served) -> None:
    async with served.client() as client:
        for _ in range(40):
            await client.post("/v0/topics/a", json={"records": [{"data": "x" * 250_000}]})
    async with await served.connect() as deaf:
        await deaf.send_all(DIFF + plain(1))
        await until(lambda: len(served.server.answering) == 1)
        with capture_logs() as logged:
            (connection,) = served.server.answering
            connection.abort()
            await until(lambda: not served.server.connections)
    assert not served.server.answering
    assert [entry["event"] for entry in logged if entry["log_level"] != "debug"] == []


# -- the parts of an exchange ------------------------------------------------------------------------------------------


@asynccontextmanager
async def lane_pair() -> AsyncIterator[tuple[Lane, trio.SocketStream]]:
    """A lane without a server, and the other end of its connection."""
    accepted, other = socket.socketpair()
    for each in (accepted, other):
        each.setblocking(False)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
    connection = Connection(stream, trio.Lock(), set())
    connection.peer = None

    async def handler(_exchange: Exchange) -> None:
        raise AssertionError("nothing is asked")

    with stream.socket, trio.socket.from_stdlib_socket(other) as end:
        yield Lane(handler, connection, stream, accepted, lambda: None, lambda: True), trio.SocketStream(end)


async def test_what_is_sent_in_part_is_sent_whole_also_if_it_is_cancelled() -> None:
    data = bytes(range(256)) * 4096
    async with lane_pair() as (lane, end), trio.open_nursery() as nursery:

        async def send() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await lane.send(data)
            lane.connection.abort()

        nursery.start_soon(send)
        assert await received(end) == data
    assert not lane.connection.lock.locked()


async def test_nothing_is_sent_in_the_middle_of_a_frame() -> None:
    async with lane_pair() as (lane, end), trio.open_nursery() as nursery:
        taken = lane.connection.try_send(b"f" * 100_000)
        assert 0 < taken < 100_000
        nursery.start_soon(lane.send, b"answer")
        received_ = b""
        while len(received_) < taken:
            received_ += await end.receive_some(1 << 16)
        await settled()

        async def rest() -> None:
            await lane.connection.send_rest(b"f" * (100_000 - taken))
            lane.connection.direct_done()

        nursery.start_soon(rest)
        while not received_.endswith(b"answer"):
            received_ += await end.receive_some(1 << 16)
    assert received_ == b"f" * 100_000 + b"answer"


async def test_no_frame_is_sent_in_the_middle_of_an_answer() -> None:
    async with lane_pair() as (lane, end), trio.open_nursery() as nursery:
        nursery.start_soon(lane.send, b"a" * 100_000)
        await settled()
        assert lane.connection.try_send(b"frame") == 0
        data = b""
        while len(data) < 100_000:
            data += await end.receive_some(1 << 16)
        assert data == b"a" * 100_000


async def test_a_body_on_a_connection_that_was_aborted_is_at_its_end() -> None:
    async with lane_pair() as (lane, _):
        lane.connection.abort()
        assert await lane.read_body(10) == b""
        assert lane.connection.is_broken


@asynccontextmanager
async def answered_by(handler: Any) -> AsyncIterator[tuple[Server, trio.SocketStream]]:
    """A server whose lane has this handler, and a connection to it."""

    async def app(*_: Any) -> None:
        raise AssertionError("hypercorn serves nothing here")

    sockets = open_listener("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        server: Server = await nursery.start(serve, app, sockets, SMALL, handler)
        async with await trio.open_tcp_stream("127.0.0.1", port_of(sockets)) as stream:
            yield server, stream
        nursery.cancel_scope.cancel()


def bodies(answers: bytes) -> list[bytes]:
    """The parts of answers without their dates."""
    return re.sub(rb"(?m)^date: [^\r]*\r\n", b"", answers).split(b"\r\n\r\n")


async def test_an_answer_without_a_length_is_sent_in_chunks_and_keeps_the_connection() -> None:
    async def stream_pieces(exchange: Exchange) -> None:
        await exchange.begin(200, [(b"content-type", b"text/plain")])
        await exchange.send(b"one")
        await exchange.send(b"")
        assert exchange.connection.try_send(b"4\r\nframe"[:7] + b"\r\n") == 9
        exchange.connection.direct_done()
        await exchange.send(b"x" * 100_000)
        await exchange.end()

    head = b"HTTP/1.1 200 \r\ncontent-type: text/plain\r\nTransfer-Encoding: chunked"
    chunks = b"3\r\none\r\n4\r\nfram\r\n186a0\r\n" + b"x" * 100_000 + b"\r\n0"
    async with answered_by(stream_pieces) as (_, stream):
        await stream.send_all(HEALTH * 2)
        await stream.send_eof()
        assert bodies(await received(stream)) == [head, chunks, head, chunks, b""]


async def test_an_answer_that_is_not_ended_closes_the_connection() -> None:
    async def break_off(exchange: Exchange) -> None:
        await exchange.begin(200, [])
        await exchange.send(b"one")

    async with answered_by(break_off) as (server, stream):
        await stream.send_all(HEALTH * 2)
        answers = await received(stream)
        assert answers.count(b"HTTP/1.1 200 ") == 1
        assert answers.endswith(b"\r\n\r\n3\r\none\r\n")
        await until(lambda: not server.connections)


async def test_a_body_that_was_not_received_closes_the_connection() -> None:
    async def ignore_body(exchange: Exchange) -> None:
        await exchange.answer(200, [(b"content-length", b"2")], b"ok")

    async with answered_by(ignore_body) as (_, stream):
        await stream.send_all(plain(1) + HEALTH)
        assert bodies(await received(stream)) == [b"HTTP/1.1 200 \r\ncontent-length: 2", b"ok"]


async def test_an_exception_of_a_handler_ends_its_connection_alone() -> None:
    async def fail(exchange: Exchange) -> None:
        if exchange.query:
            raise KeyError(5)
        await exchange.answer(200, [(b"content-length", b"3")], b"{}\n")

    async with answered_by(fail) as (server, stream), await trio.open_tcp_stream(*stream.socket.getpeername()) as other:
        with capture_logs() as logged:
            await other.send_all(b"GET /?fail HTTP/1.1\r\nhost: x\r\n\r\n")
            assert await received(other) == b""
        assert [entry["event"] for entry in logged] == ["connection_failed"]
        assert await answer_to(stream, HEALTH) == 200
        assert len(server.connections) == 1
