"""The command line of `scripts/mutate`, and how its findings are shown."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import trio
from rich.console import Console

from mutating.copies import REPOSITORY, copies
from mutating.mutation import Mutation
from mutating.proof import Stage, stages_of
from mutating.table import MUTATIONS
from mutating.trial import CAUGHT, Look, Trial, control, try_all


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME ...]")
@click.option("--list", "lists", is_flag=True, help="List the mutations and what they break; try none.")
@click.option(
    "--jobs", type=click.IntRange(1, 16), default=2, show_default=True, help="Mutations tried at the same time."
)
@click.option("--all-stages", is_flag=True, help="Run all stages, even after one has noticed the mutation.")
@click.option("--stage", "chosen", multiple=True, help="Only this stage; may be repeated.")
@click.option("--no-control", is_flag=True, help="Do not check first that the unbroken build passes.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the findings to this file."
)
def main(
    names: Sequence[str],
    lists: bool,
    jobs: int,
    all_stages: bool,
    chosen: Sequence[str],
    no_control: bool,
    json_path: Path | None,
) -> None:
    """Break copies of the checkout, and see who notices."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    mutations = _chosen(names)
    if lists:
        for one in mutations:
            console.print(f"{one.subsystem:<12} {one.name:<48} {one.breaks}")
        console.print(f"{len(mutations)} mutations")
        return
    stages = _stages(chosen)
    report = trio.run(_until_a_signal, partial(_run, console, mutations, stages, jobs, all_stages, not no_control))
    if report is None:
        raise click.Abort
    if json_path is not None:
        json_path.write_text(json.dumps(report, indent=2) + "\n")
    if not report["passed"]:
        raise SystemExit(1)


def _chosen(names: Sequence[str]) -> list[Mutation]:
    known = {one.name: one for one in MUTATIONS}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"there is no mutation {', '.join(unknown)}: see --list")
    return [known[name] for name in dict.fromkeys(names)] or list(MUTATIONS)


def _stages(chosen: Sequence[str]) -> list[Stage]:
    stages = stages_of(REPOSITORY)
    unknown = set(chosen) - {stage.name for stage in stages}
    if unknown:
        raise click.UsageError(f"there is no stage {', '.join(sorted(unknown))}: {', '.join(s.name for s in stages)}")
    return [stage for stage in stages if not chosen or stage.name in chosen]


async def _until_a_signal(work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any] | None:
    """Its report; None if a signal has come before: then all that was started is ended, and the copies are gone."""
    report = None
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_at, signals, nursery.cancel_scope)
            report = await work()
            nursery.cancel_scope.cancel()
    return report


async def _cancel_at(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


async def _run(
    console: Console,
    mutations: Sequence[Mutation],
    stages: Sequence[Stage],
    jobs: int,
    all_stages: bool,
    controlled: bool,
) -> dict[str, Any]:
    began = trio.current_time()
    report: dict[str, Any] = {"passed": False, "control": [], "mutations": []}
    with copies(min(jobs, max(len(mutations), 1))) as made:
        foreign = await made[0].check_imports("topics")
        if foreign is not None:
            raise click.ClickException(f"the build as it is cannot be imported: {foreign}")
        if controlled:
            looks = await control(made, stages, partial(_tell_control, console))
            report["control"] = [asdict(look) for look in looks]
            if any(look.verdict != "passed" for look in looks):
                console.print("the build as it is does not pass: nothing can be said of broken ones")
                return report
        trials = await try_all(made, mutations, stages, partial(_tell, console), all_stages=all_stages)
    report["mutations"] = [trial.facts() for trial in trials]
    report["seconds"] = round(trio.current_time() - began)
    report["passed"] = all(trial.verdict == "caught" for trial in trials)
    _sum_up(console, trials, report["seconds"])
    return report


def _tell_control(console: Console, look: Look) -> None:
    console.print(f"control   {look.stage}: {look.verdict} {look.what} ({look.seconds:.0f} s)")


def _tell(console: Console, trial: Trial) -> None:
    if trial.error is not None:
        console.print(f"{trial.verdict:<9} {trial.mutation.name}: {trial.error}")
        return
    found = [look for look in trial.looks if look.verdict in CAUGHT]
    by = "  ".join(f"[{look.stage}, {look.seconds:.0f} s] {_what(look)}" for look in found)
    if len(trial.looks) > len(found) and found:
        by += f"  (not by: {', '.join(look.stage for look in trial.looks if look not in found)})"
    console.print(f"{trial.verdict:<9} {trial.mutation.name}: {by or trial.mutation.breaks} ({trial.seconds:.0f} s)")


def _what(look: Look) -> str:
    return look.what if look.verdict == "caught" else f"{look.verdict}: {look.what}"


def _sum_up(console: Console, trials: Sequence[Trial], seconds: int) -> None:
    """How many were caught, and which stage has noticed how many of those that came to it."""
    verdicts = Counter(trial.verdict for trial in trials)
    console.print(", ".join(f"{n} {verdict}" for verdict, n in verdicts.most_common()) + f", in {seconds} s")
    looks = [look for trial in trials for look in trial.looks]
    for stage in dict.fromkeys(look.stage for look in looks):
        found = [look.verdict in CAUGHT for look in looks if look.stage == stage]
        console.print(f"  {stage}: noticed {sum(found)} of {len(found)}")
    for trial in trials:
        if trial.verdict != "caught":
            one = trial.mutation
            console.print(f"  {trial.verdict}: {one.name} ({one.file}) breaks {one.breaks}")


if __name__ == "__main__":
    main()
