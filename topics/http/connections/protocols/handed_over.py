"""Connections that the lane hands over, and without a lane all of them: served by hypercorn.

A start imports neither this module nor hypercorn (`docs/design/starts.md`).
"""

from __future__ import annotations

import logging
import math
import sys
from typing import Any, Final

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import parse_socket_addr

from topics.config import Settings
from topics.http.connections.connection import KEEP_ALIVE_S, Connection, close_gently
from topics.http.connections.protocols.http1 import NoMoreRequests
from topics.http.connections.protocols.http2 import MAX_STREAMS
from topics.http.connections.protocols.negotiation import Protocols
from topics.http.connections.protocols.request_checks import MAX_HEADER_BYTES
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

# How long after its first byte the head of a request (or any other incomplete input between requests) has to be
# complete: enough for 128 KiB over a bad line.
HEADER_S: Final = 30
# Events of up to 256 KiB each that may wait for the handler of a request before its connection is read no further. They
# are outside the budget of bodies.
QUEUED_EVENTS: Final = 4

READ_BYTES: Final = 64 << 10
BULK_READ_BYTES: Final = 256 << 10


class Hypercorn:
    """Hypercorn's part of one `serve`: `app` behind its protocols. `idle` are the connections of the server without a
    request, which it keeps up to date."""

    def __init__(self, app: ASGIFramework, settings: Settings, idle: dict[Connection, None], *, has_lane: bool) -> None:
        self._app = ASGIWrapper(app)
        self._config = hypercorn_config(settings)
        self._context = WorkerContext(None)
        self._idle = idle
        self._has_lane = has_lane

    async def serve(self, connection: Connection, stream: trio.SocketStream, data: bytes) -> bytes | None:
        """Serve a connection as `HandedOver.run` does."""
        handed_over = HandedOver(
            self._app, self._config, self._context, connection, stream, self._idle, has_lane=self._has_lane
        )
        return await handed_over.run(data)

    async def drain(self) -> None:
        """Close each connection as soon as it has no request. May be repeated."""
        await self._context.terminated.set()


def hypercorn_config(settings: Settings) -> Config:
    """The configuration of hypercorn: its limits and timeouts that a client could notice. None is tighter than
    `docs/spec/api.md` allows."""
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


