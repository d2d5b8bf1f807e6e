"""What a query reads is decided by numbers alone: no daemon, no Spark."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from topics.spark.options import Bound
from topics.spark.plan import KnownTopic, Offsets, RestPart, SeqGap, batch, between, capped, initial, latest, shares

ALL = (Bound("earliest"), Bound("latest"))


def ranges(parts: list[RestPart]) -> list[tuple[str, int, int]]:
    return [(part.topic, part.after, part.last) for part in parts]


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_is_cut_into_partitions_of_so_many_seqs() -> None:
    parts = batch({"a": KnownTopic(7, 25, 1), "b": KnownTopic(8, 3, 1)}, *ALL, 10)
    assert ranges(parts) == [("a", 0, 10), ("a", 10, 20), ("a", 20, 25), ("b", 0, 3)]
    assert {(part.topic, part.epoch) for part in parts} == {("a", 7), ("b", 8)}


def test_what_retention_had_taken_before_the_query_is_not_in_earliest() -> None:
    assert ranges(batch({"a": KnownTopic(1, 25, 21)}, *ALL, 10)) == [("a", 20, 25)]


def test_a_seq_that_somebody_names_is_in_the_range_even_if_it_is_gone() -> None:
    assert ranges(batch({"a": KnownTopic(1, 25, 21)}, Bound(11), Bound("latest"), 100)) == [("a", 10, 25)]


def test_both_ends_are_included_and_an_end_beyond_the_head_is_the_head() -> None:
    known = {"a": KnownTopic(1, 25, 1)}
    assert ranges(batch(known, Bound(5), Bound(9), 100)) == [("a", 4, 9)]
    assert ranges(batch(known, Bound(5), Bound(99), 100)) == [("a", 4, 25)]
    assert batch(known, Bound(30), Bound(99), 100) == []
    assert batch({"a": KnownTopic(1, 0, 1)}, *ALL, 100) == []


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_stream_begins_where_it_is_told() -> None:
    known = {"a": KnownTopic(1, 25, 21), "b": KnownTopic(2, 4, 1)}
    assert initial(known, Bound("earliest")) == {"a": {"seq": 20, "epoch": 1}, "b": {"seq": 0, "epoch": 2}}
    assert initial(known, Bound("latest")) == {"a": {"seq": 25, "epoch": 1}, "b": {"seq": 4, "epoch": 2}}
    assert initial(known, Bound("earliest", (("b", 3),)))["b"] == {"seq": 2, "epoch": 2}


def test_a_stream_that_begins_later_waits_for_its_first_seq() -> None:
    start = initial({"a": KnownTopic(1, 5, 1)}, Bound(8))
    assert latest(start, {"a": KnownTopic(1, 6, 1)}, None) == start
    end = latest(start, {"a": KnownTopic(1, 9, 1)}, None)
    assert end == {"a": {"seq": 9, "epoch": 1}}
    assert ranges(between(start, end, 100)) == [("a", 7, 9)]


def test_without_a_limit_a_batch_goes_to_the_heads() -> None:
    start: Offsets = {"a": {"seq": 3, "epoch": 1}, "b": {"seq": 4, "epoch": 2}}
    end = latest(start, {"a": KnownTopic(1, 9, 1), "b": KnownTopic(2, 4, 1)}, None)
    assert end == {"a": {"seq": 9, "epoch": 1}, "b": {"seq": 4, "epoch": 2}}
    assert ranges(between(start, end, 4)) == [("a", 3, 7), ("a", 7, 9)]


def test_where_nothing_is_new_the_offset_is_the_same_to_the_letter() -> None:
    start: Offsets = {"b": {"seq": 4, "epoch": 2}, "a": {"seq": 3, "epoch": 1, "from": 2}}
    end = latest(start, {"a": KnownTopic(1, 3, 1), "b": KnownTopic(2, 4, 1)}, None)
    assert str(end) == str(start)
    assert between(start, end, 10) == []


def test_a_limit_is_divided_evenly_and_what_one_topic_does_not_need_goes_to_the_others() -> None:
    assert shares({"a": 100, "b": 100, "c": 2}, 20, 0) == {"a": 9, "b": 9, "c": 2}


def test_topics_take_turns_where_there_is_less_than_a_seq_for_each() -> None:
    known = {name: KnownTopic(1, 6, 1) for name in "abcde"}
    offsets = initial(known, Bound("earliest"))
    for _ in range(5):
        offsets = latest(offsets, known, 2)
    assert [offset["seq"] for offset in offsets.values()] == [2, 2, 2, 2, 2]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 50), max_size=6),
    st.integers(1, 120),
    st.integers(0, 1000),
)
def test_a_share_is_never_too_much_and_never_too_little(backlogs: Mapping[str, int], limit: int, turn: int) -> None:
    given_ = shares(backlogs, limit, turn)
    assert sum(given_.values()) == min(limit, sum(backlogs.values()))
    assert all(0 < count <= backlogs[topic] for topic, count in given_.items())
    assert not given_ or fair(backlogs, given_)


def fair(backlogs: Mapping[str, int], counts: Mapping[str, int]) -> bool:
    """Return True if every topic that has less than another one, by more than one, has all that it needs."""
    most = max(counts.values())
    return all(counts.get(topic, 0) >= most - 1 or counts.get(topic, 0) == need for topic, need in backlogs.items())


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=4), st.integers(1, 7))
def test_a_stream_reads_each_seq_once_whatever_the_limit(topics: list[tuple[int, int]], limit: int) -> None:
    known = {f"t{place}": KnownTopic(place, head, 1) for place, (head, _) in enumerate(topics)}
    start: Offsets = {}
    read: list[tuple[str, int]] = []
    for _ in range(sum(head for head, _ in topics) + 2):
        end = latest(start, known, limit)
        parts = between(start, end, 5)
        assert sum(part.last - part.after for part in parts) <= limit
        read += [(part.topic, seq) for part in parts for seq in range(part.after + 1, part.last + 1)]
        start = end
    assert sorted(read) == sorted((topic, seq) for topic, state in known.items() for seq in range(1, state.head + 1))


def test_a_topic_joins_from_its_beginning_and_keeps_it_for_replays() -> None:
    start: Offsets = {"a": {"seq": 3, "epoch": 1}}
    end = latest(start, {"a": KnownTopic(1, 3, 1), "b": KnownTopic(2, 9, 5), "c": KnownTopic(3, 2, 1)}, None)
    assert end["b"] == {"seq": 9, "epoch": 2, "from": 4}
    assert end["c"] == {"seq": 2, "epoch": 3}
    assert ranges(between(start, end, 100)) == [("b", 4, 9), ("c", 0, 2)]
    after = latest(end, {"a": KnownTopic(1, 3, 1), "b": KnownTopic(2, 12, 8), "c": KnownTopic(3, 2, 1)}, None)
    assert after["b"] == {"seq": 12, "epoch": 2}
    assert ranges(between(end, after, 100)) == [("b", 9, 12)]


def test_a_topic_that_was_made_again_is_loss_and_then_read_from_its_beginning() -> None:
    start: Offsets = {"a": {"seq": 30, "epoch": 1}}
    end = latest(start, {"a": KnownTopic(5, 4, 1)}, None)
    assert end == {"a": {"seq": 4, "epoch": 5}}
    lost, found = between(start, end, 100)
    assert lost == RestPart("a", 0, 0, 5, SeqGap(31, None, "recreated"))
    assert found == RestPart("a", 0, 4, 5)


def test_a_daemon_that_went_back_to_a_backup_is_loss_as_well() -> None:
    start: Offsets = {"a": {"seq": 30, "epoch": 1}}
    end = latest(start, {"a": KnownTopic(1, 20, 1)}, 8)
    assert end == {"a": {"seq": 8, "epoch": 1}}
    assert [part.gap for part in between(start, end, 100)] == [SeqGap(31, None, "recreated"), None]
    assert ranges(between(end, latest(end, {"a": KnownTopic(1, 20, 1)}, None), 100)) == [("a", 8, 20)]


def test_a_topic_that_was_made_again_and_is_empty_is_noticed_at_once() -> None:
    start: Offsets = {"a": {"seq": 30, "epoch": 1}}
    end = latest(start, {"a": KnownTopic(5, 0, 1)}, 1)
    assert [part.gap for part in between(start, end, 100)] == [SeqGap(31, None, "recreated")]


def test_a_topic_that_is_gone_stays_in_the_offset() -> None:
    start: Offsets = {"a": {"seq": 30, "epoch": 1}, "b": {"seq": 1, "epoch": 2}}
    end = latest(start, {"b": KnownTopic(2, 2, 1)}, None)
    assert end == {"a": {"seq": 30, "epoch": 1}, "b": {"seq": 2, "epoch": 2}}


def test_a_query_that_is_to_end_sees_nothing_that_comes_later() -> None:
    target = {"a": KnownTopic(1, 5, 1), "b": KnownTopic(2, 5, 1)}
    later = {"a": KnownTopic(1, 9, 1), "b": KnownTopic(7, 9, 1), "c": KnownTopic(8, 9, 1)}
    assert capped(later, target) == {"a": KnownTopic(1, 5, 1)}
