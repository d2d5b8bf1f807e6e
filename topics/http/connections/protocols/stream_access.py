"""What handlers may do with a stream of hypercorn that ASGI does not offer. They pass the `send` and `receive` that
they were given as an ASGI application."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio
from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.http_stream import HTTPStream

from topics.http.connections.connection import Connection
from topics.http.connections.protocols.http1 import Http1
from topics.http.connections.protocols.http2 import Http2


def stop_receiving(receive: Any) -> int:
    """Drop the messages of a WebSocket whose handler has ended. Returns the bytes of those that were waiting for it.

    Without this the reader of the connection would wait for ever for room in the queue of the handler.
    """
    left = 0
    while (message := receive_nowait(receive)) is not None:
        left += message.get("size", 0)
    receive.__self__.close()
    return left


def receive_nowait(receive: Any) -> Any | None:
    """The next message for a handler, if it is there already; else None.

    Most bodies are there when the handler asks for them, so that no timer is needed.
    """
    channel = getattr(receive, "__self__", None)
    if isinstance(channel, trio.MemoryReceiveChannel):
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            return channel.receive_nowait()
    return None


def bytes_of_unfinished_frame(send: Any) -> int:
    """How many bytes have come of an incomplete HTTP/2 frame of the request's body."""
    stream = send.__self__
    assert isinstance(stream, HTTPStream)
    protocol = getattr(stream.send, "__self__", None)
    return protocol.bytes_of_unfinished_frame(stream.stream_id) if isinstance(protocol, Http2) else 0


async def cut_off(send: Any, connection: Connection) -> None:
    """Give up a request whose client is too slow: reset its HTTP/2 stream, or abort an HTTP/1.1 connection."""
    stream = send.__self__
    assert isinstance(stream, HTTPStream)
    if isinstance(getattr(stream.send, "__self__", None), Http2):
        with connection.answering(0):  # bounds the time that the client has for reading the reset
            await stream.send(StreamClosed(stream_id=stream.stream_id))
    else:
        connection.abort()


async def ask_for_body(send: Any) -> None:
    """Send `100 Continue` to a client that waits for it before it sends its body."""
    protocol = _protocol_of(send)
    if isinstance(protocol, Http1):
        await protocol.ask_for_body()


def waits_for_continue(send: Any) -> bool:
    """Return True if the client waits for `100 Continue` before it sends its body."""
    protocol = _protocol_of(send)
    return isinstance(protocol, Http1) and protocol.waits_for_continue()


def _protocol_of(send: Any) -> object:
    return getattr(getattr(getattr(send, "__self__", None), "send", None), "__self__", None)


def was_cut_off(send: Any, connection: Connection) -> bool:
    """Return True if the answer is known not to have been sent completely."""
    protocol = _protocol_of(send)
    return connection.is_broken or (isinstance(protocol, Http2) and send.__self__ in protocol.cut_off)
