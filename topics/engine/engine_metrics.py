"""The figures of an engine, for a scrape of the metrics (`docs/spec/api.md` section 11).

Responsible for gathering them: of the store, of the topics and routers that a key covers, and the sums over all.
`topics.http.answers.metrics` names and formats them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, get_args

import trio

from topics.auth.keys import OPEN, Key
from topics.engine.consumers.consumer_calls import ConsumerCalls
from topics.engine.delivery.watch_sessions import WatchSessions
from topics.engine.forwarding.forwarders import Forwarders
from topics.engine.forwarding.router_lifecycle import RouterLifecycle
from topics.engine.groups.group_calls import GroupCalls
from topics.engine.queues.completions import Completions
from topics.engine.queues.queue_calls import QueueCalls
from topics.engine.redrives.redrives import Redrives
from topics.engine.registry import EngineStatus, Registry, names_with
from topics.engine.schedules.firings import Firings
from topics.engine.topic import Topic
from topics.log.span import NotLoaded
from topics.model import Durability
from topics.runtime.clock import Clock
from topics.sched.governor import Governor
from topics.sched.workers import Scheduler
from topics.storage.segments.topic_segments import Segment
from topics.storage.store import Store
from topics.telemetry.figures import (
    BucketFigures,
    DeliveryFigures,
    EngineFigures,
    ReplicaFigures,
    TopicFigures,
    WalFigures,
)

METRIC_ROUTERS: Final = 1000
METRIC_CONSUMERS: Final = 1000
METRIC_GROUPS: Final = 1000
METRIC_TOPICS: Final = 1000
"""Routers, consumers and topics with figures of their own in the metrics (`docs/spec/api.md` section 11)."""

CENSUS_STEP: Final = 1000
"""Topics and segments that are counted in one step of the loop: below a millisecond."""


class EngineMetrics:
    """The figures of an engine. Made once by the engine. Gathering them waits for no disk."""

    def __init__(
        self,
        clock: Clock,
        status: EngineStatus,
        registry: Registry,
        store: Store,
        *,
        routers: RouterLifecycle,
        forwarders: Forwarders,
        queues: QueueCalls,
        completions: Completions,
        consumers: ConsumerCalls,
        firings: Firings,
        redrives: Redrives,
        groups: GroupCalls,
        watch_sessions: WatchSessions,
        scheduler: Scheduler[Any],
        governor: Governor,
        restarts: Mapping[str, int],
    ) -> None:
        self.bucket: Callable[[], BucketFigures] | None = None
        """Looks at the archive; set by the daemon if there is a bucket."""
        self.replicas: Callable[[], list[ReplicaFigures] | None] | None = None
        """Looks at the daemons that have the bucket; set by the daemon if there is one."""
        self._clock = clock
        self._status = status
        self._registry = registry
        self._store = store
        self._routers = routers
        self._forwarders = forwarders
        self._queues = queues
        self._completions = completions
        self._consumers = consumers
        self._firings = firings
        self._redrives = redrives
        self._groups = groups
        self._watching = watch_sessions
        self._scheduler = scheduler
        self._governor = governor
        self._restarts = restarts

    async def figures(self, key: Key = OPEN) -> EngineFigures:
        """Return the figures for the metrics. Topics and routers that `key` covers have figures of their own; sums are
        over all.

        Sums that take a look at every topic are made in several steps of the loop; the other figures are of one moment,
        after them.
        """
        census = await self._take_census()
        registry, status, cold = self._registry, self._status, self._store.cold
        names = list(islice(names_with(registry.topics, key.covered(""), None), METRIC_TOPICS + 1))
        routers, routers_truncated = self._routers.samples(METRIC_ROUTERS, key)
        consumers, consumers_truncated = self._consumers.samples(METRIC_CONSUMERS, key)
        groups, groups_truncated = self._groups.samples(METRIC_GROUPS, key)
        results_waiting, results_bytes = self._completions.waiting()
        return EngineFigures(
            topics=len(registry.topics),
            by_class=census.by_class,
            records_live=registry.total_records,
            bytes_live=registry.total_bytes,
            ready=status.phase == "ready",
            recovery_progress=status.replay_progress,
            uptime_ms=self._clock.monotonic_ms() - status.started_ms,
            read_only=status.read_only or self._store.refuses_appends,
            wal=self._wal_figures(),
            topic_samples=[self._topic_figures(registry.topics[name]) for name in names[:METRIC_TOPICS]],
            topics_truncated=len(names) > METRIC_TOPICS,
            throttled=dict(registry.throttled),
            segments=census.segments,
            segments_packed=census.packed,
            segment_bytes=census.segment_bytes,
            segment_stored_bytes=census.stored_bytes,
            cold_hanging=cold.hanging if cold is not None else 0,
            cold_timeouts=cold.timeouts if cold is not None else 0,
            cold_usable=self._store.cold_dir.is_ours,
            queue_topics=census.queue_topics,
            queue_leases=census.queue_leases,
            results_waiting=results_waiting,
            results_bytes=results_bytes,
            routers=len(self._routers),
            router_samples=routers,
            routers_truncated=routers_truncated,
            consumers=len(self._consumers),
            consumer_samples=consumers,
            consumers_truncated=consumers_truncated,
            schedules=self._firings.figures(),
            redrives=self._redrives.running,
            letters_redriven=self._redrives.letters_moved,
            groups=len(self._groups),
            group_samples=groups,
            groups_truncated=groups_truncated,
            router_failures=self._forwarders.failures,
            restarts=dict(self._restarts),
            delivery=self._delivery_figures(),
            standby=self._status.following() if self._status.following is not None else None,
            bucket=self.bucket() if self.bucket is not None else None,
        )

    @property
    def results_waiting(self) -> int:
        """Results of jobs that wait to be delivered, of all queues and groups."""
        return self._completions.waiting()[0]

    async def tiers(self) -> dict[str, TierFigures]:
        """Return the sums over the segments of each tier, made in several steps of the loop."""
        found = {"hot": TierFigures(), "cold": TierFigures()}
        counted = 0
        for topic in list(self._registry.by_id.values()):
            if counted >= CENSUS_STEP:
                counted = 0
                await trio.lowlevel.checkpoint()
            counted += 1
            if topic.deleted or topic.segment_set is None:
                continue
            counted += len(topic.segment_set.segments)
            for segment in topic.segment_set.segments:
                if segment.tier in found:
                    found[segment.tier].count(segment.n, segment.data_bytes)
        return found

    async def _take_census(self) -> _Census:
        census = _Census()
        counted = 0
        for topic in list(self._registry.by_id.values()):
            if counted >= CENSUS_STEP:
                counted = 0
                await trio.lowlevel.checkpoint()
            counted += 1
            if topic.deleted or topic.stage is not None:  # deleted meanwhile, or a stage, which is private
                continue
            census.by_class[topic.config.durability] += 1
            if topic.queue is not None:
                census.queue_topics += 1
                census.queue_leases += topic.queue.leases.in_flight
            if topic.segment_set is not None:
                counted += len(topic.segment_set.segments)
                for segment in topic.segment_set.segments:
                    census.count(segment)
        return census

    def _wal_figures(self) -> WalFigures:
        wal = WalFigures()
        for writer in self._store.writers:
            writer.figures.queue_depth = len(writer.queue)
            wal.add(writer.figures)
        return wal

    def _topic_figures(self, topic: Topic) -> TopicFigures:
        with suppress(NotLoaded):  # metrics do not wait for the disk
            self._registry.expire(topic)
        log = topic.log
        jobs = self._queues.figures(topic, topic.queue) if topic.queue is not None else None
        return TopicFigures(topic.name, log.head_seq, log.earliest_seq, log.count, log.bytes, jobs)

    def _delivery_figures(self) -> DeliveryFigures:
        steps, watch_sessions = self._governor.steps, self._watching
        return DeliveryFigures(
            sse_connections=watch_sessions.places.sse,
            ws_connections=watch_sessions.places.ws,
            watch_sessions=watch_sessions.session_count,
            pressure=self._governor.pressure,
            coalesce_ms=steps.coalesce_ms,
            commit_window_ms=steps.commit_window_ms,
            lowest_paused=steps.lowest_paused,
            routers_lowered=steps.routers_lowered,
            saturated=steps.saturated,
            ready_set_depth=self._scheduler.depth,
            waits_ms=self._scheduler.waits_ms,
        )


class TierFigures:
    """The segments in one tier: how many there are, how many seqs they cover, and the bytes of their records."""

    __slots__ = ("bytes", "segments", "seqs")

    def __init__(self) -> None:
        self.segments = self.seqs = self.bytes = 0

    def count(self, seqs: int, size: int) -> None:
        """Count a segment."""
        self.segments += 1
        self.seqs += seqs
        self.bytes += size


class _Census:
    """The counts that take a look at every topic."""

    def __init__(self) -> None:
        self.by_class = dict.fromkeys(get_args(Durability), 0)
        self.segments = {"hot": 0, "cold": 0}
        self.packed = self.segment_bytes = self.stored_bytes = 0
        self.queue_topics = 0
        self.queue_leases = 0

    def count(self, segment: Segment) -> None:
        """Count a segment."""
        self.segments[segment.tier] += 1
        self.packed += bool(segment.packed)
        self.segment_bytes += segment.data_bytes
        self.stored_bytes += segment.stored_bytes
