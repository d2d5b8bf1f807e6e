"""The iterators of tails, watches and streams of jobs, for programs that block.

Responsible for I/O only: they make calls, read streams, wait, and return values. `topics.client.streams.follower` and
`topics.client.streams.job_stream` decide which call is next, what bytes mean and what a failure means. The asynchronous
half is `topics.client.streams.async_tails`.

While there are decoded values, nothing is read. So a caller that takes no values holds up the daemon, which ends the
connection after a while (408); the next call asks again from the last value that was taken.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from topics.client.calls import ClientCall
from topics.client.errors import TopicsError
from topics.client.results import Job
from topics.client.streams import follower, job_stream
from topics.client.streams.follower import Followed, Follower, Position
from topics.client.streams.job_stream import JobStream
from topics.client.transport import signed

if TYPE_CHECKING:
    from topics.client.sync import Client

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class StreamMachine(Protocol[T_co]):
    """The state machine of a stream, without I/O. `Follower` says how it is driven; it is one, and so is
    `JobStream`."""

    begun: bool
    over: bool
    silence_s: float

    @property
    def ended(self) -> bool: ...
    def take(self) -> T_co | None: ...
    def next_call(self) -> ClientCall[Any]: ...
    def answered(self, answer: Any) -> None: ...
    def opened(self, now: float) -> None: ...
    def feed(self, piece: bytes, now: float) -> None: ...
    def finished(self, now: float) -> float: ...
    def failed(self, error: TopicsError, now: float) -> float: ...
    def forget(self) -> None: ...


class Stream(Generic[T]):
    """A stream of values that reconnects by itself, for programs that block: an iterator and a context manager.

    Entering the context manager waits until the daemon has accepted the request; leaving it closes the stream. Several
    threads may iterate: each value goes to one of them. `next` raises the TopicsError that the stream does not survive.
    If an exception is raised in the middle of `next`, also KeyboardInterrupt, the connection is closed; iteration may
    go on, and a tail or watch has lost no value.
    """

    def __init__(self, client: Client, machine: StreamMachine[T]) -> None:
        self._client = client
        self._machine = machine
        self._lock = threading.Lock()
        """Held by the thread that iterates."""
        self._closing = False
        self._bell: SimpleQueue[None] = SimpleQueue()
        """Wakes a thread that waits after a failure, when the stream is closed. Unlike an Event it may be used in a
        signal handler, which may have interrupted any call."""
        self._pieces: Generator[bytes, None, None] | None = None
        """The bytes of the open stream."""
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        try:
            self._advance(lambda: self._machine.begun)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        found: list[T] = []

        def taken() -> bool:
            value = self._machine.take()
            if value is not None:
                found.append(value)
            return value is not None or self._machine.ended

        self._advance(taken)
        if not found:
            raise StopIteration
        return found[0]

    def close(self) -> None:
        """Close the stream. A thread that waits in `next` gets StopIteration: at once if the stream is open, else after
        the client's timeout at the latest. May be called in any thread and in a signal handler, and more than once."""
        self._closing = True
        self._bell.put(None)
        sock = self._socket
        if sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not that of TLS: nobody may be read on
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._lock.release()

    def _advance(self, done: Callable[[], bool]) -> None:
        """Make steps until `done` returns True or the stream is closed."""
        try:
            with self._lock:
                while not self._closing and not done():
                    self._step()
        finally:
            if self._closing:
                self._close_if_unused()

    def _step(self) -> None:
        """Make the next call, or read the next piece; wait if it has failed."""
        machine = self._machine
        try:
            if self._pieces is None:
                call = machine.next_call()
                if call.answer is not None:
                    machine.answered(self._client.once(call))
                    return
                self._pieces = self._read(call)
            piece = None if machine.over else next(self._pieces, None)
            if piece is not None:
                machine.feed(piece, time.monotonic())
                return
            self._drop()
            wait = machine.finished(time.monotonic())
        except TopicsError as error:
            self._drop()
            if self._closing:
                return
            wait = machine.failed(error, time.monotonic())
        except BaseException:
            self._drop()
            machine.forget()
            raise
        with suppress(Empty):
            self._bell.get(timeout=wait)

    def _read(self, call: ClientCall[bytes]) -> Generator[bytes, None, None]:
        with self._client.opened(call, silence=self._machine.silence_s) as response:
            self._socket = response.extensions["network_stream"].get_extra_info("socket")
            self._machine.opened(time.monotonic())
            if not self._closing:  # or `close` has come too early to find the socket
                yield from response.iter_bytes()

    def _drop(self) -> None:
        pieces, self._pieces, self._socket = self._pieces, None, None
        if pieces is not None:
            pieces.close()


class Tail(Stream[Followed]):
    """The values of topics: what `Client.tail` and `Client.watch` return."""

    _machine: Follower

    def position(self, topic: str) -> Position:
        """How far a topic was taken. A later `watch` or `tail` that begins there goes on after the last value taken.

        Raises KeyError for a topic that is not followed or was deleted, and for one that begins at its head before the
        iterator was entered or asked for a value.
        """
        return self._machine.position(topic)


class Jobs(Stream[Job]):
    """The jobs of a queue: what `Client.work` returns. Closing it gives jobs that were not acked back."""


# Each of these makes a method of the client out of a function that makes the machine of a stream.


def _tail(make: Callable[P, Follower]) -> Callable[Concatenate[Client, P], Tail]:
    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Tail:
        machine = make(*args, **kwargs)
        machine.tells_epochs = client.connection.any and len(client.connection.urls) > 1
        return Tail(client, machine)

    signed(method, make)
    return method


def _jobs(make: Callable[P, JobStream]) -> Callable[Concatenate[Client, P], Jobs]:
    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Jobs:
        return Jobs(client, make(*args, **kwargs))

    signed(method, make)
    return method


tail = _tail(follower.tail)
watch = _tail(follower.watch)
work = _jobs(job_stream.work)
