"""Which originals a dest has taken, so that `exactly_once` takes each only once (`docs/spec/semantics.md` section 5).

An original is named by its origin: the id of the topic instance in which the record was first appended, and its seq
there. The set only grows. The forwarder decides when to ask it, and when an origin counts as taken.

Per origin topic, seqs are cut into *chunks* of 4096 (1 to 4096, 4097 to 8192, ...), and a chunk is kept in one of three
forms:

- **full**: all seqs are taken. Only the ends of runs of full chunks are kept.
- **runs**: the ascending offsets at which "taken" begins and ends, in turn, two bytes each. An offset is taken if the
  number of ends at or before it is odd. A few single seqs, a chunk with a few holes and the chunk that is being filled
  take a few bytes each.
- **bits**: a bit per seq, as soon as runs would take more than that.

So a dest that takes everything costs the same after a million records as after one, and one that takes every other
record costs a bit per seq of the origin, and about a quarter on top for the objects.

A chunk changes from runs to bits at once, and back only in `dump` (it may have become nearly full since). So a dump
depends only on the elements of the set, and not on the order in which they were added.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from topics.log.dumped_values import from_little_endian, little_endian

_SHIFT: Final = 12
CHUNK_SEQS: Final = 1 << _SHIFT
"""Seqs of a chunk. A bitmap of them is 512 bytes: several times as much as the objects around it."""

_MASK: Final = CHUNK_SEQS - 1
_CHUNK_BYTES: Final = CHUNK_SEQS // 8
_ALL_SET: Final = b"\xff" * _CHUNK_BYTES
_END_OF_CHUNKS: Final = 1 << (64 - _SHIFT)

# Ends that a chunk in the form of runs has at most. They take two bytes each, and all together less than a bitmap: a
# dump tells the two forms apart by their length.
_MAX_ENDS: Final = _CHUNK_BYTES // 2 - 2

# Bytes that CPython takes for the objects themselves, for `nbytes`.
_ORIGIN_OVERHEAD: Final = 500
_CHUNK_OVERHEAD: Final = 160
_END_OVERHEAD: Final = 40


class OriginSet:
    """Pairs of origin topic id and origin seq (u64, from 1). The module says how much memory they take."""

    __slots__ = ("_origins",)

    def __init__(self) -> None:
        self._origins: dict[int, _OriginSeqs] = {}

    def add(self, topic_id: int, seq: int) -> None:
        """Add seq `seq` of topic `topic_id`. Adding it again changes nothing; ascending order is fastest."""
        assert seq > 0, "seqs begin at 1"
        origin = self._origins.get(topic_id)
        if origin is None:
            origin = self._origins[topic_id] = _OriginSeqs()
        number = (seq - 1) >> _SHIFT
        offset = (seq - 1) & _MASK
        ends = origin.runs.get(number)
        # The fast path, for nearly every call: a run grows, a chunk gets another run, or a bit is set. If the form of
        # the chunk may change, `add_to_chunk` does it.
        if ends is not None:
            last = ends[-1]
            if last == offset and offset < _MASK:
                ends[-1] = offset + 1
                return
            if last < offset < _MASK and len(ends) < _MAX_ENDS:
                ends.append(offset)
                ends.append(offset + 1)
                return
        elif (bits := origin.bits.get(number)) is not None:
            byte = bits[offset >> 3] | 1 << (offset & 7)
            if byte != 0xFF:
                bits[offset >> 3] = byte
                return
        origin.add_to_chunk(number, offset, offset + 1)

    def add_run(self, topic_id: int, first: int, last: int) -> None:
        """Add seqs `first` to `last` (inclusive) of topic `topic_id`. The cost does not grow with their number, except
        for partly filled chunks that become full."""
        assert 0 < first <= last, "seqs begin at 1, and a run has at least one"
        origin = self._origins.get(topic_id)
        if origin is None:
            origin = self._origins[topic_id] = _OriginSeqs()
        origin.add_run(first - 1, last)

    def __contains__(self, origin: tuple[int, int]) -> bool:
        """Return True if this `(topic_id, seq)` is taken."""
        topic_id, seq = origin
        seqs = self._origins.get(topic_id)
        return seqs is not None and seqs.holds((seq - 1) >> _SHIFT, (seq - 1) & _MASK)

    @property
    def nbytes(self) -> int:
        """An estimate of the memory in use, in bytes. Looks at every chunk that is not full."""
        return sum(seqs.nbytes for seqs in self._origins.values())

    def dump(self) -> list[Any]:
        """Return `[topic_id, full, chunks]` for each origin topic, for `load`; equal for equal sets.

        Topic ids ascend. `full` has the numbers of chunks at which runs of full ones begin and end, in turn. `chunks`
        has number and content of the others, in turn, ascending: 512 bytes are a bitmap, fewer are the ends of runs in
        little-endian u16. Takes some microseconds for each chunk that is not full.
        """
        return [[topic_id, *self._origins[topic_id].dump()] for topic_id in sorted(self._origins)]

    @classmethod
    def load(cls, value: object) -> OriginSet:
        """Rebuild the set from what `dump` returned. Raises ValueError if `value` is not that."""
        loaded = cls()
        if not isinstance(value, list):
            raise ValueError("origins: not a list")
        previous = -1
        for entry in value:
            match entry:
                case [topic_id, list(full), list(chunks)] if (
                    type(topic_id) is int and topic_id > previous and (full or chunks)
                ):
                    loaded._origins[topic_id] = _OriginSeqs.load(full, chunks)
                    previous = topic_id
                case _:
                    raise ValueError(f"origins: bad entry after that of topic {previous}")
        return loaded


class _OriginSeqs:
    """The taken seqs of one origin topic, by chunk number and offset. A chunk has one form at most, none if it is
    empty."""

    __slots__ = ("bits", "full", "runs")

    def __init__(self) -> None:
        # Numbers of chunks at which runs of full ones begin and end, in turn.
        self.full: list[int] = []
        self.runs: dict[int, array[int]] = {}
        self.bits: dict[int, bytearray] = {}

    def holds(self, number: int, offset: int) -> bool:
        ends = self.runs.get(number)
        if ends is not None:
            return bisect_right(ends, offset) & 1 == 1
        bits = self.bits.get(number)
        if bits is not None:
            return bits[offset >> 3] >> (offset & 7) & 1 == 1
        return bisect_right(self.full, number) & 1 == 1

    def add_run(self, start: int, end: int) -> None:
        """Add the positions from `start` to before `end`; the first seq has position 0."""
        # Chunks from `low` to before `high` are full afterwards. If both ends are inside one chunk, `high` is that
        # chunk and `low` the next.
        low, high = (start + _MASK) >> _SHIFT, end >> _SHIFT
        if low > high:
            self.add_to_chunk(high, start & _MASK, end & _MASK)
            return
        if start & _MASK:
            self.add_to_chunk(low - 1, start & _MASK, CHUNK_SEQS)
        if low < high:
            self._add_full(low, high)
        if end & _MASK:
            self.add_to_chunk(high, 0, end & _MASK)

    def add_to_chunk(self, number: int, start: int, end: int) -> None:
        """Add the offsets from `start` to before `end` of one chunk."""
        bits = self.bits.get(number)
        if bits is not None:
            if end - start == 1:
                bits[start >> 3] |= 1 << (start & 7)
            else:
                _set_bits(bits, start, end)
            if bits == _ALL_SET:
                self._add_full(number, number + 1)
            return
        ends = self.runs.get(number)
        if ends is None:
            if bisect_right(self.full, number) & 1:
                return
            ends = self.runs[number] = array("H", (start, end))
        else:
            low, high, between = _union(ends, start, end)
            ends[low:high] = array("H", between)
        if len(ends) > _MAX_ENDS:
            del self.runs[number]
            self.bits[number] = _bits_of(ends)
        elif ends[0] == 0 and ends[1] == CHUNK_SEQS:
            self._add_full(number, number + 1)

    def _add_full(self, low: int, high: int) -> None:
        for held in (self.runs, self.bits):
            # Go through the chunks of the run or through all known ones, whichever are fewer.
            numbers = range(low, high) if high - low < len(held) else [n for n in held if low <= n < high]
            for number in numbers:
                held.pop(number, None)
        first, last, between = _union(self.full, low, high)
        self.full[first:last] = between

    @property
    def nbytes(self) -> int:
        in_runs = sum(map(len, self.runs.values())) * 2 + len(self.runs) * _CHUNK_OVERHEAD
        in_bits = len(self.bits) * (_CHUNK_BYTES + _CHUNK_OVERHEAD)
        return _ORIGIN_OVERHEAD + len(self.full) * _END_OVERHEAD + in_runs + in_bits

    def dump(self) -> tuple[list[int], list[int | bytes]]:
        for number, bits in list(self.bits.items()):
            changes = _changes(bits)
            if changes.bit_count() <= _MAX_ENDS:
                del self.bits[number]
                self.runs[number] = _ends_of(changes)
        chunks: list[int | bytes] = []
        for number in sorted([*self.runs, *self.bits]):
            ends = self.runs.get(number)
            chunks.append(number)
            chunks.append(bytes(self.bits[number]) if ends is None else little_endian(ends))
        return self.full[:], chunks

    @classmethod
    def load(cls, full: list[Any], chunks: list[Any]) -> _OriginSeqs:
        """Rebuild from the two lists of `dump`. Raises ValueError if they are not that."""
        seqs = cls()
        if not all(type(number) is int for number in full) or not _are_ends(full, _END_OF_CHUNKS):
            raise ValueError("origins: bad runs of full chunks")
        seqs.full = full[:]
        previous = -1
        if len(chunks) % 2:
            raise ValueError("origins: a chunk without content")
        for number, content in zip(chunks[::2], chunks[1::2], strict=True):
            if type(number) is not int or not previous < number < _END_OF_CHUNKS or not isinstance(content, bytes):
                raise ValueError("origins: bad chunk")
            if bisect_right(full, number) & 1:
                raise ValueError("origins: a chunk is held twice")
            if len(content) == _CHUNK_BYTES:
                seqs.bits[number] = _load_bits(content)
            else:
                seqs.runs[number] = _load_ends(content)
            previous = number
        return seqs


def _union(ends: Sequence[int], start: int, end: int) -> tuple[int, int, list[int]]:
    """Return how to add `start` to before `end` to the runs of `ends`: the slice from the first number to the second is
    replaced by the list. Runs that touch are joined."""
    low, high = bisect_left(ends, start), bisect_right(ends, end)
    # An odd index means that the place is inside a run, or at its end: that run is continued.
    return low, high, [*([] if low & 1 else [start]), *([] if high & 1 else [end])]


def _set_bits(bits: bytearray, start: int, end: int) -> None:
    value = int.from_bytes(bits, "little") | ((1 << (end - start)) - 1) << start
    bits[:] = value.to_bytes(_CHUNK_BYTES, "little")


def _bits_of(ends: array[int]) -> bytearray:
    value = 0
    for start, end in zip(ends[::2], ends[1::2], strict=True):
        value |= ((1 << (end - start)) - 1) << start
    return bytearray(value.to_bytes(_CHUNK_BYTES, "little"))


def _changes(bits: bytes | bytearray) -> int:
    """Return the ends of the runs of a bitmap, as the bits of a number."""
    value = int.from_bytes(bits, "little")
    return value ^ (value << 1)


def _ends_of(changes: int) -> array[int]:
    ends = array("H")
    while changes:
        lowest = changes & -changes
        ends.append(lowest.bit_length() - 1)
        changes ^= lowest
    return ends


def _are_ends(ends: Sequence[int], limit: int) -> bool:
    """Return True if these can be the ends of runs below `limit` that do not touch."""
    if not ends:
        return True
    return len(ends) % 2 == 0 and ends[0] >= 0 and ends[-1] <= limit and all(a < b for a, b in pairwise(ends))


def _load_bits(content: bytes) -> bytearray:
    if _changes(content).bit_count() <= _MAX_ENDS:
        raise ValueError("origins: a bitmap where runs are shorter")
    return bytearray(content)


def _load_ends(content: bytes) -> array[int]:
    if len(content) % 2:
        raise ValueError("origins: half an end of a run")
    ends = from_little_endian("H", content)
    if not 0 < len(ends) <= _MAX_ENDS or not _are_ends(ends, CHUNK_SEQS) or list(ends) == [0, CHUNK_SEQS]:
        raise ValueError("origins: bad runs of a chunk")
    return ends
