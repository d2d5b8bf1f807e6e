"""Redis Streams, measured in the same run by the same client: what another log with another language does here.

`redis-server` is started by us, if it is on the PATH, on a loopback port with a configuration of its own and its data
in the scratch directory, and ended by its process id. `appendfsync everysec` stands beside `disk`, `always` beside
`fsync`: the same promise as to when an answer may be given. Requests are commands made beforehand and sent as one
piece; a batch of records is as many XADD in one pipeline, which Redis, unlike the daemon, may keep the half of.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from benchmarks.bench import PLAIN_DATA, Bench
from benchmarks.client import TIMEOUT_S, Answer, Check, Load, NextRequest, WrongAnswer, run_load
from benchmarks.figures import Figure, figure
from benchmarks.references import percentiles

PROGRAM = "redis-server"
NOT_INSTALLED = "not installed"
STREAM, GROUP = "bench", "workers"
DATA = PLAIN_DATA.encode()
BATCH = 1000

# --- the protocol ----------------------------------------------------------------------------------------------------

Reply: TypeAlias = "int | bytes | list[Reply] | None"


class Incomplete(Exception):
    """The reply goes on beyond what has been read."""


class RedisError(Exception):
    """An error instead of a reply."""


def command(*words: bytes | str | int) -> bytes:
    """One command in RESP: an array of bulk strings."""
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded)


def parse(data: bytes, at: int = 0) -> tuple[Reply, int]:
    """The reply that begins there, and where it ends. Raises `Incomplete`, `RedisError`, or ValueError."""
    end = data.find(b"\r\n", at)
    if end < 0:
        raise Incomplete
    kind, text, at = data[at : at + 1], data[at + 1 : end], end + 2
    match kind:
        case b"+":
            return text, at
        case b"-":
            raise RedisError(text.decode())
        case b":":
            return int(text), at
        case b"$":
            return _bulk(data, at, int(text))
        case b"*":
            if int(text) < 0:
                return None, at
            items: list[Reply] = []
            for _ in range(int(text)):
                item, at = parse(data, at)
                items.append(item)
            return items, at
        case _:
            raise ValueError(f"no reply begins with {kind!r}")


def _bulk(data: bytes, at: int, size: int) -> tuple[bytes | None, int]:
    if size < 0:
        return None, at
    if at + size + 2 > len(data):
        raise Incomplete
    return data[at : at + size], at + size + 2


_MARK = command("PING")
_MARKED = b"+PONG\r\n"
_ERROR = re.compile(rb"(?:\A|\r\n)-([^\r]*)")


class RedisLine:
    """A connection whose requests are pipelines. Each is followed by a PING, so that the end of all replies is found
    without looking at every one of them."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def send(self, request: bytes) -> None:
        self.socket.sendall(request + _MARK)

    def receive(self) -> Answer | None:
        """One `recv`; all replies to the last request if it brought the last of them. Raises `WrongAnswer` if one of
        them is an error."""
        data = self.socket.recv(1 << 20)
        if not data:
            raise WrongAnswer("redis-server has closed the connection")
        self._received += data
        if not self._received.endswith(_MARKED):
            return None
        body = bytes(self._received[: -len(_MARKED)])
        self._received.clear()
        error = _ERROR.search(body)
        if error is not None:
            raise WrongAnswer(f"redis-server: {error[1].decode()}")
        return Answer(200, body)

    def call(self, request: bytes) -> bytes:
        """Send it and wait for all replies."""
        self.send(request)
        while (answer := self.receive()) is None:
            pass
        return answer.body

    def close(self) -> None:
        self.socket.close()


# --- the server ------------------------------------------------------------------------------------------------------

Fsync = Literal["everysec", "always"]


def installed() -> bool:
    return shutil.which(PROGRAM) is not None


@contextmanager
def redis_server(bench: Bench, fsync: Fsync) -> Iterator[int]:
    """Its port. No snapshots, and the append-only file is not rewritten: nothing happens beside what is measured."""
    with bench.scratch() as scratch:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = int(free.getsockname()[1])
        settings = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": scratch,
            "daemonize": "no",
            "save": '""',
            "appendonly": "yes",
            "appendfsync": fsync,
            "auto-aof-rewrite-percentage": 0,
            "loglevel": "warning",
        }
        config = scratch / "redis.conf"
        config.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        process = subprocess.Popen([PROGRAM, str(config)], stdout=subprocess.DEVNULL)
        try:
            _wait_until_ready(port, process)
            yield port
        finally:
            process.kill()
            process.wait()


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with closing(RedisLine(port)) as line:
                line.call(command("PING"))
                return
        except (ConnectionError, WrongAnswer):
            time.sleep(0.02)
    raise RuntimeError("redis-server did not start")


