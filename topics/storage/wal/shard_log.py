"""The files of one shard's log on disk: the active one, which is open, and the next one, which is made ahead of need.

Everything here blocks: it runs in a worker thread, one call at a time (the making of the next file beside another
call), or before the writer runs. Only a small `write` may run on the loop (`group_writes`). An error before any byte of
the log was written raises `NoRoom`, and the call may be repeated; after an OSError the state of the disk is unknown.
`shard_writer` decides which frames are written when.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from topics.runtime.clock import Clock
from topics.storage.files.datadir import wal_name
from topics.storage.files.file_header import encode_file_header
from topics.storage.files.fs import File, Fs, write_all
from topics.storage.wal import frames
from topics.storage.wal.frames import UnsealedFrames
from topics.storage.wal.stall import NoRoom
from topics.storage.wal.wal_files import WalFile
from topics.storage.wal.wal_head import TAIL_BYTES, WalHead, new_head
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class NamedFile(NamedTuple):
    """A file that has just got its name."""

    ordinal: int
    path: str
    head: WalHead
    handle: File


class ShardLog:
    """The files of one shard. Made by its `ShardWriter`; `close` must be called at the end."""

    def __init__(self, shard: int, directory: str, fs: Fs, clock: Clock, file_bytes: int) -> None:
        self.allocated = 0
        """Bytes of the active file that are on disk, as frames or as zeros."""
        self.is_spare_ready = False
        """True if the next file exists, preallocated, under its temporary name."""
        self.shard = shard
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._file_bytes = file_bytes
        self._handle: File | None = None
        self._spare_salt = 0
        """The salt in the header of the next file, once it has one."""
        self._home: str | None = None
        """The identity of `directory` (`Fs.identity`), to notice if another one takes its place."""
        self._current_told = False

    @property
    def handle(self) -> File:
        """The active file."""
        assert self._handle is not None
        return self._handle

    def resume(self, path: str) -> None:
        """Open the last file of a recovered log. Raises OSError."""
        self._home = self._fs.identity(self._directory)
        self._handle = self._fs.open(path)
        self.allocated = self._handle.size()

    def create(self, ordinal: int) -> NamedFile:
        """Make and enter the first file of a log. Raises NoRoom and OSError."""
        self._home = self._fs.identity(self._directory)
        self.make_spare()
        return self.enter_spare(ordinal)

    def begin(self, entered: NamedFile) -> None:
        """Make a file that was entered the active one, and close the one before."""
        self.close()
        self._handle = entered.handle
        self.allocated = self._file_bytes + 2 * TAIL_BYTES

    def close(self) -> None:
        """Close the active file, if there is one. May be repeated."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def has_room(self, end: int) -> bool:
        """Return True if frames up to `end` can be written without asking the disk for room."""
        return end + 2 * TAIL_BYTES <= self.allocated

    def make_room(self, end: int) -> None:
        """Make sure that zeros are on disk behind `end`, where frames will be written. So a file that has no FileEnd
        and does not end in zeros has lost its end (`log_end`). Raises NoRoom, and OSError if earlier writes cannot be
        synced."""
        if not self.has_room(end):
            handle = self.handle
            try:
                handle.preallocate(end + 2 * TAIL_BYTES)
            except OSError as error:
                raise NoRoom(error) from error
            handle.fdatasync()
            self.allocated = end + 2 * TAIL_BYTES

    @property
    def _spare_path(self) -> str:
        return f"{self._directory}/next.tmp"

    def make_spare(self) -> None:
        """Preallocate the next file under a temporary name. Its zeros are on disk before it is used. Raises NoRoom."""
        self._check_home()
        with self._fs.open(self._spare_path, create=True) as handle:
            try:
                handle.truncate(0)
                handle.preallocate(self._file_bytes + 2 * TAIL_BYTES)
                handle.fdatasync()
            except OSError:
                with suppress(OSError):  # its room is needed, and the next attempt makes another file
                    self._fs.unlink(self._spare_path)
                raise

    def _check_home(self) -> None:
        """Raise OSError if another directory is in the place of the shard's."""
        if self._fs.identity(self._directory) != self._home:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), self._directory)

    def write(
        self,
        file: WalFile,
        pieces: Sequence[UnsealedFrames],
        start: int,
        sync: bool,
        after_write: Callable[[], None] | None,
    ) -> int:
        """Compute the checksums of `pieces`, write them at `start`, call `after_write`, then sync if `sync` is True.
        Return how long the sync took (ns). Raises NoRoom before anything is written, and OSError."""
        handle = self.handle
        bodies = pieces[0].bodies if len(pieces) == 1 else [body for piece in pieces for body in piece.bodies]
        if bodies:
            self.make_room(start + sum(map(len, pieces)))
            write_all(handle, frames.seal(bodies, file.head.salt, start), start)
        file.written_ns = self._clock.perf_ns()
        if not sync:
            return 0
        if after_write is not None:
            after_write()
        return self.sync()

    def sync(self) -> int:
        """Sync the active file. Return how long that took (ns). Raises OSError."""
        began_ns = self._clock.perf_ns()
        self.handle.fdatasync()
        return self._clock.perf_ns() - began_ns

    def end_file(self, ending: bytes, at: int) -> None:
        """Write FileEnd and sync the file, before the next one gets its name (`docs/spec/crash.md` 5)."""
        handle = self.handle
        write_all(handle, ending, at)
        handle.fdatasync()
        handle.truncate(at + len(ending))  # behind the sync: a file without FileEnd never ends before its zeros

    def enter_spare(self, ordinal: int, *, again: bool = False) -> NamedFile:
        """Give the preallocated file its header and its name, both durably, and open it. Raises NoRoom if it has not
        got them, and may then be called `again`; OSError if that is unknown."""
        name = wal_name(ordinal)
        path = f"{self._directory}/{name}"
        try:
            self._check_home()
            renamed = again and self._fs.exists(path)  # a rename that raised an error may have been done
            handle = self._fs.open(path if renamed else self._spare_path)
        except OSError as error:
            raise NoRoom(error) from error
        try:
            try:
                if not renamed:
                    self._write_header(handle, ordinal)
                    self._fs.rename(self._spare_path, path)
            except OSError as error:
                raise NoRoom(error) from error
            self._fs.sync_dir(self._directory)
            self._name_current(name)
        except BaseException:
            handle.close()
            raise
        return NamedFile(ordinal, path, new_head(self._spare_salt), handle)

    def _write_header(self, handle: File, ordinal: int) -> None:
        """Give the spare a salt. The header is synced before the file can be found."""
        self._spare_salt = self._fs.salt()
        try:
            write_all(handle, encode_file_header(self._spare_salt, ordinal), 0)
            handle.fdatasync()
        except OSError:
            self.is_spare_ready = False  # the next attempt makes another file
            raise

    def _name_current(self, name: str) -> None:
        """Write the active file's name to CURRENT. Only for people who look, so it may fail."""
        try:
            write_current(self._fs, self._directory, name)
        except OSError as error:
            if not self._current_told:
                log.warning("wal_current_not_written", shard=self.shard, error=str(error), consequence="none")
            self._current_told = True


def write_current(fs: Fs, directory: str, name: str) -> None:
    """Write the active file's name to CURRENT, for people. The listing of the directory decides, so this is not
    synced."""
    path = f"{directory}/CURRENT"
    with fs.open(path + ".tmp", create=True) as handle:
        handle.truncate(0)
        write_all(handle, name.encode() + b"\n", 0)
    fs.rename(path + ".tmp", path)
