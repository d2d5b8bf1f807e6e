"""One plan in a time that is bounded, and what became of it."""

from __future__ import annotations

import gc
import signal
from dataclasses import dataclass
from types import FrameType
from typing import Final

from tests.simulator.hang import Hang, leaves_of, told_hang
from tests.simulator.replicas.history import Script, lived
from tests.simulator.replicas.plan import Plan, make

HANG_S: Final = 30
"""A history takes a fraction of a second of the processor; one that takes so long (s) will not end."""


@dataclass(slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    problems: list[str]
    takeovers: int = 0
    handovers: int = 0
    """How often a standby has become the owner."""
    answers: int = 0
    looks: int = 0
    kills: int = 0


def outcome_of(plan: Plan, script: Script | None = None, hang_s: float = HANG_S) -> Outcome:
    """Run a plan. What is wrong with it is in `problems`: what the judge says, or how it has failed."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"it is not over after {hang_s} s of the processor")

    before = signal.signal(signal.SIGPROF, hangs)
    signal.setitimer(signal.ITIMER_PROF, hang_s)
    collects = gc.isenabled()
    gc.disable()  # a history is over before there is much to be found
    try:
        history = lived(plan, script)
    except BaseException as error:
        found = leaves_of(told_hang(error))
        return Outcome(plan.seed, [f"{type(one).__name__}: {one}" for one in found])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        if collects:
            gc.enable()
            gc.collect()
    judge = history.judge
    kills = sum(node.machine.kills for node in history.nodes)
    return Outcome(plan.seed, judge.problems, judge.takeovers, history.taken, judge.answers, judge.looks, kills)


def outcome_of_seed(seed: int) -> Outcome:
    """Run the plan of a seed."""
    return outcome_of(make(seed))
