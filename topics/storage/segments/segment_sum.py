"""The SHA-256 of a sealed segment (`docs/design/segments.md` section 7).

It is over the bytes of `.data` that count, in their unpacked form, from the header on, with every delete flag taken as
zero. So it stays the same when records are deleted, and when the segment is packed, moved to a cold directory or a
bucket, restored or repaired. A segment that is rewritten or merged is another file, and gets another one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from topics.storage.segments.segment_format import LIVE_FLAG
from topics.storage.segments.segment_scan import Read

CHUNK_BYTES: Final = 1 << 20
"""Bytes that are read at a time."""


class SegmentSum:
    """The SHA-256 of a segment whose bytes come one after another. Its calls compute: they are for worker threads."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, data: bytes | bytearray | memoryview) -> None:
        """Add bytes in which no delete flag is set."""
        self._hash.update(data)

    def add_flagged(self, data: bytes, flags_at: Iterable[int]) -> None:
        """Add bytes that have delete flags at these indices."""
        cleared = None
        for at in flags_at:
            if data[at] != LIVE_FLAG:
                cleared = bytearray(data) if cleared is None else cleared
                cleared[at] = LIVE_FLAG
        self._hash.update(data if cleared is None else cleared)

    def add_frames(self, data: bytes, frame_lens: Iterable[int]) -> None:
        """Add frames that follow one another; `frame_lens` are their bytes on disk."""
        self.add_flagged(data, [end - 1 for end in accumulate(frame_lens)])

    def digest(self) -> bytes:
        """Return the SHA-256 of all bytes so far."""
        return self._hash.digest()


def add_file(total: SegmentSum, read: Read, length: int, flags_at: array[int]) -> bool:
    """Add the first `length` bytes of a `.data`, given the positions of its delete flags, ascending. Return False if
    there are fewer bytes. Blocking; raises what `read` raises."""
    at = flag = 0
    while at < length:
        data = read(at, min(CHUNK_BYTES, length - at))
        if not data:
            return False
        end, first = at + len(data), flag
        while flag < len(flags_at) and flags_at[flag] < end:
            flag += 1
        total.add_flagged(data, [position - at for position in flags_at[first:flag]])
        at = end
    return True
