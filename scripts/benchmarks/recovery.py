"""Starting again: after SIGKILL with everything in the WAL, and after a stop in order."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bench import Bench, Control, append_request, full_record, plain_record, quiet
from benchmarks.diff import BATCH, fill
from benchmarks.figures import Figure, figure
from daemon_process import DaemonProcess

TOPICS = 4
NO_SNAPSHOT: dict[str, object] = {"checkpoint_ms": 31_536_000_000}
"""Keeps everything in the WAL: with such an interval no snapshot is due before a stop in order."""


def run(bench: Bench) -> list[Figure]:
    """Seconds from the start of the process to ready; the records are counted each time."""
    records = 100_000 if bench.quick else 1_000_000
    empty = figure("start with an empty directory, interpreter and imports included", "s", _empty_starts(bench))
    figures = [empty]
    for kind, record in (("plain", plain_record), ("full", full_record)):
        bench.say(f"{records:,} {kind} records")
        batches = [
            append_request(f"bench-{number % TOPICS}", [record(number * BATCH + place) for place in range(BATCH)])
            for number in range(records // BATCH)
        ]
        with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet(NO_SNAPSHOT)) as daemon:
            _fill_and_kill(daemon, batches)
            killed = [_start_and_kill(daemon, records) for _ in range(bench.repetitions)]
            daemon.start()
            daemon.stop()
            stopped = [_start_and_stop(daemon, records) for _ in range(bench.repetitions)]
        at_most = None if bench.quick else 3.0
        for name, seconds, aim in (
            (f"ready after SIGKILL, {records:,} {kind} records in the WAL", killed, at_most),
            (f"ready after a stop in order, {records:,} {kind} records", stopped, 0.5),
        ):
            figures.append(figure(name, "s", seconds, at_most=aim))
            figures.append(figure("... more than the empty start", "s", [figures[-1].median - empty.median]))
    return figures


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
    control.close()
    fill(daemon.port, batches)
    daemon.kill()


def _start_and_kill(daemon: DaemonProcess, records: int) -> float:
    if _snapshots(daemon.data_dir):
        raise RuntimeError("there is a snapshot: what would be measured is not the WAL")
    seconds = daemon.start()
    _check(daemon, records)
    daemon.kill()
    return seconds


def _start_and_stop(daemon: DaemonProcess, records: int) -> float:
    if not _snapshots(daemon.data_dir):
        raise RuntimeError("there is no snapshot after a stop in order")
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
