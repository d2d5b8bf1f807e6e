"""A gate on a real loopback socket, and the ways to talk to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.http.fake_engine import FakeEngine
from topics.config import Settings
from topics.http.app import make_app
from topics.http.connections.server import Server, open_listener, port_of, serve
from topics.http.gate import Gate

SMALL = Settings(
    data_dir=Path("/nonexistent"),
    max_body_bytes=1 << 20,
    max_record_bytes=256 << 10,
    max_batch_records=100,
    max_inflight_bytes=2 << 20,
    admission_ms=50,
    wal_shards=1,
    allowed_hosts=("x",),  # what requests that are written by hand call it
)
"""Limits that a test can reach in milliseconds."""


@dataclass
class Served:
    """A running server around a fake engine."""

    engine: FakeEngine
    gate: Gate
    server: Server
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, *, http2: bool = False) -> httpx.AsyncClient:
        """An httpx client: HTTP/1.1, or HTTP/2 with prior knowledge."""
        return httpx.AsyncClient(base_url=self.url, http1=not http2, http2=http2, timeout=60, verify=False)

    async def connect(self) -> trio.SocketStream:
        """A bare TCP connection."""
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def exchange(self, request: bytes, *, half_close: bool = False) -> bytes:
        """Send bytes, receive until the server closes."""
        async with await self.connect() as stream:
            await stream.send_all(request)
            if half_close:
                await stream.send_eof()
            return b"".join([part async for part in stream])


@asynccontextmanager
async def serving(settings: Settings = SMALL, **changes: Any) -> AsyncIterator[Served]:
    """Serve a fake engine while the block runs; all connections are aborted at its end."""
    engine = FakeEngine(settings)
    gate = make_app(engine.as_engine())
    sockets = open_listener("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        server = await nursery.start(serve, gate, sockets, settings, gate.handle if settings.http_lane else None)
        yield Served(engine, gate, server, port_of(sockets))
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[True, False], ids=["lane", "hypercorn"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """A server with the limits of `SMALL`: once it serves plain HTTP/1.1 requests on the lane, once by hypercorn."""
    async with serving(replace(SMALL, http_lane=request.param)) as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that is about to happen."""
    with trio.fail_after(60):
        # A server's state has no event to wait for.
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)
