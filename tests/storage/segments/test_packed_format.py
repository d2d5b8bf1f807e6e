"""Packed files: what is packed comes back; damaged and hostile files give no byte that was never written."""

from __future__ import annotations

import random
import struct
import tracemalloc
from itertools import pairwise

import pytest
import xxhash
from backports import zstd
from hypothesis import given
from hypothesis import strategies as st

from topics.storage.segments.packed_format import (
    BLOCK_HEAD_BYTES,
    LEVEL,
    MAX_BLOCK_BYTES,
    MAX_LENGTH,
    MIN_BLOCK_BYTES,
    PACK_HEADER_BYTES,
    PACK_TRAILER_BYTES,
    PackHeader,
    as_written,
    decode_pack_header,
    encode_pack_header,
    inflated_block,
    packed,
    packed_bytes,
    table_at_end,
    table_of,
)
from topics.storage.segments.packed_reads import PackedReads, pack_problems, packed_length, unpacked

GENERATION = 0x1234_5678_9ABC_DEF0


class Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads = 0
        self.read_bytes = 0

    def __call__(self, offset: int, length: int) -> bytes:
        found = self.data[offset : offset + length]
        self.reads += 1
        self.read_bytes += len(found)
        return found


def content(size: int, seed: int = 1) -> bytes:
    """Return bytes that can be compressed."""
    rng = random.Random(seed)
    words = [rng.randbytes(rng.randrange(4, 20)).hex().encode() for _ in range(50)]
    out = bytearray()
    while len(out) < size:
        out += rng.choice(words)
    return bytes(out[:size])


def pack(data: bytes, block_bytes: int = MIN_BLOCK_BYTES, first: int = 7) -> bytes:
    return b"".join(packed([data], PackHeader(GENERATION, first, len(data), block_bytes)))


def all_of(file: bytes) -> bytes | None:
    """Return the unpacked form as a reader gets it; None if the file is not packed."""
    read = Bytes(file)
    table = table_of(read, len(file))
    return None if table is None else PackedReads().read(table, read, 0, 1 << 40)


@given(
    size=st.integers(1, 40_000),
    block=st.sampled_from([MIN_BLOCK_BYTES, 2 * MIN_BLOCK_BYTES, MAX_BLOCK_BYTES]),
    cuts=st.lists(st.integers(0, 40_000), max_size=6),
    places=st.lists(st.tuples(st.integers(0, 41_000), st.integers(0, 41_000)), max_size=8),
)
def test_every_range_reads_as_it_did_before(
    size: int, block: int, cuts: list[int], places: list[tuple[int, int]]
) -> None:
    data = content(size)
    ends = sorted({0, size, *(cut for cut in cuts if cut < size)})
    chunks = [data[a:b] for a, b in pairwise(ends)]
    file = b"".join(packed(chunks, PackHeader(GENERATION, 7, size, block)))
    assert file == pack(data, block), "however it is cut"
    read = Bytes(file)
    reads = PackedReads()
    table = reads.table(read, len(file))
    assert table is not None
    assert table.length == packed_length(read, len(file)) == size
    assert not table.problems
    assert list(pack_problems(read, len(file))) == []
    for offset, length in [*places, (0, size), (0, 1 << 31), (size - 1, 1), (size, 5)]:
        assert reads.read(table, read, offset, length) == data[offset : offset + length]
    assert unpacked(file, size) == data


def test_plain_files_are_not_packed() -> None:
    for data in (b"", b"TOPICS2\0" + bytes(100), content(5000), b"TOPICSZ", pack(content(5000))[:40]):
        assert table_of(Bytes(data), len(data)) is None
        assert packed_length(Bytes(data), len(data)) is None
        assert list(pack_problems(Bytes(data), len(data))) == []


