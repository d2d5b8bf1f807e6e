"""Leaves on disk: the portions that checkpoints write, of any sizes, are read as one tree, and no file is removed that
is needed."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.disk import SimFs
from tests.simulation.evidence_lives import tiny_blocks
from topics.evidence.merkle import GrowingTree, Leaves, blank_root
from topics.evidence.proofs import (
    check_consistency,
    check_inclusion,
    prove_consistency,
    prove_inclusion,
    root_of_range,
)
from topics.evidence.record_leaf import BLANK, LEAF_BYTES
from topics.evidence.topic_tree import PendingLeaves, TopicTree, TreeIdentity
from topics.storage.evidence import leaf_files, leaf_reader
from topics.storage.evidence.leaf_files import (
    LeafFile,
    LeavesDamaged,
    decode_leaf_file,
    encode_leaf_file,
    parse_leaf_name,
)
from topics.storage.evidence.leaf_reader import LeafDirectory, RootCache, TreeReader
from topics.storage.evidence.leaf_writer import LeafWriter, StoredLeaves, cut_files, needed_files, remove_obsolete
from topics.storage.files.unsynced_files import UnsyncedFiles

ROOT = "/topics"
TOPIC = f"{ROOT}/1"
IDENTITY = TreeIdentity("0" * 32, 7, "key")
Portion = tuple[int, int]
"""How many leaves of records, and blank ones behind them."""

PORTIONS = st.lists(st.tuples(st.integers(0, 21), st.sampled_from((0, 0, 1, 7, 40))), min_size=1, max_size=9)


@pytest.fixture(autouse=True)
def small() -> Iterator[None]:
    with tiny_blocks():
        yield


class Life:
    """A topic whose leaves are written by several checkpoints."""

    def __init__(self) -> None:
        self.fs = SimFs()
        self.fs.mkdir(ROOT)
        self.stored = StoredLeaves(GrowingTree(), ())
        self.flat: list[bytes] = []

    def checkpoint(self, portion: Portion, *, tidies: bool = True) -> None:
        count, blank = portion
        fresh = [sha256(b"%d" % (len(self.flat) + i)).digest() for i in range(count)]
        self.flat += [*fresh, *[BLANK] * blank]
        files = UnsyncedFiles(self.fs, ROOT, most=64)
        if count or blank:
            writer = LeafWriter(self.fs, TOPIC, IDENTITY, self.stored, files)
            self.stored = writer.write([Leaves(b"".join(fresh), blank)])
        files.sync()
        if tidies and self.flat:
            remove_obsolete(self.fs, TOPIC, IDENTITY, len(self.flat))

    @property
    def tree(self) -> TopicTree:
        return TopicTree(IDENTITY, self.stored.tree, self.stored.blank_runs)

    def reader(self) -> TreeReader:
        pending = PendingLeaves(len(self.flat), ())
        return TreeReader(LeafDirectory(self.fs, TOPIC), IDENTITY, self.stored.blank_runs, pending, RootCache())

    def check(self) -> None:
        """Every leaf, and proofs of some of them and between some sizes."""
        size = len(self.flat)
        whole = grown(self.flat)
        assert (self.stored.tree.size, self.stored.tree.root) == (size, whole.root)
        for index in range(size):
            assert self.reader().leaf(index) == self.flat[index]
        for index in range(0, size, 5):
            path = prove_inclusion(self.reader(), index, size)
            check_inclusion(self.flat[index], index, size, path, whole.root)
        for first in range(1, size, 6):
            path = prove_consistency(self.reader(), first, size)
            check_consistency(first, grown(self.flat[:first]).root, size, whole.root, path)


def grown(leaves: list[bytes]) -> GrowingTree:
    tree = GrowingTree()
    tree.add(Leaves(b"".join(leaves)))
    return tree


@pytest.mark.slow
@given(PORTIONS)
def test_leaves_are_read_as_they_were_written(portions: list[Portion]) -> None:
    life = Life()
    for portion in portions:
        life.checkpoint(portion)
    if life.flat:
        life.check()


@pytest.mark.slow
@given(PORTIONS, st.integers(0, 8))
def test_a_part_that_is_older_than_the_files_finds_its_leaves(portions: list[Portion], at: int) -> None:
    """A manifest cannot be read, and the snapshot has an older part. What is not needed goes, and the checkpoints come
    again."""
    life = Life()
    older = 0
    part = life.stored
    for number, portion in enumerate(portions):
        life.checkpoint(portion)
        if number == at:
            older, part = len(life.flat), life.stored
    later, life.flat, life.stored = life.flat, life.flat[:older], part
    if not later:
        return
    names = life.fs.listdir(TOPIC)
    for name in set(names) - needed_files(names, life.tree):
        life.fs.unlink(f"{TOPIC}/{name}")
    if life.flat:
        life.check()
    for number, portion in enumerate(portions):
        if number > at:
            life.checkpoint(portion)
    if older:
        assert life.flat == later
        life.check()


def test_files_stay_few() -> None:
    life = Life()
    for count in range(1, 51):
        life.checkpoint((1, 0))
        files = [file for name in life.fs.listdir(TOPIC) if (file := parse_leaf_name(name)) is not None]
        assert len(files) <= count // 8 + leaf_files.MAX_PIECES
    life.check()


def test_a_damaged_file_is_passed_over_where_another_one_has_its_leaves() -> None:
    life = Life()
    for _ in range(4):
        life.checkpoint((3, 0), tidies=False)
    sizes = {name: parse_leaf_name(name) for name in life.fs.listdir(TOPIC)}
    block = next(name for name, file in sizes.items() if file is not None and file.leaves == 8)
    life.fs.flip_bit(f"{TOPIC}/{block}", 40, 1)
    reader = life.reader()
    assert [reader.leaf(index) for index in range(6)] == life.flat[:6]
    with pytest.raises(LeavesDamaged, match=block):
        reader.leaf(7)
    life.checkpoint((1, 0))


def test_damaged_roots_of_subtrees_cost_nothing() -> None:
    life = Life()
    life.checkpoint((24, 0))
    name = sorted(life.fs.listdir(TOPIC))[0]
    life.fs.flip_bit(f"{TOPIC}/{name}", len(life.fs.read(f"{TOPIC}/{name}")) - 12, 1)
    life.check()


@pytest.mark.parametrize("at", [0, 9, 17, 25, 24 + 5 * LEAF_BYTES, 24 + 5 * LEAF_BYTES + 3])
def test_one_changed_byte_of_a_file_is_noticed(at: int) -> None:
    blob = bytearray(encode_leaf_file(9, BLANK * 5))
    file = parse_leaf_name(f"seg-{9:020d}-5.mrk")
    assert file is not None
    assert decode_leaf_file(bytes(blob), file) == BLANK * 5
    blob[at] ^= 4
    with pytest.raises(LeavesDamaged):
        decode_leaf_file(bytes(blob), file)


@pytest.mark.parametrize(
    "name",
    ["seg-1-5.mrk", f"seg-{9:020d}-0.mrk", f"seg-{9:020d}-05.mrk", f"seg-{9:020d}.mrk", f"seg-{9:020d}-5.mrk.tmp"],
)
def test_other_names_are_of_no_leaves(name: str) -> None:
    assert parse_leaf_name(name) is None


def test_a_damaged_file_keeps_no_new_leaf_from_the_disk() -> None:
    """It would be joined with others, which fails: then every checkpoint would fail, and the log could not go."""
    life = Life()
    for _ in range(3):
        life.checkpoint((1, 0))
    damaged = f"{TOPIC}/seg-{8:020d}-1.mrk"
    life.fs.flip_bit(damaged, 30, 1)
    for _ in range(20):
        life.checkpoint((1, 0))
    assert life.stored.tree.root == grown(life.flat).root
    for index, leaf in enumerate(life.flat):
        if index != 1:
            assert life.reader().leaf(index) == leaf
    with pytest.raises(LeavesDamaged):
        life.reader().leaf(1)
    files = [file for name in life.fs.listdir(TOPIC) if (file := parse_leaf_name(name)) is not None]
    assert len(files) <= 2 + leaf_files.MAX_PIECES + 2 * leaf_files.MAX_PIECES
    assert life.fs.exists(damaged), "verify names it"


def test_a_disk_that_cannot_read_old_leaves_takes_new_ones() -> None:
    life = Life()
    for _ in range(3):
        life.checkpoint((1, 0))
    with mock.patch.object(LeafDirectory, "read", side_effect=OSError(5, "bad sector")):
        life.checkpoint((7, 0))
    life.check()


def test_a_name_with_more_leaves_than_a_block_has_stands_for_no_file() -> None:
    """It would take the place of all files within it, and they would be removed."""
    life = Life()
    life.checkpoint((12, 0))
    life.fs.open(f"{TOPIC}/seg-{7:020d}-{leaf_files.BLOCK_LEAVES + 1}.mrk", create=True).close()
    life.checkpoint((1, 0))
    life.check()


def test_no_more_of_a_file_is_read_than_it_may_have() -> None:
    life = Life()
    life.checkpoint((5, 0))
    (name,) = life.fs.listdir(TOPIC)
    with life.fs.open(f"{TOPIC}/{name}") as handle:
        handle.truncate(50_000_000)
    with (
        mock.patch.object(SimFs, "read", side_effect=AssertionError("the whole of it was read")),
        pytest.raises(LeavesDamaged, match=name),
    ):
        life.reader().leaf(0)


def test_a_reader_keeps_few_files_and_reads_a_damaged_one_once() -> None:
    life = Life()
    for _ in range(4):
        life.checkpoint((3, 0), tidies=False)
    life.checkpoint((20, 0), tidies=False)
    reads: list[str] = []
    real = LeafDirectory.read

    def counted(self: LeafDirectory, file: LeafFile) -> bytes:
        reads.append(file.name)
        return real(self, file)

    block = f"seg-{7:020d}-8.mrk"
    with mock.patch.object(LeafDirectory, "read", counted):
        with mock.patch.object(leaf_reader, "KEPT_FILES", 2):
            reader = life.reader()
            for index in (0, 8, 16, 0):
                reader.leaf(index)
        assert len(reads) == 4, "the first block was forgotten"
        reads.clear()
        life.fs.flip_bit(f"{TOPIC}/{block}", 40, 1)
        reader = life.reader()
        assert [reader.leaf(index) for index in range(6)] == life.flat[:6]
        assert reads.count(block) == 1


@settings(max_examples=25)
@given(PORTIONS, st.integers(0, 8))
def test_a_topic_that_has_lost_leaves_beyond_an_older_part_has_others_there(portions: list[Portion], at: int) -> None:
    """A manifest cannot be read, and salvage gives up the log behind the part of the snapshot."""
    life = Life()
    older, part = 0, life.stored
    for number, portion in enumerate(portions):
        life.checkpoint(portion)
        if number == at:
            older, part = len(life.flat), life.stored
    if not life.flat:
        return
    life.flat, life.stored = life.flat[:older], part
    names = life.fs.listdir(TOPIC)
    wanted = cut_files(life.fs, TOPIC, names, life.tree)
    for name in set(names) - wanted:
        life.fs.unlink(f"{TOPIC}/{name}")
    if life.flat:
        life.check()
    for _ in range(4):
        life.checkpoint((0, 3))
    life.check()


def test_many_runs_of_blank_leaves_are_no_time_bomb() -> None:
    """A part may say that there are 100,000; a look at all of them for each subtree would take an hour."""
    count = 100_000
    runs = [(8 * i, 8) for i in range(count)]
    reader = TreeReader(LeafDirectory(SimFs(), "/none"), IDENTITY, runs, PendingLeaves(8 * count, ()), RootCache())
    looked = 0

    class Runs(tuple):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Portion]:
            nonlocal looked
            for one in tuple.__iter__(self):
                looked += 1
                yield one

    reader._runs = Runs(reader._runs)
    assert root_of_range(reader, 0, 8 * 64) == blank_root(9)
    assert looked == 0
