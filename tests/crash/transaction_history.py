"""What clients were told of transactions and of appends beside them, and whether what a recovery shows can follow.

A client writes down what it asks for and what is answered; after each operation of the disk it is written down how far
the topics are visible. `Oracle` takes what was known at some moment, and knows from the rest of the history where each
batch was put. After a crash at that moment (`docs/spec/consumers.md` section 1, `docs/spec/semantics.md` section 8):

- each transaction is there whole or not at all, in all of its topics, but for what caps have evicted
- what was acked, or visible, is there with the same seqs; of a topic of the class `disk` a crash of the machine may
  take plain appends at the end, and tells of that
- seqs whose transaction was seen to be undone stay empty; seqs are empty silently only where one was undone
- what was acked before something else was asked for comes before it; two transactions have one order in all topics
- conditions, refusals and fences fit the order of the records (`conditional_history`)
- a key answers what it did
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Final, Literal

import msgspec

from tests.crash.conditional_history import Attempt, check
from tests.simulation.model import Fate, View, canonical, numbered
from topics.model import AppendRequest, Conditions, Fence, RecordIn, TopicConfigPatch, TransactionRequest

REFUSED: Final = frozenset({"condition_failed", "fenced"})
"""What is refused with these codes has no seqs, and never will have."""

There = Literal["whole", "part", "gone", "none"]
"""Of what is asked of a topic: all is live, caps have taken the first records, they may have taken all, it is not
there."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a topic is."""

    durability: str
    capped: bool = False
    cap_records: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """What is asked of one topic."""

    numbers: tuple[int, ...]
    records: tuple[RecordIn, ...]
    tag: str | None = None
    conditions: Conditions | None = None
    config: TopicConfigPatch | None = None
    """What the topic is made with, if it may be missing."""

    @property
    def count(self) -> int:
        return len(self.numbers)

    def append(self, key: str | None = None) -> AppendRequest:
        """The append of it; `key` is for one that is not of a transaction."""
        return AppendRequest(
            records=list(self.records),
            idempotency_key=key,
            create=self.config is not None,
            config=self.config,
            conditions=self.conditions,
        )


@dataclass(slots=True)
class Asked:
    """An append, or a transaction, and its answer. Moments are lengths of the history."""

    number: int
    parts: dict[str, Part]
    """By topic, in the order of the request."""
    is_transaction: bool
    key: str | None
    invoked: int
    answered: int | None = None
    firsts: dict[str, int] = field(default_factory=dict)
    """The first seq in each topic, as far as anybody was told at any time."""
    refused: tuple[str, Mapping[str, Any]] | None = None

    def request(self) -> TransactionRequest:
        """What is sent, and sent again."""
        appends = [part.append() for part in self.parts.values()]
        return TransactionRequest(topics=list(self.parts), appends=appends, idempotency_key=self.key)

    def last(self, topic: str) -> int:
        return self.firsts[topic] + self.parts[topic].count - 1

    @property
    def is_refused(self) -> bool:
        """It is not there, and never will be. Of a 503 nobody knows."""
        return self.refused is not None and self.refused[0] in REFUSED


