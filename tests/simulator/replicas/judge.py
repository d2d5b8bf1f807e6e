"""What clients of several daemons were told and have seen, and what of it does not hold (`docs/spec/bucket.md` section
7).

A *fact* is something that was acked of a topic of the class `remote`, or that a standby has shown: it is in a written
round, and must be there for ever. Facts have the number of a round that has them, so a standby that shows this round or
a later one must show them, too. Owners must show all facts.

Of each cut the judge knows up to which seq every topic went when its owner took it. A standby must show exactly the
heads of the cut that it says it shows: not half of a cut, and nothing behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from topics.bucket.round_format import decode_round
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.log.span import NotLoaded

Place = tuple[int, int]
"""Topic id and seq."""

CONSUMER: Final = "c"
"""The consumer of the topic of this simulation."""

HALF: Final[Mapping[int, int]] = {}
"""The heads of a round that ends no cut: nobody may show it."""

FASTEST: Final = 1.1
"""No clock of a simulation runs faster than this against the time of the simulation."""


@dataclass(slots=True)
class Told:
    """Something that must be there: a number that only grows, such as a position. `asked` is the highest one that
    anybody has asked for."""

    asked: int = 0
    acked: int = 0
    round: int = 0
    """A round that has `acked`."""

    def ack(self, value: int, number: int) -> None:
        """The answer has come, when `number` was the last round."""
        if value > self.acked:
            self.acked, self.round = value, number


@dataclass(slots=True)
class Claimed:
    """A job that somebody holds, by trio's clock."""

    until: float
    lease_ids: set[int] = field(default_factory=set)


