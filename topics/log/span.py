"""A span: slots with contiguous seqs, a summary of them, and their columns while these are in memory.

A *slot* is live, deleted (a client asked for it) or lost (damage, a short hole). The *columns* are arrays with a state,
a place, a size and a time per slot. Those of a *raw* span are always in memory. A *stored* span belongs to one segment
of the storage layer, which attaches and detaches the columns as its cache has room.

The *summary* is exact, loaded or not: the number of slots, of live and of lost ones, payload bytes, tagged records, the
times of both ends. Questions that are not about single slots are answered from the summary, and nearly all questions
about a *dense* span, in which every slot is live. A call that needs the slots of a span that is not loaded raises
`NotLoaded`, before anything has changed.

A raw record takes 26 bytes and a loaded stored one 22, with no object per record (`docs/spec/storage.md` section 5
allows 32).
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

from topics.log.dumped_values import from_little_endian, little_endian

# Slots of a full raw span. Large enough that spans are few (600 for ten million records), small enough that copying one
# (425 KB) costs little.
SPAN_RECORDS = 16_384

# Dropped slots at the beginning of a raw span are garbage until they are cut off, which copies the rest of the span.
# They are cut off when they are an eighth of it (1 / `_TRIM_SHARE`): that keeps memory below 32 bytes a record, and
# copies seven slots for each one evicted. Below `MIN_TRIM` slots cutting is not worth the call.
MIN_TRIM = 64
_TRIM_SHARE: Final = 8

LIVE: Final = 0
DELETED: Final = 1
LOST: Final = 2

FLAG_TAG: Final = 0x01
FLAG_NODE: Final = 0x02
FLAG_ORIGIN: Final = 0x20
# In raw slots only, never on disk: the record's frame is that of another topic's record, see `copies`.
FLAG_DERIVED: Final = 0x80
NOT_DERIVED: Final = bytes(flags & 0x7F for flags in range(256))

LIVE_TO_LOST: Final = bytes([LOST, *range(1, 256)])
ONE_IF_LIVE: Final = bytes([1] + [0] * 255)
_ONE_IF_DELETED: Final = bytes([0, 1] + [0] * 254)
# `len(flags.translate(None, UNTAGGED))` is the number of records with a tag.
UNTAGGED: Final = bytes(flags for flags in range(256) if not flags & FLAG_TAG)
_COLUMNS: Final = (("ts", "Q"), ("file", "I"), ("offset", "I"), ("frame_len", "I"), ("size", "I"))

# Bytes per slot of a loaded stored span: ts, offset, frame_len, size, flags, dead.
STORED_SLOT_BYTES: Final = 22

# The first item of a dumped stored span, where a raw one has its first seq.
STORED_MARK: Final = "stored"

# All spans that are not loaded share these; nothing extends them.
_NO_TIMES: Final[array[int]] = array("Q")
_NO_PLACES: Final[array[int]] = array("I")
_NO_STATES: Final = bytearray()

assert array("Q").itemsize == 8
assert array("I").itemsize == 4


class NotLoaded(Exception):
    """A call needs the columns of `spans`, which are not in memory. It has changed nothing: load them and call
    again."""

    def __init__(self, spans: tuple[Span, ...]) -> None:
        super().__init__(spans)
        self.spans = spans

    def __str__(self) -> str:
        return "columns of " + ", ".join(f"[{span.first}, {span.end - 1}]" for span in self.spans)


class SpanSum(NamedTuple):
    """A set of live records: their number, their payload bytes, how many have a tag, and how many of those the tag
    index does not know (any more)."""

    records: int
    bytes: int
    tagged: int
    unindexed: int


NOTHING: Final = SpanSum(0, 0, 0, 0)


def total_of(sums: Sequence[SpanSum]) -> SpanSum:
    """Return the sum of the sums."""
    if len(sums) == 1:
        return sums[0]
    return SpanSum(*map(sum, zip(*sums, strict=True))) if sums else NOTHING


class SpanColumns(NamedTuple):
    """The slots of a stored span as its segment's files have them; `ts` never decreases. See `TopicLog.attach`."""

    ts: array[int]
    offset: array[int]
    frame_len: array[int]
    size: array[int]
    flags: bytes
    dead: bytes


