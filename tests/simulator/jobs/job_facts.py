"""What clients know of the jobs of a queue. Times are those of a clock that no step moves (ms), over all lives, but for
those that say that they are of the wall clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from tests.simulator.known import Batch, Instance
from topics.model import TopicConfig, TopicConfigPatch, UniqueIn
from topics.queue.job_pages import DEFAULT_PRIORITY

NEVER: Final = 1 << 62


def typed(patch: dict[str, Any]) -> dict[str, Any]:
    """The change of a config as a plan has it, with values of the types that a config has."""
    converted = msgspec.convert(patch, TopicConfigPatch)
    return {name: getattr(converted, name) for name in patch}


@dataclass(slots=True, eq=False)
class JobFact:
    """One record of a queue, which somebody has appended with or without job fields."""

    batch: Batch
    number: int
    asked_ms: int
    life: int
    key: str | None
    """What it is ordered by."""
    priority: int = DEFAULT_PRIORITY
    unique: UniqueIn | None = None
    not_before: int = 0
    """Its time by the wall clock, or an earlier one; 0 for none."""
    latest: int = 0
    """The same, or a later one; `NEVER` if nobody knows."""
    is_due: bool = False
    """The wall clock has passed its time."""
    is_open: bool = True
    """Nobody was told yet that it is there: what the clock does may still change its time."""
    answered_ms: int | None = None

    @property
    def window_ms(self) -> int:
        """Its own window, 0 for none."""
        return (self.unique.window_ms or 0) if self.unique is not None else 0


@dataclass(slots=True, eq=False)
class Grant:
    """A claim: when it was asked for and answered, and for how many jobs."""

    since: int
    """When it was asked for, as the truth counts."""
    asked_ms: int
    began: int
    """How many claims had begun before."""
    alone: bool
    """No other claim was on its way when it began."""
    wall_ms: int
    answered_ms: int = 0
    count: int = 0


class Pause(NamedTuple):
    """What is known of a pause: since when (as the truth counts), and until when (wall clock; None: until resumed)."""

    since: int
    until: int | None


@dataclass(slots=True, eq=False)
class QueueFacts:
    """One queue, from its creation to its deletion."""

    instance: Instance
    jobs: dict[int, JobFact] = field(default_factory=dict)
    """By the number of the record."""
    grants: list[Grant] = field(default_factory=list)
    begun: int = 0
    on_the_way: int = 0
    unanswered: int = 0
    """Claims that were asked for and not answered: they may have given out anything."""
    claimed: set[int] = field(default_factory=set)
    """Seqs that somebody was given."""
    condemned: set[int] = field(default_factory=set)
    """Seqs of which somebody has said that they go to the dead letters."""
    pause: Pause | None = None
    pause_known: bool = True
    """False if nobody knows whether it is paused."""
    is_timed: bool = False
    """Somebody has asked for a pause that ends by itself."""
    pausing: int = 0
    """Pauses and ends of pauses on their way."""

    @property
    def configs(self) -> list[TopicConfig]:
        """All that its settings may ever have been."""
        return self.instance.configs

    def fact_at(self, seq: int) -> JobFact | None:
        """What is known of the job at a seq."""
        return self.jobs.get(self.instance.at.get(seq, 0))

    def may_be_buried(self, seq: int) -> bool:
        """Whether a job may have gone to the dead letters."""
        if seq in self.condemned:
            return True
        if not any(config.max_deliveries and config.dead_letter for config in self.configs):
            return False
        return seq in self.claimed or self.unanswered > 0

    def is_there(self, seq: int) -> bool:
        """Whether a job is unfinished for certain: somebody was told of it in this life, and nothing that may have
        ended it has been asked for."""
        instance = self.instance
        if seq not in instance.promised or instance.retained or instance.deletion != "no":
            return False
        return not instance.may_be_deleted(seq) and not self.may_be_buried(seq)

    def clock_was(self, wall_ms: int) -> None:
        """The wall clock is about to be set, or may stand still; it was so far."""
        if self.pause is not None and self.pause.until is not None:
            self.pause_known = False
        for fact in self.jobs.values():
            fact.is_due |= fact.not_before <= wall_ms
            if fact.is_open:
                fact.is_due, fact.latest = True, NEVER if fact.latest else 0
