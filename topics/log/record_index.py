"""Where a topic's records are: a struct of arrays in spans (`docs/design/architecture.md` section 4).

A *span* is a dense run of seqs; slot `i` of it is seq `first + i`. A slot is live, deleted (somebody asked for it) or
lost (nobody did: damage, or a short hole). Seqs that no span covers were never stored: a long hole is the space between
two spans. What that means to a reader (floors, tombstones, reasons) is `topic_log`'s business; here are only slots and
what can be counted on them.

Theory of operation (`docs/design/segments.md` section 1)
--------------------------------------------------------

    spans:  stored  stored  stored  stored | raw  raw  raw
            one per segment, columns come    newer than the last checkpoint, at most `SPAN_RECORDS` slots,
            and go, the summary stays        columns always here

Every span has a *summary*: how many slots, how many of them live and lost, payload bytes, tagged ones, the times of
both ends. It is exact. The *columns* (a state, a place, a size, a time per slot) of a raw span are always here, those
of a stored one only while it is *loaded*: the storage layer attaches and detaches them as its cache sees fit. What is
no matter of single slots is answered from the summary: anything about whole spans, and nearly anything about *dense*
ones, where every slot is live.

What does need the slots of a span that is not loaded raises `NotLoaded`, always before anything has changed. Everything
that changes more than one span therefore asks for all of them first. The caller loads what is named and calls again.

Columns that were detached and come back from disk are older than the log. What has happened since is kept apart:
deletions in `unflagged`, until the storage layer has written them; losses in the holes of `topic_log`, which lays both
over what it attaches. Slots that were dropped stay where they are in a stored span, below `start`, because its columns
come back with them.

26 bytes a raw record and 22 a loaded stored one, no object per record (`docs/spec/storage.md` section 5 allows 32).
Everything that an append, an eviction or a read of a run does is a slice, a `find` or a `count` over arrays; the only
loops per record are those over single seqs that a caller names.
"""

from __future__ import annotations

import operator
import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, pairwise
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
FLAG_NODE: Final = 0x02
FLAG_ORIGIN: Final = 0x20
# Of raw slots only, and not on disk: the frame is another topic's, see `copies`.
FLAG_DERIVED: Final = 0x80
NOT_DERIVED: Final = bytes(flags & 0x7F for flags in range(256))

# The first look for an eviction point is short, because mostly a record or two go; a long one takes bigger strides.
_FIRST_STRIDE: Final = 32
_LONGEST_STRIDE: Final = 4096

LIVE_TO_LOST: Final = bytes([LOST, *range(1, 256)])
_ONE_IF_LIVE: Final = bytes([1] + [0] * 255)
_ONE_IF_DELETED: Final = bytes([0, 1] + [0] * 254)
_UNTAGGED: Final = bytes(flags for flags in range(256) if not flags & FLAG_TAG)
_DELETED_RUN: Final = re.compile(rb"\x01+")
_COLUMNS: Final = (("ts", "Q"), ("file", "I"), ("offset", "I"), ("frame_len", "I"), ("size", "I"))

# What a loaded stored span takes up: ts, offset, frame_len, size, flags, dead.
STORED_SLOT_BYTES: Final = 22

# The first item of a dumped stored span, where a raw one has its first seq; and what follows it (`Span.dump`).
STORED_MARK: Final = "stored"
SUMMARY_FIELDS: Final = ("first", "n", "start", "live", "lost", "bytes", "tagged", "first_ts", "last_ts")

# All spans that are not loaded share these; nothing extends them.
_NO_TIMES: Final[array[int]] = array("Q")
_NO_PLACES: Final[array[int]] = array("I")
_NO_STATES: Final = bytearray()

assert array("Q").itemsize == 8
assert array("I").itemsize == 4


