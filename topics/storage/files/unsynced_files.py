"""`UnsyncedFiles`: files that are being written, open until a sync has covered them.

The kernel reports a failed write to the descriptors that were open then. One that is opened only for the sync may get
no error: another process may have got it, or the file may have left the cache. So a file is synced through the
descriptor that has written it. That takes one descriptor per file; if there are too many, all are closed, and one sync
of the file system covers them, through an anchor that is older than any of the writes (`Fs.anchor`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topics.storage.files.fs import File, Fs, parent


class UnsyncedFiles:
    """Files written since the last sync. Blocking, for one thread at a time; `sync` or `close` must be called. Up to
    `most` files are synced one by one."""

    def __init__(self, fs: Fs, topics_dir: str, *, most: int) -> None:
        self._fs = fs
        self._topics_dir = topics_dir
        self._most = most
        self._open: dict[str, File] = {}
        self._paths: set[str] = set()

    def __len__(self) -> int:
        """Return how many files have been written."""
        return len(self._paths)

    @contextmanager
    def writing(self, path: str, *, create: bool = False) -> Iterator[File]:
        """Open the file at `path` for writing. It stays open and must be synced, even if the writing fails.

        A file that was written before must not have been replaced by another one since.
        """
        file = self._open.get(path)
        if file is None:
            file = self._fs.open(path, create=create)
            self._paths.add(path)
            if len(self._paths) <= self._most:
                self._open[path] = file
            else:
                self.close()
        try:
            yield file
        finally:
            if path not in self._open:
                file.close()

    def sync(self) -> None:
        """Make everything written durable, with the names, and close the files. Raises OSError; then the state of the
        disk is unknown."""
        if not self._paths:
            return
        try:
            if len(self._paths) > self._most:
                self._fs.sync_all(self._topics_dir)
                return
            for _, file in sorted(self._open.items()):
                file.fdatasync()
            for directory in sorted({parent(path) for path in self._paths}):
                self._fs.sync_dir(directory)
            self._fs.sync_dir(self._topics_dir)
        finally:
            self.close()
            self._paths.clear()

    @property
    def has_open(self) -> bool:
        """Return True if there is anything to close."""
        return bool(self._open)

    def close(self) -> None:
        """Close every file without a sync."""
        while self._open:
            self._open.popitem()[1].close()
