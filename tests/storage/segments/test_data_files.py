"""`.data` files as their readers see them: packed or not, with the deletions of `.del`, damaged or not."""

from __future__ import annotations

import struct
from array import array

import pytest
import xxhash

from tests.simulation.disk import SimFs
from topics.storage.files.fs import write_all
from topics.storage.segments import data_files
from topics.storage.segments.data_files import DataFiles, NotFlaggable, deletions_path
from topics.storage.segments.deletion_file import (
    DeletionList,
    decode_deletions,
    deletions_are_whole,
    encode_deletions,
)
from topics.storage.segments.index_format import IDX_DELETED, encode_index
from topics.storage.segments.packed_format import packed_bytes
from topics.storage.segments.segment_store import DirectorySegmentStore

PATH = "/d/seg-00000000000000000001.data"
DATA = bytes(range(1, 200)) * 100
FLAG = b"\xd5"


def put(fs: SimFs, path: str, content: bytes) -> None:
    with fs.open(path, create=True) as file:
        file.truncate(0)
        write_all(file, content, 0)


def disk(generation: int = 5) -> SimFs:
    fs = SimFs()
    fs.mkdir("/d")
    put(fs, PATH, packed_bytes(DATA, generation, 1))
    return fs


def flagged(*positions: int) -> bytes:
    out = bytearray(DATA)
    for position in positions:
        out[position] = 0xD5
    return bytes(out)


def test_deletions_are_in_the_bytes_that_are_read_and_add_up() -> None:
    fs = disk()
    files = DataFiles(fs)
    assert files.read(PATH, 0, 1 << 30) == DATA
    listed = files.deletions_with(PATH, [70, 3])
    assert listed is not None
    assert files.read(PATH, 0, 1 << 30) == DATA, "nothing is written"
    put(fs, deletions_path(PATH), listed)
    assert files.read(PATH, 0, 1 << 30) == flagged(3, 70)
    more = files.deletions_with(PATH, [3, 9000])
    assert more is not None
    put(fs, deletions_path(PATH), more)
    for reader in (files, DataFiles(fs)):
        assert reader.read(PATH, 0, 1 << 30) == flagged(3, 70, 9000)
        assert reader.read(PATH, 8990, 20) == flagged(9000)[8990:9010]
        assert reader.read(PATH, 4, 60) == DATA[4:64]
        assert reader.length(PATH) == len(DATA)
    for wrong in ([-1], [len(DATA)], [1 << 33]):
        with pytest.raises(OSError, match="beyond"):
            files.deletions_with(PATH, wrong)


def test_a_list_about_another_file_says_nothing() -> None:
    fs = disk(generation=5)
    files = DataFiles(fs)
    put(fs, deletions_path(PATH), encode_deletions(6, [1, 2, 3]))
    assert files.read(PATH, 0, 100) == DATA[:100]
    put(fs, deletions_path(PATH), encode_deletions(5, [1]))
    assert files.read(PATH, 0, 100) == flagged(1)[:100]
    put(fs, PATH, packed_bytes(DATA, 6, 1))
    assert files.read(PATH, 0, 100) == DATA[:100], "the file is a new one, and the list that is known is not its"
    put(fs, PATH, DATA)
    assert files.read(PATH, 0, 100) == DATA[:100]
    assert files.deletions_with(PATH, [1]) is None


