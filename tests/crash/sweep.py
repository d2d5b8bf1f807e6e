"""Run the crash table: every row, or chosen ones, at every operation or at a sample of them.

    python -m tests.crash.sweep [--stride N] [--ends all|one] [--row NAME ...] [--json FILE]

prints one table of what was judged and how long that took. A row of the damage table is called `damage:NAME`, and names
may be patterns. What fails is printed with the command that does just that again:

    python -m tests.crash.sweep --row NAME --point N --end KIND --end-seed S

Rows run side by side in processes of their own; one that does not come to an end is ended when the time is up. What a
row is, is said in `rows`, `operations` and `damages`; here they are only run, counted and shown.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shlex
import sys
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.crash.damages import DAMAGES, judge_harm
from tests.crash.operations import OPERATIONS
from tests.crash.rows import ENDS, AnySweep, ends_of, judge, lived
from tests.simulation.lives import Point
from tests.simulation.world import End

PROCESSES: Final = 2
MINUTES: Final = 120
"""After so long a run is given up."""
VARIANTS: Final = 8
"""Places in a file that each kind of damage is done to, at stride 1."""
WIDTH: Final = 110
"""Columns of the table where nobody says how many there are."""
SHOWN: Final = 5
"""Failures of a row that are printed; all are counted."""
DAMAGE: Final = "damage:"

NAMES: Final = (*(row.name for row in OPERATIONS), *(DAMAGE + row.name for row in DAMAGES))
"""Every row there is."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A promise that was broken, or a start that failed."""

    row: str
    problem: str
    point: int | None = None
    end: str | None = None
    end_seed: int | None = None
    order: int = 0

    @property
    def command(self) -> str:
        """What does just that again."""
        words = ["python", "-m", "tests.crash.sweep", "--row", self.row]
        if self.point is not None:
            words += ["--point", str(self.point)]
        if self.end is not None:
            words += ["--end", self.end, "--end-seed", str(self.end_seed)]
        if self.order:
            words += ["--order", str(self.order)]
        return shlex.join(words)


@dataclass(slots=True)
class Figures:
    """What one row has come to."""

    row: str
    rules: tuple[int, ...] = ()
    operations: int = 0
    """Mutating operations of the disk that the row consists of."""
    crashes: int = 0
    """Crashes, or cases of damage, that were recovered and judged."""
    seconds: float = 0.0
    """Of CPU time."""
    failed: int = 0
    failures: list[Failure] = field(default_factory=list)

    def fail(self, failure: Failure) -> None:
        """Count it, and keep the first ones."""
        self.failed += 1
        if len(self.failures) < SHOWN:
            self.failures.append(failure)


@dataclass(frozen=True, slots=True)
class Task:
    """One row, and how much of it."""

    row: str
    stride: int = 1
    every_end: bool = True
    seeds: int = 1
    order: int = 0
    """Decides in which order what runs side by side in the scenario gets on."""


@dataclass(frozen=True, slots=True)
class Case:
    """One crash of a row."""

    point: int
    end: End | None = None
    end_seed: int | None = None


# ----------------------------------------------------------------- running


def run(task: Task, only: Case | None = None) -> Figures:
    """Run a row, or one case of it."""
    began = time.process_time()
    figures = (_run_damage if task.row.startswith(DAMAGE) else _run_operation)(task, only)
    figures.seconds = round(time.process_time() - began, 3)
    return figures


def _run_damage(task: Task, only: Case | None) -> Figures:
    harm = next(row for row in DAMAGES if DAMAGE + row.name == task.row)
    figures = Figures(task.row)
    for variant in [only.point] if only is not None else range(0, VARIANTS, task.stride):
        try:
            judge_harm(harm, variant)
        except BaseException as error:
            figures.fail(Failure(task.row, problem_of(error), variant))
        figures.crashes += 1
    return figures


def _run_operation(task: Task, only: Case | None) -> Figures:
    operation = next(row for row in OPERATIONS if row.name == task.row)
    figures = Figures(task.row, operation.rules)
    try:
        sweep = lived(operation, seed=task.order)
    except BaseException as error:
        figures.fail(Failure(task.row, problem_of(error), order=task.order))
        return figures
    figures.operations = len(sweep.points)
    for point, end, seed in cases(task, sweep, only):
        try:
            judge(operation, sweep, point, end, seed)
        except BaseException as error:
            problem = f"{point.wreck}: {problem_of(error)}"
            figures.fail(Failure(task.row, problem, point.wreck.point, end, seed, task.order))
        figures.crashes += 1
    return figures


def cases(task: Task, sweep: AnySweep, only: Case | None) -> Iterator[tuple[Point, End, int]]:
    """What is judged of a row: every `stride`-th point, some of them in any row, with each end or one end in turn."""
    points = sweep.points
    if only is not None:
        points = [point for point in points if point.wreck.point == only.point]
        assert points, f"{task.row} has no point {only.point}, it has {[point.wreck.point for point in sweep.points]}"
    elif points:
        points = points[zlib.crc32(task.row.encode()) % min(task.stride, len(points)) :: task.stride]
    for i, point in enumerate(points):
        if only is not None and only.end is not None:
            yield point, only.end, point.wreck.point if only.end_seed is None else only.end_seed
            continue
        ends = ends_of(point.wreck.point, seeds=task.seeds)
        for end, seed in ends if task.every_end else [ends[(i + len(task.row)) % len(ends)]]:
            yield point, end, seed


