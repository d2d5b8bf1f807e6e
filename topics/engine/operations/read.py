"""One read: the deliverable records after a position, and waiting for them (`docs/spec/api.md` section 5).

Responsible for the diff and its long poll. `topics.engine.record_collector` gathers the records, `topics.engine.loader`
loads those that are not in memory, and the delivery workers (`topics.sched`) wake a poll.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import trio

from topics.engine.loader import Loader
from topics.engine.record_collector import Collector, RecordRequest
from topics.engine.registry import EngineStatus, Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, topic_not_found
from topics.log.block import Projection
from topics.model import Performance, ReadRequest, ReadResult


class Reads:
    """The read call. Made once by the engine."""

    def __init__(
        self,
        status: EngineStatus,
        registry: Registry,
        loader: Loader,
        *,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._status = status
        self._registry = registry
        self._loader = loader
        self._catch_up = catch_up

    async def read(self, name: str, request: ReadRequest, perf: Performance) -> ReadResult:
        """Return one diff, after its long poll (`docs/spec/api.md` section 5) and after forwarding what routers owe the
        topic now (section 7). Raises 404, and 503 when the daemon stops while it waits. Cancelling leaves nothing
        behind."""
        await self._catch_up((name,))
        topic = self._registry.topic(name)
        self._registry.touch(topic)
        deadline = trio.current_time() + request.wait_ms / 1000
        projection = Projection(request.include_tags, request.include_meta)
        wish = RecordRequest(request.limit, request.max_batch_bytes, request.nodes, projection)
        position = request.from_seq
        same_epoch = request.epoch is None or request.epoch == topic.id
        perf.records_scanned = perf.cold_segments_read = 0
        while True:
            found = Collector(self._registry, topic, wish, position, same_epoch=same_epoch)
            while True:
                need = found.advance()
                if request.gathered is not None:
                    request.gathered(wish.max_bytes - found.room)
                if need is None:
                    break
                await self._loader.provide(found, need, perf)
            perf.records_scanned += found.scanned
            if found.count or found.tombstone is not None or trio.current_time() >= deadline:
                self._registry.touch(topic)
                return _result(found)
            position = found.position
            await self._wait_for_news(topic, deadline)
            if topic.deleted:
                raise topic_not_found(name)
            if self._status.phase == "draining":
                raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)

    async def _wait_for_news(self, topic: Topic, deadline: float) -> None:
        if topic.deleted or self._status.phase == "draining":
            return
        with trio.move_on_at(deadline):
            await topic.followed().poll()


def _result(found: Collector) -> ReadResult:
    topic, log = found.topic, found.topic.log
    return ReadResult(
        topic=topic.name,
        epoch=topic.id,
        records=b",".join(found.pieces),
        count=found.count,
        next_from_seq=found.position,
        head_seq=log.head_seq,
        earliest_seq=log.earliest_seq,
        caught_up=found.position == log.head_seq,
        tombstone=found.tombstone,
        lag=log.head_seq - found.position,
    )
