"""The leaf of a record in the Merkle tree of its topic (`docs/spec/evidence.md` section 1).

    SHA-256 of   0x00 | epoch u64 | seq u64 | ts u64 | len u32 node | len u32 tag | len u32 meta | len u32 data

Integers are little-endian, each length is followed by its bytes, and what a record does not have has length 0. The leaf
of a seq that never had a record is SHA-256 of the byte 0x00.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

LEAF_BYTES: Final = 32

BLANK: Final = sha256(b"\x00").digest()
"""The leaf of a seq that never had a record."""

_HEAD: Final = struct.Struct("<xQQQI")
_LEN: Final = struct.Struct("<I")
_HEAD_OF_PLAIN: Final = struct.Struct("<xQQQ12xI")


def record_leaf(epoch: int, seq: int, ts: int, node: bytes, tag: bytes, meta: bytes, data: bytes) -> bytes:
    """Return the leaf of a record. `meta` and `data` are JSON as stored."""
    pack = _LEN.pack
    parts = (
        _HEAD.pack(epoch, seq, ts, len(node)),
        node,
        pack(len(tag)),
        tag,
        pack(len(meta)),
        meta,
        pack(len(data)),
        data,
    )
    return sha256(b"".join(parts)).digest()


def leaves_of(
    epoch: int,
    first_seq: int,
    ts: int,
    datas: Sequence[bytes],
    *,
    nodes: Sequence[str | None] | None,
    tags: Sequence[str | None] | None,
    metas: Sequence[bytes] | None,
) -> bytes:
    """Return the leaves of records with contiguous seqs and one time, one after the other. A column is None if no
    record has such a part."""
    if nodes is None and tags is None and metas is None:
        pack = _HEAD_OF_PLAIN.pack
        plain = [sha256(pack(epoch, seq, ts, len(data)) + data).digest() for seq, data in enumerate(datas, first_seq)]
        return b"".join(plain)
    none = (None,) * len(datas)
    return b"".join(
        record_leaf(
            epoch,
            seq,
            ts,
            node.encode() if node else b"",
            tag.encode() if tag else b"",
            meta or b"",
            data,
        )
        for seq, node, tag, meta, data in zip(
            range(first_seq, first_seq + len(datas)), nodes or none, tags or none, metas or none, datas, strict=True
        )
    )
