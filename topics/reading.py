"""One read: what is deliverable after a position, and waiting for it (`api.md` section 5).

Responsible for the diff and its long poll. Which seqs are live, gone or announced is `topics.log`'s answer, the bytes
of a run are cut from its blocks (`topics.log.block`), and what is not in memory comes from `topics.loading`.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from topics.errors import ApiError, topic_not_found
from topics.loading import Loader, block_with
from topics.log.block import Block, Projection
from topics.log.index import NotLoaded, Span
from topics.log.topic_log import Gap, TopicLog
from topics.model import Performance, ReadRequest, ReadResult, Tombstone
from topics.registry import EngineStatus, Registry
from topics.topic import Topic

SCAN_SLICE: Final = 10_000
"""Records a read passes over (filtered) before it lets others run."""


class Reading:
    """See the module."""

    def __init__(self, status: EngineStatus, registry: Registry, loader: Loader) -> None:
        self._status = status
        self._registry = registry
        self._loader = loader

    async def read(self, name: str, request: ReadRequest, perf: Performance) -> ReadResult:
        """One diff, with its long poll (`api.md` section 5). Raises 404, and 503 when the daemon stops while it
        waits."""
        topic = self._registry.topic(name)
        self._registry.touch(topic)
        deadline = trio.current_time() + request.wait_ms / 1000
        position = request.from_seq
        same_epoch = request.epoch is None or request.epoch == topic.id
        scanned = perf.cold_segments_read = 0
        while True:
            while topic.working is not None:
                await topic.working.wait()
            await self._loader.expire(topic)
            result, examined = await self._collect(topic, request, position, same_epoch, perf)
            scanned += examined
            if result.count or result.tombstone is not None or trio.current_time() >= deadline:
                perf.records_scanned = scanned
                self._registry.touch(topic)
                return result
            position = result.next_from_seq
            await self._wait_for_change(topic, deadline)
            if topic.deleted:
                raise topic_not_found(name)
            if self._status.phase == "draining":
                raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)

    async def _wait_for_change(self, topic: Topic, deadline: float) -> None:
        if topic.deleted or self._status.phase == "draining":
            return
        with trio.move_on_at(deadline):
            await topic.next_change()

    async def _collect(
        self, topic: Topic, request: ReadRequest, from_seq: int, same_epoch: bool, perf: Performance
    ) -> tuple[ReadResult, int]:
        """Everything deliverable after `from_seq` up to the limits, in the order floor, hole, ttl, deleted, node,
        deliver."""
        log_ = topic.log
        same_epoch = same_epoch and from_seq <= log_.head_seq
        start = partial(log_.start, from_seq, same_epoch)
        position, tombstone = await self._loader.prepared(topic, start)
        hidden = request.nodes if topic.config.dedupe_node else frozenset()
        projection = Projection(request.include_tags, request.include_meta)
        pieces: list[bytes] = []
        count = scanned = since_pause = 0
        budget = request.max_batch_bytes
        loaded: list[Block] = []
        needed: dict[Span, None] = {}
        while count < request.limit and budget > 0:
            # Every round may follow a wait (for the disk, or to let others run), so the topic is looked at anew.
            if topic.deleted:
                raise topic_not_found(topic.name)
            if topic.working is not None:
                await topic.working.wait()
                continue
            if position + 1 < log_.evict_floor:
                if pieces:
                    break
                position, tombstone = await self._loader.prepared(topic, start)
                continue
            try:
                step = log_.step(position, request.limit - count)
            except NotLoaded as missing:
                # All it has asked for so far: loading one must not drop another.
                needed.update(dict.fromkeys(missing.spans))
                await self._loader.columns(topic, tuple(needed))
                continue
            needed.clear()
            if step is None:
                position = max(position, log_.head_seq)
                break
            if isinstance(step, Gap):
                if pieces or tombstone is not None:
                    break
                tombstone = _tombstone(log_, step)
                position = step.last
                continue
            block = topic.blocks.find(step.first)
            if block is None:
                block = block_with(loaded, step.first)
            if block is None:
                loaded = await self._loader.load(topic, step.first, step.last, perf)
                continue
            last = min(step.last, block.last_seq)
            taken, n, position = _take(block, step.first, last, budget, projection, hidden, at_least_one=not pieces)
            if block.views:
                self._registry.cache.grown(block)
            scanned += position - step.first + 1
            if taken:
                pieces.append(taken)
                count += n
                budget -= len(taken) + 1
            if position < last:
                break
            since_pause += position - step.first + 1
            if since_pause >= SCAN_SLICE:
                since_pause = 0
                await trio.lowlevel.checkpoint()
        return ReadResult(
            topic=topic.name,
            epoch=topic.id,
            records=b",".join(pieces),
            count=count,
            next_from_seq=position,
            head_seq=log_.head_seq,
            earliest_seq=log_.earliest_seq,
            caught_up=position == log_.head_seq,
            tombstone=tombstone,
            lag=log_.head_seq - position,
        ), scanned


def _tombstone(log_: TopicLog, gap: Gap) -> Tombstone:
    return Tombstone(
        gap_from=gap.first,
        gap_to=gap.last,
        reason=gap.reason,
        missed_estimate=gap.missed,
        earliest_seq=log_.earliest_seq,
        head_seq=log_.head_seq,
    )


def _take(
    block: Block,
    first: int,
    last: int,
    budget: int,
    projection: Projection,
    hidden: frozenset[str],
    *,
    at_least_one: bool,
) -> tuple[bytes, int, int]:
    """Records `first`..`last` of a block without those of hidden nodes: bytes, how many, last seq examined.

    The last is below `last` only when the budget has run out.
    """
    if not hidden or block.nodes is None or hidden.isdisjoint(block.nodes):
        taken, to = block.cut(first, last, budget, projection, at_least_one=at_least_one)
        return taken, to - first + 1, to
    pieces: list[bytes] = []
    count = 0
    seq = first
    while seq <= last:
        if block.node_of(seq) in hidden:
            seq += 1
            continue
        end = seq
        while end < last and block.node_of(end + 1) not in hidden:
            end += 1
        taken, to = block.cut(seq, end, budget, projection, at_least_one=at_least_one and not pieces)
        if taken:
            pieces.append(taken)
            count += to - seq + 1
            budget -= len(taken) + 1
        if to < end:
            return b",".join(pieces), count, to
        seq = end + 1
    return b",".join(pieces), count, last
