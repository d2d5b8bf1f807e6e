"""The data directory: its layout, what opening it creates and refuses, and its lock."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tests.simulation.disk import Fault, SimCrash, SimFs
from tests.simulation.disk_state import CRASH_KINDS, CrashKind
from topics.storage.files.datadir import (
    DataDir,
    DataDirError,
    discover_shards,
    lock_data_dir,
    open_data_dir,
    parse_segment_name,
    parse_snapshot_name,
    parse_topic_name,
    parse_wal_name,
    raise_format,
    wal_name,
    wal_path,
)
from topics.storage.files.fs import Fs, OsFs, write_atomic

ROOT = "/var/topics"


def touch(fs: Fs, path: str) -> None:
    fs.open(path, create=True).close()


# ----------------------------------------------------------------- names


def test_the_layout_is_the_one_of_the_storage_page() -> None:
    datadir = DataDir("/d")
    assert datadir.format_path == "/d/FORMAT"
    assert datadir.lock_path == "/d/LOCK"
    assert datadir.snapshot_path(12) == "/d/meta/snapshot.12.cbor"
    assert datadir.shard_dir(0, 1) == "/d/wal"
    assert datadir.shard_dir(0, 2) == "/d/wal/shard-00"
    assert datadir.shard_dir(11, 16) == "/d/wal/shard-11"
    assert wal_path("/d/wal", 7) == "/d/wal/wal-00000000000000000007.log"
    assert datadir.manifest_path(0xABC) == "/d/topics/0000000000000abc/topic.cbor"
    assert datadir.segment_path(1, 5, "idx") == "/d/topics/0000000000000001/seg-00000000000000000005.idx"


def test_names_are_parsed_back_and_only_those() -> None:
    assert parse_wal_name(wal_name(2**64 - 1)) == 2**64 - 1
    assert parse_snapshot_name("snapshot.10.cbor") == 10
    assert parse_topic_name("0000000000000abc") == 0xABC
    assert parse_segment_name("seg-00000000000000000005.data") == 5
    for name in ("wal-1.log", wal_name(1) + ".tmp", wal_name(1) + "\n", "x" + wal_name(1), "CURRENT"):
        assert parse_wal_name(name) is None
    for name in ("snapshot.01.cbor", "snapshot.1.cbor.tmp", "snapshot.-1.cbor"):
        assert parse_snapshot_name(name) is None
    for name in ("abc", "0000000000000ABC", "0000000000000abc.gone"):
        assert parse_topic_name(name) is None
    assert parse_segment_name("seg-00000000000000000005.idx") is None


# ----------------------------------------------------------------- opening


def test_opening_creates_the_directories_and_format(tmp_path: Path) -> None:
    root = str(tmp_path / "deep" / "data")
    datadir = open_data_dir(OsFs(), root)
    assert json.loads(Path(datadir.format_path).read_bytes()) == {"wal": 3, "segment": 3, "snapshot": 3}
    assert OsFs().listdir(root) == ["FORMAT", "meta", "topics", "wal"]
    assert open_data_dir(OsFs(), root) == datadir


def test_what_opening_created_survives_a_crash_of_the_machine() -> None:
    fs = SimFs()
    open_data_dir(fs, ROOT)
    assert fs.tree(durable=True) == fs.tree()
    assert fs.entry_durable(ROOT + "/FORMAT")


def test_directories_of_a_start_that_was_killed_are_synced_by_the_next() -> None:
    fs = SimFs()
    open_data_dir(fs, ROOT)
    again = SimFs()
    again.mkdir(ROOT + "/meta")
    open_data_dir(again, ROOT)
    assert again.tree(durable=True) == fs.tree()


@pytest.mark.parametrize("kind", CRASH_KINDS)
def test_a_crash_at_any_step_of_the_first_start_leaves_a_directory_that_can_be_opened(kind: CrashKind) -> None:
    clean = SimFs()
    open_data_dir(clean, ROOT)
    for step in range(clean.mutations):
        for applied in (False, True):
            fs = SimFs(crash_at=step, crash_applied=applied)
            with pytest.raises(SimCrash):
                open_data_dir(fs, ROOT)
            for born in (fs.after_process_kill(), fs.after_machine_crash(kind, step)):
                open_data_dir(born, ROOT)
                durable = {path: data for path, data in born.tree(durable=True).items() if not path.endswith(".tmp")}
                assert durable == clean.tree()


def test_a_root_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for root in ("./topics-data", "../beside/data"):
        assert open_data_dir(OsFs(), root).root == root
    assert (tmp_path / "work" / "topics-data" / "FORMAT").exists()
    assert (tmp_path / "beside" / "data" / "FORMAT").exists()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_ancestors_that_cannot_be_synced_one_by_one_are_synced_together(number: int) -> None:
    fs = SimFs(faults=[Fault(name="sync_dir", path="/", error=number)])
    open_data_dir(fs, ROOT)
    assert any(op.name == "sync_all" for op in fs.ops)


@pytest.mark.parametrize(
    "content",
    [
        b'{"wal":4,"segment":3,"snapshot":3}',
        b'{"wal":2,"segment":0,"snapshot":2}',
        b'{"wal":2,"segment":2,"snapshot":1.0}',
        b'{"wal":1,"segment":1}',
        b'{"wal":1,"segment":1,"snapshot":1,"index":1}',
        b'{"wal":true,"segment":1,"snapshot":1}',
        b"[1]",
        b'{"wal":1',
        b"",
        b"\xff\xfe",
    ],
)
def test_a_format_that_is_not_ours_is_refused_with_what_was_found_and_what_is_supported(content: bytes) -> None:
    fs = SimFs()
    open_data_dir(fs, ROOT)
    write_atomic(fs, ROOT + "/FORMAT", content)
    with pytest.raises(DataDirError) as refused:
        open_data_dir(fs, ROOT)
    message = str(refused.value)
    assert "/var/topics/FORMAT" in message
    assert "found" in message
    assert '{"wal":3,"segment":3,"snapshot":3}' in message
    assert fs.read(ROOT + "/FORMAT") == content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b'{"wal":2',
        b'{"wal":2}',
        b'{"wal":-2,"segment":2,"snapshot":2}',
        b"[" * 3000,
        b"9" * 500,
    ],
)
def test_a_damaged_format_is_refused_in_one_line_that_says_what_to_do(content: bytes) -> None:
    fs = SimFs()
    open_data_dir(fs, ROOT)
    write_atomic(fs, ROOT + "/FORMAT", content)
    with pytest.raises(DataDirError) as refused:
        open_data_dir(fs, ROOT)
    message = str(refused.value)
    assert message.startswith(
        '/var/topics/FORMAT is damaged: it should hold the line {"wal":3,"segment":3,"snapshot":3}'
    )
    assert "Restore it from a copy of the directory" in message
    assert "write that line into it" in message
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize(
    "content", [b'{"wal":4,"segment":3,"snapshot":3}', b'{"wal":3,"segment":3,"snapshot":3,"index":1}']
)
def test_a_format_of_a_newer_version_is_refused_and_the_version_asked_for(content: bytes) -> None:
    fs = SimFs()
    open_data_dir(fs, ROOT)
    write_atomic(fs, ROOT + "/FORMAT", content)
    with pytest.raises(DataDirError, match=r"formats this version does not know.*start the version that wrote it"):
        open_data_dir(fs, ROOT)


def format_on_disk(fs: SimFs) -> object:
    content = fs.tree(durable=True)[ROOT + "/FORMAT"]
    assert content is not None
    return json.loads(content)


@pytest.mark.parametrize(
    "older",
    [
        '{"wal":1,"segment":1,"snapshot":1}',
        '{"wal":2,"segment":1,"snapshot":2}\n',
        '{"wal":2,"segment":2,"snapshot":2}\n',
    ],
)
def test_an_older_format_is_raised_durably_and_whatever_happens_meanwhile_it_stays_readable(older: str) -> None:
    clean = SimFs()
    open_data_dir(clean, ROOT)
    write_atomic(clean, ROOT + "/FORMAT", older.encode())
    steps = clean.mutations
    raise_format(clean, open_data_dir(clean, ROOT))
    raised = {"wal": 3, "segment": 3, "snapshot": 3}
    assert format_on_disk(clean) == raised
    for step in range(steps, clean.mutations):
        fs = SimFs(crash_at=step, crash_applied=True)
        open_data_dir(fs, ROOT)
        write_atomic(fs, ROOT + "/FORMAT", older.encode())
        with pytest.raises(SimCrash):
            raise_format(fs, open_data_dir(fs, ROOT))
        born = fs.after_machine_crash("tear", step)
        assert json.loads(born.read(ROOT + "/FORMAT")) in (json.loads(older), raised)
        raise_format(born, open_data_dir(born, ROOT))
        assert format_on_disk(born) == raised


@pytest.mark.parametrize(
    "path", ["wal/wal-00000000000000000000.log", "wal/shard-03/CURRENT", "meta/snapshot.1.cbor", "topics/00/x"]
)
def test_content_without_format_is_refused_and_left_alone(path: str) -> None:
    fs = SimFs()
    fs.mkdir(f"{ROOT}/{path}".rpartition("/")[0])
    touch(fs, f"{ROOT}/{path}")
    before = fs.tree()
    with pytest.raises(DataDirError, match=r"/var/topics/FORMAT is missing, but /var/topics/\w+ has content"):
        open_data_dir(fs, ROOT)
    assert fs.tree() == before


def test_a_directory_with_foreign_files_and_empty_subdirectories_is_taken() -> None:
    fs = SimFs()
    fs.mkdir(ROOT + "/lost+found")
    fs.mkdir(ROOT + "/wal")
    open_data_dir(fs, ROOT)
    assert fs.exists(ROOT + "/FORMAT")


def test_io_errors_say_which_directory_and_why() -> None:
    with pytest.raises(DataDirError, match=r"/var/topics cannot be opened: .*No space left"):
        open_data_dir(SimFs(faults=[Fault(name="pwrite", error=errno.ENOSPC)]), ROOT)
    fs = SimFs()
    open_data_dir(fs, ROOT)
    fs.inject(Fault(name="read", error=errno.EIO))
    with pytest.raises(DataDirError, match="Input/output error"):
        open_data_dir(fs, ROOT)


def test_a_file_in_place_of_the_directory_is_refused() -> None:
    fs = SimFs()
    fs.mkdir("/var")
    touch(fs, ROOT)
    with pytest.raises(DataDirError, match="cannot be opened"):
        open_data_dir(fs, ROOT)
    with pytest.raises(DataDirError, match="cannot be locked"):
        lock_data_dir(fs, DataDir(ROOT), "pid 1")


# ----------------------------------------------------------------- lock


def test_a_second_daemon_is_told_who_has_the_directory(tmp_path: Path) -> None:
    datadir = DataDir(str(tmp_path / "data"))
    handle = lock_data_dir(OsFs(), datadir, "pid 4711 on host a\n")
    with pytest.raises(DataDirError, match="in use by pid 4711 on host a "):
        lock_data_dir(OsFs(), datadir, "pid 4712")
    handle.release()
    lock_data_dir(OsFs(), datadir, "pid 4712").release()


def test_the_lock_comes_before_format_and_does_not_count_as_content() -> None:
    fs = SimFs()
    lock_data_dir(fs, DataDir(ROOT), "pid 1")
    assert fs.listdir(ROOT) == ["LOCK"]
    open_data_dir(fs, ROOT)
    assert fs.exists(ROOT + "/FORMAT")


def test_a_killed_daemon_holds_no_lock() -> None:
    fs = SimFs()
    lock_data_dir(fs, DataDir(ROOT), "pid 1")
    lock_data_dir(fs.after_process_kill(), DataDir(ROOT), "pid 2")


# ----------------------------------------------------------------- shards


def test_shards_of_every_layout_are_found() -> None:
    fs = SimFs()
    datadir = open_data_dir(fs, ROOT)
    assert discover_shards(fs, datadir) == []
    touch(fs, datadir.wal_dir + "/CURRENT")
    assert discover_shards(fs, datadir) == []
    touch(fs, wal_path(datadir.wal_dir, 0))
    assert discover_shards(fs, datadir) == [(0, datadir.wal_dir)]
    for name in ("shard-10", "shard-02", "shard-00", "shard-xx", "shard-02.aside"):
        fs.mkdir(f"{datadir.wal_dir}/{name}")
    assert discover_shards(fs, datadir) == [
        (0, datadir.wal_dir),
        (0, datadir.wal_dir + "/shard-00"),
        (2, datadir.wal_dir + "/shard-02"),
        (10, datadir.wal_dir + "/shard-10"),
    ]
