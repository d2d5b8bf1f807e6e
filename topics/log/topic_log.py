"""A topic in memory: which records are live, deleted or lost, and what a reader is told of the missing ones.

Theory of operation (`docs/spec/semantics.md` sections 3 and 4)
-----------------------------------------------------

A record is published at the head and dies once: it is deleted, or it is lost. `TopicLog` changes all parts of the state
that such an event concerns. Each part is an object of its own:

    index      which seqs have a slot, and the columns of the slots (`record_index`)
    stored     which of the slots are in segments (`stored_spans`)
    losses     holes, `evict_floor`, and what is remembered of missing seqs (`losses`: the rules of floors and gaps)
    tags       which records have which tag, as far as memory knows (`topic_tags`)
    kept       the records of each tag, if the topic keeps only the newest ones (`kept_tags`); None otherwise
    nulls      the records of such a topic that have a tag and data null (`null_records`); None for none

`TopicLog` itself keeps the totals: the head, the first live seq, the number of live records and their bytes. It does
not decide what a topic may keep (`retention`), nor where the frames of records are (`frame_ranges`).

Stored records (`docs/design/segments.md` section 1)
----------------------------------------------------

Old records are in segments; their slots are in memory only while a cache keeps them. The answers are exact all the
same. A method that needs columns which are not in memory raises `NotLoaded` and has changed nothing: it works out where
the floors will be, and which columns that takes, before it moves them. A caller that wants to know beforehand asks
`missing_columns`.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, cast

from topics.log.dumped_values import whole
from topics.log.losses import REASONS, Gap, Losses, LossReason
from topics.log.missing_columns import missing_to_delete, missing_to_take_away, need_to_drop, need_to_lose
from topics.log.record_index import RecordIndex
from topics.log.span import DELETED, LIVE, LOST, UNTAGGED, NotLoaded, Span, SpanColumns, SpanSum
from topics.log.stored_spans import StoredSpans
from topics.log.tables.kept_tags import KeptTags
from topics.log.tables.null_records import NullRecords
from topics.log.topic_log_checks import check_frame, check_span
from topics.log.topic_tags import SWEEP_UNITS, TopicTags
from topics.model import Tombstone

# A hole of at most this many seqs takes slots in the last span instead of starting a new span. Otherwise a router that
# skips every other record (one-seq holes) would make one span for each record.
_SHORT_HOLE: Final = 64

_STATES: Final = bytes((LIVE, DELETED, LOST))
_DEAD_RUN: Final = re.compile(rb"[^\0]+")


class Extent(NamedTuple):
    """A run of records with contiguous seqs that a commit publishes.

    `ts` (epoch ms) is shared by all of them. `file` is the id of the file that holds the frames, or one id for each
    record; 0 means that no place is known yet. `offsets` says where each frame begins in the file (zeros when unknown)
    and `frame_lens` its length in bytes. `sizes` are the bytes of data + meta. `flags` has a byte per record: bit0
    has_tag, bit1 has_node, bit5 has_origin, bit7 derived (`copies`). `tags` is None when no record has one.
    """

    first_seq: int
    ts: int
    file: int | array[int]
    offsets: Sequence[int]
    frame_lens: array[int]
    sizes: array[int]
    flags: bytes
    tags: Sequence[str | None] | None


class SeqRun(NamedTuple):
    """Live records with contiguous seqs, both ends inclusive."""

    first: int
    last: int


class TopicLog:
    """The records of one topic instance and its floors. Pure: no method waits, reads a clock or does I/O.

    `head_seq` is the last seq given to a published record or a hole, 0 for none. `earliest_seq` is the first live seq,
    `head_seq + 1` when there is none. `count` and `bytes` are the live records and their payload bytes. `last_ts` is
    the time of the newest record ever published (epoch ms). `on_lost(first, last)` is called when published records
    turn out to be lost; some seqs of that range are no longer live.

    Callers outside only read `index`, `losses` and `tags`. They may call `index.place`, the methods of `stored`, and
    the methods that a stored `Span` offers to the storage layer: none of these changes the state of a record.

    Any method may raise NotLoaded unless it says otherwise.
    """

    __slots__ = (
        "bytes",
        "count",
        "earliest_seq",
        "head_seq",
        "index",
        "kept",
        "last_ts",
        "losses",
        "nulls",
        "on_lost",
        "stored",
        "tags",
    )

    def __init__(
        self, index: RecordIndex | None = None, losses: Losses | None = None, tags: TopicTags | None = None
    ) -> None:
        self.index = index = RecordIndex() if index is None else index
        self.stored = StoredSpans(index)
        self.losses = Losses(index) if losses is None else losses
        self.tags = TopicTags(index) if tags is None else tags
        self.kept: KeptTags | None = None
        self.nulls: NullRecords | None = None
        self.head_seq = 0
        self.earliest_seq = 1
        self.count = 0
        self.bytes = 0
        self.last_ts = 0
        self.on_lost: Callable[[int, int], None] | None = None

    # -- publication -------------------------------------------------------------------------------------------------

    def extend(self, extent: Extent) -> None:
        """Publish a commit's records. They must follow the head and be no older than the newest record. Needs no
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
        """Publish records that have times of their own (`ts`, u64, never decreasing), as replay finds them. Else like
        `extend`."""
        n = len(flags)
        tagged = len(flags.translate(None, UNTAGGED))
        assert n > 0
        assert first_seq == self.head_seq + 1, (first_seq, self.head_seq)
        assert ts[0] >= self.last_ts, (ts[0], self.last_ts)
        assert len(ts) == len(offsets) == len(frame_lens) == len(sizes) == n
        assert tagged == (0 if tags is None else n - tags.count(None)), "flags and tags disagree"
        places = offsets if isinstance(offsets, array) else array("I", offsets)
        files = array("I", (file,)) * n if isinstance(file, int) else file
        self.index.append(first_seq, ts, files, places, frame_lens, sizes, flags, tagged=tagged)
        self.head_seq += n
        self.count += n
        self.bytes += sum(sizes)
        self.last_ts = ts[-1]
        if tagged and tags is not None:
            self.tags.add(first_seq, tags)
            self.tags.sweep(tagged, self.earliest_seq, self.head_seq)

    def expect_tags(self, first_seq: int, tags: Sequence[str | None]) -> None:
        """Index the tags of records that are about to be published. `first_seq` is past the head, and nothing else may
        be published before them.

        For a batch so large that its tags are indexed a piece at a time; `extend_spans` then publishes all of it.
        """
        assert first_seq > self.head_seq
        self.tags.add(first_seq, tags)

    def extend_spans(self, spans: Sequence[Span]) -> None:
        """Publish the records of spans (`Span.of_live`) that follow the head and one another. Their tags were given to
        `expect_tags`.

        Costs nothing per record. Needs no columns.
        """
        assert spans[0].first == self.head_seq + 1, (spans[0].first, self.head_seq)
        assert spans[0].first_ts >= self.last_ts, (spans[0].first_ts, self.last_ts)
        assert all(a.end == b.first for a, b in pairwise(spans))
        self.index.attach(spans)
        self.head_seq = spans[-1].end - 1
        self.count += sum(span.live for span in spans)
        self.bytes += sum(span.bytes for span in spans)
        self.last_ts = spans[-1].last_ts

    def is_live(self, seq: int) -> bool:
        """Return True if `seq` is a live record."""
        if seq == self.earliest_seq:
            return seq <= self.head_seq
        return self.index.is_live(seq)

    # -- losses ------------------------------------------------------------------------------------------------------

    def evict_below(self, seq: int, reason: LossReason) -> int:
        """Lose the live records below `seq` (past the head: all of them) for `reason`. Return how many there were."""
        assert reason in REASONS, reason
        seq = min(seq, self.head_seq + 1)
        if seq <= self.earliest_seq:
            return 0
        last_lost = self.index.last_live(seq)
        assert last_lost is not None, "earliest_seq is live and below seq"
        return self._move_front(self._front_from(seq), reason, last_lost).records

    def lose_all(self, reason: LossReason) -> None:
        """Lose all live records: the restart of an `ephemeral` topic. Holes keep their own reasons."""
        self.evict_below(self.head_seq + 1, reason)

    def add_hole(self, first: int, last: int, reason: LossReason) -> None:
        """Lose seqs `first` to `last` (inclusive), because they were never stored or are damaged.

        `first` may be at most one past the head; the seqs past the head move the head. Up to the head, live seqs become
        lost; deleted seqs stay deleted, and known holes and everything below the front stay as they are. A second call
        with the same arguments changes nothing.
        """
        assert reason in REASONS, reason
        assert 1 <= first <= last, (first, last)
        assert first <= self.head_seq + 1, (first, self.head_seq)
        old_head = self.head_seq
        if first <= old_head:
            for begin, end in self._still_live(max(first, self.earliest_seq), min(last, old_head)):
                self._account(self.index.lose(begin, end + 1))
                self.losses.add_hole(begin, end, reason)
        if last > old_head:
            self._lose_after_head(last, reason)
        if self.kept is not None and first <= old_head:
            self.kept.lost()
        if self.front_is_gone():
            self._move_front(self.index.next_live(self.earliest_seq), None, 0)
        if self.on_lost is not None and first <= old_head:
            self.on_lost(first, min(last, old_head))

    def _still_live(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the inclusive ranges that become holes if `first` to `last` (inclusive) is lost. Raises NotLoaded if
        the change, or finding the new front, needs columns that are not loaded."""
        found = []
        for lo, hi in self.losses.outside_holes(first, last):
            # A hole begins and ends with a record that is lost now: its ends must not announce deleted seqs as lost.
            begin, end = self.index.next_live(lo), self.index.last_live(hi + 1)
            if begin is not None and end is not None and begin <= end:
                found.append((begin, end))
        need_to_lose(self.index, [(begin, end + 1) for begin, end in found])
        front: int | None = self.earliest_seq
        for begin, end in found:
            if begin == front:
                front = self._front_from(end + 1)
        return found

    def _lose_after_head(self, last: int, reason: LossReason) -> None:
        first = self.head_seq + 1
        n = last - first + 1
        if n <= _SHORT_HOLE and self.index.has_room(first, n):
            zeros = array("I", bytes(4 * n))
            ts = array("Q", (self.last_ts,)) * n
            self.index.append(first, ts, zeros, zeros, zeros, zeros, bytes(n), tagged=0, state=LOST)
        self.head_seq = last
        self.losses.add_hole(first, last, reason)

    # -- deletion ----------------------------------------------------------------------------------------------------

    def delete_below(self, before_seq: int, bound: int) -> int:
        """Delete the live records below `before_seq` and up to `bound` (inclusive). Return how many there were.

        Costs a step per span.
        """
        end = min(before_seq, bound + 1, self.head_seq + 1)
        if end <= self.earliest_seq:
            return 0
        return self._move_front(self._front_from(end), None, 0).records

    def delete_seqs(self, seqs: Sequence[int]) -> int:
        """Delete those of `seqs` (ascending) that are live, and return their number. Raises one NotLoaded for all
        spans."""
        if self.index.n_stored and (missing := missing_to_delete(self.index, seqs)):
            raise NotLoaded(missing)
        gone = self.index.delete(seqs)
        if self.kept is not None:
            self.kept.deleted(seqs, gone.tagged)
        return self._deleted(gone, seqs)

    def take_away(self, seqs: Sequence[int], sizes: Sequence[int]) -> int:
        """Delete those of `seqs` (ascending) that are live, because newer records have their tags. Return their number.

        They were live in `kept`, with these `sizes` (bytes of data + meta), when this was decided, and no client has
        deleted any since. So it costs a step for each and needs no columns, except if the first live record is among
        them.
        """
        alive = [i for i in range(bisect_left(seqs, self.earliest_seq), len(seqs)) if not self._is_in_hole(seqs[i])]
        seqs, sizes = array("Q", [seqs[i] for i in alive]), [sizes[i] for i in alive]
        if missing := missing_to_take_away(self.index, seqs):
            raise NotLoaded(missing)
        return self._deleted(self.index.take_away(seqs, sizes), seqs)

    def _is_in_hole(self, seq: int) -> bool:
        return bool(self.losses.holes) and bool(self.losses.inside_holes(seq, seq))

    def _deleted(self, gone: SpanSum, seqs: Sequence[int]) -> int:
        """Note that the live ones of these seqs were deleted in the index."""
        if not gone.records:
            return 0
        self._account(gone)
        if self.nulls is not None:
            self.nulls.drop(seqs)
        if self.front_is_gone():
            self._move_front(self.index.next_live(self.earliest_seq), None, 0)
        if self.tags.index is not None:
            self.tags.sweep(gone.tagged, self.earliest_seq, self.head_seq)
        if self.kept is not None:
            self.kept.sweep(gone.records, self.earliest_seq)
        return gone.records

    def add_nulls(self, seqs: Sequence[int], ts: int) -> None:
        """Note that records with a tag, published or about to be, have data null, and their time."""
        if seqs:
            if self.nulls is None:
                self.nulls = NullRecords()
            self.nulls.add(seqs, ts)

    # -- stored records ----------------------------------------------------------------------------------------------

    def attach(self, span: Span, columns: SpanColumns) -> bool:
        """Load the columns of a stored span, read from its files. The arrays become the log's own. Return True if the
        span's summary changed; `count`, `bytes` and the floors then follow.

        The deletions (`Span.unflagged`) and holes that the log knows are applied to the columns. Deletions and losses
        that only the files know are accepted: a deleted slot is deleted, and a lost slot in no hole becomes a `corrupt`
        hole.

        Does nothing if the span is already loaded or no longer part of this log. Raises ValueError if the columns do
        not have the length of the span or hold bad states, NotLoaded if another span is needed to find the new front.
        """
        assert span.stored
        if any(len(column) != span.n for column in columns) or columns.dead.translate(None, _STATES):
            raise ValueError(f"columns of span at {span.first}: not {span.n} states, places, times and sizes")
        if span.loaded or not self.stored.holds(span):
            return False
        dead = bytearray(columns.dead)
        for seq in span.unflagged or ():
            dead[seq - span.first] = DELETED
        damage = self.losses.lay_over(span, dead)
        front = self._front_with(span, dead)
        # From here on nothing raises NotLoaded.
        size = columns.size[:]
        for run in _DEAD_RUN.finditer(dead):
            size[run.start() : run.end()] = array("I", bytes(4 * (run.end() - run.start())))
        before, indexed = span.summary(), span.tagged - span.unindexed
        span.attach(columns.ts, columns.offset, columns.frame_len, size, bytearray(columns.flags), dead)
        self.count += span.live - before.live
        self.bytes += span.bytes - before.bytes
        more_indexed = span.tagged - span.unindexed - indexed
        self.tags.correct(more_indexed)
        if more_indexed > 0:
            # More records are live than the summary said. Memory does not have their tags; the files do.
            self.drop_tags_below(span.end)
        for lo, hi in damage:
            self.losses.add_hole(lo, hi, "corrupt")
        changed = span.summary()._replace(first_ts=before.first_ts) != before
        if self.kept is not None and changed:
            if damage:
                self.kept.lost()
            self.kept.deleted([span.first + i for i, state in enumerate(dead) if state == DELETED], span.n)
        if front != self.earliest_seq:
            self._move_front(front, None, 0)
        if changed and self.on_lost is not None:
            self.on_lost(span.first, span.end - 1)
        return changed

    def _front_with(self, span: Span, dead: bytearray) -> int | None:
        """Return the first live seq that there would be if the slots of `span` had the states `dead`; None for none."""
        if span is not self.index.spans[0] or dead[span.start] == LIVE:
            return self.earliest_seq
        i = dead.find(LIVE, span.start)
        return span.first + i if i >= 0 else self._front_from(span.end)

    def drop_tags_below(self, seq: int) -> None:
        """Forget the tags of stored records below `seq`: from now on they are looked up in the segment files. Tags of
        raw records stay.

        Raises NotLoaded if `seq` is inside a span. Costs a step per span, and some sweeping.
        """
        seq = min(seq, max(self.stored.last_seq + 1, self.earliest_seq))
        if seq > self.tags.known_from:
            self.tags.sweep(self.tags.leave_to_files(seq), self.earliest_seq, self.head_seq)

    def tidy(self) -> bool:
        """Remove stale tag postings after a large deletion, for a few ms at most. Return True if there is more to do.

        Needs no columns; postings that cannot be judged without columns stay. Appends and deletions do their share of
        this work themselves: this call is for a topic that has become idle.
        """
        self.tags.sweep(SWEEP_UNITS, self.earliest_seq, self.head_seq)
        if self.kept is not None:
            self.kept.sweep(SWEEP_UNITS, self.earliest_seq)
            if self.kept.littered:
                return True
        return self.tags.littered

    # -- reading -----------------------------------------------------------------------------------------------------

    def start(self, from_seq: int, same_epoch: bool) -> tuple[int, Tombstone | None]:
        """Return the position at which a reader that has everything up to `from_seq` goes on, and the tombstone to send
        first, if any.

        The position is the last seq examined, for `step`. The tombstone is `recreated` if the reader knows another
        instance (another epoch, or a `from_seq` past the head), or a floor gap if it missed something below
        `evict_floor`. Deletions are silent.
        """
        front = self.earliest_seq
        if not same_epoch or from_seq > self.head_seq:
            missed = self.head_seq - self.losses.deleted_below(front, 1)
            missed -= self.index.deleted_in(front, self.head_seq + 1)
            return front - 1, self._tombstone(1, self.head_seq, "recreated", missed)
        if from_seq + 1 < self.losses.evict_floor:
            first = from_seq + 1
            missed = front - first - self.losses.deleted_below(front, first)
            return front - 1, self._tombstone(first, front - 1, self.losses.reason_from(first), missed)
        return max(from_seq, front - 1), None

    def step(self, after: int, limit: int) -> SeqRun | Gap | None:
        """Return what follows position `after`: a run of live records (at most `limit`), a hole, or None at the head.

        Deleted seqs are skipped. If `after` is inside a hole, the Gap is the rest of it.
        """
        assert limit > 0
        begin = max(after + 1, self.earliest_seq)
        if begin > self.head_seq:
            return None
        live = self.index.next_live(begin)
        if self.losses.holes is not None and (gap := self.losses.gap_at(begin, live)) is not None:
            return gap
        return None if live is None else SeqRun(live, self.index.run_end(live, limit))

    def tombstone_of(self, gap: Gap) -> Tombstone:
        """Return the tombstone that announces `gap`, with the current floors. Needs no columns."""
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

    # -- the front ---------------------------------------------------------------------------------------------------

    def _move_front(self, front: int | None, reason: LossReason | None, last_lost: int) -> SpanSum:
        """Make `front` (None = no live record is left) the first live seq. The floors move nowhere else.

        Holes below it are passed. With a `reason`, the live records below it are lost for that reason, the highest
        being `last_lost`; without one they are deleted. Returns the sum of the records that were live.
        """
        old_front, self.earliest_seq = self.earliest_seq, self.head_seq + 1 if front is None else front
        assert self.earliest_seq >= old_front
        self.losses.move_front(old_front, self.earliest_seq, reason, last_lost)
        gone = self.index.drop_below(self.earliest_seq)
        self._account(gone)
        if self.tags.index is not None:
            self.tags.sweep(gone.tagged, self.earliest_seq, self.head_seq)
        if self.nulls is not None:
            self.nulls.drop_below(self.earliest_seq)
        if self.kept is not None and gone.tagged:
            self.kept.died(gone.tagged)
            self.kept.sweep(gone.tagged, self.earliest_seq)
        return gone

    def _front_from(self, seq: int) -> int | None:
        """Return the first live seq from `seq` on. Raises NotLoaded if finding it, or making it the front, needs
        columns."""
        front = self.index.next_live(seq)
        if front is not None:
            need_to_drop(self.index, front)
        return front

    def front_is_gone(self) -> bool:
        """Return True if `earliest_seq`, which was live or past the head, is no longer live.

        Needs no columns: in a span that is not loaded, either all live records have died or none.
        """
        if not self.index.spans:
            return True
        span = self.index.spans[0]
        return not span.live or (span.loaded and span.dead[span.start] != LIVE)

    def _account(self, gone: SpanSum) -> None:
        self.count -= gone.records
        self.bytes -= gone.bytes
        if gone.tagged:
            self.tags.died(gone)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self, *, raw: bool = True) -> dict[str, Any]:
        """Return the whole state as ints, strings, bytes, lists and maps for CBOR, arrays as little-endian bytes.

        Stored spans are dumped as summaries. Without `raw`, raw spans and tags are left out: the caller stores the raw
        records and adds their summaries to "spans" (`dumped_spans.grow_dump`). Needs no columns.
        """
        return {
            "head_seq": self.head_seq,
            "earliest_seq": self.earliest_seq,
            "evict_floor": self.losses.evict_floor,
            "last_ts": self.last_ts,
            "spans": self.index.dump(raw=raw),
            "tags": self.tags.dump() if raw else None,
            "tags_from": self.tags.loadable_from if raw else None,
            **self.losses.dump(),
            **(self.nulls.dump() if self.nulls is not None else {}),
        }

    def dump_lost(self) -> dict[str, Any]:
        """Return the dump of what an `ephemeral` topic has after a restart: everything live is lost.

        Needs no columns: if the last live record is in a span that is not loaded, the last seq of that span is taken
        for it.
        """
        # Dropping every span whole changes no span object, so the copy can share them.
        index = RecordIndex()
        index.spans, index.n_stored = self.index.spans[:], self.index.n_stored
        shadow = TopicLog(index, self.losses.copy(index))
        shadow.head_seq, shadow.earliest_seq = self.head_seq, self.earliest_seq
        shadow.count, shadow.bytes, shadow.last_ts = self.count, self.bytes, self.last_ts
        if self.count:
            try:
                last = self.index.last_live(self.head_seq + 1)
                assert last is not None
            except NotLoaded as missing:
                last = missing.spans[-1].end - 1
            shadow._move_front(None, "lost", last)
        return shadow.dump(raw=False)

    @classmethod
    def load(cls, value: Mapping[str, Any]) -> TopicLog:
        """Rebuild the log from the value that `dump` returned. Stored spans have no segment yet and are not loaded.

        If the dump was made without `raw`, tags are known from the first seq behind the stored spans on. Raises
        ValueError if `value` is not a dump.
        """
        try:
            index = RecordIndex.load(value["spans"])
            tags = TopicTags.load(value["tags"], value["tags_from"], index)
            log = cls(index, Losses.load(value, index), tags)
            log.head_seq = whole(value["head_seq"])
            log.earliest_seq = whole(value["earliest_seq"])
            log.last_ts = whole(value["last_ts"])
            log.nulls = NullRecords.load(value)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"topic log: {error!r}") from error
        log.count = sum([span.live for span in index.spans])
        log.bytes = sum([span.bytes for span in index.spans])
        try:
            check_frame(log)
        except AssertionError as error:
            raise ValueError(f"topic log: contradicts itself: {error}") from error
        return log

    def check(self) -> None:
        """Assert every invariant. Counts all loaded slots again."""
        check_frame(self)
        for span in self.index.spans:
            check_span(span)
        self.tags.check(self.head_seq)
