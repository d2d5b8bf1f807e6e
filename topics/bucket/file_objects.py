"""`FileObjects`: an `ObjectStore` in a directory, such as one of a mounted disk.

An object is a file whose path is its name. Bytes are first written to a file in `.tmp`, which is synced, and which then
gets the object's name by a link (`put_new`, which fails if the name is taken) or by a rename (`put_if`). So an object
is there whole or not at all, and a process that is killed leaves at most a file in `.tmp`, which is no object, is
never listed, and is removed when it is `LEFT_S` old.

The directory of a name is synced before a put is answered, and before `put_new` says that there is an object already,
and before a whole object is returned: what anybody relies on survives a crash of the machine, also if its writer was
killed before it could sync.

There is no rename that compares. So `put_if` and `delete` hold a lock on the file `.lock` (flock), and compare before
they rename or remove. The kernel releases the lock of a process that is killed. All machines that share the directory
must honour such locks, as NFS does since version 4.

The library's store for local files is not used: it syncs nothing, and has no conditional put.

An ETag is a hash of the content: two contents that follow one another quickly, in the same inode, have different ones.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import xxhash

from topics.bucket.object_store import (
    MAX_PAGE,
    ObjectChanged,
    ObjectData,
    ObjectExists,
    ObjectFacts,
    ObjectMissing,
    ObjectTooLarge,
    StoreError,
    StoreErrorKind,
    check_name,
    check_page,
    check_range,
    is_name,
)

LEFT_S: Final = 86_400
"""How old a file in `.tmp` is when it is removed as one of a process that was killed (s)."""

CHUNK: Final = 1 << 20

TRIES: Final = 8
"""How often the directories of a name are made, if others remove them meanwhile because they are empty."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_SYNC: Final = frozenset({errno.EINVAL, errno.EROFS})


