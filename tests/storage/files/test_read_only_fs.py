"""The file system of the offline commands: it reads, counts, and refuses everything else."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.disk import SimFs
from topics.storage.files.fs import Fs, OsFs, join, write_all
from topics.storage.files.progress import Progress
from topics.storage.files.read_only_fs import ReadOnlyFs, size_of


def real() -> SimFs:
    fs = SimFs()
    fs.mkdir("/d")
    file = fs.open("/d/f", create=True)
    write_all(file, b"0123456789", 0)
    file.close()
    return fs


def test_what_is_read_is_counted() -> None:
    progress = Progress()
    fs = ReadOnlyFs(real(), progress)
    assert fs.read("/d/f") == b"0123456789"
    file = fs.open("/d/f", read_only=True)
    assert file.pread(4, 8) == b"89"
    file.close()
    assert progress.done == 12
    assert (size_of(fs, "/d/f"), size_of(fs, "/d/none")) == (10, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda fs: fs.open("/d/f"),
        lambda fs: fs.open("/d/new", create=True, read_only=True),
        lambda fs: fs.open("/d/new", exclusive=True, read_only=True),
        lambda fs: fs.rename("/d/f", "/d/g"),
        lambda fs: fs.unlink("/d/f"),
        lambda fs: fs.mkdir("/e"),
        lambda fs: fs.rmdir("/d"),
        lambda fs: fs.sync_dir("/d"),
        lambda fs: fs.sync_all("/d"),
        lambda fs: fs.lock("/d/LOCK", "me"),
        lambda fs: fs.open("/d/f", read_only=True).pwrite(b"x", 0),
        lambda fs: fs.open("/d/f", read_only=True).truncate(0),
        lambda fs: fs.open("/d/f", read_only=True).preallocate(99),
        lambda fs: fs.open("/d/f", read_only=True).fdatasync(),
    ],
)
def test_nothing_can_be_changed(change: Callable[[Fs], object]) -> None:
    fs = real()
    mutations = fs.mutations
    with pytest.raises(OSError, match=os.strerror(errno.EROFS)):
        change(ReadOnlyFs(fs, Progress()))
    assert fs.mutations == mutations


@pytest.mark.parametrize("make", [OsFs, SimFs])
def test_the_holder_of_a_lock_is_known_and_a_lock_is_not_made(make: Callable[[], Fs], tmp_path: Path) -> None:
    fs, path = make(), join(str(tmp_path), "LOCK")
    fs.mkdir(str(tmp_path))
    assert fs.lock_holder(path) is None
    assert not fs.exists(path)
    lock = fs.lock(path, "pid 7\n")
    assert fs.lock_holder(path) == "pid 7"
    lock.release()
    assert fs.lock_holder(path) is None
    assert fs.read(path) == b"pid 7\n"
    fs.lock(path, "pid 8\n").release()
