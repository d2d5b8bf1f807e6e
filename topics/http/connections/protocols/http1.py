"""HTTP/1.1: hypercorn's protocol and h11's connection, corrected. h11 accepts requests in which two servers may see
different ends of the body; hypercorn leaks a reader that waits for the end of an answer.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Data, Request
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import (
    STREAM_ID,
    H11Protocol,
    H11WSConnection,
)
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.worker_context import EventWrapper
from hypercorn.typing import H11SendableEvent
from hyperframe.exceptions import HyperframeError
from wsproto.connection import ConnectionState as ConnectionPhase

from topics.http.connections.connection import Connection
from topics.http.connections.hosts import read_target
from topics.http.connections.protocols.request_checks import (
    LONG_FIELD,
    MAX_HEADER_BYTES,
    MAX_HEADER_FIELDS,
    are_single,
    have_valid_host,
    opens_websocket,
    without_extensions,
)
from topics.http.connections.protocols.websocket_stream import WebSocketStream
from topics.http.connections.refusals import refusal_of_no_http

# Up to this length a body is copied behind its head, so that both are sent with one call.
_JOINED_WITH_HEAD: Final = 64 << 10

_LONG_CONNECTION_FIELD: Final = re.compile(
    rb"\n(?:connection|content-length|expect|host|te|transfer-encoding|upgrade|sec-websocket-[a-z]+)[ \t]*:[^\n]{%d}"
    % LONG_FIELD,
    re.IGNORECASE,
)

# Servers differ in their reading of a length in a list, of two lengths, and of a coding with white space behind it.
# Only complete lines are looked at, because a head may come in any parts.
_FRAMING_LINES: Final = re.compile(rb"\n(content-length|transfer-encoding)[ \t]*:([^\r]*)\r", re.IGNORECASE)

_FRAMING_VALUES: Final = {
    b"c": re.compile(rb"[ \t]*[0-9]+[ \t]*"),
    b"t": re.compile(rb"[ \t]*chunked", re.IGNORECASE),
}

_CHUNK_LINE: Final = re.compile(
    rb"[0-9A-Fa-f]{1,16}(?:;[!#$%&'*+.^_`|~0-9A-Za-z-]+"
    rb"(?:=(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+|\"(?:[\t \x21\x23-\x5b\x5d-\x7e]|\\[\t -~])*\"))?)*"
)

_ODD_LINES: Final = re.compile(rb"(?<!\r)\n|\r[^\n]|\n[ \t]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

_FRAMING_FIELDS: Final = frozenset({b"content-length", b"transfer-encoding"})


class Http1Connection(h11.Connection):
    """Refuses requests that h11 accepts: those whose body may end in different places for different servers, unknown
    versions, and heads that take too long to parse. Raises h11.RemoteProtocolError for them."""

    is_head = False
    """True if the answer to the present request has no body: its method is HEAD."""

    def has_part(self) -> bool:
        """Return True if there is input that is no complete event yet."""
        return len(self._receive_buffer) > 0

    @property
    def they_are_waiting_for_100_continue(self) -> bool:
        """Always False for hypercorn, which would else send `100 Continue` before the gate has seen the request
        (`Http1.ask_for_body` sends it)."""
        return False

    def next_event(self) -> Any:
        """The next event, or h11.NEED_DATA or h11.PAUSED."""
        if self.their_state is h11.IDLE:
            self.is_head = False
            if not self._at_head():
                return h11.NEED_DATA
            self._check_lines(self.trailing_data[0])
        elif self.their_state is h11.MUST_CLOSE:
            # Nothing is read behind the last request. h11 would refuse it, and hypercorn would answer that instead of
            # the request, which may have been carried out.
            return h11.PAUSED
        try:
            event = super().next_event()
        except ValueError:
            # Python does not convert a length of thousands of digits. h11's own errors are no ValueErrors.
            raise h11.RemoteProtocolError("bad Content-Length") from None
        if type(event) is h11.Request:
            self._may_skip_line = True
            self.is_head = event.method == b"HEAD"
            self._check(event)
            event = self._with_host_of_target(event)
            if type(self._reader) is ChunkedReader:
                self._reader = StrictChunkedReader()
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
        """Refuse heads in which another server on the way might see other lines: with a lone line feed or carriage
        return, a folded field, or a control character; and heads that take too long to parse."""
        end = received.find(b"\r\n\r\n")
        head = received if end < 0 else received[: end + 4]
        _check_size(head)
        if _ODD_LINES.search(head) is not None:
            raise h11.RemoteProtocolError("a line that does not end with CR LF, a folded one, or a control character")
        for number, (name, value) in enumerate(_FRAMING_LINES.findall(head)):
            if number or _FRAMING_VALUES[name[:1].lower()].fullmatch(value) is None:
                raise h11.RemoteProtocolError("more than one idea of where the body ends, or an odd one")
        if len(head) > LONG_FIELD and _LONG_CONNECTION_FIELD.search(head) is not None:
            raise h11.RemoteProtocolError("a field of the connection is too long", error_status_hint=431)

    @staticmethod
    def _check(request: h11.Request) -> None:
        """Refuse a request that two servers on the way might read differently: it may be an attempt to smuggle a
        request past the first (RFC 9112, 6.1 and 11.2). Methods are case-sensitive, and all known ones are in upper
        case."""
        version = request.http_version
        if version not in (b"1.1", b"1.0") and (version, request.method, request.target) != (b"2.0", b"PRI", b"*"):
            raise h11.RemoteProtocolError("unknown HTTP version")
        framing = {name for name, _ in request.headers if name in _FRAMING_FIELDS}
        if b"transfer-encoding" in framing and (len(framing) > 1 or version == b"1.0"):
            raise h11.RemoteProtocolError("Transfer-Encoding with Content-Length, or in HTTP/1.0")
        if request.method != request.method.upper():
            raise h11.RemoteProtocolError("methods are in upper case")
        if not are_single(request.headers):
            raise h11.RemoteProtocolError("a field that may be there only once is there twice")
        if not have_valid_host(request.headers):
            raise h11.RemoteProtocolError("Host is not a valid host")

    @staticmethod
    def _with_host_of_target(request: h11.Request) -> h11.Request:
        """The request with an absolute target replaced by its path, and `Host` by the target's host (RFC 9112,
        3.2.2)."""
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


class StrictChunkedReader(ChunkedReader):
    """Refuses trailers that take too long to parse, that contain a length or a transfer coding, or whose lines do not
    end with CR LF. Refuses heads of chunks that are not of the form of RFC 9112, 7.1; h11 accepts more."""

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


class Http1(H11Protocol):
    """Sends the head of an answer together with the beginning of its body, where hypercorn writes three times, the last
    time nothing. Answers input that is not HTTP with the error envelope, where hypercorn sends an empty body."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.connection = Http1Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        self.can_read = self._resumption = Resumption(self._connection)
        self._head = b""

    async def handle(self, event: Event) -> None:
        """Take an event of the connection. Raises NoMoreRequests if no further request will be read."""
        await super().handle(event)
        if isinstance(event, Closed):
            await self._resumption.end()  # the reader may wait for the end of an answer that will not be sent

    def has_part(self) -> bool:
        """Return True if a part of a head has come."""
        return isinstance(self.connection, Http1Connection) and self.connection.has_part()

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self.connection.send(event) or b""
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        # The head waits for the beginning of the body, which follows at once, or for `send_head`.
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

    async def send_head(self) -> None:
        """Send the head of an answer that has begun, if it has not been sent."""
        head, self._head = self._head, b""
        if head:
            await self.send(RawData(data=head))

    async def _send_error_response(self, status_code: int) -> None:
        body, headers = refusal_of_no_http()
        headers += [(b"connection", b"close"), *self.config.response_headers("h11")]
        # h11 suggests 501 for an unknown transfer coding. The daemon answers 5xx only for its own failures.
        status_code = status_code if status_code < 500 else 400
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        if not (isinstance(self.connection, Http1Connection) and self.connection.is_head):
            await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())

    async def _check_protocol(self, event: h11.Request) -> None:
        # Over HTTP/2 a CONNECT opens a WebSocket; over HTTP/1.1 it is an ordinary, unknown method.
        if event.method == b"CONNECT":
            return
        if any(name == b"upgrade" and value.strip().lower() == b"h2c" for name, value in event.headers) and (
            not asks_for_http2(event)
        ):
            return  # answered over HTTP/1.1: no server has to accept an upgrade
        await super()._check_protocol(event)

    def waits_for_continue(self) -> bool:
        """Return True if the client waits for `100 Continue` before it sends its body (`Expect: 100-continue`)."""
        return isinstance(self.connection, h11.Connection) and self.connection.client_is_waiting_for_100_continue

    async def ask_for_body(self) -> None:
        """Send `100 Continue` if the client waits for it."""
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
        if not opens_websocket(request, version):
            # Hypercorn would refuse it with an empty body. Without the upgrade field, the gate answers it.
            headers = [(name, value) for name, value in headers if name != b"upgrade"]
            await super()._create_stream(
                h11.Request(method=request.method, target=request.target, headers=headers, http_version=version)
            )
            return
        self.stream = WebSocketStream(
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
                headers=without_extensions(headers),
                http_version=version,
                method="GET",
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        await self.context.mark_request()

    async def stream_send(self, event: StreamEvent) -> None:
        """Send what a stream gives."""
        stream = self.stream
        if (
            isinstance(event, Data)
            and isinstance(stream, WSStream)
            and stream.connection.state is not ConnectionPhase.OPEN
        ):
            self._connection.stop_direct()  # this is the close frame: nothing may follow it
        await super().stream_send(event)

    @property
    def _connection(self) -> Connection:
        return cast(Connection, self.connection_state["connection"])

    def unused_input(self) -> bytes:
        """The input behind the request that was answered."""
        assert isinstance(self.connection, h11.Connection)
        return self.connection.trailing_data[0]

    async def _maybe_recycle(self) -> None:
        """After an answer: let the lane go on, read the next request, or close the connection.

        If no further request is read, hypercorn would leave the reader waiting for ever if it has one in its buffer.
        """
        await self._close_stream()
        state = self.connection
        if not self.context.terminated.is_set() and state.our_state is h11.DONE and state.their_state is h11.DONE:
            if self._connection.go_back():
                await self._resumption.end()
                return
            state.start_next_cycle()
            await self.can_read.set()
            await self.send(Updated(idle=True))
        else:
            await self._resumption.end()
            await self.send(Closed())


def asks_for_http2(request: h11.Request) -> bool:
    """Return True if an upgrade to h2c is valid (RFC 7540, 3.2): it has one HTTP2-Settings that can be decoded, and a
    Connection field that names both."""
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


class NoMoreRequests(Exception):
    """No further request will be read from the connection; its buffered input is dropped."""


class Resumption(EventWrapper):
    """The event that a reader waits for if a request has come before the answer to the last one is complete."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._ended = False

    async def wait(self) -> None:
        """Wait until the next request may be read. Raises `NoMoreRequests` when none will be."""
        if not self._ended:
            with self._connection.paused():
                await super().wait()
        if self._ended:
            raise NoMoreRequests

    async def end(self) -> None:
        """End every wait with `NoMoreRequests`, now and later."""
        self._ended = True
        await self.set()
