"""Starting again: after SIGKILL, with everything in the WAL or in segments, and after a stop in order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bench import HOLD_MS, NEVER_MS, Bench, Control, append_request, full_record, plain_record, quiet
from benchmarks.diff import BATCH, fill
from benchmarks.figures import Figure, figure
from daemon_process import DaemonProcess

TOPICS = 4
SETTINGS: dict[str, object] = {"checkpoint_ms": NEVER_MS, "drain_ms": 50_000}
"""No checkpoint is due but at the rotation of a WAL file, which a hold prevents; and the one of a stop has time."""


def run(bench: Bench) -> list[Figure]:
    """Seconds from the start of the process to ready; the records are counted each time."""
    records = 100_000 if bench.quick else 1_000_000
    figures = start_references(bench)
    empty = figures[-1]
    for kind, record in (("plain", plain_record), ("full", full_record)):
        bench.say(f"{records:,} {kind} records")
        batches = [
            append_request(f"bench-{number % TOPICS}", [record(number * BATCH + place) for place in range(BATCH)])
            for number in range(records // BATCH)
        ]
        with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet(SETTINGS)) as daemon:
            _fill_and_kill(daemon, batches)
            snapshots = _snapshots(daemon.data_dir)
            killed = [_start_and_kill(daemon, records) for _ in range(bench.repetitions)]
            if _snapshots(daemon.data_dir) != snapshots:
                raise RuntimeError("there is a new snapshot: what was measured is not the WAL")
            daemon.start()
            Control(daemon.port).checkpoint()
            daemon.kill()
            stored = [_start_and_kill(daemon, records) for _ in range(bench.repetitions)]
            daemon.start()
            daemon.stop()
            stopped = [_start_and_stop(daemon, records) for _ in range(bench.repetitions)]
        at_most = None if bench.quick else 3.0
        for name, seconds, aim in (
            (f"ready after SIGKILL, {records:,} {kind} records in the WAL", killed, at_most),
            (f"ready after a checkpoint and SIGKILL, {records:,} {kind} records", stored, 0.5),
            (f"ready after a stop in order, {records:,} {kind} records", stopped, 0.5),
        ):
            figures.append(figure(name, "s", seconds, at_most=aim))
            figures.append(figure("... more than the empty start", "s", [figures[-1].median - empty.median]))
    return figures


def start_references(bench: Bench) -> list[Figure]:
    """What every start takes, whatever it finds; the last figure is that of an empty directory."""
    imports = [_seconds(_import) for _ in range(bench.repetitions)]
    return [
        figure("reference: interpreter and imports", "s", imports),
        figure("start with an empty directory, interpreter and imports included", "s", _empty_starts(bench)),
    ]


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _import() -> None:
    subprocess.run([sys.executable, "-c", "import topics.cli.serve, topics.daemon"], check=True)


def _empty_starts(bench: Bench) -> list[float]:
    seconds = []
    for _ in range(bench.repetitions):
        with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet({})) as daemon:
            seconds.append(daemon.start())
            daemon.stop()
    return seconds


def _fill_and_kill(daemon: DaemonProcess, batches: list[bytes]) -> None:
    daemon.start()
    control = Control(daemon.port)
    for topic in range(TOPICS):
        control.create(f"bench-{topic}")
    control.checkpoint(HOLD_MS)
    control.close()
    fill(daemon.port, batches)
    daemon.kill()


def _start_and_kill(daemon: DaemonProcess, records: int) -> float:
    seconds = daemon.start()
    _check(daemon, records)
    daemon.kill()
    return seconds


def _start_and_stop(daemon: DaemonProcess, records: int) -> float:
    seconds = daemon.start()
    _check(daemon, records)
    daemon.stop()
    return seconds


def _snapshots(data_dir: Path) -> list[Path]:
    return list((data_dir / "meta").glob("snapshot.*.cbor"))


def _check(daemon: DaemonProcess, records: int) -> None:
    control = Control(daemon.port)
    for topic in range(TOPICS):
        control.expect_count(f"bench-{topic}", records // TOPICS, crashed=True)
    control.close()
