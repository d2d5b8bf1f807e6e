"""The finished seqs of a group, against a set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.groups.finished_runs import FinishedRuns

RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 8)), max_size=30)


@given(RANGES, st.integers(0, 10))
def test_the_runs_are_those_of_a_set(ranges: list[tuple[int, int]], floor: int) -> None:
    runs, seen = FinishedRuns(floor), set(range(1, floor + 1))
    for first, n in ranges:
        runs.add(first, first + n)
        seen |= set(range(first, first + n + 1))
        runs.check()
        assert {seq for seq in range(1, 80) if seq in runs} == seen
        assert runs.total == len([seq for seq in seen if seq > runs.floor])
        left = [seq for a, b in runs.outside(1, 80) for seq in range(a, b + 1)]
        assert left == [seq for seq in range(1, 81) if seq not in seen]
    again = FinishedRuns.load(runs.dump())
    assert again.dump() == runs.dump()


def test_seqs_in_any_order_become_runs() -> None:
    runs = FinishedRuns()
    runs.add_seqs([9, 3, 4, 4, 8])
    assert list(runs.runs()) == [(3, 4), (8, 9)]
    runs.add_seqs([1, 2])
    assert (runs.floor, list(runs.runs()), runs.last) == (4, [(8, 9)], 9)


@pytest.mark.parametrize("value", [None, [-1, b""], [0, b"\0" * 8], [0, b"\1" + b"\0" * 15], [5, b"\0" * 16]])
def test_a_bad_dump_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"runs|array|bytes|length"):
        FinishedRuns.load(value)
