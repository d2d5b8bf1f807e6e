"""Turns decisions about named consumers into commits of their topic (`docs/spec/consumers.md` section 3).

A consumer event is a commit like an append, so it is published in the order of its topic. Each consumer has at most one
unpublished event. A call waits until this event is published (`current`), and then decides on the published state. That
makes fencing safe: no commit can be decided between an `acquire` and its publication.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from topics.config import Settings
from topics.consumers.consumer_events import CommitEvent, ConsumerEvent, PutEvent, SeekEvent
from topics.consumers.consumers import Consumer, Consumers
from topics.engine.commits import Commits
from topics.engine.consumers.consumed_records import ConsumedTopics
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, ConsumerCommit, Topic
from topics.runtime.clock import Clock
from topics.storage.wal.frames import FrameType, encode_control


class ConsumerCommits:
    """Checks that a consumer is current, and commits its events. Made once by the engine."""

    def __init__(
        self, settings: Settings, clock: Clock, registry: Registry, commits: Commits, consumed: ConsumedTopics
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._consumed = consumed

    def now(self) -> int:
        """Return the time of a decision: ms of the window clock."""
        return self._registry.windows.now_ms()

    async def current(self, name: str, consumer: str) -> Topic:
        """Wait until a decision about a consumer can be made, and return its topic. Then the topic has no barrier, the
        shard's queue has room, and the consumer has no unpublished event; there was no await between these checks and
        the return.

        Raises 404, 429 if the queue stays full, and 503. Cancelling leaves nothing behind.
        """
        while True:
            topic = self._registry.topic(name)
            if not await self._commits.settled(topic):
                continue
            writer = self._commits.check_writable(topic)
            if self._commits.is_full(topic):
                await self._commits.admit(topic, self._settings.admission_ms)
                continue
            on_the_way = topic.consumer_commits.get(consumer) if topic.consumer_commits else None
            if on_the_way is None:
                return topic
            await self._commits.wait_for(on_the_way.commit.done, writer)

    def send(
        self,
        topic: Topic,
        event: ConsumerEvent,
        *,
        synced: bool = False,
        ended: Callable[[Consumer | None], None] | None = None,
    ) -> Commit:
        """Queue the commit of an event. It is as durable as the topic's class says; with `synced`, and on an
        `ephemeral` topic (like its configuration), it is synced. The result of the commit is the changed consumer, None
        if it was deleted. `ended` is called with this result when the event is published, even if no caller waits any
        more, and with None if the commit fails."""
        ts = event.ts if isinstance(event, CommitEvent) else self._registry.now_ms()
        data = encode_control(FrameType.CONSUMER, event.to_wire(), topic_id=topic.id, ts=ts)
        point = CommitPoint.SYNCED if synced or topic.ephemeral else topic.commit_point
        commit = Commit(topic, data, 1, point, partial(self._publish, topic, event, ended), self._clock.perf_ns)
        commit.on_fail = partial(_fail, topic, event, ended)
        if topic.consumer_commits is None:
            topic.consumer_commits = {}
        topic.consumer_commits[event.consumer] = ConsumerCommit(commit, _seq_after(topic, event))
        self._commits.send(commit)
        return commit

    def _publish(
        self, topic: Topic, event: ConsumerEvent, ended: Callable[[Consumer | None], None] | None, commit: Commit
    ) -> Consumer | None:
        _forget(topic, event.consumer)
        if topic.consumers is None:
            topic.consumers = Consumers(topic.name)
        self._consumed.note(topic)
        found = topic.consumers.apply(event)
        if ended is not None:
            ended(found)
        return found


def _fail(topic: Topic, event: ConsumerEvent, ended: Callable[[Consumer | None], None] | None) -> None:
    _forget(topic, event.consumer)
    if ended is not None:
        ended(None)


def _forget(topic: Topic, consumer: str) -> None:
    assert topic.consumer_commits is not None
    del topic.consumer_commits[consumer]
    if not topic.consumer_commits:
        topic.consumer_commits = None


def _seq_after(topic: Topic, event: ConsumerEvent) -> int:
    """Return the position of the consumer after an event."""
    if isinstance(event, CommitEvent | SeekEvent | PutEvent):
        return event.seq
    assert topic.consumers is not None
    return topic.consumers.get(event.consumer).seq
