"""Watching over WebSockets: the same as `watch`, and publishing over one."""

from __future__ import annotations

import time

import msgspec

from benchmarks.bench import Bench, Control, append_request, plain_record
from benchmarks.client import Load, WrongAnswer, run_load
from benchmarks.figures import Figure, figure
from benchmarks.live import SocketWatcher, open_socket
from benchmarks.references import sync_reference
from benchmarks.watch import CASES, OVERLOAD, deliveries, idle, references


def run(bench: Bench) -> list[Figure]:
    """References first, then deliveries, publishing, and idle sockets."""
    cases = [case.shorter(bench) for case in CASES]
    figures = [*sync_reference(bench), *references(bench, cases, open_socket)]
    figures += deliveries(bench, cases, OVERLOAD.shorter(bench), open_socket, "WebSocket")
    figures += _publishing(bench)
    figures += idle(bench, open_socket, "WebSockets")
    return figures


def _publishing(bench: Bench) -> list[Figure]:
    """One record after the other, each when the one before it is acknowledged; by HTTP for comparison."""
    figures = []
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        for durability in ("disk", "fsync"):
            bench.say(f"publish to ack, {durability}")
            control.create("bench", durability=durability)
            loads = [_published(bench, daemon.port) for _ in range(bench.repetitions)]
            control.expect_count("bench", sum(load.records for load in loads))
            control.delete("bench")
            name = f"publish to ack, one record, one WebSocket, {durability}"
            figures += _latencies(name, loads)
        control.create("bench", durability="disk")
        request = append_request("bench", [plain_record(0)])
        loads = [
            run_load(
                daemon.port,
                1,
                bench.warm_up_s,
                bench.measured_s,
                lambda _: request,
                lambda _, answer: len(answer.expect(200).body) and 1,
            )
            for _ in range(bench.repetitions)
        ]
        figures += _latencies("reference: append of the same over HTTP, disk", loads)
        control.close()
    return figures


def _latencies(name: str, loads: list[Load]) -> list[Figure]:
    return [
        figure(f"{name}, p50", "ms", [load.percentile_ms(0.5) for load in loads]),
        figure("... p99", "ms", [load.percentile_ms(0.99) for load in loads]),
    ]


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
