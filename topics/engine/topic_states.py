"""The state of one topic, and pages of the list of topics (`docs/spec/api.md` section 3).

Responsible for answers that are true of one moment: expired records are evicted, and expired leases and delays are
free, before an answer is made. Changes nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import chain, islice
from typing import Final, Literal

import trio
from msgspec import UNSET, UnsetType

from topics.auth.keys import OPEN, Key
from topics.engine.loader import Loader
from topics.engine.queues.queue_calls import QueueCalls
from topics.engine.registry import Registry, names_with
from topics.engine.topic import Topic
from topics.errors import topic_not_found
from topics.log.span import NotLoaded
from topics.model import TopicPlaces, TopicState, TopicSummary, TopicType
from topics.storage.segments.topic_segments import Segment

TopicOrder = Literal["records", "bytes", "written"]

LOOKED_AT: Final = 2000
"""Topics that are looked at in one step of the loop: about a millisecond."""

_RANKS: Final[Mapping[TopicOrder, Callable[[Topic], int]]] = {
    "records": lambda topic: topic.log.count,
    "bytes": lambda topic: topic.log.bytes,
    "written": lambda topic: topic.last_write_ms or 0,
}


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

    async def of(self, name: str, *, touch: bool, places: bool = False) -> TopicState:
        """Return the current state of a topic, after forwarding what its routers owe it (`docs/spec/api.md` section 7).
        `touch`: it counts as read. `places`: with the places of its seqs, at a cost that follows the number of its
        segments and blocks.

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
            places=_places_of(topic) if places else UNSET,
            fences=dict(topic.fences.published) if topic.fences is not None and topic.fences.published else UNSET,
        )

    async def of_type(
        self, kind: TopicType, prefix: str, after: str | None, page_size: int, key: Key = OPEN
    ) -> tuple[list[TopicSummary], bool]:
        """Return a page of the topics of a type that `key` covers, in name order, queues with their counters, and True
        if there are more. It looks at the names in several steps of the loop, so it is not of one moment."""
        page: list[TopicSummary] = []
        while True:
            names = list(islice(names_with(self._registry.topics, key.covered(prefix), after), LOOKED_AT))
            for name in names:
                topic = self._registry.topics[name]
                if topic.config.type != kind:
                    continue
                if len(page) == page_size:
                    return page, True
                summary = self._summary(topic)
                if kind == "queue":
                    self._queues.sweep(topic)
                    summary.queue = self._queues.state(topic) or UNSET
                page.append(summary)
            if len(names) < LOOKED_AT:
                return page, False
            after = names[-1]
            await trio.lowlevel.checkpoint()

    async def ranked(
        self, prefix: str, sort: TopicOrder, most: int, key: Key = OPEN, *, kind: TopicType | None = None
    ) -> list[TopicSummary]:
        """Return the `most` topics that `key` covers and that have the most records or bytes, or were written to last.
        It looks at all of them, in several steps of the loop, so it is not of one moment."""
        best: list[tuple[int, str]] = []
        after: str | None = None
        rank = _RANKS[sort]
        while True:
            names = list(islice(names_with(self._registry.topics, key.covered(prefix), after), LOOKED_AT))
            looked_at = map(self._registry.topics.__getitem__, names)
            ranked = ((rank(topic), topic.name) for topic in looked_at if kind in (None, topic.config.type))
            best = nlargest(most, chain(best, ranked))
            if len(names) < LOOKED_AT:
                break
            after = names[-1]
            await trio.lowlevel.checkpoint()
        found = (self._registry.topics.get(name) for _, name in best)
        return [self._summary(topic) for topic in found if topic is not None]

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


def _places_of(topic: Topic) -> TopicPlaces:
    """Return where the seqs of a topic are."""
    log = topic.log
    gone = log.earliest_seq - 1
    evicted = min(log.losses.evict_floor - 1, gone)
    cold = hot = 0
    for span in log.stored.all():
        if isinstance(span.segment, Segment) and span.segment.tier == "cold":
            cold += span.live
        else:
            hot += span.live
    segments = topic.segment_set.segments if topic.segment_set is not None else ()
    return TopicPlaces(
        evicted=evicted,
        deleted=gone - evicted,
        between=log.head_seq - gone - log.count,
        cold=cold,
        hot=hot,
        log=log.count - cold - hot,
        memory=sum(block.count for block in topic.blocks.blocks),
        segments=len(segments),
    )


class _NotExpired(Exception):
    """A topic's columns must be loaded before its expired records can be evicted."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic.name)
        self.topic = topic
