"""`.data` files of a directory as their readers see them: the bytes of the unpacked form, whether a file is packed or
not, with the delete flags that a `.del` adds.

A file says itself what it is. So nobody has to know before, and a file may be packed while others read it: the bytes
are the same. Everything here blocks.
"""

from __future__ import annotations

import errno
import threading
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from topics.storage.files.fs import File, Fs
from topics.storage.segments.deletion_file import (
    DELETIONS_HEAD_BYTES,
    DeletionsDamaged,
    decode_deletions,
    encode_deletions,
    is_about,
)
from topics.storage.segments.index_format import IDX_DELETED, decode_index
from topics.storage.segments.packed_format import BlockTable, Read
from topics.storage.segments.packed_reads import PackedReads, packed_length
from topics.storage.segments.segment_format import DELETED_FLAG

DATA_SUFFIX: Final = ".data"

TRIES: Final = 20
"""How often a file is read that is replaced meanwhile. Each time it is written anew as a whole."""

MOST_LISTS: Final = 256
"""Lists of deletions that are kept in memory."""


class DataFiles:
    """Reads `.data` files by path. May be called from several threads."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._reads = PackedReads()
        self._lock = threading.Lock()
        self._lists: OrderedDict[str, tuple[bytes, array[int]]] = OrderedDict()
        """By path, with the head of the file that it was read from: a later one has another count."""

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of the unpacked form; fewer at its end. Raises FileNotFoundError, OSError."""
        for _ in range(TRIES):
            with self._fs.open(path, read_only=True) as file:
                size = file.size()
                table = self._reads.table(_reader(file, size), size)
                if table is None:
                    return file.pread(min(length, max(0, size - offset)), offset)
                data = self._reads.read(table, _reader(file, size), offset, length)
            positions = self._deletions(path, table)
            if positions is not None:
                return _flagged(data, offset, positions)
            if self._is_still(path, table):
                return data
        raise OSError(errno.EAGAIN, f"the file was replaced {TRIES} times while it was read", path)

    def length(self, path: str) -> int:
        """Return the length of the unpacked form, as far as it is there. Raises FileNotFoundError, OSError."""
        with self._fs.open(path, read_only=True) as file:
            size = file.size()
            found = packed_length(_reader(file, size), size)
            return size if found is None else found

    def deletions_with(self, path: str, positions: Iterable[int]) -> bytes | None:
        """Return the content of the `.del` of a packed file with these positions of delete flags besides those that it
        has; None if the file is not packed. Raises FileNotFoundError, OSError, EINVAL for positions beyond the end."""
        with self._fs.open(path, read_only=True) as file:
            size = file.size()
            table = self._reads.table(_reader(file, size), size)
        if table is None:
            return None
        added = list(positions)
        if any(not 0 <= position < table.header.length for position in added):
            raise OSError(errno.EINVAL, f"delete flags beyond the {table.header.length} bytes", path)
        return encode_deletions(table.header.generation, [*(self._deletions(path, table) or ()), *added])

    def _is_still(self, path: str, table: BlockTable) -> bool:
        """Return True if there is still the file that was read, so that it had no `.del`. One that has replaced it may
        have taken over its deletions, and the `.del` may be gone."""
        with self._fs.open(path, read_only=True) as file:
            size = file.size()
            found = self._reads.table(_reader(file, size), size)
            return found is not None and found.header == table.header

    def _deletions(self, path: str, table: BlockTable) -> array[int] | None:
        """Return the positions of the delete flags that were set since the file was packed; None for none. Raises
        OSError if they are not known any more."""
        listed = deletions_path(path)
        try:
            with self._fs.open(listed, read_only=True) as file:
                head = file.pread(DELETIONS_HEAD_BYTES, 0)
                with self._lock:
                    known = self._lists.get(listed)
                if known is not None and known[0] == head and is_about(head, table.header.generation):
                    return known[1]
                blob = file.pread(file.size(), 0)
        except FileNotFoundError:
            return None
        try:
            found = decode_deletions(blob, table.header.generation)
        except DeletionsDamaged:
            return self._from_index(path)
        if found is not None and blob.startswith(head):
            with self._lock:
                self._lists[listed] = head, found
                self._lists.move_to_end(listed)
                while len(self._lists) > MOST_LISTS:
                    self._lists.popitem(last=False)
        return found

    def _from_index(self, path: str) -> array[int]:
        """Return the positions of the flags of all records that are deleted by `.idx`. Raises OSError."""
        problem = "what is deleted in it is not known any more: its .del and its .idx are damaged"
        try:
            index = decode_index(self._fs.read(path.removesuffix(DATA_SUFFIX) + ".idx"))
        except FileNotFoundError:
            raise OSError(errno.EIO, problem, path) from None
        if index.bad:
            raise OSError(errno.EIO, problem, path)
        rows = zip(index.offset, index.frame_len, index.flags, strict=True)
        return array("I", sorted(at + size - 1 for at, size, flags in rows if size and flags & IDX_DELETED))


def _flagged(data: bytes, offset: int, positions: array[int]) -> bytes:
    """Return bytes from `offset` on with these delete flags."""
    a, b = bisect_left(positions, offset), bisect_left(positions, offset + len(data))
    if a == b:
        return data
    changed = bytearray(data)
    for position in positions[a:b]:
        changed[position - offset] = DELETED_FLAG
    return bytes(changed)


def deletions_path(path: str) -> str:
    """Return the path of the `.del` of a `.data`."""
    return path.removesuffix(DATA_SUFFIX) + ".del"


def _reader(file: File, size: int) -> Read:
    """Return what reads an open file of this size by offset and length."""

    def read(offset: int, length: int) -> bytes:
        return file.pread(min(length, max(0, size - offset)), offset)

    return read