class SpanSummary(NamedTuple):
    """The facts about a span that are in memory even without its columns. Slots before `start` are dropped and not
    counted by the other fields.

    `first` is a seq; `n`, `start`, `live`, `lost` and `tagged` count slots; `bytes` is the payload of the live ones;
    the times are epoch ms.
    """

    first: int
    n: int
    start: int
    live: int
    lost: int
    bytes: int
    tagged: int
    first_ts: int
    last_ts: int


class Span:
    """One run of seqs: its summary, and its columns while they are loaded.

    `n` is the number of slots. Those before `start` are dropped and counted by nothing else. `first_ts` and `last_ts`
    are the times of the first and the last slot that is not dropped (epoch ms); `first_ts` may be too early while a
    stored span is not loaded. `ts` never decreases. The size of a slot that is not live is 0, so that plain sums over
    `size` are right.

    `unindexed` is how many of the `tagged` records the topic's tag index does not have: those below `tags_from`, a seq.

    A stored span has no `file`: all its bytes are in `segment`, an object of the storage layer that is never looked
    into here. `unflagged` are the seqs that were deleted since the storage layer last wrote delete flags; None for
    none. `flaggings` counts how often it has: columns that were read before do not show those flags.

    A raw span may be *bare* (`bare_spans`): all its slots are deleted, and it has no columns. `looked_at` is how many
    slots were deleted when it was last considered to take such slots out of it.
    """

    __slots__ = (
        "bytes",
        "dead",
        "file",
        "first",
        "first_ts",
        "flaggings",
        "flags",
        "frame_len",
        "last_ts",
        "live",
        "looked_at",
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
        self.looked_at = 0
        self.first_ts = 0
        self.last_ts = 0
        self.stored = stored
        self.segment: object | None = None
        self.unflagged: array[int] | None = None
        self.flaggings = 0
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
        """Make a raw span of at most `SPAN_RECORDS` live records that have one time. The arrays become its own."""
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
        span.tagged = len(flags.translate(None, UNTAGGED))
        return span

    @property
    def end(self) -> int:
        """One past the last seq."""
        return self.first + self.n

    @property
    def deleted(self) -> int:
        """The number of deleted slots."""
        return self.n - self.start - self.live - self.lost

    @property
    def dense(self) -> bool:
        """Return True if every slot is live."""
        return self.live == self.n - self.start

    @property
    def loaded(self) -> bool:
        """Return True if the columns are in memory. Those of a raw span always are, unless it is bare."""
        return len(self.dead) == self.n

    @property
    def is_bare(self) -> bool:
        """Return True if this is a raw span of deleted slots without columns."""
        return not self.stored and len(self.dead) != self.n

    @property
    def column_bytes(self) -> int:
        """Bytes that the columns of a stored span take up while they are loaded."""
        return STORED_SLOT_BYTES * self.n

    def summary(self) -> SpanSummary:
        """Return the current summary."""
        return SpanSummary(
            self.first,
            self.n,
            self.start,
            self.live,
            self.lost,
            self.bytes,
            self.tagged,
            self.first_ts,
            self.last_ts,
        )

    def need(self) -> None:
        """Raise NotLoaded if the columns of a stored span are not loaded. A bare span gets columns."""
        if len(self.dead) != self.n:
            if self.stored:
                raise NotLoaded((self,))
            self.fill()

    # -- counting ----------------------------------------------------------------------------------------------------

    def sum(self, a: int, b: int) -> SpanSum:
        """Return the sum of the live records among slots `a` to `b` (exclusive). Raises NotLoaded, unless that is the
        whole span."""
        if a == self.start and b == self.n:
            return SpanSum(self.live, self.bytes, self.tagged, self.unindexed)
        if not self.live:
            return NOTHING
        self.need()
        live = self.dead.count(LIVE, a, b)
        tagged = self._count_tagged(a, b) if live and self.tagged else 0
        unindexed = tagged
        if tagged and self.unindexed != self.tagged:
            unindexed = self._count_tagged(a, min(b, self.tags_from - self.first)) if self.unindexed else 0
        return SpanSum(live, sum(self.size[a:b]), tagged, unindexed)

    def _count_tagged(self, a: int, b: int) -> int:
        if a >= b:
            return 0
        flags: bytearray | bytes = self.flags[a:b]
        if self.dead.count(LIVE, a, b) != b - a:
            flags = bytes(compress(flags, self.dead[a:b].translate(ONE_IF_LIVE)))
        return len(flags.translate(None, UNTAGGED))

    def recount(self) -> None:
        """Set `live`, `lost`, `bytes`, `tagged` and `unindexed` from the slots."""
        a, b = self.start, self.n
        self.live = self.dead.count(LIVE, a, b)
        self.lost = self.dead.count(LOST, a, b)
        self.bytes = sum(self.size[a:b])
        self.tagged = self._count_tagged(a, b)
        self.unindexed = self._count_tagged(a, min(b, self.tags_from - self.first))

    def forget_tags(self, seq: int) -> int:
        """Note that the tag index has nothing below `seq` any more. Return how many live records it knew until now.

        Raises NotLoaded if `seq` is inside the span and the columns are needed.
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

    def _take_off(self, gone: SpanSum) -> None:
        self.live -= gone.records
        self.bytes -= gone.bytes
        self.tagged -= gone.tagged
        self.unindexed -= gone.unindexed

    # -- shrinking ---------------------------------------------------------------------------------------------------

    def drop(self, to: int) -> SpanSum:
        """Drop the slots before `to`, which is inside the span, and return the sum of the live ones among them."""
        self.need()
        gone = self.sum(self.start, to)
        self.lost -= self.dead.count(LOST, self.start, to)
        self._take_off(gone)
        self.start = to
        self.looked_at = min(self.looked_at, self.deleted)
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

    def lose(self, a: int, b: int) -> SpanSum:
        """Make the live records among slots `a` to `b` (exclusive) LOST, and return their sum."""
        gone = self.sum(a, b)
        if gone.records:
            if self.loaded:
                self.dead[a:b] = self.dead[a:b].translate(LIVE_TO_LOST)
                self.size[a:b] = array("I", bytes(4 * (b - a)))
            self._take_off(gone)
            self.lost += gone.records
        return gone

    def delete(self, seqs: Sequence[int]) -> SpanSum:
        """Make those of `seqs` (all inside the span) that are live DELETED, and return their sum."""
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
        gone = SpanSum(records, total, tagged, unindexed)
        self._take_off(gone)
        return gone

    def delete_unseen(self, seqs: Sequence[int], sizes: Sequence[int]) -> SpanSum:
        """Make `seqs` of a stored span that is not loaded DELETED, and return their sum. They are known to be live, to
        have a tag, and to have these `sizes` (bytes of data + meta)."""
        assert self.stored
        assert not self.loaded
        gone = SpanSum(len(seqs), sum(sizes), len(seqs), sum([seq < self.tags_from for seq in seqs]))
        assert gone.records <= self.live, "more records than there are"
        if self.unflagged is None:
            self.unflagged = array("Q", seqs)
        else:
            self.unflagged.extend(seqs)
        self._take_off(gone)
        return gone

    # -- being bare --------------------------------------------------------------------------------------------------

    def strip(self) -> None:
        """Drop the columns. Those of a stored span can be loaded again; of a raw one all slots are deleted, and it is
        bare from now on."""
        self.ts = _NO_TIMES
        self.file = self.offset = self.frame_len = self.size = _NO_PLACES
        self.flags = self.dead = _NO_STATES

    def fill(self) -> None:
        """Give a bare span columns: deleted slots without a place. Of their times only those of both ends are known."""
        n = self.n
        self.ts = array("Q", (self.first_ts,)) * (n - 1) + array("Q", (self.last_ts,))
        self.file, self.offset, self.frame_len, self.size = (array("I", bytes(4 * n)) for _ in range(4))
        self.flags, self.dead = bytearray(n), bytearray((DELETED,)) * n

    def piece(self, a: int, b: int) -> Span:
        """Return slots `a` to `b` (exclusive) of a raw span, none of them dropped, as a span of their own."""
        piece = Span(self.first + a)
        piece.n = b - a
        if self.is_bare:
            piece.first_ts = self.first_ts if a < self.n - 1 else self.last_ts
            piece.last_ts = self.first_ts if b < self.n else self.last_ts
            piece.fill()
        else:
            piece.ts, piece.file, piece.offset = self.ts[a:b], self.file[a:b], self.offset[a:b]
            piece.frame_len, piece.size = self.frame_len[a:b], self.size[a:b]
            piece.flags, piece.dead = self.flags[a:b], self.dead[a:b]
        piece.first_ts, piece.last_ts = piece.ts[0], piece.ts[-1]
        piece.tags_from = self.tags_from
        piece.recount()
        piece.looked_at = piece.deleted
        return piece

    # -- being stored ------------------------------------------------------------------------------------------------

    def take(self, raw: Span, to: int, offset: array[int], frame_len: array[int], was_dead: bytes) -> None:
        """Move the slots of `raw` before slot `to` to the end of this stored span, which `raw` follows.

        `offset` and `frame_len` say where the frames are in the segment, `was_dead` the states that were written there.
        """
        assert self.stored
        assert not raw.stored
        raw.need()
        a = raw.start
        first = raw.first + a
        assert self.end == first
        moved = raw.sum(a, to)
        lost = raw.dead.count(LOST, a, to)
        if raw.dead.find(DELETED, a, to) >= 0:
            was_live = was_dead.translate(ONE_IF_LIVE)
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
        """Begin an empty stored span with `n` slots that are dropped already; `ts` is the time of the slot after
        them."""
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
        """Take these columns, of `n` slots each, as the span's own, and count the sums again.

        The times of slots at the ends may be missing in a file that has no frames for them; they are taken from the
        summary.
        """
        if ts[self.start] < self.first_ts or ts[-1] != self.last_ts:
            ts = array("Q", [min(max(time, self.first_ts), self.last_ts) for time in ts])
            ts[-1] = self.last_ts
        self.ts, self.offset, self.frame_len = ts, offset, frame_len
        self.size, self.flags, self.dead = size, flags, dead
        self.first_ts = max(self.first_ts, min(ts[self.start], self.last_ts))
        self.recount()

    def detach(self) -> None:
        """Drop the columns of a stored span. The summary stays."""
        assert self.stored
        self.strip()

    def columns(self) -> SpanColumns:
        """Return copies of the columns of a stored span with all deletions and losses so far. Raises NotLoaded."""
        self.need()
        places = self.ts[:], self.offset[:], self.frame_len[:], self.size[:]
        return SpanColumns(*places, bytes(self.flags), bytes(self.dead))

    # -- delete flags in files ---------------------------------------------------------------------------------------

    def unflag(self) -> None:
        """Put all deleted slots of a stored span back into `unflagged`, because it is uncertain which delete flags were
        written. Raises NotLoaded."""
        self.need()
        known = set(self.unflagged or ())
        known.update(self.first + i for i in range(self.start, self.n) if self.dead[i] == DELETED and self.frame_len[i])
        self.unflagged = array("Q", sorted(known)) or None

    def flagged(self, seqs: Sequence[int]) -> None:
        """Remove `seqs` from `unflagged`: the storage layer has written their delete flags."""
        self.flaggings += 1
        if self.unflagged is not None:
            written = set(seqs)
            self.unflagged = array("Q", [seq for seq in self.unflagged if seq not in written]) or None

    # -- keeping -----------------------------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Return the span as a list, for `load`.

        A raw one is `[first, ts, file, offset, frame_len, size, flags, dead]` without the dropped slots; `dead` is
        empty if all are live. A stored one is `["stored", first, n, start, live, lost, bytes, tagged, first_ts,
        last_ts, unflagged]`, the last as little-endian u64.
        """
        if self.stored:
            unflagged = little_endian(self.unflagged) if self.unflagged is not None else b""
            return [STORED_MARK, *self.summary(), unflagged]
        if self.is_bare:
            return self.piece(0, self.n).dump()
        a = self.start
        columns = [little_endian(getattr(self, name)[a:]) for name, _ in _COLUMNS]
        dead = b"" if self.dense else bytes(self.dead[a:])
        return [self.first + a, *columns, bytes(self.flags[a:]), dead]

    @classmethod
    def load(cls, value: object) -> Span:
        """Rebuild a span from what `dump` returned. A stored one has no segment and no columns yet. Raises ValueError
        if lengths or values do not fit."""
        if not isinstance(value, list | tuple) or not value:
            raise ValueError("span: not a list")
        return cls._load_stored(value[1:]) if value[0] == STORED_MARK else cls._load_raw(value)

    @classmethod
    def _load_stored(cls, value: Sequence[Any]) -> Span:
        summary = value[:-1]
        if len(summary) != len(SpanSummary._fields) or not all(isinstance(item, int) and item >= 0 for item in summary):
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
