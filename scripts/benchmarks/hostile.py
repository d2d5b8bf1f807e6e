"""What clients that mean harm can do to the others: one attack after the other, each on a daemon of its own.

`ATTACKS` is the table: a name, a sentence, the function that carries the attack out, and the most memory that it may
take. To add an attack, write a function of a `Target` and add its row. The function sends what the attack consists
of over connections that it opens with `Target.connect`, which stay open until everything has been measured, and
returns. Of each attack these figures are made:

- `held`: the longest time for which the daemon's loop did nothing but one step of one task while it went on, in ms of
  the processor (`timed_steps`).
- `answer`: the longest time to an answer of `/v0/health` on another connection while it went on, in ms. The probe is a
  process of its own (`health_probe`). Where an attack consists of many requests at once, the probe waits for its turn
  among them; the figure also includes what the machine adds, which the row `nothing` shows.
- `memory`: by how much the daemon's resident memory grew at its highest.
- `after`: the same some seconds after the attacker has gone, where a row says what it may be.
- `works`: 1 if a new client can append, read and delete afterwards, with the attacker's connections still open.
"""

from __future__ import annotations

import contextlib
import gzip
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.bench import Bench, Control, quiet
from benchmarks.client import WrongAnswer, request_bytes
from benchmarks.figures import Figure, figure, slug
from benchmarks.health_probe import HealthProbe
from benchmarks.machine import resident_mib
from benchmarks.timed_steps import LEAST_MS, steps_since
from daemon_process import DaemonProcess

HELD_MS = 20.0
MEMORY_MIB = 64.0

UNSENT_MIB = 64
UNSENT = {"max_unsent_bytes": UNSENT_MIB << 20, "max_unsent_bytes_per_key": UNSENT_MIB << 20}
"""Settings of the daemon for the attacks on the bound of unread answers."""
UNSENT_MEMORY_MIB = 2.5 * UNSENT_MIB + 48
"""What docs/operations.md says that unread answers take at most with these: it has to hold."""
UNSENT_AFTER_MIB = 48.0
GONE_S = 8.0
"""How long the daemon has to give back what it took, once the attacker has gone."""

TOPIC = "attacked"
"""A log that holds `RECORDS` records of `RECORD_BYTES` bytes."""
RECORDS = 1000
RECORD_BYTES = 1000


@dataclass(slots=True)
class Target:
    """What an attack is carried out on."""

    port: int
    seconds: float
    """How long an attack goes on that could go on for ever."""
    stack: ExitStack
    control: Control

    def connect(self, sent: bytes = b"", *, receive_buffer: int | None = None) -> socket.socket:
        """A connection that stays open until the attack has been measured, on which this was sent."""
        connection = self.stack.enter_context(socket.socket())
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(30)
        connection.connect(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(connection, sent)
        return connection

    @staticmethod
    def send(connection: socket.socket, data: bytes) -> bool:
        """Send as much as the daemon takes. Return False if it has closed the connection, or reads no further."""
        try:
            connection.sendall(data)
        except OSError:
            return False
        return True

    @staticmethod
    def drain(connection: socket.socket, seconds: float) -> int:
        """Receive and drop what comes, for so long or to the end. Returns how many bytes that were."""
        deadline, received = time.monotonic() + seconds, 0
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                connection.settimeout(left)
                part = connection.recv(1 << 16)
                if not part:
                    break
                received += len(part)
        connection.settimeout(30)
        return received

    def wait(self) -> None:
        """Let the daemon work on what was sent."""
        time.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Attack:
    """One row of the table."""

    name: str
    sentence: str
    run: Callable[[Target], None]
    memory_mib: float = MEMORY_MIB
    settings: Mapping[str, object] = field(default_factory=dict)
    """Of the daemon, which has no keys."""
    record_bytes: int = RECORD_BYTES
    """Size of the records of the topic."""
    after_mib: float | None = None
    """The most memory that may still be taken when the attacker has gone; None: it is not measured."""


def run(bench: Bench) -> list[Figure]:
    """All attacks of the table."""
    figures: list[Figure] = []
    for attack in ATTACKS:
        bench.say(f"{attack.name}: {attack.sentence}")
        figures += _figures(bench, attack)
    return figures


def _figures(bench: Bench, attack: Attack) -> list[Figure]:
    with _daemon(bench, attack) as (daemon, steps), closing(Control(daemon.port)) as control:
        _fill(control, attack.record_bytes)
        before = resident_mib(daemon.pid)
        began_s = time.monotonic()
        with ExitStack() as stack:
            target = Target(daemon.port, 1.0 if bench.quick else 3.0, stack, control)
            with HealthProbe(daemon.port) as probe:
                attack.run(target)
            longest = max(steps_since(steps, began_s), key=lambda step: step.took_ms, default=None)
            works = _works(daemon.port)
            taken = resident_mib(daemon.pid, peak=True) - before
        after = None if attack.after_mib is None else _left(daemon.pid, before, attack.after_mib)
    key = slug(attack.name)
    held_ms = longest.took_ms if longest is not None else LEAST_MS
    if longest is not None and held_ms > HELD_MS:
        bench.say(f"  a step of {longest.task} took {held_ms:.0f} ms")
    figures = [
        figure(f"{attack.name}, longest step of the loop", "ms", [held_ms], key=f"{key}-held", at_most=HELD_MS,
               references=()),
        figure(f"{attack.name}, longest time to an answer of others", "ms", [probe.longest_ms], key=f"{key}-answer",
               references=()),
        figure(f"{attack.name}, memory", "MiB", [max(taken, 0.0)], key=f"{key}-memory", at_most=attack.memory_mib),
        figure(f"{attack.name}, a new client works afterwards", "", [works], key=f"{key}-works", at_least=1),
    ]  # fmt: skip
    if after is not None:
        name = f"{attack.name}, memory when the attacker has gone"
        figures.append(figure(name, "MiB", [max(after, 0.0)], key=f"{key}-after", at_most=attack.after_mib))
    return figures


@contextmanager
def _daemon(bench: Bench, attack: Attack) -> Iterator[tuple[DaemonProcess, Path]]:
    """A daemon on an empty directory, and the file with the steps of its loop."""
    with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet(dict(attack.settings))) as daemon:
        steps = scratch / "steps"
        daemon.program = ("benchmarks.timed_steps", str(steps))
        daemon.start()
        yield daemon, steps
        daemon.stop()


