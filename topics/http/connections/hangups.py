"""Which peers have ended their side of a connection, whether or not anybody reads from it.

Theory of operation. A connection's reader pauses: behind a request that is being answered, behind a message that is
being carried out. While it is paused, an end of the stream stays behind the bytes that nobody reads, and the reader
does not see it. So all sockets are in one epoll set of their own, for nothing but their ends (EPOLLRDHUP, edge
triggered; EPOLLERR and EPOLLHUP are always reported), and one task waits for that set. A connection that only sends
and receives costs nothing here.
"""

from __future__ import annotations

import select

import trio

from topics.http.connections.connection import Connection

_EVENTS_AT_ONCE = 256


class Hangups:
    """The set of sockets. `run` has to be running."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}

    def add(self, connection: Connection) -> None:
        """Tell the connection when its peer ends its side (`Connection.peer_left`)."""
        fd = connection.fileno()
        if fd >= 0:
            self._connections[fd] = connection
            self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, connection: Connection) -> None:
        """Forget a connection before its socket is closed. One that is closed by now has left the set."""
        fd = connection.fileno()
        if fd >= 0 and self._connections.get(fd) is connection:
            del self._connections[fd]
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Tell connections until cancelled."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                for fd, events in self._epoll.poll(0, _EVENTS_AT_ONCE):
                    connection = self._connections.get(fd)
                    # The descriptor of one that was aborted may have been given out again.
                    if connection is not None and connection.fileno() == fd:
                        connection.peer_left(broken=bool(events & select.EPOLLERR))
