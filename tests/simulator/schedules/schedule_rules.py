"""What clients know of schedules, what must not be fired, and what a start must show (`docs/spec/consumers.md` section
5).

Each definition has a record of its own, so a record tells which definition has fired. A firing is known by its schedule
and the time that it was due at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from tests.simulation.model import Record, View
from tests.simulation.world import Life
from tests.simulator.known import Batch, Instance, broken
from tests.simulator.schedules.schedule_plans import CALENDAR
from topics.engine.schedules.firings import NAME_KEY, TIME_KEY
from topics.model import RecordIn

if TYPE_CHECKING:
    from tests.simulator.truth import Truth


class ScheduleSeen(NamedTuple):
    """What a start shows of a schedule."""

    number: int
    """That of its record, which tells the definition."""
    every_ms: int | None
    catch_up: str
    paused: bool
    last_ts: int | None


@dataclass(slots=True, eq=False)
class Wanted:
    """A definition that somebody has asked for."""

    number: int
    every_ms: int | None
    catch_up: str


@dataclass(slots=True, eq=False)
class ScheduleFacts:
    """One schedule, from its creation to its deletion."""

    name: str
    since_ms: int
    """The wall clock when it was asked for, or when it was changed or resumed if that is less; 0 if nobody knows."""
    there: Literal["yes", "maybe", "no"] = "maybe"
    options: list[Wanted] = field(default_factory=list)
    """What it may be now."""
    paused: set[bool] = field(default_factory=set)
    changes: int = 0
    """How often it was changed, paused or resumed: what was due before is not fired."""
    fired: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Where the record of each time is: epoch and seq."""
    is_changing: bool = False


class ScheduleRules:
    """The facts of all schedules, and what follows from them."""

    def __init__(self) -> None:
        self.known: dict[str, ScheduleFacts] = {}
        self.owner: dict[int, tuple[ScheduleFacts, Wanted]] = {}
        """By the number of the record."""
        self.closed: dict[int, tuple[int, int]] = {}
        """Definitions that fire nothing behind a seq of a topic (epoch and seq), by their numbers."""
        self.checked: Counter[str] = Counter()

    def clock_was(self, _wall_ms: int) -> None:
        """The wall clock is about to be set."""
        for facts in self.known.values():
            if facts.there != "yes" or facts.is_changing:
                facts.since_ms = 0

    def asked(self, truth: Truth, facts: ScheduleFacts, record: RecordIn, wanted: Wanted) -> None:
        """Somebody defines it so."""
        facts.options.append(wanted)
        instance = truth.current(CALENDAR)
        batch = Batch(instance, (wanted.number,), (record,), truth.tick(), set(instance.classes), again=True)
        truth.batch_of[wanted.number] = batch, 0
        self.owner[wanted.number] = facts, wanted

    def close(self, facts: ScheduleFacts, epoch: int, head: int, *, but: int = 0) -> None:
        """From here on it fires nothing, except what is defined by the record `but`."""
        for number, (other, _) in self.owner.items():
            if other is facts and number != but:
                self.closed.setdefault(number, (epoch, head))

    def reopen(self, facts: ScheduleFacts) -> None:
        """It may be resumed."""
        for wanted in facts.options:
            self.closed.pop(wanted.number, None)

    # -- records -----------------------------------------------------------------------------------------------------

    def check(self, truth: Truth, instance: Instance, record: Record) -> None:
        """A reader got a record that a schedule has made."""
        facts, _wanted = self.owner[record.data]
        row: dict[str, Any] = msgspec.json.decode(record.body)
        meta = row.pop("meta", {})
        ts = meta.pop(TIME_KEY, None)
        if meta != {NAME_KEY: facts.name} or instance.name != CALENDAR:
            broken(f"{instance.name}: seq {record.seq} of the schedule {facts.name} has the meta {meta}")
        if row != {"data": msgspec.json.decode(truth.batch_of[record.data][0].records[0].data)}:
            broken(f"{instance.name}: seq {record.seq} of the schedule {facts.name} is {row}")
        if ts is None:
            return
        due, place = int(ts), (instance.epoch, record.seq)
        if facts.fired.setdefault(due, place) != place:
            broken(f"the schedule {facts.name} has fired twice for {due}: {facts.fired[due]} and {place}")
        if due <= facts.since_ms:
            broken(f"the schedule {facts.name} has fired for {due}, and was made at {facts.since_ms}")
        epoch, head = self.closed.get(record.data, (0, 0))
        if epoch == instance.epoch and record.seq > head:
            broken(f"the schedule {facts.name} has fired at {record.seq}, and was changed or paused at {head}")
        self.checked["firings"] += 1

    # -- restarts ----------------------------------------------------------------------------------------------------

    def judge(self, truth: Truth, shown: Mapping[str, ScheduleSeen], views: Mapping[str, View]) -> None:
        """What a recovery shows, after its topics were judged."""
        view = views.get(CALENDAR)
        instance = truth.latest(CALENDAR)
        if view is not None and instance is not None:
            for record in view.records.values():
                if record.data in self.owner:
                    self.check(truth, instance, record)
        for name, one in shown.items():
            facts = self.known.get(name)
            if facts is None or facts.there == "no":
                broken(f"the schedule {name} is there, and nobody has made it: {one}")
            numbers = [wanted.number for wanted in facts.options]
            if one.number not in numbers or one.paused not in facts.paused:
                broken(f"the schedule {name} is {one}, of {facts.options}, paused {facts.paused}")
            if view is not None and not truth.rot:
                self._judge_times(facts, one, view)
        for name, facts in self.known.items():
            if facts.there == "yes" and name not in shown:
                broken(f"the schedule {name} was made and is not there")

    def _judge_times(self, facts: ScheduleFacts, one: ScheduleSeen, view: View) -> None:
        found: list[int] = []
        for record in view.records.values():
            ts = msgspec.json.decode(record.body).get("meta", {}).get(TIME_KEY)
            if ts is not None and record.data in self.owner and self.owner[record.data][0] is facts:
                found.append(int(ts))
        if found != sorted(set(found)):
            broken(f"the schedule {facts.name} has fired out of order: {found}")
        if one.last_ts != (found[-1] if found else None):
            broken(f"the schedule {facts.name} has fired last at {one.last_ts}, and its records are for {found}")
        step = one.every_ms
        if step is None or facts.changes or one.catch_up != "all":
            return
        if any(after - before != step for before, after in pairwise(found)):
            broken(f"the schedule {facts.name} has left out a time: {found}, every {step}")
        self.checked["schedules"] += 1

    def restarted(self, shown: Mapping[str, ScheduleSeen]) -> None:
        """A new life begins with these."""
        for name in [name for name in self.known if name not in shown]:
            del self.known[name]
        for name, one in shown.items():
            facts = self.known[name]
            facts.there, facts.is_changing = "yes", False
            facts.options = [wanted for wanted in facts.options if wanted.number == one.number]
            facts.paused = {one.paused}


def schedules_shown_by(life: Life) -> dict[str, ScheduleSeen]:
    """The schedules, by name."""
    found: dict[str, ScheduleSeen] = {}
    for schedule in life.engine.registry.schedules:
        one = schedule.definition
        number = msgspec.json.decode(one.record)["data"]["n"]
        found[one.schedule] = ScheduleSeen(number, one.every_ms, one.catch_up, one.paused, schedule.last_ts)
    return found
