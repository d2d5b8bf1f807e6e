"""The `SegmentStore` seam: where sealed segments live, and a directory as the first implementation
(`docs/spec/storage.md` 4).

A store holds *objects*: the files of a topic's segments and its manifest, by topic id and name. Responsible for objects
that appear whole, stay as they are but for patches, and go for good; which segment is in which store, and which copy
counts while both have one, is the relocator's business.

Every method blocks and belongs in `Offload`: a cold store may be slow, or away. Calls that change one topic's objects
are made one after the other (its `upkeep` lock); reads come at any time, and calls about different topics from several
threads.

What is promised after a crash of the machine: what a method that returned has made is there; what a method that raised
or did not return was making is there whole or not at all. Only the bytes that a `patch` names may be anything then; all
others are what they were. The assumptions about disks are those of `fs`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from topics.storage.files.datadir import DataDir, parse_topic_name
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, join, parent, write_all

DELETED_SUFFIX: Final = ".deleted"
"""What the directory of a deleted topic is called while its files go."""

_MAX_KNOWN: Final = 10_000
"""Directories remembered as durable: a put into one of them syncs nothing above it."""


class SegmentStore(Protocol):
    """Objects by topic id and name. See the module for concurrency and durability.

    Errors: FileNotFoundError for an object that is not there, any other OSError for a store that fails.
    """

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        """Make the joined chunks the content of an object, in place of what it was; returns its length in bytes.

        Visible all at once, when it is durable. What `chunks` raises comes through, and nothing has changed then.
        """
        ...

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer only at the end of the object."""
        ...

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        """Overwrite bytes in place, at these offsets. Durable on return, visible possibly before.

        OSError(EINVAL), and nothing has changed, if one of them reaches beyond the end. After any other error, or a
        crash before it returned, the bytes named are to be patched again: old, new and garbage are all possible.
        """
        ...

    def delete(self, topic_id: int, name: str) -> None:
        """Remove an object; one that is not there is fine. Durable on return."""
        ...

    def exists(self, topic_id: int, name: str) -> bool:
        """Whether there is such an object."""
        ...

    def length(self, topic_id: int, name: str) -> int:
        """The length of an object in bytes."""
        ...

    def topics(self) -> list[int]:
        """The ids of topics that may have objects, ascending; deleted ones are not among them."""
        ...

    def delete_topic(self, topic_id: int) -> None:
        """Remove all of a topic's objects; none is fine.

        They go together, at the first moment and durably. What is left of their space goes before this returns, or, if
        it does not return, with `finish_deletions`.
        """
        ...

    def finish_deletions(self) -> None:
        """Free what interrupted `delete_topic` calls have left. For the start, and when nothing else is to be done."""
        ...

    def discard_unfinished(self, topic_id: int) -> None:
        """Free what interrupted `put` calls have left of a topic. Nobody may be putting."""
        ...

    def list(self, topic_id: int) -> list[str]:
        """The names of a topic's objects, sorted; of an unknown topic none. What is half made is not among them."""
        ...


class DirectorySegmentStore:
    """A directory laid out like the data directory: `<root>/topics/<id, 16 hex>/<name>`.

    `root` and what is above it are made by the first put. Keeps no file open.
    """

    __slots__ = ("_dirs", "_fs", "_known", "_root_known")

    def __init__(self, fs: Fs, root: str) -> None:
        self._fs = fs
        self._dirs = DataDir(root)
        # Topics whose directory, and all above it, we have synced. One that merely exists may be lost with the
        # machine: whoever made it may have been killed before the sync.
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
            file = self._fs.open(temporary, create=True)
            try:
                file.truncate(0)
                for chunk in chunks:
                    write_all(file, chunk, length)
                    length += len(chunk)
                file.fdatasync()
            finally:
                file.close()
            self._fs.rename(temporary, path)
        except BaseException:
            self._unlink_quietly(temporary)
            raise
        self._fs.sync_dir(parent(path))
        return length

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        file = self._fs.open(self._path(topic_id, name), read_only=True)
        try:
            return file.pread(min(length, max(0, file.size() - offset)), offset)  # "the rest" needs no room for more
        finally:
            file.close()

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        path = self._path(topic_id, name)
        file = self._fs.open(path)
        try:
            end = max((offset + len(data) for offset, data in patches), default=0)
            if end > file.size() or any(offset < 0 for offset, _ in patches):
                raise OSError(errno.EINVAL, f"a patch up to {end} of an object of {file.size()} bytes", path)
            for offset, data in patches:
                write_all(file, data, offset)
            file.fdatasync()
        finally:
            file.close()

    def delete(self, topic_id: int, name: str) -> None:
        path = self._path(topic_id, name)
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            if not self._fs.exists(parent(path)):
                return
        self._fs.sync_dir(parent(path))  # even if it was gone: whoever unlinked it may not have come to this

    def exists(self, topic_id: int, name: str) -> bool:
        return self._fs.exists(self._path(topic_id, name))

    def length(self, topic_id: int, name: str) -> int:
        file = self._fs.open(self._path(topic_id, name), read_only=True)
        try:
            return file.size()
        finally:
            file.close()

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
        """Make a topic's directory; its name and those of the directories above it are durable then."""
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
                # Nobody knows how many directories above are new, and some of them may not be ours to open.
                self._fs.sync_all(self._dirs.root)
        except OSError:
            # The next sync may succeed and not make them durable: they have to be made again.
            for made in (path, self._dirs.topics_dir, self._dirs.root):
                self._rmdir_quietly(made)
            raise
        self._root_known = True
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(topic_id)

    def _remove(self, leftovers: Sequence[str]) -> None:
        """Unlink directories that have been renamed.

        Synced first: were a file gone on the disk before the rename is there, a crash would bring the topic back
        without it. Not synced again behind it: what a crash brings back is still called deleted.
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
        """Give back the space of a temporary file; the error that matters is the one already on its way."""
        try:
            self._fs.unlink(path)
        except OSError:
            pass


def _is_leftover(name: str) -> bool:
    return name.endswith(DELETED_SUFFIX) and parse_topic_name(name.removesuffix(DELETED_SUFFIX)) is not None
