"""The leaves of the records of stages in the Merkle tree of the topic that they are committed to
(`docs/design/evidence.md` section 4).

A leaf contains the record's seq and time in the topic. So the leaves are computed for the seqs that come next, behind a
barrier that keeps other changes from the topic until the commit has got its seqs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import NamedTuple

from topics.engine.loader import Loader
from topics.engine.record_columns import BLOCK_RECORDS
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.evidence.record_leaf import LEAF_BYTES, leaves_of
from topics.log.block import Block, RecordColumns, block_with
from topics.runtime.offload import Offload, Pool


class StageLeaves(NamedTuple):
    """The leaves of all records of a commit, if they get the seqs from `first_seq` on at `ts`."""

    first_seq: int
    ts: int
    leaves: bytes

    def part(self, at: int, count: int) -> bytes:
        """Return `count` leaves from the one of record `at` of the commit on."""
        return self.leaves[at * LEAF_BYTES : (at + count) * LEAF_BYTES]


async def stage_columns(stage: Topic, loader: Loader) -> AsyncIterator[RecordColumns]:
    """Yield the contents of a stage, piece by piece. Raises `404 stage_not_found` if it has lost records."""
    log = stage.log
    loaded: list[Block] = []
    position = 1
    while position <= log.head_seq:
        block = stage.blocks.find(position) or block_with(loaded, position)
        if block is None:
            loaded = await loader.load(stage, position, log.head_seq)
            if stage.deleted or log.count != log.head_seq:
                raise ApiError("stage_not_found", f"stage {stage.name!r} has lost records")
            continue
        last = min(block.last_seq, position + BLOCK_RECORDS - 1)
        yield block.columns(position, last)
        position = last + 1


async def hash_ahead(
    target: Topic, stages: Sequence[Topic], now_ms: int, loader: Loader, offload: Offload
) -> StageLeaves:
    """Hash the records of some stages for the seqs of their topic that come next. The caller has set a barrier of the
    topic. Raises `404 stage_not_found`."""
    first_seq, ts = target.assigned + 1, max(now_ms, target.last_ts)
    leaves: list[bytes] = []
    seq = first_seq
    for stage in stages:
        async for columns in stage_columns(stage, loader):
            leaves.append(await offload.run(Pool.CPU, partial(_leaves, target.id, seq, ts, columns)))
            seq += len(columns.datas)
    return StageLeaves(first_seq, ts, b"".join(leaves))


def _leaves(epoch: int, seq: int, ts: int, columns: RecordColumns) -> bytes:
    """In a worker thread."""
    return leaves_of(epoch, seq, ts, columns.datas, nodes=columns.nodes, tags=columns.tags, metas=columns.metas)
