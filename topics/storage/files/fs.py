"""The `Fs` interface: the few file system operations that storage needs, and the real implementation (`OsFs`).

Defines precisely which bytes and names are visible, which are durable, and which state an error leaves behind. The
callers decide what to write, when to sync and what a failure means for a shard. The simulated disk
(`tests/simulation/disk.py`) implements the same contract and takes every liberty that it leaves.

What is promised, and what is not (`docs/spec/crash.md`, first paragraph):

- A write is visible to every later read at once. It is *durable* only when a later `fdatasync` of that file (or
  `sync_all`) returned.
- A name (create, rename, unlink, mkdir, rmdir) is visible at once, and durable only when a later `sync_dir` of its
  directory (or `sync_all`) returned. `fdatasync` makes content and size durable, never the name.
- Before that, anything may be found after a crash of the machine: all, nothing, a part, in any order.
- A sync that failed says nothing about what is on the disk, and a later sync that succeeds does not say it either: the
  kernel reports a failed write back once and then calls the pages clean. So a failed sync is never retried.
- The kernel reports a failed write back to each descriptor that was open when it happened, and to no other for certain:
  one that is opened afterwards gets no error once any process has got it. So a file is synced through the descriptor
  that has written it, or by `sync_all` through an anchor that is older than the write.

Paths are `str` with "/" between parts. Every method that touches the file system may raise `OSError`, with `errno`
set. No method may be called from the Trio loop while the daemon serves: they block, and belong in `Offload`. The one
exception is a `pwrite` that `topics.storage.wal.group_writes` has reason to expect to return at once.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import posixpath
import threading
from collections.abc import Callable
from typing import Final, Protocol, Self

from topics.storage.files.mounts import mount_of

FILE_MODE = 0o600
"""Mode of every file (`docs/spec/storage.md` section 1)."""
DIRECTORY_MODE = 0o700
"""Mode of every directory (`docs/spec/storage.md` section 1)."""
TEMPORARY_SUFFIX = ".tmp"
"""Suffix of a file that `write_atomic` has not finished: recovery ignores and may remove such files."""

WINDOW_BYTES: Final = 4 << 20
"""Files are read in windows of this size (or of one frame, if that is larger)."""


class File(Protocol):
    """An open regular file. A `with` statement closes it at its end. Offsets and lengths in bytes. Every method may
    raise OSError."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""
        ...

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        """Write at `offset`. Return how many bytes were taken, possibly fewer than given (`write_all` loops).

        Past the end the file grows, a gap reads as zeros. After an error any part of `data` may be in the file.
        """
        ...

    def fdatasync(self) -> None:
        """Make content and size durable, not the name. Never to be retried after an error."""
        ...

    def truncate(self, length: int) -> None:
        """Cut the file to `length`, or extend it with zeros. Durable with the next `fdatasync`."""
        ...

    def preallocate(self, length: int) -> None:
        """Reserve space up to `length` and extend the file to it with zeros; never shrinks it, never changes content.

        After an error (ENOSPC) the file may have grown by some of the zeros.
        """
        ...

    def size(self) -> int:
        """The length of the file in bytes, preallocated zeros included."""
        ...

    def close(self) -> None:
        """Close; syncs nothing. A second call does nothing, any other call after it raises EBADF."""
        ...


class LockHandle(Protocol):
    """A held lock. It ends with the process, or with `release`."""

    def release(self) -> None:
        """Release the lock; the file stays. A second call does nothing."""
        ...


