"""Rewriting segments: which slots of a group of segments survive, and writing the new files.

Frames are copied as they are, with checksums for their new place. The reclaimer decides which segments are rewritten,
and when.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import compress
from typing import Final, NamedTuple

from topics.log.shared_reads import shared_reads
from topics.log.span import DELETED, LOST, Span, SpanColumns
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.maintenance.cold_removal import delete_all
from topics.storage.maintenance.live_topic import LiveTopic
from topics.storage.maintenance.work_slice import WorkSlice
from topics.storage.segments.index_format import HOLE_CORRUPT, IDX_DELETED, IDX_HOLE, encode_index
from topics.storage.segments.packed_format import BLOCK_BYTES, PackHeader, packed
from topics.storage.segments.segment_format import moved_frames
from topics.storage.segments.segment_scan import layout_of
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.segment_sum import SegmentSum
from topics.storage.segments.tags_format import SegmentTags, encode_tags
from topics.storage.segments.topic_segments import Segment, SegmentSet

SLICE_SLOTS: Final = 1000
"""Frames that are copied in one go."""

PLANNED_SLOTS: Final = 250
"""Slots that are planned between two looks at the clock, 0.2 ms."""

COPY_BYTES: Final = 1 << 20
"""The longest read that frames share."""


class RewritePlan(NamedTuple):
    """The slots of the new segment; `frame_len` is 0 for a slot without a record."""

    source: array[int]
    """The number of the old segment that has the frame, at `offset`."""
    offset: array[int]
    frame_len: array[int]
    ts: array[int]
    flags: bytearray
    """As in `.idx`."""
    size: array[int]


class Replacement(NamedTuple):
    """Spans, their segments, and the content of the segment that replaces them."""

    group: Sequence[Span]
    old: Sequence[Segment]
    plan: RewritePlan
    tags: Sequence[SegmentTags]
    salt: int
    """The salt of the new `.data`."""
    generation: int | None = None
    """The generation of the new `.data` if it is packed."""

    @property
    def data_bytes(self) -> int:
        """The length of the new `.data`, of a packed one that of its unpacked form."""
        return FILE_HEADER_BYTES + sum(self.plan.frame_len)


class WrittenFiles(NamedTuple):
    """The files that were written."""

    packed: int | None
    """Bytes of `.data` on disk if it is packed."""
    derived: list[bytes]
    """`.idx` and `.tags`."""
    sha256: bytes
    """Of the segment."""


class FrozenSpan(NamedTuple):
    """A span as of one step of the loop."""

    first: int
    columns: SpanColumns
    since: set[int]
    """Seqs deleted since the part on disk was made; it may have older ones too."""
    gone: int
    """How many slots are below the front according to the part on disk."""


def columns_if_held(topic: LiveTopic, span: Span) -> SpanColumns | None:
    """Return the columns of a span; None if it was evicted, so that they cannot be loaded any more. Raises
    NotLoaded."""
    return span.columns() if topic.log.stored.holds(span) else None


def freeze(topic: LiveTopic, segment_set: SegmentSet, group: Sequence[Span]) -> list[FrozenSpan] | None:
    """Return copies of the spans that the new segment is made from; None if a span does not cover its segment from the
    first slot on. Raises NotLoaded."""
    frozen = []
    for span in group:
        segment = span.segment
        assert isinstance(segment, Segment)
        if span.first != segment.first or span.n != segment.n:
            return None
        gone = min(max(segment_set.earliest_stored - span.first, 0), span.n)
        frozen.append(FrozenSpan(span.first, span.columns(), set(span.unflagged or ()), gone))
    return frozen


async def plan_of(group: Sequence[FrozenSpan], work: WorkSlice) -> RewritePlan:
    """Return the slots that survive: all that are not dead according to the part on disk. Computed in slices.

    Records deleted or evicted since are kept, so that the part on disk always has everything that the files have lost.
    """
    plan = RewritePlan(array("I"), array("I"), array("I"), array("Q"), bytearray(), array("I"))
    for number, (first, columns, since, gone) in enumerate(group):
        for i, (state, size, flag) in enumerate(zip(columns.dead, columns.frame_len, columns.flags, strict=True)):
            kept = i >= gone and size > 0 and state != LOST and (state != DELETED or first + i in since)
            plan.source.append(number)
            plan.offset.append(columns.offset[i])
            plan.frame_len.append(size if kept else 0)
            plan.ts.append(columns.ts[i])
            plan.size.append(columns.size[i] if kept else 0)
            plan.flags.append(flag if kept else flag | (IDX_HOLE if state == LOST else IDX_DELETED))
            if i % PLANNED_SLOTS == PLANNED_SLOTS - 1:
                await work.give_way()
    return plan


def write_replacement(store: SegmentStore, work: Replacement, ready: Callable[[], None] | None = None) -> WrittenFiles:
    """Write the new files in the order of `docs/spec/crash.md` 12: remove derived files, replace `.data`, write derived
    files. A `.del` that was there is about no file any more once `.data` is replaced. `ready` is called when all of
    `.data` has been written, before it counts. Blocking."""
    plan, first = work.plan, work.old[0]
    offsets, at = array("I"), FILE_HEADER_BYTES
    for size, flag, was in zip(plan.frame_len, plan.flags, plan.offset, strict=True):
        # A hole's entry has its reason in place of the offset. A lost slot that still has a place was found damaged.
        offsets.append(at if size else (was if 1 <= was <= 3 else HOLE_CORRUPT) if flag & IDX_HOLE else 0)
        at += size
    index = encode_index(offsets, plan.frame_len, plan.ts, bytes(plan.flags))
    blob = encode_tags(first.first, plan.size, _surviving(plan, work.old, work.tags))
    names = [segment_name(first.first, "idx"), segment_name(first.first, "tags")]
    delete_all(store, first.topic_id, names)
    total = SegmentSum()
    chunks = _copied(store, work, total)
    if work.generation is not None:
        chunks = packed(chunks, PackHeader(work.generation, first.first, work.data_bytes, BLOCK_BYTES))
    stored = store.put(first.topic_id, segment_name(first.first, "data"), _then(chunks, ready))
    if store.exists(first.topic_id, segment_name(first.first, "del")):
        store.delete(first.topic_id, segment_name(first.first, "del"))
    put_all(store, first.topic_id, names, [index, blob])
    return WrittenFiles(stored if work.generation is not None else None, [index, blob], total.digest())


def _then(chunks: Iterator[bytes], ready: Callable[[], None] | None) -> Iterator[bytes]:
    """Yield the chunks, then make a call."""
    yield from chunks
    if ready is not None:
        ready()


def put_all(store: SegmentStore, topic_id: int, names: Sequence[str], contents: Sequence[bytes]) -> None:
    """Write these objects. Blocking."""
    for name, content in zip(names, contents, strict=True):
        store.put(topic_id, name, [content])


def _copied(store: SegmentStore, work: Replacement, total: SegmentSum) -> Iterator[bytes]:
    """Yield the new file, and add it to `total`: its header, and the surviving frames with the checksums for their new
    place, read in bounded pieces. A frame that does not verify does not verify there either."""
    old, plan = work.old, work.plan
    salts = [_salt_of(store, segment) for segment in old]
    sources, offsets, sizes = (
        array("I", compress(column, plan.frame_len)) for column in (plan.source, plan.offset, plan.frame_len)
    )
    written = FILE_HEADER_BYTES
    header = encode_file_header(work.salt, old[0].first)
    total.add(header)
    yield header
    for read in shared_reads(sources, offsets, sizes, max_bytes=COPY_BYTES, max_ranges=SLICE_SLOTS):
        number = sources[read.first]
        name = segment_name(old[number].first, "data")
        window = store.read_range(old[number].topic_id, name, read.offset, read.length)
        moved = moved_frames(
            window,
            read.starts(offsets),
            sizes[read.first : read.end],
            salt=salts[number],
            base=read.offset,
            to=work.salt,
            offset=written,
        )
        total.add_frames(moved, sizes[read.first : read.end])
        written += len(moved)
        yield moved


def _salt_of(store: SegmentStore, segment: Segment) -> int | None:
    """Return the salt of a segment's `.data` from its header; from its part if the header is damaged or the file
    missing."""
    try:
        head = store.read_range(segment.topic_id, segment_name(segment.first, "data"), 0, FILE_HEADER_BYTES)
    except FileNotFoundError:
        return segment.salt
    return layout_of(head, segment.first, segment.salt).salt


def _surviving(plan: RewritePlan, old: Sequence[Segment], tags: Sequence[SegmentTags]) -> list[str | None]:
    """Return the tag of every slot that has a record in the new segment."""
    out: list[str | None] = [None] * len(plan.frame_len)
    base = 0
    for segment, known in zip(old, tags, strict=True):
        for tag, positions in known.items():
            for i in positions:
                if plan.frame_len[base + i]:
                    out[base + i] = tag
        base += segment.n
    return out
