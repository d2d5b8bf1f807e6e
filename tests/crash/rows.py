"""A row of the crash table: an operation, what is done before it, and how what a crash leaves is judged.

`lived` runs the lives of a row once and keeps the disk as it was before every mutating operation of the part that the
row is about. `judge` recovers one of these moments after one kind of end, and has the sweep of that feature say whether
every promise holds. Which rows there are is said in `operations`; who runs them all, in `sweep`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from tests.simulation.disk import SimFs
from tests.simulation.disk_state import CRASH_KINDS
from tests.simulation.lives import Point, Sweep
from tests.simulation.world import End, Life
from topics.config import Settings

ENDS: Final[tuple[End, ...]] = ("kill", *CRASH_KINDS, "remount")
"""Every way in which a life ends that does not stop cleanly."""

Script = Callable[[Life, Any], Awaitable[None]]
"""What is done in a life, by whom the sweep gives it."""
AnySweep = Sweep[Any, Any, Any]


async def nothing(life: Life, client: Any) -> None:
    """A start, and an end."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """A life before the one that is crashed."""

    script: Script
    end: End | Literal["stop"] = "kill"
    config: Settings | None = None
    """Its settings, if they are others than those of the row."""
    hurt: Callable[[SimFs], None] | None = None
    """What happens to the disk behind it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """See the module."""

    name: str
    rules: tuple[int, ...]
    """The rules of `docs/spec/crash.md` that it is about."""
    promises: tuple[int, ...]
    """The items of `docs/spec/semantics.md` section 8 that it is about."""
    sweep: Callable[[Settings, int], AnySweep]
    """Who runs the lives and judges what is left: of settings and a seed."""
    config: Settings
    script: Script
    """What is crashed everywhere."""
    before: Script = nothing
    """What the same life does before that."""
    end: End | Literal["stop"] = "kill"
    """How the life ends; the way of a clean stop is crashed too."""
    from_start: bool = False
    """The start of the life is crashed as well."""
    earlier: tuple[Earlier, ...] = ()
    following: Settings | None = None
    """The settings of the starts after a crash, if they are others."""
    how: Callable[[int], dict[str, Any]] = lambda number: {}
    """What a crash is judged with besides, by a number that every end of every point changes."""


def lived(operation: Operation, *, seed: int = 0) -> AnySweep:
    """Run the lives of a row; the sweep has a point before each mutating operation of what the row is about.

    The seed decides in which order what runs side by side gets on.
    """
    sweep = operation.sweep(operation.config, seed)
    for earlier in operation.earlier:
        config = earlier.config or operation.config
        sweep.live(earlier.script, collect=False, end=earlier.end, config=config)
        if earlier.hurt is not None:
            earlier.hurt(sweep.world.fs)
    began = 0

    async def both(life: Life, client: Any) -> None:
        nonlocal began
        await operation.before(life, client)
        began = 0 if operation.from_start else life.fs.mutations
        await operation.script(life, client)

    sweep.live(both, end=operation.end, config=operation.config, following=operation.following)
    sweep.points = [point for point in sweep.points if point.wreck.point >= began]
    return sweep


def ends_of(point: int, *, seeds: int = 1) -> list[tuple[End, int]]:
    """Every way to end at a point, those that are random with several seeds."""
    found: list[tuple[End, int]] = []
    for end in ENDS:
        several = seeds if end in ("tear", "reorder", "garble") else 1
        found += [(end, point + 1000 * i) for i in range(several)]
    return found


def judge(operation: Operation, sweep: AnySweep, point: Point, end: End, seed: int) -> None:
    """Recover what a crash there leaves, as often as the sweep does, and check every promise. Fails with an
    AssertionError, or with the exception of a recovery."""
    sweep.judge(point, end, seed, **operation.how(seed + ENDS.index(end)))
