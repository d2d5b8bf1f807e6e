"""The deliverable records of a topic after a position, gathered in single steps of the loop.

A `Collector` is one read: a diff (`topics.engine.operations.read`), one frame for watchers (`topics.engine.delivery`)
or one slice of an export (`topics.engine.operations.export`). It never waits. If it needs something that is not in
memory, `advance` returns that need, and is called again when it has been met. A reader that does not want to wait takes
the records gathered so far. `topics.log` says which seqs are live, deleted or lost; the bytes are cut from blocks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec
import trio

from topics.engine.filtered_records import BlockRecord, TagsNeeded, walk_of
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import topic_not_found
from topics.filters.record_filter import Filter
from topics.log.block import Block, Projection, block_with
from topics.log.losses import Gap
from topics.log.span import NotLoaded, Span
from topics.log.tag_match import TagMatch
from topics.log.topic_log import SeqRun
from topics.model import Tombstone

SCAN_SLICE: Final = 10_000
"""Records that a read skips (filters out) before it lets other tasks run."""

FILTER_SLICE: Final = 2_000
DECODE_SLICE: Final = 250
DECODE_BYTES: Final = 128 << 10
"""The same with a filter: records, records whose `data` or `meta` it decodes, and bytes of them. Each takes about a
millisecond at most, as a piece of bulk work does (`docs/design/filters.md`)."""

FILTER_RUN: Final = 1000
"""Records of a run that a read with a filter asks for: what one read from disk loads at most."""

MOST_RUNS: Final = 500
"""Runs that a read returns at most, because each costs some microseconds."""


class RecordRequest(NamedTuple):
    """The records that a reader wants. `limit` counts records, `max_bytes` their JSON; at least one record is given, of
    any size. `nodes` are the writers to leave out, `match` is the condition on tags."""

    limit: int
    max_bytes: int
    nodes: frozenset[str] = frozenset()
    projection: Projection = Projection()
    match: TagMatch | None = None
    separator: bytes = b","
    """One byte, between the records of a piece."""
    filter: Filter | None = None
    """The filter that the records must match besides."""
    runs: bool = False
    """True for records as runs, from which columns can be made; the projection must be the default one then."""


class BlockRun(NamedTuple):
    """Consecutive records of a block, in the block's own form. A column that no record of the block has is None."""

    text: bytes
    """Their JSON with commas between them, without tags."""
    starts: array[int]
    """Where each record begins, and the end of the last one. The first is not 0: only differences count."""
    tags: bytes
    tag_starts: array[int] | None
    """Where each tag begins, like `starts`."""
    meta_lens: array[int] | None
    nodes: Sequence[str]
    node_ids: array[int] | None


class ColumnsNeeded(NamedTuple):
    """The read needs these columns of the index."""

    spans: tuple[Span, ...]


class RecordsNeeded(NamedTuple):
    """The read needs the live records from `first` to `last`, which are on disk."""

    first: int
    last: int


class PauseNeeded(Enum):
    """The read needs a pause in which other tasks run."""

    PAUSE = "pause"


Need = ColumnsNeeded | RecordsNeeded | TagsNeeded | PauseNeeded | trio.Event
"""The things that a read may wait for. An event is the topic's `working`."""


