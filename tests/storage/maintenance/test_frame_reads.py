"""Which reads fetch the frames of captured records."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from topics.log.record_index import RawRun
from topics.log.span import DELETED, FLAG_DERIVED, LIVE
from topics.storage.maintenance.frame_reads import (
    CHUNK_BYTES,
    CHUNK_RECORDS,
    READ_BYTES,
    READ_GAP,
    READ_SLACK,
    FrameRead,
    chunks,
    frame_reads,
)


def run_of(*slots: tuple[int, int, int], dead: tuple[int, ...] = (), copies: tuple[int, ...] = ()) -> RawRun:
    """Records from seq 1 on, each with its file, offset and length."""
    files, offsets, lens = zip(*slots, strict=True)
    n = len(slots)
    return RawRun(
        1,
        array("Q", range(n)),
        array("I", files),
        array("Q", offsets),
        array("I", lens),
        array("I", lens),
        bytes(FLAG_DERIVED if i in copies else 0 for i in range(n)),
        bytes(DELETED if i in dead else LIVE for i in range(n)),
    )


def ranges(reads: list[FrameRead]) -> list[tuple[int, int, int, list[int]]]:
    return [(read.file, read.offset, read.length, list(read.slots)) for read in reads]


def test_what_lies_one_behind_the_other_is_one_read() -> None:
    reads = frame_reads(run_of((3, 100, 10), (3, 110, 20), (3, 130, 5)), 0, 3)
    assert ranges(reads) == [(3, 100, 35, [0, 1, 2])]
    assert list(reads[0].starts) == [0, 10, 30]
    assert [list(values) for values in reads[0].part(1, 3)[3:5]] == [[1, 2], [10, 30]]


def test_dead_records_are_not_read() -> None:
    run = run_of((3, 0, 10), (3, 10, 2 * READ_GAP), (3, 10 + 2 * READ_GAP, 10), dead=(1,))
    assert ranges(frame_reads(run, 0, 3)) == [(3, 0, 10, [0]), (3, 10 + 2 * READ_GAP, 10, [2])]
    assert frame_reads(run, 1, 2) == []


def test_another_file_and_another_kind_of_record_are_other_reads() -> None:
    run = run_of((3, 0, 10), (4, 10, 10), (4, 20, 10), copies=(2,))
    reads = frame_reads(run, 0, 3)
    assert ranges(reads) == [(3, 0, 10, [0]), (4, 10, 10, [1]), (4, 20, 10, [2])]
    assert [read.derived for read in reads] == [False, False, True]


def test_a_read_across_much_of_a_file_is_made_if_little_of_it_is_not_wanted() -> None:
    near = run_of((3, 0, 10), (3, READ_SLACK, 10))
    assert len(frame_reads(near, 0, 2)) == 1
    far = run_of((3, 0, 10), (3, READ_SLACK + 100, 10))
    assert len(frame_reads(far, 0, 2)) == 2


FRAMES = (
    (0, 20),
    (20, 300),
    (320, READ_BYTES),
    (320 + READ_BYTES, 20),
    (340 + READ_BYTES + READ_GAP, 300),
    (640 + READ_BYTES + 3 * READ_GAP, READ_BYTES),
    (640 + 2 * READ_BYTES + 2 * READ_SLACK, 20),
)
"""Offsets and lengths of the frames of a file. Frames do not overlap; copies name one of them any number of times."""

SLOTS = st.lists(
    st.tuples(st.integers(1, 2), st.sampled_from(FRAMES)).map(lambda slot: (slot[0], *slot[1])), min_size=1, max_size=12
)


@given(SLOTS, st.sets(st.integers(0, 11)), st.sets(st.integers(0, 11)))
def test_each_live_record_is_in_one_read_which_holds_all_of_it(
    slots: list[tuple[int, int, int]], dead: set[int], copies: set[int]
) -> None:
    run = run_of(*slots, dead=tuple(dead), copies=tuple(copies))
    found = []
    for read in frame_reads(run, 0, len(slots)):
        for slot, start in zip(read.slots, read.starts, strict=True):
            found.append(slot)
            assert (read.file, read.offset + start) == slots[slot][:2]
            assert 0 <= start <= start + slots[slot][2] <= read.length
            assert read.derived is (slot in copies)
    assert found == [i for i in range(len(slots)) if i not in dead]


def test_chunks_follow_each_other_and_are_of_bounded_size() -> None:
    small = run_of(*[(1, 20 * i, 20) for i in range(2 * CHUNK_RECORDS + 1)])
    assert list(chunks(small, 0, 2 * CHUNK_RECORDS + 1)) == [
        (0, CHUNK_RECORDS),
        (CHUNK_RECORDS, 2 * CHUNK_RECORDS),
        (2 * CHUNK_RECORDS, 2 * CHUNK_RECORDS + 1),
    ]
    large = run_of(*[(1, i * CHUNK_BYTES, CHUNK_BYTES - 1 + i) for i in range(3)])
    assert list(chunks(large, 0, 3)) == [(0, 1), (1, 2), (2, 3)], "one at least, however long it is"
