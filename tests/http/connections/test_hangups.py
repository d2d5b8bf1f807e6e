"""Watching connections for peers that end their side."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
import trio
import trio.testing

from topics.http.connections.connection import Connection
from topics.http.connections.hangups import Hangups


def connected() -> tuple[Connection, socket.socket]:
    ours, theirs = socket.socketpair()
    return Connection(trio.SocketStream(trio.socket.from_stdlib_socket(ours)), trio.Lock(), set()), theirs


@pytest.mark.trio
async def test_a_connection_is_told_when_its_peer_ends_its_side() -> None:
    connection, peer = connected()
    with closing(Hangups()) as hangups, peer:
        hangups.add(connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hangups.run)
            await trio.testing.wait_all_tasks_blocked()
            assert not connection.has_left
            peer.shutdown(socket.SHUT_WR)
            with trio.CancelScope() as left, connection.ends_wait(left), trio.fail_after(5):
                await trio.sleep_forever()
            assert connection.has_left
            assert not connection.is_broken
            nursery.cancel_scope.cancel()
        hangups.remove(connection)
        connection.abort()


@pytest.mark.trio
async def test_connections_come_and_go_also_after_the_task_has_been_cancelled() -> None:
    """When all of a server is cancelled, its connections may end later than the task."""
    (one, peer), (other, other_peer) = connected(), connected()
    with closing(Hangups()) as hangups, peer, other_peer:
        hangups.add(one)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hangups.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        hangups.remove(one)
        hangups.add(other)
        hangups.remove(other)
        one.abort()
        other.abort()
