"""Leaves of a topic that no `.mrk` file has any more, computed from the records in its segments.

A lost file of leaves is damage. Its leaves can be computed again as long as the records are there: deleted ones, too,
until their segment is rewritten. Whether the leaves are those that were lost is not known here; the root of the tree
tells.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from topics.evidence.record_leaf import BLANK, LEAF_BYTES
from topics.storage.evidence.frame_leaves import leaves_of_frames
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.offline.topic_parts import StoredHole
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_scan import BadBytes, frames_of, layout_of
from topics.storage.segments.topic_segments import Segment

MOST_SLOTS: Final = 1 << 20
"""Of a segment; the settings allow a million. A part may be forged, and memory is taken for what it says."""

_NEVER_THERE = ("lost", "source_trim")
"""Reasons of holes whose seqs, as far as a hole says, never had a record."""


class ContentLeaves:
    """The leaves of one topic, as its segments have them. Blocking; keeps those of one segment: 32 MB at most."""

    def __init__(
        self, tiers: SegmentTiers, topic_id: int, segments: Sequence[Segment], holes: Sequence[StoredHole]
    ) -> None:
        self._tiers = tiers
        self._topic_id = topic_id
        self._segments = sorted(segments, key=lambda segment: segment.first)
        self._holes = [hole for hole in holes if hole.reason in _NEVER_THERE]
        self._kept: Segment | None = None
        self._leaves = bytearray()
        self._has = bytearray()
        self.first_seq: int | None = None
        """The first seq whose leaf was asked for and found; None if none was."""
        self.found = 0
        """The number of leaves that were found."""

    def leaves(self, seq: int, end_seq: int) -> bytes:
        """Return one or more leaves from `seq` on, of seqs below `end_seq`; b"" if no segment has the record. Raises
        OSError."""
        out = self._of_holes(seq, end_seq) or self._of_records(seq, end_seq)
        if out:
            self.first_seq = seq if self.first_seq is None else min(self.first_seq, seq)
            self.found += len(out) // LEAF_BYTES
        return out

    def _of_holes(self, seq: int, end_seq: int) -> bytes:
        for hole in self._holes:
            if hole.first <= seq <= hole.last:
                return BLANK * (min(hole.last + 1, end_seq) - seq)
        return b""

    def _of_records(self, seq: int, end_seq: int) -> bytes:
        at = bisect_right(self._segments, seq, key=lambda segment: segment.first) - 1
        if at < 0 or seq >= self._segments[at].end:
            return b""
        segment = self._segments[at]
        if segment is not self._kept:
            self._read(segment)
        slot = seq - segment.first
        last = min(end_seq, segment.end) - segment.first
        missing = self._has.find(0, slot, last)
        return bytes(self._leaves[slot * LEAF_BYTES : (last if missing < 0 else missing) * LEAF_BYTES])

    def _read(self, segment: Segment) -> None:
        """Compute the leaves of all records of a segment, unless it cannot be one."""
        self._kept = segment
        self._leaves, self._has = bytearray(), bytearray()
        store = self._tiers.hot if segment.tier == "hot" else self._tiers.cold
        if segment.tier == "gone" or store is None or segment.n > MOST_SLOTS:
            return
        self._leaves, self._has = bytearray(segment.n * LEAF_BYTES), bytearray(segment.n)
        name = segment_name(segment.first, "data")

        def read(offset: int, length: int) -> bytes:
            return store.read_range(self._topic_id, name, offset, length)

        try:
            end = min(store.length(self._topic_id, name), segment.data_bytes)
            layout = layout_of(read(0, FILE_HEADER_BYTES), segment.first, segment.salt)
            for rows in frames_of(read, layout, end, range(segment.first, segment.end)):
                if isinstance(rows, BadBytes):
                    continue
                base = rows.offset[0]
                window = read(base, rows.offset[-1] + rows.frame_len[-1] - base)
                starts = [offset - base for offset in rows.offset]
                found = leaves_of_frames(self._topic_id, window, starts, rows.frame_len)
                for n, seq in enumerate(rows.seq):
                    slot = seq - segment.first
                    if 0 <= slot < segment.n:
                        self._leaves[slot * LEAF_BYTES : (slot + 1) * LEAF_BYTES] = found[
                            n * LEAF_BYTES : (n + 1) * LEAF_BYTES
                        ]
                        self._has[slot] = 1
        except FileNotFoundError:
            return  # its segment is checked by itself