class LockHeld(Exception):
    """Another process holds the lock. `holder` is the text it wrote, empty if it has not written it yet."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(f"{path} is locked by {holder.strip() or 'another process'}")
        self.path = path
        self.holder = holder


class Fs(Protocol):
    """A file system. The module describes visibility and durability; every method may raise OSError, and blocks."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        """Open a regular file, for reading and writing unless `read_only`; never truncates it.

        `create` makes it (0600) if it is missing; `exclusive` makes it and raises FileExistsError if it is there.
        Otherwise a missing file is FileNotFoundError. Writing through a `read_only` file is an OSError.
        """
        ...

    def read(self, path: str) -> bytes:
        """The whole of a small file. FileNotFoundError if it is missing."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Give `source` the name `target`, replacing a file of that name, atomically.

        Durable after `sync_dir` of its directory, of both directories if they differ.
        """
        ...

    def link(self, source: str, target: str) -> None:
        """Give the file `source` another name, which must not exist (FileExistsError). Both names are then of the same
        bytes, so neither may be of a file that is changed in place. OSError where the file system has no such links,
        and across file systems. Durable after `sync_dir` of the target's directory."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a file's name. FileNotFoundError if it is missing. Open files stay readable."""
        ...

    def mkdir(self, path: str) -> None:
        """Make a directory (0700) with its parents; one that exists is fine. The caller syncs the parents."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory; ENOTEMPTY otherwise."""
        ...

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted; a missing directory has none."""
        ...

    def exists(self, path: str) -> bool:
        """Return True if a file or directory has that name."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make the entries of a directory durable, not the content of its files. Never to be retried after an error."""
        ...

    def anchor(self, path: str) -> bool:
        """Be told of every write that fails on the file system of `path` from now on, until `release_anchors`.

        Must be called before the first write there; a second call changes nothing. `path` need not exist yet: then the
        nearest existing directory above it is used. Return True if a write had failed there before, of which no sync of
        the file system had told; False proves nothing, because another process may have been told. Makes nothing
        durable. Raises OSError if the system cannot sync a file system.
        """
        ...

    def release_anchors(self) -> None:
        """Close the anchors of all file systems; `sync_all` fails from then on."""
        ...

    def sync_all(self, path: str) -> None:
        """Make everything durable on the file system of `path`: one call instead of thousands.

        Fails for good, with the first error, once any write has failed since `anchor`, because it cannot know whose
        write that was. ENODEV without an anchor there.
        """
        ...

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process may still write on the file system of `path`."""
        ...

    def free_inodes(self, path: str) -> int | None:
        """Return how many more files an unprivileged process may make there; None if their number has no limit."""
        ...

    def identity(self, path: str) -> str:
        """Return a directory's stable identity, "device:inode": another one means that it was copied or replaced."""
        ...

    def mount(self, path: str) -> str | None:
        """Return a name, unique in this boot, of the period for which the file system of `path` has been mounted
        without a break. Unchanged means that it was not unmounted, so that its page cache has survived. None if that
        cannot be told."""
        ...

    def boot_id(self) -> str:
        """Return the kernel's id of this boot: unchanged means that the page cache survived."""
        ...

    def salt(self) -> int:
        """Return 64 unpredictable random bits, for the checksums of a new file (`file_header`)."""
        ...

    def lock(self, path: str, text: str) -> LockHandle:
        """Take the exclusive lock of a file, made if missing, and of its directory, and write `text` into the file.

        The directory's lock is the one that counts: the file may be removed or replaced while it is held. The file is
        locked as well for programs that know only the file, and to say who holds the lock. Where directories cannot be
        locked (some network file systems) there is only the file's lock. Does not wait: LockHeld, with the holder's
        text, if one of the two is held, also by this process.
        """
        ...

    def lock_dir(self, path: str) -> LockHandle:
        """Take the exclusive lock of a directory itself, which does not depend on any file in it.

        Does not wait: LockHeld if it is held, also by this process. OSError if the file system locks no directories
        (EBADF on NFS).
        """
        ...

    def lock_holder(self, path: str) -> str | None:
        """Return the text of the holder of a file's lock, or of its directory's, empty if there is no text; None if
        neither is held.

        Changes nothing, and makes no file. A process that takes the lock at this very moment may be refused it by the
        test.
        """
        ...


# ----------------------------------------------------------------- helpers


def join(*parts: str) -> str:
    """Path parts as one path."""
    return posixpath.join(*parts)


def parent(path: str) -> str:
    """Return the directory of `path`; "." for a bare name, "/" for the root."""
    return posixpath.dirname(posixpath.normpath(path)) or "."


