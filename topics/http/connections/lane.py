"""The lane: plain HTTP/1.1 requests, served in the task of their connection.

Theory of operation. Of one connection the lane reads a head (`request_heads`), makes a `LaneExchange` of it, and has
the gate answer it, one request after the other. There is no other task, no timer and no cancel scope for a request,
unless `TOPICS_REQUEST_TIMEOUT_MS` is set.
If the input does not begin with a complete plain head, the lane returns it as it is, and hypercorn serves the
connection from that byte on. When hypercorn has answered a request and the connection can carry another one, it
returns the input that it has not used, and the lane goes on. So every byte is read by one of the two, and only one of
them has a request in progress (`docs/design/http.md`).

While a request is in progress nothing behind its body is read. `Hangups` notices when the client leaves meanwhile, and
ends what waits on its behalf (`Connection.ends_wait`). Idle connections are closed by the server, which looks through
them once a second: their sockets are shut down for reading, so that the lane sees their end.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Final

import trio

from topics.http.connections.connection import Connection
from topics.http.connections.exchange import ClientGone, Exchange, Headers, Scope
from topics.http.connections.refusals import refusal_of_no_http
from topics.http.connections.request_heads import Head, read_head

READ_BYTES: Final = 64 << 10
BULK_READ_BYTES: Final = 256 << 10

JOINED_WITH_HEAD: Final = 64 << 10
"""The longest piece that is copied, to be sent together with the head of its answer, bytes."""

Handler = Callable[[Exchange], Awaitable[None]]


class Lane:
    """The lane of one connection. `handler` answers an exchange (`topics.http.gate.Gate.handle`). `busy` is called when
    a request begins; `idle` when the connection is ready for the next one, and returns False if there is to be none."""

    def __init__(
        self,
        handler: Handler,
        connection: Connection,
        stream: trio.SocketStream,
        sock: socket.socket,
        busy: Callable[[], None],
        idle: Callable[[], bool],
    ) -> None:
        self._handler = handler
        self.connection = connection
        self._stream = stream
        self._socket = sock
        """The socket of the stream, for calls that do not wait."""
        self._busy = busy
        self._idle = idle
        self._input = b""
        """Bytes that were read and belong to no request yet."""

    async def run(self, data: bytes) -> bytes | None:
        """Serve requests. `data` is input that has been read already.

        Returns the input with which hypercorn has to go on; None if the connection is to be closed. Raises what the
        handler raises.
        """
        self._input = data
        while self._idle():
            if self._input:
                await trio.lowlevel.checkpoint()  # other connections have their turn between pipelined requests
            else:
                self._input = await self._read(READ_BYTES)
                if not self._input:
                    return None
            head = read_head(self._input)
            if head is None:
                if self.connection.is_ending:
                    return None  # hypercorn would take the end that this side has made for one in a request
                rest, self._input = self._input, b""
                return rest
            self._busy()
            exchange = self._begin(head)
            self.connection.is_paused = True
            try:
                await self._handler(exchange)
            finally:
                self.connection.is_paused = False
            if not exchange.keeps_connection():
                return None
        return None

    def _begin(self, head: Head) -> LaneExchange:
        """The exchange of a request; its body is taken out of the input as far as it is there."""
        data = self._input
        end = head.size + head.body_bytes
        body = data[head.size : end]
        self._input = data[end:]
        return LaneExchange(self, head, body)

    async def _read(self, size: int) -> bytes:
        """Wait for input; empty at its end."""
        sock = self._socket
        try:
            while True:
                await trio.lowlevel.wait_readable(sock)
                try:
                    data = sock.recv(size)
                    break
                except BlockingIOError:
                    pass
        except (trio.ClosedResourceError, OSError, ValueError):  # ValueError: the socket was closed before the wait
            self.connection.peer_left(broken=True)
            return b""
        if not data:
            self.connection.peer_left(broken=False)
        return data

    async def read_body(self, most: int) -> bytes:
        """Wait for at most `most` bytes of the present body; empty at the end of the input."""
        return await self._read(min(most, BULK_READ_BYTES))

    async def send(self, data: bytes) -> None:
        """Send data, at once if the socket takes it. If nothing can be sent any more, nothing happens. Once it has
        begun, it is not cancelled; the connection can be aborted."""
        connection, lock = self.connection, self.connection.lock
        await connection.between_frames()
        sent = 0
        if not lock.locked():
            try:
                sent = self._socket.send(data)
            except BlockingIOError:
                pass
            except OSError:
                connection.peer_left(broken=True)
                return
            if sent == len(data):
                return
            lock.acquire_nowait()  # at once: nothing may be sent, and nothing cancelled, behind the first part
        else:
            await lock.acquire()
        try:
            with trio.CancelScope(shield=True):
                await self._stream.send_all(memoryview(data)[sent:])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            connection.peer_left(broken=True)
        finally:
            lock.release()


class LaneExchange(Exchange):
    """One request on the lane."""

    __slots__ = ("_begun", "_chunked", "_closes", "_ended", "_head", "_lane", "_left", "_piece")

    def __init__(self, lane: Lane, head: Head, body: bytes) -> None:
        super().__init__(lane.connection, head.method, head.path, head.query, head.headers)
        self._lane = lane
        self._piece: bytes | None = body or None
        """The part of the body that came together with the head."""
        self._left = head.body_bytes - len(body)
        """Bytes of the body that are still to come, after that."""
        self.body_complete = not head.body_bytes
        self._head = b""
        """The head of the answer, until it is sent with its first piece."""
        self._begun = self._chunked = self._ended = self._closes = False

    def keeps_connection(self) -> bool:
        """Return True if the next request can follow: this one has been received and answered as a whole, and the
        answer did not say otherwise."""
        return self._ended and self.body_complete and not self._closes and not self.connection.is_broken

    # -- the body ------------------------------------------------------------------------------------------------------

    def whole_body(self, most: int) -> bytes | None:
        """The body, if all of it came with the head and it has at most `most` bytes."""
        piece = self._piece
        if piece is None or self._left or len(piece) > most:
            return None
        self._piece = None
        self.body_complete = True
        return piece

    def receive_nowait(self) -> bytes | None:
        """The part of the body that came with the head; then None. Never raises."""
        piece, self._piece = self._piece, None
        if piece is not None:
            self.body_complete = not self._left
        return piece

    async def receive(self) -> bytes:
        """Wait for the next piece of the body. Raises ClientGone; a client that has only shut down its side too early
        is told so."""
        if (piece := self.receive_nowait()) is not None:
            return piece
        piece = await self._lane.read_body(self._left)
        if not piece:
            if not self._begun and not self.connection.is_ending:
                body, headers = refusal_of_no_http()
                await self.answer(400, [*headers, (b"connection", b"close")], body)
            raise ClientGone
        self._left -= len(piece)
        self.body_complete = not self._left
        return piece

    async def until_hangup(self) -> None:
        """Wait for ever: `Hangups` notices the end of the client, and `Connection.ends_wait` ends the wait."""
        await trio.sleep_forever()

    def waits_for_continue(self) -> bool:
        """Return False: a request with `Expect` is not plain."""
        return False

    async def ask_for_body(self) -> None:
        """Do nothing: the client sends its body without being asked."""

    # -- the answer ----------------------------------------------------------------------------------------------------

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer: its head is sent with its first piece. Without a length its body is sent in chunks."""
        self._begun = True
        lines = [b"HTTP/1.1 %d \r\n" % status]
        self._chunked = True
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-length":
                self._chunked = False
            elif name == b"connection":
                self._closes = True
        lines.append(b"date: %b\r\n" % http_date())
        lines.append(b"Transfer-Encoding: chunked\r\n\r\n" if self._chunked else b"\r\n")
        self._head = b"".join(lines)

    async def send_head(self) -> None:
        """Send the head, if it has not been sent."""
        if self._head:
            await self._send(b"")

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body."""
        if not piece:
            return
        if self._chunked:
            piece = b"%x\r\n%b\r\n" % (len(piece), piece)
        await self._send(piece)

    async def _send(self, data: bytes) -> None:
        head, self._head = self._head, b""
        if head and len(data) > JOINED_WITH_HEAD:
            await self._lane.send(head)
        else:
            data = head + data
        await self._lane.send(data)

    async def end(self) -> None:
        """End the answer."""
        if self._chunked:
            await self._send(b"0\r\n\r\n")
        else:
            await self.send_head()
        self._ended = True

    def asgi_scope(self) -> Scope:
        """The scope of the request, as an ASGI server would make it."""
        return {
            "type": "http",
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": "",
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers.items()),
            "client": self.connection.peer,
            "server": None,
            "extensions": {},
            "state": {"connection": self.connection},
        }


class _Date:
    """The present date for answers, made once a second."""

    second = 0
    text = b""


def http_date() -> bytes:
    """The present time in the form of HTTP (RFC 9110, 5.6.7)."""
    now = int(time.time())
    if now != _Date.second:
        _Date.second, _Date.text = now, formatdate(now, usegmt=True).encode()
    return _Date.text
