"""The exchange of a request that hypercorn serves: HTTP/2, and of HTTP/1.1 what the lane does not take.

Handlers may do more with a stream of hypercorn than ASGI offers. The stream is found by the `send` that an ASGI
application is given."""

from __future__ import annotations

from collections.abc import Mapping

from hypercorn.protocol.events import StreamClosed
from hypercorn.protocol.http_stream import HTTPStream

from topics.http.connections.asgi_messages import Message, Receive, Send, receive_nowait
from topics.http.connections.connection import Connection
from topics.http.connections.exchange import LISTS, ClientGone, Exchange, Headers, Scope
from topics.http.connections.protocols.http1 import Http1
from topics.http.connections.protocols.http2 import Http2


class AsgiExchange(Exchange):
    """A request and the two functions by which an ASGI application receives its body and sends its answer."""

    __slots__ = ("_first", "_receive", "_scope", "_send", "http_version")

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection: Connection = scope["state"]["connection"]
        headers = _by_name(scope["headers"])
        super().__init__(connection, scope["method"], scope["raw_path"], scope["query_string"], headers)
        self.http_version = scope["http_version"]
        self._scope = scope
        self._receive = receive
        self._send = send

    def receive_nowait(self) -> bytes | None:
        """The next piece of the body, if it is there. Raises ClientGone."""
        message = receive_nowait(self._receive)
        return None if message is None else self._taken(message)

    async def receive(self) -> bytes:
        """Wait for the next piece of the body. Raises ClientGone."""
        return self._taken(await self._receive())

    def _taken(self, message: Message) -> bytes:
        if message["type"] == "http.disconnect":
            raise ClientGone
        self.body_complete = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    async def until_hangup(self) -> None:
        """Wait until hypercorn reports the end of the client."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def waits_for_continue(self) -> bool:
        """Return True if the client waits for `100 Continue`."""
        protocol = self._protocol()
        return isinstance(protocol, Http1) and protocol.waits_for_continue()

    async def ask_for_body(self) -> None:
        """Send `100 Continue` to a client that waits for it."""
        protocol = self._protocol()
        if isinstance(protocol, Http1):
            await protocol.ask_for_body()

    def bytes_of_unfinished_frame(self) -> int:
        """How many bytes have come of an incomplete HTTP/2 frame of the body."""
        protocol = self._protocol()
        if not isinstance(protocol, Http2):
            return 0
        return protocol.bytes_of_unfinished_frame(self._stream().stream_id)

    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer."""
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send_head(self) -> None:
        """Send the head, if it has not been sent; over HTTP/2 the beginning of the answer has sent it."""
        protocol = self._protocol()
        if isinstance(protocol, Http1):
            await protocol.send_head()

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body."""
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end(self) -> None:
        """End the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete answer."""
        await self.begin(status, headers)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    def was_cut_off(self) -> bool:
        """Return True if the answer is known not to have been sent completely."""
        protocol = self._protocol()
        return super().was_cut_off() or (isinstance(protocol, Http2) and self._stream() in protocol.cut_off)

    async def cut_off(self) -> None:
        """Reset the HTTP/2 stream, or abort the HTTP/1.1 connection."""
        if isinstance(self._protocol(), Http2):
            stream = self._stream()
            with self.connection.answering(0):  # bounds the time that the client has for reading the reset
                await stream.send(StreamClosed(stream_id=stream.stream_id))
        else:
            await super().cut_off()

    def asgi_scope(self) -> Scope:
        """The scope that hypercorn has made."""
        return self._scope

    def _stream(self) -> HTTPStream:
        stream = getattr(self._send, "__self__", None)
        assert isinstance(stream, HTTPStream)
        return stream

    def _protocol(self) -> object:
        return getattr(getattr(getattr(self._send, "__self__", None), "send", None), "__self__", None)


def _by_name(fields: Headers) -> Mapping[bytes, bytes]:
    headers: dict[bytes, bytes] = {}
    for name, value in fields:
        name = name.lower()
        earlier = headers.get(name) if name in LISTS else None
        headers[name] = value if earlier is None else earlier + b", " + value
    return headers
