"""Where a topic's records are: a struct of arrays in spans (`docs/design/architecture.md` section 4).

A *span* is a dense run of at most `SPAN_RECORDS` seqs; slot `i` of it is seq `first + i`. A slot is live, deleted
(somebody asked for it) or lost (nobody did: damage, or a short hole). Seqs that no span covers were never stored: a
long hole is the space between two spans. What that means to a reader (floors, tombstones, reasons) is `topic_log`'s
business; here are only slots and what can be counted on them.

26 bytes a record, no object per record (`storage.md` section 5 allows 32). Everything that an append, an eviction or a
read of a run does is a slice, a `find` or a `count` over arrays; the only loops per record are those over single seqs
that a caller names.
"""

from __future__ import annotations

import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress
from typing import Any, Final, NamedTuple

# Large enough that spans are few (600 for ten million records), small enough that copying one (425 KB) is nothing.
SPAN_RECORDS = 16_384

# Slots in front of the first live one are garbage until they are cut off, which copies the rest of the span. Doing it
# when they are an eighth keeps the garbage below what 32 bytes a record leave room for, at seven slots copied for each
# one evicted; below `MIN_TRIM` slots it is not worth a call.
MIN_TRIM = 64
_TRIM_SHARE: Final = 8

LIVE: Final = 0
DELETED: Final = 1
LOST: Final = 2

FLAG_TAG: Final = 0x01

# The first look for an eviction point is short, because mostly a record or two go; a long one takes bigger strides.
_FIRST_STRIDE: Final = 32
_LONGEST_STRIDE: Final = 4096

_MARK: Final = {mark: bytes([mark, *range(1, 256)]) for mark in (DELETED, LOST)}
_ONE_IF_LIVE: Final = bytes([1] + [0] * 255)
_UNTAGGED: Final = bytes(flags for flags in range(256) if not flags & FLAG_TAG)
_DELETED_RUN: Final = re.compile(rb"\x01+")
_COLUMNS: Final = (("ts", "Q"), ("file", "I"), ("offset", "I"), ("frame_len", "I"), ("size", "I"))

assert array("Q").itemsize == 8
assert array("I").itemsize == 4


class Sum(NamedTuple):
    """What a set of live records amounts to: how many, their payload bytes, and how many of them have a tag."""

    records: int
    bytes: int
    tagged: int


