"""HTTP/2: hypercorn's protocol and h2's connection, with bounds on heads, on streams and on unread answers."""

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
import trio
from h2.frame_buffer import FrameBuffer
from hpack.exceptions import OversizedHeaderListError
from hpack.hpack import Decoder
from hpack.struct import HeaderTuple
from hypercorn.events import Event, RawData
from hypercorn.protocol.events import Body, Data, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, H2Protocol, StreamBuffer
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.protocol.ws_stream import WSStream
from hyperframe.frame import DataFrame, Frame
from priority.priority import DeadlockError, MissingStreamError

from topics.http.connections.connection import Connection
from topics.http.connections.protocols.request_checks import (
    MAX_HEADER_BYTES,
    MAX_HEADER_FIELDS,
    TARGET,
    are_single,
    have_valid_host,
    is_handshake,
    without_extensions,
)
from topics.http.connections.refusals import refusal_of_no_http
from topics.http.connections.unsent_bytes import COPIED_BYTES

# Open streams of a connection; 10,000 are promised.
MAX_STREAMS: Final = 12_000

# Bytes of small frames that h2 is given before other tasks have a turn. A small frame takes up to 70 us, a head of
# references to long fields (50 bytes that stand for 160 KB) 3 ms.
H2_SLICE: Final = 256

# Bytes that may wait in the buffer of an HTTP/2 stream before a pong is added.
MOST_PONG_BYTES: Final = 256 << 10

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Http2(H2Protocol):
    """Allows headers of 128 KiB (h2 applies the announced size only after a change of it) and thousands of streams, and
    survives body data that comes after the answer (hypercorn raises a KeyError)."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        local_settings = self.connection.local_settings
        self.connection = Http2Connection(self.connection.config)
        self.connection.local_settings = local_settings
        self.connection.decoder = CountingDecoder(MAX_HEADER_BYTES)
        self._incoming = FrameParts(server=True)
        self._incoming.max_frame_size = self.connection.max_inbound_frame_size
        self.connection.incoming_buffer = self._incoming
        self.priority = RoundRobin()  # type: ignore[assignment]
        cast(Connection, self.connection_state["connection"]).progress = self._data_sent
        self.cut_off: WeakSet[HTTPStream | WSStream] = WeakSet()
        """Streams that ended before their answers were complete."""
        self._reader: trio.lowlevel.Task | None = None
        """The task that reads the connection."""

    def has_part(self) -> bool:
        """Return True if a part of the preface, of a frame or of a block of headers has come."""
        return self._incoming.has_part()

    def bytes_of_unfinished_frame(self, stream_id: int) -> int:
        """How many bytes have come of an incomplete frame with the body of a stream."""
        return self._incoming.bytes_of_unfinished_frame(stream_id)

    async def handle(self, event: Event) -> None:
        """Take an event of the connection. Much data is handled in slices, and other tasks run between them."""
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
        assert isinstance(self.connection, Http2Connection)
        return self.connection.data_sent

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        connection = cast(Connection, self.connection_state["connection"])
        if connection.is_full():
            with suppress(h2.exceptions.ProtocolError):
                self.connection.reset_stream(request.stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            await self._flush()
            return
        if not is_well_formed(request.headers):
            await self._refuse(request.stream_id)
            return
        request.headers = without_extensions(request.headers)
        connection.has_streams(len(self.streams) + 1)
        await super()._create_stream(request)

    async def _refuse(self, stream_id: int) -> None:
        """Answer a malformed request with the error envelope. Hypercorn would fail, or send an empty body."""
        body, headers = refusal_of_no_http()
        with suppress(h2.exceptions.ProtocolError):
            self.connection.send_headers(stream_id, [(b":status", b"400"), *headers])
            self.connection.send_data(stream_id, body, end_stream=True)
        with suppress(h2.exceptions.ProtocolError):  # the stream has ended, unless its body or the window is incomplete
            self.connection.reset_stream(stream_id, h2.errors.ErrorCodes.NO_ERROR)
        await self._flush()

    async def stream_send(self, event: StreamEvent) -> None:
        """Send what a stream gives. A long answer is given to hypercorn in pieces, each when the one before it has been
        sent. An answer that its handler has left unfinished ends in a reset, or the client would wait for the rest.

        Hypercorn would copy a long answer whole: its own wait for the reader does not work while the window is closed.
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
        """Wait until the buffer of a stream has been sent.

        The task that reads the connection must not wait for that, because frames that it reads open the window. It
        sends pongs only; a peer that pings and does not read the pongs loses its connection.
        """
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
                # Give its bytes back to the window of the connection, or the other streams would starve.
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.WindowUpdated) and not event.stream_id:
                has_grown = True  # done once below: it looks at every stream, which is too slow for each of many frames
            else:
                await super()._handle_events([event])
        if has_grown:
            await self._window_updated(None)
        await self._flush()


