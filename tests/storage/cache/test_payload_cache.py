"""The payload cache and the reader behind it."""

from __future__ import annotations

import json
import random
from array import array

import pytest

from tests.simulation.disk import SimFs
from topics.log.block import Block, Projection, encode_block
from topics.log.frame_ranges import FrameRange
from topics.storage.cache.payload_cache import BlockList, PayloadCache, block_of_records, read_records
from topics.storage.wal.frames import StoredRecord, encode_appends


def block(first: int, count: int = 1, size: int = 100, *, pinned: bool = False) -> Block:
    made = encode_block(first, 5, [b'"%b"' % (b"x" * size)] * count)
    made.pinned = pinned
    return made


def cached(cache: PayloadCache, *lists: BlockList) -> int:
    """Return how many bytes the cache should count, computed from the lists."""
    return sum(one.nbytes for blocks in lists for one in blocks.blocks if not one.pinned)


def test_small_appends_join_the_open_block() -> None:
    blocks = BlockList(PayloadCache(1 << 20))
    for seq in range(1, 101):
        blocks.append(block(seq))
    assert len(blocks.blocks) == 1
    assert (blocks.blocks[0].first_seq, blocks.blocks[0].last_seq) == (1, 100)
    assert isinstance(blocks.blocks[0].body, bytearray)
    blocks.append(block(101, 950))
    assert [one.first_seq for one in blocks.blocks] == [1, 101]
    assert isinstance(blocks.blocks[0].body, bytes)
    blocks.append(block(1060))
    assert [one.first_seq for one in blocks.blocks] == [1, 101, 1060], "not contiguous"
    blocks.append(block(1061, pinned=True))
    assert len(blocks.blocks) == 4, "pinned and not do not mix"


def test_a_full_block_is_closed_by_bytes_too() -> None:
    blocks = BlockList(PayloadCache(1 << 24))
    for seq in range(1, 8):
        blocks.append(block(seq, size=100_000))
    assert [one.count for one in blocks.blocks] == [3, 3, 1]


def test_find_and_next_first() -> None:
    blocks = BlockList(PayloadCache(1 << 20))
    for first in (5, 20, 30):
        blocks.insert(block(first, 5))
    assert [(one.first_seq if (one := blocks.find(seq)) else None) for seq in (4, 5, 9, 10, 20, 34, 35)] == [
        None, 5, 5, None, 20, 30, None,
    ]  # fmt: skip
    assert [blocks.next_first(seq) for seq in (1, 5, 19, 20, 30)] == [5, 20, 20, 30, None]
    blocks.insert(block(18, 3))
    blocks.insert(block(22, 3))
    blocks.insert(block(9, 1))
    assert [one.first_seq for one in blocks.blocks] == [5, 20, 30], "what overlaps is not kept"
    blocks.insert(block(10, 10))
    assert [one.first_seq for one in blocks.blocks] == [5, 10, 20, 30]


def test_the_least_recently_used_goes_first_over_all_topics() -> None:
    size = block(301, 10).nbytes
    cache = PayloadCache(4 * size)
    a, b = BlockList(cache), BlockList(cache)
    a.written_seq = b.written_seq = 10_000
    a.insert(block(1, 10))
    b.insert(block(1, 10))
    a.insert(block(101, 10))
    b.insert(block(101, 10))
    assert a.find(1) is not None
    a.insert(block(201, 10))
    assert [one.first_seq for one in a.blocks] == [1, 101, 201]
    assert [one.first_seq for one in b.blocks] == [101]
    b.insert(block(301, 10))
    assert [one.first_seq for one in a.blocks] == [1, 201]
    assert cache.bytes == cached(cache, a, b) <= 4 * size


def test_unwritten_blocks_are_not_evicted() -> None:
    cache = PayloadCache(1000)
    blocks, others = BlockList(cache), BlockList(cache)
    others.written_seq = 10_000
    for first in range(1, 600, 100):
        blocks.append(block(first, 20))
    assert len(blocks.blocks) == 6
    others.insert(block(1, 20))
    assert others.blocks == []
    blocks.written_seq = 320
    blocks.append(block(701, 1))
    assert [one.first_seq for one in blocks.blocks] == [401, 501, 701]
    assert cache.bytes == cached(cache, blocks, others)


