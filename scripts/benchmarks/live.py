"""Live delivery, measured: watchers that cost next to nothing, producers on a schedule, and who got which record when.

All connections of a measurement are driven by one epoll loop in this process. Every record carries its number; it was
*sent* just before its request was written, *acked* when the answer was read, and *delivered* to a watcher when the last
byte of its frame was read. A producer writes by the clock and waits for no answer or delivery (an open loop), so that
slow answers cannot slow down their own measurement.

The same client drives the servers of `benchmarks.fanout`, which do nothing but answer and pass on: what is measured
there is the client, the kernel and the two cores.
"""

from __future__ import annotations

import gc
import re
import select
import socket
import struct
import time
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.client import TIMEOUT_S, Answer, Connection, WrongAnswer, request_bytes
from benchmarks.figures import Figure, figure
from benchmarks.machine import cpu_seconds, waited_seconds

DATA_BYTES = 100
SETTLE_S = 30.0
"""How long after the last record everything may still be on its way."""

_RECORD = re.compile(rb'"\$seq":([0-9]+),"\$ts":[0-9]+,"data":"#([0-9]{8})')
MAX_LINES = 32
_RECEIVE_BYTES = 256 << 10
_READY_AT_ONCE = 64
"""Sockets looked at between two looks at the clock."""


class Loop:
    """Sockets with something to read, and things to do by the clock."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._timers: dict[Timer, None] = {}

    def add(self, sock: socket.socket, handler: Callable[[], None]) -> None:
        self._handlers[sock.fileno()] = handler
        self._epoll.register(sock.fileno(), select.EPOLLIN)

    def remove(self, sock: socket.socket) -> None:
        self._epoll.unregister(sock.fileno())
        del self._handlers[sock.fileno()]

    @contextmanager
    def every(self, seconds: float, action: Callable[[], None], *, after_s: float = 0.0) -> Iterator[None]:
        """By the clock: what is late is made up for, so that as much happens as was to happen."""
        timer = Timer(seconds, action, time.perf_counter() + after_s)
        self._timers[timer] = None
        try:
            yield
        finally:
            del self._timers[timer]

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> bool:
        """For so long, or until something is so; whether it came to be."""
        clock, handlers, poll = time.perf_counter, self._handlers, self._epoll.poll
        end = clock() + seconds
        while True:
            now = clock()
            due = end
            for timer in self._timers:
                if timer.due <= now:
                    timer.due += timer.seconds
                    timer.action()
                due = min(due, timer.due)
            if until is not None and until():
                return True
            now = clock()
            if now >= end:
                return False
            for fd, _ in poll(max(due - now, 0.0), _READY_AT_ONCE):
                handler = handlers.get(fd)
                if handler is not None:
                    handler()

    def close(self) -> None:
        self._epoll.close()


@dataclass(eq=False, slots=True)
class Timer:
    seconds: float
    action: Callable[[], None]
    due: float


class Pipelined:
    """A connection on which requests are written without waiting for answers."""

    def __init__(self, loop: Loop, port: int) -> None:
        self._loop = loop
        self._connection = Connection(port)
        self._waiting: deque[Callable[[Answer], None]] = deque()
        loop.add(self._connection.socket, self._readable)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def send(self, request: bytes, on_answer: Callable[[Answer], None]) -> None:
        self._waiting.append(on_answer)
        self._connection.send(request)

    def _readable(self) -> None:
        answer = self._connection.receive()
        while answer is not None:
            self._waiting.popleft()(answer)
            answer = self._connection.next_answer()

    def close(self) -> None:
        self._loop.remove(self._connection.socket)
        self._connection.close()


class Journal:
    """What became of the records of one topic, by their numbers; times are `perf_counter_ns`."""

    def __init__(self) -> None:
        self.sent = array("q")
        self.acked = array("q")
        """0 before the answer, -1 when it was a refusal."""
        self.delivered: list[tuple[array[int], array[int]]] = []
        """For each watcher the numbers it got, and when."""

    def accepted(self) -> int:
        return sum(at > 0 for at in self.acked)

    def answered(self) -> bool:
        return all(self.acked)

    def complete(self) -> bool:
        """Everything is answered, and delivered to everybody. Raises `WrongAnswer` for what was not acknowledged."""
        if not self.answered():
            return False
        accepted = self.accepted()
        if any(len(numbers) < accepted for numbers, _ in self.delivered):
            return False
        expected = [number for number, at in enumerate(self.acked) if at > 0]
        if any(sorted(numbers) != expected for numbers, _ in self.delivered):
            raise WrongAnswer("a watcher got other records than were acknowledged")
        return True

    def got(self) -> str:
        """How many of them, for a message."""
        counts = [len(numbers) for numbers, _ in self.delivered]
        return f"{min(counts)} to {max(counts)}"

    def clear(self) -> None:
        """Begin anew; everything must have been complete."""
        for part in (self.sent, self.acked, *(part for pair in self.delivered for part in pair)):
            del part[:]

    def ack_ms(self) -> list[float]:
        return [(at - sent) / 1e6 for sent, at in zip(self.sent, self.acked, strict=True) if at > 0]

    def delivery_ms(self, since: int = 0, until: int = 1 << 62) -> list[float]:
        """From sending to delivery: all pairs of a watcher and a record sent between two times."""
        sent = self.sent
        return [
            (at - sent[number]) / 1e6
            for numbers, times in self.delivered
            for number, at in zip(numbers, times, strict=True)
            if since <= sent[number] < until
        ]

    def from_ack_ms(self, since: int = 0, until: int = 1 << 62) -> list[float]:
        """The same from the ack to delivery; 0 where delivery was first."""
        sent, acked = self.sent, self.acked
        return [
            max(at - acked[number], 0) / 1e6
            for numbers, times in self.delivered
            for number, at in zip(numbers, times, strict=True)
            if since <= sent[number] < until
        ]

    def last_ms(self) -> list[float]:
        """From sending to the last watcher's delivery, of each record that all got."""
        last: dict[int, int] = {}
        for numbers, times in self.delivered:
            for number, at in zip(numbers, times, strict=True):
                last[number] = max(last.get(number, 0), at)
        return [(at - self.sent[number]) / 1e6 for number, at in last.items()]


