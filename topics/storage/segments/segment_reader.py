"""Reading segments: the columns and tags of a span, and the bytes of records (`docs/spec/storage.md` section 4).

An `.idx` or `.tags` that is missing or does not verify is rebuilt from `.data`. Records that `.data` does not have are
reported as damaged, never invented. This includes records that `.idx` or the part know, and that were in the lost end
of a shortened `.data`. Everything here blocks; the daemon runs it in worker threads.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple

from topics.log.span import DELETED, LIVE, LOST, SpanColumns
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.segments.index_format import IDX_DELETED, IDX_HOLE, INDEX_ENTRY_BYTES, IndexColumns, decode_index
from topics.storage.segments.segment_format import MIN_FRAME_BYTES, READS_AS_DELETED, DataScan, SegmentDamaged
from topics.storage.segments.segment_scan import BadBytes, IndexEntry, entries_of, frames_of, layout_of
from topics.storage.segments.segment_store import DirectorySegmentStore, ObjectSegments, SegmentStore
from topics.storage.segments.tag_directory import TagDirectory
from topics.storage.segments.tags_format import SegmentTags, TagColumns, decode_tags, encode_tags
from topics.storage.segments.topic_segments import Segment
from topics.storage.wal.frames import HAS_NODE, HAS_ORIGIN, HAS_TAG, ORIGIN_BYTES
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

_STATE_OF_FLAGS: Final = bytes(
    DELETED if flags & IDX_DELETED else LOST if flags & IDX_HOLE else LIVE for flags in range(256)
)
_KEPT: Final = bytes(flags & (HAS_TAG | HAS_NODE | HAS_ORIGIN) for flags in range(256))
_LABELLED: Final = bytes(bool(flags & (HAS_TAG | HAS_NODE)) for flags in range(256))


class LoadedSpan(NamedTuple):
    """A span as its files have it. `damaged` are inclusive seq ranges whose bytes are missing or changed; their slots
    are LIVE in `columns`, without a place."""

    columns: SpanColumns
    damaged: list[tuple[int, int]]


class ScannedSegment(NamedTuple):
    """A segment, read from its `.data` alone."""

    loaded: LoadedSpan
    tags: list[str | None]


class LoadedTags(NamedTuple):
    """The tags of a segment as its files have them."""

    tags: SegmentTags
    damaged: bool
    """True if the tags had to be taken from `.data`, and `.data` lacks live records."""
    directory: TagDirectory | None
    """The directory of the tags; None if the caller wants none, or if there are too many tags."""


class SegmentTiers(NamedTuple):
    """The stores of segments. `cold` is None without a cold directory and without a bucket. `objects` is None unless
    the cold segments are in a bucket; then `cold` takes neither puts nor patches."""

    hot: SegmentStore
    cold: SegmentStore | None
    objects: ObjectSegments | None = None

    def of(self, segment: Segment) -> SegmentStore:
        """Return the store that has the segment's `.data`. Raises FileNotFoundError for a cold one without a cold
        store."""
        assert segment.tier != "gone"
        if segment.tier == "hot":
            return self.hot
        if self.cold is None:
            raise FileNotFoundError(
                2, "there is neither the cold directory (TOPICS_COLD_DIR) nor the bucket (TOPICS_BUCKET)"
            )
        return self.cold


class ColdNeeded(Exception):
    """A derived file of a cold segment has no usable copy in the hot directory."""


class _NoColdStore(DirectorySegmentStore):
    """Replaces the cold store in calls that must not wait for it."""

    def __init__(self) -> None:
        pass

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        raise ColdNeeded

    def length(self, topic_id: int, name: str) -> int:
        raise ColdNeeded

    def read_stored(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        raise ColdNeeded

    def stored_length(self, topic_id: int, name: str) -> int:
        raise ColdNeeded


NO_COLD: Final = _NoColdStore()
"""Used instead of the cold store, so that a read raises ColdNeeded instead of waiting for the cold store."""


def load_columns(tiers: SegmentTiers, segment: Segment, first: int, n: int) -> LoadedSpan:
    """Return the columns of the span of `n` slots from `first` on. Raises OSError if the disk does not answer."""
    if segment.tier == "gone":
        zeros = array("I", bytes(4 * n))
        columns = SpanColumns(
            array("Q", (segment.opened_ms,)) * n, zeros, zeros[:], zeros[:], bytes(n), bytes((DELETED,)) * n
        )
        return LoadedSpan(columns, [])
    index = _read_index(tiers, segment, first, n)
    found = _from_index(tiers, segment, index, first, n) if index is not None else None
    if found is not None:
        length = shortened_to(tiers, segment)
        return found if length is None else found._replace(damaged=_beyond(found.columns, first, length))
    loaded = scan_segment(tiers, segment, first, n).loaded
    if index is None or not any(flags & IDX_HOLE for flags in index.flags):
        return loaded
    # Only `.idx` tells a seq that was lost before it had a frame from one that was deleted.
    states = zip(index.flags, loaded.columns.frame_len, loaded.columns.dead, strict=True)
    dead = bytes(LOST if flags & IDX_HOLE and not size else state for flags, size, state in states)
    return loaded._replace(columns=loaded.columns._replace(dead=dead))


def nothing_of(first: int, n: int) -> LoadedSpan:
    """Return the span of `n` slots from `first` on, as it is if its file is missing."""
    zeros = array("I", bytes(4 * n))
    columns = SpanColumns(array("Q", bytes(8 * n)), zeros, zeros[:], zeros[:], bytes(n), bytes(n))
    return LoadedSpan(columns, [(first, first + n - 1)])


def shortened_to(tiers: SegmentTiers, segment: Segment) -> int | None:
    """Return the length of a hot `.data` if it is shorter than its part says (0 if it is missing); else None. A shorter
    file was cut, or is newer than the part. Does not ask the cold store: a cold file that is too short is found when it
    is read."""
    if segment.tier != "hot":
        return None
    try:
        length = tiers.hot.length(segment.topic_id, segment_name(segment.first, "data"))
    except FileNotFoundError:
        length = 0
    return length if length < segment.data_bytes else None


def _beyond(columns: SpanColumns, first: int, length: int) -> list[tuple[int, int]]:
    """Return the seqs of live records whose frames end behind the first `length` bytes of `.data`, as inclusive
    ranges."""
    frames = zip(columns.dead, columns.offset, columns.frame_len, strict=True)
    return runs_of(
        seq for seq, (state, offset, size) in enumerate(frames, first) if state == LIVE and offset + size > length
    )


def _read_index(tiers: SegmentTiers, segment: Segment, first: int, n: int) -> IndexColumns | None:
    """Return the entries of a span from `.idx`; None if they are not usable."""
    skipped = first - segment.first  # slots that were dropped before the span was made
    try:
        blob = _derived(tiers, segment, "idx", INDEX_ENTRY_BYTES * skipped, INDEX_ENTRY_BYTES * n)
    except FileNotFoundError:
        return None
    if len(blob) != INDEX_ENTRY_BYTES * n:
        return None
    index = decode_index(blob)
    if index.bad:
        log.warning("index_damaged", topic_id=segment.topic_id, segment=segment.first, entries=len(index.bad))
        return None
    return index


def _from_index(tiers: SegmentTiers, segment: Segment, index: IndexColumns, first: int, n: int) -> LoadedSpan | None:
    """Load from `.idx`, and from `.tags` the sizes that cannot be computed from lengths. None if they are not
    usable."""
    skipped = first - segment.first
    flags = index.flags.translate(_KEPT)
    if any(flags.translate(_LABELLED)):
        file = _read_tags(tiers, segment)
        if file is None:
            return None
        sizes = file.tags.sizes[skipped : skipped + n]
    else:
        sizes = array("I", [size - MIN_FRAME_BYTES if size else 0 for size in index.frame_len])
        if any(flags):
            for i, flag in enumerate(flags):
                if flag & HAS_ORIGIN and sizes[i]:
                    sizes[i] -= ORIGIN_BYTES
    dead = index.flags.translate(_STATE_OF_FLAGS)
    if 0 in index.frame_len:
        # An entry without a frame is dead, also if its flags say that it is live.
        dead = bytes(state or (LIVE if size else DELETED) for state, size in zip(dead, index.frame_len, strict=True))
    return LoadedSpan(SpanColumns(index.ts, index.offset, index.frame_len, sizes, flags, dead), [])


def _derived(tiers: SegmentTiers, segment: Segment, kind: str, at: int, most: int) -> bytes:
    """Read `.idx` or `.tags`; of a cold segment the copy in the hot directory, or else the cold store's.

    Raises FileNotFoundError if neither exists.
    """
    if segment.tier == "cold":
        try:
            return tiers.hot.read_range(segment.topic_id, segment_name(segment.first, f"{kind}.cold"), at, most)
        except FileNotFoundError:
            pass
    return tiers.of(segment).read_range(segment.topic_id, segment_name(segment.first, kind), at, most)


class _TagsFile(NamedTuple):
    tags: SegmentTags
    blob: bytes


def _read_tags(tiers: SegmentTiers, segment: Segment) -> _TagsFile | None:
    if not segment.sealed:
        return None
    try:
        blob = _derived(tiers, segment, "tags", 0, 1 << 31)
        return _TagsFile(decode_tags(blob, segment.first, segment.n), blob)
    except FileNotFoundError:
        return None
    except SegmentDamaged as error:
        log.warning("tags_damaged", topic_id=segment.topic_id, segment=segment.first, problem=str(error))
        return None


def load_tags(tiers: SegmentTiers, segment: Segment, n: int, *, most_names: int = 0) -> LoadedTags:
    """Return the tags of the first `n` slots of a segment, or of more; positions count from its first seq.

    The result has a directory if there are at most `most_names` tags. Raises OSError. `n` is the number of slots when
    the caller starts this: an unsealed segment may grow meanwhile.
    """
    file = _read_tags(tiers, segment)
    if file is not None:
        found = LoadedTags(file.tags, damaged=False, directory=None)
    else:
        scanned = scan_segment(tiers, segment, segment.first, n)
        tags = decode_tags(encode_tags(segment.first, scanned.loaded.columns.size, scanned.tags), segment.first, n)
        found = LoadedTags(tags, bool(scanned.loaded.damaged), None)
    if len(found.tags) > most_names:
        return found
    return found._replace(directory=TagDirectory(found.tags, file.blob if file is not None else None))


def load_tag_parts(
    tiers: SegmentTiers, segment: Segment, directory: TagDirectory, parts: Sequence[int]
) -> TagColumns | None:
    """Return some parts of a segment's tags (`TagDirectory.parts_of`), read from its `.tags`; None if the file is not
    the one that the directory was made from, or is missing. Raises OSError."""
    try:
        return directory.read(partial(_derived, tiers, segment, "tags"), parts)
    except FileNotFoundError:
        return None


def scan_segment(tiers: SegmentTiers, segment: Segment, first: int, n: int) -> ScannedSegment:
    """Return columns and tags from one pass over `.data`. Raises OSError. If `.data` is missing, all records are
    damaged.

    Frames of seqs outside the range are ignored: an interrupted merge may have left them.
    """
    ts, offset, frame_len, size = array("Q", bytes(8 * n)), *(array("I", bytes(4 * n)) for _ in range(3))
    flags, dead = bytearray(n), bytearray(bytes((DELETED,)) * n)
    tags: list[str | None] = [None] * n
    damaged: list[tuple[int, int]] = []
    expected = first
    torn = False
    for rows in _frames(tiers, segment):
        if rows is None:
            torn = True
            continue
        for i, seq in enumerate(rows.seq):
            at = seq - first
            if not expected <= seq < first + n:
                continue  # a seq of another segment, or not above the seq before
            if torn and seq > expected:
                damaged.append((expected, seq - 1))
            torn = False
            expected = seq + 1
            ts[at], offset[at], frame_len[at], size[at] = rows.ts[i], rows.offset[i], rows.frame_len[i], rows.size[i]
            flags[at] = rows.flags[i] & (HAS_TAG | HAS_NODE | HAS_ORIGIN)
            tags[at] = rows.tag[i]
            dead[at] = DELETED if READS_AS_DELETED[rows.delete_flag[i]] else LIVE
    if torn and expected < first + n:
        damaged.append((expected, first + n - 1))
    if damaged:
        damaged = _known_live(_read_index(tiers, segment, first, n), first, damaged)
    for lo, hi in damaged:
        dead[lo - first : hi + 1 - first] = bytes(hi + 1 - lo)
    _fill_times(ts, frame_len)
    return ScannedSegment(
        LoadedSpan(SpanColumns(ts, offset, frame_len, size, bytes(flags), bytes(dead)), damaged), tags
    )


def _known_live(index: IndexColumns | None, first: int, damaged: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the parts of the damaged ranges that were live according to `.idx`; the whole ranges if `.idx` does not
    verify. Deleted records are not a loss."""
    if index is None:
        return damaged
    live = [
        seq
        for lo, hi in damaged
        for seq in range(lo, hi + 1)
        if index.frame_len[seq - first] and not index.flags[seq - first] & (IDX_DELETED | IDX_HOLE)
    ]
    return runs_of(live)