class Collector:
    """One read. Its results so far (`tombstone`, records, position) may be used after each `advance`. Nothing has to be
    closed."""

    __slots__ = (
        "_from_seq",
        "_needed",
        "_registry",
        "_same_epoch",
        "_since_pause",
        "_slice",
        "_started",
        "_tag",
        "_to_scan",
        "_wish",
        "after_tombstone",
        "count",
        "loaded",
        "pieces",
        "position",
        "room",
        "runs",
        "scanned",
        "tombstone",
        "topic",
        "up_to",
        "walk",
    )

    def __init__(
        self,
        registry: Registry,
        topic: Topic,
        wish: RecordRequest,
        from_seq: int,
        *,
        same_epoch: bool = True,
        up_to: int | None = None,
        most_scanned: int | None = None,
    ) -> None:
        self.topic = topic
        self.position = from_seq
        """The last seq examined."""
        self.tombstone: Tombstone | None = None
        self.after_tombstone = 0
        """`position` between the tombstone and the first record."""
        self.pieces: list[bytes] = []
        """JSON of the records found, to be joined by the separator."""
        self.runs: list[BlockRun] = []
        """The records found, as runs, if the wish is for runs."""
        self.count = 0
        self.scanned = 0
        self.room = wish.max_bytes
        self.loaded: Sequence[Block] = ()
        """Blocks that were loaded for this read, which the cache may have evicted."""
        self.up_to = up_to
        """The last seq that this read may see, if below the head."""
        self.walk = walk_of(topic, wish.filter, registry.may_have_tags)
        """Leads through the records that the filter may match, if the tag index knows them."""
        self._to_scan = most_scanned if wish.filter is not None else None
        """Records that a read with a filter may still look at; None for no bound."""
        self._slice = _slice_of(wish)
        """Records that it looks at before it lets other tasks run."""
        self._registry = registry
        self._wish = wish
        self._tag = _beginning_of(wish.match) if wish.match is not None else b""
        """The beginning of a wanted tag's text in a block; empty if any tag will do."""
        self._from_seq = from_seq
        self._same_epoch = same_epoch
        self._started = False
        self._since_pause = 0
        self._needed: dict[Span, None] = {}

    @property
    def end(self) -> int:
        """The last seq that may be delivered now."""
        head = self.topic.log.head_seq
        return head if self.up_to is None else min(head, self.up_to)

    @property
    def filtered(self) -> int:
        """How many records a filter was asked about."""
        return self.scanned if self._wish.filter is not None else 0

    @property
    def scan_is_over(self) -> bool:
        """Return True if it has looked at as many records as it may."""
        return self._to_scan == 0

    def advance(self) -> Need | None:
        """Gather what is in memory, in the order floor, hole, ttl, deleted, node, filter, deliver. Return what is
        needed to go on, None if there are no more records or a limit is reached. Raises `404 topic_not_found` if the
        topic is deleted."""
        if self.topic.deleted:
            raise topic_not_found(self.topic.name)
        if self.topic.working is not None:
            return self.topic.working
        try:
            if not self._started:
                self._registry.expire(self.topic)
                self._same_epoch = self._same_epoch and self._from_seq <= self.topic.log.head_seq
                self._begin()
                self._started = True
            need = self._gather()
        except NotLoaded as missing:
            # All columns that it has needed so far, because loading some may drop others.
            self._needed.update(dict.fromkeys(missing.spans))
            return ColumnsNeeded(tuple(self._needed))
        self._needed.clear()
        return need

    def _begin(self) -> None:
        self.position, self.tombstone = self.topic.log.start(self._from_seq, self._same_epoch)
        self.after_tombstone = self.position

    def _gather(self) -> Need | None:
        log, wish = self.topic.log, self._wish
        hidden = wish.nodes if self.topic.config.dedupe_node else frozenset()
        end = self.end
        while self.count < wish.limit and self.room > 0:
            if self.position + 1 < log.losses.evict_floor:  # the front has passed the position since the last step
                if self.count:
                    return None
                self._begin()
                continue
            if self.scan_is_over:
                return None
            step = self._next(end)
            if isinstance(step, TagsNeeded):
                return step
            if isinstance(step, PauseNeeded):
                self._since_pause = 0
                return step
            if step is None or step.first > end:
                self.position = max(self.position, end)
                return None
            if isinstance(step, Gap):
                if self.count or self.tombstone is not None:
                    self.position = step.first - 1  # the deleted seqs before it have been examined
                    return None
                self.tombstone = log.tombstone_of(step)
                self.position = self.after_tombstone = step.last
                continue
            block = self.topic.blocks.find(step.first) or block_with(self.loaded, step.first)
            if block is None:
                return RecordsNeeded(step.first, step.last)
            last = min(step.last, block.last_seq, end)
            if not self._take(block, step.first, last if wish.filter is None else self._bounded(block, step), hidden):
                return None
            if self._since_pause >= self._slice:
                self._since_pause = 0
                return PauseNeeded.PAUSE
        return None

    def _next(self, end: int) -> SeqRun | Gap | TagsNeeded | PauseNeeded | None:
        """Return the next run of records to look at, or what comes before it."""
        log, wish = self.topic.log, self._wish
        if wish.filter is None:
            return log.step(self.position, wish.limit - self.count)
        if self.walk is None:
            return log.step(self.position, FILTER_RUN)
        while True:
            begin = max(self.position + 1, log.earliest_seq)
            seq = self.walk.next(begin, end)
            if isinstance(seq, TagsNeeded):
                return seq
            gap = log.losses.gap_at(begin, seq + 1)
            if gap is not None and gap.first <= end:
                return gap
            if seq > end:
                return None
            if self.walk.paused:
                self.position = seq - 1
                return PauseNeeded.PAUSE
            if log.is_live(seq):
                return log.step(seq - 1, self.walk.run_end(seq, FILTER_RUN) - seq + 1)
            self.position = seq

    def _bounded(self, block: Block, run: SeqRun) -> int:
        """Return the last record of a run that is looked at now: within the block, what a filter may look at in one
        step, and what it may look at altogether."""
        last = min(run.last, block.last_seq, self.end, run.first + DECODE_SLICE - 1)
        if self._to_scan is not None:
            last = min(last, run.first + self._to_scan - 1)
        starts, i = block.starts, run.first - block.first_seq
        return max(run.first, min(last, block.first_seq + bisect_right(starts, starts[i] + DECODE_BYTES, i) - 1))

    def _take(self, block: Block, first: int, last: int, hidden: frozenset[str]) -> bool:
        """Take the wanted records of `first` to `last` of a block. Return False if there is no room for all of them."""
        for run_first, run_last in self._wanted(block, first, last, hidden):
            if not self._cut(block, run_first, run_last) or self.count == self._wish.limit:
                break
        else:
            self.position = last
        if block.views:
            self._registry.cache.grown(block)
        scanned = self.position - first + 1
        self.scanned += scanned
        self._since_pause += scanned
        if self._wish.filter is not None:
            size = block.starts[self.position + 1 - block.first_seq] - block.starts[first - block.first_seq]
            self._since_pause += self._slice * size // DECODE_BYTES if self._slice == DECODE_SLICE else 0
            if self._to_scan is not None:
                self._to_scan -= scanned
        return self.position == last

    def _wanted(self, block: Block, first: int, last: int, hidden: frozenset[str]) -> Iterator[tuple[int, int]]:
        """Yield runs of records whose node is not hidden, whose tag is wanted, and that match the filter."""
        tag, tags, tag_starts = self._tag, block.tags, block.tag_starts
        if tag and (tags is None or tag_starts is None or tag not in tags):
            return
        tests: list[Callable[[int], bool]] = []
        if block.nodes is not None and not hidden.isdisjoint(block.nodes):
            tests.append(lambda seq: block.node_of(seq) not in hidden)
        if tag and tags is not None and tag_starts is not None:
            texts, starts, base = tags, tag_starts, block.first_seq
            tests.append(
                lambda seq: starts[seq - base] < starts[seq - base + 1] and texts.startswith(tag, starts[seq - base])
            )
        if self._wish.filter is not None:
            tests.append(_test_of(self._wish.filter, block))
        if not tests:
            yield first, last
            return
        is_wanted = tests[0] if len(tests) == 1 else lambda seq: all(test(seq) for test in tests)
        begin = first
        for seq in range(first, last + 1):
            if not is_wanted(seq):
                if begin < seq:
                    yield begin, seq - 1
                begin = seq + 1
            elif seq - begin + 1 == self._wish.limit - self.count:
                yield begin, seq
                begin = seq + 1
        if begin <= last:
            yield begin, last

    def _cut(self, block: Block, first: int, last: int) -> bool:
        wish = self._wish
        taken, to = block.cut(first, last, self.room, wish.projection, at_least_one=not self.count)
        if taken:
            self.count += to - first + 1
            self.room -= len(taken) + 1
            if wish.runs:
                self.runs.append(run_of(block, first, to, taken))
                if len(self.runs) == MOST_RUNS:
                    self.room = 0
            else:
                self.pieces.append(taken if wish.separator == b"," else _separated(block, wish, first, to, taken))
        self.position = to
        return to == last


