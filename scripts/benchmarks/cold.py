"""Appends and live delivery while the cold store is read: one that is slow, and one that is as fast as a directory.

On two cores the readers, the client that measures and the daemon share them, so part of what is measured is the wait
for a core and for the interpreter: `reference: ... from memory` is the same load without any cold store.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event

from benchmarks.bench import Bench, Control, CountAppended, append_request, plain_record, quiet
from benchmarks.client import Answer, Connection, Load, WrongAnswer, request_bytes, run_load
from benchmarks.diff import BATCH, TOPIC, Walk, fill, read_all
from benchmarks.figures import REFERENCE, Figure, figure
from benchmarks.references import echo_reference, percentiles, sync_reference
from daemon_process import DaemonProcess

SEGMENT_RECORDS = 2000
HOT = 4
"""Sealed segments that stay hot, as by default."""

READERS = 8
DELAY_MS = 20
CACHE = "4MiB"
"""A seventh of what is read: nothing is in it any more when a reader comes to it."""

PAUSE_S = 0.025
"""Between a reader's question and the append that answers it: it waits by then."""

_COLD_READS = re.compile(rb'"cold_segments_read": ?([0-9]+)')
_NEXT = re.compile(rb'"next_from_seq": ?([0-9]+)')


def run(bench: Bench) -> list[Figure]:
    """Figures of the fast store, then of the slow one on the same files, then of memory."""
    bench = replace(bench, many=True)
    segments = 20 if bench.quick else 100
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.scratch() as scratch:
        settings: dict[str, object] = {
            "cold_dir": scratch / "cold",
            "segment_max_events": SEGMENT_RECORDS,
            "hot_retain_segments": HOT,
            "cache_bytes": CACHE,
        }
        with DaemonProcess(scratch / "data", **quiet({**settings, "relocate_ms": 100})) as daemon:
            daemon.start()
            bench.say(f"{segments} segments of {SEGMENT_RECORDS:,} records")
            seconds, moved = _fill(daemon, segments)
            daemon.stop()
        name = f"relocation of segments of {SEGMENT_RECORDS:,} records to a directory"
        figures.append(figure(name, "segments/s", [moved / seconds], key="relocation"))
        for key, store, program in (
            ("fast", "a fast cold store", ("topics", "serve")),
            ("slow", f"a cold store of {DELAY_MS} ms a call", ("benchmarks.slow_cold", str(DELAY_MS))),
        ):
            with DaemonProcess(scratch / "data", **quiet(settings)) as daemon:
                daemon.program = program
                daemon.start()
                cases = _measured(bench, daemon.port, store, moved * SEGMENT_RECORDS, bench.few)
                daemon.stop()
            if any(not case.cold_reads for case in cases):
                raise RuntimeError(f"{store}: the readers have not read it")
            figures += _figures(store, key, cases)
        with DaemonProcess(scratch / "data", **quiet({**settings, "cache_bytes": "1GiB"})) as daemon:
            daemon.start()
            read_all(daemon.port, moved * SEGMENT_RECORDS)
            cases = _measured(bench, daemon.port, "memory", moved * SEGMENT_RECORDS, 1)
            daemon.stop()
        figures += _figures("memory", "memory", cases)
    return figures


