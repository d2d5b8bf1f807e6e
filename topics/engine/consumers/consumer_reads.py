"""Reads at the position of a named consumer (`docs/spec/consumers.md` section 3).

A read that names a consumer begins at the consumer's position. It may commit first. With `ack: "before"` the daemon
commits the records before it sends them: at most once. Two such reads of one consumer run one after the other. If the
consumer was moved during a read, the read begins again. So no record is returned twice.

A read returns the records that match both its own filter and the filter that the consumer has when the read begins.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec
import trio

from topics.engine.consumers.consumer_calls import ConsumerCalls
from topics.engine.operations.read import Reads
from topics.engine.topic import Topic
from topics.errors import ApiError, placed
from topics.filters.record_filter import all_of
from topics.model import ConsumerMove, ConsumerRead, Performance, ReadRequest, ReadResult


class ConsumerReads:
    """The read call with a consumer. Made once by the engine."""

    def __init__(self, calls: ConsumerCalls, reads: Reads) -> None:
        self._calls = calls
        self._reads = reads
        self._turns: WeakValueDictionary[tuple[int, str], trio.Lock] = WeakValueDictionary()
        """A read that commits the records that it returns holds the lock of its topic id and consumer."""

    async def read(self, name: str, request: ReadRequest, perf: Performance) -> ReadResult:
        """Return one diff at the position of `request.consumer`, after the commit that the request may contain.

        Raises 400 and 409 like a commit, 404 for topic and consumer, and the errors of `Reads.read`. Cancelling does
        not undo a commit that was begun.
        """
        wish = request.consumer
        assert wish is not None
        move = ConsumerMove(generation=wish.generation, epoch=request.epoch)
        if wish.commit_seq is not None:
            try:
                await self._calls.commit(name, wish.consumer, wish.commit_seq, move, perf)
            except ApiError as error:
                raise (placed(error, "commit_") if error.code == "invalid_request" else error) from None
        topic, consumer = self._calls.find(name, wish.consumer, request.epoch)
        request = msgspec.structs.replace(request, filter=all_of((request.filter, consumer.wanted)))
        if wish.before:
            return await self._read_committing(topic, wish, request, perf)
        plain = msgspec.structs.replace(request, from_seq=consumer.seq, epoch=topic.id, consumer=None)
        return await self._reads.read(name, plain, perf)

    async def _read_committing(
        self, topic: Topic, wish: ConsumerRead, request: ReadRequest, perf: Performance
    ) -> ReadResult:
        deadline = trio.current_time() + request.wait_ms / 1000
        turn = self._turns.setdefault((topic.id, wish.consumer), trio.Lock())
        while True:
            async with turn:
                found = await self._read_at_once(topic, wish, request, perf)
            over = found.count or found.tombstone is not None or found.scan_is_over
            if over or trio.current_time() >= deadline:
                return found
            if found.next_from_seq == topic.log.head_seq:  # no record was appended during the commit
                await self._reads.wait_for_news(topic, deadline)

    async def _read_at_once(
        self, topic: Topic, wish: ConsumerRead, request: ReadRequest, perf: Performance
    ) -> ReadResult:
        """Read without waiting for new records, and commit the position behind the records that were found."""
        move = ConsumerMove(generation=wish.generation, epoch=topic.id)
        while True:
            _, consumer = self._calls.find(topic.name, wish.consumer)
            position = consumer.seq
            plain = msgspec.structs.replace(request, from_seq=position, epoch=topic.id, wait_ms=0, consumer=None)
            found = await self._reads.read(topic.name, plain, perf)
            if await self._calls.advance(topic.name, wish.consumer, position, found.next_from_seq, move, perf):
                return found
