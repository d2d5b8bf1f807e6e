"""Watching over server-sent events: from an append to its delivery, idle watchers, and those that stop reading.

A case is one topic with a number of watchers and a producer that appends one record of 100 bytes by the clock;
everybody must get everything, once and in order. Streams are without a session unless it says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.bench import Bench, Control
from benchmarks.client import Answer, WrongAnswer, request_bytes
from benchmarks.fanout import fan_out_server
from benchmarks.figures import REFERENCE, Figure, figure
from benchmarks.live import (
    EventWatcher,
    Journal,
    Loop,
    Opener,
    Pipelined,
    Producer,
    Run,
    brief_figures_of,
    figures_of,
    open_stream,
    open_watchers,
    percentile,
    run_once,
    settle,
)
from benchmarks.machine import cpu_seconds, resident_mib, tcp_memory_mib
from benchmarks.references import echo_reference, sync_reference
from daemon_process import DaemonProcess

IDLE = 500


@dataclass(frozen=True, slots=True)
class Case:
    """So many watchers, and a record every so often."""

    watchers: int
    interval_s: float = 0.02
    seconds: float = 3.5
    repetitions: int = 3
    p99_ms: float | None = None

    def shorter(self, bench: Bench) -> Case:
        if not bench.quick:
            return self
        return Case(self.watchers, self.interval_s, min(self.seconds, 1.5), min(self.repetitions, 1), self.p99_ms)

    @property
    def name(self) -> str:
        return f"{self.watchers} {'watcher' if self.watchers == 1 else 'watchers'}"

    @property
    def pace(self) -> str:
        return f"a record every {1000 * self.interval_s:.0f} ms"


CASES = (
    Case(1, p99_ms=2),
    Case(10, p99_ms=2.5),
    Case(100, p99_ms=8),
    Case(1000, interval_s=0.5, seconds=5),
)
OVERLOAD = Case(1000, seconds=3, repetitions=1)
"""More than can be delivered: what then?"""

TEN = Case(10, repetitions=2)


def run(bench: Bench) -> list[Figure]:
    """References first, then deliveries, idle watchers, and slow ones."""
    cases = [case.shorter(bench) for case in CASES]
    figures = [*sync_reference(bench), *echo_reference(bench), *references(bench, cases, open_stream)]
    figures += deliveries(bench, cases, OVERLOAD.shorter(bench), open_stream, "stream")
    figures += _variants(bench)
    figures += idle(bench, open_stream, "streams")
    figures += _one_that_stopped(bench)
    figures += _many_that_stopped(bench)
    return figures


# --- append to delivery ----------------------------------------------------------------------------------------------


def references(bench: Bench, cases: Sequence[Case], opener: Opener) -> list[Figure]:
    """The same client with servers that only pass on."""
    figures = []
    for kind in ("epoll", "hypercorn"):
        for case in cases:
            bench.say(f"reference: bare {kind}, {case.name}")
            with fan_out_server(bench, kind) as (pid, port):
                runs = bench.repeat(
                    partial(run_once, interval_s=case.interval_s, seconds=min(case.seconds, 2.0)),
                    pid,
                    port,
                    "t",
                    opener,
                    case.watchers,
                    times=1,
                )
            name = f"reference: bare {kind}, {case.name}, {case.pace}"
            figures += brief_figures_of(name, f"{kind}-{case.watchers}", runs)
    return figures


def deliveries(bench: Bench, cases: Sequence[Case], overload: Case, opener: Opener, kind: str) -> list[Figure]:
    """Of `disk` records, by the number of watchers."""
    figures = []
    with bench.daemon() as daemon:
        for case in cases:
            runs = run_case(bench, daemon, case, opener, kind)
            name = f"append to delivery, {case.name} ({kind}), {case.pace}"
            bare = [f"{other}-{case.watchers}" for other in ("hypercorn", "epoll")]
            figures += figures_of(name, str(case.watchers), runs, p99_ms=case.p99_ms, references=bare)
        runs = run_case(bench, daemon, overload, opener, kind)
        name = f"append to delivery, {overload.name} ({kind}), {overload.pace}"
        figures += brief_figures_of(name, "overload", runs)
        late = [run.seconds - overload.seconds for run in runs]
        figures.append(figure("... all delivered after the last append", "s", late, key="late"))
        figures.append(figure("... deliveries", "1/s", [run.deliveries / run.seconds for run in runs], key="rate"))
    return figures


def run_case(
    bench: Bench, daemon: DaemonProcess, case: Case, opener: Opener, kind: str, durability: str = "disk"
) -> list[Run]:
    """Repetitions, each on a topic of its own."""
    control = Control(daemon.port)

    def once() -> Run:
        control.create("bench", durability=durability)
        run = run_once(
            daemon.pid,
            daemon.port,
            "bench",
            opener,
            case.watchers,
            interval_s=case.interval_s,
            seconds=case.seconds,
        )
        wait_until_left(control)
        control.delete("bench")
        return run

    bench.say(f"{case.name} ({kind}), {case.pace}, {durability}")
    runs = bench.repeat(once, times=case.repetitions)
    control.close()
    return runs


def wait_until_left(control: Control) -> None:
    """The daemon has seen that the watchers are gone."""
    end = time.perf_counter() + 10
    while time.perf_counter() < end:
        metrics = control.metrics()
        if not metrics["topics_sse_connections"] and not metrics["topics_ws_connections"]:
            return
        time.sleep(0.05)
    raise WrongAnswer("connections that were closed 10 s ago are still counted")


def _variants(bench: Bench) -> list[Figure]:
    case = TEN.shorter(bench)

    def open_session(port: int, topic: str) -> EventWatcher:
        control = Control(port)
        session = control.call("POST", "/v0/watch", {"topics": {topic: {"tail": True}}})
        control.close()
        return EventWatcher(port, session["stream_url"])

    with bench.daemon() as daemon:
        sessions = run_case(bench, daemon, case, open_session, "session")
        synced = run_case(bench, daemon, case, open_stream, "stream", "fsync")
    return [
        *figures_of(
            f"append to delivery, {case.name} (watch session), {case.pace}", "session", sessions, references=["10"]
        ),
        *figures_of(
            f"append to delivery, {case.name} (stream), fsync, {case.pace}", "fsync", synced, references=["10"]
        ),
    ]


# --- idle ------------------------------------------------------------------------------------------------------------


def idle(bench: Bench, opener: Opener, kind: str) -> list[Figure]:
    """Memory and processor time of a daemon whose watchers have nothing to do but one heartbeat or ping each."""
    bench.say(f"{IDLE} idle {kind}")
    seconds = 3.0 if bench.quick else 15.0
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        control.create("bench")
        # The first connections bring in what is shared by all.
        for watcher in open_watchers(opener, daemon.port, "bench", 10):
            watcher.close()
        wait_until_left(control)
        time.sleep(1.0)
        alone, share = resident_mib(daemon.pid), _processor_share(daemon.pid, seconds / 3)
        watchers = open_watchers(opener, daemon.port, "bench", IDLE)
        time.sleep(0.5)
        beside, busy = resident_mib(daemon.pid), _processor_share(daemon.pid, seconds)
        for watcher in watchers:
            watcher.close()
        wait_until_left(control)
        left = resident_mib(daemon.pid)
        control.close()
    return [
        figure("daemon without watchers, resident", "MiB", [alone], key="none"),
        figure("... processor", "%", [100 * share], key="cpu"),
        figure(f"{IDLE} idle {kind}, resident", "MiB", [beside], key="idle"),
        figure("... for each connection", "KiB", [1024 * (beside - alone) / IDLE], key="each"),
        figure(f"... processor over {seconds:.0f} s", "%", [100 * busy], key="cpu"),
        figure("... resident after all have left", "MiB", [left], key="left"),
    ]


def _processor_share(pid: int, seconds: float) -> float:
    began, before = time.perf_counter(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)


# --- watchers that stop reading --------------------------------------------------------------------------------------

SMALL_BUFFER = 4096
"""Of a watcher that does not read: it is soon full."""

BULK_BYTES = 10_000


def bulk_request(topic: str, records: int) -> bytes:
    """Records of 10 KB without a number."""
    body = b'{"records":[%b]}' % b",".join([b'{"data":"%b"}' % (b"y" * (BULK_BYTES - 2))] * records)
    return request_bytes("POST", f"/v0/topics/{topic}?return_seqs=false", body)


def _one_that_stopped(bench: Bench) -> list[Figure]:
    """Two watchers of a busy topic: what the one notices of the other."""
    seconds = 2.0
    figures = []
    with bench.daemon() as daemon:
        for key, name, stops in (("both", "both read", False), ("stopped", "one has stopped reading", True)):
            bench.say(f"two watchers, {name}")
            journals = bench.repeat(_two_watchers, daemon, seconds, stops, times=bench.few)
            samples = [journal.delivery_ms() for journal in journals]
            name = f"append to delivery, two watchers of 5 MB/s, {name}: the one that reads"
            for label, share in (("p50", 0.5), ("p99", 0.99)):
                references = (f"two-both-{label}",) if stops else None
                values = [percentile(some, share) for some in samples]
                figures.append(
                    figure(f"{name}, {label}", "ms", values, key=f"two-{key}-{label}", references=references)
                )
    return figures


def _must_be_stored(answer: Answer) -> None:
    answer.expect(200)


def _two_watchers(daemon: DaemonProcess, seconds: float, stops: bool) -> Journal:
    """100 KB every 20 ms, and a record with a number in between."""
    control = Control(daemon.port)
    control.create("bench")
    loop, journal = Loop(), Journal()
    target = "/v0/topics/bench/stream?tail=true"
    one = EventWatcher(daemon.port, target)
    other = EventWatcher(daemon.port, target, receive_buffer=SMALL_BUFFER if stops else None)
    for watcher in (one, other):
        watcher.wait_until_live()
    one.record_in(journal)
    loop.add(one.socket, one.readable)
    if not stops:
        loop.add(other.socket, other.readable)
    producer, line = Producer(loop, daemon.port, "bench", journal), Pipelined(loop, daemon.port)
    request = bulk_request("bench", 10)

    def append_much() -> None:
        line.send(request, _must_be_stored)

    def complete() -> bool:
        return not line.waiting and journal.complete()

    try:
        with loop.every(0.02, append_much), loop.every(0.02, producer.send, after_s=0.01):
            loop.run(seconds)
        settle(loop, complete, 30.0, lambda: f"of {journal.accepted()} records the reader has {journal.got()}")
        return journal
    finally:
        producer.close()
        line.close()
        one.close()
        other.close()
        loop.close()
        wait_until_left(control)
        control.delete("bench")
        control.close()


def _many_that_stopped(bench: Bench) -> list[Figure]:
    """Memory while much is appended to a topic whose watchers do not read, and without them."""
    watchers, total = (50, 20_000_000) if bench.quick else (IDLE, 200_000_000)
    figures = []
    peaks = []
    for count in (0, watchers):
        bench.say(f"{total / 1e6:.0f} MB appended, {count} watchers that do not read")
        # A small cache, so that what is measured is what waits for connections.
        with bench.daemon(cache_bytes="16MiB") as daemon:
            control = Control(daemon.port)
            control.create("bench")
            kernel = tcp_memory_mib()
            with _stopped(daemon.port, count):
                before = resident_mib(daemon.pid)
                began = time.perf_counter()
                _append(daemon.port, total)
                seconds = time.perf_counter() - began
                peak, after = resident_mib(daemon.pid, peak=True), resident_mib(daemon.pid)
                kernel = tcp_memory_mib() - kernel
            wait_until_left(control)
            control.close()
        peaks.append(peak)
        name = f"{total / 1e6:.0f} MB appended, cache 16MiB, {count} watchers that do not read"
        key = "many-stopped" if count else "none-stopped"
        figures += [
            figure(f"{'' if count else REFERENCE}{name}, resident before", "MiB", [before], key=key),
            figure("... highest", "MiB", [peak], references=("none-stopped-highest",) if count else None),
            figure("... at the end", "MiB", [after], key="end"),
            figure(
                "... appended",
                "MB/s",
                [total / 1e6 / seconds],
                key="rate",
                references=("none-stopped-rate",) if count else None,
            ),
        ]
    each = 1024 * (peaks[1] - peaks[0]) / watchers
    figures.append(figure("... highest, for each of them", "KiB", [each], key="each"))
    figures.append(figure("... memory of the kernel for all sockets, more than before", "MiB", [kernel], key="kernel"))
    return figures


@contextlib.contextmanager
def _stopped(port: int, count: int) -> Iterator[None]:
    target = "/v0/topics/bench/stream?tail=true"
    watchers = [EventWatcher(port, target, receive_buffer=SMALL_BUFFER) for _ in range(count)]
    try:
        for watcher in watchers:
            watcher.wait_until_live()
        yield
    finally:
        for watcher in watchers:
            watcher.close()


def _append(port: int, total: int) -> None:
    """Over two connections, each with one request in flight."""
    loop = Loop()
    request = bulk_request("bench", 20)
    left = total // (20 * BULK_BYTES)
    waiting = 0
    lines = [Pipelined(loop, port) for _ in range(2)]

    def send(line: Pipelined) -> None:
        nonlocal left, waiting
        if left:
            left -= 1
            waiting += 1
            line.send(request, lambda answer: answered(line, answer.expect(200).status))

    def answered(line: Pipelined, _status: int) -> None:
        nonlocal waiting
        waiting -= 1
        send(line)

    for line in lines:
        send(line)
    if not loop.run(120.0, lambda: not waiting):
        raise WrongAnswer("200 MB were not appended in two minutes")
    for line in lines:
        line.close()
    loop.close()
