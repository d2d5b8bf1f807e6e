"""The command line of `scripts/simulate --replicas`: the histories of a range of seeds, or a daemon killed at each of
its steps, in several processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import Any, Final

import click

from tests.simulator.attempt import end_with_parent
from tests.simulator.replicas.attempt import Outcome, outcome_of_seed
from tests.simulator.replicas.crash_points import PHASES, CrashPoint, Phase, outcome_at, points

MOST_FAILURES: Final = 20
"""After so many failures it stops: there is enough to look at."""

TOLD_EVERY: Final = 500

SHOWN_CHARS: Final = 400
"""Of a problem."""


class SeedRange(click.ParamType[range]):
    """`A..B`, both inclusive, or one seed."""

    name = "A..B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> range:
        if isinstance(value, range):
            return value
        first, dots, last = str(value).partition("..")
        try:
            found = range(int(first), int(last if dots else first) + 1)
        except ValueError:
            self.fail(f"{value!r} is not a range of seeds, such as 1..20000", param, ctx)
        if not found or found.start < 0:
            self.fail(f"{value!r} is no range: it has to ascend, and to begin at 0 or more", param, ctx)
        return found


@click.command()
@click.option("--seeds", type=SeedRange(), default=range(100), show_default="0..99", help="The seeds, both inclusive.")
@click.option("--crashes", is_flag=True, help="Kill a daemon at each of its steps instead, in every way.")
@click.option(
    "--phase",
    "phases",
    type=click.Choice(PHASES),
    multiple=True,
    default=PHASES,
    help="With --crashes: only in this one.",
)
@click.option("--stride", type=click.IntRange(min=1), default=1, help="With --crashes: every so manieth step.")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), help="Stop after so long.")
@click.option("--jobs", type=click.IntRange(1, 64), default=min(2, os.cpu_count() or 1), show_default=True)
def main(seeds: range, crashes: bool, phases: tuple[Phase, ...], stride: int, minutes: float | None, jobs: int) -> None:
    """Two to four daemons over one simulated bucket: try to break what must hold of them. A seed decides everything."""
    if crashes:
        every = (point for phase in phases for point in points(phase) if point.step % stride == 0)
        failed = run_all(outcome_at, every, jobs, minutes)
    else:
        failed = run_all(outcome_of_seed, iter(seeds), jobs, minutes)
    sys.exit(1 if failed else 0)


def run_all(run: Callable[[Any], Outcome], work: Iterator[Any], jobs: int, minutes: float | None) -> int:
    """Run all, in processes, and print what has failed. Return how many that were. Stops at `MOST_FAILURES`."""
    began = time.monotonic()
    done: list[Outcome] = []
    failed = 0
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), end_with_parent) as pool:
        running: dict[Future[Outcome], Any] = {}
        while failed < MOST_FAILURES:
            while len(running) < 4 * jobs and (minutes is None or time.monotonic() - began < 60 * minutes):
                one = next(work, None)
                if one is None:
                    break
                running[pool.submit(run, one)] = one
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                what, outcome = running.pop(future), future.result()
                done.append(outcome)
                if outcome.problems:
                    failed += 1
                    _tell(what, outcome)
                if len(done) % TOLD_EVERY == 0:
                    click.echo(f"{len(done)} histories, {failed} failures, {time.monotonic() - began:.0f} s")
        for future in running:
            future.cancel()
    _report(done, failed, time.monotonic() - began)
    return failed


def _tell(what: Any, outcome: Outcome) -> None:
    click.echo(f"{what if isinstance(what, CrashPoint) else f'seed {what}'}:")
    for problem in outcome.problems[:3]:
        click.echo(f"  {problem[:SHOWN_CHARS]}")
    if not isinstance(what, CrashPoint):
        click.echo(f"  scripts/simulate --replicas --seeds {what}..{what}")


def _report(done: list[Outcome], failed: int, seconds: float) -> None:
    click.echo(
        f"{len(done):,} histories, {failed} failures, {sum(one.takeovers for one in done):,} takeovers "
        f"({sum(one.handovers for one in done):,} by standbys), {sum(one.answers for one in done):,} acked changes, "
        f"{sum(one.looks for one in done):,} looks at standbys, {sum(one.kills for one in done):,} kills, "
        f"in {seconds:.0f} s"
    )


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of names are gone through in an order that has to be the same the next time.
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulator.replicas", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    main(prog_name="scripts/simulate --replicas")
