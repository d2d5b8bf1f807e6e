"""Removal from the cold store: files that no part names, and deleted topics.

After a start the whole store is searched once, topic by topic, in the background: for what an earlier daemon has left
there or was interrupted in. Later only failed removals and new deletions are done. If the store does not answer, the
pass ends, and a later one does the rest. (The relocator and the reclaimer move, flag and rewrite segments there.)
"""

from __future__ import annotations

import errno
from collections import deque
from functools import partial
from typing import Final

from topics.runtime.offload import Offload, Pool
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.maintenance.topic_checkpoint import TopicCheckpoints
from topics.storage.recovery.leftovers import tidy_cold
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

AWAY: Final = frozenset({errno.ETIMEDOUT, errno.EAGAIN})
"""Errors of calls while the whole store does not answer, or is not known to be ours."""


def is_away(error: BaseException) -> bool:
    """Return True if the cold store as a whole does not answer, so that other calls would fail too."""
    return isinstance(error, OSError) and error.errno in AWAY


class ColdRemoval:
    """Removes files from the cold store. Made by the reclaimer, which calls `pass_over`, one pass at a time."""

    def __init__(
        self, source: TopicSource, checkpoints: TopicCheckpoints, file_holds: FileHolds, *, offload: Offload
    ) -> None:
        self._source = source
        self._checkpoints = checkpoints
        self._file_holds = file_holds
        self._offload = offload
        self._removed: deque[int] = deque()
        """Ids of topics whose directories are to be removed."""
        self._unseen: deque[int] | None = None
        """Ids of topics that have not been examined since the start; None before the store was listed."""

    def remove_topic(self, topic_id: int) -> None:
        """Have the directory of a deleted topic removed, whose hot directory is gone."""
        if self._checkpoints.tiers.cold is not None:
            self._removed.append(topic_id)

    async def pass_over(self) -> int:
        """Remove everything there is to remove. Return the number of pieces of work. Raises OSError, after everything
        was tried that does not depend on the failure."""
        store = self._checkpoints.tiers.cold
        if store is None:
            return 0
        done = 0
        failures: list[OSError] = []
        if self._unseen is None:
            self._unseen = await self._find(store)
        for topic in list(self._file_holds.littered_cold):
            if await self._tried(topic, failures):
                self._file_holds.littered_cold.pop(topic, None)
        for _ in range(len(self._removed)):
            topic_id = self._removed[0]
            try:
                await self._offload.run(Pool.COLD_FILES, partial(store.delete_topic, topic_id))
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
        """Finish interrupted removals, and return the topics in the store. Unknown ones are removed."""
        await self._offload.run(Pool.COLD_FILES, store.finish_deletions)
        there = await self._offload.run(Pool.COLD_READ, store.topics)
        known = self._source.by_id
        waiting = set(self._removed)
        for topic_id in there:
            if topic_id not in known and topic_id not in waiting and not self._file_holds.needed_segments(topic_id):
                self._removed.append(topic_id)
        return deque(topic_id for topic_id in there if topic_id in known)

    async def _tried(self, topic: LiveTopic, failures: list[OSError]) -> bool:
        """Tidy a topic. Return True if that worked. Raises OSError if the store does not answer."""
        try:
            await self._tidy(topic)
        except OSError as error:
            if is_away(error):
                raise
            failures.append(error)
            return False
        return True

    async def _tidy(self, topic: LiveTopic) -> None:
        """Remove cold files that the topic's part does not name, and hot copies of cold segments."""
        if topic.deleted:
            return  # its whole directory is removed
        if topic.segment_set is None:
            topic.segment_set = SegmentSet()
        async with self._file_holds.cold_files_of(topic.segment_set):
            if topic.deleted or topic in self._checkpoints.stuck:
                return
            tiers, segments = self._checkpoints.tiers, _copies(topic.segment_set)
            copied = await self._offload.run(Pool.COLD_FILES, partial(tidy_cold, tiers, topic.id, segments))
            if copied:
                async with self._file_holds.files_of(topic.segment_set):
                    if not topic.deleted:
                        await self._offload.run(Pool.FILES, partial(delete_all, tiers.hot, topic.id, copied))


def _copies(segment_set: SegmentSet) -> list[Segment]:
    """Return copies of the segments as they are now: no hot one can become cold while the lock of the cold files is
    held."""
    return list(segment_set.segments)


def delete_all(store: SegmentStore, topic_id: int, names: list[str]) -> None:
    """Remove these objects. Blocking."""
    for name in names:
        store.delete(topic_id, name)
