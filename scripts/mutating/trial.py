"""One mutation on trial: applied to a copy, and put to the proof until a stage notices it.

Responsible for what the end of a stage means. A stage that fails, or does not end, has caught the mutation; one that
could not be run says nothing of it, nor does a build that cannot even be imported: that is a fault of the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import trio

from mutating.copies import Copy, Ended
from mutating.mutation import Mutation
from mutating.proof import FAILED, HANG, TEST, Stage

Verdict = Literal["passed", "caught", "hang", "killed", "error"]
"""Of a stage. "killed": a signal has ended it, which no healthy build brings upon itself. "error": it was not run."""

CAUGHT: Final = frozenset({"caught", "hang", "killed"})
NAMED: Final = 3
"""Failures that are named."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one stage has found, and how long it took."""

    stage: str
    verdict: Verdict
    what: str
    seconds: float


@dataclass(slots=True)
class Trial:
    """What became of a mutation."""

    mutation: Mutation
    looks: list[Look] = field(default_factory=list)
    error: str | None = None

    @property
    def verdict(self) -> Literal["caught", "SURVIVED", "error"]:
        """A mutation is caught if any stage has noticed it. An error leaves open whether one would have."""
        if any(look.verdict in CAUGHT for look in self.looks):
            return "caught"
        return "error" if self.error is not None else "SURVIVED"

    @property
    def seconds(self) -> float:
        """What all of it took."""
        return sum(look.seconds for look in self.looks)

    def facts(self) -> dict[str, Any]:
        """For `--json`."""
        one = self.mutation
        return {
            "name": one.name,
            "subsystem": one.subsystem,
            "file": one.file,
            "breaks": one.breaks,
            "expected": one.expected,
            "verdict": self.verdict,
            "error": self.error,
            "stages": [asdict(look) for look in self.looks],
        }


async def attempt(copy: Copy, mutation: Mutation, stages: Sequence[Stage], *, all_stages: bool) -> Trial:
    """Put one mutation to the proof: until a stage notices, or all the way."""
    trial = Trial(mutation)
    with copy.broken(mutation):
        trial.error = await copy.check_imports(mutation.module)
        if trial.error is not None:
            return trial
        for stage in stages:
            look = await look_at(copy, mutation, stage)
            trial.looks.append(look)
            if look.verdict == "error":
                trial.error = f"{stage.name}: {look.what}"
                break
            if look.verdict in CAUGHT and not all_stages:
                break
    return trial


async def look_at(copy: Copy, mutation: Mutation | None, stage: Stage) -> Look:
    """Run one stage (of a copy that is not broken, if there is no mutation)."""
    ended = await copy.run(stage.command(mutation), stage.timeout_s)
    return Look(stage.name, *_judged(ended, stage), round(ended.seconds, 1))


def _judged(ended: Ended, stage: Stage) -> tuple[Verdict, str]:
    if ended.code is None:
        return "hang", f"not over after {stage.timeout_s:g} s"
    if ended.code == 0:
        return "passed", ""
    if re.search(HANG, ended.output, re.MULTILINE):
        return "hang", "; ".join(re.findall(TEST, ended.output)[-1:]) or "a test does not end"
    if ended.code < 0:
        return "killed", f"signal {-ended.code}"
    found = re.findall(stage.names, ended.output, re.MULTILINE)
    if ended.code == FAILED and found:
        return "caught", "; ".join(found[:NAMED])
    lines = ended.output.strip().splitlines()
    return "error", f"exit code {ended.code}: {lines[-1] if lines else 'no output'}"


async def control(copies: Sequence[Copy], stages: Sequence[Stage], tell: Callable[[Look], None]) -> list[Look]:
    """The proof of the build as it is, as many stages at a time as there are copies; the targeted tests are those of
    every file."""
    todo = list(reversed(stages))
    looks: list[Look] = []

    async def work(copy: Copy) -> None:
        while todo:
            look = await look_at(copy, None, todo.pop(0))
            looks.append(look)
            tell(look)

    async with trio.open_nursery() as nursery:
        for copy in copies:
            nursery.start_soon(work, copy)
    return looks


async def try_all(
    copies: Sequence[Copy],
    mutations: Sequence[Mutation],
    stages: Sequence[Stage],
    tell: Callable[[Trial], None],
    *,
    all_stages: bool,
) -> list[Trial]:
    """All mutations, as many at a time as there are copies; `tell` hears of each when it is done."""
    todo = list(mutations)
    done: dict[str, Trial] = {}

    async def work(copy: Copy) -> None:
        while todo:
            mutation = todo.pop(0)
            trial = done[mutation.name] = await attempt(copy, mutation, stages, all_stages=all_stages)
            tell(trial)

    async with trio.open_nursery() as nursery:
        for copy in copies:
            nursery.start_soon(work, copy)
    return [done[mutation.name] for mutation in mutations]
