"""Objects in a directory: two processes at once, kills, file systems that fail."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from topics.bucket.file_objects import LEFT_S, FileObjects
from topics.bucket.object_store import ObjectChanged, ObjectExists, StoreError, StoreErrorKind

RENEWALS = """
import sys
from topics.bucket.file_objects import FileObjects
from topics.bucket.object_store import ObjectChanged

store, done = FileObjects(sys.argv[1]), 0
while done < 100:
    data, etag = store.get("owner", 1000)
    try:
        store.put_if("owner", b"%d" % (int(data) + 1), etag)
    except ObjectChanged:
        continue
    done += 1
"""


def test_of_two_processes_that_replace_one_object_each_sees_the_other(tmp_path: Path) -> None:
    store = FileObjects(str(tmp_path))
    store.put_new("owner", b"0")
    processes = [subprocess.Popen([sys.executable, "-c", RENEWALS, str(tmp_path)]) for _ in range(2)]
    try:
        assert [process.wait(120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert store.get("owner", 1000).data == b"200"


def test_a_kill_at_any_moment_leaves_an_object_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call of the system in turn is the last one that the process makes."""

    class Killed(BaseException):
        pass

    names = ("mkdir", "open", "write", "fsync", "link", "rename", "unlink")
    real = {name: getattr(os, name) for name in names}
    left = 0

    def counted(name: str) -> object:
        def call(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return real[name](*args, **options)

        return call

    ends = set()
    for number in range(100):
        root = tmp_path / str(number)
        root.mkdir()
        store = FileObjects(str(root))
        etag = store.put_new("owner", b"before")
        with monkeypatch.context() as patch:
            for name in names:
                patch.setattr(os, name, counted(name))
            left = number
            is_whole = True
            try:
                store.put_new("rounds/1", b"round")
                store.put_if("owner", b"after", etag)
            except Killed:
                is_whole = False
        other = FileObjects(str(root))
        found = {facts.name: other.get(facts.name, 100).data for facts in other.list("")}
        assert found in (
            {"owner": b"before"},
            {"owner": b"before", "rounds/1": b"round"},
            {"owner": b"after", "rounds/1": b"round"},
        )
        ends.add(len(found) + (found["owner"] == b"after"))
        if "rounds/1" not in found:
            other.put_new("rounds/1", b"round")
        if found["owner"] == b"before":
            other.put_if("owner", b"after", etag)
        if is_whole:
            break
    assert ends == {1, 2, 3}
    assert is_whole


def test_what_is_put_is_synced_before_it_has_its_name_and_its_directories_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileObjects(str(tmp_path))
    events: list[str] = []
    real_fsync, real_link, real_rename = os.fsync, os.link, os.rename

    def fsync(fd: int) -> None:
        events.append("sync " + os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        real_fsync(fd)

    def link(source: str, target: str) -> None:
        events.append("link")
        real_link(source, target)

    def rename(source: str, target: str) -> None:
        events.append("rename")
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(os, "rename", rename)
    etag = store.put_new("a/b/c", b"x")
    assert events[0].startswith("sync .tmp/")
    assert events[1:] == ["sync .", "sync a", "link", "sync a/b"]
    del events[:]
    store.put_if("a/b/c", b"y", etag)
    assert events[0].startswith("sync .tmp/")
    assert events[1:] == ["rename", "sync a/b"]
    del events[:]
    with pytest.raises(ObjectExists):
        store.put_new("a/b/c", b"z")
    assert events[1:] == ["link", "sync a/b"]
    del events[:]
    store.get("a/b/c", 1)
    assert events == ["sync a/b"]


def test_an_object_that_comes_again_in_the_same_inode_has_another_etag(tmp_path: Path) -> None:
    """Its time and its size are the same, too."""
    store = FileObjects(str(tmp_path))
    etag = store.put_new("owner", b"one")
    facts = (tmp_path / "owner").stat()
    (tmp_path / "owner").write_bytes(b"two")
    os.utime(tmp_path / "owner", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(ObjectChanged):
        store.put_if("owner", b"three", etag)


def test_what_killed_processes_have_left_goes_after_a_day_and_is_never_listed(tmp_path: Path) -> None:
    temporary = tmp_path / ".tmp"
    temporary.mkdir()
    for name, age_s in (("old", LEFT_S + 60), ("new", LEFT_S - 60)):
        (temporary / name).write_bytes(b"x")
        os.utime(temporary / name, (time.time() - age_s,) * 2)
    store = FileObjects(str(tmp_path))
    assert store.list("") == []
    store.put_new("a", b"x")
    assert os.listdir(temporary) == ["new"]
    assert [facts.name for facts in store.list("")] == ["a"]


def test_files_of_others_are_not_listed(tmp_path: Path) -> None:
    """A copy that a program for synchronisation has left has a name that no call takes: nobody could read it as a pin,
    or list on behind it."""
    store = FileObjects(str(tmp_path))
    for name in ("pins/a", "pins/c"):
        store.put_new(name, b"")
    (tmp_path / "pins" / "a (conflicted copy)").write_bytes(b"")
    (tmp_path / "pins" / "b~").write_bytes(b"")
    assert [one.name for one in store.list("pins/")] == ["pins/a", "pins/c"]
    page = store.list("pins/", limit=1)
    assert [one.name for one in store.list("pins/", page[0].name, limit=1)] == ["pins/c"]


def test_empty_directories_go(tmp_path: Path) -> None:
    store = FileObjects(str(tmp_path))
    for name in ("a/b/c", "a/d"):
        store.put_new(name, b"x")
    store.delete(["a/b/c"])
    assert os.listdir(tmp_path / "a") == ["d"]
    store.delete(["a/d"])
    assert sorted(os.listdir(tmp_path)) == [".lock", ".tmp"]


def test_another_directory_in_the_place_of_the_first_is_not_touched(tmp_path: Path) -> None:
    """As where a disk was mounted, and is not any more."""
    root, aside = tmp_path / "bucket", tmp_path / "aside"
    root.mkdir()
    store = FileObjects(str(root))
    store.put_new("owner", b"0")
    root.rename(aside)
    root.mkdir()
    calls: list[Callable[[], object]] = [
        lambda: store.put_new("rounds/1", b"1"),
        lambda: store.put_if("owner", b"1", "x"),
        lambda: store.get("owner", 10),
        lambda: store.list("rounds/"),
        lambda: store.delete(["owner"]),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="is its disk mounted") as caught:
            call()
        assert caught.value.kind == StoreErrorKind.NO_BUCKET
    assert list(root.iterdir()) == []
    root.rmdir()
    aside.rename(root)
    assert store.get("owner", 10).data == b"0"


def test_a_directory_that_is_not_there_is_never_made(tmp_path: Path) -> None:
    root = tmp_path / "unmounted"
    store = FileObjects(str(root))
    for call in (
        lambda: store.put_new("a", b"x"),
        lambda: store.put_if("a", b"x", "y"),
        lambda: store.get("a", 1),
        lambda: store.head("a"),
        lambda: store.list("a/"),
        lambda: store.delete(["a"]),
    ):
        with pytest.raises(StoreError, match=f"^there is no directory {root}: is its disk mounted") as failure:
            call()
        assert failure.value.kind is StoreErrorKind.NO_BUCKET
        assert not failure.value.is_transient
    assert not root.exists()


@pytest.mark.parametrize(
    ("number", "kind", "is_transient"),
    [
        (errno.ENOSPC, StoreErrorKind.FULL, False),
        (errno.EDQUOT, StoreErrorKind.FULL, False),
        (errno.EACCES, StoreErrorKind.DENIED, False),
        (errno.EROFS, StoreErrorKind.DENIED, False),
        (errno.EIO, StoreErrorKind.UNAVAILABLE, True),
        (errno.ESTALE, StoreErrorKind.UNAVAILABLE, True),
    ],
)
def test_errors_of_the_system_are_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: StoreErrorKind, is_transient: bool
) -> None:
    store = FileObjects(str(tmp_path))

    def fails(fd: int, data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fails)
        with pytest.raises(StoreError, match=os.strerror(number)) as failure:
            store.put_new("a", b"x")
    assert (failure.value.kind, failure.value.is_transient) == (kind, is_transient)
    assert os.listdir(tmp_path / ".tmp") == []


def test_a_file_system_without_links_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fails)
    with pytest.raises(StoreError, match="has no hard links"):
        FileObjects(str(tmp_path)).put_new("a", b"x")
