"""Hypercorn's protocols, where they fall short of `docs/spec/api.md` section 1 or leak: subclasses of 0.18, each with
its reason.

Nothing is patched in place. HTTP/1.1 and HTTP/2 have their classes here, and WebSockets; the rest is hypercorn's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, cast
from weakref import WeakSet

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h11
import msgspec
import trio
from h2.frame_buffer import FrameBuffer
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from hpack.exceptions import OversizedHeaderListError
from hpack.hpack import Decoder
from hpack.struct import HeaderTuple
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.events import Body, Data, Request, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, H2Protocol, StreamBuffer
from hypercorn.protocol.h11 import (
    STREAM_ID,
    H2CProtocolRequiredError,
    H2ProtocolAssumedError,
    H11Protocol,
    H11WSConnection,
)
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.protocol.ws_stream import ASGIWebsocketState, Handshake, WSStream
from hypercorn.trio.worker_context import EventWrapper
from hypercorn.typing import H11SendableEvent
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import DataFrame, Frame
from priority.priority import DeadlockError, MissingStreamError
from wsproto.connection import ConnectionState as ConnectionPhase
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from topics.http.connections.connection import Connection
from topics.http.connections.hosts import is_host, read_target
from topics.http.connections.message_buffer import MessageBuffer
from topics.http.connections.patience import BODY_BYTES_PER_S, BODY_GRACE_S, BODY_IDLE_S
from topics.http.connections.unsent_bytes import COPIED_BYTES

# Request headers up to 128 KiB are promised; the request line, and what h2 adds for each field, come on top.
MAX_HEADER_BYTES: Final = (128 + 64) << 10
# 10,000 are promised.
MAX_STREAMS: Final = 12_000
# The libraries take up to 20 us of the loop for each field, which over HTTP/2 may be one byte. No client sends more
# than some dozens.
MAX_HEADER_FIELDS: Final = 1000
# h2 is given so much at a time when it comes in small frames: one takes up to 70 us, a head of references to long
# fields (50 bytes that stand for 160 KB) 3 ms. Others have their turn in between.
H2_SLICE: Final = 256

# A longer body is not copied to stand behind its head.
_JOINED_WITH_HEAD: Final = 64 << 10

# What may wait in the buffer of an HTTP/2 stream when a pong is added to it.
MOST_PONG_BYTES: Final = 256 << 10

# h11 looks at each of the commas in these; no client has more than some words there.
_LONG_FIELD: Final = 4 << 10
_LONG_CONNECTION_FIELD: Final = re.compile(
    rb"\n(?:connection|content-length|expect|host|te|transfer-encoding|upgrade|sec-websocket-[a-z]+)[ \t]*:[^\n]{%d}"
    % _LONG_FIELD,
    re.IGNORECASE,
)
# A length in a list, a length twice, or a coding with white space behind it is not what every server takes it for.
_FRAMING_LINES: Final = re.compile(rb"\n(content-length|transfer-encoding)[ \t]*:([^\r]*)", re.IGNORECASE)
_FRAMING_VALUES: Final = {
    b"c": re.compile(rb"[ \t]*[0-9]+[ \t]*"),
    b"t": re.compile(rb"[ \t]*chunked", re.IGNORECASE),
}
_CHUNK_LINE: Final = re.compile(
    rb"[0-9A-Fa-f]{1,16}(?:;[!#$%&'*+.^_`|~0-9A-Za-z-]+"
    rb"(?:=(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|\"(?:[\t \x21\x23-\x5b\x5d-\x7e]|\\[\t -~])*\"))?)*"
)
_ODD_LINES: Final = re.compile(rb"(?<!\r)\n|\r[^\n]|\n[ \t]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
# Fields that say one thing, of which the daemon would take the last and a proxy perhaps the first.
_SINGLE: Final = frozenset(
    {
        b":authority",
        b"authorization",
        b"content-encoding",
        b"content-type",
        b"expect",
        b"host",
        b"http2-settings",
        b"idempotency-key",
        b"last-event-id",
        b"origin",
        b"sec-websocket-key",
        b"sec-websocket-version",
    }
)
_WEBSOCKET_KEY: Final = re.compile(rb"[A-Za-z0-9+/]{21}[AQgw]==")
# Events of a WebSocket between two looks at the others: about 2 ms.
_EVENTS_AT_ONCE: Final = 32

_FRAMING_FIELDS: Final = frozenset({b"content-length", b"transfer-encoding"})
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_TARGET: Final = re.compile(rb"[\x21-\x7e]+")


class Protocols(ProtocolWrapper):
    """Starts with HTTP/1.1 and goes over to HTTP/2 when the client says so, with our versions of both."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.protocol = _H11(*self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        return (
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.state,
            self.ssl,
            self.client,
            self.server,
            self.send,
        )

    async def handle(self, event: Event) -> None:
        try:
            await self.protocol.handle(event)
        except H2ProtocolAssumedError as error:
            data = error.data
            self.protocol = _H2(*self._arguments())
            await self.protocol.initiate()
            # What looked like a request was none: hypercorn would wait for its end, and not look at the time.
            await self.send(Updated(idle=True))
        except H2CProtocolRequiredError as error:
            data = error.data
            self.protocol = _H2(*self._arguments())
            try:
                await self.protocol.initiate(error.headers, error.settings)
            except (h2.exceptions.H2Error, ValueError):  # HTTP2-Settings is not base64url of a SETTINGS payload
                await self.send(Closed())
                return
        else:
            return
        if data:
            await self.protocol.handle(RawData(data=data))

    def has_part(self) -> bool:
        """Whether something has come in part: where there is no request, a head, a frame, a block of headers."""
        protocol = self.protocol
        assert isinstance(protocol, _H11 | _H2)
        return protocol.has_part()

    async def ended(self) -> None:
        """The peer is gone: wake the answers that wait for its flow control window, which nobody else would."""
        if isinstance(self.protocol, H2Protocol):
            for buffer in list(self.protocol.stream_buffers.values()):
                await buffer.close()


