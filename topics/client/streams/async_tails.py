"""The iterators of tails, watches and streams of jobs, for programs on trio or asyncio.

Responsible for I/O only, as `topics.client.streams.tails`, whose module docstring says more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Concatenate, Generic, ParamSpec, Self, TypeVar

import anyio

from topics.client.calls import ClientCall
from topics.client.errors import TopicsError
from topics.client.results import Job
from topics.client.streams import follower, job_stream
from topics.client.streams.follower import Followed, Follower, Position
from topics.client.streams.job_stream import JobStream
from topics.client.streams.tails import StreamMachine
from topics.client.transport import signed

if TYPE_CHECKING:
    from topics.client.concurrent import AsyncClient

P = ParamSpec("P")
T = TypeVar("T")


class AsyncStream(Generic[T]):
    """A stream of values that reconnects by itself: an asynchronous iterator and context manager.

    Entering the context manager waits until the daemon has accepted the request; leaving it closes the stream. Several
    tasks may iterate: each value goes to one of them. `anext` raises the TopicsError that the stream does not survive.
    If it is cancelled, the connection is closed; iteration may go on, and a tail or watch has lost no value.
    """

    def __init__(self, client: AsyncClient, machine: StreamMachine[T]) -> None:
        self._client = client
        self._machine = machine
        self._lock = anyio.Lock()
        """Held by the task that makes calls and reads."""
        self._scope: anyio.CancelScope | None = None
        """The scope of that task's calls and reads, which `aclose` cancels."""
        self._closing = False
        self._pieces: AsyncGenerator[bytes, None] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._advance(lambda: self._machine.begun)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        found: list[T] = []

        def taken() -> bool:
            value = self._machine.take()
            if value is not None:
                found.append(value)
            return value is not None or self._machine.ended

        if self._closing or not taken():
            await self._advance(taken)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def aclose(self) -> None:
        """Close the stream. A task that waits in `anext` gets StopAsyncIteration. May be called more than once. If it
        is cancelled, it closes the stream all the same."""
        self._closing = True
        if self._scope is not None:
            self._scope.cancel()
        with anyio.CancelScope(shield=True):
            async with self._lock:
                await self._drop()

    async def _advance(self, done: Callable[[], bool]) -> None:
        """Make steps until `done` returns True or the stream is closed."""
        async with self._lock:
            with anyio.CancelScope() as self._scope:
                while not self._closing and not done():
                    await self._step()
            self._scope = None

    async def _step(self) -> None:
        """Make the next call, or read the next piece; wait if it has failed."""
        machine = self._machine
        try:
            if self._pieces is None:
                call = machine.next_call()
                if call.answer is not None:
                    machine.answered(await self._client.once(call))
                    return
                self._pieces = self._read(call)
            piece = None if machine.over else await anext(self._pieces, None)
            if piece is not None:
                machine.feed(piece, anyio.current_time())
                return
            await self._drop()
            wait = machine.finished(anyio.current_time())
        except TopicsError as error:
            await self._drop()
            wait = machine.failed(error, anyio.current_time())
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._drop()
            raise
        await anyio.sleep(wait)

    async def _read(self, call: ClientCall[bytes]) -> AsyncGenerator[bytes, None]:
        async with self._client.opened(call, silence=self._machine.silence_s) as response:
            self._machine.opened(anyio.current_time())
            async for piece in response.aiter_bytes():
                yield piece

    async def _drop(self) -> None:
        pieces, self._pieces = self._pieces, None
        if pieces is not None:
            await pieces.aclose()


class AsyncTail(AsyncStream[Followed]):
    """The values of topics: what `AsyncClient.tail` and `AsyncClient.watch` return."""

    _machine: Follower

    def position(self, topic: str) -> Position:
        """How far a topic was taken. A later `watch` or `tail` that begins there goes on after the last value taken.

        Raises KeyError for a topic that is not followed or was deleted, and for one that begins at its head before the
        iterator was entered or asked for a value.
        """
        return self._machine.position(topic)


class AsyncJobs(AsyncStream[Job]):
    """The jobs of a queue: what `AsyncClient.work` returns. Closing it gives jobs that were not acked back."""


# Each of these makes a method of the client out of a function that makes the machine of a stream.


def _tail(make: Callable[P, Follower]) -> Callable[Concatenate[AsyncClient, P], AsyncTail]:
    def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncTail:
        machine = make(*args, **kwargs)
        machine.tells_epochs = client.connection.any and len(client.connection.urls) > 1
        return AsyncTail(client, machine)

    signed(method, make)
    return method


def _jobs(make: Callable[P, JobStream]) -> Callable[Concatenate[AsyncClient, P], AsyncJobs]:
    def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncJobs:
        return AsyncJobs(client, make(*args, **kwargs))

    signed(method, make)
    return method


tail = _tail(follower.tail)
watch = _tail(follower.watch)
work = _jobs(job_stream.work)
