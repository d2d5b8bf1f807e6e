"""Reading single records of segments, far apart from one another, without the columns of their spans.

The place of a record is read from its entry in `.idx`, 20 bytes. Both are checksummed: a record that cannot be found
like this is left out, and the caller looks for it by the columns, where damage is dealt with. Blocking; the daemon runs
it in worker threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from topics.log.shared_reads import shared_reads
from topics.storage.files.datadir import segment_name
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES, decode_index
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment

GAP_ENTRIES: Final = 64
"""Entries of `.idx` that are closer together than this share a read."""

READ_BYTES: Final = 1 << 20
"""The longest read that frames share."""


class FrameWindow(NamedTuple):
    """Bytes of a segment's `.data` from `offset` on, and the frames of some records in them."""

    segment: Segment
    offset: int
    data: bytes
    seqs: array[int]
    starts: array[int]
    frame_lens: array[int]


def read_frames(hot: SegmentStore, wanted: Sequence[tuple[Segment, array[int]]]) -> list[FrameWindow]:
    """Read the frames of some records (seqs ascending) of hot segments. Raises OSError, but leaves out the records of a
    segment that was removed."""
    found: list[FrameWindow] = []
    for segment, seqs in wanted:
        try:
            found += _read(hot, segment, seqs)
        except FileNotFoundError:
            continue
    return found


def _read(hot: SegmentStore, segment: Segment, seqs: array[int]) -> list[FrameWindow]:
    name = segment_name(segment.first, "idx")
    known, offsets, lens = _places(
        lambda at, size: hot.read_range(segment.topic_id, name, at, size), segment.first, seqs
    )
    windows = []
    for read in shared_reads([0] * len(known), offsets, lens, max_bytes=READ_BYTES):
        data = hot.read_range(segment.topic_id, segment_name(segment.first, "data"), read.offset, read.length)
        part = slice(read.first, read.end)
        windows.append(
            FrameWindow(segment, read.offset, data, known[part], array("I", read.starts(offsets)), lens[part])
        )
    return windows


def _places(
    read: Callable[[int, int], bytes], first: int, seqs: array[int]
) -> tuple[array[int], array[int], array[int]]:
    """Return the seqs whose entries verify and have a frame, with the offsets and lengths of the frames.
    `read(offset, length)` reads the `.idx`."""
    known, offsets, lens = array("Q"), array("I"), array("I")
    at = 0
    while at < len(seqs):
        to = at + 1
        while to < len(seqs) and seqs[to] - seqs[to - 1] < GAP_ENTRIES:
            to += 1
        low = seqs[at] - first
        index = decode_index(read(INDEX_ENTRY_BYTES * low, INDEX_ENTRY_BYTES * (seqs[to - 1] - first - low + 1)))
        bad = set(index.bad)
        for seq in seqs[at:to]:
            i = seq - first - low
            if i < len(index.offset) and i not in bad and index.frame_len[i]:
                known.append(seq)
                offsets.append(index.offset[i])
                lens.append(index.frame_len[i])
        at = to
    return known, offsets, lens
