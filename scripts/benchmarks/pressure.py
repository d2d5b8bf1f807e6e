"""More than the daemon can do: what becomes of deliveries, what is refused, and how soon it is over.

For a minute 128 connections append batches of 1000 to four topics as fast as they are answered, and 20 streams read
those topics. Beside them, one producer for each of the priorities -500, 0, 500 and 1000 appends a record every 100 ms
to a topic of that priority with 20 streams; theirs are the latencies, before, during and after. Appenders are a process
of their own, and everything shares the machine's cores. At the end everything that was acknowledged must be there, and
must have been delivered to those 80 streams, once.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from multiprocessing.synchronize import Event
from typing import Any

import msgspec

from benchmarks.bench import METRICS_REQUEST, Bench, Control, append_request, plain_record
from benchmarks.client import Answer, WrongAnswer, run_load
from benchmarks.figures import Figure, figure, slug
from benchmarks.live import (
    EventWatcher,
    Journal,
    Loop,
    Pipelined,
    Producer,
    open_stream,
    open_watchers,
    percentile,
    settle,
)
from benchmarks.machine import resident_mib
from benchmarks.references import echo_reference, sync_reference
from daemon_process import DaemonProcess

PRIORITIES = (-500, 0, 500, 1000)
APPENDERS = 128
"""With 32 the loop is busy, but nothing is ever paused."""
BATCH = 1000
WATCHERS = 20
"""Of each topic with a producer."""
READERS = 5
"""Of each topic that is appended to as fast as possible."""
INTERVAL_S = 0.1
RECOVERED_S = 5


class Reader(EventWatcher):
    """Takes what it gets, and does not look at it; counts only."""

    gone = False

    def readable(self) -> None:
        data = self.socket.recv(1 << 18)
        self.gone = not data
        self.bytes += len(data)


@dataclass(frozen=True, slots=True)
class Sample:
    """What the metrics said once a second."""

    at: float
    pressure: float
    coalesce_ms: float
    commit_window_ms: float
    lowest_paused: float
    saturated: float
    depth: float
    resident_mib: float


@dataclass(slots=True)
class Watch:
    """What came of one run; times are `perf_counter_ns`."""

    journals: dict[int, Journal] = field(default_factory=dict)
    producers: dict[int, Producer] = field(default_factory=dict)
    watchers: list[EventWatcher] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    metric_statuses: Counter[int] = field(default_factory=Counter)
    began: int = 0
    overload: int = 0
    after: int = 0
    end: int = 0


def run(bench: Bench) -> list[Figure]:
    """References first, then the overload."""
    before_s, overload_s = (3.0, 10.0) if bench.quick else (5.0, 60.0)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        for priority in PRIORITIES:
            control.create(bulk_topic(priority), priority=priority, durability="disk")
            control.create(producer_topic(priority), priority=priority, durability="disk")
        control.close()
        watch, report = _measure(bench, daemon, before_s, overload_s)
        control = Control(daemon.port)  # the connection from before would have been closed, idle for so long
        _expect_everything(control, watch, report)
        control.close()
    _print_samples(bench, watch)
    return figures + _figures(watch, report)


def bulk_topic(priority: int) -> str:
    return f"bulk.{priority}"


def producer_topic(priority: int) -> str:
    return f"paced.{priority}"


# --- the run ---------------------------------------------------------------------------------------------------------


def _measure(bench: Bench, daemon: DaemonProcess, before_s: float, overload_s: float) -> tuple[Watch, Report]:
    watch, loop, port = Watch(), Loop(), daemon.port
    line = Pipelined(loop, port)

    def sample(answer: Answer) -> None:
        watch.metric_statuses[answer.status] += 1
        watch.samples.append(_sample(msgspec.json.decode(answer.expect(200).body), resident_mib(daemon.pid)))

    def ask() -> None:
        if not line.waiting:
            line.send(METRICS_REQUEST, sample)

    with ExitStack() as stack:
        for place, priority in enumerate(PRIORITIES):
            journal = watch.journals[priority] = Journal()
            for watcher in open_watchers(open_stream, port, producer_topic(priority), WATCHERS):
                watcher.record_in(journal)
                loop.add(watcher.socket, watcher.readable)
                assert isinstance(watcher, EventWatcher)
                watch.watchers.append(watcher)
            producer = watch.producers[priority] = Producer(loop, port, producer_topic(priority), journal)
            stack.enter_context(loop.every(INTERVAL_S, producer.send, after_s=place * INTERVAL_S / len(PRIORITIES)))
        stack.enter_context(loop.every(1.0, ask))
        bench.say("before")
        watch.began = time.perf_counter_ns()
        loop.run(before_s)
        bench.say(f"{APPENDERS} connections of batches of {BATCH}, {overload_s:.0f} s")
        with _readers(loop, port), _appenders(port, overload_s) as pipe:
            watch.overload = time.perf_counter_ns()
            loop.run(overload_s + 30, pipe.poll)
            if not pipe.poll():
                raise WrongAnswer("the appenders are not answered any more")
            report: Report = pipe.recv()
        watch.after = time.perf_counter_ns()
        bench.say("after")
        loop.run(RECOVERED_S + 3.0)
        watch.end = time.perf_counter_ns()
    _settle(loop, watch)
    # Another sample, to see how it was left.
    count = len(watch.samples)
    if not line.waiting:
        ask()
    loop.run(5.0, lambda: len(watch.samples) > count)
    for producer in watch.producers.values():
        producer.close()
    for watcher in watch.watchers:
        watcher.close()
    line.close()
    loop.close()
    return watch, report


def _settle(loop: Loop, watch: Watch) -> None:
    def problem() -> str:
        got = {priority: f"{it.got()} of {it.accepted()}" for priority, it in watch.journals.items()}
        return f"by priority, watchers have {got} records"

    settle(loop, lambda: all(journal.complete() for journal in watch.journals.values()), 30.0, problem)


def _sample(metrics: dict[str, Any], resident: float) -> Sample:
    return Sample(
        at=time.perf_counter_ns(),
        pressure=metrics["topics_pressure"],
        coalesce_ms=metrics["topics_pressure_coalesce_ms"],
        commit_window_ms=metrics["topics_pressure_commit_window_ms"],
        lowest_paused=metrics["topics_pressure_lowest_paused"],
        saturated=metrics["topics_pressure_saturated"],
        depth=metrics["topics_ready_set_depth"],
        resident_mib=resident,
    )


@contextmanager
def _readers(loop: Loop, port: int) -> Iterator[None]:
    readers = [
        Reader(port, f"/v0/topics/{bulk_topic(priority)}/stream?tail=true")
        for priority in PRIORITIES
        for _ in range(READERS)
    ]
    try:
        for reader in readers:
            reader.wait_until_live()
            loop.add(reader.socket, reader.readable)
        yield
        if any(reader.gone for reader in readers):
            raise WrongAnswer("a reader was disconnected")
    finally:
        for reader in readers:
            loop.remove(reader.socket)
            reader.close()


@dataclass(slots=True)
class Report:
    """Of the appenders."""

    statuses: Counter[int]
    records: dict[int, int]
    """Acknowledged, by the priority of their topic."""
    latencies_ms: list[float]
    seconds: float


@contextmanager
def _appenders(port: int, seconds: float) -> Iterator[Pipe]:
    """In a process of their own, which sends its report when it has ended."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    started = context.Event()
    process = context.Process(target=_append, args=(port, seconds, started, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not started.wait(30):
            raise RuntimeError("the appenders did not begin")
        yield ours
    finally:
        process.join(10)
        if process.is_alive():
            process.kill()


def _append(port: int, seconds: float, started: Event, report: Pipe) -> None:
    """Every connection appends to one of the topics, one request after the other."""
    records = [plain_record(0)] * BATCH
    requests = [append_request(bulk_topic(priority), records) for priority in PRIORITIES]
    statuses: Counter[int] = Counter()
    stored = dict.fromkeys(PRIORITIES, 0)

    def check(connection: int, answer: Answer) -> int:
        statuses[answer.status] += 1
        if answer.status == 200:
            stored[PRIORITIES[connection % len(PRIORITIES)]] += BATCH
            return BATCH
        return 0

    started.set()
    load = run_load(port, APPENDERS, 0.0, seconds, lambda connection: requests[connection % len(PRIORITIES)], check)
    report.send(Report(statuses, stored, list(load.latencies_ms), load.seconds))


def _expect_everything(control: Control, watch: Watch, report: Report) -> None:
    """What was acknowledged is there, and nothing was answered but 200 and 429. Deliveries were checked before."""
    for status in (*report.statuses, *watch.metric_statuses):
        if status not in {200, 429}:
            raise WrongAnswer(f"answers by status: {report.statuses}, {watch.metric_statuses}")
    for priority in PRIORITIES:
        control.expect_count(bulk_topic(priority), report.records[priority])
        control.expect_count(producer_topic(priority), watch.journals[priority].accepted())
    if watch.samples[-1].lowest_paused:
        raise WrongAnswer("the lowest band is paused still")


# --- what came of it -------------------------------------------------------------------------------------------------


def _print_samples(bench: Bench, watch: Watch) -> None:
    bench.say("second: pressure, coalescing ms, commit window ms, paused, saturated, depth, resident MiB")
    for sample in watch.samples:
        second = (sample.at - watch.overload) / 1e9
        bench.say(
            f"{second:6.1f}: {sample.pressure:.2f} {sample.coalesce_ms:4.1f} {sample.commit_window_ms:4.1f}"
            f" {sample.lowest_paused:.0f} {sample.saturated:.0f} {sample.depth:.0f} {sample.resident_mib:.0f}"
        )


def _figures(watch: Watch, report: Report) -> list[Figure]:
    second = 10**9
    during = [sample for sample in watch.samples if watch.overload <= sample.at < watch.after]
    pressures = [sample.pressure for sample in during] or [0.0]
    figures = [
        figure(
            f"{APPENDERS} connections of batches of {BATCH}, 100 streams",
            "records/s",
            [_stored(report)],
            key="overload",
            references=("echo-1000",),
        ),
        figure("... append, p50", "ms", [percentile(report.latencies_ms, 0.5)], key="append-p50"),
        figure("... append, p99", "ms", [percentile(report.latencies_ms, 0.99)], key="append-p99"),
        figure("... answers 200", "", [report.statuses[200]], key="200"),
        figure("... answers 429", "", [report.statuses[429]], key="429"),
        figure("... of the producers: answers 429", "", [sum(it.refused for it in watch.producers.values())]),
        figure("... other answers", "", [_other_answers(report)], key="other", at_most=0),
        figure("... acknowledged, and there afterwards", "records", [sum(report.records.values())], key="records"),
        figure("... pressure, once a second", "", pressures, key="pressure"),
        figure("... seconds with the lowest band paused", "seconds", [sum(sample.lowest_paused for sample in during)]),
        figure("... seconds saturated", "seconds", [sum(sample.saturated for sample in during)]),
        figure("... topics waiting, most", "", [max((sample.depth for sample in during), default=0)], key="waiting"),
        figure("... resident, highest", "MiB", [max(sample.resident_mib for sample in watch.samples)], key="highest"),
        figure("... resident at first", "MiB", [watch.samples[0].resident_mib], key="first"),
        figure("... resident at last", "MiB", [watch.samples[-1].resident_mib], key="last"),
        figure("... streams told that they are paced", "", [sum(watcher.paced > 0 for watcher in watch.watchers)]),
    ]
    spans = {
        "before": (watch.began + second, watch.overload),
        "during": (watch.overload, watch.after),
        f"in the {RECOVERED_S} s after": (watch.after, watch.after + RECOVERED_S * second),
        "later": (watch.after + RECOVERED_S * second, watch.end),
    }
    for name, span in spans.items():
        key = slug(name).rpartition("-")[2]
        normal = median(_all(watch, *span))
        figures.append(figure(f"append to delivery, all priorities, {name}, p50", "ms", [normal], key=f"{key}-p50"))
        for priority, journal in watch.journals.items():
            figures += _deliveries(journal, priority, name, f"{key}-{priority}".replace("--", "-minus-"), span)
    normal = median(_all(watch, *spans["before"]))
    name = "normal again: the median of half a second at most twice that before, after"
    figures.append(figure(name, "s", [_normal(watch, normal)], key="normal", at_most=RECOVERED_S))
    return figures


def _deliveries(journal: Journal, priority: int, when: str, key: str, span: tuple[int, int]) -> list[Figure]:
    """Those of one priority; none at all are 0."""
    latencies = journal.delivery_ms(*span) or [0.0]
    from_ack = journal.from_ack_ms(*span) or [0.0]
    name = f"append to delivery, priority {priority}, {when}"
    return [
        figure(f"{name}, p50", "ms", [median(latencies)], key=f"{key}-p50"),
        figure("... p99", "ms", [percentile(latencies, 0.99)]),
        figure("... from the ack, p99", "ms", [percentile(from_ack, 0.99)]),
    ]


def _other_answers(report: Report) -> int:
    return sum(report.statuses.values()) - report.statuses[200] - report.statuses[429]


def median(values: list[float]) -> float:
    return percentile(values, 0.5)


def _stored(report: Report) -> float:
    return sum(report.records.values()) / report.seconds


def _all(watch: Watch, since: int, until: int) -> list[float]:
    return [one for journal in watch.journals.values() for one in journal.delivery_ms(since, until)] or [0.0]


def _normal(watch: Watch, normal_ms: float) -> float:
    """Seconds from the end of the overload to the first one from which on deliveries take what they took before."""
    step = 10**9 // 2
    slow = [
        number
        for number, since in enumerate(range(watch.after, watch.end - step, step))
        if median(_all(watch, since, since + step)) > 2 * normal_ms
    ]
    return (slow[-1] + 1) / 2 if slow else 0.0
