"""Retention: what may go, as a machine against a model that asks if everything that is needed is still there."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from topics.bucket.bases.retention import (
    CANDIDATE_MS,
    BaseFacts,
    Candidates,
    epoch_beginnings,
    kept_of,
    stale_packs,
)
from topics.bucket.pin_format import Pin

RETAIN_MS = 10 * 3_600_000
HOUR = 3_600_000


class Retention(RuleBasedStateMachine):
    """A bucket of names. Bases name objects of the base before or of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100 * HOUR
        self.round = 0
        self.epoch = 1
        self.rounds: dict[int, int] = {}
        """Rounds that are there, and their epochs."""
        self.written: dict[int, int] = {}
        self.bases: dict[int, BaseFacts] = {}
        self.names: dict[int, frozenset[str]] = {}
        self.all_bases: list[BaseFacts] = []
        self.objects: set[str] = set()
        self.pins: list[Pin] = []
        self.candidates = Candidates()
        self.made = 0

    @rule(n=st.integers(1, 5), opened=st.booleans())
    def rounds_are_written(self, n: int, opened: bool) -> None:
        self.epoch += opened
        for _ in range(n):
            self.round += 1
            self.rounds[self.round] = self.written[self.round] = self.epoch

    @precondition(lambda self: self.round)
    @rule(back=st.integers(0, 4), kept=st.sets(st.integers(0, 5)), new=st.integers(1, 2))
    def base(self, back: int, kept: set[int], new: int) -> None:
        if self.round in self.bases:
            return
        first = max(1, self.round - back)
        if self.all_bases:
            first = max(first, self.all_bases[-1].first_round)
        before = sorted(self.names[max(self.bases)]) if self.bases else []
        names = {name for i, name in enumerate(before) if i in kept}
        for _ in range(new):
            self.made += 1
            names.add(f"packs/{self.made}")
        self.objects |= names
        facts = BaseFacts(self.round, first, self.now)
        self.bases[self.round] = facts
        self.all_bases.append(facts)
        self.names[self.round] = frozenset(names)

    @precondition(lambda self: self.bases)
    @rule(data=st.data(), hours=st.integers(1, 30))
    def pin(self, data: st.DataObject, hours: int) -> None:
        self.pins.append(Pin(base=data.draw(st.sampled_from(sorted(self.bases))), expires=self.now + hours * HOUR))

    @rule(hours=st.integers(1, 8))
    def time_passes(self, hours: int) -> None:
        self.now += hours * HOUR

    def unneeded(self) -> list[str]:
        bases = [self.bases[number] for number in sorted(self.bases)]
        kept = kept_of(bases, self.pins, now_ms=self.now, retain_ms=RETAIN_MS)
        found = []
        needed: set[str] = set()
        for base in bases:
            if kept is None or base.number in kept.bases:
                needed |= self.names[base.number]
            else:
                found.append(f"bases/{base.number}")
        if kept is not None:
            firsts = epoch_beginnings(sorted(self.rounds), self.rounds.__getitem__, None)
            found += [f"rounds/{n}" for n in self.rounds if not kept.has_round(n) and n not in firsts]
        return found + sorted(self.objects - needed)

    @rule()
    def collect(self) -> None:
        order = {"bases": 0, "rounds": 1, "packs": 2}
        ripe = self.candidates.ripe(self.unneeded(), self.now)
        kinds = [order[name.partition("/")[0]] for name in ripe]
        assert kinds == sorted(kinds)
        for name in ripe:
            kind, _, key = name.partition("/")
            if kind == "bases":
                del self.bases[int(key)]
            elif kind == "rounds":
                del self.rounds[int(key)]
            else:
                self.objects.discard(name)

    @rule()
    def everything_that_may_go_goes(self) -> None:
        """After two looks an hour apart nothing is left that nobody needs, and what is left is what the page says."""
        self.collect()
        self.now += CANDIDATE_MS
        self.collect()
        if not self.all_bases:
            return
        old = [base for base in self.all_bases if base.wall_ms <= self.now - CANDIDATE_MS - RETAIN_MS]
        pinned = {pin.base for pin in self.pins if pin.expires > self.now - CANDIDATE_MS}
        if old:
            for base in self.bases.values():
                assert base.number >= old[-1].number or base.number in pinned
        named = set().union(*(self.names[number] for number in self.bases)) if self.bases else set()
        late = {name for name in self.objects if name not in named}
        assert not late or len(self.candidates), "what is left over is known as such"

    @invariant()
    def everything_that_is_needed_is_there(self) -> None:
        pinned = {pin.base for pin in self.pins if pin.expires > self.now}
        old = [base for base in self.all_bases if base.wall_ms <= self.now - RETAIN_MS]
        floor = old[-1].number if old else 0
        for base in self.all_bases:
            if base.number >= floor or (base.number in pinned and base.number in self.bases):
                assert base.number in self.bases
                assert self.names[base.number] <= self.objects
                last = self.round if base.number >= floor else base.number
                assert set(range(base.first_round, last + 1)) <= self.rounds.keys()
            if base.number in self.bases:
                assert self.names[base.number] <= self.objects, "a base never lacks anything"
        seen = set()
        for number, epoch in sorted(self.written.items()):
            if epoch not in seen:
                seen.add(epoch)
                assert number in self.rounds, "the first round of each epoch stays"


Retention.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRetention = Retention.TestCase


def test_the_beginnings_of_epochs_are_found_with_few_questions() -> None:
    epochs = {number: 1 + (number > 300) + (number > 301) + (number > 900) for number in range(1, 1001)}
    asked: set[int] = set()

    def epoch_of(number: int) -> int:
        asked.add(number)
        return epochs[number]

    assert epoch_beginnings(sorted(epochs), epoch_of, None) == {1, 301, 302, 901}
    assert len(asked) < 60


def test_a_pack_with_something_that_nobody_needs_is_packed_again_after_a_third_of_the_retention() -> None:
    ages = {"packs/a": (1045, 4000), "packs/b": (1000, 4000), "packs/c": (1045, 3000), "packs/d": (1045, 4000)}
    live = [("packs/a", 1000), ("packs/b", 500), ("packs/c", 500), ("packs/d", 999)]
    assert stale_packs(live, ages, retain_ms=9000) == {"packs/b", "packs/d"}


def test_candidates_that_are_needed_again_wait_anew() -> None:
    candidates = Candidates(10)
    assert candidates.ripe(["packs/a"], 0) == []
    assert candidates.ripe([], 5) == []
    assert candidates.ripe(["packs/a", "bases/b"], 10) == []
    assert candidates.ripe(["packs/a", "bases/b", "rounds/c"], 20) == ["bases/b", "packs/a"]
