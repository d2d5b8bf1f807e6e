"""The command line of `scripts/simulate`: plans of many seeds in two processes, or one plan again, cut down."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from tests.simulator import cases
from tests.simulator.attempt import Outcome, end_with_parent, kind_of, outcome_of, problem_of
from tests.simulator.plan import Plan, decode, encode, make
from tests.simulator.shrinking import shrink

MOST_FAILURES: Final = 10
"""After so many failures it stops: there is enough to look at."""
SHOWN_CHARS: Final = 400
"""Of a problem, among others; alone it is shown whole."""
FRESH: Final = 1 << 40


@dataclass(slots=True)
class Totals:
    """What became of all of them."""

    seeds: int = 0
    lives: int = 0
    recoveries: int = 0
    operations: int = 0
    faults: int = 0
    rot: int = 0
    hangs: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """One more."""
        figures = outcome.figures
        self.seeds += 1
        self.lives += figures.lives
        self.recoveries += figures.recoveries
        self.operations += figures.operations
        self.faults += figures.faults
        self.rot += figures.rot
        self.hangs += figures.hangs
        self.ends.update(figures.ends)
        self.checked.update(figures.checked)
        if outcome.problem is not None:
            self.failed.append(outcome.seed)

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "seeds": self.seeds,
            "lives": self.lives,
            "recoveries": self.recoveries,
            "disk operations": self.operations,
            "faults": self.faults,
            "bits changed": self.rot,
            "calls that never returned": self.hangs,
            "ends": dict(self.ends),
            "checked": dict(self.checked),
            "failed": self.failed,
        }


@click.command()
@click.option("--seeds", type=click.IntRange(min=1), help="How many.  [default: 100; with --minutes any number]")
@click.option("--from", "start", type=click.IntRange(min=0), help="Seeds from this one on; without it fresh ones.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after so long.")
@click.option("--jobs", type=click.IntRange(1, 64), default=min(2, os.cpu_count() or 1), show_default=True)
@click.option("--shrink/--no-shrink", "shrinks", default=True, help="Cut the first failing plan down.")
@click.option("--case", "case", help="Run this plan: a file, or the name of a past failure.")
@click.option("--show", is_flag=True, help="Print the plan of --from (or --case), and do not run it.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan that was cut down there.")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures there.")
def main(
    seeds: int | None,
    start: int | None,
    minutes: float | None,
    jobs: int,
    shrinks: bool,
    case: str | None,
    show: bool,
    save: Path | None,
    json_path: Path | None,
) -> None:
    """Run the engine on a simulated disk and clock, and try to break its promises. A seed decides everything."""
    if case is not None or show:
        plan = decode(Path(case).read_bytes()) if case and Path(case).is_file() else None
        plan = plan or (cases.load(case) if case else make(start or 0))
        if show:
            click.echo(encode(plan))
        else:
            _again(plan, shrinks, save)
        return
    if seeds is None and minutes is None:
        seeds = 100
    totals, failures, seconds = _run_all(_seeds(start, seeds), jobs, minutes)
    _report(totals, seconds)
    if json_path is not None:
        json_path.write_text(json.dumps({**totals.facts(), "seconds": round(seconds)}, indent=2) + "\n")
    if failures:
        if shrinks:
            _shrink(make(failures[0].seed), str(failures[0].problem), save)
        sys.exit(1)


def _seeds(start: int | None, count: int | None) -> Iterator[int]:
    """The seeds to be run."""
    if start is None:
        start = random.SystemRandom().randrange(FRESH)
        click.echo(f"seeds from {start}")
    seed = start
    while count is None or seed < start + count:
        yield seed
        seed += 1


def _run_all(seeds: Iterator[int], jobs: int, minutes: float | None) -> tuple[Totals, list[Outcome], float]:
    """Run plans in processes, no more at a time than there are of these, until there are no seeds or no time left."""
    began = time.monotonic()
    totals, failures = Totals(), list[Outcome]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        running: set[Future[Outcome]] = set()
        while len(failures) < MOST_FAILURES:
            while len(running) < 2 * jobs and (minutes is None or time.monotonic() - began < 60 * minutes):
                seed = next(seeds, None)
                if seed is None:
                    break
                running.add(pool.submit(outcome_of, seed))
            if not running:
                break
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                _note(future.result(), totals, failures)
                if totals.seeds % 100 == 0:
                    click.echo(f"{totals.seeds} seeds, {len(failures)} failures, {time.monotonic() - began:.0f} s")
        for future in running:
            future.cancel()
    return totals, failures, time.monotonic() - began


def _note(outcome: Outcome, totals: Totals, failures: list[Outcome]) -> None:
    totals.add(outcome)
    if outcome.problem is not None:
        failures.append(outcome)
        cut = "" if len(outcome.problem) <= SHOWN_CHARS else " ..."
        click.echo(f"seed {outcome.seed}: {outcome.problem[:SHOWN_CHARS]}{cut}")
        click.echo(f"  scripts/simulate --from {outcome.seed} --seeds 1")


def _report(totals: Totals, seconds: float) -> None:
    for name, value in totals.facts().items():
        said = ", ".join(f"{key} {count:,}" for key, count in value.items()) if isinstance(value, dict) else value
        click.echo(f"{name}: {said:,}" if isinstance(said, int) else f"{name}: {said or 'none'}")
    click.echo(f"in {seconds:.0f} s")


def _again(plan: Plan, shrinks: bool, save: Path | None) -> None:
    problem, figures = problem_of(plan)
    if problem is None:
        click.echo(f"nothing is wrong: {figures.lives} lives, {dict(figures.checked)}")
        return
    click.echo(problem)
    if shrinks:
        _shrink(plan, problem, save)
    sys.exit(1)


def _shrink(plan: Plan, problem: str, save: Path | None) -> None:
    kind = kind_of(problem)
    before = plan.size()

    def fails(smaller: Plan) -> bool:
        found, _ = problem_of(smaller)
        return found is not None and kind_of(found) == kind

    plan = shrink(plan, fails)
    click.echo(f"cut down from {before} to {plan.size()} (steps, faults and lives):")
    click.echo(encode(plan))
    click.echo(problem_of(plan)[0])
    if save is not None:
        save.write_bytes(encode(plan))
        click.echo(f"scripts/simulate --case {save}")


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names are gone through in an order that has to be the same the next time.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulator", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    main(prog_name="scripts/simulate")
