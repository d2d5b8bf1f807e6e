"""Exports: all records of a topic in a range, slice by slice (`docs/spec/pipeline.md` section 1,
`docs/design/bulk.md`).

Responsible for finding the range, for going through it with memory that does not depend on its size, and for leaving
the loop to others. `topics.engine.record_collector` decides which records are deliverable, and in which order; HTTP
encodes it and waits for the client.

An export is no snapshot. Its range ends at the head of the call, but records that retention or a deletion takes before
their turn are missing, and are announced as to any reader.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

import trio
from msgspec.structs import replace

from topics.engine.loader import Loader
from topics.engine.reach import KnownPlace, Reach
from topics.engine.record_collector import BlockRun, Collector, PauseNeeded, RecordRequest
from topics.engine.registry import EngineStatus, Registry
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.filters.record_filter import Filter
from topics.log.block import Projection
from topics.log.losses import Gap
from topics.log.tag_match import TagMatch
from topics.log.topic_log import TopicLog
from topics.model import Performance, Tombstone
from topics.runtime.clock import Clock
from topics.runtime.turns import Turns

SLICE_BYTES: Final = 128 << 10
SLICE_RECORDS: Final = 10_000
"""Bounds of one slice: the bytes that an export keeps in memory, and the time that it holds the loop (below 1 ms from
memory)."""

SLICE_S: Final = 0.5
"""A slice ends after this time, even if no record was found. So the answer begins soon, and a matching record does not
wait for the next match."""

RUN_BYTES: Final = 512 << 10
RUN_RECORDS: Final = 4_000
"""Bounds of one slice of runs. Columns cost less per record and more per slice: one to three ms with their encoding."""

PAY_FROM_S: Final = 0.002
PAY_MOST_S: Final = 0.05
"""An export pauses once it owes the loop `PAY_FROM_S`, because timers are precise to a millisecond only. It never
pauses for longer than `PAY_MOST_S` between two slices."""

IDLE_S: Final = 0.0001
"""If a turn of the loop takes no longer than this, no other task had anything to do."""


class ExportRequest(NamedTuple):
    """The range of an export (`docs/spec/pipeline.md` section 1). Seqs: those after `from_seq` up to `to_seq` (None:
    the head at the call). Times: epoch ms, both ends inclusive, None for no bound. `nodes` are the writers to leave
    out."""

    from_seq: int = 0
    to_seq: int | None = None
    from_ts: int | None = None
    to_ts: int | None = None
    match: TagMatch | None = None
    filter: Filter | None = None
    nodes: frozenset[str] = frozenset()
    include_tags: bool = True
    include_meta: bool = True
    include_data: bool = True
    epoch: int | None = None
    runs: bool = False
    """True for whole records as runs, from which columns can be made, instead of JSON. `include_` has no effect."""


class ExportSlice(NamedTuple):
    """A piece of an export: a gap to announce, if any, and the records after it, either as JSON lines or as runs. It
    has neither if no examined record matches."""

    tombstone: Tombstone | None
    lines: bytes
    runs: Sequence[BlockRun]
    records: int
    """How many records are in this slice."""
    examined: int
    """Seqs that were examined for this slice."""


class ExportEnd(NamedTuple):
    """The end of an export: the last seq it has examined, and the topic's state at that time."""

    next_from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int


