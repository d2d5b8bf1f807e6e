"""What is removed from the cold store: files that no part names, and the topics that are gone.

After a start all of the store is gone through once, topic by topic, beside everything else: what a life before has left
there, and what was interrupted. Later only what failed, and what was deleted. A store that does not answer ends a pass;
what was not done is done by a later one. (Which segments are moved, flagged and written anew there is the business of
relocator and reclaimer.)
"""

from __future__ import annotations

import errno
from collections import deque
from functools import partial
from typing import Final

from topics.runtime.offload import Kind, Offload
from topics.storage.maintenance.file_holds import Upkeep
from topics.storage.maintenance.topic_checkpoint import LiveTopic, Source, Storing
from topics.storage.recovery.leftovers import tidy_cold
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment, Shelf
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

AWAY: Final = frozenset({errno.ETIMEDOUT, errno.EAGAIN})
"""What calls fail with while the whole store does not answer, or is not known to be ours."""


def is_away(error: BaseException) -> bool:
    """Return True if the cold store as a whole does not answer: to ask it for something else is no use."""
    return isinstance(error, OSError) and error.errno in AWAY


class ColdUpkeep:
    """See the module. `pass_over` does all there is to do at once."""

    def __init__(self, source: Source, storing: Storing, upkeep: Upkeep, *, offload: Offload) -> None:
        self._source = source
        self._storing = storing
        self._upkeep = upkeep
        self._offload = offload
        self._removed: deque[int] = deque()
        """Ids of topics whose directories are to go."""
        self._unseen: deque[int] | None = None
        """Ids of topics that have not been looked at since the start; None: nobody knows yet which there are."""

    def remove_topic(self, topic_id: int) -> None:
        """The topic is gone for good, and its hot directory too."""
        if self._storing.tiers.cold is not None:
            self._removed.append(topic_id)

    async def pass_over(self) -> int:
        """Remove what there is to be removed; how many pieces of work that was. Raises OSError, once all has been tried
        that does not depend on what has failed."""
        store = self._storing.tiers.cold
        if store is None:
            return 0
        done = 0
        failures: list[OSError] = []
        if self._unseen is None:
            self._unseen = await self._find(store)
        for topic in list(self._upkeep.littered_cold):
            if await self._tried(topic, failures):
                self._upkeep.littered_cold.pop(topic, None)
        for _ in range(len(self._removed)):
            topic_id = self._removed[0]
            try:
                await self._offload.run(Kind.COLD_FILES, partial(store.delete_topic, topic_id))
                done += 1
            except OSError as error:
                if is_away(error):
                    raise
                failures.append(error)
                self._removed.append(topic_id)
            self._removed.popleft()
        for _ in range(len(self._unseen)):
            found = self._source.by_id.get(self._unseen[0])
            if found is not None and not await self._tried(found, failures):
                self._unseen.append(self._unseen[0])
            self._unseen.popleft()
        if failures:
            raise failures[0]
        return done

    async def _find(self, store: SegmentStore) -> deque[int]:
        """Free what interrupted removals have left; the topics that are in the store. Those that nobody knows go."""
        await self._offload.run(Kind.COLD_FILES, store.finish_deletions)
        there = await self._offload.run(Kind.COLD_READ, store.topics)
        known = self._source.by_id
        waiting = set(self._removed)
        for topic_id in there:
            if topic_id not in known and topic_id not in waiting and not self._upkeep.needed_segments(topic_id):
                self._removed.append(topic_id)
        return deque(topic_id for topic_id in there if topic_id in known)

    async def _tried(self, topic: LiveTopic, failures: list[OSError]) -> bool:
        """Tidy a topic; whether that worked. Raises OSError if the store does not answer."""
        try:
            await self._tidy(topic)
        except OSError as error:
            if is_away(error):
                raise
            failures.append(error)
            return False
        return True

    async def _tidy(self, topic: LiveTopic) -> None:
        """Remove cold files that the topic's part does not name, and hot copies of what is cold."""
        if topic.deleted:
            return  # its directory goes
        if topic.shelf is None:
            topic.shelf = Shelf()
        async with self._upkeep.cold_files_of(topic.shelf):
            if topic.deleted or topic in self._storing.stuck:
                return
            tiers, segments = self._storing.tiers, _copies(topic.shelf)
            copied = await self._offload.run(Kind.COLD_FILES, partial(tidy_cold, tiers, topic.id, segments))
            if copied:
                async with self._upkeep.files_of(topic.shelf):
                    if not topic.deleted:
                        await self._offload.run(Kind.FILES, partial(delete_all, tiers.hot, topic.id, copied))


def _copies(shelf: Shelf) -> list[Segment]:
    """The segments as they are now: what is hot cannot become cold while the topic's cold files are ours."""
    return list(shelf.segments)


def delete_all(store: SegmentStore, topic_id: int, names: list[str]) -> None:
    """Blocking: remove these objects."""
    for name in names:
        store.delete(topic_id, name)
