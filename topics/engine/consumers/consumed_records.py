"""Deletes records that all consumers and routers of a topic have passed, in topics with `retention: "consumed"`
(`docs/spec/consumers.md` section 3).

A record is deleted when every named consumer and every group of the topic, and every router from it, has passed the
record. Without a consumer or group nothing is deleted. A pass looks at topics in which a consumer has moved or was
deleted, or a group has finished a record, or whose config has changed, since the pass before. The deletion is one
commit, like the deletion of a client. It is decided in the step that reads the positions; unpublished positions count
too. A crash may lose copies that are not synced in a router's dest, and then the router makes them again from the
source. So a pass first reads the cursors of the routers, and then syncs all shards.
"""

from __future__ import annotations

from topics.engine.commits import Commits
from topics.engine.operations.delete import Deletions
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.runtime.background import BackgroundTasks


class ConsumedTopics:
    """Deletes consumed records. Made once by the engine."""

    def __init__(
        self, registry: Registry, *, commits: Commits, deletions: Deletions, background: BackgroundTasks
    ) -> None:
        self._registry = registry
        self._commits = commits
        self._deletions = deletions
        self._background = background
        self._due: dict[Topic, None] = {}
        self._working = False

    def note(self, topic: Topic) -> None:
        """Let the next pass look at a topic, if its retention is `consumed`."""
        if topic.config.retention == "consumed":
            self._due[topic] = None

    def note_all(self) -> None:
        """Let the next pass look at every topic, after a start."""
        for topic in self._registry.topics.values():
            self.note(topic)

    def work(self) -> None:
        """Begin a pass, unless one is under way. Called every second."""
        if self._due and not self._working:
            self._working = True
            self._background.start_soon(self._pass_over)

    async def _pass_over(self) -> None:
        try:
            due, self._due = self._due, {}
            for topic in due:
                try:
                    await self._trim(topic)
                except ApiError:  # a failed shard, or a disk that does not answer
                    self.note(topic)
        finally:
            self._working = False

    async def _trim(self, topic: Topic) -> None:
        passed = _cursors(topic)
        floor = _floor(topic, passed)
        if topic.deleted or floor is None:
            return
        if floor < (_lowest(topic) or 0):
            self.note(topic)  # a router is behind, and does not report when it moves
        if floor < topic.log.earliest_seq:
            return
        if passed:
            await self._commits.sync_all()
        if _has_gone_back(topic, passed) or not await self._deletions.is_ready(topic):
            self.note(topic)
            return
        floor = _floor(topic, passed)
        if floor is not None and floor >= topic.log.earliest_seq:
            await self._deletions.trim(topic, floor + 1).wait()


def _cursors(topic: Topic) -> dict[str, int]:
    """Return the cursor of each router that reads the topic, by the router's name."""
    if topic.fanout is None:
        return {}
    return {forwarder.router.name: forwarder.router.cursor for forwarder in topic.fanout.audience.consumers}


def _has_gone_back(topic: Topic, passed: dict[str, int]) -> bool:
    """Return True if other routers read the topic than those that have `passed`, or one of a name was made again."""
    cursors = _cursors(topic)
    return cursors.keys() != passed.keys() or any(cursors[name] < seq for name, seq in passed.items())


def _lowest(topic: Topic) -> int | None:
    """Return the position of the consumer or group that is furthest behind; None without a consumer or group."""
    lowest = [
        topic.consumers.lowest_seq if topic.consumers is not None else None,
        topic.groups.lowest_floor(topic.log) if topic.groups is not None else None,
    ]
    return min((seq for seq in lowest if seq is not None), default=None)


def _floor(topic: Topic, passed: dict[str, int]) -> int | None:
    """Return the seq up to which all consumers, groups and routers have finished; None without a consumer or group, if
    one is being created, or if the topic's retention is no longer `consumed`."""
    if topic.config.retention != "consumed":
        return None
    if topic.groups is not None and topic.groups.on_the_way:
        return None  # its end is noted
    lowest = _lowest(topic)
    if lowest is None:
        return None
    on_their_way = [one.seq for one in (topic.consumer_commits or {}).values()]
    return min([lowest, *on_their_way, *passed.values()])
