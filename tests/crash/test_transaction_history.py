"""The judge of transactions accepts what a crash may leave, and says what is wrong with the rest."""

from __future__ import annotations

import pytest

from tests.crash.transaction_history import Asked, History, Kind, Oracle, Shown, fenced, seen_together
from tests.simulation.model import Fate, Record, View, canonical
from topics.model import Conditions, TopicConfig

KINDS = {"a": Kind("fsync"), "b": Kind("disk"), "c": Kind("fsync", capped=True, cap_records=2)}


class Story:
    """What clients were told, and topics as somebody finds them."""

    def __init__(self) -> None:
        self.history = History()
        self.history.kinds = dict(KINDS)
        self.rows: dict[str, dict[int, Record]] = {name: {} for name in KINDS}
        self.gaps: dict[str, list[tuple[int, int, str]]] = {name: [] for name in KINDS}
        self.heads = dict.fromkeys(KINDS, 0)
        self.fences: dict[str, dict[str, int]] = {name: {} for name in KINDS}

    def ask(self, names: str, count: int = 2, *, key: str | None = None, conditions: Conditions | None = None) -> Asked:
        parts = {name: self.history.part(count, tag="x", conditions=conditions) for name in names}
        return self.history.ask(parts, is_transaction=len(names) > 1, key=key)

    def ack(self, asked: Asked, **firsts: int) -> Asked:
        asked.firsts, asked.answered = firsts, self.history.tick()
        return asked

    def refuse(self, asked: Asked, code: str, **detail: object) -> None:
        asked.refused, asked.answered = (code, detail), self.history.tick()

    def put(self, asked: Asked, **firsts: int) -> None:
        """Its records are there in these topics."""
        for name, first in firsts.items():
            part = asked.parts[name]
            for i, number in enumerate(part.numbers):
                body = canonical({"data": {"n": number, "x": "x" * 30}, "$tag": "x"})
                self.rows[name][first + i] = Record(first + i, 1000, number, body)
            self.heads[name] = max(self.heads[name], first + part.count - 1)

    def judge(self, fate: Fate = "kill") -> None:
        views = {}
        for name, rows in self.rows.items():
            records = dict(sorted(rows.items()))
            head = max([self.heads[name], *(last for _, last, _ in self.gaps[name])])
            size = sum(len(canonical({"n": record.data, "x": "x" * 30})) for record in records.values())
            earliest = min(records, default=head + 1)
            config = TopicConfig()
            views[name] = View(name, 1, config, head, earliest, len(records), size, records, self.gaps[name])
        Oracle(self.history, len(self.history)).judge(Shown(views, self.fences), fate)


def test_a_transaction_is_whole_or_not_there() -> None:
    story = Story()
    one = story.ask("ab")
    story.judge()
    story.put(one, a=1)
    with pytest.raises(AssertionError, match="there in part"):
        story.judge()
    story.put(one, b=1)
    story.judge()
    del story.rows["b"][2]
    with pytest.raises(AssertionError, match="are missing"):
        story.judge()


def test_what_was_acked_stays_at_its_place_and_what_was_refused_is_not_there() -> None:
    story = Story()
    one = story.ack(story.ask("ab"), a=1, b=1)
    with pytest.raises(AssertionError, match="was promised"):
        story.judge("machine")
    story.put(one, a=3, b=1)
    with pytest.raises(AssertionError, match="was at 1 is at 3"):
        story.judge()
    story = Story()
    one = story.ask("ab")
    story.refuse(one, "condition_failed", topic="a", head_seq=4)
    story.put(one, a=1, b=1)
    with pytest.raises(AssertionError, match="was refused"):
        story.judge()
    story = Story()
    one = story.ask("ab")
    story.refuse(one, "read_only")
    story.put(one, a=1, b=1)
    story.judge()


def test_a_machine_takes_plain_appends_of_a_disk_topic_but_none_before_a_transaction() -> None:
    story = Story()
    story.ack(story.ask("b"), b=1)
    story.gaps["b"] = [(1, 9, "lost")]
    story.judge("machine")
    with pytest.raises(AssertionError, match="are lost"):
        story.judge("kill")
    one = story.ack(story.ask("ab"), a=1, b=3)
    story.put(one, a=1, b=3)
    story.gaps["b"] = [(1, 2, "lost")]
    with pytest.raises(AssertionError, match="was promised"):
        story.judge("machine")


