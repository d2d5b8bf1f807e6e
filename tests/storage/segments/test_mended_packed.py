"""Mending a packed segment: what is damaged of it, of its list of deletions, or of both, comes back from the copy."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from backports import zstd

from tests.simulation.disk import SimFs
from tests.storage.segments.test_mended_files import Made, flags_in, made, without_flags
from tests.storage.segments.test_packed_format import forged
from topics.storage.files.datadir import segment_name
from topics.storage.segments.mended_files import NotMendable, mended, put_mended, read_local
from topics.storage.segments.packed_format import MAX_BLOCK_BYTES, PackHeader, packed_bytes
from topics.storage.segments.segment_format import DELETED_FLAG
from topics.storage.segments.segment_store import DirectorySegmentStore

__all__ = ["made"]

NAMES = {kind: segment_name(1, kind) for kind in ("data", "idx", "tags", "del")}


def packed_store(made: Made) -> DirectorySegmentStore:
    """The segment, packed before its records were deleted; the deletions are in a list."""
    store = DirectorySegmentStore(SimFs(), "/data")
    topic_id = made.segment.topic_id
    store.put(topic_id, NAMES["data"], [packed_bytes(made.copies[0].data, 9, 1)])
    assert made.files.data is not None
    flags = [at for at, byte in enumerate(made.files.data) if byte != made.copies[0].data[at]]
    store.patch(topic_id, NAMES["data"], [(at, bytes((DELETED_FLAG,))) for at in flags])
    for kind, content in (("idx", made.files.idx), ("tags", made.files.tags)):
        assert content is not None
        store.put(topic_id, NAMES[kind], [content])
    assert read_local(store, made.segment) == made.files
    return store


@pytest.mark.parametrize("age", [0, 2])
@pytest.mark.parametrize("seed", range(25))
def test_a_packed_segment_is_mended_whatever_is_damaged(made: Made, age: int, seed: int) -> None:
    rng, store, topic_id = random.Random(seed), packed_store(made), made.segment.topic_id
    hurt = [kind for kind in ("data", "del", "idx", "tags") if rng.random() < 0.6] or ["data"]
    for kind in hurt:
        content = bytearray(store.read_stored(topic_id, NAMES[kind], 0, 1 << 30))
        for _ in range(rng.choice((1, 1, 30))):
            content[rng.randrange(len(content))] ^= rng.randint(1, 255)
        store.put(topic_id, NAMES[kind], [bytes(content)])
    refused = ""
    try:
        files = mended(read_local(store, made.segment), made.copies[age], made.segment, made.counted)
    except NotMendable as error:
        refused = str(error)
    if refused:
        assert "not known" in refused
        assert age < 2
        assert "idx" in hurt
        return
    put_mended(store, made.segment, files)
    after = read_local(store, made.segment)
    assert after.data is not None
    assert made.files.data is not None
    assert without_flags(after.data, made) == without_flags(made.files.data, made)
    assert flags_in(after.data, made) == made.deleted
    assert after.tags == made.files.tags
    if files.data is not None:
        assert not store.exists(topic_id, NAMES["del"]), "the flags are in the file, which is plain"
    again = mended(after, made.copies[age], made.segment, made.counted)
    assert (again.data, again.idx, again.tags, again.damaged) == (None, None, None, 0)


def test_a_hostile_file_in_place_of_a_segment_is_read_no_further_than_the_segment_is_long(made: Made) -> None:
    store, topic_id = packed_store(made), made.segment.topic_id
    block = zstd.compress(bytes(MAX_BLOCK_BYTES))
    hostile = forged(PackHeader(3, 1, 100 * MAX_BLOCK_BYTES, MAX_BLOCK_BYTES), [block] * 100)
    assert len(hostile) < 10_000
    store.put(topic_id, NAMES["data"], [hostile])
    assert store.length(topic_id, NAMES["data"]) == 100 * MAX_BLOCK_BYTES
    tracemalloc.start()
    try:
        local = read_local(store, made.segment)
        assert tracemalloc.get_traced_memory()[1] < 10 * MAX_BLOCK_BYTES
    finally:
        tracemalloc.stop()
    assert local.data == bytes(made.segment.data_bytes)
    files = mended(local, made.copies[2], made.segment, made.counted)
    put_mended(store, made.segment, files)
    assert read_local(store, made.segment).data == files.data
    assert not store.exists(topic_id, NAMES["del"])
