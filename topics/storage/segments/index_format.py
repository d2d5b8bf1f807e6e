"""`.idx` files: the byte layout, and the only functions that write and read it (`docs/spec/storage.md` section 4).

An entry; entry i is about seq `first_seq + i`:

    off  size  field
      0     4  offset       of the frame in `.data`; of a hole the reason, see `HOLE_LOST` ... `HOLE_SOURCE_TRIM`
      4     4  len          bytes of the frame, frame_len itself included; 0 where there is none (any more)
      8     8  ts
     16     1  flags        those of `.data`, and IDX_HOLE, IDX_DELETED
     17     3  check        low 24 bits of xxh3_64 over the 17 bytes before

All integers are little-endian. Nothing here does I/O.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import islice, starmap
from typing import Final, NamedTuple

from topics.log.dumped_values import little_endian
from topics.storage.segments.segment_format import strided_column, xxh3

INDEX_ENTRY_BYTES: Final = 20


IDX_HOLE: Final = 0x40


IDX_DELETED: Final = 0x80


HOLE_LOST: Final = 1


HOLE_CORRUPT: Final = 2


HOLE_SOURCE_TRIM: Final = 3


_CHECKED: Final = struct.Struct("17s3x")


_CHECKS_PER_CALL: Final = 1000
"""How many checks one call of C computes. It takes 0.2 ms, during which other threads wait for the interpreter."""


class IndexColumns(NamedTuple):
    """Entries of an `.idx` as columns. `bad` are the positions of entries with a wrong check, whose values must not be
    used."""

    offset: array[int]
    frame_len: array[int]
    ts: array[int]
    flags: bytes
    bad: list[int]


def encode_index(offsets: Sequence[int], lens: Sequence[int], ts: Sequence[int], flags: Sequence[int]) -> bytes:
    """Return the entries of contiguous seqs. A hole has its reason, 0, its time and IDX_HOLE."""
    count = len(offsets)
    entries = bytearray(INDEX_ENTRY_BYTES * count)
    for at, column in ((0, array("I", offsets)), (4, array("I", lens)), (8, array("Q", ts)), (16, array("B", flags))):
        _spread(entries, at, little_endian(column), column.itemsize)
    _spread(entries, 17, _checks(entries), 3)
    return bytes(entries)


def decode_index(blob: bytes) -> IndexColumns:
    """Return all whole entries of `blob`; a torn one at the end is ignored."""
    entries = blob[: len(blob) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES]
    checks = bytearray(len(entries) // INDEX_ENTRY_BYTES * 3)
    for i in range(3):
        checks[i::3] = entries[17 + i :: INDEX_ENTRY_BYTES]
    expected = _checks(entries)
    bad: list[int] = []
    if checks != expected:
        bad = [i for i in range(len(checks) // 3) if checks[3 * i : 3 * i + 3] != expected[3 * i : 3 * i + 3]]
    return IndexColumns(
        offset=strided_column(entries, 0, "I", INDEX_ENTRY_BYTES),
        frame_len=strided_column(entries, 4, "I", INDEX_ENTRY_BYTES),
        ts=strided_column(entries, 8, "Q", INDEX_ENTRY_BYTES),
        flags=entries[16::INDEX_ENTRY_BYTES],
        bad=bad,
    )


def _spread(entries: bytearray, at: int, column: bytes, width: int) -> None:
    """Set the field at `at` of every entry: the inverse of `strided_column`."""
    for i in range(width):
        entries[at + i :: INDEX_ENTRY_BYTES] = column[i::width]


def _checks(entries: bytes | bytearray) -> bytes:
    """Return the correct check of each entry, joined."""
    unpacked = _CHECKED.iter_unpack(entries)
    sums = array("Q")
    while part := array("Q", starmap(xxh3, islice(unpacked, _CHECKS_PER_CALL))):
        sums += part
    joined = little_endian(sums)
    checks = bytearray(len(sums) * 3)
    for i in range(3):
        checks[i::3] = joined[i::8]
    return bytes(checks)
