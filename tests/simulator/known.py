"""What is known of one topic, batch, deletion, stage, lease or router, and how much of it was promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, Literal, NoReturn

from topics.log.tag_match import TagMatch
from topics.model import RecordIn, TopicConfig

Fate = Literal["stop", "kill", "machine"]


class Promise(IntEnum):
    """How much of an end a record, or its being gone, survives for certain."""

    NONE = 0
    KILL = 1
    """The death of the process, if the disk did not fail it."""
    ALL = 2


PROMISES: Final = {"ephemeral": Promise.NONE, "memory": Promise.NONE, "disk": Promise.KILL, "fsync": Promise.ALL}
RETENTION: Final = frozenset({"cap", "ttl", "mixed"})
DEAD_LETTER_META: Final = "$dead_letter_"
STAMP: Final = "_topics_router"


class Broken(AssertionError):
    """A promise is broken."""


@dataclass(slots=True, eq=False)
class Batch:
    """Records that somebody has asked to have appended, or committed, together."""

    instance: Instance
    numbers: tuple[int, ...]
    records: tuple[RecordIn, ...]
    asked: int
    classes: set[str]
    first: int = 0
    """The seq of the first one; 0 if nobody was told."""
    key: str | None = None
    sent_ms: int = 0
    unsure: bool = False
    """A restart may have taken it, and its key."""
    repeated: bool = False
    """Somebody has sent it again: if it was lost, it may be elsewhere before the answer."""
    again: bool = False
    """It was appended once more, after it had been lost."""
    dead: bool = False
    """A restart has shown that it is not there: it never will be."""
    staged: bool = False
    """It went to a stage: it is in the topic once that was committed, and where is known of the commit."""
    committing: bool = False
    """Somebody has asked to commit that stage."""
    is_part: bool = False
    """It is of a transaction: acked, it survives everything; where that is undone, its seqs stay empty."""

    def seqs(self) -> range:
        """Where it is, once that is known."""
        return range(self.first, self.first + len(self.numbers)) if self.first else range(0)


@dataclass(slots=True, eq=False)
class Deletion:
    """A deletion that was asked for."""

    before: int | None
    match: TagMatch | None
    asked: int
    classes: set[str]
    after: int = 0
    answered: int | None = None
    head: int | None = None
    """The head when it was answered: it is about nothing behind that."""

    def selects(self, seq: int, tag: str | None, *, sure_of_tag: bool) -> bool:
        """Whether it is about this record; about one whose tag nobody knows if it may be."""
        if seq <= self.after or (self.before is not None and seq >= self.before):
            return False
        if self.head is not None and seq > self.head:
            return False
        return self.match is None or not sure_of_tag or self.match.matches(tag)


class Instance:
    """One topic from its creation to its deletion."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.created = False
        self.deletion: Literal["no", "asked", "done"] = "no"
        self.configs: list[TopicConfig] = []
        """All that it may ever have had."""
        self.options: list[TopicConfig] = []
        """What it may have now."""
        self.current: TopicConfig | None = None
        """What it was said to have."""
        self.at: dict[int, int] = {}
        """The number at each seq that anybody was told of."""
        self.times: dict[int, int] = {}
        self.tags: dict[int, str | None] = {}
        self.promised: dict[int, Promise] = {}
        self.told: dict[int, int] = {}
        """When somebody was first told of a seq."""
        self.gone: dict[int, Promise] = {}
        """Seqs that are away for certain, and what that survives."""
        self.gone_since: dict[int, int] = {}
        self.lost: set[int] = set()
        """Seqs that a tombstone has been about, other than for retention."""
        self.deletions: list[Deletion] = []
        self.ended: Counter[int] = Counter()
        """Seqs of jobs that somebody may have acked."""
        self.batches: list[Batch] = []
        self.undone: set[int] = set()
        """Seqs of transactions that were not there after a restart."""
        self.deleted_more = False
        """A deletion may have taken what nobody was told of."""
        self.head = 0
        self.condemns = False
        """Somebody has said of jobs that they go to the dead letters."""
        self.is_copied = False
        """A group may send copies to the dead letters."""
        self.consumed_to = 0
        """Up to where every consumer may have finished, while that was a reason to delete it."""
        self.consumed: set[int] = set()
        """Seqs that are away, for which there is no other reason."""

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> set[str]:
        """Every class that it may have now."""
        return {config.durability for config in self.options}

    @property
    def ever(self) -> set[str]:
        """Every class that it may ever have had."""
        return {config.durability for config in self.configs}

    @property
    def retained(self) -> bool:
        """Whether caps or ttl may ever have taken something."""
        return any(config.cap_records or config.cap_bytes or config.ttl_ms for config in self.configs)

    @property
    def keeps(self) -> bool:
        """Whether records may ever have been taken away by newer ones of their tag."""
        return any(config.keep_per_tag for config in self.configs)

    @property
    def buries(self) -> bool:
        """Whether jobs may go from it to a dead-letter topic."""
        return any((config.max_deliveries or self.condemns) and config.dead_letter for config in self.configs)

    # -- what becomes known ------------------------------------------------------------------------------------------

    def tell(self, seq: int, number: int, promise: Promise, now: int) -> None:
        """Somebody was told that this record is there."""
        self.told.setdefault(seq, now)
        known = self.at.setdefault(seq, number)
        if known != number:
            broken(f"{self.name}: seq {seq} was record {known} and is {number}")
        self.promised[seq] = max(promise, self.promised.get(seq, Promise.NONE))
        self.head = max(self.head, seq)

    def settle(self, before: int) -> None:
        """All that was known when something was asked at `before` is on disk now, and so is what was taken away."""
        for seq in self.promised:
            if self.told[seq] < before:
                self.promised[seq] = Promise.ALL
        for seq, since in self.gone_since.items():
            if since < before:
                self.gone[seq] = Promise.ALL

    def release(self) -> None:
        """It may be ephemeral: a restart may take everything."""
        for seq in self.promised:
            self.promised[seq] = Promise.NONE

    def remove(self, seqs: Iterable[int], promise: Promise, now: int) -> None:
        """These are away for certain."""
        for seq in seqs:
            self.gone_since.setdefault(seq, now)
            self.gone[seq] = max(promise, self.gone.get(seq, Promise.NONE))

    def undecided(self) -> list[Batch]:
        """The batches of transactions of which nobody knows whether they are there."""
        return [batch for batch in self.batches if batch.is_part and not batch.first and not batch.dead]

    def may_be_deleted(self, seq: int, *, consumed: bool = True, superseded: bool = True) -> bool:
        """Whether somebody may have asked for this to go; or have finished with it, where `consumed` counts; or have
        appended newer records of its tag, where `superseded` counts."""
        if superseded and self.keeps and self.tags.get(seq, "unknown") is not None:
            return True
        if seq in self.gone or self.ended[seq] > 0 or seq in self.undone:
            return True
        if consumed and seq <= self.consumed_to:
            return True
        sure = seq in self.tags
        return any(deletion.selects(seq, self.tags.get(seq), sure_of_tag=sure) for deletion in self.deletions)


