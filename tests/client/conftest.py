"""Daemons on a fixed port, which may be killed and started again under their clients, bad networks before them, and
clients of all kinds."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest

from tests.client.ports import free_port
from tests.client.proxy import Proxy
from tests.conformance.client import Daemon, fresh_name
from topics.client import AsyncClient, Client


class StartDaemon(Protocol):
    def __call__(self, **settings: object) -> Daemon:
        """Start one with these `TOPICS_*` settings and return when it is ready. It is killed after the test."""


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[StartDaemon]:
    """Daemons of this test alone: `daemon.end(signal.SIGKILL)`, `daemon.start()`; the port stays."""
    with ExitStack() as stack:

        def start(**settings: object) -> Daemon:
            root = tmp_path / fresh_name("daemon")
            root.mkdir()
            daemon = Daemon(root, port=free_port(), **settings)
            stack.callback(daemon.kill)
            daemon.start().close()
            return daemon

        yield start


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """One with the settings as they are, for this test alone."""
    return start_daemon()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One for all tests of the module: for those that leave it as it is."""
    daemon = Daemon(tmp_path_factory.mktemp("daemon"), port=free_port())
    try:
        daemon.start().close()
        yield daemon
    finally:
        daemon.kill()


@pytest.fixture
def proxy(daemon: Daemon) -> Iterator[Proxy]:
    """A network between the test and its `daemon`, kind until the test says otherwise."""
    with Proxy(daemon.port) as proxy:
        yield proxy


@pytest.fixture
def topic() -> str:
    """A name that no topic has yet."""
    return fresh_name()


@pytest.fixture(params=["asyncio", "trio"])
def backend(request: pytest.FixtureRequest) -> str:
    """For `anyio.run(main, backend=backend)`: what is asynchronous works on both."""
    return str(request.param)


class Awaited:
    """The blocking client with methods that can be awaited, so that one story does for both."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if inspect.isgeneratorfunction(method):
            return method

        async def called(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return called


@pytest.fixture(params=["blocking", "asyncio", "trio"])
def tell(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`tell(story, url, ...)` runs `await story(client)` with a client of each kind, and returns what it returns."""

    def told(story: Callable[[Any], Awaitable[Any]], url: str, **options: Any) -> Any:
        async def blocking() -> Any:
            with Client(url, **options) as client:
                return await story(Awaited(client))

        async def concurrent() -> Any:
            async with AsyncClient(url, **options) as client:
                return await story(client)

        if request.param == "blocking":
            return anyio.run(blocking)
        return anyio.run(concurrent, backend=request.param)

    return told
