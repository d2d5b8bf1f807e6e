"""Summaries of tags: a tag of the segment is never denied, and a missing tag nearly always."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.storage.segments.tag_summary import TagSummary, key_of


@given(st.sets(st.binary(max_size=20), max_size=300))
def test_a_summary_never_denies_a_tag_that_the_segment_has(names: set[bytes]) -> None:
    summary = TagSummary(names, len(names))
    assert all(summary.may_have(key_of(name)) for name in names)


@given(st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_it_takes_every_key(keys: set[int]) -> None:
    summary = TagSummary([b"one"], 1)
    assert {summary.may_have(key) for key in keys} <= {True, False}


def test_a_summary_denies_most_missing_tags_and_takes_little_memory() -> None:
    for count in (10, 100, 10_000, 10_100):
        names = [b"tag-%d" % number for number in range(count)]
        summary = TagSummary(names, len(names))
        wrong = sum(summary.may_have(key_of(b"other-%d" % number)) for number in range(10_000))
        assert wrong < (1000 if count < 100 else 200)
        assert summary.nbytes <= 2 * count + 100


def test_a_summary_of_no_tags_denies_every_tag() -> None:
    assert not TagSummary([], 0).may_have(key_of(b"a"))
