"""What a plan does with groups of a log. It is drawn by itself, so that the rest of a seed's plan is what it was."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.simulator.actors import Actor, Step
from tests.simulator.jobs.job_plans import CLASSES, DEAD_LETTERS, PAUSES, JobPlanner

LOG: Final = "g"
GROUPS: Final = ("one", "two")
TAGS: Final = (None, "x", "y", "xy")
WISHES: Final = (
    '["tag","Eq","x"]',
    '["tag","Glob","x*"]',
    '["Not",["tag","Glob","*"]]',
    '["And",["data","/n","Ge",0],["tag","Glob","*"]]',
)


class GroupPlanner:
    """Draws what is done with a log that has groups in each life."""

    def __init__(self, seed: int, size: float) -> None:
        self.random = random.Random(f"groups {seed}")
        self.size = size
        self.is_used = self.random.random() < 0.6
        self.is_consumed = self.random.random() < 0.25

    def actors(self, number: int) -> list[Actor]:
        """Those of a life."""
        if not self.is_used:
            return []
        rng = self.random
        found = [self._owner(number), self._keeper(number)]
        return found + [self._member(f"member{i}") for i in range(rng.choice((1, 2, 2, 3)))]

    def _step(self, do: str, **what: Any) -> Step:
        return Step(do, self.random.choice(PAUSES), {"topic": LOG, **what})

    def _config(self) -> dict[str, Any]:
        rng = self.random
        config: dict[str, Any] = {"durability": rng.choices(CLASSES, (1, 3, 4, 4))[0]}
        if rng.random() < 0.2:
            config["cap_records"] = rng.choice((3, 10))
        if rng.random() < 0.07:
            config["ttl_ms"] = rng.choice((50, 3000))
        if self.is_consumed:
            config["retention"] = "consumed"
        return config

    def _owner(self, number: int) -> Actor:
        """Writes to the log, and deletes from it."""
        rng = self.random

        def step() -> Step:
            kind = rng.choices(("append", "delete", "match", "change", "again", "look"), (60, 5, 5, 5, 2, 3))[0]
            if kind == "append":
                count, size = rng.choice((1, 1, 2, 5, 12)), rng.choice((1, 30, 300))
                return self._step("append", count=count, size=size, tag=rng.choice(TAGS), key=rng.random() < 0.2)
            if kind == "delete":
                return self._step("delete", share=rng.random())
            if kind == "match":
                return self._step("delete", tag=rng.choice(("x", "y")), prefix=rng.random() < 0.5)
            if kind == "change":
                return self._step("topic", config={"durability": rng.choice(CLASSES)})
            if kind == "again":
                return self._step("again", config=self._config())
            return self._step("look")

        first = [Step("topic", 0, {"topic": LOG, "config": self._config()})] if number == 0 else []
        return Actor("g-owner", [*first, *(step() for _ in range(rng.randrange(4, 5 + int(14 * self.size))))])

    def _put(self, group: str) -> Step:
        rng = self.random
        terms: dict[str, Any] = {}
        if rng.random() < 0.7:
            terms |= {"lease_ms": rng.choice((1000, 2000, 30_000)), "leases_durable": rng.random() < 0.5}
        if rng.random() < 0.15:
            terms |= {"max_deliveries": rng.choice((1, 2)), "dead_letter": DEAD_LETTERS}
        if rng.random() < 0.15:
            terms["max_in_flight"] = rng.choice((1, 3))
        if rng.random() < 0.2:
            terms["claim_jitter_ms"] = 20
        if rng.random() < 0.2:
            terms["retry"] = {"backoff": "fixed", "delay_ms": rng.choice((50, 1000)), "max_delay_ms": 1000}
        what: dict[str, Any] = {"group": group, "terms": terms, "share": rng.random()}
        what["from"] = rng.choice(("earliest", "earliest", "earliest", "seq", "tail"))
        if rng.random() < 0.35:
            what["filter"] = rng.choice((None, *WISHES))
        if rng.random() < 0.15:
            what["max_unfinished"] = rng.choice((1, 3, 1000))
        return self._step("put_group", **what)

    def _keeper(self, number: int) -> Actor:
        """Makes groups, changes them, takes them away."""
        rng = self.random

        def step() -> Step:
            group = rng.choice(GROUPS)
            kind = rng.choices(("put", "delete", "pause", "resume"), (50, 12, 10, 14))[0]
            if kind == "put":
                return self._put(group)
            if kind == "pause":
                return self._step("pause_group", group=group, ms=rng.choice((None, 20, 1000)))
            return self._step(f"{kind}_group", group=group)

        first = [self._put(group) for group in GROUPS] if number == 0 else []
        return Actor("g-keeper", [*first, *(step() for _ in range(rng.randrange(1, 2 + int(8 * self.size))))])

    def _member(self, name: str) -> Actor:
        rng = self.random
        mine = rng.choice(GROUPS)

        def step() -> Step:
            group = mine if rng.random() < 0.8 else rng.choice(GROUPS)
            kind = rng.choices(("claim", "ack", "nack", "extend"), (44, 34, 10, 4))[0]
            if kind == "claim":
                what = {"most": rng.choice((1, 2, 5)), "lease_ms": rng.choice((None, 20, 3000, 60_000))}
                return self._step("claim_of_group", group=group, wait_ms=rng.choice((0, 0, 40, 2000)), **what)
            said: dict[str, Any] = {"say": kind, "which": rng.random(), "count": rng.choice((1, 1, 3))}
            if kind == "nack":
                said["terms"] = JobPlanner.nack_terms(rng)
            if kind == "extend":
                said["ms"] = rng.choice((10, 5000, 60_000))
            return self._step("say_to_group", **said)

        return Actor(name, [step() for _ in range(rng.randrange(4, 5 + int(18 * self.size)))])
