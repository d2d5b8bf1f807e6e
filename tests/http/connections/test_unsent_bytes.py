"""What is counted of answers that wait to be sent, and when there is room for another."""

from __future__ import annotations

import functools
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from topics.config import Settings
from topics.http.connections.connection import Connection
from topics.http.connections.unsent_bytes import COPIED_BYTES, STREAM_BYTES, UnsentBytes, on_stream

MIB = 1 << 20
LIMIT = 16 * MIB


def in_trio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: object) -> None:
        trio.run(functools.partial(test, **fixtures))

    return run


@pytest.fixture
def unsent(tmp_path: Path) -> UnsentBytes:
    return UnsentBytes(
        Settings(
            data_dir=tmp_path,
            max_unsent_bytes=LIMIT,
            max_unsent_bytes_per_key=8 * MIB,
            max_unsent_bytes_per_connection=4 * MIB,
        )
    )


@pytest.fixture
def connection(unsent: UnsentBytes) -> Iterator[Connection]:
    one, other = socket.socketpair()
    with one, other:
        yield Connection(trio.SocketStream(trio.socket.from_stdlib_socket(one)), trio.Lock(), set(), unsent)


def test_a_stream_counts_beside_its_bytes_and_what_is_copied_of_them() -> None:
    assert on_stream(0) == STREAM_BYTES
    assert on_stream(1000) == STREAM_BYTES + 2000
    assert on_stream(8 * MIB) == STREAM_BYTES + COPIED_BYTES + 8 * MIB


@in_trio
async def test_what_is_gathered_counts_before_it_is_sent(unsent: UnsentBytes, connection: Connection) -> None:
    connection.charge(6 * MIB, b"key")
    assert (unsent.used, connection.owed) == (6 * MIB, 6 * MIB)
    assert connection.why_not(3 * MIB, b"key") is not None
    assert connection.why_not(1 * MIB, b"other") is None
    # What is charged already of the same answer is no reason to refuse the rest of it.
    assert connection.why_not(9 * MIB, b"key", charged=6 * MIB) is None
    connection.give_back_charge(6 * MIB, b"key")
    assert (unsent.used, connection.owed) == (0, 0)
    assert connection.why_not(20 * MIB, b"key") is None


@in_trio
async def test_requests_that_wait_for_room_count(unsent: UnsentBytes, connection: Connection) -> None:
    async with trio.open_nursery() as nursery:
        connection.charge(4 * MIB)
        for _ in range(3):
            nursery.start_soon(connection.until_room)
        await trio.testing.wait_all_tasks_blocked()
        assert unsent.used == 4 * MIB + 3 * STREAM_BYTES
        assert connection.taken == unsent.used
        connection.give_back_charge(4 * MIB)
    assert unsent.used == 0


@in_trio
async def test_streams_beyond_the_first_are_refused_when_memory_is_short(
    unsent: UnsentBytes, connection: Connection
) -> None:
    most = LIMIT // STREAM_BYTES
    connection.has_streams(most)
    assert not connection.is_full()
    connection.has_streams(most + 1)
    assert connection.is_full()
    with connection.answering(2 * MIB):
        connection.has_streams(0)
        assert unsent.open_streams == 0
        assert not connection.is_full()
        unsent.take(LIMIT, b"")
        assert not connection.is_full()
        connection.has_streams(1)
        assert connection.is_full()
        unsent.give_back(LIMIT, b"")
    assert not connection.is_full()


@in_trio
async def test_who_sends_nothing_is_not_stalled(unsent: UnsentBytes, connection: Connection) -> None:
    """A read that takes long is no reader that takes nothing."""
    answering = connection._answering
    connection.charge(5 * MIB)
    assert not answering
    with connection.answering(1 * MIB), connection.answering(1 * MIB, timed=False):
        assert answering == {connection}
        assert not connection.is_too_slow(trio.current_time() + 10)
        assert connection.is_too_slow(trio.current_time() + 10_000)
    assert not answering
    with connection.answering(1 * MIB, timed=False):
        assert answering == {connection}
        assert not connection.is_too_slow(trio.current_time() + 10_000)


def test_memory_is_trimmed_when_a_quarter_has_gone(unsent: UnsentBytes) -> None:
    assert not unsent.is_trim_due()
    unsent.take(5 * MIB, b"")
    assert not unsent.is_trim_due()
    unsent.give_back(5 * MIB, b"")
    assert unsent.is_trim_due()
    assert not unsent.is_trim_due()