@pytest.mark.parametrize("count", [0, 1, 7])
def test_no_changed_byte_of_a_list_brings_a_record_back(count: int) -> None:
    positions = [100 * i for i in range(count)]
    blob = encode_deletions(5, positions)
    assert deletions_are_whole(blob)
    said = DeletionList(5, array("I", positions))
    assert decode_deletions(blob) == said
    for at in range(len(blob)):
        for flip in (1, 0xFF):
            changed = bytearray(blob)
            changed[at] ^= flip
            assert decode_deletions(bytes(changed)) == said, at
            assert not deletions_are_whole(bytes(changed))
    for size in range(len(blob)):
        cut = blob[:size]
        assert not deletions_are_whole(cut)
        assert decode_deletions(cut) == (said if size >= len(blob) // 2 else None)


def test_a_list_of_which_nothing_is_left_is_taken_from_the_index_and_without_that_nothing_is_read() -> None:
    fs = disk()
    put(fs, deletions_path(PATH), b"garbage")
    index = PATH.removesuffix(".data") + ".idx"
    files = DataFiles(fs)
    with pytest.raises(OSError, match="not known any more"):
        files.read(PATH, 0, 100)
    rest = len(DATA) - 90
    flags = bytes([0, IDX_DELETED, IDX_DELETED, 0])
    entries = encode_index([0, 40, 90, 90], [40, 50, 0, rest], [1, 2, 3, 4], flags)
    put(fs, index, entries)
    assert files.read(PATH, 0, 100) == flagged(89)[:100]
    damaged = bytearray(entries)
    damaged[3] ^= 4
    for unusable in (bytes(damaged), entries[:-1], entries[: -len(entries) // 4], b""):
        put(fs, index, unusable)
        with pytest.raises(NotFlaggable, match="not known any more"):
            files.read(PATH, 0, 100)
        with pytest.raises(NotFlaggable, match="not known any more"):
            files.deletions_with(PATH, [])


def test_positions_of_a_list_that_do_not_ascend_are_not_believed() -> None:
    def forged(positions: list[int]) -> bytes:
        one = struct.pack(f"<8sQI{len(positions)}I", b"TOPICSD1", 5, len(positions), *positions)
        return 2 * (one + xxhash.xxh3_64_intdigest(one, 5).to_bytes(8, "little"))

    assert forged([3, 70]) == encode_deletions(5, [3, 70])
    for wrong in ([70, 3], [3, 3], [0, 19_000, 5, 7]):
        assert decode_deletions(forged(wrong)) is None
    fs = disk()
    put(fs, deletions_path(PATH), forged([9000, 10, 9001]))
    with pytest.raises(NotFlaggable):
        DataFiles(fs).read(PATH, 8990, 20)


def test_lists_that_are_kept_are_bounded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    fs = SimFs()
    fs.mkdir("/d")
    paths = [f"/d/seg-{first:020d}.data" for first in range(1, 30)]
    for generation, path in enumerate(paths, 1):
        put(fs, path, packed_bytes(DATA, generation, 1))
        put(fs, deletions_path(path), encode_deletions(generation, range(0, 4000, 4)))
    monkeypatch.setattr(data_files, "MOST_LIST_BYTES", 20_000)
    files = DataFiles(fs)
    for _ in range(2):
        for path in paths:
            assert files.read(path, 0, 9) == flagged(0, 4, 8)[:9]
    lists = files._lists
    assert 4 * sum(len(listed.positions) for _, listed in lists.values()) <= 20_000
    assert len(lists) == 4
    monkeypatch.setattr(data_files, "MOST_LIST_BYTES", 1)
    files.read(paths[0], 0, 9)
    assert len(lists) == 1


def test_a_store_sets_flags_in_packed_files_and_nothing_else() -> None:
    fs = SimFs()
    store = DirectorySegmentStore(fs, "/cold")
    name = "seg-00000000000000000001.data"
    file = packed_bytes(DATA, 5, 1)
    store.put(1, name, [file])
    store.patch(1, name, [(7, FLAG)])
    store.patch(1, name, [(9, FLAG), (7, FLAG)])
    assert store.read_range(1, name, 0, 20) == flagged(7, 9)[:20]
    assert store.read_stored(1, name, 0, 1 << 30) == file, "no byte of it is written again"
    assert (store.length(1, name), store.stored_length(1, name)) == (len(DATA), len(file))
    assert store.list(1) == [name, deletions_path(name)]
    for patches in ([(7, b"x")], [(len(DATA), FLAG)], [(-1, FLAG)], [(7, FLAG + FLAG)]):
        with pytest.raises(OSError, match=r"flag"):
            store.patch(1, name, patches)
    assert store.read_range(1, name, 0, 1 << 30) == flagged(7, 9)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_that_is_rewritten_while_it_is_read_never_brings_a_deleted_record_back(is_known: bool) -> None:
    """The deletion is in the new file, and the list is gone: whichever of the two steps comes between two looks."""
    for turn in range(6):

        class Racing(SimFs):
            looks = -100

            def open(self, path: str, **how: bool):  # type: ignore[no-untyped-def]
                self.looks += 1
                if self.looks == turn:  # noqa: B023
                    put(self, PATH, packed_bytes(flagged(1), 6, 1))
                    self.unlink(deletions_path(PATH))
                return super().open(path, **how)

        racing = Racing()
        racing.mkdir("/d")
        put(racing, PATH, packed_bytes(DATA, 5, 1))
        put(racing, deletions_path(PATH), encode_deletions(5, [1]))
        files = DataFiles(racing)
        if is_known:
            assert files.read(PATH, 0, 50) == flagged(1)[:50]
        racing.looks = -1
        assert files.read(PATH, 0, 50) == flagged(1)[:50], turn
        racing.looks = -100
        assert files.read(PATH, 0, 50) == flagged(1)[:50], turn
