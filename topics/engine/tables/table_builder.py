"""The table of a topic with `keep_per_tag` (`topics.log.tables`), made out of its records: after a start, and when
`keep_per_tag` is set.

The caller keeps others from appending and deleting. Meanwhile records may expire, and damage may be found; the table
copes with such records later. Checkpoints, rewrites and merges of this topic wait, because they move tags from memory
to files.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Final, TypeVar

import trio

from topics.engine.loader import Loader
from topics.engine.tables.kept_records import NULL
from topics.engine.topic import Topic
from topics.log.block import Block, block_with
from topics.log.losses import Gap
from topics.log.span import LIVE, Span, SpanColumns
from topics.log.tables.kept_tags import KeptRecord, KeptTags, TableEntry, add_record
from topics.log.tag_match import TagMatch
from topics.runtime.offload import Offload, Pool
from topics.storage.segments.tags_format import SegmentTags
from topics.storage.segments.topic_segments import Segment

RECORDS_SLICE: Final = 1_000
"""Records that are added before other tasks run: a millisecond or two."""

SORTED_AT_ONCE: Final = 5_000
"""So many tags are put in order on the loop; more in a worker thread."""

NULL_BYTES: Final = len(NULL)

T = TypeVar("T")


class TableBuilder:
    """Made once by the engine."""

    def __init__(self, *, loader: Loader, offload: Offload) -> None:
        self._loader = loader
        self._offload = offload

    async def build(self, topic: Topic, nulls: Collection[int]) -> None:
        """Set the table of a topic. `nulls` are its records with data null. Raises `503 not_ready` if the disk does not
        answer, and 404 if the topic is deleted; then, and after a cancellation, the topic has no table."""
        log = topic.log
        records: dict[str, TableEntry] = {}
        holes = list(log.losses.holes or ())
        async with AsyncExitStack() as files:
            if topic.segment_set is not None and not topic.segment_set.hot_lock.mine:
                await files.enter_async_context(topic.segment_set.hot_lock)
            for span in log.tags.spans_in_files(log.head_seq):
                await self._add_stored(topic, span, records, nulls)
            await self._add_known(topic, records, nulls)
            made = partial(KeptTags, log.losses, records)
            kept = await self._offload.run(Pool.CPU, made) if len(records) > SORTED_AT_ONCE else made()
        if holes != (log.losses.holes or []):
            kept.lost()  # damage was found meanwhile
        log.kept = kept

    async def _add_stored(
        self, topic: Topic, span: Span, records: dict[str, TableEntry], nulls: Collection[int]
    ) -> None:
        """Add the records of a segment whose tags are only in its file."""
        segment = span.segment
        assert isinstance(segment, Segment)
        tags = await self._loader.tags(topic, segment)
        if not topic.log.stored.holds(span):
            return  # evicted meanwhile
        columns = await self._loader.prepared(topic, partial(_columns_if_held, topic, span))
        if columns is None:
            return
        for i, (tag, record) in enumerate(_records_of(span, columns, tags, topic.log.tags.known_from, nulls), 1):
            add_record(records, tag, record)
            if i % RECORDS_SLICE == 0:
                await trio.lowlevel.checkpoint()

    async def _add_known(self, topic: Topic, records: dict[str, TableEntry], nulls: Collection[int]) -> None:
        """Add the records whose tags memory knows."""
        log = topic.log
        index = log.tags.index
        done = 0
        for tag in index.names() if index is not None else ():
            live = partial(log.tags.matching, TagMatch(tag, prefix=False), before_seq=None, bound=log.head_seq)
            found = await self._loader.prepared(topic, partial(_with_sizes, topic, live))
            for seq, size in found:
                add_record(records, tag, KeptRecord(seq, size, seq in nulls))
            done += 1 + len(found)
            if done >= RECORDS_SLICE:
                done = 0
                await trio.lowlevel.checkpoint()

    async def nulls_of(self, topic: Topic) -> Mapping[int, int]:
        """Return the times (epoch ms) of all live records with a tag and data null, by seq: reads the topic. Raises as
        `build`."""
        found: dict[int, int] = {}
        log = topic.log
        position, loaded = log.earliest_seq - 1, list[Block]()
        while True:
            step = await self._loader.prepared(topic, partial(log.step, position, RECORDS_SLICE))
            if step is None:
                return found
            if isinstance(step, Gap):
                position = step.last
                continue
            block = topic.blocks.find(step.first) or block_with(loaded, step.first)
            if block is None:
                loaded = await self._loader.load(topic, step.first, step.last)
                continue
            position = min(step.last, block.last_seq)
            if NULL in block.body:
                seqs = [
                    seq
                    for seq in range(step.first, position + 1)
                    if block.tag_of(seq) is not None and block.data_of(seq) == NULL
                ]
                times = await self._loader.prepared(topic, partial(_times_of, topic, seqs))
                found.update((seq, ts) for seq, ts in zip(seqs, times, strict=True) if ts)
            await trio.lowlevel.checkpoint()


def _columns_if_held(topic: Topic, span: Span) -> SpanColumns | None:
    return span.columns() if topic.log.stored.holds(span) else None


def _records_of(
    span: Span, columns: SpanColumns, tags: SegmentTags, known_from: int, nulls: Collection[int]
) -> Iterator[tuple[str, KeptRecord]]:
    """Yield the live records of a segment below `known_from`, those of each tag ascending."""
    dead, sizes, n = columns.dead, columns.size, len(columns.dead)
    shift = tags.first - span.first
    for tag, slots in tags.items():
        for slot in slots:
            i = slot + shift
            seq = span.first + i
            if i < n and dead[i] == LIVE and seq < known_from:
                yield tag, KeptRecord(seq, sizes[i], seq in nulls)


def _with_sizes(topic: Topic, live: partial[array[int]]) -> list[tuple[int, int]]:
    """Return live records with their sizes. Raises NotLoaded."""
    found = []
    for seq in live():
        slot = topic.log.index.at(seq)
        assert slot is not None
        slot[0].need()
        found.append((seq, slot[0].size[slot[1]]))
    return found


def _times_of(topic: Topic, seqs: list[int]) -> list[int]:
    """Return the times of records; 0 for one that has died. Raises NotLoaded."""
    return [topic.log.index.ts_of(seq) if topic.log.is_live(seq) else 0 for seq in seqs]
