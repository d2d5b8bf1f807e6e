"""A bad network on loopback: a proxy that delays, stalls and cuts connections, at the byte that a test names.

It runs in a thread of its own, so that tests of blocking clients, of trio and of asyncio use it alike. It knows nothing
of HTTP: bytes go up to the daemon and come down from it, in order, with 64 KiB in each direction at most; a client that
does not read holds up the daemon as it would without a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from tests.client.ports import free_port

_CHUNK_BYTES = 16 << 10
_BUFFER_BYTES = 32 << 10

T = TypeVar("T")


@dataclass(frozen=True)
class Fate:
    """What becomes of one connection.

    It is cut when `up` bytes of requests have gone up, or `down` bytes of answers have come down (0: as soon as there
    is a first one, so that the daemon has acted and nobody hears of it). None: never. `delay_s` holds up every chunk,
    in both directions. `reset` ends it as a crash of the network would; otherwise both see a clean end of the stream.
    """

    up: int | None = None
    down: int | None = None
    delay_s: float = 0.0
    reset: bool = True


KIND = Fate()


class Proxy:
    """Forwards `url` to `port` on loopback, from `with` to its end.

    `fate` is asked for each new connection with its number, from 0, in the proxy's thread. Everything else may be
    called from any thread and has happened when it returns.
    """

    def __init__(self, port: int, fate: Callable[[int], Fate] = lambda _: KIND) -> None:
        self.target = port
        self.port = free_port()
        self.fate = fate
        self.accepted = 0
        """How many connections there were so far."""
        self.waiting = 0
        """Chunks that a stalled network holds."""
        self._severed = False
        self._flowing = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Break every connection that there is now. New ones are welcome."""
        self._do(self._cut())

    def sever(self) -> None:
        """Break every connection, and each new one at once, until `mend()`."""
        self._do(self._set_severed(True))

    def mend(self) -> None:
        self._do(self._set_severed(False))

    def stall(self) -> None:
        """Nothing moves in either direction from now on, and nobody is told, until `flow()`."""
        self._do(self._set_flowing(False))

    def flow(self) -> None:
        self._do(self._set_flowing(True))

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _listen(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, limit=_BUFFER_BYTES)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self._severed = True
        self._flowing.set()
        await self._cut()
        await asyncio.gather(*self._tasks)

    async def _cut(self) -> None:
        for writer in list(self._open):
            _break(writer, reset=True)

    async def _set_severed(self, severed: bool) -> None:
        self._severed = severed
        if severed:
            await self._cut()

    async def _set_flowing(self, flowing: bool) -> None:
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self._severed:
                _break(writer, reset=True)
                return
            fate = self.fate(self.accepted)
            self.accepted += 1
            try:
                from_daemon, to_daemon = await asyncio.open_connection("127.0.0.1", self.target, limit=_BUFFER_BYTES)
            except OSError:
                _break(writer, reset=True)
                return
            both = (writer, to_daemon)
            self._open.update(both)
            try:
                await asyncio.gather(
                    self._carry(reader, to_daemon, writer, fate.up, fate),
                    self._carry(from_daemon, writer, to_daemon, fate.down, fate),
                )
            finally:
                for end in both:
                    _break(end, reset=False)
                self._open.difference_update(both)
        finally:
            self._tasks.discard(task)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other: asyncio.StreamWriter,
        most: int | None,
        fate: Fate,
    ) -> None:
        """Carry bytes from `reader` to `writer` until one side ends or `most` are carried; then end both sides."""
        writer.transport.set_write_buffer_limits(0)
        reset = True
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                if fate.delay_s:
                    await asyncio.sleep(fate.delay_s)
                self.waiting += 1
                await self._flowing.wait()
                self.waiting -= 1
                if most is not None:
                    chunk, most = chunk[:most], most - len(chunk)
                writer.write(chunk)
                await writer.drain()
                if most is not None and most <= 0:
                    reset = fate.reset
                    break
            else:
                reset = False
        _break(writer, reset=reset)
        _break(other, reset=reset)


def _break(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """End a connection: with a reset, what is under way is lost."""
    raw = writer.get_extra_info("socket")
    if reset and raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
