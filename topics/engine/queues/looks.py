"""Asking the filter of a group about records, so that claims find those that match (`docs/design/groups.md` section 4).

A look begins behind the last one and ends when there are enough matches, after a step of records, or at the head. It
uses the tag index as reads do. At any time one task looks for a group; others wait for its end, because they want the
same. The blocks that a look has read stay in the cache, where the looks of other groups find them. If an order or a
limit binds the records of one key, the same pass notes the keys of the matching records (`docs/design/key_order.md`
section 5).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from topics.config import Settings
from topics.engine.group_queue import GroupQueue
from topics.engine.job_queue import Claimer, JobQueue
from topics.engine.loader import Loader
from topics.engine.record_collector import Collector, RecordRequest
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.log.block import Block
from topics.model import Performance
from topics.queue.key_limit import KeyLimit
from topics.queue.key_order import KeyField, KeyOrder

KEYED: Final = 500
"""Matches that a look with keys finds at a time at least: most of them may have to wait."""


class SeqCollector(Collector):
    """A read that notes which records match, without their bytes, and their keys."""

    __slots__ = ("_rule", "keys", "seqs")

    def __init__(
        self,
        registry: Registry,
        topic: Topic,
        wish: RecordRequest,
        from_seq: int,
        *,
        most_scanned: int,
        rule: KeyOrder | KeyLimit | None = None,
        up_to: int | None = None,
    ) -> None:
        super().__init__(registry, topic, wish, from_seq, most_scanned=most_scanned, up_to=up_to)
        self.seqs: array[int] = array("Q")
        self.keys: list[str | None] = []
        self._rule = rule

    def _cut(self, block: Block, first: int, last: int) -> bool:
        seqs = range(first, last + 1)
        self.seqs.extend(seqs)
        if self._rule is not None:
            self.keys += keys_of(block, self._rule.by, seqs)
        self.count += last - first + 1
        self.position = last
        return True


class Looks:
    """Looks at records for groups. Made once by the engine."""

    def __init__(self, settings: Settings, registry: Registry, loader: Loader) -> None:
        self._settings = settings
        self._registry = registry
        self._loader = loader

    async def look(self, topic: Topic, queue: JobQueue, most: int, claimer: Claimer | None = None) -> bool:
        """Look at records for a group, if fewer than `most` of those that match are known. Return True if more may have
        to be looked at.

        `claimer` pays for the records: beyond `TOPICS_MAX_SCAN` its scan is over. Raises 404, and 503 if the disk does
        not answer. If there is no record to look at, nothing is awaited.
        """
        if not isinstance(queue, GroupQueue) or not queue.must_look(topic.log, most):
            return False
        if queue.looking is not None:
            await queue.looking.wait()
            return queue.must_look(topic.log, most)
        left = self._settings.max_scan - (claimer.scanned if claimer is not None else 0)
        done = queue.looking = trio.Event()
        try:
            scanned = await self._look(topic, queue, most, left)
        finally:
            queue.looking = None
            done.set()
        if claimer is not None:
            claimer.scanned += scanned
            claimer.scan_is_over = claimer.scanned >= self._settings.max_scan
        topic.mark_changed()
        return queue.must_look(topic.log, most)

    async def _look(self, topic: Topic, queue: GroupQueue, most: int, left: int) -> int:
        state, rule = queue.state, queue.leases.key_rule
        wanted = state.wanted
        scanned = 0
        while True:
            begin = state.looked_to
            matches = state.most_matches(most) if rule is None else max(most, KEYED)
            wish = RecordRequest(max(matches, 1), 1 << 62, filter=wanted)
            found = SeqCollector(self._registry, topic, wish, begin, most_scanned=left - scanned, rule=rule)
            while (need := found.advance()) is not None:
                await self._loader.provide(found, need, Performance())
            scanned += found.scanned

            def is_asked(begin: int = begin) -> bool:
                """Return False if another filter or rule was set meanwhile."""
                return state.wanted is wanted and queue.leases.key_rule is rule and state.looked_to == begin

            await self._loader.prepared(topic, partial(_note, topic, queue, found, is_asked))
            if rule is None or scanned >= left or not queue.must_look(topic.log, most):
                return scanned
            await trio.lowlevel.checkpoint()


def _note(topic: Topic, queue: GroupQueue, found: SeqCollector, is_asked: Callable[[], bool]) -> None:
    """Note what a look has found. Raises NotLoaded."""
    if is_asked():
        queue.state.looked(topic.log, found.position, found.seqs, found.keys)
        queue.catch_up(topic.log)


def keys_of(block: Block, by: KeyField, seqs: Sequence[int]) -> list[str | None]:
    """Return the keys of records of a block."""
    key_of = block.tag_of if by == "tag" else block.node_of
    return [key_of(seq) for seq in seqs]
