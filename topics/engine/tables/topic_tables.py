"""The tables of topics with `keep_per_tag`, from their making to their end.

Responsible for the table of each topic as a whole: after a start, and when `keep_per_tag` is set, lowered or switched
off. Changes by single appends are the business of `kept_records`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, Final

import trio

from topics.engine.commits import Commits
from topics.engine.loader import Loader
from topics.engine.registry import Registry
from topics.engine.tables.kept_records import KeptRecords
from topics.engine.tables.table_builder import TableBuilder
from topics.engine.tables.table_trim import TableTrim, is_over_caps
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.model import TopicConfig
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload
from topics.storage.wal.frames import FrameType
from topics.storage.wal.keep_frames import keep_to_wire
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

RETRY_S: Final = 1.0
"""How long the making of a table rests if the disk does not answer."""

NOTHING_NULL: Final[Mapping[int, int]] = {}


class TopicTables:
    """Made once by the engine."""

    def __init__(
        self,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        loader: Loader,
        offload: Offload,
        background: BackgroundTasks,
    ) -> None:
        self.records = KeptRecords(registry, loader=loader, background=background)
        self._builder = TableBuilder(loader=loader, offload=offload)
        self._trim = TableTrim(clock, registry, commits=commits, loader=loader, background=background)
        self._registry = registry
        self._background = background

    # -- a start -----------------------------------------------------------------------------------------------------

    async def restore(self, topic: Topic) -> None:
        """Make the table of a topic that a start has found. If the disk does not answer, a task goes on trying;
        meanwhile the topic takes no changes, and tags are looked up in the files."""
        if topic.config.keep_per_tag and not await self._built(topic):
            topic.barrier = trio.Event()
            self._background.start_soon(self._keep_trying, topic)

    async def _keep_trying(self, topic: Topic) -> None:
        try:
            while True:
                await trio.sleep(RETRY_S)
                if topic.deleted:
                    break
                if await self._built(topic):
                    self._trim.note(topic)
                    break
        finally:
            topic.lift_barrier()

    async def _built(self, topic: Topic) -> bool:
        try:
            await self._builder.build(topic, topic.log.nulls or ())
        except (ApiError, OSError) as error:
            log.error("table_unreadable", topic=topic.name, error=str(error))
            return False
        return True

    def trim_all(self) -> None:
        """After a start: finish what a crash has interrupted."""
        self._trim.note_all()

    # -- a change of config ------------------------------------------------------------------------------------------

    async def prepare(self, topic: Topic, config: TopicConfig) -> Mapping[int, int]:
        """Make the table that a topic needs under a new config, if it has none. Return the times of its records with
        data null, by seq. The caller has set a barrier, and nothing is pending; if the config does not come into force
        after all, it calls `settle`. Raises 503."""
        if not config.keep_per_tag or topic.log.kept is not None:
            return NOTHING_NULL
        times = await self._builder.nulls_of(topic) if topic.log.count else NOTHING_NULL
        await self._builder.build(topic, times)
        return times

    @staticmethod
    def null_frames(times: Mapping[int, int]) -> list[tuple[FrameType, dict[str, Any]]]:
        """Return the frame that logs the result of `prepare`; none if it is empty."""
        if not times:
            return []
        seqs = array("Q", sorted(times))
        return [(FrameType.KEEP, keep_to_wire(array("Q"), array("I"), seqs, array("Q", [times[seq] for seq in seqs])))]

    def settle(self, topic: Topic, times: Mapping[int, int] = NOTHING_NULL) -> None:
        """Take note of the config of a topic as it is now."""
        log_ = topic.log
        if topic.config.keep_per_tag:
            self._registry.tables[topic] = None
            for seq in sorted(times):
                log_.add_nulls((seq,), times[seq])
        else:
            self._registry.tables.pop(topic, None)
            log_.kept = log_.nulls = None

    async def trim(self, topic: Topic) -> None:
        """Take away what the config of a topic, which is in force, leaves too many, and then evict what its caps do not
        allow. The caller has set a barrier. Raises the error of the shard, and 503 if the disk does not answer."""
        await topic.drained()
        await self._trim.trim(topic)
        await self._trim.evict(topic)

    @staticmethod
    def is_unfinished(topic: Topic) -> bool:
        """Return True if a change of config has come into force, and has then failed to evict what the new caps do not
        allow."""
        return is_over_caps(topic)
