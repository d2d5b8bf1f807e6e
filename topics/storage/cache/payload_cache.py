"""Record bytes in memory: one cache of blocks for all topics, bounded in bytes, and the reader that makes blocks from
frames on disk.

A topic's `BlockList` finds the block that covers a seq. Blocks are evicted least recently used, over all topics
together. Blocks of records that are not in a file yet, or never will be (`ephemeral`), are pinned and not counted:
shard queues, caps and quotas bound them. The cache knows no rule of visibility: the index decides which records are
live before blocks are asked for.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from topics.log.block import Block, encode_block
from topics.log.frame_ranges import FrameRange
from topics.storage.files.fs import Fs
from topics.storage.wal.frames import FrameSeeds, StoredRecord, decode_append

EVICTION_LOOKS: Final = 64
"""How many unwritten blocks one eviction skips before it ends."""


class BlockList:
    """One topic's blocks in memory, in seq order, not overlapping. The last may be open: small appends extend it."""

    __slots__ = ("_cache", "_firsts", "blocks", "written_seq")

    def __init__(self, cache: PayloadCache) -> None:
        self._cache = cache
        self._firsts: list[int] = []
        self.blocks: list[Block] = []
        self.written_seq = 0
        """Records above this seq are in memory only, and their blocks cannot be evicted."""

    def append(self, block: Block) -> None:
        """Add a newly published block at the end; a small one joins the open block before it."""
        if self.blocks:
            last = self.blocks[-1]
            joins = last.first_seq + last.count == block.first_seq and last.pinned == block.pinned
            if joins and not last.full and block.count + last.count <= 1000:
                last.extend(block)
                self._cache.resized(last)
                return
            if isinstance(last.body, bytearray):
                last.close()
        self.blocks.append(block)
        self._firsts.append(block.first_seq)
        self._cache.added(self, block)

    def insert(self, block: Block) -> None:
        """Add a block that was read from disk. If it overlaps another, it is not kept (the caller still has it)."""
        at = bisect_right(self._firsts, block.first_seq)
        if at and self.blocks[at - 1].last_seq >= block.first_seq:
            return
        if at < len(self.blocks) and self.blocks[at].first_seq <= block.last_seq:
            return
        self.blocks.insert(at, block)
        self._firsts.insert(at, block.first_seq)
        self._cache.added(self, block)

    def find(self, seq: int) -> Block | None:
        """Return the block that covers `seq`, None if there is none, and make it most recently used."""
        at = bisect_right(self._firsts, seq) - 1
        if at < 0:
            return None
        block = self.blocks[at]
        if seq > block.last_seq:
            return None
        self._cache.used(block)
        return block

    def next_first(self, seq: int) -> int | None:
        """Return the first seq of the next block after `seq`, None if there is none."""
        at = bisect_right(self._firsts, seq)
        return self._firsts[at] if at < len(self._firsts) else None

    def drop_below(self, seq: int) -> None:
        """Free blocks that lie wholly below `seq`."""
        gone = 0
        while gone < len(self.blocks) and self.blocks[gone].last_seq < seq:
            self._cache.removed(self.blocks[gone])
            gone += 1
        if gone:
            del self.blocks[:gone]
            del self._firsts[:gone]

    def discard(self, block: Block) -> None:
        """Remove a block that the cache has evicted."""
        at = bisect_right(self._firsts, block.first_seq) - 1
        assert self.blocks[at] is block
        del self.blocks[at]
        del self._firsts[at]

    def free(self, seqs: Sequence[int]) -> None:
        """Free the bytes of deleted records in pinned blocks when half of a block is deleted. Nothing else bounds these
        bytes."""
        at = 0
        while at < len(seqs):
            index = bisect_right(self._firsts, seqs[at]) - 1
            block = self.blocks[index] if index >= 0 else None
            if block is None or seqs[at] > block.last_seq or not block.pinned:
                at += 1
                continue
            end = bisect_right(seqs, block.last_seq, at)
            freed = block.without(seqs[at:end])
            self._cache.removed(block)
            self.blocks[index] = freed
            self._cache.added(self, freed)
            at = end

    def clear(self) -> None:
        """Free everything, because the topic is deleted."""
        for block in self.blocks:
            self._cache.removed(block)
        self.blocks = []
        self._firsts = []


