"""The calls on named consumers (`docs/spec/consumers.md` section 3): put, get, list, delete, commit, seek, acquire,
release.

A call that changes a consumer waits until the consumer has no unpublished event. Then it decides in one step
(`topics.consumers.consumers`), and answers when the new event is published (`consumer_commits`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final

import msgspec
import trio
from msgspec import UNSET

from topics.auth.keys import Key
from topics.config import Settings
from topics.consumers.consumer_events import ConsumerEvent
from topics.consumers.consumers import Consumer, Consumers
from topics.engine.commits import time_commit
from topics.engine.consumers.consumer_commits import ConsumerCommits
from topics.engine.consumers.unused_consumers import UnusedConsumers
from topics.engine.loader import Loader
from topics.engine.operations.export import first_at
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, invalid
from topics.filters.record_filter import Filter
from topics.log.span import NotLoaded
from topics.model import (
    ConsumerMove,
    ConsumerPatch,
    ConsumerStart,
    ConsumerState,
    MovedConsumer,
    Performance,
    WatchRequest,
)
from topics.telemetry.figures import ConsumerFigures

MAX_FILTER_TEXT: Final = 16 << 20
"""Characters of the filters of all consumers together."""


class ConsumerCalls:
    """The calls on consumers. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        *,
        commits: ConsumerCommits,
        unused: UnusedConsumers,
        loader: Loader,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._commits = commits
        self._unused = unused
        self._loader = loader
        self._topics: dict[Topic, None] = {}
        """The topics that have had consumers."""
        self._creating = 0
        """Creations that are not published yet."""
        self._growing = 0
        """By how many characters unpublished changes will enlarge the filters."""

    def adopt_all(self) -> None:
        """Take over the consumers of all topics, after a start."""
        self._topics = dict.fromkeys(topic for topic in self._registry.topics.values() if topic.consumers is not None)
        self._unused.watch_all()

    def adopt(self, topic: Topic) -> None:
        """List the consumers of a topic that a standby has replayed. Nothing is done about them by time."""
        if topic.consumers is not None:
            self._topics[topic] = None

    def __len__(self) -> int:
        for topic in [topic for topic in self._topics if topic.deleted]:
            del self._topics[topic]
        return sum(len(topic.consumers) for topic in self._topics if topic.consumers is not None)

    def samples(self, most: int, key: Key) -> tuple[list[ConsumerFigures], bool]:
        """Return the figures of at most `most` consumers of topics that `key` covers, and True if there are more."""
        found: list[ConsumerFigures] = []
        for topic in sorted(self._topics, key=lambda topic: topic.name):
            if topic.deleted or not key.covers(topic.name):
                continue
            for consumer in topic.consumers or ():
                if len(found) == most:
                    return found, True
                found.append(ConsumerFigures(topic.name, consumer.name, topic.log.head_seq - consumer.seq))
        return found, False

    # -- states and figures ------------------------------------------------------------------------------------------

    def state(self, name: str, consumer: str) -> ConsumerState:
        """Return the state of a consumer, and count it as used. Raises 404."""
        topic, found = self.find(name, consumer)
        return self._state(topic, found)

    def find(self, name: str, consumer: str, epoch: int | None = None) -> tuple[Topic, Consumer]:
        """Return a topic and one of its consumers, and count the consumer as used. Raises 404, and `409 fenced` if the
        topic has another epoch."""
        self._unused.expire()
        topic = self._registry.topic(name)
        _check_epoch(topic, epoch)
        found = self._of(topic).get(consumer)
        found.used_at = max(found.used_at, self._commits.now())
        return topic, found

    def page_of_all(
        self, prefix: str, after: tuple[str, str] | None, most: int, key: Key
    ) -> tuple[list[ConsumerState], bool]:
        """Return a page of the consumers of all topics that `key` covers and whose names begin with `prefix`, in the
        order of topics and consumers, and True if there are more."""
        self._unused.expire()
        topics = sorted((topic.name, topic) for topic in self._topics if topic.name.startswith(prefix))
        found = [
            (topic, consumer)
            for name, topic in topics
            if not topic.deleted and key.covers(name)
            for consumer in sorted(topic.consumers or (), key=attrgetter("name"))
            if after is None or (name, consumer.name) > after
        ]
        return [self._state(topic, consumer) for topic, consumer in found[:most]], len(found) > most

    def placed(self, request: WatchRequest) -> WatchRequest:
        """Return the request with positions and filters filled in: a topic with a consumer begins at the consumer's
        position, and its records must also match the consumer's filter. Raises 404, but not for a missing topic of a
        lenient request."""
        found, filters = {}, dict(request.filters)
        for name, start in request.topics.items():
            if start.consumer is not None and not (request.lenient and name not in self._registry.topics):
                _, consumer = self.find(name, start.consumer)
                found[name] = msgspec.structs.replace(start, from_seq=consumer.seq)
                if (wanted := consumer.wanted) is not None:
                    filters[name] = (*filters.get(name, ()), wanted)
        if not found:
            return request
        return msgspec.structs.replace(request, topics={**request.topics, **found}, filters=filters)

    def page(self, name: str, prefix: str, after: str | None, most: int) -> tuple[list[ConsumerState], bool]:
        """Return a page of the consumers of a topic in the order of their names, and True if there are more. Raises
        404."""
        self._unused.expire()
        topic = self._registry.topic(name)
        found, more = self._of(topic).page(prefix, after, most)
        return [self._state(topic, consumer) for consumer in found], more

    def _of(self, topic: Topic) -> Consumers:
        return topic.consumers if topic.consumers is not None else Consumers(topic.name)

    def _state(self, topic: Topic, consumer: Consumer) -> ConsumerState:
        return ConsumerState(
            topic=topic.name,
            consumer=consumer.name,
            epoch=topic.id,
            committed_seq=consumer.seq,
            lag=topic.log.head_seq - consumer.seq,
            last_commit_ts=consumer.last_commit_ts,
            owner=consumer.owner,
            generation=consumer.generation,
            deadline=self._registry.to_wall(consumer.deadline) if consumer.owner is not None else None,
            ttl_ms=consumer.ttl_ms,
            filter=None if consumer.filter is None else msgspec.Raw(consumer.filter.encode()),
        )

    # -- creating and deleting ---------------------------------------------------------------------------------------

    async def put(
        self, name: str, consumer: str, patch: ConsumerPatch, perf: Performance
    ) -> tuple[ConsumerState, bool]:
        """Create or change a consumer, synced. Return its state, and True if it was created. Raises 404, 429, and 503.

        Cancelling stops only the waiting, once the change is queued.
        """
        while True:
            self._unused.expire()
            topic = await self._commits.current(name, consumer)
            consumers = self._of(topic)
            known = consumers.find(consumer)
            if known is None and patch.start.place == "ts" and not await self._is_loaded(topic, patch.start):
                continue
            event = consumers.decide_put(
                consumer,
                partial(self._place, topic, patch.start, "from.seq"),
                patch.ttl_ms,
                patch.filter.text if isinstance(patch.filter, Filter) else None,
                self._commits.now(),
                keeps_filter=patch.filter is UNSET,
            )
            break
        if event is None:
            return self.state(name, consumer), False
        growth = max(0, len(event.filter or "") - (known.filter_size if known is not None else 0))
        self._check_filters(growth)
        if known is None:
            self._check_room()
            self._topics[topic] = None
        self._creating += known is None
        self._growing += growth
        ended = partial(self._put_ended, topic, created=known is None, growth=growth)
        found = await self._commit(topic, event, perf, synced=True, ended=ended)
        return self._state(topic, found), known is None

    def _put_ended(self, topic: Topic, found: Consumer | None, *, created: bool, growth: int) -> None:
        self._creating -= created
        self._growing -= growth
        if found is not None:
            self._unused.watch(topic, found)

    def _check_room(self) -> None:
        maximum = self._settings.max_consumers
        if maximum and len(self) + self._creating >= maximum:
            raise self._registry.throttle("max_consumers", maximum)

    def _check_filters(self, growth: int) -> None:
        """Check that the filters may have `growth` more characters. Raises 429."""
        if growth:
            kept = sum(topic.consumers.filter_size for topic in self._topics if topic.consumers and not topic.deleted)
            if kept + self._growing + growth > MAX_FILTER_TEXT:
                raise self._registry.throttle("max_consumer_filters", MAX_FILTER_TEXT)

    async def delete(self, name: str, consumer: str, perf: Performance) -> bool:
        """Delete a consumer, synced. Return True if there was one. Raises 404 for the topic, and 503."""
        topic = await self._commits.current(name, consumer)
        event = self._of(topic).decide_delete(consumer, self._commits.now())
        if event is None:
            return False
        commit = self._commits.send(topic, event, synced=True)
        await commit.answer()
        time_commit(commit, perf)
        return True

    # -- positions ---------------------------------------------------------------------------------------------------

    async def commit(self, name: str, consumer: str, seq: int, move: ConsumerMove, perf: Performance) -> MovedConsumer:
        """Commit that the consumer has finished all records up to `seq`. Raises 400, 404, `409 fenced`, 429, and
        503."""
        topic = await self._current(name, consumer, move)
        event = self._of(topic).decide_commit(
            consumer, seq, move.generation, topic.log.head_seq, self._commits.now(), self._registry.now_ms()
        )
        return await self._move(topic, consumer, event, perf)

    async def advance(
        self, name: str, consumer: str, expected: int, seq: int, move: ConsumerMove, perf: Performance
    ) -> bool:
        """Commit `seq` if the consumer is still at `expected`. Otherwise return False and change nothing. Raises like
        `commit`. Cancelling has no effect once the commit is queued, so that the records that it covers can still be
        sent."""
        topic = await self._current(name, consumer, move)
        consumers = self._of(topic)
        if consumers.get(consumer).seq != expected:
            return False
        event = consumers.decide_commit(
            consumer, seq, move.generation, topic.log.head_seq, self._commits.now(), self._registry.now_ms()
        )
        with trio.CancelScope(shield=True):
            await self._move(topic, consumer, event, perf)
        return True

    async def seek(
        self, name: str, consumer: str, to: ConsumerStart, move: ConsumerMove, perf: Performance
    ) -> MovedConsumer:
        """Move the consumer anywhere. Raises as `commit` does."""
        while True:
            topic = await self._current(name, consumer, move)
            if to.place != "ts" or await self._is_loaded(topic, to):
                break
        event = self._of(topic).decide_seek(
            consumer, self._place(topic, to), move.generation, topic.log.head_seq, self._commits.now()
        )
        return await self._move(topic, consumer, event, perf)

    async def _current(self, name: str, consumer: str, move: ConsumerMove) -> Topic:
        self._unused.expire()
        topic = await self._commits.current(name, consumer)
        _check_epoch(topic, move.epoch)
        return topic

    async def _move(self, topic: Topic, consumer: str, event: ConsumerEvent | None, perf: Performance) -> MovedConsumer:
        if event is None:
            _, found = self.find(topic.name, consumer)
        else:
            found = await self._commit(topic, event, perf)
        return MovedConsumer(
            topic=topic.name,
            consumer=consumer,
            epoch=topic.id,
            committed_seq=found.seq,
            moved=event is not None,
            lag=topic.log.head_seq - found.seq,
        )

    async def _commit(
        self,
        topic: Topic,
        event: ConsumerEvent,
        perf: Performance,
        *,
        synced: bool = False,
        ended: Callable[[Consumer | None], None] | None = None,
    ) -> Consumer:
        commit = self._commits.send(topic, event, synced=synced, ended=ended)
        found = await commit.answer()
        time_commit(commit, perf)
        assert isinstance(found, Consumer)
        return found

    async def _is_loaded(self, topic: Topic, start: ConsumerStart) -> bool:
        """Return True if memory has the columns that `_place` needs. Otherwise load them and return False; the caller
        must check the topic again. Raises 404 and 503."""
        look = partial(self._place, topic, start)
        try:
            look()
        except NotLoaded:
            await self._loader.prepared(topic, look)
            return False
        return True

    def _place(self, topic: Topic, start: ConsumerStart, field: str = "seq") -> int:
        """Return the position that a place means: the seq before its first record. Raises a 400 about `field` for a seq
        beyond the head; for a time it may raise NotLoaded."""
        log = topic.log
        if start.place == "tail":
            return log.head_seq
        if start.place == "earliest":
            return log.earliest_seq - 1
        if start.place == "ts":
            return first_at(log, start.value) - 1
        if start.value > log.head_seq:
            raise invalid(field, f"is beyond the head, which is {log.head_seq}", head_seq=log.head_seq)
        return start.value

    # -- ownership ---------------------------------------------------------------------------------------------------

    async def acquire(
        self, name: str, consumer: str, owner: str, lease_ms: int, perf: Performance
    ) -> tuple[int, int, int]:
        """Make `owner` the owner of the consumer, synced. Return epoch, generation and deadline (epoch ms).

        Raises 404, `409 consumer_owned`, 429, and 503.
        """
        self._unused.expire()
        topic = await self._commits.current(name, consumer)
        try:
            event = self._of(topic).decide_acquire(consumer, owner, lease_ms, self._commits.now())
        except ApiError as error:
            if error.code == "consumer_owned":
                error.detail["deadline"] = self._registry.to_wall(error.detail["deadline"])
            raise
        await self._commit(topic, event, perf, synced=True)
        return topic.id, event.generation, self._registry.to_wall(event.deadline)

    async def release(self, name: str, consumer: str, generation: int, perf: Performance) -> bool:
        """End the ownership of a generation. Return True if this generation owned the consumer. Raises 404, 429, and
        503."""
        self._unused.expire()
        topic = await self._commits.current(name, consumer)
        event = self._of(topic).decide_release(consumer, generation, self._commits.now())
        if event is not None:
            await self._commit(topic, event, perf)
        return event is not None


def _check_epoch(topic: Topic, epoch: int | None) -> None:
    """Check that a call means this instance of the topic. Raises `409 fenced`."""
    if epoch is not None and epoch != topic.id:
        raise ApiError(
            "fenced",
            f"topic {topic.name!r} was deleted and created again: its epoch is {topic.id}",
            detail={"epoch": topic.id},
        )
