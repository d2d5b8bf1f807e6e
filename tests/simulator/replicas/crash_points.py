"""The same story again and again, in which one daemon is killed at each of its steps (`machine`): while it follows
cuts, while it takes over and makes its directory the owner's, while it comes back and sets its directory aside.

    follow   the first daemon owns the bucket, the second one follows it
    take     the first one is killed; the second one takes the prefix, puts the fencing round, hands its directory over
             and is ready as the owner
    back     the first one is started again: it sets its directory aside, has another one made, and follows

The story goes on to its end after the kill, so the process that is started next has to find its way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, get_args

import trio

from tests.simulator.replicas.attempt import Outcome, outcome_of
from tests.simulator.replicas.history import History
from tests.simulator.replicas.machine import DEATHS, Death, KillPoint, Machine
from tests.simulator.replicas.nodes import Node
from tests.simulator.replicas.plan import Plan

Phase = Literal["follow", "take", "back"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

LONGEST_S: Final = 60.0
"""No phase may take longer (s)."""

PLAN: Final = Plan(
    seed=1,
    rates=[1.0, 1.0],
    standbys=[True, True],
    round_bytes=200,
    reserved=6,
    checkpoint_ms=1500,
    base_ms=4000,
    events=[],
)


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """A daemon is killed before step `step` of a phase; what that step was is told for reports."""

    phase: Phase
    step: int
    death: Death
    what: str = field(compare=False, default="")


@dataclass(slots=True)
class Story:
    """The story, with a kill or without; `steps` of the daemon that the phase is about are kept."""

    phase: Phase
    point: CrashPoint | None = None
    steps: list[str] = field(default_factory=list)

    async def __call__(self, history: History) -> None:
        first, second = history.nodes
        second.machine.take_down()
        second.machine.kill("loss")
        await _until(lambda: first.is_owner)
        await trio.sleep(1.2)
        with self._watched("follow", second.machine):
            second.machine.bring_up()
            await _until(lambda: second.follows is not None)
            await trio.sleep(2)  # with a checkpoint
            await _until(lambda: _is_current(second, first))
        with self._watched("take", second.machine):
            first.machine.take_down()
            first.machine.kill("kill")
            await _until(lambda: second.is_owner)
        await trio.sleep(1)
        with self._watched("back", first.machine):
            first.machine.bring_up()
            await _until(lambda: _is_current(first, second))
        await trio.sleep(0.5)

    def _watched(self, phase: Phase, machine: Machine) -> Watch:
        return Watch(self, phase, machine)


class Watch:
    """Keeps the steps of a machine, or kills it, while a phase lasts."""

    def __init__(self, story: Story, phase: Phase, machine: Machine) -> None:
        self._story = story
        self._is_it = phase == story.phase
        self._machine = machine

    def __enter__(self) -> None:
        if self._is_it:
            self._machine.keeps_steps = True
            point = self._story.point
            if point is not None:
                self._machine.kill_point = KillPoint(point.step, point.death)

    def __exit__(self, *_: object) -> None:
        if self._is_it:
            self._machine.keeps_steps, self._machine.kill_point = False, None
            self._story.steps = self._machine.steps


async def _until(holds: Callable[[], bool]) -> None:
    with trio.fail_after(LONGEST_S):
        while not holds():  # noqa: ASYNC110 (nothing tells of it)
            await trio.sleep(0.1)


def _is_current(node: Node, owner: Node) -> bool:
    """Return True if a standby has applied what its owner has written a moment ago."""
    if node.standby is None or owner.life is None or not owner.is_owner:
        return False
    return node.standby.look().round >= owner.life.archive.last_round - 2


@cache
def steps_of(phase: Phase) -> list[str]:
    """What the daemon of a phase does, step by step, if nobody kills it."""
    story = Story(phase)
    outcome = outcome_of(PLAN, story)
    assert outcome.problems == [], outcome.problems
    return story.steps


def points(phase: Phase, deaths: tuple[Death, ...] = DEATHS) -> Iterator[CrashPoint]:
    """Every step of a phase, with every way to die."""
    for step, what in enumerate(steps_of(phase)):
        for death in deaths:
            yield CrashPoint(phase, step, death, what)


def outcome_at(point: CrashPoint) -> Outcome:
    """Tell the story with this kill. It says of a story without the kill that it is a problem."""
    outcome = outcome_of(PLAN, Story(point.phase, point))
    expected = 3  # two are of the story
    if not outcome.problems and outcome.kills != expected:
        outcome.problems.append(f"there were {outcome.kills} kills, not {expected}")
    return outcome
