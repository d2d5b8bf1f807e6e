"""Listening, accepting connections and draining them. `topics.http.gate` decides what a request means.

Of hypercorn only the protocols (h11, h2, WebSocket) are used, not its process. `serve` itself accepts connections, so
that

- the failure of a connection ends that connection, is logged, and never ends the daemon;
- a connection can be aborted at once (`Connection.abort`). There is no other remedy against a peer that does not read,
  because hypercorn shields its sends from cancellation;
- clients have only so many connections that enough descriptors are left for the daemon, and idle connections are closed
  for new ones;
- a client that takes too long over a head or an answer loses its connection (`topics.http.requests.body_reader` does
  the same for bodies);
- a drain has two steps: `Server.stop_accepting` and, at the deadline, `Server.abort_all`.

Subclasses correct hypercorn 0.18 and say why: here that of its connections, in `topics.http.connections.protocols`
those of its protocols.
"""

from __future__ import annotations

import errno
import logging
import math
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import parse_socket_addr

from topics.config import Settings
from topics.http.connections.connection import Connection
from topics.http.connections.hangups import Hangups
from topics.http.connections.lane import Handler, Lane
from topics.http.connections.protocols.http1 import NoMoreRequests
from topics.http.connections.protocols.http2 import MAX_STREAMS
from topics.http.connections.protocols.negotiation import Protocols
from topics.http.connections.protocols.request_checks import MAX_HEADER_BYTES
from topics.http.connections.unsent_bytes import UnsentBytes
from topics.runtime import process_limits
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

BACKLOG: Final = 4096

# A vanished peer is noticed within 30 s: an idle one by 10 + 3 * 5 s of keep-alive probes, one that data is sent to by
# the user timeout, one with a stream by `_abort_vanished`.
KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_COUNT: Final = 3
USER_TIMEOUT_MS: Final = 25_000
VANISHED_EVERY_S: Final = 5

# After how long a connection without a request is closed. Clients and proxies usually close theirs after 60 s, so that
# they close first, and no request is sent on a connection that is being closed.
KEEP_ALIVE_S: Final = 75
# How long after its first byte the head of a request (or any other incomplete input between requests) has to be
# complete: enough for 128 KiB over a bad line.
HEADER_S: Final = 30
# Connections accepted in one step. With one a step, a new connection would have to wait for the requests of all others
# once for each connection in front of it.
ACCEPTED_AT_ONCE: Final = 64
# Pause in accepting when there is no free descriptor.
ACCEPT_AGAIN_S: Final = 0.1
# How long input is still read after a connection was closed from this side, so that the peer gets the last answer.
LINGER_S: Final = 1.0
LINGER_READS: Final = 64
# Events of up to 256 KiB each that may wait for the handler of a request before its connection is read no further. They
# are outside the budget of bodies.
QUEUED_EVENTS: Final = 4

READ_BYTES: Final = 64 << 10
BULK_READ_BYTES: Final = 256 << 10