def test_what_is_pinned_is_not_counted_and_stays() -> None:
    cache = PayloadCache(1000)
    blocks = BlockList(cache)
    blocks.written_seq = 10_000
    for first in range(1, 600, 100):
        blocks.append(block(first, 20, pinned=True))
    assert len(blocks.blocks) == 6
    assert (cache.bytes, cache.pinned_bytes) == (0, sum(one.nbytes for one in blocks.blocks))
    cache.unpin(blocks, blocks.blocks[2])
    assert [one.first_seq for one in blocks.blocks] == [1, 101, 301, 401, 501]
    assert cache.pinned_bytes == sum(one.nbytes for one in blocks.blocks)
    blocks.clear()
    assert (cache.bytes, cache.pinned_bytes, blocks.blocks) == (0, 0, [])


def test_views_count() -> None:
    cache = PayloadCache(100_000)
    blocks = BlockList(cache)
    blocks.written_seq = 1000
    made = encode_block(1, 5, [b'"%b"' % (b"x" * 1000)] * 30, tags=["t"] * 30)
    blocks.insert(made)
    before = cache.bytes
    made.view(Projection(tags=True))
    cache.grown(made)
    assert cache.bytes == made.nbytes > 2 * before - 2000
    cache.grown(block(1))
    assert cache.bytes == made.nbytes, "a block that is not kept is not counted"


def test_drop_below_and_free() -> None:
    cache = PayloadCache(1 << 20)
    blocks = BlockList(cache)
    for first in (1, 11, 21):
        blocks.insert(block(first, 10, pinned=first != 21))
    blocks.drop_below(11)
    assert [one.first_seq for one in blocks.blocks] == [11, 21]
    full = cache.pinned_bytes
    blocks.free([11, 12, 13, 22, 40])
    freed = blocks.blocks[0]
    assert cache.pinned_bytes == freed.nbytes == full - 3 * (len(block(11).body))
    assert freed.cut(14, 20, 10_000, Projection(), at_least_one=True)[1] == 20
    assert blocks.find(22) is blocks.blocks[1]
    blocks.drop_below(31)
    assert (cache.bytes, cache.pinned_bytes, blocks.blocks) == (0, 0, [])


@pytest.mark.parametrize("seed", range(8))
def test_the_counted_bytes_are_right_after_any_operations(seed: int) -> None:
    rng = random.Random(seed)
    cache = PayloadCache(rng.choice([0, 3000, 30_000]))
    lists = [BlockList(cache) for _ in range(3)]
    heads = [0, 0, 0]
    floors = [1, 1, 1]
    for _ in range(800):
        i = rng.randrange(3)
        blocks = lists[i]
        act = rng.randrange(7)
        match act:
            case 0 | 1 | 2:
                n = rng.choice([1, 1, 3, 400])
                blocks.append(block(heads[i] + 1, n, rng.randrange(60), pinned=i == 2))
                heads[i] += n
            case 3:
                blocks.written_seq = heads[i]
            case 4 if heads[i] and i != 2:
                first = rng.randint(1, heads[i])
                if blocks.find(first) is None and first <= blocks.written_seq:
                    end = blocks.next_first(first) or heads[i] + 1
                    blocks.insert(block(first, min(end - first, 10)))
            case 5 if heads[i]:
                floors[i] = rng.randint(floors[i], heads[i] + 1)
                blocks.drop_below(floors[i])
            case 6 if heads[i]:
                some = sorted({rng.randint(1, heads[i]) for _ in range(5)})
                blocks.free(some)
        unwritten = sum(
            one.nbytes
            for blocks in lists
            for one in blocks.blocks
            if not one.pinned and one.last_seq > blocks.written_seq
        )
        assert cache.bytes == cached(cache, *lists)
        assert cache.pinned_bytes == sum(one.nbytes for one in lists[2].blocks)
        if act < 3 and i != 2:
            assert cache.bytes <= cache._max_bytes + unwritten, "as of the last block that was added"
        for blocks in lists:
            assert blocks._firsts == [one.first_seq for one in blocks.blocks]
            assert all(a.last_seq < b.first_seq for a, b in zip(blocks.blocks, blocks.blocks[1:], strict=False))