def test_reading_from_front_to_back_unpacks_each_block_once_and_a_single_read_asks_for_one_block() -> None:
    data = content(20 * MIN_BLOCK_BYTES)
    read, reads = Bytes(pack(data)), PackedReads()
    table = reads.table(read, len(read.data))
    assert table is not None
    read.reads = read.read_bytes = 0
    for at in range(0, len(data), 1000):
        assert reads.read(table, read, at, 1000) == data[at : at + 1000]
    assert read.reads == table.header.blocks
    assert read.read_bytes <= len(read.data)
    read.reads = read.read_bytes = 0
    assert reads.read(table, read, 5 * MIN_BLOCK_BYTES + 17, 10) == data[5 * MIN_BLOCK_BYTES + 17 :][:10]
    assert (read.reads, read.read_bytes) in ((0, 0), (1, table.sizes[5]))
    again = reads.table(read, len(read.data))
    assert again is table, "the table is kept"
    read.reads = 0
    by_name = PackedReads()
    assert by_name.object_table("a", read, len(read.data)) == table
    assert read.reads == 1, "the end has all of it"
    assert by_name.object_table("a", read, len(read.data)) == table
    assert read.reads == 1
    by_name.forget("a")
    assert by_name.object_table("a", read, len(read.data)) == table
    assert read.reads == 2


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, MIN_BLOCK_BYTES, 3 * MIN_BLOCK_BYTES - 5])
def test_every_changed_byte_is_found_and_no_wrong_byte_is_read(size: int) -> None:
    data = content(size)
    file = pack(data)
    for at in range(len(file)):
        for flip in (1, 0x80, 0xFF):
            changed = bytearray(file)
            changed[at] ^= flip
            found = all_of(bytes(changed))
            assert found is not None
            assert len(found) == size
            blocks = [found[i : i + MIN_BLOCK_BYTES] for i in range(0, size, MIN_BLOCK_BYTES)]
            good = [data[i : i + MIN_BLOCK_BYTES] for i in range(0, size, MIN_BLOCK_BYTES)]
            bad = [i for i, block in enumerate(blocks) if block != good[i]]
            assert all(blocks[i] == bytes(len(good[i])) for i in bad), at
            assert len(bad) <= 1, f"byte {at} costs {len(bad)} blocks"
            assert list(pack_problems(Bytes(bytes(changed)), len(changed))), f"nobody finds the change of byte {at}"
            table = table_at_end(Bytes(bytes(changed)), len(changed))
            assert table is not None
            assert PackedReads().read(table, Bytes(bytes(changed)), 0, size) == found


def test_a_file_that_was_cut_short_has_its_first_blocks() -> None:
    data = content(4 * MIN_BLOCK_BYTES - 100)
    file = pack(data)
    before = len(data)
    for size in range(len(file) - 1, PACK_HEADER_BYTES - 1, -1):
        found = all_of(file[:size])
        assert found is not None
        assert data.startswith(found), size
        assert len(found) <= before
        assert packed_length(Bytes(file[:size]), size) == len(found)
        assert list(pack_problems(Bytes(file[:size]), size))
        before = len(found)
    assert before == 0
    missing = file[: len(file) - PACK_TRAILER_BYTES]
    assert all_of(missing) == data, "without the end the heads of the blocks are followed"
    garbage = bytes(PACK_HEADER_BYTES) + file[PACK_HEADER_BYTES:]
    assert all_of(garbage) == data, "without the beginning the end says the same"


def test_what_is_there_twice_is_put_right_and_nothing_else() -> None:
    data = content(2 * MIN_BLOCK_BYTES + 99)
    file = pack(data)
    table = table_of(Bytes(file), len(file))
    assert table is not None
    places = zip(table.offsets, table.sizes, strict=True)
    in_blocks = {at for begin, size in places for at in range(begin, begin + size)}
    for at in range(len(file)):
        changed = bytearray(file)
        changed[at] ^= 0x11
        found = table_of(Bytes(bytes(changed)), len(changed))
        assert found is not None
        whole = as_written(found, Bytes(bytes(changed)))
        assert whole == (None if at in in_blocks else file), at
    for size in range(len(file)):
        found = table_of(Bytes(file[:size]), size)
        whole = as_written(found, Bytes(file[:size])) if found is not None else None
        assert whole == (None if size < max(in_blocks) + 1 else file), size


def test_blocks_of_another_place_or_file_do_not_count() -> None:
    data = content(3 * MIN_BLOCK_BYTES)
    file = bytearray(pack(data))
    table = table_of(Bytes(bytes(file)), len(file))
    assert table is not None
    other = b"".join(packed([data], PackHeader(GENERATION + 1, 7, len(data), MIN_BLOCK_BYTES)))
    theirs = table_of(Bytes(other), len(other))
    assert theirs is not None
    assert theirs.sizes == table.sizes, "the same bytes but for checksums"
    for number in range(3):
        assert theirs.sums[number] != table.sums[number]
    mixed = bytes(file[:PACK_HEADER_BYTES]) + other[PACK_HEADER_BYTES:-PACK_TRAILER_BYTES] + bytes(file[-56:])
    assert all_of(mixed) == bytes(len(data))


# ----------------------------------------------------------------- hostile files


