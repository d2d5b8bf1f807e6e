"""Headers, salts and the search behind bad bytes, of `.data` files of both versions."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate

import pytest
import xxhash

from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.segments import segment_scan
from topics.storage.segments.index_format import encode_index
from topics.storage.segments.segment_format import DataScan, decode_records, encode_copies, moved_frames, scan_data
from topics.storage.segments.segment_scan import (
    SEARCH_WORK,
    SPARE_WORK,
    BadBytes,
    DataLayout,
    IndexEntry,
    entries_of,
    frames_of,
    layout_of,
)
from topics.storage.wal.frames import StoredRecord

SALT = 0xFEDC_BA98_7654_3210
SEQS = range(1, 101)


def a_record(seq: int, tag: bytes = b"") -> StoredRecord:
    return StoredRecord(seq, 1000 + seq, b"", tag, b"", b'"%d"' % seq)


def frames(records: Sequence[StoredRecord], salt: int | None, offset: int) -> list[bytes]:
    made = encode_copies(records, [None] * len(records), salt=salt, offset=offset)
    ends = list(accumulate(made.frame_lens))
    return [made.data[end - size : end] for end, size in zip(ends, made.frame_lens, strict=True)]


def a_file(records: Sequence[StoredRecord], salt: int | None = SALT) -> tuple[bytes, list[int]]:
    """A `.data`, and where its frames begin."""
    head = encode_file_header(salt, records[0].seq) if salt is not None else b""
    made = frames(records, salt, len(head))
    starts = list(accumulate(map(len, made), initial=len(head)))
    return head + b"".join(made), starts[:-1]


def read(
    content: bytes, layout: DataLayout, entries: Sequence[IndexEntry] | None = None
) -> tuple[list[int], list[BadBytes]]:
    """The seqs of the frames of a file, and its bad ranges."""
    seqs: list[int] = []
    bad: list[BadBytes] = []
    for found in frames_of(lambda at, n: content[at : at + n], layout, len(content), SEQS, lambda: entries):
        if isinstance(found, BadBytes):
            bad.append(found)
        else:
            seqs += found.seq
    return seqs, bad


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def forged(seq: int, at: int, seed: int = 0) -> bytes:
    """A frame of a record with this seq, such as a client can put into a tag."""
    (made,) = frames([a_record(seq)], None, at)
    body = made[4:-9]
    return made[:-9] + struct.pack("<Q", xxhash.xxh3_64_intdigest(body, seed)) + made[-1:]


# ----------------------------------------------------------------- the header


def test_any_single_bit_of_a_header_may_change() -> None:
    content, _ = a_file([a_record(seq) for seq in range(1, 9)])
    for bit in range(8 * FILE_HEADER_BYTES):
        for known in (SALT, None):
            layout = layout_of(flipped(content, bit)[:FILE_HEADER_BYTES], 1, known)
            assert (layout.salt, layout.start, layout.damage is not None) == (SALT, FILE_HEADER_BYTES, True)


def test_a_header_that_is_gone_costs_nothing_where_the_part_knows_the_salt_and_everything_where_it_does_not() -> None:
    content, _ = a_file([a_record(seq) for seq in range(1, 9)])
    damaged = b"TOPICS2" + bytes(FILE_HEADER_BYTES - 7) + content[FILE_HEADER_BYTES:]
    assert read(damaged, layout_of(damaged[:32], 1, SALT)) == (list(range(1, 9)), [])
    assert read(damaged, layout_of(damaged[:32], 1, None)) == ([], [BadBytes(0, len(damaged))])
    empty = bytes(FILE_HEADER_BYTES) + content[FILE_HEADER_BYTES:]
    assert read(empty, layout_of(empty[:32], 1, SALT)) == (list(range(1, 9)), [])


def test_a_file_that_is_known_to_be_of_version_2_is_never_read_as_one_of_version_1() -> None:
    old, _ = a_file([a_record(seq) for seq in range(1, 9)], None)
    assert read(old, layout_of(old[:32], 1, None)) == (list(range(1, 9)), [])
    seqs, bad = read(old, layout_of(old[:32], 1, SALT))
    assert (seqs, bad) == ([], [BadBytes(FILE_HEADER_BYTES, len(old))])


def test_the_header_decides_over_a_part_that_is_older_than_the_file() -> None:
    content, _ = a_file([a_record(seq) for seq in range(1, 9)])
    layout = layout_of(content[:32], 1, SALT + 1)
    assert (layout.salt, layout.damage) == (SALT, None)
    assert layout_of(content[:32], 1, None).salt == SALT


def test_the_header_of_another_segment_is_damage() -> None:
    content, _ = a_file([a_record(seq) for seq in range(1, 9)])
    layout = layout_of(content[:32], 2, 7)
    assert layout.salt == 7
    assert layout.damage is not None


def test_a_file_that_ends_within_its_header_or_before_has_no_frames() -> None:
    content, _ = a_file([a_record(1)])
    for length in range(FILE_HEADER_BYTES):
        layout = layout_of(content[:length], 1, SALT)
        assert layout.damage is not None
        assert read(content[:length], layout) == ([], [])


# ----------------------------------------------------------------- the search


@pytest.mark.parametrize("salt", [SALT, None])
def test_frames_go_on_behind_a_changed_bit(salt: int | None) -> None:
    content, starts = a_file([a_record(seq, b"tag" * (seq % 3)) for seq in range(1, 9)], salt)
    layout = layout_of(content[:32], 1, salt)
    for bit in range(8 * starts[3], 8 * (starts[4] - 1)):
        assert read(flipped(content, bit), layout) == ([1, 2, 3, 5, 6, 7, 8], [BadBytes(starts[3], starts[4])])


def test_frames_within_a_record_are_none_in_a_file_with_a_salt() -> None:
    head = FILE_HEADER_BYTES
    for bit in range(8 * 29):
        forgeries = [
            forged(2, head),
            forged(50, head + 100, 0),
            forged(2, 0, head),
            *frames([a_record(60)], SALT, head),
        ]
        records = [a_record(1, b"".join(forgeries)), a_record(2), a_record(3)]
        content, starts = a_file(records)
        found = read(flipped(content, 8 * starts[0] + bit), layout_of(content[:32], 1, SALT))
        assert found == ([2, 3], [BadBytes(starts[0], starts[1])])


def test_in_a_file_without_a_salt_the_index_says_where_frames_are() -> None:
    content, starts = a_file([a_record(1, forged(1, 0) + forged(50, 0)), a_record(2), a_record(3)], None)
    lens = [b - a for a, b in zip(starts, [*starts[1:], len(content)], strict=True)]
    entries = entries_of(encode_index(starts, lens, [1, 2, 3], [1, 0, 0]), 1, 3)
    layout = layout_of(content[:32], 1, None)
    for bit in range(8 * 29):
        damaged = flipped(content, bit)
        assert read(damaged, layout, entries) == ([2, 3], [BadBytes(0, starts[1])])
    # Without it what the frame says of its own length comes first.
    assert read(flipped(content, 8 * 6), layout) == ([2, 3], [BadBytes(0, starts[1])])


def test_the_search_never_goes_back_in_seq_and_never_beyond_the_segment() -> None:
    for seq in (1, 101, 2**40):
        content, starts = a_file([a_record(1), a_record(2, forged(seq, 0)), a_record(3)], None)
        damaged = flipped(content, 8 * starts[1])  # its length
        assert read(damaged, layout_of(content[:32], 1, None)) == ([1, 3], [BadBytes(starts[1], starts[2])])


def test_an_index_that_contradicts_itself_names_nothing() -> None:
    assert entries_of(encode_index([0, 50], [50, 50], [1, 2], [0, 0]), 1, 2) == [
        IndexEntry(0, 50, 1),
        IndexEntry(50, 50, 2),
    ]
    assert entries_of(encode_index([0, 49], [50, 50], [1, 2], [0, 0]), 1, 2) is None
    assert entries_of(encode_index([0, 50], [50, 20], [1, 2], [0, 0]), 1, 2) is None
    assert entries_of(encode_index([0], [50], [1], [0]), 1, 2) is None
    assert entries_of(flipped(encode_index([0], [50], [1], [0]), 3), 1, 1) is None


@pytest.mark.parametrize("salt", [SALT, None])
def test_a_chain_of_forged_lengths_costs_no_more_than_some_times_the_file(
    salt: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 19
    heads = []
    for at in range(0, size - 64, 29):  # each claims to reach to the end
        data_len = size - at - 29 - 9
        heads.append(struct.pack("<IBQQHHI", size - at - 4, 0, 5, 5, 0, 0, data_len))
    content = b"".join(heads)
    content += bytes(size - len(content))
    if salt is not None:
        content = encode_file_header(salt, 1) + content[FILE_HEADER_BYTES:]
    hashed = 0
    real = scan_data

    def counted(window: bytes, base: int, *, end: int, salt: int | None = None) -> DataScan:
        nonlocal hashed
        hashed += len(window)
        return real(window, base, end=end, salt=salt)

    monkeypatch.setattr(segment_scan, "scan_data", counted)
    layout = layout_of(content[:32], 1, salt)
    assert read(content, layout) == ([], [BadBytes(layout.start, len(content))])
    assert size < hashed <= SEARCH_WORK * size + SPARE_WORK + 2 * size


# ----------------------------------------------------------------- frames that move


@pytest.mark.parametrize("salt", [SALT, None])
def test_frames_that_move_to_another_file_are_those_that_would_have_been_written_there(salt: int | None) -> None:
    records = [a_record(seq, b"t" * (seq % 4)) for seq in range(1, 30)]
    content, starts = a_file(records, salt)
    lens = array("I", (b - a for a, b in zip(starts, [*starts[1:], len(content)], strict=True)))
    base = starts[3]
    chosen = slice(5, 20)
    places = [at - base for at in starts[chosen]]
    moved = moved_frames(content[base:], places, lens[chosen], salt=salt, base=base, to=99, offset=1234)
    assert moved == b"".join(frames(records[chosen], 99, 1234))
    bad = flipped(content, 8 * (starts[7] + 31))
    moved = moved_frames(bad[base:], places, lens[chosen], salt=salt, base=base, to=99, offset=1234)
    ends = accumulate(lens[chosen], initial=0)
    again = decode_records(moved, list(ends)[:-1], lens[chosen], range(6, 21), salt=99, base=1234)
    assert again[1] == [8], "damage must not be given a checksum that holds"
    cut = moved_frames(content[base : starts[18]], places, lens[chosen], salt=salt, base=base, to=99, offset=1234)
    assert len(cut) == sum(lens[chosen])
    ends = accumulate(lens[chosen], initial=0)
    assert decode_records(cut, list(ends)[:-1], lens[chosen], range(6, 21), salt=99, base=1234)[1] == [19, 20]


def test_a_frame_at_another_place_of_its_own_file_is_none() -> None:
    content, starts = a_file([a_record(seq) for seq in range(1, 5)])
    a, b, c = starts[0], starts[1], starts[2]
    swapped = content[:a] + content[b:c] + content[a:b] + content[c:]
    seqs, bad = read(swapped, layout_of(content[:32], 1, SALT))
    assert (seqs, bad) == ([3, 4], [BadBytes(a, c)])