@dataclass(slots=True, eq=False)
class Stage:
    """A stage, as far as the one who fills it knows."""

    instance: Instance
    name: str
    batches: list[Batch] = field(default_factory=list)
    acked: list[Batch] = field(default_factory=list)
    promise: Promise = Promise.ALL
    may_be_gone: bool = False
    """It was dropped, or an end came that it was not promised to survive."""

    def most(self) -> list[int]:
        """The numbers that may be in it, in order."""
        return [number for batch in self.batches for number in batch.numbers]

    def least(self) -> list[int]:
        """The numbers that have to be."""
        return [number for batch in self.acked for number in batch.numbers]


@dataclass(slots=True, eq=False)
class Commit:
    """A commit that was asked for."""

    instance: Instance
    key: str
    stages: tuple[Stage, ...]
    answer: tuple[int, int] | None = None
    """First seq and count."""

    def most(self) -> list[int]:
        """The numbers that it may have published, in order."""
        return [number for stage in self.stages for number in stage.most()]

    def least(self) -> list[int]:
        """The numbers that it has published if it has published any."""
        return [number for stage in self.stages for number in stage.least()]

    def may_fail(self) -> bool:
        """Whether there may be no such stages."""
        return any(stage.may_be_gone or not stage.acked for stage in self.stages)


@dataclass(slots=True, eq=False)
class Lease:
    """A job that somebody was given. Times are those of a clock that no step moves, ms."""

    instance: Instance
    seq: int
    number: int
    node: str
    lease_id: int
    earliest_end: int
    latest_end: int
    deliveries: int
    durable: bool
    asked: int
    life: int
    since_ms: int = 0
    """When somebody was told of it."""
    over: bool = False
    """Somebody has said something that may have ended it, or it may be forgotten."""
    again_ms: int = 0
    """The job was given back, and is not to come before."""
    is_uncounted: bool = False
    """Somebody has said that this delivery does not count."""
    is_condemned: bool = False
    """The job was given back, to go to the dead letters."""


@dataclass(slots=True)
class RouterFate:
    """What is known of a router."""

    there: Literal["no", "maybe", "yes"] = "no"
    puts: int = 0
    """How often it may have been made."""
    start: int | None = None
    """Its cursor when it was first answered for."""
    since: int = 0
    """When that was."""
    asking: int = 0
    """Requests for it that are not answered."""
    removals: int = 0
    """How often it may have gone with a topic."""


def promise_of(classes: set[str]) -> Promise:
    """What an answer promises that came while the topic had one of these classes."""
    return min((PROMISES[durability] for durability in classes), default=Promise.NONE)


def survives(promise: Promise, fate: Fate) -> bool:
    """Whether something that was promised so much is there after such an end."""
    return promise == Promise.ALL or fate == "stop" or (fate == "kill" and promise == Promise.KILL)


def broken(problem: str) -> NoReturn:
    """Say so."""
    raise Broken(problem)
