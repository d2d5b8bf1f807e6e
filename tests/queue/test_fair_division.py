"""Dividing what there is among the claimers of one window: by example, and against going round one job at a time."""

from __future__ import annotations

from array import array

from hypothesis import given, settings
from hypothesis import strategies as st

from topics.queue.fair_division import deal, divide


def going_round(maxima: list[int], jobs: int) -> list[int]:
    """The rule as it is worded: one each in turn."""
    shares = [0] * len(maxima)
    while jobs and any(share < most for share, most in zip(shares, maxima, strict=True)):
        for i, most in enumerate(maxima):
            if jobs and shares[i] < most:
                shares[i] += 1
                jobs -= 1
    return shares


def test_ten_claimers_of_ten_over_fifty_jobs_get_five_each() -> None:
    assert divide([10] * 10, 50) == [5] * 10


def test_what_does_not_divide_goes_to_those_who_came_first() -> None:
    assert divide([10, 10, 10], 11) == [4, 4, 3]


def test_a_claimer_that_takes_less_leaves_its_part_to_the_others() -> None:
    assert divide([1, 100, 2, 100], 20) == [1, 9, 2, 8]


def test_with_enough_for_all_everybody_gets_its_max() -> None:
    assert divide([3, 1, 2], 100) == [3, 1, 2]


def test_with_less_than_one_each_the_last_come_away_empty() -> None:
    assert divide([5, 5, 5], 2) == [1, 1, 0]


def test_a_claimer_without_room_is_passed_over() -> None:
    assert divide([0, 4, 0], 3) == [0, 3, 0]


def test_nothing_is_divided_into_nothing_and_nobody_gets_anything() -> None:
    assert divide([2, 2], 0) == [0, 0]
    assert divide([], 7) == []


def test_a_million_jobs_cost_no_more_than_one() -> None:
    assert divide([10**9, 10**9, 7], 10**9) == [500_000_000 - 3, 500_000_000 - 4, 7]


@given(st.lists(st.integers(0, 12), max_size=12), st.integers(0, 80))
@settings(max_examples=200, deadline=None)
def test_it_is_the_same_as_going_round(maxima: list[int], jobs: int) -> None:
    assert divide(maxima, jobs) == going_round(maxima, jobs)


def test_each_is_dealt_a_run_of_seqs_and_what_is_left_over_nobody() -> None:
    hands = deal(array("Q", [3, 5, 6, 9, 12]), [2, 0, 2])
    assert [list(hand) for hand in hands] == [[3, 5], [], [6, 9]]
