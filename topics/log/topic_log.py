"""A topic in memory: which records there are, which are gone, and what a reader is told about those.

Theory of operation (`docs/spec/semantics.md` sections 3 and 4)
-----------------------------------------------------

A seq up to `head_seq` is in one of three states; a live one becomes one of the other two, which are final:

    live       a reader gets the record
    deleted    somebody asked for it: never announced
    lost       nobody asked for it (cap, ttl, restart, crash, damage, a router's gap): always announced, with a reason

Two floors say how far the front has been eaten away.

    1 ... evict_floor ... earliest_seq ... head_seq
      |             |               |
      |             |               '- live, deleted or lost (a *hole*); earliest_seq itself is live
      |             '- every seq in [evict_floor, earliest_seq) was deleted
      '- lost or deleted; evict_floor - 1 was lost

`earliest_seq` is the first live seq, `head_seq + 1` when there is none. `evict_floor` is one past the highest seq below
`earliest_seq` that was lost, 1 if none was. So a reader that wants what is at or above `evict_floor` has missed only
what was deleted, and is told nothing; one that wants what is below it has missed at least seq `evict_floor - 1`, and
is told so.

What moves them:

- *Eviction* (cap, ttl) makes live seqs at the front lost: both floors move. `evict_floor` follows the last record that
  was live, not the watermark: deleted slots under the watermark are nobody's loss.
- *Deletion* makes live seqs anywhere deleted. At the front it moves `earliest_seq` alone, in the middle neither.
- A *hole* lies above `earliest_seq` at first, and is announced where a reader meets it. When everything live before it
  is gone, for whatever reason, the front passes it: `earliest_seq` jumps behind it, the hole is forgotten as such, and
  `evict_floor` moves past its end. A deletion can thereby move `evict_floor`, but only over a hole, never over its own.

What can never happen: a floor that goes back; `evict_floor > earliest_seq`; a hole that reaches below `earliest_seq` or
contains a live seq; a seq in [earliest_seq, head_seq] that has no slot and is in no hole.

A floor gap always ends at `earliest_seq - 1`. Whether a reason belongs into it depends therefore only on the highest
seq that was lost for that reason, and remembering one seq per reason is exact: `reason` is the one whose highest seq
is inside the gap, `mixed` if there are several. `missed_estimate` needs to know which seqs below `evict_floor` were
deleted; they are kept as at most `MAX_DELETED_RUNS` runs, the oldest forgotten, which is what makes it an estimate
(it errs upwards). At or above `evict_floor` nothing needs to be remembered, and a topic that never lost anything
remembers nothing.

Stored records (`docs/design/segments.md` section 1)
----------------------------------------------------

Old records are in segments, and single slots of them in memory only while a cache has them (`record_index`). Everything
above is exact all the same. A method that needs columns which are not here raises `NotLoaded` and has changed nothing:
it finds out where the floors will be, and what that takes, before it moves them. Two things are not worth a disk
access. Deletions in a segment that is evicted while it is not loaded are forgotten: the estimate errs upwards, as it
may. Nor does a sweep of the tag index ask for columns: what it cannot tell, it keeps.

    raw -- capture_raw, written to a segment, store --> stored, loaded <-- detach, attach --> stored, not loaded

Between capture and `store` records may die. `store` takes what they are by then and notes which of them the file has
as live; `attach` brings what a file says into line with what the log knows, in either direction.

The tag index of a sealed segment is in its files too. So the one in memory is complete only for live records from
`tags_from` on; `matching` answers for those, and whoever wants all of them looks into the files of `spans_with_tags`
for the rest. Postings below `tags_from` are garbage like those of dead records, and counted once:

    postings - garbage = live records with a tag, at or above tags_from
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any, Final, Literal, NamedTuple, cast

from topics.log.record_index import (
    DELETED,
    FLAG_DERIVED,
    LIVE,
    LIVE_TO_LOST,
    LOST,
    NOT_DERIVED,
    STORED_MARK,
    STORED_SLOT_BYTES,
    SUMMARY_FIELDS,
    NotLoaded,
    RecordIndex,
    Span,
    Sum,
    from_little_endian,
    little_endian,
    whole,
)
from topics.log.tag_index import TagIndex
from topics.log.tag_match import Match
from topics.model import Tombstone

LossReason = Literal["cap", "ttl", "mixed", "source_trim", "lost", "corrupt"]
_REASONS: Final = frozenset({"cap", "ttl", "mixed", "source_trim", "lost", "corrupt"})

# 4 KiB a topic at most. A reader far behind a topic with scattered deletions gets an estimate that is a little high.
MAX_DELETED_RUNS = 256

# A hole this short takes slots in the last span instead of a span break: a router that skips every other record
# (one-seq holes) would otherwise make a span of each record between them.
_SHORT_HOLE: Final = 64

# Frames closer together than this are read in one go: reading a page more is cheaper than asking twice.
_MAX_READ_GAP: Final = 4096
_MAX_READ: Final = 4 << 20

# Sweeping begins when a quarter of the tag postings is garbage and does four units of work for each further one that
# dies, so a round of it ends before half is. A call is bounded all the same; see `tidy`.
_SWEEP_SHARE: Final = 4
_SWEEP_UNITS_PER_DEATH: Final = 4
_SWEEP_MIN: Final = 64
_SWEEP_UNITS: Final = 4096

_UNTAGGED_FLAGS: Final = bytes(flags for flags in range(256) if not flags & 0x01)
_DEAD_RUN: Final = re.compile(rb"[^\0]+")
_LOST_RUN: Final = re.compile(rb"\x02+")


class Extent(NamedTuple):
    """One published run of records with contiguous seqs, as a commit leaves it.

    `ts` (epoch ms) is shared by all of them. `file` is the id of the file that holds the frames, or one each; 0 =
    nowhere (yet). `offsets` are where each frame begins in it, zeros when unknown, and `frame_lens` how many bytes from
    there on belong to the frame. `sizes` are the bytes of data + meta. `flags` has a byte per record: bit0 has_tag,
    bit1 has_node, bit5 has_origin, bit7 derived (`copies`). `tags` is None when no record has one.
    """

    first_seq: int
    ts: int
    file: int | array[int]
    offsets: Sequence[int]
    frame_lens: array[int]
    sizes: array[int]
    flags: bytes
    tags: Sequence[str | None] | None


class Run(NamedTuple):
    """Live records with contiguous seqs, both ends inclusive."""

    first: int
    last: int


class Gap(NamedTuple):
    """A hole that a reader has met, both ends inclusive. `missed` is without the seqs known to have been deleted."""

    first: int
    last: int
    reason: LossReason
    missed: int


class FrameRange(NamedTuple):
    """One read: `length` bytes from `offset` on. In them the frame of `seqs[i]` begins at `starts[i]`.

    They are in WAL file `file` or, of stored records, in `segment` (then `file` is 0). `derived`: they are frames of
    another topic, of which those seqs are copies.
    """

    file: int
    offset: int
    length: int
    seqs: array[int]
    starts: array[int]
    frame_lens: array[int]
    segment: object | None = None
    derived: bool = False


class RawRun(NamedTuple):
    """Copies of raw slots with contiguous seqs from `first` on, as of one moment. `dead` has LIVE, DELETED or LOST."""

    first: int
    ts: array[int]
    file: array[int]
    offset: array[int]
    frame_len: array[int]
    size: array[int]
    flags: bytes
    dead: bytes


class SpanColumns(NamedTuple):
    """What a segment's files say about the slots of a stored span; `ts` never decreases. See `TopicLog.attach`."""

    ts: array[int]
    offset: array[int]
    frame_len: array[int]
    size: array[int]
    flags: bytes
    dead: bytes


