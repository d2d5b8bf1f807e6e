"""`TransactionKeys` against a dict: which transactions are remembered, for how long, and over a dump."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.log.transaction_keys import MemberSeqs, TransactionKeys, members_from_wire

STEPS = st.lists(
    st.tuples(st.sampled_from(["remember", "expire", "lookup", "dump"]), st.sampled_from("abc"), st.integers(0, 40)),
    max_size=40,
)


@given(STEPS, st.sampled_from([0, 10, 25]))
def test_what_is_remembered_is_what_a_dict_says(steps: list[tuple[str, str, int]], window_ms: int) -> None:
    keys = TransactionKeys()
    known: dict[str, tuple[int, int]] = {}
    now = number = 0
    for kind, key, passed in steps:
        now += passed
        if kind == "remember":
            number += 1
            keys.remember(key, [MemberSeqs("t", number, number), MemberSeqs("u", 1, 2)], now)
            known[key] = (number, now)
        elif kind == "expire":
            over = {one for one, (_, at) in known.items() if window_ms <= 0 or now - at > window_ms}
            assert keys.expire(now, window_ms) == len(over)
            known = {one: value for one, value in known.items() if one not in over}
            assert len(keys) == len(known)
        elif kind == "dump":
            keys = TransactionKeys.load(keys.dump())
        assert keys.members == 2 * len(known)
        found = keys.lookup(key, now, window_ms)
        expected = known.get(key)
        if expected is None or window_ms <= 0 or now - expected[1] > window_ms:
            assert found is None
        else:
            assert found is not None
            assert (found.members[0].first_seq, found.at) == expected
    assert keys.last_at == max((at for _, at in known.values()), default=0)


@pytest.mark.parametrize(
    "dump",
    [
        {},
        [["k", 1]],
        [["k", 1, []]],
        [["k", 1, [["t", 0, 1]]]],
        [["k", 1, [["t", 2, 1]]]],
        [[1, 1, [["t", 1, 1]]]],
        [["k", 5, [["t", 1, 1]]], ["l", 4, [["t", 2, 2]]]],
    ],
)
def test_a_malformed_dump_is_refused(dump: Any) -> None:
    with pytest.raises(ValueError, match="transaction keys"):
        TransactionKeys.load(dump)


def test_members_of_no_list_are_refused() -> None:
    with pytest.raises(ValueError, match="bad member"):
        members_from_wire("x")


def test_a_call_forgets_a_bounded_number_and_the_next_one_goes_on() -> None:
    keys = TransactionKeys()
    for number in range(1, 8):
        keys.remember(f"k{number}", [MemberSeqs("t", number, number)], 1)
    assert [keys.expire(50, 10, most=3) for _ in range(4)] == [3, 3, 1, 0]
    assert (len(keys), keys.members) == (0, 0)
