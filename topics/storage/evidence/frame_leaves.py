"""The leaves of records, from the bodies of their Append frames (`topics.storage.wal.frames`), and from frames of
segments (`topics.storage.segments.segment_format`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from hashlib import sha256
from typing import Final

from topics.evidence.record_leaf import record_leaf
from topics.storage.segments.segment_format import HEADER_BYTES as FRAME_HEADER_BYTES
from topics.storage.segments.segment_format import TRAILER_BYTES
from topics.storage.wal.frames import HAS_ORIGIN, ORIGIN_BYTES

_HEAD_BYTES: Final = 34
"""The fixed fields of a body."""
_PLAIN_HEAD_BYTES: Final = 38
"""The fixed fields of a body, and the length of its meta."""

_FLAGS: Final = struct.Struct("<xB")
_LENGTHS: Final = struct.Struct("<HHI")
_LENGTHS_AT: Final = 26
_FRAME_LENGTHS_AT: Final = 21
"""Where the lengths are in a frame of a segment; its seq and time are before them, as in the leaf."""
_IDENTITY: Final = struct.Struct("<QQQ")
_IDENTITY_AT: Final = 2
_LEN: Final = struct.Struct("<I")
_NO_META: Final = bytes(4)
_NO_PARTS: Final = bytes(12)
"""The lengths of node, tag and meta of a plain record."""


def leaves_of_bodies(bodies: Iterable[bytes]) -> bytes:
    """Return the leaves of the records with these bodies, one after the other. Blocking: two hashes' time for each."""
    out: list[bytes] = []
    add, lengths, pack = out.append, _LENGTHS.unpack_from, _LEN.pack
    for body in bodies:
        node_len, tag_len, payload_len = lengths(body, _LENGTHS_AT)
        if not (node_len or tag_len or body[1] & HAS_ORIGIN) and body[_HEAD_BYTES:_PLAIN_HEAD_BYTES] == _NO_META:
            # Epoch, seq and time are next to each other in the body, in the order of the leaf.
            identity = body[_IDENTITY_AT:_LENGTHS_AT]
            plain = b"\x00" + identity + _NO_PARTS + pack(payload_len - 4) + body[_PLAIN_HEAD_BYTES:]
            add(sha256(plain).digest())
        else:
            add(_leaf_of(body, node_len, tag_len))
    return b"".join(out)


def _leaf_of(body: bytes, node_len: int, tag_len: int) -> bytes:
    epoch, seq, ts = _IDENTITY.unpack_from(body, _IDENTITY_AT)
    (flags,) = _FLAGS.unpack_from(body)
    tag_at = _HEAD_BYTES + node_len
    meta_len_at = tag_at + tag_len + (ORIGIN_BYTES if flags & HAS_ORIGIN else 0)
    meta_at = meta_len_at + _LEN.size
    data_at = meta_at + _LEN.unpack_from(body, meta_len_at)[0]
    node, tag = body[_HEAD_BYTES:tag_at], body[tag_at : tag_at + tag_len]
    return record_leaf(epoch, seq, ts, node, tag, body[meta_at:data_at], body[data_at:])


def leaves_of_frames(epoch: int, window: bytes, starts: Iterable[int], sizes: Iterable[int]) -> bytes:
    """Return the leaves of the records whose segment frames begin at these indices of `window`, and have so many bytes
    on disk. The frames are valid. Blocking."""
    out: list[bytes] = []
    first = b"\x00" + epoch.to_bytes(8, "little")
    for at, size in zip(starts, sizes, strict=True):
        node_len, tag_len, _ = _LENGTHS.unpack_from(window, at + _FRAME_LENGTHS_AT)
        node_at = at + FRAME_HEADER_BYTES
        tag_at = node_at + node_len
        meta_len_at = tag_at + tag_len + (ORIGIN_BYTES if window[at + 4] & HAS_ORIGIN else 0)
        meta_at = meta_len_at + _LEN.size
        data_at = meta_at + _LEN.unpack_from(window, meta_len_at)[0]
        end = at + size - TRAILER_BYTES
        parts = (
            first,
            window[at + 5 : at + _FRAME_LENGTHS_AT],
            _LEN.pack(node_len),
            window[node_at:tag_at],
            _LEN.pack(tag_len),
            window[tag_at : tag_at + tag_len],
            window[meta_len_at:data_at],
            _LEN.pack(end - data_at),
            window[data_at:end],
        )
        out.append(sha256(b"".join(parts)).digest())
    return b"".join(out)
