"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.cli.output import duration
from topics.cli.values import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250", 250),
        ("250ms", 250),
        ("1.5s", 1500),
        ("2m", 120_000),
        ("2min", 120_000),
        ("1h30m", 5_400_000),
        ("1 h 5 s", 3_605_000),
        ("7d", 604_800_000),
        ("7D", 604_800_000),
        ("1w", 604_800_000),
        ("0", 0),
    ],
)
def test_a_duration_is_a_number_with_a_unit_and_milliseconds_without(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "x", "-1", "7 parsecs", "1h30", "1e3", "1,5s", "s", "٣s", "1h-5m"])
def test_what_is_no_duration_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@given(st.integers(0, 2**64 - 1))
def test_a_duration_that_was_printed_can_be_typed_again(ms: int) -> None:
    assert parse_duration(duration(ms)) == ms


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("10", 10),
        ("10B", 10),
        ("10kB", 10_000),
        ("10MB", 10_000_000),
        ("1.5GB", 1_500_000_000),
        ("64KiB", 65_536),
        ("64K", 65_536),
        ("1 MiB", 1 << 20),
        ("2TiB", 2 << 40),
    ],
)
def test_a_size_is_decimal_with_b_and_binary_with_ib(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "x", "-1", "10 QB", "1MB5", "0x10"])
def test_what_is_no_size_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)