# -- reading -----------------------------------------------------------------------------------------------------------


SALT = 0x9234_5678_90AB_CDEF


def stored() -> tuple[SimFs, FrameRange]:
    appends = encode_appends(
        1,
        10,
        77,
        [b"1", b"22", b"333", b"4"],
        nodes=[b"", b"n", b"", b""],
        tags=[b"t"] * 4,
        metas=[b"", b"", b"{}", b""],
        durable=False,
        closes_batch=True,
    )
    fs = SimFs()
    file = fs.open("/f", create=True)
    file.pwrite(bytes(50) + appends.data.sealed(SALT, 50), 0)
    starts = array("I", [0, *[sum(appends.frame_lens[:i]) for i in range(1, 4)]])
    return fs, FrameRange(1, 50, len(appends.data), array("Q", [10, 11, 12, 13]), starts, appends.frame_lens)


def test_records_are_read_and_become_a_block() -> None:
    fs, wanted = stored()
    records, damaged = read_records(fs, "/f", wanted, SALT)
    assert damaged == []
    made = block_of_records(records)
    body, last = made.cut(10, 13, 10_000, Projection(tags=True), at_least_one=True)
    assert last == 13
    assert json.loads(b"[%b]" % body) == [
        {"$seq": 10, "$ts": 77, "$tag": "t", "data": 1},
        {"$seq": 11, "$ts": 77, "$tag": "t", "$node": "n", "data": 22},
        {"$seq": 12, "$ts": 77, "$tag": "t", "data": 333, "meta": {}},
        {"$seq": 13, "$ts": 77, "$tag": "t", "data": 4},
    ]
    assert fs.open_files == 1


@pytest.mark.parametrize("hit", range(4))
def test_records_that_do_not_verify_are_named_and_left_out_of_the_block(hit: int) -> None:
    fs, wanted = stored()
    for at in range(0, wanted.frame_lens[hit], 5):
        offset = wanted.offset + wanted.starts[hit] + at
        fs.flip_bit("/f", offset, 1)
        records, damaged = read_records(fs, "/f", wanted, SALT)
        fs.flip_bit("/f", offset, 1)
        assert damaged == [10 + hit]
        left = [seq for seq in range(10, 14) if seq != 10 + hit]
        assert [record.seq for record in records] == left
        body, _ = block_of_records(records).cut(left[0], left[-1], 10_000, Projection(), at_least_one=True)
        assert [record["$seq"] for record in json.loads(b"[%b]" % body)] == left


def test_a_frame_of_another_seq_is_not_the_record() -> None:
    fs, wanted = stored()
    records, damaged = read_records(fs, "/f", wanted._replace(seqs=array("Q", [10, 11, 99, 13])), SALT)
    assert ([record.seq for record in records], damaged) == ([10, 11, 13], [99])


def test_a_file_that_ends_early_or_is_gone() -> None:
    fs, wanted = stored()
    fs.open("/f").truncate(wanted.offset + wanted.starts[2] + 3)
    assert read_records(fs, "/f", wanted, SALT)[1] == [12, 13]
    fs.unlink("/f")
    with pytest.raises(FileNotFoundError):
        read_records(fs, "/f", wanted, SALT)


def test_a_block_of_records_far_apart() -> None:
    records = [StoredRecord(seq, seq, b"n" if seq == 5 else b"", b"", b"", b"%d" % seq) for seq in (3, 5, 6, 11)]
    made = block_of_records(records)
    assert (made.first_seq, made.last_seq) == (3, 11)
    assert made.cut(5, 6, 1000, Projection(), at_least_one=True)[0] == (
        b'{"$seq":5,"$ts":5,"$node":"n","data":5},{"$seq":6,"$ts":6,"data":6}'
    )
    assert made.node_of(5) == "n"
    assert made.node_of(6) is None