def _fill(daemon: DaemonProcess, segments: int) -> tuple[float, int]:
    """Fill the topic and wait until all but the newest segments are cold: how long that took, how many they are."""
    control = Control(daemon.port)
    control.create(TOPIC, durability="disk")
    request = append_request(TOPIC, [plain_record(0)] * BATCH)
    fill(daemon.port, [request] * (segments * SEGMENT_RECORDS // BATCH))
    control.checkpoint()
    began = time.perf_counter()
    before = control.segments().get("cold", 0)
    while (cold := control.segments().get("cold", 0)) < segments - HOT:
        if time.perf_counter() - began > 120:
            raise RuntimeError(f"only {cold} of {segments} segments are cold after two minutes")
        time.sleep(0.05)
    control.close()
    return (time.perf_counter() - began) * cold / max(cold - before, 1), cold


@dataclass(slots=True)
class _Case:
    """One repetition."""

    before: dict[str, Load]
    beside: dict[str, Load] = field(default_factory=dict)
    read: int = 0
    cold_reads: int = 0
    seconds: float = 0.0
    client_s: float = 0.0
    """CPU time of the readers."""


def _measured(bench: Bench, port: int, store: str, records: int, times: int) -> list[_Case]:
    def once() -> _Case:
        bench.say(f"{READERS} readers of {store}")
        case = _Case(_latencies(bench, port))
        with _readers(port, records, case):
            case.beside = _latencies(bench, port)
        return case

    return bench.repeat(once, times=times)


def _figures(store: str, key: str, cases: list[_Case]) -> list[Figure]:
    """Those of memory are what the others are compared with: the same readers without any cold store."""
    reference = REFERENCE if key == "memory" else ""
    figures = []
    for short, what in (
        ("append", "append of one record, disk"),
        ("delivery", "append to delivery, one long poll"),
    ):
        before, beside = [case.before[what] for case in cases], [case.beside[what] for case in cases]
        name = f"{reference}{what}"
        p99 = percentiles(beside, 0.99)
        times = [late / early for late, early in zip(p99, percentiles(before, 0.99), strict=True)]
        figures += [
            figure(
                f"{name}, no readers beside ({store}), p50", "ms", percentiles(before, 0.5), key=f"{key}-{short}-p50"
            ),
            figure("... p99", "ms", percentiles(before, 0.99)),
            _beside(f"{name}, {READERS} readers of {store}", key, short, "p50", percentiles(beside, 0.5)),
            _beside(f"{name}, {READERS} readers of {store}", key, short, "p99", p99),
            figure("... times that without readers", "x", times, key="times", at_most=1.3 if key == "slow" else None),
        ]
    rates = [case.read / case.seconds for case in cases]
    references = ("memory-readers",) if key != "memory" else None
    name = f"{reference}{READERS} readers of {store}, beside appends"
    shares = [100 * case.client_s / case.seconds for case in cases]
    return [
        *figures,
        figure(name, "records/s", rates, key=f"{key}-readers", references=references),
        figure("... reads of the cold store", "1/s", [case.cold_reads / case.seconds for case in cases], key="cold"),
        figure("... processor of their process", "%", shares, key="cpu"),
    ]


def _beside(name: str, key: str, short: str, label: str, values: list[float]) -> Figure:
    aim = 10 if key == "fast" and label == "p99" else None
    references = (f"memory-{short}-beside-{label}",) if key != "memory" else None
    return figure(
        f"{name}, {label}", "ms", values, key=f"{key}-{short}-beside-{label}", at_most=aim, references=references
    )


def _latencies(bench: Bench, port: int) -> dict[str, Load]:
    seconds = 1.0 if bench.quick else 3.0
    request = append_request(TOPIC, [plain_record(0)])
    return {
        "append of one record, disk": run_load(port, 1, 0.3, seconds, lambda _: request, CountAppended(1)),
        "append to delivery, one long poll": _deliveries(port, seconds),
    }


def _deliveries(port: int, seconds: float) -> Load:
    """From the moment an append is sent until a reader that waits for it has the record."""
    control = Control(port)
    head = int(control.state(TOPIC)["head_seq"])
    control.close()
    reader, writer = Connection(port), Connection(port)
    append, check = append_request(TOPIC, [plain_record(0)]), CountAppended(1)
    load = Load(seconds=seconds)
    clock = time.perf_counter
    end = clock() + seconds
    while clock() < end:
        body = b'{"from_seq":%d,"wait_ms":30000}' % head
        reader.send(request_bytes("POST", f"/v0/topics/{TOPIC}/diff", body))
        time.sleep(PAUSE_S)
        sent_at = clock()
        writer.send(append)
        answer = reader.answer().expect(200)
        load.latencies_ms.append((clock() - sent_at) * 1000)
        load.requests += 1
        check(0, writer.answer())
        head += 1
        if answer.body.count(b'"$seq"') != 1 or int(_NEXT.findall(answer.body)[-1]) != head:
            raise WrongAnswer(f"waited for {head}: {answer.body[:300]!r}")
    reader.close()
    writer.close()
    return load


class _Stopped(Exception):
    """The readers are told to end."""


@contextmanager
def _readers(port: int, records: int, case: _Case) -> Iterator[None]:
    """Eight connections from a process of its own that read the cold range in a loop, until the block ends."""
    context = multiprocessing.get_context("spawn")
    started, stop = context.Event(), context.Event()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_read_until, args=(port, records, started, stop, theirs), daemon=True)
    process.start()
    try:
        if not started.wait(30):
            raise RuntimeError("the readers did not begin")
        yield
        if not process.is_alive():
            raise RuntimeError("the readers ended before their time")
        stop.set()
        if not ours.poll(30):
            raise RuntimeError("the readers do not end")
        case.read, case.cold_reads, case.seconds, case.client_s = ours.recv()
    finally:
        stop.set()
        process.join(10)
        if process.is_alive():
            process.kill()


def _read_until(port: int, records: int, started: Event, stop: Event, report: Pipe) -> None:
    walk = Walk(READERS, "POST", 1000, records, spread=True)
    read = cold = 0
    waiting = set(range(READERS))
    began, cpu = time.perf_counter(), time.process_time()

    def check(connection: int, answer: Answer) -> int:
        nonlocal read, cold
        found = walk.check(connection, answer)
        read += found
        cold += sum(map(int, _COLD_READS.findall(answer.body[-500:])))
        if waiting:
            waiting.discard(connection)
            if not waiting:
                started.set()
        elif stop.is_set():
            raise _Stopped
        return found

    try:
        run_load(port, READERS, 0.0, 3600.0, walk.request, check)
    except _Stopped:
        report.send((read, cold, time.perf_counter() - began, time.process_time() - cpu))
