from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from topics.queue.claim_limits import STEPS, ClaimLimits, RateWindow


@given(
    st.integers(1, 20),
    st.integers(1, 2000),
    st.lists(st.tuples(st.integers(0, 700), st.integers(1, 9)), max_size=60),
)
def test_no_time_of_that_length_has_more_claims_and_all_room_comes_back(
    jobs: int, per_ms: int, claims: list[tuple[int, int]]
) -> None:
    window = RateWindow(jobs, per_ms)
    now, done = 0, list[tuple[int, int]]()
    for wait, wanted in claims:
        now += wait
        got = min(wanted, window.room(now))
        assert got >= 0
        if got:
            window.note(now, got)
            done.append((now, got))
        assert sum(n for at, n in done if at > now - per_ms) <= jobs
        assert len(window._steps) <= STEPS + 1
        lasts = [at for at, n in done]
        if all(at <= now - per_ms - -(-per_ms // STEPS) for at in lasts):
            assert window.room(now) == jobs
    due_ms = window.next_ms(now)
    if due_ms is not None:
        assert due_ms > now
        before = window.room(due_ms - 1)
        assert window.room(due_ms) > before


def test_another_rate_begins_with_what_was_claimed() -> None:
    window = RateWindow(10, 1000)
    window.note(0, 6)
    assert window.resized(8, 2000, 500).room(500) == 2
    assert window.resized(4, 2000, 500).room(500) == 0
    assert window.resized(8, 2000, 5000).room(5000) == 8


def test_limits_count_what_is_leased_and_what_is_about_to_be() -> None:
    limits = ClaimLimits()
    assert not limits.any
    assert limits.room(5, 5, 0) > sys.maxsize // 2
    limits.max_in_flight = 10
    assert limits.room(5, 2, 0) == 3
    assert limits.room(9, 2, 0) == 0
    limits.window = RateWindow(4, 1000)
    assert limits.room(0, 1, 0) == 3