class Summary(NamedTuple):
    """What is always known of a span. Slots before `start` are dropped, and none of the rest counts them."""

    first: int
    n: int
    start: int
    live: int
    lost: int
    bytes: int
    tagged: int
    first_ts: int
    last_ts: int


assert Summary._fields == SUMMARY_FIELDS


class _Hole(NamedTuple):
    first: int
    last: int
    reason: LossReason


class TopicLog:
    """The records of one topic instance and its floors. Pure: nothing in here waits, reads a clock or does I/O.

    `head_seq`: the last seq given out to a published record or a hole, 0 for none. `earliest_seq`, `evict_floor`: see
    above. `count`, `bytes`: live records and their payload bytes. `last_ts`: time of the newest record ever (epoch ms).
    `tags_from`: the first seq whose tag `matching` knows. `on_lost(first, last)` is told when records that were there
    have turned out to be lost: some of those seqs are not live any more.

    Any method may raise NotLoaded that does not say otherwise.
    """

    __slots__ = (
        "_causes",
        "_deleted",
        "_holes",
        "_index",
        "_tags",
        "bytes",
        "count",
        "earliest_seq",
        "evict_floor",
        "head_seq",
        "last_ts",
        "on_lost",
        "tags_from",
    )

    def __init__(self) -> None:
        self.head_seq = 0
        self.earliest_seq = 1
        self.evict_floor = 1
        self.count = 0
        self.bytes = 0
        self.last_ts = 0
        self.tags_from = 1
        self.on_lost: Callable[[int, int], None] | None = None
        self._index = RecordIndex()
        self._tags: TagIndex | None = None
        # Ascending, disjoint, all at or above earliest_seq; neighbours that touch differ in their reason.
        self._holes: list[_Hole] | None = None
        # Reason -> the highest seq below earliest_seq that was lost for it.
        self._causes: dict[LossReason, int] | None = None
        # Known deleted seqs below evict_floor: first and last of each run, flat, ascending.
        self._deleted: array[int] | None = None

    # -- publication -------------------------------------------------------------------------------------------------

    def extend(self, extent: Extent) -> None:
        """Publish a commit's records: they follow the head, and are not older than the newest record. Asks for no
        columns."""
        n = len(extent.flags)
        self.extend_records(
            extent.first_seq,
            array("Q", (extent.ts,)) * n,
            extent.file,
            extent.offsets,
            extent.frame_lens,
            extent.sizes,
            extent.flags,
            extent.tags,
        )

    def extend_records(
        self,
        first_seq: int,
        ts: array[int],
        file: int | array[int],
        offsets: Sequence[int],
        frame_lens: array[int],
        sizes: array[int],
        flags: bytes | bytearray,
        tags: Sequence[str | None] | None,
    ) -> None:
        """The same for records with times of their own (`ts`, u64, never decreasing), as replay finds them."""
        n = len(flags)
        tagged = len(flags.translate(None, _UNTAGGED_FLAGS))
        assert n > 0
        assert first_seq == self.head_seq + 1, (first_seq, self.head_seq)
        assert ts[0] >= self.last_ts, (ts[0], self.last_ts)
        assert len(ts) == len(offsets) == len(frame_lens) == len(sizes) == n
        assert tagged == (0 if tags is None else n - tags.count(None)), "flags and tags disagree"
        places = offsets if isinstance(offsets, array) else array("I", offsets)
        files = array("I", (file,)) * n if isinstance(file, int) else file
        self._index.append(first_seq, ts, files, places, frame_lens, sizes, flags, tagged=tagged)
        self.head_seq += n
        self.count += n
        self.bytes += sum(sizes)
        self.last_ts = ts[-1]
        if tagged and tags is not None:
            if self._tags is None:
                self._tags = TagIndex()
            self._tags.add_batch(first_seq, tags)
            self._sweep(tagged)

    def expect_tags(self, first_seq: int, tags: Sequence[str | None]) -> None:
        """The tags of records that are about to be published, `first_seq` past the head, with nothing else before them.

        For a batch so large that its tags are indexed a piece at a time; `extend_spans` then publishes all of it.
        """
        assert first_seq > self.head_seq
        if self._tags is None:
            self._tags = TagIndex()
        self._tags.add_batch(first_seq, tags)

    def extend_spans(self, spans: Sequence[Span]) -> None:
        """Publish the records of spans (`Span.of_live`) that follow the head and one another; their tags are expected.

        Costs nothing per record. Asks for no columns.
        """
        assert spans[0].first == self.head_seq + 1, (spans[0].first, self.head_seq)
        assert spans[0].first_ts >= self.last_ts, (spans[0].first_ts, self.last_ts)
        assert all(a.end == b.first for a, b in pairwise(spans))
        self._index.attach(spans)
        self.head_seq = spans[-1].end - 1
        self.count += sum(span.live for span in spans)
        self.bytes += sum(span.bytes for span in spans)
        self.last_ts = spans[-1].last_ts

    def place(self, first_seq: int, file: int, offsets: Sequence[int], frame_lens: array[int] | None = None) -> None:
        """Say where the frames of published records are: `offsets[i]` in `file` for seq `first_seq + i`.

        `frame_lens` says how long they are where that was not known before, or where they were another topic's. Records
        that are gone or stored by now are skipped.
        """
        places = offsets if isinstance(offsets, array) else array("I", offsets)
        for span, a, b in self._index.parts(first_seq, first_seq + len(places)):
            if span.stored:
                continue
            at = span.first + a - first_seq
            span.offset[a:b] = places[at : at + b - a]
            span.file[a:b] = array("I", (file,)) * (b - a)
            if frame_lens is not None:
                span.frame_len[a:b] = frame_lens[at : at + b - a]
                span.flags[a:b] = span.flags[a:b].translate(NOT_DERIVED)

    def tags_by_name(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Every tag with the seqs of its records, those from `tags_from` on; gone records may be among them. Nothing
        may change the topic before the end of it."""
        return self._tags.items() if self._tags is not None else iter(())

    # -- where the bytes are -----------------------------------------------------------------------------------------

    def locate(self, first: int, last: int, max_range: int = _MAX_READ) -> list[FrameRange]:
        """The reads that fetch the live records from `first` to `last` (inclusive), in seq order.

        Frames of one file that follow one another with at most 4,096 bytes between them share a read of up to
        `max_range` bytes (a single frame may be longer). Records that have no place yet (`file` 0) are left out.
        Raises NotLoaded for all spans at once.
        """
        parts = [part for part in self._index.parts(first, last + 1) if part[0].live]
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

    def live_files(self) -> set[int]:
        """The ids of the WAL files that hold a raw live record. Costs a look at every slot; for compaction, not for
        calls."""
        files: set[int] = set()
        for span in self._index.spans:
            files |= span.live_files()
        files.discard(0)
        return files

    def front_file(self) -> int:
        """The id of the WAL file that holds the first live record; 0 when there is none, or it is stored or has no
        place yet."""
        slot = self._index.at(self.earliest_seq)
        return slot[0].file[slot[1]] if slot is not None and not slot[0].stored else 0

    def is_live(self, seq: int) -> bool:
        """Whether `seq` is a record that a reader would get."""
        if seq == self.earliest_seq:
            return seq <= self.head_seq
        return self._index.is_live(seq)

    def ts_of(self, seq: int) -> int:
        """`$ts` of a live record, epoch ms. Raises KeyError if `seq` is not one."""
        slot = self._index.at(seq)
        if slot is None or not slot[0].live:
            raise KeyError(seq)
        span, i = slot
        span.need()
        if span.dead[i]:
            raise KeyError(seq)
        return span.ts[i]

    @property
    def oldest_ts(self) -> int | None:
        """`$ts` of the first live record, epoch ms; None if there is none."""
        return self._index.spans[0].first_ts if self.count else None

    # -- retention ---------------------------------------------------------------------------------------------------

    def eviction_watermark(self, cap_records: int, cap_bytes: int, incoming: Sequence[array[int]]) -> int:
        """For `discard: "old"`: the seq below which everything must go so that the caps (0 = off) hold; 0 for nothing.

        `incoming` are the record sizes of the batches that have seqs but are not published, in order, the own batch
        last; the caps hold once all of them are. The answer may lie among them: a batch larger than the cap keeps
        only its newest records, or none. Costs what is evicted.
        """
        new_records = sum(map(len, incoming))
        watermark = 0
        if cap_records and (over := self.count + new_records - cap_records) > 0:
            point, rest = self._index.eviction_point(over, by_bytes=False)
            watermark = self.head_seq + rest + 1 if rest else point
        if cap_bytes and (over := self.bytes + sum(map(sum, incoming)) - cap_bytes) > 0:
            point, rest = self._index.eviction_point(over, by_bytes=True)
            if rest:
                point = self.head_seq + _shortest_prefix(incoming, rest) + 1
            watermark = max(watermark, point)
        return watermark

    def room(
        self, cap_records: int, cap_bytes: int, pending_records: int, pending_bytes: int, n: int, nbytes: int
    ) -> bool:
        """For `discard: "reject"`: whether `n` records of `nbytes` in all fit the caps (0 = off) beside the pending."""
        return (not cap_records or self.count + pending_records + n <= cap_records) and (
            not cap_bytes or self.bytes + pending_bytes + nbytes <= cap_bytes
        )

    def evict_below(self, seq: int, reason: LossReason) -> int:
        """Live records below `seq` are lost for `reason`; how many there were. A seq past the head means all."""
        assert reason in _REASONS, reason
        seq = min(seq, self.head_seq + 1)
        if seq <= self.earliest_seq:
            return 0
        last_lost = self._index.last_live(seq)
        assert last_lost is not None, "earliest_seq is live and below seq"
        return self._move_front(self._front_from(seq), reason, last_lost).records

    def expire(self, now_ms: int, ttl_ms: int) -> int:
        """Evict what is older than `ttl_ms` (`now - ts > ttl_ms`; 0 = off); how many records that were."""
        if not ttl_ms or not self.count:
            return 0
        oldest_to_stay = now_ms - ttl_ms
        if self._index.spans[0].first_ts >= oldest_to_stay:
            return 0
        first_to_stay = self._index.first_at_or_after(oldest_to_stay)
        return self.evict_below(self.head_seq + 1 if first_to_stay is None else first_to_stay, "ttl")

    def lose_all(self, reason: LossReason) -> None:
        """Everything that is live is lost: the restart of an `ephemeral` topic. Holes keep their own reasons."""
        self.evict_below(self.head_seq + 1, reason)

    def add_hole(self, first: int, last: int, reason: LossReason) -> None:
        """Seqs `first` to `last` (inclusive) were never stored, or are damaged.

        What of them lies past the head, which `first` may exceed by one, moves the head. What lies between becomes
        lost where it was live; deleted seqs stay deleted, known holes keep their reason, what the front has passed
        stays passed. So saying it twice changes nothing.
        """
        assert reason in _REASONS, reason
        assert 1 <= first <= last, (first, last)
        assert first <= self.head_seq + 1, (first, self.head_seq)
        old_head = self.head_seq
        if first <= old_head:
            for begin, end in self._still_live(max(first, self.earliest_seq), min(last, old_head)):
                self._account(self._index.lose(begin, end + 1))
                self._insert_hole(_Hole(begin, end, reason))
        if last > old_head:
            self._lose_after_head(last, reason)
        if self._front_is_gone():
            self._move_front(self._index.next_live(self.earliest_seq), None, 0)
        if self.on_lost is not None and first <= old_head:
            self.on_lost(first, min(last, old_head))

    def _still_live(self, first: int, last: int) -> list[tuple[int, int]]:
        """What is to become holes if `first` to `last` (inclusive) is lost. Asks for what it takes to do so."""
        found = []
        for lo, hi in self._outside_holes(first, last):
            # The ends of a hole are lost records, so that no part of it announces a loss where there was none.
            begin, end = self._index.next_live(lo), self._index.last_live(hi + 1)
            if begin is not None and end is not None and begin <= end:
                found.append((begin, end))
        self._index.need_to_lose([(begin, end + 1) for begin, end in found])
        front: int | None = self.earliest_seq
        for begin, end in found:
            if begin == front:
                front = self._front_from(end + 1)
        return found

    def _lose_after_head(self, last: int, reason: LossReason) -> None:
        first = self.head_seq + 1
        n = last - first + 1
        if n <= _SHORT_HOLE and self._index.has_room(first, n):
            zeros = array("I", bytes(4 * n))
            ts = array("Q", (self.last_ts,)) * n
            self._index.append(first, ts, zeros, zeros, zeros, zeros, bytes(n), tagged=0, state=LOST)
        self.head_seq = last
        self._insert_hole(_Hole(first, last, reason))

    def _outside_holes(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of the inclusive range that are in no hole."""
        parts = []
        holes = self._holes or []
        for hole in islice(holes, bisect_left(holes, first, key=_hole_last), None):
            if hole.first > last:
                break
            if hole.first > first:
                parts.append((first, hole.first - 1))
            first = hole.last + 1
        if first <= last:
            parts.append((first, last))
        return parts

    def _inside_holes(self, first: int, last: int) -> list[tuple[int, int]]:
        """The parts of the inclusive range that are in holes."""
        parts = []
        holes = self._holes or []
        for hole in islice(holes, bisect_left(holes, first, key=_hole_last), None):
            if hole.first > last:
                break
            parts.append((max(first, hole.first), min(last, hole.last)))
        return parts

    def _insert_hole(self, hole: _Hole) -> None:
        """Put a hole that overlaps no other in its place, joined with neighbours that touch it and have its reason."""
        if self._holes is None:
            self._holes = []
        holes = self._holes
        at = bisect_left(holes, hole)
        if at < len(holes) and holes[at].first == hole.last + 1 and holes[at].reason == hole.reason:
            hole = _Hole(hole.first, holes.pop(at).last, hole.reason)
        if at and holes[at - 1].last + 1 == hole.first and holes[at - 1].reason == hole.reason:
            at -= 1
            hole = _Hole(holes.pop(at).first, hole.last, hole.reason)
        holes.insert(at, hole)

    # -- deletion ----------------------------------------------------------------------------------------------------

    def delete_below(self, before_seq: int, bound: int) -> int:
        """Delete the live records below `before_seq` and up to `bound`; how many there were. Costs a step per span."""
        end = min(before_seq, bound + 1, self.head_seq + 1)
        if end <= self.earliest_seq:
            return 0
        return self._move_front(self._front_from(end), None, 0).records

    def delete_seqs(self, seqs: Sequence[int]) -> int:
        """Delete those of `seqs` (ascending) that are live; how many. Raises NotLoaded for all spans at once."""
        missing = self.missing_for(seqs)
        if missing:
            raise NotLoaded(missing)
        gone = self._index.delete(seqs)
        if not gone.records:
            return 0
        self._account(gone)
        if self._front_is_gone():
            self._move_front(self._index.next_live(self.earliest_seq), None, 0)
        self._sweep(gone.tagged)
        return gone.records

    def matching(self, match: Match, *, before_seq: int | None, bound: int) -> array[int]:
        """The live seqs with a matching tag, below `before_seq` (None = any) and at most `bound`, ascending (u64).

        Only those from `tags_from` on; see `spans_with_tags` for the others.
        """
        if self._tags is None:
            return array("Q")
        first = max(self.earliest_seq, self.tags_from)
        last = bound if before_seq is None else min(bound, before_seq - 1)
        return self._index.only_live(self._tags.find(match, first, min(last, self.head_seq)))

    def spans_with_tags(self, bound: int) -> list[Span]:
        """The stored spans up to `bound` with live tagged records that `matching` does not know, ascending.

        Their files say which tags they have; `live_among` says which of those seqs are still live. Asks for no columns.
        """
        found = []
        for span in self._index.spans[: self._index.n_stored]:
            if span.first > bound or span.first >= self.tags_from:
                break
            if span.unindexed:
                found.append(span)
        return found

    def live_among(self, seqs: array[int]) -> array[int]:
        """The live ones of `seqs` (ascending). Raises NotLoaded for all spans at once."""
        return self._index.only_live(seqs)

    def missing_below(self, seq: int) -> tuple[Span, ...]:
        """The spans to be loaded so that `evict_below(seq)` and `delete_below(seq, ...)` do not raise NotLoaded. May
        name more than it turns out to take. Asks for no columns."""
        seq = min(seq, self.head_seq + 1)
        return self._index.missing_below(seq) if self._index.n_stored and seq > self.earliest_seq else ()

    def missing_for(self, seqs: Sequence[int]) -> tuple[Span, ...]:
        """The same for `delete_seqs(seqs)`."""
        return self._index.missing_for(seqs) if self._index.n_stored else ()

    # -- records that are stored -------------------------------------------------------------------------------------

    @property
    def stored_to(self) -> int:
        """The last seq of the last stored span, 0 without any. All raw slots are above it."""
        return self._index.stored_to

    def stored_spans(self) -> list[Span]:
        """The stored spans, ascending. To be read; what changes them are the methods below."""
        return self._index.spans[: self._index.n_stored]

    def stored_span_at(self, seq: int) -> Span | None:
        """The stored span that has a slot for `seq`, None if there is none (any more)."""
        slot = self._index.at(seq)
        return slot[0] if slot is not None and slot[0].stored else None

    def is_stored(self, seq: int) -> bool:
        """Whether `seq` has a slot in a stored span, live or not."""
        return self.stored_span_at(seq) is not None

    def holds(self, span: Span) -> bool:
        """Whether the span is still one of this log."""
        return self._index.holds(span)

    def summary_of(self, span: Span) -> Summary:
        """What is always known of a span."""
        return _summary(span)

    def capture_raw(self, last: int, first: int = 0) -> list[RawRun]:
        """Copies of the raw slots from `first` up to `last` (both inclusive), in runs of contiguous seqs, ascending.

        Slots that were dropped are not among them. The pieces of a batch may be in two runs.
        """
        runs = []
        for span in self._index.spans[self._index.n_stored :]:
            a, b = max(span.start, first - span.first), min(span.n, last + 1 - span.first)
            if a < b:
                columns = span.ts[a:b], span.file[a:b], span.offset[a:b], span.frame_len[a:b], span.size[a:b]
                runs.append(RawRun(span.first + a, *columns, bytes(span.flags[a:b]), bytes(span.dead[a:b])))
        return runs

    def store(
        self, first: int, n: int, segment: object, offsets: array[int], frame_lens: array[int], *, was_dead: bytes
    ) -> None:
        """The raw slots `first` to `first + n - 1`, as they were captured, are now in `segment`. Asks for no columns.

        `offsets` and `frame_lens` are their places in it, `was_dead` their states at capture; what has been deleted
        since goes to `Span.unflagged`. If the last stored span is of this very segment and ends before `first` it
        grows, else there is a new one, loaded. Slots that were dropped meanwhile still have their place in the span; if
        all of them were, there is none. To be called in ascending order, from the first raw slot on.
        """
        self._index.store(first, n, segment, offsets, frame_lens, was_dead)

    def attach(self, span: Span, columns: SpanColumns) -> bool:
        """Load a stored span with what its files say. The arrays become the log's own.

        What the log knows of deletions (`Span.unflagged`) and holes is laid over it. What the files know beyond that is
        true as well: whatever is deleted there is deleted, and what is lost without a hole becomes a `corrupt` one. If
        that changes the summary, `count`, `bytes` and the floors follow, and the answer is True.

        Does nothing if the span is loaded, or not of this log (any more). Raises ValueError if columns are not as long
        as the span or hold no states, NotLoaded if another span is needed to find the new front.
        """
        assert span.stored
        if any(len(column) != span.n for column in columns) or columns.dead.translate(
            None, bytes((LIVE, DELETED, LOST))
        ):
            raise ValueError(f"columns of span at {span.first}: not {span.n} states, places, times and sizes")
        if span.loaded or not self._index.holds(span):
            return False
        dead = bytearray(columns.dead)
        for seq in span.unflagged or ():
            dead[seq - span.first] = DELETED
        damage = []
        if self._holes or dead.find(LOST, span.start) >= 0:
            for lo, hi in self._inside_holes(span.first + span.start, span.end - 1):
                a, b = lo - span.first, hi + 1 - span.first
                dead[a:b] = dead[a:b].translate(LIVE_TO_LOST)
            for run in _LOST_RUN.finditer(dead, span.start):
                damage += self._outside_holes(span.first + run.start(), span.first + run.end() - 1)
        front: int | None = self.earliest_seq
        if span is self._index.spans[0] and dead[span.start] != LIVE:
            i = dead.find(LIVE, span.start)
            front = span.first + i if i >= 0 else self._front_from(span.end)
        # From here on nothing asks for anything.
        size = columns.size[:]
        for run in _DEAD_RUN.finditer(dead):
            size[run.start() : run.end()] = array("I", bytes(4 * (run.end() - run.start())))
        before = _summary(span)
        indexed = span.tagged - span.unindexed
        span.attach(columns.ts, columns.offset, columns.frame_len, size, bytearray(columns.flags), dead)
        self.count += span.live - before.live
        self.bytes += span.bytes - before.bytes
        indexed -= span.tagged - span.unindexed
        if self._tags is not None:
            self._tags.garbage += indexed
            self._tags.stuck = 0
        if indexed < 0:
            # More are live than the summary said, so nobody has kept their tags; the files have them.
            self.drop_tags_below(span.end)
        for lo, hi in damage:
            self._insert_hole(_Hole(lo, hi, "corrupt"))
        changed = _summary(span)._replace(first_ts=before.first_ts) != before
        if front != self.earliest_seq:
            self._move_front(front, None, 0)
        if changed and self.on_lost is not None:
            self.on_lost(span.first, span.end - 1)
        return changed

    def detach(self, span: Span) -> None:
        """Drop the columns of a stored span, if they are here."""
        if span.loaded:
            span.detach()

    def columns_of(self, span: Span) -> SpanColumns:
        """Copies of the columns of a stored span, as the log knows them by now."""
        span.need()
        places = span.ts[:], span.offset[:], span.frame_len[:], span.size[:]
        return SpanColumns(*places, bytes(span.flags), bytes(span.dead))

    def span_bytes(self, span: Span) -> int:
        """What the columns of a stored span take up while they are loaded."""
        return STORED_SLOT_BYTES * span.n

    def unflag(self, span: Span) -> None:
        """Which of a loaded span's deletions were flagged is not known for certain: all are to be flagged again."""
        span.need()
        known = set(span.unflagged or ())
        known.update(span.first + i for i in range(span.start, span.n) if span.dead[i] == DELETED and span.frame_len[i])
        span.unflagged = array("Q", sorted(known)) or None

    def flagged(self, span: Span, seqs: Sequence[int]) -> None:
        """The storage layer has written the delete flags of these of `span.unflagged`."""
        if span.unflagged is not None:
            written = set(seqs)
            span.unflagged = array("Q", [seq for seq in span.unflagged if seq not in written]) or None

    def replace(self, first: int, last: int, segment: object) -> Span:
        """The stored spans that cover exactly `first` to `last` are one from now on, in `segment` and not loaded.

        Only the first of them may have dropped slots. Asks for no columns.
        """
        return self._index.replace(first, last, segment)

    def drop_tags_below(self, seq: int) -> None:
        """The tags of stored records below `seq` are found in their files from now on. Those of raw records stay.

        Raises NotLoaded if `seq` is inside a span. Costs a step per span, and some sweeping.
        """
        seq = min(seq, max(self.stored_to + 1, self.earliest_seq))
        if seq <= self.tags_from:
            return
        cut = self._index.at(seq)
        if cut is not None and cut[1] > cut[0].start and cut[0].tagged > cut[0].unindexed:
            cut[0].need()
        gone = sum([span.forget_tags(seq) for span, _, _ in self._index.parts(self.tags_from, seq)])
        self.tags_from = seq
        if self._tags is not None:
            self._tags.garbage += gone
        self._sweep(gone)

    # -- reading -----------------------------------------------------------------------------------------------------

    def start(self, from_seq: int, same_epoch: bool) -> tuple[int, Tombstone | None]:
        """Where a read that has everything up to `from_seq` goes on, and the tombstone that comes first, if any.

        The position is the last seq examined, for `step`. `recreated` when the reader knows another instance (its
        epoch, or a seq past the head); a floor gap when it missed something below `evict_floor`; deletions are
        silent.
        """
        behind_front = self.earliest_seq - 1
        if not same_epoch or from_seq > self.head_seq:
            missed = self.head_seq - self._deleted_below_front(1)
            missed -= self._index.deleted_in(self.earliest_seq, self.head_seq + 1)
            return behind_front, self._tombstone(1, self.head_seq, "recreated", missed)
        if from_seq + 1 < self.evict_floor:
            first = from_seq + 1
            reasons = [reason for reason, last in (self._causes or {}).items() if last >= first]
            missed = behind_front - from_seq - self._deleted_below_front(first)
            return behind_front, self._tombstone(
                first, behind_front, reasons[0] if len(reasons) == 1 else "mixed", missed
            )
        return max(from_seq, behind_front), None

    def step(self, after: int, limit: int) -> Run | Gap | None:
        """What comes after position `after`: live records (at most `limit`), a hole, or None up to the head.

        Deleted seqs are skipped. A Gap that `after` is inside of is what remains of it.
        """
        assert limit > 0
        begin = max(after + 1, self.earliest_seq)
        if begin > self.head_seq:
            return None
        live = self._index.next_live(begin)
        if self._holes:
            at = bisect_left(self._holes, begin, key=_hole_last)
            if at < len(self._holes) and (live is None or self._holes[at].first < live):
                hole = self._holes[at]
                first = max(hole.first, begin)
                missed = hole.last - first + 1 - self._index.deleted_in(first, hole.last + 1)
                return Gap(first, hole.last, hole.reason, missed)
        return None if live is None else Run(live, self._index.run_end(live, limit))

    def tombstone_of(self, gap: Gap) -> Tombstone:
        """A Gap as readers are told of it, with the floors as of now."""
        return self._tombstone(gap.first, gap.last, gap.reason, gap.missed)

    def _tombstone(self, first: int, last: int, reason: str, missed: int) -> Tombstone:
        return Tombstone(
            gap_from=first,
            gap_to=last,
            reason=cast("Any", reason),
            missed_estimate=missed,
            earliest_seq=self.earliest_seq,
            head_seq=self.head_seq,
        )

    def _deleted_below_front(self, first: int) -> int:
        """How many seqs of [first, earliest_seq) are known to have been deleted; `first` is at most `evict_floor`."""
        total = self.earliest_seq - self.evict_floor
        runs = self._deleted or ()
        # From the newest back: mostly a reader is not far behind.
        for at in range(len(runs) - 2, -1, -2):
            if runs[at + 1] < first:
                break
            total += runs[at + 1] - max(runs[at], first) + 1
        return total

    # -- the front ---------------------------------------------------------------------------------------------------

    def _move_front(self, front: int | None, reason: LossReason | None, last_lost: int) -> Sum:
        """The one place where the floors move: `front` (None = none left) is the first live seq from now on.

        Everything below it goes: holes are passed; if there is a `reason`, what was live is lost for it, the highest
        being `last_lost`, else it was deleted.
        """
        old_front, self.earliest_seq = self.earliest_seq, self.head_seq + 1 if front is None else front
        assert self.earliest_seq >= old_front
        if reason is not None:
            self._note_cause(reason, last_lost)
        passed: list[_Hole] = []
        if self._holes:
            at = bisect_left(self._holes, self.earliest_seq, key=_hole_last)
            passed = self._holes[:at]
            self._holes = self._holes[at:] or None
            for hole in passed:
                self._note_cause(hole.reason, hole.last)
        if self._causes:
            floor = max(self._causes.values()) + 1
            if floor > self.evict_floor:
                self._raise_floor(floor, old_front, None if reason is not None else passed)
        gone = self._index.drop_below(self.earliest_seq)
        self._account(gone)
        self._sweep(gone.tagged)
        return gone

    def _front_from(self, seq: int) -> int | None:
        """The first live seq from `seq` on. Asks for what it takes to find it, and to make it the front."""
        front = self._index.next_live(seq)
        if front is not None:
            self._index.need_to_drop(front)
        return front

    def _front_is_gone(self) -> bool:
        """Whether `earliest_seq`, which was live or past the head, is not live. Asks for no columns: where they are
        not here, nothing can have died but all of the span."""
        if not self._index.spans:
            return True
        span = self._index.spans[0]
        return not span.live or (span.loaded and span.dead[span.start] != LIVE)

    def _note_cause(self, reason: LossReason, last: int) -> None:
        if self._causes is None:
            self._causes = {}
        self._causes[reason] = max(last, self._causes.get(reason, 0))

    def _raise_floor(self, floor: int, old_front: int, passed: Sequence[_Hole] | None) -> None:
        """Before the slots below the front go: keep what is known of deletions below the new floor.

        `passed` are the holes below the new front if everything else there is deleted, None if it may be lost.
        """
        runs = []
        if self.evict_floor < old_front:
            runs.append((self.evict_floor, old_front - 1))
        if floor > old_front and passed is None:
            runs += self._index.deleted_runs(old_front, floor, MAX_DELETED_RUNS)
        elif floor > old_front and passed is not None:
            runs += self._deleted_around(passed, old_front, floor)
        self.evict_floor = floor
        if not runs:
            return
        known = self._deleted if self._deleted is not None else array("Q")
        for first, last in runs:
            if known and known[-1] + 1 == first:
                known[-1] = last
            else:
                known.extend((first, last))
        # A slice, so that a burst of runs does not stay allocated.
        self._deleted = known[-2 * MAX_DELETED_RUNS :] if len(known) > 2 * MAX_DELETED_RUNS else known

    def _deleted_around(self, holes: Sequence[_Hole], lo: int, hi: int) -> list[tuple[int, int]]:
        """The deleted seqs of `lo` to `hi` (exclusive) as inclusive runs, ascending, where everything outside of
        `holes` is; of many, at least the newest `MAX_DELETED_RUNS`."""
        newest_first: list[tuple[int, int]] = []
        for hole in reversed(holes):
            if len(newest_first) >= MAX_DELETED_RUNS:
                break
            if hole.last + 1 < hi:
                newest_first.append((hole.last + 1, hi - 1))
            newest_first += reversed(self._index.deleted_runs(hole.first, hole.last + 1, MAX_DELETED_RUNS))
            hi = hole.first
        else:
            if lo < hi:
                newest_first.append((lo, hi - 1))
        newest_first.reverse()
        return newest_first

    def _account(self, gone: Sum) -> None:
        self.count -= gone.records
        self.bytes -= gone.bytes
        if self._tags is not None:
            self._tags.garbage += gone.tagged - gone.unindexed

    # -- tag postings of gone records ----------------------------------------------------------------------------------

    def tidy(self) -> bool:
        """A bounded slice (a few ms) of clearing away after a large deletion; whether there is more to do. Asks for no
        columns: what cannot be told without is left for another time.

        Appends and deletions do their share themselves. This is for a topic where nothing happens any more.
        """
        self._sweep(_SWEEP_UNITS)
        return self._has_litter()

    def _has_litter(self) -> bool:
        tags = self._tags
        if tags is None:
            return False
        litter = tags.garbage - tags.stuck
        return litter >= _SWEEP_MIN and litter * _SWEEP_SHARE > tags.postings

    def _sweep(self, deaths: int) -> None:
        tags = self._tags
        if tags is None:
            return
        if tags.garbage == tags.postings:
            self._tags = None
        elif self._has_litter():
            units = min(_SWEEP_UNITS, _SWEEP_UNITS_PER_DEATH * deaths)
            # With a dense index whatever is not below the front is live, and nobody has to look.
            front = max(self.earliest_seq, self.tags_from)
            only_live = None if self._index.is_dense(front) else self._not_known_dead
            tags.sweep(units, front, only_live)

    def _not_known_dead(self, seqs: array[int]) -> array[int]:
        at = bisect_right(seqs, self.head_seq)  # what is expected is not dead
        return self._index.not_known_dead(seqs[:at]) + seqs[at:]

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self, *, raw: bool = True) -> dict[str, Any]:
        """Everything, as ints, strings, bytes, lists and maps that CBOR takes; arrays as little-endian bytes.

        Of stored spans the summaries. Without `raw` neither raw spans nor tags: whoever stores those adds summaries of
        them to "spans" with `grow_dump`. Asks for no columns.
        """
        return {
            "head_seq": self.head_seq,
            "earliest_seq": self.earliest_seq,
            "evict_floor": self.evict_floor,
            "last_ts": self.last_ts,
            "spans": self._index.dump(raw=raw),
            "tags": self._tags.dump() if raw and self._tags is not None else None,
            "tags_from": self._loadable_tags_from() if raw else None,
            "holes": [list(hole) for hole in self._holes or ()],
            "causes": dict(self._causes or {}),
            "deleted": little_endian(self._deleted) if self._deleted is not None else b"",
        }

    def _loadable_tags_from(self) -> int:
        """`tags_from`, or the end of the span that it cuts: its summary does not say how many live are on each side."""
        cut = self._index.at(self.tags_from)
        return self.tags_from if cut is None or cut[1] <= cut[0].start else cut[0].end

    def dump_lost(self) -> dict[str, Any]:
        """The dump of what is left after the restart of an `ephemeral` topic: everything live is lost.

        Asks for no columns: where it takes them to tell which was the last live record, it is the last of its span.
        """
        shadow = TopicLog()
        shadow.head_seq, shadow.earliest_seq, shadow.evict_floor = self.head_seq, self.earliest_seq, self.evict_floor
        shadow.count, shadow.bytes, shadow.last_ts = self.count, self.bytes, self.last_ts
        # Dropping all of it changes no span.
        shadow._index.spans, shadow._index.n_stored = self._index.spans[:], self._index.n_stored
        shadow._holes = self._holes[:] if self._holes else None
        shadow._causes = dict(self._causes) if self._causes else None
        shadow._deleted = self._deleted[:] if self._deleted else None
        if self.count:
            try:
                last = self._index.last_live(self.head_seq + 1)
                assert last is not None
            except NotLoaded as missing:
                last = missing.spans[-1].end - 1
            shadow._move_front(None, "lost", last)
        return shadow.dump(raw=False)

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> TopicLog:
        """The topic that `dump` was called on. Stored spans have no segment yet and are not loaded.

        `tags_from` is behind the stored spans if the dump is without `raw`. Raises ValueError if `value` cannot have
        come from `dump`.
        """
        log = cls()
        try:
            log.head_seq = whole(value["head_seq"])
            log.earliest_seq = whole(value["earliest_seq"])
            log.evict_floor = whole(value["evict_floor"])
            log.last_ts = whole(value["last_ts"])
            log._index = RecordIndex.load(value["spans"])
            if value["tags"] is not None:
                log._tags = TagIndex.load(value["tags"])
            tags_from = value["tags_from"]
            log.tags_from = log._index.stored_to + 1 if tags_from is None else whole(tags_from)
            log._holes = [_Hole(whole(first), whole(last), reason) for first, last, reason in value["holes"]] or None
            log._causes = {reason: whole(last) for reason, last in value["causes"].items()} or None
            log._deleted = from_little_endian("Q", value["deleted"]) or None
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"topic log: {error!r}") from error
        log.count = sum(span.live for span in log._index.spans)
        log.bytes = sum(span.bytes for span in log._index.spans)
        for span in log._index.spans[: log._index.n_stored]:
            if span.first + span.start >= log.tags_from:
                break
            if span.end > log.tags_from:
                raise ValueError("topic log: tags begin inside a span")
            span.forget_tags(log.tags_from)
        if log._tags is not None:
            log._tags.garbage = log._tags.postings - log._indexed()
        try:
            log._check_frame()
        except AssertionError as error:
            raise ValueError(f"topic log: contradicts itself: {error}") from error
        return log

    def _indexed(self) -> int:
        """How many live records the tag index knows."""
        return sum(span.tagged - span.unindexed for span in self._index.spans)

    def check(self) -> None:
        """Assert every invariant, by counting again from the slots that are loaded. Costs a look at each of them."""
        self._check_frame()
        for span in self._index.spans:
            self._check_span(span)
        if self._tags is not None:
            self._tags.check()
            everything = self._tags.find(Match("", prefix=True), 0, self.head_seq)
            assert len(everything) == self._tags.postings
            assert self._tags.postings - self._tags.garbage == self._indexed()
            for span in self._index.spans:
                if span.loaded or span.dense:
                    lo, hi = max(self.tags_from, span.first + span.start), span.end
                    inside = everything[bisect_left(everything, lo) : bisect_left(everything, hi)]
                    assert len(self._index.only_live(inside)) == span.tagged - span.unindexed

    def _check_span(self, span: Span) -> None:
        unflagged = span.unflagged or array("Q")
        assert all(span.first <= seq < span.end for seq in unflagged), "unflagged seq of another span"
        assert len(set(unflagged)) == len(unflagged), "unflagged twice"
        assert span.stored or not unflagged, "raw and unflagged"
        if span.first + span.start >= self.tags_from:
            assert span.unindexed == 0, "tags of the tag index"
        elif span.end <= self.tags_from:
            assert span.unindexed == span.tagged, "tags of the files"
        else:
            assert span.tags_from == self.tags_from, "tags on both sides"
        if not span.loaded:
            assert not any((span.ts, span.offset, span.frame_len, span.size, span.flags, span.dead)), "half loaded"
            return
        columns = [span.ts, span.offset, span.frame_len, span.size, span.flags, span.dead]
        assert all(len(column) == span.n for column in columns), "columns differ in length"
        assert len(span.file) == (0 if span.stored else span.n), "file column"
        kept = (*_summary(span), span.unindexed)
        span.recount()
        assert kept == (*_summary(span), span.unindexed), kept
        assert all(a <= b for a, b in pairwise(span.ts)), "time goes back"
        assert (span.first_ts, span.last_ts) == (span.ts[span.start], span.ts[-1]), "times of the summary"
        assert not any(size for size, dead in zip(span.size, span.dead, strict=True) if dead and size)
        assert all(span.dead[seq - span.first] == DELETED for seq in unflagged), "unflagged and not deleted"

    def _is_plain(self) -> bool:
        """Whether the invariants hold for the simplest of reasons.

        One stored span up to the head, or none and no record either, and nothing was ever lost or deleted. A start
        looks at a hundred thousand such topics.
        """
        spans = self._index.spans
        if len(spans) > 1 or self._holes or self._causes or self._deleted or self._tags or self.evict_floor != 1:
            return False
        if not spans:
            return self.head_seq == 0 and self.earliest_seq == 1 and self.count == 0 == self.bytes
        span = spans[0]
        return (
            span.stored
            and span.start == 0
            and span.live == span.n == self.count
            and span.bytes == self.bytes
            and span.first == 1 == self.earliest_seq
            and span.n == self.head_seq
            and span.last_ts <= self.last_ts
            and span.unindexed == span.tagged
            and self.tags_from == span.n + 1
        )

    def _check_frame(self) -> None:
        """The invariants that cost a step per span, hole or run."""
        spans, holes = self._index.spans, self._holes or []
        if self._is_plain():
            return
        assert 1 <= self.evict_floor <= self.earliest_seq <= self.head_seq + 1, "floors"
        assert self.count == sum(span.live for span in spans), "count"
        assert self.bytes == sum(span.bytes for span in spans), "bytes"
        first = spans[0].first + spans[0].start if spans else self.head_seq + 1
        assert self.earliest_seq == first, "slots below the front, or none at it"
        assert not spans or not self._front_is_gone(), "earliest_seq is not live"
        # Every seq from the front to the head has a slot or is in a hole.
        assert all(span.start == 0 for span in spans[1:]), "dropped slots in the middle"
        assert all(a.end <= b.first and a.last_ts <= b.first_ts for a, b in pairwise(spans)), "spans overlap"
        assert not spans or (spans[-1].end <= self.head_seq + 1 and spans[-1].last_ts <= self.last_ts), (
            "spans past the head"
        )
        n_stored = self._index.n_stored
        assert all(span.stored for span in spans[:n_stored]), "raw before stored"
        assert not any(span.stored for span in spans[n_stored:]), "stored after raw"
        assert 1 <= self.tags_from <= max(self.stored_to + 1, self.earliest_seq), "tags of raw records"
        assert all(self.earliest_seq <= hole.first <= hole.last <= self.head_seq for hole in holes), "hole outside"
        assert all(hole.reason in _REASONS for hole in holes), "reason of a hole"
        assert all(a.last < b.first for a, b in pairwise(holes)), "holes overlap"
        for lo, hi in self._outside_holes(self.earliest_seq, self.head_seq):
            slots = list(self._index.parts(lo, hi + 1))
            assert sum(b - a for _, a, b in slots) == hi + 1 - lo, "neither slot nor hole"
            assert all(not span.lost or span.dead.find(LOST, a, b) < 0 for span, a, b in slots), "lost outside a hole"
        for hole in holes:
            for span, a, b in self._index.parts(hole.first, hole.last + 1):
                assert span.dead.find(0, a, b) < 0, "live record in a hole"
                assert span.live <= span.n - span.start - (b - a), "more live records than slots outside of holes"
        causes = self._causes or {}
        assert _REASONS.issuperset(causes), "reason of a loss"
        assert self.evict_floor == max(causes.values(), default=0) + 1, "evict_floor"
        runs = self._deleted if self._deleted is not None else array("Q")
        assert len(runs) % 2 == 0, "deleted runs"
        assert all(a <= b for a, b in pairwise(runs)), "deleted runs"
        assert not runs or runs[-1] < self.evict_floor, "deleted run above the floor"
        if self._tags is not None:
            assert 0 <= self._tags.garbage <= self._tags.postings, "tag garbage"
        else:
            assert self._indexed() == 0, "tagged records, and no tags"


