"""What the machine does without the daemon, measured in the same run: a sync, and a request through bare hypercorn."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from array import array
from pathlib import Path

from benchmarks.bench import Bench, append_request, plain_record
from benchmarks.client import Connection, Load, request_bytes, run_load
from benchmarks.figures import Figure, figure

SYNC_BYTES = 4096


def sync_reference(bench: Bench) -> list[Figure]:
    """Latency of a 4 KiB write and `fdatasync` in a preallocated file, as the WAL does it."""
    p50: list[float] = []
    p99: list[float] = []
    with bench.scratch() as scratch:
        for _ in range(bench.repetitions):
            load = Load(latencies_ms=_sync_latencies(scratch / "file", 100 if bench.quick else 300))
            p50.append(load.percentile_ms(0.5))
            p99.append(load.percentile_ms(0.99))
    return [figure("reference: write and fdatasync, p50", "ms", p50), figure("... p99", "ms", p99)]


def _sync_latencies(path: Path, count: int) -> array[float]:
    latencies = array("d")
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(file, 0, SYNC_BYTES * count)
        os.fsync(file)
        for number in range(count):
            began = time.perf_counter()
            os.pwrite(file, b"x" * SYNC_BYTES, number * SYNC_BYTES)
            os.fdatasync(file)
            latencies.append((time.perf_counter() - began) * 1000)
    finally:
        os.close(file)
    return latencies


def echo_reference(bench: Bench) -> list[Figure]:
    """Bare hypercorn on Trio that reads the body and answers a constant, with the same client."""
    figures: list[Figure] = []
    with bench.scratch() as scratch:
        port_file = scratch / "port"
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.echo", str(port_file)])
        try:
            port = wait_for_port(port_file, process)
            small = request_bytes("GET", "/")
            large = append_request("t", [plain_record(0)] * 1000)
            one = [_echo(bench, port, 1, small) for _ in range(bench.repetitions)]
            figures.append(figure("reference: bare hypercorn, p50", "ms", [load.percentile_ms(0.5) for load in one]))
            figures.append(figure("... p99", "ms", [load.percentile_ms(0.99) for load in one]))
            four = [_echo(bench, port, 4, large).requests_per_s for _ in range(bench.repetitions)]
            figures.append(figure("... bodies of 1000 records, 4 connections", "requests/s", four))
        finally:
            process.kill()
            process.wait()
    return figures


def _echo(bench: Bench, port: int, connections: int, request: bytes) -> Load:
    return run_load(
        port,
        connections,
        bench.warm_up_s,
        bench.measured_s,
        lambda _: request,
        lambda _, answer: len(answer.expect(200).body) and 1,
    )


def wait_for_port(port_file: Path, process: subprocess.Popen[bytes]) -> int:
    """The port that a server we have started has written there, once it answers."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        if port_file.exists():
            port = int(port_file.read_text())
            try:
                Connection(port).close()
            except ConnectionError:
                pass
            else:
                return port
        time.sleep(0.02)
    raise RuntimeError("bare hypercorn did not start")
