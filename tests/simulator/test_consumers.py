"""What the simulator knows of consumers and of reads with a filter: it allows every order that may have been, and says
so when none is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.simulation.model import Record, View
from tests.simulator import consumers
from tests.simulator.consumers import ANY, Call, KnownConsumer, Outcome, Seen, State, TopicConsumers
from tests.simulator.known import Broken, Fate, Instance
from tests.simulator.passages import Passage
from tests.simulator.truth import Truth
from topics.model import RecordIn, TopicConfig

AT_START = Seen(0, None, 0, 0, None, 0)


class Asker:
    """One consumer of a topic of a class, and calls on it."""

    def __init__(self, durability: Any, *, retention: Any = "limits") -> None:
        instance = Instance("t")
        instance.options = [TopicConfig(durability=durability, retention=retention)]
        instance.configs = list(instance.options)
        self.of = TopicConsumers(instance)
        self.known = self.of.named("c", 0)

    def ask(
        self, outcomes: Callable[..., list[Outcome]], *, known: KnownConsumer | None = None, **options: Any
    ) -> Call:
        id_ = options.pop("id", None) or self.of.new_id()
        call = Call(id_, "", outcomes, self.of.now, frozenset(self.of.instance.classes), **options)
        (known or self.known).ask(call)
        return call

    def answer(self, call: Call, kind: str, *, known: KnownConsumer | None = None) -> None:
        def fits(found: str, before: State | None, after: State | None) -> list[State | None]:
            return [after] if found == kind else []

        (known or self.known).answer(call, self.of.now, fits, kind)

    def done(self, outcomes: Callable[..., list[Outcome]], kind: str, **options: Any) -> None:
        """A call and its answer."""
        self.answer(self.ask(outcomes, **options), kind)

    def make(self, seq: int = 0) -> None:
        self.done(consumers.put((seq, seq), None, None, keeps=True), "created", synced=True)

    def acquire(self, owner: str, lease_ms: int, kind: str, generation: int) -> None:
        id_ = self.of.new_id()
        call = self.ask(self.of.acquire(id_, owner, lease_ms), id=id_, synced=True)

        def fits(found: str, before: State | None, after: State | None) -> list[State | None]:
            if found != kind or after is None:
                return []
            return list(after.narrowed(after.low, generation))

        self.known.answer(call, self.of.now, fits, generation)
        self.of.granted(id_, generation, self.of.now + lease_ms)

    def shows(self, seq: int) -> None:
        self.known.answer(self.ask(consumers.look), 0, lambda _, __, after: AT_START._replace(seq=seq).fits(after), seq)


def commit(seq: int, generation: int | None = None) -> Callable[..., list[Outcome]]:
    return consumers.move(seq, seq, generation, seeks=False)


def seek(seq: int) -> Callable[..., list[Outcome]]:
    return consumers.move(seq, seq, None, seeks=True)


@pytest.mark.parametrize("second", ["moved", "stayed"])
def test_calls_at_the_same_time_may_happen_in_any_order(second: str) -> None:
    asker = Asker("fsync")
    asker.make()
    high, low = asker.ask(commit(5)), asker.ask(commit(3))
    with pytest.raises(Broken, match="no order explains"):
        asker.answer(high, "stayed")
    asker.answer(high, "moved")
    asker.answer(low, second)
    with pytest.raises(Broken):
        asker.shows(3)
    asker.known.open.clear()
    asker.shows(5)


def test_a_call_whose_answer_never_came_has_happened_or_not_and_not_both() -> None:
    asker = Asker("fsync")
    asker.make()
    asker.ask(commit(5))
    asker.shows(0)
    asker.shows(5)
    with pytest.raises(Broken):
        asker.shows(0)


@pytest.mark.parametrize(
    ("durability", "fate", "possible"),
    [
        ("fsync", "machine", {6}),
        ("ephemeral", "machine", {6}),
        ("disk", "kill", {6}),
        ("disk", "machine", {2, 4, 6}),
        ("memory", "kill", {2, 4, 6}),
        ("memory", "stop", {6}),
    ],
)
def test_a_position_goes_back_as_far_as_its_class_allows_and_never_beyond(
    durability: str, fate: Fate, possible: set[int]
) -> None:
    asker = Asker(durability)
    asker.make(2)
    asker.done(commit(4), "moved")
    asker.done(commit(6), "moved")
    for seq in range(1, 9):
        shown = AT_START._replace(seq=seq)
        if seq in possible:
            asker.known.judge(shown, fate, 0)
        else:
            with pytest.raises(Broken):
                asker.known.judge(shown, fate, 0)
    with pytest.raises(Broken):
        asker.known.judge(None, fate, 0)


def test_what_is_synced_takes_along_what_was_before_it() -> None:
    asker = Asker("memory")
    asker.make(2)
    asker.done(commit(4), "moved")
    asker.acquire("x", 1000, "granted", 1)
    asker.known.judge(Seen(4, "x", 1, 0, None, 0), "machine", 0)
    with pytest.raises(Broken):
        asker.known.judge(Seen(2, "x", 1, 0, None, 0), "machine", 0)
    asker.known.restarted(Seen(4, "x", 1, 0, None, 0), "machine", 0, clock_moved=False)
    with pytest.raises(Broken):
        asker.done(commit(6), "moved")


def test_owners_hold_it_until_their_lease_is_over_and_no_generation_comes_twice() -> None:
    asker = Asker("fsync")
    asker.make()
    asker.acquire("x", 1000, "granted", 1)
    asker.done(commit(1, 1), "moved")
    asker.of.now = 1000
    with pytest.raises(Broken):
        asker.acquire("y", 1000, "granted", 2)
    asker.known.open.clear()
    asker.of.now = 1001
    with pytest.raises(Broken):
        asker.acquire("y", 1000, "granted", 1)
    asker.known.open.clear()
    asker.acquire("y", 1000, "granted", 2)
    with pytest.raises(Broken):
        asker.done(commit(2, 1), "moved")
    asker.known.open.clear()
    asker.done(commit(2, 1), "fenced")
    asker.done(commit(2, 2), "moved")


def test_what_may_be_deleted_is_what_every_consumer_may_have_finished() -> None:
    asker = Asker("fsync", retention="consumed")
    other = asker.of.named("other", 0)
    asker.make()
    asker.of.note(9)
    assert asker.of.instance.consumed_to == 0
    call = asker.ask(consumers.put((3, 3), None, None, keeps=True), known=other, most=3)
    asker.done(commit(7), "moved")
    asker.of.note(9)
    assert asker.of.instance.consumed_to == 7, "the other one may not be there yet"
    asker.answer(call, "created", known=other)
    asker.done(seek(8), "moved")
    asker.of.note(9)
    assert asker.of.instance.consumed_to == 7
    asker.ask(commit(ANY), known=other, most=ANY)
    asker.of.note(9)
    assert asker.of.instance.consumed_to == 8


def test_a_record_that_is_gone_and_that_somebody_has_yet_to_finish_is_noticed() -> None:
    asker = Asker("fsync", retention="consumed")
    asker.make(7)
    asker.of.note(9)
    asker.known.restarted(AT_START._replace(seq=5), "machine", 0, clock_moved=False)
    asker.of.instance.at = {seq: seq for seq in range(1, 10)}
    record = Record(8, 0, 8, "{}")
    view = View("t", 1, TopicConfig(), 9, 6, 4, 0, dict.fromkeys(range(6, 10), record), [])
    asker.of.judge({"c": AT_START._replace(seq=5)}, view, "machine", 0)
    with pytest.raises(Broken, match="yet to finish"):
        asker.of.judge({"c": AT_START._replace(seq=5)}, rest_of(view, {7, 8, 9}), "machine", 0)


def rest_of(view: View, seqs: set[int]) -> View:
    """The same with these records only."""
    kept = {seq: record for seq, record in view.records.items() if seq in seqs}
    return View("t", 1, view.config, view.head, min(seqs), len(kept), 0, kept, [])


def test_what_is_passed_over_or_given_and_should_not_be_is_noticed() -> None:
    truth, instance = Truth({}), Instance("t")
    instance.options = [TopicConfig(durability="fsync")]
    records = [RecordIn(data=msgspec.Raw(b'{"n":%d}' % n), tag="x" if n % 2 else "y") for n in range(1, 7)]
    batch = truth.append_asked(instance, records, range(1, 7))
    truth.append_answered(batch, 1, 6, deduped=False)

    def problem(to: int, *seqs: int, gaps: tuple[tuple[int, int], ...] = ()) -> str | None:
        given = {seq: Record(seq, 0, seq, f'{{"$tag":"{records[seq - 1].tag}","data":{{"n":{seq}}}}}') for seq in seqs}
        return Passage(instance, to, given, gaps, ('["tag","Eq","x"]',)).problem(truth, 0)

    assert problem(6, 1, 3, 5) is None
    assert problem(4, 1, 3) is None
    assert problem(5, 1, 3, gaps=((5, 5),)) is None
    assert "seq 5 is passed over" in str(problem(6, 1, 3))
    assert "seq 2 does not match" in str(problem(6, 1, 2, 3, 5))
    assert "seq 5 is given" in str(problem(4, 1, 3, 5))
    truth.deletion_asked(instance, 2, None, None)
    assert problem(6, 3, 5) is None
