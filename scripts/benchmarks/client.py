"""A client that costs next to nothing: requests are bytes made beforehand, answers are checked with one scan.

All connections of a load are driven by one selector loop, each with one request in flight (a closed loop): the next
one goes out when the answer is there. Anything but success, and any answer that does not say what was expected, ends
the benchmark: a fast wrong answer is no result.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

TIMEOUT_S = 60.0
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_RECEIVE_BYTES = 1 << 20


class WrongAnswer(Exception):
    """The daemon answered something else than it should."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def expect(self, *statuses: int) -> Answer:
        if self.status not in statuses:
            raise WrongAnswer(f"status {self.status}, expected {statuses}: {self.body[:300]!r}")
        return self


def request_bytes(method: str, target: str, body: bytes = b"") -> bytes:
    """One HTTP/1.1 request, ready to be sent."""
    head = f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    elif method != "GET":
        head += "Content-Length: 0\r\n"
    return head.encode() + b"\r\n" + body


class Connection:
    """One keep-alive connection. `call` blocks; `send` and `receive` are its halves for `run_load`."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._needed = 0
        self._body_at = 0

    def close(self) -> None:
        self.socket.close()

    def call(self, request: bytes) -> Answer:
        self.send(request)
        return self.answer()

    def answer(self) -> Answer:
        """Wait for the answer to what was sent."""
        while True:
            answer = self.receive()
            if answer is not None:
                return answer

    def send(self, request: bytes) -> None:
        self.socket.sendall(request)

    def receive(self) -> Answer | None:
        """One `recv`; the answer if that completed it."""
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise WrongAnswer(f"connection closed after {bytes(self._received[:300])!r}")
        self._received += data
        return self.next_answer()

    def next_answer(self) -> Answer | None:
        """The first answer that is complete, if there is one; where requests are pipelined there may be several."""
        if not self._needed:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return None
            length = _LENGTH.search(self._received, 0, end)
            if length is None:
                raise WrongAnswer(f"no content-length in {bytes(self._received[:end])!r}")
            self._body_at = end + 4
            self._needed = self._body_at + int(length[1])
        if len(self._received) < self._needed:
            return None
        answer = Answer(int(self._received[9:12]), bytes(self._received[self._body_at : self._needed]))
        del self._received[: self._needed]
        self._needed = 0
        return answer


class Line(Protocol):
    """What a load needs of a connection."""

    socket: socket.socket

    def send(self, request: bytes) -> None:
        """Send it whole."""

    def receive(self) -> Answer | None:
        """One `recv`; the answer if that completed it."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Load:
    """What a closed loop did between the end of its warm-up and its end."""

    seconds: float = 0.0
    requests: int = 0
    records: int = 0
    latencies_ms: array[float] = field(default_factory=lambda: array("d"))

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds

    def percentile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


NextRequest = Callable[[int], bytes]
"""Connection number to the bytes of its next request."""
Check = Callable[[int, Answer], int]
"""Connection number and answer to the number of records it stands for; raises `WrongAnswer`."""


def run_load(
    port: int,
    connections: int,
    warm_up_s: float,
    measured_s: float,
    request: NextRequest,
    check: Check,
    connect: Callable[[int], Line] = Connection,
) -> Load:
    """Drive `connections` for `warm_up_s + measured_s`; requests are counted if they began after the warm-up.

    `connect` makes one of a port, and says which protocol is spoken.
    """
    load = Load()
    clock = time.perf_counter
    opened = [connect(port) for _ in range(connections)]
    sent_at = [0.0] * connections
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(opened):
            selector.register(connection.socket, selectors.EVENT_READ, number)
        measure_from = clock() + warm_up_s
        end = measure_from + measured_s
        for number, connection in enumerate(opened):
            sent_at[number] = clock()
            connection.send(request(number))
        waiting = connections
        last = measure_from
        while waiting:
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise WrongAnswer(f"no answer for {TIMEOUT_S:.0f} s")
            for key, _ in ready:
                number = key.data
                answer = opened[number].receive()
                if answer is None:
                    continue
                now = clock()
                records = check(number, answer)
                if sent_at[number] >= measure_from:
                    load.requests += 1
                    load.records += records
                    load.latencies_ms.append((now - sent_at[number]) * 1000)
                    last = now
                if now >= end:
                    waiting -= 1
                    continue
                sent_at[number] = clock()
                opened[number].send(request(number))
    for connection in opened:
        connection.close()
    load.seconds = last - measure_from
    if not load.requests:
        raise WrongAnswer("not a single request was answered in the time measured")
    return load


def run_while(port: int, going_on: Callable[[], bool], request: bytes, check: Check) -> Load:
    """One connection, one request after the other, as long as something else goes on, but at least once."""
    load = Load()
    clock = time.perf_counter
    connection = Connection(port)
    began = clock()
    while True:
        sent_at = clock()
        answer = connection.call(request)
        now = clock()
        load.latencies_ms.append((now - sent_at) * 1000)
        load.requests += 1
        load.records += check(0, answer)
        if not going_on():
            break
    load.seconds = now - began
    connection.close()
    return load