def _refusal() -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """Body and headers of the answer to what is not HTTP (`docs/spec/api.md` section 1)."""
    body = msgspec.json.encode(
        {"error": {"code": "invalid_request", "message": "the request is not valid HTTP", "detail": {}}}
    )
    return body, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


class _H11Connection(h11.Connection):
    """Refuses what h11 lets through: more than one idea of where a body ends, versions it does not know, and heads
    that take too long to parse."""

    def has_part(self) -> bool:
        """Whether something has come that is no event yet."""
        return len(self._receive_buffer) > 0

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        """Never as far as hypercorn is asked, which would send it before anybody has looked at the request."""
        return False

    def next_event(self) -> Any:
        if self.their_state is h11.IDLE:
            if not self._at_head():
                return h11.NEED_DATA
            self._check_lines(self.trailing_data[0])
        try:
            event = super().next_event()
        except ValueError:
            # A length of thousands of digits, which Python does not convert. h11's own errors are none of these.
            raise h11.RemoteProtocolError("bad Content-Length") from None
        if type(event) is h11.Request:
            self._may_skip_line = True
            self._check(event)
            event = self._with_host_of_target(event)
            if type(self._reader) is ChunkedReader:
                self._reader = _ChunkedReader()
        return event

    _may_skip_line = True

    def _at_head(self) -> bool:
        """Skip one empty line before a request (RFC 9112, 2.2). Return False while it is not complete."""
        start = bytes(self._receive_buffer._data[:2])
        if start == b"\r" and self._may_skip_line and not self._receive_buffer_closed:
            return False
        if start == b"\r\n" and self._may_skip_line:
            self._may_skip_line = False
            self._receive_buffer.maybe_extract_at_most(2)
        return True

    @staticmethod
    def _check_lines(received: bytes) -> None:
        """Refuse heads in which another server on the way might see other lines: a line feed or a carriage return by
        itself, a folded field, a control character; and those that take too long to parse."""
        end = received.find(b"\r\n\r\n")
        head = received if end < 0 else received[: end + 4]
        _check_size(head)
        if _ODD_LINES.search(head) is not None:
            raise h11.RemoteProtocolError("a line that does not end with CR LF, a folded one, or a control character")
        for number, (name, value) in enumerate(_FRAMING_LINES.findall(head)):
            if number or _FRAMING_VALUES[name[:1].lower()].fullmatch(value) is None:
                raise h11.RemoteProtocolError("more than one idea of where the body ends, or an odd one")
        if len(head) > _LONG_FIELD and _LONG_CONNECTION_FIELD.search(head) is not None:
            raise h11.RemoteProtocolError("a field of the connection is too long", error_status_hint=431)

    @staticmethod
    def _check(request: h11.Request) -> None:
        """What two servers on the way might see differently is an attempt to smuggle a request past the first (RFC
        9112, 6.1 and 11.2). Methods are case-sensitive, and none of ours has small letters."""
        version = request.http_version
        if version not in (b"1.1", b"1.0") and (version, request.method, request.target) != (b"2.0", b"PRI", b"*"):
            raise h11.RemoteProtocolError("unknown HTTP version")
        framing = {name for name, _ in request.headers if name in _FRAMING_FIELDS}
        if b"transfer-encoding" in framing and (len(framing) > 1 or version == b"1.0"):
            raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or in HTTP/1.0")
        if request.method != request.method.upper():
            raise h11.RemoteProtocolError("methods are in upper case")
        if not _are_single(request.headers):
            raise h11.RemoteProtocolError("a field that may be there once is there twice")
        if not _have_valid_host(request.headers):
            raise h11.RemoteProtocolError("Host is no host")

    @staticmethod
    def _with_host_of_target(request: h11.Request) -> h11.Request:
        """A target with an authority is taken for its path, and for the `Host` (RFC 9112, 3.2.2)."""
        if request.method == b"CONNECT":
            return request
        target = read_target(request.target)
        if target is None:
            raise h11.RemoteProtocolError("a target that is neither a path nor an http URI")
        if target.host is None:
            return request
        return h11.Request(
            method=request.method,
            target=target.path,
            headers=[*((name, value) for name, value in request.headers if name != b"host"), (b"host", target.host)],
            http_version=request.http_version,
        )


