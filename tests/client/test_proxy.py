"""The bad network does what it is told: other tests rest on it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.client.proxy import Fate, Proxy

ANSWER = bytes(range(256)) * 40


@pytest.fixture
def answering() -> Iterator[int]:
    """The port of a server that answers any bytes, on each connection, with `ANSWER`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        while connection.recv(1 << 16):
                            connection.sendall(ANSWER)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def ask(proxy: Proxy) -> bytes:
    """What arrives of an answer before the connection ends or the answer is whole."""
    arrived = b""
    with (
        suppress(ConnectionResetError, BrokenPipeError),
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection,
    ):
        connection.sendall(b"question")
        while len(arrived) < len(ANSWER) and (chunk := connection.recv(1 << 16)):
            arrived += chunk
    return arrived


def test_a_kind_network_carries_everything(answering: int) -> None:
    with Proxy(answering) as proxy:
        assert ask(proxy) == ANSWER
        assert ask(proxy) == ANSWER


@pytest.mark.parametrize("down", [0, 1, 100, 5000])
def test_an_answer_is_cut_at_the_byte_that_was_named(answering: int, down: int) -> None:
    with Proxy(answering, lambda number: Fate(down=down, reset=False) if number == 0 else Fate()) as proxy:
        assert ask(proxy) == ANSWER[:down]
        assert ask(proxy) == ANSWER


def test_a_request_that_is_cut_is_not_answered(answering: int) -> None:
    with Proxy(answering, lambda _: Fate(up=0)) as proxy:
        assert ask(proxy) == b""


def test_a_severed_network_carries_nothing_until_it_is_mended(answering: int) -> None:
    with Proxy(answering) as proxy:
        proxy.sever()
        assert ask(proxy) == b""
        proxy.mend()
        assert ask(proxy) == ANSWER


def test_a_stalled_network_goes_on_where_it_stopped(answering: int) -> None:
    with Proxy(answering) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as connection:
        proxy.stall()
        connection.sendall(b"question")
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(10)
        proxy.flow()
        assert connection.recv(1) == ANSWER[:1]
