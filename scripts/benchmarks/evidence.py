"""Evidence: what a record costs more in a topic that has it, and how long checkpoints and proofs take.

The cost of a record is processor time of the daemon, as the operating system counts it: that of the main thread, which
serves everybody, and that of the process, with the threads that hash. Topics with evidence and without it are measured
in turn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.bench import Bench, Control, CountAppended, append_request, plain_record
from benchmarks.client import Answer, Load, request_bytes, run_load
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.machine import cpu_seconds, ran_seconds
from benchmarks.references import echo_reference, percentiles, sync_reference
from daemon_process import DaemonProcess

BATCHES = {1: 16, 100: 16, 1000: 4}
"""Records of a batch, and over how many connections they come."""

MOST_LOOP_US = 1.5
"""How much longer the main thread may take for a record (`docs/spec/evidence.md` section 1)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition."""

    records_per_s: float
    loop_us: float
    """Time of the main thread for a record."""
    cpu_us: float
    """Time of the whole process for a record."""


def run(bench: Bench) -> list[Figure]:
    """Figures of appends, then of proofs."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        for batch, connections in BATCHES.items():
            figures += _appends(bench, daemon, control, batch, connections)
        figures += _proofs(bench, daemon.port, control)
        control.close()
    return figures


def _appends(bench: Bench, daemon: DaemonProcess, control: Control, batch: int, connections: int) -> list[Figure]:
    bench.say(f"appends with evidence, batches of {batch}")
    request = append_request(TOPIC, [plain_record(number) for number in range(batch)])

    def measure(*, evidence: bool) -> Sample:
        control.create(TOPIC, durability="fsync", evidence=evidence)
        check = CountAppended(batch)
        loop_s, cpu_s = ran_seconds(daemon.pid), cpu_seconds(daemon.pid)
        load = run_load(daemon.port, connections, bench.warm_up_s, bench.measured_s, lambda _: request, check)
        control.checkpoint()  # what is not hashed yet is hashed by it
        loop_s, cpu_s = ran_seconds(daemon.pid) - loop_s, cpu_seconds(daemon.pid) - cpu_s
        control.expect_count(TOPIC, check.total)
        control.delete(TOPIC)
        return Sample(load.records_per_s, 1e6 * loop_s / check.total, 1e6 * cpu_s / check.total)

    found = bench.in_turn({"without": partial(measure, evidence=False), "with": partial(measure, evidence=True)})
    pairs = list(zip(found["with"], found["without"], strict=True))
    name = f"append, batches of {batch}, {connections} connections, fsync"
    return [
        figure(f"{name}, without evidence", "records/s", [one.records_per_s for _, one in pairs], key=str(batch)),
        figure("... with evidence", "records/s", [one.records_per_s for one, _ in pairs], key="on"),
        figure(
            "... evidence costs the loop, for a record",
            "us",
            [one.loop_us - other.loop_us for one, other in pairs],
            key="loop",
            at_most=MOST_LOOP_US,
        ),
        figure(
            "... evidence costs the process, for a record",
            "us",
            [one.cpu_us - other.cpu_us for one, other in pairs],
            key="cpu",
        ),
    ]


def _proofs(bench: Bench, port: int, control: Control) -> list[Figure]:
    records = 20_000 if bench.quick else 200_000
    bench.say(f"proofs in a topic of {records:,} records")
    control.create(TOPIC, durability="fsync", evidence=True)
    fill(port, [append_request(TOPIC, [plain_record(number) for number in range(BATCH)])] * (records // BATCH))
    control.checkpoint()
    chance = random.Random(5)

    def inclusion(_connection: int) -> bytes:
        return request_bytes("GET", f"/v0/topics/{TOPIC}/evidence/inclusion?seq={chance.randrange(records) + 1}")

    def consistency(_connection: int) -> bytes:
        return request_bytes("GET", f"/v0/topics/{TOPIC}/evidence/consistency?from={chance.randrange(records) + 1}")

    def checkpoint(_connection: int) -> bytes:
        return request_bytes("GET", f"/v0/topics/{TOPIC}/evidence")

    figures = []
    kinds = (("checkpoint", checkpoint), ("inclusion", inclusion), ("consistency", consistency))
    for key, request in kinds:
        loads = bench.repeat(_singles, bench, port, request)
        name = f"{key} of a topic of {records:,} records, one after another"
        figures.append(figure(f"{name}, p50", "ms", percentiles(loads, 0.5), key=f"{key}-p50"))
        figures.append(figure(f"{name}, p99", "ms", percentiles(loads, 0.99), key=f"{key}-p99"))
    return figures


def _singles(bench: Bench, port: int, request: Callable[[int], bytes]) -> Load:
    def check(_connection: int, answer: Answer) -> int:
        answer.expect(200)
        return 1

    return run_load(port, 1, bench.warm_up_s, bench.measured_s, request, check)
