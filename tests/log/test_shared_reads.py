"""Ranges of bytes that are close together are fetched by one read."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from topics.log.shared_reads import MAX_GAP, SharedRead, shared_reads

BIG = 1 << 30


def test_neighbours_in_a_file_share_a_read_and_others_do_not() -> None:
    files = [1, 1, 1, 2, 1]
    offsets = [0, 100, 110, 120, 130]
    lengths = [100, 10, 10, 10, 10]
    reads = list(shared_reads(files, offsets, lengths, max_bytes=BIG))
    assert reads == [SharedRead(0, 3, 0, 120), SharedRead(3, 4, 120, 10), SharedRead(4, 5, 130, 10)]
    assert reads[0].starts(offsets) == [0, 100, 110]
    assert reads[2].starts(offsets) == [0]


def test_a_gap_of_at_most_a_page_is_read_along() -> None:
    within = list(shared_reads([1, 1], [10, 20 + MAX_GAP], [10, 5], max_bytes=BIG))
    assert within == [SharedRead(0, 2, 10, 10 + MAX_GAP + 5)]
    beyond = list(shared_reads([1, 1], [10, 21 + MAX_GAP], [10, 5], max_bytes=BIG))
    assert beyond == [SharedRead(0, 1, 10, 10), SharedRead(1, 2, 21 + MAX_GAP, 5)]


def test_a_range_that_begins_in_front_of_the_last_ones_end_is_read_apart() -> None:
    assert [read.offset for read in shared_reads([1, 1, 1], [50, 40, 49], [10, 10, 10], max_bytes=BIG)] == [50, 40, 49]


def test_a_read_is_no_longer_than_it_may_be_unless_one_range_is() -> None:
    lengths = [60, 40, 1, 500, 10]
    offsets = [0, 60, 100, 101, 601]
    reads = shared_reads([1] * 5, offsets, lengths, max_bytes=100)
    assert [(read.first, read.end, read.length) for read in reads] == [(0, 2, 100), (2, 3, 1), (3, 4, 500), (4, 5, 10)]


def test_a_read_has_no_more_ranges_than_it_may() -> None:
    reads = shared_reads([1] * 5, range(5), [1] * 5, max_bytes=BIG, max_ranges=2)
    assert [(read.first, read.end) for read in reads] == [(0, 2), (2, 4), (4, 5)]


def test_of_no_ranges_there_are_no_reads() -> None:
    assert list(shared_reads([], [], [], max_bytes=BIG)) == []


RANGES = st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(0, 20_000), st.integers(1, 3000)), max_size=30)
ASCENDING = RANGES.map(sorted)


@given(RANGES | ASCENDING, st.integers(1, 20_000), st.none() | st.integers(1, 4))
def test_every_range_is_in_one_read_in_order_and_no_two_reads_could_be_one(
    ranges: list[tuple[int, int, int]], max_bytes: int, max_ranges: int | None
) -> None:
    columns = [list(column) for column in zip(*ranges, strict=True)] or [[], [], []]
    files, offsets, lengths = columns
    reads = list(shared_reads(files, offsets, lengths, max_bytes=max_bytes, max_ranges=max_ranges))
    assert [i for read in reads for i in range(read.first, read.end)] == list(range(len(ranges)))
    content = {file: bytes((7 * at + file) % 251 for at in range(24_000)) for file in (0, 1)}
    for read in reads:
        n = read.end - read.first
        assert n == 1 or (read.length <= max_bytes and n <= (max_ranges or n))
        window = content[files[read.first]][read.offset : read.offset + read.length]
        for i, start in zip(range(read.first, read.end), read.starts(offsets), strict=True):
            wanted = content[files[i]][offsets[i] : offsets[i] + lengths[i]]
            assert (files[i], window[start : start + lengths[i]]) == (files[read.first], wanted)
    for read, following in pairwise(reads):
        i, end = following.first, read.offset + read.length
        assert (
            files[i] != files[read.first]
            or not end <= offsets[i] <= end + MAX_GAP
            or offsets[i] + lengths[i] - read.offset > max_bytes
            or read.end - read.first == max_ranges
        )