def problem_of(error: BaseException) -> str:
    """What went wrong, in a few lines. Raises what is no failure of a row."""
    if isinstance(error, (KeyboardInterrupt, SystemExit)):
        raise error
    said = f"{type(error).__name__}: {error}"
    if not isinstance(error, AssertionError):
        said += "\n" + "".join(traceback.format_tb(error.__traceback__)[-3:])
    return said[:3000]


def run_all(tasks: Sequence[Task], *, processes: int, minutes: float, console: Console) -> list[Figures]:
    """Run rows side by side; in the order of the table. Raises TimeoutError when the time is up: the processes that are
    still at work are ended."""
    deadline = time.monotonic() + 60 * minutes
    found: dict[str, Figures] = {}
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results = pool.imap_unordered(run, tasks)
        while len(found) < len(tasks):
            try:
                figures = results.next(timeout=max(0.0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                missing = [task.row for task in tasks if task.row not in found]
                raise TimeoutError(f"after {minutes:g} minutes there is nothing of {', '.join(missing)}") from None
            found[figures.row] = figures
            say = "ok" if not figures.failed else f"{figures.failed} FAILED"
            console.print(f"{len(found)}/{len(tasks)} {figures.row}: {figures.crashes} crashes, {say}", highlight=False)
    return [found[task.row] for task in tasks]


# ----------------------------------------------------------------- showing


def table_of(rows: Sequence[Figures]) -> Table:
    """One line for each row, and what it comes to in all."""
    table = Table(title="Crash table")
    for heading in ("operation", "crash.md", "disk operations", "crashes", "seconds", "failed"):
        table.add_column(heading, justify="left" if heading in ("operation", "crash.md") else "right")
    for row in rows:
        rules = " ".join(map(str, row.rules))
        failed = f"[red]{row.failed}" if row.failed else "0"
        table.add_row(row.row, rules, str(row.operations or ""), str(row.crashes), f"{row.seconds:.1f}", failed)
    table.add_section()
    whole = totals(rows)
    table.add_row(
        f"{whole['rows']} rows",
        "",
        str(whole["operations"]),
        str(whole["crashes"]),
        f"{whole['seconds']:.1f}",
        str(whole["failed"]),
    )
    return table


def totals(rows: Sequence[Figures]) -> dict[str, Any]:
    """The sums."""
    return {
        "rows": len(rows),
        "operations": sum(row.operations for row in rows),
        "crashes": sum(row.crashes for row in rows),
        "damages": sum(row.crashes for row in rows if row.row.startswith(DAMAGE)),
        "seconds": round(sum(row.seconds for row in rows), 1),
        "failed": sum(row.failed for row in rows),
    }


def as_json(rows: Sequence[Figures], options: argparse.Namespace) -> bytes:
    """All figures, for those who write about them."""
    found = []
    for row in rows:
        failures = [asdict(failure) | {"command": failure.command} for failure in row.failures]
        found.append(asdict(row) | {"failures": failures})
    how = {"stride": options.stride, "ends": options.ends, "seeds": options.seeds, "order": options.order}
    return msgspec.json.format(msgspec.json.encode({**how, "totals": totals(rows), "rows": found}), indent=2)


# ----------------------------------------------------------------- the command


def chosen(patterns: Sequence[str]) -> list[str]:
    """The rows that are meant, in the order of the table. Raises SystemExit for a pattern that none fits."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in NAMES):
            raise SystemExit(f"there is no row {pattern!r}; there are:\n  " + "\n  ".join(NAMES))
    return [name for name in NAMES if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What is asked for. Raises SystemExit if it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.sweep", description="Run the crash table.")
    parser.add_argument("--row", nargs="+", default=[], metavar="NAME", help="only these, patterns allowed")
    parser.add_argument("--stride", type=int, default=1, help="crash before every so manieth operation")
    parser.add_argument("--ends", choices=("all", "one"), default="all", help="kinds of end at each point")
    parser.add_argument("--seeds", type=int, default=1, help="how often for the ends that are random")
    parser.add_argument("--order", type=int, default=0, help="seed of the order of what runs side by side")
    parser.add_argument("--jobs", type=int, default=PROCESSES)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="give up after so long")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    parser.add_argument("--point", type=int, help="of one row: just this operation, or this case of damage")
    parser.add_argument("--end", choices=ENDS, help="of one point: just this end")
    parser.add_argument("--end-seed", type=int, help="and this seed of it")
    options = parser.parse_args(arguments)
    if min(options.stride, options.seeds, options.jobs) < 1:
        parser.error("--stride, --seeds and --jobs begin at 1")
    if options.end is not None and options.point is None:
        parser.error("--end is an end at a --point")
    if options.point is not None and len(chosen(options.row)) != 1:
        parser.error("--point is a point of one --row")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; 0 if every promise holds."""
    options = options_of(arguments)
    console = Console()
    console.width = max(console.width, WIDTH)
    every_end = options.ends == "all"
    tasks = [Task(name, options.stride, every_end, options.seeds, options.order) for name in chosen(options.row)]
    if options.point is not None:
        rows = [run(tasks[0], Case(options.point, options.end, options.end_seed))]
    else:
        try:
            rows = run_all(tasks, processes=options.jobs, minutes=options.minutes, console=console)
        except TimeoutError as error:
            console.print(str(error), highlight=False)
            return 2
    console.print(table_of(rows))
    for failure in (failure for row in rows for failure in row.failures):
        console.print(f"\n{escape(failure.command)}\n  {escape(failure.problem)}", highlight=False, soft_wrap=True)
    if options.json is not None:
        options.json.write_bytes(as_json(rows, options))
    return 1 if any(row.failed for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
