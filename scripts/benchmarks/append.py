"""Appending: throughput in batches, latency of single records, and what a sync costs."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from benchmarks.bench import Bench, Control, CountAppended, append_request, full_record, plain_record
from benchmarks.client import Load, run_load
from benchmarks.figures import Figure, figure
from benchmarks.references import echo_reference, sync_reference

TOPIC = "bench"


def run(bench: Bench) -> list[Figure]:
    """All figures of appending, references first."""
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        figures += _throughput(bench, daemon.port, control)
        figures += _single_records(bench, daemon.port, control)
        control.close()
    return figures


def _throughput(bench: Bench, port: int, control: Control) -> list[Figure]:
    cases: list[tuple[str, int, int, str, Callable[[int], str], float | None]] = [
        ("batches of 1000, 4 connections, disk, plain", 1000, 4, "disk", plain_record, 400_000),
        ("batches of 1000, 4 connections, disk, full", 1000, 4, "disk", full_record, 220_000),
        ("batches of 100, 16 connections, disk, plain", 100, 16, "disk", plain_record, 120_000),
        ("batches of 100, 16 connections, fsync, plain", 100, 16, "fsync", plain_record, None),
    ]
    figures = []
    medians: dict[str, float] = {}
    for name, batch, connections, durability, record, target in cases:
        bench.say(name)
        request = append_request(TOPIC, [record(number) for number in range(batch)])
        values = []
        for _ in range(bench.repetitions):
            load = append_load(bench, port, control, durability, batch, connections, request)
            values.append(load.records_per_s)
        one = figure(f"append, {name}", "records/s", values, at_least=target)
        medians[durability] = one.median
        figures.append(one)
    share = 100 * medians["fsync"] / medians["disk"]
    figures.append(figure("... fsync in percent of disk", "%", [share], at_least=60))
    return figures


def append_load(
    bench: Bench, port: int, control: Control, durability: str, batch: int, connections: int, request: bytes
) -> Load:
    """One repetition on a topic of its own, which is checked and deleted afterwards."""
    control.create(TOPIC, durability=durability)
    check = CountAppended(batch)
    load = run_load(port, connections, bench.warm_up_s, bench.measured_s, lambda _: request, check)
    control.expect_count(TOPIC, check.total)
    control.delete(TOPIC)
    return load


def _single_records(bench: Bench, port: int, control: Control) -> list[Figure]:
    request = append_request(TOPIC, [plain_record(0)])
    figures = []
    aims: dict[str, tuple[float, float] | tuple[None, None]] = {"disk": (0.8, 2.5), "fsync": (None, None)}
    for durability, (p50, p99) in aims.items():
        bench.say(f"one record at a time, {durability}")
        loads = [append_load(bench, port, control, durability, 1, 1, request) for _ in range(bench.repetitions)]
        name = f"append, one record, one connection, {durability}"
        figures.append(figure(f"{name}, p50", "ms", [load.percentile_ms(0.5) for load in loads], at_most=p50))
        figures.append(figure("... p99", "ms", [load.percentile_ms(0.99) for load in loads], at_most=p99))
    bench.say("one record at a time, fsync, beside full load")
    with _full_load(port, control):
        loads = [append_load(bench, port, control, "fsync", 1, 1, request) for _ in range(bench.repetitions)]
    name = "append, one record, one connection, fsync, beside 4 connections of disk batches"
    figures.append(figure(f"{name}, p50", "ms", [load.percentile_ms(0.5) for load in loads], at_most=6))
    figures.append(figure("... p99", "ms", [load.percentile_ms(0.99) for load in loads]))
    return figures


BACKGROUND = "background"
BACKGROUND_CAP = 1_000_000


@contextmanager
def _full_load(port: int, control: Control) -> Iterator[None]:
    """Batches of 1000 over 4 connections from a process of its own, into a capped topic, until the block ends."""
    control.create(BACKGROUND, durability="disk", cap_records=BACKGROUND_CAP)
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=_load_until, args=(port, stop), daemon=True)
    process.start()
    try:
        _wait_for_first_records(control)
        yield
        if not process.is_alive():
            raise RuntimeError("the background load ended before its time")
    finally:
        stop.set()
        process.join(30)
        if process.is_alive():
            process.kill()
    control.delete(BACKGROUND)


def _load_until(port: int, stop: Event) -> None:
    request = append_request(BACKGROUND, [plain_record(0)] * 1000)
    while not stop.is_set():
        run_load(port, 4, 0.0, 0.25, lambda _: request, CountAppended(1000))


def _wait_for_first_records(control: Control) -> None:
    pause = threading.Event()
    for _ in range(300):
        if control.state(BACKGROUND)["head_seq"]:
            return
        pause.wait(0.1)
    raise RuntimeError("the background load did not begin")
