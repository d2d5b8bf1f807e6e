"""What all clients of one life share: the daemon, what is known, and what they remember."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from tests.engine.delivery.client import LineFormat
from tests.simulation.disk import SimCrash
from tests.simulation.model import Record, canonical
from tests.simulation.world import Life
from tests.simulator.followers import Follower
from tests.simulator.known import Batch, Commit, Instance, Lease, Stage
from tests.simulator.passages import Silence
from tests.simulator.transactions import Transaction
from tests.simulator.truth import Truth
from topics.engine.operations.export import ExportEnd, ExportRequest
from topics.errors import ApiError
from topics.evidence.checkpoint_note import TreeHead
from topics.filters.record_filter import Filter

if TYPE_CHECKING:
    from tests.simulator.groups.group_facts import GroupFacts
    from tests.simulator.jobs.job_steps import SentJobs
    from tests.simulator.outcomes.outcome_facts import JobSource, OutcomeLease


class Memory:
    """What actors remember from one life to the next."""

    def __init__(self) -> None:
        self.keyed: dict[str, list[tuple[Batch, str]]] = {}
        self.leases: dict[str, list[Lease]] = {}
        self.filling: dict[str, dict[str, Stage]] = {}
        self.commits: dict[str, list[Commit]] = {}
        self.transactions: list[Transaction] = []
        self.jobs: dict[str, list[SentJobs]] = {}
        self.members: dict[str, list[tuple[GroupFacts, Lease]]] = {}
        """What a member of groups has claimed last."""
        self.outcomes: dict[str, list[tuple[JobSource, OutcomeLease]]] = {}
        """What a worker of jobs whose outcomes are judged has claimed last."""
        self.names: int = 0
        self.positions: dict[str, dict[str, tuple[Instance, int]]] = {}
        """How far watchers have got, and readers with a filter."""
        self.generations: dict[tuple[str, int, str], int] = {}
        """Of a consumer's owner, by actor, epoch and name."""
        self.finished: dict[tuple[str, int, str], int] = {}
        """How far an actor has read at a consumer's position, likewise."""
        self.checkpoints: list[TreeHead] = []
        """Of topics with evidence, in the order in which they came."""


class Caller:
    """Talks to the daemon of one life."""

    def __init__(self, life: Life, truth: Truth, memory: Memory, offset_ms: int) -> None:
        self.life = life
        self.engine = life.engine
        self.truth = truth
        self.memory = memory
        self._offset_ms = offset_ms
        self.form = LineFormat()
        """Watchers with equal wishes share the frames that are made in one form."""
        self.followers: list[Follower | Silence] = []
        """What is judged when the life is over."""

    def now(self) -> int:
        """Time that no step moves, over all lives, ms."""
        return self._offset_ms + self.life.clock.monotonic_ms()

    def _alive(self) -> None:
        """Nobody is told anything by a dead machine."""
        if self.life.fs.dead:
            raise SimCrash("the machine is dead")

    @contextmanager
    def _refusable(self) -> Iterator[None]:
        """The body asks for something, and may be refused."""
        with suppress(ApiError):
            yield
        self._alive()

    def _is(self, instance: Instance) -> bool:
        """Whether a topic is still this instance of it."""
        return instance.deletion == "no" and self.truth.latest(instance.name) is instance

    def _head(self, instance: Instance) -> int:
        """The head of a topic, 0 if it is not there."""
        topic = self.engine.registry.topics.get(instance.name)
        return topic.log.head_seq if topic is not None and topic.id == instance.epoch else 0


async def exported(
    life: Life, name: str, wanted: Filter | None = None
) -> tuple[dict[int, Record], list[tuple[int, int, str]], ExportEnd]:
    """A topic by way of an export: its records that match, its gaps, and the end. Raises ApiError."""
    export = await life.engine.exports.open(name, ExportRequest(filter=wanted))
    records: dict[int, Record] = {}
    gaps: list[tuple[int, int, str]] = []
    while (piece := await export.next_slice()) is not None:
        if piece.tombstone is not None:
            gaps.append((piece.tombstone.gap_from, piece.tombstone.gap_to, piece.tombstone.reason))
        for line in piece.lines.split(b"\n") if piece.lines else ():
            row = msgspec.json.decode(line)
            seq, ts = row.pop("$seq"), row.pop("$ts")
            records[seq] = Record(seq, ts, row["data"]["n"], canonical(row))
    return records, gaps, export.end
