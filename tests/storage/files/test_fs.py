"""The contract of `Fs`, for the real file system and the simulated one alike, and what only the real one can show."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import topics.storage.files.fs
from tests.simulation.disk import Fault, SimFs
from topics.storage.files.fs import Fs, LockHeld, OsFs, copy_bytes, join, parent, write_all, write_atomic


@pytest.fixture(params=["os", "sim"])
def fs(request: pytest.FixtureRequest) -> Fs:
    return OsFs() if request.param == "os" else SimFs()


@pytest.fixture
def root(fs: Fs, tmp_path: Path) -> str:
    fs.mkdir(str(tmp_path))  # the simulated one does not have it yet
    return str(tmp_path)


def put(fs: Fs, path: str, data: bytes) -> None:
    file = fs.open(path, create=True)
    write_all(file, data, 0)
    file.close()


# ----------------------------------------------------------------- files


def test_a_link_is_another_name_of_the_same_file(fs: Fs, root: str) -> None:
    source, target = join(root, "f"), join(root, "g")
    put(fs, source, b"old")
    fs.link(source, target)
    with fs.open(target) as file:
        write_all(file, b"new", 0)
    assert fs.read(source) == b"new"
    with pytest.raises(FileExistsError):
        fs.link(source, target)
    fs.rename(source, target)  # of the same file: it does nothing
    assert fs.listdir(root) == ["f", "g"]
    fs.unlink(source)
    assert fs.read(target) == b"new"
    with pytest.raises(FileNotFoundError):
        fs.link(source, join(root, "h"))


def test_a_read_is_short_only_at_the_end_of_the_file(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"0123456789")
    file = fs.open(join(root, "f"))
    assert file.pread(4, 2) == b"2345"
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 1000) == b""
    assert file.pread(0, 2) == b""
    file.close()


def test_a_with_statement_closes_a_file_also_after_an_error(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"x")
    with fs.open(join(root, "f")) as whole:
        assert whole.size() == 1
    with pytest.raises(ZeroDivisionError), fs.open(join(root, "f")) as failed:
        raise ZeroDivisionError
    for file in (whole, failed):
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.size()


def test_a_write_past_the_end_leaves_zeros_in_the_gap(fs: Fs, root: str) -> None:
    file = fs.open(join(root, "f"), create=True)
    assert file.pwrite(memoryview(b"xy"), 5) == 2
    assert file.pwrite(b"", 100) == 0
    assert file.size() == 7
    assert file.pread(100, 0) == b"\0\0\0\0\0xy"
    file.close()


def test_truncate_cuts_and_extends_with_zeros(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"0123456789")
    file = fs.open(join(root, "f"))
    file.truncate(3)
    assert file.pread(100, 0) == b"012"
    file.truncate(5)
    assert file.pread(100, 0) == b"012\0\0"
    file.close()


def test_preallocation_extends_with_zeros_and_changes_nothing_else(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"abc")
    file = fs.open(join(root, "f"))
    file.preallocate(8)
    assert file.pread(100, 0) == b"abc" + bytes(5)
    file.preallocate(2)
    file.preallocate(0)
    assert file.size() == 8
    file.fdatasync()
    file.close()


def test_a_range_of_bytes_is_copied_as_far_as_the_source_has_it(
    fs: Fs, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics.storage.files.fs, "WINDOW_BYTES", 3)
    put(fs, join(root, "f"), b"0123456789")
    put(fs, join(root, "g"), b"abcdefghijkl")
    source, target = fs.open(join(root, "f"), read_only=True), fs.open(join(root, "g"))
    assert copy_bytes(source, 2, 9, target, 1) == 7
    assert target.pread(100, 0) == b"a2345678ijkl"
    assert copy_bytes(source, 8, 20, target, 11) == 2
    assert target.pread(100, 0) == b"a2345678ijk89"
    assert copy_bytes(source, 10, 20, target, 0) == 0
    assert copy_bytes(source, 5, 5, target, 0) == 0
    assert target.pread(100, 0) == b"a2345678ijk89"
    source.close()
    target.close()


def test_open_creates_only_when_told_and_never_truncates(fs: Fs, root: str) -> None:
    path = join(root, "f")
    with pytest.raises(FileNotFoundError):
        fs.open(path)
    with pytest.raises(FileNotFoundError):
        fs.open(path, read_only=True)
    put(fs, path, b"abc")
    fs.open(path, create=True).close()
    assert fs.read(path) == b"abc"
    with pytest.raises(FileExistsError):
        fs.open(path, exclusive=True)
    fs.open(join(root, "g"), exclusive=True).close()
    assert fs.read(join(root, "g")) == b""
    with pytest.raises(FileNotFoundError):
        fs.open(join(root, "missing", "f"), create=True)


def test_a_read_only_file_refuses_every_change(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"abc")
    file = fs.open(join(root, "f"), read_only=True)
    changes: list[Callable[[], object]] = [
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(0),
        lambda: file.preallocate(10),
    ]
    for change in changes:
        with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
            change()
    assert file.pread(3, 0) == b"abc"
    file.close()


def test_a_closed_file_refuses_everything_but_closing(fs: Fs, root: str) -> None:
    file = fs.open(join(root, "f"), create=True)
    file.close()
    file.close()
    for use in (lambda: file.pread(1, 0), lambda: file.pwrite(b"x", 0), file.fdatasync, file.size):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()


def test_an_open_file_outlives_its_name(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"abc")
    file = fs.open(join(root, "f"))
    fs.unlink(join(root, "f"))
    assert not fs.exists(join(root, "f"))
    assert file.pread(3, 0) == b"abc"
    file.close()


# ----------------------------------------------------------------- names


def test_rename_replaces_the_target_and_open_files_follow(fs: Fs, root: str) -> None:
    put(fs, join(root, "new"), b"new")
    put(fs, join(root, "old"), b"old")
    file = fs.open(join(root, "new"))
    fs.rename(join(root, "new"), join(root, "old"))
    assert fs.listdir(root) == ["old"]
    assert fs.read(join(root, "old")) == b"new"
    file.pwrite(b"N", 0)
    file.close()
    assert fs.read(join(root, "old")) == b"New"


def test_a_directory_is_renamed_with_what_is_in_it(fs: Fs, root: str) -> None:
    fs.mkdir(join(root, "a"))
    put(fs, join(root, "a", "f"), b"abc")
    fs.rename(join(root, "a"), join(root, "b"))
    assert fs.read(join(root, "b", "f")) == b"abc"
    assert not fs.exists(join(root, "a"))


def test_rename_errors(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"")
    fs.mkdir(join(root, "full", "child"))
    fs.mkdir(join(root, "d"))
    with pytest.raises(FileNotFoundError):
        fs.rename(join(root, "missing"), join(root, "g"))
    with pytest.raises(IsADirectoryError):
        fs.rename(join(root, "f"), join(root, "d"))
    with pytest.raises(NotADirectoryError):
        fs.rename(join(root, "d"), join(root, "f"))
    with pytest.raises(OSError, match="not empty"):
        fs.rename(join(root, "d"), join(root, "full"))
    with pytest.raises(OSError, match="Invalid argument"):
        fs.rename(join(root, "full"), join(root, "full", "child", "x"))
    assert fs.listdir(root) == ["d", "f", "full"]


def test_mkdir_makes_parents_and_is_content_with_an_existing_one(fs: Fs, root: str) -> None:
    fs.mkdir(join(root, "a", "b", "c"))
    fs.mkdir(join(root, "a", "b", "c"))
    assert fs.listdir(join(root, "a", "b")) == ["c"]
    put(fs, join(root, "f"), b"")
    with pytest.raises(FileExistsError):
        fs.mkdir(join(root, "f"))
    with pytest.raises((NotADirectoryError, FileExistsError)):
        fs.mkdir(join(root, "f", "below"))


def test_unlink_and_rmdir_remove_what_they_are_for(fs: Fs, root: str) -> None:
    fs.mkdir(join(root, "d"))
    put(fs, join(root, "d", "f"), b"")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(join(root, "d"))
    with pytest.raises(IsADirectoryError):
        fs.unlink(join(root, "d"))
    with pytest.raises(NotADirectoryError):
        fs.rmdir(join(root, "d", "f"))
    fs.unlink(join(root, "d", "f"))
    with pytest.raises(FileNotFoundError):
        fs.unlink(join(root, "d", "f"))
    fs.rmdir(join(root, "d"))
    assert not fs.exists(join(root, "d"))


def test_a_listing_is_sorted_and_a_missing_directory_has_none(fs: Fs, root: str) -> None:
    for name in ("b", "a", "c"):
        put(fs, join(root, name), b"")
    assert fs.listdir(root) == ["a", "b", "c"]
    assert fs.listdir(join(root, "missing")) == []
    with pytest.raises(NotADirectoryError):
        fs.listdir(join(root, "a"))


def test_exists_and_read(fs: Fs, root: str) -> None:
    put(fs, join(root, "f"), b"abc")
    assert fs.exists(root)
    assert fs.exists(join(root, "f"))
    assert not fs.exists(join(root, "g"))
    assert not fs.exists(join(root, "f", "below"))
    assert fs.read(join(root, "f")) == b"abc"
    with pytest.raises(FileNotFoundError):
        fs.read(join(root, "g"))


def test_syncs_succeed_and_a_missing_directory_cannot_be_synced(fs: Fs, root: str) -> None:
    fs.sync_dir(root)
    with pytest.raises(FileNotFoundError):
        fs.sync_dir(join(root, "missing"))
    with pytest.raises(FileNotFoundError):
        fs.sync_all(join(root, "missing"))
    with pytest.raises(OSError, match=r"No such device|not there when"):
        fs.sync_all(root)
    assert not fs.anchor(join(root, "missing", "too"))
    assert not fs.anchor(root)
    fs.sync_all(root)
    fs.release_anchors()
    with pytest.raises(OSError, match=r"No such device|not there when"):
        fs.sync_all(root)


# ----------------------------------------------------------------- identity, lock


def test_identity_is_of_the_directory_and_not_of_its_name(fs: Fs, root: str) -> None:
    fs.mkdir(join(root, "a"))
    fs.mkdir(join(root, "b"))
    identity = fs.identity(join(root, "a"))
    assert identity != fs.identity(join(root, "b"))
    fs.rename(join(root, "a"), join(root, "c"))
    assert fs.identity(join(root, "c")) == identity
    assert fs.free_bytes(root) > 0
    assert (fs.free_inodes(root) or 1) > 0
    assert fs.mount(root) == fs.mount(join(root, "b"))
    assert len(fs.boot_id()) == 36
    assert fs.boot_id() == fs.boot_id()


def test_a_held_lock_names_its_holder_until_it_is_released(fs: Fs, root: str) -> None:
    path = join(root, "LOCK")
    handle = fs.lock(path, "pid 1, a longer text")
    with pytest.raises(LockHeld, match="pid 1, a longer text") as held:
        fs.lock(path, "pid 2")
    assert held.value.holder == "pid 1, a longer text"
    handle.release()
    handle.release()
    second = fs.lock(path, "pid 2")
    assert fs.read(path) == b"pid 2"
    second.release()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_lock_holds_when_its_file_is_removed_or_replaced(fs: Fs, root: str, replaced: bool) -> None:
    path = join(root, "LOCK")
    handle = fs.lock(path, "pid 1")
    fs.unlink(path)
    if replaced:
        put(fs, path, b"somebody")
    with pytest.raises(LockHeld) as held:
        fs.lock(path, "pid 2")
    assert held.value.holder == fs.lock_holder(path) == ("somebody" if replaced else "")
    handle.release()
    assert fs.lock_holder(path) is None
    fs.lock(path, "pid 2").release()


# ----------------------------------------------------------------- helpers


def test_parent_of_every_kind_of_path() -> None:
    assert [parent(path) for path in ("/a/b", "/a", "/", "a/b", "a", "a/b/")] == ["/a", "/", "/", "a", ".", "a"]


def test_write_all_goes_on_after_short_writes() -> None:
    fs = SimFs(faults=[Fault(name="pwrite", short=3, times=2)])
    file = fs.open("/f", create=True)
    write_all(file, b"0123456789", 2)
    assert fs.read("/f") == b"\0\x000123456789"
    assert [op.detail for op in fs.ops if op.name == "pwrite"] == ["2+10", "5+7", "8+4"]


def test_write_all_without_progress_is_an_io_error() -> None:
    file = SimFs(faults=[Fault(name="pwrite", short=0, nth=1)]).open("/f", create=True)
    write_all(file, b"abc", 0)
    with pytest.raises(OSError, match="no progress") as failed:
        write_all(file, b"abc", 0)
    assert failed.value.errno == errno.EIO


def test_write_atomic_replaces_the_whole_content(fs: Fs, root: str) -> None:
    path = join(root, "f")
    put(fs, path + ".tmp", b"left by a crash, and longer than what comes")
    write_atomic(fs, path, b"one")
    write_atomic(fs, path, b"two")
    assert fs.read(path) == b"two"
    assert fs.listdir(root) == ["f"]


@pytest.mark.parametrize("name", ["create", "truncate", "pwrite", "fdatasync", "rename"])
def test_write_atomic_that_fails_leaves_the_old_content_and_no_rubbish(name: str) -> None:
    fs = SimFs()
    write_atomic(fs, "/f", b"old")
    fs.inject(Fault(name=name, error=errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        write_atomic(fs, "/f", b"new")
    assert fs.tree() == {"/f": b"old"}
    assert fs.open_files == 0


# ----------------------------------------------------------------- the real one only


def test_files_and_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    fs = OsFs()
    before = os.umask(0)
    try:
        fs.mkdir(str(tmp_path / "a" / "b"))
        fs.open(str(tmp_path / "a" / "f"), create=True).close()
        fs.lock(str(tmp_path / "a" / "LOCK"), "").release()
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a", *(tmp_path / "a").iterdir())}
    assert modes == {"a": 0o700, "b": 0o700, "f": 0o600, "LOCK": 0o600}


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    def opened() -> list[int]:
        links = {int(fd): os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
        return [fd for fd, target in links.items() if target.startswith(str(tmp_path))]

    fs = OsFs()
    file = fs.open(str(tmp_path / "f"), create=True)
    handle = fs.lock(str(tmp_path / "LOCK"), "x")
    fs.anchor(str(tmp_path))
    assert [os.get_inheritable(fd) for fd in opened()] == [False] * 4
    file.close()
    handle.release()
    fs.release_anchors()
    assert opened() == []


def test_a_program_that_locks_the_file_alone_is_kept_out_and_keeps_out(tmp_path: Path) -> None:
    path = str(tmp_path / "LOCK")
    handle = OsFs().lock(path, "pid 1")
    with open(path, "rb") as file:
        with pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        handle.release()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(LockHeld, match="pid 1"):
            OsFs().lock(path, "pid 2")
        assert OsFs().lock_holder(path) == "pid 1"


def test_where_directories_cannot_be_locked_the_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def nfs(fd: int, operation: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(fd, operation)

    monkeypatch.setattr("fcntl.flock", nfs)
    path = str(tmp_path / "LOCK")
    handle = OsFs().lock(path, "pid 1")
    with pytest.raises(LockHeld, match="pid 1"):
        OsFs().lock(path, "pid 2")
    assert OsFs().lock_holder(path) == "pid 1"
    handle.release()
    assert OsFs().lock_holder(path) is None


class _Syncfs:
    """syncfs(2) as the kernel has it: an error is told once to each descriptor that was open when it happened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        self.heard: set[int] = set()
        self.fds: list[int] = []
        monkeypatch.setattr("topics.storage.files.fs._syncfs", self)
        monkeypatch.setattr("ctypes.get_errno", lambda: self.error)

    def __call__(self, fd: int) -> int:
        assert stat.S_ISDIR(os.fstat(fd).st_mode)
        self.fds.append(fd)
        if not self.error or fd in self.heard:
            return 0
        self.heard.add(fd)
        return -1


