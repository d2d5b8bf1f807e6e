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

from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import File, Fs
from topics.storage.segments.deletion_file import (
    DELETIONS_HEAD_BYTES,
    DeletionList,
    decode_deletions,
    encode_deletions,
)
from topics.storage.segments.index_format import IDX_DELETED, decode_index
from topics.storage.segments.packed_format import PACK_HEADER_BYTES, BlockTable, Read, decode_pack_header
from topics.storage.segments.packed_reads import PackedReads, packed_length
from topics.storage.segments.segment_format import DELETED_FLAG

DATA_SUFFIX: Final = ".data"

MOST_PATHS: Final = 10_000
"""Packed files that are remembered as such."""

UNREADABLE: Final = DeletionList(0, array("I"))
"""Stands for a `.del` of which neither copy verifies."""

_NONE: Final[array[int]] = array("I")

MOST_AT_ONCE: Final = 1 << 20
"""A read of more asks first how much there is."""

MOST_LIST_BYTES: Final = 4 << 20
"""Of lists of deletions that are kept in memory, besides the one that was read last."""

_LIST_BYTES: Final = 200
"""About what a list takes in memory besides its positions."""


class NotFlaggable(OSError):
    """A packed file cannot get delete flags: what is deleted in it is not known any more, or it is not the file that
    the flags are for."""


class DataFiles:
    """Reads `.data` files by path. May be called from several threads."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._reads = PackedReads()
        self._lock = threading.Lock()
        self._packed: OrderedDict[str, None] = OrderedDict()
        self._lists: OrderedDict[str, tuple[bytes, DeletionList]] = OrderedDict()
        """By path, with the head of the file that it was read from: a later one has another count."""
        self._list_bytes = 0

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of the unpacked form; fewer at its end. Raises FileNotFoundError, OSError."""
        known = self._is_packed(path)
        while True:
            # The list comes first: it may be older than the file that is read, and a newer file has all that an older
            # list says. The other way round a rewrite could take the list away that the file needs.
            listed = self._listed(path) if known else None
            with self._fs.open(path, read_only=True) as file:
                table = self._table(file)
                if table is None:
                    self._note(path, is_packed=False)
                    return file.pread(min(length, max(0, file.size() - offset)), offset)
                if known:
                    data = self._reads.read(table, _reader(file), offset, length)
                    break
            self._note(path, is_packed=True)
            known = True
        return _flagged(data, offset, self._positions(path, table, listed))

    def length(self, path: str) -> int:
        """Return the length of the unpacked form, as far as it is there. Raises FileNotFoundError, OSError."""
        with self._fs.open(path, read_only=True) as file:
            size = file.size()
            found = packed_length(_reader(file), size)
            return size if found is None else found

    def deletions_with(self, path: str, positions: Iterable[int]) -> bytes | None:
        """Return the content of the `.del` of a packed file with these positions of delete flags besides those that it
        has; None if the file is not packed. Raises NotFlaggable, also for positions beyond the end; FileNotFoundError,
        OSError."""
        listed = self._listed(path)
        with self._fs.open(path, read_only=True) as file:
            table = self._table(file)
        if table is None:
            return None
        added = list(positions)
        if any(not 0 <= position < table.header.length for position in added):
            raise NotFlaggable(errno.EINVAL, f"delete flags beyond the {table.header.length} bytes", path)
        return encode_deletions(table.header.generation, [*self._positions(path, table, listed), *added])

    def _table(self, file: File) -> BlockTable | None:
        """Return the blocks of an open file; None if it is not packed."""
        header = decode_pack_header(file.pread(PACK_HEADER_BYTES, 0))
        known = self._reads.known_table(header) if header is not None else None
        return known or self._reads.table(_reader(file), file.size())

    def _is_packed(self, path: str) -> bool:
        """Return True if the file was packed when it was read last. It need not be so any more."""
        with self._lock:
            return path in self._packed

    def _note(self, path: str, *, is_packed: bool) -> None:
        with self._lock:
            if not is_packed:
                self._packed.pop(path, None)
                return
            self._packed[path] = None
            if len(self._packed) > MOST_PATHS:
                self._packed.popitem(last=False)

    def _listed(self, path: str) -> DeletionList | None:
        """Return what the `.del` of a file says; None if there is none. Raises OSError."""
        listed = deletions_path(path)
        try:
            with self._fs.open(listed, read_only=True) as file:
                head = file.pread(DELETIONS_HEAD_BYTES, 0)
                with self._lock:
                    known = self._lists.get(listed)
                    if known is not None and known[0] == head:
                        self._lists.move_to_end(listed)
                        return known[1]
                blob = file.pread(file.size(), 0)
        except FileNotFoundError:
            return None
        found = decode_deletions(blob)
        if found is not None and blob.startswith(head):
            self._keep(listed, head, found)
        return found or UNREADABLE

    def _keep(self, listed: str, head: bytes, found: DeletionList) -> None:
        with self._lock:
            before = self._lists.pop(listed, None)
            if before is not None:
                self._list_bytes -= _bytes_of(before[1])
            self._lists[listed] = head, found
            self._list_bytes += _bytes_of(found)
            while self._list_bytes > MOST_LIST_BYTES and len(self._lists) > 1:
                _, (_, gone) = self._lists.popitem(last=False)
                self._list_bytes -= _bytes_of(gone)

    def _positions(self, path: str, table: BlockTable, listed: DeletionList | None) -> array[int]:
        """Return the positions of the delete flags that were set since a file was packed, given what its `.del` says.
        Raises NotFlaggable if they are not known any more."""
        if listed is UNREADABLE:
            return self._from_index(path, table.header.length)
        return listed.positions if listed is not None and listed.generation == table.header.generation else _NONE

    def _from_index(self, path: str, length: int) -> array[int]:
        """Return the positions of the flags of all records that are deleted by `.idx`, which has to name all frames of
        the `length` bytes of the unpacked form. Raises NotFlaggable, OSError."""
        problem = "what is deleted in it is not known any more: its .del and its .idx are damaged"
        try:
            index = decode_index(self._fs.read(path.removesuffix(DATA_SUFFIX) + ".idx"))
        except FileNotFoundError:
            raise NotFlaggable(errno.EIO, problem, path) from None
        # Frames lie one behind another, so an index that was cut short does not reach the end.
        end = max(
            (at + size for at, size in zip(index.offset, index.frame_len, strict=True) if size),
            default=FILE_HEADER_BYTES,
        )
        if index.bad or end != length:
            raise NotFlaggable(errno.EIO, problem, path)
        rows = zip(index.offset, index.frame_len, index.flags, strict=True)
        return array("I", sorted(at + size - 1 for at, size, flags in rows if size and flags & IDX_DELETED))


def _bytes_of(listed: DeletionList) -> int:
    return _LIST_BYTES + 4 * len(listed.positions)


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


def _reader(file: File) -> Read:
    """Return what reads an open file by offset and length."""

    def read(offset: int, length: int) -> bytes:
        if length > MOST_AT_ONCE:  # a read makes room for what it is asked for
            length = min(length, max(0, file.size() - offset))
        return file.pread(length, offset)

    return read
