"""Appends and live delivery while the cold store is read: one that is slow, and one that is as fast as a directory.

On two cores the readers, the client that measures and the daemon share them, so part of what is measured is the wait
for a core and for the interpreter: `reference: ... from memory` is the same load without any cold store.
"""

from __future__ import annotations

import multiprocessing
import os
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
from benchmarks.figures import Figure, figure
from benchmarks.references import echo_reference, sync_reference
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
    figures.append(figure("cores, for daemon, readers and client together", "", [len(os.sched_getaffinity(0))]))
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
        figures.append(figure(f"relocation of {moved} segments to a directory", "segments/s", [moved / seconds]))
        for store, program in (
            ("a fast cold store", ("topics", "serve")),
            (f"a cold store of {DELAY_MS} ms a call", ("benchmarks.slow_cold", str(DELAY_MS))),
        ):
            with DaemonProcess(scratch / "data", **quiet(settings)) as daemon:
                daemon.program = program
                daemon.start()
                cases = _measured(bench, daemon.port, store, moved * SEGMENT_RECORDS)
                daemon.stop()
            if any(not case.cold_reads for case in cases):
                raise RuntimeError(f"{store}: the readers have not read it")
            figures += _figures(store, cases, slow=program[0] != "topics")
        with DaemonProcess(scratch / "data", **quiet({**settings, "cache_bytes": "1GiB"})) as daemon:
            daemon.start()
            read_all(daemon.port, moved * SEGMENT_RECORDS)
            cases = _measured(bench, daemon.port, "memory", moved * SEGMENT_RECORDS, repetitions=1)
            daemon.stop()
        figures += _figures("memory", cases, slow=False)
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


def _measured(bench: Bench, port: int, store: str, records: int, repetitions: int = 3) -> list[_Case]:
    cases = []
    for number in range(1 if bench.quick else repetitions):
        bench.say(f"{READERS} readers of {store}, {number + 1}")
        case = _Case(_latencies(bench, port))
        with _readers(port, records, case):
            case.beside = _latencies(bench, port)
        cases.append(case)
    return cases


def _figures(store: str, cases: list[_Case], *, slow: bool) -> list[Figure]:
    memory = store == "memory"
    reference = "reference: " if memory else ""
    figures = []
    for what in ("append of one record, disk", "append to delivery, one long poll"):
        before, beside = [case.before[what] for case in cases], [case.beside[what] for case in cases]
        figures.append(figure(f"{reference}{what}, no readers, p50", "ms", _percentiles(before, 0.5)))
        figures.append(figure("... p99", "ms", _percentiles(before, 0.99)))
        name = f"{reference}{what}, {READERS} readers of {store}"
        figures.append(figure(f"{name}, p50", "ms", _percentiles(beside, 0.5)))
        p99 = _percentiles(beside, 0.99)
        figures.append(figure("... p99", "ms", p99, at_most=None if slow or memory else 10))
        ratios = [late / early for late, early in zip(p99, _percentiles(before, 0.99), strict=True)]
        figures.append(figure("... p99, times that without readers", "x", ratios, at_most=1.3 if slow else None))
    figures.append(figure(f"{reference}these readers", "records/s", [case.read / case.seconds for case in cases]))
    figures.append(figure("... reads of the cold store", "1/s", [case.cold_reads / case.seconds for case in cases]))
    shares = [100 * case.client_s / case.seconds for case in cases]
    figures.append(figure("... CPU of their process", "%", shares))
    return figures


def _percentiles(loads: list[Load], share: float) -> list[float]:
    return [load.percentile_ms(share) for load in loads]


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
