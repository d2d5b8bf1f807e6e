"""Appending: throughput in batches, latency of single records, and what a sync costs."""

from __future__ import annotations

import multiprocessing
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from benchmarks.bench import Bench, Control, CountAppended, append_request, full_record, plain_record
from benchmarks.client import Load, run_load
from benchmarks.figures import Figure, figure
from benchmarks.redis_streams import APPENDS, append_figures, redis_figures
from benchmarks.references import echo_reference, percentiles, sync_reference

TOPIC = "bench"


def run(bench: Bench) -> list[Figure]:
    """All figures of appending, references first."""
    figures = [*sync_reference(bench), *echo_reference(bench), *redis_figures(bench, APPENDS, append_figures)]
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        figures += _throughput(bench, daemon.port, control)
        figures += _single_records(bench, daemon.port, control, sync_p50=figures[0].median)
        control.close()
    return figures


def _throughput(bench: Bench, port: int, control: Control) -> list[Figure]:
    cases: list[tuple[str, int, int, str, Callable[[int], str], float | None, tuple[str, ...]]] = [
        ("plain-1000", 1000, 4, "disk", plain_record, 350_000, ("echo-1000", "redis-1000")),
        ("full-1000", 1000, 4, "disk", full_record, 130_000, ("echo-1000", "redis-1000")),
        ("plain-100", 100, 16, "disk", plain_record, 200_000, ("redis-100",)),
        ("plain-100-fsync", 100, 16, "fsync", plain_record, None, ("redis-100-always",)),
    ]
    figures = []
    rates: dict[str, list[float]] = {}
    for key, batch, connections, durability, record, target, references in cases:
        name = f"append, batches of {batch}, {connections} connections, {durability}, {key.partition('-')[0]}"
        bench.say(name)
        request = append_request(TOPIC, [record(number) for number in range(batch)])
        loads = bench.repeat(append_load, bench, port, control, durability, batch, connections, request)
        rates[key] = [load.records_per_s for load in loads]
        figures.append(figure(name, "records/s", rates[key], key=key, at_least=target, references=references))
    disk = statistics.median(rates["plain-100"])
    shares = [100 * rate / disk for rate in rates["plain-100-fsync"]]
    figures.append(figure("append, fsync in percent of disk", "%", shares, key="fsync-share", at_least=60))
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


def _single_records(bench: Bench, port: int, control: Control, *, sync_p50: float) -> list[Figure]:
    request = append_request(TOPIC, [plain_record(0)])
    figures = []
    medians: dict[str, list[float]] = {}
    aims: dict[str, tuple[float, float]] = {"disk": (0.25, 1.0), "fsync": (0.65, 2.0)}
    for durability, (p50, p99) in aims.items():
        bench.say(f"one record at a time, {durability}")
        loads = bench.repeat(append_load, bench, port, control, durability, 1, 1, request)
        name = f"append, one record, one connection, {durability}"
        redis = "redis-one" if durability == "disk" else "redis-one-always"
        figures += single_figures(name, f"one-{durability}", loads, p50, p99, redis)
        medians[durability] = percentiles(loads, 0.5)
    disk = statistics.median(medians["disk"])
    syncs = [(one - disk) / sync_p50 for one in medians["fsync"]]
    name = "append, one record, one connection, fsync, more than disk, p50, in syncs"
    figures.append(figure(name, "x", syncs, key="fsync-syncs", at_most=2))
    bench.say("one record at a time, fsync, beside full load")
    with _full_load(port, control):
        loads = bench.repeat(append_load, bench, port, control, "fsync", 1, 1, request)
    name = "append, one record, one connection, fsync, beside 4 connections of disk batches"
    return [*figures, *single_figures(name, "one-fsync-beside", loads, 6, None)]


def single_figures(
    name: str, key: str, loads: Sequence[Load], p50: float | None, p99: float | None, redis: str | None = None
) -> list[Figure]:
    """Latencies of single records with their targets, beside an answer of bare hypercorn and one of Redis."""
    figures = []
    for share, aim, label in ((0.5, p50, "p50"), (0.99, p99, "p99")):
        references = (f"echo-{label}", *([f"{redis}-{label}"] if redis else []))
        values = percentiles(loads, share)
        figures.append(
            figure(f"{name}, {label}", "ms", values, key=f"{key}-{label}", at_most=aim, references=references)
        )
    return figures


def append_singles(bench: Bench, port: int, request: bytes) -> Load:
    """One repetition of an append of one record to a topic that exists, over one connection."""
    return run_load(port, 1, bench.warm_up_s, bench.measured_s, lambda _: request, CountAppended(1))


def append_latencies(name: str, key: str, loads: Sequence[Load], p99: float) -> list[Figure]:
    """Latencies of single records beside something else, with their target for the p99 (ms)."""
    return [
        figure(f"{name}, p50", "ms", percentiles(loads, 0.5), key=f"{key}-p50"),
        figure("... p99", "ms", percentiles(loads, 0.99), at_most=p99),
        figure("... longest", "ms", percentiles(loads, 1)),
    ]


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
