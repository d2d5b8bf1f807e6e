"""A restore into a directory at which a disk is mounted: nothing can be renamed to it, so it is filled where it is."""

from __future__ import annotations

from typing import get_args

import pytest

from tests.bucket.test_bucket_check import filled, holding
from tests.simulation.disk import SimCrash, SimFs
from tests.simulation.disk_state import CrashKind
from tests.simulation.world import ROOT
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.bucket_restore import BucketRestore, Workers
from topics.bucket.offline.restore_target import RestoreRefused, choose_target
from topics.storage.files.datadir import DataDirError, open_data_dir
from topics.storage.files.fs import join

OF_DISK = join(ROOT, "lost+found")


def mounted(*, crash_at: int | None = None) -> SimFs:
    """A machine with an empty file system at the root of the data directory."""
    fs = SimFs(3)
    fs.mkdir(ROOT)
    fs.mkdir(OF_DISK)
    fs.anchor(ROOT)
    fs.sync_all(ROOT)
    if crash_at is not None:
        fs.crash_at = fs.mutations + crash_at
    return fs


def restore(fs: SimFs, objects: dict[str, bytes] | None = None) -> None:
    reader = BucketReader(holding(filled().objects.objects if objects is None else objects))
    BucketRestore(fs, reader, ROOT, Workers(1), in_place=True).run(choose_target(reader))


def content(fs: SimFs) -> dict[str, bytes | None]:
    """Everything but the lock."""
    return {path: data for path, data in fs.tree().items() if not path.endswith("/LOCK")}


def test_the_directory_is_filled_where_it_is() -> None:
    fs, beside = mounted(), SimFs(3)
    restore(fs)
    reader = BucketReader(holding(filled().objects.objects))
    BucketRestore(beside, reader, ROOT, Workers(1)).run(choose_target(reader))
    assert content(fs) == content(beside) | {OF_DISK: None}
    open_data_dir(fs, ROOT)


def test_a_restore_that_fails_leaves_the_disk_as_it_was() -> None:
    fs = mounted()
    damaged = {
        name: bytes(len(data)) if name.startswith("packs/") else data for name, data in filled().objects.objects.items()
    }
    with pytest.raises(BucketDamaged):
        restore(fs, damaged)
    assert content(fs) == content(mounted())
    restore(fs)


def test_what_lies_on_the_disk_is_not_touched() -> None:
    fs = mounted()
    fs.mkdir(join(ROOT, "precious"))
    before = fs.tree()
    with pytest.raises(RestoreRefused, match="not empty"):
        restore(fs)
    assert fs.tree() == before


@pytest.mark.parametrize("kind", get_args(CrashKind))
def test_after_a_crash_there_is_all_or_a_directory_that_no_daemon_takes(kind: CrashKind) -> None:
    whole = mounted()
    start = whole.mutations
    restore(whole)
    complete = False
    steps = whole.mutations - start
    for crash_at in sorted({*range(0, steps, 7), *range(steps - 8, steps)}):
        fs = mounted(crash_at=crash_at)
        with pytest.raises(SimCrash):
            restore(fs)
        after = fs.after_machine_crash(kind, crash_at)
        try:
            open_data_dir(after.after_process_kill(), ROOT)
        except DataDirError:
            restore(after)
        else:
            complete = after.exists(join(ROOT, "FORMAT"))
            if not complete:
                restore(after)  # nothing of the restore was durable
        rest = {path: data for path, data in content(after).items() if not path.endswith("/RESTORING")}
        assert rest == content(whole)
    assert complete
