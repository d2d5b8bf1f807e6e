"""`.tags` files, of sealed segments only: the byte layout, and the only functions that write and read it.

One canonical CBOR map `{"tags": bytes, "xxh3": xxh3_64 over those}`; the bytes are a canonical CBOR map too. Names are
in the order of their UTF-8 bytes, postings in the order of their names:

    first      first seq
    count      slots
    sizes      u32 per slot: bytes of meta and data
    names      all distinct tags, joined
    name_ends  u32 per name: where it ends in `names`
    counts     u32 per name: its postings
    positions  u32 per posting: slot, ascending within a name

All integers are little-endian. Nothing here does I/O.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, pairwise
from typing import Final, NamedTuple

import cbor2

from topics.log.dumped_values import from_little_endian, little_endian
from topics.log.tag_index import Postings
from topics.log.tag_match import TagMatch
from topics.storage.segments.segment_format import SegmentDamaged, xxh3

NO_SLOTS: Final[array[int]] = array("I")

MARKED_NAMES: Final = 128
"""Every so many names, one is kept as an object for binary search."""


class TagColumns:
    """All tags of a segment, or some of them, in the columns of the file: no object per tag or posting.

    The columns are as of the sealing of the segment: they still have postings of records that were deleted since.
    """

    __slots__ = ("_ends", "_marks", "_name_ends", "_names", "_positions")

    def __init__(self, names: bytes, name_ends: array[int], counts: array[int], positions: array[int]) -> None:
        self._names = names
        self._name_ends = name_ends
        self._ends = array("I", accumulate(counts))
        self._positions = positions
        self._marks: list[bytes] | None = None
        """Every `MARKED_NAMES`th name. Made at the first search for a name."""

    def __len__(self) -> int:
        """The number of distinct tags."""
        return len(self._name_ends)

    def names(self) -> Iterator[bytes]:
        """Yield the distinct tags in UTF-8, ascending."""
        names, start = self._names, 0
        for end in self._name_ends:
            yield names[start:end]
            start = end

    def runs(self, most: int) -> Iterator[tuple[bytes, NameRun]]:
        """Divide the tags into runs of at most `most`. Yield the first tag of each, and the run."""
        text = postings = 0
        for first in range(0, len(self), most):
            end = min(first + most, len(self))
            yield (
                self._name(first),
                NameRun(range(first, end), range(text, self._name_ends[end - 1]), range(postings, self._ends[end - 1])),
            )
            text, postings = self._name_ends[end - 1], self._ends[end - 1]

    def find(self, match: TagMatch) -> array[int]:
        """Return the positions of the slots whose tag matches, ascending."""
        low, high = self._names_of(match)
        found = self._positions[self._start(low) : self._start(high)]
        return array("I", sorted(found)) if high - low > 1 else found

    def slots_of(self, name: bytes) -> array[int]:
        """Return the positions of the slots with a tag, which is given in UTF-8, ascending."""
        at = self._index_of(name)
        return self._positions[self._start(at) : self._ends[at]] if at is not None else NO_SLOTS

    def postings_of(self, match: TagMatch, most: int) -> list[Postings] | None:
        """Return the positions of the slots of each matching tag, None if more than `most` match."""
        low, high = self._names_of(match)
        if high - low > most:
            return None
        return [Postings(self._positions, self._start(i), self._ends[i]) for i in range(low, high)]

    def names_from(self, prefix: str, after: str | None, most: int) -> list[str]:
        """Return the tags that begin with `prefix` and come behind `after`, in order, at most `most`."""
        low, high = self._names_of(TagMatch(prefix, prefix=True))
        if after is not None:
            low = bisect_right(range(len(self)), after.encode(), low, high, key=self._name)
        return [self._name(i).decode() for i in range(low, min(high, low + most))]

    def _names_of(self, match: TagMatch) -> tuple[int, int]:
        """Return the first of the matching names, and the one behind the last."""
        pattern = match.pattern.encode()
        if not match.prefix:
            at = self._index_of(pattern)
            return (at, at + 1) if at is not None else (0, 0)
        size = len(pattern)
        names = range(len(self))
        low = bisect_left(names, pattern, key=self._name)
        return low, bisect_right(names, pattern, low, key=lambda i: self._name(i)[:size])

    def _index_of(self, name: bytes) -> int | None:
        """Return the index of a name, None if it is not among the names."""
        marks, name_ends = self._marks, self._name_ends
        if marks is None:
            marks = self._marks = [self._name(i) for i in range(0, len(self), MARKED_NAMES)]
        first = (bisect_right(marks, name) - 1) * MARKED_NAMES
        if first < 0:
            return None
        end = min(first + MARKED_NAMES, len(name_ends))
        # Most names that are missing do not even occur in the text of the names around their place. Searching this text
        # is faster than comparing names.
        if self._names.find(name, name_ends[first - 1] if first else 0, name_ends[end - 1]) < 0:
            return None
        at = bisect_left(range(end), name, first, key=self._name)
        return at if at < end and self._name(at) == name else None

    def items(self) -> Iterator[tuple[str, array[int]]]:
        """Yield every tag with the positions of its slots, in the order of the names, for a merge of segments."""
        for i in range(len(self)):
            yield self._name(i).decode(), self._positions[self._start(i) : self._ends[i]]

    def _name(self, i: int) -> bytes:
        return self._names[self._name_ends[i - 1] if i else 0 : self._name_ends[i]]

    def _start(self, i: int) -> int:
        """Return where the postings of name `i` begin."""
        return self._ends[i - 1] if i else 0


class SegmentTags(TagColumns):
    """The tags of a sealed segment, and the sizes of its records."""

    __slots__ = ("first", "sizes")

    def __init__(
        self,
        first: int,
        sizes: array[int],
        names: bytes,
        name_ends: array[int],
        counts: array[int],
        positions: array[int],
    ) -> None:
        super().__init__(names, name_ends, counts, positions)
        self.first = first
        """The seq of slot 0."""
        self.sizes = sizes
        """Bytes of meta and data per slot."""

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory, for a cache."""
        return len(self._names) + 4 * (len(self.sizes) + len(self._name_ends) + len(self._ends) + len(self._positions))


