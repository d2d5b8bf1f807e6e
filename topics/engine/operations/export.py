"""Exports: all that a topic holds in a range, slice by slice (`docs/spec/pipeline.md` section 1,
`docs/design/bulk.md`).

Responsible for what the range is, for going through it at memory that does not depend on it, and for leaving the loop
to others. What is deliverable, and in which order, is `topics.engine.record_collector`'s business; how it looks on the
wire and whether anybody takes it is HTTP's.

An export is no snapshot: its range ends at the head of the call, but what retention or a deletion takes before its
turn comes is not in it any more, and announced as it would be to any reader.
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
from topics.engine.record_collector import Collector, Pause, Run, Wish
from topics.engine.registry import EngineStatus, Registry
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.log.block import Projection
from topics.log.losses import Gap
from topics.log.tag_match import Match
from topics.log.topic_log import TopicLog
from topics.model import Performance, Tombstone
from topics.runtime.clock import Clock

SLICE_BYTES: Final = 128 << 10
SLICE_RECORDS: Final = 10_000
"""One slice: what an export holds, and what it takes of the loop at a time (below a millisecond from memory)."""

RUN_BYTES: Final = 512 << 10
RUN_RECORDS: Final = 4_000
"""The same as runs. Columns cost less for each record, and more for each slice: one to three milliseconds with what is
made of them."""

PAY_FROM_S: Final = 0.002
PAY_MOST_S: Final = 0.05
"""What an export owes the loop is paid when there is so much of it, since the timer's grain is a millisecond, and no
more at once: the longest pause between two slices."""

IDLE_S: Final = 0.0001
"""A turn of the loop that takes no longer had nothing in it for anybody else."""


class ExportRequest(NamedTuple):
    """What is asked for (`docs/spec/pipeline.md` section 1). Seqs: those after `from_seq` up to `to_seq` (None: the
    head at the call). Times: both ends inclusive, None for no bound. `nodes` are the writers to leave out."""

    from_seq: int = 0
    to_seq: int | None = None
    from_ts: int | None = None
    to_ts: int | None = None
    match: Match | None = None
    nodes: frozenset[str] = frozenset()
    include_tags: bool = True
    include_meta: bool = True
    include_data: bool = True
    epoch: int | None = None
    runs: bool = False
    """Records as runs, of which columns can be made, and not as JSON; all of them then, whatever is included."""


class Slice(NamedTuple):
    """A piece of an export: a gap that is announced, if any, and the records after it, as JSON with a line end between
    each two or as runs. Either may be missing, both at a time as well."""

    tombstone: Tombstone | None
    lines: bytes
    runs: Sequence[Run]
    records: int
    """How many that are."""
    examined: int
    """Seqs that were gone through for it."""


class End(NamedTuple):
    """What an export ends with: the last seq it has examined, and the topic as of then."""

    next_from_seq: int
    head_seq: int
    earliest_seq: int
    epoch: int


class Exporting:
    """See the module."""

    def __init__(
        self,
        status: EngineStatus,
        registry: Registry,
        loader: Loader,
        clock: Clock,
        *,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._status = status
        self._registry = registry
        self._loader = loader
        self._clock = clock
        self._catch_up = catch_up

    async def open(self, name: str, request: ExportRequest) -> Export:
        """An export of what there is now, with what routers owe the topic (`docs/spec/api.md` section 7), to be taken
        slice by slice. Raises `404 topic_not_found`, and `503 not_ready` if the disk does not answer."""
        await self._catch_up((name,))
        topic = self._registry.topic(name)
        bounds = await self._loader.prepared(topic, partial(self._bounds, topic, request))
        return Export(self._status, self._registry, self._loader, self._clock, topic, request, bounds)

    def _bounds(self, topic: Topic, request: ExportRequest) -> tuple[int, int]:
        """After which seq the range begins, and its last one, as of now. Raises NotLoaded.

        Times never decrease, so a range of times is one of seqs. A gap at either end may hold what was in it, so it is.
        """
        self._registry.expire(topic)
        log = topic.log
        last = log.head_seq if request.to_seq is None else min(request.to_seq, log.head_seq)
        if request.to_ts is not None:
            later = _live_from(log, _first_at(log, request.to_ts + 1))
            last = last if later is None else min(last, later - 1)
        after = 0
        if request.from_ts is not None:
            first = _first_at(log, request.from_ts)
            after = 0 if first == log.earliest_seq else min(first - 1, last)
        return after, last


class Export:
    """One export. Not for two tasks at a time; nothing has to be closed."""

    def __init__(
        self,
        status: EngineStatus,
        registry: Registry,
        loader: Loader,
        clock: Clock,
        topic: Topic,
        request: ExportRequest,
        bounds: tuple[int, int],
    ) -> None:
        self._status = status
        self._registry = registry
        self._loader = loader
        self._pace = _Pace(registry, clock)
        self._perf = Performance(cold_segments_read=0)
        """What reads have cost; nobody is told."""
        self._topic = topic
        self._after, self._last = bounds
        self._position = request.from_seq
        """The last seq examined."""
        self._same_epoch = request.epoch in (None, topic.id) and request.from_seq <= topic.log.head_seq
        self._began = False
        self._wish = _wish_of(request)

    @property
    def end(self) -> End:
        """What is to be said when there is no more, as of now."""
        log = self._topic.log
        return End(self._position, log.head_seq, log.earliest_seq, self._topic.id)

    async def next_slice(self) -> Slice | None:
        """The next part of the range; None: there is no more.

        Leaves the loop to others first (`_Pace`). Raises `404 topic_not_found` when the topic is gone, `503` when the
        daemon stops or the disk does not answer. Cancelling leaves nothing, and nothing is skipped.
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
        found = await self._gather(self._wish)
        tombstone = self._within(found.tombstone)
        before = self._position
        self._position = max(before, min(found.position, self._last))
        return Slice(tombstone, b"\n".join(found.pieces), found.runs, found.count, self._position - before)

    async def _begin_again(self) -> Slice:
        """Whoever knows another instance is told so, and given this one from its beginning."""
        found = await self._gather(Wish(0, 0))
        self._position = max(found.position, self._after)
        return Slice(found.tombstone, b"", (), 0, 0)

    async def _gather(self, wish: Wish) -> Collector:
        if self._status.phase == "draining":
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        found = Collector(
            self._registry, self._topic, wish, self._position, same_epoch=self._same_epoch, up_to=self._last
        )
        self._same_epoch = True
        while (need := found.advance()) is not None:
            if need is Pause.PAUSE:
                await self._pace.pay()
            else:
                await self._loader.provide(found, need, self._perf)
        return found

    def _within(self, tombstone: Tombstone | None) -> Tombstone | None:
        """What of a gap is in the range: ranges that follow each other announce each seq once."""
        if tombstone is None or tombstone.gap_to <= self._last:
            return tombstone
        length = self._last - tombstone.gap_from + 1
        if length <= 0:
            return None
        return replace(tombstone, gap_to=self._last, missed_estimate=min(length, tombstone.missed_estimate))


