"""The present load of the daemon: rates and latencies of the last seconds, pressure, memory, disk (`docs/spec/api.md`
section 11), for `GET /v0/figures`; and its storage, for `GET /v0/storage`.

The daemon calls `sample` regularly. Everything else is asked of the engine when a client asks.
"""

from __future__ import annotations

from typing import Final

import trio
from msgspec import UNSET, UnsetType

from topics import __version__
from topics.auth.keys import Key
from topics.engine.engine import Engine
from topics.http.answers.request_figures import RequestFigures
from topics.http.daemon_answers import (
    BucketFiguresAnswer,
    CheckpointState,
    ConnectionCounts,
    DiskFigures,
    FiguresAnswer,
    LaggingRouter,
    Latencies,
    Latency,
    MemoryFigures,
    PressureFigures,
    Rates,
    ReclaimState,
    ReplicaState,
    ShardState,
    StandbyFiguresAnswer,
    StorageAnswer,
    TierState,
    TotalFigures,
)
from topics.model import Performance
from topics.runtime.process_limits import resident_bytes
from topics.telemetry.figures import BucketFigures, Histogram, ReplicaFigures
from topics.telemetry.load_window import LoadWindow, quantile_of

LAGGING: Final = 5
"""How many of the routers that lag most are named."""

LOOKED_AT: Final = 1000
"""Routers that are looked at for that."""

_UNITS_PER_MS: Final = {"append": 1.0, "delivery": 1.0, "commit": 1.0, "sync": 1000.0}
"""Of the histograms."""