class History:
    """What clients have written down."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind] = {}
        self.asked: list[Asked] = []
        self.heads: list[tuple[int, dict[str, int]]] = []
        """When, and up to which seqs, topics were visible."""
        self.machine_ended: list[int] = []
        """When a life began that followed a crash of the machine."""
        self.failed: int | None = None
        """When a disk is about to fail: until all know which shard that is, what was not synced is as after a crash of
        the machine (`docs/spec/crash.md` 3)."""
        self._now = 0
        self._number = 0

    def __len__(self) -> int:
        return self._now

    def tick(self) -> int:
        """The moment of the next thing."""
        self._now += 1
        return self._now - 1

    def part(self, count: int, *, size: int = 30, tag: str | None = None, **more: Any) -> Part:
        """Records that nobody else has asked for."""
        numbers = tuple(range(self._number + 1, self._number + 1 + count))
        self._number += count
        return Part(numbers, numbered(numbers, size, tag=tag), tag, **more)

    def ask(self, parts: dict[str, Part], *, is_transaction: bool, key: str | None) -> Asked:
        asked = Asked(len(self.asked), parts, is_transaction, key, self.tick())
        self.asked.append(asked)
        return asked

    def visible(self, heads: dict[str, int]) -> None:
        """Topics are visible up to these seqs."""
        if not self.heads or self.heads[-1][1] != heads:
            self.heads.append((self.tick(), heads))


@dataclass(frozen=True, slots=True)
class Shown:
    """What a start shows: the topics, as every reader shows them, and their fences."""

    views: dict[str, View]
    fences: dict[str, dict[str, int]]


class Oracle:
    """What was known when the history was so long."""

    def __init__(self, history: History, known: int) -> None:
        self.history = history
        self.known = known
        self.asked = [one for one in history.asked if one.invoked < known]
        self.of_number = {
            number: (one, topic, i)
            for one in history.asked
            for topic, part in one.parts.items()
            for i, number in enumerate(part.numbers)
        }
        self.heads: dict[str, int] = {}
        for at, heads in history.heads:
            if at < known:
                self.heads |= {name: max(head, self.heads.get(name, 0)) for name, head in heads.items()}

    def is_acked(self, one: Asked) -> bool:
        """Somebody was told that it is there."""
        return one.refused is None and one.answered is not None and one.answered < self.known

    def is_refused(self, one: Asked) -> bool:
        """Somebody was told that it is not there and never will be."""
        return one.is_refused and one.answered is not None and one.answered < self.known

    def was_visible(self, one: Asked) -> bool:
        """A reader may have seen it."""
        return any(name in one.firsts and one.last(name) <= self.heads.get(name, 0) for name in one.parts)

    def may_lose(self, topic: str, fate: Fate) -> bool:
        """Whether plain appends at the end of a topic may be lost."""
        failed = self.history.failed is not None and self.history.failed < self.known
        crashed = fate == "machine" or failed
        crashed = crashed or any(at < self.known for at in self.history.machine_ended)
        return crashed and self.history.kinds[topic].durability != "fsync"

    def judge(self, shown: Shown, fate: Fate) -> None:
        """Raise AssertionError if what a recovery shows cannot be."""
        _Case(self, shown, fate).check()


class _Case:
    """What one recovery shows."""

    def __init__(self, oracle: Oracle, shown: Shown, fate: Fate) -> None:
        self.oracle = oracle
        self.views = shown.views
        self.fences = shown.fences
        self.fate = fate
        self.firsts: dict[str, dict[int, int]] = {name: {} for name in shown.views}
        """By topic, the first seq of each of what is live in it, by its number."""
        self.promised = {
            name: max((one.last(name) for one in oracle.asked if self._is_safe(one) and name in one.parts), default=0)
            for name in oracle.history.kinds
        }
        """By topic, up to which seq a transaction has made it safe."""

    def _is_safe(self, one: Asked) -> bool:
        return one.is_transaction and (self.oracle.is_acked(one) or self.oracle.was_visible(one))

    def check(self) -> None:
        """All of it, the plainest things first."""
        for name, view in self.views.items():
            self._check_records(name, view)
            self._check_gaps(name, view)
        for one in self.oracle.asked:
            self._check_one(one)
        for name, view in self.views.items():
            self._check_holes(name, view)
            self._check_cap(name, view)
            self._check_time(name)
            if not self.oracle.history.kinds[name].capped:
                self._check_conditions(name, view)
        self._check_common_order()

    def says(self, name: str, problem: str) -> str:
        view = self.views.get(name)
        if view is None:
            return f"{name} after {self.fate}: {problem}, and there is no such topic"
        there = {seq: record.data for seq, record in view.records.items()}
        return f"{name} after {self.fate}: {problem}\n  head {view.head}, gaps {view.gaps}, records {there}"

    # -- one topic ---------------------------------------------------------------------------------------------------

    def _check_records(self, name: str, view: View) -> None:
        """Nothing is made up, changed or moved; the figures are those of the records."""
        size, time = 0, 0
        for seq, record in view.records.items():
            one, topic, i = self.oracle.of_number[record.data]
            assert topic == name, self.says(name, f"record {record.data} is of {topic}")
            assert one.invoked < self.oracle.known, self.says(name, f"seq {seq} was not asked for")
            assert not self.oracle.is_refused(one), self.says(name, f"seq {seq} was refused: {one.refused}")
            part = one.parts[name]
            row: dict[str, Any] = {"data": msgspec.json.decode(part.records[i].data)}
            row |= {"$tag": part.tag} if part.tag is not None else {}
            assert record.body == canonical(row), self.says(name, f"seq {seq} is {record.body}")
            first = self.firsts[name].setdefault(one.number, seq - i)
            assert first == seq - i, self.says(name, f"the batch at {first} is out of order at {seq}")
            told = one.firsts.get(name, first)
            assert told == first, self.says(name, f"what was at {told} is at {first}")
            assert record.ts >= time, self.says(name, f"time goes back at {seq}")
            time = record.ts
            size += len(part.records[i].data)
        found = (view.count, view.bytes, view.earliest)
        expected = (len(view.records), size, min(view.records, default=view.head + 1))
        assert found == expected, self.says(name, f"count, bytes and earliest are {found}, a read shows {expected}")
        seen = self.oracle.heads.get(name, 0)
        assert view.head >= seen, self.says(name, f"seqs up to {seen} were seen, and will be given out again")

    def _check_gaps(self, name: str, view: View) -> None:
        """A tombstone tells of what can have happened."""
        may_lose = self.oracle.may_lose(name, self.fate)
        for first, last, reason in view.gaps:
            legal = (reason == "lost" and may_lose) or (reason == "cap" and self.oracle.history.kinds[name].capped)
            legal = legal or (reason == "mixed" and may_lose and self.oracle.history.kinds[name].capped)
            assert legal, self.says(name, f"{first} to {last} are {reason}")

    def _is_gone(self, name: str, one: Asked) -> bool:
        """Whether caps may have taken all of it."""
        view = self.views[name]
        if not self.oracle.history.kinds[name].capped:
            return False
        if name not in one.firsts:
            return any(reason in ("cap", "mixed") for _, _, reason in view.gaps)
        seqs = range(one.firsts[name], one.last(name) + 1)
        return all(view.gap_of(seq) in ("cap", "mixed") for seq in seqs)

    def _there(self, name: str, one: Asked) -> There:
        if name not in self.views:
            return "none"
        view, first = self.views[name], self.firsts[name].get(one.number)
        if first is None:
            return "gone" if self._is_gone(name, one) else "none"
        missing = [seq for seq in range(first, first + one.parts[name].count) if seq not in view.records]
        if not missing:
            return "whole"
        evicted = self.oracle.history.kinds[name].capped and missing[-1] < view.earliest
        evicted = evicted and all(view.gap_of(seq) in ("cap", "mixed") for seq in missing)
        assert evicted, self.says(name, f"of the batch at {first} {missing} are missing")
        return "part"

    def _is_promised(self, name: str, one: Asked) -> bool:
        """Whether what was asked of this topic has to be there."""
        if not self.oracle.is_acked(one) and not self.oracle.was_visible(one):
            return False
        if one.is_transaction or not self.oracle.may_lose(name, self.fate):
            return True
        return name in one.firsts and one.last(name) <= self.promised[name]

    def _check_one(self, one: Asked) -> None:
        """It is there where it has to be, and everywhere or nowhere."""
        there = {name: self._there(name, one) for name in one.parts}
        for name, how in there.items():
            promised = self._is_promised(name, one)
            assert how != "none" or not promised, self.says(name, f"{list(one.parts[name].numbers)} was promised")
        live = {how for how in there.values() if how in ("whole", "part")}
        assert not live or "none" not in there.values(), f"{one} is there in part: {there}, {self.firsts}"

    def _check_holes(self, name: str, view: View) -> None:
        """Seqs without a record or a tombstone are those of transactions that are undone."""
        holes = self._holes(view)
        wanting = [
            one.parts[name].count
            for one in self.oracle.asked
            if name in one.parts and one.is_transaction and one.number not in self.firsts[name]
        ]
        assert _can_be_made_of(len(holes), wanting), self.says(name, f"{holes} are empty, of {wanting} undone")

    def _holes(self, view: View) -> list[int]:
        return [seq for seq in range(1, view.head + 1) if seq not in view.records and view.gap_of(seq) is None]

    def _check_cap(self, name: str, view: View) -> None:
        """Caps take no more than they must, and all that they must."""
        cap = self.oracle.history.kinds[name].cap_records
        if not cap or self.oracle.may_lose(name, self.fate):
            return
        evicted = [seq for seq in range(1, view.head + 1) if view.gap_of(seq) is not None]
        assert view.count <= cap, self.says(name, f"more than {cap} records")
        assert not evicted or view.count == cap, self.says(name, f"{evicted} are evicted, {cap} records could stay")

    def _check_time(self, name: str) -> None:
        """What was answered before something else was asked for has smaller seqs; what was seen to be empty is."""
        acked = [
            (one.answered or 0, one) for one in self.oracle.asked if name in one.parts and self.oracle.is_acked(one)
        ]
        by_number = {one.number: one for one in self.oracle.asked}
        for number, first in self.firsts[name].items():
            before = [one for at, one in acked if at < by_number[number].invoked and name in one.firsts]
            late = [one for one in before if one.last(name) >= first]
            assert not late, self.says(name, f"what is at {first} was asked for after {late} was acked")
        everything = [one for one in self.oracle.history.asked if name in one.parts]
        if any(one.answered is None for one in everything):
            return  # it is not known what was where
        placed = {
            seq for one in everything if name in one.firsts for seq in range(one.firsts[name], one.last(name) + 1)
        }
        back = [seq for seq in self.views[name].records if seq <= self.oracle.heads.get(name, 0) and seq not in placed]
        assert not back, self.says(name, f"{back} were seen to be empty")

    def _check_conditions(self, name: str, view: View) -> None:
        """Each append found what it expected; the fences are those that the records tell of."""
        may_lose = self.oracle.may_lose(name, self.fate)
        attempts: list[Attempt] = []
        places: dict[int, int] = {}
        for one in self.oracle.asked:
            if name not in one.parts:
                continue
            part, refused = one.parts[name], one.refused if self.oracle.is_refused(one) else None
            if refused is not None and (may_lose or refused[1].get("topic", name) != name):
                continue
            places[one.number] = len(attempts)
            attempt = Attempt(
                len(attempts), part.conditions or Conditions(), part.tag, part.count, one.invoked, refused=refused
            )
            if refused is not None or (self.oracle.is_acked(one) and one.number in self.firsts[name]):
                attempt.answered = one.answered
                attempt.first_seq = one.firsts[name] if refused is None else None
            attempts.append(attempt)
        log: list[tuple[int, int] | None] = [None] * view.head
        for seq, record in view.records.items():
            one, _, i = self.oracle.of_number[record.data]
            log[seq - 1] = places[one.number], i
        expected = check(attempts, log)
        assert self.fences[name] == expected, self.says(name, f"fences {self.fences[name]}, {expected} were raised")

    # -- all topics --------------------------------------------------------------------------------------------------

    def _check_common_order(self) -> None:
        """Two transactions that share topics come in the same order in each of them."""
        placed = [one for one in self.oracle.asked if one.is_transaction]
        for one, other in combinations(placed, 2):
            shared = [name for name in one.parts if one.number in self.firsts.get(name, ())]
            shared = [name for name in shared if other.number in self.firsts[name]]
            orders = {self.firsts[name][one.number] < self.firsts[name][other.number] for name in shared}
            assert len(orders) < 2, f"{one} and {other} have two orders: {self.firsts}"


def _can_be_made_of(total: int, sizes: list[int]) -> bool:
    """Whether some of the sizes add up to the total."""
    sums = {0}
    for size in sizes:
        sums |= {one + size for one in sums}
    return total in sums


def seen_together(history: History) -> None:
    """Assert that at no moment a part of a transaction was visible that has been acked."""
    for one in history.asked:
        if not one.is_transaction or one.refused is not None or len(one.firsts) != len(one.parts):
            continue
        for at, heads in history.heads:
            shown = {heads.get(name, 0) >= one.last(name) for name in one.parts}
            assert len(shown) == 1, f"{one} was visible in part at {at}: {heads}"


def fenced(token: int, head: int | None = None, name: str = "f", **tags: int) -> Conditions:
    """A fence, and what else is expected."""
    return Conditions(head, tags, Fence(name, token))