def test_sync_all_goes_through_the_descriptor_that_was_opened_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncfs = _Syncfs(monkeypatch)
    fs = OsFs()
    fs.anchor(str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "b").mkdir(parents=True)
    fs.anchor(str(tmp_path / "a" / "b"))
    fs.sync_all(str(tmp_path / "a"))
    fs.sync_all(str(tmp_path / "a" / "b"))
    assert len(syncfs.fds) == 3
    assert len(set(syncfs.fds)) == 1
    assert os.path.realpath(f"/proc/self/fd/{syncfs.fds[0]}") == str(tmp_path)
    fs.release_anchors()


def test_an_error_of_syncfs_is_told_to_everybody_until_the_anchor_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncfs = _Syncfs(monkeypatch)
    fs = OsFs()
    fs.anchor(str(tmp_path))
    syncfs.error = errno.EIO
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            fs.sync_all(str(tmp_path))
    assert len(syncfs.fds) == 2
    fs.release_anchors()


def test_a_system_without_syncfs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.storage.files.fs._syncfs", None)
    with pytest.raises(OSError, match="no syncfs"):
        OsFs().anchor(str(tmp_path))


def test_a_write_that_failed_before_is_known_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncfs = _Syncfs(monkeypatch)
    fs = OsFs()
    assert not fs.anchor(str(tmp_path))
    fs.release_anchors()
    syncfs.error = errno.ENOSPC
    syncfs.heard.clear()
    assert fs.anchor(str(tmp_path))
    fs.sync_all(str(tmp_path))
    assert fs.anchor(str(tmp_path))
    fs.release_anchors()
