"""The table of a topic against a list: batches that are decided, published and taken back; deaths, fronts, sweeps."""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict, deque
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from topics.log.losses import Losses
from topics.log.record_index import RecordIndex
from topics.log.tables import kept_tags
from topics.log.tables.kept_tags import KeptChange, KeptRecord, KeptTags, add_record

TAGS = ("a", "ab", "b")


class Row(NamedTuple):
    seq: int
    tag: str
    size: int
    is_null: bool


class Batch(NamedTuple):
    change: KeptChange
    rows: list[Row]
    gone: list[Row]


class Model:
    """A table and a list, and the batches on their way."""

    def __init__(self, keep: int) -> None:
        self.losses = Losses(RecordIndex())
        self.table = KeptTags(self.losses)
        self.keep = keep
        self.front, self.head = 1, 0
        self.decided: list[Row] = []
        self.published: list[Row] = []
        self.pending: deque[Batch] = deque()

    def decide(self, records: list[tuple[str | None, int, bool]]) -> None:
        first = self.head + 1
        nulls = {i for i, (_, _, is_null) in enumerate(records) if is_null}
        tags, sizes = [tag for tag, _, _ in records], [size for _, size, _ in records]
        change = self.table.decide(first, tags, sizes, nulls, keep=self.keep, front=self.front)
        rows, gone = [], []
        for seq, (tag, size, is_null) in enumerate(records, first):
            if tag is None:
                continue
            same = [row for row in self.decided if row.tag == tag]
            over = len(same) + 1 - (1 if is_null else self.keep)
            gone += same[: max(over, 0)]
            self.decided = [row for row in self.decided if row not in same[: max(over, 0)]]
            rows.append(Row(seq, tag, size, is_null))
            self.decided.append(rows[-1])
        gone.sort()
        assert list(change.seqs) == [row.seq for row in gone]
        assert list(change.sizes) == [row.size for row in gone]
        assert list(change.nulls) == [row.seq for row in rows if row.is_null]
        self.head += len(records)
        self.pending.append(Batch(change, rows, gone))

    def publish(self) -> None:
        change, rows, gone = self.pending.popleft()
        self.table.publish(change, change.levels, self.front)
        self.published = [row for row in self.published + rows if row not in gone]

    def take_back(self) -> None:
        """The newest batch fails."""
        change, rows, gone = self.pending.pop()
        self.table.take_back(change)
        self.decided = sorted(
            [row for row in self.decided if row not in rows] + [row for row in gone if row not in rows]
        )

    def delete(self, row: Row) -> None:
        self.table.deleted([row.seq], 1)
        self.published.remove(row)
        self.decided.remove(row)

    def lose(self, row: Row) -> None:
        self.losses.add_hole(row.seq, row.seq, "corrupt")
        self.table.lost()
        self.published.remove(row)
        self.decided.remove(row)

    def move_front(self, row: Row) -> None:
        self.front = row.seq
        died = [one for one in self.published if one.seq < self.front]
        self.published = [one for one in self.published if one.seq >= self.front]
        self.decided = list(self.published)
        self.table.died(len(died))

    def trim(self, keep: int) -> None:
        self.keep = keep
        for tag in self.table.names():
            to = self.table.surplus_to(tag, keep, self.front)
            while to:
                found = self.table.oldest(tag, to, 2, self.front)
                if not found:
                    break
                self.table.cut(tag, found[-1][0])
                self.published = [row for row in self.published if row.seq not in dict(found)]
        self.decided = list(self.published)
        for tag in TAGS:
            rows = [row for row in self.published if row.tag == tag]
            assert len(rows) <= keep
            assert not any(row.is_null for row in rows[1:])

    def check(self) -> None:
        live: dict[str, list[int]] = defaultdict(list)
        for row in sorted(self.published):
            live[row.tag].append(row.seq)
        self.table.check(live, self.front)
        for tag in TAGS:
            newest = max((row for row in self.published if row.tag == tag), default=None)
            found = self.table.newest(tag, self.front)
            assert (found is None) is (newest is None)
            if found is not None and newest is not None:
                assert found == KeptRecord(newest.seq, newest.size, newest.is_null)
        assert [tag for tag in self.table.tags_from("a", None, 9) if live[tag]] == [t for t in TAGS[:2] if live[t]]
        assert "a" not in self.table.tags_from("", "a", 9)


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    size = st.sampled_from([0, 1, 77, 2**32 - 1])
    record = st.tuples(st.none() | st.sampled_from(TAGS), size, st.sampled_from([False, False, False, True]))
    step = st.one_of(
        st.tuples(st.just("decide"), st.lists(record, min_size=1, max_size=6)),
        st.tuples(st.just("decide"), st.lists(record, min_size=1, max_size=6)),
        st.tuples(st.just("publish")),
        st.tuples(st.just("publish")),
        st.tuples(st.just("take_back")),
        st.tuples(st.sampled_from(["delete", "move_front", "lose"]), st.integers(0, 30)),
        st.tuples(st.just("trim"), st.integers(1, 3)),
        st.tuples(st.just("sweep")),
    )
    return draw(st.lists(step, max_size=50))


