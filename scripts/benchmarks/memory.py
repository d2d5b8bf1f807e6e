"""Resident memory: of many records with many tags, and of many topics that nobody uses."""

from __future__ import annotations

import statistics
from dataclasses import replace

from benchmarks.bench import Bench, Control, append_request, full_record, plain_record, quiet
from benchmarks.client import Answer, request_bytes, run_load
from benchmarks.diff import BATCH, fill, read_all
from benchmarks.figures import Figure, figure, slug
from benchmarks.machine import resident_mib
from benchmarks.references import echo_reference
from daemon_process import DaemonProcess

TOPIC = "bench"
CACHE = "64MiB"
FEW = 100
CONNECTIONS = 16


def run(bench: Bench) -> list[Figure]:
    """Figures of both kinds; the bare server for comparison of the latencies."""
    bench = replace(bench, many=True)
    return [*echo_reference(bench), *_many_records(bench), *_many_topics(bench)]


def _many_records(bench: Bench) -> list[Figure]:
    records, tags = (100_000, 10_000) if bench.quick else (1_000_000, 100_000)
    bench.say(f"{records:,} records, {tags:,} tags")
    with bench.daemon(cache_bytes=CACHE) as daemon:
        empty = resident_mib(daemon.pid)
        control = Control(daemon.port)
        control.create(TOPIC)
        fill(
            daemon.port,
            [
                append_request(TOPIC, [full_record((first + place) % tags) for place in range(BATCH)])
                for first in range(0, records, BATCH)
            ],
        )
        control.expect_count(TOPIC, records)
        control.checkpoint()
        filled, peak = resident_mib(daemon.pid), resident_mib(daemon.pid, peak=True)
        read_all(daemon.port, records)
        read = resident_mib(daemon.pid)
        daemon.stop()
        daemon.start()
        control = Control(daemon.port)
        control.expect_count(TOPIC, records)
        restarted = resident_mib(daemon.pid)
        read_all(daemon.port, records)
        read_again = resident_mib(daemon.pid)
        control.close()
    target = None if bench.quick else 200.0
    name = f"resident, {records:,} full records in segments, {tags:,} tags, cache {CACHE}"
    return [
        figure("resident, empty", "MiB", [empty], key="empty"),
        figure(name, "MiB", [filled], key="records", at_most=target),
        figure("... highest so far", "MiB", [peak], key="highest"),
        figure("... after everything was read", "MiB", [read], key="read", at_most=target),
        figure("... after a restart", "MiB", [restarted], key="restarted", at_most=target),
        figure("... after everything was read again", "MiB", [read_again], key="read-again", at_most=target),
    ]


def _many_topics(bench: Bench) -> list[Figure]:
    many = 10_000 if bench.quick else 100_000
    figures: list[Figure] = []
    samples: dict[str, list[list[float]]] = {}
    for count in (FEW, many):
        bench.say(f"{count:,} topics")
        with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet({"max_topics": 0})) as daemon:
            daemon.start()
            create_topics(daemon.port, count)
            resident = resident_mib(daemon.pid)
            latencies = _latencies(bench, daemon.port, count)
            stopped = daemon.stop()
            ready = daemon.start()
            after = resident_mib(daemon.pid)
            Control(daemon.port).checkpoint()
            daemon.kill()
            ready_killed = daemon.start()
            _expect_topics(daemon, count)
            stopped_idle = daemon.stop()
        aims = (400.0, 5.0) if count == many and not bench.quick else (None, None)
        key = "few-topics" if count == FEW else "many-topics"
        title = f"{count:,} idle topics"
        figures += [
            figure(f"{title}, resident", "MiB", [resident], key=key, at_most=aims[0]),
            figure(f"{title}, resident after a restart", "MiB", [after], key=f"{key}-restarted", at_most=aims[0]),
            figure(f"{title}, stop after they were made", "s", [stopped], key=f"{key}-made-stop", at_most=aims[1]),
            figure(f"{title}, stop with nothing new", "s", [stopped_idle], key=f"{key}-stop", at_most=aims[1]),
            figure(f"{title}, ready after a restart", "s", [ready], key=f"{key}-ready", at_most=aims[1]),
            figure(f"{title}, ready after SIGKILL", "s", [ready_killed], key=f"{key}-killed", at_most=aims[1]),
        ]
        figures += [
            figure(f"{title}, {name}, p50", "ms", some, key=f"{key}-{slug(name)}") for name, some in latencies.items()
        ]
        for name, some in latencies.items():
            samples.setdefault(name, []).append(some)
    for name, (few, lots) in samples.items():
        times = [much / statistics.median(few) for much in lots]
        title = f"{name} with {many:,} topics, times that with {FEW}"
        figures.append(figure(title, "x", times, key=f"{slug(name)}-times", at_most=1.3))
    return figures


def idle_topic(number: int) -> str:
    """The name of one of many topics."""
    return f"idle-{number:06}"


def create_topics(port: int, count: int) -> None:
    """By PUT, on several connections, until all are there; what is asked too much at the end are lists."""
    created = 0

    def request(_connection: int) -> bytes:
        nonlocal created
        if created == count:
            return list_request(1)
        created += 1
        return request_bytes("PUT", f"/v0/topics/{idle_topic(created - 1)}")

    while created < count:
        run_load(port, CONNECTIONS, 0.0, 0.5, request, _count_one)


def _count_one(_connection: int, answer: Answer) -> int:
    answer.expect(200, 201)
    return 1


def list_request(size: int) -> bytes:
    return request_bytes("GET", f"/v0/topics?page_size={size}")


def _latencies(bench: Bench, port: int, count: int) -> dict[str, list[float]]:
    """Over one connection: a list page, a state, and an append to a topic in the middle."""
    middle = idle_topic(count // 2)
    requests = {
        "list page": list_request(100),
        "state": request_bytes("GET", f"/v0/topics/{middle}"),
        "append": append_request(middle, [plain_record(0)]),
    }

    def p50(request: bytes) -> float:
        load = run_load(port, 1, bench.warm_up_s, bench.measured_s, lambda _: request, _count_one)
        return load.percentile_ms(0.5)

    return {name: bench.repeat(p50, request, times=2) for name, request in requests.items()}


def _expect_topics(daemon: DaemonProcess, count: int) -> None:
    control = Control(daemon.port)
    topics = control.call("GET", "/v0/ready")["topics"]
    control.close()
    if topics != count:
        raise RuntimeError(f"{topics} topics after the restart, {count} before")
