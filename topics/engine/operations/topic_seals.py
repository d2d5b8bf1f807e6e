"""Sealing the active segment of a topic (`docs/spec/consumers.md` section 7)."""

from __future__ import annotations

from topics.engine.commits import Commits
from topics.engine.registry import Registry
from topics.errors import read_only, topic_not_found
from topics.storage.maintenance.compactor import Compactor
from topics.storage.segments.topic_segments import Segment


class TopicSeals:
    """The call that seals a topic. Made once by the engine."""

    def __init__(self, registry: Registry, compactor: Compactor, *, commits: Commits) -> None:
        self._registry = registry
        self._compactor = compactor
        self._commits = commits

    async def seal(self, name: str) -> int:
        """Take a checkpoint after which all records that were published before this call are in sealed segments. Return
        how many segments the topic has then; 0 if none of its records was ever stored (`ephemeral`).

        Raises 404, also if the topic is deleted meanwhile, and 503 if the shard or the disk has failed, or other work
        on the topic's files takes too long. After a 503 or a cancellation, the next checkpoint still seals the topic.
        """
        while True:
            topic = self._registry.topic(name)
            if await self._commits.settled(topic):
                break
        self._commits.check_changeable(topic)
        try:
            await self._compactor.seal(topic)
        except OSError as error:
            raise read_only(f"the checkpoint has failed ({error.strerror or error})") from error
        if topic.deleted:
            raise topic_not_found(name)
        segments = {span.segment for span in topic.log.stored.all() if isinstance(span.segment, Segment)}
        return sum(segment.tier != "gone" for segment in segments)