class FileObjects:
    """The objects in the directory `root`, which must exist: nothing is written to where a disk is not mounted."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._url = f"file://{root}"
        self._numbers = itertools.count()
        self._process = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._lock = threading.Lock()
        self._synced: set[str] = set()
        """Directories whose own names are synced."""
        self._is_tidy = False
        self._inode: int | None = None
        """Of the root, since it was seen first."""

    def __repr__(self) -> str:
        return f"<FileObjects {self._url}>"

    def put_new(self, name: str, data: bytes) -> str:
        path = self._path(name)
        with self._errors(), self._written(data) as written:
            try:
                self._link(written, path)
            except FileExistsError:
                self._sync_directory(os.path.dirname(path))
                raise ObjectExists(name) from None
            self._sync_directory(os.path.dirname(path))
        return _etag(data)

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        path = self._path(name)
        with self._errors(), self._written(data) as written, self._locked():
            try:
                with open(path, "rb") as file:
                    is_same = _etag_of(file.fileno()) == etag
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                is_same = False
            if not is_same:
                raise ObjectChanged(name)
            os.rename(written, path)
            self._sync_directory(os.path.dirname(path))
        return _etag(data)

    def get(self, name: str, max_bytes: int) -> ObjectData:
        with self._errors(), self._opened(name) as fd:
            size = os.fstat(fd).st_size
            if size > max_bytes:
                raise ObjectTooLarge(name, size, max_bytes)
            data = _read(fd, 0, size)
            self._sync_directory(os.path.dirname(self._path(name)))
        return ObjectData(data, _etag(data))

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        with self._errors(), self._opened(name) as fd:
            return _read(fd, offset, length)

    def head(self, name: str) -> ObjectFacts:
        """As everywhere; the file is read, since the ETag is a hash of it."""
        with self._errors(), self._opened(name) as fd:
            facts = os.fstat(fd)
            return ObjectFacts(name, facts.st_size, _etag_of(fd), facts.st_mtime_ns // 1_000_000)

    def delete(self, names: Sequence[str]) -> None:
        paths = [self._path(name) for name in names]
        with self._errors(), self._locked():
            for path in paths:
                try:
                    os.unlink(path)
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    continue
            for directory in {os.path.dirname(path) for path in paths}:
                self._remove_empty(directory)

    def list(self, prefix: str, after: str = "", limit: int = MAX_PAGE) -> list[ObjectFacts]:
        check_page(prefix, after, limit)
        with self._errors():
            directory = prefix[: prefix.rfind("/") + 1]
            return list(itertools.islice(self._below(directory, prefix, after), limit))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the system into those of a store. First see that the root is still the same directory: where
        a disk is not mounted any more, there is another one, to which nothing must be written."""
        try:
            inode = os.stat(self._root).st_ino  # device numbers may be others after the disk was mounted again
            if self._inode is None:
                self._inode = inode
            if inode != self._inode:
                raise StoreError(
                    StoreErrorKind.NO_BUCKET, f"{self._root} is another directory than before: is its disk mounted?"
                )
            yield
        except OSError as error:
            raise self._error(error) from None

    def _error(self, error: OSError) -> StoreError:
        reason = error.strerror or "an error without a name"
        if not os.path.isdir(self._root):
            return StoreError(
                StoreErrorKind.NO_BUCKET, f"there is no directory {self._root}: is its disk mounted? If it is, make it"
            )
        if error.errno in _DENIED:
            return StoreError(StoreErrorKind.DENIED, f"access to {self._url} is refused: {reason}")
        if error.errno in _FULL:
            return StoreError(StoreErrorKind.FULL, f"{self._url} is full: {reason}")
        return StoreError(StoreErrorKind.UNAVAILABLE, f"{self._url} fails: {reason}")

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        try:
            fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.isdir(self._root):
                raise
            raise ObjectMissing(name) from None
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ObjectMissing(name)
            yield fd
        finally:
            os.close(fd)

    @contextmanager
    def _written(self, data: bytes) -> Iterator[str]:
        """A synced file of its own with these bytes, removed at the end under this name."""
        temporary = f"{self._root}/.tmp"
        with contextlib.suppress(FileExistsError):
            os.mkdir(temporary)
        self._tidy(temporary)
        path = f"{temporary}/{self._process}-{next(self._numbers)}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            yield path
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)  # a rename has taken it away, where there was one

    def _tidy(self, temporary: str) -> None:
        """Once: remove what processes that were killed have left."""
        with self._lock:
            if self._is_tidy:
                return
            self._is_tidy = True
        with os.scandir(temporary) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if time.time() - entry.stat().st_mtime > LEFT_S:
                        os.unlink(entry.path)

    def _link(self, written: str, path: str) -> None:
        for _ in range(TRIES):
            self._make_directory(os.path.dirname(path))
            try:
                os.link(written, path)
                return
            except FileNotFoundError:
                self._synced.discard(os.path.dirname(path))
            except OSError as error:
                if error.errno not in _NO_LINKS or not os.path.exists(written):
                    raise
                raise StoreError(
                    StoreErrorKind.OTHER, f"the file system of {self._url} has no hard links, which are needed"
                ) from None
        raise FileNotFoundError(errno.ENOENT, "its directory is removed again and again")

    def _make_directory(self, directory: str) -> None:
        """Make a directory and those above it, up to the root, durably. The root is never made."""
        if directory == self._root or directory in self._synced:
            return
        above = os.path.dirname(directory)
        self._make_directory(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(directory)
        self._sync_directory(above)
        self._synced.add(directory)

    def _remove_empty(self, directory: str) -> None:
        while directory != self._root:
            try:
                os.rmdir(directory)
            except OSError:
                return
            self._synced.discard(directory)
            directory = os.path.dirname(directory)

    def _sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in _NO_SYNC:  # not of a file system that cannot, or that is mounted read-only
                raise
        finally:
            os.close(fd)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(f"{self._root}/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _below(self, directory: str, prefix: str, after: str) -> Iterator[ObjectFacts]:
        """The objects in a directory (a name that ends with `/`, or nothing) and those below it, in order."""
        try:
            with os.scandir(f"{self._root}/{directory}") as entries:
                found = [(directory + entry.name + ("/" if entry.is_dir() else ""), entry) for entry in entries]
        except (FileNotFoundError, NotADirectoryError):
            if not os.path.isdir(self._root):
                raise
            return
        for name, entry in sorted((name, entry) for name, entry in found if not entry.name.startswith(".")):
            if name.endswith("/"):
                if (name.startswith(prefix) or prefix.startswith(name)) and (after < name or after.startswith(name)):
                    yield from self._below(name, prefix, after)
            elif name.startswith(prefix) and name > after and is_name(name):
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat()
                    tag = f"{facts.st_ino:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}"
                    yield ObjectFacts(name, facts.st_size, tag, facts.st_mtime_ns // 1_000_000)


def _read(fd: int, offset: int, length: int) -> bytes:
    pieces = []
    while length > 0 and (piece := os.pread(fd, length, offset)):
        pieces.append(piece)
        offset += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _etag(data: bytes) -> str:
    return f"{len(data):x}-{xxhash.xxh3_128_hexdigest(data)}"


def _etag_of(fd: int) -> str:
    digest, at = xxhash.xxh3_128(), 0
    while piece := os.pread(fd, CHUNK, at):
        digest.update(piece)
        at += len(piece)
    return f"{at:x}-{digest.hexdigest()}"
