"""The files of all shards, the ids by which the index of records refers to them, and positions in a shard's log."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from topics.storage.wal.wal_head import WalHead

MOST_GROWTH: Final = 2
MOST_BYTES: Final = 3 << 30
"""While the next file cannot be made, a file may grow to `MOST_GROWTH` times its size, but not beyond `MOST_BYTES`,
because offsets are u32."""


def most_bytes(file_bytes: int) -> int:
    """Return how long a file may become if there is no room for the next one."""
    return min(file_bytes * MOST_GROWTH, MOST_BYTES)


class WalFile:
    """One file of a shard's log. `file_id` is what the index stores; 0 is never used."""

    __slots__ = ("end", "file_id", "head", "ordinal", "path", "shard", "written_ns")

    def __init__(self, file_id: int, shard: int, ordinal: int, path: str, head: WalHead, end: int = 0) -> None:
        self.file_id = file_id
        self.head = head
        self.shard = shard
        self.ordinal = ordinal
        self.path = path
        self.end = end
        """Offset behind the last frame written."""
        self.written_ns = 0
        """When the last write to it returned (`Clock.perf_ns`)."""


class LogPosition(NamedTuple):
    """A place in a shard's log. Positions of one shard are ordered as the log is."""

    ordinal: int
    """Ordinal of the file's first frame in the shard."""
    offset: int


Place = tuple[str, int, int]
"""A file by its name on disk: ("wal", shard, ordinal), or ("segment", topic id, first seq)."""


class WalFiles:
    """The files of all shards, and the segments that copies point to, by the id that the index stores. Recovery makes
    the one that the store then uses."""

    def __init__(self) -> None:
        self._by_id: dict[int, WalFile] = {}
        self._segments: dict[int, tuple[int, int]] = {}
        self._ids: dict[Place, int] = {}
        self.salts: dict[int, int | None] = {}
        """The salt of a segment's `.data` as it was read last, by file id."""
        self._next_id = 1

    def add(self, shard: int, ordinal: int, path: str, head: WalHead) -> WalFile:
        """Register a WAL file, and give it an id."""
        file = self._by_id[self._next_id] = WalFile(self._next_id, shard, ordinal, path, head)
        self._ids["wal", shard, ordinal] = self._next_id
        self._next_id += 1
        return file

    def file_of(self, place: Place, salt: int | None = None) -> int:
        """Return the id of a file; 0 for a WAL file that does not exist (any more). A segment gets an id at the first
        call; `salt` is that of its `.data`, if known."""
        kind, owner, first = place
        known = self._ids.get(place, 0)
        if not known and kind == "segment":
            known = self._ids[place] = self._next_id
            self._segments[known] = (owner, first)
            self._next_id += 1
        if salt is not None:
            self.salts[known] = salt
        return known

    def keep_segments(self, file_ids: Collection[int]) -> None:
        """Forget all other segments: no copy points to them any more."""
        for file_id in self._segments.keys() - file_ids:
            del self._ids["segment", *self._segments.pop(file_id)]
            self.salts.pop(file_id, None)

    def place_of(self, file_id: int) -> Place:
        """Return the place of a file. Raises KeyError if it was dropped."""
        segment = self._segments.get(file_id)
        if segment is not None:
            return ("segment", *segment)
        file = self._by_id[file_id]
        return ("wal", file.shard, file.ordinal)

    def get(self, file_id: int) -> WalFile:
        """Return the WAL file of an id. Raises KeyError if it was dropped."""
        return self._by_id[file_id]

    def drop(self, file: WalFile) -> None:
        """Forget a file that was unlinked."""
        del self._by_id[file.file_id]
        del self._ids["wal", file.shard, file.ordinal]

    def of_shard(self, shard: int) -> list[WalFile]:
        """Return a shard's files, oldest first. Also for worker threads, while the loop adds and drops files."""
        there = list(self._by_id.values())  # in one operation
        return sorted((file for file in there if file.shard == shard), key=lambda file: file.ordinal)
