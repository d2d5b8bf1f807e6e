"""What clients know of a group, and what a start shows of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from tests.simulation.world import Life
from tests.simulator.jobs.job_facts import QueueFacts
from tests.simulator.known import Lease, Promise
from tests.simulator.outcomes.outcome_plans import PLACES
from topics.groups.group_events import TERMS
from topics.model import TopicConfig

ANY: Final = 1 << 62


class GroupSeen(NamedTuple):
    """What a start shows of a group."""

    floor: int
    finished: frozenset[int]
    """The live records that it has finished."""
    missed: int
    filter: str | None
    terms: tuple[object, ...]
    paused: bool


def terms_of(config: TopicConfig) -> tuple[object, ...]:
    """The settings of a group."""
    return tuple(getattr(config, name) for name in TERMS)


@dataclass(slots=True, eq=False)
class GroupFacts(QueueFacts):
    """One group, from its creation to its deletion. Its leases are known apart from those of others."""

    name: str = ""
    there: Literal["yes", "maybe", "no"] = "maybe"
    start: tuple[int, int] = (0, ANY)
    """Behind which seq it begins, at the least and at the most."""
    terms: list[TopicConfig] = field(default_factory=list)
    """All that it may ever have had."""
    options: list[TopicConfig] = field(default_factory=list)
    """What it may have now."""
    filters: list[str | None] = field(default_factory=list)
    wishes: list[str | None] = field(default_factory=list)
    """The filters that it may have now."""
    finished: dict[int, Promise] = field(default_factory=dict)
    """Seqs that it has finished for certain, and what that survives."""
    finished_since: dict[int, int] = field(default_factory=dict)
    maybe_finished: set[int] = field(default_factory=set)
    leases: dict[tuple[int, int], Lease] = field(default_factory=dict)
    is_changing: bool = False

    @property
    def configs(self) -> list[TopicConfig]:
        """All that its settings may ever have been."""
        return self.terms

    @property
    def buries(self) -> bool:
        """Whether it may ever have sent something to the dead letters."""
        return any((one.max_deliveries or self.condemned) and one.dead_letter for one in self.terms)

    @property
    def filter(self) -> str | None:
        """Its filter, if that has always been the same. Else nothing is judged by it: see `is_steady`."""
        return self.filters[0]

    @property
    def is_steady(self) -> bool:
        """Whether its filter has always been the same."""
        return len(set(self.filters)) == 1

    def is_there(self, seq: int) -> bool:
        """Whether a record is live, and unfinished, for certain."""
        instance = self.instance
        if seq not in instance.promised or instance.retained or instance.deletion != "no":
            return False
        if seq in self.maybe_finished or seq <= self.start[1] or self.may_be_buried(seq):
            return False
        return not instance.may_be_deleted(seq)


async def groups_shown_by(life: Life) -> dict[str, dict[str, GroupSeen]]:
    """The groups of every topic, by name, brought up to date."""
    found: dict[str, dict[str, GroupSeen]] = {}
    for name, topic in life.engine.registry.topics.items():
        if topic.groups is None or name in PLACES:
            continue
        states, more = await life.engine.groups.page(name, "", None, 1000)
        assert not more
        found[name] = {}
        live = [seq for seq in range(1, topic.log.head_seq + 1) if topic.log.is_live(seq)]
        for state in states:
            queue = topic.groups.by_name[state.group]
            queue.state.check()
            finished = frozenset(seq for seq in live if seq in queue.state.finished)
            terms, paused = terms_of(queue.state.terms), state.queue.paused
            found[name][state.group] = GroupSeen(state.floor, finished, state.missed, queue.state.filter, terms, paused)
    return found
