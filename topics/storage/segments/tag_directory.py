"""A directory of a sealed segment's tags, kept in memory when the tags themselves are not.

Theory of operation. The tags of a segment are in its `.tags` file, in the order of their names. Reading the whole file
costs milliseconds, and only the tags of some dozens of segments fit into the cache. So after a whole file was read and
verified, a directory of it is made. For most tags that the segment does not have, the directory says so (`TagSummary`).
For any other tag it says in which *part* of the file the tag would be. A part is `PART_NAMES` consecutive names, in
four pieces of the file, one for each column.

The file has one checksum over all its bytes, which cannot verify a part that is read alone. So the directory has a
checksum of each part, computed from the verified whole file. If a part does not verify, it is not used: the file may
have been replaced since, and the caller reads the whole file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from topics.log.tag_match import TagMatch
from topics.storage.segments.segment_format import xxh3
from topics.storage.segments.tag_summary import TagSummary, key_of
from topics.storage.segments.tags_format import NameRun, SegmentTags, TagColumns, columns_of, places_of

PART_NAMES: Final = 128
"""The number of names in a part: some KB of the file."""

MOST_PARTS: Final = 16
"""The most parts that are read. Reading the whole file costs about as much as reading more parts."""


class TagDirectory:
    """The directory of one segment's tags. `parts_read` and `parts_since` belong to the cache (`IndexCache`)."""

    __slots__ = (
        "_checksums",
        "_firsts",
        "_names",
        "_places",
        "_posting_ends",
        "_summary",
        "_text_ends",
        "parts_read",
        "parts_since",
        "tags_bytes",
    )

    def __init__(self, tags: SegmentTags, blob: bytes | None) -> None:
        """`blob` is the `.tags` file that `tags` were taken from, after it was verified. None if there is no such file:
        then no part can be read. Costs half a microsecond for each tag."""
        self._summary = TagSummary(tags.names(), len(tags))
        self._names = len(tags)
        self._places = places_of(blob) if blob is not None else None
        self._firsts: list[bytes] = []
        """The first name of each part."""
        self._text_ends, self._posting_ends = array("I", (0,)), array("I", (0,))
        """Where the names and the postings of each part end in their columns. The first element of both is 0."""
        self._checksums = array("Q")
        self.tags_bytes = tags.nbytes
        """The memory (bytes) that the tags themselves take."""
        self.parts_read = self.parts_since = 0
        if blob is None or self._places is None:
            return
        for first, run in tags.runs(PART_NAMES):
            self._firsts.append(first)
            self._text_ends.append(run.text.stop)
            self._posting_ends.append(run.postings.stop)
            self._checksums.append(_checksum([blob[at : at + size] for at, size in run.pieces(self._places)]))

    @property
    def nbytes(self) -> int:
        """Approximate bytes of memory, for a cache."""
        return self._summary.nbytes + sum(map(len, self._firsts)) + 60 * len(self._firsts) + 800

    def may_have_any(self, keys: Iterable[int]) -> bool:
        """Return False only if the segment has none of the tags with these keys (`key_of`)."""
        return any(map(self._summary.may_have, keys))

    def parts_of(self, matches: Iterable[TagMatch]) -> list[int] | None:
        """Return the parts with all matching tags, ascending; none if no tag matches. None if there are too many to be
        read by parts, or no part can be read."""
        parts: set[int] = set()
        firsts = self._firsts
        for match in matches:
            name = match.pattern.encode()
            size = len(name)
            if not match.prefix and not self._summary.may_have(key_of(name)):
                continue
            if self._places is None:
                return None
            # A part has the names from its first name up to the first name of the next part.
            begin = (bisect_left if match.prefix else bisect_right)(firsts, name) - 1
            end = bisect_right(firsts, name, key=lambda first: first[:size]) if match.prefix else begin + 1
            parts.update(range(max(0, begin), end))
            if len(parts) > MOST_PARTS:
                return None
        return sorted(parts)

    def read(self, read: Callable[[int, int], bytes], parts: Sequence[int]) -> TagColumns | None:
        """Return the tags of these parts out of the `.tags` file: among them all tags that match what `parts_of` was
        asked. None if the file is not the one that the directory was made from. `read` takes an offset and a length,
        and may return less; its exceptions are passed on. Blocking."""
        assert self._places is not None
        runs = [self._run(part) for part in parts]
        found: list[list[bytes]] = []
        for part, run in zip(parts, runs, strict=True):
            pieces = [read(at, size) for at, size in run.pieces(self._places)]
            if _checksum(pieces) != self._checksums[part]:
                return None
            found.append(pieces)
        return columns_of(runs, found)

    def _run(self, part: int) -> NameRun:
        return NameRun(
            range(part * PART_NAMES, min((part + 1) * PART_NAMES, self._names)),
            range(self._text_ends[part], self._text_ends[part + 1]),
            range(self._posting_ends[part], self._posting_ends[part + 1]),
        )


def _checksum(pieces: Sequence[bytes]) -> int:
    return xxh3(b"".join(pieces))
