"""What may go from a bucket, and why the rest stays: `topics bucket gc`. Nothing is deleted.

The rules are those of the owner's collector (`topics.bucket.bases.retention`). Only the owner deletes, because only it
knows which objects belong to the base that it is making, and only after an hour, because a reader may come meanwhile.
Neither is true of a command that ends after some seconds.

Memory: the names of all packs and segments that are kept, some 150 bytes each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from topics.bucket.base_format import Base, BlobRef
from topics.bucket.bases.retention import BaseFacts, Kept, epoch_beginnings, kept_of, objects_named
from topics.bucket.object_names import BASES, PACKS, PINS, ROUNDS, SEGMENTS, STANDBYS, number_of, pack_name
from topics.bucket.object_store import ObjectFacts
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.pin_format import Pin
from topics.bucket.standby.announcement import FORGET_MS

KINDS: Final = (ROUNDS, BASES, PACKS, SEGMENTS, PINS, STANDBYS)


class KeptBase(msgspec.Struct):
    """A base that stays."""

    base: int
    wall_ms: int
    first_round: int
    why: str


class KindRemovals(msgspec.Struct):
    """The objects of one kind: how many stay, and how many may go."""

    kind: str
    kept: int = 0
    kept_bytes: int = 0
    may_go: int = 0
    may_go_bytes: int = 0
    undecided: int = 0
    """No base names them, and they are younger than the newest one: they may belong to the next."""


class BucketRemovals(msgspec.Struct):
    """What may go by a retention. `reason` says why nothing of bases and rounds may, if so."""

    retain_ms: int
    reason: str
    bases: list[KeptBase]
    rounds_from: int | None
    """This round and all later ones stay."""
    epoch_beginnings: int
    """Earlier rounds that stay because each is the first of its epoch."""
    kinds: list[KindRemovals]
    names: list[str]
    """What may go, the first ones of each kind."""


class RemovalSearch:
    """One look at a bucket. Methods raise BucketDamaged, StoreError."""

    def __init__(self, reader: BucketReader, *, retain_ms: int, now_ms: int, limit: int) -> None:
        self._reader = reader
        self._retain_ms = retain_ms
        self._now_ms = now_ms
        self._limit = limit
        """Names of each kind that are listed."""
        self._names: list[str] = []
        self._epochs: dict[int, int] = {}

    def find(self) -> BucketRemovals:
        """Return what may go. Lists all of the bucket, and reads every page of every base that stays."""
        self._reader.format()
        pins = self._reader.pins()
        listed = self._reader.bases()
        bases = [self._reader.base(one.number) for one in listed]
        facts = [BaseFacts(one.head.number, one.head.first_round, one.head.wall_ms) for one in bases]
        kept = kept_of(facts, [pin for _, pin in pins], now_ms=self._now_ms, retain_ms=self._retain_ms)
        stay = [one for one in bases if kept is None or one.head.number in kept.bases]
        named = self._named(stay)
        newest_ms = listed[-1].facts.modified_ms if listed else 0
        beginnings: set[int] = set()
        kinds = []
        for prefix in KINDS:
            figures = KindRemovals(prefix.rstrip("/"))
            kinds.append(figures)
            if prefix == ROUNDS:
                beginnings = self._count_rounds(figures, kept)
                continue
            expired = {name for name, pin in pins if pin.expires + self._retain_ms <= self._now_ms}
            for one in self._reader.listed(prefix):
                if prefix == BASES:
                    goes = kept is not None and (number_of(one.name) or 0) not in kept.bases
                elif prefix == PINS:
                    goes = one.name in expired
                elif prefix == STANDBYS:
                    goes = one.modified_ms + FORGET_MS <= newest_ms
                else:
                    goes = one.name not in named
                    if goes and one.modified_ms >= newest_ms:
                        figures.undecided += 1
                        continue
                self._count(figures, one, goes=goes)
        return BucketRemovals(
            retain_ms=self._retain_ms,
            reason="" if kept is not None else "no base is old enough, so every base and round stays",
            bases=[
                KeptBase(one.head.number, one.head.wall_ms, one.head.first_round, why)
                for one, why in zip(stay, self._reasons(stay, pins), strict=True)
            ],
            rounds_from=kept.rounds_from if kept is not None else None,
            epoch_beginnings=len(beginnings),
            kinds=kinds,
            names=self._names,
        )

    def _named(self, bases: Sequence[Base]) -> set[str]:
        """The packs and segments that these bases name."""
        named: set[str] = set()
        pages: set[BlobRef] = set()
        for base in bases:
            for number, ref in base.body.pages:
                if ref not in pages:
                    pages.add(ref)
                    named.add(pack_name(ref.pack_name))
                    for topic in self._reader.page(base.head.number, number, ref):
                        named |= objects_named(topic)
        return named

    def _reasons(self, stay: Sequence[Base], pins: Sequence[tuple[str, Pin]]) -> Iterator[str]:
        """Why each of these bases stays."""
        old = [one.head.number for one in stay if one.head.wall_ms <= self._now_ms - self._retain_ms]
        for base in stay:
            number = base.head.number
            holders = [name for name, pin in pins if pin.base == number and pin.expires > self._now_ms]
            if number not in old:
                yield "younger than the retention"
            elif number == old[-1]:
                yield "the newest that is as old as the retention"
            else:
                yield f"{holders[0]} needs it"

    def _count_rounds(self, figures: KindRemovals, kept: Kept | None) -> set[int]:
        """Count the rounds. Return those that stay only because they are the first of their epoch."""
        old = [] if kept is None else [one for one in self._reader.rounds() if one.number < kept.rounds_from]
        beginnings: set[int] = set()
        if kept is not None and old:
            first = epoch_beginnings([one.number for one in old], self._epoch_of, None)
            beginnings = {number for number in first if not kept.has_round(number)}
        for facts in self._reader.listed(ROUNDS):
            number = number_of(facts.name)
            goes = kept is not None and number is not None and not kept.has_round(number) and number not in beginnings
            self._count(figures, facts, goes=goes)
        return beginnings

    def _epoch_of(self, number: int) -> int:
        if number not in self._epochs:
            self._epochs[number] = self._reader.round_head(number).epoch
        return self._epochs[number]

    def _count(self, figures: KindRemovals, facts: ObjectFacts, *, goes: bool) -> None:
        if not goes:
            figures.kept += 1
            figures.kept_bytes += facts.size
            return
        figures.may_go += 1
        figures.may_go_bytes += facts.size
        if figures.may_go <= self._limit:
            self._names.append(facts.name)
