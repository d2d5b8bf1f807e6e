"""The cache of indexes: what it keeps of tags, and how much memory that takes at most."""

from __future__ import annotations

from array import array

import pytest

from topics.storage.cache import index_cache
from topics.storage.cache.index_cache import ALL_NAMES, FEW_NAMES, IndexCache
from topics.storage.segments.tag_directory import TagDirectory
from topics.storage.segments.tags_format import SegmentTags, decode_tags, encode_tags
from topics.storage.segments.topic_segments import Segment

NAMES = 100


def tags_of(number: int) -> tuple[Segment, SegmentTags, TagDirectory]:
    blob = encode_tags(1, array("I", [1] * NAMES), [f"{number:05}-{i:05}" for i in range(NAMES)])
    tags = decode_tags(blob, 1, NAMES)
    return Segment(number, 1, n=NAMES, sealed=True), tags, TagDirectory(tags, blob)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> IndexCache:
    monkeypatch.setattr(index_cache, "LEAST_BYTES", 5_000)
    monkeypatch.setattr(index_cache, "LEAST_DIRECTORY_BYTES", 20_000)
    return IndexCache(0)


def test_directories_take_no_more_than_their_share(cache: IndexCache) -> None:
    many = [tags_of(number) for number in range(100)]
    for segment, _, directory in many:
        cache.add_directory(segment, directory)
        assert cache.directory_bytes <= 20_000
    kept = [directory for segment, _, directory in many if cache.directory(segment) is not None]
    assert cache.directory_bytes == sum(directory.nbytes for directory in kept)
    assert kept[-1] is many[-1][2]
    for segment, _, directory in many:
        cache.add_directory(segment, directory)
        cache.forget_tags(segment)
    assert cache.directory_bytes == 0


def test_a_directory_of_many_tags_is_made_when_there_was_no_room_for_the_tags(cache: IndexCache) -> None:
    first, tags, directory = tags_of(0)
    assert cache.names_for_directory(first) == FEW_NAMES
    cache.add_tags(first, tags)
    assert cache.names_for_directory(first) == FEW_NAMES
    for number in range(1, 10):
        segment, others, _ = tags_of(number)
        cache.add_tags(segment, others)
    assert cache.tags(first) is None
    assert cache.names_for_directory(first) == ALL_NAMES
    cache.add_directory(first, directory)
    assert cache.names_for_directory(first) == 0


def test_most_directories_stay_though_there_are_more_segments_that_are_asked_for_in_turn(cache: IndexCache) -> None:
    many = [tags_of(number) for number in range(40)]
    room = 20_000 // many[0][2].nbytes
    assert 10 < room < 20
    found = made = 0
    for _ in range(50):
        for segment, _, directory in many:
            if cache.directory(segment) is not None:
                found += 1
            elif cache.names_for_directory(segment):
                cache.add_directory(segment, directory)
                made += 1
    assert made < 50 * 40 / 8
    assert found > 50 * room / 3


def test_tags_are_read_whole_if_there_is_room_or_others_are_used_less(
    cache: IndexCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "WHOLE_AFTER", 4)
    (_, _, directory), (used, tags, _), (unused, others, _) = (tags_of(number) for number in range(3))
    cache._max_bytes = 10_000
    assert cache.wants_whole(directory, 1)
    cache.add_tags(unused, others)
    cache.add_tags(used, tags)
    cache._max_bytes = cache.bytes
    assert cache.tags(unused) is not None
    # As long as both are used in between, none of them has to go.
    for _ in range(20):
        assert not cache.wants_whole(directory, 1)
        assert cache.tags(used) is not None
        assert cache.tags(unused) is not None
    asked = [cache.wants_whole(directory, 1) for _ in range(8) if cache.tags(used) is not None]
    assert asked.index(True) in range(3, 8)
