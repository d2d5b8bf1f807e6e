"""Origins taken: membership against a plain set, dumps, and what it all costs in memory."""

from __future__ import annotations

import random
from typing import Any

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from topics.routing.origin_set import CHUNK_SEQS, OriginSet

C = CHUNK_SEQS


def origins(*runs: tuple[int, int, int]) -> OriginSet:
    it = OriginSet()
    for run in runs:
        it.add_run(*run)
    return it


def every_other(count: int, first: int = 1) -> OriginSet:
    it = OriginSet()
    for seq in range(first, first + 2 * count, 2):
        it.add(7, seq)
    return it


def reloaded(it: OriginSet) -> OriginSet:
    return OriginSet.load(cbor2.loads(cbor2.dumps(it.dump())))


def size(it: OriginSet) -> int:
    return len(cbor2.dumps(it.dump()))


def test_an_origin_is_taken_once_it_was_added() -> None:
    it = OriginSet()
    assert (7, 5) not in it
    it.add(7, 5)
    it.add(7, 5)
    assert (7, 5) in it
    assert [origin for origin in [(7, 4), (7, 6), (8, 5), (5, 7), (7, 5 + C)] if origin in it] == []


def test_a_run_has_both_its_ends_and_nothing_around_them() -> None:
    it = origins((7, C - 2, 3 * C + 2))
    assert [seq for seq in range(1, 5 * C) if (7, seq) in it] == list(range(C - 2, 3 * C + 3))


def test_the_largest_seqs_are_seqs_like_others() -> None:
    it = origins((2**64 - 1, 2**64 - 3, 2**64 - 1))
    assert (2**64 - 1, 2**64 - 1) in reloaded(it)
    assert (2**64 - 1, 2**64 - 4) not in reloaded(it)


@pytest.mark.slow
def test_a_million_consecutive_origins_cost_next_to_nothing() -> None:
    one_by_one = OriginSet()
    for seq in range(1, 1_000_001):
        one_by_one.add(7, seq)
    at_once = origins((7, 1, 1_000_000))
    backwards = origins(*((7, first, first + 99) for first in range(999_901, 0, -100)))
    for it in (one_by_one, at_once, backwards):
        assert it.dump() == at_once.dump()
        assert it.nbytes < 1000
        assert size(it) < 50


def test_runs_that_begin_anywhere_cost_next_to_nothing_either() -> None:
    it = origins((7, 1_234_567, 2_345_678), (7, 3_456_789, 3_456_789), (8, 5, 2**63))
    assert it.nbytes < 2500
    assert size(it) < 150


def test_origins_far_apart_cost_what_they_are_and_not_what_is_between() -> None:
    it = OriginSet()
    for seq in range(1, 10_000_000, 10_000):
        it.add(7, seq)
    assert it.nbytes < 1000 * 200
    assert size(it) < 1000 * 10


def test_origins_in_no_order_at_all_cost_little_more_than_a_bit_each() -> None:
    it = OriginSet()
    for seq in random.Random(1).sample(range(1, 64 * C), 32 * C):
        it.add(7, seq)
    assert it.nbytes < 1.4 * 64 * C / 8
    assert size(it) < 1.05 * 64 * C / 8


def test_chunks_that_become_full_out_of_order_collapse() -> None:
    it = every_other(2 * C)
    assert it.nbytes > 4 * C / 8
    for seq in range(4 * C, 0, -2):
        it.add(7, seq)
    assert it.dump() == [[7, [0, 4], []]]
    assert it.nbytes < 1000


