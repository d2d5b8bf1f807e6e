"""The records that a router takes from its source, column by column, and the columns of their copies
(`topics.log.copies`).

Records are taken once for all the routers of a fan-out that are at the same place.
`topics.engine.forwarding.forwarders` decides which records are taken, and which of them are copied.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from topics.engine.filtered_records import filtered_data
from topics.engine.loader import OpenedRun
from topics.engine.record_collector import DECODE_BYTES
from topics.engine.topic import Topic
from topics.filters.record_filter import Filter
from topics.log.block import Block
from topics.log.copies import PLAIN, CopyChanges, CopyKind, each_kind, kinds_of, run_of, stamped
from topics.log.span import FLAG_DERIVED, FLAG_NODE, FLAG_ORIGIN, FLAG_TAG

BATCH_BYTES: Final = 1 << 20
"""Bytes of records that are taken at a time; one record is always taken, of any size."""


class SourceColumns(NamedTuple):
    """Some live records of a source, column by column, from which copies may be made.

    `origins` is None if all of them were first appended to the source. `files` is None if their frames are in no file
    to which copies may point.
    """

    seqs: Sequence[int]
    nodes: list[str | None] | None
    tags: list[str | None] | None
    metas: list[bytes] | None
    datas: list[bytes]
    sizes: array[int]
    flags: bytes
    origins: list[tuple[CopyKind, int]] | None
    files: array[int] | None
    offsets: array[int]
    frame_lens: array[int]


class CopyColumns(NamedTuple):
    """The columns in which copies differ from their originals."""

    kinds: list[tuple[int, CopyKind]]
    origin_seqs: Sequence[int]
    metas: list[bytes] | None
    sizes: array[int]
    flags: bytes


class _ColumnRecord:
    """The record of some columns that a filter is asked about; `i` moves."""

    __slots__ = ("_taken", "i")

    def __init__(self, taken: SourceColumns) -> None:
        self._taken = taken
        self.i = 0

    @property
    def tag(self) -> str | None:
        return self._taken.tags[self.i] if self._taken.tags is not None else None

    @property
    def node(self) -> str | None:
        return self._taken.nodes[self.i] if self._taken.nodes is not None else None

    @property
    def meta(self) -> bytes | None:
        return (self._taken.metas[self.i] or None) if self._taken.metas is not None else None

    @property
    def data(self) -> bytes | None:
        return filtered_data(self._taken.datas[self.i])


def piece_of(taken: SourceColumns, wanted: Filter | None) -> tuple[int, float]:
    """Return how many records, from the first on, a filter is asked about in one step, and how much of a full piece of
    work that is. All of them, unless it decodes `data` or `meta`: then as many bytes as a read looks at in one step."""
    if wanted is None or not (wanted.uses_data or wanted.uses_meta):
        return len(taken.seqs), 0.0
    ends = list(accumulate(taken.sizes))
    looked_at = max(1, bisect_right(ends, DECODE_BYTES))
    return looked_at, ends[looked_at - 1] / DECODE_BYTES


def matching(taken: SourceColumns, chosen: Sequence[int], wanted: Filter) -> list[int]:
    """Return the indexes among `chosen` of the records that match a filter."""
    record = _ColumnRecord(taken)
    found = []
    for i in chosen:
        record.i = i
        if wanted.matches(record):
            found.append(i)
    return found


def columns_of_copies(source: Topic, taken: SourceColumns, chosen: Sequence[int], changes: CopyChanges) -> CopyColumns:
    """Return origins, metas, sizes and flags of the copies of some records."""
    every = len(chosen) == len(taken.seqs)
    if taken.origins is None:
        seqs = taken.seqs if every else [taken.seqs[i] for i in chosen]
        kinds = [(len(seqs), CopyKind(source.id, 1, changes))]
    else:
        origins = taken.origins
        kinds, seqs = kinds_of((_passed_on(origins[i][0], changes), origins[i][1]) for i in chosen)
    metas: list[bytes] | None = None
    if taken.metas is not None:
        metas = taken.metas if every else [taken.metas[i] for i in chosen]
    sizes = taken.sizes if every else array("I", [taken.sizes[i] for i in chosen])
    if changes.stamp is not None:
        plain = metas or [b""] * len(seqs)
        owners = (kind.topic_id for kind in each_kind(kinds))
        metas = [
            stamped(meta, topic_id, seq, changes.stamp) for meta, topic_id, seq in zip(plain, owners, seqs, strict=True)
        ]
        sizes = array("I", [size - len(old) + len(new) for size, old, new in zip(sizes, plain, metas, strict=True)])
    kept = (0 if changes.drop_node else FLAG_NODE) | (0 if changes.drop_tag else FLAG_TAG)
    flags = taken.flags if every else bytes([taken.flags[i] for i in chosen])
    return CopyColumns(
        kinds, seqs, metas if metas and any(metas) else None, sizes, bytes(flag & kept for flag in flags)
    )


def _passed_on(kind: CopyKind, changes: CopyChanges) -> CopyKind:
    """Return the kind of a copy of a copy; both are made from the same frame."""
    drops = kind.changes.drop_node or changes.drop_node, kind.changes.drop_tag or changes.drop_tag
    return CopyKind(kind.topic_id, kind.hops + 1, CopyChanges(*drops, changes.stamp or kind.changes.stamp))


def take_raw(source: Topic, block: Block, first: int, last: int) -> SourceColumns:
    """Take records that are in no segment of the source: their frames are in the WAL, or in segments of other topics;
    those of an `ephemeral` topic are in memory."""
    files, offsets, lens, sizes, flags = array("I"), array("I"), array("I"), array("I"), bytearray()
    for run in source.log.index.capture_raw(last, first):
        files += run.file
        offsets += run.offset
        lens += run.frame_len
        sizes += run.size
        flags += run.flags
    n = len(flags)
    while n > 1 and sum(sizes[:n]) > BATCH_BYTES:
        n //= 2
    last = first + n - 1
    files, offsets, lens, sizes, flags = files[:n], offsets[:n], lens[:n], sizes[:n], flags[:n]
    columns = block.columns(first, last)
    origins: list[tuple[CopyKind, int]] | None = None
    # Committed stage records are the source's own, but in frames of the stage: copies cannot point to those.
    staged = any(flag & FLAG_DERIVED and not flag & FLAG_ORIGIN for flag in set(flags))
    if max(flags) >= FLAG_ORIGIN:
        assert source.copies is not None
        runs = source.copies.runs
        origins = []
        for i, flag in enumerate(flags):
            seq = first + i
            if not flag & FLAG_ORIGIN:
                origins.append((CopyKind(source.id, 0, PLAIN), seq))
                continue
            made = run_of(runs, seq)
            # A record that is not derived has a frame of the source's own, which includes the stamp.
            kind = made.kind(seq) if flag & FLAG_DERIVED else made.kind(seq)._replace(changes=PLAIN)
            origins.append((kind, made.origin(seq).seq))
    return SourceColumns(
        range(first, last + 1),
        columns.nodes,
        columns.tags,
        columns.metas,
        columns.datas,
        sizes,
        bytes(flags),
        origins,
        None if source.ephemeral or staged else files,
        offsets,
        lens,
    )


def take_opened(source: Topic, opened: OpenedRun, file: int | None) -> SourceColumns:
    """Take records whose frames are in a segment; `file` is None if copies may not point to it."""
    records = opened.records
    nodes: list[str | None] = [record.node.decode() or None for record in records]
    tags: list[str | None] = [record.tag.decode() or None for record in records]
    metas = [record.meta for record in records]
    origins = [(CopyKind(record.origin.topic_id, record.origin.hops, PLAIN), record.origin.seq) for record in records]
    own = all(record.origin.topic_id == source.id and not record.origin.hops for record in records)
    flags = [(FLAG_TAG if tag else 0) | (FLAG_NODE if node else 0) for node, tag in zip(nodes, tags, strict=True)]
    return SourceColumns(
        opened.seqs,
        nodes if any(nodes) else None,
        tags if any(tags) else None,
        metas if any(metas) else None,
        [record.data for record in records],
        array("I", [len(record.meta) + len(record.data) for record in records]),
        bytes(flags),
        None if own else origins,
        array("I", (file,)) * len(records) if file is not None and not source.ephemeral else None,
        opened.offsets,
        opened.frame_lens,
    )