def forged(
    header: PackHeader, blocks: list[bytes], *, sizes: list[int] | None = None, table: bytes | None = None
) -> bytes:
    """Return a file with valid checksums and any content. `sizes` are what heads and table say."""
    encoded = encode_pack_header(header)
    sizes = [len(block) for block in blocks] if sizes is None else sizes
    sums = [xxhash.xxh3_64_intdigest(block, header.generation ^ i) for i, block in enumerate(blocks)]
    heads = [struct.pack("<IQ", size, checksum) for size, checksum in zip(sizes, sums, strict=True)]
    listed = b"".join(heads) if table is None else table
    body = b"".join(head + block for head, block in zip(heads, blocks, strict=True))
    return encoded + body + listed + struct.pack("<Q", xxhash.xxh3_64_intdigest(listed, header.generation)) + encoded


def test_the_forger_makes_what_the_writer_makes() -> None:
    data = content(2 * MIN_BLOCK_BYTES + 9)
    blocks = [zstd.compress(data[i : i + MIN_BLOCK_BYTES], LEVEL) for i in range(0, len(data), MIN_BLOCK_BYTES)]
    assert forged(PackHeader(GENERATION, 7, len(data), MIN_BLOCK_BYTES), blocks) == pack(data)


def asking_for(window: int) -> bytes:
    """A block that is what it should be, but says that so much memory is needed to unpack it."""
    options: dict[int, int] = {
        zstd.CompressionParameter.window_log: window.bit_length() - 1,
        zstd.CompressionParameter.content_size_flag: 0,
    }
    compressor = zstd.ZstdCompressor(options=options)
    return compressor.compress(bytes(MIN_BLOCK_BYTES)) + compressor.flush()


def test_blocks_of_every_size_need_no_more_memory_than_is_allowed() -> None:
    for size in (MIN_BLOCK_BYTES, 64 << 10, MAX_BLOCK_BYTES):
        for data in (bytes(size), random.Random(size).randbytes(size)):
            assert inflated_block(zstd.compress(data, LEVEL), size) == data
    assert inflated_block(asking_for(1 << 20), MIN_BLOCK_BYTES) == bytes(MIN_BLOCK_BYTES)
    assert inflated_block(asking_for(2 << 20), MIN_BLOCK_BYTES) is None


@pytest.mark.parametrize(
    "block",
    [
        zstd.compress(bytes(64 << 20)),  # a bomb
        zstd.compress(b""),
        zstd.compress(bytes(MIN_BLOCK_BYTES - 1)),
        zstd.compress(bytes(MIN_BLOCK_BYTES + 1)),
        zstd.compress(bytes(MIN_BLOCK_BYTES)) + b"more",
        zstd.compress(bytes(MIN_BLOCK_BYTES))[:-3],
        zstd.compress(b"x" * 100) + zstd.compress(b"x" * (MIN_BLOCK_BYTES - 100)),
        b"no zstd at all",
        b"\x28\xb5\x2f\xfd",
        bytes(200),
        asking_for(128 << 20),
    ],
    ids=range(11),
)
def test_a_block_that_is_not_the_one_it_should_be_is_zeros_and_takes_no_more_memory(block: bytes) -> None:
    good = zstd.compress(b"y" * MIN_BLOCK_BYTES)
    file = forged(PackHeader(GENERATION, 7, 3 * MIN_BLOCK_BYTES, MIN_BLOCK_BYTES), [good, block, good])
    tracemalloc.start()
    try:
        assert all_of(file) == b"y" * MIN_BLOCK_BYTES + bytes(MIN_BLOCK_BYTES) + b"y" * MIN_BLOCK_BYTES
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert [at for at, _ in pack_problems(Bytes(file), len(file))]


@pytest.mark.parametrize(
    "sizes",
    [[0, 0, 0], [1 << 31, 1, 1], [0xFFFFFFFF] * 3, [20, 20, 2000], [5000, 20, 20], [1, 1, 1]],
)
def test_sizes_that_cannot_be_are_not_believed(sizes: list[int]) -> None:
    blocks = [zstd.compress(b"y" * MIN_BLOCK_BYTES)] * 3
    file = forged(PackHeader(GENERATION, 7, 3 * MIN_BLOCK_BYTES, MIN_BLOCK_BYTES), blocks, sizes=sizes)
    found = all_of(file)
    assert found is not None
    assert not found.strip(b"\0"), "nothing of it verifies"
    assert list(pack_problems(Bytes(file), len(file)))