def test_what_was_visible_stays_and_what_was_seen_to_be_empty_too() -> None:
    story = Story()
    one = story.ask("ab")
    story.history.visible({"a": 2, "b": 2, "c": 0})
    known = len(story.history)
    story.ack(one, a=1, b=1)
    story.put(one, a=1, b=1)
    story.judge()
    story.rows = {name: {} for name in KINDS}
    views = {name: View(name, 1, TopicConfig(), 2, 3, 0, 0, {}, []) for name in KINDS}
    with pytest.raises(AssertionError, match="was promised"):
        Oracle(story.history, known).judge(Shown(views, story.fences), "kill")
    story = Story()
    one = story.ask("ab")
    story.refuse(one, "read_only")
    story.history.visible({"a": 2, "b": 2, "c": 0})
    story.put(one, a=1, b=1)
    with pytest.raises(AssertionError, match="were seen to be empty"):
        story.judge()


def test_empty_seqs_are_those_of_undone_transactions() -> None:
    story = Story()
    story.ask("ab", 3)
    later = story.ask("a", 1)
    story.put(later, a=4)
    story.judge()
    story.rows["a"], story.heads["a"] = {}, 0
    story.put(later, a=3)
    with pytest.raises(AssertionError, match="are empty"):
        story.judge()


def test_a_seq_that_somebody_has_seen_is_not_given_out_again() -> None:
    story = Story()
    story.history.visible({"a": 3, "b": 0, "c": 0})
    with pytest.raises(AssertionError, match="will be given out again"):
        story.judge()


def test_caps_take_the_oldest_and_no_more() -> None:
    story = Story()
    one = story.ack(story.ask("ac"), a=1, c=1)
    two = story.ack(story.ask("ac"), a=3, c=3)
    for asked, first in ((one, 1), (two, 3)):
        story.put(asked, a=first)
    story.put(two, c=3)
    story.gaps["c"] = [(1, 2, "cap")]
    story.judge()
    story.gaps["c"] = []
    with pytest.raises(AssertionError, match="was promised"):
        story.judge()
    del story.rows["c"][3]
    story.gaps["c"] = [(1, 3, "cap")]
    with pytest.raises(AssertionError, match="could stay"):
        story.judge()


def test_order_is_that_of_the_answers_and_the_same_in_all_topics() -> None:
    story = Story()
    one = story.ack(story.ask("ab"), a=1, b=3)
    two = story.ask("ab")
    story.put(one, a=1, b=3)
    story.put(two, a=3, b=1)
    with pytest.raises(AssertionError, match="was asked for after"):
        story.judge()
    story = Story()
    one, two = story.ask("ab"), story.ask("ab")
    story.put(one, a=1, b=3)
    story.put(two, a=3, b=1)
    with pytest.raises(AssertionError, match="two orders"):
        story.judge()


def test_conditions_and_fences_are_those_of_the_records() -> None:
    story = Story()
    one = story.ask("ab", conditions=fenced(7, 0))
    story.put(one, a=1, b=1)
    with pytest.raises(AssertionError, match="were raised"):
        story.judge()
    story.fences["a"] = story.fences["b"] = {"f": 7}
    story.judge()
    two = story.ask("a", conditions=fenced(6))
    story.put(two, a=3)
    with pytest.raises(AssertionError, match="was fenced off"):
        story.judge()
    story = Story()
    story.ask("ab", 3)
    late = story.ask("a", conditions=Conditions(3))
    story.put(late, a=4)
    story.judge()


def test_nobody_may_have_seen_a_part() -> None:
    story = Story()
    one = story.ask("ab")
    story.history.visible({"a": 2, "b": 2})
    story.ack(one, a=1, b=1)
    seen_together(story.history)
    story.history.visible({"a": 2, "b": 1})
    with pytest.raises(AssertionError, match="visible in part"):
        seen_together(story.history)