class LoadFigures:
    """The figures of one daemon. Made once by the gate."""

    def __init__(self, engine: Engine, requests: RequestFigures) -> None:
        self._engine = engine
        self._requests = requests
        self._window = LoadWindow()

    def sample(self) -> None:
        """Take a sample for rates and latencies, if it is time for one. Called by the clock."""
        now = self._engine.clock.monotonic_ms()
        if self._window.is_due(now):
            self._window.add(now, self._counters(), self._histograms())

    def _counters(self) -> dict[str, int]:
        traffic = self._engine.registry.traffic
        exported = self._requests.exported.values()
        writers = self._engine.store.writers
        return {
            "records_in": traffic.records_in,
            "bytes_in": traffic.bytes_in,
            "records_out": traffic.records_out + sum(one.records for one in exported),
            "bytes_out": traffic.bytes_out + sum(one.bytes for one in exported),
            "requests": self._requests.answered,
            "wal_bytes": sum(writer.figures.bytes_written for writer in writers),
            "syncs": sum(writer.figures.fsyncs for writer in writers),
        }

    def _histograms(self) -> dict[str, Histogram]:
        engine = self._engine
        syncs = Histogram()
        for writer in engine.store.writers:
            syncs.merge(writer.figures.fsync_latency)
        return {
            "append": self._requests.append_ms,
            "delivery": engine.delivery.scheduler.waits_ms,
            "commit": engine.registry.traffic.commit_ms,
            "sync": syncs,
        }

    def figures(self, key: Key, performance: Performance) -> FiguresAnswer:
        """Return the answer to `GET /v0/figures`. Routers are named if `key` covers them."""
        engine, now = self._engine, self._engine.clock.monotonic_ms()
        counters, histograms = self._counters(), self._histograms()
        rates = self._window.rates(now, counters)
        latencies = {name: self._latency(name, histogram) for name, histogram in histograms.items()}
        status, store, registry = engine.status, engine.store, engine.registry
        governor, watching = engine.governor, engine.watch_sessions
        server = self._requests.server
        return FiguresAnswer(
            ts=engine.clock.now_ms(),
            version=__version__,
            uptime_ms=now - status.started_ms,
            phase=status.phase,
            replay_progress=status.replay_progress,
            read_only=status.read_only or store.refuses_appends,
            topics=len(registry.topics),
            records=registry.total_records,
            bytes=registry.total_bytes,
            routers=len(engine.routers),
            consumers=len(engine.consumers),
            groups=len(engine.groups),
            schedules=engine.firings.figures().schedules,
            redrives=engine.redrives.running,
            results_waiting=engine.metrics.results_waiting,
            rates=None if rates is None else Rates(seconds=self._window.seconds(now), **rates),
            latencies=Latencies(**latencies),
            totals=TotalFigures(**counters),
            pressure=PressureFigures(
                value=governor.pressure,
                coalesce_ms=governor.steps.coalesce_ms,
                commit_window_ms=governor.steps.commit_window_ms,
                lowest_paused=governor.steps.lowest_paused,
                routers_lowered=governor.steps.routers_lowered,
                saturated=governor.steps.saturated,
            ),
            queue_depth=sum(len(writer.queue) for writer in store.writers),
            failed_shards=sum(writer.failed is not None for writer in store.writers),
            connections=ConnectionCounts(
                open=len(server.connections) if server is not None else 0,
                streams=watching.places.sse,
                sockets=watching.places.ws,
                sessions=watching.session_count,
            ),
            memory=MemoryFigures(
                resident_bytes=resident_bytes(),
                cache_bytes=engine.cache.bytes,
                pinned_bytes=engine.cache.pinned_bytes,
                cache_limit_bytes=engine.settings.cache_bytes,
            ),
            disk=DiskFigures(
                free_bytes=store.space.free_bytes,
                min_free_bytes=engine.settings.min_free_bytes,
                shortage=store.space.shortage,
            ),
            lagging_routers=self._lagging(key),
            salvaged=store.salvaged,
            cold_usable=store.cold_dir.is_ours,
            bucket=self._bucket(),
            standby=self._standby(),
            performance=performance,
        )

    def _latency(self, name: str, histogram: Histogram) -> Latency | None:
        found = self._window.quantiles(name, histogram)
        if found is None:
            return None
        unit = _UNITS_PER_MS[name]
        return Latency(count=found.values, p50_ms=round(found.p50 / unit, 3), p99_ms=round(found.p99 / unit, 3))

    def _lagging(self, key: Key) -> list[LaggingRouter]:
        samples, _ = self._engine.routers.samples(LOOKED_AT, key)
        lagging = sorted((one for one in samples if one.lag), key=lambda one: -one.lag)[:LAGGING]
        return [LaggingRouter(router=one.router, lag=one.lag) for one in lagging]

    def _bucket(self) -> BucketFiguresAnswer | UnsetType:
        look = self._engine.metrics.bucket
        return UNSET if look is None else _bucket_of(look())

    def _standby(self) -> StandbyFiguresAnswer | UnsetType:
        if self._engine.status.following is None:
            return UNSET
        seen = self._engine.status.following()
        return StandbyFiguresAnswer(
            state=seen.state,
            problem=seen.problem,
            owner=seen.owner or None,
            epoch=seen.epoch,
            round=seen.round,
            at=seen.wall_ms,
            lag_ms=seen.lag_ms,
        )

    async def storage(self, performance: Performance) -> StorageAnswer:
        """Return the answer to `GET /v0/storage`. The segments are counted in several steps of the loop."""
        engine = self._engine
        store, settings = engine.store, engine.settings
        tiers = await engine.metrics.tiers()
        last = engine.compactor.figures
        return StorageAnswer(
            shards=[
                ShardState(
                    shard=writer.shard,
                    read_only=writer.failed is not None,
                    queue_depth=len(writer.queue),
                    frames=writer.figures.frames,
                    batches=writer.figures.batches,
                    bytes=writer.figures.bytes_written,
                    syncs=writer.figures.fsyncs,
                    rotations=writer.figures.rotations,
                    sync_p99_ms=_p99_ms(writer.figures.fsync_latency),
                )
                for writer in store.writers
            ],
            tiers=[
                TierState(
                    tier="hot" if name == "hot" else "cold", segments=one.segments, seqs=one.seqs, bytes=one.bytes
                )
                for name, one in tiers.items()
            ],
            checkpoints=CheckpointState(
                taken=last.taken,
                failed=last.failed,
                age_ms=None if last.ended_at is None else round((trio.current_time() - last.ended_at) * 1000),
                took_ms=last.took_ms,
                error=last.error or None,
                interval_ms=settings.checkpoint_ms,
                changed_topics=len(engine.registry.changed),
            ),
            reclaim=ReclaimState(topics_waiting=len(engine.registry.attention), interval_ms=settings.reclaim_ms),
            cold="bucket" if settings.bucket else "none" if store.cold is None else "directory",
            cold_usable=store.cold_dir.is_ours,
            bucket=self._bucket(),
            replicas=self._replicas(),
            performance=performance,
        )

    def _replicas(self) -> list[ReplicaState] | UnsetType | None:
        """The daemons that have the bucket; None before the first look, which is had by this."""
        look = self._engine.metrics.replicas
        if look is None:
            return UNSET
        found = look()
        return None if found is None else [_replica_of(one) for one in found]


def _replica_of(seen: ReplicaFigures) -> ReplicaState:
    return ReplicaState(
        role=seen.role,
        node=seen.node,
        url=seen.url,
        is_this=seen.is_this,
        state=seen.state,
        epoch=seen.epoch,
        round=seen.round,
        at=seen.at,
        lag_ms=seen.lag_ms,
        heard_ms=seen.heard_ms,
    )


def _p99_ms(latency: Histogram) -> float | None:
    if not sum(latency.counts):
        return None
    return round(quantile_of(latency.bounds, latency.counts, 0.99) / _UNITS_PER_MS["sync"], 3)


def _bucket_of(seen: BucketFigures) -> BucketFiguresAnswer:
    return BucketFiguresAnswer(
        state=seen.state,
        problem=seen.problem,
        epoch=seen.epoch,
        round=seen.round,
        rounds=seen.rounds,
        round_bytes=seen.round_bytes,
        lag_bytes=seen.lag_bytes,
        lag_ms=seen.lag_ms,
        has_base=seen.has_base,
        base=seen.base,
        base_age_ms=seen.base_age_ms,
        base_is_due=seen.base_is_due,
        bases=seen.bases,
        bases_failed=seen.bases_failed,
        calls_hanging=seen.calls_hanging,
        repairs_waiting=seen.repairs_waiting,
    )
