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
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import cast

import cbor2

from topics.log.dumped_values import from_little_endian, little_endian
from topics.log.tag_match import TagMatch
from topics.storage.segments.segment_format import SegmentDamaged, xxh3


class SegmentTags:
    """The tags of a sealed segment, in the columns of the file: no object per tag or posting.

    They are as of the sealing of the segment: postings of records that were deleted since are still there.
    """

    __slots__ = ("_ends", "_name_ends", "_names", "_positions", "first", "sizes")

    def __init__(
        self,
        first: int,
        sizes: array[int],
        names: bytes,
        name_ends: array[int],
        counts: array[int],
        positions: array[int],
    ) -> None:
        self.first = first
        """The seq of slot 0."""
        self.sizes = sizes
        """Bytes of meta and data per slot."""
        self._names = names
        self._name_ends = name_ends
        self._ends = array("I", accumulate(counts))
        self._positions = positions

    def __len__(self) -> int:
        """The number of distinct tags."""
        return len(self._name_ends)

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory, for a cache."""
        return len(self._names) + 4 * (len(self.sizes) + len(self._name_ends) + len(self._ends) + len(self._positions))

    def find(self, match: TagMatch) -> array[int]:
        """Return the positions of the slots whose tag matches, ascending."""
        pattern = match.pattern.encode()
        size = len(pattern)
        names = range(len(self))
        low = bisect_left(names, pattern, key=self._name)
        if match.prefix:
            high = bisect_right(names, pattern, low, key=lambda i: self._name(i)[:size])
        else:
            high = low + (low < len(self) and self._name(low) == pattern)
        found = self._positions[self._start(low) : self._start(high)]
        return array("I", sorted(found)) if high - low > 1 else found

    def items(self) -> Iterator[tuple[str, array[int]]]:
        """Yield every tag with the positions of its slots, in the order of the names, for a merge of segments."""
        for i in range(len(self)):
            yield self._name(i).decode(), self._positions[self._start(i) : self._ends[i]]

    def _name(self, i: int) -> bytes:
        return self._names[self._name_ends[i - 1] if i else 0 : self._name_ends[i]]

    def _start(self, i: int) -> int:
        """Return where the postings of name `i` begin."""
        return self._ends[i - 1] if i else 0


def encode_tags(first: int, sizes: array[int], tags: Sequence[str | None]) -> bytes:
    """Return the `.tags` of a segment from `first` on, with the size and the tag (None for none) of every slot."""
    assert len(sizes) == len(tags), (len(sizes), len(tags))
    named = cast("Sequence[str]", tags)  # at the positions that are `tagged`
    tagged = [i for i, tag in enumerate(tags) if tag is not None]
    # Strings compare by code point, which is the order of their UTF-8 bytes; the sort is stable.
    tagged.sort(key=named.__getitem__)
    counts = Counter(map(named.__getitem__, tagged))
    encoded = list(map(str.encode, counts))
    inner = cbor2.dumps(
        {
            "first": first,
            "count": len(tags),
            "sizes": little_endian(array("I", sizes)),
            "names": b"".join(encoded),
            "name_ends": little_endian(array("I", accumulate(map(len, encoded)))),
            "counts": little_endian(array("I", counts.values())),
            "positions": little_endian(array("I", tagged)),
        },
        canonical=True,
    )
    return _seal(inner)


def decode_tags(blob: bytes, first: int, count: int) -> SegmentTags:
    """Return the tags of the segment of `count` slots from `first` on. Raises SegmentDamaged if `blob` is not that."""
    try:
        inner = cbor2.loads(blob)["tags"]
        # Only canonical bytes are valid: any other bit, or bytes behind the end, are not as written.
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


def _are_texts(names: bytes, ends: array[int]) -> bool:
    """Return True if these are names in UTF-8, one after the other, none of which ends within a character."""
    try:
        names.decode()
    except UnicodeDecodeError:
        return False
    return all(a < b for a, b in pairwise(ends)) and not any(names[end] & 0xC0 == 0x80 for end in ends[:-1])


def _seal(inner: bytes) -> bytes:
    """Return the file around the map of its columns."""
    return cbor2.dumps({"tags": inner, "xxh3": xxh3(inner)}, canonical=True)
