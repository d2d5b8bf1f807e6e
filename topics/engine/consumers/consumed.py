"""Topics with `retention: "consumed"`: what everybody has passed who reads them is deleted (`docs/spec/consumers.md`
section 3).

Who reads a topic are its named consumers and its groups, at least one of which must exist, and the routers from it. A
pass looks at the topics of which a consumer has moved or gone, or a group has finished something, or whose config has
changed since the pass before. The deletion is one commit like that of a client, decided in the step in which the
positions are looked at; positions on their way count as well. A router may lose copies in a crash that are not synced
in its dest, and make them again from the source. So what routers have passed is looked at first, and then everything is
synced.
"""

from __future__ import annotations

from topics.engine.commits import Commits
from topics.engine.operations.delete import Deletions
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.runtime.background import BackgroundTasks


class ConsumedTopics:
    """Deletes what is consumed. Made once by the engine."""

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
        """Look at a topic in the next pass, if it has this retention."""
        if topic.config.retention == "consumed":
            self._due[topic] = None

    def note_all(self) -> None:
        """Look at every topic, after a start."""
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
            self.note(topic)  # a router is behind, and nobody tells when it has gone on
        if floor < topic.log.earliest_seq:
            return
        if passed:
            await self._commits.sync_all()
        if _cursors(topic).keys() != passed.keys() or not await self._deletions.is_ready(topic):
            self.note(topic)
            return
        floor = _floor(topic, passed)
        if floor is not None and floor >= topic.log.earliest_seq:
            await self._deletions.trim(topic, floor + 1).wait()


def _cursors(topic: Topic) -> dict[str, int]:
    """How far each router is that reads the topic, by its name."""
    if topic.fanout is None:
        return {}
    return {forwarder.router.name: forwarder.router.cursor for forwarder in topic.fanout.audience.consumers}


def _lowest(topic: Topic) -> int | None:
    """Return how far the consumer or group is that is furthest behind; None if there is none."""
    lowest = [
        topic.consumers.lowest_seq if topic.consumers is not None else None,
        topic.groups.lowest_floor() if topic.groups is not None else None,
    ]
    return min((seq for seq in lowest if seq is not None), default=None)


def _floor(topic: Topic, passed: dict[str, int]) -> int | None:
    """Return the seq up to which everybody has finished; None if there is no consumer or group, if one is about to
    come, or if that is no reason to delete any more."""
    if topic.config.retention != "consumed":
        return None
    if topic.groups is not None and topic.groups.on_the_way:
        return None  # its end is noted
    lowest = _lowest(topic)
    if lowest is None:
        return None
    on_their_way = [one.seq for one in (topic.consumer_commits or {}).values()]
    return min([lowest, *on_their_way, *passed.values()])
