"""Directories of tags: parts of a file have the same tags as the whole file, and are used only if they are
unchanged."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from topics.log.tag_match import TagMatch
from topics.storage.segments import tag_directory
from topics.storage.segments.tag_directory import TagDirectory
from topics.storage.segments.tag_summary import key_of
from topics.storage.segments.tags_format import SegmentTags, decode_tags, encode_tags

NAMES = ["a", "aa", "ab", "abc", "b", "ba", "bb", "c", "ü", "üb", "z" * 300, "日", "日本"]
MATCHES = [TagMatch(name, prefix) for name in [*NAMES, "0", "abcd", "y", "{", "ÿ"] for prefix in (False, True)]

slots = st.lists(st.none() | st.sampled_from(NAMES), max_size=40)


@pytest.fixture(params=[1, 2, 5], autouse=True)
def _small_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_directory, "PART_NAMES", request.param)


def file_of(tags: list[str | None]) -> tuple[bytes, SegmentTags]:
    blob = encode_tags(7, array("I", range(len(tags))), tags)
    return blob, decode_tags(blob, 7, len(tags))


def reader(blob: bytes) -> Callable[[int, int], bytes]:
    return lambda at, size: blob[at : at + size]


small = examples(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@small
@given(slots, st.lists(st.sampled_from(MATCHES), min_size=1, max_size=3))
def test_parts_have_the_same_tags_as_the_whole_file(tags: list[str | None], matches: list[TagMatch]) -> None:
    blob, whole = file_of(tags)
    directory = TagDirectory(whole, blob)
    parts = directory.parts_of(matches)
    assert parts is not None
    found = directory.read(reader(blob), parts)
    assert found is not None
    for match in matches:
        assert found.find(match) == whole.find(match)
        some, everything = found.postings_of(match, 100), whole.postings_of(match, 100)
        assert some is not None
        assert everything is not None
        assert [p.seqs[p.start : p.end] for p in some] == [p.seqs[p.start : p.end] for p in everything]


@small
@given(slots, st.sampled_from(NAMES), st.data())
def test_the_parts_of_another_file_are_not_used(tags: list[str | None], name: str, data: st.DataObject) -> None:
    blob, whole = file_of(tags)
    match = TagMatch(name, False)
    directory = TagDirectory(whole, blob)
    parts = directory.parts_of([match])
    assert parts is not None
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(blob) - 1))
        other = blob[:at] + bytes((blob[at] ^ 1 << data.draw(st.integers(0, 7)),)) + blob[at + 1 :]
    else:
        other = blob[: data.draw(st.integers(0, len(blob)))]
    found = directory.read(reader(other), parts)
    assert found is None or found.find(match) == whole.find(match)


def test_the_parts_of_a_rewritten_file_are_not_used() -> None:
    tags: list[str | None] = ["b", "a", "b", "c"]
    blob, whole = file_of(tags)
    directory = TagDirectory(whole, blob)
    parts = directory.parts_of([TagMatch("b", False)])
    assert parts
    assert directory.read(reader(file_of(["b", "a", None, "c"])[0]), parts) is None


@small
@given(slots)
def test_a_directory_never_denies_a_tag_that_the_segment_has(tags: list[str | None]) -> None:
    blob, whole = file_of(tags)
    for directory in (TagDirectory(whole, blob), TagDirectory(whole, None)):
        assert all(directory.may_have_any([key_of(b"0"), key_of(tag.encode())]) for tag in tags if tag)
        assert not directory.may_have_any([])


def test_without_a_file_no_part_can_be_read() -> None:
    _, whole = file_of(["a", "b"])
    directory = TagDirectory(whole, None)
    assert directory.parts_of([TagMatch("a", False)]) is None
    assert directory.parts_of([TagMatch("a", True)]) is None
    assert directory.parts_of([TagMatch("c", False)]) == []


def test_too_many_parts_are_not_read_one_by_one() -> None:
    blob, whole = file_of([f"tag-{number:04}" for number in range(5 * tag_directory.MOST_PARTS + 1)])
    assert TagDirectory(whole, blob).parts_of([TagMatch("", True)]) is None


def test_a_directory_takes_a_fraction_of_the_memory_of_the_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_directory, "PART_NAMES", 128)
    blob, whole = file_of([f"tag-{number:06}" for number in range(10_000)])
    assert 10 * TagDirectory(whole, blob).nbytes < whole.nbytes + 10 * 10_000
    assert TagDirectory(whole, blob).nbytes < 28_000