class ColumnPlaces(NamedTuple):
    """Where in a `.tags` file these columns begin, in bytes."""

    names: int
    name_ends: int
    counts: int
    positions: int


class NameRun(NamedTuple):
    """Some tags of a segment that follow each other: half open ranges of names, of their bytes and of their postings,
    each counted from the beginning of its column."""

    names: range
    text: range
    postings: range

    def pieces(self, places: ColumnPlaces) -> list[tuple[int, int]]:
        """Return offset and length of each piece of a `.tags` file that has these tags, for `columns_of`."""
        names = 4 * self.names.start, 4 * len(self.names)
        return [
            (places.names + self.text.start, len(self.text)),
            (places.name_ends + names[0], names[1]),
            (places.counts + names[0], names[1]),
            (places.positions + 4 * self.postings.start, 4 * len(self.postings)),
        ]


def columns_of(runs: Sequence[NameRun], pieces: Sequence[Sequence[bytes]]) -> TagColumns:
    """Return the tags of some runs, ascending, out of the verified pieces of each."""
    name_ends, counts, positions = array("I"), array("I"), array("I")
    size = 0
    for run, (_, ends, numbers, slots) in zip(runs, pieces, strict=True):
        moved = size - run.text.start
        name_ends.extend([end + moved for end in from_little_endian("I", ends)])
        counts += from_little_endian("I", numbers)
        positions += from_little_endian("I", slots)
        size += len(run.text)
    return TagColumns(b"".join([piece[0] for piece in pieces]), name_ends, counts, positions)