class Producer:
    """Appends records of 100 bytes to a topic, one at a time.

    Over a connection of its own, unless an append is still unanswered when the next is due: then over another one, so
    that it does not wait for the first; of too many connections the one on which the fewest are waiting.
    """

    def __init__(self, loop: Loop, port: int, topic: str, journal: Journal) -> None:
        self.journal = journal
        self._loop = loop
        self._port = port
        self._lines = [Pipelined(loop, port)]
        filler = b"x" * (DATA_BYTES - 11)
        request = request_bytes(
            "POST",
            f"/v0/topics/{topic}?return_seqs=false",
            b'{"records":[{"data":"#%b%b"}]}' % (b"0" * 8, filler),
        )
        self._before, _, self._after = request.partition(b"#00000000")
        self.refused = 0

    def send(self) -> None:
        journal = self.journal
        number = len(journal.sent)
        request = b"%b#%08d%b" % (self._before, number, self._after)
        line = min(self._lines, key=lambda line: line.waiting)
        if line.waiting and len(self._lines) < MAX_LINES:
            line = Pipelined(self._loop, self._port)
            self._lines.append(line)
        journal.acked.append(0)
        journal.sent.append(time.perf_counter_ns())
        line.send(request, lambda answer: self._answered(number, answer))

    def _answered(self, number: int, answer: Answer) -> None:
        now = time.perf_counter_ns()
        if answer.expect(200, 201, 429).status == 429:
            self.refused += 1
            now = -1
        self.journal.acked[number] = now

    def close(self) -> None:
        for line in self._lines:
            line.close()


# --- watchers --------------------------------------------------------------------------------------------------------


