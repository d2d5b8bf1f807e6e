"""The metrics (`docs/spec/api.md` section 11): the counts of the gate and the figures of the engine, as Prometheus text
and as JSON.

Nothing is kept in the registry of prometheus-client between scrapes. The engine is asked when a client scrapes, so that
no append pays for a metric that nobody reads. A thousand topics make some 200 KiB of text. They are rendered in steps
of about a millisecond, and other tasks run in between. This module alone imports prometheus-client; it is imported when
the daemon is ready, or by the first scrape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

import trio
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from topics.auth.keys import OPEN, Key
from topics.engine.engine import Engine
from topics.http.accept import qualities
from topics.http.answers.request_figures import RequestFigures
from topics.http.calls import Response, encode
from topics.telemetry.figures import BucketFigures, DeliveryFigures, EngineFigures, Histogram, StandbyFigures

PREFIX: Final = "topics_"

BUCKET_KINDS: Final = ("bases", "packs", "rounds", "segments")
"""Kinds of objects in the bucket that are put again and again."""

SLICE: Final = 200
"""Samples that are rendered in one step of the loop."""


def families(figures: EngineFigures, requests: RequestFigures) -> Iterator[Metric]:
    """All metrics. Names of counters are given without `_total`, which prometheus-client adds."""
    yield from _of_engine(figures)
    yield from _of_topics(figures)
    yield from _of_routers(figures)
    yield from _of_consumers(figures)
    yield from _of_schedules(figures)
    yield from _of_groups(figures)
    yield from _of_wal(figures)
    yield from _of_delivery(figures.delivery)
    yield from _of_requests(figures, requests)
    if figures.standby is not None:
        yield from _of_standby(figures.standby)
    if figures.bucket is not None:
        yield from _of_bucket(figures.bucket)


def _of_requests(figures: EngineFigures, requests: RequestFigures) -> Iterator[Metric]:
    yield _counter(
        "requests",
        "Requests answered (status 499: the client left before)",
        ("route", "status"),
        (((route, str(status)), count) for (route, status), count in sorted(requests.requests.items())),
    )
    yield _histogram("request_ms", "Time to answer a request, in milliseconds", requests.duration_ms)
    throttled = Counter(figures.throttled)
    throttled.update(requests.throttled)
    yield _counter(
        "throttled",
        "Requests refused with 429, by reason",
        ("reason",),
        (((reason,), count) for reason, count in sorted(throttled.items())),
    )
    yield _counter(
        "unauthorized",
        "Requests refused with 401 (unauthorized) or 403 (forbidden)",
        ("reason",),
        (((reason,), requests.unauthorized[reason]) for reason in ("forbidden", "unauthorized")),
    )
    yield _counter("exports", "Exports begun", ("format", "data"), sorted(requests.exports.items()))
    for name, text in (
        ("seqs", "Seqs that exports went through"),
        ("records", "Records that exports sent"),
        ("bytes", "Bytes that exports sent"),
    ):
        yield _counter(
            f"export_{name}",
            text,
            ("format",),
            (((kind,), getattr(figures, name)) for kind, figures in requests.exported.items()),
        )
    server = requests.server
    yield _gauge("connections", "Open connections", len(server.connections) if server is not None else 0)
    yield _counter(
        "connections_refused",
        "Connections closed at once, since there were too many",
        (),
        [((), server.refused_total if server is not None else 0)],
    )
    yield _counter(
        "audit_failures", "Lines of the audit log that could not be written", (), [((), requests.audit_failures)]
    )


def _of_engine(figures: EngineFigures) -> Iterator[Metric]:
    yield _gauge("topics", "Topics", figures.topics)
    yield _gauges(
        "topics_by_class",
        "Topics by durability class",
        ("class",),
        (((name,), count) for name, count in sorted(figures.by_class.items())),
    )
    yield _gauge("records_live", "Live records", figures.records_live)
    yield _gauge("bytes_live", "Live payload bytes", figures.bytes_live)
    yield _gauges(
        "segments",
        "Segments by tier",
        ("tier",),
        (((tier,), count) for tier, count in sorted(figures.segments.items())),
    )
    yield _gauge("segments_packed", "Segments that are packed", figures.segments_packed)
    yield _gauge("segment_bytes", "Bytes of the records in segments, unpacked", figures.segment_bytes)
    yield _gauge("segment_stored_bytes", "Bytes of these records as they are stored", figures.segment_stored_bytes)
    yield _gauge(
        "cold_usable", "Whether the cold directory is this daemon's, as far as it is known", int(figures.cold_usable)
    )
    yield _gauge("cold_calls_hanging", "Calls of the cold store that have not returned in time", figures.cold_hanging)
    yield _counter(
        "cold_calls_timed_out",
        "Calls of the cold store that have not returned in time, since the start",
        (),
        [((), figures.cold_timeouts)],
    )
    yield _gauge("queue_topics", "Topics that are queues", figures.queue_topics)
    yield _gauge("queue_leases_in_flight", "Leased jobs in all queues", figures.queue_leases)
    yield _gauge("results_waiting", "Results of jobs that are not delivered yet", figures.results_waiting)
    yield _gauge("results_waiting_bytes", "Bytes that these results count, of 256 MiB", figures.results_bytes)
    yield _gauge("ready", "Whether the daemon answers requests", int(figures.ready))
    yield _gauge("recovery_progress", "Replay of the WAL, 0 to 1", figures.recovery_progress)
    yield _gauge("uptime_ms", "Time since the start of the process, in milliseconds", figures.uptime_ms)
    yield _counter(
        "background_restarts",
        "Background tasks started again after an unexpected error, by task",
        ("task",),
        (((task,), count) for task, count in sorted(figures.restarts.items())),
    )


def _of_standby(figures: StandbyFigures) -> Iterator[Metric]:
    """Return the figures of a standby."""
    yield _gauge("standby_following", "1 while the rounds of the owner are followed", int(figures.state == "following"))
    yield _gauge("standby_epoch", "Epoch of the last round that is applied", figures.epoch)
    yield _gauge("standby_round", "Last round that is applied", figures.round)
    yield _gauge("standby_lag_ms", "Since when there may be rounds that are not applied", figures.lag_ms)
    yield _counter("standby_rounds", "Cuts applied since the start", (), [((), figures.rounds)])
    yield _counter("standby_frames", "Frames of the log applied since the start", (), [((), figures.frames)])
    yield _counter("standby_apply_ms", "How long applying them has held the loop", (), [((), figures.apply_ms)])


def _of_bucket(figures: BucketFigures) -> Iterator[Metric]:
    yield _gauges(
        "bucket_state",
        "State of the archive in the bucket: 1 for the present one",
        ("state",),
        (((state,), int(figures.state == state)) for state in ("opening", "working", "waiting", "refused")),
    )
    yield _gauge("bucket_epoch", "Epoch in which the archive writes", figures.epoch)
    if figures.lease_left_ms is not None:
        yield _gauge("bucket_lease_left_ms", "How long it may act without renewing its lease", figures.lease_left_ms)
    yield _gauge("bucket_round", "Last round that is in the bucket", figures.round)
    yield _counter("bucket_rounds", "Rounds written since the start", (), [((), figures.rounds)])
    yield _counter("bucket_round_bytes", "Bytes of these rounds as they are stored", (), [((), figures.round_bytes)])
    yield _gauge("bucket_lag_bytes", "Bytes of the synced log that are not in the bucket", figures.lag_bytes)
    yield _gauge("bucket_lag_ms", "Since when there are some, in milliseconds", figures.lag_ms)
    yield _gauge(
        "bucket_backlog_limit_bytes",
        "Beyond so many bucket_lag_bytes the archive begins anew; 0 while the limit is not known",
        figures.backlog_limit_bytes,
    )
    yield _gauge("bucket_has_base", "1 if there is a base of the present history", int(figures.has_base))
    yield _gauge("bucket_base", "Newest base of the present history", figures.base)
    yield _gauge("bucket_base_age_ms", "Age of that base, in milliseconds", figures.base_age_ms)
    yield _gauge("bucket_base_due", "1 if something has changed since that base", int(figures.base_is_due))
    yield _counter("bucket_bases", "Bases made since the start", (), [((), figures.bases)])
    yield _counter("bucket_bases_failed", "Bases that have failed since the start", (), [((), figures.bases_failed)])
    for name, text, by_kind in (
        ("objects", "Objects put since the start, by kind", figures.objects_put),
        ("bytes", "Bytes of these objects, by kind", figures.bytes_put),
    ):
        samples = [((kind,), by_kind.get(kind, 0)) for kind in BUCKET_KINDS]
        yield _counter(f"bucket_put_{name}", text, ("kind",), samples)
    yield _counter(
        "bucket_objects_deleted",
        "Objects that nobody needed, deleted since the start",
        (),
        [((), figures.objects_deleted)],
    )
    yield _counter(
        "bucket_repaired_segments",
        "Damaged segments repaired from the bucket since the start",
        (),
        [((), figures.segments_repaired)],
    )
    yield _counter(
        "bucket_repaired_log_files",
        "Damaged files of the log repaired from the bucket at the start",
        (),
        [((), figures.log_files_repaired)],
    )
    yield _counter("bucket_repaired_bytes", "Bytes taken from the bucket for them", (), [((), figures.repaired_bytes)])
    yield _gauge("bucket_repairs_waiting", "Damaged segments that wait for the bucket", figures.repairs_waiting)
    yield _gauge("bucket_calls_hanging", "Calls of the bucket that do not return", figures.calls_hanging)
    yield _counter(
        "bucket_calls_timed_out", "Calls of the bucket that were given up", (), [((), figures.calls_timed_out)]
    )
    yield _counter(
        "bucket_calls_failed",
        "Calls of the bucket that have failed, by kind of error",
        ("kind",),
        (((kind,), count) for kind, count in sorted(figures.calls_failed.items())),
    )


def _of_topics(figures: EngineFigures) -> Iterator[Metric]:
    samples = figures.topic_samples
    for name, text, attribute in (
        ("topic_head_seq", "Last seq of a topic", "head_seq"),
        ("topic_earliest_seq", "First live seq of a topic", "earliest_seq"),
        ("topic_records_live", "Live records of a topic", "records"),
        ("topic_bytes_live", "Live payload bytes of a topic", "bytes"),
    ):
        yield _gauges(name, text, ("topic",), (((sample.name,), getattr(sample, attribute)) for sample in samples))
    queues = [(sample.name, sample.jobs) for sample in samples if sample.jobs is not None]
    for name, text, attribute in (
        ("topic_queue_ready", "Jobs of a queue that can be claimed", "ready"),
        ("topic_queue_in_flight", "Leased jobs of a queue", "in_flight"),
        ("topic_queue_delayed", "Jobs of a queue that cannot be claimed yet", "delayed"),
        ("topic_queue_paused", "Whether a queue is paused", "paused"),
    ):
        yield _gauges(name, text, ("topic",), (((topic,), int(getattr(jobs, attribute))) for topic, jobs in queues))
    yield _counter(
        "topic_queue_dead_lettered",
        "Jobs of a queue that went to the dead letters",
        ("topic",),
        [((topic,), jobs.dead_lettered) for topic, jobs in queues],
    )
    yield _gauge("topic_metrics_truncated", "Whether there are topics without figures", int(figures.topics_truncated))


def _of_routers(figures: EngineFigures) -> Iterator[Metric]:
    samples = figures.router_samples
    yield _gauge("routers", "Routers", figures.routers)
    yield _gauges(
        "router_lag",
        "Records of its source that a router has not looked at yet",
        ("router",),
        (((sample.router,), sample.lag) for sample in samples),
    )
    yield _counter(
        "router_forwarded",
        "Copies that a router made",
        ("router",),
        (((sample.router,), sample.forwarded_total) for sample in samples),
    )
    yield _counter(
        "router_failures", "Forwarders started again after an unexpected error", (), [((), figures.router_failures)]
    )
    yield _gauge(
        "router_metrics_truncated", "Whether there are routers without figures", int(figures.routers_truncated)
    )


def _of_consumers(figures: EngineFigures) -> Iterator[Metric]:
    yield _gauge("consumers", "Named consumers", figures.consumers)
    yield _gauges(
        "consumer_lag",
        "Seqs of its topic that a consumer has not finished",
        ("topic", "consumer"),
        (((sample.topic, sample.consumer), sample.lag) for sample in figures.consumer_samples),
    )
    yield _gauge(
        "consumer_metrics_truncated", "Whether there are consumers without figures", int(figures.consumers_truncated)
    )


def _of_schedules(figures: EngineFigures) -> Iterator[Metric]:
    schedules = figures.schedules
    yield _gauge("redrives", "Redrives that are running", figures.redrives)
    yield _counter("letters_redriven", "Dead letters that redrives have moved", (), [((), figures.letters_redriven)])
    yield _gauge("schedules", "Schedules", schedules.schedules)
    yield _gauge("schedules_failing", "Schedules whose last firing was refused or is in doubt", schedules.failing)
    yield _counter("schedule_firings", "Records that schedules have appended", (), [((), schedules.fired)])
    yield _counter("schedule_refusals", "Attempts to fire that were refused", (), [((), schedules.refused)])
    yield _counter(
        "schedule_missed", "Times of schedules that came and will not be fired", (), [((), schedules.missed)]
    )


def _of_groups(figures: EngineFigures) -> Iterator[Metric]:
    samples = figures.group_samples
    names = ("topic", "group")
    yield _gauge("groups", "Groups of logs", figures.groups)
    yield _gauges(
        "group_lag",
        "Seqs of its topic that a group has not finished, from its floor on",
        names,
        (((sample.topic, sample.group), sample.lag) for sample in samples),
    )
    groups = [((sample.topic, sample.group), sample.jobs) for sample in samples]
    for name, text, attribute in (
        ("group_ready", "Records that a group has not finished and nobody holds", "ready"),
        ("group_in_flight", "Leased records of a group", "in_flight"),
        ("group_delayed", "Records of a group that cannot be claimed yet", "delayed"),
        ("group_paused", "Whether a group is paused", "paused"),
    ):
        yield _gauges(name, text, names, ((group, int(getattr(jobs, attribute))) for group, jobs in groups))
    yield _counter(
        "group_dead_lettered",
        "Records of a group that went to the dead letters",
        names,
        [(group, jobs.dead_lettered) for group, jobs in groups],
    )
    yield _counter(
        "group_missed",
        "Records that were lost before a group had finished them",
        names,
        [((sample.topic, sample.group), sample.missed) for sample in samples],
    )
    yield _gauge("group_metrics_truncated", "Whether there are groups without figures", int(figures.groups_truncated))


def _of_wal(figures: EngineFigures) -> Iterator[Metric]:
    wal = figures.wal
    for name, text, value in (
        ("wal_frames", "Frames written", wal.frames),
        ("wal_batches", "Batches of frames written", wal.batches),
        ("wal_fsyncs", "Syncs", wal.fsyncs),
        ("wal_bytes_written", "Bytes written", wal.bytes_written),
        ("wal_rotations", "WAL files begun", wal.rotations),
        ("wal_submit_full", "Commits that found the queue of their shard full", wal.submit_full),
    ):
        yield _counter(name, text, (), [((), value)])
    yield _gauge("wal_queue_depth", "Commits waiting to be written", wal.queue_depth)
    yield _gauge("wal_queue_depth_peak", "Most commits that waited in one shard", wal.queue_depth_peak)
    yield _gauge(
        "read_only", "Whether a failed shard or a disk that is nearly full refuses appends", int(figures.read_only)
    )
    yield _gauge("wal_read_only", "Shards that failed and take no writes", wal.read_only)
    yield _histogram("wal_fsync_latency_us", "Time of a sync, in microseconds", wal.fsync_latency)


def _of_delivery(delivery: DeliveryFigures) -> Iterator[Metric]:
    for name, text, value in (
        ("sse_connections", "Open event streams", delivery.sse_connections),
        ("ws_connections", "Open WebSockets", delivery.ws_connections),
        ("watch_sessions", "Watch sessions, with and without a stream", delivery.watch_sessions),
        ("pressure", "How pressed the daemon is, 0 to 1", delivery.pressure),
        ("pressure_coalesce_ms", "How long records of a topic are gathered into one frame", delivery.coalesce_ms),
        ("pressure_commit_window_ms", "How long commits gather before they are written", delivery.commit_window_ms),
        ("pressure_lowest_paused", "Whether topics of negative priority get nothing", int(delivery.lowest_paused)),
        ("pressure_routers_lowered", "Whether routers are one band lower", int(delivery.routers_lowered)),
        ("pressure_saturated", "Whether a full queue refuses at once", int(delivery.saturated)),
        ("ready_set_depth", "Topics with news that wait for their turn", delivery.ready_set_depth),
    ):
        yield _gauge(name, text, value)
    yield _histogram("scheduling_wait_ms", "How long a topic with news waited, in milliseconds", delivery.waits_ms)


Samples = Iterable[tuple[tuple[str, ...], float]]


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _gauges(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], samples: Samples) -> Metric:
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    buckets = [("+Inf" if bound == float("inf") else f"{bound:g}", count) for bound, count in histogram.cumulative()]
    return HistogramMetricFamily(PREFIX + name, text, buckets=buckets, sum_value=histogram.total)


class Exposition:
    """Renders the metrics as Prometheus text or as JSON."""

    def __init__(self, engine: Engine, requests: RequestFigures) -> None:
        self._engine = engine
        self._requests = requests

    async def respond(self, accept: str, key: Key = OPEN) -> Response:
        """The metrics, as JSON if `Accept` prefers it to plain text, else as Prometheus text.

        Topics and routers are shown if `key` covers them. Totals, which have no names, are shown to every key.
        """
        figures = await self._engine.metrics.figures(key)
        as_json = prefers_json(accept)
        pieces: list[bytes] = []
        for family in families(figures, self._requests):
            for piece in _json_of(family) if as_json else _text_of(family):
                pieces.append(piece)
                await trio.lowlevel.checkpoint()
        if as_json:
            return Response(200, b"{" + b",".join(pieces) + b"}")
        return Response(200, b"".join(pieces), CONTENT_TYPE_PLAIN_0_0_4.encode())


class _SingleFamily(Collector):
    """One family of metrics in the form that prometheus-client renders."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def _text_of(family: Metric) -> Iterator[bytes]:
    """A family as text, in pieces of `SLICE` samples. Its HELP and TYPE lines are only in the first piece."""
    samples = family.samples
    for start in range(0, max(len(samples), 1), SLICE):
        family.samples = samples[start : start + SLICE]
        text = generate_latest(_SingleFamily(family))
        yield text if start == 0 else text.split(b"\n", 2)[2]


def _json_of(family: Metric) -> Iterator[bytes]:
    """A family as members of a JSON object: `name: value`, or `name: [{labels, value}]` if it has labels.

    The names are those of the text form, except that the buckets of a histogram have the name of the histogram.
    """
    values: dict[str, Any] = {}
    if not family.samples:
        values[family.name + ("_total" if family.type == "counter" else "")] = []
    for sample in family.samples:
        if sample.labels:
            entry = {"labels": sample.labels, "value": sample.value}
            values.setdefault(sample.name.removesuffix("_bucket"), []).append(entry)
        else:
            values[sample.name] = sample.value
    yield encode(values)[1:-1]


def prefers_json(accept: str) -> bool:
    """Return True if an Accept header prefers `application/json` to `text/plain` and `text/*`."""
    best = qualities(accept.encode("latin-1", "replace"))
    wanted = best.get(b"application/json", 0.0)
    return wanted > 0 and wanted > max(best.get(kind, 0.0) for kind in (b"text/plain", b"text/*"))