def test_a_run_over_chunks_in_every_form_makes_them_full() -> None:
    it = every_other(C // 2)
    it.add(7, C + 5)
    it.add_run(7, 2 * C + 1, 3 * C)
    it.add_run(7, 1, 4 * C)
    assert it.dump() == [[7, [0, 4], []]]


def test_a_full_chunk_stays_full_whatever_is_added_again() -> None:
    it = origins((7, 1, 3 * C))
    it.add(7, C + 5)
    it.add_run(7, C - 5, 2 * C + 5)
    assert it.dump() == [[7, [0, 3], []]]


def test_a_dump_is_the_same_for_the_same_origins_and_ordered() -> None:
    forward, backward = OriginSet(), OriginSet()
    for topic_id, seq in sorted((t, s) for t in (9, 3) for s in range(1, 3 * C, 3)):
        forward.add(topic_id, seq)
    for topic_id, seq in [(t, s) for t in (9, 3) for s in reversed(range(1, 3 * C, 3))]:
        backward.add(topic_id, seq)
    assert forward.dump() == backward.dump()
    assert [entry[0] for entry in forward.dump()] == [3, 9]


def test_a_dump_is_the_same_although_a_chunk_went_through_bits() -> None:
    through_bits = every_other(C // 2)
    through_bits.add_run(7, 1, C - 1)
    assert through_bits.dump() == origins((7, 1, C - 1)).dump()
    assert through_bits.nbytes < 1000


def test_a_dump_is_not_touched_by_what_is_added_later() -> None:
    it = every_other(C)
    it.add_run(7, 5 * C + 1, 6 * C)
    dump = it.dump()
    before = cbor2.dumps(dump)
    it.add_run(7, 1, 9 * C - 5)
    assert cbor2.dumps(dump) == before


def test_what_was_loaded_goes_on_growing() -> None:
    it = reloaded(every_other(C))
    it.add_run(7, 1, 2 * C)
    assert it.dump() == [[7, [0, 2], []]]


DENSE = b"\x55" * (C // 8)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        [[7]],
        [7],
        [["7", [0, 1], []]],
        [[True, [0, 1], []]],
        [[-1, [0, 1], []]],
        [[7, [], []]],
        [[7, (0, 1), []]],
        [[8, [0, 1], []], [7, [0, 1], []]],
        [[7, [0, 1], []], [7, [1, 2], []]],
        [[7, [0], []]],
        [[7, [1, 1], []]],
        [[7, [-1, 1], []]],
        [[7, [2, 1], []]],
        [[7, [0, 1, 1, 2], []]],
        [[7, [0, 2**52 + 1], []]],
        [[7, [0, "1"], []]],
        [[7, [0, 1.5], []]],
        [[7, [], [0]]],
        [[7, [], [0, "no bytes"]]],
        [[7, [], [0, b""]]],
        [[7, [], [0, b"\x01"]]],
        [[7, [], [0, b"\x01\x00"]]],
        [[7, [], [0, b"\x02\x00\x01\x00"]]],
        [[7, [], [0, b"\x01\x00\x01\x10"]]],
        [[7, [], [0, b"\x00\x00\x00\x10"]]],
        [[7, [], [0, b"\x00" * (C // 8)]]],
        [[7, [], [0, b"\xff" * (C // 8)]]],
        [[7, [], [0, DENSE + b"\x00"]]],
        [[7, [], [0, DENSE + DENSE]]],
        [[7, [], ["0", DENSE]]],
        [[7, [], [-1, DENSE]]],
        [[7, [], [2**52, DENSE]]],
        [[7, [], [1, DENSE, 0, DENSE]]],
        [[7, [], [0, DENSE, 0, DENSE]]],
        [[7, [0, 1], [0, DENSE]]],
    ],
)
def test_nonsense_does_not_load(value: object) -> None:
    with pytest.raises(ValueError, match="origins"):
        OriginSet.load(value)


def test_the_largest_valid_entries_load() -> None:
    assert (7, 1) in OriginSet.load([[7, [], [0, DENSE, 2**52 - 1, DENSE]]])
    assert (7, 2**64 - 1) in OriginSet.load([[7, [0, 2**52], []]])


# --- against a set of pairs ---------------------------------------------------------------------------------------

seqs = st.integers(1, 4 * C) | st.builds(
    lambda chunk, near: max(1, chunk * C + near), st.integers(0, 3), st.integers(-2, 3)
)
# Topic, first, count, and step: 1 is a run, anything else seqs one by one, descending if it is negative.
steps = st.tuples(
    st.sampled_from([1, 2]),
    seqs,
    st.integers(1, 5) | st.integers(1, 2 * C),
    st.sampled_from([1, 1, 1, 2, 3, 17, -1, -2]),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(steps, max_size=6), st.booleans())
@example([(1, 1, C, 2), (1, 2, C, 2)], True)
@example([(1, 1, 2 * C, 2), (1, 1, 2 * C, 1)], True)
def test_it_holds_what_a_plain_set_holds(steps: list[tuple[int, int, int, int]], reload: bool) -> None:
    it, model = OriginSet(), set[tuple[int, int]]()
    for topic_id, first, count, step in steps:
        taken = [seq for seq in range(first, first + count * step, step) if seq > 0]
        if step == 1:
            it.add_run(topic_id, taken[0], taken[-1])
        else:
            for seq in taken:
                it.add(topic_id, seq)
        model.update((topic_id, seq) for seq in taken)
        if reload:
            it = reloaded(it)
    for topic_id in (1, 2):
        held = {
            (topic_id, seq) for seq in range(1, max((seq for _, seq in model), default=0) + 9) if (topic_id, seq) in it
        }
        assert held == {pair for pair in model if pair[0] == topic_id}

    ascending = OriginSet()
    for pair in sorted(model):
        ascending.add(*pair)
    assert it.dump() == ascending.dump() == reloaded(it).dump()


@given(st.recursive(st.integers(-1, C) | st.binary(max_size=8), st.lists, max_leaves=12))
def test_whatever_loads_is_dumped_as_it_was(value: Any) -> None:
    try:
        it = OriginSet.load(value)
    except ValueError:
        return
    assert it.dump() == value