class Watcher(ABC):
    """One connection that gets what is appended. `_complete` says which part of what was read is whole frames."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.numbers = array("l")
        self.times = array("q")
        self.bytes = 0
        self._seq = 0
        self.paced = 0
        """Advisories that its topic gets nothing for now."""

    def record_in(self, journal: Journal) -> None:
        journal.delivered.append((self.numbers, self.times))

    def readable(self) -> None:
        data = self.socket.recv(_RECEIVE_BYTES)
        now = time.perf_counter_ns()
        if not data:
            raise WrongAnswer("a watcher was disconnected")
        self.bytes += len(data)
        frames = self._complete(data)
        if not frames:
            return
        if b"error" in frames or b"tombstone" in frames:
            self._complain(frames)
        for seq, number in _RECORD.findall(frames):
            if int(seq) <= self._seq:
                raise WrongAnswer(f"a watcher got {int(seq)} after {self._seq}")
            self._seq = int(seq)
            self.numbers.append(int(number))
            self.times.append(now)

    @abstractmethod
    def _complete(self, data: bytes) -> bytes:
        """Take what has come; the frames that are complete with it."""

    def _complain(self, frames: bytes) -> None:
        paced = frames.count(b"paced under pressure")
        errors = frames.count(b"event: error") + frames.count(b'"op":"error"')
        if paced != errors or b"tombstone" in frames:
            raise WrongAnswer(f"a watcher was told {frames[-300:]!r}")
        self.paced += paced

    def close(self) -> None:
        self.socket.close()


class EventWatcher(Watcher):
    """A stream of server-sent events, of a topic or of a session."""

    def __init__(self, port: int, target: str, *, receive_buffer: int | None = None) -> None:
        super().__init__(port, receive_buffer=receive_buffer)
        self._chunks = self._frames = b""
        self.socket.sendall(request_bytes("GET", target))

    def wait_until_live(self) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        head, _, rest = received.partition(b"\r\n\r\n")
        if b" 200 " not in head:
            raise WrongAnswer(f"a stream was refused: {received[:500]!r}")
        frames = self._complete(rest)
        while b"event: caught-up" not in frames:
            frames += self._complete(self._receive())

    def _receive(self) -> bytes:
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise WrongAnswer("a stream ended at once")
        return data

    def _complete(self, data: bytes) -> bytes:
        if not (self._chunks or self._frames) and data.endswith(b"\n\n\r\n") and len(data) < 60_000:
            return data  # whole chunks of whole frames: no frame is cut in pieces that is smaller than a chunk
        self._chunks += data
        parts, at = [self._frames], 0
        while (end := self._chunks.find(b"\r\n", at)) >= 0:
            size = int(self._chunks[at:end], 16)
            if not size:
                raise WrongAnswer("a stream was ended")
            if end + size + 4 > len(self._chunks):
                break
            parts.append(self._chunks[end + 2 : end + 2 + size])
            at = end + size + 4
        self._chunks = self._chunks[at:]
        frames = b"".join(parts)
        cut = frames.rfind(b"\n\n") + 2 if b"\n\n" in frames else 0
        self._frames = frames[cut:]
        return frames[:cut]


_UPGRADE = (
    b"GET /v0/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10


def masked(payload: bytes, opcode: int = _TEXT) -> bytes:
    """A frame of a client. The mask is zero, which masks nothing and is allowed."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    return head + bytes(4) + payload


class SocketWatcher(Watcher):
    """A WebSocket that is subscribed to a topic."""

    def __init__(self, port: int, topic: str, *, receive_buffer: int | None = None) -> None:
        super().__init__(port, receive_buffer=receive_buffer)
        self._topic = topic
        self._pending = b""
        self.socket.sendall(_UPGRADE)

    def upgrade(self) -> None:
        """Wait until it is a WebSocket."""
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._receive()
        if b" 101 " not in received or not received.endswith(b"\r\n\r\n"):
            raise WrongAnswer(f"the upgrade was refused: {received[:500]!r}")

    def wait_until_live(self) -> None:
        self.upgrade()
        self.say(b'{"op":"subscribe","topic":"%b","tail":true}' % self._topic.encode())
        messages = b""
        while b'"caught_up"' not in messages:
            messages += self._complete(self._receive())

    def say(self, message: bytes) -> None:
        self.socket.sendall(masked(message))

    def hear(self) -> bytes:
        """Wait for whole messages."""
        while True:
            messages = self._complete(self._receive())
            if messages:
                return messages

    def _receive(self) -> bytes:
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise WrongAnswer("a WebSocket ended")
        return data

    def _complete(self, data: bytes) -> bytes:
        data = self._pending + data
        whole, at, size = [], 0, len(data)
        while at + 2 <= size:
            opcode, length, begin = data[at] & 0x0F, data[at + 1], at + 2
            if length == 126:
                length, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif length == 127:
                length, begin = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if begin + length > size:
                break
            at = begin + length
            if opcode == _PING:
                self.socket.sendall(masked(data[begin:at], _PONG))
            elif opcode == _CLOSE:
                raise WrongAnswer(f"a WebSocket was closed: {data[begin:at]!r}")
            else:
                whole.append(data[begin:at])
        self._pending = data[at:]
        return b"".join(whole)


Opener = Callable[[int, str], EventWatcher | SocketWatcher]
"""Port and topic to a watcher that has asked for it."""


def open_stream(port: int, topic: str) -> EventWatcher:
    """Without a session."""
    return EventWatcher(port, f"/v0/topics/{topic}/stream?tail=true")


def open_socket(port: int, topic: str) -> SocketWatcher:
    return SocketWatcher(port, topic)


def open_watchers(opener: Opener, port: int, topic: str, count: int) -> list[EventWatcher | SocketWatcher]:
    """They have everything that was there, and wait."""
    watchers = []
    for first in range(0, count, 100):
        some = [opener(port, topic) for _ in range(first, min(first + 100, count))]
        for watcher in some:
            watcher.wait_until_live()
        watchers += some
    return watchers