def open_listener(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for every address of `host`, all on the same port (0: a free one).

    Their options are inherited by the accepted sockets (on Linux). Raises OSError if an address cannot be bound.
    """
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            try:
                listener = socket.socket(family, kind, protocol)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(infos) > 1:
                    continue  # the name has an IPv6 address, and the machine has no IPv6
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
    """The port on which these sockets of `open_listener` listen."""
    port: int = next(iter(sockets)).getsockname()[1]
    return port


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


class Server:
    """The connections of a running `serve`, and the ways to end them. `most` is how many there may be; None for no
    bound."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most
        self.connections: set[Connection] = set()
        self.starting = 0
        """Accepted connections that are not in `connections` yet."""
        self.answering: set[Connection] = set()
        """The connections that are sending an answer."""
        self.idle: dict[Connection, None] = {}
        """The connections without a request, the longest idle one first."""
        self.evicted = 0
        """How many idle connections were closed for new ones since that was last logged."""
        self.refused = 0
        """How many new connections were closed, because there were too many, since that was last logged."""
        self.refused_total = 0
        """How many new connections were closed since the start."""
        self.not_accepted: OSError | None = None
        """Why a connection could not be accepted, if that has not been logged yet."""
        self.is_draining = False
        """No connection is accepted any more, and none is kept for another request."""
        self._accepting = trio.CancelScope()

    def has_room(self) -> bool:
        """Return True if one more connection may be accepted. If there are too many, the longest idle one is closed for
        it: otherwise clients that ask for nothing could keep all others out."""
        if self.most is None or len(self.connections) + self.starting < self.most:
            return True
        for connection in self.idle:
            self.forget(connection)
            connection.abort()
            self.evicted += 1
            return True
        return False

    def forget(self, connection: Connection) -> None:
        """Remove a connection that is gone. May be repeated."""
        self.connections.discard(connection)
        self.idle.pop(connection, None)

    def stop_accepting(self) -> None:
        """Close the listening sockets and the idle connections. Requests in progress finish, then their connections
        are closed."""
        self.is_draining = True
        self._accepting.cancel()
        for connection in self.idle:
            if connection.idle_until < math.inf:
                connection.end_idle()

    def begins_request(self, connection: Connection) -> None:
        """Note that a connection on the lane has a request."""
        connection.idle_until = math.inf
        self.idle.pop(connection, None)

    def may_wait(self, connection: Connection) -> bool:
        """Note that a connection on the lane waits for a request. Return False if it is to be closed instead."""
        if self.is_draining or connection.is_ending or connection.is_broken:
            return False
        connection.idle_until = trio.current_time() + KEEP_ALIVE_S
        self.idle[connection] = None
        return True

    def end_idle(self, now: float) -> None:
        """Close the connections on the lane that have been idle for too long. `now` is Trio's clock."""
        for connection in self.idle:
            if connection.idle_until < now:
                connection.end_idle()
            elif connection.idle_until < math.inf:
                return  # they are in the order in which they became idle

    def abort_all(self) -> None:
        """Abort every connection that is still open."""
        for connection in list(self.connections):
            connection.abort()


async def serve(
    app: ASGIFramework,
    sockets: list[socket.socket],
    settings: Settings,
    lane: Handler | None = None,
    *,
    task_status: trio.TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` on `sockets`, which are closed at the end. Reports a `Server` when it has begun to accept. `lane`
    answers plain HTTP/1.1 requests; without it hypercorn and `app` serve all of them.

    Returns after `Server.stop_accepting`, when the last connection is gone. Cancellation aborts all connections.
    """
    server = Server(process_limits.most_connections(process_limits.file_limit()))
    unsent = UnsentBytes(settings)
    with closing(Hangups()) as hangups:
        async with trio.open_nursery() as watch:
            watch.start_soon(_abort_when_cancelled, server)
            watch.start_soon(_look_after, server, unsent)
            watch.start_soon(hangups.run)
            context = WorkerContext(None)
            service = _Service(server, ASGIWrapper(app), hypercorn_config(settings), context, unsent, hangups, lane)
            async with trio.open_nursery() as connections:

                def start(accepted: socket.socket) -> None:
                    server.starting += 1
                    connections.start_soon(service.handle, accepted)

                with server._accepting:
                    async with trio.open_nursery() as accepting:
                        for listener in sockets:
                            accepting.start_soon(_accept, server, listener, start)
                        task_status.started(server)
                await context.terminated.set()
            watch.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class _Service:
    """What the connections of one `serve` share, and how each of them is served."""

    server: Server
    app: ASGIWrapper
    config: Config
    context: WorkerContext
    unsent: UnsentBytes
    hangups: Hangups
    lane: Handler | None

    async def handle(self, accepted: socket.socket) -> None:
        """Serve a connection to its end. Its failure is logged and ends no other."""
        server = self.server
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        connection = Connection(stream, trio.Lock(), server.answering, self.unsent)
        server.starting -= 1
        server.connections.add(connection)
        server.idle[connection] = None
        self.hangups.add(connection)
        try:
            with connection.cancel_scope:
                await self._serve(connection, stream, accepted)
        except OSError:
            pass
        except Exception as error:
            log.warning("connection_failed", peer=connection.peer, error=repr(error), exc_info=True)
        except BaseExceptionGroup as group:
            errors, rest = group.split(Exception)
            if errors is not None:
                log.warning("connection_failed", peer=connection.peer, error=repr(errors), exc_info=errors)
            if rest is not None:
                raise rest from None
        finally:
            server.forget(connection)
            self.hangups.remove(connection)
            connection.end_messages()
            connection.has_streams(0)
            stream.socket.close()

    async def _serve(self, connection: Connection, stream: trio.SocketStream, accepted: socket.socket) -> None:
        """Let the lane and hypercorn take turns, each with the input that the other has not used."""
        connection.peer = parse_socket_addr(accepted.family, accepted.getpeername())
        unused: bytes | None = b""
        while unused is not None:
            if self.lane is not None:
                unused = await self._on_lane(self.lane, connection, stream, accepted, unused)
            if unused is not None:
                by_hypercorn = _TCPServer(
                    self.app,
                    self.config,
                    self.context,
                    connection,
                    stream,
                    self.server.idle,
                    has_lane=self.lane is not None,
                )
                unused = await by_hypercorn.run(unused)

    async def _on_lane(
        self, handler: Handler, connection: Connection, stream: trio.SocketStream, accepted: socket.socket, data: bytes
    ) -> bytes | None:
        busy, idle = partial(self.server.begins_request, connection), partial(self.server.may_wait, connection)
        unused = await Lane(handler, connection, stream, accepted, busy, idle).run(data)
        connection.idle_until = math.inf
        if unused is None:
            await close_gently(stream)
        structlog.contextvars.clear_contextvars()  # those of the last request, which are none of the next one's
        return unused


async def _abort_when_cancelled(server: Server) -> None:
    try:
        await trio.sleep_forever()
    finally:
        server.abort_all()


async def _look_after(server: Server, unsent: UnsentBytes) -> None:
    """Every second: abort connections whose peers have vanished or are too slow, log counts of events that are too many
    to log each, and return freed memory to the system."""
    part = 0
    while True:
        await trio.sleep(1)
        part = (part + 1) % VANISHED_EVERY_S
        _abort_vanished(server, part)
        now = trio.current_time()
        server.end_idle(now)
        for connection in [connection for connection in server.answering if connection.is_too_slow(now)]:
            log.info("reader_too_slow", peer=connection.peer)
            connection.abort()
        if server.evicted:
            log.warning("idle_connections_closed", count=server.evicted, most=server.most)
            server.evicted = 0
        if server.refused:
            log.warning("connections_refused", count=server.refused, most=server.most)
            server.refused = 0
        if server.not_accepted is not None:
            log.error("accept_failed", error=str(server.not_accepted))
            server.not_accepted = None
        if unsent.is_trim_due():
            await trio.to_thread.run_sync(process_limits.trim_memory)


def _abort_vanished(server: Server, part: int) -> None:
    """Abort connections with streams whose peers have vanished. Looks at a part of the connections in each call, so
    that each is looked at every `VANISHED_EVERY_S` calls.

    The kernel would take longer: unacknowledged data stops its keep-alive probes, and its timeout for such data
    (`STREAM_USER_TIMEOUT_MS`) has to be longer than what a stream allows a slow reader.
    """
    for connection in list(server.connections):
        if connection.streams and id(connection) // 64 % VANISHED_EVERY_S == part and connection.has_vanished():
            log.info("peer_vanished", peer=connection.peer)
            connection.abort()


async def _accept(server: Server, listener: socket.socket, start: Callable[[socket.socket], None]) -> None:
    """Accept connections until cancelled. Start those for which there is room, and close the others at once.

    The others are not left in the kernel's queue: to their clients they would seem to be accepted, and later ones would
    wait behind them.
    """
    with listener:
        while True:
            await trio.lowlevel.wait_readable(listener)
            for _ in range(ACCEPTED_AT_ONCE):
                try:
                    accepted, _ = listener.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    break
                except OSError as error:  # no descriptor, no memory, or an error of the network
                    server.not_accepted = error
                    await trio.sleep(ACCEPT_AGAIN_S)
                    break
                if server.has_room():
                    start(accepted)
                else:
                    accepted.close()
                    server.refused += 1
                    server.refused_total += 1


class _TCPServer(TCPServer):
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


async def close_gently(stream: trio.SocketStream) -> None:
    """Close a connection behind its last answer. Input is read for a moment more: unread input makes the kernel reset
    the connection, and the reset may overtake the answer, which may be a refusal that the peer has to see."""
    try:
        await stream.send_eof()
        with trio.move_on_after(LINGER_S):
            for _ in range(LINGER_READS):
                if not await stream.receive_some(MAX_RECV):
                    break
    except (trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
        pass
    await stream.aclose()
