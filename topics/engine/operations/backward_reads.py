"""Reading backwards: the newest records below a seq (`docs/spec/api.md` section 5), for people who look at a topic.

Theory of operation. The index and the tag index lead forwards only, so a window of seqs that ends at the seq is read
forwards by a `Collector`, and its newest records are kept. If it holds too few, the window below it is read, twice as
wide. If it holds more than the answer may have, it is read again, narrower, so that no more than a few times the answer
is ever in memory. A gap ends the answer: the records above it come first, then its tombstone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from topics.config import Settings
from topics.engine.loader import Loader
from topics.engine.record_collector import Collector, RecordRequest
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.filters.record_filter import Filter
from topics.log.block import Projection
from topics.model import Performance, Tombstone

MOST_WINDOW: Final = 1 << 22
"""Seqs of a window at most."""

SPARE: Final = 4
"""How many times the wanted records and bytes a window may hold before it is read again, narrower."""


class _Numbered(msgspec.Struct):
    """A record, of which only the seq is decoded."""

    seq: int = msgspec.field(name="$seq")


_numbered: Final = msgspec.json.Decoder(_Numbered)
_raw_records: Final = msgspec.json.Decoder(list[msgspec.Raw])


class BackwardRead(msgspec.Struct, kw_only=True):
    """A read of the newest records below a seq, with its limits applied (`docs/spec/api.md` section 5). The other
    fields are those of `ReadRequest`. Records at and below `from_seq` are not read."""

    before_seq: int
    from_seq: int = 0
    epoch: int | None = None
    limit: int = 256
    nodes: frozenset[str] = frozenset()
    include_tags: bool = False
    include_meta: bool = True
    max_batch_bytes: int = 1 << 20
    filter: Filter | None = None
    touch: bool = True


class BackwardResult(msgspec.Struct, kw_only=True):
    """The result of a read backwards. `records` are the JSON of single records, the newest first."""

    topic: str
    epoch: int
    records: Sequence[msgspec.Raw]
    next_from_seq: int
    next_before_seq: int
    head_seq: int
    earliest_seq: int
    is_over: bool
    """There is nothing to be read below `next_before_seq`."""
    tombstone: Tombstone | None


class _Window(NamedTuple):
    """The content of a window of seqs: its records above the last gap, ascending, and that gap."""

    records: list[msgspec.Raw]
    gap: Tombstone | None


class _BackwardProgress:
    """A read backwards under way. `top` is the highest seq that has not been looked at."""

    def __init__(self, topic: Topic, request: BackwardRead, most_scanned: int) -> None:
        self.topic = topic
        self.request = request
        self.top = self.began = min(request.before_seq - 1, topic.log.head_seq)
        self.most_scanned = most_scanned
        self.records: list[msgspec.Raw] = []
        self.room = request.max_batch_bytes
        self.tombstone: Tombstone | None = None
        self.to_scan = most_scanned
        """Records that a filter may still be asked about."""

    @property
    def is_over(self) -> bool:
        """Return True if there is neither a record nor a gap to be told of below."""
        low, log = self.request.from_seq, self.topic.log
        return self.top <= low or (self.top < log.earliest_seq and log.losses.evict_floor <= low + 1)

    @property
    def goes_on(self) -> bool:
        """Return True if the answer takes more."""
        if len(self.records) >= self.request.limit or self.room <= 0 or self.tombstone is not None:
            return False
        return not self.is_over and (self.to_scan > 0 or self.top == self.began)

    @property
    def allowance(self) -> int:
        """How many records a filter may be asked about for the next window. If windows that held too much have used up
        all of `most_scanned`, the next one gets it again: each is narrower than the one before, so the read comes to an
        end."""
        return self.to_scan if self.to_scan > 0 else self.most_scanned

    def take(self, window: _Window, bottom: int) -> None:
        """Take the newest records of a window above the seq `bottom`, as many as the answer has room for."""
        for record in reversed(window.records):
            if len(self.records) >= self.request.limit or self.room <= 0:
                return
            if self.records and len(record) > self.room:
                self.room = 0
                return
            self.records.append(record)
            self.room -= len(record) + 1
            self.top = _seq_of(record) - 1
        self.tombstone = window.gap
        self.top = bottom if window.gap is None else min(self.top, window.gap.gap_from - 1)


class BackwardReads:
    """The call that reads backwards. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        loader: Loader,
        *,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._loader = loader
        self._catch_up = catch_up

    async def read(self, name: str, request: BackwardRead, perf: Performance) -> BackwardResult:
        """Return the newest records below `before_seq`, the newest first, after forwarding what routers owe the topic
        now.

        Raises `404 topic_not_found`, and `503 not_ready` if the disk does not answer. Cancelling leaves nothing behind.
        """
        await self._catch_up((name,))
        topic = self._registry.topic(name)
        if request.touch:
            self._registry.touch(topic)
        perf.records_scanned = perf.records_scanned or 0
        perf.cold_segments_read = perf.cold_segments_read or 0
        if request.epoch is not None and request.epoch != topic.id:
            return await self._recreated(topic)
        progress = _BackwardProgress(topic, request, self._settings.max_scan)
        width = request.limit
        while progress.goes_on:
            bottom = self._bottom(progress, width)
            window = await self._window(progress, bottom, perf)
            if window is None:
                width = max(1, (progress.top - max(bottom, topic.log.earliest_seq - 1)) // SPARE)
                continue
            progress.take(window, bottom)
            width = min(width * 2, MOST_WINDOW)
        log = topic.log
        self._registry.traffic.count_out(len(progress.records), request.max_batch_bytes - progress.room)
        return BackwardResult(
            topic=name,
            epoch=topic.id,
            records=progress.records,
            next_from_seq=max(progress.began, 0),
            next_before_seq=progress.top + 1,
            head_seq=log.head_seq,
            earliest_seq=log.earliest_seq,
            is_over=progress.is_over,
            tombstone=progress.tombstone,
        )

    async def _recreated(self, topic: Topic) -> BackwardResult:
        """Return the answer to a reader that knows another instance of the topic: it begins anew at the head."""
        log = topic.log
        _, tombstone = await self._loader.prepared(topic, lambda: log.start(0, False))
        return BackwardResult(
            topic=topic.name,
            epoch=topic.id,
            records=[],
            next_from_seq=log.head_seq,
            next_before_seq=log.head_seq + 1,
            head_seq=log.head_seq,
            earliest_seq=log.earliest_seq,
            is_over=False,
            tombstone=tombstone,
        )

    def _bottom(self, progress: _BackwardProgress, width: int) -> int:
        """Return the seq above which the next window begins."""
        request, topic = progress.request, progress.topic
        if request.filter is not None and request.filter.tags is None:
            width = min(width, progress.allowance)
        bottom = max(request.from_seq, progress.top - width)
        # There is nothing below the first live record but one gap, which is told as a whole.
        return request.from_seq if bottom < topic.log.earliest_seq else bottom

    async def _window(self, progress: _BackwardProgress, bottom: int, perf: Performance) -> _Window | None:
        """Return what the seqs above `bottom` up to `top` hold; None if that is far more than is wanted."""
        request, topic, top = progress.request, progress.topic, progress.top
        position, single = bottom, top - bottom == 1
        count, room = request.limit * SPARE, progress.room * SPARE
        projection = Projection(request.include_tags, request.include_meta)
        pieces: list[bytes] = []
        gap: Tombstone | None = None
        while position < top:
            if (count <= 0 or room <= 0) and not single:
                return None
            wish = RecordRequest(max(count, 1), max(room, 1), request.nodes, projection, filter=request.filter)
            found = Collector(self._registry, topic, wish, position, up_to=top, most_scanned=progress.allowance)
            while (need := found.advance()) is not None:
                await self._loader.provide(found, need, perf)
            perf.records_scanned = (perf.records_scanned or 0) + found.scanned
            if request.filter is not None:
                progress.to_scan -= found.scanned
                if found.scan_is_over and found.position < top:
                    return None
            if found.tombstone is not None:
                pieces, gap = [], _up_to(found.tombstone, top)
            pieces += found.pieces
            count -= found.count
            room = found.room
            position = found.position
        return _Window(_raw_records.decode(b"[%b]" % b",".join(pieces)), gap)


def _up_to(gap: Tombstone, top: int) -> Tombstone:
    """Return the part of a gap that does not lie above `top`: the rest was told of before."""
    if gap.gap_to <= top:
        return gap
    missed = min(gap.missed_estimate, top - gap.gap_from + 1)
    return msgspec.structs.replace(gap, gap_to=top, missed_estimate=missed)


def _seq_of(record: msgspec.Raw) -> int:
    return _numbered.decode(record).seq
