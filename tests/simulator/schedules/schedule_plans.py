"""What a plan does with schedules. It is drawn by itself, so that the rest of a seed's plan is what it was."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.simulator.actors import Actor, Step

CALENDAR: Final = "s"
"""The topic that schedules append to."""
SCHEDULES: Final = ("first", "second")
CLASSES: Final = ("memory", "disk", "fsync")


class SchedulePlanner:
    """Draws what is done with schedules in each life."""

    def __init__(self, seed: int, size: float) -> None:
        self.random = random.Random(f"schedules {seed}")
        self.size = size
        self.is_used = self.random.random() < 0.45

    def actors(self, number: int) -> list[Actor]:
        """Those of a life."""
        if not self.is_used:
            return []
        rng = self.random
        first: list[Step] = []
        if number == 0:
            first.append(Step("topic", 0, {"topic": CALENDAR, "config": {"durability": rng.choice(CLASSES)}}))
            first += [self._put(name) for name in SCHEDULES]
        steps = [self._step() for _ in range(rng.randrange(3, 4 + int(10 * self.size)))]
        return [Actor("scheduler", [*first, *steps])]

    def _put(self, name: str) -> Step:
        rng = self.random
        times: dict[str, Any] = {"every_ms": rng.choice((700, 2500, 10_000))}
        if rng.random() < 0.15:
            times = {"cron": "* * * * *"}
        catch_up = rng.choice(("none", "one", "all", "all"))
        paused = rng.choice((None, None, None, True, False))
        return Step("put_schedule", 5, {"schedule": name, **times, "catch_up": catch_up, "paused": paused})

    def _step(self) -> Step:
        rng = self.random
        after, name = rng.choice((0, 1, 30, 400, 2500, 2500, 10_000)), rng.choice(SCHEDULES)
        kinds = ("look", "put", "pause", "resume", "run", "delete", "change")
        kind = rng.choices(kinds, (30, 12, 10, 14, 8, 5, 5))[0]
        if kind == "look":
            return Step("look", after, {"topic": CALENDAR})
        if kind == "change":
            return Step("topic", after, {"topic": CALENDAR, "config": {"durability": rng.choice(CLASSES)}})
        if kind == "put":
            return Step("put_schedule", after, self._put(name).what)
        return Step(f"{kind}_schedule", after, {"schedule": name})
