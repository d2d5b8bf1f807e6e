"""The bucket of a key: what it lets in over any stretch of time, and what a refusal promises."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from topics.config import Rate
from topics.http.budgets.token_bucket import TokenBucket

MS = 1_000_000
SECOND = 1000 * MS

STEPS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5000)), min_size=1, max_size=60)
"""Requests: how many milliseconds after the one before, and how many bytes it turns out to weigh."""


@given(st.integers(1, 20), STEPS)
def test_no_stretch_of_time_has_more_requests_than_its_share_and_a_second_more(
    requests: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(Rate(requests, 0), 0)
    now, let_in = 0, []
    for pause_ms, size in steps:
        now += pause_ms * MS
        if bucket.admit(now) == 0:
            let_in.append(now)
            bucket.charge(size)
    for first, begin in enumerate(let_in):
        for last, end in enumerate(let_in[first:], first):
            assert last - first + 1 <= requests + requests * (end - begin) / SECOND + 1e-6


@given(st.integers(1, 10_000), STEPS)
def test_no_stretch_of_time_has_more_bytes_than_its_share_and_a_second_and_a_request_more(
    size: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(Rate(0, size), 0)
    now, let_in = 0, []
    for pause_ms, weight in steps:
        now += pause_ms * MS
        if bucket.admit(now) == 0:
            let_in.append((now, weight))
            bucket.charge(weight)
    for first, (begin, _) in enumerate(let_in):
        total = 0
        for end, weight in let_in[first:]:
            # What had been let in before this one was not more than there was.
            assert total <= size + size * (end - begin) / SECOND + 1e-6
            total += weight


@given(st.integers(0, 20), st.just(0) | st.integers(1000, 10_000), STEPS)
@example(1, 0, [(0, 0), (173, 0)])
def test_who_comes_back_when_told_to_is_let_in_however_often_it_was_refused_before(
    requests: int, size: int, steps: list[tuple[int, int]]
) -> None:
    bucket = TokenBucket(Rate(requests, size), 0)
    now = 0
    for pause_ms, weight in steps:
        now += pause_ms * MS
        wait_ms = bucket.admit(now)
        if wait_ms:
            assert bucket.admit(now) == wait_ms
            # And not much longer than need be.
            assert wait_ms <= 3 or bucket.admit(now + (wait_ms - 3) * MS) > 0
            now += wait_ms * MS
            assert bucket.admit(now) == 0
        bucket.charge(weight)


@given(st.integers(1, 50), st.integers(1000, 3_600_000))
def test_a_second_of_requests_may_come_at_once_and_no_more_however_long_none_came(requests: int, idle_ms: int) -> None:
    bucket = TokenBucket(Rate(requests, 0), 0)
    for begin in (0, idle_ms * MS):
        assert [bucket.admit(begin) for _ in range(requests)] == [0] * requests
        assert bucket.admit(begin) > 0


@given(STEPS)
def test_what_is_off_refuses_nobody(steps: list[tuple[int, int]]) -> None:
    bucket = TokenBucket(Rate(0, 0), 0)
    for _, weight in steps:
        assert bucket.admit(0) == 0
        bucket.charge(weight)