def runs_of(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """Return ascending seqs as inclusive ranges."""
    runs: list[tuple[int, int]] = []
    for seq in seqs:
        if runs and runs[-1][1] == seq - 1:
            runs[-1] = (runs[-1][0], seq)
        else:
            runs.append((seq, seq))
    return runs


def _frames(tiers: SegmentTiers, segment: Segment) -> Iterator[DataScan | None]:
    """Yield the verified frames of `.data`, window by window; None for changed or missing bytes."""
    name = segment_name(segment.first, "data")
    try:
        store = tiers.of(segment)
        if segment.tier == "cold" and tiers.objects is not None:
            tiers.objects.read_anew(segment.topic_id, segment.first)
        length = store.length(segment.topic_id, name)
    except FileNotFoundError:
        if segment.tier == "cold":
            raise  # the store is unavailable or was emptied: this is no reason to give the records up
        yield None
        return
    read = partial(store.read_range, segment.topic_id, name)
    layout = layout_of(read(0, FILE_HEADER_BYTES), segment.first, segment.salt)
    if layout.damage is not None:
        log.warning("segment_header_damaged", topic_id=segment.topic_id, file=name, problem=layout.damage)
    segment.read_salt = layout.salt if layout.salt is not None or layout.damage is None else segment.salt
    replaced = layout.header is not None and layout.salt != segment.salt
    entries = partial(_entries, tiers, segment)
    # A sealed file of version 1 may be another one than the part says, and is read whole.
    end = length if replaced or (segment.sealed and segment.salt is None) else min(length, segment.data_bytes)
    for found in frames_of(read, layout, end, range(segment.first, segment.end), entries):
        yield None if isinstance(found, BadBytes) else found
    if length < segment.data_bytes and not replaced and not _fits(segment, entries, length):
        yield None


def _entries(tiers: SegmentTiers, segment: Segment) -> list[IndexEntry] | None:
    """Return the frames that the segment's `.idx` names; None if `.idx` does not verify."""
    try:
        blob = _derived(tiers, segment, "idx", 0, INDEX_ENTRY_BYTES * segment.n)
    except OSError:
        return None
    return entries_of(blob, segment.first, segment.n)


def _fits(segment: Segment, entries: Callable[[], list[IndexEntry] | None], length: int) -> bool:
    """Return True if a sealed `.data` of version 1 that is shorter than its part says is whole all the same: a crash
    has left the part older than the file, and `.idx` names nothing beyond the file's end. A file of version 2 is told
    by its salt."""
    if segment.salt is not None or not segment.sealed:
        return False
    named = entries()
    return named is not None and (not named or named[-1].offset + named[-1].frame_len <= length)


def _fill_times(ts: array[int], frame_len: array[int]) -> None:
    """Give each slot without a frame the time of the slot before it, those in front the first time. Times never
    decrease."""
    last = next((time for time, size in zip(ts, frame_len, strict=True) if size), 0)
    for i, size in enumerate(frame_len):
        if size:
            last = ts[i]
        else:
            ts[i] = last
