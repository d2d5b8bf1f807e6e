"""One read: the deliverable records after a position, and waiting for them (`docs/spec/api.md` section 5). Also one
record by its seq (`docs/spec/consumers.md` section 7).

Responsible for the diff, its long poll, and the reason why a single record does not exist.
`topics.engine.record_collector` gathers the records, `topics.engine.loader` loads those that are not in memory, and the
delivery workers (`topics.sched`) wake a poll.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import trio

from topics.config import Settings
from topics.engine.loader import Loader
from topics.engine.reach import KnownPlace, Reach
from topics.engine.record_collector import Collector, RecordRequest
from topics.engine.registry import EngineStatus, Registry
from topics.engine.topic import Topic
from topics.errors import ApiError, record_not_found, topic_not_found
from topics.log.block import Projection
from topics.model import Performance, ReadRequest, ReadResult

REASONS: Final[Mapping[str, str]] = {"cap": "evicted", "ttl": "expired", "mixed": "evicted", "source_trim": "lost"}
"""Why a single record is missing, in the words of the wire, by the reason of its tombstone. Other reasons have the same
name. `source_trim` becomes `lost`, because nobody knows why the router's source has lost the record."""


class Reads:
    """The calls that read records. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        status: EngineStatus,
        registry: Registry,
        loader: Loader,
        reach: Reach,
        *,
        catch_up: Callable[[Iterable[str]], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._status = status
        self._registry = registry
        self._loader = loader
        self._reach = reach
        self._catch_up = catch_up

    async def read(self, name: str, request: ReadRequest, perf: Performance) -> ReadResult:
        """Return one diff, after its long poll (`docs/spec/api.md` section 5) and after forwarding what routers owe the
        topic now (section 7). Raises 404, and 503 when the daemon stops while it waits. Cancelling leaves nothing
        behind."""
        await self._catch_up((name,))
        deadline = trio.current_time() + request.wait_ms / 1000
        await self._reach.wait([KnownPlace(name, request.from_seq, request.epoch)], deadline)
        topic = self._registry.topic(name)
        if request.touch:
            self._registry.touch(topic)
        projection = Projection(request.include_tags, request.include_meta)
        wish = RecordRequest(request.limit, request.max_batch_bytes, request.nodes, projection, filter=request.filter)
        position = request.from_seq
        same_epoch = request.epoch is None or request.epoch == topic.id
        perf.records_scanned = perf.records_scanned or 0  # a call may read more than once
        perf.cold_segments_read = perf.cold_segments_read or 0
        while True:
            left = self._settings.max_scan - perf.records_scanned
            found = Collector(self._registry, topic, wish, position, same_epoch=same_epoch, most_scanned=left)
            while True:
                need = found.advance()
                if request.gathered is not None:
                    request.gathered(wish.max_bytes - found.room)
                if need is None:
                    break
                await self._loader.provide(found, need, perf)
            perf.records_scanned += found.scanned
            over = found.count or found.tombstone is not None or found.scan_is_over
            if over or trio.current_time() >= deadline:
                if request.touch:
                    self._registry.touch(topic)
                self._registry.traffic.count_out(found.count, wish.max_bytes - found.room)
                return _result(found)
            position = found.position
            await self.wait_for_news(topic, deadline)

    async def record(self, name: str, seq: int, perf: Performance) -> bytes:
        """Return the JSON of the record at `seq` (from 1), with its tag and meta. Records that routers owe the topic
        are forwarded first.

        Raises `404 topic_not_found` and `404 record_not_found`. Cancelling leaves nothing behind.
        """
        await self._catch_up((name,))
        await self._reach.wait([KnownPlace(name, seq)], trio.current_time())
        topic = self._registry.topic(name)
        self._registry.touch(topic)
        if seq > topic.log.head_seq:
            raise record_not_found(name, seq, "not_yet")
        found = Collector(
            self._registry, topic, RecordRequest(1, 1, projection=Projection(True, True)), seq - 1, up_to=seq
        )
        while (need := found.advance()) is not None:
            await self._loader.provide(found, need, perf)
        if found.count:
            return b"".join(found.pieces)
        log = topic.log
        reason = await self._loader.prepared(topic, lambda: log.losses.why_missing(seq, log.earliest_seq))
        raise record_not_found(name, seq, REASONS.get(reason, reason))

    async def wait_for_news(self, topic: Topic, deadline: float) -> None:
        """Wait for a change that readers see, until `deadline` (Trio's clock) at most. Raises 404 if the topic is
        deleted by then, and 503 when the daemon stops."""
        if not topic.deleted and self._status.phase != "draining":
            with trio.move_on_at(deadline):
                await topic.followed().poll()
        if topic.deleted:
            raise topic_not_found(topic.name)
        if self._status.phase == "draining":
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)


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
        scan_is_over=found.scan_is_over,
    )
