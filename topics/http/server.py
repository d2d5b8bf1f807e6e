"""Hypercorn on our own sockets: listening, connections, drain. What an HTTP request means is the gate's business.

Hypercorn is used for its protocols (h11, h2, WebSocket) and not for its process: `serve` accepts by itself, so that

- one connection's failure is that connection's end, logged, and never the daemon's;
- a connection can be dropped at once (`Connection.abort`), which is the only cure for a peer that does not read,
  because hypercorn shields its sends from cancellation;
- a drain has two steps, `Server.stop_accepting` and, at the deadline, `Server.abort_all`.

Where hypercorn 0.18 falls short of `api.md` section 1 or leaks, a subclass here says so and why. Nothing is patched in
place.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import math
import os
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, cast

import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h11
import msgspec
import trio
from h2.frame_buffer import FrameBuffer
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.events import Data, Request, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import (
    STREAM_ID,
    H2CProtocolRequiredError,
    H2ProtocolAssumedError,
    H11Protocol,
    H11WSConnection,
)
from hypercorn.protocol.ws_stream import Handshake, WSStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState, H11SendableEvent
from hypercorn.utils import parse_socket_addr
from hyperframe.frame import Frame
from priority.priority import DeadlockError, MissingStreamError
from wsproto.connection import ConnectionState as ConnectionPhase
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from topics.config import Settings
from topics.logs import get_logger

log = get_logger(__name__)

BACKLOG: Final = 4096

# A peer that vanished is noticed within 30 s: idle ones by 10 + 3 * 5 s of probes, ones that are being sent to by the
# user timeout.
KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_COUNT: Final = 3
USER_TIMEOUT_MS: Final = 25_000
# On a stream, one that is connected and does not read is dealt with by the stream (`topics.watching.outbox`), which
# wants to tell it so; the kernel counts a closed window like a peer that vanished.
STREAM_USER_TIMEOUT_MS: Final = 40_000

# Request headers up to 128 KiB are promised; the request line, and what h2 adds for each field, come on top.
MAX_HEADER_BYTES: Final = (128 + 64) << 10
MAX_STREAMS: Final = 100_000
KEEP_ALIVE_S: Final = 75
# A connection that is closed for what was sent on it is read on for so long, so that the refusal arrives.
LINGER_S: Final = 1.0
LINGER_READS: Final = 64
# Events a request may have waiting before its connection is not read any more: up to 256 KiB each, outside the budget
# of bodies.
QUEUED_EVENTS: Final = 4

# `tcpi_bytes_acked` in the kernel's `struct tcp_info` (Linux 4.1 and later).
_TCP_INFO_BYTES: Final = 192
_BYTES_ACKED: Final = slice(120, 128)

# How many bytes a socket has not sent yet (Linux's linux/sockios.h), and up to how many it is given more.
_SIOCOUTQNSD: Final = 0x894B
_DIRECT_UNSENT: Final = 16 << 10

READ_BYTES: Final = 64 << 10
BULK_READ_BYTES: Final = 256 << 10


def open_listener(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of `host`, all on one port (`port` 0: one that is free).

    Options are set here once; Linux hands them on to the accepted sockets. Raises OSError if an address cannot be
    bound.
    """
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            try:
                listener = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(infos) > 1:
                    continue  # a name with an IPv6 address on a machine without IPv6
                raise
            sockets.append(listener)
            _set_options(listener, family)
            chosen = sockets[0].getsockname()[1] if len(sockets) > 1 else port
            listener.bind((address[0], chosen, *address[2:]))
            listener.listen(BACKLOG)
            listener.setblocking(False)
    except BaseException:
        for listener in sockets:
            listener.close()
        raise
    return sockets


def _set_options(listener: socket.socket, family: int) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_NODELAY, 1),
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
        (socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS),
    ):
        listener.setsockopt(socket.IPPROTO_TCP, option, value)