class Judge:
    """`problems` says what does not hold."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.newest_owner = 0
        """The highest epoch of which an owner was ready."""
        self.takeovers = 0
        self.answers = 0
        self.looks = 0
        """How often what a standby shows was compared with a cut."""
        self.facts: dict[Place, int] = {}
        """By place of a record, a round that has it."""
        self.done: dict[Place, int] = {}
        """Jobs that were acked, and rounds that have this."""
        self.asked_done: set[Place] = set()
        self.deleted: dict[int, Told] = {}
        """By topic id: records below were deleted."""
        self.positions: dict[int, Told] = {}
        """By topic id: positions of the consumer."""
        self.ttls: dict[int, Told] = {}
        """By topic id: a field of the config that is only ever raised."""
        self.topics: dict[str, tuple[int, int]] = {}
        """Topics of the class `remote`, by name: the id, and a round that has it."""
        self._contents: dict[Place, Any] = {}
        self._rounds: dict[bytes, Mapping[int, int] | None] = {}
        """By hash of a round: the heads of its cut; None if they are not known."""
        self._claimed: dict[Place, Claimed] = {}

    # -- what was told -----------------------------------------------------------------------------------------------

    def see(self, topic_id: int, seq: int, data: Any) -> None:
        """A client has read a record, or was told its seq."""
        before = self._contents.setdefault((topic_id, seq), data)
        if before != data:
            self.problems.append(f"seq {seq} of {topic_id} has two contents: {before}, {data}")

    def ready(self, epoch: int, others: Iterable[str]) -> None:
        """An owner is ready. `others` are the daemons that would act as owners, too, if they were asked now."""
        for name in others:
            self.problems.append(f"{name} holds a lease, and epoch {epoch} is ready")
        self.takeovers += epoch > self.newest_owner
        self.newest_owner = max(self.newest_owner, epoch)

    def answer(self, epoch: int) -> None:
        """An owner has acked a change."""
        self.answers += 1
        if epoch < self.newest_owner:
            self.problems.append(f"epoch {epoch} has acked a change after epoch {self.newest_owner} was ready")

    def keep(self, places: Iterable[Place], number: int) -> None:
        """Round `number` has these records."""
        for place in places:
            self.facts.setdefault(place, number)

    def claimed(self, place: Place, lease_id: int, asked_at: float, lease_ms: int) -> None:
        """A job was given to somebody who had asked for it at `asked_at`."""
        now = trio.current_time()
        before = self._claimed.setdefault(place, Claimed(0.0))
        if now < before.until:
            self.problems.append(f"job {place} has two holders: the lease of the first one ends at {before.until}")
        if lease_id in before.lease_ids:
            self.problems.append(f"lease id {lease_id} of job {place} was given twice")
        if place in self.done:
            self.problems.append(f"job {place} is given to somebody, and was acked")
        before.lease_ids.add(lease_id)
        before.until = asked_at + lease_ms / 1000 / FASTEST

    def let_go(self, place: Place) -> None:
        """The holder has asked for the end of the lease."""
        if place in self._claimed:
            self._claimed[place].until = 0.0

    def sent(self, blob: bytes, heads: Mapping[int, int] | None) -> None:
        """An owner puts a round. `heads` are those of the last cut that it has taken."""
        found = decode_round(blob)
        if not found.head.ends_cut:
            heads = HALF
        elif not found.head.runs:
            heads = self._rounds.get(found.head.previous)  # the same moment as the round before
        self._rounds[found.hash] = heads

    # -- what daemons show -------------------------------------------------------------------------------------------

    def look_at_owner(self, engine: Engine, who: str) -> None:
        """An owner must show every fact."""
        self._look(engine, None, who)

    def look_at_standby(self, engine: Engine, number: int, hash_: bytes, who: str, *, at_heads: bool) -> None:
        """A standby that has applied round `number` shows this cut, and every fact in it; with `at_heads` only the
        former is looked at."""
        if not at_heads:
            self._look(engine, number, who)
        heads = self._rounds.get(hash_)
        if heads is HALF:
            self.problems.append(f"{who} shows round {number}, which ends no cut")
        elif heads is not None:
            self.looks += 1
            topics = {topic.id: topic.log.head_seq for topic in engine.registry.topics.values() if not topic.ephemeral}
            wrong = {key: (topics.get(key, 0), head) for key, head in heads.items() if topics.get(key, 0) != head}
            wrong |= {key: (head, 0) for key, head in topics.items() if head and key not in heads}
            if wrong:
                self.problems.append(f"{who} shows heads that are not those of round {number} (shown, cut): {wrong}")

    def _look(self, engine: Engine, number: int | None, who: str) -> None:
        by_id = engine.registry.by_id

        def is_due(of: int) -> bool:
            return number is None or of <= number

        for name, (topic_id, of) in self.topics.items():
            topic = engine.registry.topics.get(name)
            if is_due(of) and (topic is None or topic.id != topic_id):
                self.problems.append(f"{who} has no topic {name} with the id {topic_id}, which was acked")
        for (topic_id, seq), of in self.facts.items():
            asked = self.deleted.get(topic_id)
            if not is_due(of) or (asked and seq < asked.asked) or (topic_id, seq) in self.asked_done:
                continue
            if self._is_live(by_id.get(topic_id), seq) is False:
                self.problems.append(f"{who} lacks record {seq} of {topic_id}, which round {of} has")
        for (topic_id, seq), of in self.done.items():
            if is_due(of) and self._is_live(by_id.get(topic_id), seq):
                self.problems.append(f"{who} has job {seq} of {topic_id}, which was acked (round {of})")
        self._look_at_numbers(by_id, is_due, who)

    def _look_at_numbers(self, by_id: Mapping[int, Topic], is_due: Any, who: str) -> None:
        for topic_id, told in self.deleted.items():
            topic = by_id.get(topic_id)
            if topic is not None and is_due(told.round) and topic.log.earliest_seq < told.acked:
                self.problems.append(f"{who} has record {topic.log.earliest_seq}: those below {told.acked} are deleted")
        for topic_id, told in self.positions.items():
            topic = by_id.get(topic_id)
            if topic is None or not told.acked or not is_due(told.round):
                continue
            consumers = topic.consumers
            seq = consumers.get(CONSUMER).seq if consumers is not None and len(consumers) else -1
            if not told.acked <= seq <= told.asked:
                self.problems.append(f"{who} has the consumer at {seq}, and {told.acked} was acked")
        for topic_id, told in self.ttls.items():
            topic = by_id.get(topic_id)
            if topic is not None and is_due(told.round) and not told.acked <= topic.config.ttl_ms <= told.asked:
                self.problems.append(f"{who} has a ttl_ms of {topic.config.ttl_ms}, and {told.acked} was acked")

    @staticmethod
    def _is_live(topic: Topic | None, seq: int) -> bool | None:
        """Return whether a record is there; None if that cannot be said from memory: `end` has read everything."""
        if topic is None:
            return False
        try:
            return topic.log.is_live(seq)
        except NotLoaded:
            return None

    # -- the end -----------------------------------------------------------------------------------------------------

    def end(self, found: Mapping[Place, Any]) -> None:
        """These are all live records that a daemon shows when nothing happens any more."""
        for (topic_id, seq), data in found.items():
            self.see(topic_id, seq, data)
        where: dict[str, list[int]] = {}
        for (topic_id, _), data in found.items():
            if str(data).startswith("pair"):
                where.setdefault(data, []).append(topic_id)
        for data, topics in where.items():
            if len(topics) != 2 and not any(told.asked for told in self.deleted.values()):
                self.problems.append(f"one of the two records of the transaction {data} is missing")
