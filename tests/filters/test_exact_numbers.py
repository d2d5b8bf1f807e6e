"""Numbers of any size compare exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.filters.exact_numbers import as_float, is_short, key_of

digits = st.text("0123456789", min_size=1, max_size=20)
wholes = st.just("0") | st.integers(1, 10**20).map(str)
exponents = st.integers(-40, 40).map(lambda n: f"e{n}") | st.sampled_from(["E+05", "e-00", "e0"])
numbers = st.builds(
    lambda sign, whole, fraction, exponent: (sign + whole + fraction + exponent).encode(),
    st.sampled_from(["", "-"]),
    wholes,
    st.just("") | digits.map(lambda text: "." + text),
    st.just("") | exponents,
)


def signed(difference: Fraction | int) -> int:
    return (difference > 0) - (difference < 0)


@pytest.mark.slow
@settings(max_examples=1000)
@given(numbers, numbers)
def test_keys_compare_as_the_numbers_do(one: bytes, other: bytes) -> None:
    exactly = signed(Fraction(one.decode()) - Fraction(other.decode()))
    assert (key_of(one) > key_of(other)) - (key_of(one) < key_of(other)) == exactly
    near = as_float(other)
    if near is not None and is_short(one):
        assert (float(one) > near) - (float(one) < near) == exactly


def test_numbers_beyond_every_float() -> None:
    ascending = [
        b"-1e" + b"9" * 5000,
        b"-1e9999999999",
        b"-1e400",
        b"-1e-400",
        b"-1e-" + b"9" * 5000,
        b"0e" + b"9" * 5000,
        b"1e-" + b"9" * 5000,
        b"1e-400",
        b"1",
        b"1e400",
        b"1" + b"0" * 100_000,
        b"1e9999999999",
        b"1e" + b"9" * 5000,
    ]
    keys = [key_of(text) for text in ascending]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)
    assert key_of(b"1" + b"0" * 400) == key_of(b"1e400") == key_of(b"0." + b"0" * 399 + b"1e800")