def _check_size(head: bytes) -> None:
    if len(head) > MAX_HEADER_FIELDS and head.count(b"\n") > MAX_HEADER_FIELDS:
        raise h11.RemoteProtocolError("too many header fields", error_status_hint=431)


class _ChunkedReader(ChunkedReader):
    """Refuses trailers that take too long to parse, that say how long the body is, or whose lines do not end with CR
    LF; and heads of chunks that are not of the form of RFC 9112, 7.1, where h11 takes more."""

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if not self._reading_trailer and not self._bytes_in_chunk:
            start = len(self._bytes_to_discard)
            end = buf._data.find(b"\r\n", start)
            if end >= 0 and _CHUNK_LINE.fullmatch(buf._data, start, end) is None:
                raise h11.LocalProtocolError("not the head of a chunk")
        if self._reading_trailer:
            received = bytes(buf)
            end = 0 if received.startswith(b"\r\n") else received.find(b"\r\n\r\n")
            trailers = received if end < 0 else received[: end + 2]
            _check_size(trailers)
            if _ODD_LINES.search(trailers) is not None:
                raise h11.LocalProtocolError("a line that does not end with CR LF, or a folded one")
            if _FRAMING_LINES.search(b"\n" + trailers) is not None:
                raise h11.LocalProtocolError("a trailer that says how long the body is")
        return super().__call__(buf)