def _separated(block: Block, wish: RecordRequest, first: int, last: int, taken: bytes) -> bytes:
    """Return the records `first` to `last` that were cut from a block, with the wanted separator in place of the
    commas."""
    _, starts = block.view(wish.projection)
    i, j = first - block.first_seq, last - block.first_seq + 1
    text, separator = bytearray(taken), wish.separator[0]
    before = starts[i] + 1
    for start in starts[i + 1 : j]:
        text[start - before] = separator
    return bytes(text)


def run_of(block: Block, first: int, last: int, text: bytes) -> BlockRun:
    """Return records `first` to `last` of a block, whose JSON is `text`, as a run that keeps no reference to the
    block."""
    i, j = first - block.first_seq, last - block.first_seq + 1
    tags, tag_starts = b"", None
    if block.tags is not None and block.tag_starts is not None:
        tags = bytes(block.tags[block.tag_starts[i] : block.tag_starts[j]])
        tag_starts = block.tag_starts[i : j + 1]
    return BlockRun(
        text,
        block.starts[i : j + 1],
        tags,
        tag_starts,
        block.meta_lens[i:j] if block.meta_lens is not None else None,
        tuple(block.nodes or ()),
        block.node_ids[i:j] if block.node_ids is not None else None,
    )


def _beginning_of(match: TagMatch) -> bytes:
    """Return the beginning of a matching tag's text in a block. Text is escaped character by character, so a tag that
    begins with the pattern begins with the escaped pattern."""
    pattern = msgspec.json.encode(match.pattern)
    return b'"$tag":%b' % (pattern[:-1] if match.prefix else pattern)


def _test_of(wanted: Filter, block: Block) -> Callable[[int], bool]:
    """Return a test that a record of a block matches a filter."""
    record, matches = BlockRecord(block), wanted.matches

    def test(seq: int) -> bool:
        record.seq = seq
        return matches(record)

    return test


def _slice_of(wish: RecordRequest) -> int:
    if wish.filter is None:
        return SCAN_SLICE
    return DECODE_SLICE if wish.filter.uses_data or wish.filter.uses_meta else FILTER_SLICE
