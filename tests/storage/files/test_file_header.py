"""The header of a file of version 2, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.storage.files.file_header import (
    FILE_HEADER_BYTES,
    MAGIC,
    BadFileHeader,
    FileHeader,
    decode_file_header,
    encode_file_header,
    first_frame,
    frame_seed,
)

U64 = st.integers(0, 2**64 - 1)


@given(U64, U64, st.binary(max_size=40))
def test_a_header_is_read_back_whatever_follows_it(salt: int, number: int, behind: bytes) -> None:
    blob = encode_file_header(salt, number)
    assert len(blob) == FILE_HEADER_BYTES
    assert decode_file_header(blob + behind) == FileHeader(salt, number)


@given(st.integers(len(MAGIC) * 8, FILE_HEADER_BYTES * 8 - 1))
def test_a_changed_bit_behind_the_magic_is_noticed(bit: int) -> None:
    blob = bytearray(encode_file_header(0x1234_5678_9ABC_DEF0, 77))
    blob[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadFileHeader):
        decode_file_header(bytes(blob))


@given(st.integers(len(MAGIC), FILE_HEADER_BYTES - 1))
def test_a_header_that_is_cut_is_noticed(length: int) -> None:
    with pytest.raises(BadFileHeader):
        decode_file_header(encode_file_header(1, 2)[:length])


@pytest.mark.parametrize("data", [b"", b"\0" * 32, b"TOPICS", b"TOPICS1\0" + bytes(24)])
def test_other_files_are_of_version_1(data: bytes) -> None:
    assert decode_file_header(data) is None


def test_frames_of_version_1_begin_at_once_and_have_no_seed() -> None:
    assert first_frame(None) == 0
    assert frame_seed(None, 4711) == 0


@given(U64, st.integers(0, 2**32), st.integers(0, 2**32))
def test_each_offset_has_a_seed_of_its_own(salt: int, one: int, other: int) -> None:
    assert first_frame(FileHeader(salt, 1)) == FILE_HEADER_BYTES
    assert (frame_seed(salt, one) == frame_seed(salt, other)) is (one == other)
    assert 0 <= frame_seed(salt, one) < 2**64
