"""What a plan does with queues of jobs. It is drawn by itself, so that the rest of a seed's plan is what it was before.

`LINE` gives out its jobs in order for each key, for as long as it is there. The order of `JOBS` may change, so only
the other rules are judged there.
"""

from __future__ import annotations

import random
from typing import Any, Final

from tests.simulator.actors import Actor, Step

JOBS: Final = "j"
LINE: Final = "k"
DEAD_LETTERS: Final = "dead"
KEYS: Final = ("a", "b", "c")
CLASSES: Final = ("ephemeral", "memory", "disk", "fsync")
PAUSES: Final = (0, 0, 0, 0, 1, 5, 30, 400, 2500)
HOUR_MS: Final = 3_600_000


class JobPlanner:
    """Draws what is done with queues of jobs in each life."""

    def __init__(self, seed: int, size: float) -> None:
        self.random = random.Random(f"jobs {seed}")
        self.size = size
        self.queues = self.random.choices(((), (JOBS,), (LINE,), (JOBS, LINE)), (2, 3, 4, 3))[0]
        self.limits = self._limits()
        self.order_by = self.random.choice(("tag", "tag", "node"))

    def actors(self, number: int) -> list[Actor]:
        """Those of a life."""
        rng = self.random
        found: list[Actor] = []
        for queue in self.queues:
            if number == 0 or rng.random() < 0.8:
                found.append(self._producer(queue, number))
            found += [self._worker(f"{queue}-worker{i}", queue) for i in range(rng.choice((1, 1, 2)))]
        return found

    def _limits(self) -> dict[str, Any]:
        rng = self.random
        found: dict[str, Any] = {}
        if rng.random() < 0.3:
            found["max_in_flight"] = rng.choice((1, 2, 3))
        if rng.random() < 0.25:
            found["rate"] = {"jobs": rng.choice((1, 3)), "per_ms": rng.choice((100, 1000))}
        return found

    def _retry(self) -> dict[str, Any]:
        rng = self.random
        delay_ms = rng.choice((1, 50, 1000))
        return {
            "backoff": rng.choice(("fixed", "exponential")),
            "delay_ms": delay_ms,
            "max_delay_ms": delay_ms * rng.choice((1, 4, 16)),
            "jitter": rng.choice((0.0, 0.0, 0.5)),
        }

    def _config(self, queue: str) -> dict[str, Any]:
        rng = self.random
        config: dict[str, Any] = {"type": "queue", "durability": rng.choices(CLASSES, (1, 2, 4, 4))[0]}
        config |= {"lease_ms": rng.choice((1000, 2000, 30_000)), "leases_durable": rng.random() < 0.5, **self.limits}
        config["priority_aging_ms"] = rng.choice((0, 0, 100, 60_000))
        if rng.random() < (0.25 if queue == LINE else 0.5):
            config |= {"max_deliveries": rng.choice((0, 1, 2)), "dead_letter": DEAD_LETTERS}
        if rng.random() < 0.2:
            config["claim_jitter_ms"] = 20
        if rng.random() < 0.5:
            config["retry"] = self._retry()
        if queue == LINE:
            config["order_by"] = self.order_by
        if rng.random() < 0.08:
            config |= {"cap_records": rng.choice((5, 10))}
        return config

    def _change(self, queue: str) -> dict[str, Any]:
        rng = self.random
        changes: list[dict[str, Any]] = [
            {"durability": rng.choice(CLASSES[1:])},
            {"leases_durable": rng.random() < 0.5},
            {"retry": rng.choice((None, self._retry()))},
            {"max_deliveries": rng.choice((0, 2))},
            {"dead_letter": rng.choice((None, DEAD_LETTERS))},
        ]
        if queue == JOBS:
            changes.append({"order_by": rng.choice((None, "tag", "node"))})
        return rng.choice(changes)

    def _step(self, do: str, **what: Any) -> Step:
        return Step(do, self.random.choice(PAUSES), what)

    def _fields(self) -> dict[str, Any]:
        """The job fields of a record; times are from now on."""
        rng = self.random
        fields: dict[str, Any] = {}
        if rng.random() < 0.35:
            fields["delay_ms"] = rng.choice((1, 40, 400, 5000))
        elif rng.random() < 0.15:
            fields["not_before"] = rng.choice((-1000, 30, 1000, 20_000, HOUR_MS))
        if rng.random() < 0.35:
            fields["priority"] = rng.choice((0, 4, 6, 9))
        if rng.random() < 0.5:
            scope = rng.choice(("unfinished", "unfinished", "queued", "window"))
            window = {"window_ms": rng.choice((50, 3000, 60_000))} if scope == "window" else {}
            fields["unique"] = {"key": rng.choice(KEYS), "scope": scope, **window}
        return fields

    def _append(self, queue: str) -> Step:
        rng = self.random
        records = []
        for _ in range(rng.choice((1, 1, 2, 4))):
            key = {"tag": rng.choice((None, *KEYS)), "node": rng.choice((None, *KEYS))}
            records.append({**key, **(self._fields() if rng.random() < 0.7 else {})})
        return self._step("jobs", topic=queue, records=records, size=rng.choice((1, 30, 300)), key=rng.random() < 0.3)

    def _producer(self, queue: str, number: int) -> Actor:
        rng = self.random

        def step() -> Step:
            kinds = ("jobs", "repeat_jobs", "delete", "change", "again", "pause", "resume", "look")
            kind = rng.choices(kinds, (60, 8, 4, 6, 2, 4, 6, 3))[0]
            if kind == "jobs":
                return self._append(queue)
            if kind == "delete":
                return self._step("delete", topic=queue, tag=rng.choice(KEYS), prefix=False)
            if kind == "change":
                return self._step("topic", topic=queue, config=self._change(queue))
            if kind == "again":
                return self._step("again", topic=queue, config=self._config(queue))
            if kind == "pause":
                return self._step("pause", topic=queue, ms=rng.choice((None, 20, 1000, 5000)))
            return self._step(kind, topic=queue)

        first = [Step("topic", 0, {"topic": queue, "config": self._config(queue)})] if number == 0 else []
        steps = [step() for _ in range(rng.randrange(4, 5 + int(14 * self.size)))]
        return Actor(f"{queue}-jobs", [*first, *steps])

    def _worker(self, name: str, queue: str) -> Actor:
        rng = self.random

        def step() -> Step:
            kinds = ("claim", "work", "ack", "nack", "extend", "stale")
            kind = rng.choices(kinds, (45, 8, 26, 14, 4, 3))[0]
            if kind in ("claim", "work"):
                lease_ms = rng.choice((None, 20, 3000, 60_000))
                claim = self._step(kind, topic=queue, most=rng.choice((1, 1, 2, 5)), lease_ms=lease_ms)
                if kind == "work":
                    claim.what["ms"] = rng.choice((1, 50, 3000))
                else:
                    claim.what["wait_ms"] = rng.choice((0, 0, 40, 2000))
                return claim
            what: dict[str, Any] = {"topic": queue, "which": rng.random(), "count": rng.choice((1, 1, 3))}
            if kind == "nack":
                what["terms"] = self.nack_terms(rng)
            if kind == "extend":
                what["ms"] = rng.choice((10, 5000, 60_000))
            return self._step(kind, **what)

        return Actor(name, [step() for _ in range(rng.randrange(4, 5 + int(16 * self.size)))])

    @staticmethod
    def nack_terms(rng: random.Random) -> dict[str, Any]:
        """How jobs are given back: the fields of `NackTerms`."""
        found: dict[str, Any] = {}
        if rng.random() < 0.4:
            found["delay_ms"] = rng.choice((0, 40, 5000))
        if rng.random() < 0.4:
            found["error"] = f"error {rng.randrange(100)}"
        if rng.random() < 0.25:
            found["counts"] = False
        elif rng.random() < 0.2:
            found["dead"] = True
        return found
