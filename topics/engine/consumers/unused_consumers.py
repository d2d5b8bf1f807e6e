"""Deletes consumers whose ttl has passed without use (`docs/spec/consumers.md` section 3).

There is no timer per consumer: a heap says when the first of them may be due. Using a consumer does not change the
heap. When the time of an entry comes and the consumer was used since, it is put back with its new time. Entries of
consumers that clients have changed or deleted stay in the heap until their time comes. So the heap is made anew when
most of its entries may be of no use.
"""

from __future__ import annotations

import heapq
from typing import Final

from topics.consumers.consumers import Consumer
from topics.engine.consumers.consumer_commits import ConsumerCommits
from topics.engine.registry import Registry
from topics.engine.topic import Topic

STEP: Final = 256
"""Consumers that one call looks at."""

SPARE: Final = 1024
"""Entries of no use that are kept in any case."""


class UnusedConsumers:
    """Deletes consumers that nobody uses. Made once by the engine."""

    def __init__(self, registry: Registry, commits: ConsumerCommits) -> None:
        self._registry = registry
        self._commits = commits
        self._due: list[tuple[int, int, str]] = []
        """When a consumer may be due (window clock), its topic's id, its name."""
        self._most = SPARE
        """Entries beyond which the heap is made anew."""

    def __len__(self) -> int:
        """How many entries the heap has."""
        return len(self._due)

    def watch(self, topic: Topic, consumer: Consumer) -> None:
        """Watch a consumer from now on, if it has a ttl. Watching it twice is allowed, and checks it twice."""
        if consumer.ttl_ms:
            heapq.heappush(self._due, (consumer.used_at + consumer.ttl_ms, topic.id, consumer.name))
            if len(self._due) > self._most:
                self._make_anew()

    def watch_all(self) -> None:
        """Watch all consumers, after a start; each counts as used now."""
        now = self._commits.now()
        for topic in self._registry.topics.values():
            for consumer in topic.consumers or ():
                consumer.used_at = max(consumer.used_at, now)
        self._make_anew()

    def _make_anew(self) -> None:
        """Watch each consumer once. Costs a step for each topic and consumer, after as many changes at least."""
        self._due = [
            (consumer.used_at + consumer.ttl_ms, topic.id, consumer.name)
            for topic in self._registry.topics.values()
            for consumer in topic.consumers or ()
            if consumer.ttl_ms
        ]
        heapq.heapify(self._due)
        self._most = 2 * len(self._due) + SPARE

    def expire(self) -> None:
        """Delete consumers that are due. Looks at `STEP` entries at most. Called every second, and before a consumer is
        used."""
        now = self._commits.now()
        for _ in range(STEP):
            if not self._due or self._due[0][0] >= now:
                return
            _, topic_id, name = heapq.heappop(self._due)
            topic = self._registry.by_id.get(topic_id)
            consumer = topic.consumers.find(name) if topic is not None and topic.consumers is not None else None
            if topic is not None and consumer is not None:
                self._judge(topic, consumer, now)

    def _judge(self, topic: Topic, consumer: Consumer, now: int) -> None:
        assert topic.consumers is not None
        busy = topic.barrier is not None or bool(topic.consumer_commits and consumer.name in topic.consumer_commits)
        if busy and consumer.is_unused(now):
            heapq.heappush(self._due, (now + 1, topic.id, consumer.name))  # looked at again in a moment
        elif consumer.is_unused(now):
            event = topic.consumers.decide_delete(consumer.name, now)
            assert event is not None
            self._commits.send(topic, event)
        else:
            self.watch(topic, consumer)
