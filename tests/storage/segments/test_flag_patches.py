"""What flagging deleted records changes in the files of a segment."""

from __future__ import annotations

from topics.storage.segments.flag_patches import PATCH_GAP, PATCH_SEQS, FlagPatch, flag_patches
from topics.storage.segments.index_format import IDX_DELETED, INDEX_ENTRY_BYTES, decode_index, encode_index
from topics.storage.segments.segment_format import delete_flag_offset

FIRST = 11
FRAME = 50


def index_of(n: int, dead: tuple[int, ...] = ()) -> bytes:
    """The `.idx` of `n` frames of `FRAME` bytes, but for the slots that have none any more."""
    lens = [0 if i in dead else FRAME for i in range(n)]
    return encode_index([FRAME * i for i in range(n)], lens, [1000 + i for i in range(n)], bytes(n))


def patched(index: bytes, seqs: list[int]) -> tuple[list[FlagPatch], bytes]:
    patches = list(flag_patches(lambda length, offset: index[offset : offset + length], FIRST, seqs))
    changed = bytearray(index)
    for patch in patches:
        changed[patch.entries_at : patch.entries_at + len(patch.entries)] = patch.entries
    return patches, bytes(changed)


def test_the_entries_of_deleted_records_say_so_and_nothing_else_changes() -> None:
    index = index_of(8)
    patches, changed = patched(index, [FIRST + 2, FIRST + 5])
    before, after = decode_index(index), decode_index(changed)
    assert not after.bad
    assert [i for i, flags in enumerate(after.flags) if flags == IDX_DELETED] == [2, 5]
    assert (after.offset, after.frame_len, after.ts) == (before.offset, before.frame_len, before.ts)
    assert [patch.flags_at for patch in patches] == [[delete_flag_offset(FRAME * i, FRAME) for i in (2, 5)]]


def test_a_record_without_a_frame_has_no_flag() -> None:
    patches, changed = patched(index_of(4, dead=(1,)), [FIRST, FIRST + 1])
    assert patches[0].flags_at == [delete_flag_offset(0, FRAME)]
    assert list(decode_index(changed).flags) == [IDX_DELETED, 0, 0, 0]


def test_records_that_are_far_apart_or_too_many_are_patched_apart() -> None:
    index = index_of(3 * PATCH_SEQS)
    far, _ = patched(index, [FIRST, FIRST + 1, FIRST + 1 + PATCH_GAP])
    assert [list(patch.seqs) for patch in far] == [[FIRST, FIRST + 1], [FIRST + 1 + PATCH_GAP]]
    many, changed = patched(index, list(range(FIRST, FIRST + 3 * PATCH_SEQS)))
    assert [len(patch.seqs) for patch in many] == [PATCH_SEQS] * 3
    assert set(decode_index(changed).flags) == {IDX_DELETED}


def test_where_entries_do_not_verify_or_are_missing_nothing_is_flagged() -> None:
    index = bytearray(index_of(200))
    index[INDEX_ENTRY_BYTES] ^= 1
    patches, _ = patched(bytes(index), [FIRST, FIRST + 1, FIRST + 150, FIRST + 500])
    assert [list(patch.seqs) for patch in patches] == [[FIRST + 150]]