class Exports:
    """Opens exports. Made once by the engine."""

    def __init__(
        self,
        status: EngineStatus,
        registry: Registry,
        loader: Loader,
        reach: Reach,
        clock: Clock,
        turns: Turns,
        *,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._status = status
        self._registry = registry
        self._loader = loader
        self._reach = reach
        self._clock = clock
        self._turns = turns
        self._catch_up = catch_up

    async def open(self, name: str, request: ExportRequest) -> Export:
        """Return an export of the current records, after forwarding what routers owe the topic (`docs/spec/api.md`
        section 7). Raises `404 topic_not_found`, and `503 not_ready` if the disk does not answer."""
        await self._catch_up((name,))
        await self._reach.wait([KnownPlace(name, request.from_seq, request.epoch)], trio.current_time())
        topic = self._registry.topic(name)
        bounds = await self._loader.prepared(topic, partial(self._bounds, topic, request))
        pace = _Pace(self._registry, self._clock, self._turns)
        return Export(self._status, self._registry, self._loader, self._clock, pace, topic, request, bounds)

    def _bounds(self, topic: Topic, request: ExportRequest) -> tuple[int, int]:
        """Return the seq before the range and the last seq of it. Raises NotLoaded.

        Times never decrease, so a range of times is a range of seqs. A gap at either end belongs to the range, because
        records of the range may have been in it.
        """
        self._registry.expire(topic)
        log = topic.log
        last = log.head_seq if request.to_seq is None else min(request.to_seq, log.head_seq)
        if request.to_ts is not None:
            later = _live_from(log, first_at(log, request.to_ts + 1))
            last = last if later is None else min(last, later - 1)
        after = 0
        if request.from_ts is not None:
            first = first_at(log, request.from_ts)
            after = 0 if first == log.earliest_seq else min(first - 1, last)
        return after, last


class Export:
    """One export. For one task at a time; nothing has to be closed."""

    def __init__(
        self,
        status: EngineStatus,
        registry: Registry,
        loader: Loader,
        clock: Clock,
        pace: _Pace,
        topic: Topic,
        request: ExportRequest,
        bounds: tuple[int, int],
    ) -> None:
        self._status = status
        self._registry = registry
        self._loader = loader
        self._clock = clock
        self._pace = pace
        self._perf = Performance(cold_segments_read=0)
        """Needed by the loader; not reported."""
        self._topic = topic
        self._after, self._last = bounds
        self._position = request.from_seq
        """The last seq examined."""
        self._same_epoch = request.epoch in (None, topic.id) and request.from_seq <= topic.log.head_seq
        self._began = False
        self._wish = _wish_of(request)
        self._unfinished: Collector | None = None
        """The read of the last slice, if it has found no record yet and must continue."""

    @property
    def left(self) -> int:
        """Seqs of the range that have not been examined."""
        return max(self._last - self._position, 0)

    @property
    def end(self) -> ExportEnd:
        """Return the end of the export, as of now."""
        log = self._topic.log
        return ExportEnd(self._position, log.head_seq, log.earliest_seq, self._topic.id)

    async def next_slice(self) -> ExportSlice | None:
        """Return the next part of the range, None at its end. It may be empty (`ExportSlice`).

        Leaves the loop to others first (`_Pace`). Raises `404 topic_not_found` when the topic is deleted, `503` when
        the daemon stops or the disk does not answer. Cancelling loses and skips nothing.
        """
        await self._pace.pay()
        self._registry.touch(self._topic)
        if not self._began:
            self._began = True
            if not self._same_epoch:
                return await self._begin_again()
            self._position = max(self._position, self._after)
        elif self._position >= self._last:
            return None
        found = self._unfinished or self._collector(self._wish)
        ended = await self._gather(found)
        self._unfinished = None if ended or found.count or found.tombstone is not None else found
        tombstone = self._within(found.tombstone)
        before = self._position
        self._position = max(before, min(found.position, self._last))
        return ExportSlice(tombstone, b"\n".join(found.pieces), tuple(found.runs), found.count, self._position - before)

    async def _begin_again(self) -> ExportSlice:
        """Announce to a caller that knows another instance of the topic that the topic was recreated, and begin this
        instance from its first record."""
        found = self._collector(RecordRequest(0, 0))
        while not await self._gather(found):
            pass
        self._position = max(found.position, self._after)
        return ExportSlice(found.tombstone, b"", (), 0, 0)

    def _collector(self, wish: RecordRequest) -> Collector:
        same, self._same_epoch = self._same_epoch, True
        return Collector(self._registry, self._topic, wish, self._position, same_epoch=same, up_to=self._last)

    async def _gather(self, found: Collector) -> bool:
        """Let a read go on for `SLICE_S`. Return True if it has come to its end."""
        if self._status.phase == "draining":
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        begun_ns = self._clock.perf_ns()
        while (need := found.advance()) is not None:
            if need is PauseNeeded.PAUSE:
                await self._pace.pay()
            else:
                await self._loader.provide(found, need, self._perf)
            if self._clock.perf_ns() - begun_ns >= SLICE_S * 1e9:
                return False
        return True

    def _within(self, tombstone: Tombstone | None) -> Tombstone | None:
        """Return the part of a gap that is in the range, so that adjoining ranges announce each seq once."""
        if tombstone is None or tombstone.gap_to <= self._last:
            return tombstone
        length = self._last - tombstone.gap_from + 1
        if length <= 0:
            return None
        return replace(tombstone, gap_to=self._last, missed_estimate=min(length, tombstone.missed_estimate))


def _wish_of(request: ExportRequest) -> RecordRequest:
    """Return the collector's wish for a slice."""
    if request.runs:
        return RecordRequest(
            RUN_RECORDS, RUN_BYTES, request.nodes, match=request.match, filter=request.filter, runs=True
        )
    projection = Projection(request.include_tags, request.include_meta, request.include_data)
    return RecordRequest(SLICE_RECORDS, SLICE_BYTES, request.nodes, projection, request.match, b"\n", request.filter)


class _Pace:
    """Leaves the loop to others. While appends arrive, it pauses for as long as the loop was used; otherwise only until
    no task wants the loop, if that is sooner.

    The time used counts from the last pause, including what other tasks did meanwhile: with other tasks at work, such
    as other exports, each takes less than half. Time spent waiting for the client counts too, which costs nothing: the
    client still has bytes in the sockets to read.
    """

    def __init__(self, registry: Registry, clock: Clock, turns: Turns) -> None:
        self._registry = registry
        self._clock = clock
        self._turns = turns
        self._since_ns: int | None = None
        self._owed_s = 0.0

    async def pay(self) -> None:
        """Pause for the time that the export owes the loop, and take a turn for the next slice. Called before each
        slice, and while many records are skipped. Cancelling leaves the debt."""
        now_ns = self._clock.perf_ns()
        if self._since_ns is not None:
            self._owed_s = min(self._owed_s + (now_ns - self._since_ns) / 1e9, PAY_MOST_S)
        self._since_ns = now_ns
        if not self._registry.lively:
            while not await self._is_unwanted() and self._owed_s > 0:
                pass
            self._owed_s = 0.0
        elif self._owed_s >= PAY_FROM_S:
            await trio.sleep(self._owed_s)
            # The timer may be late by up to a millisecond, which counts as paid too, up to a bound.
            self._owed_s = max(self._owed_s - self._passed_s(), -PAY_FROM_S)
        await self._turns.take()

    async def _is_unwanted(self) -> bool:
        """Let every other task run once. Return True if none had anything to do."""
        await trio.lowlevel.checkpoint()
        passed = self._passed_s()
        self._owed_s -= passed
        return passed < IDLE_S

    def _passed_s(self) -> float:
        """Return the time (s) since the last call, or since the last pause."""
        assert self._since_ns is not None
        before_ns, self._since_ns = self._since_ns, self._clock.perf_ns()
        return (self._since_ns - before_ns) / 1e9


def first_at(log: TopicLog, ts: int) -> int:
    """Return the first seq behind which every live record is of time `ts` or later, the front if all are. Raises
    NotLoaded."""
    seqs = range(log.earliest_seq, log.head_seq + 1)
    return log.earliest_seq + bisect_left(seqs, ts, key=partial(_ts_from, log))


def _ts_from(log: TopicLog, seq: int) -> int:
    """Return the time of the first live record from `seq` on; a time later than any record if there is none."""
    live = _live_from(log, seq)
    return sys.maxsize if live is None else log.index.ts_of(live)


def _live_from(log: TopicLog, seq: int) -> int | None:
    """Return the first live seq from `seq` on, None if there is none."""
    step = log.step(seq - 1, 1)
    while isinstance(step, Gap):
        step = log.step(step.last, 1)
    return None if step is None else step.first
