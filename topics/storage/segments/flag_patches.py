"""The changes that flag deleted records in the files of a segment: bits in `.idx`, bytes in `.data`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from topics.storage.segments.index_format import IDX_DELETED, INDEX_ENTRY_BYTES, decode_index, encode_index
from topics.storage.segments.segment_format import delete_flag_offset

PATCH_SEQS: Final = 1000
"""The most seqs that one patch covers."""

PATCH_GAP: Final = 64
"""Two deleted records share a patch if they are closer together than so many seqs."""


class FlagPatch(NamedTuple):
    """Some entries of an `.idx` with their deleted bits set, and where the flags of the same records are in `.data`."""

    entries_at: int
    entries: bytes
    flags_at: list[int]
    seqs: Sequence[int]


def flag_patches(read: Callable[[int, int], bytes], first: int, seqs: Sequence[int]) -> Iterable[FlagPatch]:
    """Return the patches that flag these seqs (ascending) of a segment. `read(length, offset)` reads its `.idx`.

    Seqs whose entries are missing or do not verify are left out, because the places of their flags are unknown.
    """
    at = 0
    while at < len(seqs):
        to = at + 1
        while to < len(seqs) and seqs[to] - seqs[to - 1] < PATCH_GAP and seqs[to] - seqs[at] < PATCH_SEQS:
            to += 1
        lo, hi = seqs[at] - first, seqs[to - 1] - first + 1
        blob = read(INDEX_ENTRY_BYTES * (hi - lo), INDEX_ENTRY_BYTES * lo)
        if len(blob) == INDEX_ENTRY_BYTES * (hi - lo):
            index = decode_index(blob)
            if not index.bad:
                flags, flags_at = bytearray(index.flags), []
                for seq in seqs[at:to]:
                    i = seq - first - lo
                    if index.frame_len[i]:
                        flags[i] |= IDX_DELETED
                        flags_at.append(delete_flag_offset(index.offset[i], index.frame_len[i]))
                blob = encode_index(index.offset, index.frame_len, index.ts, bytes(flags))
                yield FlagPatch(INDEX_ENTRY_BYTES * lo, blob, flags_at, seqs[at:to])
        at = to
