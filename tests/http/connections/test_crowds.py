"""The server under a crowd of connections, and while it drains."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack
from typing import Any, Final

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from tests.http.conftest import SMALL, Served, serving, until
from tests.http.connections.server_clients import APPEND, JSON, is_closed
from topics.config import Settings
from topics.http.connections.server import open_listener, port_of, serve
from topics.runtime import process_limits

pytestmark = pytest.mark.trio


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


@pytest.mark.slow
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
