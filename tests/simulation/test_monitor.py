"""The monitor finds unsafe orders at the operation that commits them, in runs that never crash."""

from __future__ import annotations

import errno

import pytest

from tests.simulation.disk import Fault, SimFs
from tests.simulation.monitor import OrderingMonitor
from topics.storage.files.fs import File, write_all, write_atomic


@pytest.fixture
def fs() -> SimFs:
    return SimFs()


@pytest.fixture
def monitor(fs: SimFs) -> OrderingMonitor:
    return OrderingMonitor(fs)


def put(fs: SimFs, path: str, data: bytes) -> File:
    file = fs.open(path, create=True)
    write_all(file, data, 0)
    return file


def test_a_durable_file_may_be_published(fs: SimFs, monitor: OrderingMonitor) -> None:
    write_atomic(fs, "/f", b"one")
    write_atomic(fs, "/f", b"two")
    put(fs, "/x", b"").close()
    fs.rename("/x", "/x.tmp")
    fs.mkdir("/d")
    put(fs, "/d/f", b"unsynced")
    fs.rename("/d", "/e")
    monitor.check()


def test_publishing_content_that_is_not_durable_fails(fs: SimFs, monitor: OrderingMonitor) -> None:
    put(fs, "/f.tmp", b"data")
    with pytest.raises(AssertionError, match=r"publishes /f before the content of /f.tmp is durable"):
        fs.rename("/f.tmp", "/f")
    assert fs.listdir("/") == ["f.tmp"]
    with pytest.raises(AssertionError, match="publishes"):
        monitor.check()


def test_publishing_after_a_failed_sync_fails_though_nothing_is_pending(fs: SimFs, monitor: OrderingMonitor) -> None:
    file = put(fs, "/f.tmp", b"data")
    fs.inject(Fault(name="fdatasync", error=errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        file.fdatasync()
    file.fdatasync()
    with pytest.raises(AssertionError, match="publishes"):
        fs.rename("/f.tmp", "/f")


def test_a_rename_that_fails_by_itself_is_no_violation(fs: SimFs, monitor: OrderingMonitor) -> None:
    with pytest.raises(FileNotFoundError):
        fs.rename("/missing", "/f")
    monitor.check()


@pytest.mark.parametrize("name", ["wal-1.log", "seg-1.data", "snapshot.1.cbor"])
def test_a_file_may_go_only_when_what_replaces_it_is_durable(fs: SimFs, monitor: OrderingMonitor, name: str) -> None:
    monitor.expect_before_unlink(lambda path: monitor.is_durable("/snapshot.2.cbor"))
    put(fs, "/" + name, b"")
    with pytest.raises(AssertionError, match=f"unlinks /{name} before what replaces it is durable"):
        fs.unlink("/" + name)
    file = put(fs, "/snapshot.2.cbor", b"new")
    file.fdatasync()
    with pytest.raises(AssertionError, match="unlinks"):
        fs.unlink("/" + name)
    fs.sync_dir("/")
    fs.unlink("/" + name)
    assert len(monitor.failures) == 2


def test_files_that_are_the_only_copy_of_nothing_may_always_go(fs: SimFs, monitor: OrderingMonitor) -> None:
    monitor.expect_before_unlink(lambda path: False)
    for name in ("/wal-1.log.tmp", "/seg-1.idx", "/snapshot.1.cbor.tmp"):
        put(fs, name, b"")
        fs.unlink(name)
    monitor.check()


def test_an_ack_needs_its_bytes_and_the_name_of_their_file_durable(fs: SimFs, monitor: OrderingMonitor) -> None:
    with pytest.raises(AssertionError, match="does not exist"):
        monitor.ack("/wal.log", 4)
    file = put(fs, "/wal.log", b"data")
    with pytest.raises(AssertionError, match="bytes from 0 are not all durable"):
        monitor.ack("/wal.log", 4)
    file.fdatasync()
    with pytest.raises(AssertionError, match="its name is not durable"):
        monitor.ack("/wal.log", 4)
    fs.sync_dir("/")
    file.pwrite(b"more", 4)
    monitor.ack("/wal.log", 4)
    monitor.must_be_durable(fs, "/wal.log", 1, 3)
    with pytest.raises(AssertionError, match="not all durable"):
        monitor.must_be_durable(fs, "/wal.log", 3, 5)
    assert monitor.acked == {"/wal.log": 4}
    assert len(monitor.failures) == 4
