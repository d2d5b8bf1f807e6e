"""Redis as a reference: the protocol, against bytes that a server has sent, and what there is without a server."""

from __future__ import annotations

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import redis_streams
from benchmarks.bench import Bench
from benchmarks.client import WrongAnswer
from benchmarks.figures import Figure
from benchmarks.redis_streams import Incomplete, RedisError, RedisLine, command, parse, redis_figures


def test_a_command_is_an_array_of_bulk_strings() -> None:
    assert command("XADD", "s", 12, b"\r\n") == b"*4\r\n$4\r\nXADD\r\n$1\r\ns\r\n$2\r\n12\r\n$2\r\n\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"+PONG\r\n", b"PONG"),
        (b":-12\r\n", -12),
        (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
        (b"$0\r\n\r\n", b""),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*0\r\n", []),
        (
            b"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$4\r\ndata\r\n$1\r\nx\r\n",
            [[b"s", [[b"1-1", [b"data", b"x"]]]]],
        ),
    ],
    ids=["status", "number", "string", "empty string", "no string", "no array", "empty array", "stream"],
)
def test_a_reply_is_read_to_its_end(data: bytes, reply: object) -> None:
    assert parse(data + b"+more\r\n") == (reply, len(data))


@pytest.mark.parametrize(
    ("data", "reply"),
    [(b"*2\r\n$3\r\n1-1\r\n*1\r\n:7\r\n", [b"1-1", [7]]), (b"*2\r\n:7\r\n$3\r\n1-1\r\n", [7, b"1-1"])],
    ids=["number", "string"],
)
def test_a_reply_is_incomplete_until_its_last_byte(data: bytes, reply: object) -> None:
    for end in range(len(data)):
        with pytest.raises(Incomplete):
            parse(data[:end])
    assert parse(data) == (reply, len(data))


def test_an_error_is_raised_wherever_it_is() -> None:
    with pytest.raises(RedisError, match="NOGROUP"):
        parse(b"*1\r\n-NOGROUP no such group\r\n")


def test_what_is_no_reply_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with"):
        parse(b"HTTP/1.1 400\r\n")


@contextmanager
def answering(*pieces: bytes) -> Iterator[RedisLine]:
    """A connection to a server that waits for one request, and answers in these pieces."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                received = b""
                while not received.endswith(command("PING")):
                    received += peer.recv(1 << 16)
                for piece in pieces:
                    peer.sendall(piece)

        server = threading.Thread(target=serve)
        server.start()
        try:
            with closing(RedisLine(listener.getsockname()[1])) as line:
                yield line
        finally:
            server.join(10)


def test_all_replies_to_a_pipeline_are_read_whatever_pieces_they_come_in() -> None:
    with answering(b"$3\r\n1-", b"1\r\n$3\r\n1-2\r\n+PO", b"NG\r\n") as line:
        assert line.call(b"two commands") == b"$3\r\n1-1\r\n$3\r\n1-2\r\n"


@pytest.mark.parametrize("replies", [b"-ERR no\r\n", b"$3\r\n1-1\r\n-ERR no\r\n"], ids=["first", "second"])
def test_an_error_among_the_replies_ends_the_benchmark(replies: bytes) -> None:
    with answering(replies + b"+PONG\r\n") as line, pytest.raises(WrongAnswer, match="ERR no"):
        line.call(b"commands")


def test_an_id_is_no_error() -> None:
    with answering(b"$15\r\n1700000000000-0\r\n+PONG\r\n") as line:
        assert line.call(b"a command").startswith(b"$15")


def test_a_connection_that_is_closed_ends_the_benchmark() -> None:
    with answering(b"$3\r\n") as line, pytest.raises(WrongAnswer, match="closed"):
        line.call(b"a command")


def test_without_redis_its_figures_are_absent_and_nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(_: Bench) -> list[Figure]:
        raise AssertionError("there is no server")

    monkeypatch.setattr(redis_streams, "PROGRAM", "redis-server-that-is-not-there")
    bench = Bench(Path(), Console(file=io.StringIO()), quick=True)
    assert redis_figures(bench, ("redis-1000", "redis-100"), measure) == []
    assert bench.absent == {"redis-1000": "not installed", "redis-100": "not installed"}
