"""Watchers, as far as what they are told is judged."""

from __future__ import annotations

import msgspec

from tests.engine.delivery.client import Frame, Record
from tests.filters.oracle import Written
from tests.simulator.filter_matches import Filters, lets_through
from tests.simulator.known import Instance, broken
from tests.simulator.passages import is_excused, surely_lets_through
from tests.simulator.truth import Truth


class Follower:
    """One topic of one watcher: ranges and gaps follow one another, and what is passed over was asked to go."""

    def __init__(self, truth: Truth, instance: Instance, position: int, filters: Filters = ()) -> None:
        self.truth = truth
        self.filters = filters
        """It is told nothing of what does not match these."""
        self.instance = instance
        self.position = position
        self.silent: set[int] = set()
        self.over = False

    def take(self, frame: Frame) -> None:
        """The next frame. Raises Broken."""
        if self.over:
            return
        if frame.kind == "topic_deleted" or not self._is_current():
            self.over = True
        elif frame.kind == "record":
            self._records(frame)
        elif frame.kind == "tombstone":
            self._tombstone(frame)
        elif frame.kind == "caught_up":
            self._pass_over(frame.head_seq)

    def _is_current(self) -> bool:
        return self.truth.latest(self.instance.name) is self.instance and self.instance.deletion == "no"

    def _records(self, frame: Frame) -> None:
        if self.filters and frame.from_seq > self.position:
            self._pass_over(frame.from_seq)
        if frame.from_seq != self.position:
            broken(f"{self.instance.name}: a watcher at {self.position} is told of what is after {frame.from_seq}")
        for sent in frame.records:
            if sent.seq <= self.position:
                broken(f"{self.instance.name}: a watcher at {self.position} is given seq {sent.seq}")
            self._pass_over(sent.seq - 1)
            self.position = sent.seq
            number = msgspec.json.decode(sent.data)["n"]
            self.truth.delivered(self.instance, sent.seq, sent.ts, number)
            if not lets_through(self.filters, self._written(sent, number)):
                broken(f"{self.instance.name}: seq {sent.seq} does not match {self.filters}: {sent}")
        self._pass_over(frame.to_seq)

    def _tombstone(self, frame: Frame) -> None:
        if frame.reason == "recreated":
            self.position = frame.earliest_seq - 1
            return
        if frame.gap_from <= self.position:
            broken(f"{self.instance.name}: a watcher at {self.position} is told of a gap from {frame.gap_from}")
        self._pass_over(frame.gap_from - 1)
        self.position = frame.gap_to

    def _pass_over(self, to: int) -> None:
        self.silent.update(range(self.position + 1, to + 1))
        self.position = max(self.position, to)

    def _written(self, sent: Record, number: int) -> Written:
        batch, i = self.truth.batch_of[number]
        meta = batch.records[i].meta
        return Written(bytes(sent.data), sent.tag, sent.node, msgspec.json.encode(meta) if meta else None)

    def judge(self) -> None:
        """All that was asked for is known now: what it was not told of was asked to go, or does not match."""
        if not self._is_current():
            return
        for seq in self.silent:
            wanted = not self.filters or surely_lets_through(self.truth, self.instance, seq, self.filters)
            if wanted and not is_excused(self.truth, self.instance, seq):
                broken(f"{self.instance.name}: a watcher was told nothing of seq {seq}")
        self.silent.clear()
