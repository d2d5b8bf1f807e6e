"""Records that hold frames: what a client can write who knows the formats. Independent of the daemon's own codec.

A tag holds any UTF-8, so the bytes of a frame have to be some. All of a header is below 128 if its values are small;
the first byte of a CBOR map is a continuation byte, so the frame gets a node that ends in the byte before it; and of
the checksums of frames that differ in their times some are UTF-8. (A map or an array inside of a map cannot be had.)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

import cbor2
import xxhash

APPEND: Final = 1
TOPIC_DELETE: Final = 3
EVICT_WATERMARK: Final = 7
SYNCED: Final = 14
HOLE: Final = 16

TRIES: Final = 100_000


def forged(
    kind: int, payload: Mapping[str, Any] | bytes, *, topic_id: int = 0, seq: int = 0, seed: int = 0, node: str = ""
) -> str:
    """A frame as a text. `seed` is 0 in a file of version 1; of any other its salt would have to be known."""
    body = payload if isinstance(payload, bytes) else cbor2.dumps(dict(payload), canonical=True)
    lead = node.encode() + (b"" if isinstance(payload, bytes) else b"\xc2")
    for ts in range(TRIES):
        ascii_ts = (ts & 127) | (ts >> 7 & 127) << 8 | (ts >> 14 & 127) << 16
        frame = struct.pack("<BBQQQHHI", kind, 2 if lead else 0, topic_id, seq, ascii_ts, len(lead), 0, len(body))
        frame += lead + body
        frame += xxhash.xxh3_64(frame, seed).digest()[::-1]
        frame = struct.pack("<I", len(frame)) + frame
        try:
            return frame.decode()
        except UnicodeDecodeError:
            if ts == 0 and not _may_be_text(frame[:-8]):
                break
    raise AssertionError(f"no such frame is a text: {kind} {payload!r}")


def _may_be_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def append(topic_id: int, seq: int, seed: int = 0) -> str:
    """A record that nobody has written."""
    return forged(APPEND, struct.pack("<I", 0) + b'"made up"', topic_id=topic_id, seq=seq, seed=seed)


def frames(seed: int = 0) -> list[str]:
    """Frames of every kind that would do harm if they were believed, in files of one shard with small topic ids."""
    far = 0x707070
    return [
        forged(SYNCED, {"file": 0, "offset": 0x7070}, seed=seed),
        forged(SYNCED, {"file": 0, "offset": far}, seed=seed),
        append(1, far, seed),
        append(2, 5, seed),
        forged(TOPIC_DELETE, {"name": "events"}, topic_id=2, seed=seed),
        forged(EVICT_WATERMARK, {"below": 5, "reason": "cap"}, topic_id=1, seed=seed),
        forged(HOLE, {"first": 11, "last": far, "reason": "corrupt"}, topic_id=1, seed=seed),
    ]
