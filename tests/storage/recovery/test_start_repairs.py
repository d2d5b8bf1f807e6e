"""Repairs of the log at a start: only bytes that the second home has, and whole or not at all over crashes."""

from __future__ import annotations

import errno
import random
from collections.abc import Generator
from typing import get_args

import pytest

from tests.simulation.disk import SimCrash, SimFs
from tests.simulation.disk_state import CrashKind
from topics.storage.files.fs import join, write_all
from topics.storage.files.swapped_files import finish_swaps
from topics.storage.recovery.damage import BadRange
from topics.storage.recovery.start_repairs import StartRepairs, repair_log
from topics.storage.segments.mended_files import SegmentCopy
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.wal.wal_files import LogPosition
from topics.storage.wal.wal_head import WalHead

WAL = "/data/wal"
PATH = join(WAL, "file")
INTACT = random.Random(1).randbytes(3000) + bytes(5000)
DAMAGED = INTACT[:1000] + bytes(700) + INTACT[1700:]
RANGE = BadRange(PATH, 7, WalHead(1, 24), 990, 1720)


class Rounds:
    """A second home that has the log up to some offset, in pieces; or does not answer behind some pieces."""

    def __init__(self, end: int, answers: int = 1000) -> None:
        self.end = end
        self.asked = 0
        self._answers = answers

    def segment(self, topic_id: int, first: int, salt: int) -> SegmentCopy | None:
        raise AssertionError("not asked for")

    def log_positions(self) -> list[LogPosition]:
        return []

    def log_bytes(self, shard: int, ordinal: int, start: int, stop: int) -> Generator[tuple[int, bytes]]:
        assert (shard, ordinal) == (3, 7)
        self.asked += 1
        for number, at in enumerate(range(start, min(self.end, stop), 100)):
            if number >= self._answers:
                raise OSError(errno.EAGAIN, "it does not answer")
            yield at, INTACT[at : min(at + 100, self.end)]


def disk() -> SimFs:
    fs = SimFs(5)
    fs.mkdir("/data")
    fs.anchor("/data")
    fs.mkdir(WAL)
    with fs.open(PATH, create=True) as file:
        write_all(file, DAMAGED, 0)
        file.fdatasync()
    fs.sync_all("/data")
    return fs


def repairs(fs: SimFs, home: Rounds) -> StartRepairs:
    return StartRepairs(home, DirectorySegmentStore(fs, "/data"))


def test_what_the_rounds_have_takes_the_place_of_what_is_damaged() -> None:
    fs, home = disk(), Rounds(2950)
    found = repairs(fs, home)
    assert repair_log(found, fs, 3, RANGE)
    assert fs.read(PATH) == INTACT
    assert fs.read(f"{PATH}.0.damaged") == DAMAGED
    assert (found.log_files, found.repaired_bytes) == (1, 800), "pieces of 100 bytes that differ"
    assert not repair_log(found, fs, 3, RANGE), "no place is repaired twice"


@pytest.mark.parametrize("end", [0, 990, 1000])
def test_without_bytes_that_differ_nothing_is_changed(end: int) -> None:
    fs = disk()
    before = fs.tree()
    found = repairs(fs, Rounds(end))
    assert not repair_log(found, fs, 3, RANGE)
    assert fs.tree() == before
    assert found.log_files == 0


def test_a_file_whose_header_is_damaged_is_taken_from_its_beginning() -> None:
    fs = disk()
    with fs.open(PATH) as file:
        write_all(file, bytes(30), 0)
    where = RANGE._replace(head=WalHead(None, 24, "its header is damaged"))
    assert repair_log(repairs(fs, Rounds(3000)), fs, 3, where)
    assert fs.read(PATH) == INTACT


def test_a_home_that_stops_answering_is_not_asked_again_and_nothing_is_changed() -> None:
    fs, home = disk(), Rounds(3000, answers=3)
    before = fs.tree()
    found = repairs(fs, home)
    assert not repair_log(found, fs, 3, RANGE)
    assert not repair_log(found, fs, 3, RANGE._replace(start=1500))
    assert (home.asked, found.away) == (1, "it does not answer")
    assert fs.tree() == before


@pytest.mark.parametrize("kind", get_args(CrashKind))
def test_after_a_crash_the_file_is_as_before_or_repaired(kind: CrashKind) -> None:
    whole = disk()
    start = whole.mutations
    assert repair_log(repairs(whole, Rounds(2950)), whole, 3, RANGE)
    seen = set()
    for crash_at in range(whole.mutations - start):
        fs = disk()
        fs.crash_at = fs.mutations + crash_at
        with pytest.raises(SimCrash):
            repair_log(repairs(fs, Rounds(2950)), fs, 3, RANGE)
        after = fs.after_machine_crash(kind, crash_at)
        finish_swaps(after, WAL)
        content = after.read(PATH)
        assert content in (DAMAGED, INTACT)
        seen.add(content)
        if content == DAMAGED:
            assert repair_log(repairs(after, Rounds(2950)), after, 3, RANGE)
    assert seen == {DAMAGED, INTACT}