# --- what parts ask for ----------------------------------------------------------------------------------------------


def redis_figures(bench: Bench, keys: Sequence[str], measure: Callable[[Bench], list[Figure]]) -> list[Figure]:
    """What is measured of Redis; nothing without it, but then its keys are known to be absent."""
    if not installed():
        bench.absent.update(dict.fromkeys(keys, NOT_INSTALLED))
        return []
    bench.say("reference: Redis Streams")
    return measure(replace(bench, many=True))


def _load(bench: Bench, port: int, connections: int, request: NextRequest, check: Check) -> Load:
    return run_load(port, connections, bench.warm_up_s, bench.measured_s, request, check, RedisLine)


def _xadd(number: int | None = None) -> bytes:
    """One record of 100 bytes, with an id of its own or with that number, from 1 on."""
    return command("XADD", STREAM, "*" if number is None else f"1-{number}", "data", DATA)


APPENDS = tuple(
    f"redis-{what}" for what in ("1000", "100", "100-always", "one-p50", "one-p99", "one-always-p50", "one-always-p99")
)


def append_figures(bench: Bench) -> list[Figure]:
    """XADD: the batches and connections of the part `append`, and single records."""
    figures = []
    cases: tuple[tuple[Fsync, int, int, str], ...] = (
        ("everysec", 1000, 4, "redis-1000"),
        ("everysec", 100, 16, "redis-100"),
        ("always", 100, 16, "redis-100-always"),
    )
    for fsync, batch, connections, key in cases:
        with redis_server(bench, fsync) as port:
            loads = bench.repeat(_append, bench, port, connections, batch)
        name = f"reference: Redis, {batch} XADD in a pipeline, {connections} connections, {fsync}"
        figures.append(figure(name, "records/s", [load.records_per_s for load in loads], key=key))
    singles: tuple[tuple[Fsync, str], ...] = (("everysec", "redis-one"), ("always", "redis-one-always"))
    for fsync, key in singles:
        with redis_server(bench, fsync) as port:
            loads = bench.repeat(_append, bench, port, 1, 1)
        name = f"reference: Redis, one XADD, one connection, {fsync}"
        figures.append(figure(f"{name}, p50", "ms", percentiles(loads, 0.5), key=f"{key}-p50"))
        figures.append(figure("... p99", "ms", percentiles(loads, 0.99)))
    return figures


SINGLE_CONNECTIONS = (1, 16, 64)
SINGLES = tuple(
    f"redis-{fsync}-{connections}{suffix}"
    for fsync in ("everysec", "always")
    for connections in SINGLE_CONNECTIONS
    for suffix in ("", "-p50", "-p99")
)


def single_append_figures(bench: Bench) -> list[Figure]:
    """XADD of one record, as the part `small` appends it."""
    figures = []
    kinds: tuple[Fsync, ...] = ("everysec", "always")
    for fsync in kinds:
        with redis_server(bench, fsync) as port:
            for connections in SINGLE_CONNECTIONS:
                loads = bench.repeat(_append, bench, port, connections, 1, times=bench.few)
                lines = "connection" if connections == 1 else "connections"
                name = f"reference: Redis, one XADD, {connections} {lines}, {fsync}"
                rates = [load.requests_per_s for load in loads]
                figures += [
                    figure(name, "requests/s", rates, key=f"redis-{fsync}-{connections}"),
                    figure("... p50", "ms", percentiles(loads, 0.5)),
                    figure("... p99", "ms", percentiles(loads, 0.99)),
                ]
    return figures


def _append(bench: Bench, port: int, connections: int, batch: int) -> Load:
    """One repetition on a stream of its own, which is counted and deleted afterwards."""
    request, total = _xadd() * batch, 0

    def check(_connection: int, answer: Answer) -> int:
        nonlocal total
        found = answer.body.count(b"$")
        if found != batch:
            raise WrongAnswer(f"{found} ids for {batch} records")
        total += batch
        return batch

    load = _load(bench, port, connections, lambda _: request, check)
    with closing(RedisLine(port)) as line:
        length, _ = parse(line.call(command("XLEN", STREAM)))
        if length != total:
            raise WrongAnswer(f"Redis has {length!r} records, {total} were added")
        line.call(command("DEL", STREAM))
    return load


