"""Verifying one segment: `.data` frame by frame, `.idx` and `.tags` against it, and what the part says about it
(`docs/spec/storage.md` section 4, `docs/design/segments.md`).

`.data` is the truth; the others are compared with columns made from it. Columns are compared as a whole, and slot by
slot only where they differ. It takes the memory of one segment's columns and tags.

A part may be older than the files it names: an interrupted checkpoint, rewrite or removal leaves flags that it does not
count, or a `.data` that was replaced. Then the log has frames of the topic, so the next start examines it. For such a
topic (`ahead`) a contradiction between part and files is a note; bytes that do not verify are always damage.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from operator import le, lt
from typing import Final, NamedTuple

from topics.log.span import Span
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.offline.findings import DAMAGE, NOTE, SECTOR, Finding, Severity, bounded
from topics.storage.offline.topic_parts import StoredHole
from topics.storage.offline.verify_sums import LastRead, SumCheck
from topics.storage.offline.verify_trees import SegmentLeaves
from topics.storage.segments.data_files import deletions_path
from topics.storage.segments.deletion_file import decode_deletions, deletions_are_whole
from topics.storage.segments.index_format import (
    HOLE_LOST,
    HOLE_SOURCE_TRIM,
    IDX_DELETED,
    IDX_HOLE,
    INDEX_ENTRY_BYTES,
    IndexColumns,
    decode_index,
)
from topics.storage.segments.packed_format import PackHeader, header_of
from topics.storage.segments.packed_reads import pack_problems
from topics.storage.segments.segment_format import (
    DELETED_FLAG,
    KEPT_FLAGS,
    LIVE_FLAG,
    READS_AS_DELETED,
    DataScan,
    SegmentDamaged,
    reads_as_deleted,
)
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_scan import (
    BadBytes,
    DataLayout,
    IndexEntry,
    Read,
    entries_of,
    frames_of,
    layout_of,
)
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.tags_format import decode_tags, encode_tags
from topics.storage.segments.topic_segments import Segment
from topics.storage.wal.frames import HAS_TAG

LOOKS: Final = 3
"""How often a packed file that looks damaged is looked at, if it was replaced meanwhile."""

_WHOLE: Final = 1 << 31
"""No list of deletions is as long."""

_VALID_FLAGS: Final = bytes(flags for flags in range(256) if not flags & ~KEPT_FLAGS)
_CHECK_AT: Final = 17
_DELETED_BIT: Final = 8 * (_CHECK_AT - 1) + IDX_DELETED.bit_length() - 1
"""The bit of the deletion in an entry of `.idx`."""
_VALID_DELETE_FLAGS: Final = bytes((LIVE_FLAG, DELETED_FLAG))
_TAGGED: Final = bytes(flags & HAS_TAG for flags in range(256))

Problems = list[tuple[int | None, str]]


class FilePlace(NamedTuple):
    """A file: its store, its name there, and its path for people."""

    store: SegmentStore
    topic_id: int
    name: str
    path: str

    def length(self) -> int:
        """Return its length in bytes. Raises FileNotFoundError if it is missing."""
        return self.store.length(self.topic_id, self.name)

    def read(self, offset: int, length: int) -> bytes:
        """Return `length` bytes; fewer at the end."""
        return self.store.read_range(self.topic_id, self.name, offset, length)


class _Slots:
    """The frames of `.data`, slot by slot; a slot without a frame has a `frame_len` of 0."""

    def __init__(self, segment: Segment) -> None:
        n = segment.n
        self.first = segment.first
        self.n = n
        self.ts = array("Q", bytes(8 * n))
        self.offset, self.frame_len, self.size = (array("I", bytes(4 * n)) for _ in range(3))
        self.flags = bytearray(n)
        self.delete_flag = bytearray(n)
        self.tags: list[str | None] = [None] * n
        self.bad: list[tuple[int, int]] = []
        """Ranges of the file that have no valid frame."""

    def put(self, rows: DataScan) -> int:
        """Add the frames of a window. Return how many have seqs outside the segment."""
        seqs, count = rows.seq, len(rows.seq)
        a = seqs[0] - self.first
        if a >= 0 and seqs[-1] - seqs[0] == count - 1 and a + count <= self.n:
            b = a + count
            self.ts[a:b], self.offset[a:b], self.frame_len[a:b] = rows.ts, rows.offset, rows.frame_len
            self.size[a:b], self.flags[a:b], self.delete_flag[a:b] = rows.size, rows.flags, rows.delete_flag
            self.tags[a:b] = rows.tag
            return 0
        outside = 0
        for i, seq in enumerate(seqs):
            at = seq - self.first
            if not 0 <= at < self.n:
                outside += 1
                continue
            self.ts[at], self.offset[at], self.frame_len[at] = rows.ts[i], rows.offset[i], rows.frame_len[i]
            self.size[at], self.flags[at], self.delete_flag[at] = rows.size[i], rows.flags[i], rows.delete_flag[i]
            self.tags[at] = rows.tag[i]
        return outside

    def in_bad_range(self, offset: int) -> bool:
        return any(start <= offset < stop for start, stop in self.bad)


def _entries(index: FilePlace, slots: _Slots) -> list[IndexEntry] | None:
    """Return the frames that an `.idx` names; None if it cannot be believed."""
    try:
        return entries_of(index.read(0, INDEX_ENTRY_BYTES * slots.n), slots.first, slots.n)
    except OSError:
        return None


class SegmentCheck:
    """Verifies the segments of one topic, as one part has them."""

    def __init__(
        self,
        tiers: SegmentTiers,
        topic_id: int,
        topic: str,
        path_of: Callable[[str, str], str],
        holes: Sequence[StoredHole],
        *,
        ahead: bool,
        leaves: SegmentLeaves | None = None,
    ) -> None:
        self._tiers = tiers
        self._topic = topic
        self._leaves = leaves
        """Compares records with their leaves, if the topic has evidence."""
        self._topic_id = topic_id
        self._path_of = path_of
        """Returns the path for people of a name in a tier."""
        self._holes = holes
        self._ahead = self._may_differ = ahead
        self._against_part: Severity = "note" if ahead else "damage"

    def findings(self, segment: Segment, span: Span | None, *, is_front: bool) -> Iterator[Finding]:
        """Yield all problems of a segment whose files are available; `span` is None if its records are all gone.

        Raises OSError if a store does not answer.
        """
        # If an eviction comes during a rewrite, the file is not the one that the part counts. It is never read.
        self._may_differ = self._ahead or span is None
        self._against_part = "note" if self._may_differ else "damage"
        data = self._place(segment, "data", segment.tier)
        slots = yield from self._data(data, segment, needed=span is not None)
        unflagged = set(span.unflagged or ()) if span is not None else set()
        columns = None
        for place in self._derived(segment, "idx"):
            found = yield from self._index(place, segment, slots, unflagged, needed=span is not None)
            columns = columns or found
        if segment.sealed:
            for place in self._derived(segment, "tags"):
                yield from self._tags(place, segment, slots, span, unflagged)
        if span is not None and slots is not None and not slots.bad:
            yield from self._summary(data.path, segment, span, slots, columns, unflagged, is_front=is_front)

    def _place(self, segment: Segment, kind: str, tier: str) -> FilePlace:
        name = segment_name(segment.first, kind)
        store = self._tiers.hot if tier == "hot" else self._tiers.cold
        assert store is not None, "a cold segment without a cold store"
        return FilePlace(store, self._topic_id, name, self._path_of(tier, name))

    def _derived(self, segment: Segment, kind: str) -> list[FilePlace]:
        if segment.tier == "hot":
            return [self._place(segment, kind, "hot")]
        return [self._place(segment, kind, "cold"), self._place(segment, f"{kind}.cold", "hot")]

    # -- .data --------------------------------------------------------------------------------------------------------

    def _data(self, place: FilePlace, segment: Segment, *, needed: bool) -> Generator[Finding, None, _Slots | None]:
        try:
            length = place.length()
        except FileNotFoundError:
            if needed:
                seqs = f"seqs {segment.first} to {segment.end - 1}"
                yield Finding(place.path, None, f"is missing: it should hold {seqs}", "damage")
            return None
        counted = segment.data_bytes
        layout = layout_of(place.read(0, FILE_HEADER_BYTES), segment.first, segment.salt)
        if length < counted:
            # An interrupted rewrite leaves a shorter file, of a topic that the next start examines. It has another
            # salt; in a directory of version 1 it cannot be told from a file that was cut.
            replaced = layout.salt is None or (layout.header is not None and layout.salt != segment.salt)
            severity = self._against_part if segment.sealed and replaced else "damage"
            yield Finding(place.path, length, f"ends here, and {counted} bytes were on disk", severity)
        elif length > counted:
            yield Finding(place.path, counted, f"{length - counted} bytes that no checkpoint has counted", "note")
        yield from self._packed(place)
        slots = _Slots(segment)
        if layout.damage is not None and length:
            yield Finding(place.path, 0, layout.damage, "damage")
        elif layout.salt != segment.salt:
            yield Finding(place.path, 0, "another file than the part knows: its salt differs", self._against_part)
        # A sealed file that was replaced is another one than the part knows: it is read whole.
        end = length if segment.sealed and self._may_differ else min(length, counted)
        last_seq, last_ts, outside = segment.first - 1, 0, 0
        read = LastRead(place.read)
        total = SumCheck(read, segment, layout)
        for rows in self._windows(place, read, end, slots, layout):
            yield from self._rows(place.path, rows, last_seq, last_ts)
            total.add(rows)
            if self._leaves is not None:
                self._leaves.compare(read, rows)
            last_seq, last_ts = rows.seq[-1], rows.ts[-1]
            outside += slots.put(rows)
        if self._leaves is not None:
            yield from self._leaves.findings(place.path)
        for start, stop in slots.bad:
            yield Finding(place.path, start, self._lost(slots, start, stop), "damage")
        if not slots.bad and total.differs():
            problem = f"its SHA-256 is not the one that topic {self._topic!r} has of it: it was written again since"
            yield Finding(place.path, None, problem, "damage")
        if outside:
            problem = f"{outside} records with seqs outside of {segment.first} to {segment.end - 1}"
            yield Finding(place.path, None, problem, self._against_part)
        found = segment.n - slots.frame_len.count(0)
        if found != segment.frames and not slots.bad:
            problem = f"{found} records, and the part says {segment.frames}"
            yield Finding(place.path, None, problem, self._against_part)
        return slots

    def _packed(self, place: FilePlace) -> Iterator[Finding]:
        """Yield the damage of the blocks of a packed file, and that of its `.del`. A daemon that works on the directory
        may replace both at any moment, and the part need not say so; then they are looked at again."""
        read = partial(place.store.read_stored, place.topic_id, place.name)
        listed = place._replace(name=deletions_path(place.name), path=deletions_path(place.path))

        def look() -> tuple[int, PackHeader | None]:
            size = place.store.stored_length(place.topic_id, place.name)
            return size, header_of(read, size)[0]

        before, findings = look(), list[Finding]()
        for _ in range(LOOKS):
            findings = [Finding(place.path, at, problem, "damage") for at, problem in pack_problems(read, before[0])]
            findings += _of_list(listed, before[1])
            if not findings or (now := look()) == before:
                break
            before = now
        yield from findings

    def _windows(self, place: FilePlace, read: Read, end: int, slots: _Slots, layout: DataLayout) -> Iterator[DataScan]:
        """Yield the valid frames of the first `end` bytes, and add the ranges without any to `slots.bad`."""
        seqs = range(slots.first, slots.first + slots.n)
        index = place._replace(name=segment_name(slots.first, "idx"))
        for found in frames_of(read, layout, end, seqs, partial(_entries, index, slots)):
            if isinstance(found, BadBytes):
                slots.bad.append((found.start, found.stop))
            else:
                yield found

    def _rows(self, path: str, rows: DataScan, last_seq: int, last_ts: int) -> Iterator[Finding]:
        """Check the contents of valid frames."""
        problems: Problems = []
        seqs, times = rows.seq, rows.ts
        if seqs[0] <= last_seq or not all(map(lt, seqs, seqs[1:])):
            before = [last_seq, *seqs]
            problems += [
                (rows.offset[i], f"seq {seq} behind seq {before[i]}") for i, seq in enumerate(seqs) if seq <= before[i]
            ]
        if times[0] < last_ts or not all(map(le, times, times[1:])):
            earlier = [last_ts, *times]
            problems += [
                (rows.offset[i], f"seq {seqs[i]}: time goes back") for i, ts in enumerate(times) if ts < earlier[i]
            ]
        if rows.flags.translate(None, _VALID_FLAGS):
            problems += [
                (rows.offset[i], f"seq {seqs[i]}: flags {flags:#04x}")
                for i, flags in enumerate(rows.flags)
                if flags & ~KEPT_FLAGS
            ]
        if rows.flags.translate(_TAGGED) != bytes([tag is not None for tag in rows.tag]):
            problems.append((None, "flags and tags do not agree"))
        torn: Problems = []
        if rows.delete_flag.translate(None, _VALID_DELETE_FLAGS):
            for i, flag in enumerate(rows.delete_flag):
                if flag not in _VALID_DELETE_FLAGS:
                    reads = "deleted" if reads_as_deleted(flag) else "live"
                    at = rows.offset[i] + rows.frame_len[i] - 1
                    one_bit = 1 in (flag.bit_count(), (flag ^ DELETED_FLAG).bit_count())
                    # A crash may leave any value in a byte that was being written; the next start writes it again.
                    which = problems if one_bit or not self._ahead else torn
                    which.append((at, f"seq {seqs[i]}: delete flag {flag:#04x}, read as {reads}"))
        yield from bounded(path, torn, "note")
        yield from bounded(path, problems, "damage")

    @staticmethod
    def _lost(slots: _Slots, start: int, stop: int) -> str:
        """Return what is known of the records in a bad range."""
        held = [(offset, i) for i, (offset, size) in enumerate(zip(slots.offset, slots.frame_len, strict=True)) if size]
        before = max((i for offset, i in held if offset < start), default=-1)
        behind = min((i for offset, i in held if offset >= stop), default=slots.n)
        seqs = f"seqs {slots.first + before + 1} to {slots.first + behind - 1}"
        return f"the bytes up to {stop} are no valid frames: records among {seqs}"

    # -- .idx ---------------------------------------------------------------------------------------------------------

    def _index(
        self, place: FilePlace, segment: Segment, slots: _Slots | None, unflagged: set[int], *, needed: bool
    ) -> Generator[Finding, None, IndexColumns | None]:
        """Compare an `.idx` with `.data`. Return its columns if all of it can be believed."""
        counted = INDEX_ENTRY_BYTES * segment.n
        try:
            length, blob = place.length(), place.read(0, counted)
        except FileNotFoundError:
            if needed:
                yield Finding(place.path, None, "is missing: readers use .data instead", "note")
            return None
        if length < counted:
            problem = f"{length // INDEX_ENTRY_BYTES} whole entries, and the part says {segment.n}"
            yield Finding(place.path, length, problem, self._against_part)
        elif length > counted:
            yield Finding(place.path, counted, f"{length - counted} bytes that no checkpoint has counted", "note")
        index = decode_index(blob)
        bad = set(index.bad)
        torn = {i for i in bad if self._ahead and _is_torn(blob, i)}
        for which, severity in ((bad - torn, DAMAGE), (torn, NOTE)):
            failed = [
                (INDEX_ENTRY_BYTES * i, f"seq {segment.first + i}: the check does not hold") for i in sorted(which)
            ]
            yield from bounded(place.path, failed, severity)
        m = len(index.flags)
        if not bad and not all(map(le, index.ts, index.ts[1:])):
            yield Finding(place.path, None, "time goes back", "damage")
        if slots is not None and not self._same(index, slots, m):
            problems = [
                (INDEX_ENTRY_BYTES * i, f"seq {segment.first + i}: {differs}")
                for i in range(m)
                if i not in bad and (differs := self._differs(index, slots, i, unflagged))
            ]
            yield from bounded(place.path, problems, self._against_part)
        return None if bad or m < segment.n else index

    @staticmethod
    def _same(index: IndexColumns, slots: _Slots, m: int) -> bool:
        """Return True if every slot with a frame has the right entry, and every other slot an entry without a frame."""
        columns = (index.offset, index.frame_len, index.ts, index.flags)
        offset, frame_len, ts, flags = slots.offset[:m], slots.frame_len[:m], slots.ts[:m], bytearray(slots.flags[:m])
        deleted = slots.delete_flag[:m].translate(READS_AS_DELETED)
        if 1 in deleted:
            flags = bytearray(flag | IDX_DELETED if gone else flag for flag, gone in zip(flags, deleted, strict=True))
        if 0 in frame_len:
            for i, size in enumerate(frame_len):
                if not size:
                    if index.flags[i] & IDX_HOLE and not HOLE_LOST <= index.offset[i] <= HOLE_SOURCE_TRIM:
                        return False
                    if not index.flags[i] & (IDX_HOLE | IDX_DELETED):
                        return False
                    offset[i], ts[i], flags[i] = index.offset[i], index.ts[i], index.flags[i]
        return columns == (offset, frame_len, ts, bytes(flags))

    @staticmethod
    def _differs(index: IndexColumns, slots: _Slots, i: int, unflagged: set[int]) -> str | None:
        """Return the problem of an entry whose own check is right, None for none."""
        offset, size, flags = index.offset[i], index.frame_len[i], index.flags[i]
        there = slots.frame_len[i]
        if not size:
            if there:
                return f"no place for the record at {slots.offset[i]}"
            if flags & IDX_HOLE:
                return None if HOLE_LOST <= offset <= HOLE_SOURCE_TRIM else f"a hole for the unknown reason {offset}"
            return None if flags & IDX_DELETED else "no place, and neither deleted nor a hole"
        if not there:
            return None if slots.in_bad_range(offset) else f"no record of it at {offset}"
        if (offset, size) != (slots.offset[i], there):
            return f"{size} bytes at {offset}, and the record has {there} at {slots.offset[i]}"
        if index.ts[i] != slots.ts[i]:
            return f"time {index.ts[i]}, and the record has {slots.ts[i]}"
        if flags & IDX_HOLE or flags & ~IDX_DELETED != slots.flags[i]:
            return f"flags {flags:#04x}, and the record has {slots.flags[i]:#04x}"
        if bool(flags & IDX_DELETED) != reads_as_deleted(slots.delete_flag[i]) and slots.first + i not in unflagged:
            return "deleted, and the record is not" if flags & IDX_DELETED else "not deleted, and the record is"
        return None

    # -- .tags --------------------------------------------------------------------------------------------------------

    def _tags(
        self, place: FilePlace, segment: Segment, slots: _Slots | None, span: Span | None, unflagged: set[int]
    ) -> Iterator[Finding]:
        try:
            blob = place.read(0, place.length())
        except FileNotFoundError:
            if span is not None:
                yield Finding(place.path, None, "is missing: readers use .data instead", "note")
            return
        if slots is not None and blob == encode_tags(segment.first, slots.size, slots.tags):
            return
        try:
            tags = decode_tags(blob, segment.first, segment.n)
        except SegmentDamaged as error:
            about_another = str(error).startswith("a .tags file is about")
            yield Finding(place.path, None, str(error), self._against_part if about_another else "damage")
            return
        if slots is None or slots.bad:
            return
        names: list[str | None] = [None] * segment.n
        for tag, positions in tags.items():
            for i in positions:
                names[i] = tag
        problems: Problems = []
        for i, (name, size) in enumerate(zip(names, tags.sizes, strict=True)):
            seq = segment.first + i
            if name != slots.tags[i]:
                problems.append((None, f"seq {seq}: tag {name!r}, and the record has {slots.tags[i]!r}"))
            elif size != slots.size[i] and not (size == 0 and self._is_dead(seq, slots, span, unflagged)):
                problems.append((None, f"seq {seq}: {size} bytes, and the record has {slots.size[i]}"))
        yield from bounded(place.path, problems, self._against_part)

    def _is_dead(self, seq: int, slots: _Slots, span: Span | None, unflagged: set[int]) -> bool:
        return (
            reads_as_deleted(slots.delete_flag[seq - slots.first])
            or seq in unflagged
            or span is None
            or seq < span.first + span.start
            or any(hole.first <= seq <= hole.last for hole in self._holes)
        )

    # -- what the part says -------------------------------------------------------------------------------------------

    def _summary(
        self,
        path: str,
        segment: Segment,
        span: Span,
        slots: _Slots,
        index: IndexColumns | None,
        unflagged: set[int],
        *,
        is_front: bool,
    ) -> Iterator[Finding]:
        """Count the span's live slots again, from the files, `unflagged` and the holes."""
        skipped = span.first - segment.first
        a, b = skipped + span.start, skipped + span.n
        deleted = slots.delete_flag.translate(READS_AS_DELETED)
        for seq in unflagged:
            deleted[seq - segment.first] = 1
        in_hole = bytearray(segment.n)
        for hole in self._holes:
            lo, hi = max(hole.first - segment.first, 0), min(hole.last + 1 - segment.first, segment.n)
            if lo < hi:
                in_hole[lo:hi] = b"\1" * (hi - lo)
        live = [i for i in range(a, b) if slots.frame_len[i] and not deleted[i] and not in_hole[i]]
        if len(live) > span.live:
            problem = f"{len(live)} live records, and the part says {span.live}: deleted ones have come back"
            yield Finding(path, None, problem, "damage")
        elif len(live) < span.live:
            problem = f"{len(live)} live records, and the part says {span.live}"
            yield Finding(path, None, problem, self._against_part)
        else:
            size = sum(slots.size[i] for i in live)
            tagged = sum(slots.flags[i] & HAS_TAG for i in live)
            if (size, tagged) != (span.bytes, span.tagged):
                problem = f"{size} bytes and {tagged} tags live, and the part says {span.bytes} and {span.tagged}"
                yield Finding(path, None, problem, "damage")
        times = [slots.ts[i] for i in range(a, b) if slots.frame_len[i]]
        if times and not span.first_ts <= times[0] <= times[-1] <= span.last_ts:
            problem = f"times {times[0]} to {times[-1]}, and the part says {span.first_ts} to {span.last_ts}"
            yield Finding(path, None, problem, "damage")
        if is_front and not (live and live[0] == a):
            problem = f"seq {segment.first + a}, the earliest by the part, is not live"
            yield Finding(path, None, problem, self._against_part)
        if index is not None:
            yield from self._lost_slots(path, segment, span, index, deleted, in_hole, (a, b))

    def _lost_slots(
        self,
        path: str,
        segment: Segment,
        span: Span,
        index: IndexColumns,
        deleted: bytearray,
        in_hole: bytearray,
        slots: tuple[int, int],
    ) -> Iterator[Finding]:
        lost = 0
        for i in range(*slots):
            flags = index.flags[i]
            lost += in_hole[i] and not deleted[i] and not flags & IDX_DELETED
            if flags & IDX_HOLE and not in_hole[i]:
                problem = f"seq {segment.first + i} is lost by .idx, and in no hole of the part"
                yield Finding(path, None, problem, self._against_part)
                return
        if lost != span.lost:
            problem = f"{lost} slots are in holes, and the part says {span.lost}"
            yield Finding(path, None, problem, self._against_part)


