"""One run of a plan, in a time that is bounded, and what became of it."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Final

from tests.simulator.hang import Hang, told_hang
from tests.simulator.plan import Plan, make
from tests.simulator.running import Figures, run

PR_SET_PDEATHSIG: Final = 1
HANG_S: Final = 120
"""A plan takes about half a second; one that takes so long will not end."""


@dataclass(slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    problem: str | None
    figures: Figures


def end_with_parent() -> None:
    """Have this process killed when the one that has started it ends, however it does (Linux)."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def problem_of(plan: Plan) -> tuple[str | None, Figures]:
    """What is wrong with a run of this plan, if anything, in a time that is bounded."""

    def hangs(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"it is not over after {HANG_S} s")

    signal.signal(signal.SIGALRM, hangs)
    signal.alarm(HANG_S)
    try:
        return None, run(plan)
    except BaseException as error:
        told = told_hang(error)
        return f"{type(told).__name__}: {told}", Figures()
    finally:
        signal.alarm(0)


def outcome_of(seed: int) -> Outcome:
    """Run the plan of a seed."""
    return Outcome(seed, *problem_of(make(seed)))


def kind_of(problem: str) -> str:
    """What two failures have in common that are the same: what is said, without the numbers and names in it."""
    first = problem.splitlines()[0]
    return "".join(char for char in first if not char.isdigit())[:60]
