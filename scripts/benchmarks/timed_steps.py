"""The daemon with a clock on the steps of its loop: `python -m benchmarks.timed_steps FILE`.

Settings come from the environment, as always. A step is what a task does from one `await` that suspends it to the next:
while it lasts the loop does nothing else. For each step that used the processor for `LEAST_MS` or more a line is added
to FILE: when it ended, how many ms of the processor it used, and the name of its task. The time of the processor is
taken, and not that of the wall, so that other programs on the same machine are not mistaken for long steps.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import trio
from trio.abc import Instrument

from topics import daemon
from topics.config import load_settings
from topics.telemetry.logs import setup_logging

LEAST_MS = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """A line of the file."""

    ended_s: float
    """On the monotonic clock, which all processes of a machine share."""
    took_ms: float
    task: str


class StepTimer(Instrument):
    """Writes down long steps."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._began_ns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_ns = time.thread_time_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took_ms = (time.thread_time_ns() - self._began_ns) / 1e6
        if took_ms >= LEAST_MS:
            os.write(self._file, f"{time.monotonic()} {took_ms} {task.name}\n".encode())


def steps_since(path: Path, began_s: float) -> list[Step]:
    """The steps of a daemon's FILE that ended after `began_s` on the monotonic clock."""
    steps = []
    for line in path.read_text().splitlines():
        ended, took, task = line.split(" ", 2)
        if float(ended) > began_s:
            steps.append(Step(float(ended), float(took), task))
    return steps


def main() -> None:
    settings = load_settings(os.environ)
    setup_logging(settings.log_level, settings.log_format)
    file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    timed = functools.partial(trio.run, instruments=[StepTimer(file)])
    setattr(trio, "run", timed)  # noqa: B010 - the daemon has no parameter for what only this benchmark needs
    sys.exit(daemon.run(settings))


if __name__ == "__main__":
    main()