class PayloadCache:
    """The blocks of all topics, least recently used first, bounded by `TOPICS_CACHE_BYTES`; pinned ones are kept apart.
    Made once by the engine."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lru: OrderedDict[int, tuple[BlockList, Block, int]] = OrderedDict()
        self._pinned: dict[int, int] = {}
        self.bytes = 0
        self.pinned_bytes = 0

    def added(self, owner: BlockList, block: Block) -> None:
        """Count a block, and evict others beyond the bound."""
        size = block.nbytes
        if block.pinned:
            self._pinned[id(block)] = size
            self.pinned_bytes += size
            return
        self._lru[id(block)] = (owner, block, size)
        self.bytes += size
        self._evict()

    def unpin(self, owner: BlockList, block: Block) -> None:
        """Count a block, whose records are on disk now, and let it be evicted like any other."""
        self.removed(block)
        block.pinned = False
        self.added(owner, block)

    def resized(self, block: Block) -> None:
        """Note that a block has grown."""
        key, size = id(block), block.nbytes
        if block.pinned:
            self.pinned_bytes += size - self._pinned[key]
            self._pinned[key] = size
            return
        owner, _, before = self._lru[key]
        self._lru[key] = (owner, block, size)
        self._lru.move_to_end(key)
        self.bytes += size - before
        self._evict()

    def grown(self, block: Block) -> None:
        """Count a block again after a read may have added a view to it. Does nothing if the cache no longer has the
        block."""
        if id(block) in (self._pinned if block.pinned else self._lru):
            self.resized(block)

    def used(self, block: Block) -> None:
        """Note that a block was read."""
        if not block.pinned:
            self._lru.move_to_end(id(block))

    def removed(self, block: Block) -> None:
        """Forget a block that its owner has dropped."""
        if block.pinned:
            self.pinned_bytes -= self._pinned.pop(id(block))
        else:
            self.bytes -= self._lru.pop(id(block))[2]

    def _evict(self) -> None:
        """Drop least recently used blocks until the bound holds. At most `EVICTION_LOOKS` unwritten ones are passed
        over."""
        looks = EVICTION_LOOKS
        while self.bytes > self._max_bytes and looks and self._lru:
            key, (owner, block, size) = next(iter(self._lru.items()))
            if block.last_seq > owner.written_seq:
                looks -= 1
                self._lru.move_to_end(key)
                continue
            del self._lru[key]
            self.bytes -= size
            owner.discard(block)


def read_records(fs: Fs, path: str, wanted: FrameRange, salt: int | None) -> tuple[list[StoredRecord], list[int]]:
    """Read one range of a WAL file with this salt, and verify every frame's checksum. Return the records, and the seqs
    that do not verify. Blocking.

    Raises FileNotFoundError if the file was removed meanwhile.
    """
    with fs.open(path, read_only=True) as handle:
        window = handle.pread(wanted.length, wanted.offset)
    records = []
    damaged = []
    seeds = FrameSeeds(salt, wanted.offset)
    for seq, at, size in zip(wanted.seqs, wanted.starts, wanted.frame_lens, strict=True):
        record = decode_append(window, at, size, seeds)
        if record is None or record.seq != seq:
            damaged.append(seq)
        else:
            records.append(record)
    return records, damaged


def block_of_records(records: Sequence[StoredRecord]) -> Block:
    """Encode records (ascending seqs, gaps allowed) as one block; a missing seq takes no bytes."""
    first, last = records[0].seq, records[-1].seq
    nodes = [record.node.decode() for record in records] if any(record.node for record in records) else None
    tags = [record.tag.decode() for record in records] if any(record.tag for record in records) else None
    metas = [record.meta for record in records] if any(record.meta for record in records) else None
    datas = [record.data for record in records]
    if last - first + 1 == len(records):
        return encode_block(first, [record.ts for record in records], datas, nodes=nodes, tags=tags, metas=metas)
    singles = {}
    for i, record in enumerate(records):
        singles[record.seq] = encode_block(
            record.seq,
            [record.ts],
            [datas[i]],
            nodes=nodes and [nodes[i]],
            tags=tags and [tags[i]],
            metas=metas and [metas[i]],
        )
    block = Block(first, 0, bytearray(), array("I", [0]))
    for seq in range(first, last + 1):
        single = singles.get(seq)
        block.extend(single if single is not None else Block(seq, 1, b"", array("I", [0, 0])))
    block.close()
    return block
