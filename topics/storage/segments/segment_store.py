"""The `SegmentStore` interface: where sealed segments are kept, and a directory that implements it
(`docs/spec/storage.md` 4).

A store keeps *objects*: the files of a topic's segments and its manifest, by topic id and name. The store guarantees
that objects appear whole, change only by patches, and stay removed. A `.data` may be packed. Then `read_range`,
`length` and `patch` are about its unpacked form, so nobody else has to know; `put`, `read_stored` and `stored_length`
are about the file. The relocator decides which segment is in which store, and which copy counts while both stores have
one.

Every method blocks and must run in `Offload`: a cold store may be slow, or unavailable. Calls that change one topic's
objects are made one after the other (its `hot_lock`); reads come at any time, and calls about different topics from
several threads.

After a crash of the machine: objects made by a method that returned exist; an object made by a method that raised or
did not return exists whole or not at all. Only the bytes that a `patch` names may have any value then; all others are
as before. The assumptions about disks are those of `fs`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from topics.storage.files.datadir import DataDir, parse_topic_name
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, join, parent, write_all
from topics.storage.segments.data_files import DATA_SUFFIX, DataFiles, deletions_path
from topics.storage.segments.segment_format import DELETED_FLAG
from topics.storage.segments.segment_pointer import SegmentPointer

DELETED_SUFFIX: Final = ".deleted"
"""Suffix of the directory of a deleted topic while its files are removed."""

_FLAG: Final = bytes((DELETED_FLAG,))

_MAX_KNOWN: Final = 10_000
"""How many directories are remembered as durable: a put into one of them does not sync the directories above it. At the
bound all are forgotten."""


class SegmentStore(Protocol):
    """Objects by topic id and name. The module describes concurrency and durability.

    Errors: FileNotFoundError for a missing object, any other OSError for a store that fails.
    """

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        """Set the content of an object to the joined chunks, and return its length in bytes.

        It becomes visible all at once, when it is durable. Exceptions of `chunks` are passed on, and then nothing has
        changed.
        """
        ...

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes from `offset`; fewer only at the end of the object. Of a packed `.data` these are bytes
        of its unpacked form, with all delete flags; zeros where it is damaged."""
        ...

    def read_stored(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        """Return bytes of the object as it is stored."""
        ...

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        """Overwrite bytes in place, at these offsets. Durable on return, visible possibly before. In a packed `.data`
        only delete flags can be set, which its `.del` then has.

        OSError(EINVAL), and nothing has changed, if one of them reaches beyond the end. After any other error, or a
        crash before it returned, the bytes named are to be patched again: old, new and garbage are all possible.
        """
        ...

    def delete(self, topic_id: int, name: str) -> None:
        """Remove an object, if it exists. Durable on return."""
        ...

    def exists(self, topic_id: int, name: str) -> bool:
        """Return True if there is such an object."""
        ...

    def length(self, topic_id: int, name: str) -> int:
        """Return the length of an object in bytes; of a packed `.data` that of its unpacked form."""
        ...

    def stored_length(self, topic_id: int, name: str) -> int:
        """Return the length of an object in bytes as it is stored."""
        ...

    def topics(self) -> list[int]:
        """Return the ids of topics that may have objects, ascending, without deleted ones."""
        ...

    def delete_topic(self, topic_id: int) -> None:
        """Remove all of a topic's objects, if any.

        They disappear together, at once and durably. Their space is freed before this returns, or, if it does not
        return, by `finish_deletions`.
        """
        ...

    def finish_deletions(self) -> None:
        """Free the space that interrupted `delete_topic` calls have left. For the start, and for idle times."""
        ...

    def discard_unfinished(self, topic_id: int) -> None:
        """Free the space that interrupted `put` calls of a topic have left. No put may be running."""
        ...

    def list(self, topic_id: int) -> list[str]:
        """Return the names of a topic's objects, sorted, without unfinished ones; none for an unknown topic."""
        ...


class ObjectSegments(Protocol):
    """A further interface of the cold store, if it points to objects of a bucket that never change
    (`docs/design/bucket.md` section 8). It takes neither puts nor patches. All of this is about files of the data
    directory."""

    def find(self, topic_id: int, first: int, salt: int) -> SegmentPointer | None:
        """Return the pointer to a segment that the bucket has for as long as the segment exists; None if it has none
        yet. Asks nobody: for the loop."""
        ...

    def verify(self, topic_id: int, first: int, pointer: SegmentPointer) -> None:
        """Raise OSError unless the bucket has the `.data` of a pointer that `find` has returned. Blocking."""
        ...

    def point(self, topic_id: int, first: int, pointer: SegmentPointer) -> None:
        """Have a segment in the cold store, durably. Raises OSError. Blocking."""
        ...

    def pointer(self, topic_id: int, first: int) -> SegmentPointer:
        """Return the pointer to a segment. Raises FileNotFoundError without one, OSError for a damaged one.
        Blocking."""
        ...

    def forget(self, topic_id: int, first: int) -> None:
        """Remove a segment from the cold store, durably. The objects stay. Raises OSError. Blocking."""
        ...

    def read_anew(self, topic_id: int, first: int) -> None:
        """Forget the bytes that were read of a segment, which may not verify: the next reads ask the bucket. Raises
        FileNotFoundError, OSError. Blocking."""
        ...

    def is_own(self, pointer: SegmentPointer) -> bool:
        """Return True if a pointer is into the bucket that the daemon writes to."""
        ...


class DirectorySegmentStore:
    """A directory laid out like the data directory: `<root>/topics/<id, 16 hex>/<name>`.

    `root` and the directories above it are made by the first put. Keeps no file open.
    """

    __slots__ = ("_data", "_dirs", "_fs", "_known", "_root_known")

    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self._data = DataFiles(fs)
        self._dirs = DataDir(root)
        # Topics whose directory, and all above it, were synced here. A directory that merely exists may be lost in a
        # crash: the process that made it may have been killed before the sync.
        self._known: set[int] = set()
        self._root_known = False

    def __repr__(self) -> str:
        return f"<DirectorySegmentStore {self._dirs.root}>"

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        path = self._path(topic_id, name)
        self._make_directory(topic_id)
        temporary = path + TEMPORARY_SUFFIX
        length = 0
        try:
            with self._fs.open(temporary, create=True) as file:
                file.truncate(0)
                for chunk in chunks:
                    write_all(file, chunk, length)
                    length += len(chunk)
                file.fdatasync()
            self._fs.rename(temporary, path)
        except BaseException:
            self._unlink_quietly(temporary)
            raise
        self._fs.sync_dir(parent(path))
        return length

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        if name.endswith(DATA_SUFFIX):
            return self._data.read(self._path(topic_id, name), offset, length)
        return self.read_stored(topic_id, name, offset, length)

    def read_stored(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        with self._fs.open(self._path(topic_id, name), read_only=True) as file:
            return file.pread(min(length, max(0, file.size() - offset)), offset)  # allocates only for the bytes there

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        path = self._path(topic_id, name)
        if name.endswith(DATA_SUFFIX):
            listed = self._data.deletions_with(path, [offset for offset, _ in patches])
            if listed is not None:
                if any(data != _FLAG for _, data in patches):
                    raise OSError(errno.EINVAL, "nothing but delete flags is set in a packed file", path)
                self.put(topic_id, deletions_path(name), [listed])
                return
        with self._fs.open(path) as file:
            end = max((offset + len(data) for offset, data in patches), default=0)
            if end > file.size() or any(offset < 0 for offset, _ in patches):
                raise OSError(errno.EINVAL, f"a patch up to {end} of an object of {file.size()} bytes", path)
            for offset, data in patches:
                write_all(file, data, offset)
            file.fdatasync()

    def delete(self, topic_id: int, name: str) -> None:
        path = self._path(topic_id, name)
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            if not self._fs.exists(parent(path)):
                return
        self._fs.sync_dir(parent(path))  # even if it was missing: an interrupted call may have unlinked it unsynced

    def exists(self, topic_id: int, name: str) -> bool:
        return self._fs.exists(self._path(topic_id, name))

    def length(self, topic_id: int, name: str) -> int:
        if name.endswith(DATA_SUFFIX):
            return self._data.length(self._path(topic_id, name))
        return self.stored_length(topic_id, name)

    def stored_length(self, topic_id: int, name: str) -> int:
        with self._fs.open(self._path(topic_id, name), read_only=True) as file:
            return file.size()

    def topics(self) -> list[int]:
        names = self._fs.listdir(self._dirs.topics_dir)
        return [topic_id for name in names if (topic_id := parse_topic_name(name)) is not None]

    def delete_topic(self, topic_id: int) -> None:
        directory = self._dirs.topic_dir(topic_id)
        leftover = directory + DELETED_SUFFIX
        self._known.discard(topic_id)
        self._remove([leftover])
        if self._fs.exists(directory):
            self._fs.rename(directory, leftover)
            self._remove([leftover])

    def finish_deletions(self) -> None:
        topics_dir = self._dirs.topics_dir
        names = self._fs.listdir(topics_dir)
        self._remove([join(topics_dir, name) for name in names if _is_leftover(name)])

    def discard_unfinished(self, topic_id: int) -> None:
        directory = self._dirs.topic_dir(topic_id)
        unfinished = [name for name in self._fs.listdir(directory) if name.endswith(TEMPORARY_SUFFIX)]
        for name in unfinished:
            self._fs.unlink(join(directory, name))
        if unfinished:
            self._fs.sync_dir(directory)

    def list(self, topic_id: int) -> list[str]:
        names = self._fs.listdir(self._dirs.topic_dir(topic_id))
        return [name for name in names if not name.endswith(TEMPORARY_SUFFIX)]

    def _path(self, topic_id: int, name: str) -> str:
        assert name, "an object needs a name"
        assert "/" not in name, name
        assert not name.endswith(TEMPORARY_SUFFIX), name
        return join(self._dirs.topic_dir(topic_id), name)

    def _make_directory(self, topic_id: int) -> None:
        """Make a topic's directory, with its name and those of the directories above it durable."""
        path = self._dirs.topic_dir(topic_id)
        if topic_id in self._known and self._fs.exists(path):
            return
        if not self._fs.exists(self._dirs.topics_dir):
            self._root_known = False
        if not self._root_known:
            self._fs.anchor(self._dirs.root)
        self._fs.mkdir(path)
        try:
            if self._root_known:
                self._fs.sync_dir(self._dirs.topics_dir)
            else:
                # It is unknown how many of the directories above are new, and the daemon may not be allowed to open
                # some of them.
                self._fs.sync_all(self._dirs.root)
        except OSError:
            # The next sync may succeed without making them durable: they have to be made again.
            for made in (path, self._dirs.topics_dir, self._dirs.root):
                self._rmdir_quietly(made)
            raise
        self._root_known = True
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(topic_id)

    def _remove(self, leftovers: Sequence[str]) -> None:
        """Unlink directories that have been renamed.

        The rename is synced first: otherwise a crash could bring the topic back without some of its files. There is no
        sync behind it: directories that a crash brings back are still named as deleted.
        """
        present = [path for path in leftovers if self._fs.exists(path)]
        if not present:
            return
        self._fs.sync_dir(self._dirs.topics_dir)
        for path in present:
            for name in self._fs.listdir(path):
                self._fs.unlink(join(path, name))
            self._fs.rmdir(path)

    def _rmdir_quietly(self, path: str) -> None:
        """Remove a directory if it is empty."""
        try:
            self._fs.rmdir(path)
        except OSError:
            pass

    def _unlink_quietly(self, path: str) -> None:
        """Remove a temporary file, ignoring errors: the caller raises the original one."""
        try:
            self._fs.unlink(path)
        except OSError:
            pass


def _is_leftover(name: str) -> bool:
    return name.endswith(DELETED_SUFFIX) and parse_topic_name(name.removesuffix(DELETED_SUFFIX)) is not None
