"""`meta/clock`: it is read as it was written, or not at all."""

from __future__ import annotations

import errno

import cbor2
import pytest
import xxhash

from tests.simulation.disk import Fault, SimFs
from topics.runtime.window_clock import ClockMark
from topics.storage.files.datadir import DataDir, open_data_dir
from topics.storage.files.fs import write_atomic
from topics.storage.snapshots.clock_mark import read_mark, write_mark

MARK = ClockMark(5, 6, 7, "boot")


@pytest.fixture
def fs() -> SimFs:
    fs = SimFs()
    open_data_dir(fs, "/data")
    return fs


DATA = DataDir("/data")


def test_a_mark_is_read_as_it_was_written_after_a_power_cut_too(fs: SimFs) -> None:
    assert read_mark(fs, DATA) is None
    write_mark(fs, DATA, MARK)
    assert read_mark(fs.after_machine_crash("drop", 1), DATA) == MARK


def test_a_disk_that_does_not_take_it_is_no_error(fs: SimFs) -> None:
    write_mark(fs, DATA, MARK)
    fs.inject(Fault(error=errno.ENOSPC, name="pwrite", path="*clock*", times=None))
    write_mark(fs, DATA, ClockMark(9, 9, 9, "boot"))
    assert read_mark(fs, DATA) == MARK


def test_a_mark_that_was_cut_is_none(fs: SimFs) -> None:
    write_mark(fs, DATA, MARK)
    whole = fs.read(DATA.clock_path)
    for length in range(len(whole)):
        write_atomic(fs, DATA.clock_path, whole[:length])
        assert read_mark(fs, DATA) is None, f"{length} bytes"


def test_a_changed_bit_makes_it_none(fs: SimFs) -> None:
    write_mark(fs, DATA, MARK)
    for bit in range(len(fs.read(DATA.clock_path)) * 8):
        fs.flip_bit(DATA.clock_path, bit // 8, bit % 8)
        assert read_mark(fs, DATA) is None, f"bit {bit}"
        fs.flip_bit(DATA.clock_path, bit // 8, bit % 8)


@pytest.mark.parametrize(
    "body", [[1, 2, 3], [1, 2, 3, 4], [-1, 2, 3, "b"], [1.0, 2, 3, "b"], [2**63, 2, 3, "b"], {"a": 1}, "text"]
)
def test_nonsense_with_a_checksum_is_none(fs: SimFs, body: object) -> None:
    inner = cbor2.dumps(body)
    write_atomic(fs, DATA.clock_path, cbor2.dumps({"clock": inner, "xxh3": xxhash.xxh3_64_intdigest(inner)}))
    assert read_mark(fs, DATA) is None
