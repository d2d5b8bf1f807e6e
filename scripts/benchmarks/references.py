"""What the machine does without the daemon, measured in the same run: a processor, a sync, a request to a bare server.

Parts put these figures first and name them as references of their own. They are measured at the beginning of a part,
in a few short repetitions; the processor at its end as well, which tells whether the machine was left alone meanwhile.
Other programs that do what the daemon does are in `redis_streams`, servers that fan out in `fanout`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.bench import Bench, append_request, plain_record
from benchmarks.client import Connection, Load, request_bytes, run_load
from benchmarks.figures import CPU_RATE, CPU_TIME, Figure, figure
from benchmarks.results import Cpu

# --- the processor ---------------------------------------------------------------------------------------------------

CPU_S = 1.0
COUNTED = 20_000
COPIED = bytes(4 << 20)


def cpu_rate(seconds: float = CPU_S) -> float:
    """Units of work a second, on one core: a loop of plain Python, and a copy of 4 MiB.

    The mean over the whole time, not the best of it: what another process takes of the core is to be seen.
    """
    units, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        total = 0
        for number in range(COUNTED):
            total += number & 7
        bytearray(COPIED)
        units += 1
    return units / took


def cpu_figures(cpu: Cpu) -> list[Figure]:
    """What all parts have as a reference, from its two measurements."""
    rates = [cpu.before, cpu.after]
    return [
        figure("reference: processor, loops of Python and copies", "units/s", rates, key=CPU_RATE),
        figure("reference: processor, one such unit", "ms", [1000 / rate for rate in rates], key=CPU_TIME),
    ]


# --- the disk --------------------------------------------------------------------------------------------------------

SYNC_BYTES = 4096


def sync_reference(bench: Bench) -> list[Figure]:
    """Latency of a 4 KiB write and `fdatasync` in a preallocated file, as the WAL does it, and how many a second."""
    bench = replace(bench, many=True)
    with bench.scratch() as scratch:
        loads = bench.repeat(
            lambda: Load(latencies_ms=_sync_latencies(scratch / "file", 100 if bench.quick else 300)), warm_up=1
        )
    rates = [1000 * len(load.latencies_ms) / sum(load.latencies_ms) for load in loads]
    return [
        figure("reference: write and fdatasync, p50", "ms", percentiles(loads, 0.5), key="sync-p50"),
        figure("... p99", "ms", percentiles(loads, 0.99)),
        figure("... one after the other", "1/s", rates, key="rate"),
    ]


def percentiles(loads: Sequence[Load], share: float) -> list[float]:
    """That of each repetition."""
    return [load.percentile_ms(share) for load in loads]


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


# --- the framework ---------------------------------------------------------------------------------------------------

ECHOED = 1000
"""Records in the large body."""


def echo_reference(bench: Bench) -> list[Figure]:
    """Bare hypercorn on Trio that reads the body and answers a constant, with the same client."""
    bench = replace(bench, many=True)
    with bench.scratch() as scratch:
        port_file = scratch / "port"
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.echo", str(port_file)])
        try:
            port = wait_for_port(port_file, process)
            small = request_bytes("GET", "/")
            large = append_request("t", [plain_record(0)] * ECHOED)
            one = bench.repeat(_echo, bench, port, 1, small)
            four = bench.repeat(_echo, bench, port, 4, large)
        finally:
            process.kill()
            process.wait()
    rates = [ECHOED * load.requests_per_s for load in four]
    return [
        figure("reference: bare hypercorn, one small request, p50", "ms", percentiles(one, 0.5), key="echo-p50"),
        figure("... p99", "ms", percentiles(one, 0.99)),
        figure("reference: bare hypercorn, bodies of 1000 records, 4 connections", "records/s", rates, key="echo-1000"),
    ]


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
    raise RuntimeError(f"{process.args!r} did not start")
