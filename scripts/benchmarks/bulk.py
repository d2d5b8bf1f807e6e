"""Bulk transfer: uploads of NDJSON, exports as Arrow and as NDJSON, and what appends of one record feel of each.

The other side is a process of its own that does next to nothing: it sends bytes made beforehand, or drops what comes
and looks at its end.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bench import Bench, Control, CountAppended, append_request, plain_record
from benchmarks.client import Answer, Connection, WrongAnswer, run_while
from benchmarks.figures import Figure, figure
from benchmarks.machine import cpu_seconds, resident_mib
from benchmarks.references import echo_reference, sync_reference
from daemon_process import DaemonProcess

TOPIC = "bench"
BESIDE = "beside"
PIECE_RECORDS = 5000
END_BYTES = 3000
"""An Arrow stream says what it ends with some hundred bytes before its end."""
INGEST_AIM = 250_000
ARROW_AIM = 500_000
P99_AIM_MS = 5.0

LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass(frozen=True, slots=True)
class Moved:
    """What one connection moved, and in how many seconds."""

    records: int
    seconds: float
    began: float
    """On the monotonic clock, which all processes of a machine share."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """One repetition of a transfer."""

    rate: float
    used_us: float
    """Processor time of the daemon for a record."""
    grown_mib: float
    beside_p99: float


Transfer = Callable[[int, str, float], Moved]


def run(bench: Bench) -> list[Figure]:
    """Records a second over one and two connections, each with the daemon's processor time and memory, and the p99 of
    appends beside it."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as pool, bench.daemon(cache_bytes="512MiB") as daemon:
        alone = bench.repeat(_appends_alone, bench, daemon.port)
        figures.append(figure("append, one record, disk, alone, p99", "ms", alone, key="alone-p99"))
        for connections in (1, 2):
            kind = f"ingest, NDJSON, plain, {connections} {_connections(connections)}, disk"
            figures += _measure(bench, daemon, pool, kind, f"ingest-{connections}", upload_for, connections, INGEST_AIM)
        with filled(bench, daemon.port):
            for name, transfer, aim in (("Arrow", export_arrow, ARROW_AIM), ("NDJSON", export_lines, None)):
                kind, key = f"export, {name}, plain, from memory", f"export-{name.lower()}"
                figures += _measure(bench, daemon, pool, kind, key, transfer, 1, aim)
    return figures


def _connections(count: int) -> str:
    return "connection" if count == 1 else "connections"


def _measure(
    bench: Bench,
    daemon: DaemonProcess,
    pool: ProcessPoolExecutor,
    name: str,
    key: str,
    transfer: Transfer,
    connections: int,
    aim: float | None,
) -> list[Figure]:
    bench.say(name)
    _all(pool, transfer, daemon.port, connections, bench.warm_up_s)

    def once() -> _Cost:
        began, before = cpu_seconds(daemon.pid), _forget_peak(daemon.pid)
        moved = _all(pool, transfer, daemon.port, connections, 2 * bench.measured_s)
        records = sum(one.records for one in moved)
        return _Cost(
            rate=sum(one.records / one.seconds for one in moved),
            used_us=1e6 * (cpu_seconds(daemon.pid) - began) / records,
            grown_mib=resident_mib(daemon.pid, peak=True) - before,
            beside_p99=_beside(bench, pool, transfer, daemon.port, connections),
        )

    costs = bench.repeat(once)
    beside = [cost.beside_p99 for cost in costs]
    return [
        figure(name, "records/s", [cost.rate for cost in costs], key=key, at_least=aim, references=("echo-1000",)),
        figure("... processor time of the daemon", "us/record", [cost.used_us for cost in costs], key="cpu"),
        figure("... its memory above what it was before", "MiB", [cost.grown_mib for cost in costs], key="memory"),
        figure(
            "... append of one record beside it, disk, p99",
            "ms",
            beside,
            key="beside-p99",
            at_most=P99_AIM_MS,
            references=("alone-p99",),
        ),
    ]


def _all(pool: ProcessPoolExecutor, transfer: Transfer, port: int, connections: int, seconds: float) -> list[Moved]:
    return [future.result() for future in _begin(pool, transfer, port, connections, seconds)]