def write_all(file: File, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data`, looping over short writes.

    No progress is OSError(EIO): a disk that takes nothing has failed.
    """
    view = memoryview(data).cast("B")
    while view:
        taken = file.pwrite(view, offset)
        if taken <= 0:
            raise OSError(errno.EIO, f"a write of {len(view)} bytes at {offset} made no progress")
        view = view[taken:]
        offset += taken


def copy_bytes(source: File, start: int, end: int, target: File, offset: int) -> int:
    """Copy the bytes `start` to `end` (exclusive) of `source` to `offset` of `target`, a window at a time.

    Returns how many were copied: fewer than asked for if `source` ends before `end`. Raises OSError.
    """
    at = start
    while at < end:
        window = source.pread(min(WINDOW_BYTES, end - at), at)
        if not window:
            break
        write_all(target, window, offset + at - start)
        at += len(window)
    return at - start


def write_atomic(fs: Fs, path: str, data: bytes) -> None:
    """Make `data` the content of `path`, durably: after a crash at any moment it is the old content or the new, whole.

    On return it is durable. After an OSError `path` has its old content or the new one, whole, and it is not known
    which of them a crash leaves. One writer per path at a time.
    """
    temporary = path + TEMPORARY_SUFFIX
    try:
        with fs.open(temporary, create=True) as file:
            file.truncate(0)
            write_all(file, data, 0)
            file.fdatasync()
        fs.rename(temporary, path)
    except OSError:
        _unlink_quietly(fs, temporary)
        raise
    fs.sync_dir(parent(path))


def _unlink_quietly(fs: Fs, path: str) -> None:
    """Remove a temporary file, ignoring errors: the caller raises the original one."""
    try:
        fs.unlink(path)
    except OSError:
        pass


# ----------------------------------------------------------------- the real one


class OsFile:
    """A file descriptor. Not synchronised: a caller that shares it orders writes, syncs and `close` itself."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: str) -> None:
        self._fd = fd
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<OsFile {self._path}{' closed' if self._fd < 0 else ''}>"

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        missing = length - len(data)
        while missing and (data := os.pread(self._fd, missing, offset + length - missing)):
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pwrite(self, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(self._fd, data, offset)

    def fdatasync(self) -> None:
        if self._fd < 0:  # Python's own check of the number would be a ValueError
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        os.fdatasync(self._fd)

    def truncate(self, length: int) -> None:
        os.ftruncate(self._fd, length)

    def preallocate(self, length: int) -> None:
        if length > 0:  # posix_fallocate calls a length of 0 invalid
            os.posix_fallocate(self._fd, 0, length)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1  # before the call, because a failed close(2) has closed the descriptor too
            os.close(fd)


class OsLock:
    """Flocks, held as long as their descriptors are open; the kernel drops them with the process."""

    __slots__ = ("_fds",)

    def __init__(self, *fds: int) -> None:
        self._fds = list(fds)

    def release(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


class _Anchor:
    """A directory of a file system, open since before the first write there, and the first error it was told."""

    __slots__ = ("error", "failed_before", "fd", "mutex")

    def __init__(self, fd: int, *, failed_before: bool) -> None:
        self.fd = fd
        self.failed_before = failed_before
        self.error: int | None = None
        self.mutex = threading.Lock()
        """Held during a sync: of two at a time the kernel would report an error to only one."""


class OsFs:
    """The operating system's file system. Any thread may call any method."""

    def __init__(self) -> None:
        self._anchors: dict[int, _Anchor] = {}
        """The anchors by device."""
        self._anchors_mutex = threading.Lock()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR)
        if create or exclusive:
            flags |= os.O_CREAT
        if exclusive:
            flags |= os.O_EXCL
        return OsFile(os.open(path, flags, FILE_MODE), path)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def mkdir(self, path: str) -> None:
        if os.path.isdir(path):
            return
        above = parent(path)
        if above != path:
            self.mkdir(above)  # os.makedirs would give the parents the umask's mode
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def listdir(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def sync_dir(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def anchor(self, path: str) -> bool:
        if _syncfs is None:
            raise OSError(errno.ENOSYS, "this system has no syncfs(2), which tells of writes that have failed", path)
        while not os.path.isdir(path) and parent(path) != path:
            path = parent(path)
        device = os.stat(path).st_dev
        with self._anchors_mutex:
            known = self._anchors.get(device)
            if known is None:
                fd = os.open(path, _DIRECTORY_FLAGS)
                known = self._anchors[device] = _Anchor(fd, failed_before=_sync_file_system(fd) is not None)
            return known.failed_before

    def release_anchors(self) -> None:
        with self._anchors_mutex:
            for anchor in self._anchors.values():
                with anchor.mutex:
                    os.close(anchor.fd)
                    anchor.fd, anchor.error = -1, errno.EBADF
            self._anchors.clear()

    def sync_all(self, path: str) -> None:
        device = os.stat(path).st_dev
        with self._anchors_mutex:
            anchor = self._anchors.get(device)
        if anchor is None:
            raise OSError(errno.ENODEV, "this file system was not there when the daemon began", path)
        with anchor.mutex:
            if anchor.error is not None:
                known = f"{os.strerror(anchor.error)}: a write here has failed before, which counts until a restart"
                raise OSError(anchor.error, known, path)
            anchor.error = _sync_file_system(anchor.fd)
            if anchor.error is not None:
                raise OSError(anchor.error, os.strerror(anchor.error), path)

    def free_bytes(self, path: str) -> int:
        figures = os.statvfs(path)
        return figures.f_bavail * figures.f_frsize

    def free_inodes(self, path: str) -> int | None:
        figures = os.statvfs(path)
        return figures.f_favail if figures.f_files else None  # 0 of 0: inodes are made as needed

    def identity(self, path: str) -> str:
        found = os.stat(path)
        return f"{found.st_dev:x}:{found.st_ino:x}"

    def mount(self, path: str) -> str | None:
        return mount_of(path)

    def boot_id(self) -> str:
        return self.read("/proc/sys/kernel/random/boot_id").decode("ascii").strip()

    def salt(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    def lock(self, path: str, text: str) -> LockHandle:
        directory = os.open(parent(path), _DIRECTORY_FLAGS)
        fd = -1
        try:
            try:
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockHeld(path, _text_of(path)) from None
            except OSError as error:
                if error.errno not in _NO_DIRECTORY_LOCKS:
                    raise
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockHeld(path, _text_of(path)) from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, text.encode("utf-8"), 0)
        except BaseException:
            OsLock(*(one for one in (directory, fd) if one >= 0)).release()
            raise
        return OsLock(directory, fd)

    def lock_dir(self, path: str) -> LockHandle:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockHeld(path, "") from None
        except BaseException:
            os.close(fd)
            raise
        return OsLock(fd)

    def lock_holder(self, path: str) -> str | None:
        for candidate in (parent(path), path):
            try:
                fd = os.open(candidate, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _text_of(path).strip()
            except OSError as error:
                if error.errno not in _NO_DIRECTORY_LOCKS:
                    raise
            finally:
                os.close(fd)
        return None


_DIRECTORY_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

_NO_DIRECTORY_LOCKS: Final = (errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
"""Errors by which a file system says that it cannot lock directories: NFS, for one, wants a writable descriptor."""


def _text_of(path: str) -> str:
    """Return the text of a lock file; empty if the file is gone."""
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _find_syncfs() -> Callable[[int], int] | None:
    """Return the C library's syncfs(2), which Python's `os` lacks; None if there is none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).syncfs
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_int]
    function.restype = ctypes.c_int
    syncfs: Callable[[int], int] = function
    return syncfs


_syncfs = _find_syncfs()


def _sync_file_system(fd: int) -> int | None:
    """Sync the file system of an open directory. Return the errno if that fails, or if this descriptor has not been
    told yet of a write that has failed."""
    if _syncfs is None:
        return errno.ENOSYS
    return None if _syncfs(fd) == 0 else ctypes.get_errno()
