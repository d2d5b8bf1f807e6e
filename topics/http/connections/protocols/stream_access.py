"""What handlers may do with hypercorn's stream beyond ASGI, through the `send` and `receive` that they have."""

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
    """The application of a WebSocket has ended: what still comes is for nobody. Returns how many bytes of messages were
    waiting for it.

    Otherwise the connection's reader would wait for ever for room in a queue that nobody empties.
    """
    left = 0
    while (message := receive_nowait(receive)) is not None:
        left += message.get("size", 0)
    receive.__self__.close()
    return left


def receive_nowait(receive: Any) -> Any | None:
    """The next message for an application, if there is one; `receive` is what it was given.

    Most bodies are there before anybody asks for them, and need no timer.
    """
    channel = getattr(receive, "__self__", None)
    if isinstance(channel, trio.MemoryReceiveChannel):
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            return channel.receive_nowait()
    return None


def bytes_of_unfinished_frame(send: Any) -> int:
    """How much has come of a body's frame that is not complete; `send` is what the request's application was given."""
    stream = send.__self__
    assert isinstance(stream, HTTPStream)
    protocol = getattr(stream.send, "__self__", None)
    return protocol.bytes_of_unfinished_frame(stream.stream_id) if isinstance(protocol, Http2) else 0


async def cut_off(send: Any, connection: Connection) -> None:
    """Give up a request whose client is too slow: an HTTP/2 stream is reset, any other connection dropped."""
    stream = send.__self__
    assert isinstance(stream, HTTPStream)
    if isinstance(getattr(stream.send, "__self__", None), Http2):
        with connection.answering(0):  # it may be as slow in reading this
            await stream.send(StreamClosed(stream_id=stream.stream_id))
    else:
        connection.abort()


async def ask_for_body(send: Any) -> None:
    """A request's body is wanted: a client that waits for 100 Continue gets it; `send` is what the application was
    given."""
    protocol = _protocol_of(send)
    if isinstance(protocol, Http1):
        await protocol.ask_for_body()


def waits_for_continue(send: Any) -> bool:
    """Return True if the client of a request sends its body only when it is told to."""
    protocol = _protocol_of(send)
    return isinstance(protocol, Http1) and protocol.waits_for_continue()


def _protocol_of(send: Any) -> object:
    return getattr(getattr(getattr(send, "__self__", None), "send", None), "__self__", None)


def was_cut_off(send: Any, connection: Connection) -> bool:
    """Return True if an answer is known not to have been sent to its end; `send` is what its application was given."""
    protocol = _protocol_of(send)
    return connection.is_broken or (isinstance(protocol, Http2) and send.__self__ in protocol.cut_off)