# --- a measurement ---------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """One repetition."""

    journal: Journal
    server_s: float
    """Processor time of the server for it."""
    client_s: float
    waited_s: float
    """For how long the server's loop was ready to run and had no core."""
    seconds: float

    @property
    def deliveries(self) -> int:
        return sum(len(numbers) for numbers, _ in self.journal.delivered)


def run_once(
    pid: int, port: int, topic: str, opener: Opener, watchers: int, *, interval_s: float, seconds: float
) -> Run:
    """Watchers of one topic, a record every `interval_s`, until everybody has everything. `pid` is the server's."""
    loop, journal = Loop(), Journal()
    opened = open_watchers(opener, port, topic, watchers)
    for watcher in opened:
        watcher.record_in(journal)
        loop.add(watcher.socket, watcher.readable)
    producer = Producer(loop, port, topic, journal)
    gc.collect()
    gc.disable()  # a collection would be measured as the daemon's
    try:
        with loop.every(0.05, producer.send):
            loop.run(0.3)
        _settle(loop, journal)
        journal.clear()
        began, client_s = time.perf_counter(), time.process_time()
        server_s, waited_s = cpu_seconds(pid), waited_seconds(pid)
        with loop.every(interval_s, producer.send):
            loop.run(seconds)
        _settle(loop, journal)
        return Run(
            journal,
            server_s=cpu_seconds(pid) - server_s,
            client_s=time.process_time() - client_s,
            waited_s=waited_seconds(pid) - waited_s,
            seconds=time.perf_counter() - began,
        )
    finally:
        gc.enable()
        producer.close()
        for watcher in opened:
            watcher.close()
        loop.close()


def _settle(loop: Loop, journal: Journal) -> None:
    settle(loop, journal.complete, SETTLE_S, lambda: f"of {journal.accepted()} records watchers have {journal.got()}")


def settle(loop: Loop, complete: Callable[[], bool], seconds: float, problem: Callable[[], str]) -> None:
    """Go on until everything is complete, which is asked now and then only: it may mean to look at everything."""
    end = time.perf_counter() + seconds
    while not complete():
        if time.perf_counter() > end:
            raise WrongAnswer(f"after {seconds:.0f} s {problem()}")
        loop.run(0.02)


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def figures_of(
    name: str, key: str, runs: Sequence[Run], *, p99_ms: float | None = None, references: Sequence[str] = ()
) -> list[Figure]:
    """What is told of some repetitions. `references` are keys of the same for other servers, without `-p50`."""
    pairs = [run.journal.delivery_ms() for run in runs]
    last = [run.journal.last_ms() for run in runs]
    from_ack = [run.journal.from_ack_ms() for run in runs]
    acks = [run.journal.ack_ms() for run in runs]

    def of(values: Sequence[Sequence[float]], share: float) -> list[float]:
        return [percentile(some, share) for some in values]

    def beside(suffix: str) -> tuple[str, ...] | None:
        return tuple(f"{reference}-{suffix}" for reference in references) or None

    server = [1e6 * run.server_s / run.deliveries for run in runs]
    client = [1e6 * run.client_s / run.deliveries for run in runs]
    waited = [100 * run.waited_s / run.seconds for run in runs]
    return [
        figure(f"{name}, p50", "ms", of(pairs, 0.5), key=f"{key}-p50", references=beside("p50")),
        figure("... p99", "ms", of(pairs, 0.99), at_most=p99_ms, references=beside("p99")),
        figure("... of the last watcher to get a record, p50", "ms", of(last, 0.5), key="last-p50"),
        figure("... of the last watcher, p99", "ms", of(last, 0.99), key="last-p99", references=beside("last-p99")),
        figure("... from the ack, p50", "ms", of(from_ack, 0.5), key="from-ack-p50"),
        figure("... from the ack, p99", "ms", of(from_ack, 0.99), key="from-ack-p99"),
        figure("... the ack itself, p50", "ms", of(acks, 0.5), key="ack-p50"),
        figure("... the ack itself, p99", "ms", of(acks, 0.99), key="ack-p99"),
        figure("... processor of the server for a delivery", "us", server, key="server", references=beside("server")),
        figure("... processor of the client for a delivery", "us", client, key="client"),
        figure("... of the time, the loop of the server waited for a core", "%", waited, key="waited"),
    ]


def brief_figures_of(name: str, key: str, runs: Sequence[Run]) -> list[Figure]:
    """The same for a reference: less of it."""
    return [one for place, one in enumerate(figures_of(name, key, runs)) if place in {0, 1, 3, 8, 9, 10}]
