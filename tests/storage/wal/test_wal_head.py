"""How WAL files begin: which version they are of, and what is damage."""

from __future__ import annotations

import random

import pytest

from tests.simulation.disk import SimFs
from topics.storage.files.datadir import FORMAT, DataDir, open_data_dir, wal_path
from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.files.fs import write_all, write_atomic
from topics.storage.wal.frames import FrameType, encode_control
from topics.storage.wal.wal_head import HEADLESS, WalHead, new_head, read_heads, wal_format

SALT = 0x9234_5678_90AB_CDEF
DIRECTORY = "/wal"
OLD = encode_control(FrameType.CHECKPOINT_MARK, {"snapshot": 1}).sealed(None, 0) + bytes(5000)
EMPTY = bytes(5000)


def new(ordinal: int) -> bytes:
    return encode_file_header(SALT, ordinal) + bytes(5000)


def heads(*contents: bytes, version: int = 2) -> list[WalHead]:
    """The beginnings of files of a shard, whose ordinals are 0, 10, 20 ..."""
    fs = SimFs()
    fs.mkdir(DIRECTORY)
    for i, content in enumerate(contents):
        handle = fs.open(wal_path(DIRECTORY, 10 * i), create=True)
        write_all(handle, content, 0)
        handle.close()
    found = read_heads(fs, DIRECTORY, [10 * i for i in range(len(contents))], version=version)
    assert fs.open_files == 0
    return [found[10 * i] for i in range(len(contents))]


def bad(head: WalHead) -> bool:
    """Return True if nothing of the file can be verified."""
    assert head.problem is None or head.salt is None
    return head.problem is not None


def test_files_of_both_versions_are_told_apart() -> None:
    assert heads(OLD, OLD, new(20)) == [HEADLESS, HEADLESS, new_head(SALT)]
    assert heads(OLD, EMPTY) == [HEADLESS, HEADLESS], "its rotation was cut short before anything was written"
    assert heads(OLD, b"") == [HEADLESS, HEADLESS]


def test_as_long_as_the_format_says_so_every_file_is_old() -> None:
    assert heads(new(0), b"\xff" * 100, b"", version=1) == [HEADLESS] * 3


@pytest.mark.parametrize("garbage", [b"", b"\0", EMPTY, b"TOPICS2\0", b"\xff" * 100, new(0)[:31], new(7), OLD[:20]])
def test_a_file_that_begins_with_neither_is_damage_and_never_old_or_empty(garbage: bytes) -> None:
    assert bad(*heads(garbage))
    assert bad(heads(new(0), garbage)[1])


def test_behind_a_new_file_there_is_no_old_one() -> None:
    assert bad(heads(new(0), OLD)[1])
    assert bad(heads(OLD, new(10), EMPTY)[2])
    assert bad(heads(OLD, new(10)[1:], OLD)[2])


def test_each_single_bit_is_corrected_and_two_are_damage() -> None:
    whole = new(0)
    for bit in range(8 * FILE_HEADER_BYTES):
        changed = bytearray(whole)
        changed[bit >> 3] ^= 1 << (bit & 7)
        assert heads(bytes(changed)) == [WalHead(SALT, FILE_HEADER_BYTES, corrected=True)]
    rng = random.Random(3)
    for _ in range(300):
        changed = bytearray(whole)
        for bit in rng.sample(range(8 * FILE_HEADER_BYTES), 2):
            changed[bit >> 3] ^= 1 << (bit & 7)
        assert bad(*heads(bytes(changed)))


def test_a_file_that_is_gone_is_left_out() -> None:
    fs = SimFs()
    fs.mkdir(DIRECTORY)
    assert read_heads(fs, DIRECTORY, [0, 10], version=2) == {}


def test_the_version_of_a_directory() -> None:
    fs, datadir = SimFs(), DataDir("/data")
    assert wal_format(fs, datadir) == FORMAT["wal"], "without FORMAT the stricter one"
    open_data_dir(fs, "/data")
    assert wal_format(fs, datadir) == FORMAT["wal"]
    write_atomic(fs, datadir.format_path, b'{"wal":1,"segment":1,"snapshot":1}')
    assert wal_format(fs, datadir) == 1
    write_atomic(fs, datadir.format_path, b"{")
    assert wal_format(fs, datadir) == FORMAT["wal"]
