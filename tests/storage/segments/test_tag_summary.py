"""Summaries of tags: what is there is never denied, and what is not there nearly always."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.storage.segments.tag_summary import TagSummary, key_of


@given(st.sets(st.binary(max_size=20), max_size=300))
def test_what_is_there_is_never_denied(names: set[bytes]) -> None:
    summary = TagSummary(names, len(names))
    assert all(summary.may_have(key_of(name)) for name in names)


@given(st.sets(st.integers(0, 2**64 - 1), min_size=1, max_size=50))
def test_it_takes_every_key(keys: set[int]) -> None:
    summary = TagSummary([b"one"], 1)
    assert {summary.may_have(key) for key in keys} <= {True, False}


def test_most_of_what_is_not_there_is_denied_and_little_memory_is_taken() -> None:
    for count in (10, 100, 10_000, 10_100):
        names = [b"tag-%d" % number for number in range(count)]
        summary = TagSummary(names, len(names))
        wrong = sum(summary.may_have(key_of(b"other-%d" % number)) for number in range(10_000))
        assert wrong < (1000 if count < 100 else 200)
        assert summary.nbytes <= 2 * count + 100


def test_of_no_tags_nothing_is_there() -> None:
    assert not TagSummary([], 0).may_have(key_of(b"a"))