def _fill(line: RedisLine, records: int) -> None:
    """Records 1-1, 1-2, 1-3..."""
    for first in range(1, records + 1, BATCH):
        line.call(b"".join(_xadd(number) for number in range(first, first + BATCH)))


READS = ("redis-1000", "redis-256")


def read_figures(bench: Bench) -> list[Figure]:
    """XREAD of what is in memory, 4 connections, as the part `diff` does it."""
    records = 50_000 if bench.quick else 300_000
    figures = []
    with redis_server(bench, "everysec") as port:
        with closing(RedisLine(port)) as line:
            _fill(line, records)
        for limit in (1000, 256):
            loads = bench.repeat(_read, bench, port, 4, limit, records)
            name = f"reference: Redis, XREAD COUNT {limit}, 4 connections"
            rates = [load.records_per_s for load in loads]
            figures.append(figure(name, "records/s", rates, key=f"redis-{limit}"))
    return figures


def _read(bench: Bench, port: int, connections: int, limit: int, records: int) -> Load:
    """Every connection reads the stream from its beginning to its end, again and again."""
    at = [0] * connections
    value = b"$%d\r\n%b\r\n" % (len(DATA), DATA)

    def request(connection: int) -> bytes:
        return command("XREAD", "COUNT", limit, "STREAMS", STREAM, f"1-{at[connection]}")

    def check(connection: int, answer: Answer) -> int:
        expected = min(limit, records - at[connection])
        found = answer.body.count(value)
        if found != expected or b"1-%d\r\n" % (at[connection] + found) not in answer.body:
            raise WrongAnswer(f"{found} records after {at[connection]}, expected {expected}")
        at[connection] = (at[connection] + found) % records
        return found

    return _load(bench, port, connections, request, check)


CLAIM_BATCHES = (1, 8, 32, 100)
CLAIMS = tuple(f"redis-{batch}" for batch in CLAIM_BATCHES)
JOBS = 50_000
_ID = re.compile(rb"\$\d+\r\n(\d+-\d+)\r\n")


def claim_figures(bench: Bench) -> list[Figure]:
    """XREADGROUP and XACK in turn over 4 connections, as the part `queue` claims and acks."""
    figures = []
    with redis_server(bench, "everysec") as port:
        with closing(RedisLine(port)) as line:
            _fill(line, JOBS)
            line.call(command("XGROUP", "CREATE", STREAM, GROUP, "0"))
        for batch in CLAIM_BATCHES:
            loads = bench.repeat(_claim, bench, port, 4, batch)
            name = f"reference: Redis, XREADGROUP and XACK of {batch}, 4 connections, everysec"
            rates = [load.records_per_s for load in loads]
            figures.append(figure(name, "jobs/s", rates, key=f"redis-{batch}"))
    return figures


@dataclass(slots=True)
class _Consumer:
    """What one connection holds."""

    claim: bytes
    held: Sequence[bytes] = ()


def _claim(bench: Bench, port: int, connections: int, batch: int) -> Load:
    """The stream begins anew when it is at its end: XACK leaves entries where they are."""
    again = command("XGROUP", "SETID", STREAM, GROUP, "0")
    consumers = [
        _Consumer(command("XREADGROUP", "GROUP", GROUP, f"worker-{number}", "COUNT", batch, "STREAMS", STREAM, ">"))
        for number in range(connections)
    ]

    def request(connection: int) -> bytes:
        one = consumers[connection]
        return command("XACK", STREAM, GROUP, *one.held) if one.held else one.claim

    def check(connection: int, answer: Answer) -> int:
        one = consumers[connection]
        if one.held:
            # Somebody else may have been given the same after a new beginning, and have acked it.
            acked, _ = parse(answer.body)
            if not isinstance(acked, int) or acked > len(one.held):
                raise WrongAnswer(f"{acked!r} of {len(one.held)} jobs acked")
            one.held = ()
            return acked
        one.held = _ID.findall(answer.body)
        if not one.held:
            with closing(RedisLine(port)) as line:
                line.call(again)
        return 0

    return _load(bench, port, connections, request, check)
