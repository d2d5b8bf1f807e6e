"""The contract of `SegmentStore`, for a directory on the real file system and on the simulated one, and what crashes
leave of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulation.disk import Fault, SimCrash, SimFs
from tests.simulation.disk_state import CRASH_KINDS, CrashKind
from topics.storage.files.fs import Fs, OsFs, join, write_all
from topics.storage.segments.segment_store import DirectorySegmentStore, SegmentStore

ROOT = "/var/cold"
NAME = "seg-00000000000000000001.data"
OLD = b"old " * 300
NEW = [b"new " * 100, b"", b"and more " * 200]


@pytest.fixture(params=["os", "sim"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Fs:
    fs: Fs = OsFs() if request.param == "os" else SimFs()
    fs.mkdir(str(tmp_path))
    return fs


@pytest.fixture
def store(fs: Fs, tmp_path: Path) -> SegmentStore:
    return DirectorySegmentStore(fs, str(tmp_path / "a" / "cold"))


def content(store: SegmentStore, topic_id: int, name: str) -> bytes | None:
    """Return the whole object; None if it does not exist."""
    try:
        return store.read_range(topic_id, name, 0, 1 << 40)
    except FileNotFoundError:
        return None


# ----------------------------------------------------------------- objects


def test_an_object_is_what_was_put_last(store: SegmentStore) -> None:
    assert store.put(1, NAME, [OLD]) == len(OLD)
    assert store.put(1, NAME, iter(NEW)) == len(b"".join(NEW)) == store.length(1, NAME)
    assert content(store, 1, NAME) == b"".join(NEW)
    assert store.read_range(1, NAME, 4, 8) == b"new new "
    assert store.put(1, "topic.cbor", []) == 0
    assert content(store, 1, "topic.cbor") == b""


def test_a_read_is_short_only_at_the_end(store: SegmentStore) -> None:
    store.put(1, NAME, [b"0123456789"])
    assert store.read_range(1, NAME, 8, 5) == b"89"
    assert store.read_range(1, NAME, 10, 5) == store.read_range(1, NAME, 1000, 5) == b""


def test_objects_of_different_topics_have_nothing_to_do_with_each_other(store: SegmentStore) -> None:
    store.put(2**64 - 1, NAME, [b"a"])
    store.put(1, NAME, [b"b"])
    store.put(1, "topic.cbor", [b"c"])
    assert store.topics() == [1, 2**64 - 1]
    assert store.list(1) == [NAME, "topic.cbor"]
    assert store.list(2**64 - 1) == [NAME]
    store.delete(1, NAME)
    assert (store.exists(1, NAME), store.exists(2**64 - 1, NAME)) == (False, True)


def test_a_missing_object_is_not_found_and_may_be_deleted(store: SegmentStore) -> None:
    for _ in range(2):
        assert (store.topics(), store.list(1), store.exists(1, NAME)) == ([], [], False)
        with pytest.raises(FileNotFoundError):
            store.read_range(1, NAME, 0, 1)
        with pytest.raises(FileNotFoundError):
            store.length(1, NAME)
        with pytest.raises(FileNotFoundError):
            store.patch(1, NAME, [(0, b"x")])
        store.delete(1, NAME)
        store.delete_topic(1)
        store.finish_deletions()
        store.put(1, NAME, [b"x"])
        store.delete(1, NAME)
        store.delete(1, NAME)
        store.delete_topic(1)


def test_patches_overwrite_in_place_and_never_extend(store: SegmentStore) -> None:
    store.put(1, NAME, [b"0123456789"])
    store.patch(1, NAME, [(9, b"z"), (0, b"ab"), (4, b"")])
    store.patch(1, NAME, [])
    assert content(store, 1, NAME) == b"ab2345678z"
    for patches in ([(0, b"x"), (9, b"yz")], [(0, b"x"), (-1, b"y")]):
        with pytest.raises(OSError, match="a patch up to") as caught:
            store.patch(1, NAME, patches)
        assert caught.value.errno == errno.EINVAL
    assert content(store, 1, NAME) == b"ab2345678z"


def test_chunks_that_raise_leave_the_object_as_it_was(fs: Fs, store: SegmentStore, tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("no more")

    store.put(1, NAME, [OLD])
    for name in (NAME, "topic.cbor"):
        with pytest.raises(ValueError, match="no more"):
            store.put(1, name, chunks())
    assert content(store, 1, NAME) == OLD
    assert fs.listdir(str(tmp_path / "a" / "cold" / "topics" / f"{1:016x}")) == [NAME]


def test_a_deleted_topic_is_gone_with_all_its_files(fs: Fs, store: SegmentStore, tmp_path: Path) -> None:
    for name in (NAME, "topic.cbor"):
        store.put(1, name, [OLD])
    store.put(2, NAME, [OLD])
    store.delete_topic(1)
    store.delete_topic(1)
    assert (store.topics(), store.list(1)) == ([2], [])
    assert fs.listdir(str(tmp_path / "a" / "cold" / "topics")) == [f"{2:016x}"]
    store.put(1, NAME, [b"again"])
    assert content(store, 1, NAME) == b"again"


def test_a_directory_that_somebody_removed_is_made_again(fs: Fs, store: SegmentStore, tmp_path: Path) -> None:
    store.put(1, NAME, [OLD])
    root = str(tmp_path / "a" / "cold")
    fs.rename(root, str(tmp_path / "away"))
    assert (store.topics(), content(store, 1, NAME)) == ([], None)
    store.put(1, NAME, [b"new"])
    assert content(store, 1, NAME) == b"new"


def test_half_made_and_half_deleted_things_are_not_listed(fs: Fs, store: SegmentStore, tmp_path: Path) -> None:
    store.put(1, NAME, [OLD])
    topics_dir = str(tmp_path / "a" / "cold" / "topics")
    fs.mkdir(join(topics_dir, f"{2:016x}.deleted"))
    fs.mkdir(join(topics_dir, "lost+found"))
    for path in (join(topics_dir, f"{2:016x}.deleted", NAME), join(topics_dir, f"{1:016x}", NAME + ".tmp")):
        file = fs.open(path, create=True)
        write_all(file, b"rest", 0)
        file.close()
    assert (store.topics(), store.list(1)) == ([1], [NAME])
    store.finish_deletions()
    assert fs.listdir(topics_dir) == [f"{1:016x}", "lost+found"]


def test_what_an_interrupted_call_has_left_does_not_get_in_the_way(fs: Fs, store: SegmentStore, tmp_path: Path) -> None:
    store.put(1, NAME, [OLD])
    directory = str(tmp_path / "a" / "cold" / "topics" / f"{1:016x}")
    fs.mkdir(directory + ".deleted")
    for path in (join(directory + ".deleted", NAME), join(directory, NAME + ".tmp")):
        file = fs.open(path, create=True)
        write_all(file, b"x" * 5000, 0)
        file.close()
    store.put(1, NAME, NEW)
    assert content(store, 1, NAME) == b"".join(NEW)
    store.delete_topic(1)
    assert fs.listdir(str(tmp_path / "a" / "cold" / "topics")) == []


def test_files_and_directories_are_the_owners_alone(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        DirectorySegmentStore(OsFs(), str(tmp_path / "cold")).put(1, NAME, [b"x"])
    finally:
        os.umask(previous)
    for path in (tmp_path / "cold").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


# ----------------------------------------------------------------- crashes


Action = Callable[[SegmentStore], object]


def crashes(prepare: Action, act: Action, kind: CrashKind) -> Iterator[SimFs]:
    """Return the disks after a crash of the machine before or after any step of `act`, and after a kill there with a
    crash soon after."""
    for restarted in (False, True):  # a store that is new to its directories syncs them
        clean = SimFs()
        _run(clean, prepare, nothing, restarted)
        before = clean.mutations
        clean = SimFs()
        _run(clean, prepare, act, restarted)
        for step in range(before, clean.mutations):
            for applied in (False, True):
                fs = SimFs(crash_at=step, crash_applied=applied)
                with pytest.raises(SimCrash):
                    _run(fs, prepare, act, restarted)
                yield fs.after_process_kill()
                yield fs.after_process_kill().after_machine_crash(kind, step)
                yield fs.after_machine_crash(kind, step)


def _run(fs: SimFs, prepare: Action, act: Action, restarted: bool) -> None:
    store = DirectorySegmentStore(fs, ROOT)
    prepare(store)
    act(DirectorySegmentStore(fs, ROOT) if restarted else store)


def nothing(store: SegmentStore) -> None:
    pass


def put_old(store: SegmentStore) -> None:
    store.put(1, NAME, [OLD])


def put_new(store: SegmentStore) -> None:
    store.put(1, NAME, NEW)


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_a_crash_at_any_step_of_a_put_leaves_all_of_the_object_or_nothing(kind: CrashKind) -> None:
    for fs in crashes(nothing, put_new, kind):
        store = DirectorySegmentStore(fs, ROOT)
        assert content(store, 1, NAME) in (None, b"".join(NEW))
        assert store.list(1) in ([], [NAME])
        put_new(store)
        assert content(DirectorySegmentStore(fs.after_machine_crash("drop", 0), ROOT), 1, NAME) == b"".join(NEW)


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_a_crash_at_any_step_of_a_replacing_put_leaves_the_old_or_the_new_object(kind: CrashKind) -> None:
    seen = {content(DirectorySegmentStore(fs, ROOT), 1, NAME) for fs in crashes(put_old, put_new, kind)}
    assert seen == {OLD, b"".join(NEW)}


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_what_returned_survives_the_loss_of_everything_that_was_not_synced(kind: CrashKind) -> None:
    fs = SimFs()
    store = DirectorySegmentStore(fs, ROOT)

    def after_crash() -> DirectorySegmentStore:
        return DirectorySegmentStore(fs.after_machine_crash(kind, 1), ROOT)

    put_new(store)
    assert content(after_crash(), 1, NAME) == b"".join(NEW)
    store.put(1, "topic.cbor", [b"x"])
    store.put(2, NAME, [b"y"])
    assert (after_crash().list(1), after_crash().topics()) == ([NAME, "topic.cbor"], [1, 2])
    store.patch(1, NAME, [(0, b"NEW")])
    assert after_crash().read_range(1, NAME, 0, 4) == b"NEW "
    store.delete(1, NAME)
    assert after_crash().list(1) == ["topic.cbor"]
    store.delete_topic(1)
    assert after_crash().topics() == [2]
    store.put(1, NAME, [b"again"])
    assert content(after_crash(), 1, NAME) == b"again"


def test_a_put_into_what_a_killed_process_has_left_unsynced_is_durable() -> None:
    clean = SimFs()
    put_new(DirectorySegmentStore(clean, ROOT))
    for step in range(clean.mutations):
        fs = SimFs(crash_at=step)
        with pytest.raises(SimCrash):
            put_new(DirectorySegmentStore(fs, ROOT))
        born = fs.after_process_kill()
        put_new(DirectorySegmentStore(born, ROOT))
        assert content(DirectorySegmentStore(born.after_machine_crash("drop", 0), ROOT), 1, NAME) == b"".join(NEW)


def test_a_delete_that_finds_the_name_gone_makes_that_durable_all_the_same() -> None:
    fs = SimFs()
    store = DirectorySegmentStore(fs, ROOT)
    put_old(store)
    fs.unlink(join(ROOT, "topics", f"{1:016x}", NAME))
    store.delete(1, NAME)
    assert not DirectorySegmentStore(fs.after_machine_crash("drop", 0), ROOT).exists(1, NAME)


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_a_crash_in_a_patch_leaves_every_other_byte_as_it_was(kind: CrashKind) -> None:
    patched = bytearray(OLD)
    patched[1:4], patched[700:702] = b"OLD", b"XX"
    named = {*range(1, 4), 700, 701}

    def patch(store: SegmentStore) -> None:
        store.patch(1, NAME, [(1, b"OLD"), (700, b"XX")])

    for fs in crashes(put_old, patch, kind):
        store = DirectorySegmentStore(fs, ROOT)
        data = content(store, 1, NAME)
        assert data is not None
        assert len(data) == len(OLD)
        assert all(data[i] == OLD[i] for i in range(len(OLD)) if i not in named)
        if kind != "garble":
            assert all(data[i] in (OLD[i], patched[i]) for i in named)
        patch(store)
        assert content(DirectorySegmentStore(fs.after_machine_crash("drop", 0), ROOT), 1, NAME) == bytes(patched)


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_a_crash_at_any_step_of_deleting_a_topic_leaves_all_of_it_or_nothing(kind: CrashKind) -> None:
    def prepare(store: SegmentStore) -> None:
        put_old(store)
        store.put(1, "topic.cbor", [OLD])
        store.put(2, NAME, [OLD])

    for fs in crashes(prepare, lambda store: store.delete_topic(1), kind):
        store = DirectorySegmentStore(fs, ROOT)
        assert store.list(1) in ([], [NAME, "topic.cbor"])
        store.finish_deletions()
        again = DirectorySegmentStore(fs.after_machine_crash(kind, 1), ROOT)
        assert again.list(1) in ([], [NAME, "topic.cbor"])
        again.delete_topic(1)
        again.finish_deletions()
        assert again.topics() == [2]
        assert content(again, 2, NAME) == OLD


# ----------------------------------------------------------------- failures


@pytest.mark.parametrize("name", ["create", "pwrite", "fdatasync", "rename", "sync_dir", "sync_all", "mkdir"])
@pytest.mark.parametrize("applied", [False, True])
def test_a_put_that_fails_leaves_the_old_object_or_the_new_one_and_no_open_file(name: str, applied: bool) -> None:
    fs = SimFs()
    put_old(DirectorySegmentStore(fs, ROOT))
    store = DirectorySegmentStore(fs, ROOT)
    fault = fs.inject(Fault(name=name, error=errno.EIO, applied=applied))
    if name == "mkdir":
        with pytest.raises(OSError, match="error"):
            store.put(3, NAME, NEW)
    else:
        with pytest.raises(OSError, match="error"):
            put_new(store)
    assert fault.hits == 1
    assert fs.open_files == 0
    assert content(store, 1, NAME) in (OLD, b"".join(NEW))
    if name == "sync_all" and not applied:  # it counts until a restart
        with pytest.raises(OSError, match="error"):
            put_new(store)
        fs.release_anchors()
    put_new(store)
    assert store.list(1) == [NAME]
    assert content(store, 1, NAME) == b"".join(NEW)


def test_a_full_disk_fails_the_put_and_gets_its_space_back() -> None:
    fs = SimFs(capacity=2000)
    store = DirectorySegmentStore(fs, ROOT)
    put_old(store)
    with pytest.raises(OSError, match="space") as caught:
        put_new(store)
    assert caught.value.errno == errno.ENOSPC
    assert content(store, 1, NAME) == OLD
    store.put(1, "topic.cbor", [b"x" * 800])
    assert fs.open_files == 0