class Http2Connection(h2.connection.H2Connection):
    """Counts its streams only near the limit, because h2 counts them by looking at all of them."""

    _counted = 0
    data_sent = 0
    """Bytes of bodies that have been sent, on all streams."""

    def send_data(
        self, stream_id: int, data: bytes | memoryview, end_stream: bool = False, pad_length: int | None = None
    ) -> None:
        """Send a part of a body, and count its bytes."""
        super().send_data(stream_id, data, end_stream, pad_length)
        self.data_sent += len(data)

    @property
    def open_inbound_streams(self) -> int:
        """The number of open streams: never too small, and exact near the limit. Counting also removes closed
        streams."""
        known = len(self.streams)
        if known >= min(2 * self._counted + 100, MAX_STREAMS):
            known = self._counted = super().open_inbound_streams
        return known


def is_well_formed(headers: list[tuple[bytes, bytes]]) -> bool:
    """Return True if a request has a valid method, path and host, no field twice that may be there only once, and, if
    it is a CONNECT, opens a WebSocket (RFC 8441). h2 has checked everything else."""
    fields = dict(headers)
    method = fields.get(b":method", b"")
    if method != method.upper() or not are_single(headers) or not have_valid_host(headers):
        return False
    if method == b"CONNECT" and (fields.get(b":protocol") != b"websocket" or not is_handshake(headers, "2")):
        return False
    return _TOKEN.fullmatch(method) is not None and TARGET.fullmatch(fields.get(b":path", b"")) is not None


_FRAME_HEAD: Final = 9  # bytes: length, type, flags, stream (RFC 9113, 4.1)


class CountingDecoder(Decoder):
    """Refuses blocks of too many fields; hpack limits only their bytes."""

    _instructions = 0

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        """The fields of a block of headers. Raises OversizedHeaderListError."""
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


class FrameParts(FrameBuffer):
    """Refuses a frame that is too long as soon as its header is there; h2 would first collect up to 16 MiB of it. Also
    refuses a block of headers that is too long; h2 counts only the frames of the block."""

    def has_part(self) -> bool:
        """Return True if a part of the preface, of a frame or of a block of headers has come."""
        return bool(self._preamble_len or self._data or self._headers_buffer)

    def missing(self) -> int:
        """How many bytes are missing of the frame that has begun; 0 if its header is incomplete."""
        if len(self._data) < _FRAME_HEAD:
            return 0
        return max(0, _FRAME_HEAD + int.from_bytes(self._data[:3], "big") - len(self._data))

    def bytes_of_unfinished_frame(self, stream_id: int) -> int:
        """How many bytes have come of an incomplete frame with the body of this stream."""
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


class RoundRobin:
    """Which stream sends next: each that has something to send, in turn. It replaces the `PriorityTree` of the library
    `priority`.

    A PriorityTree has at most 1000 streams, and rebuilds a heap of all of them whenever one ends (a second of the loop
    for every ten of 10,000). Priorities are deprecated (RFC 9113, 5.3); those that clients send are ignored.
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
        """Add a stream that may send."""
        self._known.add(stream_id)
        self._ready[stream_id] = None

    def reprioritize(self, stream_id: int, **_wishes: object) -> None:
        """Ignore a priority."""

    def block(self, stream_id: int) -> None:
        """Skip a stream that has nothing to send, or no window."""
        self._ready.pop(stream_id, None)

    def unblock(self, stream_id: int) -> None:
        """Let a stream send again. Raises MissingStreamError for an unknown one."""
        if stream_id not in self._known:
            raise MissingStreamError
        self._ready[stream_id] = None

    def remove_stream(self, stream_id: int) -> None:
        """Remove a stream that has ended."""
        self._known.discard(stream_id)
        self._ready.pop(stream_id, None)
