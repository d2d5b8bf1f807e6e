"""Watching over WebSockets: the same as `watch`, and publishing over one."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from benchmarks.append import append_singles
from benchmarks.bench import Bench, Control, append_request, plain_record
from benchmarks.client import Load, WrongAnswer
from benchmarks.figures import Figure, figure
from benchmarks.live import SocketWatcher, open_socket
from benchmarks.references import echo_reference, percentiles, sync_reference
from benchmarks.watch import CASES, OVERLOAD, deliveries, idle, references


def run(bench: Bench) -> list[Figure]:
    """References first, then deliveries, publishing, and idle sockets."""
    cases = [replace(case, repetitions=2).shorter(bench) for case in CASES]
    figures = [*sync_reference(bench), *echo_reference(bench), *references(bench, cases, open_socket)]
    figures += deliveries(bench, cases, OVERLOAD.shorter(bench), open_socket, "WebSocket")
    figures += _publishing(bench)
    figures += idle(bench, open_socket, "WebSockets")
    return figures


def _publishing(bench: Bench) -> list[Figure]:
    """One record after the other, each when the one before it is acknowledged; by HTTP for comparison."""
    bench = replace(bench, many=True)
    figures = []
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        for durability in ("disk", "fsync"):
            bench.say(f"publish to ack, {durability}")
            control.create("bench", durability=durability)
            loads = bench.repeat(_published, bench, daemon.port)
            control.expect_count("bench", sum(load.records for load in loads))
            control.delete("bench")
            figures += _latencies(
                f"publish to ack, one record, one WebSocket, {durability}", "publish", durability, loads
            )
            control.create("bench", durability=durability)
            loads = bench.repeat(append_singles, bench, daemon.port, append_request("bench", [plain_record(0)]))
            control.delete("bench")
            figures += _latencies(f"reference: append of the same over HTTP, {durability}", "http", durability, loads)
        control.close()
    return figures


def _latencies(name: str, way: str, durability: str, loads: list[Load]) -> list[Figure]:
    figures = []
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        references = (f"http-{durability}-{label}",) if way == "publish" else None
        values = percentiles(loads, share)
        figures.append(
            figure(f"{name}, {label}", "ms", values, key=f"{way}-{durability}-{label}", references=references)
        )
    return figures


def _published(bench: Bench, port: int) -> Load:
    """Every record counts, latencies only after the warm-up."""
    record = plain_record(0)
    message = f'{{"op":"publish","topic":"bench","return_seqs":false,"records":[{record}]}}'.encode()
    socket = SocketWatcher(port, "")
    socket.upgrade()
    load = Load()
    clock = time.perf_counter
    measure_from = clock() + bench.warm_up_s
    end = measure_from + bench.measured_s
    while (sent_at := clock()) < end:
        socket.say(message)
        answer = msgspec.json.decode(socket.hear())
        now = clock()
        if answer["op"] != "ack" or answer["count"] != 1:
            raise WrongAnswer(f"published, and was told {answer}")
        load.records += 1
        if sent_at >= measure_from:
            load.latencies_ms.append((now - sent_at) * 1000)
    socket.close()
    return load
