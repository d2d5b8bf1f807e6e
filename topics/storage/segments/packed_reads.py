"""Reading packed files: bytes of the unpacked form by offset and length, over anything that gives bytes of the file.

A block that does not verify reads as zeros, which are no valid frame. So a reader of records finds the damage at its
place, as in a plain file, and deals with it in the same way. Tables and the last blocks that were unpacked are kept, by
the generation of the file, which no other file has.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from topics.storage.segments.packed_format import (
    BLOCK_HEAD_BYTES,
    PACK_HEADER_BYTES,
    PACK_TRAILER_BYTES,
    BlockTable,
    PackHeader,
    Read,
    decode_pack_header,
    header_of,
    open_block,
    table_at_end,
    table_of,
)

MOST_BLOCKS_BYTES: Final = 8 << 20
"""Unpacked blocks that are kept, because each read of a segment from front to back begins in the last block of the read
before."""

MOST_TABLES_BYTES: Final = 8 << 20
"""Of block tables that are kept."""

_ENTRY_BYTES: Final = 20
"""Of memory that a block has in a table."""


class PackedReads:
    """Reads packed files, and remembers some of what it has read. May be called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: OrderedDict[PackHeader | str, BlockTable] = OrderedDict()
        self._table_bytes = 0
        self._blocks: OrderedDict[tuple[PackHeader, int], bytes] = OrderedDict()
        self._block_bytes = 0

    def table(self, read: Read, size: int) -> BlockTable | None:
        """Return the blocks of a file of `size` bytes; None if it is not packed."""
        header, is_copy = header_of(read, size)
        if header is None:
            return None
        known = self.known_table(header) if not is_copy else None
        if known is not None:
            return known
        found = table_of(read, size)
        self._keep_table(header, found)
        return found

    def object_table(self, name: str, read: Read, size: int) -> BlockTable | None:
        """Return the blocks of an object of `size` bytes, whose name stands for the same bytes for ever; None if it is
        not packed. One read, once."""
        known = self.known_table(name)
        if known is not None:
            return known
        found = table_at_end(read, size)
        self._keep_table(name, found)
        return found

    def known_table(self, key: PackHeader | str) -> BlockTable | None:
        """Return the blocks of the file that begins with a header, or has a name, if they are in memory."""
        with self._lock:
            known = self._tables.get(key)
            if known is not None:
                self._tables.move_to_end(key)
            return known

    def forget(self, name: str) -> None:
        """Forget the blocks of an object: what was read of it may not verify."""
        with self._lock:
            gone = self._tables.pop(name, None)
            if gone is not None:
                self._table_bytes -= _ENTRY_BYTES * gone.found

    def _keep_table(self, key: PackHeader | str, found: BlockTable | None) -> None:
        if found is None or found.problems:
            return
        with self._lock:
            if key not in self._tables:
                self._table_bytes += _ENTRY_BYTES * found.found
            self._tables[key] = found
            while self._table_bytes > MOST_TABLES_BYTES and len(self._tables) > 1:
                _, gone = self._tables.popitem(last=False)
                self._table_bytes -= _ENTRY_BYTES * gone.found

    def read(self, table: BlockTable, read: Read, offset: int, length: int) -> bytes:
        """Return `length` bytes of the unpacked form from `offset` on; fewer at its end. Raises what `read` raises."""
        end = min(offset + length, table.length)
        if end <= offset:
            return b""
        size = table.header.block_bytes
        first, last = offset // size, (end - 1) // size
        blocks = list(self._blocks_of(table, read, first, last))
        ends_inside = end % size != 0 and end < table.length
        if ends_inside or first == last:
            self._keep(table, last, blocks[-1])
        zeros = (bytes(table.header.bytes_of(number)) for number in range(first, last + 1))
        whole = b"".join(block if block is not None else zero for block, zero in zip(blocks, zeros, strict=True))
        return whole[offset - first * size : end - first * size]

    def _blocks_of(self, table: BlockTable, read: Read, first: int, last: int) -> Iterator[bytes | None]:
        """Yield blocks, unpacked; None for one that does not verify. One call reads all that are not known."""
        known = self._known(table, first)
        if known is not None:
            yield known
            first += 1
        if first > last:
            return
        begin = table.offsets[first]
        stored = memoryview(read(begin, table.offsets[last] + table.sizes[last] - begin))
        for number in range(first, last + 1):
            at = table.offsets[number] - begin
            yield open_block(table, number, bytes(stored[at : at + table.sizes[number]]))

    def _known(self, table: BlockTable, number: int) -> bytes | None:
        key = table.header, number
        with self._lock:
            found = self._blocks.get(key)
            if found is not None:
                self._blocks.move_to_end(key)
            return found

    def _keep(self, table: BlockTable, number: int, block: bytes | None) -> None:
        if block is None:
            return
        key = table.header, number
        with self._lock:
            if key not in self._blocks:
                self._block_bytes += len(block)
            self._blocks[key] = block
            while self._block_bytes > MOST_BLOCKS_BYTES:
                _, gone = self._blocks.popitem(last=False)
                self._block_bytes -= len(gone)


def packed_length(read: Read, size: int) -> int | None:
    """Return the length of the unpacked form, as far as it is there; None for a plain file. Two reads, unless the end
    of the file is damaged."""
    header, is_copy = header_of(read, size)
    if header is None:
        return None
    is_whole = size >= PACK_HEADER_BYTES + PACK_TRAILER_BYTES and (
        is_copy or decode_pack_header(read(size - PACK_HEADER_BYTES, PACK_HEADER_BYTES)) == header
    )
    if is_whole:
        return header.length
    table = table_of(read, size)
    return table.length if table is not None else 0


def unpacked(data: bytes, length: int) -> bytes:
    """Return the unpacked form of a whole packed file, which has `length` bytes. Raises ValueError if it is no packed
    file of this length; blocks that do not verify are zeros."""

    def read(offset: int, length: int) -> bytes:
        return data[offset : offset + length]

    table = table_of(read, len(data))
    if table is None or table.length != length:
        raise ValueError(f"it is not the packed form of {length} bytes")
    return PackedReads().read(table, read, 0, length)


def pack_problems(read: Read, size: int) -> Iterator[tuple[int, str]]:
    """Yield the damage of a packed file of `size` bytes, as offsets and sentences; nothing for a plain file."""
    table = table_of(read, size)
    if table is None:
        return
    for problem in table.problems:
        yield 0 if "front" in problem else size, problem
    header = table.header
    for number in range(table.found):
        begin = table.offsets[number] - BLOCK_HEAD_BYTES
        whole = read(begin, BLOCK_HEAD_BYTES + table.sizes[number])
        head = table.sizes[number].to_bytes(4, "little") + table.sums[number].to_bytes(8, "little")
        at = number * header.block_bytes
        what = f"block {number} (bytes {at} to {at + header.bytes_of(number)} of the unpacked form)"
        if open_block(table, number, whole[BLOCK_HEAD_BYTES:]) is None:
            yield begin, f"{what} does not verify"
        if whole[:BLOCK_HEAD_BYTES] != head:
            yield begin, f"the head of {what} differs from the block table"
    if table.found < header.blocks:
        yield size, f"{header.blocks - table.found} of {header.blocks} blocks are missing"
