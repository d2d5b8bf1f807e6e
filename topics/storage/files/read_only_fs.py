"""`ReadOnlyFs`: a file system for the offline commands, which read a directory and must not change it.

Responsible for refusing every change, so that no mistake in a command can write, and for counting every byte that is
read, for a progress bar.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn, Self

from topics.storage.files.fs import File, Fs, LockHandle
from topics.storage.files.progress import Progress


class ReadOnlyFs:
    """Reads through another `Fs`, and raises OSError for every change. `progress.done` counts the bytes read."""

    def __init__(self, fs: Fs, progress: Progress) -> None:
        self._fs = fs
        self._progress = progress

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        if create or exclusive or not read_only:
            _refuse(path)
        return _ReadOnlyFile(self._fs.open(path, read_only=True), path, self._progress)

    def read(self, path: str) -> bytes:
        data = self._fs.read(path)
        self._progress.done += len(data)
        return data

    def rename(self, source: str, target: str) -> None:
        _refuse(source)

    def link(self, source: str, target: str) -> None:
        _refuse(target)

    def unlink(self, path: str) -> None:
        _refuse(path)

    def mkdir(self, path: str) -> None:
        _refuse(path)

    def rmdir(self, path: str) -> None:
        _refuse(path)

    def listdir(self, path: str) -> list[str]:
        return self._fs.listdir(path)

    def exists(self, path: str) -> bool:
        return self._fs.exists(path)

    def sync_dir(self, path: str) -> None:
        _refuse(path)

    def anchor(self, path: str) -> bool:
        _refuse(path)

    def release_anchors(self) -> None:
        pass

    def sync_all(self, path: str) -> None:
        _refuse(path)

    def free_bytes(self, path: str) -> int:
        return self._fs.free_bytes(path)

    def free_inodes(self, path: str) -> int | None:
        return self._fs.free_inodes(path)

    def mount(self, path: str) -> str | None:
        return self._fs.mount(path)

    def identity(self, path: str) -> str:
        return self._fs.identity(path)

    def boot_id(self) -> str:
        return self._fs.boot_id()

    def salt(self) -> int:
        return self._fs.salt()

    def lock_dir(self, path: str) -> LockHandle:
        _refuse(path)

    def lock(self, path: str, text: str) -> LockHandle:
        _refuse(path)

    def lock_holder(self, path: str) -> str | None:
        return self._fs.lock_holder(path)


class _ReadOnlyFile:
    """A file that counts the bytes read from it."""

    __slots__ = ("_file", "_path", "_progress")

    def __init__(self, file: File, path: str, progress: Progress) -> None:
        self._file = file
        self._path = path
        self._progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pread(self, length: int, offset: int) -> bytes:
        data = self._file.pread(length, offset)
        self._progress.done += len(data)
        return data

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        _refuse(self._path)

    def fdatasync(self) -> None:
        _refuse(self._path)

    def truncate(self, length: int) -> None:
        _refuse(self._path)

    def preallocate(self, length: int) -> None:
        _refuse(self._path)


def size_of(fs: Fs, path: str) -> int:
    """The length of a file in bytes, 0 if there is none (any more)."""
    try:
        with fs.open(path, read_only=True) as file:
            return file.size()
    except FileNotFoundError:
        return 0


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
