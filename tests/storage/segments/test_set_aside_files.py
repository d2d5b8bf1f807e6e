"""Segments out of the directory of a former owner: by content, linked if nobody changes them in place."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable

import pytest

from tests.simulation.disk import Fault, SimFs
from topics.storage.files.datadir import DataDir, segment_name
from topics.storage.files.fs import join, write_all
from topics.storage.segments.segment_pointer import PointedFile
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.set_aside_files import SetAsideFiles

ROOT = "/data"
CONTENT = bytes(range(256)) * 40
PACKED = PointedFile(len(CONTENT), hashlib.sha256(CONTENT).digest(), 3 * len(CONTENT))
PLAIN = PointedFile(len(CONTENT), hashlib.sha256(CONTENT).digest())
HERE = DataDir(ROOT).segment_path(7, 1, "data")


def path_in(directory: str) -> str:
    return DataDir(join(ROOT, directory)).segment_path(7, 1, "data")


@pytest.fixture
def fs() -> SimFs:
    """A data directory with a topic, and two directories that were set aside; the second has the segment."""
    fs = SimFs()
    for directory, content in (("diverged-1", b"other" * 2048), ("diverged-4", CONTENT)):
        fs.mkdir(path_in(directory).rpartition("/")[0])
        with fs.open(path_in(directory), create=True) as file:
            write_all(file, content, 0)
            file.fdatasync()
    fs.mkdir(HERE.rpartition("/")[0])
    fs.settle()
    return fs


def bring(fs: SimFs, file: PointedFile, *, has_room: bool = True, files: SetAsideFiles | None = None) -> str | None:
    files = files or SetAsideFiles(fs, ROOT)
    return files.bring(DirectorySegmentStore(fs, ROOT), 7, 1, file, has_room=has_room)


def names(fs: SimFs) -> list[str]:
    return fs.listdir(HERE.rpartition("/")[0])


def is_linked(fs: SimFs) -> bool:
    return fs._file(HERE) is fs._file(path_in("diverged-4"))


@pytest.mark.parametrize("has_room", [True, False])
def test_a_packed_file_is_linked_as_often_as_it_is_asked_for(fs: SimFs, has_room: bool) -> None:
    for _ in range(2):
        assert bring(fs, PACKED, has_room=has_room) == "linked"
        assert names(fs) == [segment_name(1, "data")]
        assert is_linked(fs)
    assert fs.after_machine_crash("drop", 0).read(HERE) == CONTENT


def test_an_unpacked_file_is_copied_because_flags_are_set_in_it(fs: SimFs) -> None:
    assert bring(fs, PLAIN, has_room=False) is None
    assert names(fs) == []
    assert bring(fs, PLAIN) == "copied"
    assert not is_linked(fs)
    assert fs.after_machine_crash("drop", 0).read(HERE) == CONTENT


def test_without_links_a_packed_file_is_copied(fs: SimFs) -> None:
    fs.inject(Fault(name="link", error=errno.EXDEV, times=2))
    assert bring(fs, PACKED, has_room=False) is None
    assert bring(fs, PACKED) == "copied"
    assert not is_linked(fs)


@pytest.mark.parametrize("name", ["rename", "sync_dir", "fdatasync"])
def test_what_fails_on_the_way_is_passed_on_and_done_again(fs: SimFs, name: str) -> None:
    fs.inject(Fault(name=name, error=errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        bring(fs, PACKED)
    assert bring(fs, PACKED) == "linked"
    assert names(fs) == [segment_name(1, "data")]


def test_only_the_content_counts(fs: SimFs) -> None:
    assert bring(fs, PointedFile(PACKED.size, b"0" * 32, PACKED.unpacked)) is None
    assert bring(fs, PointedFile(PACKED.size - 1, PACKED.hash, PACKED.unpacked)) is None
    assert names(fs) == []


def test_a_file_with_another_content_is_read_once(fs: SimFs) -> None:
    files = SetAsideFiles(fs, ROOT)
    wrong = PointedFile(PACKED.size, b"0" * 32, PACKED.unpacked)
    assert bring(fs, wrong, files=files) is None
    reads = len(fs.ops)
    assert bring(fs, wrong, files=files) is None
    assert not [op for op in fs.ops[reads:] if op.name == "pread"]


def test_what_was_removed_or_cannot_be_read_is_not_there(fs: SimFs) -> None:
    files = SetAsideFiles(fs, ROOT)
    fs.inject(Fault(name="pread", path="*/diverged-4/*", error=errno.EIO))
    assert bring(fs, PACKED, files=files) is None
    fs.unlink(path_in("diverged-1"))
    fs.unlink(path_in("diverged-4"))
    assert bring(fs, PACKED) is None


def test_a_file_that_is_changed_while_it_is_copied_is_not_used(fs: SimFs) -> None:
    """Whoever starts a daemon on the directory to look at it may delete records there."""

    class Changing(DirectorySegmentStore):
        def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
            with fs.open(path_in("diverged-4")) as file:
                write_all(file, b"changed", 100)
            return super().put(topic_id, name, chunks)

    files = SetAsideFiles(fs, ROOT)
    with pytest.raises(OSError, match="changed"):
        files.bring(Changing(fs, ROOT), 7, 1, PLAIN, has_room=True)
    assert names(fs) == []
    assert bring(fs, PLAIN, files=files) is None


def test_a_link_that_was_not_finished_is_not_written_to(fs: SimFs) -> None:
    """The segment comes from the bucket then, in another form."""
    fs.inject(Fault(name="rename", error=errno.EIO))
    with pytest.raises(OSError, match=r".*"):
        bring(fs, PACKED)
    after = fs.after_process_kill()
    DirectorySegmentStore(after, ROOT).put(7, segment_name(1, "data"), [b"another form"])
    assert after.read(path_in("diverged-4")) == CONTENT