def _begin(
    pool: ProcessPoolExecutor, transfer: Transfer, port: int, connections: int, seconds: float
) -> list[Future[Moved]]:
    topics = [TOPIC if transfer is not upload_for else f"upload-{number}" for number in range(connections)]
    return [pool.submit(transfer, port, topic, seconds) for topic in topics]


def _beside(bench: Bench, pool: ProcessPoolExecutor, transfer: Transfer, port: int, connections: int) -> float:
    """The p99 of appends while transfers go on."""
    futures = _begin(pool, transfer, port, connections, 2 * bench.measured_s)
    load = _append_while(port, lambda: not all(future.done() for future in futures))
    for future in futures:
        future.result()
    return load


def _appends_alone(bench: Bench, port: int) -> float:
    until = time.perf_counter() + 2 * bench.measured_s
    return _append_while(port, lambda: time.perf_counter() < until)


def _append_while(port: int, going_on: Callable[[], bool]) -> float:
    request = append_request(BESIDE, [plain_record(0)])
    check = CountAppended(1)

    def count(connection: int, answer: Answer) -> int:
        return check(connection, Answer(200, answer.expect(200, 201).body))

    return run_while(port, going_on, request, count).percentile_ms(0.99)


@contextmanager
def filled(bench: Bench, port: int) -> Iterator[None]:
    """A topic that is in memory as a whole."""
    control = Control(port)
    records = 100_000 if bench.quick else 400_000
    control.create(TOPIC)
    for _ in range(records // PIECE_RECORDS):
        _upload(port, TOPIC, 0.0)
    control.expect_count(TOPIC, records)
    yield
    control.delete(TOPIC)
    control.close()


def _forget_peak(pid: int) -> float:
    """From here on the peak is counted anew; what is resident now."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return resident_mib(pid)


# --- in a process of its own -----------------------------------------------------------------------------------------


def upload_for(port: int, topic: str, seconds: float) -> Moved:
    """One upload into a topic of its own, chunk by chunk until its time is over."""
    control = Control(port)
    control.create(topic)
    moved = _upload(port, topic, seconds)
    control.expect_count(topic, moved.records)
    control.delete(topic)
    control.close()
    return moved


def _upload(port: int, topic: str, seconds: float) -> Moved:
    lines = (plain_record(0) + "\n").encode() * PIECE_RECORDS
    chunk = b"%x\r\n%b\r\n" % (len(lines), lines)
    connection = Connection(port)
    head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {LINES}\r\n"
    connection.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    records, began = 0, time.monotonic()
    while not records or time.monotonic() - began < seconds:
        connection.send(chunk)
        records += PIECE_RECORDS
    connection.send(b"0\r\n\r\n")
    answer = connection.answer().expect(200, 201)
    took = time.monotonic() - began
    connection.close()
    if b'"count":%d,' % records not in answer.body:
        raise WrongAnswer(f"{records} records were sent: {answer.body!r}")
    return Moved(records, took, began)


def export_arrow(port: int, topic: str, seconds: float) -> Moved:
    """Whole exports as Arrow streams, one after the other until the time is over."""
    return _export_for(port, topic, seconds, ARROW)


def export_lines(port: int, topic: str, seconds: float) -> Moved:
    """The same as NDJSON."""
    return _export_for(port, topic, seconds, LINES)


def _export_for(port: int, topic: str, seconds: float, accept: str) -> Moved:
    control = Control(port)
    count = control.state(topic)["count"]
    control.close()
    request = f"GET /v0/topics/{topic}/records HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()
    connection = Connection(port)
    records, began = 0, time.monotonic()
    while not records or time.monotonic() - began < seconds:
        connection.send(request)
        _drop_export(connection, count)
        records += count
    took = time.monotonic() - began
    connection.close()
    return Moved(records, took, began)


def _drop_export(connection: Connection, count: int) -> None:
    """Receive an export to the end of its transfer; it has to say that it is whole."""
    buffer = memoryview(bytearray(1 << 20))
    tail = b""
    while not tail.endswith(b"\r\n0\r\n\r\n"):
        size = connection.socket.recv_into(buffer)
        if not size:
            raise WrongAnswer(f"connection closed in an export: {tail!r}")
        tail = (tail + bytes(buffer[max(0, size - END_BYTES) : size]))[-END_BYTES:]
    if b'next_from_seq":%d,' % count not in tail:
        raise WrongAnswer(f"an export does not end as it should: {tail[-500:]!r}")
