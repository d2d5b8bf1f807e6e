"""Where the frames of a run of records are, as the smallest number of disk reads that fetch them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Final, NamedTuple

from topics.log.record_index import RecordIndex
from topics.log.shared_reads import shared_reads
from topics.log.span import FLAG_DERIVED, LIVE, NotLoaded, Span

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

    Frames of one file that are close together share a read of up to `max_range` bytes (`shared_reads`). Records that
    have no place yet (`file` 0) are left out. Raises NotLoaded for all spans at once.
    """
    return _located([part for part in index.parts(first, last + 1) if part[0].live], max_range)


def locate_raw(index: RecordIndex, seqs: Sequence[int], max_range: int = _MAX_READ) -> list[FrameRange]:
    """Return the reads that fetch those of `seqs` (ascending) that are live and in no segment, like `locate`. Needs no
    columns."""
    slots = [slot for seq in seqs if (slot := index.at(seq)) is not None and not slot[0].stored]
    return _located([(span, i, i + 1) for span, i in slots if span.live and span.dead[i] == LIVE], max_range)


def _located(parts: Sequence[tuple[Span, int, int]], max_range: int) -> list[FrameRange]:
    """Return the reads that fetch the live records among these slots. Raises NotLoaded."""
    missing = tuple(span for span, _, _ in parts if not span.loaded)
    if missing:
        raise NotLoaded(missing)
    segments: list[object] = []
    sources: list[int] = []
    seqs: array[int] = array("Q")
    offsets, lens = array("I"), array("I")
    for span, a, b in parts:
        found = _stored_sources(span, a, b, segments) if span.stored else _raw_sources(span, a, b)
        numbers, places, sizes = range(span.first + a, span.first + b), span.offset[a:b], span.frame_len[a:b]
        if all(found):
            sources += found
            seqs.extend(numbers)
            offsets += places
            lens += sizes
        else:
            sources += filter(None, found)
            seqs.extend(compress(numbers, found))
            offsets.extend(compress(places, found))
            lens.extend(compress(sizes, found))
    ranges = []
    for read in shared_reads(sources, offsets, lens, max_bytes=max_range):
        source, taken = sources[read.first], slice(read.first, read.end)
        segment = segments[-source - 1] if source < 0 else None
        file, derived = divmod(source, 2) if source > 0 else (0, 0)
        starts = array("I", read.starts(offsets))
        ranges.append(
            FrameRange(file, read.offset, read.length, seqs[taken], starts, lens[taken], segment, bool(derived))
        )
    return ranges


# A *source* is the number of what a frame is read from. 0: the slot has nothing to read. Positive: twice the number of
# the WAL file, plus one if it is the frame of another topic. Negative: -1 for the first of `segments`, -2 for the next.


def _raw_sources(span: Span, a: int, b: int) -> list[int]:
    """The sources of slots `a` to `b` of a raw span."""
    return [
        2 * file + (flags >= FLAG_DERIVED) if file and not dead else 0
        for file, flags, dead in zip(span.file[a:b], span.flags[a:b], span.dead[a:b], strict=True)
    ]


def _stored_sources(span: Span, a: int, b: int, segments: list[object]) -> list[int]:
    """The sources of slots `a` to `b` of a stored span, whose segment is added to `segments`."""
    if not segments or segments[-1] is not span.segment:
        segments.append(span.segment)
    source = -len(segments)
    if span.dead.count(LIVE, a, b) == b - a:
        return [source] * (b - a)
    return [0 if dead else source for dead in span.dead[a:b]]
