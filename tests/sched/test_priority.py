"""Effective priority, by example (`docs/spec/semantics.md` section 7)."""

from __future__ import annotations

import pytest

from topics.sched.priority import effective_priority

NOW = 10_000_000


@pytest.mark.parametrize(
    ("configured", "auto", "consumed_ago_ms", "expected"),
    [
        (7, True, 0, 7),
        (7, False, None, 7),
        (0, True, 0, 0),
        (5000, True, None, 1000),
        (-5000, True, None, -1000),
        (None, True, None, 0),
        (None, True, 0, 500),
        (None, True, 30_000, 250),
        (None, True, 60_000, 125),
        (None, True, 299_999, 0),
        (None, True, 300_000, 0),
        (None, True, 900_000, 0),
        (None, True, -5_000, 500),
        (None, False, 0, 0),
    ],
)
def test_a_priority_without_waiting(
    configured: int | None, auto: bool, consumed_ago_ms: int | None, expected: int
) -> None:
    last_consumed_ms = None if consumed_ago_ms is None else NOW - consumed_ago_ms
    assert effective_priority(configured, auto, last_consumed_ms, NOW) == expected


@pytest.mark.parametrize(
    ("waiting_ms", "bonus"), [(0, 0), (9, 0), (10, 1), (1000, 100), (10_000, 1000), (60_000, 1000)]
)
def test_waiting_adds_a_hundred_a_second_up_to_a_thousand(waiting_ms: int, bonus: int) -> None:
    assert effective_priority(-1000, True, None, NOW, waiting_ms) == -1000 + bonus
    assert effective_priority(1000, True, None, NOW, waiting_ms) == 1000 + bonus
