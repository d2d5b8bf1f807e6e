"""Reading many small ranges of bytes: ranges that are close together in a file share one read. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

MAX_GAP: Final = 4096
"""Ranges of one file with more unused bytes than this between them are read apart. Up to a page, reading the gap is
cheaper than a second read."""


class SharedRead(NamedTuple):
    """One read: `length` bytes of a file from `offset` on. It covers the ranges `first` to `end` (exclusive), which are
    indexes into the columns that the reads were made of."""

    first: int
    end: int
    offset: int
    length: int

    def starts(self, offsets: Sequence[int]) -> list[int]:
        """Where in the bytes read each of its ranges begins. `offsets` is the column that the reads were made of."""
        begin = self.offset
        return [offset - begin for offset in offsets[self.first : self.end]]


def shared_reads(
    files: Iterable[int],
    offsets: Iterable[int],
    lengths: Iterable[int],
    *,
    max_bytes: int,
    max_ranges: int | None = None,
) -> Iterator[SharedRead]:
    """The reads that fetch these ranges, in the order of the ranges, each range in exactly one read.

    The columns have the same length: range `i` is `lengths[i]` bytes from `offsets[i]` on in file `files[i]`, a number
    that means nothing in here. A range joins the read of the one before it if it is in the same file, begins at its end
    or at most `MAX_GAP` bytes behind, and if the read is then at most `max_bytes` long and has at most `max_ranges`
    ranges. A range that is longer than `max_bytes` is read alone.
    """
    first = index = 0
    file: int | None = None
    begin = end = 0
    limit = -1
    for index, (of_file, offset, length) in enumerate(zip(files, offsets, lengths, strict=True)):
        if (
            of_file != file
            or not end <= offset <= end + MAX_GAP
            or offset + length > limit
            or (max_ranges is not None and index - first >= max_ranges)
        ):
            if file is not None:
                yield SharedRead(first, index, begin, end - begin)
            first, file, begin, limit = index, of_file, offset, offset + max_bytes
        end = offset + length
    if file is not None:
        yield SharedRead(first, index + 1, begin, end - begin)