def _of_list(place: FilePlace, header: PackHeader | None) -> Iterator[Finding]:
    """Yield the damage of a `.del`, given the header of its `.data`, None if that is not packed."""
    try:
        blob = place.read(0, _WHOLE)  # of one file: its length is not asked for before
    except FileNotFoundError:
        return
    found = decode_deletions(blob)
    if header is None or (found is not None and found.generation != header.generation):
        yield Finding(place.path, None, "is about another file than .data: it says nothing", "note")
    elif not deletions_are_whole(blob):
        yield Finding(place.path, None, "its two copies differ, or do not verify", "damage")


def _is_torn(entries: bytes, i: int) -> bool:
    """Return True if a bad entry may be a torn write of its flags, rather than one changed bit."""
    at = INDEX_ENTRY_BYTES * i
    entry = bytearray(entries[at : at + INDEX_ENTRY_BYTES])
    for bit in range(8 * INDEX_ENTRY_BYTES):
        entry[bit // 8] ^= 1 << bit % 8
        if not decode_index(bytes(entry)).bad:
            # The flags are of the old entry and the check of the new one, or the other way round.
            return bit == _DELETED_BIT and (at + _CHECK_AT) % SECTOR == 0
        entry[bit // 8] ^= 1 << bit % 8
    return True
