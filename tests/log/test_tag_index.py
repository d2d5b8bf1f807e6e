"""The tag index: finding, and forgetting a little at a time."""

from __future__ import annotations

from array import array

import cbor2
import pytest

from topics.log import tag_index
from topics.log.tag_index import TagIndex
from topics.log.tag_match import TagMatch


def everything(index: TagIndex) -> list[int]:
    return list(index.find(TagMatch("", prefix=True), 0, 2**63))


def test_a_batch_of_one_tag_and_a_mixed_one_are_found_alike() -> None:
    index = TagIndex()
    index.add_batch(1, ["a", "a", "a"])
    index.add_batch(4, ["b", None, "a"])
    index.add_batch(7, ["b", "b"])
    assert list(index.find(TagMatch("a", prefix=False), 0, 99)) == [1, 2, 3, 6]
    assert list(index.find(TagMatch("b", prefix=False), 0, 99)) == [4, 7, 8]
    assert everything(index) == [1, 2, 3, 4, 6, 7, 8]
    assert index.postings == 7
    index.check()


def test_a_prefix_finds_what_begins_with_it_in_old_runs_and_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_index, "RUN_NAMES", 3)
    index = TagIndex()
    names = ["b", "a", "ab", "a\U0010ffff", "abc", "aa", "a*", "c"]
    for seq, name in enumerate(names, 1):
        index.add_batch(seq, [name])
    assert list(index.find(TagMatch("a", prefix=True), 0, 99)) == [2, 3, 4, 5, 6, 7]
    assert list(index.find(TagMatch("ab", prefix=True), 0, 99)) == [3, 5]
    assert list(index.find(TagMatch("a", prefix=True), 4, 6)) == [4, 5, 6]
    assert list(index.find(TagMatch("zz", prefix=True), 0, 99)) == []


def test_sweeping_in_slices_forgets_the_gone_and_keeps_the_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_index, "RUN_NAMES", 4)
    monkeypatch.setattr(tag_index, "_CHUNK", 2)
    index = TagIndex()
    for seq in range(1, 101):
        index.add_batch(seq, [f"t{seq % 10}" if seq % 3 else f"own-{seq}"])
    live = [seq for seq in range(41, 101) if seq % 4]
    index.garbage = 100 - len(live)
    slices = 0
    while index.garbage:
        index.sweep(5, 41, lambda seqs: array("Q", [seq for seq in seqs if seq in live]))
        index.check()
        slices += 1
    assert everything(index) == live
    assert slices > 5


def test_a_dense_index_is_swept_without_asking() -> None:
    index = TagIndex()
    index.add_batch(1, ["a", "b", "a", "c"])
    index.garbage = 2
    index.sweep(100, 3, None)
    assert everything(index) == [3, 4]
    assert (len(index), index.garbage) == (2, 0)
    index.check()


def test_a_dump_brings_back_the_postings() -> None:
    index = TagIndex()
    index.add_batch(1, ["b", "a", None, "a"])
    loaded = TagIndex.load(cbor2.loads(cbor2.dumps(index.dump())))
    loaded.check()
    assert loaded.dump() == index.dump()
    loaded.add_batch(9, ["a", "c"])
    assert list(loaded.find(TagMatch("", prefix=True), 0, 99)) == [1, 2, 4, 9, 10]


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["a"]},
        {"names": ["a", "a"]},
        {"names": ["a", 1]},
        {"counts": b"\x01\0\0\0\x05\0\0\0"},
        {"seqs": b"1"},
        {"seqs": None},
    ],
)
def test_nonsense_does_not_load(change: dict[str, object]) -> None:
    index = TagIndex()
    index.add_batch(1, ["a", "b", "b"])
    with pytest.raises(ValueError, match=r"tag index|array|bytes"):
        TagIndex.load(index.dump() | change)