def little_endian(values: array[int]) -> bytes:
    """The items as little-endian bytes, as dumps hold them."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def from_little_endian(typecode: str, value: object) -> array[int]:
    """The inverse of `little_endian`. Raises ValueError if `value` is not bytes of whole items."""
    if not isinstance(value, bytes):
        raise ValueError(f"array dump: {type(value).__name__} instead of bytes")
    values: array[int] = array(typecode)
    values.frombytes(value)
    if sys.byteorder == "big":
        values.byteswap()
    return values


class Span:
    """The columns of one run of seqs, and their sums.

    Slots before `start` are dropped and counted nowhere. The size of a slot that is not live is 0, so that plain sums
    over `size` are right. `ts` never decreases.
    """

    __slots__ = (
        "bytes",
        "dead",
        "file",
        "first",
        "flags",
        "frame_len",
        "live",
        "lost",
        "offset",
        "size",
        "start",
        "tagged",
        "ts",
    )

    def __init__(self, first: int) -> None:
        self.first = first
        self.start = 0
        self.live = 0
        self.lost = 0
        self.bytes = 0
        self.tagged = 0
        self.ts: array[int] = array("Q")
        self.file: array[int] = array("I")
        self.offset: array[int] = array("I")
        self.frame_len: array[int] = array("I")
        self.size: array[int] = array("I")
        self.flags = bytearray()
        self.dead = bytearray()

    @property
    def end(self) -> int:
        """One past the last seq."""
        return self.first + len(self.dead)

    @property
    def deleted(self) -> int:
        """How many slots are deleted."""
        return len(self.dead) - self.start - self.live - self.lost

    def sum(self, a: int, b: int) -> Sum:
        """The live records among slots `a` to `b` (exclusive)."""
        if a == self.start and b == len(self.dead):
            return Sum(self.live, self.bytes, self.tagged)
        live = self.dead.count(LIVE, a, b)
        tagged = 0
        if live and self.tagged:
            flags: bytearray | bytes = self.flags[a:b]
            if live != b - a:
                flags = bytes(compress(flags, self.dead[a:b].translate(_ONE_IF_LIVE)))
            tagged = len(flags.translate(None, _UNTAGGED))
        return Sum(live, sum(self.size[a:b]), tagged)

    def drop(self, to: int) -> Sum:
        """Slots before `to`, which is inside the span, are gone; what was live among them."""
        gone = self.sum(self.start, to)
        self.lost -= self.dead.count(LOST, self.start, to)
        self._take_off(gone)
        self.start = to
        if to >= MIN_TRIM and to * _TRIM_SHARE >= len(self.dead):
            # Slices, because deleting in place would leave the arrays allocated at their old length.
            self.ts = self.ts[to:]
            self.file = self.file[to:]
            self.offset = self.offset[to:]
            self.frame_len = self.frame_len[to:]
            self.size = self.size[to:]
            self.flags = self.flags[to:]
            self.dead = self.dead[to:]
            self.first += to
            self.start = 0
        return gone

    def kill(self, a: int, b: int, mark: int) -> Sum:
        """The live records among slots `a` to `b` (exclusive) become `mark`."""
        gone = self.sum(a, b)
        if gone.records:
            self.dead[a:b] = self.dead[a:b].translate(_MARK[mark])
            self.size[a:b] = array("I", bytes(4 * (b - a)))
            self._take_off(gone)
            if mark == LOST:
                self.lost += gone.records
        return gone

    def delete(self, seqs: Sequence[int]) -> Sum:
        """Those of `seqs`, all inside the span, that are live are deleted."""
        first, dead, size, flags = self.first, self.dead, self.size, self.flags
        records = total = tagged = 0
        for seq in seqs:
            i = seq - first
            if i >= self.start and dead[i] == LIVE:
                dead[i] = DELETED
                records += 1
                total += size[i]
                size[i] = 0
                tagged += flags[i] & FLAG_TAG
        gone = Sum(records, total, tagged)
        self._take_off(gone)
        return gone

    def _take_off(self, gone: Sum) -> None:
        self.live -= gone.records
        self.bytes -= gone.bytes
        self.tagged -= gone.tagged

    def live_files(self) -> set[int]:
        """The file ids of the live slots."""
        if self.live == len(self.dead) - self.start:
            return set(self.file[self.start :])
        return set(compress(self.file[self.start :], self.dead[self.start :].translate(_ONE_IF_LIVE)))

    def recount(self) -> None:
        """Take `live`, `lost`, `bytes` and `tagged` from the slots."""
        a, b = self.start, len(self.dead)
        flags = bytes(compress(self.flags[a:b], self.dead[a:b].translate(_ONE_IF_LIVE)))
        self.live = self.dead.count(LIVE, a, b)
        self.lost = self.dead.count(LOST, a, b)
        self.bytes = sum(self.size[a:b])
        self.tagged = len(flags.translate(None, _UNTAGGED))

    def dump(self) -> list[Any]:
        """`[first, ts, file, offset, frame_len, size, flags, dead]` less what was dropped; no `dead` if all live."""
        a = self.start
        columns = [little_endian(getattr(self, name)[a:]) for name, _ in _COLUMNS]
        dead = b"" if self.live == len(self.dead) - a else bytes(self.dead[a:])
        return [self.first + a, *columns, bytes(self.flags[a:]), dead]

    @classmethod
    def load(cls, value: object) -> Span:
        """The inverse of `dump`. Raises ValueError if lengths or values do not fit."""
        if not isinstance(value, list | tuple) or len(value) != len(_COLUMNS) + 3:
            raise ValueError("span: not a list of its columns")
        first, *columns, flags, dead = value
        if not isinstance(first, int) or not isinstance(flags, bytes) or not isinstance(dead, bytes) or first < 1:
            raise ValueError("span: bad first seq, flags or dead")
        span = cls(first)
        for (name, typecode), column in zip(_COLUMNS, columns, strict=True):
            setattr(span, name, from_little_endian(typecode, column))
            if len(getattr(span, name)) != len(flags):
                raise ValueError(f"span at {first}: {name} does not have {len(flags)} items")
        span.flags = bytearray(flags)
        span.dead = bytearray(dead or bytes(len(flags)))
        if not flags or len(span.dead) != len(flags) or span.dead.translate(None, bytes((LIVE, DELETED, LOST))):
            raise ValueError(f"span at {first}: bad dead column")
        span.recount()
        return span


class RecordIndex:
    """The spans of a topic, ordered. Seqs are absolute, ranges are half open (`lo` to `hi` exclusive)."""

    __slots__ = ("spans",)

    def __init__(self) -> None:
        self.spans: list[Span] = []

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
        """Slots for the seqs from `first` on, which is past every seq in the index. All columns have the same length.

        `tagged` is how many have a tag; `state` is LIVE or, for the slots of a short hole (with sizes 0), LOST.
        """
        n = len(flags)
        span = self._tail(first)
        if n <= SPAN_RECORDS - len(span.dead):
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
            to = min(n, at + SPAN_RECORDS - len(self._tail(first + at).dead))
            part = flags[at:to]
            self.append(
                first + at,
                ts[at:to],
                file[at:to],
                offset[at:to],
                frame_len[at:to],
                size[at:to],
                part,
                tagged=len(part.translate(None, _UNTAGGED)) if tagged else 0,
                state=state,
            )
            at = to

    def has_room(self, first: int, n: int) -> bool:
        """Whether `n` slots from `first` on would continue the last span."""
        return bool(self.spans) and self.spans[-1].end == first and len(self.spans[-1].dead) + n <= SPAN_RECORDS

    def _tail(self, first: int) -> Span:
        if self.spans:
            span = self.spans[-1]
            assert first >= span.end
            if first == span.end and len(span.dead) < SPAN_RECORDS:
                return span
        span = Span(first)
        self.spans.append(span)
        return span

    # -- finding -----------------------------------------------------------------------------------------------------

    def at(self, seq: int) -> tuple[Span, int] | None:
        """The slot of `seq`, or None if it has none (any more)."""
        k = self._span_at(seq)
        if k < 0:
            return None
        span = self.spans[k]
        i = seq - span.first
        return (span, i) if span.start <= i < len(span.dead) else None

    def is_live(self, seq: int) -> bool:
        """Whether `seq` is a live record."""
        slot = self.at(seq)
        return slot is not None and slot[0].dead[slot[1]] == LIVE

    def is_dense(self) -> bool:
        """Whether every slot is live."""
        return all(span.live == len(span.dead) - span.start for span in self.spans)

    def next_live(self, seq: int) -> int | None:
        """The first live seq from `seq` on."""
        spans = self.spans
        for k in range(max(0, self._span_at(seq)), len(spans)):
            span = spans[k]
            if span.live:
                i = span.dead.find(LIVE, max(span.start, seq - span.first))
                if i >= 0:
                    return span.first + i
        return None

    def last_live(self, before: int) -> int | None:
        """The last live seq below `before`."""
        for k in range(self._span_at(before - 1), -1, -1):
            span = self.spans[k]
            if span.live and before > span.first:
                i = span.dead.rfind(LIVE, span.start, before - span.first)
                if i >= 0:
                    return span.first + i
        return None

    def run_end(self, seq: int, most: int) -> int:
        """The last seq of the live run that begins at `seq`, which is live; the run is cut after `most` records."""
        last = seq + most - 1
        k = self._span_at(seq)
        while True:
            span = self.spans[k]
            a, b = seq - span.first, min(len(span.dead), last + 1 - span.first)
            if span.live != len(span.dead) - span.start:
                for mark in (DELETED, LOST):
                    i = span.dead.find(mark, a, b)
                    if i >= 0:
                        b = i
            seq = span.first + b
            k += 1
            if seq > last or b < len(span.dead) or k == len(self.spans) or self.spans[k].first != seq:
                return seq - 1

    def parts(self, lo: int, hi: int) -> Iterator[tuple[Span, int, int]]:
        """The slots of seqs `lo` to `hi` (exclusive) as `(span, a, b)`, slots `a` to `b` (exclusive), ascending."""
        spans = self.spans
        for k in range(max(0, self._span_at(lo)), len(spans)):
            span = spans[k]
            a, b = max(span.start, lo - span.first), min(len(span.dead), hi - span.first)
            if a < b:
                yield span, a, b
            elif span.first >= hi:
                return

    def first_at_or_after(self, ts: int) -> int | None:
        """The first seq with a slot whose time is `ts` or later. Times never decrease, so this is a binary search."""
        k = bisect_left(self.spans, ts, key=_last_ts)
        if k == len(self.spans):
            return None
        span = self.spans[k]
        return span.first + bisect_left(span.ts, ts, span.start)

    def eviction_point(self, over: int, *, by_bytes: bool) -> tuple[int, int]:
        """The least seq below which the live records amount to `over` (> 0) records or bytes, and 0.

        If all of them together are less: one past the last slot (0 without any), and what is left of `over`. The cost
        follows what lies below the point, not what is stored.
        """
        for span in self.spans:
            total = span.bytes if by_bytes else span.live
            if total < over:
                over -= total
                continue
            i, stride = span.start, _FIRST_STRIDE
            while i < len(span.dead):
                j = i + stride
                weights: Sequence[int] = span.size[i:j] if by_bytes else span.dead[i:j].translate(_ONE_IF_LIVE)
                total = sum(weights)
                if total >= over:
                    return span.first + i + bisect_left(list(accumulate(weights)), over) + 1, 0
                over -= total
                i, stride = j, min(2 * stride, _LONGEST_STRIDE)
            raise AssertionError("the sums of a span are more than its slots")
        return (self.spans[-1].end if self.spans else 0), over

    def only_live(self, seqs: array[int]) -> array[int]:
        """The live ones of `seqs` (ascending)."""
        kept: array[int] = array("Q")
        if not seqs:
            return kept
        at = 0
        for span, a, b in self.parts(seqs[0], seqs[-1] + 1):
            at = bisect_left(seqs, span.first + a, at)
            to = bisect_left(seqs, span.first + b, at)
            part = seqs[at:to]
            if span.live != len(span.dead) - span.start:
                first, dead = span.first, span.dead
                part = array("Q", [seq for seq in part if dead[seq - first] == LIVE])
            kept.extend(part)
            at = to
        return kept

    def deleted_in(self, lo: int, hi: int) -> int:
        """How many seqs of the range are known to be deleted."""
        total = 0
        for span, a, b in self.parts(lo, hi):
            if span.deleted:
                whole = a == span.start and b == len(span.dead)
                total += span.deleted if whole else span.dead.count(DELETED, a, b)
        return total

    def deleted_runs(self, lo: int, hi: int, most: int) -> list[tuple[int, int]]:
        """The deleted seqs of the range as inclusive runs, ascending; of many, at least the newest `most`."""
        newest_first: list[list[tuple[int, int]]] = []
        found = 0
        for k in range(self._span_at(hi - 1), -1, -1):
            span = self.spans[k]
            a, b = max(span.start, lo - span.first), min(len(span.dead), hi - span.first)
            if found >= most or span.end <= lo:
                break
            if a < b and span.deleted:
                runs = [m.span() for m in _DELETED_RUN.finditer(span.dead, a, b)]
                newest_first.append([(span.first + i, span.first + j - 1) for i, j in runs])
                found += len(runs)
        return [run for runs in reversed(newest_first) for run in runs]

    def _span_at(self, seq: int) -> int:
        """The last span that begins at or before `seq`, -1 if none does."""
        spans = self.spans
        # Mostly somebody asks for the newest.
        if spans and spans[-1].first <= seq:
            return len(spans) - 1
        return bisect_right(spans, seq, key=_first) - 1

    # -- shrinking ---------------------------------------------------------------------------------------------------

    def drop_below(self, seq: int) -> Sum:
        """Forget every slot below `seq`; what was live among them. Costs a step per span."""
        whole = 0
        records = total = tagged = 0
        for span in self.spans:
            if span.first + span.start >= seq:
                break
            inside = span.end > seq
            gone = span.drop(seq - span.first) if inside else span.sum(span.start, len(span.dead))
            records, total, tagged = records + gone.records, total + gone.bytes, tagged + gone.tagged
            if inside:
                break
            whole += 1
        del self.spans[:whole]
        return Sum(records, total, tagged)

    def kill(self, lo: int, hi: int, mark: int) -> Sum:
        """The live records of the range become DELETED or LOST; what they were."""
        records = total = tagged = 0
        for span, a, b in self.parts(lo, hi):
            gone = span.kill(a, b, mark)
            records, total, tagged = records + gone.records, total + gone.bytes, tagged + gone.tagged
        return Sum(records, total, tagged)

    def delete(self, seqs: Sequence[int]) -> Sum:
        """Those of `seqs` (ascending) that are live become DELETED; what they were."""
        records = total = tagged = at = 0
        while at < len(seqs):
            k = self._span_at(seqs[at])
            end = self.spans[k].end if k >= 0 else 0
            if seqs[at] >= end:
                # In no span: on to the first that could be in the next one.
                k += 1
                if k == len(self.spans):
                    break
                at = bisect_left(seqs, self.spans[k].first, at)
                continue
            to = bisect_left(seqs, end, at)
            gone = self.spans[k].delete(seqs[at:to])
            records, total, tagged = records + gone.records, total + gone.bytes, tagged + gone.tagged
            at = to
        return Sum(records, total, tagged)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """The spans, for `load`."""
        return [span.dump() for span in self.spans]

    @classmethod
    def load(cls, value: object) -> RecordIndex:
        """The inverse of `dump`. Raises ValueError if spans are malformed, overlap or go back in time."""
        if not isinstance(value, list | tuple):
            raise ValueError("index: not a list of spans")
        index = cls()
        index.spans = [Span.load(part) for part in value]
        for left, right in zip(index.spans, index.spans[1:], strict=False):
            if left.end > right.first or left.ts[-1] > right.ts[0]:
                raise ValueError(f"index: span at {right.first} does not follow the one at {left.first}")
        return index


def _first(span: Span) -> int:
    return span.first


def _last_ts(span: Span) -> int:
    return span.ts[-1]
