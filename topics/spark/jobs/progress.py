"""A bar while Spark works, for who looks on: on a terminal, on stderr, fed by Spark's own status.

It counts the tasks of the stages that Spark runs, which is all that is known of a job before its end.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVERY_S: Final = 0.25


@contextmanager
def progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Show how far the jobs are that Spark runs during the block. Shows nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks"))
    bar = Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    over = threading.Event()
    status = _Tasks(spark)

    def watch() -> None:
        while not over.wait(EVERY_S):
            done, total = status.look()
            bar.update(task, completed=done, total=total or None)

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    with bar:
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join(10 * EVERY_S)


class _Tasks:
    """How many tasks have been done, of how many, over the stages seen so far."""

    def __init__(self, spark: SparkSession) -> None:
        self._tracker = spark.sparkContext.statusTracker()
        self._stages: dict[int, tuple[int, int]] = {}

    def look(self) -> tuple[int, int]:
        try:
            for stage in {*self._tracker.getActiveStageIds(), *self._stages}:
                info = self._tracker.getStageInfo(stage)
                if info is not None:
                    self._stages[stage] = (info.numCompletedTasks, info.numTasks)
        except Exception:  # the session is being stopped; the job itself reports the error
            pass
        return sum(done for done, _ in self._stages.values()), sum(of for _, of in self._stages.values())
