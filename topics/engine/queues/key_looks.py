"""Passing the keys of records to the rule of a queue about keys, so that claims find the jobs that may be claimed
(`docs/design/key_order.md` section 3).

A look begins behind the last one and ends when enough jobs may be claimed, after `TOPICS_MAX_SCAN` records, or at the
head. At any time one task looks for a queue; others wait for its end, because they want the same. Records that are in
memory, as those of the last appends are, are looked at without waiting.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import trio

from topics.config import Settings
from topics.engine.job_queue import JobQueue
from topics.engine.loader import Loader
from topics.engine.queues.lease_commits import check_there
from topics.engine.queues.looks import keys_of
from topics.engine.topic import Topic
from topics.log.block import Block, block_with
from topics.queue.key_limit import KeyLimit
from topics.queue.key_order import KeyOrder

STEP_RECORDS: Final = 500
"""Records that one step of the event loop looks at: 0.5 ms."""

KEPT_AHEAD: Final = 64
"""Free jobs of a lane that are looked at together at least."""


class _Step(NamedTuple):
    """How many records were looked at, and the range that has to be loaded before the next one, None for none."""

    looked: int
    missing: tuple[int, int] | None


class KeyLooks:
    """Looks at the keys of jobs. Made once by the engine."""

    def __init__(self, settings: Settings, loader: Loader) -> None:
        self._settings = settings
        self._loader = loader

    async def look(self, topic: Topic, queue: JobQueue, most: int) -> None:
        """Look at the next records of a queue, if fewer than `most` jobs may be claimed of those that are known. The
        caller asks `JobQueue.must_look` whether more have to be looked at.

        Raises 404, and 503 if the disk does not answer. If there is no record to look at, nothing is awaited.
        """
        rule = queue.leases.key_rule
        if rule is None or not _is_for_keys(queue, most) or not queue.must_look(topic.log, most):
            return
        if queue.looking is not None:
            await queue.looking.wait()
            return
        done = queue.looking = trio.Event()
        try:
            await self._look(topic, queue, rule, most)
        finally:
            queue.looking = None
            done.set()

    async def _look(self, topic: Topic, queue: JobQueue, rule: KeyOrder | KeyLimit, most: int) -> None:
        left = self._settings.max_scan
        loaded: list[Block] = []
        while left > 0 and queue.leases.key_rule is rule and queue.must_look(topic.log, most):
            if not _is_for_keys(queue, most):
                return
            step = await self._loader.prepared(topic, partial(_step, topic, queue, rule, loaded, most))
            left -= step.looked
            if step.missing is not None:
                loaded = await self._loader.load(topic, *step.missing)
                check_there(topic, queue)  # nothing is loaded of a topic that was deleted meanwhile
            elif left > 0 and queue.must_look(topic.log, most):
                await trio.lowlevel.checkpoint()


def _is_for_keys(queue: JobQueue, most: int) -> bool:
    """Return True if the next records are to be looked at here. If there is a filter, `Looks` looks at them."""
    return not queue.has_filter or queue.leases.must_look_at_kept(most)


def _step(topic: Topic, queue: JobQueue, rule: KeyOrder | KeyLimit, loaded: Sequence[Block], most: int) -> _Step:
    """Look at some records. Raises NotLoaded, and has done nothing then."""
    if queue.leases.key_rule is not rule:
        return _Step(0, None)
    if rule.unsure:
        return _look_at_held(topic, queue, rule, loaded)
    if isinstance(rule, KeyLimit):
        kept = queue.leases.without_key(max(most, KEPT_AHEAD))[:STEP_RECORDS]
        if kept:
            return _look_at_kept(topic, rule, loaded, kept)
    log = topic.log
    unfinished = queue.live_after(log, rule.looked_to, STEP_RECORDS)
    seqs = queue.leases.to_look_at(unfinished)
    keys: list[str | None] = []
    while len(keys) < len(seqs):
        seq = seqs[len(keys)]
        block = topic.blocks.find(seq) or block_with(loaded, seq)
        if block is None:
            known = len(keys)
            rule.add(seqs[:known], keys)
            return _Step(known, (seq, seqs[-1]))
        keys += keys_of(block, rule.by, seqs[len(keys) : bisect_right(seqs, block.last_seq)])
    rule.add(seqs, keys)
    rule.looked_to = unfinished[-1] if len(unfinished) == STEP_RECORDS else log.head_seq
    return _Step(len(unfinished), None)


def _look_at_held(topic: Topic, queue: JobQueue, rule: KeyOrder | KeyLimit, loaded: Sequence[Block]) -> _Step:
    """Look at jobs that were held when the rule began. Raises NotLoaded, and has done nothing then."""
    some = rule.unsure[:STEP_RECORDS]
    live = set(topic.log.index.only_live(some))
    for done, seq in enumerate(some):
        if seq not in live or not queue.leases.is_held(seq):
            continue
        block = topic.blocks.find(seq) or block_with(loaded, seq)
        if block is None:
            del rule.unsure[:done]
            return _Step(0, (seq, some[-1]))
        rule.add_held(seq, *keys_of(block, rule.by, array("Q", (seq,))))
    del rule.unsure[: len(some)]
    return _Step(0, None)


def _look_at_kept(topic: Topic, limit: KeyLimit, loaded: Sequence[Block], kept: array[int]) -> _Step:
    """Look at free jobs that were claimed before, or have a priority. Raises NotLoaded, and has done nothing then."""
    seqs = array("Q", sorted(kept))
    live = set(topic.log.index.only_live(seqs))
    for done, seq in enumerate(seqs):
        if seq not in live:
            limit.learn(seq, None)  # the claim finds out
            continue
        block = topic.blocks.find(seq) or block_with(loaded, seq)
        if block is None:
            return _Step(done, (seq, _end_of_neighbours(seqs[done:])))
        limit.learn(seq, *keys_of(block, limit.by, array("Q", (seq,))))
    return _Step(len(seqs), None)


def _end_of_neighbours(seqs: array[int]) -> int:
    """Return the last of the seqs that are worth loading with the first: not much further on."""
    return seqs[bisect_right(seqs, seqs[0] + STEP_RECORDS) - 1]