class NotLoaded(Exception):
    """The columns of `spans` are needed and not here. Nothing has changed; load them and call again."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans

    def __str__(self) -> str:
        return "columns of " + ", ".join(f"[{span.first}, {span.end - 1}]" for span in self.spans)


class Sum(NamedTuple):
    """What a set of live records amounts to: how many, their payload bytes, how many of them have a tag, and how many
    of those the tag index does not know (any more)."""

    records: int
    bytes: int
    tagged: int
    unindexed: int


NOTHING: Final = Sum(0, 0, 0, 0)


def total_of(sums: Sequence[Sum]) -> Sum:
    """All of them together."""
    if len(sums) == 1:
        return sums[0]
    return Sum(*map(sum, zip(*sums, strict=True))) if sums else NOTHING


def little_endian(values: array[int]) -> bytes:
    """The items as little-endian bytes, as dumps hold them."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values.tobytes()


def whole(value: object) -> int:
    """A number of a dump, which is one already: `int` would take texts, and work for hours on a decimal of CBOR.
    Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"dump: {type(value).__name__} instead of a number")
    return value


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
    """One run of seqs: its summary, and its columns where they are here.

    `n` counts the slots. Those before `start` are dropped and counted nowhere. `first_ts` and `last_ts` are the times
    of the first and the last slot that count (epoch ms); `first_ts` may be earlier while a stored span is not loaded.
    `ts` never decreases. The size of a slot that is not live is 0, so that plain sums over `size` are right.

    `unindexed` are those of the `tagged` that the tag index of the topic does not have: below `tags_from`, a seq.

    A stored span has no `file`: all its bytes are in `segment`, which means nothing in here. `unflagged` are its seqs
    that became deleted since the storage layer has last written delete flags; None for none.
    """

    __slots__ = (
        "bytes",
        "dead",
        "file",
        "first",
        "first_ts",
        "flags",
        "frame_len",
        "last_ts",
        "live",
        "lost",
        "n",
        "offset",
        "segment",
        "size",
        "start",
        "stored",
        "tagged",
        "tags_from",
        "ts",
        "unflagged",
        "unindexed",
    )

    def __init__(self, first: int, *, stored: bool = False) -> None:
        self.first = first
        self.n = 0
        self.start = 0
        self.live = 0
        self.lost = 0
        self.bytes = 0
        self.tagged = 0
        self.unindexed = 0
        self.tags_from = 0
        self.first_ts = 0
        self.last_ts = 0
        self.stored = stored
        self.segment: object | None = None
        self.unflagged: array[int] | None = None
        self.ts: array[int] = array("Q")
        self.file: array[int] = _NO_PLACES if stored else array("I")
        self.offset: array[int] = array("I")
        self.frame_len: array[int] = array("I")
        self.size: array[int] = array("I")
        self.flags = bytearray()
        self.dead = bytearray()

    @classmethod
    def of_live(
        cls,
        first: int,
        ts: int,
        file: array[int],
        offset: array[int],
        frame_len: array[int],
        size: array[int],
        flags: bytes,
    ) -> Span:
        """A raw span of live records that have one time, at most `SPAN_RECORDS`. The arrays become its own."""
        n = len(flags)
        assert 0 < n <= SPAN_RECORDS
        assert len(file) == len(offset) == len(frame_len) == len(size) == n
        span = cls(first)
        span.n = span.live = n
        span.first_ts = span.last_ts = ts
        span.ts = array("Q", (ts,)) * n
        span.file, span.offset, span.frame_len, span.size = file, offset, frame_len, size
        span.flags, span.dead = bytearray(flags), bytearray(n)
        span.bytes = sum(size)
        span.tagged = len(flags.translate(None, _UNTAGGED))
        return span

    @property
    def end(self) -> int:
        """One past the last seq."""
        return self.first + self.n

    @property
    def deleted(self) -> int:
        """How many slots are deleted."""
        return self.n - self.start - self.live - self.lost

    @property
    def dense(self) -> bool:
        """Whether every slot is live."""
        return self.live == self.n - self.start

    @property
    def loaded(self) -> bool:
        """Whether the columns are here. Those of a raw span always are."""
        return len(self.dead) == self.n

    def need(self) -> None:
        """Raise NotLoaded if the columns are not here."""
        if len(self.dead) != self.n:
            raise NotLoaded((self,))

    # -- counting ----------------------------------------------------------------------------------------------------

    def sum(self, a: int, b: int) -> Sum:
        """The live records among slots `a` to `b` (exclusive)."""
        if a == self.start and b == self.n:
            return Sum(self.live, self.bytes, self.tagged, self.unindexed)
        if not self.live:
            return NOTHING
        self.need()
        live = self.dead.count(LIVE, a, b)
        tagged = self._count_tagged(a, b) if live and self.tagged else 0
        unindexed = tagged
        if tagged and self.unindexed != self.tagged:
            unindexed = self._count_tagged(a, min(b, self.tags_from - self.first)) if self.unindexed else 0
        return Sum(live, sum(self.size[a:b]), tagged, unindexed)

    def _count_tagged(self, a: int, b: int) -> int:
        if a >= b:
            return 0
        flags: bytearray | bytes = self.flags[a:b]
        if self.dead.count(LIVE, a, b) != b - a:
            flags = bytes(compress(flags, self.dead[a:b].translate(_ONE_IF_LIVE)))
        return len(flags.translate(None, _UNTAGGED))

    def recount(self) -> None:
        """Take `live`, `lost`, `bytes`, `tagged` and `unindexed` from the slots."""
        a, b = self.start, self.n
        self.live = self.dead.count(LIVE, a, b)
        self.lost = self.dead.count(LOST, a, b)
        self.bytes = sum(self.size[a:b])
        self.tagged = self._count_tagged(a, b)
        self.unindexed = self._count_tagged(a, min(b, self.tags_from - self.first))

    def forget_tags(self, seq: int) -> int:
        """The tag index has nothing below `seq` any more; how many live records that is news for.

        Raises NotLoaded if `seq` is inside.
        """
        known = self.tagged - self.unindexed
        if not known:
            gone = 0
        elif seq >= self.end:
            gone = known
        else:
            self.need()
            gone = self._count_tagged(self.start, seq - self.first) - self.unindexed
        self.tags_from = seq
        self.unindexed += gone
        return gone

    def _take_off(self, gone: Sum) -> None:
        self.live -= gone.records
        self.bytes -= gone.bytes
        self.tagged -= gone.tagged
        self.unindexed -= gone.unindexed

    # -- shrinking ---------------------------------------------------------------------------------------------------

    def drop(self, to: int) -> Sum:
        """Slots before `to`, which is inside the span, are gone; what was live among them."""
        self.need()
        gone = self.sum(self.start, to)
        self.lost -= self.dead.count(LOST, self.start, to)
        self._take_off(gone)
        self.start = to
        self.first_ts = self.ts[to]
        if to >= MIN_TRIM and to * _TRIM_SHARE >= self.n and not self.stored:
            self._trim(to)
        return gone

    def _trim(self, to: int) -> None:
        # Slices, because deleting in place would leave the arrays allocated at their old length.
        self.ts = self.ts[to:]
        self.file = self.file[to:]
        self.offset = self.offset[to:]
        self.frame_len = self.frame_len[to:]
        self.size = self.size[to:]
        self.flags = self.flags[to:]
        self.dead = self.dead[to:]
        self.first += to
        self.n -= to
        self.start = 0

    def lose(self, a: int, b: int) -> Sum:
        """The live records among slots `a` to `b` (exclusive) are lost; what they were."""
        gone = self.sum(a, b)
        if gone.records:
            if self.loaded:
                self.dead[a:b] = self.dead[a:b].translate(LIVE_TO_LOST)
                self.size[a:b] = array("I", bytes(4 * (b - a)))
            self._take_off(gone)
            self.lost += gone.records
        return gone

    def delete(self, seqs: Sequence[int]) -> Sum:
        """Those of `seqs`, all inside the span, that are live are deleted."""
        if not self.live:
            return NOTHING
        self.need()
        first, dead, size, flags, stored = self.first, self.dead, self.size, self.flags, self.stored
        records = total = tagged = unindexed = 0
        died: array[int] = array("Q")
        for seq in seqs:
            i = seq - first
            if i >= self.start and dead[i] == LIVE:
                dead[i] = DELETED
                records += 1
                total += size[i]
                size[i] = 0
                if flags[i] & FLAG_TAG:
                    tagged += 1
                    unindexed += seq < self.tags_from
                if stored:
                    died.append(seq)
        if died:
            if self.unflagged is None:
                self.unflagged = died
            else:
                self.unflagged.extend(died)
        gone = Sum(records, total, tagged, unindexed)
        self._take_off(gone)
        return gone

    def live_files(self) -> set[int]:
        """The file ids of the live slots; none of a stored span."""
        if self.stored:
            return set()
        if self.dense:
            return set(self.file[self.start :])
        return set(compress(self.file[self.start :], self.dead[self.start :].translate(_ONE_IF_LIVE)))

    # -- being stored ------------------------------------------------------------------------------------------------

    def take(self, raw: Span, to: int, offset: array[int], frame_len: array[int], was_dead: bytes) -> None:
        """The slots of a raw span before `to` go over to the end of this stored one, which it follows.

        `offset` and `frame_len` say where they are in the segment, `was_dead` which were so when it was written.
        """
        assert self.stored
        assert not raw.stored
        a = raw.start
        first = raw.first + a
        assert self.end == first
        moved = raw.sum(a, to)
        lost = raw.dead.count(LOST, a, to)
        if raw.dead.find(DELETED, a, to) >= 0:
            was_live = was_dead.translate(_ONE_IF_LIVE)
            died = map(operator.and_, raw.dead[a:to].translate(_ONE_IF_DELETED), was_live)
            unflagged = array("Q", compress(range(first, raw.first + to), died))
            if unflagged:
                self.unflagged = unflagged if self.unflagged is None else self.unflagged + unflagged
        if self.loaded:
            self.ts.extend(raw.ts[a:to])
            self.offset.extend(offset)
            self.frame_len.extend(frame_len)
            self.size.extend(raw.size[a:to])
            self.flags.extend(raw.flags[a:to].translate(NOT_DERIVED))
            self.dead.extend(raw.dead[a:to])
        if self.n == self.start:
            self.first_ts = raw.ts[a]
        self.n += to - a
        self.last_ts = raw.ts[to - 1]
        self.live += moved.records
        self.bytes += moved.bytes
        self.tagged += moved.tagged
        self.lost += lost
        raw._take_off(moved)
        raw.lost -= lost
        if to < raw.n:
            raw.first_ts = raw.ts[to]
            raw._trim(to)

    def pad(self, n: int, ts: int, offset: array[int], frame_len: array[int]) -> None:
        """An empty stored span begins with `n` slots that have been dropped; `ts` is the time of the one after."""
        self.ts = array("Q", (ts,)) * n
        self.offset.extend(offset)
        self.frame_len.extend(frame_len)
        self.size.frombytes(bytes(4 * n))
        self.flags.extend(bytes(n))
        self.dead.extend(bytes(n))
        self.n = self.start = n

    def attach(
        self,
        ts: array[int],
        offset: array[int],
        frame_len: array[int],
        size: array[int],
        flags: bytearray,
        dead: bytearray,
    ) -> None:
        """The columns are here: `n` slots each. They become the span's own. The sums are taken anew.

        A file that has no frames for slots at its ends cannot tell their times; the summary can.
        """
        if ts[self.start] < self.first_ts or ts[-1] != self.last_ts:
            ts = array("Q", [min(max(time, self.first_ts), self.last_ts) for time in ts])
            ts[-1] = self.last_ts
        self.ts, self.offset, self.frame_len = ts, offset, frame_len
        self.size, self.flags, self.dead = size, flags, dead
        self.first_ts = max(self.first_ts, min(ts[self.start], self.last_ts))
        self.recount()

    def detach(self) -> None:
        """Without columns again."""
        assert self.stored
        self.ts = _NO_TIMES
        self.offset = self.frame_len = self.size = _NO_PLACES
        self.flags = self.dead = _NO_STATES

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """A raw span: `[first, ts, file, offset, frame_len, size, flags, dead]` less what was dropped; no `dead` if all
        live. A stored one: `["stored", first, n, start, live, lost, bytes, tagged, first_ts, last_ts, unflagged]`,
        the last as little-endian u64."""
        if self.stored:
            unflagged = little_endian(self.unflagged) if self.unflagged is not None else b""
            return [STORED_MARK, *(getattr(self, name) for name in SUMMARY_FIELDS), unflagged]
        a = self.start
        columns = [little_endian(getattr(self, name)[a:]) for name, _ in _COLUMNS]
        dead = b"" if self.dense else bytes(self.dead[a:])
        return [self.first + a, *columns, bytes(self.flags[a:]), dead]

    @classmethod
    def load(cls, value: object) -> Span:
        """The inverse of `dump`; a stored span has no segment and no columns yet. Raises ValueError if lengths or
        values do not fit."""
        if not isinstance(value, list | tuple) or not value:
            raise ValueError("span: not a list")
        return cls._load_stored(value[1:]) if value[0] == STORED_MARK else cls._load_raw(value)

    @classmethod
    def _load_stored(cls, value: Sequence[Any]) -> Span:
        if len(value) != len(SUMMARY_FIELDS) + 1 or not all(isinstance(item, int) and item >= 0 for item in value[:-1]):
            raise ValueError("stored span: not its summary")
        span = cls(value[0], stored=True)
        _, span.n, span.start, span.live, span.lost, span.bytes, span.tagged, span.first_ts, span.last_ts, _ = value
        span.detach()
        unflagged: Sequence[int] = ()
        if value[-1] != b"":
            unflagged = span.unflagged = from_little_endian("Q", value[-1])
        if not (
            span.first >= 1
            and span.start < span.n
            and span.deleted >= 0
            and span.tagged <= span.live
            and span.first_ts <= span.last_ts
            and (span.live or not span.bytes)
            and all(span.first <= seq < span.end for seq in unflagged)
            and len(set(unflagged)) == len(unflagged)
        ):
            raise ValueError(f"stored span at {span.first}: contradicts itself")
        return span

    @classmethod
    def _load_raw(cls, value: Sequence[Any]) -> Span:
        if len(value) != len(_COLUMNS) + 3:
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
        span.n = len(flags)
        if not flags or len(span.dead) != len(flags) or span.dead.translate(None, bytes((LIVE, DELETED, LOST))):
            raise ValueError(f"span at {first}: bad dead column")
        span.first_ts, span.last_ts = span.ts[0], span.ts[-1]
        span.recount()
        return span


class RecordIndex:
    """The spans of a topic, ordered: `n_stored` stored ones, then raw ones. Seqs are absolute, ranges are half open
    (`lo` to `hi` exclusive)."""

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
        """Slots for the seqs from `first` on, which is past every seq in the index. All columns have the same length.

        `tagged` is how many have a tag; `state` is LIVE or, for the slots of a short hole (with sizes 0), LOST.
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
                tagged=len(part.translate(None, _UNTAGGED)) if tagged else 0,
                state=state,
            )
            at = to

    def attach(self, spans: Sequence[Span]) -> None:
        """Raw spans of live records that were made elsewhere, ascending and past every seq in the index.

        Costs nothing per slot, but for the first of them where it fits into the last span, so that those stay few.
        """
        if spans and self.has_room(spans[0].first, spans[0].n):
            span = spans[0]
            columns = span.ts, span.file, span.offset, span.frame_len, span.size, span.flags
            self.append(span.first, *columns, tagged=span.tagged)
            spans = spans[1:]
        last = self.spans[-1].end if self.spans else 0
        for span in spans:
            assert not span.stored
            assert span.first >= last
            last = span.end
        self.spans += spans

    def has_room(self, first: int, n: int) -> bool:
        """Whether `n` slots from `first` on would continue the last span, a raw one."""
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
        return span

    # -- finding -----------------------------------------------------------------------------------------------------

    def at(self, seq: int) -> tuple[Span, int] | None:
        """The slot of `seq`, or None if it has none (any more)."""
        k = self._span_at(seq)
        if k < 0:
            return None
        span = self.spans[k]
        i = seq - span.first
        return (span, i) if span.start <= i < span.n else None

    def is_live(self, seq: int) -> bool:
        """Whether `seq` is a live record."""
        slot = self.at(seq)
        if slot is None:
            return False
        span, i = slot
        if span.dense or not span.live:
            return span.live > 0
        span.need()
        return span.dead[i] == LIVE

    def is_dense(self, seq: int) -> bool:
        """Whether every slot from `seq` on is live. May be False because of others in the same span."""
        return all(span.dense for span in self.spans[max(0, self._span_at(seq)) :])

    def next_live(self, seq: int) -> int | None:
        """The first live seq from `seq` on."""
        spans = self.spans
        for k in range(max(0, self._span_at(seq)), len(spans)):
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
        """The last live seq below `before`."""
        for k in range(self._span_at(before - 1), -1, -1):
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
        """The last seq of the live run that begins at `seq`, which is live; the run is cut after `most` records."""
        last = seq + most - 1
        k = self._span_at(seq)
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
        """The slots of seqs `lo` to `hi` (exclusive) as `(span, a, b)`, slots `a` to `b` (exclusive), ascending."""
        spans = self.spans
        for k in range(max(0, self._span_at(lo)), len(spans)):
            span = spans[k]
            a, b = max(span.start, lo - span.first), min(span.n, hi - span.first)
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
        if ts <= span.first_ts:
            return span.first + span.start
        span.need()
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
            if not by_bytes and span.dense:
                return span.first + span.start + over, 0
            span.need()
            i, stride = span.start, _FIRST_STRIDE
            while i < span.n:
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
        """The live ones of `seqs` (ascending). Raises NotLoaded for all spans at once."""
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
        """Those of `seqs` (ascending) that are live, as far as that can be told without loading anything."""
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
        """The spans that have slots for any of `seqs` (ascending), and which."""
        at = 0
        for span, a, b in self.parts(seqs[0], seqs[-1] + 1) if seqs else ():
            at = bisect_left(seqs, span.first + a, at)
            to = bisect_left(seqs, span.first + b, at)
            if at < to:
                yield span, seqs[at:to]
            at = to

    def deleted_in(self, lo: int, hi: int) -> int:
        """How many seqs of the range are known to be deleted."""
        total = 0
        for span, a, b in self.parts(lo, hi):
            if span.deleted:
                if a == span.start and b == span.n:
                    total += span.deleted
                else:
                    span.need()
                    total += span.dead.count(DELETED, a, b)
        return total

    def deleted_runs(self, lo: int, hi: int, most: int) -> list[tuple[int, int]]:
        """The deleted seqs of the range as inclusive runs, ascending; of many, at least the newest `most`.

        Those of spans that are not loaded are not known here and left out.
        """
        newest_first: list[list[tuple[int, int]]] = []
        found = 0
        for k in range(self._span_at(hi - 1), -1, -1):
            span = self.spans[k]
            a, b = max(span.start, lo - span.first), min(span.n, hi - span.first)
            if found >= most or span.end <= lo:
                break
            if a < b and span.deleted and span.loaded:
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

    # -- what has to be loaded first ---------------------------------------------------------------------------------

    def missing_below(self, seq: int) -> tuple[Span, ...]:
        """The spans without whose columns nobody can say which live record is the last below `seq`, which the first
        from there on, and what is live before that one in its span. May be more than it turns out to take."""
        spans = self.spans
        missing = []
        for k in range(self._span_at(seq - 1), -1, -1):
            span = spans[k]
            if not span.live or seq <= span.first + span.start:
                continue
            if span.loaded:
                if span.dead.find(LIVE, span.start, seq - span.first) < 0:
                    continue
                break
            if not span.dense or seq < span.end:
                missing.append(span)
            if span.dense or span.live > span.end - seq:
                break
        missing.reverse()
        for k in range(max(0, self._span_at(seq)), len(spans)):
            span = spans[k]
            a = max(span.start, seq - span.first)
            if not span.live or a >= span.n:
                continue
            if span.loaded:
                if span.dead.find(LIVE, a) < 0:
                    continue
                break
            if (not span.dense or a > span.start) and span not in missing:
                missing.append(span)
            if span.dense or span.live > a - span.start:
                break
        return tuple(missing)

    def missing_for(self, seqs: Sequence[int]) -> tuple[Span, ...]:
        """The spans whose columns it takes to delete `seqs` (ascending) and to find the first live record then. May be
        one more than it turns out to take."""
        missing = []
        named: dict[Span, int] = {}
        for span, at, to in self._touched(seqs):
            named[span] = to - at
            if span.live and not span.loaded:
                missing.append(span)
        for span in self.spans if self.spans and self.spans[0] in named else ():
            if not span.live:
                continue
            if span not in named:
                if not span.dense and not span.loaded:
                    missing.append(span)
                break
            if span.live > named[span]:
                break
        return tuple(missing)

    def need_to_drop(self, seq: int) -> None:
        """Raise NotLoaded if the columns are not here that `drop_below` needs."""
        slot = self.at(seq)
        if slot is not None and slot[1] > slot[0].start:
            slot[0].need()

    # -- shrinking ---------------------------------------------------------------------------------------------------

    def drop_below(self, seq: int) -> Sum:
        """Forget every slot below `seq`; what was live among them. Costs a step per span.

        Needs the columns of the span that `seq` cuts, see `need_to_drop`.
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
        return Sum(records, total, tagged, unindexed)

    def need_to_lose(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Raise NotLoaded if columns are not here that `lose` needs for these ranges."""
        missing = {
            span: None
            for lo, hi in ranges
            for span, a, b in self.parts(lo, hi)
            if span.live and not span.loaded and (a > span.start or b < span.n)
        }
        if missing:
            raise NotLoaded(tuple(missing))

    def lose(self, lo: int, hi: int) -> Sum:
        """The live records of the range become LOST; what they were."""
        return total_of([span.lose(a, b) for span, a, b in self.parts(lo, hi)])

    def delete(self, seqs: Sequence[int]) -> Sum:
        """Those of `seqs` (ascending) that are live become DELETED; what they were. See `missing_for`."""
        return total_of([span.delete(seqs[at:to]) for span, at, to in self._touched(seqs)])

    def _touched(self, seqs: Sequence[int]) -> Iterator[tuple[Span, int, int]]:
        """The spans that any of `seqs` (ascending) are inside of, with their places in `seqs`."""
        at = 0
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
            yield self.spans[k], at, to
            at = to

    # -- being stored ------------------------------------------------------------------------------------------------

    @property
    def stored_to(self) -> int:
        """The last seq of the last stored span, 0 without any."""
        return self.spans[self.n_stored - 1].end - 1 if self.n_stored else 0

    def holds(self, span: Span) -> bool:
        """Whether the span is in here."""
        k = self._span_at(span.first)
        return k >= 0 and self.spans[k] is span

    def store(
        self,
        first: int,
        n: int,
        segment: object,
        offset: array[int],
        frame_len: array[int],
        was_dead: bytes,
    ) -> None:
        """The raw slots from `first` on, `n` less what was dropped, are in a segment now. See `TopicLog.store`."""
        assert n == len(offset) == len(frame_len) == len(was_dead)
        k = self.n_stored
        end = first + n
        # Not beyond what is raw, and what was dropped before it is in no span any more.
        begin = self.spans[k].first + self.spans[k].start if k < len(self.spans) else end
        assert k == 0 or first > self.stored_to, (first, self.stored_to)
        if begin >= end:
            return
        assert begin == first or (begin > first and k == 0), "only the front is dropped"
        span = self.spans[k - 1] if k else None
        if span is None or span.segment is not segment or span.end != first:
            span = Span(first, stored=True)
            span.segment = segment
            dropped = max(0, begin - first)
            if dropped:
                raw = self.spans[k]
                span.pad(dropped, raw.ts[raw.start], offset[:dropped], frame_len[:dropped])
            self.spans.insert(k, span)
            self.n_stored = k = k + 1
        emptied = k
        while span.end < end:
            raw = self.spans[emptied]
            at, to = span.end - first, min(raw.end, end) - first
            assert raw.first + raw.start == span.end, "a segment is about contiguous seqs"
            span.take(raw, first + to - raw.first, offset[at:to], frame_len[at:to], was_dead[at:to])
            emptied += raw.end == span.end
        del self.spans[k:emptied]

    def replace(self, first: int, last: int, segment: object) -> Span:
        """The stored spans of exactly `first` to `last` become one. See `TopicLog.replace`."""
        k = self._span_at(first)
        to = self._span_at(last) + 1
        old = self.spans[k:to] if k >= 0 else []
        assert old, "no span there"
        assert to <= self.n_stored, "not stored"
        assert old[0].first == first, (old[0].first, first)
        assert old[-1].end == last + 1, (old[-1].end, last)
        assert all(a.end == b.first and b.start == 0 for a, b in pairwise(old))
        span = Span(first, stored=True)
        span.segment = segment
        span.n = last + 1 - first
        span.start = old[0].start
        span.first_ts, span.last_ts = old[0].first_ts, old[-1].last_ts
        span.live, span.lost = sum(part.live for part in old), sum(part.lost for part in old)
        span.bytes, span.tagged = sum(part.bytes for part in old), sum(part.tagged for part in old)
        span.unindexed = sum(part.unindexed for part in old)
        span.tags_from = max(part.tags_from for part in old)
        unflagged = array("Q")
        for part in old:
            unflagged += part.unflagged or array("Q")
        span.unflagged = unflagged or None
        span.detach()
        self.spans[k:to] = [span]
        self.n_stored -= len(old) - 1
        return span

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self, *, raw: bool = True) -> list[Any]:
        """The spans, for `load`; without the raw ones if not `raw`."""
        return [span.dump() for span in (self.spans if raw else self.spans[: self.n_stored])]

    @classmethod
    def load(cls, value: object) -> RecordIndex:
        """The inverse of `dump`. Raises ValueError if spans are malformed, overlap or go back in time."""
        if not isinstance(value, list | tuple):
            raise ValueError("index: not a list of spans")
        index = cls()
        index.spans = [Span.load(part) for part in value]
        index.n_stored = sum(span.stored for span in index.spans)
        for left, right in pairwise(index.spans):
            if left.end > right.first or left.last_ts > right.first_ts or right.stored > left.stored:
                raise ValueError(f"index: span at {right.first} does not follow the one at {left.first}")
        return index


def _first(span: Span) -> int:
    return span.first


def _last_ts(span: Span) -> int:
    return span.last_ts
