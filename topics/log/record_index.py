"""Where a topic's records are: a struct of arrays in spans (`docs/design/architecture.md` section 4).

A *span* is a dense run of seqs; slot `i` of it is seq `first + i` (`span`). Seqs that no span covers were never stored:
a long hole is the space between two spans. This module finds and counts slots. The meaning of missing slots to a reader
(floors, tombstones, reasons) is the business of `losses` and `topic_log`.

Theory of operation (`docs/design/segments.md` section 1)
--------------------------------------------------------

    spans:  stored  stored  stored  stored | raw  raw  raw
            one per segment, columns come    newer than the last checkpoint, at most `SPAN_RECORDS` slots,
            and go, the summary stays        columns always here

A call that needs the slots of a span that is not loaded raises `NotLoaded`, always before it has changed anything. A
call that changes several spans therefore checks all of them first (`missing_columns`). The caller loads the spans that
the exception names and calls again.

Columns that come back from disk are older than the log. Changes since they were written are kept apart: deletions in
`Span.unflagged`, until the storage layer has written them; losses in the holes of `losses`. `topic_log` applies both
when it attaches columns. Dropped slots of a stored span keep their places, below `start`, because its columns come back
with them.

Deleted slots that only memory has need not keep their columns: `bare_spans`.

Appends, evictions and reads of runs are slices, `find` and `count` over arrays. Only calls with single seqs loop over
records.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from topics.log.span import (
    DELETED,
    LIVE,
    LOST,
    NOT_DERIVED,
    SPAN_RECORDS,
    UNTAGGED,
    NotLoaded,
    Span,
    SpanSum,
    total_of,
)
from topics.log.tables import bare_spans

_DELETED_RUN: Final = re.compile(rb"\x01+")


class RawRun(NamedTuple):
    """Copies of raw slots with contiguous seqs from `first` on, as of one moment. The items of `dead` are LIVE, DELETED
    or LOST."""

    first: int
    ts: array[int]
    file: array[int]
    offset: array[int]
    frame_len: array[int]
    size: array[int]
    flags: bytes
    dead: bytes


class RecordIndex:
    """The spans of a topic, ascending: `n_stored` stored ones, then raw ones. Seqs are absolute, ranges are half open
    (`lo` to `hi` exclusive). A method that needs columns which are not loaded raises NotLoaded."""

    __slots__ = ("n_stored", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.n_stored = 0

    # -- growing -----------------------------------------------------------------------------------------------------

    def append(
        self,
        first: int,
        ts: array[int],
        file: array[int],
        offset: array[int],
        frame_len: array[int],
        size: array[int],
        flags: bytes | bytearray,
        *,
        tagged: int,
        state: int = LIVE,
    ) -> None:
        """Add slots for the seqs from `first` on, which is past every seq in the index. All columns have the same
        length.

        `tagged` is how many records have a tag; `state` is LIVE or, for the slots of a short hole (with sizes 0), LOST.
        """
        n = len(flags)
        span = self._tail(first)
        if n <= SPAN_RECORDS - span.n:
            if not span.n:
                span.first_ts = ts[0]
            span.n += n
            span.last_ts = ts[-1]
            span.ts.extend(ts)
            span.file.extend(file)
            span.offset.extend(offset)
            span.frame_len.extend(frame_len)
            span.size.extend(size)
            span.flags.extend(flags)
            if state == LIVE:
                span.dead.extend(bytes(n))
                span.live += n
                span.bytes += sum(size)
                span.tagged += tagged
            else:
                span.dead.extend(bytes((state,)) * n)
                span.lost += n
            return
        at = 0
        while at < n:
            to = min(n, at + SPAN_RECORDS - self._tail(first + at).n)
            part = flags[at:to]
            self.append(
                first + at,
                ts[at:to],
                file[at:to],
                offset[at:to],
                frame_len[at:to],
                size[at:to],
                part,
                tagged=len(part.translate(None, UNTAGGED)) if tagged else 0,
                state=state,
            )
            at = to

    def attach(self, spans: Sequence[Span]) -> None:
        """Add raw spans of live records that were made elsewhere, ascending and past every seq in the index.

        Costs nothing per slot, except that the first span is copied into the last one if it fits, so that spans stay
        few.
        """
        if spans and self.has_room(spans[0].first, spans[0].n):
            span = spans[0]
            columns = span.ts, span.file, span.offset, span.frame_len, span.size, span.flags
            self.append(span.first, *columns, tagged=span.tagged)
            spans = spans[1:]
        former = self.spans[-1] if self.spans else None
        last = former.end if former is not None else 0
        for span in spans:
            assert not span.stored
            assert span.first >= last
            last = span.end
        self.spans += spans
        if former is not None and spans:
            self._give_back([former])

    def place(self, first_seq: int, file: int, offsets: Sequence[int], frame_lens: array[int] | None = None) -> None:
        """Set where the frames of published records are: `offsets[i]` in WAL file `file` for seq `first_seq + i`.

        `frame_lens` (bytes) is given where the lengths were not known before, or were those of another topic's frames.
        Records that have been dropped or stored since are skipped.
        """
        places = offsets if isinstance(offsets, array) else array("I", offsets)
        for span, a, b in self.parts(first_seq, first_seq + len(places)):
            if span.stored or span.is_bare:
                continue
            at = span.first + a - first_seq
            span.offset[a:b] = places[at : at + b - a]
            span.file[a:b] = array("I", (file,)) * (b - a)
            if frame_lens is not None:
                span.frame_len[a:b] = frame_lens[at : at + b - a]
                span.flags[a:b] = span.flags[a:b].translate(NOT_DERIVED)

    def forget_places(self) -> None:
        """Forget in which files raw records are: their file is 0, like that of records in memory only."""
        for span in self.spans[self.n_stored :]:
            if not span.is_bare:
                span.file = array("I", bytes(span.file.itemsize * span.n))

    def unplaced(self) -> list[int]:
        """Return the seqs of live raw records whose file is not known, ascending."""
        return [
            span.first + i
            for span in self.spans[self.n_stored :]
            if span.live
            for i in range(span.start, span.n)
            if not span.file[i] and span.dead[i] == LIVE
        ]

    def last_placed(self) -> int:
        """Return the last seq of a raw slot whose file is known; 0 for none."""
        for span in reversed(self.spans[self.n_stored :]):
            placed = len(span.file.tobytes().rstrip(b"\0"))
            if placed and (i := (placed - 1) // span.file.itemsize) >= span.start:
                return span.first + i
        return 0

    def has_room(self, first: int, n: int) -> bool:
        """Return True if `n` slots from `first` on would continue the last span, and that is a raw one with room for
        them."""
        if len(self.spans) == self.n_stored:
            return False
        span = self.spans[-1]
        return span.end == first and span.n + n <= SPAN_RECORDS

    def _tail(self, first: int) -> Span:
        if self.spans:
            span = self.spans[-1]
            assert first >= span.end
            if first == span.end and span.n < SPAN_RECORDS and not span.stored:
                return span
        span = Span(first)
        self.spans.append(span)
        self._give_back(self.spans[-2:-1])
        return span

    # -- finding -----------------------------------------------------------------------------------------------------

    def at(self, seq: int) -> tuple[Span, int] | None:
        """Return the span and slot of `seq`, None if it has no slot (any more)."""
        k = self.span_at(seq)
        if k < 0:
            return None
        span = self.spans[k]
        i = seq - span.first
        return (span, i) if span.start <= i < span.n else None

    def ts_of(self, seq: int) -> int:
        """Return `$ts` (epoch ms) of a live record. Raises KeyError if `seq` is not live, and NotLoaded."""
        slot = self.at(seq)
        if slot is None or not slot[0].live:
            raise KeyError(seq)
        span, i = slot
        span.need()
        if span.dead[i]:
            raise KeyError(seq)
        return span.ts[i]

    @property
    def oldest_ts(self) -> int | None:
        """Return `$ts` (epoch ms) of the first slot, which is a live record; None without slots."""
        return self.spans[0].first_ts if self.spans else None

    def capture_raw(self, last: int, first: int = 0) -> list[RawRun]:
        """Copies of the raw slots from `first` up to `last` (both inclusive), in runs of contiguous seqs, ascending.

        Slots that were dropped are not among them. The pieces of a batch may be in two runs.
        """
        runs = []
        for span in self.spans[self.n_stored :]:
            a, b = max(span.start, first - span.first), min(span.n, last + 1 - span.first)
            if a < b:
                if span.is_bare:
                    span, a, b = span.piece(a, b), 0, b - a
                columns = span.ts[a:b], span.file[a:b], span.offset[a:b], span.frame_len[a:b], span.size[a:b]
                runs.append(RawRun(span.first + a, *columns, bytes(span.flags[a:b]), bytes(span.dead[a:b])))
        return runs

    def is_live(self, seq: int) -> bool:
        """Return True if `seq` is a live record."""
        slot = self.at(seq)
        if slot is None:
            return False
        span, i = slot
        if span.dense or not span.live:
            return span.live > 0
        span.need()
        return span.dead[i] == LIVE

    def is_dense(self, seq: int) -> bool:
        """Return True if every slot from `seq` on is known to be live. May be False because of slots before `seq` in
        its span."""
        return all(span.dense for span in self.spans[max(0, self.span_at(seq)) :])

    def next_live(self, seq: int) -> int | None:
        """Return the first live seq from `seq` on, None if there is none."""
        spans = self.spans
        for k in range(max(0, self.span_at(seq)), len(spans)):
            span = spans[k]
            if span.live:
                i = max(span.start, seq - span.first)
                if i >= span.n:
                    continue
                if not span.dense:
                    span.need()
                    i = span.dead.find(LIVE, i)
                if i >= 0:
                    return span.first + i
        return None

    def last_live(self, before: int) -> int | None:
        """Return the last live seq below `before`, None if there is none."""
        for k in range(self.span_at(before - 1), -1, -1):
            span = self.spans[k]
            if span.live and before > span.first + span.start:
                i = min(span.n, before - span.first) - 1
                if not span.dense:
                    span.need()
                    i = span.dead.rfind(LIVE, span.start, i + 1)
                if i >= 0:
                    return span.first + i
        return None

    def run_end(self, seq: int, most: int) -> int:
        """Return the last seq of the live run that begins at `seq`, which is live. The run is cut after `most`
        records."""
        last = seq + most - 1
        k = self.span_at(seq)
        while True:
            span = self.spans[k]
            if not span.live:
                return seq - 1
            a, b = seq - span.first, min(span.n, last + 1 - span.first)
            if not span.dense:
                span.need()
                for mark in (DELETED, LOST):
                    i = span.dead.find(mark, a, b)
                    if i >= 0:
                        b = i
            seq = span.first + b
            k += 1
            if seq > last or b < span.n or k == len(self.spans) or self.spans[k].first != seq:
                return seq - 1

    def parts(self, lo: int, hi: int) -> Iterator[tuple[Span, int, int]]:
        """Yield the slots of seqs `lo` to `hi` (exclusive) as `(span, a, b)`, slots `a` to `b` (exclusive),
        ascending."""
        spans = self.spans
        for k in range(max(0, self.span_at(lo)), len(spans)):
            span = spans[k]
            a, b = max(span.start, lo - span.first), min(span.n, hi - span.first)
            if a < b:
                yield span, a, b
            elif span.first >= hi:
                return

    def first_at_or_after(self, ts: int) -> int | None:
        """Return the first seq with a slot whose time is `ts` (epoch ms) or later; None for none. A binary search:
        times never decrease. In a bare span, whose times are not known, the last one."""
        k = bisect_left(self.spans, ts, key=_last_ts)
        if k == len(self.spans):
            return None
        span = self.spans[k]
        if ts <= span.first_ts:
            return span.first + span.start
        if span.is_bare:
            return span.end - 1
        span.need()
        return span.first + bisect_left(span.ts, ts, span.start)

    def only_live(self, seqs: array[int]) -> array[int]:
        """Return the live ones of `seqs` (ascending). Raises one NotLoaded for all spans."""
        kept: array[int] = array("Q")
        missing = []
        for span, part in self._among(seqs):
            if not span.live:
                continue
            if not span.dense:
                if not span.loaded:
                    missing.append(span)
                    continue
                first, dead = span.first, span.dead
                part = array("Q", [seq for seq in part if dead[seq - first] == LIVE])
            kept.extend(part)
        if missing:
            raise NotLoaded(tuple(missing))
        return kept

    def not_known_dead(self, seqs: array[int]) -> array[int]:
        """Return `seqs` (ascending) without those that are known to be dead. Loads nothing: seqs of spans that are not
        loaded stay in."""
        kept: array[int] = array("Q")
        for span, part in self._among(seqs):
            if not span.live:
                continue
            if not span.dense and span.loaded:
                first, dead = span.first, span.dead
                part = array("Q", [seq for seq in part if dead[seq - first] == LIVE])
            kept.extend(part)
        return kept

    def _among(self, seqs: array[int]) -> Iterator[tuple[Span, array[int]]]:
        """Yield the spans that have slots for any of `seqs` (ascending), each with its part of `seqs`."""
        at = 0
        for span, a, b in self.parts(seqs[0], seqs[-1] + 1) if seqs else ():
            at = bisect_left(seqs, span.first + a, at)
            to = bisect_left(seqs, span.first + b, at)
            if at < to:
                yield span, seqs[at:to]
            at = to

    def deleted_in(self, lo: int, hi: int) -> int:
        """Return how many seqs of the range are known to be deleted."""
        total = 0
        for span, a, b in self.parts(lo, hi):
            if span.deleted:
                if a == span.start and b == span.n:
                    total += span.deleted
                elif span.is_bare:
                    total += b - a
                else:
                    span.need()
                    total += span.dead.count(DELETED, a, b)
        return total

    def deleted_runs(self, lo: int, hi: int, most: int) -> list[tuple[int, int]]:
        """Return the deleted seqs of the range as inclusive runs, ascending; of many, at least the newest `most`.

        Spans that are not loaded are left out.
        """
        newest_first: list[list[tuple[int, int]]] = []
        found = 0
        for k in range(self.span_at(hi - 1), -1, -1):
            span = self.spans[k]
            a, b = max(span.start, lo - span.first), min(span.n, hi - span.first)
            if found >= most or span.end <= lo:
                break
            if a < b and span.is_bare:
                newest_first.append([(span.first + a, span.first + b - 1)])
                found += 1
            elif a < b and span.deleted and span.loaded:
                runs = [m.span() for m in _DELETED_RUN.finditer(span.dead, a, b)]
                newest_first.append([(span.first + i, span.first + j - 1) for i, j in runs])
                found += len(runs)
        return [run for runs in reversed(newest_first) for run in runs]

    def span_at(self, seq: int) -> int:
        """Return the number of the last span that begins at or before `seq`, -1 if none does."""
        spans = self.spans
        # Most calls are about the newest span.
        if spans and spans[-1].first <= seq:
            return len(spans) - 1
        return bisect_right(spans, seq, key=_first) - 1

    # -- shrinking ---------------------------------------------------------------------------------------------------

    def drop_below(self, seq: int) -> SpanSum:
        """Drop every slot below `seq`, and return the sum of the live records among them. Costs a step per span.

        Needs the columns of the span that `seq` cuts, see `missing_columns.need_to_drop`.
        """
        whole = stored = 0
        records = total = tagged = unindexed = 0
        for span in self.spans:
            if span.first + span.start >= seq:
                break
            inside = span.end > seq
            gone = span.drop(seq - span.first) if inside else span.sum(span.start, span.n)
            records, total = records + gone.records, total + gone.bytes
            tagged, unindexed = tagged + gone.tagged, unindexed + gone.unindexed
            if inside:
                break
            whole += 1
            stored += span.stored
        del self.spans[:whole]
        self.n_stored -= stored
        return SpanSum(records, total, tagged, unindexed)

    def lose(self, lo: int, hi: int) -> SpanSum:
        """Make the live records of the range LOST, and return their sum."""
        return total_of([span.lose(a, b) for span, a, b in self.parts(lo, hi)])

    def delete(self, seqs: Sequence[int]) -> SpanSum:
        """Make those of `seqs` (ascending) that are live DELETED, and return their sum. See
        `missing_columns.missing_to_delete`."""
        touched = list(self.touched(seqs))
        gone = total_of([span.delete(seqs[at:to]) for span, at, to in touched])
        self._give_back([span for span, _, _ in touched])
        return gone

    def take_away(self, seqs: Sequence[int], sizes: Sequence[int]) -> SpanSum:
        """Make `seqs` (ascending) DELETED, and return the sum of those that were live. All of those in spans that are
        not loaded are known to be live, to have a tag, and to have these `sizes`. Needs no columns."""
        sums = []
        touched = list(self.touched(seqs))
        for span, at, to in touched:
            if span.loaded or span.is_bare:
                sums.append(span.delete(seqs[at:to]))
            else:
                sums.append(span.delete_unseen(seqs[at:to], sizes[at:to]))
        self._give_back([span for span, _, _ in touched])
        return total_of(sums)

    def _give_back(self, spans: Sequence[Span]) -> None:
        """Give back the memory of long runs of deleted slots in these spans, where only memory has them."""
        for span in spans:
            if span is self.spans[-1] or not bare_spans.is_due(span):
                continue
            pieces = bare_spans.cut_out(span)
            if pieces is not None:
                k = self.span_at(span.first)
                assert self.spans[k] is span
                self.spans[k : k + 1] = pieces
                for i in range(min(k + len(pieces), len(self.spans) - 1), max(k, 1) - 1, -1):
                    if bare_spans.joined(self.spans[i - 1], self.spans[i]):
                        del self.spans[i]

    def touched(self, seqs: Sequence[int]) -> Iterator[tuple[Span, int, int]]:
        """Yield each span that contains any of `seqs` (ascending), with begin and end (exclusive) of its part of
        `seqs`."""
        at = 0
        while at < len(seqs):
            k = self.span_at(seqs[at])
            end = self.spans[k].end if k >= 0 else 0
            if seqs[at] >= end:
                # This seq is in no span: go on with the first one that could be in the next span.
                k += 1
                if k == len(self.spans):
                    break
                at = bisect_left(seqs, self.spans[k].first, at)
                continue
            to = bisect_left(seqs, end, at)
            yield self.spans[k], at, to
            at = to

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self, *, raw: bool = True) -> list[Any]:
        """Return the spans, for `load`; without the raw ones if `raw` is False."""
        return [span.dump() for span in (self.spans if raw else self.spans[: self.n_stored])]

    @classmethod
    def load(cls, value: object) -> RecordIndex:
        """Rebuild the index from what `dump` returned. Raises ValueError if spans are malformed, overlap or go back in
        time."""
        if not isinstance(value, list | tuple):
            raise ValueError("index: not a list of spans")
        index = cls()
        index.spans = [Span.load(part) for part in value]
        index.n_stored = sum([span.stored for span in index.spans])
        for left, right in pairwise(index.spans):
            if left.end > right.first or left.last_ts > right.first_ts or right.stored > left.stored:
                raise ValueError(f"index: span at {right.first} does not follow the one at {left.first}")
        return index

    def check(self) -> None:
        """Assert that the spans are in order, and only the first has dropped slots. Costs a step per span."""
        spans, n_stored = self.spans, self.n_stored
        assert all(span.start == 0 for span in spans[1:]), "dropped slots in the middle"
        assert all(a.end <= b.first and a.last_ts <= b.first_ts for a, b in pairwise(spans)), "spans overlap"
        assert all(span.stored for span in spans[:n_stored]), "raw before stored"
        assert not any(span.stored for span in spans[n_stored:]), "stored after raw"


def _first(span: Span) -> int:
    return span.first


def _last_ts(span: Span) -> int:
    return span.last_ts