@examples(max_examples=150, deadline=None)
@given(keep=st.sampled_from([1, 1, 2, 3, 7]), few=st.sampled_from([0, 2, 8]), steps=steps())
def test_a_table_is_what_a_list_says(keep: int, few: int, steps: list[tuple[Any, ...]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_tags, "_SWEEP_MIN", 1)
        patch.setattr(kept_tags, "_FEW_RECORDS", few)
        model = Model(keep)
        for step in steps:
            match step:
                case ("decide", records):
                    model.decide(records)
                case ("publish",) if model.pending:
                    model.publish()
                case ("take_back",) if model.pending:
                    model.take_back()
                case ("delete" | "move_front" | "lose" as kind, i) if model.published and not model.pending:
                    row = model.published[i % len(model.published)]
                    {"delete": model.delete, "move_front": model.move_front, "lose": model.lose}[kind](row)
                case ("trim", most) if not model.pending:
                    model.trim(most)
                case ("sweep",):
                    model.table.sweep(1, model.front)
            model.check()


def test_dead_tags_are_swept_in_proportion_to_the_deaths() -> None:
    table = KeptTags(Losses(RecordIndex()))
    for seq in range(1, 20_001):
        table.publish(table.decide(seq, [f"k{seq}"], [1], (), keep=1, front=1), [f"k{seq}"], 1)
    most = 0
    for seq in range(1, 20_001):
        table.died(1)
        table.sweep(1, seq + 1)
        most = max(most, len(table) - (20_000 - seq))
    assert most <= 10_100, "about half of the table at its largest"
    while table.littered:
        table.sweep(1000, 20_001)
    assert len(table) < 100


def test_a_tag_takes_at_most_200_bytes_beside_itself() -> None:
    records: dict[str, Any] = {}
    for i in range(100_000):
        add_record(records, f"key-{i:08}", KeptRecord(10_000_000 + i, 1000, False))
    table = KeptTags(Losses(RecordIndex()), records)
    entries: Any = table._entries
    order = sum(sys.getsizeof(part) for part in entries._list._lists)
    total = dict.__sizeof__(entries) + order + sum(sys.getsizeof(value) for value in entries.values())
    assert total / len(table) < 200


def test_a_tag_with_very_many_records_is_changed_in_place() -> None:
    table = KeptTags(Losses(RecordIndex()))
    for seq in range(1, 3001):
        change = table.decide(seq, ["a"], [1], (), keep=1000, front=1)
        table.publish(change, ["a"], 1)
        assert list(change.seqs) == ([seq - 1000] if seq > 1000 else [])
    entry = table._entries["a"]
    assert isinstance(entry, array)
    assert len(entry) < 4 * 1000 + 10


def test_an_append_does_not_ask_every_record_of_its_tag_whether_it_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """`keep_per_tag` may be large. A few deaths, or holes, must not make each append look at all records of the tag."""
    records: dict[str, Any] = {}
    for i in range(10_000):
        add_record(records, "a", KeptRecord(1 + 2 * i, 10, False))
    for i in range(1000):
        add_record(records, f"k{i}", KeptRecord(30_000 + i, 10, False))
    losses = Losses(RecordIndex())
    table = KeptTags(losses, records)
    asked = 0

    def is_dead(self: KeptTags, seq: int) -> bool:
        nonlocal asked
        asked += 1
        return False

    monkeypatch.setattr(KeptTags, "_is_dead", is_dead)
    table.lost()
    table.deleted([7, 8, 30_500], 2)
    losses.add_hole(11, 14, "corrupt")
    losses.add_hole(19_990, 20_100, "lost")
    table.lost()
    gone = [7, 11, 13, *range(19_991, 20_000, 2)]
    for seq in (40_001, 40_002):
        table.publish(table.decide(seq, ["a"], [1], (), keep=1 << 40, front=1), ["a"], 1)
    assert asked == 0
    left = [one.seq for one in table.records("a", 1)]
    assert left == [seq for seq in [*range(1, 20_000, 2), 40_001, 40_002] if seq not in gone]


def test_deleted_records_without_a_tag_do_not_pile_up() -> None:
    """The table does not know which of the deleted records had a tag, so it remembers all of them for a while."""
    table = KeptTags(Losses(RecordIndex()))
    for seq in range(1, 2001):
        table.publish(table.decide(seq, [f"k{seq}"], [1], (), keep=1, front=1), [f"k{seq}"], 1)
    most = 0
    for at in range(3000, 300_000, 1000):
        table.deleted(range(at, at + 1000), 1)
        table.sweep(1000, 1)
        most = max(most, len(table._dead) + len(table._aging))
    assert most <= 5000


def test_a_record_of_a_large_batch_does_not_copy_all_others_of_its_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """With any `keep_per_tag`: one record is taken away for each one that is added."""
    copied = 0

    class Counted(list[int]):
        def __getitem__(self, key: Any) -> Any:
            nonlocal copied
            if isinstance(key, slice):
                copied += len(range(*key.indices(len(self))))
            return super().__getitem__(key)

    class Pending(kept_tags._PendingTag):
        def __init__(self) -> None:
            super().__init__()
            self.records = Counted()

    monkeypatch.setattr(kept_tags, "_PendingTag", Pending)
    table = KeptTags(Losses(RecordIndex()))
    change = table.decide(1, ["a"] * 3000, [10] * 3000, (), keep=1000, front=1)
    assert list(change.seqs) == list(range(1, 2001))
    assert copied == 0
    table.publish(change, ["a"], 1)
    assert [one.seq for one in table.records("a", 1)] == list(range(2001, 3001))