def test_a_table_that_differs_from_the_heads_is_found() -> None:
    blocks = [zstd.compress(b"y" * MIN_BLOCK_BYTES), zstd.compress(b"z" * MIN_BLOCK_BYTES)]
    header = PackHeader(GENERATION, 7, 2 * MIN_BLOCK_BYTES, MIN_BLOCK_BYTES)
    sums = [xxhash.xxh3_64_intdigest(block, GENERATION ^ i) for i, block in enumerate(blocks)]
    table = b"".join(struct.pack("<IQ", len(block), sums[0]) for block in blocks)
    file = forged(header, blocks, table=table)
    assert all_of(file) == b"y" * MIN_BLOCK_BYTES + bytes(MIN_BLOCK_BYTES)
    assert list(pack_problems(Bytes(file), len(file)))


@pytest.mark.parametrize(
    "header",
    [
        PackHeader(1, 7, 0, 65536),
        PackHeader(1, 7, MAX_LENGTH + 1, 65536),
        PackHeader(1, 7, 1 << 62, 65536),
        PackHeader(1, 7, 100, 0),
        PackHeader(1, 7, 100, 1),
        PackHeader(1, 7, 100, 65535),
        PackHeader(1, 7, 100, 1 << 31),
        PackHeader(1, 7, 100, MIN_BLOCK_BYTES // 2),
        PackHeader(1, 7, 100, MAX_BLOCK_BYTES * 2),
    ],
)
def test_headers_with_numbers_that_cannot_be_are_none(header: PackHeader) -> None:
    assert decode_pack_header(encode_pack_header(header)) is None
    file = encode_pack_header(header) + bytes(200) + encode_pack_header(header)
    assert table_of(Bytes(file), len(file)) is None


def test_a_header_that_promises_more_blocks_than_the_file_has_room_for_costs_nothing() -> None:
    encoded = encode_pack_header(PackHeader(1, 7, MAX_LENGTH, MIN_BLOCK_BYTES))
    file = encoded + bytes(5000) + encoded
    tracemalloc.start()
    try:
        table = table_of(Bytes(file), len(file))
        assert table is not None
        assert (table.found, table.length) == (0, 0)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(data=st.binary(max_size=400), edge=st.integers(0, 120))
def test_any_bytes_behind_a_valid_header_are_read_without_an_exception(data: bytes, edge: int) -> None:
    header = encode_pack_header(PackHeader(GENERATION, 7, 10_000, MIN_BLOCK_BYTES))
    for file in (
        header + data,
        header + data + header,
        data + header,
        header[:edge] + data,
        pack(content(9000))[:edge],
    ):
        found = all_of(file)
        assert found is None or not found.strip(b"\0")
        list(pack_problems(Bytes(file), len(file)))
        packed_length(Bytes(file), len(file))


def test_a_whole_file_is_unpacked_only_to_the_length_that_was_said() -> None:
    file = packed_bytes(content(5000), 3, 1)
    assert unpacked(file, 5000) == content(5000)
    for length in (4999, 5001):
        with pytest.raises(ValueError, match="packed form"):
            unpacked(file, length)
    with pytest.raises(ValueError, match="packed form"):
        unpacked(content(5000), 5000)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.storage.segments.packed_reads.MOST_BLOCKS_BYTES", 3 * MIN_BLOCK_BYTES)
    monkeypatch.setattr("topics.storage.segments.packed_reads.MOST_TABLES_BYTES", 1000)
    reads = PackedReads()
    data = content(10 * MIN_BLOCK_BYTES)
    for generation in range(20):
        read = Bytes(packed_bytes(data, generation, 1) if generation % 2 else pack(data, first=generation))
        table = reads.table(read, len(read.data))
        assert table is not None
        for at in range(0, len(data), MIN_BLOCK_BYTES):
            assert reads.read(table, read, at + 1, 10) == data[at + 1 : at + 11]
    assert reads._block_bytes <= 3 * MIN_BLOCK_BYTES
    assert sum(len(block) for block in reads._blocks.values()) == reads._block_bytes
    assert reads._table_bytes <= 1000


def test_sizes_of_the_layout() -> None:
    assert (PACK_HEADER_BYTES, BLOCK_HEAD_BYTES, PACK_TRAILER_BYTES) == (48, 12, 56)
    file = pack(b"x" * 5000)
    assert file[:8] == b"TOPICSZ1"
    assert file[-48:] == file[:48]
    assert struct.unpack_from("<QQQI", file, 8) == (GENERATION, 7, 5000, 4096)
    assert struct.unpack_from("<Q", file, 40)[0] == xxhash.xxh3_64_intdigest(file[:40])
    size, checksum = struct.unpack_from("<IQ", file, 48)
    assert zstd.decompress(file[60 : 60 + size]) == b"x" * 4096
    assert checksum == xxhash.xxh3_64_intdigest(file[60 : 60 + size], GENERATION)
    assert file[-56 - 24 : -56 - 12] == file[48:60], "the table begins with the head of the first block"