def encode_tags(first: int, sizes: array[int], tags: Sequence[str | None]) -> bytes:
    """Return the `.tags` of a segment from `first` on, with the size and the tag (None for none) of every slot."""
    assert len(sizes) == len(tags), (len(sizes), len(tags))
    # A loop and not one call of C for all slots, for which other threads would wait for milliseconds.
    found: dict[str, list[int]] = {}
    for i, tag in enumerate(tags):
        if tag is not None:
            found.setdefault(tag, []).append(i)
    # Strings compare by code point, which is the order of their UTF-8 bytes.
    names = sorted(found)
    encoded = list(map(str.encode, names))
    postings = list(map(found.__getitem__, names))
    inner = cbor2.dumps(
        {
            "first": first,
            "count": len(tags),
            "sizes": little_endian(array("I", sizes)),
            "names": b"".join(encoded),
            "name_ends": little_endian(array("I", accumulate(map(len, encoded)))),
            "counts": little_endian(array("I", map(len, postings))),
            "positions": little_endian(array("I", chain.from_iterable(postings))),
        },
        canonical=True,
    )
    return _seal(inner)


def decode_tags(blob: bytes, first: int, count: int) -> SegmentTags:
    """Return the tags of the segment of `count` slots from `first` on. Raises SegmentDamaged if `blob` is not that."""
    try:
        inner = cbor2.loads(blob)["tags"]
        # Only canonical bytes are valid. Any other encoding, or bytes behind the end, means damage.
        if _seal(inner) != blob:
            raise SegmentDamaged("the checksum of a .tags file does not hold")
        found = cbor2.loads(inner)
        sizes, name_ends, counts, positions = (
            from_little_endian("I", found[key]) for key in ("sizes", "name_ends", "counts", "positions")
        )
        names = found["names"]
        about = (found["first"], found["count"])
    except SegmentDamaged:
        raise
    except Exception as error:  # malformed CBOR may raise anything
        raise SegmentDamaged(f"a .tags file is malformed: {error}") from None
    if about != (first, count):
        raise SegmentDamaged(f"a .tags file is about {about[1]} slots from {about[0]}, not {count} from {first}")
    fits = (
        isinstance(names, bytes)
        and len(sizes) == count
        and len(counts) == len(name_ends)
        and (name_ends[-1] if name_ends else 0) == len(names)
        and sum(counts) == len(positions)
        and max(positions, default=-1) < count
        and _are_texts(names, name_ends)
    )
    if not fits:
        raise SegmentDamaged("the columns of a .tags file do not fit together")
    return SegmentTags(first, sizes, names, name_ends, counts, positions)


def places_of(blob: bytes) -> ColumnPlaces:
    """Return where the columns of names and postings are in a `.tags` file that `decode_tags` has found valid."""
    inner = cbor2.loads(blob)["tags"]
    found = cbor2.loads(inner)
    inner_at = blob.index(inner)
    return ColumnPlaces(*(inner_at + _place_of(inner, key, found[key]) for key in ColumnPlaces._fields))


def _place_of(inner: bytes, key: str, column: bytes) -> int:
    """Return where a column begins in the map of columns, behind its key and its length."""
    name, value = cbor2.dumps(key), cbor2.dumps(column)
    at = inner.index(name)
    while not inner.startswith(value, at + len(name)):
        at = inner.index(name, at + 1)  # the match was within a tag
    return at + len(name) + len(value) - len(column)


def _are_texts(names: bytes, ends: array[int]) -> bool:
    """Return True if these bytes are names in UTF-8, one after the other, and no name ends within a character."""
    try:
        names.decode()
    except UnicodeDecodeError:
        return False
    return all(a < b for a, b in pairwise(ends)) and not any(names[end] & 0xC0 == 0x80 for end in ends[:-1])


def _seal(inner: bytes) -> bytes:
    """Return the file around the map of its columns."""
    return cbor2.dumps({"tags": inner, "xxh3": xxh3(inner)}, canonical=True)
