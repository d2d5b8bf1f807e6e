"""Verifying the SHA-256 of sealed segments (`docs/design/segments.md` section 7): that a `.data` has the bytes with
which it was sealed, but for delete flags. Checksums find faults of a disk; this finds a file that was written again
with new checksums.

Segments without one were sealed by an earlier version, or were damaged when they were sealed. They are counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from topics.storage.offline.findings import Finding
from topics.storage.segments.segment_format import LIVE_FLAG, DataScan, delete_flag_offset
from topics.storage.segments.segment_scan import DataLayout, Read
from topics.storage.segments.segment_sum import SegmentSum
from topics.storage.segments.topic_segments import Segment


class LastRead:
    """Reads a file, and keeps the last window: a caller that was given the frames of a window may ask for its bytes."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._at = 0
        self._window = b""

    def __call__(self, offset: int, length: int) -> bytes:
        begin = offset - self._at
        if not 0 <= begin <= begin + length <= len(self._window):
            self._at, self._window = offset, self._read(offset, length)
            begin = 0
        return self._window[begin : begin + length]


class SumCheck:
    """The SHA-256 of a `.data`, of which all frames are added in their order, compared with that of its entry."""

    def __init__(self, read: Read, segment: Segment, layout: DataLayout) -> None:
        self._read = read
        self._segment = segment
        self._at = layout.start
        self._total: SegmentSum | None = None
        # It is about the file with the salt of the entry.
        if segment.sha256 is not None and layout.damage is None and layout.salt == segment.salt:
            self._total = SegmentSum()
            self._total.add(read(0, layout.start))

    def add(self, rows: DataScan) -> None:
        """Add some valid frames."""
        begin, end = rows.offset[0], min(rows.stop, self._segment.data_bytes)
        if self._total is None or begin >= end:
            return
        frames = zip(rows.offset, rows.frame_len, rows.delete_flag, strict=True)
        flags_at = [delete_flag_offset(at, size) - begin for at, size, flag in frames if flag != LIVE_FLAG]
        length = end - begin
        self._total.add_flagged(self._read(begin, length), [at for at in flags_at if at < length])
        self._at = end

    def differs(self) -> bool:
        """Return True if the whole file was added, and its SHA-256 is another one."""
        if self._total is None or self._at != self._segment.data_bytes:
            return False
        return self._total.digest() != self._segment.sha256


class SumCount:
    """Counts the sealed segments whose SHA-256 is not known."""

    def __init__(self) -> None:
        self._sealed = 0
        self._without = 0

    def add(self, segments: Iterable[Segment]) -> None:
        """Count the segments of a topic."""
        for segment in segments:
            if segment.sealed and segment.tier != "gone":
                self._sealed += 1
                self._without += segment.sha256 is None

    def findings(self, path: str) -> Iterator[Finding]:
        """Yield a note if there are any. `path` is that of all topics."""
        if self._without:
            problem = f"{self._without} of {self._sealed} sealed segments have no SHA-256: only checksums are compared"
            yield Finding(path, None, problem, "note")