class _H11(H11Protocol):
    """Sends the head of an answer together with the first of its body, and refuses what is not HTTP with the error
    envelope.

    Hypercorn makes three writes of every answer, the last one empty, and refuses with an empty body.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connection = _H11Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self.can_read = self._resumption = _Resumption()
        self._head = b""

    async def handle(self, event: Event) -> None:
        await super().handle(event)
        if isinstance(event, Closed):
            await self._resumption.end()  # a reader that is paused behind an answer which nobody will get

    def has_part(self) -> bool:
        """Whether a part of a head has come."""
        return isinstance(self.connection, _H11Connection) and self.connection.has_part()

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self.connection.send(event) or b""
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        # An application that streams sends the first of its body at once.
        if isinstance(event, h11.Response):
            self._head += data
            return
        head, self._head = self._head, b""
        if head and len(data) > _JOINED_WITH_HEAD:
            await self.send(RawData(data=head))
        else:
            data = head + data
        if data:
            await self.send(RawData(data=data))

    async def _send_error_response(self, status_code: int) -> None:
        body, headers = _refusal()
        headers += [(b"connection", b"close"), *self.config.response_headers("h11")]
        # h11 has 501 for transfer codings that it does not know; ours are 500s only for our own mistakes.
        status_code = status_code if status_code < 500 else 400
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())

    async def _check_protocol(self, event: h11.Request) -> None:
        # A CONNECT over HTTP/2 is a WebSocket, and that needs more than an upgrade.
        if event.method == b"CONNECT":
            return
        if any(name == b"upgrade" and value.strip().lower() == b"h2c" for name, value in event.headers) and (
            not _asks_for_http2(event)
        ):
            return  # answered over HTTP/1.1, as the upgrade is nothing that a server has to take
        await super()._check_protocol(event)

    def waits_for_continue(self) -> bool:
        """Return True if the client sends its body only when it is told to (`Expect: 100-continue`)."""
        return isinstance(self.connection, h11.Connection) and self.connection.client_is_waiting_for_100_continue

    async def ask_for_body(self) -> None:
        """Tell a client that waits for it that its body is wanted."""
        if self.waits_for_continue():
            await self._send_h11_event(
                h11.InformationalResponse(status_code=100, headers=self.config.response_headers("h11"))
            )

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        version = request.http_version.decode()
        if not any(name == b"upgrade" for name, _ in headers):
            await super()._create_stream(request)
            return
        if not _opens_websocket(request, version):
            # Hypercorn would refuse it with an empty body; without the upgrade, the gate does so in form.
            headers = [(name, value) for name, value in headers if name != b"upgrade"]
            await super()._create_stream(
                h11.Request(method=request.method, target=request.target, headers=headers, http_version=version)
            )
            return
        self.stream = _WSStream(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        self.connection = H11WSConnection(cast(h11.Connection, self.connection))
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=_without_extensions(headers),
                http_version=version,
                method="GET",
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        await self.context.mark_request()

    async def stream_send(self, event: StreamEvent) -> None:
        stream = self.stream
        if (
            isinstance(event, Data)
            and isinstance(stream, WSStream)
            and stream.connection.state is not ConnectionPhase.OPEN
        ):
            self._connection.stop_direct()  # this is a close: nothing may come after it
        await super().stream_send(event)

    @property
    def _connection(self) -> Connection:
        return cast(Connection, self.connection_state["connection"])

    async def _maybe_recycle(self) -> None:
        """After an answer: the next request, or the end.

        Where no further request is taken, hypercorn would leave a reader that has one in its buffer paused for ever.
        """
        await self._close_stream()
        state = self.connection
        if not self.context.terminated.is_set() and state.our_state is h11.DONE and state.their_state is h11.DONE:
            state.start_next_cycle()
            await self.can_read.set()
            await self.send(Updated(idle=True))
        else:
            await self._resumption.end()
            await self.send(Closed())


def _asks_for_http2(request: h11.Request) -> bool:
    """Return True if an upgrade to h2c has what belongs to it (RFC 7540, 3.2): one HTTP2-Settings that can be decoded,
    and a Connection that names both."""
    fields = dict(request.headers)
    tokens = {token.strip().lower() for token in fields.get(b"connection", b"").split(b",")}
    settings = fields.get(b"http2-settings")
    if settings is None or not {b"upgrade", b"http2-settings"} <= tokens:
        return False
    if _BASE64URL.fullmatch(settings) is None:
        return False
    try:
        h2.connection.H2Connection(h2.config.H2Configuration(client_side=False)).initiate_upgrade_connection(settings)
    except (h2.exceptions.H2Error, HyperframeError, ValueError):
        return False
    return True


_BASE64URL: Final = re.compile(rb"[A-Za-z0-9_-]+={0,2}")


def _are_single(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if no field occurs twice that may be there once."""
    found = [name for name, _ in headers if name in _SINGLE]
    return len(found) == len(set(found))


