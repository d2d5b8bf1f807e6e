"""What a plan does with jobs whose outcomes are judged. It is drawn by itself, so that the rest of a seed's plan is
what it was before."""

from __future__ import annotations

import random
from typing import Any, Final

from tests.simulator.actors import Actor, Step

QUEUE: Final = "w"
LOG: Final = "v"
GROUP: Final = "team"
LETTERS: Final = "graves"
RESULTS: Final = "results"
PLACES: Final = (QUEUE, LOG, LETTERS, RESULTS)
"""All topics that nothing else touches."""
KEYS: Final = (None, "a", "a", "b")
TOLD: Final = ("outcome_say", "cancel_jobs", "retry_dead", "redrive")
DOERS: Final = ("-hand0", "-hand1", "-manager")
PAUSES: Final = (0, 0, 0, 0, 1, 5, 30, 400, 2500)


class OutcomePlanner:
    """Draws what is done with these topics in each life."""

    def __init__(self, seed: int, size: float) -> None:
        self.random = random.Random(f"outcomes {seed}")
        self.size = size
        self.sources = self.random.choices(((), (QUEUE,), (LOG,), (QUEUE, LOG)), (3, 3, 3, 2))[0]
        self.setup = self._setup()

    def actors(self, number: int) -> list[Actor]:
        """Those of a life."""
        if not self.sources:
            return []
        rng = self.random
        found = [Actor("w-setup", [Step("set_up_outcomes", 0, self.setup)])]
        for source in self.sources:
            if number == 0 or rng.random() < 0.8:
                found.append(self._actor(f"{source}-jobs", 8, lambda source=source: self._append(source)))
            workers = rng.choice((1, 1, 2))
            found += [
                self._actor(f"{source}-hand{i}", 18, lambda source=source: self._work(source)) for i in range(workers)
            ]
            found += [
                self._actor(f"{source}-manager", 10, lambda source=source: self._manage(source))
                for _ in range(rng.choice((0, 1)))
            ]
        if any("dead_letter" in one["terms"] for one in self.setup["sources"].values()):
            found += [self._actor(f"redriver{i}", 8, self._redrive) for i in range(rng.choice((0, 1, 1, 2)))]
        return found

    def die(self, actors: list[Actor]) -> None:
        """In some lives the machine dies soon after something was told of these jobs."""
        rng = self.random
        mine = [actor for actor in actors if actor.name.endswith(DOERS) or actor.name.startswith("redriver")]
        if mine and rng.random() < 0.4:
            actor = rng.choice(mine)
            places = [i + 1 for i, step in enumerate(actor.steps) if step.do in TOLD]
            if places:
                actor.steps.insert(rng.choice(places), Step("die", rng.choice((0, 0, 1, 5, 30))))

    def _actor(self, name: str, most: int, step: Any) -> Actor:
        return Actor(name, [step() for _ in range(self.random.randrange(3, 4 + int(most * self.size)))])

    def _setup(self) -> dict[str, Any]:
        rng = self.random
        sources = {source: self._source() for source in self.sources}
        made = rng.choice((None, "disk", "fsync", "memory"))
        return {"sources": sources, "letters": rng.choice(("disk", "fsync")), "results": made}

    def _source(self) -> dict[str, Any]:
        rng = self.random
        terms: dict[str, Any] = {"lease_ms": rng.choice((1000, 2000, 30_000)), "leases_durable": rng.random() < 0.5}
        if rng.random() < 0.75:
            terms["completed"] = RESULTS
        if rng.random() < 0.7:
            terms |= {"max_deliveries": rng.choice((0, 1, 2)), "dead_letter": LETTERS}
        if rng.random() < 0.4:
            terms["max_in_flight_per_key"] = {"by": "tag", "max": rng.choice((1, 1, 2))}
        elif rng.random() < 0.2:
            terms["order_by"] = "tag"
        if rng.random() < 0.3:
            terms["retry"] = {"backoff": "fixed", "delay_ms": rng.choice((50, 1000)), "max_delay_ms": 1000}
        return {"durability": rng.choices(("memory", "disk", "fsync"), (1, 4, 4))[0], "terms": terms}

    def _step(self, do: str, **what: Any) -> Step:
        return Step(do, self.random.choice(PAUSES), what)

    def _append(self, source: str) -> Step:
        rng = self.random
        if rng.random() < 0.12:
            return self._step("want_results", source=source, wants=rng.random() < 0.6)
        tags = [rng.choice(KEYS) for _ in range(rng.choice((1, 1, 2, 4)))]
        return self._step("outcome_jobs", source=source, tags=tags, size=rng.choice((1, 30, 300)))

    def _work(self, source: str) -> Step:
        rng = self.random
        kind = rng.choices(("claim", "ack", "nack", "extend"), (42, 34, 18, 4))[0]
        if kind == "claim":
            what = {"most": rng.choice((1, 2, 5)), "lease_ms": rng.choice((None, 20, 3000, 60_000))}
            return self._step("outcome_claim", source=source, wait_ms=rng.choice((0, 0, 40, 2000)), **what)
        said: dict[str, Any] = {"say": kind, "which": rng.random(), "count": rng.choice((1, 1, 3))}
        if kind == "ack":
            said["results"] = rng.random() < 0.8
        if kind == "nack":
            said["terms"] = self._terms()
        if kind == "extend":
            said["ms"] = rng.choice((10, 5000, 60_000))
        return self._step("outcome_say", source=source, **said)

    def _manage(self, source: str) -> Step:
        """Jobs are listed, retried and cancelled."""
        rng = self.random
        kind = rng.choices(("list", "cancel", "retry"), (50, 25, 25))[0]
        if kind == "list":
            state = rng.choice((None, None, "ready", "in_flight", "in_flight", "delayed", "dead"))
            return self._step("list_jobs", source=source, state=state)
        what: dict[str, Any] = {"share": rng.random(), "count": rng.choice((1, 1, 2, 5))}
        if kind == "cancel":
            what["tag"] = rng.choice((None, None, None, "a", "b"))
        return self._step(f"{kind}_jobs", source=source, **what)

    def _redrive(self) -> Step:
        """Dead letters go back, all of them or those of one source."""
        rng = self.random
        kind = rng.choices(("redrive", "stop", "retry"), (60, 8, 32))[0]
        if kind == "stop":
            return self._step("stop_redrive")
        if kind == "retry":
            what = {"by": rng.choice(("all", "seqs")), "share": rng.random()}
            return self._step("retry_dead", source=rng.choice(self.sources), **what)
        most = rng.choice((None, None, 1, 3))
        rate = rng.choice((None, None, None, [1, 100]))
        to = rng.choice((None, None, None, None, None, None, *self.sources))
        return self._step("redrive", to=to, most=most, rate=rate)

    def _terms(self) -> dict[str, Any]:
        rng = self.random
        found: dict[str, Any] = {}
        if rng.random() < 0.4:
            found["delay_ms"] = rng.choice((0, 40, 5000))
        if rng.random() < 0.5:
            found["dead"] = True
        return found
