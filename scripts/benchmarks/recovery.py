"""Starting again: after SIGKILL, with everything in the WAL or in segments, and after a stop in order."""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import topics
from benchmarks.bench import HOLD_MS, NEVER_MS, Bench, Control, append_request, full_record, plain_record, quiet
from benchmarks.diff import BATCH, fill
from benchmarks.figures import Figure, figure
from daemon_process import DaemonProcess

TOPICS = 4
SETTINGS: dict[str, object] = {"checkpoint_ms": NEVER_MS, "drain_ms": 50_000}
"""No checkpoint is due but at the rotation of a WAL file, which a hold prevents; and the one of a stop has time."""


IMPORTS = "from topics.cli.serve import building, withheld\nwith withheld('rich'), building(): import topics.daemon"
"""As `topics serve` does it."""


def run(bench: Bench) -> list[Figure]:
    """Seconds from the start of the process to ready; the records are counted each time."""
    bench = replace(bench, many=True)
    records = 100_000 if bench.quick else 1_000_000
    figures = start_references(bench)
    empty = figures[-1].median
    for kind, record in (("plain", plain_record), ("full", full_record)):
        bench.say(f"{records:,} {kind} records")
        batches = [
            append_request(f"bench-{number % TOPICS}", [record(number * BATCH + place) for place in range(BATCH)])
            for number in range(records // BATCH)
        ]
        with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet(SETTINGS)) as daemon:
            _fill_and_kill(daemon, batches)
            snapshots = _snapshots(daemon.data_dir)
            killed = bench.repeat(_start_and_kill, daemon, records)
            if _snapshots(daemon.data_dir) != snapshots:
                raise RuntimeError("there is a new snapshot: what was measured is not the WAL")
            daemon.start()
            Control(daemon.port).checkpoint()
            daemon.kill()
            stored = bench.repeat(_start_and_kill, daemon, records)
            daemon.start()
            daemon.stop()
            stopped = bench.repeat(_start_and_stop, daemon, records, times=bench.few)
        at_most = None if bench.quick else 3.0
        for key, name, seconds, aim in (
            ("killed", f"ready after SIGKILL, {records:,} {kind} records in the WAL", killed, at_most),
            ("stored", f"ready after a checkpoint and SIGKILL, {records:,} {kind} records", stored, 0.5),
            ("stopped", f"ready after a stop in order, {records:,} {kind} records", stopped, 0.5),
        ):
            figures.append(figure(name, "s", seconds, key=f"{key}-{kind}", at_most=aim, references=("empty",)))
            more = [taken - empty for taken in seconds]
            figures.append(figure("... more than the empty start", "s", more, key="more"))
    return figures


def start_references(bench: Bench) -> list[Figure]:
    """The time that every start takes for its processes and modules, which are compiled. The last figure is that of an
    empty directory."""
    # As an installer does it. Where `PYTHONDONTWRITEBYTECODE` is set, each start would compile 260 modules again.
    compileall.compile_dir(Path(topics.__file__).parent, quiet=2)
    imports, empty = bench.repeat(_import, warm_up=1), bench.repeat(_empty_start, bench, warm_up=1)
    name = "start with an empty directory, interpreter and imports included"
    return [
        figure("reference: interpreter and imports", "s", imports, key="imports"),
        figure(name, "s", empty, key="empty", at_most=0.5, references=("imports",)),
    ]


def _import() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=True)
    return time.perf_counter() - began


def _empty_start(bench: Bench) -> float:
    with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet({})) as daemon:
        seconds = daemon.start()
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