# -- dumps without raw spans, made complete by whoever stores those ----------------------------------------------------


def grow_dump(spans: list[Any], run: RawRun, a: int, b: int, *, new: bool) -> None:
    """Slots `a` to `b` (exclusive) of a captured run are stored: add them to the "spans" of `dump(raw=False)`.

    They go to the last one there if they follow it and are not in a `new` segment.
    """
    span = Span(run.first + a)
    span.n = b - a
    span.dead, span.flags, span.size = bytearray(run.dead[a:b]), bytearray(run.flags[a:b]), run.size[a:b]
    span.first_ts, span.last_ts = run.ts[a], run.ts[b - 1]
    span.recount()
    more = _summary(span)
    if not new and spans:
        mark, *fields, unflagged = spans[-1]
        last = Summary(*fields)
        if last.first + last.n == more.first:
            grown = last._replace(
                n=last.n + more.n,
                live=last.live + more.live,
                lost=last.lost + more.lost,
                bytes=last.bytes + more.bytes,
                tagged=last.tagged + more.tagged,
                last_ts=more.last_ts,
            )
            spans[-1] = [mark, *grown, unflagged]
            return
    spans.append([STORED_MARK, *more, b""])


def summary_first(dumped: Sequence[Any]) -> int:
    """The first seq of a stored span in a dump."""
    return Summary(*dumped[1:-1]).first


def set_unflagged(dumped: list[Any], seqs: Sequence[int]) -> None:
    """A stored span in a dump has these unflagged deletions left."""
    dumped[-1] = little_endian(array("Q", seqs)) if seqs else b""


def _summary(span: Span) -> Summary:
    return Summary(
        span.first,
        span.n,
        span.start,
        span.live,
        span.lost,
        span.bytes,
        span.tagged,
        span.first_ts,
        span.last_ts,
    )


def _shortest_prefix(batches: Sequence[array[int]], total: int) -> int:
    """How many records from the first on it takes to reach `total` bytes."""
    records = 0
    for sizes in batches:
        if sum(sizes) < total:
            total -= sum(sizes)
            records += len(sizes)
            continue
        for size in sizes:
            records += 1
            total -= size
            if total <= 0:
                return records
    return records


def _hole_last(hole: _Hole) -> int:
    return hole.last
