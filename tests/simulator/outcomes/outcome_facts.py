"""What clients know of the jobs of a source, which is a queue or a group. Times are those of a clock that no step moves
(ms), over all lives; moments are as the truth counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.simulator.known import PROMISES, Promise


@dataclass(slots=True, eq=False)
class OutcomeJob:
    """A record that somebody has appended to a source. Its number says which it is, wherever it goes."""

    number: int
    tag: str | None
    data: bytes
    promise: Promise = Promise.NONE
    must_be: bool = False
    """Somebody was told that it is there, and nothing that may have ended it was asked for since."""
    most: int = 1
    """In how many places it may be: a crash in the middle of a move to the dead letters leaves it in two."""


@dataclass(slots=True, eq=False)
class OutcomeLease:
    """A job that somebody was given."""

    seq: int
    number: int
    node: str
    lease_id: int
    deliveries: int
    asked: int
    earliest_end: int
    latest_end: int
    durable: bool
    life: int
    over: bool = False
    """Somebody has said something that may have ended it, or it may be forgotten."""
    again_ms: int = 0


@dataclass(slots=True, eq=False)
class AckedResult:
    """A result that was sent with an ack."""

    asks: int = 0
    starts: int = 0
    """How many starts there had been when it was asked first."""
    promise: Promise | None = None
    """What the answer of the ack promises; None if there was none, or nobody may have wanted results then."""
    is_loose: bool = False
    """It may have been dropped, as `completed` was null, or be there more often, as the disk has failed."""
    shown: int = 0
    """How often it was there at the last start."""


@dataclass(slots=True, eq=False)
class JobSource:
    """A queue or a group of this plan, from its creation on."""

    name: str
    group: str | None
    terms: dict[str, Any]
    durability: str
    created: bool = False
    at: dict[int, int] = field(default_factory=dict)
    """The number at each seq that anybody was told of."""
    ended: dict[int, Promise] = field(default_factory=dict)
    """Seqs of jobs that were acked or cancelled for certain, and what that survives."""
    ended_since: dict[int, int] = field(default_factory=dict)
    cancelled: set[int] = field(default_factory=set)
    maybe_ended: set[int] = field(default_factory=set)
    """Seqs of which somebody has asked for the end in this life."""
    leases: dict[int, OutcomeLease] = field(default_factory=dict)
    """The newest of each seq."""
    claimed: set[int] = field(default_factory=set)
    """Seqs that somebody was given, or may have been."""
    reopened: set[int] = field(default_factory=set)
    """Seqs that a redrive may have given back to a group."""
    results: dict[tuple[int, bytes, str], AckedResult] = field(default_factory=dict)
    """By seq, value and node."""
    wants: set[bool] = field(default_factory=set)
    """Whether results may be wanted now, and may not."""
    begun: int = 0
    """Claims that were asked for."""
    unanswered: int = 0
    """Claims of this life that were asked for and not answered."""

    @property
    def where(self) -> str:
        """Its name in messages."""
        return self.name if self.group is None else f"{self.name}/{self.group}"

    @property
    def promise(self) -> Promise:
        """What its answers promise."""
        return PROMISES[self.durability]

    @property
    def buries(self) -> bool:
        """Whether its jobs may go to the dead letters."""
        return "dead_letter" in self.terms

    def held(self, now: int, life: int) -> Iterator[OutcomeLease]:
        """The leases that hold for certain."""
        for lease in self.leases.values():
            if not lease.over and now < lease.earliest_end and (lease.life == life or lease.durable):
                yield lease
