"""Packed `.data` files: the byte layout, and the only functions that write and read it (`docs/spec/evidence.md`
section 2, `docs/design/packed_segments.md`).

The *unpacked form* of a packed file is the `.data` that it was made from, byte for byte, with the delete flags of that
time. All offsets of records are offsets in it. It is cut into blocks of `block_bytes`, the last one shorter, and each
is compressed by itself with zstd. All integers are little-endian.

    off  size  field
      0     8  magic        b"TOPICSZ1"
      8     8  generation   random, another one for each packed file; the seed of its checksums
     16     8  first        the first seq of the segment, as in the name of the file
     24     8  length       bytes of the unpacked form
     32     4  block_bytes  a power of two, 4 KiB to 1 MiB
     36     4  zero
     40     8  xxh3_64      over the 40 bytes before
     48        the blocks, one behind the other, each
                    4  size     bytes of the compressed block
                    8  xxh3_64  over the compressed block, with the seed generation ^ number of the block
                       the compressed block: one zstd frame
      .        the table: size and checksum of each block again, 12 bytes each
      .     8  xxh3_64  over the table, with the seed generation
      .    48  the header again

The table says where each block is, so that one block is read with one call. It is not needed to find the blocks: if it
or the end of the file is damaged or missing, their heads are followed from the front. Every byte is covered by a
checksum, and the header, the sizes and the checksums are there twice: one changed byte costs at most one block.

Places of blocks are sums of sizes, so blocks cannot overlap, and no number of a file is believed that would need more
memory than the file or one block has.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Final, NamedTuple

import xxhash
from backports import zstd

from topics.log.dumped_values import from_little_endian
from topics.storage.files.file_header import MAGIC as PLAIN_MAGIC

PACK_MAGIC: Final = b"TOPICSZ1"
"""Differs from the magic of a plain file in six bits, so a damaged one is not taken for the other."""

PACK_HEADER_BYTES: Final = 48

BLOCK_HEAD_BYTES: Final = 12

PACK_TRAILER_BYTES: Final = 8 + PACK_HEADER_BYTES

BLOCK_BYTES: Final = 64 << 10
"""Of the unpacked form in one block. Smaller ones compress worse, larger ones make single reads slower
(`docs/design/packed_segments.md`)."""

LEVEL: Final = 3
"""Of zstd. Level 6 makes flights 7 % smaller and takes three times as long."""

TAIL_BYTES: Final = 32 << 10
"""Has the table of a file of 64 MiB, and that of one of 128 MiB."""

MIN_BLOCK_BYTES: Final = 4 << 10
MAX_BLOCK_BYTES: Final = 1 << 20

_NO_LARGER: Final[dict[int, int]] = {zstd.DecompressionParameter.window_log_max: MAX_BLOCK_BYTES.bit_length() - 1}
"""A frame says itself how much memory it needs, up to 128 MiB unless that is refused."""

MAX_LENGTH: Final = (1 << 32) - 1
"""Of an unpacked form: offsets in `.idx` have 32 bits."""

_HEADER: Final = struct.Struct("<8sQQQIIQ")
_SUMMED: Final = 40
_HEAD: Final = struct.Struct("<IQ")
_SUM: Final = struct.Struct("<Q")

Read = Callable[[int, int], bytes]
"""Returns bytes of the file, given offset and length; fewer at its end."""


class PackHeader(NamedTuple):
    """A verified header."""

    generation: int
    first: int
    length: int
    block_bytes: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.length // self.block_bytes)

    def bytes_of(self, number: int) -> int:
        """Return the length of one block, unpacked."""
        return min(self.block_bytes, self.length - number * self.block_bytes)


class BlockTable(NamedTuple):
    """Where the compressed blocks of a file are. `found` is how many there are; fewer than the header says if the file
    was cut short. `problems` are sentences about damage outside of the blocks."""

    header: PackHeader
    offsets: array[int]
    sizes: array[int]
    sums: array[int]
    problems: tuple[str, ...]

    @property
    def found(self) -> int:
        return len(self.sizes)

    @property
    def length(self) -> int:
        """The bytes of the unpacked form that are there."""
        return min(self.header.length, self.found * self.header.block_bytes)


def most_packed(block_bytes: int) -> int:
    """Return the most bytes that a compressed block has."""
    return block_bytes + block_bytes // 128 + 512


def encode_pack_header(header: PackHeader) -> bytes:
    """Return the 48 bytes with which a packed file begins."""
    head = _HEADER.pack(PACK_MAGIC, *header, 0, 0)[:_SUMMED]
    return head + _SUM.pack(xxhash.xxh3_64_intdigest(head))


def decode_pack_header(data: bytes) -> PackHeader | None:
    """Return the header in these bytes; None if they are none that holds, or one with numbers that cannot be."""
    if len(data) < PACK_HEADER_BYTES or not data.startswith(PACK_MAGIC):
        return None
    _, generation, first, length, block_bytes, zero, checksum = _HEADER.unpack_from(data)
    if checksum != xxhash.xxh3_64_intdigest(data[:_SUMMED]) or zero:
        return None
    if not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES or block_bytes & (block_bytes - 1):
        return None
    return PackHeader(generation, first, length, block_bytes) if 0 < length <= MAX_LENGTH else None


# ----------------------------------------------------------------- writing


class PackedFile:
    """A packed file that is being made, in memory."""

    def __init__(self, header: PackHeader) -> None:
        """All bytes that are added have to be as long as the header says."""
        self.header = header
        self._encoded = encode_pack_header(header)
        self._chunks: list[bytes] = [self._encoded]
        self._table = bytearray()
        self._waiting = bytearray()
        self.size = PACK_HEADER_BYTES + PACK_TRAILER_BYTES
        """The bytes of the file, as far as it is made."""

    def add(self, data: bytes) -> None:
        """Add bytes of the unpacked form, and compress the blocks that are full."""
        size = self.header.block_bytes
        waiting = self._waiting
        waiting += data
        is_all = len(self._table) // BLOCK_HEAD_BYTES * size + len(waiting) == self.header.length
        whole = len(waiting) if is_all else len(waiting) - len(waiting) % size
        for at in range(0, whole, size):
            self._add_block(bytes(waiting[at : min(at + size, whole)]))
        del waiting[:whole]

    def _add_block(self, block: bytes) -> None:
        number = len(self._table) // BLOCK_HEAD_BYTES
        assert number < self.header.blocks, "there are more bytes than the header says"
        assert len(block) == self.header.bytes_of(number), (number, len(block))
        stored = zstd.compress(block, LEVEL)
        head = _HEAD.pack(len(stored), checksum_of(self.header, number, stored))
        self._table += head
        self._chunks.append(head + stored)
        self.size += 2 * BLOCK_HEAD_BYTES + len(stored)

    def taken(self) -> Iterator[bytes]:
        """Yield the bytes of the file that were not yielded before, and forget them."""
        chunks, self._chunks = self._chunks, []
        yield from chunks

    def finished(self) -> Iterator[bytes]:
        """Yield what was not taken yet, and the end of the file."""
        assert len(self._table) == BLOCK_HEAD_BYTES * self.header.blocks, "there are less bytes than the header says"
        yield from self.taken()
        table_sum = _SUM.pack(xxhash.xxh3_64_intdigest(self._table, self.header.generation))
        yield bytes(self._table) + table_sum + self._encoded


def packed(chunks: Iterable[bytes], header: PackHeader) -> Iterator[bytes]:
    """Yield the packed file of an unpacked form, given in chunks, which together are as long as the header says."""
    packing = PackedFile(header)
    for chunk in chunks:
        packing.add(chunk)
        yield from packing.taken()
    yield from packing.finished()


def packed_bytes(data: bytes, generation: int, first: int) -> bytes:
    """Return the packed file of a whole unpacked form."""
    return b"".join(packed([data], PackHeader(generation, first, len(data), BLOCK_BYTES)))


def checksum_of(header: PackHeader, number: int, stored: bytes) -> int:
    """Return the checksum of a compressed block."""
    return xxhash.xxh3_64_intdigest(stored, header.generation ^ number)


# ----------------------------------------------------------------- reading


def header_of(read: Read, size: int) -> tuple[PackHeader | None, bool]:
    """Return the header of a file of `size` bytes, None if it is not packed; and True if it is the one at the end that
    was taken, because the one in front is damaged."""
    front = read(0, PACK_HEADER_BYTES)
    header = decode_pack_header(front)
    if header is not None or front.startswith(PLAIN_MAGIC) or size < PACK_HEADER_BYTES + PACK_TRAILER_BYTES:
        return header, False
    return decode_pack_header(read(size - PACK_HEADER_BYTES, PACK_HEADER_BYTES)), True


def table_of(read: Read, size: int) -> BlockTable | None:
    """Return the blocks of a file of `size` bytes; None if it is not packed."""
    header, is_copy = header_of(read, size)
    if header is None:
        return None
    problems = ["the header in front is damaged"] if is_copy else []
    listed = _listed(read, size, header)
    if listed is None:
        problems.append("the block table is damaged or missing")
        listed = _followed(read, size, header)
    if not is_copy and decode_pack_header(read(size - PACK_HEADER_BYTES, PACK_HEADER_BYTES)) != header:
        problems.append("the header at the end is damaged or missing")
    return _table(header, *listed, problems)


def table_at_end(read: Read, size: int) -> BlockTable | None:
    """Return the same with one read as a rule, of the end of the file. The header in front is not looked at, unless
    the end is damaged."""
    begin = max(0, size - TAIL_BYTES)
    tail = read(begin, size - begin)
    header = decode_pack_header(tail[-PACK_HEADER_BYTES:])

    def read_tail(offset: int, length: int) -> bytes:
        at = offset - begin
        return tail[at : at + length] if at >= 0 else read(offset, length)

    listed = _listed(read_tail, size, header) if header is not None else None
    return table_of(read, size) if header is None or listed is None else _table(header, *listed, ())


def _table(header: PackHeader, sizes: array[int], sums: array[int], problems: Iterable[str]) -> BlockTable:
    begins = accumulate((BLOCK_HEAD_BYTES + one for one in sizes), initial=PACK_HEADER_BYTES + BLOCK_HEAD_BYTES)
    offsets = array("Q", [at for at, _ in zip(begins, sizes, strict=False)])
    return BlockTable(header, offsets, sizes, sums, tuple(problems))


def _listed(read: Read, size: int, header: PackHeader) -> tuple[array[int], array[int]] | None:
    """Return sizes and checksums of the blocks by the table; None if it does not hold."""
    count = header.blocks
    length = BLOCK_HEAD_BYTES * count
    at = size - PACK_TRAILER_BYTES - length
    if at < PACK_HEADER_BYTES + length:  # each block has its head as well
        return None
    blob = read(at, length + 8)
    table = blob[:length]
    if len(blob) != length + 8 or _SUM.unpack_from(blob, length)[0] != xxhash.xxh3_64_intdigest(
        table, header.generation
    ):
        return None
    sizes = from_little_endian("I", b"".join(table[i : i + 4] for i in range(0, length, BLOCK_HEAD_BYTES)))
    sums = from_little_endian("Q", b"".join(table[i + 4 : i + 12] for i in range(0, length, BLOCK_HEAD_BYTES)))
    if sum(sizes) + PACK_HEADER_BYTES + length != at or max(sizes) > most_packed(header.block_bytes):
        return None
    return sizes, sums


def _followed(read: Read, size: int, header: PackHeader) -> tuple[array[int], array[int]]:
    """Return sizes and checksums of the blocks that are there, by their heads."""
    sizes, sums = array("I"), array("Q")
    at = PACK_HEADER_BYTES
    for _ in range(header.blocks):
        head = read(at, BLOCK_HEAD_BYTES)
        if len(head) < BLOCK_HEAD_BYTES:
            break
        length, checksum = _HEAD.unpack(head)
        at += BLOCK_HEAD_BYTES + length
        if not 0 < length <= most_packed(header.block_bytes) or at > size:
            break
        sizes.append(length)
        sums.append(checksum)
    return sizes, sums


def open_block(table: BlockTable, number: int, stored: bytes) -> bytes | None:
    """Return the unpacked form of one block; None if the compressed one does not verify, or is not that of a block of
    its length. No more memory is used than a block has."""
    header = table.header
    if len(stored) != table.sizes[number] or checksum_of(header, number, stored) != table.sums[number]:
        return None
    return inflated_block(stored, header.bytes_of(number))


def as_written(table: BlockTable, read: Read) -> bytes | None:
    """Return a whole file as it was when it was written, if only something is damaged that is there twice; None if a
    block is damaged or missing."""
    header = table.header
    if table.found < header.blocks:
        return None
    encoded, listed = encode_pack_header(header), bytearray()
    chunks = [encoded]
    for number in range(table.found):
        stored = read(table.offsets[number], table.sizes[number])
        if open_block(table, number, stored) is None:
            return None
        head = _HEAD.pack(table.sizes[number], table.sums[number])
        listed += head
        chunks += [head, stored]
    table_sum = _SUM.pack(xxhash.xxh3_64_intdigest(listed, header.generation))
    return b"".join([*chunks, listed, table_sum, encoded])


def inflated_block(stored: bytes, size: int) -> bytes | None:
    """Return what was compressed to these bytes; None unless that has `size` bytes."""
    reader = zstd.ZstdDecompressor(options=_NO_LARGER)
    try:
        found = reader.decompress(stored, max_length=size + 1)
    except (zstd.ZstdError, EOFError, MemoryError):
        return None
    return found if len(found) == size and reader.eof and not reader.unused_data else None
