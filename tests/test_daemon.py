"""The tree of tasks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from topics.bucket.local_note import BucketNote, write_note
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_object import BucketRefused
from topics.daemon import Daemon
from topics.daemon_start import StartRefusal, is_new, remove_made, settle_bucket
from topics.storage.files.datadir import open_data_dir
from topics.storage.files.fs import OsFs


def test_a_background_task_that_has_ended_is_not_started_again() -> None:
    calls: list[str] = []

    async def task() -> None:
        await trio.lowlevel.checkpoint()
        calls.append("run")

    async def main() -> None:
        daemon = object.__new__(Daemon)
        with trio.fail_after(10):
            await daemon._restarted("task", task)

    trio.run(main)
    assert calls == ["run"]


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_lease_that_is_lost_during_the_start_is_no_refused_start(is_lost: bool) -> None:
    """A refused start is not tried again (exit code 2); one that has lost the bucket is (exit code 3)."""
    lease = Lease(6000, 0, lambda: 0)
    if is_lost:
        lease.lose("another daemon was faster")
    archive: Any = SimpleNamespace()

    async def refused() -> None:
        raise BucketRefused("it is not this daemon's")

    archive.settle_start = refused
    if is_lost:
        trio.run(settle_bucket, archive, lease)
    else:
        with pytest.raises(StartRefusal):
            trio.run(settle_bucket, archive, lease)


@pytest.mark.parametrize(("topics", "bucket"), [(0, ""), (1, ""), (0, "a bucket that names it")])
def test_a_refused_start_leaves_nothing_of_a_directory_that_is_new(topics: int, bucket: str, tmp_path: Path) -> None:
    root = tmp_path / "data"
    datadir, fs = open_data_dir(OsFs(), str(root)), OsFs()
    Path(datadir.lock_path).touch()
    assert is_new(datadir)
    write_note(fs, datadir, BucketNote(bucket=bucket, dir="d"))
    assert not is_new(datadir)
    before = sorted(path.name for path in root.rglob("*"))
    engine = SimpleNamespace(
        store=SimpleNamespace(datadir=datadir), fs=fs, registry=SimpleNamespace(by_id=dict.fromkeys(range(topics)))
    )
    remove_made(cast(Any, engine))
    assert sorted(path.name for path in root.rglob("*")) == (before if topics or bucket else [])


@pytest.mark.parametrize(
    "name", ["wal/wal-00000000000000000000.log", "topics/0000000000000001", "diverged-1", "meta/x"]
)
def test_a_directory_in_which_another_daemon_has_lived_is_not_new(name: str, tmp_path: Path) -> None:
    """It may have begun and ended between the first look of this one and its lock."""
    datadir = open_data_dir(OsFs(), str(tmp_path))
    (tmp_path / "lost+found").mkdir()
    Path(datadir.lock_path).touch()
    assert is_new(datadir)
    (tmp_path / name).touch()
    assert not is_new(datadir)