def _left(pid: int, before: float, most: float) -> float:
    """How much more memory is taken than `before`, when that is no more than `most`, or after `GONE_S`."""
    deadline = time.monotonic() + GONE_S
    while (left := resident_mib(pid) - before) > most and time.monotonic() < deadline:
        time.sleep(0.2)
    return left


def _fill(control: Control, record_bytes: int) -> None:
    control.create(TOPIC, durability="ephemeral")
    record = {"data": "x" * record_bytes}
    control.call("POST", f"/v0/topics/{TOPIC}?return_seqs=false", {"records": [record] * RECORDS})


def _works(port: int) -> float:
    """Whether a new client can do what clients do."""
    try:
        with closing(Control(port)) as control:
            control.create("afterwards", durability="ephemeral")
            control.call("POST", "/v0/topics/afterwards", {"records": [{"data": 1}]})
            found = control.call("POST", "/v0/topics/afterwards/diff", {})
            control.delete("afterwards")
        return float(found["head_seq"] == 1)
    except (OSError, WrongAnswer):
        return 0.0


# --- HTTP/2 by hand --------------------------------------------------------------------------------------------------

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS = 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def settings_frame(**values: int) -> bytes:
    """A SETTINGS frame; of its values this module needs only the initial window."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", 4, value) for value in values.values()))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def literal(*fields: tuple[str, str]) -> bytes:
    """Header fields without compression (RFC 7541, 6.2.2); each of them shorter than 127 bytes."""
    return b"".join(b"\0%c%b%c%b" % (len(name), name.encode(), len(value), value.encode()) for name, value in fields)


def block(path: str, *fields: tuple[str, str], method: str = "GET") -> bytes:
    """The headers of a request."""
    return literal((":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost"), *fields)


def get2(stream: int, path: str, *fields: tuple[str, str]) -> bytes:
    """A whole request."""
    return frame(HEADERS, END_STREAM | END_HEADERS, stream, block(path, *fields))


# --- the attacks -----------------------------------------------------------------------------------------------------


def nothing(target: Target) -> None:
    """What the machine and the probe add to all other rows."""
    target.wait()


def byte_behind_a_stream(target: Target) -> None:
    """Event streams with a byte behind their heads, closed again at once."""
    for _ in range(200):
        connection = target.connect(f"GET /v0/topics/{TOPIC}/stream HTTP/1.1\r\nhost: localhost\r\n\r\nG".encode())
        connection.recv(1)
        connection.close()
    target.wait()


def unread_answers(target: Target) -> None:
    """Reads of a megabyte each over HTTP/2, none of which may be sent: the window is 0."""
    first = frame(HEADERS, END_STREAM | END_HEADERS, 1, _indexed_block(f"/v0/topics/{TOPIC}/diff?limit=1000"))
    # The second and all others are indexed fields: 13 bytes each.
    others = b"".join(
        frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, b"\x82\x86\xbf\xbe") for number in range(1, 1500)
    )
    target.connect(PREFACE + settings_frame(initial_window_size=0) + first + others)
    target.wait()


def _closed_windows(target: Target, path: str, connections: int, streams: int) -> None:
    """Many connections one after the other, each with many requests of which no answer may be sent: while some are cut
    off, others come."""
    first = frame(HEADERS, END_STREAM | END_HEADERS, 1, _indexed_block(path))
    others = b"".join(
        frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, b"\x82\x86\xbf\xbe") for number in range(1, streams)
    )
    for _ in range(connections):
        connection = target.connect(PREFACE + settings_frame(initial_window_size=0))
        connection.settimeout(target.seconds)
        target.send(connection, first + others)
        time.sleep(2 * target.seconds / connections)
    target.wait()


def bound_by_small_answers(target: Target) -> None:
    """Refusals: what counts is the streams."""
    _closed_windows(target, "/v0/nowhere", 60, 3000)


def bound_by_medium_answers(target: Target) -> None:
    """Reads of 256 KiB."""
    _closed_windows(target, f"/v0/topics/{TOPIC}/diff?limit=256", 60, 500)


def bound_by_large_answers(target: Target) -> None:
    """Reads of 8 MB."""
    _closed_windows(target, f"/v0/topics/{TOPIC}/diff?limit=1000&max_batch_bytes=8388608", 60, 50)


def bound_by_http1(target: Target) -> None:
    """Reads of 8 MB, of 256 KiB and of 32 KiB on 500 HTTP/1.1 connections that read nothing."""
    for number in range(500):
        limit = (1000, 32, 4)[number % 3]
        path = f"/v0/topics/{TOPIC}/diff?limit={limit}&max_batch_bytes=8388608"
        target.connect(request_bytes("GET", path) * 5, receive_buffer=4096)
        time.sleep(0.005)
    target.wait()


def _indexed_block(path: str) -> bytes:
    """The headers of a GET; path and authority go into the table, where they are 63 and 62."""
    return b"\x82\x86\x44" + _string(path) + b"\x41" + _string("localhost")


def _string(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def unread_refusals(target: Target) -> None:
    """Requests over HTTP/2 that are refused, whose refusals may not be sent."""
    requests = b"".join(get2(2 * number + 1, "/v0/nowhere") for number in range(6000))
    connection = target.connect(PREFACE + settings_frame(initial_window_size=0))
    connection.settimeout(target.seconds)
    target.send(connection, requests)
    target.wait()


def unread_pipeline(target: Target) -> None:
    """Reads of a megabyte each, pipelined over HTTP/1.1 connections that read nothing."""
    request = request_bytes("GET", f"/v0/topics/{TOPIC}/diff?limit=1000")
    for _ in range(100):
        target.connect(request * 50, receive_buffer=4096)
        time.sleep(0.01)
    target.wait()


def commas_by_reference(target: Target) -> None:
    """A field of commas, over and over by its place in the table."""
    commas = b"\x40" + _string("accept-encoding") + b"\x7f\xa1\x1e" + b"," * 4000
    for _ in range(5):
        connection = target.connect(
            PREFACE
            + settings_frame(initial_window_size=1 << 20)
            + frame(HEADERS, END_STREAM | END_HEADERS, 1, _indexed_block("/v0/docs") + commas)
        )
        for number in range(1, 20):
            # The path is 64 in the table by then, the authority 63, the commas 62.
            fields = b"\x82\x86\xc0\xbf" + b"\xbe" * 40
            target.send(connection, frame(HEADERS, END_STREAM | END_HEADERS, 2 * number + 1, fields))
        target.drain(connection, target.seconds / 5)


def trailers(target: Target) -> None:
    """47,000 trailer fields behind a chunked body."""
    head = f"POST /v0/topics/{TOPIC}/diff HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    upload = head.encode() + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n" + b"a:b\r\n" * 47_000 + b"\r\n"
    for _ in range(5):
        target.drain(target.connect(upload), target.seconds / 5)


def header_fields(target: Target) -> None:
    """Heads of as many fields as there may be, over HTTP/1.1."""
    request = b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n" + b"a:b\r\n" * 990 + b"\r\n"
    for _ in range(5):
        target.drain(target.connect(request * 20), target.seconds / 5)


def pings(target: Target) -> None:
    """PING frames over HTTP/2."""
    connection = target.connect(PREFACE + settings_frame(initial_window_size=65_535))
    connection.settimeout(target.seconds)
    target.send(connection, frame(PING, 0, 0, bytes(8)) * 50_000)
    target.drain(connection, target.seconds)


def fragments(target: Target) -> None:
    """A WebSocket message in fragments of one byte."""
    connection = _websocket(target)
    target.send(connection, _masked(1, b"{", fin=False) + _masked(0, b" ", fin=False) * 100_000)
    target.wait()


def pongs(target: Target) -> None:
    """Empty pongs over a WebSocket."""
    connection = _websocket(target)
    target.send(connection, _masked(10, b"") * 100_000)
    target.wait()


def websocket_pings(target: Target) -> None:
    """Empty pings over a WebSocket, whose pongs are not read."""
    connection = _websocket(target)
    connection.settimeout(target.seconds)
    target.send(connection, _masked(9, b"") * 100_000)
    target.wait()


def _websocket(target: Target) -> socket.socket:
    connection = target.connect(
        b"GET /v0/ws HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    if not connection.recv(4096).startswith(b"HTTP/1.1 101 "):
        raise WrongAnswer("no WebSocket was opened")
    return connection


def _masked(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """A frame of a client (RFC 6455, 5.2); the mask is zero."""
    return bytes(((0x80 if fin else 0) | opcode, 0x80 | len(payload))) + bytes(4) + payload


def idle_connections(target: Target) -> None:
    """Connections that never ask for anything, as many as this process may have, up to 3,000."""
    with contextlib.suppress(OSError):
        for _ in range(3000):
            target.connect()
    target.wait()


def _call(target: Target, method: str, path: str, body: bytes, *fields: str) -> None:
    """One request on a connection of its own, and its answer."""
    head = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json", *fields]
    connection = target.connect("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode())
    target.send(connection, body)
    with contextlib.suppress(OSError):
        connection.recv(1 << 16)


def repeated_seqs(target: Target) -> None:
    """Acks of one seq, again and again: as many as a call may hold, and 50 MB of them."""
    for size in (250 << 10, 50 << 20):
        body = b'{"node":"n","seqs":[%b1]}' % (b"1," * (size // 2))
        for _ in range(3):
            _call(target, "POST", f"/v0/topics/{TOPIC}/ack", body)


def watched_topics(target: Target) -> None:
    """Watches of more topics than there may be."""
    for count in (20_000, 2_000_000):
        body = b'{"topics":{%b}}' % b",".join(b'"%x":{}' % number for number in range(count))
        for _ in range(3):
            _call(target, "POST", "/v0/watch", body)


def unknown_key(target: Target) -> None:
    """A key of 60 MB that no topic has in its configuration, alone and inside an append."""
    key = b'{"%b":1}' % (b"k" * (60 << 20))
    for _ in range(3):
        _call(target, "PUT", f"/v0/topics/{TOPIC}", key)
        _call(target, "PUT", f"/v0/topics/{TOPIC}", b'{"%b":1}' % (b"k" * (255 << 10)))


def long_patterns(target: Target) -> None:
    """Filters and matches of 60 MB, and of as much as a call may hold."""
    for size in (250 << 10, 60 << 20):
        pattern = b'["tag","Glob","%b*"]' % (b"p" * size)
        _call(target, "POST", f"/v0/topics/{TOPIC}/delete", b'{"match":%b}' % pattern)
        _call(target, "PUT", "/v0/routers/r", b'{"source":"%b","dest":"d","filter":%b}' % (TOPIC.encode(), pattern))


def node_lists(target: Target) -> None:
    """Watch sessions that leave out 1,000 nodes each, as long as they may be."""
    connection = target.connect()
    for number in range(2000):
        nodes = ",".join(f'"{number:06}-{i:04}-{"n" * 100}"' for i in range(1000))
        body = f'{{"topics":{{"{TOPIC}":{{}}}},"node":[{nodes}]}}'.encode()
        target.send(connection, request_bytes("POST", "/v0/watch", body))
        connection.recv(1 << 16)


def empty_members(target: Target) -> None:
    """A body that is a million gzip members without content, and one of a million with a byte each."""
    for content in (b"", b" "):
        body = gzip.compress(content) * 1_000_000
        _call(target, "POST", f"/v0/topics/{TOPIC}/diff", body, "content-encoding: gzip")
        _call(target, "POST", f"/v0/topics/{TOPIC}", body, "content-encoding: gzip")


def large_message(target: Target) -> None:
    """Commands of 60 MB over four WebSockets, with one character far out, and no end."""
    text = "\U0001f600".encode() + b"x" * (15 << 20)
    for _ in range(4):
        connection = _websocket(target)
        size = len(text).to_bytes(8, "big")
        target.send(connection, bytes((0x01, 0xFF)) + size + bytes(4) + text)
        for _ in range(3):
            target.send(connection, bytes((0x00, 0xFF)) + size + bytes(4) + text)
    target.wait()


def small_chunks(target: Target) -> None:
    """A body in a million chunks of two bytes."""
    head = f"POST /v0/topics/{TOPIC} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    connection = target.connect(head.encode() + b"transfer-encoding: chunked\r\n\r\n")
    target.send(connection, b"2\r\n  \r\n" * 1_000_000)


def long_heads(target: Target) -> None:
    """Heads of 120 KiB: parameters, segments of a path, percent signs, ids, cursors, cookies, kinds of answers."""
    size = 120 << 10
    connection = target.connect()
    for path, fields in [
        (f"/v0/topics/{TOPIC}/diff?" + "a&" * (size // 2), []),
        (f"/v0/topics/{TOPIC}/diff?node=" + "%41" * (size // 3), []),
        ("/v0/topics/" + "%41" * (size // 3), []),
        ("/%41" * (size // 4), []),
        ("/v0/topics?cursor=" + "dDph" * (size // 4), []),
        (f"/v0/topics/{TOPIC}/diff", ["accept: " + "," * size]),
        (f"/v0/topics/{TOPIC}/stream", ["accept: " + "a;" * (size // 2)]),
        (f"/v0/topics/{TOPIC}", ["cookie: " + "a=b;" * (size // 4)]),
        (f"/v0/topics/{TOPIC}", ["if-none-match: " + '"a",' * (size // 4)]),
        (f"/v0/topics/{TOPIC}", ["authorization: Bearer " + "a" * size]),
    ]:
        request = "\r\n".join([f"GET {path} HTTP/1.1", "host: localhost", *fields, "", ""])
        for _ in range(3):
            target.send(connection, request.encode())
            target.drain(connection, 0.1)
    head = f"GET /v0/topics/{TOPIC}/stream HTTP/1.1\r\nhost: localhost\r\nlast-event-id: "
    target.connect(head.encode() + b"eyJ9" * (size // 4) + b"\r\n\r\n")
    target.wait()


def deep_calls(target: Target) -> None:
    """Bodies of calls that are nothing but brackets, or strings of brackets."""
    for piece in (b"[],", b'["["],', b"{},", b'"[",', b'"",'):
        body = b'{"x":[%b1]}' % (piece * ((250 << 10) // len(piece)))
        for _ in range(3):
            _call(target, "POST", f"/v0/topics/{TOPIC}/diff", body)


def too_many_records(target: Target) -> None:
    """Appends of a MiB with 90,000 records, or with a meta of 90,000 keys."""
    keys = b",".join(b'"%x":""' % number for number in range(90_000))
    for body in (
        b'{"records":[%b{"data":1}]}' % (b'{"data":1},' * 90_000),
        b'{"records":[{"data":1,"meta":{%b}}]}' % keys,
    ):
        for _ in range(3):
            _call(target, "POST", f"/v0/topics/{TOPIC}", body)


def large_appends(target: Target) -> None:
    """Appends of 25 to 60 MB: of brackets, with and without an end, of text, of metas with too many keys, of values of
    a MB."""
    brackets = b'{"data":[%b[]]}' % (b"[]," * 1999)
    text = b'{"data":"%b"}' % (b"x" * 6000)
    keys = b'{"data":1,"meta":{%b}}' % b",".join(b'"%d":""' % number for number in range(500))
    value = b'{"data":[%b[]]}' % (b"[]," * 330_000)
    for body in (
        b'{"records":[%b]}' % b",".join([brackets] * 10_000),
        b'{"records":[%b' % b",".join([brackets] * 10_000),
        b'{"records":[%b]}' % b",".join([text] * 10_000),
        b'{"records":[%b]}' % b",".join([keys] * 9000),
        b'{"records":[%b]}' % b",".join([value] * 60),
    ):
        _call(target, "POST", f"/v0/topics/{TOPIC}", body)


def large_members(target: Target) -> None:
    """Appends of one member of 30 to 60 MB: an unknown one, a key, a meta."""
    keys = b",".join(b'"%d":""' % number for number in range(3_000_000))
    for body in (
        b'{"x":[%b[]],"records":[{"data":1}]}' % (b"[]," * 20_000_000),
        b'{"records":[{"data":1}],"idempotency_key":"%b"}' % (b"k" * 30_000_000),
        b'{"records":[{"data":1,"meta":{%b}}]}' % keys,
    ):
        _call(target, "POST", f"/v0/topics/{TOPIC}", body)


ATTACKS = (
    Attack("nothing", "no attack, for comparison", nothing),
    Attack("a byte behind a stream", "200 streams with a byte behind the head, then a close", byte_behind_a_stream),
    Attack("unread answers", "1,500 reads of 1 MB over HTTP/2 with a window of 0", unread_answers, 128),
    Attack(
        "bound, small answers",
        f"beyond {UNSENT_MIB} MiB of unread answers: 60 x 3,000 refusals over HTTP/2 with a window of 0",
        bound_by_small_answers,
        UNSENT_MEMORY_MIB,
        UNSENT,
        after_mib=UNSENT_AFTER_MIB,
    ),
    Attack(
        "bound, medium answers",
        f"beyond {UNSENT_MIB} MiB of unread answers: 60 x 500 reads of 256 KiB over HTTP/2 with a window of 0",
        bound_by_medium_answers,
        UNSENT_MEMORY_MIB,
        UNSENT,
        after_mib=UNSENT_AFTER_MIB,
    ),
    Attack(
        "bound, large answers",
        f"beyond {UNSENT_MIB} MiB of unread answers: 60 x 50 reads of 8 MB over HTTP/2 with a window of 0",
        bound_by_large_answers,
        UNSENT_MEMORY_MIB,
        UNSENT,
        8000,
        UNSENT_AFTER_MIB,
    ),
    Attack(
        "bound, HTTP/1.1",
        f"beyond {UNSENT_MIB} MiB of unread answers: reads on 500 HTTP/1.1 connections that read nothing",
        bound_by_http1,
        UNSENT_MEMORY_MIB,
        UNSENT,
        8000,
        UNSENT_AFTER_MIB,
    ),
    Attack("unread pipeline", "100 connections that pipeline 50 reads of 1 MB and read none", unread_pipeline, 192),
    Attack("commas by reference", "accept-encoding: ,,,, by reference to the table", commas_by_reference),
    Attack("trailers", "47,000 trailers behind a body", trailers),
    Attack("header fields", "heads of 990 fields", header_fields),
    Attack("pings", "50,000 pings over HTTP/2", pings),
    Attack("fragments", "a WebSocket message in 100,000 fragments of a byte", fragments),
    Attack("pongs", "100,000 pongs over a WebSocket", pongs),
    Attack("websocket pings", "100,000 pings over a WebSocket that reads nothing", websocket_pings),
    Attack("idle connections", "3,000 connections that ask for nothing", idle_connections, 128),
    Attack("unread refusals", "6,000 refusals over HTTP/2 with a window of 0", unread_refusals),
    Attack("repeated seqs", "acks of one seq, 128,000 and 25,000,000 times", repeated_seqs),
    Attack("watched topics", "watches of 20,000 and 2,000,000 topics", watched_topics),
    Attack("an unknown key", "60 MB of one key", unknown_key),
    Attack("long patterns", "matches and filters of 250 KiB and 60 MB", long_patterns),
    Attack("node lists", "2,000 watch sessions that leave out 1,000 nodes each", node_lists, 192),
    Attack("empty members", "bodies of a million gzip members", empty_members),
    Attack("large messages", "60 MB over each of four WebSockets", large_message, 512),
    Attack("small chunks", "a body in a million chunks of two bytes", small_chunks),
    Attack("long heads", "heads of 120 KiB of many kinds", long_heads),
    Attack("brackets", "calls of nothing but brackets", deep_calls),
    Attack("too many records", "appends of a MiB with 90,000 records, or keys of one meta", too_many_records),
    Attack("large appends", "appends of 60 MB with thousands of records", large_appends, 512),
    Attack("large members", "appends with one member of 30 to 60 MB", large_members, 512),
)

SHOWN = tuple(
    f"{slug(attack.name)}-{kind}"
    for attack in ATTACKS
    for kind in ("held", "answer", "memory", "works", *(("after",) if attack.after_mib is not None else ()))
)
"""The keys of all figures, in the order of the table."""
