"""Writes the new records of one topic into its segments, chunk by chunk, and seals full segments.

Reading and writing are thread calls. Framing is done on the loop, in slices: a thread that computes would hold the
interpreter for longer than an append may take.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Final, NamedTuple

from topics.log.record_index import RawRun
from topics.log.span import NotLoaded
from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import segment_name
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.storage.maintenance.frame_conversion import FrameConversion, FrameTarget, index_entries
from topics.storage.maintenance.frame_reads import chunks, frame_reads
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.segment_files import SegmentFiles, SegmentTail, header_of
from topics.storage.maintenance.topic_capture import Growth, TopicCapture
from topics.storage.maintenance.work_slice import WorkSlice
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES
from topics.storage.segments.segment_format import delete_flag_offset, tags_of_data
from topics.storage.segments.segment_reader import SegmentTiers, scan_segment
from topics.storage.segments.segment_sum import SegmentSum, add_file
from topics.storage.segments.topic_segments import Segment, SegmentPiece, divide
from topics.storage.wal.damage_notes import DamageNotes
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

SLICE_RECORDS: Final = 250
SLICE_COPIES: Final = 100
SLICE_ENTRIES: Final = 1000
"""Records and copies that are framed, and entries of `.idx` that are made, between two looks at the clock: up to 0.4 ms
each."""


_Append = Callable[[Segment, SegmentTail, UnsyncedFiles], None]


class RecordsDamaged(OSError):
    """Records were found to be damaged, and are holes from now on: another attempt gets further."""


class SegmentGrowth:
    """Writes the records of one capture after another."""

    def __init__(
        self,
        source: TopicSource,
        tiers: SegmentTiers,
        files: SegmentFiles,
        frames: FrameConversion,
        notes: DamageNotes,
        work: WorkSlice,
        offload: Offload,
    ) -> None:
        self._source = source
        self._tiers = tiers
        self._files = files
        self._frames = frames
        self._notes = notes
        self._work = work
        self._offload = offload

    async def write(self, capture: TopicCapture, files: UnsyncedFiles) -> None:
        """Write one topic's new records. Raises OSError, and `RecordsDamaged` if bytes of theirs do not verify."""
        active = capture.active
        is_full = capture.must_seal_active()
        division = partial(divide, capture.runs, None if is_full else active, capture.limits)
        pieces, seals_active = await self._offload.run(Pool.CPU, division)
        if capture.seals and pieces:
            pieces[-1] = pieces[-1]._replace(seals=True)
        if active is not None and (is_full or seals_active):
            await self._seal(capture, active, files)
        at = 0
        while at < len(pieces):
            to = at + 1
            while to < len(pieces) and pieces[to].first == pieces[at].first:
                to += 1
            continues = active is not None and pieces[at].first == active.first and capture.sealed is None
            made = self._files.new_segment(capture.topic.id, pieces[at].first) if not continues else None
            segment = active if made is None else made
            assert segment is not None
            await self._grow(capture, segment, pieces[at:to], files, new=made is not None)
            at = to

    async def _grow(
        self, capture: TopicCapture, segment: Segment, pieces: list[SegmentPiece], files: UnsyncedFiles, *, new: bool
    ) -> None:
        """Append the slots of `pieces` to a segment's files."""
        offsets, frame_lens = array("I"), array("I")
        tags: list[str | None] = []
        sizes = array("I")
        data_at, index_at = segment.data_bytes, INDEX_ENTRY_BYTES * segment.n
        frames = 0
        seals = pieces[-1].seals
        before = await self._held(segment) if seals else None
        total = before.total if before is not None else None
        append: _Append = partial(self._files.begin, first=capture.has_no_segment)
        for piece in pieces:
            run = capture.runs[piece.run]
            for a, b in chunks(run, piece.a, piece.b):
                data, lens, names = await self._convert(capture, run, a, b, FrameTarget(segment.salt, data_at))
                places = array("I", accumulate(lens, initial=data_at))
                places.pop()
                index = await self._entries(capture, run, a, b, places, lens)
                tail = SegmentTail(data, data_at, index, index_at)
                await self._offload.run(Pool.FILES, partial(_append, append, segment, tail, files, total))
                append = self._files.append
                data_at, index_at = data_at + len(data), index_at + len(index)
                frames += len(lens) - lens.count(0)
                offsets.extend(places)
                frame_lens.extend(lens)
                sizes.extend(run.size[a:b])
                tags += names
                await self._work.give_way()
        if before is not None:
            await self._write_tags(segment, before.sizes + sizes, before.tags + tags, files)
        sha256 = total.digest() if total is not None else None
        capture.growths.append(Growth(segment, new, pieces, offsets, frame_lens, data_at, frames, seals, sha256))

    async def _convert(
        self, capture: TopicCapture, run: RawRun, a: int, b: int, target: FrameTarget
    ) -> tuple[bytes, array[int], list[str | None]]:
        """The segment frames of slots `a` to `b` of a run, their lengths and tags; 0 and None for those that are dead.

        A record whose bytes in the WAL do not verify becomes a `corrupt` hole, and this attempt fails.
        """
        reads = frame_reads(run, a, b)
        paths = self._frames.paths({read.file for read in reads})
        windows = await self._offload.run(Pool.FILES, partial(self._frames.read_all, reads, paths))
        lens = array("I", bytes(4 * (b - a)))
        tags: list[str | None] = [None] * (b - a)
        may_have_tags = any(run.flags[a:b])
        pieces = []
        damaged: list[int] = []
        for read, window in zip(reads, windows, strict=True):
            stride = SLICE_COPIES if read.derived else SLICE_RECORDS
            for at in range(0, len(read.slots), stride):
                part = read.part(at, at + stride)
                converted = self._frames.convert(capture, run, part, window, target)
                damaged += [run.first + part.slots[i] for i in converted.bad]
                pieces.append(converted.data)
                target = FrameTarget(target.salt, target.offset + len(converted.data))
                for i, size in zip(part.slots, converted.frame_lens, strict=True):
                    lens[i - a] = size
                if may_have_tags:
                    for i, tag in zip(part.slots, tags_of_data(converted.data, converted.frame_lens), strict=True):
                        tags[i - a] = tag
                await self._work.give_way()
        if damaged:
            self._give_up(capture.topic, damaged)
            raise RecordsDamaged(errno.EIO, f"records of topic {capture.topic.name!r} are damaged in the WAL")
        return b"".join(pieces), lens, tags

    async def _entries(
        self, capture: TopicCapture, run: RawRun, a: int, b: int, places: array[int], lens: array[int]
    ) -> bytes:
        """The `.idx` entries of slots `a` to `b` of a run, whose frames have these offsets and lengths."""
        pieces = []
        for at in range(a, b, SLICE_ENTRIES):
            to = min(at + SLICE_ENTRIES, b)
            pieces.append(index_entries(capture, run, at, to, places[at - a : to - a], lens[at - a : to - a]))
            await self._work.give_way()
        return b"".join(pieces)

    def _give_up(self, topic: LiveTopic, seqs: Iterable[int]) -> None:
        """These records are lost, and announced."""
        for seq in seqs:
            log.error("record_damaged", topic=topic.name, seq=seq)
            if self._notes.is_for_others(topic, f"record {seq} of topic {topic.name!r} is damaged"):
                return
            with suppress(NotLoaded):  # the next attempt will find it again
                if topic.log.is_live(seq):
                    topic.log.add_hole(seq, seq, "corrupt")
                    self._notes.note(topic, [(seq, seq)])
                    self._source.account(topic)

    async def _seal(self, capture: TopicCapture, active: Segment, files: UnsyncedFiles) -> None:
        """Seal the active segment with the records that it has."""
        held = await self._held(active)
        await self._write_tags(active, held.sizes, held.tags, files)
        capture.sealed = active
        capture.sealed_sha256 = held.total.digest() if held.total is not None else None

    async def _held(self, segment: Segment) -> _Held:
        """Return what sealing a segment takes of the records that it has on disk, which are read back from `.data`."""
        if segment.n:
            return await self._offload.run(Pool.FILES, partial(_held, self._tiers, _as_of(segment)))
        total = SegmentSum()
        total.add(header_of(segment))
        return _Held(array("I"), [], total)

    async def _write_tags(
        self, segment: Segment, sizes: array[int], tags: list[str | None], files: UnsyncedFiles
    ) -> None:
        await self._offload.run(Pool.FILES, partial(self._files.write_tags, segment, sizes, tags, files))


