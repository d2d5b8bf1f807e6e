"""What a reader has been given of a stretch of a topic, held against every record that is known
(`docs/spec/consumers.md` section 2).

The oracle looks at each record by itself, decodes all of it, and knows no index. What was returned has to match; what
was passed over silently must not, or somebody must have asked for it to go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.filters.oracle import Written
from tests.simulation.model import Record, canonical
from tests.simulator.filter_matches import Filters, lets_through, written
from tests.simulator.known import Instance, broken
from tests.simulator.truth import Truth
from topics.engine.engine import Engine
from topics.filters.record_filter import parse_filter
from topics.model import Performance, ReadRequest


def surely_lets_through(truth: Truth, instance: Instance, seq: int, filters: Filters) -> bool:
    """Return True if all filters match the record that is known to be at `seq`, also if a router has left out its tag
    or node."""
    number = instance.at.get(seq)
    if number is None or number not in truth.batch_of:
        return False
    batch, i = truth.batch_of[number]
    given = batch.records[i]
    meta = msgspec.json.encode(given.meta) if given.meta else None
    tags, nodes = {given.tag}, {given.node}
    if batch.instance is not instance:
        tags, nodes = {given.tag, None}, {given.node, None}
    if seq in instance.tags:
        tags = {instance.tags[seq]}
    return all(lets_through(filters, Written(bytes(given.data), tag, node, meta)) for tag in tags for node in nodes)


def is_excused(truth: Truth, instance: Instance, seq: int) -> bool:
    """Whether the record at `seq` may be away silently."""
    if seq not in instance.at and instance.undecided():
        return True
    return instance.may_be_deleted(seq)


@dataclass(frozen=True, slots=True)
class Passage:
    """What a reader was given on its way to `to`: records, and gaps that were announced."""

    instance: Instance
    to: int
    records: Mapping[int, Record]
    gaps: Sequence[tuple[int, int]]
    filters: Filters

    def problem(self, truth: Truth, start: int, more: Filters = ()) -> str | None:
        """What is wrong with it for a reader who was at `start` and has these filters besides."""
        filters = self.filters + more
        if start > self.to:
            return f"it goes back from {start} to {self.to}"
        for seq, record in self.records.items():
            if not start < seq <= self.to:
                return f"seq {seq} is given on the way from {start} to {self.to}"
            if not lets_through(filters, written(record)):
                return f"seq {seq} does not match {filters}: {record.body}"
        for seq in self.silent(start):
            if surely_lets_through(truth, self.instance, seq, filters) and not is_excused(truth, self.instance, seq):
                return f"seq {seq} is passed over on the way from {start} to {self.to}, and matches {filters}"
        return None

    def silent(self, start: int) -> Iterable[int]:
        """The seqs of which it was told nothing."""
        for seq in range(start + 1, self.to + 1):
            if seq not in self.records and not any(first <= seq <= last for first, last in self.gaps):
                yield seq


@dataclass(frozen=True, slots=True)
class Silence:
    """What somebody was told nothing of, to be judged when all is known that was asked for in a life."""

    instance: Instance
    seqs: frozenset[int]
    filters: Filters
    truth: Truth

    def judge(self) -> None:
        """Raises Broken."""
        truth, instance = self.truth, self.instance
        if truth.latest(instance.name) is not instance or instance.deletion != "no":
            return
        for seq in sorted(self.seqs):
            if surely_lets_through(truth, instance, seq, self.filters) and not is_excused(truth, instance, seq):
                broken(f"{self.instance.name}: seq {seq} matches {self.filters}, and a reader was told nothing of it")


async def filtered_view(
    engine: Engine, name: str, text: str, *, limit: int = 3
) -> tuple[dict[int, Record], list[tuple[int, int, str]]]:
    """What a reader with a filter gets of a topic, in small pages, and the gaps that it is told of. Raises Broken."""
    records: dict[int, Record] = {}
    gaps: list[tuple[int, int, str]] = []
    position, wanted = 0, parse_filter(text)
    while True:
        request = ReadRequest(from_seq=position, limit=limit, include_tags=True, filter=wanted)
        result = await engine.reads.read(name, request, Performance())
        if result.tombstone is not None:
            gaps.append((result.tombstone.gap_from, result.tombstone.gap_to, result.tombstone.reason))
        records |= records_of(result.records)
        if result.caught_up:
            return records, gaps
        if result.next_from_seq <= position:
            broken(f"{name}: a read with {text} does not get on from {position}: {result}")
        position = result.next_from_seq


def records_of(rows: bytes) -> dict[int, Record]:
    """The records of an answer, without brackets, by their seqs. Raises Broken if they are out of order."""
    found: dict[int, Record] = {}
    last = 0
    decoded: list[dict[str, Any]] = msgspec.json.decode(b"[" + rows + b"]")
    for row in decoded:
        seq, ts = row.pop("$seq"), row.pop("$ts")
        if seq <= last:
            broken(f"seq {seq} comes after {last}")
        last = seq
        found[seq] = Record(seq, ts, row["data"]["n"], canonical(row))
    return found
