"""Noticing that a peer has shut down its side of a connection, even while nothing is read from it.

Theory of operation. The reader of a connection pauses while a request is being answered or a message is being carried
out. While it pauses, it does not see the end of the stream. So all sockets are registered with one epoll object, only
for their ends (EPOLLRDHUP, edge triggered; EPOLLERR and EPOLLHUP are always reported), and one task waits for it. A
connection that only sends and receives costs nothing here.

If a peer has sent so much that the buffers of the kernel are full, its end is behind what does not fit into them. So
while a reader pauses, new input is reported, too, and too much of it ends the connection
(`Connection.end_if_flooded`).
"""

from __future__ import annotations

import select
from functools import partial

import trio

from topics.http.connections.connection import Connection

_EVENTS_AT_ONCE = 256
_ENDS = select.EPOLLRDHUP | select.EPOLLET


class Hangups:
    """The sockets whose ends are watched. `run` must be running. `close` it when no connection will be added or removed
    any more: when a server is cancelled, connections may end later than `run`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}

    def add(self, connection: Connection) -> None:
        """Call `Connection.peer_left` when the peer shuts down its side."""
        fd = connection.fileno()
        if fd >= 0:
            self._connections[fd] = connection
            self._epoll.register(fd, _ENDS)
            connection.watch_input = partial(self._watch_input, connection)

    def _watch_input(self, connection: Connection, watched: bool) -> None:
        fd = connection.fileno()
        if fd >= 0 and self._connections.get(fd) is connection:
            self._epoll.modify(fd, _ENDS | select.EPOLLIN if watched else _ENDS)

    def remove(self, connection: Connection) -> None:
        """Stop watching a connection, before its socket is closed. If it has been closed already, nothing is done: the
        kernel has removed it."""
        fd = connection.fileno()
        if fd >= 0 and self._connections.get(fd) is connection:
            del self._connections[fd]
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Wait for ends and report them. Runs until cancelled."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            for fd, events in self._epoll.poll(0, _EVENTS_AT_ONCE):
                connection = self._connections.get(fd)
                # The descriptor of an aborted connection may have been reused for another one.
                if connection is not None and connection.fileno() == fd:
                    if events & ~select.EPOLLIN:
                        connection.peer_left(broken=bool(events & select.EPOLLERR))
                    connection.end_if_flooded()

    def close(self) -> None:
        """Close the epoll object."""
        self._epoll.close()
