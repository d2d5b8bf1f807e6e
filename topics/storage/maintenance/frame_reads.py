"""Which reads fetch the frames of captured records. Pure.

Slots of a run are taken in chunks of bounded size; for each chunk `frame_reads` says which ranges of which files hold
its live records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from topics.log.record_index import RawRun
from topics.log.span import FLAG_DERIVED, LIVE

CHUNK_BYTES: Final = 2 << 20
CHUNK_RECORDS: Final = 4000
"""Records that are read, framed and written in one go."""

READ_GAP: Final = 4096
READ_BYTES: Final = 1 << 20
READ_SLACK: Final = 256 << 10
"""Frames closer together than `READ_GAP` share a read of about `READ_BYTES`; the live records of one file are read in
one go if what lies between them is no more than the slack."""


class FrameRead(NamedTuple):
    """One pread of a file, and which slots of a run begin where in it. `derived`: they are copies, and the frames are
    those that they are made of."""

    file: int
    offset: int
    length: int
    slots: Sequence[int]
    starts: Sequence[int]
    derived: bool

    def part(self, a: int, b: int) -> FrameRead:
        """The same read with only the slots from the `a`th up to the `b`th (exclusive)."""
        return self._replace(slots=self.slots[a:b], starts=self.starts[a:b])


def frame_reads(run: RawRun, a: int, b: int) -> list[FrameRead]:
    """The reads that fetch the live records among slots `a` to `b`."""
    lens, offset = run.frame_len, run.offset
    begin, end = offset[a], offset[b - 1] + lens[b - 1]
    derived = run.flags[a] >= FLAG_DERIVED
    whole = run.dead.count(LIVE, a, b) == b - a and run.file[a:b].count(run.file[a]) == b - a
    if whole and (min(run.flags[a:b]) >= FLAG_DERIVED if derived else max(run.flags[a:b]) < FLAG_DERIVED):
        starts = [at - begin for at in offset[a:b]]
        # The frames that copies are made of come in any order, and more than once.
        if min(starts) >= 0 and max(starts) == starts[-1] and end - begin <= sum(lens[a:b]) + READ_SLACK:
            return [FrameRead(run.file[a], begin, end - begin, range(a, b), starts, derived)]
    reads: list[FrameRead] = []
    slots: list[int] = []
    starts = []
    file = begin = end = 0
    for i in range(a, b):
        if run.dead[i]:
            continue
        at, size = offset[i], lens[i]
        near = run.file[i] == file and end <= at <= end + READ_GAP and at + size - begin <= READ_BYTES
        if not near or (run.flags[i] >= FLAG_DERIVED) is not derived:
            if slots:
                reads.append(FrameRead(file, begin, end - begin, slots, starts, derived))
            slots, starts, file, begin, derived = [], [], run.file[i], at, run.flags[i] >= FLAG_DERIVED
        slots.append(i)
        starts.append(at - begin)
        end = at + size
    if slots:
        reads.append(FrameRead(file, begin, end - begin, slots, starts, derived))
    return reads


def chunks(run: RawRun, a: int, b: int) -> Iterable[tuple[int, int]]:
    """Slots `a` to `b` in pieces of bounded size."""
    while a < b:
        to = min(b, a + CHUNK_RECORDS)
        while to > a + 1 and sum(run.frame_len[a:to]) > CHUNK_BYTES:
            to = a + (to - a) // 2
        yield a, to
        a = to
