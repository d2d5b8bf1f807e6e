"""Starting again: after SIGKILL with everything in the WAL, and after a stop in order."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.bench import Bench, Control, append_request, full_record, plain_record, quiet
from benchmarks.diff import BATCH, fill
from benchmarks.figures import Figure, figure
from daemon_process import DaemonProcess

TOPICS = 4
NO_SNAPSHOT = {"checkpoint_ms": 31_536_000_000, "wal_file_bytes": "2GiB"}
"""Keeps everything in the WAL: with these settings nothing is due before the kill."""


def run(bench: Bench) -> list[Figure]:
    """Seconds from the start of the process to ready; the record counts are checked each time."""
    records = 100_000 if bench.quick else 1_000_000
    figures = [figure("start with an empty directory", "s", _empty_starts(bench))]
    for kind, record in (("plain", plain_record), ("full", full_record)):
        bench.say(f"{records:,} {kind} records")
        batches = [
            append_request(f"bench-{number % TOPICS}", [record(number * BATCH + place) for place in range(BATCH)])
            for number in range(records // BATCH)
        ]
        with bench.scratch() as scratch:
            kept = scratch / "kept"
            with DaemonProcess(kept, **quiet(dict(NO_SNAPSHOT))) as daemon:
                daemon.start()
                control = Control(daemon.port)
                for topic in range(TOPICS):
                    control.create(f"bench-{topic}")
                control.close()
                fill(daemon.port, batches)
                daemon.kill()
            killed, stopped = _restarts(bench, kept, records)
        target = None if bench.quick else 3.0
        figures.append(
            figure(f"ready after SIGKILL, {records:,} {kind} records in the WAL", "s", killed, at_most=target)
        )
        figures.append(figure(f"ready after a stop in order, {records:,} {kind} records", "s", stopped, at_most=0.5))
    return figures


def _empty_starts(bench: Bench) -> list[float]:
    seconds = []
    for _ in range(bench.repetitions):
        with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet({})) as daemon:
            seconds.append(daemon.start())
            daemon.stop()
    return seconds


def _restarts(bench: Bench, kept: Path, records: int) -> tuple[list[float], list[float]]:
    killed, stopped = [], []
    for _ in range(bench.repetitions):
        copy = kept.with_name("copy")
        shutil.copytree(kept, copy)
        with DaemonProcess(copy, **quiet(dict(NO_SNAPSHOT))) as daemon:
            killed.append(daemon.start())
            _check(daemon, records)
            daemon.stop()
            stopped.append(daemon.start())
            _check(daemon, records)
            daemon.stop()
        shutil.rmtree(copy)
    return killed, stopped


def _check(daemon: DaemonProcess, records: int) -> None:
    control = Control(daemon.port)
    for topic in range(TOPICS):
        control.expect_count(f"bench-{topic}", records // TOPICS)
    control.close()
