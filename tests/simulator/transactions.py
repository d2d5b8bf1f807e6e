"""What is known of transactions: each is in all of its topics, or in none (`docs/spec/consumers.md` section 1).

The records in one topic are a `Batch` like those of an append, and judged as such. What a batch alone cannot show, that
all of one transaction share a fate, is judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.simulation.model import View
from tests.simulator.known import Batch, broken
from topics.model import Conditions

if TYPE_CHECKING:
    from tests.simulator.truth import Truth

Part = Literal["there", "away", "unknown"]


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction that somebody has asked for."""

    batches: list[Batch]
    conditions: list[Conditions | None]
    """Of each batch."""
    key: str | None = None
    sent_ms: int = 0
    is_over: bool = False
    """A restart has shown what became of it, or it was refused."""

    def named(self, topic: object) -> Batch | None:
        """The batch of a topic."""
        return next((batch for batch in self.batches if batch.instance.name == topic), None)


def sums_of(sizes: Iterable[int]) -> set[int]:
    """What some of these add up to."""
    sums = {0}
    for size in sizes:
        sums |= {one + size for one in sums}
    return sums


def judge_transactions(truth: Truth, transactions: Sequence[Transaction], views: Mapping[str, View]) -> None:
    """What a recovery shows has each of these in all of its topics or in none. Raises Broken."""
    numbers = {name: {record.data for record in view.records.values()} for name, view in views.items()}
    for transaction in transactions:
        if transaction.is_over or truth.rot:
            continue
        parts = {batch.instance.name: _part(truth, batch, views, numbers) for batch in transaction.batches}
        if {"there", "away"} <= set(parts.values()):
            where = {batch.instance.name: (batch.first, batch.numbers) for batch in transaction.batches}
            broken(f"a transaction is there in part: {parts}, {where}")
        truth.checked["transactions"] += len(set(parts.values())) == 1


def _part(truth: Truth, batch: Batch, views: Mapping[str, View], numbers: Mapping[str, set[int]]) -> Part:
    """Whether the records of a batch are there; unknown where something may have taken them."""
    instance = batch.instance
    view = views.get(instance.name)
    if view is None or truth.latest(instance.name) is not instance or (instance.epoch not in (0, view.epoch)):
        return "unknown"
    if not numbers[instance.name].isdisjoint(batch.numbers):
        return "there"
    taken = instance.keeps or instance.retained or instance.buries
    taken = taken or "ephemeral" in instance.ever or instance.deletion != "no"
    taken = (
        taken
        or bool(instance.deletions)
        or instance.consumed_to > 0
        or any(count > 0 for count in instance.ended.values())
    )
    taken = taken or any(since > batch.asked for since in instance.gone_since.values())
    return "unknown" if taken else "away"
