"""A daemon with the code of an earlier commit, to be measured in turn with that of the checkout."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.bench import Bench, quiet
from daemon_process import DaemonProcess

REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def earlier_daemon(bench: Bench, commit: str, **settings: object) -> Iterator[DaemonProcess | None]:
    """A daemon of that commit on an empty directory, started; it is stopped in order at the end. None if there is no
    git, or no such commit. It has the libraries of the checkout."""
    with bench.scratch() as scratch:
        code = scratch / "code"
        if not extract(commit, code):
            yield None
            return
        with DaemonProcess(scratch / "data", **quiet(settings)) as daemon:
            daemon.code = code
            daemon.start()
            yield daemon
            daemon.stop()


def extract(commit: str, directory: Path) -> bool:
    """Put the `topics` of that commit into a new directory. Return False if that cannot be done."""
    archive = directory.with_suffix(".tar")
    words = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", "--output", str(archive), commit, "topics"]
    try:
        subprocess.run(words, capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    with tarfile.open(archive) as tar:
        tar.extractall(directory, filter="data")
    return True