def _have_valid_host(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return True if what the fields say of the host is one."""
    return all(is_host(value) for name, value in headers if name in (b"host", b":authority"))


def _opens_websocket(request: h11.Request, version: str) -> bool:
    """Whether a request with an upgrade is one that RFC 6455, 4.2.1, allows. Of a field that is not ASCII hypercorn's
    look at it would be the connection's end."""
    names = [name for name, _ in request.headers]
    return (
        request.method == b"GET"
        and b"content-length" not in names
        and b"transfer-encoding" not in names
        and _is_handshake(list(request.headers), version)
    )


def _is_handshake(headers: list[tuple[bytes, bytes]], version: str) -> bool:
    fields = [(name, value) for name, value in headers if name in _HANDSHAKE_FIELDS]
    if not all(value.isascii() and len(value) <= _LONG_FIELD for _, value in fields):
        return False
    if version == "1.1":
        found = dict(fields)
        if b"upgrade" not in found or _WEBSOCKET_KEY.fullmatch(found.get(b"sec-websocket-key", b"")) is None:
            return False  # not 16 bytes in base64 (RFC 6455, 4.2.1)
    return Handshake(headers, version).is_valid()


_HANDSHAKE_FIELDS: Final = frozenset(
    {b"connection", b"upgrade", *(b"sec-websocket-" + name for name in (b"extensions", b"key", b"protocol"))}
)


class _WSStream(WSStream):
    """Answers what is no WebSocket, or no UTF-8, with a close that says so, where hypercorn hangs up; counts the bytes
    of messages, where hypercorn counts characters; and takes them in against the budget of all requests as they come.

    The application gets a message, text as `utf8`, with its `size`, which it gives back, or in place of one that there
    was no room for one that is `refused`. The next one is not taken in before it asks for it (`take_next_message`):
    what a client sends that reads no answers waits in the client, and not in the memory of all.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._message = MessageBuffer()
        self._size = 0
        """Of the message that has begun."""
        self._held = 0
        """Of that, taken in."""
        self._refused = False
        """There was no room for it."""
        self._may_take = trio.Event()
        self._may_take.set()
        self._began = self._seen = 0.0
        """When the first and the last of it came."""
        self._decided = trio.Event()
        """Whether it is accepted has been said."""

    async def handle(self, event: StreamEvent) -> None:
        if isinstance(event, Body | Data) and not self.closed:
            # Hypercorn would take what comes before the answer for a reason to refuse, behind the application's back.
            await self._decided.wait()
            if self.state is not ASGIWebsocketState.CONNECTED or self.connection.state is ConnectionPhase.CLOSED:
                return
        try:
            await super().handle(event)
        except trio.BrokenResourceError:
            pass  # the application has ended (`stop_receiving`)
        finally:
            if isinstance(event, StreamClosed):
                self._forget()

    def is_late(self, now: float) -> bool:
        """Whether a message has begun whose rest should have come by now."""
        if not self._size:
            return False
        in_all = max(BODY_GRACE_S, self._size / BODY_BYTES_PER_S)
        return now - self._seen > BODY_IDLE_S or now - self._began > in_all

    def take_next(self) -> None:
        """The application has carried out what it was given."""
        self._may_take.set()

    @property
    def _connection(self) -> Connection:
        return cast(Connection, self.scope["state"]["connection"])

    def _forget(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._connection.give_back(held)

    async def _take_in(self, event: Message[Any]) -> None:
        """A message or a part of one that is not too large."""
        size = _bytes_of(event)
        if not self._size:
            await self._may_take.wait()
            self._began = trio.current_time()
        self._seen = trio.current_time()
        self._size += size
        if self._refused or (size and not await self._connection.hold(size)):
            self._refused = True
            self._message.clear()
            self._forget()
        else:
            self._held += size
            self._message.extend(event)
        if not event.message_finished:
            return
        message: Any = {"type": "websocket.receive", "refused": True}
        if not self._refused:
            content, is_text = self._message.take()
            message = {"type": "websocket.receive", "utf8" if is_text else "bytes": content, "size": self._held}
        self._message.clear()
        held, self._size, self._held, self._refused = self._held, 0, 0, False
        self._may_take = trio.Event()
        assert self.app_put is not None
        try:
            await self.app_put(message)
        except BaseException:
            self._connection.give_back(held)
            raise

    async def app_send(self, message: Any) -> None:
        try:
            # A refusal may have to wait for the client's window, and the reader must not wait for a refusal.
            if message is None or message["type"] != "websocket.accept":
                self._decided.set()
            if message is None:
                self._may_take.set()  # the application has ended
            await super().app_send(message)
        finally:
            self._decided.set()

    async def _handle_events(self) -> None:
        for number, event in enumerate(self.connection.events(), 1):
            # A read may hold ten thousand frames.
            if number % _EVENTS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
                if self.closed:
                    return
            if isinstance(event, Message):
                if self._size + _bytes_of(event) > self.config.websocket_max_message_size:
                    await self._send_wsproto_event(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
                    await self.send(StreamClosed(stream_id=self.stream_id))
                    return
                await self._take_in(event)
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionPhase.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                elif self.connection.state is ConnectionPhase.OPEN:
                    await self._send_wsproto_event(CloseConnection(code=event.code))  # it could not be parsed
                await self.send(StreamClosed(stream_id=self.stream_id))


def _bytes_of(event: Message[Any]) -> int:
    return len(event.data.encode()) if isinstance(event.data, str) else len(event.data)


def take_next_message(send: Any) -> None:
    """The application of a WebSocket wants another message; `send` is what it was given."""
    stream = send.__self__
    assert isinstance(stream, _WSStream)
    stream.take_next()


def message_is_late(send: Any) -> bool:
    """Whether the peer of a WebSocket takes too long over a message; `send` is what its application was given."""
    stream = send.__self__
    assert isinstance(stream, _WSStream)
    return stream.is_late(trio.current_time())


async def send_ping(send: Any) -> None:
    """Ping the peer of a WebSocket; `send` is what its application was given.

    ASGI has no message for it, and hypercorn's own pings come from a task that outlives the socket by an interval,
    which would hold up a drain.
    """
    stream = send.__self__
    assert isinstance(stream, WSStream)
    await stream._send_wsproto_event(Ping())


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
    return protocol.bytes_of_unfinished_frame(stream.stream_id) if isinstance(protocol, _H2) else 0


async def cut_off(send: Any, connection: Connection) -> None:
    """Give up a request whose client is too slow: an HTTP/2 stream is reset, any other connection dropped."""
    stream = send.__self__
    assert isinstance(stream, HTTPStream)
    if isinstance(getattr(stream.send, "__self__", None), _H2):
        with connection.answering(0):  # it may be as slow in reading this
            await stream.send(StreamClosed(stream_id=stream.stream_id))
    else:
        connection.abort()


async def ask_for_body(send: Any) -> None:
    """A request's body is wanted: a client that waits for 100 Continue gets it; `send` is what the application was
    given."""
    protocol = _protocol_of(send)
    if isinstance(protocol, _H11):
        await protocol.ask_for_body()


def waits_for_continue(send: Any) -> bool:
    """Return True if the client of a request sends its body only when it is told to."""
    protocol = _protocol_of(send)
    return isinstance(protocol, _H11) and protocol.waits_for_continue()


def _protocol_of(send: Any) -> object:
    return getattr(getattr(getattr(send, "__self__", None), "send", None), "__self__", None)


def was_cut_off(send: Any, connection: Connection) -> bool:
    """Return True if an answer is known not to have been sent to its end; `send` is what its application was given."""
    protocol = _protocol_of(send)
    return connection.is_broken or (isinstance(protocol, _H2) and send.__self__ in protocol.cut_off)


def _without_extensions(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a request for a WebSocket without the offer to compress.

    Hypercorn takes every offer, which costs 300 KiB and a deflate of every message for each socket.
    """
    return [(name, value) for name, value in headers if name.lower() != b"sec-websocket-extensions"]


class NoMoreRequests(Exception):
    """Tells the reader of a connection that whatever it has buffered will not be looked at."""


class _Resumption(EventWrapper):
    """What a reader waits for when a request has come before the answer to the one before it is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    async def wait(self) -> None:
        """Wait until the next request may be read. Raises `NoMoreRequests` when none will be."""
        if not self._ended:
            await super().wait()
        if self._ended:
            raise NoMoreRequests

    async def end(self) -> None:
        """No further request is read."""
        self._ended = True
        await self.set()


class _H2(H2Protocol):
    """Keeps promises that hypercorn or h2 break: headers of 128 KiB (h2 takes the announced size as agreed only after a
    change), thousands of streams, and a connection that survives body data which arrives after the answer (a KeyError).
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        local_settings = self.connection.local_settings
        self.connection = _H2Connection(self.connection.config)
        self.connection.local_settings = local_settings
        self.connection.decoder = _Decoder(MAX_HEADER_BYTES)
        self._incoming = _FrameBuffer(server=True)
        self._incoming.max_frame_size = self.connection.max_inbound_frame_size
        self.connection.incoming_buffer = self._incoming
        self.priority = _RoundRobin()  # type: ignore[assignment]
        cast(Connection, self.connection_state["connection"]).progress = self._data_sent
        self.cut_off: WeakSet[HTTPStream | WSStream] = WeakSet()
        """Streams that ended before their answers did."""
        self._reader: trio.lowlevel.Task | None = None
        """The task that reads the connection."""

    def has_part(self) -> bool:
        """Whether a part of the preface, of a frame or of a block of headers has come."""
        return self._incoming.has_part()

    def bytes_of_unfinished_frame(self, stream_id: int) -> int:
        """How much has come of a frame with a stream's body."""
        return self._incoming.bytes_of_unfinished_frame(stream_id)

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData):
            self._reader = trio.lowlevel.current_task()
        if not isinstance(event, RawData) or len(event.data) <= H2_SLICE:
            await super().handle(event)
            return
        start = 0
        while start < len(event.data) and not self.closed:
            end = start + max(H2_SLICE, self._incoming.missing())
            await super().handle(RawData(data=event.data[start:end]))
            await trio.lowlevel.checkpoint()
            start = end

    def _data_sent(self) -> int:
        assert isinstance(self.connection, _H2Connection)
        return self.connection.data_sent

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        connection = cast(Connection, self.connection_state["connection"])
        if connection.is_full():
            with suppress(h2.exceptions.ProtocolError):
                self.connection.reset_stream(request.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            await self._flush()
            return
        if not _is_well_formed(request.headers):
            await self._refuse(request.stream_id)
            return
        request.headers = _without_extensions(request.headers)
        connection.has_streams(len(self.streams) + 1)
        await super()._create_stream(request)

    async def _refuse(self, stream_id: int) -> None:
        """Answer what hypercorn would fail on, or refuse with an empty body."""
        body, headers = _refusal()
        with suppress(h2.exceptions.ProtocolError):
            self.connection.send_headers(stream_id, [(b":status", b"400"), *headers])
            self.connection.send_data(stream_id, body, end_stream=True)
        with suppress(h2.exceptions.ProtocolError):  # it has ended by now, unless a body or a window is missing
            self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)
        await self._flush()

    async def stream_send(self, event: StreamEvent) -> None:
        """An answer that its application has left unfinished ends in a reset, or the client would wait for the rest. A
        long one is handed over in pieces, each when the one before it has been sent.

        Hypercorn would copy it whole. It means to wait for the reader, but where the window is closed it takes nothing
        out of the stream's buffer, finds that little was taken, and asks for more.
        """
        buffer = self.stream_buffers.get(event.stream_id)
        if isinstance(event, Body | Data):
            data = memoryview(event.data)
            for start in range(0, len(data), COPIED_BYTES):
                piece = cast(bytes, data[start : start + COPIED_BYTES])
                await super().stream_send(type(event)(stream_id=event.stream_id, data=piece))
                if buffer is not None and len(buffer.buffer) >= BUFFER_HIGH_WATER:
                    await self._until_sent(buffer)
            return
        if isinstance(event, StreamClosed) and buffer is not None and not buffer._complete:
            await buffer.close()
            with suppress(h2.exceptions.ProtocolError):
                self.connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.CANCEL)
            await self._flush()
        await super().stream_send(event)

    async def _until_sent(self, buffer: StreamBuffer) -> None:
        """Wait until the reader of a stream has taken what was given to it. Whoever reads the connection must not wait
        for that: the reader's window is opened by what it reads. It sends pongs, and to a peer that pings and takes
        none of them it sends no more."""
        if trio.lowlevel.current_task() is not self._reader:
            await buffer.drain()
        elif len(buffer.buffer) > MOST_PONG_BYTES:
            cast(Connection, self.connection_state["connection"]).abort()

    async def _close_stream(self, stream_id: int) -> None:
        stream = self.streams.get(stream_id)
        if isinstance(stream, HTTPStream) and stream.state is not ASGIHTTPState.CLOSED:
            self.cut_off.add(stream)
        try:
            await super()._close_stream(stream_id)
        finally:
            cast(Connection, self.connection_state["connection"]).has_streams(len(self.streams))

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        has_grown = False
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                # Its share of the connection's window goes back, or the other streams would starve.
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.WindowUpdated) and not event.stream_id:
                has_grown = True  # every stream is looked at, which for each frame of a flood would take too long
            else:
                await super()._handle_events([event])
        if has_grown:
            await self._window_updated(None)
        await self._flush()


