"""Asking the filter of a group about records, so that claims find those that match (`docs/design/groups.md` section 4).

A look begins behind the last one and ends when there are enough matches, after a step of records, or at the head. It
uses the tag index as reads do. At any time one task looks for a group; others wait for its end, because they want the
same. What a look has read stays in the cache, where the looks of other groups find it.
"""

from __future__ import annotations

from array import array

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


class SeqCollector(Collector):
    """A read that notes which records match, without their bytes."""

    __slots__ = ("seqs",)

    def __init__(
        self,
        registry: Registry,
        topic: Topic,
        wish: RecordRequest,
        from_seq: int,
        *,
        most_scanned: int,
        up_to: int | None = None,
    ) -> None:
        super().__init__(registry, topic, wish, from_seq, most_scanned=most_scanned, up_to=up_to)
        self.seqs: array[int] = array("Q")

    def _cut(self, block: Block, first: int, last: int) -> bool:
        self.seqs.extend(range(first, last + 1))
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
        not answer. Without anything to look at there is no await.
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
        state = queue.state
        wanted, begin = state.wanted, state.looked_to
        wish = RecordRequest(most, 1 << 62, filter=wanted)
        found = SeqCollector(self._registry, topic, wish, begin, most_scanned=left)
        while (need := found.advance()) is not None:
            await self._loader.provide(found, need, Performance())
        if state.wanted is wanted and state.looked_to == begin:  # else another filter was set meanwhile
            await self._loader.prepared(topic, lambda: state.looked(topic.log, found.position, found.seqs))
            queue.catch_up(topic.log)
        return found.scanned