def port_of(sockets: Iterable[socket.socket]) -> int:
    """The port that `open_listener` got."""
    port: int = next(iter(sockets)).getsockname()[1]
    return port


def hypercorn_config(settings: Settings) -> Config:
    """Every limit and timeout of the framework that a client could notice, none of them tighter than `api.md`."""
    config = Config()
    config.h2_max_concurrent_streams = MAX_STREAMS
    config.h2_max_header_list_size = MAX_HEADER_BYTES
    config.h11_max_incomplete_size = MAX_HEADER_BYTES
    config.keep_alive_max_requests = sys.maxsize
    config.keep_alive_timeout = KEEP_ALIVE_S
    config.read_timeout = None
    config.max_app_queue_size = QUEUED_EVENTS
    config.websocket_max_message_size = settings.max_body_bytes
    config.include_server_header = False
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    return config


class Connection:
    """One accepted connection, in the ASGI scope as `scope["state"]["connection"]`."""

    __slots__ = ("_direct_bytes", "_direct_ended", "_lock", "_partial", "_stream", "cancel_scope", "peer")

    def __init__(self, stream: trio.SocketStream, lock: trio.Lock) -> None:
        self._stream = stream
        self._lock = lock
        """Held by whoever sends."""
        self._partial: trio.Event | None = None
        """Set while a frame is partly sent past hypercorn."""
        self._direct_bytes = 0
        """Sent past hypercorn since the socket was asked how much of it has left."""
        self._direct_ended = False
        self.cancel_scope = trio.CancelScope()
        self.peer: tuple[str, int] | None = None

    def allow_slow_reader(self) -> None:
        """From here on a peer that is there and does not read is the application's business."""
        try:
            self._stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STREAM_USER_TIMEOUT_MS)
        except OSError:
            pass  # it is gone already

    def acked(self) -> int:
        """Bytes that the peer's side has acknowledged so far: what grows while it takes anything at all."""
        try:
            info = self._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return 0
        return int.from_bytes(info[_BYTES_ACKED], sys.byteorder)

    # -- frames past the protocols -------------------------------------------------------------------------------------

    def try_send(self, data: bytes) -> int:
        """Give the socket what it takes now, past hypercorn; how many bytes that was. `send_rest` has to follow a part.

        Nothing while something else is being sent, or while as much waits in the socket as the kernel would call
        unwritable (trio sets TCP_NOTSENT_LOWAT): what waits for a slow reader is not to wait there.
        """
        fd = self._stream.socket.fileno()
        if fd < 0 or self._direct_ended or self._lock.locked():
            return 0
        if self._direct_bytes >= _DIRECT_UNSENT:
            self._direct_bytes = self._unsent(fd)
            if self._direct_bytes >= _DIRECT_UNSENT:
                return 0
        try:
            taken = os.write(fd, data)
        except OSError:
            return 0  # full, or broken, which whoever waits for the socket finds out
        self._direct_bytes += taken
        if taken < len(data):
            self._partial = trio.Event()
        return taken

    @staticmethod
    def _unsent(fd: int) -> int:
        return int.from_bytes(fcntl.ioctl(fd, _SIOCOUTQNSD, bytes(4)), sys.byteorder)

    async def send_rest(self, data: bytes) -> None:
        """Send, past hypercorn, all of `data`; pieces of one frame without anything else between them. A broken
        connection is noticed by its reader."""
        if self._partial is None:
            if self._direct_ended:
                return
            self._partial = trio.Event()
        async with self._lock:
            with trio.CancelScope(shield=True), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._stream.send_all(data)

    def direct_done(self) -> None:
        """What was sent past hypercorn ends with a whole frame."""
        partial, self._partial = self._partial, None
        if partial is not None:
            partial.set()

    async def between_frames(self) -> None:
        """Wait until whatever hypercorn sends would not stand in the middle of a frame."""
        while self._partial is not None:
            await self._partial.wait()

    def stop_direct(self) -> None:
        """No frame begins any more: the connection's last one is on its way."""
        self._direct_ended = True

    def end_direct(self) -> None:
        """Nothing more is sent past hypercorn. With half a frame out the connection is of no use to anybody."""
        if self._partial is not None:
            self.abort()
            self.direct_done()

    def abort(self) -> None:
        """Close the socket at once and cancel everything that runs for it; unsent data is dropped. May be repeated."""
        try:
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        # Closing wakes a shielded send, cancelling wakes everything else.
        self._stream.socket.close()
        self.cancel_scope.cancel()


