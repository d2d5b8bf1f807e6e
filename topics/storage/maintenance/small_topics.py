"""The new records of topics that have only a few: many topics in one thread call, framing included.

A checkpoint of many topics would otherwise be made of calls that do next to nothing each. Topics that do not fit in
here, or turn out to be damaged, go the long way (`segment_growth`).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Final

from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import File
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.storage.maintenance.frame_conversion import FrameConversion, FrameTarget, index_entries
from topics.storage.maintenance.frame_reads import frame_reads
from topics.storage.maintenance.segment_files import SegmentFiles
from topics.storage.maintenance.topic_capture import Growth, TopicCapture
from topics.storage.maintenance.work_slice import WorkSlice
from topics.storage.segments.topic_segments import divide

SMALL_RECORDS: Final = 100
SMALL_BYTES: Final = 64 << 10
"""A topic with more new records or bytes than this is not small."""

SMALL_TOPICS: Final = 16
"""Small topics that are written in one thread call."""


class SmallTopics:
    """Writes the records of captures that are small."""

    def __init__(self, files: SegmentFiles, frames: FrameConversion, work: WorkSlice, offload: Offload) -> None:
        self._files = files
        self._frames = frames
        self._work = work
        self._offload = offload

    async def write(self, captures: Sequence[TopicCapture], files: UnsyncedFiles) -> None:
        """Write those of the captures that are small, which are marked as written then. Raises OSError."""
        todo: list[TopicCapture] = []
        for one in captures:
            if self._is_small(one):
                one.written = not one.pieces
                if one.pieces:
                    todo.append(one)
            await self._work.give_way()
        for at in range(0, len(todo), SMALL_TOPICS):
            group = todo[at : at + SMALL_TOPICS]
            paths = self._frames.paths({file for one in group for run in one.runs for file in run.file if file})
            growths = await self._offload.run(Pool.FILES, partial(self._grow_all, group, paths, files))
            for one, growth in zip(group, growths, strict=True):
                if growth is not None:  # else its bytes are damaged, and the long way says how
                    one.written = True
                    one.growths.append(growth)
            await self._work.give_way()

    def _is_small(self, capture: TopicCapture) -> bool:
        """Return True if a topic has nothing but a few records for one segment that stays open, or nothing at all; in
        the former case its pieces are known."""
        if not (capture.unflagged or capture.runs or capture.spans):
            return True
        if capture.unflagged or sum(len(run.flags) for run in capture.runs) > SMALL_RECORDS:
            return False
        if sum(sum(run.frame_len) for run in capture.runs) > SMALL_BYTES:
            return False
        if capture.seals or capture.must_seal_active():
            return False
        pieces, seals_active = divide(capture.runs, capture.active, capture.limits)
        capture.pieces = pieces
        return not seals_active and not any(piece.seals for piece in pieces) and len({p.first for p in pieces}) <= 1

    def _grow_all(
        self, captures: Sequence[TopicCapture], paths: Mapping[int, str], files: UnsyncedFiles
    ) -> list[Growth | None]:
        """In a worker thread: write the records of each; None for one whose bytes are damaged."""
        with self._frames.opened(paths) as handles:
            return [self._grow(one, handles, files) for one in captures]

    def _grow(self, capture: TopicCapture, handles: Mapping[int, File], files: UnsyncedFiles) -> Growth | None:
        pieces = capture.pieces
        active = capture.active
        new = active is None or pieces[0].first != active.first
        segment = self._files.new_segment(capture.topic.id, pieces[0].first) if active is None or new else active
        data_parts, index_parts = [], []
        offsets, frame_lens = array("I"), array("I")
        at = segment.data_bytes
        for piece in pieces:
            run, a, b = capture.runs[piece.run], piece.a, piece.b
            lens = array("I", bytes(4 * (b - a)))
            read_at = at
            for read in frame_reads(run, a, b):
                window = self._frames.window(read, handles)
                converted = self._frames.convert(capture, run, read, window, FrameTarget(segment.salt, read_at))
                if converted.bad:
                    return None
                data_parts.append(converted.data)
                read_at += len(converted.data)
                for i, size in zip(read.slots, converted.frame_lens, strict=True):
                    lens[i - a] = size
            places = array("I", accumulate(lens, initial=at))
            at = places.pop()
            index_parts.append(index_entries(capture, run, a, b, places, lens))
            offsets.extend(places)
            frame_lens.extend(lens)
        data, index = b"".join(data_parts), b"".join(index_parts)
        self._files.grow(segment, data, index, files, new=new, first=capture.has_no_segment)
        frames = len(frame_lens) - frame_lens.count(0)
        return Growth(segment, new, pieces, offsets, frame_lens, at, frames, seals=False, sha256=None)
