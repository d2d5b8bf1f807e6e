"""The state of one topic, and pages of the list of topics (`docs/spec/api.md` section 3).

Responsible for answers that are true of one moment: expired records are evicted, and expired leases and delays are
free, before an answer is made. Changes nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

import trio
from msgspec import UNSET, UnsetType

from topics.auth.keys import OPEN, Key
from topics.engine.loader import Loader
from topics.engine.queues.queue_calls import QueueCalls
from topics.engine.registry import Registry, names_with
from topics.engine.topic import Topic
from topics.errors import topic_not_found
from topics.log.span import NotLoaded
from topics.model import TopicState, TopicSummary


class TopicStates:
    """States and lists of topics. Made once by the engine."""

    def __init__(
        self,
        registry: Registry,
        *,
        loader: Loader,
        queues: QueueCalls,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._registry = registry
        self._loader = loader
        self._queues = queues
        self._catch_up = catch_up

    async def of(self, name: str, *, touch: bool) -> TopicState:
        """Return the current state of a topic, after forwarding what its routers owe it (`docs/spec/api.md` section 7).
        `touch`: it counts as read.

        Raises `404 topic_not_found`, and `503 not_ready` if the disk does not answer. Cancelling leaves nothing behind.
        """
        await self._catch_up((name,))
        topic = self._registry.topic(name)
        while True:
            await self._loader.expire(topic)
            if topic.deleted:
                raise topic_not_found(name)
            if topic.working is not None:
                await topic.working.wait()
            elif self._queues.sweep(topic):
                await trio.lowlevel.checkpoint()
            else:
                break
        if touch:
            self._registry.touch(topic)
        queue = self._queues.state(topic)
        log = topic.log
        return TopicState(
            topic=name,
            type=topic.config.type,
            epoch=topic.id,
            head_seq=log.head_seq,
            earliest_seq=log.earliest_seq,
            next_seq=log.head_seq + 1,
            count=log.count,
            bytes=log.bytes,
            synced_seq=0 if topic.ephemeral else min(topic.synced_seq, log.head_seq),
            bucket_seq=self._bucket_seq(topic),
            config=topic.config,
            effective_priority=self._registry.priority(topic),
            last_write_ts=topic.last_write_ms,
            last_read_ts=topic.last_read_ms,
            queue=UNSET if queue is None else queue,
            fences=dict(topic.fences.published) if topic.fences is not None and topic.fences.published else UNSET,
        )

    def _bucket_seq(self, topic: Topic) -> int | UnsetType:
        if not self._registry.has_bucket:
            return UNSET
        return 0 if topic.ephemeral else min(topic.bucket_seq, topic.log.head_seq)

    async def page(
        self, prefix: str, after: str | None, page_size: int, key: Key = OPEN
    ) -> tuple[list[TopicSummary], bool]:
        """Return a page of the topics that `key` covers, in name order, all as of one moment, and True if there are
        more. The cost depends on the page. Raises `503 not_ready` if the disk does not answer."""
        prefixes = key.covered(prefix)
        while True:
            try:
                return self._page(prefixes, after, page_size)
            except _NotExpired as missing:
                await self._loader.expire(missing.topic)

    def _page(self, prefixes: Sequence[str], after: str | None, page_size: int) -> tuple[list[TopicSummary], bool]:
        """Return a page in one step of the loop, so that it is of one moment. Raises _NotExpired."""
        page: list[TopicSummary] = []
        topics = self._registry.topics
        for name in names_with(topics, prefixes, after):
            if len(page) == page_size:
                return page, True
            topic = topics[name]
            try:
                self._registry.expire(topic)
            except NotLoaded as missing:
                raise _NotExpired(topic) from missing
            page.append(self._summary(topic))
        return page, False

    def _summary(self, topic: Topic) -> TopicSummary:
        config, log = topic.config, topic.log
        return TopicSummary(
            topic=topic.name,
            type=config.type,
            epoch=topic.id,
            head_seq=log.head_seq,
            earliest_seq=log.earliest_seq,
            count=log.count,
            bytes=log.bytes,
            durable=config.durable,
            durability=config.durability,
            effective_priority=self._registry.priority(topic),
        )


class _NotExpired(Exception):
    """A topic's columns must be loaded before its expired records can be evicted."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic.name)
        self.topic = topic
