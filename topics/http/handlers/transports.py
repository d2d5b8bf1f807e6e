"""Sending the frames of an outbox: a `topics.engine.delivery.transport.Transport` for each kind of connection.

On HTTP/1.1 the head of a stream, its end, pings and closes are sent through hypercorn. The frames in between are
written to the socket directly, as chunks of the body or as WebSocket messages. This takes 40 us for each watcher;
through h11, hypercorn and two locks it would take 140 us. On HTTP/2, where many streams share a connection and its
windows, and on HTTP/1.0, which has no chunks, frames are sent through hypercorn as every other answer is.
"""

from __future__ import annotations

from typing import Final

import trio

from topics.engine.delivery.transport import Transport
from topics.http.connections.asgi_messages import Send
from topics.http.connections.connection import Connection
from topics.http.connections.exchange import Exchange, Scope

# A WebSocket frame's first byte: final, and text (RFC 6455, 5.2).
_TEXT: Final = 0x81


class _Direct:
    """Writes frames to the socket directly."""

    whole_frames = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def try_send(self, wire: bytes) -> int:
        return self._connection.try_send(wire)

    async def send(self, wire: bytes) -> None:
        await self._connection.send_rest(wire)

    def done(self) -> None:
        self._connection.direct_done()

    def acked(self) -> int:
        return self._connection.acked()

    def abort(self) -> None:
        self._connection.abort()


class _Chunks(_Direct):
    """Sends events as chunks of an HTTP/1.1 body."""

    def wrap(self, stamp: bytes, data: bytes) -> tuple[bytes, bytes]:
        return b"%x\r\n%b" % (len(stamp) + len(data), stamp), b"\r\n"


class _Messages(_Direct):
    """Sends text messages on a WebSocket, each as one frame. A server does not mask its frames."""

    def wrap(self, stamp: bytes, data: bytes) -> tuple[bytes, bytes]:
        size = len(stamp) + len(data)
        if size < 126:
            head = bytes((_TEXT, size))
        elif size < 1 << 16:
            head = bytes((_TEXT, 126)) + size.to_bytes(2, "big")
        else:
            head = bytes((_TEXT, 127)) + size.to_bytes(8, "big")
        return head + stamp, b""


class _Asgi:
    """Sends frames through hypercorn. `scope` is the cancel scope of the task that sends them."""

    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope

    def wrap(self, stamp: bytes, data: bytes) -> tuple[bytes, bytes]:
        return stamp, b""

    def try_send(self, wire: bytes) -> int:
        return 0

    def done(self) -> None:
        pass  # hypercorn sends whole frames

    def acked(self) -> int:
        return 0

    def abort(self) -> None:
        self._scope.cancel()  # not the connection, which may carry other streams


class _AsgiBody(_Asgi):
    whole_frames = False

    def __init__(self, exchange: Exchange, scope: trio.CancelScope) -> None:
        super().__init__(scope)
        self._exchange = exchange

    async def send(self, wire: bytes) -> None:
        await self._exchange.send(wire)


class _AsgiMessages(_Asgi):
    whole_frames = True

    def __init__(self, send: Send, scope: trio.CancelScope) -> None:
        super().__init__(scope)
        self._send = send

    async def send(self, wire: bytes) -> None:
        await self._send({"type": "websocket.send", "text": wire.decode()})


def event_transport(exchange: Exchange, cancel: trio.CancelScope) -> Transport:
    """The transport of an event stream. `cancel` is the cancel scope of the task that sends."""
    if exchange.http_version == "1.1":
        return _Chunks(exchange.connection)
    return _AsgiBody(exchange, cancel)


def message_transport(scope: Scope, send: Send, cancel: trio.CancelScope) -> Transport:
    """The transport of a WebSocket. `cancel` is the cancel scope of the task that sends."""
    if scope["http_version"] == "1.1":
        return _Messages(scope["state"]["connection"])
    return _AsgiMessages(send, cancel)