class _H2Connection(h2.connection.H2Connection):
    """Counts its streams, which h2 does by looking at all of them, only when it might matter."""

    _counted = 0
    data_sent = 0
    """Bytes of bodies, of all streams."""

    def send_data(
        self, stream_id: int, data: bytes | memoryview, end_stream: bool = False, pad_length: int | None = None
    ) -> None:
        super().send_data(stream_id, data, end_stream, pad_length)
        self.data_sent += len(data)

    @property
    def open_inbound_streams(self) -> int:
        """At least the number of open streams, and exact near the limit. Counting also forgets closed streams."""
        known = len(self.streams)
        if known >= min(2 * self._counted + 100, MAX_STREAMS):
            known = self._counted = super().open_inbound_streams
        return known


def _is_well_formed(headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether a request has a method and a path of characters that they may have, and opens, if it is a CONNECT, a
    WebSocket (RFC 8441). h2 has looked at everything else."""
    fields = dict(headers)
    method = fields.get(b":method", b"")
    if method != method.upper() or not _are_single(headers) or not _have_valid_host(headers):
        return False
    if method == b"CONNECT" and (fields.get(b":protocol") != b"websocket" or not _is_handshake(headers, "2")):
        return False
    return _TOKEN.fullmatch(method) is not None and _TARGET.fullmatch(fields.get(b":path", b"")) is not None


_FRAME_HEAD: Final = 9  # bytes: length, type, flags, stream (RFC 9113, 4.1)


class _Decoder(Decoder):
    """Refuses blocks of too many fields, where hpack looks at their bytes alone."""

    _instructions = 0

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        self._instructions = 0
        return super().decode(data, raw)

    def _count(self) -> None:
        self._instructions += 1
        if self._instructions > MAX_HEADER_FIELDS:
            raise OversizedHeaderListError("too many header fields")

    def _decode_indexed(self, data: bytes | memoryview) -> tuple[HeaderTuple, int]:
        self._count()
        return super()._decode_indexed(data)

    def _decode_literal(self, data: bytes | memoryview, should_index: bool) -> tuple[HeaderTuple, int]:
        self._count()
        return super()._decode_literal(data, should_index)

    def _update_encoding_context(self, data: bytes | memoryview) -> int:
        self._count()
        return super()._update_encoding_context(data)


class _FrameBuffer(FrameBuffer):
    """Refuses a frame that is too long by its header, where h2 looks when it has all of it, up to 16 MiB later; and a
    block of headers that is too long, where h2 counts its parts."""

    def has_part(self) -> bool:
        return bool(self._preamble_len or self._data or self._headers_buffer)

    def missing(self) -> int:
        """How many bytes the frame that has begun still lacks."""
        if len(self._data) < _FRAME_HEAD:
            return 0
        return max(0, _FRAME_HEAD + int.from_bytes(self._data[:3], "big") - len(self._data))

    def bytes_of_unfinished_frame(self, stream_id: int) -> int:
        head = self._data[:_FRAME_HEAD]
        if len(head) < _FRAME_HEAD or head[3] != DataFrame.type or int.from_bytes(head[5:], "big") != stream_id:
            return 0
        return len(self._data) - _FRAME_HEAD

    def _update_header_buffer(self, f: Frame | None) -> Frame | None:
        frame = super()._update_header_buffer(f)
        if sum(len(part.data) for part in self._headers_buffer) > MAX_HEADER_BYTES:
            raise h2.exceptions.ProtocolError("the header block is too long")
        return frame

    def __next__(self) -> Frame:
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        return super().__next__()


class _RoundRobin:
    """Which stream sends next: each that has something in turn, in the place of a `PriorityTree`.

    That takes 1000 streams at most and rebuilds a heap of all of them whenever one ends (a second of the loop for every
    ten at 10,000). Priorities are deprecated (RFC 9113, 5.3); what clients say about them is not remembered.
    """

    def __init__(self) -> None:
        self._ready: dict[int, None] = {}
        self._known: set[int] = set()

    def __next__(self) -> int:
        if not self._ready:
            raise DeadlockError
        stream_id = next(iter(self._ready))
        del self._ready[stream_id]
        self._ready[stream_id] = None
        return stream_id

    def insert_stream(self, stream_id: int) -> None:
        """A new stream, ready."""
        self._known.add(stream_id)
        self._ready[stream_id] = None

    def reprioritize(self, stream_id: int, **_wishes: object) -> None:
        """Nothing comes of it."""

    def block(self, stream_id: int) -> None:
        """The stream has nothing to send, or no window."""
        self._ready.pop(stream_id, None)

    def unblock(self, stream_id: int) -> None:
        """The stream may have something to send."""
        if stream_id not in self._known:
            raise MissingStreamError
        self._ready[stream_id] = None

    def remove_stream(self, stream_id: int) -> None:
        """The stream is over."""
        self._known.discard(stream_id)
        self._ready.pop(stream_id, None)