class Server:
    """What `serve` reports when it has started."""

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self._accepting = trio.CancelScope()

    def stop_accepting(self) -> None:
        """Close the listening sockets and idle connections; requests in flight finish, then their connections close."""
        self._accepting.cancel()

    def abort_all(self) -> None:
        """Drop every connection that is still open."""
        for connection in list(self.connections):
            connection.abort()


async def serve(
    app: ASGIFramework,
    sockets: list[socket.socket],
    settings: Settings,
    *,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` on `sockets`, which are closed at the end. Reports a `Server` once it accepts.

    Returns after `Server.stop_accepting`, when the last connection is gone. Cancellation aborts all connections at
    once.
    """
    server = Server()
    config = hypercorn_config(settings)
    context = WorkerContext(None)
    wrapped = ASGIWrapper(app)

    async def handle(stream: trio.SocketStream) -> None:
        connection = Connection(stream, trio.Lock())
        server.connections.add(connection)
        try:
            await _TCPServer(wrapped, config, context, connection, stream).run()
        except Exception as error:
            log.warning("connection_failed", peer=connection.peer, error=repr(error), exc_info=True)
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                log.warning("connection_failed", peer=connection.peer, error=repr(errors), exc_info=errors)
            if rest is not None:
                raise rest from None
        finally:
            server.connections.discard(connection)
            stream.socket.close()

    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(listener)) for listener in sockets]
    async with trio.open_nursery() as watch:
        watch.start_soon(_abort_when_cancelled, server)
        async with trio.open_nursery() as connections:
            with server._accepting:
                task_status.started(server)
                await trio.serve_listeners(handle, listeners, handler_nursery=connections)
            await context.terminated.set()
        watch.cancel_scope.cancel()


async def _abort_when_cancelled(server: Server) -> None:
    try:
        await trio.sleep_forever()
    finally:
        server.abort_all()


class _TCPServer(TCPServer):
    """A connection whose tasks end with it, with one keep-alive timer for its whole life.

    Hypercorn (trio) starts a task for the timer after every request, which is a fifth of the cost of a small one;
    leaves it running when the peer has closed, which would hold the descriptor for `KEEP_ALIVE_S`; and starts it again
    when a request that was in flight is answered.
    """

    protocol: _Protocols

    def __init__(
        self,
        app: ASGIWrapper,
        config: Config,
        context: WorkerContext,
        connection: Connection,
        stream: trio.SocketStream,
    ) -> None:
        super().__init__(app, config, context, {"connection": connection}, stream)  # type: ignore[arg-type]
        self._connection = connection
        self.send_lock = connection._lock
        self._ended = False
        self._idle = True
        self._idle_scope = trio.CancelScope(deadline=trio.current_time() + KEEP_ALIVE_S)

    async def run(self) -> None:
        sock: Any = self.stream.socket
        try:
            client = parse_socket_addr(sock.family, sock.getpeername())
            server = parse_socket_addr(sock.family, sock.getsockname())
            self._connection.peer = client
            with self._connection.cancel_scope:
                async with TaskGroup() as task_group:
                    self._task_group = task_group
                    self.protocol = _Protocols(
                        self.app,
                        self.config,
                        self.context,
                        task_group,
                        ConnectionState(self.state),
                        False,
                        client,
                        server,
                        self.protocol_send,
                        "http/1.1",
                    )
                    await self.protocol.initiate()
                    task_group.spawn(self._close_when_idle)
                    await self._read_data()
                    self._ended = True
                    self._idle_scope.cancel()
                    await self.protocol.ended()
        except OSError:
            pass
        finally:
            await self._close()

    async def _read_data(self) -> None:
        """Hand on what the client sends. In a body, a read that was filled is followed by a larger one: fewer events.

        Never in a head: h11 looks at its size only while it is not complete.
        """
        size = READ_BYTES
        while True:
            try:
                data = await self.stream.receive_some(size)
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                break
            try:
                await self.protocol.handle(RawData(bytes(data)))
            except _NoMoreRequests:
                break
            if not data:
                break
            size = BULK_READ_BYTES if len(data) == size and not self._idle else READ_BYTES
        await self.protocol.handle(Closed())

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self._idle = event.idle
            if not event.idle:
                self._idle_scope.deadline = math.inf
            elif self.context.terminated.is_set():
                self._idle_scope.cancel()
            else:
                self._idle_scope.deadline = trio.current_time() + KEEP_ALIVE_S
        else:
            if isinstance(event, RawData):
                await self._connection.between_frames()
            await super().protocol_send(event)

    async def _close_when_idle(self) -> None:
        """Close after `KEEP_ALIVE_S` without a request, and in a drain as soon as there is none."""
        with self._idle_scope:
            await self.context.terminated.wait()
            if not self._idle:
                await trio.sleep_forever()
        if not self._ended:
            with trio.CancelScope(shield=True):
                await self._initiate_server_close()

    async def _close(self) -> None:
        # What the peer still sends is read for a moment: input that is left unread would reset the connection, and the
        # reset overtakes what was sent last, which may be the refusal that it needs to see.
        try:
            await self.stream.send_eof()
            with trio.move_on_after(LINGER_S):
                for _ in range(LINGER_READS):
                    if not await self.stream.receive_some(MAX_RECV):
                        break
        except (trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
            pass
        await self.stream.aclose()


class _Protocols(ProtocolWrapper):
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

    async def ended(self) -> None:
        """The peer is gone: wake the answers that wait for its flow control window, which nobody else would."""
        if isinstance(self.protocol, H2Protocol):
            for buffer in list(self.protocol.stream_buffers.values()):
                await buffer.close()


class _H11(H11Protocol):
    """Sends the head of an answer together with the first of its body, and refuses what is not HTTP with the error
    envelope.

    Hypercorn makes three writes of every answer, the last one empty, and refuses with an empty body.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.can_read = self._resumption = _Resumption()
        self._head = b""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        try:
            data = self._head + (self.connection.send(event) or b"")
        except h11.LocalProtocolError:
            if self.connection.their_state != h11.ERROR:
                raise
            return
        # An application that streams sends the first of its body at once.
        self._head = data if isinstance(event, h11.Response) else b""
        if data and not self._head:
            await self.send(RawData(data=data))

    async def _send_error_response(self, status_code: int) -> None:
        error = {"code": "invalid_request", "message": "the request is not valid HTTP", "detail": {}}
        body = msgspec.json.encode({"error": error})
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *self.config.response_headers("h11"),
        ]
        await self._send_h11_event(h11.Response(status_code=status_code, headers=headers))
        await self._send_h11_event(h11.Data(data=body))
        await self._send_h11_event(h11.EndOfMessage())

    async def _create_stream(self, request: h11.Request) -> None:
        headers = list(request.headers)
        version = request.http_version.decode()
        if not any(name == b"upgrade" for name, _ in headers):
            await super()._create_stream(request)
            return
        if not Handshake(headers, version).is_valid():
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


class _WSStream(WSStream):
    """Answers what is no WebSocket, or no UTF-8, with a close that says so, where hypercorn hangs up; and counts a
    message's bytes, where hypercorn counts characters."""

    _size = 0

    async def handle(self, event: StreamEvent) -> None:
        try:
            await super().handle(event)
        except trio.BrokenResourceError:
            pass  # the application has ended (`stop_receiving`)

    async def _handle_events(self) -> None:
        for event in self.connection.events():
            if isinstance(event, Message):
                data = event.data
                self._size += len(data.encode()) if isinstance(data, str) else len(data)
                if self._size > self.config.websocket_max_message_size:
                    await self._send_wsproto_event(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
                    await self.send(StreamClosed(stream_id=self.stream_id))
                    return
                self.buffer.extend(event)
                if event.message_finished:
                    assert self.app_put is not None
                    await self.app_put(self.buffer.to_message())
                    self.buffer.clear()
                    self._size = 0
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionPhase.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                elif self.connection.state is ConnectionPhase.OPEN:
                    await self._send_wsproto_event(CloseConnection(code=event.code))  # it could not be parsed
                await self.send(StreamClosed(stream_id=self.stream_id))


async def send_ping(send: Any) -> None:
    """Ping the peer of a WebSocket; `send` is what its application was given.

    ASGI has no message for it, and hypercorn's own pings come from a task that outlives the socket by an interval,
    which would hold up a drain.
    """
    stream = send.__self__
    assert isinstance(stream, WSStream)
    await stream._send_wsproto_event(Ping())


def stop_receiving(receive: Any) -> None:
    """The application of a WebSocket has ended: what still comes is for nobody.

    Otherwise the connection's reader would wait for ever for room in a queue that nobody empties.
    """
    channel = receive.__self__
    assert isinstance(channel, trio.MemoryReceiveChannel)
    channel.close()


def _without_extensions(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of a request for a WebSocket without the offer to compress.

    Hypercorn takes every offer, which costs 300 KiB and a deflate of every message for each socket.
    """
    return [(name, value) for name, value in headers if name.lower() != b"sec-websocket-extensions"]


class _NoMoreRequests(Exception):
    """Tells the reader of a connection that whatever it has buffered will not be looked at."""


class _Resumption(EventWrapper):
    """What a reader waits for when a request has come before the answer to the one before it is complete."""

    def __init__(self) -> None:
        super().__init__()
        self._ended = False

    async def wait(self) -> None:
        """Wait until the next request may be read. Raises `_NoMoreRequests` when none will be."""
        if not self._ended:
            await super().wait()
        if self._ended:
            raise _NoMoreRequests

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
        self.connection.decoder.max_header_list_size = MAX_HEADER_BYTES
        self.connection.incoming_buffer = _FrameBuffer(server=True)
        self.connection.incoming_buffer.max_frame_size = self.connection.max_inbound_frame_size
        self.priority = _RoundRobin()  # type: ignore[assignment]

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        request.headers = _without_extensions(request.headers)
        await super()._create_stream(request)

    async def stream_send(self, event: StreamEvent) -> None:
        """An answer that its application has left unfinished ends in a reset, or the client would wait for the rest."""
        buffer = self.stream_buffers.get(event.stream_id)
        if isinstance(event, StreamClosed) and buffer is not None and not buffer._complete:
            await buffer.close()
            with suppress(h2.exceptions.ProtocolError):
                self.connection.reset_stream(event.stream_id, h2.errors.ErrorCodes.CANCEL)
            await self._flush()
        await super().stream_send(event)

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.DataReceived) and event.stream_id not in self.streams:
                # Its share of the connection's window goes back, or the other streams would starve.
                self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            else:
                await super()._handle_events([event])
        await self._flush()


class _H2Connection(h2.connection.H2Connection):
    """Counts its streams, which h2 does by looking at all of them, only when it might matter."""

    _counted = 0

    @property
    def open_inbound_streams(self) -> int:
        """At least the number of open streams, and exact near the limit. Counting also forgets closed streams."""
        known = len(self.streams)
        if known >= min(2 * self._counted + 100, MAX_STREAMS):
            known = self._counted = super().open_inbound_streams
        return known


class _FrameBuffer(FrameBuffer):
    """Refuses a frame that is too long by its header; h2 looks when it has all of it, up to 16 MiB later."""

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
