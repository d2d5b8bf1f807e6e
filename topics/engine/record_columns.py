"""The records of an append column by column, and their further forms: blocks, index flags, UTF-8.

A request is taken apart once; after that no step of an append handles single records in Python.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import add
from typing import Final, NamedTuple

import msgspec

from topics.log.block import Block, encode_block
from topics.model import AppendRequest, CheckedAppend, JobFields, UniqueJob
from topics.queue.job_pages import DEFAULT_PRIORITY
from topics.queue.unique_keys import digest_of
from topics.storage.wal import frames

BLOCK_RECORDS: Final = 1000
"""A batch becomes blocks of at most so many records."""

RECORD_BYTES: Final = 100
"""The cost of a record's frame and its place in a block, in bytes of records that take as long."""

COMMIT_TURN_BYTES: Final = 64 << 10
"""Cost (bytes) of a batch from which on its commit takes a turn. A smaller one is committed in the step in which it was
decoded."""

_json = msgspec.json.encode


class AppendColumns(NamedTuple):
    """The records of an append, column by column; None for a column in which no record has anything."""

    datas: list[bytes]
    nodes: list[str | None] | None
    tags: list[str | None] | None
    metas: list[bytes] | None
    sizes: array[int]
    jobs: JobFields | None = None

    @property
    def cost(self) -> int:
        """How much work the commit of the records is, in bytes (`topics.runtime.turns`)."""
        return sum(self.sizes) + RECORD_BYTES * len(self.sizes)

    def part(self, records: slice) -> AppendColumns:
        """Return the columns of some of the records."""
        return AppendColumns(
            self.datas[records],
            self.nodes and self.nodes[records],
            self.tags and self.tags[records],
            self.metas and self.metas[records],
            self.sizes[records],
            self.jobs and self.jobs.part(records),
        )

    def only(self, places: Sequence[int]) -> AppendColumns:
        """Return the columns of the records at these places."""
        return AppendColumns(
            [self.datas[i] for i in places],
            self.nodes and [self.nodes[i] for i in places],
            self.tags and [self.tags[i] for i in places],
            self.metas and [self.metas[i] for i in places],
            array("I", [self.sizes[i] for i in places]),
            self.jobs and self.jobs.only(places),
        )


def columns_of(request: AppendRequest) -> AppendColumns:
    """Return the columns of a request. Records without a node get the request's."""
    nodes: list[str | None] | None
    tags: list[str | None] | None
    metas: list[bytes] | None
    if isinstance(request, CheckedAppend):
        datas, nodes, tags, metas = request.datas, request.nodes, request.tags, request.metas
    else:
        records = request.records
        datas = [bytes(record.data) for record in records]
        nodes = [record.node for record in records]
        tags = [record.tag for record in records]
        metas = [_json(record.meta) if record.meta else b"" for record in records]
        nodes = nodes if any(nodes) else None
        tags = tags if any(tags) else None
        metas = metas if any(metas) else None
    if request.node is not None:
        nodes = [node or request.node for node in nodes] if nodes is not None else [request.node] * len(datas)
    sizes = array("I", map(len, datas))
    if metas is not None:
        sizes = array("I", map(add, sizes, map(len, metas)))
    return AppendColumns(datas, nodes, tags, metas, sizes, job_fields_of(request))


def job_fields_of(request: AppendRequest) -> JobFields | None:
    """Return what the records of a request say about their jobs, which was checked before; None if nothing."""
    if isinstance(request, CheckedAppend):
        return request.jobs
    records = request.records
    given = (
        f"records[{i}].{name}"
        for i, record in enumerate(records)
        for name in ("delay_ms", "not_before", "priority", "unique")
        if getattr(record, name) is not None
    )
    first = next(given, None)
    if first is None:
        return None
    unique = [
        None if one is None else UniqueJob(digest_of(one.key), one.scope, one.window_ms or 0)
        for one in (record.unique for record in records)
    ]
    return JobFields(
        first,
        [record.delay_ms or 0 for record in records],
        [record.not_before or 0 for record in records],
        bytes(DEFAULT_PRIORITY if record.priority is None else record.priority for record in records),
        unique if any(unique) else None,
    )


def utf8(texts: Sequence[str | None] | None) -> list[bytes] | None:
    """Return a column of texts as frames have it: empty bytes where a record has none."""
    return None if texts is None else [text.encode() if text else b"" for text in texts]


def index_flags(count: int, nodes: Sequence[str | None] | None, tags: Sequence[str | None] | None) -> bytes:
    """Return the index flags of records that have no frame: the same bits that their frames would have."""
    has_node = [frames.HAS_NODE if node else 0 for node in nodes] if nodes is not None else [0] * count
    has_tag = [frames.HAS_TAG if tag else 0 for tag in tags] if tags is not None else [0] * count
    return bytes(map(add, has_node, has_tag))


def encode_blocks(
    first_seq: int,
    ts: int,
    datas: Sequence[bytes],
    nodes: Sequence[str | None] | None,
    tags: Sequence[str | None] | None,
    metas: Sequence[bytes] | None,
    *,
    pinned: bool,
) -> list[Block]:
    """Encode a batch as blocks of bounded size. `pinned` blocks stay in the cache."""
    blocks = []
    for at in range(0, len(datas), BLOCK_RECORDS):
        part = slice(at, at + BLOCK_RECORDS)
        block = encode_block(
            first_seq + at,
            ts,
            datas[part],
            nodes=nodes and nodes[part],
            tags=tags and tags[part],
            metas=metas and metas[part],
        )
        block.pinned = pinned
        blocks.append(block)
    return blocks
