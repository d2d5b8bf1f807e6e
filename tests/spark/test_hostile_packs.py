"""Packed files that say that they are larger than a segment can be: an executor does not unpack them."""

from __future__ import annotations

from pathlib import Path

import pytest
from backports import zstd

from tests.spark import test_segments as files
from tests.spark.test_segments import of_files, segment_of
from topics.spark.errors import DataLoss, FilesError
from topics.spark.segments import MAX_SEGMENT_BYTES
from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.offline.stored_topics import StoredSegment
from topics.storage.segments import packed_reads
from topics.storage.segments.packed_format import (
    MAX_BLOCK_BYTES,
    BlockTable,
    PackedFile,
    PackHeader,
    checksum_of,
    open_block,
)

left = files.left
__all__ = ["left"]  # a fixture for these tests, too


class _Hostile(PackedFile):
    """A packed file whose blocks are all zeros but for the head of the first: made without their bytes."""

    def __init__(self, header: PackHeader, head: bytes) -> None:
        super().__init__(header)
        self._add_block(head.ljust(header.block_bytes, b"\0"))
        zeros = zstd.compress(bytes(header.block_bytes), 3)
        for number in range(1, header.blocks):
            block = len(zeros).to_bytes(4, "little") + checksum_of(header, number, zeros).to_bytes(8, "little")
            self._table += block
            self._chunks.append(block + zeros)


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each block had that was unpacked."""
    sizes: list[int] = []

    def counted(table: BlockTable, number: int, stored: bytes) -> bytes | None:
        block = open_block(table, number, stored)
        sizes.append(len(block or b""))
        return block

    monkeypatch.setattr(packed_reads, "open_block", counted)
    return sizes


def put(segment: StoredSegment, length: int, salt: int) -> None:
    """Put a packed file in its place that says that it has so many bytes, a whole number of blocks."""
    assert segment.path is not None
    header = PackHeader(9, segment.first, length, MAX_BLOCK_BYTES)
    content = b"".join(_Hostile(header, encode_file_header(salt, segment.first)).finished())
    assert len(content) < length / 1000
    Path(segment.path).write_bytes(content)


def test_a_file_that_unpacks_to_more_than_a_segment_has_is_an_error(left: Path, unpacked: list[int]) -> None:
    """One with another salt than the part knows may have replaced the file since: all of it would count."""
    segment = segment_of(left, "quick", 0)
    assert segment.salt is not None
    length = MAX_SEGMENT_BYTES + MAX_BLOCK_BYTES
    put(segment, length, segment.salt ^ 1)
    expected = f"{segment.path}: it says that it has {length} bytes, and no segment has more than {MAX_SEGMENT_BYTES}"
    with pytest.raises(FilesError, match=expected):
        of_files(left, topics="quick")
    assert sum(unpacked) <= MAX_BLOCK_BYTES, "only the header"


def test_of_the_file_that_the_part_knows_no_more_is_unpacked_than_it_counts(left: Path, unpacked: list[int]) -> None:
    segment = segment_of(left, "quick", 0)
    assert segment.salt is not None
    assert segment.data_bytes < MAX_BLOCK_BYTES
    put(segment, MAX_SEGMENT_BYTES - MAX_SEGMENT_BYTES % MAX_BLOCK_BYTES, segment.salt)
    with pytest.raises(DataLoss) as failure:
        of_files(left, topics="quick", failOnDataLoss="true")
    assert f"{segment.path}: no valid frames at bytes {FILE_HEADER_BYTES} to {segment.data_bytes - 1}" in str(
        failure.value.__cause__
    )
    assert 0 < sum(unpacked) <= 2 * MAX_BLOCK_BYTES