def _wish_of(request: ExportRequest) -> Wish:
    """What is wanted of a slice."""
    if request.runs:
        return Wish(RUN_RECORDS, RUN_BYTES, request.nodes, match=request.match, runs=True)
    projection = Projection(request.include_tags, request.include_meta, request.include_data)
    return Wish(SLICE_RECORDS, SLICE_BYTES, request.nodes, projection, request.match, b"\n")


class _Pace:
    """Leaves the loop to others: while somebody appends, for as long as it was taken; at other times until nobody wants
    it any more, if that is sooner.

    Taken counts everything since the last payment, what others did meanwhile as well: with others about, and other
    exports are such, each takes less than half. A caller that waited for its reader pays for that, too, which costs
    nothing: the reader has what is in the sockets to go on with.
    """

    def __init__(self, registry: Registry, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._since_ns: int | None = None
        self._owed_s = 0.0

    async def pay(self) -> None:
        """Called between slices, and where many records are passed over. Cancelling leaves the debt."""
        now_ns = self._clock.perf_ns()
        if self._since_ns is not None:
            self._owed_s = min(self._owed_s + (now_ns - self._since_ns) / 1e9, PAY_MOST_S)
        self._since_ns = now_ns
        await trio.lowlevel.checkpoint()  # what has come meanwhile is seen
        if not self._registry.lively:
            while not await self._is_unwanted() and self._owed_s > 0:
                pass
            self._owed_s = 0.0
        elif self._owed_s >= PAY_FROM_S:
            await trio.sleep(self._owed_s)
            # The timer is late by up to a millisecond: that was paid as well, as far as it is not made a habit of.
            self._owed_s = max(self._owed_s - self._passed_s(), -PAY_FROM_S)

    async def _is_unwanted(self) -> bool:
        """Give everybody a turn; whether nobody had anything to do with it."""
        await trio.lowlevel.checkpoint()
        passed = self._passed_s()
        self._owed_s -= passed
        return passed < IDLE_S

    def _passed_s(self) -> float:
        """Since this was last asked, or paying began."""
        assert self._since_ns is not None
        before_ns, self._since_ns = self._since_ns, self._clock.perf_ns()
        return (self._since_ns - before_ns) / 1e9


def _first_at(log: TopicLog, ts: int) -> int:
    """The first seq behind which everything live is of `ts` or later; the front if everything is. Raises NotLoaded."""
    seqs = range(log.earliest_seq, log.head_seq + 1)
    return log.earliest_seq + bisect_left(seqs, ts, key=partial(_ts_from, log))


def _ts_from(log: TopicLog, seq: int) -> int:
    """The time of the first live record from `seq` on; later than any if there is none."""
    live = _live_from(log, seq)
    return sys.maxsize if live is None else log.index.ts_of(live)


def _live_from(log: TopicLog, seq: int) -> int | None:
    """The first live seq from `seq` on."""
    step = log.step(seq - 1, 1)
    while isinstance(step, Gap):
        step = log.step(step.last, 1)
    return None if step is None else step.first
