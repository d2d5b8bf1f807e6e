"""The wire between the browser and the daemon, which a test can cut.

A TCP proxy on a port of its own: that port is the origin of the pages, so it stays when the daemon is started again on
another. It runs in a thread of its own (trio inside), and every method may be called from the test's.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)  # linger for 0 s: closing sends RST, and drops what has not been sent


class Wire:
    """Carries connections to the port that `upstream` names at the moment they are made."""

    def __init__(self, upstream: Callable[[], int]) -> None:
        self._upstream = upstream
        # Bound for as long as the wire lives, so that nobody gets the port while connections are refused: not another
        # process, and not the browser as the near end of a connection (which would then be one with itself).
        self._reservation = self._bind(0)
        self.port: int = self._reservation.getsockname()[1]
        self.connections_made = 0
        self._open: dict[trio.CancelScope, trio.Event] = {}  # what ends each connection, and says that it has ended
        self._bytes_left: int | None = None
        self._listener: trio.socket.SocketType
        self._token: trio.lowlevel.TrioToken
        self._nursery: trio.Nursery
        self._started = threading.Event()
        self._thread = threading.Thread(target=trio.run, args=(self._run,), name="wire")

    @property
    def origin(self) -> str:
        return f"http://{HOST}:{self.port}"

    def start(self) -> None:
        self._thread.start()
        assert self._started.wait(10)
        self.restore()

    def end(self) -> None:
        trio.from_thread.run_sync(self._nursery.cancel_scope.cancel, trio_token=self._token)
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._reservation.close()

    def cut(self) -> None:
        """Reset every connection, and return when that is done. New ones are possible at once."""
        trio.from_thread.run(self._cut, trio_token=self._token)

    def cut_after(self, size: int) -> None:
        """Reset the connection that carries the `size`th byte from here on towards the browser, after that byte."""
        trio.from_thread.run_sync(setattr, self, "_bytes_left", size, trio_token=self._token)

    def refuse(self) -> None:
        """Cut, and refuse new connections."""
        trio.from_thread.run_sync(self._listener.close, trio_token=self._token)
        self.cut()

    def restore(self) -> None:
        """Take connections again."""
        trio.from_thread.run(self._start_listening, trio_token=self._token)

    @property
    def is_cut(self) -> bool:
        """Whether the cut that `cut_after` ordered has been made."""
        return self._bytes_left is None

    async def _run(self) -> None:
        async with trio.open_nursery() as self._nursery:
            self._token = trio.lowlevel.current_trio_token()
            self._started.set()
            await trio.sleep_forever()

    def _bind(self, port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind((HOST, port))
        return bound

    async def _start_listening(self) -> None:
        await self._nursery.start(self._listen)

    async def _listen(self, task_status: trio.TaskStatus[None]) -> None:
        self._listener = trio.socket.from_stdlib_socket(self._bind(self.port))
        self._listener.listen(100)
        task_status.started()
        try:
            while True:
                accepted, _ = await self._listener.accept()
                self.connections_made += 1
                self._nursery.start_soon(self._carry, trio.SocketStream(accepted))
        except trio.ClosedResourceError:
            return  # `refuse`
        finally:
            self._listener.close()

    async def _cut(self) -> None:
        ended = list(self._open.values())
        for scope in self._open:
            scope.cancel()
        for event in ended:
            await event.wait()

    async def _carry(self, browser: trio.SocketStream) -> None:
        scope = trio.CancelScope()
        ended = self._open[scope] = trio.Event()
        try:
            with scope:
                try:
                    daemon = await trio.open_tcp_stream(HOST, self._upstream())
                except OSError:
                    reset(browser)
                    return
                try:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._pump, browser, daemon, None)
                        nursery.start_soon(self._pump, daemon, browser, scope)
                finally:
                    if scope.cancel_called:
                        reset(browser)
                        reset(daemon)
                    daemon.socket.close()
        finally:
            browser.socket.close()
            del self._open[scope]
            ended.set()

    async def _pump(
        self, source: trio.SocketStream, sink: trio.SocketStream, towards_browser: trio.CancelScope | None
    ) -> None:
        try:
            async for data in source:
                if towards_browser is None or self._bytes_left is None:
                    await sink.send_all(data)
                elif len(data) < self._bytes_left:
                    self._bytes_left -= len(data)
                    await sink.send_all(data)
                else:
                    left, self._bytes_left = self._bytes_left, None
                    await sink.send_all(data[:left])
                    await trio.sleep(0.05)  # so that the browser reads it before it meets the reset
                    towards_browser.cancel()
                    await trio.sleep_forever()
            await sink.send_eof()
        except trio.BrokenResourceError:
            # One side was reset; so is the other.
            reset(source)
            reset(sink)
            source.socket.close()
            sink.socket.close()
        except trio.ClosedResourceError:
            return


def reset(stream: trio.SocketStream) -> None:
    """See that closing it sends RST."""
    if stream.socket.fileno() != -1:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)


@contextmanager
def wire_to(upstream: Callable[[], int]) -> Iterator[Wire]:
    wire = Wire(upstream)
    wire.start()
    try:
        yield wire
    finally:
        wire.end()