class _Held(NamedTuple):
    """The content on disk of a segment that is about to be sealed, slot by slot."""

    sizes: array[int]
    tags: list[str | None]
    total: SegmentSum | None
    """The sum of its `.data` so far; None if that is damaged, because it may be repaired later, or of version 1."""


def _held(tiers: SegmentTiers, segment: Segment) -> _Held:
    """Read a segment. Blocking. Raises OSError."""
    loaded, tags = scan_segment(tiers, segment, segment.first, segment.n)
    columns = loaded.columns
    assert len(columns.size) == len(tags) == segment.n
    total = None
    if segment.salt is not None and segment.read_salt == segment.salt and not loaded.damaged:
        total = SegmentSum()
        read = partial(tiers.of(segment).read_range, segment.topic_id, segment_name(segment.first, "data"))
        frames = zip(columns.offset, columns.frame_len, strict=True)
        flags_at = array("I", [delete_flag_offset(at, size) for at, size in frames if size])
        if not add_file(total, read, segment.data_bytes, flags_at):
            total = None
    return _Held(columns.size, tags, total)


def _append(
    append: _Append, segment: Segment, tail: SegmentTail, files: UnsyncedFiles, total: SegmentSum | None
) -> None:
    """Write what comes next, and add it to the sum of a segment that is about to be sealed. Blocking."""
    append(segment, tail, files)
    if total is not None:
        total.add(tail.data)


def _as_of(segment: Segment) -> Segment:
    """The segment as it is known to be on disk, to be read while it grows."""
    return Segment(
        segment.topic_id,
        segment.first,
        n=segment.n,
        data_bytes=segment.data_bytes,
        tier=segment.tier,
        salt=segment.salt,
    )
