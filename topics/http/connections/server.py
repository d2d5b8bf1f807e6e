"""Listening, accepting connections and draining them. `topics.http.gate` decides what a request means.

Of hypercorn only the protocols (h11, h2, WebSocket) are used, not its process, and they are imported when a connection
needs them (`topics.http.connections.protocols.handed_over`). `serve` itself accepts connections, so that

- the failure of a connection ends that connection, is logged, and never ends the daemon;
- a connection can be aborted at once (`Connection.abort`). There is no other remedy against a peer that does not read,
  because hypercorn shields its sends from cancellation;
- clients have only so many connections that enough descriptors are left for the daemon, and idle connections are closed
  for new ones;
- a client that takes too long over a head or an answer loses its connection (`topics.http.requests.body_reader` does
  the same for bodies);
- a drain has two steps: `Server.stop_accepting` and, at the deadline, `Server.abort_all`.
"""

from __future__ import annotations

import errno
import math
import socket
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
import trio

from topics.config import Settings
from topics.http.connections.connection import KEEP_ALIVE_S, Connection, close_gently
from topics.http.connections.hangups import Hangups
from topics.http.connections.lane import Handler, Lane
from topics.http.connections.unsent_bytes import UnsentBytes
from topics.runtime import process_limits
from topics.telemetry.logs import get_logger

if TYPE_CHECKING:
    from hypercorn.typing import ASGIFramework

    from topics.http.connections.protocols.handed_over import Hypercorn

log = get_logger(__name__)

BACKLOG: Final = 4096

# A vanished peer is noticed within 30 s: an idle one by 10 + 3 * 5 s of keep-alive probes, one that data is sent to by
# the user timeout, one with a stream by `_abort_vanished`.
KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_COUNT: Final = 3
USER_TIMEOUT_MS: Final = 25_000
VANISHED_EVERY_S: Final = 5

# Connections accepted in one step. With one a step, a new connection would have to wait for the requests of all others
# once for each connection in front of it.
ACCEPTED_AT_ONCE: Final = 64
# Pause in accepting when there is no free descriptor.
ACCEPT_AGAIN_S: Final = 0.1


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
    server = Server(process_limits.most_connections(process_limits.file_limit(), settings.max_connections))
    unsent = UnsentBytes(settings)
    with closing(Hangups()) as hangups:
        async with trio.open_nursery() as watch:
            watch.start_soon(_abort_when_cancelled, server)
            watch.start_soon(_look_after, server, unsent)
            watch.start_soon(hangups.run)
            service = _Service(server, app, settings, unsent, hangups, lane)
            async with trio.open_nursery() as connections:

                def start(accepted: socket.socket) -> None:
                    server.starting += 1
                    connections.start_soon(service.handle, accepted)

                with server._accepting:
                    async with trio.open_nursery() as accepting:
                        for listener in sockets:
                            accepting.start_soon(_accept, server, listener, start)
                        task_status.started(server)
                await service.drain()
            watch.cancel_scope.cancel()


@dataclass(slots=True)
class _Service:
    """The state that the connections of one `serve` share, and how each of them is served."""

    server: Server
    app: ASGIFramework
    settings: Settings
    unsent: UnsentBytes
    hangups: Hangups
    lane: Handler | None
    hypercorn: Hypercorn | None = None
    """Serves what the lane does not take; None until there is something."""

    async def drain(self) -> None:
        """Have hypercorn close each of its connections as soon as it has no request."""
        if self.hypercorn is not None:
            await self.hypercorn.drain()

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
        connection.peer = accepted.getpeername()[:2]
        unused: bytes | None = b""
        while unused is not None:
            if self.lane is not None:
                unused = await self._on_lane(self.lane, connection, stream, accepted, unused)
            if unused is not None:
                unused = await (await self._by_hypercorn()).serve(connection, stream, unused)

    async def _by_hypercorn(self) -> Hypercorn:
        """Make `hypercorn` for the first connection that needs it. Blocks while it is imported, unless the daemon has
        been ready for a moment (`load_late`)."""
        if self.hypercorn is None:
            from topics.http.connections.protocols.handed_over import Hypercorn  # noqa: PLC0415

            self.hypercorn = Hypercorn(self.app, self.settings, self.server.idle, has_lane=self.lane is not None)
            if self.server.is_draining:
                await self.hypercorn.drain()
        return self.hypercorn

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