class HandedOver(TCPServer):
    """A connection whose tasks end with it, and which has one keep-alive timer for its whole life.

    Hypercorn's own class starts a task for the timer after every request, which is a fifth of the cost of a small
    request. It leaves that task running when the peer has closed the connection, which holds the descriptor for
    `KEEP_ALIVE_S`, and starts it again when a request in progress is answered.
    """

    protocol: Protocols

    def __init__(
        self,
        app: ASGIWrapper,
        config: Config,
        context: WorkerContext,
        connection: Connection,
        stream: trio.SocketStream,
        idle: dict[Connection, None],
        *,
        has_lane: bool,
    ) -> None:
        super().__init__(app, config, context, {"connection": connection}, stream)  # type: ignore[arg-type]
        self._socket_stream = stream
        self._has_lane = has_lane
        self._connection = connection
        self._all_idle = idle
        self.send_lock = connection.lock
        self._ended = False
        self._send_failed = False
        self._idle = True
        self._in_head = False
        """There is no request, but incomplete input, such as a part of a head."""
        self._idle_until = trio.current_time() + KEEP_ALIVE_S
        self._idle_scope = trio.CancelScope(deadline=self._idle_until)

    async def run(self, data: bytes = b"") -> bytes | None:  # type: ignore[override]
        """Serve the connection. `data` is input that has been read already.

        Returns the input behind a request that was answered, if the connection goes back to the lane
        (`Connection.go_back`); None when the connection is closed.
        """
        sock: Any = self.stream.socket
        try:
            async with TaskGroup() as task_group:
                self._task_group = task_group
                self.protocol = Protocols(
                    self.app,
                    self.config,
                    self.context,
                    task_group,
                    ConnectionState(self.state),
                    False,
                    self._connection.peer,
                    parse_socket_addr(sock.family, sock.getsockname()),
                    self.protocol_send,
                    "http/1.1",
                )
                await self.protocol.initiate()
                task_group.spawn(self._close_when_idle)
                with trio.CancelScope() as reading:
                    self._connection.reading = reading if self._has_lane else None
                    await self._read(data)
                self._ended = True
                self._idle_scope.cancel()
                await self.protocol.ended()
            # Not before all tasks have ended: the reader may have taken more input in its last step.
            if self._connection.goes_back:
                return self.protocol.unused_input()
        except OSError:
            pass
        finally:
            if not self._connection.goes_back:
                await close_gently(self._socket_stream)
            self._connection.goes_back = False
        return None

    async def _read(self, data: bytes) -> None:
        """Read from the socket and give the data to the protocol, `data` first.

        Within a body, a read that was filled is followed by a larger one, which makes fewer events. Within a head reads
        stay small, because h11 checks the size of a head only while it is incomplete.
        """
        size = READ_BYTES
        while not self._connection.goes_back:
            try:
                data = data or bytes(await self.stream.receive_some(size))
            except (trio.ClosedResourceError, trio.BrokenResourceError):
                self._connection.peer_left(broken=True)
                break
            except trio.BusyResourceError:
                break  # `_close` reads the rest of the input after an answer
            if not data:
                self._connection.peer_left(broken=False)
            try:
                await self.protocol.handle(RawData(data))
            except NoMoreRequests:
                break
            if not data:
                break
            if self._idle:
                self._watch_head()
            size = BULK_READ_BYTES if len(data) == size and not self._idle else READ_BYTES
            data = b""
        if not self._connection.goes_back:
            await self.protocol.handle(Closed())

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            self._idle = event.idle
            self._in_head = False
            self._all_idle.pop(self._connection, None)
            if event.idle and not self._connection.is_broken:
                self._all_idle[self._connection] = None
            if not event.idle:
                self._idle_scope.deadline = math.inf
            elif self.context.terminated.is_set():
                self._idle_scope.cancel()
            else:
                self._idle_scope.deadline = self._idle_until = trio.current_time() + KEEP_ALIVE_S
        else:
            try:
                if isinstance(event, RawData):
                    await self._connection.between_frames()
                    await self._send_raw(event.data)
                else:
                    await super().protocol_send(event)
            except trio.BusyResourceError:
                pass  # the reader is closing the connection while this answer was being sent

    async def _send_raw(self, data: bytes) -> None:
        """Send data. If that fails, a task of its own tells the streams of the connection. Hypercorn would tell them
        while it holds the lock, and wait for ever if the queue of a stream is full and its handler is the sender."""
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(data)
                return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
        self._connection.peer_left(broken=True)
        if not self._send_failed:
            self._send_failed = True
            self._task_group.spawn(self.protocol.handle, Closed())

    def _watch_head(self) -> None:
        """Set the deadline for incomplete input when its first bytes are there, and remove it when the input is
        complete. Bytes in between do not move it."""
        in_head = self.protocol.has_part()
        if in_head != self._in_head:
            self._in_head = in_head
            self._idle_scope.deadline = trio.current_time() + HEADER_S if in_head else self._idle_until

    async def _close_when_idle(self) -> None:
        """Close the connection after `KEEP_ALIVE_S` without a request, after `HEADER_S` with an incomplete head, and in
        a drain as soon as there is no request."""
        with self._idle_scope:
            await self.context.terminated.wait()
            if not self._idle:
                await trio.sleep_forever()
        if not self._ended:
            if self._in_head and not self.context.terminated.is_set():
                log.info("head_too_slow", peer=self._connection.peer)
            with trio.CancelScope(shield=True):
                await self._initiate_server_close()

    async def _close(self) -> None:
        await close_gently(self._socket_stream)
