"""Where the frames of a run of records are, as the smallest number of disk reads that fetch them."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from topics.log.record_index import RecordIndex
from topics.log.span import FLAG_DERIVED, NotLoaded

# Frames with at most so many bytes between them share a read: reading a page more is cheaper than a second read.
_MAX_READ_GAP: Final = 4096
_MAX_READ: Final = 4 << 20


class FrameRange(NamedTuple):
    """One disk read: `length` bytes from `offset` on. The frame of `seqs[i]` begins at `starts[i]` within them.

    The bytes are in WAL file `file`, or for stored records in `segment` (then `file` is 0). If `derived`, the frames
    belong to records of other topics, of which these seqs are copies.
    """

    file: int
    offset: int
    length: int
    seqs: array[int]
    starts: array[int]
    frame_lens: array[int]
    segment: object | None = None
    derived: bool = False


def locate(index: RecordIndex, first: int, last: int, max_range: int = _MAX_READ) -> list[FrameRange]:
    """Return the reads that fetch the live records from `first` to `last` (inclusive), in seq order.

    Consecutive frames of one file with at most 4,096 bytes between them share a read of up to `max_range` bytes (a
    single frame may be longer). Records that have no place yet (`file` 0) are left out. Raises one NotLoaded for all
    spans.
    """
    parts = [part for part in index.parts(first, last + 1) if part[0].live]
    missing = tuple(span for span, _, _ in parts if not span.loaded)
    if missing:
        raise NotLoaded(missing)
    ranges: list[FrameRange] = []
    file = begin = end = 0
    segment: object | None = None
    derived = False
    seqs: array[int] = array("Q")
    starts: array[int] = array("I")
    lens: array[int] = array("I")
    for span, a, b in parts:
        files = None if span.stored else span.file
        for i in range(a, b):
            if span.dead[i]:
                continue
            of_file = 0
            if files is not None and not (of_file := files[i]):
                continue
            offset, length = span.offset[i], span.frame_len[i]
            is_derived = files is not None and span.flags[i] >= FLAG_DERIVED
            same = of_file == file and span.segment is segment and is_derived == derived
            if not (same and end <= offset <= end + _MAX_READ_GAP) or offset + length - begin > max_range:
                if seqs:
                    ranges.append(FrameRange(file, begin, end - begin, seqs, starts, lens, segment, derived))
                file, segment, begin, derived = of_file, span.segment, offset, is_derived
                seqs, starts, lens = array("Q"), array("I"), array("I")
            seqs.append(span.first + i)
            starts.append(offset - begin)
            lens.append(length)
            end = offset + length
    if seqs:
        ranges.append(FrameRange(file, begin, end - begin, seqs, starts, lens, segment, derived))
    return ranges
